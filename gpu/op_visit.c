#include <string.h>

#include "gpu/op.h"

/* Which memory each operation reads and writes. Byte counts span the first to the last byte that an operation may
 * access, so checking that span against an allocation checks the whole access. */

static int visit(op_visit_fn fn, void *ctx, const void *field, size_t bytes, enum visit_kind kind) {
    void *p;
    memcpy(&p, field, sizeof p);
    if (!p || !bytes) return 0;
    void *before = p;
    int r = fn(ctx, &p, bytes, kind);
    if (p != before) memcpy((void *)field, &p, sizeof p);
    return r;
}
#define VISIT(field, bytes, kind) \
    do { \
        int r_ = visit(fn, ctx, &(field), (size_t)(bytes), kind); \
        if (r_) return r_; \
    } while (0)

/* The visitor of an operation: o is its struct. */
#define VISITOR(name) static int visit_##name(struct op_##name *o, op_visit_fn fn, void *ctx)

/* n rows, ld floats apart, width floats used of each */
static size_t span(int n, int ld, size_t width) { return n > 0 ? ((size_t)(n - 1) * (size_t)ld + width) * 4 : 0; }

/* [n, heads, dim], rows ld apart, heads head_ld */
static size_t heads_span(int n, int ld, int heads, int head_ld, int dim) {
    return span(n, ld, (size_t)(heads - 1) * (size_t)head_ld + (size_t)dim);
}

static int visit_rows(struct mat *m, int32_t rows, op_visit_fn fn, void *ctx) {
    if (!m->data || rows < 1) return 0;
    size_t last = (size_t)(m->row0 + (rows - 1) * (m->row_step ? m->row_step : 1));
    VISIT(m->data, (size_t)(rows - 1) * m->stride + dtype_bytes(m->dtype, (size_t)m->cols), VISIT_CONST);
    if (m->scale) {
        size_t across = ((size_t)m->cols + (size_t)m->block_cols - 1) / (size_t)m->block_cols;
        VISIT(m->scale, dtype_bytes(m->scale_dtype, last / (size_t)m->block_rows * (size_t)m->scale_stride + across),
              VISIT_CONST);
    }
    VISIT(m->order, (size_t)m->cols * sizeof *m->order, VISIT_CONST);
    return 0;
}

int op_visit_mat(struct mat *m, op_visit_fn fn, void *ctx) { return visit_rows(m, m->rows, fn, ctx); }

static int visit_plane(struct kv_plane *p, int rows, op_visit_fn fn, void *ctx) {
    if (p->blocks) { /* addresses are in the block table */
        VISIT(p->blocks, (size_t)((rows + p->block_rows - 1) / p->block_rows) * sizeof *p->blocks, VISIT_IN);
        return 0;
    }
    VISIT(p->data, (size_t)rows * dtype_bytes(p->dtype, (size_t)p->heads * (size_t)p->dim), VISIT_KV);
    VISIT(p->scale, (size_t)rows * (size_t)p->heads * 4, VISIT_KV);
    return 0;
}

int op_visit_expert(struct expert *x, op_visit_fn fn, void *ctx) {
    int r = op_visit_mat(&x->gate, fn, ctx);
    if (!r) r = op_visit_mat(&x->up, fn, ctx);
    if (!r) r = op_visit_mat(&x->down, fn, ctx);
    if (r) return r;
    VISIT(x->gate_bias, (size_t)expert_inter(x) * 4, VISIT_CONST);
    VISIT(x->up_bias, (size_t)expert_inter(x) * 4, VISIT_CONST);
    VISIT(x->down_bias, (size_t)(x->is_transposed ? x->down.cols : x->down.rows) * 4, VISIT_CONST);
    return 0;
}

VISITOR(linear) {
    size_t heads = o->batch > 1 ? (size_t)o->batch - 1 : 0;
    int in = o->transposed ? o->w.rows : mat_x_cols(&o->w), out = o->transposed ? o->w.cols : o->w.rows;
    VISIT(o->x, span(o->n, o->ldx, (size_t)in) + heads * (size_t)o->batch_x * 4, VISIT_IN);
    VISIT(o->bias, ((size_t)out + heads * (size_t)out) * 4, VISIT_CONST);
    int r = visit_rows(&o->w, o->w.rows + (int32_t)heads * o->batch_rows, fn, ctx);
    if (r) return r;
    VISIT(o->y, span(o->n, o->ldy, (size_t)out) + heads * (size_t)o->batch_y * 4, VISIT_OUT);
    return 0;
}

VISITOR(expand) {
    size_t rows = (size_t)o->n * (size_t)o->heads;
    int r = visit_plane(&o->latent, o->row0 + o->n, fn, ctx);
    if (!r) r = op_visit_mat(&o->w, fn, ctx);
    if (r) return r;
    VISIT(o->k, rows * (size_t)(o->nope + o->latent.dim - o->w.cols) * 2, VISIT_OUT);
    VISIT(o->v, rows * (size_t)o->v_dim * 2, VISIT_OUT);
    return 0;
}

VISITOR(attention) {
    int r = visit_plane(&o->k, o->n_keys, fn, ctx);
    if (!r) r = visit_plane(&o->v, o->n_keys, fn, ctx);
    if (r) return r;
    VISIT(o->q, span(o->n, o->ldq, (size_t)o->n_heads * (size_t)o->k.dim), VISIT_IN);
    VISIT(o->q_pos, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->q_last, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->chosen, (size_t)o->n * (size_t)(o->chosen_lists ? o->chosen_lists : 1) * (size_t)o->n_chosen * 4,
          VISIT_IN);
    VISIT(o->at, sizeof *o->at, VISIT_IN);
    VISIT(o->v_at, sizeof *o->v_at, VISIT_IN);
    VISIT(o->sinks, (size_t)o->n_heads * 4, VISIT_CONST);
    VISIT(o->bias, (size_t)o->n * (size_t)o->n_heads * (size_t)o->extent * 4, VISIT_IN);
    VISIT(o->lse, (size_t)o->n * (size_t)o->n_heads * 4, VISIT_OUT);
    VISIT(o->out, span(o->n, o->ldo, (size_t)o->n_heads * (size_t)o->v_dim), VISIT_OUT);
    return 0;
}

VISITOR(experts) {
    size_t rows = (size_t)o->n * (size_t)o->hidden * 4, picks = (size_t)o->n * (size_t)o->topk * 4;
    VISIT(o->x, rows, VISIT_IN);
    VISIT(o->ids, picks, VISIT_IN);
    VISIT(o->weights, picks, VISIT_IN);
    VISIT(o->shared_weight, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->y, o->by_choice ? rows * (size_t)o->topk : rows, VISIT_OUT);
    return 0;
}

VISITOR(values) {
    const size_t picks = (size_t)o->n * (size_t)o->topk * 4;
    VISIT(o->x, span(o->n, o->ldx, (size_t)o->w.cols), VISIT_IN);
    VISIT(o->ids, picks, VISIT_IN);
    VISIT(o->weights, picks, VISIT_IN);
    int r = op_visit_mat(&o->w, fn, ctx);
    if (r) return r;
    VISIT(o->y, span(o->n, o->ldy, (size_t)o->dim), VISIT_OUT);
    return 0;
}

VISITOR(delta) {
    size_t heads = (size_t)o->v_heads, keys = (size_t)o->k_heads * (size_t)o->k_dim, values = heads * (size_t)o->v_dim;
    const size_t decays = o->rule == DELTA_CHANNELS ? heads * (size_t)o->k_dim : heads;
    VISIT(o->q, span(o->n, o->ldx, keys), VISIT_IN);
    VISIT(o->k, span(o->n, o->ldx, keys), VISIT_IN);
    VISIT(o->v, span(o->n, o->ldx, values), VISIT_IN);
    VISIT(o->b, span(o->n, o->ldg, heads), VISIT_IN);
    VISIT(o->skip, heads * 4, VISIT_CONST);
    VISIT(o->a, span(o->n, o->ldg, decays), VISIT_IN);
    VISIT(o->rate, heads * 4, VISIT_CONST);
    VISIT(o->dt, decays * 4, VISIT_CONST);
    VISIT(o->at, sizeof *o->at, VISIT_IN);
    VISIT(o->before, values * (size_t)o->k_dim * 4, VISIT_IN);
    VISIT(o->after, values * (size_t)o->k_dim * 4, VISIT_OUT);
    VISIT(o->out, span(o->n, o->ldo, values), VISIT_OUT);
    return 0;
}

VISITOR(scan) {
    const size_t channels = (size_t)o->channels, state = (size_t)o->state, all = state * channels * 4;
    VISIT(o->x, span(o->n, o->ldx, channels), VISIT_IN);
    VISIT(o->a, span(o->n, o->lda, channels), VISIT_IN);
    VISIT(o->b, span(o->n, o->ldbc, state), VISIT_IN);
    VISIT(o->c, span(o->n, o->ldbc, state), VISIT_IN);
    VISIT(o->rate, all, VISIT_CONST);
    VISIT(o->dt, channels * 4, VISIT_CONST);
    VISIT(o->skip, channels * 4, VISIT_CONST);
    VISIT(o->at, sizeof *o->at, VISIT_IN);
    VISIT(o->before, all, VISIT_IN);
    VISIT(o->after, all, VISIT_OUT);
    VISIT(o->out, span(o->n, o->ldo, channels), VISIT_OUT);
    return 0;
}

VISITOR(compress) {
    size_t series = o->overlap ? 2 : 1, width = series * (size_t)o->dim, state = 3 * width * 4;
    VISIT(o->kv, span(o->n, o->ldx, width), VISIT_IN);
    VISIT(o->gate, span(o->n, o->ldx, width), VISIT_IN);
    VISIT(o->bias, (size_t)o->ratio * width * 4, VISIT_CONST);
    VISIT(o->at, sizeof *o->at, VISIT_IN);
    VISIT(o->before, o->pos0 ? state : 0, VISIT_IN);
    VISIT(o->after, state, VISIT_OUT);
    VISIT(o->out, (size_t)op_compressed(o) * (size_t)o->dim * 4, VISIT_OUT);
    return 0;
}

VISITOR(mix) {
    size_t n = (size_t)o->n, s = (size_t)o->n_streams, row = n * (size_t)o->hidden * 4,
           weights = o->post ? (size_t)op_mix_weights(o->n_streams, o->iters) : s;
    VISIT(o->mix, n * weights * 4, VISIT_IN);
    VISIT(o->base, weights * 4, VISIT_CONST);
    VISIT(o->scale, o->post ? (size_t)op_mix_parts(o->iters) * 4 : 4, VISIT_CONST);
    VISIT(o->streams, s * row, VISIT_OUT);
    VISIT(o->post, n * s * 4, VISIT_OUT);
    VISIT(o->earlier, span(o->n, o->ld_earlier, s), VISIT_OUT);
    VISIT(o->in, row, VISIT_OUT);
    VISIT(o->out, row, VISIT_OUT);
    return 0;
}

VISITOR(embed) {
    int r = op_visit_mat(&o->table, fn, ctx);
    if (r) return r;
    VISIT(o->ids, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->out, (size_t)o->n * (size_t)o->table.cols * 4, VISIT_OUT);
    return 0;
}

VISITOR(norm) {
    const size_t weights = (size_t)o->dim * (size_t)(o->w_rows ? o->w_rows : 1);
    VISIT(o->w, dtype_bytes(o->w_dtype, weights), VISIT_CONST);
    VISIT(o->bias, dtype_bytes(o->w_dtype, weights), VISIT_CONST);
    VISIT(o->x, span(o->rows, o->ldx, (size_t)o->dim), VISIT_IN);
    VISIT(o->bad, 4, VISIT_COUNTER);
    VISIT(o->out, span(o->rows, o->ldo, (size_t)o->dim), VISIT_OUT);
    return 0;
}

VISITOR(rope_table) {
    VISIT(o->at, sizeof *o->at, VISIT_IN);
    VISIT(o->inv_freq, (size_t)o->half * (o->longest ? 8 : 4), VISIT_CONST);
    VISIT(o->pos, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->place, (size_t)o->n * 12, VISIT_IN);
    VISIT(o->length, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->cos, span(o->n, o->half, (size_t)o->half), VISIT_OUT);
    VISIT(o->sin, span(o->n, o->half, (size_t)o->half), VISIT_OUT);
    return 0;
}

VISITOR(rope) {
    VISIT(o->cos, span(o->n, o->half, (size_t)o->half), VISIT_IN);
    VISIT(o->sin, span(o->n, o->half, (size_t)o->half), VISIT_IN);
    VISIT(o->x, span(o->n, o->ld, (size_t)(o->heads - 1) * (size_t)o->head_ld + 2 * (size_t)o->half), VISIT_OUT);
    return 0;
}

VISITOR(kv_store) {
    VISIT(o->x, span(o->n, o->ldx, (size_t)o->plane.heads * (size_t)o->plane.dim), VISIT_IN);
    VISIT(o->at, sizeof *o->at, VISIT_IN);
    return visit_plane(&o->plane, o->row0 + o->n, fn, ctx);
}

VISITOR(kv_load) {
    int r = visit_plane(&o->plane, o->row0 + o->n, fn, ctx);
    if (r) return r;
    VISIT(o->out, span(o->n, o->ldo, (size_t)o->plane.heads * (size_t)o->plane.dim), VISIT_OUT);
    return 0;
}

VISITOR(select) {
    int r = visit_plane(&o->k, o->n_keys, fn, ctx);
    if (r) return r;
    VISIT(o->at, sizeof *o->at, VISIT_IN);
    VISIT(o->q, span(o->n, o->ldq, (size_t)o->heads * (size_t)o->k.dim), VISIT_IN);
    VISIT(o->weight, (size_t)o->n * (size_t)o->heads * 4, VISIT_IN);
    VISIT(o->among, (size_t)o->n * (size_t)o->n_among * 4, VISIT_IN);
    VISIT(o->chosen, (size_t)o->n * (size_t)op_select_lists(o) * (size_t)o->topk * 4, VISIT_OUT);
    return 0;
}

VISITOR(route) {
    const size_t all = (size_t)(o->n_experts + o->n_idle) * 4;
    VISIT(o->logits, (size_t)o->n * all, VISIT_IN);
    VISIT(o->bias, all, VISIT_CONST);
    VISIT(o->expert_scale, (size_t)o->n_experts * 4, VISIT_CONST);
    VISIT(o->idle, o->n_idle ? (size_t)o->n * 4 : 0, VISIT_OUT);
    VISIT(o->table, (size_t)o->vocab * (size_t)o->topk * 4, VISIT_CONST);
    VISIT(o->tokens, o->table ? (size_t)o->n * 4 : 0, VISIT_IN);
    VISIT(o->ids, (size_t)o->n * (size_t)o->topk * 4, VISIT_OUT);
    VISIT(o->weights, (size_t)o->n * (size_t)o->topk * 4, VISIT_OUT);
    return 0;
}

VISITOR(add) {
    VISIT(o->x, span(o->n, o->ldx ? o->ldx : o->m, (size_t)o->m), VISIT_IN);
    VISIT(o->y, (size_t)o->n * (size_t)o->m * 4, VISIT_OUT);
    return 0;
}

VISITOR(copy) {
    VISIT(o->x, heads_span(o->n, o->ldx, o->heads, o->head_ldx, o->dim), VISIT_IN);
    VISIT(o->y, heads_span(o->n, o->ldy, o->heads, o->head_ldy, o->dim), VISIT_OUT);
    return 0;
}

VISITOR(gate) {
    VISIT(o->g, heads_span(o->n, o->ldg, o->heads, o->head_ldg, o->per_head ? 1 : o->dim), VISIT_IN);
    VISIT(o->y, heads_span(o->n, o->ldy, o->heads, o->head_ldy, o->dim), VISIT_OUT);
    return 0;
}

VISITOR(scale) {
    VISIT(o->pos, o->slopes || o->slope != 0 ? (size_t)o->n * 4 : 0, VISIT_IN);
    VISIT(o->slopes, o->slopes ? (size_t)(o->m / o->dim) * 4 : 0, VISIT_CONST);
    VISIT(o->bases, o->slopes ? (size_t)(o->m / o->dim) * 4 : 0, VISIT_CONST);
    VISIT(o->x, span(o->n, o->ld, (size_t)o->m), VISIT_OUT);
    return 0;
}

VISITOR(conv) {
    size_t kept = (size_t)op_conv_past(o) * (size_t)o->channels * 4;
    VISIT(o->x, span(o->n, o->ldx, (size_t)o->channels), VISIT_IN);
    VISIT(o->w, (size_t)o->taps * (size_t)o->channels * 4, VISIT_CONST);
    VISIT(o->bias, (size_t)o->channels * 4, VISIT_CONST);
    VISIT(o->at, sizeof *o->at, VISIT_IN);
    VISIT(o->before, kept, VISIT_IN);
    if (!o->is_peek) VISIT(o->after, kept, VISIT_OUT);
    VISIT(o->out, span(o->n, o->ldo, (size_t)o->channels), VISIT_OUT);
    return 0;
}

VISITOR(spread) {
    size_t row = (size_t)o->n * (size_t)o->hidden * 4, streams = (size_t)o->n_streams;
    VISIT(o->x, row, VISIT_IN);
    VISIT(o->post, (size_t)o->n * streams * 4, VISIT_IN);
    VISIT(o->streams, streams * row, VISIT_OUT);
    return 0;
}

VISITOR(ngram) {
    const size_t kept = (size_t)(o->size - 1) * 4;
    VISIT(o->tokens, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->ids, (size_t)o->n_ids * 4, VISIT_CONST);
    VISIT(o->before, kept, VISIT_IN);
    VISIT(o->after, kept, VISIT_OUT);
    VISIT(o->rows, (size_t)o->n * (size_t)((o->size - 1) * o->per) * 4, VISIT_OUT);
    return 0;
}

VISITOR(relate) {
    const size_t heads = (size_t)o->n * (size_t)o->heads * 4;
    VISIT(o->x, heads * (size_t)o->dim, VISIT_IN);
    VISIT(o->y, heads * (size_t)o->dim, VISIT_IN);
    VISIT(o->out, heads, VISIT_OUT);
    return 0;
}

VISITOR(pool) {
    const size_t hidden = (size_t)o->hidden;
    const int used = o->n_sources + o->skip > o->into ? o->n_sources + o->skip : o->into + 1;
    VISIT(o->streams, span(o->n, o->n_streams * o->hidden, (size_t)used * hidden), VISIT_OUT);
    VISIT(o->x, (size_t)o->n * hidden * 4, VISIT_OUT);
    for (int q = 0; q < o->n_queries; q++) {
        VISIT(o->query[q], hidden * 4, VISIT_CONST);
        VISIT(o->out[q], (size_t)o->n * hidden * 4, VISIT_OUT);
    }
    return 0;
}

VISITOR(sort) {
    size_t picks = (size_t)o->n * (size_t)o->topk * 4;
    VISIT(o->ids, picks, VISIT_IN);
    VISIT(o->weights, picks, VISIT_IN);
    VISIT(o->offset, (size_t)(o->last - o->first + 1) * 4, VISIT_OUT);
    VISIT(o->token, picks, VISIT_OUT);
    VISIT(o->weight, picks, VISIT_OUT);
    return 0;
}

VISITOR(gather) {
    /* the index selects rows of x: only row 0 is known to be used */
    VISIT(o->index, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->x, (size_t)o->dim * 4, VISIT_IN);
    VISIT(o->out, (size_t)o->n * (size_t)o->dim * 4, VISIT_OUT);
    return 0;
}

VISITOR(top) {
    VISIT(o->x, ((size_t)(o->n - 1) * (size_t)o->ldx + (size_t)o->m) * 4, VISIT_IN);
    VISIT(o->top, (size_t)o->n * 4, VISIT_OUT);
    return 0;
}
VISITOR(remap) {
    VISIT(o->ids, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->map, (size_t)o->n_map * 4, VISIT_IN);
    VISIT(o->out, (size_t)o->n * 4, VISIT_OUT);
    return 0;
}

VISITOR(ffn) {
    size_t rows = (size_t)o->n * (size_t)o->hidden * 4;
    VISIT(o->x, rows, VISIT_IN);
    int r = op_visit_expert(&o->expert, fn, ctx);
    if (r) return r;
    VISIT(o->y, rows, VISIT_OUT);
    return 0;
}

VISITOR(group) {
    /* as for OP_GATHER, only row 0 is known to be used */
    VISIT(o->token, (size_t)o->begin[o->n] * 4, VISIT_IN);
    VISIT(o->weight, (size_t)o->begin[o->n] * 4, VISIT_IN);
    VISIT(o->x, (size_t)o->hidden * 4, VISIT_IN);
    VISIT(o->norm, (size_t)o->hidden * 4, VISIT_CONST);
    for (int k = 0; k < o->n; k++) {
        int r = op_visit_expert(&o->expert[k], fn, ctx);
        if (r) return r;
    }
    VISIT(o->y, (size_t)o->hidden * 4, VISIT_OUT);
    return 0;
}

VISITOR(scatter_add) {
    VISIT(o->index, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->weight, (size_t)o->n * 4, VISIT_IN);
    VISIT(o->x, (size_t)o->n * (size_t)o->dim * 4, VISIT_IN);
    VISIT(o->y, span(o->index ? 1 : o->n, o->ldy, (size_t)o->dim), VISIT_OUT);
    return 0;
}

VISITOR(merge) {
    size_t width = (size_t)o->heads * (size_t)o->dim, lse = (size_t)o->n * (size_t)o->heads * 4;
    VISIT(o->out2, span(o->n, o->ldo2, width), VISIT_IN);
    VISIT(o->lse2, lse, VISIT_IN);
    VISIT(o->lse, lse, VISIT_OUT);
    VISIT(o->out, span(o->n, o->ldo, width), VISIT_OUT);
    return 0;
}

VISITOR(transfer) {
    /* the device's side */
    if (o->to_host) VISIT(o->src, o->size, VISIT_IN);
    else VISIT(o->dst, o->size, VISIT_OUT);
    return 0;
}

VISITOR(round) {
    VISIT(o->x, span(o->n, o->ld, (size_t)o->m), VISIT_OUT);
    return 0;
}

#define VISIT_IN_PLACE(name) \
    VISITOR(name) { \
        VISIT(o->x, (size_t)o->n *(size_t)o->m * 4, VISIT_OUT); \
        return 0; \
    }
VISIT_IN_PLACE(sigmoid)
VISIT_IN_PLACE(clip)
VISIT_IN_PLACE(fill)
VISIT_IN_PLACE(softcap)

static int visit_parts(enum op_code code, union op_args *a, op_visit_fn fn, void *ctx) {
    for (int i = 0; i < op_parts(code, a); i++) {
        enum op_code part;
        union op_args *own = (union op_args *)op_part(code, a, i, &part);
        int r = op_visit(part, own, fn, ctx);
        if (r) return r;
    }
    return 0;
}
VISITOR(join) { return visit_parts(OP_JOIN, (union op_args *)o, fn, ctx); }
VISITOR(chain) { return visit_parts(OP_CHAIN, (union op_args *)o, fn, ctx); }
VISITOR(epilogue) { return visit_parts(OP_EPILOGUE, (union op_args *)o, fn, ctx); }

int op_visit(enum op_code code, union op_args *a, op_visit_fn fn, void *ctx) {
    switch (code) {
#define X(name, CODE, ...) \
    case OP_##CODE: return visit_##name(&a->name, fn, ctx);
        OPS_ALL(X)
#undef X
    case OP_COUNT: break;
    }
    return 0;
}
