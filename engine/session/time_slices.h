#pragma once
/* Time slices of sessions whose KV caches do not fit the devices together: as many as fit decode for some batches while
 * the others wait, instead of all together with the attention of some on the CPU. The slice is long enough that
 * uploading the next sessions' caches takes little of it, and there are none where the cost model expects fewer tokens
 * per second from them. Engine thread. */
struct engine;
struct session;

/* Returns how many of the n sessions, which it may reorder, decode in the next batch. */
int time_slices_pick(struct engine *eng, struct session **batch, int n);
/* Records a batch of n sessions. */
void time_slices_record(struct engine *eng, int n);
