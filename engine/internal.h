#pragma once
/* State shared by the engine's own files. One mutex guards the queue, the sessions' states and their unread events. The engine
 * thread computes without the mutex, on sessions that it holds. */
#include <pthread.h>

#include "cpu/ops.h"
#include "cpu/pool.h"
#include "engine/base/fair.h"
#include "engine/cache/lookahead.h"
#include "engine/draft/governor.h"
#include "engine/draft/int4.h"
#include "engine/draft/mtp.h"
#include "engine/engine.h"
#include "engine/pipe/pipe.h"
#include "engine/prefix.h"
#include "engine/sample.h"
#include "engine/sched/policy.h"
#include "engine/sched/split.h"
#include "engine/step/mode.h"
#include "engine/step/step.h"
#include "engine/store/large.h"

enum { ENGINE_EVENTS = 1024, ENGINE_BATCH = 16 }; /* unread tokens after which a session pauses; sessions per decode batch */

_Static_assert((int)ENGINE_BATCH <= (int)STEP_ROWS, "a step takes a row of each");
/* ENDED: the turn is over and its last event is unread. Only session_set_state() changes the state. */
enum session_state { SESSION_IDLE, SESSION_QUEUED, SESSION_PREFILL, SESSION_DECODE, SESSION_ENDED };
struct guess { /* drafted tokens at positions from .. from + n - 1; the first `seen` match tokens generated since */
    int from, n, seen, level;
    int32_t token[DRAFT_MOST];
};
struct session {
    struct engine *engine;
    struct session *next; /* in engine->sessions */
    _Atomic int state;
    _Atomic int cancel[2], live; /* cancel[live] belongs to the turn; a cancelled prefill that has not stopped yet watches the other flag */
    bool held;                   /* the engine thread works on the session without the lock; while false, any lock holder may end the turn */
    bool kept;                   /* in use by the running decode batch or a stopping prefill: the turn may end, but the session must not be freed */
    int borrowed;                /* number of readers of its cache: it must not be freed */
    struct kv kv;
    struct prefix prefix;
    int32_t *tokens; /* tokens in the KV cache, then tokens to prefill */
    size_t cap;
    int n_kv, n; /* tokens in the cache; all known tokens */
    bool far;    /* the cache was built with config_long_rope() true */
    /* The running turn. */
    struct request request;
    int32_t *stop_ids;
    struct prefix_keys keys;
    uint64_t order;        /* serial number of the turn, engine-wide */
    struct fair_turn wait; /* entry in the prefill queue */
    uint64_t stepped;      /* number of the decode batch that it last took part in */
    int answered;
    struct guess guess[2]; /* from lookup, from a model; n 0: no draft to judge */
    struct mtp_chat mtp;
    double submitted, first;
    struct turn_stats stats;
    /* Unread events, each with its serial number: the latest progress, tokens, the end. */
    struct {
        uint64_t order;
        int32_t token;
    } unread[ENGINE_EVENTS];
    int first_unread, n_unread;
    uint64_t progress_order, end_order; /* 0: no such event */
    struct event progress, end;
};

struct many;  /* many.c */
struct piece; /* loop.c */

struct engine {
    struct engine_params params;
    struct engine_info info;
    struct weights weights;
    struct machine machine;
    struct numa nodes;
    struct pool *pool;
    struct cost_machine cost; /* this machine; rates are corrected by observation */
    struct cost_model model;
    struct work prefill_work, guess_work;
    struct prefix_store shared;
    struct large large;              /* mappings to convert to huge pages */
    struct keep *keep;               /* KV disk cache; NULL: none */
    uint64_t restoring;              /* turn whose prompt is being looked up on disk */
    char *dir, *name, *measurements; /* measurements: params.machine */
    char *kv_dir;                    /* params.kv_dir */
    bool measured;                   /* cost is calibrated, or need not be */
    int32_t *eos;
    float *logits;               /* [vocab] of the last prefilled position */
    struct sample_item *scratch; /* [vocab] */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t over; /* a turn or a task has ended */
    _Atomic int closing;
    struct session *sessions;
    struct fair queued;             /* prompts waiting for prefill */
    struct piece *pieces;           /* calls from other threads, in order */
    uint64_t orders, events, steps; /* turns queued, events emitted, decode batches started */
    int unread;                     /* events of all sessions */
    int fd, wake;                   /* eventfds: readable while events wait; wakes the engine thread */
    bool stepping;                  /* a decode batch runs: a turn in prefill may be ended */
    /* The one running prefill. */
    struct session *reading;
    struct session *left;    /* session whose turn ended before its prefill stopped; the next prefill waits for it */
    const struct mode *mode; /* NULL: not started */
    struct prefill_job job;
    int32_t *job_tokens; /* a private copy: the session's tokens may change before the prefill has stopped */
    size_t job_cap;
    double begun, worked, told;       /* start time; seconds of the engine thread in it; time of the last progress event */
    double expected;                  /* seconds predicted by the cost model */
    double last_decode;               /* time of the last decode batch; 0: none */
    enum step_cut cut;                /* mode of the next decode batch */
    double step_expected;             /* predicted seconds of it */
    struct policy_decode_out decided; /* decision that decode_why describes */
    char decode_why[400];
    struct mtp *mtp;       /* NULL: unused */
    struct int4 *int4;     /* NULL: unused */
    struct lookahead seen; /* experts that the INT4 draft's routers selected */
    void *seen_mem;
    struct governor governor;     /* of drafts */
    struct governor_step drafted; /* draft figures of the next decode batch, for the governor */
    double saved;                 /* seconds that drafts saved each session in the last batch */
    struct many *many;            /* throughput batches; NULL: no capable device */
    double balance;               /* seconds of engine thread time that decode has had beyond its half */
};

/* session.c; under the lock, except engine_wake() */
void session_move(struct session *s, enum session_state to);
void session_end(struct session *s, enum done_reason reason, int rc, const struct error *why);
void session_tell_token(struct session *s, int32_t id);
void session_tell_progress(struct session *s, const struct event *ev);
void session_reap(struct engine *e); /* ends cancelled turns that the engine thread does not hold */
void engine_wake(void *engine);      /* async-signal-safe */

/* loop.c */
void *engine_thread(void *engine);
/* Runs fn(arg) on the engine thread, which owns the CPU executor, between two units of its work. Waits and returns
 * fn's result. Callable from every other thread. */
int engine_run(void *engine, int (*fn)(void *arg), void *arg);

void engine_measure(struct engine *e); /* engine thread: calibrates the machine, once */

int engine_read_cache(const char *text, enum budget_ask *ask, size_t *n);         /* parses --expert-cache; ERR_USAGE */
int engine_check_level(const struct engine_params *p, struct error *e);           /* ERR_USAGE: the CPU lacks the requested level */
int engine_read_nodes(struct numa *nodes, const char *topology, struct error *e); /* from the file, or from the system if topology is NULL */
int engine_check_modes(const struct engine_params *p, struct error *e);           /* engine.c */
void engine_path(struct engine *e);                                               /* engine.c: limits upload rates to that of the chosen path of the weights */
int generation_read(struct engine *e, struct error *err);                         /* generation.c: stop ids and the vendor's sampling defaults */
