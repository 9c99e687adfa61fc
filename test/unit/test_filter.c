/* The output filter: what a terminal may get of a model's output, for every way of splitting it. */
#include "cli/terminal/columns.h"
#include "cli/terminal/sanitize.h"
#include "test/unit/unit.h"

static const struct {
    const char *in, *out;
} rows[] = {
    {"plain\ttext\n", "plain\ttext\n"},
    {"\x1B[31mred", "\xE2\x90\x9B[31mred"},
    {"\x1B]0;title\x07", "\xE2\x90\x9B]0;title\xE2\x90\x87"},
    {"a\bb\x7F", "a\xE2\x90\x88"
                 "b\xE2\x90\xA1"},
    {"one\r\ntwo\rthree\r", "one\ntwo\xE2\x90\x8Dthree\xE2\x90\x8D"},
    {"\r\r\n", "\xE2\x90\x8D\n"},
    {"x\xC2\x9B"
     "31m",
     "x\xEF\xBF\xBD"
     "31m"},
    {"\x9B"
     "1A",
     "\xEF\xBF\xBD"
     "1A"},
    {"\xE2\x80\xAEnever", "\xEF\xBF\xBDnever"},
    {"\xC3\xA4\xE6\x97\xA5\xF0\x9F\x94\xA5", "\xC3\xA4\xE6\x97\xA5\xF0\x9F\x94\xA5"},
    {"\xE6\x97x", "\xEF\xBF\xBDx"},
    {"\xE0\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    {"\xF4\x90\x80\x80", "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD"},
    {"end\xF0\x9F", "end\xEF\xBF\xBD"},
};

static void test_every_cut(void **state) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = strlen(rows[i].in);
        for (size_t step = 1; step <= n; step++) {
            struct sanitizer f = {0};
            struct buf out = {0};
            for (size_t at = 0; at < n; at += step)
                sanitize_add(&f, rows[i].in + at, at + step < n ? step : n - at, &out);
            sanitize_flush(&f, &out);
            assert_string_equal(out.data, rows[i].out);
            buf_free(&out);
        }
    }
}

static void test_nul(void **state) {
    struct sanitizer f = {0};
    struct buf out = {0};
    sanitize_add(&f, "a\0b", 3, &out);
    assert_string_equal(out.data, "a\xE2\x90\x80"
                                  "b");
    buf_free(&out);
}

static void test_width(void **state) {
    assert_int_equal(columns_of_text("ab\xE6\x97\xA5"
                                     "e\xCC\x81",
                                     8),
                     5);
    assert_int_equal(columns_fit("a\xE6\x97\xA5z", 5, 2), 1);
    assert_int_equal(columns_fit("a\xE6\x97\xA5z", 5, 3), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_cut), cmocka_unit_test(test_nul),
                                       cmocka_unit_test(test_width)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
