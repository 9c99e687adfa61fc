/* Masks of tokens: equal to trying every token, whatever was stored before; limits that leave room; forced bytes; bad
 * calls. */
#include "test/unit/unit.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "engine/ember/ember.h"
#include "tokenizer/grammar/matcher.h"
#include "tokenizer/grammar/source.h"

static const struct {
    enum source_kind kind;
    const char *text;
} sources[] = {
    {SOURCE_SCHEMA, "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"type\": "
                    "\"string\", \"minLength\": 2, \"maxLength\": 5}, "
                    "\"c\": {\"type\": "
                    "\"array\", \"items\": {\"type\": \"number\", \"minimum\": 0, \"maximum\": 99.5}}}, \"required\": "
                    "[\"a\", \"b\", \"c\"]}"},
    {SOURCE_SCHEMA,
     "{\"anyOf\": [{\"type\": \"string\", \"maxLength\": 40, \"minLength\": 35}, {\"type\": \"string\", \"pattern\": "
     "\"^(ab|\\u00e9\\u4e16)+$\"}, {\"enum\": [\"abc\"]}]}"},
    {SOURCE_SCHEMA, "{\"type\": \"object\", \"properties\": {\"ab\": {\"type\": \"string\", \"pattern\": "
                    "\"^x[0-9]?\"}}, \"required\": [\"ab\"], "
                    "\"additionalProperties\": {\"type\": \"integer\"}}"},
    {SOURCE_JSON_OBJECT, ""},
    {SOURCE_REGEX, ".{0,7}x?|[a-z ]{3,}"},
    {SOURCE_REGEX, "(.*\n)+end"},
    {SOURCE_GBNF, "root ::= \"\\\"\" [^\"]{0,3} [0-9]* \"\\\"\" root?"},
    {SOURCE_CHOICES, "[\"the\", \"then\", \"\\u4e16\\u754c\", \"hello world\"]"},
    {SOURCE_TOOL_CALLS, "{\"format\": {\"open\": [\"<c\", 40, \">\"], \"close\": [41], \"after_name\": [42, 43]}, "
                        "\"most\": 1, \"tools\": [{\"name\": \"time\"}]}"},
    /* arguments between tags: plain text and JSON; tokens of large vocabularies contain these ends */
    {SOURCE_TOOL_CALLS, "{\"format\": {\"before_key\": \"<\", \"before_text\": \">\", \"after_value\": [\"</p>\", 40], "
                        "\"ends\": [\"</p>\", \"</a>\", \"</\"]}, \"tools\": "
                        "[{\"name\": \"f\", \"parameters\": {\"type\": \"object\", "
                        "\"properties\": {\"a\": {\"type\": \"string\"}, \"b\": {\"type\": \"array\", \"items\": "
                        "{\"type\": \"string\"}}, \"c\": {\"type\": \"string\", "
                        "\"maxLength\": 8}}, \"required\": [\"a\"]}}]}"},
    {SOURCE_TOOL_CALLS, "{\"format\": {\"open\": \"<c>\", \"close\": \"</c>\", \"before_name\": \"{\\\"name\\\": "
                        "\\\"\", \"after_name\": \"\\\", \\\"arguments\\\": "
                        "\", \"after_arguments\": \"}\", \"between\": \"\\n\"}, \"most\": 2, \"tools\": [{\"name\": "
                        "\"time\"}, {\"name\": \"weather\", \"parameters\": "
                        "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 9}}, "
                        "\"required\": [\"city\"]}}]}"},
};

static uint64_t seed = 1;
static uint32_t draw(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* Follows random tokens and compares masks with matcher_fits() of every token. */
static void compare_masks(const struct token_trie *t, enum source_kind kind, const char *text, int steps) {
    struct grammar *g;
    struct matcher *m;
    struct error e = {0};
    assert_int_equal(source_compile(&(struct grammar_source){kind, text, strlen(text)}, &g, &e), 0);
    assert_int_equal(matcher_open(&m, g, t, &e), 0);
    for (int step = 0; step < steps && !matcher_is_final(m); step++) {
        const uint32_t left = step > steps / 2 ? matcher_least_tokens(m) + draw(3) : UINT32_MAX;
        const uint64_t *bits;
        int32_t chosen = -1;
        uint32_t n = 0;
        assert_int_equal(matcher_mask(m, left, &bits, &e), 0);
        for (int32_t id = 0; id < t->n_ids; id++) {
            const bool allowed = bits[id >> 6] >> (id & 63) & 1, fits = matcher_fits(m, id,
                                                                                     left == UINT32_MAX ? left
                                                                                     : left             ? left - 1
                                                                                                        : 0);
            if (step) assert_int_equal(allowed, fits); /* the first token may not begin with what the decoder strips */
            else assert_true(!allowed || fits);
            if (allowed && !draw(++n)) chosen = id;
        }
        if (chosen < 0) {
            assert_true(matcher_is_complete(m));
            break;
        }
        assert_int_equal(matcher_accept(m, chosen, &e), 0);
        assert_int_equal(matcher_mask(m, UINT32_MAX, &bits, &e), 0);
    }
    matcher_close(&m);
    grammar_free(&g);
}

/* Follows random tokens, then random ones with the least limit that can hold, or a little more: the text is always
 * completed. */
static void walk_limited(const struct token_trie *t, enum source_kind kind, const char *text, uint32_t before) {
    struct grammar *g;
    struct matcher *m;
    struct error e = {0};
    uint32_t left = UINT32_MAX;
    assert_int_equal(source_compile(&(struct grammar_source){kind, text, strlen(text)}, &g, &e), 0);
    assert_int_equal(matcher_open(&m, g, t, &e), 0);
    for (uint32_t step = 0; !matcher_is_final(m); step++) {
        const uint32_t least = matcher_least_tokens(m);
        const uint64_t *bits;
        int32_t chosen = -1;
        uint32_t n = 0;
        if (step == before) left = least + draw(2);
        if (step >= before && !least) break;
        assert_true(least <= matcher_missing(m) || !step); /* the first token must not begin with what is stripped */
        assert_true(step < before || (left > 0 && least <= left));
        if (least > 1) {
            assert_int_equal(matcher_mask(m, least - 1, &bits, &e), 0);
            for (int32_t id = 0; id < t->n_ids; id++) assert_false(bits[id >> 6] >> (id & 63) & 1);
        }
        assert_int_equal(matcher_mask(m, left, &bits, &e), 0);
        for (int32_t id = 0; id < t->n_ids; id++)
            if (bits[id >> 6] >> (id & 63) & 1 && !draw(++n)) chosen = id;
        assert_true(chosen >= 0);
        assert_int_equal(matcher_accept(m, chosen, &e), 0);
        if (step >= before) left--;
    }
    assert_true(matcher_is_complete(m));
    matcher_close(&m);
    grammar_free(&g);
}

enum { MAX_PIECES = 256, MAX_PIECE = 8 };

/* Writes the tokenizer.json of a vocabulary with all bytes and some texts of ASCII. */
static void write_vocabulary(const char *path, const char (*pieces)[MAX_PIECE + 1], int n) {
    struct buf j = {0};
    buf_str(&j, "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":"
                "{\"type\":\"BPE\",\"vocab\":{");
    int alias[256];
    for (int b = 0, other = 256; b < 256; b++) {
        alias[b] = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174 ? b : other++;
        buf_fmt(&j, "%s\"\\u%04x\":%d", b ? "," : "", alias[b], b);
    }
    for (int i = 0; i < n; i++) {
        buf_str(&j, ",\"");
        for (const char *c = pieces[i]; *c; c++) buf_fmt(&j, "\\u%04x", alias[(unsigned char)*c]);
        buf_fmt(&j, "\":%d", 256 + i);
    }
    buf_str(&j, "},\"merges\":[]}}");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(j.data, 1, j.len, f), j.len);
    assert_int_equal(fclose(f), 0);
    buf_free(&j);
}

/* Draws up to n different pieces of the sources. */
static int draw_pieces(char (*pieces)[MAX_PIECE + 1], int n) {
    int count = 0;
    while (n-- > 0) {
        const char *text = sources[draw(sizeof sources / sizeof *sources)].text;
        const size_t size = 2 + draw(MAX_PIECE - 1), length = strlen(text);
        int k = 0;
        if (length < size) continue;
        snprintf(pieces[count], size + 1, "%s", text + draw((uint32_t)(length - size + 1)));
        while (strcmp(pieces[k], pieces[count]) != 0) k++;
        count += k == count;
    }
    return count;
}

static void walk_all_limited(const char *dir) {
    struct tokenizer *t;
    struct token_trie *trie;
    struct error e = {0};
    if (tokenizer_open(&t, dir, &e) || token_trie_open(&trie, t, &e)) fail_msg("%s", e.text);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        for (uint32_t before = 0; before < 10; before = 2 * before + 1)
            walk_limited(trie, sources[i].kind, sources[i].text, before);
    token_trie_close(&trie);
    tokenizer_close(&t);
}

/* Calls f with a directory that has a vocabulary of these pieces. */
static void with_vocabulary(const char (*pieces)[MAX_PIECE + 1], int n, void (*f)(const char *dir)) {
    char dir[] = "/tmp/hearth-grammar-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    write_vocabulary(path, pieces, n);
    f(dir);
    unlink(path);
    rmdir(dir);
}

static void test_limits_of_tokens(void **state) {
    char pieces[MAX_PIECES][MAX_PIECE + 1];
    walk_all_limited("ember:");
    for (int i = 0; i < 20; i++) with_vocabulary(pieces, draw_pieces(pieces, i * MAX_PIECES / 20), walk_all_limited);
}

static void check_least_tokens(const char *dir) {
    static const struct {
        enum source_kind kind;
        const char *text;
        uint32_t tokens;
    } cases[] = {
        {SOURCE_CHOICES, "[\"abcde\", \"zzzzzzzz\"]", 2}, /* ab, cde; the longest first would be abc, d, e */
        {SOURCE_REGEX, "x{6}", 6},                        /* xxx.. would end past the text */
        {SOURCE_REGEX, "x{6}y*", 6},
        {SOURCE_REGEX, "x{7,}", 1},
        {SOURCE_REGEX, "x{7000}", 1000},
        {SOURCE_REGEX, "x{70000}", 69994}, /* one token of seven, then one for each byte: too long to be followed */
        {SOURCE_TOOL_CALLS,                /* 3, ab, f, 7, {, }, 5 */
         "{\"format\": {\"open\": [3, \"ab\"], \"close\": [5], \"after_name\": [7]}, \"tools\": [{\"name\": \"f\", "
         "\"parameters\": {\"type\": \"object\", "
         "\"additionalProperties\": false}}]}",
         7},
    };
    struct tokenizer *t;
    struct token_trie *trie;
    struct error e = {0};
    if (tokenizer_open(&t, dir, &e) || token_trie_open(&trie, t, &e)) fail_msg("%s", e.text);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g;
        struct matcher *m;
        if (source_compile(&(struct grammar_source){cases[i].kind, cases[i].text, strlen(cases[i].text)}, &g, &e) ||
            matcher_open(&m, g, trie, &e))
            fail_msg("case %zu: %s", i, e.text);
        assert_int_equal(matcher_least_tokens(m), cases[i].tokens);
        matcher_close(&m);
        grammar_free(&g);
    }
    /* an answer that has used up the states: the completion of its state is computed in an automaton without the others
     */
    struct grammar *g;
    struct matcher *m;
    assert_int_equal(source_compile(&(struct grammar_source){SOURCE_REGEX, "x{70000}x{70000}", 16}, &g, &e), 0);
    assert_int_equal(matcher_open(&m, g, trie, &e), 0);
    for (int i = 0; i < 139300; i++) assert_int_equal(matcher_accept(m, 'x', &e), 0);
    assert_int_equal(matcher_missing(m), 700);
    assert_int_equal(matcher_least_tokens(m), 100);
    matcher_close(&m);
    grammar_free(&g);
    token_trie_close(&trie);
    tokenizer_close(&t);
}

static void test_least_tokens(void **state) {
    static const char pieces[][MAX_PIECE + 1] = {"ab", "abc", "cde", "xxxxxxx"};
    with_vocabulary(pieces, 4, check_least_tokens);
}

static void compare_all(const char *dir, int steps) {
    struct tokenizer *t;
    struct token_trie *trie;
    struct error e = {0};
    assert_int_equal(tokenizer_open(&t, dir, &e), 0);
    assert_int_equal(token_trie_open(&trie, t, &e), 0);
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        for (int k = 0; k < 3; k++) compare_masks(trie, sources[i].kind, sources[i].text, steps);
    token_trie_close(&trie);
    tokenizer_close(&t);
}

static void test_masks(void **state) { compare_all("ember:", 60); }

static void test_large_vocabularies(void **state) {
    static const char *const names[] = {"qwen3", "deepseek_v3"};
    for (size_t i = 0; i < 2; i++) {
        char file[600], dir[] = "/tmp/hearth-grammar-XXXXXX", link[64];
        snprintf(file, sizeof file, SHARED_DIR "/tokenizers/%s.tokenizer.json", names[i]);
        if (access(file, R_OK)) SKIP("%s does not exist", file);
        assert_non_null(mkdtemp(dir));
        snprintf(link, sizeof link, "%s/tokenizer.json", dir);
        assert_int_equal(symlink(file, link), 0);
        compare_all(dir, 12);
        unlink(link);
        rmdir(dir);
    }
}

/* A token that a grammar names is the only one at its place; text that the same bytes would spell is not. */
static void test_named_tokens(void **state) {
    static const char text[] = "{\"format\": {\"open\": [300, \"a\"], \"close\": [0, 511], \"after_name\": [7]}, "
                               "\"tools\": [{\"name\": \"f\", \"parameters\": {\"type\": "
                               "\"object\", \"additionalProperties\": false}}]}";
    struct tokenizer *t;
    struct token_trie *trie;
    struct grammar *g;
    struct matcher *m;
    struct error e = {0};
    uint8_t forced[8];
    size_t n_tokens = 0;
    assert_int_equal(tokenizer_open(&t, "ember:", &e), 0);
    assert_int_equal(token_trie_open(&trie, t, &e), 0);
    assert_int_equal(source_compile(&(struct grammar_source){SOURCE_TOOL_CALLS, text, sizeof text - 1}, &g, &e), 0);
    assert_int_equal(matcher_open(&m, g, trie, &e), 0);
    const int32_t named[] = {300, -1, 7, -2, 0, 511}; /* -1, -2: text, before the next one */
    for (size_t k = 0; k < sizeof named / sizeof *named; k++) {
        const uint64_t *bits;
        assert_int_equal(matcher_mask(m, UINT32_MAX, &bits, &e), 0);
        for (int32_t id = 0; id < trie->n_ids && named[k] >= 0; id++)
            assert_int_equal(bits[id >> 6] >> (id & 63) & 1, id == named[k]);
        if (named[k] >= 0) {
            assert_int_equal(matcher_forced(m, forced, sizeof forced), 0);
            assert_int_equal(matcher_accept(m, named[k], &e), 0);
            n_tokens++;
            continue;
        }
        struct ids ids = {0};
        const char *between = named[k] == -1 ? "af" : "{}";
        assert_int_equal(matcher_forced(m, forced, sizeof forced), 2);
        assert_memory_equal(forced, between, 2);
        assert_int_equal(tokenizer_encode(t, between, 2, TEXT_VALUE, &ids, &e), 0);
        for (size_t i = 0; i < ids.n; i++) assert_int_equal(matcher_accept(m, ids.data[i], &e), 0);
        ids_free(&ids);
    }
    assert_int_equal(n_tokens, 4);
    assert_true(matcher_is_final(m));
    matcher_close(&m);
    grammar_free(&g);
    token_trie_close(&trie);
    tokenizer_close(&t);
}

static void test_forced(void **state) {
    struct grammar *g;
    struct automaton *a;
    struct error e = {0};
    uint8_t byte;
    static const char text[] =
        "{\"type\": \"object\", \"properties\": {\"name\": {\"const\": 1}}, \"required\": [\"name\"]}";
    assert_int_equal(source_compile(&(struct grammar_source){SOURCE_SCHEMA, text, sizeof text - 1}, &g, &e), 0);
    assert_int_equal(automaton_open(&a, g, &e), 0);
    state_id s = automaton_start(a);
    for (const char *want = "{\"name\":"; *want; want++) {
        assert_true(automaton_forced(a, s, &byte));
        assert_int_equal(byte, *want);
        s = automaton_step(a, s, byte);
    }
    assert_false(automaton_forced(a, s, &byte)); /* a space or the value */
    assert_int_equal(automaton_missing(a, s), 2);
    s = automaton_run(a, s, " 1", 2);
    s = automaton_compact(a, s);
    assert_int_equal(automaton_missing(a, s), 1);
    s = automaton_run(a, s, "}", 1);
    assert_true(automaton_is_final(a, s));
    assert_int_equal(automaton_step(a, s, ' '), STATE_DEAD);
    automaton_close(&a);
    grammar_free(&g);
}

/* Deep nesting ends at the limit, without a dead end before it. */
static void test_nesting(void **state) {
    struct grammar *g;
    struct automaton *a;
    struct error e = {0};
    assert_int_equal(source_compile(&(struct grammar_source){SOURCE_SCHEMA, "{\"type\": \"array\"}", 17}, &g, &e), 0);
    assert_int_equal(automaton_open(&a, g, &e), 0);
    state_id s = automaton_start(a), next;
    int depth = 0;
    for (; (next = automaton_step(a, s, '[')); s = next) depth++;
    assert_int_equal(depth, GRAMMAR_MAX_NEST);
    for (; depth; depth--) s = automaton_step(a, s, ']');
    assert_true(automaton_is_final(a, s));
    automaton_close(&a);
    grammar_free(&g);
}

static void test_limits(void **state) {
    static const struct {
        enum source_kind kind;
        const char *text, *error;
    } cases[] = {
        {SOURCE_REGEX, "((a?){60}){60}(b?){70}", "may be empty"},
        {SOURCE_REGEX, "(((([a-c]{1,99999}){1,99999}){1,99999}))", NULL},
        {SOURCE_SCHEMA, "{\"type\": \"string\", \"pattern\": \"^([a-z]{1,90}x){1,99999}$\"}", "too complex"},
        {SOURCE_SCHEMA, "{\"type\": \"string\", \"type\": \"object\"}", "twice"},
        {SOURCE_SCHEMA, "{\"type\": \"string\"", "schema: line 1"},
        {SOURCE_GBNF, "root ::= a\na ::= b\nb ::= a | \"x\"", "left recursion"},
        {SOURCE_GBNF, "root ::= \"a\" root", "no text matches"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct grammar *g;
        struct error e = {0};
        const int rc =
            source_compile(&(struct grammar_source){cases[i].kind, cases[i].text, strlen(cases[i].text)}, &g, &e);
        if (cases[i].error && !strstr(e.text, cases[i].error)) fail_msg("case %zu: %s", i, e.text);
        assert_int_equal(rc != 0, cases[i].error != NULL);
        grammar_free(&g);
    }
}

/* A grammar with many alternatives that count the same characters fails after a while, instead of taking long for each
 * token. */
static void check_ambiguous(const char *dir) {
    struct tokenizer *t;
    struct token_trie *trie;
    struct grammar *g;
    struct matcher *m;
    struct buf b = {0};
    struct error e = {0};
    int rc = 0, n = 0;
    for (int i = 0; i < 4000; i++) buf_fmt(&b, "%s \"x\"{1,%d}", i ? " |" : "root ::=", 70000 + i);
    if (tokenizer_open(&t, dir, &e) || token_trie_open(&trie, t, &e)) fail_msg("%s", e.text);
    assert_int_equal(source_compile(&(struct grammar_source){.kind = SOURCE_GBNF, .text = b.data, .n = b.len}, &g, &e),
                     0);
    assert_int_equal(matcher_open(&m, g, trie, &e), 0);
    const uint64_t *bits;
    while (n < 5000 && !(rc = matcher_mask(m, UINT32_MAX, &bits, &e)) && !(rc = matcher_accept(m, 'x', &e))) n++;
    assert_int_equal(rc, ERR_RUNTIME);
    if (!strstr(e.text, "takes too long to find")) fail_msg("token %d: %s", n, e.text);
    assert_true(n > 100); /* a token may take some */
    matcher_close(&m);
    grammar_free(&g);
    buf_free(&b);
    token_trie_close(&trie);
    tokenizer_close(&t);
}

static void test_ambiguous(void **state) {
    static const char pieces[][MAX_PIECE + 1] = {"xxxxxxx"};
    with_vocabulary(pieces, 1, check_ambiguous);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_masks),        cmocka_unit_test(test_limits_of_tokens),
                                       cmocka_unit_test(test_least_tokens), cmocka_unit_test(test_large_vocabularies),
                                       cmocka_unit_test(test_named_tokens), cmocka_unit_test(test_forced),
                                       cmocka_unit_test(test_nesting),      cmocka_unit_test(test_limits),
                                       cmocka_unit_test(test_ambiguous)};
    file_embed(ember_files);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
