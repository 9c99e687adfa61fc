#pragma once
/* Messages and the progress line on stderr. The progress line is one line of a terminal that is redrawn in place; a
 * message takes it off first. Off a terminal there is none. */
#include <stdbool.h>
#include <stddef.h>

void progress_init(bool terminal, bool color, bool quiet); /* terminal: stderr is one that can move the cursor */
/* Shows a first sign at once; the bar with the time left follows when a second has passed. */
void progress_begin(const char *what);
void progress_update(const char *what, double share, double left_s); /* left_s < 0: unknown, from share */
void progress_tick(void);                                            /* a quarter of a second has passed, and nothing was heard: the bar goes on */
void progress_clear(void);
bool progress_shown(void);

/* Prints text on lines of its own, or as they are off a terminal. While messages are held (the line editor owns the
 * screen) they wait until progress_flush; that, and messages from other threads, is why this takes a lock. */
void progress_say(const char *text);
/* true: messages wait; false: they are printed again, first those that waited. */
void progress_hold(bool hold);
bool progress_waiting(void);
void progress_flush(void); /* prints what waits; the caller has made room on the screen */
