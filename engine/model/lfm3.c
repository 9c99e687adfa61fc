/* LFM3, and the language model of LFM3-VL: short gated convolutions in half of the layers, GQA with norms per head and
 * a gate per head in the others, with and without a window; norms around both blocks. Layers without a window rotate
 * the first frequencies of the whole head. Reference: transformers, models/lfm3 and models/lfm3_vl. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

static void read_layers(struct config_reader *r, struct config *c) {
    const struct json *types = config_get(r, "layer_types");
    const int window = config_int(r, "sliding_window", 256, 1, 1 << 24);
    if (types && (types->type != JSON_ARRAY || types->n != (uint32_t)c->n_layers))
        config_fail(r, "'layer_types' is not a list of %d", c->n_layers);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const struct json *t = json_at(types, (uint32_t)i);
        const bool full = types ? json_is(t, "full_attention") : i % 4 == 2,
                   local = types ? json_is(t, "sliding_attention") : i % 4 == 0 && i > 0;
        if (types && !full && !local && !json_is(t, "conv"))
            config_fail(r, "'layer_types' of layer %d is none of conv, full_attention and sliding_attention", i);
        c->layer[i] = (struct layer_config){.mixer = full || local ? MIXER_ATTENTION : MIXER_CONV,
                                            .window = local ? window : 0,
                                            .rope = local ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST};
    }
}

static void read_ropes(struct config_reader *r, struct config *c) {
    struct config_reader in;
    config_open(r, "rope_parameters", &in);
    config_read_rope_object(&in, c, "sliding_attention", c->head_dim, 10000);
    c->second_rope = c->rope;
    const bool given = config_has(&in, "full_attention");
    config_read_rope_object(&in, c, "full_attention", c->head_dim, 1000000);
    config_close(r, "rope_parameters", &in);
    if (!given) c->rope.kind = ROPE_PROPORTIONAL, c->rope.factor = 1, c->rope.turning_pairs = c->head_dim / 4;
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    read_layers(r, c);
    read_ropes(r, c);
    c->qk_norm = QK_NORM_HEAD;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->attn_gate = config_bool(r, "use_attention_gate", true) ? ATTN_GATE_HEAD : ATTN_GATE_NONE;
    c->attn_gate_kind = GATE_SIGMOID;
    c->conv.taps = config_int(r, "conv_L_cache", 7, 2, 64);
    c->conv.bias = config_bool(r, "conv_bias", false);
    if (!config_bool(r, "use_sandwich_norm", true)) return;
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}
static void parse_vision(struct config_reader *r, struct config *c) {
    config_skip_vision(r, c);
    parse(r, c);
}

static const char *const types[] = {"lfm3", NULL}, *const vision[] = {"lfm3_vl", NULL};
static const char *const keys[][2] = {{"rms_norm_eps", "norm_eps"}, {NULL, NULL}};
#define ARCH(types_, title_, parser, m, ...) \
    { \
        .model_types = types_, .title = title_, .norm_eps = 1e-5, .parse = parser, .key_aliases = keys, \
        .defaults = {.vocab = 128000, \
                     .hidden = 2048, \
                     .layers = 24, \
                     .context = 128000, \
                     .inter = 7680, \
                     .heads = 16, \
                     .kv_heads = 4, \
                     .head_dim = 128, \
                     .tied = true}, \
        .names = {.embed = m "embed_tokens", \
                  .norm = m "embedding_norm", \
                  .head = "lm_head", \
                  .attn_norm = m "layers.%d.operator_norm", \
                  .attn_out_norm = m "layers.%d.post_operator_norm", \
                  .ffn_norm = m "layers.%d.ffn_norm", \
                  .ffn_out_norm = m "layers.%d.post_ffn_norm", \
                  NAMES_QKVO(m), \
                  NAMES_QK_NORM(m), \
                  .attn_gate = m "layers.%d.self_attn.gate_proj", \
                  .mix_in = m "layers.%d.conv.in_proj", \
                  .mix_conv = m "layers.%d.conv.conv", \
                  .mix_out = m "layers.%d.conv.out_proj", \
                  .dense_gate = m "layers.%d.feed_forward.w1", \
                  .dense_up = m "layers.%d.feed_forward.w3", \
                  .dense_down = m "layers.%d.feed_forward.w2"}, \
        __VA_ARGS__ \
    }
const struct arch arch_lfm3 = ARCH(types, "LFM3", parse, "model.", .text_config_key = NULL),
                  arch_lfm3_vl =
                      ARCH(vision, "LFM3-VL", parse_vision, "model.language_model.", .text_config_key = "text_config");
