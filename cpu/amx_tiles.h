#pragma once
/* All eight AMX tiles with 16 rows of up to 64 bytes: 16 pairs of BF16 a row of operands, 16 float32 sums. For files built with -mamx-tile. */
#ifndef HEARTH_SIMDE /* test/kcheck puts SIMDe in its place */
#include <immintrin.h>
#endif
#include <stdint.h>

struct tile_config { /* what ldtilecfg reads */
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* Of the thread; _tile_release gives them back. width: columns of sums and of the second operand, 1, 2, 4, 8 or 16; tile 6 alone, which has the first, is
 * whole where they are fewer. Constants, for GCC believes that only the first eight bytes of what _tile_loadconfig gets are read, and may drop what a function
 * writes to the others. */
static inline void tiles_configure(int width) {
#define TILES(w) \
    { \
        .palette = 1, .bytes = {4 * (w), 4 * (w), 4 * (w), 4 * (w), 4 * (w), 4 * (w), 64, 4 * (w)}, .rows = { 16, 16, 16, 16, 16, 16, 16, 16 } \
    }
    static const struct tile_config of[] = {TILES(1), TILES(2), TILES(4), TILES(8), TILES(16)};
#undef TILES
    _tile_loadconfig(&of[__builtin_ctz((unsigned)width)]);
}
