/* The engine thread, which owns the CPU executor. Each round it does one unit of ready work: a decode batch of all decoding
 * sessions, a unit of the running prefill (a layer; one prefill at a time, clients take turns), or a task from another
 * thread. When decode competes with the rest, each gets half of the time. A prefill on devices has its own thread and overlaps
 * with decode batches. */
#include <math.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/loop.h"
#include "engine/many.h"
#include "engine/pipe/trace.h"
#include "engine/sched/calibrate.h"

/* --- Tasks from other threads ---------------------------------------------------------------------------------------------------- */

struct piece {
    int (*fn)(void *arg);
    void *arg;
    int rc;
    bool done;
    struct piece *next;
};

int engine_run(void *engine, int (*fn)(void *arg), void *arg) {
    struct engine *e = engine;
    struct piece p = {.fn = fn, .arg = arg}, **end = &e->pieces;
    pthread_mutex_lock(&e->lock);
    while (*end) end = &(*end)->next;
    *end = &p;
    engine_wake(e);
    while (!p.done) pthread_cond_wait(&e->over, &e->lock);
    pthread_mutex_unlock(&e->lock);
    return p.rc;
}

static void run_piece(struct engine *e, struct piece *p) {
    p->rc = p->fn(p->arg);
    pthread_mutex_lock(&e->lock);
    p->done = true;
    pthread_cond_broadcast(&e->over);
    pthread_mutex_unlock(&e->lock);
}

/* --- The loop ---------------------------------------------------------------------------------------------------------------- */

/* Calibrates the machine before the first decision that involves a GPU. Takes seconds unless the results are saved. */
void engine_measure(struct engine *e) {
    struct gpu_set *g = e->machine.gpus;
    struct error err = {0};
    struct cost_machine found;
    e->measured = true;
    e->machine.cpu->cancel = &e->closing;
    if (calibrate(&found,
                  &(struct calibrate_options){.cpu = e->machine.cpu,
                                              .threads = e->info.threads,
                                              .pool = e->pool,
                                              .nodes = &e->nodes,
                                              .gpu = g->gpu,
                                              .n_gpus = g->n,
                                              .gpus = e->params.gpus,
                                              .dir = e->params.machine,
                                              .cancel = &e->closing},
                  &err)) {
        log_say(LOG_WARN, "calibration failed: %s; assuming typical speeds", err.text);
        return;
    }
    found.deterministic = e->params.deterministic;
    e->cost = found;
    engine_path(e);
}

/* Work that is ready in this round, by priority. One unit of it runs. */
struct round {
    struct row rows[ENGINE_BATCH]; /* rows of the decode batch; n 0: none this round */
    int n, decoding;               /* decoding: sessions in decode, whether or not this round runs their batch */
    enum many_next many;
    struct piece *piece;
    bool prompt; /* a unit of prefill can run */
    bool reads;  /* a prefill runs or is stopping */
    bool asked;  /* a turn was ever submitted; before that weights are untouched */
};
enum look { LOOK_OVER, LOOK_MEASURE, LOOK_WORK }; /* OVER: the engine closes and no work is left */

static enum look look(struct engine *e, struct round *r) {
    struct session *batch[ENGINE_BATCH];
    session_reap(e);
    r->many = many_ready(e);
    if (!r->many) prompt_next(e);
    const int n = r->many ? 0 : decode_pick(e, batch);
    if (!e->measured && !e->mode && ((n && e->params.decode == DECODE_AUTO) || (e->reading && e->params.prefill == PREFILL_AUTO))) return LOOK_MEASURE;
    r->piece = e->pieces;
    r->prompt = prompt_ready(e);
    r->reads = e->reading || e->left;
    r->asked = e->orders;
    r->decoding = n;
    const bool other = r->piece || r->prompt;
    r->n = n && !(other && e->balance > 0) ? decode_rows(e, batch, n, r->rows) : 0;
    if (!r->n && r->piece) e->pieces = r->piece->next;
    return atomic_load(&e->closing) && !n && !other && !r->reads && !r->many ? LOOK_OVER : LOOK_WORK;
}

static void step(struct engine *e, struct round *r) {
    if (e->params.draft) drafts_add(e, r->rows, r->n);
    pthread_mutex_lock(&e->lock);
    e->stepping = true;
    for (int i = 0; i < r->n; i++) r->rows[i].s->kept = true;
    session_reap(e); /* cancelled turns need not wait for the batch */
    pthread_mutex_unlock(&e->lock);
    decode_step(e, r->rows, r->n);
    pthread_mutex_lock(&e->lock);
    e->stepping = false;
    pthread_mutex_unlock(&e->lock);
    /* Copies a chunk of a prompt; rate-limited to 4 MB per batch on average, about a millisecond. */
    if (e->steps % (1 + ((uint64_t)e->prefill_work.rows * e->info.kv_token_bytes >> 22)) == 0) prefix_save_one(e);
}

/* Tells the INT4 draft whether the engine thread is busy. A lossless INT4 draft is then converted slowly, unless there is a spare core or
 * drafts are forced. */
static void beside(struct engine *e, bool work) {
    if (e->int4) int4_beside(e->int4, work && !e->params.draft_len && pool_full(e->pool));
}

static void rest(struct engine *e, const struct round *r) {
    uint64_t wakes;
    if (prefix_save_one(e) || (r->asked && large_one(&e->large))) return;
    if (!r->reads) trace_save(e->machine.trace, e->params.trace, false);
    beside(e, false);
    if (read(e->wake, &wakes, sizeof wakes) < 0) {
    } /* interrupted: look again */
    beside(e, true);
}

static bool go_round(struct engine *e) {
    struct round r;
    pthread_mutex_lock(&e->lock);
    const enum look found = look(e, &r);
    pthread_mutex_unlock(&e->lock);
    if (found == LOOK_MEASURE) engine_measure(e);
    if (found != LOOK_WORK) return found != LOOK_OVER;
    const double begin = clock_now();
    if (r.n) step(e, &r);
    else if (r.piece) run_piece(e, r.piece);
    else if (r.many == MANY_STEP) many_step(e);
    else if (r.prompt) prompt_piece(e);
    else rest(e, &r);
    const double t = clock_now() - begin;
    /* Time that one side used is credited to the other, capped at this unit, so that no side waits long. */
    if (r.n) e->balance = fmin(e->balance + t, t);
    else if (r.piece || r.prompt) e->balance = r.decoding ? fmax(e->balance - t, -t) : 0;
    prompt_progress(e);
    return true;
}

void *engine_thread(void *engine) {
    struct engine *e = engine;
    pool_enter(e->pool);
    beside(e, true);
    while (go_round(e)) {
    }
    return NULL;
}
