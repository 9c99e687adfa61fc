#pragma once
/* Predicts the time of an operation on a described device. Drives virtual time and the engine's own estimates.
 * Pure: no I/O, no state. */
#include <stddef.h>

#include "gpu/op.h"
#include "gpu/spec.h"

struct op_cost_rates {                           /* achieved rates, not peak; 0: takes no time */
    double flops;                                /* FLOP/s of linear operations and expert FFNs */
    double attn;                                 /* FLOP/s of attention */
    double bw;                                   /* bytes/s of device memory */
    double launch, launch_by_kind[GPU_OP_KINDS]; /* seconds of overhead per operation; per kind, 0: launch */
    struct gpu_curve bw_rows, flops_rows;        /* if it has points, replaces bw and flops in matrix products */
    /* replaces flops_rows for OP_EXPERTS of at most BATCH_INVARIANT_ROWS tokens */
    struct gpu_curve flops_few_rows;
    /* replace both for OP_LINEAR; flops: weights of at most 8 bits, of more */
    struct gpu_curve linear_bw, linear_flops[2];
    struct gpu_curve attn_rows; /* if it has points, replaces attn, by rows */
    double attn_bw;             /* bytes/s at which attention reads keys and values; 0: bw */
    /* distinct experts selected by the rows of a call; 0: assume uniform routing */
    double n_selected;
    double disk_bw, disk_share_few_rows, disk_share; /* as in gpu_spec, like the next */
    const double *bw_share;
    /* CPU: activations that exceed the caches move at bw and do not overlap with arithmetic */
    bool has_serial_activations;
};
struct op_cost_work {                    /* work of one operation */
    double flops, attn_flops;            /* linear; attention */
    double bytes;                        /* device memory traffic */
    double rows;                         /* rows per weight; 0: no weights */
    double selected_bytes, routed_bytes; /* bytes of the selected routed experts; of all routed experts */
    double activation_bytes;             /* the part of `bytes` that is activations of matrix products */
    struct {
        double flops, bytes, rows; /* the shared expert, not included above */
    } shared;
};
/* `chosen`: number of distinct routed experts, each read once; 0: the expected number for n tokens. Does not read
 * op_experts.ids. */
struct op_cost_work op_cost_work(enum op_code code, const union op_args *a, double chosen);
double op_cost_bw(const struct op_cost_rates *m, double rows);
enum op_cost_bound { OP_COST_BY_ARITHMETIC, OP_COST_BY_MEMORY, OP_COST_BY_DISK };
struct op_cost_detail {
    enum op_cost_bound by; /* the longest of arithmetic, memory and disk */
    double bytes;          /* device memory traffic */
};
/* Returns launch + max(arithmetic, memory, disk). detail: may be NULL. */
double op_cost_seconds(const struct op_cost_rates *m, enum op_code code, const union op_args *a,
                       struct op_cost_detail *detail);
/* Returns the (query, key) pairs of causal attention of n queries from position q_pos0 over n_keys keys from position
 * k_pos0: query i sees the keys up to its own position, the last `window` of them if that is positive. */
double op_cost_pairs(int n, int q_pos0, int k_pos0, int n_keys, int window);
