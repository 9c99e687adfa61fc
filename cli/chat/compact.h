#pragma once
/* /compact: the model summarises the conversation; the summary replaces it when the turn ends. */
#include "cli/chat/chat.h"

int compact_start(struct repl *r, struct chat_session *t);
/* restores what a summary replaced; false if the last question is not a summary */
bool compact_undo(struct chat_session *t);
