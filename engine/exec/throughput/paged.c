/* Throughput batches: splits rows into micro-batches, attends on the CPU, and runs a feeding thread per device. */
#include <string.h>

#include "base/mem.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/throughput/paged_internal.h"
#include "engine/layer/work_open.h"
#include "engine/model/rope.h"

const char *paged_why_not(const struct runtime *m) {
    const struct config *c = &m->w->config;
    if (!m->gpus) return "there are no devices";
    if (m->gpus->is_lost) return "a device was lost";
    if (m->disk_prefetch) return "the weights do not fit in memory";
    if (c->expert_out_norm) return "norms of experts' outputs are not supported";
    return NULL;
}

/* --- The CPU ---------------------------------------------------------------------------------- */

static int signal_attended(struct paged_device *d, uint32_t value) {
    struct runtime *m = d->p->m;
    if (m->cpu_queue) return gpu_timeline_signal(d->attended, value, m->cpu_queue);
    gpu_timeline_signal_host(d->attended, value);
    return 0;
}
static int wait_projected(struct paged_device *d, uint32_t value) {
    struct runtime *m = d->p->m;
    return m->cpu_queue ? gpu_timeline_wait(d->projected, value, m->cpu_queue)
                        : gpu_timeline_wait_host(d->projected, value, d->p->cancel);
}

static void store_kv(const struct paged_span *s, int layer, const struct kv_plane *from, int n, int row) {
    for (int i = 0; i < n; i++) {
        if (!from[i].data) continue;
        const struct kv_plane *to = &s->kv->layer[layer].p[i];
        struct kv_row_range a = kv_row_range_of(&from[i], row, s->n), b = kv_row_range_of(to, s->pos, s->n);
        memcpy((char *)to->data + b.offset, (const char *)from[i].data + a.offset, a.bytes);
        if (a.n_scales) memcpy(to->scale + b.scale_offset, from[i].scale + a.scale_offset, a.n_scales * 4);
    }
}

/* Lists the spans of an extent in p->attending; returns their number. */
static int spans_of_extent(struct paged *p, const struct row_extent *t) {
    int n = 0;
    for (int row = 0; row < t->n; n++) {
        const struct paged_span *s = &p->spans[t->span + n];
        p->attending[n] = (struct span){
            .cache = s->kv->layer, .row = row, .n = s->n, .pos = s->pos, .state_step = p->steps[t->span + n]};
        row += s->n;
    }
    return n;
}
/* Attends for an extent's rows, whose queries the device has made. */
static int attend_extent(struct paged *p, const struct layer *y, int layer, const struct micro_batch *m,
                         const struct row_extent *t, const struct rows_buffer *b) {
    struct work w = p->cpu_work;
    const int n_spans = spans_of_extent(p, t);
    for (const struct work_row *k = work_rows; k->width; k++)
        if (paged_is_selection(k)) work_point(k, p->c, &w, &p->host, (size_t)(m->row + t->at));
        else if (paged_is_result(k) || paged_moves_in(p->c, layer, k)) work_point(k, p->c, &w, &b->rows, (size_t)t->at);
    const int rc = block_attend_spans(p->m->cpu, p->c, y, layer, &w, p->attending, n_spans);
    work_keep_grown(&p->cpu_work, &w);
    return rc;
}
/* Runs an extent's whole attention block, for kinds that cannot be divided. */
static int run_extent(struct paged *p, const struct layer *y, int layer, const struct micro_batch *m,
                      const struct row_extent *t, const struct rows_buffer *b) {
    struct work w = p->cpu_work;
    const int n_spans = spans_of_extent(p, t);
    for (const struct work_row *k = work_rows; k->width; k++)
        work_point(k, p->c, &w, &p->host, (size_t)(m->row + t->at));
    TRY(block_rope(p->m->cpu, p->m->w, &w, t->n, 0));
    const int rc = block_attention(p->m->cpu, p->c, y, layer, &w, p->attending, n_spans, t->n);
    work_keep_grown(&p->cpu_work, &w);
    return rc;
}

static int attend_unit(struct paged_device *d, int unit) {
    struct paged *p = d->p;
    const int layer = paged_layer(d, unit);
    const struct micro_batch *m = paged_micro(d, unit);
    struct rows_buffer *b = &d->buffer[unit % PAGED_BUFFERS];
    const struct layer *y = numa_copy_layer(p->m->numa_copy, p->m->w, layer);
    const bool is_apart = block_attends_apart(p->c, layer);
    struct kv_plane made[CACHE_PLANES];
    int n = paged_planes(p, layer, b->kv, made), row = 0;
    TRY(wait_projected(d, paged_value(d, unit)));
    double t = trace_now(p->m->trace);
    for (int i = m->span; i < m->span + m->n_spans && is_apart; row += p->spans[i++].n)
        if (!p->m->cpu_queue) store_kv(&p->spans[i], layer, made, n, row);
    const char *states = b->states;
    for (const struct row_extent *x = p->extents + m->extent; x < p->extents + m->extent + m->n_extents; x++) {
        if (!paged_attends_on_device(p->c, layer, x)) {
            TRY((is_apart ? attend_extent : run_extent)(p, y, layer, m, x, b));
            continue;
        }
        if (!p->m->cpu_queue) paged_store_states(p->c, layer, p->spans[x->span].kv, &p->steps[x->span], states);
        states += 2 * paged_state_bytes(p->c, layer);
    }
    trace_cpu(p->m->trace, t, "attention", layer, (int)(m - p->micro));
    return signal_attended(d, paged_value(d, unit));
}

static int embed_rows(struct paged *p) {
    for (int at = 0; at < p->n; at += BATCH_INVARIANT_ROWS) {
        float *x = p->host.x + (size_t)at * (size_t)p->c->hidden;
        TRY(block_embed(p->m->cpu, p->m->w, x, p->host.tokens + at,
                        p->n - at < BATCH_INVARIANT_ROWS ? p->n - at : BATCH_INVARIANT_ROWS));
    }
    float *x = p->host.x;
    for (const struct paged_span *s = p->spans; s < p->spans + p->n_spans; s++) {
        const struct text_rows text = {.ids = s->tokens, .n = s->n, .n_before = s->n_before};
        TRY(block_embed_ngrams(p->m->cpu, p->m->w, &p->cpu_work, x, &text, 1));
        x += (size_t)s->n * (size_t)p->c->hidden;
    }
    for (int i = 0; i < p->n_dev && p->m->cpu_queue; i++) TRY(signal_attended(&p->dev[i], p->base_value));
    return 0;
}

/* Attends in global turn order: with several devices a layer starts before the previous one has ended. */
static int attend_all(struct paged *p) {
    const int last = p->c->n_layers - 1, n = p->n_micros;
    for (int turn = 0; turn < last * p->stagger + n; turn++)
        for (int layer = turn < n ? 0 : (turn - n) / p->stagger + 1; layer <= last && layer * p->stagger <= turn;
             layer++) {
            if (p->calls->should_stop && p->calls->should_stop(p->calls->ctx)) return ERR_CANCELLED;
            TRY(attend_unit(&p->dev[layer % p->n_dev], layer / p->n_dev * n + turn - layer * p->stagger));
        }
    for (int i = 0; i < p->n_dev; i++) TRY(wait_projected(&p->dev[i], paged_end_value(p)));
    return 0;
}

static struct paged_device *last_device(struct paged *p) { return &p->dev[(p->c->n_layers - 1) % p->n_dev]; }
static int compute_logits(struct paged *p, struct error *e) {
    int span_ids[BATCH_INVARIANT_ROWS], row[BATCH_INVARIANT_ROWS], n = 0, at = 0;
    for (int i = 0; i < p->n_spans; i++) {
        at += p->spans[i].n;
        if (p->spans[i].want_logits) span_ids[n] = i, row[n++] = at - 1;
        if (n && (n == BATCH_INVARIANT_ROWS || i == p->n_spans - 1)) {
            TRY(paged_device_head(last_device(p), span_ids, row, n, e));
            n = 0;
        }
    }
    return 0;
}

/* --- A batch ---------------------------------------------------------------------------------- */

static void add_extent(struct paged *p, struct micro_batch *m, int span) {
    const int n = p->spans[span].n;
    struct row_extent *last = m->n_extents ? &p->extents[m->extent + m->n_extents - 1] : NULL;
    if (n <= BATCH_INVARIANT_ROWS && last && !last->is_alone && last->n + n <= BATCH_INVARIANT_ROWS) last->n += n;
    else
        p->extents[m->extent + m->n_extents++] =
            (struct row_extent){.at = m->n,
                                .n = n,
                                .span = span,
                                .is_alone = n > BATCH_INVARIANT_ROWS,
                                .is_start = n > BATCH_INVARIANT_ROWS && !p->spans[span].pos};
}

/* Whether span b continues a. In virtual time sessions share a cache. */
static bool spans_of_one(const struct paged_span *a, const struct paged_span *b) {
    return a->kv == b->kv && a->pos + a->n == b->pos;
}

/* Number of the span's tokens after which a state is kept; more than it has: not in this one. */
static int mark_of(const struct paged_span *s) { return kv_state_mark(s->pos, s->total - s->pos); }

/* Lays out rows in the order of spans. */
static int lay_out_rows(struct paged *p, struct error *e) {
    int n_extents = 0;
    p->n = p->n_micros = 0;
    for (int i = 0; i < p->n_spans; i++) {
        const struct paged_span *s = &p->spans[i];
        if (s->micro == p->n_micros && p->n_micros < PAGED_MAX_MICRO_BATCHES)
            p->micro[p->n_micros++] = (struct micro_batch){.row = p->n, .span = i, .extent = n_extents};
        struct micro_batch *m = &p->micro[p->n_micros - 1];
        if (!p->n_micros || s->micro != p->n_micros - 1 || m->n + s->n > p->o.micro || p->n + s->n > p->o.rows)
            return error_set(e, ERR_RUNTIME, "span %d of %d rows does not fit micro-batch %d", i, s->n, s->micro);
        for (int k = 0; k < s->n; k++) {
            p->host.pos[p->n + k] = s->pos + k, p->host.tokens[p->n + k] = s->tokens[k];
            if (p->host.seq_length) p->host.seq_length[p->n + k] = s->total;
        }
        /* a prompt's other spans in the batch precede it */
        p->steps[i] = i && spans_of_one(s - 1, s) ? kv_state_continue(s->kv, &p->steps[i - 1], s->n, mark_of(s))
                                                  : kv_state_begin(s->kv, s->pos, s->n, mark_of(s));
        add_extent(p, m, i);
        n_extents = m->extent + m->n_extents;
        m->n_spans++, m->n += s->n, p->n += s->n;
        int rc = kv_commit(s->kv, s->pos + s->n, e);
        if (rc) return rc;
    }
    return 0;
}

static void abort_devices(struct paged *p) {
    atomic_store(&p->stop, 1);
    for (int i = 0; i < p->n_dev; i++) paged_device_abort(&p->dev[i]);
}
static void *feed_thread(void *arg) {
    struct paged_device *d = arg;
    d->rc = paged_device_feed(d);
    if (d->rc) abort_devices(d->p);
    return NULL;
}

static void drain_streams(struct paged *p) {
    abort_devices(p);
    for (int i = 0; i < p->n_dev; i++) {
        if (p->dev[i].main) gpu_stream_sync(p->dev[i].main);
        if (p->dev[i].w.uploads.link) gpu_stream_sync(p->dev[i].w.uploads.link);
    }
    cpu_settle(p->m, NULL, 0);
}
/* Leaves streams idle with fresh timelines, whatever was in flight. */
static int reset_devices(struct paged *p, struct error *e) {
    int rc = 0;
    drain_streams(p);
    p->base_value = 0;
    /* also drops uploads that still wait for buffers */
    for (int i = 0; i < p->n_dev && !rc; i++) rc = paged_weights_reset(&p->dev[i].w, e);
    atomic_store(&p->stop, 0);
    for (int i = 0; i < p->n_dev && !rc; i++) rc = paged_device_open_timelines(&p->dev[i], e);
    return rc;
}

/* Feeds all devices and attends; returns 0 or the first failure. */
static int run_layers(struct paged *p, struct error *e) {
    int fed = 0, rc = 0;
    while (fed < p->n_dev && !pthread_create(&p->dev[fed].thread, NULL, feed_thread, &p->dev[fed])) fed++;
    if (fed < p->n_dev) rc = error_set(e, ERR_RUNTIME, "cannot start a thread to feed a device");
    if (!rc) rc = attend_all(p);
    if (rc) abort_devices(p);
    for (int i = 0; i < fed; i++) pthread_join(p->dev[i].thread, NULL);
    for (int i = 0; i < fed && !e->code; i++) /* the first failure stopped the others */
        if (p->dev[i].rc && p->dev[i].rc != ERR_CANCELLED && rc != ERR_MODEL) rc = p->dev[i].rc;
    return rc;
}

static bool any_device_failed(const struct paged *p, struct error *e) {
    for (int i = 0; i < p->n_dev; i++)
        if (gpu_error_since(p->dev[i].g, p->dev[i].n_cleared, e)) return true;
    return false;
}

int paged_run(struct paged *p, const struct paged_span *spans, int n_spans, const struct paged_calls *calls,
              const _Atomic int *cancel, struct error *e) {
    p->spans = spans, p->n_spans = n_spans, p->calls = calls, p->cancel = cancel;
    int rc = lay_out_rows(p, e);
    if (rc || !p->n) return rc;
    p->m->cpu->cancel = cancel;
    p->stagger = search_stagger(p->n_micros, p->n_dev);
    if (p->m->cpu_queue) p->base_value++; /* a value for the embedding */
    *p->cpu_work.first_bad = -1;
    rc = embed_rows(p);
    if (!rc) rc = run_layers(p, e);
    p->base_value = paged_end_value(p);
    if (!rc && any_device_failed(p, e)) rc = e->code; /* e.g. an upload that another stream dropped */
    if (!rc && !p->m->cpu_queue) rc = exec_check_finite(*p->cpu_work.first_bad, e);
    for (int i = 0; i < n_spans && !rc; i++) kv_state_commit(spans[i].kv, &p->steps[i], spans[i].pos, spans[i].n);
    if (!rc) rc = compute_logits(p, e);
    if (!rc && p->m->cpu_queue) { /* order what follows after the device's clock */
        rc = gpu_timeline_signal(last_device(p)->projected, ++p->base_value, last_device(p)->main);
        if (!rc) rc = gpu_timeline_wait(last_device(p)->projected, p->base_value, p->m->cpu_queue);
    }
    trace_settle(p->m->trace);
    if (!rc) return 0;
    struct error device = {0};
    const bool failed = any_device_failed(p, &device), cancelled = cancel && atomic_load(cancel);
    if (failed) *e = device, rc = e->code;
    else if (rc == ERR_MODEL && !e->code)
        error_set(e, rc, "a layer produced a non-finite number; the weights may be damaged; verify them (--verify)");
    else if (cancelled || !e->code) exec_op_error(cancelled ? rc = ERR_CANCELLED : rc, e);
    struct error after = {0};
    if (reset_devices(p, &after) && !failed) *e = after, rc = e->code;
    return rc;
}

/* --- Opening ---------------------------------------------------------------------------------- */

static int open_memory(struct paged *p, struct error *e) {
    const size_t rows = (size_t)p->o.rows;
    int rc = 0;
    for (const struct work_row *k = work_rows; k->width && !rc; k++)
        if (paged_is_batch_row(p->c, k) || (paged_is_selection(k) && k->width(p->c)))
            rc = gpu_host_alloc(p->dev[0].g, work_field(&p->host, k), rows * work_row_bytes(k, p->c), e);
    paged_plan_planes(p);
    p->micro = mem_alloc(PAGED_MAX_MICRO_BATCHES * sizeof *p->micro);
    p->extents = mem_alloc(rows * sizeof *p->extents);
    p->attending = mem_alloc(BATCH_INVARIANT_ROWS * sizeof *p->attending);
    p->steps = mem_alloc(rows * sizeof *p->steps);
    if (!rc && (!p->micro || !p->extents || !p->attending || !p->steps))
        rc = error_set(e, ERR_MEMORY, "no memory for micro-batches");
    /* pages that are never written stay unmapped */
    if (!rc) rc = work_open(&p->cpu_work, p->c, p->o.micro, NULL, NULL, NULL, e);
    if (!rc && !p->m->cpu_queue)
        memcpy(p->cpu_work.inv_freq, p->m->w->inv_freq, (size_t)rope_floats(p->c) * sizeof(float));
    return rc;
}

int paged_open(struct paged **out, struct runtime *m, enum dtype kv, const struct paged_options *o,
               const _Atomic int *cancel, struct error *e) {
    const char *why = paged_why_not(m);
    *out = NULL;
    if (why) return error_set(e, ERR_RUNTIME, "paged decode: %s", why);
    struct paged *p = mem_calloc(1, sizeof *p);
    if (!p) return error_set(e, ERR_MEMORY, "no memory for paged decode");
    p->m = m, p->c = &m->w->config, p->o = *o, p->kv = kv;
    if (p->o.rows < p->o.micro) p->o.rows = p->o.micro;
    p->n_dev = o->devices > 0 && o->devices < m->gpus->n ? o->devices : m->gpus->n;
    if (p->n_dev > p->c->n_layers) p->n_dev = p->c->n_layers;
    for (int i = 0; i < p->n_dev; i++)
        p->dev[i].p = p, p->dev[i].rank = i, p->dev[i].g = m->gpus->gpu[i],
        p->dev[i].n_cleared = gpu_n_cleared(m->gpus->gpu[i]);
    int rc = open_memory(p, e);
    for (int i = 0; i < p->n_dev && !rc; i++) rc = paged_device_open(&p->dev[i], cancel, e);
    if (rc && any_device_failed(p, e)) rc = e->code;
    *out = p;
    if (rc) paged_close(out);
    return rc;
}

void paged_close(struct paged **pp) {
    struct paged *p = *pp;
    if (!p) return;
    *pp = NULL;
    drain_streams(p);
    for (const struct work_row *k = work_rows; k->width; k++) gpu_host_free(p->dev[0].g, *work_field(&p->host, k));
    for (int i = 0; i < p->n_dev; i++) paged_device_close(&p->dev[i]);
    mem_free(p->micro);
    mem_free(p->extents);
    mem_free(p->attending);
    mem_free(p->steps);
    work_close(&p->cpu_work);
    mem_free(p);
}

int paged_n_devices(const struct paged *p) { return p->n_dev; }
bool paged_pages_ffns(const struct paged *p) { return p->dev[0].w.is_dense; }
double paged_resident_fraction(const struct paged *p) {
    double n_resident = 0, n_routed = 0;
    for (int i = 0; i < p->n_dev; i++)
        n_resident += p->dev[i].w.n_resident, n_routed += (double)p->dev[i].w.n_paged_layers * p->dev[i].w.n_experts;
    return n_routed > 0 ? n_resident / n_routed : 0;
}
int paged_ring_percent(const struct paged *p) {
    int min_percent = 200; /* the most that plan_memory() gives a ring */
    for (int i = 0; i < p->n_dev; i++) {
        const struct paged_weights *w = &p->dev[i].w;
        int max_streamed = 0;
        for (int l = i; l < p->c->n_layers; l += p->n_dev)
            max_streamed =
                (int)paged_weights_streamed(w, l) > max_streamed ? (int)paged_weights_streamed(w, l) : max_streamed;
        if (max_streamed && 100 * w->ring / max_streamed < min_percent) min_percent = 100 * w->ring / max_streamed;
    }
    return min_percent;
}
