#include "tokenizer/jinja/jeval.h"

/* Tests: x is NAME. */

static bool t_defined(struct jrun *r, struct jval v, struct jval *a) { return v.type != J_UNDEF; }
static bool t_undefined(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_UNDEF; }
static bool t_none(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_NONE; }
static bool t_boolean(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_BOOL; }
static bool t_true(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_BOOL && v.b; }
static bool t_false(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_BOOL && !v.b; }
static bool t_integer(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_INT || v.big; }
static bool t_float(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_FLOAT && !v.big; }
static bool t_number(struct jrun *r, struct jval v, struct jval *a) { return jval_is_number(v); }
static bool t_string(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_STR; }
static bool t_mapping(struct jrun *r, struct jval v, struct jval *a) { return v.type == J_DICT; }
static bool t_iterable(struct jrun *r, struct jval v, struct jval *a) { return jiter_is_iterable(v); }
static bool t_sequence(struct jrun *r, struct jval v, struct jval *a) {
    return v.type == J_STR || v.type == J_LIST || v.type == J_TUPLE || v.type == J_DICT || v.type == J_RANGE ||
           v.type == J_UNDEF;
}
static bool t_callable(struct jrun *r, struct jval v, struct jval *a) {
    return v.type == J_GLOBAL || v.type == J_METHOD || v.type == J_MACRO || v.type == J_LOOP || v.type == J_JOINER ||
           v.type == J_UNDEF;
}
static bool t_upper(struct jrun *r, struct jval v, struct jval *a) {
    return junicode_is_cased(jrepr_to_str(r, v), true);
}
static bool t_lower(struct jrun *r, struct jval v, struct jval *a) {
    return junicode_is_cased(jrepr_to_str(r, v), false);
}

static bool remainder_is(struct jrun *r, struct jval v, struct jval by, int64_t want) {
    if (v.type == J_STR) jfail(r, "not all arguments converted during string formatting");
    return jval_eq(r, jop_math(r, T_MOD, v, by), jval_int(want));
}
static bool t_odd(struct jrun *r, struct jval v, struct jval *a) { return remainder_is(r, v, jval_int(2), 1); }
static bool t_even(struct jrun *r, struct jval v, struct jval *a) { return remainder_is(r, v, jval_int(2), 0); }
static bool t_divisibleby(struct jrun *r, struct jval v, struct jval *a) { return remainder_is(r, v, a[0], 0); }

static bool t_in(struct jrun *r, struct jval v, struct jval *a) { return jval_contains(r, v, a[0]); }
static bool t_eq(struct jrun *r, struct jval v, struct jval *a) { return jval_eq(r, v, a[0]); }
static bool t_ne(struct jrun *r, struct jval v, struct jval *a) { return !jval_eq(r, v, a[0]); }
static bool t_lt(struct jrun *r, struct jval v, struct jval *a) { return jval_cmp(r, v, a[0], "<") == -1; }
static bool t_gt(struct jrun *r, struct jval v, struct jval *a) { return jval_cmp(r, v, a[0], ">") == 1; }
static bool t_le(struct jrun *r, struct jval v, struct jval *a) {
    int c = jval_cmp(r, v, a[0], "<=");
    return c == -1 || c == 0;
}
static bool t_ge(struct jrun *r, struct jval v, struct jval *a) {
    int c = jval_cmp(r, v, a[0], ">=");
    return c == 1 || c == 0;
}
/* Object identity: Python shares constants, small integers and strings; other values are identical only to
 * themselves. */
static bool t_sameas(struct jrun *r, struct jval v, struct jval *a) {
    if (v.type != a[0].type) return false;
    if (v.type == J_LIST || v.type == J_TUPLE || v.type == J_DICT) return v.l == a[0].l;
    return jval_eq(r, v, a[0]);
}
static bool t_filter(struct jrun *r, struct jval v, struct jval *a) {
    jval_hash(r, v); /* an unhashable key is an error */
    return v.type == J_STR && jfilter_find(v.s);
}
static bool t_test(struct jrun *r, struct jval v, struct jval *a) {
    jval_hash(r, v);
    return v.type == J_STR && jtest_find(v.s);
}

static const struct jtest tests[] = {
    {"odd", t_odd, "", 0},
    {"even", t_even, "", 0},
    {"divisibleby", t_divisibleby, "num", 1},
    {"defined", t_defined, "", 0},
    {"undefined", t_undefined, "", 0},
    {"filter", t_filter, "", 0},
    {"test", t_test, "", 0},
    {"none", t_none, "", 0},
    {"boolean", t_boolean, "", 0},
    {"false", t_false, "", 0},
    {"true", t_true, "", 0},
    {"integer", t_integer, "", 0},
    {"float", t_float, "", 0},
    {"lower", t_lower, "", 0},
    {"upper", t_upper, "", 0},
    {"string", t_string, "", 0},
    {"mapping", t_mapping, "", 0},
    {"number", t_number, "", 0},
    {"sequence", t_sequence, "", 0},
    {"iterable", t_iterable, "", 0},
    {"callable", t_callable, "", 0},
    {"sameas", t_sameas, "other", 1},
    {"in", t_in, "seq", 1},
    {"==", t_eq, "b", 1},
    {"eq", t_eq, "b", 1},
    {"equalto", t_eq, "b", 1},
    {"!=", t_ne, "b", 1},
    {"ne", t_ne, "b", 1},
    {">", t_gt, "b", 1},
    {"gt", t_gt, "b", 1},
    {"greaterthan", t_gt, "b", 1},
    {">=", t_ge, "b", 1},
    {"ge", t_ge, "b", 1},
    {"<", t_lt, "b", 1},
    {"lt", t_lt, "b", 1},
    {"lessthan", t_lt, "b", 1},
    {"<=", t_le, "b", 1},
    {"le", t_le, "b", 1},
};
const struct jtest *jtest_find(const struct jstr *name) {
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (jstr_equals(name, tests[i].name)) return &tests[i];
    return NULL;
}
