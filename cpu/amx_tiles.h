#pragma once
/* All eight AMX tiles with 16 rows of 64 bytes: 16 pairs of BF16 a row of operands, 16 float32 sums. For files built with -mamx-tile. */
#include <immintrin.h>
#include <stdint.h>

struct tile_config { /* what ldtilecfg reads */
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* Of the thread; _tile_release gives them back. A constant, for GCC believes that only the first eight bytes of what _tile_loadconfig gets
 * are read, and may drop what a function writes to the others. */
static inline void tiles_configure(void) {
    static const struct tile_config config = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 16, 16}};
    _tile_loadconfig(&config);
}
