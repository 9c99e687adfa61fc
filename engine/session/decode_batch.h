#pragma once
/* Runs decode batches. Engine thread. */
#include "engine/session/batch_entry.h"

/* The first two under the lock. */
/* sessions in decode with room for events */
int decode_batch_pick(const struct engine *eng, struct session *batch[ENGINE_MAX_BATCH]);
/* fills their rows; returns how many sessions the next batch takes */
int decode_batch_fill(struct engine *eng, struct session **batch, int n, struct batch_entry *rows);
void decode_batch_run(struct engine *eng, struct batch_entry *rows, int n);
