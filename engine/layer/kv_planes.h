#pragma once
/* The planes of a layer's KV cache, which its attention kind determines, and their sizes. Pure. */
#include "engine/kv/kv_cache.h"

int kv_planes(const struct config *c, int layer, struct cache_desc out[CACHE_PLANES]); /* returns their number */
/* Returns the layer that has the memory of a plane in a range of layers that begins with `first` <= layer: `layer`, or
 * the first one of those that share a taken plane. An executor without the source layer keeps one copy of its rows. */
int kv_plane_owner(const struct config *c, int first, int layer, const struct cache_desc *d);
/* bytes per token that one layer adds, scales included, rounded up */
size_t kv_row_bytes(const struct config *c, int layer, enum dtype dtype);
/* kv_row_bytes() with the planes that it takes from another layer */
size_t kv_seen_row_bytes(const struct config *c, int layer, enum dtype dtype);
size_t kv_token_bytes(const struct config *c, enum dtype dtype); /* bytes per token in all layers */
size_t kv_state_bytes(const struct config *c);                   /* bytes per position, all layers */
