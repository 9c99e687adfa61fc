#include "cli/turn.h"

#include <string.h>

#include "engine/base/clock.h"

const char *turn_reason(enum done_reason r) {
    static const char *const names[] = {[DONE_STOP] = "stop", [DONE_LENGTH] = "length", [DONE_CONTEXT] = "context", [DONE_CANCELLED] = "cancelled"};
    return names[r];
}

void turn_free(struct turn *t) {
    parts_close(&t->parts);
    buf_free(&t->text);
    buf_free(&t->thinking);
    buf_free(&t->tool);
    ids_free(&t->ids);
    *t = (struct turn){0};
}

/* --- text ------------------------------------------------------------------------------------------------------------ */

static int emit(struct turn *t, enum part part, const char *data, size_t n) { return n && t->fn ? t->fn(t->ctx, part, data, n) : 0; }

/* Searches the unshown text for a stop string, and emits all that cannot begin one. */
static int show_text(struct turn *t, bool all) {
    char *new = t->text.data + t->shown;
    size_t n = t->text.len - t->shown, hold = 0, cut = n + 1;
    for (size_t i = 0; i < t->n_stop; i++) {
        size_t len = strlen(t->stop[i]);
        if (!len) continue;
        char *hit = memmem(new, n, t->stop[i], len);
        if (hit && (size_t)(hit - new) < cut) cut = (size_t)(hit - new);
        for (size_t k = len - 1 < n ? len - 1 : n; k > hold; k--)
            if (!memcmp(new + n - k, t->stop[i], k)) hold = k;
    }
    if (cut <= n) {
        t->stop_hit = true;
        t->text.len = t->shown + cut;
        t->text.data[t->text.len] = 0;
        seat_cancel(t->seat);
        hold = 0;
    }
    size_t upto = t->text.len - (all ? 0 : hold), from = t->shown;
    t->shown = upto;
    return emit(t, PART_TEXT, t->text.data + from, upto - from);
}

static int on_part(void *ctx, enum part part, const char *data, size_t n) {
    struct turn *t = ctx;
    if (t->stop_hit) return 0;
    if (part == PART_TEXT && !t->begun && t->parts) { /* line ends between thinking and answer belong to neither */
        while (n && (*data == '\n' || *data == '\r')) data++, n--;
        if (!n) return 0;
        t->begun = true;
    }
    if (t->resuming) return 0;
    struct buf *b = part == PART_TEXT ? &t->text : part == PART_THINKING ? &t->thinking : &t->tool;
    if (buf_add(b, data, n)) return ERR_MEMORY;
    return part == PART_TEXT ? show_text(t, false) : emit(t, part, data, n);
}

static int feed(struct turn *t, const char *data, size_t n, bool special) {
    if (!n) return 0;
    if (t->parts) return parts_add(t->parts, data, n, special, on_part, t);
    return special && !t->app->opts.v[OPT_SPECIAL].on ? 0 : on_part(t, PART_TEXT, data, n);
}

/* Passes control tokens to the splitter separately, so that a literal <think> in the text is not taken for one. */
static int add_token(struct turn *t, int32_t id) {
    struct buf b = {0};
    bool special = false;
    size_t n = 0;
    const char *piece = tokenizer_piece(t->app->tokenizer, id, &n, &special);
    int rc = 0;
    if (piece && special) {
        if (!(rc = decoder_flush(&t->decoder, &b)) && b.len) rc = feed(t, b.data, b.len, false);
        if (!rc) rc = feed(t, piece, n, true);
    } else if ((rc = decoder_add(&t->decoder, id, &b))) t->lost = rc == ERR_MEMORY ? rc : ERR_MODEL;
    else if (b.len) rc = feed(t, b.data, b.len, false);
    if (rc == ERR_MEMORY) t->lost = rc;
    buf_free(&b);
    return rc;
}

static bool is_eos(const struct turn *t, int32_t id) {
    const struct engine_info *i = t->app->info;
    for (int k = 0; k < i->n_eos; k++)
        if (i->eos[k] == id) return true;
    return false;
}

/* Replays the ids that an earlier turn generated, without output, to learn whether the model was thinking. */
static int resume(struct turn *t, const struct prompt *p) {
    struct buf rest = {0};
    t->resuming = true;
    for (size_t i = p->said; i < p->ids.n && !t->lost; i++) add_token(t, p->ids.data[i]);
    int rc = t->lost ? t->lost : decoder_flush(&t->decoder, &rest); /* that turn ended with a flush, too */
    if (!rc && rest.len) rc = feed(t, rest.data, rest.len, false);
    if (!rc && t->parts) rc = parts_flush(t->parts, on_part, t);
    buf_free(&rest);
    t->resuming = false;
    return rc;
}

void turn_stop_at(struct turn *t, const char *const *stop, size_t n) {
    t->stop = stop;
    t->n_stop = n;
}

int turn_start(struct turn *t, struct app *a, struct seat *s, const struct prompt *p, const struct request *r, turn_fn fn, void *ctx, struct error *e) {
    *t = (struct turn){.app = a, .seat = s, .fn = fn, .ctx = ctx, .decoder = {.t = a->tokenizer}, .left_s = -1};
    turn_stop_at(t, a->opts.v[OPT_UNTIL].items, a->opts.v[OPT_UNTIL].n_items);
    if (a->chat && !(t->parts = parts_open(a->chat, p->tail.data ? p->tail.data : "", p->tail.len))) return error_set(e, ERR_MEMORY, "no memory");
    int rc = p->said < p->ids.n ? resume(t, p) : 0;
    if (rc) error_set(e, rc, "cannot continue the answer: no memory, or a token id without text");
    else rc = seat_submit(s, p, r, e);
    if (rc) turn_free(t);
    else t->running = true;
    return rc;
}

static void finish(struct turn *t) {
    struct buf b = {0};
    int rc = t->lost ? t->lost : decoder_flush(&t->decoder, &b); /* nothing may follow a gap */
    if (!rc && b.len) rc = feed(t, b.data, b.len, false);
    if (!rc && t->parts) rc = parts_flush(t->parts, on_part, t);
    if (!rc && t->text.data && !t->stop_hit) rc = show_text(t, true);
    if (rc == ERR_MEMORY) t->lost = rc;
    buf_free(&b);
    t->running = false;
}

void turn_event(struct turn *t, const struct news *news) {
    const struct event *ev = &news->event;
    switch (ev->kind) {
    case EVENT_TOKEN:
        t->last_token = clock_now();
        if (!t->n_tokens++) t->first_token = t->last_token;
        if (t->stop_hit || t->lost) break;
        if (news->text) {
            int rc = on_part(t, news->part, news->text, news->n);
            if (rc == ERR_MEMORY) t->lost = rc;
            if (rc) seat_cancel(t->seat);
            break;
        }
        if (is_eos(t, ev->token)) break;
        if (mem_grow(&t->ids.data, &t->ids.cap, t->ids.n + 1, sizeof *t->ids.data)) t->lost = ERR_MEMORY;
        else t->ids.data[t->ids.n++] = ev->token;
        if (t->lost || add_token(t, ev->token)) seat_cancel(t->seat);
        break;
    case EVENT_PROGRESS:
        t->done = ev->done;
        t->total = ev->total;
        t->left_s = ev->left_s;
        break;
    case EVENT_DONE:
    case EVENT_ERROR:
        t->stats = ev->stats;
        t->reason = t->stop_hit ? DONE_STOP : ev->reason;
        t->failed = ev->kind == EVENT_ERROR;
        if (t->failed) t->error = ev->error;
        finish(t);
        if (t->lost && !t->failed) {
            t->failed = true;
            if (t->lost == ERR_MEMORY) error_set(&t->error, ERR_MEMORY, "no memory for the answer's text");
            else error_set(&t->error, ERR_MODEL, "the model generated a token id without text in its tokenizer; the answer ends there");
        }
        break;
    case EVENT_NONE: break;
    }
}
