#include "tokenizer/chat/tool_format.h"

#include <string.h>

#include "tokenizer/chat/builtin_templates.h"

/* prefix: of the tags' names; line: the text after a name, a key, a value and a call. */
#define GLM_CALLS(prefix, line) \
    { \
        .open = "", .close = "", .before_name = "<" prefix "tool_call>", .after_name = line, .after_arguments = "</" prefix "tool_call>", .between = line, \
        .before_key = "<" prefix "arg_key>", .before_text = "</" prefix "arg_key>" line "<" prefix "arg_value>", .after_value = "</" prefix "arg_value>" line, \
        .ends = {"</" prefix "arg_value>", "</" prefix "tool_call>"}, \
    }
#define DSML "｜DSML｜"
/* mark: what precedes the tags' names. */
#define DSML_CALLS(mark, block) \
    { \
        .open = "\n\n<" mark block "\n", .close = "</" mark block, .before_name = "<" mark "invoke name=\"", .after_name = "\">\n", \
        .after_arguments = "</" mark "invoke>\n", .between = "", .before_key = "<" mark "parameter name=\"", .before_text = "\" string=\"true\">", \
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
    {"<longcat_arg_key>", NULL, {NULL}, GLM_CALLS("longcat_", "\n")},          /* LongCat's second form */
    {"<function=",                                                             /* Qwen3-Coder */
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
    {DSML, "function_calls>", {NULL}, DSML_CALLS(DSML, "function_calls>")}, /* DeepSeek V3.2 */
    {DSML, "tool_calls>", {NULL}, DSML_CALLS(DSML, "tool_calls>")},         /* V4 */
    {DSML, " calls>", {NULL}, DSML_CALLS(DSML " ", "calls>")},              /* V4.1 */
    {"<minimax:tool_call>",                                                 /* MiniMax M2 */
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
     {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", ""}},
    {"<｜tool▁calls▁begin｜>", /* DeepSeek V3, R1 */
     NULL,
     {NULL},
     {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>", "\n"}},
    {"<|START_ACTION|>", /* Cohere: calls are numbered */
     NULL,
     {NULL},
     {"<|START_ACTION|>[\n", "\n]<|END_ACTION|>", "    {\"tool_call_id\": \"0\", \"tool_name\": \"", "\", \"parameters\": ", "}", "", .is_single = true}},
    {"[TOOL_CALLS]", NULL, {"[ARGS]"}, {"[TOOL_CALLS][", "]", "{\"name\": \"", "\", \"arguments\": ", "}", ", "}}, /* Mistral up to Nemo */
    {"<|channel|>", /* gpt-oss: a message to the function, which ends the answer */
     NULL,
     {NULL},
     {"", "", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "", "", .is_single = true}},
    {"<|tool_calls_section_begin|>", /* Kimi K2: calls are numbered */
     NULL,
     {NULL},
     {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|>", "",
      .is_single = true}},
    {"<|open|>tools<|sep|>", /* Kimi K3, whose calls follow the answer and are numbered */
     NULL,
     {NULL},
     {"<|close|>response<|sep|><|open|>tools<|sep|>", "<|close|>tools<|sep|>", "<|open|>call tool=\"",
      "\" index=\"1\"<|sep|><|open|>json type=\"object\"<|sep|>", "<|close|>json<|sep|><|close|>call<|sep|>", "", .is_single = true}},
};

static bool contains(const char *s, size_t n, const char *what) { return memmem(s, n, what, strlen(what)) != NULL; }

const struct tool_format *tool_format_find(const struct chat_template *c) {
    size_t n;
    const char *text = chat_template_source(c, &n);
    for (size_t i = 0; i < sizeof tool_formats / sizeof *tool_formats; i++) {
        bool differs = !contains(text, n, tool_formats[i].marker) || (tool_formats[i].with && !contains(text, n, tool_formats[i].with));
        for (int k = 0; k < 3 && tool_formats[i].unless[k]; k++) differs |= contains(text, n, tool_formats[i].unless[k]);
        if (!differs) return &tool_formats[i].format;
    }
    return NULL;
}
