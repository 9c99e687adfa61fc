#include <string.h>

#include "base/buf.h"
#include "tokenizer/grammar/schema_internal.h"

/* Objects whose members are written between tags, as some models write the arguments of calls: values are JSON, or
 * strings as plain text. JSON spells "</" as
 * "<\/" there, and plain text contains none of the texts that end a value. */

enum { MAX_TAGGED_NAME = 100 };

static bool contains(const char *s, size_t n, const char *what, size_t k) { return k && memmem(s, n, what, k) != NULL; }

bool schema_tagged_has_end(const struct schema *s, const char *text, size_t n) {
    const struct json *ends = s->tags->ends;
    for (uint32_t i = 0; ends && i < ends->n; i++)
        if (contains(text, n, ends->items[i].string, ends->items[i].n)) return true;
    return false;
}

void schema_put_json(const struct schema *s, const char *text, size_t n, struct buf *out) {
    size_t from = 0;
    for (size_t i = 0; s->tags && i + 1 < n; i++) {
        if (text[i] != '<' || text[i + 1] != '/') continue;
        buf_add(out, text + from, i + 1 - from);
        buf_char(out, '\\');
        from = i + 1;
    }
    buf_add(out, text + from, n - from);
}

expr_id schema_json_literal(struct schema *s, const char *text, size_t n) {
    struct buf b = {0};
    schema_put_json(s, text, n, &b);
    const expr_id x = b.failed ? EXPR_FAILED : grammar_literal(s->g, b.data ? b.data : "", b.len);
    buf_free(&b);
    return x;
}

/* --- plain text ------------------------------------------------------------------------------- */

/* Characters of plain text: all but control characters other than tabs and line ends. */
static expr_id text_chars(struct grammar *g, uint32_t from, uint32_t to, bool after_less) {
    static const uint32_t plain[][2] = {{'\t', '\n'}, {'\r', '\r'}, {0x20, 0x7E}, {0xA0, 0x10FFFF}};
    expr_id x = EXPR_NEVER;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        const uint32_t lo = from > plain[i][0] ? from : plain[i][0], hi = to < plain[i][1] ? to : plain[i][1];
        if (lo <= hi) x = grammar_alt_range(g, x, lo, hi);
    }
    return x;
}

static int add_search(struct schema *s, const char *pattern, size_t n, struct lang *out, struct error *e) {
    const struct regex *r;
    TRY(regex_parse(s->arena, pattern, n, &r, e));
    return lang_search(s->effort, r, out, e);
}

/* The strings that contain a text that ends a value. */
static int ends_lang(struct schema *s, struct lang *out, struct error *e) {
    struct buf b = {0};
    for (uint32_t i = 0; s->tags->ends && i < s->tags->ends->n; i++) {
        if (i) buf_char(&b, '|');
        buf_add(&b, s->tags->ends->items[i].string, s->tags->ends->items[i].n);
    }
    int rc = b.failed ? error_set(e, ERR_MEMORY, "no memory")
                      : add_search(s, b.len ? b.data : "</", b.len ? b.len : 2, out, e);
    buf_free(&b);
    return rc;
}

/* Strings with a length have a state for each character: if they are too many, "</" may not occur at all. */
int schema_tagged_string(struct schema *s, const struct conj *c, const struct lang *l, expr_id *out) {
    struct lang ends, kept;
    struct error e = {0};
    int rc = ends_lang(s, &ends, &e);
    if (!rc) rc = lang_product(s->effort, l, &ends, true, &kept, &e);
    if (rc == ERR_USAGE && !(rc = add_search(s, "</", 2, &ends, &e)))
        rc = lang_product(s->effort, l, &ends, true, &kept, &e);
    if (rc) return schema_fail_text(s, c->v[0].at, NULL, rc, "a string", &e);
    *out = lang_is_empty(&kept, s->effort) ? EXPR_NEVER
                                           : grammar_lexeme(s->g, lang_expr(s->g, s->effort, &kept, text_chars));
    return 0;
}

/* --- members ---------------------------------------------------------------------------------- */

/* Whether the reader of calls takes the value as plain text: by a mark beside the name, or by the type that the
 * property has itself. */
static bool is_plain(const struct schema *s, const struct conj *value, const char *name, size_t n) {
    const struct json *map = json_get(s->root, "properties");
    if (s->tags->is_marked) return value->n && schema_types(value, true) == TYPE_STRING;
    for (uint32_t k = 0; map && map->type == JSON_OBJECT && k < map->n; k++)
        if (map->items[2 * k].n == n && !memcmp(map->items[2 * k].string, name, n))
            return json_is(json_get(&map->items[2 * k + 1], "type"), "string");
    return false;
}

static bool is_name(const char *name, size_t n) {
    if (!n || n > MAX_TAGGED_NAME || name[0] == ' ' || name[n - 1] == ' ') return false;
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < 0x20 || strchr("<>\"", name[i])) return false;
    return true;
}

static expr_id entry(struct schema *s, expr_id name, expr_id value, bool plain) {
    struct grammar *g = s->g;
    const expr_id head = grammar_seq(g, s->tags->before_key, name), tail = grammar_seq(g, value, s->tags->after_value);
    return grammar_seq(g, head, grammar_seq(g, plain ? s->tags->before_text : s->tags->before_json, tail));
}

int schema_tagged_member(struct schema *s, const struct conj *value, const char *name, size_t n, const char *at,
                         expr_id *out) {
    const bool plain = is_plain(s, value, name, n);
    expr_id x;
    if (!is_name(name, n))
        return schema_fail(s, at, "properties", "this model's calls cannot have an argument with the name %.*s",
                           (int)(n < 60 ? n : 60), name);
    s->form = plain ? FORM_TEXT : FORM_JSON;
    int rc = schema_compile(s, value, &x);
    s->form = FORM_TAGGED;
    if (!rc) *out = entry(s, grammar_literal(s->g, name, n), x, plain);
    return rc;
}

int schema_tagged_extra(struct schema *s, const struct conj *value, struct lang *names, const char *at, expr_id *out) {
    static const char pattern[] = "^[A-Za-z_][A-Za-z0-9_.-]{0,63}$";
    struct lang simple_names, both;
    struct error e = {0};
    expr_id x;
    int rc = add_search(s, pattern, sizeof pattern - 1, &simple_names, &e);
    if (!rc) rc = lang_product(s->effort, names, &simple_names, false, &both, &e);
    if (rc) return schema_fail_text(s, at, NULL, rc, "names of further arguments", &e);
    if (lang_is_empty(&both, s->effort)) return *out = EXPR_NEVER, 0;
    s->form = FORM_JSON;
    rc = schema_compile(s, value, &x);
    s->form = FORM_TAGGED;
    if (!rc) *out = entry(s, grammar_lexeme(s->g, lang_expr(s->g, s->effort, &both, text_chars)), x, false);
    return rc;
}

int schema_tagged_expr(struct grammar *g, struct effort *effort, const struct json *root,
                       const struct schema_tags *tags, expr_id *out, struct error *e) {
    struct schema s;
    struct conj c = {0};
    TRY(schema_open(&s, g, effort, root, e));
    s.tags = tags;
    s.form = FORM_TAGGED;
    TRY(schema_add_part(&s, &c, s.root, "#"));
    TRY(schema_compile(&s, &c, out));
    return *out == EXPR_NEVER ? error_set(e, ERR_USAGE, "#: no object is valid by this schema") : 0;
}
