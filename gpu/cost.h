#pragma once
/* What an operation takes on a described device: the figures virtual time runs on, and the engine's own estimates.
 * Pure: numbers in, seconds out. */
#include <stddef.h>

#include "gpu/ops.h"
#include "gpu/spec.h"

struct cost_rates {                              /* rates as reached, not as advertised; 0: takes no time */
    double flops;                                /* FLOP/s of linear operations and expert feed-forwards */
    double attn;                                 /* FLOP/s of attention */
    double bw;                                   /* bytes/s of device memory */
    double launch, launch_of[GPU_KINDS];         /* seconds an operation takes by itself; by its kind, 0: as any */
    struct gpu_curve bw_rows, flops_rows;        /* with points: in place of bw and flops where weights are multiplied */
    struct gpu_curve few_flops;                  /* of OP_EXPERTS of at most OP_FEW tokens, in place of flops_rows */
    struct gpu_curve linear_bw, linear_flops[2]; /* of OP_LINEAR alone, in place of these: weights of 8 bits and less, of more */
    struct gpu_curve attn_rows;                  /* with points: in place of attn, by rows */
    double attn_bw;                              /* bytes/s of keys and values that attention reads; 0: bw */
    double chosen;                               /* experts that the rows of a call choose in all; 0: as many as even choices */
    double disk, missing, absent;                /* gpu_spec's */
    bool apart;                                  /* a processor: what activations are more than caches hold comes and goes at bw, beside no arithmetic */
};
struct cost_work {      /* what an operation asks for */
    double flops, attn; /* of the two kinds */
    double bytes;       /* moved to and from device memory */
    double rows;        /* that each weight meets; 0: there are none */
    double routed, all; /* bytes of routed experts that are chosen; of all of them */
    double rows_bytes;  /* of `bytes`, those of activations, where weights are multiplied */
    struct {
        double flops, bytes, rows; /* the shared expert beside the routed ones; not in the above */
    } shared;
};
/* Routed experts: `chosen` of them, 0: as many as n tokens are expected to choose, each read once; op_experts.ids is not looked at. */
struct cost_work cost_work(enum op_code code, const union op_args *a, double chosen);
double cost_bw(const struct cost_rates *m, double rows);
enum cost_bound { COST_BY_ARITHMETIC, COST_BY_MEMORY, COST_BY_DISK };
/* launch + the longest of arithmetic, memory and disk; *by (or NULL): which that is */
double cost_seconds(const struct cost_rates *m, enum op_code code, const union op_args *a, enum cost_bound *by);
/* Pairs (query, key) that causal attention computes for n queries from q_pos0 on over n_keys keys from k_pos0 on. */
double cost_pairs(int n, int q_pos0, int k_pos0, int n_keys, int window);
