#pragma once
/* Searches the policy with the highest throughput for many prompts: paper B's policy (N, micro-batch, placement of
 * attention and of experts, device share of weights), by trying a pruned grid. Pure; takes a few milliseconds. Only
 * what the engine runs is scored: paged batches, whose attention is on the CPU with the KV except for the start of a
 * prompt, whose keys the device has just made, and the CPU or hybrid modes as policy.h chooses them for so many
 * sessions. Paper B's other placements, with KV that crosses the link or has a share on the device, are not built.
 *
 * A layer of a paged batch takes as long as its busiest queue (paper B, equation 12, with the cost model's corners):
 * the CPU, a device, each direction of the link, host memory (shared by CPU and link), or the chain of one micro-batch,
 * which depends on itself in the next layer. Weights cross the link once per layer and batch whatever the rows; each
 * micro-batch reads them on the device. A larger resident share of weights is never slower, so only the largest that
 * fits is tried, and no more rows than memory holds. Several devices take turns with the layers
 * (exec/throughput/paged.h): each link carries its share, while the chain, which passes through all, stays as long. A
 * device starts its next layer when the layers between have started, search_stagger() micro-batches apart; with fewer
 * micro-batches per device it idles in between. Row copies of a paged batch run on the compute stream. */
#include <stdbool.h>

#include "engine/placement/policy.h"

/* A model without experts has its dense FFNs paged, each whole: its ring has one or two layers.
 *
 * Work of a device. CPU: none. Hybrid: attention and the experts that it holds. Paged: experts and the rest of a layer,
 * except attention over cached keys. */
enum search_placement { SEARCH_CPU, SEARCH_HYBRID, SEARCH_PAGED, SEARCH_PLACEMENTS };

/* Bytes of rows in paged batches (exec/throughput/paged.h). Per row and layer they are means over the layers. */
struct search_rows {
    double passed;           /* of a row, what layers pass on: a device holds them of the whole batch */
    double work;             /* of a row of a micro-batch, a device's buffers */
    double attended, result; /* of a row and layer, to the CPU for attention, and back */
    double states;           /* of a session: a state, of all layers */
    double whole_share;      /* share of layers whose attention block runs on the CPU */
    double start_rows;       /* most rows of a prompt's start for which a device attends; 0: none */
};
enum { SEARCH_START_ROWS = 128 }; /* shorter prompts attend on the CPU */
enum { SEARCH_STATES = 3 };       /* states of a session that its batches use: two in turn, and a kept one */
struct search_in {
    const struct cost_machine *cost;
    const struct cost_model *model;
    const struct search_rows *rows; /* NULL: attention over keys that the device makes, as GQA and MLA have it */
    /* for SEARCH_HYBRID, which is not tried without it: what devices hold, and the modes that can run */
    const struct policy_machine *machine;
    double prompt_tokens, answer_tokens; /* mean tokens per prompt and answer */
    int n_prompts;                       /* 0: unlimited */
    unsigned allowed_mask;               /* bit per placement; 0: all */
    int max_rows[SEARCH_PLACEMENTS];     /* rows per batch; 0: unlimited */
    /* rows per matrix operation on a device for batch-invariant results; 0: unlimited */
    int max_matrix_rows;
    /* prompt rows per micro-batch, unless decode has more; 0: SEARCH_PREFILL_MICRO_ROWS */
    int prefill_micro_rows;
    double host_bytes, device_bytes; /* usable bytes; 0: all of the machine's */
    /* bound on a batch's seconds per token of each session, if any policy meets it; 0: none */
    double max_tpot_s;
};
struct search_policy {
    int n_rows, micro_rows; /* rows per batch; paged: per micro-batch except the last */
    enum search_placement placement;
    int n_devices;       /* devices that take turns with the layers; 0: as 1 */
    double ring_layers;  /* paged: ring size for streamed experts, in layers, one of search_grid_ring(); 0: two */
    double weight_share; /* paged: resident share of the routed experts or FFNs; a multiple of 1/SEARCH_SHARES */
    int read_rows;       /* paged: prompt rows per pass over the layers; 0: SEARCH_PREFILL_ROWS */
};
enum {
    SEARCH_SESSIONS = 16,
    SEARCH_SHARES = 16,
    SEARCH_PREFILL_ROWS = 8192,
    SEARCH_PREFILL_ROWS_MOST = 32768,
    SEARCH_PREFILL_MICRO_ROWS = 512
};
/* The bottleneck. BY_CHAIN: latency, no resource is saturated. */
enum search_limit {
    SEARCH_BY_CPU,
    SEARCH_BY_CARD,
    SEARCH_BY_LINK,
    SEARCH_BY_ROWS,
    SEARCH_BY_MEMORY,
    SEARCH_BY_CHAIN,
    SEARCH_LIMITS
};
const char *search_limit_name(enum search_limit l);
/* The resource that a policy lacks, or that keeps the best one's batch from being larger. */
enum search_bound { SEARCH_NO_GAIN, SEARCH_HOST_MEMORY, SEARCH_CARD_MEMORY, SEARCH_PROMPTS, SEARCH_ROWS, SEARCH_TPOT };
const char *search_bound_name(enum search_bound b);
struct search_cost {
    bool fits;
    enum search_bound lacks; /* if it does not fit */
    /* paged: seconds per layer with experts, or per layer of a model without; BY_ROWS: device to host */
    double layer_s[SEARCH_LIMITS];
    /* seconds in which each session gets a token; to prefill the prompts of all rows */
    double decode_s, prefill_s;
    double tokens_per_s;             /* answer tokens, prefill included */
    double host_bytes, device_bytes; /* bytes used; device: on each */
    double link_rate;                /* bytes/s of host memory that links use during a decode batch */
    enum search_limit limit;         /* paged: limit on a decode batch */
};
/* Offset, in micro-batches, between a layer and the previous one: an even share per device, so that all compute, but at
 * least the number between a micro-batch's queries and its continuation. */
enum { SEARCH_MIN_STAGGER = 3 };
int search_stagger(int n_micro_batches, int n_devices);
/* Evaluates one policy: its times, or what it lacks. */
void search_cost(const struct search_in *in, const struct search_policy *p, struct search_cost *out);

struct search_out {
    bool is_found;
    bool misses_tpot; /* no policy meets max_tpot_s: this one has the least seconds per token */
    struct search_policy policy;
    struct search_cost cost;
    enum search_bound bound; /* why the batch has no more rows */
    int n_tried;
    /* tokens/s of the best policy per placement; 0: none fits or not allowed */
    double best_tokens_per_s[SEARCH_PLACEMENTS];
};
void search_run(const struct search_in *in, struct search_out *out);
/* The grid: rows per micro-batch, micro-batches per batch, ring sizes in layers; 0 past the last. */
int search_grid_micro_rows(int i);
int search_grid_micro_batches(int i);
double search_grid_ring(int i); /* paged only */
/* e.g. "paged: 1,152 prompts at once, 12 x 96, attention on the CPU, experts on the card, 25% of them stay there;
 * limited by ..." */
void search_why(const struct search_in *in, const struct search_out *out, char *why, size_t cap);
