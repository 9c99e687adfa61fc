/* Attention residuals (Inkling 2). Each stream is the sum of the outputs of block_layers layers, the first that of the embedding; a block's output goes to the
 * latest one, and its input is a mix of all of them by op_pool. Layers that end a stream begin the next one with the output of their attention block.
 * Reference: transformers, models/inkling2. */
#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

enum { FIRST_PART, KEY_PART, VALUE_PART };
static const float pool_eps = 1e-6f; /* not the config's */

/* Adds w->x to the latest stream, or begins a stream with it, and clears it. Then mixes `queries` outputs. sources: streams so far. */
static int pool(struct exec *x, const struct config *c, struct work *w, float *const out[POOL_QUERIES_MOST], const float *query, int queries, int sources,
                bool begins, int n) {
    struct op_pool o = {.x = w->x,
                        .streams = w->streams,
                        .n = n,
                        .hidden = c->hidden,
                        .n_streams = c->streams.n,
                        .n_sources = sources,
                        .n_queries = queries,
                        .begins = begins,
                        .eps = pool_eps};
    for (int i = 0; i < queries; i++) o.out[i] = out[i], o.query[i] = query + (size_t)i * (size_t)c->hidden;
    return x->ops->pool(x, &o);
}

static int norm_part(struct exec *x, const struct config *c, const struct work *w, float *v, const float *weight, int n, int tag) {
    return x->ops->norm(x, &(struct op_norm){.out = v,
                                             .x = v,
                                             .w = weight,
                                             .rows = n,
                                             .dim = c->hidden,
                                             .ldx = c->hidden,
                                             .ldo = c->hidden,
                                             .eps = c->norm_eps,
                                             .w_dtype = DT_F32,
                                             .tag = tag,
                                             .bad = w->first_bad});
}

/* Streams that layers before this one have begun. */
static int streams_before(const struct config *c, int layer) { return (layer + c->streams.block_layers - 1) / c->streams.block_layers; }

int attention_residuals_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    const int parts = c->layer[layer].mixes_kv ? 3 : 1;
    const bool reads = !config_is_bare(c, layer);
    float *const out[POOL_QUERIES_MOST] = {w->xn, w->kv_in, w->kv_in + (size_t)n * (size_t)c->hidden};
    if (!layer) /* the embedding, as it is */
        for (int i = 0; i < parts; i++) TRY(rows_copy(x, out[i], c->hidden, w->x, c->hidden, n, c->hidden));
    TRY(pool(x, c, w, out, y->attn_pool, layer && reads ? parts : 0, streams_before(c, layer) + 1, !layer, n));
    if (!reads) return 0;
    TRY(norm_part(x, c, w, out[FIRST_PART], y->attn_norm, n, 2 * layer));
    if (parts == 1) return 0;
    TRY(norm_part(x, c, w, out[KEY_PART], y->kv_norm[0], n, 2 * layer));
    return norm_part(x, c, w, out[VALUE_PART], y->kv_norm[1], n, 2 * layer);
}

int attention_residuals_ffn(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    const bool begins = layer % c->streams.block_layers == 0;
    float *const out[POOL_QUERIES_MOST] = {w->xn};
    TRY(pool(x, c, w, out, y->ffn_pool, 1, streams_before(c, layer + 1) + 1, begins, n));
    return norm_part(x, c, w, w->xn, y->ffn_norm, n, 2 * layer + 1);
}

int attention_residuals_merge(struct exec *x, const struct weights *m, struct work *w, int n) {
    const struct config *c = &m->config;
    float *const out[POOL_QUERIES_MOST] = {w->xn};
    TRY(pool(x, c, w, out, m->head_pool, 1, streams_before(c, c->n_layers - 1) + 1, false, n)); /* the last layer is bare */
    return rows_copy(x, w->x, c->hidden, w->xn, c->hidden, n, c->hidden);
}
