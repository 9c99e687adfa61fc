/* The turns of a chat: starts an answer, shows it or runs it in the background, and stores it when it ends. */

#include "cli/chat/chat_turn.h"

#include <stdio.h>

#include "base/clock.h"
#include "cli/chat/attachments.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/dropped.h"
#include "cli/chat/fullness.h"
#include "cli/chat/queue.h"
#include "cli/chat/screen.h"
#include "cli/chat/thinking.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"

/* --- end -------------------------------------------------------------------------------------- */

/* Takes the calls of the ended turn and adds them to its message. */
static void take_calls(struct repl *r, struct chat_session *t) {
    struct error e;
    int rc = tool_round_take(&t->round, r->app, &t->turn, &t->conv, &e);
    if (!rc && t->round.calls.n && conversation_add_calls(&t->conv, &t->round.calls))
        rc = error_set(&e, ERR_MEMORY, "no memory for a tool call");
    if (!rc) return;
    tool_round_free(&t->round);
    report_error(&e);
}

/* Adds markup that is not a call to the text of the last answer. */
static void add_markup(struct chat_session *t) {
    const struct buf *markup = turn_markup_text(&t->turn, t->round.calls.n);
    struct message *last = t->conv.n ? &t->conv.messages[t->conv.n - 1] : NULL;
    t->n_markup = 0;
    if (!markup || !last || last->role != ROLE_ASSISTANT) return;
    if (buf_add(&last->text, markup->data, markup->len))
        report_note("the answer's end was not added to the conversation: no memory");
    else t->n_markup = markup->len;
}

/* Adds the answer, complete or partial, to the conversation. */
static void add_answer(struct repl *r, struct chat_session *t) {
    struct turn *u = &t->turn;
    bool partial = u->failed || u->reason == DONE_CANCELLED || u->reason == DONE_LENGTH || u->reason == DONE_CONTEXT;
    struct message *last = t->conv.n ? &t->conv.messages[t->conv.n - 1] : NULL;
    if (t->continues_answer && last && last->role == ROLE_ASSISTANT) {
        /* the turn has replayed it */
        if (t->n_markup && t->prompt.n_given < t->prompt.ids.n) last->text.data[last->text.len -= t->n_markup] = 0;
        buf_add(&last->thinking, u->thinking.data ? u->thinking.data : "", u->thinking.len);
        buf_add(&last->text, u->text.data ? u->text.data : "", u->text.len);
        last->partial = partial;
    } else if (u->text.len || u->thinking.len || !u->failed) {
        if (conversation_add(&t->conv, ROLE_ASSISTANT, u->text.data, u->text.len, u->thinking.data, u->thinking.len))
            report_note("the answer was not added to the conversation: no memory");
        else t->conv.messages[t->conv.n - 1].partial = partial;
    }
    take_calls(r, t);
    add_markup(t);
    ids_free(&t->prompt.fixed_answer);
    /* Keep the generated ids: /continue resumes after the last one. If --until has cut text off, it resumes after the
     * text. */
    if (u->stop_hit || u->lacks_ids ||
        mem_grow(&t->prompt.ids.data, &t->prompt.ids.cap, t->prompt.ids.n + u->ids.n, sizeof *u->ids.data)) {
        prompt_free(&t->prompt);
        return;
    }
    for (size_t i = 0; i < u->ids.n; i++) t->prompt.ids.data[t->prompt.ids.n++] = u->ids.data[i];
    t->prompt.is_cut = u->reason != DONE_STOP && !u->failed;
    t->prompt.begun_call.len = 0;
    if (!r->app->backend->is_local && u->ids.n &&
        buf_add(&t->prompt.begun_call, u->tool.data ? u->tool.data : "", u->tool.len))
        prompt_free(&t->prompt);
}

/* Whether a server has refused the question of the ended turn because the context has no room for it. */
static bool is_refused(const struct chat_session *t) {
    const struct turn *u = &t->turn;
    return t->asks && u->failed && u->error.code == ERR_CONTEXT && !u->text.len && !u->thinking.len;
}

/* Says why an answer is partial, and how to continue it. */
static const char *describe_partial(const struct repl *r, const struct turn *u, char *out, size_t cap) {
    const char *hint = r->app->backend->can_continue ? "; /continue resumes it" : "; /regen makes a new one";
    const bool repeats = turn_repeats(u);
    char tokens[32];
    if (repeats) hint = "; it repeats itself, which /set repeat-penalty 1.1 may prevent";
    if (u->reason == DONE_LENGTH)
        snprintf(out, cap, "ended at the limit of %s%s",
                 amount_count(u->stats.answer_tokens, "token", tokens, sizeof tokens), hint);
    else if (u->reason == DONE_CONTEXT && !r->app->backend->can_continue)
        snprintf(out, cap, "the server's context is full, or its limit on answers is reached%s",
                 repeats ? hint : "; /compact makes room");
    else if (u->reason == DONE_CONTEXT)
        snprintf(out, cap, "the context of %d tokens is full%s", r->app->info->context,
                 repeats ? "; the answer repeats itself: /undo removes it" : "; /compact makes room");
    else snprintf(out, cap, "stopped%s", hint);
    return out;
}

void chat_turn_release_screen(struct repl *r) {
    screen_hide_line(r);
    thinking_end(r);
    progress_clear();
    answer_printer_end(&r->printer);
    answer_printer_free(&r->printer);
    progress_hold(false);
    r->on_screen = NULL;
    sig_defer(NULL, NULL);
    sig_clear_interrupt();
}

static void finish_on_screen(struct repl *r, struct chat_session *t, bool is_summary) {
    const struct opt_value *v = r->app->opts.v;
    struct turn *u = &t->turn;
    char why[128];
    if (u->failed) report_error(&u->error);
    if (is_refused(t))
        screen_print(r, "the question was taken back; /compact shortens the conversation, /new starts another");
    else if (!u->failed && !is_summary && u->reason != DONE_STOP)
        screen_print(r, "(%s)", describe_partial(r, u, why, sizeof why));
    if (v[OPT_STATS].on) report_stats(&u->stats);
    if (v[OPT_EXPLAIN].on) report_explain(&u->stats);
    /* a user who stops an answer wants to think first */
    if (u->failed || u->reason == DONE_CANCELLED) queue_discard(r);
    else if (!is_summary && fullness_wants_summary(r, t)) {
        screen_print(r, "the context is %d %% full: /compact follows, as --compact-at says", fullness_percent(r, t, 0));
        queue_put_first(r, "/compact");
    }
    out_write("\n", 1);
}

static void finish_in_background(struct repl *r, struct chat_session *t) {
    struct turn *u = &t->turn;
    char why[128], label[140], tokens[32];
    t->answer_seen = t == r->active && !u->failed;
    if (t->answer_seen || r->dumb) screen_hide_line(r);
    if (t->answer_seen) { /* the active session: print the answer above the edited line */
        answer_printer_print(&r->app->answer_style, u->text.data, u->text.len);
        if (u->reason != DONE_STOP) screen_print(r, "(%s)", describe_partial(r, u, why, sizeof why));
        out_write("\n", 1);
        return;
    }
    screen_label(t, label, sizeof label);
    if (u->failed) report_note("session %s: %s", label, u->error.text);
    else if (u->reason != DONE_STOP)
        report_note("session %s: %s; /switch %s shows it", label, describe_partial(r, u, why, sizeof why), label);
    else
        report_note(t->named ? "answer ready in '%s' (%s); /switch %s shows it"
                             : "answer ready in session %s (%s); /switch %s shows it",
                    label, amount_count(u->stats.answer_tokens, "token", tokens, sizeof tokens), label);
}

/* Rings the bell after a long answer, for a user who works in another window. */
static void ring_bell(struct repl *r, const struct chat_session *t) {
    enum { LONG_S = 10 };
    if (r->line.unfocused && r->app->tty_out && clock_now() - t->started_s > LONG_S) out_draw(1, "\a", 1);
}

static void finish_turn(struct repl *r, struct chat_session *t) {
    bool front = r->on_screen == t, is_summary = t->on_finish != NULL;
    t->stats = t->turn.stats;
    t->has_stats = true;
    if (is_refused(t)) {
        conversation_truncate(&t->conv, t->n_before);
        prompt_free(&t->prompt);
    } else if (t->turn.failed && !t->turn.text.len && !t->turn.thinking.len && t->replaced.n &&
               !conversation_append(&t->conv, &t->replaced))
        prompt_free(&t->prompt);
    else if (!is_summary) {
        add_answer(r, t);
        if (!t->turn.failed) t->n_in_context = t->stats.prompt_tokens + t->stats.answer_tokens;
    }
    conversation_free(&t->replaced);
    if (front && r->app->tools && !t->round.calls.n) /* markup that is not a call */
        answer_printer_add(&r->printer, OUTPUT_TOOL_CALL, t->turn.tool.data, t->turn.tool.len);
    if (front) chat_turn_release_screen(r);
    if (is_summary) t->on_finish(r, t);
    t->on_finish = NULL;
    chat_session_save(r, t);
    if (!is_summary && t->round.calls.n && !t->closing) {
        r->on_calls(r, t, front);
        return;
    }
    if (front) finish_on_screen(r, t, is_summary);
    else if (!is_summary && !t->closing) finish_in_background(r, t);
    if (!t->closing) ring_bell(r, t);
}

void chat_turn_poll(struct repl *r) {
    struct engine_event news;
    const struct event *ev = &news.event;
    while (engine_client_poll(r->app, &news, 0)) {
        struct chat_session *t = NULL;
        for (size_t i = 0; i < r->n_sessions; i++)
            if (r->sessions[i]->client == news.client) t = r->sessions[i];
        if (!t || !t->turn.running) continue;
        if (t == r->on_screen) {
            if (ev->kind == EVENT_PROGRESS && ev->total > 0 && !r->line.shown)
                progress_update(ev->in_images ? "looking at images" : "reading the prompt",
                                (double)ev->done / ev->total, ev->left_s);
            if (ev->kind != EVENT_PROGRESS && progress_shown()) progress_clear();
        }
        turn_event(&t->turn, &news);
        if (!t->turn.running) finish_turn(r, t);
        else if (ev->kind == EVENT_NONE) chat_session_save(r, t); /* its disk-cache keys are known now */
    }
}

/* --- start ------------------------------------------------------------------------------------ */

static void hide_line_before_output(void *ctx) { screen_hide_line(ctx); }

void chat_turn_acquire_screen(struct repl *r, struct chat_session *t) {
    struct answer_style style = r->app->answer_style;
    style.no_thinking = false; /* thinking_on_text decides */
    r->on_screen = t;
    answer_printer_init(&r->printer, &style);
    const struct message *last = t->conv.n ? &t->conv.messages[t->conv.n - 1] : NULL;
    if (t->continues_answer && last && last->role == ROLE_ASSISTANT)
        answer_printer_resume(&r->printer, last->text.data, last->text.len);
    r->printer.before_output = hide_line_before_output;
    r->printer.ctx = r;
    t->turn.on_text = thinking_on_text;
    t->turn.ctx = r;
    thinking_begin(r);
    engine_client_defer_signals(t->client);
}

void chat_turn_to_screen(struct repl *r, struct chat_session *t) {
    chat_turn_acquire_screen(r, t);
    thinking_on_text(r, OUTPUT_THINKING, t->turn.thinking.data, t->turn.n_thinking_shown);
    thinking_on_text(r, OUTPUT_TEXT, t->turn.text.data, t->turn.n_shown);
}

void chat_turn_to_background(struct repl *r) {
    struct chat_session *t = r->on_screen;
    char label[140];
    t->turn.on_text = NULL;
    t->answer_seen = r->exit_warned = false;
    chat_turn_release_screen(r);
    screen_label(t, label, sizeof label);
    screen_print(r, "(session %s continues in the background; /switch %s shows it)\n", label, label);
}

/* Whether the next turn is the first one after a question. */
static bool begins_answer(const struct chat_session *t) {
    return !t->on_finish && !t->continues_answer && t->conv.n && t->conv.messages[t->conv.n - 1].role == ROLE_USER;
}

int chat_turn_start(struct repl *r, struct chat_session *t, bool background, struct error *e) {
    const struct opt_value *v = r->app->opts.v;
    struct request q = {.max_tokens = v[OPT_MAX_TOKENS].text ? (int)v[OPT_MAX_TOKENS].integer : -1};
    open_sampling(r->app, &r->app->opts, &q.sampling);
    t->seed = q.sampling.seed;
    int rc = t->client ? 0 : engine_client_open(r->app, &t->client, e);
    if (rc) return rc;
    turn_free(&t->turn);
    t->prompt.source = t->on_finish ? NULL : constraint_of_options(r->app); /* summaries are not constrained */
    if (r->app->tools && begins_answer(t) && (rc = tool_set_force(r->app, &t->prompt, e))) return rc;
    if ((rc = turn_start(&t->turn, r->app, t->client, &t->prompt, &q, NULL, NULL, e))) return rc;
    turn_set_text_tools(&t->turn, r->app->tools && !t->on_finish ? &r->app->tools->list : NULL);
    r->exit_warned = t->asks = false;
    t->started_s = clock_now();
    if (background) return 0;
    chat_turn_acquire_screen(r, t);
    progress_begin("reading the prompt");
    return 0;
}

int chat_turn_answer(struct repl *r, struct chat_session *t, bool background) {
    tool_round_free(&t->round);
    return chat_turn_resume(r, t, background);
}

int chat_turn_resume(struct repl *r, struct chat_session *t, bool background) {
    struct error e;
    struct prompt last = t->prompt;
    t->prompt = (struct prompt){0};
    t->continues_answer = false;
    int rc = prompt_make(r->app, &t->conv, prompt_think_option(&r->app->opts), &t->prompt, &e);
    if (!rc) rc = chat_turn_start(r, t, background, &e);
    prompt_free(rc ? &t->prompt : &last);
    if (rc) t->prompt = last; /* /continue resumes the last answer */
    if (rc) report_error(&e);
    if (rc == ERR_CONTEXT)
        screen_print(r, "nothing was sent; /compact shortens the conversation, /new starts another%s",
                     t->attached.n ? ", /detach drops the attached files" : "");
    return rc;
}

/* Continues the last answer after its last id. If the ids are not known (after loading, and with another engine), it
 * continues after the text. */
int chat_turn_continue(struct repl *r, struct chat_session *t) {
    struct error e;
    const struct message *last = t->conv.n ? &t->conv.messages[t->conv.n - 1] : NULL;
    if (last && last->role == ROLE_TOOL) return chat_turn_answer(r, t, false);
    if (!last || last->role != ROLE_ASSISTANT) {
        screen_print(r, "there is no answer to continue");
        return ERR_USAGE;
    }
    if (!r->app->backend->can_continue) {
        screen_print(r, "a remote server cannot continue an answer; /regen makes a new one");
        return ERR_USAGE;
    }
    if (!t->prompt.ids.n && last->thinking.len) {
        screen_print(r, "an answer with thinking cannot be continued after it was loaded, forked or cut by --until; "
                        "/regen makes a new one");
        return ERR_USAGE;
    }
    int rc = 0;
    if (!t->prompt.ids.n) {
        prompt_free(&t->prompt);
        rc = prompt_make_partial(r->app, &t->conv, prompt_think_option(&r->app->opts), &t->prompt, &e);
    }
    t->continues_answer = true;
    tool_round_free(&t->round);
    if (!rc) rc = chat_turn_start(r, t, false, &e);
    if (!rc && t->prompt.n_given == t->prompt.ids.n) t->turn.text_begun = last->text.len > 0; /* no ids that tell */
    if (rc) report_error(&e);
    return rc;
}

void chat_turn_cancel(struct chat_session *t) {
    if (t->job) tool_job_cancel(t->job);
    else engine_client_cancel(t->client);
}

int chat_turn_send(struct repl *r, const char *text, size_t n, bool background) {
    struct chat_session *t = r->active;
    struct buf clean = {0}, question = {0};
    struct error e;
    const size_t n_before = t->conv.n;
    if (chat_session_report_busy(r, t)) return ERR_RUNTIME;
    if (dropped_attach(r, t, text, n, &question, &e)) {
        screen_print(r, "%s; nothing was sent", e.text);
        buf_free(&question);
        return e.code;
    }
    struct image_files images = {0};
    int rc = attachments_put(&t->attached, &clean, &images);
    out_utf8(&clean, question.data ? question.data : "", question.len);
    buf_free(&question);
    if (!rc) rc = clean.failed ? ERR_MEMORY : conversation_ask(&t->conv, clean.data, clean.len);
    if (!rc && (rc = conversation_add_images(&t->conv, &images, 0))) conversation_truncate(&t->conv, n_before);
    buf_free(&clean);
    image_files_free(&images);
    if (rc) {
        screen_print(r, "no memory");
        return rc;
    }
    if ((rc = chat_turn_answer(r, t, background))) {
        conversation_truncate(&t->conv, n_before);
        return rc;
    }
    attachments_truncate(&t->attached, 0);
    t->asks = true;
    t->n_before = n_before;
    chat_session_save(r, t);
    return 0;
}
