#include "tokenizer/chat/chat_forms.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/hash.h"

/* Owns what chat templates differ in when they read messages. Rendering is in jinja/. */

static const char *const thoughts[] = {"reasoning_content", "reasoning", "thinking"}; /* members that have thinking */
enum { N_THOUGHTS = sizeof thoughts / sizeof *thoughts, N_ID = 9, N_ORDERED = 128 };

static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for the chat template"); }

/* --- finding ---------------------------------------------------------------------------------- */

#define MESSAGE(role, content) "{\"role\": \"" role "\", \"content\": \"" content "\"}"
#define LONG_ID                "call_0123456789abcdef01234567"
#define SHORT_ID               "abcdef123"
static const char bare_tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"polish\"}}]";
static const char whole_tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"polish\", \"description\": \"d\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"gem\": {\"type\": \"string\", \"description\": \"d\"}}, \"required\": "
    "[\"gem\"]}}}]";

/* Renders a conversation. *out: its prompt, "" if the template refuses it. */
static int render(const struct chat_forms_source *s, const char *messages, const char *tools, struct buf *out,
                  struct error *e) {
    struct buf b = {0};
    struct arena a = {0};
    struct json vars;
    struct text text = {0};
    struct error why = {0};
    buf_fmt(&b, "{\"messages\": [%s], \"add_generation_prompt\": true, \"enable_thinking\": true, \"thinking\": true",
            messages);
    if (tools) buf_fmt(&b, ", \"tools\": %s", tools);
    buf_char(&b, '}');
    out->len = 0;
    int rc = b.failed ? no_memory(e) : json_parse(&a, b.data, b.len, 0, "a conversation", &vars, e);
    if (!rc) rc = jinja_render(tools ? s->with_tools : s->without_tools, &vars, s->vars, &text, &why);
    if (rc == ERR_MEMORY) no_memory(e);
    else rc = buf_add(out, rc ? "" : text.data, rc ? 0 : text.n) ? no_memory(e) : 0;
    text_free(&text);
    arena_free(&a);
    buf_free(&b);
    return rc;
}

static bool has(const struct buf *b, const char *word) { return b->len && memmem(b->data, b->len, word, strlen(word)); }

/* Sets *hides if the template refuses the messages or drops one of these words. */
static int find_hidden(const struct chat_forms_source *s, const char *messages, const char *word, const char *other,
                       bool *hides, struct error *e) {
    struct buf b = {0};
    int rc = render(s, messages, NULL, &b, e);
    *hides = !has(&b, word) || !has(&b, other);
    buf_free(&b);
    return rc;
}

struct call_probe { /* a round of a tool */
    const char *content, *arguments, *id, *more;
};
/* Renders a question, a call of the tool and its result. */
static int render_call(const struct chat_forms_source *s, const struct call_probe *p, const char *after,
                       struct buf *out, struct error *e) {
    char text[1024];
    snprintf(text, sizeof text,
             "%s, {\"role\": \"assistant\", \"content\": %s%s, \"tool_calls\": [{\"id\": \"%s\", \"type\": "
             "\"function\", \"function\": {\"name\": \"polish\", \"arguments\": %s}}]}, {\"role\": \"tool\", "
             "\"tool_call_id\": \"%s\", \"name\": \"polish\", \"content\": \"basalt\"}%s",
             MESSAGE("user", "granite"), p->content, p->more, p->id, p->arguments, p->id, after);
    return render(s, text, whole_tools, out, e);
}

/* Finds a form of calls that the template shows. *found: whether there is one. */
static int find_calls(const struct chat_forms_source *s, struct call_probe *p, bool *found, struct error *e) {
    static const char *const ids[] = {LONG_ID, SHORT_ID}, *const contents[] = {"\"\"", "null"},
                             *const arguments[] = {"{\"gem\": \"quartz\"}", "\"{\\\"gem\\\": \\\"quartz\\\"}\""};
    struct buf b = {0};
    int rc = 0;
    *found = false;
    for (int i = 0; i < 8 && !rc && !*found; i++) {
        *p = (struct call_probe){contents[i & 1], arguments[i >> 1 & 1], ids[i >> 2], ""};
        rc = render_call(s, p, "", &b, e);
        *found = has(&b, "quartz");
    }
    buf_free(&b);
    return rc;
}

/* Tells null from "" where both render: the form that does not write the word None, or else null, by which some
 * templates recognise a message that has only calls. */
static int find_content(const struct chat_forms_source *s, struct call_probe p, struct chat_forms *f, struct error *e) {
    struct buf empty = {0}, null = {0};
    f->null_content = !strcmp(p.content, "null");
    int rc = f->null_content ? 0 : render_call(s, &p, "", &empty, e);
    p.content = "null";
    if (!rc && !f->null_content) rc = render_call(s, &p, "", &null, e);
    if (!rc && !f->null_content)
        f->null_content = has(&null, "quartz") && !has(&null, "None") &&
                          (null.len != empty.len || memcmp(null.data, empty.data, null.len) != 0);
    buf_free(&empty);
    buf_free(&null);
    return rc;
}

static int find_thought(const struct chat_forms_source *s, struct call_probe p, struct chat_forms *f, struct error *e) {
    struct buf b = {0};
    char member[64];
    int rc = 0;
    for (int i = 0; i < N_THOUGHTS && !rc && !f->thought; i++) {
        snprintf(member, sizeof member, ", \"%s\": \"obsidian\"", thoughts[i]);
        p.more = member;
        rc = render_call(s, &p, "", &b, e);
        if (!has(&b, "obsidian")) continue;
        f->thought = thoughts[i];
        if (!rc) rc = render_call(s, &(struct call_probe){"\"marble\"", p.arguments, p.id, member}, "", &b, e);
        f->thought_alone = !b.len;
    }
    if (!rc && !f->thought) {
        p.content = "[{\"type\": \"thinking\", \"thinking\": \"obsidian\"}]";
        p.more = "";
        rc = render_call(s, &p, "", &b, e);
        /* not a template that writes the list itself */
        f->thought_is_part =
            has(&b, "obsidian") && !has(&b, "\"thinking\"") && !has(&b, "'thinking'") && !has(&b, "\\\"thinking");
    }
    buf_free(&b);
    return rc;
}

/* Finds whether a tool must have more than a name. */
static int find_tool_forms(const struct chat_forms_source *s, struct chat_forms *f, struct error *e) {
    struct buf bare = {0}, whole = {0};
    int rc = render(s, MESSAGE("user", "granite"), bare_tools, &bare, e);
    if (!rc) rc = render(s, MESSAGE("user", "granite"), whole_tools, &whole, e);
    f->whole_tools = !bare.len && whole.len;
    buf_free(&bare);
    buf_free(&whole);
    return rc;
}

static int find_call_forms(const struct chat_forms_source *s, struct chat_forms *f, struct error *e) {
    struct call_probe p;
    struct buf b = {0};
    bool found;
    TRY(find_calls(s, &p, &found, e));
    if (!found) return 0;
    int rc = render_call(s, &p, "", &b, e);
    f->uses_ids = has(&b, p.id);
    f->short_ids = !strcmp(p.id, SHORT_ID);
    /* an object that is written as Python does */
    f->text_arguments = *p.arguments == '"' || has(&b, "'gem': 'quartz'");
    if (!rc) rc = find_content(s, p, f, e);
    if (f->null_content) p.content = "null";
    if (!rc) rc = find_thought(s, p, f, e);
    if (!rc) rc = render_call(s, &p, ", " MESSAGE("user", "slate"), &b, e);
    f->refuses_asking_result = !has(&b, "slate");
    buf_free(&b);
    return rc;
}

int chat_forms_find(const struct chat_forms_source *s, struct chat_forms *f, struct error *e) {
    bool unusable;
    *f = (struct chat_forms){0};
    if (s->without_tools) {
        TRY(find_hidden(s, MESSAGE("user", "granite"), "granite", "granite", &unusable, e));
        if (unusable) return 0;
        TRY(find_hidden(s, MESSAGE("system", "jade") ", " MESSAGE("user", "granite"), "jade", "granite",
                        &f->hides_system, e));
        TRY(find_hidden(s, MESSAGE("system", "jade") ", " MESSAGE("system", "opal") ", " MESSAGE("user", "granite"),
                        "jade", "opal", &f->hides_second_system, e));
        TRY(find_hidden(s,
                        MESSAGE("user", "granite") ", " MESSAGE("assistant", "marble") ", " MESSAGE(
                            "system", "opal") ", " MESSAGE("user", "slate"),
                        "opal", "slate", &f->hides_late_system, e));
        TRY(find_hidden(s, MESSAGE("user", "granite") ", " MESSAGE("user", "slate"), "granite", "slate",
                        &f->refuses_two_users, e));
        TRY(find_hidden(s,
                        MESSAGE("user", "granite") ", " MESSAGE("assistant", "marble") ", " MESSAGE(
                            "assistant", "opal") ", " MESSAGE("user", "slate"),
                        "marble", "opal", &f->refuses_two_answers, e));
        TRY(find_hidden(s, MESSAGE("assistant", "marble") ", " MESSAGE("user", "granite"), "marble", "granite",
                        &f->refuses_early_answer, e));
    }
    if (!s->with_tools) return 0;
    TRY(find_tool_forms(s, f, e));
    return find_call_forms(s, f, e);
}

/* --- applying --------------------------------------------------------------------------------- */

static struct json word_of(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}
static bool is_text(const struct json *j) { return j && j->type == JSON_STRING; }
static bool is_role(const struct json *m, const char *role) { return json_is(json_get(m, "role"), role); }

/* Sets a member of an object, whose members are copied; NULL removes it. */
static int set(struct arena *a, struct json *object, const char *key, const struct json *value, struct error *e) {
    if (!value && !json_get(object, key)) return 0;
    struct json *m = json_members(a, object, 1);
    uint32_t n = 0;
    if (!m) return no_memory(e);
    for (uint32_t i = 0; i < object->n; i++) {
        if (json_is(&m[2 * i], key)) continue;
        m[2 * n] = m[2 * i];
        m[2 * n++ + 1] = m[2 * i + 1];
    }
    if (value) m[2 * n] = word_of(key), m[2 * n++ + 1] = *value;
    object->items = m;
    object->n = n;
    return 0;
}

/* Joins two texts with an empty line between them. */
static int join(struct arena *a, const struct json *first, const struct json *second, struct json *out,
                struct error *e) {
    if (!first->n || !second->n) return *out = first->n ? *first : *second, 0;
    const size_t n = (size_t)first->n + 2 + second->n;
    char *s = n > UINT32_MAX ? NULL : arena_alloc(a, n);
    if (!s) return no_memory(e);
    memcpy(s, first->string, first->n);
    memcpy(s + first->n, "\n\n", 2);
    memcpy(s + first->n + 2, second->string, second->n);
    *out = (struct json){.type = JSON_STRING, .n = (uint32_t)n, .string = s};
    return 0;
}

struct fitting { /* messages that are being put into their forms */
    const struct chat_forms *forms;
    struct arena *arena;
    struct json *items;
    uint32_t n;
    bool begun;                /* past the system prompts at the beginning */
    const struct json *called; /* tool calls of the last answer */
    uint32_t n_results;        /* results of these calls so far */
    uint32_t order[N_ORDERED]; /* the numbers of their calls */
    uint64_t n_ids;            /* ids made so far */
};

/* Joins a message's text to the end of the last message. */
static int join_last(struct fitting *t, const struct json *m, struct error *e) {
    struct json both;
    TRY(join(t->arena, json_get(&t->items[t->n - 1], "content"), json_get(m, "content"), &both, e));
    return set(t->arena, &t->items[t->n - 1], "content", &both, e);
}

static int add_question(struct fitting *t, const struct json *m, struct error *e) {
    const struct json *last = t->n ? &t->items[t->n - 1] : NULL;
    t->begun = true;
    if (is_text(json_get(m, "content")) && is_text(json_get(last, "content")) &&
        ((t->forms->refuses_two_users && is_role(last, "user")) ||
         (t->forms->refuses_asking_result && is_role(last, "tool"))))
        return join_last(t, m, e);
    t->items[t->n++] = *m;
    return 0;
}

static int add_system(struct fitting *t, const struct json *m, struct error *e) {
    const struct chat_forms *f = t->forms;
    const struct json user = word_of("user");
    struct json question = *m;
    const bool joins = is_text(json_get(m, "content")) && t->n && is_text(json_get(&t->items[t->n - 1], "content"));
    if (!t->begun && t->n && f->hides_second_system && joins) return join_last(t, m, e);
    if (!is_text(json_get(m, "content")) || !(t->begun ? f->hides_late_system : f->hides_system))
        return t->items[t->n++] = *m, 0;
    TRY(set(t->arena, &question, "role", &user, e));
    return add_question(t, &question, e);
}

/* Returns arguments as an object: of text that is none, one with that text as its only member. */
static int open_arguments(struct arena *a, const struct json *given, struct json *out, struct error *e) {
    struct json parsed = {0};
    if (given && given->type == JSON_OBJECT) return *out = *given, 0;
    const bool is_json = is_text(given) && !json_parse(a, given->string, given->n, 0, "arguments", &parsed, NULL);
    *out = is_json && parsed.type == JSON_OBJECT ? parsed : (struct json){.type = JSON_OBJECT};
    if (!given || given->type == JSON_NULL || (is_json && parsed.type <= JSON_NULL) || out->n) return 0;
    if (is_text(given) && strspn(given->n ? given->string : "", " \t\r\n") >= given->n) return 0;
    return is_json && parsed.type == JSON_OBJECT ? 0 : set(a, out, "arguments", given, e);
}

static int write_text(struct arena *a, const struct json *j, struct json *out, struct error *e) {
    struct buf b = {0};
    const char *s = json_write(&b, j) ? NULL : arena_strndup(a, b.data, b.len);
    *out = (struct json){.type = JSON_STRING, .n = (uint32_t)b.len, .string = s};
    buf_free(&b);
    return s ? 0 : no_memory(e);
}

static bool is_short_id(const struct json *id) {
    uint32_t n = 0;
    while (n < id->n && ((id->string[n] >= '0' && id->string[n] <= '9') ||
                         ((id->string[n] | 0x20) >= 'a' && (id->string[n] | 0x20) <= 'z')))
        n++;
    return n == id->n && n == N_ID;
}

/* Gives an object that names a call its id under this key: a short one, and one of ours where it has none. */
static int fit_id(struct fitting *t, struct json *object, const char *key, const struct json *instead,
                  struct error *e) {
    static const char digits[] = "0123456789abcdefghijklmnopqrstuvwxyz";
    const struct json *id = json_get(object, key);
    if (!is_text(id) || !id->n) id = instead;
    if (!t->forms->uses_ids && !t->forms->short_ids) return 0;
    if (is_text(id) && (!t->forms->short_ids || is_short_id(id)))
        return id == instead ? set(t->arena, object, key, id, e) : 0;
    uint64_t code = is_text(id) ? hash64(id->string, id->n, 0) : ++t->n_ids;
    char *s = arena_alloc(t->arena, N_ID + 1);
    if (!s) return no_memory(e);
    for (int i = 0; i < N_ID; i++, code /= 36) s[i] = digits[code % 36];
    s[N_ID] = 0;
    const struct json word = word_of(s);
    return set(t->arena, object, key, &word, e);
}

static int fit_calls(struct fitting *t, struct json *m, struct error *e) {
    const struct json *from = json_get(m, "tool_calls");
    t->called = NULL, t->n_results = 0;
    if (!from) return 0;
    if (from->type != JSON_ARRAY || !from->n) return set(t->arena, m, "tool_calls", NULL, e);
    struct json *calls = arena_alloc(t->arena, (size_t)from->n * sizeof *calls);
    struct json list = {.type = JSON_ARRAY, .n = from->n, .items = calls};
    if (!calls) return no_memory(e);
    for (uint32_t i = 0; i < from->n; i++) {
        const struct json *f = json_get(&from->items[i], "function");
        struct json function, arguments;
        calls[i] = from->items[i];
        if (!f || f->type != JSON_OBJECT) continue;
        function = *f;
        TRY(open_arguments(t->arena, json_get(f, "arguments"), &arguments, e));
        if (t->forms->text_arguments) TRY(write_text(t->arena, &arguments, &arguments, e));
        TRY(set(t->arena, &function, "arguments", &arguments, e));
        TRY(set(t->arena, &calls[i], "function", &function, e));
        TRY(fit_id(t, &calls[i], "id", NULL, e));
    }
    TRY(set(t->arena, m, "tool_calls", &list, e));
    t->called = json_get(m, "tool_calls");
    return 0;
}

/* Makes a content of two parts; without text, of one. */
static int make_parts(struct arena *a, const struct json *thought, const struct json *text, struct json *out,
                      struct error *e) {
    const struct json *const values[] = {thought, text};
    static const char *const types[] = {"thinking", "text"};
    struct json *parts = arena_calloc(a, 2, sizeof *parts);
    if (!parts) return no_memory(e);
    *out = (struct json){.type = JSON_ARRAY, .n = text->n ? 2 : 1, .items = parts};
    for (uint32_t i = 0; i < out->n; i++) {
        const struct json type = word_of(types[i]);
        parts[i] = (struct json){.type = JSON_OBJECT};
        TRY(set(a, &parts[i], "type", &type, e));
        TRY(set(a, &parts[i], types[i], values[i], e));
    }
    return 0;
}

/* Moves the thinking of an answer to where the template reads it. */
static int fit_thought(struct fitting *t, struct json *m, struct json *content, struct error *e) {
    const struct chat_forms *f = t->forms;
    const struct json *given = NULL;
    struct json thought;
    for (int i = 0; i < N_THOUGHTS && !given; i++) {
        given = json_get(m, thoughts[i]);
        if (!is_text(given) || !given->n) given = NULL;
    }
    if (!given) return 0;
    thought = *given;
    for (int i = 0; i < N_THOUGHTS; i++) TRY(set(t->arena, m, thoughts[i], NULL, e));
    if (f->thought_is_part && is_text(content)) {
        const struct json text = *content;
        return make_parts(t->arena, &thought, &text, content, e);
    }
    if (f->thought_alone && json_get(m, "tool_calls") && is_text(content)) {
        TRY(join(t->arena, &thought, content, &thought, e));
        *content = word_of("");
    }
    return set(t->arena, m, f->thought ? f->thought : thoughts[0], &thought, e);
}

/* Whether a message is an answer without thinking and calls. */
static bool is_answer_of_text(const struct json *m) {
    const struct json *calls = json_get(m, "tool_calls");
    bool has_more = calls && calls->type == JSON_ARRAY && calls->n;
    for (int i = 0; i < N_THOUGHTS; i++) has_more |= is_text(json_get(m, thoughts[i])) && json_get(m, thoughts[i])->n;
    return is_role(m, "assistant") && !has_more && is_text(json_get(m, "content"));
}
static int add_empty_question(struct fitting *t, struct error *e) {
    const struct json role = word_of("user"), content = word_of("");
    struct json *m = &t->items[t->n++];
    *m = (struct json){.type = JSON_OBJECT};
    TRY(set(t->arena, m, "role", &role, e));
    return set(t->arena, m, "content", &content, e);
}

static int add_answer(struct fitting *t, struct json m, struct error *e) {
    static const struct json null = {.type = JSON_NULL};
    const struct json *given = json_get(&m, "content"), *last = t->n ? &t->items[t->n - 1] : NULL;
    const bool joins = t->forms->refuses_two_answers && is_answer_of_text(last) && is_answer_of_text(&m);
    if (t->forms->refuses_early_answer && (!last || is_role(last, "system"))) TRY(add_empty_question(t, e));
    if (joins) return join_last(t, &m, e);
    struct json content = given && given->type != JSON_NULL ? *given : word_of("");
    t->begun = true;
    TRY(fit_calls(t, &m, e));
    TRY(fit_thought(t, &m, &content, e));
    if (t->called && is_text(&content) && !content.n && t->forms->null_content) content = null;
    given = json_get(&m, "content");
    if (!given || given->type != content.type || given->items != content.items)
        TRY(set(t->arena, &m, "content", &content, e));
    t->items[t->n++] = m;
    return 0;
}

/* Returns the number of the call that a result names; that of the result, if it names none. */
static uint32_t call_of(const struct fitting *t, const struct json *result) {
    const struct json *id = json_get(result, "tool_call_id");
    for (uint32_t i = 0; is_text(id) && i < t->called->n; i++) {
        const struct json *of = json_get(&t->called->items[i], "id");
        if (is_text(of) && of->n == id->n && !memcmp(of->string, id->string, id->n)) return i;
    }
    return t->n_results;
}

/* Moves the last message, a result, to its place among the results before it: templates without ids tell results apart
 * by the order of the calls, and clients send them as tools end. */
static void move_result(struct fitting *t) {
    uint32_t at = t->n_results;
    if (!t->called || t->called->n > N_ORDERED || at >= t->called->n || t->forms->uses_ids || t->forms->short_ids)
        return;
    struct json *items = t->items + t->n - 1 - at; /* as far as the results follow each other */
    const struct json m = items[at];
    const uint32_t call = call_of(t, &m);
    for (; at && t->order[at - 1] > call && is_role(&items[at - 1], "tool"); at--)
        items[at] = items[at - 1], t->order[at] = t->order[at - 1];
    items[at] = m, t->order[at] = call;
}

static int add_result(struct fitting *t, struct json m, struct error *e) {
    const struct json *call = t->called ? json_at(t->called, t->n_results) : NULL;
    t->begun = true;
    TRY(fit_id(t, &m, "tool_call_id", json_get(call, "id"), e));
    t->items[t->n++] = m;
    move_result(t);
    t->n_results++;
    return 0;
}

/* Gives each tool what it lacks: an empty description, and parameters without properties. */
static int complete_tools(struct arena *a, const struct json *from, struct json *out, struct error *e) {
    static const struct json none = {.type = JSON_OBJECT};
    const struct json type = word_of("object"), empty = word_of("");
    struct json parameters = none, *tools = arena_alloc(a, (size_t)from->n * sizeof *tools + 1);
    if (!tools) return no_memory(e);
    TRY(set(a, &parameters, "type", &type, e));
    TRY(set(a, &parameters, "properties", &none, e));
    *out = (struct json){.type = JSON_ARRAY, .n = from->n, .items = tools};
    for (uint32_t i = 0; i < from->n; i++) {
        const struct json *f = json_get(&from->items[i], "function");
        struct json function;
        tools[i] = from->items[i];
        if (!f || f->type != JSON_OBJECT) continue;
        function = *f;
        if (!is_text(json_get(f, "description"))) TRY(set(a, &function, "description", &empty, e));
        if (!json_get(json_get(f, "parameters"), "type")) TRY(set(a, &function, "parameters", &parameters, e));
        TRY(set(a, &tools[i], "function", &function, e));
    }
    return 0;
}

int chat_forms_apply(const struct chat_forms *f, const struct json *vars, struct arena *a, struct json *out,
                     struct error *e) {
    const struct json *from = json_get(vars, "messages"), *tools = json_get(vars, "tools");
    struct json whole;
    *out = *vars;
    if (f->whole_tools && tools && tools->type == JSON_ARRAY) {
        TRY(complete_tools(a, tools, &whole, e));
        TRY(set(a, out, "tools", &whole, e));
    }
    if (!from || from->type != JSON_ARRAY) return 0;
    struct fitting t = {.forms = f, .arena = a, .items = arena_alloc(a, ((size_t)from->n + 1) * sizeof *t.items)};
    if (!t.items) return no_memory(e);
    for (uint32_t i = 0; i < from->n; i++) {
        const struct json *m = &from->items[i];
        if (is_role(m, "system") || is_role(m, "developer")) TRY(add_system(&t, m, e));
        else if (is_role(m, "user")) TRY(add_question(&t, m, e));
        else if (is_role(m, "assistant")) TRY(add_answer(&t, *m, e));
        else if (is_role(m, "tool")) TRY(add_result(&t, *m, e));
        else t.items[t.n++] = *m;
    }
    const struct json list = {.type = JSON_ARRAY, .n = t.n, .items = t.items};
    return set(a, out, "messages", &list, e);
}
