#include "tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_DEPTH = 64, MAX_REPEAT = 1000 };
/* a reference to a set: this byte, then the set's index in two bytes of this many bits, each with the top bit set */
enum { SET_MARK = 1, INDEX_BITS = 7 };

struct pattern_parser {
    struct pattern *re;
    struct alphabet *a;
    const char *at, *end, *begin; /* the pattern is [begin, end); at: next byte to parse */
    size_t n;
    struct error *e;
    int depth;
    bool fold;         /* inside (?i:...) */
    int in_class;      /* bracket depth */
    uint32_t previous; /* the literal before, under fold: "ss" would also match a sharp s */
};

static int unsupported(struct pattern_parser *p, const char *what) {
    return error_set(p->e, ERR_MODEL, "regex \"%.*s\": %s at byte %zu", (int)(p->n < 200 ? p->n : 200), p->begin, what,
                     (size_t)(p->at - p->begin));
}
static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the pre-tokenizer's regex"); }
static int put_text(struct pattern_parser *p, const char *s) {
    return buf_str(&p->re->source, s) ? no_memory(p->e) : 0;
}

/* --- sets ------------------------------------------------------------------------------------- */

/* Registers s in the alphabet (taking ownership) and writes a reference to it. */
static int put_set(struct pattern *re, struct alphabet *a, struct charset *s, struct error *e) {
    size_t i = 0;
    while (i < a->n_sets && !charset_equal(&a->sets[i], s)) i++;
    if (i == a->n_sets) {
        if (i >= 1u << 2 * INDEX_BITS) {
            charset_free(s);
            return error_set(e, ERR_MODEL, "regex: too many different characters and classes");
        }
        if (mem_grow(&a->sets, &a->cap_sets, i + 1, sizeof *a->sets)) {
            charset_free(s);
            return no_memory(e);
        }
        a->sets[a->n_sets++] = *s;
        *s = (struct charset){0};
    } else charset_free(s);
    char ref[3] = {SET_MARK, (char)(0x80 | i >> INDEX_BITS), (char)(0x80 | (i & 127))};
    return buf_add(&re->source, ref, 3) ? no_memory(e) : 0;
}

/* Simple case folding as far as it is unambiguous: ASCII letters with long s and Kelvin sign. */
static int fold_set(struct pattern_parser *p, struct charset *s) {
    struct charset more = {0};
    int rc = 0;
    for (uint32_t c = 'a'; c <= 'z' && !rc; c++) {
        uint32_t other = c == 's' ? 0x17F : c == 'k' ? 0x212A : 0;
        bool low = charset_has(s, c), up = charset_has(s, c - 32), third = other && charset_has(s, other);
        if (!low && !up && !third) continue;
        rc = charset_add(&more, c, c);
        if (!rc) rc = charset_add(&more, c - 32, c - 32);
        if (!rc && other) rc = charset_add(&more, other, other);
    }
    if (!rc) rc = charset_union(s, more.r, more.n);
    charset_free(&more);
    return rc ? no_memory(p->e) : 0;
}

/* Whether the set has characters beyond ASCII, which fold_set may miss. */
static bool has_non_ascii(const struct charset *s) {
    for (size_t i = 0; i < s->n; i++)
        if (s->r[i].hi >= 0x80) return true;
    return false;
}

static int hex_value(struct pattern_parser *p, int min, int max, uint32_t *c) {
    int n = 0;
    uint32_t v = 0;
    for (; n < max && p->at < p->end; n++, p->at++) {
        int ch = *p->at, d = ch >= '0' && ch <= '9'                 ? ch - '0'
                             : (ch | 32) >= 'a' && (ch | 32) <= 'f' ? (ch | 32) - 'a' + 10
                                                                    : -1;
        if (d < 0) break;
        v = v << 4 | (uint32_t)d;
    }
    if (n < min || v >= UNICODE_END) return unsupported(p, "bad hexadecimal code");
    *c = v;
    return 0;
}

/* Parses {name} or {^name} after \p (P: \P, the complement) and adds its characters to t. p->at then is at the closing
 * brace. ERR_MEMORY sets no message. */
static int parse_property(struct pattern_parser *p, bool not, struct charset *t) {
    const char *name = p->at + 1, *close;
    if (p->at >= p->end || *p->at != '{' || !(close = memchr(name, '}', (size_t)(p->end - name))))
        return unsupported(p, "\\p without {name}");
    if (name < close && *name == '^') name++, not = !not ;
    int rc = charset_property(t, name, (size_t)(close - name));
    if (rc == ERR_USAGE) return unsupported(p, "unknown property");
    if (p->fold && (close - name == 2)) return unsupported(p, "a property of case under (?i:");
    p->at = close;
    return rc || !not ? rc : charset_invert(t);
}

/* Parses an escape: stores one character in *c, or adds a set to s (*is_set) and tidies s. */
static int parse_escape(struct pattern_parser *p, struct charset *s, bool *is_set, uint32_t *c) {
    *is_set = false;
    if (p->at >= p->end) return unsupported(p, "a backslash ends it");
    char k = *p->at;
    struct charset t = {0};
    int rc = 0;
    switch (k) {
    case 'n': return p->at++, *c = '\n', 0;
    case 'r': return p->at++, *c = '\r', 0;
    case 't': return p->at++, *c = '\t', 0;
    case 'f': return p->at++, *c = '\f', 0;
    case 'v': return p->at++, *c = '\v', 0;
    case 'a': return p->at++, *c = '\a', 0;
    case 'e': return p->at++, *c = 27, 0;
    case 'x':
        p->at++;
        if (p->at < p->end && *p->at == '{') {
            p->at++;
            if ((rc = hex_value(p, 1, 8, c))) return rc;
            if (p->at >= p->end || *p->at++ != '}') return unsupported(p, "'}' is missing");
            return 0;
        }
        if ((rc = hex_value(p, 1, 2, c))) return rc;
        return *c >= 0x80 ? unsupported(p, "a byte that is no character") : 0;
    case 'u': return p->at++, hex_value(p, 4, 4, c);
    case 's':
    case 'S': rc = charset_union(&t, unicode_space, unicode_space_n); break;
    case 'd':
    case 'D': rc = charset_property(&t, "Nd", 2); break;
    case 'w':
    case 'W': rc = charset_word(&t, p->in_class ? WORD_ONIG_CLASS : WORD_ONIG); break;
    case 'p':
    case 'P':
        p->at++;
        rc = parse_property(p, k == 'P', &t);
        if (rc == ERR_MODEL) {
            charset_free(&t);
            return rc;
        }
        break;
    default:
        if ((k >= 'a' && k <= 'z') || (k >= 'A' && k <= 'Z') || (k >= '0' && k <= '9'))
            return unsupported(p, "unknown escape");
        *c = utf8_next(&p->at);
        return 0;
    }
    p->at++;
    if (!rc && (k == 'S' || k == 'D' || k == 'W')) rc = charset_invert(&t);
    if (!rc) rc = charset_union(s, t.r, t.n);
    charset_free(&t);
    *is_set = true;
    return rc ? no_memory(p->e) : 0;
}

static int parse_class(struct pattern_parser *p, struct charset *out);

/* Parses one operand of &&: items up to && or the closing bracket. */
static int parse_class_items(struct pattern_parser *p, struct charset *s, bool first) {
    int rc;
    while (p->at < p->end && (*p->at != ']' || first)) {
        if (*p->at == ']') return unsupported(p, "an empty class");
        if (*p->at == '&' && p->end - p->at > 1 && p->at[1] == '&') return 0;
        first = false;
        if (*p->at == '[') {
            struct charset inner = {0};
            rc = parse_class(p, &inner);
            if (!rc && charset_union(s, inner.r, inner.n)) rc = no_memory(p->e);
            charset_free(&inner);
            if (rc) return rc;
            continue;
        }
        uint32_t lo, hi;
        bool is_set = false;
        if (*p->at == '\\') {
            p->at++;
            if ((rc = parse_escape(p, s, &is_set, &lo))) return rc;
        } else lo = utf8_next(&p->at);
        if (is_set) {
            if (p->end - p->at > 1 && *p->at == '-' && p->at[1] != ']')
                return unsupported(p, "a range that begins with a class");
            continue;
        }
        hi = lo;
        if (p->end - p->at > 1 && *p->at == '-' && p->at[1] != ']') {
            p->at++;
            if (*p->at == '[') return unsupported(p, "a range that ends with a class");
            if (*p->at == '\\') {
                p->at++;
                if ((rc = parse_escape(p, s, &is_set, &hi))) return rc;
                if (is_set) return unsupported(p, "a range that ends with a class");
            } else hi = utf8_next(&p->at);
            if (hi < lo) return unsupported(p, "a range in the wrong order");
        }
        if (p->fold && hi >= 0x80) return unsupported(p, "a character beyond ASCII under (?i:");
        if (charset_add(s, lo, hi)) return no_memory(p->e);
    }
    return 0;
}

static int parse_class(struct pattern_parser *p, struct charset *out) {
    if (++p->depth > MAX_DEPTH) return unsupported(p, "nested too deeply");
    p->at++; /* [ */
    p->in_class++;
    if (p->at < p->end && *p->at == ':') return unsupported(p, "a POSIX class");
    bool not = p->at < p->end && *p->at == '^', first = true;
    if (not ) p->at++;
    int rc = 0;
    for (bool more = true; more && !rc; first = false) {
        struct charset side = {0};
        rc = parse_class_items(p, &side, first);
        charset_tidy(&side);
        more = !rc && p->end - p->at > 1 && *p->at == '&';
        if (more) p->at += 2;
        if (!rc && first) {
            *out = side;
            continue;
        }
        if (!rc && charset_intersect(out, &side)) rc = no_memory(p->e);
        charset_free(&side);
    }
    if (!rc && p->at >= p->end) rc = unsupported(p, "']' is missing");
    if (rc) return rc;
    p->at++;
    p->depth--;
    p->in_class--;
    if (p->fold && (rc = fold_set(p, out))) return rc;
    return not &&charset_invert(out) ? no_memory(p->e) : 0;
}

/* --- structure -------------------------------------------------------------------------------- */

static int parse_alternatives(struct pattern_parser *p);

static int parse_group(struct pattern_parser *p) {
    static const struct {
        const char *spelled, *pcre;
        int fold; /* whether the group ignores case; -1: inherited */
    } kinds[] = {{"?i:", "(?:", 1},   {"?-i:", "(?:", 0},  {"?:", "(?:", -1}, {"?=", "(?=", -1}, {"?!", "(?!", -1},
                 {"?<=", "(?<=", -1}, {"?<!", "(?<!", -1}, {"?>", "(?>", -1}, {"", "(?:", -1}};
    p->at++; /* ( */
    size_t left = (size_t)(p->end - p->at), i = 0;
    for (;; i++) {
        size_t n = strlen(kinds[i].spelled);
        if (n <= left && !memcmp(p->at, kinds[i].spelled, n)) break;
    }
    if (!kinds[i].spelled[0] && left && *p->at == '?') return unsupported(p, "unknown kind of group");
    p->at += strlen(kinds[i].spelled);
    bool fold = p->fold;
    if (kinds[i].fold >= 0) p->fold = kinds[i].fold;
    int rc = put_text(p, kinds[i].pcre);
    if (!rc) rc = parse_alternatives(p);
    if (rc) return rc;
    if (p->at >= p->end) return unsupported(p, "')' is missing");
    p->at++;
    p->fold = fold;
    p->previous = 0;
    return put_text(p, ")");
}

/* Parses {n}, {n,}, {n,m}, {,m} at s. False: a literal brace. */
static bool parse_counts(const char *s, const char *end, int *lo, int *hi, const char **after) {
    int v[2] = {-1, -1}, k = 0;
    for (s++; s < end && *s != '}'; s++) {
        if (*s == ',' && k == 0) k = 1;
        else if (*s >= '0' && *s <= '9') {
            v[k] = (v[k] < 0 ? 0 : v[k]) * 10 + (*s - '0');
            if (v[k] > MAX_REPEAT) v[k] = MAX_REPEAT + 1;
        } else return false;
    }
    if (s >= end || (v[0] < 0 && v[1] < 0)) return false;
    *lo = v[0] < 0 ? 0 : v[0];
    *hi = k ? v[1] : v[0];
    *after = s + 1;
    return true;
}

/* Parses the quantifiers of the item that begins at source[begin]. */
static int parse_quantifier(struct pattern_parser *p, size_t begin) {
    if (p->at >= p->end) return 0;
    int lo, hi, rc;
    const char *after;
    char q[32] = {*p->at, 0};
    if (strchr("*+?", *p->at)) {
        p->at++;
        if (p->at < p->end && (*p->at == '?' || *p->at == '+')) q[1] = *p->at++;
    } else if (*p->at == '{' && parse_counts(p->at, p->end, &lo, &hi, &after)) {
        if (lo > MAX_REPEAT || hi > MAX_REPEAT) return unsupported(p, "a count beyond 1000");
        if (hi >= 0 && hi < lo) return unsupported(p, "counts in the wrong order");
        bool exact = hi == lo && !memchr(p->at, ',', (size_t)(after - p->at));
        p->at = after;
        char *o = q;
        *o++ = '{';
        o += sprintf(o, "%d", lo);
        if (!exact) o += hi < 0 ? sprintf(o, ",") : sprintf(o, ",%d", hi);
        *o++ = '}';
        *o = 0;
        if (p->at < p->end && *p->at == '?') {
            if (exact) return unsupported(p, "'?' after {n}");
            *o++ = '?', *o = 0;
            p->at++;
        } else if (p->at < p->end && *p->at == '+') { /* not possessive in Ruby's syntax: repeats the counted item */
            p->at++;
            if (buf_add(&p->re->source, "???", 3)) return no_memory(p->e);
            char *s = p->re->source.data;
            memmove(s + begin + 3, s + begin, p->re->source.len - 3 - begin);
            memcpy(s + begin, "(?:", 3);
            strcpy(o, ")+");
        }
    } else return 0;
    if ((rc = put_text(p, q))) return rc;
    p->previous = 0;
    if (p->at < p->end && (strchr("*+?", *p->at) || (*p->at == '{' && parse_counts(p->at, p->end, &lo, &hi, &after))))
        return unsupported(p, "a quantifier on a quantifier");
    return 0;
}

/* Oniguruma folds these pairs into one non-ASCII letter. No tokenizer has them under (?i:. */
static bool folds_together(uint32_t a, uint32_t b) {
    a |= 32, b |= 32;
    return (a == 's' && (b == 's' || b == 't')) || (a == 'f' && (b == 'f' || b == 'i' || b == 'l'));
}

static int parse_item(struct pattern_parser *p) {
    struct charset s = {0};
    bool is_set = true;
    uint32_t c = 0;
    int rc = 0;
    size_t begin = p->re->source.len;
    switch (*p->at) {
    case '(': rc = parse_group(p); return rc ? rc : parse_quantifier(p, begin);
    case '^':
    case '$': {
        char text[2] = {*p->at++, 0};
        if (p->at < p->end && strchr("*+?", *p->at)) return unsupported(p, "a quantifier on an anchor");
        return put_text(p, text);
    }
    case '*':
    case '+':
    case '?': return unsupported(p, "a quantifier on nothing");
    case '.':
        p->at++;
        rc = charset_add(&s, '\n', '\n');
        if (!rc) rc = charset_invert(&s);
        if (rc) rc = no_memory(p->e);
        break;
    case '[': rc = parse_class(p, &s); break;
    case '\\':
        p->at++;
        if (p->at < p->end && (*p->at == 'A' || *p->at == 'z' || *p->at == 'Z')) {
            char text[3] = {'\\', *p->at++, 0};
            return put_text(p, text);
        }
        rc = parse_escape(p, &s, &is_set, &c);
        break;
    default: is_set = false; c = utf8_next(&p->at);
    }
    if (!rc && !is_set) {
        if (charset_add(&s, c, c)) rc = no_memory(p->e);
        else if (p->fold && has_non_ascii(&s)) rc = unsupported(p, "a character beyond ASCII under (?i:");
        else if (p->fold && p->previous && folds_together(p->previous, c))
            rc = unsupported(p, "letters that fold into one under (?i:");
        else if (p->fold) rc = fold_set(p, &s);
    }
    p->previous = is_set ? 0 : c;
    if (!rc) return (rc = put_set(p->re, p->a, &s, p->e)) ? rc : parse_quantifier(p, begin);
    charset_free(&s);
    return rc;
}

static int parse_alternatives(struct pattern_parser *p) {
    if (++p->depth > MAX_DEPTH) return unsupported(p, "nested too deeply");
    int rc = 0;
    while (!rc && p->at < p->end && *p->at != ')') {
        if (*p->at == '|') {
            p->at++;
            p->previous = 0;
            rc = put_text(p, "|");
        } else rc = parse_item(p);
    }
    p->depth--;
    return rc;
}

int pattern_parse(struct pattern *re, struct alphabet *a, const char *pattern, size_t n, struct error *e) {
    struct pattern_parser p = {.re = re, .a = a, .at = pattern, .end = pattern + n, .begin = pattern, .n = n, .e = e};
    if (utf8_valid(pattern, n) != n) return error_set(e, ERR_MODEL, "regex: not UTF-8");
    int rc = parse_alternatives(&p);
    return rc ? rc : p.at < p.end ? unsupported(&p, "')' without '('") : 0;
}
int pattern_add_set(struct pattern *re, struct alphabet *a, struct charset *s, const char *quantifier,
                    struct error *e) {
    int rc = put_set(re, a, s, e);
    return rc ? rc : pattern_add_text(re, quantifier, e);
}
int pattern_add_text(struct pattern *re, const char *pcre, struct error *e) {
    return buf_str(&re->source, pcre) ? no_memory(e) : 0;
}

/* --- the alphabet ----------------------------------------------------------------------------- */

/* Non-ASCII characters in the same sets share a byte. Sweeps over the borders of all sets at once. */
int alphabet_build(struct alphabet *a, struct error *e) {
    enum { MAX_CLASSES = 128, MAX_WIDE = 64 };
    size_t wide[MAX_WIDE], at[MAX_WIDE], n_wide = 0;
    for (size_t i = 0; i < a->n_sets; i++) {
        const struct charset *s = &a->sets[i];
        if (!s->n || s->r[s->n - 1].hi < 0x80) continue;
        if (n_wide == MAX_WIDE) return error_set(e, ERR_MODEL, "regex: more than %d non-ASCII classes", MAX_WIDE);
        wide[n_wide] = i;
        at[n_wide++] = 0;
    }
    if (!(a->byte_of = mem_alloc(UNICODE_END))) return no_memory(e);
    for (int c = 0; c < 0x80; c++) a->byte_of[c] = (uint8_t)c;
    uint64_t classes[MAX_CLASSES];
    for (uint32_t c = 0x80; c < UNICODE_END;) {
        uint64_t sig = 0;
        uint32_t next = UNICODE_END;
        for (size_t i = 0; i < n_wide; i++) {
            const struct charset *s = &a->sets[wide[i]];
            while (at[i] < s->n && s->r[at[i]].hi < c) at[i]++;
            if (at[i] == s->n) continue;
            bool in = s->r[at[i]].lo <= c;
            uint32_t border = in ? s->r[at[i]].hi + 1 : s->r[at[i]].lo;
            if (in) sig |= UINT64_C(1) << i;
            if (border < next) next = border;
        }
        int k = 0;
        while (k < a->n_classes && classes[k] != sig) k++;
        if (k == a->n_classes) {
            if (k == MAX_CLASSES)
                return error_set(e, ERR_MODEL, "regex: its classes divide the characters into more than %d groups",
                                 MAX_CLASSES);
            a->first[a->n_classes] = c;
            classes[a->n_classes++] = sig;
        }
        memset(a->byte_of + c, 0x80 | k, next - c);
        c = next;
    }
    return 0;
}

void alphabet_free(struct alphabet *a) {
    for (size_t i = 0; i < a->n_sets; i++) charset_free(&a->sets[i]);
    mem_free(a->sets);
    mem_free(a->byte_of);
    *a = (struct alphabet){0};
}

size_t alphabet_map(const struct alphabet *a, const char *s, size_t n, uint8_t *out) {
    uint8_t *o = out;
    for (const char *end = s + n; s < end;) {
        size_t k = utf8_ascii(s, (size_t)(end - s));
        memcpy(o, s, k);
        o += k;
        s += k;
        while (s < end && (unsigned char)*s >= 0x80) *o++ = a->byte_of[utf8_next(&s)];
    }
    return (size_t)(o - out);
}

/* --- PCRE2 ------------------------------------------------------------------------------------ */

static void *pcre_alloc(size_t n, void *ctx) { return mem_alloc(n); }
static void pcre_free(void *p, void *ctx) { mem_free(p); }

static bool translate_sets(const struct alphabet *a, const struct charset *s, bool bits[256]) {
    bool any = false;
    for (uint32_t c = 0; c < 0x80; c++) any |= bits[c] = charset_has(s, c);
    for (int k = 0; k < 0x80; k++) any |= bits[0x80 + k] = k < a->n_classes && charset_has(s, a->first[k]);
    return any;
}

static int put_class(struct buf *out, const struct alphabet *a, const struct charset *s) {
    bool bits[256];
    if (!translate_sets(a, s, bits)) return buf_str(out, "(?!)");
    buf_char(out, '[');
    for (int c = 0; c < 256; c++) {
        if (!bits[c]) continue;
        int d = c;
        while (d < 255 && bits[d + 1]) d++;
        buf_fmt(out, d > c ? "\\x%02x-\\x%02x" : "\\x%02x", c, d);
        c = d;
    }
    return buf_char(out, ']');
}

int pattern_compile(struct pattern *re, const struct alphabet *a, struct error *e) {
    struct buf text = {0};
    int rc = 0, number = 0;
    const char *s = re->source.data;
    for (size_t i = 0; i < re->source.len; i++) {
        if (s[i] != SET_MARK) {
            buf_char(&text, s[i]);
            continue;
        }
        put_class(&text, a, &a->sets[((unsigned char)s[i + 1] & 127) << INDEX_BITS | ((unsigned char)s[i + 2] & 127)]);
        i += 2;
    }
    pcre2_general_context *g = NULL;
    pcre2_compile_context *c = NULL;
    if (text.failed || !(g = pcre2_general_context_create(pcre_alloc, pcre_free, NULL)) ||
        !(c = pcre2_compile_context_create(g))) {
        rc = no_memory(e);
        goto out;
    }
    pcre2_set_newline(c, PCRE2_NEWLINE_LF);
    PCRE2_SIZE where;
    re->code = pcre2_compile((PCRE2_SPTR)(text.data ? text.data : ""), text.len, PCRE2_MULTILINE, &number, &where, c);
    if (!re->code) {
        char why[120];
        if (number == PCRE2_ERROR_HEAP_FAILED) rc = no_memory(e);
        else {
            pcre2_get_error_message(number, (PCRE2_UCHAR *)why, sizeof why);
            rc = error_set(e, ERR_MODEL, "regex: %s", why);
        }
        goto out;
    }
    /* without JIT permission the interpreter gives the same result */
    number = pcre2_jit_compile(re->code, PCRE2_JIT_COMPLETE);
    if (number == PCRE2_ERROR_NOMEMORY) rc = no_memory(e);
    re->has_jit = number == 0;
out:
    pcre2_compile_context_free(c);
    pcre2_general_context_free(g);
    buf_free(&text);
    return rc;
}

void pattern_free(struct pattern *re) {
    buf_free(&re->source);
    pcre2_code_free(re->code);
    *re = (struct pattern){0};
}

int pattern_matcher_open(struct pattern_matcher *run, struct error *e) {
    pcre2_general_context *g = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    int rc = 0;
    if (!g || !(run->data = pcre2_match_data_create(1, g)) || !(run->context = pcre2_match_context_create(g)) ||
        !(run->stack = pcre2_jit_stack_create(32 << 10, 16 << 20, g))) {
        rc = no_memory(e);
        pattern_matcher_close(run);
    } else pcre2_jit_stack_assign(run->context, NULL, run->stack);
    pcre2_general_context_free(g);
    return rc;
}
void pattern_matcher_close(struct pattern_matcher *run) {
    pcre2_match_data_free(run->data);
    pcre2_match_context_free(run->context);
    pcre2_jit_stack_free(run->stack);
    *run = (struct pattern_matcher){0};
}

int pattern_match(const struct pattern *re, struct pattern_matcher *run, const uint8_t *s, size_t n, size_t from,
                  size_t *begin, size_t *end, struct error *e) {
    int rc = re->has_jit ? pcre2_jit_match(re->code, s, n, from, 0, run->data, run->context)
                         : pcre2_match(re->code, s, n, from, 0, run->data, run->context);
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc < 0) {
        char why[120];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return error_set(e, rc == PCRE2_ERROR_NOMEMORY || rc == PCRE2_ERROR_HEAPLIMIT ? ERR_MEMORY : ERR_RUNTIME,
                         "the pre-tokenizer's regex gave up on this text: %s", why);
    }
    const PCRE2_SIZE *o = pcre2_get_ovector_pointer(run->data);
    *begin = o[0];
    *end = o[1];
    return 1;
}

int pattern_next(const struct pattern *re, struct pattern_matcher *run, const uint8_t *s, size_t n,
                 struct pattern_iter *w, size_t *begin, size_t *end, struct error *e) {
    while (w->from <= n) {
        int rc = pattern_match(re, run, s, n, w->from, begin, end, e);
        if (rc <= 0) return rc;
        if (*begin == *end && w->has_match && w->last == *end) {
            w->from = *end + 1 > w->from + 1 ? *end + 1 : w->from + 1;
            continue;
        }
        w->from = w->last = *end;
        w->has_match = true;
        return 1;
    }
    return 0;
}
