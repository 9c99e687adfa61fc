#pragma once
/* Images that are dropped on the terminal: it types their paths. */
#include "cli/chat/chat.h"

/* Attaches the images whose absolute paths are words of a question, quoted, with backslashes, or as file: URLs, as
 * terminals write them, and says so. out: the question with their names instead. Only with a model of this process that
 * reads images. An image that cannot be attached is an error; nothing is attached then. */
int dropped_attach(struct repl *r, struct chat_session *t, const char *text, size_t n, struct buf *out,
                   struct error *e);
