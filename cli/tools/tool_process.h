#pragma once
/* Runs the command of a tool. */
#include "cli/tools/tool_definition.h"
#include "cli/tools/tool_result.h"

/* Runs the command with input on its stdin, until it ends, has run for its limit of time, or cancel_fd is readable. r
 * gets its output, cut at the limit, and notes about a failure with the end of its stderr. The process group has ended
 * afterwards. */
void tool_process_run(const struct tool_command *c, const char *input, size_t n, int cancel_fd, struct tool_result *r);
/* Waits for cancel_fd at most timeout_ms. */
bool tool_process_is_cancelled(int cancel_fd, int timeout_ms);
