/* K-EXAONE, EXAONE 4, and the language model of EXAONE 4.5: GQA with a norm per head on q and k, DeepSeek-V3's router.
 * Layers with a window are rotated, the others are not; without a window all are. References: transformers,
 * models/exaone_moe, models/exaone4 and models/exaone4_5. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

/* Returns whether layer i of the pattern has a window: a text such as "LLLG", or every which layer has none. */
static bool is_local(struct config_reader *r, const struct config *c, const struct json *pattern, int i) {
    if (pattern && pattern->type == JSON_STRING && pattern->n) {
        const char kind = pattern->string[(uint32_t)i % pattern->n];
        if (kind != 'L' && kind != 'G')
            config_fail(r, "'sliding_window_pattern' has '%c'; hearth supports L and G", kind);
        return kind == 'L';
    }
    const int64_t every = pattern ? json_int(pattern, 0) : 4;
    if (every < 1) config_fail(r, "'sliding_window_pattern' is neither a text nor a number of 1 or more");
    return every > 0 && (i + 1) % every != 0 && i < c->n_layers;
}

static void read_layers(struct config_reader *r, struct config *c) {
    const struct json *pattern = config_get(r, "sliding_window_pattern");
    const int window = config_has(r, "sliding_window") ? config_int(r, "sliding_window", 0, 1, 1 << 24) : 0;
    const bool listed = config_has(r, "layer_types");
    bool moe[CONFIG_MAX_LAYERS];
    if (listed) config_read_windows(r, c, window, 0);
    const bool flags = config_read_flags(r, c, "is_moe_layer", moe);
    for (int i = 0; i < c->n_layers; i++) {
        struct layer_config *l = &c->layer[i];
        if (!listed) l->window = is_local(r, c, pattern, i) ? window : 0;
        l->rope = window && !l->window ? LAYER_ROPE_NONE : LAYER_ROPE_FIRST;
        if (flags) l->moe = moe[i];
    }
    config_read_mlp_types(r, c);
}

static const struct deepseek_defaults defaults = {
    .scale = 2.5, .dense = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    config_ignore(r, "attention_bias"); /* the reference has none */
    config_read_rope(r, c, c->head_dim, 1000000);
    deepseek_experts(r, c, &defaults);
    read_layers(r, c);
    deepseek_router(r, c, &defaults);
}

/* EXAONE 4: the same attention without experts, and norms after attention and FFN instead of before. */
static void parse_dense(struct config_reader *r, struct config *c) {
    config_read_dense(r, c);
    c->qk_norm = QK_NORM_HEAD;
    if (config_bool(r, "attention_bias", false)) config_fail(r, "'attention_bias' is true: the reference has none");
    config_read_rope(r, c, c->head_dim, 10000);
    read_layers(r, c);
    c->no_input_norm = true;
    c->output_norm = OUTPUT_NORM_BLOCKS;
    config_keep_stream(c);
}

static void parse_vision(struct config_reader *r, struct config *c) {
    config_skip_vision(r, c);
    parse_dense(r, c);
}

static const char *const types[] = {"exaone_moe", NULL}, *const dense[] = {"exaone4", NULL},
                         *const vision[] = {"exaone4_5", NULL};
static const char *const keys[][2] = {
    {"n_routed_experts", "num_experts"}, {"n_shared_experts", "num_shared_experts"}, {NULL, NULL}};
const struct arch arch_exaone_moe = {
    .model_types = types,
    .title = "K-EXAONE",
    .defaults = {.topk = 8},
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_GQA("model."), NAMES_QK_NORM("model."), NAMES_ROUTER("model."),
              .router_bias = "model.layers.%d.mlp.e_score_correction_bias", NAMES_EXPERTS("model."),
              NAMES_SHARED("model.", "shared_experts"), NAMES_DENSE("model.")},
    .key_aliases = keys,
};
#define DENSE(types_, title_, parser, m, member) \
    { \
        .model_types = types_, .title = title_, .norm_eps = 1e-5, .text_config_key = member, .parse = parser, \
        .names = { \
            NAMES_ATTENTION(m), \
            NAMES_QK_NORM(m), \
            NAMES_DENSE(m), \
            .attn_norm = m "layers.%d.post_attention_layernorm", \
            .attn_out_norm = m "layers.%d.post_attention_layernorm", \
            .ffn_out_norm = m "layers.%d.post_feedforward_layernorm" \
        } \
    }
const struct arch arch_exaone4 = DENSE(dense, "EXAONE 4", parse_dense, "model.", NULL),
                  arch_exaone4_5 = DENSE(vision, "EXAONE 4.5", parse_vision, "model.language_model.", "text_config");
