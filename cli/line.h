#pragma once
/* The line editor: bytes from a terminal in, an edited text of one or more lines and what to draw out. It neither reads
 * nor writes a descriptor: the caller feeds it and prints `out`, so that a test can do both. */
#include <stdbool.h>
#include <stddef.h>

#include "cli/history.h"
#include "engine/base/buf.h"

enum line_result {
    LINE_MORE,
    LINE_DONE,   /* Enter: text is what was typed */
    LINE_EOF,    /* Ctrl-D on an empty line */
    LINE_EDITOR, /* Ctrl-G: open text in $EDITOR, then line_replace */
};

struct line_row {    /* one row of the screen */
    size_t from, to; /* of text */
    int indent, width;
};

struct line {
    struct buf text;
    size_t cursor;
    const char *prompt;
    bool color;
    int rows, cols; /* of the screen */
    /* Candidates for the word before the cursor, newline-separated, each the whole word; *from is where it begins. */
    void (*complete)(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates);
    void *ctx;
    struct history *history;
    struct buf out; /* to print; the caller empties it */

    size_t at; /* in history; history->n is the draft */
    struct buf draft, killed, status, hint, query;
    bool searching, pasting, escaping, shown;
    size_t found; /* history index + 1 of the search's hit */
    unsigned char esc[32], utf[4];
    int n_esc, n_utf, want;

    struct line_row *layout;
    size_t n_layout, cap_layout;
    int top;                     /* first row of the layout on the screen, when it is higher than the screen */
    int drawn, cur_row, cur_col; /* on the screen */
    int *widths;                 /* of the drawn rows, for what a resize makes of them */
    size_t cap_widths;
};

void line_init(struct line *l, struct history *h);
void line_free(struct line *l);
void line_empty(struct line *l);                     /* forgets the text, and does not draw */
void line_open(struct line *l, const char *prompt);  /* draws what there is of the text */
void line_begin(struct line *l, const char *prompt); /* both: an empty line */
/* Eats bytes until a result other than LINE_MORE; *used says how many. */
enum line_result line_feed(struct line *l, const char *data, size_t n, size_t *used);
/* Whether Enter begins another row: within an open block of triple quotes, and behind a backslash, which is taken off. */
bool line_wants_more(struct line *l);
void line_replace(struct line *l, const char *text, size_t n); /* cursor at the end; draws */
void line_clear(struct line *l);                               /* Ctrl-C: leaves what was typed on the screen, begins anew */
void line_status(struct line *l, const char *text);            /* a row below; redrawn when it changed */
void line_hint(struct line *l, const char *text);              /* the same until the next key */
/* Takes the line off the screen, so that something can be printed, and draws it again below that. */
void line_hide(struct line *l);
void line_show(struct line *l);
void line_resize(struct line *l, int rows, int cols);
void line_end(struct line *l); /* cursor below the text: what is printed next starts on a fresh row */

/* line_draw.c */
void line_draw(struct line *l);
size_t line_char(const struct line *l, size_t at, int *width); /* bytes and columns of the character at */
size_t line_next(const struct line *l, size_t at);             /* by what a person sees as one character */
size_t line_prev(const struct line *l, size_t at);
bool line_vertical(struct line *l, int by); /* moves the cursor a row up or down; false at the edge */
