#pragma once
/* Decodes GGUF's IQ1, IQ2 and IQ3 blocks and its ternary formats on the device; base/grid_blocks.h and base/blocks.c define them. N neighbouring columns (N <= 8,
 * first column a multiple of N) are in one entry of a grid, or in two of IQ3. */
#include "base/iq_grids.h"
#include "gpu/cuda_kernels.h"

#define G(code) code,
static __device__ const uint16_t grid_iq2_xxs[256] = {GRID_IQ2_XXS}, grid_iq2_xs[512] = {GRID_IQ2_XS}, grid_iq2_s[1024] = {GRID_IQ2_S}, grid_iq1[2048] = {GRID_IQ1_S},
                                 grid_iq3_xxs[256] = {GRID_IQ3_XXS}, grid_iq3_s[512] = {GRID_IQ3_S};
#undef G

__device__ inline uint32_t grid_word(const uint8_t *p, int bytes) {
    uint32_t w = 0;
    for (int k = 0; k < bytes; k++) w |= (uint32_t)p[k] << 8 * k;
    return w;
}
/* Sign bits of eight columns from seven and their parity. */
__device__ inline uint32_t grid_parity(uint32_t seven) { return seven | (uint32_t)(__popc(seven) & 1) << 7; }

/* Columns i .. i + N - 1 from a grid entry of eight with two bits each: levels 8, 25, 43. */
template <int N> __device__ inline void grid_two(float *v, uint32_t code, uint32_t signs, float scale, int i) {
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t level = code >> 2 * (i % 8 + k) & 3;
        float x = scale * (float)(8 + 17 * level + (level == 2));
        v[k] = signs >> (i % 8 + k) & 1 ? -x : x;
    }
}
/* The same from two entries of four with three bits each; levels 4, 12, .. 52, 62, or with odd 1, 3, .. 15. */
template <int N> __device__ inline void grid_three(float *v, uint32_t low, uint32_t high, uint32_t signs, float scale, int i, bool odd) {
#pragma unroll
    for (int k = 0; k < N; k++) {
        uint32_t at = i % 8 + k, level = (at < 4 ? low >> 3 * at : high >> 3 * (at - 4)) & 7;
        float x = scale * (float)(odd ? 1 + 2 * level : 4 + 8 * level + 2 * (level == 7));
        v[k] = signs >> at & 1 ? -x : x;
    }
}
template <int N> __device__ inline void iq2_columns(float *v, const uint8_t *b, int dtype, int i) {
    int g = i / 8, part = i / 32;
    float d = block_half(b);
    if (dtype == DT_IQ2_XXS) {
        uint32_t w = grid_word(b + 6 + 8 * part, 4);
        grid_two<N>(v, grid_iq2_xxs[b[2 + 8 * part + g % 4]], grid_parity(w >> 7 * (g % 4) & 127), d * (0.5f + (float)(w >> 28)) * 0.25f, i);
    } else if (dtype == DT_IQ2_XS) {
        uint32_t q = grid_word(b + 2 + 2 * g, 2);
        grid_two<N>(v, grid_iq2_xs[q & 511], grid_parity(q >> 9), d * (0.5f + (float)((uint32_t)b[66 + part] >> (i / 16 % 2 * 4) & 15)) * 0.25f, i);
    } else {
        uint32_t q = b[2 + g] | ((uint32_t)b[66 + part] >> 2 * (g % 4) & 3) << 8;
        grid_two<N>(v, grid_iq2_s[q], b[34 + g], d * (0.5f + (float)((uint32_t)b[74 + part] >> (i / 16 % 2 * 4) & 15)) * 0.25f, i);
    }
}
template <int N> __device__ inline void iq3_columns(float *v, const uint8_t *b, int dtype, int i) {
    int g = i / 8, part = i / 32;
    const uint8_t *q = b + 2 + 2 * g;
    float d = block_half(b);
    if (dtype == DT_IQ3_XXS) {
        uint32_t w = grid_word(b + 66 + 4 * part, 4);
        grid_three<N>(v, grid_iq3_xxs[q[0]], grid_iq3_xxs[q[1]], grid_parity(w >> 7 * (g % 4) & 127), d * (0.5f + (float)(w >> 28)) * 0.5f, i, false);
        return;
    }
    uint32_t high = (uint32_t)b[66 + part] >> 2 * (g % 4);
    float scale = d * (float)(1 + 2 * ((uint32_t)b[106 + part / 2] >> (part % 2 * 4) & 15));
    grid_three<N>(v, grid_iq3_s[q[0] | (high & 1) << 8], grid_iq3_s[q[1] | (high >> 1 & 1) << 8], b[74 + g], scale, i, true);
}
template <int N> __device__ inline void iq1_columns(float *v, const uint8_t *b, int dtype, int i) {
    int g = i / 8, part = i / 32;
    uint32_t q, minus;
    float scale;
    if (dtype == DT_IQ1_S) {
        uint32_t w = grid_word(b + 34 + 2 * part, 2);
        q = b[2 + g] | (w >> 3 * (g % 4) & 7) << 8, minus = w >> 15;
        scale = block_half(b) * (float)(2 * (w >> 12 & 7) + 1);
    } else { /* the scale is in the upper four bits of four words */
        uint32_t high = (uint32_t)b[32 + g / 2] >> (g % 2 * 4), three = grid_word(b + 48 + i / 64 * 2, 2) >> (i / 16 % 4 * 3) & 7;
        uint8_t half[2] = {(uint8_t)(b[49] >> 4 | (b[51] & 0xf0)), (uint8_t)(b[53] >> 4 | (b[55] & 0xf0))};
        q = b[g] | (high & 7) << 8, minus = high >> 3 & 1;
        scale = block_half(half) * (float)(2 * three + 1);
    }
    uint32_t code = grid_iq1[q];
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = scale * ((float)((int)(code >> 2 * (i % 8 + k) & 3) - 1) + (minus ? -0.125f : 0.125f));
}
template <int N> __device__ inline void tq1_columns(float *v, const uint8_t *b, int i) {
    float d = block_half(b + 52);
#pragma unroll
    for (int k = 0; k < N; k++) {
        int at = i + k, digit = at < 160 ? at / 32 : at < 240 ? (at - 160) / 16 : (at - 240) / 4;
        uint32_t byte = at < 160 ? b[at % 32] : at < 240 ? b[32 + at % 16] : b[48 + at % 4];
        for (int p = 0; p < digit; p++) byte = byte * 3 & 255;
        v[k] = d * (float)((int)(byte * 3 >> 8) - 1);
    }
}
template <int N> __device__ inline void q1_0_columns(float *v, const uint8_t *b, int i) {
    float d = block_half(b);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = (uint32_t)b[2 + (i + k) / 8] >> (i + k) % 8 & 1 ? d : -d;
}
template <int N> __device__ inline void q2_0_columns(float *v, const uint8_t *b, int i) {
    float d = block_half(b);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = d * (float)((int)((uint32_t)b[2 + (i + k) / 4] >> (i + k) % 4 * 2 & 3) - 1);
}
template <int N> __device__ inline void tq2_columns(float *v, const uint8_t *b, int i) {
    float d = block_half(b + 64);
#pragma unroll
    for (int k = 0; k < N; k++) v[k] = d * (float)((int)((uint32_t)b[i / 128 * 32 + i % 32 + k] >> (i % 128 / 32 * 2) & 3) - 1);
}
