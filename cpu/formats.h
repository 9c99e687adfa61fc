#pragma once
/* The weight formats, one row each: its name in DTYPES (base/mat.h), and 1 if plain. A plain format
 * is an array of numbers without scales in between; its kernels may start at any column and advance by LANES.
 *
 * To add a format: a row here and its name in a list below (one that blocks_inner.h does not compile also in
 * meson.build), its element access (mat_at), EACH_<name> in formats_inner.h, which converts a block to float32, and its
 * eight-column decoder for devices (gpu/cuda_blocks.cuh). EACH_<name> applies scales inside blocks; kernels apply those
 * beside the weights (struct mat). */
#include "base/mat.h"

#define FORMAT_f32             (F32, 1)
#define FORMAT_bf16            (BF16, 1)
#define FORMAT_f16             (F16, 1)
#define FORMAT_e4m3            (E4M3, 1)
#define FORMAT_e2m1            (E2M1, 0)
#define FORMAT_nf4             (NF4, 0)
#define FORMAT_i8              (I8, 1)
#define FORMAT_i4              (I4, 0)
#define FORMAT_q8_0            (Q8_0, 0)
#define FORMAT_q4_0            (Q4_0, 0)
#define FORMAT_q4_k            (Q4_K, 0)
#define FORMAT_q5_k            (Q5_K, 0)
#define FORMAT_q6_k            (Q6_K, 0)
#define FORMAT_iq4_nl          (IQ4_NL, 0)
#define FORMAT_iq4_xs          (IQ4_XS, 0)
#define FORMAT_mxfp4           (MXFP4, 0)
#define FORMAT_int4            (INT4, 0)
#define FORMAT_q4_1            (Q4_1, 0)
#define FORMAT_q5_0            (Q5_0, 0)
#define FORMAT_q5_1            (Q5_1, 0)
#define FORMAT_q2_k            (Q2_K, 0)
#define FORMAT_q3_k            (Q3_K, 0)
#define FORMAT_iq1_s           (IQ1_S, 0)
#define FORMAT_iq1_m           (IQ1_M, 0)
#define FORMAT_iq2_xxs         (IQ2_XXS, 0)
#define FORMAT_iq2_xs          (IQ2_XS, 0)
#define FORMAT_iq2_s           (IQ2_S, 0)
#define FORMAT_iq3_xxs         (IQ3_XXS, 0)
#define FORMAT_iq3_s           (IQ3_S, 0)
#define FORMAT_tq1_0           (TQ1_0, 0)
#define FORMAT_tq2_0           (TQ2_0, 0)
#define FORMAT_q1_0            (Q1_0, 0)
#define FORMAT_q2_0            (Q2_0, 0)
#define FORMAT_nvfp4           (NVFP4, 0)
#define FORMAT_q8_a            (Q8_A, 0)
#define FORMAT_iq4_ks          (IQ4_KS, 0)
#define FORMAT_iq5_ks          (IQ5_KS, 0)
#define FORMAT_iq2_kl          (IQ2_KL, 0)
#define FORMATS_SAFETENSORS(X) X(f32) X(bf16) X(f16) X(e4m3) X(e2m1) X(nf4) X(i8) X(i4) X(int4)
#define FORMATS_GGUF(X) \
    X(q4_0) X(q4_1) X(q5_0) X(q5_1) X(q2_k) X(q3_k) X(q4_k) X(q5_k) X(q6_k) X(iq4_nl) X(iq4_xs) X(mxfp4)
#define FORMATS_IQ(X)   X(iq1_s) X(iq1_m) X(iq2_xxs) X(iq2_xs) X(iq2_s) X(iq3_xxs) X(iq3_s)
#define FORMATS_GRID(X) FORMATS_IQ(X) X(tq1_0) X(tq2_0) X(q1_0) X(q2_0)
/* compiled together (blocks_inner.h), the others one by one (gemv_inner.h) */
#define FORMATS_BLOCKS(X) FORMATS_GGUF(X) FORMATS_GRID(X) X(iq4_ks) X(iq5_ks) X(iq2_kl)
#define FORMATS(X)        FORMATS_SAFETENSORS(X) X(q8_0) X(q8_a) X(nvfp4) FORMATS_BLOCKS(X)

#define FORMAT_JOIN_(a, b)         a##b
#define FORMAT_JOIN(a, b)          FORMAT_JOIN_(a, b)
#define FORMAT_NAME_(name, plain)  name
#define FORMAT_PLAIN_(name, plain) plain
#define FORMAT_OF_(pick, row)      pick row
#define FORMAT_NAME(name)          FORMAT_OF_(FORMAT_NAME_, FORMAT_JOIN(FORMAT_, name))
#define FORMAT_DTYPE(name)         FORMAT_JOIN(DT_, FORMAT_NAME(name))
#define FORMAT_BLOCK(name)         ((int)FORMAT_JOIN(BLOCK_, FORMAT_NAME(name)))
#define FORMAT_BYTES(name)         ((int)FORMAT_JOIN(BYTES_, FORMAT_NAME(name)))
#define FORMAT_PLAIN(name)         FORMAT_OF_(FORMAT_PLAIN_, FORMAT_JOIN(FORMAT_, name)) /* usable in #if */
