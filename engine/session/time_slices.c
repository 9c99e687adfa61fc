#include "engine/session/time_slices.h"

#include "base/test_limits.h"
#include "engine/session/engine_state.h"
#include "engine/session/policy_machine.h"

enum { SLICES_UNTIL_TRY = 32 }; /* slices before all sessions decode together again, in case their caches fit now */

/* Puts the sessions of the last batch first. */
static void keep_sessions(const struct engine *eng, struct session **batch, int n) {
    for (int i = 0, first = 0; i < n; i++) {
        struct session *s = batch[i];
        if (s->last_batch != eng->n_batches) continue;
        for (int k = i; k > first; k--) batch[k] = batch[k - 1];
        batch[first++] = s;
    }
}

static int slice_batches(const struct engine *eng, struct session *const *batch, int n) {
    const struct policy_machine m = policy_machine_of(eng);
    struct policy_decode_in in = {.n_decoding = n, .max_rows = n};
    for (int i = 0; i < n; i++) in.keys += batch[i]->n_tokens / (double)n;
    return (int)test_limits_get(TEST_LIMIT_SLICE_BATCHES, (size_t)policy_time_slice(&m, &in, eng->slices.n_fit));
}

static void set_length(struct engine *eng, int n_batches) {
    if (n_batches != eng->slices.n_batches) eng->explained_decision.batch = 0; /* explained anew with the next batch */
    eng->slices.n_batches = n_batches;
}

int time_slices_pick(struct engine *eng, struct session **batch, int n) {
    struct time_slices *t = &eng->slices;
    if (n != t->n_sessions || (!t->n_left && t->n_slices >= SLICES_UNTIL_TRY)) {
        set_length(eng, 0);
        *t = (struct time_slices){.n_sessions = n};
    }
    if (!t->n_fit) return n;
    if (t->n_left > 0) {
        t->n_left--;
        keep_sessions(eng, batch, n);
        return t->n_fit;
    }
    const int length = slice_batches(eng, batch, n);
    set_length(eng, length);
    if (!length) return n;
    t->n_left = length - 1;
    t->n_slices++;
    return t->n_fit; /* those that waited longest come first */
}

void time_slices_record(struct engine *eng, int n) {
    struct time_slices *t = &eng->slices;
    const int without_room = decode_n_without_room(eng->machine.decode), n_fit = n - without_room;
    if (n == t->n_sessions || (n == t->n_fit && without_room && n_fit)) t->n_fit = without_room ? n_fit : 0;
}
