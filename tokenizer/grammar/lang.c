#include "tokenizer/grammar/lang.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/utf8.h"

enum {
    MAX_NFA = 40000,
    MAX_STATES = 20000,
    MAX_EDGES = 400000,
    MAX_MEMBERS = 1 << 24,
    LAST = 0x10FFFF,
    NONE = UINT32_MAX
};

static int too_large(struct error *e) {
    return error_set(e, ERR_USAGE, "too complex: more than %d states", MAX_STATES);
}
static int no_memory(struct error *e) { return error_set(e, ERR_MEMORY, "no memory for a pattern"); }

/* --- results ---------------------------------------------------------------------------------- */

struct maker { /* a language under construction; heap until finish() */
    struct effort *effort;
    struct lang_state *states;
    struct lang_edge *edges;
    size_t n_states, n_edges, cap_states, cap_edges;
};

static int add_edge(struct maker *m, uint32_t from, uint32_t to, uint32_t target) {
    if (m->n_edges >= MAX_EDGES || effort_spend(m->effort, 4)) return ERR_USAGE;
    if (mem_grow(&m->edges, &m->cap_edges, m->n_edges + 1, sizeof *m->edges)) return ERR_MEMORY;
    struct lang_edge *last = m->n_edges > m->states[m->n_states - 1].first ? &m->edges[m->n_edges - 1] : NULL;
    if (last && last->to + 1 == from && last->target == target) last->to = to;
    else m->edges[m->n_edges++] = (struct lang_edge){from, to, target};
    return 0;
}
static int begin_state(struct maker *m, bool accepts) {
    if (m->n_states >= MAX_STATES || effort_spend(m->effort, 4)) return ERR_USAGE;
    if (mem_grow(&m->states, &m->cap_states, m->n_states + 1, sizeof *m->states)) return ERR_MEMORY;
    m->states[m->n_states++] = (struct lang_state){.first = (uint32_t)m->n_edges, .accepts = accepts};
    return 0;
}
static int finish(struct maker *m, int rc, struct effort *effort, struct lang *out, struct error *e) {
    *out = (struct lang){0};
    for (size_t i = 0; i < m->n_states; i++)
        m->states[i].n = (uint32_t)((i + 1 < m->n_states ? m->states[i + 1].first : m->n_edges) - m->states[i].first);
    if (!rc) {
        out->states = arena_alloc(&effort->arena, (m->n_states + 1) * sizeof *out->states);
        out->edges = arena_alloc(&effort->arena, (m->n_edges + 1) * sizeof *out->edges);
        if (!out->states || !out->edges) rc = ERR_MEMORY;
        else {
            if (m->n_states) memcpy(out->states, m->states, m->n_states * sizeof *out->states);
            if (m->n_edges) memcpy(out->edges, m->edges, m->n_edges * sizeof *out->edges);
            out->n_states = (uint32_t)m->n_states, out->n_edges = (uint32_t)m->n_edges;
        }
    }
    mem_free(m->states);
    mem_free(m->edges);
    return !rc ? 0 : rc == ERR_MEMORY ? no_memory(e) : too_large(e);
}

struct text_group {      /* texts that share the characters up to a state */
    size_t from, to, at; /* v[from..to), which are equal in their first `at` bytes */
};

/* Adds the state of a group and queues those of its next characters. */
static int add_group(struct maker *m, const struct grammar_text *v, struct text_group g, struct text_group **queue,
                     size_t *n, size_t *cap) {
    while (g.from < g.to && v[g.from].n == g.at) g.from++; /* they end here; shorter texts come first */
    for (size_t i = g.from; i < g.to;) {
        const char *next = v[i].s + g.at;
        const uint32_t c = utf8_next(&next);
        const size_t size = (size_t)(next - v[i].s) - g.at, from = i;
        while (i < g.to && v[i].n >= g.at + size && !memcmp(v[i].s + g.at, v[from].s + g.at, size)) i++;
        if (effort_spend(m->effort, i - from)) return ERR_USAGE;
        if (mem_grow(queue, cap, *n + 1, sizeof **queue)) return ERR_MEMORY;
        (*queue)[*n] = (struct text_group){from, i, g.at + size};
        TRY(add_edge(m, c, c, (uint32_t)(*n)++));
    }
    return 0;
}

int lang_strings(struct effort *effort, struct grammar_text *v, size_t n, struct lang *out, struct error *e) {
    struct maker m = {.effort = effort};
    struct text_group *queue = NULL;
    size_t cap = 0, n_queued = 1;
    int rc = mem_grow(&queue, &cap, 1, sizeof *queue);
    grammar_sort_texts(v, n);
    if (!rc) queue[0] = (struct text_group){0, n, 0};
    for (size_t i = 0; i < n_queued && !rc; i++) {
        const struct text_group g = queue[i];
        rc = begin_state(&m, g.from < g.to && v[g.from].n == g.at);
        if (!rc) rc = add_group(&m, v, g, &queue, &n_queued, &cap);
    }
    mem_free(queue);
    return finish(&m, rc, effort, out, e);
}

int lang_string(struct effort *effort, const char *s, size_t n, struct lang *out, struct error *e) {
    return lang_strings(effort, &(struct grammar_text){s, n}, 1, out, e);
}

int lang_length(struct effort *effort, uint32_t lo, uint32_t hi, struct lang *out, struct error *e) {
    const uint32_t last = hi == GRAMMAR_UNBOUNDED ? lo : hi;
    struct maker m = {.effort = effort};
    int rc = 0;
    for (uint32_t i = 0; i <= last && !rc; i++) {
        rc = begin_state(&m, i >= lo);
        if (!rc && (i < last || hi == GRAMMAR_UNBOUNDED)) rc = add_edge(&m, 0, LAST, i < last ? i + 1 : i);
    }
    return finish(&m, rc, effort, out, e);
}

int lang_printable(struct effort *effort, bool ascii, struct lang *out, struct error *e) {
    struct maker m = {.effort = effort};
    int rc = begin_state(&m, true);
    if (!rc) rc = add_edge(&m, 0x20, 0x7E, 0);
    if (!rc && !ascii) rc = add_edge(&m, 0xA0, LAST, 0);
    return finish(&m, rc, effort, out, e);
}

#define LESS_EDGES \
    {0, '<' - 1, 0}, {'<', '<', 1}, { '<' + 1, LAST, 0 }
const struct lang lang_less = {(struct lang_state[]){{0, 3, true}, {3, 3, true}},
                               (struct lang_edge[]){LESS_EDGES, LESS_EDGES}, 2, 6};

/* --- nondeterministic automata (Thompson) ----------------------------------------------------- */

enum nfa_kind { NFA_SPLIT, NFA_SET, NFA_START, NFA_END, NFA_MATCH };
struct nfa_state {
    uint8_t kind;
    uint32_t a, b; /* next states; NONE: none */
    const struct regex *set;
};
struct nfa {
    struct effort *effort;
    struct nfa_state *v;
    size_t n, cap;
    int failed;
};
static uint32_t add_state(struct nfa *f, struct nfa_state s) {
    if (f->n >= MAX_NFA) f->failed = ERR_USAGE;
    else if (!f->failed && mem_grow(&f->v, &f->cap, f->n + 1, sizeof *f->v)) f->failed = ERR_MEMORY;
    if (f->failed) return 0;
    f->v[f->n] = s;
    return (uint32_t)f->n++;
}

/* Adds r in front of state `next`; returns its first state. */
static uint32_t build(struct nfa *f, const struct regex *r, uint32_t next) {
    if (!f->failed && effort_spend(f->effort, 1)) f->failed = ERR_USAGE; /* repeats of nothing add no states */
    if (f->failed) return 0;
    switch ((enum regex_kind)r->kind) {
    case REGEX_EMPTY: return next;
    case REGEX_SET: return add_state(f, (struct nfa_state){NFA_SET, next, NONE, r});
    case REGEX_START: return add_state(f, (struct nfa_state){NFA_START, next, NONE, NULL});
    case REGEX_END: return add_state(f, (struct nfa_state){NFA_END, next, NONE, NULL});
    case REGEX_CAT: return build(f, r->a, build(f, r->b, next));
    case REGEX_ALT: {
        const uint32_t a = build(f, r->a, next), b = build(f, r->b, next);
        return add_state(f, (struct nfa_state){NFA_SPLIT, a, b, NULL});
    }
    case REGEX_REPEAT: break;
    }
    if (r->hi == GRAMMAR_UNBOUNDED) {
        const uint32_t loop = add_state(f, (struct nfa_state){NFA_SPLIT, NONE, next, NULL}),
                       body = build(f, r->a, loop);
        if (!f->failed) f->v[loop].a = body;
        next = loop;
    } else
        for (uint32_t i = r->lo, end = next; i < r->hi && !f->failed; i++) {
            const uint32_t body = build(f, r->a, next);
            next = add_state(f, (struct nfa_state){NFA_SPLIT, body, end, NULL});
        }
    for (uint32_t i = 0; i < r->lo && !f->failed; i++) next = build(f, r->a, next);
    return next;
}

/* --- subset construction ---------------------------------------------------------------------- */

struct subsets { /* sets of NFA states; each has NFA_SET, NFA_END and NFA_MATCH states only */
    struct effort *effort;
    const struct nfa *f;
    uint32_t *members, *first, *n; /* [.] of set i */
    size_t n_members, cap_members, n_sets, cap_first, cap_n;
    uint32_t *table;
    size_t table_size;
    uint32_t *work, *mark, stamp; /* [f->n] */
    uint32_t *list;               /* [f->n] the set under construction */
    size_t n_list, n_visited;
};

static int compare_numbers(const void *x, const void *y) {
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

/* Adds a state and what it reaches without a character. at_end: '$' holds; then *match is set if NFA_MATCH is
 * reached. */
static void closure(struct subsets *x, uint32_t from, bool at_start, bool at_end, bool *match) {
    size_t n = 0;
    for (x->work[n++] = from; n;) {
        const uint32_t i = x->work[--n];
        x->n_visited++;
        if (i == NONE || x->mark[i] == x->stamp) continue;
        x->mark[i] = x->stamp;
        const struct nfa_state *s = &x->f->v[i];
        if (s->kind == NFA_MATCH) *match = true;
        if (s->kind == NFA_SET || s->kind == NFA_MATCH || s->kind == NFA_END) x->list[x->n_list++] = i;
        if (s->kind == NFA_SPLIT || (s->kind == NFA_START && at_start) || (s->kind == NFA_END && at_end)) {
            x->work[n++] = s->a;
            if (s->kind == NFA_SPLIT) x->work[n++] = s->b;
        }
    }
}

static int grow_sets(struct subsets *x) {
    if (2 * x->n_sets < x->table_size) return 0;
    const size_t size = x->table_size ? 2 * x->table_size : 256;
    uint32_t *table = mem_calloc(size, sizeof *table);
    if (!table) return ERR_MEMORY;
    for (uint32_t k = 0; k < x->n_sets; k++) {
        size_t at = hash64(x->members + x->first[k], x->n[k] * sizeof *x->members, 3) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = k + 1;
    }
    mem_free(x->table);
    x->table = table, x->table_size = size;
    return 0;
}

/* Returns the number of the set in x->list, adding it if it is new; NONE: no memory or too many. */
static uint32_t intern(struct subsets *x) {
    if (effort_spend(x->effort, 8 * x->n_list + x->n_visited + 8) || grow_sets(x)) return NONE;
    x->n_visited = 0;
    qsort(x->list, x->n_list, sizeof *x->list, compare_numbers);
    size_t at = hash64(x->list, x->n_list * sizeof *x->list, 3) & (x->table_size - 1);
    for (; x->table[at]; at = (at + 1) & (x->table_size - 1)) {
        const uint32_t k = x->table[at] - 1;
        if (x->n[k] == x->n_list && !memcmp(x->members + x->first[k], x->list, x->n_list * sizeof *x->list)) return k;
    }
    if (x->n_sets >= MAX_STATES || x->n_members + x->n_list > MAX_MEMBERS ||
        mem_grow(&x->first, &x->cap_first, x->n_sets + 1, sizeof *x->first) ||
        mem_grow(&x->n, &x->cap_n, x->n_sets + 1, sizeof *x->n) ||
        mem_grow(&x->members, &x->cap_members, x->n_members + x->n_list, sizeof *x->members))
        return NONE;
    x->first[x->n_sets] = (uint32_t)x->n_members;
    x->n[x->n_sets] = (uint32_t)x->n_list;
    memcpy(x->members + x->n_members, x->list, x->n_list * sizeof *x->list);
    x->n_members += x->n_list;
    x->table[at] = (uint32_t)++x->n_sets;
    return (uint32_t)x->n_sets - 1;
}

/* Adds the boundaries of a set's ranges; returns the number of sorted, distinct ones. */
static size_t boundaries(const struct subsets *x, uint32_t set, uint32_t **cuts, size_t *cap) {
    size_t n = 0;
    for (uint32_t k = 0; k < x->n[set]; k++) {
        const struct nfa_state *s = &x->f->v[x->members[x->first[set] + k]];
        if (s->kind != NFA_SET) continue;
        if (mem_grow(cuts, cap, n + 2 * s->set->n_ranges, sizeof **cuts)) return SIZE_MAX;
        for (size_t i = 0; i < s->set->n_ranges; i++)
            (*cuts)[n++] = s->set->ranges[i].from, (*cuts)[n++] = s->set->ranges[i].to + 1;
    }
    if (n) qsort(*cuts, n, sizeof **cuts, compare_numbers);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (!kept || (*cuts)[kept - 1] != (*cuts)[i]) (*cuts)[kept++] = (*cuts)[i];
    return kept;
}

static bool set_has(const struct regex *r, uint32_t c) {
    for (size_t i = 0; i < r->n_ranges && r->ranges[i].from <= c; i++)
        if (c <= r->ranges[i].to) return true;
    return false;
}

/* Adds state `set` of the result with its edges. A set with NFA_MATCH matches whatever follows. */
static int add_subset(struct subsets *x, struct maker *m, uint32_t set, uint32_t **cuts, size_t *cap) {
    bool match = false, dummy = false;
    x->stamp++, x->n_list = 0;
    for (uint32_t k = 0; k < x->n[set]; k++) closure(x, x->members[x->first[set] + k], !set, true, &match);
    int rc = begin_state(m, match);
    bool always = false;
    for (uint32_t k = 0; k < x->n[set]; k++) always |= x->f->v[x->members[x->first[set] + k]].kind == NFA_MATCH;
    if (rc) return rc;
    if (always) return add_edge(m, 0, LAST, set);
    const size_t n = boundaries(x, set, cuts, cap);
    if (n == SIZE_MAX) return ERR_MEMORY;
    if (effort_spend(x->effort, 8 * n)) return ERR_USAGE;
    for (size_t i = 0; i + 1 < n && !rc; i++) {
        const uint32_t c = (*cuts)[i];
        if (effort_spend(x->effort, 4ull * x->n[set])) return ERR_USAGE;
        x->stamp++, x->n_list = 0;
        for (uint32_t k = 0; k < x->n[set]; k++) {
            const struct nfa_state *s = &x->f->v[x->members[x->first[set] + k]];
            if (s->kind == NFA_SET && set_has(s->set, c)) closure(x, s->a, false, false, &dummy);
        }
        if (!x->n_list) continue;
        const uint32_t to = intern(x);
        rc = to == NONE ? ERR_USAGE : add_edge(m, c, (*cuts)[i + 1] - 1, to);
    }
    return rc;
}

int lang_search(struct effort *effort, const struct regex *r, struct lang *out, struct error *e) {
    static struct code_range every[] = {{0, LAST}};
    static const struct regex any = {.kind = REGEX_SET, .ranges = every, .n_ranges = 1};
    struct nfa f = {.effort = effort};
    struct maker m = {.effort = effort};
    uint32_t *cuts = NULL;
    size_t cap = 0;
    const uint32_t match = add_state(&f, (struct nfa_state){NFA_MATCH, NONE, NONE, NULL}), first = build(&f, r, match);
    const uint32_t skip = add_state(&f, (struct nfa_state){NFA_SET, NONE, NONE, &any}),
                   start = add_state(&f, (struct nfa_state){NFA_SPLIT, first, skip, NULL});
    int rc = f.failed;
    if (!rc) f.v[skip].a = start;
    struct subsets x = {.effort = effort, .f = &f};
    x.work = mem_calloc(2 * f.n + 4, sizeof *x.work);
    x.mark = mem_calloc(f.n + 1, sizeof *x.mark);
    x.list = mem_calloc(f.n + 1, sizeof *x.list);
    if (!rc && (!x.work || !x.mark || !x.list)) rc = ERR_MEMORY;
    if (!rc) {
        bool dummy = false;
        x.stamp = 1;
        closure(&x, start, true, false, &dummy);
        if (intern(&x) == NONE) rc = ERR_MEMORY;
    }
    for (uint32_t i = 0; i < x.n_sets && !rc; i++) rc = add_subset(&x, &m, i, &cuts, &cap);
    mem_free(f.v);
    mem_free(cuts);
    mem_free(x.members);
    mem_free(x.first);
    mem_free(x.n);
    mem_free(x.table);
    mem_free(x.work);
    mem_free(x.mark);
    mem_free(x.list);
    return finish(&m, rc, effort, out, e);
}

/* --- products --------------------------------------------------------------------------------- */

struct pairs {
    uint64_t *v; /* pairs of states, in the order of the product's states */
    size_t n, cap;
    uint32_t *table;
    size_t size;
};

static int grow_pairs(struct pairs *p) {
    if (2 * p->n < p->size) return 0;
    const size_t size = p->size ? 2 * p->size : 256;
    uint32_t *table = mem_calloc(size, sizeof *table);
    if (!table) return ERR_MEMORY;
    for (uint32_t k = 0; k < p->n; k++) {
        size_t at = hash64(&p->v[k], sizeof p->v[k], 5) & (size - 1);
        while (table[at]) at = (at + 1) & (size - 1);
        table[at] = k + 1;
    }
    mem_free(p->table);
    p->table = table, p->size = size;
    return 0;
}

static uint32_t pair_state(struct pairs *p, uint32_t x, uint32_t y) {
    if (grow_pairs(p)) return NONE;
    const uint64_t key = (uint64_t)x << 32 | y;
    size_t at = hash64(&key, sizeof key, 5) & (p->size - 1);
    for (; p->table[at]; at = (at + 1) & (p->size - 1))
        if (p->v[p->table[at] - 1] == key) return p->table[at] - 1;
    if (p->n >= MAX_STATES || mem_grow(&p->v, &p->cap, p->n + 1, sizeof *p->v)) return NONE;
    p->v[p->n] = key;
    p->table[at] = (uint32_t)++p->n;
    return (uint32_t)p->n - 1;
}

/* Adds the edges of one pair; y is NONE where the second language has no state any more. */
static int add_pair_edges(struct maker *m, struct pairs *p, const struct lang *x, const struct lang *y, uint32_t sx,
                          uint32_t sy, bool minus) {
    const struct lang_edge *b = sy == NONE ? NULL : y->edges + y->states[sy].first,
                           *b_end = b ? b + y->states[sy].n : NULL;
    int rc = 0;
    for (uint32_t k = 0; k < x->states[sx].n && !rc; k++) {
        const struct lang_edge a = x->edges[x->states[sx].first + k];
        for (uint32_t from = a.from; from <= a.to && !rc;) {
            while (b && b < b_end && b->to < from) b++;
            const bool in = b && b < b_end && b->from <= from;
            uint32_t to = a.to;
            if (in && b->to < to) to = b->to;
            if (!in && b && b < b_end && b->from <= to) to = b->from - 1;
            if (in || minus) {
                const uint32_t target = pair_state(p, a.target, in ? b->target : NONE);
                rc = target == NONE ? ERR_USAGE : add_edge(m, from, to, target);
            }
            from = to + 1;
        }
    }
    return rc;
}

int lang_product(struct effort *effort, const struct lang *x, const struct lang *y, bool minus, struct lang *out,
                 struct error *e) {
    struct pairs p = {0};
    struct maker m = {.effort = effort};
    int rc = pair_state(&p, 0, 0) != NONE ? 0 : ERR_MEMORY;
    for (size_t i = 0; i < p.n && !rc; i++) {
        const uint32_t sx = (uint32_t)(p.v[i] >> 32), sy = (uint32_t)p.v[i];
        const bool in = sy != NONE && y->states[sy].accepts;
        rc = begin_state(&m, x->states[sx].accepts && in != minus);
        if (!rc) rc = add_pair_edges(&m, &p, x, y, sx, sy, minus);
    }
    mem_free(p.table);
    mem_free(p.v);
    return finish(&m, rc, effort, out, e);
}

bool lang_is_empty(const struct lang *l, struct effort *effort) {
    uint8_t *seen = arena_calloc(&effort->arena, l->n_states + 1, 1);
    uint32_t *stack = arena_alloc(&effort->arena, (l->n_states + 1) * sizeof *stack), n = 0;
    if (!seen || !stack) return false;
    for (stack[n++] = 0, seen[0] = 1; n;) {
        const struct lang_state *s = &l->states[stack[--n]];
        if (s->accepts) return false;
        for (uint32_t k = 0; k < s->n; k++) {
            const uint32_t to = l->edges[s->first + k].target;
            if (!seen[to]) seen[to] = 1, stack[n++] = to;
        }
    }
    return true;
}

bool lang_has(const struct lang *l, const char *s, size_t n) {
    uint32_t at = 0;
    for (const char *end = s + n; s < end;) {
        const uint32_t c = utf8_next(&s);
        uint32_t to = NONE;
        for (uint32_t k = 0; k < l->states[at].n && to == NONE; k++) {
            const struct lang_edge *x = &l->edges[l->states[at].first + k];
            if (x->from <= c && c <= x->to) to = x->target;
        }
        if (to == NONE) return false;
        at = to;
    }
    return l->states[at].accepts;
}

static int compare_targets(const void *x, const void *y) {
    const struct lang_edge *a = x, *b = y;
    return a->target != b->target ? (a->target > b->target) - (a->target < b->target)
                                  : (a->from > b->from) - (a->from < b->from);
}

/* Whether any printable character, or with tagged any but '<', leads from the state to itself. */
static bool has_loop(const struct lang *l, uint32_t i, bool tagged) {
    const struct code_range printable[] = {
        {0x20, tagged ? '<' - 1 : 0x7E}, {tagged ? '<' + 1 : 0xA0, tagged ? 0x7E : LAST}, {0xA0, LAST}};
    const struct lang_state *s = &l->states[i];
    for (size_t r = 0; r < 3; r++) {
        uint32_t at = printable[r].from;
        for (uint32_t k = 0; k < s->n && at <= printable[r].to; k++) {
            const struct lang_edge *x = &l->edges[s->first + k];
            if (x->target == i && x->from <= at && at <= x->to) at = x->to + 1;
        }
        if (at <= printable[r].to) return false;
    }
    return true;
}

/* Whether the state accepts any text of printable characters and is never left. */
static bool is_text_state(const struct lang *l, uint32_t i) {
    const struct lang_state *s = &l->states[i];
    for (uint32_t k = 0; k < s->n; k++)
        if (l->edges[s->first + k].target != i) return false;
    return s->accepts && has_loop(l, i, false);
}

expr_id lang_expr(struct grammar *g, struct effort *effort, const struct lang *l, lang_chars chars) {
    expr_id *rules = arena_alloc(&effort->arena, (l->n_states + 1) * sizeof *rules);
    struct lang_edge *edges = arena_alloc(&effort->arena, (l->n_edges + 1) * sizeof *edges);
    /* by a character other than '<', or as the start */
    bool *entered_by_other = arena_calloc(&effort->arena, l->n_states + 1, sizeof *entered_by_other);
    if (!rules || !edges || !entered_by_other) return EXPR_FAILED;
    entered_by_other[0] = true;
    for (uint32_t k = 0; k < l->n_edges; k++)
        entered_by_other[l->edges[k].target] |= l->edges[k].from != '<' || l->edges[k].to != '<';
    for (uint32_t i = 0; i < l->n_states; i++) rules[i] = grammar_rule(g);
    if (l->n_edges) memcpy(edges, l->edges, l->n_edges * sizeof *edges);
    for (uint32_t i = 0; i < l->n_states; i++) {
        const struct lang_state *s = &l->states[i];
        expr_id body = s->accepts ? EXPR_EMPTY : EXPR_NEVER;
        struct lang_edge *x = edges + s->first;
        if (is_text_state(l, i)) {
            expr_id one = EXPR_NEVER;
            for (uint32_t k = 0; k < s->n; k++) one = grammar_alt(g, one, chars(g, x[k].from, x[k].to, false));
            grammar_define(g, rules[i], grammar_text(g, one, 0, GRAMMAR_UNBOUNDED));
            continue;
        }
        qsort(x, s->n, sizeof *x, compare_targets);
        expr_id loop = EXPR_EMPTY;
        for (uint32_t k = 0; k < s->n;) {
            expr_id one = EXPR_NEVER;
            const uint32_t target = x[k].target;
            for (; k < s->n && x[k].target == target; k++)
                one = grammar_alt(g, one, chars(g, x[k].from, x[k].to, !entered_by_other[i]));
            if (target == i && has_loop(l, i, true)) loop = grammar_tagged_text(g, one);
            else body = grammar_alt(g, body, grammar_seq(g, one, rules[target]));
        }
        grammar_define(g, rules[i], grammar_seq(g, loop, body));
    }
    return rules[0];
}
