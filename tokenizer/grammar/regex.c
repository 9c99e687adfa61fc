#include "tokenizer/grammar/regex.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

enum { MAX_DEPTH = 128, MAX_COUNT = 100000, MAX_RANGES = 4096, LAST = 0x10FFFF };

struct parser {
    struct arena *arena;
    struct set *set; /* the one that is parsed; sets do not nest */
    const char *begin, *at, *end;
    struct error *e;
    int depth;
};
/* narrow: characters that match in every dialect; wide: characters that match in some dialect, for the negated set */
struct set {
    struct code_range narrow[MAX_RANGES], wide[MAX_RANGES];
    size_t n_narrow, n_wide;
};

static int fail(struct parser *p, const char *what) {
    return error_set(p->e, ERR_USAGE, "character %td: %s", p->at - p->begin + 1, what);
}
static int no_memory(struct parser *p) { return error_set(p->e, ERR_MEMORY, "no memory for the pattern"); }

static struct regex *new_node(struct parser *p, struct regex x) {
    struct regex *r = arena_alloc(p->arena, sizeof *r);
    if (r) *r = x;
    else no_memory(p);
    return r;
}

/* --- sets ------------------------------------------------------------------------------------- */

static int compare_ranges(const void *x, const void *y) {
    const struct code_range *a = x, *b = y;
    return (a->from > b->from) - (a->from < b->from);
}
/* Sorts and joins ranges; returns their number. */
static size_t normalize(struct code_range *v, size_t n) {
    size_t kept = 0;
    qsort(v, n, sizeof *v, compare_ranges);
    for (size_t i = 0; i < n; i++) {
        if (kept && v[i].from <= v[kept - 1].to + 1) {
            if (v[i].to > v[kept - 1].to) v[kept - 1].to = v[i].to;
        } else v[kept++] = v[i];
    }
    return kept;
}

static void add(struct code_range *v, size_t *n, uint32_t from, uint32_t to) {
    if (*n < MAX_RANGES) v[(*n)++] = (struct code_range){from, to};
}
static struct set *begin_set(struct parser *p) {
    if (!p->set) p->set = arena_alloc(p->arena, sizeof *p->set);
    if (p->set) p->set->n_narrow = p->set->n_wide = 0;
    return p->set;
}
static void add_both(struct set *s, uint32_t from, uint32_t to) {
    add(s->narrow, &s->n_narrow, from, to);
    add(s->wide, &s->n_wide, from, to);
}

/* The sets of \d \w \s and of their negations. A negation contains what neither dialect counts to the set. */
static const struct escape_set {
    char letter;
    struct code_range narrow[12], wide[12]; /* up to an entry with to 0 */
} escape_sets[] = {
    {'d', {{'0', '9'}}, {{'0', '9'}, {0x80, LAST}}},
    {'D', {{0, '0' - 1}, {'9' + 1, 0x7F}}, {{0, '0' - 1}, {'9' + 1, LAST}}},
    {'w',
     {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}},
     {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}, {0x80, LAST}}},
    {'W',
     {{0, 0x2F}, {0x3A, 0x40}, {0x5B, 0x5E}, {0x60, 0x60}, {0x7B, 0x7F}},
     {{0, 0x2F}, {0x3A, 0x40}, {0x5B, 0x5E}, {0x60, 0x60}, {0x7B, LAST}}},
    {'s', {{9, 13}, {' ', ' '}}, {{9, 13}, {0x1C, ' '}, {0x80, LAST}}},
    {'S',
     {{0, 8},
      {14, 0x1B},
      {0x21, 0x7F},
      {0xA1, 0x167F},
      {0x1681, 0x180D},
      {0x180F, 0x1FFF},
      {0x200B, 0x2027},
      {0x202A, 0x202E},
      {0x2030, 0x205E},
      {0x2060, 0x2FFF},
      {0x3001, 0xFEFE},
      {0xFF00, LAST}},
     {{0, 8}, {14, 0x1F}, {0x21, LAST}}},
};

/* Adds the set of an escape such as \d; false if the letter is none. */
static bool add_escape_set(struct set *s, char letter) {
    for (size_t i = 0; i < sizeof escape_sets / sizeof *escape_sets; i++) {
        const struct escape_set *x = &escape_sets[i];
        if (x->letter != letter) continue;
        for (size_t k = 0; k < 12 && x->narrow[k].to; k++)
            add(s->narrow, &s->n_narrow, x->narrow[k].from, x->narrow[k].to);
        for (size_t k = 0; k < 12 && x->wide[k].to; k++) add(s->wide, &s->n_wide, x->wide[k].from, x->wide[k].to);
        return true;
    }
    return false;
}

static struct regex *set_node(struct parser *p, struct set *s, bool negated) {
    struct code_range *v = negated ? s->wide : s->narrow;
    size_t n = normalize(v, negated ? s->n_wide : s->n_narrow), m = 0;
    struct code_range *out = arena_alloc(p->arena, (n + 1) * sizeof *out);
    if (!out) return no_memory(p), NULL;
    if (!negated) memcpy(out, v, n * sizeof *v), m = n;
    uint32_t from = 0;
    for (size_t i = 0; negated && i <= n; i++) {
        if (i == n || v[i].from > from) {
            const uint32_t to = i == n ? LAST : v[i].from - 1;
            if (from <= to) out[m++] = (struct code_range){from, to};
        }
        if (i < n) from = v[i].to + 1;
    }
    return new_node(p, (struct regex){.kind = REGEX_SET, .ranges = out, .n_ranges = m});
}

/* --- escapes ---------------------------------------------------------------------------------- */

static int hex_digits(struct parser *p, int least, int most, uint32_t *out) {
    int n = 0;
    for (*out = 0; n < most && p->at < p->end; n++, p->at++) {
        const char c = *p->at, l = (char)(c | 32);
        if (!((c >= '0' && c <= '9') || (l >= 'a' && l <= 'f'))) break;
        *out = *out * 16 + (uint32_t)(c <= '9' ? c - '0' : l - 'a' + 10);
    }
    return n < least || *out > LAST ? fail(p, "not a code point in hexadecimal") : 0;
}

/* Reads the escape of one character; p->at points after the backslash. */
static int read_escape(struct parser *p, uint32_t *out) {
    static const char letters[] = "nrtfv0", values[] = "\n\r\t\f\v\0";
    if (p->at >= p->end) return fail(p, "nothing follows the backslash");
    const char c = *p->at;
    const char *known = memchr(letters, c, sizeof letters - 1);
    if (known) return p->at++, *out = (unsigned char)values[known - letters], 0;
    if (c == 'x') return p->at++, hex_digits(p, 2, 2, out);
    if (c == 'u') {
        const bool braces = ++p->at < p->end && *p->at == '{';
        p->at += braces;
        int rc = hex_digits(p, braces ? 1 : 4, braces ? 6 : 4, out);
        if (!rc && braces && (p->at >= p->end || *p->at++ != '}')) return fail(p, "'}' is missing");
        return rc;
    }
    if (c >= '1' && c <= '9') return fail(p, "back references are not supported");
    if ((c | 32) == 'b') return fail(p, "word boundaries are not supported");
    if ((c | 32) == 'p') return fail(p, "Unicode properties are not supported");
    if (((c | 32) >= 'a' && (c | 32) <= 'z')) return fail(p, "unknown escape");
    *out = utf8_next(&p->at);
    return 0;
}

static int parse_set(struct parser *p, struct regex **out) {
    struct set *s = begin_set(p);
    if (!s) return no_memory(p);
    const bool negated = p->at < p->end && *p->at == '^';
    p->at += negated;
    for (bool first = true;; first = false) {
        uint32_t from, to;
        if (p->at >= p->end) return fail(p, "']' is missing");
        if (*p->at == ']' && !first) break;
        if (*p->at == ']' && first) return fail(p, "an empty set, or a ']' that must be escaped");
        if (*p->at == '\\' && p->at + 1 < p->end && add_escape_set(s, p->at[1])) {
            p->at += 2;
            continue;
        }
        for (int end = 0; end < 2; end++) {
            uint32_t c;
            if (p->at >= p->end) return fail(p, "']' is missing");
            if (*p->at == '[' && p->at + 1 < p->end && p->at[1] == ':')
                return fail(p, "POSIX classes are not supported");
            if (*p->at == '\\') {
                p->at++;
                if (p->at < p->end && *p->at == 'b') p->at++, c = 8;
                else if (read_escape(p, &c)) return p->e ? p->e->code : ERR_USAGE;
            } else c = utf8_next(&p->at);
            if (end) to = c;
            else from = to = c;
            if (end || p->at + 1 >= p->end || *p->at != '-' || p->at[1] == ']') break;
            p->at++;
        }
        if (from > to) return fail(p, "a range whose ends are reversed");
        add_both(s, from, to);
        if (s->n_wide >= MAX_RANGES) return fail(p, "a set with too many ranges");
    }
    p->at++;
    return (*out = set_node(p, s, negated)) ? 0 : ERR_MEMORY;
}

/* --- expressions ------------------------------------------------------------------------------ */

static int parse_alternatives(struct parser *p, const struct regex **out);

static int parse_group(struct parser *p, const struct regex **out) {
    if (p->at < p->end && *p->at == '?') {
        const size_t left = (size_t)(p->end - p->at);
        if (left > 1 && p->at[1] == ':') p->at += 2;
        else if (left > 2 && p->at[1] == 'P' && p->at[2] == '<') p->at += 3;
        else if (left > 2 && p->at[1] == '<' && p->at[2] != '=' && p->at[2] != '!') p->at += 2;
        else return fail(p, "look-around, flags and conditions are not supported");
        if (p->at[-1] == '<') {
            while (p->at < p->end && *p->at != '>') p->at++;
            if (p->at++ >= p->end) return fail(p, "'>' is missing");
        }
    }
    if (++p->depth > MAX_DEPTH) return fail(p, "groups are nested too deeply");
    int rc = parse_alternatives(p, out);
    p->depth--;
    if (!rc && (p->at >= p->end || *p->at++ != ')')) return fail(p, "')' is missing");
    return rc;
}

static int parse_atom(struct parser *p, const struct regex **out) {
    struct regex *x = NULL;
    const char c = *p->at;
    uint32_t code;
    if (c == '(') return p->at++, parse_group(p, out);
    if (c == '*' || c == '+' || c == '?') return fail(p, "nothing to repeat");
    if (c == '[') {
        p->at++;
        int rc = parse_set(p, &x);
        *out = x;
        return rc;
    }
    if (c == '^' || c == '$') p->at++, x = new_node(p, (struct regex){.kind = c == '^' ? REGEX_START : REGEX_END});
    else {
        struct set *s = begin_set(p);
        if (!s) return no_memory(p);
        if (c == '.') p->at++, add_both(s, 0, '\n' - 1), add_both(s, '\n' + 1, LAST);
        else if (c == '\\' && p->at + 1 < p->end && add_escape_set(s, p->at[1])) p->at += 2;
        else if (c == '\\') {
            p->at++;
            int rc = read_escape(p, &code);
            if (rc) return rc;
            add_both(s, code, code);
        } else code = utf8_next(&p->at), add_both(s, code, code);
        x = set_node(p, s, false);
    }
    return (*out = x) ? 0 : ERR_MEMORY;
}

static bool read_count(struct parser *p, const char **at, uint32_t *out) {
    const char *begin = *at;
    for (*out = 0; *at < p->end && **at >= '0' && **at <= '9' && *out <= MAX_COUNT; ++*at)
        *out = *out * 10 + (uint32_t)(**at - '0');
    return *at > begin;
}

/* Reads {m}, {m,} or {m,n}; other braces are text. */
static bool read_braces(struct parser *p, uint32_t *lo, uint32_t *hi) {
    const char *at = p->at + 1;
    if (*p->at != '{' || !read_count(p, &at, lo)) return false;
    *hi = *lo;
    if (at < p->end && *at == ',') {
        at++;
        if (!read_count(p, &at, hi)) *hi = GRAMMAR_UNBOUNDED;
    }
    if (at >= p->end || *at != '}') return false;
    p->at = at + 1;
    return true;
}

static int parse_repeated(struct parser *p, const struct regex **out) {
    int rc = parse_atom(p, out);
    while (!rc && p->at < p->end) {
        uint32_t lo = 0, hi = GRAMMAR_UNBOUNDED;
        const char c = *p->at;
        if (c == '*') p->at++;
        else if (c == '+') p->at++, lo = 1;
        else if (c == '?') p->at++, hi = 1;
        else if (!read_braces(p, &lo, &hi)) break;
        if (lo > MAX_COUNT || (hi > MAX_COUNT && hi != GRAMMAR_UNBOUNDED)) return fail(p, "a count above 100000");
        if (lo > hi) return fail(p, "a count whose bounds are reversed");
        if ((*out)->kind == REGEX_START || (*out)->kind == REGEX_END) return fail(p, "nothing to repeat");
        if (p->at < p->end && *p->at == '?') p->at++; /* lazy: the same texts match */
        else if (p->at < p->end && *p->at == '+') return fail(p, "possessive repeats are not supported");
        if (!(*out = new_node(p, (struct regex){.kind = REGEX_REPEAT, .a = *out, .lo = lo, .hi = hi})))
            return ERR_MEMORY;
        if (p->at < p->end && strchr("*+?", *p->at)) return fail(p, "nothing to repeat");
    }
    return rc;
}

static int parse_sequence(struct parser *p, const struct regex **out) {
    if (!(*out = new_node(p, (struct regex){.kind = REGEX_EMPTY}))) return ERR_MEMORY;
    while (p->at < p->end && *p->at != '|' && *p->at != ')') {
        const struct regex *next;
        int rc = parse_repeated(p, &next);
        if (rc) return rc;
        if (!(*out = (*out)->kind == REGEX_EMPTY
                         ? next
                         : new_node(p, (struct regex){.kind = REGEX_CAT, .a = *out, .b = next})))
            return ERR_MEMORY;
    }
    return 0;
}

static int parse_alternatives(struct parser *p, const struct regex **out) {
    int rc = parse_sequence(p, out);
    while (!rc && p->at < p->end && *p->at == '|') {
        const struct regex *next;
        p->at++;
        if ((rc = parse_sequence(p, &next))) break;
        if (!(*out = new_node(p, (struct regex){.kind = REGEX_ALT, .a = *out, .b = next}))) return ERR_MEMORY;
    }
    return rc;
}

int regex_parse(struct arena *a, const char *s, size_t n, const struct regex **out, struct error *e) {
    struct parser p = {.arena = a, .begin = s, .at = s, .end = s + n, .e = e};
    if (n > 1 << 14) return error_set(e, ERR_USAGE, "a pattern of more than 16 KB");
    if (utf8_valid(s, n) != n) return error_set(e, ERR_USAGE, "not valid UTF-8");
    int rc = parse_alternatives(&p, out);
    return !rc && p.at < p.end ? fail(&p, "')' without '('") : rc;
}

/* --- as a grammar ----------------------------------------------------------------------------- */

/* Whether a set has every character that grammar_text() requires. */
static bool is_any_character(const struct regex *r) {
    static const struct code_range needed[] = {{' ', '!'}, {'#', '['}, {']', '~'}, {0xA0, LAST}};
    for (size_t k = 0; k < sizeof needed / sizeof *needed; k++) {
        bool has = false;
        for (size_t i = 0; r->kind == REGEX_SET && i < r->n_ranges; i++)
            has |= r->ranges[i].from <= needed[k].from && needed[k].to <= r->ranges[i].to;
        if (!has) return false;
    }
    return true;
}

static expr_id build(struct grammar *g, const struct regex *r, bool first, bool last, bool *inner_anchor) {
    expr_id x = EXPR_NEVER;
    switch ((enum regex_kind)r->kind) {
    case REGEX_EMPTY: return EXPR_EMPTY;
    case REGEX_START: *inner_anchor |= !first; return EXPR_EMPTY;
    case REGEX_END: *inner_anchor |= !last; return EXPR_EMPTY;
    case REGEX_SET:
        for (size_t i = 0; i < r->n_ranges; i++) x = grammar_alt_range(g, x, r->ranges[i].from, r->ranges[i].to);
        return x;
    case REGEX_CAT: /* only a '^' or nothing precedes the second part if the first part is one */
        x = build(g, r->a, first, last && r->b->kind == REGEX_END, inner_anchor);
        return grammar_seq(g, x, build(g, r->b, first && r->a->kind == REGEX_START, last, inner_anchor));
    case REGEX_ALT:
        x = build(g, r->a, first, last, inner_anchor);
        return grammar_alt(g, x, build(g, r->b, first, last, inner_anchor));
    case REGEX_REPEAT:
        if (is_any_character(r->a)) return grammar_text(g, build(g, r->a, false, false, inner_anchor), r->lo, r->hi);
        return grammar_repeat(g, build(g, r->a, false, false, inner_anchor), r->lo, r->hi);
    }
    return EXPR_FAILED;
}

int regex_expr(struct grammar *g, const struct regex *r, expr_id *out, struct error *e) {
    bool inner_anchor = false;
    *out = build(g, r, true, true, &inner_anchor);
    return inner_anchor ? error_set(e, ERR_USAGE, "'^' and '$' are supported only at the ends of the expression") : 0;
}
