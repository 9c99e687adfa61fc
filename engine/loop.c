/* The engine's thread, which owns the processor. It goes round and each time does one piece of what is ready: a step of all
 * sessions that answer, a piece of the prefill that runs (a layer; one at a time, first come, first served), or work that
 * another thread hands in. Where steps and the rest compete, each has the processor for half of the time. A prefill on devices
 * has a thread of its own, and steps go on beside it. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/internal.h"

/* --- Work of other threads --------------------------------------------------------------------------------------------------- */

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

/* --- How a turn goes on, or ends ---------------------------------------------------------------------------------------------- */

static void end(struct session *s, enum done_reason reason, int rc, const struct error *why) {
    pthread_mutex_lock(&s->engine->lock);
    session_end(s, rc == ERR_CANCELLED ? DONE_CANCELLED : reason, rc == ERR_CANCELLED ? 0 : rc, why);
    pthread_mutex_unlock(&s->engine->lock);
}

static bool is_stop(const struct session *s, int32_t id) {
    const struct engine_info *f = &s->engine->info;
    if (!(s->request.flags & REQUEST_NO_EOS))
        for (int i = 0; i < f->n_eos; i++)
            if (f->eos[i] == id) return true;
    for (int i = 0; i < s->request.n_stop_ids; i++)
        if (s->stop_ids[i] == id) return true;
    return false;
}

/* The cache holds all tokens of s; draws the next one and tells it. top: the largest logit's, or -1 where that is not known.
 * The session is let go, and may be gone after it. */
static void draw(struct session *s, float *logits, int32_t top) {
    struct engine *e = s->engine;
    bool full = s->n >= e->info.context;
    if (!s->request.max_tokens) {
        s->stats.ttft_s = clock_now() - s->submitted;
        end(s, full ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
        return;
    }
    int32_t id = top >= 0 && sample_is_top(&s->request.sampling) ? top : sample_token(logits, e->info.vocab, &s->request.sampling, s->tokens, s->n, (uint64_t)s->n, e->scratch);
    if (!s->answered) {
        s->first = clock_now();
        s->stats.ttft_s = s->first - s->submitted;
    }
    if (is_stop(s, id)) {
        end(s, DONE_STOP, 0, NULL);
        return;
    }
    if (mem_grow(&s->tokens, &s->cap, (size_t)s->n + 1, sizeof *s->tokens)) {
        struct error err = {0};
        end(s, DONE_STOP, error_set(&err, ERR_MEMORY, "no memory for %d tokens", s->n + 1), &err);
        return;
    }
    pthread_mutex_lock(&e->lock);
    s->tokens[s->n++] = id;
    s->answered++;
    session_tell_token(s, id);
    s->held = false;
    if (s->answered >= s->request.max_tokens) session_end(s, s->n >= e->info.context ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
    else if (atomic_load(&s->state) == SESSION_PREFILL) session_move(s, SESSION_DECODE);
    pthread_mutex_unlock(&e->lock);
}

/* --- Decode: one token for every session that answers ---------------------------------------------------------------------- */

/* Those that waited longest where they are more than a step takes. Who has no room for another event waits for its reader. */
static int pick(const struct engine *e, struct session **batch) {
    int n = 0;
    for (struct session *s = e->sessions; s; s = s->next) {
        if (atomic_load(&s->state) != SESSION_DECODE || s->n_unread == ENGINE_EVENTS) continue;
        int i = n;
        while (i > 0 && batch[i - 1]->stepped > s->stepped) i--;
        if (n < ENGINE_BATCH) n++;
        for (int k = n - 1; k > i; k--) batch[k] = batch[k - 1];
        if (i < n) batch[i] = s;
    }
    return n;
}

static int step(struct engine *e, struct session **batch, int n, int32_t *top, struct error *err) {
    struct span spans[ENGINE_BATCH];
    int32_t tokens[ENGINE_BATCH];
    uint64_t before = atomic_load(&e->machine.bytes_read);
    for (int i = 0; i < n; i++) {
        struct session *s = batch[i];
        spans[i] = (struct span){.k = s->kv.k, .v = s->kv.v, .row = i, .n = 1, .pos = s->n - 1};
        tokens[i] = s->tokens[s->n - 1];
    }
    int rc = decode_step(&e->machine, spans, tokens, n, e->logits, top, n == 1 ? &batch[0]->cancel : &e->closing, err);
    for (int i = 0; i < n; i++) batch[i]->stats.bytes_read += (atomic_load(&e->machine.bytes_read) - before) / (uint64_t)n;
    e->last_decode = clock_now();
    return rc;
}

static void settle(struct session *s, int rc, const struct error *why, float *logits, int32_t top) {
    if (rc) {
        end(s, DONE_STOP, rc, why);
        return;
    }
    s->n_kv = s->n;
    draw(s, logits, top);
}

/* An error may be one session's alone: each then goes by itself, and only the guilty turn ends. */
static void decode(struct engine *e, struct session **batch, int n) {
    struct error err = {0};
    int32_t top[ENGINE_BATCH];
    int rc = step(e, batch, n, top, &err);
    bool apart = rc && rc != ERR_CANCELLED && n > 1;
    for (int i = 0; i < n; i++) {
        if (apart) {
            err = (struct error){0};
            rc = step(e, &batch[i], 1, top, &err);
            settle(batch[i], rc, &err, e->logits, top[0]);
        } else settle(batch[i], rc, &err, e->logits + (size_t)i * (size_t)e->info.vocab, top[i]);
    }
}

/* --- Prefill ---------------------------------------------------------------------------------------------------------------- */

static const struct mode *choose(struct engine *e, struct session *s, int n) {
    const struct gpu_set *g = e->machine.gpus;
    double now = clock_now(), link = g ? gpu_info(g->gpu[0])->h2d : 0;
    struct policy_in in = {
        .n_new = n, .n_gpus = g ? g->n : 0, .lost = g && g->lost, .ask = (enum policy_ask)e->params.prefill,
        .since_decode_s = e->last_decode > 0 ? now - e->last_decode : -1, .cpu_tokens_per_s = e->cpu_speed,
        .stream_s = link > 0 ? (double)e->weights.bytes_routed / link : 0,
    };
    pthread_mutex_lock(&e->lock);
    for (struct session *o = e->sessions; o; o = o->next) in.decoding |= atomic_load(&o->state) == SESSION_DECODE;
    pthread_mutex_unlock(&e->lock);
    char why[160];
    static const struct mode *const modes[] = {[POLICY_CPU] = &mode_cpu, [POLICY_SLP] = &mode_slp, [POLICY_DSLP] = &mode_dslp};
    const struct mode *mode = modes[policy_prefill(&in, why, sizeof why)];
    if (mode == &mode_cpu) snprintf(s->stats.why, sizeof s->stats.why, "%d new tokens on the processor (%s, %d threads): %s", n, e->info.level, e->info.threads, why);
    else snprintf(s->stats.why, sizeof s->stats.why, "%d new tokens stream-loaded on %d of %d devices (%.40s): %.110s", n, mode == &mode_dslp ? g->n : 1, g->n,
                  gpu_info(g->gpu[0])->name, why);
    return mode;
}

/* The first mode of a turn, or the one that goes on after a failure. PREFILL_MORE or an error. */
static int begin(struct engine *e, const struct mode *mode, struct error *err) {
    struct prefill_job *j = &e->job;
    atomic_store(&j->ready, 0);
    atomic_store(&j->done, 0);
    atomic_store(&j->total, 0);
    e->reading->stats.prefill_mode = mode->name;
    e->mode = mode;
    int rc = mode->open(&e->machine, j, err);
    return rc ? rc : PREFILL_MORE;
}

static int begin_turn(struct engine *e, struct error *err) {
    struct session *s = e->reading;
    int n = s->n - s->n_kv;
    e->begun = e->told = clock_now();
    e->worked = 0;
    s->stats.queue_s = e->begun - s->submitted;
    e->job = (struct prefill_job){
        .kv = &s->kv, .tokens = s->tokens + s->n_kv, .pos = s->n_kv, .n = n, .last = e->logits + (size_t)ENGINE_BATCH * (size_t)e->info.vocab,
        .all = s->request.logits, .all_ctx = s->request.logits_ctx, .cancel = &s->cancel,
    };
    return begin(e, choose(e, s, n), err);
}

/* One piece of the running prefill, and what follows when it was the last. */
static void prefill(struct engine *e) {
    struct session *s = e->reading;
    struct error err = {0};
    uint64_t bytes = atomic_load(&e->machine.bytes_read);
    double t = clock_now();
    int rc;
    if (!e->mode) rc = begin_turn(e, &err);
    else if ((rc = e->mode->advance(&e->machine, &e->job, &err)) != PREFILL_MORE) e->mode->close(&e->machine, &e->job);
    if ((rc == ERR_MEMORY || rc == ERR_RUNTIME) && e->mode != &mode_cpu) { /* the device cannot; the processor can */
        log_say(LOG_WARN, "%s prefill: %s; reading the prompt on the processor instead", e->mode->name, err.text);
        snprintf(s->stats.why, sizeof s->stats.why, "%s failed: %.200s", e->mode->name, err.text);
        err = (struct error){0};
        rc = begin(e, &mode_cpu, &err);
    }
    s->stats.bytes_read += atomic_load(&e->machine.bytes_read) - bytes;
    e->worked += clock_now() - t;
    if (rc == PREFILL_MORE) return;
    int n = e->job.n;
    if (!rc && e->mode == &mode_cpu && n >= 64 && !s->request.logits) e->cpu_speed = n / e->worked; /* the policy's crossover */
    e->mode = NULL;
    s->stats.prefill_s = clock_now() - e->begun;
    s->n_kv += e->job.complete;
    if (rc) end(s, DONE_STOP, rc, &err);
    else draw(s, e->job.last, -1);
}

static bool prefill_ready(struct engine *e) { return e->reading && (!e->mode || atomic_load(&e->job.ready)); }

static void tell_progress(struct engine *e) {
    struct session *s = e->reading;
    double now = clock_now(), total = s && e->mode ? atomic_load(&e->job.total) : 0;
    if (!(total > 0) || now - e->told < 0.1) return;
    double share = atomic_load(&e->job.done) / total;
    int whole = s->n - s->stats.cached_tokens;
    e->told = now;
    pthread_mutex_lock(&e->lock);
    session_tell_progress(s, &(struct event){.kind = EVENT_PROGRESS, .session = s, .what = e->mode->unit, .done = (int)(share * whole), .total = whole,
                                             .left_s = share > 0 ? (now - e->begun) * (1 - share) / share : -1});
    pthread_mutex_unlock(&e->lock);
}

/* --- The loop ---------------------------------------------------------------------------------------------------------------- */

static void next_prefill(struct engine *e) {
    struct session *first = NULL;
    if (e->reading || atomic_load(&e->closing)) return;
    for (struct session *s = e->sessions; s; s = s->next)
        if (atomic_load(&s->state) == SESSION_QUEUED && (!first || s->order < first->order)) first = s;
    if (first) session_move(first, SESSION_PREFILL);
}

/* False when the engine closes and nothing is left to be done. */
static bool go_round(struct engine *e) {
    struct session *batch[ENGINE_BATCH];
    pthread_mutex_lock(&e->lock);
    session_reap(e);
    next_prefill(e);
    int n = pick(e, batch);
    struct piece *piece = e->pieces;
    bool other = piece || prefill_ready(e), steps = n && !(other && e->balance > 0);
    if (steps) {
        e->steps++;
        for (int i = 0; i < n; i++) batch[i]->held = true, batch[i]->stepped = e->steps;
    } else if (piece) e->pieces = piece->next;
    bool over = atomic_load(&e->closing) && !n && !other && !e->reading;
    pthread_mutex_unlock(&e->lock);
    if (over) return false;

    double begin = clock_now();
    uint64_t wakes;
    if (steps) decode(e, batch, n);
    else if (piece) run_piece(e, piece);
    else if (other) prefill(e);
    else if (read(e->wake, &wakes, sizeof wakes) < 0) {} /* interrupted: look again */
    double t = clock_now() - begin;
    /* What one side had, the other may have next; not more than that, so that nobody waits for long. */
    if (steps) e->balance = fmin(e->balance + t, t);
    else if (other) e->balance = n ? fmax(e->balance - t, -t) : 0;
    tell_progress(e);
    return true;
}

void *engine_thread(void *engine) {
    struct engine *e = engine;
    pool_enter(e->pool);
    while (go_round(e)) {}
    return NULL;
}
