/* Streams of the emulated device: one thread each that runs its queue in order (none in virtual time: emu_virtual.c),
 * and events between them. After a failure or a cancel a stream drops operations and copies, but still records and
 * waits, so that its waiters wake. Waits end because a record is always enqueued, on a running stream, before a wait
 * for it. */
#include <assert.h>
#include <stddef.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "gpu/emu/emu_timeline.h"

static bool cancelled(const struct emu_stream *s) {
    return s->cancel && atomic_load_explicit(s->cancel, memory_order_relaxed);
}
/* Streams of a device have different owners, and one may clear the device before another looks. So a stream that
 * dropped work remains failed. */
bool emu_stream_drops(struct emu_stream *s) {
    if (emu_error_code(s->g)) atomic_store(&s->has_failed, 1);
    return cancelled(s) || atomic_load(&s->has_failed);
}

/* Real time: returns when a command begins. A sleeping thread wakes late, but a device would not: a command enqueued
 * before `due` began at `due`, when its predecessor was to end. */
static double begin_time(const struct emu_stream *s, double at, double now) {
    return at < s->due_s && s->due_s < now ? s->due_s : now;
}

/* Real time: sleeps until the clock reaches t, or a cancel. */
static void sleep_until(const struct emu_stream *s, double t) {
    for (double left; (left = t - emu_clock()) > 0 && !cancelled(s);) {
        double step = left < 1e-3 ? left : 1e-3;
        nanosleep(&(struct timespec){.tv_nsec = (long)(step * 1e9)}, NULL);
    }
}

void emu_link_usage_merge(struct emu_link_usage *to, const struct emu_link_usage *from) {
    for (int way = 0; way < EMU_LINKS; way++)
        for (int i = 0; i < EMU_LINK_STREAMS; i++)
            if (from->taken_s[way][i] > to->taken_s[way][i]) to->taken_s[way][i] = from->taken_s[way][i];
}

/* Copies share one direction of the bus. In real time they are served in order of arrival. In virtual time streams
 * reach the link in no particular order of their clocks: an urgent copy starts at once, and its link time becomes a
 * debt. The next bulk copy whose stream knows of the debt pays it, less the time in which the bus was idle anyway. The
 * caller holds the device's lock. */
static double reserve_link(struct emu_stream *s, enum emu_link_dir way, double rate, size_t size, double at,
                           bool from_disk) {
    struct emu_link *l = &s->g->link[way];
    double d = rate > 0 ? (double)size / rate : 0, now = s->g->spec.is_virtual ? s->clock_s : emu_clock(), end;
    if (way == EMU_LINK_H2D) *(from_disk ? &s->g->stats.disk_s : &s->g->stats.h2d_s) += d;
    if (way == EMU_LINK_D2H) s->g->stats.d2h_s += d;
    if (s->g->spec.is_virtual && s->urgent) {
        end = now + d;
        s->g->link_usage.taken_s[way][s->link_index] = s->link_usage.taken_s[way][s->link_index] += d;
    } else if (s->g->spec.is_virtual) {
        double idle = now > l->bulk_free_s ? now - l->bulk_free_s : 0, debt = -l->debt_paid_s;
        for (int i = 0; i < EMU_LINK_STREAMS; i++) debt += s->link_usage.taken_s[way][i];
        if (debt > 0) l->debt_paid_s += debt;
        const double latency = idle > 0 ? s->g->spec.link_latency : 0; /* copies that follow one another hide it */
        end = (idle > 0 ? now : l->bulk_free_s) + latency + d + (debt > idle ? debt - idle : 0);
        l->bulk_free_s = end;
    } else {
        now = begin_time(s, at, now);
        s->due_s = end = (now > l->bulk_free_s ? now : l->bulk_free_s) + d;
        l->bulk_free_s = end;
    }
    return end;
}

static void run_copy(struct emu_stream *s, const struct emu_cmd *c) {
    struct emu *g = s->g;
    const char *src = c->copy.src;
    char *dst = c->copy.dst;
    size_t size = c->copy.size;
    if (emu_inject_fault(g, GPU_FAULT_COPY)) {
        emu_stream_fail(s, ERR_RUNTIME, "a copy of %zu bytes failed (injected)", size);
        return;
    }
    const bool peer = c->kind == EMU_PEER, fill = c->kind == EMU_FILL,
               to_host = c->kind == EMU_COPY && c->copy.dir == GPU_D2H;
    bool src_ok = fill || (peer ? emu_owns((struct emu *)c->copy.from, src, size) : c->copy.dir == GPU_H2D);
    pthread_mutex_lock(&g->lock);
    const bool dst_ok = to_host || g->is_cpu || emu_owns_locked(g, dst, size);
    if (!src_ok && !peer) src_ok = g->is_cpu || emu_owns_locked(g, src, size);
    if (!dst_ok || !src_ok) {
        pthread_mutex_unlock(&g->lock);
        emu_stream_fail(s, ERR_RUNTIME, "copy %s %p + %zu is not memory of the device", dst_ok ? "source" : "target",
                        dst_ok ? (const void *)src : dst, size);
        return;
    }
    const enum emu_link_dir way = peer ? EMU_LINK_PEER : c->copy.dir == GPU_H2D ? EMU_LINK_H2D : EMU_LINK_D2H;
    double rate = peer ? g->spec.peer : c->copy.dir == GPU_H2D ? g->spec.h2d : g->spec.d2h;
    const bool from_disk =
        way == EMU_LINK_H2D && !s->urgent && g->spec.is_virtual && g->spec.disk_bw > 0 && g->spec.disk_bw < rate;
    if (from_disk) rate = g->spec.disk_bw;
    bool inside = fill || g->is_cpu || (!peer && c->copy.dir == GPU_D2D);
    double end;
    if (inside) {
        double bw = op_cost_bw(&g->rates, 1),
               d = g->rates.launch + (bw > 0 ? (fill ? 1.0 : 2.0) * (double)size / bw : 0);
        end = (g->spec.is_virtual ? s->clock_s : begin_time(s, c->enqueued_s, emu_clock())) + d;
        if (g->is_throttled) s->due_s = end;
    } else {
        end = reserve_link(s, way, rate, size, c->enqueued_s, from_disk);
    }
    pthread_mutex_unlock(&g->lock);
    if (g->spec.is_virtual) {
        s->clock_s = end;
        return;
    }
    const size_t step = (size_t)4 << 20; /* so that a cancel takes effect within gigabyte copies */
    for (size_t at = 0; at < size && !cancelled(s); at += step) {
        size_t n = size - at < step ? size - at : step;
        if (fill) memset(dst + at, c->copy.byte, n);
        else memcpy(dst + at, src + at, n);
    }
    if (g->is_throttled || (!inside && rate > 0)) sleep_until(s, end);
}

struct pointer_check {
    struct emu *g;
    const void *wrong; /* not memory of the device */
    size_t bytes;
};
static int check_pointer(void *ctx, void **p, size_t bytes, enum visit_kind kind) {
    struct pointer_check *c = ctx;
    if (emu_owns_locked(c->g, *p, bytes)) return 0;
    c->wrong = *p, c->bytes = bytes;
    return ERR_RUNTIME;
}

/* With the lock held, once for the hundreds of pointers of an operation on experts. */
static int check_args(struct pointer_check *c, enum op_code code, union op_args *a) {
    int r = op_visit(code, a, check_pointer, c);
    const struct op_experts *x = &a->experts;
    struct expert shared;
    for (int i = -1; code == OP_EXPERTS && i < (x->ids ? x->n_experts : 0) && !r; i++) {
        if (i < 0 && !x->shared) continue;
        shared = i < 0 ? *x->shared : x->experts[i];
        if (!shared.gate.data) continue; /* not resident: an error only if selected */
        r = op_visit_expert(&shared, check_pointer, c);
    }
    return r;
}

static int open_cpu(struct emu_stream *s, struct error *e) {
    int n = s->g->spec.threads ? s->g->spec.threads : 1;
    int r = pool_open(&s->pool, n, false, e);
    if (r) return r;
    enum cpu_level level = s->g->spec.level ? (enum cpu_level)(s->g->spec.level - 1) : cpu_level_best();
    if (!cpu_level_has(level)) return error_set(e, ERR_USAGE, "this CPU does not support %s", cpu_level_name(level));
    s->cpu = cpu_exec_open(s->pool, level, e);
    if (!s->cpu) return ERR_MEMORY;
    s->cpu->cancel = s->cancel;
    return 0;
}

/* With the lock held. */
static void add_op_stats(struct emu *g, enum op_code code, double cost, double took, const struct op_cost_detail *d) {
    g->stats.bytes += d->bytes;
    *(d->by == OP_COST_BY_DISK     ? &g->stats.disk_s
      : d->by == OP_COST_BY_MEMORY ? &g->stats.memory_s
                                   : &g->stats.arithmetic_s) += cost;
    g->stats.op_s[code] += took;
}

static void run_op(struct emu_stream *s, const struct emu_cmd *called) {
    struct emu *g = s->g;
    const enum op_code whole = called->code;
    const int parts = op_parts(whole, &called->args);
    union op_args args;
    enum op_code code;
    if (emu_inject_fault(g, GPU_FAULT_LAUNCH)) {
        emu_stream_fail(s, ERR_RUNTIME, "launch of %s failed (injected)", op_name(whole));
        return;
    }
    memcpy(&args, &called->args, op_size(whole));
    for (int i = 0; i < parts; i++) {
        union op_args *part = (union op_args *)op_part(whole, &args, i, &code);
        if (emu_read_places(s, code, part)) return;
    }
    struct op_cost_detail detail = {0};
    const double cost = g->spec.is_virtual || g->is_throttled ? op_cost_seconds(&g->rates, whole, &args, &detail) : 0;
    struct pointer_check check = {.g = g};
    int r = 0;
    pthread_mutex_lock(&g->lock);
    for (int i = 0; i < parts && !r && !g->is_cpu; i++) {
        union op_args *part = (union op_args *)op_part(whole, &args, i, &code);
        r = check_args(&check, code, part);
    }
    if (!r && g->spec.is_virtual) add_op_stats(g, whole, cost, cost, &detail);
    pthread_mutex_unlock(&g->lock);
    if (r)
        emu_stream_fail(s, r, "operation %s: %p + %zu is not memory of the device", op_name(code), check.wrong,
                        check.bytes);
    s->clock_s += g->spec.is_virtual ? cost : 0;
    if (r || g->spec.is_virtual) return;
    struct error e = {0};
    double now = emu_clock(), begin = begin_time(s, called->enqueued_s, now);
    if (!s->cpu && open_cpu(s, &e)) {
        emu_stream_fail(s, e.code, "%s", e.text);
        return;
    }
    for (int i = 0; i < parts && !r; i++) {
        const union op_args *part = op_part(whole, &args, i, &code);
        r = emu_compute_blocks(s, code, part);
    }
    if (r && r != ERR_CANCELLED) emu_stream_fail(s, r, "operation %s failed", op_name(whole));
    if (!g->is_throttled) return;
    double took = emu_clock() - now; /* exceeds cost where the host CPU is slower than the device */
    if (took < cost) took = cost;
    s->due_s = begin + took;
    pthread_mutex_lock(&g->lock);
    add_op_stats(g, whole, cost, took, &detail);
    pthread_mutex_unlock(&g->lock);
    sleep_until(s, s->due_s);
}

static void run_event(struct emu_stream *s, const struct emu_cmd *c) {
    struct emu_event *ev = c->event.ev;
    pthread_mutex_lock(&ev->lock);
    if (c->kind == EMU_EVENT_RECORD) {
        ev->n_done = c->event.seq;
        ev->time[ev->n_done % EMU_EVENT_TIMES] = s->g->spec.is_virtual ? s->clock_s : emu_clock();
        if (s->g->spec.is_virtual) ev->link_usage[ev->n_done % EMU_EVENT_TIMES] = s->link_usage, ev->recorder = s->g;
        pthread_cond_broadcast(&ev->cond);
        emu_virtual_add_woken(&ev->waiters);
    } else {
        while (ev->n_done < c->event.seq) pthread_cond_wait(&ev->cond, &ev->lock);
        const uint64_t seq =
            (ev->n_done - c->event.seq < EMU_EVENT_TIMES ? c->event.seq : ev->n_done) % EMU_EVENT_TIMES;
        if (ev->time[seq] > s->clock_s) s->clock_s = ev->time[seq];
        if (s->g->spec.is_virtual && ev->recorder == s->g) emu_link_usage_merge(&s->link_usage, &ev->link_usage[seq]);
    }
    atomic_fetch_sub(&ev->n_queued, 1);
    pthread_mutex_unlock(&ev->lock);
}

void emu_stream_test_lag(const struct emu_stream *s) {
    if (s->lag_us) usleep(s->lag_us);
}

void emu_stream_run(struct emu_stream *s, const struct emu_cmd *c) {
    const bool work = !emu_stream_drops(s);
    switch (c->kind) {
    case EMU_EVENT_RECORD:
    case EMU_EVENT_WAIT: run_event(s, c); break;
    case EMU_TIMELINE_SIGNAL: emu_timeline_run_signal(s, c->timeline.n, c->timeline.value, work); break;
    case EMU_TIMELINE_WAIT: emu_timeline_run_wait(s, c->timeline.n, c->timeline.value); break;
    case EMU_STOP: break;
    case EMU_OP:
        if (work) run_op(s, c);
        break;
    default:
        if (work) run_copy(s, c);
    }
}

void emu_stream_count_done(struct emu_stream *s) {
    if (atomic_fetch_sub(&s->g->n_queued, 1) == 1) {
        pthread_mutex_lock(&s->g->lock);
        pthread_cond_broadcast(&s->g->all_done);
        pthread_mutex_unlock(&s->g->lock);
    }
}

static void *stream_thread(void *arg) {
    struct emu_stream *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (s->head == s->tail) pthread_cond_wait(&s->work_cond, &s->lock);
        struct emu_cmd *c = &s->queue[s->head % EMU_QUEUE];
        pthread_mutex_unlock(&s->lock);
        emu_stream_test_lag(s);
        const bool waits = c->kind == EMU_EVENT_WAIT || c->kind == EMU_TIMELINE_WAIT, stop = c->kind == EMU_STOP;
        const double before = waits && s->due_s > 0 ? emu_clock() : 0;
        emu_stream_run(s, c);
        emu_virtual_run_woken();
        if (before > 0 && emu_clock() - before > 5e-6) s->due_s = 0; /* it did wait */
        pthread_mutex_lock(&s->lock);
        if (++s->head >= s->wake_head) s->wake_head = UINT64_MAX, pthread_cond_broadcast(&s->room_cond);
        pthread_mutex_unlock(&s->lock);
        emu_stream_count_done(s);
        if (stop) break;
    }
    cpu_exec_close(&s->cpu);
    pool_close(&s->pool);
    for (int i = 0; i < 2; i++) mem_free(s->contiguous[i]);
    return NULL;
}

static int stream_status(struct emu_stream *s) {
    return cancelled(s) ? ERR_CANCELLED : emu_error_code(s->g) || atomic_load(&s->has_failed) ? ERR_RUNTIME : 0;
}

void emu_stream_wait_for_head(struct emu_stream *s, uint64_t head) {
    while (s->head < head) {
        if (head < s->wake_head) s->wake_head = head;
        if (cond_wait_s(&s->room_cond, &s->lock, s->has_thread ? 1 : 0.01) || s->has_thread) continue;
        pthread_mutex_unlock(&s->lock);
        emu_virtual_poll();
        pthread_mutex_lock(&s->lock);
    }
}

static void copy_command(struct emu_cmd *to, const struct emu_cmd *from) {
    const size_t used = from->kind == EMU_OP ? op_size(from->code) : sizeof from->copy;
    memcpy(to, from, offsetof(struct emu_cmd, args) + used);
}

void emu_stream_push(struct emu_stream *s, const struct emu_cmd *c) {
    atomic_fetch_add(&s->g->n_queued, 1);
    if (s->tail - s->head == EMU_QUEUE)
        emu_stream_wait_for_head(s, s->head + (s->g->spec.is_virtual ? EMU_QUEUE / 16 : 1));
    struct emu_cmd *to = &s->queue[s->tail++ % EMU_QUEUE];
    copy_command(to, c);
    to->enqueued_s = c->kind == EMU_COPY || c->kind == EMU_PEER || s->g->is_throttled ? emu_clock() : 0;
}
static void enqueue_command(struct emu_stream *s, const struct emu_cmd *c) {
    atomic_fetch_add(&s->g->n_run[c->kind], 1);
    if (!s->has_thread) {
        emu_virtual_enqueue(s, c);
        return;
    }
    pthread_mutex_lock(&s->lock);
    emu_stream_push(s, c);
    pthread_cond_signal(&s->work_cond);
    pthread_mutex_unlock(&s->lock);
}
int emu_stream_enqueue(struct emu_stream *s, const struct emu_cmd *c) {
    if (s->graph) s->graph->has_failed = true; /* events and timelines cannot be recorded */
    enqueue_command(s, c);
    return stream_status(s);
}
static int record_command(struct emu_graph *g, const struct emu_cmd *c) {
    bool work = c->kind == EMU_OP || c->kind == EMU_COPY || c->kind == EMU_FILL;
    if (!work || mem_grow(&g->cmds, &g->cap, g->n + 1, sizeof *g->cmds)) g->has_failed = true;
    else copy_command(&g->cmds[g->n++], c);
    return g->has_failed ? ERR_RUNTIME : 0;
}
static int enqueue_work(struct emu_stream *s, const struct emu_cmd *c) {
    int r = stream_status(s);
    if (!r && s->graph) return record_command(s->graph, c);
    if (!r) enqueue_command(s, c);
    return r;
}

int emu_graph_begin(struct gpu_stream *base) {
    struct emu_stream *s = (struct emu_stream *)base;
    int r = stream_status(s);
    if (!r && (s->graph || !(s->graph = mem_calloc(1, sizeof *s->graph)))) r = ERR_RUNTIME;
    return r;
}
int emu_graph_end(struct gpu_stream *base, struct gpu_graph **out) {
    struct emu_stream *s = (struct emu_stream *)base;
    struct emu_graph *g = s->graph;
    s->graph = NULL;
    if (g->has_failed) emu_graph_close(&g->base);
    else *out = &g->base;
    return stream_status(s);
}
int emu_graph_run(struct gpu_graph *base) {
    struct emu_graph *g = (struct emu_graph *)base;
    int r = 0;
    for (size_t i = 0; i < g->n && !r; i++) r = enqueue_work((struct emu_stream *)base->s, &g->cmds[i]);
    return r;
}
void emu_graph_close(struct gpu_graph *base) {
    struct emu_graph *g = (struct emu_graph *)base;
    mem_free(g->cmds);
    mem_free(g);
}

static int emu_run(struct op_exec *x, enum op_code code, const union op_args *a) {
    struct emu_cmd c;
    c.kind = EMU_OP, c.enqueued_s = 0, c.code = code;
    memcpy(&c.args, a, op_size(code));
    return enqueue_work((struct emu_stream *)x, &c);
}
int emu_copy(struct gpu_stream *s, void *dst, const void *src, size_t size, enum gpu_dir dir) {
    struct emu_stream *x = (struct emu_stream *)s;
    struct emu_cmd c;
    c.kind = EMU_COPY, c.enqueued_s = 0,
    c.copy = (struct emu_copy_args){.dst = dst, .src = src, .size = size, .dir = dir};
    int r = enqueue_work(x, &c);
    if (r || !emu_tracks_pinned(x->g) || dir != GPU_H2D || size <= EMU_SMALL_COPY || emu_is_pinned(src, size)) return r;
    if (x->graph) { /* a graph copies only memory that is already pinned, as drivers require */
        x->graph->has_failed = true;
        return ERR_RUNTIME;
    }
    atomic_fetch_add(&x->g->n_blocking_copies, 1); /* like a driver that copies pageable memory itself */
    return emu_stream_sync(s);
}
int emu_copy_peer(struct gpu_stream *s, void *dst, struct gpu *from, const void *src, size_t size) {
    struct emu_stream *x = (struct emu_stream *)s;
    if (!x->g->base.info.peer || !from->info.peer || from->b != x->g->base.b) {
        emu_stream_fail(x, ERR_RUNTIME, "no direct copies between devices %d and %d", from->info.rank,
                        x->g->base.info.rank);
        return ERR_RUNTIME;
    }
    struct emu_cmd c;
    c.kind = EMU_PEER, c.enqueued_s = 0,
    c.copy = (struct emu_copy_args){.dst = dst, .src = src, .from = from, .size = size};
    return enqueue_work(x, &c);
}
int emu_fill(struct gpu_stream *s, void *dst, int byte, size_t size) {
    struct emu_cmd c;
    c.kind = EMU_FILL, c.enqueued_s = 0,
    c.copy = (struct emu_copy_args){.dst = dst, .byte = byte, .size = size, .dir = GPU_D2D};
    return enqueue_work((struct emu_stream *)s, &c);
}

int emu_stream_open(struct gpu *base, struct gpu_stream **out, const char *name, bool urgent, const _Atomic int *cancel,
                    struct error *e) {
    struct emu_stream *s = mem_calloc(1, sizeof *s);
    if (s) s->queue = mem_alloc(EMU_QUEUE * sizeof *s->queue);
    if (!s || !s->queue) {
        mem_free(s);
        return error_set(e, ERR_MEMORY, "no memory for a stream");
    }
    s->g = (struct emu *)base;
    s->cancel = cancel;
    s->urgent = urgent;
    s->wake_head = UINT64_MAX;
    if (((uintptr_t)s * 0x9e3779b97f4a7c15u >> 32) % test_limits_get(TEST_LIMIT_STREAM_LAG_OF, 4) == 0)
        /* chosen by address, so other streams in each run */
        s->lag_us = (unsigned)test_limits_get(TEST_LIMIT_STREAM_LAG_US, 0);
    op_exec_init(&s->base.exec, "emu", emu_run, cancel);
    if (s->g->spec.math == GPU_MATH_F32 && !s->g->spec.is_virtual) s->base.exec.table.expand = NULL;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->work_cond, NULL);
    cond_init(&s->room_cond);
    s->has_thread = !s->g->spec.is_virtual || s->lag_us;
    if (!s->has_thread) emu_virtual_open(s);
    else if (pthread_create(&s->thread, NULL, stream_thread, s)) {
        mem_free(s->queue);
        mem_free(s);
        return error_set(e, ERR_RUNTIME, "cannot start a thread for a stream of device %d", base->info.rank);
    }
    pthread_mutex_lock(&s->g->lock);
    /* virtual time restarts at 0 */
    if (!s->g->n_streams++) memset(s->g->link, 0, sizeof s->g->link), s->g->link_usage = (struct emu_link_usage){0};
    while (s->link_index < EMU_LINK_STREAMS - 1 && s->g->link_index_mask >> s->link_index & 1) s->link_index++;
    s->g->link_index_mask |= 1u << s->link_index;
    s->link_usage = s->g->link_usage;
    pthread_mutex_unlock(&s->g->lock);
    *out = &s->base;
    return 0;
}

void emu_stream_close(struct gpu_stream *base) {
    struct emu_stream *s = (struct emu_stream *)base;
    if (s->has_thread) {
        enqueue_command(s, &(struct emu_cmd){.kind = EMU_STOP});
        pthread_join(s->thread, NULL);
    } else emu_virtual_close(s);
    pthread_mutex_lock(&s->g->lock);
    s->g->n_streams--;
    s->g->link_index_mask &= ~(1u << s->link_index);
    pthread_mutex_unlock(&s->g->lock);
    pthread_mutex_destroy(&s->lock);
    pthread_cond_destroy(&s->work_cond);
    pthread_cond_destroy(&s->room_cond);
    mem_free(s->queue);
    mem_free(s);
}

int emu_stream_sync(struct gpu_stream *base) {
    struct emu_stream *s = (struct emu_stream *)base;
    pthread_mutex_lock(&s->lock);
    emu_stream_wait_for_head(s, s->tail);
    pthread_mutex_unlock(&s->lock);
    return stream_status(s);
}

int emu_event_open(struct gpu *base, struct gpu_event **out, bool timed, struct error *e) {
    struct emu_event *ev = mem_calloc(1, sizeof *ev);
    if (!ev) return error_set(e, ERR_MEMORY, "no memory for an event");
    ev->is_timed = timed;
    pthread_mutex_init(&ev->lock, NULL);
    cond_init(&ev->cond);
    *out = &ev->base;
    return 0;
}
void emu_event_close(struct gpu_event *base) {
    struct emu_event *ev = (struct emu_event *)base;
    pthread_mutex_lock(&ev->lock);       /* a stream may still be inside its unlock */
    assert(!atomic_load(&ev->n_queued)); /* no stream may use it */
    pthread_mutex_unlock(&ev->lock);
    pthread_mutex_destroy(&ev->lock);
    pthread_cond_destroy(&ev->cond);
    mem_free(ev);
}
int emu_event_record(struct gpu_event *base, struct gpu_stream *s) {
    struct emu_event *ev = (struct emu_event *)base;
    pthread_mutex_lock(&ev->lock);
    struct emu_cmd c;
    c.kind = EMU_EVENT_RECORD, c.event = (struct emu_event_args){ev, ++ev->n_issued};
    atomic_fetch_add(&ev->n_queued, 1);
    pthread_mutex_unlock(&ev->lock);
    return emu_stream_enqueue((struct emu_stream *)s, &c);
}
int emu_event_wait(struct gpu_event *base, struct gpu_stream *s) {
    struct emu_event *ev = (struct emu_event *)base;
    pthread_mutex_lock(&ev->lock);
    struct emu_cmd c;
    c.kind = EMU_EVENT_WAIT, c.event = (struct emu_event_args){ev, ev->n_issued};
    if (c.event.seq) atomic_fetch_add(&ev->n_queued, 1);
    pthread_mutex_unlock(&ev->lock);
    return c.event.seq ? emu_stream_enqueue((struct emu_stream *)s, &c) : stream_status((struct emu_stream *)s);
}
int emu_event_sync(struct gpu_event *base) {
    struct emu_event *ev = (struct emu_event *)base;
    pthread_mutex_lock(&ev->lock);
    uint64_t seq = ev->n_issued;
    while (ev->n_done < seq) {
        if (cond_wait_s(&ev->cond, &ev->lock, 0.01)) continue;
        pthread_mutex_unlock(&ev->lock);
        emu_virtual_poll();
        pthread_mutex_lock(&ev->lock);
    }
    pthread_mutex_unlock(&ev->lock);
    return emu_error_code((struct emu *)base->g) ? ERR_RUNTIME : 0;
}
bool emu_event_is_done(struct gpu_event *base) {
    struct emu_event *ev = (struct emu_event *)base;
    pthread_mutex_lock(&ev->lock);
    bool done = ev->n_done >= ev->n_issued;
    pthread_mutex_unlock(&ev->lock);
    return done;
}
double emu_event_time(struct gpu_event *base) {
    struct emu_event *ev = (struct emu_event *)base;
    if (!ev->is_timed) {
        emu_fail((struct emu *)base->g, ERR_RUNTIME, "time of an event without timing requested");
        return 0;
    }
    pthread_mutex_lock(&ev->lock);
    double t = ev->time[ev->n_done % EMU_EVENT_TIMES];
    pthread_mutex_unlock(&ev->lock);
    return t;
}
double emu_event_elapsed(struct gpu_event *from, struct gpu_event *to) {
    return emu_event_time(to) - emu_event_time(from);
}
