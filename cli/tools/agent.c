#include "cli/tools/agent.h"

#include <string.h>

#include "base/clock.h"
#include "cli/tools/agent_call.h"
#include "cli/tools/agent_diff.h"
#include "cli/tools/tool_process.h"

struct agent {
    struct agent_dir dir;
};

struct agent_tool {
    const char *definition;                                         /* as an element of the list of an MCP server */
    void (*look)(struct agent_call *c);                             /* a tool that reads */
    bool (*change)(struct agent_call *c, struct agent_change *out); /* one that changes a file; both NULL: a command */
};

#define PATH(what) "\"path\": {\"type\": \"string\", \"description\": \"" what ", relative to the working directory\"}"
static const struct agent_tool tools[] = {
    {"{\"name\": \"read_file\", \"description\": \"Reads a text file of the working directory, whole or some of its "
     "lines\", "
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" PATH(
         "The file") ", "
                     "\"from_line\": {\"type\": \"integer\", \"description\": \"The first line wanted, from 1\"}, "
                     "\"to_line\": {\"type\": \"integer\", \"description\": \"The last line wanted\"}}, \"required\": "
                     "[\"path\"]}}",
     .look = agent_look_read_file},
    {"{\"name\": \"list_directory\", \"description\": \"Lists the files and directories in a directory\", "
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" PATH("The directory; all by default") "}}}",
     .look = agent_look_list_directory},
    {"{\"name\": \"search_text\", \"description\": \"Finds lines that match a regular expression, in all files of a "
     "directory "
     "and those within it, or in one file\", "
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {"
     "\"pattern\": {\"type\": \"string\", \"description\": \"The regular expression\"}, " PATH(
         "The directory or file; all by default") ", "
                                                  "\"files\": {\"type\": \"string\", \"description\": \"Only files "
                                                  "with such names, as in *.c\"}, "
                                                  "\"ignore_case\": {\"type\": \"boolean\"}}, \"required\": "
                                                  "[\"pattern\"]}}",
     .look = agent_search_text},
    {"{\"name\": \"write_file\", \"description\": \"Writes a text file, new or in place of an old one; the user sees "
     "the "
     "differences first\", "
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" PATH(
         "The file") ", "
                     "\"content\": {\"type\": \"string\", \"description\": \"The whole text of the file\"}}, "
                     "\"required\": [\"path\", \"content\"]}}",
     .change = agent_edit_write_file},
    {"{\"name\": \"replace_text\", \"description\": \"Replaces a text in a file; the user sees the differences "
     "first\", "
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {" PATH(
         "The file") ", "
                     "\"old_text\": {\"type\": \"string\", \"description\": \"The text as it stands in the file, which "
                     "occurs once\"}, "
                     "\"new_text\": {\"type\": \"string\", \"description\": \"The text in its place\"}, "
                     "\"all\": {\"type\": \"boolean\", \"description\": \"Replace every occurrence\"}}, "
                     "\"required\": [\"path\", \"old_text\", \"new_text\"]}}",
     .change = agent_edit_replace_text},
    {"{\"name\": \"run_command\", \"description\": \"Runs a command of sh in the working directory and returns what it "
     "prints; the user is asked first\", "
     "\"inputSchema\": {\"type\": \"object\", \"properties\": {"
     "\"command\": {\"type\": \"string\", \"description\": \"The command\"}, "
     "\"timeout\": {\"type\": \"integer\", \"description\": \"Seconds after which it is ended, up to 600; 60 by "
     "default\"}}, "
     "\"required\": [\"command\"]}}"},
};

int agent_open(struct agent **out, const char *dir, struct error *e) {
    struct agent *a = *out = mem_calloc(1, sizeof *a);
    if (!a) return error_set(e, ERR_MEMORY, "no memory");
    const int rc = agent_file_open_dir(&a->dir, dir, e);
    if (rc) agent_close(out);
    return rc;
}

void agent_close(struct agent **at) {
    struct agent *a = *at;
    *at = NULL;
    if (!a) return;
    agent_file_close_dir(&a->dir);
    mem_free(a);
}

const char *agent_path(const struct agent *a) { return a->dir.path; }
const struct agent_tool *agent_tool(size_t i) { return i < sizeof tools / sizeof *tools ? &tools[i] : NULL; }
bool agent_tool_reads(const struct agent_tool *t) { return t->look != NULL; }

int agent_tool_define(const struct agent_tool *t, struct arena *a, struct tool_definition *out, struct error *e) {
    struct json root;
    TRY(json_parse(a, t->definition, strlen(t->definition), 0, "agent", &root, e));
    return tool_definition_parse_mcp(a, &root, out, e);
}

/* Opens a call. The arguments are an object. */
static int begin(const struct agent *a, const struct buf *arguments, struct arena *arena, struct json *root,
                 struct agent_call *c) {
    struct error e;
    c->dir = &a->dir;
    c->arguments = root;
    c->until = clock_now() + AGENT_TIME_S;
    const int rc = json_parse(arena, arguments->data, arguments->len, 0, "arguments", root, &e);
    if (rc) agent_call_fail(c, &e);
    return rc;
}

bool agent_tool_preview(const struct agent *a, const struct agent_tool *t, const struct buf *arguments,
                        struct buf *shown, uint64_t *seen, struct tool_result *r) {
    struct arena arena = {0};
    struct json root;
    struct agent_change change = {0};
    struct agent_call c = {.cancel_fd = -1, .r = r};
    if (!t->change) return true;
    const bool can_run = !begin(a, arguments, &arena, &root, &c) && t->change(&c, &change);
    if (can_run) {
        buf_fmt(shown, "%s%s\n", change.path, change.old ? "" : ", a new file");
        agent_diff_put(shown, change.old ? change.old : "", change.n_old, change.text.data ? change.text.data : "",
                       change.text.len);
        *seen = agent_edit_mark(&change);
    }
    agent_edit_free(&change);
    arena_free(&arena);
    return can_run;
}

/* What the command writes to its stderr belongs to its output: compilers and tests report there. */
static void run_command(struct agent_call *c) {
    enum { TIMEOUT_MAX_S = 600 };
    const char *text;
    size_t n;
    int64_t timeout;
    struct buf script = {0};
    if (!agent_call_text(c, "command", &text, &n) ||
        !agent_call_number(c, "timeout", 1, TIMEOUT_MAX_S, TOOL_TIMEOUT_S, &timeout))
        return;
    if (!n || n > 100000 || memchr(text, 0, n)) {
        agent_call_fail(c, &(struct error){.code = ERR_USAGE, .text = "command: a text without NUL is required"});
        return;
    }
    buf_str(&script, "exec 2>&1\n");
    buf_add(&script, text, n);
    const char *argv[] = {"sh", "-c", script.data, NULL};
    const struct tool_command command = {
        .argv = argv, .dir = c->dir->fd, .timeout_s = (double)timeout, .max_output = AGENT_OUTPUT_BYTES};
    if (script.failed) agent_call_fail(c, &(struct error){.code = ERR_MEMORY, .text = "no memory"});
    else tool_process_run(&command, "", 0, c->cancel_fd, c->r);
    if (!c->r->text.len && c->r->status == TOOL_OK) tool_result_note(c->r, "exit status 0, without output");
    buf_free(&script);
}

void agent_tool_run(const struct agent *a, const struct agent_tool *t, const struct buf *arguments, uint64_t seen,
                    int cancel_fd, struct tool_result *r) {
    const double start = clock_now();
    struct arena arena = {0};
    struct json root;
    struct agent_change change = {0};
    struct agent_call c = {.cancel_fd = cancel_fd, .seen = seen, .r = r};
    if (begin(a, arguments, &arena, &root, &c)) {
    } else if (t->look) t->look(&c);
    else if (!t->change) run_command(&c);
    else if (t->change(&c, &change)) agent_edit_apply(&c, &change);
    agent_edit_free(&change);
    arena_free(&arena);
    r->seconds = clock_now() - start;
}
