#pragma once
/* The result of a tool call: a text for the model, and how the call ended. */
#include "base/buf.h"

enum tool_status {
    TOOL_OK,
    TOOL_FAILED,  /* it ran and failed, or could not run */
    TOOL_REFUSED, /* it was not run */
    TOOL_STOPPED, /* the user stopped it */
};
struct tool_result { /* empty when zero-initialised */
    enum tool_status status;
    struct buf text; /* valid UTF-8 */
    double seconds;
};
const char *tool_result_status(const struct tool_result *r); /* "ok", "failed", "refused", "stopped" */
/* Appends a note in brackets on a line of its own. */
void tool_result_note(struct tool_result *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void tool_result_free(struct tool_result *r);
