#pragma once
/* UTF-8 byte ranges (RFC 3629): no overlong forms, no surrogates, nothing past U+10FFFF. */
#include <stdbool.h>

/* Returns the length of the sequence that this byte begins, 1..4; 0 if it begins none. */
static inline int utf8_length(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    return lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
}
/* True if c may be byte i (1: the second) of a sequence with that lead. */
static inline bool utf8_continues(unsigned char lead, int i, unsigned char c) {
    unsigned char lo = i == 1 && lead == 0xE0 ? 0xA0 : i == 1 && lead == 0xF0 ? 0x90 : 0x80;
    unsigned char hi = i == 1 && lead == 0xED ? 0x9F : i == 1 && lead == 0xF4 ? 0x8F : 0xBF;
    return c >= lo && c <= hi;
}
