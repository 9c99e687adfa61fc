/* Attention blocks and dense FFNs in tensor parallel: each device has a shard of every layer (tp_shard.h), the whole residual stream
 * and the whole router. Every rank adds up the partial sums itself, in rank order, so all have the same bits: a rank downloads
 * its part to pinned memory, signals its timeline, and the others upload it. A layer has two such sums: after attention, and
 * after a dense FFN or shared expert, which overlaps the CPU's experts.
 *
 * The CPU talks to rank 0 only, as if it held the layers. Addresses in pinned memory depend on the layer, so that recorded graphs
 * stay valid. Reuse is safe: before writing one again, a rank has waited, in the sum between, for values that the others signalled
 * after reading it. */
#include "engine/step/internal.h"

enum { HALF, FFN, SUMS };

static struct exec *exec_of(struct step_device *d) { return gpu_stream_exec(d->main); }
static int micro_of(const struct step *s, const struct step_micro *m) { return (int)(m - s->micro); }
static size_t row_bytes(const struct step *s, int n) { return (size_t)n * (size_t)s->c->hidden * 4; }

size_t step_tensor_parts(const struct step *s) { return STEP_MICROS * 2 * SUMS * (size_t)s->n_dev * row_bytes(s, STEP_ROWS); }
static float *place(const struct step *s, const struct step_micro *m, int layer, int sum, int rank) {
    size_t at = ((size_t)micro_of(s, m) * 2 + (size_t)(layer % 2)) * SUMS + (size_t)sum;
    return s->parts + (at * (size_t)s->n_dev + (size_t)rank) * (size_t)STEP_ROWS * (size_t)s->c->hidden;
}

/* whether a rank contributes to a layer's sum */
static bool has_part(const struct step_device *d, int layer, int sum) {
    return sum == HALF || (d->s->c->layer[layer].moe ? d->share.shared : d->share.dense) > 0;
}
static bool has_ffn(const struct step *s, int layer) { return (s->c->layer[layer].moe ? s->c->shared_inter : s->c->dense_inter) > 0; }

static int send_part(struct step_device *d, struct step_micro *m, int layer, int sum) {
    const struct step *s = d->s;
    return gpu_copy(d->main, place(s, m, layer, sum, d->share.rank), d->part[micro_of(s, m)], row_bytes(s, m->n_dev), GPU_D2H);
}

/* All ranks signal the same value on their own timelines. */
static int tell_parts(struct step *s, struct step_micro *m) {
    m->n_parts++;
    for (int i = 0; i < s->n_dev; i++) TRY(gpu_number_write(m->part[i], m->n_parts, s->dev[i].main));
    return 0;
}
static int await_parts(struct step_device *d, const struct step_micro *m) {
    for (int i = 0; i < d->s->n_dev; i++)
        if (i != d->share.rank) TRY(gpu_number_wait(m->part[i], m->n_parts, d->main));
    return 0;
}
/* Adds all parts to the residual stream; reuses xn as scratch. */
static int add_parts(struct step_device *d, struct step_micro *m, int layer, int sum) {
    const struct step *s = d->s;
    const struct work *w = &d->work[micro_of(s, m)];
    for (int i = 0; i < s->n_dev; i++) {
        float *part = i == d->share.rank ? d->part[micro_of(s, m)] : w->xn;
        if (!has_part(&s->dev[i], layer, sum)) continue;
        if (part == w->xn) TRY(gpu_copy(d->main, part, place(s, m, layer, sum, i), row_bytes(s, m->n_dev), GPU_H2D));
        TRY(exec_of(d)->ops->add(exec_of(d), &(struct op_add){.y = w->x, .x = part, .n = m->n_dev, .m = s->c->hidden}));
    }
    return 0;
}

static int half(struct step_device *d, struct step_micro *m, int layer, int total, const struct span *spans) {
    const struct layer *y = &d->layer[layer].view;
    struct work *w = &d->work[micro_of(d->s, m)];
    struct work out = *w; /* block_output adds to a zeroed buffer */
    out.x = d->part[micro_of(d->s, m)];
    TRY(block_kv(exec_of(d), d->c, y, layer, w, spans, m->n_dev_spans, m->n_dev));
    TRY(block_query(exec_of(d), d->c, y, layer, w, m->n_dev));
    for (int i = 0; i < m->n_dev_spans; i++)
        TRY(block_attend(exec_of(d), d->c, y, layer, w, &spans[i], (struct block_keys){.n = spans[i].pos + spans[i].n, .piece = PIECE_ALL}));
    TRY(gpu_fill(d->main, out.x, 0, row_bytes(d->s, m->n_dev)));
    TRY(block_output(exec_of(d), d->c, y, &out, m->n_dev));
    TRY(send_part(d, m, layer, HALF));
    return step_rows_keep(d, layer, m, total);
}
static int route(struct step_device *d, struct step_micro *m, int layer, int total, const struct span *spans) {
    struct step *s = d->s;
    struct work *w = &d->work[micro_of(s, m)];
    TRY(add_parts(d, m, layer, HALF));
    TRY(block_route(exec_of(d), d->c, &d->layer[layer].view, layer, w, m->n_dev));
    return d->share.rank ? 0 : step_hand_over(d, m, layer);
}
static int ffn(struct step_device *d, struct step_micro *m, int layer, int total, const struct span *spans) {
    const int i = micro_of(d->s, m);
    if (!has_part(d, layer, FFN)) return 0;
    TRY(gpu_fill(d->main, d->part[i], 0, row_bytes(d->s, m->n_dev)));
    TRY(block_experts(exec_of(d), d->c, &d->layer[layer].view, layer, &d->work[i], PART_SHARED, d->part[i], m->n_dev));
    return send_part(d, m, layer, FFN);
}

/* Enqueues a part on all ranks before the next part on any. */
static int on_all(struct step *s, struct step_micro *m, int layer, int total, enum step_part part, const char *name, step_work fn) {
    for (int i = 0; i < s->n_dev; i++) {
        struct step_device *d = &s->dev[i];
        int span = trace_begin(s->m->trace, d->main, d->rank, LANE_COMPUTE, name, layer, micro_of(s, m));
        TRY(step_replay(d, m, layer, part, total, fn));
        trace_end(s->m->trace, span, d->main);
    }
    return 0;
}

int step_tensor_attention(struct step *s, struct step_micro *m, int layer, int total) {
    TRY(on_all(s, m, layer, total, STEP_HALF, "attention", half));
    TRY(tell_parts(s, m));
    for (int i = 0; i < s->n_dev; i++) TRY(await_parts(&s->dev[i], m));
    TRY(on_all(s, m, layer, total, STEP_ROUTE, "route", route));
    if (s->c->layer[layer].moe) {
        TRY(gpu_number_write(m->arrived, ++m->n_arrived, s->dev[0].main));
        m->sent[layer % 2] = m->n_arrived;
    }
    if (!has_ffn(s, layer)) return 0;
    TRY(on_all(s, m, layer, total, STEP_SHARED, "ffn", ffn));
    return tell_parts(s, m);
}

int step_tensor_join(struct step *s, struct step_micro *m, int layer) {
    const bool moe = s->c->layer[layer].moe;
    if (moe) m->n_wanted++;
    for (int i = 0; i < s->n_dev; i++) {
        struct step_device *d = &s->dev[i];
        struct work *w = &d->work[micro_of(s, m)];
        if (has_ffn(s, layer)) TRY(await_parts(d, m));
        if (has_ffn(s, layer)) TRY(add_parts(d, m, layer, FFN));
        if (!moe) continue;
        TRY(gpu_number_wait(m->answered, m->n_wanted, d->main));
        int span = trace_begin(s->m->trace, d->main, d->rank, LANE_COMPUTE, "join", layer, micro_of(s, m));
        TRY(gpu_copy(d->main, w->xn, m->host.x, row_bytes(s, m->n_dev), GPU_H2D));
        TRY(exec_of(d)->ops->add(exec_of(d), &(struct op_add){.y = w->x, .x = w->xn, .n = m->n_dev, .m = s->c->hidden}));
        trace_end(s->m->trace, span, d->main);
    }
    return 0;
}
