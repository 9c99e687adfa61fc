/* Blended prefill: attention blocks, shared experts and some routed experts of a prompt run on the devices that hold
 * the layers, the other routed experts on the CPU at the same time. Every layer is split anew (split.h). Missing expert
 * weights are uploaded one by one while the device and the CPU compute; during the attention block, before the
 * selection is known, idle links upload what fits. Every device with enough memory takes part in every layer: devices
 * without the layer get its normed rows and return the sum of their experts, both through host memory. Sums are added
 * in a fixed order: the layer's device, other devices by rank, the CPU. The extreme splits are CPU prefill and stream
 * loading. Needs devices that hold all layers. */
#include <string.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "engine/exec/blend/blend_internal.h"
#include "engine/exec/cpu_layer.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/decode_run.h"
#include "engine/exec/decode/decode_transfer.h"
#include "engine/exec/decode/decode_weights.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/exec/decode/expert_pool.h"
#include "engine/exec/decode/kv_writeback.h"
#include "engine/layer/expert_io.h"
#include "engine/layer/work_open.h"
#include "engine/model/rope.h"

/* --- Memory ----------------------------------------------------------------------------------- */

static struct decode_device *decode_device_at(struct decode *s, int rank) {
    for (int i = 0; i < s->n_dev; i++)
        if (s->dev[i].rank == rank) return &s->dev[i];
    return NULL;
}
size_t blend_min_bytes(const struct runtime *m, int device, int pos, int n) {
    return blend_device_min_bytes(m, decode_device_at(m->decode, device), pos, n);
}
size_t blend_good_bytes(const struct runtime *m, int pos, int n, bool has_ring) {
    size_t most = 0;
    for (int i = 0; i < m->gpus->n; i++) {
        size_t one = blend_device_good_bytes(m, decode_device_at(m->decode, i), pos, n, has_ring);
        if (one > most) most = one;
    }
    return most;
}

static struct blend_device *add_device(struct blend *b, int rank) {
    struct blend_device *p = &b->dev[b->n_dev++];
    *p = (struct blend_device){.s = b->s,
                               .d = decode_device_at(b->s, rank),
                               .g = b->s->m->gpus->gpu[rank],
                               .ledger = &b->s->m->gpus->ledger[rank],
                               .rank = rank};
    p->n_cleared = gpu_n_cleared(p->g);
    return p;
}

/* Picks the largest batch that fits on all devices with layers; a device without layers takes part if such a batch
 * fits. */
static int open_devices(struct blend *b, const struct prefill_job *j, struct error *e) {
    const struct gpu_set *set = b->s->m->gpus;
    const int end = j->pos + j->n, max_rows = (int)test_limits_get(TEST_LIMIT_PREFILL_ROWS, COST_BLEND_ROWS);
    int rc = 0;
    for (int i = 0; i < set->n; i++)
        if (decode_device_at(b->s, i)) add_device(b, i);
    for (b->rows = j->n < max_rows ? j->n : max_rows; b->rows > BLEND_MIN_ROWS; b->rows = (b->rows + 1) / 2) {
        bool fits = true;
        for (int i = 0; i < b->n_dev; i++) fits = fits && blend_device_try_rows(&b->dev[i], b->rows, end);
        if (fits) break;
        for (int i = 0; i < b->n_dev; i++) work_close(&b->dev[i].work);
    }
    for (int i = 0; i < set->n; i++)
        if (!decode_device_at(b->s, i) && !blend_device_try_rows(add_device(b, i), b->rows, end)) b->n_dev--;
    for (int i = 0; i < b->n_dev && !rc; i++) rc = blend_device_open(&b->dev[i], e);
    for (int i = 0; i < b->n_dev && !rc; i++) rc = blend_device_alloc(&b->dev[i], b->rows, end, b->n_dev == 1, e);
    return rc;
}

/* Whether the host needs a buffer: for experts, for the stream at the ends of a batch, to move rows between devices, or
 * for embeddings of n-grams. */
static bool is_on_host(const struct blend *b, const struct work_row *k) {
    const struct config *c = b->s->c;
    const bool is_moved = k->reads && (b->s->n_dev > 1 || k->reads(c, c->n_layers));
    const bool is_sent = k->at == offsetof(struct work, ngrams); /* gathered here */
    return (is_moved || is_sent || k->life == WORK_ROUTED || k->life == WORK_EXPERTS) && work_row_bytes(k, c);
}
static int open_host_buffers(struct blend *b, const struct prefill_job *j, struct error *e) {
    const struct config *c = b->s->c;
    const size_t experts = (size_t)c->n_experts;
    const size_t rows = (size_t)b->rows, in = rows * (size_t)config_routed_width(c) * 4,
                 pairs = rows * (size_t)c->topk * 4;
    struct gpu *g = b->dev[0].g;
    int rc = gpu_host_alloc(g, (void **)&b->pos, 5 * rows * 4, e);
    if (!rc && image_rows_deep(&j->images, c->hidden))
        rc = gpu_host_alloc(g, (void **)&b->deep, rows * (size_t)c->hidden * 4, e);
    if (!rc) rc = gpu_host_alloc(g, (void **)&b->bad, 4, e);
    if (!rc) rc = gpu_host_alloc(g, (void **)&b->kv, kv_writeback_prefill_bytes(b->s, b->rows), e);
    if (!rc && pairs) rc = gpu_host_alloc(g, (void **)&b->cpu_ids, pairs, e);
    if (!rc && b->n_dev > 1 && expert_io_is_apart(c)) rc = gpu_host_alloc(g, (void **)&b->in, in, e);
    for (const struct work_row *k = work_rows; k->width && !rc; k++)
        if (is_on_host(b, k)) rc = gpu_host_alloc(g, work_field(&b->host, k), work_row_room(k, c, b->rows), e);
    if (rc) return rc;
    b->experts = mem_alloc(experts * sizeof *b->experts);
    b->expert_ids = mem_alloc(experts * sizeof *b->expert_ids);
    b->n_pairs = mem_alloc(2 * experts * sizeof *b->n_pairs);
    b->device_of = mem_alloc(experts);
    b->logits = mem_alloc((size_t)(j->on_logits ? HEAD_ROWS : 1) * (size_t)c->vocab * sizeof *b->logits);
    if (!b->experts || !b->expert_ids || !b->n_pairs || !b->device_of || !b->logits)
        return error_set(e, ERR_MEMORY, "no memory for a prefill");
    b->first_pair = b->n_pairs + experts;
    return 0;
}

static void cancel_devices(struct blend *b) { /* cancels everything in flight; no decode batch is running */
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        if (p->stop) atomic_store(p->stop, 1);
        upload_abort(&p->uploads);
        if (p->summed) gpu_timeline_abort(p->summed);
    }
    cpu_settle(b->s->m, (struct gpu_timeline *[]){b->cpu_done, b->arrived}, 2);
}

static void blend_close(struct runtime *m, struct prefill_job *j) {
    struct blend *b = j->state;
    struct error device = {0};
    cancel_devices(b);
    for (int i = 0; i < m->decode->n_dev; i++) expert_pool_freeze(&m->decode->dev[i], false);
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        blend_device_close(p);
        if (p->d) device_kv_uploads_settle(p->d);
        else if (gpu_error(p->g, &device) && gpu_clear(p->g, &device)) m->gpus->is_lost = true;
    }
    trace_settle(m->trace);
    for (int i = 0; i < b->n_dev; i++)
        if (b->dev[i].d && b->dev[i].stop) atomic_store(b->dev[i].stop, 0);
    void *pinned[] = {b->pos, (void *)b->bad, b->kv, b->cpu_ids, b->in, b->deep};
    for (size_t i = 0; i < sizeof pinned / sizeof *pinned; i++) gpu_host_free(m->gpus->gpu[0], pinned[i]);
    for (const struct work_row *k = work_rows; k->width; k++) gpu_host_free(m->gpus->gpu[0], *work_field(&b->host, k));
    gpu_timeline_close(&b->cpu_done);
    gpu_timeline_close(&b->arrived);
    void *own[] = {b->experts, b->expert_ids, b->n_pairs, b->device_of, b->logits, b};
    routing_trace_end(m->routing, &b->routing_lines, false);
    buf_free(&b->routing_lines);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) mem_free(own[i]);
    j->state = NULL;
    device_kv_lock(m->decode, j->kv, false);
    if (decode_device_error(m->decode, &device)) decode_fall_back(m->decode, device.text, &device);
}

/* Returns whether a device has failed since the prefill began, also one without layers; e: its error. */
static bool any_device_failed(const struct blend *b, struct error *e) {
    bool failed = decode_device_error(b->s, e);
    for (int i = 0; i < b->n_dev && !failed; i++) failed = gpu_error_since(b->dev[i].g, b->dev[i].n_cleared, e);
    return failed;
}
/* Fills e with the device's error if one failed, since its rows may not be finite then; else with the operation's. */
static int fill_error(const struct blend *b, int rc, struct error *e) {
    if (!any_device_failed(b, e) && !e->code) exec_op_error(rc, e);
    return e->code;
}

/* Virtual time: no upload may start before the prompt arrives. */
static int start_virtual_clocks(struct blend *b) {
    TRY(gpu_timeline_signal(b->cpu_done, ++b->n_cpu_done, b->s->cpu_queue));
    for (int i = 0; i < b->n_dev; i++) {
        TRY(gpu_timeline_wait(b->cpu_done, b->n_cpu_done, b->dev[i].uploads.link));
        TRY(gpu_timeline_wait(b->cpu_done, b->n_cpu_done, blend_device_stream(&b->dev[i])));
    }
    return 0;
}

static int blend_open(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct decode *s = m->decode;
    struct blend *b = mem_calloc(1, sizeof *b);
    if (!b) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    j->state = b;
    b->s = s;
    for (int i = 0; i < s->n_dev; i++) /* evicts other sessions' KV, which is uploaded again when they decode */
        while (s->device_kvs && gpu_mem_free(s->dev[i].g) + ledger_bytes(s->dev[i].ledger, LEDGER_WEIGHTS) <
                                    s->dev[i].weight_bytes + blend_device_min_bytes(m, &s->dev[i], j->pos, j->n))
            device_kv_drop(s, s->device_kvs);
    int rc = m->cpu_queue ? 0 : exec_check_before(s->c, j->pos, j->n_before, e);
    if (!rc) rc = kv_commit(j->kv, j->pos + j->n, e);
    if (!rc) rc = decode_weights_load(s, e);
    if (!rc && decode_device_error(s, e)) rc = e->code;                      /* weights may be missing */
    for (int i = 0; i < s->n_dev; i++) expert_pool_freeze(&s->dev[i], true); /* the prefill reads the pool's experts */
    b->state_step = kv_state_begin(j->kv, j->pos, j->n, 0);
    if (!rc && !device_kv_acquire(s, j->kv, b->state_step.from_row, j->pos, j->pos + j->n))
        rc = error_set(e, ERR_MEMORY, "no device memory for a KV cache of %d tokens", j->pos + j->n);
    if (!rc) device_kv_lock(s, j->kv, true);
    if (!rc) rc = gpu_timeline_open(s->dev[0].g, &b->arrived, e);
    if (!rc) rc = gpu_timeline_open(s->dev[0].g, &b->cpu_done, e);
    if (!rc) rc = open_devices(b, j, e);
    if (!rc) rc = open_host_buffers(b, j, e);
    for (int i = 0; i < b->n_dev && !rc; i++)
        if (b->dev[i].d)
            rc = gpu_copy(blend_device_stream(&b->dev[i]), b->dev[i].work.inv_freq, m->w->inv_freq,
                          (size_t)rope_floats(s->c) * 4, GPU_H2D);
    if (!rc && s->cpu_queue) rc = start_virtual_clocks(b);
    if (rc) {
        rc = fill_error(b, rc, e);
        blend_close(m, j);
        device_kv_invalidate(s, j->kv, 0); /* the devices have dropped uploads of this session's KV */
        return rc;
    }
    cost_table_fill(&b->table, m->cost, 0, m->cost_model, COST_MANY_ROWS);
    atomic_store(&j->total, j->n * s->c->n_layers);
    atomic_store(&j->is_ready, 1);
    return 0;
}

/* --- A layer ---------------------------------------------------------------------------------- */

/* Moves the residual stream to the device of the next layer. */
static int move_rows(struct blend *b) {
    struct blend_device *from = &b->dev[b->owner], *to = from;
    const struct decode_device *d = decode_device_of(b->s, b->layer);
    for (int i = 0; i < b->n_dev; i++)
        if (b->dev[i].d == d) to = &b->dev[b->owner = i];
    if (from == to) return 0;
    TRY(decode_carry(b->s->c, blend_device_stream(from), &b->host, &from->work, b->n, b->layer, GPU_D2H));
    TRY(gpu_timeline_signal(b->arrived, ++b->n_arrived, blend_device_stream(from)));
    TRY(gpu_timeline_wait(b->arrived, b->n_arrived, blend_device_stream(to)));
    return decode_carry(b->s->c, blend_device_stream(to), &to->work, &b->host, b->n, b->layer, GPU_H2D);
}

/* Whether the host needs what the router selects: to split it, or to record it. */
static bool host_reads_selection(const struct blend *b) {
    return b->s->c->layer[b->layer].moe && (b->s->m->routing || !blend_resident_experts(b));
}

static int attention_block(struct blend *b, const struct prefill_job *j, const struct device_kv *copy) {
    const struct config *c = b->s->c;
    struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    struct exec *x = gpu_stream_exec(main);
    const struct layer *y = &p->d->layers[b->layer].view;
    struct span t = {.cache = copy->layers, .n = b->n, .pos = j->pos + b->at, .state_step = copy->state_step};
    size_t pairs = (size_t)b->n * (size_t)c->topk * 4, hidden = (size_t)b->n * (size_t)c->hidden * 4;
    int span = trace_begin(b->s->m->trace, main, p->rank, LANE_COMPUTE, "attention", b->layer, -1);
    TRY(block_attention(x, c, y, b->layer, &p->work, &t, 1, b->n));
    TRY(kv_writeback_download_prefill(b->s, copy, main, b->layer, t.pos, b->n, b->kv));
    TRY(block_route(x, c, y, b->layer, &p->work, b->n));
    if (host_reads_selection(b)) {
        TRY(gpu_copy(main, b->host.xn, p->work.xn, hidden, GPU_D2H));
        TRY(gpu_copy(main, b->host.ids, p->work.ids, pairs, GPU_D2H));
        TRY(gpu_copy(main, b->host.weights, p->work.weights, pairs, GPU_D2H));
        TRY(gpu_copy(main, (void *)b->bad, (const void *)p->work.first_bad, 4, GPU_D2H));
        TRY(gpu_timeline_signal(b->arrived, ++b->n_arrived, main));
    }
    TRY(block_experts(x, c, y, b->layer, &p->work, PART_SHARED, p->work.x, b->n));
    trace_end(b->s->m->trace, span, main);
    return 0;
}

static int run_layer(struct blend *b, const struct prefill_job *j, struct error *e) {
    struct decode *s = b->s;
    struct runtime *m = s->m;
    bool moe = s->c->layer[b->layer].moe;
    struct device_kv *copy = device_kv_acquire(s, j->kv, b->state_step.from_row, j->pos + b->at, j->pos + j->n);
    if (!copy) return error_set(e, ERR_MEMORY, "no device memory for a KV cache of %d tokens", j->pos + j->n);
    copy->state_step.mark = b->state_step.mark;
    TRY(move_rows(b));
    if (moe && !blend_resident_experts(b) && (!b->layer || !blend_experts_are_split(b, b->layer - 1)))
        TRY(blend_experts_upload_ahead(b, j, b->layer, false, e));
    TRY(attention_block(b, j, copy));
    if (!host_reads_selection(b)) return moe ? blend_experts_run_resident(b) : 0;
    if (s->cpu_queue) TRY(gpu_timeline_wait(b->arrived, b->n_arrived, s->cpu_queue));
    else {
        TRY(gpu_timeline_wait_host(b->arrived, b->n_arrived, s->cancel));
        if (*b->bad >= 0) return exec_check_finite(*b->bad, e);
        TRY(nan_scan_experts(&m->scan, b->layer, b->host.ids, b->n * s->c->topk, e));
        usage_profile_count(m->usage, b->layer, b->host.ids, b->n * s->c->topk);
    }
    if (!s->cpu_queue)
        routing_trace_add(m->routing, &b->routing_lines,
                          &(struct routing_trace_rows){.batch = b->routing_batch,
                                                       .chat = j->kv,
                                                       .is_prefill = true,
                                                       .layer = b->layer,
                                                       .n = b->n,
                                                       .pos = j->pos + b->at,
                                                       .tokens = b->pos + b->rows,
                                                       .ids = b->host.ids,
                                                       .weights = b->host.weights});
    return blend_resident_experts(b) ? blend_experts_run_resident(b) : blend_experts_run_split(b, j, e);
}

/* --- The mode --------------------------------------------------------------------------------- */

static int begin_batch(struct blend *b, struct prefill_job *j) {
    struct decode *s = b->s;
    struct runtime *m = s->m;
    b->n = j->n - b->at < b->rows ? j->n - b->at : b->rows;
    b->layer = 0;
    b->routing_batch = routing_trace_begin(m->routing);
    b->state_step = kv_state_begin(j->kv, j->pos + b->at, b->n, prefill_mark_row(j, b->at, b->n));
    m->cpu->cancel = j->cancel;
    int32_t *tokens = b->pos + b->rows, *place = tokens + b->rows;
    const bool has_places = image_rows_have_places(&j->images, s->c);
    image_rows_turn(&j->images, s->c, j->pos + b->at, b->n, b->pos, place);
    if (s->cpu_queue) memset(tokens, 0, (size_t)b->n * sizeof *tokens);
    else {
        const struct text_rows text = prefill_text(j, b->at, b->n);
        image_rows_ids(&j->images, text.ids, text.n, tokens);
        TRY(prefill_embed(m, j, b->host.x, b->at, b->n));
        TRY(block_gather_ngrams(m->cpu, m->w, m->prefill_work, b->host.ngrams, &text, 1));
    }
    for (int i = 0; i < b->n_dev; i++) {
        struct blend_device *p = &b->dev[i];
        struct gpu_stream *main = blend_device_stream(p);
        if (!p->d) continue;
        TRY(gpu_fill(main, (void *)p->work.first_bad, 0xff, 4));
        TRY(gpu_copy(main, p->work.pos, b->pos, (size_t)b->n * 4, GPU_H2D));
        TRY(gpu_copy(main, p->work.tokens, tokens, (size_t)b->n * 4, GPU_H2D));
        if (has_places) TRY(gpu_copy(main, p->work.place, place, (size_t)b->n * 12, GPU_H2D));
        p->work.has_places = has_places;
        if (b->host.ngrams)
            TRY(gpu_copy(main, p->work.ngrams, b->host.ngrams, (size_t)b->n * (size_t)config_ngram_floats(s->c) * 4,
                         GPU_H2D));
        TRY(block_rope(gpu_stream_exec(main), m->w, &p->work, b->n, j->pos + j->n));
        if (p->d != decode_device_of(s, 0)) continue;
        TRY(gpu_copy(main, p->work.x, b->host.x, (size_t)b->n * (size_t)s->c->hidden * 4, GPU_H2D));
        b->owner = i;
    }
    return 0;
}

/* Stores the batch in the host KV and computes the wanted logits. */
static int end_batch(struct blend *b, struct prefill_job *j, struct error *e) {
    struct decode *s = b->s;
    struct runtime *m = s->m;
    size_t hidden = (size_t)s->c->hidden;
    int first = j->on_logits           ? (j->n_reported > b->at ? j->n_reported - b->at : 0)
                : b->at + b->n == j->n ? b->n - 1
                                       : b->n;
    struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    TRY(block_merge_streams(gpu_stream_exec(main), p->d->head_weights, &p->work, b->n));
    TRY(gpu_copy(main, b->host.x, p->work.x, (size_t)b->n * hidden * 4, GPU_D2H));
    TRY(gpu_copy(main, (void *)b->bad, (const void *)p->work.first_bad, 4, GPU_D2H));
    for (int i = 0; i < b->n_dev; i++) TRY(gpu_stream_sync(blend_device_stream(&b->dev[i])));
    if (s->cpu_queue) { /* order what follows after the device's clock */
        TRY(gpu_timeline_signal(b->arrived, ++b->n_arrived, main));
        TRY(gpu_timeline_wait(b->arrived, b->n_arrived, s->cpu_queue));
        return gpu_stream_sync(s->cpu_queue);
    }
    if (any_device_failed(b, e)) return e->code; /* e.g. an upload that another stream dropped */
    TRY(exec_check_finite(*b->bad, e));
    kv_writeback_store_prefill(s, j->kv, &b->state_step, j->pos + b->at, b->n, b->kv);
    device_kv_set_valid(s, j->kv, j->pos + b->at + b->n);
    prefill_complete(j, b->at, b->n, &b->state_step);
    routing_trace_end(m->routing, &b->routing_lines, true);
    for (int i = first; i < b->n; i += HEAD_ROWS) {
        cpu_count_read(m, mat_bytes(&m->w->head));
        TRY(prefill_head(m, j, b->host.x + (size_t)i * hidden, 0, b->at + i,
                         b->n - i < HEAD_ROWS ? b->n - i : HEAD_ROWS, b->logits, e));
    }
    return 0;
}

/* Adds what images add after the layer. */
static int add_deep_rows(struct blend *b, const struct prefill_job *j) {
    const struct blend_device *p = &b->dev[b->owner];
    struct gpu_stream *main = blend_device_stream(p);
    if (b->layer >= image_rows_deep(&j->images, b->s->c->hidden)) return 0;
    TRY(image_rows_add(&j->images, b->s->c->hidden, j->pos + b->at, b->n, b->layer, main, p->work.x, p->work.xn,
                       b->deep));
    return gpu_stream_sync(main); /* it has read b->deep */
}

/* A layer of the batch. The devices' streams are those of answers, whose products stay as they are. */
static int run_prompt_layer(struct blend *b, const struct prefill_job *j, struct error *e) {
    for (int i = 0; i < b->n_dev; i++) gpu_stream_set_fp8(blend_device_stream(&b->dev[i]), prefill_is_fp8(b->s->m, j));
    int rc = run_layer(b, j, e);
    if (!rc) rc = add_deep_rows(b, j);
    for (int i = 0; i < b->n_dev; i++) gpu_stream_set_fp8(blend_device_stream(&b->dev[i]), false);
    return rc;
}

static int blend_advance(struct runtime *m, struct prefill_job *j, struct error *e) {
    struct blend *b = j->state;
    int layers = b->s->c->n_layers, rc = 0;
    b->s->cancel = m->cpu->cancel = j->cancel; /* a decode batch in between has set its own */
    b->s->clock++;
    if (j->cancel && atomic_load(j->cancel)) rc = ERR_CANCELLED;
    for (int i = 0; i < b->n_dev && !rc; i++)
        if (!blend_device_stream(&b->dev[i])) rc = error_set(e, ERR_RUNTIME, "the device failed during decode");
    if (!rc && !b->n) rc = begin_batch(b, j);
    if (!rc) rc = run_prompt_layer(b, j, e);
    if (!rc && ++b->layer == layers) rc = end_batch(b, j, e);
    if (rc) {
        device_kv_invalidate(b->s, j->kv, 0);
        return fill_error(b, rc, e);
    }
    if (b->layer == layers) trace_settle(m->trace);
    atomic_store(&j->done, b->at * layers + b->n * b->layer);
    if (b->layer < layers) return PREFILL_MORE;
    b->at += b->n;
    b->n = 0;
    return b->at < j->n ? PREFILL_MORE : 0;
}

const struct prefill_driver prefill_mode_blend = {
    .mode = PREFILL_BLEND, .open = blend_open, .advance = blend_advance, .close = blend_close};
