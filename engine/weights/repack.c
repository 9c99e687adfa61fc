#include "engine/weights/repack.h"

#include <string.h>

static uint32_t word_at(const uint8_t *p, size_t i) {
    uint32_t w;
    memcpy(&w, p + 4 * i, 4);
    return w;
}
/* Place of code k of eight within AWQ's word. */
static int awq_place(int k) { return k % 2 * 4 + k / 2; }

bool repack_fits(const struct repack *r) {
    const int each = 32 / r->bits;
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
    for (int i = 0; i < r->cols * r->bits / 32; i++) {
        const uint32_t w = word_at(r->words, (size_t)i * rows + (size_t)row), signs = w ^ 0x80808080u;
        if (r->bits == 4) memcpy(out + 4 * (size_t)i, &w, 4);
        else if (r->bits == 8) memcpy(out + 4 * (size_t)i, &signs, 4);
        else
            for (int k = 0; k < 8; k++) out[8 * i + k] = (uint8_t)((w >> 4 * k & 3) | (w >> (4 * k + 2) & 3) << 4);
    }
}

int repack_zero(const struct repack *r, const uint8_t *zeros, int line, int row) {
    const int each = 32 / r->bits, k = r->awq ? awq_place(row % each) : row % each;
    return (int)(word_at(zeros, ((size_t)line * (size_t)r->rows + (size_t)row) / (size_t)each) >> k * r->bits &
                 ((1u << r->bits) - 1));
}
