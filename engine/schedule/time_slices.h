#pragma once
/* Time slices of sessions whose KV caches do not fit the devices together: as many as fit decode for some batches while the others wait, instead of all
 * together with the attention of some on the CPU. The slice is long enough that uploading the next sessions' caches takes little of it, and there are none
 * where the cost model expects fewer tokens per second from them. Engine thread. */
struct engine;
struct session;

struct time_slices {
    int n_sessions, n_fit; /* sessions of the last batch that was too large for the devices, and how many of their caches were there; n_fit 0: no such batch */
    int n_left;            /* batches of the current slice */
    int n_slices;          /* since that batch */
    int n_batches;         /* of a slice; 0: there are none */
};

/* Returns how many of the n sessions, which it may reorder, decode in the next batch. */
int time_slices_pick(struct engine *e, struct session **batch, int n);
/* Records a batch of n sessions. */
void time_slices_record(struct engine *e, int n);
