/* Lines of an MCP server, and tool files: any bytes are a message or a definition, or an error with a text. What a
 * server can send as a tool's result becomes text; a tool that passes is valid JSON in a request. An input that begins
 * with "file:" is a tool file, one with "tool:" an element of tools/list. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/tools/mcp_message.h"
#include "cli/tools/tool_definition.h"

static void message(const char *s, size_t n) {
    struct arena arena = {0};
    struct mcp_message m;
    struct error e = {0};
    struct buf b = {0};
    int rc = mcp_message_parse(&arena, s, n, &m, &e);
    if (rc && (rc != ERR_RUNTIME || !*e.text)) abort();
    if (!rc && m.kind == MCP_RESULT) mcp_message_result_text(m.body, &b);
    if (!rc && m.kind == MCP_ERROR) mcp_message_error_text(m.body, &b);
    if (!rc && m.kind == MCP_REQUEST) {
        struct json reply;
        mcp_message_put_reply(&b, &m);
        if (json_parse(&arena, b.data, b.len, 0, "reply", &reply, &e)) abort();
    }
    buf_free(&b);
    arena_free(&arena);
}

static void definition(const char *s, size_t n,
                       int (*parse)(struct arena *, const struct json *, struct tool_definition *, struct error *)) {
    struct arena arena = {0};
    struct tool_definition d;
    struct json root, again;
    struct error e = {0};
    struct buf b = {0};
    if (!json_parse(&arena, s, n, JSON_UNIQUE, "tool", &root, &e)) {
        int rc = parse(&arena, &root, &d, &e);
        if (rc && (rc != ERR_USAGE || !*e.text)) abort();
        if (!rc) tool_definition_put(&d, &b);
        if (!rc && json_parse(&arena, b.data, b.len, 0, "request", &again, &e)) abort();
        if (!rc && !(d.command.timeout_s > 0 && d.command.max_output > 0 && d.command.max_output <= TOOL_OUTPUT_MAX))
            abort();
    }
    buf_free(&b);
    arena_free(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *copy = malloc(size + 1); /* as received: not NUL-terminated */
    if (!copy) return 0;
    memcpy(copy, data, size);
    if (size > 5 && !memcmp(data, "file:", 5)) definition(copy + 5, size - 5, tool_definition_parse);
    else if (size > 5 && !memcmp(data, "tool:", 5)) definition(copy + 5, size - 5, tool_definition_parse_mcp);
    else message(copy, size);
    free(copy);
    return 0;
}
