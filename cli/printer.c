#include "cli/printer.h"

#include <string.h>

#include "cli/out.h"
#include "cli/term.h"

void printer_init(struct printer *p, struct app *a) {
    int rows, cols;
    term_size(&rows, &cols);
    *p = (struct printer){.app = a};
    style_init(&p->text, cols, a->color_out);
    style_init(&p->thinking, cols, false);
    p->text.plain = p->thinking.plain = a->opts.v[OPT_PLAIN].on;
}

void printer_resize(struct printer *p, int cols, bool fresh_row) {
    style_resize(&p->text, cols);
    style_resize(&p->thinking, cols);
    if (fresh_row) p->text.col = p->thinking.col = 0;
    p->col = fresh_row ? 0 : p->col;
}

/* Prints text, or flushes held text if n is 0. */
static int show(struct printer *p, int fd, const char *data, size_t n) {
    struct style *s = fd == 1 ? &p->text : &p->thinking;
    bool dim = fd == 2 && p->app->color_err;
    if (!out_terminal(fd)) {
        if (n && p->before) p->before(p->ctx);
        if (fd == 1) return out_write(data, n);
        if (dim && n) out_draw(2, "\033[2m", 4);
        out_err(data, n);
        if (dim && n) out_draw(2, "\033[0m", 4);
        return 0;
    }
    struct buf out = {0};
    if (dim) buf_str(&out, "\033[2m");
    size_t begun = out.len;
    if (n) style_add(s, data, n, &out);
    else style_flush(s, &out);
    if (dim && out.len > begun) buf_str(&out, "\033[0m");
    if (out.len > begun && p->before) p->before(p->ctx);
    int rc = out.failed ? ERR_MEMORY : out.len > begun ? out_draw(fd, out.data, out.len) : 0;
    p->col = s->col;
    buf_free(&out);
    return rc;
}

static void thinking_end(struct printer *p) {
    show(p, 2, "", 0);
    if (p->before) p->before(p->ctx);
    out_err("\n\n", p->app->tty_err ? 2 : 1);
    p->col = 0;
    p->think_ends = 0;
    p->open = false;
}

/* Returns the length of data without trailing line ends. */
static size_t text_end(const char *data, size_t n) {
    while (n && data[n - 1] == '\n') n--;
    return n;
}

static void thinking(struct printer *p, const char *data, size_t n) {
    if (!p->open) /* skip leading blank lines */
        while (n && *data == '\n') data++, n--;
    if (!n || p->app->quiet) return;
    size_t end = text_end(data, n);
    if (end) {
        for (; p->think_ends; p->think_ends--) show(p, 2, "\n", 1);
        show(p, 2, data, end);
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
        for (; p->line_ends; p->line_ends--) show(p, 1, "\n", 1);
        rc = show(p, 1, data, end);
    }
    p->line_ends += n - end;
    return rc;
}

void printer_end(struct printer *p) {
    if (p->open) thinking_end(p);
    show(p, 1, "", 0);
    out_write("\n", 1);
    p->line_ends = 0;
    p->col = 0;
}

void printer_free(struct printer *p) {
    if (p->open) thinking_end(p);
    style_free(&p->text);
    style_free(&p->thinking);
}

void printer_print(struct app *a, const char *text, size_t n) {
    struct printer p;
    printer_init(&p, a);
    printer_piece(&p, PART_TEXT, text, n);
    printer_end(&p);
    printer_free(&p);
}
