/* Token mixers with a state that are simpler than DeltaNet: short gated convolutions (LFM2) and lightning attention
 * (MiniMax-01, Ling 2.5). Sources: transformers, models/lfm2_moe and models/minimax; "MiniMax-01" (2025); vLLM,
 * models/bailing_moe_linear. */
#include <math.h>

#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

/* --- Short gated convolutions: C * conv(B * x), where in_proj gives B, C and x. w->fused has all three. --- */

static int conv_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    out[0] = (struct cache_desc){.heads = c->conv.taps - 1, .dim = c->hidden, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return 1;
}
static int conv_inputs(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *spans, int n_spans, int n) {
    const int hidden = c->hidden, all = 3 * hidden;
    TRY(block_linear_wide(x, w->fused, y->mix_in.rows, w->xn, c->hidden, y->mix_in, y->mix_in_bias, n));
    return rows_gate(x, w->fused + 2 * hidden, all, w->fused, all, GATE_LINEAR, n, hidden);
}
static int conv_advance(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *s, int row, int n, int from, int to) {
    const size_t hidden = (size_t)c->hidden, at = (size_t)row;
    return x->ops->conv(x, &(struct op_conv){.out = w->att + at * hidden,
                                             .x = w->fused + at * 3 * hidden + 2 * hidden,
                                             .w = y->mix_conv,
                                             .bias = y->mix_conv_bias,
                                             .is_linear = true,
                                             .before = attention_state(s, layer, 0, from),
                                             .after = attention_state(s, layer, 0, to),
                                             .n = n,
                                             .channels = c->hidden,
                                             .taps = c->conv.taps,
                                             .ldx = 3 * c->hidden,
                                             .ldo = c->hidden,
                                             .at = attention_address(s, layer, 0)});
}
static int conv_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *s, struct key_range keys) {
    const size_t hidden = (size_t)c->hidden, at = (size_t)s->row;
    TRY(attention_advance_state(x, c, y, layer, w, s, conv_advance));
    return rows_gate(x, w->att + at * hidden, c->hidden, w->fused + at * 3 * hidden + hidden, 3 * c->hidden,
                     GATE_LINEAR, s->n, c->hidden);
}

/* --- Lightning attention: queries, keys and values with SiLU, or rotated ones, a fixed decay per head, then a norm and
 * a gate --- */

static int lightning_width(const struct config *c) { return c->lightning.heads * c->lightning.dim; }
static int lightning_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    out[0] = (struct cache_desc){.heads = c->lightning.heads,
                                 .dim = c->lightning.dim * c->lightning.dim,
                                 .fixed_rows = KV_STATES,
                                 .dtype = DT_F32};
    return 1;
}
/* MiniMax: in_proj's rows are q, k and v of a head, then those of the next. */
static int lightning_split(struct exec *x, const struct config *c, const struct work *w, int n) {
    const int dim = c->lightning.dim, width = lightning_width(c);
    TRY(rows_gate(x, w->fused, 3 * width, w->fused, 3 * width, GATE_SIGMOID, n, 3 * width)); /* SiLU */
    for (int i = 0; i < 3; i++)
        TRY(rows_copy_heads(x, w->mixed + i * width, 3 * width, dim, w->fused + i * dim, 3 * width, 3 * dim, n,
                            c->lightning.heads, dim));
    return 0;
}
/* Ling: all rows of q, then of k, then of v. Uses w->z as scratch. */
static int lightning_rotate(struct exec *x, const struct config *c, const struct layer *y, int layer,
                            const struct work *w, int n) {
    const int dim = c->lightning.dim, heads = c->lightning.heads, width = lightning_width(c);
    for (int i = 0; i < 2; i++) {
        TRY(rows_copy(x, w->z, width, w->fused + i * width, 3 * width, n, width));
        if (c->lightning.qk_norm)
            TRY(block_norm(x, c, w->z, dim, w->z, dim, i ? y->k_norm : y->q_norm, NULL, n * heads, dim));
        TRY(attention_rotate(x, c, layer, w, w->z, heads, width, dim, n));
        if (!i) TRY(rows_scale(x, w->z, 1 / sqrtf((float)dim), n, width));
        TRY(rows_copy(x, w->mixed + i * width, 3 * width, w->z, width, n, width));
    }
    return rows_copy(x, w->mixed + 2 * width, 3 * width, w->fused + 2 * width, 3 * width, n, width);
}
/* w->mixed gets all q, then all k, then all v. */
static int lightning_inputs(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            const struct span *spans, int n_spans, int n) {
    TRY(block_linear_wide(x, w->fused, y->mix_in.rows, w->xn, c->hidden, y->mix_in, NULL, n));
    TRY(c->lightning.is_rotated ? lightning_rotate(x, c, y, layer, w, n) : lightning_split(x, c, w, n));
    return block_linear_wide(x, w->z, y->mix_gate.rows, w->xn, c->hidden, y->mix_gate, NULL, n);
}
/* How fast the states of a layer decay: later layers remember longer. Of Ling 2.5 the vendor's modeling file has layer
 * - 1 here; vLLM, SGLang and mlx-lm have layer, as the vendor's training code, which subtracts 1 from layers counted
 * from 1. */
static float lightning_slope(const struct config *c, int layer) {
    const double last = c->n_layers > 1 ? c->n_layers - 1 : 1;
    return (float)(1 - layer / (c->lightning.is_rotated ? last : last + 1e-5) + 1e-5);
}
static int lightning_advance(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                             const struct span *s, int row, int n, int from, int to) {
    const int width = lightning_width(c);
    const float *q = w->mixed + (size_t)row * 3 * (size_t)width;
    return x->ops->delta(x, &(struct op_delta){.out = w->att + (size_t)row * (size_t)width,
                                               .q = q,
                                               .k = q + width,
                                               .v = q + 2 * width,
                                               .before = attention_state(s, layer, 0, from),
                                               .after = attention_state(s, layer, 0, to),
                                               .n = n,
                                               .k_heads = c->lightning.heads,
                                               .v_heads = c->lightning.heads,
                                               .k_dim = c->lightning.dim,
                                               .v_dim = c->lightning.dim,
                                               .ldx = 3 * width,
                                               .ldo = width,
                                               .rule = DELTA_LIGHTNING,
                                               .slope = lightning_slope(c, layer),
                                               .at = attention_address(s, layer, 0)});
}
static int lightning_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            const struct span *s, struct key_range keys) {
    const int width = lightning_width(c), groups = c->lightning.norm_groups, group_width = width / groups;
    const size_t at = (size_t)s->row * (size_t)width;
    float *out = w->att + at;
    TRY(attention_advance_state(x, c, y, layer, w, s, lightning_advance));
    /* MiniMax: the reference's default, not the config's */
    const float eps = c->lightning.is_rotated ? c->norm_eps : 1e-6f;
    TRY(rows_norm(x, out, group_width, groups > 1 ? NULL : y->mix_norm, eps, s->n * groups, group_width));
    if (groups > 1) TRY(rows_gate(x, out, width, y->mix_norm, 0, GATE_LINEAR, s->n, width));
    return rows_gate(x, out, width, w->z + at, width, GATE_SIGMOID, s->n, width);
}

#define KIND(name_, prefix, ...) \
    { \
        .name = name_, .is_recordable = true, .cache_planes = prefix##_cache_planes, .store_kv = prefix##_inputs, \
        .make_queries = attention_no_queries, .attended = ATTENDED(__VA_ARGS__), .attend = prefix##_attend \
    }
const struct attention_kind attention_conv = KIND("convolution", conv, ROW_OF(fused)),
                            attention_lightning = KIND("lightning", lightning, ROW_OF(mixed), ROW_OF(z));
