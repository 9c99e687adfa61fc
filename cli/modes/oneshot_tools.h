#pragma once
/* The tool calls of a one-shot answer: shows them, asks for consent on the terminal, and runs them. */
#include "cli/tools/tool_round.h"
#include "cli/turn/engine_client.h"

/* Adds a result for each call of the round to the conversation. On return, signals cancel turns of s. calls: appended
 * to, for --json. ERR_USAGE: a call needs consent and stdin is not a terminal; ERR_CANCELLED. In both cases the
 * remaining calls get results with the reason. */
int oneshot_tools_run(struct app *a, struct tool_round *q, struct conversation *conv, struct engine_client *s,
                      struct buf *calls, struct error *e);
