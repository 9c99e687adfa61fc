#include <math.h>
#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

/* Strings with lengths, patterns and formats. */

#define DATE  "([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8])))"
#define TIME  "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-2]):[0-5][0-9]))"
#define BYTE  "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL "([a-z]([a-z0-9-]{0,20}[a-z0-9])?)"
#define HOST  LABEL "(\\." LABEL "){1,4}"

/* A part of each format, which every validator accepts. */
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P([1-9][0-9]{0,2}[YMWD]|T[1-9][0-9]{0,2}[HMS]|[1-9][0-9]?DT[1-9][0-9]?H)$"},
    {"email", "^[a-z0-9]+([._-][a-z0-9]+){0,3}@" HOST "$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^(" BYTE "\\.){3}" BYTE "$"},
    {"ipv6", "^([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[1-5][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"},
    {"uri", "^https?://" HOST "(/[A-Za-z0-9._~-]+)*/?$"},
    {"uri-reference", "^(https?://" HOST ")?(/[A-Za-z0-9._~-]+)+/?$"},
    {"json-pointer", "^(/[A-Za-z0-9_.-]*)*$"},
};

static const char *format_pattern(const struct json *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (json_is(name, formats[i].name)) return formats[i].pattern;
    return NULL;
}

/* Intersects *l with the strings that contain a match of the pattern. first: *l is not set yet. */
static int add_pattern(struct schema *s, const char *pattern, size_t n, bool first, struct lang *l, struct error *e) {
    const struct regex *r;
    struct lang next;
    TRY(regex_parse(s->arena, pattern, n, &r, e));
    TRY(lang_search(s->arena, r, &next, e));
    if (first) return *l = next, 0;
    return lang_product(s->arena, &(struct lang){l->states, l->edges, l->n_states, l->n_edges}, &next, false, l, e);
}

int schema_string(struct schema *s, const struct conj *c, expr_id *out) {
    const double lo = fmax(schema_greatest(c, "minLength", 0), 0), hi = schema_least(c, "maxLength", INFINITY);
    const uint32_t least = lo > 1e6 ? 1000000 : (uint32_t)lo, most = hi > 1e6 ? GRAMMAR_UNBOUNDED : hi < 0 ? 0 : (uint32_t)hi;
    static const char *const keywords[] = {"pattern", "format"};
    const struct json *text;
    struct lang l = {0};
    struct error e = {0};
    bool first = true;
    for (int k = 0; k < 2; k++)
        for (int i = 0; schema_keyword(c, &i, keywords[k], &text); i++) {
            const char *pattern = k ? format_pattern(text) : text->string;
            if (!pattern)
                return schema_fail(s, c->v[i].at, "format",
                                   "%.*s is not supported; date, time, date-time, duration, email, hostname, ipv4, ipv6, uuid, uri, "
                                   "uri-reference and json-pointer are",
                                   (int)(text->n < 40 ? text->n : 40), text->string);
            int rc = add_pattern(s, pattern, k ? strlen(pattern) : text->n, first, &l, &e);
            if (rc) return schema_fail_text(s, c->v[i].at, keywords[k], rc, "", &e);
            first = false;
        }
    if (first) {
        *out = !least && most == GRAMMAR_UNBOUNDED ? json_string(s) : json_in_quotes(s->g, grammar_text(s->g, json_char(s), least, most));
        return 0;
    }
    if (least || most != GRAMMAR_UNBOUNDED) {
        struct lang lengths;
        int rc = lang_length(s->arena, least, most, &lengths, &e);
        if (!rc) rc = lang_product(s->arena, &(struct lang){l.states, l.edges, l.n_states, l.n_edges}, &lengths, false, &l, &e);
        if (rc) return schema_fail_text(s, c->v[0].at, NULL, rc, "a pattern with a length", &e);
    }
    const expr_id chars = lang_is_empty(&l, s->arena) ? EXPR_NEVER : lang_expr(s->g, s->arena, &l, json_char_range);
    *out = chars == EXPR_NEVER ? EXPR_NEVER : json_in_quotes(s->g, chars);
    return 0;
}
