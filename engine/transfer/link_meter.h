#pragma once
/* Times uploads on a stream, a few units of weights at a time, by events of the device's clock. What it reports is the
 * median of some units, so that one that the machine delayed tells nothing. Off in virtual time. One thread at a time
 * enqueues; any thread may take. */
#include <pthread.h>

#include "gpu/gpu.h"

enum { LINK_METER_UNITS = 5, LINK_METER_BYTES = 1 << 20 }; /* units of a median; smaller units are latency */
struct link_meter {
    struct {
        struct gpu_event *begin, *end; /* NULL: off */
        size_t bytes;                  /* of the unit between them */
        bool is_pending;               /* on the stream */
    } unit[LINK_METER_UNITS];
    int timing;                                                   /* the unit that is being enqueued; -1: none */
    pthread_mutex_t lock;                                         /* protects all below */
    double seconds[LINK_METER_UNITS], per_byte[LINK_METER_UNITS]; /* seconds of each, and by its bytes */
    int n; /* units since the last one taken; the latest of them are kept */
};
/* m is zeroed; to be closed in any case */
int link_meter_open(struct link_meter *m, struct gpu *g, bool is_on, struct error *e);
void link_meter_close(struct link_meter *m); /* the stream is idle */
bool link_meter_is_on(const struct link_meter *m);
/* Before a unit's first copy, of each copy, and after the last one. */
void link_meter_begin(struct link_meter *m, struct gpu_stream *s);
void link_meter_count(struct link_meter *m, size_t bytes);
void link_meter_end(struct link_meter *m, struct gpu_stream *s);
/* Returns false until enough units were timed since the last one taken. */
bool link_meter_take(struct link_meter *m, double *bytes, double *seconds);
