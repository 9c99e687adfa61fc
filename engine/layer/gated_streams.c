/* Gated residual streams with hashed n-gram embeddings (Qwen4). A block reads the mean of the streams' norms, each element weighted by a gate of low rank, and
 * adds its output to each stream with a weight of its own. Before some layers an embedding of the last tokens is added to the streams: a table's rows by their
 * hashes, gated by how they relate to each stream, plus a causal convolution. Reference: transformers, models/qwen4_exp. */
#include <math.h>

#include "engine/layer/attention.h"

static int stream_floats(const struct config *c) { return c->streams.n * c->hidden; }

static int exact(struct exec *x, float *y, const float *in, struct mat m, int n) {
    return x->ops->linear(x, &(struct op_linear){.y = y, .x = in, .w = m, .n = n, .ldx = m.cols, .ldy = m.rows, .exact = true});
}
static int scale_all(struct exec *x, float *v, int m, float by, int n) {
    return x->ops->scale(x, &(struct op_scale){.x = v, .n = n, .m = m, .ld = m, .by = by});
}
static int add_all(struct exec *x, const struct config *c, float *y, const float *v, int n) {
    return x->ops->add(x, &(struct op_add){.y = y, .x = v, .n = n, .m = stream_floats(c)});
}

/* Norms each stream with its own weights [streams * hidden]; in and out may be the same. */
static int norm_streams(struct exec *x, const struct config *c, const struct work *w, float *out, const float *in, const float *weight, int n, int tag) {
    const int all = stream_floats(c);
    for (int s = 0, at = 0; s < c->streams.n; s++, at += c->hidden)
        TRY(x->ops->norm(x, &(struct op_norm){.out = out + at,
                                              .x = in + at,
                                              .w = weight + at,
                                              .rows = n,
                                              .dim = c->hidden,
                                              .ldx = all,
                                              .ldo = all,
                                              .eps = c->norm_eps,
                                              .add = c->norm == NORM_RMS_PLUS_ONE,
                                              .w_dtype = DT_F32,
                                              .tag = tag,
                                              .bad = w->first_bad}));
    return 0;
}

int gated_streams_add(struct exec *x, const struct config *c, struct work *w, bool first, int n) {
    TRY(x->ops->spread(
        x, &(struct op_spread){.streams = w->streams, .x = w->x, .post = first ? NULL : w->post, .n = n, .hidden = c->hidden, .n_streams = c->streams.n}));
    return x->ops->fill(x, &(struct op_fill){.x = w->x, .n = n, .m = c->hidden});
}

int gated_streams_mix(struct exec *x, const struct config *c, const struct gated_mix *m, struct work *w, float *out, int n, int tag) {
    const int all = stream_floats(c), streams = c->streams.n;
    const float mean = 1 / (float)streams;
    TRY(norm_streams(x, c, w, w->stream_norm, w->streams, m->norm, n, tag));
    if (m->inject.data) {
        TRY(exact(x, w->post, w->stream_norm, m->inject, n));
        TRY(scale_all(x, w->post, streams, mean, n));
        TRY(x->ops->sigmoid(x, &(struct op_sigmoid){.x = w->post, .n = n, .m = streams}));
        TRY(scale_all(x, w->post, streams, 2, n));
    }
    TRY(exact(x, w->mix, w->stream_norm, m->down, n));
    TRY(scale_all(x, w->mix, c->streams.rank, mean, n));
    TRY(x->ops->gate(
        x, &(struct op_gate){
               .y = w->mix, .g = w->mix, .n = n, .heads = 1, .dim = c->streams.rank, .ldy = c->streams.rank, .ldg = c->streams.rank, .kind = GATE_SIGMOID}));
    TRY(exact(x, w->stream_gates, w->mix, m->up, n));
    TRY(x->ops->gate(
        x, &(struct op_gate){.y = w->stream_norm, .g = w->stream_gates, .n = n, .heads = 1, .dim = all, .ldy = all, .ldg = all, .kind = GATE_SIGMOID}));
    TRY(x->ops->copy(x, &(struct op_copy){.y = out, .x = w->stream_norm, .n = n, .heads = 1, .dim = c->hidden, .ldx = all, .ldy = c->hidden}));
    for (int s = 1; s < streams; s++) TRY(x->ops->add(x, &(struct op_add){.y = out, .x = w->stream_norm + s * c->hidden, .n = n, .m = c->hidden, .ldx = all}));
    return scale_all(x, out, c->hidden, mean, n);
}

/* --- Embeddings of n-grams ------------------------------------------------------------------------------------------------------- */

/* A state: the last size - 1 tokens as int32_t, then the last rows of the convolution's input. */
struct cache_desc ngram_plane(const struct config *c, int layer) {
    const struct ngram_config *g = config_ngram(c, layer);
    return (struct cache_desc){.heads = 1, .dim = g->size - 1 + (config_ngram_taps(g) - 1) * stream_floats(c), .fixed_rows = KV_STATES, .dtype = DT_F32};
}
static int state_plane(const struct config *c, int layer) {
    struct cache_desc d[CACHE_PLANES];
    return kv_planes(c, layer, d) - 1;
}

/* Hashes rows [row, row + n) of the workspace from one state to another. */
static int hash_rows(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, int row, int n, int from,
                     int to) {
    const struct ngram_config *g = config_ngram(c, layer);
    const int plane = state_plane(c, layer);
    struct op_ngram o = {.rows = w->ngram_rows + (size_t)row * (size_t)config_ngram_hashes(g),
                         .tokens = w->tokens + row,
                         .before = (const int32_t *)attention_state(s, layer, plane, from),
                         .after = (int32_t *)attention_state(s, layer, plane, to),
                         .n = n,
                         .size = g->size,
                         .per = g->per,
                         .end = c->ngram_end};
    for (int i = 0; i < NGRAM_MOST; i++) o.multiplier[i] = g->multiplier[i];
    for (int i = 0; i < NGRAM_HASHES_MOST; i++) o.vocab[i] = g->vocab[i], o.offset[i] = g->offset[i];
    return x->ops->ngram(x, &o);
}
static int convolve_rows(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, int row, int n,
                         int from, int to) {
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

int ngram_add(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n) {
    const struct ngram_config *g = config_ngram(c, layer);
    const int all = stream_floats(c), streams = c->streams.n;
    if (!g) return 0;
    for (int i = 0; i < n_spans; i++) TRY(attention_step(x, c, y, layer, w, &spans[i], hash_rows));
    TRY(x->ops->embed(x, &(struct op_embed){.out = w->ngram, .ids = w->ngram_rows, .table = y->ngram_table, .n = n * config_ngram_hashes(g)}));
    TRY(exact(x, w->stream_norm, w->ngram, y->ngram_key, n));
    TRY(norm_streams(x, c, w, w->stream_norm, w->stream_norm, y->ngram_key_norm, n, 2 * layer));
    TRY(norm_streams(x, c, w, w->stream_gates, w->streams, y->ngram_query_norm, n, 2 * layer));
    TRY(x->ops->relate(
        x, &(struct op_relate){
               .out = w->post, .x = w->stream_norm, .y = w->stream_gates, .n = n, .heads = streams, .dim = c->hidden, .scale = (float)(1 / sqrt(c->hidden))}));
    TRY(exact(x, w->xn, w->ngram, y->ngram_value, n));
    TRY(x->ops->fill(x, &(struct op_fill){.x = w->stream_norm, .n = n, .m = all}));
    TRY(x->ops->spread(x, &(struct op_spread){.streams = w->stream_norm, .x = w->xn, .post = w->post, .n = n, .hidden = c->hidden, .n_streams = streams}));
    TRY(norm_streams(x, c, w, w->stream_gates, w->stream_norm, y->ngram_conv_norm, n, 2 * layer));
    TRY(add_all(x, c, w->streams, w->stream_norm, n));
    for (int i = 0; i < n_spans; i++) TRY(attention_step(x, c, y, layer, w, &spans[i], convolve_rows));
    return add_all(x, c, w->streams, w->stream_norm, n);
}
