#include "engine/layer/expert_io.h"

#include "engine/layer/block_linear.h"
#include "engine/layer/rows.h"

bool expert_io_is_apart(const struct config *c) { return c->moe_latent > 0; }
struct expert_io expert_io_of(const struct config *c, const struct work *w, float *out) {
    return expert_io_is_apart(c) ? (struct expert_io){c->moe_latent, w->routed_in, w->routed_sum}
                                 : (struct expert_io){c->hidden, w->xn, out};
}
int expert_io_begin(struct exec *x, const struct config *c, const struct layer *y, const struct work *w, int n) {
    const int width = c->moe_latent;
    if (!expert_io_is_apart(c)) return 0;
    TRY(block_linear(x, c, w->routed_in, width, w->xn, c->hidden, y->routed_in, NULL, n, false));
    if (y->routed_in_norm)
        TRY(block_norm(x, c, w->routed_in, width, w->routed_in, width, y->routed_in_norm, NULL, n, width));
    return x->ops->fill(x, &(struct op_fill){.x = w->routed_sum, .n = n, .m = width});
}
int expert_io_end(struct exec *x, const struct config *c, const struct layer *y, const struct work *w, float *out,
                  int n) {
    const int width = c->moe_latent;
    float *sum = w->routed_sum;
    if (!expert_io_is_apart(c)) return 0;
    if (y->routed_sum_norm) TRY(block_norm(x, c, sum, width, sum, width, y->routed_sum_norm, NULL, n, width));
    return block_linear(x, c, out, c->hidden, sum, width, y->routed_out, NULL, n, true);
}

int expert_io_norm_floats(const struct config *c) { return c->expert_out_norm ? c->moe_latent : 0; }
int expert_io_norm(struct exec *x, const struct config *c, const struct layer *y, float *rows, int n) {
    const int width = c->moe_latent;
    if (!y->expert_out_norm) return 0;
    TRY(rows_gate(x, rows, width, y->expert_out_norm, 0, GATE_LINEAR, n, width));
    return rows_norm(x, rows, width, NULL, config_output_eps(c), n, width);
}

/* Rows of a larger batch take turns, which bounds the memory: 256 MB of experts with 4,096 outputs. Each turn still has
 * many rows for each expert. */
int expert_io_rows(const struct config *c, int n) {
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
        o.n = expert_io_rows(c, all->n - at);
        o.x = all->x + row * (size_t)width, o.ids = all->ids + row * (size_t)k,
        o.weights = all->weights + row * (size_t)k;
        o.y = w->expert_rows, o.by_choice = true;
        TRY(x->ops->fill(x, &(struct op_fill){.x = o.y, .n = o.n * k, .m = width}));
        TRY(x->ops->experts(x, &o));
        TRY(expert_io_norm(x, c, y, o.y, o.n * k));
        TRY(rows_weigh(x, o.y, o.weights, true, o.n * k, width));
        for (int i = 0; i < k; i++)
            TRY(x->ops->add(x, &(struct op_add){.y = all->y + row * (size_t)width,
                                                .x = o.y + (size_t)i * (size_t)width,
                                                .n = o.n,
                                                .m = width,
                                                .ldx = k * width}));
    }
    return 0;
}

int expert_io_add_some(struct exec *x, const struct config *c, const struct layer *y, const struct expert *experts,
                       int n_experts, struct work *w, float *out, int n) {
    const struct expert_io io = expert_io_of(c, w, out);
    const struct op_experts o = {.y = io.sum,
                                 .x = io.in,
                                 .ids = w->ids,
                                 .weights = w->weights,
                                 .experts = experts,
                                 .shards = experts == y->experts ? y->shards : NULL,
                                 .is_loading = w->late_experts,
                                 .computed_fraction = w->computed_fraction,
                                 .n = n,
                                 .topk = c->topk,
                                 .n_experts = n_experts,
                                 .hidden = io.width,
                                 .wide = config_needs_wide_activations(c)};
    return y->expert_out_norm ? add_normed_experts(x, c, y, w, &o) : x->ops->experts(x, &o);
}
int expert_io_add(struct exec *x, const struct config *c, const struct layer *y, struct work *w, float *out, int n) {
    return expert_io_add_some(x, c, y, y->experts, c->n_experts, w, out, n);
}

const float *expert_io_shared_in(const struct config *c, int layer, const struct work *w) {
    return config_has_ffn_in(c, layer) ? w->ffn_in : w->xn;
}
const float *expert_io_shared_weight(const struct config *c, int layer, const struct work *w) {
    return c->layer[layer].moe && config_weighs_shared(c) ? w->shared_weight : NULL;
}
