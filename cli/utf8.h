#pragma once
/* The bounds of UTF-8 (RFC 3629), byte by byte: no overlong forms, no surrogates, nothing past U+10FFFF. */
#include <stdbool.h>

/* Bytes of the sequence that begins with this one, 1..4; 0 for a byte that begins none. */
static inline int utf8_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
}
/* Whether c may be byte i (1: the second) of a sequence with that lead. */
static inline bool utf8_continues(unsigned char lead, int i, unsigned char c) {
    unsigned char lo = i == 1 && lead == 0xE0 ? 0xA0 : i == 1 && lead == 0xF0 ? 0x90 : 0x80;
    unsigned char hi = i == 1 && lead == 0xED ? 0x9F : i == 1 && lead == 0xF4 ? 0x8F : 0xBF;
    return c >= lo && c <= hi;
}
