#include "engine/session/tpot.h"

#include <math.h>

#include "base/log.h"
#include "engine/session/engine_state.h"
#include "engine/session/policy_machine.h"

/* consecutive batches above the bound that are reported; the first ones may read weights from disk */
enum { REPORTED_MISSES = 8 };

bool tpot_admits(const struct engine *eng, const struct session *s) {
    /* an answer that has begun may not wait */
    if (!(eng->params.max_tpot_s > 0) || !s->request.max_tokens || s->n_answered) return true;
    struct policy_machine m = policy_machine_of(eng);
    struct policy_decode_in in = {.n_decoding = 1, .max_rows = ENGINE_MAX_BATCH, .keys = s->n_tokens};
    struct policy_decode_out out;
    for (const struct session *o = eng->sessions; o; o = o->next) {
        const int state = atomic_load(&o->state); /* a prompt that s passes was admitted */
        if ((state == SESSION_DECODE && o->n_unread < ENGINE_MAX_UNREAD) || state == SESSION_PREFILL)
            in.n_decoding++, in.keys += o->n_tokens;
    }
    if (in.n_decoding == 1) return true;
    in.keys /= in.n_decoding;
    in.context_tokens = in.keys + POLICY_EXPECTED_GROWTH;
    policy_decode_batch(&m, &in, &out);
    return out.tpot_s <= eng->params.max_tpot_s;
}

bool tpot_has_room(const struct engine *eng, double seconds) {
    return !(eng->params.max_tpot_s > 0) || eng->tpot.spare_s >= seconds;
}

void tpot_charge(struct engine *eng, double seconds) {
    eng->tpot.spare_s = fmin(eng->tpot.spare_s - seconds, eng->params.max_tpot_s + eng->tpot.unit_s);
}

static void report_miss(struct engine *eng, double seconds) {
    eng->tpot.has_warned = true;
    log_say(LOG_WARN,
            "a limit of %.4g ms per token cannot be met: with one session, a token takes %.3g ms (%.3g ms expected) by "
            "%s, the fastest choice; answers are "
            "generated one at a time (--max-tpot)",
            eng->params.max_tpot_s * 1e3, seconds * 1e3, eng->batch_expected_s * 1e3, exec_mode_name(eng->next_exec));
}

void tpot_batch_done(struct engine *eng, int n_decoding, int n_tokens, double seconds) {
    struct tpot *t = &eng->tpot;
    const double most = eng->params.max_tpot_s, allowed = most * n_tokens / n_decoding;
    if (!(most > 0)) return;
    tpot_charge(eng, seconds - allowed);
    if (n_decoding > 1) return;
    t->n_missed = seconds > allowed && eng->batch_expected_s > most ? t->n_missed + 1 : 0;
    if (t->n_missed >= REPORTED_MISSES && !t->has_warned) report_miss(eng, seconds / n_tokens);
}
