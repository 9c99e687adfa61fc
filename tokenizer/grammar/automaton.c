#include "tokenizer/grammar/automaton.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/mem.h"

enum {
    BOTTOM, /* the empty stack */
    MAX_NODES = 1 << 21,
    MAX_STATES = 1 << 18,
    MAX_STACKS = 1 << 14, /* of a state */
    MAX_LEFT = 2000000,   /* stacks that an automaton may save up */
    MAX_DEPTH = 1 << 14,
    UNKNOWN = UINT32_MAX
};

/* The top of a stack: the symbol to match next. lo, hi: the repetitions that remain if the symbol is a repeat. */
struct node {
    uint32_t pos, lo, hi, parent;
    uint32_t bound;   /* the node below the lexeme that this node is in; UNKNOWN: in none */
    uint32_t nest;    /* levels of objects and arrays */
    uint32_t missing; /* bytes that this stack needs at least */
    state_id closure; /* the state of this stack alone; STATE_DEAD: not computed */
    uint16_t depth;
    bool seen; /* while a closure is computed */
};
/* The members that identify a node, its first ones. */
enum { NODE_KEY = 6 * sizeof(uint32_t) };
struct state {
    uint32_t first, n; /* in members: stacks with a byte class on top, sorted */
    uint32_t missing;
    bool complete;
    uint32_t *next; /* [n_classes] state after each class of bytes; NULL: not computed */
};
struct table { /* open addressing; numbers of nodes or states, 0: free */
    uint32_t *v;
    size_t size, n;
};
struct automaton {
    const struct grammar_rules *g;
    struct node *nodes;
    struct state *states;
    /* of states; while a closure is computed: stacks to expand, and all stacks in it */
    uint32_t *members, *work, *found;
    size_t n_nodes, cap_nodes, n_states, cap_states, n_members, cap_members, n_work, cap_work, n_found, cap_found,
        bytes;
    struct table node_table, state_table;
    bool complete; /* while a closure is computed: the bottom was reached */
    uint64_t left; /* stacks that may still be computed (automaton_allow()) */
    int failed;
};

/* --- tables ----------------------------------------------------------------------------------- */

static int table_grow(struct table *t, uint64_t (*hash)(const struct automaton *, uint32_t),
                      const struct automaton *a) {
    if (t->n * 2 < t->size) return 0;
    const size_t size = t->size ? 2 * t->size : 1024;
    uint32_t *v = mem_calloc(size, sizeof *v);
    if (!v) return ERR_MEMORY;
    for (size_t i = 0; i < t->size; i++) {
        if (!t->v[i]) continue;
        size_t at = hash(a, t->v[i]) & (size - 1);
        while (v[at]) at = (at + 1) & (size - 1);
        v[at] = t->v[i];
    }
    mem_free(t->v);
    t->v = v, t->size = size;
    return 0;
}

static uint64_t node_hash(const struct automaton *a, uint32_t i) { return hash64(&a->nodes[i], NODE_KEY, 1); }
static uint64_t state_hash(const struct automaton *a, uint32_t i) {
    const struct state *s = &a->states[i];
    return hash64(a->members + s->first, s->n * sizeof *a->members, s->complete);
}

/* --- stacks ----------------------------------------------------------------------------------- */

/* Returns the stack with this top on a parent, or BOTTOM after a failure or past the limit of depth. */
static uint32_t make_node(struct automaton *a, uint32_t pos, uint32_t lo, uint32_t hi, uint32_t parent, uint32_t bound,
                          uint32_t nest) {
    const struct node *below = &a->nodes[parent];
    const struct elem *x = &a->g->elems[pos];
    struct node n = {.pos = pos,
                     .lo = lo,
                     .hi = hi,
                     .parent = parent,
                     .bound = bound,
                     .nest = nest,
                     .depth = (uint16_t)(below->depth + 1)};
    if (below->depth >= MAX_DEPTH) return BOTTOM;
    if (a->n_nodes >= MAX_NODES || !a->left) a->failed = ERR_RUNTIME;
    else if (table_grow(&a->node_table, node_hash, a) ||
             mem_grow(&a->nodes, &a->cap_nodes, a->n_nodes + 1, sizeof *a->nodes))
        a->failed = ERR_MEMORY;
    if (a->failed) return BOTTOM;
    a->left--;
    uint64_t missing = x->kind == ELEM_END ? 0 : x->rest;
    /* repetitions that are done */
    if (x->kind == ELEM_REPEAT) missing -= (uint64_t)a->g->rules[x->arg].min * (x->lo - (lo < x->lo ? lo : x->lo));
    missing += a->nodes[parent].missing;
    n.missing = missing < UINT32_MAX / 2 ? (uint32_t)missing : UINT32_MAX / 2;
    a->nodes[a->n_nodes] = n;
    struct table *t = &a->node_table;
    size_t at = node_hash(a, (uint32_t)a->n_nodes) & (t->size - 1);
    for (; t->v[at]; at = (at + 1) & (t->size - 1))
        if (!memcmp(&a->nodes[t->v[at]], &n, NODE_KEY)) return t->v[at];
    t->n++;
    return t->v[at] = (uint32_t)a->n_nodes++;
}

/* The stack of node i, one symbol further; the parent itself where an alternative ends. */
static uint32_t next_symbol(struct automaton *a, uint32_t i) {
    const struct node n = a->nodes[i];
    const struct elem *x = &a->g->elems[n.pos + 1];
    if (x->kind == ELEM_END) return n.parent;
    return make_node(a, n.pos + 1, x->kind == ELEM_REPEAT ? x->lo : 0, x->kind == ELEM_REPEAT ? x->hi : 0, n.parent,
                     n.bound, n.nest);
}

/* Adds a stack to the closure that is being computed. */
static void reach(struct automaton *a, uint32_t i) {
    if (i == BOTTOM) {
        a->complete = true;
        return;
    }
    if (a->nodes[i].seen || a->failed) return;
    if (a->n_found >= MAX_STACKS) a->failed = ERR_RUNTIME;
    else if (mem_grow(&a->work, &a->cap_work, a->n_work + 1, sizeof *a->work) ||
             mem_grow(&a->found, &a->cap_found, a->n_found + 1, sizeof *a->found))
        a->failed = ERR_MEMORY;
    if (a->failed) return;
    a->nodes[i].seen = true;
    a->work[a->n_work++] = i;
    a->found[a->n_found++] = i;
}

/* Adds the alternatives of a rule, which continue with `then`. */
static void enter_rule(struct automaton *a, uint32_t rule, uint32_t then, const struct node *from) {
    const struct rule *r = &a->g->rules[rule];
    const uint32_t nest = from->nest + r->nests;
    const uint32_t bound = from->bound == UNKNOWN && r->is_lexeme ? then : from->bound;
    if (nest > GRAMMAR_MAX_NEST) return;
    for (uint32_t i = 0; i < r->n_alts; i++) {
        const uint32_t pos = a->g->alts[r->first_alt + i];
        const struct elem *x = &a->g->elems[pos];
        if (x->kind == ELEM_END) {
            reach(a, then);
            continue;
        }
        if (nest + x->nest > GRAMMAR_MAX_NEST) continue;
        const uint32_t top = make_node(a, pos, x->kind == ELEM_REPEAT ? x->lo : 0, x->kind == ELEM_REPEAT ? x->hi : 0,
                                       then, bound, nest);
        if (top) reach(a, top);
    }
}

static void expand(struct automaton *a, uint32_t i) {
    const struct node n = a->nodes[i];
    const struct elem *x = &a->g->elems[n.pos];
    if (x->kind == ELEM_RULE) {
        const uint32_t then = next_symbol(a, i);
        if (!a->failed) enter_rule(a, x->arg, then, &n);
    } else if (x->kind == ELEM_REPEAT) {
        const uint32_t after = next_symbol(a, i);
        if (a->failed) return;
        if (!n.lo) reach(a, after);
        if (!n.hi) return;
        const uint32_t hi = n.hi == GRAMMAR_UNBOUNDED ? n.hi : n.hi - 1;
        const uint32_t back = hi ? make_node(a, n.pos, n.lo ? n.lo - 1 : 0, hi, n.parent, n.bound, n.nest) : after;
        if ((back || !hi) && !a->failed) enter_rule(a, x->arg, back, &n);
    }
}

static int compare_numbers(const void *x, const void *y) {
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

/* --- states ----------------------------------------------------------------------------------- */

/* Returns the state of the stacks in a->found whose top is a byte class, after expanding the others. */
static state_id find_state(struct automaton *a) {
    while (a->n_work && !a->failed) expand(a, a->work[--a->n_work]);
    a->n_work = 0;
    struct state s = {.first = (uint32_t)a->n_members, .missing = UINT32_MAX, .complete = a->complete};
    if (!a->failed && mem_grow(&a->members, &a->cap_members, a->n_members + a->n_found, sizeof *a->members))
        a->failed = ERR_MEMORY;
    for (size_t k = 0; k < a->n_found; k++) {
        struct node *n = &a->nodes[a->found[k]];
        n->seen = false;
        if (a->failed || a->g->elems[n->pos].kind != ELEM_CLASS) continue;
        a->members[s.first + s.n++] = a->found[k];
        if (n->missing < s.missing) s.missing = n->missing;
    }
    a->n_found = 0;
    a->complete = false;
    if (s.complete) s.missing = 0;
    if (a->failed || (!s.n && !s.complete)) return STATE_DEAD;
    qsort(a->members + s.first, s.n, sizeof *a->members, compare_numbers);
    if (a->n_states >= MAX_STATES) a->failed = ERR_RUNTIME;
    else if (table_grow(&a->state_table, state_hash, a) ||
             mem_grow(&a->states, &a->cap_states, a->n_states + 1, sizeof *a->states))
        a->failed = ERR_MEMORY;
    if (a->failed) return STATE_DEAD;
    a->states[a->n_states] = s;
    struct table *t = &a->state_table;
    size_t at = state_hash(a, (uint32_t)a->n_states) & (t->size - 1);
    for (; t->v[at]; at = (at + 1) & (t->size - 1)) {
        const struct state *o = &a->states[t->v[at]];
        if (o->n == s.n && o->complete == s.complete &&
            !memcmp(a->members + o->first, a->members + s.first, s.n * sizeof *a->members))
            return t->v[at];
    }
    a->n_members += s.n;
    t->n++;
    return t->v[at] = (uint32_t)a->n_states++;
}

/* Returns the state of the stacks that reach() has added, as find_state(). Stores the state of a single stack in its
 * node. */
static state_id make_state(struct automaton *a) {
    /* characters of one set lead to the same stack */
    const uint32_t only = a->n_found == 1 && !a->complete ? a->found[0] : BOTTOM;
    if (only && a->nodes[only].closure && !a->failed) {
        a->nodes[only].seen = false;
        a->n_found = a->n_work = 0;
        return a->nodes[only].closure;
    }
    const state_id s = find_state(a);
    if (only && s) a->nodes[only].closure = s;
    return s;
}

/* Returns an automaton without states, or NULL. */
static struct automaton *new_automaton(const struct grammar_rules *g) {
    struct automaton *a = mem_calloc(1, sizeof *a);
    if (!a) return NULL;
    a->g = g;
    a->left = UINT64_MAX;
    if (table_grow(&a->node_table, node_hash, a) || table_grow(&a->state_table, state_hash, a) ||
        mem_grow(&a->nodes, &a->cap_nodes, 1024, sizeof *a->nodes) ||
        mem_grow(&a->states, &a->cap_states, 256, sizeof *a->states) ||
        mem_grow(&a->members, &a->cap_members, 256, sizeof *a->members)) {
        automaton_close(&a);
        return NULL;
    }
    a->n_nodes = a->n_states = 1;
    a->nodes[BOTTOM] = (struct node){.bound = UNKNOWN};
    a->states[STATE_DEAD] = (struct state){.missing = UINT32_MAX};
    return a;
}

int automaton_open(struct automaton **out, const struct grammar *g, struct error *e) {
    *out = new_automaton(grammar_rules(g));
    return *out ? 0 : error_set(e, ERR_MEMORY, "no memory for the automaton of a grammar");
}

void automaton_close(struct automaton **at) {
    struct automaton *a = *at;
    *at = NULL;
    if (!a) return;
    for (size_t i = 0; i < a->n_states; i++) mem_free(a->states[i].next);
    mem_free(a->nodes);
    mem_free(a->states);
    mem_free(a->members);
    mem_free(a->work);
    mem_free(a->found);
    mem_free(a->node_table.v);
    mem_free(a->state_table.v);
    mem_free(a);
}

state_id automaton_start(struct automaton *a) {
    const struct node below = {.bound = UNKNOWN};
    if (!a->failed) enter_rule(a, a->g->root, BOTTOM, &below);
    return make_state(a);
}

static state_id compute_step(struct automaton *a, state_id from, uint8_t byte) {
    const uint32_t first = a->states[from].first, n = a->states[from].n;
    for (uint32_t k = 0; k < n && !a->failed; k++) {
        const uint32_t i = a->members[first + k];
        if (!byte_set_has(&a->g->sets[a->g->elems[a->nodes[i].pos].arg], byte)) continue;
        const uint32_t next = next_symbol(a, i);
        if (!a->failed) reach(a, next);
    }
    return make_state(a);
}

const uint8_t *automaton_classes(const struct automaton *a) { return a->g->byte_class; }

const state_id *automaton_row(struct automaton *a, state_id s) {
    const size_t size = (size_t)a->g->n_classes * sizeof(uint32_t);
    if (a->states[s].next) return a->states[s].next;
    uint32_t *next = mem_alloc(size);
    if (!next) return a->failed = ERR_MEMORY, NULL;
    memset(next, 0xFF, size);
    a->bytes += size;
    return a->states[s].next = next;
}

state_id automaton_step(struct automaton *a, state_id s, uint8_t byte) {
    if (!s || !automaton_row(a, s)) return STATE_DEAD;
    const uint8_t class = a->g->byte_class[byte];
    if (a->states[s].next[class] != UNKNOWN) return a->states[s].next[class];
    const state_id to = compute_step(a, s, byte);
    return a->failed ? STATE_DEAD : (a->states[s].next[class] = to);
}

state_id automaton_run(struct automaton *a, state_id s, const void *data, size_t n) {
    for (size_t i = 0; i < n && s; i++) s = automaton_step(a, s, ((const uint8_t *)data)[i]);
    return s;
}

bool automaton_is_complete(const struct automaton *a, state_id s) { return a->states[s].complete; }
bool automaton_is_final(const struct automaton *a, state_id s) { return a->states[s].complete && !a->states[s].n; }
uint32_t automaton_missing(const struct automaton *a, state_id s) { return a->states[s].missing; }

/* The repeat of text that a stack is in, or NULL. *begins: whether the stack is at the beginning of a character: at the
 * first alternative. */
static const struct elem *text_of(const struct automaton *a, const struct node *n, bool *begins) {
    const struct elem *text = n->parent ? &a->g->elems[a->nodes[n->parent].pos] : NULL;
    if (!text || !text->text) return NULL;
    *begins = n->pos == a->g->alts[a->g->rules[text->arg].first_alt];
    return text;
}

bool automaton_tagged_text(const struct automaton *a, state_id s) {
    bool begins;
    for (uint32_t k = 0; k < a->states[s].n; k++) {
        const struct elem *text = text_of(a, &a->nodes[a->members[a->states[s].first + k]], &begins);
        if (text && text->text == TEXT_TAGGED && begins) return true;
    }
    return false;
}

uint32_t automaton_text_room(const struct automaton *a, state_id s, bool *is_limit) {
    /* from 0x20 on, without '"', '\\' and 0x7F */
    static const struct byte_set plain = {{0xFFFFFFFBull << 32, 0x7FFFFFFFEFFFFFFFull, UINT64_MAX, UINT64_MAX}};
    const struct state *p = &a->states[s];
    uint32_t room = 0;
    *is_limit = !p->complete;
    for (uint32_t k = 0; k < p->n; k++) {
        const struct node *n = &a->nodes[a->members[p->first + k]], *below = &a->nodes[n->parent];
        const struct byte_set *set = &a->g->sets[a->g->elems[n->pos].arg];
        bool begins;
        const struct elem *text = text_of(a, n, &begins);
        if (text && text->text == TEXT_ANY) {
            const uint32_t more = below->hi == GRAMMAR_UNBOUNDED ? below->hi : below->hi + 1;
            if (begins && more > room) room = more;
        } else /* other stacks must refuse plain characters */
            for (int i = 0; i < 4; i++) *is_limit &= !(set->bits[i] & plain.bits[i]);
    }
    return room;
}

bool automaton_forced(const struct automaton *a, state_id s, uint8_t *byte) {
    const struct state *p = &a->states[s];
    struct byte_set all = {0};
    int n = 0;
    for (uint32_t k = 0; k < p->n; k++)
        for (int i = 0; i < 4; i++)
            all.bits[i] |= a->g->sets[a->g->elems[a->nodes[a->members[p->first + k]].pos].arg].bits[i];
    for (int i = 0; i < 4; i++) {
        n += __builtin_popcountll(all.bits[i]);
        if (all.bits[i]) *byte = (uint8_t)(64 * i + __builtin_ctzll(all.bits[i]));
    }
    return n == 1 && !p->complete;
}

bool automaton_shortest(const struct automaton *a, state_id s, uint8_t *byte) {
    const struct state *p = &a->states[s];
    for (int i = 0; i < 256; i++) {
        *byte = (uint8_t)(' ' + i); /* control characters last: large vocabularies have no tokens of several */
        for (uint32_t k = 0; k < p->n; k++) {
            const struct node *n = &a->nodes[a->members[p->first + k]];
            if (n->missing == p->missing && byte_set_has(&a->g->sets[a->g->elems[n->pos].arg], *byte)) return true;
        }
    }
    return false;
}

void automaton_allow(struct automaton *a, uint64_t n) {
    a->left = a->left == UINT64_MAX ? n : a->left + n < MAX_LEFT ? a->left + n : MAX_LEFT;
}

int automaton_failure(const struct automaton *a, struct error *e) {
    if (!a->failed) return 0;
    if (a->failed == ERR_MEMORY) return error_set(e, ERR_MEMORY, "no memory for the automaton of the grammar");
    if (!a->left)
        return error_set(e, ERR_RUNTIME,
                         "the grammar is too ambiguous: the next token takes too long to find; use fewer alternatives "
                         "that begin alike");
    return error_set(e, ERR_RUNTIME, "the grammar is too ambiguous: more than %d stacks at one place", MAX_STACKS);
}

bool automaton_is_crowded(const struct automaton *a) {
    return a->n_states > MAX_STATES / 2 || a->n_nodes > MAX_NODES / 2;
}
size_t automaton_bytes(const struct automaton *a) {
    return a->bytes + a->n_nodes * sizeof *a->nodes + a->n_states * sizeof *a->states +
           a->n_members * sizeof *a->members;
}

/* --- copies of stacks ------------------------------------------------------------------------- */

/* Copies the part of a stack above `bound` onto BOTTOM; counters are cut to max_count. */
static uint32_t copy_upper(struct automaton *a, uint32_t i, uint32_t bound, uint32_t max_count) {
    if (i == bound) return BOTTOM;
    const struct node n = a->nodes[i];
    const uint32_t parent = copy_upper(a, n.parent, bound, max_count);
    const uint32_t lo = n.lo > max_count ? max_count : n.lo,
                   hi = n.hi != GRAMMAR_UNBOUNDED && n.hi > max_count ? max_count : n.hi;
    return a->failed ? BOTTOM : make_node(a, n.pos, lo, hi, parent, BOTTOM, 0);
}

static state_id state_of(struct automaton *a, uint32_t node) {
    reach(a, node);
    if (node == BOTTOM) a->complete = false; /* nothing follows */
    return make_state(a);
}

int automaton_parts(struct automaton *a, state_id s, uint32_t max_count, struct state_part *out, state_id *rest) {
    const uint32_t first = a->states[s].first, n = a->states[s].n;
    uint32_t bounds[AUTOMATON_MAX_PARTS];
    int parts = 0;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t bound = a->nodes[a->members[first + k]].bound;
        int p = 0;
        while (p < parts && bounds[p] != bound) p++;
        if (bound == UNKNOWN || p < parts) continue;
        if (parts == AUTOMATON_MAX_PARTS) return -1;
        bounds[parts++] = bound;
    }
    for (int p = 0; p <= parts; p++) {
        const uint32_t bound = p < parts ? bounds[p] : UNKNOWN;
        for (uint32_t k = 0; k < n && !a->failed; k++) {
            const uint32_t i = a->members[first + k];
            if (a->nodes[i].bound != bound) continue;
            const uint32_t top = p < parts ? copy_upper(a, i, bound, max_count) : i;
            if (top) reach(a, top);
        }
        const state_id upper = make_state(a);
        if (p == parts) *rest = upper;
        else out[p] = (struct state_part){.upper = upper, .lower = state_of(a, bound)};
    }
    return a->failed ? -1 : parts;
}

/* Copies a whole stack from another automaton of the same grammar. */
static uint32_t copy_stack(struct automaton *to, const struct automaton *from, uint32_t i) {
    size_t depth = 0;
    uint32_t *chain = mem_alloc((from->nodes[i].depth + 1u) * sizeof *chain);
    if (!chain) return to->failed = ERR_MEMORY, BOTTOM;
    for (; i; i = from->nodes[i].parent) chain[depth++] = i;
    /* copy[k]: of chain[k]; the bottom is last */
    uint32_t *copy = mem_alloc((depth + 1) * sizeof *copy), below = BOTTOM;
    if (!copy) to->failed = ERR_MEMORY;
    else copy[depth] = BOTTOM;
    for (size_t k = depth; k-- > 0 && !to->failed;) {
        const struct node n = from->nodes[chain[k]];
        uint32_t bound = n.bound == UNKNOWN ? UNKNOWN : BOTTOM;
        for (size_t j = k + 1; j < depth && bound != UNKNOWN; j++)
            if (chain[j] == n.bound) bound = copy[j];
        below = copy[k] = make_node(to, n.pos, n.lo, n.hi, below, bound, n.nest);
    }
    mem_free(chain);
    mem_free(copy);
    return below;
}

state_id automaton_compact(struct automaton *a, state_id s) {
    const struct state was = a->states[s];
    struct automaton *fresh = new_automaton(a->g), swap;
    if (!fresh) return a->failed = ERR_MEMORY, STATE_DEAD;
    fresh->left = a->left;
    for (uint32_t k = 0; k < was.n && !fresh->failed; k++) {
        const uint32_t top = copy_stack(fresh, a, a->members[was.first + k]);
        if (top) reach(fresh, top);
    }
    fresh->complete = was.complete;
    const state_id to = make_state(fresh);
    swap = *a;
    *a = *fresh;
    *fresh = swap;
    automaton_close(&fresh);
    return to;
}
