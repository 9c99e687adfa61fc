#pragma once
/* Questions on a terminal that edits its lines itself, outside the chat's line editor. */
#include <stdbool.h>
#include <stddef.h>

/* Reads a line from stdin, without blanks at its end. False at the end of input, and after a signal (sig_interrupted,
 * sig_terminated). */
bool ask_line(char *out, size_t cap);
/* Shows a question on stderr and reads the answer as ask_line does. */
bool ask_text(const char *question, char *out, size_t cap);
/* Shows a question on stderr, where stdin and stderr are a terminal. True if the answer is y or yes. */
bool ask_yes(const char *question);
void ask_drop_typed(void); /* drops what was typed before a question was shown */
