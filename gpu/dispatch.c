#include "gpu/gpu.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "gpu/backend.h"

static const struct gpu_backend *const backends[] = {
#ifdef HEARTH_CUDA
    &gpu_cuda,
#endif
    &gpu_emu,
};

static const struct gpu_backend *find_backend(const char *name) {
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++)
        if (!strcmp(backends[i]->name, name)) return backends[i];
    return NULL;
}

void gpu_describe(char *out, size_t size) {
    size_t len = 0;
#ifndef HEARTH_CUDA
    len = (size_t)snprintf(out, size, "cuda: not in this build (nvcc was not found)");
#endif
    for (size_t i = 0; i < sizeof backends / sizeof backends[0] && len < size; i++) {
        char text[400];
        backends[i]->describe(text, sizeof text);
        int n = snprintf(out + len, size - len, "%s%s: %s", len ? "; " : "", backends[i]->name, text);
        len += n > 0 ? (size_t)n : 0;
    }
}

void gpu_find(struct gpu_found *found) {
    *found = (struct gpu_found){0};
    for (size_t i = 0; i < sizeof backends / sizeof backends[0] && !*found->list; i++) backends[i]->find(found);
}

int gpu_open(struct gpu **g, const struct gpu_spec *spec, int rank, struct error *e) {
    *g = NULL;
    bool host = rank == GPU_HOST && spec->has_cpu_rank && spec->is_emulated && spec->is_virtual;
    if (!host && (rank < 0 || rank >= spec->n))
        return error_set(e, ERR_USAGE, "device %d of %d does not exist", rank, spec->n);
    const struct gpu_backend *b = find_backend(spec->is_emulated ? "emu" : "cuda");
    if (!b)
        return error_set(e, ERR_USAGE,
                         "this build has no CUDA backend (nvcc was not found); use no devices or emulated ones (--gpus "
                         "none or emu:N)");
    int r = b->open(g, spec, rank, e);
    if (r) return r;
    (*g)->b = b;
    (*g)->register_chunk = spec->register_chunk ? spec->register_chunk : GPU_REGISTER_CHUNK;
    (*g)->info.backend = b->name;
    (*g)->joins_ops = !host && !spec->nojoin;
    (*g)->has_epilogues = (*g)->has_epilogues && !spec->noepilogue;
    return 0;
}
void gpu_close(struct gpu **g) {
    if (*g) (*g)->b->close(*g);
    *g = NULL;
}
const struct gpu_info *gpu_info(const struct gpu *g) { return &g->info; }
size_t gpu_mem_free(struct gpu *g) { return g->b->mem_free(g); }
bool gpu_memory_elsewhere(struct gpu *g, struct gpu_elsewhere *out) {
    return g->b->elsewhere && g->b->elsewhere(g, out);
}
void gpu_reserve(struct gpu *g, size_t bytes) { g->info.mem -= bytes < g->info.mem ? bytes : g->info.mem; }
struct gpu_stats gpu_stats(struct gpu *g) {
    struct gpu_stats u = {0};
    if (g->b->stats) g->b->stats(g, &u);
    return u;
}
int gpu_alloc(struct gpu *g, void **p, size_t size, struct error *e) {
    *p = NULL;
    return g->b->alloc(g, p, size ? size : 1, e);
}
void gpu_free(struct gpu *g, void *p) {
    if (p) g->b->free(g, p);
}
int gpu_error(struct gpu *g, struct error *e) { return g->b->error(g, e); }
int gpu_clear(struct gpu *g, struct error *e) {
    if (gpu_error(g, NULL)) atomic_fetch_add(&g->n_cleared, 1); /* first: gpu_error_since() reads it last */
    return g->b->clear(g, e);
}
unsigned gpu_n_cleared(const struct gpu *g) { return atomic_load(&g->n_cleared); }
int gpu_error_since(struct gpu *g, unsigned n_cleared, struct error *e) {
    const int r = gpu_error(g, e);
    if (r || gpu_n_cleared(g) == n_cleared) return r;
    return error_set(e, ERR_RUNTIME, "device %d: it failed while several tasks used it", g->info.rank);
}

int gpu_host_alloc(struct gpu *g, void **p, size_t size, struct error *e) {
    *p = NULL;
    return g->b->host_alloc(g, p, size ? size : 1, e);
}
void gpu_host_free(struct gpu *g, void *p) {
    if (p) g->b->host_free(g, p);
}

size_t gpu_register_chunk(const struct gpu *g) { return g->register_chunk; }
/* Returns how many of the `size` bytes at p are in p's registration chunk. */
static size_t chunk_bytes(const struct gpu *g, const void *p, size_t size) {
    size_t left = g->register_chunk - (uintptr_t)p % g->register_chunk;
    return size < left ? size : left;
}
int gpu_host_register(struct gpu *g, const void *p, size_t size, struct error *e) {
    for (size_t at = 0, n; at < size; at += n) {
        n = chunk_bytes(g, (const char *)p + at, size - at);
        int r = g->b->host_register(g, (const char *)p + at, n, e);
        if (r) {
            if (at) gpu_host_unregister(g, p, at);
            return r;
        }
    }
    return 0;
}
void gpu_host_unregister(struct gpu *g, const void *p, size_t size) {
    for (size_t at = 0; at < size; at += chunk_bytes(g, (const char *)p + at, size - at))
        g->b->host_unregister(g, (const char *)p + at);
}

static int launch_op(void *stream, enum op_code code, const union op_args *a) {
    struct gpu_stream *s = stream;
    return s->launch(&s->exec, code, a);
}
static int run_op(struct op_exec *x, enum op_code code, const union op_args *a) {
    struct gpu_stream *s = (struct gpu_stream *)x;
    return fuse_add(s->window, code, a, launch_op, s);
}
/* Launches the operations that wait. Everything else that is enqueued comes after them. */
static int first_of(int a, int b) { return a ? a : b; }
int gpu_stream_flush(struct gpu_stream *s) {
    if (!s->window) return 0;
    const int r = fuse_flush(s->window, launch_op, s);
    return s->settle ? first_of(r, s->settle(s)) : r;
}

int gpu_stream_open(struct gpu *g, struct gpu_stream **s, const char *name, bool urgent, const _Atomic int *cancel,
                    struct error *e) {
    *s = NULL;
    struct fuse *window = g->joins_ops ? mem_calloc(1, sizeof *window) : NULL;
    if (g->joins_ops && !window) return error_set(e, ERR_MEMORY, "no memory for a stream");
    int r = g->b->stream_open(g, s, name, urgent, cancel, e);
    if (r) {
        mem_free(window);
        return r;
    }
    (*s)->g = g;
    (*s)->name = name;
    (*s)->window = window;
    if (window) window->epilogues = g->has_epilogues;
    (*s)->launch = (*s)->exec.run;
    if (window) (*s)->exec.run = run_op;
    return 0;
}
void gpu_stream_close(struct gpu_stream **s) {
    if (!*s) return;
    struct fuse *window = (*s)->window;
    gpu_stream_flush(*s);
    (*s)->g->b->stream_close(*s);
    mem_free(window);
    *s = NULL;
}
int gpu_stream_sync(struct gpu_stream *s) {
    const int r = gpu_stream_flush(s);
    return first_of(r, s->g->b->stream_sync(s));
}
void gpu_stream_set_fp8(struct gpu_stream *s, bool on) {
    s->is_fp8 = on; /* operations that wait to be joined have too few rows to depend on it */
}
struct gpu *gpu_stream_gpu(struct gpu_stream *s) {
    return s->g;
}
struct exec *gpu_stream_exec(struct gpu_stream *s) {
    return &s->exec.base;
}
int gpu_copy(struct gpu_stream *s, void *dst, const void *src, size_t size, enum gpu_dir dir) {
    int r = gpu_stream_flush(s);
    bool whole = dir == GPU_D2D || s->g->info.is_virtual;
    for (size_t at = 0, n; at < size && !r; at += n) {
        n = whole ? size : chunk_bytes(s->g, dir == GPU_H2D ? (const char *)src + at : (char *)dst + at, size - at);
        r = s->g->b->copy(s, (char *)dst + at, (const char *)src + at, n, dir);
    }
    return r;
}
int gpu_copy_peer(struct gpu_stream *s, void *dst, struct gpu *from, const void *src, size_t size) {
    const int r = gpu_stream_flush(s);
    return r || !size ? r : s->g->b->copy_peer(s, dst, from, src, size);
}
int gpu_fill(struct gpu_stream *s, void *dst, int byte, size_t size) {
    const int r = gpu_stream_flush(s);
    return r || !size ? r : s->g->b->fill(s, dst, byte, size);
}
int gpu_transfer(struct gpu_stream *s, void *dst, const void *src, size_t size, enum gpu_dir dir) {
    const bool few =
        s->window && s->g->info.maps_host && dir != GPU_D2D && size % 4 == 0 && size <= FUSE_NUMBERS * sizeof(float);
    if (!few) return gpu_copy(s, dst, src, size, dir);
    return size ? op_run(&s->exec.base, OP_TRANSFER, &(struct op_transfer){dst, src, size, dir == GPU_D2H}) : 0;
}

int gpu_graph_begin(struct gpu_stream *s) {
    const int r = gpu_stream_flush(s);
    return r ? r : s->g->b->graph_begin(s);
}
int gpu_graph_end(struct gpu_stream *s, struct gpu_graph **g) {
    *g = NULL;
    int r = gpu_stream_flush(s);
    r = first_of(s->g->b->graph_end(s, g), r);
    if (*g) (*g)->s = s;
    return r;
}
int gpu_graph_run(struct gpu_graph *g) {
    const int r = gpu_stream_flush(g->s);
    return r ? r : g->s->g->b->graph_run(g);
}
void gpu_graph_close(struct gpu_graph **g) {
    if (*g) (*g)->s->g->b->graph_close(*g);
    *g = NULL;
}
static int open_event(struct gpu *g, struct gpu_event **ev, bool timed, struct error *e) {
    *ev = NULL;
    int r = g->b->event_open(g, ev, timed, e);
    if (!r) (*ev)->g = g;
    return r;
}
int gpu_event_open(struct gpu *g, struct gpu_event **ev, struct error *e) { return open_event(g, ev, false, e); }
int gpu_event_open_timed(struct gpu *g, struct gpu_event **ev, struct error *e) { return open_event(g, ev, true, e); }
void gpu_event_close(struct gpu_event **ev) {
    if (*ev) (*ev)->g->b->event_close(*ev);
    *ev = NULL;
}
/* even of a stream that has failed, for those that wait */
int gpu_event_record(struct gpu_event *ev, struct gpu_stream *s) {
    const int r = gpu_stream_flush(s);
    return first_of(r, ev->g->b->event_record(ev, s));
}
int gpu_event_wait(struct gpu_event *ev, struct gpu_stream *s) {
    const int r = gpu_stream_flush(s);
    return first_of(r, ev->g->b->event_wait(ev, s));
}
int gpu_timeline_signal(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s) {
    const int r = gpu_stream_flush(s);
    return first_of(r, n->g->b->timeline_signal(n, value, s));
}
int gpu_timeline_wait(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s) {
    const int r = gpu_stream_flush(s);
    return first_of(r, n->g->b->timeline_wait(n, value, s));
}
int gpu_event_sync(struct gpu_event *ev) { return ev->g->b->event_sync(ev); }
bool gpu_event_is_done(struct gpu_event *ev) { return ev->g->b->event_is_done(ev); }
double gpu_event_elapsed(struct gpu_event *from, struct gpu_event *to) { return to->g->b->event_elapsed(from, to); }
double gpu_event_time(struct gpu_event *ev) { return ev->g->b->event_time(ev); }

/* Pairs. The host part counts records under a lock; the device part is the event itself. A record for the next use,
 * made before a waiter of the last has enqueued its wait, would make it wait too long. So users keep the order wait(n),
 * use, OFF, record(n + 1): the ring and the layer budget do. */
struct gpu_pair {
    struct gpu_event *event;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    uint64_t n_records;
    bool is_aborted;
};

int gpu_pair_open(struct gpu *g, struct gpu_pair **out, struct error *e) {
    struct gpu_pair *p = mem_calloc(1, sizeof *p);
    *out = NULL;
    if (!p) return error_set(e, ERR_MEMORY, "no memory for an event pair");
    int r = gpu_event_open(g, &p->event, e);
    if (r) {
        mem_free(p);
        return r;
    }
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->cond, NULL);
    *out = p;
    return 0;
}
void gpu_pair_close(struct gpu_pair **pp) {
    struct gpu_pair *p = *pp;
    if (!p) return;
    *pp = NULL;
    gpu_event_close(&p->event);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->cond);
    mem_free(p);
}
int gpu_pair_record(struct gpu_pair *p, struct gpu_stream *s) {
    pthread_mutex_lock(&p->lock);
    int r = gpu_event_record(p->event, s);
    p->n_records++;
    pthread_mutex_unlock(&p->lock);
    pthread_cond_broadcast(&p->cond); /* unlocked, or the woken thread would wait for the lock */
    return r;
}
int gpu_pair_wait(struct gpu_pair *p, uint64_t nth, struct gpu_stream *s) {
    pthread_mutex_lock(&p->lock);
    while (p->n_records < nth && !p->is_aborted) pthread_cond_wait(&p->cond, &p->lock);
    int r = p->is_aborted ? ERR_CANCELLED : s ? gpu_event_wait(p->event, s) : 0;
    pthread_mutex_unlock(&p->lock);
    return r;
}
struct gpu_event *gpu_pair_event(struct gpu_pair *p) {
    return p->event;
}
void gpu_pair_abort(struct gpu_pair *p) {
    pthread_mutex_lock(&p->lock);
    p->is_aborted = true;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}
