/* Tool calls in conversations: requests of the protocol and their template variables, ids, the forms of messages, saved
 * messages, and the programs that calls run. */
#include "cli/saved/store_message.h"
#include "cli/server/api.h"
#include "cli/tools/tool_process.h"
#include "cli/turn/conversation.h"
#include "test/unit/unit.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const struct json *parsed(struct api_request *r, const char *body) {
    struct error e = {0};
    if (openai_chat.parse(r, body, strlen(body), NULL, false, &e)) fail_msg("%s: %s", body, e.text);
    return &r->template_input;
}

/* A client's fields become template variables, except that messages and tools are always the request's own. */
static void test_request(void **state) {
    struct api_request r;
    const struct json *c =
        parsed(&r, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
                   "\"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": "
                   "\"assistant\", "
                   "\"content\": null, \"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": "
                   "\"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]}], \"chat_template_kwargs\": "
                   "{\"enable_thinking\": false, \"messages\": 7}, \"tools\": [{\"function\": {\"name\": \"f\"}}], "
                   "\"stop\": \"end\", \"seed\": 5}");
    const struct json *messages = json_get(c, "messages");
    assert_int_equal(messages->type, JSON_ARRAY);
    assert_true(json_is(json_get(&messages->items[0], "content"), "ab"));
    const struct json *call = json_at(json_get(&messages->items[1], "tool_calls"), 0);
    assert_true(json_is(json_path(call, "function.arguments"), "{\"x\": 1}")); /* the template's forms decide */
    assert_true(json_is(json_path(call, "function.name"), "f"));
    assert_int_equal(json_get(c, "tools")->type, JSON_ARRAY);
    assert_false(json_bool(json_get(c, "enable_thinking"), true));
    assert_true(json_bool(json_get(c, "add_generation_prompt"), false));
    assert_int_equal(r.n_stop, 1);
    assert_string_equal(r.stop[0], "end");
    assert_true(r.seed == 5 && isnan(r.temperature) && r.top_k == -1 && r.max_tokens == -1 && !r.stream);
    api_free(&r);
    c = parsed(&r, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{\"function\": {\"name\": "
                   "\"f\"}}], \"tool_choice\": "
                   "\"none\", \"reasoning_effort\": \"low\", "
                   "\"max_tokens\": null}");
    assert_null(json_get(c, "tools"));
    assert_true(json_is(json_get(c, "reasoning_effort"), "low"));
    api_free(&r);
}

/* Kimi's ids are part of its calls and return with their results. */
static void test_ids(void **state) {
    static const char markup[] =
        "<|tool_call_begin|>functions.weather:3<|tool_call_argument_begin|>{}<|tool_call_end|>";
    struct tool_calls c = {0}, copy = {0};
    assert_int_equal(tool_calls_parse(markup, sizeof markup - 1, NULL, &c), 0);
    assert_string_equal(c.v[0].id.data, "functions.weather:3");
    assert_int_equal(tool_calls_copy(&c, &copy), 0);
    assert_string_equal(copy.v[0].id.data, "functions.weather:3");
    assert_string_equal(copy.v[0].arguments.data, "{}");
    tool_calls_free(&c);
    tool_calls_free(&copy);
}

/* --- conversations ---------------------------------------------------------------------------- */

static void check_form(const struct message *m, enum message_form form, const char *want) {
    struct buf b = {0};
    conversation_message_json(m, form, &b);
    assert_string_equal(b.data, want);
    buf_free(&b);
}

/* Templates get arguments as an object, requests get them as text; content is null only where that is expected. */
static void test_message_forms(void **state) {
    static const char markup[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>";
#define CALL(content, arguments) \
    "{\"role\": \"assistant\", \"content\": " content ", \"tool_calls\": [{\"id\": \"\", \"type\": \"function\", " \
    "\"function\": {\"name\": \"f\", \"arguments\": " arguments "}}]"
    struct conversation c = {0};
    struct tool_calls calls = {0};
    assert_int_equal(tool_calls_parse(markup, sizeof markup - 1, NULL, &calls), 0);
    assert_int_equal(conversation_add(&c, ROLE_ASSISTANT, "", 0, NULL, 0), 0);
    assert_int_equal(conversation_add_calls(&c, &calls), 0);
    check_form(&c.messages[0], MESSAGE_SAVED, CALL("\"\"", "{\"x\": 1}"));
    check_form(&c.messages[0], MESSAGE_TEMPLATE, CALL("\"\"", "{\"x\": 1}"));
    check_form(&c.messages[0], MESSAGE_REQUEST, CALL("null", "\"{\\\"x\\\": 1}\""));
    buf_str(&c.messages[0].text, "t");
    check_form(&c.messages[0], MESSAGE_TEMPLATE, CALL("\"t\"", "{\"x\": 1}"));
    assert_int_equal(conversation_add_result(&c, &calls.v[0], "", 0), 0);
    check_form(&c.messages[1], MESSAGE_TEMPLATE,
               "{\"role\": \"tool\", \"content\": \"\", \"tool_call_id\": \"\", \"name\": \"f\"");
    assert_true(conversation_has_calls(&c));
    conversation_free(&c);
    tool_calls_free(&calls);
#undef CALL
}

/* Reads a message of a session file; returns what is written of it again, to be freed, or NULL if it is malformed. */
static char *read_again(const char *text) {
    struct arena arena = {0};
    struct conversation c = {0};
    struct json j;
    struct buf b = {0};
    struct error e;
    assert_int_equal(json_parse(&arena, text, strlen(text), 0, "message", &j, NULL), 0);
    int rc = store_message_add(&j, "file", &c, &e);
    if (!rc) conversation_message_json(&c.messages[0], MESSAGE_SAVED, &b), buf_char(&b, '}');
    else assert_int_equal(rc, ERR_MODEL);
    conversation_free(&c);
    arena_free(&arena);
    return b.data;
}

static void test_saved_messages(void **state) {
    static const char
        *const good[] = {"{\"role\": \"assistant\", \"content\": \"t\", \"thinking\": \"h\", \"tool_calls\": [{\"id\": "
                         "\"a\", \"type\": \"function\", "
                         "\"function\": {\"name\": \"f\", "
                         "\"arguments\": {\"x\": [1]}}}]}",
                         "{\"role\": \"tool\", \"content\": \"\", \"tool_call_id\": \"a\", \"name\": \"f\"}"},
               *const bad[] = {"{\"role\": \"tool\", \"content\": \"\"}",
                               "{\"role\": \"tool\", \"content\": \"\", \"tool_call_id\": \"a\", \"name\": \"\"}",
                               "{\"role\": \"user\", \"content\": \"\", \"tool_calls\": []}",
                               "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"a\", "
                               "\"function\": {\"name\": \"f\"}}]}",
                               "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"a\", "
                               "\"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}",
                               "{\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"function\": "
                               "{\"name\": \"f\", \"arguments\": {}}}]}"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char *again = read_again(good[i]);
        assert_string_equal(again, good[i]);
        mem_free(again);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_null(read_again(bad[i]));
}

/* --- processes -------------------------------------------------------------------------------- */

static void run(const char *const *argv, size_t n_input, size_t max_output, struct tool_result *r) {
    char *input = malloc(n_input);
    memset(input, 'x', n_input);
    const struct tool_command c = {.argv = (const char **)argv, .timeout_s = 60, .max_output = max_output};
    *r = (struct tool_result){0};
    tool_process_run(&c, input, n_input, -1, r);
    free(input);
}

/* Input and output are larger than a pipe holds, in both directions at once; a program that does not read or that
 * writes too much is no failure. */
static void test_large_streams(void **state) {
    enum { LARGE = 3 << 20 };
    struct tool_result r;
    signal(SIGPIPE, SIG_IGN); /* as sig_init() does */
    run((const char *const[]){"cat", NULL}, LARGE, 2 * LARGE, &r);
    assert_int_equal(r.status, TOOL_OK);
    assert_int_equal(r.text.len, LARGE);
    tool_result_free(&r);
    run((const char *const[]){"true", NULL}, LARGE, LARGE, &r);
    assert_int_equal(r.status, TOOL_OK);
    assert_int_equal(r.text.len, 0);
    tool_result_free(&r);
    run((const char *const[]){"cat", NULL}, LARGE, LARGE / 2, &r);
    assert_int_equal(r.status, TOOL_OK);
    assert_int_equal(r.text.len, LARGE / 2 + strlen("\n[cut at 1572864 bytes]"));
    tool_result_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_request), cmocka_unit_test(test_ids),
                                       cmocka_unit_test(test_message_forms), cmocka_unit_test(test_saved_messages),
                                       cmocka_unit_test(test_large_streams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
