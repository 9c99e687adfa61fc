/* References within a document: JSON pointers (#/$defs/a), anchors (#a: $anchor, and $id of drafts 4 to 7), and either
 * behind the $id of the document or of a schema in it. Pointers are of the whole document where a schema within it has
 * an $id of its own, but the reference does not name that $id. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer/grammar/schema_internal.h"

struct name {
    const char *text;
    size_t n;
};

static bool is_equal(const struct json *j, struct name name) {
    return j && j->type == JSON_STRING && j->n == name.n && !memcmp(j->string, name.text, name.n);
}

static bool has_anchor(const struct json *schema, struct name name) {
    static const char *const older[] = {"$id", "id"};
    bool has = is_equal(json_get(schema, "$anchor"), name) || is_equal(json_get(schema, "$dynamicAnchor"), name);
    for (size_t i = 0; i < sizeof older / sizeof *older; i++) {
        const struct json *id = json_get(schema, older[i]);
        has |= id && id->type == JSON_STRING && id->n == name.n + 1 && id->string[0] == '#' &&
               !memcmp(id->string + 1, name.text, name.n);
    }
    return has;
}

/* Whether name is the $id of a schema, whole or as its last part, as references to a neighbour have it. */
static bool has_id(const struct json *schema, struct name name) {
    const struct json *id = json_get(schema, "$id");
    if (!id) id = json_get(schema, "id");
    if (!id || id->type != JSON_STRING) return false;
    const size_t n = id->n && id->string[id->n - 1] == '#' ? id->n - 1 : id->n;
    return n && n >= name.n && !memcmp(id->string + n - name.n, name.text, name.n) &&
           (n == name.n || name.text[0] == '/' || id->string[n - name.n - 1] == '/');
}

/* Finds the first schema below j, or j itself, that fits the name. */
static const struct json *find(struct schema *s, const struct json *j, struct name name,
                               bool (*fits)(const struct json *, struct name)) {
    const struct json *found = NULL;
    if (j->type != JSON_OBJECT || effort_spend(s->effort, 20 + 20ull * j->n)) return NULL;
    if (fits(j, name)) return j;
    for (uint32_t i = 0; i < j->n && !found; i++) {
        const struct json *value = &j->items[2 * i + 1];
        const enum schema_holding holds = schema_holding_of(value - 1);
        if (holds == HOLDS_SCHEMA) found = find(s, value, name, fits);
        for (uint32_t k = 0; holds == HOLDS_LIST && value->type == JSON_ARRAY && k < value->n && !found; k++)
            found = find(s, &value->items[k], name, fits);
        for (uint32_t k = 0; holds == HOLDS_MAP && value->type == JSON_OBJECT && k < value->n && !found; k++)
            found = find(s, &value->items[2 * k + 1], name, fits);
    }
    return found;
}

/* Follows the JSON pointer from p to end, in a URI. */
static const struct json *follow(const struct json *j, const char *p, const char *end) {
    while (j && p < end) {
        char key[512];
        size_t n = 0;
        if (*p++ != '/') return NULL;
        for (; p < end && *p != '/' && n < sizeof key - 1; p++) {
            char c = *p;
            if (c == '~' && p + 1 < end) c = *++p == '0' ? '~' : '/';
            else if (c == '%' && end - p > 2) {
                unsigned v;
                char hex[3] = {p[1], p[2], 0};
                if (sscanf(hex, "%x", &v) != 1) return NULL;
                c = (char)v, p += 2;
            }
            key[n++] = c;
        }
        key[n] = 0;
        if (j->type == JSON_ARRAY)
            j = strspn(key, "0123456789") == n && n && n < 9 ? json_at(j, (uint32_t)strtoul(key, NULL, 10)) : NULL;
        else j = json_get(j, key);
    }
    return j;
}

const struct json *schema_reference(struct schema *s, const struct json *ref) {
    const char *end = ref->string + ref->n, *hash = memchr(ref->string, '#', ref->n), *p = hash ? hash + 1 : end;
    const struct name document = {ref->string, (size_t)((hash ? hash : end) - ref->string)},
                      anchor = {p, (size_t)(end - p)};
    const struct json *j = s->root;
    if (document.n) j = find(s, j, document, has_id);
    else if (!hash) return NULL;
    if (j && anchor.n && *p != '/') j = find(s, j, anchor, has_anchor);
    else if (j) j = follow(j, p, end);
    return j && (j->type == JSON_OBJECT || j->type == JSON_BOOL) ? j : NULL;
}
