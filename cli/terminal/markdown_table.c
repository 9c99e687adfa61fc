/* Markdown tables: pads cells to align the columns. Rows are printed as they come, so the first ones decide on the
 * widths, with some columns to spare; later cells that are wider take several lines, or widen their column. */
#include <string.h>

#include "base/error.h"
#include "base/mem.h"
#include "cli/terminal/columns.h"
#include "cli/terminal/markdown.h"

struct table_cell {
    const char *text; /* without surrounding blanks */
    size_t n;
    int width;
};
struct table_row {
    size_t first, n; /* in cells */
    bool closed;     /* a | ends the row */
};
struct markdown_table {
    struct table_cell *cells;
    size_t n_cells, cap_cells;
    struct table_row *rows; /* rows[1] is the rule below the head */
    size_t n_rows, cap_rows;
    struct markdown_columns *columns;
};

static int add_cell(struct markdown_table *t, const char *s, size_t n) {
    while (n && *s == ' ') s++, n--;
    while (n && s[n - 1] == ' ') n--;
    if (mem_grow(&t->cells, &t->cap_cells, t->n_cells + 1, sizeof *t->cells)) return ERR_MEMORY;
    t->cells[t->n_cells++] = (struct table_cell){s, n, columns_of_text(s, n)};
    t->rows[t->n_rows - 1].n++;
    return 0;
}

static int add_row(struct markdown_table *t, const char *s, size_t n) {
    if (mem_grow(&t->rows, &t->cap_rows, t->n_rows + 1, sizeof *t->rows)) return ERR_MEMORY;
    struct table_row *r = &t->rows[t->n_rows++];
    *r = (struct table_row){.first = t->n_cells};
    while (n && s[n - 1] == ' ') n--;
    size_t i = strspn(s, " ") + 1; /* after the first | */
    for (size_t from = i; i <= n; i++) {
        bool bar = i < n && s[i] == '|' && s[i - 1] != '\\';
        if (i < n && !bar) continue;
        if (bar || i > from)
            if (add_cell(t, s + from, i - from)) return ERR_MEMORY;
        r->closed = bar;
        if (bar && i + 1 == n) break;
        from = i + 1;
    }
    return 0;
}

static bool is_rule(const struct markdown_table *t, const struct table_row *r) {
    for (size_t i = 0; i < r->n; i++) {
        const struct table_cell *c = &t->cells[r->first + i];
        size_t dashes = 0;
        for (size_t k = 0; k < c->n; k++) {
            if (c->text[k] != '-' && !(c->text[k] == ':' && (!k || k + 1 == c->n))) return false;
            dashes += c->text[k] == '-';
        }
        if (!dashes) return false;
    }
    return r->n > 0;
}

static const struct table_cell *rule_of(const struct markdown_table *t, size_t column) {
    return column < t->rows[1].n ? &t->cells[t->rows[1].first + column] : NULL;
}
static bool is_right(const struct table_cell *rule) { return rule && rule->n > 1 && rule->text[rule->n - 1] == ':'; }

/* Adds the columns that are new, as wide as their rule. */
static int add_columns(struct markdown_table *t) {
    struct markdown_columns *k = t->columns;
    size_t n = k->n;
    for (size_t i = 0; i < t->n_rows; i++)
        if (t->rows[i].n > n) n = t->rows[i].n;
    if (mem_grow(&k->widths, &k->cap, n, sizeof *k->widths)) return ERR_MEMORY;
    for (; k->n < n; k->n++) {
        const struct table_cell *rule = rule_of(t, k->n);
        k->widths[k->n] = 1 + (rule && rule->text[0] == ':') + is_right(rule); /* a dash and its colons */
    }
    return 0;
}

static int longest_word(const struct table_cell *c) {
    int most = 0;
    for (size_t i = 0, n; i < c->n; i += n + (i + n < c->n)) {
        const char *end = memchr(c->text + i, ' ', c->n - i);
        n = end ? (size_t)(end - c->text) - i : c->n - i;
        const int w = columns_of_text(c->text + i, n);
        if (w > most) most = w;
    }
    return most;
}

/* Widens the columns for the rows from `first` on. wraps: in wide columns, only for words that do not fit. */
static void widen_columns(struct markdown_table *t, size_t first, bool wraps) {
    enum { WIDE = 16 };
    for (size_t i = first; i < t->n_rows; i++)
        for (size_t c = 0; c < t->rows[i].n && i != 1; c++) {
            const struct table_cell *cell = &t->cells[t->rows[i].first + c];
            int *width = &t->columns->widths[c];
            const int w = wraps && *width >= WIDE ? longest_word(cell) : cell->width;
            if (w > *width) *width = w;
        }
}

static int total_width(const struct markdown_table *t) {
    int total = 1;
    for (size_t c = 0; c < t->columns->n; c++) total += t->columns->widths[c] + 3;
    return total;
}

/* Gives columns something to spare for the rows that follow; numbers seldom need it. */
static void add_slack(struct markdown_table *t, int room) {
    enum { OF_NUMBERS = 2, OF_TEXT = 4, MOST = 12 };
    int spare = room ? room - total_width(t) : MOST * (int)t->columns->n;
    for (size_t c = 0; c < t->columns->n; c++) {
        int *width = &t->columns->widths[c];
        int more = is_right(rule_of(t, c)) ? OF_NUMBERS : OF_TEXT + *width / 2;
        if (more > MOST) more = MOST;
        if (more > spare) more = spare > 0 ? spare : 0;
        *width += more;
        spare -= more;
    }
}

static void put_repeated(struct buf *out, char c, int n) {
    while (n-- > 0) buf_char(out, c);
}

static void put_rule(const struct table_cell *c, int width, struct buf *out) {
    bool left = c->text[0] == ':', right = c->n > 1 && c->text[c->n - 1] == ':';
    if (left) buf_char(out, ':');
    put_repeated(out, '-', width - left - right > 1 ? width - left - right : 1);
    if (right) buf_char(out, ':');
}

static void put_cell(const struct markdown_table *t, size_t column, const struct table_cell *c, struct buf *out) {
    const struct table_cell *rule = rule_of(t, column);
    bool right = rule && rule->text[rule->n - 1] == ':', both = right && rule->text[0] == ':';
    int pad = t->columns->widths[column] - c->width, before = both ? pad / 2 : right ? pad : 0;
    put_repeated(out, ' ', before);
    buf_add(out, c->text, c->n);
    put_repeated(out, ' ', pad - before);
}

/* Removes the beginning of a cell that fits in the column, up to a blank if there is one, and returns it. */
static struct table_cell take_piece(struct table_cell *rest, int width) {
    size_t n = columns_fit(rest->text, rest->n, width), cut = n;
    if (n < rest->n) {
        while (cut && rest->text[cut] != ' ') cut--;
        if (cut) n = cut;
    }
    struct table_cell piece = {rest->text, n, columns_of_text(rest->text, n)};
    rest->text += n, rest->n -= n;
    while (rest->n && *rest->text == ' ') rest->text++, rest->n--;
    return piece;
}

/* Prints a row. Cells that are wider than their columns take several lines. */
static void put_table_row(struct markdown_table *t, size_t i, bool color, struct buf *out) {
    const struct table_row *r = &t->rows[i];
    struct table_cell *cells = t->cells + r->first;
    for (bool more = true, first = true; more; first = false) {
        if (!first) buf_char(out, '\n');
        if (color && !i) buf_str(out, "\033[0;1m");
        more = false;
        for (size_t c = 0; c < r->n; c++) {
            buf_str(out, "| ");
            if (i == 1) put_rule(&cells[c], t->columns->widths[c], out);
            else {
                struct table_cell piece = take_piece(&cells[c], t->columns->widths[c]);
                put_cell(t, c, &piece, out);
                more |= cells[c].n > 0;
            }
            if (c + 1 < r->n || r->closed) buf_char(out, ' ');
        }
        if (r->closed || !r->n) buf_char(out, '|');
        if (color && !i) buf_str(out, "\033[0m");
    }
}

/* Narrows the widest columns until the table fits. False if the room is too small. */
static bool narrow_columns(struct markdown_table *t, int room) {
    enum { MIN_WIDTH = 6 };
    int *widths = t->columns->widths;
    for (int total = total_width(t); total > room; total--) {
        size_t widest = 0;
        for (size_t c = 1; c < t->columns->n; c++)
            if (widths[c] > widths[widest]) widest = c;
        if (widths[widest] <= MIN_WIDTH) return false;
        widths[widest]--;
    }
    return true;
}

bool markdown_table_format(struct buf *text, struct markdown_columns *k, const struct markdown_table_form *f,
                           struct buf *out) {
    struct markdown_table t = {.columns = k};
    int rc = 0;
    const bool is_begun = k->n > 0;
    const size_t first = is_begun ? 2 : 0; /* the rows before it were printed */
    for (size_t i = 0; i < text->len; i++)
        if (text->data[i] == '\t') text->data[i] = ' ';
    for (size_t i = 0, n; i < text->len && !rc; i += n + 1) {
        n = strcspn(text->data + i, "\n");
        rc = add_row(&t, text->data + i, n);
    }
    bool fits = !rc && t.n_rows > 1 && is_rule(&t, &t.rows[1]);
    if (fits) rc = add_columns(&t);
    fits = fits && !rc;
    out->failed |= rc != 0;
    if (fits) widen_columns(&t, first, is_begun && f->wraps);
    if (fits && !is_begun && f->goes_on) add_slack(&t, f->room);
    fits = fits && (!f->room || total_width(&t) <= f->room || (f->wraps && narrow_columns(&t, f->room)));
    for (size_t i = first; fits && i < t.n_rows; i++) {
        put_table_row(&t, i, f->color, out);
        if (i + 1 < t.n_rows || text->data[text->len - 1] == '\n') buf_char(out, '\n');
    }
    mem_free(t.cells);
    mem_free(t.rows);
    return fits;
}
