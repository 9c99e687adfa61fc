#pragma once
/* Transposes the packed integers of GPTQ and AWQ into rows of DT_I4 or DT_I8. Pure. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A stored matrix [cols, rows] of codes in 32-bit words, low bits first; those of three bits run on from word to word.
 */
struct repack {
    const uint8_t *words; /* unaligned: GPTQ [cols * bits / 32, rows], AWQ [cols, rows * bits / 32] */
    int rows, cols, bits; /* bits: 2, 3, 4 or 8; AWQ 4 */
    bool awq;             /* codes packed along the rows, in the order 0 2 4 6 1 3 5 7 */
};
/* Code k of a sequence of codes of up to eight bits in 32-bit words, low bits first, that are `step` words apart. A
 * code may lie in two words. */
uint32_t repack_code(const uint8_t *words, size_t step, int bits, size_t k);
/* What is added to codes and zero points of fewer than four bits, so that half of their range becomes that of four. */
int repack_shift(int bits);
/* True if the matrix divides into whole words. */
bool repack_fits(const struct repack *r);
/* Writes row `row`, cols codes of four bits (two per byte, even column first) or with bits 8 of eight, as signed
 * numbers biased by 128. */
void repack_row(const struct repack *r, int row, uint8_t *out);
/* Code `row` of line `line` of zero points, without repack_shift(): [lines, rows * bits / 32] words, in AWQ's order if
 * r->awq. */
int repack_zero(const struct repack *r, const uint8_t *zeros, int line, int row);
