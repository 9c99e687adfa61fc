/* Draws the edited text. Rows are never wider than the screen and end with an explicit line end, so the terminal never
 * wraps and the cursor position is always known. */
#include <string.h>

#include "base/mem.h"
#include "cli/terminal/columns.h"
#include "cli/terminal/line.h"
#include "cli/terminal/sanitize.h"

size_t line_char(const struct line *l, size_t at, int *width) {
    unsigned char b = (unsigned char)l->text.data[at];
    size_t k = columns_of_char(l->text.data + at, l->text.len - at, width);
    if (b < 0x20 || b == 0x7F) *width = b == '\t' ? 4 : 2; /* other controls show as ^X */
    return k;
}

size_t line_next(const struct line *l, size_t at) {
    size_t from, to;
    int width;
    if (line_paste_at(l, at, &from, &to)) return to;
    return at < l->text.len ? at + line_char(l, at, &width) : l->text.len;
}

size_t line_prev(const struct line *l, size_t at) {
    size_t from = at;
    while (from && l->text.data[from - 1] != '\n' && at - from < 128) from--; /* clusters do not cross a line end */
    if (from == at) return at ? at - 1 : 0;
    while (from < at && ((unsigned char)l->text.data[from] & 0xC0) == 0x80) from++;
    for (size_t next; (next = line_next(l, from)) < at;) from = next;
    return from;
}

static int prompt_width(const struct line *l) { return columns_of_text(l->prompt, strlen(l->prompt)); }

static int add_layout_row(struct line *l, size_t from, int indent) {
    if (mem_grow(&l->layout, &l->cap_layout, l->n_layout + 1, sizeof *l->layout)) return -1;
    l->layout[l->n_layout++] = (struct line_row){.from = from, .to = from, .indent = indent, .width = indent};
    return 0;
}

static void compute_layout(struct line *l) {
    int indent = prompt_width(l), cols = l->cols < 4 ? 4 : l->cols, w;
    if (indent > cols / 2) indent = cols / 2;
    l->n_layout = 0;
    if (add_layout_row(l, 0, indent)) return;
    for (size_t i = 0; i < l->text.len;) {
        struct line_row *row = &l->layout[l->n_layout - 1];
        if (l->text.data[i] == '\n') {
            row->to = i++;
            if (add_layout_row(l, i, indent)) return;
            continue;
        }
        size_t k = line_char(l, i, &w);
        if (row->width + w > cols) {
            row->to = i;
            if (add_layout_row(l, i, 0)) return;
            row = &l->layout[l->n_layout - 1];
        }
        row->width += w;
        i += k;
        row->to = i;
    }
    /* after a full row the cursor is at the start of the next */
    if (l->cursor == l->text.len && l->layout[l->n_layout - 1].width >= cols) add_layout_row(l, l->text.len, 0);
}

static void locate_offset(const struct line *l, size_t at, int *row, int *col) {
    size_t r = l->n_layout - 1;
    while (r && l->layout[r].from > at) r--;
    *row = (int)r;
    *col = l->layout[r].indent;
    for (size_t i = l->layout[r].from; i < at && i < l->layout[r].to;) {
        int w;
        i += line_char(l, i, &w);
        *col += w;
    }
}

bool line_vertical(struct line *l, int by) {
    int row, col, w, at_col;
    compute_layout(l);
    if (!l->n_layout) return false;
    locate_offset(l, l->cursor, &row, &col);
    if (row + by < 0 || row + by >= (int)l->n_layout) return false;
    const struct line_row *to = &l->layout[row + by];
    size_t at = to->from;
    at_col = to->indent;
    while (at < to->to && at_col < col) {
        at += line_char(l, at, &w);
        at_col += w;
    }
    size_t token, token_end;
    l->cursor = line_paste_at(l, at, &token, &token_end) ? token : at;
    return true;
}

static void draw_row(struct line *l, const struct line_row *row, bool first) {
    struct buf *o = &l->out;
    if (first) {
        if (l->color) buf_str(o, "\033[1m");
        buf_add(o, l->prompt, columns_fit(l->prompt, strlen(l->prompt), row->indent));
        if (l->color) buf_str(o, "\033[0m");
    } else
        for (int i = 0; i < row->indent; i++) buf_char(o, ' ');
    for (size_t i = row->from; i < row->to;) {
        int w;
        unsigned char c = (unsigned char)l->text.data[i];
        size_t k = line_char(l, i, &w);
        if (c == '\t') buf_str(o, "    ");
        else if (c < 0x20 || c == 0x7F) buf_fmt(o, "^%c", c ^ 0x40);
        else if ((k == 1 && c >= 0x80) || sanitize_is_harmful((const unsigned char *)l->text.data + i, k))
            buf_str(o, "\xEF\xBF\xBD");
        else buf_add(o, l->text.data + i, k);
        i += k;
    }
}

static void erase_drawn(struct line *l) {
    if (!l->shown) return;
    buf_char(&l->out, '\r');
    if (l->cur_row > 0) buf_fmt(&l->out, "\033[%dA", l->cur_row);
    buf_str(&l->out, "\033[J");
    l->shown = false;
}

/* Counts the rows of the status or the hint; at least two rows are left for the text. */
static int rows_below(const struct line *l, const struct buf *below) {
    int n = below->len ? 1 : 0, most = l->rows > 3 ? l->rows - 2 : 1;
    for (size_t i = 0; i < below->len; i++) n += below->data[i] == '\n';
    return n < most ? n : most;
}

void line_draw(struct line *l) {
    const struct buf *below = l->hint.len ? &l->hint : &l->status;
    int row, col;
    compute_layout(l);
    if (!l->n_layout) return; /* no memory: keep what is drawn */
    locate_offset(l, l->cursor, &row, &col);
    const int n_below = rows_below(l, below);
    int room = l->rows - 1 - n_below, n = (int)l->n_layout;
    if (room < 1) room = 1;
    if (l->first_row > row) l->first_row = row;
    if (l->first_row < row - room + 1) l->first_row = row - room + 1;
    if (l->first_row > n - room) l->first_row = n - room;
    if (l->first_row < 0) l->first_row = 0;
    int end = l->first_row + room < n ? l->first_row + room : n, drawn = end - l->first_row + n_below;
    erase_drawn(l);
    if (mem_grow(&l->drawn_widths, &l->cap_widths, (size_t)drawn, sizeof *l->drawn_widths)) return;
    for (int r = l->first_row; r < end; r++) {
        if (r > l->first_row) buf_str(&l->out, "\r\n");
        draw_row(l, &l->layout[r], r == 0);
        l->drawn_widths[r - l->first_row] = l->layout[r].width;
    }
    const char *text = below->data;
    for (int r = drawn - n_below; r < drawn; r++) {
        size_t len = strcspn(text, "\n"), fit = columns_fit(text, len, l->cols - 1);
        buf_fmt(&l->out, "\r\n%s", l->color ? "\033[2m" : "");
        buf_add(&l->out, text, fit);
        if (l->color) buf_str(&l->out, "\033[0m");
        l->drawn_widths[r] = columns_of_text(text, fit);
        text += len + (text[len] == '\n');
    }
    l->n_drawn = drawn;
    l->cur_row = row - l->first_row;
    l->cur_col = col;
    buf_char(&l->out, '\r');
    if (drawn - 1 > l->cur_row) buf_fmt(&l->out, "\033[%dA", drawn - 1 - l->cur_row);
    if (col) buf_fmt(&l->out, "\033[%dC", col);
    l->shown = true;
}

void line_hide(struct line *l) { erase_drawn(l); }
void line_show(struct line *l) {
    if (!l->shown) line_draw(l);
}

/* A narrower screen has broken the drawn rows into more, so the cursor is further down. Terminals that do not reflow
 * only lose row ends. */
void line_resize(struct line *l, int rows, int cols) {
    if (l->shown && cols > 0) {
        int down = 0;
        for (int r = 0; r < l->cur_row; r++)
            down += l->drawn_widths[r] > cols ? (l->drawn_widths[r] + cols - 1) / cols : 1;
        l->cur_row = down + l->cur_col / cols;
    }
    l->rows = rows;
    l->cols = cols;
    if (l->shown) line_draw(l);
}

void line_end(struct line *l) {
    if (!l->shown) return;
    l->cursor = l->text.len;
    buf_free(&l->hint);
    buf_free(&l->status);
    line_draw(l);
    buf_str(&l->out, "\r\n");
    l->shown = false;
}
