#include "cli/tools/mcp_message.h"

static bool is_text(const struct json *j) { return j && j->type == JSON_STRING; }

int mcp_message_parse(struct arena *a, const char *line, size_t n, struct mcp_message *out, struct error *e) {
    struct json *root = arena_alloc(a, sizeof *root);
    *out = (struct mcp_message){.id = -1};
    if (!root) return error_set(e, ERR_MEMORY, "no memory");
    int rc = json_parse(a, line, n, 0, "message", root, e);
    if (rc == ERR_MODEL) rc = e->code = ERR_RUNTIME;
    if (rc) return rc;
    const struct json *id = json_get(root, "id"), *result = json_get(root, "result"), *error = json_get(root, "error");
    if (!json_is(json_get(root, "jsonrpc"), "2.0")) return error_set(e, ERR_RUNTIME, "message: not JSON-RPC 2.0");
    if (id && id->type != JSON_INT && id->type != JSON_STRING && id->type != JSON_NULL)
        return error_set(e, ERR_RUNTIME, "message: id must be a number or a string");
    if (is_text(out->method = json_get(root, "method"))) {
        out->kind = id && id->type != JSON_NULL ? MCP_REQUEST : MCP_NOTIFICATION;
        out->own_id = out->kind == MCP_REQUEST ? id : NULL;
        return 0;
    }
    if (!id || !result == !error)
        return error_set(e, ERR_RUNTIME, "message: a method, or an id with a result or an error is required");
    out->kind = error ? MCP_ERROR : MCP_RESULT;
    out->body = error ? error : result;
    if (out->body->type != JSON_OBJECT)
        return error_set(e, ERR_RUNTIME, "message: %s must be an object", error ? "error" : "result");
    out->id = id->type == JSON_INT ? id->integer : -1;
    return 0;
}

static void put_call(struct buf *b, const char *method, const char *params) {
    buf_fmt(b, "\"method\": \"%s\"", method);
    if (params) buf_fmt(b, ", \"params\": %s", params);
    buf_str(b, "}\n");
}

void mcp_message_put_request(struct buf *b, int64_t id, const char *method, const char *params) {
    buf_fmt(b, "{\"jsonrpc\": \"2.0\", \"id\": %lld, ", (long long)id);
    put_call(b, method, params);
}

void mcp_message_put_notification(struct buf *b, const char *method, const char *params) {
    buf_str(b, "{\"jsonrpc\": \"2.0\", ");
    put_call(b, method, params);
}

void mcp_message_put_reply(struct buf *b, const struct mcp_message *request) {
    buf_str(b, "{\"jsonrpc\": \"2.0\", \"id\": ");
    json_write(b, request->own_id);
    buf_str(b, json_is(request->method, "ping")
                   ? ", \"result\": {}}\n"
                   : ", \"error\": {\"code\": -32601, \"message\": \"this client has no such method\"}}\n");
}

void mcp_message_error_text(const struct json *error, struct buf *out) {
    const struct json *text = json_get(error, "message"), *code = json_get(error, "code");
    if (is_text(text)) buf_add(out, text->string, text->n);
    else buf_str(out, "an error without a message");
    if (code && code->type == JSON_INT) buf_fmt(out, " (code %lld)", (long long)code->integer);
}

static void put_part(const struct json *part, struct buf *out) {
    const struct json *type = json_get(part, "type"), *text = json_get(part, "text"),
                      *inner = json_path(part, "resource.text");
    if (json_is(type, "resource") && is_text(inner)) text = inner;
    else if (!json_is(type, "text")) text = NULL;
    if (is_text(text)) buf_add(out, text->string, text->n);
    else
        buf_fmt(out, "[content of type %.*s is left out: only text is supported]",
                is_text(type) && type->n < 40 ? (int)type->n : 1,
                is_text(type) && type->n && type->n < 40 ? type->string : "?");
}

bool mcp_message_result_text(const struct json *result, struct buf *out) {
    const struct json *content = json_get(result, "content"), *structured = json_get(result, "structuredContent");
    const uint32_t n = content && content->type == JSON_ARRAY ? content->n : 0;
    for (uint32_t i = 0; i < n; i++) {
        if (i) buf_char(out, '\n');
        put_part(&content->items[i], out);
    }
    if (!n && structured) json_write(out, structured);
    return json_bool(json_get(result, "isError"), false);
}
