#include "cli/turn/turn.h"

#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/turn/engine_client.h"

const char *turn_reason_name(enum done_reason r) {
    static const char *const names[] = {
        [DONE_STOP] = "stop", [DONE_LENGTH] = "length", [DONE_CONTEXT] = "context", [DONE_CANCELLED] = "cancelled"};
    return names[r];
}

const char *turn_speed(const struct turn *t, char *out, size_t cap) {
    return amount_rate((t->n_tokens - 1) / (t->last_token_at - t->first_token_at + 1e-9), out, cap);
}

bool turn_repeats(const struct turn *t) {
    enum { END = 2000, PASSAGE = 500 }; /* bytes: the end must consist of passages of at most this length */
    const struct buf *b = t->text.len ? &t->text : &t->thinking;
    for (size_t n = 1; b->len >= END && n <= PASSAGE; n++)
        if (!memcmp(b->data + b->len - END, b->data + b->len - END + n, END - n)) return true;
    return false;
}

const struct buf *turn_markup_text(const struct turn *t, size_t n_calls) {
    return !n_calls && t->tool.len && !t->failed && t->reason == DONE_STOP ? &t->tool : NULL;
}

int turn_calls(const struct turn *t, const struct json *tools, struct tool_calls *out) {
    struct buf s = {0};
    if (!t->tool.len) return ERR_MODEL;
    out_utf8(&s, t->tool.data, t->tool.len);
    const int rc = s.failed ? ERR_MEMORY : tool_calls_parse(s.data, s.len, tools, out);
    buf_free(&s);
    return rc;
}

size_t turn_shown_logprobs(const struct turn *t) {
    size_t n = t->n_logprobs;
    while (n && t->logprobs[n - 1].from >= t->n_shown) n--;
    return n;
}

void turn_free(struct turn *t) {
    output_parser_close(&t->parser);
    constraint_close(&t->constraint);
    think_limit_close(&t->think_limit);
    buf_free(&t->text);
    buf_free(&t->thinking);
    buf_free(&t->tool);
    ids_free(&t->ids);
    mem_free(t->logprobs);
    *t = (struct turn){0};
}

/* --- text ------------------------------------------------------------------------------------- */

static int emit_text(struct turn *t, enum output_kind part, const char *data, size_t n) {
    return n && t->on_text ? t->on_text(t->ctx, part, data, n) : 0;
}

/* Returns the number of bytes at the end of s that begin a character. */
static size_t begun_character(const char *s, size_t n) {
    for (size_t k = 1; k <= 3 && k <= n; k++) {
        const unsigned char c = (unsigned char)s[n - k];
        const size_t size = c >= 0xC2 ? utf8_size(c) : 1;
        if ((c & 0xC0) != 0x80) return size > k ? k : 0;
    }
    return 0;
}

/* Whether no text was shown so far, and it may be calls. */
static bool may_be_calls(const struct turn *t) {
    return t->text_tools && !t->n_shown && !t->tool.len &&
           tool_calls_may_be_text(t->text.data, t->text.len, t->text_tools);
}

/* Makes calls of the text of an ended answer, if it is nothing else. */
static int take_calls_of_text(struct turn *t) {
    struct tool_calls calls = {0};
    struct buf s = {0};
    if (t->failed || t->stop_hit || t->reason != DONE_STOP || !t->text.len || !may_be_calls(t)) return 0;
    out_utf8(&s, t->text.data, t->text.len);
    int rc = s.failed ? ERR_MEMORY : tool_calls_parse_text(s.data, s.len, t->text_tools, &calls);
    for (size_t i = 0; i < calls.n && !rc; i++)
        rc = tool_calls_put_line(&t->tool, &calls.v[i].name, &calls.v[i].arguments);
    if (!rc) t->text.len = 0, *t->text.data = 0;
    tool_calls_free(&calls);
    buf_free(&s);
    return rc == ERR_MEMORY ? rc : 0;
}

/* Searches the unshown text for a stop string, and emits all that cannot begin one, in whole characters: a control
 * token that adds no text may have parted one, and a stream that gets its parts at once shows it. */
static int show_text(struct turn *t, bool all) {
    char *new = t->text.data + t->n_shown;
    size_t n = t->text.len - t->n_shown, n_held = begun_character(new, n), cut = n + 1;
    for (size_t i = 0; i < t->n_stop; i++) {
        size_t len = strlen(t->stop[i]);
        if (!len) continue;
        char *hit = memmem(new, n, t->stop[i], len);
        if (hit && (size_t)(hit - new) < cut) cut = (size_t)(hit - new), t->stop_found = t->stop[i];
        for (size_t k = len - 1 < n ? len - 1 : n; k > n_held; k--)
            if (!memcmp(new + n - k, t->stop[i], k)) n_held = k;
    }
    if (cut <= n) {
        t->stop_hit = true;
        t->text.len = t->n_shown + cut;
        t->text.data[t->text.len] = 0;
        engine_client_cancel(t->client);
        n_held = 0;
    } else if (!all && may_be_calls(t)) return 0;
    size_t end = t->text.len - (all ? 0 : n_held), from = t->n_shown;
    t->n_shown = end;
    return emit_text(t, OUTPUT_TEXT, t->text.data + from, end - from);
}

/* Emits thinking or tool calls in whole characters, as show_text() does; `all`: also the beginning of one. */
static int show_part(struct turn *t, enum output_kind part, bool all) {
    const struct buf *b = part == OUTPUT_THINKING ? &t->thinking : &t->tool;
    size_t *shown = part == OUTPUT_THINKING ? &t->n_thinking_shown : &t->n_tool_shown, from = *shown;
    if (from == b->len) return 0;
    *shown = b->len - (all ? 0 : begun_character(b->data + from, b->len - from));
    return emit_text(t, part, b->data + from, *shown - from);
}

static int on_part(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct turn *t = ctx;
    if (t->stop_hit) return 0;
    t->part = part;
    /* line ends between thinking and answer belong to neither */
    if (part == OUTPUT_TEXT && !t->text_begun && t->parser) {
        while (n && (*data == '\n' || *data == '\r')) data++, n--;
        if (!n) return 0;
        t->text_begun = true;
    }
    if (t->resuming && part != OUTPUT_TOOL_CALL) return 0; /* the calls of an answer are parsed as a whole */
    struct buf *b = part == OUTPUT_TEXT ? &t->text : part == OUTPUT_THINKING ? &t->thinking : &t->tool;
    if (buf_add(b, data, n)) return ERR_MEMORY;
    if (t->resuming) return t->n_tool_shown = t->tool.len, 0;
    if (part == OUTPUT_TOOL_CALL && t->text_tools && t->text.len) TRY(show_text(t, false)); /* it was held back */
    return part == OUTPUT_TEXT ? show_text(t, false) : show_part(t, part, false);
}

static int feed_bytes(struct turn *t, const char *data, size_t n, bool special) {
    if (!n) return 0;
    enum output_kind part = OUTPUT_TEXT;
    const bool governed = t->constraint && !t->resuming && constraint_governs(t->constraint, t->n_tokens - 1, &part);
    if (t->parser && !governed) return output_parser_feed(t->parser, data, n, special, on_part, t);
    return special && part == OUTPUT_TEXT && !t->app->opts.v[OPT_SPECIAL].on ? 0 : on_part(t, part, data, n);
}

/* Passes control tokens to the parser separately, so that a literal <think> in the text is not taken for one. */
static int add_token(struct turn *t, int32_t id) {
    struct buf b = {0};
    bool special = false;
    size_t n = 0;
    const char *piece = tokenizer_token_bytes(t->app->tokenizer, id, &n, &special);
    int rc = 0;
    if (piece && special) {
        if (!(rc = decoder_flush(&t->decoder, &b)) && b.len) rc = feed_bytes(t, b.data, b.len, false);
        if (!rc) rc = feed_bytes(t, piece, n, true);
    } else if ((rc = decoder_add(&t->decoder, id, &b))) t->text_error = rc == ERR_MEMORY ? rc : ERR_MODEL;
    else if (b.len) rc = feed_bytes(t, b.data, b.len, false);
    if (rc == ERR_MEMORY) t->text_error = rc;
    buf_free(&b);
    return rc;
}

/* Counts a token that was added, and stores its log probabilities if it belongs to the answer's text. */
static int count_token(struct turn *t, int32_t id, size_t from, const struct token_logprobs *probs) {
    bool special = false;
    size_t n;
    t->n_thinking += t->part == OUTPUT_THINKING;
    if (!t->wants_logprobs || t->part != OUTPUT_TEXT || !tokenizer_token_bytes(t->app->tokenizer, id, &n, &special) ||
        special)
        return 0;
    if (mem_grow(&t->logprobs, &t->logprobs_cap, t->n_logprobs + 1, sizeof *t->logprobs))
        return t->text_error = ERR_MEMORY;
    t->logprobs[t->n_logprobs++] = (struct turn_logprob){id, from, *probs};
    return 0;
}

static bool is_eos(const struct turn *t, int32_t id) {
    const struct engine_info *i = t->app->info;
    for (int k = 0; k < i->n_eos; k++)
        if (i->eos[k] == id) return true;
    return false;
}

/* Replays the ids that an earlier turn generated, without output, to learn whether the model was thinking. */
static int replay_generated(struct turn *t, const struct prompt *p) {
    struct buf rest = {0};
    t->resuming = true;
    for (size_t i = p->n_given; i < p->ids.n && !t->text_error; i++) add_token(t, p->ids.data[i]);
    /* that turn ended with a flush, too, unless it was cut: then the rest of a character follows */
    int rc = t->text_error;
    if (!rc && !p->is_cut) rc = decoder_flush(&t->decoder, &rest);
    if (!rc && rest.len) rc = feed_bytes(t, rest.data, rest.len, false);
    if (!rc && t->parser) rc = output_parser_flush(t->parser, on_part, t);
    buf_free(&rest);
    t->resuming = false;
    return rc;
}

void turn_set_stops(struct turn *t, const char *const *stop, size_t n) {
    t->stop = stop;
    t->n_stop = n;
}

void turn_set_text_tools(struct turn *t, const struct json *tools) { t->text_tools = tools; }

/* Opens the filter of the answer's tokens. Tokens of an earlier turn count as its beginning. */
static int open_constraint(struct turn *t, const struct prompt *p, struct request *q, struct error *e) {
    int rc =
        constraint_open(&t->constraint, t->app, p->source, p->is_raw, p->tail.data ? p->tail.data : "", p->tail.len, e);
    for (size_t i = p->n_given - p->n_partial; i < p->ids.n && !rc; i++)
        rc = constraint_replay(t->constraint, p->ids.data[i], e);
    if (rc == ERR_RUNTIME)
        rc = error_set(e, ERR_USAGE,
                       "the answer so far does not match the required format, so it cannot be continued; ask anew");
    if (!rc) q->filter = constraint_filter(t->constraint);
    return rc;
}

/* Opens the filter that ends thinking. A limit of tokens may cut the answer before its end. */
static int open_think_limit(struct turn *t, const struct prompt *p, struct request *q, struct error *e) {
    TRY(think_limit_open(&t->think_limit, t->app, (int)t->app->opts.v[OPT_THINK_LIMIT].integer,
                         p->tail.data ? p->tail.data : "", p->tail.len, e));
    if (!t->think_limit) return 0;
    q->filter = think_limit_filter(t->think_limit);
    q->flags |= REQ_MAY_BE_INCOMPLETE;
    return 0;
}

bool turn_is_settled(const struct turn *t) {
    const bool shown =
        t->n_shown == t->text.len && t->n_thinking_shown == t->thinking.len && t->n_tool_shown == t->tool.len;
    return shown && !t->decoder.n_held && (!t->parser || output_parser_is_empty(t->parser));
}

int turn_start(struct turn *t, struct app *a, struct engine_client *s, const struct prompt *p, const struct request *r,
               turn_fn fn, void *ctx, struct error *e) {
    *t = (struct turn){.app = a,
                       .client = s,
                       .on_text = fn,
                       .ctx = ctx,
                       .decoder = {.t = a->tokenizer},
                       .prefill_left_s = -1,
                       .wants_logprobs = r->wants_logprobs};
    turn_set_stops(t, a->opts.v[OPT_UNTIL].items, a->opts.v[OPT_UNTIL].n_items);
    if (a->template && !p->is_raw &&
        !(t->parser = output_parser_open(a->template, p->tail.data ? p->tail.data : "", p->tail.len)))
        return error_set(e, ERR_MEMORY, "no memory");
    int rc = p->n_given < p->ids.n && a->backend->is_local ? replay_generated(t, p) : 0;
    struct request q = *r;
    if (rc) error_set(e, rc, "cannot continue the answer: no memory, or a token id without text");
    if (p->begun_call.len && buf_add(&t->tool, p->begun_call.data, p->begun_call.len))
        rc = error_set(e, ERR_MEMORY, "no memory");
    t->n_tool_shown = t->tool.len;
    if (!rc && p->source && a->backend->is_local) rc = open_constraint(t, p, &q, e);
    else if (!rc && a->opts.v[OPT_THINK_LIMIT].text && t->parser && a->backend->is_local)
        rc = open_think_limit(t, p, &q, e);
    if (!rc) rc = engine_client_submit(s, p, &q, e);
    if (rc) turn_free(t);
    else t->running = true;
    return rc;
}

static void finish_turn(struct turn *t) {
    struct buf b = {0};
    /* an answer that is cut within a character ends before it */
    if (t->reason != DONE_STOP && !t->failed) t->decoder.n_held = 0;
    int rc = t->text_error ? t->text_error : decoder_flush(&t->decoder, &b); /* nothing may follow a gap */
    if (!rc && b.len) rc = feed_bytes(t, b.data, b.len, false);
    if (!rc && t->parser) rc = output_parser_flush(t->parser, on_part, t);
    if (!rc) rc = show_part(t, OUTPUT_THINKING, true);
    if (!rc) rc = take_calls_of_text(t);
    if (!rc && t->text.data && !t->stop_hit) rc = show_text(t, true);
    if (!rc) rc = show_part(t, OUTPUT_TOOL_CALL, true);
    if (rc == ERR_MEMORY) t->text_error = rc;
    buf_free(&b);
    t->running = false;
}

/* Takes an id from an attached engine, which comes after the text of its token. */
static void add_id(struct turn *t, int32_t id) {
    t->lacks_ids = id < 0;
    if (t->lacks_ids) t->ids.n = 0;
    else if (mem_grow(&t->ids.data, &t->ids.cap, t->ids.n + 1, sizeof *t->ids.data)) t->text_error = ERR_MEMORY;
    else t->ids.data[t->ids.n++] = id;
    t->n_of_ids[OUTPUT_TEXT] = t->text.len, t->n_of_ids[OUTPUT_THINKING] = t->thinking.len,
    t->n_of_ids[OUTPUT_TOOL_CALL] = t->tool.len;
}

/* Drops what an attached engine has sent of a text whose ids did not come before the turn was stopped: it comes again
 * if the answer is continued. */
static void drop_unidentified(struct turn *t) {
    struct buf *const parts[] = {
        [OUTPUT_TEXT] = &t->text, [OUTPUT_THINKING] = &t->thinking, [OUTPUT_TOOL_CALL] = &t->tool};
    for (size_t i = 0; i < sizeof parts / sizeof *parts && t->ids.n && !t->app->backend->is_local; i++) {
        if (t->n_of_ids[i] >= parts[i]->len) continue;
        parts[i]->len = t->n_of_ids[i];
        parts[i]->data[parts[i]->len] = 0;
    }
}

/* Keeps what identifies the pinned experts, and notes once that a continued conversation had others. */
static void note_pinned(struct app *a, uint64_t pinned) {
    if (!pinned) return;
    a->pinned = pinned;
    if (a->saved_pinned && a->saved_pinned != pinned)
        report_note("the experts pinned to devices are not those of the saved conversation (%016llx, now %016llx): an "
                    "answer may differ from what it would have been",
                    (unsigned long long)a->saved_pinned, (unsigned long long)pinned);
    a->saved_pinned = 0;
}

void turn_event(struct turn *t, const struct engine_event *news) {
    const struct event *ev = &news->event;
    switch (ev->kind) {
    case EVENT_TOKEN:
        if (news->is_id) {
            add_id(t, ev->token);
            break;
        }
        t->last_token_at = clock_now();
        if (!t->n_tokens++) t->first_token_at = t->last_token_at;
        if (t->stop_hit || t->text_error) break;
        if (news->text) {
            int rc = on_part(t, news->part, news->text, news->n);
            if (rc == ERR_MEMORY) t->text_error = rc;
            if (rc) engine_client_cancel(t->client);
            break;
        }
        if (is_eos(t, ev->token)) break;
        if (mem_grow(&t->ids.data, &t->ids.cap, t->ids.n + 1, sizeof *t->ids.data)) t->text_error = ERR_MEMORY;
        else t->ids.data[t->ids.n++] = ev->token;
        const size_t from = t->text.len;
        if (t->text_error || add_token(t, ev->token) || count_token(t, ev->token, from, &ev->logprobs))
            engine_client_cancel(t->client);
        if (t->stop_hit) t->n_until_stop = t->n_tokens;
        break;
    case EVENT_PROGRESS:
        if (ev->in_images) break;
        t->prefill_done = ev->done;
        t->prefill_total = ev->total;
        t->prefill_left_s = ev->left_s;
        break;
    case EVENT_DONE:
    case EVENT_ERROR:
        t->stats = ev->stats;
        note_pinned(t->app, ev->stats.experts.pinned);
        /* without those that came before the engine was cancelled */
        if (t->n_until_stop) t->stats.answer_tokens = t->n_until_stop;
        t->reason = t->stop_hit ? DONE_STOP : ev->reason;
        t->failed = ev->kind == EVENT_ERROR;
        if (t->failed) t->error = ev->error;
        finish_turn(t);
        drop_unidentified(t);
        if (t->text_error && !t->failed) {
            t->failed = true;
            if (t->text_error == ERR_MEMORY) error_set(&t->error, ERR_MEMORY, "no memory for the answer's text");
            else
                error_set(&t->error, ERR_MODEL,
                          "the model generated a token id without text in its tokenizer; the answer ends there");
        }
        break;
    case EVENT_NONE: break;
    }
}
