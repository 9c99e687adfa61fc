#pragma once
/* Tools of OpenAI's responses. Codex offers those of an MCP server as a namespace: one tool that has a list of
 * functions. The model calls each by both names joined; the client gets and sends them apart. The namespace `functions`
 * is that of tools without one. */
#include "cli/server/api.h"

/* Reads `tools`, the items of the input that add tools, and `tool_choice`. strict: a tool that no model can call is
 * refused; else it is left out. */
int responses_tools_read(struct api_request *r, const struct json *root, bool strict, struct error *e);
/* Whether an item of the input is such a list of tools, as Codex sends them since its version 0.144. */
bool responses_tools_adds(const struct json *item);
/* Makes the name by which models call a function of a namespace; ERR_MEMORY. */
int responses_tools_join(struct api_request *r, const struct json *space, const struct json *name, struct json *out,
                         struct error *e);
/* Puts the members `name` and, of a function of a namespace, `namespace`. */
void responses_tools_put_name(struct buf *b, const struct api_request *r, const struct tool_call *call);
