#pragma once
/* Devices: memory, streams, events, copies and the operations table, over one of the backends (emu, cuda).
 *
 * Threads. A gpu may be used from several threads; alloc and free are locked. A stream is fed by one host thread at a
 * time and runs its commands in order. Events are recorded by one stream and may be waited for by any other, on any device.
 * Ownership. What *_open returns is the caller's until *_close. Close streams and events before their gpu; closing a
 * stream waits for it. Memory that a queued command touches must stay until the stream has passed it.
 * Failure. Calls that take struct error fill it. The others enqueue: they return 0, or ERR_RUNTIME once the device has
 * failed (the text: gpu_error), or ERR_CANCELLED. After a failure a stream drops its work but still passes its events,
 * so that nobody hangs; gpu_clear tells whether the device can be used again. Then open other streams: one that failed
 * or dropped work may go on failing, since its owner must learn of it whoever cleared the device. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "gpu/ops.h"
#include "gpu/spec.h"

int gpu_describe(char *out, size_t size); /* one line for --version --verbose: backends and cards found */

struct gpu;
struct gpu_stream;
struct gpu_event;

struct gpu_info {
    const char *backend; /* "emu", "cuda" */
    char name[96];
    int rank, id;
    size_t mem;            /* cap */
    bool is_virtual;       /* no data is ever touched: only clocks move */
    bool peer;             /* copies between ranks need no staging through the host */
    double h2d, d2h, link; /* bytes/s as given or from the bus; 0 unknown */
};

int gpu_open(struct gpu **g, const struct gpu_spec *spec, int rank, struct error *e); /* rank GPU_HOST: see gpu_spec.host */
void gpu_close(struct gpu **g);
const struct gpu_info *gpu_info(const struct gpu *g);
size_t gpu_mem_free(struct gpu *g);
/* In virtual time, of all streams since opening: seconds of operations that arithmetic bounds, or memory; that each way of the link
 * was taken; that a disk was waited for instead; and of each operation's seconds. Of an emulated device that is held to given speeds what these say,
 * in op what it took where the processor is slower than that, and in which its memory was given out and taken back. Elsewhere zeros. In virtual time
 * it waits for all that was enqueued, so that it says the same whichever thread was late; nothing of that may wait for what is not enqueued yet. */
struct gpu_used {
    double computing, reading, h2d, d2h, disk, memory, op[OP_COUNT];
};
struct gpu_used gpu_used(struct gpu *g);
int gpu_alloc(struct gpu *g, void **p, size_t size, struct error *e); /* 256-byte aligned; ERR_MEMORY says need and have */
void gpu_free(struct gpu *g, void *p);                                /* no queued work may touch it; NULL is fine */
int gpu_error(struct gpu *g, struct error *e);                        /* the first failure since gpu_clear, 0 when none */
int gpu_clear(struct gpu *g, struct error *e);                        /* streams idle; 0: usable again, else the device is lost */

/* Host memory the copy engine can reach. Register takes [p, p + size) in pieces that end where an address is a multiple of gpu_piece
 * (large ones fail on some drivers), and copies are cut there, too, since none may reach across two. Read-only mappings are refused by
 * most drivers (ERR_MEMORY). About 0.1 s a GB: call it from a background thread. */
size_t gpu_piece(const struct gpu *g);
int gpu_host_alloc(struct gpu *g, void **p, size_t size, struct error *e);
void gpu_host_free(struct gpu *g, void *p);
int gpu_host_register(struct gpu *g, const void *p, size_t size, struct error *e);
void gpu_host_unregister(struct gpu *g, const void *p, size_t size);

/* cancel may be NULL; once non-zero, queued work is dropped and calls give ERR_CANCELLED. name is kept by pointer. The
 * copies of urgent streams go before those of others where the device can order them: exchanges before weights. */
int gpu_stream_open(struct gpu *g, struct gpu_stream **s, const char *name, bool urgent, const _Atomic int *cancel, struct error *e);
void gpu_stream_close(struct gpu_stream **s);
int gpu_stream_sync(struct gpu_stream *s); /* the host waits until all that was enqueued has run */
struct gpu *gpu_stream_gpu(struct gpu_stream *s);
/* Where operations run: base/ops.h on this stream, and gpu/ops.h for the rest. Lives as long as the stream. */
struct exec *gpu_stream_exec(struct gpu_stream *s);

enum gpu_dir { GPU_H2D, GPU_D2H, GPU_D2D };
int gpu_copy(struct gpu_stream *s, void *dst, const void *src, size_t size, enum gpu_dir dir);
/* From another rank's memory into this one's; only where gpu_info(...)->peer of both. */
int gpu_copy_peer(struct gpu_stream *s, void *dst, struct gpu *from, const void *src, size_t size);
int gpu_fill(struct gpu_stream *s, void *dst, int byte, size_t size);

int gpu_event_open(struct gpu *g, struct gpu_event **ev, struct error *e);
int gpu_event_open_timed(struct gpu *g, struct gpu_event **ev, struct error *e); /* dearer: one that gpu_event_time may ask */
void gpu_event_close(struct gpu_event **ev);                                     /* no stream has a record or a wait of it before it */
int gpu_event_record(struct gpu_event *ev, struct gpu_stream *s);
int gpu_event_wait(struct gpu_event *ev, struct gpu_stream *s); /* the stream waits for the latest record so far; none: no wait */
int gpu_event_sync(struct gpu_event *ev);                       /* the host waits */
bool gpu_event_done(struct gpu_event *ev);
double gpu_event_time(struct gpu_event *ev); /* when a timed one passed, seconds on one clock for all devices; virtual where time is */

/* An ON or OFF event of a module: a device event and a host one. A waiter first waits (host) until the event was
 * recorded for the nth time, then lets its stream wait for it, so that no stream waits for something not yet enqueued. */
struct gpu_pair;
int gpu_pair_open(struct gpu *g, struct gpu_pair **p, struct error *e);
void gpu_pair_close(struct gpu_pair **p);
int gpu_pair_set(struct gpu_pair *p, struct gpu_stream *s);
int gpu_pair_wait(struct gpu_pair *p, uint64_t nth, struct gpu_stream *s); /* s NULL: host part only */
struct gpu_event *gpu_pair_event(struct gpu_pair *p);
/* All waits on this pair, now and later, return ERR_CANCELLED: the way out for the other threads when one has failed. */
void gpu_pair_break(struct gpu_pair *p);

/* Work that is enqueued once and run again with one call: operations, fills and copies (of pinned memory) of one stream, with the arguments
 * that they had; what changes from run to run is read from memory (op_place). Between begin and end nothing runs, and nothing but those may be
 * enqueued there; the stream's own thread alone uses it. What an operation opens when it first runs must be there: run the same once before. */
struct gpu_graph;
int gpu_graph_begin(struct gpu_stream *s);
/* *g is the caller's. NULL with 0: this work cannot be recorded; with GPU_STALE: workspace has grown meanwhile, record it again. Nothing of
 * it has run. */
enum { GPU_STALE = 1 };
int gpu_graph_end(struct gpu_stream *s, struct gpu_graph **g);
int gpu_graph_run(struct gpu_graph *g);     /* on its stream; GPU_STALE: memory that it counts on has moved, nothing has run: record it anew */
void gpu_graph_close(struct gpu_graph **g); /* while its stream is open, and does not run it */

/* A number in pinned host memory, to hand work between streams of any devices and the host: streams write it and wait for
 * it, and so does the host. It begins at 0, has one writer, a stream or the host, and only grows: values are compared by
 * their signed difference, so it may pass 2^32 while those in use lie within 2^30 of each other.
 * A stream that drops its work (failed, cancelled) breaks each number that it is to write or waits for in vain: nobody hangs.
 * A stream that a broken number let pass computes from whatever lies there, so the caller drops all that hangs on it, breaks
 * the numbers in it, and opens others. While a stream waits, gpu_alloc, gpu_free and gpu_host_alloc may wait for it: not for the
 * thread that is to write the number. Close it when no stream is to come to it, before the devices. In virtual time a stream that
 * waits gets the time at which the value was written; the host has none. */
struct gpu_number;
int gpu_number_open(struct gpu *g, struct gpu_number **n, struct error *e);       /* g: any device that will use it; same backend */
void gpu_number_close(struct gpu_number **n);                                     /* no stream has a write or a wait of it before it */
int gpu_number_write(struct gpu_number *n, uint32_t value, struct gpu_stream *s); /* when the stream is there; what it did before is seen */
int gpu_number_wait(struct gpu_number *n, uint32_t value, struct gpu_stream *s);  /* the stream goes on once it is value or more */
void gpu_number_set(struct gpu_number *n, uint32_t value);                        /* the host writes; any thread */
bool gpu_number_reached(const struct gpu_number *n, uint32_t value);              /* also when broken: await tells */
/* The host waits: polls for some 50 us, then sleeps in between. 0; ERR_CANCELLED (cancel may be NULL); ERR_RUNTIME when it is
 * broken or the device of g or of its last writer has failed. */
int gpu_number_await(struct gpu_number *n, uint32_t value, const _Atomic int *cancel);
void gpu_number_break(struct gpu_number *n); /* all who wait, now and later, go on; for good; any thread */
