#pragma once
/* A child that compares the results of GPUs of a kind that no hearth has run on with the CPU's (--check-gpus), and
 * stores the result, while this process answers. */
#include "base/buf.h"
#include "cli/tools/child.h"

enum gpu_check_result { GPU_CHECK_NONE, GPU_CHECK_RUNS, GPU_CHECK_RIGHT, GPU_CHECK_WRONG, GPU_CHECK_FAILED };
struct gpu_check { /* zero: none */
    bool runs;
    struct child child;
    struct buf said; /* its messages */
};
/* Starts it with a model; ERR_RUNTIME, ERR_MEMORY. Do not move or free *g before its end. */
int gpu_check_start(struct gpu_check *g, const char *model_dir, struct error *e);
/* Continues it. Each end is returned once, and NONE from then on; FAILED: e says why. */
enum gpu_check_result gpu_check_poll(struct gpu_check *g, struct error *e);
void gpu_check_end(struct gpu_check *g); /* ends one that runs */
