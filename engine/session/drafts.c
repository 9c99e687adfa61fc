/* Drafted tokens for the rows of a decode batch: drafts propose tokens, the governor decides how many are worth
 * verifying. */
#include <string.h>

#include "base/clock.h"
#include "engine/draft/lookup.h"
#include "engine/sampling/sample.h"
#include "engine/session/batch_entry.h"
#include "engine/session/drafts.h"
#include "engine/session/engine_state.h"
#include "engine/session/session_turn.h"

const char *drafts_name(const struct engine *eng) {
    const enum draft_kind kind = eng->params.draft;
    if (eng->mtp && kind == DRAFT_AUTO) return "mtp and lookup";
    if (kind == DRAFT_NONE || (eng->int4 && !int4_ready(eng->int4))) return NULL;
    return draft_kind_name(kind == DRAFT_AUTO ? DRAFT_LOOKUP : kind);
}

/* How many drafted tokens after the known ones can be used. */
static int max_drafted(const struct batch_entry *r) {
    const struct session *s = r->s;
    const struct config *c = &s->engine->weights.config;
    int most = s->request.max_tokens - s->n_answered - 1, context = s->engine->info.context - s->n_tokens,
        unread = r->event_room - 1;
    int rope_room =
        /* past original_max all keys are recomputed */
        c->rope.kind == ROPE_LONG && !s->is_long_rope ? (int)c->rope.original_max - s->n_tokens : most;
    if (context < most) most = context;
    if (unread < most) most = unread;
    if (rope_room < most) most = rope_room;
    return most < DRAFT_MAX ? most : DRAFT_MAX;
}

/* Compares a pending draft with the tokens generated since, whether or not a batch verified it. */
static void judge_draft(struct engine *eng, const struct session *s, struct draft_tokens *draft) {
    for (; draft->n_checked < draft->n && draft->first_pos + draft->n_checked < s->n_tokens; draft->n_checked++) {
        bool right = s->tokens[draft->first_pos + draft->n_checked] == draft->token[draft->n_checked];
        governor_judge(&eng->governor, draft->confidence, draft->n_checked, right);
        if (!right) draft->n = 0;
    }
    if (draft->n_checked >= draft->n) draft->n = 0;
}
static void save_draft(const struct session *s, struct draft_tokens *draft, int confidence, const int32_t *tokens,
                       int n) {
    if (draft->n || !n) return;
    *draft = (struct draft_tokens){.first_pos = s->n_tokens, .n = n, .confidence = confidence};
    memcpy(draft->token, tokens, (size_t)n * sizeof *tokens);
}

/* Drafting polls this, so that a cancel takes effect before the draft is complete. */
static bool any_cancelled(const struct engine *eng, const struct batch_entry *rows, int n) {
    bool any = atomic_load(&eng->closing);
    for (int i = 0; i < n; i++) any |= atomic_load(rows[i].cancel) != 0;
    return any;
}

/* Samples a draft's token at position n with the random number that the model will use there, which maximizes
 * acceptance. */
static int32_t sample_draft(struct session *s, float *logits, int32_t top, int n) {
    return top < 0 || sample_is_argmax(&s->request.sampling)
               ? top
               : sample_token(logits, s->engine->info.vocab, &s->request.sampling, s->tokens, n, (uint64_t)n,
                              s->engine->sample_scratch);
}

static int32_t pick_draft(void *ctx, int i, float *logits, int32_t top) {
    struct session *s = ctx;
    return s->tokens[s->n_tokens + i] =
               /* appended to the known tokens for the repeat penalty of the next draft */
           sample_draft(s, logits, top, s->n_tokens + i);
}

/* Drafts with INT4 experts: for all sessions together one token at a time, at most k[i]; fewer where a turn would
 * end. */
static void draft_int4(struct engine *eng, struct batch_entry *rows, int n, int *k) {
    struct decode_draft draft = {
        .experts = int4_experts(eng->int4), .expert_bytes = int4_expert_bytes(eng->int4), .lookahead = &eng->lookahead};
    int made[ENGINE_MAX_BATCH] = {0}, entry_of[ENGINE_MAX_BATCH];
    const uint64_t before = atomic_load(&eng->machine.bytes_read);
    const double begin = clock_now();
    lookahead_clear(&eng->lookahead);
    for (int i = 0; i < n; i++)
        if (k[i]) kv_state_try(&rows[i].s->kv, rows[i].s->n_tokens - 1);
    for (int at = 0, n_spans;; at++) {
        struct decode_span spans[ENGINE_MAX_BATCH];
        struct error e = {0};
        draft.first_token = eng->lookahead.n;
        n_spans = 0;
        for (int i = 0; i < n; i++) {
            struct session *s = rows[i].s;
            if (k[i] <= at || made[i] < at) continue;
            lookahead_add_token(&eng->lookahead, at);
            const int pos = s->n_tokens - 1 + at;
            spans[n_spans] = (struct decode_span){.kv = &s->kv,
                                                  .tokens = &s->tokens[pos],
                                                  .pos = pos,
                                                  .n = 1,
                                                  .n_before = config_lookback_at(&eng->weights.config, pos),
                                                  .turn_shift = s->turn_shift};
            entry_of[n_spans++] = i;
        }
        if (!n_spans || any_cancelled(eng, rows, n)) break;
        decode_set_draft(eng->machine.decode, &draft);
        const int rc =
            decode_run(eng->machine.decode, eng->next_exec, spans, n_spans, n == 1 ? rows->cancel : &eng->closing, &e);
        decode_set_draft(eng->machine.decode, NULL);
        if (rc) break; /* the verifying batch hits the same error and reports it */
        for (int j = 0; j < n_spans; j++) {
            struct session *s = rows[entry_of[j]].s;
            const int32_t id = pick_draft(s, at, spans[j].logits, *spans[j].top);
            if (id < 0) continue;
            batch_tokens(&rows[entry_of[j]])[rows[entry_of[j]].n + at] = id;
            made[entry_of[j]]++;
            if (session_turn_is_stop_id(s, id)) k[entry_of[j]] = made[entry_of[j]];
        }
        int longest = 0;
        for (int i = 0; i < n; i++) longest = k[i] > longest ? k[i] : longest;
        /* nothing in the first third of the draft, likely experts until its last token, then all */
        const enum decode_prefetch_phase phase = at + 1 >= longest        ? PREFETCH_ALL
                                                 : 3 * (at + 1) > longest ? PREFETCH_LIKELY
                                                                          : PREFETCH_NONE;
        if (decode_prefetch(eng->machine.decode, &eng->lookahead, phase,
                            (longest - at - 1) * (clock_now() - begin) / (at + 1)))
            break;
    }
    for (int i = 0; i < n; i++) kv_state_undo(&rows[i].s->kv, rows[i].s->n_tokens - 1);
    const uint64_t bytes = atomic_load(&eng->machine.bytes_read) - before;
    for (int i = 0; i < n; i++) k[i] = made[i], rows[i].s->stats.bytes_read += bytes / (uint64_t)n;
}

struct draft_rows {
    const struct engine *e;
    const struct batch_entry *rows;
    int n;
};
static bool should_stop(void *ctx) {
    const struct draft_rows *d = ctx;
    return any_cancelled(d->e, d->rows, d->n);
}

/* Drafts with another model, for all sessions together. */
static void draft_model(struct engine *eng, struct batch_entry *rows, int n, int *k) {
    struct draft_model_row r[ENGINE_MAX_BATCH];
    int m = 0, entry_of[ENGINE_MAX_BATCH];
    for (int i = 0; i < n; i++) {
        struct session *s = rows[i].s;
        if (!k[i]) continue;
        entry_of[m] = i;
        r[m++] = (struct draft_model_row){.chat = &s->draft_chat,
                                          .tokens = s->tokens,
                                          .n = s->n_tokens,
                                          .most = k[i],
                                          .sampling = s->request.sampling,
                                          .out = batch_tokens(&rows[i]) + rows[i].n};
    }
    eng->draft_model.run(eng->draft_model.ctx, r, m, should_stop, &(struct draft_rows){eng, rows, n});
    for (int j = 0; j < m; j++) {
        int made = 0; /* the draft model's vocabulary may be padded further */
        while (made < r[j].made && r[j].out[made] < eng->info.vocab) made++;
        k[entry_of[j]] = made;
    }
}

/* Auto drafts by lookup instead of MTP if at least LONG_MATCH tokens match. More than NEAR_ROWS waiting MTP rows are
 * processed before drafting, as time that the governor plans for. */
enum { MODEL_CONFIDENCE = GOVERNOR_LEVELS - 1, LONG_MATCH = 3, NEAR_ROWS = 4 };

/* Confidence level of a lookup for the governor: 0 to 4, below MODEL_CONFIDENCE. */
static int lookup_confidence(int matched) {
    if (matched > 8) return 4;
    if (matched > 4) return 3;
    return matched > 2 ? 2 : matched - (matched > 0);
}

/* Returns how many tokens, at most `most`, the engine's source of drafts can draft. A custom source and the lookup
 * write the tokens to out; the lookup sets *matched. */
static int count_draft(struct engine *eng, struct session *s, int most, int32_t *out, int *matched) {
    if (most < 1) return 0;
    if (s->n_images) { /* a prediction layer and another model lack the images' rows */
        if (eng->int4) return most * int4_ready(eng->int4);
        if (eng->params.draft != DRAFT_AUTO && eng->params.draft != DRAFT_LOOKUP) return 0;
        const int found = lookup_draft(s->tokens, s->n_tokens, most, out, matched);
        int n = 0;
        while (n < found && out[n] >= 0) n++; /* an answer has no images */
        return n;
    }
    if (eng->params.custom_draft)
        return eng->params.custom_draft(eng->params.custom_draft_ctx, s->tokens, s->n_tokens, most, out);
    if (eng->params.draft == DRAFT_MTP) return most;
    if (eng->int4) return most * int4_ready(eng->int4);
    if (eng->draft_model.ctx)
        return most * eng->draft_model.ready(eng->draft_model.ctx, &s->draft_chat, s->tokens, s->n_tokens, most);
    return lookup_draft(s->tokens, s->n_tokens, most, out, matched);
}

/* Sets *k to the tokens, at most `most`, that entry i of the batch can draft, and fills row i of `in`. Drafts without
 * cost write the tokens at once; those of models follow in run_model_drafts(). */
static void propose_draft(struct engine *eng, struct batch_entry *r, int i, int most, struct governor_in *in, int *k) {
    struct session *s = r->s;
    int32_t *out = batch_tokens(r) + r->n;
    int matched = LOOKUP_MATCH;
    for (int g = 0; g < 2; g++) judge_draft(eng, s, &s->drafts[g]);
    if (r->n_known > 1) most = 0; /* no draft while the KV cache lacks more than one known token */
    const struct token_filter *filter = s->request.filter;
    if (filter && most > 0 && (*k = filter->forced(filter->ctx, most, out)) > 0) { /* no other draft is as likely */
        in->confidence[i] = MODEL_CONFIDENCE - 1;
        in->is_model_draft[i] = false;
        save_draft(s, &s->drafts[0], in->confidence[i], out, *k);
        in->max_drafted[i] = *k;
        in->catch_up_rows[i] = 0;
        return;
    }
    *k = count_draft(eng, s, most, out, &matched);
    in->confidence[i] = lookup_confidence(matched);
    in->is_model_draft[i] =
        eng->int4 || (eng->draft_model.ctx && !s->n_images)
            ? *k > 0
            : eng->mtp && !s->n_images && most > 0 && (eng->params.draft == DRAFT_MTP || matched < LONG_MATCH);
    if (in->is_model_draft[i]) *k = most, in->confidence[i] = MODEL_CONFIDENCE;
    else save_draft(s, &s->drafts[0], in->confidence[i], out, *k);
    in->max_drafted[i] = *k;
    in->catch_up_rows[i] = eng->mtp && in->is_model_draft[i] && s->mtp.n_waiting > NEAR_ROWS ? s->mtp.n_waiting - 1 : 0;
}

/* The MTP layer processes tokens that were generated without it. */
static void catch_up_mtp(struct engine *eng, struct batch_entry *rows, int n, const struct governor_in *in,
                         const int *k) {
    struct governor_sample *t = &eng->next_sample;
    const double begin = clock_now();
    for (int i = 0; i < n; i++)
        if (in->catch_up_rows[i] && k[i])
            mtp_catch_up(eng->mtp, &rows[i].s->mtp, rows[i].s->tokens), t->n_caught_up += in->catch_up_rows[i];
    if (t->n_caught_up) t->catch_up_s = clock_now() - begin;
}

/* Runs drafts of models: k[i] tokens for row i if is_model_draft[i]. */
static void run_model_drafts(struct engine *eng, struct batch_entry *rows, int n, const bool *is_model_draft, int *k) {
    const double begin = clock_now();
    bool any = false;
    for (int i = 0; i < n; i++) {
        struct session *s = rows[i].s;
        if (!is_model_draft[i] || !k[i]) continue;
        any = true;
        /* room for drafts after the known tokens */
        if (mem_grow(&s->tokens, &s->tokens_cap, (size_t)(s->n_tokens + k[i]), sizeof *s->tokens)) k[i] = 0;
    }
    if (!any) return;
    if (eng->int4) draft_int4(eng, rows, n, k);
    if (eng->draft_model.ctx) draft_model(eng, rows, n, k);
    for (int i = 0; i < n; i++) {
        struct session *s = rows[i].s;
        int32_t *out = batch_tokens(&rows[i]) + rows[i].n;
        if (!is_model_draft[i] || !k[i]) continue;
        if (eng->mtp) k[i] = mtp_draft(eng->mtp, &s->mtp, s->tokens, s->n_tokens, k[i], out, pick_draft, s);
        save_draft(s, &s->drafts[1], MODEL_CONFIDENCE, out, k[i]);
        eng->next_sample.n_model_drafted += k[i];
    }
    eng->next_sample.draft_s = clock_now() - begin;
}

void drafts_add(struct engine *eng, struct batch_entry *rows, int n) {
    /* the governor has no choice */
    const bool is_fixed = eng->params.custom_draft || (eng->params.max_drafted && eng->params.draft != DRAFT_AUTO);
    struct governor_in in = {.mode = eng->next_exec - DECODE_CPU, .n = n, .max_batch_s = eng->tpot.max_batch_s};
    int k[ENGINE_MAX_BATCH], room = DECODE_MAX_ROWS;
    for (int i = 0; i < n; i++) in.rows += rows[i].n;
    room -= in.rows;
    for (int i = 0; i < n; i++) {
        int most = max_drafted(&rows[i]), share = is_fixed ? room / (n - i) : DECODE_MAX_ROWS - in.rows;
        if (most > share) most = share;
        if (eng->params.max_drafted && most > eng->params.max_drafted) most = eng->params.max_drafted;
        propose_draft(eng, &rows[i], i, most, &in, &k[i]);
        room -= k[i];
    }
    if (!is_fixed) governor_choose(&eng->governor, &in, k);
    catch_up_mtp(eng, rows, n, &in, k);
    run_model_drafts(eng, rows, n, in.is_model_draft, k);
    for (int i = 0; i < n; i++) rows[i].n += k[i];
}
