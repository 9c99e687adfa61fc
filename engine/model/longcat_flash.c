/* LongCat-Flash: each published layer has two attention blocks and two dense FFNs, and routed experts that read the
 * first FFN's input and whose output is added with the second one's. hearth reads it as two layers: the first keeps its
 * FFN input, which the second routes, with its own FFN as a shared expert. MLA with scaled latents; some experts return
 * their input. Reference: transformers, models/longcat_flash.
 *
 * LongCat-Flash-Lite averages the embedding of a token with those of the n-grams that end at it. Sources: the vendor's
 * modeling file; SGLang, layers/n_gram_embedding; vLLM and mlx-lm, models/longcat_flash_ngram. In the first three an
 * end token ends n-grams; mlx-lm continues them over it. Published checkpoints have no model_type. The prediction layer
 * (model.mtp) is not read. LongCat-Flash-Lite-Sparse and LongCat-2.0 ("LongcatCausalLM", keys oe_*) have other
 * attention and another sum of embeddings, and are refused. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/deepseek.h"

static void read_experts(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"identity", NULL}, *const dtypes[] = {"float32", NULL};
    c->dense_inter = c->shared_inter = config_int(r, "ffn_hidden_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "n_routed_experts", 0, 1, 4096);
    c->n_idle_experts = config_int(r, "zero_expert_num", 0, 0, 4096);
    c->topk = config_int(r, "moe_topk", 0, 1, 64);
    c->moe_inter = config_int(r, "expert_ffn_hidden_size", 0, 1, 1 << 20);
    c->routed_scale = (float)config_num(r, "routed_scaling_factor", 6, 0, 1e4);
    config_choice(r, "zero_expert_type", kinds, 0);
    config_choice(r, "router_dtype", dtypes, 0);
    c->router_shift = config_bool(r, "router_bias", false);
    c->router_bias = true;
    c->norm_topk = config_bool(r, "norm_topk_prob", false);
    c->score = SCORE_SOFTMAX;
}

static void read_ngrams(struct config_reader *r, struct config *c) {
    struct input_ngrams g = {.radix = c->vocab};
    const double ratio = config_num(r, "ngram_vocab_size_ratio", 0, 0, 1e9);
    if (!config_has(r, "ngram_vocab_size_ratio")) config_fail(r, "'ngram_vocab_size_ratio' is missing");
    g.size = config_int(r, "emb_neighbor_num", 0, 2, NGRAM_MOST);
    g.per = config_int(r, "emb_split_num", 0, 1, NGRAM_HASHES_MOST);
    const int hashes = (g.size - 1) * g.per;
    if (r->rc) return;
    if (hashes > NGRAM_HASHES_MOST || hashes > c->hidden) {
        config_fail(r, "%d hashes of n-grams; hearth takes up to %d", hashes,
                    c->hidden < NGRAM_HASHES_MOST ? c->hidden : NGRAM_HASHES_MOST);
        return;
    }
    g.dim = c->hidden / hashes;
    for (int k = 0; k < hashes && !r->rc; k++) {
        const double rows = floor(ratio * c->vocab + 2 * k + 1);
        if (rows > INT32_MAX)
            config_fail(r, "a table of n-grams has %.0f rows; hearth takes up to %d", rows, INT32_MAX);
        else g.rows[k] = (int)rows;
    }
    if (config_has(r, "oe_ignored_token_ids"))
        config_fail(r, "'oe_ignored_token_ids' is set: hearth's n-grams leave out no tokens");
    if (c->n_eos > 1) config_fail(r, "'eos_token_id' lists %d ids; n-grams end at one", c->n_eos);
    c->ngram_end = c->n_eos ? c->eos[0] : 2; /* the default of the family's configuration class */
    c->input_ngrams = g;
}

/* The vendor's class counts attention blocks in a key of its own when it saves a model; some configs repeat the number
 * of layers there. */
static void check_blocks(struct config_reader *r, const struct config *c) {
    const char *const(*aliases)[2] = r->key_aliases;
    r->key_aliases = NULL;
    const int n = config_int(r, "num_hidden_layers", c->n_layers, 1, CONFIG_MAX_LAYERS);
    r->key_aliases = aliases;
    if (n != c->n_layers && 2 * n != c->n_layers)
        config_fail(r, "'num_hidden_layers' is %d; %d layers have %d attention blocks", n, c->n_layers / 2,
                    c->n_layers);
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const methods[] = {"MLA", NULL}, *const of_drafts[] = {"mtp_num_layers", "mtp_replicate_modules",
                                                                              "mtp_disable_over_tokenizer"};
    for (size_t i = 0; i < sizeof of_drafts / sizeof *of_drafts; i++) config_ignore(r, of_drafts[i]);
    config_ignore(r, "use_mla");
    check_blocks(r, c);
    config_choice(r, "attention_method", methods, 0);
    deepseek_attention(r, c);
    if (config_bool(r, "mla_scale_q_lora", true) && c->q_lora)
        c->q_latent_scale = sqrtf((float)c->hidden / (float)c->q_lora);
    if (config_bool(r, "mla_scale_kv_lora", true)) c->kv_latent_scale = sqrtf((float)c->hidden / (float)c->kv_lora);
    read_experts(r, c);
    if (c->arch != &arch_longcat_flash || config_has(r, "ngram_vocab_size_ratio")) read_ngrams(r, c);
    for (int i = 0; i < c->n_layers; i++)
        c->layer[i].keeps_input = i % 2 == 0, c->layer[i].moe = c->layer[i].routes_kept = i % 2;
}

#define L "model.layers.%d."
#define N "model.ngram_embeddings."
#define NAMES \
    .norm = "model.norm", .head = "lm_head", .attn_norm = L "input_layernorm.%d", \
    .ffn_norm = L "post_attention_layernorm.%d", .q = L "self_attn.%d.q_proj", .q_a = L "self_attn.%d.q_a_proj", \
    .q_a_norm = L "self_attn.%d.q_a_layernorm", .q_b = L "self_attn.%d.q_b_proj", \
    .kv_a = L "self_attn.%d.kv_a_proj_with_mqa", .kv_a_norm = L "self_attn.%d.kv_a_layernorm", \
    .kv_b = L "self_attn.%d.kv_b_proj", .o = L "self_attn.%d.o_proj", .router = L "mlp.router.classifier", \
    .router_bias = L "mlp.router.e_score_correction_bias", NAMES_EXPERTS("model."), \
    .shared_gate_proj = L "mlps.%d.gate_proj", .shared_up = L "mlps.%d.up_proj", .shared_down = L "mlps.%d.down_proj", \
    .dense_gate = L "mlps.%d.gate_proj", .dense_up = L "mlps.%d.up_proj", .dense_down = L "mlps.%d.down_proj", \
    .input_ngram_table = N "embedders.%d", .input_ngram_projection = N "post_projs.%d"
#define FAMILY(types_, classes, name, embedding, ...) \
    { \
        .model_types = types_, .architectures = classes, .title = name, .norm_eps = 1e-5, .sublayers = 2, \
        .parse = parse, .key_aliases = aliases, .names = {.embed = embedding, NAMES}, __VA_ARGS__ \
    }
static const char *const types[] = {"longcat_flash", NULL}, *const ngram_types[] = {"longcat_flash_ngram", NULL};
static const char *const classes_[] = {"LongcatFlashForCausalLM", NULL}, *const ngram_classes[] = {
                                                                             "LongcatFlashNgramForCausalLM", NULL};
static const char *const aliases[][2] = {{"num_hidden_layers", "num_layers"}, {NULL, NULL}};
/* As transformers may save a model: the embedding, which two modules share, has its name in the n-gram module. */
static const struct arch saved = FAMILY(types, classes_, "LongCat-Flash", N "word_embeddings", .variant = NULL);
static const struct arch ngram_saved =
    FAMILY(ngram_types, ngram_classes, "LongCat-Flash-Lite", N "word_embeddings", .variant = NULL);
const struct arch arch_longcat_flash = FAMILY(types, classes_, "LongCat-Flash", "model.embed_tokens", .variant = &saved,
                                              .variant_tensor = N "word_embeddings.weight");
const struct arch arch_longcat_flash_ngram =
    FAMILY(ngram_types, ngram_classes, "LongCat-Flash-Lite", "model.embed_tokens", .variant = &ngram_saved,
           .variant_tensor = N "word_embeddings.weight");
