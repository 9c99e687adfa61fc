/* The FFNs of a layer: y += sum of weight * down(glu(gate x, up x)) over the experts of each token.
 *
 * Tokens are grouped by expert, in rising order of expert, the shared one last (expert_groups.h). All groups of a wave
 * run in one pool_share with two stages:
 * 1. tasks (group, rows of gate and up), with the glu fused; the result goes to h. Each task decrements the group's
 * counter.
 * 2. tasks (rows of y): for all groups in order, wait until the group's counter is 0, multiply those rows of down with
 * the group's h, and add to y with the router's weight. So the stages have no barrier, only a counter per group, and
 * the first experts are long done when a thread finishes its part of stage 1. A task's rows of y have one writer, which
 * fixes the order of the sum without partial results. Groups of many tokens use gemm.h, each matrix the kernel of its
 * own format: their x is packed first (one more call), and the thread that finishes a group's stage 1 packs its h.
 *
 * Several NUMA nodes (op_experts.shards): each has some rows of gate and up, and some of down, so a task of either
 * stage belongs to a node, whose threads take it first. h is shared: stage 2 reads the other nodes' parts, a few KB
 * compared to the megabytes of weights that stay local. A row is computed as without nodes, with the same bits.
 *
 * Waves bound the workspace: WAVE_MAX_ROWS pairs of a token and its expert at a time. */
#include <string.h>

#include "base/mem.h"
#include "cpu/cpu_exec.h"
#include "cpu/expert_groups.h"
#include "cpu/numa.h"

/* Measured (test/bench/gemv.md, gemm.md), except for those that bound memory. */
enum {
    WAVE_MAX_ROWS = 8192, /* pairs of a token and its expert in a wave: bounds the workspace */
    /* of gate, in a task of stage 1 with GEMV: each start of a matrix also fetches about 10 KB of unwanted lines */
    TASK_BYTES = 512 << 10,
    TASK_ROWS = 256, /* most rows of such a task */
    /* least rows of a task of stage 1 with a GEMM for many tokens, rounded up to the GEMM's tile */
    MANY_ROWS = 64,
    /* rows of y in a task of stage 2 where tasks of the GEMM's tile would be fewer than threads */
    PANEL = 32,
};

/* A memory node's part of a group's expert. */
struct node_part {
    const struct expert *expert;
    int group, row; /* its first row of gate and up */
    int first;      /* index of its first task of stage 1 */
};
/* Unfinished tasks of stage 1; one cache line each, because waiting threads spin on it. */
struct counter {
    _Alignas(64) _Atomic int left;
};

struct wave {
    struct cpu_exec *x;
    const struct op_experts *o;
    struct group *groups;         /* [n] */
    struct node_part *node_parts; /* [nodes, n] */
    struct counter *counters;     /* [n] */
    int n, nodes, tasks;          /* groups; memory nodes; tasks of stage 1 */
    int y_rows_per_task;          /* of stage 2 */
    int begin[NUMA_NODES + 1];    /* tasks of stage 2 by node */
    /* [nodes * n] indexes of node_parts in the order in which stage 1 starts them, by `first`; NULL: array order */
    int32_t *start_order;
    bool any_gemm, any_order; /* of gate or up */
    uint8_t *space, *scratch; /* scratch: one part per thread */
    /* a thread's scratch: outputs of a task, then workspace of a GEMM, then a transposed matrix */
    size_t scratch_part, tile_bytes, gemm_scratch_bytes;
};

static size_t align64(size_t n) { return (n + 63) & ~(size_t)63; }

/* --- Stage 1 ---------------------------------------------------------------------------------- */

static void add_bias(float *y, const float *bias, int from, int n) {
    for (int i = 0; i < n && bias; i++) y[i] += bias[from + i];
}
static void apply_glu(const struct wave *w, const struct expert *e, float *h, float *gate, float *up, int r0, int n) {
    add_bias(gate, e->gate_bias, r0, n);
    if (e->up.data) add_bias(up, e->up_bias, r0, n);
    w->x->k.glu(h, gate, e->up.data ? up : gate, n, &e->glu);
}

/* Columns [c0, c1) of a matrix, transposed to rows of a matrix in buf. */
static struct mat transpose_columns(const struct mat *m, int c0, int c1, uint8_t *buf) {
    const size_t size = dtype_bytes(m->dtype, 1), stride = size * (size_t)m->rows;
    for (int r = 0; r < m->rows; r++) {
        const uint8_t *from = (const uint8_t *)m->data + (size_t)r * m->stride + size * (size_t)c0;
        for (int c = 0; c < c1 - c0; c++)
            memcpy(buf + (size_t)c * stride + size * (size_t)r, from + size * (size_t)c, size);
    }
    return (struct mat){
        .data = buf, .stride = stride, .rows = c1 - c0, .cols = m->rows, .row_step = 1, .dtype = m->dtype};
}
/* x of the group's tokens in gate's order, [n, hidden]; NULL: it has none. */
static float *ordered_x(const struct wave *w, const struct group *g) {
    return g->expert->gate.order ? (float *)(w->space + g->x) : NULL;
}
/* Outputs [r0, r1) of a matrix for the group's tokens, [n, ldy]. */
static void outputs(const struct wave *w, const struct group *g, int which, const struct mat *m, bool transposed,
                    int r0, int r1, float *y, int ldy, uint8_t *scratch) {
    const struct gemm *gemm = g->gemm[which];
    const uint8_t *packed = w->space + g->packed[which];
    if (gemm && transposed) {
        struct mat rows = transpose_columns(m, r0, r1, scratch + w->gemm_scratch_bytes);
        gemm->rows(&rows, 0, r1 - r0, packed, g->n, y, ldy, false, scratch);
        return;
    }
    if (gemm) {
        gemm->rows(m, r0, r1, packed, g->n, y - r0, ldy, false, scratch);
        return;
    }
    const struct mat rows = transposed ? *m : mat_rows(*m, r0, r1);
    const float *in = which == DOWN ? (const float *)(w->space + g->h) : ordered_x(w, g), *xs[KERNEL_TOKENS];
    float *ys[KERNEL_TOKENS];
    const size_t width = (size_t)(which == DOWN ? g->inter : w->o->hidden);
    for (int t = 0; t < g->n; t += KERNEL_TOKENS) {
        const int n = g->n - t < KERNEL_TOKENS ? g->n - t : KERNEL_TOKENS;
        for (int i = 0; i < n; i++) {
            xs[i] = in ? in + (size_t)(t + i) * width : w->o->x + (size_t)g->tokens[t + i] * width;
            ys[i] = y + (size_t)(t + i) * (size_t)ldy;
        }
        if (transposed) w->x->k.gevm[m->dtype](ys, xs, n, &rows, r0, r1);
        else kernels_gemv(&w->x->k, m->dtype, false)(ys, xs, n, &rows);
    }
}

static void gate_up(const struct wave *w, const struct group *g, const struct node_part *p, int r0, int r1,
                    uint8_t *scratch) {
    const struct expert *e = p->expert;
    const size_t ld = (size_t)g->rows_per_task;
    float *gate = (float *)scratch, *up = gate + (size_t)g->n * ld, *h = (float *)(w->space + g->h) + p->row + r0;
    outputs(w, g, GATE, &e->gate, e->gate_up_transposed, r0, r1, gate, g->rows_per_task, scratch + w->tile_bytes);
    if (e->up.data)
        outputs(w, g, UP, &e->up, e->gate_up_transposed, r0, r1, up, g->rows_per_task, scratch + w->tile_bytes);
    for (size_t i = 0; i < (size_t)g->n; i++)
        apply_glu(w, e, h + i * (size_t)g->inter, gate + i * ld, up + i * ld, r0, r1 - r0);
}

static void run_stage1(const struct wave *w, int task, uint8_t *scratch) {
    int lo = 0, hi = w->n * w->nodes - 1; /* the last part that starts at or before the task */
    while (lo < hi) {
        int mid = (lo + hi + 1) / 2;
        if (w->node_parts[w->start_order ? w->start_order[mid] : mid].first <= task) lo = mid;
        else hi = mid - 1;
    }
    const struct node_part *p = &w->node_parts[w->start_order ? w->start_order[lo] : lo];
    const struct group *g = &w->groups[p->group];
    int r0 = (task - p->first) * g->rows_per_task, rows = expert_inter(p->expert),
        r1 = r0 + g->rows_per_task < rows ? r0 + g->rows_per_task : rows;
    gate_up(w, g, p, r0, r1, scratch);
    _Atomic int *left = &w->counters[p->group].left;
    if (!g->gemm[DOWN]) {
        atomic_fetch_sub_explicit(left, 1, memory_order_release);
        /* the counter starts one higher, for this pack */
    } else if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) == 2) {
        g->gemm[DOWN]->pack(w->space + g->packed[DOWN], (float *)(w->space + g->h), NULL, g->inter, g->n, g->inter, 0,
                            1);
        atomic_store_explicit(left, 0, memory_order_release);
    }
}

/* --- Stage 2 ---------------------------------------------------------------------------------- */

enum { PATIENCE = 4096 }; /* polls, of 10 to 40 ns */
/* Returns false when the call was cancelled: tasks of stage 1 may then never finish. */
static bool wait_stage1(const struct wave *w, int group, int thread) {
    for (int polls = 0; atomic_load_explicit(&w->counters[group].left, memory_order_acquire); polls++) {
        if (cpu_exec_is_cancelled(w->x)) return false;
        __builtin_ia32_pause();
        if (polls % PATIENCE == PATIENCE - 1) pool_help(w->x->pool, thread, polls / PATIENCE);
    }
    return true;
}

/* First row of y on a node. */
static int y_first(const struct op_experts *o, int node) { return o->shards ? o->shards->rows[node] : 0; }
static int y_rows(const struct op_experts *o, int node) {
    return o->shards ? o->shards->rows[node + 1] - o->shards->rows[node] : o->hidden;
}

static void run_stage2(const struct wave *w, int task, int thread, uint8_t *scratch) {
    const struct op_experts *o = w->o;
    int node = 0;
    while (task >= w->begin[node + 1]) node++;
    int r0 = (task - w->begin[node]) * w->y_rows_per_task, all = y_rows(o, node),
        r1 = r0 + w->y_rows_per_task < all ? r0 + w->y_rows_per_task : all, rows = r1 - r0;
    float *tile = (float *)scratch, *y = o->y + y_first(o, node) + r0;
    for (int i = 0; i < w->n; i++) {
        const struct group *g = &w->groups[i];
        const struct expert *e = w->node_parts[node * w->n + i].expert;
        if (!wait_stage1(w, i, thread)) return;
        outputs(w, g, DOWN, &e->down, e->is_transposed, r0, r1, tile, rows, scratch + w->tile_bytes);
        for (int t = 0; t < g->n; t++) {
            add_bias(tile + (size_t)t * (size_t)rows, e->down_bias, r0, rows);
            w->x->k.axpy(y + (size_t)g->rows[t] * (size_t)o->hidden, g->weights[t], tile + (size_t)t * (size_t)rows,
                         rows);
        }
    }
}

/* The packed x that a matrix shares with one that is packed before it: gate's, or with one token in all the first
 * group's. NULL: it has its own. */
static const size_t *shared_packed_x(const struct wave *w, const struct group *g, int which) {
    const struct group *first = w->groups;
    if (which == UP && g->gemm[UP] == g->gemm[GATE]) return &g->packed[GATE];
    if (g->expert->gate.order || first->expert->gate.order) return NULL;
    return w->o->n == 1 && g != first && g->gemm[which] == first->gemm[GATE] ? &first->packed[GATE] : NULL;
}
/* A thread's part of the tokens in the orders of gate's columns. */
static void order_task(void *arg, int part, int thread) {
    const struct wave *w = arg;
    const int parts = pool_threads(w->x->pool);
    const size_t hidden = (size_t)w->o->hidden;
    for (int i = 0; i < w->n; i++)
        for (int t = 0; t < w->groups[i].n && ordered_x(w, &w->groups[i]); t++) {
            const struct group *g = &w->groups[i];
            if ((i + t) % parts == part)
                mat_order_x(&g->expert->gate, ordered_x(w, g) + (size_t)t * hidden,
                            w->o->x + (size_t)g->tokens[t] * hidden);
        }
}
/* A part of x, packed for gate and up. */
static void pack_task(void *arg, int part, int thread) {
    const struct wave *w = arg;
    for (int i = 0; i < w->n; i++)
        for (int k = GATE; k <= UP; k++) {
            const struct group *g = &w->groups[i];
            const float *ordered = ordered_x(w, g);
            if (!g->gemm[k] || shared_packed_x(w, g, k)) continue;
            g->gemm[k]->pack(w->space + g->packed[k], ordered ? ordered : w->o->x, ordered ? NULL : g->tokens,
                             w->o->hidden, g->n, w->o->hidden, part, pool_threads(w->x->pool));
        }
}
static void wave_thread(void *arg, int thread, int n_threads) {
    const struct wave *w = arg;
    uint8_t *scratch = w->scratch + (size_t)thread * w->scratch_part;
    for (int task; !cpu_exec_is_cancelled(w->x) && (task = cpu_exec_next_task(w->x, 0, thread)) >= 0;)
        run_stage1(w, task, scratch);
    for (int task; !cpu_exec_is_cancelled(w->x) && (task = cpu_exec_next_task(w->x, 1, thread)) >= 0;)
        run_stage2(w, task, thread, scratch);
}

/* --- A wave: sizes, workspace, its calls ----------------------------------------------------- */

static int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

/* Numbers the tasks of stage 1: node by node and group by group; groups whose weights are still being read come
 * last. */
static void number_tasks(struct wave *w, bool any_loading) {
    const uint8_t *is_loading = w->o->is_loading;
    int at = 0;
    w->tasks = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < w->n * w->nodes; i++) {
            struct node_part *p = &w->node_parts[i];
            const struct group *g = &w->groups[p->group];
            if ((any_loading && g->id < w->o->n_experts && is_loading[g->id]) != pass) continue;
            if (any_loading) w->start_order[at++] = i;
            p->first = w->tasks, w->tasks += (expert_inter(p->expert) + g->rows_per_task - 1) / g->rows_per_task;
        }
    if (!any_loading) w->start_order = NULL;
}

static void distribute_tasks(const struct wave *w) {
    struct cpu_exec *x = w->x;
    int begin[NUMA_NODES + 1];
    if (w->start_order) cpu_exec_split_tasks_in_order(x, 0, w->tasks);
    else cpu_exec_split_tasks(x, 0, w->tasks);
    cpu_exec_split_tasks(x, 1, w->begin[w->nodes]);
    if (w->nodes == 1 || w->nodes != pool_nodes(x->pool) || w->start_order) return;
    for (int a = 0; a < w->nodes; a++) begin[a] = w->node_parts[w->n * a].first;
    begin[w->nodes] = w->tasks;
    cpu_exec_split_tasks_by_node(x, 0, begin);
    cpu_exec_split_tasks_by_node(x, 1, w->begin);
}

/* The workspace of a wave's groups. */
struct needs {
    size_t size, inner; /* bytes of all groups, and of a thread's largest product */
    size_t down, gate;  /* bytes of a transposed row of down, of a task's rows of gate */
    int most, tile;     /* numbers in a task's outputs; rows of y that share a decoded panel */
};
/* Selects the tasks of a group, and its places in the workspace. */
static void prepare_group(const struct wave *w, struct group *g, struct needs *s) {
    const struct cpu_exec *x = w->x;
    const struct op_experts *o = w->o;
    const struct expert *e = g->expert;
    const struct mat *m[MATRICES] = {&e->gate, expert_up(e), &e->down};
    const bool transposed[MATRICES] = {e->gate_up_transposed, e->gate_up_transposed, e->is_transposed};
    const int n_threads = pool_threads(x->pool);
    int per = (int)(TASK_BYTES / dtype_bytes(e->gate.dtype, (size_t)o->hidden)) / 4 * 4, panel = 0;
    g->inter = expert_inter(e);
    /* up to a point, every thread takes part in each expert */
    int even = g->inter / (n_threads < 8 ? n_threads : 8) / 4 * 4;
    per = per < even ? per : even;
    g->rows_per_task = cpu_exec_task_rows(per, 4, TASK_ROWS);
    for (int k = 0; k < MATRICES; k++) {
        const struct gemm *gemm = g->gemm[k];
        if (!gemm) continue;
        const int cols = k == DOWN ? g->inter : o->hidden;
        const size_t scratch = gemm->scratch_bytes(g->n, cols);
        s->inner = scratch > s->inner ? scratch : s->inner;
        const size_t *shared = k == DOWN ? NULL : shared_packed_x(w, g, k);
        if (shared) g->packed[k] = *shared;
        else g->packed[k] = s->size, s->size += align64(gemm->packed_bytes(g->n, cols));
        if (k != DOWN) g->rows_per_task = round_up(g->rows_per_task, 16);
        if (g->n <= GEMM_SKINNY_MAX && gemm != gemm_for(x->level, o->wide)) continue;
        if (k == DOWN) s->tile = gemm->row_tile > s->tile ? gemm->row_tile : s->tile;
        else panel = gemm->row_tile > panel ? gemm->row_tile : panel;
    }
    if (panel) g->rows_per_task = round_up(MANY_ROWS, panel);
    s->most = g->n * g->rows_per_task * 2 > s->most ? g->n * g->rows_per_task * 2 : s->most;
    const size_t row = g->gemm[DOWN] && transposed[DOWN] ? dtype_bytes(e->down.dtype, (size_t)g->inter) : 0;
    s->down = row > s->down ? row : s->down;
    for (int k = GATE; k <= UP; k++) {
        const size_t rows =
            g->gemm[k] && transposed[k] ? dtype_bytes(m[k]->dtype, (size_t)o->hidden) * (size_t)g->rows_per_task : 0;
        s->gate = rows > s->gate ? rows : s->gate;
    }
    g->h = s->size, s->size += align64((size_t)g->n * (size_t)g->inter * 4);
    if (e->gate.order) g->x = s->size, s->size += align64((size_t)g->n * (size_t)o->hidden * 4);
}

static int wave_run(struct wave *w) {
    struct cpu_exec *x = w->x;
    const struct op_experts *o = w->o;
    const int n_threads = pool_threads(x->pool);
    struct needs need = {.tile = 16};
    bool any_loading = false;
    w->any_gemm = w->any_order = false;
    for (int i = 0; i < w->n; i++) {
        struct group *g = &w->groups[i];
        prepare_group(w, g, &need);
        w->any_gemm |= g->gemm[GATE] || g->gemm[UP], w->any_order |= g->expert->gate.order != NULL;
        any_loading |= o->is_loading && g->id < o->n_experts && o->is_loading[g->id];
        g->tasks = 0;
        for (int a = 0; a < w->nodes; a++)
            g->tasks += (expert_inter(w->node_parts[a * w->n + i].expert) + g->rows_per_task - 1) / g->rows_per_task;
    }
    int tile = need.tile;
    /* else there would be fewer tasks than threads; fewer rows then share a decoded panel */
    if (tile > PANEL && o->hidden < tile * n_threads) tile = PANEL;
    w->y_rows_per_task = round_up(o->hidden / (n_threads * 4), tile);
    int cap = round_up(256, tile), floor = 16;
    w->y_rows_per_task = w->y_rows_per_task < floor ? floor : w->y_rows_per_task > cap ? cap : w->y_rows_per_task;
    for (int a = 0; a < w->nodes; a++)
        w->begin[a + 1] = w->begin[a] + (y_rows(o, a) + w->y_rows_per_task - 1) / w->y_rows_per_task;
    for (int i = 0; i < w->n; i++)
        need.most = w->groups[i].n * w->y_rows_per_task > need.most ? w->groups[i].n * w->y_rows_per_task : need.most;
    w->tile_bytes = align64((size_t)need.most * 4);
    w->gemm_scratch_bytes = align64(need.inner);
    need.down *= (size_t)w->y_rows_per_task;
    w->scratch_part = w->tile_bytes + w->gemm_scratch_bytes + align64(need.down > need.gate ? need.down : need.gate);
    size_t counters = (size_t)w->n * sizeof *w->counters,
           order = any_loading ? align64((size_t)(w->n * w->nodes) * sizeof *w->start_order) : 0;
    uint8_t *space = cpu_exec_workspace(x, counters + order + need.size + w->scratch_part * (size_t)n_threads);
    if (!space) return ERR_MEMORY;
    w->counters = (struct counter *)space, space += counters;
    w->start_order = (int32_t *)space, space += order;
    w->space = space;
    w->scratch = w->space + need.size;
    for (int i = 0; i < w->n; i++)
        atomic_init(&w->counters[i].left, w->groups[i].tasks + (w->groups[i].gemm[DOWN] != NULL));
    number_tasks(w, any_loading);
    int64_t elements = 0;
    for (int i = 0; i < w->n; i++) elements += (int64_t)w->groups[i].n * o->hidden;
    if (w->any_order) TRY(cpu_exec_for_elements(x, elements, n_threads, order_task, w));
    if (w->any_gemm) TRY(cpu_exec_for_elements(x, elements, n_threads, pack_task, w));
    distribute_tasks(w);
    pool_share(x->pool, wave_thread, w);
    return cpu_exec_is_cancelled(x) ? ERR_CANCELLED : 0;
}

/* --- The call -------------------------------------------------------------------------------- */

/* Each node's part of groups [0, n), in order of node. */
static void split_groups(const struct op_experts *o, const struct group *groups, int n, int nodes,
                         struct node_part *out) {
    for (int i = 0; i < n; i++)
        for (int a = 0, row = 0; a < nodes; a++) {
            const struct expert *e =
                o->shards ? &o->shards->part[(size_t)groups[i].id * (size_t)nodes + (size_t)a] : groups[i].expert;
            out[a * n + i] = (struct node_part){.expert = e, .group = i, .row = row};
            row += expert_inter(e);
        }
}

int cpu_experts(struct exec *base, const struct op_experts *o) {
    struct cpu_exec *x = (struct cpu_exec *)base;
    struct expert_groups p = {0};
    struct wave w = {.x = x, .o = o, .nodes = o->shards ? o->shards->n_nodes : 1};
    int rc = o->n > 0 ? expert_groups_make(x, o, &p) : 0;
    if (!rc && p.n && !(w.node_parts = mem_alloc((size_t)p.n * (size_t)w.nodes * sizeof *w.node_parts)))
        rc = ERR_MEMORY;
    for (int at = 0; !rc && at < p.n; at += w.n) {
        int tokens = 0;
        w.groups = p.groups + at;
        for (w.n = 0; at + w.n < p.n && (!w.n || tokens + w.groups[w.n].n <= WAVE_MAX_ROWS); w.n++)
            tokens += w.groups[w.n].n;
        split_groups(o, w.groups, w.n, w.nodes, w.node_parts);
        rc = wave_run(&w);
    }
    mem_free(w.node_parts);
    expert_groups_free(&p);
    return rc;
}
