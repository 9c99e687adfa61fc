#include "tokenizer/grammar/completion.h"

#include <string.h>

#include "base/mem.h"

enum { MAX_BYTES = 1 << 14 }; /* Completions of more bytes are not followed. */

/* Returns the child of a node with this byte, or 0. */
static uint32_t child(const struct trie_nodes *t, uint32_t node, uint8_t byte) {
    for (uint32_t i = node + 1; i < t->end[node]; i = t->end[i])
        if (t->byte[i] == byte) return i;
    return 0;
}

/* Returns the tokens of the completion of s if its first bytes are the name of a token, else UINT32_MAX. */
static uint32_t after_named(const struct completions *c, const struct token_trie *t, state_id s) {
    int32_t id = 0;
    for (int i = 0; i < GRAMMAR_TOKEN_BYTES; i++, s = c->v[s].next) {
        if (!c->v[s].next) return UINT32_MAX;
        if (i) id |= (c->v[s].byte & 0x7F) << 7 * (i - 1);
    }
    return id < t->n_ids ? c->v[s].tokens : UINT32_MAX;
}

/* Returns the fewest tokens for the completion of s, whose later states are known. */
static uint32_t fewest_tokens(const struct completions *c, const struct token_trie *t, state_id s) {
    uint32_t least = UINT32_MAX, node = 0;
    if (c->v[s].byte == GRAMMAR_TOKEN_MARK) least = after_named(c, t, s);
    else
        for (const struct completion *p = &c->v[s]; p->next && (node = child(&t->all, node, p->byte));
             p = &c->v[p->next])
            if (t->all.token[node] >= 0 && c->v[p->next].tokens < least) least = c->v[p->next].tokens;
    return least < UINT32_MAX ? least + 1 : least;
}

static int grow(struct completions *c, state_id s) {
    const size_t old_cap = c->cap;
    if (s < old_cap) return 0;
    if (mem_grow(&c->v, &c->cap, (size_t)s + 1, sizeof *c->v)) return ERR_MEMORY;
    memset(c->v + old_cap, 0, (c->cap - old_cap) * sizeof *c->v);
    return 0;
}

int completion_tokens(struct completions *c, struct automaton *a, const struct token_trie *t, state_id s,
                      uint32_t *tokens) {
    size_t n = 0;
    const state_id first = s;
    *tokens = UINT32_MAX;
    if (automaton_missing(a, s) > MAX_BYTES || (automaton_is_crowded(a) && !(s < c->cap && c->v[s].is_known))) return 0;
    while (s) { /* follows the completion to a known state, and computes the tokens from there back */
        struct completion p = {.is_known = true, .tokens = UINT32_MAX};
        if (grow(c, s) || mem_grow(&c->path, &c->cap_path, n + 1, sizeof *c->path)) return ERR_MEMORY;
        if (c->v[s].is_known) break;
        if (automaton_is_complete(a, s)) p.tokens = 0;
        else if (automaton_shortest(a, s, &p.byte)) p.next = automaton_step(a, s, p.byte);
        /* the limit of levels */
        if (p.next && automaton_missing(a, p.next) >= automaton_missing(a, s)) p.next = STATE_DEAD;
        c->v[s] = p;
        c->path[n++] = s;
        s = p.next;
    }
    while (n-- > 0)
        if (c->v[c->path[n]].next) c->v[c->path[n]].tokens = fewest_tokens(c, t, c->path[n]);
    *tokens = c->v[first].tokens;
    return 0;
}

void completion_drop(struct completions *c) {
    mem_free(c->v);
    mem_free(c->path);
    *c = (struct completions){0};
}
