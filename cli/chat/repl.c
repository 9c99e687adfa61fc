#include "cli/chat/repl.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/chat/attachments.h"
#include "cli/chat/chat_gpus.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/chat_switch.h"
#include "cli/chat/chat_tools.h"
#include "cli/chat/chat_turn.h"
#include "cli/chat/command.h"
#include "cli/chat/editor.h"
#include "cli/chat/queue.h"
#include "cli/chat/screen.h"
#include "cli/chat/thinking.h"
#include "cli/open.h"
#include "cli/options/trim.h"
#include "cli/saved/saver.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"
#include "cli/terminal/term.h"

/* --- entered lines ---------------------------------------------------------------------------- */

/* Removes the surrounding """. */
static void strip_triple_quotes(const char **s, size_t *n) {
    if (*n < 6 || memcmp(*s, "\"\"\"", 3) || memcmp(*s + *n - 3, "\"\"\"", 3)) return;
    *s += 3;
    *n -= 6;
    while (*n && **s == '\n') ++*s, --*n;
    *n = trim_end(*s, *n, "\n");
}

/* Words with which other programs are left; as questions they would be answered. */
static bool means_to_leave(const char *text) {
    return !strcmp(text, "exit") || !strcmp(text, "quit") || !strcmp(text, ":q");
}

static void handle_line(struct repl *r, const char *text, size_t n) {
    if (chat_awaits_consent(r)) {
        chat_tools_answer(r, text, trim_end(text, n, " \t\n"));
        return;
    }
    queue_add_to_history(r, text, n);
    n = trim_end(text, n, " \t\n");
    strip_triple_quotes(&text, &n);
    struct buf line = {0};
    bool chooses = r->choosing_model && n && strspn(text, "0123456789") == n;
    r->choosing_model = false;
    buf_str(&line, chooses ? "/model " : "");
    buf_add(&line, text, n);
    if (line.failed) screen_print(r, "no memory");
    else if (command_is(line.data)) command_run(r, line.data); /* commands may span lines */
    else if (means_to_leave(line.data))
        screen_print(r, "Not sent. To leave, press Ctrl-D or type /exit; to send the word itself, type a space first");
    else if (n) chat_turn_send(r, line.data, n, false);
    buf_free(&line);
}

/* --- lines entered during an answer ----------------------------------------------------------- */

/* Sends the first queued line as if it were typed now: after a prompt, above the edited line. */
static void send_queued_line(struct repl *r) {
    char *text = queue_take(r);
    screen_hide_line(r);
    screen_format_prompt(r);
    screen_print_styled(r, "\033[1m", r->prompt, text, strlen(text));
    handle_line(r, text, strlen(text));
    mem_free(text);
}

/* Runs a command above the rest of the running answer, which continues on a row of its own. */
static void run_beside(struct repl *r, const char *text, size_t n) {
    char *copy = mem_strndup(text, n);
    int rows, cols;
    queue_add_to_history(r, text, n);
    progress_clear();
    if (r->printer.col) out_write("\n", 1);
    screen_print_styled(r, "\033[1m", r->prompt, text, n);
    if (copy) command_run(r, copy);
    term_size(&rows, &cols);
    answer_printer_resize(&r->printer, cols, true);
    mem_free(copy);
}

/* The first call leaves the chat when the answer on the screen has ended, the second at once. The text that has arrived
 * is saved. */
static void leave_below(struct repl *r) {
    if (r->n_queue && command_leaves(r->queue[r->n_queue - 1])) {
        r->leaving = true;
        return;
    }
    queue_add(r, "/bye", 4);
    line_hint(&r->line, "will quit when this answer is done; press again to quit now");
}

/* Handles a line entered below a running answer: queues it, except & and /bg, which send the answer to the background,
 * and commands that run at once. */
static void handle_line_below(struct repl *r, const char *text, size_t n) {
    n = trim_end(text, n, " \t\n");
    if ((n == 1 && *text == '&') || (n == 3 && !memcmp(text, "/bg", 3))) chat_turn_to_background(r);
    else if (n && command_leaves(text)) leave_below(r);
    else if (n && command_runs_beside(text)) run_beside(r, text, n);
    else if (n) queue_add(r, text, n);
}

/* --- keys ------------------------------------------------------------------------------------- */

static enum line_result take_dumb_line(struct repl *r, size_t *used) {
    *used = (size_t)((const char *)memchr(r->input.data, '\n', r->input.len) - r->input.data) + 1;
    r->prompt_shown = false; /* the terminal has echoed the Enter */
    if (buf_add(&r->line.text, r->input.data, *used - 1)) screen_print(r, "no memory");
    return line_wants_more(&r->line) && !buf_char(&r->line.text, '\n') ? LINE_MORE : LINE_DONE;
}

static void finish_line(struct repl *r) {
    bool below = r->on_screen != NULL;
    if (below) screen_hide_line(r);
    else if (!r->dumb) line_end(&r->line);
    screen_flush(r);
    struct buf text = {0};
    line_paste_expand(&r->line, &r->line.text, &text);
    buf_free(&r->line.text);
    if (text.failed) screen_print(r, "no memory; a part of the line is lost");
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
            if (r->on_screen) screen_open_row_below(r);
            res = line_feed(&r->line, r->input.data, r->input.len, &used);
        }
        memmove(r->input.data, r->input.data + used, r->input.len - used + 1);
        r->input.len -= used;
        screen_flush(r);
        if (res == LINE_EDITOR && r->on_screen) line_hint(&r->line, "the editor opens when the answer has ended");
        else if (res == LINE_EDITOR) editor_open(r);
        else if (res == LINE_THINKING) thinking_show(r);
        else if (res == LINE_EOF && r->on_screen) leave_below(r);
        else if (res == LINE_EOF) command_request_exit(r, true);
        else if (res == LINE_DONE) {
            finish_line(r);
            if (!r->on_screen && !r->leaving && (!r->n_queue || chat_awaits_consent(r))) screen_begin_line(r);
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
    if (chat_awaits_consent(r)) {
        screen_hide_line(r);
        chat_tools_stop(r, r->active);
        screen_begin_line(r);
        return;
    }
    if (r->dumb) {
        out_write("\n", 1);
        screen_begin_line(r);
        return;
    }
    bool empty = !r->line.text.len;
    r->input.len = 0;
    line_clear(&r->line);
    if (empty) line_hint(&r->line, "Ctrl-D or /bye leaves");
    screen_flush(r);
}

/* After a resize the end of the answer's row is unknown: the answer continues below. */
static void handle_resize(struct repl *r) {
    int rows, cols;
    if (sig_continued()) r->line.shown = false; /* redrawn at the current cursor */
    if (r->on_screen && !r->line.shown) screen_hide_line(r);
    r->line_below_answer = false;
    term_size(&rows, &cols);
    line_resize(&r->line, rows, cols);
    if (r->on_screen) answer_printer_resize(&r->printer, cols, r->line.shown);
    screen_flush(r);
}

/* Notes when a lone ESC arrives, which may begin the sequence of another key. */
static void watch_escape(struct repl *r) {
    bool lone = !r->dumb && r->line.escaping && !r->line.n_esc;
    r->escape_s = lone ? clock_now() : 0;
}
/* After a lone ESC: stops the answer, if there is one; otherwise the next key does not continue an escape sequence. */
static void end_escape(struct repl *r) {
    enum { ANSWER_MS = 50, LINE_MS = 500 };
    if (!r->escape_s || clock_now() - r->escape_s < (r->on_screen ? ANSWER_MS : LINE_MS) / 1e3) return;
    r->escape_s = 0;
    r->line.escaping = false;
    if (r->on_screen) chat_turn_cancel(r->on_screen);
}

/* --- the loop --------------------------------------------------------------------------------- */

static void process_events(struct repl *r, bool keys) {
    bool free_screen = !r->on_screen, awaited_consent = chat_awaits_consent(r);
    /* hold messages of the turns; they are printed above the edited line, or at the end of a row of the answer */
    progress_hold((!r->dumb && (free_screen || r->line.shown)) || (r->on_screen && r->printer.col));
    chat_turn_poll(r);
    chat_tools_poll(r);
    chat_gpus_poll(r);
    keys &= awaited_consent == chat_awaits_consent(r); /* a new question has dropped what was typed */
    chat_session_report_unsaved();
    if (r->on_screen && !r->line.shown) progress_tick();
    if (free_screen) screen_print_held(r);
    if (keys) {
        if (free_screen) progress_hold(false);
        read_keys(r);
        process_input(r);
        watch_escape(r);
    }
    if (!r->on_screen) {
        progress_hold(false);
        if (!free_screen && !r->leaving && (!r->n_queue || chat_awaits_consent(r))) screen_begin_line(r);
        else if (r->n_queue && !r->leaving && !chat_awaits_consent(r)) send_queued_line(r);
        if (r->dumb && !free_screen) process_input(r);
    }
    if (r->leaving) return;
    screen_redraw_line(r);
    if (r->line.shown) screen_update_status(r);
    screen_show_answer_status(r);
}

/* A lone ESC is judged within ms; statuses are redrawn; held messages and queued lines are handled at once. */
static int poll_wait_ms(const struct repl *r) {
    if (r->escape_s) return 10;
    if (screen_any_running(r)) return 200;
    return progress_has_held() || (r->n_queue && !chat_awaits_consent(r)) ? 0 : 1000;
}
static void run_loop(struct repl *r) {
    screen_begin_line(r);
    while (!r->leaving && !sig_terminated() && !out_failed()) {
        bool reads = !r->dumb || !r->on_screen;
        struct pollfd fds[3] = {{.fd = engine_client_fd(r->app), .events = POLLIN},
                                {.fd = sig_fd(), .events = POLLIN},
                                {.fd = reads ? 0 : -1, .events = POLLIN}};
        if (poll(fds, 3, poll_wait_ms(r)) < 0 && errno != EINTR) break;
        sig_drain();
        if (sig_resized()) handle_resize(r);
        if (sig_interrupted() && !r->on_screen) handle_interrupt(r);
        process_events(r, fds[2].revents != 0);
        end_escape(r);
    }
}

static int open_first_session(struct repl *r, struct error *e) {
    struct app *a = r->app;
    const struct opt_value *v = a->opts.v;
    const char *name = v[OPT_CONTINUE].text ? v[OPT_CONTINUE].text : v[OPT_SAVE].text;
    if (!(r->active = chat_session_new(r, name))) return error_set(e, ERR_MEMORY, "no memory");
    int rc = name ? store_open(&r->active->store, a, name, v[OPT_CONTINUE].text ? STORE_LOAD : STORE_NEW,
                               &r->active->conv, e)
                  : 0;
    if (!rc && v[OPT_CONTINUE].text && v[OPT_SAVE].text) {
        if (!(rc = store_rename(&r->active->store, v[OPT_SAVE].text, e)))
            snprintf(r->active->name, sizeof r->active->name, "%s", v[OPT_SAVE].text);
    }
    if (!rc && v[OPT_SYSTEM].text && conversation_set_system(&r->active->conv, v[OPT_SYSTEM].text))
        rc = error_set(e, ERR_MEMORY, "no memory");
    /* the earlier messages are loaded, new ones are not saved */
    if (!rc && v[OPT_NO_SAVE].on && v[OPT_CONTINUE].text) {
        store_close(&r->active->store);
        r->active->named = false;
        *r->active->name = 0;
    }
    return rc;
}

int repl_run(struct app *a, struct error *e) {
    struct repl *r = mem_calloc(1, sizeof *r);
    if (!r) return error_set(e, ERR_MEMORY, "no memory");
    const struct opt_value *v = a->opts.v;
    r->app = a;
    r->on_calls = chat_tools_step;
    r->dumb = term_dumb();
    if (!r->dumb) term_raw(); /* before the model opens, so that typed text is not echoed over the progress */
    store_sweep();
    int rc = open_text(a, e);
    if (!rc) rc = open_first_session(r, e);
    if (!rc) rc = open_engine(a, e);
    if (!rc && v[OPT_CONTINUE].text) rc = store_model_check(a, v[OPT_CONTINUE].text, &r->active->store.model, e);
    for (size_t i = 0; i < v[OPT_FILE].n_items && !rc; i++) rc = attachments_add(a, r->active, v[OPT_FILE].items[i], e);
    progress_clear();
    history_open(&r->history, !v[OPT_NO_SAVE].on);
    line_init(&r->line, &r->history);
    r->line.color = a->color_out;
    r->line.complete = command_complete;
    r->line.ctx = r;
    if (!rc) {
        sig_defer(NULL, NULL);
        if (!v[OPT_QUIET].on && open_is_builtin(a))
            screen_print(r, "%s, the built-in model, knows only hearth; hearth -m DIR opens a real one.",
                         a->info->name);
        if (!v[OPT_QUIET].on) {
            const char *from = v[OPT_MODEL].origin == ORIGIN_FILE ? ", the default model" : "";
            if (!strcmp(a->backend->name, "attached"))
                screen_print(r, "The resident engine answers; --no-attach opens the model in this process.");
            else chat_gpus_say(r);
            screen_print(r, "%s%s%sType a question, or /help; Ctrl-D leaves.", open_is_builtin(a) ? "" : a->info->name,
                         open_is_builtin(a) ? "" : from, open_is_builtin(a) ? "" : ". ");
        }
        char size[32];
        if (v[OPT_FILE].n_items)
            screen_print(r, "documents (%s) are attached to your first question",
                         amount_bytes(attachments_bytes(&r->active->attached), size, sizeof size));
        if (r->active->conv.n) chat_switch_to(r, r->active);
        run_loop(r);
        if (!r->dumb) line_end(&r->line);
        screen_flush(r);
    }
    chat_gpus_end(r);
    while (r->n_sessions) chat_switch_close(r, r->sessions[r->n_sessions - 1]);
    saver_close();
    chat_session_report_unsaved();
    sig_clear_interrupt();
    sig_undefer();
    term_restore();
    progress_hold(false);
    line_free(&r->line);
    history_close(&r->history);
    buf_free(&r->input);
    buf_free(&r->put_aside);
    while (r->n_queue) mem_free(queue_take(r));
    mem_free(r->queue);
    mem_free(r->sessions);
    mem_free(r);
    return rc;
}
