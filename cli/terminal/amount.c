#include "cli/terminal/amount.h"

#include <stdio.h>

const char *amount_bytes(uint64_t n, char *buf, size_t cap) {
    static const char *const unit[] = {"B", "kB", "MB", "GB", "TB"};
    double v = (double)n;
    int u = 0;
    while (v >= 1000 && u < 4) v /= 1000, u++;
    snprintf(buf, cap, u && v < 100 ? "%.1f %s" : "%.0f %s", v, unit[u]);
    return buf;
}

/* Limits such as 99.5 are the first values that are rounded to one more digit. */
const char *amount_weights(uint64_t n, char *buf, size_t cap) {
    double v = (double)n;
    int u = 0;
    while (v >= 1000 && u < 4) v /= 1000, u++;
    snprintf(buf, cap, u && v < 99.5 ? "%.1f%.1s" : "%.0f%.1s", v, &"\0kMBT"[u]);
    return buf;
}

const char *amount_count(long long n, const char *one, char *buf, size_t cap) {
    snprintf(buf, cap, "%lld %s%s", n, one, n == 1 ? "" : "s");
    return buf;
}

const char *amount_seconds(double s, char *buf, size_t cap) {
    snprintf(buf, cap, s < 1 ? "%.3g ms" : "%.3g s", s < 1 ? s * 1e3 : s);
    return buf;
}

const char *amount_rate(double v, char *buf, size_t cap) {
    static const double least[] = {999.5, 0.995, 0.0995}; /* from which 0, 1 and 2 decimal places are enough */
    int places = 0;
    while (places < 3 && !(v >= least[places])) places++;
    snprintf(buf, cap, "%.*f", places, v);
    return buf;
}

const char *amount_duration(double s, char *buf, size_t cap) {
    if (s < 90) snprintf(buf, cap, "%.0f s", s);
    else if (s < 5400) snprintf(buf, cap, "%.0f min", s / 60);
    else snprintf(buf, cap, "%.1f h", s / 3600);
    return buf;
}
