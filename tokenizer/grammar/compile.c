#include <string.h>

#include "base/mem.h"
#include "tokenizer/grammar/grammar_internal.h"

/* Turns expressions into rules and computes what the automaton needs of them: shortest texts, nesting, empty rules. */

enum { NO_TEXT = UINT32_MAX, NO_NEST = 255 };

static int set_limit_error(int code, struct error *e) {
    if (code == ERR_MEMORY) return error_set(e, ERR_MEMORY, "no memory for the grammar");
    return error_set(e, ERR_USAGE, "the grammar is too large: at most %d symbols", GRAMMAR_MAX_ELEMS);
}

/* --- rules ------------------------------------------------------------------------------------ */

struct queue { /* expressions whose rules have no alternatives yet, in the order of their rules */
    expr_id *v;
    size_t n, cap;
};

/* Returns the rule of an expression and queues the expression if the rule is new. */
static uint32_t rule_of(struct grammar *g, struct queue *q, expr_id x) {
    struct expr *p = &g->exprs[x];
    if (p->rule) return p->rule - 1;
    if (mem_grow(&g->rules, &g->cap_rules, g->n_rules + 1, sizeof *g->rules) ||
        mem_grow(&q->v, &q->cap, q->n + 1, sizeof *q->v)) {
        g->failed = ERR_MEMORY;
        return 0;
    }
    q->v[q->n++] = x;
    g->rules[g->n_rules] =
        (struct rule){.is_lexeme = p->kind == EXPR_RULE && p->is_lexeme, .nests = p->kind == EXPR_RULE && p->nests};
    p->rule = (uint32_t)++g->n_rules;
    return p->rule - 1;
}

static void add_elem(struct grammar *g, struct elem x) {
    if (g->failed) return;
    if (g->n_elems >= GRAMMAR_MAX_ELEMS || effort_spend(g->effort, 4)) g->failed = ERR_USAGE;
    else if (mem_grow(&g->elems, &g->cap_elems, g->n_elems + 1, sizeof *g->elems)) g->failed = ERR_MEMORY;
    else g->elems[g->n_elems++] = x;
}

/* A list of expressions that are still to be visited. */
struct pending {
    expr_id *v;
    size_t n, cap;
};
static void push(struct grammar *g, struct pending *p, expr_id x) {
    if (mem_grow(&p->v, &p->cap, p->n + 1, sizeof *p->v)) g->failed = ERR_MEMORY;
    else p->v[p->n++] = x;
}

/* Adds the symbols of a sequence. byte_sets: by byte, the set of it alone, plus 1; 0: none yet. */
static void add_sequence(struct grammar *g, struct queue *q, struct pending *stack, uint32_t *byte_sets, expr_id from) {
    const size_t base = stack->n;
    for (push(g, stack, from); stack->n > base && !g->failed;) {
        const expr_id x = stack->v[--stack->n];
        const struct expr p = g->exprs[x];
        switch ((enum expr_kind)p.kind) {
        case EXPR_CONSTANT: break; /* EMPTY */
        case EXPR_SEQ:
            push(g, stack, p.b);
            push(g, stack, p.a);
            break;
        case EXPR_LITERAL:
            for (uint32_t i = 0; i < p.b; i++) {
                const uint8_t c = g->bytes[p.a + i];
                struct byte_set s = {0};
                byte_set_add(&s, c, c);
                if (!byte_sets[c]) byte_sets[c] = grammar_add_set(g, &s) + 1;
                add_elem(g, (struct elem){.kind = ELEM_CLASS, .arg = byte_sets[c] - 1});
            }
            break;
        case EXPR_CLASS: add_elem(g, (struct elem){.kind = ELEM_CLASS, .arg = p.a}); break;
        case EXPR_REPEAT:
            add_elem(g, (struct elem){
                            .kind = ELEM_REPEAT, .arg = rule_of(g, q, p.a), .lo = p.lo, .hi = p.hi, .text = p.text});
            break;
        case EXPR_ALT:
        case EXPR_RULE: add_elem(g, (struct elem){.kind = ELEM_RULE, .arg = rule_of(g, q, x)}); break;
        }
    }
    add_elem(g, (struct elem){.kind = ELEM_END});
}

static void add_alternatives(struct grammar *g, struct queue *q, uint32_t rule, uint32_t *byte_sets) {
    struct pending stack = {0};
    expr_id x = q->v[rule];
    g->rules[rule].first_alt = (uint32_t)g->n_alts;
    if (g->exprs[x].kind == EXPR_RULE) x = g->exprs[x].a;
    for (push(g, &stack, x); stack.n && !g->failed;) {
        const expr_id y = stack.v[--stack.n];
        if (y == EXPR_NEVER) continue;
        if (g->exprs[y].kind == EXPR_ALT) {
            push(g, &stack, g->exprs[y].b);
            push(g, &stack, g->exprs[y].a);
            continue;
        }
        if (mem_grow(&g->alts, &g->cap_alts, g->n_alts + 1, sizeof *g->alts)) g->failed = ERR_MEMORY;
        else g->alts[g->n_alts++] = (uint32_t)g->n_elems;
        add_sequence(g, q, &stack, byte_sets, y);
    }
    g->rules[rule].n_alts = (uint32_t)g->n_alts - g->rules[rule].first_alt;
    mem_free(stack.v);
}

/* --- properties ------------------------------------------------------------------------------- */

static uint32_t add_bytes(uint32_t a, uint64_t b) {
    return a == NO_TEXT || b >= NO_TEXT || a + b >= NO_TEXT / 2 ? (a == NO_TEXT || b >= NO_TEXT ? NO_TEXT : NO_TEXT / 2)
                                                                : (uint32_t)(a + b);
}

static uint32_t elem_min(const struct grammar *g, const struct elem *x) {
    if (x->kind == ELEM_CLASS) return 1;
    const uint32_t min = g->rules[x->arg].min;
    if (x->kind == ELEM_RULE) return min;
    if (!x->lo) return 0;
    if (min == NO_TEXT) return NO_TEXT;
    const uint64_t bytes = (uint64_t)min * x->lo;
    return add_bytes(0, bytes < NO_TEXT / 2 ? bytes : NO_TEXT / 2);
}
static uint8_t elem_nest(const struct grammar *g, const struct elem *x) {
    return x->kind == ELEM_RULE || (x->kind == ELEM_REPEAT && x->lo) ? g->rules[x->arg].min_nest : 0;
}
static bool elem_nullable(const struct grammar *g, const struct elem *x) {
    return x->kind == ELEM_RULE ? g->rules[x->arg].nullable
                                : x->kind == ELEM_REPEAT && (!x->lo || g->rules[x->arg].nullable);
}

/* Recomputes a rule from the rules that it uses. Returns whether anything changed. */
static bool update_rule(struct grammar *g, struct rule *r) {
    uint32_t min = NO_TEXT;
    int nest = NO_NEST;
    uint64_t n = r->n_alts + 1; /* symbols */
    bool can_nest = r->nests, nullable = false;
    for (uint32_t a = 0; a < r->n_alts; a++) {
        const struct elem *x = &g->elems[g->alts[r->first_alt + a]];
        uint32_t bytes = 0;
        int levels = 0;
        bool empty = true;
        for (; x->kind != ELEM_END; x++, n++) {
            bytes = add_bytes(bytes, elem_min(g, x));
            if (elem_nest(g, x) > levels) levels = elem_nest(g, x);
            empty = empty && elem_nullable(g, x);
            can_nest |= x->kind != ELEM_CLASS && g->rules[x->arg].can_nest;
        }
        if (bytes < min) min = bytes;
        if (levels < nest) nest = levels;
        nullable |= empty;
    }
    nest = nest + r->nests > NO_NEST ? NO_NEST : nest + r->nests;
    const bool changed = min != r->min || nest != r->min_nest || can_nest != r->can_nest || nullable != r->nullable;
    r->min = min, r->min_nest = (uint8_t)nest, r->can_nest = can_nest, r->nullable = nullable;
    if (effort_spend(g->effort, n)) g->failed = ERR_USAGE;
    return changed && !g->failed;
}

static void compute_rules(struct grammar *g) {
    bool changed = true;
    for (size_t i = 0; i < g->n_rules; i++) g->rules[i].min = NO_TEXT, g->rules[i].min_nest = NO_NEST;
    while (changed && !g->failed) {
        changed = false;
        for (size_t i = g->n_rules; i-- > 0;) changed |= update_rule(g, &g->rules[i]);
        for (size_t i = 0; i < g->n_rules; i++) changed |= update_rule(g, &g->rules[i]);
    }
}

/* Removes alternatives that match nothing, and sets what the rest of each alternative needs. */
static int finish_alternatives(struct grammar *g, struct error *e) {
    for (size_t i = 0; i < g->n_rules; i++) {
        struct rule *r = &g->rules[i];
        uint32_t n_alts = 0;
        for (uint32_t a = 0; a < r->n_alts; a++) {
            const uint32_t begin = g->alts[r->first_alt + a];
            struct elem *first = &g->elems[begin], *x = first;
            for (; x->kind != ELEM_END; x++) {
                if (x->kind != ELEM_REPEAT) continue;
                if (g->rules[x->arg].min == NO_TEXT && !x->lo) x->hi = 0;
                if (!g->rules[x->arg].nullable || x->hi == GRAMMAR_UNBOUNDED || !x->hi) continue;
                if (x->hi > GRAMMAR_MAX_EMPTY_REPEAT)
                    return error_set(e, ERR_USAGE,
                                     "an expression that may be empty is repeated up to %u times; the limit is %d",
                                     x->hi, GRAMMAR_MAX_EMPTY_REPEAT);
                x->lo = 0;
            }
            for (uint32_t bytes = 0, levels = 0; x-- > first;) {
                if (x->kind == ELEM_REPEAT && g->rules[x->arg].nullable) x->lo = 0;
                bytes = x->rest = add_bytes(bytes, elem_min(g, x));
                if (elem_nest(g, x) > levels) levels = elem_nest(g, x);
                x->nest = (uint8_t)levels;
            }
            if (first->kind == ELEM_END || first->rest != NO_TEXT) g->alts[r->first_alt + n_alts++] = begin;
        }
        r->n_alts = n_alts;
    }
    return 0;
}

/* --- left recursion --------------------------------------------------------------------------- */

struct visit { /* a rule whose first symbols are being visited */
    uint32_t rule, alt, elem;
};

/* Finds the next rule at the beginning of v's rule. Returns false after the last one. */
static bool next_first(const struct grammar *g, struct visit *v, uint32_t *out) {
    const struct rule *r = &g->rules[v->rule];
    for (; v->alt < r->n_alts; v->alt++, v->elem = 0) {
        const uint32_t begin = g->alts[r->first_alt + v->alt];
        const struct elem *x = &g->elems[begin + v->elem];
        if (v->elem && !elem_nullable(g, x - 1)) continue;
        if (x->kind == ELEM_END) continue;
        v->elem++;
        if (x->kind == ELEM_CLASS) continue;
        *out = x->arg;
        return true;
    }
    return false;
}

static int refuse_left_recursion(struct grammar *g, struct error *e) {
    enum { UNSEEN, OPEN, DONE };
    struct visit *path = mem_alloc((g->n_rules + 1) * sizeof *path);
    uint8_t *seen = mem_calloc(g->n_rules + 1, 1);
    int rc = path && seen ? 0 : set_limit_error(ERR_MEMORY, e);
    for (uint32_t i = 0; i < g->n_rules && !rc; i++) {
        if (seen[i]) continue;
        size_t n = 0;
        path[n++] = (struct visit){.rule = i};
        seen[i] = OPEN;
        while (n && !rc) {
            uint32_t first;
            if (!next_first(g, &path[n - 1], &first)) seen[path[--n].rule] = DONE;
            else if (seen[first] == OPEN) rc = error_set(e, ERR_USAGE, "left recursion: a rule begins with itself");
            else if (!seen[first]) {
                seen[first] = OPEN;
                path[n++] = (struct visit){.rule = first};
            }
        }
    }
    mem_free(path);
    mem_free(seen);
    return rc;
}

/* Divides the bytes into classes by the sets that they are in. */
static void classify_bytes(struct grammar *g, struct grammar_rules *out) {
    out->n_classes = 1;
    for (size_t i = 0; i < g->n_sets; i++) {
        if (effort_spend(g->effort, 256)) g->failed = ERR_USAGE;
        if (g->failed) return;
        /* the class of a class's bytes that are in the set, and one of its bytes that is not */
        int fresh[256], n = out->n_classes;
        bool outside[256] = {false};
        memset(fresh, -1, sizeof fresh);
        for (int b = 0; b < 256; b++) outside[out->byte_class[b]] |= !byte_set_has(&g->sets[i], (uint8_t)b);
        for (int b = 0; b < 256; b++) {
            const uint8_t c = out->byte_class[b];
            if (!byte_set_has(&g->sets[i], (uint8_t)b) || !outside[c]) continue;
            if (fresh[c] < 0) fresh[c] = n++;
            out->byte_class[b] = (uint8_t)fresh[c];
        }
        out->n_classes = n;
    }
}

int grammar_finish(struct grammar *g, expr_id root, struct error *e) {
    struct queue q = {0};
    uint32_t byte_sets[256] = {0};
    if (!g->failed && root == EXPR_NEVER) return error_set(e, ERR_USAGE, "no text matches it");
    if (!g->failed) rule_of(g, &q, root);
    for (uint32_t i = 0; i < q.n && !g->failed; i++) add_alternatives(g, &q, i, byte_sets);
    mem_free(q.v);
    if (g->failed || !root) return set_limit_error(g->failed, e);
    compute_rules(g);
    if (g->failed) return set_limit_error(g->failed, e);
    if (g->rules[0].min == NO_TEXT || g->rules[0].min_nest > GRAMMAR_MAX_NEST)
        return error_set(e, ERR_USAGE, "no text matches it, or every text nests deeper than %d levels",
                         GRAMMAR_MAX_NEST);
    int rc = finish_alternatives(g, e);
    if (!rc) rc = refuse_left_recursion(g, e);
    g->compiled = (struct grammar_rules){
        .elems = g->elems, .sets = g->sets, .rules = g->rules, .alts = g->alts, .n_elems = g->n_elems};
    if (!rc) classify_bytes(g, &g->compiled);
    g->effort = NULL;
    return !rc && g->failed ? set_limit_error(g->failed, e) : rc;
}
