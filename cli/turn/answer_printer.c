#include "cli/turn/answer_printer.h"

#include <string.h>

#include "cli/options/trim.h"
#include "cli/terminal/out.h"
#include "cli/terminal/out_lines.h"
#include "cli/terminal/term.h"

void answer_printer_init(struct answer_printer *p, const struct answer_style *style) {
    int rows, cols;
    term_size(&rows, &cols);
    *p = (struct answer_printer){.style = *style};
    markdown_init(&p->text, cols, style->color_text);
    markdown_init(&p->thinking, cols, false);
    p->text.plain = p->thinking.plain = style->plain;
    p->text.text_cols = p->thinking.text_cols = style->text_cols;
    p->text.hide_marks = style->hide_marks;
    p->text.wrap_tables = true;
}

void answer_printer_resume(struct answer_printer *p, const char *text, size_t n) {
    markdown_resume(&p->text, text, n);
    p->resumes = n > 0;
}

void answer_printer_resize(struct answer_printer *p, int cols, bool fresh_row) {
    markdown_resize(&p->text, cols);
    markdown_resize(&p->thinking, cols);
    if (fresh_row) p->text.col = p->thinking.col = 0;
    p->col = fresh_row ? 0 : p->col;
}

/* Prints answer text (fd 1) or thinking (fd 2). n 0: flushes what the layout holds back. */
static int print_part(struct answer_printer *p, int fd, const char *data, size_t n) {
    struct markdown *layout = fd == 1 ? &p->text : &p->thinking;
    bool dim = fd == 2 && p->style.color_thinking;
    if (!out_terminal(fd)) {
        if (n && p->before_output) p->before_output(p->ctx);
        if (fd == 1) return out_lines_write(data, n);
        if (dim && n) out_draw(2, "\033[2m", 4);
        out_err(data, n);
        if (dim && n) out_draw(2, "\033[0m", 4);
        return 0;
    }
    struct buf out = {0};
    if (dim) buf_str(&out, "\033[2m");
    size_t begun = out.len;
    if (n) markdown_add(layout, data, n, &out);
    else markdown_flush(layout, &out);
    if (dim && out.len > begun) buf_str(&out, "\033[0m");
    if (out.len > begun && p->before_output) p->before_output(p->ctx);
    int rc = out.failed ? ERR_MEMORY : out.len > begun ? out_draw(fd, out.data, out.len) : 0;
    p->col = layout->col;
    buf_free(&out);
    return rc;
}

/* Without colour, lines around the thinking tell it from the answer. */
static bool needs_marks(const struct answer_printer *p) { return out_terminal(2) && !p->style.color_thinking; }
static void print_mark(struct answer_printer *p, const char *text) {
    if (p->before_output) p->before_output(p->ctx);
    out_err(text, strlen(text));
}

static void end_thinking(struct answer_printer *p) {
    print_part(p, 2, "", 0);
    if (needs_marks(p)) print_mark(p, "\n[answer]");
    if (p->before_output) p->before_output(p->ctx);
    out_err("\n\n", out_terminal(2) ? 2 : 1);
    p->col = 0;
    p->held_thinking_line_ends = 0;
    p->thinking_open = false;
}

static void print_thinking(struct answer_printer *p, const char *data, size_t n) {
    if (!p->thinking_open) /* skip leading blank lines */
        while (n && *data == '\n') data++, n--;
    if (!n || p->style.no_thinking) return;
    size_t end = trim_end(data, n, "\n");
    if (!p->thinking_open && needs_marks(p)) print_mark(p, "[thinking]\n");
    if (end) {
        for (; p->held_thinking_line_ends; p->held_thinking_line_ends--) print_part(p, 2, "\n", 1);
        print_part(p, 2, data, end);
    }
    p->held_thinking_line_ends += n - end;
    p->thinking_open = true;
}

int answer_printer_add(void *ctx, enum output_kind part, const char *data, size_t n) {
    struct answer_printer *p = ctx;
    if (!n) return 0;
    if (part == OUTPUT_THINKING) {
        print_thinking(p, data, n);
        return 0;
    }
    if (p->thinking_open) end_thinking(p);
    for (; p->resumes && n && *data == '\n'; data++, n--) markdown_resume(&p->text, data, 1); /* the row is new */
    p->resumes &= n == 0;
    size_t end = trim_end(data, n, "\n");
    int rc = 0;
    if (end) {
        for (; p->held_line_ends; p->held_line_ends--) print_part(p, 1, "\n", 1);
        rc = print_part(p, 1, data, end);
    }
    p->held_line_ends += n - end;
    return rc;
}

void answer_printer_end(struct answer_printer *p) {
    if (p->thinking_open) end_thinking(p);
    print_part(p, 1, "", 0);
    if (out_terminal(1)) out_write("\n", 1);
    else {
        out_lines_write("\n", 1);
        out_lines_end();
    }
    p->held_line_ends = 0;
    p->col = 0;
}

void answer_printer_pause(struct answer_printer *p, bool has_text) {
    if (p->thinking_open) end_thinking(p);
    if (!has_text) return;
    if (out_terminal(1)) answer_printer_end(p);
    else p->held_line_ends = 2; /* a blank line before what follows */
}

void answer_printer_free(struct answer_printer *p) {
    if (p->thinking_open) end_thinking(p);
    out_lines_end(); /* in case the answer was not ended */
    markdown_free(&p->text);
    markdown_free(&p->thinking);
}

void answer_printer_print(const struct answer_style *style, const char *text, size_t n) {
    struct answer_printer p;
    answer_printer_init(&p, style);
    answer_printer_add(&p, OUTPUT_TEXT, text, n);
    answer_printer_end(&p);
    answer_printer_free(&p);
}
