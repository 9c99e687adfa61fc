/* Rules by which a driver blocks its callers. With CUDA_EMULATE_DRIVER=1 they all hold; CUDA_EMULATE_name=0 takes one back. An H100 with driver
 * 580 was asked (test/bench/gpu.md): no rule is laxer than it, some are stricter, as other drivers may be.
 *  - Calls on a device share its context lock. A free, the first launch of a kernel (LAZY; 1: of its file, as on the H100; 2: of itself, the
 *    default), an allocation (MALLOC_WAITS; on the H100 it returns) and a cuBLAS handle made or destroyed (BLAS_WAITS) hold it alone until the
 *    device has drained. The first launch with a stack of more than 1 KiB does so, too: here no kernel has a stack, and cuda_sass looks for one.
 *  - A device has CUDA_DEVICE_MAX_CONNECTIONS hardware queues (8, at most 32; QUEUES=0: one for each stream). Streams are dealt to them in
 *    the order of their creation, and a command waits for the earlier ones of its queue. On the H100 none of 40 streams did.
 *  - A stream holds PENDING commands (1024) that have not begun; a call that enqueues another waits, with the context lock for itself alone.
 *  - A copy of more than 64 KiB from memory that is not pinned waits for its stream (PAGEABLE). On the H100 one of 64 KiB and 4 bytes does not.
 *  - An hour passes after the first event (HOUR). */
#include <stdio.h>
#include <stdlib.h>

#include <condition_variable>
#include <map>
#include <set>
#include <shared_mutex>

#include "internal.h"

enum { DEVICES = 8, QUEUES = 32 };

int driver_setting(const char *name, int value) {
    static const bool on = host_setting("DRIVER", 0);
    return on ? host_setting(name, value) : 0;
}

static std::shared_mutex context[DEVICES];
static thread_local int inside; /* calls made by a call do not lock again */

driver_call::driver_call(int device) : device(device), held(driver_setting("LOCK", 1) && !inside++) {
    if (held) context[device].lock_shared();
}
void driver_call::exclude() {
    if (!held || is_alone) return;
    context[device].unlock_shared();
    context[device].lock();
    is_alone = true;
}
driver_call::~driver_call() {
    if (driver_setting("LOCK", 1)) inside--;
    if (is_alone) context[device].unlock();
    else if (held) context[device].unlock_shared();
}
driver_alone::driver_alone(bool drains, const char *what) : device(host_device()), held(driver_setting("LOCK", 1) && !inside++) {
    static const bool tell = host_setting("TELL", 0);
    if (!held) return;
    context[device].lock();
    if (!drains) return;
    if (tell) fprintf(stderr, "cuda_emulate: %s waits for device %d\n", what, device);
    host_drain_device(device);
    if (tell) fprintf(stderr, "cuda_emulate: %s waited\n", what);
}
driver_alone::~driver_alone() {
    if (driver_setting("LOCK", 1)) inside--;
    if (held) context[device].unlock();
}

/* Kernels and the files that contain them, registered before main() as nvcc's code does. */
static std::map<const void *, const void *> &files() {
    static std::map<const void *, const void *> all;
    return all;
}
extern "C" void __cudaRegisterFunction(void **file, const char *kernel, char *, const char *, int, void *, void *, void *, void *, int *) {
    files()[kernel] = file;
}
void driver_load(const void *kernel) {
    static std::mutex lock;
    static std::set<const void *> loaded[DEVICES];
    const int lazy = driver_setting("LAZY", 2);
    if (!lazy) return;
    const void *part = lazy == 1 ? files()[kernel] : kernel;
    {
        std::lock_guard<std::mutex> hold(lock);
        if (!loaded[host_device()].insert(part).second) return;
    }
    driver_alone alone(true, "the first launch of a kernel");
}

/* Hardware queues: commands take a number when they are enqueued and run in the order of the numbers. */
struct driver_queue {
    std::mutex lock;
    std::condition_variable changed;
    uint64_t given = 0, served = 0;
};
driver_queue *driver_queue_of(int device, uint64_t nth) {
    static driver_queue queues[DEVICES][QUEUES];
    const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    int n = text ? atoi(text) : 8;
    if (!driver_setting("QUEUES", 1)) return NULL;
    return &queues[device][nth % (uint64_t)(n < 1 ? 1 : n > QUEUES ? QUEUES : n)];
}
uint64_t driver_queue_take(driver_queue *q) {
    std::lock_guard<std::mutex> hold(q->lock);
    return q->given++;
}
void driver_queue_begin(driver_queue *q, uint64_t number) {
    std::unique_lock<std::mutex> hold(q->lock);
    q->changed.wait(hold, [=] { return q->served == number; });
}
void driver_queue_end(driver_queue *q) {
    std::lock_guard<std::mutex> hold(q->lock);
    q->served++;
    q->changed.notify_all();
}
