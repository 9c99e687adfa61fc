#pragma once
/* Draws the chat: messages, the edited line, the status rows. */
#include "cli/chat/chat.h"

/* prints a line on the terminal */
void screen_print(struct repl *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* prints text in a style, and a line end */
void screen_print_styled(struct repl *r, const char *style, const char *head, const char *text, size_t n);
/* prints the messages held by progress.h */
void screen_print_held(struct repl *r);
/* writes what the line editor has drawn */
void screen_flush(struct repl *r);
/* hides the edited line, so that output can follow; during an answer the cursor returns to its end */
void screen_hide_line(struct repl *r);
void screen_open_row_below(struct repl *r);     /* opens a row for the edited line below the running answer */
void screen_redraw_line(struct repl *r);        /* below a running answer the line is shown only when it has contents */
void screen_begin_line(struct repl *r);         /* starts a line; text typed during the answer is already in it */
void screen_format_prompt(struct repl *r);      /* sets r->prompt */
void screen_update_status(struct repl *r);      /* shows running answers and queued lines below the edited line */
void screen_show_answer_status(struct repl *r); /* shows tokens and speed of the running answer on the row below */
bool screen_any_running(const struct repl *r);
void screen_label(const struct chat_session *t, char *out, size_t cap); /* its name, or its number */
