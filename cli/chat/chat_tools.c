/* The tool calls of a chat's answers: shows them, asks for consent in the edited line, and runs them beside the loop
 * over events. */
#include "cli/chat/chat_tools.h"

#include <stdio.h>
#include <string.h>

#include "cli/chat/chat_session.h"
#include "cli/chat/chat_turn.h"
#include "cli/chat/queue.h"
#include "cli/chat/screen.h"
#include "cli/report.h"
#include "cli/terminal/ask.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"

static const char stopped_by_user[] = "the user stopped the answer";

static void show_call(struct repl *r, const struct chat_session *t) {
    struct buf b = {0};
    tool_round_show_next(&t->round, &b);
    const char *at = b.data ? b.data : "", *const end = at + b.len;
    while (at < end) { /* the first line, and those of differences */
        const char *line_end = memchr(at, '\n', (size_t)(end - at));
        const size_t n = (size_t)((line_end ? line_end : end) - at);
        const char *style = at == b.data ? "\033[2m" : *at == '+' ? "\033[32m" : *at == '-' ? "\033[31m" : "";
        screen_print_styled(r, style, "", at, n);
        at += n + (line_end != NULL);
    }
    buf_free(&b);
}

/* Adds the result of the next call, and ends the answer on an error. */
static int add_result(struct repl *r, struct chat_session *t, struct tool_result *result) {
    int rc = tool_round_finish(&t->round, &t->conv, result);
    if (rc) {
        report_error(&(struct error){.code = rc, .text = "no memory for the result of a tool"});
        tool_round_abandon(&t->round, &t->conv, "an error ended the answer");
    }
    chat_session_save(r, t);
    return rc;
}

/* --- questions -------------------------------------------------------------------------------- */

/* Shows the call above the edited line, whose prompt asks. Drops earlier input, which is not an answer. */
static void show_question(struct repl *r, struct chat_session *t) {
    const struct tool_set *s = r->app->tools;
    const struct tool *tool = tool_set_find(s, &tool_round_call(&t->round)->name);
    r->asks_to_read = tool_set_asks_to_read(s, tool);
    screen_hide_line(r);
    show_call(r, t);
    if (r->asks_to_read)
        screen_print(r, "What it reads of %.300s goes to the model at %s.", agent_path(s->agent), s->reader);
    ask_drop_typed();
    r->input.len = 0;
    if (r->line.text.len && !r->put_aside.len) line_paste_expand(&r->line, &r->line.text, &r->put_aside);
    if (r->dumb) buf_free(&r->line.text);
    else line_reset(&r->line);
    screen_format_prompt(r);
}

static void begin_question(struct repl *r, struct chat_session *t) {
    char label[140];
    t->asking = true;
    if (r->line.unfocused && r->app->tty_out) out_draw(1, "\a", 1); /* the user works in another window */
    if (t == r->active) {
        show_question(r, t);
        return;
    }
    screen_label(t, label, sizeof label);
    report_note("session %s needs your consent to a call of %s; /switch %s asks", label,
                tool_round_call(&t->round)->name.data, label);
}

static void end_question(struct repl *r, struct chat_session *t) {
    t->asking = false;
    if (r->put_aside.len && !r->dumb)
        buf_add(&r->line.text, r->put_aside.data, r->put_aside.len), r->line.cursor = r->line.text.len;
    buf_free(&r->put_aside);
    screen_format_prompt(r);
}

/* --- running ---------------------------------------------------------------------------------- */

static void show_running(struct repl *r, struct chat_session *t) {
    char what[TOOL_NAME_MAX + 16];
    chat_turn_acquire_screen(r, t);
    sig_defer(tool_job_cancel, t->job);
    snprintf(what, sizeof what, "running %s", tool_round_call(&t->round)->name.data);
    progress_begin(what);
}

static void run_call(struct repl *r, struct chat_session *t, const struct tool *tool, bool front) {
    struct error e;
    t->round.n_run++;
    if (tool_job_start(&t->job, tool, &tool_round_call(&t->round)->arguments, t->round.seen, &e)) {
        report_error(&e);
        chat_tools_abandon(r, t, "an error ended the answer");
    } else if (front) show_running(r, t);
}

static void report_limit(struct repl *r, const struct chat_session *t, bool front) {
    char label[140];
    screen_label(t, label, sizeof label);
    if (front)
        screen_print(r, "(ended after %d tool calls; /set max-calls allows more, /continue goes on)\n", t->round.n_run);
    else report_note("session %s has ended after %d tool calls; /switch %s shows it", label, t->round.n_run, label);
}

void chat_tools_step(struct repl *r, struct chat_session *t, bool front) {
    struct tool_result result;
    struct tool *tool;
    for (;;) switch (tool_round_step(&t->round, r->app, &tool, &result)) {
        case TOOL_STEP_RESULT:
            if (front) show_call(r, t);
            if (front) screen_print(r, "%s", result.text.data ? result.text.data : "");
            if (add_result(r, t, &result)) return;
            break;
        case TOOL_STEP_ASK: begin_question(r, t); return;
        case TOOL_STEP_RUN:
            if (front) show_call(r, t);
            run_call(r, t, tool, front);
            return;
        case TOOL_STEP_TURN:
            if (!t->round.is_over) chat_turn_resume(r, t, !front);
            else report_limit(r, t, front);
            return;
        }
}

static void finish_job(struct repl *r, struct chat_session *t) {
    const bool front = r->on_screen == t;
    struct tool_result result;
    if (front) chat_turn_release_screen(r);
    tool_job_close(&t->job, &result);
    const bool is_stopped = result.status == TOOL_STOPPED;
    if (front && result.status == TOOL_FAILED) screen_print(r, "(%s failed)", tool_round_call(&t->round)->name.data);
    if (add_result(r, t, &result)) return;
    if (!is_stopped) {
        chat_tools_step(r, t, front);
        return;
    }
    chat_tools_abandon(r, t, stopped_by_user);
    if (!front) return;
    queue_discard(r);
    screen_print(r, "(stopped; /continue lets the model go on)\n");
}

void chat_tools_poll(struct repl *r) {
    for (size_t i = 0; i < r->n_sessions; i++)
        if (r->sessions[i]->job && tool_job_has_ended(r->sessions[i]->job)) finish_job(r, r->sessions[i]);
}

void chat_tools_show(struct repl *r, struct chat_session *t) {
    if (t->job) show_running(r, t);
    else if (t->asking) show_question(r, t);
}

void chat_tools_abandon(struct repl *r, struct chat_session *t, const char *why) {
    if (t->job) tool_job_cancel(t->job);
    tool_job_close(&t->job, NULL);
    t->asking = false;
    if (tool_round_abandon(&t->round, &t->conv, why)) report_note("no memory for the results of tools");
    chat_session_save(r, t);
}

/* --- answers to questions --------------------------------------------------------------------- */

void chat_tools_answer(struct repl *r, const char *text, size_t n) {
    struct chat_session *t = r->active;
    struct tool *tool = tool_set_find(r->app->tools, &tool_round_call(&t->round)->name);
    struct tool_result refused = {0};
    switch (tool_round_consent(text, n)) {
    case TOOL_CONSENT_UNCLEAR:
        if (r->asks_to_read)
            screen_print(r, "y lets it read there from now on, n refuses this call; Ctrl-C stops the answer");
        else
            screen_print(r,
                         "y runs it, n refuses it, a runs all calls of %s without a question; Ctrl-C stops the answer",
                         tool->definition.name);
        return;
    case TOOL_CONSENT_NO:
        end_question(r, t);
        tool_round_refuse(&refused);
        if (!add_result(r, t, &refused)) chat_tools_step(r, t, true);
        return;
    case TOOL_CONSENT_ALWAYS: tool_set_allow(r->app->tools, tool); break;
    case TOOL_CONSENT_YES:
        if (r->asks_to_read) tool_set_allow(r->app->tools, tool);
        break;
    }
    end_question(r, t);
    run_call(r, t, tool, true);
}

void chat_tools_stop(struct repl *r, struct chat_session *t) {
    end_question(r, t);
    chat_tools_abandon(r, t, stopped_by_user);
    screen_print(r, "(stopped; /continue lets the model go on without these calls)\n");
}
