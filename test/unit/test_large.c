/* Moving weights to large pages in the background: their content stays, whatever the system does. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "engine/weights/huge_pages.h"
#include "test/unit/unit.h"

enum { MB = 1 << 20, SIZE = 113 };
static char path[] = "hearth-large-XXXXXX";
static struct shard shard;
static struct checkpoint files = {.shards = &shard, .n_shards = 1};

static uint32_t at(size_t i) { return (uint32_t)(i * 2654435761u); }

static int setup(void **state) {
    struct error e = {0};
    int fd = mkstemp(path);
    uint32_t *mb = malloc(MB);
    assert_true(fd >= 0 && mb);
    for (size_t m = 0; m < SIZE; m++) {
        for (size_t i = 0; i < MB / 4; i++) mb[i] = at(m * MB / 4 + i);
        assert_int_equal(file_write_all(fd, mb, MB), 0);
    }
    fsync(fd); /* dirty pages cannot be dropped */
    close(fd);
    free(mb);
    if (file_map(&shard.map, path, &e)) fail_msg("%s", e.text);
    file_map_advise_huge(&shard.map);
    return 0;
}
static int teardown(void **state) {
    file_unmap(&shard.map);
    return unlink(path);
}

static void same(void) { /* touches all pages */
    const uint32_t *word = (const uint32_t *)(const void *)shard.map.data;
    for (size_t i = 0; i < (size_t)SIZE * MB / 4; i++)
        if (word[i] != at(i)) fail_msg("word %zu is %u, not %u", i, word[i], at(i));
}

/* Maps each page by itself, as reading a file that was written a moment ago leaves them. */
static void make_small(void) {
    const size_t small = (size_t)64 << 10;
    for (size_t at = 0, n; at < shard.map.size; at += n) { /* what follows the map is the C library's */
        n = shard.map.size - at < MEM_HUGE_PAGE ? shard.map.size - at : MEM_HUGE_PAGE;
        file_map_drop(shard.map.data + at, n);
    }
    madvise((void *)shard.map.data, shard.map.size, MADV_NOHUGEPAGE);
    for (size_t at = 0; at < shard.map.size; at += small)
        assert_int_equal(file_map_touch(shard.map.data + at, small), 0);
    file_map_advise_huge(&shard.map);
}
static size_t large_bytes(void) { return (size_t)file_map_large(shard.map.data, shard.map.size); }
static void run(int ms) {
    struct huge_pages *l;
    huge_pages_open(&l, &files);
    assert_non_null(l);
    for (size_t now = 0, before = 1; now != before && ms; before = now, now = large_bytes())
        usleep((unsigned)ms * 1000);
    huge_pages_close(&l);
    huge_pages_close(&l);
}

/* Whether the system reads a part of the file into a large page. */
static bool gives_large(void) {
    return file_map_large(shard.map.data, 1) >= 0 && !file_map_reload(shard.map.data, MEM_HUGE_PAGE) &&
           file_map_large(shard.map.data, MEM_HUGE_PAGE) == MEM_HUGE_PAGE;
}

static void file_pages_become_huge_pages(void **state) {
    make_small();
    if (file_map_large(shard.map.data, 1) < 0) {
        struct huge_pages *l;
        huge_pages_open(&l, &files);
        assert_null(l);
        print_message("SKIPPED: this system does not tell its pages\n");
        skip();
    }
    assert_int_equal(large_bytes(), 0);
    assert_int_equal(file_map_cached(shard.map.data, shard.map.size), shard.map.size);
    const bool has_large = gives_large();
    run(300);
    same();
    print_message("%zu of %d MB in pages of 2 MB\n", large_bytes() / MB, SIZE);
    if (has_large) assert_in_range(large_bytes(), (size_t)SIZE / 2 * MB, (size_t)SIZE * MB);
}
/* What is not in memory is left to its first access. */
static void nothing_is_read_ahead(void **state) {
    if (file_map_large(shard.map.data, 1) < 0) skip();
    file_map_drop(shard.map.data, shard.map.size);
    if (file_map_cached(shard.map.data, shard.map.size)) skip(); /* a system without a disk */
    run(50);
    assert_int_equal(file_map_cached(shard.map.data, shard.map.size), 0);
    same();
}
/* Of another user's file mincore calls all pages cached. */
static void others_files_are_not_read_ahead(void **state) {
    struct file_map m;
    const uid_t user = geteuid();
    if (!user && (seteuid(65534) || prctl(PR_SET_DUMPABLE, 1))) skip(); /* else /proc/self is root's */
    assert_int_equal(file_map(&m, "/bin/sh", NULL), 0);
    assert_false(file_map_is_cached(m.data, m.size));
    assert_int_equal(file_map_touch(m.data, m.size), 0);
    assert_false(file_map_tells_cached(m.data));
    assert_int_equal(file_map_cached(m.data, 4096), 0);
    assert_true(file_map_is_cached(m.data, m.size));
    file_unmap(&m);
    if (user) return;
    assert_int_equal(seteuid(user), 0);
    assert_int_equal(file_map(&m, "/bin/sh", NULL), 0);
    assert_true(file_map_tells_cached(m.data));
    assert_int_equal(file_map_cached(m.data, 4096), 4096);
    file_unmap(&m);
}
static size_t bytes_read(void) {
    FILE *f = fopen("/proc/self/io", "re");
    char line[64];
    size_t n = 0;
    while (f && fgets(line, sizeof line, f)) sscanf(line, "read_bytes: %zu", &n);
    if (f) fclose(f);
    return n;
}
/* A system that has no more large pages left is not asked for all of them. */
static void it_ends_when_no_more_are_given(void **state) {
    if (!gives_large()) skip();
    make_small();
    madvise((void *)(shard.map.data + 8 * MEM_HUGE_PAGE), shard.map.size - 8 * MEM_HUGE_PAGE, MADV_NOHUGEPAGE);
    const size_t before = bytes_read();
    run(300);
    file_map_advise_huge(&shard.map);
    same();
    assert_in_range(bytes_read() - before, 1, (size_t)SIZE / 2 * MB);
}
/* The program may end at any moment, and reads may fail. */
static void contents_stay(void **state) {
    if (file_map_large(shard.map.data, 1) < 0) skip();
    make_small();
    run(0);
    same();
    make_small();
    fault_set(FAULT_READ, 5, true, false);
    run(50);
    fault_set(FAULT_READ, 0, false, false);
    same();
}
static void embedded_files_take_no_huge_pages(void **state) {
    struct shard inside = {.map = {.data = shard.map.data, .size = shard.map.size, .embedded = true}};
    struct checkpoint none = {.shards = &inside, .n_shards = 1};
    struct huge_pages *l;
    huge_pages_open(&l, &none);
    huge_pages_close(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(embedded_files_take_no_huge_pages),
                                       cmocka_unit_test(file_pages_become_huge_pages),
                                       cmocka_unit_test(it_ends_when_no_more_are_given),
                                       cmocka_unit_test(others_files_are_not_read_ahead),
                                       cmocka_unit_test(nothing_is_read_ahead),
                                       cmocka_unit_test(contents_stay)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
