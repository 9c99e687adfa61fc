/* FFNs: of one group of tokens, of all resident experts of a layer, and of the groups of several experts at once. Small
 * groups are batched: one launch for gate and up, one for down, one that adds the results to their tokens. Large groups
 * run one by one. How an expert's group is computed depends on its size alone, and a token's experts are added in
 * rising order, so results do not depend on which experts were batched. */
#include <string.h>

#include "gpu/cuda.h"

enum { TILED_TOKENS = 4096 };                      /* per pass, to bound the workspace */
static const size_t FFN_SPACE = (size_t)128 << 20; /* activations of a group, for the same reason */

/* --- Tiled kernels: one expert, or up to OP_GROUP_MAX --------------------------------------- */

struct tile_layout {
    bool fp8;
    int ldx, ldh;
    size_t x_scale, h, hq, h_scale, size; /* offsets after x */
};
static struct tile_layout tiled_plan(const struct cuda_stream *s, const struct expert *e, int n) {
    struct tile_layout p = {.fp8 = cuda_math(s) == GPU_MATH_FP8 && cuda_tiles_fp8_fit(&e->gate) &&
                                   cuda_tiles_fp8_fit(&e->down)};
    size_t rows = (size_t)n;
    p.ldx = cuda_round_up(e->gate.cols, 16);
    p.ldh = cuda_round_up(e->gate.rows, 16);
    p.x_scale = align_up(rows * (size_t)p.ldx * (p.fp8 ? 1 : 2), 256);
    p.h = p.x_scale + (p.fp8 ? align_up(rows * (size_t)((p.ldx + 127) / 128) * 4, 256) : 0);
    p.hq = p.h + align_up(rows * (size_t)p.ldh * (p.fp8 ? 4 : 2), 256);
    p.h_scale = p.hq + (p.fp8 ? align_up(rows * (size_t)p.ldh, 256) : 0);
    p.size = p.h_scale + (p.fp8 ? align_up(rows * (size_t)((p.ldh + 127) / 128) * 4, 256) : 0);
    return p;
}

/* A group is split so that its remainder has a tile size of its own: 65 tokens are one tile of 64 and one of 16. */
static const int tile_sizes[] = {128, 64, 32, 16};
static void split_group(int n, int part[4]) {
    int rest = n % 128;
    memset(part, 0, 4 * sizeof *part);
    part[0] = n - rest;
    if (rest > 96) part[0] = n;
    else if (rest > 64) part[1] = 64, part[rest > 80 ? 2 : 3] = rest - 64;
    else part[rest > 32 ? 1 : rest > 16 ? 2 : 3] = rest;
}

struct product_group { /* of experts e[0 .. n), expert k on rows [begin[k], begin[k + 1]) */
    const struct expert *const *e;
    const int *begin;
    int n;
};
static int run_tiles(struct cuda_stream *s, const struct product_group *g, const struct cuda_tiles *like, bool fp8) {
    for (int c = 0; c < 4; c++) {
        struct cuda_tiles t = *like;
        for (int k = 0; k < g->n; k++) {
            int part[4], row = g->begin[k] - g->begin[0];
            split_group(g->begin[k + 1] - g->begin[k], part);
            for (int i = 0; i < c; i++) row += part[i];
            t.w[k] = like->gated ? g->e[k]->gate : g->e[k]->down;
            t.w2[k] = *expert_up(g->e[k]);
            t.bias[k] = like->gated ? g->e[k]->gate_bias : g->e[k]->down_bias;
            t.bias2[k] = expert_up_bias(g->e[k]);
            if (part[c]) {
                t.part[t.n_parts].w = k;
                t.part[t.n_parts].row = row;
                t.part[t.n_parts++].n = part[c];
            }
        }
        if (cuda_check(s->g,
                       fp8 ? cuda_tiles_fp8(s->stream, &t, cuda_fp8_tile(s->g, tile_sizes[c]))
                           : cuda_tiles_bf16(s->stream, &t, tile_sizes[c]),
                       fp8 ? "tiles_fp8" : "tiles_bf16"))
            return ERR_RUNTIME;
    }
    return 0;
}

static int n_outputs(const struct expert *e) { return e->is_transposed ? e->down.cols : e->down.rows; }

/* y [rows, hidden] = the experts' results for rows index[i] (NULL: i) of x, not weighted. */
static int run_products(struct cuda_stream *s, const struct product_group *g, float *y, const float *x,
                        const int32_t *index, char *space) {
    int n = g->begin[g->n] - g->begin[0], hidden = expert_hidden(g->e[0]), inter = expert_inter(g->e[0]),
        out = n_outputs(g->e[0]);
    struct tile_layout p = tiled_plan(s, g->e[0], n);
    float *x_scale = (float *)(space + p.x_scale), *h_scale = (float *)(space + p.h_scale);
    struct cuda_tiles up = {.x = space,
                            .x_scale = x_scale,
                            .y = space + p.h,
                            .ldx = p.ldx,
                            .scale_ld = n,
                            .ldy = p.ldh,
                            .gated = 1,
                            .glu = g->e[0]->glu};
    struct cuda_tiles down = {
        .x = p.fp8 ? space + p.hq : space + p.h, .x_scale = h_scale, .y = y, .ldx = p.ldh, .scale_ld = n, .ldy = out};
    cudaError_t c = p.fp8 ? cuda_gather_fp8(s->stream, space, x_scale, x, index, n, hidden, hidden, p.ldx, n)
                          : cuda_gather_bf16(s->stream, space, x, index, n, hidden, hidden, p.ldx);
    if (cuda_check(s->g, c, "gather") || run_tiles(s, g, &up, p.fp8)) return ERR_RUNTIME;
    if (p.fp8 && cuda_check(s->g,
                            cuda_gather_fp8(s->stream, space + p.hq, h_scale, (float *)(space + p.h), NULL, n, inter,
                                            p.ldh, p.ldh, n),
                            "gather"))
        return ERR_RUNTIME;
    return run_tiles(s, g, &down, p.fp8);
}

/* --- One FFN in chunks of tokens: gate and up next to each other, glu, down ------------------- */

struct ffn {
    bool is_routed, tiled, few; /* few: gate, up and glu in one launch */
    const struct expert *e;
    struct op_linear gate, up, down;
    int piece, inter;
    size_t x, gate_up, act, scratch; /* offsets in the workspace, and its size; x in gate's order, if it has one */
    size_t size;
};
static int ffn_piece(bool is_tiled, int inter, int n) {
    const size_t piece = FFN_SPACE / (12 * (size_t)inter);
    if (is_tiled) return n < TILED_TOKENS ? n : TILED_TOKENS;
    if (piece < 64) return 64;
    return piece > (size_t)n ? n : (int)piece;
}
static struct ffn ffn_plan(const struct cuda_stream *s, const struct expert *e, int n, bool is_routed, size_t base) {
    struct ffn f = {.inter = expert_inter(e),
                    .e = e,
                    .is_routed = is_routed,
                    .tiled = cuda_linear_is_tiled(s, e, n, is_routed),
                    .few = cuda_linear_gates_few(e, n),
                    .x = base};
    f.piece = ffn_piece(f.tiled, f.inter, n);
    f.gate_up = base + (e->gate.order ? align_up((size_t)f.piece * (size_t)e->gate.cols * 4, 256) : 0);
    if (f.tiled) {
        f.size = f.gate_up + tiled_plan(s, e, f.piece).size;
        return f;
    }
    f.gate = (struct op_linear){.w = e->gate,
                                .bias = e->gate_bias,
                                .n = f.piece,
                                .ldx = expert_hidden(e),
                                .ldy = 2 * f.inter,
                                .transposed = e->gate_up_transposed};
    f.up = f.gate;
    f.up.w = *expert_up(e), f.up.bias = expert_up_bias(e);
    f.down = (struct op_linear){.w = e->down,
                                .bias = e->down_bias,
                                .n = f.piece,
                                .ldx = f.inter,
                                .ldy = n_outputs(e),
                                .transposed = e->is_transposed};
    f.act = f.gate_up + align_up((size_t)f.piece * 2 * (size_t)f.inter * 4, 256);
    f.scratch = f.act + align_up((size_t)f.piece * (size_t)f.inter * 4, 256);
    size_t a = cuda_linear_workspace_bytes(s, &f.gate, is_routed), b = cuda_linear_workspace_bytes(s, &f.up, is_routed),
           c = cuda_linear_workspace_bytes(s, &f.down, is_routed);
    f.size = f.scratch + (a > b ? (a > c ? a : c) : b > c ? b : c);
    return f;
}
static int ffn_run(struct cuda_stream *s, struct ffn *f, float *y, const float *x, int n, char *space) {
    float *gate_up = (float *)(space + f->gate_up), *act = (float *)(space + f->act);
    for (int t = 0; t < n; t += f->piece) {
        int m = t + f->piece < n ? f->piece : n - t;
        float *to = y + (size_t)t * (size_t)n_outputs(f->e);
        const float *from = x + (size_t)t * (size_t)expert_hidden(f->e);
        if (f->e->gate.order) {
            if (cuda_check(s->g, cuda_order_x(s->stream, (float *)(space + f->x), from, f->e->gate, m, f->e->gate.cols),
                           "order of columns"))
                return ERR_RUNTIME;
            from = (float *)(space + f->x);
        }
        if (f->tiled) {
            struct product_group one = {&f->e, (int[]){0, m}, 1};
            if (run_products(s, &one, to, from, NULL, space + f->gate_up)) return ERR_RUNTIME;
            continue;
        }
        f->gate.n = f->up.n = f->down.n = m;
        f->gate.x = f->up.x = from;
        f->gate.y = gate_up;
        f->up.y = gate_up + f->inter;
        f->down.x = act;
        f->down.y = to;
        int r = f->few ? cuda_linear_run_gated(s, f->e, f->e->glu, act, from, m)
                       : cuda_linear_run(s, &f->gate, f->is_routed, space + f->scratch);
        if (!r && !f->few) r = cuda_linear_run(s, &f->up, f->is_routed, space + f->scratch);
        if (!r && !f->few) r = cuda_check(s->g, cuda_glu(s->stream, act, gate_up, m, f->inter, f->e->glu), "glu");
        if (!r) r = cuda_linear_run(s, &f->down, f->is_routed, space + f->scratch);
        if (r) return r;
    }
    return 0;
}
int cuda_ffn_op(struct cuda_stream *s, const struct op_ffn *a) {
    if (a->n < 1) return 0;
    struct ffn f = ffn_plan(s, &a->expert, a->n, false, 0);
    char *space = cuda_workspace(s, f.size);
    return space ? ffn_run(s, &f, a->y, a->x, a->n, space) : ERR_RUNTIME;
}

/* --- Groups ----------------------------------------------------------------------------------- */

struct groups {
    float *y;
    const float *x;
    const int32_t *token;
    const float *weight;
    const struct expert *experts;
    const int32_t *begin; /* [n + 1] */
    int n, hidden;
    const float *norm; /* as in op_group */
    float eps;
    const int32_t *rows; /* NULL, or by_choice: rows of y of the pairs, which are not weighted */
};
/* Norms n outputs of experts in place. */
static int norm_outputs(struct cuda_stream *s, const struct groups *g, float *v, int n) {
    const int dim = g->hidden;
    if (!g->norm) return 0;
    const struct op_gate by = {.y = v,
                               .g = g->norm,
                               .n = n,
                               .heads = 1,
                               .dim = dim,
                               .ldy = dim,
                               .head_ldy = dim,
                               .head_ldg = dim,
                               .kind = GATE_LINEAR};
    const struct op_norm norm = {
        .out = v, .x = v, .w_dtype = DT_F32, .rows = n, .dim = dim, .ldx = dim, .ldo = dim, .eps = g->eps};
    return cuda_check(s->g, cuda_gate(s->stream, &by), "gate") || cuda_check(s->g, cuda_norm(s->stream, &norm), "norm")
               ? ERR_RUNTIME
               : 0;
}
/* Adds the outputs v of n pairs from pair `at` on, all of one expert or with rows of their own, to their rows of y. */
static int scatter_outputs(struct cuda_stream *s, const struct groups *g, const float *v, int at, int n) {
    const int32_t *to = g->rows ? g->rows + at : g->token + at;
    const struct op_scatter_add add = {.y = g->y,
                                       .x = v,
                                       .index = to,
                                       .weight = g->rows ? NULL : g->weight + at,
                                       .n = n,
                                       .dim = g->hidden,
                                       .ldy = g->hidden};
    return cuda_check(s->g, cuda_scatter_add(s->stream, &add), "scatter");
}
/* Workspace for groups of at most `most` tokens, `pairs` in all: the largest of what the largest group needs, what a
 * smaller one needs alone in tiles, and what batches need. */
static size_t groups_space(const struct cuda_stream *s, const struct expert *experts, int n, int most, size_t pairs,
                           int hidden) {
    size_t size = 0, row = (size_t)hidden * 4, few = pairs < TILED_TOKENS ? pairs : TILED_TOKENS;
    for (int i = 0; i < n; i++) {
        if (!experts[i].gate.data) continue;
        size_t one = ffn_plan(s, &experts[i], most, true, 2 * align_up((size_t)most * row, 256)).size;
        const size_t ordered = experts[i].gate.order ? align_up(few * (size_t)experts[i].gate.cols * 4, 256) : 0,
                     alone = 2 * align_up((size_t)most * row, 256) + ordered, batch = align_up(few * row, 256);
        size_t together = tiled_plan(s, &experts[i], (int)few).size + (alone > batch ? alone : batch);
        size = one > size ? one : size;
        size = together > size ? together : size;
    }
    return size;
}
static int run_batched(struct cuda_stream *s, const struct groups *g, const struct product_group *p, char *space) {
    int n = p->begin[p->n] - p->begin[0];
    if (n < 1) return 0;
    float *part = (float *)space;
    struct cuda_combine c = {.y = g->y,
                             .x = part,
                             .token = g->token + p->begin[0],
                             .weight = g->weight + p->begin[0],
                             .dim = g->hidden,
                             .ldy = g->hidden,
                             .n = p->n};
    for (int k = 0; k <= p->n; k++) c.begin[k] = p->begin[k] - p->begin[0];
    if (run_products(s, p, part, g->x, c.token, space + align_up((size_t)n * (size_t)g->hidden * 4, 256)) ||
        norm_outputs(s, g, part, n))
        return ERR_RUNTIME;
    if (g->rows) return scatter_outputs(s, g, part, p->begin[0], n);
    return cuda_check(s->g, cuda_combine(s->stream, &c), "combine");
}
static int run_single(struct cuda_stream *s, const struct groups *g, int k, char *space) {
    int at = g->begin[k], n = g->begin[k + 1] - at;
    size_t rows = align_up((size_t)n * (size_t)g->hidden * 4, 256);
    float *gx = (float *)space, *gy = (float *)(space + rows);
    struct ffn f = ffn_plan(s, &g->experts[k], n, true, 2 * rows);
    const struct op_gather rows_of_x = {
        .out = gx, .x = g->x, .index = g->token + at, .n = n, .dim = g->hidden, .ldx = g->hidden};
    if (cuda_check(s->g, cuda_gather(s->stream, &rows_of_x), "gather") || ffn_run(s, &f, gy, gx, n, space) ||
        norm_outputs(s, g, gy, n))
        return ERR_RUNTIME;
    return scatter_outputs(s, g, gy, at, n);
}
static int run_groups(struct cuda_stream *s, const struct groups *g, char *space) {
    const struct expert *batch[OP_GROUP_MAX];
    int begin[OP_GROUP_MAX + 1];
    struct product_group p = {batch, begin, 0};
    for (int k = 0; k < g->n; k++) {
        int n = g->begin[k + 1] - g->begin[k];
        const struct expert *e = &g->experts[k];
        if (n < 1) continue;
        if (!e->gate.data) return cuda_check(s->g, cudaErrorInvalidValue, "a selected expert is not resident");
        /* batching pays off especially for few tokens */
        int as = n > BATCH_INVARIANT_ROWS ? n : BATCH_INVARIANT_ROWS + 1;
        bool fits = !e->gate.order && n <= TILED_TOKENS / 4 && cuda_linear_is_tiled(s, e, as, true);
        bool joins = fits && p.n && p.n < OP_GROUP_MAX && begin[p.n] - begin[0] + n <= TILED_TOKENS &&
                     cuda_linear_can_batch(&batch[0]->gate, &e->gate) &&
                     cuda_linear_can_batch(&batch[0]->down, &e->down);
        if (p.n && !joins) {
            if (run_batched(s, g, &p, space)) return ERR_RUNTIME;
            p.n = 0;
        }
        if (!fits && run_single(s, g, k, space)) return ERR_RUNTIME;
        if (!fits) continue;
        if (!p.n) begin[0] = g->begin[k];
        batch[p.n++] = e;
        begin[p.n] = g->begin[k + 1];
    }
    return p.n ? run_batched(s, g, &p, space) : 0;
}

int cuda_group_op(struct cuda_stream *s, const struct op_group *a) {
    struct groups g = {.y = a->y,
                       .x = a->x,
                       .token = a->token,
                       .weight = a->weight,
                       .experts = a->expert,
                       .begin = a->begin,
                       .n = a->n,
                       .hidden = a->hidden,
                       .norm = a->norm,
                       .eps = a->eps};
    int most = 0;
    for (int k = 0; k < a->n; k++) most = a->begin[k + 1] - a->begin[k] > most ? a->begin[k + 1] - a->begin[k] : most;
    if (!most) return 0;
    char *space =
        cuda_workspace(s, groups_space(s, a->expert, a->n, most, (size_t)(a->begin[a->n] - a->begin[0]), a->hidden));
    return space ? run_groups(s, &g, space) : ERR_RUNTIME;
}

static int shared_op(struct cuda_stream *s, const struct op_experts *a, char *space) {
    struct ffn f = ffn_plan(s, a->shared, a->n, false, align_up((size_t)a->n * (size_t)a->hidden * 4, 256));
    if (f.few) { /* the last product adds to y */
        f.down.accumulate = true, f.down.row_weight = a->shared_weight;
        return ffn_run(s, &f, a->y, a->x, a->n, space);
    }
    if (ffn_run(s, &f, (float *)space, a->x, a->n, space)) return ERR_RUNTIME;
    const struct op_scatter_add add = {
        .y = a->y, .x = (float *)space, .weight = a->shared_weight, .n = a->n, .dim = a->hidden, .ldy = a->hidden};
    return cuda_check(s->g, cuda_scatter_add(s->stream, &add), "scatter");
}

/* --- Few tokens: the choices stay on the device ----------------------------------------------- */

/* Whether all experts have the same layout at equal distances in memory, as in engine/draft and
 * experts/resident_experts.h. */
static bool is_uniform(const struct op_experts *a, struct cuda_routed *out) {
    const struct expert *e = a->experts;
    if (!a->ids || a->n > BATCH_INVARIANT_ROWS || a->n_experts < 1 || e[0].is_transposed || e[0].gate_up_transposed)
        return false;
    const size_t each = a->n_experts > 1 ? (size_t)((const char *)e[1].gate.data - (const char *)e[0].gate.data) : 0;
    for (int i = 1; i < a->n_experts; i++) {
        const struct mat *first[3] = {&e[0].gate, expert_up(&e[0]), &e[0].down},
                         *m[3] = {&e[i].gate, expert_up(&e[i]), &e[i].down};
        const float *first_bias[3] = {e[0].gate_bias, expert_up_bias(&e[0]), e[0].down_bias},
                    *bias[3] = {e[i].gate_bias, expert_up_bias(&e[i]), e[i].down_bias};
        for (int k = 0; k < 3; k++) {
            const size_t at = (size_t)i * each;
            if (m[k]->scale_dtype != first[k]->scale_dtype ||
                (m[k]->scale_dtype == DT_E4M3 && m[k]->scale_gain != first[k]->scale_gain))
                return false;
            if (m[k]->dtype != first[k]->dtype || m[k]->data != (const char *)first[k]->data + at) return false;
            if (first[k]->scale && m[k]->scale != (const char *)first[k]->scale + at) return false;
            if (!first[k]->order != !m[k]->order ||
                (first[k]->order && (const char *)m[k]->order != (const char *)first[k]->order + at))
                return false;
            if (first_bias[k] && (const char *)bias[k] != (const char *)first_bias[k] + at) return false;
        }
    }
    *out = (struct cuda_routed){.y = a->y,
                                .x = a->x,
                                .ids = a->ids,
                                .weights = a->weights,
                                .gate = e[0].gate,
                                .up = *expert_up(&e[0]),
                                .down = e[0].down,
                                .gate_bias = e[0].gate_bias,
                                .up_bias = expert_up_bias(&e[0]),
                                .down_bias = e[0].down_bias,
                                .expert_stride = each,
                                .glu = e[0].glu,
                                .n = a->n,
                                .topk = a->topk,
                                .n_experts = a->n_experts,
                                .by_choice = a->by_choice};
    return cuda_int4_fits(out) || cuda_routed_fits(out);
}
/* The host does not read the choices, so that this can be recorded. */
static int routed_op(struct cuda_stream *s, const struct op_experts *a, struct cuda_routed *o) {
    size_t h = align_up((size_t)a->n * (size_t)a->topk * (size_t)o->gate.rows * 4, 256),
           rows = align_up((size_t)a->n * (size_t)a->hidden * 4, 256);
    char *space = cuda_workspace(s, h + (a->shared ? ffn_plan(s, a->shared, a->n, false, rows).size : 0));
    if (!space) return ERR_RUNTIME;
    o->h = (float *)space;
    if (cuda_int4_fits(o)) TRY(cuda_check(s->g, cuda_int4_experts(s->stream, o), "INT4 experts"));
    else {
        TRY(cuda_check(s->g, cuda_routed_up(s->stream, o), "routed experts"));
        s->down = *o, s->has_down = true;
        if (!a->shared && s->base.window && s->g->base.has_epilogues && cuda_routed_has_epilogue(o)) return 0;
        TRY(cuda_down_run(s, NULL));
    }
    return a->shared ? shared_op(s, a, space + h) : 0;
}

/* Experts resident on the device, in rising order, then the shared one. The host reads the group sizes once. (SLP runs
 * the same steps itself as experts arrive.) */
int cuda_experts_op(struct cuda_stream *s, const struct op_experts *a) {
    if (a->n < 1) return 0;
    struct cuda_routed few;
    if (is_uniform(a, &few)) return routed_op(s, a, &few);
    size_t picks = a->ids ? (size_t)a->n * (size_t)a->topk : 0, row = (size_t)a->hidden * 4;
    size_t at_token = align_up(((size_t)a->n_experts + 1) * 4, 256), at_weight = at_token + align_up(picks * 4, 256);
    size_t at_rows = at_weight + align_up(picks * 4, 256);
    size_t base = at_rows + (a->by_choice ? align_up(picks * 4, 256) : 0), rows = align_up((size_t)a->n * row, 256),
           size = 0;
    if (a->ids) size = groups_space(s, a->experts, a->n_experts, a->n, picks, a->hidden);
    if (a->shared) {
        size_t need = ffn_plan(s, a->shared, a->n, false, rows).size;
        size = need > size ? need : size;
    }
    char *space = cuda_workspace(s, base + size);
    if (!space) return ERR_RUNTIME;
    int32_t *offset = (int32_t *)space, *token = (int32_t *)(space + at_token);
    int32_t *at_row = (int32_t *)(space + at_rows);
    float *weight = (float *)(space + at_weight);
    space += base;
    if (a->ids) {
        int32_t host[1025];
        if (a->n_experts > 1024) return cuda_check(s->g, cudaErrorInvalidValue, "more than 1024 experts");
        struct op_sort sort = {.offset = offset,
                               .token = token,
                               .weight = weight,
                               .ids = a->ids,
                               .weights = a->weights,
                               .n = a->n,
                               .topk = a->topk,
                               .last = a->n_experts};
        if (cuda_check(s->g, cuda_sort(s->stream, &sort), "sort") ||
            cuda_check(s->g,
                       cudaMemcpyAsync(host, offset, ((size_t)a->n_experts + 1) * 4, cudaMemcpyDeviceToHost, s->stream),
                       "group sizes") ||
            cuda_check(s->g, cudaStreamSynchronize(s->stream), "running"))
            return ERR_RUNTIME;
        struct groups g = {.y = a->y,
                           .x = a->x,
                           .token = token,
                           .weight = weight,
                           .experts = a->experts,
                           .begin = host,
                           .n = a->n_experts,
                           .hidden = a->hidden};
        if (a->by_choice) { /* the order of the pairs where each choice counts as a token */
            sort.token = at_row, sort.n = a->n * a->topk, sort.topk = 1;
            if (cuda_check(s->g, cuda_sort(s->stream, &sort), "sort")) return ERR_RUNTIME;
            g.rows = at_row;
        }
        if (run_groups(s, &g, space)) return ERR_RUNTIME;
    }
    return a->shared ? shared_op(s, a, space) : 0;
}
