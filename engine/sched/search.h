#pragma once
/* Searches the policy with the highest throughput for many prompts: paper B's policy (N, micro-batch, placement of attention and of experts, device shares
 * of weights and of KV), by trying a pruned grid. Pure; takes a few milliseconds.
 *
 * A layer takes as long as its busiest queue (paper B, equation 12, with the cost model's corners): the CPU, a device, each
 * direction of the link, host memory (shared by CPU and link), or the chain of one micro-batch, which depends on itself in the
 * next layer. Weights cross the link once per layer and batch whatever the rows; each micro-batch reads them on the device. A larger resident share
 * of weights is never slower, so only the largest that fits is tried, and no more rows than memory holds. Several devices take turns with
 * the layers (step/paged.h): each link carries its share, while the chain, which passes through all, stays as long. A device starts its next
 * layer when the layers between have started, search_stagger() micro-batches apart; with fewer micro-batches per device it idles
 * in between. Row copies of a paged batch run on the compute stream. */
#include <stdbool.h>

#include "engine/sched/cost.h"

/* Bits of a placement: attention on a device or where the KV is; experts on a device or where the weights are. */
enum search_place { SEARCH_PROCESSOR, SEARCH_HYBRID, SEARCH_PAGED, SEARCH_DEVICE, SEARCH_PLACES }; /* neither; attention; experts; both */
const char *search_place_name(enum search_place p);                                                /* "cpu", "hybrid", "paged", "device" */

struct search_in {
    const struct cost_machine *cost;
    const struct cost_model *model;
    double prompt, answer;   /* mean tokens per prompt and answer */
    int prompts;             /* 0: unlimited */
    unsigned can;            /* bit per placement; 0: all */
    int most[SEARCH_PLACES]; /* rows per batch; 0: unlimited */
    bool kv_moves;           /* KV may cross the link; otherwise attention on a device needs all KV there */
    int few;                 /* rows per matrix operation on a device for batch-invariant results; 0: unlimited */
    int read_rows;           /* prompt rows per pass over the layers; 0: SEARCH_READ */
    int read_micro;          /* prompt rows per micro-batch, unless decode has more; 0: SEARCH_READ_MICRO */
    double host, device;     /* usable bytes; 0: all of the machine's */
};
struct search_policy {
    int n, micro; /* rows per batch, and per micro-batch except the last */
    enum search_place place;
    int cards;          /* devices that take turns with the layers; 0: as 1 */
    double ring;        /* paged: ring size for streamed experts, in layers, one of search_ring(); 0: two */
    double weights, kv; /* resident shares of the routed experts and of KV on the device; multiples of 1/SEARCH_SHARES */
};
enum { SEARCH_SHARES = 16, SEARCH_READ = 8192, SEARCH_READ_MICRO = 512 };
/* The bottleneck. BY_CHAIN: latency, no resource is saturated. */
enum search_limit { SEARCH_BY_PROCESSOR, SEARCH_BY_CARD, SEARCH_BY_LINK, SEARCH_BY_ROWS, SEARCH_BY_MEMORY, SEARCH_BY_CHAIN, SEARCH_LIMITS };
const char *search_limit_name(enum search_limit l);
/* Why the batch is not larger. */
enum search_bound { SEARCH_NO_GAIN, SEARCH_HOST_MEMORY, SEARCH_CARD_MEMORY, SEARCH_PROMPTS, SEARCH_ROWS };
const char *search_bound_name(enum search_bound b);
struct search_cost {
    bool fits;
    enum search_bound lacks;     /* if it does not fit */
    double layer[SEARCH_LIMITS]; /* seconds per MoE layer; BY_ROWS: device to host */
    double step, read;           /* seconds per decode batch; to prefill all n prompts */
    double tokens_per_s;         /* answer tokens, prefill included */
    double host, device;         /* bytes used; device: on each */
    double links;                /* bytes/s of host memory that links use during a decode batch */
    enum search_limit limit;     /* limit on a decode batch */
};
/* Offset, in micro-batches, between a layer and the previous one: an even share per device, so that all compute, but at least the number
 * between a micro-batch's queries and its continuation. */
enum { SEARCH_BEHIND = 3 };
int search_behind(int n, int cards);
/* Evaluates one policy: its times, or what it lacks. */
void search_cost(const struct search_in *in, const struct search_policy *p, struct search_cost *out);

struct search_out {
    bool found;
    struct search_policy policy;
    struct search_cost cost;
    enum search_bound bound; /* limit on n */
    int tried;
    double best[SEARCH_PLACES]; /* tokens/s of the best policy per placement; 0: none fits or not allowed */
};
void search_run(const struct search_in *in, struct search_out *out);
int search_cards(const struct search_in *in, enum search_place place); /* most devices to try */
/* The grid: rows per micro-batch, micro-batches per batch, ring sizes in layers; 0 past the last. */
int search_micro(int i);
int search_count(int i);
double search_ring(int i); /* paged only */
/* e.g. "paged: 1,152 prompts at once, 12 x 96, attention on the CPU, experts on the card, 25% of them stay there; limited by ..." */
void search_why(const struct search_in *in, const struct search_out *out, char *why, size_t cap);
