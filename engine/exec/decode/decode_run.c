/* Runs decode batches: splits them into micro-batches, runs the layers (decode_layer.h) and the LM head, and recovers
 * from failed devices. With one micro-batch CPU and GPU alternate; with two, one's experts overlap the other's
 * attention; without devices the CPU does both. */
#include "engine/exec/decode/decode_run.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_devices.h"
#include "engine/exec/decode/decode_experts.h"
#include "engine/exec/decode/decode_graph.h"
#include "engine/exec/decode/decode_layer.h"
#include "engine/exec/decode/decode_weights.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/exec/decode/draft_experts.h"
#include "engine/exec/decode/expert_pool.h"
#include "engine/exec/decode/kv_writeback.h"
#include "engine/exec/decode/pinned_experts.h"
#include "engine/experts/lookahead.h"
#include "engine/layer/work_open.h"

/* --- LM head: rows of all micro-batches; consecutive rows on one executor are one range ------- */

/* Computes logits and top of rows [row, row + n) on d, or on the CPU (d NULL). A device leaves top to
 * check_results(). */
static int run_head_range(struct decode *s, struct decode_device *d, int row, int n, int32_t *top) {
    size_t logits_at = (size_t)row * (size_t)s->c->vocab;
    if (!d) {
        s->m->cpu->cancel = s->cancel;
        cpu_count_read(s->m, mat_bytes(&s->m->w->head));
        double t = trace_now(s->m->trace);
        int rc = block_head(s->m->cpu, numa_copy_head(s->m->numa_copy, s->m->w), &s->head, row, n,
                            s->logits + logits_at, top + row);
        trace_cpu(s->m->trace, t, "head", -1, -1);
        return rc;
    }
    struct work w = d->work[0]; /* its scratch */
    w.x = d->x, w.xn = d->xn;
    int span = decode_layer_begin_span(d, "head", -1, -1);
    TRY(block_head(decode_device_exec(d), d->head_weights, &w, row, n, d->logits + logits_at, NULL));
    TRY(op_run(decode_device_exec(d), OP_TOP,
               &(struct op_top){
                   .top = d->top + row, .x = d->logits + logits_at, .n = n, .m = s->c->vocab, .ldx = s->c->vocab}));
    TRY(gpu_copy(d->main, s->device_top + row, d->top + row, (size_t)n * sizeof *d->top, GPU_D2H));
    TRY(gpu_copy(d->main, s->logits + logits_at, d->logits + logits_at, (size_t)n * (size_t)s->c->vocab * 4, GPU_D2H));
    const size_t hidden_at = (size_t)row * (size_t)s->c->hidden;
    if (s->want_hidden)
        TRY(gpu_copy(d->main, s->head.x + hidden_at, d->x + hidden_at, decode_device_row_bytes(s, n), GPU_D2H));
    decode_layer_end_span(d, span);
    return 0;
}

static int run_head(struct decode *s, int n, int32_t *top) {
    struct decode_device *last_device = s->n_dev && s->n_resident == s->c->n_layers ? &s->dev[s->n_dev - 1] : NULL,
                         *head_device = last_device && last_device->has_head ? last_device : NULL;
    int begin = 0, row = 0;
    bool on_device = false; /* whether rows [begin, row) run on head_device */
    for (int i = 0; i < s->n_micros; i++) {
        struct decode_micro_batch *m = &s->micro_batch[i];
        int n_dev = head_device ? m->n_dev : 0;
        if (last_device && !head_device && m->n_dev) TRY(decode_layer_wait_rows(s, m, s->c->n_layers));
        if (n_dev < m->n && !s->cpu_queue)
            memcpy(s->head.x + (size_t)(row + n_dev) * (size_t)s->c->hidden,
                   m->host.x + (size_t)n_dev * (size_t)s->c->hidden, decode_device_row_bytes(s, m->n - n_dev));
        for (int part = 0; part < 2; part++) {
            int n_part = part ? m->n - n_dev : n_dev;
            if (n_part && on_device != !part && row > begin) {
                TRY(run_head_range(s, on_device ? head_device : NULL, begin, row - begin, top));
                begin = row;
            }
            if (n_part) on_device = !part;
            row += n_part;
        }
    }
    return run_head_range(s, on_device ? head_device : NULL, begin, n - begin, top);
}

/* --- A batch ---------------------------------------------------------------------------------- */

static bool any_on_device(const struct decode *s) {
    for (int i = 0; i < s->n_micros; i++)
        if (s->micro_batch[i].n_dev) return true;
    return false;
}

static int run_layers(struct decode *s, int n, int32_t *top, struct error *e) {
    if (!any_on_device(s)) cpu_count_read(s->m, s->m->w->bytes_dense);
    for (int i = 0; i < s->n_micros; i++) {
        struct decode_micro_batch *m = &s->micro_batch[i];
        TRY(cpu_begin_batch(s->m, &m->host, m->texts, m->n_spans, m->n, 0, s->cancel, e));
        TRY(decode_layer_begin(s, m, n));
        TRY(decode_layer_advance(s, m, -1, n));
        TRY(decode_layer_cpu_attention(s, m, 0, e));
    }
    for (int l = 0; l < s->c->n_layers; l++)
        for (int i = 0; i < s->n_micros; i++) {
            struct decode_micro_batch *m = &s->micro_batch[i];
            const bool runs_ahead = decode_layer_runs_ahead(s, l);
            if (runs_ahead) TRY(decode_layer_advance(s, m, l, n));
            TRY(decode_layer_cpu_experts(s, m, l, e));
            if (!runs_ahead) TRY(decode_layer_advance(s, m, l, n));
            if (l + 1 < s->c->n_layers) TRY(decode_layer_cpu_attention(s, m, l + 1, e));
        }
    for (int i = 0; i < s->n_micros; i++) { /* rows whose last layer ran on the CPU */
        struct decode_micro_batch *m = &s->micro_batch[i];
        int first = decode_layer_device_rows(s, m, s->c->n_layers - 1);
        struct work cpu_rows = work_slice(s->c, &m->host, first);
        if (first < m->n) TRY(block_merge_streams(s->m->cpu, s->m->w, &cpu_rows, m->n - first));
    }
    TRY(run_head(s, n, top));
    for (int i = 0; i < s->n_dev && any_on_device(s); i++) {
        struct decode_device *d = &s->dev[i];
        TRY(kv_writeback_download_rows(d, n));
        TRY(decode_experts_record_download(d));
        for (int k = 0, span = 0; k < s->n_micros; k++)
            for (int t = 0; t < s->micro_batch[k].n_dev_spans; t++)
                TRY(kv_writeback_download_states(d, span++, &s->micro_batch[k].dev_spans[t],
                                                 &s->micro_batch[k].spans[t]));
        for (int k = 0; k < s->n_micros; k++)
            if (s->micro_batch[k].n_dev)
                TRY(gpu_copy(d->main, (void *)&s->bad[i * DECODE_MICRO_BATCHES + k], (const void *)d->work[k].first_bad,
                             4, GPU_D2H));
    }
    for (int i = 0; i < s->n_dev && any_on_device(s); i++) {
        struct decode_micro_batch *m = &s->micro_batch[0];
        /* order what follows after every device's clock */
        if (s->cpu_queue) {
            /* other devices' signals come first: a timeline only grows */
            TRY(gpu_timeline_wait(m->arrived, m->n_arrived, s->dev[i].main));
            TRY(decode_layer_signal_arrived(&s->dev[i], m));
            TRY(gpu_timeline_wait(m->arrived, m->n_arrived, s->cpu_queue));
        }
        TRY(gpu_stream_sync(s->dev[i].main));
    }
    return 0;
}

/* Collects the first non-finite mark of all workspaces, and the largest logits of rows whose head ran on a device. */
static int check_results(struct decode *s, int n, int32_t *top, struct error *e) {
    int first_bad = atomic_load(s->head.first_bad);
    for (int i = 0; i < s->n_micros; i++) {
        int marks[GPU_MAX + 1], n_marks = 0;
        marks[n_marks++] = atomic_load(s->micro_batch[i].host.first_bad);
        for (int d = 0; d < s->n_dev && s->micro_batch[i].n_dev; d++)
            marks[n_marks++] = atomic_load(&s->bad[d * DECODE_MICRO_BATCHES + i]);
        while (n_marks--)
            if (marks[n_marks] >= 0 && (first_bad < 0 || marks[n_marks] < first_bad)) first_bad = marks[n_marks];
    }
    atomic_store(s->head.first_bad, first_bad);
    TRY(exec_check_finite(first_bad, e));
    for (int row = 0, i = 0; i < s->n_micros; row += s->micro_batch[i++].n) {
        const struct decode_micro_batch *m = &s->micro_batch[i];
        bool on_device = m->n_dev && s->n_resident == s->c->n_layers && s->dev[s->n_dev - 1].has_head;
        for (int k = row; on_device && k < row + m->n_dev; k++) top[k] = s->device_top[k];
    }
    for (int i = 0; i < n; i++)
        if (top[i] < 0)
            return error_set(e, ERR_MODEL,
                             "the LM head produced a NaN logit; the weights may be damaged; verify them (--verify)");
    return 0;
}

/* Whether a blended prefill has work in the same streams. */
static bool streams_are_shared(const struct decode *s) {
    bool any = false;
    for (const struct device_kv *m = s->device_kvs; m; m = m->next) any |= m->is_locked;
    return any;
}

/* Leaves devices idle with fresh timelines, whatever was in flight. cancels_all: cancels a prefill's work in the same
 * streams too; else waits for it. */
static int reset_devices(struct decode *s, bool cancels_all, struct error *e) {
    for (int i = 0; i < s->n_dev && cancels_all; i++) atomic_store(&s->dev[i].stop, 1);
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++) {
        struct decode_micro_batch *m = &s->micro_batch[i];
        if (m->cpu_done) gpu_timeline_abort(m->cpu_done);
        if (m->arrived) gpu_timeline_abort(m->arrived);
        for (int k = 0; k < s->n_dev; k++)
            if (m->part_done[k]) gpu_timeline_abort(m->part_done[k]);
    }
    for (int i = 0; i < s->n_dev; i++) {
        expert_pool_abort(&s->dev[i]);
        if (s->dev[i].main) gpu_stream_sync(s->dev[i].main);
        device_kv_uploads_settle(&s->dev[i]);
    }
    int rc = 0;
    for (int i = 0; i < s->n_dev; i++) {
        atomic_store(&s->dev[i].stop, 0);
        if (!rc) rc = expert_pool_reset(&s->dev[i], e);
    }
    if (rc) return rc;
    for (struct device_kv *m = s->device_kvs; m; m = m->next)
        if (m->last_used == s->clock) device_kv_invalidate(s, m->kv, 0); /* uploads may be incomplete */
    return s->n_dev ? decode_timelines_open(s, e) : 0;
}

int decode_fall_back(struct decode *s, const char *why, struct error *e) {
    reset_devices(s, true, &(struct error){0});
    decode_host_close(s);
    for (int i = 0; i < s->n_dev; i++)
        if (gpu_clear(s->dev[i].g, &(struct error){0})) s->m->gpus->is_lost = true;
    decode_devices_close(s);
    decode_set_placement_why(s, why);
    *e = (struct error){0};
    return decode_host_open(s, e);
}

/* --- Splitting into micro-batches ------------------------------------------------------------- */

static void add_span(struct decode_micro_batch *m, const struct decode_span *from, int caller_index,
                     const struct kv_state_step *state_step, const struct device_kv *device_copy) {
    struct span t = {.cache = from->kv->layer, .row = m->n, .n = from->n, .pos = from->pos, .state_step = *state_step};
    for (int i = 0; i < from->n; i++)
        m->host.tokens[m->n + i] = from->tokens[i], m->host.pos[m->n + i] = from->pos + i + from->turn_shift;
    for (int i = 0; i < from->n && m->host.seq_length; i++) m->host.seq_length[m->n + i] = from->pos + from->n;
    m->caller_span[m->n_spans] = caller_index;
    m->spans[m->n_spans] = t;
    m->texts[m->n_spans] = (struct text_rows){from->tokens, from->n, from->n_before};
    if (device_copy) {
        t.cache = device_copy->layers, t.state_step = device_copy->state_step;
        m->dev_kv[m->n_dev_spans] = device_copy;
        m->dev_spans[m->n_dev_spans++] = t;
        m->n_dev += from->n;
    } else {
        t.row -= m->n_dev;
        m->cpu_spans[m->n_spans - m->n_dev_spans] = t;
    }
    m->n_spans++;
    m->n += from->n;
}

/* Splits the rows of one session into two micro-batches. In every layer the device runs the attention of the first part
 * before that of the second, which reads the keys of the first. */
static void split_span(struct decode *s, const struct decode_span *span, const struct kv_state_step *state_step,
                       const struct device_kv *device_copy) {
    const int first = s->first_spans > 0 && s->first_spans < span->n ? s->first_spans : span->n - span->n / 2;
    struct decode_span part = *span;
    for (int i = 0; i < 2; i++) {
        part.tokens = span->tokens + (i ? first : 0);
        part.pos = span->pos + (i ? first : 0);
        part.n = i ? span->n - first : first;
        part.n_before = span->n_before + (i ? first : 0);
        add_span(&s->micro_batch[i], &part, 0, state_step, device_copy);
    }
}
/* Whether the rows of a single span may be split. Recurrent states and KV rows that cover several tokens are made from
 * the first part at the end of the batch, too late for the second. */
static bool is_splittable(const struct decode *s, const struct decode_span *span) {
    return span->n > 1 && !s->draft && !span->kv->has_states && !s->layout.min_every;
}

/* Splits spans into micro-batches, rows with device KV first in each. Each next span, longest KV first, goes to the
 * micro-batch with the fewest rows relative to its share, so that both attend to similar lengths. Returns the number of
 * rows in all. */
static int split_batch(struct decode *s, enum exec_mode mode, const struct decode_span *spans, int n_spans) {
    const struct device_kv *copies[DECODE_MAX_ROWS];
    struct kv_state_step state_steps[DECODE_MAX_ROWS];
    int order[DECODE_MAX_ROWS] /* of spans, longest KV first */, n = 0, n_on_devices = 0;
    s->clock++;
    for (int i = 0; i < n_spans; i++) {
        state_steps[i] = kv_state_begin(spans[i].kv, spans[i].pos, spans[i].n, 0);
        copies[i] = mode == DECODE_CPU || !s->n_dev ? NULL
                                                    : device_kv_acquire(s, spans[i].kv, state_steps[i].from_row,
                                                                        spans[i].pos, spans[i].pos + spans[i].n);
        n_on_devices += copies[i] != NULL;
        int k = i;
        while (k && spans[order[k - 1]].pos < spans[i].pos) order[k] = order[k - 1], k--;
        order[k] = i;
    }
    const int first_share = s->first_spans > 0 && s->first_spans < n_spans ? s->first_spans : n_spans - n_spans / 2;
    const bool splits_rows = n_spans == 1 && n_on_devices && is_splittable(s, spans);
    s->n_micros = mode == DECODE_DUAL && (n_on_devices > 1 || splits_rows) ? 2 : 1;
    s->n_without_room = mode == DECODE_CPU || !s->n_dev ? 0 : n_spans - n_on_devices;
    s->last_exec = !n_on_devices ? DECODE_CPU : s->n_micros > 1 ? DECODE_DUAL : DECODE_HYBRID;
    for (int i = 0; i < DECODE_MICRO_BATCHES; i++)
        s->micro_batch[i].n = s->micro_batch[i].n_dev = s->micro_batch[i].n_spans = s->micro_batch[i].n_dev_spans = 0;
    if (splits_rows && s->n_micros > 1) split_span(s, spans, &state_steps[0], copies[0]);
    for (int pass = 0; pass < 2 && !(splits_rows && s->n_micros > 1); pass++)
        for (int i = 0; i < n_spans; i++) {
            int k = s->n_micros > 1 ? order[i] : i;
            if ((copies[k] == NULL) != pass) continue;
            struct decode_micro_batch *m = &s->micro_batch[0];
            if (s->n_micros > 1 && s->micro_batch[1].n * first_share < m->n * (n_spans - first_share))
                m = &s->micro_batch[1];
            add_span(m, &spans[k], k, &state_steps[k], copies[k]);
        }
    for (int i = 0; i < s->n_micros; i++) s->micro_batch[i].row0 = n, n += s->micro_batch[i].n;
    return n;
}

static int run_batch(struct decode *s, enum exec_mode mode, struct decode_span *spans, int n_spans, struct error *e) {
    enum { RETRY_BATCHES = 64 }; /* batches on the CPU before devices are tried again */
    s->caller_spans = spans;
    if (!s->draft) s->routing_batch = routing_trace_begin(s->m->routing);
    routing_trace_end(s->m->routing, &s->routing_lines, false); /* lines of a failed batch */
    if (s->residency == RESIDENCY_YIELDED) mode = DECODE_CPU;
    if (mode != DECODE_CPU && s->n_dev && !decode_weights_loaded(s)) {
        int rc = s->clock >= s->retry_clock ? decode_weights_load(s, e) : ERR_MEMORY;
        if (rc && rc != ERR_MEMORY) return rc;
        if (rc && s->clock >= s->retry_clock) { /* a prefill has the memory; retry later */
            log_say(LOG_INFO, "decoding on the CPU: %s", e->text);
            *e = (struct error){0};
            s->retry_clock = s->clock + RETRY_BATCHES;
        }
        if (rc) mode = DECODE_CPU;
    }
    for (int i = 0; i < s->n_dev && mode != DECODE_CPU && s->residency == RESIDENCY_FULL; i++) {
        int rc = decode_experts_load(&s->dev[i], e);
        if (!rc) rc = pinned_experts_load(&s->dev[i], e);
        if (!rc) rc = expert_pool_open(&s->dev[i], e);
        if (rc) return rc;
        if (!s->draft) expert_pool_begin_batch(&s->dev[i]);
        else if ((rc = draft_experts_load(&s->dev[i], e))) return rc;
    }
    for (int i = 0; i < n_spans; i++)
        if (!s->cpu_queue && kv_resume_pos(spans[i].kv, spans[i].pos) != spans[i].pos)
            return error_set(e, ERR_RUNTIME, "a session has no state at position %d", spans[i].pos);
    int rc = 0;
    for (int i = 0; i < n_spans && !rc && !s->cpu_queue; i++)
        rc = exec_check_before(s->c, spans[i].pos, spans[i].n_before, e);
    for (int i = 0; i < n_spans && !rc; i++) rc = kv_commit(spans[i].kv, spans[i].pos + spans[i].n, e);
    if (rc) return rc;
    int n = split_batch(s, mode, spans, n_spans);
    atomic_store(s->head.first_bad, -1);
    if ((rc = run_layers(s, n, s->top, e))) return rc;
    if (s->cpu_queue) return 0;
    if (decode_device_error(s, NULL)) return ERR_RUNTIME; /* e.g. an upload that another stream dropped */
    kv_writeback_store_states(s);
    for (int i = 0; i < s->n_micros; i++) {
        const struct decode_micro_batch *m = &s->micro_batch[i];
        kv_writeback_store_rows(s, m, spans, n);
        for (int k = 0; k < m->n_spans; k++) {
            struct decode_span *t = &spans[m->caller_span[k]];
            int row = m->row0 + m->spans[k].row;
            if (m->spans[k].pos != t->pos) continue; /* the rest of a split span, whose rows follow */
            t->logits = s->logits + (size_t)row * (size_t)s->c->vocab;
            t->top = s->top + row;
            t->hidden = s->want_hidden ? s->head.x + (size_t)row * (size_t)s->c->hidden : NULL;
        }
    }
    if ((rc = check_results(s, n, s->top, e))) return rc;
    for (int i = 0; i < s->n_micros; i++)
        for (int k = 0; k < s->micro_batch[i].n_spans; k++) {
            const struct span *t = &s->micro_batch[i].spans[k];
            kv_state_commit(spans[s->micro_batch[i].caller_span[k]].kv, &t->state_step, t->pos, t->n);
        }
    for (int i = 0; i < n_spans; i++) device_kv_set_valid(s, spans[i].kv, spans[i].pos + spans[i].n);
    if (!s->draft) decode_experts_record_count(s), routing_trace_end(s->m->routing, &s->routing_lines, true);
    return 0;
}

int decode_run(struct decode *s, enum exec_mode mode, struct decode_span *spans, int n_spans, const _Atomic int *cancel,
               struct error *e) {
    struct error device_error = {0};
    s->cancel = cancel;
    device_kv_reap(s);
    int rc = s->logits ? 0 : decode_host_open(s, e); /* host buffers were lost when devices were dropped */
    if (!rc) rc = run_batch(s, mode, spans, n_spans, e);
    trace_settle(s->m->trace);
    if (!rc) return 0;
    bool failed = s->n_dev && decode_device_error(s, &device_error);
    /* a prefill has reported it */
    if (s->n_dev && !failed && rc == ERR_RUNTIME && !e->code) failed = error_set(&device_error, rc, "a device failed");
    if (!failed && !e->code) exec_op_error(rc, e);
    if (s->n_dev && (failed || reset_devices(s, !streams_are_shared(s), &device_error))) {
        log_say(LOG_WARN, "%s; sessions now decode on the CPU", device_error.text);
        rc = decode_fall_back(s, device_error.text, e);
        if (!rc && (rc = run_batch(s, DECODE_CPU, spans, n_spans, e)) && !e->code) exec_op_error(rc, e);
    }
    return rc;
}

void decode_on_device_lost(struct decode *s, const char *why) {
    if (s->n_dev) decode_fall_back(s, why, &(struct error){0}); /* missing host memory is allocated by the next batch */
}

void decode_set_draft(struct decode *s, const struct decode_draft *v) { s->draft = v; }
int decode_prefetch(struct decode *s, const struct lookahead *a, enum decode_prefetch_phase phase, double starts_in_s) {
    /* Pauses disk reads until a later phase: nothing waits for it. */
    if (s->m->disk_prefetch) disk_prefetch_announce(s->m->disk_prefetch, a, phase == PREFETCH_ALL);
    for (int i = 0; i < s->n_dev && s->residency == RESIDENCY_FULL; i++)
        TRY(expert_pool_prefetch(&s->dev[i], a, phase, starts_in_s));
    return 0;
}
void decode_set_first_spans(struct decode *s, int spans) { s->first_spans = spans; }
void decode_want_hidden(struct decode *s, bool wanted) { s->want_hidden = wanted; }
int decode_n_without_room(const struct decode *s) { return s->n_without_room; }
enum exec_mode decode_last_exec(const struct decode *s) { return s->last_exec; }

static void set_residency(struct decode *s, enum residency_state to) {
    assert(to == RESIDENCY_FULL || to > s->residency);
    assert(to != RESIDENCY_YIELDED || (!decode_weights_loaded(s) && !s->device_kvs));
    s->residency = to;
}
bool decode_yield(struct decode *s) {
    assert(!decode_is_locked(s));
    if (s->residency == RESIDENCY_YIELDED || (!decode_weights_loaded(s) && !s->device_kvs)) return false;
    while (s->device_kvs) device_kv_drop(s, s->device_kvs);
    decode_weights_unload(s);
    pin_start(s->m->gpus->pin); /* the prefill uploads what was resident */
    set_residency(s, RESIDENCY_YIELDED);
    return true;
}
void decode_reclaim(struct decode *s) { set_residency(s, RESIDENCY_FULL); }
bool decode_evict_experts(struct decode *s, int device, size_t min_free) {
    bool any = false;
    for (int i = 0; i < s->n_dev; i++) {
        const struct decode_device *d = &s->dev[i];
        if (device >= 0 && d->rank != device) continue;
        any |= ledger_reclaim(d->ledger, min_free, LEDGER_FOR_PREFILL);
    }
    if (s->residency == RESIDENCY_FULL) set_residency(s, RESIDENCY_NO_EXPERTS);
    return any;
}
bool decode_has_all_experts(const struct decode *s, int device) {
    bool all = true;
    for (int l = 0; l < s->c->n_layers && all; l++) {
        const struct decode_device *d = decode_device_of((struct decode *)s, l);
        all = !s->c->layer[l].moe || (d && (device < 0 || d->rank == device) && d->layers[l].experts.view);
    }
    return all;
}
struct decode_counts decode_counts(const struct decode *s) {
    struct decode_counts counts = s->counts;
    counts.pinned = decode_pinned_experts(s);
    return counts;
}
void decode_expert_map(const struct decode *s, uint32_t *used, int8_t *where) {
    size_t n = (size_t)s->c->n_layers * (size_t)s->c->n_experts;
    memcpy(used, s->expert_rows, n * sizeof *used);
    memset(where, -1, n);
    for (int i = 0; i < s->n_dev; i++) {
        const struct decode_device *d = &s->dev[i];
        expert_pool_mark_resident(d, where);
        for (int l = d->first; l < d->last; l++)
            for (int x = 0; x < s->c->n_experts; x++)
                if (pinned_experts_view(d, l, x))
                    where[(size_t)l * (size_t)s->c->n_experts + (size_t)x] = (int8_t)d->rank;
        for (int l = d->first; l < d->last; l++)
            if (d->layers[l].experts.view)
                memset(where + (size_t)l * (size_t)s->c->n_experts, d->rank, (size_t)s->c->n_experts);
    }
}
const uint32_t *decode_expert_rows(const struct decode *s) { return s->expert_rows; }
bool decode_is_yielded(const struct decode *s) { return s->residency == RESIDENCY_YIELDED; }
size_t decode_held_bytes(const struct decode *s, int device) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == device) return ledger_bytes(s->dev[i].ledger, LEDGER_DECODE);
    return 0;
}
size_t decode_weight_bytes(const struct decode *s, int device) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == device) return s->dev[i].weight_bytes;
    return 0;
}
bool decode_holds_layers(const struct decode *s, int device) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == device) return true;
    return false;
}
bool decode_uses_devices(const struct decode *s) {
    return s->n_resident && s->residency != RESIDENCY_YIELDED &&
           (decode_weights_loaded(s) || s->clock >= s->retry_clock);
}

int decode_resident_layers(const struct decode *s) { return s->n_resident; }
const char *decode_placement_why(const struct decode *s) { return s->placement_why; }
bool decode_can_blend(const struct decode *s) {
    return s->n_dev && s->n_resident == s->c->n_layers && !s->is_tensor_parallel;
}
int decode_tp_ranks(const struct decode *s) { return s->is_tensor_parallel ? s->n_dev : 1; }
