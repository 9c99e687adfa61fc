#include "engine/exec/decode/tp_shard.h"

#include <stdio.h>

/* Whether m can be split before column `at`: not within a block of its format or scales. With columns in another order
 * every rank has all of them. */
static bool can_split_at(const struct mat *m, int at) {
    if (!m->data || !m->cols || m->order) return true;
    return at % (int)dtype_block((enum dtype)m->dtype) == 0 &&
           (!m->scale || m->cols <= m->block_cols || at % m->block_cols == 0);
}
/* Whether all layers can: their output projections, or (ffn) the down matrices of dense FFNs or (moe) shared
 * experts. */
static bool can_split_layers_at(const struct weights *w, int at, bool ffn, bool moe) {
    for (int l = 0; l < w->config.n_layers; l++) {
        const struct layer *y = &w->layers[l];
        if (ffn && w->config.layer[l].moe != moe) continue;
        if (!can_split_at(ffn ? &y->dense.down : &y->o, at)) return false;
    }
    return true;
}

/* Returns where rank r's range of n units ends, not before `from`; a unit is `cols` columns. */
static int shard_end(const struct weights *w, int n, int ranks, int r, int from, int cols, bool ffn, bool moe) {
    int at = (int)((int64_t)n * (r + 1) / ranks);
    while (at > from && at < n && !can_split_layers_at(w, at * cols, ffn, moe)) at--;
    return at;
}

static const char *why_unsplittable(const struct config *c) {
    if (c->streams.is_plain) return "its blocks' outputs are kept apart from the residual stream";
    if (c->streams.n) return "it has several residual streams";
    if (c->dense_bias) return "its dense FFNs have biases";
    if (c->sink_keys) return "its KV heads have keys without values";
    if (c->n_value_experts) return "its values come from experts";
    if (c->rope.fope_pairs) return "its KV heads rotate by numbers of their own";
    if (c->attn == ATTN_COMPRESSED) return "its output projection is grouped by heads";
    if (c->index_by_group) return "its groups of KV heads select their own keys";
    if (config_has_states(c))
        return "it has layers with a state instead of keys (as DeltaNet), which must be on one device";
    if (config_has_single_blocks(c)) return "some of its layers have attention or an FFN only";
    for (int i = 0; i < c->n_layers; i++)
        if (config_heads(c, i) != c->n_heads || config_kv_heads(c, i) != c->n_kv_heads || c->layer[i].kv_lora)
            return "its layers differ in their heads";
    if (c->attn == ATTN_GQA && c->qk_norm == QK_NORM_ALL) return "its queries are normed over all heads together";
    if (c->attn == ATTN_GQA && c->qk_norm == QK_NORM_OWN) return "its heads have norms of their own";
    return NULL;
}

bool tp_shard_split(const struct weights *w, int ranks, struct tp_shard out[GPU_MAX], char *why, size_t cap) {
    const struct config *c = &w->config;
    const bool gqa = c->attn == ATTN_GQA;
    const int units = gqa ? c->n_kv_heads : c->n_heads, heads_per_unit = c->n_heads / units;
    const char *reason = why_unsplittable(c);
    if (reason) return snprintf(why, cap, "%s", reason), false;
    if (units < ranks) return snprintf(why, cap, "%d %sheads for %d devices", units, gqa ? "KV " : "", ranks), false;
    int first_unit = 0, first_dense = 0, first_shared = 0;
    for (int r = 0; r < ranks; r++) {
        int end_unit = shard_end(w, units, ranks, r, first_unit, heads_per_unit * c->v_dim, false, false),
            dense_end = shard_end(w, c->dense_inter, ranks, r, first_dense, 1, true, false),
            shared_end = shard_end(w, c->shared_inter, ranks, r, first_shared, 1, true, true);
        if (end_unit == first_unit)
            return snprintf(why, cap,
                            "no boundary between heads is one between blocks of its output projection's scales"),
                   false;
        out[r] = (struct tp_shard){.rank = r,
                                   .head0 = first_unit * heads_per_unit,
                                   .heads = (end_unit - first_unit) * heads_per_unit,
                                   .kv_head0 = gqa ? first_unit : 0,
                                   .kv_heads = gqa ? end_unit - first_unit : c->n_kv_heads,
                                   .dense0 = first_dense,
                                   .dense = dense_end - first_dense,
                                   .shared0 = first_shared,
                                   .shared = shared_end - first_shared};
        first_unit = end_unit, first_dense = dense_end, first_shared = shared_end;
    }
    return true;
}

struct config tp_shard_config(const struct config *c, const struct tp_shard *s) {
    struct config own = *c;
    own.n_heads = s->heads, own.n_kv_heads = s->kv_heads;
    own.dense_inter = s->dense, own.shared_inter = s->shared;
    if (s->rank) own.o_bias = false; /* added once */
    return own;
}

/* Each replaces a matrix or vector with the view of a shard. */
static void take_rows(struct mat *m, int first, int n) {
    if (m->rows) *m = mat_rows(*m, first, first + n);
}
static void take_cols(struct mat *m, int first, int n) {
    if (m->rows) *m = mat_cols(*m, first, first + n);
}
static void take_from(float **v, int first) {
    if (*v) *v += first;
}

int tp_shard_ranges(const struct config *shard_config, const struct tp_shard *s, const struct weights *w, int layer,
                    struct layer *view, struct copy_range *out) {
    const struct config *c = &w->config;
    struct layer y = w->layers[layer];
    const int query_rows = c->head_dim + (c->attn_gate == ATTN_GATE_IN_QUERY ? c->v_dim : 0),
              gate_rows = c->attn_gate == ATTN_GATE_HEAD ? 1 : c->v_dim,
              kv_b_rows = config_mla(c, layer).nope + c->v_dim, dim = c->head_dim, moe = c->layer[layer].moe;
    take_rows(c->q_lora ? &y.q_b : &y.q, s->head0 * query_rows, s->heads * query_rows);
    take_from(&y.q_bias, s->head0 * query_rows);
    take_rows(&y.k, s->kv_head0 * dim, s->kv_heads * dim);
    take_from(&y.k_bias, s->kv_head0 * dim);
    take_rows(&y.v, s->kv_head0 * c->v_dim, s->kv_heads * c->v_dim);
    take_from(&y.v_bias, s->kv_head0 * c->v_dim);
    take_rows(&y.attn_gate, s->head0 * gate_rows, s->heads * gate_rows);
    take_from(&y.attn_gate_bias, s->head0 * gate_rows);
    take_from(&y.sinks, s->head0);
    take_from(&y.q_slope, s->head0), take_from(&y.q_base, s->head0);
    take_rows(&y.kv_b, s->head0 * kv_b_rows, s->heads * kv_b_rows);
    take_rows(&y.k_b, s->head0 * c->kv_lora, s->heads * c->kv_lora);
    take_rows(&y.v_b, s->head0 * c->v_dim, s->heads * c->v_dim);
    take_cols(&y.o, s->head0 * c->v_dim, s->heads * c->v_dim);
    const int first = moe ? s->shared0 : s->dense0, n = moe ? s->shared : s->dense;
    take_rows(&y.dense.gate, first, n);
    if (y.dense.up.data) take_rows(&y.dense.up, first, n);
    take_cols(&y.dense.down, first, n);
    if (!n) y.dense = (struct expert){.glu = y.dense.glu};
    *view = (struct layer){0};
    int k = copy_ranges_list(shard_config, layer, MODULE_LAYER, &y, view, out);
    for (int i = 0; i < k; i++) {
        struct mat *m = out[i].field == &view->o.data            ? &view->o
                        : out[i].field == &view->dense.down.data ? &view->dense.down
                                                                 : NULL;
        if (!m) continue;
        out[i].pitch = m->stride;
        m->stride = out[i].row = dtype_bytes((enum dtype)m->dtype, (size_t)m->cols);
        out[i].bytes = (size_t)m->rows * m->stride;
    }
    return k;
}
