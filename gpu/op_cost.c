#include "gpu/op_cost.h"

#include <math.h>

static double mat_work(const struct mat *m) { return m->data ? 2.0 * m->rows * m->cols : 0; }
static double mat_size(const struct mat *m) { return m->data ? (double)mat_bytes(m) : 0; }

static void add_expert(const struct expert *x, double *flops, double *bytes) {
    *flops += mat_work(&x->gate) + mat_work(&x->up) + mat_work(&x->down);
    *bytes += mat_size(&x->gate) + mat_size(&x->up) + mat_size(&x->down);
}
static void expert_work(const struct op_experts *a, int id, double *flops, double *bytes) { /* sums its shards */
    const struct expert_shards *s = a->shards;
    for (int node = 0; s && node < s->n_nodes; node++) add_expert(&s->part[id * s->n_nodes + node], flops, bytes);
    if (!s) add_expert(&a->experts[id], flops, bytes);
}

/* Expected number of distinct experts that n tokens select if routing is uniform. */
static double expected_experts(double n, int topk, int n_experts) {
    return n_experts * (1 - pow(1 - (double)topk / n_experts, n));
}
/* The known number if any, else the expected number. */
static double n_selected_experts(const struct op_experts *a, double chosen) {
    double most = a->n_experts < a->n * (double)a->topk ? a->n_experts : a->n * (double)a->topk;
    return chosen > 0 ? fmin(chosen, most) : expected_experts(a->n, a->topk, a->n_experts);
}

double op_cost_pairs(int n, int q_pos0, int k_pos0, int n_keys, int window) {
    /* keys that query 0 sees, if positive */
    const long most = window > 0 && window < n_keys ? window : n_keys, first = (long)q_pos0 - k_pos0 + 1;
    /* skip: queries that see no key */
    const long lo = first < 0 ? 0 : first, skip = first < 0 ? -first : 0;
    if (skip >= n) return 0;
    const long rows = n - skip;
    long rising = most - lo; /* queries that see one key more than the query before */
    if (rising < 0) rising = 0;
    if (rising > rows) rising = rows;
    const double sum = (double)rising * (double)lo + 0.5 * (double)rising * (double)(rising - 1);
    return sum + (double)(rows - rising) * (double)most;
}

/* Of the columns `bytes` and `kind` of the lists of operations. */
static const uint8_t bytes_per_number[OP_COUNT] = {
#define X(name, CODE, class, kind, bytes, ...) [OP_##CODE] = bytes,
    OPS_ALL(X)
#undef X
};
static const uint8_t kinds[OP_COUNT] = {
#define X(name, CODE, class, kind, ...) [OP_##CODE] = GPU_OP_##kind,
    OPS_ALL(X)
#undef X
};

struct op_cost_work op_cost_work(enum op_code code, const union op_args *u, double chosen) {
    struct op_cost_work w = {0};
    switch (code) {
    case OP_LINEAR: {
        const struct op_linear *a = &u->linear;
        double heads = a->batch > 1 ? a->batch : 1;
        w.flops = heads * a->n * mat_work(&a->w);
        w.activation_bytes = heads * 4.0 * a->n * ((a->accumulate ? 2.0 : 1.0) * a->w.rows + a->w.cols);
        w.bytes = heads * mat_size(&a->w) + w.activation_bytes;
        /* float32 runs in batches of this size */
        w.rows = a->exact && a->n > BATCH_INVARIANT_ROWS ? BATCH_INVARIANT_ROWS : a->n;
        break;
    }
    case OP_ATTENTION: {
        const struct op_attention *a = &u->attention;
        int window = a->chosen           ? a->n_chosen * (a->chosen_block ? a->chosen_block : 1)
                     : a->chunk_keys > 0 ? a->chunk_keys
                                         : a->window; /* with selected keys a query sees n_chosen, like a window */
        /* Explicit positions (stripes) are in device memory; the caller passes their mean as q_pos0. */
        double pairs = a->k_step > 1 ? (double)a->n * op_seen_step(a->q_pos0 + a->n / 2, a->k_pos0, a->k_step,
                                                                   window > 0 ? window : a->n_keys)
                       : a->q_pos    ? (double)a->n * op_cost_pairs(1, a->q_pos0, a->k_pos0, a->n_keys, window)
                                     : op_cost_pairs(a->n, a->q_pos0, a->k_pos0, a->n_keys, window);
        w.attn_flops = pairs * a->n_heads * 2.0 * (a->k.dim + a->v_dim);
        /* latents, whose values are a part of the keys */
        const bool same = kv_planes_equal(&a->k, &a->v);
        const double chosen_keys = a->chosen ? (double)a->n * window : a->n_keys,
                     keys = chosen_keys < a->n_keys ? chosen_keys : a->n_keys;
        w.bytes = 4.0 * a->n * a->n_heads * ((double)a->k.dim + a->v_dim) +
                  keys * ((double)dtype_bytes(a->k.dtype, (size_t)a->k.heads * (size_t)a->k.dim) +
                          (same ? 0 : (double)dtype_bytes(a->v.dtype, (size_t)a->v.heads * (size_t)a->v_dim)));
        break;
    }
    case OP_SELECT: {
        const struct op_select *a = &u->select;
        double pairs = a->k_step > 1
                           ? (double)a->n * op_seen_step(a->q_pos0 + a->n / 2, a->k_pos0, a->k_step, a->n_keys)
                           : op_cost_pairs(a->n, a->q_pos0, a->k_pos0, a->n_keys, 0);
        w.attn_flops = pairs * a->heads * 2.0 * a->k.dim;
        w.bytes = 4.0 * a->n * a->heads * ((double)a->k.dim + 1) +
                  (double)a->n_keys * (double)dtype_bytes(a->k.dtype, (size_t)a->k.dim) + 4.0 * a->n * a->topk;
        break;
    }
    case OP_ROUTE: w.bytes = 4.0 * u->route.n * u->route.n_experts; break;
    case OP_EXPERTS: {
        const struct op_experts *a = &u->experts;
        double row = 8.0 * a->n * a->hidden, share = a->computed_fraction > 0 ? (double)a->computed_fraction : 1,
               flops = 0, bytes = 0;
        if (a->ids && a->n > 0 && a->n_experts > 0) {
            double picks = share * a->n * a->topk, read = share * n_selected_experts(a, chosen);
            int some = 0;
            /* finds a resident one */
            while (!a->shards && some < a->n_experts - 1 && !a->experts[some].gate.data) some++;
            expert_work(a, some, &flops, &bytes);
            w.flops = picks * flops;
            w.activation_bytes = picks * 8.0 * a->hidden;
            w.bytes = read * bytes + w.activation_bytes;
            w.rows = picks / read;
            w.selected_bytes = read * bytes, w.routed_bytes = share * a->n_experts * bytes;
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
    case OP_VALUES: {
        const struct op_values *a = &u->values;
        const double read = expected_experts(a->n, a->topk, a->n_experts) / a->n_experts;
        w.flops = a->n * (double)a->topk / a->n_experts * mat_work(&a->w);
        w.activation_bytes = 4.0 * a->n * ((double)a->w.cols + a->dim);
        w.bytes = read * mat_size(&a->w) + w.activation_bytes;
        w.rows = a->n * (double)a->topk / (read * a->n_experts);
        break;
    }
    case OP_DELTA: { /* the state is read and written once, and a cache reads what it writes; per row two products with
                        it and the update */
        const struct op_delta *a = &u->delta;
        double state = (double)a->v_heads * a->k_dim * a->v_dim;
        w.attn_flops = 6.0 * a->n * state;
        w.bytes = 12.0 * state + 4.0 * a->n *
                                     (2.0 * a->k_heads * a->k_dim + 2.0 * a->v_heads * a->v_dim +
                                      (a->rule == DELTA_CHANNELS ? (double)a->v_heads * a->k_dim : 0));
        break;
    }
    case OP_SCAN: { /* the state is read and written once; an exponential counts as one operation */
        const struct op_scan *a = &u->scan;
        const double state = (double)a->state * a->channels;
        w.attn_flops = 7.0 * a->n * state;
        w.bytes = 12.0 * state + 12.0 * a->n * a->channels;
        break;
    }
    case OP_EXPAND: {
        const struct op_expand *a = &u->expand;
        double out = (double)a->heads * (a->nope + a->latent.dim - a->w.cols + a->v_dim);
        w.flops = a->n * mat_work(&a->w);
        w.bytes =
            mat_size(&a->w) + (double)a->n * ((double)dtype_bytes(a->latent.dtype, (size_t)a->latent.dim) + 2 * out);
        w.rows = a->n;
        break;
    }
    case OP_FFN: {
        const struct op_ffn *a = &u->ffn;
        add_expert(&a->expert, &w.flops, &w.bytes);
        w.flops *= a->n;
        w.bytes += 8.0 * a->n * a->hidden;
        w.rows = a->n;
        break;
    }
    /* activations are narrowed once and read twice, results written separately, then added; consecutive parts of one
     * expert read it once */
    case OP_GROUP: {
        const struct op_group *a = &u->group;
        for (int k = 0; k < a->n; k++) {
            double n = a->begin[k + 1] - a->begin[k], flops = 0, bytes = 0;
            add_expert(&a->expert[k], &flops, &bytes);
            w.flops += n * flops;
            if (n > 0)
                w.bytes +=
                    (k && a->expert[k].gate.data == a->expert[k - 1].gate.data ? 0 : bytes) + 24.0 * n * a->hidden;
            if (n > w.rows) w.rows = n;
        }
        break;
    }
    case OP_JOIN:
    case OP_CHAIN:
    case OP_EPILOGUE:
        for (int i = 0; i < op_parts(code, u); i++) {
            enum op_code part;
            const union op_args *own = op_part(code, u, i, &part);
            const struct op_cost_work one = op_cost_work(part, own, chosen);
            w.flops += one.flops, w.bytes += one.bytes, w.activation_bytes += one.activation_bytes;
            w.rows = fmax(w.rows, one.rows);
        }
        break;
    default: w.bytes = bytes_per_number[code] * (double)op_numbers(code, u);
    }
    return w;
}

static double curve_value(const struct gpu_curve *c, double rows) {
    if (rows <= (double)c->rows[0]) return (double)c->value[0];
    for (int i = 1; i < c->n; i++)
        if (rows <= (double)c->rows[i]) {
            double t = log(rows / (double)c->rows[i - 1]) / log((double)c->rows[i] / (double)c->rows[i - 1]);
            return (double)c->value[i - 1] * pow((double)c->value[i] / (double)c->value[i - 1], t);
        }
    return (double)c->value[c->n - 1];
}
double op_cost_bw(const struct op_cost_rates *m, double rows) {
    return m->bw_rows.n && rows > 0 ? curve_value(&m->bw_rows, rows) : m->bw;
}
static const double CACHED_BYTES = 4 << 20; /* bytes of activations that fit the caches */
static double seconds_at(double work, double rate) { return rate > 0 ? work / rate : 0; }
static double rate_at(const struct gpu_curve *c, double rows, double plain) {
    return c->n && rows > 0 ? curve_value(c, rows) : plain;
}

/* Few rows tend to select cached experts, so their disk share is disk_share_few_rows; if all experts are selected it is
 * disk_share. Interpolates. */
static double disk_seconds(const struct op_cost_rates *m, const struct op_cost_work *w) {
    if (!(m->disk_bw > 0) || !(w->selected_bytes > 0)) return 0;
    double most = w->selected_bytes / w->routed_bytes;
    return w->selected_bytes * (m->disk_share_few_rows + (m->disk_share - m->disk_share_few_rows) * most) / m->disk_bw;
}

/* Group sizes in a batch vary as routers make them; each group runs at the rate of its own rows. */
static double group_seconds(const struct op_cost_rates *m, const struct op_group *a) {
    double t = 0;
    for (int k = 0; k < a->n; k++) {
        double n = a->begin[k + 1] - a->begin[k], flops = 0, bytes = 0;
        add_expert(&a->expert[k], &flops, &bytes);
        t += seconds_at(n * flops, rate_at(&m->flops_rows, n, m->flops));
    }
    return t;
}

double op_cost_seconds(const struct op_cost_rates *m, enum op_code code, const union op_args *a,
                       struct op_cost_detail *detail) {
    const struct op_cost_work w = op_cost_work(code, a, m->n_selected);
    const enum gpu_op_kind kind = (enum gpu_op_kind)kinds[code];
    const struct gpu_curve *flops = &m->flops_rows, *reads = &m->bw_rows;
    if ((code == OP_LINEAR || code == OP_JOIN) && m->linear_bw.n) {
        const struct mat *mat = code == OP_JOIN ? &a->join.linear[0].w : &a->linear.w;
        const struct gpu_curve *of_matrix =
            &m->linear_flops[mat->cols > 0 && dtype_bytes((enum dtype)mat->dtype, 256) > 256];
        reads = &m->linear_bw;
        if (of_matrix->n) flops = of_matrix;
    }
    if (code == OP_EXPERTS && a->experts.n <= BATCH_INVARIANT_ROWS && m->flops_few_rows.n) flops = &m->flops_few_rows;
    double queries = code == OP_ATTENTION ? a->attention.n : code == OP_SELECT ? a->select.n : 0;
    double t =
        (code == OP_GROUP ? group_seconds(m, &a->group) : seconds_at(w.flops, rate_at(flops, w.rows, m->flops))) +
        seconds_at(w.shared.flops, rate_at(flops, w.shared.rows, m->flops)) +
        seconds_at(w.attn_flops, rate_at(&m->attn_rows, queries, m->attn));
    const bool streams = queries > 0 || code == OP_DELTA || code == OP_SCAN; /* long rows of a cache */
    double bw = streams && m->attn_bw > 0 ? m->attn_bw : rate_at(reads, w.rows, m->bw);
    double mem = seconds_at(w.bytes, bw) + seconds_at(w.shared.bytes, rate_at(reads, w.shared.rows, m->bw));
    double apart = m->has_serial_activations && w.activation_bytes > CACHED_BYTES
                       ? seconds_at(w.activation_bytes, m->bw)
                       : 0,
           disk = disk_seconds(m, &w);
    if (apart > 0) mem -= seconds_at(w.activation_bytes, bw);
    if (m->bw_share) mem /= *m->bw_share, apart /= *m->bw_share;
    if (detail) {
        detail->by = disk > fmax(t, mem) + apart ? OP_COST_BY_DISK
                     : mem > t                   ? OP_COST_BY_MEMORY
                                                 : OP_COST_BY_ARITHMETIC;
        detail->bytes = w.bytes + w.shared.bytes;
    }
    return (m->launch_by_kind[kind] > 0 ? m->launch_by_kind[kind] : m->launch) + fmax(fmax(t, mem) + apart, disk);
}
