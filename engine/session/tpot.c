#include "engine/session/tpot.h"

#include <math.h>

#include "base/log.h"
#include "engine/session/engine_state.h"
#include "engine/session/policy_machine.h"

enum { REPORTED_MISSES = 8 }; /* consecutive batches above the bound that are reported; the first ones may read weights from disk */

bool tpot_admits(const struct engine *e, const struct session *s) {
    if (!(e->params.max_tpot_s > 0) || !s->request.max_tokens || s->n_answered) return true; /* an answer that has begun may not wait */
    struct policy_machine m = policy_machine_of(e);
    struct policy_decode_in in = {.n_decoding = 1, .max_rows = ENGINE_MAX_BATCH, .keys = s->n_tokens};
    struct policy_decode_out out;
    for (const struct session *o = e->sessions; o; o = o->next)
        if (atomic_load(&o->state) == SESSION_DECODE && o->n_unread < ENGINE_MAX_UNREAD) in.n_decoding++, in.keys += o->n_tokens;
    if (in.n_decoding == 1) return true;
    in.keys /= in.n_decoding;
    in.context_tokens = in.keys + POLICY_EXPECTED_GROWTH;
    policy_decode_batch(&m, &in, &out);
    return out.tpot_s <= e->params.max_tpot_s;
}

bool tpot_has_room(const struct engine *e, double seconds) { return !(e->params.max_tpot_s > 0) || e->tpot.spare_s >= seconds; }

void tpot_charge(struct engine *e, double seconds) { e->tpot.spare_s = fmin(e->tpot.spare_s - seconds, e->params.max_tpot_s + e->tpot.unit_s); }

static void report_miss(struct engine *e, double seconds) {
    e->tpot.has_warned = true;
    log_say(LOG_WARN,
            "--max-tpot %.4g cannot be met: with one session, a token takes %.3g ms (%.3g ms expected) by %s, the fastest choice; answers are generated one "
            "at a time",
            e->params.max_tpot_s * 1e3, seconds * 1e3, e->batch_expected_s * 1e3, exec_mode_name(e->next_exec));
}

void tpot_batch_done(struct engine *e, int n_decoding, int n_tokens, double seconds) {
    struct tpot *t = &e->tpot;
    const double most = e->params.max_tpot_s, allowed = most * n_tokens / n_decoding;
    if (!(most > 0)) return;
    tpot_charge(e, seconds - allowed);
    if (n_decoding > 1) return;
    t->n_missed = seconds > allowed && e->batch_expected_s > most ? t->n_missed + 1 : 0;
    if (t->n_missed >= REPORTED_MISSES && !t->has_warned) report_miss(e, seconds / n_tokens);
}
