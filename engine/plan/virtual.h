#pragma once
/* Simulates a described machine in virtual time: the engine's own decode, prefill and pipe code runs on devices and a
 * CPU that only advance clocks. Nothing is computed and no weight is read, so DeepSeek-V3 on an imaginary machine takes
 * a second. Not modeled: uneven expert use (except `chosen` and `shares`), driver load, the embedding of a prompt. A
 * virtual machine belongs to one thread; several may run in parallel. */
#include "engine/exec/decode/decode.h"
#include "engine/placement/policy.h"
#include "gpu/gpu.h"

struct virtual;
struct virtual_options {
    const struct cost_machine *cost; /* copied */
    const struct weights *w;         /* a checkpoint or a shape; only addresses are used; must outlive the simulation */
    enum dtype kv;
    const struct split_policy *split; /* NULL: the cheapest */
    /* bytes/s of host memory taken by a concurrent prefill's weight stream; lowers the CPU's read rate */
    double stream_rate;
    int max_layers; /* only the first layers; 0: all */
    /* of routed experts on devices: whole layers, or pinned ones; there is no pool in virtual time */
    struct expert_cache experts;
    struct usage_profile *usage; /* pinned before; must outlive the simulation; NULL: routing as assumed */
    enum gpu_parallel parallel;  /* how devices share layers; 0: the cost model decides */
    /* distinct experts of a layer that the rows of a call choose; 0: as with uniform routing */
    double n_chosen;
    /* [n_experts] share of each expert in the choices of a streamed prompt, sum 1; must outlive the simulation; NULL:
     * uniform */
    const float *expert_shares;
};
/* ERR_RUNTIME: more devices than hearth supports. ERR_MEMORY. */
int virtual_open(struct virtual **v, const struct virtual_options *o, struct error *e);
void virtual_close(struct virtual **v);

/* Seconds of a decode batch of `sessions` sessions with `keys` cached positions each: the mean of several batches,
 * after a warm-up that loads weights and caches. *ran: the mode that ran; may be NULL. */
int virtual_decode(struct virtual *v, enum exec_mode cut, int sessions, int keys, double *seconds, enum exec_mode *ran,
                   struct error *e);
/* Seconds until the first token of an n-token prompt can be sampled; mode PREFILL_CPU .. PREFILL_DSLP. ERR_MEMORY if
 * the prompt does not fit on a device. Excludes the LM head if only some layers are simulated; extrapolate from two
 * layer counts. */
int virtual_prefill(struct virtual *v, enum exec_mode mode, int n, double *seconds, struct error *e);
/* Simulates n prompts in paged batches with micro-batches of `micro` rows (exec/throughput/paged.h). *read: seconds to
 * prefill all; *step: seconds of a decode batch halfway through the answers. Uses fresh devices. ERR_MEMORY;
 * ERR_RUNTIME if the model cannot be paged. */
struct virtual_throughput {
    /* cards: devices that the layers are distributed over; 0: all */
    int n_prompts, micro_rows, prompt_tokens, answer_tokens, n_devices;
    /* share of the routed experts that stays on the device; < 0: as many as fit */
    double resident_share;
    int read_rows; /* prompt rows per pass over the layers; 0: SEARCH_PREFILL_ROWS */
};
struct search_rows;
void virtual_paged_rows(const struct virtual *v, struct search_rows *out); /* as paged_search_rows */
const char *virtual_why_unpaged(const struct virtual *v); /* NULL: the model can be paged; otherwise the reason */
int virtual_paged(struct virtual *v, const struct virtual_throughput *q, double *read, double *step, struct error *e);
/* Busy seconds of the last run, by resource; of several devices the busiest one. */
struct virtual_used {
    double seconds, host_bytes; /* host_bytes: moved in host memory, by uploads and by the CPU */
    struct gpu_stats cpu, gpu;
};
const struct virtual_used *virtual_used(const struct virtual *v);
const struct decode *virtual_decode_state(const struct virtual *v); /* decode state with the resident weights */
