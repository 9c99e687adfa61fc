#pragma once
/* Measures CPU properties that CPUID does not report, when cpu_flags.c first asks: about 0.1 ms, the minimum of several
 * interleaved rounds, and more rounds while the result is not clear. The results select kernels with different bits, so
 * noise must not flip them: the compared times differ by a factor of four (vdpbf16ps issues at the rate of FMA on Zen
 * 5, a quarter of it on Granite Rapids) or of hundreds (subnormal operands there). The threshold is between. */
#include <stdbool.h>
#include <stdint.h>

bool probe_fast_subnormals(void); /* FMA takes subnormal operands at full speed; requires AVX2 */
/* vdpbf16ps, which does twice the work, issues at the rate of FMA; requires AVX-512 BF16 */
bool probe_fast_bf16(void);
/* A limit to report, not to select by: runs n times 12 independent vdpbf16ps and returns their float operations;
 * requires AVX-512 BF16. */
double probe_bf16_peak(int64_t n, float *sink);
