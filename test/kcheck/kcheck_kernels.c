/* Checks the inner kernels of every table (cpu/kernels.h) against double precision: plain formats, attention tiles,
 * element-wise. Matrices and vectors end at a guard page, outputs are poisoned, and a row gives the same bits alone and
 * in a batch. AVX-512 runs a second time through SIMDe, so its results are checked on CPUs without it too. */
#include "base/mat_at.h"
#include "cpu/autotune.h"
#include "cpu/probe.h"
#include "test/kcheck/random_mat.h"

void kernels_amx_emulated(struct kernels *k); /* tiles emulated in C */
#ifdef WITH_SIMDE
void kernels_avx512_simde(struct kernels *k);
void kernels_avx512bf16_simde(struct kernels *k);
void kernels_amx_simde(struct kernels *k);
#endif

static struct kernels k;
static float *vec(int n) {
    float *v = guarded((size_t)(n > 0 ? n : 1) * 4);
    for (int i = 0; i < n; i++) v[i] = normal();
    return v;
}
static double u_bound(int terms, double sum_abs) { return (terms / 8 + 24) * 0x1p-24 * sum_abs + 1e-36; }

/* --- gemv, gevm, decode ----------------------------------------------------------------------- */

static void check_matrix(const struct shape *s, int n) {
    begin_case("%s kernels, %d rows of x, %d by %d", dtype_name(s->dtype), n, s->rows, s->cols);
    struct mat w = make(s);
    const float *x[KERNEL_TOKENS], *xt[KERNEL_TOKENS];
    float *y[KERNEL_TOKENS], *alone = aligned((size_t)s->rows * 4), *one[1] = {alone};
    for (int t = 0; t < n; t++) x[t] = vec(s->cols), y[t] = vec(s->rows), memset(y[t], 0xff, (size_t)s->rows * 4);
    k.gemv[s->dtype](y, x, n, &w);
    for (int t = 0; t < n; t++) {
        for (int r = 0; r < s->rows; r++) {
            double sum = 0, abs_sum = 0;
            for (int c = 0; c < s->cols; c++) {
                double v = (double)mat_at(&w, r, c) * x[t][c];
                sum += v, abs_sum += fabs(v);
            }
            near("gemv", t, r, y[t][r], sum, u_bound(s->cols, abs_sum));
        }
        int r0 = s->rows / 3; /* the same token alone, from another first row */
        struct mat part = mat_rows(w, r0, s->rows);
        k.gemv[s->dtype](one, x + t, 1, &part);
        if (memcmp(alone, y[t] + r0, (size_t)(s->rows - r0) * 4))
            wrong("gemv of row %d alone has other bits than in the batch", t);
    }
    int c0 = s->cols / 4, c1 = s->cols;
    for (int t = 0; t < n; t++) xt[t] = vec(s->rows), y[t] = vec(c1 - c0), memset(y[t], 0xff, (size_t)(c1 - c0) * 4);
    k.gevm[s->dtype](y, xt, n, &w, c0, c1);
    for (int t = 0; t < n; t++)
        for (int c = c0; c < c1; c++) {
            double sum = 0, abs_sum = 0;
            for (int r = 0; r < s->rows; r++) {
                double v = (double)mat_at(&w, r, c) * xt[t][r];
                sum += v, abs_sum += fabs(v);
            }
            near("gevm", t, c, y[t][c - c0], sum, u_bound(s->rows * 8, abs_sum));
        }
    float *row = vec(c1 - c0);
    for (int r = 0; r < s->rows; r += 1 + s->rows / 3) {
        memset(row, 0xff, (size_t)(c1 - c0) * 4);
        k.decode[s->dtype](row, &w, r, c0, c1);
        for (int c = c0; c < c1; c++) /* a zero may have either sign */
            if (row[c - c0] != mat_at(&w, r, c) && f32_bits(row[c - c0]) != f32_bits(mat_at(&w, r, c)))
                mismatch("decode", r, c, row[c - c0], mat_at(&w, r, c), 0);
    }
    free(alone);
    drop();
}

static void check_matrices(void) {
    static const uint8_t formats[] = {DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E2M1};
    static const int cols[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, 300, 513, 1030};
    static const uint8_t scales[] = {DT_F32, DT_BF16, DT_F16, DT_E8M0};
    int i = 0;
    for (size_t f = 0; f < sizeof formats; f++)
        for (size_t c = 0; c < sizeof cols / sizeof *cols; c++, i++) {
            struct shape s = {1 + i % 11, cols[c], 128, 0, formats[f], scales[i % 4], 0, 1};
            if (i % 3 == 1)
                s.block_cols = formats[f] == DT_E2M1 ? 32 : 128, s.block_rows = formats[f] == DT_E2M1 ? 1 : 128,
                s.row0 = 100 + i % 60;
            /* one scale per row; a view that skips rows */
            if (i % 3 == 2) s.block_cols = 1 << 20, s.block_rows = 1, s.row_step = 1 + i % 2;
            if (i % 7 == 3) s.block_cols = 40, s.block_rows = 3; /* fits no vector */
            check_matrix(&s, 1 + i % KERNEL_TOKENS);
        }
    for (int n = 1; n <= KERNEL_TOKENS; n++) { /* several chunks of rows and spans of columns */
        struct shape s = {70, 7168 + n, 128, 128, DT_E4M3, DT_F32, 0, 1};
        check_matrix(&s, n);
        struct shape part = {70, 390 + n, 128, 128, DT_E4M3, DT_F32, 100, 1}; /* the first 28 rows have other scales */
        check_matrix(&part, n);
        struct shape b = {37, 2600, 128, 0, DT_BF16, DT_F32, 0, 1};
        check_matrix(&b, n);
    }
}

/* Every finite code of a format passes a product with 1 unchanged, and every code passes widen. */
static void check_codes(uint8_t dtype, int codes) {
    begin_case("%s kernels, all %d codes", dtype_name(dtype), codes);
    int side = codes == 256 ? 16 : codes == 16 ? 4 : 256, bytes = (int)dtype_bytes(dtype, (size_t)side);
    uint8_t *data = guarded((size_t)(side * bytes));
    for (int i = 0; i < codes; i++) {
        if (dtype == DT_E2M1) data[i / 2] = (uint8_t)(i % 2 ? data[i / 2] | i << 4 : i);
        else if (codes == 256) data[i] = (uint8_t)i;
        else data[2 * i] = (uint8_t)i, data[2 * i + 1] = (uint8_t)(i >> 8);
    }
    float *wide = vec(codes);
    k.widen[dtype](wide, data, codes);
    struct mat all = {.data = data,
                      .rows = 1,
                      .cols = codes,
                      .stride = (size_t)(side * bytes),
                      .row_step = 1,
                      .block_rows = 1,
                      .block_cols = 1,
                      .dtype = dtype};
    for (int i = 0; i < codes; i++) {
        float want = mat_at(&all, 0, i);
        if (isnan(want) ? !isnan(wide[i]) : f32_bits(want) != f32_bits(wide[i]))
            mismatch("widened code", 0, i, wide[i], want, 0);
        if (isfinite(want)) continue;
        if (codes == 256) data[i] = 0; /* products see finite codes only: 0 * NaN would hide all others */
        else data[2 * i] = data[2 * i + 1] = 0;
    }
    struct mat w = all;
    w.rows = w.cols = side, w.stride = (size_t)bytes;
    float *x = vec(side), *y = vec(side), *ys[1] = {y};
    const float *xs[1] = {x};
    for (int c = 0; c < side; c++) {
        for (int i = 0; i < side; i++) x[i] = i == c;
        k.gemv[dtype](ys, xs, 1, &w);
        for (int r = 0; r < side; r++)
            if (y[r] != mat_at(&w, r, c)) mismatch("code through gemv", r, c, y[r], mat_at(&w, r, c), 0);
        k.gevm[dtype](ys, xs, 1, &w, 0, side); /* row c is the result */
        for (int i = 0; i < side; i++)
            if (y[i] != mat_at(&w, c, i)) mismatch("code through gevm", c, i, y[i], mat_at(&w, c, i), 0);
    }
    drop();
}

/* --- Attention tiles -------------------------------------------------------------------------- */

static void check_tiles(int nq, int nk, int dim) {
    begin_case("f32 attention tile, %d queries, %d keys, %d columns", nq, nk, dim);
    const float *q[40];
    float *kv = vec(nk * dim), *s = vec(nq * nk), *o = vec(nq * dim), *old = aligned((size_t)(nq * dim) * 4),
          *corr = vec(nq);
    for (int i = 0; i < nq; i++) q[i] = vec(dim);
    memset(s, 0xff, (size_t)(nq * nk) * 4);
    k.qk(s, nk, q, nq, kv, dim, nk, dim, 0.125f);
    for (int i = 0; i < nq; i++)
        for (int j = 0; j < nk; j++) {
            double sum = 0, abs_sum = 0;
            for (int d = 0; d < dim; d++)
                sum += (double)q[i][d] * kv[j * dim + d], abs_sum += fabs((double)q[i][d] * kv[j * dim + d]);
            near("qk", i, j, s[i * nk + j], sum * 0.125, u_bound(dim, abs_sum * 0.125));
        }
    memcpy(old, o, (size_t)(nq * dim) * 4);
    k.pv(o, dim, corr, s, nk, nq, kv, dim, nk, dim);
    for (int i = 0; i < nq; i++)
        for (int d = 0; d < dim; d++) {
            double sum = (double)old[i * dim + d] * corr[i], abs_sum = fabs(sum);
            for (int j = 0; j < nk; j++)
                sum += (double)s[i * nk + j] * kv[j * dim + d],
                    abs_sum += fabs((double)s[i * nk + j] * kv[j * dim + d]);
            near("pv", i, d, o[i * dim + d], sum, u_bound(nk * 8, abs_sum));
        }
    float max = nk % 2 ? -INFINITY : 0.5f, sum = nk % 2 ? 0 : 2, was = max;
    double top = was, total;
    for (int j = 0; j < nk; j++) {
        s[j] *= 20;
        if (j % 5 == 3) s[j] = -INFINITY;
        top = s[j] > top ? s[j] : top;
    }
    total = was > -INFINITY ? 2 * exp(was - top) : 0;
    double want[64], factor = was > -INFINITY ? exp(was - top) : 0;
    for (int j = 0; j < nk; j++) total += want[j] = exp(s[j] - top);
    float got = k.soft(s, nk, &max, &sum);
    near("soft max", 0, 0, max, top, 0);
    near("soft correction", 0, 0, got, factor, factor * 1e-5 + 1e-30);
    near("soft sum", 0, 0, sum, total, total * 2e-6);
    for (int j = 0; j < nk; j++) near("soft", 0, j, s[j], want[j], want[j] * 2e-5 + 1e-37);
    free(old);
    drop();
}

/* The same over BF16 planes. Keys and values end at a guard page; prefetches may go anywhere. */
static void check_tiles16(int nq, int nk, int dim, bool split) {
    begin_case("bf16 attention tile, %d queries, %d keys, %d columns%s", nq, nk, dim, split ? ", split" : "");
    const int width = (dim + 31) / 32 * 32, ldk = dim + 3, lds = nk > 64 ? 256 : 64;
    uint16_t *kv = guarded(((size_t)(nk - 1) * (size_t)ldk + (size_t)dim) * 2),
             *packed = aligned((size_t)((nq + 31) / 32 * 32 * width) * 4);
    float *q = vec(nq * dim), *s = aligned((size_t)(nq * lds) * 4), *o = vec(nq * dim),
          *old = aligned((size_t)(nq * dim) * 4), *corr = vec(nq);
    const double unit = k.qk16_is_exact ? 0 : split ? 0x1p-16 : 0x1p-8, unit_q = k.qk16_uses_tiles ? 0x1p-16 : unit;
    const struct ahead ahead = {(const uint8_t *)kv, 1 << 20, 5, 256};
    for (size_t i = 0; i < (size_t)(nk - 1) * (size_t)ldk + (size_t)dim; i++) kv[i] = f32_to_bf16(normal());
    memset(s, 0xff, (size_t)(nq * lds) * 4);
    for (int i = 0; i < nq; i++) k.qk16_pack(packed, i, q + i * dim, dim, 0.125f, split);
    k.qk16(s, lds, packed, nq, kv, ldk, nk, dim, split, &ahead);
    for (int i = 0; i < nq; i++)
        for (int j = 0; j < lds; j++) {
            double sum = 0, abs_sum = 0;
            for (int d = 0; d < dim && j < nk; d++) {
                double v = (double)q[i * dim + d] * bf16_to_f32(kv[j * ldk + d]) * 0.125;
                sum += v, abs_sum += fabs(v);
            }
            if (j < nk) near("qk16", i, j, s[i * lds + j], sum, u_bound(dim, abs_sum) + unit_q * abs_sum);
            else if (f32_bits(s[i * lds + j]) != 0xffffffff) wrong("qk16 wrote key %d of row %d, past the keys", j, i);
        }
    memcpy(old, o, (size_t)(nq * dim) * 4);
    k.pv16(o, dim, corr, s, lds, nq, kv, ldk, nk, dim, split, &ahead);
    for (int i = 0; i < nq; i++)
        for (int d = 0; d < dim; d++) {
            double sum = (double)old[i * dim + d] * corr[i], abs_sum = fabs(sum);
            for (int j = 0; j < nk; j++) {
                double v = (double)s[i * lds + j] * bf16_to_f32(kv[j * ldk + d]);
                sum += v, abs_sum += fabs(v);
            }
            near("pv16", i, d, o[i * dim + d], sum, u_bound(nk * 8, abs_sum) + unit * abs_sum);
        }
    free(packed), free(s), free(old);
    drop();
}

/* Every code, in rows of all lengths; what follows the row keeps its value. */
static void check_widen16(void) {
    begin_case("widening of e4m3 to bf16, all codes");
    uint8_t *codes = guarded(256);
    uint16_t *out = aligned(260 * 2);
    for (int i = 0; i < 256; i++) codes[i] = (uint8_t)i;
    for (int n = 1; n <= 256; n += n < 70 ? 3 : 31)
        for (int gap = 0; gap < 8 && n + gap <= 256; gap += 7) {
            const int rows = (256 - n) / (n + gap) + 1, first = 256 - n - (rows - 1) * (n + gap);
            memset(out, 0xab, 260 * 2);
            k.widen16(out, codes + first, (size_t)(n + gap), rows, n);
            for (int r = 0; r < rows; r++)
                for (int i = 0; i < n; i++) {
                    const float want = e4m3_to_f32(codes[first + r * (n + gap) + i]), got = bf16_to_f32(out[r * n + i]);
                    if (isnan(want) ? !isnan(got) : f32_bits(got) != f32_bits(want))
                        mismatch("widen16", r, i, got, want, 0);
                }
            if (out[rows * n] != 0xabab) wrong("widen16 wrote past %d rows of %d", rows, n);
        }
    free(out);
    drop();
}

/* --- Element-wise ----------------------------------------------------------------------------- */

static void check_elements(int n) {
    begin_case("element-wise kernels, %d columns", n);
    float *x = vec(n), *w = vec(n), *y = vec(n), *g = vec(n);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    near("sumsq", 0, 0, k.sumsq(x, n), sum, u_bound(n, sum));
    k.scale(y, x, 1.5f, w, 1.0f, n);
    for (int i = 0; i < n; i++)
        near("scale", 0, i, y[i], (double)x[i] * 1.5 * ((double)w[i] + 1), 4e-7 * fabs(x[i]) * (fabs(w[i]) + 1));
    for (int i = 0; i < n; i++) g[i] = normal() * 40;
    static const struct glu joins[] = {{0},
                                       {.limit = 7, .alpha = 1.702f, .shift = 1},
                                       {.limit = 2.5f},
                                       {.alpha = 0.5f},
                                       {.shift = -2},
                                       {.alpha = 1.5957691f, .cubic = 0.0713548f},
                                       {.limit = 1.5f, .clamp_after = true},
                                       {.is_relu = true},
                                       {.is_erf = true},
                                       {.is_erf = true, .is_ungated = true},
                                       {.alpha = 1.5957691f, .cubic = 0.0713548f, .is_ungated = true},
                                       {.xielu_p = 0.8f, .xielu_n = 1.25f, .xielu_beta = 0.5f},
                                       {.gate_cap = 4, .up_cap = 0.5f},
                                       {.gate_cap = 1e-3f, .up_cap = 1e3f}};
    for (size_t j = 0; j < sizeof joins / sizeof *joins; j++) {
        const struct glu *a = &joins[j];
        double limit = a->limit > 0 ? (double)a->limit : INFINITY, alpha = a->alpha > 0 ? (double)a->alpha : 1;
        k.glu(y, g, w, n, a);
        for (int i = 0; i < n; i++) {
            const double u = a->is_ungated ? 1 : (double)w[i];
            double top = a->clamp_after ? (double)g[i] : fmin(g[i], limit),
                   add = fmax(fmin(u, limit), -limit) + (double)a->shift,
                   s = a->is_relu ? fmax(g[i], 0) : top / (1 + exp(-alpha * top - (double)a->cubic * top * top * top));
            if (a->gate_cap > 0) {
                const double up = (double)a->up_cap * tanh(u / (double)a->up_cap);
                s = (double)a->gate_cap * tanh((double)g[i] / (double)a->gate_cap) / (1 + exp(-(double)g[i]));
                near("capped glu", 0, i, y[i], s * up, fabs(s * up) * 2e-6 + 1e-36);
                continue;
            }
            if (a->is_erf) {
                const double want = 0.5 * g[i] * erfc(-(double)g[i] / sqrt(2)) * u;
                near("GELU", 0, i, y[i], want, fabs(want) * 1e-6 + 2e-7 * fabs((double)g[i] * u) + 1e-36);
                continue;
            }
            if (a->xielu_beta > 0) {
                const double v = g[i], n_ = (double)a->xielu_n, beta = (double)a->xielu_beta,
                             want = (v > 0 ? (double)a->xielu_p * v * v : n_ * (expm1(v) - v)) + beta * v;
                near("xIELU", 0, i, y[i], want, fabs(want) * 1e-6 + 2e-7 * fmin(fabs(v), 1));
                continue;
            }
            near("glu", 0, i, y[i], (a->clamp_after ? fmin(s, limit) : s) * add,
                 fabs(s) * (fabs(add) + 1) * 2e-5 + 1e-36);
        }
    }
    float *before = aligned((size_t)n * 4);
    memcpy(before, y, (size_t)n * 4);
    k.axpy(y, -0.7f, x, n);
    for (int i = 0; i < n; i++)
        near("axpy", 0, i, y[i], before[i] - (double)0.7f * x[i], 2e-7 * (fabs(before[i]) + fabs(x[i])));
    free(before);
    drop();
    for (int form = 0; form < 4; form++) {
        float *v = vec(2 * n), *c = vec(n), *s = vec(n), *was = aligned((size_t)n * 8);
        double sign = form & 2 ? -1 : 1;
        memcpy(was, v, (size_t)n * 8);
        k.rope(v, c, s, n, form & 1, (float)sign);
        for (int j = 0; j < n; j++) {
            int a = form & 1 ? 2 * j : j, b = form & 1 ? 2 * j + 1 : j + n;
            near("rope", 0, a, v[a], was[a] * (double)c[j] - was[b] * (double)s[j] * sign, 1e-6);
            near("rope", 0, b, v[b], was[b] * (double)c[j] + was[a] * (double)s[j] * sign, 1e-6);
        }
        free(was);
        drop();
    }
}
static void check_exp(void) { /* through softmax: far tails, and NaN must stay NaN */
    begin_case("exp and glu, tails and what is not finite");
    float s[20], max = 0, sum = 0;
    for (int i = 0; i < 20; i++) s[i] = -10.0f * (float)i;
    k.soft(s, 20, &max, &sum);
    for (int i = 0; i < 20; i++) near("exp", 0, i, s[i], exp(-10.0 * i), exp(-10.0 * i) * 1e-5 + 1.5e-45);
    float bad[20] = {0};
    bad[3] = NAN, max = 0, sum = 0;
    k.soft(bad, 20, &max, &sum);
    if (!isnan(bad[3]) || !isnan(sum)) wrong("exp of NaN is %g, should be NaN", (double)bad[3]);
    float g[20], u[20], h[20];
    for (int i = 0; i < 20; i++) g[i] = u[i] = 1;
    g[2] = NAN, g[4] = INFINITY, g[6] = -INFINITY, g[8] = 200, g[10] = -200;
    k.glu(h, g, u, 20, &(struct glu){0});
    if (!isnan(h[2]) || !isinf(h[4])) wrong("silu hides what is not finite");
    near("silu", 0, 8, h[8], 200, 1e-3);
    near("silu", 0, 10, h[10], 0, 1e-30);
    k.glu(h, g, g, 20, &(struct glu){.is_relu = true});
    if (!isnan(h[2]) || !isinf(h[4]) || h[10] != 0) wrong("relu hides what is not finite");
    u[12] = u[13] = NAN;
    k.glu(h, g, u, 20, &(struct glu){.limit = 7, .alpha = 1.702f, .shift = 1});
    if (!isnan(h[2]) || !isnan(h[12]) || !isnan(h[13])) wrong("a limit hides what is no number");
    near("glu", 0, 8, h[8], 14, 1e-3);
}

static void run(const char *name, uint64_t seed) {
    int before = failures;
    level = name, state = seed;
    static const int shapes[][3] = {{1, 1, 1},    {1, 64, 128}, {5, 64, 64},   {8, 63, 65},  {9, 17, 72},  {4, 3, 15},
                                    {8, 64, 192}, {2, 33, 576}, {32, 64, 128}, {17, 50, 80}, {31, 48, 320}};
    if (k.qk16) { /* the rest of the table belongs to another level */
        check_widen16();
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int split = 0; split < 2; split++) check_tiles16(shapes[i][0], shapes[i][1], shapes[i][2], split);
        if (k.qk16_uses_tiles) check_tiles16(128, 256, 64, false), check_tiles16(97, 250, 72, true);
        printf("%-18s %s\n", name, failures > before ? "FAILED" : "ok");
        return;
    }
    check_matrices();
    check_codes(DT_E4M3, 256);
    check_codes(DT_E2M1, 16);
    check_codes(DT_BF16, 65536);
    check_codes(DT_F16, 65536);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) check_tiles(shapes[i][0], shapes[i][1], shapes[i][2]);
    static const int sizes[] = {1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 500};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) check_elements(sizes[i]);
    check_exp();
    printf("%-18s %s\n", name, failures > before ? "FAILED" : "ok");
}

/* Kernels that a measurement chooses between give the same bits, for large and tiny x too. */
static void check_choice(uint64_t seed) {
    static const struct shape shapes[] = {{70, 7170, 128, 128, DT_E4M3, DT_F32, 0, 1},
                                          {33, 1000, 1, 1 << 20, DT_E4M3, DT_BF16, 0, 1},
                                          {9, 333, 16, 100, DT_E4M3, DT_F16, 5, 1},
                                          {5, 65, 1, 0, DT_E4M3, DT_F32, 0, 1}};
    int before = failures;
    level = "choice", state = seed;
    if ((cpu_flags() & (CPU_F_AVX512 | CPU_F_VBMI)) != (CPU_F_AVX512 | CPU_F_VBMI)) {
        printf("%-18s SKIPPED: this CPU lacks one of them\n", level);
        return;
    }
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int n = 1; n <= KERNEL_TOKENS; n++) {
            begin_case("e4m3 gemv, %d rows of x, %d by %d", n, shapes[i].rows, shapes[i].cols);
            struct mat w = make(&shapes[i]);
            const float *x[KERNEL_TOKENS];
            float *y[KERNEL_TOKENS], *z[KERNEL_TOKENS];
            for (int t = 0; t < n; t++) {
                float *v = vec(w.cols);
                for (int c = 0; c < w.cols; c++) v[c] = ldexpf(v[c], n % 4 == 1 ? -120 : n % 4 == 2 ? 100 : 0);
                x[t] = v, y[t] = vec(w.rows), z[t] = vec(w.rows);
            }
            autotune_e4m3_candidates[0]->gemv(y, x, n, &w);
            for (int other = 1; other < autotune_e4m3_n_candidates(); other++) {
                autotune_e4m3_candidates[other]->gemv(z, x, n, &w);
                for (int t = 0; t < n; t++)
                    for (int r = 0; r < w.rows; r++)
                        if (f32_bits(y[t][r]) != f32_bits(z[t][r]))
                            mismatch("output by another kernel", t, r, z[t][r], y[t][r], 0);
            }
            drop();
        }
    if (autotune_e4m3() != autotune_e4m3()) wrong("another kernel is chosen the second time");
    printf("%-18s %s%s%s\n", level, failures > before ? "FAILED" : "ok", *autotune_describe() ? ": " : "",
           autotune_describe());
}

/* Measured once per process and the same in each, because kernels with other bits depend on it. */
static void check_probes(void) {
    const unsigned flags = cpu_flags();
    int differed = 0;
    begin_case("probes");
    for (int i = 0; i < 100; i++) {
        if (flags & CPU_F_AVX2) differed += probe_fast_subnormals() != !!(flags & CPU_F_SUBNORMAL);
        if (flags & CPU_F_BF16) differed += probe_fast_bf16() != !!(flags & CPU_F_BF16_FAST);
    }
    if (differed) wrong("%d of 100 probes of this CPU differed", differed);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20260729;
    printf("seed %llu\n", (unsigned long long)seed);
    static const struct {
        const char *name;
        void (*fill)(struct kernels *);
        const struct format_kernels *e4m3; /* instead of the level's own */
        unsigned need;
    } tables[] = {
        {"scalar", NULL, NULL, 0},
        {"avx2", kernels_avx2, NULL, CPU_F_AVX2},
        {"attention avx2", attn_avx2, NULL, CPU_F_AVX2},
        {"avx2sub", kernels_avx2, &avx2sub_e4m3, CPU_F_AVX2},
        {"avx512", kernels_avx512, NULL, CPU_F_AVX512},
        {"avx512sub", kernels_avx512, &avx512sub_e4m3, CPU_F_AVX512},
        {"avx512vbmi", kernels_avx512, &avx512vbmi_e4m3, CPU_F_AVX512 | CPU_F_VBMI},
        {"avx512gfni", kernels_avx512, &avx512gfni_e4m3, CPU_F_AVX512 | CPU_F_VBMI | CPU_F_GFNI},
        {"avx512bf16", kernels_avx512bf16, NULL, CPU_F_AVX512 | CPU_F_VBMI | CPU_F_BF16},
        {"amx", kernels_amx, NULL, CPU_F_AVX512 | CPU_F_VBMI | CPU_F_BF16 | CPU_F_AMX_BF16},
#ifndef WITHOUT_EMULATED
        {"amx, tiles in C", kernels_amx_emulated, NULL, CPU_F_AVX512 | CPU_F_VBMI | CPU_F_BF16},
#endif
#ifdef WITH_SIMDE
        {"avx512 (SIMDe)", kernels_avx512_simde, NULL, 0},
        {"avx512bf16 (SIMDe)", kernels_avx512bf16_simde, NULL, 0},
        {"amx (SIMDe)", kernels_amx_simde, NULL, 0},
#endif
    };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if ((cpu_flags() & tables[i].need) != tables[i].need) {
            printf("%-18s SKIPPED: this CPU lacks it\n", tables[i].name);
            continue;
        }
        memset(&k, 0, sizeof k);
        kernels_scalar(&k);
        if (tables[i].fill) tables[i].fill(&k);
        if (tables[i].e4m3) kernels_format(&k, tables[i].e4m3);
        run(tables[i].name, seed);
    }
    check_choice(seed);
    check_probes();
#if !defined WITH_SIMDE && !defined WITHOUT_SIMDE
    printf("avx512 (SIMDe) SKIPPED: libsimde-dev was not found when this was built\n");
#endif
    printf("%d failures\n", failures);
    return failures != 0;
}
