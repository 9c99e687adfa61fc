#include "engine/session/prefill_list.h"

#include "base/mem.h"

void prefill_list_push(struct session *s) {
    struct engine *eng = s->engine;
    s->prefill.below = eng->prefilling;
    s->prefill.driver = NULL;
    s->prefill.leader = s->prefill.joined = NULL;
    s->prefill.job.n_complete = 0;
    s->prefill.is_abandoned = s->prefill.is_paused = s->prefill.is_refused = false;
    eng->prefilling = s;
}

void prefill_list_remove(struct session *s) {
    struct session **at = &s->engine->prefilling;
    while (*at != s) at = &(*at)->prefill.below;
    *at = s->prefill.below;
    s->prefill.below = s->prefill.leader = s->prefill.joined = NULL;
    s->prefill.driver = NULL;
    s->prefill.is_abandoned = false;
    mem_free(s->prefill.tokens);
    s->prefill.tokens = NULL;
    s->prefill.tokens_cap = 0;
}

bool prefill_list_has(const struct session *s) {
    const struct session *o = s->engine->prefilling;
    while (o && o != s) o = o->prefill.below;
    return o;
}

bool prefill_list_streams(const struct engine *eng) {
    for (const struct session *s = eng->prefilling; s; s = s->prefill.below)
        if (s->prefill.driver && s->prefill.driver != &prefill_mode_cpu) return true;
    return false;
}

bool prefill_list_has_begun(const struct engine *eng) {
    for (const struct session *s = eng->prefilling; s; s = s->prefill.below)
        if (s->prefill.driver) return true;
    return false;
}

bool prefill_is_abandoned(const struct session *s) {
    for (; s; s = s->prefill.joined)
        if (!s->prefill.is_abandoned) return false;
    return true;
}
