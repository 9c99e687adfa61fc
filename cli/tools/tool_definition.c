#include "cli/tools/tool_definition.h"

#include <string.h>

#include "tokenizer/grammar/tool_source.h"

static bool is_present(const struct json *j) { return j && j->type != JSON_NULL; }

/* Words that options give a meaning: no tool can have these names. */
static bool is_reserved(const struct json *name) {
    return json_is(name, "all") || json_is(name, "auto") || json_is(name, "required");
}

static int read_function(struct arena *a, const struct json *name, const struct json *description,
                         const struct json *parameters, struct tool_definition *out, struct error *e) {
    if (!tool_source_is_name(name) || name->n > TOOL_NAME_MAX)
        return error_set(e, ERR_USAGE, "name: up to %d letters, digits, '_', '-' and '.' are required", TOOL_NAME_MAX);
    if (is_reserved(name))
        return error_set(e, ERR_USAGE,
                         "name: '%.*s' is a word of --allow and --tool-choice; give the tool another name",
                         (int)name->n, name->string);
    if (is_present(description) && description->type != JSON_STRING)
        return error_set(e, ERR_USAGE, "description: must be a string");
    if (is_present(parameters) && parameters->type != JSON_OBJECT)
        return error_set(e, ERR_USAGE, "parameters: must be a JSON schema, an object");
    const struct json *type = json_get(parameters, "type");
    if (type && !json_is(type, "object")) return error_set(e, ERR_USAGE, "parameters.type: must be object");
    if (!(out->name = arena_strndup(a, name->string, name->n))) return error_set(e, ERR_MEMORY, "no memory");
    out->description = is_present(description) ? description : NULL;
    out->parameters = is_present(parameters) ? parameters : NULL;
    return 0;
}

static int read_command(struct arena *a, const struct json *list, struct tool_definition *out, struct error *e) {
    if (!list || list->type != JSON_ARRAY || !list->n)
        return error_set(e, ERR_USAGE, "command: an array with a program and its arguments is required");
    const char **argv = arena_calloc(a, (size_t)list->n + 1, sizeof *argv);
    for (uint32_t i = 0; argv && i < list->n; i++) {
        const struct json *word = &list->items[i];
        if (word->type != JSON_STRING || memchr(word->string, 0, word->n))
            return error_set(e, ERR_USAGE, "command[%u]: must be a string without NUL", i);
        if (!(argv[i] = arena_strndup(a, word->string, word->n))) argv = NULL;
    }
    if (!argv) return error_set(e, ERR_MEMORY, "no memory");
    if (!*argv[0]) return error_set(e, ERR_USAGE, "command[0]: the name of a program is required");
    out->command.argv = argv;
    return 0;
}

static int read_limits(const struct json *root, struct tool_command *c, struct error *e) {
    const struct json *timeout = json_get(root, "timeout"), *output = json_get(root, "output");
    c->timeout_s = json_num(timeout, timeout ? -1 : TOOL_TIMEOUT_S);
    if (!(c->timeout_s > 0 && c->timeout_s <= TOOL_TIMEOUT_MAX_S))
        return error_set(e, ERR_USAGE, "timeout: must be seconds, more than 0 and at most %d", TOOL_TIMEOUT_MAX_S);
    const int64_t bytes = json_int(output, output ? -1 : TOOL_OUTPUT_BYTES);
    if (bytes < 1 || bytes > TOOL_OUTPUT_MAX)
        return error_set(e, ERR_USAGE, "output: must be a number of bytes from 1 to %d", TOOL_OUTPUT_MAX);
    c->max_output = (size_t)bytes;
    return 0;
}

/* A misspelt limit must not be ignored. */
static int check_members(const struct json *object, const char *const *known, const char *where, struct error *e) {
    for (uint32_t i = 0; i < object->n; i++) {
        const struct json *key = &object->items[2 * i];
        size_t k = 0;
        while (known[k] && !json_is(key, known[k])) k++;
        if (!known[k])
            return error_set(e, ERR_USAGE, "%s%.*s: unknown member", where, (int)(key->n < 60 ? key->n : 60),
                             key->string);
    }
    return 0;
}

int tool_definition_parse(struct arena *a, const struct json *root, struct tool_definition *out, struct error *e) {
    static const char *const plain[] = {"type",    "name",    "description", "parameters", "strict",
                                        "command", "timeout", "output",      NULL},
                             *const outer[] = {"type", "function", "command", "timeout", "output", NULL},
                             *const inner[] = {"name", "description", "parameters", "strict", NULL};
    const struct json *f = json_get(root, "function"), *type = json_get(root, "type");
    *out = (struct tool_definition){0};
    if (root->type != JSON_OBJECT) return error_set(e, ERR_USAGE, "must be an object");
    if (f && f->type != JSON_OBJECT) return error_set(e, ERR_USAGE, "function: must be an object");
    if (type && !json_is(type, "function")) return error_set(e, ERR_USAGE, "type: must be function");
    TRY(check_members(root, f ? outer : plain, "", e));
    if (f) TRY(check_members(f, inner, "function.", e));
    else f = root;
    TRY(read_function(a, json_get(f, "name"), json_get(f, "description"), json_get(f, "parameters"), out, e));
    TRY(read_command(a, json_get(root, "command"), out, e));
    return read_limits(root, &out->command, e);
}

int tool_definition_parse_mcp(struct arena *a, const struct json *tool, struct tool_definition *out, struct error *e) {
    *out = (struct tool_definition){.command = {.timeout_s = TOOL_TIMEOUT_S, .max_output = TOOL_OUTPUT_BYTES}};
    return read_function(a, json_get(tool, "name"), json_get(tool, "description"), json_get(tool, "inputSchema"), out,
                         e);
}

void tool_definition_put(const struct tool_definition *d, struct buf *b) {
    buf_str(b, "{\"type\": \"function\", \"function\": {\"name\": ");
    json_quote(b, d->name, strlen(d->name));
    if (d->description) {
        buf_str(b, ", \"description\": ");
        json_write(b, d->description);
    }
    buf_str(b, ", \"parameters\": ");
    if (d->parameters) json_write(b, d->parameters);
    else buf_str(b, "{\"type\": \"object\", \"properties\": {}}");
    buf_str(b, "}}");
}
