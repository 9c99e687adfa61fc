/* Checks experts split by memory node, on topologies other than this machine's: the bits of the unsplit operation for
 * any number of threads, from views and from copies, and whose work a thread steals. */
#include <stdatomic.h>

#include "base/mat_at.h"
#include "cpu/cpu_exec.h"
#include "cpu/gemm.h"
#include "engine/weights/numa_shard.h"
#include "test/kcheck/random_mat.h"

static const char *const topologies[] = {
    "node 1024 0-3\n",
    "node 1024 0-1\nnode 1024 2-3\n",
    "node 1024 0-3\nnode 1024 4-7\nnode 1024 8-11\nnode 1024 12-15\nnode 1024 16-19\nnode 1024 20-23\nnode 1024 "
    "24-27\nnode 1024 28-31\n",
    "node 1024 0-5\nnode 1024 6-7\nnode 4096 -\n",            /* uneven; the last has memory only */
    "node 4096 -\nnode 1024 0\nnode 1024 1-6\nnode 1024 7\n", /* the first has no CPUs */
};
enum { TOPOLOGIES = sizeof topologies / sizeof *topologies, MAX_EXPERTS = 6 };
static int hidden = 272;
static const int counts[] = {1, 2, 3, 5, 9};
enum { COUNTS = sizeof counts / sizeof *counts };

struct cut {
    struct expert part[(MAX_EXPERTS + 1) * NUMA_NODES];
    struct expert_shards shards;
    int32_t rows[NUMA_NODES + 1];
};
/* Views of the experts, or copies of the views in buffers that end at a guard page. */
static void cut_experts(struct cut *c, const struct numa *n, const struct expert *e, int count, bool copies) {
    struct cut *view = copies ? malloc(sizeof *view) : NULL;
    struct numa_part out[NUMA_NODES];
    c->shards = (struct expert_shards){c->part, c->rows, n->n_nodes};
    numa_split(n, hidden, NUMA_SHARD_UNIT, out);
    c->rows[0] = 0;
    for (int a = 0; a < n->n_nodes; a++) c->rows[a + 1] = c->rows[a] + out[a].count;
    for (int i = 0; i < count; i++) {
        struct numa_part p[NUMA_NODES];
        numa_split(n, e[i].gate.rows, NUMA_SHARD_UNIT, p);
        for (int a = 0; a < n->n_nodes; a++) c->part[i * n->n_nodes + a] = numa_shard_view(&e[i], p[a], out[a]);
    }
    if (!copies) return;
    memcpy(view->part, c->part, sizeof c->part);
    size_t size = 0, at = 0;
    for (int i = 0; i < count * n->n_nodes; i++) numa_shard_layout_expert(&view->part[i], NULL, &size);
    uint8_t *base = guarded(size);
    memset(base, 0xff, size);
    for (int i = 0; i < count * n->n_nodes; i++) {
        c->part[i] = numa_shard_layout_expert(&view->part[i], base, &at);
        if (!numa_shard_copy_expert(&c->part[i], &view->part[i])) wrong("the copy of part %d is called damaged", i);
        for (int r = 0; r < view->part[i].down.rows; r += 7)
            for (int k = 0; k < view->part[i].down.cols; k++)
                if (mat_at(&c->part[i].down, r, k) != mat_at(&view->part[i].down, r, k))
                    mismatch("copied down", r, k, mat_at(&c->part[i].down, r, k), mat_at(&view->part[i].down, r, k), 0);
        for (int r = 0; r < view->part[i].gate.rows; r += 7)
            if (mat_at(&c->part[i].gate, r, 130) != mat_at(&view->part[i].gate, r, 130))
                mismatch("copied gate", r, 130, mat_at(&c->part[i].gate, r, 130), mat_at(&view->part[i].gate, r, 130),
                         0);
    }
    if (at != size) wrong("%zu bytes are laid out, should be %zu", at, size);
    free(view);
}

static void run(struct exec *x, const struct op_experts *o, float *y, const float *was, size_t size) {
    memcpy(y, was, size * 4);
    int rc = x->ops->experts(x, o);
    if (rc) wrong("experts returned %d", rc);
}

static void check_experts(enum cpu_level l, int n, int n_experts, int topk, int inter, uint8_t dtype, int block_rows,
                          int block_cols) {
    begin_case("%s experts split by node, %d rows, %d of %d experts, %d by %d", dtype_name(dtype), n, topk, n_experts,
               inter, hidden);
    struct shape up = {inter, hidden, block_rows, block_cols ? block_rows == 1 ? hidden : block_cols : 0,
                       dtype, DT_F32, 0,          1};
    struct shape down = {hidden, inter,  block_rows, block_cols ? block_rows == 1 ? inter : block_cols : 0,
                         dtype,  DT_F32, 0,          1};
    struct expert e[MAX_EXPERTS + 1];
    size_t size = (size_t)n * (size_t)hidden;
    for (int i = 0; i <= n_experts; i++) e[i] = (struct expert){make(&up), make(&up), make(&down)};
    float *x = guarded(size * 4), *y = guarded(size * 4), *was = guarded(size * 4),
          *weights = guarded((size_t)(n * topk + 1) * 4);
    float *uncut = aligned(size * 4);
    int32_t *ids = guarded((size_t)(n * topk + 1) * 4);
    uint8_t late[MAX_EXPERTS];
    for (size_t i = 0; i < size; i++) x[i] = normal() * 0.05f, was[i] = normal();
    for (int i = 0; i < n * topk; i++)
        weights[i] = normal(), ids[i] = (i / topk * 3 + i % topk * (1 + i / topk % 2)) % n_experts;
    for (int i = 0; i < n_experts; i++) late[i] = i % 3 == 0;
    struct op_experts o = {.y = y,
                           .x = x,
                           .ids = topk ? ids : NULL,
                           .weights = weights,
                           .experts = e,
                           .shared = &e[n_experts],
                           .n = n,
                           .topk = topk,
                           .n_experts = topk ? n_experts : 0,
                           .hidden = hidden};
    struct cut *cut = malloc(sizeof *cut);
    struct error err = {0};
    for (int t = 0; t < TOPOLOGIES; t++) {
        struct numa nodes;
        if (numa_parse(&nodes, topologies[t], &err)) exit(2);
        const struct expert *of = topk ? e : e + n_experts; /* a dense layer has the shared expert only */
        cut_experts(cut, &nodes, of, topk ? n_experts + 1 : 1, false);
        for (int c = 0; c < COUNTS; c++) {
            struct pool *pool;
            if (pool_open_nodes(&pool, counts[c], true, &nodes, &err)) exit(2);
            struct exec *on = cpu_exec_open(pool, l, &err);
            if (!on) exit(2);
            if (!t && !c) {
                run(on, &o, y, was, size);
                memcpy(uncut, y, size * 4);
            }
            o.shards = &cut->shards;
            run(on, &o, y, was, size);
            if (memcmp(uncut, y, size * 4))
                wrong("split experts differ from whole ones on topology %d, %d threads", t, counts[c]);
            o.is_loading = topk ? late : NULL;
            run(on, &o, y, was, size);
            if (memcmp(uncut, y, size * 4))
                wrong("the order of beginning changes the sum on topology %d, %d threads", t, counts[c]);
            o.shards = NULL, o.is_loading = topk ? late : NULL;
            run(on, &o, y, was, size);
            if (memcmp(uncut, y, size * 4))
                wrong("whole experts differ on a pool of several nodes, topology %d, %d threads", t, counts[c]);
            o.is_loading = NULL;
            cpu_exec_close(&on);
            pool_close(&pool);
        }
        cut_experts(cut, &nodes, of, topk ? n_experts + 1 : 1, true);
        struct pool *pool; /* the pool that computes: here without nodes */
        if (pool_open(&pool, 3, false, &err)) exit(2);
        struct exec *on = cpu_exec_open(pool, l, &err);
        o.shards = &cut->shards;
        run(on, &o, y, was, size);
        if (memcmp(uncut, y, size * 4)) wrong("copies differ from views on topology %d", t);
        o.shards = NULL;
        cpu_exec_close(&on);
        pool_close(&pool);
    }
    free(cut), free(uncut);
    drop();
}

/* The damaged code is found wherever it is. */
static void check_damage(void) {
    begin_case("e4m3 expert, copied to a node");
    struct shape s = {64, 192, 128, 128, DT_E4M3, DT_F32, 0, 1};
    for (int i = 0; i < 64; i++) {
        struct expert e = {make(&s), make(&s), make(&s)}, to;
        struct mat *m = i % 3 == 0 ? &e.gate : i % 3 == 1 ? &e.up : &e.down;
        ((uint8_t *)m->data)[i * 191] = i & 1 ? 0x7f : 0xff;
        size_t size = 0, at = 0;
        numa_shard_layout_expert(&e, NULL, &size);
        to = numa_shard_layout_expert(&e, guarded(size), &at);
        if (numa_shard_copy_expert(&to, &e)) wrong("damaged code %d passed unseen", i);
        drop();
    }
}

/* --- Work stealing, one thread at a time, while all others are idle --------------------------- */

static void check_stealing(void) {
    begin_case("work stealing, 6 threads on 3 nodes");
    struct numa n;
    struct error e = {0};
    struct pool *pool;
    /* node 2 has memory only; node 3 is nearer to node 0 than node 1 is */
    if (numa_parse(&n,
                   "node 1024 0-1\nnode 1024 2-3\nnode 1024 -\nnode 1024 4-5\ndistance 0 10 40 30 20\ndistance 1 40 10 "
                   "20 30\n",
                   &e))
        exit(2);
    if (pool_open_nodes(&pool, 6, true, &n, &e)) exit(2);
    struct cpu_exec *x = (struct cpu_exec *)cpu_exec_open(pool, CPU_SCALAR, &e);
    static const int begin[] = {0, 40, 80, 120, 160}, seen_from[2][4] = {{0, 3, 2, 1}, {1, 2, 3, 0}};
    for (int who = 0; who < 2; who++) {
        int thread = who * 2 + 1; /* the second thread of node 0 or of node 1 */
        if (pool_node(pool, thread) != who)
            wrong("thread %d is on node %d, should be on %d", thread, pool_node(pool, thread), who);
        cpu_exec_split_tasks_by_node(x, 0, begin);
        char taken[160] = {0};
        for (int i = 0; i < 160; i++) {
            int task = cpu_exec_next_task(x, 0, thread), node = task / 40;
            if (task < 0 || taken[task]++) wrong("task %d, the number %d, is missing or came twice", task, i);
            if (node != seen_from[who][i / 40])
                wrong("number %d is task %d of node %d, should be one of nearer node %d", i, task, node,
                      seen_from[who][i / 40]);
            if (i < 20 && task / 20 != 2 * who + 1)
                wrong("task %d comes before the own work of thread %d", task, thread);
        }
        if (cpu_exec_next_task(x, 0, thread) >= 0) wrong("there is a task too many");
    }
    cpu_exec_split_tasks_in_order(x, 0, 50);
    for (int i = 0; i < 50; i++)
        if (cpu_exec_next_task(x, 0, i % 6) != i) wrong("task %d comes out of order", i);
    struct exec *close = &x->base;
    cpu_exec_close(&close);
    pool_close(&pool);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20261121;
    printf("seed %llu\n", (unsigned long long)seed);
    state = seed;
    check_stealing();
    check_damage();
    for (int l = 0; l < CPU_LEVELS; l++) {
        level = cpu_level_name((enum cpu_level)l);
        if (!cpu_level_has((enum cpu_level)l)) {
            printf("%-8s SKIPPED: this CPU lacks it\n", level);
            continue;
        }
        int before = failures;
        state = seed;
        check_experts((enum cpu_level)l, 1, 5, 3, 1024, DT_E4M3, 128, 128);
        check_experts((enum cpu_level)l, 3, 6, 2, 384, DT_E4M3, 128, 128);
        check_experts((enum cpu_level)l, 1, 4, 2, 200, DT_E4M3, 1, 1);  /* one scale per row */
        check_experts((enum cpu_level)l, 1, 4, 2, 1000, DT_E4M3, 5, 7); /* blocks that fit no vector */
        check_experts((enum cpu_level)l, 1, 4, 2, 700, DT_E4M3, 48, 96);
        check_experts((enum cpu_level)l, 2, 4, 2, 520, DT_BF16, 0, 0);
        check_experts((enum cpu_level)l, 40, 4, 2, 512, DT_E4M3, 128, 128); /* some groups by gemm, some not */
        check_experts((enum cpu_level)l, 1, 1, 0, 1024, DT_E4M3, 128, 128); /* a dense layer */
        hidden = 512;
        check_experts((enum cpu_level)l, 2, 4, 2, 768, DT_Q4_K, 0, 0); /* three blocks in a row of down */
        hidden = 272;
        printf("%-8s %s\n", level, failures > before ? "FAILED" : "ok");
    }
    printf("%d failures\n", failures);
    return failures != 0;
}
