#include "engine/layer/block.h"

#include <stdio.h>

#include "engine/base/limit.h"

int block_embed(struct exec *x, const struct weights *m, struct work *w, int n) {
    return x->ops->embed(x, &(struct op_embed){.out = w->x, .ids = w->tokens, .table = m->embed, .n = n});
}

int block_rope(struct exec *x, const struct config *c, struct work *w, float mscale, int n) {
    return x->ops->rope_table(x, &(struct op_rope_table){.cos = w->cos, .sin = w->sin, .pos = w->pos, .inv_freq = w->inv_freq, .n = n,
                                                         .half = c->rope.dim / 2, .mscale = mscale});
}

static int norm(struct exec *x, float *out, int ldo, const float *in, int ldx, const float *weight, int rows, int dim, float eps, int tag, _Atomic int *bad) {
    return x->ops->norm(x, &(struct op_norm){.out = out, .x = in, .w = weight, .rows = rows, .dim = dim, .ldx = ldx, .ldo = ldo, .eps = eps,
                                             .w_dtype = DT_F32, .tag = tag, .bad = bad});
}

static int linear(struct exec *x, float *y, int ldy, const float *in, int ldx, struct mat m, const float *bias, int n, bool accumulate) {
    return x->ops->linear(x, &(struct op_linear){.y = y, .x = in, .bias = bias, .w = m, .n = n, .ldx = ldx, .ldy = ldy, .accumulate = accumulate});
}

#define TRY(call)            \
    do {                     \
        int rc_ = (call);    \
        if (rc_) return rc_; \
    } while (0)

/* --- Attention over all keys of a span, or over a piece of them ---------------------------------------------------------- */

static struct kv_plane plane_from(struct kv_plane p, int row) {
    size_t width = (size_t)p.heads * (size_t)p.dim;
    p.data = (char *)p.data + dtype_bytes(p.dtype, width * (size_t)row);
    if (p.scale) p.scale += (size_t)row * (size_t)p.heads;
    return p;
}

/* The first piece leaves its log-sum-exp in lse [n, n_heads of o], later ones are made in w->part, as many rows at a time as
 * fit, and merged. */
static int attend(struct exec *x, struct work *w, struct op_attention *o, int piece, float *lse) {
    if (piece != PIECE_ALL) o->lse = lse;
    if (piece & PIECE_FIRST) return x->ops->attention(x, o);
    int width = o->n_heads * o->v_dim, most = (int)(w->part_floats / (size_t)width);
    for (int at = 0; at < o->n; at += most) {
        struct op_attention a = *o;
        size_t row = (size_t)at;
        a.n = o->n - at < most ? o->n - at : most;
        a.q += row * (size_t)o->ldq, a.q_pos0 += at;
        a.out = w->part, a.ldo = width, a.lse = w->part_lse;
        TRY(x->ops->attention(x, &a));
        TRY(x->ops->merge(x, &(struct op_merge){.out = o->out + row * (size_t)o->ldo, .lse = lse + row * (size_t)o->n_heads, .out2 = w->part, .lse2 = w->part_lse,
                                                .n = a.n, .heads = o->n_heads, .dim = o->v_dim, .ldo = o->ldo, .ldo2 = width}));
    }
    return 0;
}

/* --- Grouped-query attention ------------------------------------------------------------------------------------------- */

static int gqa_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n) {
    int dim = c->head_dim, kd = c->n_kv_heads * dim;
    float *k = w->kv, *v = w->kv + (size_t)n * (size_t)kd;
    TRY(linear(x, k, kd, w->xn, c->hidden, y->k, y->k_bias, n, false));
    TRY(linear(x, v, kd, w->xn, c->hidden, y->v, y->v_bias, n, false));
    if (c->qk_norm) TRY(norm(x, k, dim, k, dim, y->k_norm, n * c->n_kv_heads, dim, c->norm_eps, 0, NULL));
    TRY(x->ops->rope(x, &(struct op_rope){.x = k, .cos = w->cos, .sin = w->sin, .n = n, .heads = c->n_kv_heads, .ld = kd, .head_ld = dim,
                                          .half = c->rope.dim / 2, .interleaved = c->rope.interleaved}));
    for (int i = 0; i < n_spans; i++) {
        const struct span *s = &spans[i];
        size_t row = (size_t)s->row;
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = s->k[layer], .x = k + row * (size_t)kd, .row0 = s->pos, .n = s->n, .ldx = kd}));
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = s->v[layer], .x = v + row * (size_t)kd, .row0 = s->pos, .n = s->n, .ldx = kd}));
    }
    return 0;
}

static int gqa_query(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    int dim = c->head_dim, qd = c->n_heads * dim;
    TRY(linear(x, w->q, qd, w->xn, c->hidden, y->q, y->q_bias, n, false));
    if (c->qk_norm) TRY(norm(x, w->q, dim, w->q, dim, y->q_norm, n * c->n_heads, dim, c->norm_eps, 0, NULL));
    return x->ops->rope(x, &(struct op_rope){.x = w->q, .cos = w->cos, .sin = w->sin, .n = n, .heads = c->n_heads, .ld = qd, .head_ld = dim,
                                             .half = c->rope.dim / 2, .interleaved = c->rope.interleaved});
}

static int gqa_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys) {
    int dim = c->head_dim, qd = c->n_heads * dim;
    size_t row = (size_t)s->row;
    struct op_attention o = {.out = w->att + row * (size_t)qd, .q = w->q + row * (size_t)qd, .k = plane_from(s->k[layer], keys.first),
        .v = plane_from(s->v[layer], keys.first), .n = s->n, .n_heads = c->n_heads, .v_dim = dim, .ldq = qd, .ldo = qd, .q_pos0 = s->pos,
        .k_pos0 = keys.first, .n_keys = keys.n, .window = c->layer[layer].window, .scale = c->attn_scale};
    return attend(x, w, &o, keys.piece, w->lse);
}

/* --- Multi-head latent attention --------------------------------------------------------------------------------------- */

bool block_expands(const struct config *c, int n) {
    /* Work a key and head: absorbed n * (2 * latent + rope); expanded latent * (nope + v) once, then n * (nope + rope + v). */
    double absorbed = (double)n * (2 * c->kv_lora + c->qk_rope), once = (double)c->kv_lora * (c->qk_nope + c->v_dim);
    return once + (double)n * (c->head_dim + c->v_dim) < absorbed;
}

/* One span in absorbed form: queries go through W_k into the latent space, the cache is both key and value. */
static int mla_absorbed(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys) {
    int dim = c->head_dim, latent = c->kv_lora + c->qk_rope, rows = c->qk_nope + c->v_dim, heads = c->n_heads;
    const float *q = w->q + (size_t)s->row * (size_t)(heads * dim);
    float *out = w->att + (size_t)s->row * (size_t)(heads * c->v_dim);
    struct kv_plane plane = plane_from(s->k[layer], keys.first);
    struct op_attention o = {.out = w->oc, .q = w->qc, .k = plane, .v = plane, .n = s->n, .n_heads = heads, .v_dim = c->kv_lora, .ldq = heads * latent,
        .ldo = heads * c->kv_lora, .q_pos0 = s->pos, .k_pos0 = keys.first, .n_keys = keys.n, .window = c->layer[layer].window, .scale = c->attn_scale};
    if (keys.piece & PIECE_FIRST) {
        TRY(x->ops->linear(x, &(struct op_linear){.y = w->qc, .x = q, .w = mat_rows(y->kv_b, 0, c->qk_nope), .n = s->n, .ldx = heads * dim, .ldy = heads * latent,
                                                  .transposed = true, .batch = heads, .batch_rows = rows, .batch_x = dim, .batch_y = latent}));
        TRY(x->ops->copy(x, &(struct op_copy){.y = w->qc + c->kv_lora, .x = q + c->qk_nope, .n = s->n, .heads = heads, .dim = c->qk_rope, .ldx = heads * dim,
                                              .ldy = heads * latent, .head_ldx = dim, .head_ldy = latent}));
    }
    TRY(attend(x, w, &o, keys.piece, w->lse));
    if (!(keys.piece & PIECE_LAST)) return 0;
    return x->ops->linear(x, &(struct op_linear){.y = out, .x = w->oc, .w = mat_rows(y->kv_b, c->qk_nope, rows), .n = s->n, .ldx = heads * c->kv_lora,
                                                 .ldy = heads * c->v_dim, .batch = heads, .batch_rows = rows, .batch_x = c->kv_lora, .batch_y = c->v_dim});
}

static float *grown(struct work *w, float **p, size_t *have, size_t need) {
    if (need <= *have) return *p;
    if (*p) w->release(w->ctx, *p);
    *have = 0;
    need += need / 4;
    if ((*p = w->alloc(w->ctx, need * sizeof(float)))) *have = need;
    return *p;
}

/* Expanded: keys and values of the positions asked for are made from the latent cache, a group of heads at a time so that
 * they fit 256 MB, and attended to as usual. Groups follow from all positions, so that they are the same for each piece. */
static int mla_expanded(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys) {
    int dim = c->head_dim, latent = c->kv_lora + c->qk_rope, rows = c->qk_nope + c->v_dim, heads = c->n_heads, most = s->pos + s->n;
    size_t budget = limit_get(LIMIT_EXPAND, 64u << 20); /* floats */
    size_t per_head = (size_t)most * (size_t)(dim + c->v_dim);
    int group = per_head * (size_t)heads <= budget ? heads : (int)(budget / per_head);
    if (group < 1) group = 1;
    if (!grown(w, &w->latent, &w->latent_floats, (size_t)most * (size_t)latent)) return ERR_MEMORY;
    if (!grown(w, &w->ek, &w->expanded_floats, per_head * (size_t)group)) return ERR_MEMORY;
    TRY(x->ops->kv_load(x, &(struct op_kv_load){.plane = s->k[layer], .out = w->latent, .row0 = keys.first, .n = keys.n, .ldo = latent}));
    for (int h = 0; h < heads; h += group) {
        int g = heads - h < group ? heads - h : group;
        float *k = w->ek, *v = w->ek + (size_t)keys.n * (size_t)(g * dim);
        struct op_linear part = {.y = k, .x = w->latent, .w = mat_rows(y->kv_b, h * rows, h * rows + c->qk_nope), .n = keys.n, .ldx = latent, .ldy = g * dim,
                                 .batch = g, .batch_rows = rows, .batch_y = dim};
        TRY(x->ops->linear(x, &part));
        part.y = v, part.w = mat_rows(y->kv_b, h * rows + c->qk_nope, (h + 1) * rows), part.ldy = g * c->v_dim, part.batch_y = c->v_dim;
        TRY(x->ops->linear(x, &part));
        TRY(x->ops->copy(x, &(struct op_copy){.y = k + c->qk_nope, .x = w->latent + c->kv_lora, .n = keys.n, .heads = g, .dim = c->qk_rope, .ldx = latent,
                                              .ldy = g * dim, .head_ldx = 0, .head_ldy = dim}));
        struct op_attention o = {.out = w->att + (size_t)s->row * (size_t)(heads * c->v_dim) + (size_t)(h * c->v_dim),
            .q = w->q + (size_t)s->row * (size_t)(heads * dim) + (size_t)(h * dim),
            .k = {.data = k, .heads = g, .dim = dim, .dtype = DT_F32}, .v = {.data = v, .heads = g, .dim = c->v_dim, .dtype = DT_F32},
            .n = s->n, .n_heads = g, .v_dim = c->v_dim, .ldq = heads * dim, .ldo = heads * c->v_dim, .q_pos0 = s->pos, .k_pos0 = keys.first, .n_keys = keys.n,
            .window = c->layer[layer].window, .scale = c->attn_scale};
        TRY(attend(x, w, &o, keys.piece, w->lse ? w->lse + (size_t)h * (size_t)s->n : NULL));
    }
    return 0;
}

static int mla_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n) {
    int latent = c->kv_lora + c->qk_rope;
    TRY(linear(x, w->kv, latent, w->xn, c->hidden, y->kv_a, y->kv_a_bias, n, false));
    TRY(norm(x, w->kv, latent, w->kv, latent, y->kv_a_norm, n, c->kv_lora, c->norm_eps, 0, NULL));
    TRY(x->ops->rope(x, &(struct op_rope){.x = w->kv + c->kv_lora, .cos = w->cos, .sin = w->sin, .n = n, .heads = 1, .ld = latent, .head_ld = latent,
                                          .half = c->rope.dim / 2, .interleaved = c->rope.interleaved}));
    for (int i = 0; i < n_spans; i++) {
        const struct span *s = &spans[i];
        TRY(x->ops->kv_store(x, &(struct op_kv_store){.plane = s->k[layer], .x = w->kv + (size_t)s->row * (size_t)latent, .row0 = s->pos, .n = s->n, .ldx = latent}));
    }
    return 0;
}

static int mla_query(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    int qd = c->n_heads * c->head_dim;
    if (c->q_lora) {
        TRY(linear(x, w->low, c->q_lora, w->xn, c->hidden, y->q_a, y->q_a_bias, n, false));
        TRY(norm(x, w->low, c->q_lora, w->low, c->q_lora, y->q_a_norm, n, c->q_lora, c->norm_eps, 0, NULL));
        TRY(linear(x, w->q, qd, w->low, c->q_lora, y->q_b, NULL, n, false));
    } else TRY(linear(x, w->q, qd, w->xn, c->hidden, y->q, NULL, n, false));
    return x->ops->rope(x, &(struct op_rope){.x = w->q + c->qk_nope, .cos = w->cos, .sin = w->sin, .n = n, .heads = c->n_heads, .ld = qd, .head_ld = c->head_dim,
                                             .half = c->rope.dim / 2, .interleaved = c->rope.interleaved});
}

int block_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n) {
    TRY(norm(x, w->xn, c->hidden, w->x, c->hidden, y->attn_norm, n, c->hidden, c->norm_eps, 2 * layer, w->bad));
    return (c->attn == ATTN_MLA ? mla_kv : gqa_kv)(x, c, y, layer, w, spans, n_spans, n);
}
int block_query(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    return (c->attn == ATTN_MLA ? mla_query : gqa_query)(x, c, y, w, n);
}
int block_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *s, struct block_keys keys) {
    if (c->attn != ATTN_MLA) return gqa_attend(x, c, y, layer, w, s, keys);
    return (block_expands(c, s->n) ? mla_expanded : mla_absorbed)(x, c, y, layer, w, s, keys);
}
int block_output(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int n) {
    return linear(x, w->x, c->hidden, w->att, c->n_heads * c->v_dim, y->o, y->o_bias, n, true);
}
int block_attention(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, const struct span *spans, int n_spans, int n) {
    TRY(block_kv(x, c, y, layer, w, spans, n_spans, n));
    TRY(block_query(x, c, y, w, n));
    for (int i = 0; i < n_spans; i++)
        TRY(block_attend(x, c, y, layer, w, &spans[i], (struct block_keys){.n = spans[i].pos + spans[i].n, .piece = PIECE_ALL}));
    return block_output(x, c, y, w, n);
}

/* --- Experts and head ---------------------------------------------------------------------------------------------------- */

int block_route(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    TRY(norm(x, w->xn, c->hidden, w->x, c->hidden, y->ffn_norm, n, c->hidden, c->norm_eps, 2 * layer + 1, w->bad));
    if (!y->experts) return 0;
    TRY(x->ops->linear(x, &(struct op_linear){.y = w->router, .x = w->xn, .w = y->router, .n = n, .ldx = c->hidden, .ldy = c->n_experts, .exact = true}));
    TRY(x->ops->route(x, &(struct op_route){.ids = w->ids, .weights = w->weights, .logits = w->router, .bias = y->router_bias, .n = n,
                                            .n_experts = c->n_experts, .topk = c->topk, .n_group = c->n_group, .topk_group = c->topk_group,
                                            .score = c->score, .group_top2 = c->group_top2, .norm = c->norm_topk, .scale = c->routed_scale}));
    if (!c->shared_gate) return 0;
    TRY(x->ops->linear(x, &(struct op_linear){.y = w->shared_weight, .x = w->xn, .w = y->shared_gate, .n = n, .ldx = c->hidden, .ldy = 1, .exact = true}));
    return x->ops->sigmoid(x, &(struct op_sigmoid){.x = w->shared_weight, .n = n, .m = 1});
}

int block_experts(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w, int n) {
    struct op_experts o = {.y = w->x, .x = w->xn, .shared = y->has_dense ? &y->dense : NULL, .shards = y->shards, .n = n, .hidden = c->hidden};
    if (y->experts) {
        o.ids = w->ids, o.weights = w->weights, o.late = w->late, o.experts = y->experts, o.topk = c->topk, o.n_experts = c->n_experts;
        if (c->shared_gate) o.shared_weight = w->shared_weight;
    }
    return x->ops->experts(x, &o);
}

int block_head(struct exec *x, const struct weights *m, struct work *w, int row, int n, float *logits, int32_t *top) {
    const struct config *c = &m->config;
    size_t at = (size_t)row * (size_t)c->hidden;
    TRY(norm(x, w->xn + at, c->hidden, w->x + at, c->hidden, m->norm, n, c->hidden, c->norm_eps, 2 * c->n_layers, w->bad));
    return x->ops->linear(x, &(struct op_linear){.y = logits, .x = w->xn + at, .w = m->head, .n = n, .ldx = c->hidden, .ldy = c->vocab, .top = top});
}
