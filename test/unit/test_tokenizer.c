/* The tokenizer on small vocabularies made here, on invalid files, without memory, and with text that imitates control
 * tokens. */
#include "test/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/file.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/unicode.h"

/* --- vocabularies in memory ------------------------------------------------------------------- */

static int open_text(struct tokenizer **t, const char *json, struct error *e) {
    const struct file_embedded table[] = {
        {"tokenizer.json", (const uint8_t *)json, (const uint8_t *)json + strlen(json)}, {NULL, NULL, NULL}};
    file_embed(table);
    int rc = tokenizer_open(t, "ember:", e);
    file_embed(NULL);
    return rc;
}

static void expect_ids(const struct tokenizer *t, const char *s, size_t n, enum text_origin origin, const int32_t *want,
                       size_t n_want) {
    struct ids ids = {0};
    struct error e = {0};
    assert_int_equal(tokenizer_encode(t, s, n, origin, &ids, &e), 0);
    assert_int_equal(ids.n, n_want);
    for (size_t i = 0; i < n_want; i++) assert_int_equal(ids.data[i], want[i]);
    ids_free(&ids);
}
#define EXPECT(t, s, origin, ...) \
    expect_ids(t, s, sizeof(s) - 1, origin, (const int32_t[]){__VA_ARGS__}, \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

#define SMALL(rest) \
    "{\"added_tokens\":[{\"id\":20,\"content\":\"<s>\",\"special\":true,\"normalized\":false},{\"id\":21,\"content\":" \
    "\"<x>\",\"special\":" \
    "false," \
    "\"normalized\":true,\"lstrip\":true},{\"id\":22,\"content\":\"b\",\"special\":false,\"normalized\":false," \
    "\"single_word\":true}]" \
    "," rest "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"a\":0,\"c\":1,\"ac\":2,\" " \
    "\":3,\"u\":4,\"<\":5,\"s\":6,\">\":7,\"x\":8,\"aca\":9,\"A\":10}," \
    "\"merges\":[\"a c\",[\"ac\",\"a\"]]}}"

static void test_small(void **state) {
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(open_text(&t, SMALL(""), &e), 0);
    EXPECT(t, "acac", TEXT_VALUE, 2, 2);
    EXPECT(t, "aca", TEXT_VALUE, 9);
    EXPECT(t, "a<s>c", TEXT_VALUE, 0, 5, 6, 7, 1);
    EXPECT(t, "a<s>c", TEXT_TEMPLATE, 0, 20, 1);
    EXPECT(t, "a  <x>c", TEXT_TEMPLATE, 0, 21, 1);
    EXPECT(t, "a b c", TEXT_TEMPLATE, 0, 3, 22, 3, 1);
    EXPECT(t, "abc", TEXT_TEMPLATE, 0, 4, 1); /* inside a word */
    EXPECT(t,
           "\xFF"
           "a",
           TEXT_VALUE, 4, 0); /* U+FFFD is unknown here */
    expect_ids(t, "", 0, TEXT_TEMPLATE, NULL, 0);
    assert_int_equal(tokenizer_added_id(t, "<s>"), 20);
    assert_int_equal(tokenizer_added_id(t, "a"), -1);
    assert_int_equal(tokenizer_n_ids(t), 23);
    size_t n;
    bool special;
    assert_null(tokenizer_token_bytes(t, 15, &n, &special));
    assert_null(tokenizer_token_bytes(t, -1, &n, &special));
    assert_memory_equal(tokenizer_token_bytes(t, 20, &n, &special), "<s>", 3);
    assert_true(special && n == 3);
    tokenizer_close(&t);
    assert_null(t);

    assert_int_equal(
        open_text(&t,
                  SMALL("\"normalizer\":{\"type\":\"Lowercase\"},\"post_processor\":{\"type\":\"TemplateProcessing\","
                        "\"single\":[{\"SpecialToken\":{\"id\":\"<s>\"}},"
                        "{\"Sequence\":{\"id\":\"A\"}}],\"special_tokens\":{\"<s>\":{\"ids\":[20]}}},"),
                  &e),
        0);
    EXPECT(t, "ACA<S><X>", TEXT_TEMPLATE, 9, 5, 6, 7, 21); /* one is matched before the normaliser, one after */
    assert_int_equal(tokenizer_bos(t), 20);
    tokenizer_close(&t);
}

#define TOKEN(id, text, rest) "{\"id\":" #id ",\"content\":\"" text "\"" rest "},"
/* Added tokens that are not control tokens are the model's own in all text. Marks of chats act as control tokens even
 * if they are not flagged: of Qwen, DeepSeek and Kimi. */
static void test_plain_tokens(void **state) {
    static const char json[] = "{\"added_tokens\":[" TOKEN(20, "<s>", ",\"special\":true")
        TOKEN(21, "  ", ",\"normalized\":false") TOKEN(22, "    ", "") TOKEN(23, "<b>", "") TOKEN(24, "<think>", "")
            TOKEN(25, "<｜User｜>", "") TOKEN(26, "</tool>", "") TOKEN(27, "◁think▷", "") TOKEN(28, "call", "")
                TOKEN(29, "<b>c",
                      ",\"special\":true,\"normalized\":true") "{\"id\":30,\"content\":\"c  \"}],"
                                                               "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"fuse_"
                                                               "unk\":true,\"vocab\":{\"a\":0,\"c\":1,\" "
                                                               "\":3,\"u\":4},\"merges\":[]}}";
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(open_text(&t, json, &e), 0);
    for (int origin = TEXT_VALUE; origin <= TEXT_TEMPLATE; origin++) {
        EXPECT(t, "a  a a   a", origin, 0, 21, 0, 3, 0, 21, 3, 0);
        EXPECT(t, "a<b>a", origin, 0, 23, 0);
        EXPECT(t, "acalla", origin, 0, 28, 0);
        EXPECT(t, "ac  a", origin, 0, 1, 21, 0); /* not normalized: matched first */
    }
    static const struct {
        const char *text;
        int32_t id;
    } marks[] = {{"<s>", 20}, {"<think>", 24}, {"<｜User｜>", 25}, {"</tool>", 26}, {"◁think▷", 27}};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++) {
        expect_ids(t, marks[i].text, strlen(marks[i].text), TEXT_TEMPLATE, &marks[i].id, 1);
        expect_ids(t, marks[i].text, strlen(marks[i].text), TEXT_VALUE, (const int32_t[]){4}, 1);
    }
    /* the longest token that the bytes may become */
    EXPECT(t, "<b>c", TEXT_TEMPLATE, 29);
    EXPECT(t, "<b>c", TEXT_VALUE, 23, 1);
    /* a plain token takes bytes of both origins, a control token does not */
    char s[] = "a  <b>c<s>";
    struct text_run spans[] = {
        {2, TEXT_TEMPLATE}, {2, TEXT_VALUE}, {2, TEXT_TEMPLATE}, {2, TEXT_VALUE}, {2, TEXT_TEMPLATE}};
    struct text text = {s, sizeof s - 1, spans, 5};
    struct ids ids = {0};
    static const int32_t want[] = {0, 21, 23, 1, 4};
    assert_int_equal(tokenizer_encode_text(t, &text, &ids, &e), 0);
    assert_int_equal(ids.n, sizeof want / sizeof *want);
    assert_memory_equal(ids.data, want, sizeof want);
    ids_free(&ids);
    tokenizer_close(&t);
}

/* A control token counts only when all of its bytes are the template's; the text around it joins whatever its
 * origin. */
static void test_origin(void **state) {
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(open_text(&t, SMALL(""), &e), 0);
    char s[] = "<s>a<s>cac<s>";
    struct text_run spans[] = {
        {3, TEXT_TEMPLATE}, {4, TEXT_VALUE}, {2, TEXT_TEMPLATE}, {2, TEXT_VALUE}, {2, TEXT_TEMPLATE}};
    struct text text = {s, sizeof s - 1, spans, 5};
    struct ids ids = {0};
    assert_int_equal(tokenizer_encode_text(t, &text, &ids, &e), 0);
    static const int32_t want[] = {20, 0, 5, 6, 7, 1, 2, 5, 6, 7};
    assert_int_equal(ids.n, 10);
    assert_memory_equal(ids.data, want, sizeof want);
    spans[4].n = 1;
    assert_int_equal(tokenizer_encode_text(t, &text, &ids, &e), ERR_RUNTIME);
    assert_int_equal(ids.n, 10);
    ids_free(&ids);
    tokenizer_close(&t);
}

static void test_decoder(void **state) {
    struct tokenizer *t;
    struct error e = {0};
    struct buf out = {0};
    assert_int_equal(open_text(&t,
                               "{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{"
                               "\"String\":\"\xE2\x96\x81\"},"
                               "\"content\":\" \"},{\"type\":\"ByteFallback\"},"
                               "{\"type\":\"Fuse\"},{\"type\":\"Strip\",\"content\":\" "
                               "\",\"start\":1,\"stop\":0}]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"\xE2\x96\x81\":0,"
                               "\"\xE2\x96\x81\xE2\x96\x81h\":1,"
                               "\"<0xE4>\":2,\"<0xB8>\":3,\"<0xAD>\":4},\"merges\":[]}}",
                               &e),
                     0);
    struct decoder d = {.t = t};
    assert_int_equal(decoder_add(&d, 1, &out), 0);
    assert_string_equal(out.data, " h");
    assert_int_equal(decoder_add(&d, 2, &out), 0);
    assert_int_equal(decoder_add(&d, 3, &out), 0);
    assert_string_equal(out.data, " h"); /* held back */
    assert_int_equal(decoder_add(&d, 4, &out), 0);
    assert_string_equal(out.data, " h\xE4\xB8\xAD");
    assert_int_equal(decoder_add(&d, 0, &out), 0);
    assert_int_equal(decoder_add(&d, 3, &out), 0); /* no character begins with this byte: no waiting for more */
    assert_string_equal(out.data, " h\xE4\xB8\xAD \xB8");
    assert_int_equal(decoder_add(&d, 2, &out), 0);
    assert_int_equal(decoder_flush(&d, &out), 0);
    assert_string_equal(out.data, " h\xE4\xB8\xAD \xB8\xE4");
    assert_int_equal(decoder_add(&d, 5, &out), ERR_RUNTIME);
    assert_int_equal(decoder_add(&d, -1, &out), ERR_RUNTIME);
    buf_free(&out);
    tokenizer_close(&t);
}

/* --- invalid files ---------------------------------------------------------------------------- */

#define MODEL(vocab, merges) "\"model\":{\"type\":\"BPE\",\"vocab\":{" vocab "},\"merges\":[" merges "]}}"
#define FINE                 MODEL("\"a\":0", "")
static const char *const wrong[][2] = {
    {"", "empty"},
    {"[]", "not an object"},
    {"{\"model\":", "line 1"},
    {"{" MODEL("\"a\":-1", ""), "\"a\" is not a number"},
    {"{" MODEL("\"a\":4194304", ""), "\"a\" is not a number"},
    {"{" MODEL("\"a\":0,\"b\":0", ""), "two tokens have the id 0"},
    {"{" MODEL("\"a\":0,\"a\":1", ""), "is defined twice"},
    {"{" MODEL("\"a\":0", "\"a b\""), "\"b\", which is not"},
    {"{" MODEL("\"a\":0,\"b\":1", "\"a b\""), "makes \"ab\", which is not"},
    {"{" MODEL("\"a\":0", "\"a\""), "not a pair"},
    {"{" MODEL("\"a\":0", "[\"a\"]"), "not a pair"},
    {"{\"model\":{\"type\":\"Unigram\",\"vocab\":[]}}", "Unigram"},
    {"{\"model\":{\"type\":\"BPE\",\"dropout\":0.1,\"vocab\":{},\"merges\":[]}}", "dropout"},
    {"{\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{},\"merges\":[]}}", "unk_token u"},
    {"{\"normalizer\":{\"type\":\"Precompiled\"}," FINE, "precompiled_charsmap"},
    {"{\"normalizer\":{\"type\":\"BertNormalizer\"}," FINE, "BertNormalizer"},
    {"{\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"x*\"},\"content\":\"y\"}," FINE,
     "matches the empty string"},
    {"{\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}," FINE, "UnicodeScripts"},
    {"{\"decoder\":{\"type\":\"WordPiece\"}," FINE, "WordPiece"},
    {"{\"post_processor\":{\"type\":\"BertProcessing\"}," FINE, "BertProcessing"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a\"},\"behavior\":\"Odd\"}," FINE, "Odd"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a(\"},\"behavior\":\"Removed\"}," FINE,
     "')' is missing"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Klingon}\"},\"behavior\":\"Removed\"}"
     "," FINE,
     "unknown property"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\h\"},\"behavior\":\"Removed\"}," FINE,
     "unknown escape"},
    {"{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?i:ss)\"},\"behavior\":\"Removed\"}," FINE,
     "fold into one"},
    {"{\"added_tokens\":[{\"id\":-1,\"content\":\"x\"}]," FINE, "\"x\" is not a number"},
    {"{\"added_tokens\":[{\"id\":0,\"content\":\"x\"}]," FINE, "id 0 of another token"},
    {"{\"added_tokens\":[{\"id\":1,\"content\":\"a\"}]," FINE, "has the id 1, elsewhere 0"},
    {"{\"added_tokens\":[{\"id\":1,\"content\":\"x\"},{\"id\":2,\"content\":\"x\"}]," FINE,
     "has the id 2, elsewhere 1"},
};
static void test_wrong(void **state) {
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct tokenizer *t;
        struct error e = {0};
        int rc = open_text(&t, wrong[i][0], &e);
        if (rc != ERR_MODEL || !strstr(e.text, wrong[i][1]))
            fail_msg("%s: got %d \"%s\", want \"%s\"", wrong[i][0], rc, e.text, wrong[i][1]);
        assert_null(t);
    }
}

/* Steps that double a text 40 times, or that are many: an error, not a terabyte. */
static void test_bombs(void **state) {
    static const struct {
        const char *step, *error;
        int n;
        bool opens;
    } rows[] = {{"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}", "longer than 65568 bytes",
                 40, true},
                {"{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"a\"},\"content\":\"aa\"}", "longer than 65568 bytes",
                 40, true},
                {"{\"type\":\"Prepend\",\"prepend\":\"a\"}", "more than 256 steps", 257, false},
                {"{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}",
                 "the text of a token too long", 40, false},
                {"{\"type\":\"ByteFallback\"}", "more than 256 steps", 257, false}};
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        struct tokenizer *t;
        struct ids ids = {0};
        struct error e = {0};
        struct buf j = {0};
        const char *const what[] = {"normalizer", "decoder"}, *const one = what[k > 2];
        buf_fmt(&j, "{\"added_tokens\":[],\"%s\":{\"type\":\"Sequence\",\"%ss\":[", one, one);
        for (int i = 0; i < rows[k].n; i++) buf_fmt(&j, "%s%s", i ? "," : "", rows[k].step);
        buf_str(&j, "]},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}");
        assert_int_equal(open_text(&t, j.data, &e), rows[k].opens ? 0 : ERR_MODEL);
        if (rows[k].opens) assert_int_equal(tokenizer_encode(t, "aa", 2, TEXT_VALUE, &ids, &e), ERR_MODEL);
        if (!strstr(e.text, rows[k].error)) fail_msg("%zu: %s", k, e.text);
        tokenizer_close(&t);
        ids_free(&ids);
        buf_free(&j);
    }
}

/* --- no memory -------------------------------------------------------------------------------- */

static const char everything[] = "{\"added_tokens\":[{\"id\":20,\"content\":\"<s>\",\"special\":true,\"normalized\":"
                                 "false},{\"id\":21,\"content\":\"\xC3\x89x\","
                                 "\"normalized\":true}],"
                                 "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},{\"type\":"
                                 "\"Lowercase\"},{\"type\":\"Replace\",\"pattern\":{"
                                 "\"Regex\":\" {2,}\"},\"content\":\" \"},{\"type\":\"Prepend\",\"prepend\":\" \"}]},"
                                 "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"},{"
                                 "\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\\\p{"
                                 "L}&&[^\\\\p{Han}]]+|(?i:'s)|\\\\s+(?!\\\\S)\"},\"behavior\":\"Isolated\"},"
                                 "{\"type\":\"Metaspace\",\"replacement\":\"_\"},{\"type\":\"ByteLevel\",\"use_regex\":"
                                 "true}]},\"decoder\":{\"type\":\"Metaspace\","
                                 "\"replacement\":\"a\"},"
                                 "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"byte_fallback\":true,\"vocab\":{"
                                 "\"a\":0,\"c\":1,\"ac\":2,\"\xC4\xA0\":3,\"u\":4,\"<"
                                 "0x61>\":5,\"acac\":6},\"merges\":[\"a c\",\"ac ac\"]}}";

static void test_memory(void **state) {
    static const char s[] =
        "  acac A\xCC\x81 12's <s>\xFF\xC3\x89x acacacacacacacacacacacacacacacacacacacacacacacacacacacacacacacacacacac";
    long n = 1;
    for (bool done = false; !done; n++) {
        struct tokenizer *t = NULL;
        struct error e = {0};
        struct ids ids = {0};
        struct buf out = {0};
        struct text_run spans[] = {{5, TEXT_VALUE}, {sizeof s - 6, TEXT_TEMPLATE}};
        struct text text = {(char *)(uintptr_t)s, sizeof s - 1, spans, 2};
        fault_set(FAULT_ALLOC, n, false, false);
        int rc = open_text(&t, everything, &e);
        if (!rc) rc = tokenizer_encode_text(t, &text, &ids, &e);
        struct decoder d = {.t = t};
        for (size_t i = 0; i < ids.n && !rc; i++) rc = decoder_add(&d, ids.data[i], &out);
        done = fault_count(FAULT_ALLOC) < n;
        fault_set(FAULT_ALLOC, 0, false, false);
        if (rc != (done ? 0 : ERR_MEMORY)) fail_msg("allocation %ld: %d %s", n, rc, e.text);
        buf_free(&out);
        ids_free(&ids);
        tokenizer_close(&t);
    }
    assert_true(n > 100);
}

/* --- long and wide texts ---------------------------------------------------------------------- */

static void test_every_character(void **state) {
    /* Every code point, alone and after a letter, must round-trip; Latin-1's spaces and letters in their classes. */
    struct buf j = {0}, s = {0}, out = {0};
    struct tokenizer *t;
    struct error e = {0};
    buf_str(&j, "{\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},"
                "\"decoder\":{\"type\":"
                "\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{");
    for (int b = 0, other = 256; b < 256; b++) {
        bool own = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        buf_fmt(&j, "%s\"\\u%04x\":%d", b ? "," : "", own ? b : other++, b);
    }
    buf_str(&j, "},\"merges\":[]}}");
    assert_int_equal(open_text(&t, j.data, &e), 0);
    for (uint32_t c = 0; c < UNICODE_END; c++) {
        char u[4];
        if (c >= 0xD800 && c < 0xE000) continue;
        size_t n = utf8_put(c, u);
        buf_add(&s, u, n);
        buf_char(&s, 'a');
        buf_add(&s, u, n);
    }
    struct ids ids = {0};
    assert_int_equal(tokenizer_encode(t, s.data, s.len, TEXT_TEMPLATE, &ids, &e), 0);
    struct decoder d = {.t = t};
    for (size_t i = 0; i < ids.n; i++) assert_int_equal(decoder_add(&d, ids.data[i], &out), 0);
    assert_int_equal(out.len, s.len);
    assert_memory_equal(out.data, s.data, s.len);
    ids_free(&ids);
    buf_free(&j);
    buf_free(&s);
    buf_free(&out);
    tokenizer_close(&t);
}

static double seconds(const struct tokenizer *t, const char *s, size_t n) {
    struct ids ids = {0};
    struct error e = {0};
    double at = cpu_time();
    assert_int_equal(tokenizer_encode(t, s, n, TEXT_VALUE, &ids, &e), 0);
    ids_free(&ids);
    return cpu_time() - at;
}

/* Sixteen times the text may take somewhat more than sixteen times as long; quadratic would be 256. */
static void test_growth(void **state) {
    static const char *const units[] = {"a",  "ac",  " ", "\xCC\x81", "\xCC\x81\xCC\xA3", "a\xCC\xA3\xCC\x81",
                                        "<s", "\n ", "'", "1"};
    struct tokenizer *t;
    struct error e = {0};
    assert_int_equal(open_text(&t, everything, &e), 0);
    for (size_t k = 0; k < sizeof units / sizeof *units; k++) {
        struct buf s = {0};
        while (s.len < 1 << 20) buf_str(&s, units[k]);
        size_t n = strlen(units[k]), small = s.len / 16 / n * n;
        double few = seconds(t, s.data, small);
        for (int i = 0; i < 2; i++) {
            double again = seconds(t, s.data, small);
            if (again < few) few = again;
        }
        double many = seconds(t, s.data, s.len);
        if (many > 100 * few + 0.5) fail_msg("a megabyte of \"%s\": %.3f s, a sixteenth %.3f s", units[k], many, few);
        buf_free(&s);
    }
    tokenizer_close(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bombs),  cmocka_unit_test(test_small),           cmocka_unit_test(test_plain_tokens),
        cmocka_unit_test(test_origin), cmocka_unit_test(test_decoder),         cmocka_unit_test(test_wrong),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_every_character), cmocka_unit_test(test_growth),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
