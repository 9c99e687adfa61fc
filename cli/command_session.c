/* Commands about sessions: list, open, save, close, and the model that answers. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/models.h"
#include "cli/saver.h"
#include "cli/term.h"

static bool free_name(struct repl *r, const char *name) {
    struct error e;
    if (store_check_name(name, &e)) {
        repl_say(r, "%s", e.text);
        return false;
    }
    for (size_t i = 0; i < r->n; i++)
        if (!strcmp(r->talks[i]->name, name)) {
            repl_say(r, "session '%s' is already open; /switch %s shows it", name, name);
            return false;
        }
    return true;
}

/* Opens a session; with a name also its file, which must be new. */
static struct talk *open_new(struct repl *r, const char *name) {
    struct error e;
    if (*name && !free_name(r, name)) return NULL;
    struct talk *t = repl_new(r, *name ? name : NULL);
    if (!t) repl_say(r, "no memory");
    else if (*name && store_open(&t->store, r->app, name, STORE_NEW, &t->conv, &e)) {
        repl_say(r, "%s; /load %s opens it", e.text, name);
        repl_drop(r, t);
        return NULL;
    }
    return t;
}

void cmd_new(struct repl *r, const char *arg) {
    struct talk *t = open_new(r, arg);
    const char *system = r->app->opts.v[OPT_SYSTEM].text;
    if (!t) return;
    if (system && conv_system(&t->conv, system)) repl_say(r, "no memory for the system prompt");
    repl_switch(r, t);
}

/* Lists the newest saved conversations that are not open. */
static void say_saved(struct repl *r) {
    enum { SHOWN = 20 };
    struct store_entry *v;
    struct error e;
    size_t n, shown = 0, more = 0;
    int rows, cols;
    term_size(&rows, &cols);
    if (store_entries(&v, &n, &e)) {
        repl_say(r, "%s", e.text);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        struct buf line = {0};
        bool open = false;
        for (size_t k = 0; k < r->n; k++) open |= !strcmp(r->talks[k]->name, v[i].name);
        if (open) continue;
        if (shown == SHOWN) {
            more++;
            continue;
        }
        if (!shown++) repl_say(r, "saved; /load NAME opens one:");
        store_entry_text(&v[i], store_name_width(v, n), cols - 3, &line);
        repl_say(r, "  %s", line.data ? line.data : "");
        buf_free(&line);
    }
    if (more) repl_say(r, "  and %zu older ones; hearth --list shows all", more);
    mem_free(v);
}

static void session_state(const struct talk *t, char *out, size_t cap) {
    const struct turn *u = &t->turn;
    if (u->running && u->n_tokens > 1) snprintf(out, cap, "decoding, %.1f tok/s", (u->n_tokens - 1) / (u->last_token - u->first_token + 1e-9));
    else if (u->running && u->total) snprintf(out, cap, "prefilling %d %%", 100 * u->done / u->total);
    else if (u->running) snprintf(out, cap, "prefilling");
    else snprintf(out, cap, "%s", t->shown ? "" : "has answered");
}

/* One row per session; the title gets the remaining columns. */
void cmd_sessions(struct repl *r, const char *arg) {
    enum { LEAST = 12 }; /* shortest useful title, in columns */
    int rows, cols, width = 0;
    term_size(&rows, &cols);
    for (size_t i = 0; i < r->n; i++) {
        int w = r->talks[i]->named ? (int)strlen(r->talks[i]->name) : 0;
        if (w > width) width = w;
    }
    for (size_t i = 0; i < r->n; i++) {
        const struct talk *t = r->talks[i];
        struct buf line = {0};
        size_t turns = conv_turns(&t->conv);
        char state[96];
        session_state(t, state, sizeof state);
        buf_fmt(&line, "%s %d  %-*s%s%3zu question%s", t == r->now ? "*" : " ", t->number, width, t->named ? t->name : "", width ? " " : "", turns,
                turns == 1 ? " " : "s");
        if (*state) buf_fmt(&line, ", %s", state);
        buf_str(&line, "  ");
        int left = cols - 1 - (int)line.len;
        if (left >= LEAST) conv_title(&t->conv, left, &line);
        repl_say(r, "%s", line.data ? line.data : "");
        buf_free(&line);
    }
    say_saved(r);
}

void cmd_switch(struct repl *r, const char *arg) {
    struct talk *t = *arg ? repl_find(r, arg) : NULL;
    if (!*arg) cmd_sessions(r, arg);
    else if (!t) repl_say(r, "no open session '%s'; /sessions lists them, /load opens a saved one", arg);
    else repl_switch(r, t);
}

void cmd_close(struct repl *r, const char *arg) {
    struct talk *t = *arg ? repl_find(r, arg) : r->now;
    if (!t) {
        repl_say(r, "no open session '%s'", arg);
        return;
    }
    bool front = t == r->now;
    if (*t->name) repl_say(r, "closed; /load %s opens it again", t->name);
    repl_drop(r, t);
    if (!r->n && !repl_new(r, NULL)) r->leave = true;
    else if (front) repl_switch(r, r->talks[r->n - 1]);
}

void cmd_save(struct repl *r, const char *arg) {
    struct talk *t = r->now;
    struct error e;
    char was[128] = "";
    if (repl_busy(r, t)) return;
    if (!*arg && !*t->name) {
        repl_say(r, "the conversation is empty, nothing was saved; /save NAME gives it a name");
        return;
    }
    if (*arg && strcmp(arg, t->name)) {
        if (!free_name(r, arg)) return;
        int rc = t->store.lock ? store_rename(&t->store, arg, &e) : store_open(&t->store, r->app, arg, STORE_NEW, NULL, &e);
        if (rc) {
            repl_say(r, "%s", e.text);
            return;
        }
        if (!t->named) snprintf(was, sizeof was, "%s", t->name);
        snprintf(t->name, sizeof t->name, "%s", arg);
        t->named = true;
    }
    repl_save(r, t);
    saver_wait();
    if (repl_say_unsaved(r)) return;
    if (*was) store_delete(was, &e); /* remove the file of the generated name */
    if (!t->store.off) repl_say(r, "saved as %s; later turns are saved automatically", t->name);
}

void cmd_load(struct repl *r, const char *arg) {
    struct error e;
    struct talk *t = *arg ? repl_find(r, arg) : NULL;
    if (!*arg) {
        cmd_sessions(r, arg);
        return;
    }
    if (t && !strcmp(t->name, arg)) {
        repl_switch(r, t);
        return;
    }
    if (store_check_name(arg, &e)) repl_say(r, "%s", e.text);
    else if (!(t = repl_new(r, arg))) repl_say(r, "no memory");
    else if (store_open(&t->store, r->app, arg, STORE_LOAD, &t->conv, &e)) {
        repl_say(r, "%s", e.text);
        repl_drop(r, t);
    } else repl_switch(r, t);
}

void cmd_fork(struct repl *r, const char *arg) {
    struct talk *from = r->now, *t;
    if (repl_busy(r, from) || !(t = open_new(r, arg))) return;
    if (conv_copy(&t->conv, &from->conv)) {
        repl_say(r, "no memory");
        repl_drop(r, t);
        return;
    }
    seat_fork(from->seat, &t->seat);
    repl_say(r, "this is a copy; /switch %d goes back", from->number);
    repl_switch(r, t);
}

void cmd_delete(struct repl *r, const char *arg) {
    struct error e;
    if (!*arg) {
        repl_say(r, "/delete NAME deletes a saved conversation; /sessions lists them");
        return;
    }
    for (size_t i = 0; i < r->n; i++)
        if (!strcmp(r->talks[i]->name, arg)) {
            repl_say(r, "'%s' is open; /close %s first", arg, r->talks[i]->named ? arg : "it");
            return;
        }
    if (store_delete(arg, &e)) repl_say(r, "%s", e.text);
    else repl_say(r, "deleted %s", arg);
}

void cmd_model(struct repl *r, const char *arg) {
    struct error e;
    if (!*arg) {
        struct buf list = {0};
        if (models_text(r->app, &list, &e)) repl_say(r, "%s", e.text);
        else repl_say_in(r, "\033[2m", "", list.data, list.len);
        repl_say(r, "open: %s; /model NAME switches to another and keeps the chats", r->app->info->name);
        buf_free(&list);
        return;
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->talks[i]->turn.running) {
            repl_say(r, "session %d is still answering; Ctrl-C stops it, or wait", r->talks[i]->number);
            return;
        }
    for (size_t i = 0; i < r->n; i++) { /* clients and prompts belong to the old model; the conversations stay */
        seat_close(&r->talks[i]->seat);
        prompt_free(&r->talks[i]->prompt);
    }
    if (app_change_model(r->app, arg, &e)) repl_say(r, "%s", e.text);
    if (!r->app->info) r->leave = true;
    else repl_say(r, "now using %s", r->app->info->name);
}
