#pragma once
/* Memory that decode keeps free on a device. */
#include "engine/exec/decode/decode_state.h"

size_t decode_own_bytes(const struct decode *s);                    /* the part of them for the buffers that open_device() allocates */
size_t decode_reserve_bytes(const struct decode *s, struct gpu *g); /* bytes to keep free on g instead of weights */
/* Bytes to keep free on g beside weights and routed experts of n_layers layers: decode's buffers, these layers' KV of 4096 positions or an eighth of
 * the memory, and a margin. */
size_t decode_least_reserve_bytes(const struct decode *s, struct gpu *g, int n_layers);
