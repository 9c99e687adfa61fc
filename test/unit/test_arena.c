/* gpu/cuda_arena.c: parts of the driver's blocks are taken, split, joined and given back; blocks without used parts can
 * be removed. */
#include "unit.h"

#include <stdbool.h>

#include "gpu/cuda_arena.h"

enum { GRAIN = CUDA_ARENA_GRAIN, BLOCK = 16 * GRAIN };
#define ANY SIZE_MAX

/* Addresses only: the arena does not touch the memory. Blocks a and c are neighbours of b, without a gap. */
static char *const b = (char *)((uintptr_t)1 << 32), *const a = b - BLOCK, *const c = b + BLOCK;

/* Parts cover their blocks without gaps or overlaps, two free ones of a block are never neighbours, and the counts
 * agree. */
static void check(const struct cuda_arena *x) {
    size_t held = 0, used = 0;
    for (size_t i = 0; i < x->n; i++) {
        const struct cuda_part *p = &x->parts[i], *before = i ? p - 1 : NULL;
        assert_true(p->size > 0 && p->size % GRAIN == 0);
        if (before) assert_true(p->is_first ? before->p + before->size <= p->p : before->p + before->size == p->p);
        if (before && !p->is_first) assert_true(before->is_used || p->is_used);
        if (!before) assert_true(p->is_first);
        held += p->size;
        used += p->is_used ? p->size : 0;
    }
    assert_int_equal(held, x->held_bytes);
    assert_int_equal(used, x->used_bytes);
}
static void open_with(struct cuda_arena *x, char *const *blocks, int n) {
    *x = (struct cuda_arena){0};
    for (int i = 0; i < n; i++) {
        assert_true(cuda_arena_add(x, blocks[i], BLOCK));
        cuda_arena_give(x, blocks[i]);
        check(x);
    }
}

static void takes_the_smallest(void **state) {
    struct cuda_arena x;
    open_with(&x, (char *const[]){c, a}, 2);
    char *first = cuda_arena_take(&x, 4 * GRAIN, ANY);
    assert_ptr_equal(first, a);
    assert_ptr_equal(cuda_arena_take(&x, 2 * GRAIN, ANY), a + 4 * GRAIN); /* 12 left there, 16 in c */
    cuda_arena_give(&x, first);
    assert_ptr_equal(cuda_arena_take(&x, 3 * GRAIN, ANY), a); /* of the 4 that are free, not of the 10 or the 16 */
    check(&x);
    assert_null(cuda_arena_take(&x, BLOCK + GRAIN, ANY));
    assert_null(cuda_arena_take(&x, GRAIN / 2 * 3, GRAIN / 2 * 3)); /* all are smaller or larger */
    cuda_arena_close(&x);
}
static void joins_neighbours(void **state) {
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int k = 0; k < 6; k++) {
        struct cuda_arena x;
        char *part[3];
        open_with(&x, (char *const[]){b}, 1);
        for (int i = 0; i < 3; i++) part[i] = cuda_arena_take(&x, (i ? 6 : 4) * GRAIN, ANY);
        assert_null(cuda_arena_take(&x, GRAIN, ANY));
        for (int i = 0; i < 3; i++) {
            cuda_arena_give(&x, part[orders[k][i]]);
            check(&x);
        }
        assert_int_equal(x.n, 1);
        assert_ptr_equal(cuda_arena_take(&x, BLOCK, BLOCK), b);
        cuda_arena_close(&x);
    }
}
/* The driver gave them one by one, and takes them back so. */
static void keeps_blocks_apart(void **state) {
    struct cuda_arena x;
    open_with(&x, (char *const[]){b, c, a}, 3);
    assert_null(cuda_arena_take(&x, BLOCK + GRAIN, ANY));
    char *part = cuda_arena_take(&x, GRAIN, ANY);
    assert_ptr_equal(part, a);
    assert_ptr_equal(cuda_arena_remove(&x, false), b);
    assert_ptr_equal(cuda_arena_remove(&x, false), c);
    assert_null(cuda_arena_remove(&x, false));
    check(&x);
    assert_ptr_equal(cuda_arena_remove(&x, true), a);
    assert_true(!x.n && !x.held_bytes && !x.used_bytes);
    cuda_arena_close(&x);
}
static void ignores_what_it_does_not_hold(void **state) {
    struct cuda_arena x;
    open_with(&x, (char *const[]){b}, 1);
    char *part = cuda_arena_take(&x, 2 * GRAIN, ANY);
    cuda_arena_give(&x, NULL);
    cuda_arena_give(&x, part + GRAIN);
    cuda_arena_give(&x, c);
    check(&x);
    assert_int_equal(x.used_bytes, 2 * GRAIN);
    cuda_arena_close(&x);
}
/* Random use: no two parts overlap, and in the end every block is whole again. */
static void survives_random_use(void **state) {
    enum { PARTS = 24, STEPS = 4000 };
    struct cuda_arena x;
    char *part[PARTS] = {0};
    size_t size[PARTS] = {0};
    uint32_t r = 7;
    open_with(&x, (char *const[]){a, b, c}, 3);
    for (int step = 0; step < STEPS; step++) {
        r = r * 1664525 + 1013904223;
        const int i = (int)(r >> 8) % PARTS;
        if (part[i]) {
            cuda_arena_give(&x, part[i]);
            part[i] = NULL;
        } else {
            size[i] = (1 + (r >> 16) % 5) * GRAIN;
            part[i] = cuda_arena_take(&x, size[i], r & 64 ? ANY : size[i] + 2 * GRAIN);
        }
        for (int k = 0; k < PARTS && part[i]; k++)
            assert_true(k == i || !part[k] || part[k] + size[k] <= part[i] || part[i] + size[i] <= part[k]);
        check(&x);
    }
    for (int i = 0; i < PARTS; i++) cuda_arena_give(&x, part[i]);
    check(&x);
    for (int i = 0; i < 3; i++) assert_non_null(cuda_arena_remove(&x, false));
    cuda_arena_close(&x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_smallest), cmocka_unit_test(joins_neighbours), cmocka_unit_test(keeps_blocks_apart),
        cmocka_unit_test(ignores_what_it_does_not_hold), cmocka_unit_test(survives_random_use)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
