#pragma once
/* Prints an answer as it grows: text on stdout, thinking on stderr, dimmed where that is a terminal. Line
 * ends at the end of the text are held back, so that exactly one closes the answer. */
#include "cli/app.h"

struct printer {
    struct app *app;
    size_t line_ends, think_ends; /* held back */
    bool any, dim, open;          /* open: the thinking on stderr has not ended its line */
};
void printer_init(struct printer *p, struct app *a);
int printer_piece(void *p, enum part part, const char *data, size_t n); /* a turn_fn */
void printer_end(struct printer *p);
void printer_free(struct printer *p);
