#include "cli/saver.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "cli/sig.h"
#include "engine/base/file.h"
#include "engine/base/mem.h"

struct job {
    struct job *next;
    char *path;
    struct buf contents;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct { /* under the lock */
    struct job *first;
    bool closing, failed;
    struct error failure;
} state;
static _Atomic int unwritten; /* jobs, including the one being written */
static pthread_t thread;      /* used only by the caller's thread, as is running */
static bool running;

static void job_free(struct job *j) {
    if (!j) return;
    mem_free(j->path);
    buf_free(&j->contents);
    mem_free(j);
}

static void *run(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) {
        struct job *j = state.first;
        struct error e;
        if (!j && state.closing) break;
        if (!j) {
            pthread_cond_wait(&changed, &lock);
            continue;
        }
        state.first = j->next;
        pthread_mutex_unlock(&lock);
        int rc = file_write(j->path, j->contents.data, j->contents.len, &e);
        job_free(j);
        pthread_mutex_lock(&lock);
        if (rc && !state.failed) {
            state.failed = true;
            state.failure = e;
        }
        atomic_fetch_sub(&unwritten, 1);
        if (rc) sig_wake();
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

/* Starts the thread, with process signals blocked: they belong to the terminal thread. Faults stay enabled. */
static bool start(void) {
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
    sigset_t all, was;
    if (running) return true;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    running = !pthread_create(&thread, NULL, run, NULL);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return running;
}

int saver_put(const char *path, struct buf *contents, struct error *e) {
    struct job *j = mem_calloc(1, sizeof *j);
    if (j) *j = (struct job){.path = mem_strdup(path), .contents = *contents};
    if (!j || !j->path || !start()) {
        saver_wait(); /* keep the order of writes */
        int rc = file_write(path, contents->data, contents->len, e);
        if (j) j->contents = (struct buf){0};
        job_free(j);
        buf_free(contents);
        return rc;
    }
    *contents = (struct buf){0};
    pthread_mutex_lock(&lock);
    struct job **at = &state.first;
    while (*at && strcmp((*at)->path, path)) at = &(*at)->next;
    struct job *older = *at;
    if (older) j->next = older->next;
    else atomic_fetch_add(&unwritten, 1);
    *at = j;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    job_free(older);
    return 0;
}

void saver_wait(void) {
    pthread_mutex_lock(&lock);
    while (atomic_load(&unwritten)) pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

int saver_failed(struct error *e) {
    pthread_mutex_lock(&lock);
    int rc = state.failed ? state.failure.code : 0;
    if (rc) *e = state.failure;
    state.failed = false;
    pthread_mutex_unlock(&lock);
    return rc;
}

void saver_close(void) {
    if (!running) return;
    pthread_mutex_lock(&lock);
    state.closing = true;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    running = state.closing = false;
}

void saver_finish(void) {
    enum { STEP_MS = 2, AT_MOST_MS = 1000 };
    for (int ms = 0; ms < AT_MOST_MS && atomic_load(&unwritten); ms += STEP_MS) nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL);
}
