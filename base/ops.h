#pragma once
/* The operations that a model is made of. engine/layer/ is written once against this table; the CPU (cpu/cpu.h), the
 * emulated device and CUDA (gpu/gpu.h) implement it, so every mode runs the same definition of the model.
 *
 * Conventions. Activations are float32, row-major, one row per token; `ld` is the row stride in floats. All pointers in
 * the argument structs are memory of the executor (host memory for the CPU). Weights are struct mat. A CPU call has
 * finished when it returns. A device enqueues on the executor's stream and copies the argument struct; arrays that it
 * points to must stay valid until the stream has passed. Results do not depend on the number of threads: each output
 * element is summed in one fixed order. On the CPU, at every level, a row of a call of at most BATCH_INVARIANT_ROWS
 * rows has the same bits as alone, and activations keep 16 bits or more (float32, the sum of two BF16, or integers
 * scaled by the largest of some columns). So decoding sessions and verified drafts give the same text in any batch.
 * Larger calls may round activations to BF16, or quantize them to 16-bit integers over more columns, which can change a
 * row's bits. Calls return 0, or ERR_MEMORY (no workspace), ERR_RUNTIME (device fault), ERR_CANCELLED (exec->cancel was
 * set). */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/mat.h"

enum { BATCH_INVARIANT_ROWS = 24 };

struct ops;
struct exec { /* the executor; each backend's own struct begins with it */
    const struct ops *ops;
    const _Atomic int *cancel; /* may be NULL; non-zero: return ERR_CANCELLED soon */
    struct op_viewer *viewer;  /* NULL, or receives the values of each stage of a layer; CPU executors only */
};

/* Receives the values of a named stage: n rows of m numbers, ld apart, in host memory. layer -1: the stage precedes or
 * follows the layers. */
struct op_viewer {
    void (*view)(struct op_viewer *, int layer, const char *stage, const float *rows, int n, int m, int ld);
};
static inline void op_show(const struct exec *x, int layer, const char *stage, const float *rows, int n, int m) {
    if (x->viewer) x->viewer->view(x->viewer, layer, stage, rows, n, m, m);
}

/* out[i] = scale * row ids[i] of table, float32 [n, cols] */
struct op_embed {
    float *out;
    const int32_t *ids;
    struct mat table;
    int n;
    float scale; /* 0: 1 */
};

/* out = x / sqrt(mean(x^2) + eps) * (w + add), for `rows` rows of `dim` (e.g. n tokens or n * heads). w NULL: all 1
 * (RMS only). mean != 0: LayerNorm
 * ((x - mean) / sqrt(var + eps) * w + bias). l2_limit > 0 (RMS only): rows are only shortened to that length, out = x *
 * min(1, l2_limit / (sqrt(sum x^2) + 1e-6)) * (w + add). x and out may be the same. bad: NULL, or an int, initially -1,
 * that receives tag if an input is not finite. */
struct op_norm {
    float *out;
    const float *x;
    const void *w, *bias; /* [dim] of w_dtype: F32, BF16 or F16; bias may be NULL */
    int rows, dim, ldx, ldo;
    float eps, add, l2_limit;
    uint8_t w_dtype, layer_norm;
    int tag;
    _Atomic int *bad;
};

/* y[i] = W x[i] (+ bias) (+ y[i] if accumulate). W [rows, cols], x [n, cols], y [n, rows]. transposed: y = W^T x, x [n,
 * rows], y [n, cols]. bias float32. `batch` > 1 repeats this per head: W advances by batch_rows rows, x by batch_x and
 * y by batch_y floats. */
struct op_linear {
    float *y;
    const float *x;
    const float *bias;
    struct mat w;
    int n, ldx, ldy;
    bool accumulate, transposed;
    bool exact; /* computes in float32 as for few tokens, whatever n (routers: rounding must not change a selection) */
    bool wide;  /* the CPU keeps at least 16 bits of an activation whatever n; BF16 would keep 8 */
    int batch, batch_rows, batch_x, batch_y;
    /* NULL, or [n]: receives the row of W with a token's largest y, the first on ties; -1: a y was NaN. CPU only,
     * without transposed and batch: a greedy LM head. */
    int32_t *top;
};

/* cos[i][j], sin[i][j] = mscale * cos/sin(pos[i] * inv_freq[j]), j < half; pos NULL: i * step + pos0. longest > 0
 * (LongRoPE): rows of longer sequences use the second row of inv_freq, and long_mscale. */
struct op_rope_table {
    float *cos, *sin; /* [n, half] */
    const int32_t *pos;
    const float *inv_freq; /* [half], or [2, half] */
    const int32_t *length; /* [n]: sequence length of each row; NULL: `total` for all */
    int n, half, longest, total, pos0, step;
    float mscale, long_mscale;
    const struct op_address *at; /* NULL, or supplies pos0: its position rounded down to a multiple of step */
};
/* Rotates in place the 2*half numbers at x + i * ld + h * head_ld, for each token i and head h. interleaved: pairs (2j,
 * 2j+1), keeping the layout; else pairs (j, j + half). inverse rotates by -angle. */
struct op_rope {
    float *x;
    const float *cos, *sin; /* [n, half] */
    int n, heads, ld, head_ld, half;
    bool interleaved, inverse;
};

/* A plane of the KV cache: rows of heads * dim elements, row = token position. F32, BF16, or E4M3 with a float32 scale
 * per (row, head): amax / 448, 1 if amax is 0. On devices, rows may be in blocks, which caches with a common prefix
 * share: blocks[b] gives the memory of block b, which holds the same rows of all planes, those of each plane together.
 * The list is read when the operation runs. */
struct kv_block {
    char *mem;
    int64_t mem_index; /* index of the block in mem */
};
struct kv_plane {
    void *data;   /* unused with blocks, like scale */
    float *scale; /* [rows, heads], E4M3 only */
    int heads, dim;
    uint8_t dtype;
    int block_rows;                /* rows per block */
    const struct kv_block *blocks; /* NULL: contiguous rows */
    size_t at, scale_at;           /* offset of the rows in mem's first block, bytes */
};
/* A plane's addresses and a position, read from memory when the operation runs, so that an operation recorded once
 * serves every token of any session (graphs, gpu.h). Devices only. */
struct op_address {
    void *data; /* a state before the call's first row; NULL: initial */
    float *scale;
    void *after;                   /* destination of the state */
    const struct kv_block *blocks; /* as in kv_plane; the call supplies the plane's other block fields */
    int32_t pos;                   /* position of the call's first row */
};
/* Returns the number of groups of `every` tokens that tokens [pos, pos + n) complete; and the maximum over all
 * positions. */
static inline int op_completed(int pos, int n, int every) { return (pos + n) / every - pos / every; }
static inline int op_completed_most(int n, int every) { return (n + every - 1) / every; }
struct op_kv_store {
    struct kv_plane plane;
    const float *x; /* [n, heads * dim], rows ldx apart */
    int row0, n, ldx;
    const struct op_address *at; /* NULL, or supplies plane.data, plane.scale, row0 */
    int every,
        /* with at, for rows that cover several tokens: starts at row at->pos / every and stores the rows that `tokens`
           tokens complete, at most n */
        tokens;
};
/* out [n, heads * dim] = rows row0 .. row0 + n of the plane, as float32 */
struct op_kv_load {
    struct kv_plane plane;
    float *out;
    int row0, n, ldo;
};

/* Keys and values of `heads` heads as BF16, from rows row0 .. row0 + n of a latent cache (one head: W's columns, then
 * the rope key that all heads share): k[i][h] = W_h latent[i] and the rope key, v[i][h] = the last v_dim rows of W_h
 * times it. Expands MLA on devices whose attention reads BF16; elsewhere ops->expand is NULL and linear computes them
 * in float32. */
struct op_expand {
    void *k;                /* BF16 [n, heads, nope + latent.dim - w.cols] */
    void *v;                /* BF16 [n, heads, v_dim] */
    struct kv_plane latent; /* heads 1 */
    struct mat w;           /* [heads * (nope + v_dim), kv_lora] */
    int row0, n, heads, nope, v_dim;
};

/* Causal attention with online softmax. Query row i is at position q_pos0 + i (or q_pos[i]); key row j at k_pos0 + j,
 * or with k_step (without window) at k_pos0 + j * k_step. A key is visible if its position <= the query's, and >
 * query's - window if window > 0, and if chunk_keys > 0 in the query's chunk of that many positions, counted from 0.
 * Query head h uses KV head h / (n_heads / k.heads). The value is the first v_dim elements of v's row (absorbed MLA: v
 * is k's own plane). With `chosen`, a row sees only those visible keys that op_select chose for it. sinks [n_heads]: a
 * logit that takes part in the softmax without a value. lse, if set, receives log(sum exp) [n, n_heads] of the scaled
 * scores, for merging partial results (zig-zag stripes, split KV); a query without visible keys gives 0 and -inf. In a
 * call of at most BATCH_INVARIANT_ROWS rows, a row's bits do not depend on n_keys or on keys that it does not see.
 */
struct op_attention {
    float *out;     /* [n, n_heads, v_dim], rows ldo apart */
    const float *q; /* [n, n_heads, k.dim], rows ldq apart */
    struct kv_plane k, v;
    const float *sinks;
    float *lse;
    const int32_t *q_pos;  /* NULL: q_pos0 + i */
    const int32_t *chosen; /* NULL, or [n, lists, n_chosen] rows of k and v; not with window */
    int n, n_heads, v_dim, ldq, ldo;
    int q_pos0, k_pos0, k_step, n_keys, window, chunk_keys, n_chosen;
    float scale;
    float softcap; /* > 0: scores, scaled, become softcap * tanh(score / softcap) */
    /* > 1: scores of queries at later positions are then multiplied by log(position) / log(temperature_len) */
    int temperature_len;
    /* NULL, or [n, n_heads, extent]: added to the score of a key at distance 0 .. extent - 1; not with k_step above 1
     */
    const float *bias;
    int extent;
    /* with chosen: the number of keys in a block that an entry selects; each query also sees the keys after its last
     * complete block. 0: entries are keys */
    int chosen_block;
    /* with chosen_block: the block of the query's own key is not in its list and always seen, even if complete */
    bool own_block;
    int chosen_lists; /* with chosen: lists of a query, each for as many KV heads; divides k.heads. 0: 1 */
    /* NULL, or supplies the addresses of k and v, and q_pos0. Keys then end at the last query's position; n_keys is an
     * upper bound for the launch. At most BATCH_INVARIANT_ROWS rows. */
    const struct op_address *at, *v_at;
};

/* Lightning indexer: selects the `topk` best keys of each query, in ascending order; if fewer are visible, all of
 * these, padded with -1. A key's score is scale * sum over heads of weight * max(0, q . k), in float32; ties go to the
 * lower row, NaN ranks last. Positions as in op_attention; the plane has one head. Without weights each head selects
 * for itself: a key's score is scale * q . k. With `block`, each head selects blocks of that many keys among those
 * before the block of the query's own key; a block's score is the highest of its keys' scores, and the last `latest`
 * blocks (at most topk) are always selected. With both, a query has one list of blocks, by the weighted scores. A list
 * of blocks limits a later selection of keys (`among`), which the block of the query's latest visible key is also open
 * to. */
struct op_select {
    int32_t *chosen;     /* [n, op_select_lists(), topk] */
    const float *q;      /* [n, heads, k.dim], rows ldq apart */
    const float *weight; /* [n, heads], or NULL */
    struct kv_plane k;
    int block, latest; /* block 0: keys. latest without weights only */
    /* NULL, or [n, n_among] blocks of among_block keys, selected with topk n_among; n_among * among_block >= topk. With
     * weights only */
    const int32_t *among;
    int n_among, among_block;
    int n, heads, topk, ldq;
    int q_pos0, k_pos0, k_step, n_keys;
    float scale;
    /* NULL, or supplies k's addresses and q_pos0; keys then end at the last query's position, as in op_attention */
    const struct op_address *at;
};
/* Number of keys visible at position pos among n_keys rows that begin at k_pos0, k_step apart (0: 1). */
static inline int op_seen_step(int64_t pos, int k_pos0, int k_step, int n_keys) {
    int64_t n = pos < k_pos0 ? 0 : (pos - k_pos0) / (k_step ? k_step : 1) + 1;
    return n < n_keys ? (int)n : n_keys;
}
static inline int op_seen(int64_t pos, int k_pos0, int n_keys) { return op_seen_step(pos, k_pos0, 1, n_keys); }

static inline int op_select_lists(const struct op_select *o) { return o->weight ? 1 : o->heads; }

/* Blocks among `seen` keys of which a query lists some; own: without the last one, even if it is complete. */
static inline int op_listed_blocks(int seen, int block, bool own) {
    return own ? (seen > 0 ? seen - 1 : 0) / block : seen / block;
}
/* With chosen_block: number of keys that a query sees of those `seen` that its position admits; and the key at index i
 * of them, in rising order of keys. */
static inline int op_seen_blocks(int seen, int n_chosen, int block, bool own) {
    const int complete = op_listed_blocks(seen, block, own);
    return (complete < n_chosen ? complete : n_chosen) * block + seen - complete * block;
}
static inline int op_listed_key(const int32_t *chosen, int seen, int n_chosen, int block, bool own, int i) {
    const int complete = op_listed_blocks(seen, block, own),
              listed = (complete < n_chosen ? complete : n_chosen) * block;
    return i < listed ? chosen[i / block] * block + i % block : complete * block + i - listed;
}

/* Merges two partial attentions over disjoint keys into the first: lse = log(exp(lse) + exp(lse2)), out weighted
 * accordingly. */
struct op_merge {
    float *out;        /* [n, heads, dim], rows ldo apart */
    float *lse;        /* [n, heads] */
    const float *out2; /* [n, heads, dim], rows ldo2 apart */
    const float *lse2;
    int n, heads, dim, ldo, ldo2;
};

/* Router. score = softmax, sigmoid or sqrt(softplus) (float32) of logits [n, n_experts]; choice = score + bias, with
 * SCORE_SIGMOID_BY_LOGIT (Kolibri) logit + bias. With n_group > 1 only experts of the topk_group
 * best groups may be chosen (others -inf, or 0 with group_zero, which may then be chosen); a group's score is the sum
 * of its two best choices (group_top2, V3) or its best (V2). ids [n, topk] in descending order of choice, ties to the
 * lower index, never -1; weights = scores of the chosen, divided by their sum (+ 1e-20) if norm, times scale.
 * SCORE_MIXER (Phi-3.5-MoE's sparse mixer): the best logit, then the best of the others; an expert's weight is its
 * share of the softmax over the logits within 2 * jitter (relative) of it, without those chosen before. With `table`
 * nothing is chosen: ids are table[tokens[i]], in its order, and scores weight them (DeepSeek-V4's hash layers). With
 * n_idle the logits are [n, n_experts + n_idle]: the last ones are of experts that return their input. A token's
 * weights of the idle experts that it chose are summed in idle, and in their place ids has the next best of the others,
 * with weight 0. With expert_scale a chosen expert's weight is also multiplied by its own factor, after the
 * normalization. With n_always the last experts are always chosen, after the topk - n_always best of the others. */
enum score_fn { SCORE_SOFTMAX, SCORE_SIGMOID, SCORE_MIXER, SCORE_SQRT_SOFTPLUS, SCORE_SIGMOID_BY_LOGIT };
struct op_route {
    int32_t *ids;
    float *weights;
    const float *logits;
    const float *bias;         /* [n_experts] or NULL */
    const int32_t *table;      /* [vocab, topk], valid experts; NULL: choose */
    const int32_t *tokens;     /* [n], with table */
    float *idle;               /* [n], with n_idle */
    const float *expert_scale; /* [n_experts] or NULL; not with n_idle */
    int n, n_experts, n_idle, n_always, topk, n_group, topk_group, vocab;
    uint8_t score; /* enum score_fn */
    bool group_top2, group_zero, norm;
    bool group_each; /* each group's topk / n_group best experts are chosen; without n_always and n_idle */
    float scale, jitter;
};

/* Activation of an FFN: g * sigmoid(alpha * g + cubic * g^3) * (u + shift), with g clamped to <= limit and u to
 * +-limit. clamp_after: the activated g is clamped instead of g. All zero: silu(g) * u. GELU in its tanh form
 * (Hendrycks and Gimpel 2016) is alpha = 2 * sqrt(2 / pi), cubic = 0.044715 * alpha, because (1 + tanh(z)) / 2 =
 * sigmoid(2 * z). is_relu: max(g, 0) * u and nothing else; without up, u is g, which gives squared ReLU (So et al.
 * 2021). gate_cap > 0 (Inkling 2, Kimi K3): cap(g, gate_cap) * sigmoid(g) * cap(u, up_cap) and nothing else, where
 * cap(v, c) = c * tanh(v / c). */
struct glu {
    float limit; /* 0: none */
    float alpha; /* 0: 1 */
    float shift, cubic;
    float gate_cap, up_cap; /* both or none */
    bool clamp_after, is_relu;
};
struct expert { /* one FFN: down(glu(gate x, up x)) */
    /* [inter, hidden]; gate_up_transposed: stored as [hidden, inter]. up.data NULL: there is none, and gate x takes its
     * place */
    struct mat gate, up;
    struct mat down;            /* [hidden, inter]; is_transposed: stored as [inter, hidden] */
    float *gate_bias, *up_bias; /* [inter] or NULL */
    float *down_bias;           /* [hidden] or NULL */
    struct glu glu;
    bool is_transposed, gate_up_transposed; /* plain formats without scales only */
};
static inline const struct mat *expert_up(const struct expert *e) { return e->up.data ? &e->up : &e->gate; }
static inline const float *expert_up_bias(const struct expert *e) { return e->up.data ? e->up_bias : e->gate_bias; }
static inline int expert_inter(const struct expert *e) { return e->gate_up_transposed ? e->gate.cols : e->gate.rows; }
static inline int expert_hidden(const struct expert *e) { return e->gate_up_transposed ? e->gate.rows : e->gate.cols; }
/* Experts split by NUMA node: part [e * n_nodes + a] is node a's part of expert e, the shared expert follows the last:
 * some rows of gate and up, in node order, and rows [rows[a], rows[a + 1]) of down (columns if transposed). Each row is
 * computed as in the unsplit expert, so the split does not change results. */
struct expert_shards {
    const struct expert *part;
    const int32_t *rows; /* [n_nodes + 1] */
    int n_nodes;
    /* rows for a call with the shared expert alone, whose y may be wider; op_experts does not read them */
    const int32_t *shared_rows;
};
/* y += sum over the token's experts of weight * expert(x), plus the shared expert (weight 1, or shared_weight[i]). The
 * sum runs in ascending order of expert id, then the shared expert, whatever the threads and the batch. An id of -1 is
 * skipped (another executor computes that expert): the others are summed as if it were not in the list, and a token
 * without other experts gets the shared expert only, or stays unchanged. Any other id outside [0, n_experts), or a
 * chosen expert whose gate.data is NULL, is an ERR_RUNTIME. Tokens are grouped by expert. by_choice: y[i][k] +=
 * expert(x[i]) of the token's choice k, neither weighted nor summed; the rows of skipped choices stay. No shared
 * expert. */
struct op_experts {
    float *y;                           /* [n, hidden]; by_choice [n, topk, hidden] */
    const float *x;                     /* [n, hidden] */
    const int32_t *ids;                 /* [n, topk], -1: skipped */
    const float *weights;               /* [n, topk]; ids NULL: no routed experts (a dense FFN is one shared expert) */
    const struct expert *experts;       /* [n_experts] */
    const struct expert *shared;        /* NULL: none */
    const float *shared_weight;         /* [n] or NULL */
    const struct expert_shards *shards; /* NULL: not split. Otherwise it replaces experts and shared; CPU only */
    /* NULL, or [n_experts]: non-zero where the weights are still being read; those are started last */
    const uint8_t *is_loading;
    int n, topk, n_experts, hidden;
    bool wide, by_choice;    /* wide: as op_linear's */
    float computed_fraction; /* expected fraction of the choices computed by this call, for cost models; 0: all */
};

/* Element-wise, n rows of m numbers */
struct op_add {
    float *y;
    const float *x;
    int n, m, ldx; /* ldx: of x; 0: m */
};                 /* y += x */
struct op_sigmoid {
    float *x;
    int n, m;
}; /* x = 1 / (1 + exp(-x)) */
struct op_clip {
    float *x;
    int n, m;
    float limit;
}; /* x = min(max(x, -limit), limit); NaN stays NaN */

struct op_fill {
    float *x;
    int n, m;
    float value;
}; /* x = value */
struct op_softcap {
    float *x;
    int n, m;
    float cap;
}; /* x = cap * tanh(x / cap); NaN stays NaN */

/* y[i * ldy + h * head_ldy + d] = x[i * ldx + h * head_ldx + d], d < dim; head_ldx 0 repeats one head for all. No
 * overlap. */
struct op_copy {
    float *y;
    const float *x;
    int n, heads, dim, ldx, ldy, head_ldx, head_ldy;
};

enum gate_kind {
    GATE_SIGMOID,  /* 1 / (1 + exp(-g)) */
    GATE_SILU,     /* g / (1 + exp(-g)) */
    GATE_SOFTPLUS, /* log(1 + exp(g)) */
    GATE_LINEAR,   /* g */
    GATE_NORMAL    /* the normal distribution up to g, which makes y = g its exact GELU */
};
/* y *= f(g), where g has its own row and head strides. per_head: one g for all dim elements of a head. */
struct op_gate {
    float *y;       /* [n, heads, dim], rows ldy apart, heads head_ldy */
    const float *g; /* the same, with strides ldg and head_ldg, ldg 0: one row for all; per_head [n, heads, 1] */
    int n, heads, dim, ldy, ldg, head_ldy, head_ldg;
    uint8_t kind; /* enum gate_kind */
    bool per_head;
};

/* x *= by * f(p / every), p = pos + shift, rows ld apart. Scales queries by their position, as Llama 4 and Mistral 4
 * (steps), Inkling (smooth) and Beam (power) do. slope 0: f is 1, and pos and the rest are not read. */
enum scale_kind {
    SCALE_STEPS,  /* f(t) = 1 + slope * log(1 + floor(t)) */
    SCALE_SMOOTH, /* 1 + slope * log(max(t, 1)) */
    SCALE_POWER   /* (1 + t)^slope */
};
struct op_scale {
    float *x;           /* [n, m] */
    const int32_t *pos; /* [n] */
    int n, m, ld, every, shift;
    float by, slope;
    uint8_t kind; /* enum scale_kind */
    /* [m / dim] instead of slope and kind: head h is multiplied by slopes[h] * log(1 + position) + bases[h]. NULL: none
     */
    const float *slopes, *bases;
    int dim;
};

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
static inline int op_conv_past(const struct op_conv *o) { return o->past ? o->past : o->taps - 1 + o->delay; }

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
static inline int op_compressed(const struct op_compress *o) { /* entries; with at the maximum */
    return o->at ? op_completed_most(o->n, o->ratio) : op_completed(o->pos0, o->n, o->ratio);
}

/* Several residual streams (manifold-constrained hyper-connections). Adds the output of an attention or FFN block to
 * each stream: streams[i][s] += post[i][s] * x[i]; post NULL: initializes them, streams[i][s] = x[i]. */
struct op_spread {
    float *streams;    /* [n, n_streams, hidden] */
    const float *x;    /* [n, hidden] */
    const float *post; /* [n, n_streams] */
    int n, hidden, n_streams;
};
/* Computes the next block's input from the streams and mixes them. With r = 1 / sqrt(mean of all streams' squares +
 * norm_eps), and the parts pre [s], post [s], comb [s, s] of mix, m * r * scale[part] + base: pre = sigmoid(.) + eps,
 * post = magnitude * sigmoid(.) + post_eps comb = softmax over its last dimension + eps, then divided by the sums (+
 * eps) of its columns, and iters - 1 times by those of its rows and of its columns (Sinkhorn-Knopp) in = sum of pre[s]
 * * streams[s];  streams[t] = sum over s of comb[s][t] * streams[s];  out = 0 iters 0 (independent hyper-connections):
 * mix has no comb and the streams stay. post NULL: after the last block; mix has pre only and the streams stay. With
 * `earlier` the weights of `in` are those that the previous call left there, and pre takes their place; after the last
 * block mix is then NULL. */
struct op_mix {
    float *in;          /* [n, hidden] */
    float *out;         /* [n, hidden] or NULL: the block's accumulator */
    float *streams;     /* [n, n_streams, hidden] */
    float *post;        /* [n, n_streams] */
    const float *mix;   /* [n, (2 + s) * s], iters 0: [n, 2 * s]; or [n, s] */
    const float *base;  /* a row of that */
    const float *scale; /* [3], iters 0: [2]; or [1] */
    int n, hidden, n_streams, iters;
    float eps, norm_eps;
    float magnitude, post_eps; /* magnitude 0: 2 */
    float *earlier;            /* [n, n_streams], rows ld_earlier apart, or NULL */
    int ld_earlier;
};
/* Parts of op_mix's mix that has them all, and its numbers per row. */
static inline int op_mix_parts(int iters) { return iters ? 3 : 2; }
static inline int op_mix_weights(int n_streams, int iters) { return (2 + (iters ? n_streams : 0)) * n_streams; }
enum { STREAMS_MOST = 16 };

/* Attention residuals (Inkling 2, Kimi K3). Adds x to stream number `into` of its row's n_streams, or with `begins`
 * initializes that with x, and clears x; x NULL: neither. The sources of a row are its first n_sources streams, without
 * `skip` of them from skip_at on. Then, with the normed sources s = source / sqrt(mean(source^2) + eps), out[q] = sum
 * of p * s, where p is the softmax over the sources of query[q] . s / sqrt(hidden). sums_raw: sum of p * source. */
enum { POOL_SOURCES_MOST = 128, POOL_QUERIES_MOST = 3 };
struct op_pool {
    float *out[POOL_QUERIES_MOST];         /* [n, hidden] each */
    const float *query[POOL_QUERIES_MOST]; /* [hidden] each */
    float *streams;                        /* [n, n_streams, hidden] */
    float *x;                              /* [n, hidden] or NULL */
    int n, hidden, n_streams, n_sources, n_queries, into, skip_at, skip;
    bool begins, sums_raw;
    float eps;
};
static inline int op_pool_stream(const struct op_pool *o, int source) {
    return source < o->skip_at ? source : source + o->skip;
}

/* Rows of a table that the last 2, 3 .. size tokens hash to, for `per` hashes of each length: (xor of token *
 * multiplier, the latest token first) % vocab + offset. A token before the first, or with `end` between it and the
 * row's, counts as `end`. before: the size - 1 tokens before the first row, the latest last; NULL: none. after receives
 * those of the last row, and may be the same memory. With `ids` each token has a number, which is hashed instead; end,
 * before and after are such numbers. passes_end: only the beginning of the sequence ends n-grams. */
enum { NGRAM_MOST = 8, NGRAM_HASHES_MOST = 32 };
struct op_ngram {
    int32_t *rows;         /* [n, (size - 1) * per] */
    const int32_t *tokens; /* [n] */
    const int32_t *before; /* [size - 1] */
    int32_t *after;
    const int32_t *ids; /* [n_ids], or NULL */
    int n_ids;
    bool passes_end;
    int n, size, per, end;
    uint64_t multiplier[NGRAM_MOST];
    uint32_t vocab[NGRAM_HASHES_MOST], offset[NGRAM_HASHES_MOST];
};
/* out[i][h] = sigmoid(root(scale * x[i][h] . y[i][h])), root(g) = sign(g) * sqrt(max(|g|, 1e-6)) */
struct op_relate {
    float *out;         /* [n, heads] */
    const float *x, *y; /* [n, heads, dim] */
    int n, heads, dim;
    float scale;
};

/* Rounds rows in place to a narrow format with a scale per `block` numbers, as models do that were trained with such
 * keys. NaN stays NaN. ROUND_E4M3: to E4M3. The scale is the least power of two that keeps the block within 448; its
 * largest number counts as 1e-4 at least ROUND_E2M1: to E2M1, within 6; at least 6 * 2^-126 ROUND_E2M1_E4M3: to E2M1.
 * The scale is the largest number / 6, rounded to E4M3; at least 6 * 2^-9 */
enum round_kind { ROUND_E4M3, ROUND_E2M1, ROUND_E2M1_E4M3 };
struct op_round {
    float *x;            /* [n, m], rows ld apart */
    int n, m, ld, block; /* block divides m */
    uint8_t kind;        /* enum round_kind */
};

struct ops {
    const char *name; /* "scalar", "avx2", "avx512", "amx", "emu", "cuda" */
    int (*embed)(struct exec *, const struct op_embed *);
    int (*norm)(struct exec *, const struct op_norm *);
    int (*linear)(struct exec *, const struct op_linear *);
    int (*rope_table)(struct exec *, const struct op_rope_table *);
    int (*rope)(struct exec *, const struct op_rope *);
    int (*kv_store)(struct exec *, const struct op_kv_store *);
    int (*kv_load)(struct exec *, const struct op_kv_load *);
    int (*attention)(struct exec *, const struct op_attention *);
    int (*select)(struct exec *, const struct op_select *);
    int (*route)(struct exec *, const struct op_route *);
    int (*experts)(struct exec *, const struct op_experts *);
    int (*add)(struct exec *, const struct op_add *);
    int (*sigmoid)(struct exec *, const struct op_sigmoid *);
    int (*clip)(struct exec *, const struct op_clip *);
    int (*fill)(struct exec *, const struct op_fill *);
    int (*softcap)(struct exec *, const struct op_softcap *);
    int (*copy)(struct exec *, const struct op_copy *);
    int (*merge)(struct exec *, const struct op_merge *);
    int (*gate)(struct exec *, const struct op_gate *);
    int (*scale)(struct exec *, const struct op_scale *);
    int (*conv)(struct exec *, const struct op_conv *);
    int (*delta)(struct exec *, const struct op_delta *);
    int (*scan)(struct exec *, const struct op_scan *);
    int (*compress)(struct exec *, const struct op_compress *);
    int (*spread)(struct exec *, const struct op_spread *);
    int (*mix)(struct exec *, const struct op_mix *);
    int (*ngram)(struct exec *, const struct op_ngram *);
    int (*relate)(struct exec *, const struct op_relate *);
    int (*pool)(struct exec *, const struct op_pool *);
    int (*round)(struct exec *, const struct op_round *);
    int (*expand)(struct exec *, const struct op_expand *); /* may be NULL */
};
