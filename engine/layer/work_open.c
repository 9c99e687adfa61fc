#include "engine/layer/work_open.h"

/* Workspaces: the list of their buffers, from which they are allocated, sized and closed, and views of some of their
 * rows. */
#include <assert.h>

#include "base/mem.h"
#include "engine/layer/block.h"
#include "engine/layer/kv_planes.h"
#include "engine/model/rope.h"

static void *host_alloc(void *ctx, size_t size) { return mem_aligned(64, size); }
static void host_release(void *ctx, void *p) { mem_free(p); }

/* The buffers of a workspace. A new one is an ADD() below; allocation, sizing and closing follow. */
enum { MAX_BUFFERS = 64 };
struct buffer {
    void **p; /* its field in struct work */
    size_t bytes;
};
struct buffer_list {
    struct buffer at[MAX_BUFFERS];
    int n;
};
static void add_buffer(struct buffer_list *l, void *field, size_t bytes) {
    assert(l->n < MAX_BUFFERS);
    l->at[l->n++] = (struct buffer){field, bytes};
}
/* Adds a field of *w, for `count` elements. */
#define ADD(field, count) add_buffer(l, (void *)&w->field, (size_t)(count) * sizeof *w->field)

static size_t max_of(size_t a, size_t b) { return a > b ? a : b; }

static size_t gate_floats(const struct config *c) { /* per row, of w->fused in gated GQA */
    switch (c->attn_gate) {
    case ATTN_GATE_IN_QUERY: return (size_t)(c->n_heads * (c->head_dim + c->v_dim));
    case ATTN_GATE_ELEMENT: return (size_t)(c->n_heads * c->v_dim);
    case ATTN_GATE_HEAD: return (size_t)c->n_heads;
    default: return 0;
    }
}

/* Floats per row that token mixers need of the buffers of these names. */
struct mixer_floats {
    size_t att, fused, mixed, z, gates;
};
static void grow_mixer(struct mixer_floats *f, struct mixer_floats one) {
    f->att = max_of(f->att, one.att), f->fused = max_of(f->fused, one.fused), f->mixed = max_of(f->mixed, one.mixed);
    f->z = max_of(f->z, one.z), f->gates = max_of(f->gates, one.gates);
}
static struct mixer_floats mixer_floats(const struct config *c) {
    struct mixer_floats f = {0};
    const struct mamba_config *m = &c->mamba;
    const size_t all = (size_t)(c->lightning.heads * c->lightning.dim), inner = (size_t)(m->heads * m->head_dim);
    if (c->delta.taps) {
        const struct delta_config *d = &c->delta;
        const size_t values = (size_t)(d->v_heads * d->v_dim), channels = 2 * (size_t)(d->k_heads * d->k_dim) + values;
        grow_mixer(&f, (struct mixer_floats){.att = values,
                                             .fused = channels + values,
                                             .mixed = channels,
                                             .z = values,
                                             .gates = 2 * (size_t)d->v_heads});
    }
    if (config_has_mixer(c, MIXER_CONV))
        grow_mixer(&f, (struct mixer_floats){.att = (size_t)c->hidden, .fused = 3 * (size_t)c->hidden});
    if (config_has_mixer(c, MIXER_LIGHTNING))
        grow_mixer(&f, (struct mixer_floats){.att = all, .fused = 3 * all, .mixed = 3 * all, .z = all});
    if (c->short_taps)
        grow_mixer(
            &f, (struct mixer_floats){.mixed = (size_t)(c->n_kv_heads * (c->head_dim + c->v_dim)),
                                      .z = c->streams.block_layers ? (size_t)(2 * c->n_kv_heads * c->short_taps) : 0});
    if (config_has_mixer(c, MIXER_MAMBA2)) {
        const size_t channels = inner + 2 * (size_t)(m->groups * m->state);
        grow_mixer(
            &f, (struct mixer_floats){.att = inner, .fused = inner + channels + (size_t)m->heads, .mixed = channels});
    }
    if (config_has_mixer(c, MIXER_KDA)) {
        const size_t width = (size_t)(c->kda.heads * c->kda.dim);
        grow_mixer(&f, (struct mixer_floats){.att = width,
                                             .fused = max_of(3 * width, (size_t)c->kda.rank),
                                             .mixed = 3 * width,
                                             .z = width,
                                             .gates = (size_t)c->kda.heads + width});
    }
    if (c->attn == ATTN_CCA) {
        const size_t qk = (size_t)((c->n_heads + c->n_kv_heads) * c->head_dim),
                     delayed = (size_t)(c->n_kv_heads * c->head_dim) / 2;
        grow_mixer(&f,
                   (struct mixer_floats){.fused = qk, .mixed = (size_t)c->cca.taps[1] * qk + delayed, .z = delayed});
    }
    if (config_has_mixer(c, MIXER_MAMBA1))
        grow_mixer(
            &f, (struct mixer_floats){
                    .att = inner, .fused = 2 * inner, .mixed = inner + (size_t)(m->rank + 2 * m->state), .z = inner});
    return f;
}

static void list_positions(struct buffer_list *l, struct work *w, const struct config *c, size_t n) {
    const size_t half = (size_t)(c->rope.dim / 2), second = (size_t)(c->second_rope.dim / 2);
    ADD(cos, n * (size_t)rope_row_floats(c));
    ADD(sin, n * (size_t)rope_row_floats(c));
    if (c->rope.fope_pairs) ADD(fope_basis, 2 * FOPE_ROWS * half);
    if (second) {
        ADD(second_cos, n * second);
        ADD(second_sin, n * second);
    }
    ADD(inv_freq, rope_floats(c));
    ADD(pos, n);
    ADD(tokens, n);
    if (c->rope.kind == ROPE_LONG) ADD(seq_length, n);
}

static void list_streams(struct buffer_list *l, struct work *w, const struct config *c, size_t n) {
    const size_t s = (size_t)c->streams.n, hidden = (size_t)c->hidden;
    if (s) {
        ADD(streams, n * s * hidden);
        ADD(post, n * s);
        if (!c->streams.block_layers) ADD(mix, n * max_of((2 + s) * s, (size_t)c->streams.rank));
    }
    if (c->streams.block_layers) ADD(kv_in, 2 * n * hidden);
    if (c->streams.loop_passes > 1) ADD(messages, n * (7 * hidden + (size_t)c->streams.message_rank));
    size_t dim = 0, hashes = 0;
    for (int i = 0; i < CONFIG_NGRAMS_MOST; i++)
        if (c->ngram[i].size)
            dim = max_of(dim, (size_t)c->ngram[i].dim),
            hashes = max_of(hashes, (size_t)config_ngram_hashes(&c->ngram[i]));
    if (c->streams.is_gated || dim) {
        ADD(stream_norm, n * s * hidden);
        ADD(stream_gates, n * s * hidden);
    }
    if (dim) {
        ADD(ngram, n * dim);
        ADD(ngram_rows, n * hashes);
    }
    if (c->input_ngrams.size) { /* such a model has no other n-grams */
        ADD(ngram, BATCH_INVARIANT_ROWS * c->input_ngrams.dim);
        ADD(ngram_rows, BATCH_INVARIANT_ROWS * config_input_hashes(c));
    }
    const size_t latent = c->gates_all_norms ? max_of((size_t)c->q_lora, (size_t)c->kv_lora) : 0;
    if (c->norm_gate_rank) ADD(norm_gates, n * ((size_t)c->norm_gate_rank + max_of((size_t)c->hidden, latent)));
    if (c->carried) ADD(carried, n * (size_t)c->carried);
    if (c->token_dim) ADD(token_vectors, 3 * n * (size_t)c->token_dim);
    if (config_keeps_rows(c)) ADD(kept, n * hidden);
}

/* Queries, keys, attention outputs, and what mixers compute of a row. */
static void list_attention(struct buffer_list *l, struct work *w, const struct config *c, size_t n) {
    /* biases by distance: for as many rows as fit, but those of a small batch together */
    enum { REL_BIAS_BYTES = 64 << 20 };
    const struct mixer_floats mixer = mixer_floats(c);
    const size_t entry = max_of((size_t)c->head_dim, (size_t)c->index_dim); /* floats of a multi-token key */
    const bool selects_entries = c->index_block && !c->index_by_group;
    size_t att = max_of((size_t)(c->n_heads * c->v_dim), mixer.att), fused = max_of(gate_floats(c), mixer.fused),
           cached = 0, extent = 0;
    for (int i = 0; i < c->n_layers; i++) {
        cached = max_of(cached, kv_seen_row_bytes(c, i, DT_F32));
        extent = max_of(extent, (size_t)c->n_heads * (size_t)c->layer[i].extent);
    }
    if (c->attn == ATTN_COMPRESSED) { /* fused: inputs of multi-token keys, then results of the window */
        fused = max_of(att, 4 * entry);
        att = max_of(att, (size_t)(c->o_groups * c->o_lora));
    }
    if (selects_entries) fused = max_of(fused, 2 * (size_t)c->index_dim);
    if (c->index_from_input) fused = max_of(fused, (size_t)c->hidden);
    ADD(q, n * (size_t)(c->n_heads * c->head_dim));
    add_buffer(l, (void *)&w->kv, n * cached); /* bytes */
    ADD(att, n * att);
    if (fused) ADD(fused, n * fused);
    if (mixer.mixed) ADD(mixed, n * mixer.mixed);
    if (mixer.z) ADD(z, n * mixer.z);
    if (mixer.gates) ADD(beta_alpha, n * mixer.gates);
    if (c->rel_dim) ADD(rel, n * (size_t)(c->n_heads * c->rel_dim));
    if (c->projects_sinks) {
        ADD(sink_logits, n * (size_t)c->n_heads);
        ADD(sink_lse, n * (size_t)c->n_heads);
    }
    if (extent) {
        const size_t fit = max_of(REL_BIAS_BYTES / (extent * sizeof *w->rel_bias), BATCH_INVARIANT_ROWS);
        w->rel_rows = (int)(n < fit ? n : fit);
        ADD(rel_bias, (size_t)w->rel_rows * extent);
    }
    if (c->attn == ATTN_COMPRESSED || selects_entries) {
        ADD(entries, n * entry);
        ADD(entry_cos, n * (size_t)(c->rope.dim / 2));
        ADD(entry_sin, n * (size_t)(c->rope.dim / 2));
        ADD(part_lse, 2 * n * (size_t)c->n_heads);
    }
    if (c->q_lora) ADD(q_latent, n * (size_t)(c->q_raw ? 3 : 1) * (size_t)c->q_lora);
    if (c->kv_lora) {
        w->absorb_rows = 1; /* as many as some layer absorbs */
        for (int i = 0; i < c->n_layers; i++)
            while (w->absorb_rows < (int)n && !block_expands_mla(c, i, w->absorb_rows + 1)) w->absorb_rows++;
        ADD(absorbed_q, (size_t)w->absorb_rows * (size_t)(c->n_heads * (c->kv_lora + c->qk_rope)));
        ADD(absorbed_out, (size_t)w->absorb_rows * (size_t)(c->n_heads * c->kv_lora));
    }
    if (c->index_topk) {
        ADD(index_q, n * (size_t)(c->index_heads * c->index_dim));
        if (!c->index_by_group) ADD(index_weights, n * (size_t)c->index_heads);
        ADD(selected_keys, n * (size_t)config_index_entries(c));
        if (c->candidate_blocks) ADD(candidates, n * (size_t)c->candidate_blocks);
    }
}

static void list_experts(struct buffer_list *l, struct work *w, const struct config *c, size_t n) {
    const size_t topk = (size_t)c->topk, hidden = (size_t)c->hidden;
    if (c->n_experts) {
        ADD(router, n * (size_t)config_n_choices(c));
        ADD(ids, n * topk);
        ADD(weights, n * topk);
    }
    if (c->router_inter) ADD(router_mlp, 2 * n * (size_t)c->router_inter);
    if (config_needs_ffn_in(c)) ADD(ffn_in, n * hidden);
    if (c->moe_latent) {
        ADD(routed_in, n * (size_t)c->moe_latent);
        ADD(routed_sum, n * (size_t)c->moe_latent);
    }
    if (c->expert_out_norm) ADD(expert_rows, (size_t)block_experts_rows(c, (int)n) * topk * (size_t)c->moe_latent);
    if (c->n_idle_experts) ADD(idle, n);
    if (config_weighs_shared(c)) ADD(shared_weight, n);
}

/* Lists the buffers of w for `rows` rows, and sets w's derived numbers of rows. */
static void list_buffers(struct buffer_list *l, struct work *w, const struct config *c, int rows) {
    const size_t n = (size_t)rows;
    l->n = 0;
    ADD(x, n * (size_t)config_row_width(c));
    ADD(xn, n * (size_t)config_row_width(c));
    ADD(first_bad, 1);
    list_positions(l, w, c, n);
    list_streams(l, w, c, n);
    list_attention(l, w, c, n);
    list_experts(l, w, c, n);
}

size_t work_bytes(const struct config *c, int rows) {
    struct work w;
    struct buffer_list l;
    size_t sum = 0;
    list_buffers(&l, &w, c, rows);
    for (int i = 0; i < l.n; i++) sum += l.at[i].bytes;
    return sum;
}

int work_open(struct work *w, const struct config *c, int rows, void *(*alloc)(void *, size_t),
              void (*release)(void *, void *), void *ctx, struct error *e) {
    *w = (struct work){.config = c,
                       .rows = rows,
                       .alloc = alloc ? alloc : host_alloc,
                       .release = release ? release : host_release,
                       .ctx = ctx};
    struct buffer_list l;
    list_buffers(&l, w, c, rows);
    for (int i = 0; i < l.n; i++)
        if (!(*l.at[i].p = w->alloc(ctx, l.at[i].bytes))) {
            work_close(w);
            return error_set(e, ERR_MEMORY, "no memory for a workspace of %d tokens (%zu MB)", rows,
                             work_bytes(c, rows) >> 20);
        }
    return 0;
}

void work_close(struct work *w) {
    struct buffer_list l = {.n = 0};
    if (w->release) {
        list_buffers(&l, w, w->config, w->rows);
        add_buffer(&l, (void *)&w->latent, 0);
        add_buffer(&l, (void *)&w->expanded_kv, 0);
    }
    for (int i = l.n; i-- > 0;)
        if (*l.at[i].p) w->release(w->ctx, *l.at[i].p);
    *w = (struct work){0};
}

struct work work_slice(const struct config *c, const struct work *w, int row) {
    struct work r = *w;
    const size_t at = (size_t)row, half = (size_t)rope_row_floats(c), second = (size_t)(c->second_rope.dim / 2);
    r.x += at * (size_t)c->hidden, r.xn += at * (size_t)c->hidden;
    if (r.streams) r.streams += at * (size_t)(c->streams.n * c->hidden), r.post += at * (size_t)c->streams.n;
    r.pos += at, r.tokens += at;
    if (r.seq_length) r.seq_length += at;
    if (r.selected_keys) r.selected_keys += at * (size_t)config_index_entries(c);
    if (r.candidates) r.candidates += at * (size_t)c->candidate_blocks;
    r.cos += at * half, r.sin += at * half;
    if (r.second_cos) r.second_cos += at * second, r.second_sin += at * second;
    if (r.router) r.router += at * (size_t)config_n_choices(c);
    if (r.ffn_in) r.ffn_in += at * (size_t)c->hidden;
    if (r.kept) r.kept += at * (size_t)c->hidden;
    if (r.carried) r.carried += at * (size_t)c->carried;
    if (r.routed_in) r.routed_in += at * (size_t)c->moe_latent, r.routed_sum += at * (size_t)c->moe_latent;
    if (r.idle) r.idle += at;
    if (r.ids) r.ids += at * (size_t)c->topk, r.weights += at * (size_t)c->topk;
    if (r.shared_weight) r.shared_weight += at;
    return r;
}

void work_keep_grown(struct work *w, const struct work *slice) {
    w->latent = slice->latent, w->latent_floats = slice->latent_floats;
    w->expanded_kv = slice->expanded_kv, w->expanded_floats = slice->expanded_floats;
}
