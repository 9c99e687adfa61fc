/* A layer's FFNs over the operations table: the dense FFN, the shared and the routed experts. Does not choose experts
 * (block_route.c). */
#include "engine/layer/block.h"
#include "engine/layer/expert_io.h"

int block_experts(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int parts,
                  float *out, int n) {
    const bool moe = c->layer[layer].moe;
    /* both parts are one operation if they read the same rows */
    const bool is_joined = !config_has_ffn_in(c, layer) && !expert_io_is_apart(c);
    if (moe && (parts == PART_ROUTED || (parts == PART_ROUTED_SHARED && !is_joined))) {
        TRY(expert_io_begin(x, c, y, w, n));
        TRY(expert_io_add(x, c, y, w, out, n));
        TRY(expert_io_end(x, c, y, w, out, n));
        parts &= ~PART_ROUTED;
    }
    const bool routed = moe && parts & PART_ROUTED;
    struct op_experts o = {.y = out,
                           .x = expert_io_shared_in(c, layer, w),
                           .shared_weight = expert_io_shared_weight(c, layer, w),
                           .shards = y->shards,
                           .n = n,
                           .hidden = c->hidden,
                           .wide = config_needs_wide_activations(c)};
    struct expert_shards shared;
    if (routed)
        o.ids = w->ids, o.weights = w->weights, o.is_loading = w->late_experts,
        o.computed_fraction = w->computed_fraction, o.experts = y->experts, o.topk = c->topk,
        o.n_experts = c->n_experts;
    if (y->dense.gate.data && parts & PART_SHARED) o.shared = &y->dense;
    if (moe && !routed && y->shards) { /* without routed experts the shared expert's shards come first */
        shared = (struct expert_shards){y->shards->part + (size_t)c->n_experts * (size_t)y->shards->n_nodes,
                                        y->shards->shared_rows, y->shards->n_nodes, NULL};
        o.shards = &shared;
    }
    if (routed || o.shared) TRY(x->ops->experts(x, &o));
    if (parts & PART_SHARED) op_show(x, layer, "after_ffn", out, n, c->hidden); /* the last part */
    return 0;
}
