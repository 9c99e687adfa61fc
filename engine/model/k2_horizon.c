/* K2 Horizon: GQA with norms of equal parts of the stream and heads of which some pairs rotate, gates of the attention
 * output, and in layers with experts (DeepSeek-V3's router) values from value experts (MoVA). Reference: transformers,
 * models/k2_horizon. */
#include <math.h>

#include "base/ops.h"
#include "engine/model/arch.h"
#include "engine/model/config_common.h"
#include "engine/model/names.h"

/* Heads of which the first rope_head_dim / 2 of all pairs (j, j + head_dim / 2) turn, by theta^(-2j / rope_head_dim).
 */
static void read_rope(struct config_reader *r, struct config *c) {
    const int turning = config_int(r, "rope_head_dim", c->head_dim, 2, c->head_dim > 1 ? c->head_dim : 2);
    config_read_rope(r, c, c->head_dim, 10000);
    if (turning == c->head_dim || r->rc) return;
    if (turning % 2) config_fail(r, "'rope_head_dim' is %d: it must be even", turning);
    if (c->rope.kind != ROPE_DEFAULT)
        config_fail(r, "'rope_parameters' scale a rotation of %d of %d dimensions: hearth scales that of whole heads",
                    turning, c->head_dim);
    c->rope.kind = ROPE_PROPORTIONAL, c->rope.factor = 1, c->rope.turning_pairs = turning / 2;
    c->rope.theta = pow(c->rope.theta, (double)c->head_dim / turning);
}

static void read_gates(struct config_reader *r, struct config *c) {
    static const char *const gates[] = {"softplus", "silu", NULL};
    if (!config_has(r, "attention_gate_func")) return;
    c->attn_gate = ATTN_GATE_ELEMENT;
    c->attn_gate_kind = config_choice(r, "attention_gate_func", gates, 0) ? GATE_SILU : GATE_SOFTPLUS2;
}

static void read_experts(struct config_reader *r, struct config *c) {
    static const char *const scores[] = {"sigmoid", "softmax", NULL};
    config_read_sparse_step(r, c);
    const int dense = config_int(r, "num_dense_layers", 0, 0, c->n_layers);
    for (int i = 0; i < dense; i++) c->layer[i].moe = false;
    c->n_experts = config_int(r, "num_experts", 0, 0, 4096);
    c->topk = config_int(r, "num_experts_per_tok", 0, 0, 64);
    c->moe_inter = config_int(r, "moe_intermediate_size", 0, 0, 1 << 20);
    const int shared = config_int(r, "num_shared_experts", 0, 0, 64);
    c->n_value_experts = config_int(r, "mova_num_experts", 0, 0, 4096);
    c->value_topk = config_int(r, "mova_num_experts_per_tok", 0, 0, 64);
    c->norm_topk = config_bool(r, "norm_topk_prob", false);
    c->router_bias = config_bool(r, "moe_gate_bias", false);
    c->routed_scale = (float)config_num(r, "router_scaling_factor", 1, 0, 1e4);
    c->score = config_choice(r, "router_score_func", scores, 0) ? SCORE_SOFTMAX : SCORE_SIGMOID;
    c->dense_inter = config_int(r, "intermediate_size", 0, 1, 1 << 20);
    for (int i = 0; i < c->n_layers && !c->n_experts; i++) c->layer[i].moe = false;
    if (!c->n_experts) c->topk = c->moe_inter = c->n_value_experts = 0;
    if (!c->n_value_experts) c->value_topk = 0;
    if (r->rc) return;
    if (c->n_experts && (c->topk < 1 || c->topk > c->n_experts || c->moe_inter < 1))
        config_fail(r, "%d of %d experts a token, %d wide: 'num_experts_per_tok' and 'moe_intermediate_size' must fit",
                    c->topk, c->n_experts, c->moe_inter);
    if (c->n_value_experts && (c->value_topk < 1 || c->value_topk > c->n_value_experts))
        config_fail(r, "'mova_num_experts_per_tok' is %d of %d value experts", c->value_topk, c->n_value_experts);
    c->shared_inter = c->n_experts ? shared * c->moe_inter : 0;
}

static void parse(struct config_reader *r, struct config *c) {
    config_read_gqa(r, c);
    c->qk_norm = config_bool(r, "query_key_norm", false) ? QK_NORM_OWN : QK_NORM_NONE;
    c->qkv_bias = c->o_bias = config_bool(r, "attention_bias", false);
    c->norm_groups = config_int(r, "layernorm_num_groups", 1, 1, 4096);
    if (!r->rc && c->hidden % c->norm_groups)
        config_fail(r, "'layernorm_num_groups' is %d, which does not divide %d", c->norm_groups, c->hidden);
    read_rope(r, c);
    read_gates(r, c);
    read_experts(r, c);
    const int window = config_int(r, "sliding_window", 0, 0, 1 << 24);
    const bool slides = config_bool(r, "use_sliding_window", window > 0);
    for (int i = 0; i < c->n_layers && slides; i++) c->layer[i].window = window;
    if (!r->rc && c->n_value_experts && c->qkv_bias)
        config_fail(r, "'attention_bias' is true beside value experts: the reference has none of values");
}

#define M "model."
static const char *const types[] = {"k2_horizon", NULL};
const struct arch arch_k2_horizon = {
    .model_types = types,
    .title = "K2 Horizon",
    .parse = parse,
    .names = {NAMES_GQA(M), NAMES_QK_NORM(M), .attn_gate = M "layers.%d.self_attn.gate_proj",
              .v_router = M "layers.%d.self_attn.v_router", .v_experts = M "layers.%d.self_attn.v_experts.%d",
              NAMES_ROUTER(M), .router_bias = M "layers.%d.mlp.gate.bias", NAMES_EXPERTS(M),
              NAMES_SHARED(M, "shared_experts"), NAMES_DENSE(M)},
};
