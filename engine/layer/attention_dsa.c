/* DeepSeek sparse attention: MLA over the keys that a lightning indexer selects for each query. The indexer stores its
 * own key per token next to the latent in the cache; later layers may reuse its selection. A query with no more visible
 * keys than the selection size uses plain MLA. The indexer may select blocks of consecutive keys instead, which have
 * one key each (index_block); then a query also sees the keys after its last complete block. */
#include <math.h>

#include "engine/layer/attention.h"

enum { INDEX = 1, STATES };          /* planes after the latents; STATES only with blocks */
static const float NORM_EPS = 1e-6f; /* the indexer's layer norms have this eps unless the config has one */

static bool has_indexer(const struct config *c, int layer) { return c->layer[layer].index == INDEX_OWN; }

static int dsa_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const int n = attention_mla.cache_planes(c, layer, out);
    if (!has_indexer(c, layer)) return n;
    out[INDEX] =
        (struct cache_desc){.heads = 1, .dim = c->index_dim, .tokens_per_row = c->index_block, .is_fine = true};
    if (c->index_block)
        out[STATES] =
            (struct cache_desc){.heads = 1, .dim = 3 * c->index_dim, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return c->index_block ? STATES + 1 : INDEX + 1;
}
/* A query that sees no more keys than this sees all of them. */
static int dsa_few_keys_limit(const struct config *c) {
    return c->index_block ? c->index_topk * c->index_block + c->index_block - 1 : c->index_topk;
}

/* Rotates some dimensions of each head, the first or (index_rope_last) the last ones. Without rope in the layer:
 * none. */
static int rotate_index(struct exec *x, const struct config *c, int layer, const struct work *w, float *v, int n,
                        int heads) {
    if (!config_mla(c, layer).rope) return 0;
    return x->ops->rope(x, &(struct op_rope){.x = v + (c->index_rope_last ? c->index_dim - c->rope.dim : 0),
                                             .cos = w->cos,
                                             .sin = w->sin,
                                             .n = n,
                                             .heads = heads,
                                             .ld = heads * c->index_dim,
                                             .head_ld = c->index_dim,
                                             .half = c->rope.dim / 2,
                                             .interleaved = c->index_interleaved});
}

/* Computes the indexer's keys of n rows, ld apart. */
static int index_keys(struct exec *x, const struct config *c, const struct layer *y, int layer, const struct work *w,
                      float *k, int ld, int n) {
    TRY(block_linear_exact(x, k, ld, w->xn, c->hidden, y->index_k, n));
    TRY(x->ops->norm(x, &(struct op_norm){.out = k,
                                          .x = k,
                                          .w = y->index_k_norm,
                                          .bias = y->index_k_bias,
                                          .rows = n,
                                          .dim = c->index_dim,
                                          .ldx = ld,
                                          .ldo = ld,
                                          .eps = c->index_eps > 0 ? c->index_eps : NORM_EPS,
                                          .w_dtype = DT_F32,
                                          .layer_norm = true}));
    return rotate_index(x, c, layer, w, k, n, 1);
}
/* Stores a key per complete block: the mean of its tokens' keys, weighted by a softmax of their gates. */
static int store_blocks(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    const int ld = 2 * c->index_dim;
    const struct attention_compressor k = {.bias = y->index_compress_bias,
                                           .dim = c->index_dim,
                                           .ld = ld,
                                           .plane = INDEX,
                                           .state_plane = STATES,
                                           .ratio = c->index_block};
    TRY(index_keys(x, c, y, layer, w, w->fused, ld, n));
    TRY(block_linear_exact(x, w->fused + c->index_dim, ld, w->xn, c->hidden, y->index_compress_gate, n));
    return attention_make_entries(x, c, layer, &k, w, spans, n_spans);
}

static int dsa_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    int dim = c->index_dim;
    float *k = w->kv + (size_t)n * (size_t)config_mla(c, layer).latent;
    TRY(attention_mla.store_kv(x, c, y, layer, w, spans, n_spans, n));
    if (!has_indexer(c, layer)) return 0;
    if (c->index_block) return store_blocks(x, c, y, layer, w, spans, n_spans, n);
    TRY(index_keys(x, c, y, layer, w, k, dim, n));
    for (int i = 0; i < n_spans; i++) TRY(attention_store_rows(x, &spans[i], layer, INDEX, k, dim));
    return 0;
}

/* Computes the indexer's input of n rows in w->fused: a layer norm of the block's input. */
static int norm_index_input(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    return x->ops->norm(x, &(struct op_norm){.out = w->fused,
                                             .x = w->xn,
                                             .w = y->index_in_norm,
                                             .bias = y->index_in_bias,
                                             .rows = n,
                                             .dim = c->hidden,
                                             .ldx = c->hidden,
                                             .ldo = c->hidden,
                                             .eps = NORM_EPS,
                                             .w_dtype = DT_F32,
                                             .layer_norm = true});
}

static int dsa_make_queries(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            int n) {
    TRY(attention_mla.make_queries(x, c, y, layer, w, n));
    if (!has_indexer(c, layer)) return 0;
    if (c->index_from_input) TRY(norm_index_input(x, c, y, w, n));
    const float *in = c->index_from_input ? w->fused : w->q_latent;
    const int width = c->index_from_input ? c->hidden : config_mla(c, layer).q_lora;
    TRY(block_linear_exact(x, w->index_q, c->index_heads * c->index_dim, in, width, y->index_q, n));
    TRY(rotate_index(x, c, layer, w, w->index_q, n, c->index_heads));
    TRY(attention_scale_heads(x, w, w->index_q, y->index_slope, y->index_base, c->index_heads, c->index_dim, n));
    return block_linear_exact(x, w->index_weights, c->index_heads, w->xn, c->hidden, y->index_weights, n);
}

static int select_keys(struct exec *x, const struct config *c, int layer, const struct work *w, const struct span *s,
                       int32_t *chosen) {
    const int block = c->index_block ? c->index_block : 1;
    return attention_select(x, c, layer, w, s, INDEX, block, (s->pos + s->n) / block,
                            (float)(1 / sqrt((double)c->index_heads * c->index_dim)), chosen);
}

static int dsa_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                      const struct span *s, struct key_range keys) {
    int plain = dsa_few_keys_limit(c) - s->pos; /* rows that see all their keys */
    if (plain < 0) plain = 0;
    if (plain > s->n) plain = s->n;
    if (plain) {
        struct span p = attention_sub_span(s, 0, plain);
        TRY(attention_mla.attend(x, c, y, layer, w, &p, (struct key_range){.n = p.pos + p.n, .piece = PIECE_ALL}));
    }
    for (int at = plain, n; at < s->n; at += n) {
        n = s->n - at < w->absorb_rows ? s->n - at : w->absorb_rows;
        struct span p = attention_sub_span(s, at, n);
        int32_t *chosen = w->selected_keys + (size_t)p.row * (size_t)c->index_topk;
        if (has_indexer(c, layer)) TRY(select_keys(x, c, layer, w, &p, chosen));
        TRY(attention_absorbed(x, c, y, layer, w, &p, (struct key_range){.n = p.pos + p.n, .piece = PIECE_ALL},
                               chosen));
    }
    return 0;
}

static size_t dsa_grown_bytes(const struct config *c, int layer, int keys) {
    const int few = dsa_few_keys_limit(c);
    return attention_mla.grown_bytes(c, layer, keys < few ? keys : few);
}

const struct attention_kind attention_dsa = {
    .name = "dsa",
    .needs_all_keys = true,
    .is_recordable = true,
    .few_keys_limit = dsa_few_keys_limit,
    .cache_planes = dsa_cache_planes,
    .store_kv = dsa_store_kv,
    .make_queries = dsa_make_queries,
    .attended = ATTENDED(ROW_OF(q), ROW_OF(fused), ROW_OF(index_q), ROW_OF(index_weights)),
    .attend = dsa_attend,
    .grown_bytes = dsa_grown_bytes};
