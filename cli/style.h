#pragma once
/* How an answer stands on a terminal: lines broken between words, tables lined up, light Markdown shown by colour. A filter
 * of its own: text of others in, what may go to a terminal out (render.h has been over it). Nothing is hidden and nothing
 * said: without colours, blanks, line ends and the dashes under a table's head it is the text, and however the text is cut
 * into pieces the same comes out. Words are held back until they are whole, tables until they end. */
#include "cli/render.h"

struct style {
    int cols;                 /* of the screen; 0: lines are not broken */
    bool color;               /* marks are shown by colour; they themselves always stay */
    int col;                  /* where on its row the terminal's cursor stands, cols behind a full one */
    int hang;                 /* blanks before the further rows of a line */
    int blanks;               /* columns before the word that are not out yet */
    bool plain;               /* set after style_init: as it comes, and only counted */
    bool at_head, whole_rows; /* at_head: it is not known yet what line begins; whole_rows: code, which only the terminal breaks */
    struct filter filter;
    struct buf in;                  /* clean text behind the last whole character */
    struct buf head;                /* the beginning of a line */
    struct buf table;               /* lines of a table that may go on */
    struct buf word, looks;         /* a byte of looks for each of word */
    int width;                      /* of word */
    bool link, after_wide, opening; /* of its last character */
    unsigned char line_look, look;
    char fence, run, before; /* fence: the mark of an open block; run: a mark whose meaning the next character tells */
    int fence_n, run_n, ticks;
    bool escaped;
};
void style_init(struct style *s, int cols, bool color);
/* Appends to out what is certain of it. A failed buf tells of lack of memory. */
void style_add(struct style *s, const char *data, size_t n, struct buf *out);
/* The end: nothing is held back any more. What comes then is another text, on a row of its own. */
void style_flush(struct style *s, struct buf *out);
void style_free(struct style *s);
/* The screen has become so wide: where the cursor stands then nobody knows, so the next word begins a row. */
void style_resize(struct style *s, int cols);

/* style_table.c: the lines of a table as rows of equal columns; false when it is none or too wide, and nothing was appended. */
bool style_table(struct buf *table, int room, bool color, struct buf *out);
