#include "tokenizer/chat/tool_format.h"

#include <string.h>

#include "tokenizer/chat/builtin_templates.h"

/* prefix: of the tags' names; line: the text after a name, a key, a value and a call. */
#define GLM_CALLS(prefix, line) \
    { \
        .open = "", .close = "", .before_name = "<" prefix "tool_call>", .after_name = line, \
        .after_arguments = "</" prefix "tool_call>", .between = line, .before_key = "<" prefix "arg_key>", \
        .before_text = "</" prefix "arg_key>" line "<" prefix "arg_value>", \
        .after_value = "</" prefix "arg_value>" line, .ends = {"</" prefix "arg_value>", "</" prefix "tool_call>"}, \
    }
/* suffix: of the tags' names. */
#define HUNYUAN_CALLS(suffix) \
    { \
        .open = "<tool_calls" suffix ">\n", .close = "</tool_calls" suffix ">", \
        .before_name = "<tool_call" suffix ">", .after_name = "<tool_sep" suffix ">\n", \
        .after_arguments = "</tool_call" suffix ">\n", .between = "", .before_key = "<arg_key" suffix ">", \
        .before_text = "</arg_key" suffix ">\n<arg_value" suffix ">", .after_value = "</arg_value" suffix ">\n", \
        .ends = {"</arg_value" suffix ">", "</tool_call" suffix ">", "</tool_calls" suffix ">"}, \
    }
#define DSML "｜DSML｜"
#define GCML "｜GCML｜"
/* mark: what precedes the tags' names. */
#define DSML_CALLS(mark, block) \
    { \
        .open = "\n\n<" mark block "\n", .close = "</" mark block, .before_name = "<" mark "invoke name=\"", \
        .after_name = "\">\n", .after_arguments = "</" mark "invoke>\n", .between = "", \
        .before_key = "<" mark "parameter name=\"", .before_text = "\" string=\"true\">", \
        .before_json = "\" string=\"false\">", .after_value = "</" mark "parameter>\n", \
        .ends = {"</" mark "parameter>", "</" mark "invoke>", "</" mark block}, \
    }
static const struct {
    const char *marker, *with; /* in the template's text; with: NULL, or another mark in it */
    const char *unless[3];     /* marks of other forms within the same tags */
    struct tool_format format;
} tool_formats[] = {
    {"<arg_key>", "</arg_key><arg_value>", {"<tool_sep>"}, GLM_CALLS("", "")}, /* GLM 4.7 and later; not Hunyuan 3 */
    {"<arg_key>", "<tool_call>", {"<tool_sep>"}, GLM_CALLS("", "\n")},         /* GLM 4.5 and 4.6 */
    /* Hunyuan 3 and 4: templates join the suffix */
    {":opensource", "tool_sep", {NULL}, HUNYUAN_CALLS(":opensource")},
    {"<arg_key>", "<tool_sep>", {NULL}, HUNYUAN_CALLS("")},
    {"<longcat_arg_key>", NULL, {NULL}, GLM_CALLS("longcat_", "\n")}, /* LongCat's second form */
    {"<function=",                                                    /* Qwen3-Coder */
     "<tool_call>",
     {"<seed:tool_call>"},
     {.open = "",
      .close = "",
      .before_name = "<tool_call>\n<function=",
      .after_name = ">\n",
      .after_arguments = "</function>\n</tool_call>",
      .between = "\n",
      .before_key = "<parameter=",
      .before_text = ">\n",
      .after_value = "\n</parameter>\n",
      .ends = {"</parameter>", "</function>", "</tool_call>"}}},
    {"<seed:tool_call>",
     "<function=",
     {NULL},
     {.open = "",
      .close = "",
      .before_name = "<seed:tool_call>\n<function=",
      .after_name = ">\n",
      .after_arguments = "</function>\n</seed:tool_call>",
      .between = "\n",
      .before_key = "<parameter=",
      .before_text = ">",
      .after_value = "</parameter>\n",
      .ends = {"</parameter>", "</function>", "</seed:tool_call>"}}},
    {DSML, "function_calls>", {NULL}, DSML_CALLS(DSML, "function_calls>")}, /* DeepSeek V3.2 */
    {DSML, "tool_calls>", {NULL}, DSML_CALLS(DSML, "tool_calls>")},         /* V4 */
    {DSML, " calls>", {NULL}, DSML_CALLS(DSML " ", "calls>")},              /* V4.1 */
    {GCML, "tool_calls>", {NULL}, DSML_CALLS(GCML, "tool_calls>")},         /* GigaChat 3.5 */
    {"<steptml:invoke",                                                     /* Step3 */
     NULL,
     {NULL},
     {.open = "<｜tool_calls_begin｜>\n",
      .close = "\n<｜tool_calls_end｜>",
      .before_name = "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"",
      .after_name = "\">\n",
      .after_arguments = "</steptml:invoke><｜tool_call_end｜>",
      .between = "\n",
      .before_key = "<steptml:parameter name=\"",
      .before_text = "\">",
      .after_value = "</steptml:parameter>\n",
      .ends = {"</steptml:parameter>", "</steptml:invoke>", "<｜tool_call_end｜>"}}},
    {"<minimax:tool_call>", /* MiniMax M2 */
     "<invoke name=",
     {NULL},
     {.open = "<minimax:tool_call>\n",
      .close = "</minimax:tool_call>",
      .before_name = "<invoke name=\"",
      .after_name = "\">\n",
      .after_arguments = "</invoke>\n",
      .between = "",
      .before_key = "<parameter name=\"",
      .before_text = "\">",
      .after_value = "</parameter>\n",
      .ends = {"</parameter>", "</invoke>", "</minimax:tool_call>"}}},
    {"<longcat_tool_call>",
     NULL,
     {"<arg_key>", "<function="},
     {"", "", "<longcat_tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</longcat_tool_call>", "\n"}},
    {"<tool_call>",
     NULL,
     {"<arg_key>", "<function=", "<invoke"},
     {"", "", "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\n"}}, /* Qwen, Hermes */
    {"<｜tool▁calls▁begin｜>",                                                                /* DeepSeek V3.1 */
     NULL,
     {"```json"},
     {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>",
      "<｜tool▁call▁end｜>", ""}},
    {"<｜tool▁calls▁begin｜>", /* DeepSeek V3, R1 */
     NULL,
     {NULL},
     {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n",
      "\n```<｜tool▁call▁end｜>", "\n"}},
    {"<|START_ACTION|>", /* Cohere: calls are numbered */
     NULL,
     {NULL},
     {"<|START_ACTION|>[\n", "\n]<|END_ACTION|>", "    {\"tool_call_id\": \"0\", \"tool_name\": \"",
      "\", \"parameters\": ", "}", "", .is_single = true}},
    /* Mistral up to Nemo */
    {"[TOOL_CALLS]", NULL, {"[ARGS]"}, {"[TOOL_CALLS][", "]", "{\"name\": \"", "\", \"arguments\": ", "}", ", "}},
    /* later */
    {"[TOOL_CALLS]", "[ARGS]", {"[CALL_ID]"}, {"", "", "[TOOL_CALLS]", "[ARGS]", "", ""}},
    {"[TOOL_CALLS]",
     "[CALL_ID]",
     {NULL},
     {"", "", "[TOOL_CALLS]", "[CALL_ID]000000000[ARGS]", "", "", .is_single = true}},
    /* Nemotron Nano 2 */
    {"<TOOLCALL>", NULL, {NULL}, {"<TOOLCALL>[", "]</TOOLCALL>", "{\"name\": \"", "\", \"arguments\": ", "}", ", "}},
    /* openPangu */
    {"[unused11]", NULL, {NULL}, {"[unused11][", "][unused12]", "{\"name\": \"", "\", \"arguments\": ", "}", ", "}},
    /* Apriel */
    {"<tool_calls>[",
     NULL,
     {NULL},
     {"<tool_calls>[", "]</tool_calls>", "{\"name\": \"", "\", \"arguments\": ", "}", ", "}},
    /* MiniMax-M1 */
    {"<tool_calls>",
     "<beginning_of_sentence>",
     {NULL},
     {"<tool_calls>\n", "\n</tool_calls>", "{\"name\": \"", "\", \"arguments\": ", "}", "\n"}},
    {"<|tool_call:begin|>", /* Solar Open: each call has an id */
     NULL,
     {NULL},
     {"<|tool_calls|>", "<|calls|>", "<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>", "<|tool_call:args|>",
      "<|tool_call:end|>", "", .is_single = true}},
    /* GigaChat 3.1 */
    {"<|function_call|>",
     NULL,
     {NULL},
     {"", "", "<|function_call|>{\"name\": \"", "\", \"arguments\": ", "}", "", .is_single = true}},
    {"<|channel|>", /* gpt-oss: a message to the function, which ends the answer */
     NULL,
     {NULL},
     {"", "", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "", "", .is_single = true}},
    {"<|tool_calls_section_begin|>", /* Kimi K2: calls are numbered */
     NULL,
     {NULL},
     {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>functions.",
      ":0<|tool_call_argument_begin|>", "<|tool_call_end|>", "", .is_single = true}},
    {"<|open|>", /* Kimi K3, whose calls follow the answer and are numbered */
     "<|sep|>",
     {NULL},
     {"<|close|>response<|sep|><|open|>tools<|sep|>", "<|close|>tools<|sep|>", "<|open|>call tool=\"",
      "\" index=\"1\"<|sep|><|open|>json type=\"object\"<|sep|>", "<|close|>json<|sep|><|close|>call<|sep|>", "",
      .is_single = true}},
};

static bool contains(const char *s, size_t n, const char *what) { return memmem(s, n, what, strlen(what)) != NULL; }

const struct tool_format *tool_format_find(const struct chat_template *c) {
    size_t n;
    const char *text = chat_template_source(c, &n);
    for (size_t i = 0; i < sizeof tool_formats / sizeof *tool_formats; i++) {
        bool differs = !contains(text, n, tool_formats[i].marker) ||
                       (tool_formats[i].with && !contains(text, n, tool_formats[i].with));
        for (int k = 0; k < 3 && tool_formats[i].unless[k]; k++)
            differs |= contains(text, n, tool_formats[i].unless[k]);
        if (!differs) return &tool_formats[i].format;
    }
    return NULL;
}
