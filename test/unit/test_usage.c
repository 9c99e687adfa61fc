/* Usage profiles: what a run writes the next one reads, earlier runs count half, and a file that is not a profile of
 * the checkpoint is removed. */
#include "test/unit/unit.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/experts/usage_profile.h"

enum { LAYERS = 3, EXPERTS = 4 }; /* layer 0 has no experts */
static struct config config = {
    .n_layers = LAYERS, .n_experts = EXPERTS, .topk = 1, .layer = {[1] = {.moe = true}, [2] = {.moe = true}}};
static char dir[] = "/tmp/hearth-usage-XXXXXX", path[64];
static const uint64_t fingerprint = 0x1234abcd;
static int warnings;
static void count_warnings(void *ctx, enum log_level level, const char *text) { warnings += level == LOG_WARN; }

static struct usage_profile *opened(void) {
    struct usage_profile *u;
    struct error e = {0};
    assert_int_equal(usage_profile_open(&u, &config, dir, fingerprint, &e), 0);
    return u;
}
static void save(struct usage_profile *u, const uint32_t *decoded) {
    struct error e = {0};
    if (usage_profile_save(u, decoded, &e)) fail_msg("%s", e.text);
}

static void next_run_reads_it(void **st) {
    uint32_t decoded[LAYERS * EXPERTS] = {0};
    float share[EXPERTS];
    struct usage_profile *u = opened();
    assert_false(usage_profile_shares(u, 1, share));
    save(u, decoded);
    assert_false(file_exists(path)); /* nothing was used */
    usage_profile_count(u, 1, (int32_t[]){0, 1, 1, -1, 99, 1}, 6);
    assert_true(usage_profile_shares(u, 1, share));
    assert_true(share[0] == 0.25f && share[1] == 0.75f && share[2] == 0);
    decoded[2 * EXPERTS + 3] = 40;
    save(u, decoded);
    usage_profile_close(&u);
    u = opened();
    assert_true(u->before[EXPERTS] == 1 && u->before[EXPERTS + 1] == 3 && u->before[2 * EXPERTS + 3] == 40 &&
                !warnings);
    usage_profile_count(u, 1, (int32_t[]){2, 2}, 2); /* the prompt counts as much as all runs before */
    assert_true(usage_profile_shares(u, 1, share));
    assert_true(share[0] == 0.125f && share[1] == 0.375f && share[2] == 0.5f && share[3] == 0);
    assert_false(usage_profile_shares(u, 0, share));
    save(u, decoded);
    usage_profile_close(&u);
    u = opened();
    assert_true(u->before[EXPERTS] == 0 && u->before[EXPERTS + 1] == 1 && u->before[EXPERTS + 2] == 2 &&
                u->before[2 * EXPERTS + 3] == 60);
    usage_profile_close(&u);
}

static void counts_do_not_overflow(void **st) {
    uint32_t decoded[LAYERS * EXPERTS];
    struct usage_profile *u = opened();
    memset(decoded, 0xff, sizeof decoded);
    for (int i = 0; i < 3; i++) usage_profile_add(u, 1, 1, UINT32_MAX);
    save(u, decoded);
    usage_profile_close(&u);
    u = opened();
    assert_true(u->before[EXPERTS + 1] == UINT32_MAX / 4 && u->before[0] == UINT32_MAX / 4);
    usage_profile_close(&u);
}

/* Every byte of the file is protected; so is its length, and the checkpoint it belongs to. */
static void damaged_files_are_removed(void **st) {
    uint32_t decoded[LAYERS * EXPERTS] = {[EXPERTS] = 100};
    char *good, *bad;
    size_t size;
    struct error e = {0};
    struct usage_profile *u;
    unlink(path);
    save(u = opened(), decoded);
    usage_profile_close(&u);
    assert_int_equal(file_read(path, 4096, &good, &size, &e), 0);
    assert_non_null(bad = malloc(size + 1));
    for (size_t i = 0; i < size + 3; i++) {
        memcpy(bad, good, size);
        bad[i < size ? i : size] = i < size ? (char)(good[i] ^ 0x41) : 0;
        const size_t n = i < size ? size : i == size ? size + 1 : i == size + 1 ? size - 1 : 0;
        assert_int_equal(file_write(path, bad, n, &e), 0);
        warnings = 0;
        u = opened();
        for (int k = 0; k < LAYERS * EXPERTS; k++) assert_int_equal(u->before[k], 0);
        if (file_exists(path) || warnings != 1) fail_msg("byte %zu of %zu: %d warnings", i, size, warnings);
        usage_profile_close(&u);
    }
    assert_int_equal(file_write(path, good, size, &e), 0);
    config.topk = 2, warnings = 0; /* a profile of a model of another shape, and of one of the same shape */
    u = opened();
    assert_true(u->before[EXPERTS] == 0 && warnings == 1);
    usage_profile_close(&u);
    config.topk = 1, warnings = 0;
    char other[80];
    snprintf(other, sizeof other, "%s/%016" PRIx64 ".usage", dir, fingerprint + 1);
    assert_int_equal(usage_profile_open(&u, &config, dir, fingerprint + 1, &e), 0);
    save(u, decoded);
    usage_profile_close(&u);
    assert_int_equal(rename(other, path), 0);
    u = opened();
    assert_true(u->before[EXPERTS] == 0 && warnings == 1 && !usage_profile_pin(u, 0));
    usage_profile_close(&u);
    mem_free(good);
    free(bad);
}

/* Counts of earlier runs are pinned; without any, those of the first prompt. Nothing later changes them. */
static void pinned_counts_stay(void **st) {
    uint32_t decoded[LAYERS * EXPERTS] = {[EXPERTS] = 7, [EXPERTS + 2] = 90, [EXPERTS + 3] = 7};
    int32_t ids[EXPERTS];
    struct usage_profile *u;
    unlink(path);
    u = opened();
    assert_false(usage_profile_pin(NULL, 0));
    assert_false(usage_profile_pin(u, 0)); /* no counts yet */
    usage_profile_count(u, 1, (int32_t[]){3, 3, 1}, 3);
    assert_true(usage_profile_pin(u, 0) && !usage_profile_is_kept(u));
    usage_profile_count(u, 1, (int32_t[]){0, 0, 0, 0, 0}, 5);
    assert_true(usage_profile_pin(u, 0));
    usage_profile_pinned(u, 1, 2, ids);
    assert_true(ids[0] == 1 && ids[1] == 3);
    usage_profile_pinned(u, 2, 2, ids); /* a layer that no prompt reached */
    assert_true(ids[0] == 0 && ids[1] == 1);
    save(u, decoded);
    usage_profile_close(&u);
    u = opened();
    usage_profile_count(u, 1, (int32_t[]){1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}, 14);
    assert_true(usage_profile_pin(u, 0) && usage_profile_is_kept(u));
    usage_profile_pinned(u, 1, 3, ids); /* of equal counts the first */
    assert_true(ids[0] == 0 && ids[1] == 2 && ids[2] == 3);
    usage_profile_pinned(u, 1, EXPERTS, ids);
    for (int i = 0; i < EXPERTS; i++) assert_int_equal(ids[i], i);
    usage_profile_close(&u);
}

/* A choice counts as pinned if the others alone would have pinned its expert; chance is the least. */
static void shares_are_not_those_of_the_sample(void **st) {
    uint32_t decoded[LAYERS * EXPERTS] = {0};
    static const uint32_t few[EXPERTS] = {1, 1, 0, 0}, many[EXPERTS] = {100, 900, 50, 50}, near[EXPERTS] = {5, 5, 4, 6};
    struct usage_profile *u;
    unlink(path);
    assert_true(usage_profile_pinned_share(NULL, 1, 2) < 0);
    u = opened();
    assert_true(usage_profile_pinned_share(u, 1, 2) < 0);
    memcpy(u->before + EXPERTS, few, sizeof few);
    /* without its one choice an expert is used as seldom as the unused ones; the first keeps its place */
    assert_true(fabs(usage_profile_pinned_share(u, 1, 1) - 0.25) < 1e-9);
    assert_true(fabs(usage_profile_pinned_share(u, 1, 2) - 1) < 1e-9);
    memcpy(u->before + EXPERTS, many, sizeof many);
    assert_true(fabs(usage_profile_pinned_share(u, 1, 1) - 900.0 / 1100) < 1e-9);
    assert_true(fabs(usage_profile_pinned_share(u, 1, 2) - 1000.0 / 1100) < 1e-9);
    memcpy(u->before + EXPERTS, near, sizeof near);
    /* 6 - 1 stays before 5 only where the other comes later */
    assert_true(fabs(usage_profile_pinned_share(u, 1, 1) - 0.25) < 1e-9);
    usage_profile_close(&u);
    /* a profile is settled after so many tokens */
    u = opened();
    usage_profile_count(u, 1, (int32_t[]){3, 3, 1, 0, 3, 3, 1, 0, 3, 3, 1, 0, 3, 3, 1, 0, 3, 3, 1, 0}, 20);
    decoded[2 * EXPERTS] = 20;
    save(u, decoded);
    usage_profile_close(&u);
    for (int settled = 20; settled <= 21; settled++) {
        u = opened();
        assert_true(usage_profile_pin(u, settled) && usage_profile_is_kept(u) == (settled == 20));
        usage_profile_close(&u);
    }
}

static void without_directory(void **st) {
    uint32_t decoded[LAYERS * EXPERTS] = {[EXPERTS] = 100};
    struct usage_profile *u;
    struct error e = {0};
    assert_int_equal(usage_profile_open(&u, &config, NULL, fingerprint, &e), 0);
    save(u, decoded);
    usage_profile_close(&u);
    usage_profile_count(NULL, 1, (int32_t[]){1}, 1);
    assert_false(usage_profile_shares(NULL, 1, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(next_run_reads_it),         cmocka_unit_test(counts_do_not_overflow),
        cmocka_unit_test(pinned_counts_stay),        cmocka_unit_test(shares_are_not_those_of_the_sample),
        cmocka_unit_test(damaged_files_are_removed), cmocka_unit_test(without_directory)};
    if (!mkdtemp(dir)) return 1;
    snprintf(path, sizeof path, "%s/%016" PRIx64 ".usage", dir, fingerprint);
    log_set(count_warnings, NULL, LOG_WARN);
    int rc = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(path), rmdir(dir);
    return rc;
}
