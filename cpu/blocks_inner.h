/* Kernels of formats with scales inside blocks, but Q8_0, Q8_A and NVFP4, in the SIMD wrappers of simd_<isa>.h,
 * compiled once per ISA. Their products mostly have integer kernels (intdot_inner.h). One product with float32
 * activations, rarely needed, serves all: it multiplies converted rows. */
#include <string.h>

#include "cpu/decode_inner.h"
#include "cpu/formats.h"
#include "cpu/formats_inner.h"

enum {
    SPAN = 2048,
    SUMS = 4,
    TOKENS = LANES > 8 ? 4 : 2
}; /* columns converted at a time: whole blocks; sums a token, to hide the latency of FMAs; tokens that share a load */

#define USE(j, v) vstore(to + (j), v)
#define CONVERT(name) \
    static WIDEN_FN(widen_##name) { \
        enum { \
            BLOCK = FORMAT_BLOCK(name), \
            UNIT = BLOCK > 64 ? BLOCK : 64, \
            BYTES = UNIT / BLOCK * FORMAT_BYTES(name) \
        }; \
        float rest[UNIT]; \
        for (const uint8_t *p = in; n > 0; p += BYTES, out += UNIT, n -= UNIT) { \
            float *to = n < UNIT ? rest : out; \
            EACH_##name(p, n, USE); \
            if (n < UNIT) memcpy(out, rest, (size_t)n * sizeof *out); \
        } \
    } \
    static DECODE_FN(decode_##name) { \
        decode_scaled(out, w, r, c0, c1, widen_##name, FORMAT_BLOCK(name), FORMAT_BYTES(name), false); \
    }
FORMATS_BLOCKS(CONVERT)
#undef USE

/* sum[t] += span . x[t] over m columns, which are whole vectors, for N tokens. A token has the same sum with each N. */
INLINE void add_span(V (*sum)[SUMS], const float *span, const float *const *x, int c, int m, const int N) {
    const int whole = m - m % (SUMS * LANES);
    V s[TOKENS][SUMS];
    EACH (int t = 0; t < N; t++)
        EACH (int i = 0; i < SUMS; i++) s[t][i] = sum[t][i];
    for (int u = 0; u < whole; u += SUMS * LANES)
        EACH (int i = 0; i < SUMS; i++) {
            const V weights = vload(span + u + i * LANES);
            EACH (int t = 0; t < N; t++) s[t][i] = vfma(weights, vload(x[t] + c + u + i * LANES), s[t][i]);
        }
    for (int u = whole; u < m; u += LANES)
        EACH (int t = 0; t < N; t++) s[t][0] = vfma(vload(span + u), vload(x[t] + c + u), s[t][0]);
    EACH (int t = 0; t < N; t++)
        EACH (int i = 0; i < SUMS; i++) sum[t][i] = s[t][i];
}
static GEMV_FN(gemv) {
#define ROW(name) [FORMAT_DTYPE(name)] = decode_##name,
    static const decode_fn decoders[DT_COUNT] = {FORMATS_BLOCKS(ROW)};
#undef ROW
    for (int r = 0; r < w->rows; r++) {
        float span[SPAN] __attribute__((aligned(64)));
        V sum[KERNEL_TOKENS][SUMS];
        for (int t = 0; t < n; t++)
            for (int i = 0; i < SUMS; i++) sum[t][i] = vzero();
        for (int c = 0; c < w->cols; c += SPAN) {
            const int m = w->cols - c < SPAN ? w->cols - c : SPAN;
            int t = 0;
            decoders[w->dtype](span, w, r, c, c + m);
            for (; t + TOKENS <= n; t += TOKENS) add_span(sum + t, span, x + t, c, m, TOKENS);
            for (; t < n; t++) add_span(sum + t, span, x + t, c, m, 1);
        }
        for (int t = 0; t < n; t++) y[t][r] = vsum(vadd(vadd(sum[t][0], sum[t][1]), vadd(sum[t][2], sum[t][3])));
    }
}

#define ROW(name) \
    const struct format_kernels FORMAT_JOIN(FORMAT_JOIN(ISA, _), name) = { \
        .dtype = FORMAT_DTYPE(name), .gemv = gemv, .widen = widen_##name, .decode = decode_##name};
FORMATS_BLOCKS(ROW)
