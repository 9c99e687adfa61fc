/* The line editor accepts any bytes, from a terminal or a paste. The first two bytes are the size of the screen; a byte
 * 0xFE resizes, hides and shows. The text stays valid UTF-8, with the cursor inside it. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "cli/terminal/line.h"

static void offer(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *out) {
    buf_str(out, "/save\n/sessions\n");
}

static void check(const struct line *l) {
    if (l->cursor > l->text.len) abort();
    for (size_t i = 0; i < l->text.len;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t k =
            utf8proc_iterate((const utf8proc_uint8_t *)l->text.data + i, (utf8proc_ssize_t)(l->text.len - i), &c);
        if (k <= 0) abort();
        i += (size_t)k;
    }
    if (l->shown && (l->cur_col > l->cols || l->cur_row >= l->n_drawn)) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct history h = {0};
    struct line l;
    if (size < 2) return 0;
    line_init(&l, &h);
    history_add(&h, "an older line", 13);
    history_add(&h, "two\nlines", 9);
    l.complete = offer;
    l.rows = 2 + data[0] % 40;
    l.cols = 8 + data[1] % 100;
    line_begin(&l, "> ");
    for (size_t i = 2; i < size;) {
        size_t n = 1, used;
        if (data[i] == 0xFE) {
            line_resize(&l, 2 + (i + 1 < size ? data[i + 1] % 40 : 0), 8 + (int)(i % 90));
            line_hide(&l);
            line_status(&l, "status");
            line_show(&l);
            i += 2;
        } else {
            while (i + n < size && data[i + n] != 0xFE) n++;
            enum line_result r = line_feed(&l, (const char *)data + i, n, &used);
            if (r == LINE_DONE) {
                history_add(&h, l.text.data ? l.text.data : "", l.text.len);
                line_end(&l);
                line_begin(&l, "> ");
            } else if (r == LINE_EDITOR) line_set_text(&l, "edited", 6);
            i += used;
        }
        check(&l);
        l.out.len = 0;
    }
    line_free(&l);
    history_close(&h);
    return 0;
}
