#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/jinja/jast.h"
#include "tokenizer/jinja/jstr.h"

/* Tokenizes template text and tags, and handles white space control: "-" strips up to the next text, a block at the
 * start of a line removes its indentation (lstrip_blocks), and the newline after a block or comment is removed
 * (trim_blocks). Follows jinja2/lexer.py, because templates rely on its corner cases. */

enum { MAX_OPEN = 100 }; /* open brackets; the parser's stack holds far more */
struct lexer {
    struct jrun *r;
    const char *s;
    size_t n, at;
    struct jtoken *tokens;
    size_t count, cap;
    char open[MAX_OPEN]; /* the closing brackets to come */
    size_t n_open;
    bool line_start;
};

_Noreturn static void fail_at(struct lexer *x, size_t at, const char *why) {
    x->r->pos = (uint32_t)at;
    jfail(x->r, "%s", why);
}
static struct jtoken *push_token(struct lexer *x, uint8_t type, size_t pos) {
    if (x->count == x->cap) {
        size_t cap = x->cap ? x->cap * 2 : 256;
        struct jtoken *t = jalloc(x->r, cap * sizeof *t);
        if (x->count) memcpy(t, x->tokens, x->count * sizeof *t);
        x->tokens = t;
        x->cap = cap;
    }
    x->tokens[x->count] = (struct jtoken){.type = type, .pos = (uint32_t)pos};
    return &x->tokens[x->count++];
}

static bool is_space_at(const struct lexer *x, size_t i, size_t *len) {
    return i < x->n && unicode_is_python_space(junicode_decode(x->s + i, x->n - i, len));
}
static size_t skip_space(const struct lexer *x, size_t i) {
    size_t k;
    while (is_space_at(x, i, &k)) i += k;
    return i;
}
static size_t strip_right(const struct lexer *x, size_t from, size_t end) {
    while (end > from) {
        size_t i = end - 1, k;
        while (i > from && ((unsigned char)x->s[i] & 0xC0) == 0x80) i--;
        if (!unicode_is_python_space(junicode_decode(x->s + i, end - i, &k))) break;
        end = i;
    }
    return end;
}
static bool is_text_at(const struct lexer *x, size_t i, const char *t) {
    return x->n - i >= strlen(t) && !memcmp(x->s + i, t, strlen(t));
}

/* Returns the end of the text from..end before a tag with that sign. */
static size_t text_end(const struct lexer *x, size_t from, size_t end, char sign, bool variable) {
    if (sign == '-') return strip_right(x, from, end);
    if (sign == '+' || variable) return end;
    size_t line = end;
    while (line > from && x->s[line - 1] != '\n') line--;
    if ((line > from || x->line_start) && line < end && skip_space(x, line) >= end) return line;
    return end;
}
static void push_text(struct lexer *x, size_t from, size_t end) {
    if (end <= from) return;
    struct jtoken *t = push_token(x, T_DATA, from);
    t->value = jstr_new(x->r, x->s + from, end - from, TEXT_TEMPLATE);
}

static bool is_name_byte(unsigned char c, bool first) {
    return jascii_is_letter((char)c) || c == '_' || c >= 0x80 || (!first && jascii_is_digit((char)c));
}

/* ---- numbers: digits may be separated by single underscores */
static size_t skip_digits(const struct lexer *x, size_t i, int base) {
    size_t begin = i;
    for (;;) {
        size_t j = i < x->n && x->s[i] == '_' && i > begin ? i + 1 : i;
        if (j >= x->n || jascii_hex_value(x->s[j]) >= base) return i;
        i = j + 1;
    }
}
static size_t lex_number(struct lexer *x) {
    size_t begin = x->at, i = skip_digits(x, begin, 10), e = i;
    bool real = false;
    if (begin == 0 || x->s[begin - 1] != '.') {
        if (i + 1 < x->n && x->s[i] == '.' && jascii_is_digit(x->s[i + 1])) e = skip_digits(x, i + 1, 10), real = true;
        if (e < x->n && (x->s[e] | 32) == 'e') {
            size_t k = e + 1 + (e + 1 < x->n && (x->s[e + 1] == '+' || x->s[e + 1] == '-'));
            size_t end = k < x->n ? skip_digits(x, k, 10) : k;
            if (end > k) e = end, real = true;
        }
    }
    int base = 10;
    size_t from = begin;
    if (!real) {
        e = i;
        if (x->s[begin] == '0') {
            const int marked = begin + 1 < x->n ? jascii_base(x->s[begin + 1]) : 0;
            if (marked) base = marked;
            size_t first = begin + 2 + (base != 10 && begin + 2 < x->n && x->s[begin + 2] == '_');
            size_t end = base != 10 && first < x->n ? skip_digits(x, first, base) : 0;
            if (base != 10 && end > first) e = end, from = first;
            else
                for (base = 10, e = begin + 1;
                     e < x->n && (x->s[e] == '0' || (x->s[e] == '_' && e + 1 < x->n && x->s[e + 1] == '0'));)
                    e++;
        }
    }
    char text[64];
    size_t n = 0;
    for (size_t k = from; k < e; k++) {
        if (x->s[k] == '_') continue;
        if (n + 1 >= sizeof text) fail_at(x, begin, "a number of too many digits");
        text[n++] = x->s[k];
    }
    text[n] = 0;
    struct jtoken *t = push_token(x, real ? T_FLOAT : T_INT, begin);
    if (real) t->value = jval_float(strtod(text, NULL));
    else {
        unsigned long long v = strtoull(text, NULL, base);
        if (v > INT64_MAX || n > 62) fail_at(x, begin, "the integer does not fit in 64 bits");
        t->value = jval_int((int64_t)v);
    }
    return e;
}

/* ---- strings, with the escapes of Python */
static int parse_hex(const char *s, size_t n, int n_digits, uint32_t *v) {
    *v = 0;
    for (int i = 0; i < n_digits; i++) {
        int d = (size_t)i < n ? jascii_hex_value(s[i]) : 99;
        if (d > 15) return 0;
        *v = *v << 4 | (uint32_t)d;
    }
    return n_digits;
}
static size_t lex_escape(struct lexer *x, struct jbuf *b, size_t i, size_t end) { /* i is after the backslash */
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    unsigned char c = (unsigned char)x->s[i];
    const char *k = c ? strchr(from, c) : NULL;
    uint32_t v;
    if (k) jbuf_add(x->r, b, to + (k - from), 1, TEXT_TEMPLATE);
    else if (c == '\n') return i + 1;
    else if (c >= '0' && c <= '7') {
        v = 0;
        for (int j = 0; j < 3 && i < end && x->s[i] >= '0' && x->s[i] <= '7'; j++)
            v = v * 8 + (uint32_t)(x->s[i++] - '0');
        jbuf_char(x->r, b, v, TEXT_TEMPLATE);
        return i;
    } else if (c == 'x' || c == 'u' || c == 'U') {
        int want = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        if (!parse_hex(x->s + i + 1, end - i - 1, want, &v)) fail_at(x, i - 1, "truncated \\x, \\u or \\U escape");
        if (v > 0x10FFFF || (v >= 0xD800 && v < 0xE000)) fail_at(x, i - 1, "an escape that is no character");
        jbuf_char(x->r, b, v, TEXT_TEMPLATE);
        return i + 1 + (size_t)want;
    } else if (c == 'N') fail_at(x, i - 1, "\\N{name} escapes are not supported");
    else if (c >= 0x80) { /* Python first escapes the character, then reads "\\" from the result */ size_t len;
        v = junicode_decode(x->s + i, end - i, &len);
        char t[16];
        snprintf(t, sizeof t, v < 0x100 ? "\\x%02x" : v < 0x10000 ? "\\u%04x" : "\\U%08x", v);
        jbuf_cstr(x->r, b, t, TEXT_TEMPLATE);
        return i + len;
    } else {
        jbuf_add(x->r, b, "\\", 1, TEXT_TEMPLATE);
        jbuf_add(x->r, b, x->s + i, 1, TEXT_TEMPLATE);
    }
    return i + 1;
}
static size_t lex_string(struct lexer *x) {
    char quote = x->s[x->at];
    size_t begin = x->at + 1, end = begin;
    bool escaped = false;
    while (end < x->n && x->s[end] != quote) {
        if (x->s[end] == '\\') escaped = true, end++;
        end++;
    }
    if (end >= x->n) fail_at(x, x->at, "unterminated string");
    struct jval v;
    if (!escaped) v = jstr_new(x->r, x->s + begin, end - begin, TEXT_TEMPLATE);
    else {
        struct jbuf b = {0};
        for (size_t i = begin; i < end;) {
            size_t run = i;
            while (run < end && x->s[run] != '\\') run++;
            jbuf_add(x->r, &b, x->s + i, run - i, TEXT_TEMPLATE);
            i = run < end ? lex_escape(x, &b, run + 1, end) : run;
        }
        v = jbuf_finish(x->r, &b);
        v.s->origin = TEXT_TEMPLATE;
    }
    push_token(x, T_STRING, x->at)->value = v;
    return end + 1;
}

static size_t lex_operator(struct lexer *x) {
    static const struct {
        const char *text;
        uint8_t type;
    } ops[] = {
        {"//", T_FLOORDIV}, {"**", T_POW},      {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},    {"<=", T_LE},
        {"+", T_ADD},       {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},
        {"[", T_LBRACKET},  {"]", T_RBRACKET},  {"(", T_LPAREN}, {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE},
        {">", T_GT},        {"<", T_LT},        {"=", T_ASSIGN}, {".", T_DOT},    {":", T_COLON},  {"|", T_PIPE},
        {",", T_COMMA},     {";", T_SEMICOLON},
    };
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++) {
        if (!is_text_at(x, x->at, ops[i].text)) continue;
        char c = ops[i].text[0];
        if (c == '(' || c == '[' || c == '{') {
            if (x->n_open == MAX_OPEN) fail_at(x, x->at, "nested too deeply");
            x->open[x->n_open++] = c == '(' ? ')' : c == '[' ? ']' : '}';
        } else if ((c == ')' || c == ']' || c == '}') && (!x->n_open || x->open[--x->n_open] != c)) {
            char why[] = "unexpected ' '";
            why[sizeof "unexpected '" - 1] = c;
            fail_at(x, x->at, why);
        }
        push_token(x, ops[i].type, x->at);
        return x->at + strlen(ops[i].text);
    }
    fail_at(x, x->at, "unexpected character");
}

/* Tokenizes the inside of a tag and its end. */
static void lex_tag(struct lexer *x, bool variable) {
    const char *close = variable ? "}}" : "%}";
    for (;;) {
        x->at = skip_space(x, x->at);
        if (x->at >= x->n) return; /* the parser reports what is missing */
        if (!x->n_open) {
            char sign = x->s[x->at];
            size_t end = x->at + (sign == '-' || (sign == '+' && !variable));
            if (is_text_at(x, end, close)) {
                push_token(x, variable ? T_VAR_END : T_BLOCK_END, x->at);
                bool strip = sign == '-', keep = sign == '+';
                x->at = end + 2;
                if (strip) x->at = skip_space(x, x->at);
                else if (!variable && !keep && x->at < x->n && x->s[x->at] == '\n') x->at++;
                x->line_start = x->s[x->at - 1] == '\n';
                return;
            }
        }
        unsigned char c = (unsigned char)x->s[x->at];
        if (jascii_is_digit((char)c)) x->at = lex_number(x);
        else if (is_name_byte(c, true)) {
            size_t end = x->at, k;
            while (end < x->n && is_name_byte((unsigned char)x->s[end], false)) end++;
            for (size_t i = x->at; i < end; i += k) {
                uint32_t u = junicode_decode(x->s + i, end - i, &k);
                if (u >= 0x80 && !junicode_is_word(u)) {
                    if (i == x->at) fail_at(x, i, "unexpected character");
                    end = i;
                }
            }
            push_token(x, T_NAME, x->at)->value = jstr_new(x->r, x->s + x->at, end - x->at, TEXT_TEMPLATE);
            x->at = end;
        } else if (c == '"' || c == '\'') x->at = lex_string(x);
        else x->at = lex_operator(x);
    }
}

static void lex_comment(struct lexer *x, size_t begin) {
    for (size_t i = x->at; i + 2 <= x->n; i++) {
        char sign = x->s[i];
        size_t end = i + (sign == '-' || sign == '+');
        if (!is_text_at(x, end, "#}")) continue;
        x->at = end + 2;
        if (sign == '-') x->at = skip_space(x, x->at);
        else if (sign != '+' && x->at < x->n && x->s[x->at] == '\n') x->at++;
        x->line_start = x->s[x->at - 1] == '\n';
        return;
    }
    fail_at(x, begin, "missing end of comment tag");
}

/* Emits {% raw %} ... {% endraw %} as text. Returns true if a raw block began at x->at (after "{%" and sign). */
static bool lex_raw(struct lexer *x, size_t begin, size_t text_from, size_t tag_at, char sign) {
    size_t i = skip_space(x, x->at);
    if (!is_text_at(x, i, "raw")) return false;
    i = skip_space(x, i + 3);
    bool strip = i < x->n && x->s[i] == '-';
    if (!is_text_at(x, i + strip, "%}")) return false;
    push_text(x, text_from, text_end(x, text_from, tag_at, sign, false));
    i += strip + 2u;
    if (strip) i = skip_space(x, i);
    x->line_start = x->s[i - 1] == '\n';
    for (size_t k = i; k + 2 <= x->n; k++) {
        if (!is_text_at(x, k, "{%")) continue;
        char begin_sign = k + 2 < x->n ? x->s[k + 2] : 0;
        size_t e = skip_space(x, k + 2 + (begin_sign == '-' || begin_sign == '+'));
        if (!is_text_at(x, e, "endraw")) continue;
        e = skip_space(x, e + 6);
        char end_sign = e < x->n ? x->s[e] : 0;
        e += end_sign == '-' || end_sign == '+';
        if (!is_text_at(x, e, "%}")) continue;
        push_text(x, i, text_end(x, i, k, begin_sign, false));
        x->at = e + 2;
        if (end_sign == '-') x->at = skip_space(x, x->at);
        else if (end_sign != '+' && x->at < x->n && x->s[x->at] == '\n') x->at++;
        x->line_start = x->s[x->at - 1] == '\n';
        return true;
    }
    fail_at(x, begin, "missing end of raw directive");
}

struct jtoken *jlex(struct jrun *r, size_t *n) {
    struct lexer x = {.r = r, .s = r->source, .n = r->n_source, .line_start = true};
    while (x.at < x.n) {
        size_t from = x.at, i = from;
        while (i + 1 < x.n && !(x.s[i] == '{' && (x.s[i + 1] == '%' || x.s[i + 1] == '{' || x.s[i + 1] == '#'))) i++;
        if (i + 1 >= x.n) {
            push_text(&x, from, x.n);
            break;
        }
        char kind = x.s[i + 1], sign = i + 2 < x.n ? x.s[i + 2] : 0;
        bool variable = kind == '{';
        if (sign != '-' && sign != '+') sign = 0;
        x.at = i + 2 + (sign != 0);
        if (kind == '%' && lex_raw(&x, i, from, i, sign)) continue;
        push_text(&x, from, text_end(&x, from, i, sign, variable));
        x.line_start = false;
        if (kind == '#') lex_comment(&x, i);
        else {
            push_token(&x, variable ? T_VAR_BEGIN : T_BLOCK_BEGIN, i);
            lex_tag(&x, variable);
        }
    }
    push_token(&x, T_EOF, x.n);
    *n = x.count;
    return x.tokens;
}
