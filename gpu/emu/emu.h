#pragma once
/* The emulated device, shared by its files. In real time, device memory is host memory and operations run on CPU
 * kernels; in virtual time, addresses are only reserved, no data is touched, and each stream has a clock. */
#include <pthread.h>

#include "gpu/backend.h"
#include "gpu/op_cost.h"

struct emu_block { /* one allocation */
    char *p;
    size_t size, capacity; /* room: bytes of host memory allocated, at least size */
};
struct emu_link {       /* one direction of the bus; seconds on the device's clock */
    double bulk_free_s; /* when the link is free for the next bulk copy */
    double debt_paid_s; /* urgent link time that bulk copies have already paid for */
};
enum emu_link_dir { EMU_LINK_H2D, EMU_LINK_D2H, EMU_LINK_PEER, EMU_LINKS };
/* Virtual time: seconds of link time taken by urgent copies, per stream of a device: a vector clock. It is passed along
 * events and timelines, that is, by whatever orders streams, so the result does not depend on thread timing. */
enum { EMU_LINK_STREAMS = 12 };
struct emu_link_usage {
    double taken_s[EMU_LINKS][EMU_LINK_STREAMS];
};

enum emu_cmd_kind {
    EMU_OP,
    EMU_COPY,
    EMU_PEER,
    EMU_FILL,
    EMU_EVENT_RECORD,
    EMU_EVENT_WAIT,
    EMU_TIMELINE_SIGNAL,
    EMU_TIMELINE_WAIT,
    EMU_STOP,
    EMU_KINDS
};

struct emu {
    struct gpu base;
    struct gpu_spec spec;
    struct op_cost_rates rates;
    bool is_cpu;              /* the CPU, in virtual time */
    bool is_throttled;        /* real time, but operations take at least their modelled time */
    pthread_mutex_t lock;     /* protects all below */
    struct emu_block *blocks; /* by address */
    size_t n_blocks, cap_blocks, used_bytes;
    /* index of the block that a pointer was last found in: the next is often in the same */
    size_t last_found;
    struct emu_block *idle; /* real time: freed blocks kept for reuse, the oldest first */
    /* peak: most bytes allocated at once; used_bytes + idle_bytes never exceed it */
    size_t n_idle, cap_idle, idle_bytes, peak_bytes;
    struct emu_link link[EMU_LINKS];
    struct emu_link_usage link_usage; /* union of all known usage; a new stream starts with it */
    unsigned link_index_mask;         /* bit mask of the stream indexes in use */
    struct gpu_stats stats;
    _Atomic long n_queued;             /* unfinished commands of all streams */
    _Atomic uint64_t n_run[EMU_KINDS]; /* commands enqueued so far */
    pthread_cond_t all_done;           /* n_queued fell to 0 */
    long fault_counts[GPU_FAULT_DIE + 1];
    _Atomic long n_blocking_copies; /* copies that blocked their caller */
    bool is_dead;
    int n_streams;
    struct error error;     /* first failure */
    _Atomic int error_code; /* its code, which streams read before each command without the lock */
};

enum { EMU_EVENT_TIMES = 16 };
struct emu_event {
    struct gpu_event base;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool is_timed;        /* gpu_event_time() may be called */
    _Atomic int n_queued; /* unfinished records and waits */
    uint64_t n_issued, n_done;
    double time[EMU_EVENT_TIMES]; /* the latest records: a wait must not get the time of a later record */
    struct emu_link_usage link_usage[EMU_EVENT_TIMES];
    struct emu *recorder;       /* device of the recording stream */
    struct emu_stream *waiters; /* streams without a thread whose next command waits for a record */
};

struct emu_timeline;
struct emu_copy_args {
    void *dst;
    const void *src;
    struct gpu *from;
    size_t size;
    int byte;
    enum gpu_dir dir;
};
struct emu_event_args {
    struct emu_event *ev;
    uint64_t seq;
};
struct emu_timeline_args {
    struct emu_timeline *n;
    uint32_t value;
};
/* Initialized field by field: operations have up to 4 KB of arguments, most of them 100 bytes. */
struct emu_cmd {
    enum emu_cmd_kind kind;
    double enqueued_s; /* set in the queue: real time when a copy, or a slowed device's operation, was enqueued */
    enum op_code code;
    union {
        union op_args args;
        struct emu_copy_args copy;
        struct emu_event_args event;
        struct emu_timeline_args timeline;
    };
};

struct emu_graph {
    struct gpu_graph base;
    struct emu_cmd *cmds; /* [n] */
    size_t n, cap;
    bool has_failed; /* contains a command that cannot be recorded */
};

enum { EMU_QUEUE = 1024, EMU_SMALL_COPY = 64 << 10 }; /* EMU_SMALL_COPY: a driver copies such pageable memory at once */
struct pool;
struct emu_stream {
    struct gpu_stream base;
    struct emu *g;
    const _Atomic int *cancel;
    bool urgent;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work_cond, room_cond; /* a command was enqueued; head reached wake_head */
    struct emu_cmd *queue;               /* [EMU_QUEUE] */
    uint64_t head, tail;                 /* run, enqueued */
    uint64_t wake_head;                  /* signal room_cond at this head; UINT64_MAX: no thread waits */
    /* has failed, or dropped work of a failed device; remains set when another thread clears the device */
    _Atomic int has_failed;
    double clock_s;                   /* virtual clock; only its own thread uses it */
    struct emu_link_usage link_usage; /* only its own thread uses it */
    int link_index;                   /* its index in emu_link_usage; several streams may share the last */
    /* real time: modelled end of the previous command; 0: the stream has waited since */
    double due_s;
    struct emu_graph *graph; /* recording: commands go there; NULL: execute */
    struct pool *pool;       /* opened by the first operation; only its own thread uses it */
    struct exec *cpu;
    char *contiguous[2]; /* scratch: contiguous copies of planes stored in blocks */
    size_t contiguous_size[2];
    unsigned lag_us; /* microseconds of TEST_LIMIT_STREAM_LAG_US, or 0 */
    /* false in virtual time: emu_virtual.c runs the commands, with the lock held instead of on its own thread */
    bool has_thread;
    /* Without a thread: */
    struct emu_stream *next_woken; /* in a list of waiters, or of streams that were woken */
    /* is in such a list: set with the lock and that of the waiters held, cleared with the lock held */
    bool is_linked;
    struct emu_stream *next_open, **open_link;
};

double emu_clock(void);
void emu_link_usage_merge(struct emu_link_usage *to, const struct emu_link_usage *from); /* element-wise maximum */
void emu_stream_test_lag(const struct emu_stream *s);                                    /* by its own thread only */
/* Returns true when this, the nth event of a kind, must fail. Also counts towards GPU_FAULT_DIE. */
bool emu_inject_fault(struct emu *g, enum gpu_fault kind);
void emu_fail(struct emu *g, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Fails the stream as well: its owner sees the failure even if another thread clears the device. */
void emu_stream_fail(struct emu_stream *s, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int emu_error_code(struct emu *g); /* 0, or the code of the first failure */
bool emu_owns(struct emu *g, const void *p, size_t size);
/* the caller holds the lock; g is not the CPU */
bool emu_owns_locked(struct emu *g, const void *p, size_t size);
/* distinguishes pinned from pageable memory */
static inline bool emu_tracks_pinned(const struct emu *g) { return g->spec.nopin || g->spec.nomap; }
/* allocated by any device's host_alloc, or registered */
bool emu_is_pinned(const void *p, size_t size);

int emu_stream_open(struct gpu *g, struct gpu_stream **s, const char *name, bool urgent, const _Atomic int *cancel,
                    struct error *e);
void emu_stream_close(struct gpu_stream *s);
int emu_stream_sync(struct gpu_stream *s);
int emu_copy(struct gpu_stream *s, void *dst, const void *src, size_t size, enum gpu_dir dir);
int emu_copy_peer(struct gpu_stream *s, void *dst, struct gpu *from, const void *src, size_t size);
int emu_fill(struct gpu_stream *s, void *dst, int byte, size_t size);
int emu_graph_begin(struct gpu_stream *s);
int emu_graph_end(struct gpu_stream *s, struct gpu_graph **g);
int emu_graph_run(struct gpu_graph *g);
void emu_graph_close(struct gpu_graph *g);
int emu_event_open(struct gpu *g, struct gpu_event **ev, bool timed, struct error *e);
void emu_event_close(struct gpu_event *ev);
int emu_event_record(struct gpu_event *ev, struct gpu_stream *s);
int emu_event_wait(struct gpu_event *ev, struct gpu_stream *s);
int emu_event_sync(struct gpu_event *ev);
bool emu_event_is_done(struct gpu_event *ev);
double emu_event_time(struct gpu_event *ev);
double emu_event_elapsed(struct gpu_event *from, struct gpu_event *to);
void emu_stream_run(struct emu_stream *s, const struct emu_cmd *c); /* one command */
void emu_stream_count_done(struct emu_stream *s);                   /* a command of the queue has run */
/* with the lock held; waits while the queue is full */
void emu_stream_push(struct emu_stream *s, const struct emu_cmd *c);
/* with the lock held: until the first `head` commands have run */
void emu_stream_wait_for_head(struct emu_stream *s, uint64_t head);
bool emu_stream_drops(struct emu_stream *s);                           /* cancelled, or its device has failed */
int emu_stream_enqueue(struct emu_stream *s, const struct emu_cmd *c); /* 0, or why the stream will drop it */

/* Streams in virtual time, which have no threads. Called without locks, except emu_virtual_add_woken(). */
void emu_virtual_open(struct emu_stream *s);
void emu_virtual_close(struct emu_stream *s); /* waits for its commands */
void emu_virtual_enqueue(struct emu_stream *s, const struct emu_cmd *c);
/* with the lock of the waiters held: takes them all; run them when it is released */
void emu_virtual_add_woken(struct emu_stream **waiters);
void emu_virtual_run_woken(void);
/* runs what a cancel or a failed device has released, which wakes no stream */
void emu_virtual_poll(void);

/* Computes one operation on CPU kernels. Returns the kernel's result. */
int emu_compute(struct exec *cpu, enum op_code code, const union op_args *a);
/* Replaces an operation's op_address by what it says. In virtual time it is not read, and the call's own values are
 * used. Returns ERR_RUNTIME, with the stream failed, if it is not memory of the device. In emu_blocks.c, like the
 * next. */
int emu_read_places(struct emu_stream *s, enum op_code code, union op_args *u);
/* Computes an operation on planes stored in blocks, which the kernels do not support. */
int emu_compute_blocks(struct emu_stream *s, enum op_code code, const union op_args *a);
