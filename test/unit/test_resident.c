/* Which layers live on which device: cases computed by hand. */
#include <string.h>

#include "engine/placement/layer_assign.h"
#include "engine/placement/placement_report.h"
#include "test/unit/unit.h"

enum { LAYERS = 6 };
static const size_t layers[LAYERS] = {10, 20, 20, 20, 20, 20}; /* 110 in all */

static struct layer_assign_out choose(int n_devices, const size_t *free, const size_t *reserve, size_t head) {
    struct layer_assign_in in = {.n_layers = LAYERS, .n_devices = n_devices, .layer_bytes = layers, .head_bytes = head};
    struct layer_assign_out out;
    for (int i = 0; i < n_devices; i++) in.free_bytes[i] = free[i], in.reserve_bytes[i] = reserve ? reserve[i] : 0;
    layer_assign_whole(&in, &out);
    return out;
}
#define CHOOSE(head, ...) \
    choose((int)(sizeof((size_t[]){__VA_ARGS__}) / sizeof(size_t)), (size_t[]){__VA_ARGS__}, NULL, head)

static void one_device(void **state) {
    struct layer_assign_out out = CHOOSE(30, 140); /* to the byte */
    assert_int_equal(out.n, 1), assert_int_equal(out.end_layer[0], LAYERS), assert_int_equal(out.head_device, 0);
    assert_non_null(strstr(out.why, "head of all 6 layers on 1 of 1"));
    out = CHOOSE(30, 139); /* all layers; the head stays on the CPU */
    assert_int_equal(out.n, 1), assert_int_equal(out.end_layer[0], LAYERS), assert_int_equal(out.head_device, -1);
    out = CHOOSE(30, 109);
    assert_int_equal(out.n, 1), assert_int_equal(out.end_layer[0], 5), assert_int_equal(out.head_device, -1);
    assert_non_null(strstr(out.why, "5 of 6 layers on 1 of 1"));
    out = CHOOSE(0, 10);
    assert_int_equal(out.end_layer[0], 1);
}

static void too_little_memory_holds_no_layer(void **state) {
    struct layer_assign_out out = choose(0, NULL, NULL, 5);
    assert_int_equal(out.n, 0), assert_int_equal(out.head_device, -1),
        assert_string_equal(out.why, "nothing (no devices)");
    out = CHOOSE(5, 9);
    assert_int_equal(out.n, 0), assert_int_equal(out.head_device, -1),
        assert_non_null(strstr(out.why, "0 of 6 layers"));
    out = CHOOSE(5, 9, 9, 0);
    assert_int_equal(out.n, 0), assert_int_equal(out.head_device, -1);
}

static void reserve(void **state) {
    size_t free[] = {200}, much[] = {130}, all[] = {200}, more[] = {300};
    assert_int_equal(choose(1, free, much, 0).end_layer[0], 4); /* 70 */
    assert_int_equal(choose(1, free, all, 0).n, 0);
    assert_int_equal(choose(1, free, more, 0).n, 0); /* a negative amount counts as 0 */
}

static void several(void **state) {
    struct layer_assign_out out = CHOOSE(30, 70, 70); /* 10 + 3 * 20, then 2 * 20 and the head */
    assert_int_equal(out.n, 2), assert_int_equal(out.end_layer[0], 4), assert_int_equal(out.end_layer[1], 6),
        assert_int_equal(out.head_device, 1);
    out = CHOOSE(31, 70, 70);
    assert_int_equal(out.n, 2), assert_int_equal(out.end_layer[1], 6), assert_int_equal(out.head_device, -1);
    out = CHOOSE(30, 30, 30, 30); /* one layer fits on each except the first, which gets two */
    assert_int_equal(out.n, 3), assert_int_equal(out.end_layer[0], 2), assert_int_equal(out.end_layer[1], 3),
        assert_int_equal(out.end_layer[2], 4), assert_int_equal(out.head_device, -1);
    out = CHOOSE(30, 1000, 1000); /* the first has room for all: the second is left to prefills */
    assert_int_equal(out.n, 1), assert_int_equal(out.head_device, 0),
        assert_non_null(strstr(out.why, "on 1 of 2 devices"));
}

/* Experts of each layer take 100, except of the dense layer 0: 610 with the layers, 640 with a head. */
static bool spread(int n_devices, const size_t *room, struct layer_assign_out *out) {
    static const size_t experts[LAYERS] = {0, 100, 100, 100, 100, 100};
    size_t all[GPU_MAX] = {0};
    struct layer_assign_in in = {.n_layers = LAYERS, .n_devices = n_devices, .layer_bytes = layers, .head_bytes = 30};
    for (int i = 0; i < n_devices; i++) all[i] = in.free_bytes[i] = room[i];
    return layer_assign_spread(&in, experts, all, out);
}
static void experts_fill_all_devices(void **state) {
    struct layer_assign_out out = {.n = 7};
    assert_false(spread(1, (size_t[]){1000}, &out)); /* nothing to divide */
    assert_int_equal(out.n, 7);
    assert_true(spread(2, (size_t[]){640, 640}, &out)); /* the first device holds everything */
    assert_int_equal(out.n, 1), assert_int_equal(out.end_layer[0], LAYERS), assert_int_equal(out.head_device, 0);
    assert_true(spread(3, (size_t[]){250, 390, 390}, &out)); /* the first two do: 10 + 2 * 120, 3 * 120 + 30 */
    assert_int_equal(out.n, 2), assert_int_equal(out.end_layer[0], 3), assert_int_equal(out.end_layer[1], LAYERS),
        assert_int_equal(out.head_device, 1);
    assert_non_null(strstr(out.why, "all routed experts fit"));
    /* some do not fit: 370 and 240 with their experts, each beside two */
    assert_true(spread(2, (size_t[]){300, 300}, &out));
    assert_int_equal(out.n, 2), assert_int_equal(out.end_layer[0], 4), assert_int_equal(out.end_layer[1], LAYERS),
        assert_int_equal(out.head_device, 1);
    assert_non_null(strstr(out.why, "fill all devices"));
    assert_true(spread(2, (size_t[]){100, 400}, &out)); /* in proportion to their memory */
    assert_int_equal(out.end_layer[0], 2), assert_int_equal(out.end_layer[1], LAYERS);
    assert_false(spread(2, (size_t[]){40, 60}, &out)); /* the layers themselves do not fit so divided */
}

static void uneven(void **state) {
    struct layer_assign_out out = CHOOSE(30, 5, 140); /* too small for one layer: the next one gets them all */
    assert_int_equal(out.end_layer[out.n - 1], LAYERS), assert_int_equal(out.head_device, 1);
    assert_int_equal(out.n, 2), assert_int_equal(out.end_layer[0], 0);
    out = CHOOSE(30, 70, 5, 70); /* and one in the middle */
    assert_int_equal(out.n, 3), assert_int_equal(out.end_layer[0], 4), assert_int_equal(out.end_layer[1], 4),
        assert_int_equal(out.end_layer[2], 6), assert_int_equal(out.head_device, 2);
    out = CHOOSE(30, 70, 5); /* or the last: then it has none */
    assert_int_equal(out.n, 1), assert_int_equal(out.end_layer[0], 4), assert_int_equal(out.head_device, -1);
}

/* The reasons for what devices hold, each once; without devices the reason why there are none. */
static void reasons(void **state) {
    struct placement_report w = {0};
    char text[64];
    placement_report_add(&w, (struct placement_row){.item = PLACED_EMBEDDING, .device = -1}, "read by rows");
    placement_report_add(&w, (struct placement_row){.item = PLACED_LAYERS, .device = -1, .last = 2}, "there are none");
    placement_report_reasons(&w, text, sizeof text);
    assert_string_equal(text, "there are none");
    for (int i = 0; i < 2; i++) {
        placement_report_add(&w, (struct placement_row){.item = PLACED_LAYERS, .device = i, .first = i, .last = i + 1},
                             "two layers");
        placement_report_add(&w, (struct placement_row){.item = PLACED_HEAD, .device = i}, "behind the last layer");
        placement_report_add(&w, (struct placement_row){.item = PLACED_EXPERTS, .device = i}, i ? "3 of 4" : "2 of 4");
    }
    placement_report_reasons(&w, text, sizeof text);
    assert_string_equal(text, "two layers; routed experts: 2 of 4; routed experts: 3 of 4");
    placement_report_reasons(&w, text, 12);
    assert_string_equal(text, "two layers;");
    for (int i = 0; i < 2 * PLACEMENT_REPORT_ROWS; i++)
        placement_report_add(&w, (struct placement_row){.item = PLACED_RESERVE, .device = 0}, "more");
    assert_int_equal(w.n, PLACEMENT_REPORT_ROWS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device), cmocka_unit_test(too_little_memory_holds_no_layer), cmocka_unit_test(reserve),
        cmocka_unit_test(several),    cmocka_unit_test(experts_fill_all_devices),         cmocka_unit_test(uneven),
        cmocka_unit_test(reasons)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
