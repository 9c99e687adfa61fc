/* GLM-4 (0414): dense GQA with norms after attention and FFN too, one matrix for gate and up, and half-rotary heads
 * with adjacent pairs. Reference: transformers, models/glm4. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    c->rope.interleaved = true;
    c->rope.default_partial_factor = 0.5;
    config_read_rope(r, c, c->head_dim, 10000);
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

#define L "model.layers.%d."
static const char *const types[] = {"glm4", NULL};
const struct arch arch_glm4 = {
    .model_types = types,
    .title = "GLM-4",
    .norm_eps = 1.5625e-7,
    .parse = parse,
    .names = {NAMES_GQA("model."), .attn_out_norm = L "post_self_attn_layernorm",
              .ffn_out_norm = L "post_mlp_layernorm", .dense_gate = L "mlp.gate_up_proj",
              .dense_up = L "mlp.gate_up_proj", .dense_down = L "mlp.down_proj"},
    .layout = {.dense_gate_up = GATE_UP_STACKED},
};
