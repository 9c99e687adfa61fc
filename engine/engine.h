#pragma once
/* The engine's public interface: opens a checkpoint, runs the turns of several sessions on its own thread and reports
 * events through a queue. The only header of engine/ proper that cli/ includes. Unless a comment says otherwise, one
 * thread at a time may call these functions. Callbacks run on the engine thread and must not call back into the
 * engine. */
#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"
#include "base/exec_mode.h"
#include "base/mat.h"
#include "engine/engine_experts.h"
#include "engine/sampling/sampling.h"

struct engine;
struct session;

enum { DRAFT_MAX = 16 }; /* drafted tokens per round */

struct engine_params {         /* zero-initialized: all defaults */
    const char *dir;           /* checkpoint directory, GGUF file or "ember:" */
    const char *name;          /* display name of the model; NULL: the last component of dir */
    int context;               /* most tokens of a session; 0: the model's limit */
    int image_tokens;          /* most tokens of an image; 0: the model's limit */
    int threads;               /* 0: one per physical core, minus one if there are more than two */
    int cpu_level;             /* enum cpu_level + 1; 0: the best level of this CPU */
    uint8_t kv;                /* enum dtype: DT_F32, DT_BF16, DT_E4M3; 0: DT_BF16 */
    const char *gpus;          /* NULL or "none", "0", "0,1", "emu:2,mem=32G,h2d=57" */
    const char *trace;         /* Chrome trace of GPU and CPU activity; NULL: none */
    const char *trace_routing; /* file that records router choices (exec/routing_trace.h); NULL: none */
    /* file that records what stages compute (exec/values_trace.h), without devices and drafts; NULL: none */
    const char *trace_values;
    enum exec_mode prefill, decode;
    const char *calibration_dir; /* directory of calibration results; NULL: assume speeds, do not measure */
    const char *split;           /* split policy (placement/split.h); NULL: the cheapest by the cost model */
    /* device memory for routed experts: "layers", "auto", "off", experts per layer ("8") or bytes ("4G"); "pinned",
     * "moving" or "sent", also with a size ("pinned:8", "sent:4G"); NULL: off */
    const char *expert_cache;
    const char *tuned_dir; /* directory of what --tune has measured, per checkpoint; NULL: none */
    const char *machine;   /* with tuned_dir: a line that names this machine and its devices */
    const char *usage_dir; /* directory that keeps how often experts are used, per checkpoint; NULL: none */
    const char *evict;     /* eviction policy of the expert pool (experts/score.h); NULL: the default */
    bool deterministic;    /* decide by the cost table only, never by measurements taken in use */
    double max_tpot_s;     /* bound on the mean seconds per token of each answer; 0: none */
    const char *kv_dir;    /* directory of the KV disk cache; NULL: none */
    uint64_t kv_limit;     /* most bytes in kv_dir; 0: a tenth of the free disk space */
    bool force;            /* continue where memory seems insufficient */
    bool hugepages;        /* use 2 MB pages for caches, workspaces, and weights copied into memory */
    const char *topology;  /* file that describes the NUMA nodes (cpu/numa.h), for tests; NULL: ask the system */
    enum draft_kind draft;
    /* with DRAFT_MODEL: checkpoint of a small model. The caller ensures that it has the same tokenizer */
    const char *draft_model;
    const char *mmproj;    /* GGUF file that has the vision tower of a GGUF model; NULL: one beside the model */
    const char *draft_dir; /* directory that keeps INT4 drafts of checkpoints; NULL: none */
    /* most drafted tokens per round; 0: DRAFT_MAX. A draft chosen by name always drafts this many, otherwise as many as
     * pay off */
    int max_drafted;
    /* The caller's own draft for DRAFT_LOOKUP, or NULL. Writes up to `most` tokens that may follow tokens[0..n) to out
     * and returns their number. Never changes the generated text. Called on the engine thread. */
    int (*custom_draft)(void *ctx, const int32_t *tokens, int n, int most, int32_t *out);
    void *custom_draft_ctx;
    /* NULL, or reports the progress of opening, at most ten times a second; share 0..1. A non-zero return cancels. */
    int (*progress)(void *ctx, const char *what, double share);
    void *progress_ctx;
};

/* Opens config, weights (mapped), devices and the engine thread. On error *e holds the message and nothing stays
 * open. */
int engine_open(struct engine **e_out, const struct engine_params *p, struct error *e);
void engine_close(struct engine **e); /* cancels running turns and closes all sessions */

struct engine_info {
    const char *model_type; /* as in config.json */
    const char *name;       /* engine_params.name, or the last component of the directory */
    int vocab, n_layers, hidden, n_experts, topk, context, max_context;
    int threads;
    const char *level;  /* "avx512" */
    const int32_t *eos; /* stop ids of generation_config.json and config.json, and those of engine_add_eos() */
    int n_eos;
    double temperature, top_p, min_p, repeat_penalty; /* defaults; NAN: not given */
    int top_k;                                        /* 0: not given */
    bool do_sample;                                   /* false: greedy by default */
    bool is_own_sampling;                             /* hearth's defaults, as the model has none */
    uint64_t kv_token_bytes;                          /* KV cache bytes per token */
    uint64_t weight_bytes;                            /* all tensors of the checkpoint */
    /* hash of config and tensor headers; identifies saved KV caches */
    uint64_t fingerprint;
    const char *no_images; /* why the model reads no images; NULL: it does */
    int32_t image_token;   /* with images: the placeholder that a chat template writes for one */
    /* tokens before an image and after it, which no template writes; 0: none */
    int32_t image_marks[2];
};
const struct engine_info *engine_info(const struct engine *eng); /* valid until close */
/* Adds a stop id that the tokenizer or the template names. Only before the first session. An id outside the vocabulary
 * or below 0 is ignored. ERR_MEMORY. */
int engine_add_eos(struct engine *eng, int32_t id, struct error *e);

/* --inspect: appends one JSON object without opening the engine. --verify: reads every tensor; ERR_MODEL names the
 * first damaged one. */
int engine_inspect(const struct engine_params *p, struct buf *json, struct error *e);
int engine_verify(const struct engine_params *p, struct error *e);
/* --plan: appends one JSON object with the speeds that a machine would reach, simulated in virtual time. machine: a
 * preset, a file, or "here" (calibrated); "list" lists the known names. The model is the checkpoint p->dir, or else the
 * architecture `arch` (NULL: deepseek-v3), with a format as in "qwen3-30b:q4_k_m". ERR_USAGE names file, line and
 * remedy. */
int engine_plan(const struct engine_params *p, const char *machine, const char *arch, struct buf *json,
                struct error *e);
/* --version --verbose: text lines with the CPU, the requested level, devices, families, and architectures of GGUF. */
int engine_describe(const struct engine_params *p, struct buf *out, struct error *e);
/* The devices that engine_params.gpus may be set to without being asked for. */
struct engine_gpus {
    char list[80];     /* "0,1"; "": none */
    char text[600];    /* their names, or why there are none, for a person */
    char trouble[400]; /* "": none; a device is there that could be used: why it cannot, and what to do */
    bool is_tried;     /* hearth has run on cards of each of their architectures */
};
void engine_find_gpus(struct engine_gpus *out);
/* --bench kernels: calls fn with one JSON object per row {kernel, level, shape, threads, gbps|gflops, limit, share}. */
int engine_bench_kernels(int threads, int (*fn)(void *ctx, const char *json_row), void *ctx, struct error *e);
/* Announces prompts that will be submitted soon, so that the engine can choose the mode that finishes all of them
 * first. Returns how many to submit at once, 0: no preference. After a non-zero result no prompt starts until
 * engine_announce(e, NULL) marks them as submitted. Returns 0 for --decode other than auto and paged. */
struct announced_load {
    int n_prompts, max_at_once;          /* total; most submitted at once, 0: as many as pay off */
    double prompt_tokens, answer_tokens; /* average tokens */
};
int engine_announce(struct engine *eng, const struct announced_load *load);
/* Measures the streaming read bandwidth in bytes/s on the engine's threads, between their work for running turns. */
double engine_read_bandwidth(struct engine *eng, int rounds);
/* Bytes of weights that decoding one token reads (routed, dense and LM head). */
uint64_t engine_token_bytes(const struct engine *eng);
/* FLOPs of the linear layers per prompt token, without the LM head. */
uint64_t engine_token_flops(const struct engine *eng);

/* An image for prompts, in the size that the model reads. Decodes the bytes of a PNG, JPEG or WebP file; what names it
 * in errors. ERR_USAGE if the model reads no images; ERR_RUNTIME: not an image, damaged, or too large. Any thread. */
struct engine_image;
int engine_image_open(struct engine *eng, const void *data, size_t n, const char *what, struct engine_image **out,
                      struct error *e);
/* Names the format of a file that begins with these bytes and that engine_image_open() reads; NULL: none. */
const char *engine_image_kind(const void *data, size_t n);
void engine_image_close(struct engine_image **image);
struct engine_image_info {
    int width, height; /* pixels of the file, upright */
    int tokens;
    uint64_t hash; /* hash of the resized pixels */
};
struct engine_image_info engine_image_info(const struct engine_image *image);
/* Writes the image's token ids [tokens] in a prompt. They are below 0, and differ between images. */
void engine_image_ids(const struct engine_image *image, int32_t *out);

int session_open(struct engine *eng, struct session **s, struct error *e);
void session_close(struct session **s); /* cancels its turn first */

/* Makes `to`, a fresh session, a copy of the idle session `from` with shared memory. ERR_MEMORY: close `to`. */
int session_fork(struct session *from, struct session *to, struct error *err);

enum {
    REQ_IGNORE_EOS = 1,      /* generate past stop ids (measurements, --ids) */
    REQ_NO_PREFIX_REUSE = 2, /* prefill everything, even what other sessions have cached (measurements) */
    REQ_NO_DISK_CACHE = 4,   /* never write the KV cache of this turn to disk */
    /* reuse only cached rows with the bits that a fresh prefill gives, so that the answer is a fresh session's */
    REQ_EXACT_PREFIX_ONLY = 8,
    /* a limit cuts an answer that its filter has not accepted as any other: DONE_LENGTH or DONE_CONTEXT, no error */
    REQ_MAY_BE_INCOMPLETE = 16
};
/* Restricts the tokens of an answer, for example to a grammar. The functions run on the engine thread, for one token
 * after the other, also for verified drafts. The filter must outlive the turn. */
/* incomplete; complete, more may follow; complete, nothing may follow */
enum filter_state { FILTER_OPEN, FILTER_COMPLETE, FILTER_FINAL };
struct token_filter {
    void *ctx;
    /* Sets *allowed [(vocab of the tokenizer + 63) / 64] to the tokens that may follow, bit i % 64 of word i / 64;
     * NULL: all. Tokens past *n_ids are never allowed. left > 0: only tokens after which left - 1 more can complete the
     * answer. Valid until the next call. Stop ids are left to the engine. */
    int (*allowed)(void *ctx, int left, const uint64_t **allowed, int *n_ids, struct error *e);
    /* whether `left` more tokens can complete the answer after this one */
    bool (*fits)(void *ctx, int32_t id, int left);
    /* the least `left` > 0 for which allowed() leaves a token; INT_MAX: none */
    int (*least)(void *ctx);
    int (*accept)(void *ctx, int32_t id, struct error *e);
    enum filter_state (*state)(const void *ctx);
    /* Proposes up to `most` tokens that must come next, as a draft; returns their number. They are verified as every
     * draft. */
    int (*forced)(void *ctx, int most, int32_t *out);
    bool is_whole; /* an answer that is complete at its limit was not cut: DONE_STOP */
};

struct request_image { /* an image whose ids are at tokens[at] */
    struct engine_image *image;
    int at;
};
struct request {
    /* [n_images] in order of `at`; each negative token belongs to one. Copied; the images stay the caller's */
    const struct request_image *images;
    int n_images;
    const int32_t *tokens; /* the whole conversation; copied. Tokens in the KV cache are reused */
    int n;
    int n_shared;    /* length of the prefix that other requests probably share (a system prompt); 0: unknown */
    int max_tokens;  /* answer tokens; 0: none (logits only); < 0: until the context is full */
    uint64_t client; /* clients take turns in the prefill queue (base/fair_queue.h) */
    int flags;
    struct sampling sampling;
    bool wants_logprobs;     /* EVENT_TOKEN reports them */
    int n_top_logprobs;      /* at most MAX_TOP_LOGPROBS */
    const int32_t *stop_ids; /* in addition to the model's; copied */
    int n_stop_ids;
    /* NULL: none. An answer that ends incomplete is an EVENT_ERROR, see REQ_MAY_BE_INCOMPLETE */
    const struct token_filter *filter;
    /* Called for each prompt position in order with its logits [vocab]; non-zero cancels. May be NULL. Forces a prefill
     * of the whole prompt. */
    int (*logits)(void *ctx, int position, const float *logits);
    void *logits_ctx;
};
/* Queues one turn and returns at once. ERR_CONTEXT if it does not fit, with both counts; ERR_RUNTIME if the session is
 * busy. */
int session_submit(struct session *s, const struct request *r, struct error *e);
/* Emits a known answer of n <= 1,024 tokens as the events of a turn with a prompt of n_prompt tokens. Computes nothing
 * and leaves the KV cache as it is. ERR_RUNTIME if the session is busy. */
int session_submit_answer(struct session *s, int n_prompt, const int32_t *tokens, int n, int max_tokens,
                          struct error *e);
/* Stops the running or queued turn, usually well within 200 ms; EVENT_DONE with DONE_CANCELLED follows. Whole batches
 * of the prompt that were prefilled stay cached. Async-signal-safe; callable from any thread. */
void session_cancel(struct session *s);
/* from submit until the turn's last event is polled */
bool session_busy(const struct session *s);
int session_tokens(const struct session *s, const int32_t **tokens); /* tokens in the KV cache; only while not busy */
/* Number of leading tokens whose KV memory may be shared with other sessions; engine_shared_bytes() counts shared
 * memory once. A snapshot; callable from any thread. */
int session_shared_tokens(const struct session *s);
uint64_t engine_shared_bytes(const struct engine *eng);
/* Returns the number of disk cache keys of the prompt submitted last, whether or not they are written yet. Valid until
 * the next submit. */
size_t session_disk_keys(const struct session *s, const uint64_t **keys);
/* Deletes these keys from the disk cache kv_dir. Engines of all processes stop writing KV that they computed before
 * this call under these keys. ERR_RUNTIME: some files may remain. Needs no engine; callable from any thread. */
int engine_forget(const char *kv_dir, const uint64_t *keys, size_t n, struct error *e);

enum event_kind { EVENT_NONE, EVENT_PROGRESS, EVENT_TOKEN, EVENT_DONE, EVENT_ERROR };
enum done_reason { DONE_STOP, DONE_LENGTH, DONE_CONTEXT, DONE_CANCELLED };
/* routed experts in the decode batches of a turn, counted for all turns in them */
struct expert_stats {
    /* hits: on a device when chosen; uploaded: to a device; wasted: evicted unused */
    uint64_t chosen, hits, uploaded, wasted, upload_bytes;
    uint64_t predicted_uploads, predicted_wasted; /* uploads that router predictions caused */
    /* experts predicted for the layer 1, 2, 3 ahead, and how many of them were chosen */
    uint64_t predicted[3], predicted_chosen[3];
    double cpu_s, device_s; /* time that CPU and devices spent on their experts */
    double placement_s;     /* time to split the experts and to choose uploads */
    uint64_t n_placements;  /* number of layers decided */
    uint64_t pinned;        /* identifies the experts pinned to devices; 0: none are */
};
struct turn_stats {
    int prompt_tokens, cached_tokens, answer_tokens;
    double image_s, queue_s, ttft_s, prefill_s, decode_s; /* ttft: submit to first token; decode: first to last; image:
                                                             the tower */
    /* weight bytes that operations read; a decode batch's bytes are divided among its sessions */
    uint64_t bytes_read;
    /* "lookup", "mtp", "mtp and lookup", "int4", "model"; NULL: none, or not made yet */
    const char *draft;
    /* drafted tokens that were verified, accepted ones, and most in one batch */
    int drafted, accepted, max_drafted;
    double draft_saved_s;                   /* decode time saved by drafts, estimated; < 0: lost */
    struct expert_stats experts;            /* chosen 0: no decode batch ran on devices with experts */
    const char *prefill_mode, *decode_mode; /* names of modes; a paged batch also prefills by "paged" */
    /* --explain: reasons for the modes, one line each, and expected times; 0: none */
    char prefill_why[520], decode_why[960];
    double prefill_expected_s, batch_expected_s, batch_s; /* figures of the turn's last decode batch */
};
struct event {
    enum event_kind kind;
    struct session *session;
    int32_t token;                  /* EVENT_TOKEN */
    struct token_logprobs logprobs; /* EVENT_TOKEN, if the request wants them */
    int done, total;                /* EVENT_PROGRESS: prompt tokens read, of those that were not cached */
    bool in_images;          /* EVENT_PROGRESS: the vision tower is at work before; done and total are its steps */
    double left_s;           /* EVENT_PROGRESS: remaining seconds; < 0: unknown */
    enum done_reason reason; /* EVENT_DONE */
    struct error error;      /* EVENT_ERROR: why the turn ended; the session stays usable */
    struct turn_stats stats; /* EVENT_DONE, EVENT_ERROR */
};
/* Takes the next event of any session in order of arrival. Waits up to timeout_ms (-1: for ever, 0: not at all).
 * Returns whether there was an event. No event is lost: a session with 1,024 unread tokens pauses until one is read.
 * Only an unread EVENT_PROGRESS is replaced by a newer one. */
bool engine_poll(struct engine *eng, struct event *out, int timeout_ms);
/* readable while events wait, and until engine_poll() finds none; for poll() */
int engine_event_fd(const struct engine *eng);
