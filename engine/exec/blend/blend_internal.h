#pragma once
/* A blended prefill in progress, shared by prefill_blend.c (memory, batches, attention) and blend_experts.c (a layer's
 * routed experts). Engine thread only. */
#include "engine/exec/blend/blend_device.h"
#include "engine/placement/split.h"

struct blend {
    struct decode *s;
    struct blend_device dev[GPU_MAX]; /* by rank */
    /* owner: index of the device that holds `layer`; until move_rows(), the one before it */
    int n_dev, owner;
    struct kv_state_step state_step; /* state rows of the batch in the session's cache */
    int at, n, rows, layer;          /* the batch: tokens [at, at + n) of the job, at most `rows`; its next layer */
    /* pinned host memory */
    struct work host;                        /* rows for decode_carry(), the experts' buffers, the CPU's sums */
    float *in;                               /* the experts' input for devices without the layer; NULL: host.xn */
    int32_t *cpu_ids;                        /* [rows, topk] selection for the CPU: -1 where a device computes it */
    int32_t *pos;                            /* [rows], then the tokens [rows], then places [rows, 3] */
    float *deep;                             /* [rows, hidden] that images add after a layer, or NULL */
    _Atomic int *bad;                        /* copy of the owner's work.first_bad */
    char *kv;                                /* KV rows of all layers, downloaded for the session's cache */
    struct gpu_timeline *arrived, *cpu_done; /* cpu_done: virtual time only */
    uint32_t n_arrived, n_cpu_done;
    /* blend_experts.c */
    struct cost_table table;      /* costs on the CPU */
    struct split_expert *experts; /* [n_experts] those with rows */
    int16_t *expert_ids;          /* [n_experts] ids of experts[] */
    /* [n_experts]: (token, expert) pairs of each expert; index of its next pair in its device's pair_token */
    int32_t *n_pairs, *first_pair;
    int8_t *device_of; /* [n_experts]: index of the device that computes it; -1: the CPU */
    struct split_plan plan;
    int plan_rows, plan_owner, plan_experts; /* virtual time: input of `plan`, with `experts`; plan_rows 0: none yet */
    float *logits;                           /* [HEAD_ROWS, vocab], [1, vocab] if only the last row's are reported */
    uint64_t routing_batch;                  /* the batch in the routing trace, and its lines */
    struct buf routing_lines;
};

/* Returns the owner's copies of all of the layer's routed experts; NULL: they are split over devices and CPU. */
static inline const struct expert *blend_resident_experts(const struct blend *b) {
    return b->dev[b->owner].d->layers[b->layer].experts.view;
}
/* Whether the routed experts of a layer are split over devices and CPU. */
bool blend_experts_are_split(const struct blend *b, int layer);
/* Uploads experts of a layer before its selection is known: as many as each link can carry while it is idle, during the
 * layer's attention block and, with is_beside_experts, until the experts of the layer before end; at most half a ring.
 * Returns 0 or an error's code, e.g. ERR_MODEL with *e. */
int blend_experts_upload_ahead(struct blend *b, const struct prefill_job *j, int layer, bool is_beside_experts,
                               struct error *e);
/* Add the outputs of b->layer's routed experts to the owner's residual stream: all of them on the owner, which has them
 * resident; or split anew by the selection in host memory. The second also uploads ahead for the next layer. The
 * devices' work is enqueued; the CPU's is done on return. */
int blend_experts_run_resident(struct blend *b);
int blend_experts_run_split(struct blend *b, const struct prefill_job *j, struct error *e);
