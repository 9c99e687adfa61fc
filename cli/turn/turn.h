#pragma once
/* One answer: turns token ids into text, thinking, a finish reason and statistics. The caller polls the app and passes
 * the events; new text goes to a callback. */
#include "cli/app.h"
#include "cli/turn/constraint.h"
#include "cli/turn/engine_client.h"
#include "cli/turn/prompt.h"
#include "cli/turn/think_limit.h"

/* Receives final text as it arrives. Non-zero cancels the turn. */
typedef int (*turn_fn)(void *ctx, enum output_kind part, const char *data, size_t n);

struct turn_logprob { /* a token of the answer's text */
    int32_t id;
    size_t from; /* bytes of text before the token's own */
    struct token_logprobs probs;
};

struct turn {
    struct app *app;
    struct engine_client *client;
    struct decoder decoder;
    struct output_parser *parser;    /* NULL: raw, all is text */
    struct think_limit *think_limit; /* NULL: none */
    struct constraint *constraint;   /* NULL: none, or the engine is another process */
    struct buf text, thinking, tool;
    const char *const *stop; /* strings that end the answer; --until's unless turn_set_stops was called */
    size_t n_stop;
    const char *stop_found;        /* the stop string that ended the answer, or NULL */
    const struct json *text_tools; /* of turn_set_text_tools(), or NULL */
    /* bytes of text emitted: the rest may begin a stop string, or a character */
    size_t n_shown;
    size_t n_thinking_shown, n_tool_shown; /* the same of the other parts */
    /* resuming: the ids of an earlier turn are replayed without output */
    bool text_begun, stop_hit, running, failed, resuming;
    /* why text is missing: ERR_MEMORY, ERR_MODEL (an id without text), or 0; nothing is shown after the gap */
    int text_error;
    turn_fn on_text; /* may be NULL, and may change between events */
    void *ctx;
    enum done_reason reason;
    struct error error; /* when failed */
    struct turn_stats stats;
    int n_tokens, n_thinking; /* tokens; those of thinking among them */
    int n_until_stop;         /* tokens up to the stop string that ended the answer; 0: none, or unknown */
    enum output_kind part;    /* part of the last text */
    bool wants_logprobs;
    struct turn_logprob *logprobs; /* [n_logprobs] as requested */
    size_t n_logprobs, logprobs_cap;
    /* as generated, without the end token; empty for remote engines. Of an attached engine: those whose text has come
     * whole */
    struct ids ids;
    bool lacks_ids;                       /* attached engines: the received ids are invalid */
    size_t n_of_ids[3];                   /* attached engines: bytes of each part whose ids were received */
    double first_token_at, last_token_at; /* clock_now() */
    int prefill_done, prefill_total;      /* prefill progress, as last reported */
    double prefill_left_s;
};
/* Whether all text of the ids so far has been emitted: none may begin a marker, a character or a stop string. */
bool turn_is_settled(const struct turn *t);
/* Starts a turn; on error nothing remains to free. The prompt is not needed afterwards. Ids that an earlier turn
 * generated (after prompt.n_given) restore its state, thinking or answering; t holds only the new text. */
int turn_start(struct turn *t, struct app *a, struct engine_client *s, const struct prompt *p, const struct request *r,
               turn_fn fn, void *ctx, struct error *e);
/* Replaces the stop strings of the options; they must outlive the turn. Call before the first event. */
void turn_set_stops(struct turn *t, const char *const *stop, size_t n);
/* Makes calls of an answer's text that is nothing but calls of these tools (tool_calls_parse_text()). Text that may be
 * such an answer is held back, until it is more, or the answer ends. NULL: text is text. The tools must outlive the
 * turn. Call before the first event. */
void turn_set_text_tools(struct turn *t, const struct json *tools);
/* Handles an event of this turn's client; the last one sets t->running to false. */
void turn_event(struct turn *t, const struct engine_event *news);
/* Formats the decode speed in tokens per second; returns out. */
const char *turn_speed(const struct turn *t, char *out, size_t cap);
/* Whether the answer ends with the same passage again and again, as some models do without end. */
bool turn_repeats(const struct turn *t);
/* Returns the markup of an answer that was not cut, in which no call was found: it is text. NULL: none. A cut answer
 * may be continued within its markup. */
const struct buf *turn_markup_text(const struct turn *t, size_t n_calls);
/* Returns how many of the logprobs belong to text that has been emitted: none of a stop string, nor of text that may
 * begin one. */
size_t turn_shown_logprobs(const struct turn *t);
/* Appends the calls of an ended answer. ERR_MODEL: it has none, or none that can be parsed; ERR_MEMORY. */
int turn_calls(const struct turn *t, const struct json *tools, struct tool_calls *out);
void turn_free(struct turn *t);
const char *turn_reason_name(enum done_reason r); /* "stop", "length", "context", "cancelled" */

/* turn_json.c: {"prompt_tokens": ...}; {"ttft_s": ...}; and members without braces: text, thinking, tool, reason,
 * usage */
void turn_json_usage(const struct turn *t, struct buf *b);
void turn_json_timing(const struct turn *t, struct buf *b);
void turn_json_answer(const struct turn *t, struct buf *b);
