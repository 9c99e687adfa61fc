/* Which layers live on which device: in order, as many as fit, the head behind the last. */
#include "test/unit/unit.h"

#include <string.h>

#include "engine/step/resident.h"

static const size_t layers[] = {50, 10, 20, 30, 40};
static const struct {
    int n_devices;
    size_t head, free[3], reserve[3];
    int n, until[3], head_at;
    const char *why;
} rows[] = {
    {1, 60, {215}, {5}, 1, {5}, 0, "head of all 5 layers on 1 of 1 devices"},
    {1, 60, {215}, {6}, 1, {5}, -1, "5 of 5 layers on 1 of 1 devices"}, /* the head is one byte too long */
    {1, 60, {110}, {0}, 1, {4}, -1, "4 of 5 layers on 1"},
    {1, 60, {109}, {0}, 1, {3}, -1, "3 of 5 layers on 1"},
    {1, 60, {50}, {0}, 1, {1}, -1, "1 of 5 layers on 1"},
    {1, 60, {49}, {0}, 0, {0}, -1, "0 of 5 layers on 0 of 1"},
    {1, 60, {90}, {100}, 0, {0}, -1, "0 of 5 layers on 0 of 1"},          /* less is free than it is to leave */
    {2, 60, {80, 130}, {0, 0}, 2, {3, 5}, 1, "head of all 5 layers on 2 of 2"},
    {2, 60, {79, 150}, {0, 0}, 2, {2, 5}, 1, "head of all 5 layers on 2 of 2"},
    {2, 60, {149, 100}, {39, 0}, 2, {4, 5}, 1, "head of all 5 layers on 2 of 2"},
    {2, 60, {40, 150}, {0, 0}, 2, {0, 5}, -1, "5 of 5 layers on 2 of 2"}, /* nothing fits on the first */
    {2, 60, {30, 40}, {0, 0}, 0, {0}, -1, "0 of 5 layers on 0 of 2"},
    {3, 60, {500, 500, 500}, {0}, 1, {5}, 0, "head of all 5 layers on 1 of 3"},
    {3, 60, {60, 50, 100}, {0, 0, 0}, 3, {2, 4, 5}, 2, "head of all 5 layers on 3 of 3"},
    {0, 60, {0}, {0}, 0, {0}, -1, "no device"},
};

static void rows_of_the_table(void **st) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct resident_in in = {.n_layers = 5, .n_devices = rows[i].n_devices, .layer = layers, .head = rows[i].head};
        struct resident_out out;
        memcpy(in.free, rows[i].free, sizeof rows[i].free);
        memcpy(in.reserve, rows[i].reserve, sizeof rows[i].reserve);
        resident_choose(&in, &out);
        bool same = out.n == rows[i].n && out.head == rows[i].head_at && strstr(out.why, rows[i].why);
        for (int d = 0; d < out.n; d++) same &= out.until[d] == rows[i].until[d];
        if (!same) fail_msg("row %zu: %d devices, until %d %d %d, head %d: %s", i, out.n, out.until[0], out.until[1], out.until[2], out.head, out.why);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_of_the_table)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
