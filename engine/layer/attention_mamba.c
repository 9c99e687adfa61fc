/* Mamba-1 as in Jamba: a convolution, then a selective scan whose steps, B and C come from the convolved rows, each
 * normed. Mamba-2: a convolution, then a recurrence with a decay per head (DELTA_MAMBA2). Sources: "Mamba" (Gu and Dao
 * 2023); "Jamba" (Lieber et al. 2024); "Transformers are SSMs" (Dao and Gu 2024); transformers, models/jamba and
 * models/granitemoehybrid. */
#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

/* --- Mamba-1 ---------------------------------------------------------------------------------- */

/* w->fused has x and z of each row; w->mixed the convolved x, then dt, B and C; w->z the steps before the softplus. */
struct mamba1_dims {
    int inner, state, rank, mixed;
};
static struct mamba1_dims mamba1_dims(const struct config *c) {
    const struct mamba_config *m = &c->mamba;
    const int inner = m->heads * m->head_dim;
    return (struct mamba1_dims){
        .inner = inner, .state = m->state, .rank = m->rank, .mixed = inner + m->rank + 2 * m->state};
}
enum { MAMBA1_CONV, MAMBA1_STATE }; /* planes */
static int mamba1_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const struct mamba1_dims d = mamba1_dims(c);
    out[MAMBA1_CONV] =
        (struct cache_desc){.heads = c->mamba.taps - 1, .dim = d.inner, .fixed_rows = KV_STATES, .dtype = DT_F32};
    out[MAMBA1_STATE] = (struct cache_desc){.heads = d.state, .dim = d.inner, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return 2;
}

static int mamba1_inputs(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *spans, int n_spans, int n) {
    return block_linear_wide(x, w->fused, 2 * mamba1_dims(c).inner, w->xn, c->hidden, y->mix_in, y->mix_in_bias, n);
}

static int mamba1_advance_conv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                               const struct span *s, int row, int n, int from, int to) {
    const struct mamba1_dims d = mamba1_dims(c);
    return x->ops->conv(x, &(struct op_conv){.out = w->mixed + (size_t)row * (size_t)d.mixed,
                                             .x = w->fused + (size_t)row * 2 * (size_t)d.inner,
                                             .w = y->mix_conv,
                                             .bias = y->mix_conv_bias,
                                             .before = attention_state(s, layer, MAMBA1_CONV, from),
                                             .after = attention_state(s, layer, MAMBA1_CONV, to),
                                             .n = n,
                                             .channels = d.inner,
                                             .taps = c->mamba.taps,
                                             .ldx = 2 * d.inner,
                                             .ldo = d.mixed,
                                             .at = attention_address(s, layer, MAMBA1_CONV)});
}
static int mamba1_advance(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                          const struct span *s, int row, int n, int from, int to) {
    const struct mamba1_dims d = mamba1_dims(c);
    const size_t at = (size_t)row;
    const float *mixed = w->mixed + at * (size_t)d.mixed;
    return x->ops->scan(x, &(struct op_scan){.out = w->att + at * (size_t)d.inner,
                                             .x = mixed,
                                             .a = w->z + at * (size_t)d.inner,
                                             .b = mixed + d.inner + d.rank,
                                             .c = mixed + d.inner + d.rank + d.state,
                                             .rate = y->mix_rate,
                                             .dt = y->mix_dt,
                                             .skip = y->mix_skip,
                                             .before = attention_state(s, layer, MAMBA1_STATE, from),
                                             .after = attention_state(s, layer, MAMBA1_STATE, to),
                                             .n = n,
                                             .channels = d.inner,
                                             .state = d.state,
                                             .ldx = d.mixed,
                                             .lda = d.inner,
                                             .ldbc = d.mixed,
                                             .ldo = d.inner,
                                             .at = attention_address(s, layer, MAMBA1_STATE)});
}

/* Computes dt, B, C and the steps of n convolved rows. */
static int mamba1_project(struct exec *x, const struct config *c, const struct layer *y, float *mixed, float *steps,
                          int n) {
    const struct mamba1_dims d = mamba1_dims(c);
    float *const part[] = {mixed + d.inner, mixed + d.inner + d.rank, mixed + d.inner + d.rank + d.state};
    const float *const norms[] = {y->mix_dt_norm, y->mix_b_norm, y->mix_c_norm};
    TRY(block_linear_wide(x, part[0], d.mixed, mixed, d.mixed, y->mix_select, NULL, n));
    for (int i = 0; i < 3; i++)
        TRY(block_norm(x, c, part[i], d.mixed, part[i], d.mixed, norms[i], NULL, n, i ? d.state : d.rank));
    return block_linear_wide(x, steps, d.inner, part[0], d.mixed, y->mix_step, NULL, n);
}

static int mamba1_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *s, struct key_range keys) {
    const struct mamba1_dims d = mamba1_dims(c);
    const size_t at = (size_t)s->row, inner = (size_t)d.inner;
    TRY(attention_advance_state(x, c, y, layer, w, s, mamba1_advance_conv));
    TRY(mamba1_project(x, c, y, w->mixed + at * (size_t)d.mixed, w->z + at * inner, s->n));
    TRY(attention_advance_state(x, c, y, layer, w, s, mamba1_advance));
    return rows_gate(x, w->att + at * inner, d.inner, w->fused + at * 2 * inner + inner, 2 * d.inner, GATE_SILU, s->n,
                     d.inner);
}

const struct attention_kind attention_mamba1 = {.name = "mamba",
                                                .is_recordable = true,
                                                .cache_planes = mamba1_cache_planes,
                                                .store_kv = mamba1_inputs,
                                                .make_queries = attention_no_queries,
                                                .attended = ATTENDED(ROW_OF(fused)),
                                                .attend = mamba1_attend};

/* --- Mamba-2: w->fused has z, x, B, C and dt of each row, w->mixed the convolved x, B and C --- */

struct mamba2_dims {
    int inner, bc, channels, in; /* bc: width of B, and of C, of all groups together; in: of a row of w->fused */
};
static struct mamba2_dims mamba2_dims(const struct config *c) {
    const struct mamba_config *m = &c->mamba;
    const int inner = m->heads * m->head_dim, bc = m->groups * m->state, channels = inner + 2 * bc;
    return (struct mamba2_dims){.inner = inner, .bc = bc, .channels = channels, .in = inner + channels + m->heads};
}
enum { MAMBA2_CONV, MAMBA2_STATE }; /* planes */
static int mamba2_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const struct mamba_config *m = &c->mamba;
    out[MAMBA2_CONV] = (struct cache_desc){
        .heads = m->taps - 1, .dim = mamba2_dims(c).channels, .fixed_rows = KV_STATES, .dtype = DT_F32};
    out[MAMBA2_STATE] =
        (struct cache_desc){.heads = m->heads, .dim = m->state * m->head_dim, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return 2;
}
/* Multiplies the parts of the inputs by their factors. */
static int mamba2_scale(struct exec *x, const struct config *c, const struct work *w, int n) {
    const struct mamba2_dims d = mamba2_dims(c);
    const int part[] = {d.inner, d.inner, d.bc, d.bc, c->mamba.heads};
    float *at = w->fused;
    for (int i = 0; i < 5; at += part[i++])
        if (c->mamba.scale[i] > 0 && c->mamba.scale[i] != 1)
            TRY(x->ops->scale(x,
                              &(struct op_scale){.x = at, .n = n, .m = part[i], .ld = d.in, .by = c->mamba.scale[i]}));
    return 0;
}
static int mamba2_inputs(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *spans, int n_spans, int n) {
    TRY(block_linear_wide(x, w->fused, y->mix_in.rows, w->xn, c->hidden, y->mix_in, y->mix_in_bias, n));
    return mamba2_scale(x, c, w, n);
}
static int mamba2_advance(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                          const struct span *s, int row, int n, int from, int to) {
    const struct mamba_config *m = &c->mamba;
    const struct mamba2_dims d = mamba2_dims(c);
    const size_t at = (size_t)row;
    const float *in = w->fused + at * (size_t)d.in;
    float *mixed = w->mixed + at * (size_t)d.channels;
    TRY(x->ops->conv(x, &(struct op_conv){.out = mixed,
                                          .x = in + d.inner,
                                          .w = y->mix_conv,
                                          .bias = y->mix_conv_bias,
                                          .before = attention_state(s, layer, MAMBA2_CONV, from),
                                          .after = attention_state(s, layer, MAMBA2_CONV, to),
                                          .n = n,
                                          .channels = d.channels,
                                          .taps = m->taps,
                                          .ldx = d.in,
                                          .ldo = d.channels,
                                          .at = attention_address(s, layer, MAMBA2_CONV)}));
    return x->ops->delta(x, &(struct op_delta){.out = w->att + at * (size_t)d.inner,
                                               .q = mixed + d.inner + d.bc,
                                               .k = mixed + d.inner,
                                               .v = mixed,
                                               .a = in + d.inner + d.channels,
                                               .rate = y->mix_rate,
                                               .dt = y->mix_dt,
                                               .skip = y->mix_skip,
                                               .before = attention_state(s, layer, MAMBA2_STATE, from),
                                               .after = attention_state(s, layer, MAMBA2_STATE, to),
                                               .n = n,
                                               .k_heads = m->groups,
                                               .v_heads = m->heads,
                                               .k_dim = m->state,
                                               .v_dim = m->head_dim,
                                               .ldx = d.channels,
                                               .ldg = d.in,
                                               .ldo = d.inner,
                                               .rule = DELTA_MAMBA2,
                                               .at = attention_address(s, layer, MAMBA2_STATE)});
}
/* Norms each group of heads. */
static int mamba2_norm(struct exec *x, const struct config *c, const struct layer *y, float *out, int n) {
    const int inner = mamba2_dims(c).inner, dim = inner / c->mamba.groups;
    for (int at = 0; at < inner; at += dim) TRY(rows_norm(x, out + at, inner, y->mix_norm + at, c->norm_eps, n, dim));
    return 0;
}
static int mamba2_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *s, struct key_range keys) {
    const struct mamba2_dims d = mamba2_dims(c);
    const uint8_t norm = c->mamba.norm;
    float *out = w->att + (size_t)s->row * (size_t)d.inner;
    TRY(attention_advance_state(x, c, y, layer, w, s, mamba2_advance));
    if (norm == MAMBA_NORM_FIRST) TRY(mamba2_norm(x, c, y, out, s->n));
    TRY(rows_gate(x, out, d.inner, w->fused + (size_t)s->row * (size_t)d.in, d.in, GATE_SILU, s->n, d.inner));
    if (norm == MAMBA_NORM_LAST) TRY(mamba2_norm(x, c, y, out, s->n));
    return c->mamba.out_scale > 0 ? rows_scale(x, out, c->mamba.out_scale, s->n, d.inner) : 0;
}

const struct attention_kind attention_mamba2 = {.name = "mamba2",
                                                .is_recordable = true,
                                                .cache_planes = mamba2_cache_planes,
                                                .store_kv = mamba2_inputs,
                                                .make_queries = attention_no_queries,
                                                .attended = ATTENDED(ROW_OF(fused)),
                                                .attend = mamba2_attend};
