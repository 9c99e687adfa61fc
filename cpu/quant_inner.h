/* Products with quantised weights, written once over simd_<isa>.h and what quant_<isa>.c adds to it:
 *
 *     V i8_v(p), i8_m(p, n)         LANES signed bytes as floats; m: only n are there, the others read as 0
 *     struct nibble, nibble_make(s, m)    int4 values q * s - m, rounded once
 *     nibble_v(p, a, b, &lo, &hi)         LANES bytes: low halves by a, high halves by b; nibble_m(.., n): only n bytes are there
 *     q6_v(ql, qh, low, shift)            LANES of 32 bytes of Q6_K: a half of ql and two bits of qh, less 32
 *
 * Weights become float32 with their scale, equal to mat_at, and are summed in the order of columns, LANES apart. A row's sum
 * does not depend on the rows and tokens beside it. */
#include <string.h>

INLINE float half_at(const uint8_t *p) {
    uint16_t h;
    memcpy(&h, p, 2);
    return _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(h)));
}

/* d * scale and dmin * min of the eight parts of a Q4_K block; each is exact in float32. */
INLINE void q4_k_scales(const uint8_t *b, float *scale, float *min) {
    uint32_t u[3];
    memcpy(u, b + 4, sizeof u);
    uint64_t sc = (u[0] & 0x3f3f3f3f) | (uint64_t)((u[2] & 0x0f0f0f0f) | (u[0] >> 2 & 0x30303030)) << 32;
    uint64_t mn = (u[1] & 0x3f3f3f3f) | (uint64_t)((u[2] >> 4 & 0x0f0f0f0f) | (u[1] >> 2 & 0x30303030)) << 32;
    __m256 d = _mm256_set1_ps(half_at(b)), dmin = _mm256_set1_ps(half_at(b + 2));
    _mm256_storeu_ps(scale, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)sc)))));
    _mm256_storeu_ps(min, _mm256_mul_ps(dmin, _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128((long long)mn)))));
}
INLINE void q6_k_scales(const uint8_t *b, float *scale) {
    __m128i s = _mm_loadu_si128((const __m128i *)(const void *)(b + 192));
    __m256 d = _mm256_set1_ps(half_at(b + 208));
    _mm256_storeu_ps(scale, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s))));
    _mm256_storeu_ps(scale + 8, _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(s, 8)))));
}

/* ---- Blocks that carry their scales ---- */

enum { Q8_0_BYTES = 34, Q4_K_BYTES = 144, Q6_K_BYTES = 210, AHEAD = 2048 /* bytes that prefetch runs ahead in each row */ };
INLINE int block_cols(int format) { return format == DT_Q8_0 ? 32 : 256; }
INLINE int block_bytes(int format) { return format == DT_Q8_0 ? Q8_0_BYTES : format == DT_Q4_K ? Q4_K_BYTES : Q6_K_BYTES; }

/* Calls use(column in the block, LANES weights) for a whole block. */
#define BLOCK_EACH(format, b, use) \
    do { \
        const uint8_t *b_ = (b); \
        if (format == DT_Q8_0) { \
            V s_ = vset1(half_at(b_)); \
            EACH (int j_ = 0; j_ < 32; j_ += LANES) use(j_, vmul(i8_v(b_ + 2 + j_), s_)); \
        } else if (format == DT_Q4_K) { \
            float sc_[8], mn_[8]; \
            q4_k_scales(b_, sc_, mn_); \
            EACH (int p_ = 0; p_ < 4; p_++) { \
                struct nibble lo_ = nibble_make(sc_[2 * p_], mn_[2 * p_]), hi_ = nibble_make(sc_[2 * p_ + 1], mn_[2 * p_ + 1]); \
                EACH (int j_ = 0; j_ < 32; j_ += LANES) { \
                    V v0_, v1_; \
                    nibble_v(b_ + 16 + 32 * p_ + j_, lo_, hi_, &v0_, &v1_); \
                    use(64 * p_ + j_, v0_); \
                    use(64 * p_ + 32 + j_, v1_); \
                } \
            } \
        } else { \
            float sc_[16]; \
            q6_k_scales(b_, sc_); \
            EACH (int h_ = 0; h_ < 2; h_++) \
                EACH (int p_ = 0; p_ < 4; p_++) \
                    EACH (int j_ = 0; j_ < 32; j_ += LANES) { \
                        V v_ = q6_v(b_ + 64 * h_ + 32 * (p_ & 1) + j_, b_ + 128 + 32 * h_ + j_, p_ < 2, 2 * p_); \
                        use(128 * h_ + 32 * p_ + j_, vmul(v_, vset1(sc_[8 * h_ + 2 * p_ + j_ / 16]))); \
                    } \
        } \
    } while (0)

/* R rows, N tokens; both and the format are constants where this is inlined. */
INLINE void quant_tile(float *const *y, const float *const *x, const struct mat *w, int r, const int R, const int N, const int format) {
    const uint8_t *row[8];
    V sum[8][KERNEL_TOKENS];
    EACH (int i = 0; i < R; i++) {
        row[i] = (const uint8_t *)w->data + (size_t)(r + i) * w->stride;
        EACH (int t = 0; t < N; t++) sum[i][t] = vzero();
    }
    for (int c = 0; c < w->cols; c += block_cols(format))
        EACH (int i = 0; i < R; i++) {
#define USE(j, v) \
    do { \
        V v__ = (v); \
        EACH (int t = 0; t < N; t++) sum[i][t] = vfma(v__, vload(x[t] + c + (j)), sum[i][t]); \
    } while (0)
            EACH (int line = 0; line < (block_bytes(format) + 63) / 64; line++) _mm_prefetch((const char *)row[i] + AHEAD + 64 * line, _MM_HINT_T0);
            BLOCK_EACH(format, row[i], USE);
#undef USE
            row[i] += block_bytes(format);
        }
    EACH (int i = 0; i < R; i++)
        EACH (int t = 0; t < N; t++) y[t][r + i] = vsum(sum[i][t]);
}

INLINE void quant_decode(float *out, const struct mat *w, int r, int c0, int c1, const int format) {
    const int block = block_cols(format);
    for (int c = c0; c < c1;) {
        if (c % block || c + block > c1) {
            out[c - c0] = mat_at(w, r, c);
            c++;
            continue;
        }
        const uint8_t *b = (const uint8_t *)w->data + (size_t)r * w->stride + (size_t)(c / block) * (size_t)block_bytes(format);
        float *to = out + (c - c0);
#define USE(j, v) vstore(to + (j), v)
        BLOCK_EACH(format, b, USE);
#undef USE
        c += block;
    }
}

/* ---- Groups with scales beside them ---- */

INLINE size_t scale_row(const struct mat *w, int r) { return w->scale ? (size_t)((w->row0 + r * w->row_step) / w->block_rows) * (size_t)w->scale_stride : 0; }
INLINE float group_scale(const struct mat *w, size_t i) {
    float f = 1;
    if (w->scale) memcpy(&f, (const uint8_t *)w->scale + 4 * i, 4);
    return f;
}
/* What the tiles below take; anything else is left to the scalar kernel. */
static bool grouped(const struct mat *w) { return !w->scale || (w->scale_dtype == DT_F32 && (w->block_cols == 128 || w->block_cols >= w->cols)); }
INLINE int group_cols(const struct mat *w) { return w->scale && w->block_cols < w->cols ? w->block_cols : w->cols; }

INLINE void q8_tile(float *const *y, const float *const *x, const struct mat *w, int r, const int R, const int N) {
    V sum[8][KERNEL_TOKENS];
    size_t at[8]; /* of the row's scales */
    EACH (int i = 0; i < R; i++) {
        at[i] = scale_row(w, r + i);
        EACH (int t = 0; t < N; t++) sum[i][t] = vzero();
    }
    const uint8_t *row = (const uint8_t *)w->data + (size_t)r * w->stride;
    for (int c = 0, b = 0, end; c < w->cols; c = end, b++) {
        end = w->cols - c < group_cols(w) ? w->cols : c + group_cols(w);
        V s[8];
        EACH (int i = 0; i < R; i++) s[i] = vset1(group_scale(w, at[i] + (size_t)b));
        int j = c;
        for (; j + LANES <= end; j += LANES)
            EACH (int i = 0; i < R; i++) {
                V v = vmul(i8_v(row + (size_t)i * w->stride + j), s[i]);
                EACH (int t = 0; t < N; t++) sum[i][t] = vfma(v, vload(x[t] + j), sum[i][t]);
            }
        if (j < end)
            EACH (int i = 0; i < R; i++) {
                V v = vmul(i8_m(row + (size_t)i * w->stride + j, end - j), s[i]);
                EACH (int t = 0; t < N; t++) sum[i][t] = vfma(v, vloadm(x[t] + j, end - j), sum[i][t]);
            }
    }
    EACH (int i = 0; i < R; i++)
        EACH (int t = 0; t < N; t++) y[t][r + i] = vsum(sum[i][t]);
}

/* Even and odd columns apart, 2 * LANES a step. */
INLINE void q4_tile(float *const *y, const float *const *x, const struct mat *w, int r, const int R, const int N) {
    V sum[8][KERNEL_TOKENS];
    size_t at[8]; /* of the row's scales */
    EACH (int i = 0; i < R; i++) {
        at[i] = scale_row(w, r + i);
        EACH (int t = 0; t < N; t++) sum[i][t] = vzero();
    }
    const uint8_t *row = (const uint8_t *)w->data + (size_t)r * w->stride;
    for (int c = 0, b = 0, end; c < w->cols; c = end, b++) {
        end = w->cols - c < group_cols(w) ? w->cols : c + group_cols(w);
        struct nibble s[8];
        EACH (int i = 0; i < R; i++) {
            float f = group_scale(w, at[i] + (size_t)b);
            s[i] = nibble_make(f, 8 * f);
            _mm_prefetch((const char *)row + (size_t)i * w->stride + c / 2 + AHEAD, _MM_HINT_T0);
        }
        for (int j = c; j < end; j += 2 * LANES) {
            const int n = end - j;
            const bool whole = n >= 2 * LANES;
            V even[KERNEL_TOKENS], odd[KERNEL_TOKENS];
            EACH (int t = 0; t < N; t++) {
                const float *p = x[t] + j;
                V lo = n >= LANES ? vload(p) : vloadm(p, n), hi = whole ? vload(p + LANES) : n > LANES ? vloadm(p + LANES, n - LANES) : vzero();
                vsplit(lo, hi, &even[t], &odd[t]);
            }
            EACH (int i = 0; i < R; i++) {
                const uint8_t *p = row + (size_t)i * w->stride + j / 2;
                V we, wo;
                if (whole) nibble_v(p, s[i], s[i], &we, &wo);
                else nibble_m(p, (n + 1) / 2, s[i], s[i], &we, &wo);
                EACH (int t = 0; t < N; t++) sum[i][t] = vfma(wo, odd[t], vfma(we, even[t], sum[i][t]));
            }
        }
    }
    EACH (int i = 0; i < R; i++)
        EACH (int t = 0; t < N; t++) y[t][r + i] = vsum(sum[i][t]);
}

INLINE void group_decode(float *out, const struct mat *w, int r, int c0, int c1, const int format) {
    const uint8_t *row = (const uint8_t *)w->data + (size_t)r * w->stride;
    for (int c = c0; c < c1;) {
        int end = c - c % group_cols(w) + group_cols(w);
        float f = group_scale(w, scale_row(w, r) + (size_t)(c / group_cols(w)));
        struct nibble s = nibble_make(f, 8 * f);
        for (end = end < c1 ? end : c1; c < end;) {
            if (format == DT_Q8_G128 && c + LANES <= end) {
                vstore(out + c - c0, vmul(i8_v(row + c), vset1(f)));
                c += LANES;
            } else if (format == DT_Q4_G128 && c % 2 == 0 && c + 2 * LANES <= end) {
                V even, odd, a, b;
                nibble_v(row + c / 2, s, s, &even, &odd);
                vjoin(even, odd, &a, &b);
                vstore(out + c - c0, a);
                vstore(out + c - c0 + LANES, b);
                c += 2 * LANES;
            } else out[c - c0] = mat_at(w, r, c), c++;
        }
    }
}

/* ---- Tables ---- */

INLINE void any_quant(float *const *y, const float *const *x, const struct mat *w, int r, const int R, const int N, const int format) {
    if (format == DT_Q8_G128) q8_tile(y, x, w, r, R, N);
    else if (format == DT_Q4_G128) q4_tile(y, x, w, r, R, N);
    else quant_tile(y, x, w, r, R, N, format);
}
INLINE void quant_rows(float *const *y, const float *const *x, const struct mat *w, const int R, const int N, const int format) {
    int r = 0;
    for (; r + R <= w->rows; r += R) any_quant(y, x, w, r, R, N, format);
    for (; R > 1 && r < w->rows; r++) any_quant(y, x, w, r, 1, N, format);
}
INLINE void quant_tokens(float *const *y, const float *const *x, int n, const struct mat *w, const int format) {
    switch (n) {
    case 1: quant_rows(y, x, w, ROWS_1, 1, format); break;
    case 2: quant_rows(y, x, w, ROWS_4, 2, format); break;
    case 3: quant_rows(y, x, w, ROWS_4, 3, format); break;
    case 4: quant_rows(y, x, w, ROWS_4, 4, format); break;
    case 5: quant_rows(y, x, w, ROWS_8, 5, format); break;
    case 6: quant_rows(y, x, w, ROWS_8, 6, format); break;
    case 7: quant_rows(y, x, w, ROWS_8, 7, format); break;
    case 8: quant_rows(y, x, w, ROWS_8, 8, format); break;
    }
}
static GEMV_FN(gemv_q8_0) { quant_tokens(y, x, n, w, DT_Q8_0); }
static GEMV_FN(gemv_q4_k) { quant_tokens(y, x, n, w, DT_Q4_K); }
static GEMV_FN(gemv_q6_k) { quant_tokens(y, x, n, w, DT_Q6_K); }
static GEMV_FN(gemv_q8_g128) {
    if (grouped(w)) quant_tokens(y, x, n, w, DT_Q8_G128);
    else gemv_scalar(y, x, n, w);
}
static GEMV_FN(gemv_q4_g128) {
    if (grouped(w)) quant_tokens(y, x, n, w, DT_Q4_G128);
    else gemv_scalar(y, x, n, w);
}
static DECODE_FN(decode_q8_0) { quant_decode(out, w, r, c0, c1, DT_Q8_0); }
static DECODE_FN(decode_q4_k) { quant_decode(out, w, r, c0, c1, DT_Q4_K); }
static DECODE_FN(decode_q6_k) { quant_decode(out, w, r, c0, c1, DT_Q6_K); }
static DECODE_FN(decode_q8_g128) {
    if (grouped(w)) group_decode(out, w, r, c0, c1, DT_Q8_G128);
    else
        for (int c = c0; c < c1; c++) out[c - c0] = mat_at(w, r, c);
}
static DECODE_FN(decode_q4_g128) {
    if (grouped(w)) group_decode(out, w, r, c0, c1, DT_Q4_G128);
    else
        for (int c = c0; c < c1; c++) out[c - c0] = mat_at(w, r, c);
}

static void fill_quant(struct kernels *k) {
    k->gemv[DT_Q8_G128] = gemv_q8_g128, k->decode[DT_Q8_G128] = decode_q8_g128;
    k->gemv[DT_Q4_G128] = gemv_q4_g128, k->decode[DT_Q4_G128] = decode_q4_g128;
    k->gemv[DT_Q8_0] = gemv_q8_0, k->decode[DT_Q8_0] = decode_q8_0;
    k->gemv[DT_Q4_K] = gemv_q4_k, k->decode[DT_Q4_K] = decode_q4_k;
    k->gemv[DT_Q6_K] = gemv_q6_k, k->decode[DT_Q6_K] = decode_q6_k;
}
