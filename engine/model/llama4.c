/* Llama 4, language model only: GQA in chunks with rotated keys, and over all keys without rotation in every fourth
 * layer, where queries are scaled by position; norms of q and k without weights after the rotation; a router that
 * chooses one expert and weighs its input, a shared expert. Reference: transformers, models/llama4. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Layers with chunks and rotation: no_rope_layers says 1, and layer_types chunked_attention. */
static void read_attention_layers(struct config_reader *r, struct config *c) {
    const int chunk = config_has(r, "attention_chunk_size") ? config_int(r, "attention_chunk_size", 0, 1, 1 << 24) : 0;
    const int interval = config_int(r, "no_rope_layer_interval", 4, 1, CONFIG_MAX_LAYERS);
    static const char *const kinds[] = {"full_attention", "chunked_attention", NULL};
    const struct json *types = config_layer_list(r, c, "layer_types", false), *listed = config_get(r, "no_rope_layers");
    bool rotated[CONFIG_MAX_LAYERS];
    const bool lists = listed && listed->n && config_read_flags(r, c, "no_rope_layers", rotated);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const bool rope = lists ? rotated[i] : (i + 1) % interval != 0;
        const bool full = types && !config_layer_choice(r, "layer_types", types, i, kinds);
        c->layer[i].rope = rope ? LAYER_ROPE_FIRST : LAYER_ROPE_NONE;
        c->layer[i].chunk_keys = types ? (full ? 0 : chunk) : rope ? chunk : 0;
    }
}

/* attn_temperature_tuning is true, or a number that means so. */
static void read_temperature(struct config_reader *r, struct config *c) {
    const struct json *on = config_get(r, "attn_temperature_tuning");
    const double floor_scale = config_num(r, "floor_scale", 8192, 1, 1e9),
                 slope = config_num(r, "attn_scale", 0.1, 0, 1e3);
    if (on && on->type != JSON_BOOL && json_int(on, -1) < 0)
        config_fail(r, "'attn_temperature_tuning' is neither true, false nor a number");
    if (floor_scale != floor(floor_scale))
        config_fail(r, "'floor_scale' is %g; hearth takes a whole number", floor_scale);
    if (on && !(on->type == JSON_BOOL ? on->boolean : json_int(on, 0) > 0)) return;
    c->query_scale =
        (struct query_scale){.slope = (float)slope, .every = (int)floor_scale, .shift = 1, .no_rope_only = true};
}

static void read_moe_layers(struct config_reader *r, struct config *c) {
    const struct json *list = config_get(r, "moe_layers");
    const int step = config_int(r, "interleave_moe_layer_step", 1, 1, CONFIG_MAX_LAYERS);
    if (list && list->type != JSON_ARRAY) config_fail(r, "'moe_layers' is not a list");
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = !list && (i + 1) % step == 0;
    for (uint32_t i = 0; list && list->type == JSON_ARRAY && i < list->n; i++) {
        const int64_t k = json_int(json_at(list, i), -1);
        if (k < 0 || k >= c->n_layers) config_fail(r, "'moe_layers' names layer %lld of %d", (long long)k, c->n_layers);
        else c->layer[k].moe = true;
    }
}

static void parse(struct config_reader *r, struct config *c) {
    if (r->outer) config_skip_vision(r, c);
    config_read_gqa(r, c);
    c->qk_norm = config_bool(r, "use_qk_norm", true) ? QK_NORM_UNIT : QK_NORM_NONE;
    c->qk_norm_after_rope = true;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->rope.interleaved = true;
    config_read_rope(r, c, c->head_dim, 500000);
    read_attention_layers(r, c);
    read_temperature(r, c);
    read_moe_layers(r, c);
    config_ignore(r, "for_llm_compressor"), config_ignore(r, "cache_implementation");
    c->dense_inter = config_int(r, "intermediate_size_mlp", 16384, 1, 1 << 20);
    c->n_experts = config_int(r, "num_local_experts", 16, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 1, 1, 64);
    if (c->topk != 1)
        config_fail(r,
                    "'num_experts_per_tok' is %d: the weights multiply the experts' inputs, and hearth does that for "
                    "one expert",
                    c->topk);
    c->moe_inter = c->shared_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->weighs_input = true;
    c->score = SCORE_SIGMOID;
    c->routed_scale = 1;
}

#define ROUTED(m) \
    .expert_gate = m "layers.%d.feed_forward.experts.%d.gate_proj", \
    .expert_up = m "layers.%d.feed_forward.experts.%d.up_proj", \
    .expert_down = m "layers.%d.feed_forward.experts.%d.down_proj"
#define STACKED(m) \
    .expert_gate = m "layers.%d.feed_forward.experts.gate_up_proj", \
    .expert_up = m "layers.%d.feed_forward.experts.gate_up_proj", \
    .expert_down = m "layers.%d.feed_forward.experts.down_proj"
#define NAMES(m, lm_head) \
    .embed = m "embed_tokens", .norm = m "norm", .head = lm_head, NAMES_NORMS_BEFORE(m), \
    .q = m "layers.%d.self_attn.q_proj", .k = m "layers.%d.self_attn.k_proj", .v = m "layers.%d.self_attn.v_proj", \
    .o = m "layers.%d.self_attn.o_proj", .router = m "layers.%d.feed_forward.router", \
    .shared_gate_proj = m "layers.%d.feed_forward.shared_expert.gate_proj", \
    .shared_up = m "layers.%d.feed_forward.shared_expert.up_proj", \
    .shared_down = m "layers.%d.feed_forward.shared_expert.down_proj", \
    .dense_gate = m "layers.%d.feed_forward.gate_proj", .dense_up = m "layers.%d.feed_forward.up_proj", \
    .dense_down = m "layers.%d.feed_forward.down_proj"
#define ARCH(types, member, m, lm_head, experts, ...) \
    { \
        .model_types = types, .title = "Llama 4", .norm_eps = 1e-5, .text_config_key = member, .parse = parse, \
        .names = {NAMES(m, lm_head), experts(m)}, __VA_ARGS__ \
    }
/* Experts published stacked and transposed, quantized ones one by one. */
#define STACKED_OR_APART(name, ...) \
    static const struct arch name##_apart = ARCH(__VA_ARGS__, ROUTED, .layout = {0}); \
    const struct arch name = ARCH( \
        __VA_ARGS__, STACKED, \
        .layout = {.experts = true, .transposed_down = true, .transposed_gate_up = true, .gate_up = GATE_UP_STACKED}, \
        .unstacked = &name##_apart)
static const char *const types[] = {"llama4", NULL}, *const text[] = {"llama4_text", NULL};
STACKED_OR_APART(arch_llama4, types, "text_config", "language_model.model.", "language_model.lm_head");
STACKED_OR_APART(arch_llama4_text, text, NULL, "model.", "lm_head");
