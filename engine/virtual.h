#pragma once
/* A described machine in virtual time: the engine's own steps, prefills and pipe, on devices and a processor that only move clocks.
 * Nothing is computed and no weight is read, so that DeepSeek-V3 on a machine that nobody has takes a second. What is not in it: groups
 * of experts that are not even (but for what is told of them), a loaded driver, the embedding of a prompt. Threads: a virtual machine is one thread's; several
 * run beside each other. */
#include "engine/sched/policy.h"
#include "engine/step/step.h"
#include "gpu/gpu.h"

struct virtual;
struct virtual_options {
    const struct cost_machine *cost; /* copied */
    const struct weights *w;         /* a checkpoint, or the shape of one: the addresses count alone; outlives it */
    enum dtype kv;
    const struct split_policy *split; /* NULL: the best */
    double taken;                     /* bytes/s of host memory that a prompt's stream to another device has: the processor reads at a share of the rest */
    int layers;                       /* the model's first ones only; 0: all */
    enum gpu_parallel parallel;       /* how devices share layers; 0: as the cost model has it */
    double chosen;                    /* experts of a layer that the rows of a call choose in all; 0: as many as even choices */
    const float *shares;              /* [n_experts] of what the rows of a streamed prompt choose, each one's part, 1 in all; outlives it; NULL: alike */
};
/* ERR_RUNTIME where there are more devices than hearth uses, ERR_MEMORY. */
int virtual_open(struct virtual **v, const struct virtual_options *o, struct error *e);
void virtual_close(struct virtual **v);

/* Seconds of a step of so many sessions, each with `keys` positions before it: the mean of some, after one that brings weights and
 * caches. *ran, or NULL: how it did run. */
int virtual_step(struct virtual *v, enum step_cut cut, int sessions, int keys, double *seconds, enum step_cut *ran, struct error *e);
/* Seconds until the first token of a prompt of n tokens can be drawn; POLICY_CPU .. POLICY_DSLP. ERR_MEMORY where it does not fit a
 * device. With some of the layers the head is left out: who wants all of them goes on from two such figures. */
int virtual_prefill(struct virtual *v, enum policy_mode mode, int n, double *seconds, struct error *e);
/* So many prompts of so many tokens at once, in paged steps with micro-batches of `micro` rows (step/paged.h): seconds until all are read, and
 * of a step when half of their answers are there. Devices of its own, with nothing else on them. ERR_MEMORY, ERR_RUNTIME for a model that
 * cannot be paged. */
struct virtual_many {
    int n, micro, prompt, answer, cards; /* cards: that have layers in turn; 0: all */
    double share;                        /* of the routed experts that stay on the device; < 0: as many as fit */
};
const char *virtual_unpaged(const struct virtual *v); /* NULL: its model can be; else why not */
int virtual_paged(struct virtual *v, const struct virtual_many *q, double *read, double *step, struct error *e);
/* Of the last of these: what was busy, in seconds; of several devices the busiest. */
struct virtual_used {
    double seconds;
    struct gpu_used cpu, gpu;
};
const struct virtual_used *virtual_used(const struct virtual *v);
const struct step *virtual_resident(const struct virtual *v); /* what lies on devices while sessions answer */
