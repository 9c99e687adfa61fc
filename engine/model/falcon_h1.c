/* Falcon-H1: Mamba-2 and attention side by side after one norm, then a gated FFN; each has factors. A published layer
 * is two of struct config: one with Mamba-2 only, and one whose attention reads the same stream. Factors become those
 * of scores, values, blocks' outputs and Mamba's parts: attention's input and output by a^2 in scores and a * b in
 * values; the FFN's two by the residual scale, and the gate's also in the activation. Reference: transformers,
 * models/falcon_h1. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static double factor(struct config_reader *r, const char *key) { return config_num(r, key, 1, 1e-9, 1e9); }
/* Reads a list of n factors; without it all are 1. */
static void read_list(struct config_reader *r, const char *key, double *out, uint32_t n) {
    const struct json *v = config_get(r, key);
    for (uint32_t i = 0; i < n; i++) out[i] = 1;
    if (!v) return;
    if (v->type != JSON_ARRAY || v->n != n) config_fail(r, "'%s' is not a list of %u numbers", key, n);
    for (uint32_t i = 0; i < n && !r->rc; i++) {
        out[i] = json_num(json_at(v, i), 0);
        if (!(out[i] >= 1e-9 && out[i] <= 1e9)) config_fail(r, "'%s' has %g; hearth takes 1e-9 to 1e9", key, out[i]);
    }
}

static void read_mamba(struct config_reader *r, struct config *c) {
    static const char *const unused[] = {"mamba_chunk_size", "mamba_use_mlp",      "mlp_expansion_factor",
                                         "time_step_min",    "time_step_max",      "time_step_floor",
                                         "time_step_rank",   "attn_layer_indices", NULL}; /* of kernels, of training */
    struct mamba_config *m = &c->mamba;
    for (int i = 0; unused[i]; i++) config_ignore(r, unused[i]);
    const int expand = config_int(r, "mamba_expand", 2, 1, 64),
              inner = config_int(r, "mamba_d_ssm", config_is_null(r, "mamba_d_ssm") ? expand * c->hidden : 1024, 1,
                                 1 << 20);
    const struct json *dim = config_get(r, "mamba_d_head");
    m->heads = config_int(r, "mamba_n_heads", 128, 1, 4096);
    m->head_dim = !dim || json_is(dim, "auto") ? inner / m->heads : config_int(r, "mamba_d_head", 0, 1, 4096);
    m->groups = config_int(r, "mamba_n_groups", 1, 1, 1024);
    m->state = config_int(r, "mamba_d_state", 256, 1, 1024);
    m->taps = config_int(r, "mamba_d_conv", 4, 2, 64);
    m->conv_bias = config_bool(r, "mamba_conv_bias", true);
    m->norm = !config_bool(r, "mamba_rms_norm", false)         ? MAMBA_NORM_NONE
              : config_bool(r, "mamba_norm_before_gate", true) ? MAMBA_NORM_FIRST
                                                               : MAMBA_NORM_LAST;
    config_ignore(r, "mamba_norm_before_gate");
    config_check_step_limit(r, "time_step_limit");
    if (m->heads * m->head_dim != inner || m->heads % m->groups)
        config_fail(r,
                    "%d heads of Mamba with %d numbers do not make 'mamba_d_ssm', %d, or do not divide into %d groups",
                    m->heads, m->head_dim, inner, m->groups);
}

static void read_factors(struct config_reader *r, struct config *c) {
    double ffn[2], parts[5];
    read_list(r, "mlp_multipliers", ffn, 2);
    read_list(r, "ssm_multipliers", parts, 5);
    const double in = factor(r, "attention_in_multiplier"), out = factor(r, "attention_out_multiplier"),
                 key = factor(r, "key_multiplier"), mamba_in = factor(r, "ssm_in_multiplier"),
                 residual = ffn[0] * ffn[1];
    c->residual_scale = (float)residual;
    c->glu.alpha = (float)ffn[0];
    c->attn_scale = (float)(in * in * key / sqrt(c->head_dim));
    c->v_scale = (float)(in * out / residual);
    for (int i = 0; i < 5; i++) c->mamba.scale[i] = (float)(mamba_in * parts[i]);
    c->mamba.out_scale = (float)(factor(r, "ssm_out_multiplier") / residual);
    c->embed_scale = (float)factor(r, "embedding_multiplier");
    c->logit_scale = (float)factor(r, "lm_head_multiplier");
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const biases[] = {"attention_bias", "mlp_bias", "mamba_proj_bias", "projectors_bias"};
    static const char *const kinds[] = {"hybrid", NULL};
    for (size_t i = 0; i < sizeof biases / sizeof *biases; i++)
        if (config_bool(r, biases[i], false))
            config_fail(r, "'%s' is true: hearth has no biases beside Falcon-H1's factors", biases[i]);
    const struct json *list = config_get(r, "layer_types");
    for (uint32_t i = 0; list && i < list->n && !r->rc; i++) config_layer_choice(r, "layer_types", list, (int)i, kinds);
    config_ignore(r, "layers_block_type"), config_ignore(r, "num_logits_to_keep");
    config_read_dense(r, c);
    config_read_rope(r, c, c->head_dim, 10000);
    read_mamba(r, c);
    read_factors(r, c);
    for (int i = 0; i < c->n_layers; i += 2) {
        c->layer[i].mixer = MIXER_MAMBA2, c->layer[i].no_ffn = true;
        c->layer[i + 1].is_beside = true;
    }
    config_keep_stream(c);
}

#define L "model.layers.%d."
static const char *const types[] = {"falcon_h1", NULL};
const struct arch arch_falcon_h1 = {
    .model_types = types,
    .title = "Falcon-H1",
    .norm_eps = 1e-5,
    .sublayers = 2,
    .defaults = {.context = 8192, .kv_heads = 8},
    .parse = parse,
    .names = {.embed = "model.embed_tokens",
              .norm = "model.final_layernorm",
              .head = "lm_head",
              .attn_norm = L "input_layernorm",
              .ffn_norm = L "pre_ff_layernorm",
              NAMES_QKVO("model."),
              .mix_in = L "mamba.in_proj",
              .mix_conv = L "mamba.conv1d",
              .mix_rate = L "mamba.A_log",
              .mix_dt = L "mamba.dt_bias",
              .mix_skip = L "mamba.D",
              .mix_norm = L "mamba.norm",
              .mix_out = L "mamba.out_proj",
              .dense_gate = L "feed_forward.gate_proj",
              .dense_up = L "feed_forward.up_proj",
              .dense_down = L "feed_forward.down_proj"},
};
