#include "cli/turn/template_vars.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/report.h"
#include "cli/terminal/out.h"
#include "cli/turn/engine_client.h"
#include "tokenizer/chat/chat_effort.h"

/* Whether the template of this process's model is known, and not that of a server. */
static bool has_template(const struct app *a) { return a->backend->is_local && a->template; }
/* Whether the template reads a variable; true if the template is elsewhere. */
static bool reads(const struct app *a, const char *variable) {
    return !has_template(a) || chat_template_reads(a->template, variable);
}

/* The word of a level or of a number from 1 to 100. */
static const char *word_of(const char *effort) {
    const long number = strtol(effort, NULL, 10);
    return !number ? effort : number <= 33 ? "low" : number <= 66 ? "medium" : number < 100 ? "high" : "max";
}
/* The nearest level that the template takes. */
static const char *level_of(const struct app *a, const char *effort) {
    const char *word = word_of(effort), *level = NULL;
    struct error e;
    if (has_template(a)) chat_effort_fit(a->template, word, strlen(word), &level, &e);
    return level ? level : word;
}

static bool has_thinking_switch(const struct app *a) {
    return a->backend->is_local && (reads(a, "enable_thinking") || reads(a, "thinking"));
}

/* Appends the levels that the template names. Returns whether `effort` is one, or there are not several: a template
 * that names one level names its default. */
static bool put_levels(const struct app *a, const char *effort, struct buf *out) {
    bool is_one = false;
    int n = 0;
    for (int i = 0; i < CHAT_EFFORTS; i++) {
        const char *level = chat_effort_levels[i];
        if (!has_template(a) || !chat_template_mentions(a->template, level, strlen(level))) continue;
        buf_fmt(out, "%s%s", n++ ? ", " : "", level);
        is_one |= !strcmp(level, effort);
    }
    return is_one || n < 2;
}

enum template_effort template_vars_effort(struct app *a, struct buf *out) {
    const char *effort = a->opts.v[OPT_EFFORT].text;
    struct buf levels = {0};
    enum template_effort is = EFFORT_KNOWN;
    if (!effort || !a->backend->is_local) return is;
    a->noted_effort = effort;
    if (!reads(a, "reasoning_effort")) {
        is = has_thinking_switch(a) ? EFFORT_SWITCH : EFFORT_UNKNOWN;
        if (is == EFFORT_UNKNOWN)
            buf_str(out, "the model's chat template knows neither an effort nor a switch for thinking");
        else if (strcmp(effort, "none"))
            buf_str(out, "the model's chat template only switches thinking on or off; it is on");
    } else if (!put_levels(a, word_of(effort), &levels)) {
        const char *level = level_of(a, effort);
        buf_fmt(out, "the model's chat template names only %s", levels.data ? levels.data : "");
        if (strcmp(level, word_of(effort)) != 0) buf_fmt(out, "; it is %s", level);
    }
    buf_free(&levels);
    return is;
}

const char *template_vars_known_effort(const struct app *a) {
    return reads(a, "reasoning_effort") || has_thinking_switch(a) ? a->opts.v[OPT_EFFORT].text : NULL;
}

static void note_effort(struct app *a) {
    const char *effort = a->opts.v[OPT_EFFORT].text;
    struct buf text = {0};
    if (!effort || a->noted_effort == effort) return;
    template_vars_effort(a, &text);
    if (text.len) report_note("--effort %s: %s", effort, text.data);
    buf_free(&text);
}

static void put_effort(struct app *a, int *think, struct buf *b) {
    const char *effort = a->opts.v[OPT_EFFORT].text;
    if (!effort) return;
    const bool has_effort = reads(a, "reasoning_effort");
    if (*think < 0 && has_thinking_switch(a)) *think = strcmp(effort, "none") != 0;
    if (has_effort) buf_fmt(b, ", \"reasoning_effort\": \"%s\"", level_of(a, effort));
    note_effort(a);
}

static int put_variable(struct app *a, const char *text, bool notes, struct buf *b, struct error *e) {
    static const char *const own[] = {"messages", "tools", "add_generation_prompt", "continue_final_message"};
    const char *eq = strchr(text, '=');
    struct arena arena = {0};
    struct json value;
    char name[64];
    if (!eq || eq == text || (size_t)(eq - text) >= sizeof name)
        return error_set(e, ERR_USAGE, "--template-var %.80s: not NAME=VALUE", text);
    snprintf(name, sizeof name, "%.*s", (int)(eq - text), text);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (!strcmp(name, own[i]))
            return error_set(e, ERR_USAGE, "--template-var %s: hearth itself sets this variable", name);
    if (notes && !reads(a, name))
        report_note("--template-var %s: the model's chat template has no such variable", name);
    buf_str(b, ", ");
    out_json_string(b, name, strlen(name));
    buf_str(b, ": ");
    if (json_parse(&arena, eq + 1, strlen(eq + 1), 0, name, &value, &(struct error){0}))
        out_json_string(b, eq + 1, strlen(eq + 1));
    else json_write(b, &value);
    arena_free(&arena);
    return 0;
}

int template_vars_put(struct app *a, int think, struct buf *b, struct error *e) {
    const struct opt_value *vars = &a->opts.v[OPT_TEMPLATE_VAR];
    const bool notes = !a->noted_vars;
    put_effort(a, &think, b);
    if (think >= 0)
        buf_fmt(b, ", \"enable_thinking\": %s, \"thinking\": %s", think ? "true" : "false", think ? "true" : "false");
    for (size_t i = 0; i < vars->n_items; i++) TRY(put_variable(a, vars->items[i], notes, b, e));
    a->noted_vars = true;
    return 0;
}
