#pragma once
/* Uploads to a device's stream. Pinned memory is copied directly. For other memory a driver blocks its caller and
 * copies with one thread at a tenth of the link's speed; so staging threads copy it to pinned staging buffers, and the
 * caller returns at once. */
#include "engine/transfer/copy_runs.h"
#include "engine/transfer/gpu_set.h"

struct stage;
struct trace;
enum { STAGE_SMALL = 64 << 10 }; /* a driver copies up to this size without blocking, pinned or not */
struct stage_options {
    const struct gpu_set *set;
    struct gpu *g;
    struct gpu_stream *stream;   /* fed by the stage, from its threads or stage_send's; by others after stage_flush */
    const _Atomic int *stop;     /* the stream's cancel flag */
    struct gpu_timeline *loaded; /* signalled when a unit has arrived; NULL: never */
    struct gpu_timeline *freed;  /* timeline that units wait for; NULL: none */
    int threads;                 /* from stage_threads; 0: no threads */
    struct trace *trace;
    int rank;
    bool is_metered; /* times units for stage_take_speed() */
};
struct stage_unit { /* one module's weights */
    const struct copy_run *runs;
    int n;
    char *to;        /* run i goes to to + runs[i].at */
    uint32_t after;  /* the stream first waits for this value of freed; 0: no wait */
    uint32_t loaded; /* value of loaded signalled afterwards; must rise */
    int layer, item; /* for the trace */
};
/* Returns 0 in virtual time or when all weights are pinned; else as many as saturate a link without starving the CPU
 * executor. */
int stage_threads(const struct gpu_set *set, const struct weights *w);
int stage_idle_threads(const struct gpu_set *set, const struct weights *w); /* threads while nothing else computes */
/* Starts the staging threads. What o points to must outlive the stage. ERR_MEMORY, ERR_RUNTIME. */
int stage_open(struct stage **s, const struct stage_options *o, struct error *e);
/* Sends a unit; units keep their order. One thread sends. Copies the runs. ERR_MEMORY, or the stream's first error. */
int stage_send(struct stage *s, const struct stage_unit *u);
/* Merges ranges, sends them to `to` as one unit with u's values and layer, and points their fields there. 0 ranges:
 * sends nothing. */
int stage_send_ranges(struct stage *s, struct copy_range *ranges, int n, char *to, struct stage_unit u);
/* The median of some units' times since the last call, and that unit's bytes; false: too few yet, or not metered. Any
 * thread. */
bool stage_take_speed(struct stage *s, double *bytes, double *seconds);
bool stage_is_small(size_t bytes); /* whether a driver copies that much unpinned memory without blocking its caller */
int stage_flush(struct stage *s);  /* waits until everything is enqueued on the stream; same codes */
/* enqueues what was sent; set *stop first to drop it. The stream may still be running. */
void stage_close(struct stage **s);
