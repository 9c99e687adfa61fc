#pragma once
/* What the engine's own files share. One mutex guards the queue, the sessions' states and their unread events; the engine's
 * thread computes without it, on sessions that it holds. */
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

enum { ENGINE_EVENTS = 1024, ENGINE_BATCH = 16 }; /* unread tokens of a session: it waits for its reader then; rows of a step */

_Static_assert((int)ENGINE_BATCH <= (int)STEP_ROWS, "a step takes a row of each");
/* ENDED: the turn is over, its last event waits to be read. Changed by session_move alone. */
enum session_state { SESSION_IDLE, SESSION_QUEUED, SESSION_PREFILL, SESSION_DECODE, SESSION_ENDED };
struct guess { /* what a draft said of tokens from .. from + n - 1; `seen` of them were drawn since, and were these */
    int from, n, seen, level;
    int32_t token[DRAFT_MOST];
};
struct session {
    struct engine *engine;
    struct session *next; /* in engine->sessions */
    _Atomic int state;
    _Atomic int cancel[2], live; /* cancel[live] is the turn's; a cancelled prefill that has yet to stop looks at the other one */
    bool held;                   /* the engine's thread works on it without the lock; else whoever has the lock may end its turn */
    bool kept;                   /* the step that runs, or a prefill that stops, uses it: its turn may be ended all the same, but it must stay */
    int borrowed;                /* others take of its cache: it must stay */
    struct kv kv;
    struct prefix prefix;
    int32_t *tokens; /* what the KV cache holds, then what is to be prefilled */
    size_t cap;
    int n_kv, n; /* tokens in the cache; tokens known */
    bool far;    /* the cache is of a sequence for which config_far holds */
    /* the running turn */
    struct request request;
    int32_t *stop_ids;
    struct prefix_keys keys;
    uint64_t order;        /* of the turn, among all */
    struct fair_turn wait; /* while it is queued */
    uint64_t stepped;      /* the engine's step that it last took part in */
    int answered;
    struct guess guess[2]; /* by lookup, by a model; n 0: none waits to be judged */
    struct mtp_chat mtp;
    double submitted, first;
    struct turn_stats stats;
    /* Events not read yet, each with its number in order of arrival: the latest progress, tokens, the end. */
    struct {
        uint64_t order;
        int32_t token;
    } unread[ENGINE_EVENTS];
    int first_unread, n_unread;
    uint64_t progress_order, end_order; /* 0: none */
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
    struct cost_machine cost; /* this machine, corrected by what happened */
    struct cost_model model;
    struct work prefill_work, guess_work;
    struct prefix_store shared;
    struct large large;              /* weights whose pages are made so */
    struct keep *keep;               /* the KV cache on disk; NULL: none */
    uint64_t restoring;              /* the turn that looks for its prompt there */
    char *dir, *name, *measurements; /* params.machine */
    char *kv_dir;                    /* params.kv_dir */
    bool measured;                   /* cost is, or need not be */
    int32_t *eos;
    float *logits;               /* [vocab] of the prefill's last position */
    struct sample_item *scratch; /* [vocab] */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t over; /* a turn or a piece of work is */
    _Atomic int closing;
    struct session *sessions;
    struct fair queued;             /* prompts that wait to be read */
    struct piece *pieces;           /* work of other threads for this one, in order */
    uint64_t orders, events, steps; /* turns queued, events sent, steps taken so far */
    int unread;                     /* events of all sessions */
    int fd, wake;                   /* eventfds: readable while events wait; what the engine's thread sleeps on */
    bool stepping;                  /* the engine's thread is in a step: a turn whose prompt is being read may be ended */
    /* The one prefill that runs. */
    struct session *reading;
    struct session *left;    /* whose turn ended before its prefill has stopped: no other begins until then */
    const struct mode *mode; /* NULL: not begun */
    struct prefill_job job;
    int32_t *job_tokens; /* its own: the session may have others before it has stopped */
    size_t job_cap;
    double begun, worked, told;       /* when; seconds of the engine's thread in it; when its progress was last told */
    double expected;                  /* seconds, as the cost model has it */
    double last_decode;               /* when a session last answered; 0: never */
    enum step_cut cut;                /* of the next step, as the policy has it */
    double step_expected;             /* seconds of it */
    struct policy_decode_out decided; /* of the sentence that follows */
    char decode_why[400];
    struct mtp *mtp;       /* NULL: it takes no part */
    struct int4 *int4;     /* the same */
    struct lookahead seen; /* what its routers chose; its memory: */
    void *seen_mem;
    struct governor governor;     /* of drafts */
    struct governor_step drafted; /* what it is to know of the next step */
    double saved;                 /* seconds that the last step's guesses saved each of its sessions */
    struct many *many;            /* prompts that go through the layers together; NULL: no device
                                   * that could */
    double balance;               /* seconds that decoders had more than the prefill beside them */
};

/* session.c. All but the last under the lock. */
void session_move(struct session *s, enum session_state to);
void session_end(struct session *s, enum done_reason reason, int rc, const struct error *why);
void session_tell_token(struct session *s, int32_t id);
void session_tell_progress(struct session *s, const struct event *ev);
void session_reap(struct engine *e); /* ends cancelled turns that nobody works on */
void engine_wake(void *engine);      /* async-signal-safe */

/* loop.c */
void *engine_thread(void *engine);
/* Has the engine's thread, which owns the processor, call fn(arg) between two pieces of its own work; waits for it and
 * returns its result. From any other thread. */
int engine_run(void *engine, int (*fn)(void *arg), void *arg);

void engine_measure(struct engine *e); /* the engine's thread: speeds of this machine, once */

int engine_read_cache(const char *text, enum budget_ask *ask, size_t *n);         /* --expert-cache; ERR_USAGE */
int engine_check_level(const struct engine_params *p, struct error *e);           /* ERR_USAGE: this processor lacks what was asked for */
int engine_read_nodes(struct numa *nodes, const char *topology, struct error *e); /* of that file, or this machine's where it is NULL */
int engine_check_modes(const struct engine_params *p, struct error *e);           /* engine.c */
void engine_path(struct engine *e);                                               /* engine.c: weights come to devices no faster than the way that they take */
int generation_read(struct engine *e, struct error *err);                         /* generation.c: stop ids, the vendor's sampling */
