/* Output generated from the option table: --help, and completions for three shells. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "cli/options/opt.h"

enum { TEXT_COLUMN = 30, EXAMPLE_COLUMN = 46 }; /* where the texts of options and examples begin */

/* its value */
static bool is_optional(const struct opt_def *d) { return d->kind == OPT_FLAG_CHOICE || d->kind == OPT_TEXT_MAYBE; }

static void pad_column(struct buf *out, size_t from, size_t width) {
    do buf_char(out, ' ');
    while (out->len - from < width && !out->failed);
}

static void print_option(const struct opt_def *d, struct buf *out) {
    size_t from = out->len;
    buf_str(out, "  ");
    if (d->letter) buf_fmt(out, "-%c, ", d->letter);
    else buf_str(out, "    ");
    buf_fmt(out, "--%s", d->name);
    if (d->kind == OPT_SWITCH) buf_fmt(out, ", --no-%s", d->name);
    else if (is_optional(d)) buf_fmt(out, " [%s]", d->arg);
    else if (d->arg) buf_fmt(out, " %s", d->arg);
    buf_char(out, ' '); /* two spaces also after a long name */
    pad_column(out, from, TEXT_COLUMN);
    buf_str(out, d->help);
    if (d->kind == OPT_CHOICE) {
        buf_str(out, ": ");
        for (const char *s = d->choices; *s; s++)
            if (*s == ' ') buf_str(out, ", ");
            else buf_char(out, *s);
    }
    buf_char(out, '\n');
}

int opt_help_search(const char *word, struct buf *out, struct error *e) {
    word += strspn(word, "-");
    for (int id = 0; id < OPT_COUNT; id++) {
        struct buf text = {0};
        print_option(&opt_table[id], &text);
        const bool of_group = *word && !strncasecmp(opt_table[id].group, word, strlen(word));
        if (!(opt_table[id].flags & OPT_HIDDEN) && text.data && (of_group || strcasestr(text.data, word)))
            buf_add(out, text.data, text.len);
        out->failed |= text.failed;
        buf_free(&text);
    }
    return out->len || out->failed
               ? 0
               : error_set(e, ERR_USAGE,
                           "no option has '%s' in its name or text; see hearth --help all, and man hearth", word);
}

void opt_help_print(bool all, struct buf *out) {
    buf_str(out,
            "hearth: chat with large language models at a terminal, above all Mixtures of Experts\n\n"
            "  hearth                                      chat with the small built-in model\n"
            "  hearth pull ORG/NAME[:QUANT]                download a model; hearth list shows those that are there\n"
            "  hearth run NAME                             chat with a model, by any part of its name\n"
            "  hearth -m DIR                               chat with the checkpoint in DIR\n"
            "  hearth -m DIR -p \"one question\"             one answer on stdout; also without -p\n"
            "  cat notes.txt | hearth -m DIR -p \"Summarise this\"\n"
            "  hearth -m DIR -f a.txt -f b.txt -p \"Compare these\" | less\n"
            "  hearth -m DIR --inspect                     describe a checkpoint\n");
    const char *group = NULL;
    for (int id = 0; id < OPT_COUNT; id++) {
        const struct opt_def *d = &opt_table[id];
        if (d->flags & OPT_HIDDEN || (!all && !(d->flags & OPT_EVERYDAY))) continue;
        if (!group || strcmp(group, d->group)) buf_fmt(out, "\n%s:\n", d->group);
        group = d->group;
        print_option(d, out);
    }
    if (!all)
        buf_str(out, "\nhearth --help all shows every option, --help WORD those with WORD, --help machine those of the "
                     "machine.\n");
    buf_str(out, "\nSettings can also be given in $XDG_CONFIG_HOME/hearth/config (key = value) and as HEARTH_NAME; "
                 "--print-config shows them.\n"
                 "Exit codes: 0 ok, 1 runtime, 2 usage, 3 bad model, 4 context overflow, 5 not enough memory.\n"
                 "In a chat type /help. The manual is hearth(1).\n");
}

/* Appends a line [n], broken between words before column cols. Its further rows begin at column hang. */
static void wrap_line(const char *s, size_t n, size_t hang, size_t cols, struct buf *out) {
    size_t room = cols, least = hang; /* no break within the name of an option */
    while (n > room) {
        size_t at = room;
        while (at > least && s[at] != ' ') at--;
        if (at <= least) break; /* a word as wide as the screen */
        buf_add(out, s, at);
        buf_fmt(out, "\n%*s", (int)hang, "");
        s += at + 1;
        n -= at + 1;
        room = cols - hang;
        least = 0;
    }
    buf_add(out, s, n);
    buf_char(out, '\n');
}

void opt_help_wrap(const struct buf *text, int cols, struct buf *out) {
    const size_t width = cols < 60 ? 59 : (size_t)cols - 1;
    for (const char *s = text->data; s && *s;) {
        size_t n = strcspn(s, "\n");
        const bool is_option = !strncmp(s, "  -", 3) || !strncmp(s, "      --", 8),
                   is_example = !strncmp(s, "  hearth", 8);
        wrap_line(s, n, is_option ? TEXT_COLUMN : is_example ? EXAMPLE_COLUMN : 0, width, out);
        s += n + (s[n] == '\n');
    }
}

/* --- completions ------------------------------------------------------------------------------ */

static void bash_completion(struct buf *out) {
    buf_str(out, "# bash completion for hearth, generated from its option table\n_hearth() {\n"
                 "    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n    case $prev in\n");
    for (int id = 0; id < OPT_COUNT; id++) {
        const struct opt_def *d = &opt_table[id];
        if (!d->arg || (d->flags & OPT_HIDDEN && !d->choices)) continue;
        if (d->letter) buf_fmt(out, "    -%c | --%s) ", d->letter, d->name);
        else buf_fmt(out, "    --%s) ", d->name);
        if (d->names)
            buf_fmt(out,
                    "mapfile -t COMPREPLY < <(compgen -W \"$(hearth --complete %s 2>/dev/null)\" -- \"$cur\"%s); "
                    "return ;;\n",
                    d->names, d->flags & OPT_FILE_PATH ? "; compgen -f -- \"$cur\"" : "");
        else if (d->choices)
            buf_fmt(out, "mapfile -t COMPREPLY < <(compgen -W '%s' -- \"$cur\"); return ;;\n", d->choices);
        else if (d->flags & OPT_FILE_PATH)
            buf_str(out, "mapfile -t COMPREPLY < <(compgen -f -- \"$cur\"); compopt -o filenames; return ;;\n");
        else buf_str(out, "return ;;\n");
    }
    buf_str(out, "    esac\n    mapfile -t COMPREPLY < <(compgen -W '");
    for (int id = 0; id < OPT_COUNT; id++) {
        const struct opt_def *d = &opt_table[id];
        if (d->flags & OPT_HIDDEN) continue;
        if (d->letter) buf_fmt(out, "-%c ", d->letter);
        buf_fmt(out, "--%s ", d->name);
        if (d->kind == OPT_SWITCH) buf_fmt(out, "--no-%s ", d->name);
    }
    buf_str(out, "' -- \"$cur\")\n}\ncomplete -F _hearth hearth\n");
}

/* Quotes text for '...', in which _arguments interprets brackets and colons. */
static void zsh_quote(struct buf *out, const char *s) {
    for (; *s; s++) {
        if (*s == '\'') buf_str(out, "'\\''");
        else {
            if (strchr("[]:\\", *s)) buf_char(out, '\\');
            buf_char(out, *s);
        }
    }
}
static void zsh_option(struct buf *out, const struct opt_def *d, const char *dashes, const char *no, const char *name) {
    buf_fmt(out, "    '%s%s%s%s", d->kind == OPT_LIST ? "*" : "", dashes, no, name);
    buf_char(out, '[');
    zsh_quote(out, d->help);
    buf_char(out, ']');
    if (d->arg) {
        buf_fmt(out, "%s:", is_optional(d) ? ":" : "");
        zsh_quote(out, d->arg);
        if (d->names) buf_fmt(out, ":_hearth_names %s", d->names);
        else if (d->choices) buf_fmt(out, ":(%s)", d->choices);
        else buf_str(out, d->flags & OPT_FILE_PATH ? ":_files" : ": ");
    }
    buf_str(out, "' \\\n");
}
static void zsh_completion(struct buf *out) {
    buf_str(out, "#compdef hearth\n# zsh completion for hearth, generated from its option table\n"
                 "_hearth_names() {\n"
                 "    local -a names\n"
                 "    names=(${(f)\"$(hearth --complete $1 2>/dev/null)\"})\n"
                 "    compadd -a names\n"
                 "    [[ $1 == models ]] && _files\n"
                 "}\n_arguments -s \\\n");
    for (int id = 0; id < OPT_COUNT; id++) {
        const struct opt_def *d = &opt_table[id];
        char letter[2] = {d->letter, 0};
        if (d->flags & OPT_HIDDEN) continue;
        if (d->letter) zsh_option(out, d, "-", "", letter);
        zsh_option(out, d, "--", "", d->name);
        if (d->kind == OPT_SWITCH) zsh_option(out, d, "--", "no-", d->name);
    }
    buf_str(out, "    && return\n");
}

static void fish_quote(struct buf *out, const char *s) {
    for (; *s; s++) {
        if (*s == '\'' || *s == '\\') buf_char(out, '\\');
        buf_char(out, *s);
    }
}
static void fish_completion(struct buf *out) {
    buf_str(out, "# fish completion for hearth, generated from its option table\ncomplete -c hearth -f\n");
    for (int id = 0; id < OPT_COUNT; id++) {
        const struct opt_def *d = &opt_table[id];
        if (d->flags & OPT_HIDDEN) continue;
        for (int no = 0; no < (d->kind == OPT_SWITCH ? 2 : 1); no++) {
            buf_str(out, "complete -c hearth");
            if (d->letter && !no) buf_fmt(out, " -s %c", d->letter);
            buf_fmt(out, " -l %s%s", no ? "no-" : "", d->name);
            if (d->names)
                buf_fmt(out, " %s-a '(hearth --complete %s 2>/dev/null)'",
                        d->flags & OPT_FILE_PATH ? "-r -F "
                        : is_optional(d)         ? ""
                                                 : "-x ",
                        d->names);
            else if (d->choices) buf_fmt(out, " %s-a '%s'", is_optional(d) ? "" : "-x ", d->choices);
            else if (d->arg) buf_str(out, d->flags & OPT_FILE_PATH ? " -r -F" : " -x");
            buf_str(out, " -d '");
            fish_quote(out, d->help);
            buf_str(out, "'\n");
        }
    }
}

int opt_help_completion(const char *shell, struct buf *out, struct error *e) {
    if (!strcmp(shell, "bash")) bash_completion(out);
    else if (!strcmp(shell, "zsh")) zsh_completion(out);
    else if (!strcmp(shell, "fish")) fish_completion(out);
    else return error_set(e, ERR_USAGE, "no completions for '%s'; choose bash, zsh or fish", shell);
    return out->failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
}
