#pragma once
/* What engine.c and session.c share. One mutex guards the queue, the sessions' states and the event ring; the engine's
 * thread works without it. */
#include <pthread.h>

#include "cpu/ops.h"
#include "cpu/pool.h"
#include "engine/engine.h"
#include "engine/pipe/pipe.h"
#include "engine/sample.h"
#include "engine/sched/mode.h"
#include "engine/sched/policy.h"

enum { ENGINE_EVENTS = 1024, ENGINE_BATCH = 16 };

enum session_state { SESSION_IDLE, SESSION_QUEUED, SESSION_PREFILL, SESSION_DECODE };
struct session {
    struct engine *engine;
    struct session *next; /* in engine->sessions */
    _Atomic int state;
    _Atomic int cancel;
    struct kv kv;
    int32_t *tokens;      /* what the KV cache holds, then what is to be prefilled */
    size_t cap;
    int n_kv, n;          /* tokens in the cache; tokens known */
    /* the running turn */
    struct request request;
    int32_t *stop_ids;
    uint64_t order;       /* first come, first served */
    int32_t pending;      /* sampled, not yet in the cache */
    int answered;
    double submitted, first, prefill_begin;
    uint64_t bytes_before;
    double told, told_share;
    struct turn_stats stats;
};

struct engine {
    struct engine_params params;
    struct engine_info info;
    struct weights weights;
    struct machine machine;
    struct numa nodes;
    struct pool *pool;
    struct work prefill_work, decode_work, guess_work;
    char *dir, *name;
    int32_t *eos;
    float *logits;               /* [ENGINE_BATCH, vocab] */
    struct sample_item *scratch; /* [vocab] */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t work, room, event; /* something to do; space in the ring; an event is there */
    _Atomic int closing;
    struct session *sessions;
    uint64_t orders;
    double last_decode;            /* when a session last answered; 0: never */
    struct cost_machine cost;      /* this machine, corrected by what happened; filled by the first prefill */
    struct cost_model model;
    double expected;               /* seconds of the running prefill */
    struct event ring[ENGINE_EVENTS];
    size_t head, count;
    int fd;
};

void *engine_thread(void *engine);                  /* session.c */
void engine_emit(struct engine *e, const struct event *ev); /* waits for room */
