#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "tokenizer/chat/chat_template.h"

/* Splits the stream of model output into text, thinking and tool calls by the markers that occur in the model's
 * template. Bytes that may start a marker are held back; all others pass at once. Markers of thinking and of answers
 * are dropped; tool-call markup is passed on to its parser. */

enum { HELD_MAX = 64, HEADER_MAX = 512 };
struct output_parser {
    struct dialect_set set;
    bool marks_answer;           /* an answer begins with a marker */
    bool in_header, has_message; /* with headers: in one, in a message */
    uint8_t kind;
    const struct dialect *open; /* whose marks surround what comes; NULL: none */
    bool begins_line;           /* the bytes before `held` end a line or a marker */
    bool skip_newlines;
    char held[HELD_MAX];
    bool held_special[HELD_MAX];
    size_t n_held;
    char header_text[HEADER_MAX];
    size_t n_header_text;
};

static bool contains(const char *s, size_t n, const char *what) { return memmem(s, n, what, strlen(what)) != NULL; }
static const char *find_last(const char *s, size_t n, const char *what) {
    size_t w = strlen(what);
    for (size_t i = n + 1; w <= n && i-- > w;)
        if (!memcmp(s + i - w, what, w)) return s + i - w;
    return NULL;
}

/* Whether a header (without its markers) begins a call, or else thinking. */
static enum output_kind header_kind(const struct header_mark *end, const char *s, size_t n) {
    if (end->kind <= OUTPUT_TOOL_CALL) return (enum output_kind)end->kind;
    const char *to = find_last(s, n, "to="), *channel = find_last(s, n, HEADER_CHANNEL_MARK);
    if (end->kind == KIND_OF_CHANNEL)
        return to                                                                    ? OUTPUT_TOOL_CALL
               : channel && contains(channel, (size_t)(s + n - channel), "analysis") ? OUTPUT_THINKING
                                                                                     : OUTPUT_TEXT;
    const size_t rest = to ? (size_t)(s + n - to) : 0;
    if (!to || contains(to, rest, "to=user") || contains(to, rest, "to=commentary")) return OUTPUT_TEXT;
    return contains(to, rest, "to=self") ? OUTPUT_THINKING : OUTPUT_TOOL_CALL;
}

/* Sets the state after the end of the prompt. */
static void open_header(struct output_parser *p, const char *tail, size_t n) {
    const struct header_mark *end = NULL;
    const char *start = NULL, *message = NULL;
    for (const struct header_mark *k = p->set.headers; k->text; k++) {
        const char *last = find_last(tail, n, k->text);
        if (k->role == HEADER_START) start = last;
        if (k->role == HEADER_END && last && last > (message ? message : last - 1)) message = last, end = k;
    }
    p->in_header = start && (!message || message < start);
    if (p->in_header || !message) return;
    const char *from = start && start < message ? start : tail;
    if (header_kind(end, from, (size_t)(message - from)) == OUTPUT_THINKING) p->kind = OUTPUT_THINKING;
    p->has_message = true;
}

/* Whether a prompt ends with a mark and white space. */
static bool ends_with(const char *tail, size_t n, const char *mark) {
    const size_t m = strlen(mark);
    while (n && strchr(" \t\r\n", tail[n - 1]) && tail[n - 1]) n--;
    return n >= m && !memcmp(tail + n - m, mark, m);
}

struct output_parser *output_parser_open(const struct chat_template *c, const char *tail, size_t n) {
    struct output_parser *p = mem_calloc(1, sizeof *p);
    if (!p) return NULL;
    p->set = *chat_template_dialects(c);
    p->begins_line = true;
    if (p->set.headers) open_header(p, tail, n);
    for (const struct dialect *const *d = p->set.active; *d; d++) {
        p->marks_answer |= (*d)->is_needed;
        if (((*d)->kind != OUTPUT_THINKING && !(*d)->is_needed) || !ends_with(tail, n, (*d)->open)) continue;
        p->open = *d; /* by the prompt */
        p->kind = (*d)->kind;
        p->skip_newlines = (*d)->kind == OUTPUT_THINKING;
    }
    return p;
}
void output_parser_close(struct output_parser **p) {
    mem_free(*p);
    *p = NULL;
}

/* --- output: other control tokens are dropped, except inside tool markup ---------------------- */
static int emit_text(struct output_parser *p, const char *s, const bool *special, size_t n, output_parser_fn fn,
                     void *ctx) {
    for (size_t i = 0, run; i < n; i = run) {
        for (run = i + 1; run < n && special[run] == special[i]; run++) {
        }
        if (special[i] && p->kind != OUTPUT_TOOL_CALL) continue;
        const char *t = s + i;
        size_t k = run - i;
        while (p->skip_newlines && k && (*t == '\n' || *t == '\r')) t++, k--;
        if (!k) continue;
        p->skip_newlines = false;
        int rc = fn(ctx, (enum output_kind)p->kind, t, k);
        if (rc) return rc;
    }
    return 0;
}
static int emit_marker(const char *s, output_parser_fn fn, void *ctx) {
    return fn(ctx, OUTPUT_TOOL_CALL, s, strlen(s));
}

/* ---- markers ----
 * Sets *text to marker k, or NULL if it cannot occur in this state. Returns false past the last marker. A call also
 * ends thinking that the model has not closed; may_interrupt: the position is one where it may. */
static bool possible_marker(const struct output_parser *p, int k, bool may_interrupt, const char **text) {
    *text = NULL;
    if (p->set.headers) return (*text = p->set.headers[k].text) != NULL;
    const struct dialect *d = p->set.active[k / 2];
    if (!d) return false;
    const bool closing = k & 1;
    if (!p->open) *text = !closing ? d->open : d->kind != OUTPUT_TOOL_CALL ? d->close : NULL;
    else if (p->open == d && closing) *text = d->close;
    else if (may_interrupt && p->open->kind == OUTPUT_THINKING && d->kind == OUTPUT_TOOL_CALL && !closing)
        *text = d->open;
    return true;
}

static int finish_header(struct output_parser *p, const struct header_mark *mark, output_parser_fn fn, void *ctx) {
    p->kind = (uint8_t)header_kind(mark, p->header_text, p->n_header_text);
    p->in_header = false;
    p->has_message = true;
    /* Muse's calls have tags of their own */
    if (p->kind != OUTPUT_TOOL_CALL || mark->kind == KIND_OF_RECIPIENT) return 0;
    /* the header names the called function */
    int rc = mark->kind == KIND_OF_CHANNEL ? fn(ctx, OUTPUT_TOOL_CALL, p->header_text, p->n_header_text) : 0;
    return rc ? rc : emit_marker(mark->text, fn, ctx);
}
static void append_header(struct output_parser *p, const char *s, size_t n) {
    if (n > HEADER_MAX - p->n_header_text) n = HEADER_MAX - p->n_header_text;
    memcpy(p->header_text + p->n_header_text, s, n);
    p->n_header_text += n;
}
static int handle_header_mark(struct output_parser *p, const struct header_mark *mark, output_parser_fn fn, void *ctx) {
    if (mark->role == HEADER_END) return finish_header(p, mark, fn, ctx);
    if (mark->role == HEADER_START || (mark->role == HEADER_CHANNEL && !p->in_header))
        p->in_header = true, p->n_header_text = 0;
    if (p->in_header) {
        if (mark->role != HEADER_START) append_header(p, mark->text, strlen(mark->text));
        return 0;
    }
    const bool was_call = p->kind == OUTPUT_TOOL_CALL;
    p->kind = OUTPUT_TEXT;
    p->has_message = false;
    return was_call && mark->role == CALL_END ? emit_marker(mark->text, fn, ctx) : 0;
}
static int handle_marker(struct output_parser *p, int k, const char *text, output_parser_fn fn, void *ctx) {
    if (p->set.headers) return handle_header_mark(p, &p->set.headers[k], fn, ctx);
    const struct dialect *d = p->set.active[k / 2];
    const bool closing = k & 1;
    int rc = d->kind == OUTPUT_TOOL_CALL ? emit_marker(text, fn, ctx) : 0;
    p->open = closing ? NULL : d;
    p->kind = closing ? OUTPUT_TEXT : d->kind;
    p->skip_newlines = d->kind != OUTPUT_TOOL_CALL;
    return rc;
}

/* Classifies held[i..): 1: it begins with a marker (*which, *text); 0: it may become one, or a longer one than *text
 * (NULL: none yet); -1: no marker. */
static int match_marker(const struct output_parser *p, size_t i, int *which, const char **text) {
    size_t n = p->n_held - i;
    bool is_undecided = false;
    /* thinking may quote a marker elsewhere */
    const bool may_interrupt = p->held_special[i] || (i ? p->held[i - 1] == '\n' : p->begins_line);
    const char *t;
    *text = NULL;
    for (int k = 0; possible_marker(p, k, may_interrupt, &t); k++) {
        size_t m = t ? strlen(t) : 0;
        if (!t || memcmp(p->held + i, t, m < n ? m : n) != 0) continue;
        if (m > n) is_undecided = true;
        else if (!*text || m > strlen(*text)) *which = k, *text = t;
    }
    return is_undecided ? 0 : *text ? 1 : -1;
}
static int emit_held(struct output_parser *p, size_t from, size_t to, output_parser_fn fn, void *ctx) {
    if (to == from) return 0;
    if (!p->in_header) return emit_text(p, p->held + from, p->held_special + from, to - from, fn, ctx);
    append_header(p, p->held + from, to - from);
    return 0;
}
static int process_held(struct output_parser *p, bool last, output_parser_fn fn, void *ctx) {
    size_t from = 0, i = 0;
    int rc = 0, which = 0;
    const char *text;
    while (i < p->n_held && !rc) {
        int k = match_marker(p, i, &which, &text);
        if (k == 0 && !last) break;
        if (k <= 0 && !text) {
            i++;
            continue;
        }
        rc = emit_held(p, from, i, fn, ctx);
        if (!rc) rc = handle_marker(p, which, text, fn, ctx);
        from = i += strlen(text);
        p->begins_line = true;
    }
    if (!rc) rc = emit_held(p, from, i, fn, ctx);
    if (i > from) p->begins_line = p->held[i - 1] == '\n';
    memmove(p->held, p->held + i, p->n_held - i);
    memmove(p->held_special, p->held_special + i, (p->n_held - i) * sizeof *p->held_special);
    p->n_held -= i;
    return rc;
}

int output_parser_feed(struct output_parser *p, const char *data, size_t n, bool is_special, output_parser_fn fn,
                       void *ctx) {
    int rc = 0;
    while (n && !rc) {
        size_t k = HELD_MAX - p->n_held < n ? HELD_MAX - p->n_held : n;
        /* a long token: do not part a character */
        while (k > 3 && k < n && ((unsigned char)data[k] & 0xC0) == 0x80) k--;
        memcpy(p->held + p->n_held, data, k);
        memset(p->held_special + p->n_held, is_special, k * sizeof *p->held_special);
        p->n_held += k;
        data += k;
        n -= k;
        rc = process_held(p, false, fn, ctx);
    }
    return rc;
}
bool output_parser_in_answer(const struct output_parser *p) {
    if (p->kind != OUTPUT_TEXT || p->in_header) return false;
    if (p->set.headers) return p->has_message;
    return p->open ? p->open->is_needed || (!p->marks_answer && p->open->kind == OUTPUT_TEXT) : !p->marks_answer;
}

bool output_parser_in_header(const struct output_parser *p) { return p->in_header; }

bool output_parser_is_empty(const struct output_parser *p) { return !p->n_held && !(p->in_header && p->n_header_text); }

int output_parser_flush(struct output_parser *p, output_parser_fn fn, void *ctx) {
    int rc = process_held(p, true, fn, ctx);
    if (!rc && p->in_header && p->n_header_text) { /* the answer ended inside a header: show it rather than lose it */
        p->in_header = false;
        p->kind = OUTPUT_TEXT;
        rc = fn(ctx, OUTPUT_TEXT, p->header_text, p->n_header_text);
        p->n_header_text = 0;
    }
    return rc;
}
