/* Commands that change or show the conversation. */
#include <string.h>

#include "cli/chat/attachments.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/chat_switch.h"
#include "cli/chat/chat_turn.h"
#include "cli/chat/command.h"
#include "cli/chat/compact.h"
#include "cli/chat/screen.h"
#include "cli/open.h"
#include "cli/terminal/out.h"

void command_system(struct repl *r, const char *arg) {
    struct conversation *c = &r->active->conv;
    bool has_system = c->n && c->messages[0].role == ROLE_SYSTEM;
    if (!*arg) {
        if (has_system) out_write(c->messages[0].text.data, c->messages[0].text.len);
        screen_print(r, has_system ? "\n/system - removes it" : "no system prompt; /system TEXT sets one");
        return;
    }
    if (chat_session_report_busy(r, r->active)) return;
    bool removes = !strcmp(arg, "-");
    if (conversation_set_system(c, removes ? "" : arg)) {
        screen_print(r, "no memory");
        return;
    }
    chat_session_save(r, r->active);
    screen_print(r, removes ? "system prompt removed, starting with the next question"
                            : "system prompt set, starting with the next question; /system - removes it");
}

/* Truncates the conversation before its last message of that role; false if there is none. */
static bool truncate_before_role(struct conversation *c, enum role role) {
    for (size_t i = c->n; i-- > 0;)
        if (c->messages[i].role == role) {
            conversation_truncate(c, i);
            return true;
        }
    return false;
}

void command_regen(struct repl *r, const char *arg) {
    struct conversation *c = &r->active->conv;
    if (chat_session_report_busy(r, r->active)) return;
    size_t n = c->n, n_before = n;
    while (n && c->messages[n - 1].role != ROLE_USER) n--; /* an answer with tool calls has several messages */
    if (!n) {
        screen_print(r, "there is no answer to regenerate");
        return;
    }
    struct sampling s;
    open_sampling(r->app, &r->app->opts, &s);
    if (s.temperature <= 0)
        screen_print(r, "temperature 0 gives the same answer each time; /set temp 0.7 gives others");
    c->n = n;
    int rc = chat_turn_answer(r, r->active, false);
    c->n = n_before;
    if (rc) return; /* an answer is dropped only for a new one */
    const struct conversation last = {.messages = c->messages + n, .n = n_before - n};
    if (conversation_append(&r->active->replaced, &last)) conversation_free(&r->active->replaced);
    conversation_truncate(c, n);
}

void command_continue(struct repl *r, const char *arg) {
    if (!chat_session_report_busy(r, r->active)) chat_turn_continue(r, r->active);
}

void command_undo(struct repl *r, const char *arg) {
    struct chat_session *t = r->active;
    const struct message *m = conversation_last(&t->conv, ROLE_USER);
    if (chat_session_report_busy(r, t)) return;
    if (!m && chat_session_undo_clear(t)) {
        screen_print(r, "conversation restored");
        chat_switch_to(r, t);
        return;
    }
    if (!m) {
        screen_print(r, "there is nothing to undo");
        return;
    }
    if (compact_undo(t)) {
        screen_print(r, "the conversation before /compact is back");
        chat_session_save(r, t);
        return;
    }
    struct conversation last = {.messages = (struct message *)m, .n = 1};
    struct buf title = {0};
    conversation_title(&last, 60, &title);
    screen_print(r, "undone: %s", title.data ? title.data : "");
    buf_free(&title);
    const int n_attached = attachments_restore(&t->attached, m);
    if (n_attached < 0) screen_print(r, "no memory for its documents");
    else if (n_attached)
        screen_print(r, "its file%s attached to the next question; /detach drops %s", n_attached > 1 ? "s are" : " is",
                     n_attached > 1 ? "them" : "it");
    truncate_before_role(&t->conv, ROLE_USER);
    t->n_in_context = 0;
    prompt_free(&t->prompt);
    chat_session_save(r, t);
}

void command_compact(struct repl *r, const char *arg) {
    if (chat_session_report_busy(r, r->active)) return;
    r->active->takes_any_summary = !strcmp(arg, "force");
    if (*arg && !r->active->takes_any_summary)
        screen_print(r, "nothing was done: /compact takes no argument but force");
    else if (r->active->conv.n < 3) screen_print(r, "there is nothing to summarise");
    else compact_start(r, r->active);
}

void command_bg(struct repl *r, const char *arg) {
    if (!*arg) screen_print(r, "/bg TEXT answers TEXT in the background");
    else chat_turn_send(r, arg, strlen(arg), true);
}

/* Starts a new conversation on an empty screen. */
void command_clear(struct repl *r, const char *arg) {
    if (chat_session_report_busy(r, r->active)) return;
    chat_session_clear(r, r->active);
    if (!r->dumb) out_draw(1, "\033[H\033[2J\033[3J", 11);
    screen_print(r,
                 r->active->cleared.conv.n ? "a new conversation; /undo restores the old one" : "a new conversation");
}
