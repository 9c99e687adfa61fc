#pragma once
/* GGUF's IQ1, IQ2 and IQ3 blocks of 256 columns, 32 columns at a time. Inline, so that a constant format leaves the
 * code of that format alone. */
#include "base/mat.h"
#include "base/minifloat.h"

/* Magnitudes of eight columns in IQ2; of four in IQ3; in IQ1 eight times the value plus 8. First column in the lowest
 * byte. */
extern const uint64_t blocks_iq1[2048], blocks_iq2_xxs[256], blocks_iq2_xs[512], blocks_iq2_s[1024];
extern const uint32_t blocks_iq3_xxs[256], blocks_iq3_s[512];

/* Columns 32 * part .. 32 * part + 31 of a block: value = scale[column / 16] * (byte - grid_bias), negative where
 * `signs` has the column's bit. */
struct grid_part {
    uint64_t bytes[4];
    uint32_t signs;
    float scale[2];
};
static inline int grid_bias(enum dtype t) { return t == DT_IQ1_S || t == DT_IQ1_M ? 9 : 0; }

static inline uint32_t grid_u16(const uint8_t *p) { return (uint32_t)p[0] | (uint32_t)p[1] << 8; }
static inline uint32_t grid_u32(const uint8_t *p) { return grid_u16(p) | grid_u16(p + 2) << 16; }
/* Four times seven signs and a parity each. */
static inline uint32_t grid_signs(uint32_t w) {
    uint32_t out = 0;
    for (int k = 0; k < 4; k++) {
        const uint32_t seven = w >> 7 * k & 127;
        out |= (seven | (uint32_t)__builtin_parity(seven) << 7) << 8 * k;
    }
    return out;
}
static inline float grid_scale(float d, uint32_t nibble) { return d * (0.5f + (float)nibble) * 0.25f; }

static inline __attribute__((always_inline)) struct grid_part grid_part_of(enum dtype t, const uint8_t *b, int part) {
    const float d = f16_to_f32((uint16_t)grid_u16(b));
    struct grid_part g = {.signs = 0};
    uint32_t w;
    switch (t) {
    case DT_IQ2_XXS:
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) g.bytes[k] = blocks_iq2_xxs[b[2 + 8 * part + k]];
        w = grid_u32(b + 6 + 8 * part);
        g.signs = grid_signs(w);
        g.scale[0] = g.scale[1] = grid_scale(d, w >> 28);
        break;
    case DT_IQ2_XS:
        w = 0;
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
            const uint32_t q = grid_u16(b + 2 + 8 * part + 2 * k);
            g.bytes[k] = blocks_iq2_xs[q & 511];
            w |= (q >> 9) << 7 * k;
        }
        g.signs = grid_signs(w);
        for (int k = 0; k < 2; k++) g.scale[k] = grid_scale(d, b[66 + part] >> 4 * k & 15u);
        break;
    case DT_IQ2_S:
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) g.bytes[k] =
            blocks_iq2_s[b[2 + 4 * part + k] | (b[66 + part] >> 2 * k & 3) << 8];
        g.signs = grid_u32(b + 34 + 4 * part);
        for (int k = 0; k < 2; k++) g.scale[k] = grid_scale(d, b[74 + part] >> 4 * k & 15u);
        break;
    case DT_IQ3_XXS:
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) g.bytes[k] =
            blocks_iq3_xxs[b[2 + 8 * part + 2 * k]] | (uint64_t)blocks_iq3_xxs[b[3 + 8 * part + 2 * k]] << 32;
        w = grid_u32(b + 66 + 4 * part);
        g.signs = grid_signs(w);
        g.scale[0] = g.scale[1] = d * (0.5f + (float)(w >> 28)) * 0.5f;
        break;
    case DT_IQ3_S:
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
            const uint8_t *q = b + 2 + 8 * part + 2 * k;
            const int high = b[66 + part] >> 2 * k;
            g.bytes[k] = blocks_iq3_s[q[0] | (high & 1) << 8] | (uint64_t)blocks_iq3_s[q[1] | (high >> 1 & 1) << 8]
                                                                    << 32;
        }
        g.signs = grid_u32(b + 74 + 4 * part);
        g.scale[0] = g.scale[1] = d * (float)(1 + 2 * (b[106 + part / 2] >> part % 2 * 4 & 15));
        break;
    case DT_IQ1_S:
        w = grid_u16(b + 34 + 2 * part);
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) g.bytes[k] =
            /* 2 * 8 times the offset, plus 1 */
            blocks_iq1[b[2 + 4 * part + k] | (w >> 3 * k & 7) << 8] + (w & 0x8000 ? 0 : 0x0202020202020202);
        g.scale[0] = g.scale[1] = d * (float)(2 * (w >> 12 & 7) + 1) * 0.125f;
        break;
    case DT_IQ1_M: /* the scale is in the upper four bits of four words */
        w = grid_u16(b + 48) >> 12 | (grid_u16(b + 50) >> 8 & 0xf0) | (grid_u16(b + 52) >> 4 & 0xf00) |
            (grid_u16(b + 54) & 0xf000);
        _Pragma("GCC unroll 4") for (int k = 0; k < 4; k++) {
            const int high = b[32 + 2 * part + k / 2] >> k % 2 * 4;
            g.bytes[k] = blocks_iq1[b[4 * part + k] | (high & 7) << 8] + (high & 8 ? 0 : 0x0202020202020202);
        }
        for (int k = 0; k < 2; k++) {
            const uint32_t three = grid_u16(b + 48 + part / 2 * 2) >> (part % 2 * 2 + k) * 3 & 7;
            g.scale[k] = f16_to_f32((uint16_t)w) * (float)(2 * three + 1) * 0.125f;
        }
        break;
    default: break;
    }
    return g;
}
