/* A layer of a decode batch: what devices enqueue and what the CPU computes for a micro-batch, and the hand-off of rows
 * between them. For each layer and micro-batch its rows arrive in host memory and the CPU computes their experts; the
 * device's queue already contains the wait for that sum and the attention block of the next layer. The order of layers
 * and micro-batches is decode.c's. */
#include "engine/exec/decode/decode_layer.h"

#include <string.h>

#include "base/clock.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/exec/decode/decode_graph.h"
#include "engine/exec/decode/decode_tensor.h"
#include "engine/exec/decode/decode_transfer.h"
#include "engine/exec/decode/expert_pool.h"
#include "engine/exec/decode/kv_writeback.h"
#include "engine/exec/decode/pinned_experts.h"
#include "engine/experts/lookahead.h"
#include "engine/layer/work_open.h"

int decode_layer_begin_span(struct decode_device *d, const char *name, int layer, int item) {
    return trace_begin(d->s->m->trace, d->main, d->rank, LANE_COMPUTE, name, layer, item);
}
void decode_layer_end_span(struct decode_device *d, int span) { trace_end(d->s->m->trace, span, d->main); }
int decode_layer_device_rows(const struct decode *s, const struct decode_micro_batch *m, int layer) {
    return layer < s->n_resident ? m->n_dev : 0;
}

/* --- Devices: attention block, shared expert, hand-off ---------------------------------------- */

int decode_layer_signal_arrived(struct decode_device *d, struct decode_micro_batch *m) {
    return gpu_timeline_signal(m->arrived, ++m->n_arrived, d->main);
}

/* Makes the CPU wait until the rows sent for `layer` are in host memory. */
int decode_layer_wait_rows(struct decode *s, struct decode_micro_batch *m, int layer) {
    uint32_t value = m->sent_value[layer % 2];
    s->counts.host_waits++;
    return s->cpu_queue ? gpu_timeline_wait(m->arrived, value, s->cpu_queue)
                        : gpu_timeline_wait_host(m->arrived, value, s->cancel);
}

/* Adds the CPU's sum of a layer's experts. Reuses w->xn as scratch. */
static int add_cpu_outputs(struct decode_device *d, struct decode_micro_batch *m, int layer) {
    struct decode *s = d->s;
    struct work *w = decode_device_work(d, m);
    struct exec *x = decode_device_exec(d);
    const struct expert_io io = decode_expert_io(s, w), host = decode_expert_io(s, &m->host);
    TRY(gpu_transfer(d->main, w->xn, host.sum, (size_t)m->n_dev * (size_t)io.width * 4, GPU_H2D));
    TRY(x->ops->add(x, &(struct op_add){.y = io.sum, .x = w->xn, .n = m->n_dev, .m = io.width}));
    return expert_io_end(x, s->c, &d->layers[layer].view, w, w->x, m->n_dev);
}
/* Whether a layer's attention block begins with adding the CPU's expert outputs of the layer before, so that its graph
 * contains the sum. */
static bool begins_with_sum(struct decode *s, int layer) {
    return layer > 0 && layer < s->c->n_layers && !s->m->trace && !s->draft &&
           decode_device_of(s, layer - 1) == decode_device_of(s, layer) && s->c->layer[layer - 1].moe &&
           !decode_device_experts(s, layer - 1);
}

/* Runs the attention block and downloads the CPU's inputs for the experts. */
static int attention_block(struct decode_device *d, struct decode_micro_batch *m, int layer, int total,
                           const struct span *spans) {
    struct decode *s = d->s;
    struct work *w = decode_device_work(d, m);
    const struct layer *y = &d->layers[layer].view;
    if (begins_with_sum(s, layer)) TRY(add_cpu_outputs(d, m, layer - 1));
    TRY(block_attention(decode_device_exec(d), s->c, y, layer, w, spans, m->n_dev_spans, m->n_dev));
    TRY(kv_writeback_stage_rows(d, layer, m, total));
    decode_experts_record_layer(d, w, (int)(m - s->micro_batch), layer);
    TRY(block_route(decode_device_exec(d), s->c, y, layer, w, m->n_dev));
    return decode_download_inputs(d, m, layer);
}
/* The sum of routed experts that are all on the device: the micro-batch's rows of d->x, which are free until the head.
 * Summed apart first, as the CPU's are, so that both give the same bits. */
static float *experts_sum(const struct decode_device *d, const struct decode_micro_batch *m) {
    return d->x + (size_t)m->row0 * (size_t)d->s->c->hidden;
}
static int clear_experts_sum(struct decode_device *d, struct decode_micro_batch *m) {
    return decode_device_exec(d)->ops->fill(
        decode_device_exec(d), &(struct op_fill){.x = experts_sum(d, m), .n = m->n_dev, .m = d->s->c->hidden});
}
/* Adds the outputs of a layer's routed experts that are all on the device. experts_sum() was cleared before. */
static int add_device_experts(struct decode_device *d, struct decode_micro_batch *m, int layer) {
    struct decode *s = d->s;
    struct exec *x = decode_device_exec(d);
    struct work *w = decode_device_work(d, m);
    struct layer y = d->layers[layer].view;
    y.experts = (struct expert *)decode_device_experts(s, layer);
    TRY(block_experts(x, s->c, &y, layer, w, PART_ROUTED, experts_sum(d, m), m->n_dev));
    return x->ops->add(x, &(struct op_add){.y = w->x, .x = experts_sum(d, m), .n = m->n_dev, .m = s->c->hidden});
}
/* Runs the dense FFN or shared expert, and resident or pinned routed experts. Those of a draft run later, in
 * device_add_outputs(), when the CPU has read their selection. */
static int device_ffn(struct decode_device *d, struct decode_micro_batch *m, int layer, int total,
                      const struct span *spans) {
    struct work *w = decode_device_work(d, m);
    const bool has_routed = !d->s->draft && d->s->c->layer[layer].moe && decode_device_experts(d->s, layer);
    if (has_routed) TRY(clear_experts_sum(d, m));
    TRY(block_experts(decode_device_exec(d), d->s->c, &d->layers[layer].view, layer, w, PART_SHARED, w->x, m->n_dev));
    if (!d->s->draft) TRY(pinned_experts_add(d, m, layer));
    return has_routed ? add_device_experts(d, m, layer) : 0;
}

/* Returns the end of the layers from `layer` on that one graph can cover: their device runs them without the host. */
static int graph_end(const struct decode_device *d, int layer) {
    while (layer < d->last && !decode_cpu_reads_rows(d->s, layer) && block_is_recordable(d->s->c, layer)) layer++;
    return layer;
}
/* The work of GRAPH_LAYERS, from `layer` to graph_end(). */
static int consecutive_layers(struct decode_device *d, struct decode_micro_batch *m, int layer, int total,
                              const struct span *spans) {
    for (int l = layer, end = graph_end(d, layer); l < end; l++) {
        TRY(attention_block(d, m, l, total, spans));
        TRY(device_ffn(d, m, l, total, spans));
    }
    return 0;
}

/* Enqueues the attention block of a layer and its FFN; or those of several layers, if no host work is between them. */
static int device_attention(struct decode *s, struct decode_micro_batch *m, int layer, int total) {
    struct decode_device *d = decode_device_of(s, layer);
    const bool moe = s->c->layer[layer].moe;
    if (s->is_tensor_parallel) return decode_tensor_attention(s, m, layer, total);
    const int end = s->m->trace || s->cpu_queue ? layer : graph_end(d, layer); /* spans and virtual time are by layer */
    if (end > layer + 1) {
        m->queued_layers = end;
        return decode_graph_run(d, m, layer, GRAPH_LAYERS, total, consecutive_layers);
    }
    int span = decode_layer_begin_span(d, "attention", layer, (int)(m - s->micro_batch));
    TRY(decode_graph_run(d, m, layer, GRAPH_ATTENTION, total, attention_block));
    if (decode_cpu_reads_rows(s, layer)) {
        TRY(decode_layer_signal_arrived(d, m));
        m->sent_value[layer % 2] = m->n_arrived;
        if (!s->draft)
            TRY(expert_pool_save_rows(d, (int)(m - s->micro_batch), layer, decode_device_work(d, m)->x, m->n_dev));
    }
    TRY(decode_graph_run(d, m, layer, GRAPH_FFN, total, device_ffn));
    decode_layer_end_span(d, span);
    return moe && !s->draft ? expert_pool_rows_ready(d, (int)(m - s->micro_batch), layer) : 0;
}

/* Adds the GPU's and the CPU's expert outputs once both are ready; or leaves the CPU's to the next layer. */
static int device_add_outputs(struct decode *s, struct decode_micro_batch *m, int layer) {
    struct decode_device *d = decode_device_of(s, layer);
    if (s->is_tensor_parallel) return decode_tensor_join(s, m, layer);
    if (!s->c->layer[layer].moe) return 0;
    if (decode_device_experts(s, layer)) {
        if (!s->draft) return 0; /* device_ffn() has added them */
        int span = decode_layer_begin_span(d, "draft", layer, (int)(m - s->micro_batch));
        TRY(clear_experts_sum(d, m));
        TRY(add_device_experts(d, m, layer));
        decode_layer_end_span(d, span);
        s->counts.draft_layers++;
        return 0;
    }
    const struct work *w = decode_device_work(d, m);
    if (!s->draft) TRY(expert_pool_join(d, (int)(m - s->micro_batch), decode_expert_io(s, w).sum, m->n_dev));
    TRY(gpu_timeline_wait(m->cpu_done, ++m->n_awaited, d->main));
    if (begins_with_sum(s, layer + 1)) return 0;
    int span = decode_layer_begin_span(d, "join", layer, (int)(m - s->micro_batch));
    TRY(add_cpu_outputs(d, m, layer));
    decode_layer_end_span(d, span);
    return 0;
}

/* Moves rows to the executor of `layer`; layer n_layers: to the LM head's. */
static int device_move_rows(struct decode *s, struct decode_micro_batch *m, int layer) {
    struct decode_device *from = decode_device_of(s, layer - 1), *to = decode_device_of(s, layer);
    if (from == to) return 0;
    /* every rank has the rows */
    if (s->is_tensor_parallel && s->dev[s->n_dev - 1].has_head) from = &s->dev[s->n_dev - 1];
    if (layer == s->c->n_layers && from->has_head)
        return gpu_copy(from->main, from->x + (size_t)m->row0 * (size_t)s->c->hidden, decode_device_work(from, m)->x,
                        decode_device_row_bytes(s, m->n_dev), GPU_D2D);
    TRY(decode_carry(s->c, from->main, &m->host, decode_device_work(from, m), m->n_dev, layer, GPU_D2H));
    TRY(decode_layer_signal_arrived(from, m));
    if (!to) { /* the CPU waits for it */
        m->sent_value[layer % 2] = m->n_arrived;
        return 0;
    }
    TRY(gpu_timeline_wait(m->arrived, m->n_arrived, to->main));
    return decode_carry(s->c, to->main, decode_device_work(to, m), &m->host, m->n_dev, layer, GPU_H2D);
}

/* Enqueues everything after layer `after` (-1: the embedding) on devices, until the CPU is needed again. */
int decode_layer_advance(struct decode *s, struct decode_micro_batch *m, int after, int total) {
    if (!m->n_dev || after >= s->n_resident || after + 1 < m->queued_layers) return 0;
    if (after >= 0) {
        struct decode_device *d = decode_device_of(s, after);
        TRY(device_add_outputs(s, m, after));
        if (after + 1 == s->c->n_layers)
            TRY(block_merge_streams(decode_device_exec(d), d->head_weights, decode_device_work(d, m), m->n_dev));
        TRY(device_move_rows(s, m, after + 1));
    }
    return after + 1 < s->n_resident ? device_attention(s, m, after + 1, total) : 0;
}

/* Whether a layer of the device adds embeddings of n-grams. */
static bool adds_ngrams(const struct decode_device *d) {
    for (int l = d->first; l < d->last; l++)
        if (config_ngram(d->s->c, l)) return true;
    return false;
}
/* Gathers the embeddings of n-grams of the devices' rows, whose tables stay on the host. */
static int gather_ngrams(struct decode *s, struct decode_micro_batch *m) {
    bool any = false;
    for (int i = 0; i < s->n_dev && m->n_dev; i++) any |= adds_ngrams(&s->dev[i]);
    if (!any || s->cpu_queue) return 0;
    for (int i = 0; i < m->n_dev_spans; i++) m->texts[i].image_token = s->m->image_token;
    return block_gather_ngrams(s->m->cpu, s->m->w, &m->host, m->host.ngrams, m->texts, m->n_dev_spans);
}

/* Uploads rows and positions, and resets the non-finite mark. */
int decode_layer_begin(struct decode *s, struct decode_micro_batch *m, int total) {
    m->queued_layers = 0;
    if (s->cpu_queue && m->n_dev) { /* otherwise the embedding is complete already */
        TRY(gpu_timeline_signal(m->cpu_done, ++m->n_cpu_done, s->cpu_queue));
        m->n_awaited++;
        for (int i = 0; i < (s->is_tensor_parallel ? s->n_dev : 1); i++)
            TRY(gpu_timeline_wait(m->cpu_done, m->n_awaited, s->dev[i].main));
    }
    TRY(gather_ngrams(s, m));
    for (int i = 0; i < s->n_dev && m->n_dev; i++) {
        struct decode_device *d = &s->dev[i];
        struct work *w = decode_device_work(d, m);
        TRY(gpu_fill(d->main, (void *)w->first_bad, 0xff, 4));
        TRY(gpu_transfer(d->main, w->pos, m->host.pos, (size_t)m->n_dev * 4, GPU_H2D));
        TRY(gpu_transfer(d->main, w->tokens, m->host.tokens, (size_t)m->n_dev * 4, GPU_H2D));
        if (adds_ngrams(d))
            TRY(gpu_copy(d->main, w->ngrams, m->host.ngrams, (size_t)m->n_dev * (size_t)config_ngram_floats(s->c) * 4,
                         GPU_H2D));
        if (w->seq_length) TRY(gpu_transfer(d->main, w->seq_length, m->host.seq_length, (size_t)m->n_dev * 4, GPU_H2D));
        TRY(block_rope(decode_device_exec(d), s->m->w, w, m->n_dev, 0));
        TRY(decode_graph_begin(d, m, total));
        if (!i || s->is_tensor_parallel)
            TRY(gpu_copy(d->main, w->x, m->host.x, decode_device_row_bytes(s, m->n_dev), GPU_H2D));
    }
    return 0;
}

/* --- The CPU: attention block of its own rows, experts of all rows ---------------------------- */

static int signal_cpu_done(struct decode *s, struct decode_micro_batch *m) {
    if (s->cpu_queue) return gpu_timeline_signal(m->cpu_done, ++m->n_cpu_done, s->cpu_queue);
    gpu_timeline_signal_host(m->cpu_done, ++m->n_cpu_done);
    return 0;
}

int decode_layer_cpu_attention(struct decode *s, struct decode_micro_batch *m, int layer, struct error *e) {
    int n_dev = decode_layer_device_rows(s, m, layer);
    /* the residual stream comes from the last device */
    if (m->n_dev && layer == s->n_resident) TRY(decode_layer_wait_rows(s, m, layer));
    if (n_dev == m->n) return 0;
    struct work w = work_slice(s->c, &m->host, n_dev);
    double t = trace_now(s->m->trace);
    int rc = cpu_attention_block(s->m, &w, n_dev ? m->cpu_spans : m->spans, m->n_spans - (n_dev ? m->n_dev_spans : 0),
                                 layer, m->n - n_dev, s->cancel, e);
    trace_cpu(s->m->trace, t, "attention", layer, (int)(m - s->micro_batch));
    work_keep_grown(&m->host, &w);
    return rc;
}

/* Checks expert ids from a device: a router that reads non-finite numbers may select anything. work.first_bad names
 * their layer. */
static bool ids_are_valid(const struct decode *s, const struct decode_micro_batch *m, int n) {
    for (int i = 0; i < n * s->c->topk; i++)
        if (m->host.ids[i] < 0 || m->host.ids[i] >= s->c->n_experts) return false;
    return true;
}

static void trace_routing(struct decode *s, const struct decode_micro_batch *m, int layer) {
    for (int k = 0; k < m->n_spans && s->m->routing && !s->cpu_queue; k++) {
        const struct span *t = &m->spans[k];
        struct work w = work_slice(s->c, &m->host, t->row);
        routing_trace_add(s->m->routing, &s->routing_lines,
                          &(struct routing_trace_rows){.batch = s->routing_batch,
                                                       .chat = s->caller_spans[m->caller_span[k]].kv,
                                                       .layer = layer,
                                                       .n = t->n,
                                                       .pos = t->pos,
                                                       .tokens = w.tokens,
                                                       .ids = w.ids,
                                                       .weights = w.weights,
                                                       .router = w.router});
    }
}

/* Computes the routed experts of n rows, of which the first n_dev are a device's: for these only their sums, as
 * decode_expert_io() says. */
static int cpu_routed_experts(struct decode *s, const struct layer *y, struct work *w, int n_dev, int n) {
    struct exec *cpu = s->m->cpu;
    const int first = s->is_tensor_parallel ? 0 : n_dev; /* the first row whose input is w->xn */
    const struct work own = work_slice(s->c, w, first);
    if (first < n) TRY(expert_io_begin(cpu, s->c, y, &own, n - first));
    TRY(expert_io_add(cpu, s->c, y, w, w->x, n));
    return first < n ? expert_io_end(cpu, s->c, y, &own, own.x, n - first) : 0;
}

/* Runs a draft's experts. A device that has them computes its own rows; the CPU computes the rest. */
static int run_draft_experts(struct decode *s, struct decode_micro_batch *m, int layer, int n_dev) {
    const struct decode_draft *draft = s->draft;
    struct layer y = *numa_copy_layer(s->m->numa_copy, s->m->w, layer);
    const int n_on_device = n_dev && decode_device_experts(s, layer) ? n_dev : 0;
    struct work cpu_rows = work_slice(s->c, &m->host, n_dev), routed_rows = work_slice(s->c, &m->host, n_on_device);
    const double t = trace_now(s->m->trace);
    y.experts = draft->experts[layer], y.shards = NULL;
    for (int i = 0; i < m->n_spans && draft->lookahead; i++)
        for (int k = 0; k < m->spans[i].n; k++) {
            const size_t at = (size_t)(m->spans[i].row + k) * (size_t)s->c->topk;
            lookahead_record(draft->lookahead, draft->first_token + m->caller_span[i], layer, m->host.ids + at,
                             m->host.weights + at);
        }
    if (n_on_device == m->n) return 0;
    cpu_count_read(s->m, (uint64_t)((m->n - n_on_device) * s->c->topk) * draft->expert_bytes);
    if (n_dev) TRY(cpu_routed_experts(s, &y, &routed_rows, n_dev - n_on_device, m->n - n_on_device));
    else TRY(block_experts(s->m->cpu, s->c, &y, layer, &routed_rows, PART_ROUTED_SHARED, routed_rows.x, m->n));
    if (n_dev && n_dev < m->n)
        TRY(block_experts(s->m->cpu, s->c, &y, layer, &cpu_rows, PART_SHARED, cpu_rows.x, m->n - n_dev));
    trace_cpu(s->m->trace, t, "draft", layer, (int)(m - s->micro_batch));
    return n_dev && !n_on_device ? signal_cpu_done(s, m) : 0;
}

/* Computes the experts of a micro-batch whose first n_dev rows are on a device: hands the sum of those rows to the
 * device. */
static int cpu_experts_for_device(struct decode *s, struct decode_micro_batch *m, const struct layer *y, int layer,
                                  int n_dev, struct error *e) {
    struct decode_device *d = decode_device_of(s, layer);
    struct exec *cpu = s->m->cpu;
    /* cpu_part: without what the device computes */
    struct work *w = &m->host, cpu_part = *w, cpu_rows = work_slice(s->c, w, n_dev);
    const double t = trace_now(s->m->trace);
    double expected = 0;
    d->n_selected += (uint64_t)(n_dev * s->c->topk);
    if (d->pool) TRY(expert_pool_run(d, m, layer, &cpu_part.ids, &expected, e));
    if (d->pinned) cpu_part.ids = pinned_experts_mask(d, m, layer, &cpu_part.computed_fraction);
    TRY(cpu_prepare_experts(s->m, &cpu_part, layer, m->n, e));
    double begin = clock_now();
    TRY(cpu_routed_experts(s, y, &cpu_part, n_dev, m->n));
    double routed_s = clock_now() - begin;
    if (n_dev < m->n) TRY(block_experts(cpu, s->c, y, layer, &cpu_rows, PART_SHARED, cpu_rows.x, m->n - n_dev));
    trace_cpu(s->m->trace, t, "experts", layer, (int)(m - s->micro_batch));
    TRY(signal_cpu_done(s, m));
    if (d->pinned) s->counts.cpu_s += routed_s;
    return d->pool ? expert_pool_end_layer(d, m, layer, expected, routed_s) : 0;
}

int decode_layer_cpu_experts(struct decode *s, struct decode_micro_batch *m, int layer, struct error *e) {
    int n_dev = decode_layer_device_rows(s, m, layer);
    struct work *w = &m->host, cpu_rows = work_slice(s->c, w, n_dev);
    const struct layer *y = numa_copy_layer(s->m->numa_copy, s->m->w, layer);
    double t = trace_now(s->m->trace);
    if (!y->experts) {
        struct layer draft_layer = *y;
        /* a model without experts */
        if (s->draft && s->draft->experts[layer])
            draft_layer.dense = s->draft->experts[layer][0], draft_layer.shards = NULL;
        if (n_dev < m->n)
            TRY(block_experts(s->m->cpu, s->c, &draft_layer, layer, &cpu_rows, PART_SHARED, cpu_rows.x, m->n - n_dev));
        if (n_dev < m->n) trace_cpu(s->m->trace, t, "ffn", layer, (int)(m - s->micro_batch));
        return 0;
    }
    /* the device computes its rows' experts */
    const bool device_has_experts = n_dev && decode_device_experts(s, layer);
    if (n_dev && decode_cpu_reads_rows(s, layer)) {
        TRY(decode_layer_wait_rows(s, m, layer));
        const struct expert_io io = decode_expert_io(s, w);
        if (!s->cpu_queue) memset(io.sum, 0, (size_t)n_dev * (size_t)io.width * 4);
        if (!s->cpu_queue && !ids_are_valid(s, m, n_dev)) {
            /* the end of the batch reports first_bad */
            for (int i = 0; i < n_dev * s->c->topk; i++) w->ids[i] = 0, w->weights[i] = 0;
        }
    }
    if (s->draft) return run_draft_experts(s, m, layer, n_dev);
    trace_routing(s, m, layer);
    /* decode_experts_record_count() adds the others */
    for (int i = device_has_experts ? n_dev * s->c->topk : 0; i < m->n * s->c->topk && !s->cpu_queue; i++)
        if (w->ids[i] >= 0) s->expert_rows[(size_t)layer * (size_t)s->c->n_experts + (size_t)w->ids[i]]++;
    t = trace_now(s->m->trace);
    if (device_has_experts) {
        if (n_dev == m->n) return 0;
        TRY(cpu_prepare_experts(s->m, &cpu_rows, layer, m->n - n_dev, e));
        TRY(block_experts(s->m->cpu, s->c, y, layer, &cpu_rows, PART_ROUTED_SHARED, cpu_rows.x, m->n - n_dev));
        trace_cpu(s->m->trace, t, "experts", layer, (int)(m - s->micro_batch));
        return 0;
    }
    if (n_dev) return cpu_experts_for_device(s, m, y, layer, n_dev, e);
    TRY(cpu_prepare_experts(s->m, w, layer, m->n, e));
    TRY(block_experts(s->m->cpu, s->c, y, layer, w, PART_ROUTED_SHARED, w->x, m->n));
    trace_cpu(s->m->trace, t, "experts", layer, (int)(m - s->micro_batch));
    return 0;
}

bool decode_layer_runs_ahead(const struct decode *s, int layer) {
    return !decode_cpu_reads_rows(s, layer) || !decode_device_experts(s, layer);
}
