/* The sessions of a chat: open, show, save, close. */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/input.h"
#include "cli/out.h"
#include "cli/repl.h"
#include "cli/saver.h"
#include "engine/base/clock.h"

struct talk *repl_new(struct repl *r, const char *name) {
    struct talk *t = mem_calloc(1, sizeof *t);
    if (!t) return NULL;
    if (mem_grow(&r->talks, &r->cap, r->n + 1, sizeof *r->talks)) {
        mem_free(t);
        return NULL;
    }
    t->number = ++r->numbers;
    t->named = name != NULL;
    t->shown = true;
    if (name) snprintf(t->name, sizeof t->name, "%s", name);
    r->talks[r->n++] = t;
    return t;
}

struct talk *repl_find(struct repl *r, const char *name) {
    for (size_t i = 0; i < r->n; i++)
        if (!strcmp(r->talks[i]->name, name)) return r->talks[i];
    for (size_t i = 0; i < r->n; i++)
        if (r->talks[i]->number == atoi(name)) return r->talks[i];
    return NULL;
}

void repl_label(const struct talk *t, char *out, size_t cap) {
    if (t->named) snprintf(out, cap, "%s", t->name);
    else snprintf(out, cap, "%d", t->number);
}

/* Saves an unnamed session under the first words of its first question. */
void repl_save(struct repl *r, struct talk *t) {
    struct error e;
    int rc = 0;
    if (!t->store.lock && !t->store.off) {
        if (t->named) rc = store_open(&t->store, r->app, t->name, STORE_REPLACE, NULL, &e);
        else if (r->app->opts.v[OPT_NO_SAVE].on || !conv_last(&t->conv, ROLE_USER)) return;
        else if (!(rc = store_open_for(&t->store, r->app, &t->conv, &e))) snprintf(t->name, sizeof t->name, "%s", t->store.name);
    }
    if (!rc && t->seat) rc = store_keep(&t->store, t->seat, &e);
    if (!rc) rc = store_save_later(&t->store, r->app, &t->conv, &e);
    if (rc) app_note(r->app, "not saved: %s", e.text);
}

bool repl_say_unsaved(struct repl *r) {
    struct error e;
    int rc = saver_failed(&e);
    if (rc) app_note(r->app, "not saved: %s", e.text);
    return rc;
}

bool repl_busy(struct repl *r, struct talk *t) {
    if (t->turn.running) repl_say(r, "its answer is still running in the background; /switch %d shows it, and Ctrl-C then stops it", t->number);
    return t->turn.running;
}

static void print_message(struct repl *r, const struct message *m) {
    struct buf b = {0};
    if (m->role == ROLE_USER) {
        const char *text = conv_question(m, &b);
        if (text) buf_fmt(&b, "%s%s", b.len ? " " : "", text);
        repl_say_in(r, "\033[1m", "> ", b.data ? b.data : "", b.len);
    } else if (m->role == ROLE_ASSISTANT) printer_print(r->app, m->text.data, m->text.len);
    buf_free(&b);
}

/* Activates a session: prints its last exchange, and attaches to its answer if one is running. */
void repl_switch(struct repl *r, struct talk *t) {
    r->now = t;
    size_t from = t->conv.n;
    while (from && t->conv.m[from - 1].role != ROLE_USER) from--;
    if (from) from--;
    for (size_t i = from; i < t->conv.n; i++) print_message(r, &t->conv.m[i]);
    t->shown = true;
    if (t->turn.running) repl_watch(r, t);
}

static void past_free(struct past *p) {
    conv_free(&p->conv);
    store_close(&p->store);
    *p = (struct past){0};
}

static void talk_free(struct talk *t) {
    turn_free(&t->turn);
    seat_close(&t->seat);
    store_close(&t->store);
    prompt_free(&t->prompt);
    conv_free(&t->conv);
    past_free(&t->past);
    buf_free(&t->attached);
    mem_free(t);
}

void repl_drop(struct repl *r, struct talk *t) {
    t->closing = true;
    if (t->turn.running) {
        seat_cancel(t->seat);
        for (double until = clock_now() + 5; t->turn.running && clock_now() < until;) {
            struct pollfd p = {.fd = seat_fd(r->app), .events = POLLIN};
            poll(&p, 1, 50);
            repl_pump(r);
        }
    }
    for (size_t i = 0; i < r->n; i++)
        if (r->talks[i] == t) memmove(&r->talks[i], &r->talks[i + 1], (--r->n - i) * sizeof *r->talks);
    if (r->answering == t) r->answering = NULL;
    if (r->now == t) r->now = r->n ? r->talks[r->n - 1] : NULL;
    talk_free(t);
}

/* --- attachments and /clear ------------------------------------------------------------------------------------------ */

bool repl_attach(struct repl *r, struct talk *t, const char *path) {
    struct error e;
    char real[PATHS_MAX];
    size_t had = t->attached.len;
    int rc = paths_expand(path, real, sizeof real);
    if (rc) error_set(&e, rc, "the path is too long");
    if (rc || input_document(r->app, real, &t->attached, &e)) {
        repl_say(r, "%s", e.text);
        t->attached.len = had;
        t->attached.failed = false;
        return false;
    }
    repl_say(r, "%s: %zu bytes attached to your next question", path, t->attached.len - had);
    return true;
}

/* Keeps the system prompt. The old conversation keeps its file; the new one gets its own later. */
void repl_clear(struct repl *r, struct talk *t) {
    struct conv fresh = {0};
    if (t->conv.n && t->conv.m[0].role == ROLE_SYSTEM && conv_system(&fresh, t->conv.m[0].text.data)) {
        repl_say(r, "no memory; the conversation is unchanged");
        return;
    }
    if (conv_last(&t->conv, ROLE_USER)) {
        past_free(&t->past);
        t->past = (struct past){.conv = t->conv, .store = t->store, .named = t->named};
        snprintf(t->past.name, sizeof t->past.name, "%s", t->name);
        t->store = (struct store){0};
        t->named = false;
        *t->name = 0;
    } else conv_free(&t->conv);
    t->conv = fresh;
    t->attached.len = 0;
    prompt_free(&t->prompt);
}

bool repl_bring_back(struct repl *r, struct talk *t) {
    if (!t->past.conv.n) return false;
    conv_free(&t->conv);
    store_close(&t->store);
    t->conv = t->past.conv;
    t->store = t->past.store;
    t->named = t->past.named;
    snprintf(t->name, sizeof t->name, "%s", t->past.name);
    t->past = (struct past){0};
    prompt_free(&t->prompt);
    return true;
}
