/* Attention residuals (Inkling 2, Kimi K3). Each stream is the sum of the outputs of block_layers layers, the first that of the embedding; a block's output
 * goes to the latest one, and its input is a mix of all of them by op_pool. Layers that end a stream begin the next one with the output of their attention
 * block. In a loop (inkling2_loop) each pass over its layers begins anew with the streams before it, but also reads those of the pass before: its messages,
 * which gates add to the inputs. The streams of two passes alternate; the last pass has the second of both places, so that later layers skip only the first.
 * Reference: transformers, models/inkling2 and models/inkling2_loop. */
#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

enum { QUERIES, KEYS, VALUES, FFN };
static const float pool_eps = 1e-6f; /* Inkling 2's, not the config's */

/* Streams that `layers` layers begin. */
static int begun(const struct config *c, int layers) { return (layers + c->streams.block_layers - 1) / c->streams.block_layers; }

/* Where the streams of a loop are: `before` of them come first, then two places for `each` of a pass. */
struct loop {
    int before, each;
};
static struct loop loop_of(const struct config *c) {
    const struct residual_streams *s = &c->streams;
    return (struct loop){begun(c, s->loop_from) + 1, begun(c, s->loop_to - s->loop_from)};
}
static int pass_place(const struct config *c, int pass) {
    const struct loop l = loop_of(c);
    return c->streams.loop_passes < 2 || (c->streams.loop_passes - 1 - pass) % 2 ? l.before : l.before + l.each;
}

/* Sets the sources of the first layers of the checkpoint, up to `end`, when it is the turn of `layer`, and the latest of them. */
static void set_sources(const struct config *c, struct op_pool *o, int layer, int end) {
    const struct residual_streams *s = &c->streams;
    const struct loop l = loop_of(c);
    int place = l.before;
    o->skip_at = l.before;
    if (s->loop_passes < 2 || end <= s->loop_from) o->n_sources = begun(c, end) + 1;
    else {
        const bool after = config_stored_layer(c, layer) >= s->loop_to;
        place = pass_place(c, after ? s->loop_passes - 1 : c->layer[layer].pass);
        o->n_sources = l.before + (after ? l.each + begun(c, end - s->loop_to) : begun(c, end - s->loop_from));
    }
    o->skip = place - l.before;
    o->into = op_pool_stream(o, o->n_sources - 1);
}

static struct op_pool pool_of(const struct config *c, const struct work *w, int n) {
    return (struct op_pool){.x = w->x,
                            .streams = w->streams,
                            .n = n,
                            .hidden = c->hidden,
                            .n_streams = c->streams.n,
                            .sums_raw = c->streams.sums_raw,
                            .eps = c->streams.sums_raw ? c->streams.eps : pool_eps};
}

/* Norms n rows of v to out, which are ldo apart. weight NULL: without weights. */
static int norm_rows(struct exec *x, const struct config *c, const struct work *w, float *out, int ldo, const float *v, const float *weight, int n, int tag) {
    return x->ops->norm(x, &(struct op_norm){.out = out,
                                             .x = v,
                                             .w = weight,
                                             .rows = n,
                                             .dim = c->hidden,
                                             .ldx = c->hidden,
                                             .ldo = ldo,
                                             .eps = c->norm_eps,
                                             .w_dtype = DT_F32,
                                             .tag = tag,
                                             .bad = w->first_bad});
}
static int norm_part(struct exec *x, const struct config *c, const struct work *w, float *v, const float *weight, int n, int tag) {
    return norm_rows(x, c, w, v, c->hidden, v, weight, n, tag);
}

/* --- Messages between passes --------------------------------------------------------------------------------------------------------- */

/* v = (1 - tanh(forget g)) * v + tanh(gain g) * message, g = down [norm(v), norm(message)]. */
static int add_message(struct exec *x, const struct config *c, const struct message_gate *m, const struct work *w, float *v, float *message, int n, int tag) {
    const int hidden = c->hidden, rank = c->streams.message_rank;
    const size_t all = (size_t)n * (size_t)hidden;
    float *both = w->messages + 3 * all, *forget = both + 2 * all, *gain = forget + all, *low = gain + all;
    TRY(norm_rows(x, c, w, both, 2 * hidden, v, NULL, n, tag));
    TRY(norm_rows(x, c, w, both + hidden, 2 * hidden, message, NULL, n, tag));
    TRY(attention_linear_exact(x, low, rank, both, 2 * hidden, m->down, n));
    TRY(attention_linear_exact(x, forget, hidden, low, rank, m->forget, n));
    TRY(attention_linear_exact(x, gain, hidden, low, rank, m->gain, n));
    TRY(x->ops->softcap(x, &(struct op_softcap){.x = forget, .n = n, .m = hidden, .cap = 1}));
    TRY(x->ops->softcap(x, &(struct op_softcap){.x = gain, .n = n, .m = hidden, .cap = 1}));
    TRY(rows_scale(x, forget, -1, n, hidden));
    TRY(rows_gate(x, forget, hidden, v, hidden, GATE_LINEAR, n, hidden));
    TRY(rows_add(x, v, forget, n, hidden));
    TRY(rows_gate(x, message, hidden, gain, hidden, GATE_LINEAR, n, hidden));
    return rows_add(x, v, message, n, hidden);
}

/* Adds messages of the pass before to the inputs v of `parts` parts, the first of which is `from`. */
static int add_messages(struct exec *x, const struct config *c, const struct layer *y, int layer, const struct work *w, float *const *v, int from, int parts,
                        int n, int tag) {
    struct op_pool o = pool_of(c, w, n);
    o.x = NULL, o.n_sources = loop_of(c).each, o.skip = pass_place(c, c->layer[layer].pass - 1), o.n_queries = parts;
    for (int i = 0; i < parts; i++) o.query[i] = y->message_query[from + i], o.out[i] = w->messages + (size_t)i * (size_t)n * (size_t)c->hidden;
    TRY(x->ops->pool(x, &o));
    for (int i = 0; i < parts; i++) TRY(add_message(x, c, &y->message_gate[from + i], w, v[i], o.out[i], n, tag));
    return 0;
}

/* --- Inputs of blocks ---------------------------------------------------------------------------------------------------------------- */

int attention_residuals_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    const bool reads = !config_is_bare(c, layer), mixes = c->layer[layer].mixes_kv, own = mixes || c->layer[layer].pass;
    const int stored = config_stored_layer(c, layer), parts = own ? 3 : 1, queries = mixes ? 3 : 1;
    float *const out[] = {w->xn, w->kv_in, w->kv_in + (size_t)n * (size_t)c->hidden};
    struct op_pool o = pool_of(c, w, n);
    set_sources(c, &o, layer, stored);
    o.begins = !layer;
    if (c->layer[layer].pass && stored == c->streams.loop_from) /* the last layer of the pass before */
        o.into = pass_place(c, c->layer[layer].pass - 1) + loop_of(c).each - 1;
    if (!layer) /* the embedding, as it is */
        for (int i = 0; i < queries; i++) TRY(rows_copy(x, out[i], c->hidden, w->x, c->hidden, n, c->hidden));
    o.n_queries = layer && reads ? queries : 0;
    for (int i = 0; i < o.n_queries; i++) o.out[i] = out[i], o.query[i] = y->attn_pool + (size_t)i * (size_t)c->hidden;
    TRY(x->ops->pool(x, &o));
    if (!reads) return 0;
    for (int i = queries; i < parts; i++) TRY(rows_copy(x, out[i], c->hidden, out[0], c->hidden, n, c->hidden));
    if (c->layer[layer].pass) TRY(add_messages(x, c, y, layer, w, out, QUERIES, 3, n, 2 * layer));
    for (int i = 0; i < parts; i++) TRY(norm_part(x, c, w, out[i], i && mixes ? y->kv_norm[i - 1] : y->attn_norm, n, 2 * layer));
    return 0;
}

int attention_residuals_ffn(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    const int stored = config_stored_layer(c, layer), tag = 2 * layer + 1;
    struct op_pool o = pool_of(c, w, n);
    set_sources(c, &o, layer, stored + 1);
    o.begins = stored % c->streams.block_layers == 0;
    o.n_queries = 1, o.out[0] = w->xn, o.query[0] = y->ffn_pool;
    TRY(x->ops->pool(x, &o));
    if (c->layer[layer].pass) TRY(add_messages(x, c, y, layer, w, &w->xn, FFN, 1, n, tag));
    return norm_part(x, c, w, w->xn, y->ffn_norm, n, tag);
}

int attention_residuals_merge(struct exec *x, const struct weights *m, struct work *w, int n) {
    const struct config *c = &m->config;
    const int last = c->n_layers - 1; /* a bare one has added all outputs */
    struct op_pool o = pool_of(c, w, n);
    set_sources(c, &o, last, config_stored_layer(c, last) + !config_is_bare(c, last));
    o.n_queries = 1, o.out[0] = w->xn, o.query[0] = m->head_pool;
    TRY(x->ops->pool(x, &o));
    return rows_copy(x, w->x, c->hidden, w->xn, c->hidden, n, c->hidden);
}
