#pragma once
/* Worker threads, each pinned to a physical core. Between calls they spin for at most SPIN_BATCH_S (spin.h), then
 * sleep. */
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

struct numa;
struct pool;
typedef void (*pool_fn)(void *arg, int thread, int n_threads);

/* n_threads 0: one per physical core that this process may use, minus one for the engine and the terminal if there are
 * more than two. The caller of pool_run is thread 0. pin false: leave placement to the kernel (tests with many
 * pools). */
int pool_open(struct pool **p, int n_threads, bool pin, struct error *e);
/* Opens a pool over NUMA nodes: threads are numbered in order of node and each is pinned to its own CPU (nodes NULL:
 * one node). A topology from text pins nothing, because it describes another machine. */
int pool_open_nodes(struct pool **p, int n_threads, bool pin, const struct numa *nodes, struct error *e);
void pool_close(struct pool **p);
int pool_threads(const struct pool *p);
/* every CPU that this process may use runs a pool thread, so any other load delays a call */
bool pool_is_saturated(const struct pool *p);
int pool_nodes(const struct pool *p);
int pool_node(const struct pool *p, int thread);
/* Nodes by distance from `node`, itself first; [pool_nodes]. */
const uint8_t *pool_nodes_by_distance(const struct pool *p, int node);
/* Call on the thread that will call pool_run: on several nodes it stays on the first thread's node. */
void pool_pin_caller(const struct pool *p);
/* Runs fn(arg, t, n) on every thread and returns when all have finished. One caller at a time; not from inside fn. */
void pool_run(struct pool *p, pool_fn fn, void *arg);
/* Runs fn on this thread, which is thread 0, and on each worker that starts before the work is done; fn takes tasks
 * until none is left. Does not wait for workers that another program keeps from starting. */
void pool_share(struct pool *p, pool_fn fn, void *arg);
/* Inside fn of pool_share, while `thread` waits for another thread's result; tries: earlier calls in this wait. Checks
 * one other thread per call; if that has been preempted, it runs on this thread's CPU. */
void pool_help(struct pool *p, int thread, int tries);
