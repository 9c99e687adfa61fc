/* DeepSeek-V4 attention. One key per token, which is also its value, shared by all heads; a query sees the last few (a
 * window). Some layers add earlier keys that represent several tokens each ("entries"). An entry of compressed sparse
 * attention (layer_config.overlap) represents `ratio` tokens plus as many before, and an indexer selects which entries
 * a query sees. An entry of heavily compressed attention represents more tokens, and a query sees all. The partial sums
 * of open groups are a state (op_compress). Values are rotated with their keys, so results are rotated back.
 *
 * In V4.1 (index_from_entries) a few layers make these entries, and from them the indexer's keys, for the layers after
 * them, which take the same rows of the cache. A row of work.carried has the entry and the indexer's key that its token
 * completes, so that a layer on another executor can store them. Sources: the V4 paper, section 2.3; transformers,
 * models/deepseek_v4; for V4.1 those of model/deepseek_v41.c. */
#include <math.h>

#include "engine/layer/attention.h"
#include "engine/layer/rows.h"

enum { TOKENS, ENTRIES, INDEX, STATES }; /* planes; INDEX only with selection, otherwise STATES takes its index */

static int ratio_of(const struct config *c, int layer) { return c->layer[layer].ratio; }
static bool has_selection(const struct config *c, int layer) { return config_selects_entries(c, layer); }
static bool selects_itself(const struct config *c, int layer) {
    return has_selection(c, layer) && c->layer[layer].index == INDEX_OWN;
}
static int series_of(const struct config *c, int layer) { return c->layer[layer].overlap ? 2 : 1; }
/* Returns the floats of the sums of open groups, for entries of `dim`. */
static int open_floats(const struct config *c, int layer, int dim) { return 3 * series_of(c, layer) * dim; }

static int compressed_cache_planes(const struct config *c, int layer, struct cache_desc *out) {
    const int ratio = ratio_of(c, layer),
              open = open_floats(c, layer, c->head_dim + (has_selection(c, layer) ? c->index_dim : 0));
    const bool taken = c->layer[layer].passes_kv == KV_TAKEN;
    int n = 0;
    out[n++] = (struct cache_desc){.heads = 1, .dim = c->head_dim};
    if (!ratio) return n;
    if (c->index_from_entries) {
        out[n++] = (struct cache_desc){.heads = 1, .dim = c->head_dim, .tokens_per_row = ratio, .is_taken = taken};
        out[n++] = (struct cache_desc){
            .heads = 1, .dim = c->index_dim, .tokens_per_row = ratio, .is_fine = true, .is_taken = taken};
        if (ratio > 1 && !taken)
            out[n++] =
                (struct cache_desc){.heads = 1, .dim = 3 * c->head_dim, .fixed_rows = KV_STATES, .dtype = DT_F32};
        return n;
    }
    out[n++] = (struct cache_desc){.heads = 1, .dim = c->head_dim, .tokens_per_row = ratio};
    if (has_selection(c, layer))
        out[n++] = (struct cache_desc){.heads = 1, .dim = c->index_dim, .tokens_per_row = ratio, .is_fine = true};
    out[n++] = (struct cache_desc){.heads = 1, .dim = open, .fixed_rows = KV_STATES, .dtype = DT_F32};
    return n;
}
static int states_plane(const struct config *c, int layer) { return has_selection(c, layer) ? STATES : INDEX; }

/* Rotates the last dimensions of each head with the RoPE of the layer's kind. */
static int rotate_heads(struct exec *x, const struct config *c, int layer, const struct work *w, int row, float *v,
                        int n, int heads, int dim, bool inverse) {
    const size_t at = (size_t)row * (size_t)(c->rope.dim / 2);
    const bool second = ratio_of(c, layer) > 0; /* layers with multi-token keys */
    return x->ops->rope(x, &(struct op_rope){.x = v + dim - c->rope.dim,
                                             .cos = (second ? w->second_cos : w->cos) + at,
                                             .sin = (second ? w->second_sin : w->sin) + at,
                                             .n = n,
                                             .heads = heads,
                                             .ld = heads * dim,
                                             .head_ld = dim,
                                             .half = c->rope.dim / 2,
                                             .interleaved = c->rope.interleaved,
                                             .inverse = inverse});
}

/* --- Multi-token keys ------------------------------------------------------------------------- */

static float *state_of(int layer, const struct span *s, const struct attention_compressor *k, int row) {
    return row < 0 ? NULL : (float *)attention_plane(s->cache[layer].p[k->state_plane], row).data + k->state_at;
}

/* Copies the cosines, or the sines, of a token, unless they are there already. */
static int copy_turn(struct exec *x, float *to, const float *from, int half) {
    return to == from ? 0 : rows_copy(x, to, half, from, half, 1, half);
}

/* Sets w->entry_cos and w->entry_sin to those of the first tokens of n_entries entries, which rows [row, row + n) of a
 * span complete, and keeps those of the open entry. */
static int take_turns(struct exec *x, const struct config *c, int layer, const struct attention_compressor *k,
                      struct work *w, const struct span *s, int row, int n, int from, int to, int n_entries) {
    const int half = c->rope.dim / 2, pos = s->pos + row, open = pos % k->ratio, left = (pos + n) % k->ratio;
    const int carried = open > 0, at = s->row + row + (carried ? k->ratio - open : 0); /* first row that begins one */
    const float *const table[] = {w->cos, w->sin};
    float *const entry[] = {w->entry_cos, w->entry_sin};
    for (int i = 0; i < 2; i++) {
        const size_t kept = 3 * (size_t)k->dim + (size_t)i * (size_t)half;
        const float *before = open ? state_of(layer, s, k, from) + kept : NULL;
        float *after = state_of(layer, s, k, to) + kept;
        if (n_entries && carried) TRY(copy_turn(x, entry[i], before, half));
        if (n_entries > carried)
            TRY(rows_copy(x, entry[i] + carried * half, half, table[i] + (size_t)at * (size_t)half, k->ratio * half,
                          n_entries - carried, half));
        if (!left) continue;
        TRY(copy_turn(x, after, left > n ? before : table[i] + (size_t)(s->row + row + n - left) * (size_t)half, half));
    }
    return 0;
}

/* Norms and rotates n entries, the first of which is entry `first` of its sequence. */
static int finish_entries(struct exec *x, const struct config *c, const struct attention_compressor *k, struct work *w,
                          const struct op_address *at, int first, int n) {
    const int half = c->rope.dim / 2;
    TRY(block_norm(x, c, w->entries, k->dim, w->entries, k->dim, k->norm, NULL, n, k->dim));
    if (!k->turns_as_token)
        TRY(x->ops->rope_table(x, &(struct op_rope_table){.cos = w->entry_cos,
                                                          .sin = w->entry_sin,
                                                          .inv_freq = k->inv_freq,
                                                          .n = n,
                                                          .half = half,
                                                          .pos0 = first * k->ratio,
                                                          .step = k->ratio,
                                                          .mscale = 1,
                                                          .at = at}));
    return x->ops->rope(x, &(struct op_rope){.x = w->entries + k->rotate_at,
                                             .cos = w->entry_cos,
                                             .sin = w->entry_sin,
                                             .n = n,
                                             .heads = 1,
                                             .ld = k->dim,
                                             .head_ld = k->dim,
                                             .half = half,
                                             .interleaved = c->rope.interleaved});
}

/* Adds rows [row, row + n) of a span to its entries, from one state to another; stores those that they complete. */
static int make_entries(struct exec *x, const struct config *c, int layer, const struct attention_compressor *k,
                        struct work *w, const struct span *s, int row, int n, int from, int to) {
    const int ratio = k->ratio, first = (s->pos + row) / ratio;
    const float *in = w->fused + (size_t)(s->row + row) * (size_t)k->ld;
    struct op_compress o = {.out = w->entries,
                            .kv = in,
                            .gate = k->plain ? NULL : in + k->ld / 2,
                            .bias = k->bias,
                            .before = state_of(layer, s, k, from),
                            .after = state_of(layer, s, k, to),
                            .n = n,
                            .pos0 = s->pos + row,
                            .ratio = ratio,
                            .dim = k->dim,
                            .ldx = k->ld,
                            .overlap = k->overlap,
                            .at = attention_address(s, layer, k->state_plane),
                            .state_at = k->state_at};
    /* when recorded: the most possible; the cache stores only completed ones */
    const int n_entries = op_compressed(&o);
    TRY(x->ops->compress(x, &o));
    if (k->turns_as_token) TRY(take_turns(x, c, layer, k, w, s, row, n, from, to, n_entries));
    if (!n_entries) return 0;
    if (k->norm) TRY(finish_entries(x, c, k, w, o.at, first, n_entries));
    return x->ops->kv_store(x, &(struct op_kv_store){.plane = s->cache[layer].p[k->plane],
                                                     .x = w->entries,
                                                     .row0 = first,
                                                     .n = n_entries,
                                                     .ldx = k->dim,
                                                     .at = attention_address(s, layer, k->plane),
                                                     .every = ratio,
                                                     .tokens = n});
}

int attention_make_entries(struct exec *x, const struct config *c, int layer, const struct attention_compressor *k,
                           struct work *w, const struct span *spans, int n_spans) {
    for (int i = 0; i < n_spans; i++) {
        const struct span *s = &spans[i];
        const struct kv_state_step *v = &s->state_step; /* two parts if a state is saved at the mark */
        if (v->mark) TRY(make_entries(x, c, layer, k, w, s, 0, v->mark, v->from_row, v->mark_row));
        TRY(make_entries(x, c, layer, k, w, s, v->mark, s->n - v->mark, v->mark ? v->mark_row : v->from_row,
                         v->to_row));
    }
    return 0;
}

/* Projects values and gates of n rows and makes the spans' entries from them. k has bias, norm, dim, plane and
 * state_at. */
static int compress_rows(struct exec *x, const struct config *c, int layer, struct mat values, struct mat gates,
                         struct attention_compressor k, struct work *w, const struct span *spans, int n_spans, int n) {
    const int width = series_of(c, layer) * k.dim;
    TRY(block_linear_exact(x, w->fused, 2 * width, w->xn, c->hidden, values, n));
    TRY(block_linear_exact(x, w->fused + width, 2 * width, w->xn, c->hidden, gates, n));
    k.inv_freq = w->inv_freq + c->rope.dim / 2; /* second_rope's */
    k.ld = 2 * width;
    k.state_plane = states_plane(c, layer);
    k.ratio = ratio_of(c, layer);
    k.rotate_at = k.dim - c->rope.dim;
    k.overlap = c->layer[layer].overlap;
    return attention_make_entries(x, c, layer, &k, w, spans, n_spans);
}

/* Rounds n rows of keys, or of the indexer's queries, as in training. Rows of other widths than whole blocks stay, as
 * in mlx-lm. */
static int round_rows(struct exec *x, const struct config *c, float *v, int ld, int n, int m, int dim,
                      enum round_kind kind, int block) {
    if (!c->rounds_keys || dim % block) return 0;
    return x->ops->round(x,
                         &(struct op_round){.x = v, .n = n, .m = m, .ld = ld, .block = block, .kind = (uint8_t)kind});
}

/* --- Keys for several layers ------------------------------------------------------------------ */

/* Stores n entries of a plane, from entry `first` on. rows: ld floats apart. */
static int store_entries(struct exec *x, const struct config *c, int layer, const struct span *s, int plane,
                         const float *rows, int ld, int first, int n) {
    return x->ops->kv_store(x, &(struct op_kv_store){.plane = s->cache[layer].p[plane],
                                                     .x = rows,
                                                     .row0 = first,
                                                     .n = n,
                                                     .ldx = ld,
                                                     .at = attention_address(s, layer, plane),
                                                     .every = ratio_of(c, layer),
                                                     .tokens = n});
}

/* Entries [first, first + n), which tokens of a span complete. */
struct completed {
    int first, n;
    int row; /* workspace row of the token that completes the first one; the next rows are `ratio` apart */
};
/* Returns those that rows [from, from + n) of the span complete. */
static struct completed completed_entries(const struct config *c, int layer, const struct span *s, int from, int n) {
    const int ratio = ratio_of(c, layer), first = (s->pos + from) / ratio;
    return (struct completed){
        .first = first, .n = op_completed(s->pos + from, n, ratio), .row = s->row + (first + 1) * ratio - 1 - s->pos};
}

/* Rotates the last dimensions of n rows of `dim` at v, ld floats apart. cos and sin: rows of their positions. */
static int rotate_rows(struct exec *x, const struct config *c, float *v, int ld, int dim, const float *cos,
                       const float *sin, int n) {
    return x->ops->rope(x, &(struct op_rope){.x = v + dim - c->rope.dim,
                                             .cos = cos,
                                             .sin = sin,
                                             .n = n,
                                             .heads = 1,
                                             .ld = ld,
                                             .head_ld = dim,
                                             .half = c->rope.dim / 2,
                                             .interleaved = c->rope.interleaved});
}

/* Makes rows of work.carried, ld floats apart at `to`, of the n normed entries in w->entries: the rotated and rounded
 * entry, then the indexer's key. */
static int make_passed_keys(struct exec *x, const struct config *c, const struct layer *y, struct work *w, float *to,
                            int ld, const float *cos, const float *sin, int n) {
    const int dim = c->head_dim, index_dim = c->index_dim;
    float *index_keys = to + dim;
    TRY(rows_copy(x, to, ld, w->entries, dim, n, dim));
    TRY(block_linear_exact(x, index_keys, ld, w->entries, dim, y->index_k, n));
    TRY(block_norm(x, c, index_keys, ld, index_keys, ld, y->index_k_norm, NULL, n, index_dim));
    TRY(rotate_rows(x, c, to, ld, dim, cos, sin, n));
    TRY(rotate_rows(x, c, index_keys, ld, index_dim, cos, sin, n));
    TRY(round_rows(x, c, to, ld, n, dim, dim, ROUND_E2M1_E4M3, 16));
    return round_rows(x, c, index_keys, ld, n, index_dim, index_dim, ROUND_E2M1, 32);
}

/* Makes the entries that rows [row, row + n) of the workspace complete, from one state to another, in the rows of
 * work.carried of the tokens that complete them. */
static int pass_groups(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *s, int row, int n, int from, int to) {
    const int dim = c->head_dim, ratio = ratio_of(c, layer), half = c->rope.dim / 2;
    const struct completed d = completed_entries(c, layer, s, row - s->row, n);
    const struct attention_compressor state = {.state_plane = STATES};
    const float *in = w->fused + (size_t)row * (size_t)(2 * dim);
    TRY(x->ops->compress(x, &(struct op_compress){.out = w->entries,
                                                  .kv = in,
                                                  .gate = in + dim,
                                                  .before = state_of(layer, s, &state, from),
                                                  .after = state_of(layer, s, &state, to),
                                                  .n = n,
                                                  .pos0 = s->pos + row - s->row,
                                                  .ratio = ratio,
                                                  .dim = dim,
                                                  .ldx = 2 * dim}));
    if (!d.n) return 0;
    TRY(block_norm(x, c, w->entries, dim, w->entries, dim, y->compress_norm, NULL, d.n, dim));
    TRY(x->ops->rope_table(x, &(struct op_rope_table){.cos = w->entry_cos,
                                                      .sin = w->entry_sin,
                                                      .inv_freq = w->inv_freq + half, /* second_rope's */
                                                      .n = d.n,
                                                      .half = half,
                                                      .pos0 = d.first * ratio,
                                                      .step = ratio,
                                                      .mscale = 1}));
    float *carried = w->carried + c->layer[layer].carried_at + (size_t)d.row * (size_t)c->carried;
    return make_passed_keys(x, c, y, w, carried, ratio * c->carried, w->entry_cos, w->entry_sin, d.n);
}

/* Makes the entries that n rows complete, in work.carried. */
static int pass_entries(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                        const struct span *spans, int n_spans, int n) {
    const int dim = c->head_dim;
    if (ratio_of(c, layer) == 1) { /* an entry per token */
        TRY(block_linear_exact(x, w->entries, dim, w->xn, c->hidden, y->compress_kv, n));
        TRY(block_norm(x, c, w->entries, dim, w->entries, dim, y->compress_norm, NULL, n, dim));
        return make_passed_keys(x, c, y, w, w->carried + c->layer[layer].carried_at, c->carried, w->second_cos,
                                w->second_sin, n);
    }
    TRY(block_linear_exact(x, w->fused, 2 * dim, w->xn, c->hidden, y->compress_kv, n));
    TRY(block_linear_exact(x, w->fused + dim, 2 * dim, w->xn, c->hidden, y->compress_gate, n));
    for (int i = 0; i < n_spans; i++) TRY(attention_advance_state(x, c, y, layer, w, &spans[i], pass_groups));
    return 0;
}

/* Stores the entries in work.carried that the spans' rows complete. */
static int store_passed(struct exec *x, const struct config *c, int layer, const struct work *w,
                        const struct span *spans, int n_spans) {
    for (int i = 0; i < n_spans; i++) {
        const struct completed d = completed_entries(c, layer, &spans[i], 0, spans[i].n);
        const float *from = w->carried + c->layer[layer].carried_at + (size_t)d.row * (size_t)c->carried;
        const int ld = ratio_of(c, layer) * c->carried;
        if (!d.n) continue;
        TRY(store_entries(x, c, layer, &spans[i], ENTRIES, from, ld, d.first, d.n));
        TRY(store_entries(x, c, layer, &spans[i], INDEX, from + c->head_dim, ld, d.first, d.n));
    }
    return 0;
}

/* --- Attention -------------------------------------------------------------------------------- */

static int compressed_store_kv(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                               const struct span *spans, int n_spans, int n) {
    const int dim = c->head_dim;
    TRY(block_linear(x, c, w->kv, dim, w->xn, c->hidden, y->kv_a, NULL, n, false));
    TRY(block_norm(x, c, w->kv, dim, w->kv, dim, y->kv_a_norm, NULL, n, dim));
    TRY(rotate_heads(x, c, layer, w, 0, w->kv, n, 1, dim, false));
    TRY(round_rows(x, c, w->kv, dim, n, dim, dim, ROUND_E4M3, 32));
    for (int i = 0; i < n_spans; i++) TRY(attention_store_rows(x, &spans[i], layer, TOKENS, w->kv, dim));
    if (!ratio_of(c, layer)) return 0;
    if (c->index_from_entries) {
        if (c->layer[layer].passes_kv == KV_PASSED) TRY(pass_entries(x, c, y, layer, w, spans, n_spans, n));
        return store_passed(x, c, layer, w, spans, n_spans);
    }
    const struct attention_compressor keys = {
        .bias = y->compress_bias, .norm = y->compress_norm, .dim = dim, .plane = ENTRIES};
    TRY(compress_rows(x, c, layer, y->compress_kv, y->compress_gate, keys, w, spans, n_spans, n));
    if (!has_selection(c, layer)) return 0;
    const struct attention_compressor index = {.bias = y->index_compress_bias,
                                               .norm = y->index_compress_norm,
                                               .dim = c->index_dim,
                                               .plane = INDEX,
                                               .state_at = open_floats(c, layer, dim)}; /* after the sums of the keys */
    return compress_rows(x, c, layer, y->index_compress_kv, y->index_compress_gate, index, w, spans, n_spans, n);
}

static int compressed_make_queries(struct exec *x, const struct config *c, const struct layer *y, int layer,
                                   struct work *w, int n) {
    const int dim = c->head_dim, qd = c->n_heads * dim;
    TRY(block_linear(x, c, w->q_latent, c->q_lora, w->xn, c->hidden, y->q_a, NULL, n, false));
    TRY(block_norm(x, c, w->q_latent, c->q_lora, w->q_latent, c->q_lora, y->q_a_norm, NULL, n, c->q_lora));
    TRY(block_linear(x, c, w->q, qd, w->q_latent, c->q_lora, y->q_b, NULL, n, false));
    if (c->qk_norm == QK_NORM_PLAIN) TRY(block_norm(x, c, w->q, dim, w->q, dim, NULL, NULL, n * c->n_heads, dim));
    TRY(rotate_heads(x, c, layer, w, 0, w->q, n, c->n_heads, dim, false));
    if (!selects_itself(c, layer)) return 0;
    const int width = c->index_heads * c->index_dim;
    TRY(block_linear_exact(x, w->index_q, width, w->q_latent, c->q_lora, y->index_q, n));
    TRY(rotate_heads(x, c, layer, w, 0, w->index_q, n, c->index_heads, c->index_dim, false));
    TRY(round_rows(x, c, w->index_q, width, n, width, c->index_dim, ROUND_E2M1, 32));
    return block_linear_exact(x, w->index_weights, c->index_heads, w->xn, c->hidden, y->index_weights, n);
}

static int select_entries(struct exec *x, const struct config *c, int layer, const struct work *w, const struct span *s,
                          int n_entries) {
    const float scale = (float)(1 / sqrt((double)c->index_heads * c->index_dim));
    const int ratio = ratio_of(c, layer), width = c->index_heads * c->index_dim;
    const size_t row = (size_t)s->row;
    int32_t *blocks = c->candidate_blocks ? w->candidates + row * (size_t)c->candidate_blocks : NULL;
    struct op_select o = {.chosen = w->selected_keys + row * (size_t)c->index_topk,
                          .q = w->index_q + row * (size_t)width,
                          .weight = w->index_weights + row * (size_t)c->index_heads,
                          .k = s->cache[layer].p[INDEX],
                          .n = s->n,
                          .heads = c->index_heads,
                          .topk = c->index_topk,
                          .ldq = width,
                          .q_pos0 = s->pos,
                          .k_pos0 = ratio - 1,
                          .k_step = ratio,
                          .n_keys = n_entries,
                          .scale = scale,
                          .at = attention_address(s, layer, INDEX)};
    if (c->layer[layer].limits_keys)
        o.among = blocks, o.n_among = c->candidate_blocks, o.among_block = c->candidate_keys;
    TRY(x->ops->select(x, &o));
    if (!c->layer[layer].lists_blocks) return 0;
    o.chosen = blocks, o.topk = c->candidate_blocks, o.block = c->candidate_keys;
    return x->ops->select(x, &o);
}

/* Attends to the entries that the span's queries see and merges the result with that over the window. window: the
 * finished call for the window. */
static int attend_entries(struct exec *x, const struct config *c, int layer, struct work *w, const struct span *s,
                          const struct op_attention *window, int ldo) {
    const int ratio = ratio_of(c, layer), heads = c->n_heads, n_entries = (s->pos + s->n) / ratio;
    const size_t row = (size_t)s->row;
    struct op_attention o = *window;
    if (selects_itself(c, layer)) TRY(select_entries(x, c, layer, w, s, n_entries));
    o.out = w->att + row * (size_t)ldo, o.lse = w->part_lse + ((size_t)w->rows + row) * (size_t)heads;
    o.sinks = NULL, o.window = 0; /* sinks are added once */
    o.k = o.v = s->cache[layer].p[ENTRIES];
    o.k_pos0 = ratio - 1, o.k_step = ratio, o.n_keys = n_entries;
    o.at = o.v_at = attention_address(s, layer, ENTRIES);
    if (has_selection(c, layer)) o.chosen = w->selected_keys + row * (size_t)c->index_topk, o.n_chosen = c->index_topk;
    TRY(x->ops->attention(x, &o));
    return x->ops->merge(x, &(struct op_merge){.out = window->out,
                                               .lse = window->lse,
                                               .out2 = o.out,
                                               .lse2 = o.lse,
                                               .n = s->n,
                                               .heads = heads,
                                               .dim = c->head_dim,
                                               .ldo = window->ldo,
                                               .ldo2 = o.ldo});
}

/* Attends for a span in w->fused. */
static int attend_span(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                       const struct span *s) {
    const int dim = c->head_dim, heads = c->n_heads, qd = heads * dim, ratio = ratio_of(c, layer),
              low = c->o_groups * c->o_lora;
    const size_t row = (size_t)s->row;
    const struct op_attention window = {.out = w->fused + row * (size_t)qd,
                                        .q = w->q + row * (size_t)qd,
                                        .k = s->cache[layer].p[TOKENS],
                                        .v = s->cache[layer].p[TOKENS],
                                        .sinks = y->sinks,
                                        .lse = w->part_lse + row * (size_t)heads,
                                        .n = s->n,
                                        .n_heads = heads,
                                        .v_dim = dim,
                                        .ldq = qd,
                                        .ldo = qd,
                                        .q_pos0 = s->pos,
                                        .n_keys = s->pos + s->n,
                                        .window = c->layer[layer].window,
                                        .scale = c->attn_scale,
                                        .at = attention_address(s, layer, TOKENS),
                                        .v_at = attention_address(s, layer, TOKENS)};
    TRY(x->ops->attention(x, &window));
    if (ratio && (s->pos + s->n) / ratio) TRY(attend_entries(x, c, layer, w, s, &window, qd > low ? qd : low));
    return rotate_heads(x, c, layer, w, s->row, window.out, s->n, heads, dim, true);
}
/* Projects each group of heads of n rows from w->fused to w->att (o_a). */
static int project_groups(struct exec *x, const struct config *c, const struct layer *y, struct work *w, int row,
                          int n) {
    const int qd = c->n_heads * c->head_dim, low = c->o_groups * c->o_lora; /* low: width of the projected groups */
    return x->ops->linear(x, &(struct op_linear){.y = w->att + (size_t)row * (size_t)low,
                                                 .x = w->fused + (size_t)row * (size_t)qd,
                                                 .w = mat_rows(y->o_a, 0, c->o_lora),
                                                 .n = n,
                                                 .ldx = qd,
                                                 .ldy = low,
                                                 .wide = config_needs_wide_activations(c),
                                                 .batch = c->o_groups,
                                                 .batch_rows = c->o_lora,
                                                 .batch_x = qd / c->o_groups,
                                                 .batch_y = c->o_lora});
}
static int compressed_attend(struct exec *x, const struct config *c, const struct layer *y, int layer, struct work *w,
                             const struct span *s, struct key_range keys) {
    TRY(attend_span(x, c, y, layer, w, s));
    return project_groups(x, c, y, w, s->row, s->n);
}
static int compressed_attend_spans(struct exec *x, const struct config *c, const struct layer *y, int layer,
                                   struct work *w, const struct span *spans, int n_spans) {
    for (int i = 0; i < n_spans; i++) TRY(attend_span(x, c, y, layer, w, &spans[i]));
    for (int i = 0, k, n; i < n_spans; i += k) {
        k = attention_together(spans + i, n_spans - i, &n);
        TRY(project_groups(x, c, y, w, spans[i].row, n));
    }
    return 0;
}

const struct attention_kind attention_compressed = {.name = "compressed",
                                                    .needs_all_keys = true,
                                                    .is_recordable = true,
                                                    .cache_planes = compressed_cache_planes,
                                                    .store_kv = compressed_store_kv,
                                                    .make_queries = compressed_make_queries,
                                                    .attend = compressed_attend,
                                                    .attend_spans = compressed_attend_spans};
