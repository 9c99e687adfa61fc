#pragma once
/* KV of a layer on a rank: device planes, transfers from and to the session's cache, and the ring of ranks (context
 * parallel). */
#include "engine/exec/stream/slp_state.h"

int kvring_open(struct slp_rank *r, struct error *e); /* after the plan and the workspace */
void kvring_close(struct slp_rank *r);
void kvring_abort(struct slp_rank *r);
/* lays out a layer's device planes; returns how many */
int kvring_planes(const struct slp_rank *r, int layer, struct kv_plane out[CACHE_PLANES]);
bool kvring_has_state(const struct slp_rank *r, int layer);
/* States, in layers that have them (compute thread). Returns in *from the row with which a stripe's first chunk
 * continues, after waiting for it (-1: none). Chunks write to STATE_STRIPE + stripe; kvring_state_publish makes it
 * available to other ranks after the last chunk. */
int kvring_state_begin(struct slp_rank *r, int layer, int stripe, int *from);
int kvring_state_mark(struct slp_rank *r, int layer, int stripe); /* saves the state of a chunk that ends at the mark */
int kvring_state_publish(struct slp_rank *r, int layer, int stripe);
int kvring_load_prefix(struct slp_rank *r, int layer); /* loader: uploads the session's earlier positions */
/* unloader: downloads to pinned memory; sets kv_downloaded */
int kvring_download(struct slp_rank *r, int layer);
/* unloader: waits for kv_downloaded, then copies to the session's cache */
int kvring_save(struct slp_rank *r, int layer);
int kvring_receive(struct slp_rank *r, int layer); /* compute: enqueues all steps of the ring */
/* makes the compute stream wait for a step, not the host */
int kvring_wait_step(struct slp_rank *r, int layer, int step);
/* Lists the key ranges visible to a query at the last of `end` new positions, in order of arrival; returns how many. */
struct kvring_range {
    int first, n, step;
};
enum { KVRING_RANGES = 1 + STRIPES * GPU_MAX };
int kvring_ranges(const struct slp_rank *r, int end, struct kvring_range *out);
