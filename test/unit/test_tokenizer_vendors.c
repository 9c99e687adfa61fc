/* The tokenizer against the golden ids of ../shared, with published vocabularies: each vendor's own rules, and text
 * that imitates control tokens. */
#include "test/unit/unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "tokenizer/tokenizer.h"

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
        cmocka_unit_test(test_fixtures), cmocka_unit_test(test_vendors),       cmocka_unit_test(test_kimi_cuts),
        cmocka_unit_test(test_tekken),   cmocka_unit_test(test_typed_control),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
