/* Tool calls parsed from model output, in each family's markup; requests of the protocol and their template variables. */
#include <math.h>
#include <string.h>

#include "cli/server/api.h"
#include "test/unit/unit.h"

static const char weather[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, "
    "\"days\": {\"type\": \"integer\"}}}}}]";

/* "name(arguments) name(arguments)", or "?" if it is not a call. */
static void check(const char *markup, const char *want) {
    struct arena arena = {0};
    struct json tools;
    struct tool_calls c = {0};
    struct buf got = {0};
    assert_int_equal(json_parse(&arena, weather, sizeof weather - 1, 0, "tools", &tools, NULL), 0);
    int rc = tool_calls_parse(markup, strlen(markup), &tools, &c);
    if (rc) {
        assert_int_equal(rc, ERR_MODEL);
        assert_int_equal(c.n, 0);
        buf_str(&got, "?");
    }
    for (size_t i = 0; i < c.n; i++) {
        struct json j;
        buf_fmt(&got, "%s%s(%s)", i ? " " : "", c.v[i].name.data, c.v[i].arguments.data);
        assert_int_equal(json_parse(&arena, c.v[i].arguments.data, c.v[i].arguments.len, 0, "arguments", &j, NULL), 0);
        assert_int_equal(j.type, JSON_OBJECT);
    }
    assert_string_equal(got.data, want);
    buf_free(&got);
    tool_calls_free(&c);
    arena_free(&arena);
}

static void test_markup(void **state) {
    static const char one[] = "weather({\"city\": \"Bern\", \"days\": 3})";
    check("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}\n</tool_call>", one); /* Qwen, Hermes */
    check("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
          one); /* GLM */
    check("<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
          one); /* Qwen3-Coder */
    check("<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Bern</parameter>\n<parameter "
          "name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>",
          one);
    check("<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": \"Bern\", \"days\": "
          "3}<|tool_call_end|><|tool_calls_section_end|>",
          one); /* Kimi */
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Bern\", \"days\": "
          "3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          one); /* R1 */
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bern\", \"days\": 3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          one); /* V3.1 */
    check("<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
          "string=\"true\">Bern</｜DSML｜parameter>\n<｜DSML｜parameter "
          "name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
          one);
    check("[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]", one); /* Mistral */
    check("[TOOL_CALLS]weather[ARGS]{\"city\": \"Bern\", \"days\": 3}", one);
    check("<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}", one);                 /* Llama */
    check("<|python_start|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}<|python_end|>", one); /* Llama 4 */
    check("<longcat_tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}</longcat_tool_call>", one);
    check("<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]</tool_calls>", one);             /* Hunyuan */
    check("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\", \"days\": 3}<|call|>", one); /* gpt-oss */
}

/* Marks within the strings of JSON arguments are text. */
static void test_marks_in_strings(void **state) {
    check("<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": \"</tool_call> \\\" {<|tool_call_begin|>\"}}\n</tool_call>\n<tool_call>{\"name\": "
          "\"b\"}</tool_call>",
          "a({\"x\": \"</tool_call> \\\" {<|tool_call_begin|>\"}) b({})");
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\": \"<｜tool▁call▁end｜>\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          "a({\"x\": \"<｜tool▁call▁end｜>\"})");
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n{\"x\": \"``` {\"}\n```<｜tool▁call▁end｜>", "a({\"x\": \"``` {\"})");
    check("<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{\"x\": \"<|tool_call_end|><tool_call>\"}<|tool_call_end|>",
          "a({\"x\": \"<|tool_call_end|><tool_call>\"})");
    check("<|channel|>commentary to=functions.a <|constrain|>json<|message|>{\"x\": \"<|call|>\"}", "a({\"x\": \"<|call|>\"})");
    check("[TOOL_CALLS]a[ARGS]{\"x\": \"[TOOL_CALLS]\"}[TOOL_CALLS]b[ARGS]{}", "a({\"x\": \"[TOOL_CALLS]\"}) b({})");
}

static void test_several(void **state) {
    check("<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"b\"}</tool_call>", "a({}) b({})");
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>b<｜tool▁sep｜>{\"x\": "
          "[1]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          "a({}) b({\"x\": [1]})");
    check("[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{\"x\": 1}", "a({}) b({\"x\": 1})");
    check("[TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {}}, {\"name\": \"b\", \"arguments\": \"{\\\"x\\\": 1}\"}]", "a({}) b({\"x\": 1})");
}

/* A string stays a string where the schema says so, even if it looks like another type; without a type it is parsed as JSON. */
static void test_types(void **state) {
    check("<tool_call>weather<arg_key>city</arg_key><arg_value>42</arg_value><arg_key>days</arg_key><arg_value>42</arg_value></tool_call>",
          "weather({\"city\": \"42\", \"days\": 42})");
    check("<tool_call>other<arg_key>a</arg_key><arg_value>true</arg_value><arg_key>b</arg_key><arg_value>say \"hi\"</arg_value></tool_call>",
          "other({\"a\": true, \"b\": \"say \\\"hi\\\"\"})");
    check("<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"x\" "
          "string=\"true\">[1]</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
          "f({\"x\": \"[1]\"})");
}

static void test_no_calls(void **state) {
    static const char *const texts[] = {"",
                                        "<tool_call>",
                                        "<tool_call></tool_call>",
                                        "<tool_call>{\"name\": </tool_call>",
                                        "<tool_call>{\"arguments\": {}}</tool_call>",
                                        "<tool_call>{\"name\": \"a\"}</tool_call><tool_call>{</tool_call>",
                                        "<|tool_call_begin|>x",
                                        "[TOOL_CALLS]",
                                        "[TOOL_CALLS] []",
                                        "[TOOL_CALLS]a[ARGS]7",
                                        "<｜tool▁call▁begin｜>a",

                                        "<minimax:tool_call><invoke>",
                                        "<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check(texts[i], "?");
}

static const struct json *parsed(struct api_request *r, const char *body) {
    struct error e = {0};
    if (openai_chat.parse(r, body, strlen(body), NULL, false, &e)) fail_msg("%s: %s", body, e.text);
    return &r->template_input;
}

/* A client's fields become template variables, except that messages and tools are always the request's own. */
static void test_request(void **state) {
    struct api_request r;
    const struct json *c = parsed(
        &r,
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": \"text\", \"text\": \"b\"}]}, {\"role\": "
        "\"assistant\", "
        "\"content\": null, \"tool_calls\": [{\"id\": \"1\", \"function\": {\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}}]}], \"chat_template_kwargs\": "
        "{\"enable_thinking\": false, \"messages\": 7}, \"tools\": [{\"function\": {}}], \"stop\": \"end\", \"seed\": 5}");
    const struct json *messages = json_get(c, "messages");
    assert_int_equal(messages->type, JSON_ARRAY);
    assert_true(json_is(json_get(&messages->items[0], "content"), "ab"));
    const struct json *call = json_at(json_get(&messages->items[1], "tool_calls"), 0);
    assert_int_equal(json_int(json_path(call, "function.arguments.x"), 0), 1);
    assert_true(json_is(json_path(call, "function.name"), "f"));
    assert_int_equal(json_get(c, "tools")->type, JSON_ARRAY);
    assert_false(json_bool(json_get(c, "enable_thinking"), true));
    assert_true(json_bool(json_get(c, "add_generation_prompt"), false));
    assert_int_equal(r.n_stop, 1);
    assert_string_equal(r.stop[0], "end");
    assert_true(r.seed == 5 && isnan(r.temperature) && r.top_k == -1 && r.max_tokens == -1 && !r.stream);
    api_free(&r);
    c = parsed(&r, "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}], \"tools\": [{}], \"tool_choice\": \"none\", \"reasoning_effort\": \"low\", "
                   "\"max_tokens\": null}");
    assert_null(json_get(c, "tools"));
    assert_true(json_is(json_get(c, "reasoning_effort"), "low"));
    api_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_markup), cmocka_unit_test(test_marks_in_strings), cmocka_unit_test(test_several),
                                       cmocka_unit_test(test_types),  cmocka_unit_test(test_no_calls),         cmocka_unit_test(test_request)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
