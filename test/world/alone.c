#include <string.h>

#include "base/hash.h"
#include "cpu/cpu.h"
#include "test/world/fibers.h"
#include "test/world/world.h"

static struct engine *engine;

/* A level at which emulated devices have the CPU's bits. */
int alone_level(void) { return cpu_level_best() < CPU_AVX2 ? CPU_SCALAR : CPU_AVX2; }

void alone_open(void) {
    struct error e = {0};
    fibers_set_group(1);
    fibers_only(1);
    if (engine_open(
            &engine,
            &(struct engine_params){
                .dir = world_model, .threads = 1, .cpu_level = alone_level() + 1, .kv = DT_F32, .context = CONTEXT},
            &e))
        world_fail("the engine of answers alone: %s", e.text);
    fibers_only(-1);
    fibers_set_group(0);
}

/* One answer in FRESH is computed from nothing. The others continue a session that only ever answered this user, which
 * is what the user's session would be without company, faults and deaths. */
static void answer(int user, const struct request *r, struct alone *out) {
    enum { FRESH = 4 };
    static struct session *session[USERS];
    struct session **s = &session[user];
    struct request own = *r;
    struct error e = {0};
    struct event ev;
    own.flags = (r->flags & ~REQ_EXACT_PREFIX_ONLY) | REQ_NO_PREFIX_REUSE;
    fibers_only(1);
    if (world->n_alone++ % FRESH == 0) session_close(s);
    if ((!*s && session_open(engine, s, &e)) || session_submit(*s, &own, &e)) world_fail("alone: %s", e.text);
    do {
        if (!engine_poll(engine, &ev, -1) || ev.kind == EVENT_ERROR) world_fail("alone: %s", ev.error.text);
        if (ev.kind == EVENT_TOKEN) out->token[out->n++] = (uint8_t)ev.token;
    } while (ev.kind != EVENT_DONE);
    out->reason = (int8_t)ev.reason;
    fibers_only(-1);
}

const struct alone *alone_answer(int user, const struct request *r) {
    const uint64_t how[] = {r->sampling.seed, r->sampling.temperature > 0, (uint64_t)r->max_tokens};
    const uint64_t key = hash64(r->tokens, (size_t)r->n * sizeof *r->tokens, hash64(how, sizeof how, 1)) | 1;
    struct alone *m = &world->memo[key / 2 % MEMO];
    if (m->key == key) return m;
    *m = (struct alone){0};
    check_pause();
    answer(user, r, m);
    check_resume();
    m->key = key;
    return m;
}
