#pragma once
/* The parts of a layer of a decode batch (decode_layer.c), in the order in which decode.c runs them. Functions return
 * 0, an operation's or a device's error code; with `e`, it may be filled. Engine thread only. */
#include "engine/exec/decode/decode_state.h"

/* rows whose attention block runs on a device */
int decode_layer_device_rows(const struct decode *s, const struct decode_micro_batch *m, int layer);

/* Trace spans of a device's main stream; item: index of the micro-batch, -1: none. begin returns the span, for end. */
int decode_layer_begin_span(struct decode_device *d, const char *name, int layer, int item);
void decode_layer_end_span(struct decode_device *d, int span);

/* once what was enqueued is in host memory */
int decode_layer_signal_arrived(struct decode_device *d, struct decode_micro_batch *m);
/* makes the CPU wait for the rows sent for `layer` */
int decode_layer_wait_rows(struct decode *s, struct decode_micro_batch *m, int layer);

/* Uploads rows and positions, and resets the non-finite mark. total: rows of the batch. */
int decode_layer_begin(struct decode *s, struct decode_micro_batch *m, int total);
/* Enqueues everything after layer `after` (-1: the embedding) on devices, until the CPU is needed again. */
int decode_layer_advance(struct decode *s, struct decode_micro_batch *m, int after, int total);
/* Whether devices may advance past a layer before the CPU's part of it; else they would overwrite a selection that the
 * CPU reads. */
bool decode_layer_runs_ahead(const struct decode *s, int layer);
/* The CPU's part: the attention block of its own rows, then the experts of all rows that need it. */
int decode_layer_cpu_attention(struct decode *s, struct decode_micro_batch *m, int layer, struct error *e);
int decode_layer_cpu_experts(struct decode *s, struct decode_micro_batch *m, int layer, struct error *e);
