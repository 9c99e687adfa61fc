#include "tokenizer/grammar/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "tokenizer/grammar/grammar.h"

enum { MAX_TOKEN = 4096 }; /* bytes; longer tokens are never allowed */

struct entry {
    const char *s;
    uint32_t n;
    int32_t id;
    bool is_plain, is_tagged_plain;
};

static int compare_entries(const void *x, const void *y) {
    const struct entry *a = x, *b = y;
    const int c = memcmp(a->s, b->s, a->n < b->n ? a->n : b->n);
    return c ? c : a->n != b->n ? (a->n > b->n) - (a->n < b->n) : (a->id > b->id) - (a->id < b->id);
}

/* Returns the number of characters of a plain token, or 0. */
static uint32_t plain_characters(const char *s, size_t n) {
    uint32_t count = 0;
    if (utf8_valid(s, n) != n) return 0;
    for (const char *end = s + n; s < end && count <= TRIE_PLAIN; count++) {
        const uint32_t c = utf8_next(&s);
        if (c < ' ' || c == '"' || c == '\\' || (c >= 0x7F && c < 0xA0)) return 0;
    }
    return count <= TRIE_PLAIN ? count : 0;
}

/* Collects the tokens in the order of their bytes, and marks the plain ones. *bytes: their total size. Returns their
 * number. */
static uint32_t collect(struct token_trie *t, struct entry *out, size_t *bytes) {
    uint32_t n = 0;
    *bytes = 0;
    for (int id = 0; id < t->n_ids; id++) {
        size_t size = 0;
        bool special = false;
        const char *s = tokenizer_token_bytes(t->tokenizer, id, &size, &special);
        if (!s || special || !size || size > MAX_TOKEN || memchr(s, GRAMMAR_TOKEN_MARK, size)) continue;
        const uint32_t characters = plain_characters(s, size);
        const bool tagged = characters && !memchr(s, '<', size);
        out[n++] = (struct entry){s, (uint32_t)size, id, characters > 0, tagged};
        if (tagged) t->tagged_plain[id >> 6] |= 1ull << (id & 63);
        *bytes += size;
        for (uint32_t k = characters; characters && k <= TRIE_PLAIN; k++) t->plain[k][id >> 6] |= 1ull << (id & 63);
    }
    qsort(out, n, sizeof *out, compare_entries);
    return n;
}

static void close_nodes(struct trie_nodes *t, uint32_t *path, uint32_t from, uint32_t to) {
    for (uint32_t k = to; k > from; k--) t->end[path[k]] = t->n;
}

/* Builds a trie of all entries, or of those that are not plain in the one sense or the other. */
enum trie_part { PART_ALL, PART_OTHER, PART_TAGGED_OTHER };
static void build(struct trie_nodes *t, const struct entry *v, uint32_t n, enum trie_part part, int32_t *same,
                  uint32_t *longest) {
    uint32_t depth = 0, path[MAX_TOKEN + 1] = {0}; /* path[0..depth]: the nodes of the entry before */
    const struct entry *previous = NULL;
    t->n = 1;
    t->token[0] = -1;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t k = 0;
        if ((part == PART_OTHER && v[i].is_plain) || (part == PART_TAGGED_OTHER && v[i].is_tagged_plain)) continue;
        while (previous && k < v[i].n && k < previous->n && v[i].s[k] == previous->s[k]) k++;
        previous = &v[i];
        close_nodes(t, path, k, depth);
        for (depth = k; depth < v[i].n; depth++) {
            const uint32_t node = path[depth + 1] = t->n++;
            t->byte[node] = (uint8_t)v[i].s[depth];
            t->depth[node] = (uint16_t)(depth + 1);
            t->token[node] = -1;
        }
        const uint32_t node = path[depth];
        same[v[i].id] = t->token[node]; /* the same in all tries: equal tokens are plain or not together */
        t->token[node] = v[i].id;
        if (depth > *longest) *longest = depth;
    }
    close_nodes(t, path, 0, depth);
    t->end[0] = t->n;
}

static bool alloc_nodes(struct trie_nodes *t, size_t n) {
    t->byte = mem_calloc(n + 1, sizeof *t->byte);
    t->depth = mem_calloc(n + 1, sizeof *t->depth);
    t->end = mem_calloc(n + 1, sizeof *t->end);
    t->token = mem_calloc(n + 1, sizeof *t->token);
    return t->byte && t->depth && t->end && t->token;
}
static void free_nodes(struct trie_nodes *t) {
    mem_free(t->byte);
    mem_free(t->depth);
    mem_free(t->end);
    mem_free(t->token);
}

int token_trie_open(struct token_trie **out, const struct tokenizer *tokenizer, struct error *e) {
    *out = NULL;
    if (tokenizer_joins_with_space(tokenizer))
        return error_set(e, ERR_MODEL,
                         "answers cannot be constrained: this model's tokenizer puts a space between any two tokens");
    const size_t n_ids = (size_t)tokenizer_n_ids(tokenizer);
    struct token_trie *t = *out = mem_calloc(1, sizeof *t);
    struct entry *v = mem_alloc((n_ids + 1) * sizeof *v);
    bool ok = t && v && (t->same = mem_calloc(n_ids + 1, sizeof *t->same));
    ok = ok && (t->tagged_plain = mem_calloc(n_ids / 64 + 1, sizeof *t->tagged_plain));
    for (int k = 0; k <= TRIE_PLAIN && ok; k++)
        ok = (t->plain[k] = mem_calloc(n_ids / 64 + 1, sizeof **t->plain)) != NULL;
    size_t bytes = 0;
    uint32_t n = 0;
    if (ok) {
        t->tokenizer = tokenizer;
        t->n_ids = (int)n_ids;
        n = collect(t, v, &bytes);
        ok = alloc_nodes(&t->all, bytes) && alloc_nodes(&t->other, bytes) && alloc_nodes(&t->tagged_other, bytes);
    }
    if (ok) {
        build(&t->other, v, n, PART_OTHER, t->same, &t->longest);
        build(&t->tagged_other, v, n, PART_TAGGED_OTHER, t->same, &t->longest);
        build(&t->all, v, n, PART_ALL, t->same, &t->longest);
    } else token_trie_close(out);
    mem_free(v);
    return ok ? 0 : error_set(e, ERR_MEMORY, "no memory for the tokens of the vocabulary");
}

void token_trie_close(struct token_trie **at) {
    struct token_trie *t = *at;
    *at = NULL;
    if (!t) return;
    free_nodes(&t->all);
    free_nodes(&t->other);
    free_nodes(&t->tagged_other);
    mem_free(t->tagged_plain);
    for (int k = 0; k <= TRIE_PLAIN; k++) mem_free(t->plain[k]);
    mem_free(t->same);
    mem_free(t);
}
