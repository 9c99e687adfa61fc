/* Request batching against paper B's algorithm 2, by hand and by properties. */
#include "test/unit/unit.h"

#include <string.h>

#include "engine/placement/batching.h"

enum { MOST = 600 };
static int32_t micro[MOST], order[MOST];

/* 9, 7, 6, 5, 3, 2 into two: 9 | 7, then 6 beside 7 (13), 5 beside 9 (14), 3 beside 13 (16), 2 beside 14 (16). Three
 * each. */
static void assignment_equals_one_done_by_hand(void **st) {
    const int32_t length[] = {5, 9, 2, 7, 6, 3}, want[] = {0, 0, 0, 1, 1, 1};
    struct batching_in in = {.n = 6, .lengths = length, .n_micro_batches = 2, .max_per_micro_batch = 3};
    assert_int_equal(batching_assign(&in, micro, order), 6);
    assert_memory_equal(micro, want, sizeof want);
    in.max_per_micro_batch = 2; /* closed at two: 3 and 2 wait */
    const int32_t closed[] = {0, 0, -1, 1, 1, -1};
    assert_int_equal(batching_assign(&in, micro, order), 4);
    assert_memory_equal(micro, closed, sizeof closed);
    /* With answers of 4, the k-th of a micro-batch needs 4 k beside all prompts: 9 + 4 fits 13, 7 + 4 too, 7 + 6 + 8
     * does not, 7 + 5 + 8 and 7 + 3 + 8 do not, 7 + 2 + 8 does not fit 13. */
    in.max_per_micro_batch = 3, in.answer_tokens = 4, in.kv_room = 13;
    const int32_t aborted[] = {-1, 0, -1, 1, -1, -1};
    assert_int_equal(batching_assign(&in, micro, order), 2);
    assert_memory_equal(micro, aborted, sizeof aborted);
    in.kv_room = 17; /* 7 + 2 + 8 fits: a short request may overtake a waiting one */
    const int32_t shorter[] = {-1, 0, 1, 1, -1, -1};
    assert_int_equal(batching_assign(&in, micro, order), 3);
    assert_memory_equal(micro, shorter, sizeof shorter);
}

/* Sums differ by no more than the longest; each micro-batch is as full as possible; equal requests keep their order. */
static void balanced(void **st) {
    static int32_t length[MOST];
    uint32_t x = 7;
    for (int n = 1; n < MOST; n += 37)
        for (int m = 1; m <= 24; m = 2 * m + 1) {
            double sum[64] = {0}, least = 1e9, most = 0;
            int32_t longest = 0;
            for (int i = 0; i < n; i++) length[i] = (int32_t)((x = x * 1664525 + 1013904223) >> 8) % 2000 + 1;
            for (int i = 0; i < n; i++) longest = length[i] > longest ? length[i] : longest;
            assert_int_equal(
                batching_assign(
                    &(struct batching_in){.n = n, .lengths = length, .n_micro_batches = m, .max_per_micro_batch = n},
                    micro, order),
                n);
            for (int i = 0; i < n; i++) sum[micro[i]] += length[i];
            for (int k = 0; k < m; k++) least = sum[k] < least ? sum[k] : least, most = sum[k] > most ? sum[k] : most;
            if (n >= m) assert_true(most - least <= longest);
        }
    for (int i = 0; i < 10; i++) length[i] = 3;
    assert_int_equal(
        batching_assign(
            &(struct batching_in){.n = 10, .lengths = length, .n_micro_batches = 2, .max_per_micro_batch = 3}, micro,
            order),
        6);
    for (int i = 0; i < 10; i++) assert_int_equal(micro[i], i < 6 ? i % 2 : -1);
    assert_int_equal(
        batching_assign(
            &(struct batching_in){.n = 0, .lengths = length, .n_micro_batches = 2, .max_per_micro_batch = 3}, micro,
            order),
        0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(assignment_equals_one_done_by_hand),
                                       cmocka_unit_test(balanced)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
