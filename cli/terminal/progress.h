#pragma once
/* Messages and the progress line on stderr. The progress line is redrawn in place, and only on a terminal; a message
 * clears it first. */
#include <stdbool.h>
#include <stddef.h>

void progress_init(bool terminal, bool color, bool quiet); /* terminal: stderr is one with cursor movement */
/* Shows `what` at once; the bar with the time left appears after a second. */
void progress_begin(const char *what);
void progress_update(const char *what, double share, double left_s); /* left_s < 0: unknown, estimated from share */
/* call every quarter of a second without an update: advances the bar */
void progress_tick(void);
void progress_clear(void);
bool progress_shown(void);

/* Prints text on its own lines. While messages are held (the line editor owns the screen) they are queued until
 * progress_flush. Takes a lock: other threads print messages too. */
void progress_print(const char *text);
/* true: queue messages; false: print the queued ones, then print at once */
void progress_hold(bool hold);
bool progress_has_held(void);
void progress_flush(void); /* prints queued messages; the caller has cleared a place on the screen */
