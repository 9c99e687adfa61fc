#include "engine/pipe/pipe.h"

#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/base/mem.h"
#include "engine/model/rope.h"
#include "engine/pipe/exchange.h"
#include "engine/pipe/kvring.h"
#include "engine/pipe/stage.h"

/* --- Failure: the first one counts and wakes everything that waits ------------------------------------------------------- */

int pipe_fail(struct pipe *p, int code, const struct error *e) {
    pthread_mutex_lock(&p->lock);
    if (!p->error.code) {
        if (e) p->error = *e;
        p->error.code = code;
    }
    atomic_store(&p->stop, 1);
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_ranks; i++) {
        struct rank *r = &p->rank[i];
        ring_break(&r->dense);
        ring_break(&r->experts);
        exchange_break(r);
        kvring_break(r);
    }
    return code;
}

int pipe_check(struct rank *r, int rc) {
    struct error e = {0};
    if (!rc) return 0;
    if (atomic_load(&r->p->stop)) return rc; /* another failure was first */
    if (!gpu_error(r->g, &e)) error_set(&e, rc, rc == ERR_CANCELLED ? "stopped" : "device %d: an operation failed", r->id + r->p->job->device);
    return pipe_fail(r->p, e.code, &e);
}

void pipe_layer_done(struct rank *r, int layer) {
    struct pipe *p = r->p;
    pthread_mutex_lock(&p->lock);
    p->rank_layers[r->id] = layer + 1;
    int least = layer + 1;
    for (int i = 0; i < p->n_ranks; i++) least = p->rank_layers[i] < least ? p->rank_layers[i] : least;
    p->layers_done = least;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}

/* --- A rank: its part of the prompt, memory, streams ---------------------------------------------------------------------- */

/* Assigns device, tokens and experts. Zig-zag: of 2 S stripes a rank has the i-th and the i-th from the end, which balances causal
 * attention. */
static void share_out(struct pipe *p, int id) {
    struct rank *r = &p->rank[id];
    int s = p->n_ranks, n = p->job->n;
    r->p = p;
    r->id = id;
    r->g = p->job->set->gpu[p->job->device + id];
    if (s == 1) {
        r->stripe[r->n_stripes++] = (struct stripe){.first = 0, .n = r->n = n, .row = 0};
    } else {
        int which[2] = {r->id, 2 * s - 1 - r->id};
        for (int i = 0; i < 2; i++) {
            int begin = (int)((int64_t)n * which[i] / (2 * s)), end = (int)((int64_t)n * (which[i] + 1) / (2 * s));
            if (begin == end) continue;
            r->stripe[r->n_stripes++] = (struct stripe){.first = begin, .n = end - begin, .row = r->n};
            r->n += end - begin;
        }
    }
    r->first = (int)((int64_t)r->p->c->n_experts * r->id / s);
    r->last = (int)((int64_t)r->p->c->n_experts * (r->id + 1) / s);
}

/* Returns the largest size of a module kind in a slot; cached in the set. */
static size_t max_module(struct gpu_set *set, const struct weights *w, int which) {
    static const enum module modules[] = {MODULE_ATTENTION, MODULE_FFN, MODULE_EXPERT};
    struct pipe_range ranges[MODULE_RANGES];
    struct pipe_run runs[MODULE_RANGES];
    struct layer view; /* or an expert, which is smaller */
    size_t most = set->most[which], bytes;
    for (int l = 0; l < w->config.n_layers && !set->most[which]; l++) {
        const struct layer *y = &w->layers[l];
        int n = which < 2 ? 1 : y->experts ? w->config.n_experts : 0;
        for (int i = 0; i < n; i++) {
            const void *src = which < 2 ? (const void *)y : &y->experts[i];
            pipe_runs(ranges, module_ranges(&w->config, l, modules[which], src, &view, ranges), runs, &bytes);
            most = bytes > most ? bytes : most;
        }
    }
    return set->most[which] = (most + 255) & ~(size_t)255;
}

/* Returns the bytes of a position, or of a state, in the layer with most of them. */
static size_t row_bytes(const struct pipe *p, bool state) {
    struct cache_desc d[CACHE_PLANES];
    size_t most = 0;
    for (int l = 0; l < p->c->n_layers; l++) {
        size_t one = 0;
        for (int i = kv_planes(p->c, l, d); i-- > 0;) {
            struct kv_rows x = kv_rows_of(&p->job->cache[l].p[i], 0, 1);
            size_t every = d[i].every ? (size_t)d[i].every : 1;
            if (!d[i].rows == !state) one += (x.bytes + x.scales * 4 + every - 1) / every;
        }
        most = one > most ? one : most;
    }
    return most;
}

static struct pipe_need need_of(const struct rank *r) {
    const struct pipe *p = r->p;
    struct gpu_set *set = p->job->set;
    const struct gpu_spec *spec = &set->spec;
    size_t attention = max_module(set, p->job->w, 0), ffn = max_module(set, p->job->w, 1);
    struct pipe_need need = {.n = r->n,
                             .total = p->job->pos + p->job->n,
                             .all = p->job->n,
                             .experts = r->last - r->first,
                             .expert_bytes = max_module(set, p->job->w, 2),
                             .dense_bytes = attention > ffn ? attention : ffn,
                             .chunk = spec->chunk,
                             .ring = spec->ring,
                             .state_bytes = RANK_STATES * row_bytes(p, true),
                             .kv_row_bytes = row_bytes(p, false)};
    if (!spec->emu || spec->is_virtual) need.reserve = (size_t)768 << 20; /* dequantized matrices, FFN intermediates, cuBLAS */
    return need;
}

size_t pipe_least(const struct pipe_job *j) {
    struct pipe *p = mem_calloc(1, sizeof *p);
    size_t most = p ? 0 : SIZE_MAX;
    for (int i = 0; i < j->ranks && p; i++) {
        struct pipe_plan plan;
        p->job = j, p->c = &j->w->config, p->n_ranks = j->ranks;
        share_out(p, i);
        struct pipe_need need = need_of(&p->rank[i]);
        pipe_plan(&plan, p->c, &need, 0, &(struct error){0});
        if (plan.bytes > most) most = plan.bytes;
    }
    mem_free(p);
    return most;
}

static int make_plan(struct rank *r, struct error *e) {
    struct pipe *p = r->p;
    struct pipe_need need = need_of(r);
    int rc = pipe_plan(&r->plan, p->c, &need, gpu_mem_free(r->g), e);
    if (rc) return rc;
    if ((rc = ring_open(&r->dense, r->g, r->plan.dense, need.dense_bytes, e))) return rc;
    return need.expert_bytes ? ring_open(&r->experts, r->g, r->plan.ring, need.expert_bytes, e) : 0;
}

static void *work_alloc(void *ctx, size_t size) {
    struct rank *r = ctx;
    void *p;
    return gpu_alloc(r->g, &p, size, NULL) ? NULL : p;
}
/* queued operations may still read it */
static void work_release(void *ctx, void *p) {
    struct rank *r = ctx;
    gpu_stream_sync(r->main);
    gpu_free(r->g, p);
}

static int open_rows(struct rank *r, struct error *e) {
    struct pipe *p = r->p;
    const struct config *c = p->c;
    size_t n = (size_t)r->n, all = (size_t)p->job->n, hidden = (size_t)c->hidden * 4, half = (size_t)(c->rope.dim / 2) * 4, topk = (size_t)c->topk * 4,
           streams = (size_t)c->streams.n, far = c->far_rope.dim ? half : 0;
    struct {
        void **p;
        size_t bytes;
    } want[] = {{(void **)&r->x, n * hidden},
                {(void **)&r->xn, all * hidden},
                {(void **)&r->cos, n * half},
                {(void **)&r->sin, n * half},
                {(void **)&r->far_cos, n * far},
                {(void **)&r->far_sin, n * far},
                {(void **)&r->streams, n * streams * hidden},
                {(void **)&r->post, n * streams * 4},
                {(void **)&r->pos, n * 4},
                {(void **)&r->tokens, n * 4},
                {(void **)&r->chosen_keys, pipe_chosen_bytes(c) * n},
                {(void **)&r->shared_weight, c->shared_gate ? n * 4 : 0},
                {(void **)&r->ids, c->n_experts ? all * topk : 0},
                {(void **)&r->weights, c->n_experts ? all * topk : 0},
                {(void **)&r->token, c->n_experts ? all * topk : 0},
                {(void **)&r->weight, c->n_experts ? all * topk : 0},
                {(void **)&r->offset, c->n_experts ? (size_t)(r->last - r->first + 1) * 4 : 0},
                {(void **)&r->sum, p->n_ranks > 1 && c->n_experts ? all * hidden : 0}};
    int rc = 0;
    for (size_t i = 0; i < sizeof want / sizeof *want && !rc; i++)
        if (want[i].bytes) rc = gpu_alloc(r->g, want[i].p, want[i].bytes, e);
    return rc;
}

int rank_open(struct rank *r, struct error *e) {
    struct pipe *p = r->p;
    const struct gpu_spec *spec = &p->job->set->spec;
    int rc = gpu_stream_open(r->g, &r->load, "load", false, &p->stop, e);
    if (!rc) rc = gpu_stream_open(r->g, &r->main, "compute", true, &p->stop, e);
    if (!rc) rc = gpu_stream_open(r->g, &r->out, "unload", true, &p->stop, e);
    if (!rc) rc = exchange_open(r, e);
    if (!rc) rc = make_plan(r, e); /* while everything it plans is still free */
    if (!rc) rc = open_rows(r, e);
    if (!rc) rc = work_open(&r->work, p->c, r->plan.chunk, work_alloc, work_release, r, e);
    if (!rc) rc = kvring_open(r, e);
    if (!rc) rc = gpu_host_alloc(r->g, (void **)&r->host_offset, ((size_t)(r->last - r->first) + 2) * 4, e);
    for (int i = 0; i < 3 && !rc; i++) rc = gpu_event_open_timed(r->g, &r->timed[i], e);
    if (!rc) rc = pace_open(&r->pace_load, r->g, e);
    if (!rc) rc = pace_open(&r->pace_main, r->g, e);
    int threads = stage_threads(p->job->set, p->job->w); /* prefixes are in unpinned memory even when weights are pinned */
    struct stage_options load = {.set = p->job->set, .g = r->g, .stream = r->load, .stop = &p->stop, .threads = spec->is_virtual || threads ? threads : 1};
    if (!rc) rc = stage_open(&r->stage, &load, e);
    bool all_to_all = p->n_ranks > 1 && spec->all_to_all;
    if (!rc && pipe_few(p->c, p->job->n) && !all_to_all && !(r->chosen = mem_calloc((size_t)p->c->n_layers * (size_t)p->c->n_experts, 1)))
        rc = error_set(e, ERR_MEMORY, "no memory for a rank");
    r->cache = mem_calloc((size_t)p->c->n_layers, sizeof *r->cache);
    if (p->job->check && !(r->check_ids = mem_alloc(((size_t)(r->last - r->first) + 1) * sizeof *r->check_ids)) && !rc)
        rc = error_set(e, ERR_MEMORY, "no memory for a rank");
    if (!rc && !r->cache) rc = error_set(e, ERR_MEMORY, "no memory for a rank");
    return rc;
}

/* Other ranks' streams wait for this one's events and read its memory: all must be idle before anything is freed. */
int rank_drain(struct rank *r) {
    struct gpu_stream *all[] = {r->load, r->main, r->out, r->exchange ? r->exchange->send : NULL, r->exchange ? r->exchange->recv : NULL};
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        int one = all[i] ? gpu_stream_sync(all[i]) : 0;
        if (!rc) rc = one;
    }
    return rc;
}
void rank_close(struct rank *r) {
    kvring_close(r);
    exchange_close(r);
    stage_close(&r->stage);
    gpu_stream_close(&r->load);
    gpu_stream_close(&r->out);
    if (r->work.release) work_close(&r->work);
    gpu_stream_close(&r->main);
    ring_close(&r->dense, r->g);
    ring_close(&r->experts, r->g);
    void *all[] = {r->x,      r->xn,          r->cos,           r->sin, r->far_cos, r->far_sin, r->streams, r->post,   r->close_mem, r->pos,
                   r->tokens, r->chosen_keys, r->shared_weight, r->ids, r->weights, r->token,   r->weight,  r->offset, r->sum};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_free(r->g, all[i]);
    for (int i = 0; i < 3; i++) gpu_event_close(&r->timed[i]);
    pace_close(&r->pace_load);
    pace_close(&r->pace_main);
    gpu_host_free(r->g, r->host_offset);
    mem_free(r->close);
    mem_free(r->chosen);
    mem_free(r->check_ids);
    mem_free(r->cache);
}

/* --- The run --------------------------------------------------------------------------------------------------------------- */

/* Uploads the weights that merge several residual streams after the last layer. */
static int send_close(struct rank *r, struct error *e) {
    const struct weights *w = r->p->job->w;
    struct pipe_range ranges[MODULE_RANGES];
    struct pipe_run runs[MODULE_RANGES];
    size_t bytes;
    if (!(r->close = mem_alloc(sizeof *r->close))) return error_set(e, ERR_MEMORY, "no memory for a rank");
    *r->close = *w;
    int n = module_ranges(&w->config, 0, MODULE_CLOSE, w, r->close, ranges), k = pipe_runs(ranges, n, runs, &bytes);
    int rc = n ? gpu_alloc(r->g, (void **)&r->close_mem, bytes, e) : 0;
    for (int i = 0; i < k && !rc; i++) rc = gpu_copy(r->main, r->close_mem + runs[i].at, runs[i].host, runs[i].bytes, GPU_H2D);
    for (int i = 0; i < n && !rc; i++) *ranges[i].field = r->close_mem + ranges[i].at;
    return rc;
}

/* Uploads embeddings, tokens, positions and frequencies, in pieces through a host buffer. */
static int send_inputs(struct rank *r, float *buf, int rows, struct error *e) {
    struct pipe *p = r->p;
    const struct pipe_job *j = p->job;
    size_t hidden = (size_t)p->c->hidden;
    int rc = gpu_fill(r->main, (void *)r->work.bad, 0xff, 4);
    if (!rc) rc = send_close(r, e);
    if (!rc) rc = gpu_copy(r->main, r->work.inv_freq, j->w->inv_freq, (size_t)rope_floats(p->c) * 4, GPU_H2D);
    for (int i = 0; i < r->n_stripes && !rc; i++)
        for (int at = 0; at < r->stripe[i].n && !rc; at += rows) {
            const struct stripe *s = &r->stripe[i];
            int n = s->n - at < rows ? s->n - at : rows;
            if (j->set->spec.is_virtual) {
                rc = gpu_copy(r->main, r->x + (size_t)(s->row + at) * hidden, buf, (size_t)n * hidden * 4, GPU_H2D);
                continue;
            }
            if ((rc = j->embed(j->ctx, buf, s->first + at, n))) return error_set(e, rc, "the embedding of the prompt failed");
            rc = gpu_copy(r->main, r->x + (size_t)(s->row + at) * hidden, buf, (size_t)n * hidden * 4, GPU_H2D);
            if (!rc) rc = gpu_stream_sync(r->main);
            if (!rc && j->tokens) rc = gpu_copy(r->main, r->tokens + s->row + at, j->tokens + s->first + at, (size_t)n * 4, GPU_H2D);
            int32_t *pos = (int32_t *)buf;
            for (int k = 0; k < n; k++) pos[k] = j->pos + s->first + at + k;
            if (!rc) rc = gpu_copy(r->main, r->pos + s->row + at, pos, (size_t)n * 4, GPU_H2D);
            if (!rc) rc = gpu_stream_sync(r->main);
        }
    return rc;
}

/* Passes the wanted rows to the caller in order of position. */
static int take_results(struct pipe *p, float *buf, int rows, struct error *e) {
    const struct pipe_job *j = p->job;
    size_t hidden = (size_t)p->c->hidden;
    for (int at = j->first; at < j->n && j->result;) {
        struct rank *r = NULL;
        const struct stripe *s = NULL;
        for (int i = 0; i < p->n_ranks && !s; i++)
            for (int k = 0; k < p->rank[i].n_stripes && !s; k++) {
                r = &p->rank[i];
                if (at >= r->stripe[k].first && at < r->stripe[k].first + r->stripe[k].n) s = &r->stripe[k];
            }
        int n = s->first + s->n - at < rows ? s->first + s->n - at : rows;
        int rc = gpu_copy(r->main, buf, r->x + (size_t)(s->row + at - s->first) * hidden, (size_t)n * hidden * 4, GPU_D2H);
        if (!rc) rc = gpu_stream_sync(r->main);
        if (rc) return pipe_check(r, rc);
        if ((rc = j->result(j->ctx, buf, at, n))) return error_set(e, rc, "stopped");
        at += n;
    }
    return 0;
}

static void start(struct pipe *p, void *(*thread)(void *)) {
    for (int i = 0; i < p->n_ranks && !atomic_load(&p->stop); i++) {
        struct rank *r = &p->rank[i];
        struct error e = {0};
        if (!pthread_create(&r->thread[r->n_threads], NULL, thread, r)) r->n_threads++;
        else pipe_fail(p, error_set(&e, ERR_RUNTIME, "cannot start a thread for device %d", i + p->job->device), &e);
    }
}

/* Starts the threads of all ranks; weights are uploaded while the embeddings are computed. Then reports progress and polls for a cancel
 * every 5 ms. */
static void run_threads(struct pipe *p, float *buf, int rows) {
    const struct pipe_job *j = p->job;
    start(p, loader_thread);
    for (int i = 0; i < p->n_ranks && !atomic_load(&p->stop); i++) {
        struct error e = {0};
        int rc = send_inputs(&p->rank[i], buf, rows, &e);
        if (rc && !e.code && !gpu_error(p->rank[i].g, &e)) error_set(&e, rc, "device %d: cannot upload the prompt", i + j->device);
        if (rc) pipe_fail(p, e.code, &e);
    }
    start(p, compute_thread);
    start(p, unloader_thread);
    int told = 0;
    pthread_mutex_lock(&p->lock);
    while (!atomic_load(&p->stop) && told < p->c->n_layers) {
        if (p->layers_done > told) {
            told = p->layers_done;
            pthread_mutex_unlock(&p->lock);
            if (j->progress) j->progress(j->progress_ctx, "layer", told, p->c->n_layers);
            pthread_mutex_lock(&p->lock);
            continue;
        }
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        if ((until.tv_nsec += 5000000) >= 1000000000) until.tv_sec++, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&p->cond, &p->lock, &until);
        if (j->cancel && atomic_load(j->cancel)) {
            struct error e = {0};
            pthread_mutex_unlock(&p->lock);
            pipe_fail(p, error_set(&e, ERR_CANCELLED, "stopped"), &e);
            pthread_mutex_lock(&p->lock);
        }
    }
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_ranks; i++)
        for (int t = 0; t < p->rank[i].n_threads; t++) pthread_join(p->rank[i].thread[t], NULL);
}

static void take_stats(struct pipe *p, struct pipe_stats *s, double wall) {
    *s = (struct pipe_stats){.plan = p->rank[0].plan, .seconds = wall, .h2d = p->h2d, .d2h = p->d2h, .exchanged = p->exchanged};
    double end = 0;
    for (int i = 0; i < p->n_ranks; i++) {
        struct rank *r = &p->rank[i];
        struct gpu_stream *streams[] = {r->load, r->main, r->out};
        for (int k = 0; k < 3; k++) {
            if (gpu_event_record(r->timed[k], streams[k]) || gpu_event_sync(r->timed[k])) continue;
            double t = gpu_event_time(r->timed[k]);
            end = t > end ? t : end;
        }
    }
    if (p->job->set->spec.is_virtual) s->seconds = end;
    if (!p->trace) return;
    s->load = trace_busy(p->trace, 0, LANE_LOAD);
    s->compute = trace_busy(p->trace, 0, LANE_COMPUTE);
    s->exchange = trace_busy(p->trace, 0, LANE_EXCHANGE);
    s->both = trace_both(p->trace, 0, LANE_LOAD, 0, LANE_COMPUTE);
    s->span = trace_span(p->trace, 0);
}

int pipe_prefill(const struct pipe_job *j, struct pipe_stats *stats, struct error *e) {
    enum { ROWS = 1024 }; /* embedded per call: the engine thread may be busy each time */
    int rows = j->n < ROWS ? j->n : ROWS;
    struct pipe *p = mem_calloc(1, sizeof *p);
    float *buf = NULL;
    double begin = clock_now();
    if (!p) return error_set(e, ERR_MEMORY, "no memory for a prefill");
    p->job = j;
    p->c = &j->w->config;
    p->n_ranks = j->ranks;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->cond, NULL);
    int rc = 0;
    if (!(buf = mem_alloc((size_t)rows * ((size_t)p->c->hidden * 4 + 4)))) rc = error_set(e, ERR_MEMORY, "no memory for a prefill");
    if (!rc && (j->trace || j->into) && !(p->trace = trace_open())) rc = error_set(e, ERR_MEMORY, "no memory for a trace");
    for (int i = 0; i < p->n_ranks; i++) share_out(p, i);
    for (int i = 0; i < p->n_ranks && !rc; i++) rc = rank_open(&p->rank[i], e);
    if (!rc) {
        run_threads(p, buf, rows);
        if (p->error.code) {
            *e = p->error;
            rc = e->code;
        } else rc = take_results(p, buf, rows, e);
        if (rc && p->error.code) *e = p->error;
    }
    atomic_store(&p->stop, rc != 0);
    for (int i = 0; i < p->n_ranks; i++) {
        int last = rank_drain(&p->rank[i]); /* errors of work that was not synchronized yet */
        if (rc || !last) continue;
        rc = pipe_check(&p->rank[i], last);
        *e = p->error;
    }
    if (!rc && stats) take_stats(p, stats, clock_now() - begin);
    else if (stats) *stats = (struct pipe_stats){.h2d = p->h2d, .d2h = p->d2h, .exchanged = p->exchanged};
    for (int i = 0; i < p->n_ranks; i++) rank_close(&p->rank[i]);
    struct error lost_trace = {0};
    if (!rc && j->trace && trace_write(p->trace, j->trace, &lost_trace)) log_say(LOG_WARN, "%s", lost_trace.text);
    if (p->trace && j->into) trace_join(j->into, p->trace, j->device);
    trace_close(&p->trace);
    for (int i = 0; rc && i < j->ranks; i++) {
        struct error lost = {0};
        if (gpu_clear(j->set->gpu[j->device + i], &lost)) j->set->lost = true;
    }
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->cond);
    mem_free(buf);
    mem_free(p);
    return rc;
}
