/* Grouped-query attention: each of the layer's KV heads serves a group of its query heads. Layers of a model may differ
 * in their numbers of heads. */
#include <math.h>

#include "engine/layer/attention.h"
#include "engine/layer/rows.h"
#include "engine/layer/short_conv.h"

static int gqa_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const bool taken = c->layer[layer].passes_kv == KV_TAKEN;
    out[0] =
        (struct cache_desc){.heads = config_kv_heads(c, layer), .dim = config_head_dim(c, layer), .is_taken = taken};
    out[1] = (struct cache_desc){.heads = config_kv_heads(c, layer), .dim = config_v_dim(c, layer), .is_taken = taken};
    if (c->short_taps) out[2] = short_conv_plane(c, layer);
    return c->short_taps ? 3 : 2;
}

static int gqa_clip(struct exec *x, const struct config *c, float *v, int width, int n) {
    return c->qkv_clip > 0 ? x->ops->clip(x, &(struct op_clip){.x = v, .n = n, .m = width, .limit = c->qkv_clip}) : 0;
}

/* Multiplies n rows by `scale` [heads * dim], unless it is NULL, and then shortens each head that is longer than
 * `limit` to that length. */
static int gqa_shorten(struct exec *x, float *v, const float *scale, float limit, int n, int heads, int dim) {
    if (scale) TRY(rows_gate(x, v, heads * dim, scale, 0, GATE_LINEAR, n, heads * dim));
    return x->ops->norm(x, &(struct op_norm){.out = v,
                                             .x = v,
                                             .rows = n * heads,
                                             .dim = dim,
                                             .ldx = dim,
                                             .ldo = dim,
                                             .l2_limit = limit,
                                             .w_dtype = DT_F32});
}

/* Norms, clips and rotates n projected rows of `heads` keys or queries, in the family's order. */
static int gqa_norm_and_rotate(struct exec *x, const struct config *c, int layer, const struct work *w, float *v,
                               int heads, const float *norm, int n) {
    const int dim = config_head_dim(c, layer), all = heads * dim;
    const bool by_head = c->qk_norm == QK_NORM_HEAD || c->qk_norm == QK_NORM_PLAIN ||
                         (c->qk_norm == QK_NORM_UNIT && c->layer[layer].rope != LAYER_ROPE_NONE);
    if (c->qk_norm_after_rope) TRY(attention_rotate(x, c, layer, w, v, heads, all, dim, n));
    if (c->qk_norm == QK_NORM_ALL) TRY(block_norm(x, c, v, all, v, all, norm, NULL, n, all));
    if (by_head) TRY(block_norm(x, c, v, dim, v, dim, norm, NULL, n * heads, dim));
    if (c->qk_norm == QK_NORM_OWN)
        TRY(x->ops->norm(x, &(struct op_norm){.out = v,
                                              .x = v,
                                              .w = norm,
                                              .w_rows = heads,
                                              .rows = n * heads,
                                              .dim = dim,
                                              .ldx = dim,
                                              .ldo = dim,
                                              .eps = c->norm_eps,
                                              .w_dtype = DT_F32}));
    if (c->qk_norm == QK_NORM_CLIP) TRY(gqa_shorten(x, v, norm, c->qk_limit, n, heads, dim));
    TRY(gqa_clip(x, c, v, all, n));
    return c->qk_norm_after_rope ? 0 : attention_rotate(x, c, layer, w, v, heads, all, dim, n);
}

/* Copies n rows of keys and values to their columns of work.carried; with `back` from there. */
static int carry_kv(struct exec *x, const struct config *c, int layer, const struct work *w, float *const rows[2],
                    const int width[2], bool back, int n) {
    float *at = w->carried + c->layer[layer].carried_at;
    for (int p = 0; p < 2; at += width[p++])
        TRY(back ? rows_copy(x, rows[p], width[p], at, c->carried, n, width[p])
                 : rows_copy(x, at, c->carried, rows[p], width[p], n, width[p]));
    return 0;
}

/* Computes n rows of values, `width` floats wide, from value experts. */
static int mix_values(struct exec *x, const struct config *c, const struct layer *y, struct work *w, float *out,
                      int width, int n) {
    TRY(block_linear_exact(x, w->value_router, c->n_value_experts, w->xn, c->hidden, y->v_router, n));
    TRY(x->ops->route(x, &(struct op_route){.ids = w->value_ids,
                                            .weights = w->value_weights,
                                            .logits = w->value_router,
                                            .bias = y->v_router_bias,
                                            .n = n,
                                            .n_experts = c->n_value_experts,
                                            .topk = c->value_topk,
                                            .n_group = 1,
                                            .topk_group = 1,
                                            .score = c->score,
                                            .norm = c->value_topk > 1,
                                            .scale = c->routed_scale}));
    return x->ops->values(x, &(struct op_values){.y = out,
                                                 .x = w->xn,
                                                 .ids = w->value_ids,
                                                 .weights = w->value_weights,
                                                 .w = y->v,
                                                 .n = n,
                                                 .topk = c->value_topk,
                                                 .n_experts = c->n_value_experts,
                                                 .dim = width,
                                                 .ldx = c->hidden,
                                                 .ldy = width,
                                                 .wide = config_needs_wide_activations(c)});
}

/* Computes n rows of keys (rows[0]) and values (rows[1]), width[0] and width[1] floats wide. */
static int make_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                   const struct span *spans, int n_spans, int n, float *const rows[2], const int width[2]) {
    const int heads = config_kv_heads(c, layer), v_dim = config_v_dim(c, layer);
    float *const mixed[2] = {w->mixed, w->mixed + (size_t)n * (size_t)width[0]}, *const *in =
                                                                                     c->short_taps ? mixed : rows;
    const bool mixes = c->layer[layer].mixes_kv;
    const bool own = mixes || c->layer[layer].pass; /* keys and values have inputs of their own */
    const float *k_in = own ? w->kv_in : w->xn, *v_in = own ? w->kv_in + (size_t)n * (size_t)c->hidden : w->xn;
    const int n_taps = heads * c->short_taps;
    float *const taps[2] = {w->z, w->z + (size_t)n * (size_t)n_taps};
    if (mixes) {
        TRY(block_linear(x, c, taps[0], n_taps, k_in, c->hidden, y->k_row_taps, NULL, n, false));
        TRY(block_linear(x, c, taps[1], n_taps, v_in, c->hidden, y->v_row_taps, NULL, n, false));
        /* a sum of the layer's taps, the row's, and the input */
        TRY(rows_scale(x, w->z, 1 / sqrtf(2 * (float)c->short_taps + 1), 2 * n, n_taps));
    }
    TRY(block_linear(x, c, in[0], width[0], k_in, c->hidden, y->k, y->k_bias, n, false));
    if (config_mixes_values(c, layer)) TRY(mix_values(x, c, y, w, rows[1], width[1], n));
    else if (c->layer[layer].v_is_k) TRY(rows_copy(x, rows[1], width[1], rows[0], width[1], n, width[1]));
    else TRY(block_linear(x, c, in[1], width[1], v_in, c->hidden, y->v, y->v_bias, n, false));
    if (c->short_taps) TRY(short_conv_keys(x, c, y, layer, w, rows, in, mixes ? taps : NULL, spans, n_spans));
    if (c->v_norm) TRY(block_norm(x, c, rows[1], v_dim, rows[1], v_dim, NULL, NULL, n * heads, v_dim));
    TRY(gqa_norm_and_rotate(x, c, layer, w, rows[0], heads, y->k_norm, n));
    TRY(gqa_clip(x, c, rows[1], width[1], n));
    if (c->v_scale > 0) TRY(rows_scale(x, rows[1], c->v_scale, n, width[1]));
    return 0;
}

static int gqa_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    const int heads = config_kv_heads(c, layer),
              width[2] = {heads * config_head_dim(c, layer), heads * config_v_dim(c, layer)};
    float *const rows[2] = {w->kv, w->kv + (size_t)n * (size_t)width[0]};
    const bool taken = c->layer[layer].passes_kv == KV_TAKEN;
    if (!taken) {
        TRY(make_kv(x, c, y, layer, w, spans, n_spans, n, rows, width));
        op_show(x, layer, "k", rows[0], n, width[0]);
        op_show(x, layer, "v", rows[1], n, width[1]);
    }
    if (c->layer[layer].passes_kv != KV_OWN) TRY(carry_kv(x, c, layer, w, rows, width, taken, n));
    for (int i = 0; i < n_spans; i++)
        for (int p = 0; p < 2; p++) TRY(attention_store_rows(x, &spans[i], layer, p, rows[p], width[p]));
    return 0;
}

/* Computes the coefficients of the biases by distance of n rows in w->rel, and the projected sinks. */
static int make_distance_inputs(struct exec *x, const struct config *c, const struct layer *y, int layer,
                                struct work *w, int n) {
    const int heads = config_heads(c, layer);
    TRY(block_linear(x, c, w->rel, y->rel.rows, w->xn, c->hidden, y->rel, NULL, n, false));
    if (c->rel_limit > 0) TRY(gqa_shorten(x, w->rel, y->rel_scale, c->rel_limit, n, heads, c->rel_dim));
    if (c->projects_sinks) {
        TRY(block_linear(x, c, w->sink_logits, heads, w->xn, c->hidden, y->sink_proj, NULL, n, false));
        TRY(rows_scale(x, w->sink_logits, -1, n, heads));
    }
    return attention_scale_queries(x, c, layer, w, w->rel, y->rel.rows, n);
}

/* Computes the products of n rows of queries with the keys of their KV heads that have no value (config.sink_keys). */
static int multiply_sink_keys(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                              int n) {
    const int dim = config_head_dim(c, layer), heads = config_heads(c, layer), kv = config_kv_heads(c, layer),
              group = heads / kv;
    const struct mat keys = {.data = y->sink_key,
                             .stride = (size_t)dim * sizeof *y->sink_key,
                             .rows = 1,
                             .cols = dim,
                             .row_step = 1,
                             .dtype = DT_F32};
    for (int i = 0; i < group; i++) /* the query heads of number i of all KV heads */
        TRY(x->ops->linear(x, &(struct op_linear){.y = w->sink_logits + i,
                                                  .x = w->q + i * dim,
                                                  .w = keys,
                                                  .n = n,
                                                  .ldx = heads * dim,
                                                  .ldy = heads,
                                                  .exact = true,
                                                  .batch = kv,
                                                  .batch_rows = 1,
                                                  .batch_x = group * dim,
                                                  .batch_y = group}));
    return rows_scale(x, w->sink_logits, -config_attn_scale(c, layer), n, heads);
}

/* Computes the queries and, in gated attention, the gates in w->fused. */
static int gqa_make_queries(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            int n) {
    const bool gate_in_query = c->attn_gate == ATTN_GATE_IN_QUERY; /* q has a head's query, followed by its gate */
    const int dim = config_head_dim(c, layer), heads = config_heads(c, layer), qd = heads * dim;
    const int head_ld = gate_in_query ? dim + config_v_dim(c, layer) : dim;
    float *q = gate_in_query ? w->fused : w->q;
    if (c->q_lora) {
        TRY(block_linear(x, c, w->q_latent, c->q_lora, w->xn, c->hidden, y->q_a, NULL, n, false));
        TRY(block_norm(x, c, w->q_latent, c->q_lora, w->q_latent, c->q_lora, y->q_a_norm, NULL, n, c->q_lora));
        TRY(block_linear(x, c, q, heads * head_ld, w->q_latent, c->q_lora, y->q_b, NULL, n, false));
    } else TRY(block_linear(x, c, q, heads * head_ld, w->xn, c->hidden, y->q, y->q_bias, n, false));
    if (gate_in_query) TRY(rows_copy_heads(x, w->q, qd, dim, q, heads * head_ld, head_ld, n, heads, dim));
    TRY(attention_project_gates(x, c, y, w, n));
    TRY(gqa_norm_and_rotate(x, c, layer, w, w->q, heads, y->q_norm, n));
    TRY(attention_scale_queries(x, c, layer, w, w->q, qd, n));
    if (c->sink_keys) TRY(multiply_sink_keys(x, c, y, layer, w, n));
    return c->rel_dim ? make_distance_inputs(x, c, y, layer, w, n) : 0;
}

/* Multiplies the output by the share of the keys in a softmax with computed sinks: sigmoid(lse - sink). */
static int apply_sinks(struct exec *x, const struct op_attention *o, const float *sinks) {
    TRY(rows_add(x, o->lse, sinks, o->n, o->n_heads));
    return x->ops->gate(x, &(struct op_gate){.y = o->out,
                                             .g = o->lse,
                                             .n = o->n,
                                             .heads = o->n_heads,
                                             .dim = o->v_dim,
                                             .ldy = o->ldo,
                                             .ldg = o->n_heads,
                                             .head_ldy = o->v_dim,
                                             .head_ldg = 1,
                                             .kind = GATE_SIGMOID,
                                             .per_head = true});
}

static int attend_rows(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *s, struct key_range keys) {
    const int heads = config_heads(c, layer), qd = heads * config_head_dim(c, layer),
              od = heads * config_v_dim(c, layer);
    const size_t row = (size_t)s->row;
    const bool selects = config_selects_blocks(c, layer);
    struct op_attention o = {.out = w->att + row * (size_t)od,
                             .q = w->q + row * (size_t)qd,
                             .k = attention_plane(s->cache[layer].p[0], keys.first),
                             .v = attention_plane(s->cache[layer].p[1], keys.first),
                             .sinks = keys.piece & PIECE_FIRST ? y->sinks : NULL, /* added once */
                             .lse = config_computes_sinks(c) ? w->sink_lse + row * (size_t)heads : NULL,
                             .n = s->n,
                             .n_heads = heads,
                             .v_dim = config_v_dim(c, layer),
                             .ldq = qd,
                             .ldo = od,
                             .q_pos0 = s->pos,
                             .q_last = w->sees_ahead && c->layer[layer].window ? w->last_seen + row : NULL,
                             .k_pos0 = keys.first,
                             .n_keys = keys.n,
                             .window = c->layer[layer].window,
                             .chunk_keys = c->layer[layer].chunk_keys,
                             .scale = config_attn_scale(c, layer),
                             .softcap = c->score_cap,
                             .temperature_len = c->temperature_len,
                             .bias = c->rel_dim ? w->rel_bias : NULL,
                             .extent = c->layer[layer].extent,
                             .chosen = selects ? w->selected_keys + row * (size_t)config_index_entries(c) : NULL,
                             .n_chosen = selects ? c->index_topk : 0,
                             .chosen_block = selects ? c->index_block : 0,
                             .own_block = selects && c->index_by_group,
                             .chosen_lists = config_index_lists(c),
                             .at = attention_address(s, layer, 0),
                             .v_at = attention_address(s, layer, 1)};
    TRY(attention_by_pieces(x, w, &o, keys.piece, w->lse));
    if (config_computes_sinks(c)) TRY(apply_sinks(x, &o, w->sink_logits + row * (size_t)heads));
    return keys.piece & PIECE_LAST ? attention_gate_output(x, c, layer, w, s, o.out) : 0;
}

/* Computes biases by distance, if the model has any, for as many rows at a time as w->rel_bias holds. */
static int gqa_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                      const struct span *s, struct key_range keys) {
    if (!c->rel_dim) return attend_rows(x, c, y, layer, w, s, keys);
    for (int at = 0, n; at < s->n; at += n) {
        n = s->n - at < w->rel_rows ? s->n - at : w->rel_rows;
        const struct span p = attention_sub_span(s, at, n);
        TRY(x->ops->linear(x, &(struct op_linear){.y = w->rel_bias,
                                                  .x = w->rel + (size_t)p.row * (size_t)y->rel.rows,
                                                  .w = y->rel_table,
                                                  .n = n * config_heads(c, layer),
                                                  .ldx = c->rel_dim,
                                                  .ldy = c->layer[layer].extent,
                                                  .transposed = true,
                                                  .exact = true}));
        TRY(attend_rows(x, c, y, layer, w, &p, (struct key_range){.n = p.pos + p.n, .piece = PIECE_ALL}));
    }
    return 0;
}

const struct attention_kind attention_gqa = {.name = "gqa",
                                             .is_recordable = true,
                                             .cache_planes = gqa_cache_planes,
                                             .store_kv = gqa_store_kv,
                                             .make_queries = gqa_make_queries,
                                             .attended =
                                                 ATTENDED(ROW_OF(q), ROW_OF(fused), ROW_OF(rel), ROW_OF(sink_logits)),
                                             .attend = gqa_attend};
