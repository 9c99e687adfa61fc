#pragma once
/* Random matrices of every format for programs that check products, in buffers that end at a guard page. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/mat.h"
#include "base/minifloat.h"
#include "base/scale.h"
#include "test/kcheck/case.h"

static uint64_t state;
static uint32_t rnd(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}
static float uniform(void) { return (float)((int)(rnd() & 0xffffff) - 0x800000) * 0x1p-23f; }
static float normal(void) { return uniform() + uniform() + uniform(); }

/* --- Buffers that end at a guard page --------------------------------------------------------- */

static struct {
    void *map;
    size_t size;
} maps[256];
static int n_maps;
static void *guarded(size_t size) {
    size_t page = 4096, all = (size + page - 1) / page * page + page;
    uint8_t *p = mmap(NULL, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || n_maps == 256) exit(2);
    mprotect(p + all - page, page, PROT_NONE);
    maps[n_maps].map = p, maps[n_maps++].size = all;
    return p + all - page - size;
}
static void drop(void) {
    while (n_maps) n_maps--, munmap(maps[n_maps].map, maps[n_maps].size);
}
static __attribute__((unused)) void *aligned(size_t size) {
    void *p = aligned_alloc(64, (size + 127) / 64 * 64);
    if (!p) exit(2);
    memset(p, 0xff, (size + 127) / 64 * 64); /* NaN, in case anything is read before it is written */
    return p;
}

/* --- Matrices --------------------------------------------------------------------------------- */

struct shape {
    int rows, cols, block_rows, block_cols; /* block_cols 0: no scale */
    uint8_t dtype, scale_dtype;
    int row0, row_step;
    bool powers; /* scales are powers of two */
};

/* Offsets of a block's float16 scale and minimum; 0: no minimum. */
static const struct {
    uint8_t dtype, scale, min;
} halves_inside[] = {{DT_Q8_0, 0, 0},   {DT_Q4_0, 0, 0},    {DT_Q4_1, 0, 2},  {DT_Q5_0, 0, 0},    {DT_Q5_1, 0, 2},
                     {DT_Q2_K, 80, 82}, {DT_Q3_K, 108, 0},  {DT_Q4_K, 0, 2},  {DT_Q5_K, 0, 2},    {DT_Q6_K, 208, 0},
                     {DT_IQ4_NL, 0, 0}, {DT_IQ4_XS, 0, 0},  {DT_IQ1_S, 0, 0}, {DT_IQ2_XXS, 0, 0}, {DT_IQ2_XS, 0, 0},
                     {DT_IQ2_S, 0, 0},  {DT_IQ3_XXS, 0, 0}, {DT_IQ3_S, 0, 0}, {DT_TQ1_0, 52, 0},  {DT_TQ2_0, 64, 0},
                     {DT_Q1_0, 0, 0},   {DT_Q2_0, 0, 0},    {DT_Q8_A, 0, 2}};

static __attribute__((unused)) struct mat make(const struct shape *s) {
    struct mat m = {.rows = s->rows,
                    .cols = s->cols,
                    .block_rows = s->block_rows,
                    .block_cols = s->block_cols ? s->block_cols : 1,
                    .row0 = s->row0,
                    .row_step = s->row_step ? s->row_step : 1,
                    .dtype = s->dtype,
                    .scale_dtype = s->scale_dtype,
                    .scale_gain = 0.37f};
    size_t row = dtype_bytes(s->dtype, (size_t)s->cols);
    m.stride = row + (s->row_step > 1 ? 7 : 0);
    uint8_t *d = guarded(m.stride * (size_t)(s->rows - 1) + row);
    for (size_t i = 0; i < m.stride * (size_t)(s->rows - 1) + row; i++) d[i] = (uint8_t)rnd();
    m.data = d;
    for (int r = 0; r < s->rows; r++) {
        uint8_t *p = d + (size_t)r * m.stride;
        for (int c = 0; c < s->cols; c++) {
            float v = normal();
            uint16_t h;
            switch (s->dtype) {
            case DT_F32: memcpy(p + 4 * c, &v, 4); break;
            case DT_BF16: h = f32_to_bf16(v), memcpy(p + 2 * c, &h, 2); break;
            case DT_F16: h = f32_to_f16(v), memcpy(p + 2 * c, &h, 2); break;
            case DT_E4M3:
                /* no codes with exponent 0 in this whole strip: some decoders handle them separately */
                if (r / 32 % 2) p[c] |= 0x10;
                if ((p[c] & 0x7f) == 0x7f) p[c] ^= 1;
                break;
            }
        }
        uint16_t d16 = f32_to_f16(0.01f), m16 = f32_to_f16(0.02f);
        /* finite scales inside blocks, most of them equal */
        for (size_t k = 0; k < sizeof halves_inside / sizeof *halves_inside; k++)
            for (size_t b = 0; halves_inside[k].dtype == s->dtype && b < row; b += dtype_bytes(s->dtype, 1)) {
                memcpy(p + b + halves_inside[k].scale, &d16, 2), p[b + halves_inside[k].scale] ^= (uint8_t)(rnd() & 3);
                if (halves_inside[k].min) memcpy(p + b + halves_inside[k].min, &m16, 2);
            }
        for (size_t b = 0; s->dtype == DT_IQ1_M && b < row; b += 56) /* a float16 in the upper bits of four words */
            for (int k = 0; k < 4; k++)
                p[b + 49 + 2 * (size_t)k] = (uint8_t)((p[b + 49 + 2 * (size_t)k] & 15) | (d16 >> 4 * k & 15) << 4);
        if (s->dtype == DT_MXFP4)
            for (size_t b = 0; b < row; b += 17) p[b] = (uint8_t)(120 + rnd() % 12);
    }
    if (s->block_cols) {
        m.scale_stride = (s->cols + s->block_cols - 1) / s->block_cols;
        int count = ((m.row0 + (s->rows - 1) * m.row_step) / s->block_rows + 1) * m.scale_stride;
        size_t each = dtype_bytes(s->scale_dtype, 1);
        uint8_t *q = guarded(each * (size_t)count);
        for (int i = 0; i < count; i++) {
            float v = ldexpf(s->powers ? 1 : 1 + fabsf(uniform()), (int)(rnd() % 9) - 8);
            if (rnd() % 4 == 0) v = -v;
            uint16_t h;
            if (s->scale_dtype == DT_F32) memcpy(q + 4 * i, &v, 4);
            if (s->scale_dtype == DT_BF16) h = f32_to_bf16(v), memcpy(q + 2 * i, &h, 2);
            if (s->scale_dtype == DT_F16) h = f32_to_f16(v), memcpy(q + 2 * i, &h, 2);
            if (s->scale_dtype == DT_E4M3)
                q[i] = (uint8_t)(rnd() % 0x7f | (rnd() % 8 ? 0 : 0x80)); /* subnormal ones too */
            uint32_t packed;
            if (s->scale_dtype == DT_F32Z)
                scale_with_zero(bf16_to_f32(f32_to_bf16(v)), (int)(rnd() % (s->dtype == DT_I4 ? 17 : 256)), &packed),
                    memcpy(q + 4 * i, &packed, 4);
            if (s->scale_dtype == DT_E8M0) q[i] = (uint8_t)(120 + rnd() % 12);
        }
        m.scale = q;
    }
    return m;
}
