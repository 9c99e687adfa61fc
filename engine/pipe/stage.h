#pragma once
/* Weights on their way to a device's stream. What the driver has pinned goes as it lies. A driver that is given other memory holds
 * its caller until it has copied it, with one thread, at a tenth of the link's speed; so that goes through pinned buffers, which
 * threads of the stage fill side by side, and the caller goes on at once. */
#include "engine/pipe/pipe.h"

struct stage;
struct trace;
enum { STAGE_SMALL = 64 << 10 }; /* so much a driver takes by itself, wherever it lies */
struct stage_options {
    const struct gpu_set *set;
    struct gpu *g;
    struct gpu_stream *stream; /* fed by the stage, from its threads or stage_send's; by others after stage_flush */
    const _Atomic int *stop;   /* the stream's cancel */
    struct gpu_number *loaded; /* written when a unit is there; NULL: nobody asks */
    struct gpu_number *freed;  /* which units wait for, NULL: none does */
    int threads;               /* stage_threads(set): 0 where nothing needs them */
    struct trace *trace;
    int rank;
};
struct stage_unit { /* one module's weights */
    const struct pipe_run *runs;
    int n;
    char *to;        /* each goes to to + its at */
    uint32_t after;  /* the stream first waits for this value of freed; 0: it need not */
    uint32_t loaded; /* and then writes this one; rising */
    int layer, item; /* for the trace */
};
/* Virtual time, and weights that are pinned by now: none. Else as many as fill a link without taking the processor from others. */
int stage_threads(const struct gpu_set *set, const struct weights *w);
int stage_open(struct stage **s, const struct stage_options *o, struct error *e);
/* Units go in the order in which they are sent; one thread sends. ERR_MEMORY, or what the stream has met so far; runs are copied. */
int stage_send(struct stage *s, const struct stage_unit *u);
int stage_flush(struct stage *s);   /* waits until all of it is enqueued on the stream; the same codes */
void stage_close(struct stage **s); /* enqueues what was sent; set *stop first to drop it. Its stream may still run then */
