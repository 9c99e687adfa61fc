/* Launches: runs blocks one after another, their threads as fibers, and checks every access. Not itself instrumented. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <vector>

#include "internal.h"

enum { THREADS = 1024, STACK = 128 << 10, ARENA = 256 << 10, PARAMETERS = 4096, SLOT = CUDA_EMULATE_SLOT };
enum { STAGGER = 320 }; /* so that the stacks of a warp use different cache lines */
enum state : uint8_t { READY, AT_WARP, AT_BLOCK, DONE };

/* GCC's own setjmp() saves three registers; the compiler saves others where they are in use. */
struct jump {
    void *saved[5];
};
#define SET_JUMP(j) __builtin_setjmp((j).saved)
[[noreturn]] __attribute__((noinline)) static void jump_to(jump *j) { __builtin_longjmp(j->saved, 1); }
struct fiber {
    jump here, start; /* where it waits; where its function begins */
    bool is_made;
    int line;
};
struct warp {
    int lanes, meeting, turn, line; /* living fibers; those at the warp's meeting point, and the slots in use there */
    unsigned mask, arrived;
    size_t size;
    bool order; /* __syncwarp, which orders memory too */
    uint32_t ordered;
    char slots[2][32 * SLOT];
};
struct site { /* a shared variable of the running block */
    const void *key;
    char *p;
};

struct span { /* of time: a block's accesses from its beginning to a fence */
    uint32_t from, to;
};

/* The engine: all state of the running launch. */
static std::mutex engine_lock;
static thread_local bool inside; /* a fiber runs on this host thread */
static struct {
    const char *name;
    dim3 grid, block;
    uint3 at;
    void (*call)(void *);
    size_t args, dynamic, statics, place; /* place: end of the last shared variable */
    int device, threads, current, alive, waiting, barrier_line;
    uint32_t now, launched, began, ordered; /* time; start of the launch, of the block and of the block's last barrier */
    jump scheduler;
    fiber fibers[THREADS];
    state states[THREADS];
    bool fresh[THREADS]; /* not run in this block yet */
    int lane, turn, step; /* the running warp's lanes: (turn + lane * step) % 32 */
    warp warps[THREADS / 32];
    std::vector<site> sites;
    uint32_t fences[THREADS]; /* time of a thread's last __threadfence(), which orders what its block did before */
    int *taken[THREADS];      /* the counter that a thread has changed since, after another fence */
    std::map<int *, std::vector<span>> tickets; /* counters of this launch: what blocks released by changing them after a fence */
    std::vector<span> acquired; /* what the running block may see of others: of counters that it changed, and then fenced */
    bool failed, again;
    char why[400];
    uint64_t seed, random;
} e;
static char *stacks, *arena, *parameters;
static uint8_t *owned; /* [ARENA] 1: belongs to a variable */
static shade *arena_shades;
extern char __executable_start, _end;

static void begin() {
    static std::once_flag once;
    std::call_once(once, [] {
        auto map = [](size_t n) {
            void *p = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
            if (p == MAP_FAILED) perror("cuda_emulate: mmap"), abort();
            return (char *)p;
        };
        stacks = map((size_t)THREADS * STACK);
        arena = map(ARENA);
        parameters = map(PARAMETERS);
        owned = (uint8_t *)map(ARENA);
        arena_shades = (shade *)map(ARENA * sizeof(shade));
        e.seed = (uint64_t)host_setting("SEED", 0);
        e.random = e.seed * 0x9e3779b97f4a7c15ull + 1;
        e.now = 1;
    });
}
static uint32_t rnd(uint32_t n) {
    e.random = e.random * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(e.random >> 33) % n;
}

/* Failing: returns to the scheduler, which drops the fibers. */
static uint3 thread_at(int t) {
    unsigned u = (unsigned)t;
    return {u % e.block.x, u / e.block.x % e.block.y, u / e.block.x / e.block.y};
}
static void note(const char *fmt, va_list ap) {
    uint3 t = thread_at(e.current);
    int n = snprintf(e.why, sizeof e.why, "%s, block (%u, %u, %u), thread (%u, %u, %u): ", e.name, e.at.x, e.at.y, e.at.z, t.x, t.y, t.z);
    vsnprintf(e.why + n, sizeof e.why - (size_t)n, fmt, ap);
    e.failed = true;
}
void device_fail(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(fmt, ap);
    va_end(ap);
    inside = false;
    jump_to(&e.scheduler);
}
static void fail_outside(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    note(fmt, ap);
    va_end(ap);
}

/* Accesses. */
static inline bool passed(uint32_t time, uint16_t who, int me, bool shared) { /* whether an earlier access is ordered before one of mine now */
    if (time < e.launched || (time >= e.began && time < e.ordered)) return true;
    if (time < e.began) { /* another block of this launch: its shared memory is not visible to this one */
        for (size_t i = 0; !shared && i < e.acquired.size(); i++)
            if (time >= e.acquired[i].from && time <= e.acquired[i].to) return true;
        return shared;
    }
    int w = who & WARP ? who & (WARP - 1) : who / 32;
    return who == me || (who != MANY && w == me / 32 && time < e.warps[me / 32].ordered);
}
[[noreturn]] static void race(const char *kind, const void *p, uint16_t who, uint32_t time, const void *pc) {
    const char *where = time < e.began ? "another block" : "this block";
    device_fail("race, %s at %p with thread %d of %s and no barrier between (pc %p)", kind, p,
                who & MANY ? -1 : who & WARP ? (who & (WARP - 1)) * 32 : who, where, pc);
}
/* Records an access. Whether the history changed. */
static inline bool shade_touch(shade *s, const void *p, int me, bool shared, bool write, const void *pc) {
    const shade was = *s;
    if (shared && !write && was.write < e.began) device_fail("read of shared memory at %zu that was not written (pc %p)", (size_t)((const char *)p - arena), pc);
    if (!passed(was.write, was.writer, me, shared)) race(write ? "write and write" : "read after write", p, was.writer, was.write, pc);
    if (write) {
        if (!passed(was.read, was.reader, me, shared)) race("write after read", p, was.reader, was.read, pc);
        s->write = e.now;
        s->writer = (uint16_t)me;
        return true;
    }
    uint32_t read = e.now;
    uint16_t reader = (uint16_t)me;
    if (was.reader != me && was.read >= e.launched && !passed(was.read, was.reader, me, shared)) {
        int w = was.reader & WARP ? was.reader & (WARP - 1) : was.reader / 32;
        bool same = was.reader != MANY && w == me / 32 && was.read >= e.began;
        if (was.read < e.began) read = was.read; /* a reader of another block remains recorded */
        reader = same ? (uint16_t)(WARP | w) : (uint16_t)MANY;
    }
    if (read == was.read && reader == was.reader) return false;
    s->read = read;
    s->reader = reader;
    return true;
}
/* Whether bytes s[0] .. s[size - 1] have one history, as those of a number mostly have. */
static inline bool same_shades(const shade *s, size_t size) {
    static_assert(sizeof *s == 12, "three words");
    const char *p = (const char *)s;
    const size_t bytes = (size - 1) * sizeof *s;
    uint64_t differ = 0, a, b;
    uint32_t c, d;
    size_t i = 0;
    for (; i + sizeof a <= bytes; i += sizeof a) memcpy(&a, p + i, sizeof a), memcpy(&b, p + i + sizeof *s, sizeof b), differ |= a ^ b;
    if (i < bytes) memcpy(&c, p + i, sizeof c), memcpy(&d, p + i + sizeof *s, sizeof d), differ |= c ^ d;
    return !differ;
}
static inline void shades_touch(shade *s, const void *p, size_t size, bool shared, bool write, const void *pc) {
    if (!same_shades(s, size))
        for (size_t i = 0; i < size; i++) shade_touch(s + i, p, e.current, shared, write, pc);
    else if (shade_touch(s, p, e.current, shared, write, pc))
        for (size_t i = 1; i < size; i++) s[i] = s[0];
}

/* Inline, since `size` and `write` are mostly constants. */
static inline __attribute__((always_inline)) void touch(const void *p, size_t size, bool write, const void *pc) {
    const char *kind = write ? "write" : "read";
    size_t at = (size_t)((const char *)p - stacks);
    if (at < (size_t)THREADS * STACK) return;
    at = (size_t)((const char *)p - arena);
    if (at < ARENA) {
        for (size_t i = 0; i < size; i++)
            if (at + i >= ARENA || !owned[at + i]) device_fail("%s of %zu bytes of shared memory at %zu, outside its variables (pc %p)", kind, size, at, pc);
        shades_touch(arena_shades + at, p, size, true, write, pc);
        return;
    }
    if (memory_is_device(p)) {
        const block *b = memory_find(p);
        const char *wrong = memory_wrong(b, p, size, e.device);
        if (wrong) device_fail("%s of %zu bytes at %p: %s (pc %p)", kind, size, p, wrong, pc);
        shades_touch(b->shades + ((const char *)p - b->p), p, size, false, write, pc);
        if ((wrong = order_touch(b->order + ((const char *)p - b->p) / ORDER_GRAIN, p, size, write))) device_fail("%s (pc %p)", wrong, pc);
        return;
    }
    at = (size_t)((const char *)p - parameters);
    if (at < e.args && size <= e.args - at && !write) return;
    if (!write && (const char *)p >= &__executable_start && (const char *)p < &_end) return; /* constants */
    if (host_mapped(p, size)) { /* the host may write there at any time */
        if (size == 4) write ? order_signal_kernel((const uint32_t *)p) : order_poll_kernel((const uint32_t *)p);
        return;
    }
    device_fail("%s of %zu bytes of host memory at %p (pc %p)", kind, size, p, pc);
}
void device_touch(const void *p, size_t size, bool write, const void *pc) {
    if (size) touch(p, size, write, pc);
}
/* Functions that the compiler calls. */
#define ACCESS(n)                                                                                                                          \
    extern "C" void __tsan_read##n(void *p) {                                                                                              \
        if (!inside) return;                                                                                                               \
        if ((uintptr_t)p % n) device_fail("read of %d bytes at %p, not aligned (pc %p)", n, p, __builtin_return_address(0));               \
        touch(p, n, false, __builtin_return_address(0));                                                                            \
    }                                                                                                                                      \
    extern "C" void __tsan_write##n(void *p) {                                                                                             \
        if (!inside) return;                                                                                                               \
        if ((uintptr_t)p % n) device_fail("write of %d bytes at %p, not aligned (pc %p)", n, p, __builtin_return_address(0));              \
        touch(p, n, true, __builtin_return_address(0));                                                                             \
    }                                                                                                                                      \
    extern "C" void __tsan_unaligned_read##n(void *p) { if (inside) touch(p, n, false, __builtin_return_address(0)); }              \
    extern "C" void __tsan_unaligned_write##n(void *p) { if (inside) touch(p, n, true, __builtin_return_address(0)); }
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
extern "C" void __tsan_read_range(void *p, size_t n) { if (inside) device_touch(p, n, false, __builtin_return_address(0)); }
extern "C" void __tsan_write_range(void *p, size_t n) { if (inside) device_touch(p, n, true, __builtin_return_address(0)); }
extern "C" void __tsan_init(void) {}
extern "C" void __tsan_func_entry(void *) {}
extern "C" void __tsan_func_exit(void *) {}
extern "C" void __tsan_vptr_update(void *, void *) {}

/* Threads. */
/* The next thread of the running warp that can run, in this round over its lanes; -1: none. Threads that the block lacks are DONE. */
static int next_lane(int w) {
    while (e.lane < 32) {
        const int t = w * 32 + ((e.turn + e.lane++ * e.step) & 31);
        if (e.states[t] == READY) return t;
    }
    return -1;
}
/* Goes to the next lane of the warp; to the scheduler when none can go on, or when its fiber must be made first. */
[[noreturn]] static void leave() {
    const int next = next_lane((int)((unsigned)e.current / 32));
    if (next < 0 || !e.fibers[next].is_made) {
        e.lane -= next >= 0;
        inside = false;
        jump_to(&e.scheduler);
    }
    const bool fresh = e.fresh[next];
    e.current = next, e.fresh[next] = false;
    jump_to(fresh ? &e.fibers[next].start : &e.fibers[next].here);
}
/* A macro: each return through a frame that another fiber entered costs a mispredicted branch. */
#define YIELD(st, line_)                                      \
    do {                                                      \
        fiber *f_ = &e.fibers[e.current];                     \
        e.states[e.current] = st, f_->line = line_;           \
        if (!SET_JUMP(f_->here)) leave();                     \
    } while (0)
static void release_block() {
    for (int t = 0; t < e.threads; t++)
        if (e.states[t] == AT_BLOCK) e.states[t] = READY;
    e.waiting = 0;
    e.ordered = ++e.now;
}
static void fiber_main() {
    (void)SET_JUMP(e.fibers[e.current].start); /* its next launch starts here: to make a context takes system calls */
    e.call(parameters);
    int t = e.current;
    e.states[t] = DONE;
    e.warps[t / 32].lanes--;
    if (--e.alive && e.waiting == e.alive) release_block();
    leave();
}
static ucontext_t main_context, new_context;
/* Runs thread t, and then others of its warp, until leave() returns. */
static void resume(int t) {
    const bool fresh = e.fresh[t];
    e.current = t, e.fresh[t] = false;
    if (SET_JUMP(e.scheduler)) return;
    inside = true;
    if (!fresh) jump_to(&e.fibers[t].here);
    if (e.fibers[t].is_made) jump_to(&e.fibers[t].start);
    e.fibers[t].is_made = true;
    getcontext(&new_context);
    new_context.uc_stack.ss_sp = stacks + (size_t)t * STACK;
    new_context.uc_stack.ss_size = STACK - (size_t)t % 32 * STAGGER;
    new_context.uc_link = NULL;
    makecontext(&new_context, fiber_main, 0);
    swapcontext(&main_context, &new_context);
}

/* A kernel that polls would block the only engine: it returns to its stream and starts again. So it may not have done anything yet, and
 * must have one thread. */
extern "C" void cuda_emulate_nanosleep(void) {
    if (e.threads != 1 || e.grid.x * e.grid.y * e.grid.z != 1) device_fail("__nanosleep in a launch of many threads");
    e.again = true;
    e.states[0] = DONE;
    inside = false;
    jump_to(&e.scheduler);
}
extern "C" void cuda_emulate_fence(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
extern "C" uint3 cuda_emulate_thread(void) { return thread_at(e.current); }
extern "C" uint3 cuda_emulate_block(void) { return e.at; }
extern "C" uint3 cuda_emulate_block_dim(void) { return {e.block.x, e.block.y, e.block.z}; }
extern "C" uint3 cuda_emulate_grid_dim(void) { return {e.grid.x, e.grid.y, e.grid.z}; }
extern "C" int cuda_emulate_lane(void) { return e.current % 32; }
int device_thread() { return e.current; }
uint32_t device_block_time() { return e.began; }

extern "C" void cuda_emulate_sync(int line) {
    if (!e.waiting++) e.barrier_line = line;
    else if (e.barrier_line != line) device_fail("__syncthreads of line %d, others wait at that of line %d", line, e.barrier_line);
    if (e.waiting == e.alive) {
        release_block();
        return;
    }
    YIELD(AT_BLOCK, line);
}

static const char *meet(unsigned mask, const void *mine, size_t size, int line, bool order) {
    const unsigned me = (unsigned)e.current, lane = me % 32;
    warp *w = &e.warps[me / 32];
    if (!(mask >> lane & 1)) device_fail("line %d: a lane that is not in its own mask %08x", line, mask);
    if (!w->arrived) w->mask = mask, w->line = line, w->size = size, w->order = order;
    if (w->mask != mask || w->line != line || w->size != size || w->order != order)
        device_fail("line %d with mask %08x, other lanes are at line %d with %08x", line, mask, w->line, w->mask);
    char *slots = w->slots[w->turn];
    if (size == 4) memcpy(slots + lane * SLOT, mine, 4);
    else memcpy(slots + lane * SLOT, mine, size);
    w->arrived |= 1u << lane;
    if (w->arrived == mask) { /* the others read theirs later: two alternating sets of slots keep the values */
        w->arrived = 0;
        w->turn = !w->turn;
        if (order) w->ordered = ++e.now;
        for (unsigned t = me - lane; t < me - lane + 32; t++)
            if (e.states[t] == AT_WARP) e.states[t] = READY;
        return slots;
    }
    YIELD(AT_WARP, line);
    return slots;
}
extern "C" void cuda_emulate_syncwarp(unsigned mask, int line) {
    char none = 0;
    meet(mask, &none, 1, line, true);
}
extern "C" const char *cuda_emulate_meet(unsigned mask, const void *mine, size_t size, int line) {
    if (size > SLOT) device_fail("a meeting of %zu bytes", size);
    const char *out = meet(mask, mine, size, line, false);
    return out;
}

/* Shared memory. Variables are separated, so that overruns are detected; dynamic memory is aligned to 16 bytes only. */
enum { APART = 64, DYNAMIC = 64 << 10 };
extern "C" void *cuda_emulate_shared(const void *key, size_t size, size_t align) {
    for (const site &s : e.sites)
        if (s.key == key) return s.p;
    size_t at = (e.place + APART + align - 1) / align * align;
    e.place = at + size;
    e.statics = (e.statics + align - 1) / align * align + size;
    if (e.statics > 48 << 10 || e.place > DYNAMIC) device_fail("%zu bytes of static shared memory", e.statics);
    if (e.statics + e.dynamic > (size_t)host_shared()) device_fail("%zu bytes of shared memory", e.statics + e.dynamic);
    memset(arena + at, 0xff, size);
    memset(owned + at, 1, size);
    e.sites.push_back({key, arena + at});
    return arena + at;
}
extern "C" void *cuda_emulate_shared_dynamic(size_t align) {
    if (!e.dynamic) device_fail("dynamic shared memory was not asked for");
    if (align > 16) device_fail("dynamic shared memory aligned to %zu", align);
    return arena + DYNAMIC + 16;
}

/* Atomics are ordered with each other, not with other accesses. */
static void touch_atomic(void *p, const void *pc) {
    size_t at = (size_t)((char *)p - arena);
    if ((uintptr_t)p % 4) device_fail("atomic at %p, not aligned (pc %p)", p, pc);
    const char *wrong = at < ARENA ? (owned[at] && owned[at + 3] ? NULL : "outside its variables") : memory_check(p, 4, e.device);
    if (wrong) device_fail("atomic at %p: %s (pc %p)", p, wrong, pc);
    shade *s = at < ARENA ? arena_shades + at : memory_find(p)->shades + ((char *)p - memory_find(p)->p);
    if (at < ARENA && s->write < e.began) device_fail("atomic on shared memory that was not written (pc %p)", pc);
    if (at >= ARENA && (wrong = memory_order(p, 4, true))) device_fail("%s (pc %p)", wrong, pc);
    for (int i = 0; i < 4; i++, s++) {
        if (s->writer != ATOMIC && !passed(s->write, s->writer, e.current, at < ARENA)) race("atomic after write", p, s->writer, s->write, pc);
        if (!passed(s->read, s->reader, e.current, at < ARENA)) race("atomic after read", p, s->reader, s->read, pc);
        s->write = e.now;
        s->writer = ATOMIC;
    }
}
/* A block that changes a counter after a fence releases what it did before the fence; one that fences after it acquires what earlier blocks released. */
static void take_ticket(int *p) {
    const int me = e.current;
    if (e.fences[me] < e.began || (size_t)((char *)p - arena) < ARENA) return;
    e.taken[me] = p;
    e.tickets[p].push_back({e.began, e.fences[me]});
}
extern "C" void cuda_emulate_threadfence(void) {
    const int me = e.current;
    e.fences[me] = e.now++;
    if (!e.taken[me]) return;
    const std::vector<span> &all = e.tickets[e.taken[me]];
    e.acquired.insert(e.acquired.end(), all.begin(), all.end());
    e.taken[me] = NULL;
}
extern "C" int cuda_emulate_atomic_int(int *p, int op, int value, int compare) {
    touch_atomic(p, __builtin_return_address(0));
    take_ticket(p);
    int old = *p;
    switch (op) {
    case CUDA_EMULATE_MIN: *p = std::min(old, value); break;
    case CUDA_EMULATE_MAX: *p = std::max(old, value); break;
    case CUDA_EMULATE_ADD: *p = (int)((unsigned)old + (unsigned)value); break;
    case CUDA_EMULATE_OR: *p = old | value; break;
    case CUDA_EMULATE_EXCH: *p = value; break;
    case CUDA_EMULATE_CAS: *p = old == compare ? value : old; break;
    }
    return old;
}
extern "C" float cuda_emulate_atomic_float(float *p, float add) {
    touch_atomic(p, __builtin_return_address(0));
    float old = *p;
    *p = old + add;
    return old;
}

/* One block. Warps run until all their threads wait; the seed selects the next one. */
static void run_block() {
    memset(arena, 0xff, DYNAMIC + 16 + e.dynamic);
    memset(owned, 0, ARENA);
    memset(owned + DYNAMIC + 16, 1, e.dynamic);
    e.sites.clear();
    e.statics = e.place = 0;
    e.began = e.ordered = ++e.now;
    e.alive = e.threads;
    e.waiting = 0;
    int warps = (e.threads + 31) / 32;
    for (int w = 0; w < warps; w++) {
        e.warps[w].lanes = std::min(32, e.threads - w * 32);
        e.warps[w].arrived = 0;
        e.warps[w].turn = 0;
        e.warps[w].ordered = e.began;
    }
    for (int t = 0; t < e.threads; t++) e.states[t] = READY, e.fresh[t] = true, e.fences[t] = 0, e.taken[t] = NULL;
    e.acquired.clear();
    for (int t = e.threads; t < warps * 32; t++) e.states[t] = DONE;
    while (e.alive && !e.failed && !e.again) {
        bool ran = false;
        int first = e.seed ? (int)rnd((uint32_t)warps) : 0;
        for (int i = 0; i < warps && !e.failed; i++) {
            int w = (first + i) % warps;
            for (bool again = true; again && !e.failed;) {
                again = false;
                e.lane = 0, e.turn = e.seed ? (int)rnd(32) : 0, e.step = e.seed ? (int)rnd(16) * 2 + 1 : 1;
                for (int t; !e.failed && (t = next_lane(w)) >= 0; ran = again = true) resume(t);
            }
        }
        if (!ran && e.alive) {
            int t = 0, lines[2] = {0, 0};
            for (int i = 0; i < e.threads; i++)
                if (e.states[i] == AT_WARP) t = i, lines[0] = e.fibers[i].line;
                else if (e.states[i] == AT_BLOCK) lines[1] = e.fibers[i].line;
            e.current = t;
            fail_outside("threads wait for others for ever: %d of %d are left, at a warp function of line %d, a barrier of line %d", e.alive, e.threads,
                lines[0], lines[1]);
        }
    }
}

static bool run(const char *name, dim3 grid, dim3 block, size_t shared, void (*call)(void *), const void *args, size_t size, int device) {
    if (host_lost()) return true;
    std::lock_guard<std::mutex> hold(engine_lock);
    begin();
    e.name = name;
    e.grid = grid;
    e.block = block;
    e.call = call;
    e.args = size;
    e.dynamic = shared;
    e.device = device;
    e.threads = (int)(block.x * block.y * block.z);
    e.failed = e.again = false;
    e.tickets.clear();
    e.launched = ++e.now;
    memcpy(parameters, args, size);
    if (host_fails("launch")) return host_fault("a launch failed (injected)"), true;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z, first = e.seed ? rnd((uint32_t)std::min(blocks, (uint64_t)1 << 30)) : 0;
    for (uint64_t i = 0; i < blocks && !e.failed; i++) {
        uint64_t b = (first + i) % blocks;
        e.at = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y), (unsigned)(b / grid.x / grid.y)};
        run_block();
    }
    for (auto &t : e.tickets)
        if (!e.failed && *t.first) e.at = {0, 0, 0}, e.current = 0, fail_outside("the counter at %p, by which blocks wait for each other, is %d at the end", (void *)t.first, *t.first);
    if (e.failed) host_fault(e.why);
    return !e.again;
}

static std::mutex limits_lock;
static std::map<const void *, int> limits;
void device_shared_set(const void *kernel, int bytes) {
    std::lock_guard<std::mutex> hold(limits_lock);
    limits[kernel] = bytes;
}
int device_shared_limit(const void *kernel) {
    std::lock_guard<std::mutex> hold(limits_lock);
    auto i = limits.find(kernel);
    return i == limits.end() ? 48 << 10 : i->second;
}

extern "C" void cuda_emulate_run(const char *name, const void *kernel, dim3 grid, dim3 block, size_t shared, cudaStream_t s, void (*call)(void *),
    const void *args, size_t size) {
    uint64_t threads = (uint64_t)block.x * block.y * block.z;
    bool fits = threads >= 1 && threads <= THREADS && block.z <= 64 && grid.x >= 1 && grid.x < 1u << 31 && grid.y >= 1 && grid.y < 65536 &&
                grid.z >= 1 && grid.z < 65536 && shared <= (size_t)device_shared_limit(kernel) && size <= PARAMETERS;
    if (!fits) {
        fprintf(stderr, "cuda_emulate: %s: grid %u %u %u, block %u %u %u, %zu bytes of shared memory, %zu of arguments: refused\n", name, grid.x,
            grid.y, grid.z, block.x, block.y, block.z, shared, size);
        host_error(cudaErrorInvalidConfiguration);
        return;
    }
    driver_load(kernel);
    std::shared_ptr<char[]> copy(new char[size]);
    memcpy(copy.get(), args, size);
    int device = host_stream_device(s);
    if (device != host_device()) {
        host_error(cudaErrorInvalidResourceHandle); /* a stream of another device than the current one */
        return;
    }
    static const char *const slow = getenv("CUDA_EMULATE_SLOW"); /* NAME:MS */
    const size_t length = strlen(name);
    const int late_ms = slow && !strncmp(slow, name, length) && slow[length] == ':' ? atoi(slow + length + 1) : 0;
    host_enqueue(s, name, [=] {
        usleep((useconds_t)late_ms * 1000);
        while (!run(name, grid, block, shared, call, copy.get(), size, device)) usleep(20);
    });
}
