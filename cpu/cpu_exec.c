#include "cpu/cpu_exec.h"

#include <string.h>

#include "base/mem.h"

enum { STAGES = 2 };

/* A thread's share of a stage; other threads steal from it after finishing theirs. Has its own cache line, since every
 * task increments it. */
struct exec_cursor {
    _Alignas(64) _Atomic int next[STAGES];
    int end[STAGES];
};

static const struct ops tables[CPU_LEVELS] = {
#define X(op, ...) .op = cpu_##op,
#define TABLE(level) \
    { .name = level, OPS(X) }
    [CPU_SCALAR] = TABLE("scalar"),
    [CPU_AVX2] = TABLE("avx2"),
    [CPU_AVX512] = TABLE("avx512"),
    [CPU_AMX] = TABLE("amx"),
#undef TABLE
#undef X
};

/* The order in which a thread visits cursors with several nodes: its own, then node by node by distance. Of a node,
 * first its own cursor (tasks of a node without threads), then its threads' cursors, starting after this thread's
 * position so that helpers spread. */
static void visit_order(const struct pool *pool, int thread, uint16_t *order) {
    int n = pool_threads(pool), at = 0;
    const uint8_t *near = pool_nodes_by_distance(pool, pool_node(pool, thread));
    order[at++] = (uint16_t)thread;
    for (int i = 0; i < pool_nodes(pool); i++) {
        order[at++] = (uint16_t)(n + near[i]);
        for (int k = 1; k < n; k++) {
            int t = (thread + k) % n;
            if (pool_node(pool, t) == near[i]) order[at++] = (uint16_t)t;
        }
    }
}

struct exec *cpu_exec_open(struct pool *pool, enum cpu_level level, struct error *e) {
    struct cpu_exec *x = mem_calloc(1, sizeof *x);
    int n = pool_threads(pool), m = n + pool_nodes(pool);
    if (x) x->cursor = mem_aligned(64, (size_t)m * sizeof *x->cursor);
    if (x && pool_nodes(pool) > 1) x->order = mem_alloc((size_t)n * (size_t)m * sizeof *x->order);
    if (!x || !x->cursor || (pool_nodes(pool) > 1 && !x->order)) {
        struct exec *half = (struct exec *)x;
        cpu_exec_close(&half);
        error_set(e, ERR_MEMORY, "no memory for a CPU executor of %d threads", n);
        return NULL;
    }
    memset(x->cursor, 0, (size_t)m * sizeof *x->cursor);
    x->n_cursors = x->order ? m : n;
    for (int t = 0; t < n && x->order; t++) visit_order(pool, t, x->order + (size_t)t * (size_t)m);
    x->base.ops = &tables[level];
    x->pool = pool;
    x->level = level;
    kernels_fill(&x->k, level);
    return &x->base;
}

void cpu_exec_close(struct exec **xp) {
    struct cpu_exec *x = (struct cpu_exec *)*xp;
    if (!x) return;
    mem_free(x->workspace);
    mem_free(x->ordered);
    mem_free(x->cursor);
    mem_free(x->order);
    mem_free(x);
    *xp = NULL;
}

void *cpu_exec_workspace(struct cpu_exec *x, size_t size) {
    if (size <= x->workspace_size) return x->workspace;
    size_t grown = x->workspace_size * 2 > size ? x->workspace_size * 2 : size;
    mem_free(x->workspace);
    x->workspace = mem_aligned(64, grown);
    x->workspace_size = x->workspace ? grown : 0;
    return x->workspace;
}

static void set_cursor(struct cpu_exec *x, int cursor, int stage, int begin, int end) {
    atomic_store_explicit(&x->cursor[cursor].next[stage], begin, memory_order_relaxed);
    x->cursor[cursor].end[stage] = end;
}

void cpu_exec_split_tasks(struct cpu_exec *x, int stage, int n_tasks) {
    int n = pool_threads(x->pool);
    for (int t = 0; t < n; t++)
        set_cursor(x, t, stage, (int)((int64_t)n_tasks * t / n), (int)((int64_t)n_tasks * (t + 1) / n));
    for (int c = n; c < x->n_cursors; c++) set_cursor(x, c, stage, 0, 0);
    if (!stage) atomic_store_explicit(&x->is_cancelled, 0, memory_order_relaxed);
}

void cpu_exec_split_tasks_by_node(struct cpu_exec *x, int stage, const int *begin) {
    int n = pool_threads(x->pool);
    cpu_exec_split_tasks(x, stage, 0);
    for (int a = 0, t = 0; a < pool_nodes(x->pool); a++) {
        int first = t, tasks = begin[a + 1] - begin[a];
        while (t < n && pool_node(x->pool, t) == a) t++;
        int here = t - first;
        if (!here) set_cursor(x, n + a, stage, begin[a], begin[a + 1]);
        for (int i = 0; i < here; i++)
            set_cursor(x, first + i, stage, begin[a] + (int)((int64_t)tasks * i / here),
                       begin[a] + (int)((int64_t)tasks * (i + 1) / here));
    }
}

void cpu_exec_split_tasks_in_order(struct cpu_exec *x, int stage, int n_tasks) {
    cpu_exec_split_tasks(x, stage, 0);
    set_cursor(x, 0, stage, 0, n_tasks);
}

int cpu_exec_next_task(struct cpu_exec *x, int stage, int thread) {
    int n = x->n_cursors;
    const uint16_t *order = x->order ? x->order + (size_t)thread * (size_t)n : NULL;
    for (int i = 0; i < n; i++) {
        struct exec_cursor *c = &x->cursor[order ? order[i] : thread + i < n ? thread + i : thread + i - n];
        if (atomic_load_explicit(&c->next[stage], memory_order_relaxed) >= c->end[stage]) continue;
        int task = atomic_fetch_add_explicit(&c->next[stage], 1, memory_order_relaxed);
        if (task < c->end[stage]) return task;
    }
    return -1;
}

bool cpu_exec_is_cancelled(struct cpu_exec *x) {
    if (atomic_load_explicit(&x->is_cancelled, memory_order_relaxed)) return true;
    if (!x->base.cancel || !atomic_load_explicit(x->base.cancel, memory_order_relaxed)) return false;
    atomic_store_explicit(&x->is_cancelled, 1, memory_order_relaxed);
    return true;
}

struct each_task {
    struct cpu_exec *x;
    exec_fn fn;
    void *arg;
};
static void each_thread(void *arg, int thread, int n_threads) {
    struct each_task *e = arg;
    for (int task; !cpu_exec_is_cancelled(e->x) && (task = cpu_exec_next_task(e->x, 0, thread)) >= 0;)
        e->fn(e->arg, task, thread);
}

int cpu_exec_for_each(struct cpu_exec *x, int n_tasks, exec_fn fn, void *arg) {
    struct each_task e = {x, fn, arg};
    cpu_exec_split_tasks(x, 0, n_tasks);
    if (n_tasks > 1) pool_share(x->pool, each_thread, &e);
    else if (n_tasks == 1 && !cpu_exec_is_cancelled(x)) fn(arg, 0, 0);
    return atomic_load_explicit(&x->is_cancelled, memory_order_relaxed) ? ERR_CANCELLED : 0;
}

int cpu_exec_for_elements(struct cpu_exec *x, int64_t elements, int n_tasks, exec_fn fn, void *arg) {
    if (elements > CPU_EXEC_GRAIN) return cpu_exec_for_each(x, n_tasks, fn, arg);
    for (int task = 0; task < n_tasks; task++) fn(arg, task, 0);
    return 0;
}
