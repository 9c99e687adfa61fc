#pragma once
/* The definition of a tool: its description for the model, and its command. Reads tool files and the lists of MCP
 * servers. Pure. */
#include "base/buf.h"
#include "base/json.h"

enum {
    TOOL_NAME_MAX = 64,
    TOOL_OUTPUT_BYTES = 64 << 10,
    TOOL_OUTPUT_MAX = 16 << 20,
    TOOL_TIMEOUT_S = 60,
    TOOL_TIMEOUT_MAX_S = 86400
};

struct tool_command {  /* a program and the limits of a run */
    const char **argv; /* NULL-terminated */
    int dir;           /* an open directory, in which it runs; 0: hearth's own */
    double timeout_s;
    size_t max_output; /* bytes */
};
struct tool_definition { /* strings are in the arena or in the parsed text */
    const char *name;
    const struct json *description, *parameters; /* a text, a JSON schema of an object; NULL: none */
    struct tool_command command;                 /* argv NULL: an MCP server or an agent runs it */
};
/* Reads a tool file: {"name", "description", "parameters", "command", "timeout", "output"}, the first three also as
 * members of "function". ERR_USAGE names the member that is wrong. */
int tool_definition_parse(struct arena *a, const struct json *root, struct tool_definition *out, struct error *e);
/* Reads an element of the result of tools/list, which has "inputSchema" for "parameters". */
int tool_definition_parse_mcp(struct arena *a, const struct json *tool, struct tool_definition *out, struct error *e);
/* Appends it as an element of `tools` of a chat-completions request. */
void tool_definition_put(const struct tool_definition *d, struct buf *b);
