#pragma once
/* A block of 256 weights as small integers, for gemm_int8_avx2.c, and the files that unpack formats so. */
#include <stdint.h>

#include "cpu/formats.h"

/* weight of column c = scale[c / 32] * each[c / 16] * code[c]. Codes are at most 62 in magnitude, or 15;
 * |each * code| is at most 2,056. */
struct small_codes {
    int8_t code[256];
    int16_t each[16];
    float scale[8];
} __attribute__((aligned(32)));
#define SMALL_CODES_FN(name) void name(struct small_codes *to, const uint8_t *p)
/* In intdot_grid_avx2.c, compiled once per format. */
#define DECLARE_SMALL(name) SMALL_CODES_FN(small_codes_##name);
FORMATS_IQ(DECLARE_SMALL)
#undef DECLARE_SMALL
