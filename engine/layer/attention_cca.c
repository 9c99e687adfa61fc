/* Compressed convolutional attention (ZAYA1): GQA whose queries and keys pass through two short convolutions, one
 * within channels and one within heads, and get the mean of the unconvolved query and key heads added. The second half
 * of the value dimensions is the previous token's. Earlier rows that convolutions and values need are a state. Source:
 * transformers, models/zaya.
 *
 * The second convolution is a product per head and tap. Its taps read the first convolution with delays, so both share
 * one state: the unconvolved rows. The bias of the first is part of the second's (weights.c), which makes rows before
 * the text zeros. */
#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

enum { KEYS, VALUES, STATE_QK, STATE_VALUES }; /* planes */
struct cca_dims {
    int q, k, qk, delayed; /* widths of all queries, of all keys, of both, of the delayed values */
    int taps, past;        /* taps of the second convolution; rows of the state */
    /* width of a row of w->mixed: the first convolution for each tap of the second, then the delayed values */
    int mixed;
};
static struct cca_dims cca_dims(const struct config *c) {
    const int q = c->n_heads * c->head_dim, k = c->n_kv_heads * c->head_dim;
    const int qk = q + k, delayed = k / 2, taps = c->cca.taps[1];
    return (struct cca_dims){.q = q,
                             .k = k,
                             .qk = qk,
                             .delayed = delayed,
                             .taps = taps,
                             .past = c->cca.taps[0] - 1 + taps - 1,
                             .mixed = taps * qk + delayed};
}
static int cca_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const struct cca_dims d = cca_dims(c);
    out[KEYS] = out[VALUES] = (struct cache_desc){.heads = c->n_kv_heads, .dim = c->head_dim};
    out[STATE_QK] = (struct cache_desc){.heads = d.past, .dim = d.qk, .fixed_rows = KV_STATES, .dtype = DT_F32};
    out[STATE_VALUES] = (struct cache_desc){.heads = 1, .dim = d.delayed, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return 4;
}

/* Fills w->mixed from the rows of queries and keys in w->fused and those of delayed values in w->z. Computes the first
 * convolution once for each tap of the second one, with that tap's delay; only the last call replaces the state. */
static int cca_advance(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *s, int row, int n, int from, int to) {
    const struct cca_dims d = cca_dims(c);
    const size_t at = (size_t)row;
    for (int j = 0; j < d.taps; j++)
        TRY(x->ops->conv(x, &(struct op_conv){.out = w->mixed + at * (size_t)d.mixed + (size_t)(j * d.qk),
                                              .x = w->fused + at * (size_t)d.qk,
                                              .w = y->mix_conv,
                                              .before = attention_state(s, layer, STATE_QK, from),
                                              .after = attention_state(s, layer, STATE_QK, to),
                                              .n = n,
                                              .channels = d.qk,
                                              .taps = c->cca.taps[0],
                                              .ldx = d.qk,
                                              .ldo = d.mixed,
                                              .is_linear = true,
                                              .is_peek = j < d.taps - 1,
                                              .delay = d.taps - 1 - j,
                                              .past = d.past,
                                              .at = attention_address(s, layer, STATE_QK)}));
    return x->ops->conv(x, &(struct op_conv){.out = w->mixed + at * (size_t)d.mixed + (size_t)(d.taps * d.qk),
                                             .x = w->z + at * (size_t)d.delayed,
                                             .before = attention_state(s, layer, STATE_VALUES, from),
                                             .after = attention_state(s, layer, STATE_VALUES, to),
                                             .n = n,
                                             .channels = d.delayed,
                                             .taps = 1,
                                             .ldx = d.delayed,
                                             .ldo = d.mixed,
                                             .is_linear = true,
                                             .delay = 1,
                                             .at = attention_address(s, layer, STATE_VALUES)});
}

/* q = (q + its key head) / 2, k = the mean of those of its group: from w->fused into w->q and k. w->att is scratch. */
static int add_means(struct exec *x, const struct config *c, struct work *w, float *k, int n) {
    const struct cca_dims d = cca_dims(c);
    const int dim = c->head_dim, groups = c->n_kv_heads, group_heads = c->n_heads / groups;
    TRY(rows_copy(x, w->q, d.q, w->fused, d.qk, n, d.q));
    for (int g = 0; g < groups; g++)
        TRY(rows_copy_heads(x, w->att + g * group_heads * dim, d.q, dim, w->fused + d.q + g * dim, d.qk, 0, n,
                            group_heads, dim));
    TRY(rows_add(x, w->q, w->att, n, d.q));
    TRY(rows_scale(x, w->q, 0.5f, n, d.q));
    for (int p = 0; p < group_heads; p++) {
        float *to = p ? w->att : k;
        TRY(rows_copy_heads(x, to, d.k, dim, w->q + p * dim, d.q, group_heads * dim, n, groups, dim));
        if (p) TRY(rows_add(x, k, to, n, d.k));
    }
    return rows_scale(x, k, 1 / (float)group_heads, n, d.k);
}

/* Adds one tap of the second convolution to n rows in `to`: of `heads` heads, the first of which is number first_head
 * of all queries and keys. */
static int add_tap(struct exec *x, const struct config *c, const struct layer *y, const struct work *w, int tap,
                   int first_head, int heads, float *to, int n) {
    const struct cca_dims d = cca_dims(c);
    const int dim = c->head_dim;
    const size_t row = (size_t)dim * sizeof(float);
    const struct mat m = {.data = y->cca_taps + ((size_t)tap * (size_t)d.qk + (size_t)(first_head * dim)) * (size_t)dim,
                          .stride = row,
                          .rows = dim,
                          .cols = dim,
                          .row_step = 1,
                          .dtype = DT_F32};
    return x->ops->linear(x, &(struct op_linear){.y = to,
                                                 .x = w->mixed + tap * d.qk + first_head * dim,
                                                 .w = m,
                                                 .n = n,
                                                 .ldx = d.mixed,
                                                 .ldy = heads * dim,
                                                 .accumulate = true,
                                                 .wide = true,
                                                 .batch = heads,
                                                 .batch_rows = dim,
                                                 .batch_x = dim,
                                                 .batch_y = dim});
}

/* Adds the convolutions and their bias to the means in v, norms each head to a length of sqrt(dim), and rotates it.
 * first_head: as in add_tap: 0 for the queries, the number of query heads for the keys, which also get a factor per
 * head. w->att is scratch. */
static int finish_heads(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        float *v, int first_head, int heads, int n) {
    const struct cca_dims d = cca_dims(c);
    const int dim = c->head_dim, all = heads * dim;
    const bool is_keys = first_head > 0;
    for (int j = 0; j < d.taps; j++) TRY(add_tap(x, c, y, w, j, first_head, heads, v, n));
    TRY(rows_copy(x, w->att, all, y->cca_bias + first_head * dim, 0, n, all));
    TRY(rows_add(x, v, w->att, n, all));
    TRY(rows_norm(x, v, dim, NULL, 1e-20f, n * heads, dim)); /* eps: no 0 / 0 */
    if (is_keys)
        TRY(x->ops->gate(x, &(struct op_gate){.y = v,
                                              .g = y->cca_temp,
                                              .n = n,
                                              .heads = heads,
                                              .dim = dim,
                                              .ldy = all,
                                              .head_ldy = dim,
                                              .head_ldg = 1,
                                              .kind = GATE_LINEAR,
                                              .per_head = true}));
    return attention_rotate(x, c, layer, w, v, heads, all, dim, n);
}

static int cca_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    const struct cca_dims d = cca_dims(c);
    float *const rows[2] = {w->kv, w->kv + (size_t)n * (size_t)d.k};
    TRY(block_linear_wide(x, w->fused, d.qk, w->xn, c->hidden, y->q, NULL, n));
    TRY(block_linear_wide(x, w->fused + d.q, d.qk, w->xn, c->hidden, y->k, NULL, n));
    TRY(block_linear_wide(x, rows[1], d.k, w->xn, c->hidden, y->v, NULL, n));
    TRY(block_linear_wide(x, w->z, d.delayed, w->xn, c->hidden, y->v_delayed, NULL, n));
    for (int i = 0; i < n_spans; i++) TRY(attention_advance_state(x, c, y, layer, w, &spans[i], cca_advance));
    TRY(rows_copy(x, rows[1] + d.delayed, d.k, w->mixed + d.taps * d.qk, d.mixed, n, d.delayed));
    TRY(add_means(x, c, w, rows[0], n));
    TRY(finish_heads(x, c, y, layer, w, w->q, 0, c->n_heads, n));
    TRY(finish_heads(x, c, y, layer, w, rows[0], c->n_heads, c->n_kv_heads, n));
    for (int i = 0; i < n_spans; i++)
        for (int p = KEYS; p <= VALUES; p++) TRY(attention_store_rows(x, &spans[i], layer, p, rows[p], d.k));
    return 0;
}

static int cca_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                      const struct span *s, struct key_range keys) {
    return attention_gqa.attend(x, c, y, layer, w, s, keys);
}

const struct attention_kind attention_cca = {.name = "cca",
                                             .is_recordable = true,
                                             .makes_queries_first = true,
                                             .cache_planes = cca_cache_planes,
                                             .store_kv = cca_store_kv,
                                             .make_queries = attention_no_queries,
                                             .attend = cca_attend};
