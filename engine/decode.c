/* Decode batches: one batch gives each decoding session a token and verifies its drafted tokens. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/clock.h"
#include "engine/loop.h"

struct policy_machine decode_machine(const struct engine *e) {
    const struct gpu_set *g = e->machine.gpus;
    const struct step *s = e->machine.step;
    struct policy_machine m = {.cost = &e->cost,
                               .model = &e->model,
                               .n_devices = g ? g->n : 0,
                               .lost = g && g->lost,
                               .layers = step_resident_layers(s),
                               .ranks = step_ranks(s),
                               .away = step_away(s),
                               .prefills = 1u << POLICY_SLP | 1u << POLICY_DSLP | (step_blends(s) ? 1u << POLICY_BLEND : 0),
                               .decodes = step_ready(s) ? 1u << POLICY_DECODE_HYBRID | 1u << POLICY_DECODE_DUAL : 0};
    for (int i = 0; i < m.n_devices; i++) m.holds[i] = step_holds(s, i);
    return m;
}

/* Prefers the sessions that waited longest. A session with a full event queue waits for its reader. */
int decode_pick(const struct engine *e, struct session *batch[ENGINE_BATCH]) {
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

/* Chooses the mode of the next batch and how many sessions it takes; the others wait for the batch after it. */
static int plan_step(struct engine *e, struct session **batch, int n) {
    static const enum policy_decode asks[] = {[DECODE_AUTO] = POLICY_DECODE_AUTO,
                                              [DECODE_CPU] = POLICY_DECODE_CPU,
                                              [DECODE_HYBRID] = POLICY_DECODE_HYBRID,
                                              [DECODE_DUAL] = POLICY_DECODE_DUAL,
                                              [DECODE_PAGED] = POLICY_DECODE_PAGED};
    static const enum step_cut cuts[] = {[POLICY_DECODE_CPU] = STEP_CPU, [POLICY_DECODE_HYBRID] = STEP_HYBRID, [POLICY_DECODE_DUAL] = STEP_DUAL};
    struct policy_machine m = decode_machine(e);
    struct policy_decode_in in = {.decoding = n, .most = ENGINE_BATCH, .beside = e->mode && e->mode != &mode_cpu};
    struct policy_decode_out out, *last = &e->decided;
    m.ask_decode = asks[e->params.decode];
    for (int i = 0; i < n; i++) in.keys += batch[i]->n / (double)n;
    in.context = in.keys + 1024;
    policy_step(&m, &in, &out);
    e->cut = cuts[out.mode];
    step_cut_at(e->machine.step, out.cut);
    e->step_expected = out.seconds[out.mode];
    bool same = *e->decode_why && out.mode == last->mode && out.batch == last->batch && out.layers == last->layers &&
                !memcmp(out.refused, last->refused, sizeof out.refused) && fabs(out.seconds[out.mode] / last->seconds[out.mode] - 1) < 0.05;
    if (!same) { /* formatting takes as long as a layer of a small model */
        char why[200];
        *last = out;
        policy_step_why(&m, &in, &out, why, sizeof why);
        snprintf(e->decode_why, sizeof e->decode_why, "%s; on devices: %s", why, step_resident(e->machine.step));
    }
    return out.batch < n ? out.batch : n;
}

struct took {
    uint64_t bytes;        /* per session */
    double seconds, saved; /* saved: per session, by drafts */
    bool cold;             /* many experts were read for the first time */
    struct step_counts experts;
};

/* After a rejected draft a recurrent state is that of before the batch, so accepted tokens are processed again. */
static int first_of(const struct session *s) { return kv_floor(&s->kv, s->n - 1); }

static struct row row_of(struct session *s) {
    struct row r = {.s = s, .cancel = &s->cancel[atomic_load(&s->live)], .turn = s->order, .pos = first_of(s), .room = ENGINE_EVENTS - s->n_unread};
    r.n = r.known = s->n - r.pos;
    memcpy(r.tokens, s->tokens + r.pos, (size_t)r.n * sizeof *r.tokens);
    return r;
}

int decode_rows(struct engine *e, struct session **batch, int n, struct row *rows) {
    n = plan_step(e, batch, n);
    e->steps++;
    int room = STEP_ROWS;
    for (int i = 0; i < n; i++) {
        struct session *s = batch[i];
        rows[i] = row_of(s);
        if ((room -= rows[i].n) < 0) return i; /* the others wait */
        s->held = true, s->stepped = e->steps;
    }
    return n;
}

static struct step_counts counts_since(struct step_counts is, const struct step_counts *was) {
    is.chosen -= was->chosen, is.here -= was->here, is.moved -= was->moved, is.in_vain -= was->in_vain, is.moved_bytes -= was->moved_bytes;
    is.ahead -= was->ahead, is.ahead_in_vain -= was->ahead_in_vain;
    is.processor_s -= was->processor_s, is.device_s -= was->device_s;
    is.deciding_s -= was->deciding_s, is.decided -= was->decided;
    for (int i = 0; i < 3; i++) is.said[i] -= was->said[i], is.right[i] -= was->right[i];
    return is;
}
static void tell_experts(struct turn_stats *to, const struct step_counts *c) {
    to->experts.chosen += c->chosen, to->experts.on_device += c->here, to->experts.moved += c->moved, to->experts.in_vain += c->in_vain;
    to->experts.moved_bytes += c->moved_bytes, to->experts.ahead += c->ahead, to->experts.ahead_in_vain += c->ahead_in_vain;
    to->experts.processor_s += c->processor_s, to->experts.device_s += c->device_s;
    to->experts.deciding_s += c->deciding_s, to->experts.decided += c->decided;
    for (int i = 0; i < 3; i++) to->experts.said[i] += c->said[i], to->experts.right[i] += c->right[i];
}

static uint64_t experts_of_token(const struct config *c) {
    uint64_t moe = 0;
    for (int i = 0; i < c->n_layers; i++) moe += c->layer[i].moe;
    return moe * (uint64_t)c->topk;
}

static int step(struct engine *e, const struct row *rows, int n, struct step_span *spans, struct took *took, struct error *err) {
    enum { FEW_COLD = 32 }; /* a share of cold experts, several times slower to read, below 1/FEW_COLD is negligible */
    uint64_t before = atomic_load(&e->machine.bytes_read);
    const uint64_t looked_at = e->machine.scan.experts;
    double begin = clock_now();
    struct step_counts was = step_counts(e->machine.step);
    int all = 0;
    for (int i = 0; i < n; all += rows[i++].n)
        spans[i] = (struct step_span){.kv = &rows[i].s->kv, .tokens = rows[i].tokens, .pos = rows[i].pos, .n = rows[i].n};
    int rc = step_run(e->machine.step, e->cut, spans, n, n == 1 ? rows->cancel : &e->closing, err);
    double now = clock_now();
    *took = (struct took){(atomic_load(&e->machine.bytes_read) - before) / (uint64_t)n, now - begin, e->saved,
                          (e->machine.scan.experts - looked_at) * FEW_COLD > (uint64_t)all * experts_of_token(&e->weights.config),
                          counts_since(step_counts(e->machine.step), &was)};
    if (!rc && all == n && e->step_expected > 0 && now - begin < 10 * e->step_expected) /* the first batch may read weights from disk */
        cost_observe(&e->cost, &e->cost.seen[COST_STEP_CPU + step_ran(e->machine.step)], n, e->step_expected, now - begin);
    e->last_decode = now;
    return rc;
}

/* Whether the turn is still the row's after the batch. If so, no other thread ends it from this point. */
static bool still(struct engine *e, const struct row *r) {
    struct session *s = r->s;
    pthread_mutex_lock(&e->lock);
    bool same = atomic_load(&s->state) == SESSION_DECODE && s->order == r->turn;
    s->kept = false;
    pthread_cond_broadcast(&e->over);
    pthread_mutex_unlock(&e->lock);
    return same;
}

/* Samples the token after each row as without drafts, since sampling depends on seed and position only. The next row counts if its drafted
 * token equals the sampled one. Cache rows of rejected tokens are overwritten later. Returns the number of accepted tokens. */
static int settle(struct engine *e, const struct row *r, const struct took *took, int rc, const struct error *why, const struct step_span *t) {
    static const char *const ran[] = {[STEP_CPU] = "cpu", [STEP_HYBRID] = "hybrid", [STEP_DUAL] = "dual"};
    struct session *s = r->s;
    int right = 0;
    if (!still(e, r)) return 0;
    s->stats.bytes_read += took->bytes;
    tell_experts(&s->stats, &took->experts);
    s->stats.decode_mode = ran[step_ran(e->machine.step)];
    s->stats.step_expected_s = e->step_expected;
    s->stats.step_s = took->seconds;
    memcpy(s->stats.decode_why, e->decode_why, sizeof e->decode_why);
    if (rc) {
        turn_end(s, DONE_STOP, rc, why);
        return 0;
    }
    const int guesses = r->n - r->known;
    s->stats.draft = drafts_name(e);
    s->stats.drafted += guesses;
    if (guesses > s->stats.draft_most) s->stats.draft_most = guesses;
    s->stats.draft_saved_s += took->saved;
    for (int i = r->known - 1; i < r->n; i++) {
        s->n_kv = r->pos + i + 1;
        if (e->mtp && t->hidden) mtp_tell(e->mtp, &s->mtp, r->pos + i, 1, t->hidden + (size_t)i * (size_t)e->info.hidden);
        if (!turn_draw(s, t->logits + (size_t)i * (size_t)e->info.vocab, t->top[i], i + 1 < r->n ? r->tokens[i + 1] : -1)) break;
        s->stats.accepted++, right++; /* the turn continues and is still held */
    }
    return right;
}

/* An error may concern one session or its drafts only. The batch is then repeated per session without drafts, and only failing turns end. */
void decode_step(struct engine *e, struct row *rows, int n) {
    struct error err = {0};
    struct step_span spans[ENGINE_BATCH];
    struct took took;
    int rc = step(e, rows, n, spans, &took, &err), known = 0, guesses = 0, right = 0;
    bool apart = rc && rc != ERR_CANCELLED && (n > 1 || rows->n > rows->known);
    for (int i = 0; i < n; i++) {
        if (apart) {
            err = (struct error){0};
            rows[i].n = rows[i].known;
            rc = step(e, &rows[i], 1, &spans[i], &took, &err);
        }
        known += rows[i].known, guesses += rows[i].n - rows[i].known;
        right += settle(e, &rows[i], &took, rc, &err, &spans[i]);
    }
    struct governor_step *t = &e->drafted;
    t->way = (int)step_ran(e->machine.step), t->n = n, t->rows = known, t->guesses = guesses, t->right = right, t->cold = took.cold, t->seconds = took.seconds;
    e->saved = rc || apart ? 0 : governor_ran(&e->governor, t) / n;
    *t = (struct governor_step){0};
}
