#pragma once
/* The memory nodes of the processor, measured one by one. */
#include "engine/sched/calibrate.h"

/* Each node's share of what domain 0 reads: what its own processors read of it while nothing else does, over the sum of these; of what it computes: its
 * threads' share. between: what a node's processors read from another while all nodes do so, the least. `bytes` on each node; 0, or ERR_MEMORY,
 * ERR_CANCELLED; where pages cannot be bound nothing, and the log says so. A node without threads has no share. Nothing with fewer than two nodes in o, or
 * without a pool on them. */
int calibrate_nodes(struct cost_machine *m, const struct calibrate_options *o, size_t bytes, struct error *e);
