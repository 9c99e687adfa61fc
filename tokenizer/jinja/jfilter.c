#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/jinja/jeval.h"

/* Filters on single values: text, numbers, JSON. Filters on sequences are in jseq.c. */

static struct jstr *soft_str(struct jrun *r, struct jval v) { return jrepr_to_str(r, v); } /* soft_str: keeps markup */
static struct jval plain_str(struct jstr *s) { return (struct jval){.type = J_STR, .s = s}; }
static struct jstr *to_plain(struct jrun *r, struct jval v) { /* str(): drops markup */
    struct jstr *s = jrepr_to_str(r, v);
    if (!s->markup) return s;
    s = jstr_sub(r, s, 0, s->n).s;
    s->markup = false;
    return s;
}

static struct jval f_upper(struct jrun *r, struct jval v, struct jval *a) {
    return junicode_map(r, soft_str(r, v), CASE_UPPER);
}
static struct jval f_lower(struct jrun *r, struct jval v, struct jval *a) {
    return junicode_map(r, soft_str(r, v), CASE_LOWER);
}
static struct jval f_capitalize(struct jrun *r, struct jval v, struct jval *a) {
    return junicode_capitalize(r, soft_str(r, v));
}
static struct jval f_string(struct jrun *r, struct jval v, struct jval *a) { return plain_str(soft_str(r, v)); }
static struct jval f_trim(struct jrun *r, struct jval v, struct jval *a) {
    return jtext_strip(r, soft_str(r, v), a[0], true, true);
}
static struct jval f_replace(struct jrun *r, struct jval v, struct jval *a) {
    return jtext_replace(r, to_plain(r, v), to_plain(r, a[0]), to_plain(r, a[1]), jtext_int(r, a[2], -1));
}
/* For this filter words also begin after "-", "(", "{", "[" and "<", unlike str.title(). */
static bool is_title_break(uint32_t c) {
    return unicode_is_python_space(c) || (c && c < 0x80 && strchr("-({[<", (int)c));
}
static struct jval f_title(struct jrun *r, struct jval v, struct jval *a) {
    struct jstr *s = soft_str(r, v);
    struct jbuf b = {0};
    for (size_t i = 0, k, end; i < s->n; i = end) {
        bool gap = is_title_break(junicode_decode(s->s + i, s->n - i, &k));
        junicode_add_cased(r, &b, s, i, junicode_decode(s->s + i, s->n - i, &k), k, CASE_UPPER);
        size_t from = i + k, len = 0;
        for (end = from; end < s->n; end += len)
            if (is_title_break(junicode_decode(s->s + end, s->n - end, &len)) != gap) break;
        jbuf_str(r, &b, junicode_map(r, jstr_sub(r, s, from, end - from).s, CASE_LOWER).s);
    }
    return jbuf_finish(r, &b);
}
static struct jval f_safe(struct jrun *r, struct jval v, struct jval *a) {
    struct jstr *s = jrepr_to_str(r, v);
    s = jstr_sub(r, s, 0, s->n).s;
    s->markup = true;
    return plain_str(s);
}
static struct jval f_escape(struct jrun *r, struct jval v, struct jval *a) {
    return v.type == J_STR && v.s->markup ? v : jrepr_escape(r, jrepr_to_str(r, v));
}

static struct jval f_indent(struct jrun *r, struct jval v, struct jval *a) {
    if (v.type == J_UNDEF) jfail_undef(r, v.u);
    if (v.type != J_STR) jfail(r, "unsupported operand type(s) for +=: '%s' and 'str'", jval_type(v));
    struct jstr *s = v.s, *by;
    struct jbuf pad = {0}, b = {0};
    if (a[0].type == J_STR) by = a[0].s;
    else {
        int64_t n = jtext_int(r, a[0], 4);
        if (n > JINJA_MAX_OUTPUT) jfail(r, "the text exceeds %d MB", JINJA_MAX_OUTPUT >> 20);
        for (; n > 0; n--) jbuf_add(r, &pad, " ", 1, TEXT_TEMPLATE);
        by = jbuf_finish(r, &pad).s;
    }
    bool first = jval_is_true(r, a[1]), blank = jval_is_true(r, a[2]);
    struct jlist *lines = jtext_splitlines(r, jstr_concat(r, s, jstr_literal(r, "\n").s).s, false);
    if (first) jbuf_str(r, &b, by);
    for (size_t i = 0; i < lines->n; i++) {
        struct jstr *line = lines->v[i].s;
        if (i) jbuf_add(r, &b, "\n", 1, TEXT_TEMPLATE);
        if (i && (blank || line->n)) jbuf_str(r, &b, by);
        jbuf_str(r, &b, line);
    }
    struct jval out = jbuf_finish(r, &b);
    out.s->markup = s->markup;
    return out;
}
static struct jval f_truncate(struct jrun *r, struct jval v, struct jval *a) {
    struct jstr *end = a[2].type == J_MISSING ? jstr_literal(r, "...").s : to_plain(r, a[2]);
    int64_t length = jtext_int(r, a[0], 255), leeway = jtext_int(r, a[3], 5), n = (int64_t)jstr_chars(end);
    if (length < n) jfail(r, "expected length >= %lld, got %lld", (long long)n, (long long)length);
    if (leeway < 0) jfail(r, "expected leeway >= 0, got %lld", (long long)leeway);
    if ((int64_t)jval_len(r, v) - length <= leeway) return v; /* length + leeway may exceed 64 bits */
    if (v.type != J_STR) jfail(r, "object of type '%s' cannot be truncated", jval_type(v));
    struct jval cut = jstr_sub(r, v.s, 0, jstr_offset(v.s, (size_t)(length - n)));
    if (!jval_is_true(r, a[1])) {
        size_t i = cut.s->n;
        while (i > 0 && cut.s->s[i - 1] != ' ') i--;
        if (i) cut = jstr_sub(r, cut.s, 0, i - 1);
    }
    return jop_math(r, T_ADD, cut, plain_str(end));
}
static struct jval f_format(struct jrun *r, struct jval v, const struct jargs *args) {
    struct jval t;
    if (args->n && args->n_keywords) jfail(r, "can't handle positional and keyword arguments at the same time");
    if (args->n_keywords) {
        t = jdict_new(r);
        for (size_t i = 0; i < args->n_keywords; i++)
            jdict_set(r, t.d, args->keywords[2 * i], args->keywords[2 * i + 1]);
    } else {
        t = jval_list(r, J_TUPLE, args->n);
        if (args->n) memcpy(t.l->v, args->v, args->n * sizeof *args->v);
    }
    return jformat_percent(r, soft_str(r, v), t);
}

static struct jval f_tojson(struct jrun *r, struct jval v, struct jval *a) {
    struct jtojson o = {.ascii = jval_is_true(r, a[0]), .sort_keys = jval_is_true(r, a[3])};
    if (a[1].type != J_MISSING && a[1].type != J_NONE) {
        o.indented = true;
        if (a[1].type == J_STR) o.indent = jstr_for_error(r, a[1].s);
        else {
            int64_t n = jval_index(r, a[1], "indent");
            n = n < 0 ? 0 : n;
            if (n > 1000) jfail(r, "the indent exceeds 1000");
            char *pad = jalloc(r, (size_t)n + 1);
            memset(pad, ' ', (size_t)n);
            pad[n] = 0;
            o.indent = pad;
        }
    }
    if (a[2].type != J_MISSING && a[2].type != J_NONE) {
        struct jlist *pair = jiter_to_list(r, a[2]);
        if (pair->n != 2 || pair->v[0].type != J_STR || pair->v[1].type != J_STR)
            jfail(r, "separators must be a pair of strings");
        o.item_sep = pair->v[0].s;
        o.key_sep = pair->v[1].s;
    }
    return jrepr_json(r, v, &o);
}

/* Our extension: built-in templates (builtin_templates.h) parse tool arguments with it. */
static struct jval f_parse_json(struct jrun *r, struct jval v, struct jval *a) {
    struct json j;
    struct jstr *s = to_plain(r, v);
    char *text = jalloc(r, s->n + 1);
    memcpy(text, s->s, s->n);
    int rc = json_parse(r->arena, text, s->n, 0, "tool arguments", &j, NULL);
    if (!rc) return jval_from_json(r, &j);
    if (rc == ERR_MEMORY) jfail_memory(r);
    if (a[0].type == J_MISSING) jfail(r, "not JSON: '%s'", jstr_for_error(r, s));
    return a[0];
}

/* ---- numbers */

/* Accepts Python's int("12") and float("1.5"): surrounding white space, underscores between digits. False: not a
 * number. */
static bool clean_number(struct jrun *r, struct jstr *s, char *out, size_t cap) {
    struct jstr *t = jtext_strip(r, s, jval_missing(), true, true).s;
    size_t n = 0;
    for (size_t i = 0; i < t->n; i++) {
        if (t->s[i] == '_') {
            bool digits = i && i + 1 < t->n && (jascii_is_letter(t->s[i - 1]) || jascii_is_digit(t->s[i - 1]));
            if (!digits || !(jascii_is_letter(t->s[i + 1]) || jascii_is_digit(t->s[i + 1]))) return false;
            continue;
        }
        if (n + 1 >= cap || !t->s[i] || (unsigned char)t->s[i] >= 0x80) return false;
        out[n++] = t->s[i];
    }
    out[n] = 0;
    return n > 0;
}
static bool parse_int(struct jrun *r, struct jstr *s, int base, int64_t *v) {
    char t[128], *p = t, *end;
    if (!clean_number(r, s, t, sizeof t)) return false;
    bool minus = *p == '-';
    if (*p == '-' || *p == '+') p++;
    if (p[0] == '0' && p[1]) {
        int own = jascii_base(p[1]);
        if (own && (base == own || base == 0)) p += 2, base = own;
        else if (base == 0 && strspn(p, "0") != strlen(p)) return false;
    }
    if (base == 0) base = 10;
    if (!jascii_is_letter(*p) && !jascii_is_digit(*p)) return false;
    unsigned long long u = strtoull(p, &end, base);
    if (*end) return false;
    if (u > INT64_MAX) jfail(r, "the integer does not fit in 64 bits");
    *v = minus ? -(int64_t)u : (int64_t)u;
    return true;
}
static bool parse_float(struct jrun *r, struct jstr *s, double *v) {
    char t[512], *end;
    if (!clean_number(r, s, t, sizeof t) || strpbrk(t, "xXpP(")) return false;
    *v = strtod(t, &end);
    return !*end;
}
static bool to_float(struct jrun *r, struct jval v, double *f) {
    if (v.type == J_UNDEF) jfail_undef(r, v.u);
    if (jval_is_number(v)) return *f = jval_as_float(v), true;
    return v.type == J_STR && parse_float(r, v.s, f);
}
static struct jval f_int(struct jrun *r, struct jval v, struct jval *a) {
    int64_t base = jtext_int(r, a[1], 10), i;
    struct jval out = jval_int(0);
    double f;
    if (v.type == J_UNDEF) jfail_undef(r, v.u);
    out.origin = v.type == J_STR ? v.s->origin : v.origin;
    if (jval_is_int(v)) return out.i = jval_as_int(v), out;
    if (v.big) return v;
    /* Python rejects this base: treat the text as not a number */
    if (v.type == J_STR && (base < 0 || base == 1 || base > 36)) base = 10;
    if (v.type == J_STR && parse_int(r, v.s, (int)base, &i)) return out.i = i, out;
    if (v.type == J_FLOAT && isinf(v.f)) jfail(r, "cannot convert float infinity to integer");
    if (to_float(r, v, &f) && isfinite(f)) {
        if (!(fabs(f) < 0x1p63)) jfail(r, "the integer does not fit in 64 bits");
        return out.i = (int64_t)f, out;
    }
    return a[0].type == J_MISSING ? jval_int(0) : a[0];
}
static struct jval f_float(struct jrun *r, struct jval v, struct jval *a) {
    struct jval out = jval_float(0);
    out.origin = v.type == J_STR ? v.s->origin : v.origin;
    if (to_float(r, v, &out.f)) return out;
    return a[0].type == J_MISSING ? jval_float(0) : a[0];
}
static struct jval f_abs(struct jrun *r, struct jval v, struct jval *a) {
    if (v.type == J_UNDEF) jfail(r, "bad operand type for abs(): 'Undefined'");
    if (!jval_is_number(v)) jfail(r, "bad operand type for abs(): '%s'", jval_type(v));
    if (v.type == J_FLOAT && !v.big) return v.f = fabs(v.f), v;
    if (v.big) return jop_neg(r, v, v.f < 0);
    return jop_neg(r, v, jval_as_int(v) < 0);
}
/* Rounds to the nearest decimal of the exact value, ties to even, as printf does. */
static struct jval f_round(struct jrun *r, struct jval v, struct jval *a) {
    int64_t prec = jtext_int(r, a[0], 0);
    struct jstr *how = a[1].type == J_MISSING ? jstr_literal(r, "common").s : jrepr_to_str(r, a[1]);
    bool up = jstr_equals(how, "ceil"), down = jstr_equals(how, "floor");
    if (!up && !down && !jstr_equals(how, "common")) jfail(r, "method must be common, ceil or floor");
    if (v.type == J_UNDEF) jfail_undef(r, v.u);
    if (!jval_is_number(v)) jfail(r, "type %s doesn't define __round__ method", jval_type(v));
    if (up || down) {
        double x = jval_as_float(v) * pow(10, (double)prec), whole = up ? ceil(x) : floor(x);
        struct jval out = jval_float(whole / pow(10, (double)prec));
        out.origin = v.origin;
        return out;
    }
    if (v.type != J_FLOAT) {
        struct jval out = jval_int(jval_as_int(v));
        out.origin = v.origin;
        if (prec >= 0) return out;
        if (prec < -18) return out.i = 0, out;
        int64_t p = 1;
        for (int64_t i = prec; i < 0; i++) p *= 10;
        int64_t q = out.i / p, rest = out.i % p, twice = (rest < 0 ? -rest : rest);
        if (twice > p - twice || (twice == p - twice && (q & 1))) q += out.i < 0 ? -1 : 1;
        if (__builtin_mul_overflow(q, p, &out.i)) jfail(r, "the integer does not fit in 64 bits");
        return out;
    }
    char t[800];
    if (!isfinite(v.f) || prec > 330 || (v.big && prec >= 0)) return v;
    v.big = 0;
    if (prec >= 0) {
        snprintf(t, sizeof t, "%.*f", (int)prec, v.f);
        v.f = strtod(t, NULL);
    } else {
        if (prec < -310) return v.f = copysign(0.0, v.f), v;
        double p = pow(10, (double)-prec), q = rint(v.f / p);
        v.f = q * p;
    }
    return v;
}

/* ---- any value */

static struct jval f_default(struct jrun *r, struct jval v, struct jval *a) {
    if (v.type != J_UNDEF && !(jval_is_true(r, a[1]) && !jval_is_true(r, v))) return v;
    return a[0].type == J_MISSING ? jstr_literal(r, "") : a[0];
}
static struct jval f_length(struct jrun *r, struct jval v, struct jval *a) { return jval_int((int64_t)jval_len(r, v)); }
static struct jval f_attr(struct jrun *r, struct jval v, struct jval *a) {
    struct jval out;
    if (v.type == J_UNDEF) jfail_undef(r, v.u);
    if (a[0].type != J_STR) jfail(r, "attribute name must be string, not '%s'", jval_type(a[0]));
    return jattr_find(r, v, a[0].s, &out) ? out : jval_undef_name(r, a[0], &v);
}

const struct jfilter jfilter_text[] = {
    {"abs", f_abs, NULL, "", 0},
    {"attr", f_attr, NULL, "name", 1},
    {"capitalize", f_capitalize, NULL, "", 0},
    {"count", f_length, NULL, "", 0},
    {"d", f_default, NULL, "default_value,boolean", 0},
    {"default", f_default, NULL, "default_value,boolean", 0},
    {"e", f_escape, NULL, "", 0},
    {"escape", f_escape, NULL, "", 0},
    {"float", f_float, NULL, "default", 0},
    {"format", NULL, f_format, NULL, 0},
    {"indent", f_indent, NULL, "width,first,blank", 0},
    {"int", f_int, NULL, "default,base", 0},
    {"length", f_length, NULL, "", 0},
    {"lower", f_lower, NULL, "", 0},
    {"parse_json", f_parse_json, NULL, "default", 0},
    {"replace", f_replace, NULL, "old,new,count", 2},
    {"round", f_round, NULL, "precision,method", 0},
    {"safe", f_safe, NULL, "", 0},
    {"string", f_string, NULL, "", 0},
    {"title", f_title, NULL, "", 0},
    {"tojson", f_tojson, NULL, "ensure_ascii,indent,separators,sort_keys", 0},
    {"trim", f_trim, NULL, "chars", 0},
    {"truncate", f_truncate, NULL, "length,killwords,end,leeway", 0},
    {"upper", f_upper, NULL, "", 0},
    {0},
};

const struct jfilter *jfilter_find(const struct jstr *name) {
    for (const struct jfilter *f = jfilter_text; f->name; f++)
        if (jstr_equals(name, f->name)) return f;
    for (const struct jfilter *f = jfilter_seq; f->name; f++)
        if (jstr_equals(name, f->name)) return f;
    return NULL;
}
