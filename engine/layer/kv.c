#include "engine/base/mem.h"
#include "engine/layer/attention.h"

static size_t page_up(size_t n) { return (n + 4095) & ~(size_t)4095; }

int kv_planes(const struct config *c, int layer, struct cache_desc out[CACHE_PLANES]) { return attention_of(c, layer)->cache(c, out); }

size_t kv_row_bytes(const struct config *c, int layer, enum dtype dtype) {
    struct cache_desc d[CACHE_PLANES];
    size_t sum = 0;
    for (int i = kv_planes(c, layer, d); i-- > 0;) sum += (size_t)d[i].heads * (dtype_bytes(dtype, (size_t)d[i].dim) + (dtype == DT_E4M3 ? sizeof(float) : 0));
    return sum;
}
size_t kv_token_bytes(const struct config *c, enum dtype dtype) {
    size_t sum = 0;
    for (int i = 0; i < c->n_layers; i++) sum += kv_row_bytes(c, i, dtype);
    return sum;
}

/* Lays the planes of all layers one behind the other from base on, NULL: counts only. Returns their size. */
static size_t lay(struct kv *kv, const struct config *c, enum dtype dtype, uint8_t *base) {
    size_t at = 0;
    for (int i = 0; i < c->n_layers; i++) {
        struct cache_desc d[CACHE_PLANES];
        int n = kv_planes(c, i, d);
        for (int k = 0; k < n; k++) {
            size_t rows = (size_t)kv->capacity * (size_t)d[k].heads, data = page_up(rows * dtype_bytes(dtype, (size_t)d[k].dim));
            size_t scale = dtype == DT_E4M3 ? page_up(rows * sizeof(float)) : 0;
            if (base)
                kv->v[i] = (struct kv_plane){
                    .data = base + at, .scale = scale ? (float *)(base + at + data) : NULL, .heads = d[k].heads, .dim = d[k].dim, .dtype = (uint8_t)dtype};
            if (base && !k) kv->k[i] = kv->v[i];
            at += data + scale;
        }
    }
    return at;
}

int kv_open(struct kv *kv, const struct config *c, int capacity, enum dtype dtype, struct error *e) {
    *kv = (struct kv){.n_layers = c->n_layers, .capacity = capacity};
    kv->size = lay(kv, c, dtype, NULL);
    kv->pages = mem_pages(kv->size, 0);
    kv->k = mem_calloc(2 * (size_t)c->n_layers, sizeof *kv->k);
    if (!kv->pages || !kv->k) {
        size_t size = kv->size;
        kv_close(kv);
        return error_set(e, ERR_MEMORY, "no address space for a KV cache of %d tokens (%zu MB); take a smaller context with -c", capacity, size >> 20);
    }
    kv->v = kv->k + c->n_layers;
    lay(kv, c, dtype, kv->pages);
    return 0;
}

void kv_close(struct kv *kv) {
    mem_pages_free(kv->pages, kv->size);
    mem_free(kv->k);
    *kv = (struct kv){0};
}
