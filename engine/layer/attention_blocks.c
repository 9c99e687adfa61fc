/* GQA over blocks of keys that an indexer selects, of two kinds. Qwen4: each complete block has a key, the rotated norm
 * of the mean of its tokens' keys. All heads see the selected blocks, and the keys after the last complete one.
 * MiniMax-M3: each token has a key, and a head of the indexer selects blocks by their best keys for its group of KV
 * heads, which also sees the query's own block. Reference: transformers, models/qwen4_exp and models/minimax_m3_vl. */
#include "engine/layer/attention.h"

enum { INDEX = 2, STATES }; /* planes after keys and values */

/* The indexer's queries or keys: n rows of `heads` heads, projected, normed and rotated. */
static int project_index(struct exec *x, const struct config *c, int layer, const struct work *w, float *out,
                         struct mat m, const float *norm, int heads, int n) {
    const int dim = c->index_dim;
    TRY(block_linear_exact(x, out, heads * dim, w->xn, c->hidden, m, n));
    TRY(block_norm(x, c, out, dim, out, dim, norm, NULL, n * heads, dim));
    return attention_rotate(x, c, layer, w, out, heads, heads * dim, dim, n);
}

/* --- Qwen4 ------------------------------------------------------------------------------------ */

static int blocks_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const int n = attention_gqa.cache_planes(c, layer, out);
    out[INDEX] =
        (struct cache_desc){.heads = 1, .dim = c->index_dim, .tokens_per_row = c->index_block, .is_fine = true};
    out[STATES] = (struct cache_desc){
        .heads = 1, .dim = 3 * c->index_dim + c->rope.dim, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return n + 2;
}

/* The projection to the indexer's queries, or to its keys: rows of one matrix, or a matrix of their own. */
static struct mat index_queries(const struct config *c, const struct layer *y) {
    return y->index_qk.rows ? mat_rows(y->index_qk, 0, c->index_heads * c->index_dim) : y->index_q;
}
static struct mat index_keys(const struct config *c, const struct layer *y) {
    const int queries = c->index_heads * c->index_dim;
    return y->index_qk.rows ? mat_rows(y->index_qk, queries, queries + c->index_dim) : y->index_k;
}

static int blocks_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                           const struct span *spans, int n_spans, int n) {
    const int dim = c->index_dim;
    const struct attention_compressor k = {.norm = y->index_k_norm,
                                           .dim = dim,
                                           .ld = dim,
                                           .plane = INDEX,
                                           .state_plane = STATES,
                                           .ratio = c->index_block,
                                           .plain = true,
                                           .turns_as_token = true};
    TRY(attention_gqa.store_kv(x, c, y, layer, w, spans, n_spans, n));
    TRY(block_linear_exact(x, w->fused, dim, w->xn, c->hidden, index_keys(c, y), n));
    return attention_make_entries(x, c, layer, &k, w, spans, n_spans);
}

static int blocks_make_queries(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                               int n) {
    TRY(attention_gqa.make_queries(x, c, y, layer, w, n));
    TRY(project_index(x, c, layer, w, w->index_q, index_queries(c, y), y->index_q_norm, c->index_heads, n));
    /* heads count equally */
    return x->ops->fill(x, &(struct op_fill){.x = w->index_weights, .n = n, .m = c->index_heads, .value = 1});
}
static int blocks_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                         const struct span *s, struct key_range keys) {
    const int block = c->index_block;
    TRY(attention_select(x, c, layer, w, s, INDEX, block, (s->pos + s->n) / block, 1,
                         w->selected_keys + (size_t)s->row * (size_t)c->index_topk));
    return attention_gqa.attend(x, c, y, layer, w, s, keys);
}

/* --- MiniMax-M3 ------------------------------------------------------------------------------- */

static int group_blocks_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const int n = attention_gqa.cache_planes(c, layer, out);
    out[INDEX] = (struct cache_desc){.heads = 1, .dim = c->index_dim, .is_fine = true};
    return n + 1;
}

static int group_blocks_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer,
                                 struct work *w, const struct span *spans, int n_spans, int n) {
    /* after keys and values */
    float *k =
        w->kv + (size_t)n * (size_t)(config_kv_heads(c, layer) * (config_head_dim(c, layer) + config_v_dim(c, layer)));
    TRY(attention_gqa.store_kv(x, c, y, layer, w, spans, n_spans, n));
    TRY(project_index(x, c, layer, w, k, y->index_k, y->index_k_norm, 1, n));
    for (int i = 0; i < n_spans; i++) TRY(attention_store_rows(x, &spans[i], layer, INDEX, k, c->index_dim));
    return 0;
}

static int group_blocks_make_queries(struct exec *x, const struct config *c, const struct layer *y, int layer,
                                     struct work *w, int n) {
    TRY(attention_gqa.make_queries(x, c, y, layer, w, n));
    return project_index(x, c, layer, w, w->index_q, y->index_q, y->index_q_norm, c->index_heads, n);
}

static int group_blocks_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                               const struct span *s, struct key_range keys) {
    TRY(attention_select(x, c, layer, w, s, INDEX, 1, s->pos + s->n, 1,
                         w->selected_keys + (size_t)s->row * (size_t)config_index_entries(c)));
    return attention_gqa.attend(x, c, y, layer, w, s, keys);
}

const struct attention_kind attention_blocks = {.name = "blocks",
                                                .needs_all_keys = true,
                                                .cache_planes = blocks_cache_planes,
                                                .store_kv = blocks_store_kv,
                                                .make_queries = blocks_make_queries,
                                                .attend = blocks_attend};
const struct attention_kind attention_group_blocks = {.name = "group blocks",
                                                      .needs_all_keys = true,
                                                      .is_recordable = true,
                                                      .cache_planes = group_blocks_cache_planes,
                                                      .store_kv = group_blocks_store_kv,
                                                      .make_queries = group_blocks_make_queries,
                                                      .attended = ATTENDED(ROW_OF(q), ROW_OF(fused), ROW_OF(index_q)),
                                                      .attend = group_blocks_attend};
