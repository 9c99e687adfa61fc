#pragma once
/* The state of an engine and of its sessions, shared by the files of this folder. One mutex guards the queue, the
 * sessions' states and their unread events. The engine thread computes without the mutex, on sessions that it holds. */
#include <pthread.h>

#include "base/fair_queue.h"
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "engine/draft/governor.h"
#include "engine/draft/int4.h"
#include "engine/draft/mtp.h"
#include "engine/engine.h"
#include "engine/exec/decode/decode.h"
#include "engine/exec/prefill.h"
#include "engine/exec/stream/slp.h"
#include "engine/experts/lookahead.h"
#include "engine/kv/kv_disk.h"
#include "engine/placement/policy.h"
#include "engine/placement/read_times.h"
#include "engine/placement/split.h"
#include "engine/session/draft_model.h"
#include "engine/session/prefix_state.h"
#include "engine/vision/image_cache.h"
#include "engine/weights/huge_pages.h"

/* unread tokens after which a session pauses; sessions per decode batch */
enum { ENGINE_MAX_UNREAD = 1024, ENGINE_MAX_BATCH = 16 };

_Static_assert((int)ENGINE_MAX_BATCH <= (int)DECODE_MAX_ROWS, "a decode batch has a row of each session");
/* ENDED: the turn is over and its last event is unread. Only session_set_state() changes the state. */
enum session_state { SESSION_IDLE, SESSION_QUEUED, SESSION_PREFILL, SESSION_DECODE, SESSION_ENDED };
/* The work that the engine thread does on a session while it does not hold the lock. Only session_set_hold() changes
 * it. */
enum session_hold {
    HOLD_NONE,    /* no work, or its prefill: may_end_turn() says whether a lock holder may end the turn */
    HOLD_CLAIMED, /* the engine thread works on the turn; no other thread may end it */
    HOLD_BATCH,   /* a batch computes its rows: the turn may end, but the session must not be freed */
    HOLD_DRAINING /* the turn has ended, but the batch or the stopping prefill still uses the session */
};
/* drafted tokens at positions first_pos .. first_pos + n - 1; the first n_checked match the tokens generated since */
struct draft_tokens {
    int first_pos, n, n_checked, confidence;
    int32_t token[DRAFT_MAX];
};
/* A session's prefill, while it is in the engine's list. */
struct prefill_run {
    struct session *below; /* the next older prefill in the list */
    /* Prompts that are read together (prefill_join.h): the first one, which has the driver, NULL for itself; the next
     * one, as in job.joined. */
    struct session *leader, *joined;
    uint64_t tried;                      /* turn of the last session whose prompt this one's was not joined to */
    uint64_t alone;                      /* turn whose prompt is read alone, because reading it with others failed */
    const struct prefill_driver *driver; /* NULL: not started */
    struct prefill_job job;
    int32_t *tokens; /* a private copy: the session's tokens may change before the prefill has stopped */
    size_t tokens_cap;
    bool is_abandoned; /* its turn has ended, but it has not stopped */
    bool is_paused;    /* a newer prefill has the workspace */
    bool is_refused;   /* nothing may pass it: no memory to pause it */
    int n_passed;      /* prompts that were read before it had ended */
    /* start time; seconds of the engine thread in it, and of newer ones while it waited; time of its last progress
     * event; seconds predicted by the cost model, 0: unknown */
    double began, thread_s, lost_s, progress_emitted, expected_s;
};
struct session {
    struct engine *engine;
    struct session *next; /* in engine->sessions */
    _Atomic int state;
    enum session_hold hold;
    /* cancel[live_cancel] belongs to the turn; a cancelled prefill that has not stopped yet watches the other flag */
    _Atomic int cancel[2], live_cancel;
    int n_borrowers; /* readers of its cache; > 0: the session must not be freed */
    struct kv kv;
    struct prefix prefix;
    int32_t *tokens; /* tokens in the KV cache, then tokens to prefill */
    size_t tokens_cap;
    int n_kv, n_tokens; /* tokens in the cache; all known tokens */
    bool is_long_rope;  /* the cache was built with config_long_rope() true */
    /* images of the running turn's prompt, in order, each a reference; shift of the rotation of what follows the last
     */
    struct image_span *images;
    int n_images, turn_shift;
    struct image_queue *image_queue; /* images that the tower has turned into rows (image_queue.h); NULL: none */
    /* The running turn. */
    struct request request;
    int32_t *stop_ids;
    /* [vocab] the model's logits of the token being sampled, for wants_logprobs; NULL: never wanted */
    float *raw_logits;
    struct prefix_keys disk_keys;
    uint64_t turn_id;              /* serial number of the turn, engine-wide */
    struct fair_entry queue_entry; /* entry in the prefill queue */
    uint64_t last_batch;           /* number of the decode batch that it last took part in */
    double decoded_at;             /* time of that batch; 0: none */
    struct prefill_run prefill;
    int n_answered;
    bool has_waited;               /* its prompt waited for --max-tpot */
    struct draft_tokens drafts[2]; /* from lookup, from a model; n 0: no draft to judge */
    struct mtp_session mtp;
    struct draft_model_chat draft_chat;
    double submitted_at, first_token_at;
    struct turn_stats stats;
    /* Unread events, each with its serial number: the latest progress, tokens, the end. */
    struct {
        uint64_t serial;
        int32_t token;
    } unread[ENGINE_MAX_UNREAD];
    struct token_logprobs *unread_logprobs; /* [ENGINE_MAX_UNREAD] of those tokens; NULL as raw_logits */
    int first_unread, n_unread;
    uint64_t progress_serial, end_serial; /* 0: no such event */
    struct event progress, end;
};

struct sample_item; /* sampling/sample.h */
struct throughput;  /* throughput.c */
struct engine_task; /* engine_tasks.c */

/* The flag that cancels the current turn. */
static inline _Atomic int *session_cancel_flag(struct session *s) { return &s->cancel[atomic_load(&s->live_cancel)]; }

/* The bound on the time per token, --max-tpot (tpot.h). */
struct tpot {
    double max_batch_s; /* bound on the next decode batch, for the governor of drafts; 0: none */
    /* seconds by which answers were faster than the bound and that other work may take; limited, so that no stall is
     * long */
    double spare_s;
    double unit_s; /* seconds of the running prefill's last unit; 0: none yet */
    int n_missed;  /* consecutive batches of one session above the bound */
    bool has_warned;
};
/* Time slices of sessions (time_slices.h). */
struct time_slices {
    int n_sessions; /* number of sessions that want to decode */
    int n_fit;      /* how many of their KV caches fit the devices; 0: all of them, or not known yet */
    int n_left;     /* remaining batches of the current slice */
    int n_slices;   /* number of slices since all sessions last decoded together */
    int n_batches;  /* length of a slice in batches; 0: the sessions decode together */
};

struct engine {
    struct engine_params params;
    struct engine_info info;
    struct weights weights;
    struct runtime machine;
    struct numa numa;
    struct pool *pool;
    struct cost_machine cost; /* this machine; rates are corrected by observation */
    struct cost_model cost_model;
    struct work prefill_work, lookahead_work;
    struct read_times read_times[2]; /* of prompts that the CPU reads: longer and shorter ones (op_prompts.is_few) */
    struct kv_store kv_store;
    struct huge_pages *huge_pages;      /* moves the weights to 2 MB pages; NULL: not needed */
    struct kv_disk *kv_disk;            /* KV disk cache; NULL: none */
    uint64_t restoring_turn;            /* turn whose prompt is being looked up on disk */
    char *dir, *name, *calibration_dir; /* copies of params' strings; name: last component of dir */
    char *kv_dir;
    bool is_calibrated; /* cost is calibrated, or need not be */
    int32_t *eos;
    float *logits, *passing_logits; /* [vocab] of the last prefilled position; of one that passes others */
    float *joined_logits;           /* [PREFILL_JOINED_MOST, vocab] of prompts that are read with another; or NULL */
    struct sample_item *sample_scratch; /* [SAMPLE_SCRATCH(vocab, context)] */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;
    pthread_cond_t ended_cond; /* a turn or a task has ended */
    _Atomic int closing;
    struct session *sessions;
    struct fair_queue prefill_queue;       /* prompts waiting for prefill */
    struct engine_task *tasks;             /* calls from other threads, in order */
    uint64_t n_turns, n_events, n_batches; /* turns queued, events emitted, decode batches started */
    int n_unread;                          /* events of all sessions */
    int event_fd, wake_fd;                 /* eventfds: readable while events wait; wakes the engine thread */
    /* Prefills in progress, the newest first. The newest runs; those below wait for it, but for one on devices, which
     * has a thread of its own and is always the oldest. Changed under the lock. */
    struct session *prefilling;
    struct session *advancing; /* the session whose prefill the engine thread computes without the lock; NULL: none */
    enum exec_mode next_exec;  /* mode of the next decode batch */
    double batch_expected_s;   /* predicted seconds of it */
    struct policy_decode_out explained_decision; /* decision that decode_why describes */
    char decode_why[960];
    struct mtp *mtp;     /* NULL: unused */
    struct int4 *int4;   /* NULL: unused */
    struct tower *tower; /* NULL: the model reads no images; info.no_images says why */
    struct image_cache image_cache;
    char no_images[400];
    struct draft_model draft_model; /* ctx NULL: unused */
    struct lookahead lookahead;     /* experts that the INT4 draft's routers selected */
    void *lookahead_mem;
    struct governor governor;           /* of drafts */
    struct governor_sample next_sample; /* draft figures of the next decode batch, for the governor */
    double draft_saved_s;               /* seconds that drafts saved each session in the last batch */
    struct throughput *throughput;      /* throughput batches; NULL: no capable device */
    double decode_lead_s;               /* seconds of engine thread time that decode has had beyond its half */
    struct tpot tpot;                   /* --max-tpot */
    struct time_slices slices;          /* of sessions whose caches do not fit the devices together */
    int n_batch_tokens;                 /* tokens that the last decode batch gave its sessions */
};
