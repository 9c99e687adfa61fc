#pragma once
/* The memory nodes of this machine, and where a weight's rows go. Placement is pure: numbers in, a decision out. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"

enum { NUMA_NODES = 64, NUMA_CPUS = 1024 };

struct numa {
    int n_nodes;
    size_t memory[NUMA_NODES];                /* bytes of each */
    int cpus[NUMA_NODES];                     /* how many processors each has */
    int16_t node_of[NUMA_CPUS];               /* -1: no such processor */
    int16_t kernel[NUMA_NODES];               /* the kernel's number of each; -1: a topology from text, whose memory is not bound */
    uint8_t distance[NUMA_NODES][NUMA_NODES]; /* as the firmware says it: 10 is local */
    uint32_t speed[NUMA_NODES][NUMA_NODES];   /* MB/s at which a node's processors read each, when that is measured; 0, and but for text always: as it is */
};

/* This machine. Where the kernel knows no nodes: one, with everything. */
void numa_read(struct numa *n);
/* A topology from text, for tests and for planning elsewhere: a line `node <memory in MiB> <cpus, as 0-31,64-95>` for
 * each node in order, and optionally lines `distance <row> <numbers>` and `speed <row> <numbers>`; # begins a comment. ERR_USAGE names the line. */
int numa_parse(struct numa *n, const char *text, struct error *e);

/* Rows (of gate and up) or columns (of down) [first, first + count) of an expert that live on a node. */
struct numa_part {
    int first, count;
};
/* Splits `inter` by the nodes' processors, at multiples of `unit` (the scale blocks' side, so that no block is cut; the
 * last part takes the rest). A node may get nothing. parts [n_nodes] cover [0, inter) without gaps. Each node computes a
 * partial output from its part alone, and these are added once, in order of node. */
void numa_split(const struct numa *n, int inter, int unit, struct numa_part *parts);

/* The node of each of n_threads threads: in order of node, in proportion to have[n_nodes] (processors that may be used);
 * a node with none gets none, and so may others where there are fewer threads than nodes. */
void numa_threads(const int *have, int n_nodes, int n_threads, uint8_t *node);

/* Whether weights of `bytes` should be read into memory bound by node (true) or mapped as they are: one node has nothing
 * to bind, and what does not fit beside `reserve` bytes on each node must stay a mapping that the kernel can drop. Each
 * node gets its share by processors, as numa_split cuts. */
bool numa_binds(const struct numa *n, size_t bytes, size_t reserve);

/* The calling thread runs on a node's processors from now on; nothing happens on a topology from text. */
void numa_enter(const struct numa *n, int node);
/* Memory that pages are to come from; see numa_bind_to. Nothing happens on one node, or on a topology from text. */
int numa_place(const struct numa *n, void *p, size_t size, int node, struct error *e);
/* Pages that the calling thread touches first from now on come from this node, while it has some; -1: from all with processors by turns. Nothing
 * happens on one node, or on a topology from text. */
void numa_prefer(const struct numa *n, int node);
/* Spreads pages over the nodes that have processors, page by page: for what all of them read. Nothing happens on one node, or on a
 * topology from text. Before they are touched. */
int numa_spread(const struct numa *n, void *p, size_t size, struct error *e);
/* Binds whole pages in [p, p + size) to a node by the kernel's number, moving those that are there already. ERR_RUNTIME
 * with the reason. */
int numa_bind_to(void *p, size_t size, int node, struct error *e);
