/* Grouped-query attention: each of n_kv_heads keys and values serves a group of query heads. */
#include "engine/layer/attention.h"

static int cache(const struct config *c, struct cache_desc *out) {
    out[0] = out[1] = (struct cache_desc){.heads = c->n_kv_heads, .dim = c->head_dim};
    return 2;
}

static int kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n) {
    int dim = c->head_dim, kd = c->n_kv_heads * dim;
    float *k = w->kv, *v = w->kv + (size_t)n * (size_t)kd;
    TRY(block_linear(x, k, kd, w->xn, c->hidden, y->k, y->k_bias, n, false));
    TRY(block_linear(x, v, kd, w->xn, c->hidden, y->v, y->v_bias, n, false));
    if (c->qk_norm) TRY(block_norm(x, k, dim, k, dim, y->k_norm, n * c->n_kv_heads, dim, c->norm_eps, 0, NULL));
    TRY(x->ops->rope(x, &(struct op_rope){.x = k,
                                          .cos = w->cos,
                                          .sin = w->sin,
                                          .n = n,
                                          .heads = c->n_kv_heads,
                                          .ld = kd,
                                          .head_ld = dim,
                                          .half = c->rope.dim / 2,
                                          .interleaved = c->rope.interleaved}));
    for (int i = 0; i < n_spans; i++) {
        const struct span *s = &spans[i];
        size_t row = (size_t)s->row;
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = s->k[layer], .x = k + row * (size_t)kd, .row0 = s->pos, .n = s->n, .ldx = kd}));
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = s->v[layer], .x = v + row * (size_t)kd, .row0 = s->pos, .n = s->n, .ldx = kd}));
    }
    return 0;
}

static int query(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    int dim = c->head_dim, qd = c->n_heads * dim;
    TRY(block_linear(x, w->q, qd, w->xn, c->hidden, y->q, y->q_bias, n, false));
    if (c->qk_norm) TRY(block_norm(x, w->q, dim, w->q, dim, y->q_norm, n * c->n_heads, dim, c->norm_eps, 0, NULL));
    return x->ops->rope(x, &(struct op_rope){.x = w->q,
                                             .cos = w->cos,
                                             .sin = w->sin,
                                             .n = n,
                                             .heads = c->n_heads,
                                             .ld = qd,
                                             .head_ld = dim,
                                             .half = c->rope.dim / 2,
                                             .interleaved = c->rope.interleaved});
}

static int attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys) {
    int dim = c->head_dim, qd = c->n_heads * dim;
    size_t row = (size_t)s->row;
    struct op_attention o = {.out = w->att + row * (size_t)qd,
                             .q = w->q + row * (size_t)qd,
                             .k = attention_plane(s->k[layer], keys.first),
                             .v = attention_plane(s->v[layer], keys.first),
                             .n = s->n,
                             .n_heads = c->n_heads,
                             .v_dim = dim,
                             .ldq = qd,
                             .ldo = qd,
                             .q_pos0 = s->pos,
                             .k_pos0 = keys.first,
                             .n_keys = keys.n,
                             .window = c->layer[layer].window,
                             .scale = c->attn_scale};
    return attention_pieces(x, w, &o, keys.piece, w->lse);
}

const struct attention attention_gqa = {.name = "gqa", .cache = cache, .kv = kv, .query = query, .attend = attend};
