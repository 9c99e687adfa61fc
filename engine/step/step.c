/* Runs a decode batch through the layers. For each layer and micro-batch its rows arrive in host memory and the CPU computes their
 * experts; the device's queue already contains the wait for that sum and the attention block of the next layer. With one
 * micro-batch CPU and GPU alternate; with two, one's experts overlap the other's attention; without devices the CPU does both. */
#include "engine/step/step.h"

#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/cache/lookahead.h"
#include "engine/step/experts.h"
#include "engine/step/internal.h"
#include "engine/step/processor.h"

static struct exec *exec_of(struct step_device *d) { return gpu_stream_exec(d->main); }
static int begin(struct step_device *d, const char *name, int layer, int item) {
    return trace_begin(d->s->m->trace, d->main, d->rank, LANE_COMPUTE, name, layer, item);
}
static void end(struct step_device *d, int span) { trace_end(d->s->m->trace, span, d->main); }
static struct work *work_of(struct step_device *d, const struct step_micro *m) { return &d->work[m - d->s->micro]; }
/* rows of m whose attention block of the layer runs on a device */
static int on_device(const struct step *s, const struct step_micro *m, int layer) { return layer < s->n_resident ? m->n_dev : 0; }

/* Returns a draft's experts of a layer if its rows are on a device that has them; NULL: the CPU computes them. */
static struct expert *drafted(const struct step *s, int layer) {
    const struct step_device *d = s->view ? step_device_of((struct step *)s, layer) : NULL;
    return d ? d->layer[layer].draft : NULL;
}

/* --- Devices: attention block, shared expert, hand-off ----------------------------------------------------------------------------  */

static size_t row_bytes(const struct step *s, int n) { return (size_t)n * (size_t)s->c->hidden * 4; }

static int arrive(struct step_device *d, struct step_micro *m) { return gpu_number_write(m->arrived, ++m->n_arrived, d->main); }

/* Makes the CPU wait until the rows sent for `layer` are in host memory. */
static int await_rows(struct step *s, struct step_micro *m, int layer) {
    uint32_t value = m->sent[layer % 2];
    return s->processor ? gpu_number_wait(m->arrived, value, s->processor) : gpu_number_await(m->arrived, value, s->cancel);
}

/* Runs the attention block and downloads the CPU's inputs for the experts. */
static int half(struct step_device *d, struct step_micro *m, int layer, int total, const struct span *spans) {
    struct step *s = d->s;
    struct work *w = work_of(d, m);
    const struct layer *y = &d->layer[layer].view;
    TRY(block_attention(exec_of(d), s->c, y, layer, w, spans, m->n_dev_spans, m->n_dev));
    TRY(step_rows_keep(d, layer, m, total));
    TRY(block_route(exec_of(d), s->c, y, layer, w, m->n_dev));
    return step_hand_over(d, m, layer);
}
int step_hand_over(struct step_device *d, struct step_micro *m, int layer) {
    struct step *s = d->s;
    const struct work *w = work_of(d, m);
    if (!s->c->layer[layer].moe) return 0;
    size_t topk = (size_t)m->n_dev * (size_t)s->c->topk * 4;
    TRY(gpu_copy(d->main, m->host.xn, w->xn, row_bytes(s, m->n_dev), GPU_D2H));
    TRY(gpu_copy(d->main, m->host.ids, w->ids, topk, GPU_D2H));
    TRY(gpu_copy(d->main, m->host.weights, w->weights, topk, GPU_D2H));
    if (!s->m->routing && !d->experts) return 0;
    return gpu_copy(d->main, m->host.router, w->router, (size_t)m->n_dev * (size_t)s->c->n_experts * 4, GPU_D2H);
}
static int shared(struct step_device *d, struct step_micro *m, int layer, int total, const struct span *spans) {
    struct work *w = work_of(d, m);
    return block_experts(exec_of(d), d->s->c, &d->layer[layer].view, layer, w, PART_SHARED, w->x, m->n_dev);
}

static int device_attention(struct step *s, struct step_micro *m, int layer, int total) {
    struct step_device *d = step_device_of(s, layer);
    const bool moe = s->c->layer[layer].moe;
    if (s->tensor) return step_tensor_attention(s, m, layer, total);
    int span = begin(d, "attention", layer, (int)(m - s->micro));
    TRY(step_replay(d, m, layer, STEP_HALF, total, half));
    if (moe) {
        TRY(arrive(d, m));
        m->sent[layer % 2] = m->n_arrived;
        if (!s->view) TRY(step_experts_keep(d, (int)(m - s->micro), layer, work_of(d, m)->x, m->n_dev));
    }
    TRY(step_replay(d, m, layer, STEP_SHARED, total, shared));
    end(d, span);
    return moe && !s->view ? step_experts_ready(d, (int)(m - s->micro), layer) : 0;
}

/* Adds the GPU's and the CPU's expert outputs once both are ready. Reuses w->xn as scratch. */
static int device_join(struct step *s, struct step_micro *m, int layer) {
    struct step_device *d = step_device_of(s, layer);
    struct work *w = work_of(d, m);
    if (s->tensor) return step_tensor_join(s, m, layer);
    if (!s->c->layer[layer].moe) return 0;
    if (drafted(s, layer)) {
        struct layer y = d->layer[layer].view;
        int span = begin(d, "draft", layer, (int)(m - s->micro));
        y.experts = drafted(s, layer);
        TRY(block_experts(exec_of(d), s->c, &y, layer, w, PART_ROUTED, w->x, m->n_dev));
        end(d, span);
        s->counts.drafted++;
        return 0;
    }
    if (!s->view) TRY(step_experts_join(d, (int)(m - s->micro), w->x, m->n_dev));
    TRY(gpu_number_wait(m->answered, ++m->n_wanted, d->main));
    int span = begin(d, "join", layer, (int)(m - s->micro));
    TRY(gpu_copy(d->main, w->xn, m->host.x, row_bytes(s, m->n_dev), GPU_H2D));
    TRY(exec_of(d)->ops->add(exec_of(d), &(struct op_add){.y = w->x, .x = w->xn, .n = m->n_dev, .m = s->c->hidden}));
    end(d, span);
    return 0;
}

int step_carry(const struct config *c, struct gpu_stream *stream, const struct work *to, const struct work *from, int n, int layer, enum gpu_dir dir) {
    const size_t streams = layer < c->n_layers ? (size_t)c->streams.n : 0;
    const size_t row = (size_t)n * (size_t)c->hidden * 4;
    const bool takes = c->attn == ATTN_DSA && layer < c->n_layers && c->layer[layer].index == INDEX_BEFORE;
    TRY(gpu_copy(stream, to->x, from->x, row, dir));
    TRY(gpu_copy(stream, to->streams, from->streams, streams * row, dir)); /* 0 bytes: no copy */
    TRY(gpu_copy(stream, to->post, from->post, (size_t)n * streams * sizeof(float), dir));
    return gpu_copy(stream, to->chosen, from->chosen, takes ? (size_t)n * (size_t)c->index_topk * sizeof(int32_t) : 0, dir);
}

/* Moves rows to the executor of `layer`; layer n_layers: to the LM head's. */
static int device_move(struct step *s, struct step_micro *m, int layer) {
    struct step_device *from = step_device_of(s, layer - 1), *to = step_device_of(s, layer);
    if (from == to) return 0;
    if (s->tensor && s->dev[s->n_dev - 1].head) from = &s->dev[s->n_dev - 1]; /* every rank has the rows */
    if (layer == s->c->n_layers && from->head)
        return gpu_copy(from->main, from->x + (size_t)m->row0 * (size_t)s->c->hidden, work_of(from, m)->x, row_bytes(s, m->n_dev), GPU_D2D);
    TRY(step_carry(s->c, from->main, &m->host, work_of(from, m), m->n_dev, layer, GPU_D2H));
    TRY(arrive(from, m));
    if (!to) { /* the CPU waits for it */
        m->sent[layer % 2] = m->n_arrived;
        return 0;
    }
    TRY(gpu_number_wait(m->arrived, m->n_arrived, to->main));
    return step_carry(s->c, to->main, work_of(to, m), &m->host, m->n_dev, layer, GPU_H2D);
}

/* Enqueues everything after layer `after` (-1: the embedding) on devices, until the CPU is needed again. */
static int device_go(struct step *s, struct step_micro *m, int after, int total) {
    if (!m->n_dev || after >= s->n_resident) return 0;
    if (after >= 0) {
        struct step_device *d = step_device_of(s, after);
        TRY(device_join(s, m, after));
        if (after + 1 == s->c->n_layers) TRY(block_close(exec_of(d), d->head_weights, work_of(d, m), m->n_dev));
        TRY(device_move(s, m, after + 1));
    }
    return after + 1 < s->n_resident ? device_attention(s, m, after + 1, total) : 0;
}

/* Uploads rows and positions, and resets the non-finite mark. */
static int device_begin(struct step *s, struct step_micro *m, int total) {
    if (s->processor && m->n_dev) { /* otherwise the embedding is complete already */
        TRY(gpu_number_write(m->answered, ++m->n_answered, s->processor));
        m->n_wanted++;
        for (int i = 0; i < (s->tensor ? s->n_dev : 1); i++) TRY(gpu_number_wait(m->answered, m->n_wanted, s->dev[i].main));
    }
    for (int i = 0; i < s->n_dev && m->n_dev; i++) {
        struct step_device *d = &s->dev[i];
        struct work *w = work_of(d, m);
        TRY(gpu_fill(d->main, (void *)w->bad, 0xff, 4));
        TRY(gpu_copy(d->main, w->pos, m->host.pos, (size_t)m->n_dev * 4, GPU_H2D));
        TRY(gpu_copy(d->main, w->tokens, m->host.tokens, (size_t)m->n_dev * 4, GPU_H2D));
        if (w->length) TRY(gpu_copy(d->main, w->length, m->host.length, (size_t)m->n_dev * 4, GPU_H2D));
        TRY(block_rope(exec_of(d), s->c, w, s->m->w->rope_mscale, m->n_dev, 0));
        TRY(step_graphs_begin(d, m, total));
        if (!i || s->tensor) TRY(gpu_copy(d->main, w->x, m->host.x, row_bytes(s, m->n_dev), GPU_H2D));
    }
    return 0;
}

/* --- The CPU: attention block of its own rows, experts of all rows -------------------------------------------------------------  */

static int answer(struct step *s, struct step_micro *m) {
    if (s->processor) return gpu_number_write(m->answered, ++m->n_answered, s->processor);
    gpu_number_set(m->answered, ++m->n_answered);
    return 0;
}

/* Returns the workspace as seen by rows from `row` on; buffers that do not outlive an operation are shared. */
static struct work from_row(const struct config *c, const struct work *w, int row) {
    struct work r = *w;
    size_t at = (size_t)row;
    r.x += at * (size_t)c->hidden, r.xn += at * (size_t)c->hidden;
    if (r.streams) r.streams += at * (size_t)(c->streams.n * c->hidden), r.post += at * (size_t)c->streams.n;
    r.tokens += at;
    if (r.chosen) r.chosen += at * (size_t)c->index_topk;
    r.cos += at * (size_t)(c->rope.dim / 2), r.sin += at * (size_t)(c->rope.dim / 2);
    if (r.far_cos) r.far_cos += at * (size_t)(c->rope.dim / 2), r.far_sin += at * (size_t)(c->rope.dim / 2);
    if (r.router) r.router += at * (size_t)c->n_experts;
    if (r.ids) r.ids += at * (size_t)c->topk, r.weights += at * (size_t)c->topk;
    if (r.shared_weight) r.shared_weight += at;
    return r;
}

static int processor_attention(struct step *s, struct step_micro *m, int layer, struct error *e) {
    int first = on_device(s, m, layer);
    if (m->n_dev && layer == s->n_resident) TRY(await_rows(s, m, layer)); /* the residual stream comes from the last device */
    if (first == m->n) return 0;
    struct work w = from_row(s->c, &m->host, first);
    double t = trace_now(s->m->trace);
    int rc = processor_half(s->m, &w, first ? m->rest : m->spans, m->n_spans - (first ? m->n_dev_spans : 0), layer, m->n - first, s->cancel, e);
    trace_host(s->m->trace, t, "attention", layer, (int)(m - s->micro));
    m->host.latent = w.latent, m->host.latent_floats = w.latent_floats; /* buffers that an operation grew */
    m->host.ek = w.ek, m->host.expanded_floats = w.expanded_floats;
    return rc;
}

/* Checks ids from a device: a selection made from non-finite numbers may be anything. The mark says where they came from. */
static bool ids_good(const struct step *s, const struct step_micro *m, int n) {
    for (int i = 0; i < n * s->c->topk; i++)
        if (m->host.ids[i] < 0 || m->host.ids[i] >= s->c->n_experts) return false;
    return true;
}

static void tell_routing(struct step *s, const struct step_micro *m, int layer) {
    for (int k = 0; k < m->n_spans && s->m->routing && !s->processor; k++) {
        const struct span *t = &m->spans[k];
        struct work w = from_row(s->c, &m->host, t->row);
        routing_add(s->m->routing, &s->routing,
                    &(struct routing_rows){.step = s->routing_step,
                                           .chat = s->caller[m->source[k]].kv,
                                           .layer = layer,
                                           .n = t->n,
                                           .pos = t->pos,
                                           .tokens = w.tokens,
                                           .ids = w.ids,
                                           .weights = w.weights,
                                           .router = w.router});
    }
}

/* Runs a draft's experts. A device that has them computes its own rows; the CPU computes the rest. */
static int draft_experts(struct step *s, struct step_micro *m, int layer, int first) {
    const struct step_view *v = s->view;
    struct layer y = *place_layer(s->m->place, s->m->w, layer);
    const int there = drafted(s, layer) ? first : 0;
    struct work rest = from_row(s->c, &m->host, first), own = from_row(s->c, &m->host, there);
    const double t = trace_now(s->m->trace);
    y.experts = v->experts[layer], y.shards = NULL;
    for (int i = 0; i < m->n_spans && v->seen; i++)
        for (int k = 0; k < m->spans[i].n; k++) {
            const size_t at = (size_t)(m->spans[i].row + k) * (size_t)s->c->topk;
            lookahead_chose(v->seen, v->first + m->source[i], layer, m->host.ids + at, m->host.weights + at);
        }
    if (there == m->n) return 0;
    processor_read(s->m, (uint64_t)((m->n - there) * s->c->topk) * v->expert_bytes);
    TRY(block_experts(s->m->cpu, s->c, &y, layer, &own, first ? PART_ROUTED : PART_BOTH, own.x, m->n - there));
    if (first && first < m->n) TRY(block_experts(s->m->cpu, s->c, &y, layer, &rest, PART_SHARED, rest.x, m->n - first));
    trace_host(s->m->trace, t, "draft", layer, (int)(m - s->micro));
    return first && !there ? answer(s, m) : 0;
}

static int processor_experts(struct step *s, struct step_micro *m, int layer, struct error *e) {
    int first = on_device(s, m, layer);
    struct work *w = &m->host, rest = from_row(s->c, w, first);
    const struct layer *y = place_layer(s->m->place, s->m->w, layer);
    double t = trace_now(s->m->trace);
    if (!y->experts) {
        if (first < m->n) TRY(block_experts(s->m->cpu, s->c, y, layer, &rest, PART_SHARED, rest.x, m->n - first));
        if (first < m->n) trace_host(s->m->trace, t, "ffn", layer, (int)(m - s->micro));
        return 0;
    }
    if (first) {
        TRY(await_rows(s, m, layer));
        if (!s->processor) memset(w->x, 0, row_bytes(s, first));
        if (!s->processor && !ids_good(s, m, first)) {
            for (int i = 0; i < first * s->c->topk; i++) w->ids[i] = 0, w->weights[i] = 0; /* the end of the batch reports it */
        }
    }
    if (s->view) return draft_experts(s, m, layer, first);
    tell_routing(s, m, layer);
    for (int i = 0; i < m->n * s->c->topk && !s->processor; i++)
        if (w->ids[i] >= 0) s->used[(size_t)layer * (size_t)s->c->n_experts + (size_t)w->ids[i]]++;
    t = trace_now(s->m->trace);
    struct step_device *d = first ? step_device_of(s, layer) : NULL;
    struct work own = *w; /* minus what the device computes */
    double expected = 0;
    if (d && d->experts) TRY(step_experts_run(d, m, layer, &own.ids, &expected));
    TRY(processor_weights(s->m, &own, layer, m->n, e));
    double begin = clock_now();
    TRY(block_experts(s->m->cpu, s->c, y, layer, &own, first ? PART_ROUTED : PART_BOTH, w->x, m->n));
    double took = clock_now() - begin;
    if (first && first < m->n) TRY(block_experts(s->m->cpu, s->c, y, layer, &rest, PART_SHARED, rest.x, m->n - first));
    trace_host(s->m->trace, t, "experts", layer, (int)(m - s->micro));
    if (first) TRY(answer(s, m));
    return d && d->experts ? step_experts_after(d, m, layer, expected, took) : 0;
}

/* --- LM head: rows of all micro-batches together, on one executor per range -----------------------------------------------------------  */

static int head_range(struct step *s, struct step_device *d, int row, int n, int32_t *top) {
    size_t at = (size_t)row * (size_t)s->c->vocab;
    if (!d) {
        struct work w = {.x = s->head.x, .xn = s->head.xn, .bad = s->head.bad};
        s->m->cpu->cancel = s->cancel;
        processor_read(s->m, mat_bytes(&s->m->w->head));
        double t = trace_now(s->m->trace);
        int rc = block_head(s->m->cpu, place_head(s->m->place, s->m->w), &w, row, n, s->logits + at, top + row);
        trace_host(s->m->trace, t, "head", -1, -1);
        return rc;
    }
    struct work w = {.x = d->x, .xn = d->xn, .bad = d->work[0].bad};
    int span = begin(d, "head", -1, -1);
    TRY(block_head(exec_of(d), d->head_weights, &w, row, n, d->logits + at, NULL));
    TRY(gpu_copy(d->main, s->logits + at, d->logits + at, (size_t)n * (size_t)s->c->vocab * 4, GPU_D2H));
    const size_t x = (size_t)row * (size_t)s->c->hidden;
    if (s->hidden) TRY(gpu_copy(d->main, s->head.x + x, d->x + x, row_bytes(s, n), GPU_D2H));
    end(d, span);
    return 0;
}

static int head(struct step *s, int n, int32_t *top) {
    struct step_device *last = s->n_dev && s->n_resident == s->c->n_layers ? &s->dev[s->n_dev - 1] : NULL, *there = last && last->head ? last : NULL;
    int begin = 0, row = 0;
    bool device = false; /* executor of rows [begin, row) */
    for (int i = 0; i < s->n_micros; i++) {
        struct step_micro *m = &s->micro[i];
        int n_dev = there ? m->n_dev : 0;
        if (last && !there && m->n_dev) TRY(await_rows(s, m, s->c->n_layers));
        if (n_dev < m->n && !s->processor)
            memcpy(s->head.x + (size_t)(row + n_dev) * (size_t)s->c->hidden, m->host.x + (size_t)n_dev * (size_t)s->c->hidden, row_bytes(s, m->n - n_dev));
        for (int part = 0; part < 2; part++) {
            int k = part ? m->n - n_dev : n_dev;
            if (k && device != !part && row > begin) {
                TRY(head_range(s, device ? there : NULL, begin, row - begin, top));
                begin = row;
            }
            if (k) device = !part;
            row += k;
        }
    }
    return head_range(s, device ? there : NULL, begin, n - begin, top);
}

/* --- A batch -------------------------------------------------------------------------------------------------------------------------  */

static bool any_on_device(const struct step *s) {
    for (int i = 0; i < s->n_micros; i++)
        if (s->micro[i].n_dev) return true;
    return false;
}

static int walk(struct step *s, int n, int32_t *top, struct error *e) {
    if (!any_on_device(s)) processor_read(s->m, s->m->w->bytes_dense);
    for (int i = 0; i < s->n_micros; i++) {
        struct step_micro *m = &s->micro[i];
        TRY(processor_begin(s->m, &m->host, m->n, 0, s->cancel, e));
        TRY(device_begin(s, m, n));
        TRY(device_go(s, m, -1, n));
        TRY(processor_attention(s, m, 0, e));
    }
    for (int l = 0; l < s->c->n_layers; l++)
        for (int i = 0; i < s->n_micros; i++) {
            struct step_micro *m = &s->micro[i];
            const bool goes_on = !drafted(s, l); /* else the device would run ahead before the CPU has read the draft router's selection */
            if (goes_on) TRY(device_go(s, m, l, n));
            TRY(processor_experts(s, m, l, e));
            if (!goes_on) TRY(device_go(s, m, l, n));
            if (l + 1 < s->c->n_layers) TRY(processor_attention(s, m, l + 1, e));
        }
    for (int i = 0; i < s->n_micros; i++) { /* rows whose last layer ran on the CPU */
        struct step_micro *m = &s->micro[i];
        int first = on_device(s, m, s->c->n_layers - 1);
        struct work own = from_row(s->c, &m->host, first);
        if (first < m->n) TRY(block_close(s->m->cpu, s->m->w, &own, m->n - first));
    }
    TRY(head(s, n, top));
    for (int i = 0; i < s->n_dev && any_on_device(s); i++) {
        struct step_device *d = &s->dev[i];
        TRY(step_rows_send(d, n));
        for (int k = 0, span = 0; k < s->n_micros; k++)
            for (int t = 0; t < s->micro[k].n_dev_spans; t++) TRY(step_states_send(d, span++, &s->micro[k].dev[t], &s->micro[k].spans[t]));
        for (int k = 0; k < s->n_micros; k++)
            if (s->micro[k].n_dev) TRY(gpu_copy(d->main, (void *)&s->bad[i * STEP_MICROS + k], (const void *)d->work[k].bad, 4, GPU_D2H));
    }
    for (int i = 0; i < s->n_dev && any_on_device(s); i++) {
        struct step_micro *m = &s->micro[0];
        if (s->processor) {                                                 /* order what follows after every device's clock */
            TRY(gpu_number_wait(m->arrived, m->n_arrived, s->dev[i].main)); /* other devices' signals come first: a timeline only grows */
            TRY(arrive(&s->dev[i], m));
            TRY(gpu_number_wait(m->arrived, m->n_arrived, s->processor));
        }
        TRY(gpu_stream_sync(s->dev[i].main));
    }
    return 0;
}

/* Argmax with the rules of op_linear's top: the first of equals, -1 if a value is NaN. */
static int32_t largest(const float *x, int n) {
    int32_t best = 0;
    bool good = true;
    for (int32_t i = 0; i < n; i++) {
        good &= x[i] == x[i];
        if (x[i] > x[best]) best = i;
    }
    return good ? best : -1;
}

/* Collects the first non-finite mark of all workspaces, and the argmax of rows whose head ran on a device. */
static int check(struct step *s, int n, int32_t *top, struct error *e) {
    int at = atomic_load(s->head.bad);
    for (int i = 0; i < s->n_micros; i++) {
        int places[GPU_MAX + 1], k = 0;
        places[k++] = atomic_load(s->micro[i].host.bad);
        for (int d = 0; d < s->n_dev && s->micro[i].n_dev; d++) places[k++] = atomic_load(&s->bad[d * STEP_MICROS + i]);
        while (k--)
            if (places[k] >= 0 && (at < 0 || places[k] < at)) at = places[k];
    }
    atomic_store(s->head.bad, at);
    TRY(check_finite(s->m->w, &s->head, e));
    for (int row = 0, i = 0; i < s->n_micros; row += s->micro[i++].n) {
        const struct step_micro *m = &s->micro[i];
        bool there = m->n_dev && s->n_resident == s->c->n_layers && s->dev[s->n_dev - 1].head;
        for (int k = 0; there && k < m->n_dev; k++) top[row + k] = largest(s->logits + (size_t)(row + k) * (size_t)s->c->vocab, s->c->vocab);
    }
    for (int i = 0; i < n; i++)
        if (top[i] < 0) return error_set(e, ERR_MODEL, "the LM head produced a NaN logit; the weights may be damaged; check them with --verify");
    return 0;
}

/* Whether a blended prefill has work in the same streams. */
static bool shared_streams(const struct step *s) {
    bool any = false;
    for (const struct step_mirror *m = s->mirrors; m; m = m->next) any |= m->kept;
    return any;
}

/* Leaves devices idle with fresh timelines, whatever was in flight. drop: cancels others' work in the same streams too; else waits for it. */
static int settle(struct step *s, bool drop, struct error *e) {
    for (int i = 0; i < s->n_dev && drop; i++) atomic_store(&s->dev[i].stop, 1);
    for (int i = 0; i < STEP_MICROS; i++) {
        struct step_micro *m = &s->micro[i];
        if (m->answered) gpu_number_break(m->answered);
        if (m->arrived) gpu_number_break(m->arrived);
        for (int k = 0; k < s->n_dev; k++)
            if (m->part[k]) gpu_number_break(m->part[k]);
    }
    for (int i = 0; i < s->n_dev; i++) {
        step_experts_break(&s->dev[i]);
        if (s->dev[i].main) gpu_stream_sync(s->dev[i].main);
        step_fill_settle(&s->dev[i]);
    }
    int rc = 0;
    for (int i = 0; i < s->n_dev; i++) {
        atomic_store(&s->dev[i].stop, 0);
        if (!rc) rc = step_experts_settle(&s->dev[i], e);
    }
    if (rc) return rc;
    for (struct step_mirror *m = s->mirrors; m; m = m->next)
        if (m->used == s->clock) step_mirror_stale(s, m->kv, 0); /* uploads may be incomplete */
    return s->n_dev ? step_numbers_open(s, e) : 0;
}

int step_leave(struct step *s, const char *why, struct error *e) {
    settle(s, true, &(struct error){0});
    step_processor_close(s);
    for (int i = 0; i < s->n_dev; i++)
        if (gpu_clear(s->dev[i].g, &(struct error){0})) s->m->gpus->lost = true;
    step_devices_close(s);
    step_tell(s, why);
    *e = (struct error){0};
    return step_processor_open(s, e);
}

/* --- Splitting into micro-batches ----------------------------------------------------------------------------------------------  */

static void add_span(struct step *s, struct step_micro *m, const struct step_span *from, int source, const struct kv_move *move,
                     const struct step_mirror *copy) {
    struct span t = {.cache = from->kv->layer, .row = m->n, .n = from->n, .pos = from->pos, .move = *move};
    for (int i = 0; i < from->n; i++) m->host.tokens[m->n + i] = from->tokens[i], m->host.pos[m->n + i] = from->pos + i;
    for (int i = 0; i < from->n && m->host.length; i++) m->host.length[m->n + i] = from->pos + from->n;
    m->source[m->n_spans] = source;
    m->spans[m->n_spans] = t;
    if (copy) {
        t.cache = copy->layer, t.move = copy->move;
        m->copy[m->n_dev_spans] = copy;
        m->dev[m->n_dev_spans++] = t;
        m->n_dev += from->n;
    } else {
        t.row -= m->n_dev;
        m->rest[m->n_spans - m->n_dev_spans] = t;
    }
    m->n_spans++;
    m->n += from->n;
}

/* Splits spans into micro-batches, rows with device KV first in each. Each next span, longest KV first, goes to the micro-batch
 * with the fewest rows relative to its share, so that both attend to similar lengths. Returns all rows. */
static int cut(struct step *s, enum step_cut how, const struct step_span *spans, int n_spans) {
    const struct step_mirror *copies[STEP_ROWS];
    struct kv_move moves[STEP_ROWS];
    int order[STEP_ROWS], n = 0, on_devices = 0;
    s->clock++;
    for (int i = 0; i < n_spans; i++) {
        moves[i] = kv_begin(spans[i].kv, spans[i].pos, spans[i].n, 0);
        copies[i] = how == STEP_CPU || !s->n_dev ? NULL : step_mirror_get(s, spans[i].kv, moves[i].from, spans[i].pos, spans[i].pos + spans[i].n);
        on_devices += copies[i] != NULL;
        int k = i;
        while (k && spans[order[k - 1]].pos < spans[i].pos) order[k] = order[k - 1], k--;
        order[k] = i;
    }
    const int first = s->cut_at > 0 && s->cut_at < n_spans ? s->cut_at : n_spans - n_spans / 2;
    s->n_micros = how == STEP_DUAL && on_devices > 1 ? 2 : 1;
    s->ran = !on_devices ? STEP_CPU : s->n_micros > 1 ? STEP_DUAL : STEP_HYBRID;
    for (int i = 0; i < STEP_MICROS; i++) s->micro[i].n = s->micro[i].n_dev = s->micro[i].n_spans = s->micro[i].n_dev_spans = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < n_spans; i++) {
            int k = s->n_micros > 1 ? order[i] : i;
            if ((copies[k] == NULL) != pass) continue;
            struct step_micro *m = &s->micro[0];
            if (s->n_micros > 1 && s->micro[1].n * first < m->n * (n_spans - first)) m = &s->micro[1];
            add_span(s, m, &spans[k], k, &moves[k], copies[k]);
        }
    for (int i = 0; i < s->n_micros; i++) s->micro[i].row0 = n, n += s->micro[i].n;
    return n;
}

static int run(struct step *s, enum step_cut how, struct step_span *spans, int n_spans, struct error *e) {
    s->caller = spans;
    if (!s->view) s->routing_step = routing_begin(s->m->routing);
    routing_end(s->m->routing, &s->routing, false); /* lines of a failed batch */
    if (s->away) how = STEP_CPU;
    if (how != STEP_CPU && s->n_dev && !s->loaded) {
        int rc = s->clock >= s->again ? step_load(s, e) : ERR_MEMORY;
        if (rc && rc != ERR_MEMORY) return rc;
        if (rc && s->clock >= s->again) { /* a prefill has the memory; retry later */
            log_say(LOG_INFO, "decoding on the CPU: %s", e->text);
            *e = (struct error){0};
            s->again = s->clock + 64;
        }
        if (rc) how = STEP_CPU;
    }
    for (int i = 0; i < s->n_dev && how != STEP_CPU && !s->lent; i++) {
        int rc = step_experts_open(&s->dev[i], e);
        if (rc) return rc;
        if (!s->view) step_experts_begin(&s->dev[i]);
        else if ((rc = step_draft_load(&s->dev[i], e))) return rc;
    }
    for (int i = 0; i < n_spans; i++)
        if (!s->processor && kv_floor(spans[i].kv, spans[i].pos) != spans[i].pos)
            return error_set(e, ERR_RUNTIME, "a session has no state at position %d", spans[i].pos);
    int rc = 0;
    for (int i = 0; i < n_spans && !rc; i++) rc = kv_reach(spans[i].kv, spans[i].pos + spans[i].n, e);
    if (rc) return rc;
    int n = cut(s, how, spans, n_spans);
    atomic_store(s->head.bad, -1);
    if ((rc = walk(s, n, s->top, e))) return rc;
    if (s->processor) return 0;
    step_states_store(s);
    for (int i = 0; i < s->n_micros; i++) {
        const struct step_micro *m = &s->micro[i];
        step_rows_store(s, m, spans, n);
        for (int k = 0; k < m->n_spans; k++) {
            struct step_span *t = &spans[m->source[k]];
            int row = m->row0 + m->spans[k].row;
            t->logits = s->logits + (size_t)row * (size_t)s->c->vocab;
            t->top = s->top + row;
            t->hidden = s->hidden ? s->head.x + (size_t)row * (size_t)s->c->hidden : NULL;
        }
    }
    if ((rc = check(s, n, s->top, e))) return rc;
    for (int i = 0; i < s->n_micros; i++)
        for (int k = 0; k < s->micro[i].n_spans; k++) {
            const struct span *t = &s->micro[i].spans[k];
            kv_done(spans[s->micro[i].source[k]].kv, &t->move, t->pos, t->n);
        }
    for (int i = 0; i < n_spans; i++) step_mirror_filled(s, spans[i].kv, spans[i].pos + spans[i].n);
    if (!s->view) routing_end(s->m->routing, &s->routing, true);
    return 0;
}

int step_run(struct step *s, enum step_cut how, struct step_span *spans, int n_spans, const _Atomic int *cancel, struct error *e) {
    struct error device = {0};
    s->cancel = cancel;
    step_mirrors_reap(s);
    int rc = s->logits ? 0 : step_processor_open(s, e); /* host buffers were lost when devices were dropped */
    if (!rc) rc = run(s, how, spans, n_spans, e);
    trace_settle(s->m->trace);
    if (!rc) return 0;
    bool failed = s->n_dev && step_device_error(s, &device);
    if (s->n_dev && !failed && rc == ERR_RUNTIME && !e->code) failed = error_set(&device, rc, "a device failed"); /* a prefill on it noticed first */
    if (!failed && !e->code) op_error(rc, e);
    if (s->n_dev && (failed || settle(s, !shared_streams(s), &device))) {
        log_say(LOG_WARN, "%s; sessions now decode on the CPU", device.text);
        rc = step_leave(s, device.text, e);
        if (!rc && (rc = run(s, STEP_CPU, spans, n_spans, e)) && !e->code) op_error(rc, e);
    }
    return rc;
}

void step_lost(struct step *s, const char *why) {
    if (s->n_dev) step_leave(s, why, &(struct error){0}); /* missing host memory is allocated by the next batch */
}

void step_view(struct step *s, const struct step_view *v) { s->view = v; }
int step_expect(struct step *s, const struct lookahead *a, enum step_phase phase, double before) {
    if (s->m->fetch) fetch_announced(s->m->fetch, a, phase == STEP_ALL); /* pauses disk reads until a later phase: nothing waits for it */
    for (int i = 0; i < s->n_dev && !s->lent && !s->away; i++) TRY(step_experts_expect(&s->dev[i], a, phase, before));
    return 0;
}
void step_cut_at(struct step *s, int spans) { s->cut_at = spans; }
void step_hidden(struct step *s, bool wanted) { s->hidden = wanted; }
enum step_cut step_ran(const struct step *s) { return s->ran; }
bool step_yield(struct step *s) {
    if (s->away || (!s->loaded && !s->mirrors)) return false;
    while (s->mirrors) step_mirror_drop(s, s->mirrors);
    step_unload(s);
    return s->away = true;
}
void step_back(struct step *s) { s->away = s->lent = false; }
void step_lend(struct step *s, size_t free) {
    for (int i = 0; i < s->n_dev; i++) {
        if (gpu_mem_free(s->dev[i].g) < free) step_draft_close(&s->dev[i]);
        if (s->dev[i].experts && gpu_mem_free(s->dev[i].g) < free) step_experts_close(&s->dev[i]);
    }
    s->lent = true;
}
struct step_counts step_counts(const struct step *s) {
    return s->counts;
}
void step_experts_map(const struct step *s, uint32_t *used, int8_t *where) {
    size_t n = (size_t)s->c->n_layers * (size_t)s->c->n_experts;
    memcpy(used, s->used, n * sizeof *used);
    memset(where, -1, n);
    for (int i = 0; i < s->n_dev; i++) step_experts_where(&s->dev[i], where);
}
bool step_away(const struct step *s) { return s->away; }
size_t step_held(const struct step *s, int device) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == device) return s->dev[i].held;
    return 0;
}
size_t step_weights(const struct step *s, int device) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == device) return s->dev[i].weights;
    return 0;
}
bool step_holds(const struct step *s, int device) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == device) return true;
    return false;
}
bool step_ready(const struct step *s) { return s->n_resident && !s->away && (s->loaded || s->clock >= s->again); }

int step_resident_layers(const struct step *s) { return s->n_resident; }
const char *step_resident(const struct step *s) { return s->why; }
bool step_blends(const struct step *s) { return s->n_dev && s->n_resident == s->c->n_layers && !s->tensor; }
int step_ranks(const struct step *s) { return s->tensor ? s->n_dev : 1; }

int step_open(struct step **out, struct machine *m, enum dtype kv, struct error *e) {
    struct step *s = mem_calloc(1, sizeof *s);
    *out = NULL;
    if (!s) return error_set(e, ERR_MEMORY, "no memory for decode");
    s->m = m;
    s->c = &m->w->config;
    pthread_mutex_init(&s->lock, NULL);
    s->kv = kv;
    s->processor = m->processor;
    step_tell(s, m->alone ? "nothing (CPU requested)" : "nothing (no devices)");
    int rc = step_cache_open(&s->cache, s->c, kv, e);
    if (!rc && !(s->used = mem_calloc((size_t)s->c->n_layers * (size_t)s->c->n_experts + 1, sizeof *s->used)))
        rc = error_set(e, ERR_MEMORY, "no memory for decode");
    if (!rc && m->gpus && !m->gpus->lost && !m->alone) rc = step_devices_open(s, e);
    if (!rc) rc = step_processor_open(s, e);
    if (rc && s->n_dev) { /* the device already failed: report why in case the user forced GPU decode */
        struct error why = *e;
        step_device_error(s, &why);
        log_say(LOG_WARN, "%s; sessions decode on the CPU", why.text);
        rc = step_leave(s, why.text, e);
    }
    *out = s;
    if (rc) step_close(out);
    return rc;
}

void step_close(struct step **sp) {
    struct step *s = *sp;
    if (!s) return;
    *sp = NULL;
    step_processor_close(s);
    step_devices_close(s);
    buf_free(&s->routing);
    mem_free(s->used);
    step_cache_close(&s->cache);
    pthread_mutex_destroy(&s->lock);
    mem_free(s);
}
