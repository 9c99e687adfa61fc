/* Timelines on emulated devices. Streams wait on a condition, the host polls and then waits on the same condition. In
 * virtual time each value carries the clock of the stream that signalled it. */
#include <assert.h>

#include "base/cond.h"
#include "base/mem.h"
#include "gpu/emu/emu_timeline.h"

int emu_timeline_open(struct gpu *g, struct gpu_timeline **out, struct error *e) {
    struct emu_timeline *n = mem_calloc(1, sizeof *n);
    if (!n) return error_set(e, ERR_MEMORY, "no memory for a timeline");
    cond_init(&n->cond);
    pthread_mutex_init(&n->lock, NULL);
    n->base.word = n->words;
    *out = &n->base;
    return 0;
}
void emu_timeline_close(struct gpu_timeline *base) {
    struct emu_timeline *n = (struct emu_timeline *)base;
    assert(!atomic_load(&n->n_queued)); /* no stream may use it */
    pthread_mutex_destroy(&n->lock);
    pthread_cond_destroy(&n->cond);
    mem_free(n);
}
void emu_timeline_wake(struct gpu_timeline *base) {
    struct emu_timeline *n = (struct emu_timeline *)base;
    pthread_mutex_lock(&n->lock);
    pthread_cond_broadcast(&n->cond);
    emu_virtual_add_woken(&n->waiters);
    pthread_mutex_unlock(&n->lock);
    emu_virtual_run_woken();
}
bool emu_timeline_is_lost(struct emu_timeline *n, const struct emu *writer) {
    return emu_error_code((struct emu *)n->base.g) || (writer && emu_error_code((struct emu *)writer));
}

/* Sleeps until a signal, at most 1 ms. Returns true when no signal can follow: a device has failed. */
static bool sleep_until_signal(struct emu_timeline *n, uint32_t value) {
    pthread_mutex_lock(&n->lock);
    const bool woken = gpu_timeline_reached(&n->base, value) || cond_wait_s(&n->cond, &n->lock, 1e-3);
    struct emu *writer = n->writer;
    pthread_mutex_unlock(&n->lock);
    if (!woken) emu_virtual_poll();
    return emu_timeline_is_lost(n, writer);
}
void emu_timeline_sleep(struct gpu_timeline *base, uint32_t value) {
    if (sleep_until_signal((struct emu_timeline *)base, value) && !gpu_timeline_is_at_least(base, value))
        gpu_timeline_abort(base);
}

static void run_signal(struct emu_stream *s, struct emu_timeline *n, uint32_t value, bool work) {
    if (work && (int32_t)(value - atomic_load(n->words)) < 0 && !gpu_timeline_is_aborted(&n->base))
        emu_stream_fail(s, ERR_RUNTIME, "a timeline was signalled backwards, to %u", (unsigned)value);
    if (!work || emu_error_code(s->g)) {
        gpu_timeline_abort(&n->base);
        return;
    }
    pthread_mutex_lock(&n->lock);
    n->signals[n->n_signals % EMU_TIMELINE_SIGNALS].value = value;
    if (s->g->spec.is_virtual) n->signals[n->n_signals % EMU_TIMELINE_SIGNALS].link_usage = s->link_usage;
    n->signals[n->n_signals % EMU_TIMELINE_SIGNALS].writer = s->g;
    n->signals[n->n_signals++ % EMU_TIMELINE_SIGNALS].time = s->clock_s;
    pthread_mutex_unlock(&n->lock);
    gpu_timeline_signal_host(&n->base, value);
}
/* The first signal of at least value; n_signals if none. Values never fall. */
static uint64_t first_signal(const struct emu_timeline *n, uint32_t value) {
    uint64_t from = n->n_signals > EMU_TIMELINE_SIGNALS ? n->n_signals - EMU_TIMELINE_SIGNALS : 0, to = n->n_signals;
    while (from < to) {
        const uint64_t mid = (from + to) / 2;
        if ((int32_t)(n->signals[mid % EMU_TIMELINE_SIGNALS].value - value) >= 0) to = mid;
        else from = mid + 1;
    }
    return from;
}
static void run_wait(struct emu_stream *s, struct emu_timeline *n, uint32_t value) {
    bool lost = emu_stream_drops(s);
    while (!lost && !gpu_timeline_reached(&n->base, value)) {
        lost = sleep_until_signal(n, value) || emu_stream_drops(s);
        emu_stream_test_lag(s);
    }
    if (lost && !gpu_timeline_is_at_least(&n->base, value)) gpu_timeline_abort(&n->base);
    pthread_mutex_lock(&n->lock);
    const uint64_t i = first_signal(n, value);
    if (i < n->n_signals) {
        const bool is_own = n->signals[i % EMU_TIMELINE_SIGNALS].writer == s->g;
        const double seen_s = n->signals[i % EMU_TIMELINE_SIGNALS].time + (is_own ? 0 : s->g->spec.signal);
        if (seen_s > s->clock_s) s->clock_s = seen_s;
        if (is_own) emu_link_usage_merge(&s->link_usage, &n->signals[i % EMU_TIMELINE_SIGNALS].link_usage);
    }
    pthread_mutex_unlock(&n->lock);
}

void emu_timeline_run_signal(struct emu_stream *s, struct emu_timeline *n, uint32_t value, bool work) {
    run_signal(s, n, value, work);
    atomic_fetch_sub(&n->n_queued, 1);
}
void emu_timeline_run_wait(struct emu_stream *s, struct emu_timeline *n, uint32_t value) {
    run_wait(s, n, value);
    atomic_fetch_sub(&n->n_queued, 1);
}

static int enqueue_command(struct emu_timeline *n, struct gpu_stream *s, enum emu_cmd_kind kind, uint32_t value) {
    atomic_fetch_add(&n->n_queued, 1);
    struct emu_cmd c;
    c.kind = kind, c.timeline = (struct emu_timeline_args){n, value};
    return emu_stream_enqueue((struct emu_stream *)s, &c);
}
int emu_timeline_signal(struct gpu_timeline *base, uint32_t value, struct gpu_stream *s) {
    struct emu_timeline *n = (struct emu_timeline *)base;
    atomic_store(&n->writer, ((struct emu_stream *)s)->g);
    return enqueue_command(n, s, EMU_TIMELINE_SIGNAL, value);
}
int emu_timeline_wait(struct gpu_timeline *base, uint32_t value, struct gpu_stream *s) {
    return enqueue_command((struct emu_timeline *)base, s, EMU_TIMELINE_WAIT, value);
}
