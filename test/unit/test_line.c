/* The line editor, byte by byte: its text, and the screen of a terminal after each redraw. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/terminal/columns.h"
#include "cli/terminal/line.h"
#include "test/unit/unit.h"

enum { ROWS = 10, COLS = 20 };
struct screen {
    char cell[ROWS][COLS + 1]; /* ASCII; another character is '?' and '_' for its second column */
    int r, c;
};

static void put(struct screen *s, char ch) {
    assert_true(s->c < COLS); /* the editor never relies on the terminal's wrapping */
    s->cell[s->r][s->c++] = ch;
}
static void show(struct screen *s, const struct buf *out) {
    for (size_t i = 0; i < out->len; i++) {
        unsigned char ch = (unsigned char)out->data[i];
        if (ch == '\r') s->c = 0;
        else if (ch == '\n') {
            if (++s->r == ROWS) {
                memmove(s->cell[0], s->cell[1], sizeof s->cell - sizeof s->cell[0]);
                memset(s->cell[--s->r], ' ', COLS);
            }
        } else if (ch == 0x1B) {
            char *end;
            long n = strtol(out->data + i + 2, &end, 10);
            assert_int_equal(out->data[i + 1], '[');
            if (end == out->data + i + 2) n = 1;
            if (*end == 'A') s->r -= (int)n;
            else if (*end == 'C') s->c += (int)n;
            else if (*end == 'J') {
                memset(s->cell[s->r] + s->c, ' ', (size_t)(COLS - s->c));
                for (int r = s->r + 1; r < ROWS; r++) memset(s->cell[r], ' ', COLS);
            } else assert_int_equal(*end, 'm');
            assert_true(s->r >= 0 && s->c <= COLS);
            i = (size_t)(end - out->data);
        } else if (ch < 0x80) put(s, (char)ch);
        else if (ch >= 0xC0) {
            put(s, '?');
            if (ch >= 0xE3 && ch < 0xEF) put(s, '_');
        }
    }
}

struct editor {
    struct line line;
    struct history history;
    struct screen screen;
};
static void flush(struct editor *e) {
    show(&e->screen, &e->line.out);
    e->line.out.len = 0;
}
static struct editor *begin(void) {
    struct editor *e = calloc(1, sizeof *e);
    for (int r = 0; r < ROWS; r++) memset(e->screen.cell[r], ' ', COLS);
    line_init(&e->line, &e->history);
    e->line.rows = ROWS;
    e->line.cols = COLS;
    line_begin(&e->line, "> ");
    flush(e);
    return e;
}
static void end(struct editor *e) {
    line_free(&e->line);
    history_close(&e->history);
    free(e);
}
static enum line_result type(struct editor *e, const char *keys) {
    size_t used, n = strlen(keys);
    enum line_result r = LINE_MORE;
    while (n && r == LINE_MORE) {
        r = line_feed(&e->line, keys, n, &used);
        keys += used;
        n -= used;
    }
    assert_int_equal(n, 0);
    flush(e);
    return r;
}
static void assert_row(const struct editor *e, int r, const char *want) {
    char got[COLS + 1];
    memcpy(got, e->screen.cell[r], COLS);
    got[COLS] = 0;
    for (int i = COLS; i && got[i - 1] == ' ';) got[--i] = 0;
    assert_string_equal(got, want);
}

static void test_keys(void **state) {
    static const struct {
        const char *keys, *text;
        size_t cursor;
    } rows[] = {{"abc", "abc", 3},
                {"abc\x02x", "abxc", 3},
                {"abc\x01x", "xabc", 1},
                {"abc\x01\x04", "bc", 0},
                {"abc\x7F", "ab", 2},
                {"one two\x17", "one ", 4},
                {"one two\x15", "", 0},
                {"one two\x01\x0B\x19\x19", "one twoone two", 14},
                {"ab\x14", "ba", 2},
                {"one two\x1B"
                 "b\x1B[D",
                 "one two", 3},
                {"one two\x1B[1;5D\x1B[3~", "one wo", 4},
                {"one two six\x1B[1;5D\x1B[1;5D\x1B[3;5~", "one  six", 4},
                {"abc\x1B[Hx\x1BOFy", "xabcy", 5},
                {"a\x1B[999;1Zb", "ab", 2},
                {"a\x1B\x1B[Db", "ba", 1},
                {"n\xC3\xA4\x7Fo", "no", 2},
                {"e\xCC\x81x\x02\x02y", "ye\xCC\x81x", 1},
                {"\xC3(\xFFok", "(ok", 3},
                {"\xED\xA0\x80z", "z", 1},
                {"a\nb\x01x", "a\nxb", 3},
                {"\x1B[200~a\rb\x1B[31m\x1B[201~c", "a\nb[31mc", 8},
                {"\x1B[200~\x1B[201\x1B[201~!", "[201!", 5},
                {"one\\\rtwo", "one\ntwo", 7}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct editor *e = begin();
        assert_int_equal(type(e, rows[i].keys), LINE_MORE);
        assert_string_equal(e->line.text.data, rows[i].text);
        assert_int_equal(e->line.cursor, rows[i].cursor);
        end(e);
    }
}

/* Keys that move or erase to an end work on the rows of the text. */
static void test_keys_in_rows(void **state) {
    static const struct {
        const char *keys, *text;
        size_t cursor;
    } rows[] = {{"a\nbc\x15", "a\n", 2},           {"a\nbc\x15\x19\x19", "a\nbcbc", 6},
                {"a\nbc\x02\x15", "a\nc", 2},      {"ab\ncd\x01\x02\x01\x0B", "\ncd", 0},
                {"ab\ncd\x01\x02\x0B", "abcd", 2}, {"ab\ncd\x01\x02\x01\x05x", "abx\ncd", 3},
                {"ab\ncd\x1B<x", "xab\ncd", 1},    {"ab\ncd\x1B<\x1B>x", "ab\ncdx", 6},
                {"ab\nc d\x17\x17", "ab\n", 3},    {"ab\n\x7F", "ab", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct editor *e = begin();
        assert_int_equal(type(e, rows[i].keys), LINE_MORE);
        assert_string_equal(e->line.text.data, rows[i].text);
        assert_int_equal(e->line.cursor, rows[i].cursor);
        end(e);
    }
}

static void test_results(void **state) {
    static const struct {
        const char *keys;
        enum line_result result;
        const char *text;
    } rows[] = {{"a\r", LINE_DONE, "a"},
                {"\x04", LINE_EOF, ""},
                {"a\x07", LINE_EDITOR, "a"},
                {"\"\"\"\ra\"\"\"\r", LINE_DONE, "\"\"\"\na\"\"\""},
                {"\"\"\"\r", LINE_MORE, "\"\"\"\n"},
                {"a\\\\\r", LINE_DONE, "a\\\\"},
                {"a\x1B\rb\r", LINE_DONE, "a\nb"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct editor *e = begin();
        assert_int_equal(type(e, rows[i].keys), rows[i].result);
        assert_string_equal(e->line.text.data, rows[i].text);
        end(e);
    }
}

static void test_screen(void **state) {
    struct editor *e = begin();
    assert_row(e, 0, ">");
    type(e, "abcdefghijklmnopqrstuvwx");
    assert_row(e, 0, "> abcdefghijklmnopqr");
    assert_row(e, 1, "stuvwx");
    assert_int_equal(e->screen.c, 6);
    type(e, "\x01");
    assert_int_equal(e->screen.r, 0);
    assert_int_equal(e->screen.c, 2);
    type(e, "\x0B"
            "12345678901234567\xE6\x97\xA5"); /* a wide character that does not fit goes to the next row */
    assert_row(e, 0, "> 12345678901234567");
    assert_row(e, 1, "?_");
    type(e, "\x15"
            "a\nb\n");
    assert_row(e, 0, "> a");
    assert_row(e, 1, "  b");
    assert_int_equal(e->screen.r, 2);
    end(e);
}

/* A full row: the cursor after it is on the next row. */
static void test_edge(void **state) {
    struct editor *e = begin();
    type(e, "123456789012345678");
    assert_row(e, 0, "> 123456789012345678");
    assert_int_equal(e->screen.r, 1);
    assert_int_equal(e->screen.c, 0);
    type(e, "\x7F");
    assert_int_equal(e->screen.r, 0);
    assert_int_equal(e->screen.c, 19);
    end(e);
}

static void test_taller_than_the_screen(void **state) {
    struct editor *e = begin();
    char keys[3] = "0\n";
    for (int i = 0; i < 26; i++) {
        keys[0] = (char)('a' + i);
        type(e, keys);
    }
    assert_row(e, ROWS - 3, "  z");
    for (int i = 0; i < 26; i++) type(e, "\x1B[A");
    assert_row(e, 0, "> a");
    end(e);
}

static void test_output_above(void **state) {
    struct editor *e = begin();
    struct buf text = {.data = "note\r\n", .len = 6};
    type(e, "abcdefghijklmnopqrstuvwx");
    line_status(&e->line, "2: reading 40 %");
    flush(e);
    assert_row(e, 2, "2: reading 40 %");
    line_hide(&e->line);
    flush(e);
    show(&e->screen, &text);
    line_show(&e->line);
    flush(e);
    assert_row(e, 0, "note");
    assert_row(e, 1, "> abcdefghijklmnopqr");
    assert_row(e, 2, "stuvwx");
    assert_row(e, 3, "2: reading 40 %");
    assert_int_equal(e->screen.r, 2);
    end(e);
}

/* Of a file above the limit, the last whole lines are read, and the rest is dropped from it. */
static void test_long_history(void **state) {
    enum { LINE = 1 << 20, LINES = HISTORY_MAX_BYTES / LINE + 3 };
    char dir[] = "/tmp/hearth-history-XXXXXX", path[64];
    char *line = malloc(LINE);
    struct history h;
    struct stat st;
    assert_true(line && mkdtemp(dir));
    setenv("XDG_STATE_HOME", dir, 1);
    snprintf(path, sizeof path, "%s/hearth", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/hearth/history", dir);
    FILE *f = fopen(path, "w");
    memset(line, 'x', LINE);
    line[LINE - 1] = '\n';
    for (int i = 0; f && i < LINES; i++) fwrite(line, LINE, 1, f);
    assert_true(f && fputs("the last one\n", f) > 0 && !fclose(f));
    for (int k = 0; k < 2; k++) {
        history_open(&h, true);
        assert_int_equal(h.n, HISTORY_MAX_BYTES / LINE);
        assert_string_equal(h.v[h.n - 1], "the last one");
        assert_int_equal(strlen(h.v[0]), LINE - 1);
        history_close(&h);
        assert_true(!stat(path, &st) && st.st_size <= HISTORY_MAX_BYTES);
    }
    /* after a power loss: zeros, or half a line */
    static const char damaged[][10] = {"a\n\0\0b\nc\n", "a\nc\nhalf"};
    for (size_t k = 0; k < 2; k++) {
        f = fopen(path, "w");
        assert_true(f && fwrite(damaged[k], k ? 8 : 9, 1, f) == 1 && !fclose(f));
        history_open(&h, true);
        assert_int_equal(h.n, 2);
        history_add(&h, "d", 1);
        history_close(&h);
        history_open(&h, true);
        assert_int_equal(h.n, 3);
        for (size_t i = 0; i < 3; i++) assert_string_equal(h.v[i], ((const char *[]){"a", "c", "d"})[i]);
        history_close(&h);
    }
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/hearth", dir);
    assert_int_equal(rmdir(path) | rmdir(dir), 0);
    unsetenv("XDG_STATE_HOME");
    free(line);
}

static void test_history(void **state) {
    struct editor *e = begin();
    history_add(&e->history, "one", 3);
    history_add(&e->history, "two\nlines", 9);
    history_add(&e->history, "two\nlines", 9);
    assert_int_equal(e->history.n, 2);
    line_begin(&e->line, "> ");
    type(e, "draft\x1B[A");
    assert_string_equal(e->line.text.data, "two\nlines");
    type(e, "\x1B[A\x1B[A");
    assert_string_equal(e->line.text.data, "one");
    type(e, "\x1B[B\x1B[B\x1B[B");
    assert_string_equal(e->line.text.data, "draft");
    type(e, "\x12ne");
    assert_string_equal(e->line.text.data, "two\nlines");
    type(e, "\x12");
    assert_string_equal(e->line.text.data, "one");
    type(e, "\x07");
    assert_string_equal(e->line.text.data, "draft");
    end(e);
}

/* A search takes whole characters, and text that it does not find is not left in the line. */
static void test_search(void **state) {
    struct editor *e = begin();
    history_add(&e->history, "caf\xC3\xA9 au lait", 13);
    line_begin(&e->line, "> ");
    type(e, "dr\x12\xA9");
    assert_string_equal(e->line.text.data, "dr");
    type(e, "\xC3\xA9");
    assert_string_equal(e->line.text.data, "caf\xC3\xA9 au lait");
    assert_int_equal(e->line.cursor, 3);
    type(e, "q");
    assert_string_equal(e->line.text.data, "dr");
    assert_row(e, 1, "search, nothing fou");
    type(e, "\x7F");
    assert_string_equal(e->line.text.data, "caf\xC3\xA9 au lait");
    type(e, "\x12");
    assert_string_equal(e->line.text.data, "caf\xC3\xA9 au lait");
    type(e, "zz");
    assert_int_equal(type(e, "\r"), LINE_DONE);
    assert_string_equal(e->line.text.data, "dr");
    end(e);
}

/* Characters that would change the text direction, or are controls to some terminals, show as one replacement
 * character. */
static void test_harmful(void **state) {
    static const char *const all[] = {"\xE2\x80\xAE", "\xE2\x80\xAA", "\xE2\x81\xA6", "\xE2\x81\xA9", "\xC2\x9B"};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct editor *e = begin();
        size_t used;
        line_feed(&e->line, all[i], strlen(all[i]), &used);
        line_feed(&e->line, "x", 1, &used);
        assert_null(memmem(e->line.out.data, e->line.out.len, all[i], strlen(all[i])));
        assert_non_null(memmem(e->line.out.data, e->line.out.len, "\xEF\xBF\xBDx", 4));
        assert_int_equal(e->line.cur_col, 4);
        assert_memory_equal(e->line.text.data, all[i], strlen(all[i]));
        end(e);
    }
}

/* Columns and keys follow what users see as one character. */
static void test_clusters(void **state) {
    static const struct {
        const char *text;
        int columns;
    } rows[] = {{"\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466", 2},
                {"\U0001F1E9\U0001F1EA", 2},
                {"\u2764\uFE0F", 2},
                {"\U0001F44D\U0001F3FD", 2},
                {"e\u0301\u0302", 1},
                {"\u1112\u1161\u11AB", 2},
                {"\u65E5", 2}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct editor *e = begin();
        size_t used;
        line_feed(&e->line, rows[i].text, strlen(rows[i].text), &used);
        assert_int_equal(e->line.cur_col, 2 + rows[i].columns);
        assert_int_equal(columns_of_text(rows[i].text, strlen(rows[i].text)), rows[i].columns);
        assert_int_equal(columns_fit(rows[i].text, strlen(rows[i].text), rows[i].columns - 1), 0);
        line_feed(&e->line, "\x7F", 1, &used);
        assert_int_equal(e->line.text.len, 0);
        end(e);
    }
}

static void offer(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *out) {
    buf_str(out, "/save\n/sessions\n/set\n");
}
static void one(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *out) { buf_str(out, "/help\n"); }
static void test_completion(void **state) {
    struct editor *e = begin();
    e->line.complete = offer;
    type(e, "/\t");
    assert_string_equal(e->line.text.data, "/s");
    type(e, "\t");
    assert_row(e, 1, "/save  /sessions");
    assert_row(e, 2, "/set");
    assert_int_equal(e->screen.r, 0);
    assert_int_equal(e->screen.c, 4);
    type(e, "x");
    assert_row(e, 1, "");
    e->line.complete = one;
    type(e, "\x15/\t");
    assert_string_equal(e->line.text.data, "/help ");
    end(e);
}

static void offer_many(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *out) {
    *from = 6;
    for (int i = 10; i < 35; i++) buf_fmt(out, "papers/p%d\n", i);
}
/* A long list fills half of the screen, without the directory, and says how many are left out. */
static void test_many_candidates(void **state) {
    struct editor *e = begin();
    e->line.complete = offer_many;
    type(e, "/read papers/p\t");
    assert_row(e, 1, "p10  p11  p12  p13");
    assert_row(e, 4, "p22  p23  p24  p25");
    assert_row(e, 5, "and 9 more");
    assert_row(e, 6, "");
    assert_int_equal(e->screen.r, 0);
    end(e);
}

/* Keys move over the token of a folded paste and delete it as one character. */
static void test_folded_paste(void **state) {
    static const char rows[] = "\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n\n";
    static const struct {
        const char *keys, *text;
    } cases[] = {{"\x7F", "ab  c"},
                 {"\x1B[D\x1B[3~", "ab  c"},
                 {"\x17", "ab  c"},
                 {"\x1B\x7F", "ab  c"},
                 {"\x1B[D\x1B[DX", "abX [paste 1: 22 lines, 21 B] c"},
                 {"\x1B[D\x1B[CX", "ab [paste 1: 22 lines, 21 B]X c"},
                 {"\x1B[1;5DX", "ab X[paste 1: 22 lines, 21 B] c"},
                 {"\x1B[D\x1B[1;5CX", "ab [paste 1: 22 lines, 21 B]X c"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct editor *e = begin();
        struct buf full = {0};
        type(e, "ab  c\x1B[D\x1B[D\x1B[200~");
        type(e, rows);
        type(e, "\x1B[201~");
        assert_string_equal(e->line.text.data, "ab [paste 1: 22 lines, 21 B] c");
        type(e, cases[i].keys);
        assert_string_equal(e->line.text.data, cases[i].text);
        line_paste_expand(&e->line, &e->line.text, &full);
        assert_int_equal(full.len, strchr(cases[i].keys, 'X') ? 5 + 21 + 1 : 5);
        buf_free(&full);
        end(e);
    }
}

/* A long line fills as many rows as many lines do. */
static void test_folded_line(void **state) {
    for (int n = 0; n < 2; n++) {
        struct editor *e = begin();
        type(e, "\x1B[200~");
        for (int i = 0; i < 39 + 2 * n; i++) type(e, "0123456789");
        type(e, "\x1B[201~");
        if (n) assert_string_equal(e->line.text.data, "[paste 1: 1 line, 410 B]");
        else assert_int_equal(e->line.text.len, 390);
        end(e);
    }
}

static void test_resize(void **state) {
    struct editor *e = begin();
    type(e, "abcdefghijklmn");
    line_resize(&e->line, ROWS, 10);
    assert_int_equal(e->line.cur_row, 1);
    assert_int_equal(e->line.cur_col, 6);
    end(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),         cmocka_unit_test(test_keys_in_rows),
        cmocka_unit_test(test_results),      cmocka_unit_test(test_screen),
        cmocka_unit_test(test_edge),         cmocka_unit_test(test_taller_than_the_screen),
        cmocka_unit_test(test_output_above), cmocka_unit_test(test_history),
        cmocka_unit_test(test_long_history), cmocka_unit_test(test_search),
        cmocka_unit_test(test_harmful),      cmocka_unit_test(test_clusters),
        cmocka_unit_test(test_completion),   cmocka_unit_test(test_many_candidates),
        cmocka_unit_test(test_folded_paste), cmocka_unit_test(test_folded_line),
        cmocka_unit_test(test_resize)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
