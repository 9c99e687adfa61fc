#pragma once
/* Lines entered before, oldest first, kept in the state directory. */
#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

enum { HISTORY_MAX = 2000 };
struct history {
    char **v;
    size_t n, cap;
    char *path; /* NULL: not kept */
};
/* Reads what is there; without a place to keep it the history lives in memory alone. */
void history_open(struct history *h, bool keep); /* keep false: what is added is not written */
void history_close(struct history *h);
/* Adds a line (with line feeds in it) unless it repeats the last one; appends it to the file at once. */
void history_add(struct history *h, const char *text, size_t n);
