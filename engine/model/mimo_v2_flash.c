/* MiMo-V2-Flash, and the language model of MiMo-V2.5 and 2.6 (mimo_v2): GQA whose values are narrower than the keys and
 * scaled, partly rotated heads; layers with a window have their own KV heads, rotary base and sinks; DeepSeek-V3's
 * router without shared experts. Reference: transformers, models/mimo_v2_flash: a query sees sliding_window_size keys
 * before its own. Of mimo_v2, whose q, k and v may be one tensor: vLLM and SGLang, models/mimo_v2. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

static const struct deepseek_defaults defaults = {.scale = 1, .norm = true, .groups = 1, .topk_group = 1};

/* Refuses widths that differ between the two kinds of layers. */
static void same_width(struct config_reader *r, const char *key, int all) {
    const int own = config_int(r, key, all, 1, 1 << 16);
    if (own != all) config_fail(r, "'%s' is %d, in other layers %d: hearth supports one width", key, own, all);
}

/* Marks the layers with a window: 1 in hybrid_layer_pattern, sliding_attention in the layer_types that transformers
 * saves. */
static void read_kinds(struct config_reader *r, struct config *c, bool sliding[CONFIG_MAX_LAYERS],
                       bool moe[CONFIG_MAX_LAYERS]) {
    static const char *const kinds[] = {"full_attention", "sliding_attention", NULL};
    bool listed[CONFIG_MAX_LAYERS];
    const struct json *types = config_layer_list(r, c, "layer_types", false);
    const bool has_pattern = config_read_flags(r, c, "hybrid_layer_pattern", sliding),
               has_moe = config_read_flags(r, c, "moe_layer_freq", listed);
    if (!types && !has_pattern) config_fail(r, "'hybrid_layer_pattern' is missing");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = has_moe ? listed[i] : i > 0;
    config_read_mlp_types(r, c);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const bool slides = types ? config_layer_choice(r, "layer_types", types, i, kinds) : sliding[i];
        moe[i] = c->layer[i].moe;
        if (has_moe && moe[i] != listed[i])
            config_fail(r, "'moe_layer_freq' and 'mlp_layer_types' differ in layer %d", i);
        if (has_pattern && slides != sliding[i])
            config_fail(r, "'hybrid_layer_pattern' and 'layer_types' differ in layer %d", i);
        sliding[i] = slides;
    }
}

/* Returns the number of keys that a query sees, its own included: sliding_window_size and one, and sliding_window as
 * transformers saves it. */
static int read_window(struct config_reader *r, bool saved) {
    const int one = config_int(r, "sliding_window", saved ? 129 : 128, 1, 1 << 24) + !saved,
              size = config_int(r, "sliding_window_size", one - 1, 0, 1 << 24) + 1;
    if (saved && size != one)
        config_fail(r, "'sliding_window' is %d, and 'sliding_window_size' makes it %d", one, size);
    return size;
}

static void read_layers(struct config_reader *r, struct config *c) {
    bool sliding[CONFIG_MAX_LAYERS] = {0}, moe[CONFIG_MAX_LAYERS] = {0};
    const bool saved = config_has(r, "layer_types");
    const int window = read_window(r, saved), default_kv = saved ? 2 * c->n_kv_heads : c->n_kv_heads,
              heads = config_int(r, "swa_num_attention_heads", c->n_heads, 1, 1024),
              kv = config_int(r, "swa_num_key_value_heads", default_kv, 1, 1024);
    if (saved && (heads != c->n_heads || kv != default_kv))
        config_fail(
            r,
            "%d heads and %d key-value heads in layers with a window: with 'layer_types' the reference has %d and %d",
            heads, kv, c->n_heads, default_kv);
    const bool full_sinks = config_bool(r, "add_full_attention_sink_bias", false),
               swa_sinks = config_bool(r, "add_swa_attention_sink_bias", true);
    read_kinds(r, c, sliding, moe);
    /* the window in other programs' terms */
    config_ignore(r, "attention_chunk_size"), config_ignore(r, "hybrid_block_size");
    c->sinks = full_sinks || swa_sinks;
    const struct config all = *c;
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        struct layer_config *l = &c->layer[i];
        *l = (struct layer_config){.moe = moe[i],
                                   .window = sliding[i] ? window : 0,
                                   .rope = sliding[i] ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST};
        l->no_sinks = sliding[i] ? !swa_sinks : !full_sinks;
        config_set_heads(r, c, i, sliding[i] ? heads : all.n_heads, sliding[i] ? kv : all.n_kv_heads);
    }
}

/* The published config has a base for each kind of layer; transformers saves an object for each. */
static void read_ropes(struct config_reader *r, struct config *c) {
    const struct json *parameters = config_get(r, "rope_parameters");
    const double partial = config_num(r, "partial_rotary_factor", 0, 0, 1),
                 theta = config_num(r, "rope_theta", 0, 0, 1e12),
                 swa_theta = config_num(r, "swa_rope_theta", 0, 0, 1e12);
    if (parameters && json_get(parameters, "full_attention")) {
        config_read_ropes(r, c, 5000000, 10000);
        if ((theta && theta != c->rope.theta) || (swa_theta && swa_theta != c->second_rope.theta) ||
            (partial > 0 && ((int)(c->head_dim * partial) != c->rope.dim || c->second_rope.dim != c->rope.dim)))
            config_fail(r, "'rope_parameters' differ from 'rope_theta', 'swa_rope_theta' or 'partial_rotary_factor'");
    } else {
        config_read_rope(r, c, c->head_dim, 5000000);
        c->second_rope = c->rope;
        c->second_rope.theta = config_num(r, "swa_rope_theta", 10000, 1, 1e12);
    }
    if (c->rope.kind != ROPE_DEFAULT || c->second_rope.kind != ROPE_DEFAULT)
        config_fail(r, "'rope_scaling' is in force: hearth does not support that of this family");
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->norm_eps = (float)config_num(r, "layernorm_epsilon", (double)c->norm_eps, 0, 1);
    c->v_dim = config_int(r, "v_head_dim", c->head_dim, 1, 1024);
    same_width(r, "swa_head_dim", c->head_dim), same_width(r, "swa_v_head_dim", c->v_dim);
    c->v_scale = (float)config_num(r, "attention_value_scale", config_is_null(r, "attention_value_scale") ? 1 : 0.707,
                                   1e-6, 1e6);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    read_ropes(r, c);
    read_layers(r, c);
    deepseek_moe(r, c, &defaults);
    deepseek_router(r, c, &defaults);
}

/* q, k and v are stored as num_key_value_heads devices would share them, in layers with a window too; FP8's blocks of
 * rows begin anew for each. */
static const struct arch fused;
static void parse_v2(struct config_reader *r, struct config *c) {
    static const char *const layouts[] = {"split", "fused_qkv", NULL}, *const others[] = {
                                                                           "audio_config", "processor_config",
                                                                           "audio_token_id", "audio_start_token_id",
                                                                           "audio_end_token_id", "moe_router_dtype",
                                                                           /* the router computes in float32 */
                                                                           "video_start_token_id",
                                                                           "video_end_token_id"};
    config_skip_vision(r, c);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) config_ignore(r, others[i]);
    parse(r, c);
    if (!config_has(r, "attention_value_scale"))
        config_fail(r, "'attention_value_scale' is missing: published models differ in it");
    if (!config_choice(r, "attention_projection_layout", layouts, 0) || r->rc) return;
    c->qkv_pieces = config_int(r, "num_key_value_heads", 0, 1, 1024);
    for (int i = 0; i < c->n_layers; i++)
        if (config_heads(c, i) % c->qkv_pieces || config_kv_heads(c, i) % c->qkv_pieces) {
            config_fail(r, "%d and %d heads of layer %d do not divide by the %d pieces of qkv_proj", config_heads(c, i),
                        config_kv_heads(c, i), i, c->qkv_pieces);
            break;
        }
    if (c->qkv_bias)
        config_fail(r, "'attention_bias' is true: hearth has none with a 'attention_projection_layout' of fused_qkv");
    c->arch = &fused, c->names = &fused.names, c->layout = &fused.layout;
}

#define L "model.layers.%d.self_attn."
#define OTHER_NAMES \
    .sinks = L "attention_sink_bias", NAMES_ROUTER("model."), DEEPSEEK_BIAS_NAME, NAMES_EXPERTS("model."), \
    NAMES_DENSE("model.")
#define V2(...) \
    { \
        .model_types = types_v2, .title = "MiMo-V2", .defaults = {.topk = 8}, .norm_eps = 1e-5, .parse = parse_v2, \
        __VA_ARGS__ \
    }
static const char *const types[] = {"mimo_v2_flash", NULL}, *const types_v2[] = {"mimo_v2", NULL};
static const struct arch fused = V2(.names = {NAMES_ENDS("model."), NAMES_NORMS_BEFORE("model."), .q = L "qkv_proj",
                                              .k = L "qkv_proj", .v = L "qkv_proj", .o = L "o_proj", OTHER_NAMES},
                                    .layout = {.qkv = true});
const struct arch arch_mimo_v2 = V2(.names = {NAMES_GQA("model."), OTHER_NAMES});
const struct arch arch_mimo_v2_flash = {
    .model_types = types,
    .title = "MiMo-V2-Flash",
    .defaults = {.topk = 8},
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_GQA("model."), OTHER_NAMES},
};
