/* Grammars and images of --serve: the schemas, patterns and grammars of requests are compiled, and images are decoded,
 * on threads of their own, so that one that takes long delays no connection and no other answer. Clients are served
 * round-robin, each with one thread at a time. A thread runs at full priority for a moment, then gives way to the
 * threads that compute. */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/test_limits.h"
#include "cli/server/server.h"

enum {
    MAX_JOBS = 3,            /* threads */
    LIMIT_S = 30,            /* for one request */
    LIMIT_WHEN_OTHERS_S = 2, /* the same, while others wait for a thread */
    FAST_MS = 50,            /* of a job, and in total until it is earned again, at full priority */
    FAST_SHARE = 50,         /* one of this many seconds is earned */
    NICE = 15,               /* afterwards */
    NICE_IMAGES = 5,         /* the same, of images, whose time is bounded by their size */
    STACK_BYTES = 16 << 20,  /* of a thread: expressions within expressions are compiled recursively */
};

struct compile_job {
    struct fair_entry queue_entry; /* its client and, while it waits, its place in the queue */
    struct compile_job *next;      /* in server->jobs, while it has a thread */
    struct http_request *request;
    enum serve_compile_what what;
    struct server *server;
    serve_compile_done *on_done;
    pthread_t thread;
    double began_s, fast_s; /* fast_s: time at full priority that it may use */
    double used_s;          /* of a processor */
    bool is_nice;
    atomic_bool cancelled, done;
    struct token_trie *trie; /* made by the job, if there was none */
    bool makes_trie;
    int rc;
    struct error error;
    int late_s; /* the limit that was exceeded; 0: none */
};

/* --- on the thread of a job ------------------------------------------------------------------- */

static double used_s(void) {
    struct timespec t;
    return clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) ? 0 : (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void give_way(struct compile_job *j) {
    if (j->is_nice || used_s() < j->fast_s) return;
    j->is_nice = true;
    const int own = getpriority(PRIO_PROCESS, 0);
    error_ignore(
        setpriority(PRIO_PROCESS, (id_t)gettid(), own + (j->what == COMPILE_IMAGES ? NICE_IMAGES : NICE))); /* without
                                                                                                               it others
                                                                                                               are only
                                                                                                               slower */
}

static bool may_go_on(void *ctx) {
    struct compile_job *j = ctx;
    const bool is_short = j->what == COMPILE_GRAMMAR && atomic_load(&j->server->n_compile_waiting);
    const int limit_s = is_short ? LIMIT_WHEN_OTHERS_S : LIMIT_S;
    give_way(j);
    if (clock_now() - j->began_s > limit_s * 1e-3 * (double)test_limits_get(TEST_LIMIT_SERVE_SECOND_MS, 1000))
        j->late_s = limit_s;
    return !j->late_s && !atomic_load(&j->cancelled);
}

static int compile_request(struct compile_job *j, struct error *e) {
    const struct effort_guard guard = {may_go_on, j};
    struct api_request *r = &j->request->request;
    if (j->what == COMPILE_IMAGES)
        return prompt_images_open(j->request->model->app, &r->template_input, may_go_on, j, &j->request->prompt.images,
                                  e);
    if (j->makes_trie) TRY(token_trie_open(&j->trie, j->request->model->app->tokenizer, e));
    if (r->text_source.text) { /* for its own message: within the whole it has no name */
        struct source_grammars text;
        TRY(source_compile_all(&r->text_source, &guard, &text, e));
        source_free(&text);
    }
    return source_compile_all(&r->source, &guard, &j->request->grammars, e);
}

static void *run_job(void *job) {
    struct compile_job *j = job;
    const uint64_t one = 1;
    give_way(j);
    j->rc = compile_request(j, &j->error);
    j->used_s = used_s();
    if (j->rc && j->late_s && j->what == COMPILE_IMAGES)
        j->rc = error_set(&j->error, ERR_USAGE,
                          "the images take longer than %d s to decode; send fewer or smaller ones", j->late_s);
    else if (j->rc && j->late_s == LIMIT_S)
        j->rc = error_set(&j->error, ERR_USAGE,
                          "%s: too complex: compiling it takes longer than %d s; use fewer alternatives within "
                          "alternatives, or shorter patterns",
                          j->request->request.source.name, LIMIT_S);
    else if (j->rc && j->late_s)
        j->rc =
            error_set(&j->error, ERR_MEMORY,
                      "%s: compiling it takes longer than %d s while other requests wait; retry later, or use fewer "
                      "alternatives within alternatives",
                      j->request->request.source.name, j->late_s);
    atomic_store(&j->done, true);
    error_ignore(write(j->server->compile_fd, &one, sizeof one)); /* fails only when the counter is full */
    return NULL;
}

/* --- on the serving thread -------------------------------------------------------------------- */

int serve_compile_open(struct server *s, struct error *e) {
    s->compile_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    s->fast_s = FAST_MS * 1e-3;
    return s->compile_fd >= 0 ? 0 : error_set(e, ERR_RUNTIME, "--serve: %s", error_reason(errno));
}

static bool client_may_compile(const void *server, const struct fair_entry *t) {
    for (const struct compile_job *j = ((const struct server *)server)->jobs; j; j = j->next)
        if (j->queue_entry.client == t->client) return false;
    return true;
}

/* Returns the time at full priority that a new job may use, and takes it from what is left. */
static double take_fast_time(struct server *s, double now) {
    s->fast_s += (now - s->fast_at_s) / FAST_SHARE;
    if (s->fast_s > FAST_MS * 1e-3) s->fast_s = FAST_MS * 1e-3;
    const double taken = s->fast_s;
    s->fast_at_s = now;
    s->fast_s = 0;
    return taken;
}

static int start_thread(struct compile_job *j) {
    pthread_attr_t attr;
    int rc = pthread_attr_init(&attr);
    if (rc) return rc;
    rc = pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (!rc) rc = pthread_create(&j->thread, &attr, run_job, j);
    pthread_attr_destroy(&attr);
    return rc;
}

static void end_job(struct compile_job *j) {
    struct http_request *x = j->request;
    serve_compile_done *done = j->on_done;
    const bool is_grammar = j->what == COMPILE_GRAMMAR;
    struct error e = j->error;
    const int rc = j->rc;
    x->job = NULL;
    mem_free(j);
    if (!rc && is_grammar) x->request.source.compiled = &x->grammars;
    done(x, rc, &e);
}

static void start_jobs(struct server *s) {
    for (;;) {
        int n = 0;
        for (const struct compile_job *j = s->jobs; j; j = j->next) n++;
        struct fair_entry *entry = n < MAX_JOBS ? fair_queue_next(&s->compile_queue, client_may_compile, s) : NULL;
        if (!entry) return;
        struct compile_job *j = (struct compile_job *)((char *)entry - offsetof(struct compile_job, queue_entry));
        fair_queue_serve(&s->compile_queue, entry);
        atomic_fetch_sub(&s->n_compile_waiting, 1);
        j->began_s = clock_now();
        j->fast_s = take_fast_time(s, j->began_s);
        j->makes_trie = j->what == COMPILE_GRAMMAR && !j->request->model->app->trie;
        j->next = s->jobs;
        s->jobs = j;
        if (!start_thread(j)) continue;
        s->jobs = j->next;
        j->rc = error_set(&j->error, ERR_MEMORY,
                          j->what == COMPILE_IMAGES ? "no thread to decode images"
                                                    : "no thread to compile the format of the answer");
        end_job(j);
    }
}

int serve_compile(struct http_request *x, enum serve_compile_what what, uint64_t client, serve_compile_done *on_done,
                  struct error *e) {
    struct server *s = x->server;
    struct compile_job *j = x->job = mem_calloc(1, sizeof *j);
    if (!j) return error_set(e, ERR_MEMORY, "no memory");
    j->request = x;
    j->what = what;
    j->server = s;
    j->on_done = on_done;
    x->state = HTTP_REQUEST_COMPILING;
    fair_queue_push(&s->compile_queue, &j->queue_entry, client, ++s->n_orders);
    atomic_fetch_add(&s->n_compile_waiting, 1);
    start_jobs(s);
    return 0;
}

/* Gives the part of the time at full priority back that a job has not used. */
static void return_fast_time(struct server *s, const struct compile_job *j) {
    if (!j->is_nice) s->fast_s += j->fast_s - j->used_s;
}

static void join_jobs(struct server *s, bool all) {
    for (struct compile_job **at = &s->jobs, *j; (j = *at);) {
        if (!all && !atomic_load(&j->done)) {
            at = &j->next;
            continue;
        }
        *at = j->next;
        pthread_join(j->thread, NULL);
        return_fast_time(s, j);
        struct app *a = j->request->model->app;
        if (!a->trie) a->trie = j->trie;
        else token_trie_close(&j->trie);
        end_job(j);
        at = &s->jobs; /* a request that failed may have changed the list */
    }
}

void serve_compile_finish(struct server *s) {
    uint64_t n;
    if (read(s->compile_fd, &n, sizeof n) == sizeof n) join_jobs(s, false);
    start_jobs(s);
}

bool serve_compile_cancel(struct http_request *x) {
    struct compile_job *j = x->job;
    if (!j) return false;
    for (const struct compile_job *k = x->server->jobs; k; k = k->next)
        if (k == j) return atomic_store(&j->cancelled, true), true;
    fair_queue_remove(&x->server->compile_queue, &j->queue_entry);
    atomic_fetch_sub(&x->server->n_compile_waiting, 1);
    x->job = NULL;
    mem_free(j);
    return false;
}

void serve_compile_close(struct server *s) {
    for (struct http_request *x = s->requests; x; x = x->next) serve_compile_cancel(x);
    join_jobs(s, true);
    if (s->compile_fd >= 0) close(s->compile_fd);
}
