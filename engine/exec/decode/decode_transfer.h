#pragma once
/* Copies of rows between devices, and to the CPU, in the middle of a batch. */
#include "engine/exec/decode/decode_state.h"
#include "engine/layer/expert_io.h"

/* Copies the rows of n tokens that `layer` reads of the layers before it, or n_layers: the head does (enqueued). Uses
 * no other field of `to` and `from`. */
int decode_carry(const struct config *c, struct gpu_stream *stream, const struct work *to, const struct work *from,
                 int n, int layer, enum gpu_dir dir);

/* Downloads what the CPU needs for a layer's experts (enqueued). */
int decode_download_inputs(struct decode_device *d, struct decode_micro_batch *m, int layer);
bool decode_cpu_reads_rows(const struct decode *s, int layer); /* whether the CPU computes some of a layer's experts */
/* What executors exchange for routed experts: rows of w that experts read, which the device prepares for the CPU, too,
 * and the sums of their outputs, which it finishes. In tensor parallelism rows of the stream: the CPU does both. */
struct expert_io decode_expert_io(const struct decode *s, const struct work *w);
