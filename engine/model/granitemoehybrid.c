/* Granite 4 H: Mamba-2 in most layers, GQA without rotation in the others, stacked experts and a shared FFN, which
 * small models have alone; Granite's factors of the embeddings, the scores, the residual stream and the logits.
 * Bamba: the same without factors and experts, and half of each head rotated. Reference: transformers,
 * models/granitemoehybrid and models/bamba. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/granite.h"
#include "engine/model/names.h"

static void read_mamba(struct config_reader *r, struct config *c) {
    struct mamba_config *m = &c->mamba;
    static const char *const init[] = {"mamba_chunk_size", "time_step_min", "time_step_max",
                                       "time_step_floor",  "init_method",   NULL}; /* of kernels and of training */
    const int expand = config_int(r, "mamba_expand", 2, 1, 64);
    const struct json *dim = config_get(r, "mamba_d_head");
    m->heads = config_int(r, "mamba_n_heads", 128, 1, 4096);
    m->head_dim =
        !dim || json_is(dim, "auto") ? expand * c->hidden / m->heads : config_int(r, "mamba_d_head", 0, 1, 4096);
    m->groups = config_int(r, "mamba_n_groups", 1, 1, 1024);
    m->state = config_int(r, "mamba_d_state", 256, 1, 1024);
    m->taps = config_int(r, "mamba_d_conv", 4, 2, 64);
    m->conv_bias = config_bool(r, "mamba_conv_bias", true);
    m->projects_bias = config_bool(r, "mamba_proj_bias", false);
    for (int i = 0; init[i]; i++) config_ignore(r, init[i]);
    config_check_step_limit(r, "time_step_limit");
    if (m->heads % m->groups) config_fail(r, "%d heads of Mamba do not divide into %d groups", m->heads, m->groups);
    if (m->heads * m->head_dim != expand * c->hidden)
        config_fail(r, "'mamba_expand' is %d, but %d heads of %d are not %d times as wide as the model", expand,
                    m->heads, m->head_dim, expand);
}

static void read_positions(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"nope", "rope", NULL};
    c->rope.interleaved = config_bool(r, "rope_interleave", false); /* GGUF only: it stores rotated pairs adjacently */
    const bool rotates = config_choice(r, "position_embedding_type", kinds, 0) == 1;
    config_read_rope(r, c, c->head_dim, 10000);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = rotates ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    config_read_mixers(r, c, config_has(r, "layer_types") ? "layer_types" : "layers_block_type", MIXER_MAMBA2, "mamba",
                       "attention");
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    static const char *const norms[] = {"rmsnorm", NULL};
    config_choice(r, "normalization_function", norms, 0);
    read_positions(r, c);
    read_mamba(r, c);
    granite_read_factors(r, c);
    c->n_experts = config_int(r, "num_local_experts", 8, 0, 4096);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = c->dense_inter = config_int(r, "shared_intermediate_size", 1024, 1, 1 << 20);
    const int topk = config_int(r, "num_experts_per_tok", 2, 0, 64);
    if (c->n_experts) c->topk = topk;
    else c->shared_inter = 0;
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = c->n_experts > 0;
    c->norm_topk = true; /* softmax over all and renormalization equals softmax over the chosen */
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

/* Bamba lists the layers with attention. */
static void parse_bamba(struct config_reader *r, struct config *c) {
    const struct json *list = config_get(r, "attn_layer_indices");
    config_read_dense(r, c);
    if (config_bool(r, "mlp_bias", false)) config_fail(r, "'mlp_bias' is true: the reference has no such biases");
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->rope.default_partial_factor = 0.5;
    config_read_rope(r, c, c->head_dim, 10000);
    const int rotated = config_int(r, "attn_rotary_emb", c->rope.dim, 1, 1024);
    if (rotated != c->rope.dim)
        config_fail(r, "'attn_rotary_emb' is %d; the reference rotates %d", rotated, c->rope.dim);
    config_ignore(r, "num_logits_to_keep"), config_ignore(r, "z_loss_coefficient"); /* of generating, of training */
    read_mamba(r, c);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].mixer = MIXER_MAMBA2;
    if (list && list->type != JSON_ARRAY) config_fail(r, "'attn_layer_indices' is not a list");
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->n; i++) {
        const int64_t k = json_int(json_at(list, i), -1);
        if (k < 0 || k >= c->n_layers)
            config_fail(r, "'attn_layer_indices' names layer %lld of %d", (long long)k, c->n_layers);
        else c->layer[k].mixer = MIXER_ATTENTION;
    }
}

#define L "model.layers.%d."
#define MAMBA \
    .mix_in = L "mamba.in_proj", .mix_conv = L "mamba.conv1d", .mix_rate = L "mamba.A_log", \
    .mix_dt = L "mamba.dt_bias", .mix_skip = L "mamba.D", .mix_norm = L "mamba.norm", .mix_out = L "mamba.out_proj"
static const char *const bamba[] = {"bamba", NULL};
const struct arch arch_bamba = {
    .model_types = bamba,
    .title = "Bamba",
    .norm_eps = 1e-5,
    .parse = parse_bamba,
    .names = {.embed = "model.embed_tokens",
              .norm = "model.final_layernorm",
              .head = "lm_head",
              NAMES_QKVO("model."),
              .attn_norm = L "input_layernorm",
              .ffn_norm = L "pre_ff_layernorm",
              MAMBA,
              .dense_gate = L "feed_forward.gate_proj",
              .dense_up = L "feed_forward.up_proj",
              .dense_down = L "feed_forward.down_proj"},
};

static const char *const types[] = {"granitemoehybrid", NULL};
const struct arch arch_granitemoehybrid = {
    .model_types = types,
    .title = "Granite 4 H",
    .parse = parse,
    .names = {NAMES_GQA("model."), MAMBA, .router = L "block_sparse_moe.router.layer",
              .expert_gate = L "block_sparse_moe.input_linear", .expert_up = L "block_sparse_moe.input_linear",
              .expert_down = L "block_sparse_moe.output_linear", .dense_gate = L "shared_mlp.input_linear",
              .dense_up = L "shared_mlp.input_linear", .dense_down = L "shared_mlp.output_linear",
              .shared_gate_proj = L "shared_mlp.input_linear", .shared_up = L "shared_mlp.input_linear",
              .shared_down = L "shared_mlp.output_linear"},
    .layout = {.experts = true, .has_suffix = true, .gate_up = GATE_UP_STACKED, .dense_gate_up = GATE_UP_STACKED},
};
