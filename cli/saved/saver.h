#pragma once
/* Writes files in a background thread, so that the terminal thread never waits for a disk: temporary file, fsync,
 * rename, as file_write does, in the order of submission. A queued file that is submitted again is written once, with
 * the newest contents. All functions but saver_write() are called from one thread. */
#include "base/buf.h"
#include "base/error.h"

/* Writes a conversation's file, newer than all others in its directory, before it returns. Any thread. */
int saver_write(const char *path, const void *data, size_t size, struct error *e);
/* Takes ownership of contents. Without memory or a thread it writes the file before it returns. */
int saver_submit(const char *path, struct buf *contents, struct error *e);
void saver_wait(void);                 /* until all files are written or have failed */
int saver_take_error(struct error *e); /* returns the first failure since the last call, or 0; a failure wakes sig_fd */
void saver_close(void);                /* waits, then ends the thread */
