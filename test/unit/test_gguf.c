/* Values of GGUF blocks, against the gguf package's dequantisation, and that of llama.cpp for Q1_0 and Q2_0
 * (gguf_blocks.bin: random blocks with tiny, huge and negative scales, and the 512 float32 values that each format
 * gives), and names of split files. */
#include "base/mat_at.h"
#include "test/unit/unit.h"

#include <stdio.h>

#include "base/file.h"
#include "base/gguf_file.h"
#include "base/minifloat.h"

enum { COLS = 512 };

static void blocks_bit_for_bit(void **st) {
    static const uint8_t formats[] = {DT_Q8_0,  DT_Q4_0,    DT_Q4_K,   DT_Q5_K,  DT_Q6_K,    DT_IQ4_NL, DT_IQ4_XS,
                                      DT_MXFP4, DT_Q4_1,    DT_Q5_0,   DT_Q5_1,  DT_Q2_K,    DT_Q3_K,   DT_IQ1_S,
                                      DT_IQ1_M, DT_IQ2_XXS, DT_IQ2_XS, DT_IQ2_S, DT_IQ3_XXS, DT_IQ3_S,  DT_TQ1_0,
                                      DT_TQ2_0, DT_Q1_0,    DT_Q2_0,   DT_NVFP4};
    struct error e = {0};
    char *data;
    size_t n, at = 0;
    assert_int_equal(file_read(GGUF_BLOCKS, 1 << 20, &data, &n, &e), 0);
    for (size_t i = 0; i < sizeof formats; i++) {
        struct mat m = {.data = data + at,
                        .rows = 1,
                        .cols = COLS,
                        .stride = dtype_bytes(formats[i], COLS),
                        .row_step = 1,
                        .dtype = formats[i]};
        float got[COLS], want[COLS];
        assert_true(at + m.stride + sizeof want <= n);
        memcpy(want, data + at + m.stride, sizeof want);
        mat_row(&m, 0, got);
        for (int c = 0; c < COLS; c++)
            if (f32_bits(got[c]) != f32_bits(want[c]))
                fail_msg("%s, column %d: %a instead of %a", dtype_name(formats[i]), c, (double)got[c], (double)want[c]);
        at += m.stride + sizeof want;
    }
    assert_int_equal(at, n);
    mem_free(data);
}

static void split_names(void **st) {
    int number, count;
    size_t stem;
    assert_true(gguf_split("Qwen3-Q4_K_M-00002-of-00007.gguf", &number, &count, &stem));
    assert_true(number == 2 && count == 7 && stem == strlen("Qwen3-Q4_K_M"));
    static const char *const others[] = {"a.gguf",
                                         "-00001-of-00001.gguf",
                                         "a-00000-of-00002.gguf",
                                         "a-00003-of-00002.gguf",
                                         "a-0001-of-00002.gguf",
                                         "a-00001-of-00002.bin"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_false(gguf_split(others[i], &number, &count, &stem));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_bit_for_bit), cmocka_unit_test(split_names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
