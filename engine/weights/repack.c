#include "engine/weights/repack.h"

#include <string.h>

static uint32_t word_at(const uint8_t *p, size_t i) {
    uint32_t w;
    memcpy(&w, p + 4 * i, 4);
    return w;
}
/* Place of code k of eight within AWQ's word. */
static int awq_place(int k) { return k % 2 * 4 + k / 2; }

uint32_t repack_code(const uint8_t *words, size_t step, int bits, size_t k) {
    const size_t bit = k * (size_t)bits, word = bit / 32, shift = bit % 32;
    uint64_t w = word_at(words, word * step);
    if (shift + (size_t)bits > 32) w |= (uint64_t)word_at(words, (word + 1) * step) << 32;
    return (uint32_t)(w >> shift) & ((1u << bits) - 1);
}
int repack_shift(int bits) { return bits < 4 ? 8 - (1 << (bits - 1)) : 0; }

bool repack_fits(const struct repack *r) {
    const int each = r->bits == 3 ? 32 : 32 / r->bits;
    return r->rows % each == 0 && r->cols % each == 0 && (!r->awq || (r->bits == 4 && r->cols % 8 == 0));
}

void repack_row(const struct repack *r, int row, uint8_t *out) {
    const size_t rows = (size_t)r->rows;
    if (r->awq) {
        const int shift = 4 * awq_place(row % 8);
        for (int c = 0; c < r->cols; c += 2) {
            const uint32_t even = word_at(r->words, (size_t)c * rows / 8 + (size_t)row / 8),
                           odd = word_at(r->words, (size_t)(c + 1) * rows / 8 + (size_t)row / 8);
            out[c / 2] = (uint8_t)((even >> shift & 15) | (odd >> shift & 15) << 4);
        }
        return;
    }
    const uint8_t *words = r->words + 4 * (size_t)row;
    if (r->bits < 4) {
        const uint32_t shift = (uint32_t)repack_shift(r->bits);
        for (int c = 0; c < r->cols; c += 2)
            out[c / 2] = (uint8_t)((repack_code(words, rows, r->bits, (size_t)c) + shift) |
                                   (repack_code(words, rows, r->bits, (size_t)c + 1) + shift) << 4);
        return;
    }
    for (int i = 0; i < r->cols * r->bits / 32; i++) {
        const uint32_t w = word_at(words, (size_t)i * rows), signs = w ^ 0x80808080u;
        memcpy(out + 4 * (size_t)i, r->bits == 4 ? &w : &signs, 4);
    }
}

int repack_zero(const struct repack *r, const uint8_t *zeros, int line, int row) {
    const size_t words = (size_t)r->rows * (size_t)r->bits / 32;
    const int k = r->awq ? row - row % 8 + awq_place(row % 8) : row;
    return (int)repack_code(zeros + 4 * (size_t)line * words, 1, r->bits, (size_t)k);
}
