#pragma once
/* Graphs of the work of a batch shape (struct graph_shape). */
#include "engine/exec/decode/decode_state.h"

int decode_graph_open(struct decode_device *d, struct error *e); /* ERR_MEMORY */
void decode_graph_drop(struct decode_device *d);                 /* frees recordings; d->main must be idle */
void decode_graph_close(struct decode_device *d);
/* Looks up the graphs for m's shape and uploads m's positions and KV addresses (enqueued). */
int decode_graph_begin(struct decode_device *d, struct decode_micro_batch *m, int total);
/* Enqueues a layer's work on d->main. total: rows of the batch; spans: those of m on d, or what a recording needs
 * instead. */
typedef int (*graph_fn)(struct decode_device *d, struct decode_micro_batch *m, int layer, int total,
                        const struct span *spans);
/* m's spans on d: m->dev_spans, or copies in `out` with the rank's planes. */
const struct span *decode_graph_spans(const struct decode_device *d, const struct decode_micro_batch *m,
                                      struct span out[DECODE_MAX_ROWS]);
/* Runs fn's work on d->main: replays its graph, records it first, or calls fn directly. */
int decode_graph_run(struct decode_device *d, struct decode_micro_batch *m, int layer, enum graph_part part, int total,
                     graph_fn fn);
