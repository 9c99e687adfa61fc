#include "engine/plan/plan_query.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

#include "base/mem.h"

enum { THREADS = 16 };

/* --- One query: a prefill is simulated with some layers and with MORE more of them; since layers of a kind are alike,
 * the difference extrapolates to the rest
 * - */

static bool is_prefill(const struct plan_query *q) { return exec_modes[q->mode].stage == STAGE_PREFILL; }

enum {
    PERIOD = 4,
    MORE = 2 * PERIOD
    /* Layer kinds repeat with at most this period. Thread order changes the time by a few milliseconds, so more than
       one period is added. */
};
static int simulated_layers(const struct config *c) {
    int dense = 0;
    while (dense < c->n_layers && !c->layer[dense].moe) dense++;
    return dense + PERIOD + MORE < c->n_layers ? dense + PERIOD : c->n_layers;
}

static int simulate_layers(const struct plan_queries *r, struct plan_query *q, int layers, double *seconds,
                           struct error *e) {
    const struct virtual_options o = {.cost = q->cost,
                                      .w = r->w,
                                      .kv = r->kv,
                                      .stream_rate = q->stream_rate,
                                      .max_layers = layers,
                                      .experts = r->experts,
                                      .usage = r->usage};
    struct virtual *v;
    int rc = virtual_open(&v, &o, e);
    if (rc) return rc;
    rc = is_prefill(q) ? virtual_prefill(v, q->mode, q->n, seconds, e)
                       : virtual_decode(v, q->mode, q->n, PLAN_KEYS, seconds, NULL, e);
    if (!rc) q->used = *virtual_used(v);
    virtual_close(&v);
    return rc;
}

static int simulate_paged(const struct plan_queries *r, struct plan_query *q, double stream_rate, struct error *e) {
    struct virtual *v;
    int rc = virtual_open(
        &v, &(struct virtual_options){.cost = q->cost, .w = r->w, .kv = r->kv, .stream_rate = stream_rate}, e);
    if (rc) return rc;
    rc = virtual_paged(v, &q->throughput, &q->prefill_s, &q->seconds, e);
    if (!rc) q->used = *virtual_used(v);
    virtual_close(&v);
    return rc;
}
/* Uploads leave the CPU the less bandwidth, the shorter a batch is. If one takes longer than expected they need less of
 * it, and it is between that time and the one which that rate gives. */
static int simulate_throughput(const struct plan_queries *r, struct plan_query *q, struct error *e) {
    const double close_enough = 1.25, moved = q->stream_rate * q->expected_s;
    int rc = simulate_paged(r, q, q->stream_rate, e);
    const double longest = q->seconds;
    if (rc || !(moved > 0) || longest <= close_enough * q->expected_s) return rc;
    if (!(rc = simulate_paged(r, q, moved / longest, e)))
        rc = simulate_paged(r, q, moved / sqrt(longest * q->seconds), e);
    return rc;
}

static int simulate_query(const struct plan_queries *r, struct plan_query *q, struct error *e) {
    if (q->throughput.n_prompts) return simulate_throughput(r, q, e);
    const struct config *c = &r->w->config;
    const int few = is_prefill(q) && !q->is_uneven ? simulated_layers(c) : c->n_layers;
    double less, more;
    int rc = simulate_layers(r, q, few, &less, e);
    if (rc) return rc;
    q->seconds = less;
    if (few == c->n_layers) return 0;
    if ((rc = simulate_layers(r, q, few + MORE, &more, e))) return rc;
    struct cost_model model;
    cost_model_of(&model, c, DT_BF16, DT_BF16, r->kv);
    double head = q->mode == PREFILL_CPU ? 0 : cost_head(q->cost, 0, &model, 1); /* included in CPU prefills */
    q->seconds = more + (more - less) / MORE * (c->n_layers - few - MORE) + head;
    return 0;
}

/* --- All of them ------------------------------------------------------------------------------ */

struct run {
    struct plan_queries *all;
    _Atomic int next, done, failed;
    pthread_mutex_t lock;
    struct error error; /* the first error */
};

static void *query_thread(void *arg) {
    struct run *r = arg;
    const int n = r->all->n;
    for (int i; !atomic_load(&r->failed) && (i = atomic_fetch_add(&r->next, 1)) < n; atomic_fetch_add(&r->done, 1)) {
        struct error e = {0};
        struct plan_query *q = &r->all->query[n - 1 - i]; /* longest runs are last: start with them */
        int rc = simulate_query(r->all, q, &e);
        if (!rc) continue;
        q->is_infeasible = true, q->seconds = INFINITY;
        if (rc == ERR_MEMORY) continue;
        pthread_mutex_lock(&r->lock);
        if (!atomic_exchange(&r->failed, rc)) r->error = e;
        pthread_mutex_unlock(&r->lock);
    }
    return NULL;
}

int plan_query_run(struct plan_queries *q, int (*progress)(void *ctx, double share), void *ctx, struct error *e) {
    struct run r = {.all = q, .lock = PTHREAD_MUTEX_INITIALIZER};
    pthread_t thread[THREADS];
    int started = 0, cancelled = 0;
    long most = sysconf(_SC_NPROCESSORS_ONLN);
    while (started < THREADS && started < most && started < q->n &&
           !pthread_create(&thread[started], NULL, query_thread, &r))
        started++;
    if (!started) return error_set(e, ERR_RUNTIME, "cannot start a thread for virtual time");
    while (progress && !cancelled && !atomic_load(&r.failed) && atomic_load(&r.done) < q->n) {
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
        if (progress(ctx, atomic_load(&r.done) / (double)q->n)) cancelled = 1, atomic_store(&r.failed, ERR_CANCELLED);
    }
    for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
    if (cancelled) return error_set(e, ERR_CANCELLED, "stopped");
    if (atomic_load(&r.failed)) return *e = r.error, e->code;
    return 0;
}

static bool is_same(const struct plan_query *a, const struct plan_query *b) {
    return a->cost == b->cost && a->mode == b->mode && a->n == b->n && a->stream_rate == b->stream_rate &&
           !a->throughput.n_prompts && !b->throughput.n_prompts;
}

int plan_query_add(struct plan_queries *r, const struct plan_query *q, struct error *e) {
    for (int i = 0; i < r->n; i++)
        if (is_same(&r->query[i], q)) return i;
    if (mem_grow(&r->query, &r->cap, (size_t)r->n + 1, sizeof *r->query))
        return error_set(e, ERR_MEMORY, "no memory for a plan");
    r->query[r->n] = *q;
    return r->n++;
}

void plan_query_free(struct plan_queries *r) {
    mem_free(r->query);
    *r = (struct plan_queries){0};
}
