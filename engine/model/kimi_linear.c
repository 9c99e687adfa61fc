/* Kimi Linear: Kimi delta attention in most layers, MLA without rotation in the others, DeepSeek-V3's experts under
 * Mixtral's names; and Kimi K3's language model, which adds attention residuals, experts in a latent space whose sum is
 * normed, capped activations and gates of full rank. References: the vendor's modeling_kimi.py (Kimi Linear) and
 * modeling_kimi_linear.py (Kimi K3); transformers, models/kimi_linear; config.json as published. */
#include <math.h>

#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/kda.h"

static const struct deepseek_defaults defaults = {.scale = 2.446,
                                                  .shared = 1,
                                                  .norm = true,
                                                  .groups = 1,
                                                  .topk_group = 1},
                                      k3_defaults = {.scale = 1, .norm = true, .groups = 1, .topk_group = 1};

static void parse_layers(struct config_reader *r, struct config *c, const struct deepseek_defaults *d) {
    deepseek_attention(r, c);
    if (!config_bool(r, "mla_use_nope", config_has(r, "layer_types")))
        config_fail(r, "'mla_use_nope' is not true: the reference rotates no keys");
    if (c->rope.kind != ROPE_DEFAULT) config_fail(r, "'rope_scaling' is set: the reference rotates no keys");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = LAYER_ROPE_NONE;
    if (c->qkv_bias) config_fail(r, "'attention_bias' is true: the reference has none");
    kda_read_layers(r, c, 1);
    const struct json *lists = config_get(r, "linear_attn_config");
    kda_read_types(r, c, lists && json_get(lists, "kda_layers"));
    deepseek_experts(r, c, d);
    deepseek_router(r, c, d);
    if (!config_bool(r, "use_grouped_topk", true) && c->n_group > 1)
        config_fail(r, "'use_grouped_topk' is false with %d groups of experts", c->n_group);
}

static void parse(struct config_reader *r, struct config *c) {
    c->max_context = config_int(r, "model_max_length", c->max_context, 1, 1 << 24);
    parse_layers(r, c, &defaults);
    if (!c->kda.gate_rank)
        config_fail(r, "'linear_attn_config.use_full_rank_gate' is true: hearth supports such gates of Kimi K3 only");
}

/* SiTU: both factors of the product are capped. */
static void read_situ(struct config_reader *r, struct config *c) {
    static const char *const acts[] = {"situ", NULL};
    config_choice(r, "hidden_act", acts, 0);
    const double beta = config_num(r, "activation_situ_beta", 1, 0, 1e6);
    c->glu = (struct glu){.gate_cap = beta > 0 ? (float)beta : 1,
                          .up_cap = (float)config_num(r, "activation_situ_linear_beta", 0, 0, 1e6)};
    if (!(c->glu.up_cap > 0))
        config_fail(r, "'activation_situ_linear_beta' is not set: hearth caps both factors of the activation");
}

/* Streams that blocks of layers sum, which later blocks read. */
static void read_residuals(struct config_reader *r, struct config *c) {
    struct residual_streams *s = &c->streams;
    if (!config_has(r, "attn_res_block_size")) return;
    s->block_layers = config_int(r, "attn_res_block_size", 0, 1, CONFIG_MAX_LAYERS);
    if (r->rc) return;
    s->n = (c->n_layers + s->block_layers - 1) / s->block_layers + 1;
    s->sums_raw = true, s->eps = c->norm_eps;
    if (s->n > POOL_SOURCES_MOST)
        config_fail(r, "%d layers in blocks of %d: attention residuals of %d sources; hearth takes up to %d",
                    c->n_layers, s->block_layers, s->n, POOL_SOURCES_MOST);
}

static void parse_k3(struct config_reader *r, struct config *c) {
    static const char *const media[] = {"media_placeholder_token_id", "ignore_index", "image_placeholder"};
    config_skip_vision(r, c);
    for (size_t i = 0; i < sizeof media / sizeof *media; i++) config_ignore(r, media[i]);
    parse_layers(r, c, &k3_defaults);
    c->kda.rates_are_padded = true;
    if (c->kda.gate_rank)
        config_fail(r, "'linear_attn_config.use_full_rank_gate' is not true: hearth supports gates of full rank only");
    if (config_bool(r, "mla_use_output_gate", false))
        c->attn_gate = ATTN_GATE_ELEMENT, c->attn_gate_kind = GATE_SIGMOID;
    if (config_has(r, "routed_expert_hidden_size")) {
        c->moe_latent = config_int(r, "routed_expert_hidden_size", 0, 1, 1 << 20);
        c->routed_sum_norm = config_bool(r, "latent_moe_use_norm", false);
    } else config_has(r, "latent_moe_use_norm"); /* of no effect without it */
    read_situ(r, c);
    read_residuals(r, c);
}

#define L         "model.layers.%d."
#define K3        DEEPSEEK_LANGUAGE_MODEL
#define K3_LAYER  K3 "layers.%d."
#define K3_SPARSE K3_LAYER "block_sparse_moe."
static const char *const types[] = {"kimi_linear", NULL}, *const k3[] = {"kimi_k3", NULL};
static const char *const keys[][2] = {{"num_experts_per_tok", "num_experts_per_token"},
                                      {"n_routed_experts", "num_experts"},
                                      {"n_shared_experts", "num_shared_experts"},
                                      {"norm_topk_prob", "moe_renormalize"},
                                      {"scoring_func", "moe_router_activation_func"},
                                      {"n_group", "num_expert_group"},
                                      {NULL, NULL}};
#define EXPERTS L "block_sparse_moe."
/* Names of a text model with prefix m whose experts have prefix `sparse`; `mlp` names a dense FFN in published files,
 * transformers writes it under the experts' prefix. */
#define FAMILY_NAMES(m, sparse, mlp) \
    NAMES_NORMS_BEFORE(m), \
        .embed = m "embed_tokens", .norm = m "norm", .q = m "layers.%d.self_attn.q_proj", \
        .o = m "layers.%d.self_attn.o_proj", DEEPSEEK_MLA_NAMES(m), KDA_NAMES(m "layers.%d.self_attn."), \
        NAMES_SPARSE(m), .router_bias = sparse "gate.e_score_correction_bias", \
        .shared_gate_proj = sparse "shared_experts.gate_proj", .shared_up = sparse "shared_experts.up_proj", \
        .shared_down = sparse "shared_experts.down_proj", .dense_gate = mlp "gate_proj", .dense_up = mlp "up_proj", \
        .dense_down = mlp "down_proj", .kda_decay = m "layers.%d.self_attn.f_a_proj", \
        .kda_decay_up = m "layers.%d.self_attn.f_b_proj"
#define ARCH(mlp, ...) \
    { \
        .model_types = types, .title = "Kimi Linear", .norm_eps = 1e-5, .defaults = {.context = 4096, .topk = 8}, \
        .parse = parse, .key_aliases = keys, __VA_ARGS__, .names = { \
            FAMILY_NAMES("model.", EXPERTS, mlp), \
            .head = "lm_head", \
            .kda_gate = L "self_attn.g_a_proj", \
            .kda_gate_up = L "self_attn.g_b_proj" \
        } \
    }
static const struct arch saved = ARCH(EXPERTS, .variant = NULL);
const struct arch arch_kimi_linear = ARCH(L "mlp.", .variant = &saved, .variant_tensor = EXPERTS "gate_proj.weight");

/* The first layer reads the embedding alone. */
static const char *const unused[] = {".layers.0.self_attention_res_", "blk.0.attn_res_score", NULL};
const struct arch arch_kimi_k3 = {
    .model_types = k3,
    .title = "Kimi K3",
    .norm_eps = 1e-5,
    .defaults = {.context = 4096, .own_activation = true},
    .text_config_key = "text_config",
    .text_type = "kimi_linear",
    .parse = parse_k3,
    .key_aliases = keys,
    .skipped_tensors = unused,
    .names = {FAMILY_NAMES(K3, K3_SPARSE, K3_LAYER "mlp."), .head = "language_model.lm_head",
              .attn_gate = K3_LAYER "self_attn.g_proj", .kda_gate = K3_LAYER "self_attn.g_proj",
              .attn_pool = K3_LAYER "self_attention_res_proj", .attn_pool_norm = K3_LAYER "self_attention_res_norm",
              .ffn_pool = K3_LAYER "mlp_res_proj", .ffn_pool_norm = K3_LAYER "mlp_res_norm",
              .head_pool = K3 "output_attn_res_proj", .head_pool_norm = K3 "output_attn_res_norm",
              .routed_in = K3_SPARSE "routed_expert_down_proj", .routed_sum_norm = K3_SPARSE "routed_expert_norm",
              .routed_out = K3_SPARSE "routed_expert_up_proj"},
};
