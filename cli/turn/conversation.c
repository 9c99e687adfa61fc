#include "cli/turn/conversation.h"

#include <string.h>

#include "base/mem.h"
#include "cli/terminal/columns.h"
#include "cli/terminal/out.h"

const char *conversation_role_name(enum role r) {
    static const char *const names[N_ROLES] = {
        [ROLE_SYSTEM] = "system", [ROLE_USER] = "user", [ROLE_ASSISTANT] = "assistant", [ROLE_TOOL] = "tool"};
    return names[r];
}

int conversation_add(struct conversation *c, enum role role, const char *text, size_t n, const char *thinking,
                     size_t thinking_n) {
    if (mem_grow(&c->messages, &c->cap, c->n + 1, sizeof *c->messages)) return ERR_MEMORY;
    struct message *m = &c->messages[c->n];
    *m = (struct message){.role = role};
    buf_add(&m->text, text ? text : "", n);
    if (thinking_n) buf_add(&m->thinking, thinking, thinking_n);
    if (m->text.failed || m->thinking.failed) {
        buf_free(&m->text);
        buf_free(&m->thinking);
        return ERR_MEMORY;
    }
    c->n++;
    return 0;
}

int conversation_add_calls(struct conversation *c, const struct tool_calls *calls) {
    return tool_calls_copy(calls, &c->messages[c->n - 1].calls);
}

int conversation_add_images(struct conversation *c, const struct image_files *images, size_t at) {
    return image_files_copy(&c->messages[c->n - 1].images, images, at);
}

int conversation_add_result(struct conversation *c, const struct tool_call *call, const char *text, size_t n) {
    struct tool_call answered = {.name = call->name, .id = call->id};
    const struct tool_calls one = {.v = &answered, .n = 1};
    if (conversation_add(c, ROLE_TOOL, text, n, NULL, 0)) return ERR_MEMORY;
    if (!conversation_add_calls(c, &one)) return 0;
    conversation_truncate(c, c->n - 1);
    return ERR_MEMORY;
}

/* A turn that failed, was killed, or stopped at a tool's call leaves no answer, and many templates refuse roles that do
 * not alternate. */
int conversation_ask(struct conversation *c, const char *text, size_t n) {
    const size_t n_before = c->n;
    const bool unanswered =
        c->n && (c->messages[c->n - 1].role == ROLE_USER || c->messages[c->n - 1].role == ROLE_TOOL);
    if (unanswered && conversation_add(c, ROLE_ASSISTANT, NULL, 0, NULL, 0)) return ERR_MEMORY;
    if (unanswered) c->messages[n_before].partial = true;
    int rc = conversation_add(c, ROLE_USER, text, n, NULL, 0);
    if (rc) conversation_truncate(c, n_before);
    return rc;
}

int conversation_complete_calls(struct conversation *c, const char *text) {
    const size_t n_before = c->n;
    size_t n_results = 0;
    while (n_results < n_before && c->messages[n_before - 1 - n_results].role == ROLE_TOOL) n_results++;
    if (n_results == n_before) return 0;
    const size_t answer = n_before - 1 - n_results;
    /* adding moves the messages, but not their calls */
    for (size_t i = n_results; i < c->messages[answer].calls.n; i++)
        if (conversation_add_result(c, &c->messages[answer].calls.v[i], text, strlen(text))) {
            conversation_truncate(c, n_before);
            return ERR_MEMORY;
        }
    return 0;
}

static void message_free(struct message *m) {
    buf_free(&m->text);
    buf_free(&m->thinking);
    tool_calls_free(&m->calls);
    image_files_free(&m->images);
}

int conversation_set_system(struct conversation *c, const char *text) {
    bool has_system = c->n && c->messages[0].role == ROLE_SYSTEM;
    if (has_system && !*text) {
        message_free(&c->messages[0]);
        memmove(c->messages, c->messages + 1, --c->n * sizeof *c->messages);
    }
    if (!*text) return 0;
    if (conversation_add(c, ROLE_SYSTEM, text, strlen(text), NULL, 0)) return ERR_MEMORY;
    struct message m = c->messages[c->n - 1];
    if (has_system) {
        message_free(&c->messages[0]);
        c->n--;
    } else memmove(c->messages + 1, c->messages, (c->n - 1) * sizeof *c->messages);
    c->messages[0] = m;
    return 0;
}

int conversation_append(struct conversation *to, const struct conversation *from) {
    for (size_t i = 0; i < from->n; i++) {
        const struct message *m = &from->messages[i];
        if (conversation_add(to, m->role, m->text.data, m->text.len, m->thinking.data, m->thinking.len))
            return ERR_MEMORY;
        to->messages[to->n - 1].partial = m->partial;
        if (conversation_add_calls(to, &m->calls) || conversation_add_images(to, &m->images, 0)) return ERR_MEMORY;
    }
    return 0;
}

void conversation_truncate(struct conversation *c, size_t n) {
    while (c->n > n) message_free(&c->messages[--c->n]);
}
void conversation_free(struct conversation *c) {
    conversation_truncate(c, 0);
    mem_free(c->messages);
    *c = (struct conversation){0};
}

const struct message *conversation_last(const struct conversation *c, enum role role) {
    for (size_t i = c->n; i-- > 0;)
        if (c->messages[i].role == role) return &c->messages[i];
    return NULL;
}

size_t conversation_n_questions(const struct conversation *c) {
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) n += c->messages[i].role == ROLE_USER;
    return n;
}

bool conversation_has_calls(const struct conversation *c) {
    for (size_t i = 0; i < c->n; i++)
        if (c->messages[i].calls.n) return true;
    return false;
}

bool conversation_has_images(const struct conversation *c) {
    for (size_t i = 0; i < c->n; i++)
        if (c->messages[i].images.n) return true;
    return false;
}

const char *conversation_document_end(const char *s, const char **name, size_t *n) {
    static const char begin[] = "<document name=\"", end[] = "\n</document>\n\n";
    const char *text, *stop;
    if (strncmp(s, begin, sizeof begin - 1) || !(text = strstr(s, "\">\n")) || !(stop = strstr(s, end))) return NULL;
    *name = s + sizeof begin - 1;
    *n = stop > text ? (size_t)(stop - text) - 2 : 0;
    return stop + sizeof end - 1;
}

const char *conversation_question(const struct message *m, struct buf *documents) {
    const char *s = m->text.data ? m->text.data : "";
    size_t n;
    for (size_t i = 0; i < m->images.n; i++)
        buf_fmt(documents, "%s(%s)", documents->len ? " " : "", m->images.v[i].name);
    for (const char *name, *end; (end = conversation_document_end(s, &name, &n)); s = end) {
        buf_fmt(documents, "%s(%.*s)", documents->len ? " " : "", (int)strcspn(name, "\""), name);
    }
    return *s ? s : NULL;
}

void conversation_title(const struct conversation *c, int cols, struct buf *out) {
    const struct message *m = NULL;
    struct buf b = {0};
    for (size_t i = c->n; i-- > 0;)
        if (c->messages[i].role == ROLE_USER) m = &c->messages[i];
    if (!m) return;
    const char *text = conversation_question(m, &b);
    if (b.len) buf_char(&b, ' ');
    for (const char *s = text ? text : ""; *s; s++) {
        bool blank = (unsigned char)*s <= ' ';
        if (!blank) buf_char(&b, *s);
        else if (b.len && b.data[b.len - 1] != ' ') buf_char(&b, ' ');
    }
    while (b.len && b.data[b.len - 1] == ' ') b.data[--b.len] = 0;
    if (b.len) columns_truncate(b.data, b.len, cols, out);
    buf_free(&b);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void put_text(struct buf *b, const char *key, const struct buf *text) {
    buf_fmt(b, "\"%s\": ", key);
    out_json_string(b, text->data ? text->data : "", text->len);
}

/* A template takes arguments as an object, a request as text. */
static void put_calls(const struct tool_calls *calls, enum message_form form, struct buf *b) {
    for (size_t i = 0; i < calls->n; i++) {
        const struct tool_call *k = &calls->v[i];
        buf_str(b, i ? ", {" : ", \"tool_calls\": [{");
        put_text(b, "id", &k->id);
        buf_str(b, ", \"type\": \"function\", \"function\": {");
        put_text(b, "name", &k->name);
        buf_str(b, ", ");
        if (form == MESSAGE_REQUEST) put_text(b, "arguments", &k->arguments);
        else buf_fmt(b, "\"arguments\": %s", k->arguments.data);
        buf_str(b, "}}");
    }
    if (calls->n) buf_char(b, ']');
}

void conversation_message_json(const struct message *m, enum message_form form, struct buf *b) {
    const bool is_empty = m->calls.n && !m->text.len && m->role == ROLE_ASSISTANT;
    buf_fmt(b, "{\"role\": \"%s\", ", conversation_role_name(m->role));
    if (is_empty && form == MESSAGE_REQUEST) buf_str(b, "\"content\": null");
    else if (m->images.n && form != MESSAGE_SAVED) {
        buf_str(b, "\"content\": ");
        image_files_put_parts(&m->images, &m->text, form == MESSAGE_REQUEST, b);
    } else put_text(b, "content", &m->text);
    if (m->images.n && form == MESSAGE_SAVED) {
        buf_str(b, ", \"images\": ");
        image_files_put_saved(&m->images, b);
    }
    if (m->thinking.len) {
        buf_str(b, ", ");
        put_text(b, form == MESSAGE_SAVED ? "thinking" : "reasoning_content", &m->thinking);
    }
    if (m->role == ROLE_ASSISTANT) put_calls(&m->calls, form, b);
    else if (m->calls.n) {
        buf_str(b, ", ");
        put_text(b, "tool_call_id", &m->calls.v[0].id);
        buf_str(b, ", ");
        put_text(b, "name", &m->calls.v[0].name);
    }
}
