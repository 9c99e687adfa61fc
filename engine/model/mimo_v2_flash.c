/* MiMo-V2-Flash: GQA whose values are narrower than the keys and scaled, partly rotated heads; layers with a window have their own KV heads, rotary base and
 * sinks; DeepSeek-V3's router without shared experts. Reference: transformers, models/mimo_v2_flash: a query sees sliding_window_size keys before its own. */
#include "engine/base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/deepseek.h"
#include "engine/model/names.h"

static const struct deepseek_defaults defaults = {.scale = 1, .norm = true, .groups = 1, .topk_group = 1};

/* Refuses widths that differ between the two kinds of layers. */
static void same_width(struct config_reader *r, const char *key, int all) {
    const int own = config_int(r, key, all, 1, 1 << 16);
    if (own != all) config_fail(r, "'%s' is %d, in other layers %d: hearth knows one width", key, own, all);
}

static void read_layers(struct config_reader *r, struct config *c) {
    bool sliding[CONFIG_MAX_LAYERS] = {0}, moe[CONFIG_MAX_LAYERS];
    const int window = config_int(r, "sliding_window_size", config_int(r, "sliding_window", 128, 1, 1 << 24), 1, 1 << 24) + 1;
    const int heads = config_int(r, "swa_num_attention_heads", c->n_heads, 1, 1024), kv = config_int(r, "swa_num_key_value_heads", c->n_kv_heads, 1, 1024);
    const bool full_sinks = config_bool(r, "add_full_attention_sink_bias", false), swa_sinks = config_bool(r, "add_swa_attention_sink_bias", true);
    const bool has_moe = config_read_flags(r, c, "moe_layer_freq", moe);
    if (!config_read_flags(r, c, "hybrid_layer_pattern", sliding)) config_fail(r, "'hybrid_layer_pattern' is missing");
    config_has(r, "sliding_window"), config_has(r, "attention_chunk_size"), config_has(r, "hybrid_block_size"); /* the window in other programs' terms */
    c->sinks = full_sinks || swa_sinks;
    const struct config all = *c;
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        struct layer_config *l = &c->layer[i];
        *l = (struct layer_config){
            .moe = has_moe ? moe[i] : i > 0, .window = sliding[i] ? window : 0, .rope = sliding[i] ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST};
        l->no_sinks = sliding[i] ? !swa_sinks : !full_sinks;
        config_set_heads(r, c, i, sliding[i] ? heads : all.n_heads, sliding[i] ? kv : all.n_kv_heads);
    }
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->norm_eps = (float)config_num(r, "layernorm_epsilon", (double)c->norm_eps, 0, 1);
    c->v_dim = config_int(r, "v_head_dim", c->head_dim, 1, 1024);
    same_width(r, "swa_head_dim", c->head_dim), same_width(r, "swa_v_head_dim", c->v_dim);
    c->v_scale = (float)config_num(r, "attention_value_scale", config_is_null(r, "attention_value_scale") ? 1 : 0.707, 1e-6, 1e6);
    c->qkv_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 5000000);
    c->second_rope = c->rope;
    c->second_rope.theta = config_num(r, "swa_rope_theta", 10000, 1, 1e12);
    if (c->rope.kind != ROPE_DEFAULT) config_fail(r, "'rope_scaling' is in force: hearth does not know that of this family");
    read_layers(r, c);
    deepseek_moe(r, c, &defaults);
    deepseek_router(r, c, &defaults);
}

static const char *const types[] = {"mimo_v2_flash", NULL};
const struct arch arch_mimo_v2_flash = {
    .model_types = types,
    .title = "MiMo-V2-Flash",
    .defaults = {.topk = 8},
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES_GQA("model."), .sinks = "model.layers.%d.self_attn.attention_sink_bias", NAMES_ROUTER("model."), DEEPSEEK_BIAS_NAME,
              NAMES_EXPERTS("model."), NAMES_DENSE("model.")},
};
