#pragma once
/* Lines entered during an answer. They are sent in order after it. */
#include "cli/chat/chat.h"

void queue_add(struct repl *r, const char *text, size_t n);
void queue_put_first(struct repl *r, const char *text);
char *queue_take(struct repl *r);   /* removes the first line, which must exist; free with mem_free */
void queue_discard(struct repl *r); /* moves all lines to the history */
void queue_add_to_history(struct repl *r, const char *text, size_t n);
