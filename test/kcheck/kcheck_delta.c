/* Checks the parts of gated DeltaNet (gates, convolution, delta rule) and of Mamba (selective scan) on the CPU at every
 * level against double precision written from the comments in base/ops.h: any width, states separate and in place, the
 * same bits for 1, 2 and 5 threads, and a row the same alone, in a call of many rows, and in two calls with the state
 * in between. */
#include "test/kcheck/levels.h"

enum { N = 21 };

static void check_gate(int n, int heads, int dim, enum gate_kind kind) {
    begin_case("gate, %d rows, %d heads of %d, %s", n, heads, dim,
               kind == GATE_NORMAL      ? "normal"
               : kind == GATE_SILU      ? "silu"
               : kind == GATE_SOFTPLUS2 ? "softplus to base 2"
               : kind == GATE_GELU_TANH ? "GELU, tanh"
                                        : "sigmoid");
    int head_ldy = dim + 1, head_ldg = 2 * dim, ldy = heads * head_ldy + 2, ldg = heads * head_ldg;
    size_t size = (size_t)(n * ldy);
    float *y = vec(size), *was = aligned(size * 4), *g = vec((size_t)(n * ldg)), *kept = aligned(size * 4);
    for (int i = 0; i < n * ldg; i++) g[i] *= 30; /* far into both tails */
    memcpy(was, y, size * 4);
    for (int t = 0; t < THREADS; t++) {
        memcpy(y, was, size * 4);
        must(execs[t]->ops->gate(
            execs[t], &(struct op_gate){y, g, n, heads, dim, ldy, ldg, head_ldy, head_ldg, (uint8_t)kind, false}));
        if (!t) memcpy(kept, y, size * 4);
        else if (!equal(kept, y, size)) wrong("differs between 1 and %d threads", thread_counts[t]);
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < ldy; k++) {
            int h = k / head_ldy, d = k % head_ldy, at = i * ldy + k;
            if (h >= heads || d >= dim) {
                if (y[at] != was[at]) mismatch("gap beside the heads", i, k, y[at], was[at], 0);
                continue;
            }
            double v = g[i * ldg + h * head_ldg + d],
                   want = was[at] * (kind == GATE_NORMAL ? 0.5 * erfc(-v / sqrt(2))
                                     : kind == GATE_GELU_TANH
                                         ? v * sigmoid(2 * sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))
                                     : kind == GATE_SOFTPLUS2 ? (v > 100 ? v : log1p(exp2(v)) / log(2))
                                                              : sigmoid(v) * (kind == GATE_SILU ? v : 1));
            /* far in its tail GELU has the rounding of its exponent, which is up to 100 there */
            near("output", i, k, y[at], want,
                 fabs(want) *
                         (2e-6 + (kind == GATE_SOFTPLUS2 ? fabs(v) * 2e-7 : 0) + (kind == GATE_GELU_TANH ? 2e-5 : 0)) +
                     (kind == GATE_NORMAL ? 6e-8 * fabs(was[at]) : 0) + 1e-30);
        }
    free(was), free(kept);
    drop();
}

/* delay > 0: with a row more of state than needed, as calls with larger delays keep it. */
static void check_conv(int n, int channels, int taps, bool begun, bool in_place, bool biased, bool linear, int delay) {
    begin_case("conv, %d rows, %d channels, %d taps, delay %d%s%s%s", n, channels, taps, delay,
               begun ? ", continued" : "", in_place ? ", in place" : "", linear ? ", linear" : "");
    int ldx = channels + 3, ldo = channels + 1, past = taps - 1 + delay + (delay > 0);
    size_t kept = (size_t)(past * channels), size = (size_t)(n * ldo);
    float *x = vec((size_t)(n * ldx)), *w = vec((size_t)(taps * channels)), *before = vec(kept),
          *after = in_place ? before : vec(kept), *out = vec(size), *was = aligned(kept * 4),
          *first = aligned(size * 4), *end = aligned(kept * 4);
    const float *bias = biased ? vec((size_t)channels) : NULL;
    memcpy(was, before, kept * 4);
    for (int t = 0; t < THREADS + 1; t++) { /* the last time row by row */
        struct exec *on = execs[t % THREADS];
        memcpy(before, was, kept * 4);
        memset(out, 0xff, size * 4);
        struct op_conv o = {out,
                            x,
                            w,
                            begun ? before : NULL,
                            after,
                            n,
                            channels,
                            taps,
                            ldx,
                            ldo,
                            .bias = bias,
                            .is_linear = linear,
                            .delay = delay,
                            .past = delay ? past : 0};
        if (t < THREADS) must(on->ops->conv(on, &o));
        for (int i = 0; t == THREADS && i < n; i++) {
            o.n = 1, o.out = out + i * ldo, o.x = x + i * ldx;
            must(on->ops->conv(on, &o));
            o.before = after;
        }
        if (!t) memcpy(first, out, size * 4), memcpy(end, after, kept * 4);
        for (int i = 0; i < n; i++)
            if (!equal(first + i * ldo, out + i * ldo, (size_t)channels))
                wrong("row %d differs between runs 0 and %d", i, t);
        if (!equal(end, after, kept)) wrong("the kept rows differ between runs 0 and %d", t);
    }
#define SEEN(i, c) ((i) >= 0 ? x[(i)*ldx + (c)] : begun ? was[((i) + past) * channels + (c)] : 0.0f)
    for (int i = 0; i < n; i++)
        for (int c = 0; c < channels; c++) {
            double sum = bias ? (double)bias[c] : 0, all = fabs(sum);
            for (int j = 0; j < taps; j++) {
                double v = (double)w[j * channels + c] * (double)SEEN(i - delay - taps + 1 + j, c);
                sum += v, all += fabs(v);
            }
            near("output", i, c, first[i * ldo + c], linear ? sum : sum * sigmoid(sum), all * 4e-6 + 1e-30);
        }
    for (int i = 0; i < past; i++)
        for (int c = 0; c < channels; c++)
            if (end[i * channels + c] != SEEN(n - past + i, c))
                mismatch("kept row", i, c, end[i * channels + c], SEEN(n - past + i, c), 0);
    free(was), free(first), free(end);
    drop();
}

struct dims {
    int k_heads, v_heads, k_dim, v_dim;
};
/* What a row does to a state, in double: factors of q and k, the decay, and the factors of the added row and of the
 * value in the result. */
struct factors {
    double q, k, decay, beta, skip;
};
static struct factors factors_of(const struct op_delta *o, int h, const float *q, const float *k, const float *ba) {
    if (o->rule == DELTA_LIGHTNING)
        return (struct factors){1, 1, exp(-(double)o->slope * pow(2, -8.0 * (h + 1) / o->v_heads)), 1, 0};
    const double t = log1p(exp((double)ba[o->v_heads + h] + o->dt[h])), decay = exp(o->rate[h] * t);
    if (o->rule == DELTA_MAMBA2) return (struct factors){1, 1, decay, t, o->skip[h]};
    double qq = 1e-6, kk = 1e-6;
    for (int i = 0; i < o->k_dim; i++) qq += (double)q[i] * q[i], kk += (double)k[i] * k[i];
    return (struct factors){1 / sqrt(qq * o->k_dim), 1 / sqrt(kk), o->rule == DELTA_CHANNELS ? 1 : decay,
                            (o->doubles_beta ? 2 : 1) * sigmoid(ba[h]), 0};
}
/* The decay of channel i of a head's state by DELTA_CHANNELS; by other rules 1. */
static double channel_decay_of(const struct op_delta *o, int h, int i, const float *ba) {
    if (o->rule != DELTA_CHANNELS) return 1;
    const double f = (double)ba[o->v_heads + h * o->k_dim + i] + o->dt[h * o->k_dim + i];
    return exp(o->bound < 0 ? (double)o->bound * sigmoid(-(double)o->rate[h] * f) : o->rate[h] * log1p(exp(f)));
}
static void check_delta(int n, const struct dims *d, bool begun, bool in_place, enum delta_rule rule, float bound,
                        bool doubles) {
    begin_case("delta rule %d, %d rows, %d key heads of %d, %d value heads of %d%s%s", rule, n, d->k_heads, d->k_dim,
               d->v_heads, d->v_dim, begun ? ", continued" : "", in_place ? ", in place" : "");
    const int decays = d->v_heads * (rule == DELTA_CHANNELS ? d->k_dim : 1);
    const bool forgets = rule == DELTA_GATED || rule == DELTA_CHANNELS;
    int keys = d->k_heads * d->k_dim, values = d->v_heads * d->v_dim, ldx = 2 * keys + values + 1, ldo = values + 2,
        ldg = d->v_heads + decays;
    size_t kept = (size_t)(values * d->k_dim), size = (size_t)(n * ldo);
    float *x = vec((size_t)(n * ldx)), *ba = vec((size_t)(n * ldg)), *rate = vec((size_t)d->v_heads),
          *dt = vec((size_t)decays), *skip = vec((size_t)d->v_heads);
    float *before = vec(kept), *after = in_place ? before : vec(kept), *out = vec(size), *was = aligned(kept * 4),
          *first = aligned(size * 4), *end = aligned(kept * 4);
    for (int h = 0; h < d->v_heads; h++) rate[h] = -expf(rate[h]);
    memcpy(was, before, kept * 4);
    struct op_delta of;
    for (int t = 0; t < THREADS + 2; t++) { /* then row by row, then in two calls */
        struct exec *on = execs[t % THREADS];
        memcpy(before, was, kept * 4);
        memset(out, 0xff, size * 4);
        struct op_delta o = {out,
                             x,
                             x + keys,
                             x + 2 * keys,
                             ba,
                             ba + d->v_heads,
                             rate,
                             dt,
                             begun ? before : NULL,
                             after,
                             n,
                             d->k_heads,
                             d->v_heads,
                             d->k_dim,
                             d->v_dim,
                             ldx,
                             ldg,
                             ldo,
                             .skip = skip,
                             .slope = 0.7f,
                             .bound = bound,
                             .doubles_beta = doubles,
                             .rule = (uint8_t)rule,
                             .is_tiled = in_place};
        of = o;
        if (t < THREADS) must(on->ops->delta(on, &o));
        for (int i = 0, some = t == THREADS ? 1 : (n + 1) / 2; t >= THREADS && i < n; i += some) {
            o.n = n - i < some ? n - i : some, o.out = out + i * ldo, o.q = x + i * ldx, o.k = o.q + keys,
            o.v = o.k + keys, o.b = ba + i * ldg;
            o.a = o.b + d->v_heads;
            must(on->ops->delta(on, &o));
            o.before = after;
        }
        if (!t) memcpy(first, out, size * 4), memcpy(end, after, kept * 4);
        for (int i = 0; i < n; i++)
            if (!equal(first + i * ldo, out + i * ldo, (size_t)values))
                wrong("row %d differs between runs 0 and %d", i, t);
        if (!equal(end, after, kept)) wrong("the state differs between runs 0 and %d", t);
    }
    for (int h = 0; h < d->v_heads; h++) {
        double s[64][80], most = 1;
        for (int i = 0; i < d->k_dim; i++)
            for (int c = 0; c < d->v_dim; c++) s[i][c] = begun ? was[(h * d->k_dim + i) * d->v_dim + c] : 0;
        for (int t = 0; t < n; t++) {
            const float *q = x + t * ldx + (in_place ? h % d->k_heads : h / (d->v_heads / d->k_heads)) * d->k_dim,
                        *k = q + keys, *v = x + t * ldx + 2 * keys + h * d->v_dim;
            const struct factors f = factors_of(&of, h, q, k, ba + t * ldg);
            for (int c = 0; c < d->v_dim; c++) {
                double seen = 0, y = f.skip * v[c];
                for (int i = 0; i < d->k_dim; i++)
                    s[i][c] *= f.decay * channel_decay_of(&of, h, i, ba + t * ldg), seen += s[i][c] * k[i] * f.k;
                if (!forgets) seen = 0;
                for (int i = 0; i < d->k_dim; i++) {
                    s[i][c] += k[i] * f.k * f.beta * (v[c] - seen);
                    y += s[i][c] * q[i] * f.q;
                    most = fmax(most, fabs(s[i][c]));
                }
                near("output", t, h * d->v_dim + c, first[t * ldo + h * d->v_dim + c], y,
                     1e-5 * most * (forgets ? 1 : d->k_dim));
            }
        }
        for (int i = 0; i < d->k_dim; i++)
            for (int c = 0; c < d->v_dim; c++)
                near("state", i, h * d->v_dim + c, end[(h * d->k_dim + i) * d->v_dim + c], s[i][c], 1e-5 * most);
    }
    free(was), free(first), free(end);
    drop();
}

static void check_scan(int n, int channels, int kept_rows, bool begun, bool in_place) {
    begin_case("scan, %d rows, %d channels, state of %d%s%s", n, channels, kept_rows, begun ? ", continued" : "",
               in_place ? ", in place" : "");
    const int ldx = channels + 3, ldo = channels + 1, ldbc = 2 * kept_rows + 1;
    const size_t kept = (size_t)(channels * kept_rows), size = (size_t)(n * ldo);
    float *x = vec((size_t)(n * ldx)), *a = vec((size_t)(n * ldx)), *bc = vec((size_t)(n * ldbc)), *rate = vec(kept),
          *dt = vec((size_t)channels), *skip = vec((size_t)channels), *before = vec(kept),
          *after = in_place ? before : vec(kept), *out = vec(size), *was = aligned(kept * 4),
          *first = aligned(size * 4), *end = aligned(kept * 4);
    for (size_t i = 0; i < kept; i++) rate[i] = -expf(rate[i]);
    memcpy(was, before, kept * 4);
    for (int t = 0; t < THREADS + 2; t++) { /* then row by row, then in two calls */
        struct exec *on = execs[t % THREADS];
        memcpy(before, was, kept * 4);
        memset(out, 0xff, size * 4);
        struct op_scan o = {
            out,      x,         a,   bc,  bc + kept_rows, rate, dt, skip, begun ? before : NULL, after, n,
            channels, kept_rows, ldx, ldx, ldbc,           ldo};
        if (t < THREADS) must(on->ops->scan(on, &o));
        for (int i = 0, some = t == THREADS ? 1 : (n + 1) / 2; t >= THREADS && i < n; i += some) {
            o.n = n - i < some ? n - i : some, o.out = out + i * ldo, o.x = x + i * ldx, o.a = a + i * ldx,
            o.b = bc + i * ldbc, o.c = o.b + kept_rows;
            must(on->ops->scan(on, &o));
            o.before = after;
        }
        for (int i = 0; i < n; i++) memset(out + i * ldo + channels, 0, 4);
        if (!t) memcpy(first, out, size * 4), memcpy(end, after, kept * 4);
        else if (!equal(first, out, size) || !equal(end, after, kept)) wrong("differs between runs 0 and %d", t);
    }
    for (int ch = 0; ch < channels; ch++) {
        double s[64], most = 1;
        for (int i = 0; i < kept_rows; i++) s[i] = begun ? was[i * channels + ch] : 0;
        for (int t = 0; t < n; t++) {
            const double in = x[t * ldx + ch], step = log1p(exp((double)a[t * ldx + ch] + dt[ch]));
            double y = skip[ch] * in;
            for (int i = 0; i < kept_rows; i++) {
                s[i] = exp(rate[i * channels + ch] * step) * s[i] + bc[t * ldbc + i] * step * in;
                y += bc[t * ldbc + kept_rows + i] * s[i];
                most = fmax(most, fabs(s[i]));
            }
            near("output", t, ch, first[t * ldo + ch], y, 1e-5 * most * kept_rows);
        }
        for (int i = 0; i < kept_rows; i++) near("state", i, ch, end[i * channels + ch], s[i], 1e-5 * most);
    }
    free(was), free(first), free(end);
    drop();
}

static void cases(enum cpu_level l) {
    static const struct dims dims[] = {{2, 4, 32, 32}, {1, 1, 7, 5},   {3, 3, 16, 72},
                                       {2, 6, 33, 70}, {1, 2, 64, 64}, {2, 2, 1, 1}};
    for (int i = 0; i < 24; i++) {
        int n = (int[]){1, 2, 3, 5, N}[i % 5];
        check_gate(n, 1 + i % 3, (int[]){1, 15, 16, 33, 200}[i / 2 % 5],
                   (enum gate_kind[]){GATE_SIGMOID, GATE_SILU, GATE_NORMAL, GATE_SOFTPLUS2, GATE_GELU_TANH}[i % 5]);
        check_conv(n, (int[]){1, 24, 130, 5000}[i % 4], (int[]){4, 1, 2, 9}[i / 4 % 4], i % 3, i & 1, i / 2 % 2,
                   i / 3 % 2, i / 5 % 3);
        check_scan(n, (int[]){1, 24, 130, 500}[i % 4], (int[]){16, 1, 7, 33}[i / 4 % 4], i % 3, i & 1);
        for (int rule = DELTA_GATED; rule <= DELTA_CHANNELS; rule++)
            check_delta(n, &dims[i % 6], i % 4 != 1, i / 6 % 2, (enum delta_rule)rule, 0, false);
        check_delta(n, &dims[i % 6], i % 4 != 1, i / 6 % 2, DELTA_CHANNELS, -5, false);
        check_delta(n, &dims[i % 6], i % 4 != 1, i / 6 % 2, DELTA_CHANNELS, 0, true);
    }
}

int main(int argc, char **argv) { return each_level(argc > 1 ? strtoull(argv[1], NULL, 10) : 1, cases); }
