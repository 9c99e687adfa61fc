#include "engine/base/blocks.h"

#include "engine/base/minifloat.h"

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
    default: return 0;
    }
}

static bool half_finite(const uint8_t *p) { return (p[1] & 0x7c) != 0x7c; }
/* Offsets of a block's float16 numbers. */
static const struct {
    uint8_t dtype, n, at[2];
} halves[] = {{DT_Q8_0, 1, {0}},   {DT_Q4_0, 1, {0}},    {DT_Q4_1, 2, {0, 2}}, {DT_Q5_0, 1, {0}},   {DT_Q5_1, 2, {0, 2}}, {DT_Q2_K, 2, {80, 82}},
              {DT_Q3_K, 1, {108}}, {DT_Q4_K, 2, {0, 2}}, {DT_Q5_K, 2, {0, 2}}, {DT_Q6_K, 1, {208}}, {DT_IQ4_NL, 1, {0}},  {DT_IQ4_XS, 1, {0}}};

bool blocks_finite(enum dtype t, const uint8_t *b) {
    if (t == DT_MXFP4) return b[0] != 255;
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        for (int k = 0; k < halves[i].n && halves[i].dtype == t; k++)
            if (!half_finite(b + halves[i].at[k])) return false;
    return true;
}
