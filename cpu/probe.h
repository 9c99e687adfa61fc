#pragma once
/* What no CPUID bit says, measured when flags.c first asks, in some 0.2 ms, as the least of several rounds in turn. The answers decide between
 * kernels with other bits, so no noise may turn them over: what is compared differs by a factor of four (vdpbf16ps is issued as often as an
 * FMA on Zen 5, a quarter as often on Granite Rapids) or of hundreds (subnormal operands there), and the bound lies in the middle. */
#include <stdbool.h>

bool probe_subnormal(void); /* FMA takes subnormal operands at full speed; only where AVX2 is */
bool probe_bf16(void);      /* vdpbf16ps, which does twice the work, is issued as often as an FMA; only where AVX-512 BF16 is */
