#pragma once
/* The engine: opens a checkpoint, runs turns of several sessions on a thread of its own, reports through a queue.
 * The only header of the engine proper that cli/ includes. All functions may be called from any one thread at a time
 * unless a comment says otherwise; callbacks run on the engine's thread and must not call back into the engine. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/buf.h"
#include "engine/base/error.h"
#include "engine/base/mat.h"

struct engine;
struct session;

enum prefill_mode { PREFILL_AUTO, PREFILL_CPU, PREFILL_BLEND, PREFILL_SLP, PREFILL_DSLP };
enum decode_mode { DECODE_AUTO, DECODE_CPU, DECODE_HYBRID, DECODE_DUAL, DECODE_PAGED };
enum draft_kind { DRAFT_NONE, DRAFT_AUTO, DRAFT_LOOKUP, DRAFT_MTP, DRAFT_INT4 }; /* who guesses ahead; the last: the model with experts in INT4 */
enum { DRAFT_MOST = 16 };                                                        /* tokens guessed at once */

struct engine_params {         /* zero-initialised: everything by itself */
    const char *dir;           /* checkpoint directory or "ember:" */
    int context;               /* tokens a session may hold; 0: the model's own limit */
    int threads;               /* 0: one a physical core, less one where there are more than two */
    int cpu_level;             /* enum cpu_level + 1; 0: the best this machine has */
    uint8_t kv;                /* enum dtype: DT_F32, DT_BF16, DT_E4M3; 0: DT_BF16 */
    const char *gpus;          /* NULL or "none", "0", "0,1", "emu:2,mem=32G,h2d=57" */
    const char *trace;         /* file for a Chrome trace of what devices and processor did; NULL: none */
    const char *trace_routing; /* file for what routers chose (step/routing.h); NULL: none */
    enum prefill_mode prefill;
    enum decode_mode decode;
    const char *machine;      /* directory where what was measured of this machine is kept; NULL: it is not measured, but assumed */
    const char *split;        /* who computes which expert: a policy of sched/split.h; NULL: the best by cost */
    const char *expert_cache; /* routed experts on devices: "auto", "off", so many a layer ("8"), or so much ("4G"); NULL: off */
    const char *evict;        /* which of them stay: a policy of cache/score.h; NULL: the default */
    bool deterministic;       /* decisions by the table alone, never by what was measured in use */
    const char *kv_dir;       /* where beginnings that were read are kept for later sessions; NULL: nowhere */
    uint64_t kv_limit;        /* bytes there at most; 0: a tenth of what the disk has free */
    bool force;               /* go on where memory seems too little */
    bool hugepages;           /* ask for 2 MB pages: caches, workspaces, and weights read into memory where they fit */
    const char *topology;     /* file that says what memory nodes there are (cpu/numa.h), for tests; NULL: as the machine says */
    enum draft_kind draft;
    const char *draft_dir; /* where the INT4 draft of a checkpoint is kept for later runs; NULL: nowhere */
    int draft_len;         /* most tokens guessed at once; 0: DRAFT_MOST. Of a draft that was named always so many, else as many as pay */
    /* NULL, or a draft of the caller's own, for DRAFT_LOOKUP's: guesses up to `most` tokens that follow tokens[0..n) into out, returns how
     * many. Whatever it says, the text is what it would be without. On the engine's thread. */
    int (*draft_own)(void *ctx, const int32_t *tokens, int n, int most, int32_t *out);
    void *draft_ctx;
    /* Progress of opening, called at most ten times a second: what, share 0..1. May be NULL. Returning non-zero cancels. */
    int (*progress)(void *ctx, const char *what, double share);
    void *progress_ctx;
};

/* Opens everything: config, weights (mapped), devices, thread. On error *e is what to show; nothing is left behind. */
int engine_open(struct engine **e_out, const struct engine_params *p, struct error *e);
void engine_close(struct engine **e); /* cancels what runs, closes all sessions */

struct engine_info {
    const char *model_type; /* as config.json has it */
    const char *name;       /* last part of the directory */
    int vocab, n_layers, hidden, n_experts, topk, context, max_context;
    int threads;
    const char *level;  /* "avx512" */
    const int32_t *eos; /* stop ids of generation_config.json and config.json */
    int n_eos;
    double temperature, top_p, min_p, repeat_penalty; /* the vendor's defaults; NAN where not given */
    int top_k;                                        /* 0 where not given */
    bool do_sample;                                   /* false: greedy by default */
    uint64_t kv_token_bytes;                          /* KV cache of one token of context */
    uint64_t fingerprint;                             /* of config and tensor headers: a saved KV belongs to one */
};
const struct engine_info *engine_info(const struct engine *e); /* valid until close */

/* --inspect without opening for work: appends one JSON object. --verify: reads every tensor; ERR_MODEL names the first
 * that is wrong. */
int engine_inspect(const struct engine_params *p, struct buf *json, struct error *e);
int engine_verify(const struct engine_params *p, struct error *e);
/* --plan: what a machine (a preset, a file, or "here", which is measured) would give with a checkpoint (dir set) or an architecture by name
 * (NULL: deepseek-v3), in virtual time; appends one JSON object. "list": what is known by name. ERR_USAGE names file, line and remedy. */
int engine_plan(const struct engine_params *p, const char *machine, const char *arch, struct buf *json, struct error *e);
/* --version --verbose: the processor, the level that was asked for, devices, families; plain text lines. */
int engine_describe(const struct engine_params *p, struct buf *out, struct error *e);
/* --bench kernels: one JSON object a row through fn {kernel, level, shape, threads, gbps|gflops, limit, share}. */
int engine_bench_kernels(int threads, int (*fn)(void *ctx, const char *json_row), void *ctx, struct error *e);
/* Prompts that are about to be submitted, so that they are read and answered in the way that is soonest for all of them. Returns how many to
 * submit at once, 0: it does not matter. Where it is not 0, none of them is begun before engine_load(e, NULL) has said that those are
 * submitted. With --decode other than auto and paged nothing is decided. */
struct engine_load {
    int prompts, most;     /* all of them; at once at most, 0: as many as pay */
    double prompt, answer; /* tokens of each, about */
};
int engine_load(struct engine *e, const struct engine_load *load);
/* What this machine can do at best, measured now: streaming read in bytes/s on the engine's threads, between what they do
 * for running turns. */
double engine_read_bandwidth(struct engine *e, int rounds);
/* Bytes of weights that one decoded token reads (routed + dense + head). */
uint64_t engine_token_bytes(const struct engine *e);
/* Linear-layer FLOPs of one prompt token (head left out). */
uint64_t engine_token_flops(const struct engine *e);

/* Which routed experts steps have used since opening, and where they lie now. */
struct expert_map {
    int n_layers, n_experts;
    uint32_t *used; /* [n_layers, n_experts] tokens that chose it; a layer without experts has none */
    int8_t *where;  /* [n_layers, n_experts] the device's rank; -1: in host memory alone */
};
/* Waits for the step that runs. ERR_MEMORY: nothing is to be freed. */
int engine_experts(struct engine *e, struct expert_map *out, struct error *err);
void expert_map_free(struct expert_map *m);

struct sampling {
    float temperature;                  /* 0: greedy */
    float top_p, min_p, repeat_penalty; /* 1, 0, 1: off */
    int top_k;                          /* 0: off */
    uint64_t seed;
};

int session_open(struct engine *e, struct session **s, struct error *err);
void session_close(struct session **s); /* cancels its turn first */

/* A fresh session becomes a copy of one that is not busy: with its tokens, and sharing its memory. ERR_MEMORY: it is to be closed. */
int session_fork(struct session *from, struct session *to, struct error *err);

enum {
    REQUEST_NO_EOS = 1, /* go on past stop ids (measuring, --ids) */
    REQUEST_ALONE = 2,  /* read all of it, also what other sessions have read (measuring) */
    REQUEST_SECRET = 4, /* nothing of it goes to the KV cache on disk */
    REQUEST_AFRESH = 8  /* of what the session holds only that counts which reading the tokens gives bit by bit: the answer is a fresh session's */
};
struct request {
    const int32_t *tokens; /* the whole conversation so far; copied. What the KV cache already holds of it is kept */
    int n;
    int shared;      /* so many of them others are likely to begin with, too, and to go on otherwise (a system prompt); 0: not known */
    int max_tokens;  /* answer tokens; 0: none (logits only), < 0: until the context is full */
    uint64_t client; /* whose it is: clients take turns where prompts wait to be read (base/fair.h) */
    int flags;
    struct sampling sampling;
    const int32_t *stop_ids; /* beside the model's own; copied */
    int n_stop_ids;
    /* NULL, or called for each prompt position in order with its logits [vocab]; non-zero cancels. Forces a recompute of
     * the whole prompt. */
    int (*logits)(void *ctx, int position, const float *logits);
    void *logits_ctx;
};
/* Queues one turn; returns at once. ERR_CONTEXT with both counts when it cannot fit; ERR_RUNTIME when the session is busy. */
int session_submit(struct session *s, const struct request *r, struct error *e);
/* A turn whose answer of n <= 1,024 tokens is known: they come as events, as if the model had chosen them for a prompt of n_prompt tokens.
 * Nothing is computed, and what the cache holds stays. ERR_RUNTIME when the session is busy. */
int session_say(struct session *s, int n_prompt, const int32_t *tokens, int n, int max_tokens, struct error *e);
/* Stops the running or queued turn soon (well under 200 ms, whatever others do); its EVENT_DONE follows with DONE_CANCELLED.
 * What was read of the prompt stays in the cache by whole batches. Async-signal-safe; from any thread. */
void session_cancel(struct session *s);
bool session_busy(const struct session *s);                          /* from submit until the turn's last event was taken */
int session_tokens(const struct session *s, const int32_t **tokens); /* what the KV cache holds; only while not busy */
/* So many tokens at its beginning have memory that other caches may have, too, of which engine_shared_bytes counts all of each once. As it
 * is now; from any thread. */
int session_shared(const struct session *s);
uint64_t engine_shared_bytes(const struct engine *e);
/* Under which keys the prompt that was submitted last is kept in kv_dir, or would be; returns how many. Valid until the next one is. */
size_t session_kept(const struct session *s, const uint64_t **keys);
/* Takes what is kept under these keys off a kv_dir; what engines, of other processes too, have read of it until now, they do not write
 * there any more. ERR_RUNTIME: some of it may still be there. From any thread, without an engine. */
int engine_forget(const char *kv_dir, const uint64_t *keys, size_t n, struct error *e);

enum event_kind { EVENT_NONE, EVENT_PROGRESS, EVENT_TOKEN, EVENT_DONE, EVENT_ERROR };
enum done_reason { DONE_STOP, DONE_LENGTH, DONE_CONTEXT, DONE_CANCELLED };
struct expert_stats {                                        /* routed experts in the steps that a turn took part in, of all turns in them */
    uint64_t chosen, on_device, moved, in_vain, moved_bytes; /* moved: to a device; of those that had to go, without a use */
    uint64_t ahead, ahead_in_vain;                           /* of these: because routers had said so */
    uint64_t said[3], right[3];                              /* of the layer 1, 2, 3 ahead: said so, and of these chosen */
    double processor_s, device_s;                            /* that each took for its part of them */
    double deciding_s;                                       /* that it took to say whose part is what, and what to bring */
    uint64_t decided;                                        /* so many layers */
};
struct turn_stats {
    int prompt_tokens, cached_tokens, answer_tokens;
    double queue_s, ttft_s, prefill_s, decode_s; /* ttft from submit to first token; decode from first to last token */
    uint64_t bytes_read;                         /* of weights, as touched by the operations; of a step's its share */
    const char *draft;                           /* "lookup", "mtp", or both, "int4"; NULL: none, or not made yet */
    int drafted, accepted, draft_most;           /* tokens that it guessed and steps looked at; that were right; most in a step */
    double draft_saved_s;                        /* by which its guesses shortened steps, as far as is known; < 0: lengthened */
    struct expert_stats experts;                 /* chosen 0: no step on devices that keep some */
    const char *prefill_mode, *decode_mode;      /* "cpu", "blend", "slp", "dslp", "paged"; "cpu", "hybrid", "dual", "paged" */
    /* --explain: why these modes, a line each, and what was expected of them; 0 where nothing was */
    char why[320], decode_why[400];
    double prefill_expected_s, step_expected_s, step_s; /* a step: of the last one that it took part in */
};
struct event {
    enum event_kind kind;
    struct session *session;
    int32_t token;           /* EVENT_TOKEN */
    int done, total;         /* EVENT_PROGRESS: prompt tokens prefilled; with slp layers */
    double left_s;           /* EVENT_PROGRESS: seconds left, < 0 unknown */
    const char *what;        /* EVENT_PROGRESS: "prefill", "layer" */
    enum done_reason reason; /* EVENT_DONE */
    struct error error;      /* EVENT_ERROR: the turn ended with this; the session lives */
    struct turn_stats stats; /* EVENT_DONE, EVENT_ERROR */
};
/* Takes the next event of any session, in order of arrival, waiting up to timeout_ms (-1: for ever, 0: not at all). True when
 * there was one. Nothing is lost: a session with 1,024 unread tokens waits until one is read, others go on; only an unread
 * EVENT_PROGRESS gives way to a newer one. */
bool engine_poll(struct engine *e, struct event *out, int timeout_ms);
int engine_fd(const struct engine *e); /* readable while events wait, and until engine_poll found none: for poll() beside the terminal */
