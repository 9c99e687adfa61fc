#pragma once
/* A fair queue: round-robin between clients, first come first served within a client. A client with many requests does
 * not starve one with a single request: while that one waits, every other client is served at most twice. Pure; the
 * owner serializes access. */
#include <stdbool.h>
#include <stdint.h>

struct fair_entry {          /* embedded in the waiting object */
    struct fair_entry *next; /* later in the queue */
    uint64_t client, order;  /* order: arrival number */
    uint64_t round;
};
struct fair_queue {
    struct fair_entry *first;
    uint64_t round; /* round of the last served client */
};

void fair_queue_push(struct fair_queue *f, struct fair_entry *t, uint64_t client, uint64_t order);
/* Returns the next entry among those for which may(ctx, entry) is true; may NULL: all. NULL: none. */
struct fair_entry *fair_queue_next(const struct fair_queue *f, bool (*may)(const void *ctx, const struct fair_entry *t),
                                   const void *ctx);
/* dequeues it as served; the client's other entries move to a later round */
void fair_queue_serve(struct fair_queue *f, struct fair_entry *t);
void fair_queue_remove(struct fair_queue *f, struct fair_entry *t); /* dequeues it unserved */
/* counts an entry that was dequeued unserved as served */
void fair_queue_charge(struct fair_queue *f, const struct fair_entry *t);
