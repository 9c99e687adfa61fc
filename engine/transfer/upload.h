#pragma once
/* Queues of uploads into slots of device memory. A queue is a stream of the device's link, the stage that feeds it, and
 * two timelines that order uploads and readers: `loaded`, signalled after each upload, and `freed`, signalled by the
 * readers' stream after the last use of slots. Owns neither the memory nor the choice of what is uploaded. One thread
 * per queue; uploads of a queue keep their order.
 *
 * A slot's state follows from its contents and the two timelines:
 *
 *     empty -- send --> uploading -- loaded --> resident -- release --> in use -- freed --> resident
 *       ^                                          |                       |
 *       |<----------------- evict -----------------+                       +-- evict --> evicting -- freed --> empty
 *
 * A slot may be sent to while it is evicting, and evicted while it is uploading: the link then runs the copies in
 * order. Every other transition is an error that asserts. */
#include "engine/transfer/stage.h"

enum slot_state {
    SLOT_EMPTY,
    SLOT_UPLOADING, /* enqueued on the link; readers wait for it on their stream */
    SLOT_RESIDENT,
    SLOT_IN_USE,  /* resident, and enqueued work reads it */
    SLOT_EVICTING /* has no contents, but enqueued work still reads the old ones; the next upload waits for it */
};
struct upload_slot {
    bool is_filled;
    /* of `loaded` once the contents have arrived; of `freed` after the last use, 0: none yet */
    uint32_t loaded_value, freed_value;
};
struct expert_slot { /* room for one routed expert */
    struct ledger_entry mem;
    struct upload_slot upload;
    struct expert view;
    int layer, expert;            /* contents; -1: empty */
    bool was_used, is_prefetched; /* expert pool: used since the upload; uploaded because of a prediction */
};
struct upload_queue {
    struct gpu_stream *link;
    struct stage *stage;
    struct gpu_timeline *loaded, *freed;
    uint32_t n_loaded, n_freed;
    size_t n_waits; /* since everything sent was on the link */
    struct expert_params expert_params;
};
/* A stream that waits takes about 1,000 launches; the next one blocks, and with it the calls of staging threads, which
 * the stream may wait for. So after this many waits upload_wait() lets the staging threads finish first: no reader
 * launches more than 20 kernels for one wait. */
enum { UPLOAD_WAITS_AHEAD = 32 };
/* Opens a queue; of `o`, stream, loaded and freed are the queue's own. Close it in any case; a zeroed queue may be
 * closed. */
int upload_open(struct upload_queue *q, const char *name, const struct stage_options *o, struct error *e);
void upload_close(struct upload_queue *q); /* sends what is queued; readers' streams must be idle */
void upload_abort(struct upload_queue *q); /* releases all current and future waits */

enum slot_state upload_slot_state(const struct upload_queue *q, const struct upload_slot *t);
bool upload_has_arrived(const struct upload_queue *q, const struct upload_slot *t); /* resident or in use */
bool upload_is_idle(const struct upload_queue *q);                                  /* all uploads have arrived */
/* waits until all are on the link */
int upload_flush(struct upload_queue *q);
/* waits until all have; an error if any was dropped */
int upload_finish(struct upload_queue *q);
/* Uploads ranges to `to`, after the slot's readers. Points the ranges' fields there. more: adds to what is
 * uploading. */
int upload_send(struct upload_queue *q, struct upload_slot *t, bool more, struct copy_range *ranges, int n, char *to,
                int layer, int item);
/* Uploads a routed expert of w in place of what the slot has. */
int upload_expert(struct upload_queue *q, struct expert_slot *t, const struct weights *w, int layer, int expert);
/* whether a stream takes a copy of so much unpinned memory without blocking its caller */
bool upload_is_direct(size_t bytes);
/* outside slots; readers wait for q->n_loaded */
int upload_copy(struct upload_queue *q, char *to, const struct copy_run *run);
void upload_evict(struct upload_slot *t);        /* drops the contents of a filled slot */
void upload_evict_expert(struct expert_slot *t); /* of any slot */
/* the reader waits for the upload; may block on staging threads */
int upload_wait(struct upload_queue *q, const struct upload_slot *t, struct gpu_stream *reader);
/* After the last use of some slots on a stream: upload_signal() once, then upload_release() for each. */
int upload_signal(struct upload_queue *q, struct gpu_stream *reader);
void upload_release(const struct upload_queue *q, struct upload_slot *t);
