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
                                   .since_decode_s = eng->last_decode_at > 0 ? clock_now() - eng->last_decode_at : -1,
                                   .dense_resident = decode_resident_layers(eng->machine.decode) == eng->info.n_layers};
    m.forced_prefill = eng->params.prefill;
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
    for (struct session *o = eng->sessions; o; o = o->next) in.n_decoding += atomic_load(&o->state) == SESSION_DECODE;
    pthread_mutex_unlock(&eng->lock);
    struct policy_prefill_out out;
    policy_prefill(&m, &in, &out);
    const struct prefill_driver *driver = drivers[out.mode];
    eng->prefill_job.device = out.device;
    eng->prefill_expected_s = s->stats.prefill_expected_s = out.seconds[out.mode];
    char where[100], weights[80] = "", uploads[120] = "", nodes[80] = "";
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
    snprintf(s->stats.prefill_why, sizeof s->stats.prefill_why, "%d new tokens %s: %.130s%s%s%s%s", n, where, out.why,
             weights, uploads, nodes, s->has_waited ? "; waited for other answers (--max-tpot)" : "");
    return driver;
}

/* Starts the chosen driver, or another one after a failure. Returns PREFILL_MORE or an error. */
static int begin_driver(struct engine *eng, const struct prefill_driver *driver, struct error *e) {
    struct prefill_job *j = &eng->prefill_job;
    atomic_store(&j->is_ready, 0);
    atomic_store(&j->done, 0);
    atomic_store(&j->total, 0);
    eng->prefilling->stats.prefill_mode = exec_mode_name(driver->mode);
    eng->prefill_driver = driver;
    prefill_make_room(&eng->machine, driver->mode, j);
    int rc = driver->open(&eng->machine, j, e);
    return rc ? rc : PREFILL_MORE;
}

static void feed_mtp(void *ctx, int pos, int n, const float *x) {
    struct engine *eng = ctx;
    if (eng->prefilling) mtp_feed(eng->mtp, &eng->prefilling->mtp, pos, n, x);
}

/* Runs the units before the driver's: looks the prompt up in the caches, loads saved KV and resident weights, then
 * starts the driver. Returns PREFILL_MORE or an error. */
static int begin_turn(struct engine *eng, struct error *e) {
    struct session *s = eng->prefilling;
    if (eng->restoring_turn != s->turn_id) {
        eng->restoring_turn = s->turn_id;
        s->n_kv = kv_resume_pos(&s->kv, s->n_kv);
        decode_rewind(eng->machine.decode, &s->kv, s->n_kv);
        mtp_rewind(&s->mtp, s->n_kv);
        prefix_begin_turn(s);
        prefix_reuse(s);
    }
    if (prefix_load_next(s)) return PREFILL_MORE; /* one file of the disk cache per unit */
    const struct prefill_driver *driver = choose_prefill_driver(eng, s, s->n_tokens - s->n_kv);
    if (s->request.max_tokens && eng->params.decode != DECODE_CPU) { /* upload resident weights, one layer per unit */
        bool more;
        const int rc = prefill_load_next(
            &eng->machine, driver->mode,
            &(struct prefill_job){
                .kv = &s->kv, .pos = s->n_kv, .n = s->n_tokens - s->n_kv, .device = eng->prefill_job.device},
            &more, e);
        if (rc == ERR_RUNTIME) {
            log_say(LOG_WARN, "%s; sessions now decode on the CPU", e->text);
            decode_on_device_lost(eng->machine.decode, e->text);
            *e = (struct error){0};
        }
        if (rc || more) return rc && rc != ERR_RUNTIME ? rc : PREFILL_MORE;
    }
    eng->restoring_turn = 0;
    eng->prefill_began = eng->progress_emitted = clock_now();
    eng->prefill_thread_s = 0;
    if (!s->n_answered) s->stats.queue_s = eng->prefill_began - s->submitted_at;
    s->is_long_rope = config_long_rope(&eng->weights.config, s->n_tokens);
    eng->prefill_job.n_complete = 0;
    if (!s->n_answered) s->stats.cached_tokens = s->n_kv;
    int n = s->n_tokens - s->n_kv, before = config_lookback_at(&eng->weights.config, s->n_kv);
    if (mem_grow(&eng->prefill_tokens, &eng->prefill_tokens_cap, (size_t)(before + n), sizeof *eng->prefill_tokens))
        return error_set(e, ERR_MEMORY, "no memory for a prompt of %d tokens", n);
    memcpy(eng->prefill_tokens, s->tokens + s->n_kv - before, (size_t)(before + n) * sizeof *eng->prefill_tokens);
    eng->prefill_job = (struct prefill_job){
        .device = eng->prefill_job.device,
        .kv = &s->kv,
        .tokens = eng->prefill_tokens + before,
        .pos = s->n_kv,
        .n = n,
        .n_before = before,
        .last_logits = eng->logits,
        .on_logits = s->n_answered ? NULL : s->request.logits,
        .on_logits_ctx = s->request.logits_ctx,
        .on_hidden = eng->mtp ? feed_mtp : NULL,
        .on_hidden_ctx = eng,
        .cancel = session_cancel_flag(s),
        .is_aligned = prefix_is_exact(s),
        .cut = prefix_shared_end(s),
    };
    kv_state_keep(&s->kv, s->n_kv); /* a rewind of this turn restarts here */
    return begin_driver(eng, driver, e);
}

/* Runs one unit of the running prefill; after the last one samples the first token. */
static void advance_prefill(struct engine *eng) {
    struct session *s = eng->prefilling;
    struct error e = {0};
    uint64_t bytes_before = atomic_load(&eng->machine.bytes_read);
    double begin = clock_now();
    int rc;
    if (!eng->prefill_driver) rc = begin_turn(eng, &e);
    else if ((rc = eng->prefill_driver->advance(&eng->machine, &eng->prefill_job, &e)) != PREFILL_MORE)
        eng->prefill_driver->close(&eng->machine, &eng->prefill_job);
    if (rc == ERR_MEMORY && (eng->prefill_driver == &prefill_mode_slp || eng->prefill_driver == &prefill_mode_dslp) &&
        decode_yield(eng->machine.decode)) { /* evict resident weights */
        log_say(LOG_INFO, "%s prefill: %s; evicting resident weights until the prefill ends",
                exec_mode_name(eng->prefill_driver->mode), e.text);
        size_t at = strlen(s->stats.prefill_why);
        snprintf(s->stats.prefill_why + at, sizeof s->stats.prefill_why - at, "; resident weights were evicted");
        e = (struct error){0};
        rc = begin_driver(eng, eng->prefill_driver, &e);
    }
    /* fall back to the CPU */
    if ((rc == ERR_MEMORY || rc == ERR_RUNTIME) && eng->prefill_driver && eng->prefill_driver != &prefill_mode_cpu) {
        log_say(LOG_WARN, "%s prefill: %s; using the CPU instead", exec_mode_name(eng->prefill_driver->mode), e.text);
        if (eng->machine.gpus->is_lost) decode_on_device_lost(eng->machine.decode, e.text);
        snprintf(s->stats.prefill_why, sizeof s->stats.prefill_why, "%s failed: %.200s",
                 exec_mode_name(eng->prefill_driver->mode), e.text);
        e = (struct error){0};
        eng->prefill_expected_s = s->stats.prefill_expected_s = 0;
        rc = begin_driver(eng, &prefill_mode_cpu, &e);
    }
    s->stats.bytes_read += atomic_load(&eng->machine.bytes_read) - bytes_before;
    eng->prefill_thread_s += clock_now() - begin;
    if (rc == PREFILL_MORE) return;
    if (!rc && !s->request.logits && eng->prefill_expected_s > 0) /* feed the measured time back to the cost model */
        cost_observe(
            &eng->cost, &eng->cost.observed[eng->prefill_driver->mode], eng->prefill_job.n, eng->prefill_expected_s,
            eng->prefill_driver == &prefill_mode_cpu ? eng->prefill_thread_s : clock_now() - eng->prefill_began);
    decode_reclaim(eng->machine.decode);
    const struct prefill_driver *driver = eng->prefill_driver;
    eng->prefill_driver = NULL;
    if (!s->n_answered) s->stats.prefill_s = clock_now() - eng->prefill_began;
    s->n_kv += eng->prefill_job.n_complete;
    if (eng->prefill_job.is_aligned && (driver == &prefill_mode_cpu || !eng->params.deterministic)) {
        if (eng->prefill_job.n_complete)
            s->prefix.token_s =
                (driver == &prefill_mode_cpu ? eng->prefill_thread_s : clock_now() - eng->prefill_began) /
                eng->prefill_job.n_complete;
        prefix_record(s);
    }
    if (rc) session_turn_end(s, DONE_STOP, rc, &e);
    else session_turn_sample(s, eng->prefill_job.last_logits, -1, -1);
}

/* Advances a prefill whose turn is over until it stops. */
static void advance_abandoned(struct engine *eng) {
    struct error e = {0};
    if (eng->prefill_driver->advance(&eng->machine, &eng->prefill_job, &e) == PREFILL_MORE) return;
    eng->prefill_driver->close(&eng->machine, &eng->prefill_job);
    decode_reclaim(eng->machine.decode);
    eng->prefill_driver = NULL;
    pthread_mutex_lock(&eng->lock);
    session_set_hold(eng->abandoned, HOLD_NONE);
    eng->abandoned = NULL;
    pthread_cond_broadcast(&eng->ended_cond);
    pthread_mutex_unlock(&eng->lock);
}

bool prefill_queue_ready(const struct engine *eng) {
    return (eng->prefilling || eng->abandoned) && (!eng->prefill_driver || atomic_load(&eng->prefill_job.is_ready));
}

void prefill_queue_emit_progress(struct engine *eng) {
    struct session *s = eng->prefilling;
    double now = clock_now(), total = s && eng->prefill_driver ? atomic_load(&eng->prefill_job.total) : 0;
    if (!(total > 0) || now - eng->progress_emitted < 0.1 || s->n_answered) return;
    double share = atomic_load(&eng->prefill_job.done) / total;
    int n_new = s->n_tokens - s->stats.cached_tokens;
    eng->progress_emitted = now;
    pthread_mutex_lock(&eng->lock);
    session_emit_progress(s,
                          &(struct event){.kind = EVENT_PROGRESS,
                                          .session = s,
                                          .unit = eng->prefill_driver->unit,
                                          .done = (int)(share * n_new),
                                          .total = n_new,
                                          .left_s = share > 0 ? (now - eng->prefill_began) * (1 - share) / share : -1});
    pthread_mutex_unlock(&eng->lock);
}

void prefill_queue_pick(struct engine *eng) {
    const struct fair_entry *first = fair_queue_next(&eng->prefill_queue, NULL, NULL);
    if (!first || eng->prefilling || eng->abandoned || atomic_load(&eng->closing)) return;
    struct session *s = (struct session *)((char *)first - offsetof(struct session, queue_entry));
    if (!tpot_admits(eng, s)) {
        s->has_waited = true;
        return;
    }
    eng->tpot.unit_s = 0;
    session_set_state(s, SESSION_PREFILL);
}

void prefill_queue_advance(struct engine *eng) {
    if (eng->abandoned) advance_abandoned(eng);
    else advance_prefill(eng);
}
