#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

/* The keywords of JSON Schema 2020-12: which are enforced, which say nothing about validity, and which are refused. */

enum value_kind {
    ANY,
    NUMBER,
    COUNT,
    TEXT,
    BOOLEAN,
    SCHEMA,
    SCHEMAS,
    SCHEMA_MAP,
    NAMES,
    NAMES_MAP,
    DEPENDENCIES,
    VALUES,
    TYPES,
    UNSUPPORTED
};
static const struct {
    const char *name;
    uint8_t kind, types; /* types: those that the keyword is about; 0: all */
} keywords[] = {
    {"type", TYPES, 0},
    {"enum", VALUES, 0},
    {"const", ANY, 0},
    {"anyOf", SCHEMAS, 0},
    {"oneOf", SCHEMAS, 0},
    {"allOf", SCHEMAS, 0},
    {"$ref", TEXT, 0},
    {"properties", SCHEMA_MAP, TYPE_OBJECT},
    {"required", NAMES, TYPE_OBJECT},
    {"additionalProperties", SCHEMA, TYPE_OBJECT},
    {"patternProperties", SCHEMA_MAP, TYPE_OBJECT},
    {"propertyNames", SCHEMA, TYPE_OBJECT},
    {"minProperties", COUNT, TYPE_OBJECT},
    {"maxProperties", COUNT, TYPE_OBJECT},
    {"items", SCHEMA, TYPE_ARRAY},
    {"prefixItems", SCHEMAS, TYPE_ARRAY},
    {"minItems", COUNT, TYPE_ARRAY},
    {"maxItems", COUNT, TYPE_ARRAY},
    {"uniqueItems", BOOLEAN, TYPE_ARRAY},
    {"contains", SCHEMA, TYPE_ARRAY},
    {"minContains", COUNT, TYPE_ARRAY},
    {"minLength", COUNT, TYPE_STRING},
    {"maxLength", COUNT, TYPE_STRING},
    {"pattern", TEXT, TYPE_STRING},
    {"format", TEXT, TYPE_STRING},
    {"minimum", NUMBER, TYPE_NUMBER},
    {"maximum", NUMBER, TYPE_NUMBER},
    {"exclusiveMinimum", NUMBER, TYPE_NUMBER},
    {"exclusiveMaximum", NUMBER, TYPE_NUMBER},
    {"multipleOf", NUMBER, TYPE_NUMBER},
    {"$defs", SCHEMA_MAP, 0},
    {"definitions", SCHEMA_MAP, 0},
    {"not", SCHEMA, 0},
    {"if", SCHEMA, 0},
    {"then", SCHEMA, 0},
    {"else", SCHEMA, 0},
    {"dependentRequired", NAMES_MAP, TYPE_OBJECT},
    {"dependentSchemas", SCHEMA_MAP, TYPE_OBJECT},
    {"dependencies", DEPENDENCIES, TYPE_OBJECT},
    {"maxContains", UNSUPPORTED, 0},
    {"additionalItems", UNSUPPORTED, 0},
    {"unevaluatedItems", UNSUPPORTED, 0},
    {"unevaluatedProperties", UNSUPPORTED, 0},
    {"$dynamicRef", UNSUPPORTED, 0},
    {"$recursiveRef", UNSUPPORTED, 0},
};
/* Annotations: no influence on validity. */
static const char *const annotations[] = {
    "title",     "description",     "default",          "examples",       "example",      "$schema",    "$id",
    "id",        "$comment",        "$anchor",          "$dynamicAnchor", "$vocabulary",  "deprecated", "readOnly",
    "writeOnly", "contentEncoding", "contentMediaType", "contentSchema",  "discriminator"};
/* Those that editors and generators of documents add to published schemas; a name may also begin with one of the
 * prefixes. */
static const char *const tool_annotations[] = {
    "enumDescriptions",   "enumNames",     "defaultSnippets", "errorMessage",  "patternErrorMessage",
    "deprecationMessage", "doNotSuggest",  "suggestSortText", "allowComments", "allowTrailingCommas",
    "fileMatch",          "firstProperty", "tsType"};
static const char *const annotation_prefixes[] = {"x-", "$$", "meta:", "markdown"};

static bool is_schema(const struct json *v) { return v->type == JSON_OBJECT || v->type == JSON_BOOL; }
static bool is_names(const struct json *v) {
    bool ok = v->type == JSON_ARRAY;
    for (uint32_t i = 0; ok && i < v->n; i++) ok = v->items[i].type == JSON_STRING;
    return ok;
}
/* Whether all members are schemas, lists of names, or both are allowed. */
static bool is_map(const struct json *v, bool schemas, bool names) {
    bool ok = v->type == JSON_OBJECT;
    for (uint32_t i = 0; ok && i < v->n; i++)
        ok = (schemas && is_schema(&v->items[2 * i + 1])) || (names && is_names(&v->items[2 * i + 1]));
    return ok;
}

static const char *wrong_value(enum value_kind kind, const struct json *v) {
    const bool integer = v->type == JSON_INT || json_int(v, INT64_MIN) != INT64_MIN;
    switch (kind) {
    case NUMBER:
        return v->type == JSON_INT || (v->type == JSON_FLOAT && isfinite(json_num(v, 0))) ? NULL : "must be a number";
    case COUNT: return integer && json_int(v, -1) >= 0 ? NULL : "must be a whole number that is not negative";
    case TEXT: return v->type == JSON_STRING ? NULL : "must be a string";
    case BOOLEAN: return v->type == JSON_BOOL ? NULL : "must be true or false";
    case SCHEMA: return is_schema(v) ? NULL : "must be a schema";
    case SCHEMAS:
        if (v->type != JSON_ARRAY || !v->n) return "must be a list of schemas that is not empty";
        for (uint32_t i = 0; i < v->n; i++)
            if (!is_schema(&v->items[i])) return "must be a list of schemas";
        return NULL;
    case SCHEMA_MAP: return is_map(v, true, false) ? NULL : "must be an object of schemas";
    case NAMES: return is_names(v) ? NULL : "must be a list of names";
    case NAMES_MAP: return is_map(v, false, true) ? NULL : "must be an object of lists of names";
    case DEPENDENCIES: return is_map(v, true, true) ? NULL : "must be an object of schemas or lists of names";
    case VALUES: return v->type == JSON_ARRAY && v->n ? NULL : "must be a list of values that is not empty";
    case UNSUPPORTED: return "is not supported: a grammar cannot enforce it";
    case TYPES:
    case ANY: return NULL;
    }
    return NULL;
}

static unsigned type_bit(const struct json *name) {
    static const struct {
        const char *name;
        unsigned bits;
    } names[] = {{"null", TYPE_NULL},     {"boolean", TYPE_BOOLEAN}, {"integer", TYPE_INTEGER}, {"number", TYPE_NUMBER},
                 {"string", TYPE_STRING}, {"array", TYPE_ARRAY},     {"object", TYPE_OBJECT}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (json_is(name, names[i].name)) return names[i].bits;
    return 0;
}
/* The bits of a `type`; 0: not valid. */
unsigned schema_type_bits(const struct json *v) {
    unsigned bits = 0;
    if (v->type != JSON_ARRAY) return type_bit(v);
    for (uint32_t i = 0; i < v->n; i++) {
        const unsigned one = type_bit(&v->items[i]);
        if (!one) return 0;
        bits |= one;
    }
    return bits;
}

enum schema_holding schema_holding_of(const struct json *key) {
    for (size_t k = 0; k < sizeof keywords / sizeof *keywords; k++) {
        const enum value_kind kind = (enum value_kind)keywords[k].kind;
        if (json_is(key, keywords[k].name))
            return kind == SCHEMA                               ? HOLDS_SCHEMA
                   : kind == SCHEMAS                            ? HOLDS_LIST
                   : kind == SCHEMA_MAP || kind == DEPENDENCIES ? HOLDS_MAP
                                                                : HOLDS_NOTHING;
    }
    return HOLDS_NOTHING;
}

static bool is_annotation(const struct json *key) {
    bool known = false;
    for (size_t k = 0; k < sizeof annotation_prefixes / sizeof *annotation_prefixes && !known; k++) {
        const size_t n = strlen(annotation_prefixes[k]);
        known = key->n >= n && !memcmp(key->string, annotation_prefixes[k], n);
    }
    for (size_t k = 0; k < sizeof annotations / sizeof *annotations && !known; k++)
        known = json_is(key, annotations[k]);
    for (size_t k = 0; k < sizeof tool_annotations / sizeof *tool_annotations && !known; k++)
        known = json_is(key, tool_annotations[k]);
    return known;
}
bool schema_is_unset(const struct json *key) {
    if (key[1].type != JSON_NULL) return false;
    for (size_t k = 0; k < sizeof keywords / sizeof *keywords; k++)
        if (json_is(key, keywords[k].name)) return keywords[k].kind != ANY && keywords[k].kind != TYPES;
    return false;
}

bool schema_says_nothing(const struct json *key) {
    return is_annotation(key) || json_is(key, "$defs") || json_is(key, "definitions");
}

int schema_check_keywords(struct schema *s, const struct json *j, const char *at) {
    for (uint32_t i = 0; i < j->n; i++) {
        const struct json *key = &j->items[2 * i], *value = key + 1;
        bool known = is_annotation(key);
        for (size_t k = 0; k < sizeof keywords / sizeof *keywords && !known; k++) {
            if (!json_is(key, keywords[k].name)) continue;
            const char *wrong = wrong_value((enum value_kind)keywords[k].kind, value);
            if (!wrong && keywords[k].kind == TYPES && !schema_type_bits(value))
                wrong = "must be null, boolean, integer, number, string, array or object, or a list of these";
            if (wrong) return schema_fail(s, at, keywords[k].name, "%s", wrong);
            known = true;
        }
        char name[64];
        if (known) continue;
        snprintf(name, sizeof name, "%.*s", (int)(key->n < 60 ? key->n : 60), key->string);
        return schema_fail(s, at, name, "unknown keyword");
    }
    return 0;
}

unsigned schema_types(const struct conj *c, bool implied) {
    unsigned bits = TYPE_ALL, about = 0;
    bool given = false;
    for (int i = 0; i < c->n; i++) {
        const struct json *j = c->v[i].schema, *type = json_get(j, "type");
        if (type) bits &= schema_type_bits(type), given = true;
        given |= json_get(j, "enum") || json_get(j, "const");
        for (uint32_t m = 0; m < j->n; m++)
            for (size_t k = 0; k < sizeof keywords / sizeof *keywords; k++)
                if (json_is(&j->items[2 * m], keywords[k].name)) about |= keywords[k].types;
    }
    return implied && !given && about ? bits & about : bits;
}

bool schema_keyword(const struct conj *c, int *i, const char *name, const struct json **value) {
    for (; *i < c->n; ++*i)
        if ((*value = json_get(c->v[*i].schema, name))) return true;
    return false;
}
double schema_least(const struct conj *c, const char *keyword, double none) {
    const struct json *v;
    double least = INFINITY;
    bool any = false;
    for (int i = 0; schema_keyword(c, &i, keyword, &v); i++) least = fmin(least, json_num(v, INFINITY)), any = true;
    return any ? least : none;
}
double schema_greatest(const struct conj *c, const char *keyword, double none) {
    const struct json *v;
    double greatest = -INFINITY;
    bool any = false;
    for (int i = 0; schema_keyword(c, &i, keyword, &v); i++)
        greatest = fmax(greatest, json_num(v, -INFINITY)), any = true;
    return any ? greatest : none;
}
