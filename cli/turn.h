#pragma once
/* One answer: from ids to text, thinking, the reason it ended, and statistics. Whoever drives it polls its app
 * and hands over the news; live pieces go to a callback. */
#include "cli/app.h"
#include "cli/conv.h"

/* Text that is certain, as it comes. Non-zero cancels the turn. */
typedef int (*turn_fn)(void *ctx, enum part part, const char *data, size_t n);

struct turn {
    struct app *app;
    struct seat *seat;
    struct decoder decoder;
    struct parts *parts; /* NULL: raw, all is text */
    struct buf text, thinking, tool;
    const char *const *stop; /* texts that end the answer; --until's before turn_stop_at */
    size_t n_stop;
    size_t shown;                                    /* of text: the rest may be the beginning of a stop string */
    bool begun, stop_hit, running, failed, resuming; /* resuming: what comes has been shown */
    int lost;                                        /* why text is missing: ERR_MEMORY, ERR_MODEL (an id without a text), or 0; nothing is shown behind it */
    turn_fn fn;                                      /* may be NULL, and may be changed between events */
    void *ctx;
    enum done_reason reason;
    struct error error; /* when failed */
    struct turn_stats stats;
    int n_tokens;
    struct ids ids;                 /* as generated, without the end mark; none from an engine elsewhere */
    double first_token, last_token; /* clock */
    int done, total;                /* prefill, as last heard */
    double left_s;
};
/* Starts; on error nothing is left. The prompt is not needed afterwards. Behind what an earlier turn wrote (prompt.said)
 * it goes on as that one stood, thinking or answering, and holds the new text alone. */
int turn_start(struct turn *t, struct app *a, struct seat *s, const struct prompt *p, const struct request *r, turn_fn fn, void *ctx, struct error *e);
/* Other texts end it than those of the options; they must live as long as the turn. Before the first news. */
void turn_stop_at(struct turn *t, const char *const *stop, size_t n);
/* What is new at this turn's seat; t->running becomes false with the last of it. */
void turn_event(struct turn *t, const struct news *news);
void turn_free(struct turn *t);
const char *turn_reason(enum done_reason r); /* "stop", "length", "context", "cancelled" */

/* turn_json.c: {"prompt_tokens": ...}; {"ttft_s": ...}; and members without braces: text, thinking, tool, reason, usage */
void turn_json_usage(const struct turn *t, struct buf *b);
void turn_json_timing(const struct turn *t, struct buf *b);
void turn_json_answer(const struct turn *t, struct buf *b);
