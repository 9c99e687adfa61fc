#include "tokenizer/chat/dialects.h"

#include <string.h>

static const struct header_mark harmony[HEADER_MARKS] = {
    {"<|start|>", HEADER_START},    {HEADER_CHANNEL_MARK, HEADER_CHANNEL},
    {"<|constrain|>", HEADER_PART}, {"<|message|>", HEADER_END, KIND_OF_CHANNEL},
    {"<|end|>", MESSAGE_END},       {"<|return|>", MESSAGE_END},
    {"<|call|>", CALL_END}};
static const struct header_mark muse[HEADER_MARKS] = {{"<|start|>", HEADER_START},
                                                      {"<|message|>", HEADER_END, KIND_OF_RECIPIENT},
                                                      {"<|eom|>", MESSAGE_END},
                                                      {"<|eot|>", MESSAGE_END}};
static const struct header_mark inkling[HEADER_MARKS] = {{"<|message_model|>", HEADER_START},
                                                         {"<|content_text|>", HEADER_END, OUTPUT_TEXT},
                                                         {"<|content_thinking|>", HEADER_END, OUTPUT_THINKING},
                                                         {"<|content_invoke_tool_json|>", HEADER_END, OUTPUT_TOOL_CALL},
                                                         {"<|end_message|>", CALL_END}};
static const struct header_mark solar[HEADER_MARKS] = {{"<|begin|>", HEADER_START},
                                                       {"<|content|>", HEADER_END, OUTPUT_TEXT},
                                                       {"<|think|>", HEADER_END, OUTPUT_THINKING},
                                                       {"<|tool_calls|>", HEADER_END, OUTPUT_TOOL_CALL},
                                                       {"<|end|>", MESSAGE_END},
                                                       {"<|calls|>", CALL_END}};

/* What follows the parser in these macros is the row's `format`, in the order of enum format_text. */
/* The parser takes all calls, from the opening mark on. */
#define CALLS(opening, closing, parser, ...) \
    .open = opening, .close = closing, .kind = OUTPUT_TOOL_CALL, .parse = parser, .format = {__VA_ARGS__}
/* The parser takes what the marks surround: a call, or a list. */
#define ENCLOSED(opening, closing, parser, ...) \
    CALLS(opening, closing, parser, __VA_ARGS__), .call = {.open = opening, .close = closing}
/* mark: in templates that leave out calls. */
#define LFM2(mark) \
    ENCLOSED("<|tool_call_start|>", "<|tool_call_end|>", tool_calls_parse_python), \
        .also = mark, \
        .past = WRITE_CALLS("<|tool_call_start|>[", KEYWORDS, "call.function.name + '(' + calls_ns.arguments + ')'", \
                            "]<|tool_call_end|>")
#define HEADERS(opening, marks, parser, ...) .open = opening, .header = marks, .parse = parser, .format = {__VA_ARGS__}
#define HAS(...)                             .has = {__VA_ARGS__}
#define LACKS(...)                           .lacks = {__VA_ARGS__}

#define NAME      "{\"name\": \""
#define ARGUMENTS "\", \"arguments\": "
#define JSON_LIST(opening, closing, parser) \
    ENCLOSED(opening, closing, parser, opening "[", "]" closing, NAME, ARGUMENTS, "}", ", ")
#define JSON_TAGS(tag) \
    ENCLOSED("<" tag ">", "</" tag ">", tool_calls_parse_tagged, "", "", "<" tag ">\n" NAME, ARGUMENTS, \
             "}\n</" tag ">", "\n")
/* GLM: NAME and pairs. prefix: of the tags' names; line: the text after a name, a key, a value and a call. */
#define PAIRS(prefix, line) \
    ENCLOSED("<" prefix "tool_call>", "</" prefix "tool_call>", tool_calls_parse_tagged, "", "", \
             "<" prefix "tool_call>", line, "</" prefix "tool_call>", line, "<" prefix "arg_key>", \
             "</" prefix "arg_key>" line "<" prefix "arg_value>", NULL, "</" prefix "arg_value>" line)
#define HUNYUAN_PAIRS(end) \
    ENCLOSED("<tool_calls" end ">", "</tool_calls" end ">", tool_calls_parse_hunyuan, "<tool_calls" end ">\n", \
             "</tool_calls" end ">", "<tool_call" end ">", "<tool_sep" end ">\n", "</tool_call" end ">\n", "", \
             "<arg_key" end ">", "</arg_key" end ">\n<arg_value" end ">", NULL, "</arg_value" end ">\n"), \
        .suffix = end
/* line: the text around a value. */
#define FUNCTIONS(tag, line) \
    ENCLOSED("<" tag ">", "</" tag ">", tool_calls_parse_tagged, "", "", "<" tag ">\n<function=", ">\n", \
             "</function>\n</" tag ">", "\n", "<parameter=", ">" line, NULL, line "</parameter>\n")
/* mark: of the tags' names. */
#define INVOKES(opening, closing, mark, ...) \
    CALLS(opening, closing, tool_calls_parse_invokes, __VA_ARGS__), .prefix = mark
/* Templates join the mark and the block, which is the rest of the outer tags. */
#define TYPED_INVOKES(mark, space, block) \
    INVOKES("<" mark space block, "</" mark space block, mark space, "\n\n<" mark space block "\n", \
            "</" mark space block, "<" mark space "invoke name=\"", "\">\n", "</" mark space "invoke>\n", "", \
            "<" mark space "parameter name=\"", "\" string=\"true\">", "\" string=\"false\">", \
            "</" mark space "parameter>\n"), \
        .call.open = "<" mark space "invoke", .also = mark, .with = space block, HAS(mark, space block)
#define DEEPSEEK(before_name, after_name, after_arguments, between) \
    CALLS("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", tool_calls_parse_deepseek, "<｜tool▁calls▁begin｜>", \
          "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>" before_name, after_name, \
          after_arguments "<｜tool▁call▁end｜>", between), \
        .call = {"<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"}
#define MISTRAL(...) CALLS("[TOOL_CALLS]", NULL, tool_calls_parse_mistral, __VA_ARGS__)
#define XTML         "<|open|>" /* templates join it with the names of tags */

/* Templates that show tools and no calls of earlier answers get this text in front, which appends the calls to the
 * answers as the models write them. Literals of the text become control tokens, as in the templates. */
#define WRITE_CALLS(open, begin, call, close) \
    "{%- set calls_ns = namespace(messages=[], text='', arguments='') -%}{%- for message in messages -%}" \
    "{%- if message.role == 'assistant' and message.tool_calls -%}{%- set calls_ns.text = (message.content or '') + " \
    "'" open "' -%}" \
    "{%- for call in message.tool_calls -%}" begin \
    "{%- set calls_ns.text = calls_ns.text + (', ' if not loop.first else '') + " call " -%}{%- endfor -%}" \
    "{%- set calls_ns.messages = calls_ns.messages + [{'role': 'assistant', 'content': calls_ns.text + '" close \
    "'}] -%}" \
    "{%- else -%}{%- set calls_ns.messages = calls_ns.messages + [message] -%}{%- endif -%}{%- endfor -%}{%- set " \
    "messages = calls_ns.messages -%}"
#define KEYWORDS \
    "{%- set calls_ns.arguments = '' -%}{%- if call.function.arguments is mapping -%}{%- for name, value in " \
    "call.function.arguments.items() -%}" \
    "{%- set calls_ns.arguments = calls_ns.arguments + (', ' if not loop.first else '') + name + '=' + " \
    "(value|tojson) -%}{%- endfor -%}{%- endif -%}"

/* The first row whose texts a template has says how calls are forced. */
static const struct dialect dialects[] = {
    {"<think>", "</think>", OUTPUT_THINKING}, /* DeepSeek, Qwen, GLM, Kimi K2 Thinking, MiniMax */
    {"◁think▷", "◁/think▷", OUTPUT_THINKING}, /* Kimi */
    {"<seed:think>", "</seed:think>", OUTPUT_THINKING},
    {"<longcat_think>", "</longcat_think>", OUTPUT_THINKING},
    {"[THINK]", "[/THINK]", OUTPUT_THINKING},                                              /* Mistral */
    {"<think:opensource>", "</think:opensource>", OUTPUT_THINKING, .also = ":opensource"}, /* Hunyuan 3 and 4 */
    {"<mm:think>", "</mm:think>", OUTPUT_THINKING},                                        /* MiniMax-M3 */
    {"<|channel>thought", "<channel|>", OUTPUT_THINKING},                                  /* Gemma 4 */
    {"<|START_THINKING|>", "<|END_THINKING|>", OUTPUT_THINKING},                           /* Cohere */
    {"[unused16]", "[unused17]", OUTPUT_THINKING, .also = "[unused10]"},                   /* openPangu */
    {"Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", OUTPUT_THINKING},           /* Apriel */
    {"[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]", OUTPUT_TEXT},
    {"<|START_RESPONSE|>", "<|END_RESPONSE|>", OUTPUT_TEXT},
    {"<|START_TEXT|>", "<|END_TEXT|>", OUTPUT_TEXT},
    {XTML "think<|sep|>", "<|close|>think<|sep|>", OUTPUT_THINKING, .also = XTML}, /* Kimi K3 */
    {XTML "response<|sep|>", "<|close|>response<|sep|>", OUTPUT_TEXT, .is_needed = true, .also = XTML},
    {"<|close|>message<|sep|>", NULL, OUTPUT_TEXT, .also = XTML},

    {PAIRS("", ""), HAS("<arg_key>", "</arg_key><arg_value>"), LACKS("<tool_sep>")},       /* GLM 4.7 and later */
    {PAIRS("", "\n"), HAS("<arg_key>", "<tool_call>"), LACKS("<tool_sep>")},               /* GLM 4.5 and 4.6 */
    {HUNYUAN_PAIRS(":opensource"), .also = ":opensource", HAS(":opensource", "tool_sep")}, /* Hunyuan 3 and 4 */
    {HUNYUAN_PAIRS(""), HAS("<arg_key>", "<tool_sep>")},
    {PAIRS(LONGCAT, "\n"), HAS("<longcat_arg_key>")}, /* LongCat's second form */
    {FUNCTIONS("tool_call", "\n"), HAS("<function=", "<tool_call>"), LACKS("<seed:tool_call>")}, /* Qwen3-Coder */
    {FUNCTIONS("seed:tool_call", ""), .keeps_line_ends = true, HAS("<seed:tool_call>", "<function=")},
    {TYPED_INVOKES("｜DSML｜", "", "function_calls>")}, /* DeepSeek V3.2 */
    {TYPED_INVOKES("｜DSML｜", "", "tool_calls>")},     /* V4 */
    {TYPED_INVOKES("｜DSML｜", " ", "calls>")},         /* V4.1 */
    {TYPED_INVOKES("｜GCML｜", "", "tool_calls>")},     /* GigaChat 3.5 */
    /* Step3 */
    {INVOKES("<｜tool_calls_begin｜>", "<｜tool_calls_end｜>", "steptml:", "<｜tool_calls_begin｜>\n",
             "\n<｜tool_calls_end｜>", "<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"", "\">\n",
             "</steptml:invoke><｜tool_call_end｜>", "\n", "<steptml:parameter name=\"", "\">", NULL,
             "</steptml:parameter>\n"),
     HAS("<steptml:invoke")},
    /* MiniMax M2 */
    {INVOKES("<minimax:tool_call>", "</minimax:tool_call>", "", "<minimax:tool_call>\n", "</minimax:tool_call>",
             "<invoke name=\"", "\">\n", "</invoke>\n", "", "<parameter name=\"", "\">", NULL, "</parameter>\n"),
     HAS("<minimax:tool_call>", "<invoke name=")},
    /* MiniCPM5 */
    {CALLS("<function name=\"", "</function>", tool_calls_parse_functions, "", "", "<function name=\"", "\">",
           "</function>", "\n", "<param name=\"", "\">", NULL, "</param>"),
     HAS("<function name=\"", "<param name=\"")},
    {JSON_TAGS(LONGCAT "tool_call"), LACKS("<arg_key>", "<function=")},
    {JSON_TAGS("tool_call"), LACKS("<arg_key>", "<function=", "<invoke")}, /* Qwen, Hermes */
    {DEEPSEEK("", "<｜tool▁sep｜>", "", ""), LACKS("```json")},            /* V3.1 */
    {DEEPSEEK("function<｜tool▁sep｜>", "\n```json\n", "\n```", "\n")},    /* V3, R1 */
    /* Cohere: calls are numbered */
    {ENCLOSED("<|START_ACTION|>", "<|END_ACTION|>", tool_calls_parse_json, "<|START_ACTION|>[\n", "\n]<|END_ACTION|>",
              "    {\"tool_call_id\": \"0\", \"tool_name\": \"", "\", \"parameters\": ", "}", ""),
     .is_single = true},
    {MISTRAL("[TOOL_CALLS][", "]", NAME, ARGUMENTS, "}", ", "), LACKS("[ARGS]")}, /* up to Nemo */
    {MISTRAL("", "", "[TOOL_CALLS]", "[ARGS]", "", ""), HAS("[TOOL_CALLS]", "[ARGS]"), LACKS("[CALL_ID]")},
    {MISTRAL("", "", "[TOOL_CALLS]", "[CALL_ID]000000000[ARGS]", "", ""), HAS("[TOOL_CALLS]", "[CALL_ID]"),
     .is_single = true},
    {JSON_LIST("<TOOLCALL>", "</TOOLCALL>", tool_calls_parse_json)},                              /* Nemotron Nano 2 */
    {JSON_LIST("[unused11]", "[unused12]", tool_calls_parse_json), .also = "[unused10]"},         /* openPangu */
    {JSON_LIST("<tool_calls>", "</tool_calls>", tool_calls_parse_hunyuan), HAS("<tool_calls>[")}, /* Apriel */
    /* MiniMax-M1 */
    {ENCLOSED("<tool_calls>", "</tool_calls>", tool_calls_parse_hunyuan, "<tool_calls>\n", "\n</tool_calls>", NAME,
              ARGUMENTS, "}", "\n"),
     HAS("<tool_calls>", "<beginning_of_sentence>")},
    /* Inkling */
    {HEADERS("<|content_thinking|>", inkling, tool_calls_parse_json), .also = "<|content_invoke_tool_json|>",
     .call = {"<|content_invoke_tool_json|>", NULL, "<|end_message|>"}},
    /* Solar Open: each call has an id */
    {HEADERS("<|begin|>assistant<|tool_calls|>", solar, tool_calls_parse_solar, "<|tool_calls|>", "<|calls|>",
             "<|tool_call:begin|>a1b2c3d4e5<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>", ""),
     .call = {"<|tool_call:begin|>", "<|tool_call:args|>", "<|tool_call:end|>"}, HAS("<|tool_call:begin|>"),
     .is_single = true},
    /* GigaChat 3.1 */
    {CALLS("<|function_call|>", NULL, tool_calls_parse_gigachat, "", "", "<|function_call|>" NAME, ARGUMENTS, "}", ""),
     .is_single = true},
    /* gpt-oss: a message to the function, which ends the answer */
    {HEADERS("<|message|>", harmony, tool_calls_parse_gpt_oss, "", "", HEADER_CHANNEL_MARK "commentary to=functions.",
             " <|constrain|>json<|message|>", "", ""),
     .with = HEADER_CHANNEL_MARK, HAS(HEADER_CHANNEL_MARK), .is_single = true},
    /* Kimi K2: calls are numbered */
    {CALLS("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", tool_calls_parse_kimi,
           "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>functions.",
           ":0<|tool_call_argument_begin|>", "<|tool_call_end|>", ""),
     .call = {"<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"}, .is_single = true},
    /* Kimi K3, whose calls follow the answer and are numbered */
    {CALLS(XTML "tools<|sep|>", "<|close|>tools<|sep|>", tool_calls_parse_xtml,
           "<|close|>response<|sep|>" XTML "tools<|sep|>", "<|close|>tools<|sep|>", XTML "call tool=\"",
           "\" index=\"1\"<|sep|>" XTML "json type=\"object\"<|sep|>", "<|close|>json<|sep|><|close|>call<|sep|>", ""),
     .call.open = XTML "call ", .also = XTML, HAS(XTML, "<|sep|>"), .is_single = true},

    /* Calls of these forms cannot be forced. */
    {HEADERS("<|message|>", muse, NULL), .with = "<|eom|>"},
    {INVOKES("<atem:function_calls>", "</atem:function_calls>", "atem:")}, /* Muse */
    {INVOKES("<dots_function_call>", "</dots_function_call>", "")},
    /* M3 may join the mark and the tag */
    {CALLS(MINIMAX_MARK "<tool_call>", MINIMAX_MARK "</tool_call>", tool_calls_parse_minimax_m3), .also = MINIMAX_MARK},
    {ENCLOSED("<|tool_call>", "<tool_call|>", tool_calls_parse_gemma)}, /* Gemma 4 */
    {LFM2("<|tool_list_start|>")},
    {LFM2("\"List of tools: [\"")},                                            /* 2.5 */
    {ENCLOSED("<|python_start|>", "<|python_end|>", tool_calls_parse_python)}, /* Llama 4 */
    {CALLS("<|python_tag|>", NULL, tool_calls_parse_llama)},                   /* Llama 3 */
    /* Granite 3 */
    {ENCLOSED("<|tool_call|>", "<|/tool_call|>", tool_calls_parse_json),
     .past = WRITE_CALLS("<|tool_call|>[", "",
                         "({'name': call.function.name, 'arguments': call.function.arguments}|tojson)", "]")},
    /* GigaChat 3: the name of a role */
    {CALLS("function call<|role_sep|>", NULL, tool_calls_parse_gigachat), .also = "'function call'"},
};
enum { N_DIALECTS = sizeof dialects / sizeof *dialects };
_Static_assert(N_DIALECTS < sizeof((struct dialect_set *)0)->active / sizeof(struct dialect *), "room for all rows");

static bool has(struct markup_range t, const char *what) { return markup_find(t, what) != NULL; }

static bool is_active(const struct dialect *d, struct markup_range t) {
    const bool is_written =
        has(t, d->open) || (d->kind == OUTPUT_THINKING && has(t, d->close)) || (d->also && has(t, d->also));
    return is_written && (!d->with || has(t, d->with));
}

static bool writes_format(const struct dialect *d, struct markup_range t) {
    bool fits = d->format[FORMAT_OPEN] && (d->has[0] || has(t, d->open));
    for (int i = 0; i < 2 && d->has[i]; i++) fits &= has(t, d->has[i]);
    for (int i = 0; i < 3 && d->lacks[i]; i++) fits &= !has(t, d->lacks[i]);
    return fits;
}

void dialects_find(struct dialect_set *out, struct markup_range t) {
    *out = (struct dialect_set){0};
    for (size_t i = 0, k = 0; i < N_DIALECTS; i++) {
        const struct dialect *d = &dialects[i];
        if (!out->past && d->past && has(t, d->also ? d->also : d->open)) out->past = d->past;
        if (!out->forced && writes_format(d, t)) out->forced = d;
        if (!is_active(d, t)) continue;
        if (!d->header) out->active[k++] = d;
        else if (!out->headers) out->headers = d->header;
    }
    if (out->headers) out->active[0] = NULL;
}

const struct dialect *dialects_first(struct markup_range t) {
    const struct dialect *first = NULL;
    const char *first_at = NULL;
    for (size_t i = 0; i < N_DIALECTS; i++) {
        const struct dialect *d = &dialects[i];
        const char *at = d->parse ? markup_find(t, d->call.open ? d->call.open : d->open) : NULL;
        if (at && (!first || at < first_at)) first = d, first_at = at;
    }
    return first;
}
