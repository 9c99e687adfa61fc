/* GigaChat 3.5: gated DeltaNet in most layers, MLA with a gate per element in the others, DeepSeek-V3's experts with a
 * clamped SwiGLU; norms around both blocks, and of latents and before the head, each multiplied by a gate of low rank.
 * Reference: vLLM, models/gigachat3_5; SGLang, models/gigachat35. */
#include "base/ops.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/qwen3_next.h"

static const struct deepseek_defaults defaults = {
    .scale = 2.5, .dense = 3, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

/* full_attention_layers lists the layers with attention, or layer_types has an entry for each. */
static void read_mixers(struct config_reader *r, struct config *c) {
    const struct json *full = config_get(r, "full_attention_layers");
    if (config_has(r, "layer_types"))
        config_read_mixers(r, c, "layer_types", MIXER_DELTA, "linear_attention", "attention");
    else if (!full) config_fail(r, "'full_attention_layers' is missing");
    if (full && full->type != JSON_ARRAY) config_fail(r, "'full_attention_layers' is not a list");
    bool listed[CONFIG_MAX_LAYERS] = {false};
    for (uint32_t i = 0; full && full->type == JSON_ARRAY && i < full->n && !r->rc; i++) {
        const int64_t k = json_int(json_at(full, i), -1);
        if (k < 0 || k >= c->n_layers)
            config_fail(r, "'full_attention_layers' names layer %lld of %d", (long long)k, c->n_layers);
        else listed[k] = true;
    }
    for (int i = 0; full && i < c->n_layers && !r->rc; i++) {
        const uint8_t mixer = listed[i] ? MIXER_ATTENTION : MIXER_DELTA;
        if (config_has(r, "layer_types") && c->layer[i].mixer != mixer)
            config_fail(r, "'full_attention_layers' and 'layer_types' differ in layer %d", i);
        c->layer[i].mixer = mixer;
    }
}

static void read_delta(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"Qwen3NextGatedDeltaNet", NULL},
                             *const gates[] = {"gated_rmsnorm_sigmoid_zero_centered", NULL},
                             *const functions[] = {"sigmoid", NULL};
    config_choice(r, "linear_attention_type", kinds, 0);
    config_choice(r, "linear_gating_type", gates, 0);
    config_choice(r, "output_gate_type", functions, 0);
    if (!config_bool(r, "linear_use_short_conv", true))
        config_fail(r, "'linear_use_short_conv' is false: the reference's DeltaNet has a convolution");
    qwen3_next_read_delta(r, c, 32, 64);
    c->delta.fused = c->delta.sigmoid_gate = c->delta.norm_centered = true;
    c->delta.norm_scale = (float)config_num(r, "linear_sigmoid_gate_scale", 2, 1e-3, 1e3);
    const double eps = config_num(r, "linear_attn_o_norm_eps", c->norm_eps, 0, 1);
    if ((float)eps != c->norm_eps)
        config_fail(r, "'linear_attn_o_norm_eps' is %g: hearth takes 'rms_norm_eps', %g", eps, c->norm_eps);
}

static void read_norms(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"ZeroCenteredGatedNorm", NULL}, *const places[] = {"pre_post", NULL};
    config_choice(r, "norm_type", kinds, 0);
    config_choice(r, "layernorm_type", places, 0);
    c->norm_gate_rank = 16; /* no config says it */
    c->norm_gate_scale = (float)config_num(r, "layernorm_gating_weight", 2, 1e-3, 1e3);
    c->gates_all_norms = c->centered_norms = c->centered_head_norm = true;
    c->latent_eps = c->norm_eps;
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"LlamaLatentAttention", NULL};
    config_ignore(r, "optimizer_eps"), config_ignore(r, "nextn_is_sparse"); /* of training, of MTP layers */
    deepseek_attention(r, c);
    config_choice(r, "attention_type", kinds, 0);
    if (config_int(r, "num_krope_heads", 1, 1, 1024) != 1)
        config_fail(r, "'num_krope_heads' is not 1: MLA has one rotated key");
    if (c->qkv_bias) config_fail(r, "'attention_bias' is true: hearth reads no such tensors of this family");
    if (config_bool(r, "gated_attention", true)) c->attn_gate = ATTN_GATE_ELEMENT, c->attn_gate_kind = GATE_SIGMOID;
    c->scales_latents = config_bool(r, "use_mla_scaling_factor", true);
    read_mixers(r, c);
    read_delta(r, c);
    read_norms(r, c);
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    c->glu.limit = (float)config_num(r, "swiglu_limit", config_is_null(r, "swiglu_limit") ? 0 : 10, 0, 1e6);
}

#define L                 "model.layers.%d."
#define GATE(field, norm) .field##_down = norm ".gate_up_projection", .field##_up = norm ".gate_down_projection"
static const char *const types[] = {"gigachat3_5", NULL};
const struct arch arch_gigachat35 = {.model_types = types,
                                     .title = "GigaChat 3.5",
                                     .defaults = {.topk = 8, .theta = 100000},
                                     .parse = parse,
                                     .names = {NAMES_ENDS("model."),
                                               GATE(norm, "model.norm"),
                                               .attn_norm = L "input_layernorm",
                                               GATE(attn_norm, L "input_layernorm"),
                                               .attn_out_norm = L "post_self_attn_layernorm",
                                               GATE(attn_out, L "post_self_attn_layernorm"),
                                               .ffn_norm = L "post_attention_layernorm",
                                               .gated_ffn_norm = L "post_attention_layernorm",
                                               GATE(ffn_norm, L "post_attention_layernorm"),
                                               .ffn_out_norm = L "post_feedforward_layernorm",
                                               GATE(ffn_out, L "post_feedforward_layernorm"),
                                               .q = L "self_attn.q_proj",
                                               .o = L "self_attn.o_proj",
                                               .attn_gate = L "self_attn.gate_proj",
                                               DEEPSEEK_MLA_NAMES("model."),
                                               GATE(q_a_norm, L "self_attn.q_a_layernorm"),
                                               GATE(kv_a_norm, L "self_attn.kv_a_layernorm"),
                                               .delta_qkvz = L "self_attn.in_proj_qkvz",
                                               .delta_ba = L "self_attn.in_proj_ba",
                                               .delta_out = L "self_attn.out_proj",
                                               .delta_conv = L "self_attn.conv1d",
                                               .delta_rate = L "self_attn.A_log",
                                               .delta_dt = L "self_attn.dt_bias",
                                               .delta_norm = L "self_attn.norm",
                                               DEEPSEEK_BIAS_NAME,
                                               NAMES_ROUTER("model."),
                                               NAMES_EXPERTS("model."),
                                               NAMES_SHARED("model.", "shared_experts"),
                                               NAMES_DENSE("model.")}};
