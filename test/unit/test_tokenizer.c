/* The tokenizer against the golden ids of ../shared, on small vocabularies made here, on invalid files, without
 * memory, and with text that imitates control tokens. */
#include "test/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
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
    {"{\"normalizer\":{\"type\":\"Precompiled\"}," FINE, "Precompiled"},
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

/* --- ../shared -------------------------------------------------------------------------------- */

static void check_ids(const struct tokenizer *t, const char *s, size_t n, enum text_origin origin,
                      const struct json *want, const char *what) {
    struct ids ids = {0};
    struct error e = {0};
    assert_int_equal(tokenizer_encode(t, s, n, origin, &ids, &e), 0);
    bool same = want && ids.n == want->n;
    for (size_t i = 0; same && i < ids.n; i++) same = ids.data[i] == json_int(json_at(want, (uint32_t)i), -1);
    if (!same) fail_msg("%s: %zu ids differ from the golden %u", what, ids.n, want ? want->n : 0);
    ids_free(&ids);
}

static void test_fixtures(void **state) {
    static const char *const names[] = {
        "dbrx",        "deepseek_v2_lite", "deepseek_v3", "deepseek_v32", "deepseek_v3_nogroup",
        "deepseek_v4", "glm4_moe",         "glm_moe_dsa", "gpt_oss",      "minimax_m2",
        "mixtral",     "phimoe",           "qwen2_moe",   "qwen3_5_moe",  "qwen3_moe",
        "qwen3_next"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char dir[4096], path[4200], *text;
        size_t n;
        struct arena a = {0};
        struct json j;
        struct tokenizer *t;
        struct error e = {0};
        snprintf(dir, sizeof dir, SHARED_DIR "/fixtures/%s", names[i]);
        snprintf(path, sizeof path, "%s/golden.json", dir);
        if (!file_exists(path)) SKIP("%s is missing", path);
        assert_int_equal(file_read(path, 64 << 20, &text, &n, &e), 0);
        assert_int_equal(json_parse(&a, text, n, 0, path, &j, &e), 0);
        assert_int_equal(tokenizer_open(&t, dir, &e), 0);
        const struct json *s = json_path(&j, "tokenizer.text"), *chat = json_path(&j, "chat.rendered");
        check_ids(t, s->string, s->n, TEXT_VALUE, json_path(&j, "tokenizer.tokens"), names[i]);
        if (chat) check_ids(t, chat->string, chat->n, TEXT_TEMPLATE, json_path(&j, "chat.tokens"), names[i]);
        tokenizer_close(&t);
        arena_free(&a);
        mem_free(text);
    }
}

/* A directory like a checkpoint's, with links to a published vocabulary. */
static const char *const vendors[] = {"deepseek_v3", "qwen3", "kimi_k2"};
static void open_vendor(int k, struct tokenizer **t) {
    char dir[] = "/tmp/test-tokenizer-XXXXXX", from[4096], to[4200];
    static const char *const files[3][2] = {{"tokenizer.json", "tokenizer.json"},
                                            {"tokenizer_config.json", "tokenizer_config.json"},
                                            {"tiktoken", "tiktoken.model"}};
    struct error e = {0};
    snprintf(from, sizeof from, SHARED_DIR "/tokenizers/%s.%s", vendors[k], k == 2 ? "tiktoken" : "tokenizer.json");
    if (!file_exists(from)) SKIP("%s is missing", from);
    assert_non_null(mkdtemp(dir));
    for (int f = 0; f < 3; f++) {
        snprintf(from, sizeof from, SHARED_DIR "/tokenizers/%s.%s", vendors[k], files[f][0]);
        snprintf(to, sizeof to, "%s/%s", dir, files[f][1]);
        if (file_exists(from)) assert_int_equal(symlink(from, to), 0);
    }
    snprintf(to, sizeof to, "%s/tokenizer_config.json", dir);
    static const char kimi[] = "{\"tokenizer_class\": \"TikTokenTokenizer\"}";
    if (k == 2) assert_int_equal(file_write(to, kimi, sizeof kimi - 1, &e), 0);
    int rc = tokenizer_open(t, dir, &e);
    for (int f = 0; f < 3; f++) {
        snprintf(to, sizeof to, "%s/%s", dir, files[f][1]);
        unlink(to);
    }
    rmdir(dir);
    if (rc) fail_msg("%s", e.text);
}

/* Kimi's vendor splits the text before encoding: after 400,000 characters, and within runs of 25,000 with or without
 * white space. The vocabulary makes each split visible: pairs and fours across it come apart. */
static void add_base64(struct buf *b, const char *piece, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        unsigned v = 0;
        for (size_t k = 0; k < 3; k++) v = v << 8 | (i + k < n ? (unsigned char)piece[i + k] : 0);
        for (size_t k = 0; k < 4; k++) buf_char(b, i + k > n ? '=' : digits[v >> (18 - 6 * k) & 63]);
    }
}
static void add_rank(struct buf *b, const char *piece, size_t n, int rank) {
    add_base64(b, piece, n);
    buf_fmt(b, " %d\n", rank);
}
static void repeat(struct buf *b, const char *s, int times) {
    while (times-- > 0) buf_str(b, s);
}
static void test_kimi_cuts(void **state) {
    static const char config[] = "{\"tokenizer_class\": \"TikTokenTokenizer\"}";
    static const char *const pieces[] = {"aa", "aaaa", "  ", "é", "éé"};
    static const struct {
        const char *head;
        int heads;
        const char *middle, *unit;
        int units;
        size_t ids;
    } rows[] = {
        {"", 0, "x", "a", 24999, 6252},            /* 25,000 characters: one piece */
        {"", 0, "x", "a", 25002, 6252 + 2},        /* x and 24,999; three */
        {"", 0, "x", "a", 50002, 6252 + 6250 + 2}, /* two splits */
        {"", 0, "\t", " ", 25002, 12501 + 2},
        {"", 0, "x", "é", 25002, 12501 + 2},               /* characters, not bytes */
        {"a", 20001, "\x1C", "a", 20000, 5001 + 1 + 5000}, /* white space to Python */
        {"", 0, "bbb", "aaaa ", 80001, 160005 + 1},        /* split within a word at 400,000 */
        {"b ", 187501, "", "a", 25002, 375002 + 6251},     /* a new run starts there */
    };
    struct buf ranks = {0};
    struct tokenizer *t;
    struct error e = {0};
    for (int i = 0; i < 256; i++) add_rank(&ranks, &(char){(char)i}, 1, i);
    for (int i = 0; i < 5; i++) add_rank(&ranks, pieces[i], strlen(pieces[i]), 256 + i);
    const struct file_embedded table[] = {
        {"tiktoken.model", (uint8_t *)ranks.data, (uint8_t *)ranks.data + ranks.len},
        {"tokenizer_config.json", (const uint8_t *)config, (const uint8_t *)config + sizeof config - 1},
        {NULL, NULL, NULL}};
    file_embed(table);
    int rc = tokenizer_open(&t, "ember:", &e);
    file_embed(NULL);
    if (rc) fail_msg("%s", e.text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct buf s = {0};
        struct ids ids = {0};
        repeat(&s, rows[i].head, rows[i].heads);
        buf_str(&s, rows[i].middle);
        repeat(&s, rows[i].unit, rows[i].units);
        assert_int_equal(tokenizer_encode(t, s.data, s.len, TEXT_VALUE, &ids, &e), 0);
        if (ids.n != rows[i].ids) fail_msg("row %zu: %zu ids, not %zu", i, ids.n, rows[i].ids);
        ids_free(&ids);
        buf_free(&s);
    }
    tokenizer_close(&t);
    buf_free(&ranks);
}

/* Mistral's tekken.json: control tokens have the first ids, with fillers up to their number; ranks past the size of the
 * vocabulary do not count. */
static int open_tekken(struct tokenizer **t, const char *config, const char *special, int first_byte, struct error *e) {
    static const char *const pieces[] = {"ab", "abc", "bc", " a"};
    struct buf b = {0};
    buf_fmt(&b, "{\"config\":{\"pattern\":\" ?\\\\p{L}+|[^\\\\p{L}]\"%s},\"special_tokens\":%s,\"vocab\":[", config,
            special);
    for (int i = first_byte; i < 260; i++) {
        buf_str(&b, i > first_byte ? ",{\"rank\":0,\"token_bytes\":\"" : "{\"rank\":0,\"token_bytes\":\"");
        add_base64(&b, i < 256 ? &(char){(char)i} : pieces[i - 256], i < 256 ? 1 : strlen(pieces[i - 256]));
        buf_str(&b, "\",\"token_str\":null}");
    }
    buf_str(&b, "]}");
    const struct file_embedded table[] = {{"tekken.json", (uint8_t *)b.data, (uint8_t *)b.data + b.len},
                                          {NULL, NULL, NULL}};
    file_embed(table);
    const int rc = tokenizer_open(t, "ember:", e);
    file_embed(NULL);
    buf_free(&b);
    return rc;
}
static void test_tekken(void **state) {
    static const char sizes[] = ",\"default_vocab_size\":264,\"default_num_special_tokens\":5",
                      special[] = "[{\"rank\":0,\"token_str\":\"<unk>\"},{\"rank\":1,\"token_str\":\"<s>\"},{\"rank\":"
                                  "2,\"token_str\":\"[INST]\"}]";
    static const struct {
        const char *text;
        int origin, n, ids[8];
    } rows[] = {{"abc", TEXT_VALUE, 1, {262}},        {"bcab", TEXT_VALUE, 2, {263, 261}},
                {" a", TEXT_VALUE, 2, {37, 102}},     {"<s>", TEXT_VALUE, 3, {65, 120, 67}},
                {"<s>a", TEXT_TEMPLATE, 2, {1, 102}}, {"<SPECIAL_4>[INST]", TEXT_TEMPLATE, 2, {4, 2}}};
    struct tokenizer *t;
    struct error e = {0};
    if (open_tekken(&t, sizes, special, 0, &e)) fail_msg("%s", e.text);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct ids ids = {0};
        assert_int_equal(
            tokenizer_encode(t, rows[i].text, strlen(rows[i].text), (enum text_origin)rows[i].origin, &ids, &e), 0);
        assert_int_equal(ids.n, rows[i].n);
        for (int k = 0; k < rows[i].n; k++) assert_int_equal(ids.data[k], rows[i].ids[k]);
        ids_free(&ids);
    }
    tokenizer_close(&t);
    static const struct {
        const char *config, *special;
        int first_byte;
        const char *why;
    } bad[] = {{sizes, "null", 0, "special_tokens"},
               {sizes, special, 1, "0x00 has no rank"},
               {",\"default_num_special_tokens\":2", special, 0, "2 of them for 3"},
               {",\"default_vocab_size\":5000000", special, 0, "5000000 ids"},
               {sizes, "[{\"rank\":1,\"token_str\":\"<s>\"}]", 0, "rank 0"},
               {sizes, "[{\"rank\":0,\"token_str\":\"<s>\"},{\"rank\":1,\"token_str\":\"<s>\"}]", 0, "two tokens"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_int_equal(open_tekken(&t, bad[i].config, bad[i].special, bad[i].first_byte, &e), ERR_MODEL);
        if (!strstr(e.text, bad[i].why) || !strstr(e.text, "tekken.json")) fail_msg("%s, not %s", e.text, bad[i].why);
    }
}

static size_t unescape(char *s, size_t n) { /* of a line of *_input.txt */
    static const char from[] = "nrts\\", to[] = "\n\r\t \\";
    size_t o = 0;
    for (size_t i = 0; i < n; i++) {
        const char *k = s[i] == '\\' && i + 1 < n ? strchr(from, s[i + 1]) : NULL;
        s[o++] = k && *k ? (i++, to[k - from]) : s[i];
    }
    return o;
}

static void check_lines(const struct tokenizer *t, const char *input, const char *model, bool lines) {
    char path[4096], *in, *gold, what[300];
    size_t n_in, n_gold;
    struct error e = {0};
    snprintf(path, sizeof path, SHARED_DIR "/tokenizers/%s_input.txt", input);
    assert_int_equal(file_read(path, 64 << 20, &in, &n_in, &e), 0);
    snprintf(path, sizeof path, SHARED_DIR "/tokenizers/%s_tokens_%s.txt", input, model);
    assert_int_equal(file_read(path, 64 << 20, &gold, &n_gold, &e), 0);
    int number = 1;
    for (char *s = in, *g = gold; g < gold + n_gold; number++) {
        char *stop = lines ? memchr(s, '\n', (size_t)(in + n_in - s)) : NULL,
             *g_stop = memchr(g, '\n', (size_t)(gold + n_gold - g));
        if (!stop) stop = in + n_in;
        if (!g_stop) g_stop = gold + n_gold;
        struct buf j = {0};
        struct arena a = {0};
        struct json want;
        buf_char(&j, '[');
        buf_add(&j, g, (size_t)(g_stop - g));
        buf_char(&j, ']');
        assert_int_equal(json_parse(&a, j.data, j.len, 0, path, &want, &e), 0);
        snprintf(what, sizeof what, "%s_input.txt line %d, %s", input, number, model);
        size_t n = lines ? unescape(s, (size_t)(stop - s)) : (size_t)(stop - s);
        check_ids(t, s, n, TEXT_VALUE, &want, what);
        arena_free(&a);
        buf_free(&j);
        s = stop + 1;
        g = g_stop + 1;
    }
    mem_free(in);
    mem_free(gold);
}

static void test_vendors(void **state) {
    for (int k = 0; k < 3; k++) {
        struct tokenizer *t;
        open_vendor(k, &t);
        check_lines(t, "small", vendors[k], true);
        check_lines(t, "mixed", vendors[k], true);
        check_lines(t, "utf8", vendors[k], false);
        tokenizer_close(&t);
    }
}

/* A user types the whole control vocabulary, token by token and concatenated: no control id may result, while the
 * same text in a template gives each. */
static void test_typed_control(void **state) {
    for (int k = 0; k < 3; k++) {
        struct tokenizer *t;
        struct buf s = {0};
        struct ids ids = {0};
        struct error e = {0};
        size_t n, count = 0;
        bool special;
        open_vendor(k, &t);
        for (int32_t id = 0; id < tokenizer_n_ids(t); id++) {
            const char *p = tokenizer_token_bytes(t, id, &n, &special);
            if (!p) continue;
            char *name = mem_strndup(p, n);
            if (strlen(name) == n && tokenizer_added_id(t, name) == id) {
                buf_add(&s, p, n);
                if (count++ % 3 == 1) buf_char(&s, ' ');
            }
            mem_free(name);
        }
        assert_true(count > 20);
        struct text_run spans[] = {{0, TEXT_TEMPLATE}, {s.len, TEXT_VALUE}};
        struct text text = {s.data, s.len, spans, 2};
        for (int way = 0; way < 2; way++) {
            ids.n = 0;
            assert_int_equal(way ? tokenizer_encode_text(t, &text, &ids, &e)
                                 : tokenizer_encode(t, s.data, s.len, TEXT_VALUE, &ids, &e),
                             0);
            for (size_t i = 0; i < ids.n; i++) {
                const char *p = tokenizer_token_bytes(t, ids.data[i], &n, &special);
                char *name = mem_strndup(p, n);
                if (strlen(name) == n && tokenizer_added_id(t, name) >= 0)
                    fail_msg("%s: typed text became %s", vendors[k], name);
                mem_free(name);
            }
        }
        ids.n = 0;
        assert_int_equal(tokenizer_encode(t, s.data, s.len, TEXT_TEMPLATE, &ids, &e), 0);
        size_t found = 0;
        for (size_t i = 0; i < ids.n; i++) {
            const char *p = tokenizer_token_bytes(t, ids.data[i], &n, &special);
            char *name = mem_strndup(p, n);
            found += tokenizer_added_id(t, name) >= 0;
            mem_free(name);
        }
        if (found != count) fail_msg("%s: %zu of %zu control tokens found in a template", vendors[k], found, count);
        ids_free(&ids);
        buf_free(&s);
        tokenizer_close(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small),           cmocka_unit_test(test_plain_tokens), cmocka_unit_test(test_origin),
        cmocka_unit_test(test_decoder),         cmocka_unit_test(test_wrong),        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_every_character), cmocka_unit_test(test_growth),       cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_vendors),         cmocka_unit_test(test_kimi_cuts),    cmocka_unit_test(test_tekken),
        cmocka_unit_test(test_typed_control),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
