#include "cli/server/api_format.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"

static bool is_present(const struct json *j) { return j && j->type != JSON_NULL; }

int api_format_take(struct arena *a, const char *name, const struct json *value, enum source_kind kind,
                    struct grammar_source *out, struct error *e) {
    struct buf b = {0};
    const bool is_text = kind == SOURCE_REGEX || kind == SOURCE_GBNF;
    *out = (struct grammar_source){.kind = kind, .text = "", .name = arena_strndup(a, name, strlen(name))};
    if (!out->name) return error_set(e, ERR_MEMORY, "no memory");
    if (is_text && value->type != JSON_STRING) return error_set(e, ERR_USAGE, "%s: must be a string", name);
    if (kind == SOURCE_JSON_OBJECT) return 0;
    if (value->type == JSON_STRING) out->text = value->string, out->n = value->n; /* also a schema as text */
    else {
        if (!json_write(&b, value)) out->text = arena_strndup(a, b.data, b.len), out->n = b.len;
        const bool ok = !b.failed && out->text;
        buf_free(&b);
        if (!ok) return error_set(e, ERR_MEMORY, "no memory");
    }
    return 0;
}

int api_format_read_typed(struct arena *a, const char *name, const struct json *format, struct grammar_source *out,
                          bool *found, struct error *e) {
    static const char *const places[] = {"json_schema.schema", "schema"};
    const struct json *type = json_get(format, "type");
    char where[80];
    if (!is_present(format) || json_is(type, "text")) return 0;
    if (!json_is(type, "json_object") && !json_is(type, "json_schema"))
        return error_set(e, ERR_USAGE, "%s.type: must be text, json_object or json_schema", name);
    *found = true;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const struct json *schema = json_path(format, places[i]);
        if (!is_present(schema)) continue;
        snprintf(where, sizeof where, "%s.%s", name, places[i]);
        return api_format_take(a, where, schema, SOURCE_SCHEMA, out, e);
    }
    if (json_is(type, "json_object")) return api_format_take(a, name, format, SOURCE_JSON_OBJECT, out, e);
    return error_set(e, ERR_USAGE, "%s: a schema is required", name);
}

int api_format_read(struct arena *a, const struct json *root, struct grammar_source *out, bool *found,
                    struct error *e) {
    static const struct {
        const char *name, *nested; /* as a member of its own, and of structured_outputs */
        enum source_kind kind;
    } rows[] = {{"guided_json", "json", SOURCE_SCHEMA},
                {"guided_regex", "regex", SOURCE_REGEX},
                {"guided_grammar", "grammar", SOURCE_GBNF},
                {"guided_choice", "choice", SOURCE_CHOICES}};
    const struct json *nested = json_get(root, "structured_outputs");
    *found = false;
    TRY(api_format_read_typed(a, "response_format", json_get(root, "response_format"), out, found, e));
    for (size_t i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
        const bool inner = i & 1;
        char name[64];
        const struct json *value = inner ? json_get(nested, rows[i / 2].nested) : json_get(root, rows[i / 2].name);
        if (!is_present(value) || (value->type >= JSON_STRING && value->type <= JSON_ARRAY && !value->n)) continue;
        snprintf(name, sizeof name, "%s%s", inner ? "structured_outputs." : "",
                 inner ? rows[i / 2].nested : rows[i / 2].name);
        if (*found) return error_set(e, ERR_USAGE, "%s: cannot be combined with another format of the answer", name);
        *found = true;
        TRY(api_format_take(a, name, value, rows[i / 2].kind, out, e));
    }
    const struct json *begun = json_get(root, "continue_final_message");
    if (*found && is_present(begun) && !(begun->type == JSON_BOOL && !begun->boolean))
        return error_set(e, ERR_USAGE, "continue_final_message: cannot be combined with a format of the answer");
    return 0;
}
