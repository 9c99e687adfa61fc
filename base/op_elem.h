#pragma once
/* Operations on each number of some rows. */
#include "base/op_common.h"

/* Element-wise, n rows of m numbers */
struct op_add {
    float *y;
    const float *x;
    int n, m, ldx; /* ldx: of x; 0: m */
};                 /* y += x */
struct op_sigmoid {
    float *x;
    int n, m;
}; /* x = 1 / (1 + exp(-x)) */
struct op_clip {
    float *x;
    int n, m;
    float limit;
}; /* x = min(max(x, -limit), limit); NaN stays NaN */

struct op_fill {
    float *x;
    int n, m;
    float value;
}; /* x = value */
struct op_softcap {
    float *x;
    int n, m;
    float cap;
}; /* x = cap * tanh(x / cap); NaN stays NaN */

/* y[i * ldy + h * head_ldy + d] = x[i * ldx + h * head_ldx + d], d < dim; head_ldx 0 repeats one head for all. No
 * overlap. */
struct op_copy {
    float *y;
    const float *x;
    int n, heads, dim, ldx, ldy, head_ldx, head_ldy;
};

enum gate_kind {
    GATE_SIGMOID,   /* 1 / (1 + exp(-g)) */
    GATE_SILU,      /* g / (1 + exp(-g)) */
    GATE_SOFTPLUS,  /* log(1 + exp(g)) */
    GATE_LINEAR,    /* g */
    GATE_NORMAL,    /* the normal distribution up to g, which makes y = g its exact GELU */
    GATE_SOFTPLUS2, /* the same as GATE_SOFTPLUS to base 2: log2(1 + 2^g) */
    GATE_GELU_TANH  /* GELU of g in its tanh form (struct glu) */
};
/* y *= f(g), where g has its own row and head strides. per_head: one g for all dim elements of a head. */
struct op_gate {
    float *y;       /* [n, heads, dim], rows ldy apart, heads head_ldy */
    const float *g; /* the same, with strides ldg and head_ldg, ldg 0: one row for all; per_head [n, heads, 1] */
    int n, heads, dim, ldy, ldg, head_ldy, head_ldg;
    uint8_t kind; /* enum gate_kind */
    bool per_head;
};

/* x *= by * f(p / every), p = pos + shift, rows ld apart. Scales queries by their position, as Llama 4 and Mistral 4
 * (steps), Inkling (smooth) and Beam (power) do. slope 0: f is 1, and pos and the rest are not read. */
enum scale_kind {
    SCALE_STEPS,  /* f(t) = 1 + slope * log(1 + floor(t)) */
    SCALE_SMOOTH, /* 1 + slope * log(max(t, 1)) */
    SCALE_POWER   /* (1 + t)^slope */
};
struct op_scale {
    float *x;           /* [n, m] */
    const int32_t *pos; /* [n] */
    int n, m, ld, every, shift;
    float by, slope;
    uint8_t kind; /* enum scale_kind */
    /* [m / dim] instead of slope and kind: head h is multiplied by slopes[h] * log(1 + position) + bases[h]. NULL: none
     */
    const float *slopes, *bases;
    int dim;
};

/* out[i][h] = sigmoid(root(scale * x[i][h] . y[i][h])), root(g) = sign(g) * sqrt(max(|g|, 1e-6)) */
struct op_relate {
    float *out;         /* [n, heads] */
    const float *x, *y; /* [n, heads, dim] */
    int n, heads, dim;
    float scale;
};

/* Rounds rows in place to a narrow format with a scale per `block` numbers, as models do that were trained with such
 * keys. NaN stays NaN. ROUND_E4M3: to E4M3. The scale is the least power of two that keeps the block within 448; its
 * largest number counts as 1e-4 at least ROUND_E2M1: to E2M1, within 6; at least 6 * 2^-126 ROUND_E2M1_E4M3: to E2M1.
 * The scale is the largest number / 6, rounded to E4M3; at least 6 * 2^-9 */
enum round_kind { ROUND_E4M3, ROUND_E2M1, ROUND_E2M1_E4M3 };
struct op_round {
    float *x;            /* [n, m], rows ld apart */
    int n, m, ld, block; /* block divides m */
    uint8_t kind;        /* enum round_kind */
};

#define OPS_ELEM(X) \
    X(add, ADD, SMALL, ELEM, 12, o->n, o->m, 1) \
    X(sigmoid, SIGMOID, SMALL, ELEM, 8, o->n, o->m, 1) \
    X(clip, CLIP, SMALL, ELEM, 8, o->n, o->m, 1) \
    X(fill, FILL, SMALL, ELEM, 4, o->n, o->m, 1) \
    X(softcap, SOFTCAP, SMALL, ELEM, 8, o->n, o->m, 1) \
    X(copy, COPY, SMALL, ELEM, 8, o->n, o->heads, o->dim) \
    X(gate, GATE, SMALL, ELEM, 12, o->n, o->heads, o->dim) \
    X(scale, SCALE, SMALL, ELEM, 8, o->n, o->m, 1) \
    X(relate, RELATE, KERNEL, ELEM, 8, o->n, o->heads, o->dim) \
    X(round, ROUND, KERNEL, ELEM, 8, o->n, o->m, 1)
