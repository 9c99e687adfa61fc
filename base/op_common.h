#pragma once
/* What the argument structs of operations share (base/op_list.h). They are plain C that C++ and CUDA read too, so that
 * kernels take the structs that layers fill. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/mat.h"

/* On the CPU, at every level, and on devices, a row of a call of at most this many rows has the same bits as alone. */
enum { BATCH_INVARIANT_ROWS = 24 };

#ifdef __CUDACC__
#define OP_INLINE static __host__ __device__ inline
#else
#define OP_INLINE static inline
#endif

#ifdef __cplusplus
typedef int op_flag; /* an int that threads of the executor set together */
#else
typedef _Atomic int op_flag;
#endif

/* A plane's addresses and a position, read from memory when the operation runs, so that an operation recorded once
 * serves every token of any session (graphs, gpu.h). Devices only. */
struct op_address {
    void *data; /* a state before the call's first row; NULL: initial */
    float *scale;
    void *after;                   /* destination of the state */
    const struct kv_block *blocks; /* as in kv_plane; the call supplies the plane's other block fields */
    int32_t pos;                   /* position of the call's first row */
};
/* Returns the number of groups of `every` tokens that tokens [pos, pos + n) complete; and the maximum over all
 * positions. */
OP_INLINE int op_completed(int pos, int n, int every) { return (pos + n) / every - pos / every; }
OP_INLINE int op_completed_most(int n, int every) { return (n + every - 1) / every; }
