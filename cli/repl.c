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
#include "cli/render.h"
#include "cli/saver.h"
#include "cli/sig.h"
#include "cli/term.h"
#include "engine/base/clock.h"

/* --- the screen ------------------------------------------------------------------------------------------------------ */

static void flush(struct repl *r) {
    if (r->line.out.len) out_draw(1, r->line.out.data, r->line.out.len);
    r->line.out.len = 0;
    r->line.out.failed = false;
}
void repl_hide(struct repl *r) {
    if (r->dumb && r->asks) out_write("\n", 1); /* the terminal keeps what was typed */
    r->asks = false;
    if (r->dumb || (!r->line.shown && !r->below)) return;
    int col = r->answering ? r->printer.col : 0;
    line_hide(&r->line);
    if (r->below) buf_str(&r->line.out, "\033[A");
    if (r->below && col) buf_fmt(&r->line.out, "\033[%dC", col);
    r->below = false;
    flush(r);
}
/* Opens a row for the edited line below the running answer. After a full row the answer continues on the row of the line. */
static void open_below(struct repl *r) {
    int col = r->printer.col;
    if (r->line.shown || r->below) return;
    progress_clear();
    if (col) buf_str(&r->line.out, "\r\n");
    r->below = col && col < r->line.cols;
}
void repl_say_in(struct repl *r, const char *style, const char *head, const char *text, size_t n) {
    struct style s;
    struct buf out = {0};
    int rows, cols;
    term_size(&rows, &cols);
    style_init(&s, cols, false);
    if (r->app->color_out) buf_str(&out, style);
    style_add(&s, head, strlen(head), &out);
    style_add(&s, text, n, &out);
    style_flush(&s, &out);
    if (r->app->color_out) buf_str(&out, "\033[0m");
    if (!out.failed) out_draw(1, out.data, out.len);
    out_write("\n", 1);
    style_free(&s);
    buf_free(&out);
}

void repl_say(struct repl *r, const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    repl_say_in(r, "\033[2m", "", text, strlen(text));
}

static void say_waiting(struct repl *r) {
    if (!progress_waiting()) return;
    repl_hide(r);
    progress_flush();
}

/* Truncates a name to leave room for typing. */
static void make_prompt(struct repl *r) {
    enum { LONG_PROMPT = 20 };
    if (r->n == 1 && !r->now->named) snprintf(r->prompt, sizeof r->prompt, "> ");
    else if (r->now->named) {
        struct buf name = {0};
        render_cut(r->now->name, strlen(r->now->name), LONG_PROMPT, &name);
        snprintf(r->prompt, sizeof r->prompt, "%s> ", name.data ? name.data : "");
        buf_free(&name);
    } else snprintf(r->prompt, sizeof r->prompt, "%d> ", r->now->number);
}

void repl_pump(struct repl *r) {
    struct news news;
    const struct event *ev = &news.event;
    while (seat_poll(r->app, &news, 0)) {
        struct talk *t = NULL;
        for (size_t i = 0; i < r->n; i++)
            if (r->talks[i]->seat == news.seat) t = r->talks[i];
        if (!t || !t->turn.running) continue;
        if (t == r->answering) {
            if (ev->kind == EVENT_PROGRESS && ev->total > 0 && !r->line.shown) progress_update("reading the prompt", (double)ev->done / ev->total, ev->left_s);
            if (ev->kind != EVENT_PROGRESS && progress_shown()) progress_clear();
        }
        turn_event(&t->turn, &news);
        if (!t->turn.running) repl_finish(r, t);
        else if (ev->kind == EVENT_NONE) repl_save(r, t); /* its disk-cache keys are known now */
    }
}

/* --- status and entered lines ---------------------------------------------------------------------------------------- */

static bool any_running(const struct repl *r) {
    for (size_t i = 0; i < r->n; i++)
        if (r->talks[i]->turn.running) return true;
    return false;
}

/* Limits updates: a status redrawn a hundred times a second flickers. */
static void set_status(struct repl *r) {
    double now = clock_now();
    struct buf b = {0};
    if (any_running(r) && now - r->status_drawn < 0.25) return;
    r->status_drawn = now;
    for (size_t i = 0; i < r->n; i++) {
        const struct talk *t = r->talks[i];
        const struct turn *u = &t->turn;
        char label[140];
        if (!u->running || (t == r->answering && u->n_tokens)) continue;
        repl_label(t, label, sizeof label);
        buf_str(&b, b.len ? "   " : "");
        if (t != r->answering) buf_fmt(&b, "%s: ", label);
        if (u->n_tokens > 1) buf_fmt(&b, "%d tokens, %.1f tok/s", u->n_tokens, (u->n_tokens - 1) / (u->last_token - u->first_token + 1e-9));
        else if (u->total > 0) {
            buf_fmt(&b, "reading %d %%", 100 * u->done / u->total);
            if (u->left_s >= 0) buf_fmt(&b, ", %.0f s left", u->left_s);
        } else buf_str(&b, "reading");
    }
    if (r->n_queue) buf_fmt(&b, "%s%zu queued: %s", b.len ? "   " : "", r->n_queue, r->queue[0]);
    line_status(&r->line, b.data ? b.data : "");
    flush(r);
    buf_free(&b);
}

static void trim(const char *s, size_t *n) {
    while (*n && strchr(" \t\n", s[*n - 1])) --*n;
}
/* Removes the surrounding """. */
static void unwrap(const char **s, size_t *n) {
    if (*n < 6 || memcmp(*s, "\"\"\"", 3) || memcmp(*s + *n - 3, "\"\"\"", 3)) return;
    *s += 3;
    *n -= 6;
    while (*n && **s == '\n') ++*s, --*n;
    while (*n && (*s)[*n - 1] == '\n') --*n;
}

static void remember(struct repl *r, const char *text, size_t n) {
    bool draft = r->line.at == r->history.n; /* the edited line is not an entry of the history */
    history_add(&r->history, text, n);
    if (draft) r->line.at = r->history.n;
}

static void entered(struct repl *r, const char *text, size_t n) {
    remember(r, text, n);
    trim(text, &n);
    bool background = n > 1 && text[n - 1] == '&' && strchr(" \t\n\"", text[n - 2]);
    if (background) {
        n--;
        trim(text, &n);
    }
    unwrap(&text, &n);
    char *copy = mem_strndup(text, n);
    if (!copy) repl_say(r, "no memory");
    else if (*copy == '/') command_run(r, copy); /* commands may span lines, and never run in the background */
    else if (n) repl_send(r, copy, n, background);
    mem_free(copy);
}

static void ask(struct repl *r) {
    make_prompt(r);
    out_write(r->prompt, strlen(r->prompt));
    r->asks = true;
}

/* Redraws the edited line. Below a running answer it is shown only when it has contents. */
static void show(struct repl *r) {
    if (r->leave) return;
    if (r->dumb) {
        if (!r->answering && !r->asks && !r->line.text.len) ask(r);
        return;
    }
    if (r->answering && !r->line.text.len && !r->n_queue) repl_hide(r);
    else {
        if (r->answering) open_below(r);
        line_show(&r->line);
        flush(r);
    }
}

/* Starts a line; text typed during the answer is already in it. */
static void begin_line(struct repl *r) {
    if (r->dumb) {
        buf_free(&r->line.text);
        ask(r);
        return;
    }
    make_prompt(r);
    term_raw();
    term_size(&r->line.rows, &r->line.cols);
    line_open(&r->line, r->prompt);
    flush(r);
}

void repl_leave(struct repl *r, bool key) {
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) n += r->talks[i]->turn.running && r->talks[i] != r->answering;
    if (!n || r->told) {
        r->leave = true;
        return;
    }
    char text[128] = "an answer is still running in the background; repeat to stop it and leave";
    if (n > 1) snprintf(text, sizeof text, "%zu answers are still running in the background; repeat to stop them and leave", n);
    if (key) line_hint(&r->line, text);
    else repl_say(r, "%s", text);
    r->told = true;
}

/* --- lines entered during an answer ---------------------------------------------------------------------------------- */

static void enqueue(struct repl *r, const char *text, size_t n) {
    char *copy = mem_grow(&r->queue, &r->cap_queue, r->n_queue + 1, sizeof *r->queue) ? NULL : mem_strndup(text, n);
    if (copy) r->queue[r->n_queue++] = copy;
    else line_hint(&r->line, "no memory; the line is lost");
}

static char *dequeue(struct repl *r) {
    char *text = r->queue[0];
    memmove(r->queue, r->queue + 1, --r->n_queue * sizeof *r->queue);
    return text;
}

void repl_drop_queue(struct repl *r) {
    if (r->n_queue)
        repl_say(r, "(%zu queued %s not sent; Arrow-Up recalls %s)", r->n_queue, r->n_queue > 1 ? "lines were" : "line was", r->n_queue > 1 ? "them" : "it");
    while (r->n_queue) {
        char *text = dequeue(r);
        remember(r, text, strlen(text));
        mem_free(text);
    }
}

/* Sends the first queued line as if it were typed now: after a prompt, above the edited line. */
static void send_first(struct repl *r) {
    char *text = dequeue(r);
    repl_hide(r);
    make_prompt(r);
    repl_say_in(r, "\033[1m", r->prompt, text, strlen(text));
    entered(r, text, strlen(text));
    mem_free(text);
}

/* Handles a line entered below a running answer: queues it, except & and /bg, which send the answer to the background. */
static void typed_below(struct repl *r, const char *text, size_t n) {
    trim(text, &n);
    if ((n == 1 && *text == '&') || (n == 3 && !memcmp(text, "/bg", 3))) repl_background(r);
    else if (n) enqueue(r, text, n);
}

/* --- keys ------------------------------------------------------------------------------------------------------------ */

static enum line_result dumb_line(struct repl *r, size_t *used) {
    *used = (size_t)((const char *)memchr(r->input.data, '\n', r->input.len) - r->input.data) + 1;
    r->asks = false; /* the terminal has echoed the Enter */
    if (buf_add(&r->line.text, r->input.data, *used - 1)) repl_say(r, "no memory");
    return line_wants_more(&r->line) && !buf_char(&r->line.text, '\n') ? LINE_MORE : LINE_DONE;
}

static void line_done(struct repl *r) {
    bool below = r->answering != NULL;
    if (below) repl_hide(r);
    else if (!r->dumb) line_end(&r->line);
    flush(r);
    struct buf text = r->line.text;
    r->line.text = (struct buf){0};
    if (!r->dumb) line_empty(&r->line);
    if (below) typed_below(r, text.data ? text.data : "", text.len);
    else entered(r, text.data ? text.data : "", text.len);
    buf_free(&text);
}

/* Handles typed bytes. On a dumb terminal, input after a line waits while an answer runs. */
static void serve_input(struct repl *r) {
    while (r->input.len && !r->leave && !(r->dumb && r->answering)) {
        size_t used = r->input.len;
        enum line_result res;
        if (r->dumb && !memchr(r->input.data, '\n', r->input.len)) return;
        if (r->dumb) res = dumb_line(r, &used);
        else {
            if (r->answering) open_below(r);
            res = line_feed(&r->line, r->input.data, r->input.len, &used);
        }
        memmove(r->input.data, r->input.data + used, r->input.len - used + 1);
        r->input.len -= used;
        flush(r);
        if (res == LINE_EDITOR && r->answering) line_hint(&r->line, "the editor opens when the answer has ended");
        else if (res == LINE_EDITOR) repl_editor(r);
        else if (res == LINE_EOF && r->answering) enqueue(r, "/bye", 4);
        else if (res == LINE_EOF) repl_leave(r, true);
        else if (res == LINE_DONE) {
            line_done(r);
            if (!r->answering && !r->leave && !r->n_queue) begin_line(r);
        }
    }
}

static void read_keys(struct repl *r) {
    char chunk[4096];
    ssize_t n = read(0, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) { /* hangup, or Ctrl-D on a dumb terminal */
        r->leave = true;
        return;
    }
    for (int early = term_typed_early(), i = 0; i < n && i < early; i++)
        if (chunk[i] == '\n') chunk[i] = '\r'; /* Enter, typed before raw mode */
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

/* After a resize the end of the answer's row is unknown: the answer continues below. */
static void resized(struct repl *r) {
    int rows, cols;
    if (sig_continued()) r->line.shown = false; /* redrawn at the current cursor */
    r->below = false;
    term_size(&rows, &cols);
    line_resize(&r->line, rows, cols);
    if (r->answering) printer_resize(&r->printer, cols, r->line.shown);
    flush(r);
}

/* --- the loop -------------------------------------------------------------------------------------------------------- */

static void serve(struct repl *r, bool keys) {
    bool free_screen = !r->answering;
    /* hold messages of the turns; they are printed above the edited line, or at the end of a row of the answer */
    progress_hold((!r->dumb && (free_screen || r->line.shown)) || (r->answering && r->printer.col));
    repl_pump(r);
    repl_say_unsaved(r);
    if (r->answering && !r->line.shown) progress_tick();
    if (free_screen) say_waiting(r);
    if (keys) {
        if (free_screen) progress_hold(false);
        read_keys(r);
        serve_input(r);
    }
    if (!r->answering) {
        progress_hold(false);
        if (!free_screen && !r->leave && !r->n_queue) begin_line(r);
        else if (r->n_queue && !r->leave) send_first(r);
        if (r->dumb && !free_screen) serve_input(r);
    }
    if (r->leave) return;
    show(r);
    if (r->line.shown) set_status(r);
}

static void loop(struct repl *r) {
    begin_line(r);
    while (!r->leave && !sig_terminated() && !out_failed()) {
        bool reads = !r->dumb || !r->answering;
        struct pollfd fds[3] = {{.fd = seat_fd(r->app), .events = POLLIN}, {.fd = sig_fd(), .events = POLLIN}, {.fd = reads ? 0 : -1, .events = POLLIN}};
        int wait = any_running(r) ? 200 : progress_waiting() || r->n_queue ? 0 : 1000;
        if (poll(fds, 3, wait) < 0 && errno != EINTR) break;
        sig_drain();
        if (sig_resized()) resized(r);
        if (sig_interrupted() && !r->answering) interrupted(r);
        serve(r, fds[2].revents != 0);
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
    if (!rc && v[OPT_NO_SAVE].on && v[OPT_CONTINUE].text) { /* the earlier messages are loaded, new ones are not saved */
        store_close(&r->now->store);
        r->now->named = false;
        *r->now->name = 0;
    }
    for (size_t i = 0; i < v[OPT_FILE].n_items && !rc; i++) rc = input_document(a, v[OPT_FILE].items[i], &r->now->attached, e);
    return rc;
}

int repl_run(struct app *a, struct error *e) {
    struct repl *r = mem_calloc(1, sizeof *r);
    if (!r) return error_set(e, ERR_MEMORY, "no memory");
    const struct opt_value *v = a->opts.v;
    r->app = a;
    r->dumb = term_dumb();
    if (!r->dumb) term_raw(); /* before the model opens, so that typed text is not echoed over the progress */
    store_sweep();
    int rc = app_open_text(a, e);
    if (!rc) rc = open_first(r, e);
    if (!rc) rc = app_open_engine(a, e);
    progress_clear();
    history_open(&r->history, !v[OPT_NO_SAVE].on);
    line_init(&r->line, &r->history);
    r->line.color = a->color_out;
    r->line.complete = command_complete;
    r->line.ctx = r;
    if (!rc) {
        sig_hold(NULL);
        if (!a->quiet && app_builtin(a)) repl_say(r, "%s, the built-in model, knows only hearth; hearth -m DIR opens a real one.", a->info->name);
        if (!a->quiet) repl_say(r, "%s%sType a question, or /help; Ctrl-D leaves.", app_builtin(a) ? "" : a->info->name, app_builtin(a) ? "" : ". ");
        if (v[OPT_FILE].n_items) repl_say(r, "%zu bytes of documents are attached to your first question", r->now->attached.len);
        if (r->now->conv.n) repl_switch(r, r->now);
        loop(r);
        if (!r->dumb) line_end(&r->line);
        flush(r);
    }
    while (r->n) repl_drop(r, r->talks[r->n - 1]);
    saver_close();
    repl_say_unsaved(r);
    sig_forget();
    sig_release();
    term_restore();
    progress_hold(false);
    line_free(&r->line);
    history_close(&r->history);
    buf_free(&r->input);
    while (r->n_queue) mem_free(dequeue(r));
    mem_free(r->queue);
    mem_free(r->talks);
    mem_free(r);
    return rc;
}
