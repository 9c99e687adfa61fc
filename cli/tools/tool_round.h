#pragma once
/* The tool calls of an answer: takes them from the turns of the model, decides what happens to each, and adds the
 * results to the conversation. Questions and running are left to the chat and to one-shot mode. */
#include "cli/tools/tool_set.h"
#include "cli/turn/turn.h"

struct tool_round {          /* empty when zero-initialised */
    struct tool_calls calls; /* the last turn's; arguments are JSON objects on one line */
    size_t n_done;           /* number of calls that have a result: the first ones */
    int n_run;               /* calls of this answer that have run */
    bool is_over;            /* the answer has reached --max-calls: no further turn */
    struct buf preview;      /* of the next call, if it changes a file: the path and the differences */
    uint64_t seen;           /* what they were made from: agent_tool_preview() */
};
/* Takes the calls of a turn that has ended well, with ids that are unique in the conversation. calls.n is 0 if it has
 * none, or what it wrote is not a call. ERR_MEMORY. */
int tool_round_take(struct tool_round *q, const struct app *a, const struct turn *t, const struct conversation *conv,
                    struct error *e);

enum { TOOL_ROUND_MOST_CALLS = 20 }; /* tool calls in an answer, unless --max-calls says otherwise */
enum tool_step {
    TOOL_STEP_TURN,   /* all calls have results: the model continues, or the answer is over */
    TOOL_STEP_ASK,    /* ask the user whether the next call may run */
    TOOL_STEP_RUN,    /* run it */
    TOOL_STEP_RESULT, /* it has a result without running */
};
/* Decides about the next call. *tool: for ASK and RUN. r: for RESULT. */
enum tool_step tool_round_step(struct tool_round *q, const struct app *a, struct tool **tool, struct tool_result *r);
const struct tool_call *tool_round_call(const struct tool_round *q); /* the next call */
/* Adds the next call's result to the conversation, and frees it. ERR_MEMORY. */
int tool_round_finish(struct tool_round *q, struct conversation *conv, struct tool_result *r);
/* Gives all remaining calls a result that states why they were not run, so that the conversation remains valid. Returns
 * as tool_round_finish. */
int tool_round_abandon(struct tool_round *q, struct conversation *conv, const char *why);
enum tool_consent { TOOL_CONSENT_UNCLEAR, TOOL_CONSENT_YES, TOOL_CONSENT_NO, TOOL_CONSENT_ALWAYS };
enum tool_consent tool_round_consent(const char *answer, size_t n); /* y, yes, n, no, a, always; all else is unclear */
/* the result of a call that the user has not allowed */
void tool_round_refuse(struct tool_result *r);
/* Append members of an object: id, name and arguments of a call; status, seconds and result. */
void tool_round_put_call(const struct tool_call *call, struct buf *b);
void tool_round_put_result(const struct tool_result *r, struct buf *b);
/* Appends name and arguments as one line without control characters, also outside a terminal. */
void tool_round_show_call(const struct tool_call *call, struct buf *out);
/* The same of the next call; one that changes a file is shown by the differences, on several lines. */
void tool_round_show_next(const struct tool_round *q, struct buf *out);
void tool_round_free(struct tool_round *q);
