#pragma once
/* Shared by gemm_int16.c and the files that decode formats for it: a block of 256 weights as small integers. */
#include <stdint.h>

#include "cpu/formats.h"

/* weight of column c = d * scale * code[c]; the scales of 16 columns each, first those of columns 0, 16, 64, 80, 128,
 * ..., then those of 32, 48, 96, ... |scale * code| is at most 2,056, so that 256 products with 16 bits fit a lane's
 * sum (gemm_int16.c). */
struct int16_codes {
    int8_t code[256];
    int16_t scale[16];
    float d;
} __attribute__((aligned(32)));
#define INT16_CODES_FN(name) void name(struct int16_codes *to, const uint8_t *p)
/* In intdot_grid_avx2.c, compiled once per format. */
#define DECLARE_INT16(name) INT16_CODES_FN(int16_codes_##name);
FORMATS_IQ(DECLARE_INT16)
