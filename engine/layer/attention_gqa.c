/* Grouped-query attention: each of n_kv_heads key and value heads serves a group of query heads. */
#include "engine/layer/attention.h"

static int gqa_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    out[0] = out[1] = (struct cache_desc){.heads = c->n_kv_heads, .dim = c->head_dim};
    return 2;
}

/* Clips and norms n projected rows of `heads` keys, queries or values (norm NULL) before RoPE. */
static int gqa_clip_and_norm(struct exec *x, const struct config *c, float *v, int heads, const float *norm, int n) {
    const int dim = c->head_dim, all = heads * dim;
    if (c->qkv_clip > 0) TRY(x->ops->clip(x, &(struct op_clip){.x = v, .n = n, .m = all, .limit = c->qkv_clip}));
    if (!norm) return 0;
    if (c->qk_norm == QK_NORM_ALL) return block_norm(x, c, v, all, v, all, norm, NULL, n, all, 0, NULL);
    return block_norm(x, c, v, dim, v, dim, norm, NULL, n * heads, dim, 0, NULL);
}

static int gqa_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans,
                        int n) {
    int dim = c->head_dim, kd = c->n_kv_heads * dim;
    float *k = w->kv, *v = w->kv + (size_t)n * (size_t)kd;
    TRY(block_linear(x, c, k, kd, w->xn, c->hidden, y->k, y->k_bias, n, false));
    TRY(block_linear(x, c, v, kd, w->xn, c->hidden, y->v, y->v_bias, n, false));
    TRY(gqa_clip_and_norm(x, c, k, c->n_kv_heads, y->k_norm, n));
    TRY(gqa_clip_and_norm(x, c, v, c->n_kv_heads, NULL, n));
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
        TRY(x->ops->kv_store(
            x, &(struct op_kv_store){
                   .plane = s->cache[layer].p[0], .x = k + row * (size_t)kd, .row0 = s->pos, .n = s->n, .ldx = kd, .at = attention_address(s, layer, 0)}));
        TRY(x->ops->kv_store(
            x, &(struct op_kv_store){
                   .plane = s->cache[layer].p[1], .x = v + row * (size_t)kd, .row0 = s->pos, .n = s->n, .ldx = kd, .at = attention_address(s, layer, 1)}));
    }
    return 0;
}

static int gqa_make_queries(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    int dim = c->head_dim, qd = c->n_heads * dim, each = c->attn_gate ? 2 * dim : dim; /* a head's query, followed by its gate */
    float *q = c->attn_gate ? w->fused : w->q;
    TRY(block_linear(x, c, q, c->n_heads * each, w->xn, c->hidden, y->q, y->q_bias, n, false));
    if (c->attn_gate)
        TRY(x->ops->copy(
            x, &(struct op_copy){
                   .y = w->q, .x = q, .n = n, .heads = c->n_heads, .dim = dim, .ldx = c->n_heads * each, .ldy = qd, .head_ldx = each, .head_ldy = dim}));
    TRY(gqa_clip_and_norm(x, c, w->q, c->n_heads, y->q_norm, n));
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

static int gqa_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct key_range keys) {
    int dim = c->head_dim, qd = c->n_heads * dim;
    size_t row = (size_t)s->row;
    struct op_attention o = {.out = w->att + row * (size_t)qd,
                             .q = w->q + row * (size_t)qd,
                             .k = attention_plane(s->cache[layer].p[0], keys.first),
                             .v = attention_plane(s->cache[layer].p[1], keys.first),
                             .sinks = keys.piece & PIECE_FIRST ? y->sinks : NULL, /* added once */
                             .n = s->n,
                             .n_heads = c->n_heads,
                             .v_dim = dim,
                             .ldq = qd,
                             .ldo = qd,
                             .q_pos0 = s->pos,
                             .k_pos0 = keys.first,
                             .n_keys = keys.n,
                             .window = c->layer[layer].window,
                             .scale = c->attn_scale,
                             .at = attention_address(s, layer, 0),
                             .v_at = attention_address(s, layer, 1)};
    TRY(attention_by_pieces(x, w, &o, keys.piece, w->lse));
    if (!c->attn_gate || !(keys.piece & PIECE_LAST)) return 0;
    return x->ops->gate(x, &(struct op_gate){.y = o.out,
                                             .g = w->fused + 2 * row * (size_t)qd + (size_t)dim,
                                             .n = s->n,
                                             .heads = c->n_heads,
                                             .dim = dim,
                                             .ldy = qd,
                                             .ldg = 2 * qd,
                                             .head_ldy = dim,
                                             .head_ldg = 2 * dim});
}

const struct attention_kind attention_gqa = {
    .name = "gqa", .is_recordable = true, .cache_planes = gqa_cache_planes, .store_kv = gqa_store_kv, .make_queries = gqa_make_queries, .attend = gqa_attend};
