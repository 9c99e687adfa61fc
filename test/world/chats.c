#include "test/world/chats.h"

#include <string.h>

static const char NO_RESULT[] = "[no result: the chat ended before this call did]"; /* as store.c has it */

char chats_byte(int token) { return (char)('0' + token); }
static int32_t token_of(char byte) { return (int32_t)((unsigned char)byte + VOCAB - '0') % VOCAB; }

int chats_start(const struct chat *c) { return c->start % 2 ? 18 : 70; }

void chats_add(struct chat *c, int role, int which) {
    struct line *l = &c->line[c->n++];
    *l = (struct line){.role = (uint8_t)role, .n = (uint8_t)(2 + which * 5 % 9)};
    for (int i = 0; i < l->n; i++) l->text[i] = chats_byte((which * 13 + i * 7) % AS_USER);
}

int chats_tokens(const struct chat *c, int32_t *out) {
    int n = chats_start(c);
    for (int i = 0; i < n; i++) out[i] = (c->start % 2 * 31 + i * 37 + 5) % AS_USER;
    for (int i = 0; i < c->n; i++) {
        out[n++] = c->line[i].role;
        for (int k = 0; k < c->line[i].n; k++) out[n++] = token_of(c->line[i].text[k]);
    }
    out[n++] = AS_MODEL;
    return n;
}
bool chats_is_long(const struct chat *c) {
    int n = chats_start(c);
    for (int i = 0; i < c->n; i++) n += 1 + c->line[i].n;
    return c->n > MESSAGES - 4 || n > CONTEXT - 80;
}

/* --- Saved ------------------------------------------------------------------------------------ */

static void add(struct conversation *conv, enum role role, const char *text, size_t n) {
    if (conversation_add(conv, role, text, n, "", 0)) world_fail("no memory");
}
static void add_call(struct conversation *conv) {
    struct tool_call call = {0};
    struct tool_calls calls = {&call, 1, 1};
    buf_str(&call.name, "look");
    buf_str(&call.arguments, "{\"at\": \"it\"}");
    if (conversation_add_calls(conv, &calls)) world_fail("no memory");
    buf_free(&call.name);
    buf_free(&call.arguments);
}
void chats_to_conversation(const struct chat *c, struct conversation *conv) {
    const char start = chats_byte(c->start);
    add(conv, ROLE_SYSTEM, &start, 1);
    for (int i = 0; i < c->n; i++) {
        const struct line *l = &c->line[i];
        const struct message *before = &conv->messages[conv->n - 1];
        if (l->role == AS_TOOL) {
            if (!before->calls.n || conversation_add_result(conv, &before->calls.v[0], l->text, l->n))
                world_fail("a result without a call");
            continue;
        }
        add(conv, l->role == AS_USER ? ROLE_USER : ROLE_ASSISTANT, l->text, l->n);
        conv->messages[conv->n - 1].partial = l->is_partial;
        if (l->has_call) add_call(conv);
    }
}
static void text_of(const struct conversation *conv, struct buf *out) {
    for (size_t i = 0; i < conv->n; i++) {
        conversation_message_json(&conv->messages[i], MESSAGE_SAVED, out);
        buf_fmt(out, " %d\n", conv->messages[i].partial);
    }
    if (out->failed) world_fail("no memory");
}
static bool is_equal(const struct chat *c, const struct conversation *conv) {
    struct conversation own = {0};
    struct buf a = {0}, b = {0};
    chats_to_conversation(c, &own);
    if (conversation_complete_calls(&own, NO_RESULT)) world_fail("no memory");
    text_of(&own, &a);
    text_of(conv, &b);
    const bool same = a.len == b.len && !memcmp(a.data, b.data, a.len);
    conversation_free(&own);
    buf_free(&a);
    buf_free(&b);
    return same;
}

void chats_from_conversation(const struct conversation *conv, struct user *p) {
    struct chat *c = &p->chat;
    *c = (struct chat){0};
    for (size_t i = 0; i < conv->n; i++) {
        const struct message *m = &conv->messages[i];
        if (m->role == ROLE_SYSTEM) {
            c->start = token_of(m->text.data[0]);
            continue;
        }
        struct line *l = &c->line[c->n++];
        *l = (struct line){.role = m->role == ROLE_USER   ? AS_USER
                                   : m->role == ROLE_TOOL ? AS_TOOL
                                                          : AS_MODEL,
                           .n = (uint8_t)m->text.len,
                           .is_partial = m->partial,
                           .has_call = m->role == ROLE_ASSISTANT && m->calls.n > 0};
        if (m->text.len) memcpy(l->text, m->text.data, m->text.len);
    }
    p->saved[0] = *c;
    p->n_saved = 1, p->is_acknowledged = true, p->is_any = p->is_queued = p->is_rotten = false;
}

void chats_try(struct user *p) {
    p->is_deleted = false;
    if (p->n_saved == VERSIONS) { /* one of those between the first and the last */
        p->is_any = true;
        memmove(&p->saved[1], &p->saved[2], (size_t)(--p->n_saved - 1) * sizeof *p->saved);
    }
    p->saved[p->n_saved++] = p->chat;
}
void chats_acknowledge(struct user *p) {
    p->saved[0] = p->saved[p->n_saved - 1];
    p->n_saved = 1, p->is_acknowledged = true, p->is_any = p->is_rotten = false;
}
void chats_forget(struct user *p) { p->n_saved = 0, p->is_acknowledged = p->is_any = p->is_queued = false; }
bool chats_may_hold(const struct user *p, const struct conversation *conv) {
    for (int i = 0; i < p->n_saved; i++)
        if (is_equal(&p->saved[i], conv)) return true;
    return p->is_any;
}
