#include "gpu/op.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} op_info[OP_COUNT] = {
    [OP_EMBED] = {"embed", sizeof(struct op_embed)},
    [OP_NORM] = {"norm", sizeof(struct op_norm)},
    [OP_LINEAR] = {"linear", sizeof(struct op_linear)},
    [OP_ROPE_TABLE] = {"rope_table", sizeof(struct op_rope_table)},
    [OP_ROPE] = {"rope", sizeof(struct op_rope)},
    [OP_KV_STORE] = {"kv_store", sizeof(struct op_kv_store)},
    [OP_KV_LOAD] = {"kv_load", sizeof(struct op_kv_load)},
    [OP_ATTENTION] = {"attention", sizeof(struct op_attention)},
    [OP_SELECT] = {"select", sizeof(struct op_select)},
    [OP_ROUTE] = {"route", sizeof(struct op_route)},
    [OP_EXPERTS] = {"experts", sizeof(struct op_experts)},
    [OP_ADD] = {"add", sizeof(struct op_add)},
    [OP_SIGMOID] = {"sigmoid", sizeof(struct op_sigmoid)},
    [OP_CLIP] = {"clip", sizeof(struct op_clip)},
    [OP_FILL] = {"fill", sizeof(struct op_fill)},
    [OP_SOFTCAP] = {"softcap", sizeof(struct op_softcap)},
    [OP_COPY] = {"copy", sizeof(struct op_copy)},
    [OP_SORT] = {"sort", sizeof(struct op_sort)},
    [OP_GATHER] = {"gather", sizeof(struct op_gather)},
    [OP_FFN] = {"ffn", sizeof(struct op_ffn)},
    [OP_SCATTER_ADD] = {"scatter_add", sizeof(struct op_scatter_add)},
    [OP_MERGE] = {"merge", sizeof(struct op_merge)},
    [OP_GATE] = {"gate", sizeof(struct op_gate)},
    [OP_SCALE] = {"scale", sizeof(struct op_scale)},
    [OP_CONV] = {"conv", sizeof(struct op_conv)},
    [OP_DELTA] = {"delta", sizeof(struct op_delta)},
    [OP_SCAN] = {"scan", sizeof(struct op_scan)},
    [OP_COMPRESS] = {"compress", sizeof(struct op_compress)},
    [OP_SPREAD] = {"spread", sizeof(struct op_spread)},
    [OP_MIX] = {"mix", sizeof(struct op_mix)},
    [OP_NGRAM] = {"ngram", sizeof(struct op_ngram)},
    [OP_RELATE] = {"relate", sizeof(struct op_relate)},
    [OP_ROUND] = {"round", sizeof(struct op_round)},
    [OP_POOL] = {"pool", sizeof(struct op_pool)},
    [OP_EXPAND] = {"expand", sizeof(struct op_expand)},
    [OP_GROUP] = {"group", sizeof(struct op_group)},
    [OP_TRANSFER] = {"transfer", sizeof(struct op_transfer)},
    [OP_JOIN] = {"join", sizeof(struct op_join)},
    [OP_CHAIN] = {"chain", sizeof(struct op_chain)},
};

const char *op_name(enum op_code c) { return op_info[c].name; }
size_t op_size(enum op_code c) { return op_info[c].size; }

int op_parts(enum op_code code, const union op_args *a) {
    return code == OP_JOIN ? a->join.n : code == OP_CHAIN ? a->chain.n : 1;
}
const union op_args *op_part(enum op_code code, const union op_args *a, int i, enum op_code *part) {
    *part = code == OP_JOIN ? OP_LINEAR : code == OP_CHAIN ? a->chain.step[i].code : code;
    return code == OP_JOIN    ? (const union op_args *)&a->join.linear[i]
           : code == OP_CHAIN ? (const union op_args *)&a->chain.step[i].args
                              : a;
}

int op_run(struct exec *x, enum op_code code, const void *args) {
    struct op_exec *o = (struct op_exec *)x;
    return o->run(o, code, args);
}

#define ENTRY(name, CODE) \
    static int run_##name(struct exec *x, const struct op_##name *a) { return op_run(x, CODE, a); }
ENTRY(embed, OP_EMBED)
ENTRY(norm, OP_NORM)
ENTRY(linear, OP_LINEAR)
ENTRY(rope_table, OP_ROPE_TABLE)
ENTRY(rope, OP_ROPE)
ENTRY(kv_store, OP_KV_STORE)
ENTRY(kv_load, OP_KV_LOAD)
ENTRY(attention, OP_ATTENTION)
ENTRY(select, OP_SELECT)
ENTRY(route, OP_ROUTE)
ENTRY(experts, OP_EXPERTS)
ENTRY(add, OP_ADD)
ENTRY(sigmoid, OP_SIGMOID)
ENTRY(clip, OP_CLIP)
ENTRY(fill, OP_FILL)
ENTRY(softcap, OP_SOFTCAP)
ENTRY(copy, OP_COPY)
ENTRY(merge, OP_MERGE)
ENTRY(gate, OP_GATE)
ENTRY(scale, OP_SCALE)
ENTRY(conv, OP_CONV)
ENTRY(delta, OP_DELTA)
ENTRY(scan, OP_SCAN)
ENTRY(compress, OP_COMPRESS)
ENTRY(spread, OP_SPREAD)
ENTRY(mix, OP_MIX)
ENTRY(ngram, OP_NGRAM)
ENTRY(relate, OP_RELATE)
ENTRY(pool, OP_POOL)
ENTRY(round, OP_ROUND)
ENTRY(expand, OP_EXPAND)

void op_exec_init(struct op_exec *x, const char *name,
                  int (*run)(struct op_exec *, enum op_code, const union op_args *), const _Atomic int *cancel) {
    x->table = (struct ops){
        .name = name,
        .embed = run_embed,
        .norm = run_norm,
        .linear = run_linear,
        .rope_table = run_rope_table,
        .rope = run_rope,
        .kv_store = run_kv_store,
        .kv_load = run_kv_load,
        .attention = run_attention,
        .select = run_select,
        .route = run_route,
        .experts = run_experts,
        .add = run_add,
        .sigmoid = run_sigmoid,
        .clip = run_clip,
        .fill = run_fill,
        .softcap = run_softcap,
        .copy = run_copy,
        .merge = run_merge,
        .gate = run_gate,
        .scale = run_scale,
        .conv = run_conv,
        .delta = run_delta,
        .scan = run_scan,
        .compress = run_compress,
        .spread = run_spread,
        .mix = run_mix,
        .ngram = run_ngram,
        .relate = run_relate,
        .pool = run_pool,
        .round = run_round,
        .expand = run_expand,
    };
    x->base = (struct exec){.ops = &x->table, .cancel = cancel};
    x->run = run;
}

/* The visitor. Byte counts span the first to the last byte that an operation may access, so checking that span against
 * an allocation checks the whole access. */

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

/* n rows, ld floats apart, width floats used of each */
static size_t span(int n, int ld, size_t width) { return n > 0 ? ((size_t)(n - 1) * (size_t)ld + width) * 4 : 0; }

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

static int visit_linear(struct op_linear *a, op_visit_fn fn, void *ctx) {
    size_t heads = a->batch > 1 ? (size_t)a->batch - 1 : 0;
    int in = a->transposed ? a->w.rows : mat_x_cols(&a->w), out = a->transposed ? a->w.cols : a->w.rows;
    VISIT(a->x, span(a->n, a->ldx, (size_t)in) + heads * (size_t)a->batch_x * 4, VISIT_IN);
    VISIT(a->bias, ((size_t)out + heads * (size_t)out) * 4, VISIT_CONST);
    int r = visit_rows(&a->w, a->w.rows + (int32_t)heads * a->batch_rows, fn, ctx);
    if (r) return r;
    VISIT(a->y, span(a->n, a->ldy, (size_t)out) + heads * (size_t)a->batch_y * 4, VISIT_OUT);
    return 0;
}

static int visit_expand(struct op_expand *a, op_visit_fn fn, void *ctx) {
    size_t rows = (size_t)a->n * (size_t)a->heads;
    int r = visit_plane(&a->latent, a->row0 + a->n, fn, ctx);
    if (!r) r = op_visit_mat(&a->w, fn, ctx);
    if (r) return r;
    VISIT(a->k, rows * (size_t)(a->nope + a->latent.dim - a->w.cols) * 2, VISIT_OUT);
    VISIT(a->v, rows * (size_t)a->v_dim * 2, VISIT_OUT);
    return 0;
}

static int visit_attention(struct op_attention *a, op_visit_fn fn, void *ctx) {
    int r = visit_plane(&a->k, a->n_keys, fn, ctx);
    if (!r) r = visit_plane(&a->v, a->n_keys, fn, ctx);
    if (r) return r;
    VISIT(a->q, span(a->n, a->ldq, (size_t)a->n_heads * (size_t)a->k.dim), VISIT_IN);
    VISIT(a->q_pos, (size_t)a->n * 4, VISIT_IN);
    VISIT(a->chosen, (size_t)a->n * (size_t)(a->chosen_lists ? a->chosen_lists : 1) * (size_t)a->n_chosen * 4,
          VISIT_IN);
    VISIT(a->at, sizeof *a->at, VISIT_IN);
    VISIT(a->v_at, sizeof *a->v_at, VISIT_IN);
    VISIT(a->sinks, (size_t)a->n_heads * 4, VISIT_CONST);
    VISIT(a->bias, (size_t)a->n * (size_t)a->n_heads * (size_t)a->extent * 4, VISIT_IN);
    VISIT(a->lse, (size_t)a->n * (size_t)a->n_heads * 4, VISIT_OUT);
    VISIT(a->out, span(a->n, a->ldo, (size_t)a->n_heads * (size_t)a->v_dim), VISIT_OUT);
    return 0;
}

static int visit_experts(struct op_experts *a, op_visit_fn fn, void *ctx) {
    size_t rows = (size_t)a->n * (size_t)a->hidden * 4, picks = (size_t)a->n * (size_t)a->topk * 4;
    VISIT(a->x, rows, VISIT_IN);
    VISIT(a->ids, picks, VISIT_IN);
    VISIT(a->weights, picks, VISIT_IN);
    VISIT(a->shared_weight, (size_t)a->n * 4, VISIT_IN);
    VISIT(a->y, a->by_choice ? rows * (size_t)a->topk : rows, VISIT_OUT);
    return 0;
}

/* [n, heads, dim], rows ld apart, heads head_ld */
static size_t heads_span(int n, int ld, int heads, int head_ld, int dim) {
    return span(n, ld, (size_t)(heads - 1) * (size_t)head_ld + (size_t)dim);
}

static int visit_delta(struct op_delta *a, op_visit_fn fn, void *ctx) {
    size_t heads = (size_t)a->v_heads, keys = (size_t)a->k_heads * (size_t)a->k_dim, values = heads * (size_t)a->v_dim;
    const size_t decays = a->rule == DELTA_CHANNELS ? heads * (size_t)a->k_dim : heads;
    VISIT(a->q, span(a->n, a->ldx, keys), VISIT_IN);
    VISIT(a->k, span(a->n, a->ldx, keys), VISIT_IN);
    VISIT(a->v, span(a->n, a->ldx, values), VISIT_IN);
    VISIT(a->b, span(a->n, a->ldg, heads), VISIT_IN);
    VISIT(a->skip, heads * 4, VISIT_CONST);
    VISIT(a->a, span(a->n, a->ldg, decays), VISIT_IN);
    VISIT(a->rate, heads * 4, VISIT_CONST);
    VISIT(a->dt, decays * 4, VISIT_CONST);
    VISIT(a->at, sizeof *a->at, VISIT_IN);
    VISIT(a->before, values * (size_t)a->k_dim * 4, VISIT_IN);
    VISIT(a->after, values * (size_t)a->k_dim * 4, VISIT_OUT);
    VISIT(a->out, span(a->n, a->ldo, values), VISIT_OUT);
    return 0;
}

static int visit_scan(struct op_scan *a, op_visit_fn fn, void *ctx) {
    const size_t channels = (size_t)a->channels, state = (size_t)a->state, all = state * channels * 4;
    VISIT(a->x, span(a->n, a->ldx, channels), VISIT_IN);
    VISIT(a->a, span(a->n, a->lda, channels), VISIT_IN);
    VISIT(a->b, span(a->n, a->ldbc, state), VISIT_IN);
    VISIT(a->c, span(a->n, a->ldbc, state), VISIT_IN);
    VISIT(a->rate, all, VISIT_CONST);
    VISIT(a->dt, channels * 4, VISIT_CONST);
    VISIT(a->skip, channels * 4, VISIT_CONST);
    VISIT(a->at, sizeof *a->at, VISIT_IN);
    VISIT(a->before, all, VISIT_IN);
    VISIT(a->after, all, VISIT_OUT);
    VISIT(a->out, span(a->n, a->ldo, channels), VISIT_OUT);
    return 0;
}

static int visit_compress(struct op_compress *a, op_visit_fn fn, void *ctx) {
    size_t series = a->overlap ? 2 : 1, width = series * (size_t)a->dim, state = 3 * width * 4;
    VISIT(a->kv, span(a->n, a->ldx, width), VISIT_IN);
    VISIT(a->gate, span(a->n, a->ldx, width), VISIT_IN);
    VISIT(a->bias, (size_t)a->ratio * width * 4, VISIT_CONST);
    VISIT(a->at, sizeof *a->at, VISIT_IN);
    VISIT(a->before, a->pos0 ? state : 0, VISIT_IN);
    VISIT(a->after, state, VISIT_OUT);
    VISIT(a->out, (size_t)op_compressed(a) * (size_t)a->dim * 4, VISIT_OUT);
    return 0;
}

static int visit_mix(struct op_mix *a, op_visit_fn fn, void *ctx) {
    size_t n = (size_t)a->n, s = (size_t)a->n_streams, row = n * (size_t)a->hidden * 4,
           weights = a->post ? (size_t)op_mix_weights(a->n_streams, a->iters) : s;
    VISIT(a->mix, n * weights * 4, VISIT_IN);
    VISIT(a->base, weights * 4, VISIT_CONST);
    VISIT(a->scale, a->post ? (size_t)op_mix_parts(a->iters) * 4 : 4, VISIT_CONST);
    VISIT(a->streams, s * row, VISIT_OUT);
    VISIT(a->post, n * s * 4, VISIT_OUT);
    VISIT(a->earlier, span(a->n, a->ld_earlier, s), VISIT_OUT);
    VISIT(a->in, row, VISIT_OUT);
    VISIT(a->out, row, VISIT_OUT);
    return 0;
}

int op_visit(enum op_code code, union op_args *a, op_visit_fn fn, void *ctx) {
    switch (code) {
    case OP_EMBED: {
        struct op_embed *o = &a->embed;
        int r = op_visit_mat(&o->table, fn, ctx);
        if (r) return r;
        VISIT(o->ids, (size_t)o->n * 4, VISIT_IN);
        VISIT(o->out, (size_t)o->n * (size_t)o->table.cols * 4, VISIT_OUT);
        return 0;
    }
    case OP_NORM: {
        struct op_norm *o = &a->norm;
        VISIT(o->w, dtype_bytes(o->w_dtype, (size_t)o->dim), VISIT_CONST);
        VISIT(o->bias, dtype_bytes(o->w_dtype, (size_t)o->dim), VISIT_CONST);
        VISIT(o->x, span(o->rows, o->ldx, (size_t)o->dim), VISIT_IN);
        VISIT(o->bad, 4, VISIT_COUNTER);
        VISIT(o->out, span(o->rows, o->ldo, (size_t)o->dim), VISIT_OUT);
        return 0;
    }
    case OP_LINEAR: return visit_linear(&a->linear, fn, ctx);
    case OP_ROPE_TABLE: {
        struct op_rope_table *o = &a->rope_table;
        VISIT(o->at, sizeof *o->at, VISIT_IN);
        VISIT(o->inv_freq, (size_t)o->half * (o->longest ? 8 : 4), VISIT_CONST);
        VISIT(o->pos, (size_t)o->n * 4, VISIT_IN);
        VISIT(o->length, (size_t)o->n * 4, VISIT_IN);
        VISIT(o->cos, span(o->n, o->half, (size_t)o->half), VISIT_OUT);
        VISIT(o->sin, span(o->n, o->half, (size_t)o->half), VISIT_OUT);
        return 0;
    }
    case OP_ROPE: {
        struct op_rope *o = &a->rope;
        VISIT(o->cos, span(o->n, o->half, (size_t)o->half), VISIT_IN);
        VISIT(o->sin, span(o->n, o->half, (size_t)o->half), VISIT_IN);
        VISIT(o->x, span(o->n, o->ld, (size_t)(o->heads - 1) * (size_t)o->head_ld + 2 * (size_t)o->half), VISIT_OUT);
        return 0;
    }
    case OP_KV_STORE: {
        struct op_kv_store *o = &a->kv_store;
        VISIT(o->x, span(o->n, o->ldx, (size_t)o->plane.heads * (size_t)o->plane.dim), VISIT_IN);
        VISIT(o->at, sizeof *o->at, VISIT_IN);
        return visit_plane(&o->plane, o->row0 + o->n, fn, ctx);
    }
    case OP_KV_LOAD: {
        struct op_kv_load *o = &a->kv_load;
        int r = visit_plane(&o->plane, o->row0 + o->n, fn, ctx);
        if (r) return r;
        VISIT(o->out, span(o->n, o->ldo, (size_t)o->plane.heads * (size_t)o->plane.dim), VISIT_OUT);
        return 0;
    }
    case OP_ATTENTION: return visit_attention(&a->attention, fn, ctx);
    case OP_SELECT: {
        struct op_select *o = &a->select;
        int r = visit_plane(&o->k, o->n_keys, fn, ctx);
        if (r) return r;
        VISIT(o->at, sizeof *o->at, VISIT_IN);
        VISIT(o->q, span(o->n, o->ldq, (size_t)o->heads * (size_t)o->k.dim), VISIT_IN);
        VISIT(o->weight, (size_t)o->n * (size_t)o->heads * 4, VISIT_IN);
        VISIT(o->among, (size_t)o->n * (size_t)o->n_among * 4, VISIT_IN);
        VISIT(o->chosen, (size_t)o->n * (size_t)op_select_lists(o) * (size_t)o->topk * 4, VISIT_OUT);
        return 0;
    }
    case OP_ROUTE: {
        struct op_route *o = &a->route;
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
    case OP_EXPERTS: return visit_experts(&a->experts, fn, ctx);
    case OP_ADD:
        VISIT(a->add.x, span(a->add.n, a->add.ldx ? a->add.ldx : a->add.m, (size_t)a->add.m), VISIT_IN);
        VISIT(a->add.y, (size_t)a->add.n * (size_t)a->add.m * 4, VISIT_OUT);
        return 0;
    case OP_COPY:
        VISIT(
            a->copy.x,
            span(a->copy.n, a->copy.ldx, (size_t)(a->copy.heads - 1) * (size_t)a->copy.head_ldx + (size_t)a->copy.dim),
            VISIT_IN);
        VISIT(
            a->copy.y,
            span(a->copy.n, a->copy.ldy, (size_t)(a->copy.heads - 1) * (size_t)a->copy.head_ldy + (size_t)a->copy.dim),
            VISIT_OUT);
        return 0;
    case OP_GATE:
        VISIT(a->gate.g,
              heads_span(a->gate.n, a->gate.ldg, a->gate.heads, a->gate.head_ldg, a->gate.per_head ? 1 : a->gate.dim),
              VISIT_IN);
        VISIT(a->gate.y, heads_span(a->gate.n, a->gate.ldy, a->gate.heads, a->gate.head_ldy, a->gate.dim), VISIT_OUT);
        return 0;
    case OP_SCALE:
        VISIT(a->scale.pos, a->scale.slopes || a->scale.slope != 0 ? (size_t)a->scale.n * 4 : 0, VISIT_IN);
        VISIT(a->scale.slopes, a->scale.slopes ? (size_t)(a->scale.m / a->scale.dim) * 4 : 0, VISIT_CONST);
        VISIT(a->scale.bases, a->scale.slopes ? (size_t)(a->scale.m / a->scale.dim) * 4 : 0, VISIT_CONST);
        VISIT(a->scale.x, span(a->scale.n, a->scale.ld, (size_t)a->scale.m), VISIT_OUT);
        return 0;
    case OP_CONV: {
        struct op_conv *o = &a->conv;
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
    case OP_DELTA: return visit_delta(&a->delta, fn, ctx);
    case OP_SCAN: return visit_scan(&a->scan, fn, ctx);
    case OP_COMPRESS: return visit_compress(&a->compress, fn, ctx);
    case OP_SPREAD: {
        struct op_spread *o = &a->spread;
        size_t row = (size_t)o->n * (size_t)o->hidden * 4, streams = (size_t)o->n_streams;
        VISIT(o->x, row, VISIT_IN);
        VISIT(o->post, (size_t)o->n * streams * 4, VISIT_IN);
        VISIT(o->streams, streams * row, VISIT_OUT);
        return 0;
    }
    case OP_MIX: return visit_mix(&a->mix, fn, ctx);
    case OP_NGRAM: {
        struct op_ngram *o = &a->ngram;
        const size_t kept = (size_t)(o->size - 1) * 4;
        VISIT(o->tokens, (size_t)o->n * 4, VISIT_IN);
        VISIT(o->ids, (size_t)o->n_ids * 4, VISIT_CONST);
        VISIT(o->before, kept, VISIT_IN);
        VISIT(o->after, kept, VISIT_OUT);
        VISIT(o->rows, (size_t)o->n * (size_t)((o->size - 1) * o->per) * 4, VISIT_OUT);
        return 0;
    }
    case OP_ROUND: VISIT(a->round.x, span(a->round.n, a->round.ld, (size_t)a->round.m), VISIT_OUT); return 0;
    case OP_RELATE: {
        struct op_relate *o = &a->relate;
        const size_t heads = (size_t)o->n * (size_t)o->heads * 4;
        VISIT(o->x, heads * (size_t)o->dim, VISIT_IN);
        VISIT(o->y, heads * (size_t)o->dim, VISIT_IN);
        VISIT(o->out, heads, VISIT_OUT);
        return 0;
    }
    case OP_POOL: {
        struct op_pool *o = &a->pool;
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
    case OP_EXPAND: return visit_expand(&a->expand, fn, ctx);
    case OP_SIGMOID: VISIT(a->sigmoid.x, (size_t)a->sigmoid.n * (size_t)a->sigmoid.m * 4, VISIT_OUT); return 0;
    case OP_CLIP: VISIT(a->clip.x, (size_t)a->clip.n * (size_t)a->clip.m * 4, VISIT_OUT); return 0;
    case OP_FILL: VISIT(a->fill.x, (size_t)a->fill.n * (size_t)a->fill.m * 4, VISIT_OUT); return 0;
    case OP_SOFTCAP: VISIT(a->softcap.x, (size_t)a->softcap.n * (size_t)a->softcap.m * 4, VISIT_OUT); return 0;
    case OP_SORT: {
        struct op_sort *o = &a->sort;
        size_t picks = (size_t)o->n * (size_t)o->topk * 4;
        VISIT(o->ids, picks, VISIT_IN);
        VISIT(o->weights, picks, VISIT_IN);
        VISIT(o->offset, (size_t)(o->last - o->first + 1) * 4, VISIT_OUT);
        VISIT(o->token, picks, VISIT_OUT);
        VISIT(o->weight, picks, VISIT_OUT);
        return 0;
    }
    case OP_GATHER: /* the index selects rows of x: only row 0 is known to be used */
        VISIT(a->gather.index, (size_t)a->gather.n * 4, VISIT_IN);
        VISIT(a->gather.x, (size_t)a->gather.dim * 4, VISIT_IN);
        VISIT(a->gather.out, (size_t)a->gather.n * (size_t)a->gather.dim * 4, VISIT_OUT);
        return 0;
    case OP_FFN: {
        size_t rows = (size_t)a->ffn.n * (size_t)a->ffn.hidden * 4;
        VISIT(a->ffn.x, rows, VISIT_IN);
        int r = op_visit_expert(&a->ffn.expert, fn, ctx);
        if (r) return r;
        VISIT(a->ffn.y, rows, VISIT_OUT);
        return 0;
    }
    case OP_GROUP: { /* as for OP_GATHER, only row 0 is known to be used */
        struct op_group *o = &a->group;
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
    case OP_SCATTER_ADD:
        VISIT(a->scatter_add.index, (size_t)a->scatter_add.n * 4, VISIT_IN);
        VISIT(a->scatter_add.weight, (size_t)a->scatter_add.n * 4, VISIT_IN);
        VISIT(a->scatter_add.x, (size_t)a->scatter_add.n * (size_t)a->scatter_add.dim * 4, VISIT_IN);
        VISIT(a->scatter_add.y,
              span(a->scatter_add.index ? 1 : a->scatter_add.n, a->scatter_add.ldy, (size_t)a->scatter_add.dim),
              VISIT_OUT);
        return 0;
    case OP_MERGE: {
        struct op_merge *o = &a->merge;
        size_t width = (size_t)o->heads * (size_t)o->dim, lse = (size_t)o->n * (size_t)o->heads * 4;
        VISIT(o->out2, span(o->n, o->ldo2, width), VISIT_IN);
        VISIT(o->lse2, lse, VISIT_IN);
        VISIT(o->lse, lse, VISIT_OUT);
        VISIT(o->out, span(o->n, o->ldo, width), VISIT_OUT);
        return 0;
    }
    case OP_TRANSFER: /* the device's side */
        if (a->transfer.to_host) VISIT(a->transfer.src, a->transfer.size, VISIT_IN);
        else VISIT(a->transfer.dst, a->transfer.size, VISIT_OUT);
        return 0;
    case OP_JOIN:
    case OP_CHAIN:
        for (int i = 0; i < op_parts(code, a); i++) {
            enum op_code part;
            union op_args *own = (union op_args *)op_part(code, a, i, &part);
            int r = op_visit(part, own, fn, ctx);
            if (r) return r;
        }
        return 0;
    case OP_COUNT: break;
    }
    return 0;
}
