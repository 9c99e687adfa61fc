#include <string.h>

#include "base/hash.h"
#include "tokenizer/tokenizer_internal.h"

/* Tokens by id, and ids by the bytes of their tokens.
 *
 * Loading looks up half a million tokens; encoding looks up one per new word. A look-up should touch one cache line, so
 * short tokens (nearly all) are stored in the table itself. */
struct vocab_slot {
    uint32_t id_plus_1; /* id + 1, or 0 if unused */
    uint8_t n;          /* LONG_TOKEN: text holds offset in the pool and length, 4 bytes each */
    uint8_t literal;
    char text[26];
};
enum { LONG_TOKEN = 255 };

uint64_t vocab_hash(const char *s, size_t n) {
    uint64_t a = 0, b = 0;
    if (n > 16) return hash64(s, n, 0);
    if (n >= 8) {
        memcpy(&a, s, 8);
        memcpy(&b, s + n - 8, 8);
    } else if (n >= 4) {
        uint32_t x, y;
        memcpy(&x, s, 4);
        memcpy(&y, s + n - 4, 4);
        a = x, b = y;
    } else if (n)
        a = (uint64_t)(unsigned char)s[0] << 16 | (uint64_t)(unsigned char)s[n / 2] << 8 | (unsigned char)s[n - 1];
    uint64_t h = (a ^ n * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
    h = (h ^ h >> 32 ^ b) * 0xC2B2AE3D27D4EB4Fu;
    return h ^ h >> 29;
}

/* Look-ups hit random places of a table of megabytes: 2 MB pages avoid TLB misses and page faults. */
enum { HUGE_PAGE_TABLE = 2 << 20 };
void *vocab_table_alloc(size_t size) {
    return size >= HUGE_PAGE_TABLE ? mem_pages(size, MEM_HUGE) : mem_calloc(1, size);
}
void vocab_table_free(void *p, size_t size) {
    if (size >= HUGE_PAGE_TABLE) mem_pages_free(p, size);
    else mem_free(p);
}

int merges_init(struct merges *m, size_t n) {
    size_t slots = 16;
    while (slots < n + n / 2) slots *= 2;
    if (!(m->slots = vocab_table_alloc(slots * sizeof *m->slots))) return ERR_MEMORY;
    m->mask = (uint32_t)(slots - 1);
    return 0;
}
void merges_free(struct merges *m) { vocab_table_free(m->slots, ((size_t)m->mask + 1) * sizeof *m->slots); }

int vocab_init(struct vocab *v, size_t n_pieces, size_t n_bytes) {
    size_t slots = 64;
    while (slots < n_pieces + n_pieces / 2) slots *= 2;
    v->slots = vocab_table_alloc(slots * sizeof *v->slots);
    v->mask = (uint32_t)(slots - 1);
    v->pool = mem_alloc(n_bytes);
    v->cap = n_bytes;
    return v->slots && v->pool ? 0 : ERR_MEMORY;
}

void vocab_free(struct vocab *v) {
    mem_free(v->pool);
    mem_free(v->tokens);
    vocab_table_free(v->slots, ((size_t)v->mask + 1) * sizeof *v->slots);
    *v = (struct vocab){0};
}

static bool slot_matches(const struct vocab *v, const struct vocab_slot *q, const char *s, size_t n, bool literal) {
    if (q->literal != literal) return false;
    if (q->n != LONG_TOKEN) return q->n == n && !memcmp(q->text, s, n);
    uint32_t place[2];
    memcpy(place, q->text, sizeof place);
    return place[1] == n && !memcmp(v->pool + place[0], s, n);
}

void vocab_prefetch(const struct vocab *v, uint64_t hash) { __builtin_prefetch(&v->slots[hash & v->mask]); }

int64_t vocab_find_hashed(const struct vocab *v, uint64_t hash, const char *s, size_t n, bool literal) {
    for (uint32_t i = (uint32_t)hash & v->mask; v->slots[i].id_plus_1; i = (i + 1) & v->mask)
        if (slot_matches(v, &v->slots[i], s, n, literal)) return (int64_t)v->slots[i].id_plus_1 - 1;
    return -1;
}
int64_t vocab_find(const struct vocab *v, const char *s, size_t n, bool literal) {
    return vocab_find_hashed(v, vocab_hash(s, n), s, n, literal);
}

static int append_pool(struct vocab *v, const char *s, size_t n) {
    if (v->used + n > UINT32_MAX || mem_grow(&v->pool, &v->cap, v->used + n, 1)) return ERR_MEMORY;
    memcpy(v->pool + v->used, s, n);
    v->used += n;
    return 0;
}

static int grow_ids(struct vocab *v, uint32_t id) {
    if (id < v->n_ids) return 0;
    size_t cap = v->cap_ids;
    if (mem_grow(&v->tokens, &cap, (size_t)id + 1, sizeof *v->tokens)) return ERR_MEMORY;
    v->cap_ids = (uint32_t)cap;
    memset(v->tokens + v->n_ids, 0, ((size_t)id + 1 - v->n_ids) * sizeof *v->tokens);
    v->n_ids = id + 1;
    return 0;
}

int vocab_set_bytes(struct vocab *v, uint32_t id, const char *s, size_t n, uint32_t flags) {
    if (grow_ids(v, id) || append_pool(v, s, n)) return ERR_MEMORY;
    v->tokens[id] = (struct vocab_token){(uint32_t)(v->used - n), (uint32_t)n, flags | TOKEN_DEFINED};
    return 0;
}

int vocab_add(struct vocab *v, uint32_t id, uint64_t hash, const char *s, size_t n, bool literal) {
    uint32_t i = (uint32_t)hash & v->mask;
    for (; v->slots[i].id_plus_1; i = (i + 1) & v->mask)
        if (slot_matches(v, &v->slots[i], s, n, literal)) return VOCAB_DUPLICATE_TOKEN;
    if (id < v->n_ids && v->tokens[id].flags) return VOCAB_DUPLICATE_ID;
    if (vocab_set_bytes(v, id, s, n, literal ? TOKEN_LITERAL : 0)) return ERR_MEMORY;
    struct vocab_slot *q = &v->slots[i];
    q->id_plus_1 = id + 1;
    q->literal = literal;
    if (n <= sizeof q->text) {
        q->n = (uint8_t)n;
        memcpy(q->text, s, n);
    } else {
        uint32_t place[2] = {v->tokens[id].pool_offset, (uint32_t)n};
        q->n = LONG_TOKEN;
        memcpy(q->text, place, sizeof place);
    }
    return 0;
}

/* ---- bytes as characters ----
 * GPT-2 writes every byte as a visible character: those visible in Latin-1 as themselves, the others from U+0100 on. */

static bool is_visible(unsigned b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; }

size_t vocab_char_of_byte(unsigned char b, char out[4]) {
    if (is_visible(b)) return utf8_put(b, out);
    uint32_t k = b <= 32 ? b : b == 173 ? 67u : b - 127u + 33u; /* number of invisible bytes below b */
    return utf8_put(256 + k, out);
}

long vocab_bytes_of_chars(const char *s, size_t n, char *out) {
    char *o = out;
    for (const char *end = s + n; s < end;) {
        unsigned char b = (unsigned char)*s;
        uint32_t c = b < 0x80 ? (s++, b) : utf8_next(&s);
        if (c < 256) {
            if (!is_visible(c)) return -1;
        } else if (c < 256 + 68) {
            uint32_t k = c - 256;
            c = k <= 32 ? k : k == 67 ? 173u : k - 33 + 127;
        } else return -1;
        *o++ = (char)c;
    }
    return o - out;
}
