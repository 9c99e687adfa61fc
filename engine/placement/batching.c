#include "engine/placement/batching.h"

#include <stdlib.h>

/* Merge sort of request indices by descending length, stable. */
static void sort_by_length(const int32_t *length, int32_t *order, int32_t *other, int n) {
    for (int i = 0; i < n; i++) order[i] = i;
    for (int width = 1; width < n; width *= 2) {
        for (int at = 0; at < n; at += 2 * width) {
            int mid = at + width < n ? at + width : n, end = mid + width < n ? mid + width : n, a = at, b = mid;
            for (int k = at; k < end; k++)
                other[k] = b >= end || (a < mid && length[order[a]] >= length[order[b]]) ? order[a++] : order[b++];
        }
        for (int i = 0; i < n; i++) order[i] = other[i];
    }
}

int batching_assign(const struct batching_in *in, int32_t *micro, int32_t *order) {
    double sum[BATCHING_MICRO_BATCHES] = {0};
    int count[BATCHING_MICRO_BATCHES] = {0},
        n_micro = in->n_micro_batches < BATCHING_MICRO_BATCHES ? in->n_micro_batches : BATCHING_MICRO_BATCHES,
        placed = 0;
    sort_by_length(in->lengths, order, micro, in->n);
    for (int i = 0; i < in->n; i++) micro[i] = -1;
    for (int i = 0; i < in->n; i++) {
        int best = -1;
        for (int k = 0; k < n_micro; k++)
            if (count[k] < in->max_per_micro_batch && (best < 0 || sum[k] < sum[best])) best = k;
        if (best < 0) break; /* all micro-batches are full */
        double with = sum[best] + in->lengths[order[i]];
        if (in->kv_room > 0 && with + (1 + count[best]) * in->answer_tokens > in->kv_room) continue;
        micro[order[i]] = best;
        sum[best] = with, count[best]++, placed++;
    }
    return placed;
}
