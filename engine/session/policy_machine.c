#include "engine/session/policy_machine.h"

#include "engine/exec/stream/slp.h"

/* The share of the chosen experts that devices with pools have computed so far; 0: there are no such pools, or too few
 * choices. */
static double moving_share(const struct engine *eng) {
    enum { ENOUGH = 1000 };
    const struct expert_cache *x = &eng->machine.expert_cache;
    if (!eng->machine.gpus || x->is_pinned || x->is_sent || eng->cost.is_deterministic) return 0;
    const struct decode_counts n = decode_counts(eng->machine.decode);
    return n.selected < ENOUGH ? 0 : (double)n.hits / (double)n.selected;
}

struct policy_machine policy_machine_of(const struct engine *eng) {
    const double moving = moving_share(eng);
    const struct gpu_set *g = eng->machine.gpus;
    const struct decode *s = eng->machine.decode;
    struct policy_machine m = {
        .cost = &eng->cost,
        .model = &eng->cost_model,
        .n_devices = g ? g->n : 0,
        .is_lost = g && g->is_lost,
        .n_device_layers = decode_resident_layers(s),
        .n_expert_layers = decode_expert_layers(s),
        .resident_share = decode_sends_experts(s) ? decode_sent_share(s)
                          : moving > 0            ? moving
                                                  : decode_pinned_share(s),
        .moves_experts = moving > 0,
        .ranks = decode_tp_ranks(s),
        .is_yielded = decode_is_yielded(s),
        .why_unsplittable = slp_why_unsplittable(&eng->weights.config),
        .prefill_mask = 1u << PREFILL_SLP | 1u << PREFILL_DSLP | (decode_can_blend(s) ? 1u << PREFILL_BLEND : 0),
        .decode_mask = decode_uses_devices(s) ? 1u << DECODE_HYBRID | 1u << DECODE_DUAL : 0,
        .sends_experts = decode_sends_experts(s),
        .forced_decode = decode_sends_experts(s) && eng->params.decode == MODE_AUTO ? DECODE_HYBRID /* as --expert-cache
                                                                                                       asks */
                                                                                    : eng->params.decode,
        .max_tpot_s = eng->params.max_tpot_s};
    for (int i = 0; i < m.n_devices; i++) {
        m.decode_uses[i] = decode_holds_layers(s, i);
        m.dense_layers[i] = decode_device_layers(s, i, false), m.expert_layers[i] = decode_device_layers(s, i, true);
    }
    return m;
}
