/* Sampling: what each knob keeps, ties, determinism, distribution. */
#include "test/unit/unit.h"

#include <math.h>

#include "engine/sample.h"

enum { V = 6 };
static const float base[V] = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f, 0.5f};

static int32_t draw(struct sampling s, const int32_t *seen, int n_seen, uint64_t pos) {
    float logits[V];
    struct sample_item scratch[V];
    memcpy(logits, base, sizeof logits);
    return sample_token(logits, V, &s, seen, n_seen, pos, scratch);
}

static void greedy_takes_the_lower_of_a_tie(void **st) {
    assert_int_equal(draw((struct sampling){0}, NULL, 0, 0), 1);
    assert_int_equal(draw((struct sampling){.temperature = 5, .top_k = 1, .top_p = 1, .repeat_penalty = 1}, NULL, 0, 7), 1);
}

static void penalty_moves_the_choice(void **st) {
    int32_t seen[] = {1, 1, 3};
    assert_int_equal(draw((struct sampling){.repeat_penalty = 2}, seen, 3, 0), 2); /* 3/2 and 3/2 against 2 */
    int32_t one[] = {1};
    assert_int_equal(draw((struct sampling){.repeat_penalty = 1.1f}, one, 1, 0), 3);
}

static void penalty_lowers_negative_logits(void **st) {
    float logits[V] = {-1.0f, -1.5f, -9, -9, -9, -9};
    struct sample_item scratch[V];
    int32_t seen[] = {0};
    struct sampling s = {.repeat_penalty = 2};
    assert_int_equal(sample_token(logits, V, &s, seen, 1, 0, scratch), 1); /* -2 against -1.5 */
}

static void count(struct sampling s, int n, int *hits) {
    memset(hits, 0, V * sizeof *hits);
    for (int i = 0; i < n; i++) hits[draw(s, NULL, 0, (uint64_t)i)]++;
}

static void frequencies_follow_softmax(void **st) {
    int hits[V], n = 40000;
    count((struct sampling){.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 9}, n, hits);
    double sum = 0;
    for (int i = 0; i < V; i++) sum += exp(base[i]);
    for (int i = 0; i < V; i++) {
        double p = exp(base[i]) / sum, sd = sqrt(p * (1 - p) / n);
        assert_true(fabs((double)hits[i] / n - p) < 5 * sd);
    }
}

static void each_knob_cuts(void **st) {
    int hits[V];
    count((struct sampling){.temperature = 1, .top_k = 2, .top_p = 1, .repeat_penalty = 1}, 2000, hits);
    assert_true(hits[1] && hits[3] && hits[1] + hits[3] == 2000);
    count((struct sampling){.temperature = 1, .top_p = 0.5f, .repeat_penalty = 1}, 2000, hits);
    assert_true(hits[1] && hits[3] && hits[1] + hits[3] == 2000); /* .38 alone is short of .5 */
    count((struct sampling){.temperature = 1, .top_p = 0.3f, .repeat_penalty = 1}, 500, hits);
    assert_int_equal(hits[1], 500);
    count((struct sampling){.temperature = 1, .top_p = 1, .min_p = 0.3f, .repeat_penalty = 1}, 2000, hits);
    assert_true(hits[2] && hits[1] + hits[2] + hits[3] == 2000); /* e^-1 = .37 stays, e^-2 goes */
}

static void same_seed_same_token(void **st) {
    struct sampling s = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 4}, other = s;
    other.seed = 5;
    int differ = 0;
    for (uint64_t i = 0; i < 100; i++) {
        assert_int_equal(draw(s, NULL, 0, i), draw(s, NULL, 0, i));
        differ += draw(s, NULL, 0, i) != draw(other, NULL, 0, i);
    }
    assert_true(differ > 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_takes_the_lower_of_a_tie), cmocka_unit_test(penalty_moves_the_choice), cmocka_unit_test(penalty_lowers_negative_logits),
                                       cmocka_unit_test(frequencies_follow_softmax), cmocka_unit_test(each_knob_cuts),
                                       cmocka_unit_test(same_seed_same_token)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
