#pragma once
/* UTF-8 (RFC 3629): no overlong forms, no surrogates, nothing past U+10FFFF. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

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
/* Decodes the character at s (valid UTF-8) and advances s. */
static inline uint32_t utf8_next(const char **s) {
    const unsigned char *p = (const unsigned char *)*s;
    if (p[0] < 0x80) return *s += 1, p[0];
    if (p[0] < 0xE0) return *s += 2, (p[0] & 31u) << 6 | (p[1] & 63u);
    if (p[0] < 0xF0) return *s += 3, (p[0] & 15u) << 12 | (p[1] & 63u) << 6 | (p[2] & 63u);
    return *s += 4, (p[0] & 7u) << 18 | (p[1] & 63u) << 12 | (p[2] & 63u) << 6 | (p[3] & 63u);
}
static inline size_t utf8_size(unsigned char lead) {
    if (lead < 0x80) return 1;
    if (lead < 0xE0) return 2;
    return lead < 0xF0 ? 3 : 4;
}
/* Returns the start of the character before s. s must not be the beginning of the text. */
static inline const char *utf8_back(const char *s) {
    do s--;
    while (((unsigned char)*s & 0xC0) == 0x80);
    return s;
}
/* Returns the length of the byte order mark with which some editors begin a text: 3, or 0 without one. */
static inline size_t utf8_mark(const char *s, size_t n) { return n >= 3 && !memcmp(s, "\xEF\xBB\xBF", 3) ? 3 : 0; }
size_t utf8_put(uint32_t c, char out[4]);   /* encodes c; returns the number of bytes */
size_t utf8_ascii(const char *s, size_t n); /* number of leading ASCII bytes */
/* Returns the number of leading bytes that are valid. */
size_t utf8_valid(const char *s, size_t n);
size_t utf8_whole(const char *s, size_t n); /* length of the valid character at s; 0: none */
/* Returns the length of the invalid sequence at s that one U+FFFD replaces (the longest prefix of a character). */
size_t utf8_broken(const char *s, size_t n);
