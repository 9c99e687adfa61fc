#include "base/json.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"
#include "base/utf8.h"

enum { MAX_DEPTH = 128 };

struct parser {
    struct arena *arena;
    const char *text, *at, *end;
    const char *what;
    struct error *e;
    struct json *stack; /* values of the open containers */
    size_t top, cap;
    int flags, depth;
};

static int fail(struct parser *p, const char *why) {
    size_t line = 1, col = 1;
    for (const char *s = p->text; s < p->at && s < p->end; s++) {
        col++;
        if (*s == '\n') line++, col = 1;
    }
    return error_set(p->e, ERR_MODEL, "%s: line %zu, column %zu: %s", p->what, line, col, why);
}
static int no_memory(struct parser *p) { return error_set(p->e, ERR_MEMORY, "%s: no memory for its JSON", p->what); }

static int push(struct parser *p, struct json v) {
    if (p->top == p->cap && mem_grow(&p->stack, &p->cap, p->top + 1, sizeof *p->stack)) return no_memory(p);
    p->stack[p->top++] = v;
    return 0;
}

static void skip_space(struct parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\n' || *p->at == '\r' || *p->at == '\t')) p->at++;
}

static int hex4(const char *s) {
    int v = 0;
    for (int i = 0; i < 4; i++) {
        int c = s[i], d = c >= '0' && c <= '9'                 ? c - '0'
                          : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                               : -1;
        if (d < 0) return -1;
        v = v << 4 | d;
    }
    return v;
}

/* Skips 8 bytes at a time while none of them ends the run: a quote, a backslash, a control byte or a non-ASCII byte. */
static const char *plain_run(const char *s, const char *end) {
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    while (end - s >= 8) {
        uint64_t w;
        memcpy(&w, s, 8);
        uint64_t q = w ^ ones * '"', b = w ^ ones * '\\';
        if ((((q - ones) & ~q) | ((b - ones) & ~b) | ((w - ones * 0x20) & ~w) | w) & high) break;
        s += 8;
    }
    return s;
}

static int parse_string(struct parser *p, struct json *out) {
    const char *begin = ++p->at;
    bool escaped = false;
    for (;;) {
        p->at = plain_run(p->at, p->end);
        if (p->at >= p->end) return fail(p, "string without end");
        unsigned char c = (unsigned char)*p->at;
        if (c == '"') break;
        if (c < 0x20) return fail(p, "control byte in a string");
        if (c == '\\') {
            escaped = true;
            if (p->end - p->at < 2) return fail(p, "string without end");
            p->at += 2;
        } else {
            size_t n = utf8_whole(p->at, (size_t)(p->end - p->at));
            if (!n) return fail(p, "not UTF-8");
            p->at += n;
        }
    }
    size_t n = (size_t)(p->at - begin);
    if (n > UINT32_MAX) return fail(p, "string too long");
    *out = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = begin};
    const char *end = p->at++;
    if (!escaped) return 0;
    char *o = arena_alloc(p->arena, n + 1);
    if (!o) return no_memory(p);
    out->string = o;
    for (const char *s = begin; s < end;) {
        if (*s != '\\') {
            *o++ = *s++;
            continue;
        }
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char *k = s[1] ? strchr(from, s[1]) : NULL;
        if (k) {
            *o++ = to[k - from];
            s += 2;
            continue;
        }
        int c = s[1] == 'u' && end - s >= 6 ? hex4(s + 2) : -1;
        p->at = s;
        if (c < 0) return fail(p, "bad escape in a string");
        s += 6;
        if (c >= 0xD800 && c < 0xE000) {
            int d = c < 0xDC00 && end - s >= 6 && s[0] == '\\' && s[1] == 'u' ? hex4(s + 2) : -1;
            if (d >= 0xDC00 && d < 0xE000) {
                c = 0x10000 + ((c - 0xD800) << 10) + (d - 0xDC00);
                s += 6;
            } else c = 0xFFFD;
        }
        o += utf8_put((uint32_t)c, o);
    }
    out->n = (uint32_t)(o - out->string);
    p->at = end + 1;
    return 0;
}

static int parse_number(struct parser *p, struct json *out) {
    const char *begin = p->at;
    bool whole = true;
    if (p->at < p->end && *p->at == '-') p->at++;
    const char *digits = p->at;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
    if (p->at == digits || (*digits == '0' && p->at - digits > 1)) return fail(p, "bad number");
    if (p->at < p->end && *p->at == '.') {
        whole = false;
        const char *d = ++p->at;
        while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
        if (p->at == d) return fail(p, "bad number");
    }
    if (p->at < p->end && (*p->at == 'e' || *p->at == 'E')) {
        whole = false;
        p->at++;
        if (p->at < p->end && (*p->at == '+' || *p->at == '-')) p->at++;
        const char *d = p->at;
        while (p->at < p->end && *p->at >= '0' && *p->at <= '9') p->at++;
        if (p->at == d) return fail(p, "bad number");
    }
    size_t n = (size_t)(p->at - begin);
    if (whole && n <= 18) {
        int64_t v = 0;
        for (const char *s = digits; s < p->at; s++) v = v * 10 + (*s - '0');
        *out = (struct json){.type = JSON_INT, .integer = *begin == '-' ? -v : v};
        return 0;
    }
    char small[64], *text = small;
    if (n >= sizeof small && !(text = arena_alloc(p->arena, n + 1))) return no_memory(p);
    memcpy(text, begin, n);
    text[n] = 0;
    if (whole) {
        errno = 0;
        long long v = strtoll(text, NULL, 10);
        if (errno != ERANGE) {
            *out = (struct json){.type = JSON_INT, .integer = v};
            return 0;
        }
        if (n > UINT32_MAX) return fail(p, "number too long");
        if (!(text = arena_strndup(p->arena, begin, n))) return no_memory(p);
        *out = (struct json){.type = JSON_FLOAT, .n = (uint32_t)n, .string = text};
        return 0;
    }
    *out = (struct json){.type = JSON_FLOAT, .number = strtod(text, NULL)};
    return 0;
}

static int key_order(const void *a, const void *b) {
    const struct json *x = *(const struct json *const *)a, *y = *(const struct json *const *)b;
    uint32_t n = x->n < y->n ? x->n : y->n;
    int c = n ? memcmp(x->string, y->string, n) : 0;
    return c ? c : (x->n > y->n) - (x->n < y->n);
}

static int check_unique(struct parser *p, const struct json *members, uint32_t n) {
    if (n < 2) return 0;
    if (n <= 12) { /* the usual small object: compare all pairs */
        for (uint32_t i = 1; i < n; i++)
            for (uint32_t j = 0; j < i; j++)
                if (members[2 * i].n == members[2 * j].n &&
                    !memcmp(members[2 * i].string, members[2 * j].string, members[2 * i].n))
                    goto twice;
        return 0;
    }
    const struct json **keys = mem_alloc(n * sizeof *keys);
    if (!keys) return no_memory(p);
    for (uint32_t i = 0; i < n; i++) keys[i] = &members[2 * i];
    qsort(keys, n, sizeof *keys, key_order);
    bool same = false;
    for (uint32_t i = 1; i < n && !same; i++) same = !key_order(&keys[i - 1], &keys[i]);
    mem_free(keys);
    if (!same) return 0;
twice:
    return fail(p, "a key stands twice in one object");
}

static int parse_value(struct parser *p, struct json *out);

static int parse_container(struct parser *p, struct json *out, bool object) {
    if (++p->depth > MAX_DEPTH) return fail(p, "nested too deeply");
    size_t base = p->top;
    char close = object ? '}' : ']';
    p->at++;
    skip_space(p);
    if (p->at < p->end && *p->at == close) p->at++;
    else
        for (;;) {
            struct json v;
            int rc;
            skip_space(p);
            if (object) {
                if (p->at >= p->end || *p->at != '"') return fail(p, "a key in quotes is missing");
                if ((rc = parse_string(p, &v)) || (rc = push(p, v))) return rc;
                skip_space(p);
                if (p->at >= p->end || *p->at != ':') return fail(p, "':' is missing");
                p->at++;
            }
            if ((rc = parse_value(p, &v)) || (rc = push(p, v))) return rc;
            skip_space(p);
            if (p->at >= p->end) return fail(p, object ? "object without end" : "array without end");
            char c = *p->at;
            if (c != ',' && c != close) return fail(p, object ? "',' or '}' is missing" : "',' or ']' is missing");
            p->at++;
            if (c == close) break;
        }
    size_t n = p->top - base;
    struct json *items = NULL;
    if (n > UINT32_MAX) return fail(p, "too many values"); /* callers compute 2 * i in 32 bits */
    if (n) {
        if (!(items = arena_alloc(p->arena, n * sizeof *items))) return no_memory(p);
        memcpy(items, p->stack + base, n * sizeof *items);
    }
    p->top = base;
    p->depth--;
    *out =
        (struct json){.type = object ? JSON_OBJECT : JSON_ARRAY, .n = (uint32_t)(object ? n / 2 : n), .items = items};
    return object && p->flags & JSON_UNIQUE ? check_unique(p, items, out->n) : 0;
}

/* A number of Python's that JSON lacks. */
static bool parse_python(struct parser *p, struct json *out) {
    static const struct {
        const char *text;
        double number;
    } numbers[] = {{"Infinity", INFINITY}, {"-Infinity", -INFINITY}, {"NaN", NAN}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const size_t n = strlen(numbers[i].text);
        if ((size_t)(p->end - p->at) < n || memcmp(p->at, numbers[i].text, n)) continue;
        p->at += n;
        *out = (struct json){.type = JSON_FLOAT, .number = numbers[i].number};
        return true;
    }
    return false;
}

static int parse_value(struct parser *p, struct json *out) {
    skip_space(p);
    if (p->at >= p->end) return fail(p, "a value is missing");
    size_t left = (size_t)(p->end - p->at);
    if (p->flags & JSON_PYTHON && parse_python(p, out)) return 0;
    switch (*p->at) {
    case '{': return parse_container(p, out, true);
    case '[': return parse_container(p, out, false);
    case '"': return parse_string(p, out);
    case 't':
        if (left < 4 || memcmp(p->at, "true", 4)) break;
        p->at += 4;
        *out = (struct json){.type = JSON_BOOL, .boolean = true};
        return 0;
    case 'f':
        if (left < 5 || memcmp(p->at, "false", 5)) break;
        p->at += 5;
        *out = (struct json){.type = JSON_BOOL};
        return 0;
    case 'n':
        if (left < 4 || memcmp(p->at, "null", 4)) break;
        p->at += 4;
        *out = (struct json){.type = JSON_NULL};
        return 0;
    default:
        if (*p->at == '-' || (*p->at >= '0' && *p->at <= '9')) return parse_number(p, out);
    }
    return fail(p, "not a JSON value");
}

int json_parse(struct arena *a, const char *text, size_t n, int flags, const char *what, struct json *root,
               struct error *e) {
    struct parser p = {.arena = a, .text = text, .at = text, .end = text + n, .what = what, .e = e, .flags = flags};
    *root = (struct json){0};
    if (n >= 3 && !memcmp(text, "\xEF\xBB\xBF", 3)) p.at += 3; /* a byte order mark */
    int rc = parse_value(&p, root);
    if (!rc) {
        skip_space(&p);
        if (p.at < p.end) rc = fail(&p, "something follows the value");
    }
    mem_free(p.stack);
    return rc;
}

static const struct json *get_n(const struct json *j, const char *key, size_t n) {
    if (!j || j->type != JSON_OBJECT) return NULL;
    for (uint32_t i = j->n; i-- > 0;)
        if (j->items[2 * i].n == n && !memcmp(j->items[2 * i].string, key, n)) return &j->items[2 * i + 1];
    return NULL;
}
const struct json *json_get(const struct json *j, const char *key) { return get_n(j, key, strlen(key)); }
const struct json *json_at(const struct json *j, uint32_t i) {
    return j && j->type == JSON_ARRAY && i < j->n ? &j->items[i] : NULL;
}
const struct json *json_path(const struct json *j, const char *dotted) {
    while (j && *dotted) {
        size_t n = strcspn(dotted, ".");
        j = get_n(j, dotted, n);
        dotted += n + (dotted[n] == '.');
    }
    return j;
}
bool json_is(const struct json *j, const char *text) {
    size_t n = strlen(text);
    return j && j->type == JSON_STRING && j->n == n && !memcmp(j->string, text, n);
}
bool json_ends_in(const struct json *j, const char *text) {
    const size_t n = strlen(text);
    return j && j->type == JSON_STRING && j->n > n && !memcmp(j->string + j->n - n, text, n);
}
bool json_bool(const struct json *j, bool none) { return j && j->type == JSON_BOOL ? j->boolean : none; }
int64_t json_int(const struct json *j, int64_t none) {
    if (j && j->type == JSON_INT) return j->integer;
    if (j && j->type == JSON_FLOAT && !j->n && fabs(j->number) < 9e15 && j->number == (double)(int64_t)j->number)
        return (int64_t)j->number;
    return none;
}
/* The nearest double to digits. Those past the first 400 change none: the others already make it infinite. */
static double number_of_digits(const struct json *j) {
    char text[401];
    snprintf(text, sizeof text, "%.*s", (int)(j->n < sizeof text ? j->n : sizeof text - 1), j->string);
    return strtod(text, NULL);
}
double json_num(const struct json *j, double none) {
    if (j && j->type == JSON_FLOAT) return j->n ? number_of_digits(j) : j->number;
    return j && j->type == JSON_INT ? (double)j->integer : none;
}
char *json_strdup(const struct json *j) { return j && j->type == JSON_STRING ? mem_strndup(j->string, j->n) : NULL; }

int json_quote(struct buf *b, const char *s, size_t n) {
    buf_char(b, '"');
    for (size_t i = 0, run = 0;; i++) {
        unsigned char c = i < n ? (unsigned char)s[i] : 0;
        if (i < n && c >= 0x20 && c != '"' && c != '\\') continue;
        buf_add(b, s + run, i - run);
        if (i >= n) break;
        run = i + 1;
        switch (c) {
        case '"': buf_str(b, "\\\""); break;
        case '\\': buf_str(b, "\\\\"); break;
        case '\n': buf_str(b, "\\n"); break;
        case '\r': buf_str(b, "\\r"); break;
        case '\t': buf_str(b, "\\t"); break;
        case '\b': buf_str(b, "\\b"); break;
        case '\f': buf_str(b, "\\f"); break;
        default: buf_fmt(b, "\\u%04x", c);
        }
    }
    buf_char(b, '"');
    return b->failed ? ERR_MEMORY : 0;
}

/* Never writes a float as an integer, nor a value without a JSON representation. */
static void write_float(struct buf *b, double v) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", v);
    if (isinf(v)) snprintf(text, sizeof text, "%s1e999", v < 0 ? "-" : "");
    buf_str(b, text);
    if (!strpbrk(text, ".e")) buf_str(b, ".0");
}

int json_write(struct buf *b, const struct json *j) {
    switch (j->type) {
    case JSON_NULL: buf_str(b, "null"); break;
    case JSON_BOOL: buf_str(b, j->boolean ? "true" : "false"); break;
    case JSON_INT: buf_fmt(b, "%lld", (long long)j->integer); break;
    case JSON_FLOAT:
        if (j->n) buf_add(b, j->string, j->n);
        else write_float(b, j->number);
        break;
    case JSON_STRING: json_quote(b, j->string, j->n); break;
    case JSON_ARRAY:
        for (uint32_t i = 0; i < j->n; i++) {
            buf_str(b, i ? ", " : "[");
            json_write(b, &j->items[i]);
        }
        buf_str(b, j->n ? "]" : "[]");
        break;
    case JSON_OBJECT:
        for (uint32_t i = 0; i < j->n; i++) {
            buf_str(b, i ? ", " : "{");
            json_quote(b, j->items[2 * i].string, j->items[2 * i].n);
            buf_str(b, ": ");
            json_write(b, &j->items[2 * i + 1]);
        }
        buf_str(b, j->n ? "}" : "{}");
        break;
    }
    return b->failed ? ERR_MEMORY : 0;
}

/* --- Modified copies -------------------------------------------------------------------------- */

struct json *json_members(struct arena *a, const struct json *object, uint32_t more) {
    struct json *m = arena_alloc(a, 2 * ((size_t)object->n + more) * sizeof *m);
    if (m && object->n) memcpy(m, object->items, 2 * (size_t)object->n * sizeof *m);
    return m;
}
void json_set(struct json *members, uint32_t n, const char *key, const struct json *value) {
    for (uint32_t i = 0; i < n; i++)
        if (json_is(&members[2 * i], key)) members[2 * i + 1] = *value;
}
