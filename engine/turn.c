/* Continues and ends turns; engine thread. */
#include <string.h>

#include "engine/base/clock.h"
#include "engine/loop.h"

void turn_end(struct session *s, enum done_reason reason, int rc, const struct error *why) {
    pthread_mutex_lock(&s->engine->lock);
    session_end(s, rc == ERR_CANCELLED ? DONE_CANCELLED : reason, rc == ERR_CANCELLED ? 0 : rc, why);
    pthread_mutex_unlock(&s->engine->lock);
}

bool turn_is_stop(const struct session *s, int32_t id) {
    const struct engine_info *f = &s->engine->info;
    if (!(s->request.flags & REQUEST_NO_EOS))
        for (int i = 0; i < f->n_eos; i++)
            if (f->eos[i] == id) return true;
    for (int i = 0; i < s->request.n_stop_ids; i++)
        if (s->stop_ids[i] == id) return true;
    return false;
}

bool turn_draw(struct session *s, float *logits, int32_t top, int32_t guess) {
    struct engine *e = s->engine;
    bool full = s->n >= e->info.context;
    if (!s->request.max_tokens) {
        s->stats.ttft_s = clock_now() - s->submitted;
        turn_end(s, full ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
        return false;
    }
    int32_t id = top >= 0 && sample_is_top(&s->request.sampling)
                     ? top
                     : sample_token(logits, e->info.vocab, &s->request.sampling, s->tokens, s->n, (uint64_t)s->n, e->scratch);
    if (!s->answered) {
        s->first = clock_now();
        s->stats.ttft_s = s->first - s->submitted;
    }
    if (turn_is_stop(s, id)) {
        turn_end(s, DONE_STOP, 0, NULL);
        return false;
    }
    if (mem_grow(&s->tokens, &s->cap, (size_t)s->n + 1, sizeof *s->tokens)) {
        struct error err = {0};
        turn_end(s, DONE_STOP, error_set(&err, ERR_MEMORY, "no memory for %d tokens", s->n + 1), &err);
        return false;
    }
    pthread_mutex_lock(&e->lock);
    s->tokens[s->n++] = id;
    s->answered++;
    session_tell_token(s, id);
    bool goes_on = false;
    s->held = false;
    if (s->answered >= s->request.max_tokens) session_end(s, s->n >= e->info.context ? DONE_CONTEXT : DONE_LENGTH, 0, NULL);
    else if (config_far(&e->weights.config, s->n) != s->far) {
        s->n_kv = 0; /* the RoPE factors change: all keys are invalid */
        session_move(s, SESSION_QUEUED);
    } else if (atomic_load(&s->state) == SESSION_PREFILL) session_move(s, SESSION_DECODE);
    else s->held = goes_on = id == guess;
    pthread_mutex_unlock(&e->lock);
    return goes_on;
}
