#include "engine/transfer/stage.h"

#include <pthread.h>
#include <string.h>

#include "base/mem.h"
#include "base/test_limits.h"
#include "engine/transfer/link_meter.h"
#include "engine/transfer/trace.h"

static const size_t BUFFER_BYTES = (size_t)4 << 20, MIN_COPY_BYTES = 4096;
enum { THREADS = 8, BUFFERS = 2 };

struct stage_chunk { /* part of a unit; fits a buffer if staged */
    char *to;
    const char *from;
    size_t bytes;
    size_t at, row, pitch; /* strided rows (copy_run): the chunk starts `at` bytes after `from`, not counting gaps */
    bool first, last, staged;
    uint32_t after, loaded;
    int layer, item;
};
struct filler { /* a staging thread */
    struct stage *s;
    pthread_t thread;
    char *buffer[BUFFERS]; /* pinned */
    struct gpu_event *sent[BUFFERS];
    int next;
};
struct stage {
    struct stage_options o;
    struct link_meter meter;
    struct filler filler[THREADS];
    int n_fillers;
    pthread_mutex_t lock; /* protects everything below */
    pthread_cond_t work_added, chunk_sent;
    struct stage_chunk *chunks; /* [n]; the first `taken` belong to fillers, the first `sent` are enqueued, in order */
    size_t cap, n, taken, sent;
    struct gpu_event *begin; /* trace event of the current unit */
    size_t max_copy_bytes;   /* bytes of the largest copy */
    int rc;                  /* first error */
    bool quit;
};

static bool needs_threads(const struct gpu_set *set, const struct weights *w) {
    bool pinned = true;
    for (int i = 0; i < weights_ranges(w); i++) {
        const struct weights_range r = weights_range(w, i);
        if (!gpu_set_pinned(set, r.at, r.bytes)) pinned = false;
    }
    return !set->spec.is_virtual && !pinned;
}
int stage_threads(const struct gpu_set *set, const struct weights *w) {
    return needs_threads(set, w) ? pin_stage_threads() : 0;
}
int stage_idle_threads(const struct gpu_set *set, const struct weights *w) {
    return needs_threads(set, w) ? pin_idle_stage_threads() : 0;
}

/* Returns the host address of byte `at` of a chunk, and in *bytes how many bytes, at most max_bytes, are contiguous
 * there. */
static const char *contiguous_at(const struct stage_chunk *c, size_t at, size_t max_bytes, size_t *bytes) {
    size_t in_row = c->row ? (c->at + at) % c->row : 0;
    *bytes = c->row && c->row - in_row < max_bytes ? c->row - in_row : max_bytes;
    return c->row ? c->from + (c->at + at) / c->row * c->pitch + in_row : c->from + at;
}
static void gather_rows(char *to, const struct stage_chunk *c) {
    for (size_t at = 0, n; at < c->bytes; at += n) {
        const char *from = contiguous_at(c, at, c->bytes - at, &n);
        memcpy(to + at, from, n);
    }
}
/* Enqueues a copy of each row, without a buffer. */
static int copy_strided(struct stage *s, const struct stage_chunk *c) {
    if (gpu_info(s->o.g)->is_virtual) return gpu_copy(s->o.stream, c->to, c->from, c->bytes, GPU_H2D);
    int rc = 0;
    for (size_t at = 0, n; at < c->bytes && !rc; at += n) {
        const char *from = contiguous_at(c, at, c->bytes - at, &n);
        rc = gpu_copy(s->o.stream, c->to + at, from, n, GPU_H2D);
    }
    return rc;
}

/* Enqueues a chunk; called in chunk order. */
static int enqueue_chunk(struct stage *s, const struct stage_chunk *c, const char *from) {
    int rc = 0;
    if (c->first && c->after) rc = gpu_timeline_wait(s->o.freed, c->after, s->o.stream);
    if (c->first && s->o.trace && !gpu_event_open_timed(s->o.g, &s->begin, NULL))
        gpu_event_record(s->begin, s->o.stream);
    if (c->first) link_meter_begin(&s->meter, s->o.stream);
    link_meter_count(&s->meter, c->bytes);
    if (!rc)
        rc = c->row && from == c->from ? copy_strided(s, c) : gpu_copy(s->o.stream, c->to, from, c->bytes, GPU_H2D);
    if (c->last && s->begin)
        trace_add_span(s->o.trace, s->begin, s->o.stream, s->o.rank, LANE_LOAD, "load expert", c->layer, c->item);
    if (c->last) s->begin = NULL;
    if (c->last) link_meter_end(&s->meter, s->o.stream);
    if (c->last && s->o.loaded) { /* also if the copy failed: a waiting stream must be released */
        int signal_rc = gpu_timeline_signal(s->o.loaded, c->loaded, s->o.stream);
        if (!rc) rc = signal_rc;
    }
    return rc;
}

static void *filler_thread(void *arg) {
    struct filler *f = arg;
    struct stage *s = f->s;
    pthread_mutex_lock(&s->lock);
    for (;;) {
        while (s->taken == s->n && !s->quit) pthread_cond_wait(&s->work_added, &s->lock);
        if (s->taken == s->n) break;
        size_t index = s->taken++;
        struct stage_chunk c = s->chunks[index];
        pthread_mutex_unlock(&s->lock);
        int i = f->next;
        int wait_rc = c.staged ? gpu_event_sync(f->sent[i]) : 0;
        if (c.staged && !wait_rc && !atomic_load(s->o.stop)) gather_rows(f->buffer[i], &c);
        pthread_mutex_lock(&s->lock);
        while (s->sent != index) pthread_cond_wait(&s->chunk_sent, &s->lock);
        pthread_mutex_unlock(&s->lock);
        int sent_rc = enqueue_chunk(s, &c, c.staged ? f->buffer[i] : c.from);
        if (c.staged && !sent_rc) {
            sent_rc = gpu_event_record(f->sent[i], s->o.stream);
            f->next = (i + 1) % BUFFERS;
        }
        pthread_mutex_lock(&s->lock);
        s->sent++;
        if (!s->rc) s->rc = wait_rc ? wait_rc : sent_rc;
        if (s->sent == s->n) s->n = s->taken = s->sent = 0;
        pthread_cond_broadcast(&s->chunk_sent);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

bool stage_is_small(size_t bytes) { return bytes <= test_limits_get(TEST_LIMIT_STAGE_BYTES, STAGE_SMALL); }
static bool needs_buffer(const struct stage *s, const struct copy_run *r) {
    return s->n_fillers && (r->row || (!stage_is_small(r->bytes) && !gpu_set_pinned(s->o.set, r->host, r->bytes)));
}
/* An urgent copy (a sum between two layers of a decode batch) waits for the one in flight: so each is limited to half
 * a millisecond, if the link's speed is known, and to a buffer. */
static size_t copy_limit_bytes(struct gpu *g) {
    const struct gpu_info *info = gpu_info(g);
    double bytes = info->h2d * 5e-4;
    if (info->is_virtual) return SIZE_MAX; /* virtual: urgent copies do not wait */
    return !(bytes > 0) || bytes > (double)BUFFER_BYTES ? BUFFER_BYTES
           : bytes < (double)MIN_COPY_BYTES             ? MIN_COPY_BYTES
                                                        : (size_t)bytes;
}

/* Adds a run in chunks; enqueues them directly if nothing is queued before. */
static int add_chunks(struct stage *s, struct stage_chunk c, size_t bytes, bool at_once) {
    size_t max_bytes = s->max_copy_bytes;
    bool first = c.first, last = c.last;
    for (size_t at = 0; at < bytes;
         at += c.bytes, c.to += c.bytes, c.from += c.row ? 0 : c.bytes, c.at += c.row ? c.bytes : 0, first = false) {
        c.bytes = bytes - at < max_bytes ? bytes - at : max_bytes;
        c.first = first, c.last = last && at + c.bytes == bytes;
        if (at_once) {
            int rc = enqueue_chunk(s, &c, c.from);
            if (rc) return rc;
            continue;
        }
        if (mem_grow(&s->chunks, &s->cap, s->n + 1, sizeof *s->chunks)) return ERR_MEMORY;
        s->chunks[s->n++] = c;
    }
    return 0;
}

int stage_send(struct stage *s, const struct stage_unit *u) {
    pthread_mutex_lock(&s->lock);
    size_t n = s->n;
    bool at_once = !n;
    int rc = s->rc;
    for (int i = 0; i < u->n; i++) at_once &= !needs_buffer(s, &u->runs[i]);
    for (int i = 0; i < u->n && !rc; i++) {
        const struct copy_run *r = &u->runs[i];
        rc = add_chunks(s,
                        (struct stage_chunk){.to = u->to + r->at,
                                             .from = r->host,
                                             .row = r->row,
                                             .pitch = r->pitch,
                                             .first = !i,
                                             .last = i == u->n - 1,
                                             .staged = needs_buffer(s, r),
                                             .after = u->after,
                                             .loaded = u->loaded,
                                             .layer = u->layer,
                                             .item = u->item},
                        r->bytes, at_once);
    }
    if (rc) s->n = n; /* undo, except what was enqueued directly */
    pthread_cond_broadcast(&s->work_added);
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int stage_send_ranges(struct stage *s, struct copy_range *ranges, int n, char *to, struct stage_unit u) {
    struct copy_run runs[COPY_RANGES_MAX];
    size_t bytes;
    if (!n) return 0;
    u.runs = runs, u.n = copy_runs_merge(ranges, n, runs, &bytes), u.to = to;
    int rc = stage_send(s, &u);
    for (int i = 0; i < n && !rc; i++) *ranges[i].field = to + ranges[i].at;
    return rc;
}

bool stage_take_speed(struct stage *s, double *bytes, double *seconds) {
    return link_meter_take(&s->meter, bytes, seconds);
}

int stage_flush(struct stage *s) {
    pthread_mutex_lock(&s->lock);
    while (s->n) pthread_cond_wait(&s->chunk_sent, &s->lock);
    int rc = s->rc;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

int stage_open(struct stage **out, const struct stage_options *o, struct error *e) {
    struct stage *s = mem_calloc(1, sizeof *s);
    int rc = s ? 0 : error_set(e, ERR_MEMORY, "no memory for staging");
    if (!rc) {
        s->o = *o;
        s->max_copy_bytes = copy_limit_bytes(o->g);
        pthread_mutex_init(&s->lock, NULL);
        pthread_cond_init(&s->work_added, NULL);
        pthread_cond_init(&s->chunk_sent, NULL);
    }
    if (!rc) rc = link_meter_open(&s->meter, o->g, o->is_metered, e);
    for (int i = 0; i < o->threads && !rc; i++) {
        struct filler *f = &s->filler[i];
        f->s = s;
        for (int k = 0; k < BUFFERS && !rc; k++) {
            rc = gpu_host_alloc(o->g, (void **)&f->buffer[k], BUFFER_BYTES, e);
            if (!rc) rc = gpu_event_open(o->g, &f->sent[k], e);
        }
        if (!rc && pthread_create(&f->thread, NULL, filler_thread, f))
            rc = error_set(e, ERR_RUNTIME, "cannot start a staging thread");
        s->n_fillers += !rc;
    }
    if (rc) stage_close(&s);
    *out = s;
    return rc;
}

void stage_close(struct stage **sp) {
    struct stage *s = *sp;
    if (!s) return;
    *sp = NULL;
    pthread_mutex_lock(&s->lock);
    s->quit = true;
    pthread_cond_broadcast(&s->work_added);
    pthread_mutex_unlock(&s->lock);
    for (int i = 0; i < s->n_fillers; i++) pthread_join(s->filler[i].thread, NULL);
    if (s->n_fillers || s->begin || link_meter_is_on(&s->meter))
        gpu_stream_sync(s->o.stream); /* reads the buffers, records events */
    for (int i = 0; i < THREADS; i++)
        for (int k = 0; k < BUFFERS; k++) {
            gpu_event_close(&s->filler[i].sent[k]);
            gpu_host_free(s->o.g, s->filler[i].buffer[k]);
        }
    gpu_event_close(&s->begin);
    link_meter_close(&s->meter);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work_added);
    pthread_cond_destroy(&s->chunk_sent);
    mem_free(s->chunks);
    mem_free(s);
}
