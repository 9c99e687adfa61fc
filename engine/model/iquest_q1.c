/* IQuest-Q1: GQA with norms of heads, of which a part turns, and a learned key per KV head that has no value; blocks
 * whose outputs are normed and scaled. After the first layer a layer's attention is added to its normed input instead
 * of the stream. Qwen3-MoE's router. Reference: sglang, models/iquest_q1. */
#include <string.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Appends the kinds of a list to the layers from `at` on. Returns the next layer. */
static int append_kinds(struct config_reader *r, struct config *c, const char *key, const char *defaults, int at,
                        int window) {
    const struct json *list = config_get(r, key);
    const int n = list && list->type == JSON_ARRAY ? (int)list->n : (int)strlen(defaults);
    if (list && list->type != JSON_ARRAY) config_fail(r, "'%s' is not a list", key);
    for (int i = 0; i < n && at < c->n_layers; i++, at++) {
        const struct json *kind = list ? json_at(list, (uint32_t)i) : NULL;
        const bool slides = kind ? json_is(kind, "sliding_attention") : defaults[i] == 's';
        if (kind && !slides && !json_is(kind, "full_attention"))
            config_fail(r, "'%s' has a kind that hearth does not know", key);
        c->layer[at].window = slides ? window : 0;
    }
    return at;
}

static void read_windows(struct config_reader *r, struct config *c) {
    const int window = config_int(r, "sliding_window", 4096, 1, 1 << 24),
              blocks = config_int(r, "num_hybrid_layers_block", 21, 0, CONFIG_MAX_LAYERS);
    const bool mixed = config_bool(r, "use_hybrid_layers", true), slides = config_bool(r, "use_sliding_window", true);
    int at = append_kinds(r, c, "first_layers_types", "f", 0, window);
    for (int i = 0; i < blocks; i++) at = append_kinds(r, c, "hybrid_layers_types_block", "fsss", at, window);
    at = append_kinds(r, c, "last_layers_types", "fff", at, window);
    config_ignore(r, "layer_types"), config_ignore(r, "hybrid_layer_pattern"); /* of other programs: the lists count */
    if (mixed && at != c->n_layers)
        config_fail(r, "'first_layers_types', 'hybrid_layers_types_block' and 'last_layers_types' name %d of %d layers",
                    at, c->n_layers);
    for (int i = 0; i < c->n_layers && !(mixed && slides); i++) c->layer[i].window = 0;
}

static void read_ropes(struct config_reader *r, struct config *c) {
    const struct json *none = config_get(r, "no_rope_layers");
    c->rope.default_partial_factor = (double)config_int(r, "rotary_dim", c->head_dim, 2, c->head_dim) / c->head_dim;
    config_read_rope(r, c, c->head_dim, 1000000);
    if (!r->rc && c->rope.kind != ROPE_DEFAULT)
        config_fail(r, "'rope_parameters' are scaled: hearth has no reference of that for this family");
    c->second_rope = c->rope;
    c->second_rope.theta = config_num(r, "swa_rope_theta", 10000, 1.000001, 1e12);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = c->layer[i].window ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST;
    for (uint32_t i = 0; none && none->type == JSON_ARRAY && i < none->n; i++) {
        const int64_t layer = json_int(json_at(none, i), -1);
        if (layer < 0 || layer >= c->n_layers)
            config_fail(r, "'no_rope_layers' names layer %lld of %d", (long long)layer, c->n_layers);
        else c->layer[layer].rope = LAYER_ROPE_NONE;
    }
}

static void read_scales(struct config_reader *r, struct config *c) {
    const float first[2] = {(float)config_num(r, "first_layer_attn_out_scale", 1, 0, 1e6),
                            (float)config_num(r, "first_layer_ffn_out_scale", 1, 0, 1e6)},
                later[2] = {(float)config_num(r, "attn_out_scale", 1, 0, 1e6),
                            (float)config_num(r, "ffn_out_scale", 0.53881590608, 0, 1e6)};
    config_keep_stream(c);
    c->norms_stream = true;
    c->output_norm = OUTPUT_NORM_FIRST;
    for (int i = 0; i < c->n_layers; i++) {
        c->layer[i].branch[0] =
            (struct branch_scale){.stream = i ? 1 : 0, .output = i ? later[0] : first[0], .is_raw = !i};
        c->layer[i].branch[1] = (struct branch_scale){.output = i ? later[1] : first[1], .is_raw = true};
    }
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = QK_NORM_HEAD;
    if (config_bool(r, "attention_bias", false)) config_fail(r, "'attention_bias' is true: the reference has none");
    if (config_bool(r, "use_over_encoding", false))
        config_fail(r, "'use_over_encoding' is true: the reference refuses it too");
    config_ignore(r, "enable_lm_head_fp32"), config_ignore(r, "num_mtp_layers");
    c->attn_scale = (float)config_num(r, "softmax_scale", (double)c->attn_scale, 1e-6, 1e3);
    c->logit_scale = (float)config_num(r, "logit_scale", 1, 1e-6, 1e6);
    c->sink_keys = config_bool(r, "enable_sink_attention", true);
    read_windows(r, c);
    read_ropes(r, c);
    read_scales(r, c);
    config_read_sparse_step(r, c);
    if (!config_has(r, "mlp_only_layers")) c->layer[0].moe = false;
    c->dense_inter = config_int(r, "dense_intermediate_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, "num_experts", 256, 1, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 8, 1, 64);
    c->moe_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->norm_topk = true;
    c->score = SCORE_SOFTMAX;
    c->routed_scale = 1;
}

#define M "model."
#define L M "layers.%d."
#define STACKED(m) \
    .expert_gate = m "layers.%d.mlp.experts.fc", .expert_up = m "layers.%d.mlp.experts.fc", \
    .expert_down = m "layers.%d.mlp.experts.proj"
static const char *const types[] = {"iquest_q1", NULL};
#define ARCH(router_name, experts, ...) \
    { \
        .model_types = types, .title = "IQuest-Q1", .parse = parse, \
        .names = {NAMES_ATTENTION(M), \
                  NAMES_QK_NORM(M), \
                  .attn_norm = L "attention_norm", \
                  .attn_out_norm = L "attn_out_norm", \
                  .ffn_norm = L "feed_forward_norm", \
                  .ffn_out_norm = L "ffn_out_norm", \
                  .sink_key = L "self_attn.sink_k", \
                  .router = L "mlp." router_name, \
                  experts(M), \
                  NAMES_DENSE(M)}, \
        __VA_ARGS__ \
    }
/* Experts one by one, as quantization tools write them; routers of either name. */
#define GATE(name) .variant = &name, .variant_tensor = L "mlp.gate.weight"
static const struct arch apart_gate = ARCH("gate", NAMES_EXPERTS, .layout = {0}),
                         apart = ARCH("router", NAMES_EXPERTS, GATE(apart_gate)),
                         stacked_gate = ARCH("gate", STACKED, .layout = {.experts = true, .gate_up = GATE_UP_STACKED});
const struct arch arch_iquest_q1 = ARCH("router", STACKED, .layout = {.experts = true, .gate_up = GATE_UP_STACKED},
                                        .unstacked = &apart, GATE(stacked_gate));
