#pragma once
/* The policy: chooses the mode of a prefill and of a decode batch. Pure: numbers in, a decision and its reason out. It
 * follows the table in paper A, section 3.3, with the cost model instead of fixed lengths:
 *
 *     cpu     no device, or the prompt is too short for the link to help
 *     blend   medium prompts: each layer's experts are split between devices and CPU
 *     slp     long prompts, when other sessions are decoding or were within the window, or with one device
 *     dslp    long prompts, no other session decoded within the window, two or more devices
 *
 *     cpu     no device holds the attention block of a layer
 *     hybrid  attention blocks on the device, each expert where it finishes first
 *     dual    two or more sessions, when the model predicts a gain from overlapping two micro-batches
 *     paged   throughput batches: chosen by search.h, never for interactive sessions
 *
 * The window is the time that the prompt takes: an older turn is not likely to be continued within it.
 * Prefills are served in order of arrival, but one that ends sooner passes those in progress. Zero-initialized input is
 * a machine without devices and without a cost model. */
#include <stdbool.h>

#include "engine/placement/cost.h"

enum { POLICY_STREAM_TOKENS = 2048, POLICY_WINDOW_S = 300, POLICY_BATCH = 6, POLICY_DEVICES = 8 };

/* The machine and forced modes, for both decisions. */
struct policy_machine {
    const struct cost_machine *cost; /* NULL, like model: uncalibrated, use fixed lengths */
    const struct cost_model *model;
    int n_devices;
    double free[POLICY_DEVICES];        /* free bytes of each device, including evictable memory */
    double blend_stays[POLICY_DEVICES]; /* layer weights, part of `free`, that a blended prefill leaves in place */
    double held[POLICY_DEVICES];        /* weights of decode, part of `free` */
    bool decode_uses[POLICY_DEVICES];   /* decode uses this device: prefills beside decoding sessions prefer others */
    /* layers whose weights but routed experts each device keeps; with tensor parallelism 0 */
    int dense_layers[POLICY_DEVICES];
    int expert_layers[POLICY_DEVICES];  /* how many of these it keeps with all their routed experts */
    int n_device_layers;                /* layers whose attention block is on devices; 0: as many as fit */
    int n_expert_layers;                /* how many of these have all their routed experts on devices too */
    double resident_share;              /* share of the other layers' choices that devices compute */
    bool moves_experts;                 /* the experts for that are in pools, which move */
    bool sends_experts;                 /* devices compute all experts of those layers, and are sent what they lack */
    int ranks;                          /* devices that share each of these layers; 0, 1: not shared */
    bool is_lost;                       /* a device failed permanently */
    bool is_yielded;                    /* resident weights were evicted for a running prefill */
    const char *why_unsplittable;       /* why a prompt cannot be split over devices; NULL: it can */
    unsigned prefill_mask, decode_mask; /* bit m: the engine can run mode m; the CPU modes are always available */
    enum exec_mode forced_prefill;      /* --prefill */
    enum exec_mode forced_decode;       /* --decode */
    double max_tpot_s;                  /* bound on a session's mean seconds per token; 0: none */
};

struct policy_prefill_in {
    int n_new, n_cached;           /* prompt tokens not in a cache; cached ones */
    int n_decoding, n_queued;      /* sessions in decode; prefills submitted earlier that have not started */
    double keys;                   /* mean positions of the decoding sessions */
    double since_decode_s;         /* seconds since another session's last decode batch; < 0: never */
    double need_bytes[EXEC_MODES]; /* least bytes that the mode needs on each participating device; 0: unknown */
    /* least bytes of a blend on a device without layers, which gets experts of all layers */
    double helper_need_bytes;
    bool dense_resident; /* attention blocks are already on the device */
};
struct policy_prefill_out {
    enum exec_mode mode;
    int device;                 /* slp: the device */
    int ranks;                  /* blend, dslp: number of devices */
    bool must_wait;             /* earlier prefills first: ask again when they have started */
    double seconds[EXEC_MODES]; /* predicted time per mode; 0: not predicted, INFINITY: not possible */
    char why[200];
};
void policy_prefill(const struct policy_machine *m, const struct policy_prefill_in *in, struct policy_prefill_out *out);

/* Whether a prompt of n tokens may be read on the CPU before a prefill in progress ends: if it ends sooner (shortest
 * remaining time first; so it waits for at most its own time), and if all prompts that pass delay the other by at most
 * its own time. */
struct policy_pass_in {
    int n;
    double expected_s; /* on the CPU; < 0: unknown */
};
struct policy_passed { /* the prefill in progress */
    double own_s;      /* seconds that it took so far */
    double share;      /* of its work that is done */
    double expected_s; /* in all; 0: unknown */
    double lost_s;     /* seconds that others took while it waited */
    int n;             /* its tokens */
    bool is_on_cpu;
};
bool policy_may_pass(const struct policy_pass_in *in, const struct policy_passed *p);
enum { POLICY_JOINED_TOKENS = 512 }; /* most tokens of prompts that the CPU reads together: more gain nothing */
/* Whether a prompt is read together with n others on the CPU, of seconds that the others take together, that it takes
 * alone, and that all take together: if that adds clearly less than the prompt alone would take after them, and first
 * tokens come about as soon on average. A short prompt is not joined to a long one, but passes it. */
bool policy_may_join(int n, double group_s, double alone_s, double joined_s);

enum { POLICY_EXPECTED_GROWTH = 1024 }; /* positions by which a decoding session is expected to grow */
struct policy_decode_in {
    int n_decoding;        /* sessions in decode, >= 1 */
    int max_rows;          /* most rows per decode batch */
    double keys;           /* mean positions per session */
    double context_tokens; /* positions that each session may reach: what its device KV must hold */
    bool beside_prefill;   /* a concurrent prefill streams weights */
};
struct policy_decode_out {
    enum exec_mode mode;
    int batch;                       /* sessions per batch; the others take turns */
    int first_rows;                  /* dual: sessions in the first micro-batch */
    int n_device_layers;             /* hybrid, dual: layers whose attention block is on a device */
    double tpot_s;                   /* mean seconds per token of each session; 0: not predicted */
    double seconds[EXEC_MODES];      /* per batch of `batch` sessions; 0: not predicted, INFINITY: not possible */
    const char *refused[EXEC_MODES]; /* reason; NULL: possible */
};

enum { POLICY_QUESTION = 1024, POLICY_ANSWER = 512 }; /* tokens of the turn that policy_parallel() minimizes */
struct policy_parallel_out {
    bool tensor;
    double step[2], question[2]; /* seconds per decode batch, and to prefill the question; [1]: tensor parallel */
};
/* Decides how several devices that hold all layers share them: tensor parallel, or whole layers each. Tensor
 * parallelism shortens a decode batch of one session, except for two reductions per layer; but a blended prefill needs
 * whole layers. So the decision minimizes the time of a question of POLICY_QUESTION tokens plus an answer of
 * POLICY_ANSWER. n_expert_layers: layers whose experts would be resident with whole layers. */
void policy_parallel(const struct cost_machine *cost, const struct cost_model *model, int ranks, int n_expert_layers,
                     struct policy_parallel_out *out);
/* If the usual choice exceeds max_tpot_s, chooses the batch and mode with the least time per token, which may exceed it
 * too. */
void policy_decode_batch(const struct policy_machine *m, const struct policy_decode_in *in,
                         struct policy_decode_out *out);
/* Devices hold the caches of n_fit of in->n_decoding sessions. Returns how many batches in a row as many should decode
 * while the others wait; 0: all together, with the attention of the others on the CPU, gives more tokens per second. */
int policy_time_slice(const struct policy_machine *m, const struct policy_decode_in *in, int n_fit);
/* Most sessions, up to in->max_rows, that decode at once within max_tpot_s; at least 1. *tpot_s: their time per
 * token. */
int policy_max_sessions(const struct policy_machine *m, const struct policy_decode_in *in, double *tpot_s);
/* Formats the reason of a decision; separate because decode batches rarely need it. */
void policy_decode_why(const struct policy_machine *m, const struct policy_decode_in *in,
                       const struct policy_decode_out *out, char *why, size_t cap);
