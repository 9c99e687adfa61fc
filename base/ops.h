#pragma once
/* The operations that a model is made of. engine/layer/ is written once against this table; the CPU (cpu/cpu.h), the
 * emulated device and CUDA (gpu/gpu.h) implement it, so every mode runs the same definition of the model.
 *
 * Conventions. Activations are float32, row-major, one row per token; `ld` is the row stride in floats. All pointers in
 * the argument structs are memory of the executor (host memory for the CPU). Weights are struct mat. A CPU call has
 * finished when it returns. A device enqueues on the executor's stream and copies the argument struct; arrays that it
 * points to must stay valid until the stream has passed. Results do not depend on the number of threads: each output
 * element is summed in one fixed order. On the CPU, at every level, a row of a call of at most BATCH_INVARIANT_ROWS
 * rows has the same bits as alone, and activations keep 16 bits or more (float32, the sum of two BF16, or integers
 * scaled by the largest of some columns). So decoding sessions and verified drafts give the same text in any batch.
 * Larger calls may round activations to BF16, or quantize them to 16-bit integers over more columns, which can change a
 * row's bits; struct op_prompts keeps them. Calls return 0, or ERR_MEMORY (no workspace), ERR_RUNTIME (device fault),
 * ERR_CANCELLED (exec->cancel was set). */
#include <stdatomic.h>

#include "base/op_list.h"

struct ops;
/* The prompts of several sessions in one call: prompt i has the rows before end[i], after those of the one before. A
 * row then has the bits that it has in a call with its own prompt alone. Either all prompts have at most
 * BATCH_INVARIANT_ROWS rows, is_few, or all have more. A call has the rows of all of them, or of one or of a part of
 * one. */
struct op_prompts {
    const int32_t *end; /* [n], rising */
    int n;
    bool is_few;
};
struct exec { /* the executor; each backend's own struct begins with it */
    const struct ops *ops;
    const _Atomic int *cancel;        /* may be NULL; non-zero: return ERR_CANCELLED soon */
    const struct op_prompts *prompts; /* NULL: rows of one session, or a decode batch; CPU executors only */
    struct op_viewer *viewer;         /* NULL, or receives the values of each stage of a layer; CPU executors only */
};

/* Receives the values of a named stage: n rows of m numbers, ld apart, in host memory. layer -1: the stage precedes or
 * follows the layers. */
struct op_viewer {
    void (*view)(struct op_viewer *, int layer, const char *stage, const float *rows, int n, int m, int ld);
};
static inline void op_show(const struct exec *x, int layer, const char *stage, const float *rows, int n, int m) {
    if (x->viewer) x->viewer->view(x->viewer, layer, stage, rows, n, m, m);
}

struct ops {
    const char *name; /* "scalar", "avx2", "avx512", "amx", "emu", "cuda" */
#define X(name, ...) int (*name)(struct exec *, const struct op_##name *);
    OPS(X) OPS_OPTIONAL(X)
#undef X
};
