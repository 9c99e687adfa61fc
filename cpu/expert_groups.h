#pragma once
/* The tokens of a call of op_experts, grouped by expert, and the kernels of each group. Internal to cpu/.
 *
 * A kernel is chosen by the number of tokens that an expert has. If the call has several prompts (struct op_prompts),
 * it is chosen by the number that the token's own prompt gives to the expert, and tokens with the same kernels are
 * multiplied together: each has the bits that it has with its prompt alone, and weights are read once. */
#include "cpu/cpu_exec.h"
#include "cpu/gemm.h"

enum { GATE, UP, DOWN, MATRICES };
struct group {
    const struct expert *expert;
    const int32_t *tokens; /* [n] rows of x */
    const int32_t *rows;   /* [n] rows of y */
    const float *weights;  /* [n] */
    int id, n, inter;
    const struct gemm *gemm[MATRICES]; /* NULL: the GEMV kernels */
    int tasks, rows_per_task;          /* of stage 1; tasks on all nodes */
    /* offsets into the wave's workspace: x in gate's order, if it has one; matrices may share packed x */
    size_t x, h, packed[MATRICES];
};

/* In rising order of expert, the shared one, with id n_experts, last. A group has at most 512 tokens. */
struct expert_groups {
    struct group *groups; /* [n] */
    int n;
    /* by group: tokens of the routed experts, then those of the shared one; [n * (topk + 1)] */
    int32_t *tokens, *rows; /* of x, of y */
    float *weights;
};
/* ERR_RUNTIME: an id is not an expert's, or a matrix has no kernel. After an error too, free it. */
int expert_groups_make(const struct cpu_exec *x, const struct op_experts *o, struct expert_groups *g);
void expert_groups_free(struct expert_groups *g);
