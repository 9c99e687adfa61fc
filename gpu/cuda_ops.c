/* Which kernel an operation takes. Workspace of an operation is sized before anything is enqueued, so that growing it
 * (in the first layer) is the only wait. */
#include <string.h>

#include "gpu/cuda.h"
#include "gpu/cuda_kernels.h"

enum { GEMV_MOST = 8, BLAS_LEAST = 64, BLAS_TOKENS = 4096 };
static const size_t blas_weights = (size_t)128 << 20; /* of one matrix as BF16; larger ones go in pieces */
static const size_t ffn_space = (size_t)128 << 20;    /* of a group's activations; larger groups go in pieces */

static const size_t attention_space = (size_t)128 << 20; /* of keys and values as BF16; more go in groups of heads */

static size_t aligned(size_t n) { return (n + 255) & ~(size_t)255; }

/* BF16 through cuBLAS, except where the operation asks for float32: the router's choice must not hang on a rounding. */
static bool through_blas(const struct cuda_stream *s, const struct cuda_linear *l) {
    return s->blas && !l->exact && l->n >= BLAS_LEAST && !l->transposed && l->batch <= 1;
}
static int piece_rows(const struct mat *w) {
    size_t rows = blas_weights / ((size_t)w->cols * 2);
    return rows < 1 ? 1 : rows > (size_t)w->rows ? w->rows : (int)rows;
}
static int piece_tokens(int n) { return n < BLAS_TOKENS ? n : BLAS_TOKENS; }

static size_t linear_space(const struct cuda_stream *s, const struct cuda_linear *l) {
    if (!through_blas(s, l)) return 0;
    return aligned((size_t)piece_rows(&l->w) * (size_t)l->w.cols * 2) + aligned((size_t)piece_tokens(l->n) * (size_t)l->w.cols * 2);
}

static int linear_blas(struct cuda_stream *s, const struct cuda_linear *l, char *space) {
    int rows = piece_rows(&l->w), tokens = piece_tokens(l->n);
    char *xs = space + aligned((size_t)rows * (size_t)l->w.cols * 2);
    for (int r = 0; r < l->w.rows; r += rows) {
        struct mat w = mat_rows(l->w, r, r + rows < l->w.rows ? r + rows : l->w.rows);
        const void *wb = space;
        if (w.dtype == DT_BF16 && !w.scale && w.stride == (size_t)w.cols * 2) wb = w.data;
        else if (cuda_check(s->g, cuda_mat_to_bf16(s->s, space, w), "dequantise")) return ERR_RUNTIME;
        for (int t = 0; t < l->n; t += tokens) {
            int n = t + tokens < l->n ? tokens : l->n - t;
            float *y = l->y + (size_t)t * (size_t)l->ldy + (size_t)r;
            if (cuda_check(s->g, cuda_to_bf16(s->s, xs, l->x + (size_t)t * (size_t)l->ldx, n, w.cols, l->ldx), "activations"))
                return ERR_RUNTIME;
            if (cuda_blas_gemm(s->blas, y, xs, wb, n, w.rows, w.cols, l->ldy, l->accumulate))
                return cuda_check(s->g, cudaErrorUnknown, "cublasGemmEx");
        }
    }
    return l->bias ? cuda_check(s->g, cuda_bias(s->s, l->y, l->bias, l->n, l->w.rows, l->ldy), "bias") : 0;
}

static int linear_in(struct cuda_stream *s, const struct cuda_linear *l, char *space) {
    if (l->n < 1) return 0;
    if (!cuda_mat_known(l->w.dtype)) return cuda_check(s->g, cudaErrorNotSupported, dtype_name(l->w.dtype));
    if (through_blas(s, l)) return linear_blas(s, l, space);
    if (l->n <= GEMV_MOST && !l->transposed) return cuda_check(s->g, cuda_gemv(s->s, l), "gemv");
    if (!l->exact && cuda_gemm_mma_fits(l)) return cuda_check(s->g, cuda_gemm_mma(s->s, l), "gemm_mma");
    return cuda_check(s->g, cuda_gemm_f32(s->s, l), "gemm_f32");
}

static int linear(struct cuda_stream *s, const struct op_linear *a) {
    struct cuda_linear l = {a->y,          a->x,          a->bias,  a->w,          a->n,       a->ldx,     a->ldy,
                            a->accumulate, a->transposed, a->batch, a->batch_rows, a->batch_x, a->batch_y, a->exact};
    char *space = cuda_space(s, linear_space(s, &l));
    if (!space && linear_space(s, &l)) return ERR_RUNTIME;
    return linear_in(s, &l, space);
}

/* One SwiGLU feed-forward in pieces of tokens: gate and up side by side, silu * mul, down. */
struct ffn {
    struct cuda_linear gate, up, down;
    int piece, inter;
    size_t gate_up, act, scratch; /* where they lie in the workspace, and its end */
    size_t size;
};
static struct ffn ffn_plan(const struct cuda_stream *s, const struct expert *e, int n, size_t base) {
    struct ffn f = {.inter = e->gate.rows};
    size_t piece = ffn_space / (12 * (size_t)f.inter);
    f.piece = piece < 64 ? 64 : piece > (size_t)n ? n : (int)piece;
    f.gate = (struct cuda_linear){.w = e->gate, .n = f.piece, .ldx = e->gate.cols, .ldy = 2 * f.inter};
    f.up = (struct cuda_linear){.w = e->up, .n = f.piece, .ldx = e->up.cols, .ldy = 2 * f.inter};
    f.down = (struct cuda_linear){.w = e->down, .n = f.piece, .ldx = f.inter, .ldy = e->down.rows};
    f.gate_up = base;
    f.act = f.gate_up + aligned((size_t)f.piece * 2 * (size_t)f.inter * 4);
    f.scratch = f.act + aligned((size_t)f.piece * (size_t)f.inter * 4);
    size_t a = linear_space(s, &f.gate), b = linear_space(s, &f.up), c = linear_space(s, &f.down);
    f.size = f.scratch + (a > b ? (a > c ? a : c) : b > c ? b : c);
    return f;
}
static int ffn_run(struct cuda_stream *s, struct ffn *f, float *y, const float *x, int n, char *space) {
    float *gate_up = (float *)(space + f->gate_up), *act = (float *)(space + f->act);
    for (int t = 0; t < n; t += f->piece) {
        int m = t + f->piece < n ? f->piece : n - t;
        f->gate.n = f->up.n = f->down.n = m;
        f->gate.x = f->up.x = x + (size_t)t * (size_t)f->gate.ldx;
        f->gate.y = gate_up;
        f->up.y = gate_up + f->inter;
        f->down.x = act;
        f->down.y = y + (size_t)t * (size_t)f->down.ldy;
        int r = linear_in(s, &f->gate, space + f->scratch);
        if (!r) r = linear_in(s, &f->up, space + f->scratch);
        if (!r) r = cuda_check(s->g, cuda_silu_mul(s->s, act, gate_up, m, f->inter), "silu_mul");
        if (!r) r = linear_in(s, &f->down, space + f->scratch);
        if (r) return r;
    }
    return 0;
}
static int ffn(struct cuda_stream *s, const struct op_ffn *a) {
    struct ffn f = ffn_plan(s, &a->expert, a->n, 0);
    char *space = a->n > 0 ? cuda_space(s, f.size) : NULL;
    if (a->n < 1) return 0;
    return space ? ffn_run(s, &f, a->y, a->x, a->n, space) : ERR_RUNTIME;
}

/* Experts that are resident on the device: groups of tokens one expert after the other, in rising order, then the shared
 * one. The host reads the sizes of the groups once. (Stream-loading does the same steps itself, expert by expert.) */
static int experts(struct cuda_stream *s, const struct op_experts *a) {
    if (a->n < 1) return 0;
    size_t row = (size_t)a->hidden * 4, picks = (size_t)a->n * (size_t)a->topk, size = 0;
    size_t at_offset = 0, at_token = aligned(((size_t)a->n_experts + 1) * 4), at_weight = at_token + aligned(picks * 4);
    size_t at_x = at_weight + aligned(picks * 4), at_y = at_x + aligned((size_t)a->n * row), base = at_y + aligned((size_t)a->n * row);
    for (int i = -1; i < (a->ids ? a->n_experts : 0); i++) {
        const struct expert *e = i < 0 ? a->shared : &a->experts[i];
        if (!e || !e->gate.data) continue;
        size_t need = ffn_plan(s, e, a->n, base).size;
        size = need > size ? need : size;
    }
    char *space = cuda_space(s, size ? size : base);
    if (!space) return ERR_RUNTIME;
    float *gx = (float *)(space + at_x), *gy = (float *)(space + at_y);
    int32_t *offset = (int32_t *)(space + at_offset), *token = (int32_t *)(space + at_token);
    float *weight = (float *)(space + at_weight);
    int r = 0;
    if (a->ids) {
        int32_t host[1025];
        if (a->n_experts > 1024) return cuda_check(s->g, cudaErrorInvalidValue, "more than 1024 experts");
        r = cuda_check(s->g, cuda_sort(s->s, offset, token, weight, a->ids, a->weights, a->n, a->topk, 0, a->n_experts), "sort");
        if (!r)
            r = cuda_check(s->g, cudaMemcpyAsync(host, offset, ((size_t)a->n_experts + 1) * 4, cudaMemcpyDeviceToHost, s->s),
                           "group sizes");
        if (!r) r = cuda_check(s->g, cudaStreamSynchronize(s->s), "running");
        for (int i = 0; i < a->n_experts && !r; i++) {
            int n = host[i + 1] - host[i];
            const struct expert *e = &a->experts[i];
            if (n < 1) continue;
            if (!e->gate.data) return cuda_check(s->g, cudaErrorInvalidValue, "a chosen expert is not resident");
            struct ffn f = ffn_plan(s, e, n, base);
            r = cuda_check(s->g, cuda_gather(s->s, gx, a->x, token + host[i], n, a->hidden, a->hidden), "gather");
            if (!r) r = ffn_run(s, &f, gy, gx, n, space);
            if (!r)
                r = cuda_check(s->g, cuda_scatter_add(s->s, a->y, gy, token + host[i], weight + host[i], n, a->hidden, a->hidden),
                               "scatter");
        }
    }
    if (!r && a->shared) {
        struct ffn f = ffn_plan(s, a->shared, a->n, base);
        r = ffn_run(s, &f, gy, a->x, a->n, space);
        if (!r) r = cuda_check(s->g, cuda_scatter_add(s->s, a->y, gy, NULL, a->shared_weight, a->n, a->hidden, a->hidden), "scatter");
    }
    return r;
}

static struct cuda_plane plane(const struct kv_plane *p) { return (struct cuda_plane){p->data, p->scale, p->heads, p->dim, p->dtype}; }

/* Keys are split where the blocks would leave processors idle: decode, and the tail of short prompts. */
static int splits_for(const struct cuda_stream *s, long blocks, long keys, long least) {
    long want = 2L * s->g->processors, splits = blocks >= want ? 1 : (want + blocks - 1) / blocks, most = (keys + least - 1) / least;
    return (int)(splits < most ? splits : most > 1 ? most : 1);
}
static size_t parts_size(const struct cuda_attention *a) {
    size_t rows = (size_t)a->splits * (size_t)a->n * (size_t)a->n_heads;
    return a->splits > 1 ? aligned(rows * (size_t)a->v_dim * 4) + aligned(rows * 4) : 0;
}
static void parts_at(struct cuda_attention *a, char *space) {
    a->part = (float *)space;
    a->part_lse = (float *)(space + aligned((size_t)a->splits * (size_t)a->n * (size_t)a->n_heads * (size_t)a->v_dim * 4));
}

/* Through tensor cores, which read BF16: other planes are copied first, as many KV heads at a time as fit the workspace. */
static int attention_mma(struct cuda_stream *s, struct cuda_attention *a, bool direct) {
    int group = a->n_heads / a->k.heads, rows = cuda_attention_mma_rows(a), heads = a->k.heads;
    int k_dim = (a->k.dim + 7) & ~7, v_dim = (a->v_dim + 7) & ~7;
    bool one = a->k.data == a->v.data && a->k.dim == a->v.dim;
    size_t keys = (size_t)a->n_keys, k_size = direct ? 0 : keys * (size_t)k_dim * 2, v_size = direct || one ? 0 : keys * (size_t)v_dim * 2;
    if (k_size && attention_space / (k_size + v_size) < (size_t)heads)
        heads = attention_space < k_size + v_size ? 1 : (int)(attention_space / (k_size + v_size));
    struct cuda_attention b = *a;
    b.n_heads = heads * group;
    b.splits = splits_for(s, ((long)a->n * group + rows - 1) / rows * heads, a->n_keys, 256);
    size_t k_all = aligned(k_size * (size_t)heads), v_all = aligned(v_size * (size_t)heads), size = k_all + v_all + parts_size(&b);
    char *space = size ? cuda_space(s, size) : NULL;
    if (!space && size) return ERR_RUNTIME;
    if (b.splits > 1) parts_at(&b, space + k_all + v_all);
    for (int h = 0; h < a->k.heads; h += heads) {
        int here = a->k.heads - h < heads ? a->k.heads - h : heads;
        size_t skip = (size_t)(h * group);
        b.n_heads = here * group;
        b.q = a->q + skip * (size_t)a->q_dim;
        b.out = a->out + skip * (size_t)a->v_dim;
        b.lse = a->lse ? a->lse + skip : NULL;
        b.sinks = a->sinks ? a->sinks + skip : NULL;
        if (!direct) {
            b.k = (struct cuda_plane){space, NULL, here, k_dim, DT_BF16};
            b.v = one ? b.k : (struct cuda_plane){space + k_all, NULL, here, v_dim, DT_BF16};
            struct cuda_plane v = a->v;
            if (cuda_check(s->g, cuda_plane_to_bf16(s->s, space, a->k, h, here, a->n_keys, k_dim), "keys")) return ERR_RUNTIME;
            if (!one && cuda_check(s->g, cuda_plane_to_bf16(s->s, space + k_all, v, h, here, a->n_keys, v_dim), "values")) return ERR_RUNTIME;
        }
        if (cuda_check(s->g, cuda_attention_mma(s->s, &b), "attention_mma")) return ERR_RUNTIME;
    }
    return 0;
}

static int attention(struct cuda_stream *s, const struct op_attention *o) {
    struct cuda_attention a = {.out = o->out,
                               .q = o->q,
                               .k = plane(&o->k),
                               .v = plane(&o->v),
                               .sinks = o->sinks,
                               .lse = o->lse,
                               .q_pos = o->q_pos,
                               .n = o->n,
                               .n_heads = o->n_heads,
                               .q_dim = o->k.dim,
                               .v_dim = o->v_dim,
                               .ldq = o->ldq,
                               .ldo = o->ldo,
                               .lse_ld = o->n_heads,
                               .q_pos0 = o->q_pos0,
                               .k_pos0 = o->k_pos0,
                               .n_keys = o->n_keys,
                               .window = o->window,
                               .scale = o->scale,
                               .splits = 1};
    if (o->n < 1) return 0;
    /* copying the keys pays from a few queries on; a cache in BF16 needs no copy */
    bool direct = cuda_attention_mma_direct(&a);
    if (!s->g->f32 && o->n_keys > 0 && cuda_attention_mma_rows(&a) && (direct || o->n >= 16)) return attention_mma(s, &a, direct);
    int group = o->n_heads / o->k.heads, heads = cuda_attention_f32_heads(&a);
    a.splits = splits_for(s, (long)o->n * o->k.heads * ((group + heads - 1) / heads), o->n_keys, 128);
    if (a.splits > 1) {
        char *space = cuda_space(s, parts_size(&a));
        if (!space) return ERR_RUNTIME;
        parts_at(&a, space);
    }
    return cuda_check(s->g, cuda_attention_f32(s->s, &a), "attention_f32");
}

static int norm(struct cuda_stream *s, const struct op_norm *a) {
    if (a->rows < 1) return 0;
    return cuda_check(s->g,
                      cuda_norm(s->s, a->out, a->x, a->w, a->bias, a->w_dtype, a->rows, a->dim, a->ldx, a->ldo, a->eps, a->add,
                                a->layer_norm, a->tag, (int *)a->bad),
                      "norm");
}
static int route(struct cuda_stream *s, const struct op_route *o) {
    struct cuda_route r = {o->ids, o->weights, o->logits, o->bias, o->n, o->n_experts, o->topk, o->n_group, o->topk_group,
        o->score == SCORE_SIGMOID, o->group_top2, o->norm, o->scale};
    return o->n < 1 ? 0 : cuda_check(s->g, cuda_route_tokens(s->s, &r), "route");
}

int cuda_run(struct op_exec *x, enum op_code code, const union op_args *u) {
    struct cuda_stream *s = (struct cuda_stream *)x;
    struct cuda *g = s->g;
    cudaError_t r = cudaSuccess;
    if (s->cancel && atomic_load_explicit(s->cancel, memory_order_relaxed)) return ERR_CANCELLED;
    if (g->base.b->error(&g->base, NULL)) return ERR_RUNTIME;
    if (cuda_check(g, cudaSetDevice(g->card), "device")) return ERR_RUNTIME;
    if (!s->blas_tried && !g->f32) s->blas = cuda_blas_open(s->s);
    s->blas_tried = true;
    switch (code) {
    case OP_EMBED:
        if (!cuda_mat_known(u->embed.table.dtype)) r = cudaErrorNotSupported;
        else if (u->embed.n > 0) r = cuda_embed(s->s, u->embed.out, u->embed.ids, u->embed.table, u->embed.n);
        break;
    case OP_NORM: return norm(s, &u->norm);
    case OP_LINEAR: return linear(s, &u->linear);
    case OP_ROPE_TABLE: {
        const struct op_rope_table *a = &u->rope_table;
        if (a->n > 0) r = cuda_rope_table(s->s, a->cos, a->sin, a->pos, a->inv_freq, a->n, a->half, a->mscale);
        break;
    }
    case OP_ROPE: {
        const struct op_rope *a = &u->rope;
        if (a->n > 0) r = cuda_rope(s->s, a->x, a->cos, a->sin, a->n, a->heads, a->ld, a->head_ld, a->half, a->interleaved, a->inverse);
        break;
    }
    case OP_KV_STORE: {
        const struct op_kv_store *a = &u->kv_store;
        if (a->n > 0) r = cuda_kv_store(s->s, plane(&a->plane), a->x, a->row0, a->n, a->ldx);
        break;
    }
    case OP_KV_LOAD: {
        const struct op_kv_load *a = &u->kv_load;
        if (a->n > 0) r = cuda_kv_load(s->s, plane(&a->plane), a->out, a->row0, a->n, a->ldo);
        break;
    }
    case OP_ATTENTION: return attention(s, &u->attention);
    case OP_ROUTE: return route(s, &u->route);
    case OP_EXPERTS: return experts(s, &u->experts);
    case OP_ADD:
        if (u->add.n > 0) r = cuda_add(s->s, u->add.y, u->add.x, (size_t)u->add.n * (size_t)u->add.m);
        break;
    case OP_SIGMOID:
        if (u->sigmoid.n > 0) r = cuda_sigmoid(s->s, u->sigmoid.x, (size_t)u->sigmoid.n * (size_t)u->sigmoid.m);
        break;
    case OP_COPY: {
        const struct op_copy *a = &u->copy;
        if (a->n > 0) r = cuda_copy(s->s, a->y, a->x, a->n, a->heads, a->dim, a->ldx, a->ldy, a->head_ldx, a->head_ldy);
        break;
    }
    case OP_SORT: {
        const struct op_sort *a = &u->sort;
        r = cuda_sort(s->s, a->offset, a->token, a->weight, a->ids, a->weights, a->n, a->topk, a->first, a->last);
        break;
    }
    case OP_GATHER:
        if (u->gather.n > 0) r = cuda_gather(s->s, u->gather.out, u->gather.x, u->gather.index, u->gather.n, u->gather.dim, u->gather.ldx);
        break;
    case OP_FFN: return ffn(s, &u->ffn);
    case OP_SCATTER_ADD: {
        const struct op_scatter_add *a = &u->scatter_add;
        if (a->n > 0) r = cuda_scatter_add(s->s, a->y, a->x, a->index, a->weight, a->n, a->dim, a->ldy);
        break;
    }
    case OP_MERGE: {
        const struct op_merge *a = &u->merge;
        if (a->n > 0) r = cuda_merge(s->s, a->out, a->lse, a->out2, a->lse2, a->n, a->heads, a->dim, a->ldo, a->ldo2);
        break;
    }
    case OP_COUNT: return ERR_RUNTIME;
    }
    return cuda_check(g, r, op_name(code));
}
