#pragma once
/* Which mode reads a prompt, and which one decodes. Pure: numbers in, a decision and its reason out. The table it follows is
 * paper A's 3.3 with the machine model in place of its fixed lengths:
 *
 *     cpu     no device, or so short a prompt that the link cannot help
 *     blend   between the two ends: each layer's experts split between devices and processor
 *     slp     long, and somebody decodes or did within the window, or one device
 *     dslp    long, nobody decoded within the window, two devices or more
 *
 *     cpu     no device that holds the attention half of a layer
 *     hybrid  attention halves on the device, experts where they are done soonest
 *     dual    two or more sessions, where the model says that overlapping two halves of them pays
 *     paged   many prompts at once: by search.h, never for a step of those who chat
 *
 * Prefills are served first come, first served. Zero-initialised input is a machine without devices and without figures. */
#include <stdbool.h>

#include "engine/sched/cost.h"

enum policy_mode { POLICY_AUTO, POLICY_CPU, POLICY_BLEND, POLICY_SLP, POLICY_DSLP, POLICY_MODES };
enum policy_decode { POLICY_DECODE_AUTO, POLICY_DECODE_CPU, POLICY_DECODE_HYBRID, POLICY_DECODE_DUAL, POLICY_DECODE_PAGED, POLICY_DECODES };
enum { POLICY_CROSSOVER = 2048, POLICY_WINDOW_S = 300, POLICY_BATCH = 6, POLICY_DEVICES = 8 };

const char *policy_name(enum policy_mode m); /* "auto", "cpu", ...: --prefill */
const char *policy_decode_name(enum policy_decode m);
enum policy_mode policy_find(const char *name); /* POLICY_MODES: none of that name */
enum policy_decode policy_decode_find(const char *name);

/* The machine and what was forced; the same for both questions. */
struct policy_machine {
    const struct cost_machine *cost; /* NULL with model: nothing is known, lengths are assumed */
    const struct cost_model *model;
    int n_devices;
    double free[POLICY_DEVICES];   /* bytes of each device that may be taken, those included that can make room */
    double stays[POLICY_DEVICES];  /* of these, what a blended prompt leaves where it is: weights of layers */
    bool holds[POLICY_DEVICES];    /* what steps read lies there: a prompt goes elsewhere if it can */
    int layers;                    /* whose attention halves lie on devices; 0: as many as fit there */
    int ranks;                     /* devices that share each of them; 0, 1: none does */
    bool lost;                     /* a device failed for good */
    bool away;                     /* what lies on the devices made room for a prompt that is being read */
    unsigned prefills, decodes;    /* bit m: the engine can run mode m; the processor's always can */
    enum policy_mode ask;          /* --prefill */
    enum policy_decode ask_decode; /* --decode */
};

struct policy_in {
    int n_new, n_cached;       /* prompt tokens that no cache holds; that one holds */
    int decoding, queued;      /* sessions that answer now; prefills submitted before this one that have not begun */
    double keys;               /* positions of those that answer, mean */
    double since_decode_s;     /* since any session last answered; < 0: never */
    double need[POLICY_MODES]; /* bytes that reading it so takes at least on each device that takes part; 0: not asked */
    double need_help;          /* the same of a blend on a device that holds no layer, which then has experts of all layers */
    bool dense_resident;       /* attention halves lie on the device already */
};
struct policy_out {
    enum policy_mode mode;
    int device;                   /* slp: on which */
    int ranks;                    /* blend, dslp: how many devices take part */
    bool wait;                    /* others were first: ask again when they have begun */
    double seconds[POLICY_MODES]; /* what the model expects of each; 0: not asked, INFINITY: it cannot */
    char why[200];
};
void policy_prefill(const struct policy_machine *m, const struct policy_in *in, struct policy_out *out);

struct policy_decode_in {
    int decoding;   /* sessions that want a token, >= 1 */
    int most;       /* rows that the engine can take in a step */
    double keys;    /* positions of each, mean */
    double context; /* positions that each may come to: what its cache on the device must hold */
    bool beside;    /* a prefill streams weights meanwhile */
};
struct policy_decode_out {
    enum policy_decode mode;
    int batch;                           /* sessions in a step; the others wait for the next, in turn */
    int cut;                             /* dual: sessions of the first micro-batch */
    int layers;                          /* hybrid and dual: layers whose attention half lies on a device */
    double seconds[POLICY_DECODES];      /* a step of `batch`; 0: not asked, INFINITY: it cannot */
    const char *refused[POLICY_DECODES]; /* why not; NULL: it can */
};

/* Several devices hold all layers: whether each of so many has a share of every layer (tensor parallel), or layers of its own. A step of one
 * session is sooner over on all of them at once, by what two sums a layer leave of that; but a blended prompt needs layers that are
 * whole. So what counts is a question of POLICY_QUESTION tokens and its answer of POLICY_ANSWER. */
enum { POLICY_QUESTION = 1024, POLICY_ANSWER = 512 };
struct policy_parallel_out {
    bool tensor;
    double step[2], question[2]; /* seconds of a step, and of reading the question; [1]: tensor */
};
void policy_parallel(const struct cost_machine *cost, const struct cost_model *model, int ranks, struct policy_parallel_out *out);
void policy_step(const struct policy_machine *m, const struct policy_decode_in *in, struct policy_decode_out *out);
/* The reason of a decision in words, of which a step has no need. */
void policy_step_why(const struct policy_machine *m, const struct policy_decode_in *in, const struct policy_decode_out *out, char *why, size_t cap);
