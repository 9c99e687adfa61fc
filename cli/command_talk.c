/* Commands that change or show the conversation. */
#include <string.h>

#include "cli/command.h"
#include "cli/out.h"

void cmd_system(struct repl *r, const char *arg) {
    struct conv *c = &r->now->conv;
    bool there = c->n && c->m[0].role == ROLE_SYSTEM;
    if (!*arg) {
        if (there) out_write(c->m[0].text.data, c->m[0].text.len);
        repl_say(r, there ? "\n/system - removes it" : "no system prompt; /system TEXT sets one");
        return;
    }
    if (repl_busy(r, r->now)) return;
    bool none = !strcmp(arg, "-");
    if (conv_system(c, none ? "" : arg)) repl_say(r, "no memory");
    else
        repl_say(r,
                 none ? "system prompt removed, starting with the next question" : "system prompt set, starting with the next question; /system - removes it");
}

/* Truncates the conversation before its last message of that role; false if there is none. */
static bool cut_before(struct conv *c, enum role role) {
    for (size_t i = c->n; i-- > 0;)
        if (c->m[i].role == role) {
            conv_cut(c, i);
            return true;
        }
    return false;
}

void cmd_regen(struct repl *r, const char *arg) {
    struct conv *c = &r->now->conv;
    if (repl_busy(r, r->now)) return;
    if (!c->n || (c->m[c->n - 1].role == ROLE_ASSISTANT && !cut_before(c, ROLE_ASSISTANT)) || c->m[c->n - 1].role != ROLE_USER)
        repl_say(r, "there is no answer to regenerate");
    else repl_answer(r, r->now, false);
}

void cmd_continue(struct repl *r, const char *arg) {
    if (!repl_busy(r, r->now)) repl_continue(r, r->now);
}

void cmd_undo(struct repl *r, const char *arg) {
    struct talk *t = r->now;
    const struct message *m = conv_last(&t->conv, ROLE_USER);
    if (repl_busy(r, t)) return;
    if (!m && repl_bring_back(r, t)) {
        repl_say(r, "conversation restored");
        repl_switch(r, t);
        return;
    }
    if (!m) {
        repl_say(r, "there is nothing to undo");
        return;
    }
    struct conv last = {.m = (struct message *)m, .n = 1};
    struct buf title = {0};
    conv_title(&last, 60, &title);
    repl_say(r, "undone: %s", title.data ? title.data : "");
    buf_free(&title);
    cut_before(&t->conv, ROLE_USER);
    prompt_free(&t->prompt);
    repl_save(r, t);
}

void cmd_compact(struct repl *r, const char *arg) {
    if (repl_busy(r, r->now)) return;
    if (r->now->conv.n < 3) repl_say(r, "there is nothing to summarise");
    else repl_compact(r, r->now);
}

void cmd_bg(struct repl *r, const char *arg) {
    if (!*arg) repl_say(r, "/bg TEXT answers TEXT in the background; so does a trailing &");
    else repl_send(r, arg, strlen(arg), true);
}

void cmd_copy(struct repl *r, const char *arg) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const struct message *m = conv_last(&r->now->conv, ROLE_ASSISTANT);
    struct buf b = {0};
    if (!m) {
        repl_say(r, "there is no answer to copy");
        return;
    }
    buf_str(&b, "\033]52;c;");
    for (size_t i = 0; i < m->text.len; i += 3) {
        size_t n = m->text.len - i;
        const unsigned char *s = (const unsigned char *)m->text.data + i;
        unsigned v = (unsigned)s[0] << 16 | (n > 1 ? (unsigned)s[1] << 8 : 0) | (n > 2 ? s[2] : 0);
        char q[4] = {digits[v >> 18], digits[v >> 12 & 63], n > 1 ? digits[v >> 6 & 63] : '=', n > 2 ? digits[v & 63] : '='};
        buf_add(&b, q, 4);
    }
    buf_char(&b, '\a');
    if (!b.failed) out_draw(1, b.data, b.len);
    repl_say(r, b.failed ? "no memory" : "%zu bytes sent to the terminal's clipboard (if it allows that)", m->text.len);
    buf_free(&b);
}

/* Starts a new conversation on an empty screen. */
void cmd_clear(struct repl *r, const char *arg) {
    if (repl_busy(r, r->now)) return;
    repl_clear(r, r->now);
    if (!r->dumb) out_draw(1, "\033[H\033[2J\033[3J", 11);
    repl_say(r, r->now->past.conv.n ? "a new conversation; /undo restores the old one" : "a new conversation");
}

void cmd_read(struct repl *r, const char *arg) {
    if (!*arg) repl_say(r, "/read FILE attaches FILE to your next question");
    else if (!strcmp(arg, "-")) repl_say(r, "cannot read stdin: it is the terminal");
    else repl_attach(r, r->now, arg);
}
