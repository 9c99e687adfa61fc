#pragma once
/* A hash table from pairs of numbers: merges of BPE by the ids of their tokens, edges of a trie by node and byte. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct merge {
    uint32_t a_plus_1, b, rank, id; /* a_plus_1: 0 in a free slot */
};
struct merges {
    struct merge *slots;
    uint32_t mask;
};
/* In vocab.c. n: the most pairs to come (the table does not grow). 0 or ERR_MEMORY. */
int merges_init(struct merges *m, size_t n);
void merges_free(struct merges *m);

static inline uint32_t merges_hash(uint32_t a, uint32_t b) {
    uint64_t h = ((uint64_t)a << 32 | b) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(h ^ h >> 32) * 0x85EBCA6Bu >> 3;
}
static inline struct merge *merges_slot(const struct merges *m, uint32_t a, uint32_t b) {
    uint32_t i = merges_hash(a, b) & m->mask;
    while (m->slots[i].a_plus_1 && (m->slots[i].a_plus_1 != a + 1 || m->slots[i].b != b)) i = (i + 1) & m->mask;
    return &m->slots[i];
}
/* a repeated pair replaces the earlier one */
static inline void merges_add(struct merges *m, uint32_t a, uint32_t b, uint32_t rank, uint32_t id) {
    *merges_slot(m, a, b) = (struct merge){a + 1, b, rank, id};
}
/* False: no such pair, and *rank and *id stay. */
static inline bool merges_find(const struct merges *m, uint32_t a, uint32_t b, uint32_t *rank, uint32_t *id) {
    const struct merge *k = merges_slot(m, a, b);
    if (!k->a_plus_1) return false;
    *rank = k->rank, *id = k->id;
    return true;
}
static inline void merges_prefetch(const struct merges *m, uint32_t a, uint32_t b) {
    __builtin_prefetch(&m->slots[merges_hash(a, b) & m->mask]);
}
