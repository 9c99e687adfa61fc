#pragma once
/* Defines in plain C what many-token products use and SIMDe lacks, including AMX tiles (amx_emulate.h), and renames the
 * kernels. Only for -DHEARTH_SIMDE. */
#include "test/kcheck/simde_vnni.h"

#ifndef __AVX512F__
#undef _mm256_maskz_loadu_ps
#define _mm256_maskz_loadu_ps more_maskz_loadu256
static inline __m256 more_maskz_loadu256(__mmask8 k, const void *p) {
    float f[8] = {0};
    for (int i = 0; i < 8; i++)
        if (k >> i & 1) memcpy(&f[i], (const uint8_t *)p + 4 * i, 4);
    return _mm256_loadu_ps(f);
}
#undef _mm512_cvtne2ps_pbh
#define _mm512_cvtne2ps_pbh more_cvtne2ps
static inline __m512i more_cvtne2ps(__m512 high, __m512 low) {
    const __m256i h[2] = {more_cvtneps(low), more_cvtneps(high)};
    return _mm512_loadu_si512(h);
}
#undef _mm512_fpclass_ps_mask
#define _mm512_fpclass_ps_mask more_fpclass
static inline __mmask16 more_fpclass(__m512 v, int which) {
    float f[16];
    __mmask16 k = 0;
    _mm512_storeu_ps(f, v);
    for (int i = 0; i < 16; i++) {
        const uint32_t u = f32_bits(f[i]), e = u >> 23 & 255, m = u & 0x7fffff, sign = u >> 31;
        const int is = (e == 255 && m && m >> 22) | (!e && !m && !sign) << 1 | (!e && !m && sign) << 2 |
                       (e == 255 && !m && !sign) << 3 | (e == 255 && !m && sign) << 4 | (!e && m) << 5 |
                       (sign && e != 255 && (e || m)) << 6 | (e == 255 && m && !(m >> 22)) << 7;
        if (is & which) k |= (__mmask16)(1 << i);
    }
    return k;
}
#undef _mm512_i32gather_ps
#define _mm512_i32gather_ps more_gather
static inline __m512 more_gather(__m512i at, const void *p, int scale) {
    float f[16];
    int32_t i[16];
    memcpy(i, &at, 64);
    for (int k = 0; k < 16; k++) memcpy(&f[k], (const uint8_t *)p + (ptrdiff_t)i[k] * scale, 4);
    return _mm512_loadu_ps(f);
}
#undef _mm512_mask_storeu_epi32
#define _mm512_mask_storeu_epi32 more_mask_storeu32
static inline void more_mask_storeu32(void *p, __mmask16 k, __m512i v) {
    uint32_t u[16];
    memcpy(u, &v, 64);
    for (int i = 0; i < 16; i++)
        if (k >> i & 1) memcpy((uint8_t *)p + 4 * i, &u[i], 4);
}
#undef _mm512_gf2p8affine_epi64_epi8
#define _mm512_gf2p8affine_epi64_epi8 more_affine
static inline __m512i more_affine(__m512i x, __m512i a, int b) {
    uint8_t u[64], m[64], out[64];
    memcpy(u, &x, 64), memcpy(m, &a, 64);
    for (int i = 0; i < 64; i++) {
        out[i] = 0;
        for (int k = 0; k < 8; k++)
            out[i] |= (uint8_t)(((__builtin_popcount(m[i / 8 * 8 + 7 - k] & u[i]) ^ b >> k) & 1) << k);
    }
    return _mm512_loadu_si512(out);
}
#undef _mm256_mask_sllv_epi32
#define _mm256_mask_sllv_epi32 more_mask_shift
static inline __m256i more_mask_shift(__m256i otherwise, __mmask8 k, __m256i a, __m256i by) {
    uint32_t u[8], v[8], n[8];
    memcpy(u, &otherwise, 32), memcpy(v, &a, 32), memcpy(n, &by, 32);
    for (int i = 0; i < 8; i++)
        if (k >> i & 1) u[i] = n[i] < 32 ? v[i] << n[i] : 0;
    return _mm256_loadu_si256((const __m256i *)(const void *)u);
}
#undef _mm256_maskz_loadu_epi8
#define _mm256_maskz_loadu_epi8 more_maskz_loadu256_8
static inline __m256i more_maskz_loadu256_8(__mmask32 k, const void *p) {
    uint8_t b[32] = {0};
    for (int i = 0; i < 32; i++)
        if (k >> i & 1) b[i] = ((const uint8_t *)p)[i];
    return _mm256_loadu_si256((const __m256i *)(const void *)b);
}
#endif
#include "test/kcheck/amx_emulate.h"
