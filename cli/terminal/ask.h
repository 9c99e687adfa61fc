#pragma once
/* Questions on a terminal that edits its lines itself, outside the chat's line editor. */
#include <stdbool.h>
#include <stddef.h>

/* Reads a line from stdin, without blanks at its end. False at the end of input, and after a signal (sig_interrupted,
 * sig_terminated). */
bool ask_line(char *out, size_t cap);
void ask_drop_typed(void); /* drops what was typed before a question was shown */
