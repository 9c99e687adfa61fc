/* Several residual streams, which blocks mix with each other (hyper-connections): DeepSeek-V4 and V4.1, Hunyuan 4,
 * GLM-5.3-Flash. A block's output is added to each stream with a weight; a product of all streams gives these weights
 * and those of the mix that the next block reads. Reference: op_spread and op_mix (base/ops.h). */
#include "engine/layer/block_linear.h"
#include "engine/layer/gated_streams.h"
#include "engine/layer/rows.h"
#include "engine/layer/streams.h"

/* With passes_weights: the weights of the first block's input, any with sum 1, since the streams are equal. */
static int begin_weights(struct exec *x, const struct config *c, const struct work *w, int n) {
    const int s = c->streams.n;
    TRY(x->ops->fill(x, &(struct op_fill){.x = w->mix, .n = n, .m = s, .value = 1 / (float)s}));
    return rows_copy(x, w->carried + c->streams.weights_at, c->carried, w->mix, s, n, s);
}

/* Adds the previous block's output to each stream. first: no previous block, w->x is the
 * embedding. */
static int spread_output(struct exec *x, const struct config *c, const struct work *w, bool first, int n) {
    if (first && c->streams.passes_weights) TRY(begin_weights(x, c, w, n));
    return x->ops->spread(x, &(struct op_spread){.streams = w->streams,
                                                 .x = w->x,
                                                 .post = first ? NULL : w->post,
                                                 .n = n,
                                                 .hidden = c->hidden,
                                                 .n_streams = c->streams.n});
}
/* Mixes this block's input into w->xn and clears w->x. last: merges the streams into w->x. */
static int mix_streams(struct exec *x, const struct config *c, const struct stream_mix *m, struct work *w, bool last,
                       int n) {
    const int s = c->streams.n;
    const bool passes = c->streams.passes_weights, computes = !passes || !last;
    if (computes) TRY(block_linear_exact(x, w->mix, m->fn.rows, w->streams, s * c->hidden, m->fn, n));
    return x->ops->mix(x, &(struct op_mix){.in = last ? w->x : w->xn,
                                           .out = last ? NULL : w->x,
                                           .streams = w->streams,
                                           .post = last ? NULL : w->post,
                                           .mix = computes ? w->mix : NULL,
                                           .base = m->base,
                                           .scale = m->scale,
                                           .earlier = passes ? w->carried + c->streams.weights_at : NULL,
                                           .ld_earlier = c->carried,
                                           .n = n,
                                           .hidden = c->hidden,
                                           .n_streams = s,
                                           .iters = c->streams.iters,
                                           .eps = c->streams.eps,
                                           .magnitude = c->streams.magnitude,
                                           .post_eps = c->streams.post_eps,
                                           .norm_eps = c->norm_eps});
}

static int mixed_input(struct exec *x, const struct config *c, const struct layer *y, int tag, struct work *w,
                       const struct span *spans, int n_spans, int n) {
    TRY(spread_output(x, c, w, !tag, n));
    if (tag % 2 == 0) TRY(gated_streams_add_ngram(x, c, y, tag / 2, w, spans, n_spans, n));
    TRY(mix_streams(x, c, tag % 2 ? &y->ffn_mix : &y->attn_mix, w, false, n));
    return streams_norm(x, c, y, w, w->xn, n, tag);
}

/* Computes the mean of the streams in w->x. */
static int average_streams(struct exec *x, const struct config *c, struct work *w, int n) {
    const int s = c->streams.n, hidden = c->hidden;
    TRY(rows_copy(x, w->x, hidden, w->streams, s * hidden, n, hidden));
    for (int i = 1; i < s; i++)
        TRY(x->ops->add(
            x, &(struct op_add){.y = w->x, .x = w->streams + i * hidden, .n = n, .m = hidden, .ldx = s * hidden}));
    return rows_scale(x, w->x, 1 / (float)s, n, hidden);
}
static int mixed_merge(struct exec *x, const struct weights *m, struct work *w, int n) {
    const struct config *c = &m->config;
    TRY(spread_output(x, c, w, false, n));
    return c->streams.is_averaged ? average_streams(x, c, w, n) : mix_streams(x, c, &m->head_mix, w, true, n);
}
const struct streams_kind streams_mixed = {mixed_input, mixed_merge};
