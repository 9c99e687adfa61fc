/* GLM-4 (0414): dense GQA with norms after attention and FFN too, one matrix for gate and up, and half-rotary heads
 * with adjacent pairs. GLM-4-9B: the same without those norms. Reference: transformers, models/glm4 and models/glm. */
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void parse_base(struct config_reader *r, struct config *c, bool bias, double partial) {
    config_read_dense(r, c);
    c->qkv_bias = config_bool(r, "attention_bias", bias);
    c->rope.interleaved = config_bool(r, "rope_interleave", true); /* GGUF only */
    c->rope.default_partial_factor = partial;
    config_read_rope(r, c, c->head_dim, 10000);
}
static void parse_with(struct config_reader *r, struct config *c, bool bias, double partial) {
    parse_base(r, c, bias, partial);
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

static void parse(struct config_reader *r, struct config *c) { parse_with(r, c, false, 0.5); }
static void parse_9b(struct config_reader *r, struct config *c) { parse_base(r, c, true, 0.5); }
/* GLM-4.1V and 4.6V-Flash, text only: q, k and v always have biases. */
static void parse_vision(struct config_reader *r, struct config *c) {
    c->rope.sections_in_order = true;
    if (r->outer) config_skip_vision(r, c);
    parse_with(r, c, true, 1);
}

static const char *const types[] = {"glm4", NULL}, *const vision[] = {"glm4v", "glm46v", NULL},
                         *const text[] = {"glm4v_text", NULL};
#define JOINED(m) \
    .dense_gate = m "layers.%d.mlp.gate_up_proj", .dense_up = m "layers.%d.mlp.gate_up_proj", \
    .dense_down = m "layers.%d.mlp.down_proj"
#define GLM4(types_, title_, m, parse_, ...) \
    { \
        .model_types = types_, .title = title_, .parse = parse_, \
        .names = {NAMES_GQA(m), .attn_out_norm = m "layers.%d.post_self_attn_layernorm", \
                  .ffn_out_norm = m "layers.%d.post_mlp_layernorm", JOINED(m)}, \
        .layout = {.dense_gate_up = GATE_UP_STACKED}, __VA_ARGS__ \
    }
const struct arch arch_glm4 = GLM4(types, "GLM-4", "model.", parse, .norm_eps = 1.5625e-7);
const struct arch arch_glm4v_text = GLM4(text, "GLM-4V", "model.", parse_vision, .norm_eps = 1e-5);
const struct arch arch_glm4v =
    GLM4(vision, "GLM-4V", "model.language_model.", parse_vision, .norm_eps = 1e-5, .text_config_key = "text_config");
static const char *const types_9b[] = {"glm", NULL};
const struct arch arch_glm = {.model_types = types_9b,
                              .title = "GLM-4",
                              .norm_eps = 1.5625e-7,
                              .defaults = {.kv_heads = 2, .head_dim = 128},
                              .parse = parse_9b,
                              .names = {NAMES_GQA("model."), JOINED("model.")},
                              .layout = {.dense_gate_up = GATE_UP_STACKED}};
