/* The thinking of the answer on the screen: folded to one line unless --show-thinking says otherwise. */
#include "cli/chat/thinking.h"

#include <string.h>

#include "base/clock.h"
#include "cli/chat/screen.h"
#include "cli/terminal/amount.h"

static bool mode_is(const struct repl *r, const char *mode) {
    return !strcmp(r->app->opts.v[OPT_SHOW_THINKING].text, mode);
}
static bool is_hidden(const struct repl *r) { return r->app->opts.v[OPT_QUIET].on || mode_is(r, "never"); }
static bool is_folded(const struct repl *r) {
    return !r->thinking.unfolded && !r->dumb && r->app->tty_err && mode_is(r, "auto");
}

void thinking_begin(struct repl *r) { r->thinking = (struct thinking_fold){0}; }

void thinking_end(struct repl *r) {
    struct thinking_fold *f = &r->thinking;
    char time[32];
    if (!f->since || !r->on_screen) return;
    int tokens = r->on_screen->turn.n_tokens - f->n_before;
    screen_hide_line(r);
    screen_print(r, "(thought for %s, %d token%s; Ctrl-O shows it)",
                 amount_duration(clock_now() - f->since, time, sizeof time), tokens, tokens == 1 ? "" : "s");
    *f = (struct thinking_fold){0};
}

int thinking_on_text(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct repl *r = ctx;
    struct thinking_fold *f = &r->thinking;
    if (part == OUTPUT_TOOL_CALL && r->app->tools) return 0; /* the call is shown when it is complete */
    if (part == OUTPUT_THINKING && is_hidden(r)) return 0;
    if (part == OUTPUT_THINKING && is_folded(r)) {
        if (!f->since)
            *f = (struct thinking_fold){.since = clock_now(),
                                        .n_before = r->on_screen ? r->on_screen->turn.n_tokens : 0};
        return 0;
    }
    if (n) thinking_end(r);
    return answer_printer_add(&r->printer, part, data, n);
}

static void print_last_thinking(struct repl *r) {
    const struct message *m = conversation_last(&r->active->conv, ROLE_ASSISTANT);
    if (!m || !m->thinking.len) {
        line_hint(&r->line, "the last answer has no thinking");
        return;
    }
    screen_hide_line(r);
    screen_print_styled(r, "\033[2m", "", m->thinking.data, m->thinking.len);
    line_show(&r->line);
}

void thinking_show(struct repl *r) {
    const struct buf *so_far = r->on_screen ? &r->on_screen->turn.thinking : NULL;
    if (!so_far) print_last_thinking(r);
    else if (!r->thinking.since) line_hint(&r->line, "the thinking is shown when the answer has ended");
    else {
        r->thinking = (struct thinking_fold){.unfolded = true};
        answer_printer_add(&r->printer, OUTPUT_THINKING, so_far->data, so_far->len);
    }
    screen_flush(r);
}
