#include "engine/layer/attention.h"

#include <assert.h>

/* --- Spans and planes ------------------------------------------------------------------------- */

struct span attention_sub_span(const struct span *s, int from, int n) {
    struct span p = *s;
    p.row += from, p.pos += from, p.n = n;
    return p;
}

int attention_together(const struct span *spans, int n_spans, int *n) {
    int end = 1;
    for (*n = spans->n; end < n_spans && *n + spans[end].n <= BATCH_INVARIANT_ROWS; end++) *n += spans[end].n;
    return end;
}

struct kv_plane attention_plane(struct kv_plane p, int row) {
    size_t width = (size_t)p.heads * (size_t)p.dim;
    assert(!p.blocks || !row);
    p.data = (char *)p.data + dtype_bytes(p.dtype, width * (size_t)row);
    if (p.scale) p.scale += (size_t)row * (size_t)p.heads;
    return p;
}

const struct op_address *attention_address(const struct span *s, int layer, int plane) {
    return s->addresses ? &s->addresses[layer * CACHE_PLANES + plane] : NULL;
}

int attention_store_rows(struct exec *x, const struct span *s, int layer, int plane, const float *rows, int ld) {
    return x->ops->kv_store(x, &(struct op_kv_store){.plane = s->cache[layer].p[plane],
                                                     .x = rows + (size_t)s->row * (size_t)ld,
                                                     .row0 = s->pos,
                                                     .n = s->n,
                                                     .ldx = ld,
                                                     .at = attention_address(s, layer, plane)});
}

/* --- Queries and results ---------------------------------------------------------------------- */

int attention_rotate(struct exec *x, const struct config *c, int layer, const struct work *w, float *v, int heads,
                     int ld, int head_ld, int n) {
    const bool second = c->layer[layer].rope == LAYER_ROPE_SECOND;
    const struct rope_config *rope = second ? &c->second_rope : &c->rope;
    if (c->layer[layer].rope == LAYER_ROPE_NONE) return 0;
    struct op_rope o = {.x = v,
                        .cos = second ? w->second_cos : w->cos,
                        .sin = second ? w->second_sin : w->sin,
                        .n = n,
                        .heads = heads,
                        .ld = ld,
                        .head_ld = head_ld,
                        .half = rope->dim / 2,
                        .interleaved = rope->interleaved};
    if (rope->fope_pairs) /* a row of cos and sin for each KV head, whose heads are one after the other */
        o.n *= c->n_kv_heads, o.heads /= c->n_kv_heads, o.ld = o.heads * head_ld;
    return x->ops->rope(x, &o);
}

int attention_scale_queries(struct exec *x, const struct config *c, int layer, const struct work *w, float *q, int ld,
                            int n) {
    const struct query_scale *s = &c->query_scale;
    if (s->slope == 0 || (s->no_rope_only && c->layer[layer].rope != LAYER_ROPE_NONE) ||
        (s->kind == SCALE_SMOOTH && c->layer[layer].window))
        return 0;
    return x->ops->scale(x, &(struct op_scale){.x = q,
                                               .pos = w->pos,
                                               .n = n,
                                               .m = ld,
                                               .ld = ld,
                                               .every = s->every,
                                               .shift = s->shift,
                                               .by = 1,
                                               .slope = s->slope,
                                               .kind = s->kind});
}

int attention_scale_heads(struct exec *x, const struct work *w, float *q, const float *slopes, const float *bases,
                          int heads, int dim, int n) {
    if (!slopes) return 0;
    return x->ops->scale(x, &(struct op_scale){.x = q,
                                               .pos = w->pos,
                                               .n = n,
                                               .m = heads * dim,
                                               .ld = heads * dim,
                                               .by = 1,
                                               .slopes = slopes,
                                               .bases = bases,
                                               .dim = dim});
}

int attention_select(struct exec *x, const struct config *c, int layer, const struct work *w, const struct span *s,
                     int plane, int step, int n_keys, float scale, int32_t *chosen) {
    const int width = c->index_heads * c->index_dim;
    return x->ops->select(
        x, &(struct op_select){.chosen = chosen,
                               .q = w->index_q + (size_t)s->row * (size_t)width,
                               .weight = c->index_by_group ? NULL
                                                           : w->index_weights + (size_t)s->row * (size_t)c->index_heads,
                               .k = s->cache[layer].p[plane],
                               .block = c->index_by_group ? c->index_block : 0,
                               .latest = c->index_latest,
                               .n = s->n,
                               .heads = c->index_heads,
                               .topk = c->index_topk,
                               .ldq = width,
                               .q_pos0 = s->pos,
                               .k_pos0 = step - 1,
                               .k_step = step,
                               .n_keys = n_keys,
                               .scale = scale,
                               .at = attention_address(s, layer, plane)});
}

/* The first piece is computed in place. Later pieces are computed in w->piece_out, as many rows at a time as fit, and
 * merged. */
int attention_by_pieces(struct exec *x, struct work *w, struct op_attention *o, int piece, float *lse) {
    if (piece != PIECE_ALL) o->lse = lse;
    if (piece & PIECE_FIRST) return x->ops->attention(x, o);
    int width = o->n_heads * o->v_dim, max_rows = (int)(w->piece_floats / (size_t)width);
    for (int at = 0; at < o->n; at += max_rows) {
        struct op_attention a = *o;
        size_t row = (size_t)at;
        a.n = o->n - at < max_rows ? o->n - at : max_rows;
        a.q += row * (size_t)o->ldq, a.q_pos0 += at;
        a.out = w->piece_out, a.ldo = width, a.lse = w->piece_lse;
        TRY(x->ops->attention(x, &a));
        TRY(x->ops->merge(x, &(struct op_merge){.out = o->out + row * (size_t)o->ldo,
                                                .lse = lse + row * (size_t)o->n_heads,
                                                .out2 = w->piece_out,
                                                .lse2 = w->piece_lse,
                                                .n = a.n,
                                                .heads = o->n_heads,
                                                .dim = o->v_dim,
                                                .ldo = o->ldo,
                                                .ldo2 = width}));
    }
    return 0;
}

int attention_project_gates(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    return y->attn_gate.data ? block_linear(x, c, w->fused, y->attn_gate.rows, w->xn, c->hidden, y->attn_gate,
                                            y->attn_gate_bias, n, false)
                             : 0;
}
int attention_gate_output(struct exec *x, const struct config *c, int layer, struct work *w, const struct span *s,
                          float *out) {
    const int heads = config_heads(c, layer), dim = config_head_dim(c, layer), v_dim = config_v_dim(c, layer);
    const bool in_query = c->attn_gate == ATTN_GATE_IN_QUERY, per_head = c->attn_gate == ATTN_GATE_HEAD;
    const int head_ld = in_query ? dim + v_dim : per_head ? 1 : v_dim; /* distance of the heads' gates in w->fused */
    if (c->head_out_norm) TRY(block_norm(x, c, out, v_dim, out, v_dim, NULL, NULL, s->n * heads, v_dim));
    if (!c->attn_gate) return 0;
    return x->ops->gate(
        x, &(struct op_gate){.y = out,
                             .g = w->fused + (size_t)s->row * (size_t)(heads * head_ld) + (in_query ? dim : 0),
                             .n = s->n,
                             .heads = heads,
                             .dim = v_dim,
                             .ldy = heads * v_dim,
                             .ldg = heads * head_ld,
                             .head_ldy = v_dim,
                             .head_ldg = head_ld,
                             .kind = c->attn_gate_kind,
                             .per_head = per_head});
}

/* --- Mixers with states ----------------------------------------------------------------------- */

float *attention_state(const struct span *s, int layer, int plane, int row) {
    return row < 0 ? NULL : (float *)attention_plane(s->cache[layer].p[plane], row).data;
}
int attention_advance_state(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            const struct span *s, attention_advance_fn advance) {
    const struct kv_state_step *v = &s->state_step;
    int from = v->from_row;
    if (v->mark) {
        TRY(advance(x, c, y, layer, w, s, s->row, v->mark, from, v->mark_row));
        from = v->mark_row;
    }
    return advance(x, c, y, layer, w, s, s->row + v->mark, s->n - v->mark, from, v->to_row);
}
int attention_no_queries(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         int n) {
    return 0;
}
