#include "gpu/cost.h"

static double mat_work(const struct mat *m) { return m->data ? 2.0 * m->rows * m->cols : 0; }
static double size_of(const struct mat *m) { return m->data ? (double)mat_bytes(m) : 0; }

double cost_pairs(int n, int q_pos0, int k_pos0, int n_keys, int window) {
    /* Query i sees the keys k_pos0 .. min(q_pos0 + i, k_pos0 + n_keys - 1), the last `window` of them where set. */
    double sum = 0;
    long most = window > 0 && window < n_keys ? window : n_keys, first = (long)q_pos0 - k_pos0 + 1; /* seen by query 0 */
    long lo = first < 0 ? 0 : first, skip = first < 0 ? -first : 0;                                 /* queries that see none */
    if (skip >= n) return 0;
    long rows = n - skip, rising = most - lo;
    if (rising < 0) rising = 0;
    if (rising > rows) rising = rows;
    sum = (double)rising * (double)lo + 0.5 * (double)rising * (double)(rising - 1);
    return sum + (double)(rows - rising) * (double)most;
}

struct cost_work cost_work(enum op_code code, const union op_args *u) {
    struct cost_work w = {0};
    switch (code) {
    case OP_EMBED: w.bytes = 2.0 * u->embed.n * u->embed.table.cols * 4; break;
    case OP_NORM: w.bytes = 8.0 * u->norm.rows * u->norm.dim; break;
    case OP_LINEAR: {
        const struct op_linear *a = &u->linear;
        double heads = a->batch > 1 ? a->batch : 1;
        w.flops = heads * a->n * mat_work(&a->w);
        w.bytes = heads * (size_of(&a->w) + 4.0 * a->n * ((double)a->w.rows + a->w.cols));
        break;
    }
    case OP_ROPE_TABLE: w.bytes = 8.0 * u->rope_table.n * u->rope_table.half; break;
    case OP_ROPE: w.bytes = 16.0 * u->rope.n * u->rope.heads * u->rope.half; break;
    case OP_KV_STORE: w.bytes = 6.0 * u->kv_store.n * u->kv_store.plane.heads * u->kv_store.plane.dim; break;
    case OP_KV_LOAD: w.bytes = 6.0 * u->kv_load.n * u->kv_load.plane.heads * u->kv_load.plane.dim; break;
    case OP_ATTENTION: {
        const struct op_attention *a = &u->attention;
        /* With explicit positions (stripes) the values are the device's; the caller's q_pos0 stands for their mean. */
        double pairs = a->q_pos ? (double)a->n * cost_pairs(1, a->q_pos0, a->k_pos0, a->n_keys, a->window)
                                : cost_pairs(a->n, a->q_pos0, a->k_pos0, a->n_keys, a->window);
        w.attn = pairs * a->n_heads * 2.0 * (a->k.dim + a->v_dim);
        w.bytes = 4.0 * a->n * a->n_heads * ((double)a->k.dim + a->v_dim) +
                  (double)a->n_keys * ((double)dtype_bytes(a->k.dtype, (size_t)a->k.heads * (size_t)a->k.dim) +
                                       (double)dtype_bytes(a->v.dtype, (size_t)a->v.heads * (size_t)a->v_dim));
        break;
    }
    case OP_ROUTE: w.bytes = 4.0 * u->route.n * u->route.n_experts; break;
    case OP_EXPERTS: {
        const struct op_experts *a = &u->experts;
        double row = 8.0 * a->n * a->hidden;
        if (a->ids && a->n_experts > 0) {
            const struct expert *e = &a->experts[0];
            double picks = (double)a->n * a->topk, touched = picks < a->n_experts ? picks : a->n_experts;
            w.flops += picks * (mat_work(&e->gate) + mat_work(&e->up) + mat_work(&e->down));
            w.bytes += touched * (size_of(&e->gate) + size_of(&e->up) + size_of(&e->down)) + row * a->topk;
        }
        if (a->shared) {
            w.flops += a->n * (mat_work(&a->shared->gate) + mat_work(&a->shared->up) + mat_work(&a->shared->down));
            w.bytes += size_of(&a->shared->gate) + size_of(&a->shared->up) + size_of(&a->shared->down) + row;
        }
        break;
    }
    case OP_ADD: w.bytes = 12.0 * u->add.n * u->add.m; break;
    case OP_SIGMOID: w.bytes = 8.0 * u->sigmoid.n * u->sigmoid.m; break;
    case OP_COPY: w.bytes = 8.0 * u->copy.n * u->copy.heads * u->copy.dim; break;
    case OP_SORT: w.bytes = 24.0 * u->sort.n * u->sort.topk; break;
    case OP_GATHER: w.bytes = 8.0 * u->gather.n * u->gather.dim; break;
    case OP_FFN: {
        const struct op_ffn *a = &u->ffn;
        w.flops = a->n * (mat_work(&a->expert.gate) + mat_work(&a->expert.up) + mat_work(&a->expert.down));
        w.bytes = size_of(&a->expert.gate) + size_of(&a->expert.up) + size_of(&a->expert.down) + 8.0 * a->n * a->hidden;
        break;
    }
    case OP_GROUP: { /* activations narrowed once and read twice, results written apart, then added */
        const struct op_group *a = &u->group;
        for (int k = 0; k < a->n; k++) {
            const struct expert *e = &a->expert[k];
            double n = a->begin[k + 1] - a->begin[k];
            w.flops += n * (mat_work(&e->gate) + mat_work(&e->up) + mat_work(&e->down));
            if (n > 0) w.bytes += size_of(&e->gate) + size_of(&e->up) + size_of(&e->down) + 24.0 * n * a->hidden;
        }
        break;
    }
    case OP_SCATTER_ADD: w.bytes = 12.0 * u->scatter_add.n * u->scatter_add.dim; break;
    case OP_MERGE: w.bytes = 12.0 * u->merge.n * u->merge.heads * u->merge.dim; break;
    case OP_COUNT: break;
    }
    return w;
}

double cost_seconds(const struct cost_machine *m, enum op_code code, const union op_args *a) {
    struct cost_work w = cost_work(code, a);
    double t = 0;
    if (m->flops > 0) t += w.flops / m->flops;
    if (m->attn > 0) t += w.attn / m->attn;
    double mem = m->bw > 0 ? w.bytes / m->bw : 0;
    return m->launch + (t > mem ? t : mem);
}
