#include "engine/layer/block.h"

#include "engine/layer/attention_kinds.h"
#include "engine/layer/rows.h"
#include "engine/layer/short_conv.h"
#include "engine/layer/streams.h"

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
    TRY(streams_of(c)->input(x, c, y, 2 * layer, w, spans, n_spans, n));
    op_show(x, layer, "attention_norm", w->xn, n, c->hidden);
    TRY(block_keep_early(x, c, layer, w, n));
    return attention_of(c, layer)->store_kv(x, c, y, layer, w, spans, n_spans, n);
}
bool block_makes_queries_first(const struct config *c, int layer) {
    return attention_of(c, layer)->makes_queries_first;
}
bool block_needs_all_keys(const struct config *c, int layer) {
    return attention_of(c, layer)->needs_all_keys || c->rel_dim || c->sink_keys;
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
int block_attend_spans(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *spans, int n_spans) {
    const struct attention_kind *a = attention_of(c, layer);
    if (a->attend_spans) return a->attend_spans(x, c, y, layer, w, spans, n_spans);
    for (int i = 0; i < n_spans; i++)
        TRY(a->attend(x, c, y, layer, w, &spans[i],
                      (struct key_range){.n = spans[i].pos + spans[i].n, .piece = PIECE_ALL}));
    return 0;
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

/* --- The head --------------------------------------------------------------------------------- */

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
