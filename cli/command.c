/* What a line that begins with '/' does. A new command is a row of the table and its function. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/out.h"
#include "cli/progress.h"
#include "cli/render.h"
#include "cli/repl.h"

struct command {
    const char *name, *args, *help;
    void (*fn)(struct repl *r, const char *arg);
    bool sessions; /* its argument is the name of an open session */
};
static const struct command commands[];
static const size_t n_commands;

static void label(const struct talk *t, char *out, size_t cap) {
    if (t->named) snprintf(out, cap, "%s", t->name);
    else snprintf(out, cap, "%d", t->number);
}

static void cmd_help(struct repl *r, const char *arg) {
    for (size_t i = 0; i < n_commands; i++) {
        char left[48];
        snprintf(left, sizeof left, "/%s %s", commands[i].name, commands[i].args);
        repl_say(r, "  %-22s %s", left, commands[i].help);
    }
    repl_say(r, "Several lines: \"\"\" before and after, a \\ at the end, Ctrl-J, or paste. A trailing & answers in the background.\n"
                "Ctrl-C stops an answer, Ctrl-R searches the history, Ctrl-G opens $EDITOR, Tab completes, Ctrl-D leaves.");
}

/* --- sessions -------------------------------------------------------------------------------------------------------- */

static bool free_name(struct repl *r, const char *name) {
    struct error e;
    if (store_check_name(name, &e)) {
        repl_say(r, "%s", e.text);
        return false;
    }
    for (size_t i = 0; i < r->n; i++)
        if (!strcmp(r->talks[i]->name, name)) {
            repl_say(r, "a session '%s' is open already; /switch %s goes to it", name, name);
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

static void cmd_new(struct repl *r, const char *arg) {
    struct talk *t = open_new(r, arg);
    const char *system = r->app->opts.v[OPT_SYSTEM].text;
    if (!t) return;
    if (system && conv_system(&t->conv, system)) repl_say(r, "no memory for the system prompt");
    repl_switch(r, t);
}

static void cmd_sessions(struct repl *r, const char *arg) {
    struct buf names = {0};
    for (size_t i = 0; i < r->n; i++) {
        const struct talk *t = r->talks[i];
        const struct message *m = conv_last(&t->conv, ROLE_USER);
        char state[96] = "", about[64] = "", name[140];
        label(t, name, sizeof name);
        if (t->turn.running && t->turn.n_tokens > 1)
            snprintf(state, sizeof state, "decoding, %.1f tok/s", (t->turn.n_tokens - 1) / (t->turn.last_token - t->turn.first_token + 1e-9));
        else if (t->turn.running && t->turn.total) snprintf(state, sizeof state, "prefilling %d %%", 100 * t->turn.done / t->turn.total);
        else if (t->turn.running) snprintf(state, sizeof state, "prefilling");
        else if (!t->shown) snprintf(state, sizeof state, "has answered");
        if (m) snprintf(about, sizeof about, "%.*s", (int)render_fit(m->text.data, strcspn(m->text.data, "\n"), 40), m->text.data);
        repl_say(r, "%s %d  %-20s %3zu messages  %-24s %s", t == r->now ? "*" : " ", t->number, t->named ? name : "", t->conv.n, state, about);
    }
    if (!store_list(&names, NULL) && names.len) {
        for (size_t i = 0; i + 1 < names.len; i++)
            if (names.data[i] == '\n') names.data[i] = ' ';
        repl_say(r, "saved: %.1900s", names.data);
    }
    buf_free(&names);
}

static void cmd_switch(struct repl *r, const char *arg) {
    struct talk *t = *arg ? repl_find(r, arg) : NULL;
    if (!*arg) cmd_sessions(r, arg);
    else if (!t) repl_say(r, "no open session '%s'; /sessions lists them, /load opens a saved one", arg);
    else repl_switch(r, t);
}

static void cmd_close(struct repl *r, const char *arg) {
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

static void cmd_save(struct repl *r, const char *arg) {
    struct talk *t = r->now;
    struct error e;
    if (repl_busy(r, t)) return;
    if (*arg && strcmp(arg, t->name)) {
        if (!free_name(r, arg)) return;
        int rc = t->store.lock ? store_rename(&t->store, arg, &e) : store_open(&t->store, r->app, arg, STORE_NEW, NULL, &e);
        if (rc) {
            repl_say(r, "%s", e.text);
            return;
        }
        snprintf(t->name, sizeof t->name, "%s", arg);
        t->named = true;
    }
    repl_save(r, t);
    if (!t->store.off) repl_say(r, "saved as %s; every turn from now on is saved by itself", t->name);
}

static void cmd_load(struct repl *r, const char *arg) {
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

static void cmd_fork(struct repl *r, const char *arg) {
    struct talk *from = r->now, *t;
    if (repl_busy(r, from) || !(t = open_new(r, arg))) return;
    if (conv_copy(&t->conv, &from->conv)) {
        repl_say(r, "no memory");
        repl_drop(r, t);
        return;
    }
    repl_say(r, "a copy; /switch %d goes back", from->number);
    repl_switch(r, t);
}

/* --- the conversation ------------------------------------------------------------------------------------------------ */

static void cmd_system(struct repl *r, const char *arg) {
    struct conv *c = &r->now->conv;
    bool there = c->n && c->m[0].role == ROLE_SYSTEM;
    if (!*arg) {
        if (there) out_write(c->m[0].text.data, c->m[0].text.len);
        repl_say(r, there ? "\n/system - removes it" : "no system prompt; /system TEXT sets one");
        return;
    }
    if (repl_busy(r, r->now)) return;
    if (conv_system(c, strcmp(arg, "-") ? arg : "")) repl_say(r, "no memory");
}

/* Ends the conversation before its last message of that role; false when there is none. */
static bool cut_before(struct conv *c, enum role role) {
    for (size_t i = c->n; i-- > 0;)
        if (c->m[i].role == role) {
            conv_cut(c, i);
            return true;
        }
    return false;
}

static void cmd_regen(struct repl *r, const char *arg) {
    struct conv *c = &r->now->conv;
    if (repl_busy(r, r->now)) return;
    if (!c->n || (c->m[c->n - 1].role == ROLE_ASSISTANT && !cut_before(c, ROLE_ASSISTANT)) || c->m[c->n - 1].role != ROLE_USER)
        repl_say(r, "there is no answer to make again");
    else repl_answer(r, r->now, false);
}

static void cmd_continue(struct repl *r, const char *arg) {
    if (!repl_busy(r, r->now)) repl_continue(r, r->now);
}

static void cmd_undo(struct repl *r, const char *arg) {
    struct talk *t = r->now;
    const struct message *m = conv_last(&t->conv, ROLE_USER);
    if (repl_busy(r, t)) return;
    if (!m) {
        repl_say(r, "there is nothing to take back");
        return;
    }
    repl_say(r, "took back: %.*s", (int)render_fit(m->text.data, strcspn(m->text.data, "\n"), 60), m->text.data);
    cut_before(&t->conv, ROLE_USER);
    prompt_free(&t->prompt);
    repl_save(r, t);
}

static void cmd_compact(struct repl *r, const char *arg) {
    if (repl_busy(r, r->now)) return;
    if (r->now->conv.n < 3) repl_say(r, "there is nothing to make shorter");
    else repl_compact(r, r->now);
}

static void cmd_bg(struct repl *r, const char *arg) {
    if (!*arg) repl_say(r, "/bg TEXT answers TEXT in the background; so does a trailing &");
    else repl_send(r, arg, strlen(arg), true);
}

static void cmd_copy(struct repl *r, const char *arg) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const struct message *m = conv_last(&r->now->conv, ROLE_ASSISTANT);
    struct buf b = {0};
    if (!m) {
        repl_say(r, "there is no answer to copy");
        return;
    }
    buf_str(&b, "\033]52;c;");
    for (size_t i = 0; i < m->text.len; i += 3) {
        size_t n = m->text.len - i;
        const unsigned char *s = (const unsigned char *)m->text.data + i;
        unsigned v = (unsigned)s[0] << 16 | (n > 1 ? (unsigned)s[1] << 8 : 0) | (n > 2 ? s[2] : 0);
        char q[4] = {digits[v >> 18], digits[v >> 12 & 63], n > 1 ? digits[v >> 6 & 63] : '=', n > 2 ? digits[v & 63] : '='};
        buf_add(&b, q, 4);
    }
    buf_char(&b, '\a');
    if (!b.failed) out_draw(1, b.data, b.len);
    repl_say(r, b.failed ? "no memory" : "%zu bytes handed to the terminal's clipboard (where it allows that)", m->text.len);
    buf_free(&b);
}

static void cmd_clear(struct repl *r, const char *arg) { out_draw(1, "\033[H\033[2J\033[3J", r->dumb ? 0 : 11); }

/* --- settings and numbers -------------------------------------------------------------------------------------------- */

static void show_row(struct repl *r, const char *name, const char *value, const char *from) { repl_say(r, "  %-16s %-14s %s", name, value, from); }

static void cmd_show(struct repl *r, const char *arg) {
    static const char *const origins[] = {"default", "default", "configuration file", "environment", "flag", "/set"};
    const struct engine_info *i = engine_info(r->app->engine);
    struct sampling s;
    char v[64];
    app_sampling(r->app, &r->app->opts, &s);
    repl_say(r, "%s (%s), %d of %d experts a token, context %d, %d threads, %s", i->name, i->model_type, i->topk, i->n_experts, i->context, i->threads,
             i->level);
    for (int id = 0; id < OPT_COUNT; id++) {
        const struct opt_value *o = &r->app->opts.v[id];
        if (!(opt_table[id].flags & OPT_LIVE) || id == OPT_SYSTEM) continue;
        const char *from = o->text ? origins[o->origin] : "the model's own";
        snprintf(v, sizeof v, "%.60s", o->text ? o->text : "");
        switch (id) {
        case OPT_TEMP: snprintf(v, sizeof v, "%g", s.temperature); break;
        case OPT_TOP_P: snprintf(v, sizeof v, "%g", s.top_p); break;
        case OPT_MIN_P: snprintf(v, sizeof v, "%g", s.min_p); break;
        case OPT_TOP_K: snprintf(v, sizeof v, "%d", s.top_k); break;
        case OPT_REPEAT_PENALTY: snprintf(v, sizeof v, "%g", s.repeat_penalty); break;
        case OPT_SEED:
            if (!o->text) snprintf(v, sizeof v, "%llu", (unsigned long long)r->now->seed), from = "drawn for the last answer";
            break;
        case OPT_THINK:
            if (!o->text) snprintf(v, sizeof v, "-"), from = "the template decides";
            break;
        case OPT_MAX_TOKENS:
            if (!o->text) snprintf(v, sizeof v, "-"), from = "until the context is full";
            break;
        default:
            if (!o->text) snprintf(v, sizeof v, "no"), from = "default";
        }
        show_row(r, opt_table[id].name, v, from);
    }
    repl_say(r, "  /set NAME VALUE changes one; /set NAME default undoes that");
}

static void cmd_set(struct repl *r, const char *arg) {
    struct error e;
    char name[40], value[1024];
    size_t n = strcspn(arg, " =");
    bool no;
    if (!*arg) {
        cmd_show(r, arg);
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)(n > 39 ? 39 : n), arg);
    arg += n + strspn(arg + n, " =");
    snprintf(value, sizeof value, "%s", arg);
    enum opt_id id = opt_find(name, strlen(name), &no);
    if (id == OPT_COUNT || !(opt_table[id].flags & OPT_LIVE) || id == OPT_SYSTEM) {
        repl_say(r, "nothing to set called '%s'; /show lists what there is", name);
        return;
    }
    if (!*value && opt_table[id].kind <= OPT_SWITCH) snprintf(value, sizeof value, no ? "no" : "yes");
    if (!strcmp(value, "default")) r->app->opts.v[id] = (struct opt_value){.text = opt_table[id].def};
    else if (opt_set(&r->app->opts, id, value, ORIGIN_CHAT, name, &e)) repl_say(r, "%s", e.text);
}

static void cmd_tokens(struct repl *r, const char *arg) {
    struct prompt p = {0};
    struct error e;
    const struct engine_info *i = engine_info(r->app->engine);
    if (!r->now->conv.n) repl_say(r, "0 of %d tokens: nothing has been said", i->context);
    else if (conv_prompt(r->app, &r->now->conv, conv_think(&r->app->opts), &p, &e)) repl_say(r, "%s", e.text);
    else
        repl_say(r, "%zu of %d tokens; room for %ld, %.1f MB of KV cache now", p.ids.n, i->context, (long)i->context - (long)p.ids.n,
                 (double)p.ids.n * (double)i->kv_token_bytes / 1e6);
    prompt_free(&p);
}

static void cmd_stats(struct repl *r, const char *arg) {
    struct buf b = {0};
    app_stats_text(&r->now->stats, &b);
    if (!r->now->has_stats) repl_say(r, "no answer yet");
    else if (b.data) repl_say(r, "%s", b.data);
    buf_free(&b);
}
static void cmd_explain(struct repl *r, const char *arg) {
    struct buf b = {0};
    app_explain_text(&r->now->stats, &b);
    if (!r->now->has_stats) repl_say(r, "no answer yet");
    else if (b.data) repl_say(r, "%s", b.data);
    buf_free(&b);
}

static void cmd_bye(struct repl *r, const char *arg) { r->leave = true; }

static const struct command commands[] = {
    {"help", "", "this list", cmd_help, false},
    {"new", "[NAME]", "another session beside this one", cmd_new, false},
    {"sessions", "", "what is open, who is answering, what is saved", cmd_sessions, false},
    {"switch", "NAME", "go to another open session, by name or number", cmd_switch, true},
    {"close", "[NAME]", "close this session; it stays on disk", cmd_close, true},
    {"save", "[NAME]", "keep the conversation under NAME", cmd_save, false},
    {"load", "NAME", "open a saved conversation", cmd_load, false},
    {"system", "[TEXT]", "show or set the system prompt; - removes it", cmd_system, false},
    {"set", "NAME VALUE", "change a setting: /set temp 0.2", cmd_set, false},
    {"show", "", "the settings in force", cmd_show, false},
    {"regen", "", "drop the last answer and make another", cmd_regen, false},
    {"continue", "", "let the last answer go on", cmd_continue, false},
    {"undo", "", "take back the last question and its answer", cmd_undo, false},
    {"fork", "[NAME]", "copy the conversation into a new session", cmd_fork, false},
    {"bg", "TEXT", "answer in the background", cmd_bg, false},
    {"compact", "", "replace the conversation by a summary", cmd_compact, false},
    {"tokens", "", "how full the context is", cmd_tokens, false},
    {"stats", "", "counts and speeds of the last answer", cmd_stats, false},
    {"explain", "", "why its mode was chosen", cmd_explain, false},
    {"copy", "", "the last answer to the clipboard", cmd_copy, false},
    {"clear", "", "wipe the screen", cmd_clear, false},
    {"bye", "", "leave", cmd_bye, false},
};
static const size_t n_commands = sizeof commands / sizeof *commands;

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
    for (size_t k = strlen(copy); k && strchr(" \t\n", copy[k - 1]);) copy[--k] = 0;
    for (; i < n_commands; i++)
        if (!strcmp(commands[i].name, word)) break;
    size_t at = 0;
    if (i < n_commands) commands[i].fn(r, copy);
    else if (opt_nearest(word, next_command, &at, near, sizeof near)) repl_say(r, "no command /%s; did you mean /%s?", word, near);
    else repl_say(r, "no command /%s; /help lists them (a question may not begin with '/': put a blank before it)", word);
    mem_free(copy);
}

static void offer(struct buf *out, const char *head, const char *word, const char *typed, size_t n) {
    size_t h = strlen(head);
    if (strncmp(typed, head, h < n ? h : n) || (n > h && strncmp(word, typed + h, n - h))) return;
    buf_fmt(out, "%s%s\n", head, word);
}

/* Commands, then the argument of those that take a session, a saved name or a setting. */
void command_complete(void *ctx, const char *text, size_t cursor, size_t *from, struct buf *candidates) {
    struct repl *r = ctx;
    char saved[128];
    if (*text != '/') return;
    size_t word = strcspn(text, " ");
    if (cursor <= word) {
        for (size_t i = 0; i < n_commands; i++) offer(candidates, "/", commands[i].name, text, cursor);
        return;
    }
    *from = word + 1;
    const char *typed = text + *from;
    size_t n = cursor - *from;
    if (memchr(typed, ' ', n)) return;
    for (size_t i = 0; i < n_commands; i++) {
        if (strlen(commands[i].name) != word - 1 || strncmp(commands[i].name, text + 1, word - 1)) continue;
        for (size_t k = 0; commands[i].sessions && k < r->n; k++) {
            label(r->talks[k], saved, sizeof saved);
            offer(candidates, "", saved, typed, n);
        }
        for (int id = 0; commands[i].fn == cmd_set && id < OPT_COUNT; id++)
            if (opt_table[id].flags & OPT_LIVE && id != OPT_SYSTEM) offer(candidates, "", opt_table[id].name, typed, n);
        struct buf names = {0};
        if (commands[i].fn == cmd_load && !store_list(&names, NULL))
            for (const char *s = names.data; s && *s;) {
                size_t len = strcspn(s, "\n");
                snprintf(saved, sizeof saved, "%.*s", (int)(len > 127 ? 127 : len), s);
                offer(candidates, "", saved, typed, n);
                s += len + 1;
            }
        buf_free(&names);
    }
}
