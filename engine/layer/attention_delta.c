/* Gated DeltaNet: instead of keys and values a state that every row updates (the delta rule), preceded by a short
 * convolution whose last inputs are also stored. Sources: "Gated Delta Networks" (Yang, Kautz, Hatamizadeh);
 * transformers, models/qwen3_next. */
#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

struct delta_dims {
    int keys, values, channels; /* widths: of all queries or of all keys, of all values, of q, k and v together */
    int v_per_k, group;         /* value heads per key head; rows per key head in the fused input */
};
static struct delta_dims delta_dims(const struct config *c) {
    const struct delta_config *d = &c->delta;
    struct delta_dims m = {
        .keys = d->k_heads * d->k_dim, .values = d->v_heads * d->v_dim, .v_per_k = d->v_heads / d->k_heads};
    m.channels = 2 * m.keys + m.values;
    m.group = 2 * d->k_dim + 2 * m.v_per_k * d->v_dim;
    return m;
}

enum { CONV, STATE }; /* planes */
static int delta_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const struct delta_config *d = &c->delta;
    out[CONV] = (struct cache_desc){
        .heads = d->taps - 1, .dim = delta_dims(c).channels, .fixed_rows = KV_STATES, .dtype = DT_F32};
    out[STATE] =
        (struct cache_desc){.heads = d->v_heads, .dim = d->k_dim * d->v_dim, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return 2;
}

/* Copies the part of `dim` floats at `in` of each key head, group_ld floats apart, so that all heads' parts are
 * contiguous. */
static int gather_part(struct exec *x, float *y, int ldy, const float *in, int ldx, int n, int heads, int dim,
                       int group_ld) {
    return rows_copy_heads(x, y, ldy, dim, in, ldx, group_ld, n, heads, dim);
}
/* Fills w->mixed with q, k and v, and w->z, from one matrix whose rows are, for each key head, its q and k, then v and
 * z of its value heads. */
static int project_fused(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    const struct delta_config *d = &c->delta;
    struct delta_dims m = delta_dims(c);
    int all = m.channels + m.values, k = d->k_dim, v = m.v_per_k * d->v_dim, heads = d->k_heads;
    float *in = w->fused;
    TRY(block_linear_wide(x, in, all, w->xn, c->hidden, y->delta_qkvz, NULL, n));
    TRY(gather_part(x, w->mixed, m.channels, in, all, n, heads, k, m.group));
    TRY(gather_part(x, w->mixed + m.keys, m.channels, in + k, all, n, heads, k, m.group));
    TRY(gather_part(x, w->mixed + 2 * m.keys, m.channels, in + 2 * k, all, n, heads, v, m.group));
    return gather_part(x, w->z, m.values, in + 2 * k + v, all, n, heads, v, m.group);
}
/* Fills w->beta_alpha from one matrix whose rows are, for each key head, b and then a of its value heads. */
static int project_fused_ba(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    const struct delta_config *d = &c->delta;
    int v_per_k = delta_dims(c).v_per_k, ba = 2 * d->v_heads;
    float *in = w->fused;
    TRY(block_linear_wide(x, in, ba, w->xn, c->hidden, y->delta_ba, NULL, n));
    TRY(gather_part(x, w->beta_alpha, ba, in, ba, n, d->k_heads, v_per_k, 2 * v_per_k));
    return gather_part(x, w->beta_alpha + d->v_heads, ba, in + v_per_k, ba, n, d->k_heads, v_per_k, 2 * v_per_k);
}

static int delta_inputs(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    int heads = c->delta.v_heads;
    struct delta_dims m = delta_dims(c);
    if (c->delta.fused) TRY(project_fused(x, c, y, w, n));
    else {
        TRY(block_linear_wide(x, w->mixed, m.channels, w->xn, c->hidden, y->delta_qkv, NULL, n));
        TRY(block_linear_wide(x, w->z, m.values, w->xn, c->hidden, y->delta_z, NULL, n));
    }
    if (c->delta.fused || c->delta.fused_ba) return project_fused_ba(x, c, y, w, n);
    TRY(block_linear_wide(x, w->beta_alpha, 2 * heads, w->xn, c->hidden, y->delta_b, NULL, n));
    return block_linear_wide(x, w->beta_alpha + heads, 2 * heads, w->xn, c->hidden, y->delta_a, NULL, n);
}

/* Processes rows [row, row + n) of the workspace from one state to another. */
static int delta_advance(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *s, int row, int n, int from, int to) {
    const struct delta_config *d = &c->delta;
    struct delta_dims m = delta_dims(c);
    size_t at = (size_t)row;
    float *out = w->fused + at * (size_t)m.channels;
    const float *b = w->beta_alpha + at * 2 * (size_t)d->v_heads;
    TRY(x->ops->conv(x, &(struct op_conv){.out = out,
                                          .x = w->mixed + at * (size_t)m.channels,
                                          .w = y->delta_conv,
                                          .before = attention_state(s, layer, CONV, from),
                                          .after = attention_state(s, layer, CONV, to),
                                          .n = n,
                                          .channels = m.channels,
                                          .taps = d->taps,
                                          .ldx = m.channels,
                                          .ldo = m.channels,
                                          .at = attention_address(s, layer, CONV)}));
    return x->ops->delta(x, &(struct op_delta){.out = w->att + at * (size_t)m.values,
                                               .q = out,
                                               .k = out + m.keys,
                                               .v = out + 2 * m.keys,
                                               .b = b,
                                               .a = b + d->v_heads,
                                               .rate = y->delta_rate,
                                               .dt = y->delta_dt,
                                               .before = attention_state(s, layer, STATE, from),
                                               .after = attention_state(s, layer, STATE, to),
                                               .n = n,
                                               .k_heads = d->k_heads,
                                               .v_heads = d->v_heads,
                                               .is_tiled = d->is_tiled,
                                               .k_dim = d->k_dim,
                                               .v_dim = d->v_dim,
                                               .ldx = m.channels,
                                               .ldg = 2 * d->v_heads,
                                               .ldo = m.values,
                                               .at = attention_address(s, layer, STATE)});
}

static int delta_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *s, struct key_range keys) {
    const struct delta_config *d = &c->delta;
    struct delta_dims m = delta_dims(c);
    TRY(attention_advance_state(x, c, y, layer, w, s, delta_advance));
    float *out = w->att + (size_t)s->row * (size_t)m.values;
    TRY(rows_norm(x, out, d->v_dim, y->delta_norm, c->norm_eps, s->n * d->v_heads, d->v_dim)); /* does not add 1 */
    return rows_gate(x, out, m.values, w->z + (size_t)s->row * (size_t)m.values, m.values,
                     c->delta.sigmoid_gate ? GATE_SIGMOID : GATE_SILU, s->n, m.values);
}

const struct attention_kind attention_delta = {.name = "deltanet",
                                               .is_recordable = true,
                                               .cache_planes = delta_cache_planes,
                                               .store_kv = delta_inputs,
                                               .make_queries = attention_no_queries,
                                               .attended = ATTENDED(ROW_OF(mixed), ROW_OF(z), ROW_OF(beta_alpha)),
                                               .attend = delta_attend};
