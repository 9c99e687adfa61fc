#pragma once
/* Shared by the cases of kcheck_ops.c: one call on every number of threads. */
#include "test/kcheck/levels.h"

/* with more than BATCH_INVARIANT_ROWS tokens activations are BF16, in products and in attention over BF16 and E4M3
 * planes; with few tokens twice that precision */
static bool products_bf16, tiles_bf16;

/* Runs `call` (which uses the executor `on` and writes y, n floats) on each number of threads; keeps the first
 * result. */
#define EACH_THREADS(what, y, n, before, call) \
    do { \
        float *kept = aligned((size_t)(n)*4); \
        for (int th = 0; th < THREADS; th++) { \
            struct exec *on = execs[th]; \
            memcpy(y, before, (size_t)(n)*4); \
            int rc = (call); \
            if (rc) wrong(what " returned %d on %d threads", rc, thread_counts[th]); \
            if (!th) memcpy(kept, y, (size_t)(n)*4); \
            else if (memcmp(kept, y, (size_t)(n)*4)) \
                wrong(what " differs between 1 and %d threads", thread_counts[th]); \
        } \
        free(kept); \
    } while (0)
