#pragma once
/* Appends drafted tokens to decode batches. Engine thread, without the lock. */
#include "engine/session/batch_entry.h"

const char *drafts_name(const struct engine *eng); /* name of the running draft; NULL: none yet */
/* Appends as many drafted tokens to each row as are worth verifying. The sessions are held, so no other thread ends
 * their turns. */
void drafts_add(struct engine *eng, struct batch_entry *rows, int n);
