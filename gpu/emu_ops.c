/* The operations of the emulated device: those of base/ops.h on the CPU's kernels, the rest here in plain C, which also is
 * the reference that CUDA's are held against. */
#include <string.h>

#include "gpu/emu.h"

static void sort_tokens(const struct op_sort *a) {
    int kept = a->last - a->first;
    memset(a->offset, 0, ((size_t)kept + 1) * 4);
    for (size_t i = 0; i < (size_t)a->n * (size_t)a->topk; i++) {
        int e = a->ids[i] - a->first;
        if (e >= 0 && e < kept) a->offset[e]++;
    }
    int32_t at = 0;
    for (int e = 0; e <= kept; e++) { /* counts to beginnings */
        int32_t n = a->offset[e];
        a->offset[e] = at;
        at += n;
    }
    for (int t = 0; t < a->n; t++)
        for (int j = 0; j < a->topk; j++) {
            size_t i = (size_t)t * (size_t)a->topk + (size_t)j;
            int e = a->ids[i] - a->first;
            if (e < 0 || e >= kept) continue;
            a->token[a->offset[e]] = t;
            a->weight[a->offset[e]++] = a->weights[i];
        }
    for (int e = kept; e > 0; e--) a->offset[e] = a->offset[e - 1]; /* each now points at its end: shift back */
    a->offset[0] = 0;
}

static int ffn(struct exec *cpu, const struct op_ffn *a) {
    memset(a->y, 0, (size_t)a->n * (size_t)a->hidden * 4);
    return cpu->ops->experts(cpu, &(struct op_experts){.y = a->y, .x = a->x, .shared = &a->expert, .n = a->n, .hidden = a->hidden});
}

int emu_compute(struct exec *cpu, enum op_code code, const union op_args *u) {
    const struct ops *ops = cpu->ops;
    switch (code) {
    case OP_EMBED: return ops->embed(cpu, &u->embed);
    case OP_NORM: return ops->norm(cpu, &u->norm);
    case OP_LINEAR: return ops->linear(cpu, &u->linear);
    case OP_ROPE_TABLE: return ops->rope_table(cpu, &u->rope_table);
    case OP_ROPE: return ops->rope(cpu, &u->rope);
    case OP_KV_STORE: return ops->kv_store(cpu, &u->kv_store);
    case OP_KV_LOAD: return ops->kv_load(cpu, &u->kv_load);
    case OP_ATTENTION: return ops->attention(cpu, &u->attention);
    case OP_ROUTE: return ops->route(cpu, &u->route);
    case OP_EXPERTS: return ops->experts(cpu, &u->experts);
    case OP_ADD: return ops->add(cpu, &u->add);
    case OP_SIGMOID: return ops->sigmoid(cpu, &u->sigmoid);
    case OP_COPY: return ops->copy(cpu, &u->copy);
    case OP_MERGE: return ops->merge(cpu, &u->merge);
    case OP_SORT: sort_tokens(&u->sort); return 0;
    case OP_FFN: return ffn(cpu, &u->ffn);
    case OP_GATHER: {
        const struct op_gather *a = &u->gather;
        for (int i = 0; i < a->n; i++)
            memcpy(a->out + (size_t)i * (size_t)a->dim, a->x + (size_t)a->index[i] * (size_t)a->ldx, (size_t)a->dim * 4);
        return 0;
    }
    case OP_SCATTER_ADD: {
        const struct op_scatter_add *a = &u->scatter_add;
        for (int i = 0; i < a->n; i++) {
            float *y = a->y + (size_t)(a->index ? a->index[i] : i) * (size_t)a->ldy, w = a->weight ? a->weight[i] : 1;
            const float *x = a->x + (size_t)i * (size_t)a->dim;
            for (int d = 0; d < a->dim; d++) y[d] += w * x[d];
        }
        return 0;
    }
    case OP_COUNT: break;
    }
    return ERR_RUNTIME;
}
