/* The turns of a chat: starts an answer, shows it or runs it in the background, and stores it when it ends. */
#include <stdio.h>
#include <string.h>

#include "cli/out.h"
#include "cli/progress.h"
#include "cli/repl.h"
#include "cli/sig.h"

/* --- end ------------------------------------------------------------------------------------------------------------- */

/* Adds the answer, complete or partial, to the conversation. */
static void keep_answer(struct repl *r, struct talk *t) {
    struct turn *u = &t->turn;
    bool partial = u->failed || u->reason == DONE_CANCELLED || u->reason == DONE_LENGTH || u->reason == DONE_CONTEXT;
    struct message *last = t->conv.n ? &t->conv.m[t->conv.n - 1] : NULL;
    if (t->went_on && last && last->role == ROLE_ASSISTANT) {
        buf_add(&last->thinking, u->thinking.data ? u->thinking.data : "", u->thinking.len);
        buf_add(&last->text, u->text.data ? u->text.data : "", u->text.len);
        last->partial = partial;
    } else if (u->text.len || u->thinking.len || !u->failed) {
        if (conv_add(&t->conv, ROLE_ASSISTANT, u->text.data, u->text.len, u->thinking.data, u->thinking.len))
            app_note(r->app, "the answer was not added to the conversation: no memory");
        else t->conv.m[t->conv.n - 1].partial = partial;
    }
    ids_free(&t->prompt.known);
    /* keep the generated ids: /continue resumes after the last one */
    if (mem_grow(&t->prompt.ids.data, &t->prompt.ids.cap, t->prompt.ids.n + u->ids.n, sizeof *u->ids.data)) {
        prompt_free(&t->prompt);
        return;
    }
    for (size_t i = 0; i < u->ids.n; i++) t->prompt.ids.data[t->prompt.ids.n++] = u->ids.data[i];
}

/* Says why an answer is partial, and how to continue it. */
static const char *how_cut(const struct repl *r, const struct turn *u, char *out, size_t cap) {
    const char *on = r->app->backend->goes_on ? "; /continue resumes it" : "; /regen makes a new one";
    if (u->reason == DONE_LENGTH) snprintf(out, cap, "ended at the limit of %d tokens%s", u->stats.answer_tokens, on);
    else if (u->reason == DONE_CONTEXT) snprintf(out, cap, "the context of %d tokens is full; /compact makes room", r->app->info->context);
    else snprintf(out, cap, "stopped%s", on);
    return out;
}

/* Releases the screen after the answer on it has ended or moved to the background. */
static void leave_screen(struct repl *r) {
    repl_hide(r);
    progress_clear();
    printer_end(&r->printer);
    printer_free(&r->printer);
    progress_hold(false);
    r->answering = NULL;
    sig_hold(NULL);
    sig_forget();
}

static void finish_in_front(struct repl *r, struct talk *t, bool summary) {
    const struct opt_value *v = r->app->opts.v;
    struct turn *u = &t->turn;
    char cut[128];
    if (u->failed) app_fail(r->app, &u->error);
    else if (!summary && u->reason != DONE_STOP) repl_say(r, "(%s)", how_cut(r, u, cut, sizeof cut));
    if (v[OPT_STATS].on) app_stats(r->app, &u->stats);
    if (v[OPT_EXPLAIN].on) app_explain(r->app, &u->stats);
    if (u->failed || u->reason == DONE_CANCELLED) repl_drop_queue(r); /* a user who stops an answer wants to think first */
    out_write("\n", 1);
}

static void finish_behind(struct repl *r, struct talk *t) {
    struct turn *u = &t->turn;
    char cut[128], label[140];
    t->shown = t == r->now && !u->failed;
    if (t->shown || r->dumb) repl_hide(r);
    if (t->shown) { /* the active session: print the answer above the edited line */
        printer_print(r->app, u->text.data, u->text.len);
        if (u->reason != DONE_STOP) repl_say(r, "(%s)", how_cut(r, u, cut, sizeof cut));
        out_write("\n", 1);
        return;
    }
    repl_label(t, label, sizeof label);
    if (u->failed) app_note(r->app, "session %s: %s", label, u->error.text);
    else if (u->reason != DONE_STOP) app_note(r->app, "session %s: %s; /switch %s shows it", label, how_cut(r, u, cut, sizeof cut), label);
    else app_note(r->app, "session %s has answered (%d tokens); /switch %s shows it", label, u->stats.answer_tokens, label);
}

void repl_finish(struct repl *r, struct talk *t) {
    bool front = r->answering == t, summary = t->compacting;
    t->stats = t->turn.stats;
    t->has_stats = true;
    if (!summary) keep_answer(r, t);
    if (front) leave_screen(r);
    if (summary) repl_keep_summary(r, t);
    repl_save(r, t);
    if (front) finish_in_front(r, t, summary);
    else if (!summary && !t->closing) finish_behind(r, t);
}

/* --- start ----------------------------------------------------------------------------------------------------------- */

static void make_room(void *ctx) { repl_hide(ctx); }

static void take_screen(struct repl *r, struct talk *t) {
    r->answering = t;
    printer_init(&r->printer, r->app);
    r->printer.before = make_room;
    r->printer.ctx = r;
    t->turn.fn = printer_piece;
    t->turn.ctx = &r->printer;
    sig_hold(t->seat);
}

void repl_watch(struct repl *r, struct talk *t) {
    take_screen(r, t);
    printer_piece(&r->printer, PART_THINKING, t->turn.thinking.data, t->turn.thinking.len);
    printer_piece(&r->printer, PART_TEXT, t->turn.text.data, t->turn.shown);
}

void repl_background(struct repl *r) {
    struct talk *t = r->answering;
    char label[140];
    t->turn.fn = NULL;
    t->shown = r->told = false;
    leave_screen(r);
    repl_label(t, label, sizeof label);
    repl_say(r, "(session %s continues in the background; /switch %s shows it)\n", label, label);
}

int repl_start(struct repl *r, struct talk *t, bool background, struct error *e) {
    const struct opt_value *v = r->app->opts.v;
    struct request q = {.max_tokens = v[OPT_MAX_TOKENS].text ? (int)v[OPT_MAX_TOKENS].integer : -1};
    app_sampling(r->app, &r->app->opts, &q.sampling);
    t->seed = q.sampling.seed;
    int rc = t->seat ? 0 : seat_open(r->app, &t->seat, e);
    if (rc) return rc;
    turn_free(&t->turn);
    if ((rc = turn_start(&t->turn, r->app, t->seat, &t->prompt, &q, NULL, NULL, e))) return rc;
    r->told = false;
    if (background) return 0;
    take_screen(r, t);
    progress_begin("reading the prompt");
    return 0;
}

int repl_answer(struct repl *r, struct talk *t, bool background) {
    struct error e;
    prompt_free(&t->prompt);
    t->went_on = false;
    int rc = conv_prompt(r->app, &t->conv, conv_think(&r->app->opts), &t->prompt, &e);
    if (!rc) rc = repl_start(r, t, background, &e);
    if (rc) app_fail(r->app, &e);
    if (rc == ERR_CONTEXT) repl_say(r, "nothing was sent; /compact shortens the conversation, /new starts another");
    return rc;
}

/* Continues the last answer after its last id. If the ids are not known (after loading, and with another engine), it continues
 * after the text. */
int repl_continue(struct repl *r, struct talk *t) {
    struct error e;
    const struct message *last = t->conv.n ? &t->conv.m[t->conv.n - 1] : NULL;
    if (!last || last->role != ROLE_ASSISTANT) {
        repl_say(r, "there is no answer to continue");
        return ERR_USAGE;
    }
    if (!r->app->backend->goes_on) {
        repl_say(r, "a remote server cannot continue an answer; /regen makes a new one");
        return ERR_USAGE;
    }
    if (!t->prompt.ids.n && last->thinking.len) {
        repl_say(r, "an answer with thinking can only be continued in the chat that started it; /regen makes a new one");
        return ERR_USAGE;
    }
    int rc = 0;
    if (!t->prompt.ids.n) {
        prompt_free(&t->prompt);
        rc = conv_prompt_begun(r->app, &t->conv, conv_think(&r->app->opts), &t->prompt, &e);
    }
    t->went_on = true;
    if (!rc) rc = repl_start(r, t, false, &e);
    if (!rc && t->prompt.said == t->prompt.ids.n) t->turn.begun = true;
    if (rc) app_fail(r->app, &e);
    return rc;
}

int repl_send(struct repl *r, const char *text, size_t n, bool background) {
    struct talk *t = r->now;
    struct buf clean = {0};
    if (repl_busy(r, t)) return ERR_RUNTIME;
    if (t->attached.len) buf_add(&clean, t->attached.data, t->attached.len);
    out_utf8(&clean, text, n);
    int rc = clean.failed ? ERR_MEMORY : conv_add(&t->conv, ROLE_USER, clean.data, clean.len, NULL, 0);
    buf_free(&clean);
    if (rc) {
        repl_say(r, "no memory");
        return rc;
    }
    if ((rc = repl_answer(r, t, background))) {
        conv_cut(&t->conv, t->conv.n - 1);
        return rc;
    }
    t->attached.len = 0;
    repl_save(r, t);
    return 0;
}
