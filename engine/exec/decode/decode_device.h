#pragma once
/* The devices of a decode: the device of a layer, failures, whether a prefill has locked weights, stages. */
#include "engine/exec/decode/decode_state.h"

struct decode_device *decode_device_of(struct decode *s, int layer); /* NULL: the CPU has it */
bool decode_device_error(struct decode *s, struct error *e);         /* whether a device failed, with its error */
bool decode_is_locked(const struct decode *s);                       /* whether a prefill has locked the weights */

/* Opens a stage on the device's main stream; close it with stage_close(). ERR_MEMORY. */
int decode_device_open_stage(struct decode_device *d, struct stage **stage, struct error *e);

static inline struct exec *decode_device_exec(struct decode_device *d) { return gpu_stream_exec(d->main); }
static inline struct work *decode_device_work(struct decode_device *d, const struct decode_micro_batch *m) {
    return &d->work[m - d->s->micro_batch];
}
static inline size_t decode_device_row_bytes(const struct decode *s, int n) {
    return (size_t)n * (size_t)s->c->hidden * 4;
}
