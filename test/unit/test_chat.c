/* Which template a checkpoint uses, the output of formats published as code, and that typed text cannot act as control
 * tokens. */
#include "test/unit/unit.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/fault.h"
#include "base/mem.h"
#include "test/unit/files.h"
#include "tokenizer/chat/chat_effort.h"
#include "tokenizer/chat/chat_template.h"

static int before(void **state) { return make_dir(); }
static int after(void **state) { return remove_dir(); }

static int render(const struct chat_template *c, const char *conv, struct text *t, struct error *e) {
    struct arena a = {0};
    struct json j;
    assert_int_equal(json_parse(&a, conv, strlen(conv), 0, "conv", &j, e), 0);
    int rc = chat_template_render(c, &j, t, e);
    arena_free(&a);
    return rc;
}
static void expect(const char *conv, const char *want) {
    struct chat_template *c;
    struct text t;
    struct error e = {0};
    if (chat_template_open(&c, dir, NULL, &e)) fail_msg("%s", e.text);
    if (render(c, conv, &t, &e)) fail_msg("%s: %s", conv, e.text);
    if (strcmp(t.data, want)) print_error("%s\n  gives %s\n  wants %s\n", conv, t.data, want);
    assert_string_equal(t.data, want);
    text_free(&t);
    chat_template_close(&c);
}

static void test_files_that_hold_a_template(void **state) {
    struct chat_template *c;
    struct error e = {0};
    drop_all();
    assert_int_equal(chat_template_open(&c, dir, NULL, &e), ERR_MODEL);
    assert_null(c);
    assert_non_null(strstr(e.text, "no chat template"));
    put("tokenizer_config.json", "{\"chat_template\": \"\"}"); /* a template without text is none */
    put("chat_template.jinja", " \n");
    assert_int_equal(chat_template_open(&c, dir, NULL, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "no chat template"));
    put("empty.jinja", "\n");
    char given[256];
    snprintf(given, sizeof given, "%s/empty.jinja", dir);
    assert_int_equal(chat_template_open(&c, dir, given, &e), ERR_USAGE);
    assert_non_null(strstr(e.text, "the chat template is empty"));
    put("tokenizer_config.json", "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"chat_template\": "
                                 "\"{{ bos_token }}A{{ eos_token }}{{ pad_token }}\"}");
    expect("{}", "<s>A</s>");
    put("special_tokens_map.json", "{\"bos_token\": \"no\", \"pad_token\": \"<p>\"}");
    expect("{}", "<s>A</s><p>");
    expect("{\"bos_token\": \"<own>\"}", "<own>A</s><p>");
    put("chat_template.json", "{\"chat_template\": \"B{{ bos_token }}\"}");
    expect("{}", "B<s>");
    put("chat_template.jinja", "C{{ eos_token }}\n");
    expect("{}", "C</s>");
    put("t.jinja", "T{{ bos_token }}");
    char path[256];
    snprintf(path, sizeof path, "%s/t.jinja", dir);
    struct text t;
    assert_int_equal(chat_template_open(&c, dir, path, &e), 0);
    assert_int_equal(render(c, "{}", &t, &e), 0);
    assert_string_equal(t.data, "T<s>");
    assert_int_equal(t.n_runs, 1); /* the checkpoint's own tokens count as template text */
    assert_int_equal(t.runs[0].origin, TEXT_TEMPLATE);
    text_free(&t);
    uint64_t h = chat_template_hash(c);
    chat_template_close(&c);
    assert_null(c);
    assert_int_equal(chat_template_open(&c, NULL, path, &e), 0);
    assert_true(chat_template_hash(c) == h);
    chat_template_close(&c);
    put("t.jinja", "U");
    assert_int_equal(chat_template_open(&c, NULL, path, &e), 0);
    assert_true(chat_template_hash(c) != h);
    chat_template_close(&c);
}

/* A tekken.json names no special tokens; a tokenizer.json beside it decides that it is not read. */
static void test_tekken_tokens(void **state) {
    drop_all();
    put("tekken.json", "{}");
    put("chat_template.jinja", "{{ bos_token }}A{{ eos_token }}{{ unk_token }}{{ sep_token }}{{ pad_token }}");
    expect("{}", "<s>A</s><unk><pad>");
    put("tokenizer_config.json", "{\"eos_token\": \"[E]\"}");
    expect("{}", "<s>A[E]<unk><pad>");
    put("tokenizer.json", "{}");
    expect("{}", "A[E]");
}

static void test_named(void **state) {
    struct chat_template *c;
    struct error e = {0};
    drop_all();
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"}, {\"name\": "
                                 "\"tool_use\", \"template\": \"T\"}, {\"name\": "
                                 "\"rag\", \"template\": \"{% x\"}]}");
    expect("{\"messages\": []}", "D");
    expect("{\"tools\": null}", "D");
    expect("{\"tools\": [1]}", "T");
    put("tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"R\"}]}");
    assert_int_equal(chat_template_open(&c, dir, NULL, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "none is named default"));
    put("tokenizer_config.json", "{\"chat_template\": 5}");
    assert_int_equal(chat_template_open(&c, dir, NULL, &e), ERR_MODEL);
    /* broken: reported when the model opens, not at the first answer */
    put("tokenizer_config.json", "{\"chat_template\": \"a\\n{% if %}\"}");
    assert_int_equal(chat_template_open(&c, dir, NULL, &e), ERR_MODEL);
    assert_non_null(strstr(e.text, "line 2, column 7"));
    assert_null(c);
    put("tokenizer_config.json", "not json");
    assert_int_equal(chat_template_open(&c, dir, NULL, &e), ERR_MODEL);
}

/* DeepSeek-V3.2's format is published as encoding/encoding_dsv32.py in deepseek-ai/DeepSeek-V3.2;
 * the second case is the example in that repository's README. */
#define BOS "<｜begin▁of▁sentence｜>"
#define EOS "<｜end▁of▁sentence｜>"
static void test_deepseek_v32(void **state) {
    drop_all();
    put("config.json", "{\"model_type\": \"deepseek_v32\"}");
    expect("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", BOS "<｜User｜>hi<｜Assistant｜></think>");
    expect("{\"thinking\": true, \"messages\": [{\"role\": \"user\", \"content\": \"hello\"}, {\"role\": "
           "\"assistant\", \"content\": \"Hello! I am DeepSeek.\", "
           "\"reasoning_content\": \"thinking...\"}, {\"role\": \"user\", \"content\": \"1+1=?\"}]}",
           BOS "<｜User｜>hello<｜Assistant｜></think>Hello! I am DeepSeek." EOS
               "<｜User｜>1+1=?<｜Assistant｜><think>");
    expect("{\"enable_thinking\": true, \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": "
           "\"user\", \"content\": \"q\"}, "
           "{\"role\": \"assistant\", \"reasoning_content\": \"R\", \"content\": \"\", \"tool_calls\": [{\"function\": "
           "{\"name\": \"f\", \"arguments\": "
           "\"{\\\"a\\\": \\\"x\\\", \\\"n\\\": [1]}\"}}]}, {\"role\": \"tool\", \"content\": \"ok\"}]}",
           BOS "S<｜User｜>q<｜Assistant｜><think>R</think>\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke "
               "name=\"f\">\n<｜DSML｜parameter name=\"a\" string=\"true\">x"
               "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" "
               "string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>" EOS
               "\n\n<function_results>\n<result>ok</result>\n</function_results>\n\n<think>");
    struct chat_template *c;
    struct text t;
    struct error e = {0};
    assert_int_equal(chat_template_open(&c, dir, NULL, &e), 0);
    assert_int_not_equal(render(c, "{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}", &t, &e), 0);
    assert_int_equal(render(c,
                            "{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}], \"messages\": "
                            "[{\"role\": \"system\", \"content\": \"S\"}, "
                            "{\"role\": \"user\", \"content\": \"q\"}]}",
                            &t, &e),
                     0);
    assert_non_null(strstr(t.data, BOS "S\n\n## Tools\n\nYou have access to a set of tools you can use"));
    assert_non_null(strstr(t.data, "<functions>\n{\"name\": \"f\"}\n</functions>\n<｜User｜>q<｜Assistant｜></think>"));
    text_free(&t);
    chat_template_close(&c);
}
/* DeepSeek-V4's format as encoding/encoding_dsv4.py in deepseek-ai/DeepSeek-V4-Flash and -Pro. */
static void test_deepseek_v4(void **state) {
    drop_all();
    put("config.json", "{\"model_type\": \"deepseek_v4\"}");
    expect("{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"hi\"}]}",
           BOS "S<｜User｜>hi<｜Assistant｜></think>");
    expect("{\"thinking\": true, \"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
           "\"content\": \"b\", \"reasoning_content\": "
           "\"r\"}, "
           "{\"role\": \"user\", \"content\": \"c\"}]}",
           BOS "<｜User｜>a<｜Assistant｜></think>b" EOS "<｜User｜>c<｜Assistant｜><think>");
    expect("{\"thinking\": true, \"messages\": [{\"role\": \"user\", \"content\": \"q\", \"tools\": []}, {\"role\": "
           "\"assistant\", \"reasoning_content\": \"R\", "
           "\"content\": \"\", \"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": "
           "\"{\\\"a\\\": 1}\"}}, {\"id\": \"2\", "
           "\"function\": "
           "{\"name\": \"g\", \"arguments\": \"bad\"}}]}, {\"role\": \"tool\", \"tool_call_id\": \"2\", \"content\": "
           "\"two\"}, {\"role\": \"tool\", "
           "\"tool_call_id\": \"1\", \"content\": \"one\"}, {\"role\": \"user\", \"content\": \"and\"}]}",
           BOS
           "<｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke "
           "name=\"f\">\n<｜DSML｜parameter name=\"a\" "
           "string=\"false\">1</｜DSML｜parameter>\n"
           "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"g\">\n<｜DSML｜parameter name=\"arguments\" "
           "string=\"true\">bad</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
           "</｜DSML｜tool_calls>" EOS
           "<｜User｜><tool_result>one</tool_result>\n\n<tool_result>two</tool_result>\n\nand<｜Assistant｜><think>");
}
/* DeepSeek-V4.1's format as its encoding code in deepseek-ai/DeepSeek-V4.1-Flash. */
static void test_deepseek_v41(void **state) {
    const char *effort = "(range 1-100, the higher the value, the more thorough the reasoning)\n\n";
    char want[600];
    drop_all();
    put("config.json", "{\"model_type\": \"deepseek_v41\"}");
    expect("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}", BOS "<｜User｜>hi<｜Assistant｜></think>");
    expect("{\"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", \"content\": \"hi\"}, "
           "{\"role\": \"assistant\", \"content\": "
           "\"yo\"}, {\"role\": \"system\", \"content\": \"T\"}]}",
           BOS "<｜System｜>S<｜User｜>hi<｜Assistant｜></think>yo" EOS "<｜System｜>T<｜Assistant｜></think>");
    snprintf(want, sizeof want,
             BOS "<｜System｜>Reasoning Effort: 75 %s<｜User｜>a<｜Assistant｜></think>b" EOS
                 "<｜User｜>c<｜Assistant｜><think>",
             effort);
    expect("{\"thinking\": true, \"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
           "\"content\": \"b\", "
           "\"reasoning_content\": \"r\"}, {\"role\": \"user\", \"content\": \"c\"}]}",
           want);
    snprintf(want, sizeof want, BOS "<｜System｜>Reasoning Effort: 100 %sS<｜User｜>a<｜Assistant｜><think>", effort);
    expect("{\"thinking\": true, \"reasoning_effort\": \"max\", \"messages\": [{\"role\": \"system\", \"content\": "
           "\"S\"}, {\"role\": \"user\", "
           "\"content\": \"a\"}]}",
           want);
    snprintf(want, sizeof want, BOS "<｜System｜>Reasoning Effort: 3 %s<｜User｜>a<｜Assistant｜><think>", effort);
    expect("{\"thinking\": true, \"reasoning_effort\": 3, \"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}",
           want);
    expect("{\"messages\": [{\"role\": \"user\", \"content\": \"q\", \"tools\": []}, {\"role\": \"assistant\", "
           "\"content\": \"\", \"tool_calls\": [{\"id\": "
           "\"1\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1, \\\"b\\\": \\\"x\\\"}\"}}]}, "
           "{\"role\": \"tool\", \"tool_call_id\": \"1\", "
           "\"content\": \"one\"}]}",
           BOS "<｜User｜>q<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ "
               "parameter name=\"a\" "
               "string=\"false\">1</｜DSML｜ parameter>\n<｜DSML｜ parameter name=\"b\" string=\"true\">x</｜DSML｜ "
               "parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ "
               "calls>" EOS "<｜User｜><tool_result>one</tool_result><｜Assistant｜></think>");
}

/* Kimi K3's format as encoding_k3.py in moonshotai/Kimi-K3. */
#define K3_MESSAGE(head, text) "<|open|>message role=\"" head "\"<|sep|>" text "<|close|>message<|sep|><|end_of_msg|>"
#define K3_EFFORT(effort) \
    K3_MESSAGE("system\" type=\"thinking-effort", \
               "`thinking_effort` guides on how much to think in your thinking channel (not including the response " \
               "channel), supported values include `low`, " \
               "`medium`, `high`, and `max`.\nNow the system is invoked with `thinking_effort=" effort "`.")
#define K3_BEGIN        "<|open|>message role=\"assistant\"<|sep|>"
#define K3_THINK(text)  "<|open|>think<|sep|>" text "<|close|>think<|sep|>"
#define K3_ANSWER(text) "<|open|>response<|sep|>" text "<|close|>response<|sep|>"
#define K3_ARG(key, type, text) \
    "<|open|>argument key=\"" key "\" type=\"" type "\"<|sep|>" text "<|close|>argument<|sep|>"
static void test_kimi_k3(void **state) {
    drop_all();
    put("config.json", "{\"model_type\": \"kimi_k3\"}");
    expect("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}",
           K3_EFFORT("max") K3_MESSAGE("user", "hi") K3_BEGIN "<|open|>think<|sep|>");
    expect("{\"reasoning_effort\": \"low\", \"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}",
           K3_EFFORT("low") K3_MESSAGE("user", "hi") K3_BEGIN "<|open|>think<|sep|>");
    expect("{\"thinking\": false, \"messages\": [{\"role\": \"system\", \"content\": \"S\"}, {\"role\": \"user\", "
           "\"name\": \"a&\\\"b\", \"content\": "
           "[{\"type\": \"text\", \"text\": \"hi\"}]}, {\"role\": \"assistant\", \"reasoning_content\": \"R\", "
           "\"content\": \"A\"}]}",
           K3_MESSAGE("system", "S") K3_MESSAGE("user\" name=\"a&amp;&quot;b", "hi")
               K3_MESSAGE("assistant", K3_ANSWER("A")) K3_BEGIN "<|open|>response<|sep|>");
    expect(
        "{\"thinking_effort\": \"high\", \"add_generation_prompt\": false, \"messages\": [{\"role\": \"assistant\", "
        "\"reasoning_content\": \"R\", "
        "\"content\": \"\", \"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": "
        "\"{\\\"a\\\": \\\"x\\\", \\\"n\\\": [1, "
        "2]}\"}}, {\"id\": \"2\", \"function\": {\"name\": \"g\", \"arguments\": \"bad\"}}]}, {\"role\": \"tool\", "
        "\"tool_call_id\": \"2\", "
        "\"content\": \"two\"}, {\"role\": \"tool\", \"tool_call_id\": \"1\", \"content\": \"one\"}]}",
        K3_EFFORT("high") K3_MESSAGE(
            "assistant",
            K3_THINK("R") K3_ANSWER("") "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>" K3_ARG(
                "a", "string", "x")
                K3_ARG(
                    "n", "array",
                    "[1, 2]") "<|close|>call<|sep|><|open|>call tool=\"g\" index=\"2\"<|sep|><|open|>json "
                              "type=\"object\"<|sep|>bad<|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>")
            K3_MESSAGE("tool\" tool=\"f\" index=\"1", "one") K3_MESSAGE("tool\" tool=\"g\" index=\"2", "two"));
    expect(
        "{\"thinking\": false, \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"a\": 1}}], "
        "\"tool_choice\": \"required\", "
        "\"messages\": [{\"role\": \"user\", \"content\": \"q\"}]}",
        K3_MESSAGE(
            "system\" type=\"tool-declare",
            "# Tools\nHere are the available tools, described in JSONSchema.\n\n```json\n[{\"function\":{\"a\":1,"
            "\"name\":\"f\"},\"type\":\"function\"}]\n```") K3_MESSAGE("user", "q")
            K3_MESSAGE("system\" type=\"tool-choice",
                       "The system is invoked with `tool_choice=required`.\nYou MUST call tools in the next message.")
                K3_BEGIN "<|open|>response<|sep|>");
    static const char *const refused[] = {
        "{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}", "{\"messages\": [{\"role\": \"critic\"}]}",
        "{\"thinking_effort\": \"medium\", \"messages\": []}",
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}"};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct chat_template *c;
        struct text t;
        struct error e = {0};
        assert_int_equal(chat_template_open(&c, dir, NULL, &e), 0);
        assert_int_not_equal(render(c, refused[i], &t, &e), 0);
        chat_template_close(&c);
    }
}

static int origin_at(const struct text *t, ptrdiff_t at) {
    const struct text_run *r = t->runs;
    for (; at >= (ptrdiff_t)r->n; r++) at -= (ptrdiff_t)r->n;
    return r->origin;
}
/* Templates that leave out calls: a prompt has them, with markers that are control tokens and arguments that are
 * not. */
#define EACH_MESSAGE "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}\n{% endfor %}"
static void test_calls_that_templates_leave_out(void **state) {
    static const char conv[] = "{\"tools\": [], \"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
                               "\"assistant\", \"content\": null, \"tool_calls\": [{\"function\": "
                               "{\"name\": \"f\", \"arguments\": {\"a\": \"<|x|>\", \"n\": [1]}}}, {\"function\": "
                               "{\"name\": \"g\", \"arguments\": {}}}]}, {\"role\": \"tool\", "
                               "\"content\": \"r\"}]}";
    static const struct {
        const char *template, *want, *without;
    } cases[] = {
        {"{{ tools }}<|tool_list_start|>" EACH_MESSAGE,
         "<|tool_call_start|>[f(a=\"<|x|>\", n=[1]), g()]<|tool_call_end|>", "None"},
        {"{{ tools }}{# <|tool_call|> #}" EACH_MESSAGE,
         "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": \"<|x|>\", \"n\": [1]}}, {\"name\": \"g\", "
         "\"arguments\": {}}]",
         "None"},
        {"{{ tools }}{{ \"List of tools: [\" }}" EACH_MESSAGE,
         "<|tool_call_start|>[f(a=\"<|x|>\", n=[1]), g()]<|tool_call_end|>", "None"},
        {"{{ tools }}<|tool_list_start|>{{ messages[1].tool_calls[1].function.name }}" EACH_MESSAGE, "assistant: \n",
         "assistant: None"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_template *c;
        struct text t;
        struct error e = {0};
        struct arena a = {0};
        struct json j;
        drop_all();
        put("chat_template.jinja", cases[i].template);
        assert_int_equal(chat_template_open(&c, dir, NULL, &e), 0);
        assert_int_equal(json_parse(&a, conv, sizeof conv - 1, 0, "conv", &j, &e), 0);
        assert_int_equal(chat_template_render_prompt(c, &j, &t, &e), 0);
        const char *at = strstr(t.data, cases[i].want);
        if (!at) fail_msg("%s: %s", cases[i].template, t.data);
        const char *argument = strstr(at, "<|x|>");
        if (argument)
            assert_true(origin_at(&t, argument - t.data) == TEXT_VALUE && origin_at(&t, at - t.data) == TEXT_TEMPLATE);
        text_free(&t);
        assert_int_equal(chat_template_render(c, &j, &t, &e), 0); /* as published */
        assert_non_null(strstr(t.data, cases[i].without));
        text_free(&t);
        chat_template_close(&c);
        arena_free(&a);
    }
}

/* ---- every control token of every available vocabulary, typed by the user, adds no control id */

/* Flagged special or just added ("<think>", "<tool_call>"): both act on the model. */
static bool is_control(const struct tokenizer *t, int32_t id, const char **text, size_t *n) {
    bool special = false;
    char name[256];
    *text = tokenizer_token_bytes(t, id, n, &special);
    if (!*text || special || *n >= sizeof name) return *text && special;
    memcpy(name, *text, *n);
    name[*n] = 0;
    return tokenizer_added_id(t, name) == id;
}
static int control_ids(const struct tokenizer *t, const struct ids *ids) {
    int count = 0;
    const char *text;
    size_t n;
    for (size_t i = 0; i < ids->n; i++) count += is_control(t, ids->data[i], &text, &n);
    return count;
}
/* Returns the number of control ids, or -1 if the template refuses the conversation. *length: number of ids. */
static int rendered_controls(const struct chat_template *c, const struct tokenizer *t, const char *typed, size_t n,
                             size_t *length) {
    struct buf b = {0};
    struct text text;
    struct ids ids = {0};
    struct error e = {0};
    buf_str(&b, "{\"add_generation_prompt\": true, \"messages\": [{\"role\": \"system\", \"content\": ");
    json_quote(&b, typed, n);
    buf_str(&b, "}, {\"role\": \"user\", \"content\": ");
    json_quote(&b, typed, n);
    buf_str(&b, "}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"description\": ");
    json_quote(&b, typed, n);
    buf_str(&b, ", \"parameters\": {\"type\": \"object\", \"properties\": {}}}}]}");
    int count = -1;
    if (!render(c, b.data, &text, &e)) {
        assert_int_equal(tokenizer_encode_text(t, &text, &ids, &e), 0);
        count = control_ids(t, &ids);
        *length = ids.n;
        text_free(&text);
    }
    ids_free(&ids);
    buf_free(&b);
    return count;
}
static int inject(const struct tokenizer *t) {
    struct buf all = {0};
    int pairs = 0, templates = 0;
    size_t controls = 0;
    for (int32_t id = 0; id < tokenizer_n_ids(t); id++) {
        size_t n;
        const char *s;
        if (is_control(t, id, &s, &n)) buf_add(&all, s, n), buf_char(&all, ' '), controls++;
    }
    assert_true(controls > 10);
    DIR *d = opendir(SHARED_DIR "/templates");
    for (struct dirent *f; d && (f = readdir(d));) {
        char path[4096];
        struct chat_template *c;
        struct error e = {0};
        size_t n = strlen(f->d_name);
        if (n < 7 || strcmp(f->d_name + n - 6, ".jinja")) continue;
        snprintf(path, sizeof path, SHARED_DIR "/templates/%s", f->d_name);
        assert_int_equal(chat_template_open(&c, NULL, path, &e), 0);
        size_t short_ids = 0, ids = 0;
        int usual = rendered_controls(c, t, "harmless", 8, &short_ids),
            now = rendered_controls(c, t, all.data, all.len, &ids);
        if (usual != now) fail_msg("%s: %d control ids, with typed ones %d", f->d_name, usual, now);
        if (usual >= 0 && ids < short_ids + controls) fail_msg("%s: what was typed is not in the prompt", f->d_name);
        templates++, pairs += usual >= 0;
        chat_template_close(&c);
    }
    if (d) closedir(d);
    buf_free(&all);
    assert_true(templates > 0 && pairs >= templates - 1); /* one of them has no system prompt */
    return pairs;
}
static void link_as(const char *from, const char *name) {
    char path[256];
    drop(name);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    assert_int_equal(symlink(from, path), 0);
}
static void test_injection(void **state) {
    DIR *d = opendir(SHARED_DIR "/tokenizers");
    int pairs = 0;
    drop_all();
    if (!d) {
        SKIP("no vocabularies in ../shared/tokenizers");
    }
    for (struct dirent *f; (f = readdir(d));) {
        char path[4096];
        const char *json = strstr(f->d_name, ".tokenizer.json"), *tik = strstr(f->d_name, ".tiktoken");
        if (!json && !tik) continue;
        snprintf(path, sizeof path, SHARED_DIR "/tokenizers/%s", f->d_name);
        link_as(path, json ? "tokenizer.json" : "tiktoken.model");
        snprintf(path, sizeof path, SHARED_DIR "/tokenizers/%.*s.tokenizer_config.json",
                 (int)((json ? json : tik) - f->d_name), f->d_name);
        if (!access(path, R_OK)) link_as(path, "tokenizer_config.json");
        else put("tokenizer_config.json", "{\"tokenizer_class\": \"TikTokenTokenizer\"}");
        struct tokenizer *t;
        struct error e = {0};
        if (tokenizer_open(&t, dir, &e)) fail_msg("%s: %s", f->d_name, e.text);
        pairs += inject(t);
        tokenizer_close(&t);
        drop("tokenizer.json");
        drop("tiktoken.model");
        drop("tokenizer_config.json");
    }
    closedir(d);
    print_message("%d pairs of vocabulary and template\n", pairs);
    assert_true(pairs > 0);
}

/* ---- the published templates of ../shared/templates: the bytes that Jinja2 gives, including errors */
static char *slurp(const char *path, size_t *n) {
    char *s;
    struct error e = {0};
    if (access(path, R_OK)) return NULL;
    if (file_read(path, 1 << 24, &s, n, &e)) fail_msg("%s", e.text);
    return s;
}
static bool one_expected(const char *name, const char *conv_name) {
    char path[4096];
    size_t n, m;
    struct chat_template *c;
    struct text t;
    struct error e = {0};
    int stem = (int)strlen(name) - 6, conv_stem = (int)strlen(conv_name) - 5;
    snprintf(path, sizeof path, SHARED_DIR "/templates/%s", name);
    assert_int_equal(chat_template_open(&c, NULL, path, &e), 0);
    snprintf(path, sizeof path, SHARED_DIR "/templates/conversations/%s", conv_name);
    char *conv = slurp(path, &m);
    snprintf(path, sizeof path, SHARED_DIR "/templates/expected/%.*s--%.*s.txt", stem, name, conv_stem, conv_name);
    char *want = slurp(path, &n);
    int rc = render(c, conv, &t, &e);
    if (want && (rc || t.n != n || memcmp(t.data, want, n) != 0))
        fail_msg("%s with %s: %s", name, conv_name, rc ? e.text : t.data);
    if (!want && !rc) fail_msg("%s with %s should fail", name, conv_name);
    if (!rc) text_free(&t);
    mem_free(want);
    mem_free(conv);
    chat_template_close(&c);
    return true;
}
static void test_published_templates_render_as_recorded(void **state) {
    DIR *d = opendir(SHARED_DIR "/templates");
    int cases = 0;
    if (!d) {
        SKIP("no ../shared/templates");
    }
    setenv("SOURCE_DATE_EPOCH", "1795253400", 1);
    setenv("TZ", "UTC", 1);
    for (struct dirent *f; (f = readdir(d));) {
        size_t n = strlen(f->d_name);
        if (n < 7 || strcmp(f->d_name + n - 6, ".jinja")) continue;
        DIR *convs = opendir(SHARED_DIR "/templates/conversations");
        assert_non_null(convs);
        for (struct dirent *g; (g = readdir(convs));)
            if (strstr(g->d_name, ".json")) cases += one_expected(f->d_name, g->d_name);
        closedir(convs);
    }
    closedir(d);
    print_message("%d cases\n", cases);
    assert_true(cases > 0);
}

static void test_no_memory(void **state) {
    drop_all();
    put("tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"chat_template\": [{\"name\": \"default\", "
        "\"template\": "
        "\"{% for m in messages %}{{ m.content }}{% endfor %}\"}, {\"name\": \"tool_use\", \"template\": \"T\"}]}");
    put("config.json", "{\"model_type\": \"deepseek_v4\"}");
    for (int known = 0; known < 2; known++) {
        if (known) drop("tokenizer_config.json");
        for (long nth = 1;; nth++) {
            struct chat_template *c;
            struct error e = {0};
            fault_set(FAULT_ALLOC, nth, false, false);
            int rc = chat_template_open(&c, dir, NULL, &e);
            long asked = fault_count(FAULT_ALLOC);
            fault_set(FAULT_ALLOC, 0, false, false);
            if (rc) {
                assert_int_equal(rc, ERR_MEMORY);
                assert_null(c);
            } else {
                chat_template_close(&c);
                if (asked < nth) break;
            }
        }
    }
}

/* Whether a template reads a variable, and which level of effort it gets. */
static void test_efforts(void **state) {
    static const struct {
        const char *template, *efforts; /* the level for each of none, minimal, low, medium, high, xhigh and max */
    } cases[] = {
        /* as Qwen3.8: all others are refused */
        {"{%- set e = reasoning_effort|default('xhigh') %}{%- if e not in ('xhigh', 'medium', 'low') %}{{- "
         "raise_exception('Unexpected effort') }}{%- endif %}{{ e }}",
         "low low low medium medium xhigh xhigh"},
        /* as gpt-oss: only the default is named */
        {"{%- if reasoning_effort is not defined %}{%- set reasoning_effort = \"medium\" %}{%- endif %}{{- 'Reasoning: "
         "' "
         "+ reasoning_effort }}",
         "low low low medium high high high"},
        /* as Mistral Small 4 */
        {"{%- if reasoning_effort is defined and reasoning_effort not in ['none', 'high'] %}{{- raise_exception('no') "
         "}}{%- endif %}",
         "none none none high high high high"},
        /* as DeepSeek-V4, and one that refuses every question */
        {"{{ 'a' if reasoning_effort == 'max' else 'b' }}", "low low low medium high high max"},
        {"{{ raise_exception('never') if messages }}{{ reasoning_effort }}", "none minimal low medium high xhigh max"},
    };
    drop_all();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct chat_template *c;
        struct error e = {0};
        struct buf got = {0};
        put("chat_template.jinja", cases[i].template);
        assert_int_equal(chat_template_open(&c, dir, NULL, &e), 0);
        assert_true(chat_template_reads(c, "reasoning_effort"));
        assert_false(chat_template_reads(c, "enable_thinking"));
        for (int k = 0; k < CHAT_EFFORTS; k++) {
            const char *level;
            assert_int_equal(chat_effort_fit(c, chat_effort_levels[k], strlen(chat_effort_levels[k]), &level, &e), 0);
            buf_fmt(&got, "%s%s", k ? " " : "", level);
        }
        assert_string_equal(got.data, cases[i].efforts);
        const char *level = "";
        assert_int_equal(chat_effort_fit(c, "maximum", 7, &level, &e), 0);
        assert_null(level);
        buf_free(&got);
        chat_template_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files_that_hold_a_template),
        cmocka_unit_test(test_named),
        cmocka_unit_test(test_efforts),
        cmocka_unit_test(test_tekken_tokens),
        cmocka_unit_test(test_deepseek_v32),
        cmocka_unit_test(test_deepseek_v4),
        cmocka_unit_test(test_deepseek_v41),
        cmocka_unit_test(test_calls_that_templates_leave_out),
        cmocka_unit_test(test_kimi_k3),
        cmocka_unit_test(test_injection),
        cmocka_unit_test(test_published_templates_render_as_recorded),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, before, after);
}
