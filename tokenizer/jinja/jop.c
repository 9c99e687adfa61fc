#include <math.h>

#include "tokenizer/jinja/jeval.h"

/* Arithmetic with Python's rules on 64-bit integers. Overflow is an error instead of a wrong number. */

static const char *operator_text(uint8_t op) {
    switch (op) {
    case T_ADD: return "+";
    case T_SUB: return "-";
    case T_MUL: return "*";
    case T_DIV: return "/";
    case T_FLOORDIV: return "//";
    case T_MOD: return "%";
    default: return "** or pow()";
    }
}
_Noreturn static void bad_types(struct jrun *r, uint8_t op, struct jval a, struct jval b) {
    if (op == T_ADD && a.type == J_STR) jfail(r, "can only concatenate str (not \"%s\") to str", jval_type(b));
    if (op == T_ADD && (a.type == J_LIST || a.type == J_TUPLE))
        jfail(r, "can only concatenate %s (not \"%s\") to %s", jval_type(a), jval_type(b), jval_type(a));
    jfail(r, "unsupported operand type(s) for %s: '%s' and '%s'", operator_text(op), jval_type(a), jval_type(b));
}
_Noreturn static void too_big(struct jrun *r) { jfail(r, "the integer does not fit in 64 bits"); }
_Noreturn static void by_zero(struct jrun *r) { jfail(r, "division by zero"); }

static int64_t int_power(struct jrun *r, int64_t a, int64_t n) {
    int64_t v = 1;
    if (a == 0 || a == 1) return n ? a : 1;
    if (a == -1) return n & 1 ? -1 : 1;
    while (n-- > 0)
        if (__builtin_mul_overflow(v, a, &v)) too_big(r);
    return v;
}
static struct jval int_math(struct jrun *r, uint8_t op, int64_t a, int64_t b) {
    int64_t v;
    switch (op) {
    case T_ADD:
        if (__builtin_add_overflow(a, b, &v)) too_big(r);
        return jval_int(v);
    case T_SUB:
        if (__builtin_sub_overflow(a, b, &v)) too_big(r);
        return jval_int(v);
    case T_MUL:
        if (__builtin_mul_overflow(a, b, &v)) too_big(r);
        return jval_int(v);
    case T_DIV:
        if (!b) by_zero(r);
        return jval_float((double)((long double)a / (long double)b));
    case T_FLOORDIV:
        if (!b) by_zero(r);
        if (a == INT64_MIN && b == -1) too_big(r);
        return jval_int(a / b - (a % b != 0 && (a < 0) != (b < 0)));
    case T_MOD:
        if (!b) by_zero(r);
        if (b == -1) return jval_int(0);
        v = a % b;
        return jval_int(v && (v < 0) != (b < 0) ? v + b : v);
    default:
        if (b >= 0) return jval_int(int_power(r, a, b));
        if (!a) jfail(r, "0.0 cannot be raised to a negative power");
        return jval_float(pow((double)a, (double)b));
    }
}
static double float_mod(double a, double b) {
    double m = fmod(a, b);
    if (m) return (m < 0) != (b < 0) ? m + b : m;
    return copysign(0.0, b);
}
static struct jval float_math(struct jrun *r, uint8_t op, double a, double b) {
    switch (op) {
    case T_ADD: return jval_float(a + b);
    case T_SUB: return jval_float(a - b);
    case T_MUL: return jval_float(a * b);
    case T_DIV:
        if (b == 0) by_zero(r);
        return jval_float(a / b);
    case T_FLOORDIV: {
        if (b == 0) by_zero(r);
        double mod = float_mod(a, b), div = (a - mod) / b, fl = floor(div);
        if (div == 0) return jval_float(copysign(0.0, a / b));
        return jval_float(div - fl > 0.5 ? fl + 1 : fl);
    }
    case T_MOD:
        if (b == 0) by_zero(r);
        return jval_float(float_mod(a, b));
    default:
        if (a == 0 && b < 0) jfail(r, "0.0 cannot be raised to a negative power");
        if (a < 0 && isfinite(a) && isfinite(b) && b != floor(b)) jfail(r, "the result is a complex number");
        double p = pow(a, b);
        if (isinf(p) && isfinite(a) && isfinite(b)) jfail(r, "numerical result out of range");
        return jval_float(p);
    }
}

static struct jval repeat_sequence(struct jrun *r, struct jval v, int64_t n) {
    if (n < 0) n = 0;
    if (v.type == J_STR) {
        struct jbuf b = {0};
        if (v.s->n && (uint64_t)n > JINJA_MAX_OUTPUT / v.s->n)
            jfail(r, "the text exceeds %d MB", JINJA_MAX_OUTPUT >> 20);
        for (int64_t i = 0; v.s->n && i < n; i++) jbuf_str(r, &b, v.s);
        jcount_steps(r, v.s->n ? (size_t)n : 0);
        struct jval out = jbuf_finish(r, &b);
        if (!n || !v.s->n) out.s->origin = v.s->origin;
        out.s->markup = v.s->markup;
        return out;
    }
    if (v.l->n && (uint64_t)n > JINJA_MAX_ITEMS / v.l->n) jfail(r, "the list exceeds %d items", JINJA_MAX_ITEMS);
    struct jval out = jval_list(r, v.type, v.l->n * (size_t)n);
    for (size_t i = 0; i < out.l->n; i++) out.l->v[i] = v.l->v[i % v.l->n];
    return out;
}

static struct jval add_strings(struct jrun *r, struct jval a, struct jval b) {
    bool markup = a.s->markup || b.s->markup;
    if (a.s->markup && !b.s->markup) b = jrepr_escape(r, b.s);
    if (!a.s->markup && b.s->markup) a = jrepr_escape(r, a.s);
    struct jval v = jstr_concat(r, a.s, b.s);
    v.s->markup = markup;
    return v;
}
static struct jval add_lists(struct jrun *r, struct jval a, struct jval b) {
    if (a.l->n + b.l->n > JINJA_MAX_ITEMS) jfail(r, "the list exceeds %d items", JINJA_MAX_ITEMS);
    struct jval v = jval_list(r, a.type, a.l->n + b.l->n);
    for (size_t i = 0; i < a.l->n; i++) v.l->v[i] = a.l->v[i];
    for (size_t i = 0; i < b.l->n; i++) v.l->v[a.l->n + i] = b.l->v[i];
    v.origin = a.origin == b.origin ? a.origin : TEXT_VALUE;
    return v;
}

struct jval jop_math(struct jrun *r, uint8_t op, struct jval a, struct jval b) {
    if (op == T_MOD && a.type == J_STR) return jformat_percent(r, a.s, b);
    if (a.type == J_UNDEF) jfail_undef(r, a.u);
    if (b.type == J_UNDEF) jfail_undef(r, b.u);
    if (jval_is_number(a) && jval_is_number(b)) {
        bool real = a.type == J_FLOAT || b.type == J_FLOAT;
        if ((a.big && (b.big || jval_is_int(b))) || (b.big && jval_is_int(a))) too_big(r);
        struct jval v = real ? float_math(r, op, jval_as_float(a), jval_as_float(b))
                             : int_math(r, op, jval_as_int(a), jval_as_int(b));
        v.origin = a.origin == TEXT_VALUE || b.origin == TEXT_VALUE ? TEXT_VALUE : TEXT_TEMPLATE;
        return v;
    }
    bool a_list = a.type == J_LIST || a.type == J_TUPLE, b_list = b.type == J_LIST || b.type == J_TUPLE;
    if (op == T_ADD && a.type == J_STR && b.type == J_STR) return add_strings(r, a, b);
    if (op == T_ADD && a_list && a.type == b.type) return add_lists(r, a, b);
    if (op == T_MUL && (a.type == J_STR || a_list) && jval_is_int(b)) return repeat_sequence(r, a, jval_as_int(b));
    if (op == T_MUL && (b.type == J_STR || b_list) && jval_is_int(a)) return repeat_sequence(r, b, jval_as_int(a));
    bad_types(r, op, a, b);
}
struct jval jop_neg(struct jrun *r, struct jval a, bool minus) {
    if (a.type == J_UNDEF) jfail_undef(r, a.u);
    if (!jval_is_number(a)) jfail(r, "bad operand type for unary %c: '%s'", minus ? '-' : '+', jval_type(a));
    if (minus && (a.big || (jval_is_int(a) && jval_as_int(a) == INT64_MIN))) too_big(r);
    if (a.big) return a;
    struct jval v =
        a.type == J_FLOAT ? jval_float(minus ? -a.f : a.f) : jval_int(minus ? -jval_as_int(a) : jval_as_int(a));
    v.origin = a.origin;
    return v;
}
