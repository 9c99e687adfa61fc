/* Moving weights to large pages in the background: their content stays, whatever the system does. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "engine/weights/huge_pages.h"
#include "test/unit/unit.h"

enum { MB = 1 << 20, SIZE = 113, PIECES = SIZE / 8 };
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

static void file_pages_become_huge_pages(void **state) {
    struct huge_pages l = {.files = &files};
    size_t touched, before, large;
    int pieces = 0;
    same();
    if (!file_map_pages(&touched, &before)) {
        assert_false(huge_pages_advance(&l));
        print_message("SKIPPED: this system does not tell its pages\n");
        skip();
    }
    assert_in_range(touched, (size_t)SIZE * MB, (size_t)(SIZE + 256) * MB);
    const bool small = touched - before > (size_t)64 * MB && touched - before > touched / 8;
    while (huge_pages_advance(&l)) pieces++;
    assert_false(huge_pages_advance(&l));
    same();
    assert_true(file_map_pages(&touched, &large));
    print_message("%d pieces; %zu MB in pages of 2 MB, before %zu MB\n", pieces, large / MB, before / MB);
    if (!small) assert_int_equal(pieces, 0); /* as on a file system that uses large folios */
    else assert_in_range(pieces, 1, PIECES);
    /* it continued, so it had detected an effect */
    if (pieces == PIECES) assert_in_range(large, before + (size_t)32 * MB, touched);
}

/* A failing read, and the rest after the last whole piece. */
static void huge_pages_stop_after_a_failed_read(void **state) {
    struct huge_pages l = {.files = &files, .is_started = true};
    fault_set(FAULT_READ, 3, false, false);
    assert_true(huge_pages_advance(&l));
    assert_true(huge_pages_advance(&l));
    assert_false(huge_pages_advance(&l));
    fault_set(FAULT_READ, 0, false, false);
    assert_null(l.files);
    same();
    l = (struct huge_pages){.files = &files, .is_started = true, .next_byte = (size_t)(SIZE - 8) * MB + 1};
    assert_false(huge_pages_advance(&l));
    same();
}

static void embedded_files_take_no_huge_pages(void **state) {
    struct huge_pages l = {0};
    struct shard inside = {.map = {.data = shard.map.data, .size = shard.map.size, .embedded = true}};
    assert_false(huge_pages_advance(&l));
    l.files = &(struct checkpoint){.shards = &inside, .n_shards = 1};
    assert_false(huge_pages_advance(&l));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(embedded_files_take_no_huge_pages),
                                       cmocka_unit_test(file_pages_become_huge_pages),
                                       cmocka_unit_test(huge_pages_stop_after_a_failed_read)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
