#pragma once
/* References for device operations: the scalar CPU kernels, or plain loops in double where devices round activations on
 * purpose. */
#include "base/mat_at.h"
#include "test/gpu/conform_case.h"

/* Rounds an activation as a device's tiled products do before they multiply; see enum gpu_math. */
enum narrow { AS_IS, AS_BF16, AS_FP8 };
/* formats whose weights tiles round as well */
static bool in_blocks(const struct mat *w) { return w->dtype >= DT_Q8_0 && w->dtype <= DT_MXFP4; }
static enum narrow narrow_of(const struct mat *w) {
    if (spec.is_emulated || spec.math == GPU_MATH_F32 ||
        (w->dtype != DT_E4M3 && w->dtype != DT_E2M1 && w->dtype != DT_BF16 && !in_blocks(w)))
        return AS_IS;
    return spec.math == GPU_MATH_FP8 && w->dtype == DT_E4M3 &&
                   (!w->scale || w->block_cols % 128 == 0 || w->block_cols >= w->cols)
               ? AS_FP8
               : AS_BF16;
}
static void narrow(double *out, const float *x, int n, enum narrow how) {
    for (int b = 0; b < n; b += 128) {
        int end = b + 128 < n ? b + 128 : n;
        float top = 1e-4f;
        for (int i = b; i < end; i++) top = fmaxf(top, fabsf(x[i]));
        for (int i = b; i < end; i++) {
            float s = top / 448.0f;
            out[i] = (double)(how == AS_FP8    ? e4m3_to_f32(f32_to_e4m3(x[i] / s))
                              : how == AS_BF16 ? bf16_to_f32(f32_to_bf16(x[i]))
                                               : x[i]);
            if (how == AS_FP8) out[i] *= (double)s;
        }
    }
}
static void multiply(double *y, const struct mat *w, const float *x, enum narrow how) {
    double *in = malloc((size_t)w->cols * sizeof *in);
    float *ordered = malloc((size_t)w->cols * sizeof *ordered);
    if (w->order) mat_order_x(w, ordered, x);
    narrow(in, w->order ? ordered : x, w->cols, how);
    for (int o = 0; o < w->rows; o++) {
        y[o] = 0;
        for (int k = 0; k < w->cols; k++) {
            float v = mat_at(w, o, k);
            y[o] += (double)(how == AS_BF16 && in_blocks(w) ? bf16_to_f32(f32_to_bf16(v)) : v) * in[k];
        }
    }
    free(ordered);
    free(in);
}
/* y = W^T x */
static void multiply_turned(double *y, const struct mat *w, const float *x) {
    for (int o = 0; o < w->cols; o++) {
        y[o] = 0;
        for (int i = 0; i < w->rows; i++) y[o] += (double)mat_at(w, i, o) * (double)x[i];
    }
}
static void oracle_linear(const union op_args *u) {
    const struct op_linear *a = &u->linear;
    double *y = malloc((size_t)a->w.rows * sizeof *y);
    for (int t = 0; t < a->n; t++) {
        multiply(y, &a->w, a->x + (size_t)t * (size_t)a->ldx, narrow_of(&a->w));
        for (int o = 0; o < a->w.rows; o++) {
            float *to = a->y + (size_t)t * (size_t)a->ldy + o;
            *to = (float)(y[o] + (a->bias ? (double)a->bias[o] : 0) + (a->accumulate ? (double)*to : 0));
        }
    }
    free(y);
}
static void oracle_expert(double *y, const struct expert *e, const float *x, bool exact) {
    size_t inter = (size_t)expert_inter(e);
    double *gate = malloc(2 * inter * sizeof *gate), *up = gate + inter;
    float *h = malloc(inter * 4);
    if (e->gate_up_transposed) {
        multiply_turned(gate, &e->gate, x), multiply_turned(up, expert_up(e), x);
    } else {
        multiply(gate, &e->gate, x, exact ? AS_IS : narrow_of(&e->gate));
        multiply(up, expert_up(e), x, exact ? AS_IS : narrow_of(expert_up(e)));
    }
    double limit = e->glu.limit > 0 ? (double)e->glu.limit : INFINITY,
           alpha = e->glu.alpha > 0 ? (double)e->glu.alpha : 1;
    for (size_t i = 0; i < inter; i++) {
        double a = fmin(gate[i] + (e->gate_bias ? (double)e->gate_bias[i] : 0), e->glu.clamp_after ? INFINITY : limit),
               b = up[i] + (expert_up_bias(e) ? (double)expert_up_bias(e)[i] : 0);
        if (e->glu.is_ungated) b = 1;
        if (e->glu.is_relu) h[i] = (float)(fmax(a, 0) * b);
        else if (e->glu.gate_cap > 0)
            h[i] = (float)((double)e->glu.gate_cap * tanh(a / (double)e->glu.gate_cap) / (1 + exp(-a)) *
                           (double)e->glu.up_cap * tanh(b / (double)e->glu.up_cap));
        else if (e->glu.is_erf) h[i] = (float)(0.5 * a * erfc(-a / sqrt(2)) * b);
        else if (e->glu.xielu_beta > 0)
            h[i] = (float)((a > 0 ? (double)e->glu.xielu_p * a * a : (double)e->glu.xielu_n * (expm1(a) - a)) +
                           (double)e->glu.xielu_beta * a);
        else
            h[i] = (float)(fmin(a / (1 + exp(-alpha * a - (double)e->glu.cubic * a * a * a)),
                                e->glu.clamp_after ? limit : INFINITY) *
                           (fmax(fmin(b, limit), -limit) + (double)e->glu.shift));
    }
    if (e->is_transposed) multiply_turned(y, &e->down, h);
    else multiply(y, &e->down, h, exact ? AS_IS : narrow_of(&e->down));
    for (int d = 0; d < e->down.rows && e->down_bias; d++) y[d] += (double)e->down_bias[d];
    free(gate);
    free(h);
}
static void add_expert(float *y, const struct expert *e, const float *x, double weight, bool exact) {
    const int n = e->is_transposed ? e->down.cols : e->down.rows;
    double *out = malloc((size_t)n * sizeof *out);
    oracle_expert(out, e, x, exact);
    for (int d = 0; d < n; d++) y[d] = (float)((double)y[d] + weight * out[d]);
    free(out);
}

static void ref_values(const union op_args *u) {
    const struct op_values *a = &u->values;
    double *v = malloc((size_t)a->dim * 2 * sizeof *v), *sum = v + a->dim;
    for (int t = 0; t < a->n; t++) {
        memset(sum, 0, (size_t)a->dim * sizeof *sum);
        for (int k = 0; k < a->topk; k++) {
            const int e = a->ids[t * a->topk + k];
            const struct mat w = mat_rows(a->w, e * a->dim, (e + 1) * a->dim);
            multiply(v, &w, a->x + (size_t)t * (size_t)a->ldx, narrow_of(&w));
            for (int r = 0; r < a->dim; r++) sum[r] += (double)a->weights[t * a->topk + k] * v[r] / (1 + exp(-v[r]));
        }
        for (int r = 0; r < a->dim; r++) a->y[(size_t)t * (size_t)a->ldy + (size_t)r] = (float)sum[r];
    }
    free(v);
}

#define BASE(field, CODE) \
    static void ref_##field(const union op_args *a) { \
        if (cpu->ops->field(cpu, &a->field)) failures++; \
    }
BASE(embed, OP_EMBED)
BASE(norm, OP_NORM)
BASE(rope_table, OP_ROPE_TABLE)
BASE(rope, OP_ROPE)
BASE(kv_store, OP_KV_STORE)
BASE(kv_load, OP_KV_LOAD)
BASE(attention, OP_ATTENTION)
BASE(select, OP_SELECT)
BASE(route, OP_ROUTE)
BASE(add, OP_ADD)
BASE(sigmoid, OP_SIGMOID)
BASE(clip, OP_CLIP)
BASE(fill, OP_FILL)
BASE(softcap, OP_SOFTCAP)
BASE(copy, OP_COPY)
BASE(gate, OP_GATE)
BASE(scale, OP_SCALE)
BASE(conv, OP_CONV)
BASE(delta, OP_DELTA)
BASE(scan, OP_SCAN)
static double latent_at(const struct kv_plane *p, int row, int c) {
    size_t i = (size_t)row * (size_t)p->dim + (size_t)c;
    if (p->dtype == DT_E4M3) return (double)(e4m3_to_f32(((const uint8_t *)p->data)[i]) * p->scale[row]);
    return number_at(p->data, p->dtype == DT_BF16 ? 'h' : 'f', i);
}
/* Sums in double; one bit of BF16 is the tolerance. */
static void ref_expand(const union op_args *u) {
    const struct op_expand *a = &u->expand;
    const int lora = a->w.cols, rope = a->latent.dim - lora, k_dim = a->nope + rope;
    for (int i = 0; i < a->n * a->heads; i++) {
        int t = a->row0 + i / a->heads, h = i % a->heads;
        uint16_t *k = (uint16_t *)a->k + (size_t)i * (size_t)k_dim,
                 *v = (uint16_t *)a->v + (size_t)i * (size_t)a->v_dim;
        for (int r = 0; r < a->nope + a->v_dim; r++) {
            double sum = 0;
            for (int c = 0; c < lora; c++)
                sum += (double)mat_at(&a->w, h * (a->nope + a->v_dim) + r, c) * latent_at(&a->latent, t, c);
            *(r < a->nope ? k + r : v + r - a->nope) = f32_to_bf16((float)sum);
        }
        for (int d = 0; d < rope; d++) k[a->nope + d] = f32_to_bf16((float)latent_at(&a->latent, t, lora + d));
    }
}
enum { FEW = BATCH_INVARIANT_ROWS }; /* up to this many tokens activations stay float32 */
static void ref_linear(const union op_args *u) {
    const struct op_linear *a = &u->linear;
    bool plain = a->n > FEW && !a->exact && !a->transposed && a->batch <= 1;
    if (spec.math == GPU_MATH_FP8 && plain && narrow_of(&a->w) == AS_FP8) oracle_linear(u);
    else if (cpu->ops->linear(cpu, a)) failures++;
}
/* evenly apart in memory, as on a device: for up to FEW tokens their activations stay float32 too */
static bool experts_resident;
static void ref_experts(const union op_args *u) {
    const struct op_experts *a = &u->experts;
    if (spec.math != GPU_MATH_FP8) {
        failures += cpu->ops->experts(cpu, a) != 0;
        return;
    }
    for (int t = 0; t < a->n; t++) {
        float *y = a->y + t * a->hidden;
        const float *x = a->x + t * a->hidden;
        for (int e = 0; e < a->n_experts; e++)
            for (int k = 0; a->ids && k < a->topk; k++)
                if (a->ids[t * a->topk + k] == e)
                    add_expert(a->by_choice ? a->y + (t * a->topk + k) * a->hidden : y, &a->experts[e], x,
                               a->by_choice ? 1 : (double)a->weights[t * a->topk + k], experts_resident && a->n <= FEW);
        if (a->shared) add_expert(y, a->shared, x, a->shared_weight ? (double)a->shared_weight[t] : 1, a->n <= FEW);
    }
}
#define CHECK(name, field, CODE, ...) check(name, CODE, &(union op_args){.field = {__VA_ARGS__}}, ref_##field)

static void ref_sort(const union op_args *u) {
    const struct op_sort *a = &u->sort;
    int at = 0;
    for (int e = a->first; e < a->last; e++) {
        a->offset[e - a->first] = at;
        for (int i = 0; i < a->n * a->topk; i++)
            if (a->ids[i] == e) a->token[at] = i / a->topk, a->weight[at++] = a->weights[i];
    }
    a->offset[a->last - a->first] = at;
}
static void ref_top(const union op_args *u) {
    const struct op_top *o = &u->top;
    for (int i = 0; i < o->n; i++) {
        const float *x = o->x + i * o->ldx;
        int best = 0;
        for (int k = 0; k < o->m; k++)
            if (x[k] > x[best]) best = k;
        for (int k = 0; k < o->m; k++)
            if (isnan(x[k])) best = -1;
        o->top[i] = best;
    }
}
static void ref_remap(const union op_args *u) {
    const struct op_remap *o = &u->remap;
    for (int i = 0; i < o->n; i++) {
        o->out[i] = -1;
        for (int k = 0; k < o->n_map; k++)
            if (o->ids[i] == k) o->out[i] = o->map[k];
    }
}
static void ref_gather(const union op_args *u) {
    const struct op_gather *a = &u->gather;
    for (int i = 0; i < a->n * a->dim; i++) a->out[i] = a->x[a->index[i / a->dim] * a->ldx + i % a->dim];
}
static void ref_group(const union op_args *u) {
    const struct op_group *a = &u->group;
    const int dim = a->hidden;
    for (int k = 0; k < a->n; k++)
        for (int i = a->begin[k]; i < a->begin[k + 1]; i++) {
            float out[1024] = {0}, *y = a->y + a->token[i] * dim;
            double sum = 0;
            add_expert(a->norm ? out : y, &a->expert[k], a->x + a->token[i] * dim, a->norm ? 1 : (double)a->weight[i],
                       false);
            for (int d = 0; d < dim && a->norm; d++) out[d] *= a->norm[d], sum += (double)out[d] * (double)out[d];
            const double by = (double)a->weight[i] / sqrt(sum / dim + (double)a->eps);
            for (int d = 0; d < dim && a->norm; d++) y[d] += (float)(by * (double)out[d]);
        }
}
static void ref_ffn(const union op_args *u) {
    const struct op_ffn *a = &u->ffn;
    memset(a->y, 0, (size_t)a->n * (size_t)a->hidden * 4);
    for (int t = 0; t < a->n; t++) add_expert(a->y + t * a->hidden, &a->expert, a->x + t * a->hidden, 1, a->n <= FEW);
}
static void ref_scatter(const union op_args *u) {
    const struct op_scatter_add *a = &u->scatter_add;
    for (int i = 0; i < a->n; i++)
        for (int d = 0; d < a->dim; d++)
            a->y[(a->index ? a->index[i] : i) * a->ldy + d] += (a->weight ? a->weight[i] : 1) * a->x[i * a->dim + d];
}
static void ref_merge(const union op_args *u) {
    const struct op_merge *a = &u->merge;
    for (int i = 0; i < a->n * a->heads; i++) {
        double w = exp((double)a->lse[i]), w2 = exp((double)a->lse2[i]);
        if (w + w2 == 0) continue;
        float *o = a->out + i / a->heads * a->ldo + i % a->heads * a->dim;
        const float *o2 = a->out2 + i / a->heads * a->ldo2 + i % a->heads * a->dim;
        for (int d = 0; d < a->dim; d++) o[d] = (float)((w * (double)o[d] + w2 * (double)o2[d]) / (w + w2));
        a->lse[i] = (float)log(w + w2);
    }
}
