#pragma once
/* The last one-shot answer of a person, kept without a name so that --last can continue it. The next one replaces it.
 */
#include "cli/saved/store.h"

/* Its name in the directory and in lists. */
#define STORE_KEPT "(last)"

/* Opens it for writing. ERR_CANCELLED: this run keeps nothing, since no stream is a terminal, --no-save is set, another
 * hearth has it open, or the directory is not writable. */
int store_kept_open(struct store *s, struct app *a);
/* Gives it a name of its own, as continuing it does: a later one-shot answer does not replace it then. name:
 * STORE_KEPT; becomes the new name. */
int store_kept_take(struct app *a, char *name, size_t cap, struct error *e);
