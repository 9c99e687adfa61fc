#pragma once
/* The processor's part of a layer, for every mode that computes on it. The engine's thread alone. */
#include "engine/step/mode.h"
#include "gpu/gpu.h"

/* Embeds w->tokens[0..n) and makes the rope tables of w->pos; total as block_rope has it. */
int processor_begin(struct machine *m, struct work *w, int n, int total, const _Atomic int *cancel, struct error *e);
/* Attention half and router of a layer. */
int processor_half(struct machine *m, struct work *w, const struct span *spans, int n_spans, int layer, int n, const _Atomic int *cancel, struct error *e);
/* Before the experts that w->ids[0..n) name (-1: not here) are computed: asks for what is not in memory, looks at what was not
 * looked at, counts what is read. */
int processor_weights(struct machine *m, struct work *w, int layer, int n, struct error *e);
void processor_read(struct machine *m, uint64_t bytes); /* counts */
/* Before numbers are closed that the processor may wait for in virtual time, where it has a queue of its own: breaks them (NULL:
 * nothing), and returns when all it was given is done. */
void processor_settle(struct machine *m, struct gpu_number **numbers, int n);
