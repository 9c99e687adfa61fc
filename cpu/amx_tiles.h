#pragma once
/* All eight AMX tiles with 16 rows of 64 bytes: 16 pairs of BF16 a row of operands, 16 float32 sums. For files built with -mamx-tile. */
#include <immintrin.h>
#include <stdint.h>

struct tile_config { /* what ldtilecfg reads */
    uint8_t palette, start_row, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} __attribute__((aligned(64)));

/* Of the thread; _tile_release gives them back. */
static inline void tiles_configure(void) {
    struct tile_config c = {.palette = 1};
    for (int i = 0; i < 8; i++) c.rows[i] = 16, c.bytes[i] = 64;
    _tile_loadconfig(&c);
}
