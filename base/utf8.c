#include "base/utf8.h"

#include <string.h>

size_t utf8_put(uint32_t c, char out[4]) {
    if (c < 0x80) return out[0] = (char)c, 1;
    if (c < 0x800) return out[0] = (char)(0xC0 | c >> 6), out[1] = (char)(0x80 | (c & 63)), 2;
    if (c < 0x10000)
        return out[0] = (char)(0xE0 | c >> 12), out[1] = (char)(0x80 | (c >> 6 & 63)), out[2] = (char)(0x80 | (c & 63)),
               3;
    return out[0] = (char)(0xF0 | c >> 18), out[1] = (char)(0x80 | (c >> 12 & 63)),
           out[2] = (char)(0x80 | (c >> 6 & 63)), out[3] = (char)(0x80 | (c & 63)), 4;
}

size_t utf8_ascii(const char *s, size_t n) {
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t w;
        memcpy(&w, s + i, 8);
        if (w & 0x8080808080808080u) break;
    }
    while (i < n && (unsigned char)s[i] < 0x80) i++;
    return i;
}

/* Returns the number of valid leading bytes of the character at s; *whole if it is complete. 0: not the start of a
 * character. */
static size_t utf8_prefix(const unsigned char *s, size_t n, bool *whole) {
    *whole = false;
    const size_t want = (size_t)utf8_length(s[0]);
    size_t i = 1;
    if (!want) return 0;
    for (; i < want && i < n; i++)
        if (!utf8_continues(s[0], (int)i, s[i])) return i;
    *whole = i == want;
    return i;
}

size_t utf8_whole(const char *s, size_t n) {
    bool whole;
    size_t k = utf8_prefix((const unsigned char *)s, n, &whole);
    return whole ? k : 0;
}

size_t utf8_valid(const char *s, size_t n) {
    size_t i = 0;
    for (;;) {
        i += utf8_ascii(s + i, n - i);
        if (i == n) return n;
        size_t k = utf8_whole(s + i, n - i);
        if (!k) return i;
        i += k;
    }
}

size_t utf8_broken(const char *s, size_t n) {
    bool whole;
    size_t k = utf8_prefix((const unsigned char *)s, n, &whole);
    return k ? k : 1;
}
