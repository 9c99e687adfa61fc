#include "cli/repl.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/input.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/sig.h"
#include "cli/term.h"
#include "engine/base/clock.h"

/* --- the screen ------------------------------------------------------------------------------------------------------ */

static void flush(struct repl *r) {
    if (r->line.out.len) out_draw(1, r->line.out.data, r->line.out.len);
    r->line.out.len = 0;
    r->line.out.failed = false;
}
static void hide(struct repl *r) {
    if (r->dumb) return;
    line_hide(&r->line);
    flush(r);
}
/* Draws the edited line again, unless an answer has the screen. */
static void show(struct repl *r) {
    if (r->dumb || r->answering || r->leave) return;
    line_show(&r->line);
    flush(r);
}

/* Text in a style, and the end of its line. */
static void say_in(struct repl *r, const char *style, const char *head, const char *text, size_t n) {
    if (r->app->color_out) out_draw(1, style, strlen(style));
    out_write(head, strlen(head));
    out_write(text, n);
    if (r->app->color_out) out_draw(1, "\033[0m", 4);
    out_write("\n", 1);
}

void repl_say(struct repl *r, const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    say_in(r, "\033[2m", "", text, strlen(text));
}

static void say_waiting(struct repl *r) {
    if (!progress_waiting()) return;
    hide(r);
    progress_flush();
}

static void make_prompt(struct repl *r) {
    if (r->n == 1 && !r->now->named) snprintf(r->prompt, sizeof r->prompt, "> ");
    else if (r->now->named) snprintf(r->prompt, sizeof r->prompt, "%s> ", r->now->name);
    else snprintf(r->prompt, sizeof r->prompt, "%d> ", r->now->number);
}

/* --- sessions -------------------------------------------------------------------------------------------------------- */

struct talk *repl_new(struct repl *r, const char *name) {
    struct talk *t = mem_calloc(1, sizeof *t);
    if (!t) return NULL;
    if (mem_grow(&r->talks, &r->cap, r->n + 1, sizeof *r->talks)) {
        mem_free(t);
        return NULL;
    }
    t->number = ++r->numbers;
    t->named = name != NULL;
    t->shown = true;
    if (name) snprintf(t->name, sizeof t->name, "%s", name);
    r->talks[r->n++] = t;
    return t;
}

struct talk *repl_find(struct repl *r, const char *name) {
    for (size_t i = 0; i < r->n; i++)
        if (!strcmp(r->talks[i]->name, name)) return r->talks[i];
    for (size_t i = 0; i < r->n; i++)
        if (r->talks[i]->number == atoi(name)) return r->talks[i];
    return NULL;
}

/* An unnamed chat is kept under the time of its first turn. */
void repl_save(struct repl *r, struct talk *t) {
    struct error e;
    if (!*t->name) {
        time_t now = time(NULL);
        struct tm tm;
        char stamp[32];
        localtime_r(&now, &tm);
        strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &tm);
        snprintf(t->name, sizeof t->name, "chat-%s-%d.%d", stamp, (int)getpid(), ++r->names);
    }
    int rc = t->store.lock || t->store.off ? 0 : store_open(&t->store, r->app, t->name, STORE_REPLACE, NULL, &e);
    if (!rc) rc = store_save(&t->store, r->app, &t->conv, &e);
    if (rc) app_note(r->app, "not saved: %s", e.text);
}

bool repl_busy(struct repl *r, struct talk *t) {
    if (t->turn.running) repl_say(r, "its answer is still running in the background; /switch %d shows it, and Ctrl-C then stops it", t->number);
    return t->turn.running;
}

static void print_message(struct repl *r, const struct message *m) {
    if (m->role == ROLE_USER) say_in(r, "\033[1m", "> ", m->text.data, m->text.len);
    else if (m->role == ROLE_ASSISTANT) {
        out_write(m->text.data, m->text.len);
        out_write("\n", 1);
    }
}

/* Brings a session to the front: its last exchange, and its answer live when that is still running. */
void repl_switch(struct repl *r, struct talk *t) {
    r->now = t;
    make_prompt(r);
    size_t from = t->conv.n;
    while (from && t->conv.m[from - 1].role != ROLE_USER) from--;
    if (from) from--;
    for (size_t i = from; i < t->conv.n; i++) print_message(r, &t->conv.m[i]);
    t->shown = true;
    if (!t->turn.running) return;
    r->answering = t;
    printer_init(&r->printer, r->app);
    printer_piece(&r->printer, PART_THINKING, t->turn.thinking.data, t->turn.thinking.len);
    printer_piece(&r->printer, PART_TEXT, t->turn.text.data, t->turn.shown);
    t->turn.fn = printer_piece;
    t->turn.ctx = &r->printer;
    sig_hold(t->session);
}

static void talk_free(struct talk *t) {
    turn_free(&t->turn);
    session_close(&t->session);
    store_close(&t->store);
    prompt_free(&t->prompt);
    conv_free(&t->conv);
    mem_free(t);
}

/* --- turns ----------------------------------------------------------------------------------------------------------- */

/* Puts the answer, whole or not, into the conversation. */
static void keep_answer(struct repl *r, struct talk *t) {
    struct turn *u = &t->turn;
    bool partial = u->failed || u->reason == DONE_CANCELLED || u->reason == DONE_LENGTH || u->reason == DONE_CONTEXT;
    struct message *last = t->conv.n ? &t->conv.m[t->conv.n - 1] : NULL;
    if (t->went_on && last && last->role == ROLE_ASSISTANT) {
        buf_add(&last->thinking, u->thinking.data ? u->thinking.data : "", u->thinking.len);
        buf_add(&last->text, u->text.data ? u->text.data : "", u->text.len);
        last->partial = partial;
    } else if (u->text.len || u->thinking.len || !u->failed) {
        if (conv_add(&t->conv, ROLE_ASSISTANT, u->text.data, u->text.len, u->thinking.data, u->thinking.len)) app_note(r->app, "no memory to keep the answer");
        else t->conv.m[t->conv.n - 1].partial = partial;
    }
    /* what the model wrote, token by token: /continue goes on from exactly there */
    if (mem_grow(&t->prompt.ids.data, &t->prompt.ids.cap, t->prompt.ids.n + u->ids.n, sizeof *u->ids.data)) {
        prompt_free(&t->prompt);
        return;
    }
    for (size_t i = 0; i < u->ids.n; i++) t->prompt.ids.data[t->prompt.ids.n++] = u->ids.data[i];
}

/* Why an answer is not whole, and the way on. */
static const char *how_cut(const struct repl *r, const struct turn *u, char *out, size_t cap) {
    if (u->reason == DONE_LENGTH) snprintf(out, cap, "ended at the limit of %d tokens; /continue goes on", u->stats.answer_tokens);
    else if (u->reason == DONE_CONTEXT) snprintf(out, cap, "the context of %d tokens is full; /compact makes room", engine_info(r->app->engine)->context);
    else snprintf(out, cap, "stopped; /continue goes on");
    return out;
}

static void finish(struct repl *r, struct talk *t) {
    const struct opt_value *v = r->app->opts.v;
    struct turn *u = &t->turn;
    char cut[128];
    bool front = r->answering == t;
    t->stats = u->stats;
    t->has_stats = true;
    bool summary = t->compacting;
    if (!summary) keep_answer(r, t);
    if (front) {
        progress_clear();
        printer_end(&r->printer);
        printer_free(&r->printer);
        r->answering = NULL;
        sig_hold(NULL);
        sig_forget();
    }
    if (summary) repl_keep_summary(r, t);
    repl_save(r, t);
    if (front) {
        if (u->failed) app_fail(r->app, &u->error);
        else if (summary) {
        } else if (u->reason != DONE_STOP) repl_say(r, "(%s)", how_cut(r, u, cut, sizeof cut));
        if (v[OPT_STATS].on) app_stats(r->app, &u->stats);
        if (v[OPT_EXPLAIN].on) app_explain(r->app, &u->stats);
        out_write("\n", 1);
        return;
    }
    t->shown = t == r->now && !u->failed;
    if (summary || t->closing) return;
    if (t->shown) { /* it is what this screen is about: print it whole, above the edited line */
        hide(r);
        out_write(u->text.data, u->text.len);
        out_write("\n", 1);
        if (u->reason != DONE_STOP) repl_say(r, "(%s)", how_cut(r, u, cut, sizeof cut));
        out_write("\n", 1);
        return;
    }
    char label[140];
    if (t->named) snprintf(label, sizeof label, "%s", t->name);
    else snprintf(label, sizeof label, "%d", t->number);
    if (u->failed) app_note(r->app, "session %s: %s", label, u->error.text);
    else if (u->reason != DONE_STOP) app_note(r->app, "session %s: %s; /switch %s shows it", label, how_cut(r, u, cut, sizeof cut), label);
    else app_note(r->app, "session %s has answered (%d tokens); /switch %s shows it", label, u->stats.answer_tokens, label);
}

static void pump(struct repl *r) {
    struct event ev;
    while (engine_poll(r->app->engine, &ev, 0)) {
        struct talk *t = NULL;
        for (size_t i = 0; i < r->n; i++)
            if (r->talks[i]->session == ev.session) t = r->talks[i];
        if (!t || !t->turn.running) continue;
        if (t == r->answering) {
            if (ev.kind == EVENT_PROGRESS && ev.total > 0) progress_update("reading the prompt", (double)ev.done / ev.total, ev.left_s);
            if (ev.kind != EVENT_PROGRESS && progress_shown()) progress_clear();
        }
        turn_event(&t->turn, &ev);
        if (!t->turn.running) finish(r, t);
    }
}

int repl_start(struct repl *r, struct talk *t, bool background, struct error *e) {
    const struct opt_value *v = r->app->opts.v;
    struct request q = {.max_tokens = v[OPT_MAX_TOKENS].text ? (int)v[OPT_MAX_TOKENS].integer : -1};
    app_sampling(r->app, &r->app->opts, &q.sampling);
    t->seed = q.sampling.seed;
    int rc = t->session ? 0 : session_open(r->app->engine, &t->session, e);
    if (rc) return rc;
    turn_free(&t->turn);
    if ((rc = turn_start(&t->turn, r->app, t->session, &t->prompt, &q, NULL, NULL, e))) return rc;
    if (background) return 0;
    r->answering = t;
    printer_init(&r->printer, r->app);
    t->turn.fn = printer_piece;
    t->turn.ctx = &r->printer;
    sig_hold(t->session);
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
    if (rc == ERR_CONTEXT) repl_say(r, "nothing was sent; /compact shortens the conversation, /new begins another");
    return rc;
}

/* Goes on with the last answer from its last token, or, after loading, from its text. */
int repl_continue(struct repl *r, struct talk *t) {
    struct error e;
    const struct message *last = t->conv.n ? &t->conv.m[t->conv.n - 1] : NULL;
    if (!last || last->role != ROLE_ASSISTANT) {
        repl_say(r, "there is no answer to go on with");
        return ERR_USAGE;
    }
    int rc = 0;
    if (!t->prompt.ids.n) {
        struct conv before = {0};
        if (last->thinking.len) {
            repl_say(r, "an answer with thinking can only go on in the chat that began it; /regen makes a new one");
            return ERR_USAGE;
        }
        struct conv cut = t->conv;
        cut.n--;
        if (conv_copy(&before, &cut)) rc = error_set(&e, ERR_MEMORY, "no memory");
        if (!rc) rc = conv_prompt(r->app, &before, conv_think(&r->app->opts), &t->prompt, &e);
        if (!rc) rc = tokenizer_encode(r->app->tokenizer, last->text.data, last->text.len, TEXT_VALUE, &t->prompt.ids, &e);
        t->prompt.said = t->prompt.ids.n; /* as text: there is no knowing by which tokens it came */
        if (!rc && buf_add(&t->prompt.tail, last->text.data, last->text.len)) rc = error_set(&e, ERR_MEMORY, "no memory");
        conv_free(&before);
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
    out_utf8(&clean, text, n);
    int rc = conv_add(&t->conv, ROLE_USER, clean.data, clean.len, NULL, 0);
    buf_free(&clean);
    if (rc) {
        repl_say(r, "no memory");
        return rc;
    }
    if ((rc = repl_answer(r, t, background))) {
        conv_cut(&t->conv, t->conv.n - 1);
        return rc;
    }
    repl_save(r, t);
    return 0;
}

void repl_drop(struct repl *r, struct talk *t) {
    t->closing = true;
    if (t->turn.running) {
        session_cancel(t->session);
        for (double until = clock_now() + 5; t->turn.running && clock_now() < until;) {
            struct pollfd p = {.fd = engine_fd(r->app->engine), .events = POLLIN};
            poll(&p, 1, 50);
            pump(r);
        }
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->talks[i] == t) memmove(&r->talks[i], &r->talks[i + 1], (--r->n - i) * sizeof *r->talks);
    if (r->answering == t) r->answering = NULL;
    if (r->now == t) r->now = r->n ? r->talks[r->n - 1] : NULL;
    talk_free(t);
}

/* --- the loop -------------------------------------------------------------------------------------------------------- */

static bool any_running(const struct repl *r) {
    for (size_t i = 0; i < r->n; i++)
        if (r->talks[i]->turn.running) return true;
    return false;
}

/* Not at every token: a line that is redrawn a hundred times a second flickers. */
static void set_status(struct repl *r) {
    double now = clock_now();
    struct buf b = {0};
    if (any_running(r) && now - r->status_drawn < 0.25) return;
    r->status_drawn = now;
    for (size_t i = 0; i < r->n; i++) {
        const struct talk *t = r->talks[i];
        const struct turn *u = &t->turn;
        if (!u->running || t == r->answering) continue;
        buf_str(&b, b.len ? "   " : "");
        if (t->named) buf_fmt(&b, "%s: ", t->name);
        else buf_fmt(&b, "%d: ", t->number);
        if (u->n_tokens > 1) buf_fmt(&b, "%d tokens, %.1f tok/s", u->n_tokens, (u->n_tokens - 1) / (u->last_token - u->first_token + 1e-9));
        else if (u->total > 0) {
            buf_fmt(&b, "reading %d %%", 100 * u->done / u->total);
            if (u->left_s >= 0) buf_fmt(&b, ", %.0f s left", u->left_s);
        } else buf_str(&b, "reading");
    }
    line_status(&r->line, b.data ? b.data : "");
    flush(r);
    buf_free(&b);
}

static void trim(const char *s, size_t *n) {
    while (*n && strchr(" \t\n", s[*n - 1])) --*n;
}
/* Takes the wrapping of """ off. */
static void unwrap(const char **s, size_t *n) {
    if (*n < 6 || memcmp(*s, "\"\"\"", 3) || memcmp(*s + *n - 3, "\"\"\"", 3)) return;
    *s += 3;
    *n -= 6;
    while (*n && **s == '\n') ++*s, --*n;
    while (*n && (*s)[*n - 1] == '\n') --*n;
}

static void entered(struct repl *r, const char *text, size_t n) {
    history_add(&r->history, text, n);
    trim(text, &n);
    bool background = n > 1 && text[n - 1] == '&' && strchr(" \t\n\"", text[n - 2]);
    if (background) {
        n--;
        trim(text, &n);
    }
    unwrap(&text, &n);
    char *copy = mem_strndup(text, n);
    if (!copy) repl_say(r, "no memory");
    else if (*copy == '/') command_run(r, copy); /* a command is one on several lines too, and never in the background */
    else if (n) repl_send(r, copy, n, background);
    mem_free(copy);
}

static void begin_line(struct repl *r) {
    make_prompt(r);
    if (r->dumb) {
        buf_free(&r->line.text);
        out_write(r->prompt, strlen(r->prompt));
        return;
    }
    term_raw();
    term_size(&r->line.rows, &r->line.cols);
    line_begin(&r->line, r->prompt);
    flush(r);
}

/* Serves what was typed; a line that was finished may leave more behind it, which waits while an answer runs. */
static void serve_input(struct repl *r) {
    while (r->input.len && !r->answering && !r->leave) {
        size_t used = r->input.len;
        enum line_result res = LINE_DONE;
        if (r->dumb) {
            const char *nl = memchr(r->input.data, '\n', r->input.len);
            if (!nl) return;
            used = (size_t)(nl - r->input.data) + 1;
            if (buf_add(&r->line.text, r->input.data, used - 1)) repl_say(r, "no memory");
            if (line_wants_more(&r->line)) res = buf_char(&r->line.text, '\n') ? LINE_DONE : LINE_MORE;
        } else res = line_feed(&r->line, r->input.data, r->input.len, &used);
        memmove(r->input.data, r->input.data + used, r->input.len - used + 1);
        r->input.len -= used;
        flush(r);
        if (res == LINE_MORE) continue;
        if (res == LINE_EDITOR) {
            repl_editor(r);
            continue;
        }
        if (res == LINE_EOF) {
            r->leave = true;
            break;
        }
        if (!r->dumb) line_end(&r->line);
        flush(r);
        char *text = mem_strndup(r->line.text.data ? r->line.text.data : "", r->line.text.len);
        if (text) entered(r, text, r->line.text.len);
        mem_free(text);
        if (!r->answering && !r->leave) begin_line(r);
    }
}

static void read_keys(struct repl *r) {
    char chunk[4096];
    ssize_t n = read(0, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) { /* hung up, or Ctrl-D on a dumb terminal */
        r->leave = true;
        return;
    }
    for (int early = term_typed_early(), i = 0; i < n && i < early; i++)
        if (chunk[i] == '\n') chunk[i] = '\r'; /* Enter, typed before the terminal was raw */
    buf_add(&r->input, chunk, (size_t)n);
}

static void interrupted(struct repl *r) {
    sig_forget();
    if (r->dumb) {
        out_write("\n", 1);
        begin_line(r);
        return;
    }
    bool empty = !r->line.text.len;
    r->input.len = 0;
    line_clear(&r->line);
    if (empty) line_hint(&r->line, "Ctrl-D or /bye leaves");
    flush(r);
}

static void loop(struct repl *r) {
    begin_line(r);
    while (!r->leave && !sig_terminated() && !out_failed()) {
        bool editing = !r->answering;
        struct pollfd fds[3] = {
            {.fd = engine_fd(r->app->engine), .events = POLLIN}, {.fd = sig_fd(), .events = POLLIN}, {.fd = editing ? 0 : -1, .events = POLLIN}};
        if (poll(fds, 3, any_running(r) ? 200 : progress_waiting() ? 0 : 1000) < 0 && errno != EINTR) break;
        sig_drain();
        if (sig_resized()) {
            int rows, cols;
            if (sig_continued()) r->line.shown = false; /* drawn anew where the cursor is now */
            term_size(&rows, &cols);
            line_resize(&r->line, rows, cols);
            if (editing) flush(r);
        }
        if (sig_interrupted() && editing) interrupted(r);
        /* messages of the turns below are held, and printed above the edited line */
        progress_hold(editing && !r->dumb);
        pump(r);
        if (editing) {
            say_waiting(r);
            if (fds[2].revents) {
                progress_hold(false);
                read_keys(r);
                serve_input(r);
            }
            progress_hold(false);
            if (!r->answering && !r->leave && !r->dumb) {
                set_status(r);
                show(r);
            }
        } else if (!r->answering && !r->leave) {
            begin_line(r);
            serve_input(r);
        }
    }
}

static int open_first(struct repl *r, struct error *e) {
    struct app *a = r->app;
    const struct opt_value *v = a->opts.v;
    const char *name = v[OPT_CONTINUE].text ? v[OPT_CONTINUE].text : v[OPT_SAVE].text;
    if (!(r->now = repl_new(r, name))) return error_set(e, ERR_MEMORY, "no memory");
    int rc = name ? store_open(&r->now->store, a, name, v[OPT_CONTINUE].text ? STORE_LOAD : STORE_NEW, &r->now->conv, e) : 0;
    if (!rc && v[OPT_CONTINUE].text && v[OPT_SAVE].text) {
        if (!(rc = store_rename(&r->now->store, v[OPT_SAVE].text, e))) snprintf(r->now->name, sizeof r->now->name, "%s", v[OPT_SAVE].text);
    }
    if (!rc && v[OPT_SYSTEM].text && conv_system(&r->now->conv, v[OPT_SYSTEM].text)) rc = error_set(e, ERR_MEMORY, "no memory");
    return rc;
}

int repl_run(struct app *a, struct error *e) {
    struct repl *r = mem_calloc(1, sizeof *r);
    if (!r) return error_set(e, ERR_MEMORY, "no memory");
    r->app = a;
    r->dumb = term_dumb();
    if (!r->dumb) term_raw(); /* before the model opens: what is typed meanwhile is not echoed over the progress */
    store_sweep();
    int rc = app_open_text(a, e);
    if (!rc) rc = open_first(r, e);
    if (!rc) rc = app_open_engine(a, e);
    progress_clear();
    history_open(&r->history);
    line_init(&r->line, &r->history);
    r->line.color = a->color_out;
    r->line.complete = command_complete;
    r->line.ctx = r;
    if (!rc) {
        sig_hold(NULL);
        if (!a->quiet) repl_say(r, "%s. Type a question, or /help; Ctrl-D leaves.", engine_info(a->engine)->name);
        if (r->now->conv.n) repl_switch(r, r->now);
        loop(r);
        if (!r->dumb) line_end(&r->line);
        flush(r);
    }
    while (r->n) repl_drop(r, r->talks[r->n - 1]);
    sig_forget();
    sig_release();
    term_restore();
    progress_hold(false);
    line_free(&r->line);
    history_close(&r->history);
    buf_free(&r->input);
    mem_free(r->talks);
    mem_free(r);
    return rc;
}
