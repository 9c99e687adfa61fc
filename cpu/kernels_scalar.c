/* The kernels in plain C: the reference for all other levels, and the fallback without an ISA level. Written for
 * readability; several partial sums keep long float32 sums accurate and allow vectorisation. */
#include <math.h>
#include <string.h>

#include "base/mat_at.h"
#include "base/minifloat.h"
#include "base/race.h"
#include "cpu/formats.h"
#include "cpu/kernels.h"

enum { LANES = 16, SPAN = 256 }; /* partial sums of a dot product; columns decoded at a time */

/* --- Narrow formats to float32 ---------------------------------------------------------------- */

static void widen_f32(float *out, const void *in, int n) { memcpy(out, in, (size_t)n * 4); }
static uint16_t half_at(const void *in, int i) { /* tensors may be unaligned */
    uint16_t h;
    memcpy(&h, (const uint8_t *)in + 2 * (size_t)i, 2);
    return h;
}
static void widen_bf16(float *out, const void *in, int n) {
    for (int i = 0; i < n; i++) out[i] = bf16_to_f32(half_at(in, i));
}
static void widen_f16(float *out, const void *in, int n) {
    for (int i = 0; i < n; i++) out[i] = f16_to_f32(half_at(in, i));
}
/* As e4m3_to_f32(), without branches: the loop over it becomes vector code. */
static inline float e4m3_at(const uint8_t *p) {
    const uint32_t mag = *p & 0x7f, is_small = 0u - (mag < 8), is_nan = 0u - (mag == 0x7f),
                   small = f32_bits((float)(int)mag * 0x1p-9f);
    const uint32_t bits =
        (is_small & small) | (is_nan & 0x7fc00000) | (~(is_small | is_nan) & ((mag << 20) + (120u << 23)));
    return f32_of_bits((uint32_t)(*p & 0x80) << 24 | bits);
}
static void widen_e4m3(float *restrict out, const void *restrict in, int n) {
    const uint8_t *p = in;
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        for (int l = 0; l < LANES; l++) out[i + l] = e4m3_at(p + i + l);
    for (; i < n; i++) out[i] = e4m3_at(p + i);
}
static void widen_e2m1(float *out, const void *in, int n) {
    const uint8_t *p = in;
    for (int i = 0; i < n; i++) out[i] = e2m1_to_f32((uint8_t)(p[i / 2] >> (i % 2 * 4)));
}
static const widen_fn widen[DT_COUNT] = {
    [DT_F32] = widen_f32, [DT_BF16] = widen_bf16, [DT_F16] = widen_f16, [DT_E4M3] = widen_e4m3, [DT_E2M1] = widen_e2m1,
};

static DECODE_FN(decode_any) {
    for (int c = c0; c < c1; c++) out[c - c0] = mat_at(w, r, c);
}
static DECODE_FN(decode_plain) {
    const uint8_t *row = (const uint8_t *)w->data + (size_t)r * w->stride;
    if (w->dtype == DT_E2M1 && c0 % 2 && c0 < c1) *out++ = mat_at(w, r, c0++);
    widen[w->dtype](out, row + dtype_bytes(w->dtype, (size_t)c0), c1 - c0);
    if (!w->scale) return;
    for (int c = c0; c < c1;) {
        int end = w->block_cols - c % w->block_cols + c;
        float s = mat_scale_at(w, r, c);
        for (end = end < c1 ? end : c1; c + LANES <= end; c += LANES)
            for (int l = 0; l < LANES; l++) out[c - c0 + l] *= s;
        for (; c < end; c++) out[c - c0] *= s;
    }
}
static decode_fn decoder(uint8_t dtype) { return widen[dtype] ? decode_plain : decode_any; }

/* --- Products with a weight matrix ------------------------------------------------------------ */

static size_t floats(int n) { return (size_t)n * sizeof(float); }
static void race_reads_rows(const float *p, int rows, int ld, int n) {
    for (int i = 0; i < rows; i++) race_reads(p + (size_t)i * (size_t)ld, floats(n));
}
static void race_product(float *const *y, const float *const *x, int n, const struct mat *w, int outputs, int inputs) {
    race_reads(w->data, mat_span(w));
    for (int t = 0; t < n; t++) race_reads(x[t], floats(inputs)), race_writes(y[t], floats(outputs));
}

static float dot_end(const float *a) {
    float b[LANES];
    memcpy(b, a, sizeof b);
    for (int half = LANES / 2; half; half /= 2)
        for (int i = 0; i < half; i++) b[i] += b[i + half];
    return b[0];
}
static void dot_add(float *acc, const float *a, const float *b, int n) {
    float sum[LANES]; /* in registers */
    int i = 0;
    memcpy(sum, acc, sizeof sum);
    for (; i + LANES <= n; i += LANES) {
#pragma GCC unroll 16
        for (int l = 0; l < LANES; l++) sum[l] += a[i + l] * b[i + l];
    }
    memcpy(acc, sum, sizeof sum);
    for (; i < n; i++) acc[i % LANES] += a[i] * b[i];
}

GEMV_FN(gemv_scalar) {
    race_product(y, x, n, w, w->rows, w->cols);
    float span[SPAN];
    decode_fn decode = decoder(w->dtype);
    for (int r = 0; r < w->rows; r++) {
        float acc[KERNEL_TOKENS][LANES] = {{0}};
        for (int c = 0; c < w->cols; c += SPAN) {
            int m = w->cols - c < SPAN ? w->cols - c : SPAN;
            decode(span, w, r, c, c + m);
            for (int t = 0; t < n; t++) dot_add(acc[t], span, x[t] + c, m);
        }
        for (int t = 0; t < n; t++) y[t][r] = dot_end(acc[t]);
    }
}

GEVM_FN(gevm_scalar) {
    race_product(y, x, n, w, c1 - c0, w->rows);
    float span[SPAN];
    decode_fn decode = decoder(w->dtype);
    for (int t = 0; t < n; t++) memset(y[t], 0, (size_t)(c1 - c0) * 4);
    for (int c = c0; c < c1; c += SPAN) {
        int m = c1 - c < SPAN ? c1 - c : SPAN;
        for (int r = 0; r < w->rows; r++) {
            decode(span, w, r, c, c + m);
            for (int t = 0; t < n; t++)
                for (int i = 0; i < m; i++) y[t][c - c0 + i] += x[t][r] * span[i];
        }
    }
}

/* --- Attention -------------------------------------------------------------------------------- */

static QK_FN(qk_scalar) {
    race_reads_rows(k, nk, ldk, dim);
    for (int i = 0; i < nq; i++) race_reads(q[i], floats(dim)), race_writes(s + (size_t)i * (size_t)lds, floats(nk));
    for (int i = 0; i < nq; i++)
        for (int j = 0; j < nk; j++) {
            float acc[LANES] = {0};
            dot_add(acc, q[i], k + (size_t)j * (size_t)ldk, dim);
            s[i * lds + j] = dot_end(acc) * scale;
        }
}
static SOFTMAX_FN(soft_scalar) {
    race_writes(s, floats(n));
    float old = *max, m = old, total = 0;
    for (int j = 0; j < n; j++) m = s[j] > m ? s[j] : m;
    for (int j = 0; j < n; j++) total += s[j] = expf(s[j] - m);
    float corr = expf(old - m);
    *max = m;
    *sum = *sum * corr + total;
    return corr;
}
static PV_FN(pv_scalar) {
    race_reads_rows(v, nk, ldv, dim);
    race_reads_rows(p, nq, ldp, nk);
    for (int i = 0; i < nq; i++) race_writes(o + (size_t)i * (size_t)ldo, floats(dim));
    for (int i = 0; i < nq; i++) {
        float *restrict row = o + (size_t)i * (size_t)ldo;
        for (int d = 0; d < dim; d++) row[d] *= corr[i];
        for (int j = 0; j < nk; j++)
            for (int d = 0; d < dim; d++) row[d] += p[i * ldp + j] * v[(size_t)j * (size_t)ldv + (size_t)d];
    }
}

/* --- Element-wise ----------------------------------------------------------------------------- */

static SUMSQ_FN(sumsq_scalar) {
    race_reads(x, floats(n));
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return (float)sum;
}
static SCALE_FN(scale_scalar) {
    race_reads(x, floats(n));
    race_reads(w, floats(n));
    race_writes(out, floats(n));
    for (int i = 0; i < n; i++) out[i] = x[i] * s * (w[i] + add);
}
static GLU_FN(glu_scalar) {
    race_reads(g, floats(n));
    race_reads(u, floats(n));
    race_writes(h, floats(n));
    const float limit = a->limit > 0 ? a->limit : INFINITY, alpha = a->alpha > 0 ? a->alpha : 1, one = 1;
    const int step = a->is_ungated ? 0 : 1;
    if (a->is_ungated) u = &one;
    for (int i = 0; i < n && a->is_relu; i++) h[i] = (g[i] < 0 ? 0 : g[i]) * u[i * step];
    for (int i = 0; i < n && a->gate_cap > 0; i++)
        h[i] =
            a->gate_cap * tanhf(g[i] / a->gate_cap) / (1 + expf(-g[i])) * (a->up_cap * tanhf(u[i * step] / a->up_cap));
    for (int i = 0; i < n && a->is_erf; i++) h[i] = 0.5f * g[i] * (1 + erff(g[i] * 0.70710678f)) * u[i * step];
    for (int i = 0; i < n && a->xielu_beta > 0; i++)
        h[i] = (g[i] > 0 ? a->xielu_p * g[i] * g[i] : a->xielu_n * (expm1f(g[i]) - g[i])) + a->xielu_beta * g[i];
    const bool other = a->is_relu || a->is_erf || a->gate_cap > 0 || a->xielu_beta > 0;
    for (int i = 0; i < n && !other; i++) { /* NaN fails every comparison and stays */
        const float up = u[i * step];
        float x = g[i] > limit && !a->clamp_after ? limit : g[i], y = up > limit ? limit : up < -limit ? -limit : up;
        const float rate = a->cubic > 0 ? alpha + a->cubic * x * x : alpha;
        x /= 1 + expf(-rate * x);
        h[i] = (x > limit && a->clamp_after ? limit : x) * (y + a->shift);
    }
}
static AXPY_FN(axpy_scalar) {
    race_reads(x, floats(n));
    race_writes(y, floats(n));
    for (int i = 0; i < n; i++) y[i] += a * x[i];
}
static ROPE_FN(rope_scalar) {
    race_writes(x, floats(2 * half));
    int step = interleaved ? 2 : 1, other = interleaved ? 1 : half;
    for (int j = 0; j < half; j++) {
        float a = x[j * step], b = x[j * step + other], s = sin[j] * sign;
        x[j * step] = a * cos[j] - b * s;
        x[j * step + other] = b * cos[j] + a * s;
    }
}

static GATE_FN(gate_scalar) {
    race_reads(g, floats(n));
    race_writes(y, floats(n));
    for (int i = 0; i < n; i++) y[i] /= 1 + expf(-g[i]);
}
static CONV_FN(conv_scalar) {
    race_reads_rows(w, taps, ldw, n);
    for (int j = 0; j < taps; j++) race_reads(x[j], floats(n));
    race_writes(out, floats(n));
    for (int c = 0; c < n; c++) {
        float sum = bias ? bias[c] : 0;
        for (int j = 0; j < taps; j++) sum += w[(size_t)j * (size_t)ldw + (size_t)c] * x[j][c];
        out[c] = is_linear ? sum : sum / (1 + expf(-sum));
    }
}
static DELTA_FN(delta_scalar) {
    for (int i = 0; i < k_dim; i++) {
        if (from && from != to) race_reads(from + (size_t)i * (size_t)ld, floats(n));
        race_writes(to + (size_t)i * (size_t)ld, floats(n));
    }
    race_writes(o, floats(n));
    float d[DELTA_COLUMNS] = {0};
    for (int i = 0; from && !r->ignores_seen && i < k_dim; i++)
        for (int c = 0; c < n; c++)
            d[c] += from[(size_t)i * (size_t)ld + (size_t)c] * (r->decays ? r->decays[i] : 1) * r->k[i];
    for (int c = 0; c < n; c++) {
        d[c] = r->beta * (v[c] - r->decay * r->ks * d[c]) * r->ks;
        o[c] = 0;
    }
    for (int i = 0; i < k_dim; i++)
        for (int c = 0; c < n; c++) {
            size_t at = (size_t)i * (size_t)ld + (size_t)c;
            to[at] = (from ? (r->decays ? r->decays[i] : r->decay) * from[at] : 0) + r->k[i] * d[c];
            o[c] += to[at] * r->q[i];
        }
    for (int c = 0; c < n; c++) o[c] = o[c] * r->qs + r->skip * v[c];
}
static SCAN_FN(scan_scalar) {
    for (int i = 0; i < r->state; i++) {
        if (from && from != to) race_reads(from + (size_t)i * (size_t)r->ld, floats(n));
        race_writes(to + (size_t)i * (size_t)r->ld, floats(n));
    }
    race_writes(o, floats(n));
    for (int c = 0; c < n; c++) {
        float sum = 0;
        for (int i = 0; i < r->state; i++) {
            const size_t at = (size_t)i * (size_t)r->ld + (size_t)c;
            to[at] = (from ? expf(r->rate[at] * r->step[c]) * from[at] : 0) + r->b[i] * (r->step[c] * r->x[c]);
            sum += r->c[i] * to[at];
        }
        o[c] = sum + r->skip[c] * r->x[c];
    }
}

/* --- Limits ----------------------------------------------------------------------------------- */

static READ_FN(read_scalar) {
    uint64_t sum = 0, v;
    size_t part = bytes / (size_t)streams;
    for (size_t o = 0; o < part; o += 64)
        for (int s = 0; s < streams; s++)
            for (size_t i = 0; i < 64; i += 8) {
                memcpy(&v, p + (size_t)s * part + o + i, 8);
                sum |= v;
            }
    return (float)sum;
}
static PEAK_FN(peak_scalar) {
    float acc[LANES];
    for (int l = 0; l < LANES; l++) acc[l] = (float)l;
    for (int64_t k = 0; k < n; k++)
        for (int l = 0; l < LANES; l++) acc[l] = acc[l] * 1.000001f + 1e-7f;
    *sink = dot_end(acc);
    return (double)n * 2 * LANES;
}

void kernels_scalar(struct kernels *k) {
#define DTYPE(name) FORMAT_DTYPE(name),
    static const uint8_t formats[] = {FORMATS(DTYPE)};
    for (size_t i = 0; i < sizeof formats; i++) {
        k->gemv[formats[i]] = gemv_scalar;
        k->gevm[formats[i]] = gevm_scalar;
        k->decode[formats[i]] = decoder(formats[i]);
        k->widen[formats[i]] = widen[formats[i]];
    }
    k->qk = qk_scalar;
    k->soft = soft_scalar;
    k->pv = pv_scalar;
    k->sumsq = sumsq_scalar;
    k->scale = scale_scalar;
    k->glu = glu_scalar;
    k->axpy = axpy_scalar;
    k->rope = rope_scalar;
    k->gate = gate_scalar;
    k->conv = conv_scalar;
    k->delta = delta_scalar;
    k->scan = scan_scalar;
    k->read = read_scalar;
    k->peak = peak_scalar;
}
