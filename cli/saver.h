#pragma once
/* Files written by a thread of their own, so that the terminal's never waits for a disk: temporary, fsync, rename, as file_write
 * does it, in the order in which they were handed over. One that still waits and is handed over again is written once, as it is last.
 * Called from one thread. */
#include "engine/base/buf.h"
#include "engine/base/error.h"

/* Takes the contents. Where there is no memory or no thread for it, the file is written before this returns. */
int saver_put(const char *path, struct buf *contents, struct error *e);
void saver_wait(void);             /* until all is on disk, or has failed */
int saver_failed(struct error *e); /* the first failure since this was last asked, or 0; the sig_fd wakes for it */
void saver_close(void);            /* waits, and ends the thread */
void saver_finish(void);           /* before a signal ends the process: waits, but at most a second; async-signal-safe */
