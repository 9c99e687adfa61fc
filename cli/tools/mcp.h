#pragma once
/* A server of the Model Context Protocol that offers tools: a child process, over stdio, or one with a URL
 * (mcp_http.h). Calls of several threads to one server run in sequence. */
#include "cli/tools/tool_definition.h"
#include "cli/tools/tool_result.h"

struct mcp;

/* Starts a server and initializes the connection. command: words, quoted as in a shell, or a URL. ERR_USAGE: neither;
 * ERR_RUNTIME: the server does not start, does not answer in time, or breaks the protocol; the message has the end of
 * its stderr. */
int mcp_open(struct mcp **m, const char *command, struct error *e);
/* Closes the server's stdin; ends it if it does not exit within half a second. */
void mcp_close(struct mcp **m);
const char *mcp_name(const struct mcp *m); /* the program or the host, for messages */
/* Reads all pages of its list of tools and calls fn for each until fn returns non-zero. */
int mcp_list_tools(struct mcp *m, int (*fn)(void *ctx, const struct json *tool, struct error *e), void *ctx,
                   struct error *e);
/* Calls a tool. A server that dies, hangs or breaks the protocol gives a result that states it. When cancel_fd becomes
 * readable, the call is cancelled. */
void mcp_call(struct mcp *m, const struct tool_definition *d, const char *arguments, int cancel_fd,
              struct tool_result *r);
