#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "tokenizer/grammar/schema_internal.h"

/* Grammars of JSON texts without a schema, and JSON values as text. */

static expr_id text(struct grammar *g, const char *s) { return grammar_literal(g, s, strlen(s)); }
static expr_id set(struct grammar *g, const char *chars) {
    struct byte_set s = {0};
    for (; *chars; chars++) byte_set_add(&s, (uint8_t)*chars, (uint8_t)*chars);
    return grammar_class(g, &s);
}
static expr_id digits(struct grammar *g, int from, int to) {
    struct byte_set s = {0};
    byte_set_add(&s, from, to);
    return grammar_class(g, &s);
}

expr_id json_comma(struct schema *s) {
    if (!s->json.comma) s->json.comma = grammar_seq(s->g, text(s->g, ","), grammar_repeat(s->g, text(s->g, " "), 0, 1));
    return s->json.comma;
}
expr_id json_colon(struct schema *s) {
    if (!s->json.colon) s->json.colon = grammar_seq(s->g, text(s->g, ":"), grammar_repeat(s->g, text(s->g, " "), 0, 1));
    return s->json.colon;
}

/* Characters as a JSON string spells them. */
static expr_id char_range(struct grammar *g, uint32_t from, uint32_t to, bool after_less) {
    enum { FIRST_PRINTABLE = 5 }; /* among escapes */
    static const struct {
        unsigned char c;
        const char *escape;
    } escapes[] = {{'\b', "\\b"}, {'\t', "\\t"}, {'\n', "\\n"}, {'\f', "\\f"},
                   {'\r', "\\r"}, {'"', "\\\""}, {'\\', "\\\\"}};
    expr_id x = EXPR_NEVER;
    for (uint32_t c = from; c < 0x20 && c <= to; c++) {
        char code[8];
        snprintf(code, sizeof code, "\\u%04x", c);
        const char *spelling = code;
        for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++)
            if (escapes[i].c == c) spelling = escapes[i].escape;
        x = grammar_alt(g, x, text(g, spelling));
    }
    for (size_t i = FIRST_PRINTABLE; i < sizeof escapes / sizeof *escapes; i++)
        if (from <= escapes[i].c && escapes[i].c <= to) x = grammar_alt(g, x, text(g, escapes[i].escape));
    static const uint32_t plain[][2] = {{0x20, '"' - 1}, {'"' + 1, '\\' - 1}, {'\\' + 1, 0x10FFFF}};
    for (size_t i = 0; i < 3; i++) {
        const uint32_t lo = from > plain[i][0] ? from : plain[i][0], hi = to < plain[i][1] ? to : plain[i][1];
        if (lo <= hi) x = grammar_alt_range(g, x, lo, hi);
    }
    return x;
}

/* char_range() of JSON between tags: "</" is spelled "<\/". */
static expr_id tagged_char_range(struct grammar *g, uint32_t from, uint32_t to, bool after_less) {
    if (!after_less || from > '/' || to < '/') return char_range(g, from, to, after_less);
    expr_id x = text(g, "\\/");
    if (from < '/') x = grammar_alt(g, x, char_range(g, from, '/' - 1, after_less));
    return to > '/' ? grammar_alt(g, x, char_range(g, '/' + 1, to, after_less)) : x;
}

expr_id json_lang(struct schema *s, const struct lang *l) {
    struct lang both;
    struct error e = {0};
    if (!s->tags) return lang_expr(s->g, s->effort, l, char_range);
    return lang_product(s->effort, l, &lang_less, false, &both, &e)
               ? EXPR_FAILED
               : lang_expr(s->g, s->effort, &both, tagged_char_range);
}

/* A character, itself or escaped. Surrogates only as pairs, which are one character. */
expr_id json_char(struct schema *s) {
    struct grammar *g = s->g;
    if (s->json.string_char) return s->json.string_char;
    expr_id x = grammar_alt_range(g, EXPR_NEVER, 0x20, '"' - 1);
    x = grammar_alt_range(g, x, '"' + 1, '\\' - 1);
    x = grammar_alt_range(g, x, '\\' + 1, 0x10FFFF);
    const expr_id hex = set(g, "0123456789abcdefABCDEF"), hex2 = grammar_repeat(g, hex, 2, 2),
                  hex3 = grammar_repeat(g, hex, 3, 3);
    const expr_id low = grammar_seq(g, set(g, "dD"), set(g, "01234567")); /* codes D000 to D7FF: below the surrogates */
    expr_id code = grammar_alt(g, grammar_seq(g, set(g, "0123456789abcefABCEF"), hex3), grammar_seq(g, low, hex2));
    expr_id pair = grammar_seq(g, grammar_seq(g, set(g, "dD"), set(g, "89abAB")), hex2);
    pair = grammar_seq(g, pair, text(g, "\\u"));
    pair = grammar_seq(g, pair, grammar_seq(g, grammar_seq(g, set(g, "dD"), set(g, "cdefCDEF")), hex2));
    code = grammar_seq(g, text(g, "u"), grammar_alt(g, code, pair));
    const expr_id escape = grammar_seq(g, text(g, "\\"), grammar_alt(g, set(g, "\"\\/bfnrt"), code));
    return s->json.string_char = grammar_alt(g, x, escape);
}

expr_id json_in_quotes(struct grammar *g, expr_id characters) {
    return grammar_lexeme(g, grammar_seq(g, text(g, "\""), grammar_seq(g, characters, text(g, "\""))));
}
expr_id json_string(struct schema *s) {
    if (!s->json.string)
        s->json.string = json_in_quotes(s->g, s->tags ? json_lang(s, &lang_less)
                                                      : grammar_text(s->g, json_char(s), 0, GRAMMAR_UNBOUNDED));
    return s->json.string;
}

/* Numbers of at most 16 digits on either side of the point and exponents of two digits: a double holds them without
 * overflow. */
static expr_id plain_integer(struct grammar *g) {
    const expr_id more = grammar_seq(g, digits(g, '1', '9'), grammar_repeat(g, digits(g, '0', '9'), 0, 15));
    return grammar_seq(g, grammar_repeat(g, text(g, "-"), 0, 1), grammar_alt(g, text(g, "0"), more));
}
expr_id json_integer(struct schema *s) {
    if (!s->json.integer) s->json.integer = grammar_lexeme(s->g, plain_integer(s->g));
    return s->json.integer;
}
expr_id json_number(struct schema *s) {
    struct grammar *g = s->g;
    if (s->json.number) return s->json.number;
    const expr_id point = grammar_seq(g, text(g, "."), grammar_repeat(g, digits(g, '0', '9'), 1, 16));
    expr_id power = grammar_seq(g, grammar_repeat(g, set(g, "+-"), 0, 1), grammar_repeat(g, digits(g, '0', '9'), 1, 2));
    power = grammar_seq(g, set(g, "eE"), power);
    expr_id x = grammar_seq(g, plain_integer(g), grammar_repeat(g, point, 0, 1));
    return s->json.number = grammar_lexeme(g, grammar_seq(g, x, grammar_repeat(g, power, 0, 1)));
}

/* first (comma next)* in brackets, or nothing in them. */
static expr_id listed(struct schema *s, const char *open, expr_id item, const char *close) {
    struct grammar *g = s->g;
    const expr_id more = grammar_repeat(g, grammar_seq(g, json_comma(s), item), 0, GRAMMAR_UNBOUNDED);
    const expr_id all = grammar_repeat(g, grammar_seq(g, item, more), 0, 1);
    return grammar_nest(g, grammar_seq(g, text(g, open), grammar_seq(g, all, text(g, close))));
}
expr_id json_value(struct schema *s) {
    struct grammar *g = s->g;
    if (s->json.value) return s->json.value;
    const expr_id x = s->json.value = grammar_rule(g);
    s->json.array = listed(s, "[", x, "]");
    s->json.object = listed(s, "{", grammar_seq(g, json_string(s), grammar_seq(g, json_colon(s), x)), "}");
    expr_id any = grammar_alt(g, json_string(s), json_number(s));
    static const char *const words[] = {"true", "false", "null"};
    for (int i = 0; i < 3; i++) any = grammar_alt(g, any, text(g, words[i]));
    grammar_define(g, x, grammar_alt(g, any, grammar_alt(g, s->json.array, s->json.object)));
    return x;
}
expr_id json_any_object(struct schema *s) { return json_value(s), s->json.object; }

expr_id schema_any_object(struct grammar *g) { return json_any_object(&(struct schema){.g = g}); }

/* --- values ----------------------------------------------------------------------------------- */

static int put_number(struct buf *b, double v) {
    char t[40];
    if (!isfinite(v) || (fabs(v) >= 0x1p63 && floor(v) == v)) return ERR_USAGE;
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(t, sizeof t, "%.*g", digits, v);
        if (strtod(t, NULL) == v) break;
    }
    return buf_str(b, t);
}

int json_compact(struct buf *b, const struct json *j) {
    int rc = 0;
    if (j->type == JSON_FLOAT) return put_number(b, json_num(j, 0));
    if (j->type != JSON_ARRAY && j->type != JSON_OBJECT) return json_write(b, j);
    const bool object = j->type == JSON_OBJECT;
    buf_char(b, object ? '{' : '[');
    for (uint32_t i = 0; i < j->n && !rc; i++) {
        if (i) buf_char(b, ',');
        if (object && !(rc = json_write(b, &j->items[2 * i]))) buf_char(b, ':');
        if (!rc) rc = json_compact(b, &j->items[object ? 2 * i + 1 : i]);
    }
    buf_char(b, object ? '}' : ']');
    return rc ? rc : b->failed ? ERR_MEMORY : 0;
}

bool json_equal(const struct json *a, const struct json *b) {
    const bool numbers =
        (a->type == JSON_INT || a->type == JSON_FLOAT) && (b->type == JSON_INT || b->type == JSON_FLOAT);
    if (numbers && a->type == JSON_FLOAT && b->type == JSON_FLOAT && a->n && b->n)
        return a->n == b->n && !memcmp(a->string, b->string, a->n);
    if (numbers)
        return a->type == JSON_INT && b->type == JSON_INT ? a->integer == b->integer : json_num(a, 0) == json_num(b, 1);
    if (a->type != b->type || (a->type > JSON_FLOAT && a->n != b->n)) return false;
    switch ((enum json_type)a->type) {
    case JSON_BOOL: return a->boolean == b->boolean;
    case JSON_STRING: return !a->n || !memcmp(a->string, b->string, a->n);
    case JSON_ARRAY:
        for (uint32_t i = 0; i < a->n; i++)
            if (!json_equal(&a->items[i], &b->items[i])) return false;
        return true;
    case JSON_OBJECT:
        for (uint32_t i = 0; i < a->n; i++) {
            bool found = false;
            for (uint32_t k = 0; k < b->n && !found; k++)
                found = json_equal(&a->items[2 * i], &b->items[2 * k]) &&
                        json_equal(&a->items[2 * i + 1], &b->items[2 * k + 1]);
            if (!found) return false;
        }
        return true;
    default: return true;
    }
}
