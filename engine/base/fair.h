#pragma once
/* Whose turn it is where clients wait for one thing: clients take turns, and of one client the first that came is the first. So one with
 * many requests does not keep another with one waiting: while that one waits, no other client is served more than twice. Pure; whoever
 * has the queue sees that no other thread has it at the same time. */
#include <stdbool.h>
#include <stdint.h>

struct fair_turn {          /* part of what waits; its owner's memory */
    struct fair_turn *next; /* that came later */
    uint64_t client, order; /* order: when it came */
    uint64_t round;
};
struct fair {
    struct fair_turn *first;
    uint64_t round; /* the one of who was served last */
};

void fair_wait(struct fair *f, struct fair_turn *t, uint64_t client, uint64_t order);
/* The one that is next, of clients for which may(ctx, client) is true; NULL: of all. NULL: none. */
struct fair_turn *fair_next(const struct fair *f, bool (*may)(const void *ctx, uint64_t client), const void *ctx);
void fair_serve(struct fair *f, struct fair_turn *t); /* it waits no more, and others of its client come a round later */
void fair_leave(struct fair *f, struct fair_turn *t); /* it waits no more, and was not served */
