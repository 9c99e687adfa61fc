/* Kernels of weights of a few bits: decoding against an unpacking of GGUF's blocks written from their description,
 * products against a double-precision sum, same bits whatever rows and tokens are beside, no byte touched outside. */
#include "cpu/kernels.h"
#include "test/kcheck/random_mat.h"

static void fail(const char *what, const char *level, const struct mat *w, int n, int t, int r, double got, double want) {
    if (failures++ < 20)
        printf("FAIL %s %s %s [%d x %d] n %d: token %d row/column %d: %.9g, should be %.9g\n", level, what, dtype_name(w->dtype), w->rows, w->cols, n, t, r,
               got, want);
}

/* ---- GGUF blocks, from the format's description: a whole block at a time ---- */

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
    for (int pair = 0; pair < 4; pair++) /* 32 bytes hold part 2p below and part 2p + 1 above */
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
        double want[256];
        for (int r = 0; r < s.rows; r++)
            for (int b = 0; b < 3; b++) {
                formats[f].unpack((const uint8_t *)w.data + (size_t)r * w.stride + (size_t)(b * formats[f].bytes), want);
                for (int i = 0; i < formats[f].cols; i++) {
                    float got = mat_at(&w, r, b * formats[f].cols + i);
                    if (fabs(got - want[i]) > 0x1p-23 * fabs(want[i]) + 1e-6 * (formats[f].dtype == DT_Q4_K))
                        fail("reference", "mat_at", &w, 0, r, i, got, want[i]);
                }
            }
        drop();
    }
    printf("%-10s %s\n", "reference", failures ? "FAILED" : "ok");
}

/* ---- Kernels ---- */

static double most_of(const float *x, int cols, int from) {
    double most = 0;
    for (int c = from; c < cols && c < from + 128; c++) most = fmax(most, fabs((double)x[c]));
    return most;
}

static void check(const struct kernels *k, const char *level, const struct shape *s, int n) {
    struct mat w = make(s);
    float *x[KERNEL_TOKENS], *y[KERNEL_TOKENS], *z[KERNEL_TOKENS];
    const float *cx[KERNEL_TOKENS];
    for (int t = 0; t < n; t++) {
        cx[t] = x[t] = (float *)guarded(sizeof(float) * (size_t)s->cols);
        for (int c = 0; c < s->cols; c++) x[t][c] = normal();
        y[t] = aligned(sizeof(float) * (size_t)(s->rows + 4));
        z[t] = aligned(sizeof(float) * (size_t)(s->rows + 4));
    }
    float *row = malloc(sizeof *row * (size_t)(s->cols + 8));
    for (int r = 0; r < s->rows; r++)
        for (int pass = 0; pass < 2; pass++) {
            int c0 = pass ? (int)(rnd() % (unsigned)s->cols) : 0, c1 = pass ? c0 + (int)(rnd() % (unsigned)(s->cols - c0 + 1)) : s->cols;
            memset(row, 0x7f, sizeof *row * (size_t)(s->cols + 8));
            k->decode[s->dtype](row, &w, r, c0, c1);
            for (int c = c0; c < c1; c++) {
                float want = mat_at(&w, r, c);
                if (row[c - c0] != want) fail("decode", level, &w, n, r, c, row[c - c0], want);
            }
            if (f32_bits(row[c1 - c0]) != 0x7f7f7f7f) fail("decode wrote past", level, &w, n, r, c1, row[c1 - c0], 0);
        }
    k->gemv[s->dtype](y, cx, n, &w);
    for (int r = 0; r < s->rows; r++)
        for (int t = 0; t < n; t++) {
            double want = 0, size = 0, rounded = 0; /* what INT4's whole numbers may cost: half of a unit of each column's group */
            for (int c = 0; c < s->cols; c++) {
                double p = (double)mat_at(&w, r, c) * x[t][c];
                want += p, size += fabs(p);
                if (s->dtype == DT_INT4 && s->block_cols == 128) rounded += fabs((double)mat_at(&w, r, c)) * most_of(x[t], s->cols, c / 128 * 128) / 65000;
            }
            if (!(fabs(y[t][r] - want) <= (s->cols + 8) * 0x1p-24 * size + rounded)) fail("sum", level, &w, n, t, r, y[t][r], want);
        }
    for (int t = 0; t < n; t++)
        if (f32_bits(y[t][s->rows]) != 0xffffffff) fail("wrote past the rows", level, &w, n, t, s->rows, y[t][s->rows], 0);
    for (int t = 0; t < n; t++) { /* alone, in two pieces */
        int cut = s->rows / 3;
        struct mat a = mat_rows(w, 0, cut), b = mat_rows(w, cut, s->rows);
        float *to = z[t], *rest = z[t] + cut;
        if (cut) k->gemv[s->dtype](&to, &cx[t], 1, &a);
        k->gemv[s->dtype](&rest, &cx[t], 1, &b);
        if (memcmp(z[t], y[t], sizeof(float) * (size_t)s->rows)) fail("other bits alone", level, &w, n, t, 0, 0, 0);
    }
    for (int t = 0; t < n; t++) free(y[t]), free(z[t]);
    free(row);
    drop();
}

int main(void) {
    static const struct shape shapes[] = {
        {13, 1024, 1, 32, DT_E2M1, DT_E8M0, 0, 1},
        {9, 302, 1, 32, DT_E2M1, DT_E8M0, 3, 2},
        {6, 77, 1, 32, DT_E2M1, DT_E8M0, 0, 1},
        {7, 334, 1, 97, DT_E2M1, DT_F32, 0, 1},
        {5, 150, 1, 128, DT_E2M1, DT_BF16, 0, 1},
        {13, 1024, 1, 0, DT_Q8_0, 0, 0, 1},
        {5, 32, 1, 0, DT_Q8_0, 0, 0, 1},
        {11, 352, 1, 0, DT_Q8_0, 0, 0, 3},
        {13, 1024, 1, 0, DT_Q4_K, 0, 0, 1},
        {5, 256, 1, 0, DT_Q4_K, 0, 0, 3},
        {13, 1024, 1, 0, DT_Q6_K, 0, 0, 1},
        {5, 256, 1, 0, DT_Q6_K, 0, 0, 3},
        {37, 2304, 1, 0, DT_Q6_K, 0, 0, 1},
        {13, 1024, 1, 0, DT_Q5_K, 0, 0, 1},
        {5, 256, 1, 0, DT_Q5_K, 0, 0, 3},
        {13, 1024, 1, 0, DT_Q4_0, 0, 0, 1},
        {5, 32, 1, 0, DT_Q4_0, 0, 0, 1},
        {11, 352, 1, 0, DT_Q4_0, 0, 0, 3},
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
    };
    const char *seed = getenv("KCHECK_SEED");
    uint64_t start = seed ? strtoull(seed, NULL, 0) : 1;
    printf("kcheck_quant seed %llu\n", (unsigned long long)start);
    state = start;
    check_reference();
    for (int l = CPU_SCALAR; l <= CPU_AVX512; l++) {
        const char *level = cpu_level_name((enum cpu_level)l);
        if (!cpu_level_has((enum cpu_level)l)) {
            printf("%-10s SKIPPED: this processor lacks it\n", level);
            continue;
        }
        struct kernels k;
        kernels_fill(&k, (enum cpu_level)l);
        int before = failures, cases = 0;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
            for (int n = 1; n <= KERNEL_TOKENS; n++, cases++) state = start + i * 100 + (unsigned)n, check(&k, level, &shapes[i], n);
        printf("%-10s %s: %d cases\n", level, failures == before ? "ok" : "FAILED", cases);
    }
    return failures != 0;
}
