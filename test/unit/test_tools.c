/* Tool calls parsed from model output, in each family's markup, whole and in pieces. */
#include <stdlib.h>
#include <string.h>

#include "test/unit/unit.h"
#include "tokenizer/chat/tool_stream.h"

static const char weather[] = "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"parameters\": "
                              "{\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\"}, "
                              "\"days\": {\"type\": \"integer\"}}}}}]";

/* Gives the markup to a stream in pieces of `size` characters. What it says after each is the beginning of what the
 * whole markup has. Returns the pieces after which arguments grew. */
static int stream(const char *markup, size_t size, const struct json *tools, const struct tool_calls *whole) {
    struct tool_stream *t = tool_stream_open(tools);
    const char *end = markup + strlen(markup);
    size_t n_complete = 0, known = 0;
    int grown = 0;
    assert_non_null(t);
    while (markup < end) {
        const char *from = markup;
        for (size_t k = 0; k < size && markup < end; k++) do
                markup++;
            while ((*markup & 0xC0) == 0x80);
        assert_int_equal(tool_stream_add(t, from, (size_t)(markup - from)), 0);
        const struct tool_calls *c = tool_stream_calls(t, &n_complete);
        size_t now = 0;
        assert_true(n_complete <= c->n && c->n <= n_complete + 1);
        for (size_t i = 0; i < c->n; i++) now += c->v[i].arguments.len;
        grown += now > known;
        known = now;
        if (!whole->n) continue; /* not calls, as is known at the end only */
        assert_true(c->n <= whole->n);
        for (size_t i = 0; i < c->n; i++) {
            const struct tool_call *a = &c->v[i], *b = &whole->v[i];
            assert_int_equal(a->name.len, b->name.len);
            assert_memory_equal(a->name.data, b->name.data, b->name.len);
            assert_true(a->arguments.len <= b->arguments.len &&
                        (i >= n_complete || a->arguments.len == b->arguments.len));
            if (a->arguments.len) assert_memory_equal(a->arguments.data, b->arguments.data, a->arguments.len);
        }
    }
    tool_stream_close(&t);
    return grown;
}

/* "name(arguments) name(arguments)", or "?" if it is not a call. offered: the tools. */
static void check_with(const char *offered, const char *markup, const char *want) {
    struct arena arena = {0};
    struct json tools;
    struct tool_calls c = {0};
    struct buf got = {0};
    assert_int_equal(json_parse(&arena, offered, strlen(offered), 0, "tools", &tools, NULL), 0);
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
    for (size_t size = 1; size < 1000; size = size * 3 + 1) stream(markup, size, &tools, &c);
    buf_free(&got);
    tool_calls_free(&c);
    arena_free(&arena);
}

static void check(const char *markup, const char *want) { check_with(weather, markup, want); }

/* Answers that are nothing but calls; what is not, or calls no tool of the request, is text. */
static void check_text(const char *text, const char *want) {
    struct arena arena = {0};
    struct json tools;
    struct tool_calls c = {0};
    struct buf got = {0};
    assert_int_equal(json_parse(&arena, weather, sizeof weather - 1, 0, "tools", &tools, NULL), 0);
    const int rc = tool_calls_parse_text(text, strlen(text), &tools, &c);
    assert_true(rc ? rc == ERR_MODEL && !c.n : c.n > 0);
    if (rc) buf_str(&got, "?");
    for (size_t i = 0; i < c.n; i++) buf_fmt(&got, "%s%s(%s)", i ? " " : "", c.v[i].name.data, c.v[i].arguments.data);
    assert_string_equal(got.data, want);
    for (size_t n = 0; n <= strlen(text) && c.n; n++) assert_true(tool_calls_may_be_text(text, n, &tools));
    assert_int_equal(tool_calls_parse_text(text, strlen(text), NULL, &c), ERR_MODEL); /* without tools */
    buf_free(&got);
    tool_calls_free(&c);
    arena_free(&arena);
}
static void test_text(void **state) {
#define CALL "{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\"}}"
    static const char one[] = "weather({\"city\": \"Bern\"})";
    check_text("```json\n" CALL "\n```", one);
    check_text("\n```\n" CALL "```\n", one);
    check_text(CALL, one);
    check_text("{" CALL "}", one); /* as Qwen2.5-Coder's template shows them */
    check_text("{" CALL "}\n{" CALL "}", "weather({\"city\": \"Bern\"}) weather({\"city\": \"Bern\"})");
    check("<tool_call>\n{" CALL "}\n</tool_call>", one);
    check_text("{{}", "?");
    check_text("{}}", "?");
    check_text("{", "?");
    check_text("[" CALL ", " CALL "]", "weather({\"city\": \"Bern\"}) weather({\"city\": \"Bern\"})");
    check_text("```json\n" CALL "\n" CALL "\n```", "weather({\"city\": \"Bern\"}) weather({\"city\": \"Bern\"})");
    check_text("<tools>\n" CALL "\n</tools>", one);
    check_text("{\"name\": \"weather\", \"parameters\": {\"city\": \"```\"}}", "weather({\"city\": \"```\"})");
    check_text("A call is written like this:\n```json\n" CALL "\n```", "?");
    check_text("```json\n" CALL "\n```\nThis calls the tool.", "?");
    check_text("```json\n" CALL "\n```\n```json\n" CALL "\n```", "?");
    check_text("{\"name\": \"Bern\", \"arguments\": {}}", "?");
    check_text("[" CALL ", {\"name\": \"Bern\"}]", "?");
    check_text("{\"city\": \"Bern\"}", "?");
    check_text("```json\n" CALL, "?");
    check_text("```", "?");
    check_text("[]", "?");
    check_text("", "?");
    check_text("weather", "?");
#undef CALL
}

/* The bytes of a text that tell that it is not calls; -1: it may be calls to its end. */
static int told_after(const char *text) {
    struct arena arena = {0};
    struct json tools;
    int told = -1;
    assert_int_equal(json_parse(&arena, weather, sizeof weather - 1, 0, "tools", &tools, NULL), 0);
    for (size_t n = 0; n <= strlen(text) && told < 0; n++)
        if (!tool_calls_may_be_text(text, n, &tools)) told = (int)n;
    arena_free(&arena);
    return told;
}
static void test_may_be_text(void **state) {
    assert_int_equal(told_after("The weather"), 1);
    assert_int_equal(told_after("```python\nprint(1)\n```"), 11);
    assert_int_equal(told_after("`name`"), 2);
    assert_int_equal(told_after("{\"city\": \"Bern\"}"), 3);
    assert_int_equal(told_after("{\"name\": \"weber\"}"), 13);
    assert_int_equal(told_after("{\"name\": 1}"), 10);
    assert_int_equal(told_after("{\"type\": \"object\"}"), 11);
    assert_int_equal(told_after("[1, 2]"), 2);
    assert_int_equal(told_after("{\"name\": \"weather\"} It rains."), 21);
    assert_int_equal(told_after("```json\n{\"name\": \"weather\"}\n```\nso"), 33);
    assert_int_equal(told_after("<tools>\n{\"name\": \"weather\"}\n</tools>!"), 37);
    assert_int_equal(told_after("{\"function\": {\"name\": \"weather\"}}"), -1);
    assert_int_equal(told_after(" \n"), -1);
}

/* Values in tags are what the schema of the parameter allows, however it says so. */
static void check_value(const char *schema, const char *value, const char *want) {
    char tools[600], markup[600], call[600];
    snprintf(
        tools, sizeof tools,
        "[{\"function\": {\"name\": \"f\", \"parameters\": {\"$defs\": {\"text\": {\"type\": \"string\"}, \"loop\": "
        "{\"$ref\": \"#/$defs/loop\"}}, \"properties\": {\"a\": %s}}}}]",
        schema);
    snprintf(call, sizeof call, "f({\"a\": %s})", want);
    snprintf(markup, sizeof markup,
             "<tool_call>\n<function=f>\n<parameter=a>\n%s\n</parameter>\n</function>\n</tool_call>", value);
    check_with(tools, markup, call);
    snprintf(markup, sizeof markup, "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>%s</arg_value>\n</tool_call>",
             value);
    check_with(tools, markup, call);
}
static void test_values(void **state) {
    static const char *const texts[] = {"{\"type\": \"string\"}",
                                        "{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"null\"}]}",
                                        "{\"type\": [\"string\", \"null\"]}",
                                        "{\"oneOf\": [{\"$ref\": \"#/$defs/text\"}]}",
                                        "{\"allOf\": [{\"$ref\": \"#/$defs/text\"}, {\"description\": \"d\"}]}",
                                        "{\"enum\": [\"1\", \"true\"]}",
                                        "{\"const\": \"1\"}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        check_value(texts[i], "1", "\"1\"");
        check_value(texts[i], "true", "\"true\"");
        check_value(texts[i], "[\"x\"]", "\"[\\\"x\\\"]\"");
        check_value(texts[i], "None", "\"None\"");
        check_value(texts[i], "x", "\"x\"");
    }
    check_value(texts[0], "\"x\"", "\"\\\"x\\\"\"");
    for (size_t i = 1; i < sizeof texts / sizeof *texts; i++) check_value(texts[i], "\"x\"", "\"x\"");
    check_value(texts[1], "null", "null");
    check_value(texts[2], "null", "null");
    check_value(texts[0], "null", "\"null\"");
    check_value("{\"type\": [\"string\", \"integer\"]}", "5", "5");
    check_value("{\"type\": \"boolean\"}", "True", "true");
    check_value("{\"type\": [\"boolean\", \"null\"]}", "False", "false");
    check_value("{\"type\": \"integer\", \"nullable\": true}", "None", "null");
    check_value("{\"type\": \"boolean\"}", "yes", "\"yes\"");
    check_value("{\"type\": \"integer\"}", "True", "\"True\"");
    check_value("{\"type\": \"array\"}", "['a', \"b's\", None, 1.5]", "[\"a\", \"b's\", null, 1.5]");
    check_value("{\"type\": \"object\"}", "{'a': [True, {'b': ''}]}", "{\"a\": [true, {\"b\": \"\"}]}");
    check_value("{\"type\": \"array\"}", "['a'", "\"['a'\"");
    check_value("{\"type\": \"array\"}", "['a'] or so", "\"['a'] or so\"");
    check_value("{\"type\": \"object\"}", "['a']", "\"['a']\"");
    check_value("{\"type\": \"number\"}", "1e3", "1e3");
    check_value("{}", "True", "\"True\""); /* the schema does not say */
    check_value("{}", "1", "1");
    check_value("true", "1", "1");
    check_value("{\"$ref\": \"#/$defs/loop\"}", "1", "1");
    check_value(
        "{\"anyOf\": [{\"$ref\": \"#/properties/a\"}, {\"$ref\": \"#/properties/a\"}, {\"$ref\": \"#/properties/a\"}, "
        "{\"$ref\": \"#/properties/a\"}, {\"$ref\": \"#/properties/a\"}, {\"$ref\": \"#/properties/a\"}]}",
        "1", "1"); /* 6^16 ways */
    check_value("{\"$ref\": \"#/$defs/none\"}", "1", "1");
    check_value("{\"$ref\": \"elsewhere\"}", "1", "1");
}

/* A value may have the tags of calls in it. */
static void test_tags_in_values(void **state) {
    check(
        "<tool_call>\n<function=weather>\n<parameter=city>\nsed "
        "'s/<parameter=days>\n(.*)\n</parameter>/x/'\necho '</function>'\n</parameter>\n<parameter=days>\n3\n</"
        "parameter>\n</function>\n</tool_call>",
        "weather({\"city\": \"sed 's/<parameter=days>\\n(.*)\\n</parameter>/x/'\\necho '</function>'\", \"days\": 3})");
    check("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>a</arg_value>b</arg_value>\n<arg_key>days</"
          "arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
          "weather({\"city\": \"a</arg_value>b\", \"days\": 3})");
    check("<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">a</parameter>b > c</parameter>\n"
          "</invoke>\n</minimax:tool_call>",
          "weather({\"city\": \"a</parameter>b > c\"})");
    check("<function name=\"weather\"><param name=\"city\">\n<![CDATA[a</param>\n<param name=\"days\">4</param>]]>\n"
          "</param><param name=\"days\">3</param></function>",
          "weather({\"city\": \"a</param>\\n<param name=\\\"days\\\">4</param>\", \"days\": 3})");
    /* a text with the end of CDATA in it, once, twice and at its end */
    check("<function name=\"weather\"><param name=\"city\"><![CDATA[a]]]]><![CDATA[>b</param>]]></param><param "
          "name=\"days\">3</param></function>",
          "weather({\"city\": \"a]]>b</param>\", \"days\": 3})");
    check(
        "<function name=\"weather\"><param name=\"city\"><![CDATA[]]]]><![CDATA[>]]]]><![CDATA[>]]></param></function>",
        "weather({\"city\": \"]]>]]>\"})");
    check("<function name=\"weather\"><param name=\"city\">a</param>b]]></param></function>",
          "weather({\"city\": \"a</param>b]]>\"})");
    check("<minimax:tool_call><invoke name=\"weather\"><parameter name=\"city\"><![CDATA[a]]></parameter></invoke></"
          "minimax:tool_call>",
          "weather({\"city\": \"<![CDATA[a]]>\"})");
    /* a tag that is written twice, and line ends that are left out */
    check("<tool_call>\n<function=weather>\n<parameter=city>Bern</parameter>\n</parameter>\n<parameter=days>3</"
          "parameter></function></tool_call>",
          "weather({\"city\": \"Bern\", \"days\": 3})");
    check("<tool_call>\n<function=weather>\n<parameter=city>\nBern</parameter> and\n</function>\n</tool_call>",
          "weather({\"city\": \"Bern\"})");
}

static void test_markup(void **state) {
    static const char one[] = "weather({\"city\": \"Bern\", \"days\": 3})";
    /* Qwen, Hermes */
    check("<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}\n</tool_call>", one);
    check("<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bern</arg_value>\n<arg_key>days</"
          "arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
          one); /* GLM */
    check("<function name=\"weather\"><param name=\"city\">Bern</param><param name=\"days\">3</param></function>", one);
    check("<function name=\"a\"><param name=\"x\"><![CDATA[1]]></param></function>\n<function name=\"b\"></function>",
          "a({\"x\": 1}) b({})"); /* MiniCPM5 */
    check("<tool_call>\n<function=weather>\n<parameter=city>\nBern\n</parameter>\n<parameter=days>\n3\n</parameter>\n</"
          "function>\n</tool_call>",
          one); /* Qwen3-Coder */
    check("<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Bern</parameter>\n<parameter "
          "name=\"days\">3</parameter>\n</invoke>\n</minimax:tool_call>",
          one);
    check("<|tool_calls_section_begin|><|tool_call_begin|>functions.weather:0<|tool_call_argument_begin|>{\"city\": "
          "\"Bern\", \"days\": "
          "3}<|tool_call_end|><|tool_calls_section_end|>",
          one); /* Kimi */
#define XTML(calls)           "<|open|>tools<|sep|>" calls "<|close|>tools<|sep|>"
#define XTML_CALL(name, args) "<|open|>call tool=\"" name "\" index=\"1\"<|sep|>" args "<|close|>call<|sep|>"
#define XTML_ARG(key, type, value) \
    "<|open|>argument key=\"" key "\" type=\"" type "\"<|sep|>" value "<|close|>argument<|sep|>"
    /* Kimi K3 */
    check(XTML(XTML_CALL("weather", XTML_ARG("city", "string", "Bern") XTML_ARG("days", "number", "3"))), one);
    check(XTML(XTML_CALL("weather",
                         "<|open|>json type=\"object\"<|sep|>{\"city\": \"Bern\", \"days\": 3}<|close|>json<|sep|>")),
          one);
    check(XTML(XTML_CALL("f", "") XTML_CALL("g&quot;&amp;amp;", XTML_ARG("a&amp;b", "string", "3")
                                                                    XTML_ARG("o", "object", "{\"x\":null}"))),
          "f({}) g\"&amp;({\"a&b\": \"3\", \"o\": {\"x\":null}})");
    check(XTML(XTML_CALL("", "")), "?");
    check(XTML("<|open|>call index=\"1\"<|sep|><|close|>call<|sep|>"), "?");
    check(XTML(XTML_CALL("f", "<|open|>argument type=\"string\"<|sep|>x<|close|>argument<|sep|>")), "?");
    check(XTML(XTML_CALL("f", "<|open|>json type=\"object\"<|sep|>[1]<|close|>json<|sep|>")), "?");
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Bern\", "
          "\"days\": "
          "3}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          one); /* R1 */
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Bern\", \"days\": "
          "3}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          one); /* V3.1 */
    check("<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"weather\">\n<｜DSML｜parameter name=\"city\" "
          "string=\"true\">Bern</｜DSML｜parameter>\n<｜DSML｜parameter "
          "name=\"days\" string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
          one);
    check("<｜GCML｜tool_calls>\n<｜GCML｜invoke name=\"weather\">\n<｜GCML｜parameter name=\"city\" "
          "string=\"true\">Bern</｜GCML｜parameter>\n<｜GCML｜parameter "
          "name=\"days\" string=\"false\">3</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>",
          one); /* GigaChat 3.5 */
    check("<｜tool_calls_begin｜>\n<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke "
          "name=\"weather\">\n<steptml:parameter "
          "name=\"city\">Bern</steptml:parameter>\n<steptml:parameter "
          "name=\"days\">3</steptml:parameter>\n</steptml:invoke><｜tool_call_end｜>\n"
          "<｜tool_calls_end｜>",
          one); /* Step3 */
    /* Mistral */
    check("[TOOL_CALLS] [{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]", one);
    check("[TOOL_CALLS]weather[ARGS]{\"city\": \"Bern\", \"days\": 3}", one);
    check("[TOOL_CALLS]weather[CALL_ID]abc123456[ARGS]{\"city\": \"Bern\", \"days\": 3}", one);
    /* Nemotron Nano 2 */
    check("<TOOLCALL>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]</TOOLCALL>", one);
    /* openPangu */
    check("[unused11][{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}][unused12]", one);
    check("<|tool_calls|><|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>weather<|tool_call:args|>{\"city\": \"Bern\", "
          "\"days\": 3}<|tool_call:end|><|calls|>",
          /* Solar Open */
          one);
    /* GigaChat 3.1 and 3 */
    check("<|function_call|>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}<|message_sep|>",
          one);
    check("function call<|role_sep|>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": "
          "3}}<|message_sep|>\n\n",
          one);
    check("<seed:tool_call>\n<function=weather>\n<parameter=city>Bern</parameter>\n<parameter=days>3</parameter>\n</"
          "function>\n</seed:tool_call>",
          one);
    check("<seed:tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n</function>\n</seed:tool_call>",
          "f({\"a\": \"\\nx\\n\"})");
    check("<seed:tool_call>\n<function=f>\n<parameter=a>x\n", "f({\"a\": \"x\\n\"})"); /* not closed */
    /* Llama */
    check("<|python_tag|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}", one);
    /* Llama 4 */
    check("<|python_start|>{\"name\": \"weather\", \"parameters\": {\"city\": \"Bern\", \"days\": 3}}<|python_end|>",
          one);
    check("<longcat_tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": "
          "3}}</longcat_tool_call>",
          one);
    /* Hunyuan */
    check("<tool_calls>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": 3}}]</tool_calls>", one);
    /* gpt-oss */
    check("<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{\"city\": \"Bern\", \"days\": "
          "3}<|call|>",
          one);
}

/* Notations that are not JSON. */
static void test_notations(void **state) {
    static const char one[] = "weather({\"city\": \"Bern\", \"days\": 3})";
    /* Gemma 4 */
    check("<|tool_call>call:weather{city:<|\"|>Bern<|\"|>,days:3}<tool_call|>",
          "weather({\"city\":\"Bern\",\"days\":3})");
    check("<|tool_call>call:a{x:{k:[1,<|\"|>,}\"<|\"|>],t:true},y:null}<tool_call|><|tool_call>call:b{}<tool_call|>",
          "a({\"x\":{\"k\":[1,\",}\\\"\"],\"t\":true},\"y\":null}) b({})");
    check("<|tool_call>call:a{x:<|\"|>1}<tool_call|>", "?");
    check("<|tool_call>call:a{x:[1}<tool_call|>", "?");
    check("<|tool_call>a{}<tool_call|>", "?");
    check("<|tool_call_start|>[weather(city=\"Bern\", days=3)]<|tool_call_end|>", one); /* LFM2 */
    check("<|tool_call_start|>[a(x='it\\'s (\"', y=[True, None, {'k': 1.5}]), b()]<|tool_call_end|>",
          "a({\"x\": \"it's (\\\"\", \"y\": [true, null, {\"k\": 1.5}]}) b({})");
    check("<|tool_call_start|>[{\"name\": \"weather\", \"arguments\": {\"city\": \"Bern\", \"days\": "
          "3}}]<|tool_call_end|>",
          one);
    check("<|python_start|>[weather(city=\"Bern\", days=3)]<|python_end|>", one); /* Llama 4 */
    check("<|tool_call_start|>[a(1)]<|tool_call_end|>", "?");
    check("<|tool_call_start|>[a(x=1]<|tool_call_end|>", "?");
    check("<|tool_call_start|>[a(x=']<|tool_call_end|>", "?");
    check("<|tool_call_start|>[]<|tool_call_end|>", "?");
    check("<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"weather\", \"parameters\": {\"city\": "
          "\"Bern\", \"days\": 3}}\n]<|END_ACTION|>",
          /* Cohere */
          one);
    /* Inkling */
    check("<|content_invoke_tool_json|>{\"name\": \"weather\", \"args\": {\"city\": \"Bern\", \"days\": "
          "3}}<|end_message|>",
          one);
    check("<dots_function_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Bern</parameter>\n<parameter "
          "name=\"days\">3</parameter>\n</invoke>\n"
          "</dots_function_call>",
          one);
    check("<atem:function_calls>\n<atem:invoke name=\"weather\">\n<atem:parameter "
          "name=\"city\">Bern</atem:parameter>\n<atem:parameter "
          "name=\"days\">3</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
          one); /* Muse */
    check("<longcat_tool_call>weather\n<longcat_arg_key>city</longcat_arg_key>\n<longcat_arg_value>Bern</"
          "longcat_arg_value>\n<longcat_arg_key>days</"
          "longcat_arg_key>\n"
          "<longcat_arg_value>3</longcat_arg_value>\n</longcat_tool_call>",
          one);
    check("<tool_calls>\n<tool_call>weather<tool_sep>\n<arg_key>city</arg_key>\n<arg_value>Bern</"
          "arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n"
          "</tool_call>\n</tool_calls>",
          one); /* Hunyuan 3 */
    check("<tool_calls:opensource>\n<tool_call:opensource>weather<tool_sep:opensource>\n<arg_key:opensource>city</"
          "arg_key:opensource>\n<arg_value:opensource>Bern"
          "</arg_value:opensource>\n<arg_key:opensource>days</arg_key:opensource>\n<arg_value:opensource>3</"
          "arg_value:opensource>\n</tool_call:opensource>\n"
          "<tool_call:opensource>b<tool_sep:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
          "weather({\"city\": \"Bern\", \"days\": 3}) b({})");
#define NS "]<]minimax[>["
    check(NS "<tool_call>\n" NS "<invoke name=\"weather\">" NS "<city>Bern" NS "</city>" NS "<days>3" NS "</days>" NS
             "</invoke>\n" NS "</tool_call>",
          one);
    check(NS "<tool_call>" NS "<invoke name=\"a\">\n" NS "<x>" NS "<k>1" NS "</k>" NS "<l>" NS "<item>a" NS "</item>" NS
             "<item>2" NS "</item>" NS "</l>" NS "</x>" NS "</invoke>" NS "<invoke name=\"b\">" NS "</invoke>" NS
             "</tool_call>",
          "a({\"x\": {\"k\": 1, \"l\": [\"a\", 2]}}) b({})");
    check(NS "<tool_call>" NS "<invoke name=\"a\">" NS "<x>1" NS "</invoke>" NS "</tool_call>", "?");
#undef NS
}

/* Marks within the strings of JSON arguments are text. */
static void test_marks_in_strings(void **state) {
    check("<tool_call>\n{\"name\": \"a\", \"arguments\": {\"x\": \"</tool_call> \\\" "
          "{<|tool_call_begin|>\"}}\n</tool_call>\n<tool_call>{\"name\": "
          "\"b\"}</tool_call>",
          "a({\"x\": \"</tool_call> \\\" {<|tool_call_begin|>\"}) b({})");
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{\"x\": "
          "\"<｜tool▁call▁end｜>\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          "a({\"x\": \"<｜tool▁call▁end｜>\"})");
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>a\n```json\n{\"x\": \"``` "
          "{\"}\n```<｜tool▁call▁end｜>",
          "a({\"x\": \"``` {\"})");
    check("<|tool_call_begin|>functions.a:0<|tool_call_argument_begin|>{\"x\": "
          "\"<|tool_call_end|><tool_call>\"}<|tool_call_end|>",
          "a({\"x\": \"<|tool_call_end|><tool_call>\"})");
    check("<|channel|>commentary to=functions.a <|constrain|>json<|message|>{\"x\": \"<|call|>\"}",
          "a({\"x\": \"<|call|>\"})");
    check("[TOOL_CALLS]a[ARGS]{\"x\": \"[TOOL_CALLS]\"}[TOOL_CALLS]b[ARGS]{}", "a({\"x\": \"[TOOL_CALLS]\"}) b({})");
}

static void test_several(void **state) {
    check("<tool_call>{\"name\": \"a\", \"arguments\": {}}</tool_call>\n<tool_call>{\"name\": \"b\"}</tool_call>",
          "a({}) b({})");
    check("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>a<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>b<"
          "｜tool▁sep｜>{\"x\": "
          "[1]}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
          "a({}) b({\"x\": [1]})");
    check("[TOOL_CALLS]a[ARGS]{}[TOOL_CALLS]b[ARGS]{\"x\": 1}", "a({}) b({\"x\": 1})");
    check("[TOOL_CALLS]a[CALL_ID]1[ARGS]{}[TOOL_CALLS]b[CALL_ID]2[ARGS]{\"x\": 1}", "a({}) b({\"x\": 1})");
    check("<tool_calls>\n{\"name\": \"a\", \"arguments\": {}}\n{\"name\": \"b\", \"arguments\": {\"x\": "
          "\"}\"}}\n</tool_calls>",
          /* MiniMax-M1 */
          "a({}) b({\"x\": \"}\"})");
    /* a server's, one a line */
    check("{\"name\": \"a\", \"arguments\": {}}\n{\"name\": \"b\", \"arguments\": {\"x\": 1}}\n",
          "a({}) b({\"x\": 1})");
    check("[TOOL_CALLS] [{\"name\": \"a\", \"arguments\": {}}, {\"name\": \"b\", \"arguments\": \"{\\\"x\\\": 1}\"}]",
          "a({}) b({\"x\": 1})");
}

/* A string stays a string where the schema says so, even if it looks like another type; without a type it is parsed as
 * JSON. */
static void test_types(void **state) {
    check("<tool_call>weather<arg_key>city</arg_key><arg_value>42</arg_value><arg_key>days</arg_key><arg_value>42</"
          "arg_value></tool_call>",
          "weather({\"city\": \"42\", \"days\": 42})");
    check("<tool_call>other<arg_key>a</arg_key><arg_value>true</arg_value><arg_key>b</arg_key><arg_value>say "
          "\"hi\"</arg_value></tool_call>",
          "other({\"a\": true, \"b\": \"say \\\"hi\\\"\"})");
    check("<｜DSML｜tool_calls><｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"x\" "
          "string=\"true\">[1]</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜tool_calls>",
          "f({\"x\": \"[1]\"})");
    check("<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"x\" "
          "string=\"false\">[1]</｜DSML｜ parameter>\n</｜DSML｜ "
          "invoke>\n</｜DSML｜ calls>",
          "f({\"x\": [1]})");
}

/* Arguments in JSON grow with each piece, escapes and numbers as whole ones; those in tags with each argument. */
static void test_streams(void **state) {
    static const char arguments[] =
        "{ \"a\" : \"x\\u00e9\\ud83d\\ude00 \\ud83dz \\ud83d\\n\\/ \\ud83d\\ud83d\\ude00 \xe4\xb8\x96 "
        "\\\"\",\"b\":[1.50, -0 "
        ",1e5,true ,null,{},[]],\"\":{\"<\":\"\"} , \"long\": \"one two three four five six seven eight nine ten\"}";
    static const struct {
        const char *before, *after;
        int grown; /* at least, of pieces of one character */
    } cases[] = {
        {"<tool_call>\n{\"name\": \"f\", \"arguments\": ", "}\n</tool_call>", 90},
        {"<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call><tool_call>{\"name\": \"f\", \"arguments\": ",
         "}</tool_call>", 90},
        {"[TOOL_CALLS][{\"id\": \"a\", \"meta\": {\"k\": 1}, \"name\": \"f\", \"arguments\": ", "}]", 90},
        {"[TOOL_CALLS]f[ARGS]", "", 100},
        {"<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>",
         "<|tool_call_end|><|tool_calls_section_end|>", 100},
        {"<|channel|>commentary to=functions.f <|constrain|>json<|message|>", "<|call|>", 100},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tool_calls whole = {0};
        struct buf b = {0};
        buf_fmt(&b, "%s%s%s", cases[i].before, arguments, cases[i].after);
        assert_int_equal(tool_calls_parse(b.data, b.len, NULL, &whole), 0);
        for (size_t size = 1; size < 40; size++) {
            const int grown = stream(b.data, size, NULL, &whole);
            if (size == 1 && grown < cases[i].grown) fail_msg("case %zu: %d", i, grown);
        }
        /* cut anywhere, or with a wrong character, it is no call, and says nothing wrong before the end */
        const struct tool_calls none = {0};
        for (size_t k = strlen(cases[i].before); k < b.len; k += 7) {
            char *bad = mem_strdup(b.data);
            if ((bad[k] & 0x80) == 0) bad[k] = '\x01';
            stream(bad, 5, NULL, &none);
            mem_free(bad);
        }
        tool_calls_free(&whole);
        buf_free(&b);
    }
}

static void test_no_calls(void **state) {
    check("<|python_start|>[weather(city)]<|python_end|>", "?"); /* an argument without a name */
    check("<|python_start|>[weather(city=\"Bern\", 3)]<|python_end|>", "?");
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
                                        "[TOOL_CALLS]a[CALL_ID]7",
                                        "<TOOLCALL>[]</TOOLCALL>",
                                        "[unused11][unused12]",
                                        "<tool_calls>{\"name\": \"a\"} {\"name\": 1}</tool_calls>",
                                        "<|tool_call:begin|>a<|tool_call:name|>f<|tool_call:end|>",
                                        "<|function_call|>f",
                                        "<｜tool▁call▁begin｜>a",

                                        "<minimax:tool_call><invoke>",
                                        "<function name=\"a\"><param>1</param></function>",
                                        "<function name=\"a\">",
                                        "<tool_call>{\"name\": \"a\", \"arguments\": [1]}</tool_call>"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) check(texts[i], "?");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_markup),
                                       cmocka_unit_test(test_text),
                                       cmocka_unit_test(test_may_be_text),
                                       cmocka_unit_test(test_notations),
                                       cmocka_unit_test(test_marks_in_strings),
                                       cmocka_unit_test(test_several),
                                       cmocka_unit_test(test_types),
                                       cmocka_unit_test(test_streams),
                                       cmocka_unit_test(test_no_calls),
                                       cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_tags_in_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
