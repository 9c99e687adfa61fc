#pragma once
/* Calibration of the CPU's NUMA nodes, one by one. */
#include "engine/placement/calibrate.h"

/* Measures each node's share of domain 0's read bandwidth (its own CPUs read from it while all others are idle) and of
 * its compute rate (its share of the threads). between: the least that a node's CPUs read from another node while all
 * nodes do so. Uses `bytes` on each node. Returns 0, ERR_MEMORY or ERR_CANCELLED. If pages cannot be bound, measures
 * nothing and logs it. A node without threads gets no share. Does nothing with fewer than two nodes in o or without a
 * pool on them. */
int calibrate_numa(struct cost_machine *m, const struct calibrate_options *o, size_t bytes, struct error *e);
