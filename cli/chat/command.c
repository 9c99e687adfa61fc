/* Chat commands: lines that begin with '/'. A new command is one row of the table and its function. */
#include "cli/chat/command.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "cli/chat/chat_session.h"
#include "cli/chat/screen.h"
#include "cli/modes/models.h"
#include "cli/options/model_path.h"
#include "cli/options/trim.h"
#include "cli/terminal/term.h"

/* the argument is the name of an open session; runs at once while an answer runs */
enum { TAKES_SESSION = 1, RUNS_BESIDE = 2 };
struct command {
    const char *group, *name, *args, *help;
    void (*fn)(struct repl *r, const char *arg);
    int flags;
    const char *detail; /* more lines for /help NAME, or NULL */
};
static const struct command commands[];
static const size_t N_COMMANDS;

/* Names used by other programs. first: the word before the arguments; NULL: none. */
static const struct alias {
    const char *name, *means, *first;
} aliases[] = {{"exit", "bye", NULL},
               {"quit", "bye", NULL},
               {"?", "help", NULL},
               {"list", "sessions", NULL},
               {"effort", "set", "effort"}};

static const struct alias *find_alias(const char *word, size_t n) {
    for (size_t k = 0; k < sizeof aliases / sizeof *aliases; k++)
        if (strlen(aliases[k].name) == n && !strncasecmp(aliases[k].name, word, n)) return &aliases[k];
    return NULL;
}

static const char *next_command(void *ctx) {
    size_t *i = ctx;
    return *i < N_COMMANDS ? commands[(*i)++].name : NULL;
}

/* Finds a command or alias, in upper or lower case; NULL if there is none. */
static const struct command *find_command(const char *word, size_t n) {
    const struct alias *a = find_alias(word, n);
    if (a) word = a->means, n = strlen(a->means);
    for (size_t i = 0; i < N_COMMANDS; i++)
        if (strlen(commands[i].name) == n && !strncasecmp(commands[i].name, word, n)) return &commands[i];
    return NULL;
}

static void report_unknown(struct repl *r, const char *word) {
    /* commands of other programs, which only lead to hearth's */
    static const struct {
        const char *name, *means;
    } others[] = {{"retry", "regen"},
                  {"redo", "regen"},
                  {"reset", "clear"},
                  {"resume", "load"},
                  {"history", "sessions"},
                  {"rename", "save"},
                  {"add", "read"},
                  {"attach", "read"},
                  {"file", "read"},
                  {"context", "tokens"},
                  {"usage", "tokens"},
                  {"verbose", "stats"},
                  {"config", "set"},
                  {"settings", "show"},
                  {"think", "set think yes"},
                  {"nothink", "set think no"}};
    char near[40];
    size_t at = 0;
    const enum opt_id setting = opt_find(word, strlen(word), NULL);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!strcmp(others[i].name, word)) {
            screen_print(r, "unknown command /%s; did you mean /%s?", word, others[i].means);
            return;
        }
    if (opt_is_live(setting))
        screen_print(r, "unknown command /%s; did you mean /set %s?", word, opt_table[setting].name);
    else if (opt_nearest(word, next_command, &at, near, sizeof near))
        screen_print(r, "unknown command /%s; did you mean /%s?", word, near);
    else
        screen_print(r, "unknown command /%s; see /help (to send text that starts with '/', type a space first)", word);
}

/* Prints a command; further rows of its text begin below its first. */
static void print_command(struct repl *r, const struct command *c) {
    enum { TEXT_COLUMN = 25 };
    char left[48];
    struct buf b = {0};
    int rows, cols;
    term_size(&rows, &cols);
    const size_t room = cols > TEXT_COLUMN + 20 ? (size_t)cols - TEXT_COLUMN - 1 : SIZE_MAX;
    snprintf(left, sizeof left, "/%s %s", c->name, c->args);
    buf_fmt(&b, "  %-22s ", left);
    const char *s = c->help;
    for (size_t n; (n = strlen(s)) > room; s += n + 1) {
        n = room;
        while (n && s[n] != ' ') n--;
        if (!n) break;
        buf_fmt(&b, "%.*s\n%*s", (int)n, s, TEXT_COLUMN, "");
    }
    buf_str(&b, s);
    if (!b.failed) screen_print_styled(r, "\033[2m", "", b.data, b.len);
    buf_free(&b);
}

/* /help without a word: what most chats need. */
static bool is_everyday(const struct command *c) {
    static const char *const names[] = {"regen", "continue", "undo",  "read", "copy",
                                        "new",   "sessions", "model", "set",  "bye"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(c->name, names[i])) return true;
    return false;
}

static void command_help(struct repl *r, const char *arg) {
    const char *name = arg + (*arg == '/'), *group = "";
    const bool all = !strcmp(arg, "all");
    const struct command *c = *arg && !all ? find_command(name, strlen(name)) : NULL;
    if (c) {
        print_command(r, c);
        if (c->detail) screen_print(r, "%s", c->detail);
    } else if (*arg && !all) report_unknown(r, name);
    if (*arg && !all) return;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (!all && !is_everyday(&commands[i])) continue;
        if (all && strcmp(group, commands[i].group)) screen_print(r, "%s:", commands[i].group);
        group = commands[i].group;
        print_command(r, &commands[i]);
    }
    if (!all) {
        screen_print(r, "/help all lists every command and key, /help COMMAND tells more about one. Ctrl-C stops an "
                        "answer, Tab completes, Ctrl-D leaves.");
        return;
    }
    screen_print(r, "Several lines: \"\"\" before and after, a \\ at the end, Ctrl-J, or paste. /help COMMAND tells "
                    "more about one.\n"
                    "While an answer runs you can keep typing: lines you enter are sent when it ends; & alone moves "
                    "that answer to the background.\n"
                    "Esc or Ctrl-C stops an answer, Ctrl-O shows the thinking, Ctrl-R searches the history, Ctrl-G "
                    "opens $EDITOR, Tab completes, Ctrl-D leaves.");
}

void command_request_exit(struct repl *r, bool as_hint) {
    size_t n = 0;
    for (size_t i = 0; i < r->n_sessions; i++)
        n += chat_session_is_answering(r->sessions[i]) && r->sessions[i] != r->on_screen;
    if (!n || r->exit_warned) {
        r->leaving = true;
        return;
    }
    char text[128] = "an answer is still running in the background; repeat to stop it and leave";
    if (n > 1)
        snprintf(text, sizeof text, "%zu answers are still running in the background; repeat to stop them and leave",
                 n);
    if (as_hint) line_hint(&r->line, text);
    else screen_print(r, "%s", text);
    r->exit_warned = true;
}

static void command_bye(struct repl *r, const char *arg) { command_request_exit(r, false); }

#define TALK    "Conversation"
#define FILES   "Documents and text"
#define SESSION "Sessions"
#define MODEL   "Model and settings"
#define INFO    "Information"
static const struct command commands[] = {
    {TALK, "regen", "", "replace the last answer with a new one", command_regen, 0, NULL},
    {TALK, "continue", "", "continue the last answer", command_continue, 0, NULL},
    {TALK, "undo", "", "undo the last question and its answer, /clear or /compact", command_undo, 0, NULL},
    {TALK, "clear", "", "start over, on an empty screen", command_clear, 0, NULL},
    {TALK, "compact", "[force]", "replace the conversation with a summary", command_compact, 0,
     "The model summarises the conversation; the summary takes the place of the earlier messages, so that the context "
     "has room again. A refusal, or a summary that is too short for its text, leaves the conversation as it is; "
     "/compact "
     "force takes it. /set compact-at 80 does this by itself when 80 % of the context are full."},
    {TALK, "system", "[TEXT]", "show or set the system prompt; - removes it", command_system, 0, NULL},
    {TALK, "bg", "TEXT", "answer TEXT in the background; alone: move the running answer there", command_bg, 0,
     "While an answer runs, & alone does the same as /bg. /switch shows the answer later."},
    {TALK, "edit", "[TEXT]", "write the next question in $EDITOR", command_edit, 0, NULL},
    {FILES, "read", "FILE...", "attach files to the next question", command_read, 0,
     "Names with spaces go in quotes; *.c is a pattern; a directory gives its text files, at most 200, without hidden "
     "ones."},
    {FILES, "attachments", "", "list the attached files", command_attachments, RUNS_BESIDE, NULL},
    {FILES, "detach", "[NAME]", "drop an attached file, or all", command_detach, 0, NULL},
    {FILES, "agent", "DIR", "let the model work on the files of DIR", command_agent, 0,
     "As --agent DIR: it reads files there and, each time after a question, changes them and runs commands."},
    {FILES, "copy", "[code [N]]", "copy the last answer, or its Nth code block, to the clipboard", command_copy,
     RUNS_BESIDE, "The terminal must accept OSC 52. Control characters are copied as symbols."},
    {FILES, "export", "FILE", "write the conversation to FILE as Markdown", command_export, 0, NULL},
    {FILES, "search", "TEXT", "find TEXT in the saved conversations", command_search, RUNS_BESIDE, NULL},
    {SESSION, "new", "[NAME]", "open another session", command_new, 0, NULL},
    {SESSION, "sessions", "", "list open and saved sessions; also /list", command_sessions, RUNS_BESIDE, NULL},
    {SESSION, "switch", "NAME", "switch to another open session, by name or number", command_switch, TAKES_SESSION,
     NULL},
    {SESSION, "fork", "[NAME]", "copy the conversation into a new session", command_fork, 0, NULL},
    {SESSION, "close", "[NAME]", "close this session; it stays on disk", command_close, TAKES_SESSION, NULL},
    {SESSION, "save", "[NAME]", "save the conversation as NAME", command_save, 0, NULL},
    {SESSION, "load", "NAME", "open a saved conversation", command_load, 0, NULL},
    {SESSION, "delete", "NAME", "delete a saved conversation", command_delete, 0, NULL},
    {MODEL, "model", "[NAME]", "list models, or switch to another", command_model, 0,
     "NAME may be the number in the list, or the beginning of a name."},
    {MODEL, "preset", "[NAME]", "list presets, or use one", command_preset, 0,
     "A preset is a section [NAME] of the configuration file: settings such as temp, a system prompt, and a model."},
    {MODEL, "set", "NAME VALUE", "change a setting: /set temp 0.2", command_set, 0,
     "/set NAME default resets a setting. /show lists them. /effort LEVEL is /set effort LEVEL."},
    {MODEL, "show", "", "show the current settings", command_show, RUNS_BESIDE, NULL},
    {INFO, "tokens", "", "show how full the context is", command_tokens, RUNS_BESIDE, NULL},
    {INFO, "stats", "", "show counts and speeds of the last answer", command_stats, RUNS_BESIDE, NULL},
    {INFO, "explain", "", "show why its mode was chosen", command_explain, RUNS_BESIDE, NULL},
    {INFO, "experts", "[LAYER]", "show which experts the answers used, and where they are", command_experts, 0, NULL},
    {INFO, "help", "[COMMAND]", "the main commands, all of them, or more about one", command_help, RUNS_BESIDE, NULL},
    {INFO, "bye", "", "leave; also /exit and /quit", command_bye, 0, NULL},
};
static const size_t N_COMMANDS = sizeof commands / sizeof *commands;

/* Returns the length of a command's name at text, which begins with '/'; 0 if the word cannot be one, such as a
 * path. */
static size_t name_length(const char *text) {
    size_t n = 1;
    while ((text[n] >= 'a' && text[n] <= 'z') || (text[n] >= 'A' && text[n] <= 'Z') || text[n] == '?') n++;
    return !text[n] || strchr(" \t\n", text[n]) ? n - 1 : 0;
}

bool command_is(const char *text) {
    char path[PATHS_MAX];
    if (*text != '/') return false;
    size_t n = name_length(text);
    if (find_command(text + 1, n)) return true;
    size_t word = strcspn(text + 1, " \t\n"), part = strcspn(text + 1, " \t\n/.");
    if (part < word) return false; /* "/x/y", "/x.c" */
    snprintf(path, sizeof path, "%.*s", (int)word + 1, text);
    return !word || !(file_exists(path) || file_is_dir(path));
}

bool command_runs_beside(const char *text) {
    const struct command *c = *text == '/' ? find_command(text + 1, name_length(text)) : NULL;
    return c && c->flags & RUNS_BESIDE;
}

bool command_leaves(const char *text) {
    const struct command *c = *text == '/' ? find_command(text + 1, name_length(text)) : NULL;
    return c && c->fn == command_bye;
}

void command_run(struct repl *r, const char *text) {
    size_t n = strcspn(++text, " \t\n");
    char word[40];
    snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), text);
    const char *arg = text + n + strspn(text + n, " \t\n");
    const struct command *c = find_command(text, n);
    const struct alias *alias = find_alias(text, n);
    const char *first = alias && alias->first ? alias->first : "";
    char *copy = mem_alloc(strlen(first) + strlen(arg) + 2);
    if (!copy) return;
    sprintf(copy, "%s%s%s", first, *first ? " " : "", arg);
    copy[trim_end(copy, strlen(copy), " \t\n")] = 0;
    /* "/undo 3" */
    if (c && *copy && !*c->args && !(c->flags & RUNS_BESIDE))
        screen_print(r, "nothing was done: /%s takes no argument", word);
    else if (c) c->fn(r, copy);
    else report_unknown(r, word);
    mem_free(copy);
}

/* Offers head + word if it begins with typed [n]. */
static void offer_match(struct buf *out, const char *head, const char *word, const char *typed, size_t n) {
    size_t h = strlen(head);
    if (strncmp(typed, head, h < n ? h : n) || (n > h && strncmp(word, typed + h, n - h))) return;
    buf_fmt(out, "%s%s\n", head, word);
}

static void offer_models(const struct repl *r, struct buf *out, const char *typed, size_t n) {
    struct model_list l;
    if (model_path_list(&r->app->opts, &l, &(struct error){0})) return;
    for (size_t i = 0; i < l.n; i++) offer_match(out, "", l.v[i].name, typed, n);
    model_list_free(&l);
}
static void offer_saved(struct buf *out, const char *typed, size_t n) {
    struct store_entry *v;
    size_t n_saved;
    if (store_list_entries(&v, &n_saved, &(struct error){0})) return;
    for (size_t i = 0; i < n_saved; i++) offer_match(out, "", v[i].name, typed, n);
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
    int n_files = scandir(dir, &files, NULL, alphasort);
    for (int i = 0; i < n_files; i++) {
        const char *name = files[i]->d_name;
        char full[PATHS_MAX];
        bool dots = !strcmp(name, ".") || !strcmp(name, ".."),
             hidden = *name == '.' && (head == n || typed[head] != '.');
        if (!dots && !hidden && !strchr(name, '\n') && !strncmp(name, typed + head, n - head) &&
            !file_join(full, sizeof full, dir, name, &(struct error){0}))
            buf_fmt(out, "%s%s%s\n", path, name, file_is_dir(full) ? "/" : "");
        free(files[i]);
    }
    if (n_files >= 0) free(files);
}

/* Completes the name of a file, which may contain blanks, or else the last of several names. */
static void complete_file(const char *text, size_t cursor, size_t *from, struct buf *candidates) {
    size_t last = cursor;
    offer_files(candidates, text + *from, cursor - *from);
    while (last > *from && text[last - 1] != ' ') last--;
    if (candidates->len || last == *from) return;
    *from = last;
    offer_files(candidates, text + last, cursor - last);
}

/* Completes the value of a setting whose name is text [n]. */
static void complete_value(const char *text, size_t n, size_t cursor, size_t *from, struct buf *candidates) {
    bool negated;
    const enum opt_id id = opt_find(text, n, &negated);
    size_t begin = n + strspn(text + n, " =");
    if (!opt_is_live(id) || cursor < begin) return;
    const char *words = opt_table[id].kind <= OPT_SWITCH ? "yes no"
                        : opt_table[id].choices          ? opt_table[id].choices
                                                         : "";
    char word[40];
    *from += begin;
    for (const char *s = words; *s; s += strspn(s, " ")) {
        size_t k = strcspn(s, " ");
        snprintf(word, sizeof word, "%.*s", (int)k, s);
        offer_match(candidates, "", word, text + begin, cursor - begin);
        s += k;
    }
    offer_match(candidates, "", "default", text + begin, cursor - begin);
}

/* Completes commands, then the argument of those that take a session, a saved name, a model, a file, a setting or a
 * command. */
void command_complete(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates) {
    struct repl *r = ctx;
    char name[140];
    if (*text != '/') return;
    size_t word = strcspn(text, " ");
    if (cursor <= word) {
        for (size_t i = 0; i < N_COMMANDS; i++) offer_match(candidates, "/", commands[i].name, text, cursor);
        return;
    }
    *from = word + 1;
    const char *typed = text + *from;
    size_t n = cursor - *from;
    if (!strncmp(text, "/read ", 6) || !strncmp(text, "/agent ", 7) || !strncmp(text, "/export ", 8)) {
        complete_file(text, cursor, from, candidates);
        return;
    }
    if (!strncmp(text, "/set ", 5) && strcspn(typed, " =") < n)
        complete_value(typed, strcspn(typed, " ="), n, from, candidates);
    if (memchr(typed, ' ', n)) return;
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) != word - 1 || strncmp(commands[i].name, text + 1, word - 1)) continue;
        for (size_t k = 0; commands[i].flags & TAKES_SESSION && k < r->n_sessions; k++) {
            screen_label(r->sessions[k], name, sizeof name);
            offer_match(candidates, "", name, typed, n);
        }
        for (int id = 0; commands[i].fn == command_set && id < OPT_COUNT; id++)
            if (opt_is_live((enum opt_id)id)) offer_match(candidates, "", opt_table[id].name, typed, n);
        if (commands[i].fn == command_load || commands[i].fn == command_delete) offer_saved(candidates, typed, n);
        for (size_t k = 0; commands[i].fn == command_preset && k < r->app->opts.n_presets; k++)
            offer_match(candidates, "", r->app->opts.presets[k], typed, n);
        if (commands[i].fn == command_model) {
            offer_models(r, candidates, typed, n);
            if (!candidates->len) offer_files(candidates, typed, n);
        }
        for (size_t k = 0; commands[i].fn == command_help && k < N_COMMANDS; k++)
            offer_match(candidates, *typed == '/' ? "/" : "", commands[k].name, typed, n);
    }
}
