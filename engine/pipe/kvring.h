#pragma once
/* Keys and values of a layer on a rank: device planes, the way from and to the session's cache, the ring of ranks. */
#include "engine/pipe/internal.h"

int kvring_open(struct rank *r, struct error *e); /* after the plan and the workspace */
void kvring_close(struct rank *r);
void kvring_break(struct rank *r);
int kvring_planes(const struct rank *r, int layer, struct kv_plane out[CACHE_PLANES]); /* of a layer on the device; returns how many */
bool kvring_has_state(const struct rank *r, int layer);
/* States, where the layer has some (compute): from which row a stripe's first chunk goes on, once it is there (*from, -1: none);
 * chunks leave theirs in STATE_STRIPE + stripe. After its last chunk others may have it. */
int kvring_state(struct rank *r, int layer, int stripe, int *from);
int kvring_state_mark(struct rank *r, int layer, int stripe); /* where a chunk ends at the mark */
int kvring_state_made(struct rank *r, int layer, int stripe);
int kvring_prefix(struct rank *r, int layer);            /* loader: what the session already has */
int kvring_unload(struct rank *r, int layer);            /* unloader: to pinned memory; sets kv_off */
int kvring_save(struct rank *r, int layer);              /* unloader: waits for that, then to the session's cache */
int kvring_receive(struct rank *r, int layer);           /* compute: enqueues all steps of the ring */
int kvring_arrived(struct rank *r, int layer, int step); /* the compute stream waits for a step; the host does not */
/* What a query at the last of `end` new positions sees, in the order in which it comes; returns how many. */
struct kvring_piece {
    int first, n, step;
};
enum { KVRING_PIECES = 1 + STRIPES * GPU_MAX };
int kvring_pieces(const struct rank *r, int end, struct kvring_piece *out);
