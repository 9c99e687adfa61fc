#pragma once
/* The processor's memory nodes as domains of their own. Domain 0 of a machine (cost.h) is all of them at once, which is what it gives while every
 * node computes what lies on it; here is what each of them takes, what goes between them when it does not, and how much of an expert each
 * should have. Pure; units as in cost.h. */
#include "engine/sched/cost.h"

/* Assumed where nobody says it: bytes/s between two sockets, one way. */
#define NODES_BETWEEN 50e9
/* n nodes that are alike, with so many bytes in all. n below 2: one. */
void nodes_even(struct cost_machine *m, int n, double memory);
/* The nodes as the domains 0 .. n_nodes - 1 of a machine, without its devices: what split.h asks for. Host memory to a node's
 * processors (COST_H2D) is the way from another node. */
void nodes_machine(struct cost_machine *out, const struct cost_machine *m);

/* How much of every expert lies on each node, and how much of it each computes: both sum up to 1. */
struct nodes_lie {
    double lies[COST_NODES], works[COST_NODES];
    bool home; /* a node computes what lies on it; else its part is taken from everywhere alike */
};
/* Rows of every matrix to each node, for its own processors, so that all end at once in calls of so many rows an expert (`of` in all, as cost_expert has them).
 */
struct nodes_lie nodes_shares(const struct cost_machine *m, const struct cost_model *q, double rows, double of);
/* Pages by turns over the nodes with processors, whoever computes: of what a node's processors read, most lies elsewhere. */
struct nodes_lie nodes_spread(const struct cost_machine *m);
/* Everything on one node. */
struct nodes_lie nodes_on(const struct cost_machine *m, int node);
/* An expert of so many rows: the longest of what each node's memory serves, what its processors compute, and what goes over its way to others, in or out.
 * *hot, or NULL: whose that was. */
double nodes_expert(const struct cost_machine *m, const struct cost_model *q, double rows, double of, const struct nodes_lie *l, int *hot);
