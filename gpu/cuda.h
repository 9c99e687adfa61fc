#pragma once
/* The CUDA backend, shared by its C files. The runtime is linked statically and loads the driver on first use; cuBLAS
 * is loaded by name. So the binary starts without either. */
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "base/mem.h"
#include "gpu/backend.h"
#include "gpu/cuda_arena.h"
#include "gpu/cuda_kernels.h"

struct cuda_blas; /* cuBLAS of one device */

enum { CUDA_IDLE_STREAMS = 16 }; /* closed streams that a device keeps for reuse, of each priority */
struct cuda {
    struct gpu base;
    int card, sm; /* 90: compute capability 9.0 */
    enum gpu_math math;
    enum gpu_gemm gemm;
    struct cuda_blas *blas;   /* NULL: not found, gemm=own or math=f32 */
    cudaEvent_t origin_event; /* origin of event times */
    double origin_clock_s;    /* host clock at that moment */
    int n_sms;
    pthread_mutex_t lock;           /* protects all below; not held while the driver is called */
    struct cuda_arena memory, host; /* device memory, at most base.info.mem; pinned memory */
    /* part of memory, for allocations while a stream waits for the CPU; NULL: it is in use */
    void *spare;
    cudaStream_t idle[2][CUDA_IDLE_STREAMS]; /* closed streams [urgent] */
    int n_idle[2];
    struct error error;
};
/* Returns the tokens of a tile in FP8. On sm_90 mma.sync has no E4M3: the compiler unpacks it for FP16 products, and
 * tiles of 32 and 128 tokens spill registers (bench/gpu.md). */
static inline int cuda_fp8_tile(const struct cuda *g, int tokens) { return g->sm == 90 && tokens > 16 ? 64 : tokens; }
struct cuda_stream {
    struct gpu_stream base;
    struct cuda *g;
    cudaStream_t stream;
    const _Atomic int *cancel;
    bool is_urgent;
    _Atomic bool is_recording; /* do not query the stream */
    size_t wanted_bytes;       /* while recording: size of the workspace that an operation needs but lacks */
    void *workspace;           /* grows in the first layer, then stays */
    size_t workspace_size;
    bool has_down; /* `down`, of routed experts, is not launched yet: the next chain may become its epilogue */
    struct cuda_routed down;
    int *tickets;    /* [CUDA_TICKETS] counters in device memory, all 0 between launches; NULL until they are needed */
    void **outgrown; /* [n_outgrown] old workspaces that enqueued work may still use */
    size_t n_outgrown, cap_outgrown;
};
/* The arithmetic of a stream's products of many tokens. */
static inline enum gpu_math cuda_math(const struct cuda_stream *s) {
    return s->base.is_fp8 && s->g->base.info.has_fp8 ? GPU_MATH_FP8 : s->g->math;
}
struct cuda_event {
    struct gpu_event base;
    cudaEvent_t ev;
    bool is_recorded; /* protected by the pair's lock, or by the caller's order */
};

/* Records the first failure of a device; returns ERR_RUNTIME, or 0 for cudaSuccess. */
int cuda_check(struct cuda *g, cudaError_t r, const char *what);
int cuda_stream_state(struct cuda_stream *s); /* 0, ERR_CANCELLED, ERR_RUNTIME */
int cuda_error(struct gpu *g, struct error *e);
/* Emulations check accesses by allocation; this tells them which part of a block is one. */
#ifndef CUDA_MEMORY_NOTE
#define CUDA_MEMORY_NOTE(p, size, is_live) ((void)0)
#endif
#ifndef CUDA_STREAM_NOTE /* ... and which stream has a name, so that a test can delay it */
#define CUDA_STREAM_NOTE(s, name) ((void)0)
#endif
/* Returns a stream's counters for blocks that wait for each other (last_block() of cuda_device.cuh), NULL if there are
 * none: memory is missing, or they would have to be allocated while recording. */
int *cuda_tickets(struct cuda_stream *s);
/* Returns a stream's workspace of at least `size` bytes, which enqueued operations share in order. NULL after a
 * failure, which is recorded. If it must grow, waits for the stream, unless a timeline blocks that: the caller may be
 * the thread that must signal. */
void *cuda_workspace(struct cuda_stream *s, size_t size);

/* A handle on the current device; NULL when the library is not found. Opening and closing may wait for the device.
 * Calls are locked. */
struct cuda_blas *cuda_blas_open(void);
bool cuda_blas_is_usable(const struct cuda_blas *b); /* b may be NULL */
bool cuda_blas_has_fp8(const struct cuda_blas *b);   /* cuBLASLt was found as well; b may be NULL */
/* A call has failed: the library is not usable from now on. True for the first caller. */
bool cuda_blas_give_up(struct cuda_blas *b);
const char *cuda_blas_status(int status); /* a failure's name */
void cuda_blas_close(struct cuda_blas **b);
const char *cuda_blas_name(void); /* the loaded library, NULL: none */
/* y [n, rows] (+)= x [n, cols] w^T with BF16 x, rows ldx apart, and dense BF16 w; float32 y with rows ldy apart.
 * `space` is the library's workspace; enqueued products of one stream may share it. */
struct cuda_gemm {
    float *y;
    const void *x, *w;
    int n, rows, cols, ldx, ldy;
    bool accumulate;
    void *space;
    size_t space_size;
};
int cuda_blas_gemm(struct cuda_blas *b, const struct cuda_gemm *f, cudaStream_t s); /* 0, or the library's status */
/* Product in E4M3: x with scales [cols / 128, n], w, rows ldw apart, with scales [rows / 128, cols / 128 rounded up to
 * a multiple of 4]. Returns CUDA_BLAS_NO_KERNEL when the library has none for the shape, its status on failure. */
enum { CUDA_BLAS_NO_KERNEL = -1 };
struct cuda_fp8_gemm {
    struct cuda_gemm gemm;
    const float *x_scale, *w_scale;
    int ldw;
};
int cuda_blas_fp8(struct cuda_blas *b, const struct cuda_fp8_gemm *f, cudaStream_t s);

static inline int cuda_round_up(int n, int to) { return (n + to - 1) / to * to; }

/* cuda_linear.c: enqueues products, with cuda_linear_workspace_bytes() at `space`. is_routed: of a routed expert's
 * group (cuda_path.h). */
size_t cuda_linear_workspace_bytes(const struct cuda_stream *s, const struct op_linear *l, bool is_routed);
int cuda_linear_run(struct cuda_stream *s, const struct op_linear *l, bool is_routed, char *space);
/* Launches the products of stream.down, with an epilogue if e is not NULL. cuda_settle: those that wait for a chain. */
int cuda_down_run(struct cuda_stream *s, const struct cuda_epilogue *e);
int cuda_settle(struct gpu_stream *s);
/* Products that join. _is_one: they are one launch, which _run makes, with an epilogue if e is not NULL. _rows: rows of
 * W of a thread block of product k. */
bool cuda_join_is_one(const struct op_join *a);
int cuda_join_rows(const struct cuda_stream *s, const struct op_join *a, int k);
int cuda_join_run(struct cuda_stream *s, const struct op_join *a, const struct cuda_epilogue *e);
/* Up to BATCH_INVARIANT_ROWS tokens: act [n, inter] = glu(gate x, up x) in one launch, where cuda_linear_gates_few().
 */
bool cuda_linear_gates_few(const struct expert *e, int n);
int cuda_linear_run_gated(struct cuda_stream *s, const struct expert *e, struct glu glu, float *act, const float *x,
                          int n);
/* True if both products of an FFN of n tokens use our tiled kernels, which take several experts at once and fuse silu *
 * mul into the first product. */
bool cuda_linear_is_tiled(const struct cuda_stream *s, const struct expert *e, int n, bool is_routed);
bool cuda_linear_can_batch(const struct mat *a, const struct mat *b); /* may share a launch */
/* cuda_memory.c: the backend's calls for memory. Freed memory is kept (cuda_arena.h). The driver is only asked for
 * memory, or given some back, while no stream waits for the CPU: such calls may wait for the whole device. */
void cuda_memory_open(struct cuda *g); /* once base.info is set */
void cuda_memory_close(struct cuda *g);
size_t cuda_memory_left(struct gpu *g);
int cuda_memory_alloc(struct gpu *g, void **p, size_t size, struct error *e);
void cuda_memory_free(struct gpu *g, void *p);
int cuda_memory_host_alloc(struct gpu *g, void **p, size_t size, struct error *e);
void cuda_memory_host_free(struct gpu *g, void *p);
int cuda_memory_register(struct gpu *g, const void *p, size_t size, struct error *e);
void cuda_memory_unregister(struct gpu *g, const void *p);
bool cuda_probe_elsewhere(struct gpu *g, struct gpu_elsewhere *out); /* cuda_probe.c: gpu_memory_elsewhere() */
/* cuda_timeline.c */
int cuda_timeline_open(struct gpu *g, struct gpu_timeline **n, struct error *e);
void cuda_timeline_close(struct gpu_timeline *n);
int cuda_timeline_signal(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s);
int cuda_timeline_wait(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s);
void cuda_timeline_wake(struct gpu_timeline *n);
void cuda_timeline_sleep(struct gpu_timeline *n, uint32_t value);
/* the stream waits, or will wait, for a timeline value not yet reached */
bool cuda_timeline_blocks(const struct cuda_stream *s);
/* Waits until no stream waits for a timeline, and delays such waits, but no signals, until
 * cuda_timeline_resume_waits(). False, and nothing is delayed: a wait that this thread enqueued is pending, or those of
 * others do not end. */
bool cuda_timeline_pause_waits(void);
void cuda_timeline_resume_waits(void);
/* before s is closed: no timeline refers to it any more */
void cuda_timeline_forget_stream(struct cuda_stream *s);
/* sets s->is_recording, serialised with queries of the stream */
void cuda_timeline_set_recording(struct cuda_stream *s, bool recording);
/* cuda_load.c. The code that this build has for a card: assembled, PTX that the driver compiles, none. */
enum { CUDA_LEAST_SM = 80 }; /* the oldest architecture that the kernels are written for */
enum cuda_code { CUDA_CODE_NONE, CUDA_CODE_PTX, CUDA_CODE_CUBIN };
enum cuda_code cuda_load_code(int sm);
/* into the current device, a card of this architecture and name */
int cuda_load_kernels(int sm, const char *name, struct error *e);
/* cuda_find.c: the backend's calls for what there is. */
int cuda_find_count(struct error *e); /* cards, or a negative code and why there are none */
void cuda_find_describe(char *out, size_t size);
void cuda_find_list(struct gpu_found *found);
/* cuda_ops.c */
int cuda_run_op(struct op_exec *x, enum op_code code, const union op_args *a); /* enqueues any operation */
/* Replaces values that stand for another, as 0 for 1, by those that kernels take, and completes planes. */
void cuda_fill_defaults(enum op_code code, union op_args *a);
/* The operations for which host code selects kernels, in the stream's workspace: cuda_chain.c, cuda_experts.c,
 * cuda_linear.c, cuda_ops.c. */
#define OP_OF_SMALL(name)
#define OP_OF_KERNEL(name)
#define OP_OF_HOST(name)          int cuda_##name##_op(struct cuda_stream *s, const struct op_##name *a);
#define X(name, CODE, class, ...) OP_OF_##class(name)
OPS_ALL(X)
#undef X
