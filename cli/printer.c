#include "cli/printer.h"

#include "cli/out.h"

void printer_init(struct printer *p, struct app *a) { *p = (struct printer){.app = a}; }

static void thinking_end(struct printer *p) {
    if (p->dim) out_draw(2, "\033[0m", 4);
    if (p->open) out_err("\n\n", p->app->tty_err ? 2 : 1);
    p->think_ends = 0;
    p->dim = p->open = false;
}

/* Bytes of data before the line ends that close it. */
static size_t text_end(const char *data, size_t n) {
    while (n && data[n - 1] == '\n') n--;
    return n;
}

static void thinking(struct printer *p, const char *data, size_t n) {
    if (!p->open) /* blank lines before the first word say nothing */
        while (n && *data == '\n') data++, n--;
    if (!n || p->app->quiet) return;
    if (!p->dim && p->app->color_err) {
        out_draw(2, "\033[2m", 4);
        p->dim = true;
    }
    size_t end = text_end(data, n);
    if (end) {
        for (; p->think_ends; p->think_ends--) out_err("\n", 1);
        out_err(data, end);
    }
    p->think_ends += n - end;
    p->open = true;
}

int printer_piece(void *ctx, enum part part, const char *data, size_t n) {
    struct printer *p = ctx;
    if (!n) return 0;
    if (part == PART_THINKING) {
        thinking(p, data, n);
        return 0;
    }
    if (p->open) thinking_end(p);
    size_t end = text_end(data, n);
    int rc = 0;
    if (end) {
        for (; p->line_ends; p->line_ends--) out_write("\n", 1);
        rc = out_write(data, end);
        p->any = true;
    }
    p->line_ends += n - end;
    return rc;
}

void printer_end(struct printer *p) {
    if (p->open) thinking_end(p);
    out_write("\n", 1);
    p->line_ends = 0;
}

/* Leaves the terminal plain whatever happened. */
void printer_free(struct printer *p) {
    if (p->open || p->dim) thinking_end(p);
}
