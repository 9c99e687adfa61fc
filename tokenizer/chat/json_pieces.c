#include "tokenizer/chat/json_pieces.h"

#include <string.h>

#include "base/json.h"

enum state { VALUE, FIRST_KEY, KEY, COLON, FIRST_ITEM, AFTER, IN_STRING, ESCAPE, SCALAR };
enum { MAX_SCALAR = 4096 };

void json_pieces_begin(struct json_pieces *p, bool raw) { *p = (struct json_pieces){.raw = raw, .state = VALUE}; }

void json_pieces_free(struct json_pieces *p) {
    buf_free(&p->out);
    buf_free(&p->held);
}

static void fail(struct json_pieces *p) { p->has_failed = true; }

/* Puts what normalised text has at this place, unless the text is raw. */
static void put(struct json_pieces *p, const char *text) {
    if (!p->raw) buf_str(&p->out, text);
}

/* Puts characters of a string. */
static void put_characters(struct json_pieces *p, const char *s, size_t n) {
    struct buf quoted = {0};
    if (p->raw) {
        buf_add(&p->out, s, n);
        return;
    }
    if (json_quote(&quoted, s, n)) fail(p);
    else buf_add(&p->out, quoted.data + 1, quoted.len - 2);
    buf_free(&quoted);
}

/* Puts a number, a word, or a string that is an escape: as it is, or as json_write() writes it. */
static void put_held(struct json_pieces *p, bool is_string) {
    struct arena arena = {0};
    struct json j;
    if (json_parse(&arena, p->held.data, p->held.len, 0, "value", &j, NULL) || (j.type == JSON_STRING) != is_string)
        fail(p);
    else if (p->raw) buf_add(&p->out, p->held.data + is_string, p->held.len - 2u * is_string);
    else if (is_string) put_characters(p, j.string, j.n);
    else json_write(&p->out, &j);
    arena_free(&arena);
    p->held.len = 0;
}

static void end_value(struct json_pieces *p) {
    p->state = AFTER;
    p->is_done = !p->depth;
}

static void open_bracket(struct json_pieces *p, char c) {
    if (p->depth == JSON_PIECES_DEPTH) {
        fail(p);
        return;
    }
    p->open[p->depth++] = c;
    put(p, c == '{' ? "{" : "[");
    p->state = c == '{' ? FIRST_KEY : FIRST_ITEM;
}

static void close_bracket(struct json_pieces *p, char c) {
    if (!p->depth || p->open[p->depth - 1] != (c == '}' ? '{' : '[')) {
        fail(p);
        return;
    }
    p->depth--;
    put(p, c == '}' ? "}" : "]");
    end_value(p);
}

static void begin_string(struct json_pieces *p, bool is_key) {
    p->is_key = is_key;
    p->state = IN_STRING;
    put(p, "\"");
}

static void begin_value(struct json_pieces *p, char c) {
    if (c == '"') begin_string(p, false);
    else if (c == '{' || (c == '[' && p->depth)) open_bracket(p, c);
    else if (!p->depth) fail(p);
    else {
        p->state = SCALAR;
        buf_char(&p->held, c);
    }
}

/* Takes a character outside of strings, numbers and words. */
static void take_mark(struct json_pieces *p, char c) {
    const bool in_object = p->depth && p->open[p->depth - 1] == '{';
    switch ((enum state)p->state) {
    case FIRST_KEY:
    case KEY:
        if (c == '"') begin_string(p, true);
        else if (c == '}' && p->state == FIRST_KEY) close_bracket(p, c);
        else fail(p);
        break;
    case COLON:
        if (c != ':') fail(p);
        put(p, ": ");
        p->state = VALUE;
        break;
    case AFTER:
        if (c == '}' || c == ']') close_bracket(p, c);
        else if (c != ',') fail(p);
        else {
            put(p, ", ");
            p->state = in_object ? KEY : VALUE;
        }
        break;
    case FIRST_ITEM:
        if (c == ']') close_bracket(p, c);
        else begin_value(p, c);
        break;
    default: begin_value(p, c);
    }
}

/* Whether an escape is the first half of a pair. */
static bool is_half(const char *s) { return s[1] == 'u' && (s[2] | 32) == 'd' && s[3] && strchr("89abAB", s[3]); }

/* Puts the first n characters of what is held after its quote. */
static void end_escape(struct json_pieces *p, size_t n) {
    char rest[8];
    const size_t n_rest = p->held.len - 1 - n;
    memcpy(rest, p->held.data + 1 + n, n_rest);
    p->held.len = 1 + n;
    buf_char(&p->held, '"');
    put_held(p, true);
    if (!n_rest) p->state = IN_STRING;
    else buf_char(&p->held, '"'), buf_add(&p->held, rest, n_rest);
}

/* Takes a byte of an escape. Half of a pair waits for what follows. Returns whether the byte belongs to the escape. */
static bool take_escape(struct json_pieces *p, char c) {
    if (!p->held.len) buf_str(&p->held, "\"\\");
    if (p->held.len == 7 && c != '\\') { /* half of a pair alone */
        end_escape(p, 6);
        return false;
    }
    if (buf_char(&p->held, c)) return true;
    const size_t n = p->held.len - 1;
    const char *s = p->held.data + 1;
    if (n == 8 && c != 'u') end_escape(p, 6), end_escape(p, 2); /* half of a pair, and another escape */
    else if (n == 12 && is_half(s + 6)) end_escape(p, 6);       /* two first halves */
    else if (n == 12 || (n == 6 && !is_half(s)) || (n == 2 && c != 'u')) end_escape(p, n);
    return true;
}

static void end_string(struct json_pieces *p) {
    put(p, "\"");
    if (p->is_key) p->state = COLON;
    else end_value(p);
}

static bool ends_scalar(char c) { return c && strchr(" \t\r\n,]}", c); }

size_t json_pieces_add(struct json_pieces *p, const char *s, size_t n) {
    size_t i = 0;
    while (i < n && !p->is_done && !p->has_failed) {
        const char c = s[i];
        const size_t from = i;
        if (p->state == IN_STRING) {
            while (i < n && s[i] != '"' && s[i] != '\\' && (unsigned char)s[i] >= ' ') i++;
            if (i > from) put_characters(p, s + from, i - from);
            if (i == n) break;
            if (s[i] == '\\') p->state = ESCAPE;
            else if (s[i] == '"') end_string(p);
            else fail(p); /* a control character */
            if (p->raw && s[i] == '"') buf_char(&p->out, '"');
            i++;
        } else if (p->state == ESCAPE) i += take_escape(p, c);
        else if (p->state == SCALAR && ends_scalar(c)) {
            put_held(p, false);
            end_value(p);
        } else if (p->state == SCALAR) {
            if (buf_char(&p->held, c) || p->held.len > MAX_SCALAR) fail(p);
            i++;
        } else {
            if (!c || !strchr(" \t\r\n", c)) take_mark(p, c);
            if (p->raw && p->state != SCALAR) buf_char(&p->out, c);
            i++;
        }
        p->has_failed |= p->out.failed || p->held.failed;
    }
    return i;
}
