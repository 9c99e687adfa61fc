#pragma once
/* Decodes GGUF blocks on the device; base/mat.c defines the formats. N neighbouring columns (N <= 8, first column a multiple of N)
 * share scales and bit position, which are computed once. */
#include <cuda_fp16.h>

#include "base/iq_values.h"
#include "gpu/cuda_kernels.h"

/* The FP16 number in the low 16 bits. */
__device__ inline float block_half_bits(uint32_t w) {
    uint16_t bits = (uint16_t)w;
    return __half2float(*(const __half *)&bits);
}
__device__ inline float block_half(const uint8_t *b) { return block_half_bits(b[0] | b[1] << 8); }
/* mat_iq4, one byte per entry */
__device__ inline float block_iq4(uint32_t code) {
    uint64_t all = code < 8 ? 0xf6eaddcfbfad9881ull : 0x7159453526190d01ull;
    return (float)(int8_t)(uint8_t)(all >> (code % 8 * 8));
}
__device__ inline float e2m1_decode(uint32_t code) {
    uint32_t mag = code & 7;
    float v = mag < 4 ? 0.5f * (float)mag : mag < 6 ? (float)(mag - 2) : 2.0f * (float)mag - 8.0f;
    return code & 8 ? -v : v;
}
/* mat_nf4 */
__device__ inline float nf4_decode(uint32_t code) {
    switch (code) {
    case 0: return -1.0f;
    case 1: return -0.6961928009986877f;
    case 2: return -0.5250730514526367f;
    case 3: return -0.39491748809814453f;
    case 4: return -0.28444138169288635f;
    case 5: return -0.18477343022823334f;
    case 6: return -0.09105003625154495f;
    case 7: return 0.0f;
    case 8: return 0.07958029955625534f;
    case 9: return 0.16093020141124725f;
    case 10: return 0.24611230194568634f;
    case 11: return 0.33791524171829224f;
    case 12: return 0.44070982933044434f;
    case 13: return 0.5626170039176941f;
    case 14: return 0.7229568362236023f;
    }
    return 1;
}
__device__ inline float e4m3_decode(uint8_t c) {
    uint32_t sign = (uint32_t)(c & 0x80) << 24, mag = c & 0x7f;
    if (mag == 0x7f) return __uint_as_float(sign | 0x7fc00000);
    if (mag >= 8) return __uint_as_float(sign | ((mag << 20) + (120u << 23)));
    return __uint_as_float(sign | __float_as_uint((float)mag * 0x1p-9f));
}
__device__ inline float e8m0_decode(uint32_t c) { return c == 255 ? __uint_as_float(0x7fc00000) : c ? __uint_as_float(c << 23) : 0x1p-127f; }

/* 32 four-bit numbers; 16 bytes hold the first 16 in their low nibbles. */
template <int N> __device__ inline void nibbles(float *v, const uint8_t *q, int i, float d, int dtype) {
    int shift = i / 16 * 4;
    q += i % 16;
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t code = (uint32_t)q[k] >> shift & 15;
        v[k] = d * (dtype == DT_Q4_0 ? (float)((int)code - 8) : dtype == DT_MXFP4 ? e2m1_decode(code) : block_iq4(code));
    }
}
/* Q4_K; with the fifth bits in qh, Q5_K. */
template <int N> __device__ inline void q45_k_columns(float *v, const uint8_t *b, const uint8_t *qh, const uint8_t *q, int i) {
    const uint8_t *s = b + 4;
    int j = i / 32;
    uint32_t scale = j < 4 ? s[j] & 63u : (s[j + 4] & 15u) | (uint32_t)(s[j - 4] >> 6) << 4;
    uint32_t least = j < 4 ? s[j + 4] & 63u : (uint32_t)(s[j + 4] >> 4) | (uint32_t)(s[j] >> 6) << 4;
    float d = block_half(b) * (float)scale, m = block_half(b + 2) * (float)least;
    q += i / 64 * 32 + i % 32;
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t code = (uint32_t)q[k] >> (j % 2 * 4) & 15;
        if (qh) code |= ((uint32_t)qh[i % 32 + k] >> j & 1) << 4;
        v[k] = d * (float)code - m;
    }
}
template <int N> __device__ inline void q6_k_columns(float *v, const uint8_t *b, int i) {
    int half = i / 128, l = i % 32, part = i % 128 / 32;
    float d = block_half(b + 208) * (float)((const int8_t *)b)[192 + half * 8 + l / 16 + 2 * part];
    const uint8_t *low = b + half * 64 + l + part % 2 * 32, *high = b + 128 + half * 32 + l;
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = d * (float)((int)(((uint32_t)low[k] >> (part / 2 * 4) & 15) | ((uint32_t)high[k] >> (2 * part) & 3) << 4) - 32);
}
template <int N> __device__ inline void iq4_xs(float *v, const uint8_t *b, int i) {
    int k = i / 32, low = b[4 + k / 2] >> (k % 2 * 4) & 15, high = (b[2] | b[3] << 8) >> (2 * k) & 3;
    nibbles<N>(v, b + 8 + 16 * k, i % 32, block_half(b) * (float)((low | high << 4) - 32), DT_IQ4_NL);
}

/* Q4_1, Q5_0 and Q5_1: 32 codes at q; fifth bits, bit i for column i, in four bytes before them. */
template <int N> __device__ inline void nibbles_plus(float *v, const uint8_t *q, int i, float d, float m, bool five) {
    int shift = i / 16 * 4;
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t code = (uint32_t)q[i % 16 + k] >> shift & 15;
        if (five) code |= ((uint32_t)(q - 4)[(i + k) / 8] >> ((i + k) % 8) & 1) << 4;
        v[k] = d * (float)code + m;
    }
}
template <int N> __device__ inline void q2_k_columns(float *v, const uint8_t *b, int i) {
    float d = block_half(b + 80) * (float)(b[i / 16] & 15), m = block_half(b + 82) * (float)(b[i / 16] >> 4);
    const uint8_t *q = b + 16 + i / 128 * 32 + i % 32;
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = d * (float)((uint32_t)q[k] >> (i % 128 / 32 * 2) & 3) - m;
}
template <int N> __device__ inline void q3_k_columns(float *v, const uint8_t *b, int i) {
    const uint8_t *s = b + 96, *q = b + 32 + i / 128 * 32 + i % 32, *high = b + i % 32;
    int part = i / 16, scale = (int)(((uint32_t)s[part % 8] >> (part / 8 * 4) & 15) | ((uint32_t)s[8 + part % 4] >> (part / 4 * 2) & 3) << 4) - 32;
    float d = block_half(b + 108) * (float)scale;
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = d * (float)((int)(((uint32_t)q[k] >> (i % 128 / 32 * 2) & 3) | ((uint32_t)high[k] >> (i / 32) & 1) << 2) - 4);
}

/* Sixteen columns in eight bytes, low nibbles first, with an E4M3 scale, in which NaN counts as 0. */
template <int N> __device__ inline void nvfp4_columns(float *v, const uint8_t *b, int i) {
    const uint8_t *q = b + 4 + i / 16 * 8 + i % 8, magnitude = b[i / 16] & 0x7f;
    const float d = magnitude == 0x7f ? 0.0f : e4m3_decode(magnitude);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = d * e2m1_decode((uint32_t)q[k] >> (i % 16 / 8 * 4) & 15);
}
/* ik_llama.cpp's formats, without the scale of the row. IQ4_KS: block_iq4, plus 4 if the scale's lowest bit is set. */
template <int N> __device__ inline void iq4_ks_columns(float *v, const uint8_t *b, int i) {
    const int k = i / 32, shift = i % 32 / 16 * 4;
    const float d = (float)((b[k] & 254) - 127), more = b[k] & 1 ? 4.0f : 0.0f;
    const uint8_t *q = b + 8 + 16 * k + i % 16;
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = d * (block_iq4((uint32_t)q[j] >> shift & 15) + more);
}
#define VALUE(value) value,
#define PAIR(first, second) first, second,
static __device__ const int8_t iq5_ks_values[32] = {VALUES_IQ5(VALUE)};
static __device__ const int8_t iq2_kl_values[64] = {VALUES_IQ2_KL(PAIR)};
#undef VALUE
#undef PAIR
template <int N> __device__ inline void iq5_ks_columns(float *v, const uint8_t *b, int i) {
    const int k = i / 32;
    const float d = (float)((b[k] & 254) - 127), more = b[k] & 1 ? 2.0f : 0.0f;
    const uint8_t *q = b + 8 + k / 2 * 32 + i % 32, *fifth = b + 136 + i % 32;
#pragma unroll
    for (int j = 0; j < N; j++) v[j] = d * ((float)iq5_ks_values[((uint32_t)q[j] >> (k % 2 * 4) & 15) | ((uint32_t)fifth[j] >> k & 1) << 4] + more);
}
template <int N> __device__ inline void iq2_kl_columns(float *v, const uint8_t *b, int i) {
    const int k = i / 32, scale = (b[2 + k % 4] >> (k / 4 * 4) & 15) | ((b[0] | b[1] << 8) >> (2 * k) & 3) << 4;
    const float d = (float)(scale - 32);
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int at = (i + j) % 32 / 2;
        const uint32_t code = ((uint32_t)b[6 + k / 2 * 16 + at] >> (k % 2 * 4) & 15) | ((uint32_t)b[70 + at] >> k & 1) << 4;
        v[j] = d * (float)iq2_kl_values[2 * code + (uint32_t)(i + j) % 2];
    }
}
template <int N> __device__ inline void q8_a_columns(float *v, const uint8_t *b, int i) {
    const float d = block_half(b), m = block_half(b + 2);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = d * (float)b[4 + i + k] + m;
}

#include "gpu/cuda_grid_blocks.cuh"

__device__ inline bool is_blocks(int dtype) { return dtype >= DT_Q8_0; }
/* The block of a row that column c is in, and the column's place in it. */
#define AT(name) (row + c / BLOCK_##name * BYTES_##name)
#define IN(name) (c % BLOCK_##name)
/* Columns c .. c + N - 1 of a row. */
template <int N> __device__ inline void blocks_at(float *v, const uint8_t *row, int dtype, int c) {
    const uint8_t *b;
    switch (dtype) {
    case DT_Q8_0: {
        b = AT(Q8_0);
        float d = block_half(b);
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = d * (float)((const int8_t *)b)[2 + IN(Q8_0) + k];
        return;
    }
    case DT_Q4_0:
    case DT_IQ4_NL:
        b = AT(Q4_0);
        nibbles<N>(v, b + 2, IN(Q4_0), block_half(b), dtype);
        return;
    case DT_MXFP4:
        b = AT(MXFP4);
        nibbles<N>(v, b + 1, IN(MXFP4), e8m0_decode(b[0]), dtype);
        return;
    case DT_INT4: /* scales are stored separately; the caller applies them */
#pragma unroll
        for (int k = 0; k < N; k++) v[k] = (float)((int)((uint32_t)AT(INT4)[c % 64 + k] >> (IN(INT4) / 64 * 4) & 15) - 8);
        return;
    case DT_Q4_1: b = AT(Q4_1); nibbles_plus<N>(v, b + 4, IN(Q4_1), block_half(b), block_half(b + 2), false); return;
    case DT_Q5_0: b = AT(Q5_0); nibbles_plus<N>(v, b + 6, IN(Q5_0), block_half(b), -16 * block_half(b), true); return;
    case DT_Q5_1: b = AT(Q5_1); nibbles_plus<N>(v, b + 8, IN(Q5_1), block_half(b), block_half(b + 2), true); return;
    case DT_Q2_K: q2_k_columns<N>(v, AT(Q2_K), IN(Q2_K)); return;
    case DT_Q3_K: q3_k_columns<N>(v, AT(Q3_K), IN(Q3_K)); return;
    case DT_IQ1_S: iq1_columns<N>(v, AT(IQ1_S), dtype, IN(IQ1_S)); return;
    case DT_IQ1_M: iq1_columns<N>(v, AT(IQ1_M), dtype, IN(IQ1_M)); return;
    case DT_IQ2_XXS: iq2_columns<N>(v, AT(IQ2_XXS), dtype, IN(IQ2_XXS)); return;
    case DT_IQ2_XS: iq2_columns<N>(v, AT(IQ2_XS), dtype, IN(IQ2_XS)); return;
    case DT_IQ2_S: iq2_columns<N>(v, AT(IQ2_S), dtype, IN(IQ2_S)); return;
    case DT_IQ3_XXS: iq3_columns<N>(v, AT(IQ3_XXS), dtype, IN(IQ3_XXS)); return;
    case DT_IQ3_S: iq3_columns<N>(v, AT(IQ3_S), dtype, IN(IQ3_S)); return;
    case DT_TQ1_0: tq1_columns<N>(v, AT(TQ1_0), IN(TQ1_0)); return;
    case DT_TQ2_0: tq2_columns<N>(v, AT(TQ2_0), IN(TQ2_0)); return;
    case DT_Q1_0: q1_0_columns<N>(v, AT(Q1_0), IN(Q1_0)); return;
    case DT_Q2_0: q2_0_columns<N>(v, AT(Q2_0), IN(Q2_0)); return;
    case DT_NVFP4: nvfp4_columns<N>(v, AT(NVFP4), IN(NVFP4)); return;
    case DT_IQ4_KS: iq4_ks_columns<N>(v, AT(IQ4_KS), IN(IQ4_KS)); return;
    case DT_IQ5_KS: iq5_ks_columns<N>(v, AT(IQ5_KS), IN(IQ5_KS)); return;
    case DT_IQ2_KL: iq2_kl_columns<N>(v, AT(IQ2_KL), IN(IQ2_KL)); return;
    case DT_Q8_A: q8_a_columns<N>(v, AT(Q8_A), IN(Q8_A)); return;
    case DT_IQ4_XS: iq4_xs<N>(v, AT(IQ4_XS), IN(IQ4_XS)); return;
    case DT_Q4_K: b = AT(Q4_K); q45_k_columns<N>(v, b, NULL, b + 16, IN(Q4_K)); return;
    case DT_Q5_K: b = AT(Q5_K); q45_k_columns<N>(v, b, b + 16, b + 48, IN(Q5_K)); return;
    default: q6_k_columns<N>(v, AT(Q6_K), IN(Q6_K)); return;
    }
}
#undef AT
#undef IN
