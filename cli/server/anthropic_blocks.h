#pragma once
/* Blocks of Anthropic's messages that are no text, but contain some, and those that another server has made. */
#include "cli/server/api.h"

/* Copies a list of blocks. Documents, search results and references to tools become blocks of text; blocks that a
 * server has made for tools of its own, and that clients send back with the conversation, are left out. A document that
 * is no text is ERR_USAGE. */
int anthropic_plain_blocks(struct api_request *r, const struct json *blocks, const char *where, struct json *out,
                           struct error *e);
