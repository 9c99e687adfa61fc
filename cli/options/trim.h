#pragma once
#include <stddef.h>
#include <string.h>

/* Returns the length of s without trailing characters of set. */
static inline size_t trim_end(const char *s, size_t n, const char *set) {
    while (n && s[n - 1] && strchr(set, s[n - 1])) n--;
    return n;
}
