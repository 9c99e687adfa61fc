#pragma once
/* Cases of conform.c: linear layers whose sizes reach every edge of a tile, and the rounding of weights and inputs. */
#include "test/gpu/conform_oracle.h"

/* n rows of x times w, with larger strides than needed; `which`: some with a bias, some added to y, the fourth from row
 * 7 of w. */
static void tile_case(const char *name, struct mat w, int n, int which) {
    const int rows = w.rows, cols = w.cols;
    check(name, OP_LINEAR,
          &(union op_args){.linear = {.y = floats((size_t)(n * (rows + 4)), 'f'),
                                      .x = floats((size_t)(n * (cols + 3)), 'c'),
                                      .bias = which & 1 ? floats((size_t)rows, 'c') : NULL,
                                      .w = which == 3 ? mat_rows(w, 7, rows) : w,
                                      .n = n,
                                      .ldx = cols + 3,
                                      .ldy = rows + 4,
                                      .accumulate = which % 3 == 1}},
          oracle_linear);
}

/* Products in tiles: uneven numbers of tokens, rows and columns, rows at any address, every code of a weight. Where the
 * device rounds activations so does the reference, so the tolerance is that of float32 sums (14 bits inside a block of
 * FP8). cuBLAS gets weights rounded to BF16 and needs a larger one. */
static void tiles(void) {
    static const struct {
        enum dtype t, scale;
        int br, bc;
    } kinds[] = {{DT_E4M3, DT_F32, 128, 128},
                 {DT_E4M3, DT_F32, 1, 4096},
                 {DT_BF16, DT_F32, 0, 0},
                 {DT_E2M1, DT_E8M0, 1, 32},
                 {DT_E4M3, DT_E8M0, 128, 128}};
    static const int sizes[][3] = {{25, 100, 256}, {32, 130, 200}, {26, 128, 328},  {33, 70, 132}, {65, 300, 130},
                                   {100, 128, 64}, {129, 130, 33}, {130, 260, 391}, {77, 200, 400}};
    double wide = tol;
    if (!spec.is_emulated && spec.math != GPU_MATH_F32 && spec.gemm != GPU_GEMM_CUBLAS)
        tol = spec.math == GPU_MATH_FP8 ? 2e-3 : 1e-4;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            char name[80];
            int n = sizes[i][0], rows = sizes[i][1], cols = sizes[i][2];
            snprintf(name, sizeof name, "tiles %s/%d  %d x %d x %d", dtype_name(kinds[k].t), kinds[k].bc, n, rows,
                     cols);
            struct mat w = matrix(rows, cols, kinds[k].t, kinds[k].br, kinds[k].bc);
            uint8_t *scale = (uint8_t *)w.scale;
            w.scale_dtype = (uint8_t)kinds[k].scale;
            for (int r = 0; kinds[k].scale == DT_E8M0 && r < (rows + kinds[k].br - 1) / kinds[k].br * w.scale_stride;
                 r++)
                scale[r] = (uint8_t)(124 + rnd() % 6);
            tile_case(name, w, n, (int)i);
        }
    for (int i = 0; i < 2; i++) {
        enum dtype t = i ? DT_E2M1 : DT_E4M3;
        struct mat w = codes(256, t, i ? 32 : 128);
        check(i ? "tiles, all codes of E2M1" : "tiles, all codes of E4M3", OP_LINEAR,
              &(union op_args){.linear = {.y = floats((size_t)(26 * w.rows), 'f'),
                                          .x = floats(26 * 256, 'c'),
                                          .w = w,
                                          .n = 26,
                                          .ldx = 256,
                                          .ldy = w.rows}},
              oracle_linear);
    }
    static const enum dtype types[] = {DT_Q8_0, DT_Q4_0, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_MXFP4};
    static const int shapes[][3] = {{25, 100, 256}, {33, 130, 512}, {65, 70, 768}, {129, 140, 256}, {40, 129, 288}};
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++)
        for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
            char name[80];
            int n = shapes[i][0], rows = shapes[i][1],
                cols = dtype_block(types[k]) > 32 ? (shapes[i][2] + 255) / 256 * 256 : shapes[i][2];
            snprintf(name, sizeof name, "tiles %s  %d x %d x %d", dtype_name(types[k]), n, rows, cols);
            struct mat w = matrix(rows, cols, types[k], 0, 0);
            tile_case(name, w, n, (int)i);
        }
    tol = wide;
}

static void exact_linear(const union op_args *u) {
    const struct op_linear *a = &u->linear;
    double y[256];
    for (int t = 0; t < a->n; t++) {
        multiply(y, &a->w, a->x + (size_t)t * (size_t)a->ldx, AS_IS);
        for (int o = 0; o < a->w.rows; o++) a->y[(size_t)t * (size_t)a->ldy + (size_t)o] = (float)y[o];
    }
}
static float normal(void) {
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += rnd_float() / 4;
    return sum * 0.866f;
}
/* Prints what rounding adds to products: FP8 weights in blocks against the exact product of the same weights.
 * Activations are normal, or one column in 64 is 30 times as large, as in residual streams of language models. */
static void rounding(void) {
    enum { N = 64, ROWS = 128 };
    shows_rms = true;
    for (int k = 0; k < 4; k++) {
        const int cols = k % 2 ? 2048 : 512;
        char name[80];
        struct mat w = matrix(ROWS, cols, DT_E4M3, 128, 128);
        float *x = floats((size_t)(N * cols), 'c');
        for (int i = 0; i < ROWS * cols; i++) ((uint8_t *)w.data)[i] = f32_to_e4m3(100 * normal());
        for (int i = 0; i < N * cols; i++) x[i] = normal() * (k > 1 && i % cols % 64 == 5 ? 30 : 1);
        snprintf(name, sizeof name, "%d x %d x %d%s", N, ROWS, cols, k > 1 ? ", large columns" : "");
        check(
            name, OP_LINEAR,
            &(union op_args){.linear = {.y = floats(N * ROWS, 'f'), .x = x, .w = w, .n = N, .ldx = cols, .ldy = ROWS}},
            exact_linear);
    }
}
