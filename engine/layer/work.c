#include "engine/base/mem.h"
#include "engine/layer/block.h"

static void *host_alloc(void *ctx, size_t size) { return mem_aligned(64, size); }
static void host_release(void *ctx, void *p) { mem_free(p); }

/* The one list of buffers, so that taking, counting and releasing them cannot disagree. */
enum { max_parts = 24 };
struct part {
    void **p;
    size_t bytes;
};
static int parts(struct work *w, const struct config *c, int rows, struct part *out) {
    size_t n = (size_t)rows, f = sizeof(float), cached = 0;
    int k = 0, absorb = rows;
    for (int i = 0; i < c->n_layers; i++) cached = kv_row_bytes(c, i, DT_F32) > cached ? kv_row_bytes(c, i, DT_F32) : cached;
    while (c->kv_lora && absorb > 1 && block_expands(c, absorb)) absorb--;
    out[k++] = (struct part){(void **)&w->x, n * (size_t)c->hidden * f};
    out[k++] = (struct part){(void **)&w->xn, n * (size_t)c->hidden * f};
    out[k++] = (struct part){(void **)&w->q, n * (size_t)(c->n_heads * c->head_dim) * f};
    out[k++] = (struct part){(void **)&w->kv, n * cached};
    out[k++] = (struct part){(void **)&w->att, n * (size_t)(c->n_heads * c->v_dim) * f};
    out[k++] = (struct part){(void **)&w->cos, n * (size_t)(c->rope.dim / 2) * f};
    out[k++] = (struct part){(void **)&w->sin, n * (size_t)(c->rope.dim / 2) * f};
    out[k++] = (struct part){(void **)&w->inv_freq, (size_t)(c->rope.dim / 2) * f};
    out[k++] = (struct part){(void **)&w->pos, n * sizeof(int32_t)};
    out[k++] = (struct part){(void **)&w->tokens, n * sizeof(int32_t)};
    out[k++] = (struct part){(void **)&w->bad, sizeof(int)};
    if (c->q_lora) out[k++] = (struct part){(void **)&w->low, n * (size_t)c->q_lora * f};
    if (c->kv_lora) {
        out[k++] = (struct part){(void **)&w->qc, (size_t)absorb * (size_t)(c->n_heads * (c->kv_lora + c->qk_rope)) * f};
        out[k++] = (struct part){(void **)&w->oc, (size_t)absorb * (size_t)(c->n_heads * c->kv_lora) * f};
    }
    if (c->n_experts) {
        out[k++] = (struct part){(void **)&w->router, n * (size_t)c->n_experts * f};
        out[k++] = (struct part){(void **)&w->ids, n * (size_t)c->topk * sizeof(int32_t)};
        out[k++] = (struct part){(void **)&w->weights, n * (size_t)c->topk * f};
    }
    if (c->shared_gate) out[k++] = (struct part){(void **)&w->shared_weight, n * f};
    return k;
}

size_t work_bytes(const struct config *c, int rows) {
    struct work w;
    struct part p[max_parts];
    size_t sum = 0;
    for (int i = parts(&w, c, rows, p); i-- > 0;) sum += p[i].bytes;
    return sum;
}

int work_open(struct work *w, const struct config *c, int rows, void *(*alloc)(void *, size_t), void (*release)(void *, void *), void *ctx, struct error *e) {
    *w = (struct work){.rows = rows, .alloc = alloc ? alloc : host_alloc, .release = release ? release : host_release, .ctx = ctx};
    struct part p[max_parts];
    int n = parts(w, c, rows, p);
    for (int i = 0; i < n; i++)
        if (!(*p[i].p = w->alloc(ctx, p[i].bytes))) {
            work_close(w);
            return error_set(e, ERR_MEMORY, "no memory for a workspace of %d tokens (%zu MB)", rows, work_bytes(c, rows) >> 20);
        }
    return 0;
}

void work_close(struct work *w) {
    void *all[] = {w->x,   w->xn,  w->q,   w->kv,     w->low,      w->qc, w->oc, w->att, w->latent, w->ek, w->router, w->ids, w->weights, w->shared_weight,
                   w->cos, w->sin, w->pos, w->tokens, w->inv_freq, w->bad};
    for (size_t i = 0; i < sizeof all / sizeof *all && w->release; i++)
        if (all[i]) w->release(w->ctx, all[i]);
    *w = (struct work){0};
}
