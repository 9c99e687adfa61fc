/* Prefills prompts, one at a time, unit by unit, in a mode that the policy chooses (exec/prefill.h). */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/exec/blend/blend_device.h"
#include "engine/sampling/sample.h"
#include "engine/session/engine_state.h"
#include "engine/session/policy_machine.h"
#include "engine/session/prefill_queue.h"
#include "engine/session/prefill_room.h"
#include "engine/session/prefix.h"
#include "engine/session/session.h"
#include "engine/session/session_turn.h"
#include "engine/session/tpot.h"

/* Says from how many rows of an expert its upload to a device is faster than the CPU, and from how many the device computes longer than the link transfers. */
static void explain_uploads(const struct engine *e, int domain, char *out, size_t cap) {
    const int pays = (int)cost_fetch_break_even(&e->cost, domain, &e->cost_model), computes = (int)cost_compute_bound_rows(&e->cost, domain, &e->cost_model);
    *out = 0;
    if (!e->info.n_experts) return;
    if (pays >= COST_NEVER_ROWS) snprintf(out, cap, "; uploading an expert is never faster than the CPU");
    else if (computes >= COST_NEVER_ROWS) snprintf(out, cap, "; uploading an expert is faster than the CPU from %d of its tokens, limited by the link", pays);
    else snprintf(out, cap, "; uploading an expert is faster than the CPU from %d of its tokens, limited by the link below %d", pays, computes);
}

static const struct prefill_driver *choose_prefill_driver(struct engine *e, struct session *s, int n) {
    static const struct prefill_driver *const drivers[] = {
        [PREFILL_CPU] = &prefill_mode_cpu, [PREFILL_BLEND] = &prefill_mode_blend, [PREFILL_SLP] = &prefill_mode_slp, [PREFILL_DSLP] = &prefill_mode_dslp};
    struct gpu_set *g = e->machine.gpus;
    struct policy_machine m = policy_machine_of(e);
    struct policy_prefill_in in = {.n_new = n,
                                   .n_cached = s->n_kv,
                                   .since_decode_s = e->last_decode_at > 0 ? clock_now() - e->last_decode_at : -1,
                                   .dense_resident = decode_resident_layers(e->machine.decode) == e->info.n_layers};
    m.forced_prefill = e->params.prefill;
    for (int i = 0; i < m.n_devices; i++) m.held[i] = (double)decode_held_bytes(e->machine.decode, i), m.free[i] = (double)gpu_mem_free(g->gpu[i]) + m.held[i];
    if (m.n_devices && !m.is_lost)
        in.need_bytes[PREFILL_SLP] =
            (double)slp_min_bytes(&(struct slp_job){.w = &e->weights, .set = g, .ranks = 1, .cache = s->kv.layer, .pos = s->n_kv, .n = n});
    if (m.n_devices > 1 && !m.is_lost)
        in.need_bytes[PREFILL_DSLP] =
            (double)slp_min_bytes(&(struct slp_job){.w = &e->weights, .set = g, .ranks = g->n, .cache = s->kv.layer, .pos = s->n_kv, .n = n});
    for (int i = 0; i < m.n_devices && m.prefill_mask >> PREFILL_BLEND & 1; i++) {
        double *need = m.decode_uses[i] ? &in.need_bytes[PREFILL_BLEND] : &in.helper_need_bytes;
        m.blend_stays[i] = (double)decode_weight_bytes(e->machine.decode, i);
        *need = fmax(*need, (double)blend_min_bytes(&e->machine, i, s->n_kv, n));
    }
    pthread_mutex_lock(&e->lock);
    for (struct session *o = e->sessions; o; o = o->next) in.n_decoding += atomic_load(&o->state) == SESSION_DECODE;
    pthread_mutex_unlock(&e->lock);
    struct policy_prefill_out out;
    policy_prefill(&m, &in, &out);
    const struct prefill_driver *driver = drivers[out.mode];
    e->prefill_job.device = out.device;
    e->prefill_expected_s = s->stats.prefill_expected_s = out.seconds[out.mode];
    char where[100], weights[80] = "", uploads[120] = "", nodes[80] = "";
    if (driver == &prefill_mode_cpu) snprintf(where, sizeof where, "%s (%s, %d threads)", exec_modes[out.mode].what, e->info.level, e->info.threads);
    else
        snprintf(where, sizeof where, "%s on %d of %d devices (%.40s)", exec_modes[out.mode].what, driver == &prefill_mode_slp ? 1 : out.ranks, g->n,
                 gpu_info(g->gpu[driver == &prefill_mode_slp ? out.device : 0])->name);
    if (driver != &prefill_mode_cpu && g->pin)
        snprintf(weights, sizeof weights, "; weights %s, %.3g GB/s expected", pin_name(pin_get_choice(g->pin)->path),
                 e->cost.domain[1 + out.device].link[COST_H2D].rate * 1e-9);
    if (driver != &prefill_mode_cpu) explain_uploads(e, 1 + out.device, uploads, sizeof uploads);
    if (e->cost.spread_bw_share > 0)
        snprintf(nodes, sizeof nodes, "; %.0f%% of %d NUMA nodes' bandwidth: weights are not placed by node", 100 * e->cost.spread_bw_share, e->cost.n_nodes);
    else if (e->cost.n_nodes) snprintf(nodes, sizeof nodes, "; %d NUMA nodes, each with rows of every expert", e->cost.n_nodes);
    snprintf(s->stats.prefill_why, sizeof s->stats.prefill_why, "%d new tokens %s: %.130s%s%s%s%s", n, where, out.why, weights, uploads, nodes,
             s->has_waited ? "; waited for other answers: --max-tpot" : "");
    return driver;
}

/* Starts the chosen driver, or another one after a failure. Returns PREFILL_MORE or an error. */
static int begin_driver(struct engine *e, const struct prefill_driver *driver, struct error *err) {
    struct prefill_job *j = &e->prefill_job;
    atomic_store(&j->is_ready, 0);
    atomic_store(&j->done, 0);
    atomic_store(&j->total, 0);
    e->prefilling->stats.prefill_mode = exec_mode_name(driver->mode);
    e->prefill_driver = driver;
    prefill_make_room(&e->machine, driver->mode, j);
    int rc = driver->open(&e->machine, j, err);
    return rc ? rc : PREFILL_MORE;
}

static void feed_mtp(void *ctx, int pos, int n, const float *x) {
    struct engine *e = ctx;
    if (e->prefilling) mtp_feed(e->mtp, &e->prefilling->mtp, pos, n, x);
}

/* Runs the units before the driver's: looks the prompt up in the caches, loads saved KV and resident weights, then starts the driver. Returns PREFILL_MORE
 * or an error. */
static int begin_turn(struct engine *e, struct error *err) {
    struct session *s = e->prefilling;
    if (e->restoring_turn != s->turn_id) {
        e->restoring_turn = s->turn_id;
        s->n_kv = kv_resume_pos(&s->kv, s->n_kv);
        decode_rewind(e->machine.decode, &s->kv, s->n_kv);
        mtp_rewind(&s->mtp, s->n_kv);
        prefix_begin_turn(s);
        prefix_reuse(s);
    }
    if (prefix_load_next(s)) return PREFILL_MORE; /* one file of the disk cache per unit */
    const struct prefill_driver *driver = choose_prefill_driver(e, s, s->n_tokens - s->n_kv);
    if (s->request.max_tokens && e->params.decode != DECODE_CPU) { /* upload resident weights, one layer per unit */
        bool more;
        const int rc =
            prefill_load_next(&e->machine, driver->mode,
                              &(struct prefill_job){.kv = &s->kv, .pos = s->n_kv, .n = s->n_tokens - s->n_kv, .device = e->prefill_job.device}, &more, err);
        if (rc == ERR_RUNTIME) {
            log_say(LOG_WARN, "%s; sessions now decode on the CPU", err->text);
            decode_on_device_lost(e->machine.decode, err->text);
            *err = (struct error){0};
        }
        if (rc || more) return rc && rc != ERR_RUNTIME ? rc : PREFILL_MORE;
    }
    e->restoring_turn = 0;
    e->prefill_began = e->progress_emitted = clock_now();
    e->prefill_thread_s = 0;
    if (!s->n_answered) s->stats.queue_s = e->prefill_began - s->submitted_at;
    s->is_long_rope = config_long_rope(&e->weights.config, s->n_tokens);
    e->prefill_job.n_complete = 0;
    if (!s->n_answered) s->stats.cached_tokens = s->n_kv;
    int n = s->n_tokens - s->n_kv, before = config_lookback_at(&e->weights.config, s->n_kv);
    if (mem_grow(&e->prefill_tokens, &e->prefill_tokens_cap, (size_t)(before + n), sizeof *e->prefill_tokens))
        return error_set(err, ERR_MEMORY, "no memory for a prompt of %d tokens", n);
    memcpy(e->prefill_tokens, s->tokens + s->n_kv - before, (size_t)(before + n) * sizeof *e->prefill_tokens);
    e->prefill_job = (struct prefill_job){
        .device = e->prefill_job.device,
        .kv = &s->kv,
        .tokens = e->prefill_tokens + before,
        .pos = s->n_kv,
        .n = n,
        .n_before = before,
        .last_logits = e->logits,
        .on_logits = s->n_answered ? NULL : s->request.logits,
        .on_logits_ctx = s->request.logits_ctx,
        .on_hidden = e->mtp ? feed_mtp : NULL,
        .on_hidden_ctx = e,
        .cancel = session_cancel_flag(s),
        .is_aligned = prefix_is_exact(s),
        .cut = prefix_shared_end(s),
    };
    kv_state_keep(&s->kv, s->n_kv); /* a rewind of this turn restarts here */
    return begin_driver(e, driver, err);
}

/* Runs one unit of the running prefill; after the last one samples the first token. */
static void advance_prefill(struct engine *e) {
    struct session *s = e->prefilling;
    struct error err = {0};
    uint64_t bytes_before = atomic_load(&e->machine.bytes_read);
    double begin = clock_now();
    int rc;
    if (!e->prefill_driver) rc = begin_turn(e, &err);
    else if ((rc = e->prefill_driver->advance(&e->machine, &e->prefill_job, &err)) != PREFILL_MORE) e->prefill_driver->close(&e->machine, &e->prefill_job);
    if (rc == ERR_MEMORY && (e->prefill_driver == &prefill_mode_slp || e->prefill_driver == &prefill_mode_dslp) &&
        decode_yield(e->machine.decode)) { /* evict resident weights */
        log_say(LOG_INFO, "%s prefill: %s; evicting resident weights until the prefill ends", exec_mode_name(e->prefill_driver->mode), err.text);
        size_t at = strlen(s->stats.prefill_why);
        snprintf(s->stats.prefill_why + at, sizeof s->stats.prefill_why - at, "; resident weights were evicted");
        err = (struct error){0};
        rc = begin_driver(e, e->prefill_driver, &err);
    }
    if ((rc == ERR_MEMORY || rc == ERR_RUNTIME) && e->prefill_driver && e->prefill_driver != &prefill_mode_cpu) { /* fall back to the CPU */
        log_say(LOG_WARN, "%s prefill: %s; using the CPU instead", exec_mode_name(e->prefill_driver->mode), err.text);
        if (e->machine.gpus->is_lost) decode_on_device_lost(e->machine.decode, err.text);
        snprintf(s->stats.prefill_why, sizeof s->stats.prefill_why, "%s failed: %.200s", exec_mode_name(e->prefill_driver->mode), err.text);
        err = (struct error){0};
        e->prefill_expected_s = s->stats.prefill_expected_s = 0;
        rc = begin_driver(e, &prefill_mode_cpu, &err);
    }
    s->stats.bytes_read += atomic_load(&e->machine.bytes_read) - bytes_before;
    e->prefill_thread_s += clock_now() - begin;
    if (rc == PREFILL_MORE) return;
    if (!rc && !s->request.logits && e->prefill_expected_s > 0) /* feed the measured time back to the cost model */
        cost_observe(&e->cost, &e->cost.observed[e->prefill_driver->mode], e->prefill_job.n, e->prefill_expected_s,
                     e->prefill_driver == &prefill_mode_cpu ? e->prefill_thread_s : clock_now() - e->prefill_began);
    decode_reclaim(e->machine.decode);
    const struct prefill_driver *driver = e->prefill_driver;
    e->prefill_driver = NULL;
    if (!s->n_answered) s->stats.prefill_s = clock_now() - e->prefill_began;
    s->n_kv += e->prefill_job.n_complete;
    if (e->prefill_job.is_aligned && (driver == &prefill_mode_cpu || !e->params.deterministic)) {
        if (e->prefill_job.n_complete)
            s->prefix.token_s = (driver == &prefill_mode_cpu ? e->prefill_thread_s : clock_now() - e->prefill_began) / e->prefill_job.n_complete;
        prefix_record(s);
    }
    if (rc) session_turn_end(s, DONE_STOP, rc, &err);
    else session_turn_sample(s, e->prefill_job.last_logits, -1, -1);
}

/* Advances a prefill whose turn is over until it stops. */
static void advance_abandoned(struct engine *e) {
    struct error err = {0};
    if (e->prefill_driver->advance(&e->machine, &e->prefill_job, &err) == PREFILL_MORE) return;
    e->prefill_driver->close(&e->machine, &e->prefill_job);
    decode_reclaim(e->machine.decode);
    e->prefill_driver = NULL;
    pthread_mutex_lock(&e->lock);
    session_set_hold(e->abandoned, HOLD_NONE);
    e->abandoned = NULL;
    pthread_cond_broadcast(&e->ended_cond);
    pthread_mutex_unlock(&e->lock);
}

bool prefill_queue_ready(const struct engine *e) { return (e->prefilling || e->abandoned) && (!e->prefill_driver || atomic_load(&e->prefill_job.is_ready)); }

void prefill_queue_emit_progress(struct engine *e) {
    struct session *s = e->prefilling;
    double now = clock_now(), total = s && e->prefill_driver ? atomic_load(&e->prefill_job.total) : 0;
    if (!(total > 0) || now - e->progress_emitted < 0.1 || s->n_answered) return;
    double share = atomic_load(&e->prefill_job.done) / total;
    int n_new = s->n_tokens - s->stats.cached_tokens;
    e->progress_emitted = now;
    pthread_mutex_lock(&e->lock);
    session_emit_progress(s, &(struct event){.kind = EVENT_PROGRESS,
                                             .session = s,
                                             .unit = e->prefill_driver->unit,
                                             .done = (int)(share * n_new),
                                             .total = n_new,
                                             .left_s = share > 0 ? (now - e->prefill_began) * (1 - share) / share : -1});
    pthread_mutex_unlock(&e->lock);
}

void prefill_queue_pick(struct engine *e) {
    const struct fair_entry *first = fair_queue_next(&e->prefill_queue, NULL, NULL);
    if (!first || e->prefilling || e->abandoned || atomic_load(&e->closing)) return;
    struct session *s = (struct session *)((char *)first - offsetof(struct session, queue_entry));
    if (!tpot_admits(e, s)) {
        s->has_waited = true;
        return;
    }
    e->tpot.unit_s = 0;
    session_set_state(s, SESSION_PREFILL);
}

void prefill_queue_advance(struct engine *e) {
    if (e->abandoned) advance_abandoned(e);
    else advance_prefill(e);
}
