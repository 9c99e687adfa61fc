#include "engine/session/prefill_begin.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "engine/exec/blend/blend_device.h"
#include "engine/session/image_queue.h"
#include "engine/session/policy_machine.h"
#include "engine/session/prefill_list.h"
#include "engine/session/prefill_room.h"
#include "engine/session/prefix.h"

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

static const struct prefill_driver *choose_driver(struct engine *eng, struct session *s, int n) {
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
    m.forced_prefill = prefill_passes(s) ? PREFILL_CPU : eng->params.prefill;
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
             looks_ahead         ? "tokens of its images see later ones, which only the CPU computes"
             : prefill_passes(s) ? "passes a longer prompt"
                                 : out.why,
             images, math, weights, uploads, nodes, s->has_waited ? "; waited for other answers (--max-tpot)" : "");
    return driver;
}

void prefill_add_why(struct session *s, const char *text) {
    const size_t at = strlen(s->stats.prefill_why);
    snprintf(s->stats.prefill_why + at, sizeof s->stats.prefill_why - at, "%s", text);
}

int prefill_begin_unit(struct session *s, const struct prefill_driver **out, struct error *e) {
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
    const struct prefill_driver *driver = choose_driver(eng, s, s->n_tokens - s->n_kv);
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
    *out = driver;
    return 0;
}

static void feed_mtp(void *ctx, int pos, int n, const float *x) {
    struct session *s = ctx;
    if (!s->prefill.is_abandoned && !s->n_images) mtp_feed(s->engine->mtp, &s->mtp, pos, n, x);
}

int prefill_begin_job(struct session *s, struct error *e) {
    struct engine *eng = s->engine;
    struct prefill_run *run = &s->prefill;
    run->began = run->progress_emitted = clock_now();
    run->thread_s = run->lost_s = 0;
    run->n_passed = 0;
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
        .last_logits = prefill_passes(s) ? eng->passing_logits : eng->logits,
        .on_logits = s->n_answered ? NULL : s->request.logits,
        .on_logits_ctx = s->request.logits_ctx,
        .on_hidden = eng->mtp ? feed_mtp : NULL,
        .on_hidden_ctx = s,
        .cancel = session_cancel_flag(s),
        .is_aligned = prefix_is_exact(s),
        .cut = prefix_shared_end(s),
    };
    kv_state_keep(&s->kv, s->n_kv); /* a rewind of this turn restarts here */
    return 0;
}
