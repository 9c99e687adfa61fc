#include "cli/modes/oneshot_turn.h"

#include "cli/terminal/progress.h"
#include "cli/terminal/sig.h"

void oneshot_turn_wait(struct app *a, struct turn *t, const char *what) {
    struct engine_event received;
    const struct event *ev = &received.event;
    progress_begin(what);
    /* a signal that came before the turn began has cancelled nothing */
    if (sig_interrupted() || sig_terminated()) engine_client_cancel(t->client);
    while (t->running) {
        if (!engine_client_poll(a, &received, 250 /* ms */)) {
            progress_tick();
            continue;
        }
        if (ev->kind == EVENT_PROGRESS && ev->total > 0)
            progress_update(ev->in_images ? "looking at images" : what, (double)ev->done / ev->total, ev->left_s);
        if (ev->kind == EVENT_DONE || ev->kind == EVENT_ERROR ||
            (ev->kind == EVENT_TOKEN && progress_shown() && t->on_text))
            progress_clear();
        turn_event(t, &received);
    }
    progress_clear();
}

void oneshot_turn_add_stats(struct turn_stats *sum, const struct turn_stats *s) {
    sum->prompt_tokens += s->prompt_tokens;
    sum->cached_tokens += s->cached_tokens;
    sum->answer_tokens += s->answer_tokens;
    sum->drafted += s->drafted;
    sum->accepted += s->accepted;
    sum->prefill_s += s->prefill_s;
    sum->decode_s += s->decode_s;
    sum->bytes_read += s->bytes_read;
}
