#pragma once
/* Operations with a state from row to row: convolutions, recurrences, and keys that cover several tokens. */
#include "base/op_common.h"

/* Causal convolution of each channel along the rows, then SiLU: out[i][c] = silu(bias[c] + sum of w[j][c] * x[i - taps
 * + 1 + j][c]). Rows before the first come from `before`, NULL: zeros; `after` receives the last taps - 1 rows,
 * including those from `before`, and may be the same memory. With a delay, out is that of `delay` rows earlier. `past`
 * rows are kept instead of taps - 1, at least taps - 1 + delay, so that calls with several delays share a state: all
 * but the last of them leave `after` alone (is_peek). w NULL, with one tap: 1. */
struct op_conv {
    float *out;          /* [n, channels], rows ldo apart */
    const float *x;      /* [n, channels], rows ldx apart */
    const float *w;      /* [taps, channels] */
    const float *before; /* [taps - 1, channels] */
    float *after;
    int n, channels, taps, ldx, ldo;
    const struct op_address *at; /* NULL, or supplies before and after */
    const float *bias;           /* [channels] or NULL */
    bool is_linear;              /* without SiLU */
    int state_at;                /* with at: offset of the state from its addresses, floats */
    bool is_peek;
    int delay, past; /* past 0: taps - 1 + delay */
};
OP_INLINE int op_conv_past(const struct op_conv *o) { return o->past ? o->past : o->taps - 1 + o->delay; }

/* Recurrences of linear attention, row by row over one sequence, for each value head h with its key head h / (v_heads /
 * k_heads), all in float32. DELTA_GATED, the gated delta rule: q, k normalized to unit length (x / sqrt(sum x^2 +
 * 1e-6)), q times k_dim^-0.5 S *= exp(rate[h] * softplus(a + dt[h])) S += k (x) sigmoid(b) (v - S^T k) out = S^T q
 * DELTA_MAMBA2 (Dao and Gu 2024, where k is B, q is C, v is x), with t = softplus(a + dt[h]); b is not read:
 *   S = exp(rate[h] * t) S + k (x) t v;  out = S^T q + skip[h] * v
 * DELTA_LIGHTNING (MiniMax-01), a fixed decay per head; b, a, rate and dt are not read:
 *   S = exp(-slope * 2^(-8 (h + 1) / v_heads)) S + k (x) v;  out = S^T q
 * DELTA_CHANNELS (Kimi delta attention), DELTA_GATED with a decay per row of the state instead of per head, S =
 * diag(exp(g)) S: g = rate[h] * softplus(f), or with bound < 0 g = bound * sigmoid(-rate[h] * f), where f = a[h][i] +
 * dt[h][i]; doubles_beta: 2 * sigmoid(b) instead of sigmoid(b) The state S is `before` before the first row (NULL:
 * zeros) and `after` after the last; both may be the same memory. A row's bits do not depend on the number of rows in
 * the call. */
enum delta_rule { DELTA_GATED, DELTA_MAMBA2, DELTA_LIGHTNING, DELTA_CHANNELS };
enum { DELTA_MAX_K_DIM = 1024 };
struct op_delta {
    float *out;             /* [n, v_heads, v_dim], rows ldo apart */
    const float *q, *k, *v; /* [n, k_heads, k_dim] twice, [n, v_heads, v_dim]; rows ldx apart */
    const float *b, *a;     /* [n, v_heads], rows ldg apart; DELTA_CHANNELS: a [n, v_heads, k_dim] */
    const float *rate, *dt; /* [v_heads], rate is negative; DELTA_CHANNELS: dt [v_heads, k_dim] */
    const float *before;    /* [v_heads, k_dim, v_dim] */
    float *after;
    int n, k_heads, v_heads, k_dim, v_dim, ldx, ldg, ldo;
    const struct op_address *at; /* NULL, or supplies before and after */
    const float *skip;           /* [v_heads], DELTA_MAMBA2 */
    float slope;                 /* DELTA_LIGHTNING */
    float bound;                 /* DELTA_CHANNELS: least g; 0: none */
    bool doubles_beta;           /* DELTA_CHANNELS */
    uint8_t rule;                /* enum delta_rule */
    bool is_tiled;               /* value head h has key head h % k_heads, instead of h / (v_heads / k_heads) */
};

/* Mamba's selective scan (Gu and Dao 2023), row by row over one sequence, for each channel, all in float32: with t =
 * softplus(a + dt[ch]) S[i][ch] = exp(rate[i][ch] * t) S[i][ch] + b[i] * t * x[ch];  out[ch] = sum over i of c[i] *
 * S[i][ch] + skip[ch] * x[ch] The state S is as in op_delta. */
struct op_scan {
    float *out;                    /* [n, channels], rows ldo apart */
    const float *x, *a;            /* [n, channels], rows ldx and lda apart */
    const float *b, *c;            /* [n, state], rows ldbc apart */
    const float *rate, *dt, *skip; /* [state, channels], negative; [channels]; [channels] */
    const float *before;           /* [state, channels] */
    float *after;
    int n, channels, state, ldx, lda, ldbc, ldo;
    const struct op_address *at; /* NULL, or supplies before and after */
};

/* Compresses windows of `ratio` tokens into one entry each: for every element the mean of the window's kv, weighted by
 * the softmax of its gates, gate + bias[index in the window]. With `overlap` a row has two series, [series, dim]: an
 * entry uses the second series of its own window and the first series of the window before. Row i is at position pos0 +
 * i; out receives the entries of the windows that end in these rows, in order. The accumulators of the open windows are
 * `before` before the first row (not read if pos0 is 0) and `after` after the last; both may be the same memory. They
 * hold, for the open entry and with overlap for the next one, the largest gate, the sum of weights and the weighted
 * sum. Rows are added in the order of positions, whatever their number in a call. */
struct op_compress {
    float *out;             /* [entries, dim] */
    const float *kv, *gate; /* [n, series * dim], rows ldx apart; gate NULL: 0, for a plain mean */
    const float *bias;      /* [ratio, series * dim]; NULL: 0 */
    const float *before;    /* [series, 3, dim] */
    float *after;
    int n, pos0, ratio, dim, ldx;
    bool overlap;
    /* NULL, or supplies pos0, and before and after, which are state_at floats past its addresses; out has room for the
     * maximum */
    const struct op_address *at;
    int state_at;
};
OP_INLINE int op_compressed(const struct op_compress *o) { /* entries; with at the maximum */
    return o->at ? op_completed_most(o->n, o->ratio) : op_completed(o->pos0, o->n, o->ratio);
}

#define OPS_STATE(X) \
    X(conv, CONV, SMALL, ELEM, 8, o->n, o->channels, 1) \
    X(delta, DELTA, KERNEL, ATTENTION, 0, o->n, o->v_heads, o->v_dim) \
    X(scan, SCAN, KERNEL, ATTENTION, 0, o->n, o->channels, 1) \
    X(compress, COMPRESS, KERNEL, ELEM, 8, o->n, o->dim, o->overlap ? 2 : 1)
