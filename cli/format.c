#include "cli/format.h"

#include <stdio.h>

const char *format_bytes(uint64_t n, char *buf, size_t cap) {
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)n;
    int u = 0;
    while (v >= 1000 && u < 4) v /= 1000, u++;
    snprintf(buf, cap, u && v < 100 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}
