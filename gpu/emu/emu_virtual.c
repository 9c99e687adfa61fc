/* Streams in virtual time. A command only moves the stream's clock, which costs less than waking a thread. So these
 * streams have none: the thread that enqueues a command runs it, and a command that waits is run, with those queued
 * after it, by the thread whose command or host signal ends the wait. No thread holds the locks of two streams: it
 * first collects the streams that its commands wake. Lock order: all streams, a stream, an event or timeline, a
 * device. */
#include <sched.h>
#include <time.h>

#include "gpu/emu/emu_timeline.h"

/* --- Waiting streams -------------------------------------------------------------------------- */

/* Streams that commands of this thread have woken. */
static _Thread_local struct {
    struct emu_stream *first, *last;
    bool is_running; /* the thread holds a stream's lock, or runs woken streams already */
} woken;

void emu_virtual_add_woken(struct emu_stream **waiters) {
    if (!*waiters) return;
    if (woken.last) woken.last->next_woken = *waiters;
    else woken.first = *waiters;
    for (woken.last = *waiters; woken.last->next_woken; woken.last = woken.last->next_woken) {
    }
    *waiters = NULL;
}

/* With the lock held. A stream that is in a list already will be run, and then looks again at what it waits for. */
static void add_waiter(struct emu_stream **waiters, struct emu_stream *s) {
    if (s->is_linked) return;
    s->is_linked = true;
    s->next_woken = *waiters;
    *waiters = s;
}
/* Returns true if the command ends without waiting for another stream; otherwise adds the stream to those that wait. */
static bool can_run(struct emu_stream *s, const struct emu_cmd *c) {
    if (c->kind == EMU_EVENT_WAIT) {
        struct emu_event *ev = c->event.ev;
        pthread_mutex_lock(&ev->lock);
        const bool done = ev->n_done >= c->event.seq;
        if (!done) add_waiter(&ev->waiters, s);
        pthread_mutex_unlock(&ev->lock);
        return done;
    }
    if (c->kind != EMU_TIMELINE_WAIT || gpu_timeline_reached(&c->timeline.n->base, c->timeline.value) ||
        emu_stream_drops(s))
        return true;
    struct emu_timeline *n = c->timeline.n;
    pthread_mutex_lock(&n->lock);
    const bool done = gpu_timeline_reached(&n->base, c->timeline.value) || emu_timeline_is_lost(n, n->writer);
    if (!done) add_waiter(&n->waiters, s);
    pthread_mutex_unlock(&n->lock);
    return done;
}
/* Runs the queue up to a command that waits; with the lock held. */
static void run_queue(struct emu_stream *s) {
    while (s->head < s->tail && can_run(s, &s->queue[s->head % EMU_QUEUE])) {
        emu_stream_run(s, &s->queue[s->head % EMU_QUEUE]);
        if (++s->head >= s->wake_head) s->wake_head = UINT64_MAX, pthread_cond_broadcast(&s->room_cond);
        emu_stream_count_done(s);
    }
}

void emu_virtual_run_woken(void) {
    if (woken.is_running || !woken.first) return;
    woken.is_running = true;
    for (struct emu_stream *s; (s = woken.first);) {
        if (!(woken.first = s->next_woken)) woken.last = NULL;
        pthread_mutex_lock(&s->lock);
        s->is_linked = false;
        run_queue(s);
        pthread_mutex_unlock(&s->lock);
    }
    woken.is_running = false;
}

void emu_virtual_enqueue(struct emu_stream *s, const struct emu_cmd *c) {
    pthread_mutex_lock(&s->lock);
    if (s->head == s->tail && can_run(s, c)) {
        woken.is_running = true;
        emu_stream_run(s, c);
    } else {
        emu_stream_push(s, c);
        woken.is_running = true;
        if (s->tail - s->head == 1) run_queue(s); /* its wait may have ended since */
    }
    woken.is_running = false;
    pthread_mutex_unlock(&s->lock);
    emu_virtual_run_woken();
}

/* --- All streams ------------------------------------------------------------------------------ */

static struct {
    pthread_mutex_t lock;
    struct emu_stream *first;
} open_streams = {.lock = PTHREAD_MUTEX_INITIALIZER};

void emu_virtual_open(struct emu_stream *s) {
    pthread_mutex_lock(&open_streams.lock);
    s->next_open = open_streams.first, s->open_link = &open_streams.first;
    if (s->next_open) s->next_open->open_link = &s->next_open;
    open_streams.first = s;
    pthread_mutex_unlock(&open_streams.lock);
}
void emu_virtual_close(struct emu_stream *s) {
    pthread_mutex_lock(&s->lock);
    emu_stream_wait_for_head(s, s->tail);
    while (s->is_linked) { /* another thread is about to run it */
        pthread_mutex_unlock(&s->lock);
        sched_yield();
        pthread_mutex_lock(&s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&open_streams.lock);
    *s->open_link = s->next_open;
    if (s->next_open) s->next_open->open_link = s->open_link;
    pthread_mutex_unlock(&open_streams.lock);
}

void emu_virtual_poll(void) {
    if (woken.is_running) return;
    woken.is_running = true;
    pthread_mutex_lock(&open_streams.lock);
    for (struct emu_stream *s = open_streams.first; s; s = s->next_open) {
        if (pthread_mutex_trylock(&s->lock)) continue; /* another thread runs it */
        run_queue(s);
        pthread_mutex_unlock(&s->lock);
    }
    pthread_mutex_unlock(&open_streams.lock);
    woken.is_running = false;
    emu_virtual_run_woken();
}
