/* The emulated device: memory with a cap, host memory, faults. Streams and events are in emu_stream.c. */
#include "gpu/emu/emu_timeline.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/mem.h"
#include "base/test_limits.h"

static double clock_start;
static pthread_once_t clock_once = PTHREAD_ONCE_INIT;
static void clock_begin(void) { clock_start = clock_now(); }
double emu_clock(void) {
    pthread_once(&clock_once, clock_begin);
    return clock_now() - clock_start;
}

/* Failures. The first one stays until emu_clear; a dead device never recovers. Error text, the stream's flag and
 * is_dead are set and read under one lock, so a thread that sees a failure also sees its text. */
static void fail_locked(struct emu *g, int code, const char *text) {
    if (g->error.code) return;
    error_set(&g->error, code, "device %d (%s): %s", g->base.info.rank, g->base.info.name,
              g->is_dead ? "lost (injected)" : text);
    atomic_store(&g->error_code, code);
}
static void set_failure(struct emu *g, _Atomic int *failed, int code, const char *fmt, va_list ap) {
    char text[400];
    vsnprintf(text, sizeof text, fmt, ap);
    pthread_mutex_lock(&g->lock);
    fail_locked(g, code, text);
    if (failed) atomic_store(failed, 1);
    pthread_mutex_unlock(&g->lock);
}
void emu_fail(struct emu *g, int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_failure(g, NULL, code, fmt, ap);
    va_end(ap);
}
void emu_stream_fail(struct emu_stream *s, int code, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    set_failure(s->g, &s->has_failed, code, fmt, ap);
    va_end(ap);
}

bool emu_inject_fault(struct emu *g, enum gpu_fault kind) {
    if (g->spec.fail == GPU_FAULT_NONE || g->spec.fail_rank != g->base.info.rank) return false;
    pthread_mutex_lock(&g->lock);
    bool hit = ++g->fault_counts[kind] == g->spec.fail_at && g->spec.fail == kind;
    if (++g->fault_counts[GPU_FAULT_DIE] >= g->spec.fail_at && g->spec.fail == GPU_FAULT_DIE) {
        hit = g->is_dead = true;
        fail_locked(g, ERR_RUNTIME, "lost");
    }
    pthread_mutex_unlock(&g->lock);
    return hit;
}

int emu_error_code(struct emu *g) { return atomic_load(&g->error_code); }

static int emu_error(struct gpu *base, struct error *e) {
    struct emu *g = (struct emu *)base;
    pthread_mutex_lock(&g->lock);
    int r = g->error.code;
    if (r && e) *e = g->error;
    pthread_mutex_unlock(&g->lock);
    return r;
}

static int emu_clear(struct gpu *base, struct error *e) {
    struct emu *g = (struct emu *)base;
    pthread_mutex_lock(&g->lock);
    int r = g->is_dead ? ERR_RUNTIME : 0;
    if (r && e) *e = g->error;
    if (!r) g->error = (struct error){0}, atomic_store(&g->error_code, 0);
    pthread_mutex_unlock(&g->lock);
    return r;
}

/* Memory. New memory is filled with NaNs, so that reads of uninitialized memory show in the result; freed memory too,
 * so that a use after free does. */
enum { POISON = 0xff };

static size_t block_after(const struct emu *g, const char *p) { /* index of the first block that starts after p */
    size_t lo = 0, hi = g->n_blocks;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (g->blocks[mid].p <= p) lo = mid + 1;
        else hi = mid;
    }
    return lo;
}

static bool is_within(const struct emu_block *b, const char *p, size_t size) {
    return p >= b->p && (size_t)(p - b->p) + size <= b->size;
}
bool emu_owns_locked(struct emu *g, const void *p, size_t size) {
    if (g->last_found < g->n_blocks && is_within(&g->blocks[g->last_found], p, size)) return true;
    const size_t i = block_after(g, p);
    if (!i || !is_within(&g->blocks[i - 1], p, size)) return false;
    g->last_found = i - 1;
    return true;
}
bool emu_owns(struct emu *g, const void *p, size_t size) {
    if (g->is_cpu) return true;
    pthread_mutex_lock(&g->lock);
    const bool ok = emu_owns_locked(g, p, size);
    pthread_mutex_unlock(&g->lock);
    return ok;
}

/* GPU memory is always populated. Host memory is populated page by page on first access, ten times slower or worse in a
 * virtual machine, which also reclaims idle pages. So large freed blocks are kept for reuse by allocations of similar
 * size. */
static const size_t MIN_REUSE_BYTES = (size_t)1 << 20;

static void drop_idle(struct emu *g, size_t i) {
    g->idle_bytes -= g->idle[i].capacity;
    g->n_idle--;
    memmove(&g->idle[i], &g->idle[i + 1], (g->n_idle - i) * sizeof *g->idle);
}
/* The smallest sufficient block of at most twice the size. */
static bool take_idle(struct emu *g, size_t size, struct emu_block *b) {
    size_t best = g->n_idle;
    for (size_t i = 0; i < g->n_idle; i++) {
        size_t room = g->idle[i].capacity;
        if (room >= size && room / 2 < size && (best == g->n_idle || room < g->idle[best].capacity)) best = i;
    }
    if (best == g->n_idle) return false;
    *b = (struct emu_block){g->idle[best].p, size, g->idle[best].capacity};
    drop_idle(g, best);
    return true;
}
static bool keep_idle(struct emu *g, const struct emu_block *b) {
    if (b->capacity < MIN_REUSE_BYTES || mem_grow(&g->idle, &g->cap_idle, g->n_idle + 1, sizeof *g->idle)) return false;
    g->idle[g->n_idle++] = *b;
    g->idle_bytes += b->capacity;
    return true;
}

static struct emu_block alloc_block(struct emu *g, size_t size) {
    struct emu_block b = {.size = size, .capacity = size};
    if (g->spec.is_virtual) {
        b.p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (b.p == MAP_FAILED) b.p = NULL;
        return b;
    }
    if (g->used_bytes + size > g->peak_bytes) g->peak_bytes = g->used_bytes + size;
    if (!take_idle(g, size, &b)) {
        while (g->n_idle && g->used_bytes + size + g->idle_bytes > g->peak_bytes) {
            mem_free(g->idle[0].p);
            drop_idle(g, 0);
        }
        b.p = mem_aligned(256, size);
    }
    if (b.p) memset(b.p, POISON, size);
    return b;
}
static void release_block(struct emu *g, const struct emu_block *b) {
    if (g->spec.is_virtual) {
        munmap(b->p, b->size);
        return;
    }
    memset(b->p, POISON, b->size);
    pthread_mutex_lock(&g->lock);
    bool kept = keep_idle(g, b);
    pthread_mutex_unlock(&g->lock);
    if (!kept) mem_free(b->p);
}

/* Injected allocation failures, or a dead device. */
static int alloc_fault(struct emu *g, size_t size, const char *what, struct error *e) {
    if (!emu_inject_fault(g, GPU_FAULT_ALLOC)) return 0;
    if (g->spec.fail == GPU_FAULT_ALLOC)
        return error_set(e, ERR_MEMORY, "device %d: %s of %zu bytes failed (injected)", g->base.info.rank, what, size);
    return emu_error(&g->base, e);
}

static int emu_alloc(struct gpu *base, void **out, size_t size, struct error *e) {
    struct emu *g = (struct emu *)base;
    int rc = alloc_fault(g, size, "allocation", e);
    if (rc) return rc;
    const double begin = emu_clock();
    pthread_mutex_lock(&g->lock);
    size_t left = base->info.mem - g->used_bytes;
    if (size > left || mem_grow(&g->blocks, &g->cap_blocks, g->n_blocks + 1, sizeof *g->blocks)) {
        pthread_mutex_unlock(&g->lock);
        return error_set(e, ERR_MEMORY, "device %d: cannot allocate %zu bytes, %zu of %zu are free", base->info.rank,
                         size, left, base->info.mem);
    }
    struct emu_block b = alloc_block(g, size);
    if (b.p) {
        size_t i = block_after(g, b.p);
        memmove(&g->blocks[i + 1], &g->blocks[i], (g->n_blocks - i) * sizeof *g->blocks);
        g->blocks[i] = b;
        g->n_blocks++;
        g->used_bytes += size;
        if (g->is_throttled) g->stats.alloc_s += emu_clock() - begin;
    }
    pthread_mutex_unlock(&g->lock);
    if (!b.p)
        return error_set(e, ERR_MEMORY, "device %d: no host memory for %zu emulated bytes", base->info.rank, size);
    *out = b.p;
    return 0;
}

static void emu_free(struct gpu *base, void *p) {
    struct emu *g = (struct emu *)base;
    const double begin = emu_clock();
    pthread_mutex_lock(&g->lock);
    size_t i = block_after(g, p);
    struct emu_block b = {0};
    bool known = i > 0 && g->blocks[i - 1].p == p;
    if (known) {
        b = g->blocks[i - 1];
        memmove(&g->blocks[i - 1], &g->blocks[i], (g->n_blocks - i) * sizeof *g->blocks);
        g->n_blocks--;
        g->used_bytes -= b.size;
    }
    pthread_mutex_unlock(&g->lock);
    if (known) {
        release_block(g, &b);
        pthread_mutex_lock(&g->lock);
        if (g->is_throttled) g->stats.alloc_s += emu_clock() - begin;
        pthread_mutex_unlock(&g->lock);
    } else emu_fail(g, ERR_RUNTIME, "free of %p, which is not an allocation of this device", p);
}

static size_t emu_mem_free(struct gpu *base) {
    struct emu *g = (struct emu *)base;
    pthread_mutex_lock(&g->lock);
    size_t left = base->info.mem - g->used_bytes;
    pthread_mutex_unlock(&g->lock);
    return left;
}

/* Pinned memory belongs to any device: one list, kept only by devices that distinguish pinned memory. */
static struct {
    pthread_mutex_t lock;
    struct emu_block *blocks;
    size_t n, cap;
} pinned = {.lock = PTHREAD_MUTEX_INITIALIZER};
bool emu_is_pinned(const void *p, size_t size) {
    const char *c = p;
    bool in = false;
    pthread_mutex_lock(&pinned.lock);
    for (size_t i = 0; i < pinned.n && !in; i++)
        in = c >= pinned.blocks[i].p && c + size <= pinned.blocks[i].p + pinned.blocks[i].size;
    pthread_mutex_unlock(&pinned.lock);
    return in;
}
static int add_pinned(struct emu_block b) {
    pthread_mutex_lock(&pinned.lock);
    int rc = mem_grow(&pinned.blocks, &pinned.cap, pinned.n + 1, sizeof *pinned.blocks);
    if (!rc) pinned.blocks[pinned.n++] = b;
    pthread_mutex_unlock(&pinned.lock);
    return rc;
}
static void remove_pinned(const void *p) {
    pthread_mutex_lock(&pinned.lock);
    for (size_t i = 0; i < pinned.n; i++)
        if (pinned.blocks[i].p == p) {
            pinned.blocks[i] = pinned.blocks[--pinned.n];
            break;
        }
    if (!pinned.n) {
        mem_free(pinned.blocks);
        pinned.blocks = NULL, pinned.cap = 0;
    }
    pthread_mutex_unlock(&pinned.lock);
}

static int emu_host_alloc(struct gpu *base, void **p, size_t size, struct error *e) {
    struct emu *g = (struct emu *)base;
    int rc = alloc_fault(g, size, "pinned memory", e);
    if (rc) return rc;
    *p = mem_aligned(4096, size);
    if (*p && emu_tracks_pinned(g) && add_pinned((struct emu_block){*p, size})) {
        mem_free(*p);
        *p = NULL;
    }
    return *p ? 0 : error_set(e, ERR_MEMORY, "no memory for %zu bytes of pinned memory", size);
}
static void emu_host_free(struct gpu *base, void *p) {
    if (emu_tracks_pinned((struct emu *)base)) remove_pinned(p);
    mem_free(p);
}
static int emu_host_register(struct gpu *base, const void *p, size_t size, struct error *e) {
    struct emu *g = (struct emu *)base;
    if (g->spec.nopin)
        return error_set(e, ERR_MEMORY, "cannot pin %zu bytes: this device pins only what it allocates (nopin)", size);
    int rc = alloc_fault(g, size, "pinning", e);
    if (rc || !g->spec.nomap) return rc;
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    /* like a driver that needs write access */
    if (madvise((void *)p, (size + page - 1) / page * page, MADV_POPULATE_WRITE))
        return error_set(e, ERR_MEMORY, "cannot pin %zu bytes: %s (this device cannot pin read-only mappings: nomap)",
                         size, strerror(errno));
    return add_pinned((struct emu_block){(char *)p, size})
               ? error_set(e, ERR_MEMORY, "no memory for the list of pinned memory")
               : 0;
}
static void emu_host_unregister(struct gpu *base, const void *p) {
    if (emu_tracks_pinned((struct emu *)base)) remove_pinned(p);
}

static void emu_stats(struct gpu *base, struct gpu_stats *out) {
    struct emu *g = (struct emu *)base;
    pthread_mutex_lock(&g->lock);
    while (g->spec.is_virtual && atomic_load(&g->n_queued)) {
        if (cond_wait_s(&g->all_done, &g->lock, 0.01)) continue;
        pthread_mutex_unlock(&g->lock);
        emu_virtual_poll();
        pthread_mutex_lock(&g->lock);
    }
    *out = g->stats;
    out->n_ops = atomic_load(&g->n_run[EMU_OP]);
    out->n_copies =
        atomic_load(&g->n_run[EMU_COPY]) + atomic_load(&g->n_run[EMU_PEER]) + atomic_load(&g->n_run[EMU_FILL]);
    out->n_waits = atomic_load(&g->n_run[EMU_TIMELINE_SIGNAL]) + atomic_load(&g->n_run[EMU_TIMELINE_WAIT]);
    pthread_mutex_unlock(&g->lock);
}

static void emu_describe(char *out, size_t size) { snprintf(out, size, "emulated devices, any number"); }

/* Emulated devices are slower than the CPU: only tests find them. */
static void emu_find(struct gpu_found *found) {
    const size_t n = test_limits_get(TEST_LIMIT_FOUND_DEVICES, 0);
    if (n) snprintf(found->list, sizeof found->list, "emu:%zu", n);
    found->is_tried = false;
}

static void emu_close(struct gpu *base) {
    struct emu *g = (struct emu *)base;
    for (size_t i = 0; i < g->n_blocks; i++) release_block(g, &g->blocks[i]);
    for (size_t i = 0; i < g->n_idle; i++) mem_free(g->idle[i].p);
    mem_free(g->idle);
    mem_free(g->blocks);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->all_done);
    mem_free(g);
}

/* An RTX 5090 as in paper A's machine, at achieved rates: products in BF16 at 0.7 of 209 TFLOP/s (with math=fp8 linear
 * operations at 0.8 of 419), memory at 0.85 of 1.79 TB/s, the bus at 57 GB/s. */
static void virtual_defaults(struct gpu_spec *s) {
    if (!s->mem) s->mem = (size_t)32 << 30;
    if (!s->h2d) s->h2d = 57e9;
    if (!s->d2h) s->d2h = s->h2d;
    if (!s->flops) s->flops = s->math == GPU_MATH_FP8 ? 335e12 : 147e12;
    if (!s->attn) s->attn = 147e12;
    if (!s->bw) s->bw = 1.52e12;
    if (!s->launch) s->launch = 4e-6;
    if (!s->link_latency) s->link_latency = 8e-6;
}

static struct op_cost_rates make_rates(const struct gpu_spec *s, bool is_cpu) {
    struct op_cost_rates r = {.flops = s->flops, .attn = s->attn, .bw = s->bw, .launch = s->launch};
    if (!s->is_virtual) return r;
    r.bw_rows = s->bw_rows, r.flops_rows = s->flops_rows, r.flops_few_rows = s->flops_few_rows,
    r.linear_bw = s->linear_bw;
    r.attn_rows = s->attn_rows, r.attn_bw = s->attn_bw;
    for (int i = 0; i < 2; i++) r.linear_flops[i] = s->linear_flops[i];
    for (int i = 0; i < GPU_OP_KINDS; i++) r.launch_by_kind[i] = s->launch_by_kind[i];
    r.n_selected = s->n_selected, r.bw_share = s->bw_share, r.has_serial_activations = is_cpu;
    r.disk_bw = is_cpu ? s->disk_bw : 0, r.disk_share_few_rows = s->disk_share_few_rows, r.disk_share = s->disk_share;
    return r;
}
static int emu_open(struct gpu **out, const struct gpu_spec *spec, int rank, struct error *e) {
    struct emu *g = mem_calloc(1, sizeof *g);
    if (!g) return error_set(e, ERR_MEMORY, "no memory for an emulated device");
    g->spec = *spec;
    g->is_cpu = rank == GPU_HOST;
    if (g->is_cpu) g->spec.mem = g->spec.mem ? g->spec.mem : SIZE_MAX;
    else if (spec->is_virtual) virtual_defaults(&g->spec);
    else if (!g->spec.mem) g->spec.mem = (size_t)8 << 30;
    g->rates = make_rates(&g->spec, g->is_cpu);
    g->is_throttled =
        !spec->is_virtual && (g->spec.flops > 0 || g->spec.attn > 0 || g->spec.bw > 0 || g->spec.launch > 0);
    g->base.info = (struct gpu_info){.rank = rank,
                                     .id = g->is_cpu ? GPU_HOST : spec->id[rank],
                                     .mem = g->spec.mem,
                                     .is_virtual = spec->is_virtual,
                                     .peer = !spec->nopeer,
                                     /* speeds apply to copies */
                                     .maps_host = !spec->is_virtual && !g->spec.h2d && !g->spec.d2h,
                                     .h2d = g->spec.h2d,
                                     .d2h = g->spec.d2h,
                                     .link = g->spec.peer};
    snprintf(g->base.info.name, sizeof g->base.info.name, "emulated%s%s", g->is_cpu ? " CPU" : "",
             spec->is_virtual ? ", virtual time" : "");
    pthread_mutex_init(&g->lock, NULL);
    cond_init(&g->all_done);
    emu_clock();
    *out = &g->base;
    return 0;
}

const struct gpu_backend gpu_emu = {
    .name = "emu",
    .describe = emu_describe,
    .find = emu_find,
    .open = emu_open,
    .close = emu_close,
    .mem_free = emu_mem_free,
    .stats = emu_stats,
    .alloc = emu_alloc,
    .free = emu_free,
    .error = emu_error,
    .clear = emu_clear,
    .host_alloc = emu_host_alloc,
    .host_free = emu_host_free,
    .host_register = emu_host_register,
    .host_unregister = emu_host_unregister,
    .stream_open = emu_stream_open,
    .stream_close = emu_stream_close,
    .stream_sync = emu_stream_sync,
    .copy = emu_copy,
    .copy_peer = emu_copy_peer,
    .fill = emu_fill,
    .graph_begin = emu_graph_begin,
    .graph_end = emu_graph_end,
    .graph_run = emu_graph_run,
    .graph_close = emu_graph_close,
    .event_open = emu_event_open,
    .event_close = emu_event_close,
    .event_record = emu_event_record,
    .event_wait = emu_event_wait,
    .event_sync = emu_event_sync,
    .event_is_done = emu_event_is_done,
    .event_time = emu_event_time,
    .event_elapsed = emu_event_elapsed,
    .timeline_open = emu_timeline_open,
    .timeline_close = emu_timeline_close,
    .timeline_signal = emu_timeline_signal,
    .timeline_wait = emu_timeline_wait,
    .timeline_wake = emu_timeline_wake,
    .timeline_sleep = emu_timeline_sleep,
};
