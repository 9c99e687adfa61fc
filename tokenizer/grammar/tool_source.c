#include "tokenizer/grammar/tool_source.h"

#include <string.h>

#include "tokenizer/grammar/schema.h"

static expr_id text_of(struct grammar *g, const struct json *format, const char *key) {
    const struct json *j = json_get(format, key);
    expr_id x = EXPR_EMPTY;
    if (j && j->type == JSON_STRING) return grammar_literal(g, j->string, j->n);
    for (uint32_t i = 0; j && j->type == JSON_ARRAY && i < j->n; i++) {
        const struct json *part = &j->items[i];
        x = grammar_seq(g, x,
                        part->type == JSON_STRING ? grammar_literal(g, part->string, part->n)
                                                  : grammar_token(g, (int32_t)json_int(part, -1)));
    }
    return x;
}

static struct schema_tags tags_of(struct grammar *g, const struct json *format) {
    return (struct schema_tags){.before_key = text_of(g, format, "before_key"),
                                .before_text = text_of(g, format, "before_text"),
                                .before_json =
                                    text_of(g, format, json_get(format, "before_json") ? "before_json" : "before_text"),
                                .after_value = text_of(g, format, "after_value"),
                                .is_marked = json_get(format, "before_json") != NULL,
                                .ends = json_get(format, "ends")};
}

/* Whether a schema of parameters says nothing about any, as clients describe a tool that has none. */
static bool lists_nothing(const struct json *schema) {
    static const char *const harmless[] = {"type", "properties", "required", "title", "description", "$schema"};
    bool nothing = true;
    for (uint32_t i = 0; schema && schema->type == JSON_OBJECT && i < schema->n; i++) {
        const struct json *key = &schema->items[2 * i], *value = key + 1;
        bool known = false;
        for (size_t k = 0; k < sizeof harmless / sizeof *harmless; k++) known |= json_is(key, harmless[k]);
        known &= value->type < JSON_ARRAY || !value->n;
        nothing &= known || (json_is(key, "additionalProperties") && value->type == JSON_BOOL && !value->boolean);
    }
    return nothing;
}

/* Arguments are an object, whatever else the schema would allow. tags: NULL if they are JSON. */
static int arguments_expr(struct grammar *g, struct effort *effort, const struct json *schema,
                          const struct schema_tags *tags, expr_id *out, struct error *e) {
    static const struct json none[] = {{.type = JSON_STRING, .n = 4, .string = "type"},
                                       {.type = JSON_STRING, .n = 6, .string = "object"},
                                       {.type = JSON_STRING, .n = 20, .string = "additionalProperties"},
                                       {.type = JSON_BOOL}},
                             no_parameters = {.type = JSON_OBJECT, .n = 2, .items = none};
    if (schema && schema->type == JSON_OBJECT && schema->n && !json_is(json_get(schema, "type"), "object"))
        return error_set(e, ERR_USAGE, "#/type: must be object for the parameters of a tool");
    if (lists_nothing(schema)) schema = &no_parameters;
    return tags ? schema_tagged_expr(g, effort, schema, tags, out, e) : schema_expr(g, effort, schema, out, e);
}

bool tool_source_is_name(const struct json *name) {
    if (!name || name->type != JSON_STRING || !name->n) return false;
    for (uint32_t i = 0; i < name->n; i++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.", name->string[i]) ||
            !name->string[i])
            return false;
    return true;
}

int tool_source_expr(struct grammar *g, struct effort *effort, const struct json *source, expr_id *out,
                     struct error *e) {
    const struct json *format = json_get(source, "format"), *tools = json_get(source, "tools");
    const int64_t most = json_int(json_get(source, "most"), 1);
    const bool is_tagged = json_get(format, "before_key") != NULL;
    const struct schema_tags tags = is_tagged ? tags_of(g, format) : (struct schema_tags){0};
    expr_id call = EXPR_NEVER;
    for (uint32_t i = 0; tags.ends && i < tags.ends->n; i++)
        if (tags.ends->type != JSON_ARRAY || tags.ends->items[i].type != JSON_STRING)
            return error_set(e, ERR_USAGE, "ends: a list of texts is required");
    if (!tools || tools->type != JSON_ARRAY || !tools->n || most < 1 || most > 1000)
        return error_set(e, ERR_USAGE, "a list of tools is required");
    for (uint32_t i = 0; i < tools->n; i++) {
        const struct json *name = json_get(&tools->items[i], "name");
        expr_id arguments;
        if (!tool_source_is_name(name))
            return error_set(e, ERR_USAGE, "tool %u: a name of letters, digits, '_', '-' and '.' is required", i + 1);
        if (arguments_expr(g, effort, json_get(&tools->items[i], "parameters"), is_tagged ? &tags : NULL, &arguments,
                           e))
            return error_prefix(e, "parameters of tool %.*s", (int)(name->n < 60 ? name->n : 60), name->string);
        const expr_id head =
            grammar_seq(g, text_of(g, format, "before_name"), grammar_literal(g, name->string, name->n));
        const expr_id tail = grammar_seq(g, arguments, text_of(g, format, "after_arguments"));
        call = grammar_alt(g, call, grammar_seq(g, head, grammar_seq(g, text_of(g, format, "after_name"), tail)));
    }
    const expr_id more = grammar_repeat(g, grammar_seq(g, text_of(g, format, "between"), call), 0, (uint32_t)most - 1);
    *out = grammar_seq(g, text_of(g, format, "open"),
                       grammar_seq(g, grammar_seq(g, call, more), text_of(g, format, "close")));
    return 0;
}
