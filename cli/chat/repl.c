#include "cli/chat/repl.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/saved/saver.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sanitize.h"
#include "cli/terminal/sig.h"
#include "cli/terminal/term.h"
#include "cli/turn/input.h"
#include "engine/base/clock.h"

/* --- the screen ------------------------------------------------------------------------------------------------------ */

static void flush_line(struct repl *r) {
    if (r->line.out.len) out_draw(1, r->line.out.data, r->line.out.len);
    r->line.out.len = 0;
    r->line.out.failed = false;
}
void repl_hide_line(struct repl *r) {
    if (r->dumb && r->prompt_shown) out_write("\n", 1); /* the terminal keeps what was typed */
    r->prompt_shown = false;
    if (r->dumb || (!r->line.shown && !r->line_below_answer)) return;
    int col = r->on_screen ? r->printer.col : 0;
    line_hide(&r->line);
    if (r->line_below_answer) buf_str(&r->line.out, "\033[A");
    if (r->line_below_answer && col) buf_fmt(&r->line.out, "\033[%dC", col);
    r->line_below_answer = false;
    flush_line(r);
}
/* Opens a row for the edited line below the running answer. After a full row the answer continues on the row of the line. */
static void open_row_below(struct repl *r) {
    int col = r->printer.col;
    if (r->line.shown || r->line_below_answer) return;
    progress_clear();
    if (col) buf_str(&r->line.out, "\r\n");
    r->line_below_answer = col && col < r->line.cols;
}
void repl_print_styled(struct repl *r, const char *style, const char *head, const char *text, size_t n) {
    struct markdown s;
    struct buf out = {0};
    int rows, cols;
    term_size(&rows, &cols);
    markdown_init(&s, cols, false);
    if (r->app->color_out) buf_str(&out, style);
    markdown_add(&s, head, strlen(head), &out);
    markdown_add(&s, text, n, &out);
    markdown_flush(&s, &out);
    if (r->app->color_out) buf_str(&out, "\033[0m");
    if (!out.failed) out_draw(1, out.data, out.len);
    out_write("\n", 1);
    markdown_free(&s);
    buf_free(&out);
}

void repl_print(struct repl *r, const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    repl_print_styled(r, "\033[2m", "", text, strlen(text));
}

static void print_held_messages(struct repl *r) {
    if (!progress_has_held()) return;
    repl_hide_line(r);
    progress_flush();
}

/* Truncates a name to leave room for typing. */
static void format_prompt(struct repl *r) {
    enum { LONG_PROMPT = 20 };
    if (r->n_sessions == 1 && !r->active->named) snprintf(r->prompt, sizeof r->prompt, "> ");
    else if (r->active->named) {
        struct buf name = {0};
        columns_truncate(r->active->name, strlen(r->active->name), LONG_PROMPT, &name);
        snprintf(r->prompt, sizeof r->prompt, "%s> ", name.data ? name.data : "");
        buf_free(&name);
    } else snprintf(r->prompt, sizeof r->prompt, "%d> ", r->active->number);
}

void repl_poll_engine(struct repl *r) {
    struct engine_event news;
    const struct event *ev = &news.event;
    while (engine_client_poll(r->app, &news, 0)) {
        struct chat_session *t = NULL;
        for (size_t i = 0; i < r->n_sessions; i++)
            if (r->sessions[i]->client == news.client) t = r->sessions[i];
        if (!t || !t->turn.running) continue;
        if (t == r->on_screen) {
            if (ev->kind == EVENT_PROGRESS && ev->total > 0 && !r->line.shown) progress_update("reading the prompt", (double)ev->done / ev->total, ev->left_s);
            if (ev->kind != EVENT_PROGRESS && progress_shown()) progress_clear();
        }
        turn_event(&t->turn, &news);
        if (!t->turn.running) chat_turn_finish(r, t);
        else if (ev->kind == EVENT_NONE) chat_session_save(r, t); /* its disk-cache keys are known now */
    }
}

/* --- status and entered lines ---------------------------------------------------------------------------------------- */

static bool any_running(const struct repl *r) {
    for (size_t i = 0; i < r->n_sessions; i++)
        if (r->sessions[i]->turn.running) return true;
    return false;
}

/* Limits updates: a status redrawn a hundred times a second flickers. */
static void update_status(struct repl *r) {
    double now = clock_now();
    struct buf b = {0};
    if (any_running(r) && now - r->status_drawn_s < 0.25) return;
    r->status_drawn_s = now;
    for (size_t i = 0; i < r->n_sessions; i++) {
        const struct chat_session *t = r->sessions[i];
        const struct turn *u = &t->turn;
        char label[140];
        if (!u->running || (t == r->on_screen && u->n_tokens)) continue;
        chat_session_label(t, label, sizeof label);
        buf_str(&b, b.len ? "   " : "");
        if (t != r->on_screen) buf_fmt(&b, "%s: ", label);
        if (u->n_tokens > 1) buf_fmt(&b, "%d tokens, %.1f tok/s", u->n_tokens, (u->n_tokens - 1) / (u->last_token - u->first_token + 1e-9));
        else if (u->prefill_total > 0) {
            buf_fmt(&b, "reading %d %%", 100 * u->prefill_done / u->prefill_total);
            if (u->prefill_left_s >= 0) buf_fmt(&b, ", %.0f s left", u->prefill_left_s);
        } else buf_str(&b, "reading");
    }
    if (r->n_queue) buf_fmt(&b, "%s%zu queued: %s", b.len ? "   " : "", r->n_queue, r->queue[0]);
    line_status(&r->line, b.data ? b.data : "");
    flush_line(r);
    buf_free(&b);
}

static void trim_end(const char *s, size_t *n) {
    while (*n && strchr(" \t\n", s[*n - 1])) --*n;
}
/* Removes the surrounding """. */
static void strip_triple_quotes(const char **s, size_t *n) {
    if (*n < 6 || memcmp(*s, "\"\"\"", 3) || memcmp(*s + *n - 3, "\"\"\"", 3)) return;
    *s += 3;
    *n -= 6;
    while (*n && **s == '\n') ++*s, --*n;
    while (*n && (*s)[*n - 1] == '\n') --*n;
}

static void add_to_history(struct repl *r, const char *text, size_t n) {
    bool draft = r->line.history_index == r->history.n; /* the edited line is not an entry of the history */
    history_add(&r->history, text, n);
    if (draft) r->line.history_index = r->history.n;
}

static void handle_line(struct repl *r, const char *text, size_t n) {
    add_to_history(r, text, n);
    trim_end(text, &n);
    bool background = n > 1 && text[n - 1] == '&' && strchr(" \t\n\"", text[n - 2]);
    if (background) {
        n--;
        trim_end(text, &n);
    }
    strip_triple_quotes(&text, &n);
    char *copy = mem_strndup(text, n);
    if (!copy) repl_print(r, "no memory");
    else if (*copy == '/') command_run(r, copy); /* commands may span lines, and never run in the background */
    else if (n) chat_turn_send(r, copy, n, background);
    mem_free(copy);
}

static void print_prompt(struct repl *r) {
    format_prompt(r);
    out_write(r->prompt, strlen(r->prompt));
    r->prompt_shown = true;
}

/* Redraws the edited line. Below a running answer it is shown only when it has contents. */
static void redraw_line(struct repl *r) {
    if (r->leaving) return;
    if (r->dumb) {
        if (!r->on_screen && !r->prompt_shown && !r->line.text.len) print_prompt(r);
        return;
    }
    if (r->on_screen && !r->line.text.len && !r->n_queue) repl_hide_line(r);
    else {
        if (r->on_screen) open_row_below(r);
        line_show(&r->line);
        flush_line(r);
    }
}

/* Starts a line; text typed during the answer is already in it. */
static void begin_line(struct repl *r) {
    if (r->dumb) {
        buf_free(&r->line.text);
        print_prompt(r);
        return;
    }
    format_prompt(r);
    term_raw();
    term_size(&r->line.rows, &r->line.cols);
    line_open(&r->line, r->prompt);
    flush_line(r);
}

void repl_request_exit(struct repl *r, bool key) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_sessions; i++) n += r->sessions[i]->turn.running && r->sessions[i] != r->on_screen;
    if (!n || r->exit_warned) {
        r->leaving = true;
        return;
    }
    char text[128] = "an answer is still running in the background; repeat to stop it and leave";
    if (n > 1) snprintf(text, sizeof text, "%zu answers are still running in the background; repeat to stop them and leave", n);
    if (key) line_hint(&r->line, text);
    else repl_print(r, "%s", text);
    r->exit_warned = true;
}

/* --- lines entered during an answer ---------------------------------------------------------------------------------- */

static void queue_line(struct repl *r, const char *text, size_t n) {
    char *copy = mem_grow(&r->queue, &r->cap_queue, r->n_queue + 1, sizeof *r->queue) ? NULL : mem_strndup(text, n);
    if (copy) r->queue[r->n_queue++] = copy;
    else line_hint(&r->line, "no memory; the line is lost");
}

static char *unqueue_line(struct repl *r) {
    char *text = r->queue[0];
    memmove(r->queue, r->queue + 1, --r->n_queue * sizeof *r->queue);
    return text;
}

void repl_discard_queue(struct repl *r) {
    if (r->n_queue)
        repl_print(r, "(%zu queued %s not sent; Arrow-Up recalls %s)", r->n_queue, r->n_queue > 1 ? "lines were" : "line was", r->n_queue > 1 ? "them" : "it");
    while (r->n_queue) {
        char *text = unqueue_line(r);
        add_to_history(r, text, strlen(text));
        mem_free(text);
    }
}

/* Sends the first queued line as if it were typed now: after a prompt, above the edited line. */
static void send_queued_line(struct repl *r) {
    char *text = unqueue_line(r);
    repl_hide_line(r);
    format_prompt(r);
    repl_print_styled(r, "\033[1m", r->prompt, text, strlen(text));
    handle_line(r, text, strlen(text));
    mem_free(text);
}

/* Handles a line entered below a running answer: queues it, except & and /bg, which send the answer to the background. */
static void handle_line_below(struct repl *r, const char *text, size_t n) {
    trim_end(text, &n);
    if ((n == 1 && *text == '&') || (n == 3 && !memcmp(text, "/bg", 3))) chat_turn_to_background(r);
    else if (n) queue_line(r, text, n);
}

/* --- keys ------------------------------------------------------------------------------------------------------------ */

static enum line_result take_dumb_line(struct repl *r, size_t *used) {
    *used = (size_t)((const char *)memchr(r->input.data, '\n', r->input.len) - r->input.data) + 1;
    r->prompt_shown = false; /* the terminal has echoed the Enter */
    if (buf_add(&r->line.text, r->input.data, *used - 1)) repl_print(r, "no memory");
    return line_wants_more(&r->line) && !buf_char(&r->line.text, '\n') ? LINE_MORE : LINE_DONE;
}

static void finish_line(struct repl *r) {
    bool below = r->on_screen != NULL;
    if (below) repl_hide_line(r);
    else if (!r->dumb) line_end(&r->line);
    flush_line(r);
    struct buf text = r->line.text;
    r->line.text = (struct buf){0};
    if (!r->dumb) line_reset(&r->line);
    if (below) handle_line_below(r, text.data ? text.data : "", text.len);
    else handle_line(r, text.data ? text.data : "", text.len);
    buf_free(&text);
}

/* Handles typed bytes. On a dumb terminal, input after a line waits while an answer runs. */
static void process_input(struct repl *r) {
    while (r->input.len && !r->leaving && !(r->dumb && r->on_screen)) {
        size_t used = r->input.len;
        enum line_result res;
        if (r->dumb && !memchr(r->input.data, '\n', r->input.len)) return;
        if (r->dumb) res = take_dumb_line(r, &used);
        else {
            if (r->on_screen) open_row_below(r);
            res = line_feed(&r->line, r->input.data, r->input.len, &used);
        }
        memmove(r->input.data, r->input.data + used, r->input.len - used + 1);
        r->input.len -= used;
        flush_line(r);
        if (res == LINE_EDITOR && r->on_screen) line_hint(&r->line, "the editor opens when the answer has ended");
        else if (res == LINE_EDITOR) editor_open(r);
        else if (res == LINE_EOF && r->on_screen) queue_line(r, "/bye", 4);
        else if (res == LINE_EOF) repl_request_exit(r, true);
        else if (res == LINE_DONE) {
            finish_line(r);
            if (!r->on_screen && !r->leaving && !r->n_queue) begin_line(r);
        }
    }
}

static void read_keys(struct repl *r) {
    char chunk[4096];
    ssize_t n = read(0, chunk, sizeof chunk);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) return;
    if (n <= 0) { /* hangup, or Ctrl-D on a dumb terminal */
        r->leaving = true;
        return;
    }
    for (int early = term_typed_early(), i = 0; i < n && i < early; i++)
        if (chunk[i] == '\n') chunk[i] = '\r'; /* Enter, typed before raw mode */
    buf_add(&r->input, chunk, (size_t)n);
}

static void handle_interrupt(struct repl *r) {
    sig_clear_interrupt();
    if (r->dumb) {
        out_write("\n", 1);
        begin_line(r);
        return;
    }
    bool empty = !r->line.text.len;
    r->input.len = 0;
    line_clear(&r->line);
    if (empty) line_hint(&r->line, "Ctrl-D or /bye leaves");
    flush_line(r);
}

/* After a resize the end of the answer's row is unknown: the answer continues below. */
static void handle_resize(struct repl *r) {
    int rows, cols;
    if (sig_continued()) r->line.shown = false; /* redrawn at the current cursor */
    r->line_below_answer = false;
    term_size(&rows, &cols);
    line_resize(&r->line, rows, cols);
    if (r->on_screen) answer_printer_resize(&r->printer, cols, r->line.shown);
    flush_line(r);
}

/* --- the loop -------------------------------------------------------------------------------------------------------- */

static void process_events(struct repl *r, bool keys) {
    bool free_screen = !r->on_screen;
    /* hold messages of the turns; they are printed above the edited line, or at the end of a row of the answer */
    progress_hold((!r->dumb && (free_screen || r->line.shown)) || (r->on_screen && r->printer.col));
    repl_poll_engine(r);
    chat_session_report_unsaved(r);
    if (r->on_screen && !r->line.shown) progress_tick();
    if (free_screen) print_held_messages(r);
    if (keys) {
        if (free_screen) progress_hold(false);
        read_keys(r);
        process_input(r);
    }
    if (!r->on_screen) {
        progress_hold(false);
        if (!free_screen && !r->leaving && !r->n_queue) begin_line(r);
        else if (r->n_queue && !r->leaving) send_queued_line(r);
        if (r->dumb && !free_screen) process_input(r);
    }
    if (r->leaving) return;
    redraw_line(r);
    if (r->line.shown) update_status(r);
}

static void run_loop(struct repl *r) {
    begin_line(r);
    while (!r->leaving && !sig_terminated() && !out_failed()) {
        bool reads = !r->dumb || !r->on_screen;
        struct pollfd fds[3] = {
            {.fd = engine_client_fd(r->app), .events = POLLIN}, {.fd = sig_fd(), .events = POLLIN}, {.fd = reads ? 0 : -1, .events = POLLIN}};
        int wait = any_running(r) ? 200 : progress_has_held() || r->n_queue ? 0 : 1000;
        if (poll(fds, 3, wait) < 0 && errno != EINTR) break;
        sig_drain();
        if (sig_resized()) handle_resize(r);
        if (sig_interrupted() && !r->on_screen) handle_interrupt(r);
        process_events(r, fds[2].revents != 0);
    }
}

static int open_first_session(struct repl *r, struct error *e) {
    struct app *a = r->app;
    const struct opt_value *v = a->opts.v;
    const char *name = v[OPT_CONTINUE].text ? v[OPT_CONTINUE].text : v[OPT_SAVE].text;
    if (!(r->active = chat_session_new(r, name))) return error_set(e, ERR_MEMORY, "no memory");
    int rc = name ? store_open(&r->active->store, a, name, v[OPT_CONTINUE].text ? STORE_LOAD : STORE_NEW, &r->active->conv, e) : 0;
    if (!rc && v[OPT_CONTINUE].text && v[OPT_SAVE].text) {
        if (!(rc = store_rename(&r->active->store, v[OPT_SAVE].text, e))) snprintf(r->active->name, sizeof r->active->name, "%s", v[OPT_SAVE].text);
    }
    if (!rc && v[OPT_SYSTEM].text && conversation_set_system(&r->active->conv, v[OPT_SYSTEM].text)) rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc && v[OPT_NO_SAVE].on && v[OPT_CONTINUE].text) { /* the earlier messages are loaded, new ones are not saved */
        store_close(&r->active->store);
        r->active->named = false;
        *r->active->name = 0;
    }
    for (size_t i = 0; i < v[OPT_FILE].n_items && !rc; i++) rc = input_document(a, v[OPT_FILE].items[i], &r->active->attached, e);
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
    int rc = open_text(a, e);
    if (!rc) rc = open_first_session(r, e);
    if (!rc) rc = open_engine(a, e);
    progress_clear();
    history_open(&r->history, !v[OPT_NO_SAVE].on);
    line_init(&r->line, &r->history);
    r->line.color = a->color_out;
    r->line.complete = command_complete;
    r->line.ctx = r;
    if (!rc) {
        sig_defer(NULL);
        if (!a->quiet && open_is_builtin(a)) repl_print(r, "%s, the built-in model, knows only hearth; hearth -m DIR opens a real one.", a->info->name);
        if (!a->quiet) repl_print(r, "%s%sType a question, or /help; Ctrl-D leaves.", open_is_builtin(a) ? "" : a->info->name, open_is_builtin(a) ? "" : ". ");
        if (v[OPT_FILE].n_items) repl_print(r, "%zu bytes of documents are attached to your first question", r->active->attached.len);
        if (r->active->conv.n) chat_session_switch(r, r->active);
        run_loop(r);
        if (!r->dumb) line_end(&r->line);
        flush_line(r);
    }
    while (r->n_sessions) chat_session_close(r, r->sessions[r->n_sessions - 1]);
    saver_close();
    chat_session_report_unsaved(r);
    sig_clear_interrupt();
    sig_undefer();
    term_restore();
    progress_hold(false);
    line_free(&r->line);
    history_close(&r->history);
    buf_free(&r->input);
    while (r->n_queue) mem_free(unqueue_line(r));
    mem_free(r->queue);
    mem_free(r->sessions);
    mem_free(r);
    return rc;
}
