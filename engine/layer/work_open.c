#include "engine/layer/work_open.h"

#include <string.h>

/* Workspaces: the sizes of their buffers, which work_rows.h lists, and views of some of their rows. */
#include "base/mem.h"
#include "engine/layer/block.h"
#include "engine/layer/expert_io.h"
#include "engine/layer/kv_planes.h"
#include "engine/model/rope.h"

static void *host_alloc(void *ctx, size_t size) { return mem_aligned(64, size); }
static void host_release(void *ctx, void *p) { mem_free(p); }

static size_t max_of(size_t a, size_t b) { return a > b ? a : b; }

/* --- Numbers per token ------------------------------------------------------------------------ */

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

static size_t norm_gate_floats(const struct config *c) {
    const size_t latent = c->gates_all_norms ? max_of((size_t)c->q_lora, (size_t)c->kv_lora) : 0;
    return c->norm_gate_rank ? (size_t)c->norm_gate_rank + max_of((size_t)c->hidden, latent) : 0;
}
static size_t mix_floats(const struct config *c) {
    const size_t s = (size_t)c->streams.n;
    return s && !c->streams.block_layers ? max_of((2 + s) * s, (size_t)c->streams.rank) : 0;
}
/* Of embeddings of n-grams: columns of all hashes together, and hashes, where they are most. A model has n-grams of one
 * kind. */
static size_t ngram_floats(const struct config *c) {
    size_t most = (size_t)c->input_ngrams.dim;
    for (int i = 0; i < CONFIG_NGRAMS_MOST; i++)
        if (c->ngram[i].size) most = max_of(most, (size_t)c->ngram[i].dim);
    return most;
}
static size_t ngram_hashes(const struct config *c) {
    size_t most = (size_t)config_input_hashes(c);
    for (int i = 0; i < CONFIG_NGRAMS_MOST; i++)
        if (c->ngram[i].size) most = max_of(most, (size_t)config_ngram_hashes(&c->ngram[i]));
    return most;
}
static int stream_gate_floats(const struct config *c) {
    return c->streams.is_gated || (ngram_floats(c) && !c->input_ngrams.size) ? c->streams.n * c->hidden : 0;
}
static bool selects_entries(const struct config *c) { return c->index_block && !c->index_by_group; }
static size_t key_floats(const struct config *c) { return max_of((size_t)c->head_dim, (size_t)c->index_dim); }
static size_t entry_floats(const struct config *c) { /* one entry of a multi-token key */
    return c->attn == ATTN_COMPRESSED || selects_entries(c) ? key_floats(c) : 0;
}
static size_t cached_floats(const struct config *c) {
    size_t most = 0;
    for (int i = 0; i < c->n_layers; i++) most = max_of(most, kv_seen_row_bytes(c, i, DT_F32));
    return (most + sizeof(float) - 1) / sizeof(float);
}
static size_t heads_floats(const struct config *c) {
    return max_of((size_t)(c->n_heads * c->v_dim), mixer_floats(c).att);
}
static size_t att_floats(const struct config *c) {
    return c->attn == ATTN_COMPRESSED ? max_of(heads_floats(c), (size_t)(c->o_groups * c->o_lora)) : heads_floats(c);
}
static size_t fused_floats(const struct config *c) {
    size_t most = max_of(gate_floats(c), mixer_floats(c).fused);
    /* inputs of multi-token keys, then results of the window */
    if (c->attn == ATTN_COMPRESSED) most = max_of(heads_floats(c), 4 * key_floats(c));
    if (selects_entries(c)) most = max_of(most, 2 * (size_t)c->index_dim);
    return c->index_from_input ? max_of(most, (size_t)c->hidden) : most;
}
static size_t rel_bias_floats(const struct config *c) {
    size_t most = 0;
    for (int i = 0; i < c->n_layers; i++) most = max_of(most, (size_t)c->n_heads * (size_t)c->layer[i].extent);
    return most;
}

/* --- Tokens with room, for a batch of n ------------------------------------------------------- */

static size_t one_row(const struct config *c, size_t n) { return 1; }
static size_t fope_rows(const struct config *c, size_t n) { return FOPE_ROWS; }
static size_t ngram_batch(const struct config *c, size_t n) { return c->input_ngrams.size ? BATCH_INVARIANT_ROWS : n; }
/* as many as fit, but those of a small batch together */
static size_t rel_rows(const struct config *c, size_t n) {
    enum { REL_BIAS_BYTES = 64 << 20 };
    const size_t one = rel_bias_floats(c), fit = one ? REL_BIAS_BYTES / (one * sizeof(float)) : 0;
    return !one ? 0 : n < max_of(fit, BATCH_INVARIANT_ROWS) ? n : max_of(fit, BATCH_INVARIANT_ROWS);
}
/* as many as some layer absorbs */
static size_t absorb_rows(const struct config *c, size_t n) {
    size_t rows = c->kv_lora > 0;
    for (int i = 0; i < c->n_layers && rows; i++)
        while (rows < n && !block_expands_mla(c, i, (int)rows + 1)) rows++;
    return rows;
}
static size_t normed_rows(const struct config *c, size_t n) { return (size_t)expert_io_rows(c, (int)n); }

/* --- What a layer reads of the layers before -------------------------------------------------- */

static bool reads_stream(const struct config *c, int layer) { return true; }
static bool reads_rows(const struct config *c, int layer) { return layer < c->n_layers; }
static bool reads_kept(const struct config *c, int layer) {
    return layer < c->n_layers && (c->layer[layer].routes_kept || c->parallel_dense);
}
static bool reads_selection(const struct config *c, int layer) {
    return layer < c->n_layers && config_reuses_selection(c, layer);
}

#define ROW(type, field, life, width, ...) \
    static size_t field##_width(const struct config *c) { return (size_t)(width); }
#include "engine/layer/work_rows.h"
#undef ROW
#define ROW(type, field, life, width, ...) \
    {offsetof(struct work, field), sizeof(type), life, field##_width, __VA_ARGS__},
const struct work_row work_rows[] = {
#include "engine/layer/work_rows.h"
    {0}};
#undef ROW

/* --- Workspaces ------------------------------------------------------------------------------- */

bool work_is_passed_on(const struct work_row *k, const struct config *c) {
    bool is_read = false;
    for (int l = 1; l < c->n_layers && k->reads && !is_read; l++) is_read = k->reads(c, l);
    return is_read && k->width(c);
}

size_t work_row_room(const struct work_row *k, const struct config *c, int n) {
    const size_t rows = k->rows ? k->rows(c, (size_t)n) : (size_t)n, width = k->width(c);
    return rows * (k->room ? max_of(width, (size_t)k->room(c)) : width) * k->element;
}
size_t work_bytes(const struct config *c, int rows) {
    size_t sum = 0;
    for (const struct work_row *k = work_rows; k->width; k++) sum += work_row_room(k, c, rows);
    return sum;
}

/* Allocates the buffers of a workspace whose memory is set. */
static int open_buffers(struct work *w, const struct config *c, int rows, struct error *e) {
    w->config = c, w->rows = rows;
    w->absorb_rows = (int)absorb_rows(c, (size_t)rows), w->rel_rows = (int)rel_rows(c, (size_t)rows);
    for (const struct work_row *k = work_rows; k->width; k++) {
        const size_t bytes = work_row_room(k, c, rows);
        if (!bytes || (*work_field(w, k) = work_alloc(w, bytes))) continue;
        work_close(w);
        return error_set(e, ERR_MEMORY, "no memory for a workspace of %d tokens (%zu MB)", rows,
                         work_bytes(c, rows) >> 20);
    }
    return 0;
}
int work_open(struct work *w, const struct config *c, int rows, void *(*alloc)(void *, size_t),
              void (*release)(void *, void *), void *ctx, struct error *e) {
    *w = (struct work){.alloc = alloc ? alloc : host_alloc, .release = release ? release : host_release, .ctx = ctx};
    return open_buffers(w, c, rows, e);
}
int work_open_device(struct work *w, const struct config *c, int rows, struct gpu *g, struct gpu_stream *const *stream,
                     struct error *e) {
    *w = (struct work){.g = g, .stream = stream};
    return open_buffers(w, c, rows, e);
}

void work_close(struct work *w) {
    for (const struct work_row *k = work_rows; k->width; k++)
        if (*work_field(w, k) && (w->g || w->release)) work_release(w, *work_field(w, k));
    *w = (struct work){0};
}

void work_point(const struct work_row *k, const struct config *c, struct work *to, const struct work *from,
                size_t row) {
    char *at = *work_field(from, k);
    if (at) *work_field(to, k) = at + row * work_row_bytes(k, c);
}
struct work work_slice(const struct config *c, const struct work *w, int row) {
    struct work r = *w;
    for (const struct work_row *k = work_rows; k->width; k++)
        if (k->life >= WORK_CALLS) work_point(k, c, &r, w, (size_t)row);
    return r;
}

static bool outlives_layer(const struct work_row *k) {
    return k->life == WORK_INPUT || k->life == WORK_LAYER || k->reads;
}
size_t work_saved_bytes(const struct config *c, int n) {
    size_t sum = 0;
    for (const struct work_row *k = work_rows; k->width; k++)
        if (outlives_layer(k)) sum += (size_t)n * work_row_bytes(k, c);
    return sum;
}
void work_save(const struct work *w, int n, void *to) {
    char *at = to;
    for (const struct work_row *k = work_rows; k->width; k++) {
        const size_t bytes = outlives_layer(k) ? (size_t)n * work_row_bytes(k, w->config) : 0;
        if (bytes) memcpy(at, *work_field(w, k), bytes);
        at += bytes;
    }
}
void work_restore(struct work *w, int n, const void *from) {
    const char *at = from;
    for (const struct work_row *k = work_rows; k->width; k++) {
        const size_t bytes = outlives_layer(k) ? (size_t)n * work_row_bytes(k, w->config) : 0;
        if (bytes) memcpy(*work_field(w, k), at, bytes);
        at += bytes;
    }
}

void work_keep_grown(struct work *w, const struct work *slice) {
    w->latent = slice->latent, w->latent_floats = slice->latent_floats;
    w->expanded_kv = slice->expanded_kv, w->expanded_floats = slice->expanded_floats;
}
