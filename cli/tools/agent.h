#pragma once
/* The ready tools of --agent: a model reads, lists, searches and changes the files of one directory, and runs commands
 * in it. The model's arguments are untrusted: files are reached through agent_file.h only. A command is not confined.
 */
#include "cli/tools/tool_definition.h"
#include "cli/tools/tool_result.h"

struct agent;
struct agent_tool; /* a row of the table */

/* Opens the directory. ERR_RUNTIME, ERR_USAGE: there is none; ERR_MEMORY. */
int agent_open(struct agent **a, const char *dir, struct error *e);
void agent_close(struct agent **a);

const struct agent_tool *agent_tool(size_t i); /* the rows in their order; NULL after the last */
const char *agent_path(const struct agent *a); /* of the directory, without links */
/* A tool that only reads in the directory, to which --agent consents if the model is on this machine. */
bool agent_tool_reads(const struct agent_tool *t);
/* Makes the definition. Its strings live in the arena. ERR_MEMORY. */
int agent_tool_define(const struct agent_tool *t, struct arena *a, struct tool_definition *out, struct error *e);

/* For a tool that changes a file: appends its path and the differences to `shown`, and sets *seen to a mark of the file
 * that they were made from. False: the call cannot be run, r says why. Changes nothing. For other tools it does nothing
 * and returns true. */
bool agent_tool_preview(const struct agent *a, const struct agent_tool *t, const struct buf *arguments,
                        struct buf *shown, uint64_t *seen, struct tool_result *r);
/* Runs a tool, in any thread. seen: of agent_tool_preview, if the user has seen the differences; a file that has
 * changed since is not changed. 0: no preview was made. */
void agent_tool_run(const struct agent *a, const struct agent_tool *t, const struct buf *arguments, uint64_t seen,
                    int cancel_fd, struct tool_result *r);
