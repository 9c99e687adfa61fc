/* Measures whether products with subnormal operands run at full speed: true on AMD; on Intel each takes an assist of
 * several hundred cycles. */
#include <immintrin.h>

#include "base/clock.h"
#include "cpu/probe.h"

enum { ROUNDS = 7, ATTEMPTS = 20, LOOPS = 8, SUMS = 8 };

static double products(float x, float *sink) {
    const __m256 a = _mm256_set1_ps(x), b = _mm256_set1_ps(0.5f);
    __m256 sum[SUMS];
    double begin = clock_now();
    for (int i = 0; i < SUMS; i++) sum[i] = _mm256_set1_ps(1);
    for (int k = 0; k < LOOPS; k++)
        for (int i = 0; i < SUMS; i++) sum[i] = _mm256_fmadd_ps(a, b, sum[i]);
    for (int i = 1; i < SUMS; i++) sum[0] = _mm256_add_ps(sum[0], sum[i]);
    *sink += _mm256_cvtss_f32(sum[0]);
    return clock_now() - begin;
}

bool probe_fast_subnormals(void) {
    /* volatile, so that the compiler does not fold the products */
    volatile float subnormal = 0x1p-130f, normal = 0.25f;
    double least[2] = {1, 1};
    float sink = 0;
    bool is_clear = false;
    for (int i = 0; i < ATTEMPTS * ROUNDS && (i % ROUNDS || !is_clear); i++) {
        for (int s = 0; s < 2; s++) {
            double took = products(s ? subnormal : normal, &sink);
            least[s] = took < least[s] ? took : least[s];
        }
        is_clear = least[1] < 2 * least[0] || least[1] > 16 * least[0]; /* else another thread shares the core */
    }
    volatile float kept = sink;
    (void)kept;
    return least[1] < 4 * least[0];
}
