#include "tokenizer/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/grammar/grammar_internal.h"

/* Owns the expressions of a grammar. compile.c turns them into rules. */

int grammar_new(struct grammar **out, struct effort *effort, struct error *e) {
    struct grammar *g = *out = mem_calloc(1, sizeof *g);
    if (!g || mem_grow(&g->exprs, &g->cap_exprs, 256, sizeof *g->exprs)) {
        grammar_free(out);
        return error_set(e, ERR_MEMORY, "no memory for a grammar");
    }
    g->effort = effort;
    g->exprs[EXPR_FAILED] = g->exprs[EXPR_EMPTY] = g->exprs[EXPR_NEVER] = (struct expr){0};
    g->n_exprs = EXPR_NEVER + 1;
    return 0;
}

void grammar_free(struct grammar **at) {
    struct grammar *g = *at;
    *at = NULL;
    if (!g) return;
    mem_free(g->exprs);
    mem_free(g->bytes);
    mem_free(g->sets);
    mem_free(g->elems);
    mem_free(g->rules);
    mem_free(g->alts);
    mem_free(g);
}

static expr_id add_expr(struct grammar *g, struct expr x) {
    if (g->failed) return EXPR_FAILED;
    if (g->n_exprs >= GRAMMAR_MAX_EXPRS || effort_spend(g->effort, 4)) g->failed = ERR_USAGE;
    else if (mem_grow(&g->exprs, &g->cap_exprs, g->n_exprs + 1, sizeof *g->exprs)) g->failed = ERR_MEMORY;
    if (g->failed) return EXPR_FAILED;
    g->exprs[g->n_exprs] = x;
    return (expr_id)g->n_exprs++;
}

expr_id grammar_literal(struct grammar *g, const void *s, size_t n) {
    if (!n) return EXPR_EMPTY;
    if (g->n_bytes + n > GRAMMAR_MAX_BYTES) g->failed = ERR_USAGE;
    else if (mem_grow(&g->bytes, &g->cap_bytes, g->n_bytes + n, 1)) g->failed = ERR_MEMORY;
    if (g->failed) return EXPR_FAILED;
    memcpy(g->bytes + g->n_bytes, s, n);
    g->n_bytes += n;
    return add_expr(g, (struct expr){.kind = EXPR_LITERAL, .a = (uint32_t)(g->n_bytes - n), .b = (uint32_t)n});
}

static int compare_texts(const void *x, const void *y) {
    const struct grammar_text *a = x, *b = y;
    const int order = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return order ? order : (a->n > b->n) - (a->n < b->n);
}
void grammar_sort_texts(struct grammar_text *v, size_t n) {
    if (n > 1) qsort(v, n, sizeof *v, compare_texts);
}

/* Returns what follows the first `at` bytes of sorted texts, which are equal in these. */
static expr_id ends_of_texts(struct grammar *g, const struct grammar_text *v, size_t n, size_t at) {
    expr_id x = EXPR_NEVER;
    size_t i = 0;
    while (i < n && v[i].n == at) i++;
    const bool ends = i > 0;
    while (i < n && !g->failed) {
        const size_t from = i;
        while (i < n && v[i].s[at] == v[from].s[at]) i++;
        const struct grammar_text *a = &v[from], *b = &v[i - 1];
        size_t common = at + 1;
        while (common < a->n && common < b->n && a->s[common] == b->s[common]) common++;
        if (effort_spend(g->effort, i - from + common - at)) g->failed = ERR_USAGE;
        const expr_id head = grammar_literal(g, a->s + at, common - at);
        x = grammar_alt(g, x, grammar_seq(g, head, ends_of_texts(g, a, i - from, common)));
    }
    return ends ? grammar_alt(g, EXPR_EMPTY, x) : x;
}
expr_id grammar_literals(struct grammar *g, struct grammar_text *v, size_t n) {
    grammar_sort_texts(v, n);
    return ends_of_texts(g, v, n, 0);
}

uint32_t grammar_add_set(struct grammar *g, const struct byte_set *s) {
    if (g->effort && effort_spend(g->effort, g->n_sets < 512 ? g->n_sets / 2 : 256)) g->failed = ERR_USAGE;
    for (size_t i = g->n_sets; i-- > 0 && g->n_sets - i < 512;)
        if (!memcmp(&g->sets[i], s, sizeof *s)) return (uint32_t)i;
    if (mem_grow(&g->sets, &g->cap_sets, g->n_sets + 1, sizeof *g->sets)) {
        g->failed = ERR_MEMORY;
        return 0;
    }
    g->sets[g->n_sets] = *s;
    return (uint32_t)g->n_sets++;
}

expr_id grammar_class(struct grammar *g, const struct byte_set *s) {
    static const struct byte_set none;
    if (!memcmp(s, &none, sizeof none)) return EXPR_NEVER;
    uint32_t set = grammar_add_set(g, s);
    return add_expr(g, (struct expr){.kind = EXPR_CLASS, .a = set});
}

expr_id grammar_seq(struct grammar *g, expr_id a, expr_id b) {
    if (!a || !b) return EXPR_FAILED;
    if (a == EXPR_NEVER || b == EXPR_NEVER) return EXPR_NEVER;
    if (a == EXPR_EMPTY) return b;
    return b == EXPR_EMPTY ? a : add_expr(g, (struct expr){.kind = EXPR_SEQ, .a = a, .b = b});
}

expr_id grammar_alt(struct grammar *g, expr_id a, expr_id b) {
    if (!a || !b) return EXPR_FAILED;
    if (a == EXPR_NEVER || a == b) return b;
    return b == EXPR_NEVER ? a : add_expr(g, (struct expr){.kind = EXPR_ALT, .a = a, .b = b});
}

expr_id grammar_repeat(struct grammar *g, expr_id a, uint32_t lo, uint32_t hi) {
    if (!a || lo > hi) return a ? EXPR_NEVER : EXPR_FAILED;
    if (!hi || a == EXPR_EMPTY || (a == EXPR_NEVER && !lo)) return EXPR_EMPTY;
    if (a == EXPR_NEVER || (lo == 1 && hi == 1)) return a;
    return add_expr(g, (struct expr){.kind = EXPR_REPEAT, .a = a, .lo = lo, .hi = hi});
}

expr_id grammar_text(struct grammar *g, expr_id a, uint32_t lo, uint32_t hi) {
    const expr_id x = grammar_repeat(g, a, lo, hi);
    if (x && g->exprs[x].kind == EXPR_REPEAT && g->exprs[x].a == a) g->exprs[x].text = TEXT_ANY;
    return x;
}
expr_id grammar_tagged_text(struct grammar *g, expr_id a) {
    const expr_id x = grammar_text(g, a, 0, GRAMMAR_UNBOUNDED);
    if (x && g->exprs[x].text) g->exprs[x].text = TEXT_TAGGED;
    return x;
}

void grammar_token_bytes(int32_t id, uint8_t out[static GRAMMAR_TOKEN_BYTES]) {
    out[0] = GRAMMAR_TOKEN_MARK;
    for (int i = 1; i < GRAMMAR_TOKEN_BYTES; i++) out[i] = (uint8_t)(0x80 | (id >> 7 * (i - 1) & 0x7F));
}
expr_id grammar_token(struct grammar *g, int32_t id) {
    uint8_t bytes[GRAMMAR_TOKEN_BYTES];
    grammar_token_bytes(id, bytes);
    return id < 0 || id >> 21 ? EXPR_NEVER : grammar_literal(g, bytes, sizeof bytes);
}

expr_id grammar_rule(struct grammar *g) { return add_expr(g, (struct expr){.kind = EXPR_RULE, .a = EXPR_NEVER}); }
void grammar_define(struct grammar *g, expr_id rule, expr_id body) {
    if (rule && body) g->exprs[rule].a = body;
}
static expr_id mark(struct grammar *g, expr_id a, bool lexeme, bool nests) {
    return a <= EXPR_NEVER ? a
                           : add_expr(g, (struct expr){.kind = EXPR_RULE, .a = a, .is_lexeme = lexeme, .nests = nests});
}
expr_id grammar_lexeme(struct grammar *g, expr_id a) { return mark(g, a, true, false); }
expr_id grammar_nest(struct grammar *g, expr_id a) { return mark(g, a, false, true); }

/* --- code points ------------------------------------------------------------------------------ */

static expr_id byte_range(struct grammar *g, int from, int to) {
    struct byte_set s = {0};
    byte_set_add(&s, from, to);
    return grammar_class(g, &s);
}

/* Encodings of n bytes between the encodings lo and hi, from byte `at` on. Bytes after the first run from 0x80 to
 * 0xBF. */
static expr_id encodings(struct grammar *g, const unsigned char *lo, const unsigned char *hi, size_t n, size_t at) {
    static const unsigned char least[] = {0x80, 0x80, 0x80, 0x80}, most[] = {0xBF, 0xBF, 0xBF, 0xBF};
    if (at == n) return EXPR_EMPTY;
    if (lo[at] == hi[at]) return grammar_seq(g, byte_range(g, lo[at], hi[at]), encodings(g, lo, hi, n, at + 1));
    int from = lo[at], to = hi[at];
    expr_id x = EXPR_NEVER;
    if (memcmp(lo + at + 1, least, n - at - 1) != 0)
        x = grammar_seq(g, byte_range(g, from, from), encodings(g, lo, most, n, at + 1)), from++;
    expr_id last = EXPR_NEVER;
    if (memcmp(hi + at + 1, most, n - at - 1) != 0)
        last = grammar_seq(g, byte_range(g, to, to), encodings(g, least, hi, n, at + 1)), to--;
    if (from <= to) {
        expr_id rest = EXPR_EMPTY;
        for (size_t i = at + 1; i < n; i++) rest = grammar_seq(g, rest, byte_range(g, 0x80, 0xBF));
        x = grammar_alt(g, x, grammar_seq(g, byte_range(g, from, to), rest));
    }
    return grammar_alt(g, x, last);
}

expr_id grammar_alt_range(struct grammar *g, expr_id a, uint32_t from, uint32_t to) {
    /* of encodings with one length; surrogates have none */
    static const uint32_t ends[] = {0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF, 0x10FFFF};
    for (size_t i = 0; i < sizeof ends / sizeof *ends && from <= to; i++) {
        char lo[4], hi[4];
        if (from > ends[i]) continue;
        uint32_t last = to < ends[i] ? to : ends[i];
        size_t n = utf8_put(from, lo);
        utf8_put(last, hi);
        if (ends[i] != 0xDFFF) a = grammar_alt(g, a, encodings(g, (unsigned char *)lo, (unsigned char *)hi, n, 0));
        from = last + 1;
    }
    return a;
}

const struct grammar_rules *grammar_rules(const struct grammar *g) { return &g->compiled; }
