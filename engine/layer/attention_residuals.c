/* Attention residuals (Inkling 2, Kimi K3). Each stream is the sum of the outputs of block_layers layers, the first
 * that of the embedding; a block's output is added to the latest stream, and its input is a mix of all streams by
 * op_pool. Every block_layers layers, a layer begins the next stream with the output of its attention block.
 *
 * In a loop (inkling2_loop) some layers run in several passes. A pass reads the streams before the loop and its own,
 * not those of earlier passes. From the streams of the pass before it gets messages, which gates add to the blocks'
 * inputs. So two passes have streams at a time, in two ranges of work.streams that passes alternate between. The last
 * pass has the second range, so that the layers after the loop skip only the first range. Reference: transformers,
 * models/inkling2 and models/inkling2_loop. */
#include "engine/layer/block_linear.h"
#include "engine/layer/rows.h"
#include "engine/layer/streams.h"

enum { QUERIES, KEYS, VALUES, FFN }; /* inputs of blocks, as layer.message_gate has them */
static const float POOL_EPS = 1e-6f; /* Inkling 2 fixes it, whatever rms_norm_eps is */

/* Returns the number of streams that n consecutive layers begin. */
static int n_begun(const struct config *c, int n) {
    return (n + c->streams.block_layers - 1) / c->streams.block_layers;
}

/* work.streams of a loop: the streams before it, of the embedding and of n_before - 1 blocks of layers, then two ranges
 * of n_pass streams for its passes. */
struct loop {
    int n_before, n_pass;
};
static struct loop loop_of(const struct config *c) {
    const struct residual_streams *s = &c->streams;
    return (struct loop){.n_before = n_begun(c, s->loop_from) + 1, .n_pass = n_begun(c, s->loop_to - s->loop_from)};
}
/* Returns the first stream of a pass. */
static int pass_begin(const struct config *c, int pass) {
    const struct loop l = loop_of(c);
    return c->streams.loop_passes < 2 || (c->streams.loop_passes - 1 - pass) % 2 ? l.n_before : l.n_before + l.n_pass;
}

/* Fills the sources of a block of `layer`: the streams of layers [0, end) of the checkpoint, without those of other
 * passes. o->into becomes the latest. */
static void set_sources(const struct config *c, struct op_pool *o, int layer, int end) {
    const struct residual_streams *s = &c->streams;
    const struct loop l = loop_of(c);
    int begin = l.n_before;
    o->skip_at = l.n_before;
    if (s->loop_passes < 2 || end <= s->loop_from) o->n_sources = n_begun(c, end) + 1;
    else {
        const bool after = config_stored_layer(c, layer) >= s->loop_to;
        begin = pass_begin(c, after ? s->loop_passes - 1 : c->layer[layer].pass);
        o->n_sources = l.n_before + (after ? l.n_pass + n_begun(c, end - s->loop_to) : n_begun(c, end - s->loop_from));
    }
    o->skip = begin - l.n_before;
    o->into = op_pool_stream(o, o->n_sources - 1);
}

static struct op_pool pool_of(const struct config *c, const struct work *w, int n) {
    return (struct op_pool){.x = w->x,
                            .streams = w->streams,
                            .n = n,
                            .hidden = c->hidden,
                            .n_streams = c->streams.n,
                            .sums_raw = c->streams.sums_raw,
                            .eps = c->streams.sums_raw ? c->streams.eps : POOL_EPS};
}

/* Norms n rows of v to out, which are ldo apart. weight NULL: without weights. */
static int norm_rows(struct exec *x, const struct config *c, const struct work *w, float *out, int ldo, const float *v,
                     const float *weight, int n, int tag) {
    return block_norm_rows(x, c, out, ldo, v, c->hidden, weight, NULL, n, c->hidden, c->norm_eps, tag, w->first_bad);
}
/* Norms n rows of a block's input in place. */
static int norm_input(struct exec *x, const struct config *c, const struct work *w, float *v, const float *weight,
                      int n, int tag) {
    return norm_rows(x, c, w, v, c->hidden, v, weight, n, tag);
}

/* --- Messages between passes ------------------------------------------------------------------ */

/* v = (1 - tanh(forget g)) * v + tanh(gain g) * message, where g = down [norm(v), norm(message)]. Overwrites
 * message. */
static int add_message(struct exec *x, const struct config *c, const struct message_gate *m, const struct work *w,
                       float *v, float *message, int n, int tag) {
    const int hidden = c->hidden, rank = c->streams.message_rank;
    const size_t all = (size_t)n * (size_t)hidden;
    /* after the messages of add_messages() */
    float *both = w->messages + 3 * all, *forget = both + 2 * all, *gain = forget + all, *low = gain + all;
    TRY(norm_rows(x, c, w, both, 2 * hidden, v, NULL, n, tag));
    TRY(norm_rows(x, c, w, both + hidden, 2 * hidden, message, NULL, n, tag));
    TRY(block_linear_exact(x, low, rank, both, 2 * hidden, m->down, n));
    TRY(block_linear_exact(x, forget, hidden, low, rank, m->forget, n));
    TRY(block_linear_exact(x, gain, hidden, low, rank, m->gain, n));
    TRY(x->ops->softcap(x, &(struct op_softcap){.x = forget, .n = n, .m = hidden, .cap = 1}));
    TRY(x->ops->softcap(x, &(struct op_softcap){.x = gain, .n = n, .m = hidden, .cap = 1}));
    TRY(rows_scale(x, forget, -1, n, hidden));
    TRY(rows_gate(x, forget, hidden, v, hidden, GATE_LINEAR, n, hidden));
    TRY(rows_add(x, v, forget, n, hidden));
    TRY(rows_gate(x, message, hidden, gain, hidden, GATE_LINEAR, n, hidden));
    return rows_add(x, v, message, n, hidden);
}

/* Adds the messages of the pass before to inputs [from, from + parts), n rows at v each. */
static int add_messages(struct exec *x, const struct config *c, const struct layer *y, int layer, const struct work *w,
                        float *const *v, int from, int parts, int n, int tag) {
    struct op_pool o = pool_of(c, w, n);
    o.x = NULL, o.n_sources = loop_of(c).n_pass, o.skip = pass_begin(c, c->layer[layer].pass - 1), o.n_queries = parts;
    for (int i = 0; i < parts; i++)
        o.query[i] = y->message_query[from + i], o.out[i] = w->messages + (size_t)i * (size_t)n * (size_t)c->hidden;
    TRY(x->ops->pool(x, &o));
    for (int i = 0; i < parts; i++) TRY(add_message(x, c, &y->message_gate[from + i], w, v[i], o.out[i], n, tag));
    return 0;
}

/* --- Inputs of blocks ------------------------------------------------------------------------- */

static int attention_input(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                           int n) {
    const bool reads = !config_is_bare(c, layer), mixes_kv = c->layer[layer].mixes_kv,
               own_kv = mixes_kv || c->layer[layer].pass;
    /* inputs: all; with queries of their own */
    const int stored = config_stored_layer(c, layer), parts = own_kv ? 3 : 1, queries = mixes_kv ? 3 : 1;
    float *const out[] = {w->xn, w->kv_in, w->kv_in + (size_t)n * (size_t)c->hidden};
    struct op_pool o = pool_of(c, w, n);
    set_sources(c, &o, layer, stored);
    o.begins = !layer;
    if (c->layer[layer].pass && stored == c->streams.loop_from) /* the last layer of the pass before */
        o.into = pass_begin(c, c->layer[layer].pass - 1) + loop_of(c).n_pass - 1;
    if (!layer) /* the input is the embedding, without a mix */
        for (int i = 0; i < queries; i++) TRY(rows_copy(x, out[i], c->hidden, w->x, c->hidden, n, c->hidden));
    o.n_queries = layer && reads ? queries : 0;
    for (int i = 0; i < o.n_queries; i++) o.out[i] = out[i], o.query[i] = y->attn_pool + (size_t)i * (size_t)c->hidden;
    TRY(x->ops->pool(x, &o));
    if (!reads) return 0;
    for (int i = queries; i < parts; i++) TRY(rows_copy(x, out[i], c->hidden, out[0], c->hidden, n, c->hidden));
    if (c->layer[layer].pass) TRY(add_messages(x, c, y, layer, w, out, QUERIES, 3, n, 2 * layer));
    for (int i = 0; i < parts; i++)
        TRY(norm_input(x, c, w, out[i], i && mixes_kv ? y->kv_norm[i - 1] : y->attn_norm, n, 2 * layer));
    return 0;
}

static int ffn_input(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    const int stored = config_stored_layer(c, layer), tag = 2 * layer + 1;
    struct op_pool o = pool_of(c, w, n);
    set_sources(c, &o, layer, stored + 1);
    o.begins = stored % c->streams.block_layers == 0;
    o.n_queries = 1, o.out[0] = w->xn, o.query[0] = y->ffn_pool;
    TRY(x->ops->pool(x, &o));
    if (c->layer[layer].pass) TRY(add_messages(x, c, y, layer, w, &w->xn, FFN, 1, n, tag));
    return norm_input(x, c, w, w->xn, y->ffn_norm, n, tag);
}

static int pooled_input(struct exec *x, const struct config *c, const struct layer *y, int tag, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    return (tag % 2 ? ffn_input : attention_input)(x, c, y, tag / 2, w, n);
}
static int pooled_merge(struct exec *x, const struct weights *m, struct work *w, int n) {
    const struct config *c = &m->config;
    /* a bare last layer has begun no stream and added the output of the layer before it */
    const int last = c->n_layers - 1;
    struct op_pool o = pool_of(c, w, n);
    set_sources(c, &o, last, config_stored_layer(c, last) + !config_is_bare(c, last));
    o.n_queries = 1, o.out[0] = w->xn, o.query[0] = m->head_pool;
    TRY(x->ops->pool(x, &o));
    return rows_copy(x, w->x, c->hidden, w->xn, c->hidden, n, c->hidden);
}
const struct streams_kind streams_pooled = {pooled_input, pooled_merge};
