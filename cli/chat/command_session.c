/* Commands about sessions: list, open, save and close. */
#include <stdio.h>
#include <string.h>

#include "cli/chat/chat_session.h"
#include "cli/chat/chat_switch.h"
#include "cli/chat/command.h"
#include "cli/chat/editor.h"
#include "cli/chat/screen.h"
#include "cli/saved/saver.h"
#include "cli/saved/store_kept.h"
#include "cli/terminal/term.h"

/* Whether a session may get this name; prints why not. */
static bool accept_name(struct repl *r, const char *name) {
    struct error e;
    if (store_check_name(name, &e)) {
        screen_print(r, "%s", e.text);
        return false;
    }
    for (size_t i = 0; i < r->n_sessions; i++)
        if (!strcmp(r->sessions[i]->name, name)) {
            screen_print(r, "session '%s' is already open; /switch %s shows it", name, name);
            return false;
        }
    if (chat_session_find_cleared(r, name) || store_exists(name)) {
        screen_print(r, "the conversation '%s' already exists; /load %s opens it", name, name);
        return false;
    }
    return true;
}

/* Opens a session; with a name also its file, which must be new. */
static struct chat_session *open_new_session(struct repl *r, const char *name) {
    struct error e;
    if (*name && !accept_name(r, name)) return NULL;
    struct chat_session *t = chat_session_new(r, *name ? name : NULL);
    if (!t) screen_print(r, "no memory");
    else if (*name && store_open(&t->store, r->app, name, STORE_NEW, &t->conv, &e)) {
        screen_print(r, "%s", e.text);
        chat_switch_close(r, t);
        return NULL;
    }
    return t;
}

void command_new(struct repl *r, const char *arg) {
    struct chat_session *t = open_new_session(r, arg);
    const char *system = r->app->opts.v[OPT_SYSTEM].text;
    if (!t) return;
    if (system && conversation_set_system(&t->conv, system)) screen_print(r, "no memory for the system prompt");
    chat_switch_to(r, t);
}

/* Lists the newest saved conversations that are not open. */
static void print_saved(struct repl *r) {
    enum { SHOWN = 20 };
    struct store_entry *v;
    struct error e;
    size_t n, shown = 0, more = 0;
    int rows, cols;
    term_size(&rows, &cols);
    if (store_list_entries(&v, &n, &e)) {
        screen_print(r, "%s", e.text);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct buf line = {0};
        bool open = false;
        for (size_t k = 0; k < r->n_sessions; k++) open |= !strcmp(r->sessions[k]->name, v[i].name);
        if (open) continue;
        if (shown == SHOWN) {
            more++;
            continue;
        }
        if (!shown++) screen_print(r, "saved; /load NAME opens one:");
        store_list_entry_text(&v[i], store_list_name_width(v, n, cols - 3), cols - 3, &line);
        screen_print(r, "  %s", line.data ? line.data : "");
        buf_free(&line);
    }
    if (more) screen_print(r, "  and %zu older ones; hearth --list shows all", more);
    mem_free(v);
}

static void format_state(const struct chat_session *t, char *out, size_t cap) {
    const struct turn *u = &t->turn;
    char rate[32];
    if (u->running && u->n_tokens > 1) snprintf(out, cap, "decoding, %s tok/s", turn_speed(u, rate, sizeof rate));
    else if (u->running && u->prefill_total)
        snprintf(out, cap, "prefilling %d %%", 100 * u->prefill_done / u->prefill_total);
    else if (u->running) snprintf(out, cap, "prefilling");
    else snprintf(out, cap, "%s", t->answer_seen ? "" : "has answered");
}

/* One row per session; the title gets the remaining columns. */
void command_sessions(struct repl *r, const char *arg) {
    enum { LEAST = 12 }; /* shortest useful title, in columns */
    int rows, cols, width = 0;
    term_size(&rows, &cols);
    for (size_t i = 0; i < r->n_sessions; i++) {
        int w = r->sessions[i]->named ? (int)strlen(r->sessions[i]->name) : 0;
        if (w > width) width = w;
    }
    for (size_t i = 0; i < r->n_sessions; i++) {
        const struct chat_session *t = r->sessions[i];
        struct buf line = {0};
        size_t turns = conversation_n_questions(&t->conv);
        char state[96];
        format_state(t, state, sizeof state);
        buf_fmt(&line, "%s %d  %-*s%s%3zu question%s", t == r->active ? "*" : " ", t->number, width,
                t->named ? t->name : "", width ? " " : "", turns, turns == 1 ? " " : "s");
        if (*state) buf_fmt(&line, ", %s", state);
        buf_str(&line, "  ");
        int left = cols - 1 - (int)line.len;
        if (left >= LEAST) conversation_title(&t->conv, left, &line);
        screen_print(r, "%s", line.data ? line.data : "");
        buf_free(&line);
    }
    print_saved(r);
}

void command_switch(struct repl *r, const char *arg) {
    struct chat_session *t = *arg ? chat_session_find(r, arg) : NULL;
    if (!*arg) command_sessions(r, arg);
    else if (!t) screen_print(r, "no open session '%s'; /sessions lists them, /load opens a saved one", arg);
    else chat_switch_to(r, t);
}

/* Returns the open session that was active most recently. */
static struct chat_session *latest_session(const struct repl *r) {
    struct chat_session *latest = r->sessions[0];
    for (size_t i = 1; i < r->n_sessions; i++)
        if (r->sessions[i]->last_used > latest->last_used) latest = r->sessions[i];
    return latest;
}

void command_close(struct repl *r, const char *arg) {
    struct chat_session *t = *arg ? chat_session_find(r, arg) : r->active;
    if (!t) {
        screen_print(r, "no open session '%s'", arg);
        return;
    }
    bool front = t == r->active;
    char name[sizeof t->name];
    snprintf(name, sizeof name, "%s", t->name);
    chat_switch_close(r, t);
    if (*name && store_exists(name)) screen_print(r, "closed; /load %s opens it again", name);
    if (!r->n_sessions && !chat_session_new(r, NULL)) r->leaving = true;
    else if (front) chat_switch_to(r, latest_session(r));
}

void command_save(struct repl *r, const char *arg) {
    struct chat_session *t = r->active;
    struct error e;
    char old_name[128] = "";
    if (chat_session_report_busy(r, t)) return;
    if (!*arg && !*t->name) {
        screen_print(r, "the conversation is empty, nothing was saved; /save NAME gives it a name");
        return;
    }
    if (*arg && strcmp(arg, t->name)) {
        if (!accept_name(r, arg)) return;
        int rc =
            t->store.lock ? store_rename(&t->store, arg, &e) : store_open(&t->store, r->app, arg, STORE_NEW, NULL, &e);
        if (rc) {
            screen_print(r, "%s", e.text);
            return;
        }
        if (!t->named) snprintf(old_name, sizeof old_name, "%s", t->name);
        snprintf(t->name, sizeof t->name, "%s", arg);
        t->named = true;
    }
    chat_session_save(r, t);
    saver_wait();
    if (chat_session_report_unsaved()) return;
    if (*old_name) store_delete(old_name, &e); /* remove the file of the generated name */
    if (!t->store.disabled) screen_print(r, "saved as %s; later turns are saved automatically", t->name);
}

/* Reports that no conversation has this name, and one that begins with it or is spelt like it. */
static void report_not_saved(struct repl *r, const char *name) {
    char near[128];
    if (store_nearest(name, near, sizeof near))
        screen_print(r, "no saved conversation '%s'; did you mean %s?", name, near);
    else screen_print(r, "no saved conversation '%s'; /sessions lists them", name);
}

void command_load(struct repl *r, const char *arg) {
    struct error e;
    struct chat_session *t = *arg ? chat_session_find(r, arg) : NULL;
    if (!*arg) {
        command_sessions(r, arg);
        return;
    }
    if (t && !strcmp(t->name, arg)) {
        chat_switch_to(r, t);
        return;
    }
    chat_session_drop_cleared(r, arg);
    char kept[128] = STORE_KEPT;
    if (!strcmp(arg, kept) && store_exists(arg) && !store_kept_take(r->app, kept, sizeof kept, &e)) arg = kept;
    if (store_check_name(arg, &e)) screen_print(r, "%s", e.text);
    else if (!store_exists(arg)) report_not_saved(r, arg);
    else if (!(t = chat_session_new(r, arg))) screen_print(r, "no memory");
    else if (store_open(&t->store, r->app, arg, STORE_LOAD, &t->conv, &e)) {
        screen_print(r, "%s", e.text);
        chat_switch_close(r, t);
    } else chat_switch_to(r, t);
}

void command_fork(struct repl *r, const char *arg) {
    struct chat_session *from = r->active, *t;
    char label[140];
    if (chat_session_report_busy(r, from) || !(t = open_new_session(r, arg))) return;
    if (conversation_append(&t->conv, &from->conv)) {
        screen_print(r, "no memory");
        chat_switch_close(r, t);
        return;
    }
    engine_client_fork(from->client, &t->client);
    chat_session_save(r, t);
    screen_label(t, label, sizeof label);
    screen_print(r,
                 t->named ? "forked into '%s'; /switch %d goes back" : "forked into session %s; /switch %d goes back",
                 label, from->number);
    chat_switch_to(r, t);
}

void command_delete(struct repl *r, const char *arg) {
    struct error e;
    if (!*arg) {
        screen_print(r, "/delete NAME deletes a saved conversation; /sessions lists them");
        return;
    }
    for (size_t i = 0; i < r->n_sessions; i++)
        if (!strcmp(r->sessions[i]->name, arg)) {
            screen_print(r, "'%s' is open; /close %s first", arg, r->sessions[i]->named ? arg : "it");
            return;
        }
    chat_session_drop_cleared(r, arg);
    if (!store_check_name(arg, &e) && !store_exists(arg)) report_not_saved(r, arg);
    else if (store_delete(arg, &e)) screen_print(r, "%s", e.text);
    else screen_print(r, "deleted %s", arg);
}

/* Opens an empty line in the editor, or TEXT. */
void command_edit(struct repl *r, const char *arg) {
    if (r->dumb) screen_print(r, "this terminal cannot show the edited line");
    else {
        line_set_text(&r->line, arg, strlen(arg));
        editor_open(r);
    }
}
