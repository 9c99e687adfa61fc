#pragma once
/* Shared by gemm_int8.c and its decoders: weights as eight-bit codes with a factor, and for some formats an addend, for
 * each 16 or 32 columns. */
#include "cpu/gemm_inner.h"

enum { INT8_K = 256, INT8_PITCH = INT8_K + 64 /* an odd number of cache lines */, INT8_PARTS = 16 };

/* 16 rows of a K block: weight = scale * code + off, with scale and off by segment; finite past the row's end, too. */
struct int8_rows {
    int8_t code[16][INT8_PITCH];
    float scale[16][INT8_PARTS], off[16][INT8_PARTS];
} __attribute__((aligned(64)));

/* Decodes columns [c0, c0 + n), c0 a multiple of 256 and n at most that, of rows [r, r + rows). ahead: prefetch
 * distance in bytes. */
#define INT8_CODES_FN(name) \
    void name(struct int8_rows *to, const struct mat *w, int r, int rows, int c0, int n, ptrdiff_t ahead)
typedef INT8_CODES_FN((*int8_decode_fn));
struct int8_decoder {
    int8_decode_fn rows; /* NULL: unsupported weights */
    int segment;         /* columns that share a scale: 16 or 32 */
    bool has_off;        /* else `off` is not set */
};
struct int8_decoder gemm_int8_decoder_for(const struct mat *w);
