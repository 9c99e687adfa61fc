#include "engine/model/ngram_hash.h"

static bool is_prime(int64_t n) {
    for (int64_t d = 2; d * d <= n; d++)
        if (n % d == 0) return false;
    return n > 1;
}

int64_t ngram_hash_place(struct ngram_config *g, int nth, int64_t base) {
    const int hashes = config_ngram_hashes(g);
    int64_t prime = base - 1, rows = 0;
    for (int i = -nth * hashes; i < hashes; i++) {
        for (prime++; !is_prime(prime);) prime++;
        if (i < 0) continue;
        g->vocab[i] = (uint32_t)prime, g->offset[i] = (uint32_t)rows;
        rows += prime;
    }
    return rows;
}

/* --- numpy's default generator: PCG64 (O'Neill 2014, XSL-RR), seeded through SeedSequence; bounded numbers by Lemire's
 * method --- */

typedef unsigned __int128 wide;
struct generator {
    wide state, increment;
};

static uint64_t next(struct generator *g) {
    const wide multiplier = (wide)0x2360ED051FC65DA4u << 64 | 0x4385DF649FCCF645u;
    g->state = g->state * multiplier + g->increment;
    const uint64_t mixed = (uint64_t)(g->state >> 64) ^ (uint64_t)g->state;
    const unsigned turn = (unsigned)(g->state >> 122);
    return mixed >> turn | mixed << (-turn & 63);
}

static uint32_t scramble(uint32_t v, uint32_t *constant, uint32_t multiplier) {
    v ^= *constant;
    *constant *= multiplier;
    v *= *constant;
    return v ^ v >> 16;
}
static struct generator seeded(uint32_t seed) {
    enum { POOL = 4 };
    uint32_t pool[POOL], constant = 0x43B0D7E5u;
    uint64_t word[POOL] = {0};
    for (int i = 0; i < POOL; i++) pool[i] = scramble(i ? 0 : seed, &constant, 0x931E8875u);
    for (int from = 0; from < POOL; from++)
        for (int to = 0; to < POOL; to++) {
            if (from == to) continue;
            const uint32_t v = 0xCA01F9DDu * pool[to] - 0x4973F715u * scramble(pool[from], &constant, 0x931E8875u);
            pool[to] = v ^ v >> 16;
        }
    constant = 0x8B51F9DDu;
    for (int i = 0; i < 2 * POOL; i++)
        word[i / 2] |= (uint64_t)scramble(pool[i % POOL], &constant, 0x58F38DEDu) << 32 * (i % 2);
    struct generator g = {.increment = ((wide)word[2] << 64 | word[3]) << 1 | 1};
    next(&g);
    g.state += (wide)word[0] << 64 | word[1];
    next(&g);
    return g;
}
static uint64_t below(struct generator *g, uint64_t bound) {
    wide product = (wide)next(g) * bound;
    while ((uint64_t)product < -bound % bound) product = (wide)next(g) * bound;
    return (uint64_t)(product >> 64);
}

void ngram_hash_draw(struct ngram_config *g, uint32_t seed, int vocab) {
    struct generator random = seeded(seed);
    for (int i = 0; i < g->size; i++) g->multiplier[i] = 2 * below(&random, INT64_MAX / (uint64_t)vocab / 2) + 1;
}
