/* The screen of the chat: messages, the prompt, the edited line and its status. */
#include "cli/chat/screen.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cli/chat/fullness.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/columns.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/term.h"
#include "cli/turn/template_vars.h"

void screen_flush(struct repl *r) {
    if (r->line.out.len) out_draw(1, r->line.out.data, r->line.out.len);
    r->line.out.len = 0;
    r->line.out.failed = false;
}
static void hide_answer_status(struct repl *r) {
    if (r->answer_status_shown) out_draw(1, "\033[J", 3); /* the cursor is at the end of the answer */
    r->answer_status_shown = false;
}

static void hide_edited_line(struct repl *r) {
    if (r->dumb && r->prompt_shown) out_write("\n", 1); /* the terminal keeps what was typed */
    r->prompt_shown = false;
    if (r->dumb || (!r->line.shown && !r->line_below_answer)) return;
    int col = r->on_screen ? r->printer.col : 0;
    line_hide(&r->line);
    if (r->line_below_answer) buf_str(&r->line.out, "\033[A");
    if (r->line_below_answer && col) buf_fmt(&r->line.out, "\033[%dC", col);
    r->line_below_answer = false;
    screen_flush(r);
}
void screen_hide_line(struct repl *r) {
    hide_answer_status(r);
    hide_edited_line(r);
}

/* If the answer's last row is full, the answer continues on the row of the edited line. */
void screen_open_row_below(struct repl *r) {
    int col = r->printer.col;
    hide_answer_status(r);
    if (r->line.shown || r->line_below_answer) return;
    progress_clear();
    if (col) buf_str(&r->line.out, "\r\n");
    r->line_below_answer = col && col < r->line.cols;
}
void screen_print_styled(struct repl *r, const char *style, const char *head, const char *text, size_t n) {
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

void screen_print(struct repl *r, const char *fmt, ...) {
    char text[2048];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    screen_print_styled(r, "\033[2m", "", text, strlen(text));
}

void screen_print_held(struct repl *r) {
    if (!progress_has_held()) return;
    screen_hide_line(r);
    progress_flush();
}

/* A long name is truncated, which leaves room for typing. */
void screen_format_prompt(struct repl *r) {
    enum { LONG_PROMPT = 20 };
    int rows, cols;
    term_size(&rows, &cols);
    if (chat_awaits_consent(r))
        snprintf(r->prompt, sizeof r->prompt,
                 r->asks_to_read ? "Read files for it? y: yes, n: no > " : "Run it? y: yes, n: no, a: always > ");
    else if (r->n_sessions == 1 && !r->active->named) snprintf(r->prompt, sizeof r->prompt, "> ");
    else if (r->active->named) {
        struct buf name = {0};
        columns_truncate(r->active->name, strlen(r->active->name),
                         cols / 2 - 3 < LONG_PROMPT ? cols / 2 - 3 : LONG_PROMPT, &name);
        snprintf(r->prompt, sizeof r->prompt, "%s> ", name.data ? name.data : "");
        buf_free(&name);
    } else snprintf(r->prompt, sizeof r->prompt, "%d> ", r->active->number);
}

bool screen_any_running(const struct repl *r) {
    for (size_t i = 0; i < r->n_sessions; i++)
        if (r->sessions[i]->turn.running || r->sessions[i]->job) return true;
    return false;
}

void screen_label(const struct chat_session *t, char *out, size_t cap) {
    if (t->named) snprintf(out, cap, "%s", t->name);
    else snprintf(out, cap, "%d", t->number);
}

enum { NEARLY_FULL = 85 };                    /* percent of the context from which the status names it */
static const double STATUS_INTERVAL_S = 0.25; /* a status that is redrawn for each token flickers */

void screen_update_status(struct repl *r) {
    double now = clock_now();
    struct buf b = {0};
    if (screen_any_running(r) && now - r->status_drawn_s < STATUS_INTERVAL_S) return;
    r->status_drawn_s = now;
    for (size_t i = 0; i < r->n_sessions; i++) {
        const struct chat_session *t = r->sessions[i];
        const struct turn *u = &t->turn;
        char label[140], rate[32];
        if ((!u->running && !t->job && (!t->asking || t == r->active)) || (t == r->on_screen && u->n_tokens)) continue;
        screen_label(t, label, sizeof label);
        buf_str(&b, b.len ? "   " : "");
        if (t != r->on_screen) buf_fmt(&b, "%s: ", label);
        if (!u->running)
            buf_fmt(&b, t->job ? "running %s" : "needs your consent to %s", tool_round_call(&t->round)->name.data);
        else if (u->n_tokens > 1) buf_fmt(&b, "%d tokens, %s tok/s", u->n_tokens, turn_speed(u, rate, sizeof rate));
        else if (u->prefill_total > 0) {
            buf_fmt(&b, "reading %d %%", 100 * u->prefill_done / u->prefill_total);
            if (u->prefill_left_s >= 0) buf_fmt(&b, ", %.0f s left", u->prefill_left_s);
        } else buf_str(&b, "reading");
    }
    if (r->n_queue) buf_fmt(&b, "%s%zu queued: %s", b.len ? "   " : "", r->n_queue, r->queue[0]);
    const int percent = fullness_percent(r, r->active, 0);
    if (!b.len && percent >= NEARLY_FULL) buf_fmt(&b, "context %d %% full; /compact makes room", percent);
    line_status(&r->line, b.data ? b.data : "");
    screen_flush(r);
    buf_free(&b);
}

/* Appends what is known of the running answer. */
static void format_answer_status(struct repl *r, double now, struct buf *b) {
    const struct turn *u = &r->on_screen->turn;
    const char *effort = template_vars_known_effort(r->app);
    char rate[32], time[32];
    if (r->thinking.since && effort) buf_fmt(b, "thinking (effort %s)", effort);
    else if (r->thinking.since) buf_str(b, "thinking");
    else if (effort) buf_fmt(b, "effort %s, ", effort);
    if (r->thinking.since) buf_fmt(b, " for %s, ", amount_duration(now - r->thinking.since, time, sizeof time));
    buf_fmt(b, "%d tokens, %s tok/s", u->n_tokens, turn_speed(u, rate, sizeof rate));
    /* without the question, which is not counted yet */
    const int percent = r->on_screen->replaced.n ? 0 : fullness_percent(r, r->on_screen, u->n_tokens);
    if (percent >= NEARLY_FULL) buf_fmt(b, ", context %d %% full", percent < 100 ? percent : 100);
    else if (r->thinking.since && r->line.cols >= 80) buf_str(b, "; Ctrl-O shows the thinking");
}

/* Shown after a second, so that short answers do not flicker, in one row; not after a full row, to whose end the cursor
 * cannot return. */
void screen_show_answer_status(struct repl *r) {
    enum { AFTER_S = 1 };
    const struct turn *u = r->on_screen ? &r->on_screen->turn : NULL;
    const double now = clock_now();
    struct buf b = {0}, text = {0};
    if (!u || !u->running || r->dumb || !r->app->tty_out || r->app->opts.v[OPT_QUIET].on ||
        r->app->answer_style.plain || r->line.shown || r->line_below_answer)
        return;
    if (u->n_tokens < 2 || now - u->first_token_at < AFTER_S || r->printer.col >= r->line.cols || r->line.cols < 2)
        return;
    if (r->answer_status_shown && now - r->status_drawn_s < STATUS_INTERVAL_S) return;
    r->status_drawn_s = now;
    format_answer_status(r, now, &text);
    buf_fmt(&b, "\r\n%s", r->line.color ? "\033[2m" : "");
    if (!text.failed) columns_truncate(text.data, text.len, r->line.cols - 1, &b);
    buf_fmt(&b, "\033[K%s\033[A\r", r->line.color ? "\033[0m" : "");
    if (r->printer.col) buf_fmt(&b, "\033[%dC", r->printer.col);
    if (!b.failed) out_draw(1, b.data, b.len);
    r->answer_status_shown = !b.failed;
    buf_free(&b);
    buf_free(&text);
}

static void print_prompt(struct repl *r) {
    screen_format_prompt(r);
    out_write(r->prompt, strlen(r->prompt));
    r->prompt_shown = true;
}

void screen_redraw_line(struct repl *r) {
    if (r->leaving) return;
    if (r->dumb) {
        if (!r->on_screen && !r->prompt_shown && !r->line.text.len) print_prompt(r);
        return;
    }
    if (r->on_screen && !r->line.text.len && !r->n_queue) hide_edited_line(r);
    else {
        if (r->on_screen) screen_open_row_below(r);
        line_show(&r->line);
        screen_flush(r);
    }
}

void screen_begin_line(struct repl *r) {
    if (r->dumb) {
        buf_free(&r->line.text);
        print_prompt(r);
        return;
    }
    screen_format_prompt(r);
    term_raw();
    term_size(&r->line.rows, &r->line.cols);
    line_open(&r->line, r->prompt);
    screen_flush(r);
}
