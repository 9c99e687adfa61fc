#pragma once
/* Number formats, and the view of a weight matrix in its published layout. */
#include <stddef.h>
#include <stdint.h>

/* The number formats, one row each: DT_name, its name in safetensors or GGUF files, elements and bytes per block, and
 * GGUF's number, NO_GGUF if hearth does not read it from there. */
enum { NO_GGUF = 255 };
#define DTYPES(X) \
    X(NONE, "unknown", 1, 0, NO_GGUF) \
    X(F32, "F32", 1, 4, 0) \
    X(BF16, "BF16", 1, 2, 30) \
    X(F16, "F16", 1, 2, 1) \
    /* FP8 */ \
    X(E4M3, "F8_E4M3", 1, 1, NO_GGUF) \
    /* power-of-two scales */ \
    X(E8M0, "F8_E8M0", 1, 1, NO_GGUF) \
    /* FP4, two per byte, even column in the low nibble */ \
    X(E2M1, "F4_E2M1", 2, 1, NO_GGUF) \
    X(I8, "I8", 1, 1, NO_GGUF) \
    X(U8, "U8", 1, 1, NO_GGUF) \
    X(I16, "I16", 1, 2, NO_GGUF) \
    X(I32, "I32", 1, 4, 26) \
    X(I64, "I64", 1, 8, NO_GGUF) \
    X(BOOL, "BOOL", 1, 1, NO_GGUF) \
    X(F64, "F64", 1, 8, NO_GGUF) \
    X(E5M2, "F8_E5M2", 1, 1, NO_GGUF) \
    /* four-bit integers, two per byte, even column in the low nibble, minus a zero point: that of DT_F32Z, else 8 */ \
    X(I4, "I4", 2, 1, NO_GGUF) \
    /* scales: float32 whose low eight bits are replaced by the zero point of the codes (of DT_I8: plus 128) */ \
    X(F32Z, "F32Z", 1, 4, NO_GGUF) \
    /* bitsandbytes' sixteen levels (mat_nf4), two codes per byte, even column in the high nibble */ \
    X(NF4, "NF4", 2, 1, NO_GGUF) \
    /* GGUF's block formats, with scales inside the data */ \
    X(Q8_0, "Q8_0", 32, 34, 8) \
    X(Q4_0, "Q4_0", 32, 18, 2) \
    X(Q4_K, "Q4_K", 256, 144, 12) \
    X(Q5_K, "Q5_K", 256, 176, 13) \
    X(Q6_K, "Q6_K", 256, 210, 14) \
    X(IQ4_NL, "IQ4_NL", 32, 18, 20) \
    X(IQ4_XS, "IQ4_XS", 256, 136, 23) \
    /* E2M1 and E8M0 in one block, low nibbles first */ \
    X(MXFP4, "MXFP4", 32, 17, 39) \
    /* hearth's own: columns i and 64 + i in byte i, low nibble first, biased by 8; scales in a separate array */ \
    X(INT4, "INT4", 128, 64, NO_GGUF) \
    /* more of GGUF's */ \
    X(Q4_1, "Q4_1", 32, 20, 3) \
    X(Q5_0, "Q5_0", 32, 22, 6) \
    X(Q5_1, "Q5_1", 32, 24, 7) \
    X(Q2_K, "Q2_K", 256, 84, 10) \
    X(Q3_K, "Q3_K", 256, 110, 11) \
    X(IQ1_S, "IQ1_S", 256, 50, 19) \
    X(IQ1_M, "IQ1_M", 256, 56, 29) \
    X(IQ2_XXS, "IQ2_XXS", 256, 66, 16) \
    X(IQ2_XS, "IQ2_XS", 256, 74, 17) \
    X(IQ2_S, "IQ2_S", 256, 82, 22) \
    X(IQ3_XXS, "IQ3_XXS", 256, 98, 18) \
    X(IQ3_S, "IQ3_S", 256, 110, 21) \
    X(TQ1_0, "TQ1_0", 256, 54, 34) \
    X(TQ2_0, "TQ2_0", 256, 66, 35) \
    X(Q1_0, "Q1_0", 128, 18, 41) \
    X(Q2_0, "Q2_0", 64, 18, 42) \
    /* 64 E2M1 codes with an E4M3 scale for each 16, whose first eight are in low nibbles; the factor of a matrix is \
     * its separate scale */ \
    X(NVFP4, "NVFP4", 64, 36, 40) \
    /* hearth's own: float16 scale and addend, then codes of 0 to 255 */ \
    X(Q8_A, "Q8_A", 32, 36, NO_GGUF) \
    /* ik_llama.cpp's, with a scale before each row of a file (dtype_row_head) */ \
    X(IQ4_KS, "IQ4_KS", 256, 136, 144) \
    X(IQ5_KS, "IQ5_KS", 256, 168, 152) \
    X(IQ2_KL, "IQ2_KL", 256, 86, 157)
enum dtype {
#define X(name, ...) DT_##name,
    DTYPES(X)
#undef X
        DT_COUNT
};
/* Elements and bytes per block of each format, as constants: BLOCK_Q4_K, BYTES_Q4_K. */
enum {
#define X(name, file, block, bytes, ...) BLOCK_##name = block, BYTES_##name = bytes,
    DTYPES(X)
#undef X
};
/* Bytes of n consecutive elements, starting on a block boundary. */
size_t dtype_bytes(enum dtype t, size_t n);
size_t dtype_block(enum dtype t);     /* elements of the smallest unit */
const char *dtype_name(enum dtype t); /* safetensors' or GGUF's name */
/* Bytes of the scale that precedes each row of a tensor in a GGUF file: 4, a float32, or 2, a float16; 0: none. */
size_t dtype_row_head(enum dtype t);

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
extern const float mat_nf4[16];
/* values of the codes of IQ4_KS and IQ5_KS by the lowest bit of a scale, and of IQ2_KL for the first and the second
 * column of a pair */
extern const int8_t mat_iq4_ks[2][16], mat_iq5_ks[2][32], mat_iq2_kl[2][32];
static inline int32_t mat_x_cols(const struct mat *m) { return m->order ? m->x_cols : m->cols; } /* elements of x */
/* Sorts x by m's order: out [cols]. */
void mat_order_x(const struct mat *m, float *out, const float *x);
size_t mat_bytes(const struct mat *m); /* data, scales and order read by one pass */
/* Extent from the first to past the last byte of its data and scales; for a view into a fused tensor this includes the
 * rows between. */
size_t mat_span(const struct mat *m);
size_t mat_scale_span(const struct mat *m);
