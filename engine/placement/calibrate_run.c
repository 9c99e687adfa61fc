/* Calibration of this machine. Each time is the minimum of the passes that fit its slice, since disturbances only add
 * time. For the same reason rates never decrease with rows. A row count that would take a sixth of the time budget is
 * skipped, and the curve is constant from there. */
#include "engine/placement/calibrate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "cpu/cpu.h"
#include "cpu/numa.h"
#include "engine/placement/calibrate_cache.h"
#include "engine/placement/calibrate_numa.h"
#include "gpu/gpu.h"
#include "gpu/op.h"

/* Most passes of a figure; most rows on a device; most experts, and rows of all experts, in a pass on the CPU; rows up
 * to which a pass takes as long as reading its weights; multiple of rows in which experts are split by NUMA node;
 * queries of attention that only devices are asked for. */
enum {
    PASSES = 50,
    MOST_ROWS = 4096,
    MOST_EXPERTS = 32,
    MOST_EXPERT_ROWS = 1024,
    READ_BOUND_ROWS = 16,
    ROWS_UNIT = 32,
    LONG_PROMPT = 2048
};

/* The executor under test: the CPU, or a device through a stream. Buffers are in its own memory. */
struct bench {
    const struct calibrate_options *o;
    struct exec *x;
    struct gpu *gpu; /* NULL: the CPU */
    struct gpu_stream *stream;
    struct gpu_event *begin, *end;
    uint8_t *weights;          /* [bytes] finite values in every format */
    float *scales, *in, *out;  /* in, out: [rows, hidden] */
    float *ones;               /* [rows] router weights for the CPU's experts operation, */
    int32_t *ids;              /* and its experts */
    size_t bytes, at;          /* offset of the next matrix, so that it is not cached */
    int n_nodes;               /* NUMA nodes that experts are split over; 0: not split */
    uint8_t *node[COST_NODES]; /* [bytes / n_nodes] on each */
    size_t node_at[COST_NODES];
    int hidden, inter;  /* shape of the expert; linear layers are [hidden, hidden] */
    int rows;           /* capacity of in and out */
    double slice, most; /* seconds per figure; most seconds per pass */
};

/* --- Passes: each enqueues or runs one operation and sets the bytes read and FLOP ------------- */

struct measured_op {
    enum cost_kind kind;
    uint8_t format; /* enum dtype of weights, keys and values */
    int rows, n;    /* rows per expert, matrix or query; experts per pass */
    bool is_tiny;
    double bytes, flops; /* out: per item of n */
};
static struct mat matrix_at(struct bench *s, uint8_t *from, size_t bytes, size_t *at, int rows, int cols,
                            uint8_t format) {
    struct mat m = {.rows = rows,
                    .cols = cols,
                    .row_step = 1,
                    .block_rows = 128,
                    .block_cols = 128,
                    .dtype = format,
                    .stride = dtype_bytes(format, (size_t)cols)};
    size_t size = m.stride * (size_t)rows;
    if (*at + size > bytes) *at = 0;
    m.data = from + *at;
    *at += (size + 4095) & ~(size_t)4095;
    if (format == DT_E4M3) m.scale = s->scales, m.scale_dtype = DT_F32, m.scale_stride = (cols + 127) / 128;
    return m;
}
static struct mat next_matrix(struct bench *s, int rows, int cols, uint8_t format) {
    return matrix_at(s, s->weights, s->bytes, &s->at, rows, cols, format);
}
/* Splits an expert by rows over the NUMA nodes, as numa_copy.c does. part: [n_nodes]. */
static void split_expert(struct bench *s, struct expert *part, int hidden, int inter, uint8_t format) {
    struct numa_part i[NUMA_NODES], h[NUMA_NODES];
    numa_split(s->o->nodes, inter, ROWS_UNIT, i), numa_split(s->o->nodes, hidden, ROWS_UNIT, h);
    for (int a = 0; a < s->n_nodes; a++) {
        size_t bytes = s->bytes / (size_t)s->n_nodes, *at = &s->node_at[a];
        part[a] = (struct expert){.gate = matrix_at(s, s->node[a], bytes, at, i[a].count, hidden, format),
                                  .up = matrix_at(s, s->node[a], bytes, at, i[a].count, hidden, format),
                                  .down = matrix_at(s, s->node[a], bytes, at, h[a].count, inter, format)};
    }
}

static int ffn_pass(struct bench *s, struct measured_op *t) {
    struct expert e[MOST_EXPERTS], part[MOST_EXPERTS * COST_NODES];
    int32_t cut[COST_NODES + 1] = {0};
    struct expert_shards shards = {part, cut, s->n_nodes};
    int hidden = t->is_tiny ? 128 : s->hidden, inter = t->is_tiny ? 128 : s->inter;
    for (int k = 0; k < t->n; k++) {
        struct mat gate = next_matrix(s, inter, hidden, t->format), up = next_matrix(s, inter, hidden, t->format);
        e[k] = (struct expert){.gate = gate, .up = up, .down = next_matrix(s, hidden, inter, t->format)};
    }
    for (int k = 0; k < t->n && s->n_nodes; k++) split_expert(s, part + k * s->n_nodes, hidden, inter, t->format);
    for (int a = 0; a < s->n_nodes; a++) cut[a + 1] = cut[a] + part[a].down.rows;
    t->bytes = 3.0 * (double)dtype_bytes(t->format, (size_t)hidden * (size_t)inter),
    t->flops = 6.0 * hidden * inter * t->rows;
    for (int i = 0; i < t->rows * t->n && !s->gpu; i++) s->ids[i] = i / t->rows;
    if (!s->gpu)
        return s->x->ops->experts(s->x, &(struct op_experts){.y = s->out,
                                                             .x = s->in,
                                                             .ids = s->ids,
                                                             .weights = s->ones,
                                                             .experts = e,
                                                             .shards = s->n_nodes ? &shards : NULL,
                                                             .n = t->rows * t->n,
                                                             .topk = 1,
                                                             .n_experts = t->n,
                                                             .hidden = hidden});
    int rc = 0;
    for (int k = 0; k < t->n && !rc; k++)
        rc = op_run(s->x, OP_FFN,
                    &(struct op_ffn){.y = s->out, .x = s->in, .expert = e[k], .n = t->rows, .hidden = hidden});
    return rc;
}
static int linear_pass(struct bench *s, struct measured_op *t) {
    int cols = t->is_tiny ? 128 : s->hidden, rows = t->is_tiny ? 128 : s->hidden, rc = 0;
    t->bytes = (double)dtype_bytes(t->format, (size_t)cols * (size_t)rows), t->flops = 2.0 * cols * rows * t->rows;
    for (int k = 0; k < t->n && !rc; k++)
        rc = s->x->ops->linear(s->x, &(struct op_linear){.y = s->out,
                                                         .x = s->in,
                                                         .w = next_matrix(s, rows, cols, t->format),
                                                         .n = t->rows,
                                                         .ldx = cols,
                                                         .ldy = rows});
    return rc;
}
/* One row: 32 heads over 8,192 keys with 4 KV heads, bound by reading. rows < 0: one row, 128 heads over one latent,
 * bound by arithmetic. LONG_PROMPT rows: over twice as many keys, which fill a device. */
static int attention_pass(struct bench *s, struct measured_op *t) {
    bool latent = t->rows < 0;
    int n = latent ? 1 : t->rows, heads = latent ? 128 : 32, kv = latent ? 1 : 4, dim = latent ? 576 : 128,
        v = latent ? 512 : 128,
        keys = t->is_tiny ? 64 /* different keys each time, as earlier layers have evicted a short cache from L2 */
               : n == LONG_PROMPT ? 2 * LONG_PROMPT
               : n > 1            ? 1024
                                  : 8192,
        rc = 0;
    size_t plane = dtype_bytes(t->format, (size_t)keys * (size_t)kv * (size_t)dim);
    t->bytes = (latent ? 1.0 : 2.0) * (double)plane;
    t->flops = (double)n * (keys - (n - 1) / 2.0) * heads * 2 * (dim + v);
    for (int k = 0; k < t->n && !rc; k++) {
        if (s->at + 2 * plane > s->bytes) s->at = 0;
        struct op_attention o = {.out = s->out,
                                 .q = s->in,
                                 .n = n,
                                 .n_heads = heads,
                                 .v_dim = v,
                                 .scale = 0.01f,
                                 .ldq = heads * dim,
                                 .ldo = heads * v,
                                 .n_keys = keys,
                                 .q_pos0 = keys - n};
        o.k = o.v = (struct kv_plane){.data = s->weights + s->at, .heads = kv, .dim = dim, .dtype = t->format};
        if (!latent) o.v.data = s->weights + s->at + plane;
        s->at += (2 * plane + 4095) & ~(size_t)4095;
        rc = s->x->ops->attention(s->x, &o);
    }
    return rc;
}
static int elem_pass(struct bench *s, struct measured_op *t) {
    int n = t->is_tiny ? 1 : t->rows, m = t->is_tiny ? 64 : s->hidden, rc = 0;
    t->bytes = 8.0 * n * m;
    for (int k = 0; k < t->n && !rc; k++) {
        rc = s->x->ops->norm(
            s->x, &(struct op_norm){.out = s->out, .x = s->in, .rows = n, .dim = m, .ldx = m, .ldo = m, .eps = 1e-6f});
        if (!rc && s->gpu) rc = gpu_stream_flush(s->stream); /* or the stream would join them */
    }
    return rc;
}
static int (*const run_pass[COST_KINDS])(struct bench *, struct measured_op *) = {ffn_pass, linear_pass, attention_pass,
                                                                                  elem_pass};

/* --- Timing ----------------------------------------------------------------------------------- */

static int time_pass(struct bench *s, struct measured_op *t, double *seconds) {
    double begin = clock_now();
    int rc = s->gpu ? gpu_event_record(s->begin, s->stream) : 0;
    if (!rc) rc = run_pass[t->kind](s, t);
    if (!rc && s->gpu) rc = gpu_event_record(s->end, s->stream);
    if (!rc && s->gpu) rc = gpu_stream_sync(s->stream);
    *seconds = s->gpu ? gpu_event_elapsed(s->begin, s->end) : clock_now() - begin;
    if (!rc && s->o->cancel && atomic_load(s->o->cancel)) rc = ERR_CANCELLED;
    return rc;
}
/* Seconds per item of n: the minimum of the passes that fit the slice. */
static int time_best(struct bench *s, struct measured_op *t, double *seconds) {
    double begin = clock_now(), v;
    int rc = 0;
    *seconds = INFINITY;
    for (int n = 0; !rc && n < PASSES && (n < 1 || clock_now() - begin < s->slice); n++) {
        rc = time_pass(s, t, &v);
        if (!rc && v / t->n < *seconds) *seconds = v / t->n;
    }
    return rc;
}

static void add_point(struct cost_curve *c, double rows, double value, bool rising) {
    if (!(value > 0) || !isfinite(value) || c->n == COST_POINTS) return;
    if (rising && c->n && value < (double)c->value[c->n - 1]) value = (double)c->value[c->n - 1];
    c->rows[c->n] = (float)rows, c->value[c->n++] = (float)value;
}

/* --- One executor ----------------------------------------------------------------------------- */

/* The CPU uses different kernels above BATCH_INVARIANT_ROWS rows, so experts are measured for both cases and matrices
 * on both sides of the limit. */
static const struct plan {
    enum cost_kind kind;
    uint8_t format;
    enum cost_format as;
    bool few;
    int rows[12]; /* 0-terminated */
} measure_plans[] = {
    {COST_FFN, DT_E4M3, COST_8BIT, false, {1, 2, 4, 8, 16, 32, 64, 256, 1024, 4096}},
    {COST_FFN, DT_E4M3, COST_8BIT, true, {1, 2, 4, 8, BATCH_INVARIANT_ROWS}},
    {COST_FFN, DT_Q4_K, COST_4BIT, false, {1, 4, 16, 64, 256, 1024}},
    {COST_FFN, DT_Q4_K, COST_4BIT, true, {1, 4, 8, BATCH_INVARIANT_ROWS}},
    {COST_FFN, DT_BF16, COST_16BIT, false, {1, 4, 16, 64, 256, 1024}},
    {COST_FFN, DT_BF16, COST_16BIT, true, {1, 4, BATCH_INVARIANT_ROWS}},
    {COST_LINEAR,
     DT_E4M3,
     COST_8BIT,
     false,
     {1, 2, 4, 8, BATCH_INVARIANT_ROWS, BATCH_INVARIANT_ROWS + 1, 64, 256, 1024, 4096}},
    {COST_LINEAR, DT_Q4_K, COST_4BIT, false, {1, 8, BATCH_INVARIANT_ROWS, BATCH_INVARIANT_ROWS + 1, 256}},
    {COST_LINEAR, DT_BF16, COST_16BIT, false, {1, 4, BATCH_INVARIANT_ROWS, BATCH_INVARIANT_ROWS + 1, 256, 1024}},
    {COST_LINEAR, DT_F32, COST_F32, false, {1, 16}},
    {COST_ATTENTION, DT_BF16, COST_16BIT, false, {1, -1, 64, 256, LONG_PROMPT}},
    {COST_ELEM, DT_F32, COST_F32, false, {2048}},
};

/* Experts or matrices per pass: several where rows are few, as in real batches. */
static int items_per_pass(const struct bench *s, const struct plan *p, int rows) {
    if (p->kind != COST_FFN && p->kind != COST_LINEAR) return 1;
    if (p->kind == COST_FFN && !s->gpu && p->few)
        return rows * 4 <= BATCH_INVARIANT_ROWS ? 4 : BATCH_INVARIANT_ROWS / rows;
    if (p->kind == COST_FFN && !s->gpu) /* more rows than L2 holds */
        return rows <= MOST_EXPERT_ROWS / MOST_EXPERTS ? MOST_EXPERTS
               : rows <= MOST_EXPERT_ROWS              ? MOST_EXPERT_ROWS / rows
                                                       : 1;
    return rows <= 64 ? 4 : rows <= 256 ? 2 : 1;
}

/* Passes of attention with many queries. */
struct prompt_pass {
    double rows, seconds, flops;
};
/* Splits the times of a device's passes into a latency by queries and the rate of the arithmetic beyond it, which the
 * two largest passes tell: 256 queries do not fill a device, but split their keys into parts that are then added, so
 * their FLOP over their time is no rate that a long prompt would have. */
static void split_latency(struct cost_domain *d, const struct prompt_pass *p, int n) {
    struct cost_curve *rate = &d->rate[COST_ATTENTION][COST_16BIT], *latency = &d->prompt_latency;
    if (n < 2 || p[n - 1].rows < LONG_PROMPT) return;
    const double few = cost_at(rate, BATCH_INVARIANT_ROWS), apparent = p[n - 1].flops / p[n - 1].seconds;
    double beyond = (p[n - 1].flops - p[n - 2].flops) / (p[n - 1].seconds - p[n - 2].seconds);
    if (!(beyond > apparent)) beyond = apparent;      /* the shorter pass had no latency, or was disturbed */
    if (beyond > 2 * apparent) beyond = 2 * apparent; /* the longer one was */
    while (rate->n && rate->rows[rate->n - 1] >= BATCH_INVARIANT_ROWS) rate->n--;
    add_point(rate, BATCH_INVARIANT_ROWS, few, false);
    add_point(rate, BATCH_INVARIANT_ROWS + 1, beyond, false);
    for (int i = 0; i < n; i++)
        add_point(latency, p[i].rows, fmax(p[i].seconds - p[i].flops / beyond, d->latency[COST_ATTENTION]), false);
}

/* Measures latencies, then rates. A rate is computed from an operation's time minus its latency. Bandwidth is the best
 * observed, so bytes over bandwidth are never counted twice. */
static int measure_domain(struct bench *s, struct cost_domain *d, double *best) {
    int rc = 0;
    for (int k = 0; k < COST_KINDS && !rc; k++) {
        struct measured_op t = {.kind = (enum cost_kind)k,
                                .format = k == COST_ATTENTION ? DT_BF16
                                          : k == COST_ELEM    ? DT_F32
                                                              : DT_E4M3,
                                .rows = 1,
                                .n = s->gpu ? 8 : 1,
                                .is_tiny = true};
        rc = time_best(s, &t, &d->latency[k]);
    }
    for (size_t i = 0; i < sizeof measure_plans / sizeof *measure_plans && !rc; i++) {
        const struct plan *p = &measure_plans[i];
        double bw = d->bw[p->kind].n ? (double)d->bw[p->kind].value[0] : 0, took = 0, read = 0;
        /* their rows are split by node, too, once they are copied */
        if (s->n_nodes && p->kind == COST_LINEAR) bw = fmax(bw, (double)d->bw[COST_FFN].value[0]);
        struct cost_curve *rate = p->few ? &d->rate_few_rows[p->as] : &d->rate[p->kind][p->as];
        struct prompt_pass prompt[sizeof p->rows / sizeof *p->rows];
        int n_prompt = 0;
        for (int k = 0, last = 0; p->rows[k] && !rc && !(p->few && s->gpu); k++) {
            int rows = p->kind == COST_ELEM && p->rows[k] > s->rows ? s->rows : p->rows[k], n = abs(rows);
            struct measured_op t = {.kind = p->kind, .format = p->format, .rows = rows, .n = items_per_pass(s, p, n)};
            const bool is_long = p->kind == COST_ATTENTION && n == LONG_PROMPT;
            if (is_long && !s->gpu) break;
            /* up to a few rows the time is the read time; a long prompt has four times the keys, too */
            const double more = (last && n > READ_BOUND_ROWS ? (double)n / last : 1) * (is_long ? 4 : 1);
            const int least = p->kind == COST_FFN && !s->gpu && !p->few ? BATCH_INVARIANT_ROWS / n + 1 : 1;
            /* a slow or busy machine */
            while (rows > 0 && t.n > least && took * more * t.n > s->most) t.n = t.n / 2 > least ? t.n / 2 : least;
            if (n > s->rows || (last && rows > 0 && took * more * t.n > s->most)) break;
            rc = time_best(s, &t, &took);
            bool together = p->kind == COST_FFN && !s->gpu; /* the CPU runs all experts in one operation */
            double own = took - d->latency[p->kind] / (together ? t.n : 1);
            /* the latency was disturbed: rather count it twice than report an unreachable rate */
            if (own < took / 2) own = took;
            read = t.bytes / own;
            if (p->kind == COST_ATTENTION && n > 1) prompt[n_prompt++] = (struct prompt_pass){n, took, t.flops};
            if (rows > 0 && read > bw) bw = read;
            if (t.flops > 0 && !(p->kind == COST_ATTENTION && rows == 1))
                add_point(rate, n, t.flops / own, p->kind != COST_ATTENTION);
            /* one query reads far more keys than several */
            if (rows > 0 && (p->kind != COST_ATTENTION || n > 1)) last = n;
        }
        /* If the largest measured row count was still bound by reading, the curve says nothing about compute: use that
         * of FP8 experts instead. */
        if (i && p->kind < COST_ATTENTION && !p->few && read > 0.7 * bw) *rate = (struct cost_curve){0};
        /* also extends the curve to row counts skipped for lack of time */
        const struct cost_curve *ffn = &d->rate[COST_FFN][COST_8BIT];
        for (int k = 0; k < ffn->n && p->kind == COST_LINEAR && rate->n && p->as != COST_F32; k++)
            if (ffn->rows[k] > rate->rows[rate->n - 1])
                add_point(rate, (double)ffn->rows[k], (double)ffn->value[k], true);
        if (!rc && s->gpu) split_latency(d, prompt, n_prompt);
        if (!rc && bw > 0) d->bw[p->kind] = (struct cost_curve){1, {1}, {(float)bw}};
        if (p->kind != COST_ELEM && bw > *best) *best = bw;
    }
    return rc;
}

/* Measures products of many rows in FP8, on a device that has them. */
static int measure_fp8(struct bench *s, struct cost_domain *d) {
    static const int rows[] = {64, 256, 1024, 4096};
    int rc = 0;
    gpu_stream_set_fp8(s->stream, true);
    for (int k = COST_FFN; k <= COST_LINEAR; k++)
        for (size_t i = 0; i < sizeof rows / sizeof *rows && rows[i] <= s->rows && !rc; i++) {
            struct measured_op t = {.kind = (enum cost_kind)k, .format = DT_E4M3, .rows = rows[i], .n = 1};
            double took;
            rc = time_best(s, &t, &took);
            const double own = took - d->latency[k] > took / 2 ? took - d->latency[k] : took;
            add_point(&d->rate_fp8[k], rows[i], t.flops / own, true);
            if (took * 4 > s->most) break;
        }
    gpu_stream_set_fp8(s->stream, false);
    return rc;
}

static double budget_s(const struct calibrate_options *o) { return o->seconds > 0 ? o->seconds : 1.5; }
static size_t weights_size(const struct calibrate_options *o) {
    size_t have = mem_available(), size = o->bytes ? o->bytes : (size_t)1 << 30;
    if (!o->bytes && have && have / 8 < size) size = have / 8;
    return size < (size_t)64 << 20 ? (size_t)64 << 20 : size;
}

static void fill_codes(uint8_t *to, size_t bytes) {
    const size_t block = (size_t)1 << 20;
    uint64_t seed = 1;
    for (size_t i = 0; i < block / 8; i++) { /* random signs and low bits, exponents near 1 in every format */
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        uint64_t word = ((seed ^ seed >> 29) & 0x8f8f8f8f8f8f8f8fu) | 0x3030303030303030u;
        memcpy(to + 8 * i, &word, 8);
    }
    for (size_t at = block; at < bytes; at += block) memcpy(to + at, to, bytes - at < block ? bytes - at : block);
}
/* Allocates expert weights on each NUMA node; other weights are interleaved over all nodes. */
static int open_numa_weights(struct bench *s, struct error *e) {
    const struct numa *n = s->o->nodes;
    if (!n || n->n_nodes < 2 || n->n_nodes > COST_NODES) return 0;
    int rc = numa_interleave_pages(n, s->weights, s->bytes, e);
    for (int a = 0; a < n->n_nodes && !rc; a++) {
        size_t bytes = s->bytes / (size_t)n->n_nodes;
        s->node[a] = mem_pages(bytes, s->o->small_pages ? MEM_SMALL : MEM_HUGE);
        rc = s->node[a] ? numa_bind_memory(n, s->node[a], bytes, a, e) : ERR_MEMORY;
        if (!rc) fill_codes(s->node[a], bytes);
    }
    if (!rc) s->n_nodes = n->n_nodes;
    if (rc == ERR_RUNTIME)
        log_say(LOG_INFO, "%s; calibrating with weights not placed by node", e->text), *e = (struct error){0};
    return rc == ERR_RUNTIME ? 0 : rc;
}

static int calibrate_cpu(struct cost_machine *m, const struct calibrate_options *o, struct error *e) {
    struct bench s = {.o = o,
                      .x = o->cpu,
                      .bytes = weights_size(o),
                      .rows = 2048,
                      .hidden = o->threads < 16 ? 2048 : 7168,
                      .inter = o->threads < 16 ? 768 : 2048,
                      .slice = budget_s(o) / 50,
                      .most = budget_s(o) / 6};
    const size_t row = (size_t)s.rows * (size_t)s.hidden, wide = (size_t)128 * 576;
    int rc = ERR_MEMORY;
    s.weights = mem_pages(s.bytes, o->small_pages ? MEM_SMALL : MEM_HUGE);
    s.scales = mem_alloc((size_t)s.hidden * 4), s.ones = mem_alloc((size_t)s.rows * 4),
    s.ids = mem_alloc((size_t)s.rows * 4);
    s.in = mem_alloc(row * 4), s.out = mem_alloc((row > wide ? row : wide) * 4);
    if (s.weights && s.scales && s.ones && s.ids && s.in && s.out) rc = open_numa_weights(&s, e);
    if (!rc) {
        fill_codes(s.weights, s.bytes);
        memset(s.scales, 0x3c, (size_t)s.hidden * 4);
        for (size_t i = 0; i < row; i++) s.in[i] = (float)((int)(i * 37 % 101) - 50) * 0.01f;
        memset(s.out, 0, (row > wide ? row : wide) * 4);
        for (int i = 0; i < s.rows; i++) s.ones[i] = 1;
        const _Atomic int *before = s.x->cancel;
        s.x->cancel = o->cancel;
        rc = measure_domain(&s, &m->domain[0], &m->dram_bw);
        s.x->cancel = before;
    }
    mem_pages_free(s.weights, s.bytes);
    for (int a = 0; a < COST_NODES && o->nodes; a++) mem_pages_free(s.node[a], s.bytes / (size_t)o->nodes->n_nodes);
    mem_free(s.scales), mem_free(s.ones), mem_free(s.ids), mem_free(s.in), mem_free(s.out);
    if (rc)
        return error_set(e, rc,
                         rc == ERR_MEMORY      ? "not enough memory to calibrate the CPU (%zu MB)"
                         : rc == ERR_CANCELLED ? "stopped"
                                               : "an operation failed during CPU calibration",
                         s.bytes >> 20);
    return 0;
}

/* --- Devices ---------------------------------------------------------------------------------- */

enum { COPY = 16 << 20, SMALL = 4096 };

/* Seconds of `count` copies of `bytes` each, by the device's clock. */
static int time_copies(struct bench *s, void *host, size_t bytes, int count, enum gpu_dir dir, double *seconds) {
    int rc = gpu_event_record(s->begin, s->stream);
    for (int k = 0; k < count && !rc; k++)
        rc = dir == GPU_H2D ? gpu_copy(s->stream, s->weights, host, bytes, dir)
                            : gpu_copy(s->stream, host, s->weights, bytes, dir);
    if (!rc) rc = gpu_event_record(s->end, s->stream);
    if (!rc) rc = gpu_stream_sync(s->stream);
    *seconds = gpu_event_elapsed(s->begin, s->end);
    return rc;
}
static int measure_links(struct bench *s, struct cost_domain *d, void *host) {
    static const enum gpu_dir dirs[] = {[COST_H2D] = GPU_H2D, [COST_D2H] = GPU_D2H};
    int rc = 0;
    for (int w = COST_H2D; w <= COST_D2H && !rc; w++) {
        double small = INFINITY, large = INFINITY, t;
        rc = time_copies(s, host, COPY, 1, dirs[w], &t); /* the very first copy includes one-time setup */
        for (int i = 0; i < 3 && !rc && (i < 1 || large < s->most); i++) {
            rc = time_copies(s, host, SMALL, 8, dirs[w], &t);
            if (!rc && t / 8 < small) small = t / 8;
            if (!rc) rc = time_copies(s, host, COPY, 1, dirs[w], &t);
            if (!rc && t < large) large = t;
        }
        if (rc) break;
        /* otherwise a disturbed measurement, or negligible */
        d->link[w].latency = small < large / 8 ? small : 0;
        /* a disturbed latency must not inflate the rate */
        d->link[w].rate = COPY / (large - fmin(d->link[w].latency, large / 32));
    }
    return rc;
}
/* Raises *hand_off_s to the seconds from the end of this device's work until the host sees it: half the round trip of a
 * small copy. */
static int measure_hand_off(struct bench *s, void *host, double *hand_off_s) {
    double least = INFINITY;
    int rc = 0;
    for (int i = 0; i < PASSES && !rc; i++) {
        double begin = clock_now(), took;
        rc = gpu_copy(s->stream, s->weights, host, 64, GPU_H2D);
        if (!rc) rc = gpu_copy(s->stream, host, s->weights, 64, GPU_D2H);
        if (!rc) rc = gpu_event_record(s->end, s->stream);
        if (!rc) rc = gpu_event_sync(s->end);
        if ((took = (clock_now() - begin) / 2) < least) least = took;
    }
    if (!rc && least > *hand_off_s) *hand_off_s = least;
    return rc;
}

/* Measures device allocation as a prefill does it: slots of expert size, all freed at the end. */
static int measure_alloc(struct bench *s, struct cost_domain *d, struct error *e) {
    enum { SLOTS = 32, SLOT = 4 << 20 };
    void *slot[SLOTS];
    double least = INFINITY;
    int rc = 0, n = (int)(s->bytes / SLOT < SLOTS ? s->bytes / SLOT : SLOTS);
    for (int i = 0; i < 3 && !rc; i++) { /* excludes one-time setup */
        double begin = clock_now();
        int k = 0;
        for (; k < n && !(rc = gpu_alloc(s->gpu, &slot[k], SLOT, e)); k++) {
        }
        while (k > 0) gpu_free(s->gpu, slot[--k]);
        least = fmin(least, clock_now() - begin);
    }
    if (!rc) d->alloc = (double)n * SLOT / least;
    return rc;
}

static int calibrate_device(struct cost_machine *m, int rank, const struct calibrate_options *o, struct error *e) {
    struct gpu *g = o->gpu[rank];
    const struct gpu_info *info = gpu_info(g);
    struct cost_domain *d = &m->domain[1 + rank];
    struct bench s = {.o = o,
                      .gpu = g,
                      .rows = MOST_ROWS,
                      .hidden = 4096,
                      .inter = 1024,
                      .slice = budget_s(o) / 40,
                      .most = budget_s(o) / 6};
    size_t have = gpu_mem_free(g), row = (size_t)s.hidden * sizeof(float);
    void *host = NULL;
    double read = 0;
    snprintf(d->name, sizeof d->name, "%.47s", info->name);
    d->class = COST_GPU;
    d->memory = (double)info->mem;
    while (s.rows > 64 && 2 * (size_t)s.rows * row > have / 4) s.rows /= 2;
    s.bytes = have / 4 < (size_t)256 << 20 ? have / 4 / 4096 * 4096 : (size_t)256 << 20;
    if (s.bytes < (size_t)48 << 20)
        return error_set(e, ERR_MEMORY, "device %d: %zu MB are free, calibration needs 192 MB", rank, have >> 20);
    const size_t in_out = (size_t)s.rows * row, least = (size_t)256 * 32 * 128 * 4,
                 span = in_out > least ? in_out : least;
    int rc = info->is_virtual ? 0 : measure_alloc(&s, d, e);
    if (!rc) rc = gpu_alloc(g, (void **)&s.weights, s.bytes, e);
    if (!rc) rc = gpu_alloc(g, (void **)&s.in, span, e);
    if (!rc) rc = gpu_alloc(g, (void **)&s.out, span, e);
    if (!rc) rc = gpu_alloc(g, (void **)&s.scales, (size_t)s.hidden * 4, e);
    if (!rc) rc = gpu_host_alloc(g, &host, COPY, e);
    if (!rc) rc = gpu_event_open_timed(g, &s.begin, e);
    if (!rc) rc = gpu_event_open_timed(g, &s.end, e);
    if (!rc) rc = gpu_stream_open(g, &s.stream, "measure", false, o->cancel, e);
    if (rc) goto out;
    memset(host, 0x38, COPY);
    s.x = gpu_stream_exec(s.stream);
    rc = gpu_fill(s.stream, s.weights, 0x38, s.bytes); /* 1 as E4M3, small numbers in the other formats */
    if (!rc) rc = gpu_fill(s.stream, s.scales, 0x3c, (size_t)s.hidden * 4);
    if (!rc) rc = gpu_fill(s.stream, s.in, 0x3c, span);
    if (!rc) rc = gpu_fill(s.stream, s.out, 0, span);
    if (!rc) rc = measure_links(&s, d, host);
    if (!rc && !info->is_virtual) rc = measure_hand_off(&s, host, &m->hand_off_s);
    if (!rc) rc = measure_domain(&s, d, &read);
    if (!rc && info->has_fp8) rc = measure_fp8(&s, d);
    if (rc == ERR_CANCELLED) error_set(e, rc, "stopped");
    else if (rc && !gpu_error(g, e)) error_set(e, rc, "device %d failed during calibration", rank);
out:
    gpu_stream_close(&s.stream);
    gpu_event_close(&s.begin);
    gpu_event_close(&s.end);
    gpu_host_free(g, host);
    gpu_free(g, s.scales), gpu_free(g, s.out), gpu_free(g, s.in), gpu_free(g, s.weights);
    return rc;
}

int calibrate(struct cost_machine *out, const struct calibrate_options *o, struct error *e) {
    char print[CALIBRATE_FINGERPRINT_LEN], path[4096];
    bool cached = o->dir && (size_t)snprintf(path, sizeof path, "%s/machine", o->dir) < sizeof path;
    calibrate_fingerprint(o, print);
    if (cached && !o->force && calibrate_read_cached(out, path, print)) return 0;
    memset(out, 0, sizeof *out);
    snprintf(out->name, sizeof out->name, "this machine, measured");
    out->n_devices = o->n_gpus < COST_DOMAINS - 1 ? o->n_gpus : COST_DOMAINS - 1;
    out->n_domains = 1 + out->n_devices;
    out->cpu_chunk_rows = 1024, out->gpu_chunk_rows = 8192;
    char name[49];
    calibrate_cpu_brand(name);
    snprintf(out->domain[0].name, sizeof out->domain[0].name, "%.47s", name);
    out->domain[0].memory = (double)mem_total();
    int rc = calibrate_cpu(out, o, e);
    if (!rc) rc = calibrate_numa(out, o, weights_size(o) / (size_t)(o->nodes ? o->nodes->n_nodes : 1), e);
    for (int i = 0; i < out->n_devices && !rc; i++) rc = calibrate_device(out, i, o, e);
    if (!rc && cached) calibrate_write_cached(out, path, print);
    return rc;
}
