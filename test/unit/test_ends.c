/* Which tokens end an answer: those of a GGUF file's metadata and names, of tokenizer_config.json, and of templates. */
#include "test/unit/unit.h"

#include <stdio.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/gguf_tokens.h"
#include "base/mem.h"
#include "tokenizer/chat/chat_template.h"

/* --- GGUF ------------------------------------------------------------------------------------- */

/* Expects the ids that a file's metadata ends a turn with, written as "1 5 3". */
static void expect_ends(const char *meta, const char *want) {
    struct arena a = {0};
    struct json j;
    struct error e = {0};
    struct buf got = {0};
    int64_t ids[16];
    if (json_parse(&a, meta, strlen(meta), 0, "meta", &j, &e)) fail_msg("%s", e.text);
    const uint32_t n = gguf_token_ends(&j, ids, 16);
    buf_str(&got, "");
    for (uint32_t i = 0; i < n; i++) buf_fmt(&got, "%s%lld", i ? " " : "", (long long)ids[i]);
    assert_string_equal(got.data, want);
    buf_free(&got);
    arena_free(&a);
}
#define META(tokens, types, rest) \
    "{\"tokenizer.ggml.tokens\":[" tokens "],\"tokenizer.ggml.token_type\":[" types "]" rest "}"

static void ends_of_gguf(void **state) {
    expect_ends("{}", "");
    expect_ends(META("\"a\",\"<|im_end|>\"", "1,3", ",\"tokenizer.ggml.eos_token_id\":0"), "0 1");
    /* names that only control tokens have, however they are typed; unused ones are not used */
    expect_ends(META("\"<|im_end|>\",\"<eos>\",\"<|endoftext|>\"", "1,4,5", ""), "0 1");
    expect_ends("{\"tokenizer.ggml.tokens\":[\"<|eot_id|>\"]}", "0");
    /* an HTML tag of Gemma's vocabularies, and the end of SentencePiece's */
    expect_ends(META("\"</s>\"", "4", ""), "");
    expect_ends(META("\"</s>\"", "1", ""), "");
    expect_ends(META("\"</s>\"", "3", ""), "0");
    expect_ends(META("\"</s>\",\"<|tool_response>\",\"<turn|>\"", "3,4,3", ""), "1 2");
    /* Harmony's and Solar Open's messages */
    expect_ends(META("\"<|end|>\",\"<|return|>\",\"<|call|>\"", "3,3,3", ""), "1 2");
    expect_ends(META("\"<|end|>\",\"<|flush|>\",\"<|calls|>\"", "3,3,3", ",\"tokenizer.ggml.eos_token_id\":0"), "1 2");
    expect_ends(META("\"<|end|>\",\"<|call|>\"", "3,3", ""), "0 1");
    /* gaps in code */
    expect_ends(META("\"<|fim_pad|>\",\"<|repo_name|>\",\"<|file_sep|>\",\"<reponame>\",\"[PAD]\",\"<|fim_prefix|>\"",
                     "4,3,1,3,3,3", ""),
                "0 1 2 3 4");
    expect_ends(META("\"a\",\"b\",\"c\"", "1,1,1",
                     ",\"tokenizer.ggml.fim_pad_token_id\":1,\"tokenizer.ggml.fim_rep_token_id\":3"),
                "1");
    /* ids that mean that there is no such token, and lists */
    expect_ends(META("\"a\"", "1", ",\"tokenizer.ggml.eos_token_id\":-1,\"tokenizer.ggml.eot_token_id\":4294967295"),
                "");
    expect_ends(META("\"a\",\"b\"", "1,1", ",\"tokenizer.ggml.eos_token_id\":[1,0,1]"), "1 0");
    expect_ends(META("\"a\"", "1", ",\"tokenizer.ggml.eos_token_id\":5,\"tokenizer.ggml.eot_token_id\":5"), "5");
}

static void types_of_gguf(void **state) {
    struct arena a = {0};
    struct json texts, types;
    struct error e = {0};
    static const char names[] = "[\"<|im_end|>\",\"<|im_end|>\",\"</s>\",\"<|fim_middle|>\",\"<b>\",5]",
                      numbers[] = "[1,5,4,4,4,1]";
    static const int64_t want[] = {GGUF_TOKEN_CONTROL, GGUF_TOKEN_UNUSED, GGUF_TOKEN_USER,
                                   GGUF_TOKEN_CONTROL, GGUF_TOKEN_USER,   GGUF_TOKEN_NORMAL};
    assert_int_equal(json_parse(&a, names, sizeof names - 1, 0, "names", &texts, &e), 0);
    assert_int_equal(json_parse(&a, numbers, sizeof numbers - 1, 0, "types", &types, &e), 0);
    for (uint32_t i = 0; i < sizeof want / sizeof *want; i++)
        assert_int_equal(gguf_token_type(&texts, &types, i), want[i]);
    assert_int_equal(gguf_token_type(&texts, NULL, 0), GGUF_TOKEN_CONTROL);
    arena_free(&a);
}

/* --- tokenizer_config.json and templates ------------------------------------------------------ */

#define SPECIAL(id, text) "{\"id\":" #id ",\"content\":\"" text "\",\"special\":true},"
static const char vocabulary[] =
    "{\"added_tokens\":[" SPECIAL(10, "<|im_start|>") SPECIAL(11, "<|im_end|>") SPECIAL(12, "<|end|>")
        SPECIAL(13, "<|endoftext|>") SPECIAL(14, "<|END_RESPONSE|>") SPECIAL(15, "<|END_OF_TURN_TOKEN|>")
            SPECIAL(16, "<|close|>") "{\"id\":17,\"content\":\"</s>\",\"special\":true}],"
                                     "\"model\":{\"type\":\"BPE\",\"unk_token\":\"u\",\"vocab\":{\"a\":0,\" "
                                     "\":1,\"\\n\":2,\"u\":3},\"merges\":[]}}";

static int open_with(struct tokenizer **t, struct chat_template **c, const char *config) {
    struct error e = {0};
    const struct file_embedded table[] = {
        {"tokenizer.json", (const uint8_t *)vocabulary, (const uint8_t *)vocabulary + sizeof vocabulary - 1},
        {"tokenizer_config.json", (const uint8_t *)config, (const uint8_t *)config + strlen(config)},
        {NULL, NULL, NULL}};
    file_embed(table);
    int rc = tokenizer_open(t, "ember:", &e);
    if (!rc && c) rc = chat_template_open(c, "ember:", NULL, &e);
    file_embed(NULL);
    if (rc) print_error("%s\n", e.text);
    return rc;
}

static void end_of_tokenizer_config(void **state) {
    static const struct {
        const char *config;
        int32_t want;
    } rows[] = {{"{}", -1},
                {"{\"eos_token\":\"<|im_end|>\"}", 11},
                {"{\"eos_token\":{\"content\":\"</s>\"},\"add_bos_token\":false}", 17},
                {"{\"eos_token\":\"a\"}", 0},
                {"{\"eos_token\":null}", -1},
                {"{\"eos_token\":\"<absent>\"}", -1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tokenizer *t;
        assert_int_equal(open_with(&t, NULL, rows[i].config), 0);
        assert_int_equal(tokenizer_eos(t), rows[i].want);
        tokenizer_close(&t);
    }
}

static void end_of_template(void **state) {
#define EACH "{% for m in messages %}"
#define DONE "{% endfor %}"
    static const struct {
        const char *text;
        int32_t want;
    } rows[] = {
        {EACH "<|im_start|>{{ m['role'] }}\\n{{ m['content'] }}<|im_end|>\\n" DONE, 11},
        {EACH "{{ m.content }}{{ eos_token }}" DONE, 17},
        {EACH "{{ m.content }}\\n<|end|>\\n" DONE "{% if not add_generation_prompt %}<|endoftext|>{% endif %}", 12},
        {EACH "{{ m.content }}" DONE, -1},
        {EACH "{{ m.content }} a <|im_end|>" DONE, -1}, /* a fixed text, and then an end */
        {EACH "<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|><|END_OF_TURN_TOKEN|>" DONE, 15},
        {"<|open|>think<|sep|>" EACH "{{ m.content }}<|close|>response<|sep|>" DONE, -1},
        {EACH "<|start|>{{ m.role }}<|channel|>final<|message|>{{ m.content }}<|end|>" DONE, -1}, /* of a message */
        {"{{ raise_exception('no') }}", -1},
        {EACH "<|im_end|>" DONE, -1},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct tokenizer *t;
        struct chat_template *c;
        struct error e = {0};
        struct buf config = {0};
        int32_t id = 5;
        buf_fmt(&config, "{\"eos_token\":\"</s>\",\"chat_template\":\"%s\"}", rows[i].text);
        assert_int_equal(open_with(&t, &c, config.data), 0);
        assert_int_equal(chat_template_end(c, t, &id, &e), 0);
        if (id != rows[i].want) fail_msg("%s: %d instead of %d", rows[i].text, id, rows[i].want);
        chat_template_close(&c);
        tokenizer_close(&t);
        buf_free(&config);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ends_of_gguf), cmocka_unit_test(types_of_gguf),
                                       cmocka_unit_test(end_of_tokenizer_config), cmocka_unit_test(end_of_template)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
