#pragma once
/* Time slices of sessions whose KV caches do not fit the devices together: as many as fit decode for some batches while the others wait, instead of all
 * together with the attention of some on the CPU. The slice is long enough that uploading the next sessions' caches takes little of it, and there are none
 * where the cost model expects fewer tokens per second from them. Engine thread. */
struct engine;
struct session;

struct time_slices {
    int n_sessions; /* number of sessions that want to decode */
    int n_fit;      /* how many of their KV caches fit the devices; 0: all of them, or not known yet */
    int n_left;     /* remaining batches of the current slice */
    int n_slices;   /* number of slices since all sessions last decoded together */
    int n_batches;  /* length of a slice in batches; 0: the sessions decode together */
};

/* Returns how many of the n sessions, which it may reorder, decode in the next batch. */
int time_slices_pick(struct engine *e, struct session **batch, int n);
/* Records a batch of n sessions. */
void time_slices_record(struct engine *e, int n);
