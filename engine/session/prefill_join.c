#include "engine/session/prefill_join.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/mem.h"
#include "engine/session/policy_machine.h"
#include "engine/session/prefill_begin.h"
#include "engine/session/prefill_list.h"
#include "engine/session/prefill_pass.h"
#include "engine/session/session.h"
#include "engine/session/tpot.h"

enum {
    TRIES = 32, /* sessions that are looked at for a prompt */
    UNITS = 2,  /* of a prompt that is prepared: one that loads more from the disk is not joined */
};

/* No more are looked for after this share of the time that the prompt is expected to take, or after SOON_S. */
static const double SHARE = 0.1, SOON_S = 0.005;

static struct session *session_of(const struct fair_entry *t) {
    return (struct session *)((char *)t - offsetof(struct session, queue_entry));
}

/* The prompts that are read together so far. */
struct group {
    struct session *first, *last;
    int n, rows;
    double expected_s;
};

static bool is_few(int n) { return n <= BATCH_INVARIANT_ROWS; }

struct estimate {
    const struct engine *eng;
    int pos;
};
static double modelled_seconds(const void *ctx, int n) {
    const struct estimate *t = ctx;
    return cost_prefill(&t->eng->cost, &t->eng->cost_model,
                        &(struct cost_prefill){.mode = PREFILL_CPU, .n = n, .pos = t->pos, .ranks = 1});
}
/* Of a batch of n tokens of short or long prompts from position pos on. */
static double expected_seconds(const struct engine *eng, bool few, int n, int pos) {
    return read_times_expect(&eng->read_times[few], n, modelled_seconds, &(struct estimate){eng, pos});
}
void prefill_join_observe(const struct session *s, double seconds) {
    enum { EARLY = 2048 }; /* later positions take longer to attend to */
    const struct prefill_job *first = &s->prefill.job;
    int n = 0, end = 0;
    for (const struct prefill_job *j = first; j; j = j->joined)
        n += j->n, end = end > j->pos + j->n ? end : j->pos + j->n;
    if (end <= EARLY && n <= POLICY_JOINED_TOKENS && !first->on_logits && !first->images.features)
        read_times_add(&s->engine->read_times[is_few(first->n)], n, seconds);
}

/* Whether a session's prompt can be part of a batch: the CPU computes all its new tokens at once. */
static bool is_joinable(const struct session *s) {
    const struct prefill_job *j = &s->prefill.job;
    const int rows = s->engine->prefill_work.rows;
    return j->n <= POLICY_JOINED_TOKENS && j->n <= rows && !j->on_logits && !s->n_images &&
           (!j->is_aligned || prefill_batch_end(rows, j->cut, j->pos) >= j->pos + j->n);
}
/* Whether a queued prompt is worth a look. */
static bool may_try(const void *ctx, const struct fair_entry *t) {
    const struct group *g = ctx;
    const struct session *s = session_of(t), *older = g->first->prefill.below;
    const bool is_long = s->n_tokens - s->n_kv > s->engine->prefill_work.rows; /* much of it may be on the disk */
    return s->hold == HOLD_NONE && !is_long && s->prefill.tried != g->first->turn_id &&
           s->prefill.alone != s->turn_id && !s->n_images && !s->n_answered && !s->request.logits &&
           tpot_admits(s->engine, s) && (!older || prefill_may_pass(s, older, g->expected_s));
}

/* Takes the next session of the queue, unserved; NULL: none. */
static struct session *take_next(struct group *g) {
    struct engine *eng = g->first->engine;
    struct session *s = NULL;
    pthread_mutex_lock(&eng->lock);
    const struct fair_entry *next = fair_queue_next(&eng->prefill_queue, may_try, g);
    if (next) {
        s = session_of(next);
        s->prefill.tried = g->first->turn_id;
        session_set_state(s, SESSION_PREFILL);
        s->prefill.leader = g->first;
    }
    pthread_mutex_unlock(&eng->lock);
    return s;
}
/* To its place in the queue. */
static void put_back(struct session *s) {
    struct engine *eng = s->engine;
    const uint64_t round = s->queue_entry.round;
    eng->restoring_turn = 0; /* its caches are asked again */
    pthread_mutex_lock(&eng->lock);
    session_set_state(s, SESSION_QUEUED);
    s->queue_entry.round = round;
    pthread_mutex_unlock(&eng->lock);
}
static void serve(struct session *s) {
    pthread_mutex_lock(&s->engine->lock);
    fair_queue_charge(&s->engine->prefill_queue, &s->queue_entry);
    pthread_mutex_unlock(&s->engine->lock);
}

/* Makes a session's job. Returns whether its prompt is part of the group. */
static bool join(struct group *g, struct session *s) {
    struct engine *eng = s->engine;
    const struct prefill_driver *driver = NULL;
    struct error e = {0};
    int rc = PREFILL_MORE;
    for (int i = 0; i < UNITS && rc == PREFILL_MORE; i++) rc = prefill_begin_unit(s, &driver, &e);
    if (rc || driver != &prefill_mode_cpu || prefill_begin_job(s, &e)) return false;
    struct prefill_job *j = &s->prefill.job;
    const bool few = is_few(j->n);
    const double alone_s = expected_seconds(eng, few, j->n, j->pos),
                 joined_s = expected_seconds(eng, few, g->rows + j->n, (g->first->prefill.job.pos + j->pos) / 2);
    if (!is_joinable(s) || few != is_few(g->first->prefill.job.n) || g->rows + j->n > POLICY_JOINED_TOKENS ||
        g->rows + j->n > eng->prefill_work.rows || !policy_may_join(g->n, g->expected_s, alone_s, joined_s) ||
        kv_commit(&s->kv, j->pos + j->n, &e))
        return false;
    j->last_logits = eng->joined_logits + (size_t)g->n * (size_t)eng->info.vocab;
    g->last->prefill.joined = s, g->last->prefill.job.joined = j;
    g->last = s;
    for (struct session *o = g->first->prefill.below; o; o = o->prefill.below) o->prefill.n_passed++;
    g->n++, g->rows += j->n, g->expected_s = joined_s;
    return true;
}

/* All have the driver; it feeds no prediction, which is for a prompt alone. */
static void describe(const struct group *g) {
    char why[80];
    snprintf(why, sizeof why, "; read with %d other prompt%s, %d tokens in all", g->n - 1, g->n == 2 ? "" : "s",
             g->rows);
    for (struct session *s = g->first; s; s = s->prefill.joined) {
        s->prefill.driver = &prefill_mode_cpu;
        s->prefill.expected_s = s->stats.prefill_expected_s = 0;
        s->stats.prefill_mode = exec_mode_name(PREFILL_CPU);
        prefill_add_why(s, why);
    }
}

void prefill_join_others(struct session *s) {
    struct engine *eng = s->engine;
    const int rows = s->prefill.job.n;
    struct group g = {s, s, 1, rows, expected_seconds(eng, is_few(rows), rows, s->prefill.job.pos)};
    if (s->n_answered || s->prefill.alone == s->turn_id || !is_joinable(s)) return;
    if (!eng->joined_logits &&
        !(eng->joined_logits = mem_alloc(PREFILL_JOINED_MOST * (size_t)eng->info.vocab * sizeof *eng->joined_logits)))
        return;
    const double until = clock_now() + fmax(SOON_S, SHARE * g.expected_s);
    for (int i = 0; i < TRIES && g.n < PREFILL_JOINED_MOST && clock_now() < until; i++) {
        struct session *next = take_next(&g);
        if (!next) break;
        if (join(&g, next)) serve(next);
        else put_back(next);
    }
    if (g.n > 1) describe(&g);
}
