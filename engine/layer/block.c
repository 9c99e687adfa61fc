#include "engine/layer/block.h"

#include <math.h>

#include "engine/layer/attention_kinds.h"
#include "engine/layer/attention_residuals.h"
#include "engine/layer/gated_streams.h"
#include "engine/layer/rows.h"
#include "engine/layer/short_conv.h"
#include "engine/model/rope.h"

/* With a residual scale r the stream is kept divided by r: blocks then add their outputs unscaled, and a norm of the
 * stream with eps / r^2 equals the norm of the unscaled stream with eps. */
static float stream_eps(const struct config *c, int tag) {
    const float eps = c->residual_scale > 0 ? c->norm_eps / (c->residual_scale * c->residual_scale) : c->norm_eps;
    return c->divides_stream ? eps * (float)(tag + 1) : eps;
}
int block_embed(struct exec *x, const struct weights *m, float *out, const int32_t *ids, int n) {
    const struct config *c = &m->config;
    const float scale = (c->embed_scale > 0 ? c->embed_scale : 1) / (c->residual_scale > 0 ? c->residual_scale : 1);
    TRY(x->ops->embed(x, &(struct op_embed){.out = out, .ids = ids, .table = m->embed, .n = n, .scale = scale}));
    if (m->embed_norm || c->embed_norm_unit)
        TRY(block_norm(x, c, out, c->hidden, out, c->hidden, m->embed_norm, NULL, n, c->hidden));
    op_show(x, -1, "embedding", out, n, c->hidden);
    return 0;
}

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

/* --- Input of a block ------------------------------------------------------------------------- */

/* With passes_weights: the weights of the first block's input, any with sum 1, since the streams are equal. */
static int begin_weights(struct exec *x, const struct config *c, const struct work *w, int n) {
    const int s = c->streams.n;
    TRY(x->ops->fill(x, &(struct op_fill){.x = w->mix, .n = n, .m = s, .value = 1 / (float)s}));
    return rows_copy(x, w->carried + c->streams.weights_at, c->carried, w->mix, s, n, s);
}

/* With several residual streams: adds the previous block's output to each stream. first: no previous block, w->x is the
 * embedding. */
static int spread_output(struct exec *x, const struct config *c, const struct work *w, bool first, int n) {
    if (first && c->streams.passes_weights) TRY(begin_weights(x, c, w, n));
    return x->ops->spread(x, &(struct op_spread){.streams = w->streams,
                                                 .x = w->x,
                                                 .post = first ? NULL : w->post,
                                                 .n = n,
                                                 .hidden = c->hidden,
                                                 .n_streams = c->streams.n});
}
/* Then mixes this block's input into w->xn and clears w->x. last: merges the streams into w->x. */
static int mix_streams(struct exec *x, const struct config *c, const struct stream_mix *m, struct work *w, bool last,
                       int n) {
    const int s = c->streams.n;
    const bool passes = c->streams.passes_weights, computes = !passes || !last;
    if (computes)
        TRY(x->ops->linear(x, &(struct op_linear){.y = w->mix,
                                                  .x = w->streams,
                                                  .w = m->fn,
                                                  .n = n,
                                                  .ldx = s * c->hidden,
                                                  .ldy = m->fn.rows,
                                                  .exact = true}));
    return x->ops->mix(x, &(struct op_mix){.in = last ? w->x : w->xn,
                                           .out = last ? NULL : w->x,
                                           .streams = w->streams,
                                           .post = last ? NULL : w->post,
                                           .mix = computes ? w->mix : NULL,
                                           .base = m->base,
                                           .scale = m->scale,
                                           .earlier = passes ? w->carried + c->streams.weights_at : NULL,
                                           .ld_earlier = c->carried,
                                           .n = n,
                                           .hidden = c->hidden,
                                           .n_streams = s,
                                           .iters = c->streams.iters,
                                           .eps = c->streams.eps,
                                           .magnitude = c->streams.magnitude,
                                           .post_eps = c->streams.post_eps,
                                           .norm_eps = c->norm_eps});
}

static int copy_rows(struct exec *x, const struct config *c, float *to, const float *from, int n) {
    return rows_copy(x, to, c->hidden, from, c->hidden, n, c->hidden);
}

/* Inputs of a block: weights that mix the streams, norms and factors of the previous block's output, and the block's
 * own norm. */
struct block_input {
    const struct stream_mix *mix;
    const struct stream_merge *merge;
    const float *out_norm, *experts_norm, *stream_scale;
    const struct token_input *token; /* adds a vector of the token after the previous block; NULL: none */
    const float *weight, *bias;
    const struct mat *norm_gate; /* [2] */
    int tag;                     /* the block's index as counted by work.first_bad */
    const struct mat *out_gate;  /* [2] of out_norm, with gates_all_norms */
};

/* Multiplies n rows of v by factors: one per row, or (by_row false) the same for all. */
static int weigh_rows(struct exec *x, const struct config *c, float *v, const float *weight, bool by_row, int n) {
    return x->ops->gate(x, &(struct op_gate){.y = v,
                                             .g = weight,
                                             .n = n,
                                             .heads = 1,
                                             .dim = c->hidden,
                                             .ldy = c->hidden,
                                             .ldg = by_row,
                                             .head_ldy = c->hidden,
                                             .head_ldg = 1,
                                             .kind = GATE_LINEAR,
                                             .per_head = true});
}

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
static int norm_output(struct exec *x, const struct config *c, const struct block_input *in, struct work *w, int n) {
    const int hidden = c->hidden, tag = in->tag;
    const float *weight = in->out_norm;
    const bool is_unit = c->output_norm == OUTPUT_NORM_UNIT;
    if (!weight && !is_unit) return 0;
    if (weight && is_unit) TRY(rows_gate(x, w->x, hidden, weight, 0, GATE_LINEAR, n, hidden));
    TRY(block_norm_rows(x, c, w->x, hidden, w->x, hidden, is_unit ? NULL : weight, NULL, n, hidden,
                        config_output_eps(c), tag, w->first_bad));
    return c->gates_all_norms ? block_gate_norm(x, c, w, w->x, hidden, in->out_gate, n, hidden) : 0;
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

/* With a plain stream: adds the previous block's output w->x, normed or scaled if the family does so, to the stream and
 * clears w->x. tag 0: no previous block, w->x is the embedding. */
static int add_output(struct exec *x, const struct config *c, const struct block_input *in, struct work *w, int n) {
    const int hidden = c->hidden, tag = in->tag;
    if (tag && in->experts_norm) { /* w->x has the experts' sum, w->kept the output of the parallel dense FFN */
        TRY(block_norm_rows(x, c, w->x, hidden, w->x, hidden, in->experts_norm, NULL, n, hidden, c->norm_eps, tag,
                            w->first_bad));
        TRY(rows_add(x, w->x, w->kept, n, hidden));
    }
    if (tag) TRY(norm_output(x, c, in, w, n));
    if (c->merges_stream) TRY(merge_rows(x, c, w->x, in->merge->output_bias, in->merge->output_scale, w->xn, n));
    if (c->merges_stream && tag)
        TRY(merge_rows(x, c, w->streams, in->merge->stream_bias, in->merge->stream_scale, w->xn, n));
    if (tag && c->norms_stream)
        TRY(rows_scale(x, w->x, c->layer[(tag - 1) / 2].branch[(tag - 1) % 2].output, n, hidden));
    if (tag) TRY(rows_add(x, w->streams, w->x, n, hidden));
    else TRY(copy_rows(x, c, w->streams, w->x, n));
    if (!tag && c->token_dim) TRY(rows_copy(x, w->carried, c->carried, w->x, hidden, n, hidden));
    if (in->token) TRY(add_token(x, c, in->token, w, n, tag));
    if (tag && in->stream_scale) TRY(weigh_rows(x, c, w->streams, in->stream_scale, false, n));
    return x->ops->fill(x, &(struct op_fill){.x = w->x, .n = n, .m = hidden});
}

/* Adds the last block's output to the streams, and computes their mean in w->x. */
static int average_streams(struct exec *x, const struct config *c, struct work *w, int n) {
    const int s = c->streams.n, hidden = c->hidden;
    TRY(x->ops->spread(
        x, &(struct op_spread){
               .streams = w->streams, .x = w->x, .post = w->post, .n = n, .hidden = hidden, .n_streams = s}));
    TRY(rows_copy(x, w->x, hidden, w->streams, s * hidden, n, hidden));
    for (int i = 1; i < s; i++)
        TRY(x->ops->add(
            x, &(struct op_add){.y = w->x, .x = w->streams + i * hidden, .n = n, .m = hidden, .ldx = s * hidden}));
    return rows_scale(x, w->x, 1 / (float)s, n, hidden);
}

int block_merge_streams(struct exec *x, const struct weights *m, struct work *w, int n) {
    const struct config *c = &m->config;
    if (!c->streams.n) return 0;
    if (c->streams.is_gated) {
        TRY(gated_streams_add(x, c, w, false, n));
        return gated_streams_mix(x, c, &m->head_gated, w, w->x, n, 2 * c->n_layers);
    }
    if (c->streams.is_averaged) return average_streams(x, c, w, n);
    if (c->streams.block_layers) return attention_residuals_merge(x, m, w, n);
    if (!c->streams.is_plain) {
        TRY(spread_output(x, c, w, false, n));
        return mix_streams(x, c, &m->head_mix, w, true, n);
    }
    const struct block_input in = {.merge = &m->last_merge,
                                   .out_norm = m->last_out_norm,
                                   .out_gate = m->last_out_gate,
                                   .experts_norm = m->last_experts_norm,
                                   .stream_scale = m->last_scale,
                                   .token = c->token_dim ? &m->last_token_input : NULL,
                                   .tag = 2 * c->n_layers};
    TRY(add_output(x, c, &in, w, n));
    return copy_rows(x, c, w->x, w->streams, n);
}

/* Computes the normed input of a block in w->xn. */
static int norm_input(struct exec *x, const struct config *c, const struct block_input *in, struct work *w, int n) {
    const int tag = in->tag;
    /* the FFN of a parallel block: the attention's output waits for the FFN's in w->x */
    const bool reads_same = c->parallel_block && tag % 2;
    if (c->streams.is_plain && !reads_same) TRY(add_output(x, c, in, w, n));
    if (c->streams.n && !c->streams.is_plain) TRY(mix_streams(x, c, in->mix, w, false, n));
    if (c->no_input_norm) return copy_rows(x, c, w->xn, w->streams, n);
    const float *weight = in->weight, *bias = in->bias;
    const float *from = c->streams.n && !c->streams.is_plain ? w->xn : c->streams.n ? w->streams : w->x;
    TRY(block_norm_rows(x, c, w->xn, c->hidden, from, c->hidden, weight, bias, n, c->hidden, stream_eps(c, tag), tag,
                        w->first_bad));
    if (config_norm_is_gated(c, tag / 2, tag % 2))
        TRY(block_gate_norm(x, c, w, w->xn, c->hidden, in->norm_gate, n, c->hidden));
    if (!c->norms_stream) return 0;
    TRY(copy_rows(x, c, w->streams, w->xn, n));
    return rows_scale(x, w->streams, c->layer[tag / 2].branch[tag % 2].stream, n, c->hidden);
}

/* --- The attention block ---------------------------------------------------------------------- */

size_t block_grown_bytes(const struct config *c, int keys) {
    size_t most = 0;
    for (int i = 0; i < c->n_layers; i++) {
        const struct attention_kind *a = attention_of(c, i);
        size_t one = a->grown_bytes ? a->grown_bytes(c, i, keys) : 0;
        if (one > most) most = one;
    }
    return most;
}

int block_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
             const struct span *spans, int n_spans, int n) {
    const struct block_input in = {.mix = &y->attn_mix,
                                   .merge = &y->previous_merge,
                                   .out_norm = y->previous_out_norm,
                                   .experts_norm = y->previous_experts_norm,
                                   .stream_scale = y->previous_scale,
                                   .token = c->token_dim && layer ? &y->previous_token_input : NULL,
                                   .weight = y->attn_norm,
                                   .bias = y->attn_norm_bias,
                                   .norm_gate = y->attn_norm_gate,
                                   .tag = 2 * layer,
                                   .out_gate = y->previous_out_gate};
    if (c->layer[layer].mixer == MIXER_NONE && !config_is_bare(c, layer)) return 0;
    if (c->streams.is_gated) {
        TRY(gated_streams_add(x, c, w, layer == 0, n));
        TRY(gated_streams_add_ngram(x, c, y, layer, w, spans, n_spans, n));
        TRY(gated_streams_mix(x, c, &y->attn_gated, w, w->xn, n, 2 * layer));
        op_show(x, layer, "attention_norm", w->xn, n, c->hidden);
        return attention_of(c, layer)->store_kv(x, c, y, layer, w, spans, n_spans, n);
    }
    if (y->previous_ffn_scale) TRY(weigh_rows(x, c, w->x, y->previous_ffn_scale, false, n));
    TRY(short_conv_ffn(x, c, y, layer, w, spans, n_spans, n));
    if (c->streams.block_layers) TRY(attention_residuals_attention(x, c, y, layer, w, n));
    else {
        if (c->streams.n && !c->streams.is_plain) {
            TRY(spread_output(x, c, w, layer == 0, n));
            TRY(gated_streams_add_ngram(x, c, y, layer, w, spans, n_spans, n));
        }
        TRY(norm_input(x, c, &in, w, n));
    }
    op_show(x, layer, "attention_norm", w->xn, n, c->hidden);
    if (c->reads_early && c->layer[layer].moe) TRY(copy_rows(x, c, w->kept, w->x, n));
    return attention_of(c, layer)->store_kv(x, c, y, layer, w, spans, n_spans, n);
}
bool block_makes_queries_first(const struct config *c, int layer) {
    return attention_of(c, layer)->makes_queries_first;
}
bool block_needs_all_keys(const struct config *c, int layer) {
    return attention_of(c, layer)->needs_all_keys || c->rel_dim;
}
bool block_is_recordable(const struct config *c, int layer) {
    const struct layer_config *y = &c->layer[layer];
    /* the rows that complete keys */
    const bool by_position = c->attn == ATTN_COMPRESSED && y->passes_kv != KV_OWN && y->ratio > 1;
    return attention_of(c, layer)->is_recordable && !y->ngram && !by_position;
}
int block_few_keys_limit(const struct config *c, int layer) {
    const struct attention_kind *a = attention_of(c, layer);
    return a->few_keys_limit ? a->few_keys_limit(c) : 0;
}
int block_query(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    TRY(attention_of(c, layer)->make_queries(x, c, y, layer, w, n));
    if (c->layer[layer].mixer == MIXER_ATTENTION)
        op_show(x, layer, "q", w->q, n, config_heads(c, layer) * config_head_dim(c, layer));
    return 0;
}
int block_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                 const struct span *s, struct key_range keys) {
    return attention_of(c, layer)->attend(x, c, y, layer, w, s, keys);
}
int block_output(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    if (!y->o.rows) return 0; /* no mixer */
    return block_linear(x, c, w->x, c->hidden, w->att, mat_x_cols(&y->o), y->o, y->o_bias, n, true);
}
int block_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                    const struct span *spans, int n_spans, int n) {
    TRY(block_kv(x, c, y, layer, w, spans, n_spans, n));
    TRY(block_query(x, c, y, layer, w, n));
    for (int i = 0; i < n_spans; i++)
        TRY(block_attend(x, c, y, layer, w, &spans[i],
                         (struct key_range){.n = spans[i].pos + spans[i].n, .piece = PIECE_ALL}));
    if (y->o.rows) op_show(x, layer, "attention", w->att, n, mat_x_cols(&y->o));
    TRY(block_output(x, c, y, w, n));
    TRY(short_conv_attention(x, c, y, layer, w, spans, n_spans, n));
    op_show(x, layer, "after_attention", w->x, n, c->hidden);
    return 0;
}

/* --- Router and head -------------------------------------------------------------------------- */

/* Adds the output of idle experts: their input times their weights. Uses w->kept as scratch, which the layer has
 * read. */
static int add_idle(struct exec *x, const struct config *c, struct work *w, int n) {
    TRY(weigh_rows(x, c, w->kept, w->idle, true, n));
    return rows_add(x, w->x, w->kept, n, c->hidden);
}
/* Weighs the chosen expert's input instead of its output. Keeps the shared expert's input in w->ffn_in, which a
 * workspace for predictions lacks. */
static int weigh_input(struct exec *x, const struct config *c, struct work *w, int n) {
    if (w->ffn_in) TRY(copy_rows(x, c, w->ffn_in, w->xn, n));
    TRY(weigh_rows(x, c, w->xn, w->weights, true, n));
    return x->ops->fill(x, &(struct op_fill){.x = w->weights, .n = n, .m = c->topk, .value = 1});
}

static int norm_stream(struct exec *x, const struct config *c, struct work *w, const float *weight, int n) {
    return block_norm(x, c, w->xn, c->hidden, w->streams, c->hidden, weight, NULL, n, c->hidden);
}
/* Computes the parallel dense FFN in w->kept, normed, and then the router's input in w->xn. */
static int compute_parallel_dense(struct exec *x, const struct config *c, const struct layer *y, struct work *w,
                                  int n) {
    TRY(x->ops->fill(x, &(struct op_fill){.x = w->kept, .n = n, .m = c->hidden}));
    TRY(x->ops->experts(
        x, &(struct op_experts){.y = w->kept, .x = w->xn, .shared = &y->parallel_dense, .n = n, .hidden = c->hidden}));
    TRY(block_norm(x, c, w->kept, c->hidden, w->kept, c->hidden, y->dense_out_norm, NULL, n, c->hidden));
    return norm_stream(x, c, w, y->router_norm, n);
}

/* A layer of the router's MLP with GELU. */
static int router_layer(struct exec *x, const struct config *c, float *to, const float *from, struct mat m,
                        const float *bias, int n) {
    const int inter = c->router_inter;
    TRY(x->ops->linear(
        x, &(struct op_linear){
               .y = to, .x = from, .w = m, .bias = bias, .n = n, .ldx = inter, .ldy = inter, .exact = true}));
    return rows_gate(x, to, inter, to, inter, GATE_NORMAL, n, inter);
}
/* Runs the router's MLP up to its last matrix; *out receives its rows. Its first layer adds the previous layer's, and
 * is kept for the next one. */
static int router_hidden(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n,
                         const float **out) {
    const int inter = c->router_inter;
    float *a = w->router_mlp, *b = a + (size_t)n * (size_t)inter;
    TRY(x->ops->linear(x, &(struct op_linear){.y = a,
                                              .x = w->xn,
                                              .w = y->router_down,
                                              .bias = y->router_down_bias,
                                              .n = n,
                                              .ldx = c->hidden,
                                              .ldy = inter,
                                              .exact = true}));
    if (y->router_carry) {
        TRY(rows_gate(x, w->carried, inter, y->router_carry, 0, GATE_LINEAR, n, inter));
        TRY(rows_add(x, a, w->carried, n, inter));
    }
    TRY(rows_copy(x, w->carried, inter, a, inter, n, inter));
    TRY(block_norm(x, c, a, inter, a, inter, y->router_mlp_norm, NULL, n, inter));
    TRY(router_layer(x, c, b, a, y->router_fc1, y->router_fc1_bias, n));
    *out = a;
    return router_layer(x, c, a, b, y->router_fc2, y->router_fc2_bias, n);
}

/* y = gate . xn (+ bias), or with accumulate y += that; one number a row, in w->shared_weight. */
static int gate_product(struct exec *x, const struct config *c, struct mat gate, const float *bias, struct work *w,
                        int n, bool accumulate) {
    return x->ops->linear(x, &(struct op_linear){.y = w->shared_weight,
                                                 .x = w->xn,
                                                 .w = gate,
                                                 .bias = bias,
                                                 .n = n,
                                                 .ldx = c->hidden,
                                                 .ldy = 1,
                                                 .accumulate = accumulate,
                                                 .exact = true});
}
/* Weighs routed and shared experts by the softmax of two numbers a and b, which is sigmoid(a - b) and sigmoid(b -
 * a). */
static int mix_shared(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    TRY(gate_product(x, c, mat_rows(y->shared_gate, 1, 2), y->shared_gate_bias + 1, w, n, false));
    TRY(rows_scale(x, w->shared_weight, -1, n, 1));
    TRY(gate_product(x, c, mat_rows(y->shared_gate, 0, 1), y->shared_gate_bias, w, n, true));
    TRY(x->ops->gate(x, &(struct op_gate){.y = w->weights,
                                          .g = w->shared_weight,
                                          .n = n,
                                          .heads = 1,
                                          .dim = c->topk,
                                          .ldy = c->topk,
                                          .ldg = 1,
                                          .kind = GATE_SIGMOID,
                                          .per_head = true}));
    return rows_scale(x, w->shared_weight, -1, n, 1);
}
/* Computes the shared experts' weights of rows. */
static int gate_shared(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    if (c->mixes_shared) TRY(mix_shared(x, c, y, w, n));
    else TRY(gate_product(x, c, y->shared_gate, NULL, w, n, false));
    return x->ops->sigmoid(x, &(struct op_sigmoid){.x = w->shared_weight, .n = n, .m = 1});
}

int block_route(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    const struct block_input in = {.mix = &y->ffn_mix,
                                   .merge = &y->attn_merge,
                                   .out_norm = y->attn_out_norm,
                                   .weight = y->ffn_norm,
                                   .bias = y->ffn_norm_bias,
                                   .norm_gate = y->ffn_norm_gate,
                                   .tag = 2 * layer + 1,
                                   .out_gate = y->attn_out_gate};
    const int logits = config_n_choices(c);
    const bool parallel = y->parallel_dense.gate.data;
    if (c->layer[layer].no_ffn) return 0;
    if (c->streams.is_gated) {
        TRY(gated_streams_add(x, c, w, false, n));
        TRY(gated_streams_mix(x, c, &y->ffn_gated, w, w->xn, n, in.tag));
    } else if (c->streams.block_layers) TRY(attention_residuals_ffn(x, c, y, layer, w, n));
    else {
        if (c->streams.n && !c->streams.is_plain) TRY(spread_output(x, c, w, false, n));
        TRY(norm_input(x, c, &in, w, n));
    }
    op_show(x, layer, "ffn_norm", w->xn, n, c->hidden);
    if (c->layer[layer].keeps_input) TRY(copy_rows(x, c, w->kept, w->xn, n));
    if (!c->layer[layer].moe) return 0;
    if (c->layer[layer].routes_kept) {
        TRY(copy_rows(x, c, w->ffn_in, w->xn, n));
        TRY(copy_rows(x, c, w->xn, w->kept, n));
    }
    if (c->reads_early == EARLY_ROUTED) {
        if (w->ffn_in) TRY(copy_rows(x, c, w->ffn_in, w->xn, n)); /* a workspace for predictions has none */
        TRY(block_norm(x, c, w->xn, c->hidden, w->kept, c->hidden, y->experts_norm, NULL, n, c->hidden));
    }
    if (parallel) TRY(compute_parallel_dense(x, c, y, w, n));
    const float *in_router = c->reads_early == EARLY_ROUTER ? w->kept : w->xn;
    if (c->router_inter) TRY(router_hidden(x, c, y, w, n, &in_router));
    TRY(x->ops->linear(x, &(struct op_linear){.y = w->router,
                                              .x = in_router,
                                              .bias = y->router_shift,
                                              .w = y->router,
                                              .n = n,
                                              .ldx = y->router.cols,
                                              .ldy = logits,
                                              .exact = true}));
    if (c->router_scale > 0) TRY(rows_scale(x, w->router, c->router_scale, n, logits));
    if (c->router_cap > 0)
        TRY(x->ops->softcap(x, &(struct op_softcap){.x = w->router, .n = n, .m = logits, .cap = c->router_cap}));
    TRY(x->ops->route(x, &(struct op_route){.ids = w->ids,
                                            .weights = w->weights,
                                            .logits = w->router,
                                            .bias = y->router_bias,
                                            .expert_scale = y->expert_scale,
                                            .n_always = c->n_always,
                                            .table = (const int32_t *)y->router_table,
                                            .tokens = w->tokens,
                                            .vocab = c->vocab,
                                            .n = n,
                                            .n_experts = c->n_experts,
                                            .n_idle = c->n_idle_experts,
                                            .idle = w->idle,
                                            .topk = c->topk,
                                            .n_group = c->n_group,
                                            .group_each = c->group_each,
                                            .topk_group = c->topk_group,
                                            .score = c->score,
                                            .group_top2 = c->group_top2,
                                            .group_zero = c->group_zero,
                                            .norm = c->norm_topk,
                                            .scale = c->routed_scale,
                                            .jitter = c->router_jitter}));
    op_show(x, layer, "router", w->router, n, logits);
    op_show(x, layer, "expert_weights", w->weights, n, c->topk);
    if (parallel) return norm_stream(x, c, w, y->experts_norm, n);
    if (c->n_idle_experts) TRY(add_idle(x, c, w, n));
    if (c->weighs_input) TRY(weigh_input(x, c, w, n));
    if (c->shared_scale > 0)
        return x->ops->fill(x, &(struct op_fill){.x = w->shared_weight, .n = n, .m = 1, .value = c->shared_scale});
    return c->shared_gate ? gate_shared(x, c, y, w, n) : 0;
}

int block_head(struct exec *x, const struct weights *m, struct work *w, int row, int n, float *logits, int32_t *top) {
    const struct config *c = &m->config;
    size_t at = (size_t)row * (size_t)c->hidden;
    if (c->streams.is_gated) TRY(copy_rows(x, c, w->xn + at, w->x + at, n)); /* has no last norm */
    else
        TRY(block_norm_rows(x, c, w->xn + at, c->hidden, w->x + at, c->hidden, m->norm, m->norm_bias, n, c->hidden,
                            stream_eps(c, 2 * c->n_layers), 2 * c->n_layers, w->first_bad));
    if (c->gates_all_norms) TRY(block_gate_norm(x, c, w, w->xn + at, c->hidden, m->norm_gate, n, c->hidden));
    op_show(x, -1, "final_norm", w->xn + at, n, c->hidden);
    TRY(x->ops->linear(x, &(struct op_linear){.y = logits,
                                              .x = w->xn + at,
                                              .bias = m->head_bias,
                                              .w = m->head,
                                              .n = n,
                                              .ldx = c->hidden,
                                              .ldy = c->vocab,
                                              .top = top}));
    /* keeps the order */
    if (c->logit_cap > 0)
        TRY(x->ops->softcap(x, &(struct op_softcap){.x = logits, .n = n, .m = c->vocab, .cap = c->logit_cap}));
    op_show(x, -1, "logits", logits, n, c->vocab);
    return 0;
}
