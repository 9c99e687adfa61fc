#pragma once
/* The terminal's mode. Raw here means: no echo, no line buffering, but signals from keys stay on, so that Ctrl-C works
 * whatever hearth is doing. Restored on every way out: at exit, by each signal handler, before a stop. */
#include <stdbool.h>

int term_raw(void);      /* 0 or -1 when stdin is no terminal; async-signal-safe after the first call */
void term_restore(void); /* async-signal-safe; fine when not raw */
/* Back to raw when the process goes on after a stop that it could not see coming (SIGSTOP): the shell has had the
 * terminal meanwhile. Async-signal-safe; nothing when it was not raw. */
void term_again(void);
bool term_is_raw(void);
/* Bytes that waited when the terminal last became raw, where Enter still gave a line feed; 0 at the next call. */
int term_typed_early(void);
void term_size(int *rows, int *cols); /* 24 x 80 when unknown */
bool term_dumb(void);                 /* TERM unset or dumb: no cursor movement */
