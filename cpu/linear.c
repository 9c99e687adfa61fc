/* y = W x. For few tokens reading W dominates, and the GEMV kernels (or gemm_skinny, gemm_int8_few, gemm_int8_avx2)
 * read it once for KERNEL_TOKENS of them; for more tokens arithmetic dominates, and gemm.h decodes a tile of W once for
 * all tokens. Up to BATCH_INVARIANT_ROWS tokens, and with `exact`, the former is always used: a token has the same bits
 * alone and in a batch. */
#include <math.h>
#include <string.h>

#include "base/mem.h"
#include "cpu/cpu_exec.h"
#include "cpu/gemm.h"

enum {
    TASK_BYTES = 512 << 10, /* weight bytes per task, at most: long sequential reads are faster */
    TASK_ROWS = 256,        /* at most; the width of the tile on the stack */
    TASK_COLS = 256,        /* columns of a transposed product */
};

struct row_max { /* over the rows of a task */
    float value;
    int32_t row;
};
struct job {
    struct cpu_exec *x;
    const struct op_linear *o;
    int per, parts;       /* rows or columns per task; tasks per matrix of the batch */
    struct row_max *tops; /* [parts, n] if o->top */
};

/* --- Argmax, while a task's outputs are still in the cache ------------------------------------ */

static void find_row_max(struct row_max *t, const float *y, int r0, int r1) {
    *t = (struct row_max){-INFINITY, r0};
    for (int r = r0; r < r1; r++) {
        if (y[r] > t->value) *t = (struct row_max){y[r], r};
        if (isnan(y[r])) {
            t->row = -1;
            return;
        }
    }
}
static void merge_row_max(const struct op_linear *o, const struct row_max *tops, int parts) {
    for (int i = 0; i < o->n; i++) {
        struct row_max best = tops[i];
        for (int p = 1; p < parts && best.row >= 0; p++) {
            const struct row_max *t = &tops[(size_t)p * (size_t)o->n + (size_t)i];
            if (t->row < 0 || t->value > best.value) best = *t;
        }
        o->top[i] = best.row;
    }
}

/* Stores rows [0, rows) of a task: adds bias and the previous content. */
static void store_rows(const struct op_linear *o, float *y, const float *tile, int row, int rows) {
    for (int i = 0; i < rows; i++) {
        float v = o->accumulate ? y[i] + tile[i] : tile[i];
        y[i] = o->bias ? v + o->bias[row + i] : v;
    }
}

static void rows_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_linear *o = j->o;
    int b = task / j->parts, r0 = task % j->parts * j->per, r1 = r0 + j->per < o->w.rows ? r0 + j->per : o->w.rows;
    struct mat w = mat_rows(o->w, b * o->batch_rows + r0, b * o->batch_rows + r1);
    const float *x = o->x + (size_t)b * (size_t)o->batch_x;
    float *y = o->y + (size_t)b * (size_t)o->batch_y + r0;
    float tile[KERNEL_TOKENS][TASK_ROWS];
    bool direct = !o->accumulate && !o->bias;
    for (int t = 0; t < o->n; t += KERNEL_TOKENS) {
        const float *xs[KERNEL_TOKENS];
        float *ys[KERNEL_TOKENS];
        int n = o->n - t < KERNEL_TOKENS ? o->n - t : KERNEL_TOKENS;
        for (int i = 0; i < n; i++) {
            xs[i] = x + (size_t)(t + i) * (size_t)o->ldx;
            ys[i] = direct ? y + (size_t)(t + i) * (size_t)o->ldy : tile[i];
        }
        kernels_gemv(&j->x->k, w.dtype, o->exact)(ys, xs, n, &w);
        for (int i = 0; i < n && !direct; i++)
            store_rows(o, y + (size_t)(t + i) * (size_t)o->ldy, tile[i], r0, r1 - r0);
        for (int i = 0; i < n && j->tops; i++)
            find_row_max(&j->tops[(size_t)task * (size_t)o->n + (size_t)(t + i)],
                         y - r0 + (size_t)(t + i) * (size_t)o->ldy, r0, r1);
    }
}

static void cols_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    const struct op_linear *o = j->o;
    int b = task / j->parts, c0 = task % j->parts * j->per, c1 = c0 + j->per < o->w.cols ? c0 + j->per : o->w.cols;
    struct mat w = mat_rows(o->w, b * o->batch_rows, b * o->batch_rows + o->w.rows);
    const float *x = o->x + (size_t)b * (size_t)o->batch_x;
    float *y = o->y + (size_t)b * (size_t)o->batch_y + c0;
    float tile[KERNEL_TOKENS][TASK_COLS];
    for (int t = 0; t < o->n; t += KERNEL_TOKENS) {
        const float *xs[KERNEL_TOKENS];
        float *ys[KERNEL_TOKENS];
        int n = o->n - t < KERNEL_TOKENS ? o->n - t : KERNEL_TOKENS;
        for (int i = 0; i < n; i++) xs[i] = x + (size_t)(t + i) * (size_t)o->ldx, ys[i] = tile[i];
        j->x->k.gevm[w.dtype](ys, xs, n, &w, c0, c1);
        for (int i = 0; i < n; i++) store_rows(o, y + (size_t)(t + i) * (size_t)o->ldy, tile[i], c0, c1 - c0);
    }
}

/* The number of tokens that kernels are chosen for: of short prompts, as for each alone. */
static int chosen_rows(const struct cpu_exec *x, int n) {
    const bool is_few = x->base.prompts && x->base.prompts->is_few;
    return is_few && n > BATCH_INVARIANT_ROWS ? BATCH_INVARIANT_ROWS : n;
}

/* Many tokens: threads pack a part of the activations each, then take ranges of rows; few are packed by each thread for
 * itself, in less time than one takes to read what another has packed. A batch (the heads of an up-projection) runs in
 * groups whose packed activations fit PACKED_BYTES; an x shared by the batch is packed once. */
enum { PACKED_BYTES = 64 << 20 };
struct gemm_call {
    struct cpu_exec *x;
    const struct op_linear *o;
    const struct gemm *g;
    int first;      /* matrix of the batch in this group */
    int packs;      /* packed x: one for each of the group's, or one for all */
    bool is_alone;  /* each thread has its own packed x */
    int per, parts; /* rows per task, tasks per matrix */
    uint8_t *packed, *scratch;
    size_t packed_part, scratch_part;
    struct row_max *tops; /* [parts, n] if o->top */
};
static uint8_t *packed_x(const struct gemm_call *m, int thread) {
    return m->packed + (m->is_alone ? (size_t)(thread * m->packs) * m->packed_part : 0);
}
static void pack_part(const struct gemm_call *m, int i, uint8_t *packed, int part, int parts) {
    const struct op_linear *o = m->o;
    m->g->pack(packed + (size_t)i * m->packed_part, o->x + (size_t)(m->first + i) * (size_t)o->batch_x, NULL, o->ldx,
               o->n, o->w.cols, part, parts);
}
static void pack_task(void *arg, int task, int thread) {
    const struct gemm_call *m = arg;
    const int parts = pool_threads(m->x->pool);
    pack_part(m, task / parts, m->packed, task % parts, parts);
}
static void gemm_task(const struct gemm_call *m, int task, int thread) {
    const struct op_linear *o = m->o;
    int i = task / m->parts, b = m->first + i, r0 = task % m->parts * m->per,
        r1 = r0 + m->per < o->w.rows ? r0 + m->per : o->w.rows;
    struct mat w = mat_rows(o->w, b * o->batch_rows, b * o->batch_rows + o->w.rows);
    float *y = o->y + (size_t)b * (size_t)o->batch_y;
    m->g->rows(&w, r0, r1, packed_x(m, thread) + (m->packs > 1 ? (size_t)i * m->packed_part : 0), o->n, y, o->ldy,
               o->accumulate, m->scratch + (size_t)thread * m->scratch_part);
    for (int t = 0; t < o->n && o->bias; t++)
        for (int r = r0; r < r1; r++) y[(size_t)t * (size_t)o->ldy + (size_t)r] += o->bias[r];
    for (int t = 0; t < o->n && m->tops; t++)
        find_row_max(&m->tops[(size_t)task * (size_t)o->n + (size_t)t], y + (size_t)t * (size_t)o->ldy, r0, r1);
}
static void gemm_thread(void *arg, int thread, int n_threads) {
    const struct gemm_call *m = arg;
    for (int i = 0; i < m->packs && m->is_alone; i++) pack_part(m, i, packed_x(m, thread), 0, 1);
    for (int task; !cpu_exec_is_cancelled(m->x) && (task = cpu_exec_next_task(m->x, 0, thread)) >= 0;)
        gemm_task(m, task, thread);
}
static int run_gemm(struct cpu_exec *x, const struct op_linear *o, int batch, const struct gemm *g) {
    int n_threads = pool_threads(x->pool);
    struct gemm_call m = {.x = x, .o = o, .g = g};
    m.packed_part = (m.g->packed_bytes(o->n, o->w.cols) + 63) / 64 * 64;
    m.scratch_part = (m.g->scratch_bytes(o->n, o->w.cols) + 63) / 64 * 64;
    bool one = batch == 1 || !o->batch_x;
    int group = one ? batch : (int)(PACKED_BYTES / m.packed_part);
    group = group < 1 ? 1 : group > batch ? batch : group;
    m.is_alone = (int64_t)o->n * o->w.cols * (one ? 1 : group) <= CPU_EXEC_GRAIN;
    size_t packed = m.packed_part * (size_t)(one ? 1 : group) * (size_t)(m.is_alone ? n_threads : 1),
           scratch = m.scratch_part * (size_t)n_threads;
    int share = o->w.rows / (n_threads * 4) * group, tile = m.g->row_tile;
    if (chosen_rows(x, o->n) <= BATCH_INVARIANT_ROWS) { /* reading W dominates */
        int most = (int)(TASK_BYTES / dtype_bytes(o->w.dtype, (size_t)o->w.cols));
        share = share < most ? share : most, tile = 8;
    }
    m.per = share > tile ? share / tile * tile : tile;
    m.parts = (o->w.rows + m.per - 1) / m.per;
    m.packed = cpu_exec_workspace(x, packed + scratch + (o->top ? (size_t)m.parts * (size_t)o->n * sizeof *m.tops : 0));
    if (!m.packed) return ERR_MEMORY;
    m.scratch = m.packed + packed;
    if (o->top) m.tops = (struct row_max *)(m.scratch + scratch);
    for (m.first = 0; m.first < batch; m.first += group) {
        int count = batch - m.first < group ? batch - m.first : group;
        m.packs = one ? 1 : count;
        if (!m.is_alone) TRY(cpu_exec_for_each(x, m.packs * n_threads, pack_task, &m));
        cpu_exec_split_tasks(x, 0, count * m.parts);
        pool_share(x->pool, gemm_thread, &m);
        if (cpu_exec_is_cancelled(x)) return ERR_CANCELLED;
    }
    if (o->top) merge_row_max(o, m.tops, m.parts);
    return 0;
}

/* Sorts x, then multiplies. */
static void order_task(void *arg, int task, int thread) {
    const struct job *j = arg;
    mat_order_x(&j->o->w, j->x->ordered + (size_t)task * (size_t)j->o->w.cols,
                j->o->x + (size_t)task * (size_t)j->o->ldx);
}
static int run_ordered(struct cpu_exec *x, const struct op_linear *o) {
    struct op_linear sorted = *o;
    if (o->transposed || o->batch > 1) return ERR_RUNTIME;
    if (mem_grow(&x->ordered, &x->ordered_cap, (size_t)o->n * (size_t)o->w.cols, sizeof *x->ordered)) return ERR_MEMORY;
    int rc = cpu_exec_for_each(x, o->n, order_task, &(struct job){.x = x, .o = o});
    sorted.x = x->ordered, sorted.ldx = o->w.cols, sorted.w.order = NULL;
    return rc ? rc : cpu_linear(&x->base, &sorted);
}

int cpu_linear(struct exec *base, const struct op_linear *o) {
    struct job j = {.x = (struct cpu_exec *)base, .o = o};
    int batch = o->batch > 1 ? o->batch : 1;
    if (o->top && (o->transposed || batch > 1)) return ERR_RUNTIME;
    if (!j.x->k.gemv[o->w.dtype]) return ERR_RUNTIME;
    if (o->n <= 0 || o->w.rows <= 0 || o->w.cols <= 0) return 0;
    if (o->w.order) return run_ordered(j.x, o);
    if (o->transposed) {
        j.per = TASK_COLS;
        j.parts = (o->w.cols + j.per - 1) / j.per;
        return cpu_exec_for_each(j.x, batch * j.parts, cols_task, &j);
    }
    const int as = chosen_rows(j.x, o->n);
    const struct gemm *special = gemm_for_weights(j.x->level, as, as, o->wide, &o->w);
    if (!o->exact && special && special->supports(&o->w, o->n)) return run_gemm(j.x, o, batch, special);
    if (!o->exact && as > BATCH_INVARIANT_ROWS) return run_gemm(j.x, o, batch, gemm_for(j.x->level, o->wide));
    size_t row = dtype_bytes(o->w.dtype, (size_t)o->w.cols);
    int share = o->w.rows * batch / (pool_threads(j.x->pool) * 4); /* enough tasks for an even distribution */
    j.per = (int)(TASK_BYTES / row) / 8 * 8;
    if (j.per > share) j.per = share / 8 * 8;
    j.per = cpu_exec_task_rows(j.per, 8, TASK_ROWS);
    j.parts = (o->w.rows + j.per - 1) / j.per;
    if (o->top && !(j.tops = cpu_exec_workspace(j.x, (size_t)j.parts * (size_t)o->n * sizeof *j.tops)))
        return ERR_MEMORY;
    int rc = cpu_exec_for_each(j.x, batch * j.parts, rows_task, &j);
    if (!rc && o->top) merge_row_max(o, j.tops, j.parts);
    return rc;
}
