#pragma once
/* Turns on the built-in checkpoint, and a hook that holds the engine's thread, for tests of concurrent turns. Include
 * once per program. */
#include "test/unit/session.h"

#include <semaphore.h>
#include <stdatomic.h>

#include "cpu/cpu.h"
#include "engine/session/engine_state.h"

enum { LONG = 6000 };
static int32_t prompt[LONG];

static inline struct engine *open_with(struct engine_params p) {
    struct engine *e;
    struct error err = {0};
    p.dir = "ember:";
    if (!p.threads) p.threads = 2;
    if (engine_open(&e, &p, &err)) fail_msg("%s", err.text);
    for (int i = 0; i < LONG; i++) prompt[i] = (i * 37 + i / 7 + 11) % (engine_info(e)->vocab - 20);
    return e;
}
static inline void submit(struct session *s, int from, int n, int max_tokens) {
    struct error err = {0};
    struct request r = {.tokens = prompt + from,
                        .n = n,
                        .max_tokens = max_tokens,
                        .flags = REQ_IGNORE_EOS,
                        .sampling = {.temperature = 1, .top_p = 0.9f, .seed = 5}};
    if (session_submit(s, &r, &err)) fail_msg("%s", err.text);
}
static inline struct event next(struct engine *e) {
    struct event ev;
    if (!engine_poll(e, &ev, 120000)) fail_msg("no event for two minutes");
    if (ev.kind == EVENT_ERROR) fail_msg("%s", ev.error.text);
    return ev;
}
static inline struct event wait_for(struct engine *e, const struct session *s, enum event_kind kind) {
    struct event ev;
    do ev = next(e);
    while (ev.session != s || ev.kind != kind);
    return ev;
}

/* Replaces the CPU's experts: once armed, the next decode batch, or unit of a session's prefill, waits in there until
 * released. */
static struct {
    struct engine *e;
    struct ops ops;
    int (*experts)(struct exec *, const struct op_experts *);
    const struct session *at; /* NULL: a batch */
    _Atomic int armed;
    sem_t in, go;
} hold;
static inline int held_experts(struct exec *x, const struct op_experts *a) {
    if (hold.e->advancing == hold.at && atomic_exchange(&hold.armed, 0)) {
        sem_post(&hold.in);
        while (sem_wait(&hold.go)) {
        }
    }
    return hold.experts(x, a);
}
static inline void hold_begin(struct engine *e) { /* nothing runs yet */
    hold.e = e;
    hold.ops = *e->machine.cpu->ops;
    hold.experts = hold.ops.experts;
    hold.ops.experts = held_experts;
    e->machine.cpu->ops = &hold.ops;
    sem_init(&hold.in, 0, 0);
    sem_init(&hold.go, 0, 0);
}
static inline void hold_arm(const struct session *at) {
    hold.at = at;
    atomic_store(&hold.armed, 1);
}
static inline void hold_wait(void) {
    while (sem_wait(&hold.in)) {
    }
}
