#include "cli/terminal/columns.h"

#include <utf8proc.h>

#include "cli/terminal/sanitize.h"

/* A cluster is as wide as its widest code point: a family emoji takes two columns, not eight, and accents take none.
 * U+FE0F selects the emoji form and two regional indicators form a flag: both are wide. */
size_t columns_of_char(const char *s, size_t n, int *width) {
    const utf8proc_uint8_t *p = (const utf8proc_uint8_t *)s;
    utf8proc_int32_t c, d, state = 0;
    utf8proc_ssize_t k = utf8proc_iterate(p, (utf8proc_ssize_t)n, &c);
    *width = 1;
    if (k <= 0) return 1;
    if (sanitize_is_harmful(p, (size_t)k)) return (size_t)k;
    *width = utf8proc_charwidth(c);
    if (c < 0x20) return 1;
    size_t i = (size_t)k;
    for (int flags = c >= 0x1F1E6 && c <= 0x1F1FF; i < n; i += (size_t)k, c = d) {
        k = utf8proc_iterate(p + i, (utf8proc_ssize_t)(n - i), &d);
        if (k <= 0 || utf8proc_grapheme_break_stateful(c, d, &state)) break;
        int w = utf8proc_charwidth(d);
        flags += d >= 0x1F1E6 && d <= 0x1F1FF;
        if (d == 0xFE0F || flags > 1) w = 2;
        if (w > *width) *width = w;
    }
    return i;
}

int columns_of_text(const char *s, size_t n) {
    int total = 0, w;
    for (size_t i = 0; i < n; total += w) i += columns_of_char(s + i, n - i, &w);
    return total;
}

size_t columns_fit(const char *s, size_t n, int cols) {
    size_t i = 0;
    for (int w; i < n;) {
        size_t k = columns_of_char(s + i, n - i, &w);
        if (w > cols) break;
        cols -= w;
        i += k;
    }
    return i;
}

void columns_truncate(const char *s, size_t n, int cols, struct buf *out) {
    size_t fit = n ? columns_fit(s, n, cols) : 0;
    bool cut = fit < n;
    if (cut) {
        fit = columns_fit(s, n, cols - 1);
        size_t k = fit;
        while (k > fit / 2 && s[k] != ' ') k--;
        if (s[k] == ' ') fit = k;
    }
    if (fit) buf_add(out, s, fit);
    if (cut) buf_str(out, "\xE2\x80\xA6");
}
