/* Checks the operations of base/ops.h on the CPU at every level against double precision written from the comments
 * there: views and batches, tie rules, groups, windows and sinks, causal masks, and the same bits for 1, 2 and 5
 * threads. */
#include "base/mat_at.h"
#include "base/minifloat.h"
#include "cpu/cpu_exec.h"
#include "cpu/gemm_inner.h"
#include "test/kcheck/ops_experts.h"
#include "test/kcheck/ops_route.h"
#include "test/kcheck/processors.h"

static void check_linear(int n, bool transposed, bool accumulate, int batch, uint8_t dtype, bool exact) {
    enum { ROWS = 50, COLS = 200, GAP = 3 };
    begin_case("%s linear, %d rows, %d columns%s%s%s, batch of %d", dtype_name(dtype), n, COLS,
               transposed ? ", transposed" : "", accumulate ? ", added" : "", exact ? ", exact" : "", batch);
    struct shape s = {batch * (ROWS + 6), COLS, 128, 128, dtype, DT_F32, 70, 1};
    struct mat all = make(&s), w = mat_rows(all, 0, ROWS);
    int in = transposed ? ROWS : COLS, out = transposed ? COLS : ROWS, ldx = batch * in + GAP, ldy = batch * out + GAP;
    float *x = vec((size_t)n * (size_t)ldx), *bias = vec((size_t)out), *y = vec((size_t)n * (size_t)ldy),
          *was = aligned((size_t)(n * ldy) * 4);
    memcpy(was, y, (size_t)(n * ldy) * 4);
    struct op_linear o = {.y = y,
                          .x = x,
                          .bias = batch == 1 ? bias : NULL,
                          .w = w,
                          .n = n,
                          .ldx = ldx,
                          .ldy = ldy,
                          .accumulate = accumulate,
                          .transposed = transposed,
                          .exact = exact,
                          .batch = batch,
                          .batch_rows = ROWS + 6,
                          .batch_x = in,
                          .batch_y = out};
    int32_t *top = guarded((size_t)n * 4);
    bool tops = !transposed && batch == 1;
    if (tops) o.top = top;
    EACH_THREADS("linear", y, n * ldy, was, on->ops->linear(on, &o));
    for (int t = 0; t < n; t++)
        for (int b = 0; b < batch; b++)
            for (int r = 0; r < out; r++) {
                double sum = accumulate ? was[t * ldy + b * out + r] : 0, abs_sum = fabs(sum);
                for (int c = 0; c < in; c++) {
                    double v = (double)mat_at(&all, b * (ROWS + 6) + (transposed ? c : r), transposed ? r : c) *
                               x[t * ldx + b * in + c];
                    sum += v, abs_sum += fabs(v);
                }
                if (o.bias) sum += bias[r], abs_sum += fabs(bias[r]);
                near("output", t, b * out + r, y[t * ldy + b * out + r], sum,
                     abs_sum * (products_bf16 && n > BATCH_INVARIANT_ROWS && !exact && !transposed ? 0x1p-8 : 4e-6));
            }
    for (int t = 0; t < n; t++)
        for (int g = 0; g < GAP; g++)
            if (f32_bits(y[t * ldy + batch * out + g]) != f32_bits(was[t * ldy + batch * out + g]))
                wrong("wrote %d columns beside row %d", g + 1, t);
    for (int t = 0; t < n && tops; t++) {
        int best = 0;
        for (int r = 1; r < out; r++)
            if (y[t * ldy + r] > y[t * ldy + best]) best = r;
        if (top[t] != best) wrong("the largest output of row %d is at %d, should be at %d", t, top[t], best);
    }
    if (tops) { /* non-finite values must propagate */
        x[(n - 1) * ldx + 1] = NAN;
        if (execs[THREADS - 1]->ops->linear(execs[THREADS - 1], &o) || top[n - 1] != -1)
            wrong("the largest output of a row of NaN is at %d, should be at -1", top[n - 1]);
    }
    free(was);
    drop();
}

/* A wide product and an expert of a format that is else multiplied with bytes: at least 16 bits of each number of x, in
 * steps of the largest of 256, half a step off in root mean square at most. */
static void check_wide(int n, uint8_t dtype) {
    enum { ROWS = 40, COLS = 512 };
    begin_case("%s linear and expert, %d rows, wide", dtype_name(dtype), n);
    struct shape s = {ROWS, COLS, 1, 0, dtype, 0, 0, 1}, d = {COLS, 256, 1, 0, dtype, 0, 0, 1},
                 g = {256, COLS, 1, 0, dtype, 0, 0, 1};
    const struct mat w = make(&s);
    struct expert e = {.gate = make(&g), .up = make(&g), .down = make(&d)};
    float *x = vec((size_t)n * COLS), *y = vec((size_t)n * ROWS), *z = vec((size_t)n * COLS);
    memset(z, 0, (size_t)n * COLS * 4);
    must(execs[1]->ops->linear(
        execs[1], &(struct op_linear){.y = y, .x = x, .w = w, .n = n, .ldx = COLS, .ldy = ROWS, .wide = true}));
    must(execs[1]->ops->experts(
        execs[1], &(struct op_experts){.y = z, .x = x, .n = n, .hidden = COLS, .shared = &e, .wide = true}));
    double off = 0, size = 0, h[256], expert_off = 0, expert_size = 0;
    for (int t = 0; t < n; t++) {
        for (int r = 0; r < ROWS; r++) {
            double sum = 0;
            for (int c = 0; c < COLS; c++) sum += (double)mat_at(&w, r, c) * x[t * COLS + c];
            off += pow(y[t * ROWS + r] - sum, 2), size += sum * sum;
        }
        for (int i = 0; i < 256; i++) {
            double gate = 0, up = 0;
            for (int c = 0; c < COLS; c++)
                gate += (double)mat_at(&e.gate, i, c) * x[t * COLS + c],
                    up += (double)mat_at(&e.up, i, c) * x[t * COLS + c];
            h[i] = gate / (1 + exp(-gate)) * up;
        }
        for (int r = 0; r < COLS; r++) {
            double sum = 0;
            for (int i = 0; i < 256; i++) sum += (double)mat_at(&e.down, r, i) * h[i];
            expert_off += pow(z[t * COLS + r] - sum, 2), expert_size += sum * sum;
        }
    }
    /* bytes leave about 6e-3 */
    if (!(off <= size * 4e-7)) wrong("a wide product is off by %g of its size", sqrt(off / size));
    if (!(expert_off <= expert_size * 4e-6))
        wrong("a wide expert is off by %g of its size", sqrt(expert_off / expert_size));
    drop();
}

struct attention_case {
    int n, heads, kv_heads, dim, v_dim, q_pos0, k_pos0, n_keys, window;
    uint8_t dtype;
    bool same, sinks, positions;
    int n_chosen;
    float softcap;
    int chunk;
};
static void check_attention(const struct attention_case *c) {
    begin_case("%s attention, %d rows, %d heads of %d, %d keys, window %d%s%s, %d chosen", dtype_name(c->dtype), c->n,
               c->heads, c->dim, c->n_keys, c->window, c->sinks ? ", sinks" : "", c->positions ? ", positions" : "",
               c->n_chosen);
    size_t krow = (size_t)(c->kv_heads * c->dim), vrow = (size_t)(c->kv_heads * (c->same ? c->dim : c->v_dim)),
           esize = dtype_bytes(c->dtype, 1);
    size_t keys = (size_t)c->n_keys, scales = keys * (size_t)c->kv_heads;
    struct kv_plane k = {guarded(keys * krow * esize + 4), vec(scales + 1), c->kv_heads, c->dim, c->dtype}, v = k;
    if (!c->same)
        v = (struct kv_plane){guarded(keys * vrow * esize + 4), vec(scales + 1), c->kv_heads, c->v_dim, c->dtype};
    float *kx = vec(keys * krow + 1), *vx = vec(keys * vrow + 1), *kl = vec(keys * krow + 1),
          *vl = vec(keys * vrow + 1);
    struct exec *x0 = execs[0];
    struct op_kv_store store = {k, kx, 0, c->n_keys, (int)krow}, store_v = {v, vx, 0, c->n_keys, (int)vrow};
    struct op_kv_load load = {k, kl, 0, c->n_keys, (int)krow}, load_v = {v, vl, 0, c->n_keys, (int)vrow};
    x0->ops->kv_store(x0, &store), x0->ops->kv_load(x0, &load);
    if (!c->same) x0->ops->kv_store(x0, &store_v);
    x0->ops->kv_load(x0, &load_v);
    for (size_t i = 0; i < keys * krow; i++)
        near("stored key", (int)(i / krow), (int)(i % krow), kl[i], kx[i],
             c->dtype == DT_F32    ? 0
             : c->dtype == DT_BF16 ? fabs(kx[i]) / 256
                                   : fabs(kx[i]) / 16 + 0.01);
    int ldq = c->heads * c->dim + 2, ldo = c->heads * c->v_dim + 1;
    size_t n_out = (size_t)(c->n * ldo), rows = (size_t)(c->n * c->heads);
    float *q = vec((size_t)(c->n * ldq)), *both = aligned((n_out + rows) * 4), *was = aligned((n_out + rows) * 4),
          *sinks = vec((size_t)c->heads);
    const int extent = c->n % 2 && c->softcap == 0 ? c->n_keys / 2 + 1 : 0; /* of biases by distance */
    const int temperature_len = c->softcap > 0 ? c->n_keys / 3 : 0;
    float *bias = vec(rows * (size_t)extent + 1);
    int32_t *pos = guarded((size_t)c->n * 4);
    for (int i = 0; i < c->n; i++) pos[i] = c->q_pos0 + i * 3 % 7;
    int32_t *chosen = guarded((size_t)(c->n * c->n_chosen + 1) * 4);
    for (int i = 0; i < c->n && c->n_chosen; i++) { /* all, or every other one from the end */
        int seen = op_seen(c->positions ? pos[i] : c->q_pos0 + i, c->k_pos0, c->n_keys), first = seen - 2 * c->n_chosen;
        for (int j = 0; j < c->n_chosen; j++)
            chosen[i * c->n_chosen + j] = seen <= c->n_chosen ? (j < seen ? j : -1)
                                          : first < 0         ? seen - c->n_chosen + j
                                                              : first + 2 * j + i % 2;
    }
    struct op_attention o = {.out = both,
                             .q = q,
                             .k = k,
                             .v = v,
                             .sinks = c->sinks ? sinks : NULL,
                             .lse = both + n_out,
                             .q_pos = c->positions ? pos : NULL,
                             .n = c->n,
                             .n_heads = c->heads,
                             .v_dim = c->v_dim,
                             .ldq = ldq,
                             .ldo = ldo,
                             .q_pos0 = c->q_pos0,
                             .k_pos0 = c->k_pos0,
                             .n_keys = c->n_keys,
                             .window = c->window,
                             .chosen = c->n_chosen ? chosen : NULL,
                             .n_chosen = c->n_chosen,
                             .scale = 0.3f,
                             .softcap = c->softcap,
                             .temperature_len = temperature_len,
                             .bias = extent ? bias : NULL,
                             .extent = extent,
                             .chunk_keys = c->chunk};
    EACH_THREADS("attention", both, n_out + rows, was, on->ops->attention(on, &o));
    double *p = malloc((keys + 1) * sizeof *p);
    /* Where pairs of BF16 are multiplied, queries and probabilities are rounded to BF16; for few tokens over BF16 keys,
     * to twice its bits. */
    const double loose = !tiles_bf16 || c->dtype == DT_F32                    ? 1
                         : c->n > BATCH_INVARIANT_ROWS || c->dtype == DT_E4M3 ? 1000
                                                                              : 4;
    for (int t = 0; t < c->n; t++)
        for (int h = 0; h < c->heads; h++) {
            int g = h / (c->heads / c->kv_heads), at = c->positions ? pos[t] : c->q_pos0 + t;
            double max = c->sinks ? sinks[h] : -INFINITY, sum = 0;
            for (int j = 0; j < c->n_keys; j++) {
                double d = 0;
                bool seen = c->k_pos0 + j <= at && (c->window <= 0 || c->k_pos0 + j > at - c->window);
                if (c->chunk) seen &= (c->k_pos0 + j) / c->chunk == at / c->chunk;
                if (c->n_chosen) {
                    bool listed = false;
                    for (int m = 0; m < c->n_chosen; m++) listed |= chosen[t * c->n_chosen + m] == j;
                    seen &= listed;
                }
                for (int i = 0; i < c->dim; i++)
                    d += (double)q[t * ldq + h * c->dim + i] * kl[(size_t)j * krow + (size_t)(g * c->dim + i)];
                d *= (double)0.3f;
                if (c->softcap > 0) d = (double)c->softcap * tanh(d / (double)c->softcap);
                if (temperature_len > 1 && at > temperature_len) d *= log(at) / log(temperature_len);
                const int far = at - c->k_pos0 - j;
                if (far >= 0 && far < extent)
                    d += (double)bias[(size_t)(t * c->heads + h) * (size_t)extent + (size_t)far];
                p[j] = seen ? d : -INFINITY;
                max = fmax(max, p[j]);
            }
            for (int j = 0; j < c->n_keys; j++) sum += p[j] = max > -INFINITY ? exp(p[j] - max) : 0;
            if (c->sinks) sum += exp(sinks[h] - max);
            double lse = sum > 0 ? max + log(sum) : -INFINITY, got = both[n_out + (size_t)(t * c->heads + h)];
            if (lse == -INFINITY ? got != -INFINITY : !(fabs(got - lse) <= 1e-5 * loose * (1 + fabs(lse))))
                mismatch("log of the sum", t, h, got, lse, 1e-5 * loose * (1 + fabs(lse)));
            for (int i = 0; i < c->v_dim; i++) {
                double want = 0;
                for (int j = 0; j < c->n_keys; j++)
                    want += p[j] * vl[(size_t)j * vrow + (size_t)(g * (c->same ? c->dim : c->v_dim) + i)];
                near("output", t, h * c->v_dim + i, both[t * ldo + h * c->v_dim + i], sum > 0 ? want / sum : 0,
                     2e-5 * loose);
            }
        }
    free(p), free(both), free(was);
    drop();
}

/* The indexer: no key that was left out is better than a selected one by more than float32 resolves. With ties all
 * numbers are small integers, so sums are exact and the selection is too. */
struct select_case {
    int n, heads, dim, q_pos0, k_pos0, topk;
    uint8_t dtype;
};
static void check_select(const struct select_case *c, bool ties) {
    begin_case("%s select, %d rows, %d heads of %d, %d of the keys before %d%s", dtype_name(c->dtype), c->n, c->heads,
               c->dim, c->topk, c->q_pos0, ties ? ", ties" : "");
    int n_keys = op_seen(c->q_pos0 + c->n - 1, c->k_pos0, 1 << 20), ldq = c->heads * c->dim + 3;
    size_t keys = (size_t)n_keys, row = (size_t)c->dim;
    struct kv_plane k = {guarded(keys * row * dtype_bytes(c->dtype, 1) + 4), vec(keys + 1), 1, c->dim, c->dtype};
    float *kx = vec(keys * row + 1), *kl = vec(keys * row + 1), *q = vec((size_t)(c->n * ldq)),
          *weight = vec((size_t)(c->n * c->heads));
    /* E4M3 holds these exactly: 448 / 7 is a power of two */
    for (size_t i = 0; i < keys * row && ties; i++) kx[i] = i % row ? (float)(int)kx[i] : 7;
    for (int i = 0; i < c->n * ldq && ties; i++) q[i] = i % ldq % c->dim ? (float)(int)q[i] : -1;
    for (int i = 0; i < c->n * c->heads && ties; i++) weight[i] = (float)(int)(weight[i] * 2);
    struct exec *x0 = execs[0];
    x0->ops->kv_store(x0, &(struct op_kv_store){k, kx, 0, n_keys, c->dim});
    x0->ops->kv_load(x0, &(struct op_kv_load){k, kl, 0, n_keys, c->dim});
    size_t size = (size_t)(c->n * c->topk);
    int32_t *chosen = guarded(size * 4), *was = aligned(size * 4);
    memset(was, 0x55, size * 4);
    struct op_select o = {.chosen = chosen,
                          .q = q,
                          .weight = weight,
                          .k = k,
                          .n = c->n,
                          .heads = c->heads,
                          .topk = c->topk,
                          .ldq = ldq,
                          .q_pos0 = c->q_pos0,
                          .k_pos0 = c->k_pos0,
                          .n_keys = n_keys,
                          .scale = ties ? 0.25f : 0.1f};
    EACH_THREADS("select", chosen, size, was, on->ops->select(on, &o));
    double *score = malloc((keys + 1) * sizeof *score), close = 0;
    for (int t = 0; t < c->n; t++) {
        int seen = op_seen(c->q_pos0 + t, c->k_pos0, n_keys), at = 0;
        for (int j = 0; j < seen; j++) {
            score[j] = 0;
            for (int h = 0; h < c->heads; h++) {
                double d = 0;
                for (int i = 0; i < c->dim; i++)
                    d += (double)q[t * ldq + h * c->dim + i] * (double)kl[(size_t)j * row + (size_t)i];
                score[j] += (double)weight[t * c->heads + h] * (d > 0 ? d : 0);
            }
            const double near = fabs(score[j]) * (ties ? 0 : 1e-4);
            close = near > close ? near : close;
        }
        double worst = INFINITY;
        for (int i = 0; i < c->topk; i++) {
            int32_t j = chosen[t * c->topk + i];
            if (i >= seen ? j != -1 : j < 0 || j >= seen || (i && j <= chosen[t * c->topk + i - 1]))
                wrong("place %d of row %d has key %d, which is out of order or range", i, t, j);
            else if (i < seen) worst = fmin(worst, score[j]);
        }
        for (int j = 0; j < seen && seen > c->topk; j++) {
            bool in = at < c->topk && chosen[t * c->topk + at] == j;
            at += in;
            if (!in && score[j] > worst + close)
                wrong("row %d leaves out key %d with score %.9g, and has one with %.9g", t, j, score[j], worst);
            int later = 0; /* of equal keys the first are selected */
            for (int i = at; i < c->topk && !in && ties; i++)
                later += score[chosen[t * c->topk + i]] == score[j] && score[j] == worst;
            if (later) wrong("row %d leaves out key %d and has %d later ones that are equal", t, j, later);
        }
    }
    free(score), free(was);
    drop();
}

static void check_small(void) {
    enum { N = 9, DIM = 700, HALF = 32 };
    begin_case("small operations, %d rows, %d columns", N, DIM);
    float *x = vec(N * DIM), *out = vec(N * DIM), *was = aligned(N * DIM * 4), *w = vec(DIM), *b = vec(DIM);
    uint16_t *w16 = guarded(DIM * 2);
    for (int i = 0; i < DIM; i++) w16[i] = f32_to_bf16(w[i]);
    for (int layer = 0; layer < 2; layer++) {
        _Atomic int bad = -1;
        struct op_norm o = {.out = out,
                            .x = x,
                            .w = layer ? (void *)w : w16,
                            .bias = layer ? b : NULL,
                            .rows = N,
                            .dim = DIM,
                            .ldx = DIM,
                            .ldo = DIM,
                            .eps = 1e-6f,
                            .add = layer ? 0 : 1,
                            .w_dtype = layer ? DT_F32 : DT_BF16,
                            .layer_norm = (uint8_t)layer,
                            .tag = 7,
                            .bad = &bad};
        EACH_THREADS("norm", out, N * DIM, was, on->ops->norm(on, &o));
        for (int i = 0; i < N; i++) {
            double mean = 0, sq = 0;
            for (int c = 0; c < DIM; c++) mean += x[i * DIM + c] / (double)DIM;
            if (!layer) mean = 0;
            for (int c = 0; c < DIM; c++) sq += (x[i * DIM + c] - mean) * (x[i * DIM + c] - mean) / DIM;
            for (int c = 0; c < DIM; c++) {
                double want = (x[i * DIM + c] - mean) / sqrt(sq + 1e-6) * (layer ? w[c] : bf16_to_f32(w16[c]) + 1) +
                              (layer ? b[c] : 0);
                near("norm", i, c, out[i * DIM + c], want, 1e-5);
            }
        }
        if (bad != -1) wrong("norm reports %d for finite rows, should be -1", bad);
        float keep = x[5];
        x[5] = 3e38f, x[6] = 3e38f; /* its square overflows, it is finite itself */
        execs[2]->ops->norm(execs[2], &o);
        if (bad != -1) wrong("norm reports %d for large rows, should be -1", bad);
        x[5] = NAN;
        execs[2]->ops->norm(execs[2], &o);
        if (bad != 7) wrong("norm reports %d for a NaN, should be 7", bad);
        x[5] = keep, x[6] = keep;
    }
    /* a part of w for each third row */
    must(execs[1]->ops->norm(execs[1], &(struct op_norm){.out = out,
                                                         .x = x,
                                                         .w = w,
                                                         .bias = b,
                                                         .w_rows = 3,
                                                         .rows = N,
                                                         .dim = DIM / 3,
                                                         .ldx = DIM,
                                                         .ldo = DIM,
                                                         .eps = 1e-6f,
                                                         .w_dtype = DT_F32,
                                                         .layer_norm = true}));
    for (int i = 0; i < N; i++) {
        double mean = 0, sq = 0;
        for (int c = 0; c < DIM / 3; c++) mean += x[i * DIM + c] / (double)(DIM / 3);
        for (int c = 0; c < DIM / 3; c++) sq += (x[i * DIM + c] - mean) * (x[i * DIM + c] - mean) / (DIM / 3);
        for (int c = 0; c < DIM / 3; c++) {
            const int at = i % 3 * (DIM / 3) + c;
            near("norm with weights by row", i, c, out[i * DIM + c],
                 (x[i * DIM + c] - mean) / sqrt(sq + 1e-6) * w[at] + b[at], 1e-5);
        }
    }
    for (int i = 0; i < N; i++) { /* rows of several lengths, of which some exceed the limit */
        const float keep = x[i * DIM];
        double sq = 0;
        if (i % 2) x[i * DIM] *= 100;
        for (int c = 0; c < DIM; c++) sq += (double)x[i * DIM + c] * x[i * DIM + c];
        const double limit = i % 3 ? sqrt(sq) * 0.75 : sqrt(sq) * 1.25;
        must(execs[0]->ops->norm(
            execs[0],
            &(struct op_norm){
                .out = out, .x = x + i * DIM, .rows = 1, .dim = DIM, .l2_limit = (float)limit, .w_dtype = DT_F32}));
        for (int c = 0; c < DIM; c++) {
            const double want = x[i * DIM + c] * fmin(limit / (sqrt(sq) + 1e-6), 1);
            near("shortened", i, c, out[c], want, 1e-6 * (1 + fabs(want)));
        }
        x[i * DIM] = keep;
    }
    int32_t pos[N], ids[N];
    float freq[HALF], *cs = vec(N * HALF), *sn = vec(N * HALF);
    for (int i = 0; i < N; i++) pos[i] = i * 9001, ids[i] = (i * 5) % 11;
    for (int j = 0; j < HALF; j++) freq[j] = powf(10000, -(float)j / HALF);
    struct op_rope_table table = {
        .cos = cs, .sin = sn, .pos = pos, .inv_freq = freq, .n = N, .half = HALF, .mscale = 1.25f};
    int32_t length[N];
    float both[2 * HALF];
    for (int j = 0; j < HALF; j++) both[j] = 1, both[HALF + j] = freq[j];
    for (int far = 0; far < 2; far++) { /* two rows of frequencies: by row, then all equal */
        for (int i = 0; i < N; i++) length[i] = i % 2 ? 65 : 64;
        struct op_rope_table two = table;
        two.inv_freq = both, two.longest = 64, two.long_mscale = 1.25f, two.mscale = 3,
        two.length = far ? NULL : length, two.total = 65;
        execs[1]->ops->rope_table(execs[1], &two);
        for (int i = 0; i < N; i++)
            for (int j = 0; j < HALF; j++) {
                bool second = far || i % 2;
                near("rope tables", i, j, cs[i * HALF + j],
                     cos((double)((float)pos[i] * (second ? freq[j] : 1))) * (second ? 1.25 : 3), 1e-6);
            }
    }
    execs[1]->ops->rope_table(execs[1], &table);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < HALF; j++) {
            double angle = (double)((float)pos[i] * freq[j]);
            near("rope table", i, j, cs[i * HALF + j], cos(angle) * 1.25, 3e-7);
            near("rope table", i, j, sn[i * HALF + j], sin(angle) * 1.25, 3e-7);
        }
    int32_t place[3 * N]; /* time, row and column, as of an image's tokens */
    for (int i = 0; i < 3 * N; i++) place[i] = i * 37 % 101;
    struct op_rope_table three = table;
    three.place = place, three.section[0] = HALF / 4, three.section[1] = HALF / 5;
    execs[1]->ops->rope_table(execs[1], &three);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < HALF; j++) {
            const int part = j % 3 == 1 && j < 3 * (HALF / 4) ? 1 : j % 3 == 2 && j < 3 * (HALF / 5) ? 2 : 0;
            near("rope table of places", i, j, cs[i * HALF + j],
                 cos((double)((float)place[3 * i + part] * freq[j])) * 1.25, 3e-7);
        }
    execs[1]->ops->rope_table(execs[1], &table);
    for (int form = 0; form < 4; form++) {
        struct op_rope o = {.x = out,
                            .cos = cs,
                            .sin = sn,
                            .n = N,
                            .heads = 6,
                            .ld = DIM,
                            .head_ld = 100,
                            .half = HALF,
                            .interleaved = form & 1,
                            .inverse = form & 2};
        for (int i = 0; i < N * DIM; i++) was[i] = x[i];
        EACH_THREADS("rope", out, N * DIM, was, on->ops->rope(on, &o));
        for (int i = 0; i < N; i++)
            for (int h = 0; h < 6; h++)
                for (int j = 0; j < HALF; j++) {
                    int at = i * DIM + h * 100, a = at + (form & 1 ? 2 * j : j), c = form & 1 ? a + 1 : a + HALF;
                    double sine = (form & 2 ? -1.0 : 1.0) * sn[i * HALF + j];
                    near("rope", i, a % DIM, out[a], was[a] * (double)cs[i * HALF + j] - was[c] * sine, 2e-6);
                    near("rope", i, c % DIM, out[c], was[c] * (double)cs[i * HALF + j] + was[a] * sine, 2e-6);
                }
    }
    struct shape s = {11, 333, 128, 128, DT_E4M3, DT_F32, 0, 1};
    float *rows = vec(N * 333), *zero = aligned(N * 333 * 4);
    struct op_embed embed = {rows, ids, make(&s), N, 0.5f};
    EACH_THREADS("embed", rows, N * 333, zero, on->ops->embed(on, &embed));
    for (int i = 0; i < N; i++)
        for (int c = 0; c < 333; c++)
            if (rows[i * 333 + c] != 0.5f * mat_at(&embed.table, ids[i], c))
                mismatch("embed", i, c, rows[i * 333 + c], (double)(0.5f * mat_at(&embed.table, ids[i], c)), 0);
    struct op_sigmoid sig = {rows, N, 333};
    memcpy(zero, rows, N * 333 * 4);
    execs[2]->ops->sigmoid(execs[2], &sig);
    for (int i = 0; i < N * 333; i++) near("sigmoid", i / 333, i % 333, rows[i], 1 / (1 + exp(-(double)zero[i])), 2e-7);
    float held[N * 333];
    for (int i = 0; i < N * 333; i++) held[i] = (float)(i % 7 - 3) * 0.5f;
    held[5] = NAN;
    struct op_clip clip = {held, N, 333, 1.0f};
    execs[2]->ops->clip(execs[2], &clip);
    for (int i = 0; i < N * 333; i++)
        if (i != 5) near("clip", i / 333, i % 333, held[i], fmax(-1, fmin(1, (i % 7 - 3) * 0.5)), 0);
    if (!isnan(held[5])) wrong("clip hides what is no number");
    struct op_fill fill = {held, N, 333, -3};
    execs[2]->ops->fill(execs[2], &fill);
    for (int i = 0; i < N * 333; i++) near("fill", i / 333, i % 333, held[i], -3, 0);
    struct op_softcap softcap = {held, N, 333, 1.5f};
    for (int i = 0; i < N * 333; i++) held[i] = (float)(i % 17 - 8) * 0.5f;
    held[5] = NAN;
    execs[2]->ops->softcap(execs[2], &softcap);
    for (int i = 0; i < N * 333; i++)
        if (i != 5) near("softcap", i / 333, i % 333, held[i], 1.5 * tanh((i % 17 - 8) * 0.5 / 1.5), 3e-7);
    if (!isnan(held[5])) wrong("softcap hides what is no number");
    struct op_add add = {rows, zero, N, 333};
    memcpy(out, rows, N * 333 * 4);
    execs[2]->ops->add(execs[2], &add);
    for (int i = 0; i < N * 333; i++)
        near("add", i / 333, i % 333, rows[i], (double)out[i] + zero[i], 1e-6 * (fabs(out[i]) + fabs(zero[i])));
    free(was), free(zero);
    drop();
}

static void check_cancel(void) {
    begin_case("bf16 linear, 1 row, 512 columns, cancelled");
    struct shape s = {4000, 512, 128, 0, DT_BF16, 0, 0, 1};
    static _Atomic int stop;
    float *x = vec(512), *y = vec(4000);
    struct op_linear o = {.y = y, .x = x, .w = make(&s), .n = 1, .ldx = 512, .ldy = 4000};
    for (int th = 0; th < THREADS; th++) {
        execs[th]->cancel = &stop;
        stop = 1;
        if (execs[th]->ops->linear(execs[th], &o) != ERR_CANCELLED)
            wrong("cancel was not seen on %d threads", thread_counts[th]);
        stop = 0;
        if (execs[th]->ops->linear(execs[th], &o)) wrong("an old cancel stayed on %d threads", thread_counts[th]);
        execs[th]->cancel = NULL;
    }
    drop();
}

static void cases(enum cpu_level l) {
    products_bf16 = gemm_for(l, false)->bf16, tiles_bf16 = gemm_kernels(l)->qk16 && !gemm_kernels(l)->qk16_is_exact;
    for (int i = 0; i < 40; i++)
        check_linear((int[]){1, 3, 8, 9, 21, 16, 24, 2, 25, 40}[i % 10], i % 4 == 3, i % 3 == 0, i % 5 == 0 ? 3 : 1,
                     (uint8_t[]){DT_E4M3, DT_BF16, DT_F32}[i % 3], i % 8 == 4);
    for (int i = 0; i < 9; i++) check_wide((int[]){1, 7, 40}[i % 3], (uint8_t[]){DT_Q4_K, DT_Q6_K, DT_Q4_0}[i / 3]);
    static const int experts[][4] = {{1, 4, 2, 1},  {1, 8, 8, 0}, {3, 5, 2, 1},   {8, 8, 3, 1},  {9, 4, 2, 0},
                                     {40, 4, 2, 1}, {7, 1, 0, 1}, {700, 3, 1, 1}, {16, 3, 2, 1}, {24, 2, 1, 0}};
    for (size_t i = 0; i < sizeof experts / sizeof *experts; i++)
        for (size_t k = 0; k < sizeof expert_kinds / sizeof *expert_kinds; k++)
            check_experts(experts[i][0], experts[i][1], experts[i][2], experts[i][3], &expert_kinds[k]);
    for (int i = 0; i < 12; i++)
        check_values((int[]){1, 3, 24, 200}[i % 4], (int[]){4, 9, 6}[i / 4], (int[]){1, 4, 3}[i % 3],
                     (uint8_t[]){DT_E4M3, DT_BF16, DT_F32, DT_Q8_0}[i % 4]);
    for (int i = 0; i < 9; i++) check_choices((int[]){1, 5, 24}[i % 3], &expert_kinds[(int[]){0, 3, 11}[i / 3]]);
    for (int i = 0; i < 16; i++)
        check_ordered_linear((int[]){1, 9, 24, 40}[i % 4], (uint8_t[]){DT_I4, DT_I8, DT_E4M3, DT_I4}[i / 4], i % 2);
    for (int i = 0; i < 18; i++)
        check_ordered_experts((int[]){1, 3, 9, 24, 40, 700}[i % 6], 1 + i % 4, i % 2,
                              (uint8_t[]){DT_I4, DT_BF16, DT_E4M3}[i / 6]);
    for (int i = 0; i < 6; i++) check_subset((int[]){1, 2, 3, 8, 17, 40}[i], 8, (int[]){8, 1, 3}[i % 3], i % 2);
    static const struct attention_case attention[] = {
        {1, 4, 4, 16, 16, 0, 0, 1, 0, DT_F32, false, false, false},
        {1, 8, 2, 24, 24, 1299, 0, 1300, 0, DT_BF16, false, true, false},
        {3, 8, 2, 16, 16, 900, 0, 1100, 200, DT_F32, false, true, false},
        {1, 40, 1, 48, 40, 1500, 0, 1400, 0, DT_BF16, true, false, false},
        {2, 16, 4, 32, 32, 700, 0, 702, 0, DT_E4M3, false, false, false},
        {70, 4, 4, 24, 16, 10, 0, 80, 0, DT_F32, false, false, false},
        {33, 8, 2, 16, 16, 0, 0, 33, 5, DT_BF16, false, false, false},
        {1, 7, 1, 130, 72, 300, 0, 203, 0, DT_BF16, false, false, false},
        {4, 4, 2, 64, 128, 600, 0, 603, 70, DT_BF16, false, true, true},
        {70, 6, 2, 33, 17, 60, 0, 131, 0, DT_BF16, false, true, false},
        {5, 4, 2, 16, 16, 3, 100, 50, 0, DT_F32, false, false, false},
        {9, 4, 2, 16, 16, 40, 38, 30, 0, DT_F32, false, false, true},
        {2, 4, 2, 16, 16, 40, 0, 0, 0, DT_F32, false, true, false},
        /* large tiles and blocks, where a kernel takes them */
        {140, 32, 32, 12, 12, 300, 0, 440, 0, DT_BF16, false, true, false},
        {140, 40, 20, 16, 24, 300, 30, 410, 0, DT_E4M3, false, false, false},
        {41, 4, 2, 40, 24, 1490, 0, 1531, 1100, DT_BF16, false, false, false},
        /* with few keys, a row's own selection */
        {1, 4, 1, 48, 40, 300, 0, 301, 0, DT_BF16, true, false, false, 70},
        {5, 4, 1, 48, 40, 68, 0, 73, 0, DT_F32, true, true, false, 70},
        {3, 40, 1, 32, 32, 500, 0, 503, 0, DT_E4M3, true, false, false, 129},
        {40, 4, 2, 24, 16, 100, 0, 140, 0, DT_BF16, false, false, false, 33},
        {9, 8, 1, 64, 64, 900, 0, 910, 0, DT_E4M3, true, false, true, 20},
        /* with capped scores */
        {1, 8, 2, 24, 24, 1299, 0, 1300, 0, DT_BF16, false, true, false, 0, 2},
        {5, 4, 2, 16, 16, 900, 0, 910, 200, DT_F32, false, false, false, 0, 50},
        {70, 4, 2, 32, 32, 60, 0, 131, 0, DT_E4M3, false, false, false, 0, 0.5f},
        /* in chunks */
        {1, 8, 2, 24, 24, 1299, 0, 1300, 0, DT_BF16, false, false, false, 0, 0, 512},
        {5, 4, 2, 16, 16, 94, 0, 99, 0, DT_F32, false, false, false, 0, 0, 48},
        {70, 4, 2, 32, 32, 60, 20, 111, 0, DT_E4M3, false, true, true, 0, 0, 48},
    };
    for (size_t i = 0; i < sizeof attention / sizeof *attention; i++) check_attention(&attention[i]);
    static const struct select_case select[] = {
        {1, 3, 16, 700, 0, 64, DT_F32},      {5, 8, 32, 60, 0, 62, DT_BF16}, {40, 40, 24, 100, 0, 48, DT_BF16},
        {3, 5, 130, 900, 0, 129, DT_E4M3},   {9, 4, 16, 0, 0, 8, DT_F32},    {70, 2, 16, 1300, 500, 300, DT_F32},
        {24, 64, 128, 260, 0, 256, DT_E4M3},
    };
    for (size_t i = 0; i < sizeof select / sizeof *select; i++)
        for (int ties = 0; ties < 2; ties++) check_select(&select[i], ties);
    for (int i = 0; i < 16; i++) {
        const enum score_fn fn = i % 8 == 3 ? SCORE_SIGMOID_BY_LOGIT : i & 1 ? SCORE_SIGMOID : SCORE_SOFTMAX;
        check_each_group(1 + i * 3, 48, (int[]){8, 4, 12}[i % 3], 4),
            check_route(1 + i * 3, 32, 4, (int[]){1, 8, 4, 0}[i % 4], 3, fn, i & 2, i & 4, i & 8);
    }
    for (int i = 0; i < 8; i++) check_idle(1 + i * 5, 12 + i, 1 + i * 3, 1 + i);
    for (int i = 0; i < 4; i++) check_mixer(1 + i * 9, (int[]){16, 9, 2, 60}[i], (float[]){0.01f, 0.06f, 0.3f, 0}[i]);
    check_small();
    check_cancel();
}

int main(int argc, char **argv) {
    if (!processor_chosen(&argc, &argv)) return SKIPPED;
    return each_level(argc > 1 ? strtoull(argv[1], NULL, 0) : 20260729, cases);
}
