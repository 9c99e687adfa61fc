/* Decode batches: one batch gives each decoding session a token and verifies its drafted tokens. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "engine/exec/stream/slp.h"
#include "engine/session/batch_entry.h"
#include "engine/session/decode_batch.h"
#include "engine/session/drafts.h"
#include "engine/session/engine_state.h"
#include "engine/session/policy_machine.h"
#include "engine/session/prefill_list.h"
#include "engine/session/session.h"
#include "engine/session/session_turn.h"
#include "engine/session/time_slices.h"

/* Prefers the sessions that waited longest. A session with a full event queue waits for its reader. */
int decode_batch_pick(const struct engine *eng, struct session *batch[ENGINE_MAX_BATCH]) {
    int n = 0;
    for (struct session *s = eng->sessions; s; s = s->next) {
        if (atomic_load(&s->state) != SESSION_DECODE || s->n_unread == ENGINE_MAX_UNREAD) continue;
        int i = n;
        while (i > 0 && batch[i - 1]->last_batch > s->last_batch) i--;
        if (n < ENGINE_MAX_BATCH) n++;
        for (int k = n - 1; k > i; k--) batch[k] = batch[k - 1];
        if (i < n) batch[i] = s;
    }
    return n;
}

/* Chooses the mode of the next batch and how many sessions it takes; the others wait for the batch after it. */
static int choose_exec(struct engine *eng, struct session **batch, int n) {
    struct policy_machine m = policy_machine_of(eng);
    struct policy_decode_in in = {
        .n_decoding = n, .max_rows = ENGINE_MAX_BATCH, .beside_prefill = prefill_list_streams(eng)};
    struct policy_decode_out out, *last = &eng->explained_decision;
    for (int i = 0; i < n; i++) in.keys += batch[i]->n_tokens / (double)n;
    in.context_tokens = in.keys + POLICY_EXPECTED_GROWTH;
    policy_decode_batch(&m, &in, &out);
    eng->next_exec = out.mode;
    decode_set_first_spans(eng->machine.decode, out.first_rows);
    eng->batch_expected_s = out.seconds[out.mode];
    eng->tpot.max_batch_s = m.max_tpot_s * out.batch / n;
    bool is_explained = *eng->decode_why && out.mode == last->mode && out.batch == last->batch &&
                        out.n_device_layers == last->n_device_layers &&
                        !memcmp(out.refused, last->refused, sizeof out.refused) &&
                        fabs(out.seconds[out.mode] / last->seconds[out.mode] - 1) < 0.05;
    if (!is_explained) { /* not for every batch: formatting takes as long as a layer of a small model */
        char why[320];
        *last = out;
        policy_decode_why(&m, &in, &out, why, sizeof why);
        char turns[100] = "";
        if (eng->slices.n_batches)
            snprintf(turns, sizeof turns,
                     "; the caches of %d of %d sessions fit the devices: these take turns of %d batches",
                     eng->slices.n_fit, eng->slices.n_sessions, eng->slices.n_batches);
        snprintf(eng->decode_why, sizeof eng->decode_why, "%s%s; on devices: %s", why, turns,
                 decode_placement_why(eng->machine.decode));
    }
    return out.batch < n ? out.batch : n;
}

struct batch_result {
    uint64_t weight_bytes;         /* per session */
    double seconds, draft_saved_s; /* draft_saved_s: decode time that drafts saved, per session */
    bool is_cold;                  /* many experts were read for the first time */
    struct decode_counts experts;
};

/* After a rejected draft a recurrent state is that of before the batch, so accepted tokens are processed again. */
static int resume_pos(const struct session *s) { return kv_resume_pos(&s->kv, s->n_tokens - 1); }

static struct batch_entry make_entry(struct session *s) {
    struct batch_entry r = {.s = s,
                            .cancel = session_cancel_flag(s),
                            .turn_id = s->turn_id,
                            .turn_shift = s->turn_shift,
                            .pos = resume_pos(s),
                            .event_room = ENGINE_MAX_UNREAD - s->n_unread};
    r.n = r.n_known = s->n_tokens - r.pos;
    r.n_before = config_lookback_at(&s->engine->weights.config, r.pos);
    memcpy(r.text, s->tokens + r.pos - r.n_before, (size_t)(r.n_before + r.n) * sizeof *r.text);
    return r;
}

int decode_batch_fill(struct engine *eng, struct session **batch, int n, struct batch_entry *rows) {
    n = time_slices_pick(eng, batch, choose_exec(eng, batch, n));
    eng->n_batches++;
    int room = DECODE_MAX_ROWS;
    for (int i = 0; i < n; i++) {
        struct session *s = batch[i];
        rows[i] = make_entry(s);
        if ((room -= rows[i].n) < 0) return i; /* the others wait */
        session_set_hold(s, HOLD_CLAIMED);
        s->last_batch = eng->n_batches;
    }
    return n;
}

static struct decode_counts counts_diff(struct decode_counts now, const struct decode_counts *before) {
    now.selected -= before->selected, now.hits -= before->hits, now.uploaded -= before->uploaded,
        now.wasted -= before->wasted, now.uploaded_bytes -= before->uploaded_bytes;
    now.prefetched -= before->prefetched, now.prefetched_wasted -= before->prefetched_wasted;
    now.cpu_s -= before->cpu_s, now.device_s -= before->device_s;
    now.decision_s -= before->decision_s, now.n_decisions -= before->n_decisions;
    for (int i = 0; i < 3; i++)
        now.predicted[i] -= before->predicted[i], now.predicted_right[i] -= before->predicted_right[i];
    return now;
}
static void add_expert_stats(struct turn_stats *to, const struct decode_counts *c) {
    to->experts.chosen += c->selected, to->experts.hits += c->hits, to->experts.uploaded += c->uploaded,
        to->experts.wasted += c->wasted;
    to->experts.upload_bytes += c->uploaded_bytes, to->experts.predicted_uploads += c->prefetched,
        to->experts.predicted_wasted += c->prefetched_wasted;
    to->experts.cpu_s += c->cpu_s, to->experts.device_s += c->device_s;
    to->experts.placement_s += c->decision_s, to->experts.n_placements += c->n_decisions;
    to->experts.pinned = c->pinned;
    for (int i = 0; i < 3; i++)
        to->experts.predicted[i] += c->predicted[i], to->experts.predicted_chosen[i] += c->predicted_right[i];
}

/* Chooses the mode of a batch of one session with drafted tokens: its rows in two micro-batches, if that is expected to
 * be at least 3% faster. */
static enum exec_mode mode_with_drafts(struct engine *eng, int rows, int keys) {
    const struct policy_machine m = policy_machine_of(eng);
    struct cost_decode s = {.mode = DECODE_DUAL,
                            .rows = rows,
                            .keys = keys,
                            .is_one_session = true,
                            .n_device_layers = m.n_device_layers,
                            .n_expert_layers = m.n_expert_layers,
                            .ranks = m.ranks};
    const bool forced = eng->params.decode == DECODE_DUAL;
    if (eng->next_exec != DECODE_HYBRID || (eng->params.decode && !forced)) return eng->next_exec;
    s.first_rows = cost_best_cut(&eng->cost, &eng->cost_model, &s);
    const double dual = cost_decode(&eng->cost, &eng->cost_model, &s);
    s.mode = DECODE_HYBRID;
    if (!forced && dual > 0.97 * cost_decode(&eng->cost, &eng->cost_model, &s)) return DECODE_HYBRID;
    decode_set_first_spans(eng->machine.decode, s.first_rows);
    return DECODE_DUAL;
}

static uint64_t experts_per_token(const struct config *c) {
    uint64_t moe = 0;
    for (int i = 0; i < c->n_layers; i++) moe += c->layer[i].moe;
    return moe * (uint64_t)c->topk;
}

static int run_batch(struct engine *eng, const struct batch_entry *rows, int n, struct decode_span *spans,
                     struct batch_result *result, struct error *e) {
    /* experts read for the first time take several times longer; below 1/COLD_SHARE of all they are negligible */
    enum { COLD_SHARE = 32 };
    uint64_t bytes_before = atomic_load(&eng->machine.bytes_read);
    const uint64_t scanned_before = eng->machine.scan.n_experts_scanned;
    double begin = clock_now();
    struct decode_counts counts_before = decode_counts(eng->machine.decode);
    int n_rows = 0;
    for (int i = 0; i < n; n_rows += rows[i++].n)
        spans[i] = (struct decode_span){.kv = &rows[i].s->kv,
                                        .tokens = &rows[i].text[rows[i].n_before],
                                        .pos = rows[i].pos,
                                        .n = rows[i].n,
                                        .n_before = rows[i].n_before,
                                        .turn_shift = rows[i].turn_shift};
    const enum exec_mode mode = n == 1 && n_rows > 1 ? mode_with_drafts(eng, n_rows, rows->pos) : eng->next_exec;
    int rc = decode_run(eng->machine.decode, mode, spans, n, n == 1 ? rows->cancel : &eng->closing, e);
    double now = clock_now();
    *result = (struct batch_result){(atomic_load(&eng->machine.bytes_read) - bytes_before) / (uint64_t)n, now - begin,
                                    eng->draft_saved_s,
                                    (eng->machine.scan.n_experts_scanned - scanned_before) * COLD_SHARE >
                                        (uint64_t)n_rows * experts_per_token(&eng->weights.config),
                                    counts_diff(decode_counts(eng->machine.decode), &counts_before)};
    if (!rc) time_slices_record(eng, n);
    const bool is_expected = n_rows == n && !decode_n_without_room(eng->machine.decode) && !eng->slices.n_fit;
    /* the first batch may read weights from disk */
    if (!rc && is_expected && eng->batch_expected_s > 0 && now - begin < 10 * eng->batch_expected_s)
        cost_observe(&eng->cost, &eng->cost.observed[decode_last_exec(eng->machine.decode)], n, eng->batch_expected_s,
                     now - begin);
    for (int i = 0; i < n; i++) rows[i].s->decoded_at = now;
    return rc;
}

/* Claims the entry's session after the batch, so that no other thread ends its turn. Returns false if the turn has
 * ended. */
static bool claim_entry(struct engine *eng, const struct batch_entry *r) {
    struct session *s = r->s;
    pthread_mutex_lock(&eng->lock);
    bool is_running = atomic_load(&s->state) == SESSION_DECODE && s->turn_id == r->turn_id;
    session_set_hold(s, is_running ? HOLD_CLAIMED : HOLD_NONE);
    pthread_cond_broadcast(&eng->ended_cond);
    pthread_mutex_unlock(&eng->lock);
    return is_running;
}

/* Samples the token after each row, with the result that it has without drafts: sampling depends on seed and position
 * only. The next row counts if its drafted token equals the sampled one. Cache rows of rejected tokens are overwritten
 * later. Returns the number of accepted tokens. */
static int finish_entry(struct engine *eng, const struct batch_entry *r, const struct batch_result *result, int rc,
                        const struct error *why, const struct decode_span *span) {
    struct session *s = r->s;
    int n_accepted = 0;
    if (!claim_entry(eng, r)) return 0;
    s->stats.bytes_read += result->weight_bytes;
    add_expert_stats(&s->stats, &result->experts);
    s->stats.decode_mode = exec_mode_name(decode_last_exec(eng->machine.decode));
    s->stats.batch_expected_s = eng->batch_expected_s;
    s->stats.batch_s = result->seconds;
    memcpy(s->stats.decode_why, eng->decode_why, sizeof eng->decode_why);
    if (rc) {
        session_turn_end(s, DONE_STOP, rc, why);
        return 0;
    }
    const int n_drafted = r->n - r->n_known;
    s->stats.draft = drafts_name(eng);
    s->stats.drafted += n_drafted;
    if (n_drafted > s->stats.max_drafted) s->stats.max_drafted = n_drafted;
    s->stats.draft_saved_s += result->draft_saved_s;
    for (int i = r->n_known - 1; i < r->n; i++) {
        s->n_kv = r->pos + i + 1;
        if (eng->mtp && span->hidden && !s->n_images)
            mtp_feed(eng->mtp, &s->mtp, r->pos + i, 1, span->hidden + (size_t)i * (size_t)eng->info.hidden);
        if (!session_turn_sample(s, span->logits + (size_t)i * (size_t)eng->info.vocab, span->top[i],
                                 i + 1 < r->n ? r->text[r->n_before + i + 1] : -1))
            break;
        s->stats.accepted++, n_accepted++; /* the turn continues and is still held */
    }
    return n_accepted;
}

/* An error may concern one session or its drafts only. The batch is then repeated per session without drafts, and only
 * failing turns end. */
void decode_batch_run(struct engine *eng, struct batch_entry *rows, int n) {
    struct error e = {0};
    struct decode_span spans[ENGINE_MAX_BATCH];
    struct batch_result result;
    int rc = run_batch(eng, rows, n, spans, &result, &e), n_known = 0, n_drafted = 0, n_accepted = 0;
    bool one_by_one = rc && rc != ERR_CANCELLED && (n > 1 || rows->n > rows->n_known);
    for (int i = 0; i < n; i++) {
        if (one_by_one) {
            e = (struct error){0};
            rows[i].n = rows[i].n_known;
            rc = run_batch(eng, &rows[i], 1, &spans[i], &result, &e);
        }
        n_known += rows[i].n_known, n_drafted += rows[i].n - rows[i].n_known;
        n_accepted += finish_entry(eng, &rows[i], &result, rc, &e, &spans[i]);
    }
    eng->n_batch_tokens = n + n_accepted;
    struct governor_sample *sample = &eng->next_sample;
    const enum exec_mode ran = decode_last_exec(eng->machine.decode);
    sample->mode = (n == 1 && ran == DECODE_DUAL ? DECODE_HYBRID : ran) - DECODE_CPU, sample->n = n,
    sample->rows = n_known, sample->n_drafted = n_drafted, sample->n_accepted = n_accepted,
    sample->is_cold = result.is_cold, sample->seconds = result.seconds;
    eng->draft_saved_s = rc || one_by_one ? 0 : governor_record(&eng->governor, sample) / n;
    *sample = (struct governor_sample){0};
}
