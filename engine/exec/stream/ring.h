#pragma once
/* Coordinates a rank's threads: slots of device memory with their events, which experts pass through them, and how far
 * each thread runs ahead. */
#include "engine/transfer/ledger.h"
#include "engine/weights/params.h"

/* A ring of device memory slots. The loader fills slots in module order, the compute thread uses and frees them in the
 * same order. Module k uses slot k % n and is use k / n + 1 of its events. */
struct ring_slot {
    struct ledger_entry mem;
    struct gpu_pair *loaded, *freed; /* weights arrived; last use done */
    struct layer layer;              /* views with device pointers: of a dense module, its part of the layer */
    struct expert expert;            /* of an expert */
};
/* Returns the most slots of a ring that the compute thread holds at once: the loader must be able to continue while a
 * group of experts waits for its last. */
static inline int ring_quarter(int slots) { return slots / 4; }
struct ring {
    struct ring_slot *slots;
    int n;
};
/* ERR_MEMORY, ERR_RUNTIME; close after an error too */
int ring_open(struct ring *r, struct ledger *l, int n, size_t slot_bytes, struct error *e);
void ring_close(struct ring *r, struct ledger *l);
void ring_abort(struct ring *r);                             /* wakes what waits for its events; any thread */
uint64_t ring_module_use(const struct ring *r, uint64_t k);  /* module k's use of its slot's events, counted from 1 */
struct ring_slot *ring_at(const struct ring *r, uint64_t k); /* the slot of module k */
/* Loader: waits until the slot of module k is free, and orders the stream after its last use. in_halves: waits once for
 * half of the ring, which spares switching threads for each module in virtual time, where neither thread loses time by
 * waiting. */
int ring_claim(struct ring *r, bool in_halves, uint64_t k, struct gpu_stream *s, struct ring_slot **out);
/* compute: makes the stream wait for the weights of module k */
int ring_wait_loaded(const struct ring *r, uint64_t k, struct gpu_stream *s);
/* compute: the stream's work so far was the last use of module k */
int ring_release(const struct ring *r, uint64_t k, struct gpu_stream *s);
/* unloader: waits until the compute thread has released module k */
int ring_wait_released(const struct ring *r, uint64_t k);

/* Limits how far a thread runs ahead of its stream: one unit of work (a module's copies, an expert, an attention chunk)
 * runs, two are queued. Queued work cannot be cancelled on a real device, so this bounds the cancel latency without
 * starving the stream. */
enum { PACE = 3 };
struct pace {
    struct gpu_event *event[PACE];
    unsigned n;
};
int ring_pace_open(struct pace *c, struct gpu *g, struct error *e);
void ring_pace_close(struct pace *c);
