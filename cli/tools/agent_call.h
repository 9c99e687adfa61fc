#pragma once
/* One call of a ready tool, its arguments, and the functions of the tools, which agent.c lists in its table. */
#include "base/json.h"
#include "cli/tools/agent_file.h"
#include "cli/tools/tool_result.h"

enum { AGENT_OUTPUT_BYTES = 32 << 10, AGENT_TIME_S = 60, AGENT_NAMES_MAX = 20000, AGENT_EDIT_BYTES = 4 << 20 };

struct agent_call {
    const struct agent_dir *dir;
    const struct json *arguments;
    int cancel_fd;
    double until;  /* clock_now() at which it is given up */
    uint64_t seen; /* agent_tool_run() */
    struct tool_result *r;
};

/* Arguments. false: r says what is missing or wrong. */
bool agent_call_text(struct agent_call *c, const char *key, const char **text, size_t *n);
bool agent_call_number(struct agent_call *c, const char *key, int64_t lo, int64_t hi, int64_t none, int64_t *out);
bool agent_call_flag(const struct agent_call *c, const char *key);
/* The argument `path`, made relative to the directory. none: if it is missing; NULL: it is required. out: PATHS_MAX. */
bool agent_call_path(struct agent_call *c, const char *none, char *out);
/* Ends the call with a failure that the model reads. */
void agent_call_fail(struct agent_call *c, const struct error *e);
/* True if the user stops the call or its time is over: r says which. */
bool agent_call_is_over(struct agent_call *c);
/* Names of an open directory, sorted, without "." and "..". *more: the
 * directory has more. ERR_RUNTIME, ERR_MEMORY. */
struct agent_names {
    char **v;
    size_t n;
    bool more;
};
int agent_call_list(int fd, struct agent_names *out, struct error *e);
void agent_call_free_names(struct agent_names *names);
/* Appends a name on one line: control characters become '?'. */
void agent_call_put_name(struct buf *b, const char *name);

/* The tools. */
void agent_look_read_file(struct agent_call *c);
void agent_look_list_directory(struct agent_call *c);
void agent_search_text(struct agent_call *c);
/* What a change makes of a file. */
struct agent_change {
    char path[PATHS_MAX];
    char *old; /* NULL: a new file */
    size_t n_old;
    struct buf text;
};
/* Make the change without applying it. false: r says why not. */
bool agent_edit_write_file(struct agent_call *c, struct agent_change *out);
bool agent_edit_replace_text(struct agent_call *c, struct agent_change *out);
void agent_edit_free(struct agent_change *e);
uint64_t agent_edit_mark(const struct agent_change *e); /* of the old file; never 0 */
void agent_edit_apply(struct agent_call *c, const struct agent_change *e);
