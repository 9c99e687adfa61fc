#pragma once
/* The CPU's NUMA nodes as separate domains. Domain 0 of a machine (cost.h) is all nodes together, assuming that every
 * node computes the weights in its own memory. This file predicts each node's time, the traffic between nodes
 * otherwise, and the best share of an expert for each node. Pure; units as in cost.h. */
#include "engine/placement/cost.h"

/* Default bytes/s between two sockets, per direction. */
#define NUMA_COST_INTER_NODE_BW 50e9
/* Sets n equal nodes with `memory` bytes in total. n below 2: one node. */
void numa_cost_even(struct cost_machine *m, int n, double memory);
/* Builds a machine whose domains 0 .. n_nodes - 1 are the nodes, without devices, for split.h. A node's COST_H2D link
 * is its link to the other nodes. */
void numa_cost_machine(struct cost_machine *out, const struct cost_machine *m);

/* Share of every expert that each node stores and computes; each sums to 1. */
struct numa_shares {
    double stored[COST_NODES], computed[COST_NODES];
    bool is_local; /* a node computes what it stores; otherwise its input comes evenly from all nodes */
};
/* Splits the rows of every matrix so that all nodes finish together with `rows` rows per expert (`of`: rows of the
 * call, as in cost_expert). */
struct numa_shares numa_cost_balanced(const struct cost_machine *m, const struct cost_model *q, double rows, double of);
/* Pages interleaved over the nodes with CPUs: most of what a node reads is remote. */
struct numa_shares numa_cost_interleaved(const struct cost_machine *m);
/* Everything on one node. */
struct numa_shares numa_cost_single(const struct cost_machine *m, int node);
/* Share of its bandwidth that the CPU reaches for experts that are not placed by node, with few rows; 1 with one
 * node. */
double numa_cost_reach(const struct cost_machine *m, const struct cost_model *q);
/* Seconds of an expert: the longest of memory reads, compute and inter-node traffic in or out, over all nodes. *hot:
 * the slowest node; may be NULL. */
double numa_cost_expert(const struct cost_machine *m, const struct cost_model *q, double rows, double of,
                        const struct numa_shares *l, int *hot);
