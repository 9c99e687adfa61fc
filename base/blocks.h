#pragma once
/* GGUF's block formats, one number at a time: the reference for every kernel. Source: ggml-quants.c, structs block_*.
 * Products of codes and scales are exact in float32; a value is rounded at most once, when a minimum is added.
 * Of formats with a scale before each row (dtype_row_head) the value lacks that scale. */
#include <stdbool.h>
#include <stdint.h>

#include "base/mat.h"

/* Returns column i of the block at b, 0 <= i < dtype_block(t). 0 for a dtype without blocks. */
float blocks_at(enum dtype t, const uint8_t *b, int i);
/* Returns true if the scales inside the block are finite. All codes are valid numbers. True for a dtype without
 * blocks. */
bool blocks_finite(enum dtype t, const uint8_t *b);
