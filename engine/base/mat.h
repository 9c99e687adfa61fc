#pragma once
/* Number formats and the view of one weight matrix in the layout it was published in. */
#include <stddef.h>
#include <stdint.h>

enum dtype {
    DT_NONE,
    DT_F32,
    DT_BF16,
    DT_F16,
    DT_E4M3, /* FP8 */
    DT_E8M0, /* power-of-two scales */
    DT_E2M1, /* FP4, two to a byte, even column in the low nibble */
    DT_I8,
    DT_U8,
    DT_I16,
    DT_I32,
    DT_I64,
    DT_BOOL,
    DT_F64,
    DT_E5M2,
    DT_Q8_0, /* this and those below: GGUF's blocks, scales inside the data */
    DT_Q4_0,
    DT_Q4_K,
    DT_Q5_K,
    DT_Q6_K,
    DT_IQ4_NL,
    DT_IQ4_XS,
    DT_MXFP4, /* E2M1 and E8M0 in one block, low nibbles before high ones */
    DT_INT4,  /* hearth's own: 128 columns in 64 bytes, column i and 64 + i in byte i, low half first, 8 more than they stand for; scales beside it */
    DT_COUNT
};
/* Bytes of n consecutive elements that begin on a block boundary. */
size_t dtype_bytes(enum dtype t, size_t n);
size_t dtype_block(enum dtype t);     /* elements of the smallest unit */
const char *dtype_name(enum dtype t); /* as safetensors spells it, or GGUF */

/* W of y = W x. Owns nothing; pointers are host or device memory, as the operation that takes it says.
 * w[r][c] = decode(data + r * stride)[c] * scale[(row0 + r * row_step) / block_rows][c / block_cols]
 * (scale NULL: 1). A scale for each row is block_rows 1, block_cols >= cols. */
struct mat {
    const void *data;
    const void *scale;
    size_t stride; /* bytes from row to row */
    int32_t rows, cols;
    int32_t block_rows, block_cols;
    int32_t scale_stride;   /* scales in a row of blocks */
    int32_t row0, row_step; /* a view into a fused tensor keeps that tensor's scale blocks; row_step 1 else */
    uint8_t dtype, scale_dtype;
};
/* Rows [begin, end) of m as a matrix of their own. */
struct mat mat_rows(struct mat m, int32_t begin, int32_t end);
/* Columns [begin, end) of m; begin on a block of its scales and of its format. */
struct mat mat_cols(struct mat m, int32_t begin, int32_t end);
extern const int8_t mat_q4_0[16], mat_iq4[16], mat_mxfp4[16]; /* what the four bits of these formats stand for */
/* One element as float32; the slow reference. */
float mat_at(const struct mat *m, int32_t r, int32_t c);
/* A whole row as float32 [cols]. */
void mat_row(const struct mat *m, int32_t r, float *out);
float scale_at(const struct mat *m, int32_t r, int32_t c);
size_t mat_bytes(const struct mat *m); /* data and scales, what one pass reads */
/* From the first byte to behind the last one of its data, and of its scales: of a view into a fused tensor, what lies between
 * as well. */
size_t mat_span(const struct mat *m);
size_t mat_scale_span(const struct mat *m);
