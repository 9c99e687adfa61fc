/* Gated residual streams with hashed n-gram embeddings (Qwen4). A block reads the mean of the streams' norms, each
 * element weighted by a gate of low rank, and adds its output to each stream with a weight of its own. Before some
 * layers an embedding of the last tokens is added to the streams: a table's rows by their hashes, gated by how they
 * relate to each stream, plus a causal convolution; also of streams that are mixed otherwise (DeepSeek-V4.1, without a
 * convolution). Reference: transformers, models/qwen4_exp. */
#include <math.h>

#include "engine/layer/gated_streams.h"

#include "engine/layer/attention_kinds.h"
#include "engine/layer/rows.h"
#include "engine/layer/streams.h"

static int stream_floats(const struct config *c) { return c->streams.n * c->hidden; }

/* block_linear_exact for rows without gaps. */
static int linear_exact(struct exec *x, float *y, const float *in, struct mat m, int n) {
    return block_linear_exact(x, y, m.rows, in, m.cols, m, n);
}

/* Norms each stream with its own weights [streams * hidden]; in and out may be the same. */
static int norm_streams(struct exec *x, const struct config *c, const struct work *w, float *out, const float *in,
                        const float *weight, int n, int tag) {
    const int all = stream_floats(c);
    for (int s = 0, at = 0; s < c->streams.n; s++, at += c->hidden)
        TRY(block_norm_rows(x, c, out + at, all, in + at, all, weight + at, NULL, n, c->hidden, c->norm_eps, tag,
                            w->first_bad));
    return 0;
}

/* Adds the previous block's output w->x to the streams, or with `first` initializes them with it, and clears w->x. */
static int add_output(struct exec *x, const struct config *c, struct work *w, bool first, int n) {
    TRY(x->ops->spread(x, &(struct op_spread){.streams = w->streams,
                                              .x = w->x,
                                              .post = first ? NULL : w->post,
                                              .n = n,
                                              .hidden = c->hidden,
                                              .n_streams = c->streams.n}));
    return x->ops->fill(x, &(struct op_fill){.x = w->x, .n = n, .m = c->hidden});
}

/* Computes a block's input in out [n, hidden] and, unless it is the head's, the weights of its output in w->post. tag:
 * as in op_norm. */
static int mix_streams(struct exec *x, const struct config *c, const struct gated_mix *m, struct work *w, float *out,
                       int n, int tag) {
    const int all = stream_floats(c), streams = c->streams.n, rank = c->streams.rank;
    const float mean = 1 / (float)streams;
    TRY(norm_streams(x, c, w, w->stream_norm, w->streams, m->norm, n, tag));
    if (m->inject.data) {
        TRY(linear_exact(x, w->post, w->stream_norm, m->inject, n));
        TRY(rows_scale(x, w->post, mean, n, streams));
        TRY(x->ops->sigmoid(x, &(struct op_sigmoid){.x = w->post, .n = n, .m = streams}));
        TRY(rows_scale(x, w->post, 2, n, streams));
    }
    TRY(linear_exact(x, w->mix, w->stream_norm, m->down, n));
    TRY(rows_scale(x, w->mix, mean, n, rank));
    TRY(rows_gate(x, w->mix, rank, w->mix, rank, GATE_SIGMOID, n, rank));
    TRY(linear_exact(x, w->stream_gates, w->mix, m->up, n));
    TRY(rows_gate(x, w->stream_norm, all, w->stream_gates, all, GATE_SIGMOID, n, all));
    TRY(rows_copy(x, out, c->hidden, w->stream_norm, all, n, c->hidden));
    for (int s = 1; s < streams; s++)
        TRY(x->ops->add(
            x, &(struct op_add){.y = out, .x = w->stream_norm + s * c->hidden, .n = n, .m = c->hidden, .ldx = all}));
    return rows_scale(x, out, mean, n, c->hidden);
}

/* --- Embeddings of n-grams -------------------------------------------------------------------- */

/* A state: the last size - 1 tokens as int32_t, then the last rows of the convolution's input. */
struct cache_desc gated_streams_ngram_plane(const struct config *c, int layer) {
    const struct ngram_config *g = config_ngram(c, layer);
    return (struct cache_desc){.heads = 1,
                               .dim = g->size - 1 + (config_ngram_taps(g) - 1) * stream_floats(c),
                               .fixed_rows = KV_STATES,
                               .dtype = DT_F32};
}
static int state_plane(const struct config *c, int layer) {
    struct cache_desc d[CACHE_PLANES];
    return attention_of(c, layer)->cache_planes(c, layer, d);
}

struct op_ngram gated_streams_ngram_op(const struct config *c, const struct layer *y, int layer) {
    const struct ngram_config *g = config_ngram(c, layer);
    struct op_ngram o = {.ids = (const int32_t *)y->ngram_ids,
                         .n_ids = c->ngram_numbers ? c->vocab : 0,
                         .passes_end = c->ngram_numbers,
                         .size = g->size,
                         .per = g->per,
                         .end = c->ngram_end};
    for (int i = 0; i < NGRAM_MOST; i++) o.multiplier[i] = g->multiplier[i];
    for (int i = 0; i < NGRAM_HASHES_MOST; i++) o.vocab[i] = g->vocab[i], o.offset[i] = g->offset[i];
    return o;
}
/* Hashes rows [row, row + n) of the workspace from one state to another. */
static int hash_rows(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                     const struct span *s, int row, int n, int from, int to) {
    const int plane = state_plane(c, layer);
    struct op_ngram o = gated_streams_ngram_op(c, y, layer);
    o.rows = w->ngram_rows + (size_t)row * (size_t)config_ngram_hashes(config_ngram(c, layer));
    o.tokens = w->tokens + row;
    o.before = (const int32_t *)attention_state(s, layer, plane, from);
    o.after = (int32_t *)attention_state(s, layer, plane, to);
    o.n = n;
    return x->ops->ngram(x, &o);
}
static int convolve_rows(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *s, int row, int n, int from, int to) {
    const struct ngram_config *g = config_ngram(c, layer);
    const int all = stream_floats(c), plane = state_plane(c, layer), skip = g->size - 1;
    const size_t at = (size_t)row * (size_t)all;
    const float *before = attention_state(s, layer, plane, from);
    return x->ops->conv(x, &(struct op_conv){.out = w->stream_norm + at,
                                             .x = w->stream_gates + at,
                                             .w = y->ngram_conv,
                                             .before = before ? before + skip : NULL,
                                             .after = attention_state(s, layer, plane, to) + skip,
                                             .n = n,
                                             .channels = all,
                                             .taps = config_ngram_taps(g),
                                             .ldx = all,
                                             .ldo = all});
}

int gated_streams_add_ngram(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            const struct span *spans, int n_spans, int n) {
    const struct ngram_config *g = config_ngram(c, layer);
    const int all = stream_floats(c), streams = c->streams.n;
    if (!g) return 0;
    for (int i = 0; i < n_spans; i++) TRY(attention_advance_state(x, c, y, layer, w, &spans[i], hash_rows));
    const bool has_table = y->ngram_table.data;
    const float *in = has_table ? w->ngram : w->ngrams + config_ngram_at(c, layer);
    const int ld = has_table ? g->dim : config_ngram_floats(c);
    if (has_table)
        TRY(x->ops->embed(
            x, &(struct op_embed){
                   .out = w->ngram, .ids = w->ngram_rows, .table = y->ngram_table, .n = n * config_ngram_hashes(g)}));
    TRY(block_linear_exact(x, w->stream_norm, all, in, ld, y->ngram_key, n));
    TRY(norm_streams(x, c, w, w->stream_norm, w->stream_norm, y->ngram_key_norm, n, 2 * layer));
    TRY(norm_streams(x, c, w, w->stream_gates, w->streams, y->ngram_query_norm, n, 2 * layer));
    TRY(x->ops->relate(x, &(struct op_relate){.out = w->post,
                                              .x = w->stream_norm,
                                              .y = w->stream_gates,
                                              .n = n,
                                              .heads = streams,
                                              .dim = c->hidden,
                                              .scale = (float)(1 / sqrt(c->hidden))}));
    TRY(block_linear_exact(x, w->xn, c->hidden, in, ld, y->ngram_value, n));
    TRY(x->ops->fill(x, &(struct op_fill){.x = w->stream_norm, .n = n, .m = all}));
    TRY(x->ops->spread(x, &(struct op_spread){.streams = w->stream_norm,
                                              .x = w->xn,
                                              .post = w->post,
                                              .n = n,
                                              .hidden = c->hidden,
                                              .n_streams = streams}));
    TRY(rows_add(x, w->streams, w->stream_norm, n, all));
    if (g->taps == 1) return 0;
    TRY(norm_streams(x, c, w, w->stream_gates, w->stream_norm, y->ngram_conv_norm, n, 2 * layer));
    for (int i = 0; i < n_spans; i++) TRY(attention_advance_state(x, c, y, layer, w, &spans[i], convolve_rows));
    return rows_add(x, w->streams, w->stream_norm, n, all);
}

static int gated_input(struct exec *x, const struct config *c, const struct layer *y, int tag, struct work *w,
                       const struct span *spans, int n_spans, int n) {
    TRY(add_output(x, c, w, !tag, n));
    if (tag % 2 == 0) TRY(gated_streams_add_ngram(x, c, y, tag / 2, w, spans, n_spans, n));
    return mix_streams(x, c, tag % 2 ? &y->ffn_gated : &y->attn_gated, w, w->xn, n, tag);
}
static int gated_merge(struct exec *x, const struct weights *m, struct work *w, int n) {
    const struct config *c = &m->config;
    TRY(add_output(x, c, w, false, n));
    return mix_streams(x, c, &m->head_gated, w, w->x, n, 2 * c->n_layers);
}
const struct streams_kind streams_gated = {gated_input, gated_merge, .merges_normed = true};
