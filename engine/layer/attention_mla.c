/* Multi-head latent attention: the cache holds one latent and one rope key per token, from which each head's are
 * computed. */
#include <math.h>

#include "base/test_limits.h"
#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

/* The inner norms. Most families fix their eps, whatever rms_norm_eps is (DeepSeek's model.py and transformers
 * agree). */
static int latent_norm(struct exec *x, const struct config *c, float *v, int ld, const float *weight, int rows,
                       int dim) {
    return rows_norm(x, v, ld, weight, c->latent_eps > 0 ? c->latent_eps : 1e-6f, rows, dim);
}

/* Norms latents, with the family's gate and factor of latents, if they have one. */
static int gated_latent_norm(struct exec *x, const struct config *c, const struct work *w, float *v, int ld,
                             const float *weight, const struct mat gate[2], int rows, int dim) {
    TRY(latent_norm(x, c, v, ld, weight, rows, dim));
    if (!c->gates_all_norms) return 0;
    TRY(block_gate_norm(x, c, w, v, ld, gate, rows, dim));
    if (!c->scales_latents) return 0;
    return x->ops->scale(
        x, &(struct op_scale){.x = v, .n = rows, .m = dim, .ld = ld, .by = sqrtf((float)c->hidden / (float)dim)});
}

static int mla_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    out[0] = (struct cache_desc){
        .heads = 1, .dim = config_mla(c, layer).latent, .is_taken = c->layer[layer].passes_kv == KV_TAKEN};
    return 1;
}

bool block_expands_mla(const struct config *c, int layer, int n) {
    const struct mla_sizes a = config_mla(c, layer);
    /* few rows must be batch-invariant; with split_kv_b W_k is stored transposed in k_b, which can produce queries but
     * not keys */
    if (n <= BATCH_INVARIANT_ROWS || c->split_kv_b) return false;
    /* FLOP per key and head: absorbed n * (2 * kv_lora + rope); expanded kv_lora * (nope + v_dim) once, then n * (nope
     * + rope + v_dim). */
    double absorbed = (double)n * (2 * a.kv_lora + a.rope), once = (double)a.kv_lora * (a.nope + a.v_dim);
    return once + (double)n * (a.dim + a.v_dim) < absorbed;
}

/* Fills w->absorbed_q with the queries of n rows in the latent space: projected by W_k, and the rotated dimensions. */
static int absorb_queries(struct exec *x, const struct config *c, const struct layer *y, int layer,
                          const struct work *w, const float *q, int n) {
    const struct mla_sizes a = config_mla(c, layer);
    const int dim = a.dim, latent = a.latent, heads = a.heads;
    const bool split = c->split_kv_b; /* W_k is stored transposed, and W_v separately */
    if (a.rope)
        TRY(rows_copy_heads(x, w->absorbed_q + a.kv_lora, heads * latent, latent, q + a.nope, heads * dim, dim, n,
                            heads, a.rope));
    return x->ops->linear(
        x, &(struct op_linear){.y = w->absorbed_q,
                               .x = q,
                               .w = split ? mat_rows(y->k_b, 0, a.kv_lora) : mat_rows(y->kv_b, 0, a.nope),
                               .n = n,
                               .ldx = heads * dim,
                               .ldy = heads * latent,
                               .transposed = !split,
                               .wide = config_needs_wide_activations(c),
                               .batch = heads,
                               .batch_rows = split ? a.kv_lora : a.nope + a.v_dim,
                               .batch_x = dim,
                               .batch_y = latent});
}

/* Attends with a span's absorbed queries, rows [at, at + s->n) of w->absorbed_q, to the same rows of w->absorbed_out.
 * The cache is both their key and their value. */
static int attend_latents(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                          const struct span *s, int at, struct key_range keys, const int32_t *chosen) {
    const struct mla_sizes a = config_mla(c, layer);
    const int latent = a.latent, heads = a.heads;
    struct kv_plane plane = attention_plane(s->cache[layer].p[0], keys.first);
    struct op_attention o = {.out = w->absorbed_out + (size_t)at * (size_t)(heads * a.kv_lora),
                             .q = w->absorbed_q + (size_t)at * (size_t)(heads * latent),
                             .k = plane,
                             .v = plane,
                             .sinks = keys.piece & PIECE_FIRST ? y->sinks : NULL, /* added once */
                             .n = s->n,
                             .n_heads = heads,
                             .v_dim = a.kv_lora,
                             .ldq = heads * latent,
                             .ldo = heads * a.kv_lora,
                             .q_pos0 = s->pos,
                             .k_pos0 = keys.first,
                             .n_keys = keys.n,
                             .window = c->layer[layer].window,
                             .chosen = chosen,
                             .n_chosen = c->index_topk,
                             .chosen_block = chosen ? c->index_block : 0,
                             .scale = config_attn_scale(c, layer),
                             .at = attention_address(s, layer, 0),
                             .v_at = attention_address(s, layer, 0)};
    return attention_by_pieces(x, w, &o, keys.piece, w->lse);
}
/* Projects n rows of w->absorbed_out by W_v to out. */
static int project_values(struct exec *x, const struct config *c, const struct layer *y, int layer,
                          const struct work *w, float *out, int n) {
    const struct mla_sizes a = config_mla(c, layer);
    const int heads = a.heads, kv_rows = a.nope + a.v_dim; /* kv_rows: rows of kv_b per head */
    const bool split = c->split_kv_b;
    return x->ops->linear(
        x, &(struct op_linear){.y = out,
                               .x = w->absorbed_out,
                               .w = split ? mat_rows(y->v_b, 0, a.v_dim) : mat_rows(y->kv_b, a.nope, kv_rows),
                               .n = n,
                               .ldx = heads * a.kv_lora,
                               .ldy = heads * a.v_dim,
                               .wide = config_needs_wide_activations(c),
                               .batch = heads,
                               .batch_rows = split ? a.v_dim : kv_rows,
                               .batch_x = a.kv_lora,
                               .batch_y = a.v_dim});
}
static float *query_row(const struct config *c, int layer, const struct work *w, int row) {
    const struct mla_sizes a = config_mla(c, layer);
    return w->q + (size_t)row * (size_t)(a.heads * a.dim);
}
static float *result_row(const struct config *c, int layer, const struct work *w, int row) {
    const struct mla_sizes a = config_mla(c, layer);
    return w->att + (size_t)row * (size_t)(a.heads * a.v_dim);
}

int attention_absorbed(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *s, struct key_range keys, const int32_t *chosen) {
    float *out = result_row(c, layer, w, s->row);
    if (keys.piece & PIECE_FIRST) TRY(absorb_queries(x, c, y, layer, w, query_row(c, layer, w, s->row), s->n));
    TRY(attend_latents(x, c, y, layer, w, s, 0, keys, chosen));
    if (!(keys.piece & PIECE_LAST)) return 0;
    TRY(project_values(x, c, y, layer, w, out, s->n));
    return attention_gate_output(x, c, layer, w, s, out);
}

enum { EXPANDED_BYTES = 256 << 20 }; /* most memory of expanded keys and values, unless one head needs more */

/* Returns the size of a buffer that must hold `need`, so that it grows rarely. */
static size_t grown_size(size_t need) { return need + need / 4; }
/* Grows *p to at least `need` floats, without its content. NULL: out of memory. */
static float *grow_buffer(struct work *w, float **p, size_t *have, size_t need) {
    if (need <= *have) return *p;
    if (*p) work_release(w, *p);
    *have = 0;
    need = grown_size(need);
    if ((*p = work_alloc(w, need * sizeof(float)))) *have = need;
    return *p;
}

/* Returns the number of heads whose keys and values of `keys` positions fit in EXPANDED_BYTES, at least one.
 * elem_bytes: of their type. */
static int heads_at_once(const struct mla_sizes *a, int keys, size_t elem_bytes) {
    size_t budget = test_limits_get(TEST_LIMIT_MLA_EXPAND, EXPANDED_BYTES / sizeof(float)) * sizeof(float),
           per_head = (size_t)keys * (size_t)(a->dim + a->v_dim) * elem_bytes;
    return per_head * (size_t)a->heads <= budget ? a->heads : per_head < budget ? (int)(budget / per_head) : 1;
}
static size_t mla_grown_bytes(const struct config *c, int layer, int keys) {
    const struct mla_sizes a = config_mla(c, layer);
    size_t row = (size_t)heads_at_once(&a, keys, sizeof(float)) * (size_t)(a.dim + a.v_dim) + (size_t)a.latent;
    return grown_size((size_t)keys * row * sizeof(float));
}

/* Computes float32 keys [n, heads, head_dim] and values [n, heads, v_dim] of some heads from w->latent. */
static int expand_float(struct exec *x, const struct config *c, const struct mla_sizes *a, struct mat kv_b,
                        const struct work *w, float *k, float *v, int n, int heads) {
    int dim = a->dim, kv_rows = a->nope + a->v_dim, latent = a->latent;
    struct op_linear part = {.y = k,
                             .x = w->latent,
                             .w = mat_rows(kv_b, 0, a->nope),
                             .n = n,
                             .ldx = latent,
                             .ldy = heads * dim,
                             .wide = config_needs_wide_activations(c),
                             .batch = heads,
                             .batch_rows = kv_rows,
                             .batch_y = dim};
    TRY(x->ops->linear(x, &part));
    part.y = v, part.w = mat_rows(kv_b, a->nope, kv_rows), part.ldy = heads * a->v_dim, part.batch_y = a->v_dim;
    TRY(x->ops->linear(x, &part));
    if (!a->rope) return 0;
    return rows_copy_heads(x, k + a->nope, heads * dim, dim, w->latent + a->kv_lora, latent, 0, n, heads, a->rope);
}

/* Expanded form: computes keys and values of the requested positions from the latent cache, for as many heads at a time
 * as fit in EXPANDED_BYTES, then ordinary attention. The number of heads depends on all positions, so it is the same
 * for each piece. Uses BF16 if the executor has an expand operation. */
static int attend_expanded(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                           const struct span *s, struct key_range keys) {
    const struct mla_sizes a = config_mla(c, layer);
    int dim = a.dim, latent = a.latent, kv_rows = a.nope + a.v_dim, heads = a.heads, n_positions = s->pos + s->n;
    const bool is_bf16 = x->ops->expand;
    size_t elem_bytes = is_bf16 ? sizeof(uint16_t) : sizeof(float),
           per_head = (size_t)n_positions * (size_t)(dim + a.v_dim) * elem_bytes;
    int group = heads_at_once(&a, n_positions, elem_bytes);
    struct kv_plane cached = s->cache[layer].p[0];
    if (!is_bf16 && !grow_buffer(w, &w->latent, &w->latent_floats, (size_t)n_positions * (size_t)latent))
        return ERR_MEMORY;
    if (!grow_buffer(w, &w->expanded_kv, &w->expanded_floats,
                     (per_head * (size_t)group + sizeof(float) - 1) / sizeof(float)))
        return ERR_MEMORY;
    if (!is_bf16)
        TRY(x->ops->kv_load(x, &(struct op_kv_load){
                                   .plane = cached, .out = w->latent, .row0 = keys.first, .n = keys.n, .ldo = latent}));
    for (int h = 0; h < heads; h += group) {
        int g = heads - h < group ? heads - h : group;
        void *k = w->expanded_kv, *v = (char *)k + (size_t)keys.n * (size_t)(g * dim) * elem_bytes;
        struct mat kv_b = mat_rows(y->kv_b, h * kv_rows, (h + g) * kv_rows);
        struct op_expand expand = {.k = k,
                                   .v = v,
                                   .latent = cached,
                                   .w = kv_b,
                                   .row0 = keys.first,
                                   .n = keys.n,
                                   .heads = g,
                                   .nope = a.nope,
                                   .v_dim = a.v_dim};
        TRY(is_bf16 ? x->ops->expand(x, &expand) : expand_float(x, c, &a, kv_b, w, k, v, keys.n, g));
        uint8_t dtype = is_bf16 ? DT_BF16 : DT_F32;
        struct op_attention o = {.out = w->att + (size_t)s->row * (size_t)(heads * a.v_dim) + (size_t)(h * a.v_dim),
                                 .q = w->q + (size_t)s->row * (size_t)(heads * dim) + (size_t)(h * dim),
                                 .k = {.data = k, .heads = g, .dim = dim, .dtype = dtype},
                                 .v = {.data = v, .heads = g, .dim = a.v_dim, .dtype = dtype},
                                 .sinks = y->sinks && keys.piece & PIECE_FIRST ? y->sinks + h : NULL,
                                 .n = s->n,
                                 .n_heads = g,
                                 .v_dim = a.v_dim,
                                 .ldq = heads * dim,
                                 .ldo = heads * a.v_dim,
                                 .q_pos0 = s->pos,
                                 .k_pos0 = keys.first,
                                 .n_keys = keys.n,
                                 .window = c->layer[layer].window,
                                 .scale = config_attn_scale(c, layer)};
        TRY(attention_by_pieces(x, w, &o, keys.piece, w->lse ? w->lse + (size_t)h * (size_t)s->n : NULL));
    }
    return keys.piece & PIECE_LAST
               ? attention_gate_output(x, c, layer, w, s, w->att + (size_t)s->row * (size_t)(heads * a.v_dim))
               : 0;
}

/* Computes n rows of latents, with the rotated part of keys, in w->kv. */
static int make_latents(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        int n) {
    const struct mla_sizes a = config_mla(c, layer);
    const int latent = a.latent;
    TRY(block_linear(x, c, w->kv, latent, w->xn, c->hidden, y->kv_a, y->kv_a_bias, n, false));
    TRY(gated_latent_norm(x, c, w, w->kv, latent, y->kv_a_norm, y->kv_a_norm_gate, n, a.kv_lora));
    if (y->k_rope_norm) TRY(latent_norm(x, c, w->kv + a.kv_lora, latent, y->k_rope_norm, n, a.rope));
    return attention_rotate(x, c, layer, w, w->kv + a.kv_lora, 1, latent, latent, n);
}
static int mla_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    const struct layer_config *l = &c->layer[layer];
    const int latent = config_mla(c, layer).latent;
    if (l->passes_kv == KV_TAKEN) TRY(rows_copy(x, w->kv, latent, w->carried + l->carried_at, c->carried, n, latent));
    else TRY(make_latents(x, c, y, layer, w, n));
    if (l->passes_kv == KV_PASSED) TRY(rows_copy(x, w->carried + l->carried_at, c->carried, w->kv, latent, n, latent));
    op_show(x, layer, "latent", w->kv, n, latent);
    for (int i = 0; i < n_spans; i++) TRY(attention_store_rows(x, &spans[i], layer, 0, w->kv, latent));
    return 0;
}

/* Projects in [n, ld] to the queries in w->q. With ATTN_GATE_IN_QUERY the matrix yields each head's query and gate in
 * w->fused. */
static int project_queries(struct exec *x, const struct config *c, const struct mla_sizes *a, struct work *w,
                           const float *in, int ld, struct mat m, int n) {
    const bool gate_in_query = c->attn_gate == ATTN_GATE_IN_QUERY;
    const int heads = a->heads, dim = a->dim, head_ld = gate_in_query ? dim + a->v_dim : dim;
    TRY(block_linear(x, c, gate_in_query ? w->fused : w->q, heads * head_ld, in, ld, m, NULL, n, false));
    if (!gate_in_query) return 0;
    return rows_copy_heads(x, w->q, heads * dim, dim, w->fused, heads * head_ld, head_ld, n, heads, dim);
}
/* Copies w->q_latent [n, q_lora] into half of the rows [n, 2 * q_lora] after it: the first half if it is normed, the
 * second if it is raw. */
static int append_latent(struct exec *x, int q_lora, struct work *w, bool is_raw, int n) {
    float *pairs = w->q_latent + (size_t)n * (size_t)q_lora;
    return rows_copy(x, pairs + (is_raw ? q_lora : 0), 2 * q_lora, w->q_latent, q_lora, n, q_lora);
}

static int mla_make_queries(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            int n) {
    const struct mla_sizes a = config_mla(c, layer);
    const int qd = a.heads * a.dim, q_lora = a.q_lora;
    if (q_lora) {
        TRY(block_linear(x, c, w->q_latent, q_lora, w->xn, c->hidden, y->q_a, y->q_a_bias, n, false));
        if (c->q_raw) TRY(append_latent(x, q_lora, w, true, n));
        TRY(gated_latent_norm(x, c, w, w->q_latent, q_lora, y->q_a_norm, y->q_a_norm_gate, n, q_lora));
        if (c->q_raw) TRY(append_latent(x, q_lora, w, false, n));
        const float *in = c->q_raw ? w->q_latent + (size_t)n * (size_t)q_lora : w->q_latent;
        TRY(project_queries(x, c, &a, w, in, (c->q_raw ? 2 : 1) * q_lora, y->q_b, n));
    } else TRY(project_queries(x, c, &a, w, w->xn, c->hidden, y->q, n));
    TRY(attention_project_gates(x, c, y, w, n));
    TRY(attention_rotate(x, c, layer, w, w->q + a.nope, a.heads, qd, a.dim, n));
    TRY(attention_scale_heads(x, w, w->q, y->q_slope, y->q_base, a.heads, a.dim, n));
    return attention_scale_queries(x, c, layer, w, w->q, qd, n);
}
static int mla_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                      const struct span *s, struct key_range keys) {
    return block_expands_mla(c, layer, s->n) ? attend_expanded(x, c, y, layer, w, s, keys)
                                             : attention_absorbed(x, c, y, layer, w, s, keys, NULL);
}

/* Attends for spans of n rows in all with one reading of W_k and W_v. */
static int attend_together(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                           const struct span *spans, int n_spans, int n) {
    const int row = spans->row;
    TRY(absorb_queries(x, c, y, layer, w, query_row(c, layer, w, row), n));
    for (int i = 0; i < n_spans; i++)
        TRY(attend_latents(x, c, y, layer, w, &spans[i], spans[i].row - row,
                           (struct key_range){.n = spans[i].pos + spans[i].n, .piece = PIECE_ALL}, NULL));
    TRY(project_values(x, c, y, layer, w, result_row(c, layer, w, row), n));
    for (int i = 0; i < n_spans; i++)
        TRY(attention_gate_output(x, c, layer, w, &spans[i], result_row(c, layer, w, spans[i].row)));
    return 0;
}
static int mla_attend_spans(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                            const struct span *spans, int n_spans) {
    for (int i = 0, k, n; i < n_spans; i += k) {
        k = attention_together(spans + i, n_spans - i, &n);
        if (k > 1) TRY(attend_together(x, c, y, layer, w, spans + i, k, n));
        else
            TRY(mla_attend(x, c, y, layer, w, &spans[i],
                           (struct key_range){.n = spans[i].pos + spans[i].n, .piece = PIECE_ALL}));
    }
    return 0;
}

const struct attention_kind attention_mla = {.name = "mla",
                                             .is_recordable = true,
                                             .cache_planes = mla_cache_planes,
                                             .store_kv = mla_store_kv,
                                             .make_queries = mla_make_queries,
                                             .attended = ATTENDED(ROW_OF(q), ROW_OF(fused)),
                                             .attend = mla_attend,
                                             .attend_spans = mla_attend_spans,
                                             .grown_bytes = mla_grown_bytes};
