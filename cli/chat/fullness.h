#pragma once
/* How full the context of a conversation is. */
#include "cli/chat/chat.h"

/* Returns how much of the context the last answer and its prompt take, with n_more tokens, in percent; 0: unknown. */
int fullness_percent(const struct repl *r, const struct chat_session *t, int n_more);
/* Whether --compact-at asks for a summary now, after an answer. */
bool fullness_wants_summary(const struct repl *r, const struct chat_session *t);
