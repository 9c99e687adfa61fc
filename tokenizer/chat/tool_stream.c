#include "tokenizer/chat/tool_stream.h"

#include <stdio.h>
#include <string.h>

#include "tokenizer/chat/dialects.h"
#include "tokenizer/chat/json_pieces.h"

/* Where the arguments of a call begin, the parsers say (tool_calls_parse()): the text so far is completed with
 * arguments that no model writes, and the brackets that are open are closed; if that is a call with these arguments,
 * they begin here. Arguments in tags are parsed again after each of them. */

#define XTML_END_CALL     "<|close|>call<|sep|>"
#define XTML_END_ARGUMENT "<|close|>argument<|sep|>"
enum { MAX_DEPTH = 32, MAX_TRIES = 8 /* braces of one call that may begin its arguments */ };
enum state {
    SEARCHING, /* for the arguments of a call */
    READING,   /* arguments in JSON */
    TAGGED,    /* arguments are in tags */
    LOST       /* nothing more is streamed: the calls are known when the answer has ended */
};
struct tool_stream {
    const struct json *tools;
    const struct dialect *dialect; /* TAGGED */
    struct buf markup;
    struct tool_calls calls;
    size_t n_complete;
    size_t ended; /* TAGGED: length of the markup at the last tag that may close an argument; 0: there is none */
    uint8_t state;
    struct json_pieces arguments; /* READING */
    bool in_string, escaped;      /* SEARCHING: the next byte is in a string, is escaped */
    char open[MAX_DEPTH];         /* brackets */
    int depth, tries;
};

struct tool_stream *tool_stream_open(const struct json *tools) {
    struct tool_stream *t = mem_calloc(1, sizeof *t);
    if (t) t->tools = tools;
    return t;
}

void tool_stream_close(struct tool_stream **at) {
    struct tool_stream *t = *at;
    *at = NULL;
    if (!t) return;
    buf_free(&t->markup);
    tool_calls_free(&t->calls);
    json_pieces_free(&t->arguments);
    mem_free(t);
}

const struct tool_calls *tool_stream_calls(const struct tool_stream *t, size_t *n_complete) {
    *n_complete = t->n_complete;
    return &t->calls;
}

static bool is_text(const struct buf *b, const char *text) {
    return b->len == strlen(text) && !memcmp(b->data, text, b->len);
}

/* Whether parsed calls are those that are known, and maybe more: complete ones are equal, arguments have only grown. */
static bool continues(const struct tool_stream *t, const struct tool_calls *parsed) {
    for (size_t i = 0; i < t->calls.n; i++) {
        if (i >= parsed->n) return false;
        const struct tool_call *a = &t->calls.v[i], *b = &parsed->v[i];
        const bool complete = i < t->n_complete;
        if (a->name.len != b->name.len || memcmp(a->name.data, b->name.data, a->name.len) != 0 ||
            a->arguments.len > b->arguments.len || (complete && a->arguments.len != b->arguments.len) ||
            (a->arguments.len && memcmp(a->arguments.data, b->arguments.data, a->arguments.len) != 0))
            return false;
    }
    return true;
}

bool tool_stream_agrees(const struct tool_stream *t, const struct tool_calls *whole) { return continues(t, whole); }

static void replace_calls(struct tool_stream *t, struct tool_calls *parsed) {
    tool_calls_free(&t->calls);
    t->calls = *parsed;
    *parsed = (struct tool_calls){0};
}

/* --- arguments in JSON ------------------------------------------------------------------------ */

/* Tries whether a brace after the markup so far begins the arguments of the next call. */
static int try_arguments(struct tool_stream *t) {
    static const char sample[] = "{\"k\":1}", written[] = "{\"k\": 1}"; /* by json_write() */
    struct tool_calls parsed = {0};
    struct buf whole = {0};
    buf_add(&whole, t->markup.data, t->markup.len);
    buf_str(&whole, sample);
    for (int i = t->depth; i-- > 0;) buf_char(&whole, t->open[i] == '{' ? '}' : ']');
    int rc = whole.failed ? ERR_MEMORY : tool_calls_parse(whole.data, whole.len, t->tools, &parsed);
    buf_free(&whole);
    const struct buf *last = !rc && parsed.n == t->n_complete + 1 ? &parsed.v[parsed.n - 1].arguments : NULL;
    const bool raw = last && is_text(last, sample);
    if (last && (raw || is_text(last, written)) && continues(t, &parsed)) {
        parsed.v[parsed.n - 1].arguments.len = 0;
        replace_calls(t, &parsed);
        json_pieces_free(&t->arguments);
        json_pieces_begin(&t->arguments, raw);
        t->state = READING;
    }
    tool_calls_free(&parsed);
    return rc == ERR_MEMORY ? rc : 0;
}

/* Takes text of arguments. */
static int read_arguments(struct tool_stream *t, const char *s, size_t n, size_t *used) {
    struct json_pieces *p = &t->arguments;
    struct buf *out = &t->calls.v[t->calls.n - 1].arguments;
    *used = json_pieces_add(p, s, n);
    if (p->has_failed) {
        t->state = LOST;
        return 0;
    }
    if (p->out.len && buf_add(out, p->out.data, p->out.len)) return ERR_MEMORY;
    p->out.len = 0;
    if (!p->is_done) return 0;
    t->state = SEARCHING;
    t->n_complete++;
    t->tries = 0;
    return 0;
}

/* --- arguments in tags ------------------------------------------------------------------------ */

static bool ends_with(const struct buf *b, const char *tag, size_t n) {
    return n && b->len >= n && !memcmp(b->data + b->len - n, tag, n);
}

/* Whether the markup ends with the first tag of a text. */
static bool ends_with_tag_of(const struct buf *markup, const char *text) {
    const char *tag = text ? strchr(text, '<') : NULL, *end = tag ? strchr(tag, '>') : NULL;
    return end && ends_with(markup, tag, (size_t)(end + 1 - tag));
}
/* The same for a closing tag, whose name follows a prefix, which may be NULL. */
static bool ends_with_close_of(const struct buf *markup, const char *prefix, const char *name) {
    char tag[80];
    const int n = snprintf(tag, sizeof tag, "</%s%s>", prefix ? prefix : "", name);
    return n < (int)sizeof tag && ends_with(markup, tag, (size_t)n);
}

/* Whether the markup ends with the tag that closes a call; an argument. */
static bool ends_call(const struct buf *b, const struct dialect *d) {
    if (d->parse == tool_calls_parse_xtml) return ends_with(b, XTML_END_CALL, sizeof XTML_END_CALL - 1);
    if (d->parse == tool_calls_parse_minimax_m3 || d->parse == tool_calls_parse_invokes)
        return ends_with_close_of(b, d->parse == tool_calls_parse_invokes ? d->prefix : NULL, "invoke");
    return d->call.close ? ends_with(b, d->call.close, strlen(d->call.close))
                         : ends_with_tag_of(b, d->format[FORMAT_AFTER_ARGUMENTS]);
}
static bool ends_argument(const struct buf *b, const struct dialect *d) {
    if (d->parse == tool_calls_parse_xtml) return ends_with(b, XTML_END_ARGUMENT, sizeof XTML_END_ARGUMENT - 1);
    return ends_with_tag_of(b, d->format[FORMAT_AFTER_VALUE]) ||
           (d->parse == tool_calls_parse_invokes && ends_with_close_of(b, d->prefix, "parameter")) ||
           (d->parse == tool_calls_parse_tagged &&
            (ends_with_close_of(b, NULL, "parameter") || ends_with_close_of(b, LONGCAT, "arg_value")));
}

/* Whether one whole tag, and nothing else, follows the tag that may close an argument. Then that tag closes it. */
static bool is_followed_by_tag(const struct tool_stream *t) {
    struct markup_range after = {t->markup.data + t->ended, t->markup.data + t->markup.len};
    markup_skip_blanks(&after);
    return after.s < after.end && *after.s == '<' &&
           memchr(after.s, '>', (size_t)(after.end - after.s)) == after.end - 1;
}

/* Parses the first n bytes of the markup. is_whole: they end with a call, else with an argument. */
static int parse_tags(struct tool_stream *t, const struct dialect *d, size_t n, bool is_whole) {
    struct tool_calls parsed = {0};
    int rc = (is_whole ? tool_calls_parse : tool_calls_parse_begun)(t->markup.data, n, t->tools, &parsed);
    const bool is_call = !rc && parsed.n > t->n_complete;
    if (is_call && !is_whole) {
        struct buf *last = &parsed.v[parsed.n - 1].arguments;
        if (ends_with(last, "}", 1)) last->len--; /* more may follow */
    }
    if (is_call && continues(t, &parsed)) {
        t->n_complete = parsed.n - !is_whole;
        replace_calls(t, &parsed);
        t->state = TAGGED;
        t->dialect = d;
    } else if (is_call) t->state = LOST;
    tool_calls_free(&parsed);
    return rc == ERR_MEMORY ? rc : 0;
}

/* The markup ends with '>': if that ends a call, or shows that an argument has ended, parses it. */
static int take_tag(struct tool_stream *t) {
    const struct markup_range markup = {t->markup.data, t->markup.data + t->markup.len};
    const struct dialect *d = t->state == TAGGED ? t->dialect : dialects_first(markup);
    const size_t ended = t->ended;
    if (!d) return 0;
    if (ends_call(&t->markup, d)) return t->ended = 0, parse_tags(t, d, t->markup.len, true);
    const bool is_next = ended && is_followed_by_tag(t);
    t->ended = ends_argument(&t->markup, d) ? t->markup.len : 0;
    /* tags of MiniMax-M3 and Kimi K3 have control tokens in them, which a value cannot contain */
    const bool is_sure = d->parse == tool_calls_parse_minimax_m3 || d->parse == tool_calls_parse_xtml;
    if (is_sure && t->ended) return parse_tags(t, d, t->ended, false);
    return is_next ? parse_tags(t, d, ended, false) : 0;
}

/* --- the markup ------------------------------------------------------------------------------- */

/* Follows brackets and strings, to know which are open where arguments begin. */
static void follow(struct tool_stream *t, char c) {
    if (t->in_string) {
        if (t->escaped) t->escaped = false;
        else if (c == '\\') t->escaped = true;
        else t->in_string = c != '"';
        return;
    }
    t->in_string = c == '"';
    if (c == '{' || c == '[') {
        if (t->depth == MAX_DEPTH) t->tries = MAX_TRIES;
        else t->open[t->depth++] = c;
    } else if ((c == '}' || c == ']') && t->depth) t->depth--;
}

int tool_stream_add(struct tool_stream *t, const char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        size_t used = 1;
        if (t->state == SEARCHING && s[i] == '{' && !t->in_string && t->tries < MAX_TRIES) {
            t->tries++;
            TRY(try_arguments(t));
        }
        if (t->state == READING) TRY(read_arguments(t, s + i, n - i, &used));
        else if (t->state == SEARCHING) follow(t, s[i]);
        if (!used && t->state == READING) t->state = LOST; /* no progress */
        if (!used) continue;
        if (buf_add(&t->markup, s + i, used)) return ERR_MEMORY;
        if (s[i + used - 1] == '>' && (t->state == SEARCHING || t->state == TAGGED)) TRY(take_tag(t));
        i += used;
    }
    return 0;
}
