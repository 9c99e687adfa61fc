/* The sessions of a chat: their list, files, and /clear. */
#include "cli/chat/chat_session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/chat/attachments.h"
#include "cli/chat/screen.h"
#include "cli/report.h"
#include "cli/saved/saver.h"

struct chat_session *chat_session_new(struct repl *r, const char *name) {
    struct chat_session *t = mem_calloc(1, sizeof *t);
    if (!t) return NULL;
    if (mem_grow(&r->sessions, &r->cap_sessions, r->n_sessions + 1, sizeof *r->sessions)) {
        mem_free(t);
        return NULL;
    }
    t->number = ++r->last_number;
    t->named = name != NULL;
    t->answer_seen = true;
    if (name) snprintf(t->name, sizeof t->name, "%s", name);
    r->sessions[r->n_sessions++] = t;
    return t;
}

struct chat_session *chat_session_find(struct repl *r, const char *name) {
    for (size_t i = 0; i < r->n_sessions; i++)
        if (!strcmp(r->sessions[i]->name, name)) return r->sessions[i];
    for (size_t i = 0; i < r->n_sessions; i++)
        if (r->sessions[i]->number == atoi(name)) return r->sessions[i];
    return NULL;
}

/* An unnamed session is saved under the first words of its first question. */
void chat_session_save(struct repl *r, struct chat_session *t) {
    struct error e;
    int rc = 0;
    if (!t->store.lock && !t->store.disabled) {
        if (t->named) rc = store_open(&t->store, r->app, t->name, STORE_REPLACE, NULL, &e);
        else if (r->app->opts.v[OPT_NO_SAVE].on || !conversation_last(&t->conv, ROLE_USER)) return;
        else if (!(rc = store_open_unnamed(&t->store, r->app, &t->conv, &e)))
            snprintf(t->name, sizeof t->name, "%s", t->store.name);
    }
    if (!rc && t->client) rc = store_add_disk_keys(&t->store, t->client, &e);
    if (!rc) rc = store_save_later(&t->store, r->app, &t->conv, &e);
    if (rc) report_note("not saved: %s", e.text);
}

bool chat_session_report_unsaved(void) {
    struct error e;
    int rc = saver_take_error(&e);
    if (rc) report_note("not saved: %s", e.text);
    return rc;
}

bool chat_session_is_answering(const struct chat_session *t) { return t->turn.running || t->job || t->asking; }

const struct chat_session *chat_session_answering(const struct repl *r) {
    for (size_t i = 0; i < r->n_sessions; i++)
        if (chat_session_is_answering(r->sessions[i])) return r->sessions[i];
    return NULL;
}

void chat_session_leave_engine(struct repl *r) {
    for (size_t i = 0; i < r->n_sessions; i++) {
        engine_client_close(&r->sessions[i]->client);
        prompt_free(&r->sessions[i]->prompt);
    }
}

bool chat_session_report_busy(struct repl *r, struct chat_session *t) {
    if (chat_session_is_answering(t))
        screen_print(r, "its answer is still running in the background; /switch %d shows it, and Ctrl-C then stops it",
                     t->number);
    return chat_session_is_answering(t);
}

static void cleared_free(struct cleared_conversation *p) {
    conversation_free(&p->conv);
    store_close(&p->store);
    *p = (struct cleared_conversation){0};
}

void chat_session_free(struct repl *r, struct chat_session *t) {
    for (size_t i = 0; i < r->n_sessions; i++)
        if (r->sessions[i] == t)
            memmove(&r->sessions[i], &r->sessions[i + 1], (--r->n_sessions - i) * sizeof *r->sessions);
    if (r->on_screen == t) r->on_screen = NULL;
    if (r->active == t) r->active = r->n_sessions ? r->sessions[r->n_sessions - 1] : NULL;
    turn_free(&t->turn);
    if (t->job) tool_job_cancel(t->job);
    tool_job_close(&t->job, NULL);
    tool_round_free(&t->round);
    engine_client_close(&t->client);
    store_close(&t->store);
    prompt_free(&t->prompt);
    prompt_free(&t->answer_prompt);
    conversation_free(&t->conv);
    conversation_free(&t->replaced);
    conversation_free(&t->compacted);
    cleared_free(&t->cleared);
    attachments_free(&t->attached);
    mem_free(t);
}

/* --- /clear ----------------------------------------------------------------------------------- */

/* Keeps the system prompt. The old conversation keeps its file; the new one gets its own later. */
void chat_session_clear(struct repl *r, struct chat_session *t) {
    struct conversation fresh = {0};
    if (t->conv.n && t->conv.messages[0].role == ROLE_SYSTEM &&
        conversation_set_system(&fresh, t->conv.messages[0].text.data)) {
        screen_print(r, "no memory; the conversation is unchanged");
        return;
    }
    if (conversation_last(&t->conv, ROLE_USER)) {
        cleared_free(&t->cleared);
        t->cleared = (struct cleared_conversation){.conv = t->conv, .store = t->store, .named = t->named};
        snprintf(t->cleared.name, sizeof t->cleared.name, "%s", t->name);
        t->store = (struct store){0};
        t->named = false;
        *t->name = 0;
    } else conversation_free(&t->conv);
    t->conv = fresh;
    t->n_in_context = 0;
    conversation_free(&t->compacted);
    attachments_truncate(&t->attached, 0);
    prompt_free(&t->prompt);
}

bool chat_session_undo_clear(struct chat_session *t) {
    if (!t->cleared.conv.n) return false;
    conversation_free(&t->conv);
    conversation_free(&t->compacted);
    store_close(&t->store);
    t->conv = t->cleared.conv;
    t->store = t->cleared.store;
    t->named = t->cleared.named;
    snprintf(t->name, sizeof t->name, "%s", t->cleared.name);
    t->cleared = (struct cleared_conversation){0};
    t->n_in_context = 0;
    prompt_free(&t->prompt);
    return true;
}

struct chat_session *chat_session_find_cleared(struct repl *r, const char *name) {
    for (size_t i = 0; i < r->n_sessions; i++)
        if (r->sessions[i]->cleared.conv.n && !strcmp(r->sessions[i]->cleared.name, name)) return r->sessions[i];
    return NULL;
}

void chat_session_drop_cleared(struct repl *r, const char *name) {
    struct chat_session *t = chat_session_find_cleared(r, name);
    if (t) cleared_free(&t->cleared);
}
