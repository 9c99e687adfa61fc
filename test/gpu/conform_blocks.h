#pragma once
/* Cases of GGUF's formats and of INT4: products of few and of many tokens, the embedding, heads the other way round, feed-forwards. */
#include "test/gpu/conform_oracle.h"

static void blocks(void) {
    static const enum dtype types[] = {DT_Q8_0, DT_Q4_0, DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_NL, DT_IQ4_XS, DT_MXFP4, DT_INT4};
    static const int sizes[][3] = {{1, 40, 512}, {5, 33, 256}, {30, 20, 768}, {70, 70, 256}};
    char name[80];
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        enum dtype t = types[k];
        const int br = t == DT_INT4, bc = br ? 128 : 0; /* its scales lie beside it */
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int n = sizes[i][0], rows = sizes[i][1], cols = sizes[i][2];
            snprintf(name, sizeof name, "linear %s %d x %d x %d", dtype_name(t), n, rows, cols);
            CHECK(name, linear, OP_LINEAR, .y = floats((size_t)(n * (rows + 1)), 'f'), .x = floats((size_t)(n * (cols + 4)), 'c'),
                  .bias = i & 1 ? floats((size_t)rows, 'c') : NULL, .w = matrix(rows, cols, t, br, bc), .n = n, .ldx = cols + 4, .ldy = rows + 1,
                  .accumulate = i == 1);
        }
        int32_t *ids = buf_new(3 * 4, 'c');
        for (int i = 0; i < 3; i++) ids[i] = (int32_t)(rnd() % 9);
        snprintf(name, sizeof name, "embed %s", dtype_name(t));
        CHECK(name, embed, OP_EMBED, .out = floats(3 * 256, 'f'), .ids = ids, .table = matrix(9, 256, t, br, bc), .n = 3);
        snprintf(name, sizeof name, "linear %s, heads, transposed", dtype_name(t));
        CHECK(name, linear, OP_LINEAR, .y = floats(2 * 3 * 256, 'f'), .x = floats(2 * 3 * 16, 'c'), .w = mat_rows(matrix(3 * 16, 256, t, br, bc), 0, 16),
              .n = 2, .ldx = 3 * 16, .ldy = 3 * 256, .transposed = true, .batch = 3, .batch_rows = 16, .batch_x = 16, .batch_y = 256);
        for (int n = 2; n < 30; n += 23) {
            snprintf(name, sizeof name, "ffn %s, %d tokens", dtype_name(t), n);
            CHECK(name, ffn, OP_FFN, .y = floats((size_t)(n * 256), 'f'), .x = floats((size_t)(n * 256), 'c'),
                  .expert = {matrix(256, 256, t, br, bc), matrix(256, 256, t, br, bc), matrix(256, 256, t, br, bc)}, .n = n, .hidden = 256);
        }
    }
}
