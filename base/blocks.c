#include "base/blocks.h"

#include "base/grid_blocks.h"
#include "base/iq_grids.h"
#include "base/minifloat.h"

static float half_at(const uint8_t *b) { return f16_to_f32((uint16_t)(b[0] | b[1] << 8)); }
/* Code i of 32 in 16 bytes: low nibbles first. */
static int nibble_at(const uint8_t *q, int i) { return i < 16 ? q[i] & 15 : q[i - 16] >> 4; }

static float iq4_xs_at(const uint8_t *b, int i) {
    int k = i / 32, low = b[4 + k / 2] >> (k % 2 * 4) & 15, high = (b[2] | b[3] << 8) >> (2 * k) & 3;
    return half_at(b) * (float)((low | high << 4) - 32) * (float)mat_iq4[nibble_at(b + 8 + 16 * k, i % 32)];
}

/* Q4_K and Q5_K: eight sub-blocks, each with a scale and a minimum of six bits; qh: the fifth bits, NULL for Q4_K. */
static float q45_k_at(const uint8_t *b, const uint8_t *qh, const uint8_t *q, int i) {
    const uint8_t *s = b + 4;
    int j = i / 32, sc, mn;
    if (j < 4) sc = s[j] & 63, mn = s[j + 4] & 63;
    else sc = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, mn = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    uint8_t byte = q[i / 64 * 32 + i % 32];
    int v = (j % 2 ? byte >> 4 : byte & 15) | (qh ? (qh[i % 32] >> j & 1) << 4 : 0);
    return half_at(b) * (float)sc * (float)v - half_at(b + 2) * (float)mn;
}
static float q6_k_at(const uint8_t *b, int i) {
    const uint8_t *ql = b, *qh = b + 128;
    const int8_t *sc = (const int8_t *)b + 192;
    float d = half_at(b + 208);
    int half = i / 128, k = i % 128, l = k % 32, part = k / 32;
    int low = ql[half * 64 + l + (part & 1) * 32];
    low = part < 2 ? low & 15 : low >> 4;
    int q = (low | (qh[half * 32 + l] >> (2 * part) & 3) << 4) - 32;
    return d * (float)sc[half * 8 + l / 16 + 2 * part] * (float)q;
}

/* Q2_K: sixteen parts of 16 columns, each with a scale and a minimum of four bits. */
static float q2_k_at(const uint8_t *b, int i) {
    int code = b[16 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3;
    return half_at(b + 80) * (float)(b[i / 16] & 15) * (float)code - half_at(b + 82) * (float)(b[i / 16] >> 4);
}
/* Q3_K: sixteen scales of six bits; the third bit of each code is in `b`, and 4 is subtracted where it is not set. */
static float q3_k_at(const uint8_t *b, int i) {
    const uint8_t *s = b + 96;
    int k = i / 16, scale = (s[k % 8] >> (k / 8 * 4) & 15) | (s[8 + k % 4] >> (k / 4 * 2) & 3) << 4;
    int low = b[32 + i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3, high = b[i % 32] >> (i / 32) & 1;
    return half_at(b + 108) * (float)(scale - 32) * (float)(low - (high ? 0 : 4));
}
/* The fifth bit of column i is bit i of the four bytes at b. */
static int fifth_at(const uint8_t *b, int i) { return (b[i / 8] >> (i % 8) & 1) << 4; }

/* Byte k of a grid entry's expansion. Levels of IQ2: 8, 25, 43; of IQ3_XXS: 4, 12, .. 52, 62; of IQ3_S: 1, 3, .. 15. */
#define LEVEL_2(code, k)     ((uint64_t)(8 + 17 * ((code) >> 2 * (k)&3) + (((code) >> 2 * (k)&3) == 2)) << 8 * (k))
#define LEVEL_1(code, k)     ((uint64_t)(8 * ((code) >> 2 * (k)&3)) << 8 * (k))
#define LEVEL_3(code, k)     ((uint32_t)(4 + 8 * ((code) >> 3 * (k)&7) + 2 * (((code) >> 3 * (k)&7) == 7)) << 8 * (k))
#define LEVEL_3S(code, k)    ((uint32_t)(1 + 2 * ((code) >> 3 * (k)&7)) << 8 * (k))
#define FOUR(level, code, k) (level(code, k) | level(code, (k) + 1) | level(code, (k) + 2) | level(code, (k) + 3))
#define G(code)              FOUR(LEVEL_2, code, 0) | FOUR(LEVEL_2, code, 4),
const uint64_t blocks_iq2_xxs[256] = {GRID_IQ2_XXS}, blocks_iq2_xs[512] = {GRID_IQ2_XS},
               blocks_iq2_s[1024] = {GRID_IQ2_S};
#undef G
#define G(code) FOUR(LEVEL_1, code, 0) | FOUR(LEVEL_1, code, 4),
const uint64_t blocks_iq1[2048] = {GRID_IQ1_S};
#undef G
#define G(code) FOUR(LEVEL_3, code, 0),
const uint32_t blocks_iq3_xxs[256] = {GRID_IQ3_XXS};
#undef G
#define G(code) FOUR(LEVEL_3S, code, 0),
const uint32_t blocks_iq3_s[512] = {GRID_IQ3_S};
#undef G

static float grid_at(enum dtype t, const uint8_t *b, int i) {
    const struct grid_part g = grid_part_of(t, b, i / 32);
    const float v = g.scale[i % 32 / 16] * (float)((int)(g.bytes[i % 32 / 8] >> i % 8 * 8 & 255) - grid_bias(t));
    return g.signs >> i % 32 & 1 ? -v : v;
}

/* Ternary digits, five per byte as a fraction of 256, highest first: 32 bytes, then 16, then four with four digits
 * each. */
static float tq1_0_at(const uint8_t *b, int i) {
    static const uint8_t power[5] = {1, 3, 9, 27, 81};
    const uint8_t byte = i < 160 ? b[i % 32] : i < 240 ? b[32 + i % 16] : b[48 + i % 4];
    const int digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
    return half_at(b + 52) * (float)(((uint8_t)(byte * power[digit]) * 3 >> 8) - 1);
}

static float iq4_ks_at(const uint8_t *b, int i) {
    const uint8_t s = b[i / 32];
    return (float)((s & 254) - 127) * (float)mat_iq4_ks[s & 1][nibble_at(b + 8 + i / 32 * 16, i % 32)];
}
/* Parts of 32 columns in pairs: low nibbles, then high ones; the fifth bit of part k is bit k of 32 bytes. */
static float iq5_ks_at(const uint8_t *b, int i) {
    const int k = i / 32, four = b[8 + k / 2 * 32 + i % 32] >> (k % 2 * 4) & 15, fifth = b[136 + i % 32] >> k & 1;
    return (float)((b[k] & 254) - 127) * (float)mat_iq5_ks[b[k] & 1][four | fifth << 4];
}
/* A code of five bits for two columns: nibbles as in IQ5_KS, 16 for a part, and a bit of 16 bytes. */
static float iq2_kl_at(const uint8_t *b, int i) {
    const int k = i / 32, j = i % 32 / 2, four = b[6 + k / 2 * 16 + j] >> (k % 2 * 4) & 15, fifth = b[70 + j] >> k & 1;
    const int scale = (b[2 + k % 4] >> (k / 4 * 4) & 15) | ((b[0] | b[1] << 8) >> (2 * k) & 3) << 4;
    return (float)(scale - 32) * (float)mat_iq2_kl[i % 2][four | fifth << 4];
}

float blocks_at(enum dtype t, const uint8_t *b, int i) {
    switch (t) {
    case DT_Q8_0: return half_at(b) * (float)(int8_t)b[2 + i];
    case DT_Q4_0: return half_at(b) * (float)mat_q4_0[nibble_at(b + 2, i)];
    case DT_Q4_1: return half_at(b) * (float)nibble_at(b + 4, i) + half_at(b + 2);
    case DT_Q5_0: return half_at(b) * (float)((nibble_at(b + 6, i) | fifth_at(b + 2, i)) - 16);
    case DT_Q5_1: return half_at(b) * (float)(nibble_at(b + 8, i) | fifth_at(b + 4, i)) + half_at(b + 2);
    case DT_IQ4_NL: return half_at(b) * (float)mat_iq4[nibble_at(b + 2, i)];
    case DT_MXFP4: return e8m0_half(b[0]) * (float)mat_mxfp4[nibble_at(b + 1, i)];
    case DT_IQ4_XS: return iq4_xs_at(b, i);
    case DT_Q2_K: return q2_k_at(b, i);
    case DT_Q3_K: return q3_k_at(b, i);
    case DT_Q4_K: return q45_k_at(b, NULL, b + 16, i);
    case DT_Q5_K: return q45_k_at(b, b + 16, b + 48, i);
    case DT_Q6_K: return q6_k_at(b, i);
    case DT_IQ1_S:
    case DT_IQ1_M:
    case DT_IQ2_XXS:
    case DT_IQ2_XS:
    case DT_IQ2_S:
    case DT_IQ3_XXS:
    case DT_IQ3_S: return grid_at(t, b, i);
    case DT_TQ1_0: return tq1_0_at(b, i);
    case DT_TQ2_0: return half_at(b + 64) * (float)((b[i / 128 * 32 + i % 32] >> (i % 128 / 32 * 2) & 3) - 1);
    case DT_Q1_0: return b[2 + i / 8] >> i % 8 & 1 ? half_at(b) : -half_at(b);
    case DT_Q2_0: return half_at(b) * (float)((b[2 + i / 4] >> i % 4 * 2 & 3) - 1);
    case DT_NVFP4: return nvfp4_scale(b[i / 16]) * (float)mat_mxfp4[b[4 + i / 16 * 8 + i % 8] >> i % 16 / 8 * 4 & 15];
    case DT_IQ4_KS: return iq4_ks_at(b, i);
    case DT_IQ5_KS: return iq5_ks_at(b, i);
    case DT_IQ2_KL: return iq2_kl_at(b, i);
    case DT_Q8_A: return half_at(b) * (float)b[4 + i] + half_at(b + 2);
    default: return 0;
    }
}

static bool half_finite(const uint8_t *p) { return (p[1] & 0x7c) != 0x7c; }
/* Offsets of a block's float16 numbers. */
static const struct {
    uint8_t dtype, n, at[2];
} halves[] = {{DT_Q8_0, 1, {0}},    {DT_Q4_0, 1, {0}},      {DT_Q4_1, 2, {0, 2}}, {DT_Q5_0, 1, {0}},
              {DT_Q5_1, 2, {0, 2}}, {DT_Q2_K, 2, {80, 82}}, {DT_Q3_K, 1, {108}},  {DT_Q4_K, 2, {0, 2}},
              {DT_Q5_K, 2, {0, 2}}, {DT_Q6_K, 1, {208}},    {DT_IQ4_NL, 1, {0}},  {DT_IQ4_XS, 1, {0}},
              {DT_IQ1_S, 1, {0}},   {DT_IQ2_XXS, 1, {0}},   {DT_IQ2_XS, 1, {0}},  {DT_IQ2_S, 1, {0}},
              {DT_IQ3_XXS, 1, {0}}, {DT_IQ3_S, 1, {0}},     {DT_TQ1_0, 1, {52}},  {DT_TQ2_0, 1, {64}},
              {DT_Q1_0, 1, {0}},    {DT_Q2_0, 1, {0}},      {DT_Q8_A, 2, {0, 2}}};

bool blocks_finite(enum dtype t, const uint8_t *b) {
    if (t == DT_MXFP4) return b[0] != 255;
    /* the exponent's upper three bits and its lower two */
    if (t == DT_IQ1_M) return (b[55] & 0x70) != 0x70 || (b[53] & 0xc0) != 0xc0;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        for (int k = 0; k < halves[i].n && halves[i].dtype == t; k++)
            if (!half_finite(b + halves[i].at[k])) return false;
    return true;
}
