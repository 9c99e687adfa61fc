#pragma once
/* The calls that a backend implements, and the common first members of its objects. gpu.c and timeline.c call through
 * this table; gpu.h has the contracts, which also say what a NULL or empty argument means: a backend sees no NULL
 * pointers to free and no copies of 0 bytes. */
#include "gpu/fuse.h"
#include "gpu/gpu.h"
#include "gpu/op.h"

struct gpu_backend {
    const char *name;
    void (*describe)(char *out, size_t size); /* one line: the devices found, or why there are none */
    void (*find)(struct gpu_found *found);    /* gpu_find(), into an empty one */
    int (*open)(struct gpu **g, const struct gpu_spec *spec, int rank, struct error *e);
    void (*close)(struct gpu *g);
    size_t (*mem_free)(struct gpu *g);
    bool (*elsewhere)(struct gpu *g, struct gpu_elsewhere *out); /* NULL: all memory is the device's */
    void (*stats)(struct gpu *g, struct gpu_stats *out);         /* NULL: no statistics */
    int (*alloc)(struct gpu *g, void **p, size_t size, struct error *e);
    void (*free)(struct gpu *g, void *p);
    int (*error)(struct gpu *g, struct error *e);
    int (*clear)(struct gpu *g, struct error *e);
    int (*host_alloc)(struct gpu *g, void **p, size_t size, struct error *e);
    void (*host_free)(struct gpu *g, void *p);
    int (*host_register)(struct gpu *g, const void *p, size_t size, struct error *e); /* within one chunk */
    void (*host_unregister)(struct gpu *g, const void *p);
    int (*stream_open)(struct gpu *g, struct gpu_stream **s, const char *name, bool urgent, const _Atomic int *cancel,
                       struct error *e);
    void (*stream_close)(struct gpu_stream *s);
    int (*stream_sync)(struct gpu_stream *s);
    int (*copy)(struct gpu_stream *s, void *dst, const void *src, size_t size, enum gpu_dir dir);
    int (*copy_peer)(struct gpu_stream *s, void *dst, struct gpu *from, const void *src, size_t size);
    int (*fill)(struct gpu_stream *s, void *dst, int byte, size_t size);
    int (*graph_begin)(struct gpu_stream *s);
    int (*graph_end)(struct gpu_stream *s, struct gpu_graph **g);
    int (*graph_run)(struct gpu_graph *g);
    void (*graph_close)(struct gpu_graph *g);
    int (*event_open)(struct gpu *g, struct gpu_event **ev, bool timed, struct error *e);
    void (*event_close)(struct gpu_event *ev);
    int (*event_record)(struct gpu_event *ev, struct gpu_stream *s);
    int (*event_wait)(struct gpu_event *ev, struct gpu_stream *s);
    int (*event_sync)(struct gpu_event *ev);
    bool (*event_is_done)(struct gpu_event *ev);
    double (*event_time)(struct gpu_event *ev);
    double (*event_elapsed)(struct gpu_event *from, struct gpu_event *to);
    int (*timeline_open)(struct gpu *g, struct gpu_timeline **n, struct error *e); /* sets word */
    void (*timeline_close)(struct gpu_timeline *n);
    int (*timeline_signal)(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s);
    int (*timeline_wait)(struct gpu_timeline *n, uint32_t value, struct gpu_stream *s);
    void (*timeline_wake)(struct gpu_timeline *n); /* after the host has changed the value */
    /* Host side: sleeps at most 1 ms, less once the value is reached. The emulated device also aborts the timeline if
     * its writer has failed; CUDA's watching thread does that. */
    void (*timeline_sleep)(struct gpu_timeline *n, uint32_t value);
};
/* Emulations check the order of accesses; this tells them that the host signals a value, or has seen that it is
 * reached. */
#ifdef GPU_TIMELINE_NOTE
void GPU_TIMELINE_NOTE(const void *word, uint32_t value, int signals);
#else
#define GPU_TIMELINE_NOTE(word, value, signals) ((void)0)
#endif
extern const struct gpu_backend gpu_emu;
#ifdef HEARTH_CUDA
extern const struct gpu_backend gpu_cuda;
#endif

struct gpu {
    const struct gpu_backend *b;
    size_t register_chunk; /* host memory is registered in chunks of this size */
    bool joins_ops;        /* its streams have windows */
    bool has_epilogues;    /* set by the backend: OP_EPILOGUE is one launch where that pays */
    _Atomic unsigned n_cleared;
    struct gpu_info info;
};
struct gpu_stream {
    struct op_exec exec; /* first: its address is the stream's executor */
    struct gpu *g;
    const char *name;
    bool is_fp8; /* gpu_stream_set_fp8() */
    /* operations not launched yet; NULL: this stream joins none */
    struct fuse *window;
    /* with a window: launches an operation */
    int (*launch)(struct op_exec *x, enum op_code code, const union op_args *a);
    int (*settle)(struct gpu_stream *s); /* NULL, or launches what the backend keeps back for the next operation */
};
struct gpu_graph {
    struct gpu_stream *s;
};
struct gpu_event {
    struct gpu *g;
};
struct gpu_timeline {
    struct gpu *g;
    _Atomic uint32_t *word; /* [2]: value; non-zero: aborted */
};
/* An abort sets the flag and then adds this to the value, so that every wait for a value in use ends. A writer checks
 * the flag after its store and adds this again: whichever comes last, the value stays above all values in use. */
enum { GPU_TIMELINE_ABORT_STEP = 1 << 30 };
static inline bool gpu_timeline_is_at_least(const struct gpu_timeline *n, uint32_t value) {
    return (int32_t)(atomic_load_explicit(n->word, memory_order_acquire) - value) >= 0;
}
static inline bool gpu_timeline_is_aborted(const struct gpu_timeline *n) { return atomic_load(&n->word[1]) != 0; }
