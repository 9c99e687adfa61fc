#include "cli/modes/oneshot_tools.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "cli/modes/oneshot_json.h"
#include "cli/report.h"
#include "cli/terminal/ask.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"
#include "cli/tools/tool_job.h"

static bool is_stopped(void) { return sig_interrupted() || sig_terminated(); }
static int stop(struct error *e) { return error_set(e, ERR_CANCELLED, "stopped"); }

/* Shows a call on stderr. It is part of a question, or a note. */
static void show_call(const struct app *a, const struct tool_round *q, bool asks) {
    struct buf b = {0};
    if (!asks && a->opts.v[OPT_QUIET].on) return;
    buf_str(&b, "hearth: ");
    tool_round_show_next(q, &b);
    if (!b.failed) progress_print(b.data);
    buf_free(&b);
}

static int ask(const struct app *a, const struct tool_call *call, struct tool *tool, enum tool_consent *consent,
               struct error *e) {
    const char *name = tool->definition.name;
    char answer[64];
    struct buf b = {0};
    const bool reads = tool_set_asks_to_read(a->tools, tool);
    if ((!a->tty_in || !a->tty_err) && reads)
        return error_set(e, ERR_USAGE,
                         "the model at %s called %s, which sends it files of %.150s and needs your consent, but stdin "
                         "and stderr are not a terminal; --allow %s gives it",
                         a->tools->reader, name, agent_path(a->tools->agent), name);
    if (!a->tty_in || !a->tty_err)
        return error_set(e, ERR_USAGE,
                         "the model called %s, which needs your consent, but stdin and stderr are not a terminal; "
                         "--allow %s gives it",
                         name, name);
    if (reads)
        buf_fmt(&b, "Read files of %s for the model at %s? y: yes, from now on; n: no > ", agent_path(a->tools->agent),
                a->tools->reader);
    else buf_fmt(&b, "Run it? y: yes, n: no, a: always run %s > ", name);
    if (b.failed) return error_set(e, ERR_MEMORY, "no memory");
    for (*consent = TOOL_CONSENT_UNCLEAR; *consent == TOOL_CONSENT_UNCLEAR;) {
        ask_drop_typed();
        out_err(b.data, b.len);
        if (ask_line(answer, sizeof answer)) *consent = tool_round_consent(answer, strlen(answer));
        else *consent = TOOL_CONSENT_NO;
        if (is_stopped()) break;
    }
    buf_free(&b);
    if (*consent == TOOL_CONSENT_ALWAYS || (reads && *consent == TOOL_CONSENT_YES)) tool_set_allow(a->tools, tool);
    return is_stopped() ? stop(e) : 0;
}

/* Waits for the end of a call. Signals stop it. */
static int run_call(const struct tool *tool, const struct tool_round *q, struct engine_client *s, struct tool_result *r,
                    struct error *e) {
    enum { TICK_MS = 250 };
    struct pollfd fd = {.fd = sig_fd(), .events = POLLIN};
    struct tool_job *job;
    char what[TOOL_NAME_MAX + 16];
    TRY(tool_job_start(&job, tool, &tool_round_call(q)->arguments, q->seen, e));
    sig_defer(tool_job_cancel, job);
    if (is_stopped()) tool_job_cancel(job); /* the signal came before sig_defer */
    snprintf(what, sizeof what, "running %s", tool->definition.name);
    progress_begin(what);
    while (!tool_job_has_ended(job)) {
        poll(&fd, 1, TICK_MS);
        sig_drain();
        progress_tick();
    }
    progress_clear();
    engine_client_defer_signals(s);
    tool_job_close(&job, r);
    return 0;
}

/* Asks about the next call, if that is needed, and runs or refuses it. */
static int handle_call(struct app *a, struct tool_round *q, enum tool_step step, struct tool *tool,
                       struct engine_client *s, struct tool_result *r, struct error *e) {
    const struct tool_call *call = tool_round_call(q);
    enum tool_consent consent = TOOL_CONSENT_YES;
    show_call(a, q, step == TOOL_STEP_ASK);
    oneshot_json_call(a, call);
    if (step == TOOL_STEP_ASK) TRY(ask(a, call, tool, &consent, e));
    if (consent == TOOL_CONSENT_NO) return tool_round_refuse(r), 0;
    if (step == TOOL_STEP_RESULT) return 0;
    q->n_run++;
    return run_call(tool, q, s, r, e);
}

static const char *why_abandoned(int code) {
    return code == ERR_CANCELLED ? "the user stopped the answer"
           : code == ERR_USAGE   ? "the user could not be asked"
                                 : "an error ended the answer";
}

int oneshot_tools_run(struct app *a, struct tool_round *q, struct conversation *conv, struct engine_client *s,
                      struct buf *calls, struct error *e) {
    struct tool_result r;
    struct tool *tool;
    int rc = 0;
    for (enum tool_step step; !rc && (step = tool_round_step(q, a, &tool, &r)) != TOOL_STEP_TURN;) {
        rc = is_stopped() ? stop(e) : handle_call(a, q, step, tool, s, &r, e);
        if (rc) {
            tool_result_free(&r);
            break;
        }
        if (r.status == TOOL_STOPPED) rc = stop(e);
        if (r.status == TOOL_FAILED)
            report_note("the call of %.*s failed", (int)tool_round_call(q)->name.len, tool_round_call(q)->name.data);
        oneshot_json_result(a, tool_round_call(q), &r, calls);
        if (tool_round_finish(q, conv, &r)) rc = error_set(e, ERR_MEMORY, "no memory for the result of a tool");
    }
    if (rc && tool_round_abandon(q, conv, why_abandoned(rc))) return error_set(e, ERR_MEMORY, "no memory");
    return rc;
}
