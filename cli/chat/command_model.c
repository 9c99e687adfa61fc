/* Commands that change the model, and the settings with it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/chat_session.h"
#include "cli/chat/command.h"
#include "cli/chat/screen.h"
#include "cli/modes/models.h"
#include "cli/open.h"
#include "cli/options/model_path.h"
#include "cli/options/trim.h"
#include "cli/tools/tool_set.h"

static void list_models(struct repl *r) {
    struct buf list = {0};
    struct error e;
    if (models_text(r->app, &list, &e)) screen_print(r, "%s", e.text);
    else screen_print_styled(r, "\033[2m", "", list.data, trim_end(list.data, list.len, "\n"));
    screen_print(r, "open: %s; a number, or /model NAME, switches to another and keeps the chats", r->app->info->name);
    r->choosing_model = true;
    buf_free(&list);
}

/* Copies the name of the model with this number in the list; false if arg is not one of its numbers. */
static bool numbered_model(struct repl *r, const char *arg, char *out, size_t cap) {
    struct model_list l;
    char *end;
    unsigned long number = strtoul(arg, &end, 10);
    if (*end || number < 1 || model_path_list(&r->app->opts, &l, &(struct error){0})) return false;
    const bool found = number <= l.n;
    if (found) snprintf(out, cap, "%s", l.v[number - 1].dir);
    model_list_free(&l);
    return found;
}

/* Whether a session is answering; prints a message then. */
static bool report_answering(struct repl *r) {
    const struct chat_session *t = chat_session_answering(r);
    if (t) screen_print(r, "session %d is still answering; Ctrl-C stops it, or wait", t->number);
    return t != NULL;
}

static void switch_model(struct repl *r, const char *name) {
    struct error e;
    chat_session_leave_engine(r);
    int rc = open_other_model(r->app, name, &e);
    if (rc) screen_print(r, "%s", e.text);
    if (!r->app->info) r->leaving = true;
    else screen_print(r, rc ? "still using %s" : "now using %s", r->app->info->name);
}

void command_model(struct repl *r, const char *arg) {
    char numbered[PATHS_MAX];
    if (!*arg) list_models(r);
    else if (!report_answering(r)) switch_model(r, numbered_model(r, arg, numbered, sizeof numbered) ? numbered : arg);
}

void command_agent(struct repl *r, const char *arg) {
    struct error e;
    const struct agent *agent = r->app->tools ? r->app->tools->agent : NULL;
    if (!*arg && agent) screen_print(r, "the model works on %s", agent_path(agent));
    else if (!*arg) screen_print(r, "name a directory: /agent DIR, as in /agent .");
    if (!*arg || report_answering(r)) return;
    const bool was_without = !r->app->tools;
    int rc = tool_set_add_agent(r->app, arg, &e);
    if (!rc && (rc = open_tools(r->app, &e)) && was_without) tool_set_close(r->app);
    if (rc) screen_print(r, "%s", e.text);
    else
        screen_print(r,
                     "from the next question on the model can read files of %s and, after a question each time, "
                     "change them and run commands there",
                     agent_path(r->app->tools->agent));
}

static void list_presets(struct repl *r) {
    const struct opts *o = &r->app->opts;
    for (size_t i = 0; i < o->n_presets; i++) screen_print(r, "  %s", o->presets[i]);
    if (o->n_presets)
        screen_print(r, "in use: %s; /preset NAME uses another",
                     o->v[OPT_PRESET].text ? o->v[OPT_PRESET].text : "none");
    else
        screen_print(r, "there are no presets; a preset is a section [NAME] of the configuration file, with settings, "
                        "system and model");
}

void command_preset(struct repl *r, const char *arg) {
    struct opts *o = &r->app->opts;
    struct opt_value model = o->v[OPT_MODEL];
    struct error e;
    if (!*arg) list_presets(r);
    if (!*arg || report_answering(r)) return;
    if (opt_config_preset(o, arg, &e)) {
        screen_print(r, "%s", e.text);
        return;
    }
    struct opt_value wanted = o->v[OPT_MODEL];
    const char *system = o->v[OPT_SYSTEM].origin == ORIGIN_PRESET ? o->v[OPT_SYSTEM].text : NULL;
    o->v[OPT_MODEL] = model;
    if (wanted.text && (!model.text || strcmp(wanted.text, model.text))) switch_model(r, wanted.text);
    if (system && conversation_set_system(&r->active->conv, system)) screen_print(r, "no memory for the system prompt");
    else if (system) chat_session_save(r, r->active);
    screen_print(r, "preset %s%s, starting with the next question; /show lists the settings", arg,
                 system ? ", with its system prompt" : "");
}
