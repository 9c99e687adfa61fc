/* Thresholds between cuBLAS and own tiles. On the H100 that ran both, cuBLAS reached 588 to 638 TFLOP/s on products
 * that fill the card and own tiles 136 to 170 (test/bench/gpu.md). But a product of cuBLAS is a launch of its own,
 * before which it needs its inputs in BF16, and one with fewer tiles than the card has multiprocessors leaves the
 * others idle. */
#include "gpu/cuda_path.h"

enum {
    TILE = 128,
    LEAST_TOKENS = 64, /* fewer do not fill a tile of cuBLAS */
    /* tokens from which a BF16 copy of the weights pays: reading FP8 and writing BF16 costs about as much as 350 tokens
     */
    EXPAND_TOKENS = 512,
    /* Smaller groups of a routed expert are computed together with others. From here on a group's gate, up and down
     * have enough tiles on their own. */
    ROUTED_TOKENS = 2048,
};

long cuda_path_tiles(int n, int rows) { return (long)((n + TILE - 1) / TILE) * ((rows + TILE - 1) / TILE); }
bool cuda_path_is_blas(const struct cuda_path *p) {
    if (p->n < LEAST_TOKENS || (p->expands && p->n < EXPAND_TOKENS)) return false;
    if (p->is_routed && p->n < ROUTED_TOKENS) return false;
    return cuda_path_tiles(p->n, p->rows) >= p->n_sms;
}
