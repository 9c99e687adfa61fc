#pragma once
/* Thinking of answers on the screen: it is folded to one line. */
#include "cli/chat/chat.h"

void thinking_begin(struct repl *r); /* an answer goes to the screen */
/* a turn_fn: prints text, folds thinking; ctx: the repl */
int thinking_on_text(void *ctx, enum output_kind part, const char *data, size_t n);
/* prints one line in place of folded thinking */
void thinking_end(struct repl *r);
/* Ctrl-O: unfolds it, or prints the thinking of the last answer */
void thinking_show(struct repl *r);
