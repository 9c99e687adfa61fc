#include "engine/layer/kv_planes.h"

#include "engine/layer/attention_kinds.h"
#include "engine/layer/gated_streams.h"

int kv_planes(const struct config *c, int layer, struct cache_desc out[CACHE_PLANES]) {
    const int n = attention_of(c, layer)->cache_planes(c, layer, out);
    if (c->layer[layer].ngram) out[n] = gated_streams_ngram_plane(c, layer);
    return n + (c->layer[layer].ngram > 0);
}

int kv_plane_owner(const struct config *c, int first, int layer, const struct cache_desc *d) {
    const int source = c->layer[layer].kv_source;
    if (!d->is_taken) return layer;
    for (int i = source < first ? first : source; i < layer; i++)
        if (i == source || (c->layer[i].passes_kv == KV_TAKEN && c->layer[i].kv_source == source)) return i;
    return layer;
}

static size_t row_bytes(const struct config *c, int layer, enum dtype dtype, bool taken) {
    struct cache_desc d[CACHE_PLANES];
    size_t sum = 0;
    for (int i = kv_planes(c, layer, d); i-- > 0;) {
        struct kv_plane p = kv_plane_of(&d[i], dtype);
        struct kv_row_range one = kv_row_range_of(&p, 0, 1);
        size_t every = d[i].tokens_per_row ? (size_t)d[i].tokens_per_row : 1;
        if (!d[i].fixed_rows && (taken || !d[i].is_taken))
            sum += (one.bytes + one.n_scales * sizeof(float) + every - 1) / every;
    }
    return sum;
}
size_t kv_row_bytes(const struct config *c, int layer, enum dtype dtype) { return row_bytes(c, layer, dtype, false); }
size_t kv_seen_row_bytes(const struct config *c, int layer, enum dtype dtype) {
    return row_bytes(c, layer, dtype, true);
}
size_t kv_token_bytes(const struct config *c, enum dtype dtype) {
    size_t sum = 0;
    for (int i = 0; i < c->n_layers; i++) sum += kv_row_bytes(c, i, dtype);
    return sum;
}

size_t kv_state_bytes(const struct config *c) {
    struct cache_desc d[CACHE_PLANES];
    size_t sum = 0;
    for (int l = 0; l < c->n_layers; l++)
        for (int i = kv_planes(c, l, d); i-- > 0;) {
            struct kv_plane p = kv_plane_of(&d[i], DT_NONE);
            if (d[i].fixed_rows) sum += kv_row_range_of(&p, 0, 1).bytes;
        }
    return sum;
}
