#pragma once
/* Streamable HTTP of the Model Context Protocol: each message is a POST; the reply is JSON or a stream of server-sent
 * events. One thread at a time may use a connection. Redirects are not followed, and OAuth is not supported: a token
 * from the environment (HEARTH_MCP_TOKEN) goes to the host that it is for, and to no other. */
#include "cli/tools/mcp_message.h"

struct mcp_http;

bool mcp_http_is_url(const char *command); /* http://… or https://… */
/* ERR_USAGE: no URL, or a token that would be sent unencrypted; ERR_RUNTIME: no libcurl. */
int mcp_http_open(struct mcp_http **h, const char *url, struct error *e);
void mcp_http_close(struct mcp_http **h, const char *version); /* ends the session, if there is one */
const char *mcp_http_name(const struct mcp_http *h);           /* the host, for messages */

struct mcp_http_message {
    const char *text; /* a message, or a notification with id -1, which gets no reply */
    size_t n;
    int64_t id;
    const char *version;       /* of the protocol, as a header; NULL: it is not known yet */
    const char *method, *tool; /* as headers, with the revision that has no sessions; NULL: none */
    double until;              /* clock_now() at which it is given up */
    int cancel_fd;             /* ends it when it becomes readable; -1: none */
};
enum { MCP_HTTP_NO_SESSION = 1 }; /* the server has forgotten the session */
/* Sends a message and waits for its reply, whose values are in the arena. Requests of the server in between are
 * answered. ERR_CANCELLED; ERR_MEMORY; ERR_RUNTIME: the server cannot be reached, does not answer in time, wants
 * authorization, or breaks the protocol. */
int mcp_http_send(struct mcp_http *h, const struct mcp_http_message *q, struct arena *a, struct mcp_message *reply,
                  struct error *e);
void mcp_http_forget(struct mcp_http *h); /* forgets the session: the next message begins one */
