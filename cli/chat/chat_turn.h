#pragma once
/* Turns of sessions. An int is the code of an error, which the function has printed unless it takes an `e`. */
#include "cli/chat/chat.h"

int chat_turn_answer(struct repl *r, struct chat_session *t, bool background); /* answers the current conversation */
int chat_turn_continue(struct repl *r, struct chat_session *t);
/* starts the turn of t->prompt */
int chat_turn_start(struct repl *r, struct chat_session *t, bool background, struct error *e);
int chat_turn_send(struct repl *r, const char *text, size_t n, bool background);
/* the next turn of an answer, after tool calls */
int chat_turn_resume(struct repl *r, struct chat_session *t, bool background);
void chat_turn_cancel(struct chat_session *t); /* stops its turn or its tool */
void chat_turn_acquire_screen(struct repl *r, struct chat_session *t);
/* after the answer on it has ended or moved to the background */
void chat_turn_release_screen(struct repl *r);
void chat_turn_poll(struct repl *r);                              /* handles queued engine events */
void chat_turn_to_background(struct repl *r);                     /* moves the answer on the screen to the background */
void chat_turn_to_screen(struct repl *r, struct chat_session *t); /* shows its running answer on the screen */
