#pragma once
/* Prints an answer as it grows: text on stdout, thinking on stderr, dimmed on a terminal. On a terminal both are laid out by
 * markdown.h, otherwise they are unchanged. Trailing line ends are held back, so that exactly one ends the answer. */
#include "cli/app.h"
#include "cli/style.h"

struct printer {
    struct app *app;
    struct style text, thinking;
    size_t line_ends, think_ends; /* held back */
    bool open;                    /* thinking was printed on stderr and its line is not ended */
    int col;                      /* cursor column after the last output */
    void (*before)(void *ctx);    /* called before any output; may be NULL */
    void *ctx;
};
void printer_init(struct printer *p, struct app *a);
int printer_piece(void *p, enum part part, const char *data, size_t n); /* a turn_fn */
void printer_end(struct printer *p);
void printer_free(struct printer *p);
/* Adapts to a new screen width. fresh_row: the cursor has moved to an empty row. */
void printer_resize(struct printer *p, int cols, bool fresh_row);
/* Prints a whole answer and one line end. */
void printer_print(struct app *a, const char *text, size_t n);
