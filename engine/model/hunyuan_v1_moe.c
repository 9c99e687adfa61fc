/* Hunyuan-A13B: GQA whose q and k are normed after the rotation, a softmax router, a shared expert. Reference: the
 * vendor's modeling_hunyuan.py (Hunyuan-A13B); transformers, models/hunyuan_v1_moe. */
#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* A number for all layers, or a list of equal ones, one a layer. */
static int same_in_all(struct config_reader *r, const struct config *c, const char *key, int default_value, int min,
                       int max) {
    const struct json *v = config_get(r, key);
    if (!v || v->type != JSON_ARRAY) return config_int(r, key, default_value, min, max);
    if (v->n < (uint32_t)c->n_layers) config_fail(r, "'%s' is a list of %u, layers are %d", key, v->n, c->n_layers);
    const int64_t first = v->n ? json_int(json_at(v, 0), min - 1) : min - 1;
    if (first < min || first > max)
        config_fail(r, "'%s' is %lld in layer 0; hearth takes %d to %d", key, (long long)first, min, max);
    for (uint32_t i = 1; i < v->n; i++)
        if (json_int(json_at(v, i), -1) != first)
            config_fail(r, "'%s' differs from layer to layer, which hearth does not support of this family", key);
    return r->rc ? min : (int)first;
}

/* Refuses options of the architecture that the published models do not use. */
static void only_published(struct config_reader *r) {
    static const char *const off[] = {"use_cla",
                                      "use_mla",
                                      "group_limited_greedy",
                                      "mlp_bias",
                                      "add_classification_head",
                                      "moe_drop_tokens",
                                      "position_embedding_xdrope",
                                      NULL},
                             *const training[] = {"cla_share_factor", "class_num",  "moe_random_routing_dropped_token",
                                                  "n_group",          "topk_group", "pool_type",
                                                  "capacity_factor",  NULL},
                             *const norms[] = {"rms", NULL};
    for (int i = 0; off[i]; i++)
        if (config_bool(r, off[i], false))
            config_fail(r, "'%s' is true: hearth does not support that of this family", off[i]);
    /* settings of the features above, or of training */
    for (int i = 0; training[i]; i++) config_ignore(r, training[i]);
    config_choice(r, "norm_type", norms, 0);
    if (!config_bool(r, "use_rotary_pos_emb", true))
        config_fail(r, "'use_rotary_pos_emb' is false: the reference rotates");
    if (config_num(r, "routed_scaling_factor", 1, 0, 1e4) != 1)
        config_fail(r, "'routed_scaling_factor' is not 1: the reference ignores it");
    if (!config_bool(r, "norm_topk_prob", true))
        config_fail(r, "'norm_topk_prob' is false: the reference always normalizes");
}

static void read_attention(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    only_published(r);
    int again = config_int(r, "attention_head_dim", c->head_dim, 1, 1024);
    if (again != c->head_dim) config_fail(r, "'attention_head_dim' is %d, 'head_dim' %d", again, c->head_dim);
    c->qk_norm = config_bool(r, "use_qk_norm", true) ? QK_NORM_HEAD : QK_NORM_NONE;
    c->qk_norm_after_rope = true;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    config_read_rope(r, c, c->head_dim, 10000);
}

static void parse(struct config_reader *r, struct config *c) {
    read_attention(r, c);
    config_ignore(r, "eod_token_id"); /* separates documents in training */
    int dense = config_int(r, "moe_layer_num_skipped", 0, 0, CONFIG_MAX_LAYERS);
    for (int i = 0; i < c->n_layers; i++) c->layer[i].moe = i >= dense;
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    c->n_experts = same_in_all(r, c, "num_experts", 0, 1, 4096);
    c->topk = same_in_all(r, c, "moe_topk", 1, 1, 64);
    c->moe_inter = same_in_all(r, c, "moe_intermediate_size", c->dense_inter, 1, 1 << 20);
    int shared = same_in_all(r, c, "num_shared_expert", 1, 0, 64);
    c->shared_inter = config_bool(r, "use_mixed_mlp_moe", true) ? shared * c->moe_inter : 0;
    c->score = SCORE_SOFTMAX;
    c->norm_topk = true;
    c->routed_scale = 1;
}

static void parse_dense(struct config_reader *r, struct config *c) {
    static const char *const unused[] = {"num_experts",
                                         "num_shared_expert",
                                         "moe_topk",
                                         "moe_intermediate_size",
                                         "moe_layer_num_skipped",
                                         "use_mixed_mlp_moe",
                                         "dense_list",
                                         "eod_token_id",
                                         NULL};
    /* of experts, of which the published models have one, the FFN */
    for (int i = 0; unused[i]; i++) config_ignore(r, unused[i]);
    read_attention(r, c);
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
}

#define LAYER "model.layers.%d."
#define NAMES \
    NAMES_GQA("model."), .q_norm = LAYER "self_attn.query_layernorm", .k_norm = LAYER "self_attn.key_layernorm", \
                         NAMES_DENSE("model.")
static const char *const types[] = {"hunyuan_v1_moe", NULL}, *const dense[] = {"hunyuan_v1_dense", NULL};
const struct arch arch_hunyuan_v1_moe = {
    .model_types = types,
    .title = "Hunyuan MoE",
    .norm_eps = 1e-5,
    .parse = parse,
    .names = {NAMES, .router = LAYER "mlp.gate.wg", NAMES_EXPERTS("model."), NAMES_SHARED("model.", "shared_mlp")},
};
const struct arch arch_hunyuan_v1_dense = {
    .model_types = dense, .title = "Hunyuan", .norm_eps = 1e-5, .parse = parse_dense, .names = {NAMES}};
