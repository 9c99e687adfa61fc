#pragma once
/* NUMA copies of weights: routed experts, shared experts and dense FFNs split by node, other matrices with their rows
 * spread over the nodes in order, all bound to their node, in 2 MB pages on request. Background threads copy layer by
 * layer; until a layer is complete, it is read from the mapping. All splits are between rows, so the output depends
 * neither on the nodes nor on the progress of the copy. Copied ranges are dropped from the page cache. */
#include "cpu/numa.h"
#include "engine/weights/weight_state.h"
#include "engine/weights/weights.h"

struct numa_copy;
/* Starts the copy. copies false: makes views of the mapping only, split by node; for GPUs that read the mapping, whose
 * pages pin.h has bound to nodes. w and known must outlive p; known records which weights were copied and checked. One
 * node without splits: a plain copy. Memory that cannot be bound is used unbound, with a warning. ERR_MEMORY,
 * ERR_RUNTIME. */
int numa_copy_open(struct numa_copy **p, const struct weights *w, const struct numa *nodes, bool copies, bool huge,
                   struct weight_state *known, struct error *e);
void numa_copy_close(struct numa_copy **p);           /* stops copying */
bool numa_copy_is_copying(const struct numa_copy *p); /* NULL: false */
/* Returns the current view of a layer, valid until close: copied, or as mapped. p NULL: w's layer. */
const struct layer *numa_copy_layer(const struct numa_copy *p, const struct weights *w, int layer);
/* Returns the current view of the embedding, final norm and head, valid until close. p NULL: w. */
const struct weights *numa_copy_head(const struct numa_copy *p, const struct weights *w);
/* Returns whether copies of `bytes` fit in each node and in the memory available now. */
bool numa_copy_fits(const struct numa *nodes, size_t bytes, bool huge);
