/* gpu/cuda_path.c: the shapes whose products go to cuBLAS, on cards of 82 (RTX 3090), 108 (A100), 128 (RTX 4090),
 * 132 (H100) and 170 (RTX 5090) multiprocessors. */
#include "unit.h"

#include "gpu/cuda_path.h"

static const int cards[] = {82, 108, 128, 132, 170};
enum { CARDS = sizeof cards / sizeof *cards };

/* Returns the least number of tokens, in steps of `step`, from which cuBLAS computes the product; 0: none up to
 * 32,768. */
static int least(struct cuda_path p, int step) {
    for (p.n = step; p.n <= 32768; p.n += step)
        if (cuda_path_is_blas(&p)) return p.n;
    return 0;
}

static void fills_the_card(void **state) {
    (void)state;
    static const struct {
        const char *what;
        int rows;
        bool expands;
        int from[CARDS]; /* tokens, per card */
    } shapes[] = {
        {"Qwen3-30B-A3B: q, FP8", 4096, true, {512, 512, 512, 513, 641}},
        {"Qwen3-30B-A3B: k or v, FP8", 512, true, {2561, 3329, 3969, 4097, 5377}},
        {"Qwen3-30B-A3B: output, FP8", 2048, true, {641, 769, 897, 1025, 1281}},
        {"Qwen3-30B-A3B: output, BF16", 2048, false, {641, 769, 897, 1025, 1281}},
        {"a head of 151,936 rows, BF16", 151936, false, {64, 64, 64, 64, 64}},
        {"DeepSeek-V3: output, FP8", 7168, true, {512, 512, 512, 512, 512}},
        {"DeepSeek-V3: output, BF16", 7168, false, {129, 129, 257, 257, 385}},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int c = 0; c < CARDS; c++) {
            const struct cuda_path p = {.rows = shapes[i].rows, .n_sms = cards[c], .expands = shapes[i].expands};
            const int from = least(p, 1);
            if (from != shapes[i].from[c])
                fail_msg("%s, %d multiprocessors: from %d tokens, not %d", shapes[i].what, cards[c], from,
                         shapes[i].from[c]);
            const struct cuda_path at = {.n = from, .rows = p.rows, .n_sms = p.n_sms, .expands = p.expands};
            assert_true(cuda_path_tiles(at.n, at.rows) >= at.n_sms);
        }
}

/* 500 tokens an expert are what 8,000 tokens of Qwen3-30B-A3B give, and 256 what 8,000 of DeepSeek-V3 do. */
static void groups_stay_in_tiles(void **state) {
    (void)state;
    static const int rows[] = {512, 768, 1024, 1536, 2048, 4096, 7168, 14336};
    for (int c = 0; c < CARDS; c++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (int k = 0; k < 2; k++) {
                const struct cuda_path p = {.rows = rows[i], .n_sms = cards[c], .is_routed = true, .expands = k};
                const int from = least(p, 1);
                assert_true(!from || from >= 2048);
                assert_true(!from || cuda_path_tiles(from, p.rows) >= p.n_sms);
            }
    /* 768 rows are 6 tiles, so an H100 is full from the 22nd row of tiles on; 7,168 rows have enough at once */
    assert_int_equal(least((struct cuda_path){.rows = 768, .n_sms = 132, .is_routed = true, .expands = true}, 1), 2689);
    assert_int_equal(least((struct cuda_path){.rows = 7168, .n_sms = 132, .is_routed = true, .expands = true}, 1),
                     2048);
}

/* More tokens never go back to tiles, and a card with more multiprocessors never needs fewer tokens. */
static void thresholds_rise(void **state) {
    (void)state;
    for (int rows = 64; rows <= 32768; rows *= 2)
        for (int kind = 0; kind < 4; kind++) {
            int last = 0;
            for (int c = 0; c < CARDS; c++) {
                struct cuda_path p = {.rows = rows, .n_sms = cards[c], .is_routed = kind & 1, .expands = kind & 2};
                const int from = least(p, 16);
                assert_true(!from || from >= last);
                last = from;
                for (p.n = from; from && p.n <= 32768; p.n += 97) assert_true(cuda_path_is_blas(&p));
            }
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_the_card),
        cmocka_unit_test(groups_stay_in_tiles),
        cmocka_unit_test(thresholds_rise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
