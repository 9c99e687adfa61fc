/* Prefills prompts, one at a time, unit by unit, in a mode that the policy chooses (step/mode.h). */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/loop.h"

static const struct mode *choose(struct engine *e, struct session *s, int n) {
    static const enum policy_mode asks[] = {
        [PREFILL_AUTO] = POLICY_AUTO, [PREFILL_CPU] = POLICY_CPU, [PREFILL_BLEND] = POLICY_BLEND, [PREFILL_SLP] = POLICY_SLP, [PREFILL_DSLP] = POLICY_DSLP};
    static const struct mode *const modes[] = {[POLICY_CPU] = &mode_cpu, [POLICY_BLEND] = &mode_blend, [POLICY_SLP] = &mode_slp, [POLICY_DSLP] = &mode_dslp};
    struct gpu_set *g = e->machine.gpus;
    struct policy_machine m = decode_machine(e);
    struct policy_in in = {.n_new = n,
                           .n_cached = s->n_kv,
                           .since_decode_s = e->last_decode > 0 ? clock_now() - e->last_decode : -1,
                           .dense_resident = step_resident_layers(e->machine.step) == e->info.n_layers};
    m.ask = asks[e->params.prefill];
    for (int i = 0; i < m.n_devices; i++) m.free[i] = (double)(gpu_mem_free(g->gpu[i]) + step_held(e->machine.step, i));
    if (m.n_devices && !m.lost)
        in.need[POLICY_SLP] = (double)pipe_least(&(struct pipe_job){.w = &e->weights, .set = g, .ranks = 1, .cache = s->kv.layer, .pos = s->n_kv, .n = n});
    if (m.n_devices > 1 && !m.lost)
        in.need[POLICY_DSLP] = (double)pipe_least(&(struct pipe_job){.w = &e->weights, .set = g, .ranks = g->n, .cache = s->kv.layer, .pos = s->n_kv, .n = n});
    for (int i = 0; i < m.n_devices && m.prefills >> POLICY_BLEND & 1; i++) {
        double *need = m.holds[i] ? &in.need[POLICY_BLEND] : &in.need_help;
        m.stays[i] = (double)step_weights(e->machine.step, i);
        *need = fmax(*need, (double)blend_least(&e->machine, i, s->n_kv, n));
    }
    pthread_mutex_lock(&e->lock);
    for (struct session *o = e->sessions; o; o = o->next) in.decoding += atomic_load(&o->state) == SESSION_DECODE;
    pthread_mutex_unlock(&e->lock);
    struct policy_out out;
    policy_prefill(&m, &in, &out);
    const struct mode *mode = modes[out.mode];
    e->job.device = out.device;
    e->expected = s->stats.prefill_expected_s = out.seconds[out.mode];
    char where[100], weights[80] = "", nodes[80] = "";
    if (mode == &mode_cpu) snprintf(where, sizeof where, "on the CPU (%s, %d threads)", e->info.level, e->info.threads);
    else
        snprintf(where, sizeof where, "%s on %d of %d devices (%.40s)", mode == &mode_blend ? "blended" : "stream-loaded", mode == &mode_slp ? 1 : out.ranks,
                 g->n, gpu_info(g->gpu[mode == &mode_slp ? out.device : 0])->name);
    if (mode != &mode_cpu && g->pin)
        snprintf(weights, sizeof weights, "; weights %s, %.3g GB/s expected", pin_name(pin_chosen(g->pin)->path),
                 e->cost.domain[1 + out.device].link[COST_H2D].rate * 1e-9);
    if (e->cost.reach > 0)
        snprintf(nodes, sizeof nodes, "; %.0f%% of %d NUMA nodes' bandwidth: weights are not placed by node", 100 * e->cost.reach, e->cost.n_nodes);
    else if (e->cost.n_nodes) snprintf(nodes, sizeof nodes, "; %d NUMA nodes, each with rows of every expert", e->cost.n_nodes);
    snprintf(s->stats.why, sizeof s->stats.why, "%d new tokens %s: %.130s%s%s", n, where, out.why, weights, nodes);
    return mode;
}

/* Starts the turn's first mode, or the fallback after a failure. Returns PREFILL_MORE or an error. */
static int begin(struct engine *e, const struct mode *mode, struct error *err) {
    struct prefill_job *j = &e->job;
    atomic_store(&j->ready, 0);
    atomic_store(&j->done, 0);
    atomic_store(&j->total, 0);
    e->reading->stats.prefill_mode = mode->name;
    e->mode = mode;
    if (mode != &mode_cpu) step_lend(e->machine.step, mode == &mode_blend ? blend_wants(&e->machine, j->pos, j->n) : SIZE_MAX);
    int rc = mode->open(&e->machine, j, err);
    return rc ? rc : PREFILL_MORE;
}

static void tell_hidden(void *ctx, int pos, int n, const float *x) {
    struct engine *e = ctx;
    if (e->reading) mtp_tell(e->mtp, &e->reading->mtp, pos, n, x);
}

static int begin_turn(struct engine *e, struct error *err) {
    struct session *s = e->reading;
    if (e->restoring != s->order) {
        e->restoring = s->order;
        step_rewind(e->machine.step, &s->kv, s->n_kv);
        mtp_rewind(&s->mtp, s->n_kv);
        prefix_begin(s);
        prefix_find(s);
    }
    if (prefix_restore(s)) return PREFILL_MORE; /* one file per unit */
    e->restoring = 0;
    e->begun = e->told = clock_now();
    e->worked = 0;
    if (!s->answered) s->stats.queue_s = e->begun - s->submitted;
    s->far = config_far(&e->weights.config, s->n);
    e->job.complete = 0;
    if (!s->answered) s->stats.cached_tokens = s->n_kv;
    int n = s->n - s->n_kv;
    if (mem_grow(&e->job_tokens, &e->job_cap, (size_t)n, sizeof *e->job_tokens)) return error_set(err, ERR_MEMORY, "no memory for a prompt of %d tokens", n);
    memcpy(e->job_tokens, s->tokens + s->n_kv, (size_t)n * sizeof *e->job_tokens);
    e->job = (struct prefill_job){
        .kv = &s->kv,
        .tokens = e->job_tokens,
        .pos = s->n_kv,
        .n = n,
        .last = e->logits,
        .all = s->answered ? NULL : s->request.logits,
        .all_ctx = s->request.logits_ctx,
        .hidden = e->mtp ? tell_hidden : NULL,
        .hidden_ctx = e,
        .cancel = &s->cancel[atomic_load(&s->live)],
        .aligned = prefix_exact(s),
        .cut = prefix_cut(s),
    };
    kv_keep(&s->kv, s->n_kv); /* a rewind of this turn restarts here */
    return begin(e, choose(e, s, n), err);
}

/* Runs one unit of the running prefill; after the last one samples the first token. */
static void read_on(struct engine *e) {
    struct session *s = e->reading;
    struct error err = {0};
    uint64_t bytes = atomic_load(&e->machine.bytes_read);
    double t = clock_now();
    int rc;
    if (!e->mode) rc = begin_turn(e, &err);
    else if ((rc = e->mode->advance(&e->machine, &e->job, &err)) != PREFILL_MORE) e->mode->close(&e->machine, &e->job);
    if (rc == ERR_MEMORY && (e->mode == &mode_slp || e->mode == &mode_dslp) && step_yield(e->machine.step)) { /* evict resident weights */
        log_say(LOG_INFO, "%s prefill: %s; evicting resident weights until the prefill ends", e->mode->name, err.text);
        size_t at = strlen(s->stats.why);
        snprintf(s->stats.why + at, sizeof s->stats.why - at, "; resident weights were evicted");
        err = (struct error){0};
        rc = begin(e, e->mode, &err);
    }
    if ((rc == ERR_MEMORY || rc == ERR_RUNTIME) && e->mode && e->mode != &mode_cpu) { /* fall back to the CPU */
        log_say(LOG_WARN, "%s prefill: %s; using the CPU instead", e->mode->name, err.text);
        if (e->machine.gpus->lost) step_lost(e->machine.step, err.text);
        snprintf(s->stats.why, sizeof s->stats.why, "%s failed: %.200s", e->mode->name, err.text);
        err = (struct error){0};
        e->expected = s->stats.prefill_expected_s = 0;
        rc = begin(e, &mode_cpu, &err);
    }
    s->stats.bytes_read += atomic_load(&e->machine.bytes_read) - bytes;
    e->worked += clock_now() - t;
    if (rc == PREFILL_MORE) return;
    if (!rc && !s->request.logits && e->expected > 0) {                                            /* feed the measured time back to the cost model */
        static const struct mode *const modes[] = {&mode_cpu, &mode_blend, &mode_slp, &mode_dslp}; /* order of enum cost_whole */
        for (int i = 0; i < 4; i++)
            if (e->mode == modes[i])
                cost_observe(&e->cost, &e->cost.seen[COST_PREFILL_CPU + i], e->job.n, e->expected, e->mode == &mode_cpu ? e->worked : clock_now() - e->begun);
    }
    step_back(e->machine.step);
    const struct mode *mode = e->mode;
    e->mode = NULL;
    if (!s->answered) s->stats.prefill_s = clock_now() - e->begun;
    s->n_kv += e->job.complete;
    if (e->job.aligned && (mode == &mode_cpu || !e->params.deterministic)) {
        if (e->job.complete) s->prefix.token_s = (mode == &mode_cpu ? e->worked : clock_now() - e->begun) / e->job.complete;
        prefix_made(s);
    }
    if (rc) turn_end(s, DONE_STOP, rc, &err);
    else turn_draw(s, e->job.last, -1, -1);
}

/* Advances a prefill whose turn is over until it stops. */
static void stop_left(struct engine *e) {
    struct error err = {0};
    if (e->mode->advance(&e->machine, &e->job, &err) == PREFILL_MORE) return;
    e->mode->close(&e->machine, &e->job);
    step_back(e->machine.step);
    e->mode = NULL;
    pthread_mutex_lock(&e->lock);
    e->left->kept = false;
    e->left = NULL;
    pthread_cond_broadcast(&e->over);
    pthread_mutex_unlock(&e->lock);
}

bool prompt_ready(const struct engine *e) { return (e->reading || e->left) && (!e->mode || atomic_load(&e->job.ready)); }

void prompt_progress(struct engine *e) {
    struct session *s = e->reading;
    double now = clock_now(), total = s && e->mode ? atomic_load(&e->job.total) : 0;
    if (!(total > 0) || now - e->told < 0.1 || s->answered) return;
    double share = atomic_load(&e->job.done) / total;
    int whole = s->n - s->stats.cached_tokens;
    e->told = now;
    pthread_mutex_lock(&e->lock);
    session_tell_progress(s, &(struct event){.kind = EVENT_PROGRESS,
                                             .session = s,
                                             .what = e->mode->unit,
                                             .done = (int)(share * whole),
                                             .total = whole,
                                             .left_s = share > 0 ? (now - e->begun) * (1 - share) / share : -1});
    pthread_mutex_unlock(&e->lock);
}

void prompt_next(struct engine *e) {
    const struct fair_turn *first = fair_next(&e->queued, NULL, NULL);
    if (!first || e->reading || e->left || atomic_load(&e->closing)) return;
    session_move((struct session *)((char *)first - offsetof(struct session, wait)), SESSION_PREFILL);
}

void prompt_piece(struct engine *e) {
    if (e->left) stop_left(e);
    else read_on(e);
}
