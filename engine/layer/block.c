#include "engine/layer/block.h"

#include <math.h>

#include "engine/layer/attention_kinds.h"
#include "engine/layer/rows.h"
#include "engine/layer/short_conv.h"
#include "engine/layer/streams.h"
#include "engine/model/rope.h"

int block_merge_streams(struct exec *x, const struct weights *m, struct work *w, int n) {
    return streams_of(&m->config)->merge(x, m, w, n);
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
    if (c->layer[layer].mixer == MIXER_NONE && !config_is_bare(c, layer)) return 0;
    if (y->previous_ffn_scale) TRY(rows_weigh(x, w->x, y->previous_ffn_scale, false, n, c->hidden));
    TRY(short_conv_ffn(x, c, y, layer, w, spans, n_spans, n));
    TRY(streams_of(c)->attention_input(x, c, y, layer, w, spans, n_spans, n));
    op_show(x, layer, "attention_norm", w->xn, n, c->hidden);
    if (c->reads_early && c->layer[layer].moe) TRY(rows_copy(x, w->kept, c->hidden, w->x, c->hidden, n, c->hidden));
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
    TRY(rows_weigh(x, w->kept, w->idle, true, n, c->hidden));
    return rows_add(x, w->x, w->kept, n, c->hidden);
}
/* Weighs the chosen expert's input instead of its output. Keeps the shared expert's input in w->ffn_in, which a
 * workspace for predictions lacks. */
static int weigh_input(struct exec *x, const struct config *c, struct work *w, int n) {
    if (w->ffn_in) TRY(rows_copy(x, w->ffn_in, c->hidden, w->xn, c->hidden, n, c->hidden));
    TRY(rows_weigh(x, w->xn, w->weights, true, n, c->hidden));
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
    const int logits = config_n_choices(c);
    const bool parallel = y->parallel_dense.gate.data;
    if (c->layer[layer].no_ffn) return 0;
    TRY(streams_of(c)->ffn_input(x, c, y, layer, w, n));
    op_show(x, layer, "ffn_norm", w->xn, n, c->hidden);
    if (c->layer[layer].keeps_input) TRY(rows_copy(x, w->kept, c->hidden, w->xn, c->hidden, n, c->hidden));
    if (!c->layer[layer].moe) return 0;
    if (c->layer[layer].routes_kept) {
        TRY(rows_copy(x, w->ffn_in, c->hidden, w->xn, c->hidden, n, c->hidden));
        TRY(rows_copy(x, w->xn, c->hidden, w->kept, c->hidden, n, c->hidden));
    }
    if (c->reads_early == EARLY_ROUTED) {
        if (w->ffn_in)
            TRY(rows_copy(x, w->ffn_in, c->hidden, w->xn, c->hidden, n, c->hidden)); /* a workspace for predictions has
                                                                                        none */
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
    if (streams_of(c)->merges_normed) TRY(rows_copy(x, w->xn + at, c->hidden, w->x + at, c->hidden, n, c->hidden));
    else
        TRY(block_norm_rows(x, c, w->xn + at, c->hidden, w->x + at, c->hidden, m->norm, m->norm_bias, n, c->hidden,
                            streams_eps(c, 2 * c->n_layers), 2 * c->n_layers, w->first_bad));
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
