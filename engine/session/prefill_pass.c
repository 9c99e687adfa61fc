#include "engine/session/prefill_pass.h"

#include "base/clock.h"
#include "engine/session/image_queue.h"
#include "engine/session/prefill_list.h"

double prefill_done_share(const struct prefill_run *run) {
    const double total = run->driver ? atomic_load(&run->job.total) : 0;
    return total > 0 ? atomic_load(&run->job.done) / total : 0;
}

double prefill_own_seconds(const struct prefill_run *run) {
    return run->driver == &prefill_mode_cpu ? run->thread_s : clock_now() - run->began - run->lost_s;
}

bool prefill_may_pass(const struct session *s, const struct session *others, double before_s) {
    const struct engine *eng = s->engine;
    struct policy_pass_in in = {.n = s->n_tokens - s->n_kv, .expected_s = -1};
    if (s->hold != HOLD_NONE) return false;               /* its last prefill has not stopped */
    if (s->n_images && !eng->is_calibrated) return false; /* nobody knows how long the tower takes */
    if (eng->is_calibrated)
        in.expected_s =
            before_s + image_queue_expected(s) +
            cost_prefill(&eng->cost, &eng->cost_model,
                         &(struct cost_prefill){.mode = PREFILL_CPU, .n = in.n, .pos = s->n_kv, .ranks = 1});
    for (const struct session *o = others; o; o = o->prefill.below) {
        const struct prefill_run *run = &o->prefill;
        if (run->leader) continue; /* judged with it */
        if (run->is_refused || !run->driver || prefill_is_abandoned(o)) return false;
        struct policy_passed p = {.share = prefill_done_share(run),
                                  .expected_s = run->expected_s,
                                  .lost_s = run->lost_s,
                                  .is_on_cpu = run->driver == &prefill_mode_cpu};
        for (const struct session *k = o; k; k = k->prefill.joined)
            p.own_s += prefill_own_seconds(&k->prefill), p.n += k->prefill.job.n;
        if (!policy_may_pass(&in, &p)) return false;
    }
    return true;
}
