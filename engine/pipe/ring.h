#pragma once
/* What passes between the threads of a rank: slots of device memory with their events, and how far each runs ahead. */
#include "engine/pipe/pipe.h"

struct pipe;
struct rank;

/* A ring of slots in device memory. The loader fills slots in the order of modules, the compute thread uses them in the
 * same order, the unloader hands them back. Module k sits in slot k % n, and is the (k / n + 1)th use of its events. */
struct slot {
    char *mem;
    struct gpu_pair *on, *off; /* weights arrived; last use done */
    struct layer layer;        /* views with device pointers: of a dense module, what it holds of its layer */
    struct expert expert;      /* of an expert */
};
struct ring {
    struct slot *slots;
    int n;
    size_t slot_bytes;
    uint64_t released; /* modules handed back; under the pipe's lock */
};
int ring_open(struct ring *r, struct gpu *g, int n, size_t slot_bytes, struct error *e);
void ring_close(struct ring *r, struct gpu *g);
void ring_break(struct ring *r);
struct slot *ring_at(const struct ring *r, uint64_t k);
/* Loader: the slot of module k once it is free; its last use is then ordered before what the stream does next. */
int ring_claim(struct pipe *p, struct ring *r, uint64_t k, struct gpu_stream *s, struct slot **out);
int ring_ready(const struct ring *r, uint64_t k, struct gpu_stream *s); /* compute: waits for ON of module k */
int ring_used(const struct ring *r, uint64_t k, struct gpu_stream *s);  /* compute: sets OFF */
int ring_free(struct pipe *p, struct ring *r, uint64_t k);              /* unloader: waits for OFF, hands the slot back */

/* Which experts of a layer pass through the ring: all of this rank, or (few tokens) those that a token chose, which is known
 * once the layer's router has run. Waits for that unless all do; ERR_CANCELLED. */
int ring_await(struct rank *r, int layer);
bool ring_takes(const struct rank *r, int layer, int expert); /* after ring_await; expert counts from the rank's first */
void ring_choose(struct rank *r, int layer);                  /* compute: group sizes are on the host */

/* How far a thread runs ahead of its stream: one unit of work (a module's copies, an expert, a chunk of attention) runs, two
 * wait. What is queued on a real device cannot be taken back, so this bounds how long a cancel lasts; the stream never
 * runs dry by it. */
enum { PACE = 3 };
struct pace {
    struct gpu_event *event[PACE];
    unsigned n;
};
int pace_open(struct pace *c, struct gpu *g, struct error *e);
void pace_close(struct pace *c);
int pace_unit(struct rank *r, struct pace *c, struct gpu_stream *s); /* a unit was enqueued: waits for the one PACE before it */
