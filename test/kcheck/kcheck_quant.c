/* Checks kernels of weights of a few bits: decoding against GGUF blocks unpacked from the format's description,
 * products against a double-precision sum, the same bits whatever rows and tokens are in the batch, and no access out
 * of bounds. */
#include "base/mat_at.h"
#include "cpu/formats.h"
#include "cpu/kernels.h"
#include "test/kcheck/random_mat.h"

#ifdef WITH_SIMDE
void kernels_avx512_simde(struct kernels *k);
GEMV_FN(int4_gemv_avx512_simde);
#define WHOLE_SIMDE(name) GEMV_FN(intdot_avx512_simde_##name);
FORMATS_INTDOT(WHOLE_SIMDE)
#endif

/* --- GGUF blocks, from the format's description: one block at a time -------------------------- */

static void unpack_q8_0(const uint8_t *b, double *out) {
    double d = f16_to_f32((uint16_t)(b[0] | b[1] << 8));
    for (int i = 0; i < 32; i++) out[i] = d * (int8_t)b[2 + i];
}
static void unpack_q4_k(const uint8_t *b, double *out) {
    double d = f16_to_f32((uint16_t)(b[0] | b[1] << 8)), dmin = f16_to_f32((uint16_t)(b[2] | b[3] << 8));
    const uint8_t *s = b + 4, *q = b + 16;
    int scale[8], min[8];
    for (int j = 0; j < 4; j++) { /* parts 0-3: six bits of their own; 4-7: four bits, and two from the top of 0-3's */
        scale[j] = s[j] % 64, min[j] = s[4 + j] % 64;
        scale[4 + j] = s[8 + j] % 16 + 16 * (s[j] / 64);
        min[4 + j] = s[8 + j] / 16 + 16 * (s[4 + j] / 64);
    }
    for (int pair = 0; pair < 4; pair++) /* 32 bytes hold part 2p in the low and part 2p + 1 in the high bits */
        for (int i = 0; i < 32; i++) {
            out[64 * pair + i] = d * scale[2 * pair] * (q[32 * pair + i] % 16) - dmin * min[2 * pair];
            out[64 * pair + 32 + i] = d * scale[2 * pair + 1] * (q[32 * pair + i] / 16) - dmin * min[2 * pair + 1];
        }
}
static void unpack_q6_k(const uint8_t *b, double *out) {
    double d = f16_to_f32((uint16_t)(b[208] | b[209] << 8));
    for (int half = 0; half < 2; half++, out += 128) {
        const uint8_t *ql = b + 64 * half, *qh = b + 128 + 32 * half;
        const int8_t *s = (const int8_t *)b + 192 + 8 * half;
        for (int i = 0; i < 32; i++) {
            out[i] = d * s[i / 16] * (ql[i] % 16 + 16 * (qh[i] % 4) - 32);
            out[32 + i] = d * s[2 + i / 16] * (ql[32 + i] % 16 + 16 * (qh[i] / 4 % 4) - 32);
            out[64 + i] = d * s[4 + i / 16] * (ql[i] / 16 + 16 * (qh[i] / 16 % 4) - 32);
            out[96 + i] = d * s[6 + i / 16] * (ql[32 + i] / 16 + 16 * (qh[i] / 64) - 32);
        }
    }
}

static void check_reference(void) {
    static const struct {
        uint8_t dtype;
        int cols, bytes;
        void (*unpack)(const uint8_t *, double *);
    } formats[] = {{DT_Q8_0, 32, 34, unpack_q8_0}, {DT_Q4_K, 256, 144, unpack_q4_k}, {DT_Q6_K, 256, 210, unpack_q6_k}};
    for (size_t f = 0; f < 3; f++) {
        struct shape s = {50, formats[f].cols * 3, 1, 0, formats[f].dtype, 0, 0, 1};
        struct mat w = make(&s);
        begin_case("%s mat_at, %d by %d", dtype_name(s.dtype), s.rows, s.cols);
        double want[256];
        for (int r = 0; r < s.rows; r++)
            for (int b = 0; b < 3; b++) {
                formats[f].unpack((const uint8_t *)w.data + (size_t)r * w.stride + (size_t)(b * formats[f].bytes),
                                  want);
                for (int i = 0; i < formats[f].cols; i++) {
                    float got = mat_at(&w, r, b * formats[f].cols + i);
                    if (fabs(got - want[i]) > 0x1p-23 * fabs(want[i]) + 1e-6 * (formats[f].dtype == DT_Q4_K))
                        mismatch("weight", r, b * formats[f].cols + i, got, want[i],
                                 0x1p-23 * fabs(want[i]) + 1e-6 * (formats[f].dtype == DT_Q4_K));
                }
            }
        drop();
    }
    printf("%-10s %s\n", "reference", failures ? "FAILED" : "ok");
}

/* --- Kernels ---------------------------------------------------------------------------------- */

/* Bounds the integer error of column c: half a unit, which is 2^-14 or less of the largest number of the columns that
 * share it; for K blocks at least what keeps the parts of a block together. Blocks of one scale share one unit. */
static double unit_at(const struct shape *s, const float *x, int c) {
    const bool k_block = s->dtype == DT_Q4_K || s->dtype == DT_Q5_K || s->dtype == DT_Q6_K;
    const bool one = s->dtype >= DT_TQ1_0; /* and Q1_0, Q2_0 */
    const int together[2] = {s->dtype == DT_INT4   ? 128
                             : one                 ? (int)dtype_block((enum dtype)s->dtype)
                             : s->dtype == DT_Q6_K ? 16
                                                   : 32,
                             k_block ? 256 : 0};
    double unit = 0;
    for (int i = 0; i < 2 && together[i]; i++) {
        double most = 0;
        for (int j = c / together[i] * together[i]; j < s->cols && j < (c / together[i] + 1) * together[i]; j++)
            most = fmax(most, fabs((double)x[j]));
        unit = fmax(unit, most * (s->dtype == DT_INT4   ? 1 / 32500.0
                                  : !i                  ? 1 / 16300.0
                                  : s->dtype == DT_Q6_K ? 0x1p-20
                                                        : 0x1p-22));
    }
    return unit;
}

/* whole: the integer kernels, which take 16 bits of x. */
static void check(const struct kernels *k, const struct shape *s, int n, bool whole) {
    begin_case("%s gemv%s, %d rows of x, %d by %d", dtype_name(s->dtype), whole ? " with integers" : "", n, s->rows,
               s->cols);
    const gemv_fn gemv = whole ? k->whole[s->dtype] : k->gemv[s->dtype];
    struct mat w = make(s);
    float *x[KERNEL_TOKENS], *y[KERNEL_TOKENS], *z[KERNEL_TOKENS];
    const float *cx[KERNEL_TOKENS];
    for (int t = 0; t < n; t++) {
        cx[t] = x[t] = (float *)guarded(sizeof(float) * (size_t)s->cols);
        const int spread = (int)(rnd() % 4) * 4; /* of the magnitudes of adjacent columns */
        for (int c = 0; c < s->cols; c++)
            x[t][c] = ldexpf(normal(), -(int)(rnd() % (unsigned)(spread + 1)) - spread * (c / 32 % 3));
        y[t] = aligned(sizeof(float) * (size_t)(s->rows + 4));
        z[t] = aligned(sizeof(float) * (size_t)(s->rows + 4));
    }
    float *row = malloc(sizeof *row * (size_t)(s->cols + 8));
    for (int r = 0; r < s->rows; r++)
        for (int pass = 0; pass < 2; pass++) {
            int c0 = pass ? (int)(rnd() % (unsigned)s->cols) : 0,
                c1 = pass ? c0 + (int)(rnd() % (unsigned)(s->cols - c0 + 1)) : s->cols;
            memset(row, 0x7f, sizeof *row * (size_t)(s->cols + 8));
            k->decode[s->dtype](row, &w, r, c0, c1);
            for (int c = c0; c < c1; c++) {
                float want = mat_at(&w, r, c);
                if (row[c - c0] != want) mismatch("decoded weight", r, c, row[c - c0], want, 0);
            }
            if (f32_bits(row[c1 - c0]) != 0x7f7f7f7f) wrong("decode of row %d wrote past column %d", r, c1);
        }
    gemv(y, cx, n, &w);
    double *unit = calloc((size_t)n * (size_t)s->cols, sizeof *unit);
    for (int i = 0; i < n * s->cols && whole; i++) unit[i] = unit_at(s, x[i / s->cols], i % s->cols);
    for (int r = 0; r < s->rows; r++)
        for (int t = 0; t < n; t++) {
            double want = 0, size = 0, rounded = 0;
            for (int c = 0; c < s->cols; c++) {
                const double weight = (double)mat_at(&w, r, c), p = weight * x[t][c];
                want += p, size += fabs(p);
                rounded += fabs(weight) * unit[t * s->cols + c] / 2;
            }
            near("sum", t, r, y[t][r], want, (s->cols + 8) * 0x1p-24 * size + rounded);
        }
    free(unit);
    for (int t = 0; t < n; t++)
        if (f32_bits(y[t][s->rows]) != 0xffffffff) wrong("row %d is written past its end", t);
    for (int t = 0; t < n; t++) { /* alone, in two calls */
        int cut = s->rows / 3;
        struct mat a = mat_rows(w, 0, cut), b = mat_rows(w, cut, s->rows);
        float *to = z[t], *rest = z[t] + cut;
        if (cut) gemv(&to, &cx[t], 1, &a);
        gemv(&rest, &cx[t], 1, &b);
        if (memcmp(z[t], y[t], sizeof(float) * (size_t)s->rows)) wrong("row %d has other bits alone", t);
    }
    if (whole && s->dtype != DT_INT4) { /* a draft's result, which is verified */
        x[n - 1][(int)(rnd() % (unsigned)s->cols)] = n % 2 ? NAN : -INFINITY;
        gemv(y, cx, n, &w);
        for (int r = 0; r < s->rows; r++)
            if (isfinite(y[n - 1][r])) mismatch("what should not be finite", n - 1, r, y[n - 1][r], NAN, 0);
    }
    if (w.scale && w.scale_dtype == DT_E4M3) { /* a scale of NaN reaches the products of its row */
        for (int i = 0; i < n * s->cols; i++)
            if (!isfinite(x[i / s->cols][i % s->cols])) x[i / s->cols][i % s->cols] = 1;
        uint8_t *const scale = (uint8_t *)(uintptr_t)w.scale + scale_row(&w, 0);
        scale[(int)(rnd() % (unsigned)s->cols) / w.block_cols] = rnd() % 2 ? 0x7f : 0xff;
        gemv(y, cx, n, &w);
        for (int t = 0; t < n; t++) {
            if (isfinite(y[t][0])) mismatch("product with a scale of NaN", t, 0, y[t][0], NAN, 0);
            if (w.block_rows == 1 && s->rows > 1 && !isfinite(y[t][1]))
                mismatch("product beside one with a scale of NaN", t, 1, y[t][1], 0, 0);
        }
    }
    for (int t = 0; t < n; t++) free(y[t]), free(z[t]);
    free(row);
    drop();
}

static const struct shape shapes[] = {
    {13, 1024, 1, 32, DT_E2M1, DT_E8M0, 0, 1},
    {9, 302, 1, 32, DT_E2M1, DT_E8M0, 3, 2},
    {6, 77, 1, 32, DT_E2M1, DT_E8M0, 0, 1},
    {7, 2880, 1, 32, DT_E2M1, DT_E8M0, 0, 1},
    {7, 334, 1, 97, DT_E2M1, DT_F32, 0, 1},
    {5, 150, 1, 128, DT_E2M1, DT_BF16, 0, 1},
    {13, 1024, 1, 64, DT_NF4, DT_F32, 0, 1},
    {9, 302, 1, 64, DT_NF4, DT_F32, 3, 2},
    {6, 96, 1, 32, DT_NF4, DT_F32, 0, 1},
    {7, 2880, 1, 64, DT_NF4, DT_F32, 0, 1},
    {13, 1024, 1, 0, DT_Q8_0, 0, 0, 1},
    {5, 32, 1, 0, DT_Q8_0, 0, 0, 1},
    {11, 352, 1, 0, DT_Q8_0, 0, 0, 3},
    {13, 1024, 1, 0, DT_Q4_K, 0, 0, 1},
    {5, 256, 1, 0, DT_Q4_K, 0, 0, 3},
    {6, 2560, 1, 0, DT_Q4_K, 0, 0, 1},
    {13, 1024, 1, 0, DT_Q6_K, 0, 0, 1},
    {5, 256, 1, 0, DT_Q6_K, 0, 0, 3},
    {37, 2304, 1, 0, DT_Q6_K, 0, 0, 1},
    {13, 1024, 1, 0, DT_Q5_K, 0, 0, 1},
    {5, 256, 1, 0, DT_Q5_K, 0, 0, 3},
    {13, 1024, 1, 0, DT_Q4_0, 0, 0, 1},
    {5, 32, 1, 0, DT_Q4_0, 0, 0, 1},
    {11, 352, 1, 0, DT_Q4_0, 0, 0, 3},
    {5, 2208, 1, 0, DT_Q4_0, 0, 0, 1},
    {13, 1024, 1, 0, DT_IQ4_NL, 0, 0, 1},
    {11, 352, 1, 0, DT_IQ4_NL, 0, 0, 3},
    {13, 1024, 1, 0, DT_IQ4_XS, 0, 0, 1},
    {5, 256, 1, 0, DT_IQ4_XS, 0, 0, 3},
    {13, 1024, 1, 0, DT_MXFP4, 0, 0, 1},
    {11, 352, 1, 0, DT_MXFP4, 0, 0, 3},
    {5, 32, 1, 0, DT_MXFP4, 0, 0, 1},
    {13, 1024, 1, 128, DT_INT4, DT_BF16, 0, 1},
    {9, 302, 1, 128, DT_INT4, DT_BF16, 0, 1},
    {6, 77, 1, 128, DT_INT4, DT_F32, 3, 2},
    {7, 5000, 1, 128, DT_INT4, DT_F16, 0, 1},
    {67, 640, 1, 128, DT_INT4, DT_BF16, 0, 1},
    {300, 136, 1, 128, DT_INT4, DT_BF16, 0, 1},
    {5, 300, 1, 300, DT_INT4, DT_F32, 0, 1},
    {13, 1024, 1, 16, DT_E2M1, DT_E4M3, 0, 1},
    {9, 304, 1, 16, DT_E2M1, DT_E4M3, 3, 2},
    {6, 80, 1, 16, DT_E2M1, DT_E4M3, 0, 1},
    {7, 23, 1, 16, DT_E2M1, DT_E4M3, 0, 1},
    {13, 1024, 1, 32, DT_I4, DT_BF16, 0, 1},
    {9, 302, 1, 32, DT_I4, DT_F16, 3, 2},
    {6, 77, 1, 32, DT_I4, DT_BF16, 0, 1},
    {7, 2880, 1, 128, DT_I4, DT_F16, 0, 1},
    {7, 600, 1, 16, DT_I4, DT_BF16, 0, 1},
    {5, 333, 1, 333, DT_I4, DT_F32, 0, 1},
    {13, 1024, 1, 128, DT_I4, DT_F32Z, 0, 1},
    {9, 430, 1, 128, DT_I4, DT_F32Z, 3, 2},
    {6, 77, 1, 128, DT_I4, DT_F32Z, 0, 1},
    {9, 430, 1, 128, DT_I4, DT_BF16, 3, 2},
    {9, 302, 1, 32, DT_I4, DT_F32Z, 3, 2},
    {6, 77, 1, 16, DT_I4, DT_F32Z, 0, 1},
    {13, 1024, 1, 1024, DT_I8, DT_F32, 0, 1},
    {9, 302, 1, 302, DT_I8, DT_BF16, 3, 2},
    {6, 77, 1, 32, DT_I8, DT_F16, 0, 1},
    {7, 300, 1, 128, DT_I8, DT_F32Z, 0, 1},
    {7, 130, 7, 130, DT_I8, DT_F32, 0, 1},
    {13, 1024, 1, 0, DT_Q4_1, 0, 0, 1},
    {11, 352, 1, 0, DT_Q4_1, 0, 0, 3},
    {5, 32, 1, 0, DT_Q4_1, 0, 0, 1},
    {13, 1024, 1, 0, DT_Q5_0, 0, 0, 1},
    {11, 352, 1, 0, DT_Q5_0, 0, 0, 3},
    {5, 32, 1, 0, DT_Q5_0, 0, 0, 1},
    {13, 1024, 1, 0, DT_Q5_1, 0, 0, 1},
    {11, 352, 1, 0, DT_Q5_1, 0, 0, 3},
    {5, 32, 1, 0, DT_Q5_1, 0, 0, 1},
    {13, 1024, 1, 0, DT_Q2_K, 0, 0, 1},
    {5, 256, 1, 0, DT_Q2_K, 0, 0, 3},
    {13, 1024, 1, 0, DT_Q3_K, 0, 0, 1},
    {5, 256, 1, 0, DT_Q3_K, 0, 0, 3},
    {13, 1024, 1, 0, DT_IQ1_S, 0, 0, 1},
    {5, 256, 1, 0, DT_IQ1_S, 0, 0, 3},
    {13, 1024, 1, 0, DT_IQ1_M, 0, 0, 1},
    {5, 256, 1, 0, DT_IQ1_M, 0, 0, 3},
    {13, 1024, 1, 0, DT_IQ2_XXS, 0, 0, 1},
    {5, 256, 1, 0, DT_IQ2_XXS, 0, 0, 3},
    {13, 1024, 1, 0, DT_IQ2_XS, 0, 0, 1},
    {5, 256, 1, 0, DT_IQ2_XS, 0, 0, 3},
    {13, 1024, 1, 0, DT_IQ2_S, 0, 0, 1},
    {5, 256, 1, 0, DT_IQ2_S, 0, 0, 3},
    {7, 4352, 1, 0, DT_IQ2_S, 0, 0, 1}, /* more than two turns */
    {13, 1024, 1, 0, DT_IQ3_XXS, 0, 0, 1},
    {5, 256, 1, 0, DT_IQ3_XXS, 0, 0, 3},
    {13, 1024, 1, 0, DT_IQ3_S, 0, 0, 1},
    {5, 256, 1, 0, DT_IQ3_S, 0, 0, 3},
    {13, 1024, 1, 0, DT_TQ1_0, 0, 0, 1},
    {5, 256, 1, 0, DT_TQ1_0, 0, 0, 3},
    {13, 1024, 1, 0, DT_TQ2_0, 0, 0, 1},
    {5, 256, 1, 0, DT_TQ2_0, 0, 0, 3},
    {7, 4352, 1, 0, DT_TQ2_0, 0, 0, 1},
    {13, 1152, 1, 0, DT_Q1_0, 0, 0, 1},
    {5, 128, 1, 0, DT_Q1_0, 0, 0, 3},
    {13, 1088, 1, 0, DT_Q2_0, 0, 0, 1},
    {5, 64, 1, 0, DT_Q2_0, 0, 0, 3},
    {13, 1088, 16, 1088, DT_NVFP4, DT_F32, 0, 1},
    {5, 64, 1, 0, DT_NVFP4, 0, 0, 3},
    {13, 1056, 1, 0, DT_Q8_A, 0, 0, 1},
    {5, 96, 1, 0, DT_Q8_A, 0, 0, 3},
    {13, 768, 1, 768, DT_IQ4_KS, DT_F32, 0, 1},
    {5, 256, 1, 256, DT_IQ5_KS, DT_F32, 0, 3},
    {13, 512, 1, 512, DT_IQ2_KL, DT_F32, 0, 1},
};
/* Checks every `step`th number of tokens, and both kernels of a format that has two. */
static void check_level(const struct kernels *k, const char *name, uint64_t start, int step) {
    level = name;
    int before = failures, cases = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int n = 1 + (int)i % step; n <= KERNEL_TOKENS; n += step)
            for (int whole = 0; whole < 2; whole++) {
                if (whole && !k->whole[shapes[i].dtype]) continue;
                cases++, state = start + i * 100 + (unsigned)n, check(k, &shapes[i], n, whole);
            }
    printf("%-10s %s: %d cases\n", level, failures == before ? "ok" : "FAILED", cases);
}

/* With AVX-VNNI, products have the same bits as without. */
static void check_same(const struct kernels *a, const struct kernels *b, uint64_t start) {
    const int before = failures;
    level = "avx2";
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        const struct shape *s = &shapes[i];
        if (!a->whole[s->dtype]) continue;
        state = start + i;
        begin_case("%s gemv with integers, 1 row of x, %d by %d", dtype_name(s->dtype), s->rows, s->cols);
        struct mat w = make(s);
        float *x = guarded(sizeof(float) * (size_t)s->cols), *y = guarded(sizeof(float) * (size_t)s->rows),
              *z = guarded(sizeof(float) * (size_t)s->rows);
        const float *cx = x;
        for (int c = 0; c < s->cols; c++) x[c] = ldexpf(normal(), (int)(rnd() % 12));
        a->whole[s->dtype](&y, &cx, 1, &w);
        b->whole[s->dtype](&z, &cx, 1, &w);
        if (memcmp(y, z, sizeof(float) * (size_t)s->rows)) wrong("other bits than without AVX-VNNI");
        drop();
    }
    printf("%-10s %s\n", "avxvnni", failures == before ? "the same bits" : "FAILED");
}

int main(void) {
    const char *seed = getenv("KCHECK_SEED");
    uint64_t start = seed ? strtoull(seed, NULL, 0) : 1;
    printf("kcheck_quant seed %llu\n", (unsigned long long)start);
    state = start;
    check_reference();
    for (int l = CPU_SCALAR; l <= CPU_AVX512; l++) {
        level = cpu_level_name((enum cpu_level)l);
        if (!cpu_level_has((enum cpu_level)l)) {
            printf("%-10s SKIPPED: this CPU lacks it\n", level);
            continue;
        }
        struct kernels k;
        kernels_fill(&k, (enum cpu_level)l);
        check_level(&k, level, start, 1);
        if (l != CPU_AVX2) continue;
        if (cpu_flags() & CPU_F_AVXVNNI) { /* that table has AVX-VNNI */
            struct kernels plain = k;
            plain.whole[DT_INT4] = int4_gemv_avx2;
#define FILL(name) plain.whole[FORMAT_DTYPE(name)] = intdot_avx2_##name;
            FORMATS_INTDOT(FILL)
#undef FILL
            check_level(&plain, "avx2 alone", start, 1);
            check_same(&k, &plain, start);
        } else printf("avxvnni    SKIPPED: this CPU lacks it\n");
    }
#ifdef WITH_SIMDE
    struct kernels k = {0};
    kernels_scalar(&k);
    kernels_avx512_simde(&k);
    k.whole[DT_INT4] = int4_gemv_avx512_simde;
#define FILL(name) k.whole[FORMAT_DTYPE(name)] = intdot_avx512_simde_##name;
    FORMATS_INTDOT(FILL)
#undef FILL
    check_level(&k, "avx512vnni (SIMDe)", start, 3);
#endif
    return failures != 0;
}
