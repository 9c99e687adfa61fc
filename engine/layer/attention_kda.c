/* Kimi delta attention: the gated delta rule with a decay per channel, after a short convolution each of queries, keys
 * and values; then a norm per head and a sigmoid gate. Sources: "Kimi Linear" (Kimi Team 2025); transformers,
 * models/kimi_linear. */
#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

enum { PARTS = 3, STATE = PARTS }; /* planes 0 to 2: the last inputs of the convolutions of q, k and v */
static int width_of(const struct config *c) { return c->kda.heads * c->kda.dim; }
static int gates_width(const struct config *c) { return c->kda.heads + width_of(c); } /* a row of w->beta_alpha */

static int kda_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const struct kda_config *d = &c->kda;
    for (int i = 0; i < PARTS; i++)
        out[i] =
            (struct cache_desc){.heads = d->taps - 1, .dim = width_of(c), .fixed_rows = KV_STATES, .dtype = DT_F32};
    out[STATE] =
        (struct cache_desc){.heads = d->heads, .dim = d->dim * d->dim, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return PARTS + 1;
}

/* Projects w->xn to n rows of y: by `down`, then by `up` from `rank` columns, or with rank 0 by `down` alone. Uses
 * w->fused as scratch. */
static int project_low(struct exec *x, const struct config *c, const struct work *w, float *y, int ldy, struct mat down,
                       struct mat up, int rank, int n) {
    if (!rank) return block_linear_wide(x, y, ldy, w->xn, c->hidden, down, NULL, n);
    TRY(block_linear_wide(x, w->fused, rank, w->xn, c->hidden, down, NULL, n));
    return block_linear_wide(x, y, ldy, w->fused, rank, up, NULL, n);
}

static int kda_inputs(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                      const struct span *spans, int n_spans, int n) {
    const int width = width_of(c), gates = gates_width(c);
    const struct mat in[PARTS] = {y->q, y->k, y->v};
    for (int i = 0; i < PARTS; i++)
        TRY(block_linear_wide(x, w->mixed + i * width, PARTS * width, w->xn, c->hidden, in[i], NULL, n));
    TRY(block_linear_wide(x, w->beta_alpha, gates, w->xn, c->hidden, y->kda_beta, NULL, n));
    TRY(project_low(x, c, w, w->beta_alpha + c->kda.heads, gates, y->kda_decay, y->kda_decay_up, c->kda.rank, n));
    return project_low(x, c, w, w->z, width, y->kda_gate, y->kda_gate_up, c->kda.gate_rank, n);
}

/* Processes rows [row, row + n) of the workspace from one state to another. */
static int kda_advance(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *s, int row, int n, int from, int to) {
    const struct kda_config *d = &c->kda;
    const int width = width_of(c), all = PARTS * width, gates = gates_width(c);
    const size_t at = (size_t)row;
    float *out = w->fused + at * (size_t)all;
    const float *in = w->mixed + at * (size_t)all, *b = w->beta_alpha + at * (size_t)gates;
    for (int i = 0; i < PARTS; i++)
        TRY(x->ops->conv(x, &(struct op_conv){.out = out + i * width,
                                              .x = in + i * width,
                                              .w = y->kda_conv[i],
                                              .before = attention_state(s, layer, i, from),
                                              .after = attention_state(s, layer, i, to),
                                              .n = n,
                                              .channels = width,
                                              .taps = d->taps,
                                              .ldx = all,
                                              .ldo = all,
                                              .at = attention_address(s, layer, i)}));
    return x->ops->delta(x, &(struct op_delta){.out = w->att + at * (size_t)width,
                                               .q = out,
                                               .k = out + width,
                                               .v = out + 2 * width,
                                               .b = b,
                                               .a = b + d->heads,
                                               .rate = y->mix_rate,
                                               .dt = y->mix_dt,
                                               .before = attention_state(s, layer, STATE, from),
                                               .after = attention_state(s, layer, STATE, to),
                                               .n = n,
                                               .k_heads = d->heads,
                                               .v_heads = d->heads,
                                               .k_dim = d->dim,
                                               .v_dim = d->dim,
                                               .ldx = all,
                                               .ldg = gates,
                                               .ldo = width,
                                               .rule = DELTA_CHANNELS,
                                               .bound = d->bound,
                                               .doubles_beta = d->doubles_beta,
                                               .at = attention_address(s, layer, STATE)});
}

static int kda_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                      const struct span *s, struct key_range keys) {
    const int dim = c->kda.dim, width = width_of(c);
    const size_t at = (size_t)s->row * (size_t)width;
    float *out = w->att + at;
    TRY(attention_advance_state(x, c, y, layer, w, s, kda_advance));
    TRY(rows_norm(x, out, dim, y->mix_norm, c->norm_eps, s->n * c->kda.heads, dim));
    return rows_gate(x, out, width, w->z + at, width, GATE_SIGMOID, s->n, width);
}

const struct attention_kind attention_kda = {.name = "kda",
                                             .is_recordable = true,
                                             .cache_planes = kda_cache_planes,
                                             .store_kv = kda_inputs,
                                             .make_queries = attention_no_queries,
                                             .attended = ATTENDED(ROW_OF(mixed), ROW_OF(z), ROW_OF(beta_alpha)),
                                             .attend = kda_attend};
