/* Phi 1, 1.5 and 2: attention and FFN side by side after one layer norm, half of each head rotated, FFNs without gate,
 * biases everywhere, also of the head. Reference: transformers, models/phi. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    if (config_bool(r, "qk_layernorm", false))
        config_fail(r, "'qk_layernorm' is true: hearth has no layer norms of heads");
    config_ignore(r, "embd_pdrop"), config_ignore(r, "resid_pdrop"); /* of training */
    config_read_dense(r, c);
    config_read_ungated(r, c, UNGATED_GELU_TANH);
    c->norm = NORM_LAYER;
    c->norm_bias = true;
    c->qkv_bias = c->o_bias = c->dense_bias = c->head_bias = true;
    c->rope.default_partial_factor = 0.5;
    config_read_rope(r, c, c->head_dim, 10000);
    c->parallel_block = true;
    config_keep_stream(c);
}

#define L "model.layers.%d."
static const char *const types[] = {"phi", NULL}, *const keys[][2] = {{"rms_norm_eps", "layer_norm_eps"}, {NULL, NULL}};
const struct arch arch_phi = {
    .model_types = types,
    .title = "Phi",
    .norm_eps = 1e-5,
    .defaults = {.context = 2048, .own_activation = true},
    .parse = parse,
    .names = {.embed = "model.embed_tokens",
              .norm = "model.final_layernorm",
              .head = "lm_head",
              .attn_norm = L "input_layernorm",
              .ffn_norm = L "input_layernorm",
              .q = L "self_attn.q_proj",
              .k = L "self_attn.k_proj",
              .v = L "self_attn.v_proj",
              .o = L "self_attn.dense",
              .dense_gate = L "mlp.fc1",
              .dense_down = L "mlp.fc2"},
    .key_aliases = keys,
};
