/* Distribution of a device's memory: cases computed by hand. */
#include <string.h>

#include "engine/cache/budget.h"
#include "test/unit/unit.h"

static struct budget_out give(size_t free, enum budget_ask ask, size_t n) {
    struct budget_out out; /* 100 and 50 are reserved first; an expert of each of 4 layers takes 40 */
    budget_give(&(struct budget_in){.free = free, .weights = 100, .keep = 50, .slot = 10, .layers = 4, .each = 8, .ask = ask, .n = n}, &out);
    return out;
}
static void all_that_is_left(void **state) {
    assert_int_equal(give(189, BUDGET_AUTO, 0).each, 0);
    assert_int_equal(give(190, BUDGET_AUTO, 0).each, 1);
    assert_int_equal(give(190, BUDGET_AUTO, 0).bytes, 40);
    assert_int_equal(give(469, BUDGET_AUTO, 0).each, 7);
    assert_int_equal(give(10000, BUDGET_AUTO, 0).each, 8); /* that is all experts */
    assert_int_equal(give(149, BUDGET_AUTO, 0).each, 0);   /* not even the reserved parts fit */
    assert_int_equal(give(0, BUDGET_AUTO, 0).each, 0);
}
static void as_asked(void **state) {
    assert_int_equal(give(1000, BUDGET_EXPERTS, 3).each, 3);
    assert_null(strstr(give(1000, BUDGET_EXPERTS, 3).why, "more was requested"));
    assert_int_equal(give(1000, BUDGET_EXPERTS, 9).each, 8);
    assert_int_equal(give(240, BUDGET_EXPERTS, 3).each, 2);
    assert_non_null(strstr(give(240, BUDGET_EXPERTS, 3).why, "more was requested"));
    assert_int_equal(give(1000, BUDGET_BYTES, 119).each, 2); /* 80 of the 119 */
    assert_int_equal(give(1000, BUDGET_BYTES, 39).each, 0);
    assert_int_equal(give(1000, BUDGET_OFF, 0).each, 0);
    assert_non_null(strstr(give(1000, BUDGET_OFF, 0).why, "requested"));
}
static void without_experts(void **state) {
    struct budget_out out;
    budget_give(&(struct budget_in){.free = 1000, .slot = 10, .each = 8}, &out);
    assert_int_equal(out.each, 0);
    assert_non_null(strstr(out.why, "no layer with experts"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_that_is_left), cmocka_unit_test(as_asked), cmocka_unit_test(without_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
