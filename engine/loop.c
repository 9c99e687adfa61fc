/* The engine's thread, which owns the processor. It goes round and each time does one piece of what is ready: a step of all
 * sessions that answer, a piece of the prefill that runs (a layer; one at a time, clients take turns), or work that
 * another thread hands in. Where steps and the rest compete, each has the processor for half of the time. A prefill on devices
 * has a thread of its own, and steps go on beside it. */
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/base/log.h"
#include "engine/draft/lookup.h"
#include "engine/internal.h"
#include "engine/many.h"
#include "engine/pipe/trace.h"
#include "engine/sched/calibrate.h"

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

void engine_end(struct session *s, enum done_reason reason, int rc, const struct error *why) {
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
 * True when it is `guess` and the turn goes on: then the session is still held. Else it is let go, and may be gone. */
static bool draw(struct session *s, float *logits, int32_t top, int32_t guess) {
    struct engine *e = s->engine;
    bool full = s->n >= e->info.context;
    if (!s->request.max_tokens) {
        s->stats.ttft_s = clock_now() - s->submitted;
        engine_end(s, full ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
        return false;
    }
    int32_t id = top >= 0 && sample_is_top(&s->request.sampling)
                     ? top
                     : sample_token(logits, e->info.vocab, &s->request.sampling, s->tokens, s->n, (uint64_t)s->n, e->scratch);
    if (!s->answered) {
        s->first = clock_now();
        s->stats.ttft_s = s->first - s->submitted;
    }
    if (is_stop(s, id)) {
        engine_end(s, DONE_STOP, 0, NULL);
        return false;
    }
    if (mem_grow(&s->tokens, &s->cap, (size_t)s->n + 1, sizeof *s->tokens)) {
        struct error err = {0};
        engine_end(s, DONE_STOP, error_set(&err, ERR_MEMORY, "no memory for %d tokens", s->n + 1), &err);
        return false;
    }
    pthread_mutex_lock(&e->lock);
    s->tokens[s->n++] = id;
    s->answered++;
    session_tell_token(s, id);
    bool goes_on = false;
    s->held = false;
    if (s->answered >= s->request.max_tokens) session_end(s, s->n >= e->info.context ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
    else if (config_far(&e->weights.config, s->n) != s->far) { /* all keys turn otherwise from here on */ s->n_kv = 0;
        session_move(s, SESSION_QUEUED);
    } else if (atomic_load(&s->state) == SESSION_PREFILL) session_move(s, SESSION_DECODE);
    else s->held = goes_on = id == guess;
    pthread_mutex_unlock(&e->lock);
    return goes_on;
}

bool engine_draw(struct session *s, float *logits, int32_t top) { return draw(s, logits, top, -1); }

/* --- Decode: a token for every session that answers, and those behind it that a draft guessed ------------------------------- */

static struct policy_machine policy_machine(const struct engine *e) {
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

/* How the next step of these runs, and how many of them it takes: the others wait for the one after it. */
static int plan_step(struct engine *e, struct session **batch, int n) {
    static const enum policy_decode asks[] = {[DECODE_AUTO] = POLICY_DECODE_AUTO,
                                              [DECODE_CPU] = POLICY_DECODE_CPU,
                                              [DECODE_HYBRID] = POLICY_DECODE_HYBRID,
                                              [DECODE_DUAL] = POLICY_DECODE_DUAL,
                                              [DECODE_PAGED] = POLICY_DECODE_PAGED};
    static const enum step_cut cuts[] = {[POLICY_DECODE_CPU] = STEP_CPU, [POLICY_DECODE_HYBRID] = STEP_HYBRID, [POLICY_DECODE_DUAL] = STEP_DUAL};
    struct policy_machine m = policy_machine(e);
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
    if (!same) { /* words take as long as a layer of a small model */
        char why[200];
        *last = out;
        policy_step_why(&m, &in, &out, why, sizeof why);
        snprintf(e->decode_why, sizeof e->decode_why, "%s; on devices: %s", why, step_resident(e->machine.step));
    }
    return out.batch < n ? out.batch : n;
}

/* A session's part in a step: what it knows of its tokens and the cache does not hold yet, then what a draft guesses of those that
 * follow. Its turn may be over before the step is, when it was cancelled: the others' go on, so the step does too, but what it found
 * for this one is dropped. The session itself stays until then. */
struct row {
    struct session *s;
    const _Atomic int *cancel;
    uint64_t turn;
    int pos, n, known; /* positions pos .. pos + n - 1; the first `known` are the turn's own */
    int room;          /* tokens that there was room for to tell, at least */
    int32_t tokens[STEP_ROWS];
};
struct took {
    uint64_t bytes;        /* of each */
    double seconds, saved; /* saved: of each, by guesses */
    struct step_counts experts;
};
static const char *const drafts[] = {[DRAFT_AUTO] = "lookup", [DRAFT_LOOKUP] = "lookup", [DRAFT_MTP] = "mtp", [DRAFT_INT4] = "int4"};

/* Where a cache keeps states and a guess was wrong, the state is that of before the step: so what was right is gone through again. */
static int first_of(const struct session *s) { return kv_floor(&s->kv, s->n - 1); }

/* Under the lock. */
static struct row row_of(struct session *s) {
    struct row r = {.s = s, .cancel = &s->cancel[atomic_load(&s->live)], .turn = s->order, .pos = first_of(s), .room = ENGINE_EVENTS - s->n_unread};
    r.n = r.known = s->n - r.pos;
    memcpy(r.tokens, s->tokens + r.pos, (size_t)r.n * sizeof *r.tokens);
    return r;
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

static int step(struct engine *e, const struct row *rows, int n, struct step_span *spans, struct took *took, struct error *err) {
    uint64_t before = atomic_load(&e->machine.bytes_read);
    double begin = clock_now();
    struct step_counts was = step_counts(e->machine.step);
    int all = 0;
    for (int i = 0; i < n; all += rows[i++].n)
        spans[i] = (struct step_span){.kv = &rows[i].s->kv, .tokens = rows[i].tokens, .pos = rows[i].pos, .n = rows[i].n};
    int rc = step_run(e->machine.step, e->cut, spans, n, n == 1 ? rows->cancel : &e->closing, err);
    double now = clock_now();
    *took =
        (struct took){(atomic_load(&e->machine.bytes_read) - before) / (uint64_t)n, now - begin, e->saved, counts_since(step_counts(e->machine.step), &was)};
    if (!rc && all == n && e->step_expected > 0 && now - begin < 10 * e->step_expected) /* the first one may read weights from a disk */
        cost_observe(&e->cost, &e->cost.seen[COST_STEP_CPU + step_ran(e->machine.step)], n, e->step_expected, now - begin);
    e->last_decode = now;
    return rc;
}

/* After the step: whether the turn is still the row's; nobody else ends it from here on. */
static bool still(struct engine *e, const struct row *r) {
    struct session *s = r->s;
    pthread_mutex_lock(&e->lock);
    bool same = atomic_load(&s->state) == SESSION_DECODE && s->order == r->turn;
    s->kept = false;
    pthread_cond_broadcast(&e->over);
    pthread_mutex_unlock(&e->lock);
    return same;
}

/* The token behind each row is drawn as if nothing had been guessed, since its draw depends on the seed and its position alone; the
 * next row is of use if that is what was guessed for it. What the others wrote to the cache is written over. */
/* Returns how many guesses were right. */
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
        engine_end(s, DONE_STOP, rc, why);
        return 0;
    }
    const int guesses = r->n - r->known;
    s->stats.draft = e->mtp && e->params.draft == DRAFT_AUTO ? "mtp and lookup" : e->int4 && !int4_ready(e->int4) ? NULL : drafts[e->params.draft];
    s->stats.drafted += guesses;
    if (guesses > s->stats.draft_most) s->stats.draft_most = guesses;
    s->stats.draft_saved_s += took->saved;
    for (int i = r->known - 1; i < r->n; i++) {
        s->n_kv = r->pos + i + 1;
        if (e->mtp && t->hidden) mtp_tell(e->mtp, &s->mtp, r->pos + i, 1, t->hidden + (size_t)i * (size_t)e->info.hidden);
        if (!draw(s, t->logits + (size_t)i * (size_t)e->info.vocab, t->top[i], i + 1 < r->n ? r->tokens[i + 1] : -1)) break;
        s->stats.accepted++, right++; /* the turn goes on: it is still ours */
    }
    return right;
}

/* An error may be one session's alone, or a guess's: each then goes by itself and by what is known, and only the guilty turn ends. */
static void decode(struct engine *e, struct row *rows, int n) {
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
    t->way = (int)step_ran(e->machine.step), t->n = n, t->rows = known, t->guesses = guesses, t->right = right, t->seconds = took.seconds;
    e->saved = rc || apart ? 0 : governor_ran(&e->governor, t) / n;
    *t = (struct governor_step){0};
}

/* --- Drafts ------------------------------------------------------------------------------------------------------------------ */

/* How many tokens behind the known ones can be of use. */
static int draft_room(const struct row *r) {
    const struct session *s = r->s;
    const struct config *c = &s->engine->weights.config;
    int most = s->request.max_tokens - s->answered - 1, context = s->engine->info.context - s->n, unread = r->room - 1;
    int turn = c->rope.kind == ROPE_LONG && !s->far ? (int)c->rope.original_max - s->n : most; /* past it all keys turn otherwise */
    if (context < most) most = context;
    if (unread < most) most = unread;
    if (turn < most) most = turn;
    return most < DRAFT_MOST ? most : DRAFT_MOST;
}

/* How a guess that waits to be judged has turned out so far, whether a step looked at it or not. */
static void judge(struct engine *e, const struct session *s, struct guess *g) {
    for (; g->seen < g->n && g->from + g->seen < s->n; g->seen++) {
        bool right = s->tokens[g->from + g->seen] == g->token[g->seen];
        governor_saw(&e->governor, g->level, g->seen, right);
        if (!right) g->n = 0;
    }
    if (g->seen >= g->n) g->n = 0;
}
static void keep(const struct session *s, struct guess *g, int level, const int32_t *tokens, int n) {
    if (g->n || !n) return;
    *g = (struct guess){.from = s->n, .n = n, .level = level};
    memcpy(g->token, tokens, (size_t)n * sizeof *tokens);
}

/* Somebody has stopped a turn: that is not to wait until more is guessed. */
static bool any_cancelled(const struct engine *e, const struct row *rows, int n) {
    bool any = atomic_load(&e->closing);
    for (int i = 0; i < n; i++) any |= atomic_load(rows[i].cancel) != 0;
    return any;
}

/* The token that a draft's logits give at position n, drawn with the number that the model's own will be drawn with there: so the two agree as often
 * as they can. */
static int32_t draw_guess(struct session *s, float *logits, int32_t top, int n) {
    return top < 0 || sample_is_top(&s->request.sampling)
               ? top
               : sample_token(logits, s->engine->info.vocab, &s->request.sampling, s->tokens, n, (uint64_t)n, s->engine->scratch);
}

static int32_t pick_guess(void *ctx, int i, float *logits, int32_t top) {
    struct session *s = ctx;
    return s->tokens[s->n + i] = draw_guess(s, logits, top, s->n + i); /* behind what it knows: the next draw may look at it */
}

/* By the model with experts in INT4: for all sessions together a token at a time, k[i] of them at most; fewer where a turn would end. */
static void guess_int4(struct engine *e, struct row *rows, int n, int *k) {
    const struct step_view view = {.experts = int4_experts(e->int4), .expert_bytes = int4_expert_bytes(e->int4), .seen = &e->seen};
    int made[ENGINE_BATCH] = {0}, who[ENGINE_BATCH];
    const uint64_t before = atomic_load(&e->machine.bytes_read);
    const double begin = clock_now();
    lookahead_clear(&e->seen);
    for (int i = 0; i < n; i++)
        if (k[i]) kv_try(&rows[i].s->kv, rows[i].s->n - 1);
    for (int at = 0, m;; at++) {
        struct step_span spans[ENGINE_BATCH];
        struct step_view v = view;
        struct error err = {0};
        v.first = e->seen.n;
        m = 0;
        for (int i = 0; i < n; i++) {
            struct session *s = rows[i].s;
            if (k[i] <= at || made[i] < at) continue;
            lookahead_token(&e->seen, at);
            spans[m] = (struct step_span){.kv = &s->kv, .tokens = &s->tokens[s->n - 1 + at], .pos = s->n - 1 + at, .n = 1};
            who[m++] = i;
        }
        if (!m || any_cancelled(e, rows, n)) break;
        step_view(e->machine.step, &v);
        const int rc = step_run(e->machine.step, e->cut, spans, m, n == 1 ? rows->cancel : &e->closing, &err);
        step_view(e->machine.step, NULL);
        if (rc) break; /* the step that looks at what is there finds out, too, and tells */
        for (int j = 0; j < m; j++) {
            struct session *s = rows[who[j]].s;
            const int32_t id = pick_guess(s, at, spans[j].logits, *spans[j].top);
            if (id < 0) continue;
            rows[who[j]].tokens[rows[who[j]].n + at] = id;
            made[who[j]]++;
            if (is_stop(s, id)) k[who[j]] = made[who[j]];
        }
        int longest = 0;
        for (int i = 0; i < n; i++) longest = k[i] > longest ? k[i] : longest;
        const enum step_phase phase = at + 1 >= longest ? STEP_ALL : 3 * (at + 1) > longest ? STEP_LIKELY : STEP_PRIME;
        if (step_expect(e->machine.step, &e->seen, phase, (longest - at - 1) * (clock_now() - begin) / (at + 1))) break;
    }
    for (int i = 0; i < n; i++) kv_return(&rows[i].s->kv, rows[i].s->n - 1);
    const uint64_t bytes = atomic_load(&e->machine.bytes_read) - before;
    for (int i = 0; i < n; i++) k[i] = made[i], rows[i].s->stats.bytes_read += bytes / (uint64_t)n;
}

/* Guesses behind the known tokens of each row, as many as are worth their rows. The sessions are held: nobody ends their turns meanwhile. */
static void draft(struct engine *e, struct row *rows, int n) {
    /* So many tokens in common are better than the prediction layer; rows that it is so far behind are no part of a guess. */
    enum { BY_MODEL = GOVERNOR_LEVELS - 1, CLEAR = 3, FAR = 4 };
    const bool always = e->params.draft_own || (e->params.draft_len && e->params.draft != DRAFT_AUTO); /* no decision is left */
    struct governor_in in = {.way = (int)e->cut, .n = n};
    int k[ENGINE_BATCH], room = STEP_ROWS;
    for (int i = 0; i < n; i++) room -= rows[i].n, in.rows += rows[i].n;
    for (int i = 0; i < n; i++) {
        struct row *r = &rows[i];
        struct session *s = r->s;
        int32_t *out = r->tokens + r->n;
        int most = draft_room(r), share = always ? room / (n - i) : STEP_ROWS - in.rows, matched = LOOKUP_MATCH;
        for (int g = 0; g < 2; g++) judge(e, s, &s->guess[g]);
        if (most > share) most = share;
        if (e->params.draft_len && most > e->params.draft_len) most = e->params.draft_len;
        if (most < 1 || r->known > 1) most = 0; /* a state that is behind catches up first */
        k[i] = !most                          ? 0
               : e->params.draft_own          ? e->params.draft_own(e->params.draft_ctx, s->tokens, s->n, most, out)
               : e->params.draft == DRAFT_MTP ? most
               : e->int4                      ? most * int4_ready(e->int4)
                                              : draft_lookup(s->tokens, s->n, most, out, &matched);
        in.level[i] = matched > 8 ? 4 : matched > 4 ? 3 : matched > 2 ? 2 : matched - (matched > 0);
        in.dear[i] = e->int4 ? k[i] > 0 : e->mtp && most && (e->params.draft == DRAFT_MTP || matched < CLEAR);
        if (in.dear[i]) k[i] = most, in.level[i] = BY_MODEL;
        else keep(s, &s->guess[0], in.level[i], out, k[i]);
        in.most[i] = k[i], room -= k[i];
        in.behind[i] = e->mtp && in.dear[i] && s->mtp.waiting > FAR ? s->mtp.waiting - 1 : 0;
    }
    if (!always) governor_choose(&e->governor, &in, k);
    struct governor_step *t = &e->drafted;
    const double begin = clock_now();
    for (int i = 0; i < n; i++)
        if (in.behind[i] && k[i]) mtp_catch_up(e->mtp, &rows[i].s->mtp, rows[i].s->tokens), t->behind += in.behind[i];
    const double caught_up = clock_now();
    if (t->behind) t->row_s = caught_up - begin;
    bool any = false;
    for (int i = 0; i < n; i++) any |= in.dear[i] && k[i];
    for (int i = 0; i < n; i++) /* room for guesses behind them */
        if (in.dear[i] && k[i] && mem_grow(&rows[i].s->tokens, &rows[i].s->cap, (size_t)(rows[i].s->n + k[i]), sizeof *rows[i].s->tokens)) k[i] = 0;
    if (e->int4) guess_int4(e, rows, n, k);
    for (int i = 0; i < n; i++) {
        struct session *s = rows[i].s;
        if (in.dear[i] && k[i]) {
            if (e->mtp) k[i] = mtp_guess(e->mtp, &s->mtp, s->tokens, s->n, k[i], rows[i].tokens + rows[i].n, pick_guess, s);
            keep(s, &s->guess[1], BY_MODEL, rows[i].tokens + rows[i].n, k[i]);
            t->dear += k[i];
        }
        rows[i].n += k[i];
    }
    if (any) t->guess_s = clock_now() - caught_up;
}

/* --- Prefill ---------------------------------------------------------------------------------------------------------------- */

static const struct mode *choose(struct engine *e, struct session *s, int n) {
    static const enum policy_mode asks[] = {
        [PREFILL_AUTO] = POLICY_AUTO, [PREFILL_CPU] = POLICY_CPU, [PREFILL_BLEND] = POLICY_BLEND, [PREFILL_SLP] = POLICY_SLP, [PREFILL_DSLP] = POLICY_DSLP};
    static const struct mode *const modes[] = {[POLICY_CPU] = &mode_cpu, [POLICY_BLEND] = &mode_blend, [POLICY_SLP] = &mode_slp, [POLICY_DSLP] = &mode_dslp};
    struct gpu_set *g = e->machine.gpus;
    struct policy_machine m = policy_machine(e);
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
    if (mode == &mode_cpu) snprintf(where, sizeof where, "on the processor (%s, %d threads)", e->info.level, e->info.threads);
    else
        snprintf(where, sizeof where, "%s on %d of %d devices (%.40s)", mode == &mode_blend ? "blended" : "stream-loaded", mode == &mode_slp ? 1 : out.ranks,
                 g->n, gpu_info(g->gpu[mode == &mode_slp ? out.device : 0])->name);
    if (mode != &mode_cpu && g->pin)
        snprintf(weights, sizeof weights, "; weights %s, %.3g GB/s expected", pin_name(pin_chosen(g->pin)->path),
                 e->cost.domain[1 + out.device].link[COST_H2D].rate * 1e-9);
    if (e->cost.reach > 0)
        snprintf(nodes, sizeof nodes, "; %.0f%% of %d memory nodes' bandwidth: weights lie there by chance", 100 * e->cost.reach, e->cost.n_nodes);
    else if (e->cost.n_nodes) snprintf(nodes, sizeof nodes, "; %d memory nodes, each with rows of every expert", e->cost.n_nodes);
    snprintf(s->stats.why, sizeof s->stats.why, "%d new tokens %s: %.130s%s%s", n, where, out.why, weights, nodes);
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
    if (prefix_restore(s)) return PREFILL_MORE; /* a file at a time */
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
    kv_keep(&s->kv, s->n_kv); /* who takes the turn back comes here */
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
    if (rc == ERR_MEMORY && (e->mode == &mode_slp || e->mode == &mode_dslp) && step_yield(e->machine.step)) { /* what is resident makes room */
        log_say(LOG_INFO, "%s prefill: %s; what answers need there makes room until the prompt is read", e->mode->name, err.text);
        size_t at = strlen(s->stats.why);
        snprintf(s->stats.why + at, sizeof s->stats.why - at, "; what answers need there made room");
        err = (struct error){0};
        rc = begin(e, e->mode, &err);
    }
    if ((rc == ERR_MEMORY || rc == ERR_RUNTIME) && e->mode && e->mode != &mode_cpu) { /* the device cannot; the processor can */
        log_say(LOG_WARN, "%s prefill: %s; reading the prompt on the processor instead", e->mode->name, err.text);
        if (e->machine.gpus->lost) step_lost(e->machine.step, err.text);
        snprintf(s->stats.why, sizeof s->stats.why, "%s failed: %.200s", e->mode->name, err.text);
        err = (struct error){0};
        e->expected = s->stats.prefill_expected_s = 0;
        rc = begin(e, &mode_cpu, &err);
    }
    s->stats.bytes_read += atomic_load(&e->machine.bytes_read) - bytes;
    e->worked += clock_now() - t;
    if (rc == PREFILL_MORE) return;
    if (!rc && !s->request.logits && e->expected > 0) {                                            /* the next choice knows what this one took */
        static const struct mode *const modes[] = {&mode_cpu, &mode_blend, &mode_slp, &mode_dslp}; /* as enum cost_whole */
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
    if (rc) engine_end(s, DONE_STOP, rc, &err);
    else draw(s, e->job.last, -1, -1);
}

/* The prefill whose turn is over stops. */
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

static bool prefill_ready(struct engine *e) { return (e->reading || e->left) && (!e->mode || atomic_load(&e->job.ready)); }

static void tell_progress(struct engine *e) {
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

/* --- The loop ---------------------------------------------------------------------------------------------------------------- */

static void next_prefill(struct engine *e) {
    const struct fair_turn *first = fair_next(&e->queued, NULL, NULL);
    if (!first || e->reading || e->left || atomic_load(&e->closing)) return;
    session_move((struct session *)((char *)first - offsetof(struct session, wait)), SESSION_PREFILL);
}

/* Cards are to be chosen for, for the first time: takes seconds where what was measured before is not kept. */
void engine_measure(struct engine *e) {
    struct gpu_set *g = e->machine.gpus;
    struct error err = {0};
    struct cost_machine found;
    e->measured = true;
    e->machine.cpu->cancel = &e->closing;
    if (calibrate(&found,
                  &(struct calibrate_options){.cpu = e->machine.cpu,
                                              .threads = e->info.threads,
                                              .pool = e->pool,
                                              .nodes = &e->nodes,
                                              .gpu = g->gpu,
                                              .n_gpus = g->n,
                                              .gpus = e->params.gpus,
                                              .dir = e->params.machine,
                                              .cancel = &e->closing},
                  &err)) {
        log_say(LOG_WARN, "this machine could not be measured: %s; its speeds are assumed", err.text);
        return;
    }
    found.deterministic = e->params.deterministic;
    e->cost = found;
    engine_path(e);
}

/* False when the engine closes and nothing is left to be done. */
static bool go_round(struct engine *e) {
    struct session *batch[ENGINE_BATCH];
    struct row rows[ENGINE_BATCH];
    pthread_mutex_lock(&e->lock);
    session_reap(e);
    enum many_next many = many_ready(e);
    if (!many) next_prefill(e);
    int n = many ? 0 : pick(e, batch);
    struct piece *piece = e->pieces;
    const bool asked = e->orders; /* something was: before that no weights were touched */
    if (!e->measured && !e->mode && ((n && e->params.decode == DECODE_AUTO) || (e->reading && e->params.prefill == PREFILL_AUTO))) {
        pthread_mutex_unlock(&e->lock);
        engine_measure(e);
        return true;
    }
    bool other = piece || prefill_ready(e), steps = n && !(other && e->balance > 0);
    if (steps) {
        n = plan_step(e, batch, n);
        e->steps++;
        int room = STEP_ROWS;
        for (int i = 0; i < n; i++) {
            struct session *s = batch[i];
            rows[i] = row_of(s);
            if ((room -= rows[i].n) < 0) n = i; /* the others wait */
            else s->held = true, s->stepped = e->steps;
        }
    } else if (piece) e->pieces = piece->next;
    bool reads = e->reading || e->left, over = atomic_load(&e->closing) && !n && !other && !reads && !many;
    pthread_mutex_unlock(&e->lock);
    if (over) return false;

    double begin = clock_now();
    uint64_t wakes;
    if (steps) {
        if (e->params.draft) {
            draft(e, rows, n);
        }
        pthread_mutex_lock(&e->lock);
        e->stepping = true;
        for (int i = 0; i < n; i++) rows[i].s->kept = true;
        session_reap(e); /* who was cancelled meanwhile need not wait for the step */
        pthread_mutex_unlock(&e->lock);
        decode(e, rows, n);
        pthread_mutex_lock(&e->lock);
        e->stepping = false;
        pthread_mutex_unlock(&e->lock);
        /* a copy of a batch of the prompt: so seldom that on the average it is 4 MB a step, about a millisecond */
        if (e->steps % (1 + ((uint64_t)e->prefill_work.rows * e->info.kv_token_bytes >> 22)) == 0) prefix_save_one(e);
    } else if (piece) run_piece(e, piece);
    else if (many == MANY_STEP) many_step(e);
    else if (other && e->left) stop_left(e);
    else if (other) prefill(e);
    else if (!prefix_save_one(e) && !(asked && large_one(&e->large))) {
        if (!reads) trace_save(e->machine.trace, e->params.trace, false);
        if (read(e->wake, &wakes, sizeof wakes) < 0) {
        } /* interrupted: look again */
    }
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
    while (go_round(e)) {
    }
    return NULL;
}
