#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

/* Numbers within bounds, digit by digit. At most 15 significant digits are generated, so that different texts are
 * different doubles and a bound that a text keeps is kept by the double. */

enum { MAX_DIGITS = 15 };

struct number_range schema_range(const struct conj *c) {
    struct number_range r = {.lo = schema_greatest(c, "minimum", -INFINITY),
                             .hi = schema_least(c, "maximum", INFINITY)};
    const double above = schema_greatest(c, "exclusiveMinimum", -INFINITY),
                 below = schema_least(c, "exclusiveMaximum", INFINITY);
    if (above >= r.lo && above > -INFINITY) r.lo = above, r.above = true;
    if (below <= r.hi && below < INFINITY) r.hi = below, r.below = true;
    return r;
}

static expr_id digit_range(struct grammar *g, int from, int to) {
    struct byte_set s = {0};
    if (from > to) return EXPR_NEVER;
    byte_set_add(&s, '0' + from, '0' + to);
    return grammar_class(g, &s);
}

/* The digits of two bounds of one length; those from index `point` on follow the decimal point. */
struct digits {
    struct grammar *g;
    const char *lo, *hi; /* of one length */
    int n, point;
};

static bool all_are(const char *s, int from, int n, char c) {
    for (int i = from; i < n; i++)
        if (s[i] != c) return false;
    return true;
}

/* Texts of the digits from index i on. is_low, is_high: the digits before are those of lo, of hi. begun: a digit after
 * the point was written. */
static expr_id digits_from(const struct digits *d, int i, bool is_low, bool is_high, bool begun) {
    struct grammar *g = d->g;
    const bool fraction = i >= d->point, may_end = fraction && (!is_low || all_are(d->lo, i, d->n, '0'));
    if (i == d->n) return EXPR_EMPTY;
    if (!is_low && !is_high && fraction) { /* any digits */
        const expr_id rest = grammar_repeat(g, digit_range(g, 0, 9), begun ? 0 : 1, (uint32_t)(d->n - i));
        return begun ? rest : grammar_alt(g, EXPR_EMPTY, grammar_seq(g, grammar_literal(g, ".", 1), rest));
    }
    const int lo = is_low ? d->lo[i] - '0' : 0, hi = is_high ? d->hi[i] - '0' : 9;
    expr_id x = EXPR_NEVER;
    if (is_low && is_high && lo == hi)
        x = grammar_seq(g, digit_range(g, lo, lo), digits_from(d, i + 1, true, true, fraction));
    else {
        const int from = is_low ? lo + 1 : 0, to = is_high ? hi - 1 : 9;
        if (is_low) x = grammar_seq(g, digit_range(g, lo, lo), digits_from(d, i + 1, true, false, fraction));
        if (from <= to)
            x = grammar_alt(g, x,
                            grammar_seq(g, digit_range(g, from, to), digits_from(d, i + 1, false, false, fraction)));
        if (is_high)
            x = grammar_alt(g, x, grammar_seq(g, digit_range(g, hi, hi), digits_from(d, i + 1, false, true, fraction)));
    }
    if (fraction && !begun) x = grammar_seq(g, grammar_literal(g, ".", 1), x);
    return may_end ? grammar_alt(g, EXPR_EMPTY, x) : x;
}

static int64_t power_of_ten(int n) {
    int64_t p = 1;
    while (n-- > 0) p *= 10;
    return p;
}

/* Numbers from lo to hi, 0 <= lo, in units of 10^-places. */
static expr_id positive(struct grammar *g, int64_t lo, int64_t hi, int places) {
    expr_id x = EXPR_NEVER;
    const int64_t unit = power_of_ten(places);
    for (int n = 1; n + places <= 18; n++) {
        const int64_t first = n == 1 ? 0 : power_of_ten(n - 1) * unit, last = power_of_ten(n) * unit - 1;
        const int64_t from = lo > first ? lo : first, to = hi < last ? hi : last;
        char a[40], b[40];
        if (from > to) continue;
        snprintf(a, sizeof a, "%0*lld", n + places, (long long)from);
        snprintf(b, sizeof b, "%0*lld", n + places, (long long)to);
        x = grammar_alt(g, x, digits_from(&(struct digits){g, a, b, n + places, n}, 0, true, true, false));
    }
    return x;
}

static double value_of(int64_t n, int places) {
    char t[48];
    const int64_t unit = power_of_ten(places), size = n < 0 ? -n : n;
    snprintf(t, sizeof t, "%s%lld.%0*lld", n < 0 ? "-" : "", (long long)(size / unit), places ? places : 1,
             (long long)(size % unit));
    return strtod(t, NULL);
}

/* The least n whose value n * 10^-places is at least (above: more than) the bound. */
static int64_t least_unit(double bound, bool above, int places) {
    int64_t n = (int64_t)llround(bound * (double)power_of_ten(places));
    while (value_of(n, places) < bound || (above && value_of(n, places) == bound)) n++;
    while (value_of(n - 1, places) > bound || (!above && value_of(n - 1, places) == bound)) n--;
    return n;
}

int schema_number(struct schema *s, const struct conj *c, bool integer, expr_id *out) {
    const struct number_range r = schema_range(c);
    const struct json *step;
    int part = 0;
    if (schema_keyword(c, &part, "multipleOf", &step)) return schema_multiple(s, c, part, out);
    *out = integer ? json_integer(s) : json_number(s);
    if (r.lo == -INFINITY && r.hi == INFINITY) return 0;
    *out = EXPR_NEVER;
    if (r.lo > r.hi) return 0;
    const double limit = 1e15, size = fmax(r.lo == -INFINITY ? 0 : fabs(r.lo), r.hi == INFINITY ? 0 : fabs(r.hi));
    /* for the side without a bound: short numbers if the other side is small */
    const double default_bound = size < 1e6 ? 1e9 : limit;
    double lo = r.lo == -INFINITY ? -default_bound : r.lo, hi = r.hi == INFINITY ? default_bound : r.hi;
    if (lo >= limit || hi <= -limit) return schema_fail(s, c->v[0].at, NULL, "bounds beyond 10^15 are not supported");
    if (lo <= -limit) lo = -limit + 1;
    if (hi >= limit) hi = limit - 1;
    int int_digits = 1;
    for (double m = fmax(fabs(lo), fabs(hi)); m >= 10; m /= 10) int_digits++;
    int places = MAX_DIGITS - int_digits < 10 ? MAX_DIGITS - int_digits : 10;
    if (integer || places < 0) places = 0;
    const int64_t from = least_unit(lo, r.above && lo == r.lo, places),
                  to = -least_unit(-hi, r.below && hi == r.hi, places);
    struct grammar *g = s->g;
    if (to >= 0 && from <= to) *out = positive(g, from > 0 ? from : 0, to, places);
    if (from < 0 && from <= to) {
        const expr_id negative = positive(g, to < 0 ? -to : 1, -from, places);
        *out = grammar_alt(g, *out, grammar_seq(g, grammar_literal(g, "-", 1), negative));
    }
    *out = grammar_lexeme(g, *out);
    return 0;
}
