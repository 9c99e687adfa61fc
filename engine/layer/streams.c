#include "engine/layer/streams.h"

#include "engine/layer/block_linear.h"

/* With a residual scale r the stream is kept divided by r: blocks then add their outputs unscaled, and a norm of the
 * stream with eps / r^2 equals the norm of the unscaled stream with eps. */
float streams_eps(const struct config *c, int tag) {
    const float eps = c->residual_scale > 0 ? c->norm_eps / (c->residual_scale * c->residual_scale) : c->norm_eps;
    return c->divides_stream ? eps * (float)(tag + 1) : eps;
}

int streams_norm(struct exec *x, const struct config *c, const struct layer *y, struct work *w, const float *from,
                 int n, int tag) {
    const bool ffn = tag % 2;
    TRY(block_norm_rows(x, c, w->xn, c->hidden, from, c->hidden, ffn ? y->ffn_norm : y->attn_norm,
                        ffn ? y->ffn_norm_bias : y->attn_norm_bias, n, c->hidden, streams_eps(c, tag), tag,
                        w->first_bad));
    return config_norm_is_gated(c, tag / 2, ffn)
               ? block_gate_norm(x, c, w, w->xn, c->hidden, ffn ? y->ffn_norm_gate : y->attn_norm_gate, n, c->hidden)
               : 0;
}

/* --- One stream, w->x, to which blocks add their outputs -------------------------------------- */

static int direct_input(struct exec *x, const struct config *c, const struct layer *y, int tag, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    return streams_norm(x, c, y, w, w->x, n, tag);
}
static int direct_merge(struct exec *x, const struct weights *m, struct work *w, int n) { return 0; }
const struct streams_kind streams_direct = {direct_input, direct_merge};

const struct streams_kind *streams_of(const struct config *c) {
    const struct residual_streams *s = &c->streams;
    if (!s->n) return &streams_direct;
    if (s->is_plain) return &streams_plain;
    if (s->is_gated) return &streams_gated;
    return s->block_layers ? &streams_pooled : &streams_mixed;
}
