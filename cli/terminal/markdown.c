#include "cli/terminal/markdown.h"
#include "cli/terminal/columns.h"

#include <ctype.h>
#include <string.h>

#include <utf8proc.h>

#include "base/mem.h"

/* Bytes: of a grapheme cluster; of a line's beginning that may be a mark; of a link that is not broken. */
enum { MAX_CLUSTER = 256, MAX_LINE_START = 48, MAX_LINK = 4096 };
enum { BOLD = 1, ITALIC = 2, CODE = 4, TITLE = 8, QUOTE = 16, MARK = 32, LINK = 64 }; /* styles */

void markdown_init(struct markdown *s, int cols, bool color) {
    *s = (struct markdown){.cols = cols, .color = color, .line_undecided = true};
}

void markdown_free(struct markdown *s) {
    struct buf *all[] = {&s->filtered, &s->line_start, &s->table, &s->word, &s->styles};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buf_free(all[i]);
    mem_free(s->columns.widths);
    s->columns = (struct markdown_columns){0};
}

void markdown_resize(struct markdown *s, int cols) {
    if (s->cols && s->col) s->col = cols;
    if (s->cols) s->cols = cols;
}

/* The last column stays free: a terminal that filled it delays the wrap until the next character. */
static int screen_cols(const struct markdown *s) { return s->cols < 5 ? 4 : s->cols - 1; }
static int usable_cols(const struct markdown *s) {
    return s->text_cols && s->text_cols < screen_cols(s) ? s->text_cols : screen_cols(s);
}

/* --- output ----------------------------------------------------------------------------------- */

static void put_style(unsigned style, struct buf *out) {
    static const char *const codes[] = {"1", "3", "36", "1;35", "2", "33", "4"};
    buf_str(out, "\033[0");
    for (int i = 0; i < 7; i++)
        if (style >> i & 1) buf_fmt(out, ";%s", codes[i]);
    buf_char(out, 'm');
}

static void put_blanks(struct markdown *s, int n, struct buf *out) {
    for (int i = 0; i < n; i++) buf_char(out, ' ');
    s->col += n;
    if (s->cols && s->col > s->cols) s->col = (s->col - 1) % s->cols + 1;
}

static void next_row(struct markdown *s, struct buf *out) {
    buf_char(out, '\n');
    s->col = 0;
}

static void clear_buf(struct buf *b) {
    b->len = 0;
    b->failed = false;
}

/* Colours a word of code by its language. */
static void highlight_code(struct markdown *s) {
    static const unsigned char styles[] = {
        [HIGHLIGHT_PLAIN] = 0, [HIGHLIGHT_KEYWORD] = CODE, [HIGHLIGHT_STRING] = MARK, [HIGHLIGHT_COMMENT] = QUOTE};
    if (!s->verbatim || s->fence_line || !s->code.lang || s->styles.len < s->word.len) return;
    unsigned char *kinds = (unsigned char *)s->styles.data;
    highlight_word(&s->code, s->word.data, s->word.len, kinds);
    for (size_t i = 0; i < s->word.len; i++) kinds[i] = styles[kinds[i]];
}

/* Flushes a word. Colours begin and end with each word, so that other output may be printed between words. */
static void end_word(struct markdown *s, struct buf *out) {
    const char *p = s->word.data;
    size_t n = s->word.len < s->styles.len ? s->word.len : s->styles.len;
    bool breaks = s->cols && !s->verbatim;
    unsigned current = 0;
    out->failed |= s->word.failed || s->styles.failed;
    int hang = s->indent < usable_cols(s) / 2 ? s->indent : usable_cols(s) / 2, w;
    if (!n) return;
    highlight_code(s);
    if (breaks && s->pending_blanks > usable_cols(s) / 2) s->pending_blanks = usable_cols(s) / 2;
    if (breaks && s->col && s->col + s->pending_blanks + s->width > usable_cols(s)) {
        next_row(s, out);
        put_blanks(s, hang, out);
    } else put_blanks(s, s->pending_blanks, out);
    s->pending_blanks = 0;
    for (size_t i = 0, k; i < n; i += k) {
        unsigned style = (unsigned char)s->styles.data[i] | (s->link ? LINK : 0);
        k = columns_of_char(p + i, n - i, &w);
        if (breaks && !s->link && s->col + w > usable_cols(s)) {
            next_row(s, out);
            put_blanks(s, hang, out);
        }
        if (s->color && style != current) put_style(current = style, out);
        buf_add(out, p + i, k);
        if (s->cols && s->col + w > s->cols) s->col = 0; /* the terminal has wrapped */
        s->col += w;
    }
    if (current) buf_str(out, "\033[0m");
    clear_buf(&s->word);
    clear_buf(&s->styles);
    s->width = 0;
    s->link = s->after_wide = s->after_opening = false;
}

/* Rows may also break next to wide characters, but not before closing punctuation or after opening punctuation. */
static bool may_break(const struct markdown *s, const char *p, size_t n, int w) {
    utf8proc_int32_t c;
    if (!s->word.len || s->link || s->after_opening || (!s->after_wide && w < 2)) return false;
    if (utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &c) <= 0) return false;
    utf8proc_category_t kind = utf8proc_category(c);
    return kind != UTF8PROC_CATEGORY_PE && kind != UTF8PROC_CATEGORY_PF && kind != UTF8PROC_CATEGORY_PO &&
           kind != UTF8PROC_CATEGORY_LM;
}

static void add_to_word(struct markdown *s, const char *p, size_t n, int w, unsigned style, struct buf *out) {
    utf8proc_int32_t c = 0;
    if (may_break(s, p, n, w)) end_word(s, out);
    buf_add(&s->word, p, n);
    for (size_t i = 0; i < n; i++) buf_char(&s->styles, (char)style);
    s->width += w;
    s->after_wide = w > 1;
    utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &c);
    s->after_opening = utf8proc_category(c) == UTF8PROC_CATEGORY_PS || utf8proc_category(c) == UTF8PROC_CATEGORY_PI;
    if (*p == '/' && s->word.len >= sizeof "http://" - 1 && !memcmp(s->word.data + s->word.len - 3, "://", 3))
        s->link = !s->verbatim;
    if (s->word.len > MAX_LINK) s->link = false;
    if (s->verbatim ? s->word.len > MAX_CLUSTER : s->cols && !s->link && s->width >= usable_cols(s)) end_word(s, out);
}

/* --- emphasis and code within a line ---------------------------------------------------------- */

static void toggle_style(struct markdown *s, unsigned char style, bool opens, bool closes, unsigned *shown) {
    *shown = s->style | style;
    if (s->style & style ? closes : opens) s->style ^= style;
    else *shown = s->style;
}

/* Ends a run of equal marks; next is the following character, a blank at the end of a line. */
static void end_marks(struct markdown *s, char next, struct buf *out) {
    bool opens = !isspace((unsigned char)next), closes = !isspace((unsigned char)s->prev_char) && s->prev_char;
    unsigned shown = s->style, style_before = s->style;
    if (!s->mark) return;
    if (s->mark == '`' && (!s->code_ticks || s->code_ticks == s->n_marks)) {
        shown |= CODE;
        s->style ^= CODE;
        s->code_ticks = s->code_ticks ? 0 : s->n_marks;
    } else if (s->mark != '`' && !s->code_ticks && s->n_marks <= 3) {
        bool inside = isalnum((unsigned char)s->prev_char) && (s->mark == '_' || s->n_marks == 1),
             goes_on = isalnum((unsigned char)next) && s->mark == '_';
        toggle_style(s,
                     s->n_marks == 1   ? ITALIC
                     : s->n_marks == 2 ? BOLD
                                       : BOLD | ITALIC,
                     opens && !inside, closes && !goes_on, &shown);
    }
    bool hidden = s->hide_marks && s->color && s->style != style_before;
    for (int i = 0; i < s->n_marks && !hidden; i++) add_to_word(s, &s->mark, 1, 1, s->line_style | shown, out);
    s->prev_char = s->mark;
    s->mark = 0;
    s->n_marks = 0;
}

static void put_inline(struct markdown *s, const char *p, size_t n, int w, struct buf *out) {
    char c = n == 1 ? *p : 'a'; /* non-ASCII counts as a letter */
    bool literal = s->escaped;
    if (s->mark && (c != s->mark || literal)) end_marks(s, c, out);
    s->escaped = c == '\\' && !literal && !s->code_ticks;
    if (!literal && (c == '*' || c == '_' || c == '`')) {
        s->mark = c;
        s->n_marks++;
        return;
    }
    add_to_word(s, p, n, w, s->line_style | s->style, out);
    s->prev_char = c;
}

static void put_blank(struct markdown *s, char c, struct buf *out) {
    end_marks(s, ' ', out);
    end_word(s, out);
    s->pending_blanks += c == '\t' ? 8 - (s->col + s->pending_blanks) % 8 : 1;
    s->prev_char = ' ';
    s->escaped = false;
}

/* --- line kinds ------------------------------------------------------------------------------- */

static size_t run_length(const char *s, size_t n, const char *set) {
    size_t i = 0;
    while (i < n && strchr(set, s[i]) && s[i] && s[i] == s[0]) i++;
    return i;
}

struct line_kind {
    enum { TEXT, HEADING, ITEM, QUOTED, FENCE, TABLE, OPEN } kind; /* OPEN: not decided yet */
    size_t mark;                                                   /* length of its mark in bytes, with indent */
};
static struct line_kind classify_line(const struct markdown *s, bool is_complete) {
    const char *start = s->line_start.data ? s->line_start.data : "";
    size_t n = s->line_start.len, indent = 0, k;
    while (indent < n && start[indent] == ' ') indent++;
    struct line_kind text = {TEXT, indent}, open = {is_complete || n >= MAX_LINE_START ? TEXT : OPEN, indent};
    const char *p = start + indent;
    n -= indent;
    if (!n) return open;
    bool ends = !is_complete && strchr(" \t", p[n - 1]) && p[n - 1]; /* the last byte is the blank after a mark */
    if (s->fence) {
        k = run_length(p, n, s->fence == '`' ? "`" : "~");
        if (indent > 3 || !k) return text;
        if (is_complete)
            return (struct line_kind){(int)k >= s->fence_len && strspn(p + k, " \t") == n - k ? FENCE : TEXT, indent};
        return k + strspn(p + k, " \t") == n ? open : text;
    }
    if ((k = run_length(p, n, "#"))) {
        if (k <= 6 && k == n) return open;
        return k <= 6 && ends ? (struct line_kind){HEADING, indent + k} : text;
    }
    if ((k = run_length(p, n, "`~"))) {
        /* ```x``` on one line is not a block */
        if (indent > 3 || (k < n && (k < 3 || memchr(p + k, '`', n - k)))) return text;
        return k >= 3 && (is_complete || open.kind == TEXT) ? (struct line_kind){FENCE, indent} : open;
    }
    if (*p == '>') return (struct line_kind){QUOTED, indent + 1};
    if (*p == '|') return (struct line_kind){TABLE, indent};
    k = strchr("-*+", *p) ? 1 : 0;
    if (!k) {
        while (k < n && k < 9 && isdigit((unsigned char)p[k])) k++;
        if (!k) return text;
        if (k == n) return open;
        k = p[k] == '.' || p[k] == ')' ? k + 1 : 0;
    }
    if (!k) return text;
    return k == n ? open : ends && k == n - 1 ? (struct line_kind){ITEM, indent + k} : text;
}

static void put_text_cluster(struct markdown *s, const char *p, size_t n, int w, struct buf *out) {
    if (*p == ' ' || *p == '\t') put_blank(s, *p, out);
    else if (s->verbatim) add_to_word(s, p, n, w, CODE, out);
    else put_inline(s, p, n, w, out);
}

static bool is_blank(char c) { return c == '\n' || c == ' ' || c == '\t'; }

/* Like columns_of_char(), but a blank is a cluster of its own: a combining mark after it is text and must not be laid
 * out with it. */
static size_t next_cluster(const char *s, size_t n, int *width) {
    *width = 1;
    return is_blank(*s) ? 1 : columns_of_char(s, n, width);
}

static void put_text(struct markdown *s, const char *p, size_t n, struct buf *out) {
    int w;
    for (size_t i = 0, k; i < n; i += k) {
        k = next_cluster(p + i, n - i, &w);
        put_text_cluster(s, p + i, k, w, out);
    }
}

static void end_line(struct markdown *s, struct buf *out) {
    end_marks(s, ' ', out);
    end_word(s, out);
    s->pending_blanks = s->indent = s->code_ticks = 0;
    s->line_style = s->style = 0;
    s->prev_char = 0;
    if (s->verbatim && !s->fence_line) highlight_end_line(&s->code);
    s->escaped = s->verbatim = s->fence_line = false;
    s->line_undecided = true;
}

/* Returns the length of the first n lines. */
static size_t lines_length(const struct buf *b, int n) {
    size_t at = 0;
    for (; n > 0 && at < b->len; n--) {
        const char *end = memchr(b->data + at, '\n', b->len - at);
        at = end ? (size_t)(end - b->data) + 1 : b->len;
    }
    return at;
}

/* Leaves a table its header, the rule below it, and the row that is not complete. */
static void drop_rows(struct buf *table) {
    size_t head = lines_length(table, 2), last = table->len;
    while (last > head && table->data[last - 1] != '\n') last--;
    if (head >= last) return;
    memmove(table->data + head, table->data + last, table->len - last);
    table->len -= last - head;
    table->data[table->len] = 0;
}

/* Prints lines that are no table. */
static void put_lines(struct markdown *s, const char *p, size_t len, struct buf *out) {
    for (size_t i = 0, n; i < len; i += n + 1) {
        const char *end = memchr(p + i, '\n', len - i);
        n = end ? (size_t)(end - p) - i : len - i;
        s->indent = 2;
        put_text(s, p + i, n, out);
        end_line(s, out);
        if (i + n < len) next_row(s, out);
    }
}

/* Prints the rows of the table that were not printed yet, or, if it is none, its lines as text. */
static void print_rows(struct markdown *s, bool goes_on, struct buf *out) {
    struct buf *t = &s->table;
    const size_t printed = s->columns.n ? lines_length(t, 2) : 0;
    const struct markdown_table_form form = {s->cols ? screen_cols(s) : 0, s->color, s->wrap_tables, goes_on};
    out->failed |= t->failed;
    if (t->len == printed) return;
    if (s->col) next_row(s, out); /* after a resize */
    if (!s->table_is_text && markdown_table_format(t, &s->columns, &form, out)) {
        drop_rows(t);
        return;
    }
    struct buf lines = *t;
    *t = (struct buf){0};
    s->table_is_text = true;
    s->columns.n = 0;
    put_lines(s, lines.data + printed, lines.len - printed, out);
    buf_free(&lines);
}

/* Prints complete rows: at first the head, its rule and a row, then each. */
static void show_rows(struct markdown *s, struct buf *out) {
    const size_t head = lines_length(&s->table, 2);
    if (s->table_is_text || s->columns.n || s->table.len > head) print_rows(s, true, out);
}

/* Ends the table. */
static void flush_table(struct markdown *s, struct buf *out) {
    out->failed |= s->table.failed;
    if (s->table.len) print_rows(s, false, out);
    buf_free(&s->table);
    s->columns.n = 0;
    s->table_is_text = false;
}

/* p: an opening fence with the name of a language, or a closing one. */
static void begin_or_end_fence(struct markdown *s, const char *p, size_t n) {
    size_t k = run_length(p, n, "`~"), name = k + strspn(p + k, " ");
    s->fence_len = (int)k;
    s->fence = s->fence ? 0 : *p;
    s->code = (struct highlight){0};
    s->fence_line = true;
    if (s->fence && name < n) highlight_begin(&s->code, p + name, strcspn(p + name, " \t{:"));
}

/* Decides on the kind of the line in line_start, if its bytes suffice. */
static void decide_line(struct markdown *s, bool is_complete, struct buf *out) {
    struct line_kind k = classify_line(s, is_complete);
    struct buf start = s->line_start;
    if (k.kind == OPEN) return;
    s->line_start = (struct buf){0};
    s->line_undecided = false;
    out->failed |= start.failed;
    if (k.kind == TABLE) {
        s->line_undecided = true; /* the rest of the line goes to the table */
        buf_add(&s->table, start.data, start.len);
        buf_free(&start);
        return;
    }
    flush_table(s, out);
    s->line_undecided = false;
    s->indent = k.kind == ITEM || k.kind == QUOTED ? (int)k.mark + 1 : (int)k.mark;
    if (k.kind == HEADING) s->line_style = TITLE, s->indent = 0;
    if (k.kind == QUOTED) s->line_style = QUOTE;
    s->verbatim = s->fence || k.kind == FENCE;
    size_t from = 0;
    if (k.kind == FENCE) begin_or_end_fence(s, start.data + k.mark, start.len - k.mark);
    if (s->hide_marks && s->color && k.kind == FENCE) s->dropped_row = true, from = start.len;
    if (s->hide_marks && s->color && k.kind == HEADING)
        for (from = k.mark; from < start.len && start.data[from] == ' ';) from++;
    for (; k.kind == ITEM && from < k.mark; from++) {
        if (start.data[from] == ' ') put_blank(s, ' ', out);
        else add_to_word(s, start.data + from, 1, 1, MARK, out);
    }
    if (start.len > from) put_text(s, start.data + from, start.len - from, out);
    buf_free(&start);
}

/* --- input ------------------------------------------------------------------------------------ */

/* True within a line that began as a table row. */
static bool within_table(const struct markdown *s) {
    return s->line_undecided && !s->line_start.len && s->table.len && s->table.data[s->table.len - 1] != '\n';
}

static void put_cluster(struct markdown *s, const char *p, size_t n, int w, struct buf *out) {
    if (s->plain && *p != '\n') {
        s->verbatim = true;
        if (*p == '\t') put_blank(s, *p, out);
        else add_to_word(s, p, n, w, 0, out);
        end_word(s, out);
    } else if (within_table(s)) {
        buf_add(&s->table, p, n);
        if (*p == '\n') show_rows(s, out);
    } else if (*p == '\n') {
        if (s->line_undecided && s->line_start.len) decide_line(s, true, out);
        flush_table(s, out);
        end_line(s, out);
        if (!s->dropped_row) next_row(s, out);
        s->dropped_row = false;
    } else if (s->line_undecided) {
        buf_add(&s->line_start, p, n);
        decide_line(s, false, out);
    } else put_text_cluster(s, p, n, w, out);
}

static void drain_clusters(struct markdown *s, bool at_end, struct buf *out) {
    size_t at = 0;
    while (at < s->filtered.len) {
        const char *p = s->filtered.data + at;
        size_t n = s->filtered.len - at, seen = n < MAX_CLUSTER ? n : MAX_CLUSTER;
        int w;
        const size_t k = next_cluster(p, seen, &w);
        if (k == seen && n < MAX_CLUSTER && !at_end && !is_blank(*p)) break; /* it may continue */
        put_cluster(s, p, k, w, out);
        at += k;
    }
    memmove(s->filtered.data, s->filtered.data + at, s->filtered.len - at + 1);
    s->filtered.len -= at;
}

void markdown_add(struct markdown *s, const char *data, size_t n, struct buf *out) {
    sanitize_add(&s->filter, data, n, &s->filtered);
    out->failed |= s->filtered.failed;
    if (s->filtered.len) drain_clusters(s, false, out);
}

void markdown_resume(struct markdown *s, const char *data, size_t n) {
    struct buf shown = {0};
    markdown_add(s, data, n, &shown);
    sanitize_flush(&s->filter, &s->filtered);
    if (s->filtered.len) drain_clusters(s, true, &shown);
    if (s->table.len) drop_rows(&s->table);
    s->columns.n = 0; /* the head is printed again */
    buf_free(&shown);
    clear_buf(&s->word);
    clear_buf(&s->styles);
    s->width = s->pending_blanks = s->col = 0;
}

void markdown_flush(struct markdown *s, struct buf *out) {
    sanitize_flush(&s->filter, &s->filtered);
    out->failed |= s->filtered.failed;
    if (s->filtered.len) drain_clusters(s, true, out);
    if (s->line_undecided && s->line_start.len) decide_line(s, true, out);
    flush_table(s, out);
    end_line(s, out);
    s->fence = 0;
    s->dropped_row = false;
    s->code = (struct highlight){0};
    s->col = 0;
}
