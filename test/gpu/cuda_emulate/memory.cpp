/* Memory of the emulated devices: one range of addresses, none used twice, so that stale pointers are always detected. Each
 * allocation starts on its own page, and the pages after it stay inaccessible. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>
#include <mutex>

#include "internal.h"

static const size_t PAGE = MEMORY_PAGE, RANGE = MEMORY_RANGE;
enum { BLOCKS = 1 << 20 };
static std::mutex lock;
static size_t n_blocks = 1;
block *memory_blocks[BLOCKS];
uint32_t *memory_pages;
char *memory_base;
static size_t next_free, used[8];
static std::map<const void *, block *> driver_blocks; /* what cudaMalloc gave; the owner may tell of parts */

static void *reserve(size_t size, int prot) {
    void *p = mmap(NULL, size, prot, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) perror("cuda_emulate: mmap"), abort();
    return p;
}
static size_t order_bytes(size_t size) { return (size + ORDER_GRAIN - 1) / ORDER_GRAIN * sizeof(order_shade); }
static void begin() {
    static std::once_flag once;
    std::call_once(once, [] {
        memory_pages = (uint32_t *)reserve(RANGE / PAGE * sizeof *memory_pages, PROT_READ | PROT_WRITE);
        memory_base = (char *)reserve(RANGE, PROT_NONE);
    });
}

const char *memory_check(const void *p, size_t size, int device) {
    return memory_is_device(p) ? memory_wrong(memory_find(p), p, size, device) : "not device memory";
}

const char *memory_order(const void *p, size_t size, bool write) {
    if (!memory_is_device(p)) return host_order(p, size, write);
    const block *b = memory_find(p);
    return b ? order_touch(b->order + ((const char *)p - b->p) / ORDER_GRAIN, p, size, write) : NULL;
}

/* Makes b the allocation of `pages` pages at p; NULL: none has them. */
static bool claim(char *p, size_t pages, block *b) {
    if (b) {
        if (n_blocks == BLOCKS) return false;
        memory_blocks[n_blocks++] = b;
    }
    for (size_t i = 0; i < pages; i++) memory_pages[(size_t)(p - memory_base) / PAGE + i] = b ? (uint32_t)(n_blocks - 1) : 0;
    return true;
}

void *memory_new(size_t size, int device) {
    begin();
    std::lock_guard<std::mutex> hold(lock);
    size_t pages = (size + PAGE - 1) / PAGE;
    if (next_free + (pages + 1) * PAGE > RANGE) return NULL;
    char *p = memory_base + next_free;
    next_free += (pages + 1) * PAGE;
    mprotect(p, pages * PAGE, PROT_READ | PROT_WRITE);
    memset(p, 0xff, pages * PAGE);
    block *b = new block{p, size, device, (shade *)reserve(size * sizeof(shade), PROT_READ | PROT_WRITE),
                         (order_shade *)reserve(order_bytes(size), PROT_READ | PROT_WRITE)};
    if (!claim(p, pages + 1, b)) return NULL;
    driver_blocks[p] = b;
    used[device] += size;
    return p;
}

/* A part of a block becomes an allocation, or ceases to be one. Parts start on a page of their own. Of pinned memory: it has a new owner. */
extern "C" void cuda_emulate_note(void *at, size_t size, int is_live) {
    std::lock_guard<std::mutex> hold(lock);
    char *p = (char *)at;
    auto whole = driver_blocks.upper_bound(p);
    if (!p) return;
    if (!memory_is_device(p)) return order_forget(p, size);
    if (whole == driver_blocks.begin()) return;
    whole--;
    if (const block *old = is_live ? NULL : memory_find(p)) {
        claim(p, (old->size + PAGE - 1) / PAGE, NULL);
        if (old != whole->second) delete old;
    }
    if (!is_live) return;
    const size_t off = (size_t)(p - whole->second->p);
    block *b = new block{p, size, whole->second->device, whole->second->shades + off, whole->second->order + off / ORDER_GRAIN};
    memset(p, 0xff, size);
    memset((void *)b->shades, 0, size * sizeof(shade));
    memset((void *)b->order, 0, order_bytes(size));
    claim(p, (size + PAGE - 1) / PAGE, b);
}

bool memory_delete(void *p) {
    std::lock_guard<std::mutex> hold(lock);
    auto i = driver_blocks.find(p);
    if (i == driver_blocks.end()) return false;
    const block *b = i->second;
    size_t pages = (b->size + PAGE - 1) / PAGE;
    claim((char *)p, pages + 1, NULL);
    mmap(p, pages * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    munmap(b->shades, b->size * sizeof(shade));
    munmap(b->order, order_bytes(b->size));
    used[b->device] -= b->size;
    driver_blocks.erase(i);
    delete b;
    return true;
}
size_t memory_used(int device) {
    std::lock_guard<std::mutex> hold(lock);
    return used[device];
}
