#pragma once
/* Splits one layer's chosen experts between domains: which domain computes which experts, in which order, and which
 * weights to transfer. Runs in every layer of every decode batch. All policies share one interface, so that they can be
 * compared on the same cases. Pure and without allocation: the caller owns one struct split_plan and one cost table per
 * domain (cost_table_fill).
 *
 * Common model: a domain works through its queue in order. Missing weights cross the domain's own link, also in order,
 * one expert at a time. An expert starts when the previous one has ended and its weights have arrived. The layer ends
 * when the last domain with work ends. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/placement/cost.h"

enum { SPLIT_DOMAINS = COST_DOMAINS, SPLIT_EXPERTS = 4096 };

struct split_domain {
    enum cost_class class;
    const struct cost_table *expert_cost; /* seconds of a resident expert by rows */
    double scale;                         /* factor on the table; 0: 1 */
    double busy_s, link_busy_s;           /* seconds until the domain and its link are free */
    /* fixed cost of using the domain at all: launch, hand-off, returning the sum */
    double start_s;
    double transfer_s; /* seconds to transfer one expert; 0: no transfers */
    int max_transfers; /* most transfers: free and evictable slots */
};
struct split_expert {
    int32_t rows;      /* > 0 */
    uint32_t resident; /* bit d: domain d needs no transfer. At least one bit: host memory has every expert */
    bool no_transfer;  /* must not be transferred */
    float min_cpu_s;   /* least seconds on a CPU domain, if its weights are in slow storage */
};
struct split_in {
    const struct split_domain *domain;
    const struct split_expert *expert; /* [n], n <= SPLIT_EXPERTS */
    int n_domains, n;
    /* Seconds after the last domain's end to add domain 0's sum to the others'. Does not change how work is divided,
     * only whether domain 0 gets any; policy "auto" considers it. */
    double join_s;
};

struct split_plan {
    const char *policy;                 /* the policy; with auto the one chosen */
    double end_s;                       /* predicted seconds; 0: no experts */
    double domain_end_s[SPLIT_DOMAINS]; /* 0: no work */
    uint8_t domain[SPLIT_EXPERTS];      /* of expert i */
    /* experts in execution order: domain d has queue[queue_begin[d] .. queue_begin[d + 1]) */
    uint16_t queue[SPLIT_EXPERTS];
    /* those to transfer, in order: transfer[transfer_begin[d] .. transfer_begin[d + 1]) */
    uint16_t transfer[SPLIT_EXPERTS];
    uint16_t queue_begin[SPLIT_DOMAINS + 1], transfer_begin[SPLIT_DOMAINS + 1];
    struct { /* scratch of the policies */
        float cost[SPLIT_DOMAINS][SPLIT_EXPERTS];
        float tail[SPLIT_EXPERTS + 1];
        uint16_t by_rows[SPLIT_EXPERTS], swap[SPLIT_EXPERTS]; /* experts by descending rows, ties by index */
        uint8_t best[SPLIT_EXPERTS], kept[SPLIT_EXPERTS], at[SPLIT_EXPERTS];
        uint32_t gpus; /* bit d: domain d is a device */
    } work;
};

struct split_policy {
    const char *name;    /* as in --split */
    const char *summary; /* one line */
    void (*run)(const struct split_in *in, struct split_plan *p);
};
extern const struct split_policy split_policies[];       /* ends with a NULL name; the first is the default, "auto" */
const struct split_policy *split_find(const char *name); /* NULL: unknown name */
/* Not in the table, but parts of other policies. split_host: each expert where it is resident. split_stream: all on
 * devices. */
extern const struct split_policy split_host, split_stream;

/* Deterministic: ties go to the lower index. A policy never assigns an expert to a domain that cannot compute it. */
void split_run(const struct split_policy *policy, const struct split_in *in, struct split_plan *p);
