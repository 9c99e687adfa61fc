/* Prefills prompts unit by unit, in a mode that the policy chooses (exec/prefill.h). One runs at a time, or several
 * short ones together (prefill_join.h), but a short prompt passes a long one: it is read on the CPU, between two layers
 * of the other one or beside a device's. */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/sampling/sample.h"
#include "engine/session/engine_state.h"
#include "engine/session/image_queue.h"
#include "engine/session/policy_machine.h"
#include "engine/session/prefill_begin.h"
#include "engine/session/prefill_join.h"
#include "engine/session/prefill_list.h"
#include "engine/session/prefill_pass.h"
#include "engine/session/prefill_queue.h"
#include "engine/session/prefill_room.h"
#include "engine/session/prefix.h"
#include "engine/session/session.h"
#include "engine/session/session_turn.h"
#include "engine/session/tpot.h"

/* Starts the chosen driver, or another one after a failure. Returns PREFILL_MORE or an error. */
static int begin_driver(struct session *s, const struct prefill_driver *driver, struct error *e) {
    struct engine *eng = s->engine;
    struct prefill_job *j = &s->prefill.job;
    atomic_store(&j->is_ready, 0);
    atomic_store(&j->done, 0);
    atomic_store(&j->total, 0);
    s->stats.prefill_mode = exec_mode_name(driver->mode);
    s->prefill.driver = driver;
    prefill_make_room(&eng->machine, driver->mode, j);
    int rc = driver->open(&eng->machine, j, e);
    return rc ? rc : PREFILL_MORE;
}

/* Starts another driver if one failed: streaming without the resident weights, then the CPU. Returns PREFILL_MORE, or
 * the error if there is no other. */
static int begin_other_driver(struct session *s, int rc, struct error *e) {
    struct engine *eng = s->engine;
    struct prefill_run *run = &s->prefill;
    if (rc == ERR_MEMORY && run->driver && run->driver->has_thread && decode_yield(eng->machine.decode)) {
        log_say(LOG_INFO, "%s prefill: %s; evicting resident weights until the prefill ends",
                exec_mode_name(run->driver->mode), e->text);
        prefill_add_why(s, "; resident weights were evicted");
        *e = (struct error){0};
        rc = begin_driver(s, run->driver, e);
    }
    if ((rc != ERR_MEMORY && rc != ERR_RUNTIME) || !run->driver || run->driver == &prefill_mode_cpu) return rc;
    log_say(LOG_WARN, "%s prefill: %s; using the CPU instead", exec_mode_name(run->driver->mode), e->text);
    if (eng->machine.gpus->is_lost) decode_on_device_lost(eng->machine.decode, e->text);
    snprintf(s->stats.prefill_why, sizeof s->stats.prefill_why, "%s failed: %.200s", exec_mode_name(run->driver->mode),
             e->text);
    *e = (struct error){0};
    run->expected_s = s->stats.prefill_expected_s = 0;
    return begin_driver(s, &prefill_mode_cpu, e);
}

/* Resident weights may return when no prefill is left on devices. */
static void reclaim_devices(struct engine *eng, const struct session *ended) {
    for (const struct session *s = eng->prefilling; s; s = s->prefill.below)
        if (s != ended && s->prefill.driver && s->prefill.driver != &prefill_mode_cpu) return;
    decode_reclaim(eng->machine.decode);
}

/* Ends the prefill; after a success samples the first token. */
static void end_prefill(struct session *s, int rc, const struct error *e) {
    struct engine *eng = s->engine;
    struct prefill_run *run = &s->prefill;
    const struct prefill_driver *driver = run->driver;
    if (!rc && !s->request.logits && run->expected_s > 0) /* feed the measured time back to the cost model */
        cost_observe(&eng->cost, &eng->cost.observed[driver->mode], run->job.n, run->expected_s,
                     prefill_own_seconds(run));
    if (run->n_passed) {
        char why[80];
        snprintf(why, sizeof why, "; %d shorter prompt%s passed it (%.3g s)", run->n_passed,
                 run->n_passed == 1 ? "" : "s", run->lost_s);
        prefill_add_why(s, why);
    }
    reclaim_devices(eng, s);
    image_queue_drop(s);
    if (!s->n_answered) s->stats.prefill_s = clock_now() - run->began;
    s->n_kv += run->job.n_complete;
    if (driver && run->job.is_aligned && (driver == &prefill_mode_cpu || !eng->params.deterministic)) {
        if (run->job.n_complete) s->prefix.token_s = prefill_own_seconds(run) / run->job.n_complete;
        prefix_record(s);
    }
    run->driver = NULL;
    if (rc) session_turn_end(s, DONE_STOP, rc, e);
    else session_turn_sample(s, run->job.last_logits, -1, -1);
}

/* Has the prefill below leave the workspace. Without memory for that the session returns to the queue. */
static bool pause_below(struct session *s) {
    struct engine *eng = s->engine;
    struct session *below = s->prefill.below ? prefill_leader(s->prefill.below) : NULL;
    struct error e = {0};
    if (!below || below->prefill.is_paused || !below->prefill.driver || !below->prefill.driver->pause) return true;
    if (below->prefill.driver->pause(&eng->machine, &below->prefill.job, &e)) {
        pthread_mutex_lock(&eng->lock);
        below->prefill.is_refused = true;
        session_set_state(s, SESSION_QUEUED);
        pthread_mutex_unlock(&eng->lock);
        return false;
    }
    below->prefill.is_paused = true;
    return true;
}

/* A unit before the driver runs. */
static int begin_turn(struct session *s, struct error *e) {
    const struct prefill_driver *driver;
    int rc = prefill_begin_unit(s, &driver, e);
    if (!rc) rc = prefill_begin_job(s, e);
    if (rc) return rc;
    for (struct session *o = s->prefill.below; o; o = o->prefill.below) o->prefill.n_passed++;
    if (driver == &prefill_mode_cpu) prefill_join_others(s);
    return begin_driver(s, driver, e);
}
/* A unit of the driver. */
static int advance_driver(struct session *s, struct error *e) {
    struct runtime *m = &s->engine->machine;
    struct prefill_run *run = &s->prefill;
    if (run->is_paused && !prefill_is_abandoned(s)) { /* else a newer one may have the workspace */
        run->driver->resume(m, &run->job);
        run->is_paused = false;
    }
    const int rc = run->driver->advance(m, &run->job, e);
    if (rc != PREFILL_MORE) run->driver->close(m, &run->job);
    return rc;
}
/* Charges a unit to the prompts that were read, by their tokens, and its time to those that waited. */
static void charge_unit(struct session *s, double seconds, uint64_t bytes) {
    double n = 0;
    for (struct session *o = s; o; o = o->prefill.joined) n += o->prefill.job.n;
    for (struct session *o = s; o; o = o->prefill.joined) {
        const double share = s->prefill.joined ? o->prefill.job.n / n : 1;
        o->prefill.thread_s += seconds * share;
        if (!o->prefill.is_abandoned) o->stats.bytes_read += (uint64_t)((double)bytes * share);
    }
    for (struct session *o = s->prefill.below; o; o = o->prefill.below)
        if (!o->prefill.driver || !o->prefill.driver->has_thread) o->prefill.lost_s += seconds;
}

static void observe_join(const struct session *s) {
    double seconds = 0;
    for (const struct session *o = s; o; o = o->prefill.joined) seconds += o->prefill.thread_s;
    prefill_join_observe(s, seconds);
}

/* The turn of a prefill that has stopped was over. */
static void end_abandoned(struct session *s) {
    struct engine *eng = s->engine;
    image_queue_drop(s);
    reclaim_devices(eng, s);
    pthread_mutex_lock(&eng->lock);
    session_set_hold(s, HOLD_NONE);
    prefill_list_remove(s);
    pthread_cond_broadcast(&eng->ended_cond);
    pthread_mutex_unlock(&eng->lock);
}
/* The prompt returns to the queue, to be read without others. */
static void read_alone(struct session *s) {
    pthread_mutex_lock(&s->engine->lock);
    s->prefill.alone = s->turn_id;
    session_set_state(s, SESSION_QUEUED);
    pthread_mutex_unlock(&s->engine->lock);
}
/* Ends a prefill, or all that were read together. One that was cancelled late has no rows. An error of prompts that
 * were read together may concern one of them only, or be a lack of memory that each alone does not need. */
static void end_run(struct session *s, int rc, struct error *e) {
    const bool is_joined = prefill_is_joined(s), is_alone_next = is_joined && rc && rc != ERR_CANCELLED;
    for (struct session *next; s; s = next) {
        next = s->prefill.joined;
        const bool is_cut = !rc && is_joined && s->prefill.job.n_complete < s->prefill.job.n;
        if (s->prefill.is_abandoned) end_abandoned(s);
        else if (is_alone_next) read_alone(s);
        else end_prefill(s, is_cut ? ERR_CANCELLED : rc, e);
    }
}

/* Runs one unit of a prefill. */
static void advance_prefill(struct session *s) {
    struct engine *eng = s->engine;
    struct error e = {0};
    uint64_t bytes_before = atomic_load(&eng->machine.bytes_read);
    double begin = clock_now();
    int rc = s->prefill.driver ? advance_driver(s, &e) : begin_turn(s, &e);
    if (rc && rc != PREFILL_MORE && !s->prefill.is_abandoned) rc = begin_other_driver(s, rc, &e);
    charge_unit(s, clock_now() - begin, atomic_load(&eng->machine.bytes_read) - bytes_before);
    if (!rc && s->prefill.driver == &prefill_mode_cpu) observe_join(s);
    if (rc != PREFILL_MORE) end_run(s, rc, &e);
}

struct session *prefill_queue_ready(const struct engine *eng) {
    struct session *s, *newest = eng->prefilling;
    /* one that only has to stop; one whose thread has ended; the newest */
    for (s = newest; s; s = s->prefill.below)
        if (s->prefill.driver && (prefill_is_abandoned(s) || s->prefill.driver->has_thread) &&
            atomic_load(&s->prefill.job.is_ready))
            return s;
    if (newest) newest = prefill_leader(newest);
    return newest && !prefill_is_abandoned(newest) &&
                   (!newest->prefill.driver || atomic_load(&newest->prefill.job.is_ready))
               ? newest
               : NULL;
}

void prefill_queue_emit_progress(struct engine *eng) {
    const double now = clock_now();
    pthread_mutex_lock(&eng->lock);
    for (struct session *s = eng->prefilling; s; s = s->prefill.below) {
        struct prefill_run *run = &s->prefill;
        const bool has_begun = run->driver && !run->is_abandoned && atomic_load(&run->job.total) > 0;
        struct event ev = {.kind = EVENT_PROGRESS, .session = s};
        double began;
        if (now - run->progress_emitted < 0.1 || s->n_answered) continue;
        if (has_begun) {
            ev.total = s->n_tokens - s->stats.cached_tokens;
            ev.done = (int)(prefill_done_share(run) * ev.total);
            began = run->began;
        } else if (!image_queue_progress(s, &ev.done, &ev.total, &began)) continue;
        ev.in_images = !has_begun;
        ev.left_s = ev.done ? (now - began) * (ev.total - ev.done) / ev.done : -1;
        run->progress_emitted = now;
        session_emit_progress(s, &ev);
    }
    pthread_mutex_unlock(&eng->lock);
}

/* --- The next prompt -------------------------------------------------------------------------- */

static struct session *session_of(const struct fair_entry *t) {
    return (struct session *)((char *)t - offsetof(struct session, queue_entry));
}

static bool may_pass(const void *engine, const struct fair_entry *t) {
    const struct engine *eng = engine;
    return prefill_may_pass(session_of(t), eng->prefilling, 0);
}

void prefill_queue_pick(struct engine *eng) {
    const bool passes = eng->prefilling;
    if (atomic_load(&eng->closing)) return;
    /* With --deterministic no mode may depend on other sessions. */
    if (passes && ((eng->params.deterministic && eng->machine.gpus) ||
                   (eng->params.prefill != MODE_AUTO && eng->params.prefill != PREFILL_CPU)))
        return;
    const struct fair_entry *first = fair_queue_next(&eng->prefill_queue, passes ? may_pass : NULL, eng);
    if (!first) return;
    struct session *s = session_of(first);
    if (!tpot_admits(eng, s)) {
        s->has_waited = true;
        return;
    }
    eng->tpot.unit_s = 0;
    session_set_state(s, SESSION_PREFILL);
    fair_queue_charge(&eng->prefill_queue, &s->queue_entry);
}

void prefill_queue_advance(struct session *s) {
    if (prefill_is_abandoned(s) || pause_below(s)) advance_prefill(s);
}
