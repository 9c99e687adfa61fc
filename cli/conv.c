#include "cli/conv.h"

#include <string.h>

#include "cli/out.h"
#include "cli/render.h"
#include "cli/scope.h"

enum { tail_size = 512 };

const char *role_name(enum role r) { return r == ROLE_SYSTEM ? "system" : r == ROLE_USER ? "user" : "assistant"; }

int conv_add(struct conv *c, enum role role, const char *text, size_t n, const char *thinking, size_t thinking_n) {
    if (mem_grow(&c->m, &c->cap, c->n + 1, sizeof *c->m)) return ERR_MEMORY;
    struct message *m = &c->m[c->n];
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

static void message_free(struct message *m) {
    buf_free(&m->text);
    buf_free(&m->thinking);
}

int conv_system(struct conv *c, const char *text) {
    bool there = c->n && c->m[0].role == ROLE_SYSTEM;
    if (there && !*text) {
        message_free(&c->m[0]);
        memmove(c->m, c->m + 1, --c->n * sizeof *c->m);
    }
    if (!*text) return 0;
    if (conv_add(c, ROLE_SYSTEM, text, strlen(text), NULL, 0)) return ERR_MEMORY;
    struct message m = c->m[c->n - 1];
    if (there) {
        message_free(&c->m[0]);
        c->n--;
    } else memmove(c->m + 1, c->m, (c->n - 1) * sizeof *c->m);
    c->m[0] = m;
    return 0;
}

int conv_copy(struct conv *to, const struct conv *from) {
    for (size_t i = 0; i < from->n; i++) {
        const struct message *m = &from->m[i];
        if (conv_add(to, m->role, m->text.data, m->text.len, m->thinking.data, m->thinking.len)) return ERR_MEMORY;
        to->m[to->n - 1].partial = m->partial;
    }
    return 0;
}

void conv_cut(struct conv *c, size_t n) {
    while (c->n > n) message_free(&c->m[--c->n]);
}
void conv_free(struct conv *c) {
    conv_cut(c, 0);
    mem_free(c->m);
    *c = (struct conv){0};
}

const struct message *conv_last(const struct conv *c, enum role role) {
    for (size_t i = c->n; i-- > 0;)
        if (c->m[i].role == role) return &c->m[i];
    return NULL;
}

size_t conv_turns(const struct conv *c) {
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) n += c->m[i].role == ROLE_USER;
    return n;
}

const char *conv_question(const struct message *m, struct buf *documents) {
    static const char begin[] = "<document name=\"", end[] = "\n</document>\n\n";
    const char *s = m->text.data ? m->text.data : "";
    for (const char *name, *stop; !strncmp(s, begin, sizeof begin - 1) && (stop = strstr(s, end)); s = stop + sizeof end - 1) {
        name = s + sizeof begin - 1;
        buf_fmt(documents, "%s(%.*s)", documents->len ? " " : "", (int)strcspn(name, "\""), name);
    }
    return *s ? s : NULL;
}

/* Appends the first words that fit. */
void conv_title(const struct conv *c, int cols, struct buf *out) {
    const struct message *m = NULL;
    struct buf b = {0};
    for (size_t i = c->n; i-- > 0;)
        if (c->m[i].role == ROLE_USER) m = &c->m[i];
    if (!m) return;
    const char *text = conv_question(m, &b);
    if (b.len) buf_char(&b, ' ');
    for (const char *s = text ? text : ""; *s; s++) {
        bool blank = (unsigned char)*s <= ' ';
        if (!blank) buf_char(&b, *s);
        else if (b.len && b.data[b.len - 1] != ' ') buf_char(&b, ' ');
    }
    while (b.len && b.data[b.len - 1] == ' ') b.data[--b.len] = 0;
    if (b.len) render_cut(b.data, b.len, cols, out);
    buf_free(&b);
}

void prompt_free(struct prompt *p) {
    ids_free(&p->ids);
    ids_free(&p->known);
    buf_free(&p->tail);
    buf_free(&p->body);
    *p = (struct prompt){0};
}

int conv_think(const struct opts *o) { return o->v[OPT_THINK].text ? o->v[OPT_THINK].on : -1; }

int conv_prompt_json(struct app *a, const struct json *conv, struct prompt *out, struct error *e) { return a->backend->prompt(a, conv, out, e); }

/* Returns the length of the shareable prefix in tokens: the system prompt and the documents before the last paragraph of the first
 * question, measured by rendering only these. 0 if it is short, or cannot be rendered separately. Negative: no memory, which is an error,
 * since a prompt that is prefilled in other parts may give another answer. */
static int shared_tokens(struct app *a, const struct json *conv, const struct ids *all, struct error *e) {
    enum { SHORT = 1024 }; /* bytes */
    const struct json *list = json_get(conv, "messages"), *text = NULL;
    uint32_t n = 0;
    size_t keep = 0, before = 0;
    while (list && list->type == JSON_ARRAY && n < list->n && !text) {
        const struct json *m = &list->items[n++], *content = json_get(m, "content");
        bool user = json_is(json_get(m, "role"), "user");
        if (!content || content->type != JSON_STRING) return 0;
        if (user) text = content;
        else before += content->n;
    }
    for (size_t i = 0; text && i + 1 < text->n; i++)
        if (text->string[i] == '\n' && text->string[i + 1] == '\n') keep = i + 2;
    if (!text || before + keep < SHORT) return 0;
    struct json *items = mem_alloc(n * sizeof *items), *members = mem_alloc(2 * conv->n * sizeof *members), *last = NULL, root = *conv;
    const struct json *m = &list->items[n - 1];
    struct text rendered = {0};
    struct ids ids = {0};
    int same = 0, rc = ERR_MEMORY;
    if (items && members && (last = mem_alloc(2 * m->n * sizeof *last))) {
        memcpy(items, list->items, n * sizeof *items);
        memcpy(last, m->items, 2 * m->n * sizeof *last);
        memcpy(members, conv->items, 2 * conv->n * sizeof *members);
        for (uint32_t i = 0; i < m->n; i++)
            if (json_is(&last[2 * i], "content")) last[2 * i + 1].n = (uint32_t)keep;
        for (uint32_t i = 0; i < conv->n; i++)
            if (json_is(&members[2 * i], "messages")) members[2 * i + 1].items = items, members[2 * i + 1].n = n;
        items[n - 1].items = last;
        root.items = members;
        struct error why;
        rc = chat_render(a->chat, &root, &rendered, &why);
        if (!rc) rc = tokenizer_encode_text(a->tokenizer, &rendered, &ids, &why);
        while (!rc && (size_t)same < ids.n && (size_t)same < all->n && ids.data[same] == all->data[same]) same++;
    }
    text_free(&rendered);
    ids_free(&ids);
    mem_free(items);
    mem_free(members);
    mem_free(last);
    return rc == ERR_MEMORY ? error_set(e, ERR_MEMORY, "no memory") : same;
}

static int prompt_own(struct app *a, const struct json *conv, struct prompt *out, struct error *e) {
    struct text text = {0};
    int rc = chat_render(a->chat, conv, &text, e);
    if (rc) return rc;
    rc = tokenizer_encode_text(a->tokenizer, &text, &out->ids, e);
    size_t keep = text.n < tail_size ? text.n : tail_size;
    if (!rc && keep && buf_add(&out->tail, text.data + text.n - keep, keep)) rc = error_set(e, ERR_MEMORY, "no memory");
    out->said = out->ids.n;
    text_free(&text);
    int shared = rc ? rc : shared_tokens(a, conv, &out->ids, e);
    if (shared < 0) return shared;
    out->shared = shared;
    return 0;
}

int conv_prompt_own(struct app *a, const struct json *conv, struct prompt *out, struct error *e) {
    struct arena arena = {0};
    if (strcmp(a->dir, "ember:") != 0) return prompt_own(a, conv, out, e);
    int rc = a->scope ? 0 : scope_open(&a->scope, e);
    if (!rc && !a->scope) return prompt_own(a, conv, out, e);
    const struct json *known = rc ? NULL : scope_answer(a->scope, conv), *asked = rc ? NULL : scope_asked(a->scope, conv, &arena);
    if (!rc && !asked) rc = error_set(e, ERR_MEMORY, "no memory");
    if (!rc) rc = prompt_own(a, asked, out, e);
    const struct json *list = json_get(conv, "messages"), *left = json_get(asked, "messages");
    if (!rc && !known && list != left && left->n) out->alone = json_get(&list->items[list->n - 1], "content") != json_get(&left->items[left->n - 1], "content");
    if (!rc && known) rc = tokenizer_encode(a->tokenizer, known->string, known->n, TEXT_VALUE, &out->known, e);
    arena_free(&arena);
    return rc;
}

void conv_note_alone(const struct app *a) { app_note(a, "ember, the built-in model, cannot read documents; it gets only the question"); }

void conv_message_json(const struct message *m, const char *thinking, struct buf *b) {
    buf_fmt(b, "{\"role\": \"%s\", \"content\": ", role_name(m->role));
    out_json_string(b, m->text.data, m->text.len);
    if (!m->thinking.len) return;
    buf_fmt(b, ", \"%s\": ", thinking);
    out_json_string(b, m->thinking.data, m->thinking.len);
}

static int prompt_of(struct app *a, const struct conv *c, int think, const char *how, struct prompt *out, struct error *e) {
    struct buf b = {0};
    struct arena arena = {0};
    struct json root;
    buf_str(&b, "{\"messages\": [");
    for (size_t i = 0; i < c->n; i++) {
        buf_str(&b, i ? ", " : "");
        conv_message_json(&c->m[i], "reasoning_content", &b);
        buf_char(&b, '}');
    }
    buf_fmt(&b, "], \"%s\": true", how);
    if (think >= 0) buf_fmt(&b, ", \"enable_thinking\": %s, \"thinking\": %s", think ? "true" : "false", think ? "true" : "false");
    buf_char(&b, '}');
    int rc = b.failed ? error_set(e, ERR_MEMORY, "no memory for the conversation") : json_parse(&arena, b.data, b.len, 0, "conversation", &root, e);
    if (!rc) rc = conv_prompt_json(a, &root, out, e);
    arena_free(&arena);
    buf_free(&b);
    return rc;
}
int conv_prompt(struct app *a, const struct conv *c, int think, struct prompt *out, struct error *e) {
    return prompt_of(a, c, think, "add_generation_prompt", out, e);
}

int conv_begun(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e) {
    int rc = tokenizer_encode(a->tokenizer, text, n, TEXT_VALUE, &out->ids, e);
    out->said = out->ids.n;
    ids_free(&out->known);
    return !rc && buf_add(&out->tail, text, n) ? error_set(e, ERR_MEMORY, "no memory") : rc;
}
int conv_prompt_begun(struct app *a, const struct conv *c, int think, struct prompt *out, struct error *e) {
    if (!a->backend->own) return prompt_of(a, c, think, "continue_final_message", out, e);
    const struct conv before = {.m = c->m, .n = c->n - 1};
    const struct buf *text = &c->m[c->n - 1].text;
    int rc = conv_prompt(a, &before, think, out, e);
    return rc ? rc : conv_begun(a, text->data ? text->data : "", text->len, out, e);
}

int conv_prompt_raw(struct app *a, const char *text, size_t n, struct prompt *out, struct error *e) {
    if (!a->backend->own) return error_set(e, ERR_USAGE, "--raw: a remote engine takes only conversations, not prompt text");
    int32_t bos = tokenizer_bos(a->tokenizer);
    if (bos >= 0) {
        if (mem_grow(&out->ids.data, &out->ids.cap, 1, sizeof *out->ids.data)) return error_set(e, ERR_MEMORY, "no memory");
        out->ids.data[out->ids.n++] = bos;
    }
    int rc = tokenizer_encode(a->tokenizer, text, n, a->opts.v[OPT_SPECIAL].on ? TEXT_TEMPLATE : TEXT_VALUE, &out->ids, e);
    if (!rc && !out->ids.n) rc = error_set(e, ERR_USAGE, "no prompt: the text is empty and the model has no BOS");
    out->said = out->ids.n;
    return rc;
}
