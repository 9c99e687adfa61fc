#include "tokenizer/grammar/gbnf.h"

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

enum { MAX_DEPTH = 128, MAX_COUNT = 100000, MAX_RULES = 10000, LAST_CODE = 0x10FFFF };

struct name {
    const char *s;
    size_t n;
    expr_id rule;
    bool defined;
};
struct parser {
    struct grammar *g;
    const char *begin, *at, *end;
    struct name *names;
    size_t n_names, cap_names;
    struct error *e;
    int depth;
};

static int fail(const struct parser *p, const char *what) {
    int line = 1;
    for (const char *s = p->begin; s < p->at && s < p->end; s++) line += *s == '\n';
    return error_set(p->e, ERR_USAGE, "line %d: %s", line, what);
}

static bool is_name(char c) {
    return ((c | 32) >= 'a' && (c | 32) <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* Skips blanks and comments; line ends too if the expression may continue on the next line. */
static void skip(struct parser *p, bool line_ends) {
    for (; p->at < p->end; p->at++) {
        if (*p->at == '#')
            while (p->at < p->end && *p->at != '\n' && *p->at != '\r') p->at++;
        if (p->at >= p->end) return;
        if (*p->at != ' ' && *p->at != '\t' && !(line_ends && (*p->at == '\n' || *p->at == '\r'))) return;
    }
}

static struct name *find_or_add_name(struct parser *p, const char *s, size_t n) {
    for (size_t i = 0; i < p->n_names; i++)
        if (p->names[i].n == n && !memcmp(p->names[i].s, s, n)) return &p->names[i];
    if (p->n_names >= MAX_RULES || mem_grow(&p->names, &p->cap_names, p->n_names + 1, sizeof *p->names)) return NULL;
    p->names[p->n_names] = (struct name){.s = s, .n = n, .rule = grammar_rule(p->g)};
    return &p->names[p->n_names++];
}

static int read_char(struct parser *p, uint32_t *out) {
    static const char letters[] = "nrt\\\"[]", values[] = "\n\r\t\\\"[]";
    static const char codes[] = "xuU"; /* followed by 2, 4 and 8 hexadecimal digits */
    if (*p->at != '\\') return *out = utf8_next(&p->at), 0;
    if (++p->at >= p->end) return fail(p, "nothing follows the backslash");
    const char c = *p->at++, *known = memchr(letters, c, sizeof letters - 1);
    if (known) return *out = (unsigned char)values[known - letters], 0;
    const char *code = memchr(codes, c, sizeof codes - 1);
    if (!code) return fail(p, "unknown escape");
    const int digits = 2 << (code - codes);
    *out = 0;
    for (int i = 0; i < digits; i++, p->at++) {
        const char h = p->at < p->end ? *p->at : 0, l = (char)(h | 32);
        if (!((h >= '0' && h <= '9') || (l >= 'a' && l <= 'f'))) return fail(p, "hexadecimal digits are missing");
        *out = *out * 16 + (uint32_t)(h <= '9' ? h - '0' : l - 'a' + 10);
    }
    return *out > LAST_CODE || (*out >= 0xD800 && *out < 0xE000) ? fail(p, "not a code point") : 0;
}

static int parse_literal(struct parser *p, expr_id *out) {
    *out = EXPR_EMPTY;
    for (p->at++; p->at < p->end && *p->at != '"';) {
        uint32_t c;
        char bytes[4];
        int rc = read_char(p, &c);
        if (rc) return rc;
        *out = grammar_seq(p->g, *out, grammar_literal(p->g, bytes, utf8_put(c, bytes)));
    }
    return p->at++ < p->end ? 0 : fail(p, "'\"' is missing");
}

static int parse_set(struct parser *p, expr_id *out) {
    enum { MAX_RANGES = 1024 };
    struct {
        uint32_t from, to;
    } v[MAX_RANGES];
    size_t n = 0;
    const bool negated = ++p->at < p->end && *p->at == '^';
    for (p->at += negated; p->at < p->end && *p->at != ']'; n++) {
        if (n == MAX_RANGES) return fail(p, "a set with too many ranges");
        int rc = read_char(p, &v[n].from);
        v[n].to = v[n].from;
        if (!rc && p->at + 1 < p->end && *p->at == '-' && p->at[1] != ']') p->at++, rc = read_char(p, &v[n].to);
        if (rc) return rc;
        if (v[n].from > v[n].to) return fail(p, "a range whose ends are reversed");
    }
    if (p->at++ >= p->end) return fail(p, "']' is missing");
    *out = EXPR_NEVER;
    for (size_t i = 0; i < n && !negated; i++) *out = grammar_alt_range(p->g, *out, v[i].from, v[i].to);
    for (uint32_t from = 0; negated && from <= LAST_CODE;) { /* the next gap between the ranges */
        uint32_t to = LAST_CODE;
        bool moved = false;
        for (size_t i = 0; i < n && !moved; i++)
            if (v[i].from <= from && from <= v[i].to) from = v[i].to + 1, moved = true;
        if (moved) continue;
        for (size_t i = 0; i < n; i++)
            if (v[i].from > from && v[i].from - 1 < to) to = v[i].from - 1;
        *out = grammar_alt_range(p->g, *out, from, to);
        from = to + 1;
    }
    return 0;
}

static int parse_alternatives(struct parser *p, bool nested, expr_id *out);

static int parse_item(struct parser *p, expr_id *out) {
    const char c = *p->at;
    int rc;
    if (c == '"') return parse_literal(p, out);
    if (c == '[') return parse_set(p, out);
    if (c == '.') return p->at++, *out = grammar_alt_range(p->g, EXPR_NEVER, 0, LAST_CODE), 0;
    if (c == '(') {
        p->at++;
        if (++p->depth > MAX_DEPTH) return fail(p, "groups are nested too deeply");
        skip(p, true);
        if ((rc = parse_alternatives(p, true, out))) return rc;
        p->depth--;
        return p->at < p->end && *p->at++ == ')' ? 0 : fail(p, "')' is missing");
    }
    if (c == '<' || c == '!') return fail(p, "tokens as symbols are not supported");
    if (!is_name(c)) return fail(p, "a symbol is expected");
    const char *s = p->at;
    while (p->at < p->end && is_name(*p->at)) p->at++;
    struct name *name = find_or_add_name(p, s, (size_t)(p->at - s));
    if (!name) return fail(p, "too many rules, or no memory");
    *out = name->rule;
    return 0;
}

static bool read_count(struct parser *p, bool nested, uint32_t *out) {
    const char *begin = p->at;
    for (*out = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9' && *out <= MAX_COUNT; p->at++)
        *out = *out * 10 + (uint32_t)(*p->at - '0');
    const bool any = p->at > begin;
    skip(p, nested);
    return any;
}

static int parse_repeats(struct parser *p, bool nested, expr_id *x) {
    for (;; skip(p, nested)) {
        uint32_t lo = 0, hi = GRAMMAR_UNBOUNDED;
        const char c = p->at < p->end ? *p->at : 0;
        if (c != '*' && c != '+' && c != '?' && c != '{') return 0;
        p->at++;
        if (c == '+') lo = 1;
        if (c == '?') hi = 1;
        if (c == '{') {
            skip(p, nested);
            const bool has_lo = read_count(p, nested, &lo);
            hi = lo;
            if (p->at < p->end && *p->at == ',') {
                p->at++;
                skip(p, nested);
                if (!read_count(p, nested, &hi)) hi = GRAMMAR_UNBOUNDED;
            } else if (!has_lo) return fail(p, "a count is missing");
            if (p->at >= p->end || *p->at++ != '}') return fail(p, "'}' is missing");
            if (lo > MAX_COUNT || (hi > MAX_COUNT && hi != GRAMMAR_UNBOUNDED)) return fail(p, "a count above 100000");
            if (lo > hi) return fail(p, "a count whose bounds are reversed");
        }
        *x = grammar_repeat(p->g, *x, lo, hi);
    }
}

static int parse_sequence(struct parser *p, bool nested, expr_id *out) {
    *out = EXPR_EMPTY;
    while (p->at < p->end && *p->at != '|' && *p->at != ')' && *p->at != '\n' && *p->at != '\r') {
        expr_id x;
        int rc = parse_item(p, &x);
        if (rc) return rc;
        skip(p, nested);
        if ((rc = parse_repeats(p, nested, &x))) return rc;
        *out = grammar_seq(p->g, *out, x);
    }
    return 0;
}

static int parse_alternatives(struct parser *p, bool nested, expr_id *out) {
    int rc = parse_sequence(p, nested, out);
    while (!rc && p->at < p->end && *p->at == '|') {
        expr_id x;
        p->at++;
        skip(p, true);
        if (!(rc = parse_sequence(p, nested, &x))) *out = grammar_alt(p->g, *out, x);
    }
    return rc;
}

static int parse_rule(struct parser *p) {
    const char *s = p->at;
    expr_id body;
    while (p->at < p->end && is_name(*p->at)) p->at++;
    if (p->at == s) return fail(p, "a rule is expected: name ::= ...");
    struct name *name = find_or_add_name(p, s, (size_t)(p->at - s));
    if (!name) return fail(p, "too many rules, or no memory");
    if (name->defined) return fail(p, "the rule is defined twice");
    name->defined = true;
    const expr_id rule = name->rule;
    skip(p, false);
    if (p->end - p->at < 3 || memcmp(p->at, "::=", 3)) return fail(p, "'::=' is missing");
    p->at += 3;
    skip(p, true);
    int rc = parse_alternatives(p, false, &body);
    if (rc) return rc;
    grammar_define(p->g, rule, body);
    if (p->at < p->end && *p->at != '\n' && *p->at != '\r') return fail(p, "a line end is expected after the rule");
    return 0;
}

int gbnf_expr(struct grammar *g, const char *s, size_t n, expr_id *out, struct error *e) {
    struct parser p = {.g = g, .begin = s, .at = s, .end = s + n, .e = e};
    int rc = utf8_valid(s, n) == n ? 0 : error_set(e, ERR_USAGE, "not valid UTF-8");
    if (!rc && memchr(s, 0, n)) rc = error_set(e, ERR_USAGE, "a NUL byte");
    for (skip(&p, true); !rc && p.at < p.end; skip(&p, true)) rc = parse_rule(&p);
    struct name *root = rc ? NULL : find_or_add_name(&p, "root", 4);
    if (!rc && !root) rc = error_set(e, ERR_MEMORY, "no memory for the grammar");
    for (size_t i = 0; i < p.n_names && !rc; i++)
        if (!p.names[i].defined)
            rc = error_set(e, ERR_USAGE, "the rule %.*s is not defined", (int)(p.names[i].n < 60 ? p.names[i].n : 60),
                           p.names[i].s);
    if (!rc) *out = root->rule;
    mem_free(p.names);
    return rc;
}
