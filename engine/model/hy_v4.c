/* Hunyuan 4 and its language model with vision: DeepSeek-V3.2 whose attention has sinks and a gate per element, whose
 * indexer rotates its last dimensions and is shared by layers, and whose several residual streams are not mixed with
 * each other (independent hyper-connections). Reference: transformers, models/hy_v4 and models/hy_v4_vl. */
#include "engine/model/config_common.h"
#include "engine/model/deepseek.h"

static const struct deepseek_defaults defaults = {
    .scale = 2.827, .dense = 1, .shared = 1, .norm = true, .groups = 1, .topk_group = 1};

static void read_streams(struct config_reader *r, struct config *c) {
    c->streams.n = config_int(r, "hc_mult", 4, 1, STREAMS_MOST);
    c->streams.eps = c->streams.post_eps = (float)config_num(r, "hc_eps", 1e-6, 0, 1);
    c->streams.magnitude = (float)config_num(r, "hc_magnitude", 2, 1e-6, 1e6);
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const always[] = {"enable_ihc", "gated_mla", "learnable_sink"};
    for (size_t i = 0; i < sizeof always / sizeof *always; i++)
        if (!config_bool(r, always[i], true))
            config_fail(r, "'%s' is false: the reference has no such attention or streams", always[i]);
    static const char *const kinds[] = {"indexed_attention", NULL};
    config_ignore(r, "learnable_sink_init");
    const struct json *layers = config_layer_list(r, c, "layer_types", false);
    for (int i = 0; layers && i < c->n_layers && !r->rc; i++) config_layer_choice(r, "layer_types", layers, i, kinds);
    /* the reference replaces both by what MLA has */
    config_ignore(r, "num_key_value_heads"), config_ignore(r, "qk_head_dim");
    deepseek_mla(r, c);
    c->rope.interleaved = config_bool(r, "rope_interleave", false);
    c->sinks = true;
    c->attn_gate = ATTN_GATE_ELEMENT, c->attn_gate_kind = GATE_SIGMOID;
    deepseek_experts(r, c, &defaults);
    deepseek_router(r, c, &defaults);
    deepseek_indexer(r, c, 16, false);
    deepseek_index_sharing(r, c, 4);
    c->index_rope_last = true;
    c->index_eps = c->norm_eps;
    const float limit = (float)config_num(r, "swiglu_limit", 10, -1e6, 1e6); /* of routed experts; 0 or less: none */
    for (int i = 0; i < c->n_layers; i++) c->layer[i].glu_limit[0] = limit;
    read_streams(r, c);
}

#define L "model.layers.%d."
/* p: prefix of the names of a block's streams */
#define MIX(part, p) .part##_mix = L p "hc_fn", .part##_mix_base = L p "hc_base", .part##_mix_scale = L p "hc_scale"
#define NAMES \
    NAMES_USUAL("model."), DEEPSEEK_MLA_NAMES("model."), DEEPSEEK_INDEX_NAMES, DEEPSEEK_BIAS_NAME, \
        NAMES_ROUTER("model."), .shared_up = L "mlp.shared_experts.up_proj", \
                                .shared_down = L "mlp.shared_experts.down_proj", .dense_up = L "mlp.up_proj", \
                                .dense_down = L "mlp.down_proj", .sinks = L "self_attn.learnable_sink_param", \
                                .attn_gate = L "self_attn.linear_gate"
/* gate: name of the FFN's gate; of_attn, of_ffn: prefixes of the names of their streams; last: of the last ones */
#define NAMES_OF(gate, of_attn, of_ffn, last) \
    .shared_gate_proj = L "mlp.shared_experts." gate, .dense_gate = L "mlp." gate, MIX(attn, of_attn), \
    MIX(ffn, of_ffn), .head_mix = last "hc_head_fn", .head_mix_base = last "hc_head_base", \
    .head_mix_scale = last "hc_head_scale"
#define PUBLISHED NAMES_OF("gate_proj", "hc_attn_layer.hc_pre.", "hc_mlp_layer.hc_pre.", "model.hc_head.")
#define SAVED(head) \
    NAMES_OF("linear_gate", "hc_pre.hc_attn_layer.", "hc_pre.hc_mlp_layer.", head) /* by transformers \
                                                                                    */

/* Rotates neighbours, where Hunyuan 4 rotates halves. Positions of text have three equal parts, so that its rotation is
 * otherwise the plain one. */
static void parse_vision(struct config_reader *r, struct config *c) {
    config_skip_vision(r, c);
    parse(r, c);
    c->rope.interleaved = c->index_interleaved = true;
    c->latent_eps = c->norm_eps;
}

#define ARCH(types, member, parser, own, experts, ...) \
    { \
        .model_types = types, .title = "Hunyuan 4", .defaults = {.topk = 8}, .norm_eps = 1e-5, \
        .text_config_key = member, .parse = parser, .names = {NAMES, own, experts("model.")}, __VA_ARGS__ \
    }
#define VARIANT(name) .variant = &name, .variant_tensor = L "hc_pre.hc_attn_layer.hc_fn"
/* head: prefix of the last streams' names as transformers saves them */
#define STACKED_OR_APART(name, types, member, parser, head) \
    static const struct arch name##_saved_apart = \
        ARCH(types, member, parser, SAVED(head), NAMES_EXPERTS, .layout = {0}); \
    static const struct arch name##_saved = ARCH(types, member, parser, SAVED(head), NAMES_STACKED, \
                                                 .layout = {.experts = true, .gate_up = GATE_UP_STACKED}); \
    static const struct arch name##_apart = \
        ARCH(types, member, parser, PUBLISHED, NAMES_EXPERTS, .layout = {0}, VARIANT(name##_saved_apart)); \
    const struct arch name = \
        ARCH(types, member, parser, PUBLISHED, NAMES_STACKED, .layout = {.experts = true, .gate_up = GATE_UP_STACKED}, \
             .unstacked = &name##_apart, VARIANT(name##_saved))
static const char *const types[] = {"hy_v4", NULL}, *const vision[] = {"hy_v4_vl", NULL};
STACKED_OR_APART(arch_hy_v4, types, NULL, parse, "model.hc_pre.hc_head.");
STACKED_OR_APART(arch_hy_v4_vl, vision, "text_config", parse_vision, "model.hc_head.hc_pre.");
