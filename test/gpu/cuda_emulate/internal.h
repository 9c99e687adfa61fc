#pragma once
/* Internal interfaces of the emulated runtime. */
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_emulate.h"

/* The last accesses to a byte: times count barriers, over all launches. A reader may be a thread, a warp's threads
 * (WARP | warp), or many; atomics count as one writer. */
struct shade {
    uint32_t write, read;
    uint16_t writer, reader;
};
enum : uint16_t { ATOMIC = 0x2000, WARP = 0x4000, MANY = 0x8000 };

/* The last accesses of streams to four bytes: the command that wrote them, and commands that have read them since. */
enum { ORDER_GRAIN = 4, ORDER_READERS = 3 };
struct order_shade {
    uint32_t write, read[ORDER_READERS];
};

struct block { /* an allocation of a device */
    char *p;
    size_t size;
    int device;
    shade *shades;
    order_shade *order;
};

/* host.cpp */
bool host_reaches(int device, int other);
int host_device();                             /* of the calling host thread */
int host_setting(const char *name, int value); /* CUDA_EMULATE_name */
void host_delay();                             /* of a host thread that CUDA_EMULATE_LATE names */
int host_shared();                             /* bytes of shared memory a block may have */
bool host_fails(const char *kind);
void host_enqueue(cudaStream_t s, const char *name, std::function<void()> task);
bool host_mapped(const void *p, size_t size);                   /* pinned memory that kernels may touch */
const char *host_order(const void *p, size_t size, bool write); /* memory_order() of pinned memory */
void host_fault(const char *text);                              /* the sticky error of the thread's device; printed */
/* the thread's device had a fault: it runs nothing more */
bool host_lost();
cudaError_t host_error(cudaError_t e); /* kept for cudaGetLastError */
int host_stream_device(cudaStream_t s);
void host_drain_device(int device); /* waits until all streams of the device are empty */

/* memory.cpp; read without its lock */
static const size_t MEMORY_PAGE = 4096, MEMORY_RANGE = (size_t)64 << 30;
extern char *memory_base;
extern uint32_t *memory_pages; /* [MEMORY_RANGE / MEMORY_PAGE] indices of blocks; 0: none */
extern block *memory_blocks[];
/* An address of any device, live or not. */
static inline bool memory_is_device(const void *p) {
    return memory_base && (size_t)((const char *)p - memory_base) < MEMORY_RANGE;
}
/* The live allocation that contains p or ends at it. */
static inline const block *memory_find(const void *p) {
    return memory_is_device(p) ? memory_blocks[memory_pages[(size_t)((const char *)p - memory_base) / MEMORY_PAGE]]
                               : NULL;
}
/* NULL, or the error for a range of b, which is at p, as memory of the device. */
static inline const char *memory_wrong(const block *b, const void *p, size_t size, int device) {
    if (!b) return "not in a live allocation";
    const size_t at = (size_t)((const char *)p - b->p);
    if (at > b->size || size > b->size - at) return "beyond the end of its allocation";
    return device == b->device || host_reaches(device, b->device) ? NULL : "on a device that this one cannot reach";
}
/* NULL, or the error for it as memory of the device */
const char *memory_check(const void *p, size_t size, int device);
/* The running command accesses a range of device memory, or of pinned memory, as a whole: NULL, or the missing wait. */
const char *memory_order(const void *p, size_t size, bool write);
void *memory_new(size_t size, int device);
bool memory_delete(void *p);
size_t memory_used(int device);

/* driver.cpp */
int driver_setting(const char *name, int value); /* CUDA_EMULATE_name, 0 without CUDA_EMULATE_DRIVER */
struct driver_call {                             /* shares the device's context lock while it exists */
    int device;
    bool held, is_alone = false;
    explicit driver_call(int device);
    void exclude(); /* other threads' calls wait from now on; others may have come first */
    ~driver_call();
};
struct driver_alone { /* holds the current device's context lock alone, once the device has drained */
    int device;
    bool held;
    driver_alone(bool drains, const char *what);
    ~driver_alone();
};
void driver_load(const void *kernel); /* at a launch, or when its attributes are read */
struct driver_queue;
driver_queue *driver_queue_of(int device, uint64_t nth); /* of its nth stream; NULL: the stream has its own */
uint64_t driver_queue_take(driver_queue *q);
void driver_queue_begin(driver_queue *q, uint64_t number);
void driver_queue_end(driver_queue *q);

/* order.cpp */
struct order_clock {
    std::vector<uint32_t> at; /* [streams] */
    bool aborted = false;     /* follows a wait that an abort ended */
};
int order_open(); /* of a new stream */
void order_close(int stream);
const order_clock &order_host();               /* of the calling thread */
void order_host_pass(const order_clock &from); /* another host thread had waited for this */
void order_merge(order_clock *to, const order_clock &from);
void order_host_join(const order_clock &from); /* the host has waited for this */
/* the host has waited for all of the stream's commands */
void order_host_sync(int stream);
/* the calling thread runs a command, until order_end() */
void order_begin(int stream, const order_clock &enqueued, const char *name);
void order_end();
order_clock order_now();                  /* of the running command */
void order_join(const order_clock &from); /* the running command has waited for this */
/* the running kernel writes a value, or reads one, and may find the latest */
void order_signal_kernel(const uint32_t *word);
void order_poll_kernel(const uint32_t *word);
void order_wait(const uint32_t *word, uint32_t value);
void order_uploaded(const void *from, size_t size); /* the running command has read this pinned memory */
void order_downloaded(const void *to, size_t size); /* the running command has written it, after all that read it */
/* timelines and uploads in pinned memory that has a new owner, or none */
void order_forget(const void *p, size_t size);
/* An access of the running command; s: of p. NULL, or the error: it does not wait for an earlier access. */
const char *order_touch(order_shade *s, const void *p, size_t size, bool write);

/* device.cpp: one launch at a time runs in the process */
int device_thread();          /* in its block */
uint32_t device_block_time(); /* differs for every block */
int device_shared_limit(const void *kernel);
void device_shared_set(const void *kernel, int bytes);
[[noreturn]] void device_fail(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* inside a kernel */
void device_touch(const void *p, size_t size, bool write, const void *pc);

/* blas.cpp, for cuda_blas.c and its like: dlopen and dlsym of libraries that are part of the emulation */
extern "C" void *cuda_emulate_dlopen(const char *name, int flags);
extern "C" void *cuda_emulate_dlsym(void *so, const char *name);
extern "C" int cuda_emulate_dlclose(void *so);
extern "C" int cuda_emulate_libraries(void); /* for tests: libraries asked for so far */
/* for tests: faults so far, the last one's text; begins anew */
extern "C" int cuda_emulate_faults(char *text, size_t size);
