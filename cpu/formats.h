#pragma once
/* The weight formats, one row each: enum dtype, columns per block, bytes per block, 1 if plain. A plain format
 * is an array of numbers without scales in between; its kernels may start at any column and advance by LANES.
 *
 * To add a format: a row here and its name in a list below (one that blocks_inner.h does not compile also in
 * meson.build), its element access (mat_at), EACH_<name> in formats_inner.h, which converts a block to float32, and its
 * eight-column decoder for devices (gpu/cuda_blocks.cuh). EACH_<name> applies scales inside blocks; kernels apply those
 * beside the weights (struct mat). */
#include "base/mat.h"

#define FORMAT_f32             (DT_F32, 1, 4, 1)
#define FORMAT_bf16            (DT_BF16, 1, 2, 1)
#define FORMAT_f16             (DT_F16, 1, 2, 1)
#define FORMAT_e4m3            (DT_E4M3, 1, 1, 1)
#define FORMAT_e2m1            (DT_E2M1, 2, 1, 0)
#define FORMAT_i8              (DT_I8, 1, 1, 1)
#define FORMAT_i4              (DT_I4, 2, 1, 0)
#define FORMAT_q8_0            (DT_Q8_0, 32, 34, 0)
#define FORMAT_q4_0            (DT_Q4_0, 32, 18, 0)
#define FORMAT_q4_k            (DT_Q4_K, 256, 144, 0)
#define FORMAT_q5_k            (DT_Q5_K, 256, 176, 0)
#define FORMAT_q6_k            (DT_Q6_K, 256, 210, 0)
#define FORMAT_iq4_nl          (DT_IQ4_NL, 32, 18, 0)
#define FORMAT_iq4_xs          (DT_IQ4_XS, 256, 136, 0)
#define FORMAT_mxfp4           (DT_MXFP4, 32, 17, 0)
#define FORMAT_int4            (DT_INT4, 128, 64, 0)
#define FORMAT_q4_1            (DT_Q4_1, 32, 20, 0)
#define FORMAT_q5_0            (DT_Q5_0, 32, 22, 0)
#define FORMAT_q5_1            (DT_Q5_1, 32, 24, 0)
#define FORMAT_q2_k            (DT_Q2_K, 256, 84, 0)
#define FORMAT_q3_k            (DT_Q3_K, 256, 110, 0)
#define FORMAT_iq1_s           (DT_IQ1_S, 256, 50, 0)
#define FORMAT_iq1_m           (DT_IQ1_M, 256, 56, 0)
#define FORMAT_iq2_xxs         (DT_IQ2_XXS, 256, 66, 0)
#define FORMAT_iq2_xs          (DT_IQ2_XS, 256, 74, 0)
#define FORMAT_iq2_s           (DT_IQ2_S, 256, 82, 0)
#define FORMAT_iq3_xxs         (DT_IQ3_XXS, 256, 98, 0)
#define FORMAT_iq3_s           (DT_IQ3_S, 256, 110, 0)
#define FORMAT_tq1_0           (DT_TQ1_0, 256, 54, 0)
#define FORMAT_tq2_0           (DT_TQ2_0, 256, 66, 0)
#define FORMAT_q1_0            (DT_Q1_0, 128, 18, 0)
#define FORMAT_q2_0            (DT_Q2_0, 64, 18, 0)
#define FORMATS_SAFETENSORS(X) X(f32) X(bf16) X(f16) X(e4m3) X(e2m1) X(i8) X(i4) X(int4)
#define FORMATS_GGUF(X) \
    X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) X(iq4_nl) X(iq4_xs) X(mxfp4)
#define FORMATS_IQ(X)   X(iq1_s) X(iq1_m) X(iq2_xxs) X(iq2_xs) X(iq2_s) X(iq3_xxs) X(iq3_s)
#define FORMATS_GRID(X) FORMATS_IQ(X) X(tq1_0) X(tq2_0) X(q1_0) X(q2_0)
#define FORMATS_BLOCKS(X) \
    FORMATS_GGUF(X) FORMATS_GRID(X) /* compiled together (blocks_inner.h), the others one by one (gemv_inner.h) */
#define FORMATS(X) FORMATS_SAFETENSORS(X) X(q8_0) FORMATS_BLOCKS(X)

#define FORMAT_JOIN_(a, b)    a##b
#define FORMAT_JOIN(a, b)     FORMAT_JOIN_(a, b)
#define FORMAT_1_(a, b, c, d) a
#define FORMAT_2_(a, b, c, d) b
#define FORMAT_3_(a, b, c, d) c
#define FORMAT_4_(a, b, c, d) d
#define FORMAT_OF_(pick, row) pick row
#define FORMAT_DTYPE(name)    FORMAT_OF_(FORMAT_1_, FORMAT_JOIN(FORMAT_, name))
#define FORMAT_BLOCK(name)    FORMAT_OF_(FORMAT_2_, FORMAT_JOIN(FORMAT_, name))
#define FORMAT_BYTES(name)    FORMAT_OF_(FORMAT_3_, FORMAT_JOIN(FORMAT_, name))
#define FORMAT_PLAIN(name)    FORMAT_OF_(FORMAT_4_, FORMAT_JOIN(FORMAT_, name)) /* usable in #if */
