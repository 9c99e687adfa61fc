#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/jinja/jeval.h"

/* "%s" % x and "{}".format(x), with Python's rules for signs, padding and precision. */

struct format_spec {
    struct jstr *fill; /* NULL: a space */
    char align;        /* < > = ^; 0: the default of the type */
    char sign, type;
    bool group, zero;    /* group: a comma between thousands */
    int64_t width, prec; /* -1: none */
};
enum { PREC_MAX = 400 };

/* Assembles sign, digits and padding, which goes between, before or after them. */
static struct jval pad_number(struct jrun *r, const struct format_spec *f, const char *prefix, struct jval body,
                              uint8_t from) {
    struct jval head = jstr_new(r, prefix, strlen(prefix), from);
    int64_t width = f->width;
    char align = f->align ? f->align : '>';
    struct jstr *fill = f->fill;
    if (f->zero && !f->align) {
        align = '=';
        if (!fill) fill = jstr_literal(r, "0").s;
    }
    if (align == '=') {
        struct jval v = jtext_pad(r, body.s, width - (int64_t)strlen(prefix), fill, -1);
        return jstr_concat(r, head.s, v.s);
    }
    struct jval v = *prefix ? jstr_concat(r, head.s, body.s) : body;
    if (align != '^') return jtext_pad(r, v.s, width, fill, align == '<' ? 1 : -1);
    int64_t pad = width - (int64_t)jstr_chars(v.s); /* "^" puts the odd column on the right */
    if (pad <= 0) return v;
    v = jtext_pad(r, v.s, (int64_t)jstr_chars(v.s) + pad / 2, fill, -1);
    return jtext_pad(r, v.s, width, fill, 1);
}
static const char *sign_text(const struct format_spec *f, bool negative) {
    if (negative) return "-";
    if (f->sign == '+') return "+";
    return f->sign == ' ' ? " " : "";
}

static struct jval group_digits(struct jrun *r, const char *digits, bool group, uint8_t from) {
    struct jbuf b = {0};
    size_t n_integer = strspn(digits, "0123456789abcdefABCDEF");
    for (size_t i = 0; i < n_integer; i++) {
        if (group && i && (n_integer - i) % 3 == 0) jbuf_add(r, &b, ",", 1, from);
        jbuf_add(r, &b, digits + i, 1, from);
    }
    jbuf_cstr(r, &b, digits + n_integer, from);
    return jbuf_finish(r, &b);
}

static struct jval format_int(struct jrun *r, const struct format_spec *f, int64_t i, uint8_t from) {
    char t[80];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    size_t n = 0;
    int base = f->type == 'x' || f->type == 'X' ? 16 : 10;
    const char *digits = f->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    char back[72];
    do back[n++] = digits[u % (uint64_t)base];
    while (u /= (uint64_t)base);
    for (size_t k = 0; k < n; k++) t[k] = back[n - 1 - k];
    t[n] = 0;
    struct jval body = group_digits(r, t, f->group, from);
    if (f->prec > (int64_t)n) body = jtext_pad(r, body.s, f->prec, jstr_literal(r, "0").s, -1); /* "%.5d" */
    return pad_number(r, f, sign_text(f, i < 0), body, from);
}
static struct jval format_float(struct jrun *r, const struct format_spec *f, double v, uint8_t from) {
    char t[800], fmt[16];
    char type = f->type;
    int64_t prec = f->prec;
    bool negative = signbit(v) && v == v;
    double a = fabs(v);
    if (type == '%') a *= 100;
    if (prec > PREC_MAX) jfail(r, "the precision exceeds %d", PREC_MAX);
    if (!isfinite(a))
        snprintf(t, sizeof t, "%s%s",
                 type == 'E' || type == 'F' || type == 'G' ? (a != a ? "NAN" : "INF")
                 : a != a                                  ? "nan"
                                                           : "inf",
                 type == '%' ? "%" : "");
    else if (!type && prec < 0) {
        char s[40];
        jrepr_float(a, s);
        snprintf(t, sizeof t, "%s", s);
    } else if (!type) {
        snprintf(t, sizeof t, "%.*g", (int)(prec ? prec : 1), a);
        if (!strpbrk(t, ".e")) strcat(t, ".0");
    } else {
        snprintf(fmt, sizeof fmt, "%%.*%c", type == '%' ? 'f' : type);
        int n = snprintf(t, sizeof t - 2, fmt, (int)(prec < 0 ? 6 : prec), a);
        if (type == '%') strcpy(t + n, "%");
    }
    return pad_number(r, f, sign_text(f, negative), group_digits(r, t, isfinite(a) && f->group, from), from);
}
static struct jval format_str(struct jrun *r, const struct format_spec *f, struct jstr *s) {
    struct jval v = {.type = J_STR, .s = s};
    if (f->prec >= 0 && f->prec < (int64_t)jstr_chars(s)) v = jstr_sub(r, s, 0, jstr_offset(s, (size_t)f->prec));
    struct format_spec g = *f;
    if (!g.align) g.align = '<';
    return f->width > 0 ? pad_number(r, &g, "", v, TEXT_TEMPLATE) : v;
}

/* ---- "%" */

static struct jval to_integer(struct jrun *r, struct jval v, char type) {
    if (v.type == J_UNDEF) jfail_undef(r, v.u);
    if (v.type == J_FLOAT && type != 'x' && type != 'X') {
        if (!(fabs(v.f) < 0x1p63)) jfail(r, "cannot convert float to integer");
        struct jval i = jval_int((int64_t)v.f);
        i.origin = v.origin;
        return i;
    }
    if (!jval_is_int(v)) jfail(r, "%%%c format: a real number is required, not %s", type, jval_type(v));
    return v;
}
static struct jval format_percent_item(struct jrun *r, struct format_spec *f, struct jval v) {
    switch (f->type) {
    case 'd':
    case 'i':
    case 'x':
    case 'X': v = to_integer(r, v, f->type); return format_int(r, f, jval_as_int(v), v.origin);
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
        if (v.type == J_UNDEF) jfail_undef(r, v.u);
        if (!jval_is_number(v)) jfail(r, "must be real number, not %s", jval_type(v));
        if (f->prec < 0) f->prec = 6;
        return format_float(r, f, jval_as_float(v), v.origin);
    case 's': v = (struct jval){.type = J_STR, .s = jrepr_to_str(r, v)}; break;
    case 'r': {
        struct jbuf b = {0};
        jrepr_add(r, &b, v);
        v = jbuf_finish(r, &b);
        break;
    }
    default: jfail(r, "unsupported format character '%c'", f->type >= 32 && f->type < 127 ? f->type : '?');
    }
    f->zero = false;
    if (!f->align) f->align = '>';
    return format_str(r, f, v.s);
}

struct jval jformat_percent(struct jrun *r, struct jstr *s, struct jval args) {
    struct jbuf b = {0};
    struct jlist one = {.n = 1, .v = &args}, *all = args.type == J_TUPLE ? args.l : &one;
    size_t used = 0, i = 0;
    /* types with [] in Python */
    bool mapping = args.type == J_DICT || args.type == J_LIST || args.type == J_RANGE || args.type == J_UNDEF;
    while (i < s->n) {
        const char *p = memchr(s->s + i, '%', s->n - i);
        size_t end = p ? (size_t)(p - s->s) : s->n;
        struct jval part = jstr_sub(r, s, i, end - i);
        jbuf_str(r, &b, part.s);
        if (!p) break;
        i = end + 1;
        struct format_spec f = {.width = -1, .prec = -1};
        struct jval v = jval_missing();
        if (i < s->n && s->s[i] == '(') {
            const char *close = memchr(s->s + i, ')', s->n - i);
            if (args.type != J_DICT) jfail(r, "format requires a mapping");
            if (!close) jfail(r, "incomplete format key");
            size_t to = (size_t)(close - s->s);
            struct jval key = jstr_sub(r, s, i + 1, to - i - 1), *found = jdict_find(r, args.d, key);
            if (!found) jfail(r, "no key '%s'", jstr_for_error(r, key.s));
            v = *found;
            i = to + 1;
        }
        for (; i < s->n && strchr("-+ 0", s->s[i]) && s->s[i]; i++) {
            char c = s->s[i];
            if (c == '-') f.align = '<';
            else if (c == '+' || (c == ' ' && f.sign != '+')) f.sign = c;
            else if (c == '0') f.zero = true;
        }
        for (int k = 0; k < 2; k++) { /* width, then precision */
            int64_t *to = k ? &f.prec : &f.width;
            if (k && (i >= s->n || s->s[i++] != '.')) {
                i -= i <= s->n && k && i > 0 && (i > s->n || s->s[i - 1] != '.');
                break;
            }
            if (k) *to = 0;
            for (; i < s->n && s->s[i] >= '0' && s->s[i] <= '9'; i++) {
                if (*to < 0) *to = 0;
                if (*to > JINJA_MAX_OUTPUT) jfail(r, "the width is too large");
                *to = *to * 10 + (s->s[i] - '0');
            }
        }
        if (i >= s->n) jfail(r, "incomplete format");
        f.type = s->s[i++];
        if (f.type == '%') {
            jbuf_add(r, &b, "%", 1, jstr_origin_at(s, i - 1));
            continue;
        }
        if (v.type == J_MISSING) {
            if (used >= all->n) jfail(r, "not enough arguments for format string");
            v = all->v[used++];
        } else used = all->n;
        if (s->markup && (f.type == 's') && !(v.type == J_STR && v.s->markup)) v = jrepr_escape(r, jrepr_to_str(r, v));
        v = format_percent_item(r, &f, v);
        jbuf_str(r, &b, v.s);
    }
    if (used < all->n && !mapping) jfail(r, "not all arguments converted during string formatting");
    struct jval out = jbuf_finish(r, &b);
    out.s->markup = s->markup;
    return out;
}

/* ---- format(v, spec) */

struct jval jformat_spec(struct jrun *r, struct jval v, struct jstr *s) {
    struct format_spec f = {.width = -1, .prec = -1};
    size_t i = 0, k = 0;
    if (!s->n) return (struct jval){.type = J_STR, .s = jrepr_to_str(r, v)};
    if (v.type == J_UNDEF) jfail(r, "unsupported format string passed to Undefined.__format__");
    if (v.type != J_STR && !jval_is_number(v))
        jfail(r, "unsupported format string passed to %s.__format__", jval_type(v));
    junicode_decode(s->s, s->n, &k);
    if (k < s->n && strchr("<>=^", s->s[k]) && s->s[k]) {
        f.fill = jstr_sub(r, s, 0, k).s;
        f.align = s->s[k];
        i = k + 1;
    } else if (strchr("<>=^", s->s[0]) && s->s[0]) f.align = s->s[0], i = 1;
    if (i < s->n && (s->s[i] == '+' || s->s[i] == '-' || s->s[i] == ' ')) f.sign = s->s[i++];
    if (i < s->n && s->s[i] == '0') f.zero = true, i++;
    for (; i < s->n && s->s[i] >= '0' && s->s[i] <= '9'; i++) {
        if (f.width < 0) f.width = 0;
        if (f.width > JINJA_MAX_OUTPUT) jfail(r, "the width is too large");
        f.width = f.width * 10 + (s->s[i] - '0');
    }
    if (i < s->n && s->s[i] == ',') f.group = true, i++;
    if (i < s->n && s->s[i] == '.') {
        if (++i >= s->n || s->s[i] < '0' || s->s[i] > '9') jfail(r, "Format specifier missing precision");
        for (f.prec = 0; i < s->n && s->s[i] >= '0' && s->s[i] <= '9'; i++) {
            if (f.prec > JINJA_MAX_OUTPUT) jfail(r, "the precision is too large");
            f.prec = f.prec * 10 + (s->s[i] - '0');
        }
    }
    if (i < s->n) f.type = s->s[i++];
    if (i < s->n) jfail(r, "Invalid format specifier '%s'", jstr_for_error(r, s));
    if (v.type == J_STR) {
        if ((f.type && f.type != 's') || f.sign || f.group || f.align == '=')
            jfail(r, "format '%s' does not fit a string", jstr_for_error(r, s));
        if (f.zero && !f.align) f.align = '<';
        if (f.zero && !f.fill) f.fill = jstr_literal(r, "0").s;
        return format_str(r, &f, v.s);
    }
    if (v.type == J_FLOAT || (f.type && strchr("eEfFgG%", f.type))) {
        if (f.type && !strchr("eEfFgG%", f.type))
            jfail(r, "Unknown format code '%c' for object of type 'float'", f.type);
        return format_float(r, &f, jval_as_float(v), v.origin);
    }
    if (f.type && !strchr("dxX", f.type))
        jfail(r, "Unknown format code '%c' for object of type 'int'", f.type >= 32 && f.type < 127 ? f.type : '?');
    if (f.prec >= 0) jfail(r, "Precision not allowed in integer format specifier");
    return format_int(r, &f, jval_as_int(v), v.origin);
}

/* ---- "{}".format */

struct format_fields {
    const struct jargs *args;
    int64_t next;
    bool named, counted;
};
static struct jval find_field(struct jrun *r, struct jstr *s, size_t from, size_t to, struct format_fields *st) {
    size_t i = from;
    struct jval v = jval_missing();
    while (i < to && s->s[i] != '.' && s->s[i] != '[') i++;
    char *end = NULL;
    struct jval name = jstr_sub(r, s, from, i - from);
    int64_t number = i > from ? strtoll(jstr_for_error(r, name.s), &end, 10) : -1;
    if (i == from || !*end) {
        bool automatic = i == from;
        if (automatic ? st->named : st->counted)
            jfail(r, "cannot switch between manual field specification and automatic field numbering");
        if (automatic) number = st->next++, st->counted = true;
        else st->named = true;
        if (number < 0 || number >= (int64_t)st->args->n)
            jfail(r, "Replacement index %lld out of range for positional args tuple", (long long)number);
        v = st->args->v[number];
    } else {
        jcount_steps(r, st->args->n_keywords);
        for (size_t k = 0; k < st->args->n_keywords; k++)
            if (!jstr_cmp(st->args->keywords[2 * k].s, name.s)) v = st->args->keywords[2 * k + 1];
    }
    if (v.type == J_MISSING) jfail(r, "no argument '%s' for format", jstr_for_error(r, name.s));
    while (i < to) {
        bool item = s->s[i++] == '[';
        size_t begin = i;
        while (i < to && (item ? s->s[i] != ']' : s->s[i] != '.' && s->s[i] != '[')) i++;
        if (i == begin || (item && i >= to)) jfail(r, "Empty attribute in format string");
        name = jstr_sub(r, s, begin, i - begin);
        number = strtoll(jstr_for_error(r, name.s), &end, 10);
        bool digits = name.s->s[0] >= '0' && name.s->s[0] <= '9' && !*end;
        v = item ? jattr_item(r, v, digits ? jval_int(number) : name) : jattr_get(r, v, name);
        if (item) i++;
    }
    return v;
}
static struct jval format_braces(struct jrun *r, struct jstr *s, struct format_fields *st, int level) {
    struct jbuf b = {0};
    if (level > 2) jfail(r, "Max string recursion exceeded");
    for (size_t i = 0; i < s->n; i++) {
        char c = s->s[i];
        if ((c == '{' || c == '}') && i + 1 < s->n && s->s[i + 1] == c) i++;
        else if (c == '}') jfail(r, "Single '}' encountered in format string");
        else if (c == '{') {
            size_t from = ++i, end = from, bang = 0, colon = 0;
            int depth = 1;
            for (; end < s->n; end++) {
                if (s->s[end] == '[' && !colon)
                    while (end < s->n && s->s[end] != ']') end++;
                if (end >= s->n) break;
                if (s->s[end] == '{') depth++;
                if (s->s[end] == '}' && !--depth) break;
                if (s->s[end] == '!' && !bang && !colon) bang = end;
                if (s->s[end] == ':' && !colon) colon = end;
            }
            if (end >= s->n) jfail(r, "expected '}' before end of string");
            size_t name_end = bang ? bang : colon ? colon : end;
            struct jval v = find_field(r, s, from, name_end, st);
            if (bang) {
                char how = bang + 1 < end ? s->s[bang + 1] : 0;
                if (bang + 2 != (colon ? colon : end) || (how != 's' && how != 'r' && how != 'a'))
                    jfail(r, "Unknown conversion specifier");
                struct jbuf t = {0};
                if (how == 's') jrepr_str(r, &t, v);
                else jrepr_add(r, &t, v);
                v = jbuf_finish(r, &t);
            }
            struct jval spec = colon ? format_braces(r, jstr_sub(r, s, colon + 1, end - colon - 1).s, st, level + 1)
                                     : jstr_literal(r, "");
            v = jformat_spec(r, v, spec.s);
            jbuf_str(r, &b, v.s);
            i = end;
            continue;
        }
        jbuf_add(r, &b, s->s + i, 1, jstr_origin_at(s, i));
    }
    return jbuf_finish(r, &b);
}
struct jval jformat_braces(struct jrun *r, struct jstr *fmt, const struct jargs *args) {
    struct format_fields st = {.args = args};
    jcount_steps(r, fmt->n >> 4);
    return format_braces(r, fmt, &st, 1);
}
