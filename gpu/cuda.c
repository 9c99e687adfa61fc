/* The CUDA device: memory, streams, events, copies. Each call sets its device, so any thread may make it. */
#include "gpu/cuda.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"

/* Errors of operations that cannot be captured: only the recording is lost, the device has not failed. */
enum { CAPTURE_ERROR_FIRST = 900, CAPTURE_ERROR_LAST = 908 }; /* cudaErrorStreamCaptureUnsupported, .. WrongThread */

int cuda_check(struct cuda *g, cudaError_t r, const char *what) {
    if (r == cudaSuccess) return 0;
    if ((int)r >= CAPTURE_ERROR_FIRST && (int)r <= CAPTURE_ERROR_LAST) return ERR_RUNTIME;
    pthread_mutex_lock(&g->lock);
    if (!g->error.code)
        error_set(&g->error, ERR_RUNTIME, "device %d (%s): %s: %s", g->base.info.rank, g->base.info.name, what,
                  cudaGetErrorString(r));
    pthread_mutex_unlock(&g->lock);
    return ERR_RUNTIME;
}
static int error_code(struct cuda *g) {
    pthread_mutex_lock(&g->lock);
    int r = g->error.code;
    pthread_mutex_unlock(&g->lock);
    return r;
}
static bool cancelled(const struct cuda_stream *s) {
    return s->cancel && atomic_load_explicit(s->cancel, memory_order_relaxed);
}

int cuda_error(struct gpu *base, struct error *e) {
    struct cuda *g = (struct cuda *)base;
    pthread_mutex_lock(&g->lock);
    int r = g->error.code;
    if (r && e) *e = g->error;
    pthread_mutex_unlock(&g->lock);
    return r;
}
/* Launch argument errors are recoverable; a fault inside a kernel kills the context, which the synchronisation
 * reports. */
static int clear_error(struct gpu *base, struct error *e) {
    struct cuda *g = (struct cuda *)base;
    cudaSetDevice(g->card);
    cudaGetLastError();
    cudaError_t r = cudaDeviceSynchronize();
    if (r != cudaSuccess)
        return error_set(e, ERR_RUNTIME, "device %d (%s) is lost: %s", base->info.rank, base->info.name,
                         cudaGetErrorString(r));
    pthread_mutex_lock(&g->lock);
    g->error = (struct error){0};
    pthread_mutex_unlock(&g->lock);
    return 0;
}

static void close_device(struct gpu *base) {
    struct cuda *g = (struct cuda *)base;
    cudaSetDevice(g->card);
    cudaDeviceSynchronize();
    cuda_blas_close(&g->blas);
    for (int k = 0; k < 2; k++)
        while (g->n_idle[k]) cudaStreamDestroy(g->idle[k][--g->n_idle[k]]);
    cuda_memory_close(g);
    if (g->origin_event) cudaEventDestroy(g->origin_event);
    pthread_mutex_destroy(&g->lock);
    mem_free(g);
}
/* Sets what the card is, and starts the origin of event times. */
static int open_card(struct cuda *g, int card, struct cudaDeviceProp *p, struct error *e) {
    cudaError_t r = cudaGetDeviceProperties(p, card);
    if (r == cudaSuccess) r = cudaSetDevice(card);
    if (r == cudaSuccess) r = cudaEventCreate(&g->origin_event);
    if (r == cudaSuccess) r = cudaEventRecord(g->origin_event, 0);
    if (r == cudaSuccess) r = cudaEventSynchronize(g->origin_event);
    g->origin_clock_s = clock_now();
    if (r != cudaSuccess) return error_set(e, ERR_RUNTIME, "card %d: %s", card, cudaGetErrorString(r));
    g->sm = p->major * 10 + p->minor;
    g->n_sms = p->multiProcessorCount;
    if (g->sm < CUDA_LEAST_SM)
        return error_set(e, ERR_RUNTIME, "card %d (%s) is sm_%d; sm_%d or newer is needed", card, p->name, g->sm,
                         CUDA_LEAST_SM);
    if (cuda_load_code(g->sm) == CUDA_CODE_NONE)
        return error_set(e, ERR_RUNTIME,
                         "this build has no code for card %d (%s, sm_%d): build hearth without -Darch_cuda", card,
                         p->name, g->sm);
    if (g->math == GPU_MATH_FP8 && g->sm < 89)
        return error_set(e, ERR_USAGE,
                         "card %d (%s) is sm_%d: its tensor cores do not support FP8; math=fp8 needs sm_89 or newer",
                         card, p->name, g->sm);
    return 0;
}
/* Opens cuBLAS where the options allow it; an error only if they demand it. */
static int open_blas(struct cuda *g, struct error *e) {
    if (g->math == GPU_MATH_F32 || g->gemm == GPU_GEMM_OWN) return 0;
    g->blas = cuda_blas_open();
    if (g->blas || g->gemm != GPU_GEMM_CUBLAS) return 0;
    return error_set(e, ERR_USAGE,
                     "card %d: gemm=cublas needs cuBLAS 11 to 13, which %s; install it, or omit gemm=cublas", g->card,
                     cuda_blas_name() ? "could not be started" : "was not found");
}
/* Enables direct copies from the cards of all other ranks. Returns whether all of them allow it. */
static bool enable_peers(int card, const struct gpu_spec *spec) {
    for (int i = 0; i < spec->n; i++) {
        int can = 1;
        if (spec->id[i] != card && (cudaDeviceCanAccessPeer(&can, card, spec->id[i]) || !can)) return false;
    }
    for (int i = 0; i < spec->n; i++)
        if (spec->id[i] != card) cudaDeviceEnablePeerAccess(spec->id[i], 0);
    return true;
}
static int open_device(struct gpu **out, const struct gpu_spec *spec, int rank, struct error *e) {
    int n = cuda_find_count(e), card = spec->id[rank];
    if (n < 0) return n;
    if (card >= n)
        return error_set(e, ERR_USAGE, "card %d does not exist: this machine has %d, numbered from 0 to %d (--gpus)",
                         card, n, n - 1);
    struct cudaDeviceProp p;
    struct cuda *g = mem_calloc(1, sizeof *g);
    if (!g) return error_set(e, ERR_MEMORY, "no memory for a device");
    pthread_mutex_init(&g->lock, NULL);
    g->card = card;
    g->math = spec->math;
    g->gemm = spec->gemm;
    int rc = open_card(g, card, &p, e);
    if (!rc) rc = cuda_load_kernels(g->sm, p.name, e);
    if (!rc) rc = open_blas(g, e);
    if (rc) {
        close_device(&g->base);
        return rc;
    }
    const bool peer = !spec->nopeer && enable_peers(card, spec);
    cudaGetLastError(); /* already enabled is not an error */
    size_t free_bytes = 0, total = 0;
    int sharing = 0; /* ranks on one card share its memory; the runtime and cuBLAS reserve some */
    for (int i = 0; i < spec->n; i++) sharing += spec->id[i] == card;
    cudaMemGetInfo(&free_bytes, &total);
    g->base.has_epilogues = true;
    g->base.info = (struct gpu_info){.rank = rank,
                                     .id = card,
                                     .peer = peer,
                                     .maps_host = true,
                                     .has_fp8 = g->math == GPU_MATH_BF16 && g->sm >= 89,
                                     .h2d = spec->h2d,
                                     .d2h = spec->d2h,
                                     .link = spec->peer};
    g->base.info.mem = free_bytes / (size_t)sharing;
    if (spec->mem && spec->mem < g->base.info.mem) g->base.info.mem = spec->mem;
    snprintf(g->base.info.name, sizeof g->base.info.name, "%.90s", p.name);
    cuda_memory_open(g);
    *out = &g->base;
    return 0;
}

int cuda_stream_state(struct cuda_stream *s) {
    return cancelled(s) ? ERR_CANCELLED : error_code(s->g) ? ERR_RUNTIME : 0;
}

/* Closed streams are kept: creating one may wait for the device, and a new one could share a hardware queue with one
 * that waits. */
static cudaStream_t reuse_stream(struct cuda *g, bool urgent) {
    pthread_mutex_lock(&g->lock);
    cudaStream_t s = g->n_idle[urgent] ? g->idle[urgent][--g->n_idle[urgent]] : NULL;
    pthread_mutex_unlock(&g->lock);
    return s;
}
static void keep_stream(struct cuda *g, bool urgent, cudaStream_t s) {
    pthread_mutex_lock(&g->lock);
    const bool room = g->n_idle[urgent] < CUDA_IDLE_STREAMS;
    if (room) g->idle[urgent][g->n_idle[urgent]++] = s;
    pthread_mutex_unlock(&g->lock);
    if (!room) cudaStreamDestroy(s);
}
/* The stream is idle. */
static void free_outgrown(struct cuda_stream *s) {
    while (s->n_outgrown) cuda_memory_free(&s->g->base, s->outgrown[--s->n_outgrown]);
}
static void stream_close(struct gpu_stream *base) {
    struct cuda_stream *s = (struct cuda_stream *)base;
    cudaSetDevice(s->g->card);
    if (s->stream) cudaStreamSynchronize(s->stream);
    free_outgrown(s);
    mem_free(s->outgrown);
    cuda_timeline_forget_stream(s);
    if (s->workspace) cuda_memory_free(&s->g->base, s->workspace);
    if (s->tickets) cuda_memory_free(&s->g->base, s->tickets);
    if (s->stream) keep_stream(s->g, s->is_urgent, s->stream);
    cudaGetLastError();
    mem_free(s);
}
static int stream_open(struct gpu *base, struct gpu_stream **out, const char *name, bool urgent,
                       const _Atomic int *cancel, struct error *e) {
    struct cuda *g = (struct cuda *)base;
    struct cuda_stream *s = mem_calloc(1, sizeof *s);
    if (!s) return error_set(e, ERR_MEMORY, "no memory for a stream");
    int low = 0, high = 0;
    s->g = g;
    s->cancel = cancel;
    s->is_urgent = urgent;
    cudaSetDevice(g->card);
    cudaDeviceGetStreamPriorityRange(&low, &high);
    if (!(s->stream = reuse_stream(g, urgent)) &&
        cuda_check(g, cudaStreamCreateWithPriority(&s->stream, cudaStreamNonBlocking, urgent ? high : low), "stream")) {
        stream_close(&s->base);
        return cuda_error(base, e);
    }
    CUDA_STREAM_NOTE(s->stream, name);
    op_exec_init(&s->base.exec, "cuda", cuda_run_op, cancel);
    s->base.settle = cuda_settle;
    if (g->math == GPU_MATH_F32) s->base.exec.table.expand = NULL;
    *out = &s->base;
    return 0;
}
static int stream_sync(struct gpu_stream *base) {
    struct cuda_stream *s = (struct cuda_stream *)base;
    cudaSetDevice(s->g->card);
    int r = cuda_check(s->g, cudaStreamSynchronize(s->stream), "running");
    free_outgrown(s);
    return r && !cancelled(s) ? r : cuda_stream_state(s);
}

int *cuda_tickets(struct cuda_stream *s) {
    const size_t size = CUDA_TICKETS * sizeof *s->tickets;
    struct error e;
    void *p;
    if (s->tickets || atomic_load(&s->is_recording) || cuda_memory_alloc(&s->g->base, &p, size, &e)) return s->tickets;
    if (cudaMemsetAsync(p, 0, size, s->stream) == cudaSuccess) return s->tickets = p;
    cuda_memory_free(&s->g->base, p);
    return NULL;
}
void *cuda_workspace(struct cuda_stream *s, size_t size) {
    if (size <= s->workspace_size) return s->workspace;
    if (atomic_load(&s->is_recording)) {
        s->wanted_bytes = size;
        return NULL;
    }
    struct error e = {0};
    if (s->workspace && cuda_timeline_blocks(s) &&
        !mem_grow(&s->outgrown, &s->cap_outgrown, s->n_outgrown + 1, sizeof *s->outgrown)) {
        s->outgrown[s->n_outgrown++] = s->workspace;
        /* the first workspace needs no wait: such a wait could be for a signal that this thread has yet to send */
    } else if (s->workspace) {
        cuda_check(s->g, cudaStreamSynchronize(s->stream), "running");
        free_outgrown(s);
        cuda_memory_free(&s->g->base, s->workspace);
    }
    s->workspace_size = 0;
    s->workspace = NULL;
    if (cuda_memory_alloc(&s->g->base, &s->workspace, size, &e)) {
        pthread_mutex_lock(&s->g->lock);
        if (!s->g->error.code) s->g->error = e;
        pthread_mutex_unlock(&s->g->lock);
        return NULL;
    }
    s->workspace_size = size;
    return s->workspace;
}

static int begin_call(struct cuda_stream *s) {
    int r = cuda_stream_state(s);
    return r ? r : cuda_check(s->g, cudaSetDevice(s->g->card), "device");
}
static int copy(struct gpu_stream *base, void *dst, const void *src, size_t size, enum gpu_dir dir) {
    static const enum cudaMemcpyKind kinds[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
                                                cudaMemcpyDeviceToDevice};
    struct cuda_stream *s = (struct cuda_stream *)base;
    int r = begin_call(s);
    return r ? r : cuda_check(s->g, cudaMemcpyAsync(dst, src, size, kinds[dir], s->stream), "copy");
}
static int copy_peer(struct gpu_stream *base, void *dst, struct gpu *from, const void *src, size_t size) {
    struct cuda_stream *s = (struct cuda_stream *)base;
    int r = begin_call(s);
    return r ? r
             : cuda_check(s->g, cudaMemcpyPeerAsync(dst, s->g->card, src, ((struct cuda *)from)->card, size, s->stream),
                          "peer copy");
}
static int fill(struct gpu_stream *base, void *dst, int byte, size_t size) {
    struct cuda_stream *s = (struct cuda_stream *)base;
    int r = begin_call(s);
    return r ? r : cuda_check(s->g, cudaMemsetAsync(dst, byte, size, s->stream), "fill");
}

/* Graphs. A failed capture is not a device failure: the caller launches the same work operation by operation. */
struct cuda_graph {
    struct gpu_graph base;
    cudaGraphExec_t exec;
    const void *workspace; /* address of the stream's workspace in the recorded operations */
};
static int graph_begin(struct gpu_stream *base) {
    struct cuda_stream *s = (struct cuda_stream *)base;
    int r = begin_call(s);
    if (r) return r;
    s->wanted_bytes = 0;
    cuda_timeline_set_recording(s, true);
    r = cuda_check(s->g, cudaStreamBeginCapture(s->stream, cudaStreamCaptureModeThreadLocal), "recording");
    if (r) cuda_timeline_set_recording(s, false);
    return r;
}
static void graph_close(struct gpu_graph *base) {
    struct cuda_graph *g = (struct cuda_graph *)base;
    if (g->exec) cudaGraphExecDestroy(g->exec);
    mem_free(g);
}
static int graph_end(struct gpu_stream *base, struct gpu_graph **out) {
    struct cuda_stream *s = (struct cuda_stream *)base;
    struct cuda_graph *g = mem_calloc(1, sizeof *g);
    cudaGraph_t recorded = NULL;
    cudaSetDevice(s->g->card);
    cudaError_t r = cudaStreamEndCapture(s->stream, &recorded);
    cuda_timeline_set_recording(s, false);
    if (!r && recorded && g && !s->wanted_bytes) r = cudaGraphInstantiateWithFlags(&g->exec, recorded, 0);
    if (recorded) cudaGraphDestroy(recorded);
    cudaGetLastError();
    if (g && !r && g->exec) {
        g->workspace = s->workspace;
        *out = &g->base;
    } else if (g) graph_close(&g->base);
    const int state = cuda_stream_state(s);
    if (state || !s->wanted_bytes) return state;
    return cuda_workspace(s, s->wanted_bytes) ? GPU_STALE : ERR_RUNTIME;
}
static int graph_run(struct gpu_graph *base) {
    struct cuda_graph *g = (struct cuda_graph *)base;
    struct cuda_stream *s = (struct cuda_stream *)base->s;
    if (g->workspace != s->workspace) return GPU_STALE;
    int r = begin_call(s);
    return r ? r : cuda_check(s->g, cudaGraphLaunch(g->exec, s->stream), "graph");
}

static void event_close(struct gpu_event *base) {
    struct cuda_event *ev = (struct cuda_event *)base;
    if (ev->ev) cudaEventDestroy(ev->ev);
    mem_free(ev);
}
static int event_open(struct gpu *base, struct gpu_event **out, bool timed, struct error *e) {
    struct cuda *g = (struct cuda *)base;
    struct cuda_event *ev = mem_calloc(1, sizeof *ev);
    if (!ev) return error_set(e, ERR_MEMORY, "no memory for an event");
    cudaSetDevice(g->card);
    /* a waiting thread sleeps instead of spinning */
    unsigned flags = cudaEventBlockingSync | (timed ? 0 : cudaEventDisableTiming);
    if (cuda_check(g, cudaEventCreateWithFlags(&ev->ev, flags), "event")) {
        event_close(&ev->base);
        return cuda_error(base, e);
    }
    *out = &ev->base;
    return 0;
}
static int event_record(struct gpu_event *base, struct gpu_stream *stream) {
    struct cuda_event *ev = (struct cuda_event *)base;
    struct cuda_stream *s = (struct cuda_stream *)stream;
    cudaSetDevice(s->g->card);
    int r = cuda_check(s->g, cudaEventRecord(ev->ev, s->stream), "event record");
    ev->is_recorded = ev->is_recorded || !r;
    return r && !cancelled(s) ? r : cuda_stream_state(s);
}
static int event_wait(struct gpu_event *base, struct gpu_stream *stream) {
    struct cuda_event *ev = (struct cuda_event *)base;
    struct cuda_stream *s = (struct cuda_stream *)stream;
    cudaSetDevice(s->g->card);
    int r = ev->is_recorded ? cuda_check(s->g, cudaStreamWaitEvent(s->stream, ev->ev, 0), "event wait") : 0;
    return r && !cancelled(s) ? r : cuda_stream_state(s);
}
static int event_sync(struct gpu_event *base) {
    struct cuda_event *ev = (struct cuda_event *)base;
    return ev->is_recorded ? cuda_check((struct cuda *)base->g, cudaEventSynchronize(ev->ev), "running") : 0;
}
static bool event_is_done(struct gpu_event *base) {
    struct cuda_event *ev = (struct cuda_event *)base;
    return !ev->is_recorded || cudaEventQuery(ev->ev) != cudaErrorNotReady;
}
/* A float holds milliseconds to seven digits: enough between two near events, but not from the device's opening to an
 * event. */
static double event_elapsed(struct gpu_event *from, struct gpu_event *to) {
    const struct cuda_event *a = (struct cuda_event *)from, *b = (struct cuda_event *)to;
    float ms = 0;
    return !a->is_recorded || !b->is_recorded || cudaEventElapsedTime(&ms, a->ev, b->ev) ? 0 : (double)ms * 1e-3;
}
static double event_time(struct gpu_event *base) {
    struct cuda_event *ev = (struct cuda_event *)base;
    struct cuda *g = (struct cuda *)base->g;
    float ms = 0;
    if (!ev->is_recorded || cudaEventElapsedTime(&ms, g->origin_event, ev->ev)) return 0;
    return g->origin_clock_s + (double)ms * 1e-3;
}

const struct gpu_backend gpu_cuda = {
    .name = "cuda",
    .describe = cuda_find_describe,
    .find = cuda_find_list,
    .open = open_device,
    .close = close_device,
    .mem_free = cuda_memory_left,
    .elsewhere = cuda_probe_elsewhere,
    .alloc = cuda_memory_alloc,
    .free = cuda_memory_free,
    .error = cuda_error,
    .clear = clear_error,
    .host_alloc = cuda_memory_host_alloc,
    .host_free = cuda_memory_host_free,
    .host_register = cuda_memory_register,
    .host_unregister = cuda_memory_unregister,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .stream_sync = stream_sync,
    .copy = copy,
    .copy_peer = copy_peer,
    .fill = fill,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_run = graph_run,
    .graph_close = graph_close,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_sync = event_sync,
    .event_is_done = event_is_done,
    .event_time = event_time,
    .event_elapsed = event_elapsed,
    .timeline_open = cuda_timeline_open,
    .timeline_close = cuda_timeline_close,
    .timeline_signal = cuda_timeline_signal,
    .timeline_wait = cuda_timeline_wait,
    .timeline_wake = cuda_timeline_wake,
    .timeline_sleep = cuda_timeline_sleep,
};
