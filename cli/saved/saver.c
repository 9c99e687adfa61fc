#include "cli/saved/saver.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/file.h"
#include "base/mem.h"
#include "cli/terminal/sig.h"

struct saver_job {
    struct saver_job *next;
    char *path;
    struct buf contents;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t jobs_changed = PTHREAD_COND_INITIALIZER;
static struct { /* under the lock */
    struct saver_job *first;
    bool closing, failed;
    struct error failure;
} state;
static _Atomic int n_unwritten; /* jobs, including the one being written */
static pthread_t thread;        /* used only by the caller's thread, as is thread_running */
static bool thread_running;

static void job_free(struct saver_job *j) {
    if (!j) return;
    mem_free(j->path);
    buf_free(&j->contents);
    mem_free(j);
}

struct newest {
    const char *path; /* of the file that does not count */
    size_t dir_n;     /* of its directory, with the slash */
    struct timespec at;
};
static bool is_later(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}
static int note_newest(void *ctx, const char *file) {
    static const char ending[] = ".json";
    struct newest *x = ctx;
    char path[PATH_MAX];
    struct stat st;
    const size_t n = strlen(file), k = sizeof ending - 1;
    if (n <= k || strcmp(file + n - k, ending) || !strcmp(file, x->path + x->dir_n)) return 0;
    snprintf(path, sizeof path, "%.*s%s", (int)x->dir_n, x->path, file);
    if (!stat(path, &st) && is_later(st.st_mtim, x->at)) x->at = st.st_mtim;
    return 0;
}
/* Makes an open file the newest of the conversations, also when the clock was set back since another was saved: --last
 * and --list go by the time of modification. */
static void set_newest(const char *path, int fd) {
    const char *slash = strrchr(path, '/');
    struct newest x = {.path = path, .dir_n = slash ? (size_t)(slash - path) + 1 : 0};
    struct timespec now;
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%.*s", x.dir_n ? (int)x.dir_n : 1, x.dir_n ? path : ".");
    error_ignore(file_list(dir, note_newest, &x, NULL));
    clock_gettime(CLOCK_REALTIME, &now);
    if (is_later(now, x.at)) x.at = now;
    else if (++x.at.tv_nsec == 1000000000) x.at.tv_sec++, x.at.tv_nsec = 0;
    error_ignore(futimens(fd, (struct timespec[]){x.at, x.at})); /* then the order is that of the clock */
}

int saver_write(const char *path, const void *data, size_t size, struct error *e) {
    struct file_out o;
    int rc = file_out_open(&o, path, 0600, e);
    if (rc) return rc;
    const int w = file_write_all(o.fd, data, size);
    if (w) rc = error_set(e, ERR_RUNTIME, "%s: cannot write: %s", path, strerror(-w));
    else set_newest(path, o.fd);
    const int closed = file_out_close(&o, !w, e);
    return rc ? rc : closed;
}

static void *saver_thread(void *unused) {
    pthread_mutex_lock(&lock);
    for (;;) {
        struct saver_job *j = state.first;
        struct error e;
        if (!j && state.closing) break;
        if (!j) {
            pthread_cond_wait(&jobs_changed, &lock);
            continue;
        }
        state.first = j->next;
        pthread_mutex_unlock(&lock);
        int rc = saver_write(j->path, j->contents.data, j->contents.len, &e);
        job_free(j);
        pthread_mutex_lock(&lock);
        if (rc && !state.failed) {
            state.failed = true;
            state.failure = e;
        }
        atomic_fetch_sub(&n_unwritten, 1);
        if (rc) sig_wake();
        pthread_cond_broadcast(&jobs_changed);
    }
    pthread_mutex_unlock(&lock);
    return unused;
}

/* Waits at most a second for unwritten files when a signal ends the process. */
static void wait_briefly(void) {
    enum { STEP_MS = 2, AT_MOST_MS = 1000 };
    for (int ms = 0; ms < AT_MOST_MS && atomic_load(&n_unwritten); ms += STEP_MS)
        nanosleep(&(struct timespec){.tv_nsec = STEP_MS * 1000000L}, NULL);
}

static bool start_thread(void) {
    if (thread_running) return true;
    sig_at_exit(wait_briefly);
    return thread_running = sig_start_thread(&thread, saver_thread, NULL);
}

int saver_submit(const char *path, struct buf *contents, struct error *e) {
    struct saver_job *j = mem_calloc(1, sizeof *j);
    if (j) *j = (struct saver_job){.path = mem_strdup(path), .contents = *contents};
    if (!j || !j->path || !start_thread()) {
        saver_wait(); /* keep the order of writes */
        int rc = saver_write(path, contents->data, contents->len, e);
        if (j) j->contents = (struct buf){0};
        job_free(j);
        buf_free(contents);
        return rc;
    }
    *contents = (struct buf){0};
    pthread_mutex_lock(&lock);
    struct saver_job **at = &state.first;
    while (*at && strcmp((*at)->path, path)) at = &(*at)->next;
    struct saver_job *older = *at;
    if (older) j->next = older->next;
    else atomic_fetch_add(&n_unwritten, 1);
    *at = j;
    pthread_cond_broadcast(&jobs_changed);
    pthread_mutex_unlock(&lock);
    job_free(older);
    return 0;
}

void saver_wait(void) {
    pthread_mutex_lock(&lock);
    while (atomic_load(&n_unwritten)) pthread_cond_wait(&jobs_changed, &lock);
    pthread_mutex_unlock(&lock);
}

int saver_take_error(struct error *e) {
    pthread_mutex_lock(&lock);
    int rc = state.failed ? state.failure.code : 0;
    if (rc) *e = state.failure;
    state.failed = false;
    pthread_mutex_unlock(&lock);
    return rc;
}

void saver_close(void) {
    if (!thread_running) return;
    pthread_mutex_lock(&lock);
    state.closing = true;
    pthread_cond_broadcast(&jobs_changed);
    pthread_mutex_unlock(&lock);
    pthread_join(thread, NULL);
    thread_running = state.closing = false;
}
