#pragma once
/* Routed experts that stay on devices, all of a layer. */
#include "engine/exec/decode/decode_state.h"

/* Returns the layer's routed experts on its device that rows of the running batch use: the draft's, or the model's.
 * NULL: the CPU computes them, or some of them (pinned_experts.h, expert_pool.h). */
const struct expert *decode_device_experts(const struct decode *s, int layer);
/* The device's copy of a routed expert that is pinned or has arrived in its pool; NULL: none. Valid while the pool is
 * frozen. */
const struct expert *decode_device_expert(const struct decode_device *d, int layer, int expert);
/* The same, but NULL if it depends on what was used before whether it is there, and results must not. */
const struct expert *decode_device_fixed_expert(const struct decode_device *d, int layer, int expert);
/* Decides how many layers' routed experts, or how many of every layer, a device (by rank) with layers [first, last)
 * holds beside their `weights` bytes. room: its free memory, before the weights are uploaded. Virtual time has no pool,
 * because routers select nothing there; what is pinned is fixed. */
struct layer_assign_in;
struct budget_out decode_experts_budget(const struct decode *s, int device, int first, int last, size_t weights,
                                        const struct layer_assign_in *room);
/* Uploads the planned layers' experts that are missing; as many as memory allows. Returns a device's failure, or that
 * of a damaged weight. */
int decode_experts_load(struct decode_device *d, struct error *e);
/* Allocates the buffers that record which experts of resident layers are selected: layers of a batch write to different
 * places, so that one copy at its end suffices. ERR_MEMORY. */
int decode_experts_record_open(struct decode_device *d, struct error *e);
void decode_experts_record_close(struct decode_device *d);
/* directs w->ids to the layer's place */
void decode_experts_record_layer(struct decode_device *d, struct work *w, int micro, int layer);
/* enqueued, at the end of a batch */
int decode_experts_record_download(struct decode_device *d);
/* adds the downloaded selections to s->expert_rows */
void decode_experts_record_count(struct decode *s);
/* Returns the share of the routers' choices in a device's layers that fall on its planned experts, by the usage
 * profile; without one, as if all experts were chosen equally often. */
double decode_experts_choices(const struct decode_device *d);
/* Writes one sentence that says which routed experts the CPU computes, and why; empty without devices or experts. */
void decode_experts_summary(const struct decode *s, char *out, size_t cap);
/* as the ledger's client for all routed experts, until it closes */
void decode_experts_register(struct decode_device *d, bool is_open);
/* evicts the last layer's experts, after queued work; false: there are none */
bool decode_experts_evict_layer(struct decode_device *d);

/* Uploads the next missing experts of planned layers on one device, as decode_load_next() does. */
int decode_experts_load_next(struct decode *s, size_t keep, bool *more, struct error *e);
