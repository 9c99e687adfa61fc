/* A layer's FFNs over the operations table: the dense FFN, the shared and the routed experts, also those in a latent
 * space. Does not choose experts (block_route.c). */
#include "engine/layer/block.h"
#include "engine/layer/block_linear.h"
#include "engine/layer/rows.h"

int block_routed_input(struct exec *x, const struct config *c, const struct layer *y, const float *xn, float *in,
                       int n) {
    const int width = c->moe_latent;
    TRY(block_linear(x, c, in, width, xn, c->hidden, y->routed_in, NULL, n, false));
    return y->routed_in_norm ? block_norm(x, c, in, width, in, width, y->routed_in_norm, NULL, n, width) : 0;
}
int block_routed_output(struct exec *x, const struct config *c, const struct layer *y, float *sum, float *out, int n) {
    if (y->routed_sum_norm)
        TRY(block_norm(x, c, sum, c->moe_latent, sum, c->moe_latent, y->routed_sum_norm, NULL, n, c->moe_latent));
    return block_linear(x, c, out, c->hidden, sum, c->moe_latent, y->routed_out, NULL, n, true);
}

int block_experts_norm(struct exec *x, const struct config *c, const struct layer *y, float *rows, int n) {
    const int width = c->moe_latent;
    if (!y->expert_out_norm) return 0;
    TRY(rows_gate(x, rows, width, y->expert_out_norm, 0, GATE_LINEAR, n, width));
    return x->ops->norm(x, &(struct op_norm){.out = rows,
                                             .x = rows,
                                             .rows = n,
                                             .dim = width,
                                             .ldx = width,
                                             .ldo = width,
                                             .eps = config_output_eps(c),
                                             .w_dtype = DT_F32});
}

/* Rows of a larger batch take turns, which bounds the memory: 256 MB of experts with 4,096 outputs. Each turn still has
 * many rows for each expert. */
int block_experts_rows(const struct config *c, int n) {
    enum { PAIRS_MOST = 16384 };
    const int most = PAIRS_MOST / (c->topk > 0 ? c->topk : 1);
    return n < most ? n : most;
}
/* Computes the outputs of n rows' experts one by one, norms and weighs them, and adds them to o->y in the order of the
 * choices. */
static int add_normed_experts(struct exec *x, const struct config *c, const struct layer *y, struct work *w,
                              const struct op_experts *all) {
    const int width = c->moe_latent, k = all->topk;
    struct op_experts o = *all;
    for (int at = 0; at < all->n; at += o.n) {
        const size_t row = (size_t)at;
        o.n = block_experts_rows(c, all->n - at);
        o.x = all->x + row * (size_t)width, o.ids = all->ids + row * (size_t)k,
        o.weights = all->weights + row * (size_t)k;
        o.y = w->expert_rows, o.by_choice = true;
        TRY(x->ops->fill(x, &(struct op_fill){.x = o.y, .n = o.n * k, .m = width}));
        TRY(x->ops->experts(x, &o));
        TRY(block_experts_norm(x, c, y, o.y, o.n * k));
        TRY(x->ops->gate(x, &(struct op_gate){.y = o.y,
                                              .g = o.weights,
                                              .n = o.n * k,
                                              .heads = 1,
                                              .dim = width,
                                              .ldy = width,
                                              .ldg = 1,
                                              .head_ldy = width,
                                              .head_ldg = 1,
                                              .kind = GATE_LINEAR,
                                              .per_head = true}));
        for (int i = 0; i < k; i++)
            TRY(x->ops->add(x, &(struct op_add){.y = all->y + row * (size_t)width,
                                                .x = o.y + (size_t)i * (size_t)width,
                                                .n = o.n,
                                                .m = width,
                                                .ldx = k * width}));
    }
    return 0;
}

int block_routed_sum(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    struct op_experts o = {.y = w->routed_sum,
                           .x = w->routed_in,
                           .ids = w->ids,
                           .weights = w->weights,
                           .experts = y->experts,
                           .shards = y->shards,
                           .is_loading = w->late_experts,
                           .computed_fraction = w->computed_fraction,
                           .n = n,
                           .topk = c->topk,
                           .n_experts = c->n_experts,
                           .hidden = c->moe_latent,
                           .wide = config_needs_wide_activations(c)};
    TRY(x->ops->fill(x, &(struct op_fill){.x = w->routed_sum, .n = n, .m = c->moe_latent}));
    return y->expert_out_norm ? add_normed_experts(x, c, y, w, &o) : x->ops->experts(x, &o);
}

int block_experts(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int parts,
                  float *out, int n) {
    const bool moe = c->layer[layer].moe, is_latent = moe && c->moe_latent;
    if (parts == PART_ROUTED_SHARED && (config_has_ffn_in(c, layer) || is_latent)) {
        TRY(block_experts(x, c, y, layer, w, PART_ROUTED, out, n));
        parts = PART_SHARED;
    }
    if (is_latent && parts == PART_ROUTED) {
        TRY(block_routed_input(x, c, y, w->xn, w->routed_in, n));
        TRY(block_routed_sum(x, c, y, w, n));
        return block_routed_output(x, c, y, w->routed_sum, out, n);
    }
    const bool routed = moe && parts & PART_ROUTED;
    const float *in = parts == PART_SHARED && config_has_ffn_in(c, layer) ? w->ffn_in : w->xn;
    struct op_experts o = {
        .y = out, .x = in, .shards = y->shards, .n = n, .hidden = c->hidden, .wide = config_needs_wide_activations(c)};
    struct expert_shards shared;
    if (routed)
        o.ids = w->ids, o.weights = w->weights, o.is_loading = w->late_experts,
        o.computed_fraction = w->computed_fraction, o.experts = y->experts, o.topk = c->topk,
        o.n_experts = c->n_experts;
    if (y->dense.gate.data && parts & PART_SHARED) o.shared = &y->dense;
    if (moe && config_weighs_shared(c)) o.shared_weight = w->shared_weight;
    if (moe && !routed && y->shards) { /* without routed experts the shared expert's shards come first */
        shared = (struct expert_shards){y->shards->part + (size_t)c->n_experts * (size_t)y->shards->n_nodes,
                                        y->shards->shared_rows, y->shards->n_nodes, NULL};
        o.shards = &shared;
    }
    if (routed || o.shared) TRY(x->ops->experts(x, &o));
    if (parts & PART_SHARED) op_show(x, layer, "after_ffn", out, n, c->hidden); /* the last part */
    return 0;
}
