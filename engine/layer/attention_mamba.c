/* Mamba-1 as in Jamba: a convolution, then a selective scan whose steps, B and C come from the convolved rows, each normed. Sources: "Mamba" (Gu and Dao 2023);
 * "Jamba" (Lieber et al. 2024); transformers, models/jamba. Mamba-2 is in attention_mixers.c. */
#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

/* w->fused has x and z of each row; w->mixed the convolved x, then dt, B and C; w->z the steps before the softplus. */
struct scan_dims {
    int inner, state, rank, mixed;
};
static struct scan_dims scan_dims(const struct config *c) {
    const struct mamba_config *m = &c->mamba;
    const int inner = m->heads * m->head_dim;
    return (struct scan_dims){inner, m->state, m->rank, inner + m->rank + 2 * m->state};
}
enum { SCAN_CONV, SCAN_STATE };
static int scan_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const struct scan_dims d = scan_dims(c);
    out[SCAN_CONV] = (struct cache_desc){.heads = c->mamba.taps - 1, .dim = d.inner, .fixed_rows = KV_STATES, .dtype = DT_F32};
    out[SCAN_STATE] = (struct cache_desc){.heads = d.state, .dim = d.inner, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return 2;
}

static int scan_inputs(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n) {
    return attention_linear_wide(x, w->fused, 2 * scan_dims(c).inner, w->xn, c->hidden, y->mix_in, y->mix_in_bias, n);
}

static int scan_advance_conv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, int row, int n,
                             int from, int to) {
    const struct scan_dims d = scan_dims(c);
    return x->ops->conv(x, &(struct op_conv){.out = w->mixed + (size_t)row * (size_t)d.mixed,
                                             .x = w->fused + (size_t)row * 2 * (size_t)d.inner,
                                             .w = y->mix_conv,
                                             .bias = y->mix_conv_bias,
                                             .before = attention_state(s, layer, SCAN_CONV, from),
                                             .after = attention_state(s, layer, SCAN_CONV, to),
                                             .n = n,
                                             .channels = d.inner,
                                             .taps = c->mamba.taps,
                                             .ldx = 2 * d.inner,
                                             .ldo = d.mixed,
                                             .at = attention_address(s, layer, SCAN_CONV)});
}
static int scan_advance(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, int row, int n,
                        int from, int to) {
    const struct scan_dims d = scan_dims(c);
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
                                             .before = attention_state(s, layer, SCAN_STATE, from),
                                             .after = attention_state(s, layer, SCAN_STATE, to),
                                             .n = n,
                                             .channels = d.inner,
                                             .state = d.state,
                                             .ldx = d.mixed,
                                             .lda = d.inner,
                                             .ldbc = d.mixed,
                                             .ldo = d.inner,
                                             .at = attention_address(s, layer, SCAN_STATE)});
}

/* Computes dt, B, C and the steps of n convolved rows. */
static int scan_project(struct exec *x, const struct config *c, const struct layer *y, float *mixed, float *steps, int n) {
    const struct scan_dims d = scan_dims(c);
    float *const part[] = {mixed + d.inner, mixed + d.inner + d.rank, mixed + d.inner + d.rank + d.state};
    const float *const norms[] = {y->mix_dt_norm, y->mix_b_norm, y->mix_c_norm};
    TRY(attention_linear_wide(x, part[0], d.mixed, mixed, d.mixed, y->mix_select, NULL, n));
    for (int i = 0; i < 3; i++) TRY(block_norm(x, c, part[i], d.mixed, part[i], d.mixed, norms[i], NULL, n, i ? d.state : d.rank));
    return attention_linear_wide(x, steps, d.inner, part[0], d.mixed, y->mix_step, NULL, n);
}

static int scan_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct key_range keys) {
    const struct scan_dims d = scan_dims(c);
    const size_t at = (size_t)s->row, inner = (size_t)d.inner;
    TRY(attention_advance_state(x, c, y, layer, w, s, scan_advance_conv));
    TRY(scan_project(x, c, y, w->mixed + at * (size_t)d.mixed, w->z + at * inner, s->n));
    TRY(attention_advance_state(x, c, y, layer, w, s, scan_advance));
    return rows_gate(x, w->att + at * inner, d.inner, w->fused + at * 2 * inner + inner, 2 * d.inner, GATE_SILU, s->n, d.inner);
}

const struct attention_kind attention_mamba1 = {.name = "mamba",
                                                .is_recordable = true,
                                                .cache_planes = scan_cache_planes,
                                                .store_kv = scan_inputs,
                                                .make_queries = attention_no_queries,
                                                .attend = scan_attend};
