#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "tokenizer/jinja/jeval.h"
#include "tokenizer/jinja/jstr.h"

/* Values as text, exactly as Python prints them. Prompts contain such text (a list in a system message), and models
 * were trained on that form. */

/* The fewest digits that round-trip. Point notation from 1e-4 up to 1e16, like repr(float). */
int jrepr_float(double f, char out[40]) {
    if (f != f) return snprintf(out, 40, "nan");
    if (isinf(f)) return snprintf(out, 40, f < 0 ? "-inf" : "inf");
    char e[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(e, sizeof e, "%.*e", digits - 1, f);
        if (strtod(e, NULL) == f) break;
    }
    char *mark = strchr(e, 'e');
    int exp = atoi(mark + 1);
    if (exp < -4 || exp >= 16) {
        *mark = 0;
        return snprintf(out, 40, "%se%c%02d", e, exp < 0 ? '-' : '+', abs(exp));
    }
    int decimals = (int)(mark - e) - (e[0] == '-') - 1;
    if (decimals > 0) decimals--; /* the point */
    decimals = decimals > exp ? decimals - exp : 0;
    int n = snprintf(out, 40, "%.*f", decimals, f);
    if (!decimals) n += snprintf(out + n, 40 - (size_t)n, ".0");
    return n;
}

static void put_scalar(struct jrun *r, struct jbuf *b, struct jval v) {
    char t[40];
    int n;
    if (v.big) {
        jbuf_add(r, b, r->big[v.big - 1]->string, r->big[v.big - 1]->n, v.origin);
        return;
    }
    if (v.type == J_INT) n = snprintf(t, sizeof t, "%lld", (long long)v.i);
    else if (v.type == J_FLOAT) n = jrepr_float(v.f, t);
    else n = snprintf(t, sizeof t, "%s", v.type == J_NONE ? "None" : v.b ? "True" : "False");
    jbuf_add(r, b, t, (size_t)n, v.origin);
}

static void repr_string(struct jrun *r, struct jbuf *b, const struct jstr *s) {
    char quote = s->n && memchr(s->s, '\'', s->n) && !memchr(s->s, '"', s->n) ? '"' : '\'';
    uint8_t from = s->origin;
    if (s->markup) jbuf_cstr(r, b, "Markup(", from);
    jbuf_add(r, b, &quote, 1, from);
    for (size_t i = 0, k; i < s->n; i += k) {
        uint32_t c = junicode_decode(s->s + i, s->n - i, &k);
        uint8_t o = jstr_origin_at(s, i);
        char t[16];
        if (c == (unsigned char)quote || c == '\\') snprintf(t, sizeof t, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(t, sizeof t, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (junicode_is_printable(c)) {
            jbuf_add(r, b, s->s + i, k, o);
            continue;
        } else snprintf(t, sizeof t, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
        jbuf_cstr(r, b, t, o);
    }
    jbuf_add(r, b, &quote, 1, from);
    if (s->markup) jbuf_cstr(r, b, ")", from);
}

static void repr_items(struct jrun *r, struct jbuf *b, struct jval v, uint8_t what, const char *open,
                       const char *close) {
    bool dict = v.type == J_DICT || v.type == J_NAMESPACE || v.type == J_VIEW;
    size_t n = dict ? v.d->n : v.l->n;
    jbuf_cstr(r, b, open, v.origin);
    for (size_t i = 0; i < n; i++) {
        if (i) jbuf_cstr(r, b, ", ", v.origin);
        if (!dict) {
            jrepr_add(r, b, v.l->v[i]);
            continue;
        }
        if (what == VIEW_ITEMS && v.type == J_VIEW) jbuf_cstr(r, b, "(", v.origin);
        if (what != VIEW_VALUES) jrepr_add(r, b, v.d->kv[2 * i]);
        if (what == VIEW_ITEMS) jbuf_cstr(r, b, v.type == J_VIEW ? ", " : ": ", v.origin);
        if (what != VIEW_KEYS) jrepr_add(r, b, v.d->kv[2 * i + 1]);
        if (what == VIEW_ITEMS && v.type == J_VIEW) jbuf_cstr(r, b, ")", v.origin);
    }
    jbuf_cstr(r, b, close, v.origin);
}

void jrepr_add(struct jrun *r, struct jbuf *b, struct jval v) {
    static const char *const view[] = {"dict_keys([", "dict_values([", "dict_items(["};
    char t[96];
    jenter_depth(r);
    jcount_steps(r, 1);
    switch (v.type) {
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT: put_scalar(r, b, v); break;
    case J_STR: repr_string(r, b, v.s); break;
    case J_LIST: repr_items(r, b, v, 0, "[", "]"); break;
    case J_TUPLE: repr_items(r, b, v, 0, "(", v.l->n == 1 ? ",)" : ")"); break;
    case J_DICT: repr_items(r, b, v, VIEW_ITEMS, "{", "}"); break;
    case J_VIEW: repr_items(r, b, v, v.sub, view[v.sub], "])"); break;
    case J_NAMESPACE: repr_items(r, b, v, VIEW_ITEMS, "<Namespace {", "}>"); break;
    case J_RANGE:
        snprintf(t, sizeof t, v.r->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)", (long long)v.r->start,
                 (long long)v.r->stop, (long long)v.r->step);
        jbuf_cstr(r, b, t, v.origin);
        break;
    case J_UNDEF: jbuf_cstr(r, b, "Undefined", TEXT_TEMPLATE); break;
    case J_MACRO:
        jbuf_cstr(r, b, "<Macro ", TEXT_TEMPLATE);
        repr_string(r, b, jmacro_name(r, v.m));
        jbuf_cstr(r, b, ">", TEXT_TEMPLATE);
        break;
    case J_LOOP:
        snprintf(t, sizeof t, "<LoopContext %zu/%zu>", jloop_index(v.loop), jval_len(r, v));
        jbuf_cstr(r, b, t, TEXT_TEMPLATE);
        break;
    default: /* Python prints an address, which no template can rely on */
        snprintf(t, sizeof t, "<%s object>", jval_type(v));
        jbuf_cstr(r, b, t, TEXT_TEMPLATE);
    }
    r->depth--;
}
void jrepr_str(struct jrun *r, struct jbuf *b, struct jval v) {
    if (v.type == J_STR) jbuf_str(r, b, v.s);
    else if (v.type != J_UNDEF) jrepr_add(r, b, v);
}
struct jstr *jrepr_to_str(struct jrun *r, struct jval v) {
    if (v.type == J_STR) return v.s;
    struct jbuf b = {0};
    jrepr_str(r, &b, v);
    return jbuf_finish(r, &b).s;
}

/* ---- JSON, as json.dumps writes it */

static void json_string(struct jrun *r, struct jbuf *b, const struct jstr *s, bool ascii) {
    jbuf_cstr(r, b, "\"", s->origin);
    for (size_t i = 0, k, run = 0;; i += k) {
        uint32_t c = i < s->n ? junicode_decode(s->s + i, s->n - i, &k) : 0;
        if (i < s->n && c >= 0x20 && c != '"' && c != '\\' && !(ascii && c >= 0x7F)) continue;
        if (i > run) {
            struct jstr part = {
                .s = s->s + run, .n = i - run, .origin = s->origin, .origins = s->origins ? s->origins + run : NULL};
            jbuf_str(r, b, &part);
        }
        if (i >= s->n) break;
        run = i + k;
        static const char names[] = "\b\t\n\f\r\"\\", letters[] = "btnfr\"\\";
        const char *name = c && c < 0x80 ? strchr(names, (int)c) : NULL;
        char t[16];
        if (name) snprintf(t, sizeof t, "\\%c", letters[name - names]);
        else if (c >= 0x10000)
            snprintf(t, sizeof t, "\\u%04x\\u%04x", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
        else snprintf(t, sizeof t, "\\u%04x", c);
        jbuf_cstr(r, b, t, jstr_origin_at(s, i));
    }
    jbuf_cstr(r, b, "\"", s->origin);
}

static void json_newline(struct jrun *r, struct jbuf *b, const struct jtojson *o, int level, uint8_t from) {
    jbuf_cstr(r, b, "\n", from);
    for (int i = 0; i < level; i++) jbuf_cstr(r, b, o->indent, from);
}
static void json_sep(struct jrun *r, struct jbuf *b, const struct jstr *given, const char *default_text, uint8_t from) {
    if (given) jbuf_str(r, b, given);
    else jbuf_cstr(r, b, default_text, from);
}
static void json_scalar(struct jrun *r, struct jbuf *b, struct jval v) {
    if (v.type == J_NONE) jbuf_cstr(r, b, "null", v.origin);
    else if (v.type == J_BOOL) jbuf_cstr(r, b, v.b ? "true" : "false", v.origin);
    else if (v.type == J_FLOAT && !v.big && !isfinite(v.f))
        jbuf_cstr(r, b, v.f != v.f ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity", v.origin);
    else put_scalar(r, b, v);
}

static void json_value(struct jrun *r, struct jbuf *b, struct jval v, const struct jtojson *o, int level);
static void json_key(struct jrun *r, struct jbuf *b, struct jval k, const struct jtojson *o) {
    if (k.type == J_STR) return json_string(r, b, k.s, o->ascii);
    if (k.type != J_NONE && !jval_is_number(k))
        jfail(r, "keys must be str, int, float, bool or None, not %s", jval_type(k));
    jbuf_cstr(r, b, "\"", k.origin);
    json_scalar(r, b, k);
    jbuf_cstr(r, b, "\"", k.origin);
}
static void json_dict(struct jrun *r, struct jbuf *b, struct jval v, const struct jtojson *o, int level) {
    struct jdict *d = v.d;
    struct jval *kv = d->kv;
    if (!d->n) return jbuf_cstr(r, b, "{}", v.origin);
    if (o->sort_keys) {
        struct jlist pairs = {.n = d->n, .v = jalloc(r, d->n * sizeof *pairs.v)},
                     keys = {.n = d->n, .v = jalloc(r, d->n * sizeof *keys.v)};
        kv = jalloc(r, 2 * d->n * sizeof *kv);
        for (size_t i = 0; i < d->n; i++) keys.v[i] = d->kv[2 * i], pairs.v[i] = jval_int((int64_t)i);
        jeval_sort(r, &pairs, &keys, false);
        for (size_t i = 0; i < d->n; i++) memcpy(kv + 2 * i, d->kv + 2 * pairs.v[i].i, 2 * sizeof *kv);
    }
    jbuf_cstr(r, b, "{", v.origin);
    for (size_t i = 0; i < d->n; i++) {
        if (i) json_sep(r, b, o->item_sep, o->indented ? "," : ", ", v.origin);
        if (o->indented) json_newline(r, b, o, level + 1, v.origin);
        json_key(r, b, kv[2 * i], o);
        json_sep(r, b, o->key_sep, ": ", v.origin);
        json_value(r, b, kv[2 * i + 1], o, level + 1);
    }
    if (o->indented) json_newline(r, b, o, level, v.origin);
    jbuf_cstr(r, b, "}", v.origin);
}
static void json_list(struct jrun *r, struct jbuf *b, struct jval v, const struct jtojson *o, int level) {
    if (!v.l->n) return jbuf_cstr(r, b, "[]", v.origin);
    jbuf_cstr(r, b, "[", v.origin);
    for (size_t i = 0; i < v.l->n; i++) {
        if (i) json_sep(r, b, o->item_sep, o->indented ? "," : ", ", v.origin);
        if (o->indented) json_newline(r, b, o, level + 1, v.origin);
        json_value(r, b, v.l->v[i], o, level + 1);
    }
    if (o->indented) json_newline(r, b, o, level, v.origin);
    jbuf_cstr(r, b, "]", v.origin);
}
static void json_value(struct jrun *r, struct jbuf *b, struct jval v, const struct jtojson *o, int level) {
    jenter_depth(r);
    jcount_steps(r, 1);
    switch (v.type) {
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_FLOAT: json_scalar(r, b, v); break;
    case J_STR: json_string(r, b, v.s, o->ascii); break;
    case J_LIST:
    case J_TUPLE: json_list(r, b, v, o, level); break;
    case J_DICT: json_dict(r, b, v, o, level); break;
    default: jfail(r, "Object of type %s is not JSON serializable", jval_type(v));
    }
    r->depth--;
}
struct jval jrepr_json(struct jrun *r, struct jval v, const struct jtojson *opt) {
    struct jbuf b = {0};
    json_value(r, &b, v, opt, 0);
    return jbuf_finish(r, &b);
}

static const char *html_escape(char c) { /* or NULL: c stays */
    switch (c) {
    case '&': return "&amp;";
    case '<': return "&lt;";
    case '>': return "&gt;";
    case '\'': return "&#39;";
    case '"': return "&#34;";
    default: return NULL;
    }
}
struct jval jrepr_escape(struct jrun *r, const struct jstr *s) {
    struct jbuf b = {0};
    for (size_t i = 0, run = 0;; i++) {
        const char *t = i < s->n ? html_escape(s->s[i]) : NULL;
        if (i < s->n && !t) continue;
        struct jstr part = {
            .s = s->s + run, .n = i - run, .origin = s->origin, .origins = s->origins ? s->origins + run : NULL};
        jbuf_str(r, &b, &part);
        if (i >= s->n) break;
        jbuf_cstr(r, &b, t, jstr_origin_at(s, i));
        run = i + 1;
    }
    struct jval v = jbuf_finish(r, &b);
    v.s->markup = true;
    return v;
}
