/* The many-token product in plain C: the reference for all others. */
#include "base/mat_at.h"
#include "base/race.h"
#include "cpu/gemm_inner.h"

static size_t scalar_scratch(int n, int k) { return (size_t)gemm_blocks_f32(k) * GEMM_K_F32 * sizeof(float); }

static void scalar_rows(const struct mat *w, int r0, int r1, const void *packed, int n, float *y, int ldy,
                        bool accumulate, void *scratch) {
    enum { SIDE = 4 }; /* tokens whose sums are computed side by side; the last one repeats */
    float *row = scratch;
    for (int i = 0; i < n; i++) race_writes(y + (size_t)i * (size_t)ldy + r0, (size_t)(r1 - r0) * sizeof *y);
    race_reads(packed, gemm_packed_f32(n, w->cols));
    const struct mat read = mat_rows(*w, r0, r1);
    race_reads(read.data, mat_span(&read));
    for (int r = r0; r < r1; r++) {
        mat_row(w, r, row);
        for (int i = 0; i < n; i += SIDE) {
            float sum[SIDE] = {0};
            for (int b = 0; b < gemm_blocks_f32(w->cols); b++) {
                const float *x[SIDE], *v = row + b * GEMM_K_F32;
                const int m = w->cols - b * GEMM_K_F32 < GEMM_K_F32 ? w->cols - b * GEMM_K_F32 : GEMM_K_F32;
                for (int t = 0; t < SIDE; t++)
                    x[t] = (const float *)packed +
                           ((size_t)b * (size_t)n + (size_t)(i + t < n ? i + t : n - 1)) * GEMM_K_F32;
                const float *x0 = x[0], *x1 = x[1], *x2 = x[2], *x3 = x[3];
                float p0 = 0, p1 = 0, p2 = 0, p3 = 0;
                for (int c = 0; c < m; c++)
                    p0 += v[c] * x0[c], p1 += v[c] * x1[c], p2 += v[c] * x2[c], p3 += v[c] * x3[c];
                sum[0] += p0, sum[1] += p1, sum[2] += p2, sum[3] += p3;
            }
            for (int t = 0; t < SIDE && i + t < n; t++) {
                float *out = y + (size_t)(i + t) * (size_t)ldy + r;
                *out = accumulate ? *out + sum[t] : sum[t];
            }
        }
    }
}

const struct gemm gemm_scalar = {
    .name = "scalar",
    .row_tile = 1,
    .packed_bytes = gemm_packed_f32,
    .pack = gemm_pack_f32,
    .scratch_bytes = scalar_scratch,
    .rows = scalar_rows,
};
