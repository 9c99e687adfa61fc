#include "cli/saved/store_message.h"

static bool is_text(const struct json *j) { return j && j->type == JSON_STRING; }

static int add_call(struct tool_calls *calls, const struct json *id, const struct json *name,
                    const struct json *arguments) {
    if (!is_text(id) || !is_text(name) || !name->n || (arguments && arguments->type != JSON_OBJECT)) return ERR_MODEL;
    if (mem_grow(&calls->v, &calls->cap, calls->n + 1, sizeof *calls->v)) return ERR_MEMORY;
    struct tool_call *k = &calls->v[calls->n++];
    *k = (struct tool_call){0};
    buf_add(&k->id, id->string, id->n);
    buf_add(&k->name, name->string, name->n);
    if (arguments) json_write(&k->arguments, arguments);
    return k->id.failed || k->name.failed || k->arguments.failed ? ERR_MEMORY : 0;
}

/* Reads the calls of an assistant's message, or the call that a tool's message answers. */
static int read_calls(const struct json *m, enum role role, struct tool_calls *calls) {
    const struct json *list = json_get(m, "tool_calls");
    if (role == ROLE_TOOL) return add_call(calls, json_get(m, "tool_call_id"), json_get(m, "name"), NULL);
    if (!list) return 0;
    if (role != ROLE_ASSISTANT || list->type != JSON_ARRAY) return ERR_MODEL;
    for (uint32_t i = 0; i < list->n; i++) {
        const struct json *function = json_get(&list->items[i], "function"),
                          *arguments = json_get(function, "arguments");
        if (!arguments) return ERR_MODEL;
        TRY(add_call(calls, json_get(&list->items[i], "id"), json_get(function, "name"), arguments));
    }
    return 0;
}

int store_message_add(const struct json *m, const char *what, struct conversation *conv, struct error *e) {
    const struct json *role = json_get(m, "role"), *text = json_get(m, "content"), *thinking = json_get(m, "thinking");
    int r = -1;
    for (int k = 0; k < N_ROLES; k++)
        if (json_is(role, conversation_role_name((enum role)k))) r = k;
    if (r < 0 || !is_text(text) || (thinking && !is_text(thinking)))
        return error_set(e, ERR_MODEL, "%s: message %zu is malformed", what, conv->n);
    if (conversation_add(conv, (enum role)r, text->string, text->n, thinking ? thinking->string : NULL,
                         thinking ? thinking->n : 0))
        return error_set(e, ERR_MEMORY, "%s: no memory", what);
    struct message *added = &conv->messages[conv->n - 1];
    const struct json *images = json_get(m, "images");
    int shown = images ? image_files_read(&added->images, images, added->text.len) : 0;
    if (shown) return error_set(e, shown, "%s: message %zu has a malformed image", what, conv->n - 1);
    added->partial = json_bool(json_get(m, "partial"), false);
    int rc = read_calls(m, added->role, &added->calls);
    if (rc == ERR_MODEL) return error_set(e, rc, "%s: message %zu has a malformed tool call", what, conv->n - 1);
    return rc ? error_set(e, rc, "%s: no memory", what) : 0;
}
