#pragma once
/* Worker threads, one pinned to a physical core each. Between calls they spin for a short while, then sleep. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"

struct numa;
struct pool;
typedef void (*pool_fn)(void *arg, int thread, int n_threads);

/* n_threads 0: one a physical core this process may use, less one for the engine and the terminal where there are more
 * than two. The caller of pool_run is thread 0. pin false: leave placement to the kernel (tests with many pools). */
int pool_open(struct pool **p, int n_threads, bool pin, struct error *e);
/* The same over memory nodes: threads are numbered in order of node, and each is pinned to a processor of its own (NULL:
 * one node). A topology from text pins nothing, since it is not this machine's. */
int pool_open_nodes(struct pool **p, int n_threads, bool pin, const struct numa *nodes, struct error *e);
void pool_close(struct pool **p);
int pool_threads(const struct pool *p);
bool pool_full(const struct pool *p); /* every processor that this process may use has a thread of it: what else runs holds a call up */
int pool_nodes(const struct pool *p);
int pool_node(const struct pool *p, int thread);
/* Nodes by their distance from `node`, itself first; [pool_nodes]. */
const uint8_t *pool_near(const struct pool *p, int node);
/* For the thread that is going to call pool_run: on several nodes it stays on the first thread's. */
void pool_enter(const struct pool *p);
/* Runs fn(arg, t, n) on every thread and returns when all have. One caller at a time; not from inside fn. */
void pool_run(struct pool *p, pool_fn fn, void *arg);
/* Inside fn: all threads of the running call meet here. */
void pool_barrier(struct pool *p);
