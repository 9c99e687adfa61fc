/* Plans device memory for a prompt, and merges ranges into copies. Pure. */
#include <stdlib.h>

#include "engine/pipe/pipe.h"

static const size_t dense_budget = (size_t)1 << 30;

size_t pipe_part_floats(const struct config *c, int chunk) {
    size_t row = (size_t)c->n_heads * (size_t)c->v_dim, rows = chunk < 1024 ? (size_t)chunk : 1024, least = (size_t)c->n_heads * (size_t)c->kv_lora;
    return row * rows > least ? row * rows : least;
}

size_t pipe_chosen_bytes(const struct config *c) {
    for (int i = 0; i < c->n_layers; i++)
        if (c->attn == ATTN_DSA && c->layer[i].index == INDEX_BEFORE) return (size_t)c->index_topk * sizeof(int32_t);
    return 0;
}

/* Memory that does not depend on the ring: residual stream and normed input of all rows, two layers of KV, selections unsorted and sorted,
 * a chunk's workspace with expanded keys and values. */
static size_t fixed_bytes(const struct config *c, const struct pipe_need *d, int chunk, int dense) {
    size_t n = (size_t)d->n, all = (size_t)d->all, hidden = (size_t)c->hidden * 4, sum = n * hidden + all * hidden;
    if (d->all > d->n) /* partial sums of all ranks' tokens; partial attention */
        sum += all * hidden + pipe_part_floats(c, chunk) * 4 + (size_t)chunk * (size_t)c->n_heads * 8;
    sum += all * (size_t)c->topk * 16 + n * (size_t)(c->rope.dim + c->far_rope.dim) * 4 + n * (16 + pipe_chosen_bytes(c)) + all * 4;
    sum += n * (size_t)c->streams.n * (hidden + 4);
    sum += 2 * ((size_t)d->total * d->kv_row_bytes + d->state_bytes) + work_bytes(c, chunk) + (size_t)dense * d->dense_bytes + d->reserve;
    return sum + block_grown_bytes(c, d->total) + (2u << 20); /* rounding of some forty allocations */
}

int pipe_plan(struct pipe_plan *p, const struct config *c, const struct pipe_need *d, size_t have, struct error *e) {
    size_t dense = dense_budget / (d->dense_bytes ? d->dense_bytes : 1), need = 0;
    *p = (struct pipe_plan){.dense = dense < 2 ? 2 : dense > 8 ? 8 : (int)dense};
    int wanted = d->experts < 2 ? 2 : d->experts, last = d->chunk ? d->chunk : 64;
    if (d->ring) wanted = d->ring;
    /* A ring of eight keeps the bus busy through uneven groups. More is better, but not at the price of tiny chunks. */
    for (int least = wanted < 8 ? wanted : 8; least >= 2; least = least > 2 ? 2 : 0) {
        if (d->ring) least = wanted;
        for (int chunk = d->chunk ? d->chunk : 8192; chunk >= last; chunk /= 2) {
            int rows = chunk < d->n ? chunk : d->n > 0 ? d->n : 1;
            size_t fixed = fixed_bytes(c, d, rows, p->dense);
            need = fixed + (size_t)least * d->expert_bytes;
            if (need > have) continue;
            size_t ring = d->expert_bytes ? (have - fixed) / d->expert_bytes : (size_t)wanted;
            p->chunk = rows;
            p->ring = ring > (size_t)wanted ? wanted : (int)ring;
            p->bytes = fixed + (size_t)p->ring * d->expert_bytes;
            p->own = p->bytes - d->reserve;
            return 0;
        }
        if (d->ring) break;
    }
    p->bytes = need;
    return error_set(e, ERR_MEMORY, "%d tokens need %zu MB on the device with the smallest ring, %zu MB are free", d->n, need >> 20, have >> 20);
}

bool pipe_few(const struct config *c, int n) {
    double untouched = 1;
    for (int i = 0; i < n && untouched > 0.25; i++) untouched *= 1 - (double)c->topk / c->n_experts;
    return c->n_experts > 0 && untouched > 0.25;
}

static int by_host(const void *a, const void *b) {
    const struct pipe_range *x = a, *y = b;
    return (x->host > y->host) - (x->host < y->host);
}

int pipe_runs(struct pipe_range *r, int n, struct pipe_run *runs, size_t *bytes) {
    int k = 0;
    size_t at = 0;
    qsort(r, (size_t)n, sizeof *r, by_host);
    for (int i = 0; i < n; i++) {
        const char *end = r[i].host + r[i].bytes;
        if (!k || r[i].row || runs[k - 1].row || r[i].host > runs[k - 1].host + runs[k - 1].bytes) {
            at = ((at + 255) & ~(size_t)255) + (size_t)r[i].host % 256; /* same alignment as on the host, for aligned loads */
            runs[k++] = (struct pipe_run){.host = r[i].host, .bytes = r[i].bytes, .at = at, .row = r[i].row, .pitch = r[i].pitch};
        } else if (end > runs[k - 1].host + runs[k - 1].bytes) {
            runs[k - 1].bytes = (size_t)(end - runs[k - 1].host);
        }
        r[i].at = runs[k - 1].at + (size_t)(r[i].host - runs[k - 1].host);
        at = runs[k - 1].at + runs[k - 1].bytes;
    }
    *bytes = at;
    return k;
}
