/* Selects the kernel of a product and sizes its workspace. The workspace is sized before anything is enqueued, so that
 * growing it (in the first layer) is the only wait. */
#include <stdio.h>

#include "base/log.h"
#include "gpu/cuda.h"
#include "gpu/cuda_path.h"

enum {
    BLAS_MIN_TOKENS = 64, /* with gemm=cublas, or without tiles for the format */
    PASS_TOKENS = 4096,   /* per pass, to bound the workspace */
};
static const size_t BLAS_WEIGHTS = (size_t)128 << 20; /* of one matrix as BF16; larger ones are split */
/* for cuBLAS itself: what its makers advise for sm_90, the most */
static const size_t BLAS_SPACE = (size_t)32 << 20;

/* The kernels of a product: the launcher of this name in cuda_kernels.h, or cuBLAS. */
enum path {
    PATH_SKINNY,
    PATH_FEW,
    PATH_GEMV,
    PATH_SKINNY_TRANSPOSED,
    PATH_GEMM_F32,
    PATH_GEMM_MMA,
    PATH_TILES,
    PATH_TILES_FP8,
    PATH_BLAS,
    PATH_BLAS_FP8
};

static bool is_dense_bf16(const struct mat *w) {
    return w->dtype == DT_BF16 && !w->scale && w->stride == (size_t)w->cols * 2;
}

/* cuBLASLt requirements: FP8 in 128 x 128 blocks, rows a multiple of 16 bytes, outputs a multiple of 4. */
static bool blas_fp8_fits(const struct cuda_stream *s, const struct mat *w) {
    return s->g->sm == 90 && cuda_blas_has_fp8(s->g->blas) && w->scale && w->block_rows == 128 &&
           w->block_cols == 128 && w->row_step == 1 && w->row0 % 128 == 0 && w->rows % 4 == 0 && w->cols % 16 == 0 &&
           w->stride % 16 == 0 && (size_t)w->data % 16 == 0;
}

/* Of at most BATCH_INVARIANT_ROWS tokens, not transposed. */
static enum path few_path(const struct mat *w) {
    if (cuda_few_fits(w)) return PATH_FEW;
    return cuda_skinny_fits(w) ? PATH_SKINNY : PATH_GEMV;
}
/* Whether cuBLAS takes a product for which own tiles exist (`tiles`) or not. */
static bool takes_blas(const struct cuda *g, const struct op_linear *l, bool is_routed, bool tiles, bool expands) {
    const struct cuda_path p = {
        .n = l->n, .rows = l->w.rows, .n_sms = g->n_sms, .is_routed = is_routed, .expands = expands};
    return tiles && g->gemm == GPU_GEMM_AUTO ? cuda_path_is_blas(&p) : l->n >= BLAS_MIN_TOKENS;
}
/* `exact` operations run in float32: rounding must not change the router's choice. */
static enum path select_path(const struct cuda_stream *s, const struct op_linear *l, bool is_routed) {
    const struct cuda *g = s->g;
    bool plain = !l->transposed && l->batch <= 1 && !l->exact && cuda_math(s) != GPU_MATH_F32;
    if (l->n <= BATCH_INVARIANT_ROWS) return l->transposed ? PATH_SKINNY_TRANSPOSED : few_path(&l->w);
    if (!plain) return !l->exact && cuda_gemm_mma_fits(l) ? PATH_GEMM_MMA : PATH_GEMM_F32;
    if (cuda_math(s) == GPU_MATH_FP8 && !l->wide && cuda_tiles_fp8_fit(&l->w))
        return blas_fp8_fits(s, &l->w) && takes_blas(g, l, is_routed, true, false) ? PATH_BLAS_FP8 : PATH_TILES_FP8;
    const bool tiles = cuda_tiles_fit(&l->w);
    if (cuda_blas_is_usable(g->blas) && takes_blas(g, l, is_routed, tiles, !is_dense_bf16(&l->w))) return PATH_BLAS;
    if (tiles) return PATH_TILES;
    return cuda_gemm_mma_fits(l) ? PATH_GEMM_MMA : PATH_GEMM_F32;
}

static int rows_per_pass(const struct mat *w) {
    size_t rows = BLAS_WEIGHTS / ((size_t)w->cols * 2);
    return rows < 1 ? 1 : rows > (size_t)w->rows ? w->rows : (int)rows;
}
static size_t x_bytes(const struct op_linear *l, size_t one) {
    size_t n = (size_t)(l->n < PASS_TOKENS ? l->n : PASS_TOKENS);
    return align_up(n * (size_t)cuda_round_up(l->w.cols, 16) * one, 256);
}
static size_t scale_bytes(const struct op_linear *l) {
    size_t n = (size_t)(l->n < PASS_TOKENS ? l->n : PASS_TOKENS);
    return align_up((size_t)((l->w.cols + 127) / 128) * n * 4, 256);
}
static int scale_columns(const struct mat *w) { return cuda_round_up((w->cols + 127) / 128, 4); }

size_t cuda_linear_workspace_bytes(const struct cuda_stream *s, const struct op_linear *l, bool is_routed) {
    switch (select_path(s, l, is_routed)) {
    case PATH_BLAS:
        return align_up((size_t)rows_per_pass(&l->w) * (size_t)l->w.cols * 2, 256) + x_bytes(l, 2) + BLAS_SPACE;
    case PATH_TILES: return x_bytes(l, 2);
    case PATH_TILES_FP8: return x_bytes(l, 1) + scale_bytes(l);
    case PATH_BLAS_FP8:
        return x_bytes(l, 1) + scale_bytes(l) +
               align_up((size_t)((l->w.rows + 127) / 128) * (size_t)scale_columns(&l->w) * 4, 256) + BLAS_SPACE;
    default: return 0;
    }
}

/* Tiles of 128 tokens where they fill the GPU, smaller ones for fewer tokens. */
static int tile_tokens(const struct cuda *g, int n, int rows) {
    if (n <= 64) return n;
    return cuda_path_tiles(n, rows) >= g->n_sms ? 128 : 64;
}
static struct cuda_tiles tiles_of(const struct op_linear *l, int t, int n) {
    struct cuda_tiles p = {.n_parts = 1,
                           .y = l->y + (size_t)t * (size_t)l->ldy,
                           .bias = {l->bias},
                           .ldy = l->ldy,
                           .accumulate = l->accumulate};
    p.w[0] = l->w;
    p.part[0].n = n;
    return p;
}
static int linear_tiles(struct cuda_stream *s, const struct op_linear *l, char *space) {
    int ld = cuda_round_up(l->w.cols, 8);
    for (int t = 0; t < l->n; t += PASS_TOKENS) {
        int n = t + PASS_TOKENS < l->n ? PASS_TOKENS : l->n - t;
        struct cuda_tiles p = tiles_of(l, t, n);
        p.x = space;
        p.ldx = ld;
        if (cuda_check(
                s->g,
                cuda_gather_bf16(s->stream, space, l->x + (size_t)t * (size_t)l->ldx, NULL, n, l->w.cols, l->ldx, ld),
                "activations"))
            return ERR_RUNTIME;
        if (cuda_check(s->g, cuda_tiles_bf16(s->stream, &p, tile_tokens(s->g, n, l->w.rows)), "tiles_bf16"))
            return ERR_RUNTIME;
    }
    return 0;
}

static int linear_own(struct cuda_stream *s, const struct op_linear *l, char *space) {
    if (cuda_tiles_fit(&l->w)) return linear_tiles(s, l, space);
    return cuda_gemm_mma_fits(l) ? cuda_check(s->g, cuda_gemm_mma(s->stream, l), "gemm_mma")
                                 : cuda_check(s->g, cuda_gemm_f32(s->stream, l), "gemm_f32");
}
/* cuBLAS has refused a product: it has no kernel for the card, or no memory. Own kernels compute it and all later ones,
 * unless the options demand cuBLAS. */
static int without_blas(struct cuda_stream *s, const char *call, int status) {
    struct cuda *g = s->g;
    char text[64];
    snprintf(text, sizeof text, "%s: %s", call, cuda_blas_status(status));
    if (g->gemm == GPU_GEMM_CUBLAS) return cuda_check(g, cudaErrorNotSupported, text);
    cudaGetLastError(); /* of the library's allocation or launch; a lost device repeats its error */
    if (cuda_blas_give_up(g->blas))
        log_say(LOG_WARN, "card %d (%s): %s failed (%s), so own kernels compute all products; prompts are read slower",
                g->card, g->base.info.name, cuda_blas_name(), text);
    return 0;
}
static int linear_blas(struct cuda_stream *s, const struct op_linear *l, char *space) {
    int rows = rows_per_pass(&l->w), ld = cuda_round_up(l->w.cols, 8);
    char *xs = space + align_up((size_t)rows * (size_t)l->w.cols * 2, 256);
    for (int r = 0; r < l->w.rows; r += rows) {
        struct mat w = mat_rows(l->w, r, r + rows < l->w.rows ? r + rows : l->w.rows);
        const void *wb = space;
        if (is_dense_bf16(&w)) wb = w.data;
        else if (cuda_check(s->g, cuda_mat_to_bf16(s->stream, space, w), "dequantise")) return ERR_RUNTIME;
        for (int t = 0; t < l->n; t += PASS_TOKENS) {
            int n = t + PASS_TOKENS < l->n ? PASS_TOKENS : l->n - t;
            float *y = l->y + (size_t)t * (size_t)l->ldy + (size_t)r;
            if (cuda_check(
                    s->g,
                    cuda_gather_bf16(s->stream, xs, l->x + (size_t)t * (size_t)l->ldx, NULL, n, w.cols, l->ldx, ld),
                    "activations"))
                return ERR_RUNTIME;
            struct cuda_gemm f = {.y = y,
                                  .x = xs,
                                  .w = wb,
                                  .n = n,
                                  .rows = w.rows,
                                  .cols = w.cols,
                                  .ldx = ld,
                                  .ldy = l->ldy,
                                  .accumulate = l->accumulate,
                                  .space = xs + x_bytes(l, 2),
                                  .space_size = BLAS_SPACE};
            const int failed = cuda_blas_gemm(s->g->blas, &f, s->stream);
            if (!failed) continue;
            struct op_linear part = *l; /* what this call would have added, by own kernels */
            part.w = w, part.y = y, part.n = n, part.bias = NULL;
            part.x += (size_t)t * (size_t)l->ldx;
            if (without_blas(s, "cublasGemmEx", failed) || linear_own(s, &part, xs)) return ERR_RUNTIME;
        }
    }
    return l->bias ? cuda_check(s->g, cuda_bias(s->stream, l->y, l->bias, l->n, l->w.rows, l->ldy), "bias") : 0;
}

/* Tokens [t, t + n), through cuBLASLt if it has a kernel for the shape. */
static int fp8_tokens(struct cuda_stream *s, const struct op_linear *l, char *space, int t, int n, bool blas) {
    struct cuda_tiles p = tiles_of(l, t, n);
    char *scale = space + x_bytes(l, 1), *w_scale = scale + scale_bytes(l);
    int ld = cuda_round_up(l->w.cols, 16), columns = scale_columns(&l->w);
    p.x = space;
    p.x_scale = (float *)scale;
    p.ldx = ld;
    p.scale_ld = n;
    if (cuda_check(s->g,
                   cuda_gather_fp8(s->stream, space, (float *)scale, l->x + (size_t)t * (size_t)l->ldx, NULL, n,
                                   l->w.cols, l->ldx, ld, n),
                   "activations"))
        return ERR_RUNTIME;
    if (blas) {
        char *own = w_scale + align_up((size_t)((l->w.rows + 127) / 128) * (size_t)columns * 4, 256);
        if (!t && cuda_check(s->g, cuda_expand_scales(s->stream, (float *)w_scale, l->w, columns), "scales"))
            return ERR_RUNTIME;
        struct cuda_fp8_gemm f = {.gemm = {.y = (float *)p.y,
                                           .x = space,
                                           .w = l->w.data,
                                           .n = n,
                                           .rows = l->w.rows,
                                           .cols = l->w.cols,
                                           .ldx = ld,
                                           .ldy = l->ldy,
                                           .accumulate = l->accumulate,
                                           .space = own,
                                           .space_size = BLAS_SPACE},
                                  .x_scale = (float *)scale,
                                  .w_scale = (float *)w_scale,
                                  .ldw = (int)l->w.stride};
        int r = cuda_blas_fp8(s->g->blas, &f, s->stream);
        if (r > 0 && without_blas(s, "cublasLtMatmul", r)) return ERR_RUNTIME;
        if (!r)
            return l->bias ? cuda_check(s->g, cuda_bias(s->stream, f.gemm.y, l->bias, n, l->w.rows, l->ldy), "bias")
                           : 0;
    }
    return cuda_check(s->g, cuda_tiles_fp8(s->stream, &p, cuda_fp8_tile(s->g, tile_tokens(s->g, n, l->w.rows))),
                      "tiles_fp8");
}
static int linear_fp8(struct cuda_stream *s, const struct op_linear *l, char *space, bool blas) {
    for (int t = 0; t < l->n; t += PASS_TOKENS) {
        /* cuBLASLt also needs a multiple of 4 tokens */
        int n = t + PASS_TOKENS < l->n ? PASS_TOKENS : l->n - t, fours = blas ? n / 4 * 4 : n;
        int r = fours ? fp8_tokens(s, l, space, t, fours, blas) : 0;
        if (!r && n > fours) r = fp8_tokens(s, l, space, t + fours, n - fours, false);
        if (r) return r;
    }
    return 0;
}

int cuda_linear_run(struct cuda_stream *s, const struct op_linear *l, bool is_routed, char *space) {
    if (l->n < 1) return 0;
    if (!cuda_mat_is_supported(l->w.dtype)) return cuda_check(s->g, cudaErrorNotSupported, dtype_name(l->w.dtype));
    enum path path = select_path(s, l, is_routed);
    switch (path) {
    case PATH_SKINNY: return cuda_check(s->g, cuda_skinny(s->stream, l, s->g->n_sms), "skinny");
    case PATH_SKINNY_TRANSPOSED: return cuda_check(s->g, cuda_skinny_transposed(s->stream, l), "skinny_transposed");
    case PATH_FEW: return cuda_check(s->g, cuda_few(s->stream, l), "few");
    case PATH_GEMV: return cuda_check(s->g, cuda_gemv(s->stream, l), "gemv");
    case PATH_GEMM_MMA: return cuda_check(s->g, cuda_gemm_mma(s->stream, l), "gemm_mma");
    case PATH_TILES: return linear_tiles(s, l, space);
    case PATH_BLAS: return linear_blas(s, l, space);
    case PATH_TILES_FP8:
    case PATH_BLAS_FP8: return linear_fp8(s, l, space, path == PATH_BLAS_FP8);
    case PATH_GEMM_F32: break;
    }
    return cuda_check(s->g, cuda_gemm_f32(s->stream, l), "gemm_f32");
}

int cuda_linear_op(struct cuda_stream *s, const struct op_linear *a) {
    struct op_linear l = *a;
    const size_t ordered = a->w.order ? align_up((size_t)a->n * (size_t)a->w.cols * 4, 256) : 0;
    if (ordered) l.ldx = a->w.cols;
    const size_t size = ordered + cuda_linear_workspace_bytes(s, &l, false);
    char *space = cuda_workspace(s, size);
    if (!space && size) return ERR_RUNTIME;
    if (ordered && (a->transposed || a->batch > 1))
        return cuda_check(s->g, cudaErrorNotSupported, "columns in another order, transposed or by head");
    if (ordered &&
        cuda_check(s->g, cuda_order_x(s->stream, (float *)space, a->x, a->w, a->n, a->ldx), "order of columns"))
        return ERR_RUNTIME;
    if (ordered) l.x = (float *)space;
    return cuda_linear_run(s, &l, false, space + ordered);
}

static int run_join(struct cuda_stream *s, enum path path, const struct op_join *j, const struct cuda_epilogue *e) {
    if (path == PATH_SKINNY) return cuda_check(s->g, cuda_skinny_join(s->stream, j, s->g->n_sms, e), "skinny");
    return path == PATH_FEW ? cuda_check(s->g, cuda_few_join(s->stream, j, e), "few")
                            : cuda_check(s->g, cuda_gemv_join(s->stream, j, e), "gemv");
}
bool cuda_join_is_one(const struct op_join *a) {
    for (int i = 0; i < a->n; i++)
        if (!cuda_mat_is_supported(a->linear[i].w.dtype) || few_path(&a->linear[i].w) != few_path(&a->linear[0].w))
            return false;
    return true;
}
int cuda_join_rows(const struct cuda_stream *s, const struct op_join *a, int k) {
    const enum path path = few_path(&a->linear[k].w);
    if (path == PATH_SKINNY) return cuda_skinny_rows(a, s->g->n_sms);
    return path == PATH_FEW ? cuda_few_rows(&a->linear[k].w) : cuda_gemv_rows();
}
int cuda_join_run(struct cuda_stream *s, const struct op_join *a, const struct cuda_epilogue *e) {
    return run_join(s, few_path(&a->linear[0].w), a, e);
}
/* One launch for the products of each path. */
int cuda_join_op(struct cuda_stream *s, const struct op_join *a) {
    struct op_join of[PATH_GEMV + 1] = {{0}}; /* of PATH_SKINNY, PATH_FEW and PATH_GEMV */
    for (int i = 0; i < a->n; i++) {
        const struct op_linear *l = &a->linear[i];
        if (!cuda_mat_is_supported(l->w.dtype)) return cuda_check(s->g, cudaErrorNotSupported, dtype_name(l->w.dtype));
        struct op_join *j = &of[few_path(&l->w)];
        j->linear[j->n++] = *l;
    }
    for (int path = PATH_SKINNY; path <= PATH_GEMV; path++)
        if (of[path].n) TRY(run_join(s, (enum path)path, &of[path], NULL));
    return 0;
}

bool cuda_linear_gates_few(const struct expert *e, int n) {
    return n <= BATCH_INVARIANT_ROWS && !e->gate_up_transposed && cuda_mat_is_supported(e->gate.dtype) &&
           cuda_linear_can_batch(&e->gate, expert_up(e)) && few_path(&e->gate) == few_path(expert_up(e));
}
int cuda_linear_run_gated(struct cuda_stream *s, const struct expert *e, struct glu glu, float *act, const float *x,
                          int n) {
    const struct op_linear gate = {
        .y = act, .x = x, .bias = e->gate_bias, .w = e->gate, .n = n, .ldx = e->gate.cols, .ldy = e->gate.rows};
    struct op_linear up = gate;
    up.w = *expert_up(e), up.bias = expert_up_bias(e);
    const enum path path = few_path(&gate.w);
    return cuda_check(s->g,
                      path == PATH_SKINNY ? cuda_skinny_gated(s->stream, &gate, &up, glu)
                      : path == PATH_FEW  ? cuda_few_gated(s->stream, &gate, &up, glu)
                                          : cuda_gemv_gated(s->stream, &gate, &up, glu),
                      "gate and up");
}

/* --- MLA expansion ---------------------------------------------------------------------------- */

static struct kv_plane plane_from_row(const struct kv_plane *p, int row) {
    const size_t at = (size_t)row * (size_t)p->heads;
    struct kv_plane r = *p;
    if (p->blocks) r.first = row;
    else
        r.data = (char *)p->data + dtype_bytes((enum dtype)p->dtype, at * (size_t)p->dim),
        r.scale = p->scale ? p->scale + at : NULL;
    return r;
}
/* Formats without tiled kernels: compute in float32, then round. */
static int expand_float(struct cuda_stream *s, const struct op_expand *a) {
    struct op_linear l = {.w = a->w, .n = a->n, .ldx = a->latent.dim, .ldy = a->w.rows};
    size_t x = align_up((size_t)a->n * (size_t)l.ldx * 4, 256), y = align_up((size_t)a->n * (size_t)l.ldy * 4, 256);
    char *space = cuda_workspace(s, x + y + cuda_linear_workspace_bytes(s, &l, false));
    if (!space) return ERR_RUNTIME;
    const struct op_kv_load latents = {.plane = a->latent, .out = (float *)space, .n = a->n, .ldo = l.ldx};
    l.x = (float *)space;
    l.y = (float *)(space + x);
    if (cuda_check(s->g, cuda_kv_load(s->stream, &latents), "latents") || cuda_linear_run(s, &l, false, space + x + y))
        return ERR_RUNTIME;
    return cuda_check(s->g, cuda_expand_rest(s->stream, a, l.y), "expand");
}
/* All heads in one launch; a BF16 cache is read directly. */
static int expand_tiles(struct cuda_stream *s, const struct op_expand *a) {
    int dim = a->latent.dim, ld = cuda_round_up(dim, 8), rope = dim - a->w.cols;
    bool direct = !a->latent.blocks && a->latent.dtype == DT_BF16 && ld == dim && (size_t)a->latent.data % 16 == 0;
    struct cuda_tiles t = {.n_parts = 1,
                           .x = a->latent.data,
                           .y = a->k,
                           .v = a->v,
                           .ldx = ld,
                           .ldy = a->nope + rope,
                           .head_rows = a->nope + a->v_dim,
                           .nope = a->nope};
    t.w[0] = a->w;
    t.part[0].n = a->n;
    if (!direct) {
        if (!(t.x = cuda_workspace(s, (size_t)a->n * (size_t)ld * 2))) return ERR_RUNTIME;
        if (cuda_check(s->g, cuda_plane_to_bf16(s->stream, (void *)t.x, a->latent, 0, 1, a->n, ld), "latents"))
            return ERR_RUNTIME;
    }
    if (cuda_check(s->g, cuda_tiles_bf16(s->stream, &t, tile_tokens(s->g, a->n, a->w.rows)), "tiles_bf16"))
        return ERR_RUNTIME;
    return cuda_check(s->g, cuda_expand_rest(s->stream, a, NULL), "expand");
}
int cuda_expand_op(struct cuda_stream *s, const struct op_expand *a) {
    bool tiles = cuda_tiles_fit(&a->w) && a->heads < 65536 && !((a->nope | a->v_dim | (a->latent.dim - a->w.cols)) & 1);
    size_t k_row = (size_t)a->heads * (size_t)(a->nope + a->latent.dim - a->w.cols) * 2,
           v_row = (size_t)a->heads * (size_t)a->v_dim * 2;
    int most = tiles ? 8 * PASS_TOKENS : PASS_TOKENS;
    for (int t = 0; t < a->n; t += most) {
        struct op_expand rows = *a;
        rows.k = (char *)a->k + (size_t)t * k_row;
        rows.v = (char *)a->v + (size_t)t * v_row;
        rows.latent = plane_from_row(&a->latent, a->row0 + t);
        rows.row0 = 0;
        rows.n = a->n - t < most ? a->n - t : most;
        cuda_fill_defaults(OP_EXPAND, (union op_args *)&rows);
        int r = tiles ? expand_tiles(s, &rows) : expand_float(s, &rows);
        if (r) return r;
    }
    return 0;
}

bool cuda_linear_is_tiled(const struct cuda_stream *s, const struct expert *e, int n, bool is_routed) {
    struct op_linear gate = {.w = e->gate, .n = n, .transposed = e->gate_up_transposed},
                     down = {.w = e->down, .n = n, .transposed = e->is_transposed};
    enum path a = select_path(s, &gate, is_routed), b = select_path(s, &down, is_routed);
    return (a == PATH_TILES || a == PATH_TILES_FP8) && a == b && cuda_linear_can_batch(&e->gate, expert_up(e));
}
bool cuda_linear_can_batch(const struct mat *a, const struct mat *b) {
    return a->dtype == b->dtype && a->rows == b->rows && a->cols == b->cols && !a->scale == !b->scale &&
           (!a->scale || a->block_cols == b->block_cols);
}
