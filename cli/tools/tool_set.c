#include "cli/tools/tool_set.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/report.h"
#include "cli/terminal/progress.h"
#include "cli/tools/child.h"
#include "cli/tools/tool_process.h"
#include "cli/turn/engine_client.h"
#include "cli/turn/tool_grammar.h"

enum { TOOLS_MAX = 512, FILE_BYTES = 1 << 20, MOST_NOTES = 10 };

/* --- tools ------------------------------------------------------------------------------------ */

static struct tool *find_name(const struct tool_set *s, const char *name, size_t n) {
    for (size_t i = 0; i < s->n; i++)
        if (strlen(s->v[i].definition.name) == n && !memcmp(s->v[i].definition.name, name, n)) return &s->v[i];
    return NULL;
}
struct tool *tool_set_find(const struct tool_set *s, const struct buf *name) {
    return find_name(s, name->data ? name->data : "", name->len);
}

/* Adds a tool, from which the other members are copied. */
static int add_tool(struct app *a, const struct tool_definition *d, struct tool tool, struct error *e) {
    struct tool_set *s = a->tools;
    if (find_name(s, d->name, strlen(d->name))) return error_set(e, ERR_USAGE, "another tool has the name %s", d->name);
    if (s->n == TOOLS_MAX) return error_set(e, ERR_USAGE, "there are %d tools, the most", TOOLS_MAX);
    if (mem_grow(&s->v, &s->cap, s->n + 1, sizeof *s->v)) return error_set(e, ERR_MEMORY, "no memory");
    tool.definition = *d;
    s->v[s->n++] = tool;
    buf_str(&a->tool_list, s->n > 1 ? ", " : "[");
    tool_definition_put(d, &a->tool_list);
    return a->tool_list.failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
}

static int read_file(struct app *a, const char *path, struct error *e) {
    struct tool_definition d;
    struct json root;
    char file[PATHS_MAX], *data = NULL;
    size_t n = 0;
    int rc = paths_expand(path, file, sizeof file) ? error_set(e, ERR_USAGE, "the path is too long")
                                                   : file_read(file, FILE_BYTES, &data, &n, e);
    const char *text = rc ? NULL : arena_strndup(&a->tools->arena, data, n);
    mem_free(data);
    if (!rc && !text) rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc) rc = json_parse(&a->tools->arena, text, n, JSON_UNIQUE, path, &root, e);
    if (rc) return rc == ERR_MODEL ? (e->code = ERR_USAGE) : rc;
    rc = tool_definition_parse(&a->tools->arena, &root, &d, e);
    if (!rc && (rc = child_find_program(d.command.argv[0], e))) error_prefix(e, "command");
    if (!rc) rc = add_tool(a, &d, (struct tool){0}, e);
    return rc ? error_prefix(e, "%s", path) : 0;
}

struct listing {
    struct app *app;
    struct mcp *server;
    size_t n_left_out;
};
/* Adds a tool of a server. A tool with an unusable or taken name or schema, or one too many, is left out with a note,
 * since the user cannot change the server. */
static int add_listed(void *ctx, const struct json *tool, struct error *e) {
    struct listing *l = ctx;
    struct tool_definition d;
    struct arena *arena = &l->app->tools->arena;
    const struct json *name = json_get(tool, "name");
    int rc = tool_definition_parse_mcp(arena, tool, &d, e);
    if (!rc) rc = add_tool(l->app, &d, (struct tool){.server = l->server}, e);
    if (rc == ERR_USAGE) {
        if (l->n_left_out++ >= MOST_NOTES) return 0;
        report_note("--mcp %s: tool %.*s is left out: %s", mcp_name(l->server),
                    name && name->type == JSON_STRING && name->n < 80 ? (int)name->n : 1,
                    name && name->type == JSON_STRING && name->n && name->n < 80 ? name->string : "?", e->text);
        return 0;
    }
    return rc;
}

static int open_server(struct app *a, const char *command, struct error *e) {
    struct tool_set *s = a->tools;
    struct listing l = {.app = a};
    int rc = mcp_open(&l.server, command, e);
    if (rc) return rc;
    s->servers[s->n_servers++] = l.server;
    rc = mcp_list_tools(l.server, add_listed, &l, e);
    if (l.n_left_out > MOST_NOTES)
        report_note("--mcp %s: %zu more tools are left out", mcp_name(l.server), l.n_left_out - MOST_NOTES);
    return rc;
}

/* Adds the ready tools. Those that read are allowed: the user has named the directory for it. For a model on another
 * machine tool_set_set_reader() takes that back. */
static int open_agent(struct app *a, const char *dir, struct error *e) {
    struct tool_set *s = a->tools;
    const struct agent_tool *t;
    struct tool_definition d;
    TRY(agent_open(&s->agent, dir, e));
    for (size_t i = 0; (t = agent_tool(i)); i++) {
        const struct tool tool = {.ready = t, .agent = s->agent, .allowed = agent_tool_reads(t)};
        TRY(agent_tool_define(t, &s->arena, &d, e));
        TRY(add_tool(a, &d, tool, e));
    }
    return 0;
}

/* --- options ---------------------------------------------------------------------------------- */

static int apply_allow(struct tool_set *s, const struct opt_value *allow, struct error *e) {
    for (size_t i = 0; i < allow->n_items; i++) {
        const bool all = !strcmp(allow->items[i], "all");
        struct tool *t = all ? NULL : find_name(s, allow->items[i], strlen(allow->items[i]));
        if (!all && !t) return error_set(e, ERR_USAGE, "--allow %s: no tool has this name", allow->items[i]);
        for (size_t k = 0; k < s->n; k++) s->v[k].allowed |= all || t == &s->v[k];
    }
    return 0;
}

static bool is_named_choice(const char *choice) { return strcmp(choice, "auto") && strcmp(choice, "required"); }

/* Parses a copy of tool_list, into which the values of s->list point, and applies --tool-choice and --allow. */
static int finish_list(struct app *a, struct error *e) {
    struct tool_set *s = a->tools;
    const char *choice = a->opts.v[OPT_TOOL_CHOICE].text;
    if (!s->n) return error_set(e, ERR_USAGE, "the MCP servers have no tools");
    if (buf_char(&a->tool_list, ']')) return error_set(e, ERR_MEMORY, "no memory");
    const char *text = arena_strndup(&s->arena, a->tool_list.data, a->tool_list.len);
    if (!text) return error_set(e, ERR_MEMORY, "no memory");
    TRY(json_parse(&s->arena, text, a->tool_list.len, 0, "tools", &s->list, e));
    if (is_named_choice(choice) && !find_name(s, choice, strlen(choice)))
        return error_set(e, ERR_USAGE, "--tool-choice: auto, required, or the name of a tool is required, not %s",
                         choice);
    return apply_allow(s, &a->opts.v[OPT_ALLOW], e);
}

int tool_set_open(struct app *a, struct error *e) {
    static const enum opt_id need_tools[] = {OPT_ALLOW, OPT_TOOL_CHOICE};
    const struct opt_value *files = &a->opts.v[OPT_TOOL], *servers = &a->opts.v[OPT_MCP];
    const char *dir = a->opts.v[OPT_AGENT].text;
    if (!files->n_items && !servers->n_items && !dir) {
        for (size_t i = 0; i < sizeof need_tools / sizeof *need_tools; i++)
            if (a->opts.v[need_tools[i]].origin == ORIGIN_FLAG)
                return error_set(e, ERR_USAGE, "--%s needs --tool, --mcp or --agent", opt_table[need_tools[i]].name);
        return 0;
    }
    struct tool_set *s = a->tools = mem_calloc(1, sizeof *s);
    if (!s || !(s->servers = mem_calloc(servers->n_items + 1, sizeof *s->servers)))
        return error_set(e, ERR_MEMORY, "no memory");
    child_orphans_begin();
    if (dir && open_agent(a, dir, e)) return error_prefix(e, "--agent");
    for (size_t i = 0; i < files->n_items; i++)
        if (read_file(a, files->items[i], e)) return error_prefix(e, "--tool");
    if (servers->n_items) progress_begin("starting the MCP servers");
    int rc = 0;
    for (size_t i = 0; i < servers->n_items && !rc; i++)
        if ((rc = open_server(a, servers->items[i], e))) error_prefix(e, "--mcp");
    progress_clear();
    return rc ? rc : finish_list(a, e);
}

void tool_set_close(struct app *a) {
    struct tool_set *s = a->tools;
    a->tools = NULL;
    buf_free(&a->tool_list);
    if (!s) return;
    for (size_t i = 0; i < s->n_servers; i++) mcp_close(&s->servers[i]);
    agent_close(&s->agent);
    mem_free(s->servers);
    mem_free(s->v);
    arena_free(&s->forced);
    arena_free(&s->arena);
    mem_free(s);
}

int tool_set_check_model(const struct app *a, struct error *e) {
    if (!a->tools || !a->template || chat_template_takes_tools(a->template)) return 0;
    return error_set(e, ERR_USAGE,
                     "--%s: this model's chat template has no tools; choose a model that has with -m, or a template "
                     "with --template FILE",
                     a->opts.v[OPT_TOOL].n_items  ? "tool"
                     : a->opts.v[OPT_MCP].n_items ? "mcp"
                                                  : "agent");
}

int tool_set_add_agent(struct app *a, const char *dir, struct error *e) {
    const bool is_first = !a->tools;
    struct tool_set *s = a->tools;
    if (s && s->agent)
        return error_set(e, ERR_USAGE, "the tools work in %.300s already; another directory needs another hearth",
                         agent_path(s->agent));
    if (is_first) {
        s = a->tools = mem_calloc(1, sizeof *s);
        if (!s) return error_set(e, ERR_MEMORY, "no memory");
        child_orphans_begin();
    }
    const size_t n = s->n, len = a->tool_list.len;
    if (len) a->tool_list.len--; /* the bracket that ends the list */
    int rc = open_agent(a, dir, e);
    if (!rc) rc = finish_list(a, e);
    if (!rc) return 0;
    if (is_first) {
        tool_set_close(a);
        return rc;
    }
    agent_close(&s->agent);
    s->n = n;
    a->tool_list.failed = false;
    a->tool_list.len = len;
    a->tool_list.data[len - 1] = ']';
    a->tool_list.data[len] = 0;
    return rc;
}

static bool is_named(const struct opt_value *allow, const char *name) {
    for (size_t i = 0; i < allow->n_items; i++)
        if (!strcmp(allow->items[i], "all") || !strcmp(allow->items[i], name)) return true;
    return false;
}

void tool_set_set_reader(struct app *a, const char *host) {
    struct tool_set *s = a->tools;
    if (!s) return;
    snprintf(s->reader, sizeof s->reader, "%s", host ? host : "");
    const bool allowed = !host || !strcmp(s->reader, s->allowed_reader);
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].ready && agent_tool_reads(s->v[i].ready))
            s->v[i].allowed = allowed || is_named(&a->opts.v[OPT_ALLOW], s->v[i].definition.name);
}

bool tool_set_asks_to_read(const struct tool_set *s, const struct tool *t) {
    return *s->reader && t->ready && agent_tool_reads(t->ready);
}

void tool_set_allow(struct tool_set *s, struct tool *t) {
    t->allowed = true;
    if (!tool_set_asks_to_read(s, t)) return;
    snprintf(s->allowed_reader, sizeof s->allowed_reader, "%s", s->reader);
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].ready && agent_tool_reads(s->v[i].ready)) s->v[i].allowed = true;
}

/* --- calls ------------------------------------------------------------------------------------ */

int tool_set_force(struct app *a, struct prompt *p, struct error *e) {
    struct tool_set *s = a->tools;
    const char *choice = a->opts.v[OPT_TOOL_CHOICE].text;
    if (!strcmp(choice, "auto")) return 0;
    const struct json name = {.type = JSON_STRING, .string = choice, .n = (uint32_t)strlen(choice)};
    const struct tool_request q = {.tools = &s->list, .name = is_named_choice(choice) ? &name : NULL};
    if (a->backend->is_local) {
        arena_reset(&s->forced);
        if (tool_grammar_make(&s->forced, a->template, a->tokenizer, &q, &s->source, e))
            return error_prefix(e, "--tool-choice");
        p->source = &s->source;
        return 0;
    }
    if (q.name)
        buf_fmt(&p->body, ", \"tool_choice\": {\"type\": \"function\", \"function\": {\"name\": \"%s\"}}", choice);
    else buf_str(&p->body, ", \"tool_choice\": \"required\"");
    return p->body.failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
}

void tool_set_run(const struct tool *t, const struct buf *arguments, uint64_t seen, int cancel_fd,
                  struct tool_result *r) {
    if (t->ready) agent_tool_run(t->agent, t->ready, arguments, seen, cancel_fd, r);
    else if (t->server) mcp_call(t->server, &t->definition, arguments->data, cancel_fd, r);
    else tool_process_run(&t->definition.command, arguments->data, arguments->len, cancel_fd, r);
}
