/* /compact: the model summarises a long conversation, and the summary replaces it. */
#include "cli/repl.h"

/* Asks for the summary after as much of the conversation as fits into the context; the messages after that remain unchanged. */
int repl_compact(struct repl *r, struct talk *t) {
    static const char ask[] = "Summarise our conversation so far, with every fact, name, number, decision and open question that is needed to go on with it. "
                              "Write only the summary.";
    struct error e;
    int rc = ERR_CONTEXT;
    if (app_builtin(r->app)) {
        repl_say(r, "ember, the built-in model, cannot write a summary; /new starts another conversation");
        return ERR_USAGE;
    }
    for (size_t n = t->conv.n; n >= 2 && rc == ERR_CONTEXT; n -= 2) {
        struct conv head = t->conv, ask_for = {0};
        head.n = n;
        if (conv_copy(&ask_for, &head) || conv_add(&ask_for, ROLE_USER, ask, sizeof ask - 1, NULL, 0)) rc = error_set(&e, ERR_MEMORY, "no memory");
        else {
            prompt_free(&t->prompt);
            rc = conv_prompt(r->app, &ask_for, 0, &t->prompt, &e);
            if (!rc) rc = repl_start(r, t, false, &e);
        }
        conv_free(&ask_for);
        t->summarised = n;
        if (n < 4) break;
    }
    t->compacting = !rc;
    if (rc) app_fail(r->app, &e);
    return rc;
}

static int put_summary(struct talk *t, const struct buf *summary) {
    static const char lead[] = "Summary of our conversation so far:\n\n", ok[] = "Thank you, I will go on from there.";
    struct conv new = {0};
    struct buf text = {0};
    bool system = t->conv.n && t->conv.m[0].role == ROLE_SYSTEM;
    buf_str(&text, lead);
    buf_add(&text, summary->data, summary->len);
    int rc = text.failed ? ERR_MEMORY : 0;
    if (!rc && system) rc = conv_system(&new, t->conv.m[0].text.data);
    if (!rc) rc = conv_add(&new, ROLE_USER, text.data, text.len, NULL, 0);
    if (!rc) rc = conv_add(&new, ROLE_ASSISTANT, ok, sizeof ok - 1, NULL, 0);
    struct conv rest = {.m = t->conv.m + t->summarised, .n = t->conv.n - t->summarised};
    if (!rc) rc = conv_copy(&new, &rest);
    buf_free(&text);
    if (rc) {
        conv_free(&new);
        return rc;
    }
    conv_free(&t->conv);
    t->conv = new;
    return 0;
}

void repl_keep_summary(struct repl *r, struct talk *t) {
    struct turn *u = &t->turn;
    t->compacting = false;
    if (u->failed || u->reason != DONE_STOP || !u->text.len) {
        repl_say(r, "the summary was not finished; the conversation is unchanged");
        return;
    }
    if (put_summary(t, &u->text)) repl_say(r, "no memory; the conversation is unchanged");
    else repl_say(r, "the summary above replaces the earlier conversation; /tokens shows the free context");
    prompt_free(&t->prompt);
}
