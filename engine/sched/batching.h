#pragma once
/* Which requests go together (paper B, algorithm 2): the longest first, each into the micro-batch with the fewest tokens so far, so that all
 * have about as many keys to attend to. A micro-batch that has its requests is closed; what would not fit the cache waits. Pure. */
#include <stdint.h>

struct batching_in {
    int n;
    const int32_t *length; /* [n] tokens that each has before its answer */
    int n_micro, most;     /* micro-batches; requests of each, at most */
    double answer, room;   /* tokens of an answer; positions that caches of a micro-batch may have; 0: any number */
};
/* micro [n] receives the micro-batch of each, -1: it waits for the next batch; order [n] scratch. Returns how many do not wait. */
int batching_assign(const struct batching_in *in, int32_t *micro, int32_t *order);
