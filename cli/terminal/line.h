#pragma once
/* The line editor: takes bytes from a terminal, maintains a text of one or more lines, and produces terminal output.
 * Does no I/O: the caller feeds it and prints `out`, so tests can do the same. */
#include <stdbool.h>
#include <stddef.h>

#include "base/buf.h"
#include "cli/terminal/history.h"

enum line_result {
    LINE_MORE,
    LINE_DONE,     /* Enter: text is complete */
    LINE_EOF,      /* Ctrl-D on an empty line */
    LINE_EDITOR,   /* Ctrl-G: open text in $EDITOR, then line_set_text */
    LINE_THINKING, /* Ctrl-O: show the thinking */
};

struct line_row {    /* one row of the screen */
    size_t from, to; /* byte range of text */
    int indent, width;
};

struct line {
    struct buf text;
    size_t cursor;
    const char *prompt;
    bool color;
    int rows, cols; /* screen size */
    /* Appends completions of the word before the cursor, newline-separated whole words; *from is the start of the word.
     */
    void (*complete)(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates);
    void *ctx;
    struct history *history;
    struct buf out; /* terminal output; the caller empties it */

    size_t history_index; /* index in history; history->n is the draft */
    struct buf draft, kill_buffer, status, hint, query;
    bool searching, pasting, escaping, shown;
    bool unfocused;    /* the terminal has reported that another window has the focus */
    size_t search_hit; /* history index + 1 of the search hit */
    unsigned char esc[32], utf[4];
    int n_esc, n_utf, utf_len;

    struct line_paste *pastes;               /* [n_pastes] long pastes, of which text has only a token */
    size_t n_pastes, cap_pastes, paste_from; /* paste_from: cursor at the beginning of the running paste */

    struct line_row *layout;
    size_t n_layout, cap_layout;
    int first_row;                 /* first layout row on the screen, when the layout is taller than the screen */
    int n_drawn, cur_row, cur_col; /* on the screen */
    int *drawn_widths;             /* widths of the drawn rows, to compute their reflow after a resize */
    size_t cap_widths;
};

void line_init(struct line *l, struct history *h);
void line_free(struct line *l);
void line_reset(struct line *l);                     /* clears the text without drawing */
void line_open(struct line *l, const char *prompt);  /* draws the current text */
void line_begin(struct line *l, const char *prompt); /* line_reset and line_open */
/* Consumes bytes until a result other than LINE_MORE; *used is their number. */
enum line_result line_feed(struct line *l, const char *data, size_t n, size_t *used);
/* True if Enter adds a row: inside an open block of triple quotes, or after a backslash, which is removed. */
bool line_wants_more(struct line *l);
void line_set_text(struct line *l, const char *text, size_t n); /* cursor at the end; draws */
/* Ctrl-C: leaves the typed text on the screen, starts an empty line */
void line_clear(struct line *l);
void line_status(struct line *l, const char *text); /* row below the line; redrawn when it changed */
void line_hint(struct line *l, const char *text);   /* the same until the next key, also several rows */
/* Erases the line from the screen, so that something can be printed, and redraws it below that. */
void line_hide(struct line *l);
void line_show(struct line *l);
void line_resize(struct line *l, int rows, int cols);
void line_end(struct line *l); /* moves the cursor below the text: the next output starts on a fresh row */

/* line_paste.c */
/* Stores the text between from and the cursor if it has many lines or fills many rows, and copies the token that is to
 * replace it. False: leave it. */
bool line_paste_fold(struct line *l, size_t from, char *token, size_t cap);
/* Finds the token that the byte at belongs to. The cursor never stops inside a token, so that keys delete it as a
 * whole. */
bool line_paste_at(const struct line *l, size_t at, size_t *from, size_t *to);
/* Appends text with the pastes in the places of their tokens. */
void line_paste_expand(const struct line *l, const struct buf *text, struct buf *out);
void line_paste_free(struct line *l);

/* line_draw.c */
void line_draw(struct line *l);
size_t line_char(const struct line *l, size_t at, int *width); /* bytes and columns of the character at */
size_t line_next(const struct line *l, size_t at);             /* next grapheme cluster */
size_t line_prev(const struct line *l, size_t at);
bool line_vertical(struct line *l, int by); /* moves the cursor a row up or down; false at the edge */
