#pragma once
/* The CPU executor: a pool, the kernels of a level, and workspace. Internal to cpu/. */
#include "cpu/kernels.h"
#include "cpu/pool.h"

struct cpu_exec {
    struct exec base;
    struct pool *pool;
    enum cpu_level level;
    struct kernels k;
    struct exec_cursor *cursor; /* one per thread, then one per node for nodes without threads */
    /* several nodes: each thread's order of visiting cursors, [threads, cursors]; else NULL */
    uint16_t *order;
    int n_cursors;
    _Atomic int is_cancelled; /* a thread saw cancel during this call; stays set until the call returns */
    uint8_t *workspace;       /* workspace of the running call */
    size_t workspace_size;
    float *ordered; /* x of a product with columns in another order */
    size_t ordered_cap;
};

/* Returns at least `size` bytes of workspace for the running operation, 64-byte aligned, valid until the next
 * cpu_exec_workspace of this executor. NULL: out of memory. */
void *cpu_exec_workspace(struct cpu_exec *x, size_t size);

/* Runs fn(arg, task, thread) for every task < n_tasks. A thread takes its own share first (neighbouring tasks, so
 * that on several NUMA nodes it uses the same memory in each call), then steals from others. Tasks must be independent.
 * Returns 0 or ERR_CANCELLED; tasks not yet started are then skipped. */
typedef void (*exec_fn)(void *arg, int task, int thread);
int cpu_exec_for_each(struct cpu_exec *x, int n_tasks, exec_fn fn, void *arg);
/* The same for tasks that touch `elements` numbers together: on the calling thread if handing out takes longer. */
int cpu_exec_for_elements(struct cpu_exec *x, int64_t elements, int n_tasks, exec_fn fn, void *arg);
enum { CPU_EXEC_GRAIN = 16384 }; /* elements that are worth a thread */

/* cpu_exec_for_each in two parts, for operations with stages inside one pool_share. cpu_exec_next_task returns the next
 * task or -1. */
void cpu_exec_split_tasks(struct cpu_exec *x, int stage, int n_tasks);
int cpu_exec_next_task(struct cpu_exec *x, int stage, int thread);
/* Like cpu_exec_split_tasks, with tasks [begin[a], begin[a + 1]) on memory node a. A thread helps its own node first,
 * then the nearest. */
void cpu_exec_split_tasks_by_node(struct cpu_exec *x, int stage, const int *begin);
/* Like cpu_exec_split_tasks, but tasks start in ascending order on whichever thread. */
void cpu_exec_split_tasks_in_order(struct cpu_exec *x, int stage, int n_tasks);
bool cpu_exec_is_cancelled(struct cpu_exec *x); /* cancel was seen; cheap enough to call per task */
/* Limits the matrix rows of a task to [least, most]. More than 64 are whole blocks of 64: no block of scales is
 * split. */
static inline int cpu_exec_task_rows(int rows, int least, int most) {
    if (rows < least) return least;
    if (rows > most) return most;
    return rows > 64 ? rows / 64 * 64 : rows;
}

/* Each operation of base/op_list.h but the optional ones. */
#define X(name, ...) int cpu_##name(struct exec *, const struct op_##name *);
OPS(X)
#undef X
