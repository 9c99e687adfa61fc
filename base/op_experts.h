#pragma once
/* Routers and experts. */
#include "base/op_common.h"

/* Router. score = softmax, sigmoid or sqrt(softplus) (float32) of logits [n, n_experts]; choice = score + bias, with
 * SCORE_SIGMOID_BY_LOGIT (Kolibri) logit + bias. With n_group > 1 only experts of the topk_group
 * best groups may be chosen (others -inf, or 0 with group_zero, which may then be chosen); a group's score is the sum
 * of its two best choices (group_top2, V3) or its best (V2). ids [n, topk] in descending order of choice, ties to the
 * lower index, never -1; weights = scores of the chosen, divided by their sum (+ 1e-20) if norm, times scale.
 * SCORE_MIXER (Phi-3.5-MoE's sparse mixer): the best logit, then the best of the others; an expert's weight is its
 * share of the softmax over the logits within 2 * jitter (relative) of it, without those chosen before. With `table`
 * nothing is chosen: ids are table[tokens[i]], in its order, and scores weight them (DeepSeek-V4's hash layers). With
 * n_idle the logits are [n, n_experts + n_idle]: the last ones are of experts that return their input. A token's
 * weights of the idle experts that it chose are summed in idle, and in their place ids has the next best of the others,
 * with weight 0. With expert_scale a chosen expert's weight is also multiplied by its own factor, after the
 * normalization. With n_always the last experts are always chosen, after the topk - n_always best of the others. */
enum score_fn { SCORE_SOFTMAX, SCORE_SIGMOID, SCORE_MIXER, SCORE_SQRT_SOFTPLUS, SCORE_SIGMOID_BY_LOGIT };
struct op_route {
    int32_t *ids;
    float *weights;
    const float *logits;
    const float *bias;         /* [n_experts] or NULL */
    const int32_t *table;      /* [vocab, topk], valid experts; NULL: choose */
    const int32_t *tokens;     /* [n], with table */
    float *idle;               /* [n], with n_idle */
    const float *expert_scale; /* [n_experts] or NULL; not with n_idle */
    int n, n_experts, n_idle, n_always, topk, n_group, topk_group, vocab;
    uint8_t score; /* enum score_fn */
    bool group_top2, group_zero, norm;
    bool group_each; /* each group's topk / n_group best experts are chosen; without n_always and n_idle */
    float scale, jitter;
};

/* Activation of an FFN: g * sigmoid(alpha * g + cubic * g^3) * (u + shift), with g clamped to <= limit and u to
 * +-limit. clamp_after: the activated g is clamped instead of g. All zero: silu(g) * u. GELU in its tanh form
 * (Hendrycks and Gimpel 2016) is alpha = 2 * sqrt(2 / pi), cubic = 0.044715 * alpha, because (1 + tanh(z)) / 2 =
 * sigmoid(2 * z). is_relu: max(g, 0) * u and nothing else; without up, u is g, which gives squared ReLU (So et al.
 * 2021). gate_cap > 0 (Inkling 2, Kimi K3): cap(g, gate_cap) * sigmoid(g) * cap(u, up_cap) and nothing else, where
 * cap(v, c) = c * tanh(v / c). is_erf: g * Phi(g) * u and nothing else, GELU by the normal distribution. xielu_beta > 0
 * (Huang and Schlag 2024, without u): xielu_p * g^2 + xielu_beta * g for g > 0, xielu_n * (e^g - 1 - g) + xielu_beta *
 * g otherwise. is_ungated: u counts as 1. */
struct glu {
    float limit; /* 0: none */
    float alpha; /* 0: 1 */
    float shift, cubic;
    float gate_cap, up_cap; /* both or none */
    float xielu_p, xielu_n, xielu_beta;
    bool clamp_after, is_relu, is_erf, is_ungated;
};
struct expert { /* one FFN: down(glu(gate x, up x)) */
    /* [inter, hidden]; gate_up_transposed: stored as [hidden, inter]. up.data NULL: there is none, and gate x takes its
     * place */
    struct mat gate, up;
    struct mat down;            /* [hidden, inter]; is_transposed: stored as [inter, hidden] */
    float *gate_bias, *up_bias; /* [inter] or NULL */
    float *down_bias;           /* [hidden] or NULL */
    struct glu glu;
    bool is_transposed, gate_up_transposed; /* plain formats without scales only */
};
OP_INLINE const struct mat *expert_up(const struct expert *e) { return e->up.data ? &e->up : &e->gate; }
OP_INLINE const float *expert_up_bias(const struct expert *e) { return e->up.data ? e->up_bias : e->gate_bias; }
OP_INLINE int expert_inter(const struct expert *e) { return e->gate_up_transposed ? e->gate.cols : e->gate.rows; }
OP_INLINE int expert_hidden(const struct expert *e) { return e->gate_up_transposed ? e->gate.rows : e->gate.cols; }
/* Experts split by NUMA node: part [e * n_nodes + a] is node a's part of expert e, the shared expert follows the last:
 * some rows of gate and up, in node order, and rows [rows[a], rows[a + 1]) of down (columns if transposed). Each row is
 * computed as in the unsplit expert, so the split does not change results. */
struct expert_shards {
    const struct expert *part;
    const int32_t *rows; /* [n_nodes + 1] */
    int n_nodes;
    /* rows for a call with the shared expert alone, whose y may be wider; op_experts does not read them */
    const int32_t *shared_rows;
};
/* y += sum over the token's experts of weight * expert(x), plus the shared expert (weight 1, or shared_weight[i]). The
 * sum runs in ascending order of expert id, then the shared expert, whatever the threads and the batch. An id of -1 is
 * skipped (another executor computes that expert): the others are summed as if it were not in the list, and a token
 * without other experts gets the shared expert only, or stays unchanged. Any other id outside [0, n_experts), or a
 * chosen expert whose gate.data is NULL, is an ERR_RUNTIME. Tokens are grouped by expert. by_choice: y[i][k] +=
 * expert(x[i]) of the token's choice k, neither weighted nor summed; the rows of skipped choices stay. No shared
 * expert. */
struct op_experts {
    float *y;                           /* [n, hidden]; by_choice [n, topk, hidden] */
    const float *x;                     /* [n, hidden] */
    const int32_t *ids;                 /* [n, topk], -1: skipped */
    const float *weights;               /* [n, topk]; ids NULL: no routed experts (a dense FFN is one shared expert) */
    const struct expert *experts;       /* [n_experts] */
    const struct expert *shared;        /* NULL: none */
    const float *shared_weight;         /* [n] or NULL */
    const struct expert_shards *shards; /* NULL: not split. Otherwise it replaces experts and shared; CPU only */
    /* NULL, or [n_experts]: non-zero where the weights are still being read; those are started last */
    const uint8_t *is_loading;
    int n, topk, n_experts, hidden;
    bool wide, by_choice;    /* wide: as op_linear's */
    float computed_fraction; /* expected fraction of the choices computed by this call, for cost models; 0: all */
};

/* Values of a mixture (MoVA): y[i] = sum over k of weights[i][k] * silu(W_e x[i]), where e = ids[i][k] and W_e are rows
 * [e * dim, (e + 1) * dim) of w. The sum runs in ascending order of e. An id outside [0, n_experts) is an ERR_RUNTIME
 * on the CPU, and adds nothing on a device. */
struct op_values {
    float *y;             /* [n, dim], rows ldy apart */
    const float *x;       /* [n, w.cols], rows ldx apart */
    const int32_t *ids;   /* [n, topk], different ones of a token */
    const float *weights; /* [n, topk] */
    struct mat w;         /* [n_experts * dim, cols], without order */
    int n, topk, n_experts, dim, ldx, ldy;
    bool wide; /* as op_linear's */
};

#define OPS_EXPERTS(X) \
    X(route, ROUTE, SMALL, ELEM, 0, o->n, o->n_experts + o->n_idle, 1) \
    X(experts, EXPERTS, HOST, EXPERTS, 0, o->n, o->hidden, 1) \
    X(values, VALUES, KERNEL, LINEAR, 0, o->n, o->dim, 1)
