#pragma once
/* The rings of a rank: what its threads load, compute and wait for. */
#include "engine/exec/stream/slp_state.h"

/* Compute, in virtual time, of `n_modules` modules in all, before module k: lets the loader enqueue a quarter of the
 * ring first. *known: modules it has. */
int ring_wait_quarter(const struct slp_rank *r, uint64_t k, uint64_t n_modules, uint64_t *known);
/* The experts of a layer that a rank computes: all of its own, or (few tokens) those selected, known once the layer's
 * router has run. Those that are not resident pass through the ring. Waits for the selection if needed;
 * ERR_CANCELLED. */
int ring_wait_selected(struct slp_rank *r, int layer);
/* After ring_wait_selected: whether a rank computes an expert, and whether the expert passes through its ring. `expert`
 * counts from the rank's first. */
bool ring_computes_expert(const struct slp_rank *r, int layer, int expert);
bool ring_takes_expert(const struct slp_rank *r, int layer, int expert);
/* Compute: waits for the expert's weights, which are resident or module number `module` of the ring, and returns their
 * view. */
int ring_get_expert(struct slp_rank *r, int layer, int expert, uint64_t module, struct expert *out);
void ring_publish_selected(struct slp_rank *r, int layer); /* compute: group sizes are in host memory */

/* after enqueuing a unit: waits for the unit PACE before it */
int ring_pace_unit(struct slp_rank *r, struct pace *c, struct gpu_stream *s);
/* Uploads on the loader's stream; enqueued on return. */
int ring_send(struct slp_rank *r, char *dst, const char *src, size_t size);
