/* Chat commands: lines that begin with '/'. A new command is one row of the table and its function. */
#include "cli/chat/command.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/modes/models.h"
#include "cli/options/model_path.h"
#include "cli/options/trim.h"
#include "engine/base/file.h"

struct command {
    const char *name, *args, *help;
    void (*fn)(struct repl *r, const char *arg);
    bool takes_session; /* its argument is the name of an open session */
};
static const struct command commands[];
static const size_t n_commands;

static void cmd_help(struct repl *r, const char *arg) {
    for (size_t i = 0; i < n_commands; i++) {
        char left[48];
        snprintf(left, sizeof left, "/%s %s", commands[i].name, commands[i].args);
        screen_print(r, "  %-22s %s", left, commands[i].help);
    }
    screen_print(r, "Several lines: \"\"\" before and after, a \\ at the end, Ctrl-J, or paste. A trailing & answers in the background.\n"
                    "While an answer runs you can keep typing: lines you enter are sent when it ends; & alone moves that answer to the background.\n"
                    "Ctrl-C stops an answer, Ctrl-R searches the history, Ctrl-G opens $EDITOR, Tab completes, Ctrl-D leaves.");
}

void command_request_exit(struct repl *r, bool key) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_sessions; i++) n += r->sessions[i]->turn.running && r->sessions[i] != r->on_screen;
    if (!n || r->exit_warned) {
        r->leaving = true;
        return;
    }
    char text[128] = "an answer is still running in the background; repeat to stop it and leave";
    if (n > 1) snprintf(text, sizeof text, "%zu answers are still running in the background; repeat to stop them and leave", n);
    if (key) line_hint(&r->line, text);
    else screen_print(r, "%s", text);
    r->exit_warned = true;
}

static void cmd_bye(struct repl *r, const char *arg) { command_request_exit(r, false); }

static const struct command commands[] = {
    {"help", "", "this list", cmd_help, false},
    {"new", "[NAME]", "open another session", cmd_new, false},
    {"sessions", "", "list open and saved sessions", cmd_sessions, false},
    {"switch", "NAME", "switch to another open session, by name or number", cmd_switch, true},
    {"close", "[NAME]", "close this session; it stays on disk", cmd_close, true},
    {"save", "[NAME]", "save the conversation as NAME", cmd_save, false},
    {"load", "NAME", "open a saved conversation", cmd_load, false},
    {"delete", "NAME", "delete a saved conversation", cmd_delete, false},
    {"read", "FILE", "attach FILE to the next question", cmd_read, false},
    {"model", "[NAME]", "list models, or switch to another", cmd_model, false},
    {"system", "[TEXT]", "show or set the system prompt; - removes it", cmd_system, false},
    {"set", "NAME VALUE", "change a setting: /set temp 0.2", cmd_set, false},
    {"show", "", "show the current settings", cmd_show, false},
    {"regen", "", "replace the last answer with a new one", cmd_regen, false},
    {"continue", "", "continue the last answer", cmd_continue, false},
    {"undo", "", "undo the last question and its answer, or /clear", cmd_undo, false},
    {"fork", "[NAME]", "copy the conversation into a new session", cmd_fork, false},
    {"bg", "TEXT", "answer TEXT in the background; alone: move the running answer there", cmd_bg, false},
    {"compact", "", "replace the conversation with a summary", cmd_compact, false},
    {"tokens", "", "show how full the context is", cmd_tokens, false},
    {"stats", "", "show counts and speeds of the last answer", cmd_stats, false},
    {"explain", "", "show why its mode was chosen", cmd_explain, false},
    {"experts", "[LAYER]", "show which experts the answers used, and where they are", cmd_experts, false},
    {"copy", "", "copy the last answer to the clipboard", cmd_copy, false},
    {"clear", "", "start over, on an empty screen", cmd_clear, false},
    {"bye", "", "leave; also /exit and /quit", cmd_bye, false},
};
static const size_t n_commands = sizeof commands / sizeof *commands;

/* Names used by other programs. */
static const struct { const char *name, *means; } aliases[] = {{"exit", "bye"}, {"quit", "bye"}, {"?", "help"}, {"list", "sessions"}};

static const char *next_command(void *ctx) {
    size_t *i = ctx;
    return *i < n_commands ? commands[(*i)++].name : NULL;
}

void command_run(struct repl *r, const char *text) {
    size_t n = strcspn(++text, " \t\n"), i = 0;
    char word[40], near[40];
    snprintf(word, sizeof word, "%.*s", (int)(n > 39 ? 39 : n), text);
    const char *arg = text + n + strspn(text + n, " \t\n");
    char *copy = mem_strdup(arg);
    if (!copy) return;
    copy[trim_end(copy, strlen(copy), " \t\n")] = 0;
    for (size_t k = 0; k < sizeof aliases / sizeof *aliases; k++)
        if (!strcmp(aliases[k].name, word)) snprintf(word, sizeof word, "%s", aliases[k].means);
    for (; i < n_commands; i++)
        if (!strcmp(commands[i].name, word)) break;
    size_t at = 0;
    if (i < n_commands) commands[i].fn(r, copy);
    else if (opt_nearest(word, next_command, &at, near, sizeof near)) screen_print(r, "no command /%s; did you mean /%s?", word, near);
    else screen_print(r, "no command /%s; /help lists them (to begin a question with '/', put a blank before it)", word);
    mem_free(copy);
}

static void offer_match(struct buf *out, const char *head, const char *word, const char *typed, size_t n) {
    size_t h = strlen(head);
    if (strncmp(typed, head, h < n ? h : n) || (n > h && strncmp(word, typed + h, n - h))) return;
    buf_fmt(out, "%s%s\n", head, word);
}

static void offer_models(const struct repl *r, struct buf *out, const char *typed, size_t n) {
    struct model *v;
    size_t all;
    if (model_path_list(&r->app->opts, &v, &all, &(struct error){0})) return;
    for (size_t i = 0; i < all; i++) offer_match(out, "", v[i].name, typed, n);
    mem_free(v);
}
static void offer_saved(struct buf *out, const char *typed, size_t n) {
    struct store_entry *v;
    size_t all;
    if (store_list_entries(&v, &all, &(struct error){0})) return;
    for (size_t i = 0; i < all; i++) offer_match(out, "", v[i].name, typed, n);
    mem_free(v);
}

/* Files, and directories with a trailing "/"; hidden ones only after a typed dot. */
static void offer_files(struct buf *out, const char *typed, size_t n) {
    char path[PATHS_MAX], dir[PATHS_MAX];
    size_t head = 0;
    for (size_t i = 0; i < n; i++)
        if (typed[i] == '/') head = i + 1;
    snprintf(path, sizeof path, "%.*s", (int)head, typed);
    if (paths_expand(head ? path : ".", dir, sizeof dir)) return;
    struct dirent **files;
    int all = scandir(dir, &files, NULL, alphasort);
    for (int i = 0; i < all; i++) {
        const char *name = files[i]->d_name;
        char whole[PATHS_MAX];
        bool dots = !strcmp(name, ".") || !strcmp(name, ".."), hidden = *name == '.' && (head == n || typed[head] != '.');
        if (!dots && !hidden && !strchr(name, '\n') && !strncmp(name, typed + head, n - head) && !file_join(whole, sizeof whole, dir, name, &(struct error){0}))
            buf_fmt(out, "%s%s%s\n", path, name, file_is_dir(whole) ? "/" : "");
        free(files[i]);
    }
    if (all >= 0) free(files);
}

/* Completes commands, then the argument of those that take a session, a saved name, a model, a file or a setting. */
void command_complete(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates) {
    struct repl *r = ctx;
    char name[140];
    if (*text != '/') return;
    size_t word = strcspn(text, " ");
    if (cursor <= word) {
        for (size_t i = 0; i < n_commands; i++) offer_match(candidates, "/", commands[i].name, text, cursor);
        return;
    }
    *from = word + 1;
    const char *typed = text + *from;
    size_t n = cursor - *from;
    if (!strncmp(text, "/read ", 6)) offer_files(candidates, typed, n); /* a name may contain blanks */
    if (memchr(typed, ' ', n)) return;
    for (size_t i = 0; i < n_commands; i++) {
        if (strlen(commands[i].name) != word - 1 || strncmp(commands[i].name, text + 1, word - 1)) continue;
        for (size_t k = 0; commands[i].takes_session && k < r->n_sessions; k++) {
            screen_label(r->sessions[k], name, sizeof name);
            offer_match(candidates, "", name, typed, n);
        }
        for (int id = 0; commands[i].fn == cmd_set && id < OPT_COUNT; id++)
            if (opt_table[id].flags & OPT_LIVE && id != OPT_SYSTEM) offer_match(candidates, "", opt_table[id].name, typed, n);
        if (commands[i].fn == cmd_load || commands[i].fn == cmd_delete) offer_saved(candidates, typed, n);
        if (commands[i].fn == cmd_model) offer_models(r, candidates, typed, n);
    }
}
