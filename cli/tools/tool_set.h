#pragma once
/* The tools of a run: --tool files, the tools of --mcp servers and of --agent, and what the user has allowed. Nothing
 * runs that the user has not allowed, once or for the whole run. */
#include "cli/app.h"
#include "cli/tools/agent.h"
#include "cli/tools/mcp.h"
#include "cli/turn/prompt.h"

struct tool {
    struct tool_definition definition;
    struct mcp *server;             /* NULL: a command, or a ready tool */
    const struct agent_tool *ready; /* a tool of --agent; NULL: none */
    const struct agent *agent;
    bool allowed; /* runs without a question */
};
struct tool_set {
    struct arena arena;
    struct tool *v;
    size_t n, cap;
    struct mcp **servers;
    size_t n_servers;
    struct agent *agent; /* NULL: without --agent */
    /* the machine of the model to which its reading tools send files; empty: this one */
    char reader[256];
    char allowed_reader[256]; /* the one for which the user has allowed that */
    struct json list;         /* the definitions, as `tools` of a chat-completions request */
    struct arena forced;      /* grammar of a required call */
    struct grammar_source source;
};

/* Reads --agent, --tool and --mcp into a->tools, starts the servers, and applies --allow and --tool-choice. Without
 * tools a->tools stays NULL. ERR_USAGE names the option, the file and the member that is wrong. */
int tool_set_open(struct app *a, struct error *e);
void tool_set_close(struct app *a);
/* Adds the tools of --agent to those of a running chat. No call may be running. ERR_USAGE: they are there already. On
 * errors the tools remain as they were. */
int tool_set_add_agent(struct app *a, const char *dir, struct error *e);
/* Says on which machine the model is that the tools serve; NULL: on this one. Files go to another machine only after a
 * question, unless --allow has the tool. */
void tool_set_set_reader(struct app *a, const char *host);
/* Whether consent to a call of t is consent to let the model on another machine read files. */
bool tool_set_asks_to_read(const struct tool_set *s, const struct tool *t);
/* The user consents to calls of t, or, where that is asked, to all reading. */
void tool_set_allow(struct tool_set *s, struct tool *t);
/* ERR_USAGE if the chat template of the open model has no tools. */
int tool_set_check_model(const struct app *a, struct error *e);
struct tool *tool_set_find(const struct tool_set *s, const struct buf *name); /* NULL: none */

/* --tool-choice: makes the first answer to a question a call. p: its prompt. ERR_USAGE: this model's calls cannot be
 * required. */
int tool_set_force(struct app *a, struct prompt *p, struct error *e);

/* Runs a tool, in any thread, until it ends or cancel_fd is readable. arguments: a JSON object. seen: of
 * agent_tool_preview. */
void tool_set_run(const struct tool *t, const struct buf *arguments, uint64_t seen, int cancel_fd,
                  struct tool_result *r);
