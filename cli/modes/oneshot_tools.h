#pragma once
/* The tool calls of a one-shot answer: shows them, asks for consent on the terminal, and runs them. */
#include "cli/tools/tool_round.h"
#include "cli/turn/engine_client.h"

/* Gives each call of the round a result in the conversation. Afterwards signals cancel turns of s. calls: for --json. ERR_USAGE: a call
 * needs consent, which cannot be asked for outside a terminal; ERR_CANCELLED. In both cases the remaining calls have results that state it. */
int oneshot_tools_run(struct app *a, struct tool_round *q, struct conversation *conv, struct engine_client *s, struct buf *calls, struct error *e);
