/* Checks batch invariance: each row of a call of 1 to BATCH_INVARIANT_ROWS rows has the same bits as that row alone, at
 * every level, for products of all formats, experts with groups of every size, attention and the router. So a session's
 * text does not depend on what other sessions decode in the same batch, and verifying a draft samples what would have
 * been sampled without it. Likewise for prompts of several sessions that are read together. */
#include "cpu/cpu_exec.h"
#include "cpu/pool.h"
#include "test/kcheck/processors.h"
#include "test/kcheck/random_mat.h"

/* The next number of rows to check. The kernels of other CPUs, some of them emulated, are checked around multiples of
 * four, where kernels change. */
static int next_size(int n) {
#ifdef PROCESSORS
    while (++n < BATCH_INVARIANT_ROWS && n > 5 && n % 4 != 0 && n % 8 != 1)
        ;
    return n;
#else
    return n + 1;
#endif
}

static struct exec *one, *several; /* one thread; three threads */

static void differs(int n, int row) { wrong("row %d of %d differs from the row alone", row, n); }
static float *vec(size_t n) {
    float *v = guarded(n * 4);
    for (size_t i = 0; i < n; i++) v[i] = normal();
    return v;
}

/* --- Products --------------------------------------------------------------------------------- */

static void check_linear(const struct shape *s, bool transposed, bool accumulate, int batch, bool exact) {
    begin_case("%s linear, %d columns%s%s%s, batch of %d", dtype_name(s->dtype), s->cols,
               transposed ? ", transposed" : "", accumulate ? ", added" : "", exact ? ", exact" : "", batch);
    struct shape all = *s;
    all.rows = batch * s->rows;
    struct mat w = mat_rows(make(&all), 0, s->rows);
    int in = transposed ? s->rows : s->cols, out = transposed ? s->cols : s->rows, ldx = batch * in + 3,
        ldy = batch * out + 1;
    size_t size = (size_t)BATCH_INVARIANT_ROWS * (size_t)ldy;
    float *x = vec((size_t)(BATCH_INVARIANT_ROWS * ldx)), *was = vec(size), *alone = vec(size), *y = vec(size),
          *bias = vec((size_t)out);
    struct op_linear o = {.x = x,
                          .w = w,
                          .n = 1,
                          .ldx = ldx,
                          .ldy = ldy,
                          .accumulate = accumulate,
                          .transposed = transposed,
                          .exact = exact,
                          .batch = batch,
                          .batch_rows = s->rows,
                          .batch_x = in,
                          .batch_y = out,
                          .bias = accumulate ? bias : NULL};
    memcpy(alone, was, size * 4);
    for (int i = 0; i < BATCH_INVARIANT_ROWS; i++) {
        o.x = x + i * ldx, o.y = alone + i * ldy;
        must(one->ops->linear(one, &o));
    }
    if (exact && !accumulate && !transposed) { /* in float32, whichever kernel is faster */
        const float *from = x;
        float *to = y;
        ((struct cpu_exec *)(void *)one)->k.gemv[s->dtype](&to, &from, 1, &w);
        if (memcmp(y, alone, (size_t)out * 4)) wrong("the exact product differs from gemv");
    }
    for (int n = 2; n <= BATCH_INVARIANT_ROWS; n = next_size(n)) {
        int first = n % 3 * (BATCH_INVARIANT_ROWS - n) / 2;
        memcpy(y, was, size * 4);
        o.n = n, o.x = x + first * ldx, o.y = y + first * ldy;
        must(several->ops->linear(several, &o));
        for (int i = first; i < first + n; i++)
            if (memcmp(y + i * ldy, alone + i * ldy, (size_t)(batch * out) * 4)) differs(n, i - first);
    }
    drop();
}

static void check_products(void) {
    static const struct shape shapes[] = {
        {70, 1200, 128, 128, DT_E4M3, DT_F32, 0, 1},
        {33, 700, 1, 1 << 20, DT_E4M3, DT_BF16, 0, 1},
        {20, 333, 16, 100, DT_E4M3, DT_F16, 5, 1},
        {37, 515, 1, 0, DT_E4M3, DT_F32, 0, 1},
        {45, 2050, 1, 0, DT_BF16, 0, 0, 1},
        {31, 513, 1, 0, DT_F16, 0, 0, 1},
        {29, 777, 1, 0, DT_F32, 0, 0, 1},
        {34, 1088, 1, 32, DT_E2M1, DT_E8M0, 0, 1},
        {41, 1120, 1, 0, DT_Q8_0, 0, 0, 1},
        {34, 768, 1, 0, DT_Q4_K, 0, 0, 1},
        {35, 1280, 1, 0, DT_Q6_K, 0, 0, 1},
        {43, 512, 1, 0, DT_Q5_K, 0, 0, 1},
        {33, 1056, 1, 0, DT_Q4_0, 0, 0, 1},
        {38, 992, 1, 0, DT_IQ4_NL, 0, 0, 1},
        {34, 512, 1, 0, DT_IQ4_XS, 0, 0, 1},
        {39, 1184, 1, 0, DT_MXFP4, 0, 0, 1},
        {36, 1000, 1, 128, DT_INT4, DT_BF16, 0, 1},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        check_linear(&shapes[i], false, i % 2, 1, false);
        check_linear(&shapes[i], false, false, 1, true);
        if (shapes[i].dtype != DT_E4M3 && shapes[i].dtype != DT_BF16 && shapes[i].dtype != DT_F32) continue;
        check_linear(&shapes[i], false, true, 3, false);
        check_linear(&shapes[i], true, false, 2, false);
    }
}

/* --- Experts: all n tokens choose the first, all but one the second, and so on, so that groups of every size occur
 * --- */

static void check_experts(uint8_t dtype, int block, bool shared) {
    enum { HIDDEN = 192, INTER = 128, EXPERTS = 8, TOPK = 3 };
    begin_case("%s experts, blocks of %d columns%s, %d of %d experts", dtype_name(dtype), block,
               shared ? " and a shared expert" : "", TOPK, EXPERTS);
    struct shape up = {INTER, HIDDEN, 64, block, dtype, DT_F32, 0, 1},
                 down = {HIDDEN, INTER, 64, block, dtype, DT_F32, 0, 1};
    struct expert e[EXPERTS + 1];
    for (int i = 0; i <= EXPERTS; i++) e[i] = (struct expert){make(&up), make(&up), make(&down)};
    size_t size = (size_t)BATCH_INVARIANT_ROWS * HIDDEN;
    float *x = vec(size), *was = vec(size), *alone = vec(size), *y = vec(size),
          *weights = vec(BATCH_INVARIANT_ROWS * TOPK);
    int32_t *ids = guarded(BATCH_INVARIANT_ROWS * TOPK * 4);
    for (size_t i = 0; i < size; i++) x[i] *= 0.05f;
    for (int i = 0; i < BATCH_INVARIANT_ROWS; i++)
        ids[i * TOPK] = 0, ids[i * TOPK + 1] = 1 + i % 2, ids[i * TOPK + 2] = i % 7 == 6 ? -1 : 3 + i * i % 5;
    struct op_experts o = {
        .experts = e, .n_experts = EXPERTS, .topk = TOPK, .hidden = HIDDEN, .shared = shared ? &e[EXPERTS] : NULL};
    memcpy(alone, was, size * 4);
    for (int i = 0; i < BATCH_INVARIANT_ROWS; i++) {
        o.n = 1, o.x = x + i * HIDDEN, o.y = alone + i * HIDDEN, o.ids = ids + i * TOPK, o.weights = weights + i * TOPK;
        must(one->ops->experts(one, &o));
    }
    for (int n = 2; n <= BATCH_INVARIANT_ROWS; n = next_size(n)) {
        int first = n % 3 * (BATCH_INVARIANT_ROWS - n) / 2;
        memcpy(y, was, size * 4);
        o.n = n, o.x = x + first * HIDDEN, o.y = y + first * HIDDEN, o.ids = ids + first * TOPK,
        o.weights = weights + first * TOPK;
        must(several->ops->experts(several, &o));
        for (int i = first; i < first + n; i++)
            if (memcmp(y + i * HIDDEN, alone + i * HIDDEN, HIDDEN * 4)) differs(n, i - first);
    }
    drop();
}

/* --- Prompts of several sessions in a call: each row has the bits that it has with its own prompt alone --- */

static const int32_t few_prompts[] = {7, 31, 32, 51, 63}, many_prompts[] = {25, 91, 117};
static const struct op_prompts prompt_sets[] = {{few_prompts, 5, true}, {many_prompts, 3, false}};
enum { PROMPTS_MOST = 117 };

/* Calls `run` for rows [first, first + n) of each prompt alone, then for all rows together. */
static void compare_prompts(const struct op_prompts *set, float *y, float *alone, const float *was, int ldy, int out,
                            void (*run)(struct exec *, const void *ctx, int first, int n, float *y), const void *ctx) {
    const int total = set->end[set->n - 1];
    memcpy(alone, was, (size_t)total * (size_t)ldy * 4);
    memcpy(y, was, (size_t)total * (size_t)ldy * 4);
    for (int i = 0, at = 0; i < set->n; at = set->end[i++])
        run(one, ctx, at, set->end[i] - at, alone + (size_t)at * (size_t)ldy);
    several->prompts = set;
    run(several, ctx, 0, total, y);
    several->prompts = NULL;
    for (int r = 0; r < total; r++)
        if (memcmp(y + (size_t)r * (size_t)ldy, alone + (size_t)r * (size_t)ldy, (size_t)out * 4)) {
            wrong("row %d of %d differs from its prompt alone (%s)", r, total, set->is_few ? "short" : "long");
            break;
        }
}

static void run_linear(struct exec *x, const void *ctx, int first, int n, float *y) {
    struct op_linear o = *(const struct op_linear *)ctx;
    o.x += (size_t)first * (size_t)o.ldx, o.y = y, o.n = n;
    must(x->ops->linear(x, &o));
}
static void run_experts(struct exec *x, const void *ctx, int first, int n, float *y) {
    struct op_experts o = *(const struct op_experts *)ctx;
    o.x += (size_t)first * (size_t)o.hidden, o.ids += (size_t)first * (size_t)o.topk,
        o.weights += (size_t)first * (size_t)o.topk, o.y = y, o.n = n;
    must(x->ops->experts(x, &o));
}

static void check_prompts(uint8_t dtype, int block, uint8_t scale, bool wide) {
    enum { HIDDEN = 256, INTER = 256, EXPERTS = 9, TOPK = 4 };
    begin_case("%s%s, prompts of several sessions", dtype_name(dtype), wide ? ", wide" : "");
    struct shape up = {INTER, HIDDEN, dtype == DT_E4M3 ? 128 : 1, block, dtype, scale, 0, 1},
                 down = {HIDDEN, INTER, up.block_rows, block, dtype, scale, 0, 1};
    struct expert e[EXPERTS + 1];
    for (int i = 0; i <= EXPERTS; i++) e[i] = (struct expert){make(&up), make(&up), make(&down)};
    const size_t size = PROMPTS_MOST * HIDDEN;
    float *x = vec(size), *was = vec(size), *alone = vec(size), *y = vec(size), *weights = vec(PROMPTS_MOST * TOPK);
    int32_t *ids = guarded(PROMPTS_MOST * TOPK * 4);
    for (size_t i = 0; i < size; i++) x[i] *= 0.05f;
    /* groups of all sizes: some experts are chosen by most tokens, some by few */
    for (int i = 0; i < PROMPTS_MOST; i++)
        for (int k = 0; k < TOPK; k++) ids[i * TOPK + k] = k * 2 + (i * i % (3 + 4 * k) == 1) + (k == 3 && i % 3 == 0);
    const struct op_experts o = {.experts = e,
                                 .x = x,
                                 .ids = ids,
                                 .weights = weights,
                                 .n_experts = EXPERTS,
                                 .topk = TOPK,
                                 .hidden = HIDDEN,
                                 .wide = wide,
                                 .shared = &e[EXPERTS]};
    const struct op_linear l = {.w = e[0].gate, .x = x, .ldx = HIDDEN, .ldy = INTER, .wide = wide};
    for (int i = 0; i < 2; i++) {
        compare_prompts(&prompt_sets[i], y, alone, was, INTER, INTER, run_linear, &l);
        compare_prompts(&prompt_sets[i], y, alone, was, HIDDEN, HIDDEN, run_experts, &o);
    }
    drop();
}
static void check_all_prompts(bool scalar) {
    static const struct {
        uint8_t dtype, scale;
        int block;
    } formats[] = {
        {DT_E4M3, DT_F32, 128}, {DT_BF16, 0, 0},         {DT_F32, 0, 0},         {DT_Q8_0, 0, 0},
        {DT_Q4_K, 0, 0},        {DT_Q6_K, 0, 0},         {DT_Q5_0, 0, 0},        {DT_IQ4_XS, 0, 0},
        {DT_IQ2_XS, 0, 0},      {DT_MXFP4, 0, 0},        {DT_E2M1, DT_E8M0, 32}, {DT_E2M1, DT_E4M3, 16},
        {DT_INT4, DT_BF16, 32}, {DT_INT4, DT_BF16, 128}, {DT_I8, DT_F32, 0},
    };
    /* scalar products are slow, and the same for all formats */
    for (size_t i = 0; i < (scalar ? 1 : sizeof formats / sizeof *formats); i++)
        check_prompts(formats[i].dtype, formats[i].block, formats[i].scale, false);
    check_prompts(DT_E4M3, 128, DT_F32, true);
    check_prompts(DT_Q4_K, 0, 0, true);
}

/* --- Attention: rows of one session, each compared with that row alone, as decoded, without keys after it --- */

struct attention_case {
    int heads, kv_heads, dim, v_dim, pos, window;
    uint8_t dtype;
    bool same, sinks;
    int n_chosen;
};
static void check_attention(const struct attention_case *c) {
    begin_case("%s attention, %d heads of %d, from position %d, window %d%s, %d chosen", dtype_name(c->dtype), c->heads,
               c->dim, c->pos, c->window, c->sinks ? ", sinks" : "", c->n_chosen);
    const int last = c->pos + BATCH_INVARIANT_ROWS, keys = op_seen(last - 1, 0, last), krow = c->kv_heads * c->dim,
              vrow = c->kv_heads * c->v_dim, ldq = c->heads * c->dim + 2, ldo = c->heads * c->v_dim + 1;
    const size_t esize = dtype_bytes(c->dtype, 1), size = (size_t)(BATCH_INVARIANT_ROWS * ldo),
                 rows = (size_t)(BATCH_INVARIANT_ROWS * c->heads);
    struct kv_plane k = {guarded((size_t)keys * (size_t)krow * esize), vec((size_t)(keys * c->kv_heads)), c->kv_heads,
                         c->dim, c->dtype},
                    v = k;
    if (!c->same)
        v = (struct kv_plane){guarded((size_t)keys * (size_t)vrow * esize), vec((size_t)(keys * c->kv_heads)),
                              c->kv_heads, c->v_dim, c->dtype};
    struct op_kv_store store = {k, vec((size_t)(keys * krow)), 0, keys, krow},
                       store_v = {v, vec((size_t)(keys * vrow)), 0, keys, vrow};
    must(one->ops->kv_store(one, &store));
    if (!c->same) must(one->ops->kv_store(one, &store_v));
    float *q = vec((size_t)(BATCH_INVARIANT_ROWS * ldq)), *alone = vec(size), *y = vec(size), *lse_alone = vec(rows),
          *lse = vec(rows), *sinks = vec((size_t)c->heads);
    int32_t *chosen = guarded((size_t)(BATCH_INVARIANT_ROWS * c->n_chosen + 1) * 4);
    for (int i = 0; i < BATCH_INVARIANT_ROWS; i++) {
        int seen = op_seen(c->pos + i, 0, keys), step = c->n_chosen && seen >= 2 * c->n_chosen ? 2 : 1;
        for (int j = 0; j < c->n_chosen; j++) chosen[i * c->n_chosen + j] = j * step < seen ? j * step : -1;
    }
    struct op_attention o = {.k = k,
                             .v = v,
                             .sinks = c->sinks ? sinks : NULL,
                             .n_heads = c->heads,
                             .v_dim = c->v_dim,
                             .ldq = ldq,
                             .ldo = ldo,
                             .window = c->window,
                             .n_chosen = c->n_chosen,
                             .scale = 0.3f};
    for (int i = 0; i < BATCH_INVARIANT_ROWS; i++) {
        o.n = 1, o.q = q + i * ldq, o.out = alone + i * ldo, o.lse = lse_alone + i * c->heads, o.q_pos0 = c->pos + i;
        o.n_keys = op_seen(o.q_pos0, 0, keys), o.chosen = c->n_chosen ? chosen + i * c->n_chosen : NULL;
        must(one->ops->attention(one, &o));
    }
    for (int n = 2; n <= BATCH_INVARIANT_ROWS; n += n < 6 ? 1 : 5) {
        int first = n % 3 * (BATCH_INVARIANT_ROWS - n) / 2;
        o.n = n, o.q = q + first * ldq, o.out = y + first * ldo, o.lse = lse + first * c->heads,
        o.q_pos0 = c->pos + first;
        o.n_keys = op_seen(c->pos + first + n - 1, 0, keys),
        o.chosen = c->n_chosen ? chosen + first * c->n_chosen : NULL;
        must(several->ops->attention(several, &o));
        for (int i = first; i < first + n; i++)
            if (memcmp(y + i * ldo, alone + i * ldo, (size_t)(c->heads * c->v_dim) * 4) ||
                memcmp(lse + i * c->heads, lse_alone + i * c->heads, (size_t)c->heads * 4))
                differs(n, i - first);
    }
    drop();
}

static void check_attentions(bool slow) {
    static const struct attention_case cases[] = {
        {8, 2, 32, 32, 0, 0, DT_BF16, false, false},
        {8, 2, 24, 40, 50, 0, DT_F32, false, true},
        {16, 4, 33, 17, 120, 30, DT_BF16, false, true},
        {40, 1, 48, 40, 1000, 0, DT_BF16, true, false},
        {128, 1, 40, 32, 200, 0, DT_BF16, true, false},
        {4, 4, 16, 16, 600, 0, DT_E4M3, false, false},
        {6, 2, 16, 16, 2030, 0, DT_BF16, false, false},
        {4, 2, 16, 16, 2030, 70, DT_F32, false, true},
        {4, 1, 16, 16, 4080, 0, DT_F32, false, false},
        {40, 1, 48, 40, 300, 0, DT_BF16, true, false, 130},
        {4, 1, 32, 32, 55, 0, DT_E4M3, true, true, 64},
        {4, 1, 32, 32, 600, 0, DT_BF16, true, true, 300},
        /* partial results in several parts */
        {8, 2, 16, 16, 126, 0, DT_F32, false, false, 30},
        {48, 1, 16, 16, 32750, 0, DT_BF16, true, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!slow || cases[i].pos < 2000) check_attention(&cases[i]);
}

/* The indexer: each row alone, without keys after it, and several together. */
static void check_select(int heads, int dim, int pos, int topk, uint8_t dtype) {
    begin_case("%s select, %d heads of %d, %d of the keys before %d", dtype_name(dtype), heads, dim, topk, pos);
    const int keys = op_seen(pos + BATCH_INVARIANT_ROWS - 1, 0, pos + BATCH_INVARIANT_ROWS), ldq = heads * dim;
    struct kv_plane k = {guarded((size_t)(keys * dim) * dtype_bytes(dtype, 1) + 4), vec((size_t)keys + 1), 1, dim,
                         dtype};
    must(one->ops->kv_store(one, &(struct op_kv_store){k, vec((size_t)(keys * dim) + 1), 0, keys, dim}));
    float *q = vec((size_t)(BATCH_INVARIANT_ROWS * ldq)), *weight = vec((size_t)(BATCH_INVARIANT_ROWS * heads));
    int32_t *alone = guarded((size_t)(BATCH_INVARIANT_ROWS * topk) * 4),
            *chosen = guarded((size_t)(BATCH_INVARIANT_ROWS * topk) * 4);
    struct op_select o = {.k = k, .heads = heads, .topk = topk, .ldq = ldq, .scale = 0.1f};
    for (int i = 0; i < BATCH_INVARIANT_ROWS; i++) {
        o.n = 1, o.q = q + i * ldq, o.weight = weight + i * heads, o.chosen = alone + i * topk, o.q_pos0 = pos + i,
        o.n_keys = op_seen(pos + i, 0, keys);
        must(one->ops->select(one, &o));
    }
    for (int n = 2; n <= BATCH_INVARIANT_ROWS; n = next_size(n)) {
        int first = n % 3 * (BATCH_INVARIANT_ROWS - n) / 2;
        o.n = n, o.q = q + first * ldq, o.weight = weight + first * heads, o.chosen = chosen, o.q_pos0 = pos + first;
        o.n_keys = op_seen(pos + first + n - 1, 0, keys);
        must(several->ops->select(several, &o));
        if (memcmp(chosen, alone + first * topk, (size_t)(n * topk) * 4))
            wrong("keys of %d rows differ from those of the rows alone", n);
    }
    drop();
}

static void check_route(void) {
    enum { EXPERTS = 32, TOPK = 5 };
    begin_case("route, %d of %d experts", TOPK, EXPERTS);
    float *logits = vec(BATCH_INVARIANT_ROWS * EXPERTS), *bias = vec(EXPERTS),
          *alone = vec(BATCH_INVARIANT_ROWS * TOPK), *w = vec(BATCH_INVARIANT_ROWS * TOPK);
    int32_t *ids = guarded(BATCH_INVARIANT_ROWS * TOPK * 4), *ids_alone = guarded(BATCH_INVARIANT_ROWS * TOPK * 4);
    struct op_route o = {.bias = bias,
                         .n_experts = EXPERTS,
                         .topk = TOPK,
                         .n_group = 4,
                         .topk_group = 2,
                         .score = SCORE_SIGMOID,
                         .group_top2 = true,
                         .norm = true,
                         .scale = 2};
    for (int i = 0; i < BATCH_INVARIANT_ROWS; i++) {
        o.n = 1, o.logits = logits + i * EXPERTS, o.ids = ids_alone + i * TOPK, o.weights = alone + i * TOPK;
        must(one->ops->route(one, &o));
    }
    for (int n = 2; n <= BATCH_INVARIANT_ROWS; n = next_size(n)) {
        o.n = n, o.logits = logits, o.ids = ids, o.weights = w;
        must(several->ops->route(several, &o));
        if (memcmp(w, alone, (size_t)(n * TOPK) * 4) || memcmp(ids, ids_alone, (size_t)(n * TOPK) * 4))
            wrong("experts of %d rows differ from those of the rows alone", n);
    }
    drop();
}

int main(int argc, char **argv) {
    if (!processor_chosen(&argc, &argv)) return SKIPPED;
    uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 0) : 20261121;
    printf("seed %llu\n", (unsigned long long)seed);
    struct pool *pools[2];
    struct error e = {0};
    if (pool_open(&pools[0], 1, false, &e) || pool_open(&pools[1], 3, false, &e)) return printf("%s\n", e.text), 2;
    for (int l = first_level(); l < CPU_LEVELS; l++) {
        level = cpu_level_name((enum cpu_level)l);
        if (!cpu_level_has((enum cpu_level)l)) {
            printf("%-8s SKIPPED: this CPU lacks it\n", level);
            continue;
        }
        one = cpu_exec_open(pools[0], (enum cpu_level)l, &e), several = cpu_exec_open(pools[1], (enum cpu_level)l, &e);
        if (!one || !several) return printf("%s\n", e.text), 2;
        int before = failures;
        state = seed;
        check_products();
        check_experts(DT_E4M3, 64, true);
        check_experts(DT_E4M3, 40, false); /* blocks that gemm_skinny does not support */
        check_experts(DT_BF16, 0, true);
        check_experts(DT_F32, 0, false);
        check_all_prompts(l == CPU_SCALAR);
        check_attentions(l == CPU_SCALAR);
        check_select(8, 128, 300, 48, DT_BF16), check_select(40, 33, 60, 64, DT_F32),
            check_select(5, 32, 1300, 100, DT_E4M3);
        check_route();
        printf("%-8s %s\n", level, failures > before ? "FAILED" : "ok");
        cpu_exec_close(&one), cpu_exec_close(&several);
    }
    for (int t = 0; t < 2; t++) pool_close(&pools[t]);
    printf("%d failures\n", failures);
    return failures != 0;
}
