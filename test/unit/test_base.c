/* base: number formats against their definition, JSON, arenas, files under injected faults, fair queues. */
#include "base/mat_at.h"
#include "test/unit/unit.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fair_queue.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mat.h"
#include "base/mem.h"
#include "base/minifloat.h"

/* --- Numbers ---------------------------------------------------------------------------------- */

static void e4m3_is_exact(void **st) {
    for (int c = 0; c < 256; c++) {
        float f = e4m3_to_f32((uint8_t)c);
        int e = c >> 3 & 15, m = c & 7;
        double want = e ? ldexp(8 + m, e - 10) : ldexp(m, -9);
        if (c & 0x80) want = -want;
        if ((c & 0x7f) == 0x7f) assert_true(isnan(f));
        else {
            assert_true(f == want && !signbit(f) == !signbit(want));
            assert_int_equal(f32_to_e4m3(f), c);
        }
    }
    assert_int_equal(f32_to_e4m3(1e30f), 0x7e);
    assert_int_equal(f32_to_e4m3(-460.0f), 0xfe);
    /* A value halfway between two codes rounds to the even one. */
    for (int c = 0; c < 0x7d; c++) {
        float mid = (e4m3_to_f32((uint8_t)c) + e4m3_to_f32((uint8_t)(c + 1))) / 2;
        assert_int_equal(f32_to_e4m3(mid), c + (c & 1));
        assert_int_equal(f32_to_e4m3(nextafterf(mid, 0)), c);
        assert_int_equal(f32_to_e4m3(nextafterf(mid, INFINITY)), c + 1);
    }
}

static void halves_round_trip(void **st) {
    for (int c = 0; c < 65536; c++) {
        float f = f16_to_f32((uint16_t)c), b = bf16_to_f32((uint16_t)c);
        if (isnan(f)) assert_true(isnan(f16_to_f32(f32_to_f16(f))));
        else assert_int_equal(f32_to_f16(f), c);
        if (isnan(b)) assert_true(isnan(bf16_to_f32(f32_to_bf16(b))));
        else assert_int_equal(f32_to_bf16(b), c);
    }
    for (int c = 0; c < 0x7bff; c++) {
        float mid = (f16_to_f32((uint16_t)c) + f16_to_f32((uint16_t)(c + 1))) / 2;
        assert_int_equal(f32_to_f16(mid), c + (c & 1));
    }
    assert_int_equal(f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(f32_to_f16(65519.9f), 0x7bff);
    assert_int_equal(f32_to_bf16(3.40e38f), 0x7f80);
}

static void views_keep_their_scale_blocks(void **st) {
    uint8_t codes[300 * 130];
    float scales[3 * 2] = {1, 2, 3, 4, 5, 6};
    memset(codes, 0x38, sizeof codes); /* 1.0 */
    struct mat m = {.data = codes,
                    .scale = scales,
                    .stride = 130,
                    .rows = 300,
                    .cols = 130,
                    .block_rows = 128,
                    .block_cols = 128,
                    .scale_stride = 2,
                    .row_step = 1,
                    .dtype = DT_E4M3,
                    .scale_dtype = DT_F32};
    assert_true(mat_at(&m, 0, 0) == 1 && mat_at(&m, 127, 128) == 2 && mat_at(&m, 128, 127) == 3 &&
                mat_at(&m, 299, 129) == 6);
    struct mat v = mat_rows(m, 100, 200);
    assert_true(v.rows == 100 && mat_at(&v, 27, 0) == 1 && mat_at(&v, 28, 0) == 3 && mat_at(&v, 99, 129) == 4);
    struct mat w = mat_rows(v, 28, 40);
    assert_true(mat_at(&w, 0, 0) == 3);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static int parse(struct arena *a, const char *text, struct json *j, struct error *e) {
    return json_parse(a, text, strlen(text), JSON_UNIQUE, "t", j, e);
}

static void json_reads(void **st) {
    struct arena a = {0};
    struct json j;
    struct error e = {0};
    assert_int_equal(
        parse(&a, " {\"a\": [1, -2.5e3, true, null, \"x\\u00e9\\ud83d\\ude00\\n\"], \"b\": {\"c\": 9007199254740993}} ",
              &j, &e),
        0);
    assert_int_equal(json_int(json_path(&j, "b.c"), 0), 9007199254740993);
    const struct json *l = json_get(&j, "a");
    assert_true(l->n == 5 && json_int(json_at(l, 0), 0) == 1 && json_num(json_at(l, 1), 0) == -2500 &&
                json_bool(json_at(l, 2), false));
    assert_true(json_is(json_at(l, 4), "xé😀\n"));
    assert_null(json_get(&j, "z"));
    assert_null(json_path(&j, "a.b"));
    struct buf b = {0};
    assert_int_equal(json_quote(&b, "a\"\\\n\x01é", 7), 0);
    assert_string_equal(b.data, "\"a\\\"\\\\\\n\\u0001é\"");
    buf_free(&b);
    arena_free(&a);
}

/* Whole numbers past 64 bits keep their digits. */
static void json_keeps_digits(void **st) {
    static const char text[] =
        "[18446744073709551617, -9223372036854775809, 9223372036854775807, -9223372036854775808]";
    struct arena a = {0};
    struct buf b = {0};
    struct json j;
    struct error e = {0};
    assert_int_equal(parse(&a, text, &j, &e), 0);
    assert_true(json_at(&j, 0)->type == JSON_FLOAT && json_num(json_at(&j, 0), 0) == 0x1p64 &&
                json_int(json_at(&j, 0), 5) == 5);
    assert_true(json_num(json_at(&j, 1), 0) == -0x1p63 && json_int(json_at(&j, 2), 0) == INT64_MAX &&
                json_int(json_at(&j, 3), 0) == INT64_MIN);
    assert_int_equal(json_write(&b, &j), 0);
    assert_string_equal(b.data, text);
    buf_free(&b);
    char *long_text = malloc(502);
    memset(long_text, '9', 500), long_text[500] = 0;
    assert_int_equal(parse(&a, long_text, &j, &e), 0);
    assert_true(isinf(json_num(&j, 0)) && j.n == 500);
    memset(long_text + 1, '0', 300), long_text[301] = 0;
    assert_int_equal(parse(&a, long_text, &j, &e), 0);
    assert_true(json_num(&j, 0) == 9e300);
    free(long_text);
    arena_free(&a);
}

static void json_halves(void **st) {
    static const char *const halves[][2] = {{"\"\\ud800\"", "\uFFFD"},
                                            {"\"\\udc00\"", "\uFFFD"},
                                            {"\"a\\ud83d\"", "a\uFFFD"},
                                            {"\"\\ud83dA\\n\"", "\uFFFDA\n"},
                                            {"\"\\ud83d\\n\"", "\uFFFD\n"},
                                            {"\"\\ud83d\\u0041\"", "\uFFFDA"},
                                            {"\"\\ud83d\\ud83d\\ude00\"", "\uFFFD😀"},
                                            {"\"\\ude00\\ud83d\"", "\uFFFD\uFFFD"}};
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        struct arena a = {0};
        struct json j;
        struct error e = {0};
        assert_int_equal(parse(&a, halves[i][0], &j, &e), 0);
        assert_true(json_is(&j, halves[i][1]));
        arena_free(&a);
    }
}
static void json_refuses(void **st) {
    static const char *const bad[] = {"",
                                      "{",
                                      "[1,]",
                                      "{\"a\":1,}",
                                      "01",
                                      "1.",
                                      ".5",
                                      "+1",
                                      "nul",
                                      "\"\\x\"",
                                      "\"\\ud80\"",
                                      "\"\\ud83d\\ude0\"",
                                      "\"a\nb\"",
                                      "[1] 2",
                                      "{\"a\":1,\"a\":2}",
                                      "{a:1}",
                                      "\"\xff\"",
                                      "\"\xc0\x80\"",
                                      "\"\xed\xa0\x80\"",
                                      "\"\xf4\x90\x80\x80\"",
                                      "\"abc",
                                      "'a'",
                                      "NaN",
                                      "[1 2]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct arena a = {0};
        struct json j;
        struct error e = {0};
        assert_int_equal(parse(&a, bad[i], &j, &e), ERR_MODEL);
        assert_non_null(strstr(e.text, "line "));
        arena_free(&a);
    }
    char deep[400];
    memset(deep, '[', 200), memset(deep + 200, ']', 200);
    struct arena a = {0};
    struct json j;
    struct error e = {0};
    assert_int_equal(json_parse(&a, deep, 400, 0, "t", &j, &e), ERR_MODEL);
    assert_int_equal(json_parse(&a, deep + 100, 200, 0, "t", &j, &e), 0);
    arena_free(&a);
}

static void json_survives_no_memory(void **st) {
    const char *text =
        "{\"k\": [\"a\\n\", {\"b\": [1,2,3]}], "
        "\"1\":1,\"2\":1,\"3\":1,\"4\":1,\"5\":1,\"6\":1,\"7\":1,\"8\":1,\"9\":1,\"10\":1,\"11\":1,\"12\":1,\"13\":1}";
    int rc = ERR_MEMORY, n = 0;
    for (; rc; n++) {
        struct arena a = {0};
        struct json j;
        struct error e = {0};
        fault_set(FAULT_ALLOC, n + 1, false, false);
        rc = parse(&a, text, &j, &e);
        fault_set(FAULT_ALLOC, 0, false, false);
        assert_true(rc == 0 || (rc == ERR_MEMORY && e.code == ERR_MEMORY));
        arena_free(&a);
    }
    assert_true(n > 3);
}

/* --- Files ------------------------------------------------------------------------------------ */

static void write_is_old_or_new(void **st) {
    char dir[] = "/tmp/hearth-base-XXXXXX", path[64], *data;
    size_t n;
    struct error e = {0};
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/f", dir);
    assert_int_equal(file_write(path, "old", 3, &e), 0);
    static const enum fault_kind kinds[] = {FAULT_ALLOC, FAULT_OPEN, FAULT_WRITE, FAULT_SYNC, FAULT_RENAME};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        fault_set(kinds[i], 1, true, false);
        assert_true(file_write(path, "new", 3, &e) < 0);
        fault_set(kinds[i], 0, false, false);
        assert_int_equal(file_read(path, 100, &data, &n, &e), 0);
        assert_string_equal(data, "old");
        mem_free(data);
    }
    assert_int_equal(file_write(path, "new", 3, &e), 0);
    assert_int_equal(file_read(path, 100, &data, &n, &e), 0);
    assert_string_equal(data, "new");
    mem_free(data);
    assert_true(file_read(path, 2, &data, &n, &e) < 0);
    /* No temporary file is left. */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(file_read(path, 2, &data, &n, &e), ERR_RUNTIME);
    assert_non_null(strstr(e.text, path));
}

/* A regular file, also behind links, or a missing one is replaced; anything else is written to. */
static void outputs_by_one_rule(void **st) {
    char dir[] = "/tmp/hearth-base-XXXXXX", file[64], link[64], other[64], fifo[64], proc[64], *data;
    struct error e = {0};
    struct stat was, is;
    size_t n;
    assert_non_null(mkdtemp(dir));
    snprintf(file, sizeof file, "%s/file", dir);
    snprintf(link, sizeof link, "%s/link", dir);
    snprintf(other, sizeof other, "%s/other", dir);
    snprintf(fifo, sizeof fifo, "%s/fifo", dir);
    assert_int_equal(file_write(file, "one", 3, &e), 0);
    assert_int_equal(stat(file, &was), 0);
    assert_int_equal(symlink("other", link), 0); /* relative, and by another link */
    assert_int_equal(symlink(file, other), 0);
    assert_int_equal(file_write(link, "two", 3, &e), 0);
    for (int i = 0; i < 2; i++) assert_true(!lstat(i ? other : link, &is) && S_ISLNK(is.st_mode));
    assert_int_equal(stat(file, &is), 0);
    assert_int_not_equal(is.st_ino, was.st_ino);
    fault_set(FAULT_WRITE, 1, true, false); /* a full disk */
    assert_int_equal(file_write(link, "three", 5, &e), ERR_RUNTIME);
    fault_set(FAULT_WRITE, 0, false, false);
    assert_int_equal(file_read(file, 100, &data, &n, &e), 0);
    assert_string_equal(data, "two");
    mem_free(data);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    int fd = open(fifo, O_RDWR);
    char got[4] = "";
    assert_true(fd >= 0);
    assert_int_equal(file_write(fifo, "abc", 3, &e), 0);
    assert_int_equal(read(fd, got, 3), 3);
    assert_string_equal(got, "abc");
    close(fd);
    assert_int_equal(file_write("/dev/full", "x", 1, &e), ERR_RUNTIME);
    assert_int_equal(unlink(other) | symlink("nothing", other), 0);
    assert_int_equal(file_write(other, "x", 1, &e), 0);
    snprintf(proc, sizeof proc, "/proc/self/fd/%d", fd = open(file, O_WRONLY | O_APPEND));
    assert_int_equal(stat(file, &was), 0);
    assert_int_equal(unlink(other) | symlink(proc, other), 0);
    assert_int_equal(file_write(other, "two", 3, &e), 0); /* as /dev/stdout: into the open file */
    assert_true(!stat(file, &is) && is.st_ino == was.st_ino);
    close(fd);
    snprintf(proc, sizeof proc, "%s/nothing", dir);
    assert_int_equal(unlink(proc) | unlink(other) | symlink(file, other), 0);
    assert_int_equal(file_write(dir, "x", 1, &e), ERR_RUNTIME);
    struct file_out a, b;
    assert_int_equal(file_out_open(&a, file, 0666, &e), 0);
    assert_int_equal(file_out_open(&b, link, 0666, &e), 0);
    assert_int_equal(file_write_all(a.fd, "new", 3), 0);
    file_out_abandon();
    assert_int_equal(file_out_close(&a, true, &e), ERR_RUNTIME); /* the temporary files were removed */
    assert_int_equal(file_out_close(&b, true, &e), ERR_RUNTIME);
    assert_int_equal(file_out_open(&a, file, 0666, &e), 0);
    assert_int_equal(file_out_close(&a, false, &e), 0);
    assert_int_equal(unlink(file) | unlink(link) | unlink(other) | unlink(fifo), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* A file that does not fit the address space is a lack of memory: the file itself is good. */
static void no_space_for_a_map(void **st) {
    char path[] = "/tmp/hearth-map-XXXXXX";
    const int fd = mkstemp(path);
    struct rlimit was, small;
    struct file_map m;
    struct error e = {0};
    assert_true(fd >= 0 && !ftruncate(fd, 1 << 30) && !getrlimit(RLIMIT_AS, &was));
    small = (struct rlimit){.rlim_cur = 1 << 20, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_AS, &small), 0);
    const int rc = file_map(&m, path, &e);
    assert_int_equal(setrlimit(RLIMIT_AS, &was), 0);
    assert_int_equal(rc, ERR_MEMORY);
    assert_non_null(strstr(e.text, "cannot map 1073741824 bytes: Cannot allocate memory"));
    close(fd);
    unlink(path);
}

static void file_of_a_mapped_address_is_found(void **st) {
    char path[] = "/tmp/hearth-map-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, "hello", 5) == 5);
    close(fd);
    struct file_map m;
    struct error e = {0};
    assert_int_equal(file_map(&m, path, &e), 0);
    assert_true(m.size == 5 && !memcmp(m.data, "hello", 5));
    assert_string_equal(file_map_owner(m.data + 3), path);
    assert_null(file_map_owner(&e));
    const uint8_t *gone = m.data;
    file_unmap(&m);
    assert_null(file_map_owner(gone));
    unlink(path);
    assert_true(file_map(&m, "/", &e) < 0);
}

static void errors_hold_no_escapes(void **st) {
    struct error e;
    error_set(&e, ERR_MODEL, "bad \x1b[31mname\n");
    assert_string_equal(e.text, "bad ?[31mname?");
    char longer[700];
    memset(longer, 'a', sizeof longer);
    memcpy(longer + 510, "é", 2);
    longer[699] = 0;
    error_set(&e, ERR_MODEL, "%s", longer);
    assert_int_equal(strlen(e.text), 510);
    error_prefix(&e, "in %d", 3);
    assert_int_equal(strncmp(e.text, "in 3: aaa", 9), 0);
}

/* Dropped pages leave memory and are read again; other pages stay. */
static void maps_can_be_dropped(void **state) {
    enum { PAGES = 8192, PAGE = 4096 };
    char path[] = "/var/tmp/hearth-drop-XXXXXX", *data = malloc(PAGES * PAGE);
    struct file_map m;
    struct error e = {0};
    struct statfs fs;
    unsigned char in[PAGES];
    int fd = mkstemp(path);
    assert_true(fd >= 0 && data && !fstatfs(fd, &fs));
    for (int i = 0; i < PAGES * PAGE; i++) data[i] = (char)(i * 7 + i / PAGE);
    assert_int_equal(file_write_all(fd, data, PAGES * PAGE), 0);
    fsync(fd);
    close(fd);
    assert_int_equal(file_map(&m, path, &e), 0);
    assert_memory_equal(m.data, data, PAGES * PAGE);
    file_map_drop(m.data + 100 * PAGE + 100, 8000 * PAGE); /* contains pages 101 to 8099 completely */
    assert_int_equal(mincore((void *)m.data, PAGES * PAGE, in), 0);
    bool keeps = fs.f_type == 0x01021994 || fs.f_type == 0x794c7630; /* tmpfs and overlays keep their pages */
    int left = 0, beside = 0;                                        /* the kernel drops large folios only as a whole */
    for (int i = 0; i < PAGES; i++) *(i > 100 && i < 8100 ? &left : &beside) += in[i] & 1;
    assert_true(beside == PAGES - 7999 && (keeps || left < 4000));
    file_map_prefetch(m.data + 120 * PAGE, 3);
    file_map_drop(data, PAGES * PAGE); /* no mapping: nothing happens */
    assert_memory_equal(m.data, data, PAGES * PAGE);
    assert_int_equal(file_map_copy(data, m.data + PAGE, PAGE, &e), 0);
    assert_memory_equal(m.data + PAGE, data, PAGE);
    assert_int_equal(file_write(path, "another", 7, &e), 0); /* in its place */
    assert_int_equal(file_map_copy(data, m.data, PAGE, &e), ERR_RUNTIME);
    assert_non_null(strstr(e.text, "Stale"));
    assert_memory_equal(m.data + PAGE, data, PAGE);
    file_unmap(&m);
    unlink(path);
    free(data);
}

/* --- fair queue ------------------------------------------------------------------------------- */

static bool not_three(const void *ctx, const struct fair_entry *t) { return t->client != 3; }

/* One client with many requests, others with few: served in rounds, each client in order. A client that leaves is not
 * served; one that may not run is skipped.
 */
static void clients_take_turns(void **st) {
    static const uint64_t clients[] = {1, 1, 1, 1, 1, 2, 3, 3, 1}, want[] = {0, 5, 6, 1, 7, 2, 3, 8};
    struct fair_entry t[9];
    struct fair_queue f = {0};
    assert_null(fair_queue_next(&f, NULL, NULL));
    for (uint64_t i = 0; i < 9; i++) fair_queue_push(&f, &t[i], clients[i], i + 1);
    fair_queue_remove(&f, &t[4]);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct fair_entry *next = fair_queue_next(&f, NULL, NULL);
        if (next - t != (ptrdiff_t)want[i]) fail_msg("the %zu-th is %td", i, next - t);
        if (next->client == 3) {
            const struct fair_entry *other = fair_queue_next(&f, not_three, NULL);
            assert_true(other && other->client != 3);
        }
        fair_queue_serve(&f, next);
    }
    assert_null(f.first);
}

/* Whatever clients do: while one waits, no other is served more than twice; order within a client is kept. */
static void no_client_is_served_thrice_while_another_waits(void **st) {
    enum { CLIENTS = 7, EACH = 40, N = CLIENTS * EACH };
    static struct fair_entry t[N];
    uint64_t seed = 1, last[CLIENTS] = {0};
    /* since [waiting][served] its wait began */
    int used[N] = {0}, waits[CLIENTS] = {0}, since[CLIENTS][CLIENTS] = {{0}}, most = 0, served = 0;
    struct fair_queue f = {0};
    for (uint64_t order = 1; served < 20000; order++) {
        int c = (int)((seed = seed * 6364136223846793005u + 1442695040888963407u) >> 33) % (2 * CLIENTS), k = 0;
        c = c < CLIENTS ? c : 0; /* the first client asks for eight times as much */
        while (k < EACH && used[c * EACH + k]) k++;
        if (k < EACH) {
            if (!waits[c]++) memset(since[c], 0, sizeof since[c]);
            used[c * EACH + k] = 1;
            fair_queue_push(&f, &t[c * EACH + k], (uint64_t)c, order);
        }
        if (order % 2) continue;
        struct fair_entry *x = fair_queue_next(&f, NULL, NULL);
        if (!x) continue;
        fair_queue_serve(&f, x);
        served++;
        c = (int)x->client;
        assert_true(x->order > last[c]);
        last[c] = x->order;
        used[x - t] = 0, waits[c]--;
        for (int i = 0; i < CLIENTS; i++)
            if (waits[i] && i != c && ++since[i][c] > most) most = since[i][c];
        memset(since[c], 0, sizeof since[c]);
    }
    assert_true(waits[0] > EACH / 2); /* this client always had more requests */
    assert_int_equal(most, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(e4m3_is_exact),
                                       cmocka_unit_test(halves_round_trip),
                                       cmocka_unit_test(views_keep_their_scale_blocks),
                                       cmocka_unit_test(json_reads),
                                       cmocka_unit_test(json_keeps_digits),
                                       cmocka_unit_test(json_halves),
                                       cmocka_unit_test(json_refuses),
                                       cmocka_unit_test(json_survives_no_memory),
                                       cmocka_unit_test(write_is_old_or_new),
                                       cmocka_unit_test(outputs_by_one_rule),
                                       cmocka_unit_test(no_space_for_a_map),
                                       cmocka_unit_test(file_of_a_mapped_address_is_found),
                                       cmocka_unit_test(maps_can_be_dropped),
                                       cmocka_unit_test(errors_hold_no_escapes),
                                       cmocka_unit_test(clients_take_turns),
                                       cmocka_unit_test(no_client_is_served_thrice_while_another_waits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
