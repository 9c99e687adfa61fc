/* Drafted tokens for the rows of a decode batch: drafts propose tokens, the governor decides how many are worth verifying. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/draft/lookup.h"
#include "engine/loop.h"

static const char *const names[] = {[DRAFT_AUTO] = "lookup", [DRAFT_LOOKUP] = "lookup", [DRAFT_MTP] = "mtp", [DRAFT_INT4] = "int4"};

const char *drafts_name(const struct engine *e) {
    return e->mtp && e->params.draft == DRAFT_AUTO ? "mtp and lookup" : e->int4 && !int4_ready(e->int4) ? NULL : names[e->params.draft];
}

/* How many drafted tokens after the known ones can be used. */
static int draft_room(const struct row *r) {
    const struct session *s = r->s;
    const struct config *c = &s->engine->weights.config;
    int most = s->request.max_tokens - s->answered - 1, context = s->engine->info.context - s->n, unread = r->room - 1;
    int turn = c->rope.kind == ROPE_LONG && !s->far ? (int)c->rope.original_max - s->n : most; /* past it all keys are recomputed */
    if (context < most) most = context;
    if (unread < most) most = unread;
    if (turn < most) most = turn;
    return most < DRAFT_MOST ? most : DRAFT_MOST;
}

/* Compares a pending draft with the tokens generated since, whether or not a batch verified it. */
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

/* A cancel must not wait for more drafting. */
static bool any_cancelled(const struct engine *e, const struct row *rows, int n) {
    bool any = atomic_load(&e->closing);
    for (int i = 0; i < n; i++) any |= atomic_load(rows[i].cancel) != 0;
    return any;
}

/* Samples a draft's token at position n with the random number that the model will use there, which maximizes acceptance. */
static int32_t draw_guess(struct session *s, float *logits, int32_t top, int n) {
    return top < 0 || sample_is_top(&s->request.sampling)
               ? top
               : sample_token(logits, s->engine->info.vocab, &s->request.sampling, s->tokens, n, (uint64_t)n, s->engine->scratch);
}

static int32_t pick_guess(void *ctx, int i, float *logits, int32_t top) {
    struct session *s = ctx;
    return s->tokens[s->n + i] = draw_guess(s, logits, top, s->n + i); /* appended to the known tokens for the repeat penalty of the next draft */
}

/* Drafts with INT4 experts: for all sessions together one token at a time, at most k[i]; fewer where a turn would end. */
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
        if (rc) break; /* the verifying batch hits the same error and reports it */
        for (int j = 0; j < m; j++) {
            struct session *s = rows[who[j]].s;
            const int32_t id = pick_guess(s, at, spans[j].logits, *spans[j].top);
            if (id < 0) continue;
            rows[who[j]].tokens[rows[who[j]].n + at] = id;
            made[who[j]]++;
            if (turn_is_stop(s, id)) k[who[j]] = made[who[j]];
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

/* A lookup match of CLEAR tokens beats MTP. A draft counts the MTP rows to catch up from FAR on. */
enum { BY_MODEL = GOVERNOR_LEVELS - 1, CLEAR = 3, FAR = 4 };

static int level_of(int matched) { return matched > 8 ? 4 : matched > 4 ? 3 : matched > 2 ? 2 : matched - (matched > 0); }

/* Asks the draft of row r, entry i, for at most `most` tokens; fills `in` and *k. Drafts without cost propose their tokens at once. */
static void ask(struct engine *e, struct row *r, int i, int most, struct governor_in *in, int *k) {
    struct session *s = r->s;
    int32_t *out = r->tokens + r->n;
    int matched = LOOKUP_MATCH;
    for (int g = 0; g < 2; g++) judge(e, s, &s->guess[g]);
    if (r->known > 1) most = 0; /* a lagging state catches up first */
    *k = most < 1                       ? 0
         : e->params.draft_own          ? e->params.draft_own(e->params.draft_ctx, s->tokens, s->n, most, out)
         : e->params.draft == DRAFT_MTP ? most
         : e->int4                      ? most * int4_ready(e->int4)
                                        : draft_lookup(s->tokens, s->n, most, out, &matched);
    in->level[i] = level_of(matched);
    in->dear[i] = e->int4 ? *k > 0 : e->mtp && most > 0 && (e->params.draft == DRAFT_MTP || matched < CLEAR);
    if (in->dear[i]) *k = most, in->level[i] = BY_MODEL;
    else keep(s, &s->guess[0], in->level[i], out, *k);
    in->most[i] = *k;
    in->behind[i] = e->mtp && in->dear[i] && s->mtp.waiting > FAR ? s->mtp.waiting - 1 : 0;
}

/* The MTP layer processes tokens that were generated without it. */
static void catch_up(struct engine *e, struct row *rows, int n, const struct governor_in *in, const int *k) {
    struct governor_step *t = &e->drafted;
    const double begin = clock_now();
    for (int i = 0; i < n; i++)
        if (in->behind[i] && k[i]) mtp_catch_up(e->mtp, &rows[i].s->mtp, rows[i].s->tokens), t->behind += in->behind[i];
    if (t->behind) t->row_s = clock_now() - begin;
}

/* Runs model-based drafts: k[i] tokens for row i if dear[i]. */
static void guess_dear(struct engine *e, struct row *rows, int n, const bool *dear, int *k) {
    const double begin = clock_now();
    bool any = false;
    for (int i = 0; i < n; i++) {
        struct session *s = rows[i].s;
        if (!dear[i] || !k[i]) continue;
        any = true;
        if (mem_grow(&s->tokens, &s->cap, (size_t)(s->n + k[i]), sizeof *s->tokens)) k[i] = 0; /* room for drafts after the known tokens */
    }
    if (!any) return;
    if (e->int4) guess_int4(e, rows, n, k);
    for (int i = 0; i < n; i++) {
        struct session *s = rows[i].s;
        int32_t *out = rows[i].tokens + rows[i].n;
        if (!dear[i] || !k[i]) continue;
        if (e->mtp) k[i] = mtp_guess(e->mtp, &s->mtp, s->tokens, s->n, k[i], out, pick_guess, s);
        keep(s, &s->guess[1], BY_MODEL, out, k[i]);
        e->drafted.dear += k[i];
    }
    e->drafted.guess_s = clock_now() - begin;
}

void drafts_add(struct engine *e, struct row *rows, int n) {
    const bool always = e->params.draft_own || (e->params.draft_len && e->params.draft != DRAFT_AUTO); /* the governor has no choice */
    struct governor_in in = {.way = (int)e->cut, .n = n};
    int k[ENGINE_BATCH], room = STEP_ROWS;
    for (int i = 0; i < n; i++) in.rows += rows[i].n;
    room -= in.rows;
    for (int i = 0; i < n; i++) {
        int most = draft_room(&rows[i]), share = always ? room / (n - i) : STEP_ROWS - in.rows;
        if (most > share) most = share;
        if (e->params.draft_len && most > e->params.draft_len) most = e->params.draft_len;
        ask(e, &rows[i], i, most, &in, &k[i]);
        room -= k[i];
    }
    if (!always) governor_choose(&e->governor, &in, k);
    catch_up(e, rows, n, &in, k);
    guess_dear(e, rows, n, in.dear, k);
    for (int i = 0; i < n; i++) rows[i].n += k[i];
}
