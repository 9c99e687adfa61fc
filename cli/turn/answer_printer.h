#pragma once
/* Prints an answer as it grows: text on stdout, thinking on stderr, dimmed on a terminal. On a terminal both are laid
 * out by markdown.h, otherwise they are unchanged. Trailing line ends are held back, so that exactly one ends the
 * answer. Outside a terminal lines of several processes with one stdout do not mix (out_lines.h). */
#include "cli/terminal/markdown.h"
#include "tokenizer/chat/chat_template.h"

struct answer_style {
    bool color_text, color_thinking, no_thinking, plain;
    bool hide_marks; /* of Markdown */
    int text_cols;   /* most columns of text; 0: the whole screen */
};
struct answer_printer {
    struct answer_style style;
    struct markdown text, thinking;
    size_t held_line_ends, held_thinking_line_ends; /* held back */
    bool thinking_open;                             /* thinking was printed on stderr and its line is not ended */
    bool resumes;                                   /* nothing was printed since answer_printer_resume() */
    int col;                                        /* cursor column after the last output */
    void (*before_output)(void *ctx);               /* called before any output; may be NULL */
    void *ctx;
};
void answer_printer_init(struct answer_printer *p, const struct answer_style *style);
/* After answer_printer_init: the answer continues `text`, which is on the screen already, on a row of its own. */
void answer_printer_resume(struct answer_printer *p, const char *text, size_t n);
int answer_printer_add(void *p, enum output_kind part, const char *data, size_t n); /* a turn_fn */
void answer_printer_end(struct answer_printer *p);
/* Ends the thinking and the row on a terminal, so that messages can follow before the answer continues. has_text: text
 * was printed since the last pause. */
void answer_printer_pause(struct answer_printer *p, bool has_text);
void answer_printer_free(struct answer_printer *p);
/* Adapts to a new screen width. fresh_row: the cursor has moved to an empty row. */
void answer_printer_resize(struct answer_printer *p, int cols, bool fresh_row);
/* Prints a whole answer and one line end. */
void answer_printer_print(const struct answer_style *style, const char *text, size_t n);
