/* Layout of an answer on a terminal: rows of tables and words are where they should be, however the text is split. */
#include "base/fault.h"
#include "base/mem.h"
#include "cli/terminal/markdown.h"
#include "test/unit/unit.h"

static const struct {
    int cols;
    bool color;
    const char *in, *out;
} rows[] = {
    /* words */
    {20, false, "one two three four five six", "one two three four\nfive six"},
    {20, false, "a line\n\nand  two  blanks   \n", "a line\n\nand  two  blanks\n"},
    {10, false, "abcdefghijklmnopqrstuvw x", "abcdefghi\njklmnopqr\nstuvw x"},
    {0, false, "one two three four five six", "one two three four five six"},
    {10, false, "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE6\x9C\xAC",
     "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\n\xE6\x9C\xAC"},
    /* no row begins with the full stop */
    {10, false, "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\xE6\x97\xA5\xE3\x80\x82\xE6\x9C\xAC",
     "\xE6\x97\xA5\xE6\x9C\xAC\xE8\xAA\x9E\n\xE6\x97\xA5\xE3\x80\x82\xE6\x9C\xAC"},
    {10, false,
     "abcd " /* a family is one character of two columns */
     "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7"
     " e f",
     "abcd "
     "\xF0\x9F\x91\xA8\xE2\x80\x8D\xF0\x9F\x91\xA9\xE2\x80\x8D\xF0\x9F\x91\xA7"
     " e\nf"},
    {20, false, "see https://example.org/a/very/long/path now", "see\nhttps://example.org/a/very/long/path\nnow"},
    /* lines */
    {20, false, "- an item that is longer\n- b", "- an item that is\n  longer\n- b"},
    {20, false, "12. an item that is longer", "12. an item that is\n    longer"},
    {20, false, "> a quote that is longer", "> a quote that is\n  longer"},
    {20, false, "```\ncode that is not broken at all\n```\nwords that are broken",
     "```\ncode that is not broken at all\n```\nwords that are\nbroken"},
    {20, false, "```x``` is no block and so it is broken", "```x``` is no block\nand so it is broken"},
    /* tables */
    {40, false, "|a|longer|\n|-|-:|\n|something|1|\n",
     "| a                 |   longer |\n| ----------------- | -------: |\n| something         |        1 |\n"},
    {20, false, "|a|longer|\n|-|-|\n|something wide|1|\n", "|a|longer|\n|-|-|\n|something wide|1|\n"},
    {40, false, "|a|b|\n|-|:-:|\n|1|2|\n", "| a     |   b   |\n| ----- | :---: |\n| 1     |   2   |\n"},
    {40, false, "|no table\nat all", "|no table\nat all"},
    {40, false, "|no table\n|a|b|\n|-|-|\n|1|2|\nend", "|no table\n|a|b|\n|-|-|\n|1|2|\nend"},
    /* later rows: within the columns to spare; in a wider column; and where there is no room for it */
    {40, false, "|a|b|\n|-|-|\n|1|2|\n|five5|2|\n|sixteen letters.|2|\n|7|8|\nend",
     "| a     | b     |\n| ----- | ----- |\n| 1     | 2     |\n| five5 | 2     |\n| sixteen letters. | 2     |\n"
     "| 7                | 8     |\nend"},
    {20, false, "|a|b|\n|-|-|\n|1|2|\n|eighteen letters..|2|\n|7|8|\nend",
     "| a     | b     |\n| ----- | ----- |\n| 1     | 2     |\n|eighteen\n  letters..|2|\n|7|8|\nend"},
    /* a combining mark after a blank is a letter, also where lines are held back until their kind is known */
    {40, false, "|a|b|\n|-|-|\n| \xCC\x8Cx|1|\n", "| a     | b     |\n| ----- | ----- |\n| \xCC\x8Cx     | 1     |\n"},
    {20, false, "| \xCC\x8Cx|longer|\n|-|-|\n|something wide|1|\n", "| \xCC\x8Cx|longer|\n|-|-|\n|something wide|1|\n"},
    {20, false, "  \xCC\x8Cx y", "  \xCC\x8Cx y"},
    {20, false, "\t\xCC\x8Cx y", "        \xCC\x8Cx y"},
    /* looks */
    {40, true, "# Head", "\033[0;1;35m#\033[0m \033[0;1;35mHead\033[0m"},
    {40, true, "a **b c** d", "a \033[0;1m**b\033[0m \033[0;1mc**\033[0m d"},
    {40, true, "2 * 3 * 4, a_b_c", "2 * 3 * 4, a_b_c"},
    {40, true, "*x* `y` \\*z*", "\033[0;3m*x*\033[0m \033[0;36m`y`\033[0m \\*z*"},
    {40, true, "- x", "\033[0;33m-\033[0m x"},
    {40, true, "```\n*x*\n```", "\033[0;36m```\033[0m\n\033[0;36m*x*\033[0m\n\033[0;36m```\033[0m"},
    {40, true, "http://a.b", "\033[0;4mhttp://a.b\033[0m"},
    {40, true, "x\033[31my", "x\xE2\x90\x9B[31my"},
};

static void test_every_cut(void **state) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = strlen(rows[i].in);
        for (size_t step = 1; step <= n; step++) {
            struct markdown s;
            struct buf out = {0};
            markdown_init(&s, rows[i].cols, rows[i].color);
            for (size_t at = 0; at < n; at += step)
                markdown_add(&s, rows[i].in + at, at + step < n ? step : n - at, &out);
            markdown_flush(&s, &out);
            assert_string_equal(out.data, rows[i].out);
            buf_free(&out);
            markdown_free(&s);
        }
    }
}

/* A row is printed when the next one begins, the head with the first. */
static void test_rows_come(void **state) {
    static const char *const in[] = {"|a|b|\n|-|-|\n", "|1|2|\n", "|3|", "4|\n", "|5|6|"},
                             *const out[] = {"", "| a     | b     |\n| ----- | ----- |\n| 1     | 2     |\n", "",
                                             "| 3     | 4     |\n", ""};
    struct markdown s;
    markdown_init(&s, 40, false);
    for (size_t i = 0; i < sizeof in / sizeof *in; i++) {
        struct buf b = {0};
        markdown_add(&s, in[i], strlen(in[i]), &b);
        assert_string_equal(b.data ? b.data : "", out[i]);
        buf_free(&b);
    }
    markdown_free(&s);
}

static void test_plain(void **state) {
    struct markdown s;
    struct buf out = {0};
    markdown_init(&s, 10, true);
    s.plain = true;
    markdown_add(&s, "**one** two  three \n|a|", 23, &out);
    markdown_flush(&s, &out);
    assert_string_equal(out.data, "**one** two  three \n|a|");
    buf_free(&out);
    markdown_free(&s);
}

/* No letter is lost silently: whichever allocation fails, the output says so or is complete. */
static void test_failing_allocations(void **state) {
    static const char text[] = "some words\n- an item\n|a|b|\n|-|-|\n|c|d|\n```\ncode\n```\nhttps://example.org";
    int failed = 0;
    for (int nth = 1; nth < 60; nth++) {
        struct markdown s;
        struct buf out = {0}, right = {0};
        markdown_init(&s, 40, true);
        markdown_add(&s, text, sizeof text - 1, &right);
        markdown_flush(&s, &right);
        markdown_free(&s);
        markdown_init(&s, 40, true);
        fault_set(FAULT_ALLOC, nth, false, false);
        markdown_add(&s, text, sizeof text - 1, &out);
        markdown_flush(&s, &out);
        fault_set(FAULT_ALLOC, 0, false, false);
        failed += out.failed;
        if (!out.failed) assert_string_equal(out.data, right.data);
        buf_free(&out);
        buf_free(&right);
        markdown_free(&s);
    }
    assert_true(failed > 5);
}

/* The position of the cursor, for callers that draw below it. */
static void test_column(void **state) {
    struct markdown s;
    struct buf out = {0};
    markdown_init(&s, 20, true);
    markdown_add(&s, "one two three four fi", 21, &out);
    assert_string_equal(out.data, "one two three four");
    assert_int_equal(s.col, 18);
    markdown_resize(&s, 10); /* now it may be anywhere */
    markdown_add(&s, "ve ", 3, &out);
    assert_string_equal(out.data, "one two three four\nfive");
    assert_int_equal(s.col, 4);
    buf_free(&out);
    markdown_free(&s);
}

/* Lays out a text whose first n bytes are on the screen already. */
static char *resume(const char *text, size_t n) {
    struct markdown s;
    struct buf out = {0};
    markdown_init(&s, 0, true);
    markdown_resume(&s, text, n);
    markdown_add(&s, text + n, strlen(text + n), &out);
    markdown_flush(&s, &out);
    markdown_free(&s);
    return out.data;
}

/* A text that was cut at the end of a line goes on as it would have without the cut. */
static void test_resumed_lines(void **state) {
    static const char text[] = "Intro with `code`:\n\n```c\nint a; // one\n\nreturn \"b\";\n```\n# Title\n- an "
                               "**item**\n  1. another\n> quoted\n~~~\n```\n~~~\nend";
    char *whole = resume(text, 0);
    for (const char *at = text; (at = strchr(at, '\n')); at++) {
        char *rest = resume(text, (size_t)(at + 1 - text));
        const size_t n = strlen(whole), m = strlen(rest);
        assert_true(m < n);
        assert_string_equal(whole + n - m, rest);
        mem_free(rest);
    }
    mem_free(whole);
}

static void test_resumed(void **state) {
    static const struct {
        const char *shown, *text, *out;
    } c[] = {
        {"```\nint", " x;\n```\nafter", " \033[0;36mx;\033[0m\n\033[0;36m```\033[0m\nafter"},
        {"one **two", " three** four", " \033[0;1mthree**\033[0m four"},
        {"The cap", "ital", "ital"},
        {"|a|b|\n|-|-|\n|ccc|d|\n|e|", "f|\n|g|hh|",
         "\033[0;1m| a     | b     |\033[0m\n| ----- | ----- |\n| e     | f     |\n| g     | hh    |"},
        {"|a|b|\n|-|-|\n|ccc|d|\n", "|g|hh|\nend",
         "\033[0;1m| a     | b       |\033[0m\n| ----- | ------- |\n| g     | hh      |\nend"},
        {"|a|b|\n|-|", "-|\n|c|d|", "\033[0;1m| a | b |\033[0m\n| - | - |\n| c | d |"},
        {"|a|", "b|\n|-|-|\n|c|d|", "\033[0;1m| a | b |\033[0m\n| - | - |\n| c | d |"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char text[200];
        snprintf(text, sizeof text, "%s%s", c[i].shown, c[i].text);
        char *out = resume(text, strlen(c[i].shown));
        assert_string_equal(out, c[i].out);
        mem_free(out);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_cut), cmocka_unit_test(test_rows_come),
                                       cmocka_unit_test(test_plain),     cmocka_unit_test(test_failing_allocations),
                                       cmocka_unit_test(test_column),    cmocka_unit_test(test_resumed_lines),
                                       cmocka_unit_test(test_resumed)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
