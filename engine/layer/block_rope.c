/* Cos and sin of the rotations of a batch. */
#include "engine/layer/block.h"
#include "engine/model/rope.h"

/* FoPE: cos and sin of some rows are products of those of the frequencies. */
static int mix_rope(struct exec *x, const struct config *c, const struct work *w, int n) {
    const int half = c->rope.dim / 2, width = rope_row_floats(c);
    const float *m = w->inv_freq + rope_fope_at(c), *bias = m + (size_t)2 * (size_t)width * (size_t)half;
    float *const basis[2] = {w->fope_basis, w->fope_basis + (size_t)FOPE_ROWS * (size_t)half}, *const out[2] = {w->cos,
                                                                                                                w->sin};
    struct mat sums = {.stride = (size_t)half * sizeof *m, .rows = width, .cols = half, .row_step = 1, .dtype = DT_F32};
    for (int at = 0, rows; at < n; at += rows) {
        rows = n - at < FOPE_ROWS ? n - at : FOPE_ROWS;
        TRY(x->ops->rope_table(x, &(struct op_rope_table){.cos = basis[0],
                                                          .sin = basis[1],
                                                          .pos = w->pos + at,
                                                          .inv_freq = w->inv_freq,
                                                          .n = rows,
                                                          .half = half,
                                                          .mscale = 1}));
        for (int i = 0; i < 2; i++) {
            sums.data = m + (size_t)i * (size_t)width * (size_t)half;
            TRY(x->ops->linear(x, &(struct op_linear){.y = out[i] + (size_t)at * (size_t)width,
                                                      .x = basis[i],
                                                      .w = sums,
                                                      .bias = bias,
                                                      .n = rows,
                                                      .ldx = half,
                                                      .ldy = width,
                                                      .exact = true}));
        }
    }
    return 0;
}

int block_rope(struct exec *x, const struct weights *m, struct work *w, int n, int total) {
    const struct config *c = &m->config;
    if (c->rope.fope_pairs) return mix_rope(x, c, w, n);
    struct op_rope_table o = {.cos = w->cos,
                              .sin = w->sin,
                              .pos = w->pos,
                              .inv_freq = w->inv_freq,
                              .n = n,
                              .half = c->rope.dim / 2,
                              .mscale = m->rope_mscale[0]};
    if (w->has_places) {
        o.place = w->place, o.section[0] = c->rope.section[0], o.section[1] = c->rope.section[1];
        o.sections_in_order = c->rope.sections_in_order;
    }
    if (c->rope.kind == ROPE_LONG)
        o.length = total ? NULL : w->seq_length, o.total = total, o.longest = (int)c->rope.original_max,
        o.long_mscale = c->rope.factors_mscale[1];
    TRY(x->ops->rope_table(x, &o));
    if (!c->second_rope.dim) return 0;
    return x->ops->rope_table(x, &(struct op_rope_table){.cos = w->second_cos,
                                                         .sin = w->second_sin,
                                                         .pos = w->pos,
                                                         .inv_freq = w->inv_freq + rope_first_floats(c),
                                                         .n = n,
                                                         .half = c->second_rope.dim / 2,
                                                         .mscale = m->rope_mscale[1]});
}
