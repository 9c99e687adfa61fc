#include "cli/terminal/sanitize.h"

#include <utf8proc.h>

#include "base/utf8.h"

static const char replacement[] = "\xEF\xBF\xBD";

static void put_symbol(struct buf *out, unsigned c) { /* U+2400 + c */
    char s[3] = {(char)0xE2, (char)0x90, (char)(0x80 + c)};
    buf_add(out, s, 3);
}

static void put_replacement(struct sanitizer *f, struct buf *out) {
    if (f->n_held) buf_str(out, replacement);
    f->n_held = 0;
}

bool sanitize_is_harmful(const unsigned char *h, size_t n) {
    bool c1 = n == 2 && h[0] == 0xC2 && h[1] < 0xA0;
    bool bidi = n == 3 && h[0] == 0xE2 && ((h[1] == 0x80 && h[2] >= 0xAA && h[2] <= 0xAE) || (h[1] == 0x81 && h[2] >= 0xA6 && h[2] <= 0xA9));
    return c1 || bidi;
}

/* Appends the complete sequence in held. */
static void put_sequence(struct sanitizer *f, struct buf *out) {
    const unsigned char *h = f->held;
    if (sanitize_is_harmful(h, (size_t)f->want)) buf_str(out, replacement);
    else buf_add(out, h, (size_t)f->want);
    f->n_held = 0;
}

static void put_control(struct sanitizer *f, unsigned char c, struct buf *out) {
    if (c == '\r') f->cr = true;
    else if (c == '\n' || c == '\t') buf_char(out, (char)c);
    else put_symbol(out, c == 0x7F ? 0x21 : c);
}

void sanitize_add(struct sanitizer *f, const char *data, size_t n, struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)data[i];
        if (f->cr) {
            f->cr = false;
            if (c != '\n') put_symbol(out, '\r');
        }
        if (f->n_held) {
            if (utf8_continues(f->held[0], f->n_held, c)) {
                f->held[f->n_held++] = c;
                if (f->n_held == f->want) put_sequence(f, out);
                continue;
            }
            put_replacement(f, out);
        }
        if (c < 0x20 || c == 0x7F) put_control(f, c, out);
        else if (c < 0x80) {
            size_t run = i + 1;
            while (run < n && (unsigned char)data[run] >= 0x20 && (unsigned char)data[run] < 0x7F) run++;
            buf_add(out, data + i, run - i);
            i = run - 1;
        } else if (!(f->want = utf8_length(c))) buf_str(out, replacement);
        else {
            f->held[0] = c;
            f->n_held = 1;
        }
    }
}

void sanitize_flush(struct sanitizer *f, struct buf *out) {
    put_replacement(f, out);
    if (f->cr) put_symbol(out, '\r');
    f->cr = false;
}

/* A cluster is as wide as its widest code point: a family emoji takes two columns, not eight, and accents take none. U+FE0F selects
 * the emoji form and two regional indicators form a flag: both are wide. */
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
