/* Prefills prompts unit by unit, in a mode that the policy chooses (exec/prefill.h). One runs at a time, but a short
 * prompt passes a long one: it is read on the CPU, between two layers of the other one or beside a device's. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/blend/blend_device.h"
#include "engine/sampling/sample.h"
#include "engine/session/engine_state.h"
#include "engine/session/image_queue.h"
#include "engine/session/policy_machine.h"
#include "engine/session/prefill_list.h"
#include "engine/session/prefill_queue.h"
#include "engine/session/prefill_room.h"
#include "engine/session/prefix.h"
#include "engine/session/session.h"
#include "engine/session/session_turn.h"
#include "engine/session/tpot.h"

/* Says from how many rows of an expert its upload to a device is faster than the CPU, and from how many the device
 * computes longer than the link transfers. */
static void explain_uploads(const struct engine *eng, int domain, char *out, size_t cap) {
    const int pays = (int)cost_fetch_break_even(&eng->cost, domain, &eng->cost_model),
              computes = (int)cost_compute_bound_rows(&eng->cost, domain, &eng->cost_model);
    *out = 0;
    if (!eng->info.n_experts) return;
    if (pays >= COST_NEVER_ROWS) snprintf(out, cap, "; uploading an expert is never faster than the CPU");
    else if (computes >= COST_NEVER_ROWS)
        snprintf(out, cap, "; uploading an expert is faster than the CPU from %d of its tokens, limited by the link",
                 pays);
    else
        snprintf(out, cap,
                 "; uploading an expert is faster than the CPU from %d of its tokens, limited by the link below %d",
                 pays, computes);
}

static const struct prefill_driver *choose_prefill_driver(struct engine *eng, struct session *s, int n) {
    static const struct prefill_driver *const drivers[] = {[PREFILL_CPU] = &prefill_mode_cpu,
                                                           [PREFILL_BLEND] = &prefill_mode_blend,
                                                           [PREFILL_SLP] = &prefill_mode_slp,
                                                           [PREFILL_DSLP] = &prefill_mode_dslp};
    struct gpu_set *g = eng->machine.gpus;
    struct policy_machine m = policy_machine_of(eng);
    struct policy_prefill_in in = {.n_new = n,
                                   .n_cached = s->n_kv,
                                   .since_decode_s = -1,
                                   .dense_resident = decode_resident_layers(eng->machine.decode) == eng->info.n_layers};
    m.forced_prefill = s->prefill.below ? PREFILL_CPU : eng->params.prefill;
    for (int i = 0; i < m.n_devices; i++)
        m.held[i] = (double)decode_held_bytes(eng->machine.decode, i),
        m.free[i] = (double)gpu_mem_free(g->gpu[i]) + m.held[i];
    if (m.n_devices && !m.is_lost)
        in.need_bytes[PREFILL_SLP] = (double)slp_min_bytes(
            &(struct slp_job){.w = &eng->weights, .set = g, .ranks = 1, .cache = s->kv.layer, .pos = s->n_kv, .n = n});
    if (m.n_devices > 1 && !m.is_lost)
        in.need_bytes[PREFILL_DSLP] = (double)slp_min_bytes(&(struct slp_job){
            .w = &eng->weights, .set = g, .ranks = g->n, .cache = s->kv.layer, .pos = s->n_kv, .n = n});
    for (int i = 0; i < m.n_devices && m.prefill_mask >> PREFILL_BLEND & 1; i++) {
        double *need = m.decode_uses[i] ? &in.need_bytes[PREFILL_BLEND] : &in.helper_need_bytes;
        m.blend_stays[i] = (double)decode_weight_bytes(eng->machine.decode, i);
        *need = fmax(*need, (double)blend_min_bytes(&eng->machine, i, s->n_kv, n));
    }
    pthread_mutex_lock(&eng->lock);
    double decoded_at = 0;
    for (struct session *o = eng->sessions; o; o = o->next) {
        in.n_decoding += atomic_load(&o->state) == SESSION_DECODE;
        if (o != s) decoded_at = fmax(decoded_at, o->decoded_at);
    }
    if (decoded_at > 0) in.since_decode_s = clock_now() - decoded_at;
    pthread_mutex_unlock(&eng->lock);
    struct policy_prefill_out out;
    policy_prefill(&m, &in, &out);
    const bool looks_ahead = image_queue_features(s) && eng->weights.config.sees_whole_images;
    if (looks_ahead) out.mode = PREFILL_CPU; /* devices' attention is causal */
    const struct prefill_driver *driver = drivers[out.mode];
    s->prefill.job.device = out.device;
    s->prefill.expected_s = s->stats.prefill_expected_s = out.seconds[out.mode];
    char where[100], weights[80] = "", uploads[120] = "", nodes[80] = "", images[60];
    image_queue_explain(s, images, sizeof images);
    const char *const math = driver != &prefill_mode_cpu && n > BATCH_INVARIANT_ROWS && g->reads_in_fp8 &&
                                     (s->n_answered || !s->request.logits)
                                 ? "; products in FP8 (math=bf16: in BF16)"
                                 : "";
    if (driver == &prefill_mode_cpu)
        snprintf(where, sizeof where, "%s (%s, %d thread%s)", exec_modes[out.mode].what, eng->info.level,
                 eng->info.threads, eng->info.threads == 1 ? "" : "s");
    else
        snprintf(where, sizeof where, "%s on %d of %d devices (%.40s)", exec_modes[out.mode].what,
                 driver == &prefill_mode_slp ? 1 : out.ranks, g->n,
                 gpu_info(g->gpu[driver == &prefill_mode_slp ? out.device : 0])->name);
    if (driver != &prefill_mode_cpu && g->pin)
        snprintf(weights, sizeof weights, "; weights %s, %.3g GB/s expected", pin_name(pin_get_choice(g->pin)->path),
                 eng->cost.domain[1 + out.device].link[COST_H2D].rate * 1e-9);
    if (driver != &prefill_mode_cpu) explain_uploads(eng, 1 + out.device, uploads, sizeof uploads);
    if (eng->cost.spread_bw_share > 0)
        snprintf(nodes, sizeof nodes, "; %.0f%% of %d NUMA nodes' bandwidth: weights are not placed by node",
                 100 * eng->cost.spread_bw_share, eng->cost.n_nodes);
    else if (eng->cost.n_nodes)
        snprintf(nodes, sizeof nodes, "; %d NUMA nodes, each with rows of every expert", eng->cost.n_nodes);
    snprintf(s->stats.prefill_why, sizeof s->stats.prefill_why, "%d new tokens %s: %.130s%s%s%s%s%s%s", n, where,
             looks_ahead        ? "tokens of its images see later ones, which only the CPU computes"
             : s->prefill.below ? "passes a longer prompt"
                                : out.why,
             images, math, weights, uploads, nodes, s->has_waited ? "; waited for other answers (--max-tpot)" : "");
    return driver;
}

/* Appends to the reasons of a prefill. */
static void add_why(struct session *s, const char *text) {
    const size_t at = strlen(s->stats.prefill_why);
    snprintf(s->stats.prefill_why + at, sizeof s->stats.prefill_why - at, "%s", text);
}

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

static void feed_mtp(void *ctx, int pos, int n, const float *x) {
    struct session *s = ctx;
    if (!s->prefill.is_abandoned && !s->n_images) mtp_feed(s->engine->mtp, &s->mtp, pos, n, x);
}

/* Runs the units before the driver's: looks the prompt up in the caches, loads saved KV and resident weights, then
 * starts the driver. Returns PREFILL_MORE or an error. */
static int begin_turn(struct session *s, struct error *e) {
    struct engine *eng = s->engine;
    struct prefill_run *run = &s->prefill;
    if (eng->restoring_turn != s->turn_id) {
        eng->restoring_turn = s->turn_id;
        run->job.n_complete = 0; /* until there is a job */
        s->n_kv = kv_resume_pos(&s->kv, s->n_kv);
        decode_rewind(eng->machine.decode, &s->kv, s->n_kv);
        mtp_rewind(&s->mtp, s->n_kv);
        prefix_begin_turn(s);
        prefix_reuse(s);
    }
    if (prefix_load_next(s)) return PREFILL_MORE; /* one file of the disk cache per unit */
    const int images = image_queue_advance(s, e);
    if (images) return images;
    const struct prefill_driver *driver = choose_prefill_driver(eng, s, s->n_tokens - s->n_kv);
    if (s->request.max_tokens && eng->params.decode != DECODE_CPU) { /* upload resident weights, one layer per unit */
        bool more;
        const int rc = prefill_load_next(
            &eng->machine, driver->mode,
            &(struct prefill_job){.kv = &s->kv, .pos = s->n_kv, .n = s->n_tokens - s->n_kv, .device = run->job.device},
            &more, e);
        if (rc == ERR_RUNTIME) {
            log_say(LOG_WARN, "%s; sessions now decode on the CPU", e->text);
            decode_on_device_lost(eng->machine.decode, e->text);
            *e = (struct error){0};
        }
        if (rc || more) return rc && rc != ERR_RUNTIME ? rc : PREFILL_MORE;
    }
    eng->restoring_turn = 0;
    run->began = run->progress_emitted = clock_now();
    run->thread_s = run->lost_s = 0;
    run->n_passed = 0;
    for (struct session *o = run->below; o; o = o->prefill.below) o->prefill.n_passed++;
    if (!s->n_answered) s->stats.queue_s = run->began - s->submitted_at - s->stats.image_s;
    s->is_long_rope = config_long_rope(&eng->weights.config, s->n_tokens);
    if (!s->n_answered) s->stats.cached_tokens = s->n_kv;
    int n = s->n_tokens - s->n_kv, before = config_lookback_at(&eng->weights.config, s->n_kv);
    if (mem_grow(&run->tokens, &run->tokens_cap, (size_t)(before + n), sizeof *run->tokens))
        return error_set(e, ERR_MEMORY, "no memory for a prompt of %d tokens", n);
    memcpy(run->tokens, s->tokens + s->n_kv - before, (size_t)(before + n) * sizeof *run->tokens);
    run->job = (struct prefill_job){
        .device = run->job.device,
        .kv = &s->kv,
        .tokens = run->tokens + before,
        .pos = s->n_kv,
        .n = n,
        .n_before = before,
        .images = {.spans = s->images,
                   .n = s->n_images,
                   .features = image_queue_features(s),
                   .floats = eng->tower ? tower_row_floats(eng->tower) : 0,
                   .token = eng->machine.image_token,
                   .turn_shift = image_queue_features(s) ? 0 : s->turn_shift},
        .last_logits = run->below ? eng->passing_logits : eng->logits,
        .on_logits = s->n_answered ? NULL : s->request.logits,
        .on_logits_ctx = s->request.logits_ctx,
        .on_hidden = eng->mtp ? feed_mtp : NULL,
        .on_hidden_ctx = s,
        .cancel = session_cancel_flag(s),
        .is_aligned = prefix_is_exact(s),
        .cut = prefix_shared_end(s),
    };
    kv_state_keep(&s->kv, s->n_kv); /* a rewind of this turn restarts here */
    return begin_driver(s, driver, e);
}

/* The share of a prefill's work that is done. */
static double done_share(const struct prefill_run *run) {
    const double total = run->driver ? atomic_load(&run->job.total) : 0;
    return total > 0 ? atomic_load(&run->job.done) / total : 0;
}

/* Seconds that a prefill took so far, without the time of newer ones that it waited for. */
static double own_seconds(const struct prefill_run *run) {
    return run->driver == &prefill_mode_cpu ? run->thread_s : clock_now() - run->began - run->lost_s;
}

/* Starts another driver if one failed: streaming without the resident weights, then the CPU. Returns PREFILL_MORE, or
 * the error if there is no other. */
static int begin_other_driver(struct session *s, int rc, struct error *e) {
    struct engine *eng = s->engine;
    struct prefill_run *run = &s->prefill;
    if (rc == ERR_MEMORY && run->driver && run->driver->has_thread && decode_yield(eng->machine.decode)) {
        log_say(LOG_INFO, "%s prefill: %s; evicting resident weights until the prefill ends",
                exec_mode_name(run->driver->mode), e->text);
        add_why(s, "; resident weights were evicted");
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
        cost_observe(&eng->cost, &eng->cost.observed[driver->mode], run->job.n, run->expected_s, own_seconds(run));
    if (run->n_passed) {
        char why[80];
        snprintf(why, sizeof why, "; %d shorter prompt%s passed it (%.3g s)", run->n_passed,
                 run->n_passed == 1 ? "" : "s", run->lost_s);
        add_why(s, why);
    }
    reclaim_devices(eng, s);
    image_queue_drop(s);
    if (!s->n_answered) s->stats.prefill_s = clock_now() - run->began;
    s->n_kv += run->job.n_complete;
    if (driver && run->job.is_aligned && (driver == &prefill_mode_cpu || !eng->params.deterministic)) {
        if (run->job.n_complete) s->prefix.token_s = own_seconds(run) / run->job.n_complete;
        prefix_record(s);
    }
    run->driver = NULL;
    if (rc) session_turn_end(s, DONE_STOP, rc, e);
    else session_turn_sample(s, run->job.last_logits, -1, -1);
}

/* Has the prefill below leave the workspace. Without memory for that the session returns to the queue. */
static bool pause_below(struct session *s) {
    struct engine *eng = s->engine;
    struct session *below = s->prefill.below;
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

/* Runs one unit of a prefill. */
static void advance_prefill(struct session *s) {
    struct engine *eng = s->engine;
    struct prefill_run *run = &s->prefill;
    struct error e = {0};
    uint64_t bytes_before = atomic_load(&eng->machine.bytes_read);
    double begin = clock_now();
    int rc;
    if (!run->driver) rc = begin_turn(s, &e);
    else {
        if (run->is_paused) run->driver->resume(&eng->machine, &run->job);
        run->is_paused = false;
        if ((rc = run->driver->advance(&eng->machine, &run->job, &e)) != PREFILL_MORE)
            run->driver->close(&eng->machine, &run->job);
    }
    if (rc && rc != PREFILL_MORE) rc = begin_other_driver(s, rc, &e);
    s->stats.bytes_read += atomic_load(&eng->machine.bytes_read) - bytes_before;
    const double t = clock_now() - begin;
    run->thread_s += t;
    for (struct session *o = run->below; o; o = o->prefill.below)
        if (!o->prefill.driver || !o->prefill.driver->has_thread) o->prefill.lost_s += t;
    if (rc != PREFILL_MORE) end_prefill(s, rc, &e);
}

/* Advances a prefill whose turn is over until it stops. */
static void advance_abandoned(struct session *s) {
    struct engine *eng = s->engine;
    struct error e = {0};
    if (s->prefill.driver->advance(&eng->machine, &s->prefill.job, &e) == PREFILL_MORE) return;
    s->prefill.driver->close(&eng->machine, &s->prefill.job);
    image_queue_drop(s);
    reclaim_devices(eng, s);
    pthread_mutex_lock(&eng->lock);
    session_set_hold(s, HOLD_NONE);
    prefill_list_remove(s);
    pthread_cond_broadcast(&eng->ended_cond);
    pthread_mutex_unlock(&eng->lock);
}

struct session *prefill_queue_ready(const struct engine *eng) {
    struct session *s, *newest = eng->prefilling;
    /* one that only has to stop; one whose thread has ended; the newest */
    for (s = newest; s; s = s->prefill.below)
        if (s->prefill.driver && (s->prefill.is_abandoned || s->prefill.driver->has_thread) &&
            atomic_load(&s->prefill.job.is_ready))
            return s;
    return newest && !newest->prefill.is_abandoned &&
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
            ev.done = (int)(done_share(run) * ev.total);
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

/* Whether a queued prompt may be read while others are. It is read on the CPU then. */
static bool may_pass(const void *engine, const struct fair_entry *t) {
    const struct engine *eng = engine;
    const struct session *s = session_of(t);
    struct policy_pass_in in = {.n = s->n_tokens - s->n_kv, .expected_s = -1};
    if (s->hold != HOLD_NONE) return false;               /* its last prefill has not stopped */
    if (s->n_images && !eng->is_calibrated) return false; /* nobody knows how long the tower takes */
    if (eng->is_calibrated)
        in.expected_s =
            image_queue_expected(s) +
            cost_prefill(&eng->cost, &eng->cost_model,
                         &(struct cost_prefill){.mode = PREFILL_CPU, .n = in.n, .pos = s->n_kv, .ranks = 1});
    for (const struct session *o = eng->prefilling; o; o = o->prefill.below) {
        const struct prefill_run *run = &o->prefill;
        if (run->is_refused || !run->driver || run->is_abandoned) return false;
        struct policy_passed p = {.own_s = own_seconds(run),
                                  .share = done_share(run),
                                  .expected_s = run->expected_s,
                                  .lost_s = run->lost_s,
                                  .n = run->job.n,
                                  .is_on_cpu = run->driver == &prefill_mode_cpu};
        if (!policy_may_pass(&in, &p)) return false;
    }
    return true;
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
}

void prefill_queue_advance(struct session *s) {
    if (s->prefill.is_abandoned) advance_abandoned(s);
    else if (pause_below(s)) advance_prefill(s);
}
