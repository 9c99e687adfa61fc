#pragma once
/* Switching between sessions and closing them. */
#include "cli/chat/chat.h"

/* activates it: prints its last exchange, attaches to its running answer */
void chat_switch_to(struct repl *r, struct chat_session *t);
void chat_switch_close(struct repl *r, struct chat_session *t); /* cancels, saves, closes */
