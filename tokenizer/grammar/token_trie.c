#include "tokenizer/grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "engine/base/mem.h"

enum { MAX_TOKEN = 4096 }; /* bytes; longer tokens are never allowed */

struct entry {
    const char *s;
    uint32_t n;
    int32_t id;
};

static int compare_entries(const void *x, const void *y) {
    const struct entry *a = x, *b = y;
    const int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return c ? c : a->n != b->n ? (a->n > b->n) - (a->n < b->n) : (a->id > b->id) - (a->id < b->id);
}

/* Collects the tokens in the order of their bytes. *bytes: their total size. Returns their number. */
static uint32_t collect(const struct tokenizer *t, struct entry *out, size_t *bytes) {
    uint32_t n = 0;
    *bytes = 0;
    for (int id = 0; id < tokenizer_n_ids(t); id++) {
        size_t size = 0;
        bool special = false;
        const char *s = tokenizer_token_bytes(t, id, &size, &special);
        if (!s || special || !size || size > MAX_TOKEN) continue;
        out[n++] = (struct entry){s, (uint32_t)size, id};
        *bytes += size;
    }
    qsort(out, n, sizeof *out, compare_entries);
    return n;
}

static void close_nodes(struct token_trie *t, uint32_t *path, uint32_t from, uint32_t to) {
    for (uint32_t k = to; k > from; k--) t->end[path[k]] = t->n_nodes;
}

static void build(struct token_trie *t, const struct entry *v, uint32_t n, uint32_t *path) {
    uint32_t depth = 0; /* path[0..depth]: the nodes of the entry before */
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        while (i && k < v[i].n && k < v[i - 1].n && v[i].s[k] == v[i - 1].s[k]) k++;
        close_nodes(t, path, k, depth);
        for (depth = k; depth < v[i].n; depth++) {
            const uint32_t node = t->n_nodes++;
            path[depth + 1] = node;
            t->byte[node] = (uint8_t)v[i].s[depth];
            t->depth[node] = (uint16_t)(depth + 1);
            t->token[node] = -1;
        }
        const uint32_t node = path[depth];
        t->same[v[i].id] = t->token[node];
        t->token[node] = v[i].id;
        if (depth > t->longest) t->longest = depth;
    }
    close_nodes(t, path, 0, depth);
    t->end[0] = t->n_nodes;
}

int token_trie_open(struct token_trie **out, const struct tokenizer *tokenizer, struct error *e) {
    *out = NULL;
    if (tokenizer_joins_with_space(tokenizer))
        return error_set(e, ERR_MODEL, "answers cannot be constrained: this model's tokenizer puts a space between any two tokens");
    const int n_ids = tokenizer_n_ids(tokenizer);
    struct token_trie *t = *out = mem_calloc(1, sizeof *t);
    struct entry *v = mem_alloc(((size_t)n_ids + 1) * sizeof *v);
    uint32_t *path = mem_calloc(MAX_TOKEN + 1, sizeof *path);
    size_t bytes = 0;
    const uint32_t n = v ? collect(tokenizer, v, &bytes) : 0;
    if (t && v && path) {
        t->tokenizer = tokenizer;
        t->n_ids = n_ids;
        t->n_nodes = 1;
        t->byte = mem_calloc(bytes + 1, sizeof *t->byte);
        t->depth = mem_calloc(bytes + 1, sizeof *t->depth);
        t->end = mem_calloc(bytes + 1, sizeof *t->end);
        t->token = mem_calloc(bytes + 1, sizeof *t->token);
        t->same = mem_calloc((size_t)n_ids + 1, sizeof *t->same);
    }
    const bool ok = t && v && path && t->byte && t->depth && t->end && t->token && t->same;
    if (ok) {
        t->token[0] = -1;
        build(t, v, n, path);
    } else token_trie_close(out);
    mem_free(v);
    mem_free(path);
    return ok ? 0 : error_set(e, ERR_MEMORY, "no memory for the tokens of the vocabulary");
}

void token_trie_close(struct token_trie **at) {
    struct token_trie *t = *at;
    *at = NULL;
    if (!t) return;
    mem_free(t->byte);
    mem_free(t->depth);
    mem_free(t->end);
    mem_free(t->token);
    mem_free(t->same);
    mem_free(t);
}
