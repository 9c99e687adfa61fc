#pragma once
/* Tensor parallelism: each rank has a shard of every layer. Functions are enqueued on all ranks. */
#include "engine/exec/decode/decode_state.h"

/* Attention block and what follows it; then the sum of the outputs of ranks and CPU. */
int decode_tensor_attention(struct decode *s, struct decode_micro_batch *m, int layer, int total);
int decode_tensor_join(struct decode *s, struct decode_micro_batch *m, int layer);
size_t decode_tensor_parts_bytes(const struct decode *s); /* bytes of s->tp_parts */
