#include "tokenizer/grammar/matcher.h"

#include <string.h>

#include "base/mem.h"
#include "tokenizer/grammar/completion.h"

/* Masks are computed by walking the trie with the automaton. A full walk visits the whole vocabulary, so the walks of
 * lexemes (strings, numbers) are stored and shared: the mask of a state is the union of stored masks of its lexemes and
 * of short walks after the tokens in which a lexeme ends. */

enum {
    MAX_CACHE = 96 << 20, /* bytes of masks, and of the automaton; past it all is dropped */
    /* stacks that the first tokens of an answer may take, and each further one on average: about 0.2 s and
     * 0.5 ms; the largest of our tests take 60,000 and 300 */
    STACKS_FIRST = 2000000,
    STACKS_EACH = 5000
};

struct stored_walk { /* walk of one state */
    uint64_t *bits;
    uint32_t *ends; /* [n_ends] nodes of the trie at which the state is complete and that have children */
    size_t n_ends;
    const struct trie_nodes *nodes; /* the trie whose nodes are in ends */
};
struct matcher {
    struct automaton *automaton;
    const struct token_trie *trie;
    state_id state;
    struct stored_walk *upper_walks; /* [cap_upper] by state, of states that are upper parts */
    struct stored_walk *masks;       /* [cap_masks] by state: bits is the mask of the whole state */
    size_t cap_upper, cap_masks, words, bytes;
    struct path_state { /* along the trie */
        state_id state;
        const state_id *row; /* its transitions */
    } * path;                /* [longest + 2] */
    uint64_t *limited;       /* [words] mask of the last call with a limit, or at the beginning of the text */
    struct completions completions;
    bool begun, line_ends, no_memory; /* line_ends: the text may begin with them */
};

int matcher_open(struct matcher **out, const struct grammar *g, const struct token_trie *t, struct error *e) {
    struct matcher *m = *out = mem_calloc(1, sizeof *m);
    int rc = m ? automaton_open(&m->automaton, g, e) : error_set(e, ERR_MEMORY, "no memory for a grammar");
    if (!rc) {
        m->trie = t;
        automaton_allow(m->automaton, STACKS_FIRST);
        m->words = ((size_t)t->n_ids + 63) / 64;
        m->path = mem_alloc((t->longest + 2) * sizeof *m->path);
        m->limited = mem_calloc(m->words + 1, sizeof *m->limited);
        m->state = automaton_start(m->automaton);
        if (!m->path || !m->limited) rc = error_set(e, ERR_MEMORY, "no memory for a grammar");
        else rc = automaton_failure(m->automaton, e);
    }
    if (rc) matcher_close(out);
    return rc;
}

void matcher_allow_line_ends(struct matcher *m) { m->line_ends = true; }

static void drop_stored(struct matcher *m) {
    struct stored_walk *lists[] = {m->upper_walks, m->masks};
    const size_t n[] = {m->cap_upper, m->cap_masks};
    for (int k = 0; k < 2; k++)
        for (size_t i = 0; i < n[k]; i++) {
            mem_free(lists[k][i].bits);
            mem_free(lists[k][i].ends);
            lists[k][i] = (struct stored_walk){0};
        }
    completion_drop(&m->completions);
    m->bytes = 0;
}

void matcher_close(struct matcher **at) {
    struct matcher *m = *at;
    *at = NULL;
    if (!m) return;
    drop_stored(m);
    mem_free(m->upper_walks);
    mem_free(m->masks);
    mem_free(m->path);
    mem_free(m->limited);
    automaton_close(&m->automaton);
    mem_free(m);
}

/* --- walks ------------------------------------------------------------------------------------ */

static void allow(const struct token_trie *t, uint64_t *bits, int32_t id) {
    for (; id >= 0; id = t->same[id]) bits[id >> 6] |= 1ull << (id & 63);
}

/* Walks the nodes below `from` with the state that belongs to it, and allows the tokens whose bytes the automaton
 * accepts. ends (may be NULL) receives the nodes at which the state is complete. */
static int walk_nodes(struct matcher *m, const struct trie_nodes *t, uint32_t from, state_id s, uint64_t *bits,
                      struct stored_walk *ends, size_t *cap) {
    const uint32_t end = t->end[from], base = t->depth[from];
    const uint8_t *class = automaton_classes(m->automaton);
    m->path[0] = (struct path_state){s, automaton_row(m->automaton, s)};
    if (!m->path[0].row) return ERR_MEMORY;
    for (uint32_t i = from + 1; i < end;) {
        const uint32_t depth = t->depth[i] - base;
        state_id to = m->path[depth - 1].row[class[t->byte[i]]];
        if (to == (state_id)AUTOMATON_UNKNOWN) to = automaton_step(m->automaton, m->path[depth - 1].state, t->byte[i]);
        if (!to) {
            i = t->end[i];
            continue;
        }
        if (t->token[i] >= 0) allow(m->trie, bits, t->token[i]);
        const bool has_children = t->end[i] > i + 1;
        i++;
        if (has_children) {
            m->path[depth] = (struct path_state){to, automaton_row(m->automaton, to)};
            if (!m->path[depth].row) return ERR_MEMORY;
            if (!ends || !automaton_is_complete(m->automaton, to)) continue;
            if (mem_grow(&ends->ends, cap, ends->n_ends + 1, sizeof *ends->ends)) return ERR_MEMORY;
            ends->ends[ends->n_ends++] = i - 1;
        }
    }
    return 0;
}

/* Walks the whole vocabulary. Where text may follow, plain tokens are allowed by their number of characters, without a
 * walk. */
static int walk_all(struct matcher *m, state_id s, uint64_t *bits, struct stored_walk *ends, size_t *cap) {
    bool is_limit;
    const uint32_t room = automaton_text_room(m->automaton, s, &is_limit);
    const bool tagged = room != GRAMMAR_UNBOUNDED && automaton_tagged_text(m->automaton, s);
    const bool skip_plain = tagged || (room >= TRIE_PLAIN ? is_limit || room == GRAMMAR_UNBOUNDED : room && is_limit);
    const struct trie_nodes *nodes = tagged ? &m->trie->tagged_other : skip_plain ? &m->trie->other : &m->trie->all;
    const uint64_t *plain = tagged ? m->trie->tagged_plain : m->trie->plain[room < TRIE_PLAIN ? room : TRIE_PLAIN];
    for (size_t k = 0; skip_plain && k < m->words; k++) bits[k] |= plain[k];
    if (ends) ends->nodes = nodes;
    return walk_nodes(m, nodes, 0, s, bits, ends, cap);
}

/* Returns the entry of a state, after making room for it. NULL: no memory. */
static struct stored_walk *get_walk(struct stored_walk **list, size_t *cap, state_id s) {
    const size_t old_cap = *cap;
    if (s >= old_cap) {
        if (mem_grow(list, cap, s + 1, sizeof **list)) return NULL;
        memset(*list + old_cap, 0, (*cap - old_cap) * sizeof **list);
    }
    return *list + s;
}

/* Returns the stored walk of an upper part, computing it once. NULL: no memory. */
static const struct stored_walk *upper_walk(struct matcher *m, state_id s) {
    struct stored_walk *p = get_walk(&m->upper_walks, &m->cap_upper, s);
    size_t cap = 0;
    if (!p || p->bits) return p;
    struct stored_walk made = {.bits = mem_calloc(m->words + 1, sizeof *made.bits)};
    if (!made.bits || walk_all(m, s, made.bits, &made, &cap)) {
        mem_free(made.bits);
        mem_free(made.ends);
        return NULL;
    }
    m->bytes += m->words * sizeof *made.bits + cap * sizeof *made.ends;
    *p = made;
    return p;
}

/* Allows the tokens that the grammar names by their ids, below the state after the first bytes of one. */
static void allow_named(struct matcher *m, state_id s, int depth, int32_t id, uint64_t *bits) {
    for (int32_t part = 0; part < 0x80 && s; part++) {
        const state_id to = automaton_step(m->automaton, s, (uint8_t)(0x80 | part));
        const int32_t sum = id | part << 7 * depth;
        if (to && depth < GRAMMAR_TOKEN_BYTES - 2) allow_named(m, to, depth + 1, sum, bits);
        else if (to && sum < m->trie->n_ids) bits[sum >> 6] |= 1ull << (sum & 63);
    }
}

/* The mask of a state: computed once. NULL: no memory. */
static const uint64_t *state_mask(struct matcher *m, state_id s) {
    struct state_part parts[AUTOMATON_MAX_PARTS];
    state_id rest = STATE_DEAD;
    struct stored_walk *p = get_walk(&m->masks, &m->cap_masks, s);
    if (!p || p->bits) return p ? p->bits : NULL;
    uint64_t *bits = mem_calloc(m->words + 1, sizeof *bits);
    int rc = bits ? 0 : ERR_MEMORY, n = automaton_parts(m->automaton, s, m->trie->longest + 1, parts, &rest);
    if (n < 0) n = 0, rest = s;
    for (int i = 0; i < n && !rc; i++) {
        const struct stored_walk *u = upper_walk(m, parts[i].upper);
        if (!u) rc = ERR_MEMORY;
        for (size_t k = 0; k < m->words && !rc; k++) bits[k] |= u->bits[k];
        for (size_t k = 0; parts[i].lower && k < (rc ? 0 : u->n_ends); k++)
            walk_nodes(m, u->nodes, u->ends[k], parts[i].lower, bits, NULL, NULL);
    }
    if (!rc && rest) rc = walk_all(m, rest, bits, NULL, NULL);
    if (!rc) allow_named(m, automaton_step(m->automaton, s, GRAMMAR_TOKEN_MARK), 0, 0, bits);
    if (rc) {
        mem_free(bits);
        return NULL;
    }
    m->bytes += m->words * sizeof *bits;
    return m->masks[s].bits = bits;
}

/* --- tokens ----------------------------------------------------------------------------------- */

static state_id after_token(struct matcher *m, int32_t id) {
    size_t n = 0;
    bool special = false;
    uint8_t name[GRAMMAR_TOKEN_BYTES];
    const char *s = tokenizer_token_bytes(m->trie->tokenizer, id, &n, &special);
    grammar_token_bytes(id, name);
    const state_id named = automaton_run(m->automaton, m->state, name, sizeof name);
    if (named) return named;
    return s && !special && n && !memchr(s, GRAMMAR_TOKEN_MARK, n) ? automaton_run(m->automaton, m->state, s, n)
                                                                   : STATE_DEAD;
}

/* The decoder removes a space at the beginning of an answer, and a chat the line ends after the thinking, so no answer
 * may begin with them. */
static void forbid_stripped(struct matcher *m, uint64_t *bits) {
    const bool strips = tokenizer_strips_start(m->trie->tokenizer);
    const struct trie_nodes *t = &m->trie->all;
    for (uint32_t i = 1; i < t->n; i = t->end[i]) {
        const bool line_end = t->byte[i] == '\n' || t->byte[i] == '\r';
        if (!(line_end && !m->line_ends) && !(t->byte[i] == ' ' && strips)) continue;
        for (uint32_t k = i; k < t->end[i]; k++)
            for (int32_t id = t->token[k]; id >= 0; id = m->trie->same[id]) bits[id >> 6] &= ~(1ull << (id & 63));
    }
}

static int failure(const struct matcher *m, struct error *e) {
    return m->no_memory ? error_set(e, ERR_MEMORY, "no memory for the completions of a grammar")
                        : automaton_failure(m->automaton, e);
}

static uint32_t least_tokens(struct matcher *m, state_id s) {
    uint32_t n = UINT32_MAX;
    if (completion_tokens(&m->completions, m->automaton, m->trie, s, &n)) m->no_memory = true;
    return n < automaton_missing(m->automaton, s) ? n : automaton_missing(m->automaton, s);
}

static void forbid_long(struct matcher *m, uint64_t *bits, uint32_t left) {
    for (size_t k = 0; k < m->words; k++)
        for (uint64_t w = bits[k]; w; w &= w - 1) {
            const int32_t id = (int32_t)(64 * k) + __builtin_ctzll(w);
            if (!matcher_fits(m, id, left)) bits[k] &= ~(1ull << (id & 63));
        }
}

int matcher_mask(struct matcher *m, uint32_t left, const uint64_t **bits, struct error *e) {
    if (m->bytes + automaton_bytes(m->automaton) + m->completions.cap * sizeof *m->completions.v > MAX_CACHE ||
        automaton_is_crowded(m->automaton)) {
        drop_stored(m);
        m->state = automaton_compact(m->automaton, m->state);
    }
    if (left < UINT32_MAX) least_tokens(m, m->state); /* before other completions crowd the automaton */
    const uint64_t *all = state_mask(m, m->state);
    int rc = automaton_failure(m->automaton, e);
    if (!rc && !all) rc = error_set(e, ERR_MEMORY, "no memory for the mask of a grammar");
    *bits = all;
    if (rc || (m->begun && left == UINT32_MAX)) return rc;
    memcpy(m->limited, all, m->words * sizeof *all);
    if (!m->begun) forbid_stripped(m, m->limited);
    if (left < UINT32_MAX) forbid_long(m, m->limited, left ? left - 1 : 0);
    *bits = m->limited;
    return failure(m, e);
}

bool matcher_fits(struct matcher *m, int32_t id, uint32_t left) {
    const state_id s = after_token(m, id);
    return s && (automaton_missing(m->automaton, s) <= left || least_tokens(m, s) <= left);
}

uint32_t matcher_least_tokens(struct matcher *m) {
    uint32_t least = UINT32_MAX;
    const uint64_t *bits;
    if (matcher_is_complete(m)) return 0;
    if (matcher_mask(m, UINT32_MAX, &bits, NULL)) return least;
    for (int32_t id = 0; id < m->trie->n_ids; id++) {
        const uint32_t n = bits[id >> 6] >> (id & 63) & 1 ? least_tokens(m, after_token(m, id)) : UINT32_MAX;
        if (n < UINT32_MAX && n + 1 < least) least = n + 1;
    }
    return least;
}

int matcher_accept(struct matcher *m, int32_t id, struct error *e) {
    const state_id s = after_token(m, id);
    int rc = failure(m, e);
    if (rc) return rc;
    if (!s) return error_set(e, ERR_RUNTIME, "token %d is not allowed by the grammar", id);
    m->state = s;
    automaton_allow(m->automaton, STACKS_EACH);
    m->begun = true;
    return 0;
}

bool matcher_is_complete(const struct matcher *m) { return automaton_is_complete(m->automaton, m->state); }
bool matcher_is_final(const struct matcher *m) { return automaton_is_final(m->automaton, m->state); }
uint32_t matcher_missing(const struct matcher *m) { return automaton_missing(m->automaton, m->state); }

size_t matcher_forced(struct matcher *m, uint8_t *out, size_t most) {
    size_t n = 0;
    state_id s = m->state;
    while (n < most && automaton_forced(m->automaton, s, &out[n]) && out[n] != GRAMMAR_TOKEN_MARK)
        s = automaton_step(m->automaton, s, out[n++]);
    return n;
}
