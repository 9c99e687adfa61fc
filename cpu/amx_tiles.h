#pragma once
/* Configures all eight AMX tiles: 16 rows of up to 64 bytes, i.e. 16 BF16 pairs per operand row, 16 float32 sums. For
 * files built with -mamx-tile. */
#ifndef HEARTH_SIMDE /* test/kcheck substitutes SIMDe */
#include <immintrin.h>
#endif
#include <stdint.h>

struct tile_config { /* the operand of ldtilecfg */
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* per row */
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* Configures the calling thread; _tile_release undoes it. width: columns of the sums and of the second operand, 1, 2,
 * 4, 8 or 16; tile 6 (the first operand) is always full width. Constant tables: GCC assumes that _tile_loadconfig reads
 * only the first eight bytes of its operand, and may drop stores to the others. */
static inline void tiles_configure(int width) {
#define TILES(w) \
    { \
        .palette = 1, .bytes = {4 * (w), 4 * (w), 4 * (w), 4 * (w), 4 * (w), 4 * (w), 64, 4 * (w)}, .rows = { \
            16, \
            16, \
            16, \
            16, \
            16, \
            16, \
            16, \
            16 \
        } \
    }
    static const struct tile_config of[] = {TILES(1), TILES(2), TILES(4), TILES(8), TILES(16)};
#undef TILES
    _tile_loadconfig(&of[__builtin_ctz((unsigned)width)]);
}
