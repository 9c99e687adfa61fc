/* Expert scores under every policy: sequences worked out by hand. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/ops.h"
#include "engine/experts/score.h"
#include "test/unit/unit.h"

enum { LAYERS = 2, EXPERTS = 4, TOPK = 1 };
static double room[64];
static struct score open_as(const char *policy) {
    struct score s;
    assert_true(score_bytes(LAYERS, EXPERTS) <= sizeof room);
    memset(room, 0, sizeof room);
    score_open(&s, score_find(policy), LAYERS, EXPERTS, TOPK, room);
    return s;
}
static void saw(struct score *s, int layer, int32_t id) {
    score_update(s, layer, &(struct score_rows){.n = 1, .ids = &id});
}
#define EXPECT(s, layer, ...) \
    do { \
        const double want_[] = {__VA_ARGS__}; \
        for (int i_ = 0; i_ < EXPERTS; i_++) \
            if (!(fabs(score_of(s, layer, i_) - want_[i_]) < 1e-6)) \
                fail_msg("expert %d of layer %d is worth %.9g, not %.9g", i_, layer, score_of(s, layer, i_), \
                         want_[i_]); \
    } while (0)

static void used_last(void **state) {
    struct score s = open_as("lru");
    saw(&s, 0, 2), saw(&s, 1, 3), saw(&s, 0, 0), saw(&s, 0, 2);
    EXPECT(&s, 0, 3, 0, 4, 0);
    EXPECT(&s, 1, 0, 0, 0, 2);
}
static void used_most(void **state) {
    struct score s = open_as("lfu");
    saw(&s, 0, 2), saw(&s, 0, 2), saw(&s, 0, 1), saw(&s, 1, 1);
    EXPECT(&s, 0, 0, 1, 2, 0);
    const int32_t both[] = {2, 2, -1}; /* three rows of a batch, one of them left out: one use */
    score_update(&s, 0, &(struct score_rows){.n = 3, .ids = both});
    EXPECT(&s, 0, 0, 1, 3, 0);
    EXPECT(&s, 1, 0, 1, 0, 0);
}
/* 0.3 of the rows that chose it, 0.7 of the previous score. */
static void ema_averages_the_rows(void **state) {
    struct score s = open_as("ema");
    const int32_t rows[] = {2, 2, 0};
    score_update(&s, 0, &(struct score_rows){.n = 3, .ids = rows});
    EXPECT(&s, 0, 0.3, 0, 0.6, 0);
    saw(&s, 0, 1);
    EXPECT(&s, 0, 0.21, 0.3, 0.42, 0);
}
/* 0.07 of the scores of the best two, 0.93 of the previous score; two rows count half each. An expert that was nearly
 * chosen has a score too. */
static void mrs_averages_the_router_scores(void **state) {
    for (int k = 0; k < 2; k++) {
        struct score s = open_as(k ? "auto" : "mrs");
        const int32_t id[] = {3}, near[] = {3, 1};
        const float chance[] = {0.75f, 0.25f};
        score_update(&s, 0, &(struct score_rows){1, id, near, chance});
        EXPECT(&s, 0, 0, 0.0175, 0, 0.0525);
        const int32_t ids[] = {1, 0}, nears[] = {1, 3, 0, -1};
        const float chances[] = {0.5f, 0.5f, 1, 0};
        score_update(&s, 0, &(struct score_rows){2, ids, nears, chances});
        EXPECT(&s, 0, 0.035, 0.016275 + 0.0175, 0, 0.048825 + 0.0175);
        saw(&s, 1, 2); /* unknown scores: the chosen ones count equally */
        EXPECT(&s, 1, 0, 0, 0.07, 0);
    }
}
static void announced_experts_score_above_used_ones(void **state) {
    struct score s = open_as("lookahead");
    saw(&s, 0, 0);
    EXPECT(&s, 0, 0.07, 0, 0, 0);
    score_announce(&s, 0, (const int32_t[]){1, -1, 2}, 3, 2);
    score_announce(&s, 0, (const int32_t[]){2}, 1, 1); /* the sooner one counts */
    EXPECT(&s, 0, 0.07, 1.5, 2, 0);
    saw(&s, 0, 3); /* the next token: 2 has been used, 1 is next */
    EXPECT(&s, 0, 0.0651, 2, 0, 0.07);
    saw(&s, 0, 1);
    EXPECT(&s, 0, 0.060543, 0.07, 0, 0.0651);
    s = open_as("mrs"); /* other policies ignore announcements */
    score_announce(&s, 0, (const int32_t[]){1}, 1, 1);
    EXPECT(&s, 0, 0, 0, 0, 0);
}

static void runners_up_of_the_router_are_found(void **state) {
    const float logits[] = {0, 1, 3, 2, 1};
    int32_t near[6];
    float chance[6];
    score_best(SCORE_SOFTMAX, NULL, logits, 5, 3, near, chance);
    /* of equal ones the lower index */
    assert_int_equal(near[0], 2), assert_int_equal(near[1], 3), assert_int_equal(near[2], 1);
    double sum = 1 + exp(-1) + exp(-2);
    assert_true(fabs((double)chance[0] - 1 / sum) < 1e-6 && fabs((double)chance[2] - exp(-2) / sum) < 1e-6);
    const float bias[] = {9, 0, 0, 0, 0}; /* chosen because of the bias, not by its score */
    score_best(SCORE_SIGMOID, bias, logits, 5, 2, near, chance);
    assert_int_equal(near[0], 0), assert_int_equal(near[1], 2);
    double a = 0.5, b = 1 / (1 + exp(-3));
    assert_true(fabs((double)chance[0] - a / (a + b)) < 1e-6);
    const float moved[] = {2.5f, 0, 0, 0, 0}; /* added to the logits: 2.5, less than 3 */
    score_best(SCORE_SIGMOID_BY_LOGIT, moved, logits, 5, 2, near, chance);
    assert_int_equal(near[0], 2), assert_int_equal(near[1], 0);
    assert_true(fabs((double)chance[1] - a / (a + b)) < 1e-6);
    score_best(SCORE_SQRT_SOFTPLUS, NULL, logits, 5, 6, near, chance); /* more than there are */
    assert_int_equal(near[4], 0), assert_int_equal(near[5], -1), assert_true(chance[5] == 0);
}
static void names(void **state) {
    assert_string_equal(score_policies[0].name, "auto");
    assert_null(score_find("belady"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(used_last),
                                       cmocka_unit_test(used_most),
                                       cmocka_unit_test(ema_averages_the_rows),
                                       cmocka_unit_test(mrs_averages_the_router_scores),
                                       cmocka_unit_test(announced_experts_score_above_used_ones),
                                       cmocka_unit_test(runners_up_of_the_router_are_found),
                                       cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
