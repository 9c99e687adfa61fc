/* Distribution of a device's memory: cases computed by hand. */
#include <string.h>

#include "engine/experts/budget.h"
#include "test/unit/unit.h"

static struct budget_out give(size_t free, enum budget_request ask, size_t n) {
    struct budget_out out; /* 100 and 50 are reserved first; an expert of each of 4 layers takes 40 */
    budget_split(&(struct budget_in){.free_bytes = free,
                                     .weight_bytes = 100,
                                     .reserve_bytes = 50,
                                     .row_bytes = 40,
                                     .layers = 4,
                                     .n_experts = 8,
                                     .request = ask,
                                     .requested = n},
                 &out);
    return out;
}
static void auto_takes_the_memory_that_is_left(void **state) {
    assert_int_equal(give(189, BUDGET_AUTO, 0).per_layer, 0);
    assert_int_equal(give(190, BUDGET_AUTO, 0).per_layer, 1);
    assert_int_equal(give(190, BUDGET_AUTO, 0).bytes, 40);
    assert_int_equal(give(469, BUDGET_AUTO, 0).per_layer, 7);
    assert_int_equal(give(10000, BUDGET_AUTO, 0).per_layer, 8); /* that is all experts */
    assert_int_equal(give(149, BUDGET_AUTO, 0).per_layer, 0);   /* not even the reserved parts fit */
    assert_int_equal(give(0, BUDGET_AUTO, 0).per_layer, 0);
}
static void as_asked(void **state) {
    assert_int_equal(give(1000, BUDGET_EXPERTS, 3).per_layer, 3);
    assert_null(strstr(give(1000, BUDGET_EXPERTS, 3).why, "more was requested"));
    assert_int_equal(give(1000, BUDGET_EXPERTS, 9).per_layer, 8);
    assert_int_equal(give(240, BUDGET_EXPERTS, 3).per_layer, 2);
    assert_non_null(strstr(give(240, BUDGET_EXPERTS, 3).why, "more was requested"));
    assert_int_equal(give(1000, BUDGET_BYTES, 119).per_layer, 2); /* 80 of the 119 */
    assert_int_equal(give(1000, BUDGET_BYTES, 39).per_layer, 0);
    assert_int_equal(give(1000, BUDGET_OFF, 0).per_layer, 0);
    assert_non_null(strstr(give(1000, BUDGET_OFF, 0).why, "requested"));
}
/* All experts of a layer take 80: 40 of the 190 bytes are left for them, then 80, 399 and 400. */
static struct budget_out give_layers_beside(size_t free, enum budget_request ask, size_t layer_bytes, size_t least) {
    struct budget_out out;
    budget_split(&(struct budget_in){.free_bytes = free,
                                     .weight_bytes = 100,
                                     .reserve_bytes = 50,
                                     .least_reserve = least,
                                     .row_bytes = 40,
                                     .layer_bytes = layer_bytes,
                                     .layers = 4,
                                     .n_experts = 8,
                                     .request = ask},
                 &out);
    return out;
}
static struct budget_out give_layers(size_t free, enum budget_request ask, size_t layer_bytes) {
    return give_layers_beside(free, ask, layer_bytes, 50);
}
/* Without a ring only if all layers fit then. */
static void all_layers_need_no_ring(void **state) {
    assert_int_equal(give_layers_beside(440, BUDGET_LAYERS, 80, 20).whole_layers, 4);
    assert_null(strstr(give_layers_beside(440, BUDGET_LAYERS, 80, 20).why, "ring"));
    assert_int_equal(give_layers_beside(439, BUDGET_LAYERS, 80, 20).whole_layers, 3);
    assert_non_null(strstr(give_layers_beside(439, BUDGET_LAYERS, 80, 20).why, "ring"));
    assert_int_equal(give_layers_beside(389, BUDGET_AUTO, 80, 20).whole_layers, 2);
}
static void whole_layers_first(void **state) {
    assert_int_equal(give_layers(190, BUDGET_LAYERS, 80).whole_layers, 0);
    assert_int_equal(give_layers(190, BUDGET_LAYERS, 80).per_layer, 0);
    assert_non_null(strstr(give_layers(190, BUDGET_LAYERS, 80).why, "do not fit"));
    assert_non_null(strstr(give_layers(9000, BUDGET_LAYERS, 0).why, "CPU is expected to be faster"));
    assert_int_equal(give_layers(190, BUDGET_AUTO, 80).per_layer, 1); /* some of every layer instead */
    for (enum budget_request ask = BUDGET_AUTO; ask <= BUDGET_LAYERS; ask++) {
        assert_int_equal(give_layers(230, ask, 80).whole_layers, 1);
        assert_int_equal(give_layers(230, ask, 80).per_layer, 0);
        assert_int_equal(give_layers(469, ask, 80).whole_layers, 3);
        assert_int_equal(give_layers(469, ask, 80).bytes, 240);
        assert_int_equal(give_layers(9000, ask, 80).whole_layers, 4);
    }
    /* all, or some of every layer */
    assert_int_equal(give_layers(469, BUDGET_EACH, 80).whole_layers, 0);
    assert_int_equal(give_layers(469, BUDGET_EACH, 80).per_layer, 7);
    assert_null(strstr(give_layers(469, BUDGET_EACH, 80).why, "more was requested"));
    assert_int_equal(give_layers(470, BUDGET_EACH, 80).whole_layers, 4);
    assert_int_equal(give_layers(9000, BUDGET_OFF, 80).whole_layers, 0);
    assert_int_equal(give_layers(9000, BUDGET_EXPERTS, 80).whole_layers, 0);
}
static void without_experts(void **state) {
    struct budget_out out;
    budget_split(&(struct budget_in){.free_bytes = 1000, .row_bytes = 40, .n_experts = 8}, &out);
    assert_int_equal(out.per_layer, 0);
    assert_non_null(strstr(out.why, "no layer with experts"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(auto_takes_the_memory_that_is_left), cmocka_unit_test(as_asked),
                                       cmocka_unit_test(whole_layers_first), cmocka_unit_test(all_layers_need_no_ring),
                                       cmocka_unit_test(without_experts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
