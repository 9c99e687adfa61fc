#pragma once
/* The CPU's part of a layer, for every mode that computes on it. Engine thread only. */
#include "engine/step/mode.h"
#include "gpu/gpu.h"

/* Embeds w->tokens[0..n) and computes the rope tables of w->pos; total as in block_rope. */
int processor_begin(struct machine *m, struct work *w, int n, int total, const _Atomic int *cancel, struct error *e);
/* Runs the attention block and router of a layer. */
int processor_half(struct machine *m, struct work *w, const struct span *spans, int n_spans, int layer, int n, const _Atomic int *cancel, struct error *e);
/* Prepares the experts w->ids[0..n) (-1: skip): requests those not in memory, scans unseen ones, counts bytes read. */
int processor_weights(struct machine *m, struct work *w, int layer, int n, struct error *e);
void processor_read(struct machine *m, uint64_t bytes); /* adds to m->bytes_read */
/* In virtual time, before timelines that the CPU queue may wait for are closed: aborts them (NULL entries are skipped) and drains
 * the queue. */
void processor_settle(struct machine *m, struct gpu_number **numbers, int n);
