#pragma once
/* Towers in GGUF files of their own: finds and opens the file, reads its metadata, and checks that it fits the model.
 */
#include "engine/vision/tower.h"

enum { TOWER_MMPROJ_MOST = 16 }; /* files beside a model */

/* Opens the file into t->beside and fills t->config. file NULL: the one in the model's directory that
 * fits, of several that with BF16 or F16; without one t->beside stays NULL, and why says so. ERR_MODEL, ERR_USAGE,
 * ERR_MEMORY; tower_close() closes the file then, too. */
int tower_mmproj_open(struct tower *t, const struct weights *w, const char *file, char *why, size_t why_size,
                      struct error *e);
/* Opens all such files beside a GGUF model, or the one that is named, whether they fit it or not. Returns their number;
 * the caller closes them. ERR_MODEL, ERR_USAGE, ERR_MEMORY: none stays open. */
int tower_mmproj_files(struct checkpoint out[TOWER_MMPROJ_MOST], const struct weights *w, const char *file,
                       struct error *e);
/* After loading: counts the bytes, and refuses a file with tensors that the tower's description lacks. ERR_MODEL. */
int tower_mmproj_check(struct tower *t, struct error *e);
