/* Step-3.5-Flash, and the language model of Step-3.7-Flash: GQA with norms by 1 + w, a sigmoid gate per head, and heads
 * and rotation by kind of layer; a sigmoid router with a selection bias, a shared expert, and in single layers a
 * clamped SwiGLU. Reference: transformers, models/step3p7. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"
#include "engine/model/overrides.h"
#include "engine/model/step3.h"

/* Entry `layer` of a list with an entry per layer, and possibly per MTP layer after them; or the number that applies to
 * all layers. */
static double layer_entry(struct config_reader *r, const struct config *c, const char *key, int layer,
                          double default_value) {
    const struct json *v = config_get(r, key);
    if (!v) return default_value;
    if (v->type == JSON_ARRAY && (int)v->n < c->n_layers)
        config_fail(r, "'%s' is a list of %u, layers are %d", key, v->n, c->n_layers);
    const struct json *one = v->type == JSON_ARRAY ? json_at(v, (uint32_t)layer) : v;
    if (r->rc || !one || one->type == JSON_NULL) return default_value;
    const double x = json_num(one, -1);
    if (!(x >= 0)) config_fail(r, "'%s' of layer %d is not a number of 0 or more", key, layer);
    return x;
}

/* Layers with experts, as published or as transformers saves them. */
static void read_moe_layers(struct config_reader *r, struct config *c) {
    const bool saved = config_has(r, "mlp_layer_types");
    step3_read_moe_layers(r, c, 3);
    /* of MTP layers, which hearth does not use */
    config_ignore(r, "mtp_layer_types"), config_ignore(r, "mtp_mlp_layer_types");
    if (saved && config_has(r, "moe_layers_enum"))
        config_fail(r, "'moe_layers_enum' and 'mlp_layer_types' are both set, which are names of the same");
    if (saved) config_read_mlp_types(r, c);
}

/* Heads of the layers with a window. */
static void read_heads(struct config_reader *r, struct config *c) {
    struct config_reader in;
    static const char *const kinds[] = {"sliding_attention", NULL};
    const int heads = c->n_heads, kv = c->n_kv_heads;
    config_open(r, "attention_other_setting", &in);
    config_choice(&in, "attention_type", kinds, 0);
    const int window_heads = config_int(&in, "num_attention_heads", heads, 1, 1024),
              window_kv = config_int(&in, "num_attention_groups", kv, 1, 1024);
    const int dim = config_int(&in, "head_dim", c->head_dim, 1, 1024),
              true_dim = config_int(&in, "true_head_dim", dim, 1, 1024);
    if (dim != c->head_dim || true_dim != dim)
        config_fail(&in, "'attention_other_setting.head_dim' is %d, in other layers %d", true_dim, c->head_dim);
    config_close(r, "attention_other_setting", &in);
    static const char *const own[] = {"num_attention_heads", NULL};
    const int saved_heads = config_int(r, "num_sliding_attention_heads", window_heads, 1, 1024);
    const bool saved = config_has(r, "per_layer_config");
    if (config_has(r, "attention_other_setting") && saved_heads != window_heads)
        config_fail(r, "'num_sliding_attention_heads' is %d, in 'attention_other_setting' %d", saved_heads,
                    window_heads);
    overrides_check(r, c, own);
    for (int i = 0; i < c->n_layers && !r->rc; i++) {
        const bool slides = c->layer[i].window > 0;
        const int published = slides ? saved_heads : heads,
                  n = saved ? overrides_int(r, own[0], i, heads, 1, 1024) : published;
        if (n != published)
            config_fail(r,
                        "'per_layer_config' of layer %d has %d heads, 'num_sliding_attention_heads' or "
                        "'num_attention_heads' %d",
                        i, n, published);
        config_set_heads(r, c, i, n, slides ? window_kv : kv);
    }
}

/* Rotation of the first layer of a kind; all layers of the kind must agree. Only full layers are scaled. */
static struct rope_config rope_of(struct config_reader *r, struct config *c, bool sliding) {
    int first = 0;
    while (first < c->n_layers - 1 && (c->layer[first].window > 0) != sliding) first++;
    const double theta = layer_entry(r, c, "rope_theta", first, 10000),
                 partial = layer_entry(r, c, "partial_rotary_factors", first, 1);
    for (int i = 0; i < c->n_layers; i++)
        if ((c->layer[i].window > 0) == sliding && (layer_entry(r, c, "rope_theta", i, 10000) != theta ||
                                                    layer_entry(r, c, "partial_rotary_factors", i, 1) != partial))
            config_fail(
                r,
                "'rope_theta' or 'partial_rotary_factors' of layer %d is not that of layer %d, which has the same kind",
                i, first);
    c->rope.default_partial_factor = partial;
    config_read_rope_object(r, c, sliding ? "rope_parameters" : "rope_scaling", c->head_dim, theta > 1 ? theta : 10000);
    return c->rope;
}

static void read_ropes(struct config_reader *r, struct config *c) {
    const struct json *scaled = config_get(r, "yarn_only_types"), *used = config_get(r, "use_rope_layers");
    if (config_has(r, "rope_scaling") && scaled &&
        !(scaled->type == JSON_ARRAY && scaled->n == 1 && json_is(json_at(scaled, 0), "full_attention")))
        config_fail(r, "'yarn_only_types' is not [\"full_attention\"]: hearth scales full layers only");
    if (used && used->type == JSON_ARRAY && used->n)
        config_fail(r, "'use_rope_layers' is not empty: the reference rotates in every layer");
    if (config_has(r, "rope_parameters")) {
        static const char *const published[] = {"rope_theta", "rope_scaling", "partial_rotary_factors"};
        for (size_t i = 0; i < sizeof published / sizeof *published; i++)
            if (config_has(r, published[i]))
                config_fail(r, "'%s' and 'rope_parameters' are both set: hearth takes one of them", published[i]);
        if (!json_get(config_get(r, "rope_parameters"), "full_attention"))
            config_fail(r, "'rope_parameters' has no object for full_attention");
        config_read_ropes(r, c, 10000, 10000);
        if (c->second_rope.kind != ROPE_DEFAULT)
            config_fail(r, "'rope_parameters.sliding_attention' is scaled: hearth scales full layers only");
        return;
    }
    c->second_rope = rope_of(r, c, true);
    c->rope = rope_of(r, c, false);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].rope = c->layer[i].window ? LAYER_ROPE_SECOND : LAYER_ROPE_FIRST;
}

static void read_experts(struct config_reader *r, struct config *c) {
    static const char *const scores[] = {"sigmoid", NULL};
    if (!config_bool(r, "use_moe", true)) config_fail(r, "'use_moe' is false");
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->n_experts = config_int(r, config_either(r, "moe_num_experts", "n_routed_experts"), 0, 1, 4096);
    c->topk = config_int(r, config_either(r, "moe_top_k", "num_experts_per_tok"), 0, 1, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 1, 1 << 20);
    c->shared_inter = config_int(r, "share_expert_dim", 0, 1, 1 << 20);
    c->routed_scale = (float)config_num(r, "moe_router_scaling_factor", 1, 0, 1e4);
    c->router_bias = config_bool(r, "use_moe_router_bias", true);
    c->norm_topk = config_bool(r, "norm_expert_weight", true);
    config_choice(r, "moe_router_activation", scores, 0);
    config_ignore(r, "moe_every_n_layer"), config_ignore(r, "moe_layer_offset"); /* moe_layers_enum says it */
    config_bool(r, "need_fp32_gate", true);
    c->score = SCORE_SIGMOID;
    c->glu.clamp_after = true;
    for (int i = 0; i < c->n_layers; i++) {
        c->layer[i].glu_limit[0] = (float)layer_entry(r, c, "swiglu_limits", i, 0);
        c->layer[i].glu_limit[1] = (float)layer_entry(r, c, "swiglu_limits_shared", i, 0);
    }
}

static void parse(struct config_reader *r, struct config *c) {
    static const char *const kinds[] = {"GQA", NULL};
    config_read_gqa(r, c);
    config_choice(r, "att_impl_type", kinds, 0);
    c->norm = config_bool(r, "zero_centered", true) ? NORM_RMS_PLUS_ONE : NORM_RMS;
    c->qk_norm = config_bool(r, "use_qk_norm", true) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->attn_gate = config_bool(r, "use_head_wise_attn_gate", true) ? ATTN_GATE_HEAD : ATTN_GATE_NONE;
    if (config_bool(r, "attention_bias", false))
        config_fail(r, "'attention_bias' is true: hearth reads no such tensors of this family");
    config_ignore(r, "max_seq_len");
    c->attn_scale = (float)(1 / sqrt(config_num(r, "query_pre_attn_scalar", c->head_dim, 1e-6, 1e6)));
    config_read_windows(r, c, config_int(r, "sliding_window", 0, 0, 1 << 24), 0);
    read_moe_layers(r, c);
    read_ropes(r, c);
    read_heads(r, c);
    read_experts(r, c);
}
static void parse_vision(struct config_reader *r, struct config *c) {
    config_skip_vision(r, c);
    parse(r, c);
}

#define L "model.layers.%d."
static const char *const types[] = {"step3p5", NULL}, *const vision[] = {"step3p7", NULL},
                         *const aliases[][2] = {{"num_key_value_heads", "num_attention_groups"}, {NULL, NULL}};
#define ARCH(types, name, member, parser) \
    { \
        .model_types = types, .title = name, .norm_eps = 1e-5, .text_config_key = member, .parse = parser, \
        .key_aliases = aliases, .mlx_adds_one = true, .names = {NAMES_GQA("model."), \
                                                                NAMES_QK_NORM("model."), \
                                                                .attn_gate = L "self_attn.g_proj", \
                                                                .router_bias = L "moe.router_bias", \
                                                                STEP3_EXPERT_NAMES, \
                                                                NAMES_DENSE("model.")}, \
        .layout = { \
            .experts = true, \
            .has_suffix = true \
        } \
    }
const struct arch arch_step3p5 = ARCH(types, "Step-3.5", NULL, parse),
                  arch_step3p7 = ARCH(vision, "Step-3.7", "text_config", parse_vision);
