#pragma once
/* Text that grows on a stdout which other processes may share, as under xargs -P: a process that has begun a line keeps
 * a lock on the file until the line ends, and the others hold their text back. A single process prints each piece at
 * once. */
#include <stddef.h>

/* Writes a piece of text. Returns as out_write, or ERR_MEMORY if it cannot be held back. */
int out_lines_write(const char *data, size_t n);
/* Writes what was held back, waiting for the other processes, and releases the lock. Call when the text has ended. */
int out_lines_end(void);
