#pragma once
/* What the files of this folder ask of the devices: which one has a layer, what it keeps free, whether it failed. */
#include "engine/exec/decode/decode_state.h"

struct decode_device *decode_device_of(struct decode *s, int layer);     /* NULL: the CPU has it */
size_t decode_reserve_bytes(const struct decode *s, struct gpu *g);      /* bytes to keep free on g instead of weights */
size_t decode_own_bytes(const struct decode *s);                         /* the part of them for the buffers that open_device() allocates */
bool decode_device_error(struct decode *s, struct error *e);             /* whether a device failed, with its error */
bool decode_is_locked(const struct decode *s); /* whether a prefill has locked the weights */
/* Bytes to keep free on g beside weights and routed experts of n_layers layers: decode's buffers, these layers' KV of 4096 positions or an eighth of
 * the memory, and a margin. */
size_t decode_least_reserve_bytes(const struct decode *s, struct gpu *g, int n_layers);

static inline struct exec *decode_device_exec(struct decode_device *d) { return gpu_stream_exec(d->main); }
static inline struct work *decode_device_work(struct decode_device *d, const struct decode_micro_batch *m) { return &d->work[m - d->s->micro_batch]; }
static inline size_t decode_device_row_bytes(const struct decode *s, int n) { return (size_t)n * (size_t)s->c->hidden * 4; }
