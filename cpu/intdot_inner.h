/* Integer dot product GEMV for block formats: the walker, shared by the files that define a block (intdot_*_<isa>.c,
 * each compiled once per format that it supports; meson.build: FORMAT and ISA).
 *
 * Why. Memory delivers about 4.6 bytes per cycle and core, which leaves 14 cycles, i.e. 28 vector instructions of 64
 * bytes or 45 of 32, per 64 bytes of weights. Converting four-bit codes to float32 takes 10 instructions per 16
 * elements and multiplying them 8 more: 80 per 64 bytes, twice that with AVX2. As integers, an instruction multiplies
 * 64 of them, or 16 with AVX2, and the other costs of a block are amortised over 128 to 256 (counted in each file).
 *
 * x becomes 16-bit integers, q * 2^e with |q| < 32,640, one e per 16 or 32 columns (K blocks), 32, or 256 (TQ blocks).
 * So the error of x is at most half a unit, 2^-15 of the largest element of these columns; a BF16 x is exact unless
 * the columns differ by more than 2^7. Dot products with a block's codes are exact; then float begins. The order of a
 * row's sum is fixed: blocks in order, in each of V's lanes; lanes at the end; independent of the other rows and
 * tokens.
 *
 * The including file defines before: V and its wrappers, DTYPE, FLOATS (kernels for unsupported weights), GROUP
 * (columns packed together), BYTES (their bytes in a row), TURN (groups of a row before the next row's), EACH_ROW
 * (EACH, or `for`, which compiles in a third of the time without a cost for longer turns), struct group; after:
 * group_make and group_dot, or turn_dot if it defines TURNS. */
#include <string.h>

#include "base/scale.h"

#ifdef ZEROS
enum { INT4_SCALE = 1 };
#else
enum { INT4_SCALE = 2 };
#endif
enum { E4M3_AS_F16 = 256 }; /* an E4M3 whose bits are shifted into an fp16 is 256 times smaller */
enum {
    AHEAD = 2560, /* prefetch distance per row, in bytes */
    SCALE_BYTES = DTYPE == DT_E2M1 ? 1
                  : DTYPE == DT_I4 ? INT4_SCALE
                                   /* size of a separate scale (E8M0 or E4M3, BF16), or its share for 32 columns; 0:
                                      none */
                                   : 0,
#ifdef ZEROS
    SCALE_SIZE = 4, /* one of 128 columns */
#else
    SCALE_SIZE = SCALE_BYTES,
#endif
#ifdef E4M3_SCALES
    SCALES = 2, /* scales of 32 columns */
#else
    SCALES = 1,
#endif
    /* prefetch distance for the separate scales; the 64 rounds up to a cache line */
    SCALES_AHEAD = AHEAD * SCALE_BYTES * SCALES / 16 + 64,
    /* rows read at a time: each is a sequential stream, which memory serves best (gemv_inner.h) */
    ROWS = 4,
    STREAM = 256, /* rows of one token's chunk */
    /* rows that stay in a cache while several tokens are processed */
    CHUNK = 32,
    COLUMNS = 32768,                            /* total over all tokens processed together */
    BESIDE = GROUP / 32 * SCALES * SCALE_BYTES, /* separate scale bytes per group */
};

/* Packs n <= GROUP columns, and zeros after them. */
INLINE void group_make(struct group *g, const float *x, int n);
#ifdef TURNS
/* sum[r][t] += products of `turn` groups of R rows and x[t * ld], t < N, without separate scales; R * N <= 4. Advances
 * row[r] past them. */
INLINE void turn_dot(V (*sum)[4], const uint8_t **row, const uint8_t **scale, const struct group *x, int ld, int turn,
                     const int R, const int N);
#else
/* sum[t] += products of the group at p, with separate scales at s, and x[t * ld], t < N. n of its columns exist; a
 * constant if all do. */
INLINE void group_dot(V *sum, const uint8_t *p, const uint8_t *s, const struct group *x, int ld, const int n,
                      const int N);
/* Adds the products of a turn of one row, whose group and scale pointers it advances. */
INLINE void turn_dot(V (*sum)[4], const uint8_t **row, const uint8_t **scale, const struct group *x, int ld, int turn,
                     const int R, const int N) {
    const uint8_t *p = row[0], *s = scale[0];
    V part[4];
    EACH (int t = 0; t < N; t++) part[t] = sum[0][t];
    if (BESIDE) _mm_prefetch((const char *)s + SCALES_AHEAD, _MM_HINT_T0); /* prefetched as a stream of its own */
    for (int k = 0; k < turn; k++, x++) {
        EACH (int line = 0; line < (BYTES + 63) / 64; line++)
            _mm_prefetch((const char *)p + AHEAD + 64 * line, _MM_HINT_T0);
        group_dot(part, p, s, x, ld, GROUP, N);
        p += BYTES, s += BESIDE;
    }
    EACH (int t = 0; t < N; t++) sum[0][t] = part[t];
    row[0] = p, scale[0] = s;
}
#endif

/* What group_dot leaves out of the scales of a row. */
INLINE float gain(const struct mat *w, int row) {
    if (DTYPE == DT_NVFP4) return scale_load(w, scale_row(w, row)) * E4M3_AS_F16;
    return SCALES == 2 ? w->scale_gain * E4M3_AS_F16 : 1;
}
/* ROWS rows, r0 and each `gap` further: y[t][row] = product with x[t * ld]. Rows past the last one repeat it. */
INLINE void group_rows(float *const *y, const struct mat *w, const struct group *x, int ld, int r0, int gap, int last,
                       const int N) {
#ifdef TURNS
    const int R = N == 1 ? 2 : 1; /* rows that share loads of x */
#else
    const int R = 1;
#endif
    const uint8_t *row[ROWS], *scale[ROWS];
    int at[ROWS];
    V sum[ROWS][4];
    EACH (int i = 0; i < ROWS; i++) {
        at[i] = r0 + i * gap < last ? r0 + i * gap : last;
        row[i] = (const uint8_t *)w->data + (size_t)at[i] * w->stride;
        scale[i] = BESIDE ? (const uint8_t *)w->scale + SCALE_SIZE * scale_row(w, at[i]) : row[i];
        EACH (int t = 0; t < N; t++) sum[i][t] = vzero();
    }
    int left = w->cols / GROUP;
    for (int turn; left > 0; left -= turn, x += turn) {
        turn = left < TURN ? left : TURN;
        EACH_ROW(int i = 0; i < ROWS; i += R) turn_dot(sum + i, row + i, scale + i, x, ld, turn, R, N);
    }
#ifndef TURNS
    if (FORMAT_BLOCK(FORMAT) < GROUP && w->cols % GROUP)
        EACH_ROW(int i = 0; i < ROWS; i++) group_dot(sum[i], row[i], scale[i], x, ld, w->cols % GROUP, N);
#endif
    EACH (int i = 0; i < ROWS; i++)
        EACH (int t = 0; t < N; t++) y[t][at[i]] = vsum(sum[i][t]) * gain(w, at[i]);
}
INLINE void chunk_rows(float *const *y, const struct mat *w, const struct group *x, int ld, int base, int rows,
                       const int N) {
    const int gap = rows / ROWS, last = base + rows - 1;
    for (int i = 0; i < gap + (gap * ROWS < rows); i++)
        group_rows(y, w, x, ld, i < gap ? base + i : base + gap * ROWS, i < gap ? gap : 1, last, N);
}
INLINE void some_tokens(float *const *y, const float *const *x, int n, const struct mat *w, int groups) {
    struct group packed[COLUMNS / GROUP];
    const int chunk = n > 1 ? CHUNK : STREAM;
    for (int t = 0; t < n; t++)
        for (int g = 0; g < groups; g++)
            group_make(&packed[t * groups + g], x[t] + g * GROUP,
                       w->cols - g * GROUP < GROUP ? w->cols - g * GROUP : GROUP);
    for (int base = 0; base < w->rows; base += chunk) {
        const int rows = w->rows - base < chunk ? w->rows - base : chunk;
        int t = 0;
        for (; t + 4 <= n; t += 4) chunk_rows(y + t, w, packed + t * groups, groups, base, rows, 4);
        if (n - t >= 2) chunk_rows(y + t, w, packed + t * groups, groups, base, rows, 2), t += 2;
        if (n - t >= 1) chunk_rows(y + t, w, packed + t * groups, groups, base, rows, 1);
    }
}
static void all_tokens(float *const *y, const float *const *x, int n, const struct mat *w) {
    const int groups = (w->cols + GROUP - 1) / GROUP, most = groups ? COLUMNS / GROUP / groups : 1;
    for (int t = 0; t < n; t += most) some_tokens(y + t, x + t, n - t < most ? n - t : most, w, groups);
}
/* True if group_dot supports the scales' layout; else float32 kernels are used. */
static bool takes(const struct mat *w) {
    if (w->cols > COLUMNS) return false;
    if (SCALES == 2) return w->scale && w->scale_dtype == DT_E4M3 && w->block_cols == 16;
    if (DTYPE == DT_NVFP4) return !w->scale || (w->scale_dtype == DT_F32 && w->block_cols >= w->cols);
    if (BESIDE && SCALE_SIZE == 4) return w->scale && w->scale_dtype == DT_F32Z && w->block_cols == 128;
    return BESIDE ? w->scale && w->scale_dtype == (DTYPE == DT_I4 ? DT_BF16 : DT_E8M0) && w->block_cols == 32
                  : !w->scale;
}

#ifdef ZEROS
/* Scales of 16 bits, whose codes have the zero point 8, become DT_F32Z, some rows at a time. Returns false if w's
 * scales are others. */
static bool folds_scales(float *const *y, const float *const *x, int n, const struct mat *w) {
    const int groups = (w->cols + 127) / 128;
    uint32_t folded[16384];
    const int most = groups ? (int)(sizeof folded / sizeof *folded) / ((groups + 7) / 8 * 8) : 1;
    if (w->cols > COLUMNS || !w->scale || w->block_cols != 128 ||
        (w->scale_dtype != DT_F16 && w->scale_dtype != DT_BF16))
        return false;
    for (int r = 0; r < w->rows; r += most) {
        struct mat part = mat_rows(*w, r, r + most < w->rows ? r + most : w->rows);
        float *to[KERNEL_TOKENS];
        for (int i = 0; i < part.rows; i++)
            for (int c = 0; c < groups; c += 8) {
                uint16_t half[8] = {0};
                const uint16_t *from = (const uint16_t *)w->scale + scale_row(&part, i) + c;
                if (groups - c >= 8) memcpy(half, from, sizeof half);
                else
                    for (int k = 0; k < groups - c; k++) half[k] = from[k];
                const __m128i h = _mm_loadu_si128((const __m128i *)(const void *)half);
                const __m256i f = w->scale_dtype == DT_F16 ? _mm256_castps_si256(_mm256_cvtph_ps(h))
                                                           : _mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
                _mm256_storeu_si256((__m256i *)(void *)(folded + (size_t)i * (size_t)((groups + 7) / 8 * 8) + c),
                                    _mm256_or_si256(f, _mm256_set1_epi32(8)));
            }
        part.scale = folded, part.scale_dtype = DT_F32Z, part.scale_stride = (groups + 7) / 8 * 8, part.row0 = 0,
        part.row_step = part.block_rows = 1;
        for (int t = 0; t < n; t++) to[t] = y[t] + r;
        all_tokens(to, x, n, &part);
    }
    return true;
}
#else
INLINE bool folds_scales(float *const *y, const float *const *x, int n, const struct mat *w) { return false; }
#endif

extern const struct format_kernels FLOATS;
#ifdef OTHERWISE /* a kernel for other scales, which falls back to the float32 kernel */
GEMV_FN(OTHERWISE);
#else
#define OTHERWISE FLOATS.gemv
#endif
#ifdef E4M3_SCALES /* built with FORMAT e2m1, for E4M3 scales of 16 columns */
GEMV_FN(FORMAT_JOIN(FORMAT_JOIN(intdot_, ISA), _e2m1_e4m3)) {
#elif defined ZEROS
GEMV_FN(FORMAT_JOIN(FORMAT_JOIN(intdot_, ISA), _i4_zeros)) {
#else
GEMV_FN(FORMAT_JOIN(FORMAT_JOIN(FORMAT_JOIN(intdot_, ISA), _), FORMAT)) {
#endif
    if (takes(w)) all_tokens(y, x, n, w);
    else if (!folds_scales(y, x, n, w)) OTHERWISE(y, x, n, w);
}
