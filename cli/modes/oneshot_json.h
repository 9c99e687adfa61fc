#pragma once
/* The JSON forms of a one-shot answer: the object of --json, and the events of --json-lines. */
#include "cli/app.h"
#include "cli/tools/tool_round.h"
#include "cli/turn/turn.h"

int oneshot_json_text(void *ctx, enum output_kind part, const char *data, size_t n); /* --json-lines; a turn_fn */
void oneshot_json_end(const struct turn *t);                                         /* --json-lines: usage and done */
/* --json: the whole object. calls: objects of tool calls, separated by commas. n_parts: of the document, with --long
 * split. */
int oneshot_json_answer(const struct app *a, const struct turn *t, const struct buf *calls, int n_parts, uint64_t seed,
                        struct error *e);
/* --json-lines: a part of a long document is read. */
void oneshot_json_part(const struct app *a, int part, int n_parts);
/* A tool call before it runs, as an event; and its result, as an event, or in `calls`. Without these options they do
 * nothing. */
void oneshot_json_call(const struct app *a, const struct tool_call *call);
void oneshot_json_result(const struct app *a, const struct tool_call *call, const struct tool_result *r,
                         struct buf *calls);
/* Prints the error object of --json and --json-lines on stdout; nothing without these options. Modes other than answers
 * have it with --json, unless they have printed a part of their output. */
void oneshot_json_error(const struct app *a, const struct error *e);
