#include "tokenizer/grammar/schema_internal.h"

/* Names of members that propertyNames allows. */

/* Collects the schemas of one propertyNames. *strings: false if no name is valid by them. */
static int names_conj(struct schema *s, const struct part *p, const struct json *schema, struct conj *out,
                      bool *strings) {
    *out = (struct conj){0};
    TRY(schema_add_part(s, out, schema, schema_at(s, p->at, "propertyNames", 13)));
    for (int i = 0; i < out->n; i++)
        if (json_get(out->v[i].schema, "anyOf") || json_get(out->v[i].schema, "oneOf"))
            return schema_fail(s, p->at, "propertyNames", "is not supported with alternatives in it");
    *strings = !out->never && schema_types(out, false) & TYPE_STRING;
    return 0;
}

int schema_allows_name(struct schema *s, const struct conj *c, const char *name, size_t n, bool *out) {
    const struct json *schema, value = {.type = JSON_STRING, .n = (uint32_t)n, .string = name};
    struct conj *names = schema_conj_borrow(s);
    if (!names) return ERR_MEMORY;
    *out = true;
    for (int i = 0; schema_keyword(c, &i, "propertyNames", &schema) && *out; i++) {
        struct lang l;
        TRY(names_conj(s, &c->v[i], schema, names, out));
        if (!*out) break;
        TRY(schema_string_lang(s, names, &l));
        *out = schema_enumerates(s, names, &value) && lang_has(&l, name, n);
    }
    schema_conj_return(s, names);
    return 0;
}

/* Whether the schemas list strings; *list then has them, or is the only one. */
static bool is_listed(const struct conj *names, const struct json **list, uint32_t *n) {
    int i = 0;
    *n = 1;
    if (schema_keyword(names, &i, "const", list)) return true;
    i = 0;
    if (!schema_keyword(names, &i, "enum", list)) return false;
    *n = (*list)->n;
    *list = (*list)->items;
    return true;
}

int schema_listed_names(struct schema *s, const struct conj *c, const struct json **list, uint32_t *n) {
    const struct json *schema;
    struct conj *names = schema_conj_borrow(s);
    bool strings;
    if (!names) return ERR_MEMORY;
    *list = NULL;
    for (int i = 0; schema_keyword(c, &i, "propertyNames", &schema); i++) {
        TRY(names_conj(s, &c->v[i], schema, names, &strings));
        if (is_listed(names, list, n)) break;
        *list = NULL;
    }
    schema_conj_return(s, names);
    return 0;
}

int schema_restrict_names(struct schema *s, const struct conj *c, struct lang *l) {
    const struct json *schema;
    struct conj *names = schema_conj_borrow(s);
    struct error e = {0};
    bool strings;
    if (!names) return ERR_MEMORY;
    for (int i = 0; schema_keyword(c, &i, "propertyNames", &schema); i++) {
        struct lang one, from = *l;
        TRY(names_conj(s, &c->v[i], schema, names, &strings));
        if (strings) TRY(schema_string_lang(s, names, &one));
        int rc = strings ? lang_product(s->effort, &from, &one, false, l, &e)
                         : lang_product(s->effort, &from, &from, true, l, &e);
        if (rc) return schema_fail_text(s, c->v[i].at, "propertyNames", rc, "", &e);
    }
    schema_conj_return(s, names);
    return 0;
}
