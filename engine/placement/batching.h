#pragma once
/* Assigns requests to micro-batches (paper B, algorithm 2): the longest first, each into the micro-batch with the
 * fewest tokens so far, which balances the attention work. Full micro-batches are closed; requests that exceed the KV
 * cache wait. Pure. */
#include <stdint.h>

enum { BATCHING_MICRO_BATCHES = 4096 };
struct batching_in {
    int n;
    const int32_t *lengths; /* [n] tokens before each request's answer */
    /* micro-batches, of which at most BATCHING_MICRO_BATCHES are filled; most requests per micro-batch */
    int n_micro_batches, max_per_micro_batch;
    /* tokens per answer; KV positions available to a micro-batch, 0: no limit */
    double answer_tokens, kv_room;
};
/* micro [n]: micro-batch of each request, -1: waits for the next batch. order [n]: scratch. Returns the number of
 * assigned requests. */
int batching_assign(const struct batching_in *in, int32_t *micro, int32_t *order);
