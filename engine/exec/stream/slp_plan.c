/* Plans device memory for a prompt. Pure. */
#include "engine/exec/stream/slp.h"

static const size_t dense_budget = (size_t)1 << 30;

const char *slp_why_unsplittable(const struct config *c) {
    return c->short_taps ? "its attention blocks' outputs are convolved along the prompt, so no device can begin in its middle" : NULL;
}

size_t slp_partial_floats(const struct config *c, int chunk) {
    size_t row = (size_t)c->n_heads * (size_t)c->v_dim, rows = chunk < 1024 ? (size_t)chunk : 1024, least = (size_t)c->n_heads * (size_t)c->kv_lora;
    return row * rows > least ? row * rows : least;
}

size_t slp_selection_bytes(const struct config *c) {
    for (int i = 0; i < c->n_layers; i++)
        if (c->attn == ATTN_DSA && c->layer[i].index == INDEX_PREVIOUS) return (size_t)c->index_topk * sizeof(int32_t);
    return 0;
}

/* Memory that does not depend on the ring: residual stream and normed input of all rows, two layers of KV, selections unsorted and sorted,
 * a chunk's workspace with expanded keys and values. */
static size_t fixed_bytes(const struct config *c, const struct slp_need *d, int chunk, int dense) {
    size_t n = (size_t)d->n_rows, all = (size_t)d->n_tokens, hidden = (size_t)c->hidden * 4, sum = n * hidden + all * hidden;
    if (d->n_tokens > d->n_rows) /* partial sums of all ranks' tokens; partial attention */
        sum += all * hidden + slp_partial_floats(c, chunk) * 4 + (size_t)chunk * (size_t)c->n_heads * 8;
    sum += all * (size_t)c->topk * 16 + n * (size_t)(c->rope.dim + c->second_rope.dim) * 4 + n * (16 + slp_selection_bytes(c)) + all * 4;
    sum += n * (size_t)c->streams.n * (hidden + 4);
    sum += n * hidden * (size_t)(config_needs_ffn_in(c) + config_keeps_rows(c)) + 2 * all * (size_t)c->moe_latent * 4 + n * (size_t)c->carried * 4;
    if (d->n_tokens > d->n_rows && block_makes_queries_first(c, 0)) sum += n * (size_t)(c->n_heads * c->head_dim) * 4;
    sum += 2 * ((size_t)d->n_positions * d->kv_row_bytes + d->state_bytes) + work_bytes(c, chunk) + (size_t)dense * d->dense_bytes + d->reserve;
    return sum + block_grown_bytes(c, d->n_positions) + (2u << 20); /* rounding of some forty allocations */
}

enum { CHUNK_MOST = 8192, CHUNK_GOOD = 2048 };
static int dense_slots(const struct slp_need *d) {
    const size_t fit = dense_budget / (d->dense_bytes ? d->dense_bytes : 1);
    return fit < 2 ? 2 : fit > 8 ? 8 : (int)fit;
}
size_t slp_plan_bytes(const struct config *c, const struct slp_need *d, int slots) {
    return fixed_bytes(c, d, d->n_rows < CHUNK_GOOD ? d->n_rows : CHUNK_GOOD, dense_slots(d)) + (size_t)slots * d->expert_bytes;
}

int slp_plan(struct slp_plan *p, const struct config *c, const struct slp_need *d, size_t have, struct error *e) {
    size_t need = 0;
    *p = (struct slp_plan){.dense_slots = dense_slots(d)};
    int wanted = d->n_experts < 2 ? 2 : d->n_experts, last = d->chunk ? d->chunk : 64;
    if (d->ring) wanted = d->ring;
    /* A ring of eight keeps the bus busy through uneven groups. More is better, but not at the price of tiny chunks. */
    for (int least = wanted < 8 ? wanted : 8; least >= 2; least = least > 2 ? 2 : 0) {
        if (d->ring) least = wanted;
        for (int chunk = d->chunk ? d->chunk : CHUNK_MOST; chunk >= last; chunk /= 2) {
            int rows = chunk < d->n_rows ? chunk : d->n_rows > 0 ? d->n_rows : 1;
            size_t fixed = fixed_bytes(c, d, rows, p->dense_slots);
            need = fixed + (size_t)least * d->expert_bytes;
            if (need > have) continue;
            size_t ring = d->expert_bytes ? (have - fixed) / d->expert_bytes : (size_t)wanted;
            p->chunk_rows = rows;
            p->ring_slots = ring > (size_t)wanted ? wanted : (int)ring;
            p->bytes = fixed + (size_t)p->ring_slots * d->expert_bytes;
            p->own_bytes = p->bytes - d->reserve;
            return 0;
        }
        if (d->ring) break;
    }
    p->bytes = need;
    return error_set(e, ERR_MEMORY, "%d tokens need %zu MB on the device with the smallest ring, %zu MB are free", d->n_rows, need >> 20, have >> 20);
}

bool slp_selects_few(const struct config *c, int n) {
    double untouched = 1;
    for (int i = 0; i < n && untouched > 0.25; i++) untouched *= 1 - (double)c->topk / c->n_experts;
    return c->n_experts > 0 && untouched > 0.25;
}
