#pragma once
/* The user's editor on the edited line. */
#include "cli/chat/chat.h"

void editor_open(struct repl *r);
