/* Runs stream-loaded prefills: ranks, their memory, threads and results. */
#include <string.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/prefill.h"
#include "engine/exec/stream/exchange.h"
#include "engine/exec/stream/kvring.h"
#include "engine/exec/stream/ring_rank.h"
#include "engine/exec/stream/slp.h"
#include "engine/exec/stream/slp_fail.h"
#include "engine/exec/stream/slp_threads.h"
#include "engine/layer/kv_planes.h"
#include "engine/layer/work_open.h"
#include "engine/model/rope.h"
#include "engine/transfer/stage.h"

/* --- A rank: its part of the prompt, memory, streams ------------------------------------------ */

/* Assigns device, tokens and experts. Zig-zag: of 2 * n_ranks stripes, rank i has the i-th and the i-th from the end,
 * which balances causal attention. */
static void assign_rank(struct slp_run *p, int id) {
    struct slp_rank *r = &p->rank[id];
    const int n_ranks = p->n_ranks, n = p->job->n;
    r->p = p;
    r->id = id;
    r->g = p->job->set->gpu[p->job->device + id];
    r->n_cleared = gpu_n_cleared(r->g);
    r->ledger = &p->job->set->ledger[p->job->device + id];
    r->resident = p->job->resident ? &p->job->resident[p->job->device + id] : NULL;
    if (n_ranks == 1) {
        r->stripe[r->n_stripes++] = (struct stripe){.first = 0, .n = r->n = n, .row = 0};
    } else {
        const int which[STRIPES] = {r->id, 2 * n_ranks - 1 - r->id};
        for (int i = 0; i < STRIPES; i++) {
            int begin = (int)((int64_t)n * which[i] / (2 * n_ranks)),
                end = (int)((int64_t)n * (which[i] + 1) / (2 * n_ranks));
            if (begin == end) continue;
            r->stripe[r->n_stripes++] = (struct stripe){.first = begin, .n = end - begin, .row = r->n};
            r->n += end - begin;
        }
    }
    r->first_expert = (int)((int64_t)r->p->c->n_experts * r->id / n_ranks);
    r->last_expert = (int)((int64_t)r->p->c->n_experts * (r->id + 1) / n_ranks);
}

/* Kinds of modules that pass through slots; indexes of gpu_set.max_module_bytes. */
enum slot_kind { SLOT_ATTENTION, SLOT_FFN, SLOT_EXPERT };
/* Returns the largest size of a module of that kind in a slot; cached in the set. */
static size_t largest_module_bytes(struct gpu_set *set, const struct weights *w, enum slot_kind kind) {
    static const enum module modules[] = {
        [SLOT_ATTENTION] = MODULE_ATTENTION, [SLOT_FFN] = MODULE_FFN, [SLOT_EXPERT] = MODULE_EXPERT};
    struct copy_range ranges[COPY_RANGES_MAX];
    struct layer view; /* or an expert, which is smaller */
    size_t most = set->max_module_bytes[kind];
    for (int l = 0; l < w->config.n_layers && !set->max_module_bytes[kind]; l++) {
        const struct layer *y = &w->layers[l];
        int n = kind != SLOT_EXPERT ? 1 : y->experts ? w->config.n_experts : 0;
        for (int i = 0; i < n; i++) {
            const void *src = kind != SLOT_EXPERT ? (const void *)y : &y->experts[i];
            const size_t bytes =
                copy_ranges_bytes(ranges, copy_ranges_list(&w->config, l, modules[kind], src, &view, ranges));
            most = bytes > most ? bytes : most;
        }
    }
    return set->max_module_bytes[kind] = most;
}

/* Returns the bytes of a position in the layer where they are most; with `state` the bytes of a state. */
static size_t largest_row_bytes(const struct slp_run *p, bool state) {
    struct cache_desc d[CACHE_PLANES];
    size_t most = 0;
    for (int l = 0; l < p->c->n_layers; l++) {
        size_t one = 0;
        for (int i = kv_planes(p->c, l, d); i-- > 0;) {
            struct kv_row_range x = kv_row_range_of(&p->job->cache[l].p[i], 0, 1);
            size_t every = d[i].tokens_per_row ? (size_t)d[i].tokens_per_row : 1;
            if ((d[i].fixed_rows > 0) == state) one += (x.bytes + x.n_scales * 4 + every - 1) / every;
        }
        most = one > most ? one : most;
    }
    return most;
}

static struct slp_need memory_need(const struct slp_rank *r) {
    const struct slp_run *p = r->p;
    struct gpu_set *set = p->job->set;
    const struct gpu_spec *spec = &set->spec;
    size_t attention = largest_module_bytes(set, p->job->w, SLOT_ATTENTION),
           ffn = largest_module_bytes(set, p->job->w, SLOT_FFN);
    struct slp_need need = {.n_rows = r->n,
                            .n_positions = p->job->pos + p->job->n,
                            .n_tokens = p->job->n,
                            .n_experts = r->last_expert - r->first_expert,
                            .expert_bytes = largest_module_bytes(set, p->job->w, SLOT_EXPERT),
                            .dense_bytes = attention > ffn ? attention : ffn,
                            .chunk = spec->slp_chunk_rows,
                            .ring = spec->slp_ring_slots,
                            .state_bytes = RANK_STATES * largest_row_bytes(p, true),
                            .kv_row_bytes = largest_row_bytes(p, false)};
    if (p->job->resident && resident_set_has_all(r->resident, p->c, r->first_expert, r->last_expert))
        need.expert_bytes = 0;
    /* dequantized matrices, FFN intermediates, cuBLAS */
    if (!spec->is_emulated || spec->is_virtual) need.reserve = (size_t)768 << 20;
    return need;
}

/* Returns the most bytes that any rank needs: the least possible, or with a ring of `slots` >= 0. */
static size_t most_rank_bytes(const struct slp_job *j, int slots) {
    struct slp_run *p = mem_calloc(1, sizeof *p);
    size_t most = p ? 0 : SIZE_MAX;
    for (int i = 0; i < j->ranks && p; i++) {
        struct slp_plan plan;
        p->job = j, p->c = &j->w->config, p->n_ranks = j->ranks;
        assign_rank(p, i);
        struct slp_need need = memory_need(&p->rank[i]);
        slp_plan(&plan, p->c, &need, 0, &(struct error){0});
        const size_t bytes = slots < 0 ? plan.bytes : slp_plan_bytes(p->c, &need, slots);
        if (bytes > most) most = bytes;
    }
    mem_free(p);
    return most;
}
size_t slp_min_bytes(const struct slp_job *j) { return most_rank_bytes(j, -1); }
size_t slp_good_bytes(const struct slp_job *j, bool has_ring) {
    const int n = (j->w->config.n_experts + j->ranks - 1) / j->ranks;
    return most_rank_bytes(j, !has_ring ? 0 : n < PREFILL_RING_SLOTS ? n : PREFILL_RING_SLOTS);
}

static int make_plan(struct slp_rank *r, struct error *e) {
    struct slp_run *p = r->p;
    struct slp_need need = memory_need(r);
    int rc = slp_plan(&r->plan, p->c, &need, gpu_mem_free(r->g), e);
    if (rc) return rc;
    if ((rc = ring_open(&r->dense, r->ledger, r->plan.dense_slots, need.dense_bytes, e))) return rc;
    return need.expert_bytes ? ring_open(&r->experts, r->ledger, r->plan.ring_slots, need.expert_bytes, e) : 0;
}

/* Opens the buffers that outlive a chunk. */
static int open_rows(struct slp_rank *r, struct error *e) {
    const struct config *c = r->p->c;
    const bool is_split = r->p->n_ranks > 1;
    const size_t all = (size_t)r->p->job->n, pairs = all * (size_t)c->topk * 4;
    int rc = 0;
    for (const struct work_row *k = work_rows; k->width && !rc; k++) {
        const size_t bytes = slp_row_bytes(k, c, (size_t)r->n, all, is_split);
        if (bytes) rc = gpu_alloc(r->g, work_field(&r->rows, k), bytes, e);
    }
    if (!c->n_experts) return rc;
    if (!rc) rc = gpu_alloc(r->g, (void **)&r->token, pairs, e);
    if (!rc) rc = gpu_alloc(r->g, (void **)&r->weight, pairs, e);
    if (!rc) rc = gpu_alloc(r->g, (void **)&r->offset, (size_t)(r->last_expert - r->first_expert + 1) * 4, e);
    return rc || !is_split ? rc : gpu_alloc(r->g, (void **)&r->sum, all * (size_t)config_row_width(c) * 4, e);
}
static void close_rows(struct slp_rank *r) {
    for (const struct work_row *k = work_rows; k->width; k++) gpu_free(r->g, *work_field(&r->rows, k));
    gpu_free(r->g, r->token), gpu_free(r->g, r->weight), gpu_free(r->g, r->offset), gpu_free(r->g, r->sum);
}

/* Opens and closes device memory and streams of a rank. Drain all ranks before closing the first; close accepts partly
 * opened ranks. */
static int rank_open(struct slp_rank *r, struct error *e) {
    struct slp_run *p = r->p;
    const struct gpu_spec *spec = &p->job->set->spec;
    int rc = gpu_stream_open(r->g, &r->load_stream, "load", false, &p->stop, e);
    if (!rc) rc = gpu_stream_open(r->g, &r->compute_stream, "compute", true, &p->stop, e);
    if (!rc) gpu_stream_set_fp8(r->compute_stream, p->job->is_fp8);
    if (!rc) rc = gpu_stream_open(r->g, &r->unload_stream, "unload", true, &p->stop, e);
    struct gpu_stream *const streams[] = {r->load_stream, r->compute_stream, r->unload_stream};
    for (int i = 0; i < 3 && !rc && p->job->after; i++) rc = gpu_event_wait(p->job->after, streams[i]);
    if (!rc) rc = exchange_open(r, e);
    if (!rc) rc = make_plan(r, e); /* while everything it plans is still free */
    if (!rc) rc = open_rows(r, e);
    if (!rc) rc = work_open_device(&r->work, p->c, r->plan.chunk_rows, r->g, &r->compute_stream, e);
    if (!rc) rc = kvring_open(r, e);
    if (!rc)
        rc = gpu_host_alloc(r->g, (void **)&r->host_offset, ((size_t)(r->last_expert - r->first_expert) + 2) * 4, e);
    if (!rc && image_rows_deep(&p->job->images, p->c->hidden))
        rc = gpu_host_alloc(r->g, (void **)&r->deep, (size_t)r->plan.chunk_rows * (size_t)p->c->hidden * 4, e);
    for (int i = 0; i < 3 && !rc; i++) rc = gpu_event_open_timed(r->g, &r->last_event[i], e);
    if (!rc) rc = ring_pace_open(&r->pace_load, r->g, e);
    if (!rc) rc = ring_pace_open(&r->pace_main, r->g, e);
    /* prefixes are in unpinned memory even when weights are pinned */
    int threads = stage_threads(p->job->set, p->job->w);
    struct stage_options load = {.set = p->job->set,
                                 .g = r->g,
                                 .stream = r->load_stream,
                                 .stop = &p->stop,
                                 .is_metered = true,
                                 .threads = spec->is_virtual || threads ? threads : 1};
    if (!rc) rc = stage_open(&r->stage, &load, e);
    if (!rc && slp_selects_few(p->c, p->job->n) &&
        !(r->selected = mem_calloc((size_t)p->c->n_layers * (size_t)p->c->n_experts, 1)))
        rc = error_set(e, ERR_MEMORY, "no memory for a rank");
    r->cache = mem_calloc((size_t)p->c->n_layers, sizeof *r->cache);
    if (p->job->check_weights &&
        !(r->check_ids = mem_alloc(((size_t)(r->last_expert - r->first_expert) + 1) * sizeof *r->check_ids)) && !rc)
        rc = error_set(e, ERR_MEMORY, "no memory for a rank");
    if (!rc && !r->cache) rc = error_set(e, ERR_MEMORY, "no memory for a rank");
    return rc;
}

/* Other ranks' streams wait for this one's events and read its memory: all must be idle before anything is freed. */
static int rank_drain(struct slp_rank *r) {
    struct gpu_stream *all[] = {r->load_stream, r->compute_stream, r->unload_stream,
                                r->exchange ? r->exchange->send : NULL, r->exchange ? r->exchange->recv : NULL};
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int one = all[i] ? gpu_stream_sync(all[i]) : 0;
        if (!rc) rc = one;
    }
    return rc;
}
static void rank_close(struct slp_rank *r) {
    kvring_close(r);
    exchange_close(r);
    stage_close(&r->stage);
    gpu_stream_close(&r->load_stream);
    gpu_stream_close(&r->unload_stream);
    work_close(&r->work);
    gpu_stream_close(&r->compute_stream);
    ring_close(&r->dense, r->ledger);
    ring_close(&r->experts, r->ledger);
    close_rows(r);
    gpu_free(r->g, r->merge_mem);
    for (int i = 0; i < 3; i++) gpu_event_close(&r->last_event[i]);
    ring_pace_close(&r->pace_load);
    ring_pace_close(&r->pace_main);
    gpu_host_free(r->g, r->host_offset), gpu_host_free(r->g, r->deep);
    mem_free(r->merge_weights);
    mem_free(r->selected);
    mem_free(r->check_ids);
    mem_free(r->cache);
}

/* --- The run ---------------------------------------------------------------------------------- */

/* Uploads the weights that merge several residual streams after the last layer. */
static int upload_merge_weights(struct slp_rank *r, struct error *e) {
    const struct weights *w = r->p->job->w;
    struct copy_range ranges[COPY_RANGES_MAX];
    struct copy_run runs[COPY_RANGES_MAX];
    size_t bytes;
    if (!(r->merge_weights = mem_alloc(sizeof *r->merge_weights)))
        return error_set(e, ERR_MEMORY, "no memory for a rank");
    *r->merge_weights = *w;
    int n = copy_ranges_list(&w->config, 0, MODULE_STREAM_MERGE, w, r->merge_weights, ranges),
        k = copy_runs_merge(ranges, n, runs, &bytes);
    int rc = n ? gpu_alloc(r->g, (void **)&r->merge_mem, bytes, e) : 0;
    for (int i = 0; i < k && !rc; i++)
        rc = gpu_copy(r->compute_stream, r->merge_mem + runs[i].at, runs[i].host, runs[i].bytes, GPU_H2D);
    for (int i = 0; i < n && !rc; i++) *ranges[i].field = r->merge_mem + ranges[i].at;
    return rc;
}

/* Uploads the embeddings of n-grams of n rows of a stripe from row `at` on, in pieces through a host buffer of `floats`
 * numbers. */
static int upload_ngrams(struct slp_rank *r, const struct stripe *s, int at, int n, float *buf, size_t floats,
                         struct error *e) {
    const struct slp_job *j = r->p->job;
    const size_t width = (size_t)config_ngram_floats(r->p->c);
    int rc = 0;
    if (!width) return 0;
    const int most = (int)(floats / width);
    for (int k = 0, rows; k < n && !rc; k += rows) {
        rows = n - k < most ? n - k : most;
        if (!j->set->spec.is_virtual && (rc = j->gather_ngrams(j->ctx, buf, s->first + at + k, rows)))
            return error_set(e, rc, "the embeddings of the prompt's n-grams failed");
        rc = gpu_copy(r->compute_stream, r->rows.ngrams + (size_t)(s->row + at + k) * width, buf,
                      (size_t)rows * width * 4, GPU_H2D);
        if (!rc && !j->set->spec.is_virtual) rc = gpu_stream_sync(r->compute_stream);
    }
    return rc;
}

/* Uploads the ids of n rows of a stripe from row `at` on, and what they turn by, through a host buffer of
 * INPUTS * n numbers. */
enum { INPUTS = 5 }; /* id, position, and three of places */
static int upload_turns(struct slp_rank *r, const struct stripe *s, int at, int n, int32_t *buf) {
    const struct slp_job *j = r->p->job;
    const size_t row = (size_t)(s->row + at);
    int32_t *pos = buf + n, *place = pos + n;
    image_rows_turn(&j->images, r->p->c, j->pos + s->first + at, n, pos, place);
    if (j->tokens) {
        image_rows_ids(&j->images, j->tokens + s->first + at, n, buf);
        TRY(gpu_copy(r->compute_stream, r->rows.tokens + row, buf, (size_t)n * 4, GPU_H2D));
    }
    TRY(gpu_copy(r->compute_stream, r->rows.pos + row, pos, (size_t)n * 4, GPU_H2D));
    if (image_rows_have_places(&j->images, r->p->c))
        TRY(gpu_copy(r->compute_stream, r->rows.place + 3 * row, place, (size_t)n * 12, GPU_H2D));
    return gpu_stream_sync(r->compute_stream);
}

/* Uploads embeddings, tokens, positions and frequencies, in pieces through a host buffer of rows * (hidden + INPUTS)
 * numbers and what one row of n-grams has. */
static int upload_inputs(struct slp_rank *r, float *buf, int rows, struct error *e) {
    struct slp_run *p = r->p;
    const struct slp_job *j = p->job;
    size_t hidden = (size_t)p->c->hidden;
    int rc = gpu_fill(r->compute_stream, (void *)r->work.first_bad, 0xff, 4);
    if (!rc) rc = upload_merge_weights(r, e);
    if (!rc) rc = gpu_copy(r->compute_stream, r->work.inv_freq, j->w->inv_freq, (size_t)rope_floats(p->c) * 4, GPU_H2D);
    for (int i = 0; i < r->n_stripes && !rc; i++)
        for (int at = 0; at < r->stripe[i].n && !rc; at += rows) {
            const struct stripe *s = &r->stripe[i];
            int n = s->n - at < rows ? s->n - at : rows;
            if ((rc = upload_ngrams(r, s, at, n, buf, (size_t)rows * hidden + (size_t)config_ngram_floats(p->c), e)))
                return rc;
            if (j->set->spec.is_virtual) {
                rc = gpu_copy(r->compute_stream, r->rows.x + (size_t)(s->row + at) * hidden, buf,
                              (size_t)n * hidden * 4, GPU_H2D);
                continue;
            }
            if ((rc = j->embed(j->ctx, buf, s->first + at, n)))
                return error_set(e, rc, "the embedding of the prompt failed");
            rc = gpu_copy(r->compute_stream, r->rows.x + (size_t)(s->row + at) * hidden, buf, (size_t)n * hidden * 4,
                          GPU_H2D);
            if (!rc) rc = gpu_stream_sync(r->compute_stream);
            if (!rc) rc = upload_turns(r, s, at, n, (int32_t *)buf);
        }
    return rc;
}

/* Returns the stripe that has new token number `at`, and its rank. */
static const struct stripe *find_stripe(struct slp_run *p, int at, struct slp_rank **rank) {
    for (int i = 0; i < p->n_ranks; i++)
        for (int k = 0; k < p->rank[i].n_stripes; k++) {
            const struct stripe *s = &p->rank[i].stripe[k];
            *rank = &p->rank[i];
            if (at >= s->first && at < s->first + s->n) return s;
        }
    return NULL;
}

/* Passes the wanted rows to the caller in order of position. */
static int report_rows(struct slp_run *p, float *buf, int rows, struct error *e) {
    const struct slp_job *j = p->job;
    size_t hidden = (size_t)p->c->hidden;
    for (int at = j->first_row, n; at < j->n && j->on_rows; at += n) {
        struct slp_rank *r;
        const struct stripe *s = find_stripe(p, at, &r);
        n = s->first + s->n - at < rows ? s->first + s->n - at : rows;
        int rc = gpu_copy(r->compute_stream, buf, r->rows.x + (size_t)(s->row + at - s->first) * hidden,
                          (size_t)n * hidden * 4, GPU_D2H);
        if (!rc) rc = gpu_stream_sync(r->compute_stream);
        if (rc) return slp_check(r, rc);
        if ((rc = j->on_rows(j->ctx, buf, at, n))) return error_set(e, rc, "stopped");
    }
    return 0;
}

static void start_threads(struct slp_run *p, void *(*thread)(void *)) {
    for (int i = 0; i < p->n_ranks && !atomic_load(&p->stop); i++) {
        struct slp_rank *r = &p->rank[i];
        struct error e = {0};
        if (!pthread_create(&r->thread[r->n_threads], NULL, thread, r)) r->n_threads++;
        else slp_fail(p, error_set(&e, ERR_RUNTIME, "cannot start a thread for device %d", i + p->job->device), &e);
    }
}

/* Reports progress until all ranks have finished their layers or the run has failed. Polls for a cancel. */
static void watch_progress(struct slp_run *p) {
    const double poll_s = 5e-3;
    const struct slp_job *j = p->job;
    int reported = 0; /* layers */
    pthread_mutex_lock(&p->lock);
    while (!atomic_load(&p->stop) && reported < p->c->n_layers) {
        if (p->layers_done > reported) {
            reported = p->layers_done;
            pthread_mutex_unlock(&p->lock);
            if (j->progress) j->progress(j->progress_ctx, reported, p->c->n_layers);
            pthread_mutex_lock(&p->lock);
            continue;
        }
        cond_wait_s(&p->cond, &p->lock, poll_s);
        if (j->cancel && atomic_load(j->cancel)) {
            struct error e = {0};
            pthread_mutex_unlock(&p->lock);
            slp_fail(p, error_set(&e, ERR_CANCELLED, "stopped"), &e);
            pthread_mutex_lock(&p->lock);
        }
    }
    pthread_mutex_unlock(&p->lock);
}

/* Runs the threads of all ranks to their end. The loaders start first, so that weights are uploaded while the
 * embeddings are computed. */
static void run_threads(struct slp_run *p, float *buf, int rows) {
    const struct slp_job *j = p->job;
    start_threads(p, slp_loader_thread);
    for (int i = 0; i < p->n_ranks && !atomic_load(&p->stop); i++) {
        struct error e = {0};
        int rc = upload_inputs(&p->rank[i], buf, rows, &e);
        if (rc && !e.code && !gpu_error(p->rank[i].g, &e))
            error_set(&e, rc, "device %d: cannot upload the prompt", i + j->device);
        if (rc) slp_fail(p, e.code, &e);
    }
    start_threads(p, slp_compute_thread);
    start_threads(p, slp_unloader_thread);
    watch_progress(p);
    for (int i = 0; i < p->n_ranks; i++)
        for (int t = 0; t < p->rank[i].n_threads; t++) pthread_join(p->rank[i].thread[t], NULL);
}

static void fill_stats(struct slp_run *p, struct slp_stats *s, double wall) {
    *s = (struct slp_stats){
        .plan = p->rank[0].plan, .seconds = wall, .h2d = p->h2d, .d2h = p->d2h, .exchanged = p->exchanged};
    /* the time of one of several links that share the host's memory says nothing about it alone */
    if (p->n_ranks == 1) stage_take_speed(p->rank[0].stage, &s->upload_bytes, &s->upload_s);
    double end = 0;
    for (int i = 0; i < p->n_ranks; i++) {
        struct slp_rank *r = &p->rank[i];
        struct gpu_stream *streams[] = {r->load_stream, r->compute_stream, r->unload_stream};
        for (int k = 0; k < 3; k++) {
            if (gpu_event_record(r->last_event[k], streams[k]) || gpu_event_sync(r->last_event[k])) continue;
            double t = gpu_event_time(r->last_event[k]);
            end = t > end ? t : end;
        }
    }
    if (p->job->set->spec.is_virtual) s->seconds = end - (p->job->after ? gpu_event_time(p->job->after) : 0);
    if (!p->trace) return;
    s->load_s = trace_busy(p->trace, 0, LANE_LOAD);
    s->compute_s = trace_busy(p->trace, 0, LANE_COMPUTE);
    s->overlap_s = trace_overlap(p->trace, 0, LANE_LOAD, 0, LANE_COMPUTE);
    s->span_s = trace_span(p->trace, 0);
}

int slp_prefill(const struct slp_job *j, struct slp_stats *stats, struct error *e) {
    enum { ROWS = 1024 }; /* rows of the host buffer, embedded per call: the engine thread may be busy each time */
    int rows = j->n < ROWS ? j->n : ROWS;
    struct slp_run *p = mem_calloc(1, sizeof *p);
    float *buf = NULL;
    double begin = clock_now();
    if (!p) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    p->job = j;
    p->c = &j->w->config;
    p->n_ranks = j->ranks;
    pthread_mutex_init(&p->lock, NULL);
    cond_init(&p->cond);
    int rc = 0;
    if (!(buf = mem_alloc((size_t)rows * ((size_t)p->c->hidden + INPUTS) * 4 + (size_t)config_ngram_floats(p->c) * 4)))
        rc = error_set(e, ERR_MEMORY, "no memory for a prefill");
    if (!rc && (j->trace_path || j->merge_into) && !(p->trace = trace_open()))
        rc = error_set(e, ERR_MEMORY, "no memory for a trace");
    for (int i = 0; i < p->n_ranks; i++) assign_rank(p, i);
    for (int i = 0; i < p->n_ranks && !rc; i++) rc = rank_open(&p->rank[i], e);
    if (!rc) {
        run_threads(p, buf, rows);
        for (int i = 0; i < p->n_ranks && !p->error.code; i++)
            slp_check(&p->rank[i], gpu_error_since(p->rank[i].g, p->rank[i].n_cleared, NULL));
        if (!p->error.code) rc = report_rows(p, buf, rows, e);
        if (p->error.code) *e = p->error, rc = e->code;
    }
    atomic_store(&p->stop, rc != 0);
    for (int i = 0; i < p->n_ranks; i++) {
        /* errors of work that was not synchronized yet */
        int last = rank_drain(&p->rank[i]);
        /* weights that decode holds and this run has read may be damaged */
        if (!last) last = gpu_error_since(p->rank[i].g, p->rank[i].n_cleared, NULL);
        if (rc || !last) continue;
        rc = slp_check(&p->rank[i], last);
        *e = p->error;
    }
    if (!rc && stats) fill_stats(p, stats, clock_now() - begin);
    else if (stats) *stats = (struct slp_stats){.h2d = p->h2d, .d2h = p->d2h, .exchanged = p->exchanged};
    for (int i = 0; i < p->n_ranks; i++) rank_close(&p->rank[i]);
    struct error trace_error = {0};
    if (!rc && j->trace_path && trace_write(p->trace, j->trace_path, &trace_error))
        log_say(LOG_WARN, "%s", trace_error.text);
    if (p->trace && j->merge_into) trace_merge(j->merge_into, p->trace, j->device);
    trace_close(&p->trace);
    for (int i = 0; rc && i < j->ranks; i++)
        if (gpu_clear(j->set->gpu[j->device + i], &(struct error){0})) j->set->is_lost = true;
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->cond);
    mem_free(buf);
    mem_free(p);
    return rc;
}
