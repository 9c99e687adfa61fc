/* What tokenizer_config.json says of tokens: those that are added to a tokenizer.json, and those that begin and end a
 * text. As transformers does. */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "tokenizer/tokenizer_internal.h"

/* Returns a named token of tokenizer_config.json, a string or an object with its content; NULL: none. */
static const struct json *named_token(const struct json *config, const char *name) {
    const struct json *token = json_get(config, name);
    if (token && token->type == JSON_OBJECT) token = json_get(token, "content");
    return token && token->type == JSON_STRING && token->n ? token : NULL;
}
static int32_t token_id(const struct tokenizer *t, const struct json *token) {
    const int32_t id = added_tokens_id(t, token->string, token->n);
    return id >= 0 ? id : (int32_t)load_find_token(t, token->string, token->n);
}

int load_bos(struct tokenizer *t, const struct json *config, struct error *e) {
    const struct json *add = json_get(config, "add_bos_token"), *bos = named_token(config, "bos_token");
    if (!add || add->type != JSON_BOOL) return 0;
    t->bos = -1;
    if (!add->boolean || !bos) return 0; /* nothing to add */
    if ((t->bos = token_id(t, bos)) < 0)
        return error_set(e, ERR_MODEL, "tokenizer_config.json: bos_token %.*s is not in the vocabulary",
                         (int)(bos->n < 80 ? bos->n : 80), bos->string);
    return 0;
}

void load_eos(struct tokenizer *t, const struct json *config) {
    const struct json *eos = named_token(config, "eos_token");
    if (eos) t->eos = token_id(t, eos);
}

/* --- added tokens ----------------------------------------------------------------------------- */

int load_config_token(const struct json *key, uint32_t n_ids, int64_t *id, struct error *e) {
    const struct json *content = json_get(key + 1, "content");
    char number[12] = "", *end;
    if (key->n < sizeof number) memcpy(number, key->string, key->n);
    *id = strtol(number, &end, 10);
    if (end == number || *end || *id < 0 || *id >= n_ids || !content || content->type != JSON_STRING || !content->n)
        return error_set(e, ERR_MODEL, "tokenizer_config.json: 'added_tokens_decoder.%.*s' is not a token",
                         (int)(key->n < 40 ? key->n : 40), key->string);
    return 0;
}

struct token_list {
    struct json *v;
    uint32_t n, *slot, mask; /* slot [mask + 1]: 1 + the index of a token, by the hash of its content; 0: free */
    struct arena *arena;
};
static bool same_text(const struct json *a, const struct json *b) {
    return a && b && a->type == JSON_STRING && b->type == JSON_STRING && a->n == b->n &&
           !memcmp(a->string, b->string, a->n);
}
/* Returns the slot of a content, which is free if no token has it. */
static uint32_t *find_slot(const struct token_list *l, const struct json *content) {
    uint32_t at = (uint32_t)hash64(content->string, content->n, 0) & l->mask;
    while (l->slot[at] && !same_text(json_get(&l->v[l->slot[at] - 1], "content"), content)) at = (at + 1) & l->mask;
    return &l->slot[at];
}
static bool open_list(struct token_list *l, const struct json *own, uint32_t n_own, size_t n_most) {
    size_t slots = 2;
    while (slots < 2 * n_most) slots *= 2;
    l->v = arena_alloc(l->arena, n_most * sizeof *l->v);
    l->slot = arena_calloc(l->arena, slots, sizeof *l->slot);
    if (!l->v || !l->slot) return false;
    l->mask = (uint32_t)slots - 1;
    for (; l->n < n_own; l->n++) {
        l->v[l->n] = own[l->n];
        const struct json *content = json_get(&l->v[l->n], "content");
        if (!content || content->type != JSON_STRING) continue;
        uint32_t *slot = find_slot(l, content);
        if (!*slot) *slot = l->n + 1;
    }
    return true;
}
static struct json member_name(const char *s) {
    return (struct json){.type = JSON_STRING, .n = (uint32_t)strlen(s), .string = s};
}
/* Copies a token with further members, which replace its own. */
static int copy_token(const struct token_list *l, struct json *to, const struct json *token, uint32_t n,
                      const char *const *names, const struct json *values) {
    struct json *m = json_members(l->arena, token, n);
    if (!m) return ERR_MEMORY;
    for (uint32_t i = 0; i < n; i++) {
        m[2 * (token->n + i)] = member_name(names[i]);
        m[2 * (token->n + i) + 1] = values[i];
    }
    *to = (struct json){.type = JSON_OBJECT, .n = token->n + n, .items = m};
    return 0;
}
static struct json true_or(bool value) { return (struct json){.type = JSON_BOOL, .boolean = value}; }

/* A token of added_tokens_decoder: its flags replace those of the token in the file, if it has one. */
static int put_decoder_token(struct token_list *l, const struct json *key, struct error *e) {
    static const char *const names[] = {"id", "special", LOAD_SUPPLEMENT};
    int64_t id;
    const int rc = load_config_token(key, VOCAB_MAX_IDS, &id, e);
    if (rc) return rc;
    uint32_t *slot = find_slot(l, json_get(key + 1, "content"));
    const struct json *known = *slot ? &l->v[*slot - 1] : NULL;
    const bool special =
        json_bool(json_get(key + 1, "special"), false) || (known && json_bool(json_get(known, "special"), false));
    const struct json *id_known = json_get(known, "id");
    const struct json values[] = {id_known ? *id_known : (struct json){.type = JSON_INT, .integer = id},
                                  true_or(special), true_or(!known)};
    if (!known) *slot = ++l->n;
    return copy_token(l, &l->v[*slot - 1], key + 1, 3, names, values);
}
/* A token that has a name, such as eos_token: text becomes it as a whole. */
static int put_named_token(struct token_list *l, const struct json *token) {
    static const char *const names[] = {"content", "special", LOAD_SUPPLEMENT};
    const struct json *content = token && token->type == JSON_OBJECT ? json_get(token, "content") : token;
    if (!content || content->type != JSON_STRING || !content->n) return 0;
    uint32_t *slot = find_slot(l, content);
    if (*slot) return 0;
    *slot = ++l->n;
    const struct json none = {.type = JSON_OBJECT}, values[] = {*content, true_or(true), true_or(true)};
    return copy_token(l, &l->v[*slot - 1], token->type == JSON_OBJECT ? token : &none, 3, names, values);
}

int load_config_added(struct arena *arena, struct json *root, const struct json *config, struct error *e) {
    static const char *const named[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    enum { N_NAMED = sizeof named / sizeof *named };
    const struct json *own = json_get(root, "added_tokens"), *decoder = json_get(config, "added_tokens_decoder");
    if (!config || config->type != JSON_OBJECT || root->type != JSON_OBJECT) return 0;
    if (decoder && decoder->type != JSON_OBJECT) decoder = NULL;
    const uint32_t n_own = own && own->type == JSON_ARRAY ? own->n : 0;
    size_t n = (size_t)n_own + (decoder ? decoder->n : 0) + N_NAMED;
    for (int i = 0; i < 2; i++) n += json_get(config, lists[i]) ? json_get(config, lists[i])->n : 0;
    struct token_list l = {.arena = arena};
    struct json *members = json_members(arena, root, 1);
    if (!members || !open_list(&l, own ? own->items : NULL, n_own, n))
        return error_set(e, ERR_MEMORY, "no memory for the added tokens");
    int rc = 0;
    for (uint32_t i = 0; decoder && i < decoder->n && !rc; i++) rc = put_decoder_token(&l, &decoder->items[2 * i], e);
    for (int i = 0; i < N_NAMED && !rc; i++) rc = put_named_token(&l, json_get(config, named[i]));
    for (int i = 0; i < 2 && !rc; i++) {
        const struct json *list = json_get(config, lists[i]);
        for (uint32_t k = 0; list && list->type == JSON_ARRAY && k < list->n && !rc; k++)
            rc = put_named_token(&l, &list->items[k]);
    }
    if (rc) return rc == ERR_MEMORY ? error_set(e, rc, "no memory for the added tokens") : rc;
    members[2 * root->n] = member_name("added_tokens");
    members[2 * root->n + 1] = (struct json){.type = JSON_ARRAY, .n = l.n, .items = l.v};
    *root = (struct json){.type = JSON_OBJECT, .n = root->n + 1, .items = members};
    return 0;
}
