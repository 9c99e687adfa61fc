#include "base/base64.h"

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

void base64_put(struct buf *b, const void *data, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const uint8_t *s = data;
    for (size_t i = 0; i < n; i += 3, s += 3) {
        const size_t left = n - i;
        const uint32_t v = (uint32_t)s[0] << 16 | (left > 1 ? (uint32_t)s[1] << 8 : 0) | (left > 2 ? s[2] : 0);
        const char q[4] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                           left > 2 ? digits[v & 63] : '='};
        buf_add(b, q, 4);
    }
}

/* The six bits of a character; -1: it is none. */
static int value_of(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    if (c == '+' || c == '-') return 62;
    return c == '/' || c == '_' ? 63 : -1;
}

int base64_decode(const char *s, size_t n, struct buf *out) {
    uint32_t bits = 0;
    int have = 0;
    bool has_ended = false;
    for (size_t i = 0; i < n; i++) {
        const char c = s[i];
        const int v = value_of(c);
        if (c == ' ' || c == '\n' || c == '\r' || c == '\t') continue;
        if (c == '=') has_ended = true;
        else if (v < 0 || has_ended) return ERR_RUNTIME;
        else {
            bits = bits << 6 | (uint32_t)v;
            have += 6;
            if (have >= 8) buf_char(out, (char)(bits >> (have -= 8) & 0xFF));
        }
    }
    return out->failed ? ERR_MEMORY : 0;
}
