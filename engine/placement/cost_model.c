/* The numbers of a model that the cost model needs: bytes and operations of its parts (struct cost_model). */
#include <math.h>
#include <string.h>

#include "base/ops.h"
#include "engine/placement/cost.h"

static double max_of(double a, double b) { return a > b ? a : b; }

enum cost_format cost_format_of(enum dtype t) {
    double bytes = (double)dtype_bytes(t, 256) / 256;
    if (bytes > 2.5) return COST_F32;
    if (bytes > 1.5) return COST_16BIT;
    return bytes > 0.75 ? COST_8BIT : COST_4BIT;
}
/* Bytes of n weights. FP8 adds a float32 scale per block; block formats contain theirs. */
static double weight_bytes(const struct config *c, enum dtype t, double n) {
    double b = n * (double)dtype_bytes(t, 256) / 256;
    return t == DT_E4M3 && c->block_rows > 0 && c->block_cols > 0 ? b + 4 * n / ((double)c->block_rows * c->block_cols)
                                                                  : b;
}

/* DeepSeek-V4 and V4.1: averages over layers. A query sees its window and some of the multi-token keys, either selected
 * or all. Sets *attn_weights and *row: weights of the attention block and numbers of a KV row, per layer. */
static void compressed_attention(struct cost_model *q, const struct config *c, enum dtype kv, double *attn_weights,
                                 double *row) {
    double hidden = c->hidden, heads = c->n_heads, dim = c->head_dim, layers = c->n_layers, wide = heads * dim,
           index = 0, entries = 0, extra = 0, most = 0;
    for (int i = 0; i < c->n_layers; i++) {
        const struct layer_config *l = &c->layer[i];
        most += l->window / layers;
        const bool makes_keys = l->ratio && l->passes_kv != KV_TAKEN;
        if (makes_keys)
            entries += 1.0 / l->ratio / layers, extra += (l->overlap                               ? 4
                                                          : c->index_from_entries && l->ratio == 1 ? 1
                                                                                                   : 2) *
                                                         dim * hidden / layers;
        if (!config_selects_entries(c, i)) continue;
        most += c->index_topk / layers;
        if (l->index != INDEX_OWN) continue;
        index += 1.0 / l->ratio / layers;
        if (makes_keys) extra += c->index_dim * (c->index_from_entries ? dim : 4 * hidden) / layers;
        extra += c->index_heads * (c->index_dim * (double)c->q_lora + hidden) / layers;
    }
    double low = (double)c->o_groups * c->o_lora;
    *attn_weights = c->q_lora * (hidden + wide) + hidden * dim + low * (wide / c->o_groups + hidden) + extra;
    *row = dim * (1 + entries);
    q->max_keys = most;
    q->index_bytes = index * c->index_dim * (double)dtype_bytes(kv, 256) / 256;
    q->index_flops = index * 2 * c->index_heads * c->index_dim;
    q->elem_bytes = 4 * hidden * (2 + 4.0 * c->streams.n); /* each block reads and writes the streams */
}

/* Weights of a projection of this rank; 0: one matrix. */
static double low_rank(double in, double out, int rank) { return rank ? rank * (in + out) : in * out; }

/* Weights of a layer's mixer with a state. */
static double mixer_weights(const struct config *c, int layer) {
    const struct delta_config *d = &c->delta;
    const struct mamba_config *m = &c->mamba;
    const struct kda_config *k = &c->kda;
    const double hidden = c->hidden, keys = (double)d->k_heads * d->k_dim, values = (double)d->v_heads * d->v_dim,
                 inner = (double)m->heads * m->head_dim, width = (double)k->heads * k->dim;
    switch (c->layer[layer].mixer) {
    case MIXER_DELTA: return hidden * (2 * keys + 3 * values + 2 * d->v_heads);
    case MIXER_CONV: return hidden * 4 * hidden;
    case MIXER_LIGHTNING: return hidden * 5 * c->lightning.heads * c->lightning.dim;
    case MIXER_MAMBA2: return hidden * (3 * inner + 2.0 * m->groups * m->state + m->heads);
    case MIXER_KDA:
        return hidden * (4 * width + k->heads) + low_rank(hidden, width, k->rank) +
               low_rank(hidden, width, k->gate_rank);
    case MIXER_MAMBA1: return hidden * 3 * inner + inner * 2.0 * (m->state + m->rank);
    default: return 0;
    }
}

void cost_model_of(struct cost_model *q, const struct config *c, enum dtype dense, enum dtype experts, enum dtype kv) {
    double hidden = c->hidden, heads = 0, kv_heads = 0, dim = 0, v = 0, latent = 0, rope = 0;
    double inter = 0;
    const double layers = c->n_layers; /* layers differ: averages */
    for (int i = 0; i < c->n_layers; i++) {
        heads += config_heads(c, i) / layers, kv_heads += config_kv_heads(c, i) / layers;
        dim += config_head_dim(c, i) / layers, v += config_v_dim(c, i) / layers;
        inter += config_dense_inter(c, i);
        const struct mla_sizes sizes = config_mla(c, i);
        latent += sizes.kv_lora, rope += sizes.rope;
    }
    latent /= layers, rope /= layers; /* exact where all are equal */
    bool mla = c->kv_lora;
    /* matrices of an FFN; around experts in a latent space */
    const double mats = c->no_up ? 2 : 3, projected = 2.0 * hidden * c->moe_latent;
    double attended = 1, expert = mats * c->moe_inter * config_routed_width(c),
           shared = mats * c->shared_inter * hidden + projected, ffn = mats * (inter / layers) * hidden, ffns = 0,
           attn_weights, router = hidden * config_n_choices(c);
    *q = (struct cost_model){.layers = c->n_layers,
                             .n_experts = c->n_experts,
                             .topk = c->topk,
                             .experts = cost_format_of(experts),
                             .dense = cost_format_of(dense),
                             .kv = cost_format_of(kv)};
    for (int i = 0; i < c->n_layers; i++)
        q->dense_layers += !c->layer[i].moe, ffns += !c->layer[i].moe && !c->layer[i].no_ffn;
    if (q->dense_layers) ffn *= ffns / q->dense_layers; /* on average: some layers have none */
    if (mla) {
        double query = c->q_lora ? c->q_lora * (hidden + heads * dim) : hidden * heads * dim,
               expand = latent * heads * (dim - rope + v);
        attn_weights = query + (latent + rope) * hidden + expand + hidden * heads * v;
        q->pair_flops = 2 * heads * (2 * latent + rope);
        q->expanded_pair_flops = 2 * heads * (dim + v);
        q->expand_flops = 2 * expand;
    } else {
        const double query = c->q_lora ? c->q_lora * (hidden + heads * dim) : hidden * heads * dim;
        attn_weights = query + hidden * (heads * v + kv_heads * (dim + v));
        q->pair_flops = 2 * heads * (dim + v);
    }
    if (c->attn_gate == ATTN_GATE_ELEMENT || c->attn_gate == ATTN_GATE_HEAD)
        attn_weights += hidden * heads * (c->attn_gate == ATTN_GATE_HEAD ? 1 : v);
    /* the output's norm, its sum with the stream, and its clearing */
    if (c->streams.is_plain) q->elem_bytes = 4 * 8 * hidden;
    /* mixed layers: averages. A recurrent state costs as much as a few keys, whatever the context */
    if (config_has_states(c) || config_has_single_blocks(c)) {
        double own = 0, some = 0;
        for (int i = 0; i < c->n_layers; i++)
            own += mixer_weights(c, i) / c->n_layers,
                some += (c->layer[i].mixer != MIXER_ATTENTION) / (double)c->n_layers;
        attn_weights =
            own + (1 - some) * (attn_weights + (c->attn_gate == ATTN_GATE_IN_QUERY ? hidden * heads * dim : 0));
        attended = 1 - some;
        q->pair_flops *= attended;
    }
    if (c->attn == ATTN_DSA) { /* averages over layers: a layer that reuses a selection has no indexer */
        double own = 0;
        for (int i = 0; i < c->n_layers; i++) own += !c->layer[i].mixer && c->layer[i].index == INDEX_OWN;
        own /= c->n_layers;
        const double block = c->index_block ? c->index_block : 1;
        q->max_keys = c->index_topk * block;
        q->index_bytes = own / block * c->index_dim * (double)dtype_bytes(kv, 256) / 256;
        q->index_flops = own / block * 2.0 * c->index_heads * c->index_dim;
        attn_weights += own * (c->index_heads * (c->index_dim * (double)c->q_lora + hidden) +
                               (c->index_block ? 2 : 1) * c->index_dim * hidden);
    }
    double row = mla ? latent + rope : kv_heads * (dim + v);
    row *= attended;
    if (c->attn == ATTN_COMPRESSED) compressed_attention(q, c, kv, &attn_weights, &row);
    q->kv_row_bytes = row * (double)dtype_bytes(kv, 256) / 256 + (kv == DT_E4M3 ? 4.0 * kv_heads * (mla ? 1 : 2) : 0);
    for (int i = 0; i < c->n_layers; i++) /* COMPRESSED: they have a window of their own */
        q->kv_taken_layers += c->attn != ATTN_COMPRESSED && c->layer[i].passes_kv == KV_TAKEN;
    q->expert_bytes = weight_bytes(c, experts, expert), q->expert_flops = 2 * expert;
    q->shared_bytes = weight_bytes(c, dense, shared), q->shared_flops = 2 * shared;
    q->ffn_bytes = weight_bytes(c, dense, ffn), q->ffn_flops = 2 * ffn;
    q->attn_block_bytes = weight_bytes(c, dense, attn_weights) + 2 * router,
    /* routers are stored in 16 bits */
        q->attn_block_flops = 2 * (attn_weights + router);
    q->head_bytes = 2.0 * hidden * c->vocab, q->head_flops = 2.0 * hidden * c->vocab; /* so are LM heads */
    q->row_bytes = 4 * hidden, q->query_bytes = 4 * heads * max_of(dim, v);
    const bool low_q = c->attn == ATTN_GQA && c->q_lora; /* another product and a norm */
    q->n_linear_ops = mla ? (c->q_lora ? 7 : 6) : 5 + low_q;
    q->n_elem_ops = mla ? 9 : (c->qk_norm ? 9 : 7) + low_q;
    /* products of the normed row; its norm with the sum before it, norms, rotations and KV rows, KV rows for the host
     * with the next norm, the router */
    q->n_joined_linear_ops = mla ? (c->q_lora ? 6 : 5) : 3 + low_q;
    q->n_joined_elem_ops = (mla && c->q_lora) || low_q ? 5 : 4;
    q->row_numbers = max_of(hidden, heads * (mla ? rope : dim));
    /* rows in, in and out; queries and results between operations */
    q->elem_bytes += 4 * (3.0 * q->n_elem_ops * hidden + 4 * heads * (dim + v));
}
