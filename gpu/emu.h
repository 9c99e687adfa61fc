#pragma once
/* The emulated device, shared by its files. In real time memory is host memory and operations compute on CPU kernels;
 * in virtual time addresses are only reserved, nothing is touched, and streams carry a clock. */
#include <pthread.h>

#include "gpu/backend.h"
#include "gpu/cost.h"

struct emu_block { /* one allocation */
    char *p;
    size_t size, room; /* room: bytes that it has of the host's memory, at least size */
};
struct emu_link {           /* one direction of the bus; seconds on the device's clock */
    double bulk_free, paid; /* paid: of what urgent copies took, by bulk copies */
};
enum emu_way { EMU_TO, EMU_FROM, EMU_BETWEEN, EMU_WAYS };
/* Virtual time: seconds that urgent copies of each of a device's streams have taken of its links, as far as somebody was told. Told it is by what
 * orders streams, so that it does not hang on which thread came first. */
enum { EMU_TELLERS = 12 };
struct emu_told {
    double taken[EMU_WAYS][EMU_TELLERS];
};

struct emu {
    struct gpu base;
    struct gpu_spec spec;
    struct cost_rates machine;
    bool host;                /* the processor, in virtual time */
    bool slowed;              /* real time, but operations last as long as the machine says */
    pthread_mutex_t lock;     /* all below */
    struct emu_block *blocks; /* by address */
    size_t n_blocks, cap_blocks, used;
    struct emu_block *idle;                    /* real time: what was given back and waits to be given out again, the oldest first */
    size_t n_idle, cap_idle, idle_bytes, peak; /* peak: the most that was given out at once; together they never have more */
    struct emu_link link[EMU_WAYS];
    struct emu_told all; /* what there is to know; a stream that is opened knows it */
    unsigned tellers;    /* bit of each that an open stream has */
    struct gpu_used taken;
    _Atomic long queued;     /* commands of all streams that none has come to the end of */
    pthread_cond_t all_done; /* queued fell to 0 */
    long count[GPU_FAULT_DIE + 1];
    _Atomic long held; /* copies that held their caller */
    bool dead;
    int n_streams;
    struct error error; /* first failure */
};

enum { EMU_TIMES = 16 };
struct emu_event {
    struct gpu_event base;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool timed;         /* somebody may ask when it passed */
    _Atomic int queued; /* records and waits that streams have not come to the end of */
    uint64_t issued, done;
    double time[EMU_TIMES]; /* of the latest records: who waits for one must not be given a later one's time */
    struct emu_told told[EMU_TIMES];
    struct emu *of; /* whose stream recorded it */
};

struct emu_number;
enum emu_kind { EMU_OP, EMU_COPY, EMU_PEER, EMU_FILL, EMU_RECORD, EMU_WAIT, EMU_WRITE, EMU_AWAIT, EMU_STOP };
struct emu_cmd {
    enum emu_kind kind;
    double at; /* real time, of copies and of a slowed device's operations: when it was enqueued */
    enum op_code code;
    union {
        union op_args args;
        struct {
            void *dst;
            const void *src;
            struct gpu *from;
            size_t size;
            int byte;
            enum gpu_dir dir;
        } copy;
        struct {
            struct emu_event *ev;
            uint64_t seq;
        } event;
        struct {
            struct emu_number *n;
            uint32_t value;
        } number;
    };
};

struct emu_graph {
    struct gpu_graph base;
    struct emu_cmd *cmds; /* [n] */
    size_t n, cap;
    bool failed; /* something that cannot be recorded */
};

enum { EMU_QUEUE = 1024, EMU_SMALL = 64 << 10 }; /* of a copy: a driver takes such a piece at once, wherever it lies */
struct pool;
struct emu_stream {
    struct gpu_stream base;
    struct emu *g;
    const _Atomic int *cancel;
    bool urgent;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, room; /* work came; a place fell free, or all is done */
    struct emu_cmd *queue;     /* [EMU_QUEUE] */
    uint64_t head, tail;       /* run, enqueued */
    _Atomic int failed;        /* its work, or it dropped work of a device that failed; stays when the device is cleared by others */
    double t;                  /* virtual clock; the thread's own */
    struct emu_told told;      /* and this */
    int teller;                /* its place there; the last may be several streams' */
    double due;                /* real time: when what came just before should have ended; 0: the stream waited for somebody since */
    struct emu_graph *graph;   /* what is enqueued goes there: it is being recorded; NULL: it runs */
    struct pool *pool;         /* opened by the first operation; the thread's own */
    struct exec *cpu;
    char *joined[2]; /* rows of planes that lay in blocks */
    size_t joined_size[2];
    unsigned lag; /* LIMIT_LAG, or 0 */
};

double emu_clock(void);
void emu_tell(struct emu_told *to, const struct emu_told *from); /* what either knows */
void emu_be_late(const struct emu_stream *s);                    /* its thread alone */
/* True when the nth of a kind must fail; also counts towards GPU_FAULT_DIE. */
bool emu_fault(struct emu *g, enum gpu_fault kind);
void emu_fail(struct emu *g, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* As a stream works: its own owner learns of it whoever clears the device meanwhile. */
void emu_stream_fail(struct emu_stream *s, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int emu_state(struct emu *g); /* 0, or the code of the first failure */
bool emu_owns(struct emu *g, const void *p, size_t size);
static inline bool emu_tells(const struct emu *g) { return g->spec.nopin || g->spec.nomap; } /* pinned memory from other */
bool emu_pins(const void *p, size_t size);                                                   /* host memory of any device's host_alloc, or registered */

int emu_stream_open(struct gpu *g, struct gpu_stream **s, const char *name, bool urgent, const _Atomic int *cancel, struct error *e);
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
bool emu_event_done(struct gpu_event *ev);
double emu_event_time(struct gpu_event *ev);
/* emu_stream.c */
bool emu_drops(struct emu_stream *s);                           /* cancelled, or its device has failed */
int emu_enqueue(struct emu_stream *s, const struct emu_cmd *c); /* 0, or why the stream will drop it */

/* Computes one operation on CPU kernels. Returns 0 or what the kernel returned. */
int emu_compute(struct exec *cpu, enum op_code code, const union op_args *a);
/* The same of planes whose rows lie in blocks, which the kernels do not know. emu_blocks.c */
int emu_compute_blocks(struct emu_stream *s, enum op_code code, const union op_args *a);
