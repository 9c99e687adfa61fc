/* Scans of weights for NaN codes: a weight counts as checked once it has been read, and not before. The weights are
 * addresses without memory; the first read of an expert faults, and the handler observes the state and maps memory. */
#include "test/unit/unit.h"

#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/pool.h"
#include "engine/weights/nan_scan.h"
#include "engine/weights/shape_only.h"
#include "test/unit/parse_config.h"

static struct shape_only model;
static struct weight_state known;
static struct nan_scan scan;
static struct pool *pool;
static const int32_t ids[] = {2, 5, -1, 2};
static volatile sig_atomic_t faults, done_too_early;

static void on_fault(int signal, siginfo_t *info, void *context) {
    faults++;
    if (nan_scan_is_done(&scan, 0, ids, 2)) done_too_early = 1;
    if (mprotect(model.mem, model.bytes, PROT_READ | PROT_WRITE)) _exit(2);
}

static int setup(void **st) {
    struct config c;
    struct error e = {0};
    if (parse(&c, DENSE("qwen3_moe", ",\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":64"),
              false, &e) ||
        shape_only_open(&model, &c, DT_BF16, DT_E4M3, &e) || weight_state_open(&known, &c, &e) ||
        pool_open(&pool, 2, false, &e))
        fail_msg("%s", e.text);
    scan = (struct nan_scan){.w = &model.w, .pool = pool, .known = &known};
    return 0;
}
static int teardown(void **st) {
    pool_close(&pool);
    weight_state_close(&known);
    shape_only_close(&model);
    return 0;
}

static void checked_after_the_scan(void **st) {
    struct error e = {0};
    struct sigaction act = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, cmockas;
    assert_false(nan_scan_is_done(&scan, 0, ids, 2));
    assert_int_equal(sigaction(SIGSEGV, &act, &cmockas), 0);
    if (nan_scan_experts(&scan, 0, ids, 4, &e)) fail_msg("%s", e.text);
    assert_int_equal(sigaction(SIGSEGV, &cmockas, NULL), 0);
    assert_true(faults > 0 && !done_too_early && nan_scan_is_done(&scan, 0, ids, 2));
    assert_int_equal(scan.n_experts_scanned, 2);
    assert_int_equal(nan_scan_experts(&scan, 0, ids, 4, &e), 0);
    assert_int_equal(scan.n_experts_scanned, 2); /* not again */
}

static void damaged_experts_are_found_every_time(void **st) {
    struct error e = {0};
    const int32_t first[] = {3}, both[] = {3, 5};
    if (mprotect(model.mem, model.bytes, PROT_READ | PROT_WRITE)) fail();
    assert_int_equal(nan_scan_experts(&scan, 0, first, 1, &e), 0);
    *(uint8_t *)(uintptr_t)model.w.layers[0].experts[5].down.data = 0x7f;
    for (int i = 0; i < 2; i++) { /* each turn finds it */
        assert_int_equal(nan_scan_experts(&scan, 0, both, 2, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, "not a number"));
        assert_false(nan_scan_is_done(&scan, 0, &both[1], 1));
        assert_true(nan_scan_is_done(&scan, 0, first, 1)); /* which was good */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(checked_after_the_scan, setup, teardown),
        cmocka_unit_test_setup_teardown(damaged_experts_are_found_every_time, setup, teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
