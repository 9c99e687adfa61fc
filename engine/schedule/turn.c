/* Continues and ends turns; engine thread. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/schedule/engine_thread.h"

void turn_end(struct session *s, enum done_reason reason, int rc, const struct error *why) {
    pthread_mutex_lock(&s->engine->lock);
    session_end_turn(s, rc == ERR_CANCELLED ? DONE_CANCELLED : reason, rc == ERR_CANCELLED ? 0 : rc, why);
    pthread_mutex_unlock(&s->engine->lock);
}

bool turn_is_stop_id(const struct session *s, int32_t id) {
    const struct engine_info *f = &s->engine->info;
    if (!(s->request.flags & REQ_IGNORE_EOS))
        for (int i = 0; i < f->n_eos; i++)
            if (f->eos[i] == id) return true;
    for (int i = 0; i < s->request.n_stop_ids; i++)
        if (s->stop_ids[i] == id) return true;
    return false;
}

bool turn_sample(struct session *s, float *logits, int32_t top, int32_t drafted) {
    struct engine *e = s->engine;
    bool full = s->n_tokens >= e->info.context;
    if (!s->request.max_tokens) {
        s->stats.ttft_s = clock_now() - s->submitted_at;
        turn_end(s, full ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
        return false;
    }
    int32_t id = top >= 0 && sample_is_argmax(&s->request.sampling)
                     ? top
                     : sample_token(logits, e->info.vocab, &s->request.sampling, s->tokens, s->n_tokens, (uint64_t)s->n_tokens, e->sample_scratch);
    if (!s->n_answered) {
        s->first_token_at = clock_now();
        s->stats.ttft_s = s->first_token_at - s->submitted_at;
    }
    if (turn_is_stop_id(s, id)) {
        turn_end(s, DONE_STOP, 0, NULL);
        return false;
    }
    if (mem_grow(&s->tokens, &s->tokens_cap, (size_t)s->n_tokens + 1, sizeof *s->tokens)) {
        struct error err = {0};
        turn_end(s, DONE_STOP, error_set(&err, ERR_MEMORY, "no memory for %d tokens", s->n_tokens + 1), &err);
        return false;
    }
    pthread_mutex_lock(&e->lock);
    s->tokens[s->n_tokens++] = id;
    s->n_answered++;
    session_emit_token(s, id);
    bool continues = false;
    session_set_hold(s, HOLD_NONE);
    if (s->n_answered >= s->request.max_tokens) session_end_turn(s, s->n_tokens >= e->info.context ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
    else if (config_long_rope(&e->weights.config, s->n_tokens) != s->is_long_rope) {
        s->n_kv = 0; /* the RoPE factors change: all keys are invalid */
        session_set_state(s, SESSION_QUEUED);
    } else if (atomic_load(&s->state) == SESSION_PREFILL) session_set_state(s, SESSION_DECODE);
    else if ((continues = id == drafted)) session_set_hold(s, HOLD_CLAIMED);
    pthread_mutex_unlock(&e->lock);
    return continues;
}
