#include "cli/modes/oneshot_long.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "cli/modes/oneshot_json.h"
#include "cli/modes/oneshot_turn.h"
#include "cli/open.h"
#include "cli/report.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/sig.h"
#include "cli/turn/engine_client.h"
#include "cli/turn/long_text.h"

/* Notes take an eighth of the context, so that those of several parts fit beside each other. */
enum { NOTES_SHARE = 8, NOTES_MOST = 1024, NOTES_LEAST = 16, SPARE_TOKENS = 8 };

/* A document, or the text that came with -p, called "text": bytes [from, from + n) of level.text. */
struct source {
    const char *name; /* name_n bytes */
    size_t name_n, from, n;
};

/* A text that is read in parts: the documents, or the notes on the parts of the level above. */
struct level {
    struct app *app;
    struct engine_client *client;
    struct oneshot_long *sum;
    const char *system;
    const char *question;
    size_t question_n;
    int depth;       /* 0: the documents */
    struct buf text; /* the sources' texts, one after the other */
    struct source *sources;
    size_t n_sources, cap_sources;
    size_t *ends; /* [n_parts] of the parts */
    size_t n_parts, cap_parts;
    int notes_most;  /* tokens of the notes on a part */
    struct ids lead; /* a part's prompt without a part: it begins as all of them do. Empty if the engine is elsewhere */
};

static void level_free(struct level *v) {
    buf_free(&v->text);
    mem_free(v->sources);
    mem_free(v->ends);
    ids_free(&v->lead);
}

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory to read the document in parts"); }
static bool is_stopped(void) { return sig_interrupted() || sig_terminated(); }

void oneshot_long_hint(const struct oneshot_long *l, struct error *e) {
    const struct error was = *e;
    if (was.code == ERR_CONTEXT && *was.text && l->n_document && !l->splits)
        error_set(e, ERR_CONTEXT, "%.420s; --long split reads the document in parts", was.text);
}

/* --- prompts ---------------------------------------------------------------------------------- */

static int add_source(struct level *v, const char *name, size_t name_n, const char *text, size_t n, struct error *e) {
    if (!n) return 0;
    if (mem_grow(&v->sources, &v->cap_sources, v->n_sources + 1, sizeof *v->sources)) return no_memory(e);
    v->sources[v->n_sources++] = (struct source){name, name_n, v->text.len, n};
    return buf_add(&v->text, text, n) ? no_memory(e) : 0;
}

/* Takes the documents of a question's text apart. */
static int add_documents(struct level *v, const char *s, size_t n, struct error *e) {
    const char *const end = s + n, *name, *after;
    size_t length;
    while (s < end && (after = conversation_document_end(s, &name, &length)) && after <= end) {
        const size_t name_n = strcspn(name, "\"");
        TRY(add_source(v, name, name_n, strstr(name, "\">\n") + 3, length, e));
        s = after;
    }
    return add_source(v, "text", 4, s, (size_t)(end - s), e);
}

/* Appends the text of a part, each piece as the document that it is from. */
static void put_part(const struct level *v, size_t from, size_t to, struct buf *out) {
    for (size_t i = 0; i < v->n_sources; i++) {
        const struct source *d = &v->sources[i];
        const size_t a = from > d->from ? from : d->from, b = to < d->from + d->n ? to : d->from + d->n;
        if (a >= b) continue;
        buf_fmt(out, "<document name=\"%.*s\">\n", (int)d->name_n, d->name);
        buf_add(out, v->text.data + a, b - a);
        if (v->text.data[b - 1] != '\n') buf_char(out, '\n');
        buf_str(out, "</document>\n\n");
    }
}

/* Makes the prompt that asks for notes on a part. It begins with what is the same for all parts, whose KV rows are
 * then computed once. It ends with the question again, because small models forget it over a long text. */
static int make_part_prompt(const struct level *v, size_t from, size_t to, int part, int n, struct prompt *out,
                            struct error *e) {
    struct buf b = {0};
    struct conversation c = {0};
    buf_str(&b, v->depth ? "Below is a part of the notes on a long document."
                         : "Below is a part of a document that is too long to be read at once.");
    buf_str(&b,
            " Write down what this part says on the question below: all facts, names, numbers and reasons that help "
            "to answer it. Do not answer from memory. If this part says nothing on it, write only: nothing.\n\n"
            "Question: ");
    buf_add(&b, v->question, v->question_n);
    buf_fmt(&b, "\n\nPart %d of %d:\n\n", part, n);
    put_part(v, from, to, &b);
    buf_fmt(&b, "Now write the notes on part %d of %d, for the question: ", part, n);
    buf_add(&b, v->question, v->question_n);
    int rc = b.failed ? ERR_MEMORY : 0;
    if (!rc && v->system) rc = conversation_set_system(&c, v->system);
    if (!rc) rc = conversation_ask(&c, b.data, b.len);
    if (rc) no_memory(e);
    /* tools are for the answer */
    struct buf tools = v->app->tool_list;
    v->app->tool_list = (struct buf){0};
    if (!rc) rc = prompt_make(v->app, &c, 0, out, e);
    v->app->tool_list = tools;
    conversation_free(&c);
    buf_free(&b);
    return rc;
}

/* Counts a prompt's tokens. A server does not count them: two bytes for each is more than most texts have. */
static int count_prompt(struct app *a, const struct prompt *p, size_t *n, struct error *e) {
    enum { SERVER_TOKEN_BYTES = 2 };
    if (a->backend->count_tokens) return a->backend->count_tokens(a, p, n, e);
    *n = p->body.len / SERVER_TOKEN_BYTES;
    return 0;
}

static int count_part(void *ctx, size_t from, size_t to, size_t *tokens, struct error *e) {
    enum { MOST_PARTS = 9999 }; /* as wide as any number of parts */
    const struct level *v = ctx;
    struct prompt p = {0};
    if (is_stopped()) return error_set(e, ERR_CANCELLED, "stopped");
    int rc = make_part_prompt(v, from, to, MOST_PARTS, MOST_PARTS, &p, e);
    if (!rc) rc = count_prompt(v->app, &p, tokens, e);
    prompt_free(&p);
    return rc;
}

/* Tells the engine up to where the prompt of a part is that of the others. */
static void mark_lead(const struct level *v, struct prompt *p) {
    size_t n = 0;
    while (n < v->lead.n && n < p->ids.n && v->lead.data[n] == p->ids.data[n]) n++;
    p->n_shareable = (int)n;
}

/* --- parts ------------------------------------------------------------------------------------ */

static int cut(struct level *v, struct error *e) {
    const int room = v->app->info->context - v->notes_most - SPARE_TOKENS;
    struct long_text t = {
        .data = v->text.data, .n = v->text.len, .most = room > 0 ? (size_t)room : 0, .count = count_part, .ctx = v};
    struct prompt lead = {0};
    int rc = make_part_prompt(v, 0, 0, 0, 0, &lead, e);
    v->lead = lead.ids;
    lead.ids = (struct ids){0};
    prompt_free(&lead);
    if (rc) return rc;
    for (size_t from = 0; from < t.n; from = v->ends[v->n_parts++]) {
        if (mem_grow(&v->ends, &v->cap_parts, v->n_parts + 1, sizeof *v->ends)) return no_memory(e);
        TRY(long_text_next(&t, from, &v->ends[v->n_parts], e));
    }
    return 0;
}

static bool is_blank(const struct buf *b) { return !b->len || strspn(b->data, " \t\r\n") == b->len; }

/* Asks for the notes on a part and appends them. */
static int read_part(struct level *v, size_t i, struct buf *notes, struct error *e) {
    struct app *a = v->app;
    struct prompt p = {0};
    struct turn t = {0};
    struct request q = {.max_tokens = v->notes_most, .flags = REQ_NO_DISK_CACHE};
    char what[64], limit[32];
    const int part = (int)i + 1, n = (int)v->n_parts;
    snprintf(what, sizeof what, "%spart %d of %d", v->depth ? "notes, " : "", part, n);
    if (!a->tty_err) report_note("%s", what);
    if (!v->depth) oneshot_json_part(a, part, n);
    open_sampling(a, &a->opts, &q.sampling);
    if (is_stopped()) return error_set(e, ERR_CANCELLED, "stopped");
    int rc = make_part_prompt(v, i ? v->ends[i - 1] : 0, v->ends[i], part, n, &p, e);
    mark_lead(v, &p);
    if (!rc) rc = turn_start(&t, a, v->client, &p, &q, NULL, NULL, e);
    if (!rc) {
        turn_set_stops(&t, NULL, 0);
        oneshot_turn_wait(a, &t, what);
        oneshot_turn_add_stats(&v->sum->stats, &t.stats);
        if (is_stopped() || t.reason == DONE_CANCELLED) rc = error_set(e, ERR_CANCELLED, "stopped");
        else if (t.failed) *e = t.error, rc = e->code;
        else if (t.reason != DONE_STOP && is_blank(&t.text))
            rc = error_set(e, ERR_RUNTIME,
                           "no notes came within %s; --no-think or --effort low may help a model that "
                           "thinks long, -c N gives notes more room",
                           amount_count(v->notes_most, "token", limit, sizeof limit));
    }
    if (rc && rc != ERR_CANCELLED) error_prefix(e, "%s", what);
    if (!rc && t.reason != DONE_STOP)
        report_note("%s: its notes were cut at %s", what, amount_count(v->notes_most, "token", limit, sizeof limit));
    if (!rc) {
        buf_fmt(notes, "%sPart %d of %d:\n", notes->len ? "\n\n" : "", part, n);
        buf_str(notes, is_blank(&t.text) ? "nothing" : t.text.data + strspn(t.text.data, "\n"));
        if (notes->failed) rc = no_memory(e);
    }
    turn_free(&t);
    prompt_free(&p);
    return rc;
}

/* Replaces the question of the conversation by one about the notes, and makes its prompt. */
static int ask_about_notes(const struct level *v, const struct buf *notes, struct conversation *c, struct prompt *out,
                           struct error *e) {
    struct buf b = {0};
    const struct source *first = &v->sources[0];
    const bool is_one = v->n_sources == 1;
    buf_fmt(&b, "<document name=\"%.*s\">\nNotes on all parts of %s, in their order.\n\n",
            is_one ? (int)first->name_n : (int)sizeof "documents" - 1, is_one ? first->name : "documents",
            is_one ? "this document" : "these documents");
    buf_add(&b, notes->data, notes->len);
    buf_str(&b, "\n</document>\n\n");
    buf_add(&b, v->question, v->question_n);
    conversation_truncate(c, c->n - 1);
    int rc = b.failed || conversation_ask(c, b.data, b.len) ? no_memory(e) : 0;
    buf_free(&b);
    prompt_free(out);
    return rc ? rc : prompt_make(v->app, c, prompt_think_option(&v->app->opts), out, e);
}

/* Whether a prompt leaves room for its answer. */
static int check_fits(struct app *a, const struct prompt *p, int room, bool *fits, struct error *e) {
    const struct opt_value *limit = &a->opts.v[OPT_MAX_TOKENS];
    size_t n = 0;
    if (limit->text && limit->integer < room) room = (int)limit->integer;
    TRY(count_prompt(a, p, &n, e));
    *fits = n + (size_t)room <= (size_t)a->info->context;
    return 0;
}

/* Reads a level in parts, until the notes on them fit beside the question. */
static int read_level(struct level *v, struct conversation *c, struct prompt *out, struct error *e) {
    struct buf notes = {0};
    bool fits = false;
    int rc = cut(v, e);
    if (!rc && !v->depth) v->sum->n_parts = (int)v->n_parts;
    for (size_t i = 0; i < v->n_parts && !rc; i++) rc = read_part(v, i, &notes, e);
    if (!rc) rc = ask_about_notes(v, &notes, c, out, e);
    if (!rc) rc = check_fits(v->app, out, v->notes_most, &fits, e);
    if (!rc && !fits && notes.len > v->text.len / 4 * 3)
        rc = error_set(e, ERR_CONTEXT,
                       "the notes on the parts are hardly shorter than the text and do not fit into the context; -c N "
                       "gives a larger one");
    struct level next = *v;
    next.text = notes;
    next.sources = NULL, next.n_sources = next.cap_sources = 0;
    next.ends = NULL, next.n_parts = next.cap_parts = 0;
    next.lead = (struct ids){0};
    next.depth++;
    const struct source whole = {v->sources[0].name, v->sources[0].name_n, 0, notes.len};
    if (!rc && !fits && mem_grow(&next.sources, &next.cap_sources, 1, sizeof *next.sources)) rc = no_memory(e);
    if (!rc && !fits) {
        next.sources[next.n_sources++] = whole;
        rc = read_level(&next, c, out, e);
    }
    level_free(&next);
    return rc;
}

int oneshot_long_read(struct app *a, struct engine_client *s, struct oneshot_long *l, struct conversation *c,
                      struct prompt *prompt, struct error *e) {
    static const char summarise[] = "Summarise the document.";
    const int context = a->info->context;
    bool fits = false;
    l->n_parts = 1;
    if (!l->splits || !l->n_document) return 0;
    if (context <= 0)
        return error_set(e, ERR_USAGE,
                         "--long split: this server does not tell the size of its context (max_model_len in its list "
                         "of models), so the document cannot be cut to fit; leave out --long to send it whole");
    int notes_most = context / NOTES_SHARE < NOTES_MOST ? context / NOTES_SHARE : NOTES_MOST;
    if (notes_most < NOTES_LEAST) notes_most = NOTES_LEAST;
    const bool was_made = prompt->ids.n || prompt->body.len;
    if (was_made) TRY(check_fits(a, prompt, notes_most, &fits, e));
    if (fits) return 0;
    const struct buf *text = &c->messages[c->n - 1].text;
    struct buf question = {0};
    const char *q = text->data + l->n_document;
    size_t n = text->len - l->n_document;
    for (; n && (*q == '\n' || *q == '\r'); q++) n--;
    if (buf_add(&question, n ? q : summarise, n ? n : sizeof summarise - 1)) return no_memory(e);
    struct level v = {.app = a,
                      .client = s,
                      .sum = l,
                      .question = question.data,
                      .question_n = question.len,
                      .notes_most = notes_most};
    struct buf kept = {0}; /* the names of sources point into it */
    int rc = buf_add(&kept, text->data, l->n_document) ? no_memory(e) : 0;
    if (c->messages[0].role == ROLE_SYSTEM) v.system = c->messages[0].text.data;
    if (!rc) rc = add_documents(&v, kept.data, kept.len, e);
    if (!rc) rc = read_level(&v, c, prompt, e);
    level_free(&v);
    buf_free(&kept);
    buf_free(&question);
    return rc;
}
