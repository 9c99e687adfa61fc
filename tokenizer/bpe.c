#include <stdio.h>
#include <string.h>

#include "tokenizer/tokenizer_internal.h"

static const uint32_t NO_ID = UINT32_MAX;

/* --- one word --------------------------------------------------------------------------------- */

struct symbol {
    uint32_t id;
    uint32_t begin;      /* byte offset in the word */
    uint32_t prev, next; /* NO_ID: none */
};

/* Looks up the merge of symbols a and b, whose bytes are s[0..n). False: no merge. */
static inline bool find_merge(const struct tokenizer *t, uint32_t a, uint32_t b, const char *s, size_t n,
                              uint32_t *rank, uint32_t *id) {
    if (t->bpe.ranks_by_bytes) {
        int64_t k = vocab_find(&t->vocab, s, n, false);
        if (k < 0) return false;
        *rank = *id = (uint32_t)k;
        return true;
    }
    return merges_find(&t->bpe.merges, a, b, rank, id);
}

/* Short words: search all pairs for the lowest rank. */
enum { SHORT_WORD = 32 };
static size_t merge_short_word(const struct tokenizer *t, struct symbol *v, size_t n, const char *s, size_t len) {
    uint32_t rank[SHORT_WORD], id[SHORT_WORD];
#define PAIR(i) \
    if (!find_merge(t, v[i].id, v[(i) + 1].id, s + v[i].begin, ((i) + 2 < n ? v[(i) + 2].begin : len) - v[i].begin, \
                    &rank[i], &id[i])) \
    rank[i] = NO_ID
    for (size_t i = 0; i + 1 < n; i++) PAIR(i);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            if (rank[i] < rank[best]) best = i;
        if (rank[best] == NO_ID) break;
        v[best].id = id[best];
        n--;
        for (size_t i = best + 1; i < n; i++) v[i] = v[i + 1], rank[i - 1] = rank[i], id[i - 1] = id[i];
        if (best + 1 < n) PAIR(best);
        if (best > 0) PAIR(best - 1);
    }
#undef PAIR
    return n;
}

/* Long words: a heap of pairs over a linked list, n log n. A heap entry is stale if the rank of its pair has
 * changed. */
static void sift_down(uint64_t *h, size_t n, size_t i) {
    uint64_t x = h[i];
    for (size_t c; (c = 2 * i + 1) < n; i = c) {
        if (c + 1 < n && h[c + 1] < h[c]) c++;
        if (x <= h[c]) break;
        h[i] = h[c];
    }
    h[i] = x;
}

static int merge_long_word(struct encoder *x, struct symbol *v, size_t *count, const char *s, size_t len,
                           struct error *e) {
    const struct tokenizer *t = x->t;
    size_t n = *count, m = 0;
    if (mem_grow(&x->heap, &x->cap_heap, 2 * n, sizeof(uint64_t)))
        return error_set(e, ERR_MEMORY, "no memory to tokenize %zu bytes", len);
    uint64_t *h = x->heap;
    uint32_t rank, id;
    for (size_t i = 0; i < n; i++) {
        v[i].prev = i ? (uint32_t)i - 1 : NO_ID;
        v[i].next = i + 1 < n ? (uint32_t)i + 1 : NO_ID;
        size_t end = i + 2 < n ? v[i + 2].begin : len;
        if (i + 1 < n && find_merge(t, v[i].id, v[i + 1].id, s + v[i].begin, end - v[i].begin, &rank, &id))
            h[m++] = (uint64_t)rank << 32 | i;
    }
    for (size_t i = m / 2; i-- > 0;) sift_down(h, m, i);
    while (m) {
        uint64_t top = h[0];
        h[0] = h[--m];
        if (m) sift_down(h, m, 0);
        uint32_t i = (uint32_t)top, j = v[i].next, k;
        if (v[i].id == NO_ID || j == NO_ID) continue;
        k = v[j].next;
        if (!find_merge(t, v[i].id, v[j].id, s + v[i].begin, (k == NO_ID ? len : v[k].begin) - v[i].begin, &rank,
                        &id) ||
            rank != top >> 32)
            continue;
        v[i].id = id;
        v[i].next = k;
        v[j].id = NO_ID;
        if (k != NO_ID) v[k].prev = i;
        for (int side = 0; side < 2; side++) { /* one removed symbol adds at most two pairs, one with each neighbour */
            uint32_t a = side ? i : v[i].prev;
            if (a == NO_ID || v[a].next == NO_ID) continue;
            uint32_t b = v[a].next, c = v[b].next;
            if (!find_merge(t, v[a].id, v[b].id, s + v[a].begin, (c == NO_ID ? len : v[c].begin) - v[a].begin, &rank,
                            &id))
                continue;
            uint64_t y = (uint64_t)rank << 32 | a;
            size_t p = m++;
            while (p && h[(p - 1) / 2] > y) h[p] = h[(p - 1) / 2], p = (p - 1) / 2;
            h[p] = y;
        }
    }
    size_t out = 0;
    for (uint32_t i = 0; i != NO_ID; i = v[i].next) v[out++].id = v[i].id;
    *count = out;
    return 0;
}

/* ---- first symbols ----
 * A character in the vocabulary starts as its id. Any other character starts as its bytes (byte_fallback), as the
 * unknown token (runs may fuse), or is dropped. As in the reference, the unknown token is added only before the next
 * known character. */

struct symbol_list {
    struct symbol *v;
    size_t n, unk_at;
    bool unk_pending;
};
static void add_symbol(struct symbol_list *b, uint32_t id, size_t at) {
    b->v[b->n++] = (struct symbol){.id = id, .begin = (uint32_t)at};
}

static void add_unknown(const struct tokenizer *t, struct symbol_list *b, const char *s, size_t n, size_t at) {
    if (t->bpe.byte_fallback) {
        size_t k = 0;
        while (k < n && t->bpe.fallback[(unsigned char)s[k]] >= 0) k++;
        if (k == n) {
            for (k = 0; k < n; k++) add_symbol(b, (uint32_t)t->bpe.fallback[(unsigned char)s[k]], at);
            return;
        }
    }
    if (t->bpe.unk < 0) return;
    if (b->unk_pending && !t->bpe.fuse_unk) add_symbol(b, (uint32_t)t->bpe.unk, b->unk_at);
    if (!b->unk_pending || !t->bpe.fuse_unk) b->unk_at = at;
    b->unk_pending = true;
}
static void add_known(const struct tokenizer *t, struct symbol_list *b, uint32_t id, size_t at) {
    if (b->unk_pending) add_symbol(b, (uint32_t)t->bpe.unk, b->unk_at);
    b->unk_pending = false;
    add_symbol(b, id, at);
}

static int add_chars(struct encoder *x, struct symbol_list *b, const char *s, size_t n, struct error *e) {
    const struct tokenizer *t = x->t;
    for (size_t i = 0, k; i < n; i += k) {
        k = utf8_size((unsigned char)s[i]);
        const char *c = s + i;
        size_t len = k;
        bool prefix = i && t->bpe.prefix, suffix = i + k == n && t->bpe.suffix;
        if (prefix || suffix) {
            x->text.len = 0;
            if (prefix) buf_str(&x->text, t->bpe.prefix);
            buf_add(&x->text, s + i, k);
            if (suffix) buf_str(&x->text, t->bpe.suffix);
            if (x->text.failed) return error_set(e, ERR_MEMORY, "no memory to tokenize");
            c = x->text.data;
            len = x->text.len;
        }
        int64_t id = vocab_find(&t->vocab, c, len, false);
        if (id >= 0) add_known(t, b, (uint32_t)id, i);
        else add_unknown(t, b, c, len, i);
    }
    return 0;
}

static void add_bytes(const struct tokenizer *t, struct symbol_list *b, const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        char shown[4];
        if (t->bpe.byte_id[c] >= 0) add_known(t, b, (uint32_t)t->bpe.byte_id[c], i);
        else add_unknown(t, b, shown, vocab_char_of_byte(c, shown), i);
    }
}

static int encode_word(struct encoder *x, const char *s, size_t n, struct ids *out, struct error *e) {
    const struct tokenizer *t = x->t;
    if (n >= NO_ID / 8) return error_set(e, ERR_RUNTIME, "a word of %zu bytes is too long to tokenize", n);
    /* Upper bound of symbols per byte of the word. More than one where the prefix or suffix falls back to bytes. */
    size_t symbols_per_byte = t->bpe.is_byte_level && t->bpe.byte_fallback ? 2 : 1;
    if (t->bpe.prefix) symbols_per_byte += 2 * strlen(t->bpe.prefix);
    if (t->bpe.suffix) symbols_per_byte += strlen(t->bpe.suffix);
    struct symbol on_stack[SHORT_WORD];
    struct symbol_list b = {.v = on_stack};
    if (n * symbols_per_byte > SHORT_WORD) {
        if (mem_grow(&x->symbols, &x->cap_symbols, n * symbols_per_byte + 8, sizeof *b.v)) goto no_memory;
        b.v = x->symbols;
    }
    if (t->bpe.is_byte_level) add_bytes(t, &b, s, n);
    else {
        int rc = add_chars(x, &b, s, n, e);
        if (rc) return rc;
    }
    if (b.unk_pending) add_symbol(&b, (uint32_t)t->bpe.unk, b.unk_at);
    if (b.n <= SHORT_WORD) b.n = merge_short_word(t, b.v, b.n, s, n);
    else {
        int rc = merge_long_word(x, b.v, &b.n, s, n, e);
        if (rc) return rc;
    }
    if (mem_grow(&out->data, &out->cap, out->n + b.n, sizeof *out->data)) goto no_memory;
    for (size_t i = 0; i < b.n; i++) out->data[out->n++] = (int32_t)b.v[i].id;
    return 0;
no_memory:
    return error_set(e, ERR_MEMORY, "no memory to tokenize %zu bytes", n);
}

/* ---- word cache ----
 * One cache line holds a word and its ids. A new word replaces the old one. */

enum { CACHED_IDS = 9, CACHED_BYTES = 26 }; /* as many as fit */
struct cached_word {
    uint8_t n, n_ids; /* n is 0 if unused */
    char text[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
};
_Static_assert(sizeof(struct cached_word) == 64, "one cache line");
enum { CACHE_BITS = 15 };

static int encode_cached(struct encoder *x, const char *s, size_t n, struct ids *out, struct error *e) {
    const struct tokenizer *t = x->t;
    if (!n) return 0;
    struct cached_word *c = NULL;
    uint64_t hash = vocab_hash(s, n);
    if (n <= CACHED_BYTES) {
        if (!x->cache && !(x->cache = mem_calloc(1u << CACHE_BITS, sizeof *x->cache)))
            return error_set(e, ERR_MEMORY, "no memory to tokenize");
        c = &x->cache[hash >> (64 - CACHE_BITS) ^ (hash & ((1u << CACHE_BITS) - 1))];
        if (c->n == n && !memcmp(c->text, s, n)) {
            if (out->n + CACHED_IDS > out->cap &&
                mem_grow(&out->data, &out->cap, out->n + CACHED_IDS, sizeof *out->data))
                return error_set(e, ERR_MEMORY, "no memory for the ids");
            memcpy(out->data + out->n, c->ids, sizeof c->ids); /* all of them: a copy of fixed size is faster */
            out->n += c->n_ids;
            return 0;
        }
    }
    size_t from = out->n;
    int64_t word_id = t->bpe.ignore_merges ? vocab_find_hashed(&t->vocab, hash, s, n, false) : -1;
    if (word_id >= 0) {
        if (mem_grow(&out->data, &out->cap, out->n + 1, sizeof *out->data))
            return error_set(e, ERR_MEMORY, "no memory for the ids");
        out->data[out->n++] = (int32_t)word_id;
    } else {
        int rc = encode_word(x, s, n, out, e);
        if (rc) return rc;
    }
    if (c && out->n > from && out->n - from <= CACHED_IDS) {
        c->n = (uint8_t)n;
        memcpy(c->text, s, n);
        c->n_ids = (uint8_t)(out->n - from);
        memcpy(c->ids, out->data + from, c->n_ids * sizeof *c->ids);
    }
    return 0;
}

/* SentencePiece vocabularies have no pre-tokenizer, so the whole text is one word. If no merge crosses the start of a
 * word (bpe.split_at_marks), encoding the words separately gives the same ids. */
int bpe_encode(struct encoder *x, const char *s, size_t n, struct ids *out, struct error *e) {
    if (x->t->unigram.scores) return unigram_encode(x, s, n, out, e);
    if (!x->t->bpe.split_at_marks) return encode_cached(x, s, n, out, e);
    for (size_t from = 0; from < n;) {
        size_t at = from;
        while (at + 3 <= n && !memcmp(s + at, "\xE2\x96\x81", 3)) at += 3;
        const char *next = at < n ? memmem(s + at, n - at, "\xE2\x96\x81", 3) : NULL;
        size_t to = next ? (size_t)(next - s) : n;
        int rc = encode_cached(x, s + from, to - from, out, e);
        if (rc) return rc;
        from = to;
    }
    return 0;
}
