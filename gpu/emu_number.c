/* Timelines on emulated devices. Streams wait on a condition, the host polls and then waits on the same condition. In virtual
 * time each value carries the clock of the stream that signalled it. */
#include <assert.h>
#include <time.h>

#include "engine/base/mem.h"
#include "gpu/emu_number.h"

int emu_number_open(struct gpu *g, struct gpu_number **out, struct error *e) {
    struct emu_number *n = mem_calloc(1, sizeof *n);
    if (!n) return error_set(e, ERR_MEMORY, "no memory for a timeline");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&n->cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&n->lock, NULL);
    n->base.word = n->words;
    *out = &n->base;
    return 0;
}
void emu_number_close(struct gpu_number *base) {
    struct emu_number *n = (struct emu_number *)base;
    assert(!atomic_load(&n->queued)); /* no stream may use it */
    pthread_mutex_destroy(&n->lock);
    pthread_cond_destroy(&n->cond);
    mem_free(n);
}
void emu_number_wake(struct gpu_number *base) {
    struct emu_number *n = (struct emu_number *)base;
    pthread_mutex_lock(&n->lock);
    pthread_cond_broadcast(&n->cond);
    pthread_mutex_unlock(&n->lock);
}

/* Sleeps until a signal, at most 1 ms. Returns true when no signal can follow: a device has failed. */
static bool doze(struct emu_number *n, uint32_t value) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += 1000000;
    if (t.tv_nsec >= 1000000000) t.tv_sec++, t.tv_nsec -= 1000000000;
    pthread_mutex_lock(&n->lock);
    if (!gpu_number_reached(&n->base, value)) pthread_cond_timedwait(&n->cond, &n->lock, &t);
    struct emu *writer = n->writer;
    pthread_mutex_unlock(&n->lock);
    return emu_state((struct emu *)n->base.g) || (writer && emu_state(writer));
}
void emu_number_nap(struct gpu_number *base, uint32_t value) {
    if (doze((struct emu_number *)base, value) && !gpu_number_is(base, value)) gpu_number_break(base);
}

static void put(struct emu_stream *s, struct emu_number *n, uint32_t value, bool work) {
    if (work && (int32_t)(value - atomic_load(n->words)) < 0 && !gpu_number_broken(&n->base))
        emu_stream_fail(s, ERR_RUNTIME, "a timeline was signalled backwards, to %u", (unsigned)value);
    if (!work || emu_state(s->g)) {
        gpu_number_break(&n->base);
        return;
    }
    pthread_mutex_lock(&n->lock);
    n->past[n->n_past % EMU_PAST].value = value;
    if (s->g->spec.is_virtual) n->past[n->n_past % EMU_PAST].told = s->told;
    n->past[n->n_past++ % EMU_PAST].time = s->t;
    pthread_mutex_unlock(&n->lock);
    gpu_number_set(&n->base, value);
}
static void pass(struct emu_stream *s, struct emu_number *n, uint32_t value) {
    bool lost = emu_drops(s);
    while (!lost && !gpu_number_reached(&n->base, value)) {
        lost = doze(n, value) || emu_drops(s);
        emu_be_late(s);
    }
    if (lost && !gpu_number_is(&n->base, value)) gpu_number_break(&n->base);
    pthread_mutex_lock(&n->lock);
    for (uint64_t i = n->n_past > EMU_PAST ? n->n_past - EMU_PAST : 0; i < n->n_past; i++) /* the first sufficient one */
        if ((int32_t)(n->past[i % EMU_PAST].value - value) >= 0) {
            if (n->past[i % EMU_PAST].time > s->t) s->t = n->past[i % EMU_PAST].time;
            if (n->writer == s->g) emu_tell(&s->told, &n->past[i % EMU_PAST].told);
            break;
        }
    pthread_mutex_unlock(&n->lock);
}

void emu_number_put(struct emu_stream *s, struct emu_number *n, uint32_t value, bool work) {
    put(s, n, value, work);
    atomic_fetch_sub(&n->queued, 1);
}
void emu_number_pass(struct emu_stream *s, struct emu_number *n, uint32_t value) {
    pass(s, n, value);
    atomic_fetch_sub(&n->queued, 1);
}

static int queue(struct emu_number *n, struct gpu_stream *s, int kind, uint32_t value) {
    atomic_fetch_add(&n->queued, 1);
    return emu_enqueue((struct emu_stream *)s, &(struct emu_cmd){.kind = kind, .number = {n, value}});
}
int emu_number_write(struct gpu_number *base, uint32_t value, struct gpu_stream *s) {
    struct emu_number *n = (struct emu_number *)base;
    pthread_mutex_lock(&n->lock);
    n->writer = ((struct emu_stream *)s)->g;
    pthread_mutex_unlock(&n->lock);
    return queue(n, s, EMU_WRITE, value);
}
int emu_number_wait(struct gpu_number *base, uint32_t value, struct gpu_stream *s) { return queue((struct emu_number *)base, s, EMU_AWAIT, value); }
