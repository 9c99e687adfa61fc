#include "cli/tools/tool_round.h"

#include <string.h>
#include <strings.h>

#include "cli/terminal/out.h"
#include "cli/terminal/sanitize.h"

/* --- taking ----------------------------------------------------------------------------------- */

/* Writes the arguments on one line. ERR_MODEL unless they are an object. A session file nests them in other values:
 * they must parse at that depth too. */
static int normalize_arguments(struct buf *arguments) {
    enum { NESTED = 16 }; /* more than the depth of arguments in a session file */
    struct arena arena = {0};
    struct buf nested = {0}, line = {0};
    struct json j;
    for (int i = 0; i < NESTED; i++) buf_char(&nested, '[');
    buf_add(&nested, arguments->data, arguments->len);
    for (int i = 0; i < NESTED; i++) buf_char(&nested, ']');
    int rc = nested.failed ? ERR_MEMORY : json_parse(&arena, nested.data, nested.len, 0, "arguments", &j, NULL);
    const struct json *inner = rc ? NULL : &j;
    for (int i = 0; i < NESTED && inner; i++) inner = json_at(inner, 0);
    if (!rc && (!inner || inner->type != JSON_OBJECT)) rc = ERR_MODEL;
    if (!rc) rc = json_write(&line, inner);
    if (!rc) buf_free(arguments), *arguments = line;
    else buf_free(&line);
    arena_free(&arena);
    buf_free(&nested);
    return rc;
}

/* Numbers the calls of a conversation. Mistral's templates require ids of nine letters and digits. */
static int set_ids(struct tool_calls *calls, const struct conversation *conv) {
    size_t n = 0;
    for (size_t i = 0; i < conv->n; i++)
        if (conv->messages[i].role == ROLE_ASSISTANT) n += conv->messages[i].calls.n;
    for (size_t i = 0; i < calls->n; i++)
        if (!calls->v[i].id.len && buf_fmt(&calls->v[i].id, "call%05zu", (n + i) % 100000)) return ERR_MEMORY;
    return 0;
}

int tool_round_take(struct tool_round *q, const struct app *a, const struct turn *t, const struct conversation *conv,
                    struct error *e) {
    tool_calls_truncate(&q->calls, 0);
    q->n_done = 0;
    if (!a->tools || t->failed || t->reason != DONE_STOP) return 0; /* a call that was cut never runs */
    int rc = turn_calls(t, &a->tools->list, &q->calls);
    for (size_t i = 0; i < q->calls.n && !rc; i++) rc = normalize_arguments(&q->calls.v[i].arguments);
    if (!rc) rc = set_ids(&q->calls, conv);
    if (rc) tool_calls_truncate(&q->calls, 0);
    return rc == ERR_MEMORY ? error_set(e, rc, "no memory for a tool call") : 0;
}

/* --- steps ------------------------------------------------------------------------------------ */

const struct tool_call *tool_round_call(const struct tool_round *q) { return &q->calls.v[q->n_done]; }

static void put_unknown(const struct tool_set *s, struct tool_result *r) {
    struct buf names = {0};
    for (size_t i = 0; i < s->n && names.len < 500; i++)
        buf_fmt(&names, "%s%s", i ? ", " : "", s->v[i].definition.name);
    r->status = TOOL_FAILED;
    tool_result_note(r, "there is no tool of this name; the tools are: %s", names.data ? names.data : "");
    buf_free(&names);
}

enum tool_step tool_round_step(struct tool_round *q, const struct app *a, struct tool **tool, struct tool_result *r) {
    const struct opt_value *limit = &a->opts.v[OPT_MAX_CALLS];
    const int most = limit->text ? (int)limit->integer : TOOL_ROUND_MOST_CALLS;
    *r = (struct tool_result){0};
    buf_free(&q->preview);
    q->seen = 0;
    if (q->n_done == q->calls.n) return TOOL_STEP_TURN;
    if (q->n_run >= most) {
        q->is_over = true;
        r->status = TOOL_REFUSED;
        tool_result_note(r, "not run: an answer may call tools %d times", most);
        return TOOL_STEP_RESULT;
    }
    if (!(*tool = tool_set_find(a->tools, &tool_round_call(q)->name))) {
        q->n_run++; /* a model that repeats such calls comes to an end, too */
        put_unknown(a->tools, r);
        return TOOL_STEP_RESULT;
    }
    if ((*tool)->ready &&
        !agent_tool_preview((*tool)->agent, (*tool)->ready, &tool_round_call(q)->arguments, &q->preview, &q->seen, r)) {
        q->n_run++; /* it would fail: there is nothing to ask about */
        return TOOL_STEP_RESULT;
    }
    if (q->preview.failed) { /* ends the answer: the user would see a part of the differences */
        r->status = TOOL_FAILED;
        r->text.failed = true;
        return TOOL_STEP_RESULT;
    }
    return (*tool)->allowed ? TOOL_STEP_RUN : TOOL_STEP_ASK;
}

int tool_round_finish(struct tool_round *q, struct conversation *conv, struct tool_result *r) {
    int rc = r->text.failed
                 ? ERR_MEMORY
                 : conversation_add_result(conv, tool_round_call(q), r->text.data ? r->text.data : "", r->text.len);
    tool_result_free(r);
    q->n_done++;
    return rc;
}

int tool_round_abandon(struct tool_round *q, struct conversation *conv, const char *why) {
    int rc = 0;
    while (q->n_done < q->calls.n) {
        struct tool_result r = {.status = TOOL_REFUSED};
        tool_result_note(&r, "not run: %s", why);
        const int result = tool_round_finish(q, conv, &r);
        if (!rc) rc = result;
    }
    return rc;
}

enum tool_consent tool_round_consent(const char *answer, size_t n) {
    static const struct {
        const char *word;
        enum tool_consent means;
    } words[] = {{"y", TOOL_CONSENT_YES}, {"yes", TOOL_CONSENT_YES},  {"n", TOOL_CONSENT_NO},
                 {"no", TOOL_CONSENT_NO}, {"a", TOOL_CONSENT_ALWAYS}, {"always", TOOL_CONSENT_ALWAYS}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strlen(words[i].word) == n && !strncasecmp(words[i].word, answer, n)) return words[i].means;
    return TOOL_CONSENT_UNCLEAR;
}

void tool_round_refuse(struct tool_result *r) {
    r->status = TOOL_REFUSED;
    tool_result_note(r, "not run: the user did not allow this call");
}

/* --- text ------------------------------------------------------------------------------------- */

void tool_round_put_call(const struct tool_call *call, struct buf *b) {
    buf_str(b, "\"id\": ");
    out_json_string(b, call->id.data ? call->id.data : "", call->id.len);
    buf_str(b, ", \"name\": ");
    out_json_string(b, call->name.data ? call->name.data : "", call->name.len);
    buf_fmt(b, ", \"arguments\": %s", call->arguments.data);
}

void tool_round_put_result(const struct tool_result *r, struct buf *b) {
    buf_fmt(b, ", \"status\": \"%s\", \"seconds\": %.6f, \"result\": ", tool_result_status(r), r->seconds);
    out_json_string(b, r->text.data ? r->text.data : "", r->text.len);
}

static void put_sanitized(const struct buf *text, struct buf *out) {
    struct sanitizer filter = {0};
    sanitize_add(&filter, text->data ? text->data : "", text->len, out);
    sanitize_flush(&filter, out);
    out->failed |= text->failed;
}

void tool_round_show_call(const struct tool_call *call, struct buf *out) {
    struct buf line = {0};
    buf_str(out, "call of ");
    buf_fmt(&line, "%s %s", call->name.data, call->arguments.data);
    for (size_t i = 0; i < line.len; i++) /* a name that no tool has can contain them */
        if (line.data[i] == '\n' || line.data[i] == '\t') line.data[i] = ' ';
    put_sanitized(&line, out);
    buf_free(&line);
}

void tool_round_show_next(const struct tool_round *q, struct buf *out) {
    if (!q->preview.len) {
        tool_round_show_call(tool_round_call(q), out);
        return;
    }
    buf_fmt(out, "call of %s ", tool_round_call(q)->name.data); /* a tool has this name */
    put_sanitized(&q->preview, out);
}

void tool_round_free(struct tool_round *q) {
    tool_calls_free(&q->calls);
    buf_free(&q->preview);
    *q = (struct tool_round){0};
}
