#include "cli/terminal/line.h"

#include <ctype.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "cli/terminal/columns.h"
#include "cli/terminal/sanitize.h"

#define CTRL(letter) ((letter)&0x1F)
enum { ESC = 0x1B, DEL = 0x7F };

void line_init(struct line *l, struct history *h) {
    *l = (struct line){.history = h, .history_index = h->n, .prompt = "> ", .rows = 24, .cols = 80};
}

void line_free(struct line *l) {
    struct buf *all[] = {&l->text, &l->out, &l->draft, &l->kill_buffer, &l->status, &l->hint, &l->query};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) buf_free(all[i]);
    line_paste_free(l);
    mem_free(l->layout);
    mem_free(l->drawn_widths);
    *l = (struct line){0};
}

/* --- editing ---------------------------------------------------------------------------------- */

static void clear_buf(struct buf *b) {
    b->len = 0;
    b->failed = false;
    buf_add(b, "", 0);
}

static void insert_text(struct line *l, const char *s, size_t n) {
    size_t n_after = l->text.len - l->cursor;
    if (buf_add(&l->text, s, n)) {
        l->text.failed = false; /* no memory: ignore the key */
        return;
    }
    memmove(l->text.data + l->cursor + n, l->text.data + l->cursor, n_after);
    memcpy(l->text.data + l->cursor, s, n);
    l->cursor += n;
}

static void erase_range(struct line *l, size_t from, size_t to, bool to_kill_buffer) {
    if (to <= from) return;
    if (to_kill_buffer) {
        clear_buf(&l->kill_buffer);
        buf_add(&l->kill_buffer, l->text.data + from, to - from);
    }
    memmove(l->text.data + from, l->text.data + to, l->text.len - to + 1);
    l->text.len -= to - from;
    l->cursor = from;
}

static void set_text(struct line *l, const char *s, size_t n) {
    clear_buf(&l->text);
    l->cursor = 0;
    insert_text(l, s, n);
}

static size_t row_begin(const struct line *l) {
    size_t i = l->cursor;
    while (i && l->text.data[i - 1] != '\n') i--;
    return i;
}
static size_t row_end(const struct line *l) {
    size_t i = l->cursor;
    while (i < l->text.len && l->text.data[i] != '\n') i++;
    return i;
}
static bool in_word(const struct line *l, size_t i) {
    unsigned char c = (unsigned char)l->text.data[i];
    return c >= 0x80 || isalnum(c) || c == '_';
}
/* Moves a place inside the token of a paste to the token's beginning or end. */
static size_t leave_token(const struct line *l, size_t at, bool left) {
    size_t from, to;
    if (!line_paste_at(l, at, &from, &to) || from == at) return at;
    return left ? from : to;
}
static size_t word_left(const struct line *l) {
    size_t i = l->cursor;
    while (i && !in_word(l, i - 1)) i--;
    while (i && in_word(l, i - 1)) i--;
    return leave_token(l, i, true);
}
static size_t word_right(const struct line *l) {
    size_t i = l->cursor;
    while (i < l->text.len && !in_word(l, i)) i++;
    while (i < l->text.len && in_word(l, i)) i++;
    return leave_token(l, i, false);
}
static size_t blank_left(const struct line *l) { /* Ctrl-W: to white space */
    size_t i = l->cursor;
    while (i && isspace((unsigned char)l->text.data[i - 1])) i--;
    while (i && !isspace((unsigned char)l->text.data[i - 1])) i--;
    return leave_token(l, i, true);
}

static void swap_chars(struct line *l) { /* Ctrl-T */
    size_t b = l->cursor == l->text.len ? line_prev(l, l->cursor) : l->cursor, a = line_prev(l, b),
           end = line_next(l, b);
    char tmp[256];
    if (a == b || end == b || b - a > sizeof tmp || memchr(l->text.data + a, '\n', end - a)) return;
    memcpy(tmp, l->text.data + a, b - a);
    memmove(l->text.data + a, l->text.data + b, end - b);
    memcpy(l->text.data + a + (end - b), tmp, b - a);
    l->cursor = end;
}

/* Collects the bytes of a character in l->utf; drops invalid UTF-8. Returns the length of a complete one, or 0. */
static int collect_utf8(struct line *l, unsigned char c) {
    if (!l->n_utf || !utf8_continues(l->utf[0], l->n_utf, c)) {
        l->n_utf = 0;
        l->utf_len = utf8_length(c);
    }
    if (!l->utf_len) return 0;
    l->utf[l->n_utf++] = c;
    if (l->n_utf < l->utf_len) return 0;
    l->n_utf = 0;
    return l->utf_len;
}

/* --- history ---------------------------------------------------------------------------------- */

static void move_in_history(struct line *l, int by) {
    size_t n = l->history->n;
    if ((by < 0 && !l->history_index) || (by > 0 && l->history_index >= n)) return;
    if (l->history_index == n) {
        clear_buf(&l->draft);
        buf_add(&l->draft, l->text.data, l->text.len);
    }
    l->history_index += (size_t)by;
    const char *s = l->history_index == n ? l->draft.data : l->history->v[l->history_index];
    set_text(l, s ? s : "", l->history_index == n ? l->draft.len : strlen(s));
}

/* Finds the query in an entry older than index `before`. Returns false if there is none, and leaves the text
 * unchanged. */
static bool search_history(struct line *l, size_t before) {
    const char *q = l->query.data ? l->query.data : "";
    for (size_t i = before; i-- > 0;) {
        const char *hit = strstr(l->history->v[i], q);
        if (!hit) continue;
        l->search_hit = i + 1;
        set_text(l, l->history->v[i], strlen(l->history->v[i]));
        l->cursor = (size_t)(hit - l->history->v[i]);
        return true;
    }
    return false;
}
/* Searches again. Without a match the draft is restored, so that Enter does not send an unrelated entry. */
static void search_again(struct line *l, size_t before) {
    if (search_history(l, before)) return;
    l->search_hit = 0;
    set_text(l, l->draft.data ? l->draft.data : "", l->draft.len);
}
static void show_search_hint(struct line *l) {
    struct buf b = {0};
    buf_str(&b, l->query.len && !l->search_hit ? "search, nothing found: " : "search: ");
    buf_add(&b, l->query.data, l->query.len);
    line_hint(l, b.data ? b.data : "");
    buf_free(&b);
}
static void search_begin(struct line *l) {
    l->searching = true;
    l->search_hit = 0;
    l->n_utf = 0;
    clear_buf(&l->query);
    clear_buf(&l->draft);
    buf_add(&l->draft, l->text.data, l->text.len);
    l->history_index = l->history->n;
}
/* Returns true if the search used the key. */
static bool handle_search_key(struct line *l, unsigned char c) {
    if (c == CTRL('R')) { /* next older match */
        search_history(l, l->search_hit ? l->search_hit - 1 : l->history->n);
    } else if (c == DEL || c == CTRL('H')) {
        while (l->query.len && ((unsigned char)l->query.data[l->query.len - 1] & 0xC0) == 0x80) l->query.len--;
        if (l->query.len) l->query.len--;
        if (l->query.data) l->query.data[l->query.len] = 0;
        search_again(l, l->history->n);
    } else if (c >= 0x20) {
        int n = collect_utf8(l, c);
        if (n && !buf_add(&l->query, l->utf, (size_t)n)) search_again(l, l->search_hit ? l->search_hit : l->history->n);
    } else if (c == CTRL('G')) { /* cancel */
        l->searching = false;
        set_text(l, l->draft.data ? l->draft.data : "", l->draft.len);
    } else {
        l->searching = false;
        return false;
    }
    return true;
}

/* --- completion ------------------------------------------------------------------------------- */

/* Formats the first candidates in at most max_rows rows, each without its first head bytes. Returns how many fit. */
static size_t format_candidates(const struct buf *list, size_t head, int cols, int max_rows, struct buf *out) {
    size_t n = 0;
    int col = 0, rows = 1;
    out->len = 0;
    for (const char *s = list->data; s && *s; n++) {
        size_t len = strcspn(s, "\n");
        int w = columns_of_text(s + head, len - head);
        if (col && col + 2 + w >= cols) {
            if (++rows > max_rows) break;
            buf_char(out, '\n');
            col = 0;
        }
        buf_str(out, col ? "  " : "");
        buf_add(out, s + head, len - head);
        col += w + (col ? 2 : 0);
        s += len + (s[len] == '\n');
    }
    return n;
}

/* Lists n candidates below the line, without the directory that they share, in at most half of the screen. They begin
 * with the same common bytes. */
static void show_candidates(struct line *l, const struct buf *list, size_t common, size_t n) {
    struct buf out = {0};
    size_t head = common;
    const int rows = l->rows < 4 ? 2 : l->rows / 2;
    while (head && list->data[head - 1] != '/') head--;
    if (head == 1) head = 0; /* the '/' of commands */
    if (format_candidates(list, head, l->cols, rows, &out) < n) {
        size_t fit = format_candidates(list, head, l->cols, rows - 1, &out);
        buf_fmt(&out, "\nand %zu more", n - fit);
    }
    line_hint(l, out.data ? out.data : "");
    buf_free(&out);
}

static void complete_word(struct line *l) {
    struct buf list = {0};
    size_t from = 0, common = 0, n = 0;
    if (!l->complete) return;
    l->complete(l->ctx, l->text.data ? l->text.data : "", l->cursor, &from, &list);
    const char *first = list.data;
    for (const char *s = first; s && *s; n++) {
        size_t len = strcspn(s, "\n"), k = 0;
        while (n && k < common && k < len && s[k] == first[k]) k++;
        common = n ? k : len;
        s += len + (s[len] == '\n');
    }
    size_t typed = l->cursor - from;
    if (n && common > typed) {
        erase_range(l, from, l->cursor, false);
        insert_text(l, first, common);
    }
    bool is_dir = common && first[common - 1] == '/'; /* its files can be completed next */
    if (n == 1 && !is_dir && (l->cursor == l->text.len || l->text.data[l->cursor] != ' ')) insert_text(l, " ", 1);
    if (n > 1 && common <= typed) show_candidates(l, &list, common, n);
    buf_free(&list);
}

/* --- keys ------------------------------------------------------------------------------------- */

static bool starts_block(const struct line *l) { return l->text.len >= 3 && !strncmp(l->text.data, "\"\"\"", 3); }

bool line_wants_more(struct line *l) {
    const char *s = l->text.data;
    size_t n = l->text.len;
    if (!s) return false;
    if (starts_block(l)) {
        while (n > 3 && isspace((unsigned char)s[n - 1])) n--;
        return n < 6 || strncmp(s + n - 3, "\"\"\"", 3);
    }
    size_t slashes = 0;
    while (slashes < n && s[n - 1 - slashes] == '\\') slashes++;
    if (slashes % 2 == 0) return false;
    l->cursor = n;
    erase_range(l, n - 1, n, false);
    return true;
}

static enum line_result handle_enter(struct line *l) {
    if (line_wants_more(l)) {
        l->cursor = l->text.len;
        insert_text(l, "\n", 1);
        return LINE_MORE;
    }
    return LINE_DONE;
}

static void go_row_begin(struct line *l) { l->cursor = row_begin(l); }
static void go_row_end(struct line *l) { l->cursor = row_end(l); }
static void go_begin(struct line *l) { l->cursor = 0; }
static void go_end(struct line *l) { l->cursor = l->text.len; }
static void go_left(struct line *l) { l->cursor = line_prev(l, l->cursor); }
static void go_right(struct line *l) { l->cursor = line_next(l, l->cursor); }
static void go_word_left(struct line *l) { l->cursor = word_left(l); }
static void go_word_right(struct line *l) { l->cursor = word_right(l); }
static void go_up(struct line *l) {
    if (!line_vertical(l, -1)) move_in_history(l, -1);
}
static void go_down(struct line *l) {
    if (!line_vertical(l, 1)) move_in_history(l, 1);
}
static void delete_right(struct line *l) { erase_range(l, l->cursor, line_next(l, l->cursor), false); }
static void delete_left(struct line *l) { erase_range(l, line_prev(l, l->cursor), l->cursor, false); }
static void kill_word_left(struct line *l) { erase_range(l, word_left(l), l->cursor, true); }
static void kill_word_right(struct line *l) { erase_range(l, l->cursor, word_right(l), true); }
static void kill_blank_left(struct line *l) { erase_range(l, blank_left(l), l->cursor, true); }
static void kill_row_begin(struct line *l) { erase_range(l, row_begin(l), l->cursor, true); }
static void kill_row_end(struct line *l) { /* at the end of a row: its line end */
    size_t end = row_end(l);
    erase_range(l, l->cursor, end == l->cursor && end < l->text.len ? end + 1 : end, true);
}
static void yank_killed(struct line *l) {
    insert_text(l, l->kill_buffer.data ? l->kill_buffer.data : "", l->kill_buffer.len);
}
static void insert_row(struct line *l) { insert_text(l, "\n", 1); }
static void begin_paste(struct line *l) {
    l->pasting = true;
    l->paste_from = l->cursor;
}
static void end_paste(struct line *l) {
    char token[64];
    l->pasting = false;
    if (l->paste_from > l->cursor || !line_paste_fold(l, l->paste_from, token, sizeof token)) return;
    erase_range(l, l->paste_from, l->cursor, false);
    insert_text(l, token, strlen(token));
}
static void note_focus(struct line *l) { l->unfocused = false; }
static void note_no_focus(struct line *l) { l->unfocused = true; }
static void clear_screen(struct line *l) {
    buf_str(&l->out, "\033[H\033[2J");
    l->shown = false;
}

static enum line_result handle_control(struct line *l, unsigned char c) {
    static void (*const keys[128])(struct line * l) = {
        [CTRL('A')] = go_row_begin,    [CTRL('B')] = go_left,     [CTRL('D')] = delete_right,
        [CTRL('E')] = go_row_end,      [CTRL('F')] = go_right,    [CTRL('H')] = delete_left,
        [CTRL('I')] = complete_word,   [CTRL('J')] = insert_row,  [CTRL('K')] = kill_row_end,
        [CTRL('L')] = clear_screen,    [CTRL('N')] = go_down,     [CTRL('P')] = go_up,
        [CTRL('R')] = search_begin,    [CTRL('T')] = swap_chars,  [CTRL('U')] = kill_row_begin,
        [CTRL('W')] = kill_blank_left, [CTRL('Y')] = yank_killed, [DEL] = delete_left};
    if (c == CTRL('D') && !l->text.len) return LINE_EOF;
    if (c == CTRL('G')) return LINE_EDITOR;
    if (c == CTRL('O')) return LINE_THINKING;
    if (c == CTRL('M')) return handle_enter(l);
    if (keys[c & 127]) keys[c & 127](l);
    return LINE_MORE;
}

/* Runs an escape sequence, without its ESC: "[A", "OH", "[1;5C", "b". */
static void run_escape(struct line *l, const char *s) {
    static const struct {
        const char *seq;
        void (*fn)(struct line *l);
    } rows[] = {{"[A", go_up},
                {"OA", go_up},
                {"[B", go_down},
                {"OB", go_down},
                {"[C", go_right},
                {"OC", go_right},
                {"[D", go_left},
                {"OD", go_left},
                {"[H", go_row_begin},
                {"OH", go_row_begin},
                {"[1~", go_row_begin},
                {"[7~", go_row_begin},
                {"[F", go_row_end},
                {"OF", go_row_end},
                {"[4~", go_row_end},
                {"[8~", go_row_end},
                {"[3~", delete_right},
                {"[3;5~", kill_word_right},
                {"[3;3~", kill_word_right},
                {"[200~", begin_paste},
                {"[I", note_focus},
                {"[O", note_no_focus},
                {"b", go_word_left},
                {"[1;5D", go_word_left},
                {"[1;3D", go_word_left},
                {"f", go_word_right},
                {"[1;5C", go_word_right},
                {"[1;3C", go_word_right},
                {"d", kill_word_right},
                {"\x7F", kill_word_left},
                {"\x08", kill_word_left},
                {"\r", insert_row},
                {"\n", insert_row},
                {"<", go_begin},
                {">", go_end}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (!strcmp(rows[i].seq, s)) rows[i].fn(l);
}

static void insert_byte(struct line *l, unsigned char c) {
    int n = collect_utf8(l, c);
    if (n) insert_text(l, (char *)l->utf, (size_t)n);
}

static void handle_paste_byte(struct line *l, unsigned char c) {
    static const char end[] = "\033[201~";
    l->esc[l->n_esc++] = c;
    if (!memcmp(l->esc, end, (size_t)l->n_esc)) {
        if (l->n_esc == (int)sizeof end - 1) {
            l->n_esc = 0;
            end_paste(l);
        }
        return;
    }
    unsigned char held[8];
    int n = l->n_esc;
    memcpy(held, l->esc, (size_t)n);
    l->n_esc = 0;
    for (int i = 0; i < n; i++) {
        if (held[i] == '\r') insert_byte(l, '\n');
        else if (held[i] == ESC && i == n - 1) l->esc[l->n_esc++] = ESC; /* may start the end mark */
        else if (held[i] >= 0x20 || held[i] == '\n' || held[i] == '\t') {
            if (held[i] != DEL) insert_byte(l, held[i]);
        }
    }
}

static enum line_result handle_escape_byte(struct line *l, unsigned char c) {
    bool csi = l->n_esc && l->esc[0] == '[', ss3 = l->n_esc && l->esc[0] == 'O';
    if (l->n_esc < (int)sizeof l->esc - 1) l->esc[l->n_esc++] = c;
    if (l->n_esc == 1 && (c == '[' || c == 'O')) return LINE_MORE;
    if (l->n_esc == 1 && c == ESC) { /* ESC ESC [ A: the first was a key by itself */
        l->n_esc = 0;
        return LINE_MORE;
    }
    if (csi && l->n_esc > 1 && (c < 0x40 || c > 0x7E)) return LINE_MORE;
    if (!csi && !ss3 && l->n_esc > 1) return LINE_MORE;
    l->esc[l->n_esc] = 0;
    l->escaping = false;
    l->n_esc = 0;
    run_escape(l, (const char *)l->esc);
    return LINE_MORE;
}

static enum line_result handle_key(struct line *l, unsigned char c) {
    if (l->pasting) {
        handle_paste_byte(l, c);
        return LINE_MORE;
    }
    if (l->escaping) return handle_escape_byte(l, c);
    clear_buf(&l->hint);
    if (l->searching) {
        if (c != ESC && handle_search_key(l, c)) {
            if (l->searching) show_search_hint(l);
            return LINE_MORE;
        }
        l->searching = false;
    }
    if (c == ESC) {
        l->escaping = true;
        l->n_esc = 0;
        return LINE_MORE;
    }
    if (c >= 0x20 && c != DEL) {
        insert_byte(l, c);
        return LINE_MORE;
    }
    enum line_result r = handle_control(l, c);
    if (l->searching) show_search_hint(l);
    return r;
}

enum line_result line_feed(struct line *l, const char *data, size_t n, size_t *used) {
    enum line_result r = LINE_MORE;
    size_t i = 0;
    while (i < n && r == LINE_MORE) r = handle_key(l, (unsigned char)data[i++]);
    *used = i;
    if (r == LINE_MORE && !l->pasting) line_draw(l);
    return r;
}

/* --- state ------------------------------------------------------------------------------------ */

void line_reset(struct line *l) {
    line_paste_free(l);
    clear_buf(&l->text);
    clear_buf(&l->hint);
    l->cursor = 0;
    l->first_row = 0;
    l->searching = l->escaping = false;
    l->n_esc = l->n_utf = 0;
    l->history_index = l->history->n;
    l->shown = false;
}

void line_open(struct line *l, const char *prompt) {
    l->prompt = prompt;
    line_draw(l);
}

void line_begin(struct line *l, const char *prompt) {
    line_reset(l);
    line_open(l, prompt);
}

void line_set_text(struct line *l, const char *text, size_t n) {
    set_text(l, text, n);
    line_draw(l);
}

void line_clear(struct line *l) {
    line_end(l);
    line_begin(l, l->prompt);
}

static void set_rows_below(struct line *l, struct buf *b, const char *text, size_t n) {
    struct sanitizer f = {0};
    struct buf clean = {0};
    sanitize_add(&f, text, n, &clean);
    sanitize_flush(&f, &clean);
    bool same = clean.len == b->len && (!clean.len || !memcmp(clean.data, b->data, clean.len));
    clear_buf(b);
    if (clean.len) buf_add(b, clean.data, clean.len);
    buf_free(&clean);
    if (!same && l->shown) line_draw(l);
}
void line_status(struct line *l, const char *text) { set_rows_below(l, &l->status, text, strcspn(text, "\n")); }
void line_hint(struct line *l, const char *text) { set_rows_below(l, &l->hint, text, strlen(text)); }
