/* Attention blocks and dense FFNs in tensor parallel: each device has a shard of every layer (tp_shard.h), the whole
 * residual stream and the whole router. Every rank adds up the partial sums itself, in rank order, so all have the same
 * bits: a rank downloads its part to pinned memory, signals its timeline, and the others upload it. A layer has two
 * such sums: after attention, and after a dense FFN or shared expert, which overlaps the CPU's experts.
 *
 * The CPU talks to rank 0 only, as if it held the layers. Addresses in pinned memory depend on the layer, so that
 * recorded graphs stay valid. Reuse is safe: before writing one again, a rank has waited, in the sum between, for
 * values that the others signalled after reading it. */
#include "engine/exec/decode/decode_tensor.h"
#include "engine/exec/decode/decode_graph.h"
#include "engine/exec/decode/decode_transfer.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/exec/decode/kv_writeback.h"

enum { SUM_ATTENTION, SUM_FFN, N_SUMS }; /* sums of a layer */

static struct exec *exec_of(struct decode_device *d) { return gpu_stream_exec(d->main); }
static int micro_index(const struct decode *s, const struct decode_micro_batch *m) { return (int)(m - s->micro_batch); }
static size_t row_bytes(const struct decode *s, int n) { return (size_t)n * (size_t)s->c->hidden * 4; }

size_t decode_tensor_parts_bytes(const struct decode *s) {
    return DECODE_MICRO_BATCHES * 2 * N_SUMS * (size_t)s->n_dev * row_bytes(s, DECODE_MAX_ROWS);
}
/* Returns where a rank's part of a sum is in pinned memory: buffers alternate by the parity of the layer. */
static float *part_address(const struct decode *s, const struct decode_micro_batch *m, int layer, int sum, int rank) {
    size_t index = ((size_t)micro_index(s, m) * 2 + (size_t)(layer % 2)) * N_SUMS + (size_t)sum;
    return s->tp_parts + (index * (size_t)s->n_dev + (size_t)rank) * (size_t)DECODE_MAX_ROWS * (size_t)s->c->hidden;
}

/* Whether a rank contributes to a layer's sum: one without a shard of the FFN does not. */
static bool has_part(const struct decode_device *d, int layer, int sum) {
    return sum == SUM_ATTENTION || (d->s->c->layer[layer].moe ? d->shard.shared : d->shard.dense) > 0;
}
/* Whether a layer has the second sum: of a dense FFN or shared expert. */
static bool has_ffn(const struct decode *s, int layer) {
    return (s->c->layer[layer].moe ? s->c->shared_inter : config_dense_inter(s->c, layer)) > 0;
}

static int send_part(struct decode_device *d, struct decode_micro_batch *m, int layer, int sum) {
    const struct decode *s = d->s;
    return gpu_copy(d->main, part_address(s, m, layer, sum, d->shard.rank), d->partial[micro_index(s, m)],
                    row_bytes(s, m->n_dev), GPU_D2H);
}

/* All ranks signal the same value on their own timelines. */
static int signal_parts(struct decode *s, struct decode_micro_batch *m) {
    m->n_parts++;
    for (int i = 0; i < s->n_dev; i++) TRY(gpu_timeline_signal(m->part_done[i], m->n_parts, s->dev[i].main));
    return 0;
}
static int wait_parts(struct decode_device *d, const struct decode_micro_batch *m) {
    for (int i = 0; i < d->s->n_dev; i++)
        if (i != d->shard.rank) TRY(gpu_timeline_wait(m->part_done[i], m->n_parts, d->main));
    return 0;
}
/* Adds all parts to the residual stream; reuses xn as scratch. */
static int add_parts(struct decode_device *d, struct decode_micro_batch *m, int layer, int sum) {
    const struct decode *s = d->s;
    const struct work *w = &d->work[micro_index(s, m)];
    for (int i = 0; i < s->n_dev; i++) {
        float *addend = i == d->shard.rank ? d->partial[micro_index(s, m)] : w->xn;
        if (!has_part(&s->dev[i], layer, sum)) continue;
        if (addend == w->xn)
            TRY(gpu_copy(d->main, addend, part_address(s, m, layer, sum, i), row_bytes(s, m->n_dev), GPU_H2D));
        TRY(exec_of(d)->ops->add(exec_of(d),
                                 &(struct op_add){.y = w->x, .x = addend, .n = m->n_dev, .m = s->c->hidden}));
    }
    return 0;
}

static int attention_block(struct decode_device *d, struct decode_micro_batch *m, int layer, int total,
                           const struct span *spans) {
    const struct layer *y = &d->layers[layer].view;
    struct work *w = &d->work[micro_index(d->s, m)];
    struct work out = *w; /* block_output adds to a zeroed buffer */
    out.x = d->partial[micro_index(d->s, m)];
    TRY(block_kv(exec_of(d), d->c, y, layer, w, spans, m->n_dev_spans, m->n_dev));
    TRY(block_query(exec_of(d), d->c, y, layer, w, m->n_dev));
    for (int i = 0; i < m->n_dev_spans; i++)
        TRY(block_attend(exec_of(d), d->c, y, layer, w, &spans[i],
                         (struct key_range){.n = spans[i].pos + spans[i].n, .piece = PIECE_ALL}));
    TRY(gpu_fill(d->main, out.x, 0, row_bytes(d->s, m->n_dev)));
    TRY(block_output(exec_of(d), d->c, y, &out, m->n_dev));
    TRY(send_part(d, m, layer, SUM_ATTENTION));
    return kv_writeback_stage_rows(d, layer, m, total);
}
static int run_router(struct decode_device *d, struct decode_micro_batch *m, int layer, int total,
                      const struct span *spans) {
    struct decode *s = d->s;
    struct work *w = &d->work[micro_index(s, m)];
    TRY(add_parts(d, m, layer, SUM_ATTENTION));
    TRY(block_route(exec_of(d), d->c, &d->layers[layer].view, layer, w, m->n_dev));
    return d->shard.rank ? 0 : decode_download_inputs(d, m, layer);
}
static int run_ffn(struct decode_device *d, struct decode_micro_batch *m, int layer, int total,
                   const struct span *spans) {
    const int i = micro_index(d->s, m);
    if (!has_part(d, layer, SUM_FFN)) return 0;
    TRY(gpu_fill(d->main, d->partial[i], 0, row_bytes(d->s, m->n_dev)));
    TRY(block_experts(exec_of(d), d->c, &d->layers[layer].view, layer, &d->work[i], PART_SHARED, d->partial[i],
                      m->n_dev));
    return send_part(d, m, layer, SUM_FFN);
}

/* Enqueues a part on all ranks before the next part on any. */
static int run_on_all_ranks(struct decode *s, struct decode_micro_batch *m, int layer, int total, enum graph_part part,
                            const char *name, graph_fn fn) {
    for (int i = 0; i < s->n_dev; i++) {
        struct decode_device *d = &s->dev[i];
        int span = trace_begin(s->m->trace, d->main, d->rank, LANE_COMPUTE, name, layer, micro_index(s, m));
        TRY(decode_graph_run(d, m, layer, part, total, fn));
        trace_end(s->m->trace, span, d->main);
    }
    return 0;
}

int decode_tensor_attention(struct decode *s, struct decode_micro_batch *m, int layer, int total) {
    TRY(run_on_all_ranks(s, m, layer, total, GRAPH_ATTENTION, "attention", attention_block));
    TRY(signal_parts(s, m));
    for (int i = 0; i < s->n_dev; i++) TRY(wait_parts(&s->dev[i], m));
    TRY(run_on_all_ranks(s, m, layer, total, GRAPH_ROUTER, "route", run_router));
    if (s->c->layer[layer].moe) {
        TRY(gpu_timeline_signal(m->arrived, ++m->n_arrived, s->dev[0].main));
        m->sent_value[layer % 2] = m->n_arrived;
    }
    if (!has_ffn(s, layer)) return 0;
    TRY(run_on_all_ranks(s, m, layer, total, GRAPH_FFN, "ffn", run_ffn));
    return signal_parts(s, m);
}

int decode_tensor_join(struct decode *s, struct decode_micro_batch *m, int layer) {
    const bool moe = s->c->layer[layer].moe;
    if (moe) m->n_awaited++;
    for (int i = 0; i < s->n_dev; i++) {
        struct decode_device *d = &s->dev[i];
        struct work *w = &d->work[micro_index(s, m)];
        if (has_ffn(s, layer)) TRY(wait_parts(d, m));
        if (has_ffn(s, layer)) TRY(add_parts(d, m, layer, SUM_FFN));
        if (!moe) continue;
        TRY(gpu_timeline_wait(m->cpu_done, m->n_awaited, d->main));
        int span = trace_begin(s->m->trace, d->main, d->rank, LANE_COMPUTE, "join", layer, micro_index(s, m));
        TRY(gpu_copy(d->main, w->xn, m->host.x, row_bytes(s, m->n_dev), GPU_H2D));
        TRY(exec_of(d)->ops->add(exec_of(d),
                                 &(struct op_add){.y = w->x, .x = w->xn, .n = m->n_dev, .m = s->c->hidden}));
        trace_end(s->m->trace, span, d->main);
    }
    return 0;
}
