#pragma once
/* The KV cache of one session in host memory. Address space is reserved for the whole context, memory is committed as positions are written. */
#include "engine/base/ops.h"
#include "engine/model/config.h"

/* A plane of the cache: a row of heads * dim elements for each token. A layer has one or two of them (keys, values), as its kind
 * of attention says; their dtype is the session's choice. */
struct cache_desc {
    int heads, dim;
};
enum { CACHE_PLANES = 2 };
int kv_planes(const struct config *c, int layer, struct cache_desc out[CACHE_PLANES]); /* returns how many */
size_t kv_row_bytes(const struct config *c, int layer, enum dtype dtype);              /* of a token in one layer, scales included */

struct kv {
    struct kv_plane *k, *v; /* [n_layers]; one plane: v[i] is k[i] */
    int n_layers, capacity;
    void *pages;
    size_t size;
};

/* dtype: DT_F32, DT_BF16 or DT_E4M3. ERR_MEMORY names the size. */
int kv_open(struct kv *kv, const struct config *c, int capacity, enum dtype dtype, struct error *e);
void kv_close(struct kv *kv);
size_t kv_token_bytes(const struct config *c, enum dtype dtype);
