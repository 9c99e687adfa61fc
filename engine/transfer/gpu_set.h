#pragma once
/* The devices of an engine: opened once, shared by prefill and decode. Does not decide what runs on them. */
#include "engine/transfer/ledger.h"
#include "engine/transfer/pin.h"
#include "gpu/gpu.h"

struct gpu_set {
    struct gpu_spec spec;
    struct gpu *gpu[GPU_MAX];
    struct ledger ledger[GPU_MAX];
    int n;
    size_t checked_bytes[GPU_MAX]; /* weights on a device when its memory was checked last */
    _Atomic bool is_lost;          /* a device failed for good: no more GPU prefill */
    struct pin *pin;               /* pins the weights; NULL in virtual time or without weights */
    bool reads_in_fp8;             /* prompts are computed in FP8, answers are not; gpu_set_choose_math() */
    /* bytes of the largest attention block, FFN and expert in a slot; 0: not measured yet */
    size_t max_module_bytes[3];
};
/* Opens the devices in list (--gpus). 0 with *s NULL for "none". ERR_USAGE, ERR_RUNTIME, ERR_MEMORY. */
int gpu_set_open(struct gpu_set **s, const char *list, struct error *e);
int gpu_set_open_spec(struct gpu_set **s, const struct gpu_spec *spec, struct error *e); /* for spec->n > 0 devices */
/* Chooses how the mapped weights will be pinned; pin_start(s->pin) begins. ERR_MEMORY. */
int gpu_set_pin(struct gpu_set *s, const struct weights *w, const struct numa *nodes, struct error *e);
/* Says of each device that holds more weights than at the last check if some of its memory is elsewhere
 * (gpu_memory_elsewhere()). No other thread may use the devices. */
void gpu_set_check_memory(struct gpu_set *s);
/* Chooses FP8 for the prompts of a model for which config_reads_in_fp8(), where all devices have it and the list says
 * nothing else (math=). */
void gpu_set_choose_math(struct gpu_set *s, const struct config *c);
void gpu_set_close(struct gpu_set **s); /* before weights_close */
bool gpu_set_pinned(const struct gpu_set *s, const void *p, size_t size);
