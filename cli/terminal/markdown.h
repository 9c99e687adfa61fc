#pragma once
/* Lays out an answer for a terminal: breaks lines between words, aligns tables, colours light Markdown. Input is
 * untrusted text; output is safe for a terminal (sanitize.h filters it). The text itself is unchanged except for
 * colours, blanks, line ends and the dashes of table rules (except with the fields that a caller may set), and does not
 * depend on how the input is split. Words are held back until complete, rows of tables until the next one begins. */
#include "cli/terminal/highlight.h"
#include "cli/terminal/sanitize.h"

/* The columns of a table whose first rows have been printed. */
struct markdown_columns {
    int *widths;   /* [n] */
    size_t n, cap; /* n 0: no row has been printed */
};

struct markdown {
    int cols;           /* screen width; 0: do not break lines */
    bool color;         /* colour the markup; its characters always stay */
    int col;            /* cursor column; == cols after a full row */
    int indent;         /* indent of continuation rows of a line */
    int pending_blanks; /* pending columns before the word */
    /* a caller may set these after markdown_init */
    bool plain;       /* only filter and count columns */
    bool wrap_tables; /* break cells of tables that do not fit */
    bool hide_marks;  /* with color: leave out the marks of emphasis, headings and code blocks */
    int text_cols;    /* most columns of text, but not of code and tables; 0: cols */

    bool dropped_row; /* the row has only hidden marks */
    bool fence_line;  /* the line begins or ends a code block */
    struct highlight code;
    bool line_undecided, verbatim; /* the kind of the line is not known yet; it is code, broken only by the terminal */
    struct sanitizer filter;
    struct buf filtered;   /* filtered text after the last complete character */
    struct buf line_start; /* the beginning of a line of undecided kind */
    /* the head of a table that may continue, its rule, and what was not printed yet */
    struct buf table;
    struct markdown_columns columns;
    bool table_is_text;                   /* rows are printed as they are: not a table, or too wide */
    struct buf word, styles;              /* styles: style bits of each byte of word */
    int width;                            /* of word */
    bool link, after_wide, after_opening; /* word is a link; its last character is wide, or opening punctuation */
    unsigned char line_style, style;      /* style bits from the kind of the line; from marks within it */
    /* fence: mark of the open block; mark: n_marks of it await the character that decides on their meaning */
    char fence, mark, prev_char;
    int fence_len, n_marks, code_ticks; /* code_ticks: marks that opened inline code; 0: not within code */
    bool escaped;
};
void markdown_init(struct markdown *s, int cols, bool color);
/* Appends to out what is final. A failed buf reports lack of memory. */
void markdown_add(struct markdown *s, const char *data, size_t n, struct buf *out);
/* Call after markdown_init for text that was printed before and is now continued on a new row. Text that is added later
 * stays in the same code block and emphasis. If it continues a table, the header is printed again above the new
 * rows. */
void markdown_resume(struct markdown *s, const char *data, size_t n);
/* Ends the text: flushes everything held back. The next text starts on its own row. */
void markdown_flush(struct markdown *s, struct buf *out);
void markdown_free(struct markdown *s);
/* Adapts to a new width. The cursor position is unknown afterwards, so the next word starts a row. */
void markdown_resize(struct markdown *s, int cols);

/* markdown_table.c: how a table is formatted */
struct markdown_table_form {
    int room; /* columns of the screen; 0: unlimited */
    bool color;
    bool wraps;   /* breaks cells of a table that is wider than that */
    bool goes_on; /* more rows may follow */
};
/* Formats lines as a table with equal columns, whose widths it keeps for the rows that follow: a call with columns
 * takes the head, the rule and further rows, and prints only these. False, and nothing appended, if the lines are not a
 * table or it is too wide. */
bool markdown_table_format(struct buf *table, struct markdown_columns *k, const struct markdown_table_form *f,
                           struct buf *out);
