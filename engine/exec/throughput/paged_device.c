/* One device in throughput decode: its memory, and its layers' work in the global order of units. */
#include <string.h>

#include "base/mem.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/throughput/paged_internal.h"
#include "engine/layer/expert_io.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"
#include "engine/model/rope.h"

enum { MAX_ALONE_ROWS = 256 }; /* most rows per group of an expert if they are one session's */

/* A span that runs alone has more than BATCH_INVARIANT_ROWS rows; between two of them is one run of the others. */
size_t paged_max_runs(int micro) { return 2 * ((size_t)micro / (BATCH_INVARIANT_ROWS + 1)) + 1; }

/* --- Views ------------------------------------------------------------------------------------ */

static struct exec *exec_of(struct paged_device *d) { return gpu_stream_exec(d->main); }
static size_t hidden_bytes(const struct paged *p, int n) { return (size_t)n * (size_t)p->c->hidden * 4; }

int paged_copy_passed(struct paged_device *d, const struct micro_batch *m, int layer, enum gpu_dir way) {
    const struct config *c = d->p->c;
    for (const struct work_row *k = work_rows; k->width; k++) {
        if (!k->reads || !paged_is_batch_row(c, k) || (layer >= 0 && !k->reads(c, layer))) continue;
        const size_t one = work_row_bytes(k, c), at = (size_t)m->row * one;
        char *host = (char *)*work_field(&d->p->host, k) + at, *device = (char *)*work_field(&d->rows, k) + at;
        TRY(gpu_copy(d->main, way == GPU_D2H ? host : device, way == GPU_D2H ? device : host, (size_t)m->n * one, way));
    }
    return 0;
}
/* Copies a micro-batch's rows of buffer k between its host buffer and the device. */
static int copy_rows(struct paged_device *d, const struct work_row *k, struct rows_buffer *b, int n, enum gpu_dir way) {
    void *host = *work_field(&b->rows, k), *device = *work_field(&d->work, k);
    const size_t bytes = (size_t)n * work_row_bytes(k, d->p->c);
    return gpu_copy(d->main, way == GPU_D2H ? host : device, way == GPU_D2H ? device : host, bytes, way);
}

/* Views the workspace from row `at` of a micro-batch on; x, positions and tokens are in the buffers of the batch. */
static struct work work_from_row(const struct paged_device *d, const struct micro_batch *m, int layer, int at) {
    struct work w = d->work;
    for (const struct work_row *k = work_rows; k->width; k++)
        if (paged_is_batch_row(d->p->c, k)) work_point(k, d->p->c, &w, &d->rows, (size_t)m->row);
    w = work_slice(d->p->c, &w, at);
    for (const struct work_row *k = work_rows; k->width; k++)
        if (paged_is_result(k) || paged_moves_in(d->p->c, layer, k)) work_point(k, d->p->c, &w, &d->work, (size_t)at);
    return w;
}

/* Results of an extent whose rows the device attends for. */
static float *result_rows(const struct paged_device *d, int unit, const struct row_extent *t) {
    struct work at = {0};
    const struct work all = {.att = d->att[unit % PAGED_BUFFERS]};
    for (const struct work_row *k = work_rows; k->width; k++)
        if (paged_is_result(k)) work_point(k, d->p->c, &at, &all, (size_t)t->at);
    return at.att;
}

/* --- A layer's work --------------------------------------------------------------------------- */

static float *row_at(float *x, const struct micro_batch *m, int hidden) { return x + (size_t)m->row * (size_t)hidden; }
/* Return the device of the previous layer, and its unit of the same rows. */
static const struct paged_device *previous_device(const struct paged_device *d) {
    return &d->p->dev[(d->rank + d->p->n_dev - 1) % d->p->n_dev];
}
static int previous_unit(const struct paged_device *d, int unit) { return d->rank ? unit : unit - d->p->n_micros; }

/* Attends for the start of a prompt over its own rows, and downloads the states that it leaves. The results stay. */
static int attend_start(struct paged_device *d, int layer, int unit, const struct row_extent *t, struct work *w,
                        char *states) {
    enum { LAST, MARK };
    const struct paged *p = d->p;
    const struct kv_state_step *of = &p->steps[t->span];
    const size_t bytes = 2 * paged_state_bytes(p->c, layer);
    struct cache_desc desc[CACHE_PLANES];
    char *state = d->states;
    for (int i = 0, n = kv_planes(p->c, layer, desc); i < n; i++) {
        struct kv_plane *to = &d->start[layer].p[i];
        if (!desc[i].fixed_rows) {
            *to = attention_plane(d->cache[layer].p[i], t->at);
            continue;
        }
        *to = kv_plane_of(&desc[i], p->kv), to->data = state;
        state += 2 * kv_row_range_of(to, 0, 1).bytes;
    }
    const struct span s = {.cache = d->start,
                           .n = t->n,
                           .state_step = {.from_row = -1, .to_row = LAST, .mark = of->mark, .mark_row = MARK}};
    w->att = result_rows(d, unit, t);
    const int rc = block_attend(exec_of(d), p->c, &d->w.views[layer], layer, w, &s,
                                (struct key_range){.n = t->n, .piece = PIECE_ALL});
    work_keep_grown(&d->work, w); /* after a failure, too: what was there before may be free */
    TRY(rc);
    return bytes ? gpu_copy(d->main, states, d->states, bytes, GPU_D2H) : 0;
}

/* Computes queries, keys and values and downloads them. */
static int project_unit(struct paged_device *d, int unit) {
    const struct paged *p = d->p;
    const int layer = paged_layer(d, unit);
    const struct micro_batch *m = paged_micro(d, unit);
    const struct layer *y = &d->w.views[layer];
    struct rows_buffer *b = &d->buffer[unit % PAGED_BUFFERS];
    struct kv_plane to[CACHE_PLANES];
    int span = trace_begin(p->m->trace, d->main, d->rank, LANE_COMPUTE, "project", layer, (int)(m - p->micro)), rc = 0;
    int n = paged_planes(p, layer, b->kv, to), n_moved = 0, n_starts = 0; /* n_moved: rows up to the CPU's last ones */
    const bool is_here = layer && p->n_dev == 1;                          /* the layer before ran on this device */
    if (layer && !is_here)
        rc = gpu_timeline_wait(previous_device(d)->passed, paged_value(previous_device(d), previous_unit(d, unit)),
                               d->main);
    if (!block_attends_apart(p->c, layer)) {
        if (!rc && is_here) rc = paged_copy_passed(d, m, layer, GPU_D2H);
        trace_end(p->m->trace, span, d->main);
        return rc ? rc : gpu_timeline_signal(d->projected, paged_value(d, unit), d->main);
    }
    if (!rc && layer && !is_here) rc = paged_copy_passed(d, m, layer, GPU_H2D);
    if (!rc && !layer)
        rc = gpu_copy(d->main, row_at(d->rows.x, m, p->c->hidden), row_at(p->host.x, m, p->c->hidden),
                      hidden_bytes(p, m->n), GPU_H2D);
    for (const struct row_extent *t = p->extents + m->extent; t < p->extents + m->extent + m->n_extents && !rc; t++) {
        struct work w = work_from_row(d, m, layer, t->at);
        const int k = t->n;
        rc = block_rope(exec_of(d), p->m->w, &w, k, 0);
        if (!rc)
            rc =
                block_kv(exec_of(d), p->c, y, layer, &w, &(struct span){.cache = d->cache, .n = k, .pos = t->at}, 1, k);
        if (!rc) rc = block_query(exec_of(d), p->c, y, layer, &w, k);
        if (!paged_attends_on_device(p->c, layer, t)) n_moved = t->at + t->n;
        else if (!rc)
            rc = attend_start(d, layer, unit, t, &w,
                              b->states + (size_t)n_starts++ * 2 * paged_state_bytes(p->c, layer));
    }
    for (const struct work_row *k = work_rows; k->width && n_moved && !rc; k++)
        if (paged_moves_in(p->c, layer, k)) rc = copy_rows(d, k, b, n_moved, GPU_D2H);
    for (int i = 0; i < n && !rc; i++) {
        if (!to[i].data) continue;
        struct kv_row_range r = kv_row_range_of(&to[i], 0, m->n);
        rc = gpu_copy(d->main, to[i].data, d->cache[layer].p[i].data, r.bytes, GPU_D2H);
        if (!rc && r.n_scales) rc = gpu_copy(d->main, to[i].scale, d->cache[layer].p[i].scale, r.n_scales * 4, GPU_D2H);
    }
    trace_end(p->m->trace, span, d->main);
    return rc ? rc : gpu_timeline_signal(d->projected, paged_value(d, unit), d->main);
}

/* Counts how many rows of each run selected each expert, d->run_counts [runs, n_experts]. Virtual time: an even
 * spread. */
static int read_choices(struct paged_device *d, const struct micro_batch *m) {
    const struct paged *p = d->p;
    const int n_experts = p->c->n_experts, topk = p->c->topk;
    const struct row_extent *run = d->runs;
    if (p->m->cpu_queue) {
        for (int r = 0; r < d->n_runs; r++)
            for (int k = 0; k < n_experts; k++)
                d->run_counts[r * n_experts + k] = (int32_t)((int64_t)run[r].n * topk * (k + 1) / n_experts) -
                                                   (int32_t)((int64_t)run[r].n * topk * k / n_experts);
        return 0;
    }
    TRY(gpu_copy(d->main, d->host_ids, d->work.ids, (size_t)m->n * (size_t)topk * 4, GPU_D2H));
    TRY(gpu_copy(d->main, d->host_bad, (const void *)d->work.first_bad, 4, GPU_D2H));
    TRY(gpu_timeline_signal(d->routed, ++d->n_routed, d->main));
    TRY(gpu_timeline_wait_host(d->routed, d->n_routed, &p->stop));
    if (*d->host_bad >= 0) return ERR_MODEL; /* the selection may be garbage */
    memset(d->run_counts, 0, (size_t)d->n_runs * (size_t)n_experts * sizeof *d->run_counts);
    for (int r = 0; r < d->n_runs; r++)
        for (int i = run[r].at * topk; i < (run[r].at + run[r].n) * topk; i++) {
            if (d->host_ids[i] < 0 || d->host_ids[i] >= n_experts) return ERR_MODEL;
            d->run_counts[r * n_experts + d->host_ids[i]]++;
        }
    return 0;
}

static int run_group(struct paged_device *d, struct op_group *g, int layer, const struct micro_batch *m) {
    struct trace *trace = d->p->m->trace;
    if (!g->n) return 0;
    int span = trace_begin(trace, d->main, d->rank, LANE_COMPUTE, "experts", layer, (int)(m - d->p->micro));
    TRY(op_run(exec_of(d), OP_GROUP, g));
    trace_end(trace, span, d->main);
    g->begin[0] = g->begin[g->n];
    g->n = 0;
    return 0;
}

/* Merges extents into runs whose selections are counted together: a lone span, or everything between two of them. */
static void find_runs(struct paged_device *d, const struct micro_batch *m) {
    const struct row_extent *t = d->p->extents + m->extent, *end = t + m->n_extents;
    d->n_runs = 0;
    for (; t < end; t++) {
        struct row_extent *last = d->n_runs ? &d->runs[d->n_runs - 1] : NULL;
        if (last && !last->is_alone && !t->is_alone) last->n += t->n;
        else d->runs[d->n_runs++] = *t;
    }
}

/* Calls fn for each extent's rows. */
static int each_extent(struct paged_device *d, int layer, const struct micro_batch *m,
                       int (*fn)(struct paged_device *d, int layer, struct work *w, int n)) {
    const struct row_extent *first = d->p->extents + m->extent;
    for (const struct row_extent *t = first; t < first + m->n_extents; t++) {
        struct work w = work_from_row(d, m, layer, t->at);
        TRY(fn(d, layer, &w, t->n));
    }
    return 0;
}
static int begin_experts(struct paged_device *d, int layer, struct work *w, int n) {
    return expert_io_begin(exec_of(d), d->p->c, &d->w.views[layer], w, n);
}
static int end_experts(struct paged_device *d, int layer, struct work *w, int n) {
    return expert_io_end(exec_of(d), d->p->c, &d->w.views[layer], w, w->x, n);
}

static int max_group_rows(const struct row_extent *run) {
    return run->is_alone ? MAX_ALONE_ROWS : BATCH_INVARIANT_ROWS;
}

/* Runs the routed experts of a micro-batch in order. An expert's rows from several sessions go BATCH_INVARIANT_ROWS at
 * a time, so that a row's bits do not depend on other rows that select the expert; rows of a lone span go by
 * themselves. All groups of an expert are in one operation, so that its weights are read from device memory once. After
 * the layer's last rows its pages are freed. */
static int run_experts(struct paged_device *d, int layer, const struct micro_batch *m) {
    const struct paged *p = d->p;
    const struct config *c = p->c;
    const bool is_last = m == &p->micro[p->n_micros - 1];
    const struct expert_io io = expert_io_of(c, &d->work, row_at(d->rows.x, m, c->hidden));
    struct op_group g = {.y = io.sum,
                         .x = io.in,
                         .token = d->token,
                         .weight = d->weight,
                         .hidden = io.width,
                         .wide = config_needs_wide_activations(c)};
    TRY(op_run(exec_of(d), OP_SORT,
               &(struct op_sort){.offset = d->offset,
                                 .token = d->token,
                                 .weight = d->weight,
                                 .ids = d->work.ids,
                                 .weights = d->work.weights,
                                 .n = m->n,
                                 .topk = c->topk,
                                 .last = c->n_experts}));
    find_runs(d, m);
    TRY(read_choices(d, m));
    TRY(each_extent(d, layer, m, begin_experts));
    for (int k = 0; k < c->n_experts; k++) {
        struct expert view = {0};
        int rows_left = 0, pieces = 0;
        for (int r = 0; r < d->n_runs; r++) {
            const int n = d->run_counts[r * c->n_experts + k], max_rows = max_group_rows(&d->runs[r]);
            rows_left += n, pieces += (n + max_rows - 1) / max_rows;
        }
        /* split over two operations its weights would be read twice */
        if (g.n + pieces > OP_GROUP_MAX && pieces <= OP_GROUP_MAX) {
            TRY(run_group(d, &g, layer, m));
            if (is_last) TRY(paged_weights_free(&d->w, layer, k, d->main));
        }
        for (int r = 0; r < d->n_runs; r++) {
            const int max_rows = max_group_rows(&d->runs[r]);
            for (int left = d->run_counts[r * c->n_experts + k], n; left; left -= n) {
                n = left < max_rows ? left : max_rows;
                if (!view.gate.data) TRY(paged_weights_use(&d->w, layer, k, d->main, &view));
                g.expert[g.n] = view;
                g.begin[g.n + 1] = g.begin[g.n] + n;
                rows_left -= n;
                if (++g.n < OP_GROUP_MAX) continue;
                TRY(run_group(d, &g, layer, m));
                if (is_last) TRY(paged_weights_free(&d->w, layer, rows_left ? k : k + 1, d->main));
            }
        }
    }
    TRY(run_group(d, &g, layer, m));
    if (is_last) TRY(paged_weights_free(&d->w, layer, c->n_experts, d->main));
    return each_extent(d, layer, m, end_experts);
}

/* Runs the FFN of a layer of a model without experts. After the layer's last rows its pages are freed. Queued
 * operations refer to the layer's view, so that it is written before the first of them only. */
static int run_dense_ffn(struct paged_device *d, int layer, const struct micro_batch *m) {
    const struct paged *p = d->p;
    const struct row_extent *first = p->extents + m->extent;
    struct layer *y = &d->w.views[layer];
    struct expert ffn;
    int span = trace_begin(p->m->trace, d->main, d->rank, LANE_COMPUTE, "ffn", layer, (int)(m - p->micro));
    TRY(paged_weights_use(&d->w, layer, 0, d->main, &ffn));
    if (m == p->micro) y->dense = ffn;
    for (const struct row_extent *t = first; t < first + m->n_extents; t++) {
        struct work w = work_from_row(d, m, layer, t->at);
        TRY(block_experts(exec_of(d), p->c, y, layer, &w, PART_SHARED, w.x, t->n));
    }
    trace_end(p->m->trace, span, d->main);
    return m == &p->micro[p->n_micros - 1] ? paged_weights_free(&d->w, layer, 1, d->main) : 0;
}

/* Runs everything after attention, up to the next layer. */
static int finish_unit(struct paged_device *d, int unit) {
    const struct paged *p = d->p;
    const int layer = paged_layer(d, unit);
    const struct micro_batch *m = paged_micro(d, unit);
    const struct layer *y = &d->w.views[layer];
    if (p->m->cpu_queue) TRY(gpu_timeline_wait(d->attended, paged_value(d, unit), d->main));
    else TRY(gpu_timeline_wait_host(d->attended, paged_value(d, unit), &p->stop));
    int span = trace_begin(p->m->trace, d->main, d->rank, LANE_COMPUTE, "output", layer, (int)(m - p->micro));
    const bool is_apart = block_attends_apart(p->c, layer);
    const struct row_extent *first = p->extents + m->extent, *end = first + m->n_extents;
    int n_moved = 0;
    for (const struct row_extent *t = first; t < end; t++)
        if (!paged_attends_on_device(p->c, layer, t)) n_moved = t->at + t->n;
    for (const struct work_row *k = work_rows; k->width && is_apart && y->o.rows && n_moved; k++)
        if (paged_is_result(k)) TRY(copy_rows(d, k, &d->buffer[unit % PAGED_BUFFERS], n_moved, GPU_H2D));
    if (!is_apart) TRY(paged_copy_passed(d, m, -1, GPU_H2D));
    for (const struct row_extent *t = first; t < end; t++) {
        struct work w = work_from_row(d, m, layer, t->at);
        if (paged_attends_on_device(p->c, layer, t)) w.att = result_rows(d, unit, t);
        if (is_apart) TRY(block_output(exec_of(d), p->c, y, &w, t->n));
        TRY(block_route(exec_of(d), p->c, y, layer, &w, t->n));
    }
    trace_end(p->m->trace, span, d->main);
    if (d->w.is_dense && !p->c->layer[layer].no_ffn) TRY(run_dense_ffn(d, layer, m));
    if (p->c->layer[layer].moe) TRY(run_experts(d, layer, m));
    for (const struct row_extent *t = first; t < end && !d->w.is_dense; t++) {
        struct work w = work_from_row(d, m, layer, t->at);
        TRY(block_experts(exec_of(d), p->c, y, layer, &w, PART_SHARED, w.x, t->n));
    }
    if (p->n_dev == 1 || layer == p->c->n_layers - 1) return 0;
    TRY(paged_copy_passed(d, m, layer + 1, GPU_D2H));
    return gpu_timeline_signal(d->passed, paged_value(d, unit), d->main);
}

static int begin_batch(struct paged_device *d) {
    const struct paged *p = d->p;
    if (p->m->cpu_queue) TRY(gpu_timeline_wait(d->attended, p->base_value, d->main)); /* embedding is done */
    TRY(gpu_fill(d->main, (void *)d->work.first_bad, 0xff, 4));
    for (const struct work_row *k = work_rows; k->width; k++)
        if (paged_is_batch_row(p->c, k) && !k->reads)
            TRY(gpu_copy(d->main, *work_field(&d->rows, k), *work_field(&p->host, k),
                         (size_t)p->n * work_row_bytes(k, p->c), GPU_H2D));
    return 0;
}

/* Order of paper B, algorithm 1: work after attention of one micro-batch, work before attention PAGED_AHEAD later, then
 * a share of the next layer's pages. */
int paged_device_feed(struct paged_device *d) {
    const struct paged *p = d->p;
    struct paged_weights *w = &d->w;
    const int n_units = d->n_layers * p->n_micros, ahead = PAGED_AHEAD < p->stagger ? PAGED_AHEAD : p->stagger;
    int n_projected = 0;
    TRY(paged_weights_send(w, w->layer_base + paged_weights_next_streamed(w, -1)));
    TRY(begin_batch(d));
    for (int unit = 0; unit < n_units; unit++) {
        const int layer = paged_layer(d, unit), n_fed_of_layer = unit % p->n_micros + 1;
        const uint64_t n_streamed = paged_weights_streamed(w, layer),
                       n_next_streamed = paged_weights_next_streamed(w, layer);
        for (; n_projected < n_units && paged_turn(d, n_projected) - paged_turn(d, unit) < ahead; n_projected++)
            TRY(project_unit(d, n_projected));
        TRY(finish_unit(d, unit));
        for (; n_projected < n_units && unit + 1 < n_units &&
               paged_turn(d, n_projected) - paged_turn(d, unit + 1) < ahead;
             n_projected++)
            TRY(project_unit(d, n_projected));
        /* rounded up: the pages of a dense FFN follow its layer's first micro-batch */
        TRY(paged_weights_send(w, w->layer_base + n_streamed +
                                      (n_next_streamed * (uint64_t)n_fed_of_layer + (uint64_t)p->n_micros - 1) /
                                          (uint64_t)p->n_micros));
        if (n_fed_of_layer == p->n_micros) w->layer_base += n_streamed;
    }
    return gpu_timeline_signal(d->projected, paged_end_value(p), d->main);
}

/* Computes and reports the logits of n rows row[] of the batch, the last rows of spans span_ids[]. */
int paged_device_head(struct paged_device *d, const int *span_ids, const int *row, int n, struct error *e) {
    const struct paged *p = d->p;
    struct work w = d->head;
    w.first_bad = d->work.first_bad;
    for (const struct work_row *k = work_rows; k->width; k++) {
        const size_t one = work_row_bytes(k, p->c);
        for (int i = 0; i < n && paged_is_batch_row(p->c, k); i++)
            TRY(gpu_copy(d->main, (char *)*work_field(&w, k) + (size_t)i * one,
                         (char *)*work_field(&d->rows, k) + (size_t)row[i] * one, one, GPU_D2D));
    }
    TRY(block_merge_streams(exec_of(d), &d->w.head, &w, n));
    TRY(block_head(exec_of(d), &d->w.head, &w, 0, n, d->logits, NULL));
    TRY(gpu_copy(d->main, d->host_logits, d->logits, (size_t)n * (size_t)p->c->vocab * 4, GPU_D2H));
    TRY(gpu_copy(d->main, d->host_bad, (const void *)d->work.first_bad, 4, GPU_D2H));
    TRY(gpu_stream_sync(d->main));
    if (p->m->cpu_queue) return 0;
    TRY(exec_check_finite(*d->host_bad, e));
    for (int i = 0; i < n; i++) {
        float *logits = d->host_logits + (size_t)i * (size_t)p->c->vocab;
        int32_t top = 0;
        TRY(exec_check_logits(logits, p->c->vocab, e));
        for (int32_t k = 1; k < p->c->vocab; k++)
            if (logits[k] > logits[top]) top = k;
        p->calls->on_logits(p->calls->ctx, span_ids[i], logits, top);
    }
    return 0;
}

/* --- Opening ---------------------------------------------------------------------------------- */

static int open_memory(struct paged_device *d, struct error *e) {
    const struct paged *p = d->p;
    const struct config *c = p->c;
    const size_t micro = (size_t)p->o.micro, n_experts = (size_t)c->n_experts, planes = p->plane_at[CACHE_PLANES];
    const size_t n_starts = (size_t)paged_starts_most(p->o.micro), states = n_starts ? 2 * paged_state_bytes(c, -1) : 0;
    const bool has_head = paged_weights_has_head(&d->w);
    const size_t logits_bytes = has_head ? BATCH_INVARIANT_ROWS * (size_t)c->vocab * 4 : 0;
    struct {
        void **to;
        size_t bytes;
        bool host;
    } all[] = {{(void **)&d->logits, logits_bytes, false},
               {(void **)&d->planes, planes, false},
               {(void **)&d->states, states, false},
               {(void **)&d->offset, (n_experts + 1) * 4, false},
               {(void **)&d->token, micro * (size_t)c->topk * 4, false},
               {(void **)&d->weight, micro * (size_t)c->topk * 4, false},
               {(void **)&d->host_logits, logits_bytes, true},
               {(void **)&d->host_ids, micro * (size_t)c->topk * 4, true},
               {(void **)&d->host_bad, 4, true}};
    int rc = work_open_device(&d->work, c, p->o.micro, d->g, &d->main, e);
    if (!rc && has_head) rc = work_open_device(&d->head, c, BATCH_INVARIANT_ROWS, d->g, &d->main, e);
    for (const struct work_row *k = work_rows; k->width && !rc; k++)
        if (paged_is_batch_row(c, k))
            rc = gpu_alloc(d->g, work_field(&d->rows, k), (size_t)p->o.rows * work_row_bytes(k, c), e);
    for (size_t i = 0; i < sizeof all / sizeof *all && !rc; i++)
        if (all[i].bytes)
            rc = all[i].host ? gpu_host_alloc(d->g, all[i].to, all[i].bytes, e)
                             : gpu_alloc(d->g, all[i].to, all[i].bytes, e);
    for (int i = 0; i < PAGED_BUFFERS && !rc; i++) {
        struct rows_buffer *b = &d->buffer[i];
        for (const struct work_row *k = work_rows; k->width && !rc; k++)
            if (paged_moves(c, k)) rc = gpu_host_alloc(d->g, work_field(&b->rows, k), micro * work_row_bytes(k, c), e);
        if (!rc && planes) rc = gpu_host_alloc(d->g, (void **)&b->kv, planes, e);
        if (!rc && states) rc = gpu_host_alloc(d->g, (void **)&b->states, n_starts * states, e);
        for (const struct work_row *k = work_rows; k->width && !rc; k++)
            if (paged_is_result(k) && n_starts && k->width(c))
                rc = gpu_alloc(d->g, (void **)&d->att[i], micro * work_row_bytes(k, c), e);
    }
    d->cache = mem_calloc((size_t)c->n_layers, sizeof *d->cache);
    d->start = mem_calloc((size_t)c->n_layers, sizeof *d->start);
    d->runs = mem_alloc(paged_max_runs(p->o.micro) * sizeof *d->runs);
    d->run_counts = mem_alloc(paged_max_runs(p->o.micro) * (n_experts + 1) * sizeof *d->run_counts);
    if (!rc && (!d->cache || !d->start || !d->runs || !d->run_counts))
        rc = error_set(e, ERR_MEMORY, "no memory for micro-batches");
    for (int l = 0; l < c->n_layers && !rc; l++) paged_planes(p, l, d->planes, d->cache[l].p);
    return rc;
}

int paged_device_open_timelines(struct paged_device *d, struct error *e) {
    struct gpu_timeline **all[] = {&d->projected, &d->attended, &d->routed, &d->passed};
    int rc = 0;
    d->n_routed = 0;
    for (int i = 0; i < 4 && !rc; i++) {
        gpu_timeline_close(all[i]);
        rc = gpu_timeline_open(d->g, all[i], e);
    }
    return rc;
}
void paged_device_abort(struct paged_device *d) {
    struct gpu_timeline *all[] = {d->projected, d->attended, d->routed, d->passed};
    for (int i = 0; i < 4; i++)
        if (all[i]) gpu_timeline_abort(all[i]);
}

int paged_device_open(struct paged_device *d, const _Atomic int *cancel, struct error *e) {
    struct paged *p = d->p;
    struct paged_weights *w = &d->w;
    for (int l = d->rank; l < p->c->n_layers; l += p->n_dev) d->n_layers++;
    *w = (struct paged_weights){.rank = d->rank, .ranks = p->n_dev, .n_layers = p->c->n_layers};
    const struct paged_weights_options o = {
        .rank = d->rank,
        .ranks = p->n_dev,
        .share = p->o.resident_fraction,
        .grown_bytes = paged_starts_most(p->o.micro) ? block_grown_bytes(p->c, p->o.micro) : 0};
    int rc = gpu_stream_open(d->g, &d->main, "paged", true, &p->stop, e);
    if (!rc) rc = paged_device_open_timelines(d, e);
    if (!rc) rc = open_memory(d, e);
    if (!rc) rc = paged_weights_open(w, p->m, d->g, &p->stop, &o, cancel, e);
    if (!rc && (rc = gpu_copy(d->main, d->work.inv_freq, p->m->w->inv_freq, (size_t)rope_floats(p->c) * 4, GPU_H2D)) &&
        !gpu_error(d->g, e))
        exec_op_error(rc, e);
    if (!rc && (rc = gpu_stream_sync(d->main)) && !gpu_error(d->g, e)) exec_op_error(rc, e);
    return rc;
}

/* All streams must be idle. */
void paged_device_close(struct paged_device *d) {
    if (d->w.m) paged_weights_close(&d->w);
    work_close(&d->work);
    work_close(&d->head);
    for (const struct work_row *k = work_rows; k->width; k++) gpu_free(d->g, *work_field(&d->rows, k));
    void *device[] = {d->logits, d->planes, d->states, d->offset, d->token, d->weight};
    void *host[] = {d->host_logits, d->host_ids, d->host_bad};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) gpu_free(d->g, device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) gpu_host_free(d->g, host[i]);
    for (int i = 0; i < PAGED_BUFFERS; i++) {
        for (const struct work_row *k = work_rows; k->width; k++)
            gpu_host_free(d->g, *work_field(&d->buffer[i].rows, k));
        gpu_host_free(d->g, d->buffer[i].kv), gpu_host_free(d->g, d->buffer[i].states);
        gpu_free(d->g, d->att[i]);
    }
    struct gpu_timeline **all[] = {&d->projected, &d->attended, &d->routed, &d->passed};
    for (int i = 0; i < 4; i++) gpu_timeline_close(all[i]);
    if (d->main) gpu_stream_close(&d->main);
    mem_free(d->cache), mem_free(d->start), mem_free(d->runs), mem_free(d->run_counts);
    *d = (struct paged_device){0};
}
