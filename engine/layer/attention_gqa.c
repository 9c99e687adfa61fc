/* Grouped-query attention: each of n_kv_heads key and value heads serves a group of query heads. */
#include "engine/layer/attention.h"

static int gqa_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    out[0] = out[1] = (struct cache_desc){.heads = c->n_kv_heads, .dim = c->head_dim};
    return 2;
}

static int gqa_clip(struct exec *x, const struct config *c, float *v, int width, int n) {
    return c->qkv_clip > 0 ? x->ops->clip(x, &(struct op_clip){.x = v, .n = n, .m = width, .limit = c->qkv_clip}) : 0;
}

/* Norms, clips and rotates n projected rows of `heads` keys or queries, in the family's order. */
static int gqa_norm_and_rotate(struct exec *x, const struct config *c, int layer, const struct work *w, float *v, int heads, const float *norm, int n) {
    const int dim = c->head_dim, all = heads * dim;
    if (c->qk_norm_after_rope) TRY(attention_rotate(x, c, layer, w, v, heads, all, dim, n));
    if (c->qk_norm == QK_NORM_ALL) TRY(block_norm(x, c, v, all, v, all, norm, NULL, n, all));
    if (c->qk_norm == QK_NORM_HEAD) TRY(block_norm(x, c, v, dim, v, dim, norm, NULL, n * heads, dim));
    TRY(gqa_clip(x, c, v, all, n));
    return c->qk_norm_after_rope ? 0 : attention_rotate(x, c, layer, w, v, heads, all, dim, n);
}

static int gqa_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans,
                        int n) {
    int dim = c->head_dim, kd = c->n_kv_heads * dim;
    float *k = w->kv, *v = w->kv + (size_t)n * (size_t)kd;
    TRY(block_linear(x, c, k, kd, w->xn, c->hidden, y->k, y->k_bias, n, false));
    TRY(block_linear(x, c, v, kd, w->xn, c->hidden, y->v, y->v_bias, n, false));
    TRY(gqa_norm_and_rotate(x, c, layer, w, k, c->n_kv_heads, y->k_norm, n));
    TRY(gqa_clip(x, c, v, kd, n));
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
    const bool gate_in_q = c->attn_gate == ATTN_GATE_IN_QUERY;
    int dim = c->head_dim, qd = c->n_heads * dim, each = gate_in_q ? 2 * dim : dim; /* a head's query, followed by its gate */
    float *q = gate_in_q ? w->fused : w->q;
    TRY(block_linear(x, c, q, c->n_heads * each, w->xn, c->hidden, y->q, y->q_bias, n, false));
    if (c->attn_gate == ATTN_GATE_ELEMENT) TRY(block_linear(x, c, w->fused, qd, w->xn, c->hidden, y->attn_gate, NULL, n, false));
    if (gate_in_q)
        TRY(x->ops->copy(
            x, &(struct op_copy){
                   .y = w->q, .x = q, .n = n, .heads = c->n_heads, .dim = dim, .ldx = c->n_heads * each, .ldy = qd, .head_ldx = each, .head_ldy = dim}));
    return gqa_norm_and_rotate(x, c, layer, w, w->q, c->n_heads, y->q_norm, n);
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
    const int parts = c->attn_gate == ATTN_GATE_IN_QUERY ? 2 : 1; /* a head's query, if it is there, then its gate */
    return x->ops->gate(x, &(struct op_gate){.y = o.out,
                                             .g = w->fused + (size_t)parts * row * (size_t)qd + (size_t)((parts - 1) * dim),
                                             .n = s->n,
                                             .heads = c->n_heads,
                                             .dim = dim,
                                             .ldy = qd,
                                             .ldg = parts * qd,
                                             .head_ldy = dim,
                                             .head_ldg = parts * dim});
}

const struct attention_kind attention_gqa = {
    .name = "gqa", .is_recordable = true, .cache_planes = gqa_cache_planes, .store_kv = gqa_store_kv, .make_queries = gqa_make_queries, .attend = gqa_attend};
