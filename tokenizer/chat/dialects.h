#pragma once
/* The published forms of thinking, answers and tool calls, one row each. A template decides which rows are active.
 * Pure. */
#include "base/json.h"
#include "tokenizer/chat/markup.h"

enum output_kind { OUTPUT_TEXT, OUTPUT_THINKING, OUTPUT_TOOL_CALL };

struct dialect;
struct tool_calls;
struct call_parser {
    struct tool_calls *calls;
    const struct json *tools; /* the request's tools, whose schemas give the types of untyped arguments; NULL: none */
    const struct dialect *dialect;
    bool goes_on; /* the markup is the beginning of a longer one */
};
/* Appends the calls in a markup, or in what the marks of one call enclose. ERR_MODEL, ERR_MEMORY. */
typedef int dialect_parser(const struct call_parser *p, struct markup_range in);

/* Marks of models that begin each message with a header, which says what the message is. */
enum header_role { HEADER_START, HEADER_CHANNEL, HEADER_PART, HEADER_END, MESSAGE_END, CALL_END };
/* Kinds of HEADER_END besides enum output_kind: the text of the header says what the message is. */
enum { KIND_OF_CHANNEL = OUTPUT_TOOL_CALL + 1, KIND_OF_RECIPIENT };
enum { HEADER_MARKS = 8 };
struct header_mark {
    const char *text; /* NULL after the last mark */
    uint8_t role;     /* enum header_role */
    uint8_t kind;     /* of HEADER_END */
};
#define HEADER_CHANNEL_MARK "<|channel|>"

/* Texts around the name and the arguments of a call, for grammars of forced calls. */
enum format_text {
    FORMAT_OPEN, /* before all calls; NULL: calls of this form cannot be forced */
    FORMAT_CLOSE,
    FORMAT_BEFORE_NAME,
    FORMAT_AFTER_NAME,
    FORMAT_AFTER_ARGUMENTS,
    FORMAT_BETWEEN, /* calls */
    /* Arguments between tags, one after the other; FORMAT_BEFORE_KEY is NULL: the arguments are JSON. */
    FORMAT_BEFORE_KEY,
    FORMAT_BEFORE_TEXT,
    /* before a value that is JSON; NULL: FORMAT_BEFORE_TEXT, and the type in the tool's schema tells plain text from
     * JSON */
    FORMAT_BEFORE_JSON,
    FORMAT_AFTER_VALUE, /* the first three tags from here to the end of the calls end a value; no value contains one */
    N_FORMAT
};

struct dialect {
    const char *open, *close; /* marks in the output; close is NULL: up to the end of the answer */
    uint8_t kind;             /* enum output_kind: of what the marks enclose */
    bool is_needed;           /* no other text is the answer */
    /* The template has `open`, or closes thinking, or has `also`; and it has `with`. NULL: anything. */
    const char *also, *with;
    const struct header_mark *header; /* instead of the pair of marks */

    struct {
        const char *open, *head, *close; /* around a call, and before its arguments; close is NULL: `parse` takes all
                                            calls from the mark on. open is NULL: that of the row */
    } call;
    dialect_parser *parse;
    const char *prefix, *suffix; /* what the model writes around the name of each tag */
    bool keeps_line_ends;        /* around the value of an argument */

    const char *has[2], *lacks[3]; /* texts in a template that writes `format`; has is empty: `open` */
    const char *format[N_FORMAT];
    bool is_single; /* a second call would be written in another way */

    /* text in front of templates with `also`, or else `open`, that leave out calls of earlier answers; NULL: none */
    const char *past;
};

/* The rows that a template selects. */
struct dialect_set {
    const struct dialect *active[72];  /* of pairs of marks, NULL after the last; none beside headers */
    const struct header_mark *headers; /* NULL: messages have none */
    const struct dialect *forced;      /* how calls can be forced; NULL: in no way */
    const char *past;                  /* of a row; NULL: none */
};
void dialects_find(struct dialect_set *out, struct markup_range template);
/* Finds the row whose mark of calls comes first in a markup. NULL: none. */
const struct dialect *dialects_first(struct markup_range t);

#define MINIMAX_MARK "]<]minimax[>[" /* precedes each tag of MiniMax-M3 */
#define LONGCAT      "longcat_"      /* begins the names of LongCat's tags */

/* tool_calls_json.c: arguments in JSON */
dialect_parser tool_calls_parse_json, tool_calls_parse_deepseek, tool_calls_parse_kimi, tool_calls_parse_gpt_oss,
    tool_calls_parse_mistral, tool_calls_parse_gigachat, tool_calls_parse_solar, tool_calls_parse_llama;
/* tool_calls_tags.c: arguments in tags */
dialect_parser tool_calls_parse_tagged, tool_calls_parse_hunyuan, tool_calls_parse_invokes, tool_calls_parse_functions,
    tool_calls_parse_xtml, tool_calls_parse_minimax_m3;
/* tool_calls_notation.c: Python and Gemma's notation */
dialect_parser tool_calls_parse_python, tool_calls_parse_gemma;
