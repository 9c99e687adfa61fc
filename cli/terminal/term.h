#pragma once
/* The terminal's mode. Raw means no echo and no line buffering, but keys still raise signals, so that Ctrl-C always
 * works. Restored on every exit path: atexit, each signal handler, and before a stop. */
#include <stdbool.h>

int term_raw(void);      /* 0, or -1 when stdin is not a terminal; async-signal-safe after the first call */
void term_restore(void); /* async-signal-safe; no-op when not raw */
/* Sets raw mode again after an uncatchable stop (SIGSTOP), during which the shell changed the mode. Async-signal-safe;
 * no-op when not raw. */
void term_restore_raw(void);
bool term_is_raw(void);
/* Number of bytes typed before the terminal became raw, in which Enter is a line feed; 0 at the next call. */
int term_typed_early(void);
void term_size(int *rows, int *cols); /* 24 x 80 when unknown */
bool term_dumb(void);                 /* TERM unset or dumb: no cursor movement */
