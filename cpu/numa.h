#pragma once
/* The NUMA nodes of this machine, and the split of a weight's rows over them. The split functions are pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

enum { NUMA_NODES = 64, NUMA_CPUS = 1024 };

struct numa {
    int n_nodes;
    size_t memory[NUMA_NODES];  /* bytes per node */
    int cpus[NUMA_NODES];       /* CPUs per node */
    int16_t node_of[NUMA_CPUS]; /* -1: no such CPU */
    /* the kernel's node number; -1: topology from text, memory is not bound */
    int16_t kernel_node[NUMA_NODES];
    uint8_t distance[NUMA_NODES][NUMA_NODES]; /* as the firmware reports it: 10 is local */
    /* MB/s at which a node's CPUs read each node; only from text; 0: unknown */
    uint32_t read_mbps[NUMA_NODES][NUMA_NODES];
};

/* Reads this machine's topology. Without NUMA: one node with everything. */
void numa_read(struct numa *n);
/* Parses a topology from text, for tests and for planning another machine: a line `node <memory in MiB> <cpus, as
 * 0-31,64-95>` for each node in order, optionally lines `distance <row> <numbers>` and `speed <row> <numbers>`; #
 * starts a comment. ERR_USAGE names the line. */
int numa_parse(struct numa *n, const char *text, struct error *e);

/* Rows (of gate and up) or columns (of down) [first, first + count) of an expert, stored on a node. */
struct numa_part {
    int first, count;
};
/* Splits `inter` in proportion to the nodes' CPUs, at multiples of `unit` (the side of scale blocks, so that no block
 * is split; the last part takes the rest). A part may be empty. parts [n_nodes] cover [0, inter) without gaps. Each
 * node computes a partial output from its own part; the partial outputs are added once, in order of node. */
void numa_split(const struct numa *n, int inter, int unit, struct numa_part *parts);

/* The node of each of n_threads threads: in order of node, in proportion to have[n_nodes] (usable CPUs).
 * A node without CPUs gets no thread, nor may others if there are fewer threads than nodes. */
void numa_threads(const int *have, int n_nodes, int n_threads, uint8_t *node);

/* True if weights of `bytes` should be read into memory bound to nodes, false if they should stay mapped: with one node
 * there is nothing to bind, and weights that do not fit beside `reserve` bytes per node must stay droppable by the
 * kernel. Each node gets its share by CPUs, as in numa_split. */
bool numa_should_bind(const struct numa *n, size_t bytes, size_t reserve);

/* Moves the calling thread to a node's CPUs. No effect with a topology from text. */
void numa_pin_thread(const struct numa *n, int node);
/* Binds memory to a node; see numa_bind_to. No effect with one node or a topology from text. */
int numa_bind_memory(const struct numa *n, void *p, size_t size, int node, struct error *e);
/* Pages that the calling thread touches first after this call come from this node while it has free memory; -1:
 * interleaved over all nodes with CPUs. No effect with one node or a topology from text. */
void numa_prefer(const struct numa *n, int node);
/* Moves the whole pages of [p, p + size) that are in memory to a node, without a policy for later ones; best effort. No
 * effect with one node, a topology from text, or node -1. */
void numa_move_to(const struct numa *n, const void *p, size_t size, int node);
/* Interleaves pages over the nodes with CPUs, for data that all of them read. Call before the pages are touched. No
 * effect with one node or a topology from text. */
int numa_interleave_pages(const struct numa *n, void *p, size_t size, struct error *e);
/* Binds whole pages in [p, p + size) to a node (kernel number) and moves existing pages. ERR_RUNTIME with the
 * reason. */
int numa_bind_to(void *p, size_t size, int node, struct error *e);
