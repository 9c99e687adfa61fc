#pragma once
/* Execution trace in seconds of the devices' clock (virtual on virtual devices). Device spans are pairs of stream
 * events; CPU spans are recorded when they end. Any thread; no-ops when t is NULL. */
#include "gpu/gpu.h"

enum { TRACE_SPANS = 200000, TRACE_CPU = GPU_MAX }; /* most spans kept; the CPU's rank */
enum trace_lane { LANE_LOAD, LANE_COMPUTE, LANE_UNLOAD, LANE_EXCHANGE, LANES };

struct trace;
struct trace *trace_open(void);
void trace_close(struct trace **t); /* requires idle streams and open devices */
/* Aligns CPU spans with a device's clock; else they count from trace_open. */
void trace_align_clock(struct trace *t, struct gpu *g);

/* Begins and ends a span on a stream. trace_begin() returns a handle for trace_end(), -1: not traced. `name` must
 * remain valid; layer and item are omitted if negative. */
int trace_begin(struct trace *t, struct gpu_stream *s, int rank, enum trace_lane lane, const char *name, int layer,
                int item);
void trace_end(struct trace *t, int handle, struct gpu_stream *s);
/* Adds a span from a recorded event, which the trace then owns, to now on s. */
void trace_add_span(struct trace *t, struct gpu_event *begin, struct gpu_stream *s, int rank, enum trace_lane lane,
                    const char *name, int layer, int item);
/* seconds on the devices' clock; 0 if t is NULL */
double trace_now(const struct trace *t);
/* a CPU span from begin until now */
void trace_cpu(struct trace *t, double begin, const char *name, int layer, int item);

/* Reads the times of finished spans and closes their events. By the thread that begins spans, between two of them;
 * trace_add_span may run on other threads. */
void trace_settle(struct trace *t);
/* takes all spans of `other`, whose streams are idle; its rank 0 is `device` */
void trace_merge(struct trace *t, struct trace *other, int device);

/* After all streams are idle: busy seconds of a lane of a rank, and of two lanes at once. */
double trace_busy(const struct trace *t, int rank, enum trace_lane lane);
double trace_overlap(const struct trace *t, int rank_a, enum trace_lane a, int rank_b, enum trace_lane b);
double trace_span(const struct trace *t, int rank); /* from a rank's first event to its last */
/* all spans that have ended. ERR_MEMORY, ERR_RUNTIME */
int trace_write(const struct trace *t, const char *path, struct error *e);
/* Writes the file if spans were added since. Anything but a regular file is written only with `last`. A file that
 * cannot be written is one warning. */
void trace_save(struct trace *t, const char *path, bool last);
