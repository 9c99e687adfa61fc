#include "base/argmax.h"

#include <emmintrin.h>

int32_t argmax(const float *x, int n, bool *has_nan) {
    enum { AT_ONCE = 16 };
    float most = x[0];
    __m128 best[4], bad = _mm_setzero_ps();
    int at = 0;
    int32_t first = 0;
    for (int k = 0; k < 4; k++) best[k] = _mm_set1_ps(most);
    for (; at + AT_ONCE <= n; at += AT_ONCE)
        for (int k = 0; k < 4; k++) {
            const __m128 v = _mm_loadu_ps(x + at + 4 * k);
            bad = _mm_or_ps(bad, _mm_cmpunord_ps(v, v));
            best[k] = _mm_max_ps(v, best[k]); /* the second where one is NaN */
        }
    best[0] = _mm_max_ps(_mm_max_ps(best[0], best[1]), _mm_max_ps(best[2], best[3]));
    bool any = _mm_movemask_ps(bad) != 0;
    for (int k = 0; k < 4; k++) most = best[0][k] > most ? best[0][k] : most;
    for (; at < n; at++) {
        any |= x[at] != x[at];
        if (x[at] > most) most = x[at];
    }
    if (has_nan) *has_nan = any;
    if (most != most) return 0;
    const __m128 wanted = _mm_set1_ps(most);
    while (first + 4 <= n && !_mm_movemask_ps(_mm_cmpeq_ps(_mm_loadu_ps(x + first), wanted))) first += 4;
    while (x[first] != most) first++;
    return first;
}
