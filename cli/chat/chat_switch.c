/* Switches between sessions and closes them. */
#include "cli/chat/chat_switch.h"

#include <poll.h>

#include "base/clock.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/chat_tools.h"
#include "cli/chat/chat_turn.h"
#include "cli/chat/screen.h"

/* Returns the bytes of a question that are shown again, such as the beginning of a document that came on stdin, and
 * counts the lines behind them. */
static size_t head_length(const char *s, size_t n, size_t *hidden) {
    enum { SHOWN_LINES = 10, SPARE_LINES = 2 };
    size_t lines = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] == '\n' && ++lines == SHOWN_LINES) at = i;
    *hidden = lines > SHOWN_LINES + SPARE_LINES ? lines + (s[n - 1] != '\n') - SHOWN_LINES : 0;
    return *hidden ? at : n;
}

static void print_message(struct repl *r, const struct message *m) {
    struct buf b = {0};
    if (m->role == ROLE_USER) {
        const char *text = conversation_question(m, &b);
        if (text) buf_fmt(&b, "%s%s", b.len ? " " : "", text);
        size_t hidden, n = head_length(b.data ? b.data : "", b.len, &hidden);
        screen_print_styled(r, "\033[1m", "> ", b.data ? b.data : "", n);
        if (hidden) screen_print(r, "(%zu more lines; /export FILE writes them all)", hidden);
    } else if (m->role == ROLE_ASSISTANT && m->text.len)
        answer_printer_print(&r->app->answer_style, m->text.data, m->text.len);
    for (size_t i = 0; i < m->calls.n; i++) {
        struct buf text = {0};
        if (m->role == ROLE_ASSISTANT) tool_round_show_call(&m->calls.v[i], &text);
        if (text.len) screen_print_styled(r, "\033[2m", "", text.data, text.len);
        buf_free(&text);
    }
    buf_free(&b);
}

void chat_switch_to(struct repl *r, struct chat_session *t) {
    r->active = t;
    t->last_used = ++r->n_switches;
    size_t from = t->conv.n;
    while (from && t->conv.messages[from - 1].role != ROLE_USER) from--;
    if (from) from--;
    for (size_t i = from; i < t->conv.n; i++) print_message(r, &t->conv.messages[i]);
    t->answer_seen = true;
    if (t->turn.running) chat_turn_to_screen(r, t);
    else chat_tools_show(r, t);
}

void chat_switch_close(struct repl *r, struct chat_session *t) {
    enum { CANCEL_S = 5, POLL_MS = 50 }; /* longest wait for the end of a cancelled turn */
    t->closing = true;
    if (t->turn.running) {
        engine_client_cancel(t->client);
        for (double until = clock_now() + CANCEL_S; t->turn.running && clock_now() < until;) {
            struct pollfd p = {.fd = engine_client_fd(r->app), .events = POLLIN};
            poll(&p, 1, POLL_MS);
            chat_turn_poll(r);
        }
    }
    if (t->round.n_done < t->round.calls.n) chat_tools_abandon(r, t, "the chat has ended");
    chat_session_free(r, t);
}
