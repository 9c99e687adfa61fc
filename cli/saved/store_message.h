#pragma once
/* The messages of a session file. Pure. conversation_message_json writes them. */
#include "base/json.h"
#include "cli/turn/conversation.h"

/* Appends a message to the conversation. what: the file, for errors. ERR_MODEL if it is malformed, ERR_MEMORY. */
int store_message_add(const struct json *m, const char *what, struct conversation *conv, struct error *e);
