#pragma once
/* Lines entered earlier, oldest first, saved in the state directory. */
#include <stdbool.h>
#include <stddef.h>

#include "base/error.h"

enum { HISTORY_MAX = 2000, HISTORY_MAX_BYTES = 64 << 20 }; /* entries; bytes of the file's end that are read */
struct history {
    char **v;
    size_t n, cap;
    char *path; /* NULL: not saved */
};
/* Reads the saved history. If the file cannot be opened, the history lives in memory only. */
void history_open(struct history *h, bool keep); /* keep false: added lines are not written */
void history_close(struct history *h);
/* Adds a line (may contain line feeds) unless it repeats the last one. Appends it to the file at once. */
void history_add(struct history *h, const char *text, size_t n);
