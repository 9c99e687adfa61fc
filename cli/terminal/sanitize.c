#include "cli/terminal/sanitize.h"

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
    bool bidi = n == 3 && h[0] == 0xE2 &&
                ((h[1] == 0x80 && h[2] >= 0xAA && h[2] <= 0xAE) || (h[1] == 0x81 && h[2] >= 0xA6 && h[2] <= 0xA9));
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
