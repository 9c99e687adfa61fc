#pragma once
/* Memory that decode keeps free on a device. */
#include "engine/exec/decode/decode_state.h"

/* Bytes to keep free on g instead of weights: decode's buffers, KV, a prefill's ring, and a margin. */
size_t decode_reserve_bytes(const struct decode *s, struct gpu *g);
/* The part of these bytes that decode_devices_open() allocates for its buffers. */
size_t decode_own_bytes(const struct decode *s);
/* Bytes to keep free on g beside weights and routed experts of n_layers layers: decode's buffers, these layers' KV of
 * 4096 positions or an eighth of the memory, and a margin. */
size_t decode_least_reserve_bytes(const struct decode *s, struct gpu *g, int n_layers);
