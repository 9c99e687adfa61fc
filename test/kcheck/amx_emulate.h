#pragma once
/* Emulates the AMX tile instructions in C so that CPUs without them can check cpu/gemm_amx.c, cpu/gemm_amx_skinny.c and
 * cpu/attn_amx.c; compile these with -include of this file. Speed means nothing here. Shapes come from the tile
 * configuration, as on hardware; a tile that is not configured or a shape that does not fit traps. */
#ifndef HEARTH_SIMDE /* test/kcheck uses SIMDe instead */
#include <immintrin.h>
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct amx_tile {
    uint16_t bytes;
    uint8_t rows;
    uint8_t data[16][64];
};
static _Thread_local struct amx_tile amx[8];
static _Thread_local int amx_on;

static void amx_need(int ok) {
    if (!ok) abort();
}
static inline void amx_loadconfig(const void *p) {
    const uint8_t *c = p;
    amx_need(c[0] == 1);
    memset(amx, 0, sizeof amx);
    for (int i = 0; i < 8; i++) {
        memcpy(&amx[i].bytes, c + 16 + 2 * i, 2);
        amx[i].rows = c[48 + i];
        amx_need(amx[i].bytes <= 64 && amx[i].rows <= 16 && !amx[i].bytes == !amx[i].rows);
    }
    amx_on = 1;
}
static inline void amx_release(void) { amx_on = 0; }
static inline void amx_zero(int t) {
    amx_need(amx_on && amx[t].rows);
    memset(amx[t].data, 0, sizeof amx[t].data);
}
static inline void amx_load(int t, const void *base, long stride) {
    amx_zero(t);
    for (int r = 0; r < amx[t].rows; r++) memcpy(amx[t].data[r], (const uint8_t *)base + r * stride, amx[t].bytes);
}
static inline void amx_store(int t, void *base, long stride) {
    amx_need(amx_on && amx[t].rows);
    for (int r = 0; r < amx[t].rows; r++) memcpy((uint8_t *)base + r * stride, amx[t].data[r], amx[t].bytes);
}
static inline float amx_flush(float f) { return f > -0x1p-126f && f < 0x1p-126f ? 0 : f; }
static inline float amx_float(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return amx_flush(f);
}
/* Columns in the inner loop, which the compiler vectorizes; each sum adds its products in the order of k, as on
 * hardware. */
static inline void amx_dpbf16(int d, int a, int b) {
    amx_need(amx_on && amx[d].rows == amx[a].rows && amx[d].bytes == amx[b].bytes && amx[a].bytes / 4 == amx[b].rows);
    for (int m = 0; m < amx[d].rows; m++) {
        float sum[16];
        uint32_t pairs[16], factors[16]; /* of a's row; of a row of b: two BF16 each, the first in the low half */
        memcpy(sum, amx[d].data[m], sizeof sum);
        memcpy(pairs, amx[a].data[m], sizeof pairs);
        for (int k = 0; k < amx[b].rows; k++) {
            const float first = amx_float(pairs[k] << 16), second = amx_float(pairs[k] & 0xffff0000u);
            memcpy(factors, amx[b].data[k], sizeof factors);
            for (int n = 0; n < 16; n++) sum[n] = amx_flush(sum[n] + first * amx_float(factors[n] << 16));
            for (int n = 0; n < 16; n++) sum[n] = amx_flush(sum[n] + second * amx_float(factors[n] & 0xffff0000u));
        }
        memcpy(amx[d].data[m], sum, amx[d].bytes);
    }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(p)     amx_loadconfig(p)
#define _tile_release()         amx_release()
#define _tile_zero(t)           amx_zero(t)
#define _tile_loadd(t, p, s)    amx_load(t, p, s)
#define _tile_stored(t, p, s)   amx_store(t, p, s)
#define _tile_dpbf16ps(d, a, b) amx_dpbf16(d, a, b)
#ifdef HEARTH_SIMDE /* AVX-512 vectors in C too */
#define gemm_amx                      gemm_amx_simde
#define gemm_amx_skinny_rows          gemm_amx_tiles_few_simde
#define gemm_amx_skinny_scratch_bytes gemm_amx_tiles_few_scratch_simde
#define gemm_amx_skinny_bf16          gemm_amx_few16_simde
#define gemm_amx_wide                 gemm_amx_wide_simde
#define gemm_avx512                   gemm_avx512_simde
#define gemm_avx512bf16               gemm_avx512bf16_simde
#define gemm_kernels                  gemm_kernels_simde
#define gemm_bf16_decoder_for         gemm_planes_for_simde
#define gemm_int8                     gemm_int8_simde
#define gemm_int8_few                 gemm_int8_few_simde
#define gemm_int16_few                gemm_int16_few_simde
#define gemm_int8_decoder_for         gemm_int8_decoder_for_simde
#define GRID_CODES(name)              int8_codes_avx512_simde_##name
#define gemm_vnni_pack                gemm_vnni_pack_simde
#define gemm_vnni_packed              gemm_vnni_packed_simde
#define gemm_vnni_rows                gemm_vnni_rows_simde
#define gemm_vnni_scratch             gemm_vnni_scratch_simde
#define kernels_amx                   kernels_amx_simde
#else
#define gemm_amx                      gemm_amx_emulated
#define gemm_amx_skinny_rows          gemm_amx_tiles_few_emulated
#define gemm_amx_skinny_scratch_bytes gemm_amx_tiles_few_scratch_emulated
#define gemm_amx_skinny_bf16          gemm_amx_few16_emulated
#define gemm_amx_wide                 gemm_amx_wide_emulated
#define kernels_amx                   kernels_amx_emulated
#endif
