#pragma once
/* Messages of the Model Context Protocol (modelcontextprotocol.io): JSON-RPC 2.0, one message a
 * line. Pure. */
#include "base/buf.h"
#include "base/json.h"

enum mcp_kind { MCP_RESULT, MCP_ERROR, MCP_REQUEST, MCP_NOTIFICATION };
struct mcp_message {
    enum mcp_kind kind;
    int64_t id;                /* RESULT, ERROR; -1: not an integer */
    const struct json *own_id; /* REQUEST: a number or a string */
    const struct json *method; /* REQUEST, NOTIFICATION */
    const struct json *body;   /* RESULT, ERROR: an object */
};
/* Parses a line of a server. ERR_RUNTIME says what is wrong; ERR_MEMORY. Values are in the arena and in the line. */
int mcp_message_parse(struct arena *a, const char *line, size_t n, struct mcp_message *out, struct error *e);

/* Append a message with its line end. params: a JSON object; NULL: none. */
void mcp_message_put_request(struct buf *b, int64_t id, const char *method, const char *params);
void mcp_message_put_notification(struct buf *b, const char *method, const char *params);
/* The reply to a request of the server: ping is answered, all others are unknown. */
void mcp_message_put_reply(struct buf *b, const struct mcp_message *request);

/* Appends what an error object says. */
void mcp_message_error_text(const struct json *error, struct buf *out);
/* Appends the texts of a result of tools/call, and a note for each part without text. Returns true if the tool reports
 * a failure. */
bool mcp_message_result_text(const struct json *result, struct buf *out);
