/* /compact: the model summarises a long conversation, and the summary replaces it. */
#include "cli/chat/compact.h"

#include <string.h>
#include <strings.h>

#include "cli/chat/chat_turn.h"
#include "cli/chat/screen.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"

static int replace_with_summary(struct chat_session *t, const struct buf *summary) {
    static const char lead[] = "Summary of our conversation so far:\n\n",
                      reply[] = "Thank you, I will go on from there.";
    struct conversation shorter = {0};
    struct buf text = {0};
    bool has_system = t->conv.n && t->conv.messages[0].role == ROLE_SYSTEM;
    buf_str(&text, lead);
    buf_add(&text, summary->data, summary->len);
    int rc = text.failed ? ERR_MEMORY : 0;
    if (!rc && has_system) rc = conversation_set_system(&shorter, t->conv.messages[0].text.data);
    if (!rc) rc = conversation_add(&shorter, ROLE_USER, text.data, text.len, NULL, 0);
    if (!rc) rc = conversation_add(&shorter, ROLE_ASSISTANT, reply, sizeof reply - 1, NULL, 0);
    struct conversation rest = {.messages = t->conv.messages + t->n_summarised, .n = t->conv.n - t->n_summarised};
    if (!rc) rc = conversation_append(&shorter, &rest);
    buf_free(&text);
    if (rc) {
        conversation_free(&shorter);
        return rc;
    }
    conversation_truncate(&t->conv, t->n_summarised);
    conversation_free(&t->compacted);
    t->compacted = t->conv;
    t->conv = shorter;
    return 0;
}

bool compact_undo(struct chat_session *t) {
    struct conversation *c = &t->conv;
    const bool has_system = c->n && c->messages[0].role == ROLE_SYSTEM;
    if (!t->compacted.n || conversation_last(c, ROLE_USER) != &c->messages[has_system]) return false;
    /* /system may have changed the prompt; without memory the old one remains */
    conversation_set_system(&t->compacted, has_system ? c->messages[0].text.data : "");
    conversation_free(c);
    *c = t->compacted;
    t->compacted = (struct conversation){0};
    prompt_free(&t->prompt);
    return true;
}

/* Drops the prompt of the summary. Unless the summary replaces the conversation, /continue still resumes the last
 * answer. */
static void end_summary(struct chat_session *t, bool is_replaced) {
    prompt_free(&t->prompt);
    if (is_replaced) prompt_free(&t->answer_prompt);
    t->prompt = t->answer_prompt;
    t->answer_prompt = (struct prompt){0};
    t->on_finish = NULL;
}

/* Whether the model writes that it will not, instead of a summary. */
static bool is_refusal(const struct buf *summary) {
    static const char *const beginnings[] = {"i'm sorry",  "i am sorry",  "sorry",        "i cannot", "i can't",
                                             "i'm unable", "i am unable", "i'm not able", "as an ai", "i won't"};
    enum { LONGEST = 600 };
    const char *s = summary->data;
    size_t n = summary->len;
    for (; n && strchr(" \t\r\n*\"'", *s); s++) n--;
    for (size_t i = 0; i < sizeof beginnings / sizeof *beginnings && n < LONGEST; i++) {
        char plain[16];
        size_t k = 0;
        for (size_t at = 0; at < n && k + 1 < sizeof plain; at++) {
            const bool is_curly = !strncmp(s + at, "\xE2\x80\x99", n - at < 3 ? n - at : 3);
            plain[k++] = is_curly ? '\'' : s[at];
            at += is_curly ? 2 : 0;
        }
        plain[k] = 0;
        if (!strncasecmp(plain, beginnings[i], strlen(beginnings[i]))) return true;
    }
    return false;
}

/* Reports a summary that would lose the conversation; true: there is one. */
static bool is_doubtful(struct repl *r, const struct chat_session *t) {
    enum { SHORT = 30, OF_TEXT = 1000, SHARE = 200 }; /* bytes; one byte of so many */
    const struct buf *summary = &t->turn.text;
    char length[32];
    size_t n = 0;
    for (size_t i = 0; i < t->n_summarised && i < t->conv.n; i++)
        if (t->conv.messages[i].role != ROLE_SYSTEM) n += t->conv.messages[i].text.len;
    const bool refuses = is_refusal(summary),
               is_short = n >= OF_TEXT && (summary->len < SHORT || summary->len < n / SHARE);
    if (t->takes_any_summary || !(refuses || is_short)) return false;
    if (refuses) screen_print(r, "the model has refused to write a summary");
    else
        screen_print(r, "the summary is too short: %s for a text of %zu",
                     amount_count((long long)summary->len, "byte", length, sizeof length), n);
    screen_print(r, "the conversation is unchanged; /compact tries again, /compact force takes any summary");
    return true;
}

static void finish_summary(struct repl *r, struct chat_session *t) {
    struct turn *u = &t->turn;
    const bool is_complete = !u->failed && u->reason == DONE_STOP && u->text.len;
    if (is_complete && is_doubtful(r, t)) {
        t->keeps_whole = true;
        end_summary(t, false);
        return;
    }
    const bool is_replaced = is_complete && !replace_with_summary(t, &u->text);
    if (is_replaced) t->n_in_context = 0, t->keeps_whole = false;
    if (is_replaced)
        screen_print(r, "the summary above replaces the earlier conversation, which /undo brings back; /tokens shows "
                        "the free context");
    else
        screen_print(r, "%s; the conversation is unchanged",
                     is_complete ? "no memory" : "the summary was not finished");
    end_summary(t, is_replaced);
}

/* Returns the index of the last question before message n: a cut there separates no tool call from its result. 0:
 * none. */
static size_t question_before(const struct conversation *c, size_t n) {
    while (n-- > 0)
        if (c->messages[n].role == ROLE_USER) return n;
    return 0;
}

/* ERR_CONTEXT: the prompt does not fit. A resident engine would refuse it only after the turn has begun. If it cannot
 * be counted, the turn reports why. */
static int check_fits(struct app *a, const struct prompt *p, struct error *e) {
    size_t n;
    if (!a->backend->count_tokens || !a->info->context || a->backend->count_tokens(a, p, &n, NULL) ||
        n < (size_t)a->info->context)
        return 0;
    return error_set(e, ERR_CONTEXT, "the prompt is %zu tokens; this model's context is %d", n, a->info->context);
}

/* Asks for the summary after as much of the conversation as fits into the context; the messages after that remain
 * unchanged. */
int compact_start(struct repl *r, struct chat_session *t) {
    static const char request[] = "Summarise our conversation so far, with every fact, name, number, decision and open "
                                  "question that is needed to go on with it. "
                                  "Write only the summary.";
    struct error e;
    int rc = ERR_CONTEXT;
    if (open_is_builtin(r->app)) {
        screen_print(r, "ember, the built-in model, cannot write a summary; /new starts another conversation");
        return ERR_USAGE;
    }
    t->on_finish = finish_summary;
    t->answer_prompt = t->prompt;
    t->prompt = (struct prompt){0};
    for (size_t n = t->conv.n; n >= 2 && rc == ERR_CONTEXT; n = question_before(&t->conv, n)) {
        struct conversation head = t->conv, with_request = {0};
        head.n = n;
        if (conversation_append(&with_request, &head) || conversation_ask(&with_request, request, sizeof request - 1))
            rc = error_set(&e, ERR_MEMORY, "no memory");
        else {
            prompt_free(&t->prompt);
            rc = prompt_make(r->app, &with_request, 0, &t->prompt, &e);
            if (!rc) rc = check_fits(r->app, &t->prompt, &e);
            if (!rc) rc = chat_turn_start(r, t, false, &e);
        }
        conversation_free(&with_request);
        t->n_summarised = n;
        if (n < 4) break;
    }
    if (rc) end_summary(t, false);
    if (rc) report_error(&e);
    return rc;
}
