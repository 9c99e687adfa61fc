#pragma once
/* Prints an answer as it grows: text on stdout, thinking on stderr, dimmed where that is a terminal. On a terminal both
 * are laid out for it (style.h), elsewhere they are as they come. Line ends at the end of the text are held back, so that
 * exactly one closes the answer. */
#include "cli/app.h"
#include "cli/style.h"

struct printer {
    struct app *app;
    struct style text, thinking;
    size_t line_ends, think_ends; /* held back */
    bool open;                    /* the thinking on stderr has not ended its line */
    int col;                      /* where on its row of the terminal what was printed ends */
    void (*before)(void *ctx);    /* called before anything is printed; NULL: nothing */
    void *ctx;
};
void printer_init(struct printer *p, struct app *a);
int printer_piece(void *p, enum part part, const char *data, size_t n); /* a turn_fn */
void printer_end(struct printer *p);
void printer_free(struct printer *p);
/* Of the screen. fresh_row: the cursor has been taken to an empty one meanwhile. */
void printer_resize(struct printer *p, int cols, bool fresh_row);
/* A whole answer and the end of its line. */
void printer_print(struct app *a, const char *text, size_t n);
