#include "cpu/exec.h"

#include <string.h>

#include "cpu/quant.h"
#include "engine/base/mem.h"

enum { STAGES = 2 };

/* A thread's share of a stage; others take from it too once they are through with theirs. A line of its own, since every
 * task begins with an increment here. */
struct exec_cursor {
    _Alignas(64) _Atomic int next[STAGES];
    int end[STAGES];
};

static const struct ops tables[CPU_LEVELS] = {
#define TABLE(level)                                                                                                          \
    {level, elem_embed, elem_norm, linear_run, elem_rope_table, elem_rope, kv_store, kv_load, attention_run, route_run,        \
     experts_run, elem_add, elem_sigmoid, elem_copy, elem_merge}
    [CPU_SCALAR] = TABLE("scalar"), [CPU_AVX2] = TABLE("avx2"), [CPU_AVX512] = TABLE("avx512"), [CPU_AMX] = TABLE("amx"),
#undef TABLE
};

void kernels_fill(struct kernels *k, enum cpu_level level) {
    memset(k, 0, sizeof *k);
    kernels_scalar(k);
    unsigned f = cpu_flags();
    if (level >= CPU_AVX2) {
        kernels_avx2(k), quant_avx2(k);
        if (f & CPU_F_SUBNORMAL) kernels_avx2sub(k);
    }
    if (level >= CPU_AVX512) {
        kernels_avx512(k), quant_avx512(k);
        if (f & CPU_F_SUBNORMAL) kernels_avx512sub(k);
        else if (f & CPU_F_VBMI) kernels_avx512vbmi(k);
    }
}

struct exec *cpu_exec_open(struct pool *pool, enum cpu_level level, struct error *e) {
    struct cpu_exec *x = mem_calloc(1, sizeof *x);
    int n = pool_threads(pool);
    if (x) x->cursor = mem_aligned(64, (size_t)n * sizeof *x->cursor);
    if (!x || !x->cursor) {
        mem_free(x);
        error_set(e, ERR_MEMORY, "no memory for a CPU executor of %d threads", n);
        return NULL;
    }
    memset(x->cursor, 0, (size_t)n * sizeof *x->cursor);
    x->base.ops = &tables[level];
    x->pool = pool;
    x->level = level;
    kernels_fill(&x->k, level);
    return &x->base;
}

void cpu_exec_close(struct exec **xp) {
    struct cpu_exec *x = (struct cpu_exec *)*xp;
    if (!x) return;
    mem_free(x->space);
    mem_free(x->cursor);
    mem_free(x);
    *xp = NULL;
}

void *exec_space(struct cpu_exec *x, size_t size) {
    if (size <= x->space_size) return x->space;
    size_t grown = x->space_size * 2 > size ? x->space_size * 2 : size;
    mem_free(x->space);
    x->space = mem_aligned(64, grown);
    x->space_size = x->space ? grown : 0;
    return x->space;
}

void exec_share(struct cpu_exec *x, int stage, int n_tasks) {
    int n = pool_threads(x->pool);
    for (int t = 0; t < n; t++) {
        atomic_store_explicit(&x->cursor[t].next[stage], (int)((int64_t)n_tasks * t / n), memory_order_relaxed);
        x->cursor[t].end[stage] = (int)((int64_t)n_tasks * (t + 1) / n);
    }
    if (!stage) atomic_store_explicit(&x->stopped, 0, memory_order_relaxed);
}

int exec_next(struct cpu_exec *x, int stage, int thread) {
    int n = pool_threads(x->pool);
    for (int i = 0; i < n; i++) {
        struct exec_cursor *c = &x->cursor[thread + i < n ? thread + i : thread + i - n];
        if (atomic_load_explicit(&c->next[stage], memory_order_relaxed) >= c->end[stage]) continue;
        int task = atomic_fetch_add_explicit(&c->next[stage], 1, memory_order_relaxed);
        if (task < c->end[stage]) return task;
    }
    return -1;
}

bool exec_stopped(struct cpu_exec *x) {
    if (atomic_load_explicit(&x->stopped, memory_order_relaxed)) return true;
    if (!x->base.cancel || !atomic_load_explicit(x->base.cancel, memory_order_relaxed)) return false;
    atomic_store_explicit(&x->stopped, 1, memory_order_relaxed);
    return true;
}

struct each {
    struct cpu_exec *x;
    exec_fn fn;
    void *arg;
};
static void each_thread(void *arg, int thread, int n_threads) {
    struct each *e = arg;
    for (int task; !exec_stopped(e->x) && (task = exec_next(e->x, 0, thread)) >= 0;) e->fn(e->arg, task, thread);
}

int exec_each(struct cpu_exec *x, int n_tasks, exec_fn fn, void *arg) {
    struct each e = {x, fn, arg};
    exec_share(x, 0, n_tasks);
    if (n_tasks > 1) pool_run(x->pool, each_thread, &e);
    else if (n_tasks == 1 && !exec_stopped(x)) fn(arg, 0, 0);
    return atomic_load_explicit(&x->stopped, memory_order_relaxed) ? ERR_CANCELLED : 0;
}
