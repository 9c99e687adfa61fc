#pragma once
/* GPU devices: memory, streams, events, copies and the operations table over a backend (emu, cuda).
 *
 * Threads. A gpu may be used by several threads; alloc and free are locked. Only one host thread at a time enqueues on
 * a stream, whose commands run in order. An event is recorded by one stream; any stream of any device may wait for it.
 * Ownership. The caller owns what *_open returns until *_close. Close streams and events before their gpu; closing a
 * stream waits for it. Memory that a queued command uses must stay valid until the stream has executed the command.
 * Failure. Calls that take struct error fill it. The others enqueue and return 0, ERR_RUNTIME once the device has
 * failed (text: gpu_error), or ERR_CANCELLED. A failed stream drops its work but still signals its events, so waits
 * end. gpu_clear() reports whether the device is usable again. Then open new streams: a stream that failed or dropped
 * work may keep failing, because its owner must see the failure even if another thread cleared the device. Launches.
 * Operations of few rows may wait in their stream until the next call for it, which joins or launches them (fuse.h). */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "gpu/op.h"
#include "gpu/spec.h"

void gpu_describe(char *out, size_t size); /* one line for --version --verbose: backends and the devices they find */
/* The devices that may be used without being asked for. */
struct gpu_found {
    char list[80];     /* as in --gpus: "0,1"; "": none */
    char trouble[400]; /* "": none; a device is there that could be used: why it cannot, and what to do */
    bool is_tried;     /* hearth has run on cards of each of their architectures (test/gpu/first-light) */
};
void gpu_find(struct gpu_found *found);

struct gpu;
struct gpu_stream;
struct gpu_event;

struct gpu_info {
    const char *backend; /* "emu", "cuda" */
    char name[96];
    int rank, id;
    size_t mem;            /* bytes that gpu_alloc() may hand out in all */
    bool is_virtual;       /* no data is touched, only clocks advance */
    bool peer;             /* copies between ranks bypass the host */
    bool maps_host;        /* operations can access memory of gpu_host_alloc() */
    bool has_fp8;          /* gpu_stream_set_fp8() has an effect */
    double h2d, d2h, link; /* bytes/s, as configured or as the bus reports; 0: unknown */
};

/* rank GPU_HOST: see gpu_spec.has_cpu_rank */
int gpu_open(struct gpu **g, const struct gpu_spec *spec, int rank, struct error *e);
void gpu_close(struct gpu **g);
const struct gpu_info *gpu_info(const struct gpu *g);
size_t gpu_mem_free(struct gpu *g);
/* Memory in use that the driver seems to serve from system memory, as WSL2's does once a card is full: reads take many
 * times as long as the data sheet says. False: none, or unknown. Takes some milliseconds; no other thread may use the
 * device. */
struct gpu_elsewhere {
    size_t bytes, used; /* of the allocations that were read, large ones */
    double read, sheet; /* bytes/s */
};
bool gpu_memory_elsewhere(struct gpu *g, struct gpu_elsewhere *out);
/* lowers info.mem by what the driver will need; before anything is allocated */
void gpu_reserve(struct gpu *g, size_t bytes);
/* Returns statistics of all streams since gpu_open(), in seconds. In virtual time: operations bound by arithmetic and
 * by memory, busy time of each link direction, time in which uploads waited for a disk instead, and time per operation.
 * An emulated device with configured speeds derives arithmetic_s and memory_s from them; op_s is then the real time
 * where the host CPU is slower, and alloc_s the time spent allocating and freeing. Zeros elsewhere. In virtual time the
 * call waits for all enqueued work, so the result does not depend on thread timing; no queued work may wait for work
 * not yet enqueued. */
struct gpu_stats {
    double arithmetic_s, memory_s, h2d_s, d2h_s, disk_s, alloc_s, op_s[OP_COUNT];
    double bytes; /* of memory, moved by operations */
    /* emulated devices: operations launched; copies and fills; timelines signalled and waited for */
    uint64_t n_ops, n_copies, n_waits;
};
struct gpu_stats gpu_stats(struct gpu *g);
/* 256-byte aligned; ERR_MEMORY reports need and free bytes */
int gpu_alloc(struct gpu *g, void **p, size_t size, struct error *e);
void gpu_free(struct gpu *g, void *p);         /* no queued work may use it; NULL is allowed */
int gpu_error(struct gpu *g, struct error *e); /* the first failure since gpu_clear, 0: none */
/* all streams idle; 0: usable again, else the device is lost */
int gpu_clear(struct gpu *g, struct error *e);
/* Tasks that share a device may each see another's failure, or miss it: one of them drops work, and another clears the
 * failure. So a task notes how many failures had been cleared when it began; gpu_error_since() also returns ERR_RUNTIME
 * when there are more, and its results are not to be used. */
unsigned gpu_n_cleared(const struct gpu *g);
int gpu_error_since(struct gpu *g, unsigned n_cleared, struct error *e);

/* Pinned host memory. Registration splits [p, p + size) at multiples of gpu_register_chunk() because some drivers fail
 * on large ranges; copies are split at the same addresses because a copy must not cross two registrations. Most drivers
 * refuse read-only mappings (ERR_MEMORY). Takes about 0.1 s per GB: call it from a background thread. */
size_t gpu_register_chunk(const struct gpu *g);
int gpu_host_alloc(struct gpu *g, void **p, size_t size, struct error *e);
void gpu_host_free(struct gpu *g, void *p);
int gpu_host_register(struct gpu *g, const void *p, size_t size, struct error *e);
void gpu_host_unregister(struct gpu *g, const void *p, size_t size);

/* cancel may be NULL; once it is non-zero, queued work is dropped and calls return ERR_CANCELLED. The pointer `name` is
 * stored. Copies of urgent streams run first where the device can order them: exchanges before weights. */
int gpu_stream_open(struct gpu *g, struct gpu_stream **s, const char *name, bool urgent, const _Atomic int *cancel,
                    struct error *e);
void gpu_stream_close(struct gpu_stream **s);
int gpu_stream_sync(struct gpu_stream *s); /* blocks until all enqueued work has run */
/* From now on operations of the stream compute as with GPU_MATH_FP8, or as the device's math says. */
void gpu_stream_set_fp8(struct gpu_stream *s, bool on);
/* launches operations that wait to be joined, for callers that measure one */
int gpu_stream_flush(struct gpu_stream *s);
struct gpu *gpu_stream_gpu(struct gpu_stream *s);
/* The executor of this stream: base/ops.h and gpu/op.h. Lives as long as the stream. */
struct exec *gpu_stream_exec(struct gpu_stream *s);

enum gpu_dir { GPU_H2D, GPU_D2H, GPU_D2D };
int gpu_copy(struct gpu_stream *s, void *dst, const void *src, size_t size, enum gpu_dir dir);
/* From another rank's memory into this one's; only if gpu_info(...)->peer is set for both. */
int gpu_copy_peer(struct gpu_stream *s, void *dst, struct gpu *from, const void *src, size_t size);
int gpu_fill(struct gpu_stream *s, void *dst, int byte, size_t size);
/* A copy between device memory and memory of gpu_host_alloc(). Few bytes share a launch with other small operations,
 * where the device maps that memory. */
int gpu_transfer(struct gpu_stream *s, void *dst, const void *src, size_t size, enum gpu_dir dir);

int gpu_event_open(struct gpu *g, struct gpu_event **ev, struct error *e);
int gpu_event_open_timed(struct gpu *g, struct gpu_event **ev, struct error *e); /* slower; for gpu_event_time() */
/* no stream has a pending record or wait of it */
void gpu_event_close(struct gpu_event **ev);
int gpu_event_record(struct gpu_event *ev, struct gpu_stream *s);
/* the stream waits for the latest record so far, if any */
int gpu_event_wait(struct gpu_event *ev, struct gpu_stream *s);
int gpu_event_sync(struct gpu_event *ev); /* the host waits */
bool gpu_event_is_done(struct gpu_event *ev);
/* Seconds from one timed event of a device to another; precise even when the clock has run for days. */
double gpu_event_elapsed(struct gpu_event *from, struct gpu_event *to);
/* completion time of a timed event in seconds; one clock for all devices, virtual in virtual time */
double gpu_event_time(struct gpu_event *ev);

/* An ON or OFF event of a module: a device event and a host-side record count. A waiter first blocks on the host until
 * the nth record was enqueued, then makes its stream wait, so that no stream waits for a record that is not
 * enqueued. */
struct gpu_pair;
int gpu_pair_open(struct gpu *g, struct gpu_pair **p, struct error *e);
void gpu_pair_close(struct gpu_pair **p);
int gpu_pair_record(struct gpu_pair *p, struct gpu_stream *s);
int gpu_pair_wait(struct gpu_pair *p, uint64_t nth, struct gpu_stream *s); /* s NULL: host part only */
struct gpu_event *gpu_pair_event(struct gpu_pair *p);
/* All waits on this pair, current and future, return ERR_CANCELLED. Releases the other threads after a failure. */
void gpu_pair_abort(struct gpu_pair *p);

/* A recorded sequence of operations, fills and copies (of pinned memory) of one stream, replayed by one call. Arguments
 * are fixed; values that change between runs are read from memory (op_address). Between begin and end nothing executes,
 * only such work may be enqueued, and only the stream's own thread may use the stream. Run the same work once before
 * recording: first use allocates resources. */
struct gpu_graph;
int gpu_graph_begin(struct gpu_stream *s);
/* *g is owned by the caller. *g NULL with 0: this work cannot be recorded. NULL with GPU_STALE: the workspace has
 * grown, record again. In both cases nothing has run. */
enum { GPU_STALE = 1 };
int gpu_graph_end(struct gpu_stream *s, struct gpu_graph **g);
/* on its stream; GPU_STALE: memory that it uses has moved; nothing has run, record again */
int gpu_graph_run(struct gpu_graph *g);
void gpu_graph_close(struct gpu_graph **g); /* while its stream is open and is not running it */

/* A timeline semaphore: a counter in pinned host memory that streams of any device and the host signal and wait for.
 * Starts at 0, has one writer (a stream or the host) and only grows. Values are compared by signed difference, so the
 * counter may wrap while all values in use are within 2^30 of each other. A stream that drops its work (failed,
 * cancelled) aborts every timeline that it should signal or can no longer wait for, so no wait hangs. A stream released
 * by an abort computes on undefined data: the caller drops all dependent work, aborts the timelines involved and opens
 * new ones. While a stream waits, gpu_alloc, gpu_free and gpu_host_alloc may block on it; do not call them from the
 * thread that must signal. Close a timeline before its devices, with no pending signal or wait. In virtual time a
 * waiting stream's clock advances to the time of the signal; the host has no clock. */
struct gpu_timeline;
/* g: any device that will use it; same backend */
int gpu_timeline_open(struct gpu *g, struct gpu_timeline **n, struct error *e);
/* no stream has a pending signal or wait of it */
void gpu_timeline_close(struct gpu_timeline **n);
int gpu_timeline_signal(struct gpu_timeline *n, uint32_t value,
                        /* in stream order; all earlier work of the stream is visible to waiters */
                        struct gpu_stream *s);
/* the stream continues once the value is reached */
int gpu_timeline_wait(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s);
/* signal from the host; any thread */
void gpu_timeline_signal_host(struct gpu_timeline *n, uint32_t value);
/* also true when aborted: gpu_timeline_wait_host() tells */
bool gpu_timeline_reached(const struct gpu_timeline *n, uint32_t value);
/* Blocks the host: polls for as long as a layer may take (spin.h), then sleeps between polls. Returns 0; ERR_CANCELLED
 * (cancel may be NULL); ERR_RUNTIME when the timeline is aborted, or g or the device of its last writer has failed. */
int gpu_timeline_wait_host(struct gpu_timeline *n, uint32_t value, const _Atomic int *cancel);
void gpu_timeline_abort(struct gpu_timeline *n); /* releases all current and future waits for good; any thread */
