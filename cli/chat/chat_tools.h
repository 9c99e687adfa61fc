#pragma once
/* The tool calls of answers: consent, running, results. */
#include "cli/chat/chat.h"

/* Continues with the calls: asks, starts a tool, or starts the next turn. front: the answer was on the screen. */
void chat_tools_step(struct repl *r, struct chat_session *t, bool front);
void chat_tools_poll(struct repl *r); /* handles tools that have ended */
/* shows its running tool or its question, after a switch */
void chat_tools_show(struct repl *r, struct chat_session *t);
void chat_tools_answer(struct repl *r, const char *text, size_t n); /* handles the line that answers the question */
/* Stops the tool, waits for its end, and gives all remaining calls a result that says why they were not run. */
void chat_tools_abandon(struct repl *r, struct chat_session *t, const char *why);
void chat_tools_stop(struct repl *r, struct chat_session *t); /* the user stops the answer at a question */
