#include "base/fair_queue.h"

#include <stddef.h>

/* Clients without entries are not stored. A returning client starts one round after the last served one, the same as if
 * it had been stored, so leaving and returning gives no advantage. */
void fair_queue_push(struct fair_queue *f, struct fair_entry *t, uint64_t client, uint64_t order) {
    struct fair_entry **at = &f->first;
    *t = (struct fair_entry){.client = client, .order = order, .round = f->round + 1};
    for (const struct fair_entry *o = f->first; o; o = o->next)
        if (o->client == client) t->round = o->round;
    while (*at && (*at)->order < order) at = &(*at)->next;
    t->next = *at;
    *at = t;
}

struct fair_entry *fair_queue_next(const struct fair_queue *f, bool (*may)(const void *ctx, const struct fair_entry *t),
                                   const void *ctx) {
    struct fair_entry *best = NULL;
    for (struct fair_entry *t = f->first; t; t = t->next)
        if ((!best || t->round < best->round) && (!may || may(ctx, t))) best = t;
    return best;
}

void fair_queue_remove(struct fair_queue *f, struct fair_entry *t) {
    struct fair_entry **at = &f->first;
    while (*at != t) at = &(*at)->next;
    *at = t->next;
    t->next = NULL;
}

void fair_queue_charge(struct fair_queue *f, const struct fair_entry *t) {
    if (f->round < t->round) f->round = t->round;
    for (struct fair_entry *o = f->first; o; o = o->next)
        if (o->client == t->client) o->round = f->round + 1;
}
void fair_queue_serve(struct fair_queue *f, struct fair_entry *t) {
    fair_queue_remove(f, t);
    fair_queue_charge(f, t);
}
