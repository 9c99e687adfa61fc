/* Layout of an answer on a terminal: the result does not depend on how the text is split; apart from colours no control
 * sequence gets through; no letter is lost, added or moved; and no row is wider than the screen, except code and links.
 * The first bytes are the width of the screen and the length of the pieces. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "cli/terminal/columns.h"
#include "cli/terminal/markdown.h"

static bool rich; /* with hidden marks, wrapped tables and narrow text */

static void run(const char *data, size_t n, size_t step, int cols, bool color, struct buf *out) {
    struct markdown s;
    markdown_init(&s, cols, color);
    s.hide_marks = s.wrap_tables = rich;
    s.text_cols = rich ? 30 : 0;
    for (size_t i = 0; i < n; i += step) markdown_add(&s, data + i, i + step < n ? step : n - i, out);
    markdown_flush(&s, out);
    markdown_free(&s);
}

/* Removes the colours; each must be one of ours. */
static void strip(const struct buf *in, struct buf *out) {
    for (size_t i = 0; i < in->len; i++) {
        unsigned char c = (unsigned char)in->data[i];
        if (c == 0x1B) {
            size_t n = 1 + strspn(in->data + i + 1, "[;0123456789");
            if (in->data[i + n] != 'm') abort();
            i += n;
        } else if ((c < 0x20 && c != '\n') || c == 0x7F) abort();
        else buf_char(out, (char)c);
    }
}

static void letters(struct buf *b) {
    size_t n = 0;
    for (size_t i = 0; i < b->len; i++)
        if (!strchr(" \n\t-", b->data[i])) b->data[n++] = b->data[i];
    b->len = n;
}

static void same(const struct buf *a, const struct buf *b) {
    if (a->len != b->len || (a->len && memcmp(a->data, b->data, a->len))) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct buf a = {0}, b = {0}, shown = {0}, plain = {0};
    struct sanitizer f = {0};
    if (size < 2) return 0;
    int cols = data[0] % 90;
    size_t step = 1 + data[1] % 7;
    const char *text = (const char *)data + 2;
    size -= 2;
    run(text, size, size ? size : 1, cols, true, &a);
    run(text, size, step, cols, true, &b);
    same(&a, &b);
    strip(&a, &shown);
    a.len = b.len = 0;
    run(text, size, step, cols, false, &a);
    same(&a, &shown);
    bool wide_rows = memmem(text, size, "://", 3) || memmem(text, size, "```", 3) || memmem(text, size, "~~~", 3);
    for (size_t i = 0, n; i < shown.len && cols >= 5 && !wide_rows; i += n + 1) {
        const char *end = memchr(shown.data + i, '\n', shown.len - i);
        n = end ? (size_t)(end - shown.data) - i : shown.len - i;
        if (columns_of_text(shown.data + i, n) >= cols) abort();
    }
    struct buf c = {0}, d = {0}, clean = {0};
    rich = true; /* letters may move between the rows of a table; all else holds */
    run(text, size, size ? size : 1, cols, true, &c);
    run(text, size, step, cols, true, &d);
    rich = false;
    same(&c, &d);
    strip(&c, &clean);
    wide_rows |= clean.len && memmem(clean.data, clean.len, "://", 3); /* hidden marks may have been in between */
    for (size_t i = 0, n; i < clean.len && cols >= 5 && !wide_rows; i += n + 1) {
        const char *end = memchr(clean.data + i, '\n', clean.len - i);
        n = end ? (size_t)(end - clean.data) - i : clean.len - i;
        if (columns_of_text(clean.data + i, n) >= cols) abort();
    }
    buf_free(&c);
    buf_free(&d);
    buf_free(&clean);
    sanitize_add(&f, text, size, &plain);
    sanitize_flush(&f, &plain);
    letters(&plain);
    letters(&shown);
    same(&plain, &shown);
    buf_free(&a);
    buf_free(&b);
    buf_free(&shown);
    buf_free(&plain);
    return 0;
}
