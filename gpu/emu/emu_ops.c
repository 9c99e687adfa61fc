/* The operations of the emulated device: those of base/ops.h on CPU kernels, the others in plain C, which is also the
 * reference for the CUDA kernels. */
#include <string.h>

#include "base/argmax.h"
#include "base/mem.h"
#include "base/minifloat.h"
#include "gpu/emu/emu.h"

static void sort_tokens(const struct op_sort *a) {
    int kept = a->last - a->first;
    memset(a->offset, 0, ((size_t)kept + 1) * 4);
    for (size_t i = 0; i < (size_t)a->n * (size_t)a->topk; i++) {
        int e = a->ids[i] - a->first;
        if (e >= 0 && e < kept) a->offset[e]++;
    }
    int32_t at = 0;
    for (int e = 0; e <= kept; e++) { /* counts to offsets */
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
    for (int e = kept; e > 0; e--) a->offset[e] = a->offset[e - 1]; /* each is now its group's end: shift back */
    a->offset[0] = 0;
}

static int run_ffn(struct exec *cpu, const struct op_ffn *a) {
    memset(a->y, 0, (size_t)a->n * (size_t)a->hidden * 4);
    return cpu->ops->experts(
        cpu, &(struct op_experts){
                 .y = a->y, .x = a->x, .shared = &a->expert, .n = a->n, .hidden = a->hidden, .wide = a->wide});
}

static void top(const struct op_top *o) {
    for (int i = 0; i < o->n; i++) {
        bool has_nan;
        const int32_t best = argmax(o->x + (size_t)i * (size_t)o->ldx, o->m, &has_nan);
        o->top[i] = has_nan ? -1 : best;
    }
}
static void remap(const struct op_remap *o) {
    for (int i = 0; i < o->n; i++) o->out[i] = o->ids[i] >= 0 && o->ids[i] < o->n_map ? o->map[o->ids[i]] : -1;
}
static void gather(float *out, const float *x, const int32_t *index, int n, int dim, int ldx) {
    for (int i = 0; i < n; i++)
        memcpy(out + (size_t)i * (size_t)dim, x + (size_t)index[i] * (size_t)ldx, (size_t)dim * 4);
}
static void scatter_add(const struct op_scatter_add *a) {
    for (int i = 0; i < a->n; i++) {
        float *y = a->y + (size_t)(a->index ? a->index[i] : i) * (size_t)a->ldy, w = a->weight ? a->weight[i] : 1;
        const float *x = a->x + (size_t)i * (size_t)a->dim;
        for (int d = 0; d < a->dim; d++) y[d] += w * x[d];
    }
}

static int norm_outputs(struct exec *cpu, float *y, const struct op_group *a, int n) {
    const int dim = a->hidden;
    if (!a->norm) return 0;
    for (int i = 0; i < n; i++)
        for (int d = 0; d < dim; d++) y[(size_t)i * (size_t)dim + (size_t)d] *= a->norm[d];
    return cpu->ops->norm(
        cpu, &(struct op_norm){
                 .out = y, .x = y, .rows = n, .dim = dim, .ldx = dim, .ldo = dim, .eps = a->eps, .w_dtype = DT_F32});
}
static int run_group(struct exec *cpu, const struct op_group *a) {
    int most = 0, rc = 0;
    for (int k = 0; k < a->n; k++) most = a->begin[k + 1] - a->begin[k] > most ? a->begin[k + 1] - a->begin[k] : most;
    size_t rows = (size_t)most * (size_t)a->hidden;
    if (!most) return 0;
    float *x = mem_alloc(2 * rows * 4);
    if (!x) return ERR_MEMORY;
    float *y = x + rows;
    for (int k = 0; k < a->n && !rc; k++) {
        int at = a->begin[k], n = a->begin[k + 1] - at;
        if (n < 1) continue;
        gather(x, a->x, a->token + at, n, a->hidden, a->hidden);
        rc = run_ffn(cpu, &(struct op_ffn){
                              .y = y, .x = x, .expert = a->expert[k], .n = n, .hidden = a->hidden, .wide = a->wide});
        if (!rc) rc = norm_outputs(cpu, y, a, n);
        scatter_add(&(struct op_scatter_add){.y = a->y,
                                             .x = y,
                                             .index = a->token + at,
                                             .weight = a->weight + at,
                                             .n = n,
                                             .dim = a->hidden,
                                             .ldy = a->hidden});
    }
    mem_free(x);
    return rc;
}

/* Computed in float32, then rounded. */
static int run_expand(struct exec *cpu, const struct op_expand *a) {
    int latent = a->latent.dim, lora = a->w.cols, rope = latent - lora, rows = a->nope + a->v_dim,
        k_dim = a->nope + rope, rc;
    float *x = mem_alloc((size_t)a->n * (size_t)(latent + rows) * 4);
    if (!x) return ERR_MEMORY;
    float *y = x + (size_t)a->n * (size_t)latent;
    rc = cpu->ops->kv_load(
        cpu, &(struct op_kv_load){.plane = a->latent, .out = x, .row0 = a->row0, .n = a->n, .ldo = latent});
    for (int h = 0; h < a->heads && !rc; h++) {
        rc = cpu->ops->linear(cpu, &(struct op_linear){.y = y,
                                                       .x = x,
                                                       .w = mat_rows(a->w, h * rows, (h + 1) * rows),
                                                       .n = a->n,
                                                       .ldx = latent,
                                                       .ldy = rows,
                                                       .wide = true});
        for (int i = 0; i < a->n; i++) {
            const float *made = y + (size_t)i * (size_t)rows, *shared = x + (size_t)i * (size_t)latent + lora;
            size_t at = (size_t)i * (size_t)a->heads + (size_t)h;
            uint16_t *k = (uint16_t *)a->k + at * (size_t)k_dim, *v = (uint16_t *)a->v + at * (size_t)a->v_dim;
            for (int d = 0; d < a->nope; d++) k[d] = f32_to_bf16(made[d]);
            for (int d = 0; d < rope; d++) k[a->nope + d] = f32_to_bf16(shared[d]);
            for (int d = 0; d < a->v_dim; d++) v[d] = f32_to_bf16(made[a->nope + d]);
        }
    }
    mem_free(x);
    return rc;
}

/* Runs an operation that all executors have. */
static int cpu_run(struct exec *cpu, enum op_code code, const union op_args *u) {
    switch (code) {
#define X(name, CODE, ...) \
    case OP_##CODE: return cpu->ops->name(cpu, &u->name);
        OPS(X)
#undef X
    default: return ERR_RUNTIME;
    }
}

int emu_compute(struct exec *cpu, enum op_code code, const union op_args *u) {
    switch (code) {
    case OP_EXPAND: return run_expand(cpu, &u->expand);
    case OP_SORT: sort_tokens(&u->sort); return 0;
    case OP_FFN: return run_ffn(cpu, &u->ffn);
    case OP_GATHER:
        gather(u->gather.out, u->gather.x, u->gather.index, u->gather.n, u->gather.dim, u->gather.ldx);
        return 0;
    case OP_REMAP: remap(&u->remap); return 0;
    case OP_TOP: top(&u->top); return 0;
    case OP_SCATTER_ADD: scatter_add(&u->scatter_add); return 0;
    case OP_GROUP: return run_group(cpu, &u->group);
    case OP_TRANSFER: memcpy(u->transfer.dst, u->transfer.src, u->transfer.size); return 0;
    case OP_JOIN: /* run part by part */
    case OP_CHAIN:
    case OP_EPILOGUE: return ERR_RUNTIME;
    default: return cpu_run(cpu, code, u);
    }
}
