#include "cpu/expert_groups.h"

#include <string.h>

#include "base/mem.h"

enum { GROUP_MAX = 512 }; /* tokens of a group; 384 gain nothing (test/bench/gemm.md) */

/* --- Kernels ---------------------------------------------------------------------------------- */

static bool has_kernel(const struct cpu_exec *x, const struct mat *m, bool transposed) {
    return m->data && (transposed ? x->k.gevm[m->dtype] && !m->scale : x->k.gemv[m->dtype] != NULL);
}
static bool is_supported(const struct cpu_exec *x, const struct expert *e) {
    return has_kernel(x, &e->gate, e->gate_up_transposed) && has_kernel(x, expert_up(e), e->gate_up_transposed) &&
           has_kernel(x, &e->down, e->is_transposed);
}

static const struct gemm *select_gemm(const struct cpu_exec *x, int n, const struct mat *m, bool transposed, int batch,
                                      bool wide) {
    const struct gemm *special = gemm_for_weights(x->level, n, batch, wide, m);
    /* transposing a matrix pays off only from some tokens on */
    if (transposed) special = NULL;
    if (special && special->supports(m, n)) return special;
    /* With up to 16 tokens, filling gemm_avx2's panels costs more than it saves. */
    const int most = x->level == CPU_AVX2 && !transposed ? 2 * KERNEL_TOKENS : KERNEL_TOKENS;
    return batch > BATCH_INVARIANT_ROWS && n > most ? gemm_for(x->level, wide) : NULL;
}
/* Selects the kernels for n tokens of an expert in a batch. */
static void select_kernels(const struct cpu_exec *x, const struct expert *e, int n, int batch, bool wide,
                           const struct gemm **gemm) {
    const bool transposed[MATRICES] = {e->gate_up_transposed, e->gate_up_transposed, e->is_transposed};
    const struct mat *m[MATRICES] = {&e->gate, expert_up(e), &e->down};
    for (int k = 0; k < MATRICES; k++) gemm[k] = select_gemm(x, n, m[k], transposed[k], batch, wide);
}

/* --- Groups ----------------------------------------------------------------------------------- */

/* Tokens [at, at + n) of the arrays, whose expert takes these kernels. */
struct part {
    int at, n;
    const struct gemm *gemm[MATRICES];
};
struct plan {
    const struct cpu_exec *x;
    const struct op_experts *o;
    struct expert_groups *g;
    const struct op_prompts *prompts; /* whose tokens may need different kernels; NULL: one */
    int batch;                        /* number of rows that kernels are chosen for */
    int32_t *start;                   /* [n_experts + 2]: each expert's first token; the shared one is the last */
    /* with prompts: the parts of an expert, [n_parts]; its tokens, rows and weights in another order, [n] each */
    struct part *parts;
    int32_t *tokens, *rows;
    float *weights;
};

static const struct expert *expert_of(const struct op_experts *o, int e) {
    return o->ids && e < o->n_experts ? &o->experts[e] : o->shared;
}
static struct part make_part(const struct plan *p, int e, int at, int n) {
    struct part t = {.at = at, .n = n < GROUP_MAX ? n : GROUP_MAX};
    select_kernels(p->x, expert_of(p->o, e), t.n < p->batch ? t.n : p->batch, p->batch, p->o->wide, t.gemm);
    return t;
}
static void add_group(const struct plan *p, int e, const struct part *t) {
    struct group *g = &p->g->groups[p->g->n++];
    *g = (struct group){.expert = expert_of(p->o, e),
                        .id = e,
                        .tokens = p->g->tokens + t->at,
                        .rows = p->g->rows + t->at,
                        .weights = p->g->weights + t->at,
                        .n = t->n};
    memcpy(g->gemm, t->gemm, sizeof g->gemm);
}

/* Cuts an expert's tokens [at, end) where the prompt changes. Returns the number of parts. */
static int cut_by_prompt(const struct plan *p, int e, int at, int end) {
    const int32_t *tokens = p->g->tokens;
    int n = 0;
    for (int i = 0, next; at < end; at = next) {
        while (tokens[at] >= p->prompts->end[i]) i++;
        for (next = at; next < end && tokens[next] < p->prompts->end[i]; next++) {
        }
        p->parts[n] = make_part(p, e, at, next - at);
        next = at + p->parts[n++].n;
    }
    return n;
}
/* Moves parts with the same kernels together; each such run is a group. */
static void join_parts(const struct plan *p, int e, int n_parts) {
    const struct expert_groups *g = p->g;
    const int first = p->parts[0].at;
    int n = 0;
    for (int i = 0; i < n_parts; i++) {
        struct part joined = p->parts[i];
        if (!joined.n) continue;
        joined.at = first + n, joined.n = 0;
        for (int k = i; k < n_parts; k++) {
            struct part *t = &p->parts[k];
            if (joined.n + t->n > GROUP_MAX || memcmp(t->gemm, joined.gemm, sizeof t->gemm)) continue;
            memcpy(p->tokens + n, g->tokens + t->at, (size_t)t->n * 4);
            memcpy(p->rows + n, g->rows + t->at, (size_t)t->n * 4);
            memcpy(p->weights + n, g->weights + t->at, (size_t)t->n * 4);
            n += t->n, joined.n += t->n, t->n = 0;
        }
        add_group(p, e, &joined);
    }
    memcpy(g->tokens + first, p->tokens, (size_t)n * 4);
    memcpy(g->rows + first, p->rows, (size_t)n * 4);
    memcpy(g->weights + first, p->weights, (size_t)n * 4);
}
static void group_expert(const struct plan *p, int e, int at, int end) {
    if (p->prompts && end > at) join_parts(p, e, cut_by_prompt(p, e, at, end));
    while (!p->prompts && at < end) {
        const struct part t = make_part(p, e, at, end - at);
        add_group(p, e, &t);
        at += t.n;
    }
}

/* Counts each expert's tokens in start[e + 1]. Returns an error code. */
static int count_tokens(struct plan *p, int n_pairs) {
    const struct op_experts *o = p->o;
    for (int i = 0; i < n_pairs; i++) {
        const int e = o->ids[i];
        if (e == -1) continue;
        if (e < 0 || e >= o->n_experts || !is_supported(p->x, &o->experts[e])) return ERR_RUNTIME;
        p->start[e + 1]++;
    }
    return o->shared && !is_supported(p->x, o->shared) ? ERR_RUNTIME : 0;
}
/* Sorts the tokens by expert; start[e] becomes e's first. */
static void sort_tokens(struct plan *p, int e_max, int n_pairs) {
    const struct op_experts *o = p->o;
    struct expert_groups *g = p->g;
    for (int e = 0; e < e_max; e++) p->start[e + 1] += p->start[e];
    const int routed = p->start[e_max];
    /* backwards: start[e + 1] decreases to e's first token, the order of tokens is kept */
    for (int i = n_pairs - 1; i >= 0; i--) {
        if (o->ids[i] == -1) continue;
        const int at = --p->start[o->ids[i] + 1];
        g->tokens[at] = i / o->topk;
        g->weights[at] = o->by_choice ? 1 : o->weights[i];
        g->rows[at] = o->by_choice ? i : g->tokens[at];
    }
    for (int e = 0; e < e_max; e++) p->start[e] = p->start[e + 1];
    p->start[e_max] = routed;
    p->start[e_max + 1] = routed + (o->shared ? o->n : 0);
    for (int i = 0; i < o->n && o->shared; i++) {
        g->tokens[routed + i] = i;
        g->weights[routed + i] = o->shared_weight ? o->shared_weight[i] : 1;
        g->rows[routed + i] = i;
    }
}

static int make(struct plan *p) {
    const struct op_experts *o = p->o;
    struct expert_groups *g = p->g;
    const int e_max = o->ids ? o->n_experts : 0, n_pairs = o->ids ? o->n * o->topk : 0,
              total = n_pairs + (o->shared ? o->n : 0), n_prompts = p->prompts ? p->prompts->n : 1;
    const size_t all = (size_t)total * 4, parts = (size_t)(total / GROUP_MAX + n_prompts),
                 most = (size_t)(e_max + 1) * (size_t)n_prompts + (size_t)(total / GROUP_MAX);
    p->start = mem_calloc((size_t)e_max + 2, 4);
    g->tokens = mem_alloc(all), g->rows = mem_alloc(all), g->weights = mem_alloc(all);
    g->groups = mem_calloc(most < (size_t)total ? most : (size_t)total, sizeof *g->groups);
    if (!p->start || !g->tokens || !g->rows || !g->weights || !g->groups) return ERR_MEMORY;
    if (p->prompts) {
        p->parts = mem_alloc(parts * sizeof *p->parts);
        p->tokens = mem_alloc(all), p->rows = mem_alloc(all), p->weights = mem_alloc(all);
        if (!p->parts || !p->tokens || !p->rows || !p->weights) return ERR_MEMORY;
    }
    TRY(count_tokens(p, n_pairs));
    sort_tokens(p, e_max, n_pairs);
    for (int e = 0; e <= e_max; e++) group_expert(p, e, p->start[e], p->start[e + 1]);
    return 0;
}

int expert_groups_make(const struct cpu_exec *x, const struct op_experts *o, struct expert_groups *g) {
    const struct op_prompts *s = x->base.prompts;
    struct plan p = {.x = x, .o = o, .g = g, .batch = o->n};
    if (s && s->is_few && o->n > BATCH_INVARIANT_ROWS) p.batch = BATCH_INVARIANT_ROWS;
    if (s && !s->is_few && s->n > 1 && o->n == s->end[s->n - 1]) p.prompts = s;
    const int rc = make(&p);
    mem_free(p.start);
    mem_free(p.parts);
    mem_free(p.tokens);
    mem_free(p.rows);
    mem_free(p.weights);
    return rc;
}
void expert_groups_free(struct expert_groups *g) {
    mem_free(g->groups);
    mem_free(g->tokens);
    mem_free(g->rows);
    mem_free(g->weights);
    *g = (struct expert_groups){0};
}
