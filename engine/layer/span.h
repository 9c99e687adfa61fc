#pragma once
/* The arguments of a call of a layer: the rows of a session in a batch, and a range of its keys. */
#include "engine/kv/kv_cache.h"

/* Rows of a batch that belong to one session: rows [row, row + n) are positions pos .. pos + n - 1 of its cache. */
struct span {
    const struct kv_layer *cache; /* [n_layers] */
    int row, n, pos;
    struct kv_state_step state_step; /* state transition in that cache */
    /* NULL, or addresses of planes and position in the executor's memory, [n_layers, CACHE_PLANES], for recorded
     * graphs. pos is then only an upper bound, and cache may be any cache of this shape, except that its states are
     * this call's. Only for layers with block_is_recordable(). */
    const struct op_address *addresses;
};

/* Keys [first, first + n), all or one of several consecutive pieces. */
enum { PIECE_FIRST = 1, PIECE_LAST = 2, PIECE_ALL = 3 };
struct key_range {
    int first, n, piece;
};
