#include "engine/base/mem.h"
#include "engine/layer/block.h"
#include "engine/model/rope.h"

static void *host_alloc(void *ctx, size_t size) { return mem_aligned(64, size); }
static void host_release(void *ctx, void *p) { mem_free(p); }

/* The list of buffers, shared by allocation and sizing so that they agree. */
enum { max_parts = 61 };
struct part {
    void **p;
    size_t bytes;
};
static size_t gate_floats(const struct config *c) { /* per row, of w->fused in gated GQA */
    switch (c->attn_gate) {
    case ATTN_GATE_IN_QUERY: return (size_t)(c->n_heads * (c->head_dim + c->v_dim));
    case ATTN_GATE_ELEMENT: return (size_t)(c->n_heads * c->v_dim);
    case ATTN_GATE_HEAD: return (size_t)c->n_heads;
    default: return 0;
    }
}
static size_t max_of(size_t a, size_t b) { return a > b ? a : b; }
/* Per row, what mixers with states need of the buffers of those names: the most of any. */
struct mixer_floats {
    size_t att, fused, mixed, z, gates;
};
static struct mixer_floats mixer_floats(const struct config *c) {
    struct mixer_floats f = {0};
    if (c->delta.taps) {
        const struct delta_config *d = &c->delta;
        const size_t values = (size_t)(d->v_heads * d->v_dim), channels = 2 * (size_t)(d->k_heads * d->k_dim) + values;
        f = (struct mixer_floats){.att = values, .fused = channels + values, .mixed = channels, .z = values, .gates = 2 * (size_t)d->v_heads};
    }
    if (config_has_mixer(c, MIXER_CONV)) f = (struct mixer_floats){.att = (size_t)c->hidden, .fused = 3 * (size_t)c->hidden};
    if (config_has_mixer(c, MIXER_LIGHTNING)) {
        const size_t all = (size_t)(c->n_heads * c->head_dim);
        f = (struct mixer_floats){.att = all, .fused = 3 * all, .mixed = 3 * all, .z = all};
    }
    if (c->short_taps) f.mixed = (size_t)(c->n_kv_heads * (c->head_dim + c->v_dim));
    if (config_has_mixer(c, MIXER_MAMBA2)) {
        const struct mamba_config *m = &c->mamba;
        const size_t inner = (size_t)(m->heads * m->head_dim), channels = inner + 2 * (size_t)(m->groups * m->state);
        f = (struct mixer_floats){.att = inner, .fused = inner + channels + (size_t)m->heads, .mixed = channels};
    }
    if (config_has_mixer(c, MIXER_KDA)) {
        const size_t width = (size_t)(c->kda.heads * c->kda.dim);
        f = (struct mixer_floats){
            .att = width, .fused = max_of(3 * width, (size_t)c->kda.rank), .mixed = 3 * width, .z = width, .gates = (size_t)c->kda.heads + width};
    }
    if (c->attn == ATTN_CCA) {
        const size_t qk = (size_t)((c->n_heads + c->n_kv_heads) * c->head_dim), half = (size_t)(c->n_kv_heads * c->head_dim) / 2;
        f = (struct mixer_floats){.fused = qk, .mixed = (size_t)c->cca.taps[1] * qk + half, .z = half};
    }
    if (config_has_mixer(c, MIXER_MAMBA1)) {
        const struct mamba_config *m = &c->mamba;
        const size_t inner = (size_t)(m->heads * m->head_dim);
        f = (struct mixer_floats){.att = inner, .fused = 2 * inner, .mixed = inner + (size_t)(m->rank + 2 * m->state), .z = inner};
    }
    return f;
}
static int list_buffers(struct work *w, const struct config *c, int rows, struct part *out) {
    size_t n = (size_t)rows, f = sizeof(float), cached = 0;
    int k = 0, absorb = rows;
    for (int i = 0; i < c->n_layers; i++) cached = kv_row_bytes(c, i, DT_F32) > cached ? kv_row_bytes(c, i, DT_F32) : cached;
    const struct mixer_floats mixer = mixer_floats(c);
    size_t att = max_of((size_t)(c->n_heads * c->v_dim), mixer.att), wide = max_of(gate_floats(c), mixer.fused);
    if (c->attn == ATTN_COMPRESSED) { /* results of the window; before that the inputs of multi-token entries */
        size_t low = (size_t)(c->o_groups * c->o_lora), in = 4 * (size_t)(c->head_dim > c->index_dim ? c->head_dim : c->index_dim);
        wide = att > in ? att : in;
        att = att > low ? att : low;
    }
    size_t extent = 0; /* of biases by distance: rows that fit in 64 MB, or those of a small batch */
    for (int i = 0; i < c->n_layers; i++) extent = max_of(extent, (size_t)c->n_heads * (size_t)c->layer[i].extent);
    wide = max_of(wide, (size_t)(c->n_heads * c->rel_dim));
    if (c->index_block && !c->index_by_group) wide = max_of(wide, 2 * (size_t)c->index_dim);
    const size_t half = (size_t)(c->rope.dim / 2), second = (size_t)(c->second_rope.dim / 2);
    while (c->kv_lora && absorb > 1 && block_expands_mla(c, absorb)) absorb--;
    out[k++] = (struct part){(void **)&w->x, n * (size_t)c->hidden * f};
    out[k++] = (struct part){(void **)&w->xn, n * (size_t)c->hidden * f};
    out[k++] = (struct part){(void **)&w->q, n * (size_t)(c->n_heads * c->head_dim) * f};
    out[k++] = (struct part){(void **)&w->kv, n * cached};
    out[k++] = (struct part){(void **)&w->att, n * att * f};
    out[k++] = (struct part){(void **)&w->cos, n * half * f};
    out[k++] = (struct part){(void **)&w->sin, n * half * f};
    if (c->second_rope.dim) {
        out[k++] = (struct part){(void **)&w->second_cos, n * second * f};
        out[k++] = (struct part){(void **)&w->second_sin, n * second * f};
    }
    out[k++] = (struct part){(void **)&w->inv_freq, (size_t)rope_floats(c) * f};
    out[k++] = (struct part){(void **)&w->pos, n * sizeof(int32_t)};
    out[k++] = (struct part){(void **)&w->tokens, n * sizeof(int32_t)};
    out[k++] = (struct part){(void **)&w->first_bad, sizeof(int)};
    if (c->rope.kind == ROPE_LONG) out[k++] = (struct part){(void **)&w->seq_length, n * sizeof(int32_t)};
    if (wide) out[k++] = (struct part){(void **)&w->fused, n * wide * f};
    if (mixer.mixed) out[k++] = (struct part){(void **)&w->mixed, n * mixer.mixed * f};
    if (mixer.z) out[k++] = (struct part){(void **)&w->z, n * mixer.z * f};
    if (mixer.gates) out[k++] = (struct part){(void **)&w->beta_alpha, n * mixer.gates * f};
    if (extent) {
        const size_t fit = max_of((64u << 20) / (extent * f), BATCH_INVARIANT_ROWS);
        w->rel_rows = (int)(n < fit ? n : fit);
        out[k++] = (struct part){(void **)&w->rel_bias, (size_t)w->rel_rows * extent * f};
    }
    if (c->streams.n) {
        size_t s = (size_t)c->streams.n;
        out[k++] = (struct part){(void **)&w->streams, n * s * (size_t)c->hidden * f};
        out[k++] = (struct part){(void **)&w->post, n * s * f};
        out[k++] = (struct part){(void **)&w->mix, n * max_of((2 + s) * s, (size_t)c->streams.rank) * f};
        if (c->streams.is_gated) {
            out[k++] = (struct part){(void **)&w->stream_norm, n * s * (size_t)c->hidden * f};
            out[k++] = (struct part){(void **)&w->stream_gates, n * s * (size_t)c->hidden * f};
        }
    }
    size_t dim = 0, hashes = 0;
    for (int i = 0; i < CONFIG_NGRAMS_MOST; i++)
        if (c->ngram[i].size) dim = max_of(dim, (size_t)c->ngram[i].dim), hashes = max_of(hashes, (size_t)config_ngram_hashes(&c->ngram[i]));
    if (dim) {
        out[k++] = (struct part){(void **)&w->ngram, n * dim * f};
        out[k++] = (struct part){(void **)&w->ngram_rows, n * hashes * sizeof(int32_t)};
    }
    if (c->attn == ATTN_COMPRESSED || (c->index_block && !c->index_by_group)) {
        out[k++] = (struct part){(void **)&w->entries, n * (size_t)(c->head_dim > c->index_dim ? c->head_dim : c->index_dim) * f};
        out[k++] = (struct part){(void **)&w->entry_cos, n * half * f};
        out[k++] = (struct part){(void **)&w->entry_sin, n * half * f};
        out[k++] = (struct part){(void **)&w->part_lse, 2 * n * (size_t)c->n_heads * f};
    }
    if (c->q_lora) out[k++] = (struct part){(void **)&w->q_latent, n * (size_t)(c->q_raw ? 3 : 1) * (size_t)c->q_lora * f};
    if (c->norm_gate_rank) out[k++] = (struct part){(void **)&w->norm_gates, n * (size_t)(c->norm_gate_rank + c->hidden) * f};
    if (c->kv_lora) {
        w->absorb_rows = absorb;
        out[k++] = (struct part){(void **)&w->absorbed_q, (size_t)absorb * (size_t)(c->n_heads * (c->kv_lora + c->qk_rope)) * f};
        out[k++] = (struct part){(void **)&w->absorbed_out, (size_t)absorb * (size_t)(c->n_heads * c->kv_lora) * f};
    }
    if (c->index_topk) {
        out[k++] = (struct part){(void **)&w->index_q, n * (size_t)(c->index_heads * c->index_dim) * f};
        if (!c->index_by_group) out[k++] = (struct part){(void **)&w->index_weights, n * (size_t)c->index_heads * f};
        out[k++] = (struct part){(void **)&w->selected_keys, n * (size_t)config_index_entries(c) * sizeof(int32_t)};
    }
    if (c->n_experts) {
        out[k++] = (struct part){(void **)&w->router, n * (size_t)config_n_choices(c) * f};
        out[k++] = (struct part){(void **)&w->ids, n * (size_t)c->topk * sizeof(int32_t)};
        out[k++] = (struct part){(void **)&w->weights, n * (size_t)c->topk * f};
    }
    if (c->n_deferred) {
        out[k++] = (struct part){(void **)&w->deferred, n * (size_t)c->hidden * f};
        out[k++] = (struct part){(void **)&w->deferred_xn, n * (size_t)c->hidden * f};
        out[k++] = (struct part){(void **)&w->part_weights, n * (size_t)c->topk * f};
        out[k++] = (struct part){(void **)&w->part_ids, n * (size_t)c->topk * sizeof(int32_t)};
    }
    if (c->carried) out[k++] = (struct part){(void **)&w->carried, n * (size_t)c->carried * f};
    if (c->router_inter) out[k++] = (struct part){(void **)&w->router_mlp, 2 * n * (size_t)c->router_inter * f};
    if (c->token_dim) out[k++] = (struct part){(void **)&w->token_vectors, 3 * n * (size_t)c->token_dim * f};
    if (config_needs_ffn_in(c)) out[k++] = (struct part){(void **)&w->ffn_in, n * (size_t)c->hidden * f};
    if (c->moe_latent) {
        out[k++] = (struct part){(void **)&w->routed_in, n * (size_t)c->moe_latent * f};
        out[k++] = (struct part){(void **)&w->routed_sum, n * (size_t)c->moe_latent * f};
    }
    if (config_keeps_rows(c)) out[k++] = (struct part){(void **)&w->kept, n * (size_t)c->hidden * f};
    if (c->n_idle_experts) out[k++] = (struct part){(void **)&w->idle, n * f};
    if (config_weighs_shared(c)) out[k++] = (struct part){(void **)&w->shared_weight, n * f};
    return k;
}

size_t work_bytes(const struct config *c, int rows) {
    struct work w;
    struct part p[max_parts];
    size_t sum = 0;
    for (int i = list_buffers(&w, c, rows, p); i-- > 0;) sum += p[i].bytes;
    return sum;
}

int work_open(struct work *w, const struct config *c, int rows, void *(*alloc)(void *, size_t), void (*release)(void *, void *), void *ctx, struct error *e) {
    *w = (struct work){.config = c, .rows = rows, .alloc = alloc ? alloc : host_alloc, .release = release ? release : host_release, .ctx = ctx};
    struct part p[max_parts];
    int n = list_buffers(w, c, rows, p);
    for (int i = 0; i < n; i++)
        if (!(*p[i].p = w->alloc(ctx, p[i].bytes))) {
            work_close(w);
            return error_set(e, ERR_MEMORY, "no memory for a workspace of %d tokens (%zu MB)", rows, work_bytes(c, rows) >> 20);
        }
    return 0;
}

void work_close(struct work *w) {
    struct part p[max_parts] = {{(void **)&w->latent, 0}, {(void **)&w->expanded_kv, 0}};
    for (int i = w->release ? 2 + list_buffers(w, w->config, w->rows, p + 2) : 0; i-- > 0;)
        if (*p[i].p) w->release(w->ctx, *p[i].p);
    *w = (struct work){0};
}

struct work work_slice(const struct config *c, const struct work *w, int row) {
    struct work r = *w;
    const size_t at = (size_t)row, half = (size_t)(c->rope.dim / 2), second = (size_t)(c->second_rope.dim / 2);
    r.x += at * (size_t)c->hidden, r.xn += at * (size_t)c->hidden;
    if (r.streams) r.streams += at * (size_t)(c->streams.n * c->hidden), r.post += at * (size_t)c->streams.n;
    r.pos += at, r.tokens += at;
    if (r.seq_length) r.seq_length += at;
    if (r.selected_keys) r.selected_keys += at * (size_t)config_index_entries(c);
    r.cos += at * half, r.sin += at * half;
    if (r.second_cos) r.second_cos += at * second, r.second_sin += at * second;
    if (r.router) r.router += at * (size_t)config_n_choices(c);
    if (r.ffn_in) r.ffn_in += at * (size_t)c->hidden;
    if (r.kept) r.kept += at * (size_t)c->hidden;
    if (r.carried) r.carried += at * (size_t)c->carried;
    if (r.idle) r.idle += at;
    if (r.ids) r.ids += at * (size_t)c->topk, r.weights += at * (size_t)c->topk;
    if (r.shared_weight) r.shared_weight += at;
    if (r.deferred) r.deferred += at * (size_t)c->hidden, r.deferred_xn += at * (size_t)c->hidden;
    if (r.deferred) r.part_ids += at * (size_t)c->topk, r.part_weights += at * (size_t)c->topk;
    return r;
}

void work_keep_grown(struct work *w, const struct work *slice) {
    w->latent = slice->latent, w->latent_floats = slice->latent_floats;
    w->expanded_kv = slice->expanded_kv, w->expanded_floats = slice->expanded_floats;
}
