#pragma once
/* The CPU's part of a layer, for every mode that computes on it. Engine thread only. */
#include "engine/exec/prefill.h"
#include "gpu/gpu.h"

/* Embeds w->tokens[0..n), which are those of the texts, and computes the rope tables of w->pos; total as in
 * block_rope. */
int cpu_begin_batch(struct runtime *m, struct work *w, const struct text_rows *texts, int n_texts, int n, int total,
                    const _Atomic int *cancel, struct error *e);
/* Runs the attention block and router of a layer. */
int cpu_attention_block(struct runtime *m, struct work *w, const struct span *spans, int n_spans, int layer, int n,
                        const _Atomic int *cancel, struct error *e);
/* Prepares the experts w->ids[0..n) (-1: skip): requests those not in memory, scans unseen ones, counts bytes read. */
int cpu_prepare_experts(struct runtime *m, struct work *w, int layer, int n, struct error *e);
void cpu_count_read(struct runtime *m, uint64_t bytes); /* adds to m->bytes_read */
/* In virtual time, before timelines that the CPU queue may wait for are closed: aborts them (NULL entries are skipped)
 * and drains the queue. */
void cpu_settle(struct runtime *m, struct gpu_timeline **timelines, int n);
