/* Prediction of the next layers' experts: its accuracy, and which uploads pay, by small cases worked out by hand. */
#include <math.h>

#include "engine/experts/predict.h"
#include "test/unit/unit.h"

enum { LAYERS = 3, EXPERTS = 6 };
static float room[64];
static struct predict opened(void) {
    struct predict p;
    assert_true(predict_bytes(LAYERS, EXPERTS) <= sizeof room);
    memset(room, 0, sizeof room);
    predict_open(&p, LAYERS, EXPERTS, room);
    return p;
}

/* The first observation is the skill, each later one a 32nd of it; by distance. */
static void skill_averages_the_hits(void **state) {
    struct predict p = opened();
    const int32_t said[] = {4, 1, 4, 9, -1, 2}, chosen[] = {1, 5, 4, 4, 0, 3};
    struct predict_accuracy a = predict_judge(&p, 2, said, chosen, 6);
    assert_int_equal(a.predicted, 3); /* 4, 1 and 2: a duplicate counts once, 9 and -1 are no experts */
    assert_int_equal(a.selected, 2);
    assert_true(fabs((double)p.skill[1] - 2 / 3.) < 1e-6 && p.has_skill[1] && !p.has_skill[0] && p.skill[0] == 0);
    a = predict_judge(&p, 2, chosen + 1, said + 3, 1); /* 5 was predicted, nothing was chosen */
    assert_int_equal(a.selected, 0);
    assert_true(fabs((double)p.skill[1] - 2 / 3. * 31 / 32) < 1e-6);
    a = predict_judge(&p, 1, said + 3, chosen, 2); /* nothing was predicted */
    assert_true(a.predicted == 0 && !p.has_skill[0]);
}

static void rates_average_the_use_of_experts(void **state) {
    struct predict p = opened();
    const int32_t rows[EXPERTS] = {0, 3, 0, 1};
    predict_update_rates(&p, 1, rows);
    predict_update_rates(&p, 1, rows);
    /* in a batch or not, with any number of rows */
    assert_true(fabs(predict_rate(&p, 1, 1) - (1 - 0.93 * 0.93)) < 1e-6);
    assert_true(predict_rate(&p, 1, 3) == predict_rate(&p, 1, 1) && predict_rate(&p, 1, 0) == 0 &&
                predict_rate(&p, 0, 1) == 0);
}

/* A CPU at 10 us a row and expert, a device at 1 us. */
static struct cost_table table[2];
static void tables(void) {
    for (int i = 0; i <= COST_TABLE; i++) table[0].t[i] = 10e-6f * (float)i, table[1].t[i] = i ? 1e-6f : 0;
}
static struct predict_out ask(struct predict *p, struct split_expert *e, int n, double late, int victim) {
    static const int16_t id[] = {5, 2, 3, 0};
    static struct split_plan plan;
    struct split_domain d[2] = {{.class = COST_CPU, .expert_cost = &table[0]},
                                {.class = COST_GPU, .expert_cost = &table[1], .transfer_s = 1, .max_transfers = 1}};
    return predict_upload(p,
                          &(struct predict_in){.layer = 1,
                                               .distance = 1,
                                               .split = split_find("auto"),
                                               .domain = d,
                                               .expert = e,
                                               .id = id,
                                               .n = n,
                                               .arrival_s = late,
                                               .victim = victim},
                          &plan);
}
static void near_(double a, double b) {
    if (!(fabs(a - b) < 1e-9)) fail_msg("%g, not %g", a, b);
}
static void predictions_are_worth_the_time_that_they_save(void **state) {
    tables();
    struct predict p = opened();
    /* On the CPU 3 rows take 30 us, 1 row 10. With the heavier one on the device 10 remain. */
    struct split_expert e[] = {{.rows = 1, .resident = 1}, {.rows = 3, .resident = 1}, {.rows = 2, .resident = 3}};
    p.skill[0] = 0.75f;
    struct predict_out a = ask(&p, e, 3, -1, -1);
    assert_int_equal(a.expert, 1);
    near_(a.saved_s, 30e-6);
    near_(a.worth_s, 0.75 * 30e-6);
    assert_true(e[1].resident == 1); /* as before */
    /* If it arrives 20 us after the start, the end is 20 plus its own time. If it arrives after the CPU is done, it is
     * useless. */
    a = ask(&p, e, 3, 20e-6, -1);
    near_(a.saved_s, 40e-6 - 21e-6);
    a = ask(&p, e, 3, 60e-6, -1);
    near_(a.saved_s, 0);
    assert_true(a.worth_s <= 0);
    /* The expert that it would replace is used in half of all batches, itself in none: the loss is half a batch's
     * saving, for two more batches. */
    p.rate[EXPERTS + 4] = 0.5f;
    a = ask(&p, e, 3, -1, 4);
    near_(a.worth_s, 0.75 * 30e-6 - 1.5 * 30e-6);
    p.rate[EXPERTS + 2] = 0.5f; /* the candidate is used as often */
    a = ask(&p, e, 3, -1, 4);
    near_(a.worth_s, 0.75 * 30e-6 - 0.5 * 30e-6);
    /* Of experts with equal rows the more used one; nothing when all are resident. */
    struct split_expert same[] = {{.rows = 1, .resident = 1}, {.rows = 1, .resident = 1}};
    assert_int_equal(ask(&p, same, 2, -1, -1).expert, 1);
    struct split_expert there[] = {{.rows = 1, .resident = 3}};
    assert_int_equal(ask(&p, there, 1, -1, -1).expert, -1);
}

/* As long as it has an effect; otherwise occasionally. */
static void predictions_without_effect_become_rare(void **state) {
    struct predict p = opened();
    int n = 0;
    for (int i = 0; i < 1000; i++) {
        bool on = predict_is_due(&p);
        n += on;
        if (on) predict_report(&p, false);
    }
    assert_in_range(n, 64, 64 + 1000 / 32 + 1);
    predict_report(&p, true);
    for (int i = 0; i < 40; i++) assert_true(predict_is_due(&p));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(skill_averages_the_hits),
                                       cmocka_unit_test(rates_average_the_use_of_experts),
                                       cmocka_unit_test(predictions_are_worth_the_time_that_they_save),
                                       cmocka_unit_test(predictions_without_effect_become_rare)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
