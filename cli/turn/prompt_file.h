#pragma once
/* Prompt files: text with {{NAME}} in the places of values. */
#include "cli/options/opt.h"

/* Appends the text of a file, with each {{NAME}} replaced by the VALUE of a NAME=VALUE among the items of vars.
 * ERR_USAGE: a name without a value, a value without its name in the file, or an item without '='. */
int prompt_file_read(const char *path, const struct opt_value *vars, struct buf *out, struct error *e);
