/* GLM-5.3-Flash: Kimi delta attention with a bound on its decays, MLA without rotation over the keys that an indexer
 * selects in blocks, several residual streams (hyper-connections), clamped activations. Reference: transformers,
 * models/glm5_next (language model only). */
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/kda.h"

static const struct deepseek_defaults defaults = {
    .scale = 2.5, .dense = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

/* Refuses a switch that the reference has in one position only. */
static void require(struct config_reader *r, const char *key) {
    if (!config_bool(r, key, true)) config_fail(r, "'%s' is false: the reference has no such model", key);
}

/* The published config has the layers with KDA in linear_attn_config. transformers saves layer_types and linear_*, and
 * may keep that object. */
static void read_mixers(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"linear_attention", "indexed_attention", "deepseek_sparse_attention", NULL};
    const struct json *types = config_layer_list(r, c, "layer_types", true),
                      *published = config_get(r, "linear_attn_config");
    const bool is_known = published && published->type == JSON_OBJECT && json_get(published, "kda_layers");
    kda_read_layers(r, c, 0);
    for (int i = 0; i < c->n_layers && types && !r->rc; i++) {
        const uint8_t mixer = config_layer_choice(r, "layer_types", types, i, kinds) ? MIXER_ATTENTION : MIXER_KDA;
        if (is_known && mixer != c->layer[i].mixer)
            config_fail(r, "'layer_types' and 'linear_attn_config' differ in layer %d", i);
        c->layer[i].mixer = mixer;
    }
    const bool has_bound = published && published->type == JSON_OBJECT && json_get(published, "gate_lower_bound"),
               unbounded = !published && config_is_null(r, "linear_lower_bound");
    const double bound = config_num(r, "linear_lower_bound",
                                    has_bound   ? (double)c->kda.bound
                                    : unbounded ? 0
                                                : -5,
                                    -100, 0);
    if (has_bound && (float)bound != c->kda.bound)
        config_fail(r, "'linear_lower_bound' is %g, in 'linear_attn_config' %g", bound, (double)c->kda.bound);
    c->kda.bound = (float)bound;
}

static void read_indexer(struct config_reader *r, struct config *c) {
    static const char *const switches[] = {"index_kpool_compress", "index_kpool_always_select_tail"};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) require(r, switches[i]);
    /* nothing rotates; of the MTP layer */
    config_ignore(r, "indexer_rope_interleave"), config_ignore(r, "index_share_for_mtp_iteration");
    c->attn = ATTN_DSA;
    c->index_heads = config_int(r, "index_n_heads", 32, 1, 1024);
    c->index_dim = config_int(r, "index_head_dim", 128, 2, 1024);
    c->index_block = config_int(r, "index_kpool", 4, 2, 1024);
    /* the budget counts tokens */
    c->index_topk = config_int(r, "index_topk", 2048, c->index_block, 1 << 20) / c->index_block;
    if (!c->q_lora) config_fail(r, "'q_lora_rank' is missing: the indexer's queries are made from it");
    deepseek_index_sharing(r, c, 1);
    bool has_choice = false;
    for (int i = 0; i < c->n_layers; i++) { /* a layer with KDA hands on the choice of the layer before */
        if (c->layer[i].mixer) c->layer[i].index = has_choice ? INDEX_PREVIOUS : INDEX_OWN;
        else if (c->layer[i].index == INDEX_PREVIOUS && !has_choice)
            config_fail(r, "layer %d is to take over a choice of keys, and there is none before it", i);
        else has_choice = true;
    }
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const dtypes[] = {"float32", NULL};
    config_skip_vision(r, c);
    require(r, "mhc"), require(r, "mla_use_nope");
    deepseek_attention(r, c);
    if (c->qkv_bias) config_fail(r, "'attention_bias' is true: the reference has none");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = LAYER_ROPE_NONE;
    c->latent_eps = c->norm_eps;
    read_mixers(r, c);
    read_indexer(r, c);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    config_choice(r, "moe_router_dtype", dtypes, 0);
    c->glu.limit = (float)config_num(r, "swiglu_limit", 0, 0, 1e6);
    c->streams.n = config_int(r, "hc_mult", 4, 2, STREAMS_MOST);
    c->streams.iters = config_int(r, "hc_sinkhorn_iters", 20, 1, 1000);
    c->streams.eps = (float)config_num(r, "hc_eps", 1e-6, 0, 1);
    c->streams.is_averaged = true;
}

#define M "model.language_model."
#define L M "layers.%d."
#define I L "self_attn.indexer."
static const char *const types[] = {"glm5_next", NULL};
const struct arch arch_glm5_next = {
    .model_types = types,
    .title = "GLM-5.3-Flash",
    .defaults = {.topk = 8},
    .norm_eps = 1e-5,
    .text_config_key = "text_config",
    .parse = parse,
    .names = {NAMES_USUAL(M),
              DEEPSEEK_MLA_NAMES(M),
              KDA_NAMES(L "self_attn."),
              KDA_LOW_NAMES(L "self_attn."),
              .index_q = I "wq_b",
              .index_k = I "wk",
              .index_k_norm = I "k_norm",
              .index_weights = I "weights_proj",
              .index_compress_gate = I "index_kpool_compress_gate",
              .index_compress_bias = I "index_kpool_compress_ape",
              .attn_mix = L "hc_attn_fn",
              .attn_mix_base = L "hc_attn_base",
              .attn_mix_scale = L "hc_attn_scale",
              .ffn_mix = L "hc_ffn_fn",
              .ffn_mix_base = L "hc_ffn_base",
              .ffn_mix_scale = L "hc_ffn_scale",
              NAMES_ROUTER(M),
              .router_bias = L "mlp.gate.e_score_correction_bias",
              NAMES_EXPERTS(M),
              NAMES_SHARED(M, "shared_experts"),
              NAMES_DENSE(M)},
};
