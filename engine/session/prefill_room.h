#pragma once
/* A prefill and the weights that decode keeps on devices: how much memory the mode can use well decides how many layers
 * of experts are evicted. */
#include "engine/exec/prefill.h"

/* Evicts resident experts until a prefill in that mode has the memory that it can use well on the devices that take
 * part. */
void prefill_make_room(struct runtime *m, enum exec_mode mode, const struct prefill_job *j);
/* decode_load_next() beside the memory that the prefill can use well, if decode will use the weights and the prefill
 * would upload most of them: it then uploads only the others. */
int prefill_load_next(struct runtime *m, enum exec_mode mode, const struct prefill_job *j, bool *more, struct error *e);
