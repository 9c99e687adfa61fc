#include <math.h>
#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

/* Strings with lengths, patterns and formats. */

#define DATE \
    "([12][0-9]{3}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[" \
    "0-8])))"
#define TIME          "(([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-](0[0-9]|1[0-2]):[0-5][0-9]))"
#define BYTE          "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL         "([a-z]([a-z0-9-]{0,20}[a-z0-9])?)"
#define HOST          LABEL "(\\." LABEL "){1,4}"
#define UUID(version) "^[0-9a-f]{8}-[0-9a-f]{4}-" version "[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
/* numbers in strings, as services write those that exceed a double */
#define WHOLE  "(0|[1-9][0-9]{0,8})"
#define LONG   "(0|[1-9][0-9]{0,17})"
#define NUMBER "^-?(0|[1-9][0-9]{0,9})(\\.[0-9]{1,6})?$"

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
    {"uuid", UUID("[1-5]")},
    {"uuid1", UUID("1")},
    {"uuid3", UUID("3")},
    {"uuid4", UUID("4")},
    {"uuid5", UUID("5")},
    {"ipvanyaddress", "^(" BYTE "\\.){3}" BYTE "$"},
    {"base64", "^([A-Za-z0-9+/]{4})*$"},
    {"url", "^https?://" HOST "(/[A-Za-z0-9._~-]+)*/?$"},
    {"uri", "^https?://" HOST "(/[A-Za-z0-9._~-]+)*/?$"},
    {"uri-reference", "^(https?://" HOST ")?(/[A-Za-z0-9._~-]+)+/?$"},
    {"uri-template", "^https?://" HOST "(/[A-Za-z0-9._~-]+)*/?$"},
    {"iri", "^https?://" HOST "(/[A-Za-z0-9._~-]+)*/?$"},
    {"iri-reference", "^(https?://" HOST ")?(/[A-Za-z0-9._~-]+)+/?$"},
    {"idn-email", "^[a-z0-9]+([._-][a-z0-9]+){0,3}@" HOST "$"},
    {"idn-hostname", "^[a-z][a-z0-9]{0,20}(\\.[a-z][a-z0-9]{0,20}){1,4}$"},
    {"json-pointer", "^(/[A-Za-z0-9_.-]*)*$"},
    {"relative-json-pointer", "^([0-9]|[1-9]{2,3})(#|(/[A-Za-z0-9_.-]*)*)$"},
    {"regex", "^[A-Za-z0-9 _-]*$"},
    {"int32", "^-?" WHOLE "$"},
    {"uint32", "^" WHOLE "$"},
    {"int64", "^-?" LONG "$"},
    {"uint64", "^" LONG "$"},
    {"float", NUMBER},
    {"double", NUMBER},
    {"decimal", NUMBER},
};

static const char *format_pattern(const struct json *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (json_is(name, formats[i].name)) return formats[i].pattern;
    return NULL;
}

/* Intersects *l with the strings that contain a match of the pattern. allows_all: *l is not set yet. */
static int add_pattern(struct schema *s, const char *pattern, size_t n, bool allows_all, struct lang *l,
                       struct error *e) {
    struct lang next;
    TRY(look_ahead_search(s->effort, s->arena, pattern, n, &next, e));
    if (allows_all) return *l = next, 0;
    return lang_product(s->effort, &(struct lang){l->states, l->edges, l->n_states, l->n_edges}, &next, false, l, e);
}

/* Removes the strings that `not` excludes; *allows_all becomes false if there are any. */
static int remove_excluded(struct schema *s, const struct conj *c, bool *allows_all, struct lang *l, struct error *e) {
    struct grammar_text *texts = NULL;
    size_t count = 0, cap = 0;
    struct lang one;
    int rc = 0;
    for (int i = 0; i < c->n && !rc; i++) {
        uint32_t n;
        const struct json *v = schema_excluded(c->v[i].schema, &n);
        for (uint32_t k = 0; v && k < n && !rc; k++) {
            if (v[k].type != JSON_STRING) continue;
            if (mem_grow(&texts, &cap, count + 1, sizeof *texts)) rc = error_set(e, ERR_MEMORY, "no memory");
            else texts[count++] = (struct grammar_text){v[k].string, v[k].n};
        }
    }
    if (count && !rc && *allows_all) rc = lang_length(s->effort, 0, GRAMMAR_UNBOUNDED, l, e);
    if (count && !rc) {
        const struct lang from = *l;
        *allows_all = false;
        rc = lang_strings(s->effort, texts, count, &one, e);
        if (!rc) rc = lang_product(s->effort, &from, &one, true, l, e);
    }
    mem_free(texts);
    return rc;
}

struct lengths {
    uint32_t least, most;
};
static struct lengths lengths_of(const struct conj *c) {
    const double lo = schema_greatest(c, "minLength", 0), hi = schema_least(c, "maxLength", INFINITY);
    return (struct lengths){lo > SCHEMA_MAX_COUNT ? SCHEMA_MAX_COUNT : (uint32_t)lo,
                            hi > SCHEMA_MAX_COUNT ? GRAMMAR_UNBOUNDED : (uint32_t)hi};
}

/* Sets *l to the strings that the keywords allow, apart from the lengths. *allows_all: they allow every string; *l is
 * then not set. */
static int content_lang(struct schema *s, const struct conj *c, bool *allows_all, struct lang *l) {
    static const char *const keywords[] = {"pattern", "format"};
    const struct json *text;
    struct error e = {0};
    *allows_all = true;
    for (int k = 0; k < 2; k++)
        for (int i = 0; schema_keyword(c, &i, keywords[k], &text); i++) {
            const char *pattern = k ? format_pattern(text) : text->string;
            /* zod's own formats stand beside their patterns */
            if (!pattern && json_get(c->v[i].schema, "pattern")) continue;
            if (!pattern)
                return schema_fail(
                    s, c->v[i].at, "format",
                    "%.*s is not supported; date, time, date-time, duration, email, hostname, ipv4, ipv6, uuid, uri, "
                    "uri-reference, uri-template, json-pointer, regex, int64, double and their like are",
                    (int)(text->n < 40 ? text->n : 40), text->string);
            int rc = add_pattern(s, pattern, k ? strlen(pattern) : text->n, *allows_all, l, &e);
            if (rc) return schema_fail_text(s, c->v[i].at, keywords[k], rc, "", &e);
            *allows_all = false;
        }
    int rc = remove_excluded(s, c, allows_all, l, &e);
    return rc ? schema_fail_text(s, c->v[0].at, "not", rc, "", &e) : 0;
}

static int restrict_length(struct schema *s, const struct conj *c, struct lang *l) {
    const struct lengths n = lengths_of(c);
    const struct lang from = *l;
    struct lang lengths;
    struct error e = {0};
    if (!n.least && n.most == GRAMMAR_UNBOUNDED) return 0;
    int rc = lang_length(s->effort, n.least, n.most, &lengths, &e);
    if (!rc) rc = lang_product(s->effort, &from, &lengths, false, l, &e);
    return rc ? schema_fail_text(s, c->v[0].at, NULL, rc, "a pattern with a length", &e) : 0;
}

int schema_string_lang(struct schema *s, const struct conj *c, struct lang *out) {
    struct error e = {0};
    bool allows_all;
    TRY(content_lang(s, c, &allows_all, out));
    int rc = allows_all ? lang_length(s->effort, 0, GRAMMAR_UNBOUNDED, out, &e) : 0;
    return rc ? schema_fail_text(s, "#", NULL, rc, "", &e) : restrict_length(s, c, out);
}

int schema_string(struct schema *s, const struct conj *c, expr_id *out) {
    const struct lengths n = lengths_of(c);
    struct lang l = {0};
    bool allows_all;
    TRY(content_lang(s, c, &allows_all, &l));
    if (allows_all && s->form == FORM_JSON && !s->tags) {
        *out = !n.least && n.most == GRAMMAR_UNBOUNDED
                   ? json_string(s)
                   : json_in_quotes(s->g, grammar_text(s->g, json_char(s), n.least, n.most));
        return 0;
    }
    struct error e = {0};
    int rc = allows_all ? lang_length(s->effort, 0, GRAMMAR_UNBOUNDED, &l, &e) : 0;
    if (rc) return schema_fail_text(s, c->v[0].at, NULL, rc, "", &e);
    TRY(restrict_length(s, c, &l));
    if (s->form == FORM_TEXT) return schema_tagged_string(s, c, &l, out);
    const expr_id chars = lang_is_empty(&l, s->effort) ? EXPR_NEVER : json_lang(s, &l);
    *out = chars == EXPR_NEVER ? EXPR_NEVER : json_in_quotes(s->g, chars);
    return 0;
}
