/* One residual stream, work.streams, that is kept apart from the output of the current block (config_keep_stream), so
 * that the output can be normed or scaled before the next block adds it, and both blocks can read the same rows. */
#include <math.h>

#include "engine/layer/block_linear.h"
#include "engine/layer/rows.h"
#include "engine/layer/streams.h"

/* What adds a block's output to the stream. */
struct block_end {
    const struct stream_merge *merge;
    const float *out_norm, *experts_norm, *stream_scale;
    const struct mat *out_gate;      /* [2] of out_norm, with gates_all_norms */
    const struct token_input *token; /* adds a vector of the token afterwards; NULL: none */
};

/* v = (v + bias) * scale per channel; NULL: without. */
static int merge_rows(struct exec *x, const struct config *c, float *v, const float *bias, const float *scale,
                      float *scratch, int n) {
    if (bias) {
        TRY(rows_copy(x, scratch, c->hidden, bias, 0, n, c->hidden));
        TRY(rows_add(x, v, scratch, n, c->hidden));
    }
    return scale ? rows_gate(x, v, c->hidden, scale, 0, GATE_LINEAR, n, c->hidden) : 0;
}
/* Norms the previous block's output, if the family does so. */
static int norm_output(struct exec *x, const struct config *c, const struct block_end *end, struct work *w, int n,
                       int tag) {
    const int hidden = c->hidden;
    const float *weight = end->out_norm;
    const bool is_unit = c->output_norm == OUTPUT_NORM_UNIT;
    if (!weight && !is_unit) return 0;
    if (weight && is_unit) TRY(rows_gate(x, w->x, hidden, weight, 0, GATE_LINEAR, n, hidden));
    TRY(block_norm_rows(x, c, w->x, hidden, w->x, hidden, is_unit ? NULL : weight, NULL, n, hidden,
                        config_output_eps(c), tag, w->first_bad));
    return c->gates_all_norms ? block_gate_norm(x, c, w, w->x, hidden, end->out_gate, n, hidden) : 0;
}

/* y = y * gelu(g) with the tanh form, g * sigmoid(alpha * (g + 0.044715 g^3)), as in struct glu. Uses z as scratch. All
 * [n, dim]. */
static int gate_gelu(struct exec *x, float *y, const float *g, float *z, int n, int dim) {
    const float cubic = 0.044715f, alpha = 2 * sqrtf(2 / (float)M_PI);
    TRY(rows_copy(x, z, dim, g, dim, n, dim));
    for (int i = 0; i < 2; i++) TRY(rows_gate(x, z, dim, g, dim, GATE_LINEAR, n, dim)); /* g^3 */
    TRY(rows_scale(x, z, cubic, n, dim));
    TRY(rows_add(x, z, g, n, dim));
    TRY(rows_scale(x, z, alpha, n, dim));
    TRY(rows_gate(x, y, dim, g, dim, GATE_LINEAR, n, dim));
    return rows_gate(x, y, dim, z, dim, GATE_SIGMOID, n, dim);
}

/* Adds the token's part to the stream (struct token_input). Uses w->x as scratch: its sum is already in the stream. */
static int add_token(struct exec *x, const struct config *c, const struct token_input *t, struct work *w, int n,
                     int tag) {
    const int dim = c->token_dim, hidden = c->hidden;
    float *v = w->token_vectors, *g = v + (size_t)n * (size_t)dim, *z = g + (size_t)n * (size_t)dim;
    TRY(block_linear(x, c, v, dim, w->carried, c->carried, t->from_embed, NULL, n, false));
    /* the norm of v / sqrt(hidden): the root is in eps */
    TRY(block_norm_rows(x, c, v, dim, v, dim, t->from_embed_norm, NULL, n, dim, c->norm_eps * (float)hidden, tag,
                        w->first_bad));
    TRY(x->ops->embed(
        x, &(struct op_embed){.out = g, .ids = w->tokens, .table = t->table, .n = n, .scale = sqrtf((float)dim)}));
    TRY(rows_add(x, v, g, n, dim));
    TRY(rows_scale(x, v, sqrtf(0.5f), n, dim));
    TRY(block_linear(x, c, g, dim, w->streams, hidden, t->gate, NULL, n, false));
    TRY(gate_gelu(x, v, g, z, n, dim));
    TRY(block_linear(x, c, w->x, hidden, v, dim, t->out, NULL, n, false));
    TRY(block_norm_rows(x, c, w->x, hidden, w->x, hidden, t->out_norm, NULL, n, hidden, c->norm_eps, tag,
                        w->first_bad));
    return rows_add(x, w->streams, w->x, n, hidden);
}

/* Adds the previous block's output w->x, normed or scaled if the family does so, to the stream and clears w->x. tag 0:
 * no previous block, w->x is the embedding. */
static int add_output(struct exec *x, const struct config *c, const struct block_end *end, struct work *w, int n,
                      int tag) {
    const int hidden = c->hidden;
    if (tag && end->experts_norm) { /* w->x has the experts' sum, w->kept the output of the parallel dense FFN */
        TRY(block_norm_rows(x, c, w->x, hidden, w->x, hidden, end->experts_norm, NULL, n, hidden, c->norm_eps, tag,
                            w->first_bad));
        TRY(rows_add(x, w->x, w->kept, n, hidden));
    }
    if (tag) TRY(norm_output(x, c, end, w, n, tag));
    if (c->merges_stream) TRY(merge_rows(x, c, w->x, end->merge->output_bias, end->merge->output_scale, w->xn, n));
    if (c->merges_stream && tag)
        TRY(merge_rows(x, c, w->streams, end->merge->stream_bias, end->merge->stream_scale, w->xn, n));
    if (tag && c->norms_stream)
        TRY(rows_scale(x, w->x, c->layer[(tag - 1) / 2].branch[(tag - 1) % 2].output, n, hidden));
    if (tag) TRY(rows_add(x, w->streams, w->x, n, hidden));
    else TRY(rows_copy(x, w->streams, hidden, w->x, hidden, n, hidden));
    if (!tag && c->token_dim) TRY(rows_copy(x, w->carried, c->carried, w->x, hidden, n, hidden));
    if (end->token) TRY(add_token(x, c, end->token, w, n, tag));
    if (tag && end->stream_scale) TRY(rows_weigh(x, w->streams, end->stream_scale, false, n, hidden));
    return x->ops->fill(x, &(struct op_fill){.x = w->x, .n = n, .m = hidden});
}

static int plain_input(struct exec *x, const struct config *c, const struct layer *y, int tag, struct work *w,
                       const struct span *spans, int n_spans, int n) {
    const bool ffn = tag % 2;
    const int hidden = c->hidden;
    const struct block_end after_attention = {
        .merge = &y->attn_merge, .out_norm = y->attn_out_norm, .out_gate = y->attn_out_gate};
    const struct block_end after_ffn = {.merge = &y->previous_merge,
                                        .out_norm = y->previous_out_norm,
                                        .out_gate = y->previous_out_gate,
                                        .experts_norm = y->previous_experts_norm,
                                        .stream_scale = y->previous_scale,
                                        .token = c->token_dim && tag ? &y->previous_token_input : NULL};
    /* in a parallel block the attention's output waits for the FFN's in w->x, and for the next mixer's beside it */
    if (ffn ? !c->parallel_block : !c->layer[tag / 2].is_beside)
        TRY(add_output(x, c, ffn ? &after_attention : &after_ffn, w, n, tag));
    if (c->no_input_norm) return rows_copy(x, w->xn, hidden, w->streams, hidden, n, hidden);
    TRY(streams_norm(x, c, y, w, w->streams, n, tag));
    if (!c->norms_stream || c->layer[tag / 2].branch[ffn].is_raw) return 0;
    TRY(rows_copy(x, w->streams, hidden, w->xn, hidden, n, hidden));
    return rows_scale(x, w->streams, c->layer[tag / 2].branch[ffn].stream, n, hidden);
}
static int plain_merge(struct exec *x, const struct weights *m, struct work *w, int n) {
    const struct config *c = &m->config;
    const struct block_end end = {.merge = &m->last_merge,
                                  .out_norm = m->last_out_norm,
                                  .out_gate = m->last_out_gate,
                                  .experts_norm = m->last_experts_norm,
                                  .stream_scale = m->last_scale,
                                  .token = c->token_dim ? &m->last_token_input : NULL};
    TRY(add_output(x, c, &end, w, n, 2 * c->n_layers));
    return rows_copy(x, w->x, c->hidden, w->streams, c->hidden, n, c->hidden);
}
const struct streams_kind streams_plain = {plain_input, plain_merge};
