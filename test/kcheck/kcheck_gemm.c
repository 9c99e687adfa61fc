/* Checks many-token products (cpu/gemm.h) at every level against a double-precision sum over mat_at. Each level must
 * also leave everything outside its rows unchanged, give the same bits for any split of rows, tokens and packing, and
 * read no byte before or after its matrices, which end at a guard page. */
#include "base/mat_at.h"
#include "cpu/gemm.h"
#include "cpu/kernels.h"
#include "test/kcheck/random_mat.h"

extern const struct gemm gemm_int8_avxvnni_emulated, gemm_amx_emulated, gemm_amx_few16_emulated, gemm_amx_wide_emulated;
#ifdef WITH_SIMDE
extern const struct gemm gemm_few_simde, gemm_few16_simde, gemm_avx512_simde, gemm_avx512bf16_simde, gemm_amx_simde,
    gemm_amx_few16_simde, gemm_amx_wide_simde, gemm_int8_simde, gemm_int8_few_simde, gemm_int16_few_simde;
const struct kernels *gemm_kernels_simde(enum cpu_level level);
/* Formats that these levels leave to the generic decoder. */
const struct kernels *gemm_kernels_simde(enum cpu_level l) {
    static struct kernels k;
    kernels_scalar(&k);
    return &k;
}
#else
#define gemm_avx512_simde     gemm_avx512
#define gemm_avx512bf16_simde gemm_avx512bf16
#define gemm_amx_simde        gemm_amx
#define gemm_amx_few16_simde  gemm_amx_skinny_bf16
#define gemm_amx_wide_simde   gemm_amx_wide
#define gemm_few_simde        gemm_skinny
#define gemm_int8_simde       gemm_int8
#define gemm_int8_few_simde   gemm_int8_few
#define gemm_int16_few_simde  gemm_int16_few
#define gemm_few16_simde      gemm_skinny_bf16
#endif

static void begin(const struct gemm *g, const struct mat *w, int n, const char *more) {
    level = g->name;
    begin_case("%s gemm, %d rows, %d columns to %d%s", dtype_name(w->dtype), n, w->cols, w->rows, more);
}

/* --- One product ------------------------------------------------------------------------------ */

/* Computes y for rows [r0, r1), in `cuts` ranges and packed in `parts`; everything else in y must keep its value. */
static void product(const struct gemm *g, const struct mat *w, const float *x, const int32_t *gather, int ldx, int n,
                    int r0, int r1, int cuts, int parts, float *y, int ldy, bool accumulate) {
    void *packed = aligned(g->packed_bytes(n, w->cols)), *scratch = aligned(g->scratch_bytes(n, w->cols));
    for (int p = parts; p-- > 0;) g->pack(packed, x, gather, ldx, n, w->cols, p, parts);
    for (int c = 0; c < cuts; c++) {
        int a = r0 + (int)((long)(r1 - r0) * c / cuts), b = r0 + (int)((long)(r1 - r0) * (c + 1) / cuts);
        g->rows(w, a, b, packed, n, y, ldy, accumulate, scratch);
    }
    free(packed);
    free(scratch);
}

/* Whether kernels that round weights to BF16 round this format's: all but those that BF16 holds exactly, and those
 * without a decoder, which are split. */
static bool rounded(const struct shape *s) {
    static const uint8_t other[] = {DT_MXFP4, DT_INT4, DT_Q8_A, DT_IQ4_KS, DT_IQ5_KS, DT_IQ2_KL};
    if (s->dtype == DT_I4 || s->dtype == DT_I8 || (s->dtype == DT_E2M1 && s->scale_dtype == DT_E4M3)) return true;
    return s->dtype >= DT_Q8_0 && !memchr(other, s->dtype, sizeof other);
}

/* Bounds the error of integer sums: half a unit per column, at most 1 / 16,320 of the largest of 256 columns
 * (intdot_words.h). A minimum subtracted from a part counts separately, because the weights of columns may cancel
 * it. */
static double whole_loss(const struct mat *w, const float *row, const float *x) {
    double loss = 0;
    for (int c = 0, end; c < w->cols; c = end) {
        double most = 0, size = 0;
        end = c + 256 < w->cols ? c + 256 : w->cols;
        for (int i = c; i < end; i++) most = fmax(most, fabs((double)x[i])), size += fabs((double)row[i]);
        loss += most / 16320 / 2 * size;
    }
    return loss;
}

/* The same with eight bits and a scale for each 32 columns. */
static double int8_loss(const struct mat *w, const float *row, const float *x) {
    double loss = 0;
    for (int c = 0, end; c < w->cols; c = end) {
        double most = 0, size = 0;
        end = c + 32 < w->cols ? c + 32 : w->cols;
        for (int i = c; i < end; i++) most = fmax(most, fabs((double)x[i])), size += fabs((double)row[i]);
        loss += most / 127 / 2 * size;
    }
    return loss;
}

enum { PAD = 5, MANY = 512 };
static void check(const struct gemm *g, const struct shape *s, int n, bool exact_x, bool accumulate) {
    struct mat w = make(s);
    if (g->supports && !g->supports(&w, MANY)) return drop();
    begin(g, &w, n, accumulate ? ", added" : "");
    int k = s->cols, ldx = k + 3, ldy = s->rows + PAD, tokens = n + 4;
    float *x = guarded(sizeof(float) * ((size_t)(tokens - 1) * (size_t)ldx + (size_t)k)),
          *y = aligned(sizeof *y * (size_t)n * (size_t)ldy);
    float *again = aligned(sizeof *y * (size_t)n * (size_t)ldy), *before = aligned(sizeof *y * (size_t)n * (size_t)ldy);
    int32_t *gather = malloc(sizeof *gather * (size_t)n);
    for (size_t i = 0; i < (size_t)(tokens - 1) * (size_t)ldx + (size_t)k; i++) {
        x[i] = normal();
        if (exact_x) x[i] = bf16_to_f32(f32_to_bf16(x[i]));
    }
    for (int i = 0; i < n; i++) gather[i] = (int32_t)(rnd() % (unsigned)tokens);
    for (size_t i = 0; i < (size_t)n * (size_t)ldy; i++)
        y[i] = again[i] = before[i] = accumulate ? normal() : f32_of_bits(0x7fc0dead);
    int r0 = s->rows > 40 ? 3 : 0, r1 = s->rows;
    product(g, &w, x, gather, ldx, n, r0, r1, 1, 1, y, ldy, accumulate);
    product(g, &w, x, gather, ldx, n, r0, r1, 3, 2, again, ldy, accumulate);
    if (memcmp(y, again, sizeof *y * (size_t)n * (size_t)ldy)) wrong("other bits when rows and packing are split");
    const struct gemm *same = g == &gemm_int8_avxvnni || g == &gemm_int8_avxvnni_emulated ? &gemm_int8_avx2 : NULL;
    if (same) {
        memcpy(again, before, sizeof *y * (size_t)n * (size_t)ldy);
        product(same, &w, x, gather, ldx, n, r0, r1, 1, 1, again, ldy, accumulate);
        if (memcmp(y, again, sizeof *y * (size_t)n * (size_t)ldy)) wrong("other bits than with AVX2");
    }

    bool split = s->dtype == DT_F32 || s->dtype == DT_F16 || s->dtype == DT_NF4 || s->dtype >= DT_Q8_0 ||
                 (s->block_cols && s->block_cols % 32);
    double unit = (k + 8) * 0x1p-24;
    const bool rounds_x = !exact_x || (g->scales_x && s->dtype == DT_E4M3 && s->block_rows >= 64);
    if (g->bf16 && rounds_x) unit += 0x1p-8; /* BF16 keeps 8 bits, rounded */
    if (g->bf16x2 && rounds_x) unit += 0x1p-16;
    if (g->bf16 && split) unit += 0x1p-16;
    if (g->rounds_weights && rounded(s)) unit += 0x1p-9;
    float *row = malloc(sizeof *row * (size_t)k);
    for (int r = 0; r < s->rows; r++) {
        for (int c = 0; c < k; c++) row[c] = mat_at(&w, r, c);
        for (int i = 0; i < n; i++) {
            size_t at = (size_t)i * (size_t)ldy + (size_t)r;
            if (r < r0 || r >= r1) {
                if (memcmp(&y[at], &before[at], 4)) mismatch("what is outside the rows", i, r, y[at], before[at], 0);
                continue;
            }
            double want = accumulate ? before[at] : 0, size = fabs(want) * 0.1;
            const float *xi = x + (size_t)gather[i] * (size_t)ldx;
            for (int c = 0; c < k; c++) want += (double)row[c] * xi[c], size += fabs((double)row[c] * xi[c]);
            double bound = unit * size + 1e-35 +
                           (g->is_int16  ? whole_loss(&w, row, xi)
                            : g->is_int8 ? int8_loss(&w, row, xi)
                                         : 0);
            if (!(fabs(y[at] - want) <= bound)) mismatch("sum", i, r, y[at], want, bound);
        }
    }
    for (int i = 0; i < n; i++)
        for (int r = s->rows; r < ldy; r++)
            if (memcmp(&y[(size_t)i * (size_t)ldy + (size_t)r], &before[(size_t)i * (size_t)ldy + (size_t)r], 4))
                wrong("row %d is written past its end, at element %d", i, r);

    /* A token alone gives the same bits as among others. */
    int one = n / 2;
    float *alone = aligned(sizeof *alone * (size_t)ldy);
    memcpy(alone, before + (size_t)one * (size_t)ldy, sizeof *alone * (size_t)ldy);
    product(g, &w, x, gather + one, ldx, 1, r0, r1, 1, 1, alone, ldy, accumulate);
    if (memcmp(alone, y + (size_t)one * (size_t)ldy, sizeof *alone * (size_t)ldy))
        wrong("row %d has other bits alone", one);
    free(alone), free(row), free(gather), free(y), free(again), free(before);
    drop();
}

/* Checks every code by one-hot tokens: the product is the weight itself, bit by bit. least: scales are adjacent powers
 * of two from that exponent up to the largest that folds into a BF16 number (gemm_folds_scales); negative: any
 * scale. */
static void check_codes(const struct gemm *g, uint8_t dtype, int least) {
    int cols = 256, rows = dtype == DT_BF16 || dtype == DT_F16 ? 256 : 40;
    struct shape s = {rows, cols, 1, 128, dtype, DT_F32, 0, 1};
    if (dtype == DT_BF16 || dtype == DT_F16) s.block_cols = 0;
    if (least >= 0) s.block_cols = 64, s.scale_dtype = DT_E8M0, s.rows = rows = (246 - least) / 4 + 1;
    struct mat w = make(&s);
    if (g->supports && !g->supports(&w, MANY)) return drop();
    begin(g, &w, cols, ", all codes");
    for (int i = 0; least >= 0 && i < 4 * rows; i++)
        ((uint8_t *)w.scale)[i] = (uint8_t)(least + i < 246 ? least + i : 246);
    uint8_t *d = (uint8_t *)w.data;
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < cols; c++) {
            uint16_t h = (uint16_t)(r << 8 | c);
            if (dtype == DT_BF16 && (h & 0x7f80) == 0x7f80) h &= 0x8000; /* no infinities: they make every token NaN */
            if (dtype == DT_F16 && (h & 0x7c00) == 0x7c00) h &= 0x8000;
            if (dtype == DT_BF16 || dtype == DT_F16) memcpy(d + (size_t)r * w.stride + 2 * c, &h, 2);
            else if (dtype == DT_E2M1) d[(size_t)r * w.stride + (size_t)c / 2] = (uint8_t)(c / 2 + r);
            else d[(size_t)r * w.stride + (size_t)c] = (uint8_t)(dtype == DT_E4M3 && (c & 0x7f) == 0x7f ? 0x80 : c);
        }
    float *x = calloc((size_t)cols * (size_t)cols, sizeof *x), *y = aligned(sizeof *y * (size_t)cols * (size_t)rows);
    for (int i = 0; i < cols; i++) x[i * cols + i] = 1;
    product(g, &w, x, NULL, cols, cols, 0, rows, 1, 1, y, rows, false);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < cols; i++) {
            float want = mat_at(&w, r, i), got = y[i * rows + r];
            /* BF16 instructions flush subnormals to zero */
            bool tiny = (g->bf16 || g->bf16x2) && fabsf(want) < 0x1p-126f;
            if (got != want && !(tiny && got == 0)) mismatch("code", i, r, got, want, 0);
        }
    if (dtype == DT_E4M3) { /* NaN poisons its row and no other */
        d[5 * w.stride + 77] = 0x7f;
        d[38 * w.stride + 255] = 0xff;
        product(g, &w, x, NULL, cols, cols, 0, rows, 1, 1, y, rows, false);
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < cols; i++) {
                bool want = r == 5 || r == 38, got = isnan(y[i * rows + r]);
                if (want != got) wrong("row %d, element %d is %s", i, r, want ? "no NaN" : "NaN by another row's");
            }
    }
    free(x), free(y);
    drop();
}

/* Checks formats with scales between the codes by one-hot tokens: kernels that round give the nearest BF16 number of
 * each weight, others are within 2^-16. */
static void check_rounded(const struct gemm *g, const struct shape *s) {
    struct mat w = make(s);
    if (g->supports && !g->supports(&w, MANY)) return drop();
    const int cols = s->cols, rows = s->rows;
    const bool near_bf16 = g->rounds_weights && rounded(s);
    float *x = calloc((size_t)cols * (size_t)cols, sizeof *x), *y = aligned(sizeof *y * (size_t)cols * (size_t)rows);
    for (int i = 0; i < cols; i++) x[i * cols + i] = 1;
    for (int few = 0; few < 2; few++) { /* 48 tokens at once, and all */
        begin(g, &w, few ? 48 : cols, ", one-hot");
        for (int i = 0, n; i < cols; i += n) {
            n = few && cols - i > 48 ? 48 : cols - i;
            product(g, &w, x + (size_t)i * (size_t)cols, NULL, cols, n, 0, rows, 1, 1, y + (size_t)i * (size_t)rows,
                    rows, false);
        }
        for (int r = 0; r < rows; r++)
            for (int i = 0; i < cols; i++) {
                const float at = mat_at(&w, r, i), got = y[i * rows + r],
                            want = near_bf16 ? bf16_to_f32(f32_to_bf16(at)) : at;
                if (!(fabsf(got - want) <= (near_bf16 ? 0 : fabsf(at) * 0x1p-16f)))
                    mismatch("weight", i, r, got, want, near_bf16 ? 0 : fabs((double)at) * 0x1p-16);
            }
    }
    free(x), free(y);
    drop();
}

/* Codes at an end of their range: the most negative weights, or all bits set (FP4: the largest number). */
static void fill_codes(const struct mat *w, bool ones) {
    const size_t bytes = dtype_bytes(w->dtype, 256), block = dtype_bytes(w->dtype, 1);
    uint8_t *p = (uint8_t *)w->data, *end = p + (size_t)w->rows * w->stride;
    for (uint8_t *b = p; b < end && ones; b += block) {
        const size_t head = w->dtype == DT_NVFP4 ? 4 : w->dtype == DT_MXFP4 ? 1 : 0; /* scales stay */
        uint8_t before[256];
        memcpy(before, b, block);
        memset(b + head, head ? 0x77 : 0xff, block - head);
        for (size_t k = 0; k < sizeof halves_inside / sizeof *halves_inside; k++)
            if (halves_inside[k].dtype == w->dtype)
                memcpy(b + halves_inside[k].scale, before + halves_inside[k].scale, 2),
                    memcpy(b + halves_inside[k].min, before + halves_inside[k].min, 2);
    }
    for (; p < end && !ones; p += bytes) {
        if (w->dtype == DT_Q4_K || w->dtype == DT_Q5_K) memset(p + 4, 0xff, bytes - 4);
        if (w->dtype == DT_Q6_K) memset(p, 0, 192), memset(p + 192, 0x80, 16);
        if (w->dtype == DT_IQ4_XS) memset(p + 2, 0, bytes - 2);
        for (size_t b = 0; w->dtype == DT_Q8_0 && b < bytes; b += 34) memset(p + b + 2, 0x80, 32);
    }
}
/* The largest integer sums: every weight at the extreme, x close to twice a power of two; and non-finite values. */
static void check_extremes(const struct gemm *g) {
    enum { ROWS = 9, COLS = 512, N = 5, FEW = 2 };
    static const uint8_t formats[] = {DT_Q4_K, DT_Q5_K, DT_Q6_K,  DT_IQ4_XS, DT_Q8_0, DT_Q5_0,   DT_Q5_1,
                                      DT_Q4_0, DT_Q4_1, DT_MXFP4, DT_NVFP4,  DT_Q2_K, DT_IQ4_NL, DT_Q3_K};
    for (size_t f = 0; f < 2 * sizeof formats; f++) {
        struct shape s = {ROWS, COLS, 1, 0, formats[f / 2], 0, 0, 1};
        struct mat w = make(&s);
        if (g->supports && !g->supports(&w, MANY)) {
            drop();
            continue;
        }
        fill_codes(&w, f % 2);
        float *x = guarded(sizeof *x * N * COLS), y[N * ROWS];
        for (int i = 0; i < N * COLS; i++) x[i] = i / COLS % 2 ? -1.9921f : 1.9921f;
        for (int n = FEW; n <= N; n += N - FEW) {
            begin(g, &w, n, f % 2 ? ", all bits" : ", extremes");
            product(g, &w, x, NULL, COLS, n, 0, ROWS, 1, 1, y, ROWS, false);
            for (int t = 0; t < n; t++)
                for (int r = 0; r < ROWS; r++) {
                    double want = 0, size = 0;
                    for (int c = 0; c < COLS; c++)
                        want += (double)mat_at(&w, r, c) * x[t * COLS + c],
                            size += fabs((double)mat_at(&w, r, c) * x[t * COLS + c]);
                    /* all |x| are equal */
                    if (!(fabs(y[t * ROWS + r] - want) <= size * 0x1p-14))
                        mismatch("sum", t, r, y[t * ROWS + r], want, size * 0x1p-14);
                }
        }
        x[2 * COLS + 300] = NAN, x[3 * COLS + 7] = -INFINITY;
        product(g, &w, x, NULL, COLS, N, 0, ROWS, 1, 1, y, ROWS, false);
        for (int t = 0; t < N; t++)
            for (int r = 0; r < ROWS; r++)
                if (isfinite(y[t * ROWS + r]) != (t != 2 && t != 3))
                    wrong("row %d, element %d is %g: what is not finite is hidden or spreads", t, r,
                          (double)y[t * ROWS + r]);
        drop();
    }
}

/* Short rows beside one whose scales are infinite. */
static void check_neighbours(const struct gemm *g) {
    enum { ROWS = 9, COLS = 160, N = 5 };
    static const uint8_t formats[] = {DT_Q8_0, DT_Q4_0, DT_Q5_1};
    for (size_t f = 0; f < sizeof formats; f++) {
        struct mat w = make(&(struct shape){ROWS, COLS, 1, 0, formats[f], 0, 0, 1});
        if (!g->supports || g->supports(&w, N)) {
            begin(g, &w, N, ", beside infinite scales");
            uint8_t *row = (uint8_t *)w.data + 4 * w.stride;
            for (size_t i = 0, size = w.stride / (COLS / 32); i < COLS / 32; i++)
                row[i * size] = 0, row[i * size + 1] = 0x7c;
            float *x = guarded(sizeof *x * N * COLS), y[N * ROWS];
            for (int i = 0; i < N * COLS; i++) x[i] = uniform();
            product(g, &w, x, NULL, COLS, N, 0, ROWS, 1, 1, y, ROWS, false);
            for (int i = 0; i < N * ROWS; i++)
                if (isfinite(y[i]) != (i % ROWS != 4))
                    wrong("row %d, element %d is %g", i / ROWS, i % ROWS, (double)y[i]);
        }
        drop();
    }
}

/* Small batches keep 16 bits of the activations of codes with scales beside them; large ones get 8 bits. */
static void check_small_batches(void) {
    static const struct shape shapes[] = {{32, 256, 1, 32, DT_I4, DT_BF16, 0, 1},
                                          {32, 256, 1, 128, DT_I4, DT_F32Z, 0, 1},
                                          {32, 256, 1, 32, DT_E2M1, DT_E8M0, 0, 1},
                                          {32, 256, 1, 16, DT_E2M1, DT_E4M3, 0, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct mat w = make(&shapes[i]);
        begin_case("kernel of %s in small and large batches", dtype_name(w.dtype));
        for (int l = CPU_AVX2; l <= CPU_AVX512; l++) {
            const struct gemm *many = gemm_for_weights((enum cpu_level)l, 100, 100, false, &w);
            for (int n = 1; n <= BATCH_INVARIANT_ROWS; n++) {
                const struct gemm *few = gemm_for_weights((enum cpu_level)l, n, BATCH_INVARIANT_ROWS, false, &w);
                CHECK(!few || !few->is_int8);
            }
            CHECK((l == CPU_AVX512 && !gemm_has(&gemm_int8)) || (many && many->is_int8));
        }
        drop();
    }
}

int main(void) {
    static const struct shape shapes[] = {
        {64, 256, 128, 128, DT_E4M3, DT_F32, 0, 1},
        {160, 1200, 128, 128, DT_E4M3, DT_F32, 0, 1},
        {33, 130, 128, 128, DT_E4M3, DT_BF16, 0, 1},
        {1, 1, 128, 128, DT_E4M3, DT_F32, 0, 1},
        {50, 1100, 1, 1 << 20, DT_E4M3, DT_BF16, 0, 1},
        {300, 192, 1, 1 << 20, DT_E4M3, DT_F32, 0, 1},
        {192, 320, 1, 320, DT_E4M3, DT_BF16, 0, 1},
        {192, 80, 1, 80, DT_E4M3, DT_F32, 0, 1},
        {300, 192, 1, 0, DT_BF16, 0, 0, 1},
        {300, 320, 1, 0, DT_F32, 0, 0, 1},
        {70, 700, 128, 128, DT_E4M3, DT_F32, 77, 3},
        {40, 650, 64, 192, DT_E4M3, DT_F32, 0, 1},
        {35, 333, 16, 100, DT_E4M3, DT_F16, 0, 1},
        {40, 520, 128, 128, DT_E4M3, DT_E8M0, 5, 1},
        {150, 1000, 24, 64, DT_E4M3, DT_E8M0, 5, 1},
        {160, 1200, 128, 128, DT_E4M3, DT_F32, 0, 1, true},
        {70, 700, 128, 192, DT_E4M3, DT_F32, 77, 3, true},
        {41, 640, 1, 1 << 20, DT_E4M3, DT_BF16, 0, 1, true},
        {192, 288, 128, 128, DT_E4M3, DT_F32, 0, 1, true},
        {150, 144, 64, 64, DT_E4M3, DT_E8M0, 0, 1, true},
        {37, 515, 1, 0, DT_E4M3, DT_F32, 0, 1},
        {45, 2050, 1, 0, DT_BF16, 0, 0, 1},
        {33, 31, 1, 0, DT_BF16, 0, 0, 1},
        {31, 513, 1, 0, DT_F16, 0, 0, 1},
        {47, 777, 1, 0, DT_F32, 0, 0, 1},
        {34, 1088, 1, 32, DT_E2M1, DT_E8M0, 0, 1},
        {20, 96, 1, 32, DT_E2M1, DT_E8M0, 0, 2},
        {33, 672, 1, 16, DT_E2M1, DT_E4M3, 0, 1},
        {34, 800, 1, 64, DT_NF4, DT_F32, 0, 1},
        {34, 800, 1, 32, DT_I4, DT_BF16, 0, 1},
        {21, 320, 1, 32, DT_I4, DT_F16, 3, 2},
        {35, 896, 1, 128, DT_I4, DT_F16, 0, 1},
        {34, 544, 1, 128, DT_I4, DT_F32Z, 0, 1},
        {35, 352, 1, 32, DT_I4, DT_F32Z, 0, 1},
        {33, 544, 1, 128, DT_I8, DT_BF16, 0, 1},
        {35, 333, 1, 1 << 20, DT_I8, DT_F32, 3, 2},
        {33, 544, 1, 544, DT_I8, DT_F16, 3, 2},
        {17, 96, 40, 1 << 20, DT_I8, DT_F32, 0, 1},
        {20, 288, 1, 333, DT_I4, DT_F32, 5, 3},
        {34, 416, 1, 96, DT_I4, DT_F32, 0, 1},
        {41, 1120, 1, 0, DT_Q8_0, 0, 0, 1},
        {33, 96, 1, 0, DT_Q8_0, 0, 0, 1},
        {34, 768, 1, 0, DT_Q4_K, 0, 0, 1},
        {35, 1280, 1, 0, DT_Q6_K, 0, 0, 1},
        {34, 768, 1, 0, DT_Q5_K, 0, 0, 1},
        {33, 352, 1, 0, DT_Q4_0, 0, 0, 1},
        {33, 352, 1, 0, DT_IQ4_NL, 0, 0, 1},
        {34, 768, 1, 0, DT_IQ4_XS, 0, 0, 1},
        {33, 352, 1, 0, DT_MXFP4, 0, 0, 1},
        {33, 352, 1, 0, DT_Q4_1, 0, 0, 1},
        {33, 352, 1, 0, DT_Q5_0, 0, 0, 1},
        {34, 96, 1, 0, DT_Q5_1, 0, 0, 1},
        {34, 768, 1, 0, DT_Q2_K, 0, 0, 1},
        {34, 768, 1, 0, DT_Q3_K, 0, 0, 1},
        {35, 512, 1, 0, DT_TQ2_0, 0, 0, 1},
        {34, 384, 1, 0, DT_Q1_0, 0, 0, 1},
        {35, 320, 1, 0, DT_Q2_0, 0, 0, 1},
        {34, 512, 1, 0, DT_TQ1_0, 0, 0, 1},
        {33, 320, 40, 320, DT_NVFP4, DT_F32, 0, 1},
        {35, 192, 1, 0, DT_NVFP4, 0, 0, 1},
        {34, 352, 1, 0, DT_Q8_A, 0, 0, 1},
        {33, 512, 1, 512, DT_IQ4_KS, DT_F32, 0, 1},
        {34, 768, 1, 768, DT_IQ5_KS, DT_F32, 0, 1},
        {35, 512, 1, 512, DT_IQ2_KL, DT_F32, 0, 1},
        {33, 768, 1, 0, DT_IQ2_XXS, 0, 0, 1},
        {35, 512, 1, 0, DT_IQ2_XS, 0, 0, 1},
        {34, 512, 1, 0, DT_IQ2_S, 0, 0, 1},
        {35, 512, 1, 0, DT_IQ3_XXS, 0, 0, 1},
        {33, 512, 1, 0, DT_IQ3_S, 0, 0, 1},
        {34, 512, 1, 0, DT_IQ1_S, 0, 0, 1},
        {35, 256, 1, 0, DT_IQ1_M, 0, 0, 1},
        {33, 352, 1, 128, DT_INT4, DT_BF16, 0, 1},
    };
    static const int counts[] = {1, 2, 5, 6, 7, 9, 11, 12, 13, 16, 17, 24, 25, 31, 32, 33, 49, 70, 130, 200};
    static const uint8_t coded[] = {DT_E4M3, DT_BF16, DT_F16, DT_E2M1};
    static const struct row {
        const struct gemm *g;
        int many; /* kernels that process more than 96 tokens at once: one of this many shapes has that many; 0: none */
        bool emulated, simde;
    } all[] = {
        {&gemm_scalar},
        {&gemm_avx2},
        {&gemm_int8, 2},
        {&gemm_int8_few, 2},
        {&gemm_int16_few, 2},
        {&gemm_int8_avx2, 3},
        {&gemm_int8_avxvnni, 3},
        {&gemm_int8_avxvnni_emulated, 3, true},
        {&gemm_avx512},
        {&gemm_avx512bf16},
        {&gemm_skinny},
        {&gemm_skinny_bf16},
        {&gemm_amx, 1},
        {&gemm_amx_skinny_bf16},
        {&gemm_amx_wide, 4},
#ifndef WITHOUT_EMULATED /* this CPU has no AMX, or long_tests */
        {&gemm_amx_emulated, 4, true},
        {&gemm_amx_few16_emulated, 0, true},
        {&gemm_amx_wide_emulated, 0, true},
#endif
#ifndef WITHOUT_SIMDE
        {&gemm_few_simde, 0, true, true},
        {&gemm_few16_simde, 0, true, true},
        {&gemm_int8_simde, 0, true, true},
        {&gemm_int8_few_simde, 0, true, true},
        {&gemm_int16_few_simde, 0, true, true},
        {&gemm_avx512_simde, 0, true, true},
        {&gemm_avx512bf16_simde, 0, true, true},
        {&gemm_amx_simde, 0, true, true},
        {&gemm_amx_few16_simde, 0, true, true},
        {&gemm_amx_wide_simde, 0, true, true},
#endif
    };
    const char *seed = getenv("KCHECK_SEED");
    uint64_t start = seed ? strtoull(seed, NULL, 0) : 1;
    printf("kcheck_gemm seed %llu\n", (unsigned long long)start);
    for (size_t a = 0; a < sizeof all / sizeof *all; a++) {
        const struct gemm *g = all[a].g;
        const bool simde = all[a].simde, emulated = all[a].emulated;
#ifndef WITH_SIMDE
        if (simde) {
            printf("%-10s (SIMDe) SKIPPED: libsimde-dev was not found when this was built\n", g->name);
            continue;
        }
#endif
        const bool avx2 = g == &gemm_int8_avxvnni_emulated; /* what its emulation needs */
        if (simde      ? false
            : avx2     ? !gemm_has(&gemm_int8_avx2)
            : emulated ? !gemm_has(&gemm_avx512bf16) || !(cpu_flags() & CPU_F_GFNI)
                       : !gemm_has(g)) {
            printf("%-10s %s SKIPPED: this CPU lacks %s\n", g->name, emulated ? "emulated" : "",
                   avx2       ? "AVX2"
                   : emulated ? "AVX-512 BF16, VBMI or GFNI"
                              : g->name);
            continue;
        }
        int before = failures, cases = 0;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (size_t j = 0; j < sizeof counts / sizeof *counts; j++) {
                state = start + i * 1000 + j;
                if (counts[j] > 70 && (!all[a].many || i % (size_t)all[a].many)) continue;
                /* slow: a quarter of the pairs, or fewer */
                if ((g == &gemm_scalar || emulated) && (i + j) % (simde ? 17 : 4)) continue;
                check(g, &shapes[i], counts[j], j % 2, j % 3 == 0), cases++;
            }
        state = start;
        const struct shape large = {300, 1100, 128, 128, DT_E4M3, DT_F32, 0, 1};
        if (g != &gemm_scalar && !simde) check(g, &large, 1030, true, false), cases++; /* several chunks of tokens */
        for (size_t i = 0; i < sizeof coded; i++) check_codes(g, coded[i], -1), cases++;
        check_codes(g, DT_E4M3, 10), check_codes(g, DT_E4M3, 0), cases += 2;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes && g != &gemm_scalar && !simde; i++)
            if (shapes[i].cols < 1024 && (shapes[i].scale_dtype == DT_E8M0 || rounded(&shapes[i])))
                check_rounded(g, &shapes[i]), cases++;
        if (g->is_int16 || g->is_int8) check_extremes(g), check_neighbours(g), cases += 2;
        printf("%-10s %s %s: %d cases\n", g->name, emulated ? "emulated (speed NOT MEASURED)" : "",
               failures == before ? "ok" : "FAILED", cases);
    }
    check_small_batches();
    return failures != 0;
}
