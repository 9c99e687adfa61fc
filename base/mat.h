#pragma once
/* Number formats, and the view of a weight matrix in its published layout. */
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DT_NONE,
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_E4M3, /* FP8 */
    DT_E8M0, /* power-of-two scales */
    DT_E2M1, /* FP4, two per byte, even column in the low nibble */
    DT_I8,
    DT_U8,
    DT_I16,
    DT_I32,
    DT_I64,
    DT_BOOL,
    DT_F64,
    DT_E5M2,
    /* four-bit integers, two per byte, even column in the low nibble, minus a zero point: that of DT_F32Z, else 8 */
    DT_I4,
    DT_F32Z, /* scales: float32 whose low eight bits are replaced by the zero point of the codes (of DT_I8: plus 128) */
    DT_Q8_0, /* this and the following: GGUF's block formats, with scales inside the data */
    DT_Q4_0,
    DT_Q4_K,
    DT_Q5_K,
    DT_Q6_K,
    DT_IQ4_NL,
    DT_IQ4_XS,
    DT_MXFP4, /* E2M1 and E8M0 in one block, low nibbles first */
    /* hearth's own: 128 columns in 64 bytes, columns i and 64 + i in byte i, low nibble first, biased by 8; scales in a
       separate array */
    DT_INT4,
    DT_Q4_1, /* more of GGUF's */
    DT_Q5_0,
    DT_Q5_1,
    DT_Q2_K,
    DT_Q3_K,
    DT_IQ1_S,
    DT_IQ1_M,
    DT_IQ2_XXS,
    DT_IQ2_XS,
    DT_IQ2_S,
    DT_IQ3_XXS,
    DT_IQ3_S,
    DT_TQ1_0,
    DT_TQ2_0,
    DT_Q1_0,
    DT_Q2_0,
    DT_COUNT
};
/* Bytes of n consecutive elements, starting on a block boundary. */
size_t dtype_bytes(enum dtype t, size_t n);
size_t dtype_block(enum dtype t);     /* elements of the smallest unit */
const char *dtype_name(enum dtype t); /* safetensors' or GGUF's name */

/* W of y = W x. A view: owns nothing. The pointers are host or device memory, as the operation requires. w[r][c] =
 * decode(data + r * stride)[c] * scale[(row0 + r * row_step) / block_rows][c / block_cols] (scale NULL: 1). Per-row
 * scales: block_rows 1, block_cols >= cols. With DT_F32Z scales the zero point of the block is subtracted from the
 * code. */
struct mat {
    const void *data;
    const void *scale;
    size_t stride; /* bytes from row to row */
    int32_t rows, cols;
    int32_t block_rows, block_cols;
    int32_t scale_stride;   /* scales per block row */
    int32_t row0, row_step; /* a view into a fused tensor keeps that tensor's scale blocks; otherwise row_step is 1 */
    uint8_t dtype, scale_dtype;
    float scale_gain;   /* factor of DT_E4M3 scales; unused with others */
    int32_t x0, x_cols; /* with order: the part of x that a product gets; other elements are 0 */
    /* NULL, or [cols]: column c multiplies element order[c] of x, which is x[order[c] - x0]. op_linear and op_experts
     * (gate, and up with the same order) only */
    const int32_t *order;
};
/* Returns rows [begin, end) of m as a matrix. */
struct mat mat_rows(struct mat m, int32_t begin, int32_t end);
/* Returns columns [begin, end) of m; begin must be on a block of its scales and of its format. With order: all columns,
 * for that part of x. */
struct mat mat_cols(struct mat m, int32_t begin, int32_t end);
/* values of the 4-bit codes */
extern const int8_t mat_q4_0[16], mat_iq4[16], mat_mxfp4[16];
static inline int32_t mat_x_cols(const struct mat *m) { return m->order ? m->x_cols : m->cols; } /* elements of x */
/* Sorts x by m's order: out [cols]. */
void mat_order_x(const struct mat *m, float *out, const float *x);
size_t mat_bytes(const struct mat *m); /* data, scales and order read by one pass */
/* Extent from the first to past the last byte of its data and scales; for a view into a fused tensor this includes the
 * rows between. */
size_t mat_span(const struct mat *m);
size_t mat_scale_span(const struct mat *m);
