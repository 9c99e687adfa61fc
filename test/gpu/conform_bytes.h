#pragma once
/* Tells which cases of conform.c an emulated device multiplies as bytes: it computes as a CPU of its level does. */
#include "cpu/gemm.h"
#include "gpu/op.h"

/* Whether a group of a batch of n tokens takes 8-bit activations, at most half a step of 1 / 127 of the largest of 32
 * columns off. */
static bool mat_takes_bytes(enum cpu_level level, const struct mat *w, int n, bool wide) {
    for (int k = 1; w->data && k <= n; k++) {
        const struct gemm *m = gemm_for_weights(level, k, n, wide, w);
        if (m && m->is_int8) return true;
    }
    return false;
}
static bool expert_takes_bytes(enum cpu_level level, const struct expert *e, int n, bool wide) {
    const struct mat *w[] = {&e->gate, &e->up, &e->down};
    for (int i = 0; i < 3; i++)
        if (mat_takes_bytes(level, w[i], n, wide)) return true;
    return false;
}
static bool takes_bytes(enum cpu_level level, enum op_code code, const union op_args *a) {
    switch (code) {
    case OP_LINEAR: return mat_takes_bytes(level, &a->linear.w, a->linear.n, a->linear.wide);
    case OP_FFN: return expert_takes_bytes(level, &a->ffn.expert, a->ffn.n, a->ffn.wide);
    case OP_GROUP: {
        int n = 0;
        for (int e = 0; e < a->group.n; e++)
            n = a->group.begin[e + 1] - a->group.begin[e] > n ? a->group.begin[e + 1] - a->group.begin[e] : n;
        return expert_takes_bytes(level, a->group.expert, n, a->group.wide);
    }
    case OP_EXPERTS: {
        bool any = a->experts.shared && expert_takes_bytes(level, a->experts.shared, a->experts.n, a->experts.wide);
        for (int e = 0; a->experts.experts && e < a->experts.n_experts && !any; e++)
            any = expert_takes_bytes(level, a->experts.experts + e, a->experts.n, a->experts.wide);
        return any;
    }
    default: return false;
    }
}
