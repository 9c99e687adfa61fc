/* The effort of compiling grammars: large ones that clients send take little, hostile ones end at a limit that the
 * error names, and the guard stops any. */
#include "test/unit/unit.h"

#include "base/buf.h"
#include "tokenizer/grammar/automaton.h"
#include "tokenizer/grammar/source.h"

enum { NEVER_STOPS = 1 << 30 };

struct counter {
    int n, most; /* calls of the guard: millions of steps */
};
static bool count(void *ctx) {
    struct counter *c = ctx;
    return ++c->n < c->most;
}

/* Compiles the text, which it frees. Returns the code; *millions: the steps that it took. */
static int compile(enum source_kind kind, struct buf *text, int most, int *millions, struct source_grammars *g,
                   struct error *e) {
    struct counter c = {0, most};
    const struct effort_guard guard = {count, &c};
    assert_false(text->failed);
    int rc = source_compile_all(&(struct grammar_source){kind, text->data, text->len}, &guard, g, e);
    buf_free(text);
    *millions = c.n;
    return rc;
}

static bool accepts(const struct grammar *g, const char *text) {
    struct automaton *a;
    assert_int_equal(automaton_open(&a, g, NULL), 0);
    const bool yes = automaton_is_complete(a, automaton_run(a, automaton_start(a), text, strlen(text)));
    struct error e = {0};
    if (automaton_failure(a, &e)) fail_msg("%s: %s", text, e.text);
    automaton_close(&a);
    return yes;
}

/* Appends n items, with their numbers, between two texts. */
static void put_list(struct buf *b, const char *before, const char *first, const char *last, int n, const char *after) {
    buf_str(b, before);
    for (int i = 0; i < n; i++) buf_fmt(b, "%s%s%d%s", i ? ", " : "", first, i, last);
    buf_str(b, after);
}

/* What clients send, and larger: well below a tenth of the limit, and not more than in proportion to the size. */
static void test_large(void **state) {
    static const struct {
        enum source_kind kind;
        const char *before, *first, *last, *after;
        int n, millions;
        const char *good, *bad;
    } cases[] = {
        {SOURCE_SCHEMA, "{\"enum\": [", "\"value-", "\"", "]}", 40000, 8, "\"value-39999\"", "\"value-40000\""},
        {SOURCE_SCHEMA, "{\"type\": \"string\", \"maxLength\": 11, \"enum\": [", "\"value-", "\"", "]}", 40000, 40,
         "\"value-31234\"", "\"value-\""},
        {SOURCE_SCHEMA, "{\"oneOf\": [", "{\"title\": \"x\", \"const\": \"value-", "\"}", "]}", 40000, 40,
         "\"value-12345\"", "\"value-\""},
        {SOURCE_SCHEMA, "{\"not\": {\"enum\": [\"x\"]}, \"anyOf\": [", "{\"const\": ", "}", "]}", 20000, 20, "19999",
         "20000"},
        {SOURCE_SCHEMA, "{\"oneOf\": [",
         "{\"type\": \"object\", \"required\": [\"kind\", \"x\"], \"additionalProperties\": false, \"properties\": "
         "{\"kind\": {\"const\": \"t",
         "\"}, \"x\": {\"type\": \"string\"}}}", "]}", 2000, 20, "{\"kind\":\"t1999\",\"x\":\"y\"}",
         "{\"kind\":\"t2000\",\"x\":\"y\"}"},
        {SOURCE_SCHEMA, "{\"type\": \"object\", \"additionalProperties\": {\"type\": \"null\"}, \"properties\": {",
         "\"name", "\": {\"type\": \"boolean\"}", "}}", 1000, 10, "{\"name7\":true,\"name\":null}",
         "{\"name999\":null}"},
        {SOURCE_SCHEMA, "{\"type\": \"string\", \"not\": {\"enum\": [", "\"v", "\"", "]}}", 3000, 20, "\"v3000\"",
         "\"v2999\""},
        {SOURCE_CHOICES, "[", "\"choice ", "\"", "]", 40000, 8, "choice 39999", "choice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = {0};
        struct source_grammars g;
        struct error e = {0};
        int millions;
        put_list(&b, cases[i].before, cases[i].first, cases[i].last, cases[i].n, cases[i].after);
        if (compile(cases[i].kind, &b, NEVER_STOPS, &millions, &g, &e)) fail_msg("case %zu: %s", i, e.text);
        if (millions > cases[i].millions) fail_msg("case %zu: %d million steps", i, millions);
        if (!accepts(g.whole, cases[i].good) || accepts(g.whole, cases[i].bad)) fail_msg("case %zu", i);
        source_free(&g);
    }
}

/* Two values in common, in another kind of branch, or after others that differ, are found as before. */
static void test_one_of(void **state) {
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"{\"oneOf\": [{\"const\": 1}, {\"enum\": [2, 3]}, {\"const\": 4}]}", NULL},
        {"{\"oneOf\": [{\"const\": 1}, {\"enum\": [2, 3]}, {\"const\": 3.0}]}", "branches 1 and 2"},
        {"{\"oneOf\": [{\"const\": \"a\"}, {\"type\": \"string\"}]}", "branches 0 and 1"},
        {"{\"oneOf\": [{\"const\": \"a\"}, {\"type\": \"integer\"}, {\"const\": \"b\"}]}", NULL},
        {"{\"oneOf\": [{\"type\": \"object\", \"required\": [\"k\"], \"properties\": {\"k\": {\"const\": 1}}}, "
         "{\"type\": \"object\", \"required\": [\"k\"], \"properties\": {\"k\": {\"enum\": [2, 1]}}}]}",
         "branches 0 and 1"},
        {"{\"oneOf\": [{\"type\": \"object\", \"required\": [\"k\"], \"properties\": {\"k\": {\"const\": 1}}}, "
         "{\"type\": \"object\", \"properties\": {\"k\": {\"const\": 2}}}]}",
         "branches 1 and 0"},
        {"{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"k\": {\"const\": 1}}}, "
         "{\"type\": \"object\", \"required\": [\"k\"], \"properties\": {\"k\": {\"const\": 2}}}]}",
         "branches 0 and 1"},
        {"{\"oneOf\": [{\"type\": \"object\", \"properties\": {\"k\": {\"const\": 1}}}, "
         "{\"type\": \"object\", \"properties\": {\"k\": {\"const\": 2}}}]}",
         "branches 0 and 1"},
        {"{\"oneOf\": [{\"required\": [\"k\"], \"properties\": {\"k\": {\"const\": 1}}, \"type\": [\"object\", "
         "\"string\"]}, {\"required\": [\"k\"], \"properties\": {\"k\": {\"const\": 2}}, \"type\": [\"object\", "
         "\"string\"]}]}",
         "branches 0 and 1"},
        {"{\"oneOf\": [{\"type\": \"null\"}, {\"type\": \"object\", \"required\": [\"k\"], \"properties\": {\"k\": "
         "{\"const\": 1}}}, {\"type\": \"object\", \"required\": [\"l\"], \"properties\": {\"l\": {\"const\": 1}}}]}",
         NULL}, /* members that are not listed are not generated */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g;
        struct error e = {0};
        const int rc =
            source_compile(&(struct grammar_source){SOURCE_SCHEMA, cases[i].text, strlen(cases[i].text)}, &g, &e);
        if ((rc != 0) != (cases[i].error != NULL) || (rc && !strstr(e.text, cases[i].error)))
            fail_msg("case %zu: %d %s", i, rc, e.text);
        grammar_free(&g);
    }
}

/* allOf of n anyOf of two objects each: 2^n combinations. */
static void put_combinations(struct buf *b, int n) {
    buf_str(b, "{\"allOf\": [");
    for (int i = 0; i < n; i++) {
        buf_str(b, i ? ", {\"anyOf\": [" : "{\"anyOf\": [");
        for (int k = 1; k <= 2; k++)
            buf_fmt(b, "%s{\"type\": \"object\", \"required\": [\"a%d\"], \"properties\": {\"a%d\": {\"const\": %d}}}",
                    k > 1 ? ", " : "", i, i, k);
        buf_str(b, "]}");
    }
    buf_str(b, "]}");
}

static void test_hostile(void **state) {
    static const struct {
        enum source_kind kind;
        const char *text, *error; /* text NULL: combinations */
    } cases[] = {
        {SOURCE_SCHEMA, NULL, "million steps"},
        {SOURCE_SCHEMA, "{\"type\": \"string\", \"pattern\": \"(((){100000}){100000}){100000}\"}", "million steps"},
        {SOURCE_SCHEMA, "{\"type\": \"string\", \"pattern\": \"(a|b)*a(a|b){16}\"}", "more than 20000 states"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct buf b = {0};
        struct source_grammars g;
        struct error e = {0};
        int millions;
        if (cases[i].text) buf_str(&b, cases[i].text);
        else put_combinations(&b, 20);
        assert_int_equal(compile(cases[i].kind, &b, NEVER_STOPS, &millions, &g, &e), ERR_USAGE);
        if (!strstr(e.text, cases[i].error)) fail_msg("case %zu: %s", i, e.text);
        assert_true(millions <= EFFORT_MAX_STEPS / EFFORT_STEPS_PER_CALL + 1);
    }
}

static void test_guard(void **state) {
    struct buf b = {0};
    struct source_grammars g;
    struct error e = {0};
    int millions;
    put_combinations(&b, 20);
    assert_int_equal(compile(SOURCE_SCHEMA, &b, 3, &millions, &g, &e), ERR_CANCELLED);
    assert_int_equal(millions, 3);
    put_combinations(&b, 10);
    assert_int_equal(compile(SOURCE_SCHEMA, &b, NEVER_STOPS, &millions, &g, &e), 0);
    assert_true(accepts(g.whole, "{\"a0\":1,\"a1\":2,\"a2\":1,\"a3\":2,\"a4\":1,\"a5\":2,\"a6\":1,\"a7\":2,\"a8\":1,"
                                 "\"a9\":2}"));
    source_free(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_large), cmocka_unit_test(test_one_of),
                                       cmocka_unit_test(test_hostile), cmocka_unit_test(test_guard)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
