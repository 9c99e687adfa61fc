#pragma once
/* Cases of kcheck_ops.c: experts of all formats, columns in another order, and calls that name some of the experts. */
#include "base/mat_at.h"
#include "cpu/cpu_exec.h"
#include "cpu/gemm_inner.h"
#include "test/kcheck/ops_threads.h"

/* Formats of experts: FP8 in blocks or by rows, MXFP4 with interleaved gate and up rows, BF16 with a transposed down
 * matrix, and mixes. */
struct expert_kind {
    uint8_t dtype, scale;
    int block_rows, block_cols;               /* block_cols 0: no scale */
    bool turns, bias, turned, columns, no_up; /* columns: gate and up are stored transposed */
    struct glu glu;
    uint8_t up, down; /* those matrices' own formats; DT_NONE: dtype */
};
static const struct expert_kind expert_kinds[] = {
    {DT_E4M3, DT_F32, 128, 128, .glu = {0}},
    {DT_E4M3, DT_BF16, 1, 1 << 20, .glu = {.limit = 2.5f}},
    {DT_E2M1, DT_E8M0, 1, 32, .turns = true, .bias = true, .glu = {.limit = 7, .alpha = 1.702f, .shift = 1}},
    {DT_BF16, DT_NONE, 1, 0, .turned = true},
    {DT_F32, DT_NONE, 1, 0, .turned = true, .bias = true},
    {DT_BF16, DT_NONE, 1, 0, .turned = true, .columns = true},
    {DT_F32, DT_NONE, 1, 0, .columns = true, .bias = true},
    {DT_BF16, DT_NONE, 1, 0, .glu = {.alpha = 1.5957691f, .cubic = 0.0713548f}},
    {DT_BF16, DT_NONE, 1, 0, .glu = {.gate_cap = 1.5f, .up_cap = 2}},
    {DT_BF16, DT_NONE, 1, 0, .glu = {.is_erf = true}},
    {DT_BF16, DT_NONE, 1, 0, .no_up = true, .bias = true, .glu = {.is_erf = true, .is_ungated = true}},
    {DT_E4M3, DT_F32, 128, 128, .no_up = true, .glu = {.alpha = 1.5957691f, .cubic = 0.0713548f, .is_ungated = true}},
    {DT_BF16, DT_NONE, 1, 0, .no_up = true, .glu = {.xielu_p = 0.8f, .xielu_n = 1.25f, .xielu_beta = 0.5f}},
    {DT_BF16, DT_NONE, 1, 0, .no_up = true, .glu = {.is_relu = true}},
    {DT_E4M3, DT_F32, 128, 128, .no_up = true, .bias = true, .glu = {.is_relu = true}},
    {DT_F32, DT_NONE, 1, 0, .no_up = true, .columns = true, .turned = true, .glu = {.is_relu = true}},
    {DT_BF16, DT_NONE, 1, 0, .bias = true, .down = DT_E2M1},
    {DT_E2M1, DT_E8M0, 1, 32, .glu = {.limit = 7}, .down = DT_BF16},
    {DT_E2M1, DT_E8M0, 1, 32, .bias = true, .up = DT_BF16, .down = DT_F32},
    {DT_BF16, DT_NONE, 1, 0, .up = DT_E2M1, .down = DT_E2M1},
};
/* The shape in another format, E2M1 or one without scales. */
static struct shape in_format(struct shape s, uint8_t dtype) {
    const bool fp4 = dtype == DT_E2M1;
    return dtype == DT_NONE ? s : (struct shape){s.rows, s.cols, 1, fp4 ? 32 : 0, dtype, fp4 ? DT_E8M0 : DT_NONE, 0, 1};
}
static struct expert expert_make(const struct expert_kind *k, int inter, int hidden) {
    struct shape gate = {k->columns ? hidden
                         : k->turns ? 2 * inter
                                    : inter,
                         k->columns ? inter : hidden,
                         k->block_rows,
                         k->block_cols,
                         k->dtype,
                         k->scale,
                         0,
                         1};
    struct shape up = in_format(gate, k->up), down = {k->turned ? inter : hidden,
                                                      k->turned ? hidden : inter,
                                                      k->block_rows,
                                                      k->block_cols,
                                                      k->dtype,
                                                      k->scale,
                                                      0,
                                                      1};
    down = in_format(down, k->down);
    struct expert e = {.gate = make(&gate),
                       .down = make(&down),
                       .glu = k->glu,
                       .is_transposed = k->turned,
                       .gate_up_transposed = k->columns};
    if (!k->no_up) e.up = k->turns ? e.gate : make(&up);
    if (k->turns) {
        e.gate.rows = e.up.rows = inter, e.gate.row_step = e.up.row_step = 2, e.up.row0 = 1;
        e.up.data = (const uint8_t *)e.up.data + e.up.stride;
        e.gate.stride *= 2, e.up.stride *= 2;
    }
    if (k->bias)
        e.gate_bias = vec((size_t)inter), e.up_bias = k->no_up ? NULL : vec((size_t)inter),
        e.down_bias = vec((size_t)hidden);
    return e;
}

/* The squared error that integers of so many steps to the largest of `together` columns leave in column c: half a
 * step. */
static double lost_whole(const double *x, int n, int c, int together, double steps) {
    double most = 0;
    for (int i = c / together * together; i < n && i < c / together * together + together; i++)
        most = fmax(most, fabs(x[i]));
    return most * most / steps / steps / 4;
}

enum { FLAT_HIDDEN = 144, FLAT_INTER = 80 };
struct flat { /* an expert's weights */
    bool is_filled;
    double gate[FLAT_INTER][FLAT_HIDDEN], up[FLAT_INTER][FLAT_HIDDEN], down[FLAT_HIDDEN][FLAT_INTER];
};
static const struct flat *flat_expert(struct flat *f, const struct expert *q) {
    for (int i = 0; i < FLAT_INTER * FLAT_HIDDEN && !f->is_filled; i++) {
        const int r = i / FLAT_HIDDEN, c = i % FLAT_HIDDEN, row = q->gate_up_transposed ? c : r,
                  col = q->gate_up_transposed ? r : c;
        f->gate[r][c] = mat_at(&q->gate, row, col), f->up[r][c] = mat_at(expert_up(q), row, col);
        f->down[c][r] = q->is_transposed ? mat_at(&q->down, r, c) : mat_at(&q->down, c, r);
    }
    f->is_filled = true;
    return f;
}

/* Values of a mixture: rows with gaps, a token with the same choices in another order. */
static void check_values(int n, int n_experts, int topk, uint8_t dtype) {
    enum { COLS = 160, DIM = 80, LDX = COLS + 3, LDY = DIM + 5 };
    const bool fp8 = dtype == DT_E4M3;
    begin_case("values, %d rows, %d of %d experts, %s", n, topk, n_experts, dtype_name(dtype));
    struct shape shape = {n_experts * DIM, COLS, fp8 ? 40 : 1, fp8 ? 128 : 0, dtype, fp8 ? DT_F32 : DT_NONE, 0, 1};
    const size_t size = (size_t)(n * LDY);
    float *x = vec((size_t)(n * LDX)), *y = vec(size), *was = aligned(size * 4), *weights = vec((size_t)(n * topk));
    int32_t *ids = guarded((size_t)(n * topk) * 4);
    struct op_values o = {.y = y,
                          .x = x,
                          .ids = ids,
                          .weights = weights,
                          .w = make(&shape),
                          .n = n,
                          .topk = topk,
                          .n_experts = n_experts,
                          .dim = DIM,
                          .ldx = LDX,
                          .ldy = LDY};
    memcpy(was, y, size * 4);
    for (int t = 0; t < n; t++)
        for (int k = 0; k < topk; k++) ids[t * topk + k] = (t * 3 + (t % 2 ? k : topk - k)) % n_experts;
    EACH_THREADS("values", y, size, was, on->ops->values(on, &o));
    const struct cpu_exec *cpu = (const struct cpu_exec *)(const void *)execs[0];
    const struct gemm *gemm = gemm_for_weights(cpu->level, 100, n, false, &o.w);
    const double u = !products_bf16             ? 0x1p-24
                     : n > BATCH_INVARIANT_ROWS ? 0x1p-8
                                                : 0x1p-16,
                 steps = gemm && gemm->is_int8 ? 127 : 0x1p14;
    const bool whole = cpu->k.whole[dtype] || (gemm && (gemm->is_int8 || gemm->is_int16));
    const int together = gemm && gemm->is_int16 ? 256 : 32;
    for (int t = 0; t < n; t++) {
        double in[COLS], lost[COLS];
        for (int c = 0; c < COLS; c++) in[c] = x[t * LDX + c];
        for (int c = 0; c < COLS; c++)
            lost[c] = in[c] * in[c] * u * u + (whole ? lost_whole(in, COLS, c, together, steps) : 0);
        for (int r = 0; r < LDY; r++) {
            double want = r < DIM ? 0 : was[t * LDY + r], off = 0;
            for (int k = 0; k < topk && r < DIM; k++) {
                const double weight = weights[t * topk + k];
                double v = 0;
                for (int c = 0; c < COLS; c++) {
                    const double a = mat_at(&o.w, ids[t * topk + k] * DIM + r, c);
                    v += a * in[c];
                    off += 1.21 * weight * weight * a * a * lost[c];
                }
                want += weight * v / (1 + exp(-v));
            }
            near("value", t, r, y[t * LDY + r], want, r < DIM ? (fabs(want) + 1) * 3e-5 + 3 * sqrt(off) : 0);
        }
    }
    ids[0] = n_experts;
    if (execs[0]->ops->values(execs[0], &o) != ERR_RUNTIME) wrong("an expert that is none is no error");
    free(was);
    drop();
}

static void check_experts(int n, int n_experts, int topk, bool shared, const struct expert_kind *kind) {
    enum { HIDDEN = FLAT_HIDDEN, INTER = FLAT_INTER };
    begin_case("%s experts, %d rows, %d of %d experts%s, %d columns%s%s%s", dtype_name(kind->dtype), n, topk, n_experts,
               shared ? " and a shared one" : "", HIDDEN, kind->no_up ? ", no up" : "", kind->bias ? ", bias" : "",
               kind->columns  ? ", columns"
               : kind->turned ? ", transposed"
               : kind->turns  ? ", interleaved"
                              : "");
    struct flat *flat = calloc((size_t)n_experts + 1, sizeof *flat);
    struct expert e[9];
    for (int i = 0; i <= n_experts; i++) e[i] = expert_make(kind, INTER, HIDDEN);
    size_t size = (size_t)n * HIDDEN;
    float *x = vec(size), *y = vec(size), *was = aligned(size * 4), *weights = vec((size_t)(n * topk)),
          *sw = vec((size_t)n);
    for (size_t i = 0; i < size; i++) x[i] *= 0.05f;
    memcpy(was, y, size * 4);
    int32_t *ids = guarded((size_t)(n * topk) * 4);
    for (int t = 0; t < n; t++)
        for (int k = 0; k < topk; k++) ids[t * topk + k] = (t * 3 + (topk - k) * (1 + t % 2)) % n_experts;
    struct op_experts o = {.y = y,
                           .x = x,
                           .ids = topk ? ids : NULL,
                           .weights = weights,
                           .experts = e,
                           .n = n,
                           .topk = topk,
                           .n_experts = n_experts,
                           .shared = shared ? &e[n_experts] : NULL,
                           .shared_weight = n % 2 ? sw : NULL,
                           .hidden = HIDDEN};
    EACH_THREADS("experts", y, size, was, on->ops->experts(on, &o));
    /* Estimates the effect of rounding on x and on the activations between the matrices: each factor is off by at most
     * u, at random, so squares add up (BF16 has 8 bits, two of them 16, integers 16 of the largest neighbour). A clamp
     * keeps what is small between large products, and much of that may be rounding. */
    const double u = !products_bf16 ? 0x1p-24 : n > BATCH_INVARIANT_ROWS ? 0x1p-8 : 0x1p-16;
    const struct cpu_exec *cpu = (const struct cpu_exec *)(const void *)execs[0];
    const struct mat *of[3] = {&e[0].gate, expert_up(&e[0]), &e[0].down};
    bool whole = false;
    int together = 32;
    double steps = 0x1p14; /* of a large group; GEVM and small groups are more exact */
    for (int i = 0; i < 3; i++) {
        const struct gemm *gemm = gemm_for_weights(cpu->level, 100, n, false, of[i]);
        whole |= cpu->k.whole[of[i]->dtype] != NULL;
        if (gemm && gemm->is_int8) steps = 127;
        if (gemm && gemm->is_int16) together = 256;
    }
    for (int t = 0; t < n; t++) {
        double want[HIDDEN], off[HIDDEN] = {0}, scale = 0, in[HIDDEN], lost[HIDDEN];
        for (int r = 0; r < HIDDEN; r++) want[r] = was[t * HIDDEN + r], in[r] = x[t * HIDDEN + r];
        for (int c = 0; c < HIDDEN; c++)
            lost[c] = in[c] * in[c] * u * u + (whole ? lost_whole(in, HIDDEN, c, together, steps) : 0);
        for (int k = 0; k <= topk; k++) {
            if (k == topk && !shared) break;
            const int id = k < topk ? ids[t * topk + k] : n_experts;
            const struct expert *q = &e[id];
            const struct flat *m = flat_expert(&flat[id], q);
            double h[INTER], h_off[INTER], weight = k < topk ? weights[t * topk + k] : n % 2 ? sw[t] : 1;
            for (int r = 0; r < INTER; r++) {
                double g = 0, up = 0, g_off = 0, up_off = 0;
                for (int c = 0; c < HIDDEN; c++) {
                    const double a = m->gate[r][c], b = m->up[r][c];
                    g += a * in[c], up += b * in[c], g_off += a * a * lost[c], up_off += b * b * lost[c];
                }
                if (q->gate_bias) g += q->gate_bias[r], up += expert_up_bias(q)[r];
                if (q->glu.limit > 0)
                    g = fmin(g, q->glu.limit), up = fmax(fmin(up, q->glu.limit), -(double)q->glu.limit);
                double s = q->glu.is_relu ? fmax(g, 0)
                                          : g / (1 + exp(-(q->glu.alpha > 0 ? (double)q->glu.alpha : 1) * g -
                                                         (double)q->glu.cubic * g * g * g));
                if (q->glu.is_ungated) up = 1;
                if (q->glu.gate_cap > 0) {
                    s = (double)q->glu.gate_cap * tanh(g / (double)q->glu.gate_cap) / (1 + exp(-g));
                    up = (double)q->glu.up_cap * tanh(up / (double)q->glu.up_cap);
                }
                if (q->glu.is_erf) s = 0.5 * g * erfc(-g / sqrt(2));
                if (q->glu.xielu_beta > 0)
                    s = (g > 0 ? (double)q->glu.xielu_p * g * g : (double)q->glu.xielu_n * (expm1(g) - g)) +
                        (double)q->glu.xielu_beta * g,
                    up = 1;
                up += (double)q->glu.shift;
                h[r] = s * up;
                /* slopes: swish and GELU at most 1.13, a square 2, xIELU 2 * xielu_p * |g| + xielu_beta + xielu_n */
                const double slope = q->glu.xielu_beta > 0             ? 1.6 * fabs(g) + 1.75
                                     : q->up.data || q->glu.is_ungated ? 1.13
                                                                       : 2;
                h_off[r] = slope * slope * g_off * up * up +
                           (q->glu.xielu_beta > 0 || q->glu.is_ungated ? 0 : s * s * up_off) + h[r] * h[r] * u * u;
            }
            for (int r = 0; r < INTER && whole; r++) h_off[r] += lost_whole(h, INTER, r, together, steps);
            for (int r = 0; r < HIDDEN; r++) {
                double d = q->down_bias ? q->down_bias[r] : 0;
                for (int c = 0; c < INTER; c++) {
                    const double w = m->down[r][c];
                    d += w * h[c], off[r] += weight * weight * w * w * h_off[c];
                }
                want[r] += weight * d;
                scale = fmax(scale, fabs(weight * d));
            }
        }
        for (int r = 0; r < HIDDEN; r++)
            near("output", t, r, y[t * HIDDEN + r], want[r], (scale + 1) * 3e-5 + 2.5 * sqrt(off[r]));
    }
    if (topk) { /* a chosen expert that is missing */
        struct expert gone = e[ids[0]];
        e[ids[0]].gate.data = NULL;
        if (execs[0]->ops->experts(execs[0], &o) != ERR_RUNTIME) wrong("an expert without weights is no error");
        e[ids[0]] = gone;
        for (int i = 0; i < 2; i++) {
            ids[0] = i ? -2 : n_experts;
            if (execs[0]->ops->experts(execs[0], &o) != ERR_RUNTIME)
                wrong("expert %d, out of range, is no error", ids[0]);
        }
    }
    free(was);
    free(flat);
    drop();
}

/* Outputs by choice are those of calls with one choice each, of weight 1; rows of skipped choices stay. */
static void check_choices(int n, const struct expert_kind *kind) {
    enum { HIDDEN = FLAT_HIDDEN, INTER = FLAT_INTER, EXPERTS = 6, TOPK = 3 };
    begin_case("%s experts by choice, %d rows, %d of %d experts, %d columns", dtype_name(kind->dtype), n, TOPK, EXPERTS,
               HIDDEN);
    struct expert e[EXPERTS];
    const size_t size = (size_t)n * TOPK * HIDDEN;
    float *x = vec((size_t)n * HIDDEN), *y = vec(size), *was = aligned(size * 4), *one = vec((size_t)n * HIDDEN),
          *ones = vec((size_t)n);
    int32_t *ids = guarded((size_t)(n * TOPK) * 4), *column = guarded((size_t)n * 4);
    for (int i = 0; i < EXPERTS; i++) e[i] = expert_make(kind, INTER, HIDDEN);
    for (int i = 0; i < n * TOPK; i++) ids[i] = i % 7 == 4 ? -1 : (i / TOPK + 2 * (i % TOPK)) % EXPERTS;
    memcpy(was, y, size * 4);
    struct op_experts o = {.y = y,
                           .x = x,
                           .ids = ids,
                           .weights = vec((size_t)(n * TOPK)),
                           .experts = e,
                           .n = n,
                           .topk = TOPK,
                           .n_experts = EXPERTS,
                           .hidden = HIDDEN};
    o.by_choice = true;
    EACH_THREADS("experts by choice", y, size, was, on->ops->experts(on, &o));
    o.y = one, o.ids = column, o.weights = ones, o.topk = 1, o.by_choice = false;
    for (int t = 0; t < n; t++) ones[t] = 1;
    for (int k = 0; k < TOPK; k++) {
        for (int t = 0; t < n; t++)
            column[t] = ids[t * TOPK + k], memcpy(one + t * HIDDEN, was + (t * TOPK + k) * HIDDEN, HIDDEN * 4);
        if (execs[0]->ops->experts(execs[0], &o)) wrong("the call with choice %d alone failed", k);
        for (int t = 0; t < n; t++)
            if (memcmp(one + t * HIDDEN, y + (t * TOPK + k) * HIDDEN, HIDDEN * 4))
                wrong("row %d of choice %d differs from that choice alone", t, k);
    }
    free(was);
    drop();
}

/* --- Columns in another order (mat.order) ----------------------------------------------------- */

static const int32_t *random_order(int cols) {
    int32_t *order = guarded((size_t)cols * sizeof *order);
    for (int c = 0; c < cols; c++) {
        const int at = (int)(rnd() % (uint32_t)(c + 1));
        order[c] = order[at], order[at] = c;
    }
    return order;
}
/* Rows of x as mat.order's definition sorts them. */
static void sort_x(const struct mat *m, float *out, const float *x, int n, int ldx) {
    for (int i = 0; i < n * m->cols; i++) {
        const int at = m->order[i % m->cols] - m->x0;
        out[i] = at >= 0 && at < m->x_cols ? x[i / m->cols * ldx + at] : 0;
    }
}
/* A product has the bits of one with sorted columns and sorted x; part: of x, as in a tensor parallel device. */
static void check_ordered_linear(int n, uint8_t dtype, bool part) {
    enum { ROWS = 50, COLS = 160 };
    begin_case("%s linear, %d rows, %d columns in another order%s", dtype_name(dtype), n, COLS,
               part ? ", part of them" : "");
    struct shape s = {ROWS, COLS, 1, 32, dtype, dtype == DT_I4 || dtype == DT_I8 ? DT_F32Z : DT_F32, 0, 1};
    struct mat sorted = make(&s), w = sorted;
    w.order = random_order(COLS), w.x_cols = COLS;
    if (part) w = mat_cols(w, 37, 90);
    const int ldx = mat_x_cols(&w) + 3;
    float *x = vec((size_t)(n * ldx)), *in = vec((size_t)(n * COLS)), *y = vec((size_t)(n * ROWS)),
          *want = aligned((size_t)(n * ROWS) * 4), *was = aligned((size_t)(n * ROWS) * 4);
    sort_x(&w, in, x, n, ldx);
    struct op_linear o = {.y = want, .x = in, .w = sorted, .n = n, .ldx = COLS, .ldy = ROWS};
    if (execs[0]->ops->linear(execs[0], &o)) wrong("the call with sorted columns failed");
    o.y = y, o.x = x, o.w = w, o.ldx = ldx;
    EACH_THREADS("linear, columns in another order", y, n * ROWS, was, on->ops->linear(on, &o));
    if (memcmp(y, want, (size_t)(n * ROWS) * 4)) wrong("other bits than with sorted columns");
    free(want);
    free(was);
    drop();
}
/* Experts, each with an order of its own, against one call for each with sorted x. */
static void check_ordered_experts(int n, int topk, bool shared, uint8_t dtype) {
    enum { HIDDEN = 160, INTER = 96, COUNT = 4 };
    begin_case("%s experts, %d rows, %d of %d experts%s, columns in other orders", dtype_name(dtype), n, topk, COUNT,
               shared ? " and a shared one" : "");
    const int plain = topk % 2 ? 0 : 1; /* the expert without an order */
    struct shape up = {INTER, HIDDEN, 1, dtype == DT_BF16 ? 0 : 32, dtype, dtype == DT_I4 ? DT_F32Z : DT_F32, 0, 1},
                 down = up;
    down.rows = HIDDEN, down.cols = INTER;
    struct expert e[COUNT + 1], sorted[COUNT + 1];
    const size_t size = (size_t)n * HIDDEN, slots = (size_t)(n * topk);
    float *x = vec(size), *in = vec(size), *y = vec(size), *want = aligned(size * 4), *was = aligned(size * 4),
          *weights = vec(slots);
    int32_t *ids = guarded(slots * 4), *mine = guarded(slots * 4);
    for (size_t i = 0; i < slots; i++) ids[i] = (int32_t)((i / (size_t)topk * 3 + i % (size_t)topk) % COUNT);
    memcpy(was, y, size * 4), memcpy(want, y, size * 4);
    struct op_experts o = {
        .x = x, .weights = weights, .experts = e, .n = n, .topk = topk, .n_experts = COUNT, .hidden = HIDDEN};
    struct op_experts one = o;
    one.y = want, one.x = in, one.experts = sorted, one.ids = mine;
    for (int i = 0; i <= COUNT; i++) {
        e[i] = sorted[i] = (struct expert){make(&up), make(&up), make(&down)};
        if (i != plain)
            e[i].gate.order = e[i].up.order = random_order(HIDDEN), e[i].gate.x_cols = e[i].up.x_cols = HIDDEN;
        if (i != plain) sort_x(&e[i].gate, in, x, n, HIDDEN);
        else memcpy(in, x, size * 4);
        for (size_t k = 0; k < slots; k++) mine[k] = ids[k] == i ? i : -1;
        one.shared = shared && i == COUNT ? &sorted[i] : NULL;
        if (execs[0]->ops->experts(execs[0], &one)) wrong("the call with sorted columns of expert %d failed", i);
    }
    o.y = y, o.ids = ids, o.shared = shared ? &e[COUNT] : NULL;
    EACH_THREADS("experts, columns in other orders", y, size, was, on->ops->experts(on, &o));
    if (memcmp(y, want, size * 4)) wrong("other bits than with sorted columns");
    free(want);
    free(was);
    drop();
}

/* Some experts in one call, the others in another: the two sums together equal the whole, and each has the bits of a
 * call that names only its own experts. */
static void check_subset(int n, int n_experts, int topk, bool shared) {
    enum { HIDDEN = 144, INTER = 80, MOST = 9 };
    begin_case("e4m3 experts in two calls, %d rows, %d of %d experts%s", n, topk, n_experts,
               shared ? " and a shared one" : "");
    struct shape up = {INTER, HIDDEN, 128, 128, DT_E4M3, DT_F32, 0, 1},
                 down = {HIDDEN, INTER, 128, 128, DT_E4M3, DT_F32, 0, 1};
    struct expert e[MOST], some[MOST];
    for (int i = 0; i <= n_experts; i++) e[i] = (struct expert){make(&up), make(&up), make(&down)};
    size_t size = (size_t)n * HIDDEN, slots = (size_t)(n * topk);
    float *x = vec(size), *y = vec(size), *whole = aligned(size * 4), *was = aligned(size * 4), *weights = vec(slots),
          *left = vec(slots), *sizes = aligned(size * 4);
    int32_t *ids = guarded(slots * 4), *mine = guarded(slots * 4);
    for (size_t i = 0; i < size; i++) x[i] *= 0.05f;
    memcpy(was, y, size * 4);
    for (int t = 0; t < n; t++)
        for (int k = 0; k < topk; k++) ids[t * topk + k] = (t * 3 + k * 2 + t / 4) % n_experts;
    struct op_experts o = {.y = whole,
                           .x = x,
                           .ids = ids,
                           .weights = weights,
                           .experts = e,
                           .n = n,
                           .topk = topk,
                           .n_experts = n_experts,
                           .hidden = HIDDEN};
    o.shared = shared ? &e[n_experts] : NULL;
    memcpy(whole, was, size * 4);
    if (execs[0]->ops->experts(execs[0], &o)) wrong("the call with all experts failed");
    for (size_t i = 0; i < size; i++) sizes[i] = fabsf(was[i]) + fabsf(whole[i]);
    /* even experts and the shared one here, odd ones in another call; their weights are missing here */
    for (int side = 0; side < 2; side++) {
        for (int i = 0; i < n_experts; i++) some[i] = i % 2 == side ? e[i] : (struct expert){0};
        for (size_t i = 0; i < slots; i++) mine[i] = ids[i] % 2 == side ? ids[i] : -1;
        o.y = y, o.ids = mine, o.experts = some, o.shared = shared && !side ? &e[n_experts] : NULL;
        EACH_THREADS("a subset", y, size, was, on->ops->experts(on, &o));
        for (size_t i = 0; i < size; i++) whole[i] -= y[i] - was[i], sizes[i] += fabsf(y[i]);
        /* The same for one token after the other, whose list has no gaps. */
        for (int t = 0; t < n && n <= 3; t++) {
            float row[HIDDEN];
            int32_t list[8];
            int m = 0;
            for (int k = 0; k < topk; k++)
                if (mine[t * topk + k] >= 0) list[m] = mine[t * topk + k], left[m++] = weights[t * topk + k];
            struct op_experts one = o;
            one.y = row, one.x = x + t * HIDDEN, one.ids = list, one.weights = left, one.n = 1, one.topk = m;
            memcpy(row, was + t * HIDDEN, sizeof row);
            if (execs[2]->ops->experts(execs[2], &one) || memcmp(row, y + t * HIDDEN, sizeof row))
                wrong("row %d of the %s experts differs from a shorter list", t, side ? "odd" : "even");
        }
    }
    for (size_t i = 0; i < size; i++)
        near("what two subsets leave of the whole", (int)i / HIDDEN, (int)i % HIDDEN, whole[i], was[i],
             1e-5 * sizes[i]);
    for (size_t i = 0; i < slots; i++) mine[i] = -1; /* nothing is computed here */
    EACH_THREADS("an empty subset", y, size, was, on->ops->experts(on, &o));
    if (memcmp(y, was, size * 4)) wrong("an empty subset changes something");
    free(was), free(whole), free(sizes);
    drop();
}
