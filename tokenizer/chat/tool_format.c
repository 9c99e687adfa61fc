#include "tokenizer/chat/tool_format.h"

#include <string.h>

#include "tokenizer/chat/builtin_templates.h"

static const struct {
    const char *marker;    /* in the template's text */
    const char *unless[3]; /* marks of other forms within the same tags */
    struct tool_format format;
} tool_formats[] = {
    {"<longcat_tool_call>",
     {"<arg_key>", "<function="},
     {"", "", "<longcat_tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</longcat_tool_call>", "\n"}},
    {"<tool_call>",
     {"<arg_key>", "<function=", "<invoke"},
     {"", "", "<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>", "\n"}}, /* Qwen, Hermes */
    {"<｜tool▁calls▁begin｜>",                                                                /* DeepSeek V3.1 */
     {"```json"},
     {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", ""}},
    {"<｜tool▁calls▁begin｜>", /* DeepSeek V3, R1 */
     {NULL},
     {"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>", "\n"}},
    {"[TOOL_CALLS]", {"[ARGS]"}, {"[TOOL_CALLS][", "]", "{\"name\": \"", "\", \"arguments\": ", "}", ", "}}, /* Mistral up to Nemo */
    {"<|channel|>", /* gpt-oss: a message to the function, which ends the answer */
     {NULL},
     {"", "", "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", "", "", .is_single = true}},
    {"<|tool_calls_section_begin|>", /* Kimi K2: calls are numbered */
     {NULL},
     {"<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>functions.", ":0<|tool_call_argument_begin|>", "<|tool_call_end|>", "",
      .is_single = true}},
};

const struct tool_format *tool_format_find(const struct chat_template *c) {
    size_t n;
    const char *text = chat_template_source(c, &n);
    for (size_t i = 0; i < sizeof tool_formats / sizeof *tool_formats; i++) {
        bool other = !memmem(text, n, tool_formats[i].marker, strlen(tool_formats[i].marker));
        for (int k = 0; k < 3 && tool_formats[i].unless[k]; k++) other |= memmem(text, n, tool_formats[i].unless[k], strlen(tool_formats[i].unless[k])) != NULL;
        if (!other) return &tool_formats[i].format;
    }
    return NULL;
}
