#include "cli/style.h"

#include <ctype.h>
#include <string.h>

#include <utf8proc.h>

enum { MAX_CLUSTER = 256, MAX_HEAD = 48, MAX_LINK = 4096, MAX_TABLE = 1 << 16 };
enum { BOLD = 1, ITALIC = 2, CODE = 4, TITLE = 8, QUOTE = 16, MARK = 32, LINK = 64 }; /* looks */

void style_init(struct style *s, int cols, bool color) { *s = (struct style){.cols = cols, .color = color, .at_head = true}; }

void style_free(struct style *s) {
    struct buf *all[] = {&s->in, &s->head, &s->table, &s->word, &s->looks};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buf_free(all[i]);
}

void style_resize(struct style *s, int cols) {
    if (s->cols && s->col) s->col = cols;
    if (s->cols) s->cols = cols;
}

/* The last column stays free: a terminal that filled it delays the wrap until the next character. */
static int room(const struct style *s) { return s->cols < 5 ? 4 : s->cols - 1; }

/* --- output ---------------------------------------------------------------------------------------------------------- */

static void put_look(unsigned look, struct buf *out) {
    static const char *const codes[] = {"1", "3", "36", "1;35", "2", "33", "4"};
    buf_str(out, "\033[0");
    for (int i = 0; i < 7; i++)
        if (look >> i & 1) buf_fmt(out, ";%s", codes[i]);
    buf_char(out, 'm');
}

static void put_blanks(struct style *s, int n, struct buf *out) {
    for (int i = 0; i < n; i++) buf_char(out, ' ');
    s->col += n;
    if (s->cols && s->col > s->cols) s->col = (s->col - 1) % s->cols + 1;
}

static void next_row(struct style *s, struct buf *out) {
    buf_char(out, '\n');
    s->col = 0;
}

static void empty(struct buf *b) {
    b->len = 0;
    b->failed = false;
}

/* Flushes a word. Colours begin and end with each word, so that other output may be printed between words. */
static void end_word(struct style *s, struct buf *out) {
    const char *p = s->word.data;
    size_t n = s->word.len < s->looks.len ? s->word.len : s->looks.len;
    bool broken = s->cols && !s->whole_rows;
    unsigned now = 0;
    out->failed |= s->word.failed || s->looks.failed;
    int hang = s->hang < room(s) / 2 ? s->hang : room(s) / 2, w;
    if (!n) return;
    if (broken && s->blanks > room(s) / 2) s->blanks = room(s) / 2;
    if (broken && s->col && s->col + s->blanks + s->width > room(s)) {
        next_row(s, out);
        put_blanks(s, hang, out);
    } else put_blanks(s, s->blanks, out);
    s->blanks = 0;
    for (size_t i = 0, k; i < n; i += k) {
        unsigned look = (unsigned char)s->looks.data[i] | (s->link ? LINK : 0);
        k = render_char(p + i, n - i, &w);
        if (broken && !s->link && s->col + w > room(s)) {
            next_row(s, out);
            put_blanks(s, hang, out);
        }
        if (s->color && look != now) put_look(now = look, out);
        buf_add(out, p + i, k);
        if (s->cols && s->col + w > s->cols) s->col = 0; /* the terminal has wrapped */
        s->col += w;
    }
    if (now) buf_str(out, "\033[0m");
    empty(&s->word);
    empty(&s->looks);
    s->width = 0;
    s->link = s->after_wide = s->opening = false;
}

/* Rows may also break next to wide characters, but not before closing punctuation or after opening punctuation. */
static bool may_break(const struct style *s, const char *p, size_t n, int w) {
    utf8proc_int32_t c;
    if (!s->word.len || s->link || s->opening || (!s->after_wide && w < 2)) return false;
    if (utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &c) <= 0) return false;
    utf8proc_category_t kind = utf8proc_category(c);
    return kind != UTF8PROC_CATEGORY_PE && kind != UTF8PROC_CATEGORY_PF && kind != UTF8PROC_CATEGORY_PO && kind != UTF8PROC_CATEGORY_LM;
}

static void put(struct style *s, const char *p, size_t n, int w, unsigned look, struct buf *out) {
    utf8proc_int32_t c = 0;
    if (may_break(s, p, n, w)) end_word(s, out);
    buf_add(&s->word, p, n);
    for (size_t i = 0; i < n; i++) buf_char(&s->looks, (char)look);
    s->width += w;
    s->after_wide = w > 1;
    utf8proc_iterate((const utf8proc_uint8_t *)p, (utf8proc_ssize_t)n, &c);
    s->opening = utf8proc_category(c) == UTF8PROC_CATEGORY_PS || utf8proc_category(c) == UTF8PROC_CATEGORY_PI;
    if (*p == '/' && s->word.len >= 7 && !memcmp(s->word.data + s->word.len - 3, "://", 3)) s->link = !s->whole_rows;
    if (s->word.len > MAX_LINK) s->link = false;
    if (s->whole_rows ? s->word.len > MAX_CLUSTER : s->cols && !s->link && s->width >= room(s)) end_word(s, out);
}

/* --- emphasis and code within a line --------------------------------------------------------------------------------- */

static void toggle(struct style *s, unsigned look, bool opens, bool closes, unsigned *shown) {
    *shown = s->look | look;
    if (s->look & look ? closes : opens) s->look ^= look;
    else *shown = s->look;
}

/* Ends a run of equal marks; next is the following character, a blank at the end of a line. */
static void end_run(struct style *s, char next, struct buf *out) {
    bool opens = !isspace((unsigned char)next), closes = !isspace((unsigned char)s->before) && s->before;
    unsigned shown = s->look;
    if (!s->run) return;
    if (s->run == '`' && (!s->ticks || s->ticks == s->run_n)) {
        shown |= CODE;
        s->look ^= CODE;
        s->ticks = s->ticks ? 0 : s->run_n;
    } else if (s->run != '`' && !s->ticks && s->run_n <= 3) {
        bool inside = isalnum((unsigned char)s->before) && (s->run == '_' || s->run_n == 1), goes_on = isalnum((unsigned char)next) && s->run == '_';
        toggle(s, s->run_n == 1 ? ITALIC : s->run_n == 2 ? BOLD : BOLD | ITALIC, opens && !inside, closes && !goes_on, &shown);
    }
    for (int i = 0; i < s->run_n; i++) put(s, &s->run, 1, 1, s->line_look | shown, out);
    s->before = s->run;
    s->run = 0;
    s->run_n = 0;
}

static void put_inline(struct style *s, const char *p, size_t n, int w, struct buf *out) {
    char c = n == 1 ? *p : 'a'; /* non-ASCII counts as a letter */
    bool literal = s->escaped;
    if (s->run && (c != s->run || literal)) end_run(s, c, out);
    s->escaped = c == '\\' && !literal && !s->ticks;
    if (!literal && (c == '*' || c == '_' || c == '`')) {
        s->run = c;
        s->run_n++;
        return;
    }
    put(s, p, n, w, s->line_look | s->look, out);
    s->before = c;
}

static void put_blank(struct style *s, char c, struct buf *out) {
    end_run(s, ' ', out);
    end_word(s, out);
    s->blanks += c == '\t' ? 8 - (s->col + s->blanks) % 8 : 1;
    s->before = ' ';
    s->escaped = false;
}

/* --- line kinds ------------------------------------------------------------------------------------------------------ */

static size_t run_of(const char *s, size_t n, const char *set) {
    size_t i = 0;
    while (i < n && strchr(set, s[i]) && s[i] && s[i] == s[0]) i++;
    return i;
}

struct line_kind {
    enum { TEXT, HEADING, ITEM, QUOTED, FENCE, TABLE, OPEN } kind; /* OPEN: not decided yet */
    size_t mark;                                                   /* length of its mark in bytes, with indent */
};
static struct line_kind kind_of(const struct style *s, bool whole) {
    const char *h = s->head.data ? s->head.data : "";
    size_t n = s->head.len, in = 0, k;
    while (in < n && h[in] == ' ') in++;
    struct line_kind text = {TEXT, in}, open = {whole || n >= MAX_HEAD ? TEXT : OPEN, in};
    const char *p = h + in;
    n -= in;
    if (!n) return open;
    bool ends = !whole && strchr(" \t", p[n - 1]) && p[n - 1]; /* the last byte is the blank after a mark */
    if (s->fence) {
        k = run_of(p, n, s->fence == '`' ? "`" : "~");
        if (in > 3 || !k) return text;
        if (whole) return (struct line_kind){(int)k >= s->fence_n && strspn(p + k, " \t") == n - k ? FENCE : TEXT, in};
        return k + strspn(p + k, " \t") == n ? open : text;
    }
    if ((k = run_of(p, n, "#"))) return k > 6 ? text : k == n ? open : ends ? (struct line_kind){HEADING, in + k} : text;
    if ((k = run_of(p, n, "`~"))) {
        if (in > 3 || (k < n && (k < 3 || memchr(p + k, '`', n - k)))) return text; /* ```x``` on one line is not a block */
        return k >= 3 && (whole || open.kind == TEXT) ? (struct line_kind){FENCE, in} : open;
    }
    if (*p == '>') return (struct line_kind){QUOTED, in + 1};
    if (*p == '|') return (struct line_kind){TABLE, in};
    k = strchr("-*+", *p) ? 1 : 0;
    if (!k) {
        while (k < n && k < 9 && isdigit((unsigned char)p[k])) k++;
        if (!k) return text;
        if (k == n) return open;
        k = p[k] == '.' || p[k] == ')' ? k + 1 : 0;
    }
    if (!k) return text;
    return k == n ? open : ends && k == n - 1 ? (struct line_kind){ITEM, in + k} : text;
}

static void put_body(struct style *s, const char *p, size_t n, int w, struct buf *out) {
    if (*p == ' ' || *p == '\t') put_blank(s, *p, out);
    else if (s->whole_rows) put(s, p, n, w, CODE, out);
    else put_inline(s, p, n, w, out);
}

static void put_bodies(struct style *s, const char *p, size_t n, struct buf *out) {
    int w;
    for (size_t i = 0, k; i < n; i += k) {
        k = render_char(p + i, n - i, &w);
        put_body(s, p + i, k, w, out);
    }
}

static void end_line(struct style *s, struct buf *out) {
    end_run(s, ' ', out);
    end_word(s, out);
    s->blanks = s->hang = s->ticks = 0;
    s->line_look = s->look = 0;
    s->before = 0;
    s->escaped = s->whole_rows = false;
    s->at_head = true;
}

/* Prints the table, or, if it is not one, its lines as text. */
static void put_table(struct style *s, struct buf *out) {
    struct buf t = s->table;
    if (!t.len) return;
    s->table = (struct buf){0};
    out->failed |= t.failed;
    if (s->col) next_row(s, out); /* after a resize */
    if (!style_table(&t, s->cols ? room(s) : 0, s->color, out))
        for (size_t i = 0, n; i < t.len; i += n + 1) {
            n = strcspn(t.data + i, "\n");
            s->hang = 2;
            put_bodies(s, t.data + i, n, out);
            end_line(s, out);
            if (i + n < t.len) next_row(s, out);
        }
    buf_free(&t);
}

/* Decides on the kind of the line in head; whole: the line is complete. */
static void end_head(struct style *s, bool whole, struct buf *out) {
    struct line_kind k = kind_of(s, whole);
    struct buf h = s->head;
    if (k.kind == OPEN) return;
    s->head = (struct buf){0};
    s->at_head = false;
    out->failed |= h.failed;
    if (k.kind == TABLE) {
        s->at_head = true; /* the rest of the line goes to the table */
        buf_add(&s->table, h.data, h.len);
        buf_free(&h);
        return;
    }
    put_table(s, out);
    s->at_head = false;
    s->hang = k.kind == ITEM || k.kind == QUOTED ? (int)k.mark + 1 : (int)k.mark;
    if (k.kind == HEADING) s->line_look = TITLE, s->hang = 0;
    if (k.kind == QUOTED) s->line_look = QUOTE;
    s->whole_rows = s->fence || k.kind == FENCE;
    if (k.kind == FENCE) {
        s->fence_n = (int)run_of(h.data + k.mark, h.len - k.mark, "`~");
        s->fence = s->fence ? 0 : h.data[k.mark];
    }
    size_t from = 0;
    for (; k.kind == ITEM && from < k.mark; from++) {
        if (h.data[from] == ' ') put_blank(s, ' ', out);
        else put(s, h.data + from, 1, 1, MARK, out);
    }
    if (h.len > from) put_bodies(s, h.data + from, h.len - from, out);
    buf_free(&h);
}

/* --- input ----------------------------------------------------------------------------------------------------------- */

/* True within a line that began as a table row. */
static bool within_table(const struct style *s) { return s->at_head && !s->head.len && s->table.len && s->table.data[s->table.len - 1] != '\n'; }

static void put_cluster(struct style *s, const char *p, size_t n, int w, struct buf *out) {
    if (s->plain && *p != '\n') {
        s->whole_rows = true;
        if (*p == '\t') put_blank(s, *p, out);
        else put(s, p, n, w, 0, out);
        end_word(s, out);
    } else if (within_table(s)) {
        buf_add(&s->table, p, n);
        if (s->table.len > MAX_TABLE && *p == '\n') put_table(s, out);
    } else if (*p == '\n') {
        if (s->at_head && s->head.len) end_head(s, true, out);
        put_table(s, out);
        end_line(s, out);
        next_row(s, out);
    } else if (s->at_head) {
        buf_add(&s->head, p, n);
        end_head(s, false, out);
    } else put_body(s, p, n, w, out);
}

static void drain(struct style *s, bool end, struct buf *out) {
    size_t at = 0;
    while (at < s->in.len) {
        const char *p = s->in.data + at;
        size_t n = s->in.len - at, seen = n < MAX_CLUSTER ? n : MAX_CLUSTER, k = 1;
        int w = 1;
        if (*p != '\n' && *p != ' ' && *p != '\t') {
            k = render_char(p, seen, &w);
            if (k == seen && n < MAX_CLUSTER && !end) break; /* it may continue */
        }
        put_cluster(s, p, k, w, out);
        at += k;
    }
    memmove(s->in.data, s->in.data + at, s->in.len - at + 1);
    s->in.len -= at;
}

void style_add(struct style *s, const char *data, size_t n, struct buf *out) {
    filter_add(&s->filter, data, n, &s->in);
    out->failed |= s->in.failed;
    if (s->in.len) drain(s, false, out);
}

void style_flush(struct style *s, struct buf *out) {
    filter_flush(&s->filter, &s->in);
    out->failed |= s->in.failed;
    if (s->in.len) drain(s, true, out);
    if (s->at_head && s->head.len) end_head(s, true, out);
    put_table(s, out);
    end_line(s, out);
    s->fence = 0;
    s->col = 0;
}
