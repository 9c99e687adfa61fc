/* Gated DeltaNet, a replacement of attention: a short causal convolution along the rows, and a recurrent state per
 * head. Rows are sequential, but columns of a state are independent: a task processes some columns of a head for all
 * rows, so that its part of the state stays in L1. The order of sums depends neither on the number of rows in a call
 * nor on the threads. */
#include <math.h>
#include <string.h>

#include "cpu/cpu_exec.h"

enum { CHANNELS = 2048, ROWS = 8, TAPS_MOST = 64 }; /* per task of the convolution */

struct conv {
    struct cpu_exec *x;
    const struct op_conv *o;
    int blocks; /* of channels */
    const float *zeros;
};

/* Input row i of the convolution, i < 0: before the first. */
static const float *row_at(const struct conv *j, int i) {
    const struct op_conv *o = j->o;
    if (i >= 0) return o->x + (size_t)i * (size_t)o->ldx;
    return o->before ? o->before + (size_t)(i + op_conv_past(o)) * (size_t)o->channels : j->zeros;
}

static void conv_task(void *arg, int task, int thread) {
    const struct conv *j = arg;
    const struct op_conv *o = j->o;
    const float *x[TAPS_MOST];
    int c = task % j->blocks * CHANNELS, n = o->channels - c < CHANNELS ? o->channels - c : CHANNELS;
    for (int i = task / j->blocks * ROWS, end = i + ROWS < o->n ? i + ROWS : o->n; i < end; i++) {
        float *out = o->out + (size_t)i * (size_t)o->ldo + (size_t)c;
        for (int t = 0; t < o->taps; t++) x[t] = row_at(j, i - o->delay - o->taps + 1 + t) + c;
        if (!o->w) memcpy(out, x[0], (size_t)n * sizeof *out);
        else j->x->k.conv(out, x, o->w + c, o->channels, o->taps, n, o->bias ? o->bias + c : NULL, o->is_linear);
    }
}

int cpu_conv(struct exec *base, const struct op_conv *o) {
    struct conv j = {.x = (struct cpu_exec *)base, .o = o, .blocks = (o->channels + CHANNELS - 1) / CHANNELS};
    size_t row = (size_t)o->channels * sizeof(float);
    float *zeros = NULL;
    const int past = op_conv_past(o);
    if (o->taps > TAPS_MOST || past < o->taps - 1 + o->delay || (!o->w && (o->taps > 1 || o->bias || !o->is_linear)))
        return ERR_RUNTIME;
    if (!o->before) {
        if (!(zeros = cpu_exec_workspace(j.x, row))) return ERR_MEMORY;
        memset(zeros, 0, row);
        j.zeros = zeros;
    }
    int rc = cpu_exec_for_each(j.x, (o->n + ROWS - 1) / ROWS * j.blocks, conv_task, &j);
    for (int i = 0; i < past && !rc && !o->is_peek; i++) /* in rising order: each source row is later than its target */
        memmove(o->after + (size_t)i * (size_t)o->channels, row_at(&j, o->n - past + i), row);
    return rc;
}

/* --- Recurrences ------------------------------------------------------------------------------ */

struct delta {
    struct cpu_exec *x;
    const struct op_delta *o;
    int blocks; /* of columns */
};

static float softplus(float x) { return x > 20 ? x : log1pf(expf(x)); }
static float sigmoid(float x) { return 1 / (1 + expf(-x)); }

/* The decays of row i's k_dim channels in head h. */
static void channel_decays(const struct op_delta *o, int i, int h, float *out) {
    const size_t at = (size_t)h * (size_t)o->k_dim;
    const float *a = o->a + (size_t)i * (size_t)o->ldg + at, *dt = o->dt + at, rate = o->rate[h];
    for (int c = 0; c < o->k_dim; c++) {
        const float f = a[c] + dt[c];
        out[c] = expf(o->bound < 0 ? o->bound * sigmoid(-rate * f) : rate * softplus(f));
    }
}

/* The factors of row i in head h, whose q and k are set. */
static void set_factors(const struct delta *j, struct delta_row *r, int i, int h) {
    const struct op_delta *o = j->o;
    const size_t gate = (size_t)i * (size_t)o->ldg + (size_t)h;
    if (o->rule == DELTA_LIGHTNING) {
        r->decay = expf(-o->slope * exp2f(-8.0f * (float)(h + 1) / (float)o->v_heads));
        return;
    }
    if (o->rule != DELTA_CHANNELS) {
        const float t = softplus(o->a[gate] + o->dt[h]);
        r->decay = expf(o->rate[h] * t);
        if (o->rule == DELTA_MAMBA2) {
            r->beta = t, r->skip = o->skip[h];
            return;
        }
    }
    r->qs = 1 / sqrtf((float)o->k_dim) / sqrtf(j->x->k.sumsq(r->q, o->k_dim) + 1e-6f);
    r->ks = 1 / sqrtf(j->x->k.sumsq(r->k, o->k_dim) + 1e-6f);
    r->beta = (o->doubles_beta ? 2 : 1) * sigmoid(o->b[gate]);
}

/* Copies `rows` rows of n floats. */
static void copy_block(float *to, int ldt, const float *from, int ldf, int rows, int n) {
    for (int i = 0; i < rows; i++)
        memcpy(to + (size_t)i * (size_t)ldt, from + (size_t)i * (size_t)ldf, (size_t)n * sizeof *to);
}

/* Rows of inputs are pages apart, where the CPU's own prefetching ends. */
enum { ROWS_AHEAD = 2, LINE_FLOATS = 16, PADDING = 16 };
static void prefetch_row(const float *p, int n) {
    for (int i = 0; i < n; i += LINE_FLOATS) __builtin_prefetch(p + i);
}

static void delta_task(void *arg, int task, int thread) {
    const struct delta *j = arg;
    const struct op_delta *o = j->o;
    int h = task / j->blocks, c = task % j->blocks * DELTA_COLUMNS,
        n = o->v_dim - c < DELTA_COLUMNS ? o->v_dim - c : DELTA_COLUMNS;
    const int key_head = o->is_tiled ? h % o->k_heads : h / (o->v_heads / o->k_heads);
    size_t state = (size_t)h * (size_t)o->k_dim * (size_t)o->v_dim + (size_t)c,
           key = (size_t)key_head * (size_t)o->k_dim;
    size_t value = (size_t)h * (size_t)o->v_dim + (size_t)c;
    const float *from = o->before ? o->before + state : NULL;
    const bool by_channel = o->rule == DELTA_CHANNELS, seen = o->rule == DELTA_GATED || by_channel;
    float decays[DELTA_MAX_K_DIM], packed[DELTA_MAX_K_DIM * (DELTA_COLUMNS + PADDING)] __attribute__((aligned(64)));
    /* Rows of a state are a power of two apart and share few sets of the cache, so that a block would not stay in it.
     */
    const bool packs = o->n > 1;
    float *to = packs ? packed : o->after + state;
    const int ld = packs ? DELTA_COLUMNS + PADDING : o->v_dim;
    if (packs && from) copy_block(packed, ld, from, o->v_dim, o->k_dim, n), from = packed;
    for (int i = 0; i < o->n && !cpu_exec_is_cancelled(j->x); i++, from = to) {
        size_t row = (size_t)i * (size_t)o->ldx;
        if (i + ROWS_AHEAD < o->n) {
            const size_t next = row + ROWS_AHEAD * (size_t)o->ldx;
            prefetch_row(o->q + next + key, o->k_dim), prefetch_row(o->k + next + key, o->k_dim);
            prefetch_row(o->v + next + value, n);
        }
        struct delta_row r = {.q = o->q + row + key,
                              .k = o->k + row + key,
                              .qs = 1,
                              .ks = 1,
                              .decay = 1,
                              .beta = 1,
                              .ignores_seen = !seen};
        set_factors(j, &r, i, h);
        if (by_channel) channel_decays(o, i, h, decays), r.decays = decays;
        j->x->k.delta(o->out + (size_t)i * (size_t)o->ldo + value, to, from, ld, &r, o->v + row + value, o->k_dim, n);
    }
    if (packs && !cpu_exec_is_cancelled(j->x)) copy_block(o->after + state, o->v_dim, packed, ld, o->k_dim, n);
}

int cpu_delta(struct exec *base, const struct op_delta *o) {
    struct delta j = {.x = (struct cpu_exec *)base, .o = o, .blocks = (o->v_dim + DELTA_COLUMNS - 1) / DELTA_COLUMNS};
    if (o->k_dim > DELTA_MAX_K_DIM) return ERR_RUNTIME;
    return o->n < 1 ? 0 : cpu_exec_for_each(j.x, o->v_heads * j.blocks, delta_task, &j);
}
