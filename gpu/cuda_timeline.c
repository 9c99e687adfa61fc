/* Timelines on CUDA. A stream signals with a one-thread kernel that checks the abort flag after its store (the driver's
 * stream write could overwrite the raised value of an aborted timeline, see GPU_TIMELINE_ABORT_STEP). It waits with the
 * driver's cuStreamWaitValue32, which occupies no SM; where the driver lacks it, with a polling kernel. CUDA cannot
 * tell that a stream waits for a timeline that will never be signalled. So all open timelines are in one list with
 * their waiting streams: a thread sweeps the list while anything waits, and aborts the timelines whose device, last
 * signalling stream or waiting stream has failed or was cancelled. Threads that wait for a timeline make no call of
 * CUDA, which could block. Memory calls that wait for the device pause the waits of streams
 * (cuda_timeline_pause_waits()). */
#include <time.h>

#include "base/clock.h"
#include "base/cond.h"
#include "base/mem.h"
#include "gpu/cuda.h"

static const double PAUSE_POLL_S = 200e-6, PAUSE_TIMEOUT_S = 10, WATCH_S = 1e-3;
/* from this driver version on, cuStreamWaitValue32 needs no system setting */
enum { WAITERS = 16, WAIT_GEQ = 0, DRIVER_12_0 = 12000 };

struct cuda_timeline {
    struct gpu_timeline base;
    struct cuda_timeline *next;
    struct cuda_stream *writer; /* stream that signalled last; NULL: none, or it was closed */
    struct {
        struct cuda_stream *s;
        uint32_t value;
        pthread_t by;  /* enqueued the wait */
    } waiter[WAITERS]; /* the latest value per stream; s NULL: unused */
};
static pthread_mutex_t list_lock = PTHREAD_MUTEX_INITIALIZER;
static struct cuda_timeline *timelines;
static pthread_cond_t wait_added, waits_resumed;
__attribute__((constructor)) static void init_conds(void) { cond_init(&wait_added), cond_init(&waits_resumed); }
/* threads between cuda_timeline_pause_waits() and cuda_timeline_resume_waits() */
static int n_pausers;
static atomic_int n_host_waits;                                /* threads asleep in cuda_timeline_sleep() */
static pthread_mutex_t watch_lock = PTHREAD_MUTEX_INITIALIZER; /* protects the watching thread's start and end */
static pthread_t watcher;
static bool is_watched;

typedef int (*wait_value_fn)(cudaStream_t s, unsigned long long address, uint32_t value, unsigned flags);
static wait_value_fn driver_wait;
static atomic_bool driver_refuses;
static void find_driver_wait(void) {
    void *p = NULL;
#if CUDART_VERSION >= 12050
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &p, DRIVER_12_0, cudaEnableDefault, &found)) p = NULL;
#elif CUDART_VERSION >= 12000
    enum cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPoint("cuStreamWaitValue32", &p, cudaEnableDefault, &found)) p = NULL;
#endif
    cudaGetLastError();
    driver_wait = (wait_value_fn)p;
}

/* The caller holds list_lock. Querying the stream surfaces faults of its work. */
static bool stream_has_failed(struct cuda_stream *s) {
    if (atomic_load(&s->is_recording)) return false; /* a query would invalidate the capture */
    cudaError_t r = cudaStreamQuery(s->stream);
    if (r != cudaErrorNotReady) cuda_check(s->g, r, "running");
    return cuda_stream_state(s) != 0;
}
static void sweep_timeline(struct cuda_timeline *n) {
    bool broken = n->base.g->b->error(n->base.g, NULL) || (n->writer && stream_has_failed(n->writer));
    for (int i = 0; i < WAITERS && !broken; i++)
        broken = n->waiter[i].s && !gpu_timeline_is_at_least(&n->base, n->waiter[i].value) &&
                 stream_has_failed(n->waiter[i].s);
    if (broken) gpu_timeline_abort(&n->base);
}
static bool wait_is_pending(const struct cuda_timeline *n, int slot) {
    return !gpu_timeline_is_at_least(&n->base, n->waiter[slot].value) && !gpu_timeline_is_aborted(&n->base);
}
bool cuda_timeline_blocks(const struct cuda_stream *s) {
    bool any = false;
    pthread_mutex_lock(&list_lock);
    for (struct cuda_timeline *n = timelines; n; n = n->next)
        for (int i = 0; i < WAITERS; i++) any |= n->waiter[i].s == s && wait_is_pending(n, i);
    pthread_mutex_unlock(&list_lock);
    return any;
}
/* The caller holds list_lock. *own, if not NULL: the calling thread enqueued one of them. */
static bool any_wait_is_pending(bool *own) {
    bool any = false;
    for (struct cuda_timeline *n = timelines; n; n = n->next)
        for (int i = 0; i < WAITERS; i++) {
            if (!n->waiter[i].s || !wait_is_pending(n, i)) continue;
            any = true;
            if (own) *own |= pthread_equal(n->waiter[i].by, pthread_self());
        }
    return any;
}
bool cuda_timeline_pause_waits(void) {
    const double begin_s = clock_now();
    bool own = false, late = false;
    pthread_mutex_lock(&list_lock);
    n_pausers++;
    while (any_wait_is_pending(&own) && !own && !late) {
        cond_wait_s(&waits_resumed, &list_lock, PAUSE_POLL_S);
        late = clock_now() - begin_s > PAUSE_TIMEOUT_S;
    }
    pthread_mutex_unlock(&list_lock);
    if (!own && !late) return true;
    cuda_timeline_resume_waits();
    return false;
}
void cuda_timeline_resume_waits(void) {
    pthread_mutex_lock(&list_lock);
    n_pausers--;
    pthread_cond_broadcast(&waits_resumed);
    pthread_mutex_unlock(&list_lock);
}

static void *watch(void *arg) {
    pthread_mutex_lock(&list_lock);
    while (timelines) {
        const bool waits = any_wait_is_pending(NULL) || atomic_load(&n_host_waits);
        for (struct cuda_timeline *n = timelines; n && waits; n = n->next) sweep_timeline(n);
        if (waits) cond_wait_s(&wait_added, &list_lock, WATCH_S);
        else pthread_cond_wait(&wait_added, &list_lock);
    }
    pthread_mutex_unlock(&list_lock);
    return NULL;
}

int cuda_timeline_open(struct gpu *base, struct gpu_timeline **out, struct error *e) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    struct cuda_timeline *n = mem_calloc(1, sizeof *n);
    void *word = NULL;
    if (!n) return error_set(e, ERR_MEMORY, "no memory for a timeline");
    int rc = cuda_memory_host_alloc(base, &word, 2 * sizeof *n->base.word /* value, abort flag */, e);
    if (rc) {
        mem_free(n);
        return rc;
    }
    pthread_once(&once, find_driver_wait);
    n->base.g = base; /* before the timeline is in the list */
    n->base.word = word;
    atomic_init(&n->base.word[0], 0);
    atomic_init(&n->base.word[1], 0);
    pthread_mutex_lock(&watch_lock);
    pthread_mutex_lock(&list_lock);
    n->next = timelines;
    timelines = n;
    pthread_mutex_unlock(&list_lock);
    is_watched = is_watched || !pthread_create(&watcher, NULL, watch, NULL);
    const bool ok = is_watched;
    pthread_mutex_unlock(&watch_lock);
    *out = &n->base;
    if (ok) return 0;
    cuda_timeline_close(&n->base);
    *out = NULL;
    return error_set(e, ERR_RUNTIME, "cannot start a thread that watches timelines");
}
void cuda_timeline_close(struct gpu_timeline *base) {
    struct cuda_timeline *n = (struct cuda_timeline *)base;
    pthread_mutex_lock(&watch_lock);
    pthread_mutex_lock(&list_lock);
    struct cuda_timeline **p = &timelines;
    while (*p != n) p = &(*p)->next;
    *p = n->next;
    const bool last = !timelines;
    pthread_cond_signal(&wait_added);
    pthread_mutex_unlock(&list_lock);
    if (last && is_watched) pthread_join(watcher, NULL), is_watched = false;
    pthread_mutex_unlock(&watch_lock);
    cuda_memory_host_free(base->g, (void *)base->word);
    mem_free(n);
}

void cuda_timeline_forget_stream(struct cuda_stream *s) {
    pthread_mutex_lock(&list_lock);
    for (struct cuda_timeline *n = timelines; n; n = n->next) {
        if (n->writer == s) n->writer = NULL;
        for (int i = 0; i < WAITERS; i++)
            if (n->waiter[i].s == s) n->waiter[i].s = NULL;
    }
    pthread_mutex_unlock(&list_lock);
}

void cuda_timeline_set_recording(struct cuda_stream *s, bool recording) {
    pthread_mutex_lock(&list_lock);
    atomic_store(&s->is_recording, recording);
    pthread_mutex_unlock(&list_lock);
}

int cuda_timeline_signal(struct gpu_timeline *base, uint32_t value, struct gpu_stream *stream) {
    struct cuda_timeline *n = (struct cuda_timeline *)base;
    struct cuda_stream *s = (struct cuda_stream *)stream;
    pthread_mutex_lock(&list_lock);
    n->writer = s;
    pthread_mutex_unlock(&list_lock);
    int r = cuda_stream_state(s);
    if (!r) r = cuda_check(s->g, cudaSetDevice(s->g->card), "device");
    if (!r)
        r = cuda_check(s->g, cuda_timeline_launch_signal(s->stream, (uint32_t *)base->word, value), "timeline signal");
    if (r) gpu_timeline_abort(base);
    return r;
}
int cuda_timeline_wait(struct gpu_timeline *base, uint32_t value, struct gpu_stream *stream) {
    struct cuda_timeline *n = (struct cuda_timeline *)base;
    struct cuda_stream *s = (struct cuda_stream *)stream;
    int r = cuda_stream_state(s), at = -1;
    pthread_mutex_lock(&list_lock);
    for (int i = 0; i < WAITERS && (at < 0 || n->waiter[at].s != s); i++)
        if (n->waiter[i].s == s || (!n->waiter[i].s && at < 0)) at = i;
    /* A pause begins once no wait is pending. Until then further waits go ahead, since pending ones may depend on them.
     */
    while (n_pausers && !any_wait_is_pending(NULL)) pthread_cond_wait(&waits_resumed, &list_lock);
    if (at >= 0 && !r) n->waiter[at].s = s, n->waiter[at].value = value, n->waiter[at].by = pthread_self();
    pthread_cond_signal(&wait_added);
    pthread_mutex_unlock(&list_lock);
    if (!r && at < 0) r = cuda_check(s->g, cudaErrorInvalidValue, "timeline with too many streams");
    if (!r) r = cuda_check(s->g, cudaSetDevice(s->g->card), "device");
    bool done = false;
    if (!r && driver_wait && !atomic_load(&driver_refuses)) {
        done = driver_wait(s->stream, (unsigned long long)(uintptr_t)base->word, value, WAIT_GEQ) == 0;
        if (!done) atomic_store(&driver_refuses, true);
    }
    if (!r && !done)
        r = cuda_check(s->g, cuda_timeline_launch_wait(s->stream, (const uint32_t *)base->word, value),
                       "timeline wait");
    if (r && !gpu_timeline_is_at_least(base, value)) gpu_timeline_abort(base);
    return r;
}
void cuda_timeline_wake(struct gpu_timeline *n) {}
void cuda_timeline_sleep(struct gpu_timeline *n, uint32_t value) {
    /* without list_lock: the next call repeats a signal that was missed */
    if (!atomic_fetch_add(&n_host_waits, 1)) pthread_cond_signal(&wait_added);
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    atomic_fetch_sub(&n_host_waits, 1);
}
