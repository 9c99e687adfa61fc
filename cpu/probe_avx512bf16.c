/* Measures whether vdpbf16ps, which does twice the work of a float32 FMA, issues at the same rate: true on AMD, a
 * quarter of it on Intel. */
#include <immintrin.h>

#include "base/clock.h"
#include "cpu/probe.h"

enum { ROUNDS = 15, ATTEMPTS = 20, LOOPS = 128, SUMS = 12, FLOPS = 64 /* of one vdpbf16ps */ };
#define EACH _Pragma("GCC unroll 16") for

static double products(bool bf16, int64_t loops, float *sink) {
    __m512 a = _mm512_set1_ps(1.5f), b = _mm512_set1_ps(0.5f), sum[SUMS];
    __asm__("" : "+v"(a), "+v"(b)); /* opaque to the compiler */
    double begin = clock_now();
    EACH (int i = 0; i < SUMS; i++) sum[i] = _mm512_set1_ps((float)i);
    if (bf16)
        for (int64_t k = 0; k < loops; k++)
            EACH (int i = 0; i < SUMS; i++) sum[i] = _mm512_dpbf16_ps(sum[i], (__m512bh)a, (__m512bh)b);
    else
        for (int64_t k = 0; k < loops; k++)
            EACH (int i = 0; i < SUMS; i++) sum[i] = _mm512_fmadd_ps(a, b, sum[i]);
    EACH (int i = 1; i < SUMS; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    *sink += _mm512_cvtss_f32(sum[0]);
    return clock_now() - begin;
}

bool probe_fast_bf16(void) {
    double least[2] = {1, 1};
    float sink = 0;
    bool is_clear = false;
    for (int i = 0; i < ATTEMPTS * ROUNDS && (i % ROUNDS || !is_clear); i++) {
        for (int b = 0; b < 2; b++) {
            double took = products(b, LOOPS, &sink);
            least[b] = took < least[b] ? took : least[b];
        }
        is_clear = least[1] < 1.4 * least[0] || least[1] > 3 * least[0]; /* else another thread shares the core */
    }
    volatile float kept = sink;
    (void)kept;
    return least[1] < 2 * least[0];
}

double probe_bf16_peak(int64_t n, float *sink) {
    products(true, n, sink);
    return (double)n * SUMS * FLOPS;
}
