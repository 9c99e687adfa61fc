/* Continues and ends turns; engine thread. */
#include <limits.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "engine/sampling/logprobs.h"
#include "engine/sampling/sample.h"
#include "engine/session/engine_state.h"
#include "engine/session/session.h"
#include "engine/session/session_turn.h"

void session_turn_end(struct session *s, enum done_reason reason, int rc, const struct error *why) {
    pthread_mutex_lock(&s->engine->lock);
    session_end_turn(s, rc == ERR_CANCELLED ? DONE_CANCELLED : reason, rc == ERR_CANCELLED ? 0 : rc, why);
    pthread_mutex_unlock(&s->engine->lock);
}

bool session_turn_is_stop_id(const struct session *s, int32_t id) {
    const struct engine_info *f = &s->engine->info;
    if (!(s->request.flags & REQ_IGNORE_EOS))
        for (int i = 0; i < f->n_eos; i++)
            if (f->eos[i] == id) return true;
    for (int i = 0; i < s->request.n_stop_ids; i++)
        if (s->stop_ids[i] == id) return true;
    return false;
}

/* Removes the tokens that the filter does not allow from logits, and the stop ids unless the answer may end. */
static void mask_logits(const struct session *s, float *logits, const uint64_t *allowed, int n_ids, bool may_end) {
    const struct engine_info *f = &s->engine->info;
    struct sample_item *stops = s->engine->sample_scratch; /* stop ids, with the logits that they get after masking */
    int n = 0;
    for (int i = 0; i < f->n_eos + s->request.n_stop_ids && n < f->vocab; i++) {
        const int32_t id = i < f->n_eos ? f->eos[i] : s->stop_ids[i - f->n_eos];
        if (id >= 0 && id < f->vocab && session_turn_is_stop_id(s, id))
            stops[n++] = (struct sample_item){may_end ? logits[id] : -INFINITY, id};
    }
    for (int i = 0; i < f->vocab; i++)
        if (i >= n_ids || !(allowed[i >> 6] >> (i & 63) & 1)) logits[i] = -INFINITY;
    while (n-- > 0) logits[stops[n].id] = stops[n].logit;
}

/* Samples a token that the filter allows. A token after which the answer cannot be completed within the turn's limit is
 * replaced by one that leaves room. Without such a token the turn fails, or with REQ_MAY_BE_INCOMPLETE keeps the first
 * one. */
static int sample_filtered(struct session *s, float *logits, int32_t *id, struct error *why) {
    struct engine *eng = s->engine;
    const struct token_filter *f = s->request.filter;
    const int room = eng->info.context - s->n_tokens, limit = s->request.max_tokens - s->n_answered,
              left = limit < room ? limit : room;
    struct sampling sampling = s->request.sampling;
    int32_t first = -1;
    for (int strict = 0; strict < 2; strict++) { /* strict: only among tokens that leave room */
        const uint64_t *allowed;
        int n_ids = 0;
        const bool may_end = f->state(f->ctx) != FILTER_OPEN;
        TRY(f->allowed(f->ctx, strict ? left : 0, &allowed, &n_ids, why));
        if (allowed) mask_logits(s, logits, allowed, n_ids, may_end);
        *id = sample_token(logits, eng->info.vocab, &sampling, s->tokens, s->n_tokens, (uint64_t)s->n_tokens,
                           eng->sample_scratch);
        if (!allowed) return 0;
        if (logits[*id] == -INFINITY || isnan(logits[*id])) {
            const int needed = strict ? f->least(f->ctx) : 0;
            if (needed <= left || needed == INT_MAX)
                return error_set(why, ERR_RUNTIME,
                                 "no token of the vocabulary can continue the answer as the grammar requires");
            if (s->request.flags & REQ_MAY_BE_INCOMPLETE) {
                *id = first;
                return 0;
            }
            return error_set(why, ERR_RUNTIME,
                             "the answer needs %d more tokens to match its grammar, and its limit leaves %d; a larger "
                             "limit or context gives more (--max-tokens, --context)",
                             needed, left);
        }
        if (session_turn_is_stop_id(s, *id) || f->fits(f->ctx, *id, left - 1)) return 0;
        first = *id;
        sampling = sample_unmodified(&sampling); /* bias and penalties were applied to logits already */
    }
    return 0;
}

/* Sets the error of an answer that ended before its filter accepted it. */
static int error_incomplete(const struct session *s, struct error *why) {
    if (s->n_tokens >= s->engine->info.context)
        return error_set(why, ERR_CONTEXT,
                         "the context of %d tokens is full before the answer matches its grammar; a larger context may "
                         "hold it (--context)",
                         s->engine->info.context);
    return error_set(why, ERR_RUNTIME,
                     "the answer reached its limit of %d token%s before it matched its grammar; a larger limit gives "
                     "more (--max-tokens)",
                     s->n_answered, s->n_answered == 1 ? "" : "s");
}

bool session_turn_sample(struct session *s, float *logits, int32_t top, int32_t drafted) {
    struct engine *eng = s->engine;
    bool full = s->n_tokens >= eng->info.context;
    if (!s->request.max_tokens) {
        s->stats.ttft_s = clock_now() - s->submitted_at;
        session_turn_end(s, full ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
        return false;
    }
    const struct token_filter *filter = s->request.filter;
    struct error why = {0};
    struct token_logprobs probs;
    const bool wants_logprobs = s->request.wants_logprobs;
    int32_t id = top;
    int rc = 0;
    if (wants_logprobs) memcpy(s->raw_logits, logits, (size_t)eng->info.vocab * sizeof *logits);
    if (filter) rc = sample_filtered(s, logits, &id, &why);
    else if (top < 0 || !sample_is_argmax(&s->request.sampling))
        id = sample_token(logits, eng->info.vocab, &s->request.sampling, s->tokens, s->n_tokens, (uint64_t)s->n_tokens,
                          eng->sample_scratch);
    if (!s->n_answered) {
        s->first_token_at = clock_now();
        s->stats.ttft_s = s->first_token_at - s->submitted_at;
    }
    if (rc || session_turn_is_stop_id(s, id)) {
        if (!rc && filter && filter->state(filter->ctx) == FILTER_OPEN)
            rc = error_set(&why, ERR_RUNTIME, "the model ended its answer before the answer proper");
        session_turn_end(s, DONE_STOP, rc, &why);
        return false;
    }
    if (filter) rc = filter->accept(filter->ctx, id, &why);
    if (!rc && mem_grow(&s->tokens, &s->tokens_cap, (size_t)s->n_tokens + 1, sizeof *s->tokens))
        rc = error_set(&why, ERR_MEMORY, "no memory for %d tokens", s->n_tokens + 1);
    if (rc) {
        session_turn_end(s, DONE_STOP, rc, &why);
        return false;
    }
    if (wants_logprobs) logprobs_compute(s->raw_logits, eng->info.vocab, id, s->request.n_top_logprobs, &probs);
    const enum filter_state answer_state = filter ? filter->state(filter->ctx) : FILTER_COMPLETE;
    pthread_mutex_lock(&eng->lock);
    s->tokens[s->n_tokens++] = id;
    s->n_answered++;
    session_emit_token(s, id, wants_logprobs ? &probs : NULL);
    bool continues = false;
    session_set_hold(s, HOLD_NONE);
    if (answer_state == FILTER_FINAL) session_end_turn(s, DONE_STOP, 0, NULL);
    else if (s->n_answered >= s->request.max_tokens && answer_state == FILTER_OPEN &&
             !(s->request.flags & REQ_MAY_BE_INCOMPLETE))
        session_end_turn(s, DONE_STOP, error_incomplete(s, &why), &why);
    else if (s->n_answered >= s->request.max_tokens && filter && filter->is_whole && answer_state != FILTER_OPEN)
        session_end_turn(s, DONE_STOP, 0, NULL);
    else if (s->n_answered >= s->request.max_tokens)
        session_end_turn(s, s->n_tokens >= eng->info.context ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
    else if (config_long_rope(&eng->weights.config, s->n_tokens) != s->is_long_rope) {
        s->n_kv = 0; /* the RoPE factors change: all keys are invalid */
        session_set_state(s, SESSION_QUEUED);
    } else if (atomic_load(&s->state) == SESSION_PREFILL) session_set_state(s, SESSION_DECODE);
    else if ((continues = id == drafted)) session_set_hold(s, HOLD_CLAIMED);
    pthread_mutex_unlock(&eng->lock);
    return continues;
}
