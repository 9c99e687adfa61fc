#pragma once
/* Which domain computes which of a layer's chosen experts, in which order, and what has to be moved for it. One question, asked
 * in every layer of every step; policies answer it, all behind one interface, so that they can be compared on the same cases.
 * Pure and without allocation: the caller keeps one struct split_plan and one table of costs a domain (cost_table_fill).
 *
 * The model that all share: a domain works through its queue in order; a missing weight comes over the domain's own link, also in
 * order, one expert at a time; an expert begins when the one before it has ended and its weights are there. The end of the layer is
 * when the last domain that got something has ended. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/sched/cost.h"

enum { SPLIT_DOMAINS = COST_DOMAINS, SPLIT_EXPERTS = 4096, SPLIT_EXACT = 14 };

struct split_domain {
    enum cost_class class;
    const struct cost_table *expert; /* seconds of an expert by rows, where its weights are there */
    double scale;                    /* times this; 0: 1 */
    double busy, link_busy;          /* seconds from now until the domain, its link are free */
    double first;                    /* seconds that it costs to give the domain anything at all: launch, hand-off, the sum back */
    double move;                     /* seconds that one expert's weights take over the link; 0: none can come */
    int room;                        /* experts that may come: free slots and those that may be evicted */
};
struct split_expert {
    int32_t rows;      /* > 0 */
    uint32_t resident; /* bit d: domain d can compute it without a transfer. At least one bit: host memory has every expert */
    bool still;        /* its weights go over no link */
    float slow;        /* seconds that a processor takes for it at least: it lies where reading takes so long */
};
struct split_in {
    const struct split_domain *domain;
    const struct split_expert *expert; /* [n], n <= SPLIT_EXPERTS */
    int n_domains, n;
    /* Seconds from the last domain's end on when domain 0 has a part: its sum is then brought to where the others' are. Who does how much of
     * the work does not hang on it, only whether domain 0 does any: the policy "auto" asks. */
    double join;
};

struct split_plan {
    const char *policy;            /* who made it: under auto the one that was best */
    double end;                    /* expected; 0 where nothing was asked */
    double end_of[SPLIT_DOMAINS];  /* 0 where a domain got nothing */
    uint8_t domain[SPLIT_EXPERTS]; /* of expert i */
    uint16_t queue[SPLIT_EXPERTS]; /* experts in order of work: domain d has queue[begin[d] .. begin[d + 1]) */
    uint16_t move[SPLIT_EXPERTS];  /* those of them that must come, in order of transfer: move[moves[d] .. moves[d + 1]) */
    uint16_t begin[SPLIT_DOMAINS + 1], moves[SPLIT_DOMAINS + 1];
    bool proved; /* exact: no better one exists */
    struct {     /* the policies' own */
        float cost[SPLIT_DOMAINS][SPLIT_EXPERTS];
        float tail[SPLIT_EXPERTS + 1];
        uint16_t heavy[SPLIT_EXPERTS], swap[SPLIT_EXPERTS]; /* experts by falling rows, ties by index */
        uint8_t best[SPLIT_EXPERTS], kept[SPLIT_EXPERTS], at[SPLIT_EXPERTS];
        uint32_t gpus; /* bit d: domain d is a device */
    } work;
};

struct split_policy {
    const char *name; /* as --split */
    const char *what; /* one line */
    void (*run)(const struct split_in *in, struct split_plan *p);
};
extern const struct split_policy split_policies[];       /* ends with a NULL name; the first is the default, "auto" */
const struct split_policy *split_find(const char *name); /* NULL: none of that name */

/* Same question, same answer: ties go to the lower index. A policy never places an expert where it cannot be computed. */
void split_run(const struct split_policy *policy, const struct split_in *in, struct split_plan *p);
