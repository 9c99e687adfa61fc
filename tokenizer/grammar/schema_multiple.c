#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

/* Multiples of a whole number. Within bounds they are listed; without, an automaton over decimal digits keeps the
 * remainder of the digits before. Other steps, such as 0.01, are refused: validators divide doubles, and do not agree
 * about the results. */

enum { MAX_STEP = 100, MAX_LISTED = 2000, MAX_DIGITS = 15 /* whole numbers that doubles hold exactly */ };

/* The least common multiple of all steps, or 0: one of them is not a whole number, or the result is too large. */
static int64_t lcm_of_steps(const struct conj *c) {
    const struct json *v;
    int64_t step = 1;
    for (int i = 0; schema_keyword(c, &i, "multipleOf", &v); i++) {
        const double d = json_num(v, 0);
        if (!(d >= 1 && d <= 1e9) || floor(d) != d) return 0;
        int64_t a = step, b = (int64_t)d;
        while (b) {
            const int64_t rest = a % b;
            a = b, b = rest;
        }
        step = step / a * (int64_t)d;
        if (step > 1000000000) return 0;
    }
    return step;
}

static expr_id list_multiples(struct schema *s, int64_t from, int64_t to, int64_t step) {
    enum { DIGITS = 24 };
    struct grammar_text v[MAX_LISTED + 1];
    char *digits = arena_alloc(s->arena, sizeof v / sizeof *v * DIGITS);
    size_t count = 0;
    if (!digits) return EXPR_FAILED;
    for (int64_t n = from; n <= to; n += step, digits += DIGITS)
        v[count++] = (struct grammar_text){digits, (size_t)snprintf(digits, DIGITS, "%lld", (long long)n)};
    return grammar_literals(s->g, v, count);
}

static expr_id digit(struct grammar *g, int64_t d) { return grammar_literal(g, (char[]){(char)('0' + d)}, 1); }

/* Writes the texts of the multiples from `step` on, up to MAX_DIGITS. tail[r]: the digits, maybe none, that may follow
 * digits with the remainder r; each round allows one more. */
static int positive_multiples(struct schema *s, int64_t step, expr_id *out) {
    struct grammar *g = s->g;
    expr_id *tail = arena_alloc(s->arena, 2 * (size_t)step * sizeof *tail), *next;
    if (!tail) return error_set(s->e, ERR_MEMORY, "no memory for the schema");
    next = tail + step;
    for (int64_t r = 0; r < step; r++) next[r] = r ? EXPR_NEVER : EXPR_EMPTY;
    for (int left = 1; left < MAX_DIGITS; left++) {
        for (int64_t r = 0; r < step; r++) {
            expr_id x = r ? EXPR_NEVER : EXPR_EMPTY;
            for (int64_t d = 0; d < 10; d++)
                x = grammar_alt(g, x, grammar_seq(g, digit(g, d), next[(10 * r + d) % step]));
            tail[r] = x;
            if (x == EXPR_NEVER || x == EXPR_EMPTY) continue;
            grammar_define(g, tail[r] = grammar_rule(g), x);
        }
        memcpy(next, tail, (size_t)step * sizeof *next);
    }
    *out = EXPR_NEVER;
    for (int64_t d = 1; d < 10; d++) *out = grammar_alt(g, *out, grammar_seq(g, digit(g, d), next[d % step]));
    return 0;
}

int schema_multiple(struct schema *s, const struct conj *c, int part, expr_id *out) {
    struct grammar *g = s->g;
    const struct number_range r = schema_range(c);
    const int64_t step = lcm_of_steps(c);
    if (!step)
        return schema_fail(s, c->v[part].at, "multipleOf",
                           "only whole numbers are supported, whose least common multiple is at most 10^9");
    const double lo_steps = ceil(r.lo / (double)step) + (r.above && ceil(r.lo / (double)step) * (double)step == r.lo);
    const double hi_steps = floor(r.hi / (double)step) - (r.below && floor(r.hi / (double)step) * (double)step == r.hi);
    *out = EXPR_NEVER;
    if (lo_steps > hi_steps) return 0;
    if (hi_steps - lo_steps < MAX_LISTED && fabs(lo_steps) < 1e6 && fabs(hi_steps) < 1e6) {
        *out = grammar_lexeme(g, list_multiples(s, (int64_t)lo_steps * step, (int64_t)hi_steps * step, step));
        return 0;
    }
    /* The automaton has the multiples of either sign, with zero or without. */
    if (step > MAX_STEP || (lo_steps > -INFINITY && lo_steps != 0 && lo_steps != 1) ||
        (hi_steps < INFINITY && hi_steps != 0 && hi_steps != -1))
        return schema_fail(
            s, c->v[part].at, "multipleOf",
            "%lld is supported with bounds that leave at most %d values, or up to %d with no bound but 0",
            (long long)step, MAX_LISTED, MAX_STEP);
    expr_id x = EXPR_NEVER;
    TRY(positive_multiples(s, step, &x));
    if (lo_steps <= 0 && hi_steps >= 0) *out = grammar_literal(g, "0", 1);
    if (hi_steps > 0) *out = grammar_alt(g, *out, x);
    if (lo_steps < 0) *out = grammar_alt(g, *out, grammar_seq(g, grammar_literal(g, "-", 1), x));
    *out = grammar_lexeme(g, *out);
    return 0;
}
