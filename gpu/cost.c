#include "gpu/cost.h"

#include <math.h>

static double mat_work(const struct mat *m) { return m->data ? 2.0 * m->rows * m->cols : 0; }
static double size_of(const struct mat *m) { return m->data ? (double)mat_bytes(m) : 0; }

static void add_expert(const struct expert *x, double *flops, double *bytes) {
    *flops += mat_work(&x->gate) + mat_work(&x->up) + mat_work(&x->down);
    *bytes += size_of(&x->gate) + size_of(&x->up) + size_of(&x->down);
}
static void expert_work(const struct op_experts *a, int id, double *flops, double *bytes) { /* sums its shards */
    const struct expert_shards *s = a->shards;
    for (int node = 0; s && node < s->n_nodes; node++) add_expert(&s->part[id * s->n_nodes + node], flops, bytes);
    if (!s) add_expert(&a->experts[id], flops, bytes);
}

/* Expected number of distinct experts that n tokens select if routing is uniform. */
static double distinct(double n, int topk, int n_experts) { return n_experts * (1 - pow(1 - (double)topk / n_experts, n)); }
/* The known number if any, else the expected number. */
static double chosen_of(const struct op_experts *a, double chosen) {
    double most = a->n_experts < a->n * (double)a->topk ? a->n_experts : a->n * (double)a->topk;
    return chosen > 0 ? fmin(chosen, most) : distinct(a->n, a->topk, a->n_experts);
}

double cost_pairs(int n, int q_pos0, int k_pos0, int n_keys, int window) {
    /* Query i sees the keys k_pos0 .. min(q_pos0 + i, k_pos0 + n_keys - 1), the last `window` of them where set. */
    double sum = 0;
    long most = window > 0 && window < n_keys ? window : n_keys, first = (long)q_pos0 - k_pos0 + 1; /* keys seen by query 0 */
    long lo = first < 0 ? 0 : first, skip = first < 0 ? -first : 0;                                 /* queries that see no key */
    if (skip >= n) return 0;
    long rows = n - skip, rising = most - lo;
    if (rising < 0) rising = 0;
    if (rising > rows) rising = rows;
    sum = (double)rising * (double)lo + 0.5 * (double)rising * (double)(rising - 1);
    return sum + (double)(rows - rising) * (double)most;
}

struct cost_work cost_work(enum op_code code, const union op_args *u, double chosen) {
    struct cost_work w = {0};
    switch (code) {
    case OP_EMBED: w.bytes = 2.0 * u->embed.n * u->embed.table.cols * 4; break;
    case OP_NORM: w.bytes = 8.0 * u->norm.rows * u->norm.dim; break;
    case OP_LINEAR: {
        const struct op_linear *a = &u->linear;
        double heads = a->batch > 1 ? a->batch : 1;
        w.flops = heads * a->n * mat_work(&a->w);
        w.rows_bytes = heads * 4.0 * a->n * ((a->accumulate ? 2.0 : 1.0) * a->w.rows + a->w.cols);
        w.bytes = heads * size_of(&a->w) + w.rows_bytes;
        w.rows = a->exact && a->n > OP_FEW ? OP_FEW : a->n; /* float32 runs in batches of this size */
        break;
    }
    case OP_ROPE_TABLE: w.bytes = 8.0 * u->rope_table.n * u->rope_table.half; break;
    case OP_ROPE: w.bytes = 16.0 * u->rope.n * u->rope.heads * u->rope.half; break;
    case OP_KV_STORE: w.bytes = 6.0 * u->kv_store.n * u->kv_store.plane.heads * u->kv_store.plane.dim; break;
    case OP_KV_LOAD: w.bytes = 6.0 * u->kv_load.n * u->kv_load.plane.heads * u->kv_load.plane.dim; break;
    case OP_ATTENTION: {
        const struct op_attention *a = &u->attention;
        int window = a->chosen ? a->n_chosen : a->window; /* with selected keys a query sees n_chosen, like a window */
        /* Explicit positions (stripes) are in device memory; the caller passes their mean as q_pos0. */
        double pairs = a->k_step > 1 ? (double)a->n * op_seen_step(a->q_pos0 + a->n / 2, a->k_pos0, a->k_step, window > 0 ? window : a->n_keys)
                       : a->q_pos    ? (double)a->n * cost_pairs(1, a->q_pos0, a->k_pos0, a->n_keys, window)
                                     : cost_pairs(a->n, a->q_pos0, a->k_pos0, a->n_keys, window);
        w.attn = pairs * a->n_heads * 2.0 * (a->k.dim + a->v_dim);
        w.bytes = 4.0 * a->n * a->n_heads * ((double)a->k.dim + a->v_dim) +
                  (double)a->n_keys * ((double)dtype_bytes(a->k.dtype, (size_t)a->k.heads * (size_t)a->k.dim) +
                                       (double)dtype_bytes(a->v.dtype, (size_t)a->v.heads * (size_t)a->v_dim));
        break;
    }
    case OP_SELECT: {
        const struct op_select *a = &u->select;
        double pairs = a->k_step > 1 ? (double)a->n * op_seen_step(a->q_pos0 + a->n / 2, a->k_pos0, a->k_step, a->n_keys)
                                     : cost_pairs(a->n, a->q_pos0, a->k_pos0, a->n_keys, 0);
        w.attn = pairs * a->heads * 2.0 * a->k.dim;
        w.bytes = 4.0 * a->n * a->heads * ((double)a->k.dim + 1) + (double)a->n_keys * (double)dtype_bytes(a->k.dtype, (size_t)a->k.dim) + 4.0 * a->n * a->topk;
        break;
    }
    case OP_ROUTE: w.bytes = 4.0 * u->route.n * u->route.n_experts; break;
    case OP_EXPERTS: {
        const struct op_experts *a = &u->experts;
        double row = 8.0 * a->n * a->hidden, share = a->share > 0 ? (double)a->share : 1, flops = 0, bytes = 0;
        if (a->ids && a->n > 0 && a->n_experts > 0) {
            double picks = share * a->n * a->topk, read = share * chosen_of(a, chosen);
            int some = 0;
            while (!a->shards && some < a->n_experts - 1 && !a->experts[some].gate.data) some++; /* finds a resident one */
            expert_work(a, some, &flops, &bytes);
            w.flops = picks * flops;
            w.rows_bytes = picks * 8.0 * a->hidden;
            w.bytes = read * bytes + w.rows_bytes;
            w.rows = picks / read;
            w.routed = read * bytes, w.all = share * a->n_experts * bytes;
        }
        if (a->shared) {
            flops = bytes = 0;
            if (a->shards) expert_work(a, a->n_experts, &flops, &bytes);
            else add_expert(a->shared, &flops, &bytes);
            w.shared.flops = a->n * flops;
            w.shared.bytes = bytes + row;
            w.shared.rows = a->n;
        }
        break;
    }
    case OP_ADD: w.bytes = 12.0 * u->add.n * u->add.m; break;
    case OP_SIGMOID: w.bytes = 8.0 * u->sigmoid.n * u->sigmoid.m; break;
    case OP_CLIP: w.bytes = 8.0 * u->clip.n * u->clip.m; break;
    case OP_COPY: w.bytes = 8.0 * u->copy.n * u->copy.heads * u->copy.dim; break;
    case OP_GATE: w.bytes = 12.0 * u->gate.n * u->gate.heads * u->gate.dim; break;
    case OP_CONV: w.bytes = 8.0 * u->conv.n * u->conv.channels; break;
    case OP_DELTA: { /* the state is read and written once; per row two products with it and the update */
        const struct op_delta *a = &u->delta;
        double state = (double)a->v_heads * a->k_dim * a->v_dim;
        w.attn = 6.0 * a->n * state;
        w.bytes = 8.0 * state + 4.0 * a->n * (2.0 * a->k_heads * a->k_dim + 2.0 * a->v_heads * a->v_dim);
        break;
    }
    case OP_COMPRESS: w.bytes = 8.0 * u->compress.n * u->compress.dim * (u->compress.overlap ? 2 : 1); break;
    case OP_SPREAD: w.bytes = 4.0 * u->spread.n * u->spread.hidden * (1 + 2.0 * u->spread.n_streams); break;
    case OP_MIX: w.bytes = 4.0 * u->mix.n * u->mix.hidden * (2 + 2.0 * u->mix.n_streams); break;
    case OP_EXPAND: {
        const struct op_expand *a = &u->expand;
        double out = (double)a->heads * (a->nope + a->latent.dim - a->w.cols + a->v_dim);
        w.flops = a->n * mat_work(&a->w);
        w.bytes = size_of(&a->w) + (double)a->n * ((double)dtype_bytes(a->latent.dtype, (size_t)a->latent.dim) + 2 * out);
        w.rows = a->n;
        break;
    }
    case OP_SORT: w.bytes = 24.0 * u->sort.n * u->sort.topk; break;
    case OP_GATHER: w.bytes = 8.0 * u->gather.n * u->gather.dim; break;
    case OP_FFN: {
        const struct op_ffn *a = &u->ffn;
        add_expert(&a->expert, &w.flops, &w.bytes);
        w.flops *= a->n;
        w.bytes += 8.0 * a->n * a->hidden;
        w.rows = a->n;
        break;
    }
    case OP_GROUP: { /* activations are narrowed once and read twice, results written separately, then added; consecutive parts of one expert read it once */
        const struct op_group *a = &u->group;
        for (int k = 0; k < a->n; k++) {
            double n = a->begin[k + 1] - a->begin[k], flops = 0, bytes = 0;
            add_expert(&a->expert[k], &flops, &bytes);
            w.flops += n * flops;
            if (n > 0) w.bytes += (k && a->expert[k].gate.data == a->expert[k - 1].gate.data ? 0 : bytes) + 24.0 * n * a->hidden;
            if (n > w.rows) w.rows = n;
        }
        break;
    }
    case OP_SCATTER_ADD: w.bytes = 12.0 * u->scatter_add.n * u->scatter_add.dim; break;
    case OP_MERGE: w.bytes = 12.0 * u->merge.n * u->merge.heads * u->merge.dim; break;
    case OP_COUNT: break;
    }
    return w;
}

static double at(const struct gpu_curve *c, double rows) {
    if (rows <= (double)c->rows[0]) return (double)c->value[0];
    for (int i = 1; i < c->n; i++)
        if (rows <= (double)c->rows[i]) {
            double t = log(rows / (double)c->rows[i - 1]) / log((double)c->rows[i] / (double)c->rows[i - 1]);
            return (double)c->value[i - 1] * pow((double)c->value[i] / (double)c->value[i - 1], t);
        }
    return (double)c->value[c->n - 1];
}
double cost_bw(const struct cost_rates *m, double rows) { return m->bw_rows.n && rows > 0 ? at(&m->bw_rows, rows) : m->bw; }
static const double NEAR = 4 << 20; /* bytes of activations that fit the caches */
static double over(double work, double rate) { return rate > 0 ? work / rate : 0; }
static double rate_at(const struct gpu_curve *c, double rows, double plain) { return c->n && rows > 0 ? at(c, rows) : plain; }

static enum gpu_kind kind_of(enum op_code code) {
    switch (code) {
    case OP_EXPERTS:
    case OP_FFN:
    case OP_GROUP: return GPU_EXPERTS;
    case OP_LINEAR: return GPU_LINEAR;
    case OP_ATTENTION:
    case OP_SELECT:
    case OP_DELTA: return GPU_ATTENTION;
    default: return GPU_ELEM;
    }
}

/* Few rows tend to select cached experts, so their disk share is disk_share_few_rows; if all experts are selected it is disk_share. Interpolates. */
static double from_disk(const struct cost_rates *m, const struct cost_work *w) {
    if (!(m->disk > 0) || !(w->routed > 0)) return 0;
    double most = w->routed / w->all;
    return w->routed * (m->missing + (m->absent - m->missing) * most) / m->disk;
}

/* Group sizes in a batch vary as routers make them; each group runs at the rate of its own rows. */
static double groups(const struct cost_rates *m, const struct op_group *a) {
    double t = 0;
    for (int k = 0; k < a->n; k++) {
        double n = a->begin[k + 1] - a->begin[k], flops = 0, bytes = 0;
        add_expert(&a->expert[k], &flops, &bytes);
        t += over(n * flops, rate_at(&m->flops_rows, n, m->flops));
    }
    return t;
}

double cost_seconds(const struct cost_rates *m, enum op_code code, const union op_args *a, enum cost_bound *by) {
    const struct cost_work w = cost_work(code, a, m->chosen);
    const enum gpu_kind kind = kind_of(code);
    const struct gpu_curve *flops = &m->flops_rows, *reads = &m->bw_rows;
    if (code == OP_LINEAR && m->linear_bw.n) {
        const struct mat *mat = &a->linear.w;
        const struct gpu_curve *of_matrix = &m->linear_flops[mat->cols > 0 && dtype_bytes((enum dtype)mat->dtype, 256) > 256];
        reads = &m->linear_bw;
        if (of_matrix->n) flops = of_matrix;
    }
    if (code == OP_EXPERTS && a->experts.n <= OP_FEW && m->few_flops.n) flops = &m->few_flops;
    double queries = code == OP_ATTENTION ? a->attention.n : code == OP_SELECT ? a->select.n : 0;
    double t = (code == OP_GROUP ? groups(m, &a->group) : over(w.flops, rate_at(flops, w.rows, m->flops))) +
               over(w.shared.flops, rate_at(flops, w.shared.rows, m->flops)) + over(w.attn, rate_at(&m->attn_rows, queries, m->attn));
    double bw = queries > 0 && m->attn_bw > 0 ? m->attn_bw : rate_at(reads, w.rows, m->bw);
    double mem = over(w.bytes, bw) + over(w.shared.bytes, rate_at(reads, w.shared.rows, m->bw));
    double apart = m->apart && w.rows_bytes > NEAR ? over(w.rows_bytes, m->bw) : 0, disk = from_disk(m, &w);
    if (apart > 0) mem -= over(w.rows_bytes, bw);
    if (by) *by = disk > fmax(t, mem) + apart ? COST_BY_DISK : mem > t ? COST_BY_MEMORY : COST_BY_ARITHMETIC;
    return (m->launch_of[kind] > 0 ? m->launch_of[kind] : m->launch) + fmax(fmax(t, mem) + apart, disk);
}
