/* Checks the parts of DeepSeek-V4 other than attention (compressed keys, residual streams, experts by token id) on the
 * CPU at every level against double precision written from the comments in base/ops.h: the same bits for 1, 2 and 5
 * threads, and a row the same alone, in a call of many rows, and in two calls with the state in between. Keys some
 * positions apart are compared with the same operation over adjacent keys. */
#include "base/minifloat.h"
#include "test/kcheck/levels.h"
#include "test/kcheck/ops_blocks.h"

/* Feeds a sequence from its start in calls of `some` rows; collects the entry of each window. */
static void check_compress(int n, int ratio, int dim, bool overlap, bool in_place) {
    begin_case("compress, %d rows, %d to an entry, %d columns%s%s", n, ratio, dim, overlap ? ", overlapping" : "",
               in_place ? ", in place" : "");
    const int series = overlap ? 2 : 1, width = series * dim, ldx = 2 * width + 1, made = n / ratio;
    const size_t kept = (size_t)(3 * series * dim), size = (size_t)(made * dim + 1);
    float *x = vec((size_t)(n * ldx)), *bias = vec((size_t)(ratio * width)), *a = vec(kept),
          *b = in_place ? a : vec(kept), *out = vec(size), *first = aligned(size * 4);
    for (int i = 0; i < n * ldx; i += 3) x[i] *= 8; /* gates far apart */
    for (int t = 0; t < THREADS + 2; t++) {
        struct exec *on = execs[t % THREADS];
        const int some = t < THREADS ? n : t == THREADS ? 1 : n / 2 + 1;
        float *from = a, *to = b, *end = out;
        memset(a, 0xff, kept * 4); /* nothing of it may be read at the start */
        for (int i = 0; i < n; i += some) {
            struct op_compress o = {.out = end,
                                    .kv = x + i * ldx,
                                    .gate = x + i * ldx + width,
                                    .bias = bias,
                                    .before = from,
                                    .after = to,
                                    .n = n - i < some ? n - i : some};
            o.pos0 = i, o.ratio = ratio, o.dim = dim, o.ldx = ldx, o.overlap = overlap;
            must(on->ops->compress(on, &o));
            end += op_compressed(&o) * dim;
            float *swap = from;
            from = to, to = swap;
        }
        if (end != out + made * dim) wrong("run %d makes %d entries, should be %d", t, (int)(end - out) / dim, made);
        if (!t) memcpy(first, out, size * 4);
        if (!equal(first, out, (size_t)(made * dim))) wrong("run %d, calls of %d rows, differs from one call", t, some);
    }
    for (int w = 0; w < made; w++)
        for (int d = 0; d < dim; d++) {
            double max = -INFINITY, sum = 0, acc = 0, most = 0;
            for (int pass = 0; pass < 2; pass++)
                for (int i = (w - (overlap && w)) * ratio; i < (w + 1) * ratio; i++) {
                    const int own = overlap && i >= w * ratio ? dim : 0;
                    const double kv = x[i * ldx + own + d],
                                 g = (double)x[i * ldx + width + own + d] + (double)bias[i % ratio * width + own + d];
                    if (!pass) max = fmax(max, g), most = fmax(most, fabs(kv));
                    else sum += exp(g - max), acc += exp(g - max) * kv;
                }
            near("entry", w, d, first[w * dim + d], acc / sum, 4e-6 * most * sqrt(ratio));
        }
    free(first);
    drop();
}

/* passes: the weights of `in` are those of the previous call. */
static void check_mix(int n, int hidden, int s, int iters, bool last, bool passes) {
    begin_case("mix, %d rows, %d columns, %d streams, %d iterations%s%s", n, hidden, s, iters, last ? ", the last" : "",
               passes ? ", earlier weights" : "");
    const int all = last ? s : op_mix_weights(s, iters), ld = s + 3;
    float *earlier = vec((size_t)(n * ld)), *first = aligned((size_t)(n * ld) * 4);
    memcpy(first, earlier, (size_t)(n * ld) * 4);
    const double magnitude = iters ? 2 : 1.5, post_eps = iters ? 0 : 0.25;
    const size_t size = (size_t)(n * s * hidden), row = (size_t)(n * hidden);
    float *streams = vec(size), *was = aligned(size * 4), *x = vec(row), *post = vec((size_t)(n * s)),
          *mix = vec((size_t)(n * all)), *base = vec((size_t)all), *scale = vec(3), *in = vec(row),
          *kept = aligned(size * 4), *kept_in = aligned(row * 4), *given = aligned((size_t)(n * s) * 4);
    const float eps = 1e-6f;
    memcpy(was, streams, size * 4), memcpy(given, post, (size_t)(n * s) * 4);
    for (int t = 0; t < THREADS; t++) {
        memcpy(streams, was, size * 4), memcpy(post, given, (size_t)(n * s) * 4);
        must(execs[t]->ops->spread(execs[t], &(struct op_spread){streams, x, last ? NULL : post, n, hidden, s}));
        for (int i = 0; i < n; i++)
            for (int k = 0; k < s; k++)
                for (int d = 0; d < hidden; d++) {
                    const double v = x[i * hidden + d],
                                 want = last ? v : (double)was[(i * s + k) * hidden + d] + (double)given[i * s + k] * v;
                    near("spread", i, k * hidden + d, streams[(i * s + k) * hidden + d], want, 1e-6 * (1 + fabs(want)));
                }
        memcpy(streams, was, size * 4);
        struct op_mix o = {.in = in,
                           .out = last ? NULL : x,
                           .streams = streams,
                           .post = last ? NULL : post,
                           .mix = mix,
                           .base = base,
                           .scale = scale};
        float *copy = aligned(row * 4);
        memcpy(copy, x, row * 4);
        o.n = n, o.hidden = hidden, o.n_streams = s, o.iters = iters, o.eps = eps, o.norm_eps = 1e-5f;
        if (!iters) o.magnitude = (float)magnitude, o.post_eps = (float)post_eps;
        memcpy(earlier, first, (size_t)(n * ld) * 4);
        if (passes) o.earlier = earlier, o.ld_earlier = ld, o.mix = last ? NULL : mix;
        must(execs[t]->ops->mix(execs[t], &o));
        if (!t) memcpy(kept, streams, size * 4), memcpy(kept_in, in, row * 4);
        if (!equal(kept, streams, size) || !equal(kept_in, in, row))
            wrong("differs between 1 and %d threads", thread_counts[t]);
        for (size_t i = 0; i < row && !last; i++)
            if (x[i] != 0) mismatch("cleared output", (int)i / hidden, (int)i % hidden, x[i], 0, 0);
        if (!last) memcpy(x, copy, row * 4);
        free(copy);
    }
    for (int i = 0; i < n; i++) {
        const float *old = was + i * s * hidden;
        double square = 0, pre[STREAMS_MOST], comb[STREAMS_MOST][STREAMS_MOST];
        for (int k = 0; k < s * hidden; k++) square += (double)old[k] * (double)old[k];
        const double r = 1 / sqrt(square / (s * hidden) + 1e-5);
        for (int k = 0; k < s; k++)
            pre[k] = sigmoid((double)mix[i * all + k] * r * (double)scale[0] + (double)base[k]) + (double)eps;
        for (int k = 0; k < s && passes; k++) {
            near("kept weight", i, k, earlier[i * ld + k], last ? (double)first[i * ld + k] : pre[k], 2e-6);
            pre[k] = (double)first[i * ld + k];
        }
        for (int k = 0; k < s && !last; k++) {
            const double want =
                magnitude * sigmoid((double)mix[i * all + s + k] * r * (double)scale[1] + (double)base[s + k]) +
                post_eps;
            near("post", i, k, post[i * s + k], want, 2e-6);
            for (int t = 0; t < s && !iters; t++) comb[k][t] = t == k; /* the streams stay */
            if (!iters) continue;
            double max = -INFINITY, sum = 0;
            for (int t = 0; t < s; t++) {
                const int at = (2 + k) * s + t;
                comb[k][t] = (double)mix[i * all + at] * r * (double)scale[2] + (double)base[at];
                max = fmax(max, comb[k][t]);
            }
            for (int t = 0; t < s; t++) sum += comb[k][t] = exp(comb[k][t] - max);
            for (int t = 0; t < s; t++) comb[k][t] = comb[k][t] / sum + (double)eps;
        }
        for (int it = 0; it < iters && !last; it++) {
            for (int k = 0; k < s && it; k++) {
                double sum = (double)eps;
                for (int t = 0; t < s; t++) sum += comb[k][t];
                for (int t = 0; t < s; t++) comb[k][t] /= sum;
            }
            for (int t = 0; t < s; t++) {
                double sum = (double)eps;
                for (int k = 0; k < s; k++) sum += comb[k][t];
                for (int k = 0; k < s; k++) comb[k][t] /= sum;
            }
        }
        for (int d = 0; d < hidden; d++) {
            double sum = 0;
            for (int k = 0; k < s; k++) sum += pre[k] * (double)old[k * hidden + d];
            near("input", i, d, kept_in[i * hidden + d], sum, 2e-5);
            for (int t = 0; t < s; t++) {
                double want = last ? (double)old[t * hidden + d] : 0;
                for (int k = 0; k < s && !last; k++) want += comb[k][t] * (double)old[k * hidden + d];
                near("stream", i, t * hidden + d, kept[(i * s + t) * hidden + d], want, 2e-5);
            }
        }
    }
    free(was), free(kept), free(kept_in), free(given), free(first);
    drop();
}

static void check_route(int n, int experts, int topk) {
    enum { VOCAB = 50 };
    begin_case("route, %d rows, %d of %d experts", n, topk, experts);
    float *logits = vec((size_t)(n * experts)), *weights = vec((size_t)(n * topk)), *bias = vec((size_t)experts);
    int32_t *ids = guarded((size_t)(n * topk) * 4), *table = guarded((size_t)VOCAB * (size_t)topk * 4),
            *tokens = guarded((size_t)n * 4);
    for (int i = 0; i < VOCAB; i++)
        for (int k = 0; k < topk; k++) table[i * topk + k] = (i * 7 + k) % experts;
    for (int i = 0; i < n; i++) tokens[i] = (i * 13) % VOCAB;
    logits[0] = 90, logits[n * experts - 1] = -60; /* both tails of softplus */
    for (int fixed = 0; fixed < 2; fixed++) {
        struct op_route o = {.ids = ids,
                             .weights = weights,
                             .logits = logits,
                             .bias = fixed ? NULL : bias,
                             .n = n,
                             .n_experts = experts,
                             .topk = topk,
                             .vocab = VOCAB};
        o.table = fixed ? table : NULL, o.tokens = tokens, o.score = SCORE_SQRT_SOFTPLUS, o.norm = true, o.scale = 1.5f;
        must(execs[fixed]->ops->route(execs[fixed], &o));
        for (int i = 0; i < n; i++) {
            double sum = 0, least = INFINITY, score[64];
            for (int e = 0; e < experts; e++) score[e] = sqrt(log1p(exp((double)logits[i * experts + e])));
            for (int k = 0; k < topk; k++) {
                const int id = ids[i * topk + k];
                if (fixed && id != table[tokens[i] * topk + k])
                    mismatch("expert by table", i, k, id, table[tokens[i] * topk + k], 0);
                sum += score[id], least = fmin(least, score[id] + (double)bias[id]);
            }
            for (int k = 0; k < topk; k++)
                near("weight", i, k, weights[i * topk + k], score[ids[i * topk + k]] / sum * 1.5, 3e-6);
            for (int e = 0; e < experts && !fixed; e++) {
                bool chosen = false;
                for (int k = 0; k < topk; k++) chosen |= ids[i * topk + k] == e;
                if (!chosen && score[e] + (double)bias[e] > least + 1e-5)
                    wrong("row %d leaves out expert %d with score %.9g, and has one with %.9g", i, e,
                          score[e] + (double)bias[e], least);
            }
        }
    }
    drop();
}

/* Keys `step` positions apart against the same keys side by side, with queries placed so that they see equally many. */
static void check_steps(int n, int pos, int step, int topk) {
    enum { HEADS = 3, DIM = 24 };
    begin_case("select and attention, %d rows from %d, keys %d apart, %d chosen", n, pos, step, topk);
    const int keys = (pos + n) / step, ld = HEADS * DIM;
    float *q = vec((size_t)(n * ld)), *weight = vec((size_t)(n * HEADS)), *data = vec((size_t)((keys + 1) * DIM)),
          *a = vec((size_t)(n * ld)), *b = vec((size_t)(n * ld));
    int32_t *at = guarded((size_t)n * 4), *chosen = guarded((size_t)(n * topk) * 4), *alone = guarded((size_t)topk * 4);
    const struct kv_plane k = {.data = data, .heads = 1, .dim = DIM, .dtype = DT_F32};
    for (int i = 0; i < n; i++) at[i] = (pos + i + 1) / step - 1;
    struct op_select s = {.chosen = chosen,
                          .q = q,
                          .weight = weight,
                          .k = k,
                          .n = n,
                          .heads = HEADS,
                          .topk = topk,
                          .ldq = ld,
                          .q_pos0 = pos,
                          .n_keys = keys,
                          .scale = 1};
    s.k_pos0 = step - 1, s.k_step = step;
    must(execs[1]->ops->select(execs[1], &s));
    for (int i = 0; i < n; i++) {
        struct op_select one = {.chosen = alone,
                                .q = q + i * ld,
                                .weight = weight + i * HEADS,
                                .k = k,
                                .n = 1,
                                .heads = HEADS,
                                .topk = topk,
                                .ldq = ld,
                                .q_pos0 = at[i]};
        one.n_keys = keys, one.scale = 1;
        must(execs[0]->ops->select(execs[0], &one));
        if (!equal(alone, chosen + i * topk, (size_t)topk))
            wrong("row %d selects other keys than with adjacent ones: %d, should be %d", i, chosen[i * topk], alone[0]);
    }
    for (int pick = 0; pick < 2; pick++) {
        struct op_attention o = {.out = a,
                                 .q = q,
                                 .k = k,
                                 .v = k,
                                 .n = n,
                                 .n_heads = HEADS,
                                 .v_dim = DIM,
                                 .ldq = ld,
                                 .ldo = ld,
                                 .q_pos0 = pos,
                                 .n_keys = keys,
                                 .scale = 0.2f};
        o.k_pos0 = step - 1, o.k_step = step, o.chosen = pick ? chosen : NULL, o.n_chosen = pick ? topk : 0;
        must(execs[2]->ops->attention(execs[2], &o));
        o.out = b, o.k_pos0 = o.k_step = 0, o.q_pos = at;
        must(execs[0]->ops->attention(execs[0], &o));
        if (!equal(a, b, (size_t)(n * ld)))
            wrong("attention%s has other bits than over adjacent keys", pick ? " over chosen keys" : "");
    }
    drop();
}

static void check_small(int n, int half) {
    enum { STEP = 7, FIRST = 21 };
    begin_case("rope table and norm, %d rows, %d frequencies", n, half);
    float *cos1 = vec((size_t)(n * half)), *sin1 = vec((size_t)(n * half)), *cos2 = vec((size_t)(n * half)),
          *sin2 = vec((size_t)(n * half)), *freq = vec((size_t)half);
    int32_t *pos = guarded((size_t)n * 4);
    for (int i = 0; i < n; i++) pos[i] = FIRST + i * STEP;
    struct op_rope_table o = {
        .cos = cos1, .sin = sin1, .pos = pos, .inv_freq = freq, .n = n, .half = half, .mscale = 1};
    must(execs[0]->ops->rope_table(execs[0], &o));
    o.cos = cos2, o.sin = sin2, o.pos = NULL, o.pos0 = FIRST, o.step = STEP;
    must(execs[1]->ops->rope_table(execs[1], &o));
    if (!equal(cos1, cos2, (size_t)(n * half)) || !equal(sin1, sin2, (size_t)(n * half)))
        wrong("positions by a step give other angles than a list");
    const int dim = 2 * half + 600;
    float *x = vec((size_t)(n * dim)), *y = vec((size_t)(n * dim));
    must(execs[1]->ops->norm(
        execs[1], &(struct op_norm){.out = y, .x = x, .rows = n, .dim = dim, .ldx = dim, .ldo = dim, .eps = 1e-6f}));
    for (int i = 0; i < n; i++) {
        double square = 0;
        for (int d = 0; d < dim; d++) square += (double)x[i * dim + d] * (double)x[i * dim + d];
        for (int d = 0; d < dim; d++)
            near("norm without weights", i, d, y[i * dim + d], (double)x[i * dim + d] / sqrt(square / dim + 1e-6),
                 1e-5);
    }
    drop();
}

/* Means of windows, without gates. */
static void check_means(int n, int ratio, int dim) {
    begin_case("compress to means, %d rows, %d to an entry, %d columns", n, ratio, dim);
    const int made = n / ratio;
    float *x = vec((size_t)(n * dim)), *sums = vec((size_t)(3 * dim)), *out = vec((size_t)(made * dim + 1));
    struct op_compress o = {
        .out = out, .kv = x, .before = sums, .after = sums, .n = n, .ratio = ratio, .dim = dim, .ldx = dim};
    must(execs[0]->ops->compress(execs[0], &o));
    for (int w = 0; w < made; w++)
        for (int d = 0; d < dim; d++) {
            double sum = 0;
            for (int i = w * ratio; i < (w + 1) * ratio; i++) sum += (double)x[i * dim + d];
            near("mean", w, d, out[w * dim + d], sum / ratio, 1e-5);
        }
    drop();
}

/* Hashes of a text with its end inside, at once and in two calls whose second begins with the first's state. numbers:
 * of numbers that stand for tokens, where only the beginning of the text is an end. */
static void check_ngram(int n, int size, int per, bool numbers) {
    enum { END = 3, TOKENS = 110 };
    begin_case("ngram, %d rows, up to %d tokens, %d hashes each%s", n, size, per, numbers ? ", numbers" : "");
    const int hashes = (size - 1) * per;
    struct op_ngram o = {.n = n, .size = size, .per = per, .end = END, .passes_end = numbers};
    for (int i = 0; i < size; i++) o.multiplier[i] = 0x5DEECE66DABCDu * (uint64_t)(2 * i + 1);
    for (int i = 0; i < hashes; i++) o.vocab[i] = 1009 + 2 * (uint32_t)i, o.offset[i] = 5000 * (uint32_t)i;
    int32_t *tokens = guarded((size_t)n * 4), *rows = guarded((size_t)(n * hashes) * 4),
            *kept = guarded((size_t)(size - 1) * 4);
    int32_t *ids = guarded((size_t)TOKENS * 4);
    for (int i = 0; i < TOKENS; i++) ids[i] = numbers ? i * 7 / 9 + 20 * (i % 2) : i;
    ids[END] = END;
    for (int i = 0; i < n; i++) tokens[i] = i % 7 == 4 ? END : (int32_t)(i * 37 % 101 + 4);
    if (numbers) o.ids = ids, o.n_ids = TOKENS;
    for (int cut = 0; cut < n; cut += n / 2 + 1) {
        memset(rows, 0xff, (size_t)(n * hashes) * 4);
        for (int at = 0; at < n; at = at < cut ? cut : n) {
            o.rows = rows + at * hashes, o.tokens = tokens + at, o.before = at ? kept : NULL, o.after = kept,
            o.n = at < cut ? cut : n - at;
            must(execs[0]->ops->ngram(execs[0], &o));
        }
        for (int i = 0; i < n; i++)
            for (int k = 0; k < hashes; k++) {
                uint64_t mixed = 0;
                for (int back = 0, ended = 0; back < k / per + 2; back++) {
                    ended |= i < back || (!numbers && back && tokens[i - back] == END);
                    mixed ^= (uint64_t)(ended ? END : ids[tokens[i - back]]) * o.multiplier[back];
                }
                const int want = (int)(mixed % o.vocab[k] + o.offset[k]);
                if (rows[i * hashes + k] != want) mismatch("hash", i, k, rows[i * hashes + k], want, 0);
            }
    }
    drop();
}

static void check_relate(int n, int heads, int dim) {
    begin_case("relate, %d rows, %d heads of %d", n, heads, dim);
    const size_t size = (size_t)(n * heads * dim);
    float *x = vec(size), *y = vec(size), *out = vec((size_t)(n * heads));
    if (n > 1) memset(x, 0, (size_t)dim * 4); /* no relation at all */
    must(execs[0]->ops->relate(
        execs[0], &(struct op_relate){.out = out, .x = x, .y = y, .n = n, .heads = heads, .dim = dim, .scale = 0.5f}));
    for (int i = 0; i < n * heads; i++) {
        double g = 0;
        for (int d = 0; d < dim; d++) g += 0.5 * (double)x[i * dim + d] * (double)y[i * dim + d];
        near("relation", i / heads, i % heads, out[i],
             sigmoid((g > 0   ? 1
                      : g < 0 ? -1
                              : 0) *
                     sqrt(fmax(fabs(g), 1e-6))),
             1e-5);
    }
    /* a sum of rows that are further apart */
    float *sum = vec((size_t)(n * dim)), *was = aligned((size_t)(n * dim) * 4);
    memcpy(was, sum, (size_t)(n * dim) * 4);
    must(execs[0]->ops->add(execs[0], &(struct op_add){.y = sum, .x = x, .n = n, .m = dim, .ldx = heads * dim}));
    for (int i = 0; i < n * dim; i++)
        near("sum", i / dim, i % dim, sum[i], (double)was[i] + (double)x[i / dim * heads * dim + i % dim], 1e-6);
    free(was);
    drop();
}

/* A stream receives x before it is read, or is x; sources may leave out some streams. */
static void check_pool(int n, int hidden, int streams, int sources, int into, int skip, int queries, bool begins,
                       bool sums_raw) {
    begin_case("pool, %d rows, %d columns, %d of %d streams, %d queries%s", n, hidden, sources, streams, queries,
               begins ? ", begins" : "");
    const size_t row = (size_t)(n * hidden), all = row * (size_t)streams;
    float *from = vec(all), *x = vec(row), *out = aligned(POOL_QUERIES_MOST * row * 4),
          *query = vec((size_t)(POOL_QUERIES_MOST * hidden));
    float *was = aligned(all * 4), *x_was = aligned(row * 4);
    memcpy(was, from, all * 4), memcpy(x_was, x, row * 4);
    struct op_pool o = {.streams = from,
                        .x = x,
                        .n = n,
                        .hidden = hidden,
                        .n_streams = streams,
                        .n_sources = sources,
                        .n_queries = queries,
                        .begins = begins,
                        .sums_raw = sums_raw,
                        .into = into,
                        .skip_at = sources / 2,
                        .skip = skip,
                        .eps = 1e-2f};
    for (int q = 0; q < queries; q++) o.out[q] = out + (size_t)q * row, o.query[q] = query + q * hidden;
    must(execs[0]->ops->pool(execs[0], &o));
    for (int i = 0; i < n; i++) {
        double norm[POOL_SOURCES_MOST], p[POOL_SOURCES_MOST];
        float *own = was + (size_t)(i * streams) * (size_t)hidden, *last = own + into * hidden;
        for (int d = 0; d < hidden; d++) last[d] = x_was[i * hidden + d] + (begins ? 0 : last[d]);
        for (int s = 0; s < sources; s++) {
            norm[s] = 0;
            for (int d = 0; d < hidden; d++)
                norm[s] +=
                    (double)own[op_pool_stream(&o, s) * hidden + d] * own[op_pool_stream(&o, s) * hidden + d] / hidden;
            norm[s] = 1 / sqrt(norm[s] + 1e-2);
        }
        for (int q = 0; q < queries; q++) {
            double sum = 0;
            for (int s = 0; s < sources; s++) {
                p[s] = 0;
                for (int d = 0; d < hidden; d++)
                    p[s] += (double)own[op_pool_stream(&o, s) * hidden + d] * (double)query[q * hidden + d];
                sum += p[s] = exp(p[s] * norm[s] / sqrt(hidden));
            }
            for (int d = 0; d < hidden; d++) {
                double want = 0;
                for (int s = 0; s < sources; s++)
                    want += p[s] / sum * (sums_raw ? 1 : norm[s]) * (double)own[op_pool_stream(&o, s) * hidden + d];
                near("output", i, d, out[(size_t)q * row + (size_t)(i * hidden + d)], want, 1e-5);
            }
        }
    }
    for (size_t i = 0; i < all; i++)
        near("stream", (int)i / (hidden * streams), (int)i % (hidden * streams), from[i], was[i], 0);
    for (size_t i = 0; i < row; i++) near("cleared input", (int)i / hidden, (int)i % hidden, x[i], 0, 0);
    free(out), free(was), free(x_was);
    drop();
}

/* Of all codes of a format times a scale, the nearest; a tie goes to an even code. Some numbers are at ties, some
 * blocks are tiny. */
static void check_round(int n, int m, int ld, int block, enum round_kind kind) {
    begin_case("round to %s, %d rows, %d of %d columns, blocks of %d",
               kind == ROUND_E4M3   ? "e4m3"
               : kind == ROUND_E2M1 ? "e2m1"
                                    : "e2m1 with e4m3 scales",
               n, m, ld, block);
    const double least = kind == ROUND_E4M3   ? 1e-4
                         : kind == ROUND_E2M1 ? 6 * 0x1p-126
                                              : 6 * 0x1p-9,
                 largest = kind == ROUND_E4M3 ? 448 : 6;
    float *x = vec((size_t)(n * ld)), *was = aligned((size_t)(n * ld) * 4);
    for (int i = 0; i < n * ld; i++)
        x[i] = i % 7 == 3           ? 6
               : i % 7 == 5         ? copysignf((float)(i % 49) / 8, x[i])
               : i / block % 5 == 4 ? x[i] * 1e-7f
                                    : x[i] * 6;
    memcpy(was, x, (size_t)(n * ld) * 4);
    must(execs[0]->ops->round(
        execs[0], &(struct op_round){.x = x, .n = n, .m = m, .ld = ld, .block = block, .kind = (uint8_t)kind}));
    for (int i = 0; i < n; i++)
        for (int d = 0; d < ld; d++) {
            const int first = i * ld + d / block * block, at = i * ld + d;
            double most = least, want = 0, nearest = INFINITY;
            for (int k = 0; k < block && d < m; k++) most = fmax(most, fabs((double)was[first + k]));
            double scale = exp2(ceil(log2(most / largest)));
            if (kind == ROUND_E2M1_E4M3) scale = (double)e4m3_to_f32(f32_to_e4m3((float)most / 6));
            for (int c = 0; c < (kind == ROUND_E4M3 ? 0x7f : 8); c++) {
                const double v = (double)(kind == ROUND_E4M3 ? e4m3_to_f32((uint8_t)c) : e2m1_to_f32((uint8_t)c)),
                             off = fabs(v - fabs((double)(float)((double)was[at] / scale)));
                if (off < nearest || (off == nearest && c % 2 == 0)) nearest = off, want = v * scale;
            }
            want = d < m ? copysign(want, (double)was[at]) : (double)was[at];
            if (fabs((double)x[at] - want) > 1e-7 * fabs(want))
                mismatch("number", i, d, x[at], want, 1e-7 * fabs(want));
        }
    free(was);
    drop();
}

static void cases(enum cpu_level l) {
    for (int i = 0; i < 24; i++) {
        const int n = (int[]){1, 2, 3, 21, 40}[i % 5];
        check_compress(n, (int[]){4, 1, 3, 16}[i % 4], (int[]){8, 64, 65, 200}[i / 2 % 4], i % 2, i / 4 % 2);
        check_mix(n, (int[]){7, 256, 300}[i % 3], (int[]){4, 1, 3, STREAMS_MOST}[i / 3 % 4],
                  (int[]){1, 2, 20, 0}[i % 4], i % 5 == 4, i % 3 == 1);
        check_means(n, (int[]){4, 1, 3, 16}[i % 4], (int[]){8, 65}[i % 2]);
        for (int own = 0; own < 2; own++)
            check_blocks(n, (int[]){0, 5, 70, 300}[i % 4], (int[]){4, 3, 16}[i % 3], (int[]){2, 6}[i / 2 % 2], own);
        check_select_blocks(n, (int[]){1, 2, 40}[i % 3], (int[]){24, 32}[i % 2], (int[]){0, 70, 300, 1100}[i % 4],
                            (int[]){4, 48, 3, 16}[i % 4], (int[]){2, 6}[i / 2 % 2], i % 3,
                            (uint8_t)(int[]){DT_F32, DT_BF16, DT_E4M3}[i % 3]);
        check_ngram(n, (int[]){2, 3, 4}[i % 3], (int[]){1, 2, 8}[i / 3 % 3], i / 2 % 2);
        check_select_among(n, (int[]){0, 5, 130, 700}[i % 4], (int[]){1, 2, 3}[i % 3], (int[]){2, 8, 3}[i / 2 % 3],
                           (int[]){4, 9}[i % 2], (int[]){5, 8}[i / 3 % 2]);
        check_relate(n, (int[]){1, 4}[i % 2], (int[]){3, 64, 200}[i % 3]);
        check_pool(n, (int[]){7, 64, 300}[i % 3], 9, (int[]){1, 2, 9, 5}[i % 4], i % 9, (int[]){8, 1, 0, 3}[i % 4],
                   (int[]){1, 3, 0, 2}[i / 4 % 4], i / 2 % 2, i % 3 == 1);
        check_route(n, (int[]){3, 8, 40}[i % 3], (int[]){1, 2, 3}[i / 3 % 3]);
        check_steps(n, (int[]){0, 5, 130, 1000}[i % 4], (int[]){4, 3, 16}[i % 3], (int[]){2, 9}[i % 2]);
        check_small(n, (int[]){1, 8, 33}[i % 3]);
        check_round(n, (int[]){64, 32, 96}[i % 3], (int[]){64, 40, 100}[i % 3], (int[]){16, 32}[i / 3 % 2],
                    (enum round_kind)(i / 2 % 3));
    }
}

int main(int argc, char **argv) { return each_level(argc > 1 ? strtoull(argv[1], NULL, 10) : 1, cases); }
