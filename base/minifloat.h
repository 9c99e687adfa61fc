#pragma once
/* Narrow number formats, one value at a time: the reference for every SIMD kernel. */
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float f32_of_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, 4);
    return f;
}
static inline uint32_t f32_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, 4);
    return u;
}

static inline float bf16_to_f32(uint16_t h) { return f32_of_bits((uint32_t)h << 16); }
/* Round to nearest even; NaN stays a (quiet) NaN. */
static inline uint16_t f32_to_bf16(float f) {
    uint32_t u = f32_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000) return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

static inline float f16_to_f32(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    if (mag >= 0x7c00) return f32_of_bits(sign | 0x7f800000 | (mag & 0x3ff) << 13);
    if (mag >= 0x0400) return f32_of_bits(sign | ((mag << 13) + ((127 - 15) << 23)));
    return f32_of_bits(sign | f32_bits((float)mag * 0x1p-24f));
}
static inline uint16_t f32_to_f16(float f) {
    uint32_t u = f32_bits(f), sign = u >> 16 & 0x8000;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (u >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (u < 0x38800000) /* subnormal: adding 0.5 rounds at fp16's last bit */
        return (uint16_t)(sign | (f32_bits(f32_of_bits(u) + 0.5f) - f32_bits(0.5f)));
    return (uint16_t)(sign | ((u - (112u << 23) + 0xfff + (u >> 13 & 1)) >> 13));
}

/* FP8 E4M3 (fn): no infinity, NaN at 0x7F and 0xFF, largest 448, smallest 2^-9. */
static inline float e4m3_to_f32(uint8_t c) {
    uint32_t sign = (uint32_t)(c & 0x80) << 24, mag = c & 0x7f;
    if (mag == 0x7f) return f32_of_bits(sign | 0x7fc00000);
    if (mag >= 8) return f32_of_bits(sign | ((mag << 20) + (120u << 23)));
    return f32_of_bits(sign | f32_bits((float)mag * 0x1p-9f));
}
/* Round to nearest even, saturating to 448; NaN to NaN. */
static inline uint8_t f32_to_e4m3(float f) {
    uint32_t u = f32_bits(f), sign = u >> 24 & 0x80;
    u &= 0x7fffffff;
    if (u > 0x7f800000) return (uint8_t)(sign | 0x7f);
    if (u >= f32_bits(448.0f)) return (uint8_t)(sign | 0x7e);
    if (u < f32_bits(0x1p-6f)) /* subnormal step 2^-9, the last bit of 2^14 */
        return (uint8_t)(sign | (f32_bits(f32_of_bits(u) + 0x1p14f) - f32_bits(0x1p14f)));
    return (uint8_t)(sign | ((u - (120u << 23) + 0x7ffff + (u >> 20 & 1)) >> 20));
}
/* E8M0: 2^(c - 127), 255 is NaN. */
static inline float e8m0_to_f32(uint8_t c) {
    if (c == 255) return f32_of_bits(0x7fc00000);
    return c ? f32_of_bits((uint32_t)c << 23) : 0x1p-127f;
}
/* Half of e8m0_to_f32: GGUF's MXFP4 stores doubled codes. */
static inline float e8m0_half(uint8_t c) { return f32_of_bits(c < 2 ? 0x00200000u << c : (uint32_t)(c - 1) << 23); }
/* Half of the E4M3 scale of GGUF's NVFP4, whose codes are doubled: without sign, and 0 for NaN, as ggml reads it. */
static inline float nvfp4_scale(uint8_t c) {
    const uint8_t magnitude = c & 0x7f;
    return magnitude == 0x7f ? 0 : 0.5f * e4m3_to_f32(magnitude);
}
/* FP4 E2M1, low four bits: 0 .5 1 1.5 2 3 4 6 and their negatives. */
static inline float e2m1_to_f32(uint8_t c) {
    static const float v[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    return c & 8 ? -v[c & 7] : v[c & 7];
}
