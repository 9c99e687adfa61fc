#pragma once
/* The trace: what ran when, in seconds on the devices' clock (virtual where time is). Spans of devices lie between two events
 * of a stream; the processor's are told as they end. Any thread; no-ops when t is NULL. */
#include "gpu/gpu.h"

enum { TRACE_SPANS = 200000, TRACE_PROCESSOR = GPU_MAX }; /* no more are kept; the processor as a rank */
enum trace_lane { LANE_LOAD, LANE_COMPUTE, LANE_UNLOAD, LANE_EXCHANGE, LANES };

struct trace;
struct trace *trace_open(void);
void trace_close(struct trace **t); /* streams idle, devices open */
/* Puts the processor on the clock of a device; else its spans count from the opening of the trace. */
void trace_align(struct trace *t, struct gpu *g);

/* begin returns a handle for end, -1 for none. name must stay valid; layer, item < 0 are left out. */
int trace_begin(struct trace *t, struct gpu_stream *s, int rank, enum trace_lane lane, const char *name, int layer, int item);
void trace_end(struct trace *t, int handle, struct gpu_stream *s);
/* A whole span of one thread while another settles: from an event that is recorded already, and now the trace's. */
void trace_done(struct trace *t, struct gpu_event *begin, struct gpu_stream *s, int rank, enum trace_lane lane, const char *name, int layer, int item);
double trace_now(const struct trace *t);
void trace_host(struct trace *t, double begin, const char *name, int layer, int item); /* the processor, from begin until now */

/* Takes the times of spans that are over and lets their events go. By the one thread that begins spans, between two of
 * them; what trace_done tells may come from others. */
void trace_settle(struct trace *t);
void trace_join(struct trace *t, struct trace *other, int device); /* other, its streams idle, gives all it has; its rank 0 is that device */

/* After all streams were synced. Busy seconds of a lane of a rank, and of two at once. */
double trace_busy(const struct trace *t, int rank, enum trace_lane lane);
double trace_both(const struct trace *t, int rank_a, enum trace_lane a, int rank_b, enum trace_lane b);
double trace_span(const struct trace *t, int rank); /* from the first event of a rank to its last */
int trace_write(const struct trace *t, const char *path, struct error *e);
/* The same if something was added since it was written last; what is no regular file is written to the last time only. A file
 * that cannot be written is a warning, once. */
void trace_save(struct trace *t, const char *path, bool last);
