#pragma once
/* A running tool call, in a thread of its own, so that the terminal's thread only waits for events. */
#include "cli/tools/tool_set.h"

struct tool_job;

/* Starts a call. arguments are copied; seen: tool_set_run(). ERR_RUNTIME, ERR_MEMORY: no thread. */
int tool_job_start(struct tool_job **j, const struct tool *t, const struct buf *arguments, uint64_t seen,
                   struct error *e);
bool tool_job_has_ended(const struct tool_job *j); /* sig_fd is readable when it changes */
void tool_job_cancel(void *j);                     /* async-signal-safe */
/* Waits for the end, and moves the result to r (NULL: drops it). */
void tool_job_close(struct tool_job **j, struct tool_result *r);
