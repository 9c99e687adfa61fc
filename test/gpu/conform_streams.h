#pragma once
/* Cases of models with several residual streams and compressed keys. */
#include "test/gpu/conform_oracle.h"

BASE(compress, OP_COMPRESS)
BASE(spread, OP_SPREAD)
BASE(mix, OP_MIX)
BASE(ngram, OP_NGRAM)
BASE(relate, OP_RELATE)
BASE(pool, OP_POOL)
BASE(round, OP_ROUND)

static void residual_streams(void) {
    for (int s = 1; s <= STREAMS_MOST; s = s * 4 - (s == 4)) /* 1, 4, 15 */
        for (int how = 0; how < 3; how++) {                  /* Sinkhorn, the last time, independent */
            const int last = how == 1, iters = how == 2 ? 0 : 20, n = 5, hidden = 300,
                      weights = last ? s : op_mix_weights(s, iters);
            char name[80];
            snprintf(name, sizeof name, "spread to %d streams%s", s, last ? ", the first time" : "");
            CHECK(name, spread, OP_SPREAD, .streams = floats((size_t)(n * s * hidden), 'f'),
                  .x = floats((size_t)(n * hidden), 'c'), .post = last ? NULL : floats((size_t)(n * s), 'c'), .n = n,
                  .hidden = hidden, .n_streams = s);
            snprintf(name, sizeof name, "mix of %d streams%s", s,
                     last    ? ", the last time"
                     : iters ? ""
                             : ", independent");
            CHECK(name, mix, OP_MIX, .in = floats((size_t)(n * hidden), 'f'),
                  .out = last ? NULL : floats((size_t)(n * hidden), 'f'),
                  .streams = floats((size_t)(n * s * hidden), last ? 'c' : 'f'),
                  .post = last ? NULL : floats((size_t)(n * s), 'f'), .mix = floats((size_t)(n * weights), 'c'),
                  .base = floats((size_t)weights, 'c'), .scale = floats(3, 'c'), .n = n, .hidden = hidden,
                  .n_streams = s, .iters = iters, .eps = 1e-6f, .norm_eps = 1e-6f, .magnitude = iters ? 0 : 1.5f,
                  .post_eps = iters ? 0 : 0.25f);
        }
}

/* Hashed n-grams and the gates of their embeddings; means of windows; a sum of rows that are further apart. */
static void ngrams(void) {
    enum { END = 3, SIZE = 3, PER = 2, HASHES = (SIZE - 1) * PER };
    for (int i = 0; i < 6; i++) {
        const int n = i % 3 * 20 + 1;
        int32_t *tokens = buf_new((size_t)n * 4, 'c'), *after = buf_new((SIZE - 1) * 4, 'i'),
                *before = i < 3    ? NULL
                          : i == 3 ? after
                                   : buf_new((SIZE - 1) * 4, 'c');
        for (int k = 0; k < n; k++) tokens[k] = k % 7 == 4 ? END : k + 4;
        for (int k = 0; before && k < SIZE - 1; k++) before[k] = k ? 9 : END;
        CHECK("ngram", ngram, OP_NGRAM, .rows = buf_new((size_t)(n * HASHES) * 4, 'i'), .tokens = tokens,
              .before = before, .after = after, .n = n, .size = SIZE, .per = PER, .end = END,
              .multiplier = {0x5DEECE66Du, 0x3779B97F4A7C15u, 77777}, .vocab = {1009, 1013, 1019, 1021},
              .offset = {0, 1009, 2022, 3041});
    }
    CHECK("relate", relate, OP_RELATE, .out = floats(7 * 4, 'f'), .x = floats(7 * 4 * 300, 'c'),
          .y = floats(7 * 4 * 300, 'c'), .n = 7, .heads = 4, .dim = 300, .scale = 0.1f);
    for (int sources = 1; sources <= 9; sources += 4)
        for (int queries = 0; queries <= POOL_QUERIES_MOST; queries++) {
            float *out = floats(3 * 7 * 300, 'f'), *query = floats(3 * 300, 'c');
            CHECK("pool", pool, OP_POOL, .out = {out, out + 7 * 300, out + 2 * 7 * 300},
                  .query = {query, query + 300, query + 600}, .streams = floats(7 * 9 * 300, 'f'),
                  .x = floats(7 * 300, 'f'), .n = 7, .hidden = 300, .n_streams = 9, .n_sources = sources,
                  .into = queries == 2 ? 8 : sources - 1, .skip_at = sources / 2, .skip = sources < 9 ? queries : 0,
                  .n_queries = queries, .begins = queries % 2, .sums_raw = queries == 1, .eps = 1e-6f);
        }
    float *state = floats(3 * 40, 'f');
    CHECK("compress to means", compress, OP_COMPRESS, .out = floats(5 * 40, 'f'), .kv = floats(21 * 40, 'c'),
          .before = state, .after = state, .n = 21, .ratio = 4, .dim = 40, .ldx = 40);
    CHECK("add of rows apart", add, OP_ADD, .y = floats(7 * 30, 'f'), .x = floats(7 * 90, 'c'), .n = 7, .m = 30,
          .ldx = 90);
    for (int n = 1; n < 60; n += 29) {
        int32_t *list = buf_new((size_t)(n * 5) * 4, 'c');
        for (int k = 0; k < n * 5; k++) {
            const int complete = (100 + k / 5 + 1) / 4;
            list[k] = complete - 9 + 2 * (k % 5);
        }
        CHECK("attention over blocks", attention, OP_ATTENTION, .out = floats((size_t)(n * 4 * 32), 'f'),
              .q = floats((size_t)(n * 4 * 32), 'c'), .k = plane_new(100 + n, 2, 32, DT_BF16, 'c'),
              .v = plane_new(100 + n, 2, 32, DT_BF16, 'c'), .chosen = list, .n_chosen = 5, .chosen_block = 4,
              .lse = floats((size_t)(n * 4), 'f'), .n = n, .n_heads = 4, .v_dim = 32, .ldq = 4 * 32, .ldo = 4 * 32,
              .q_pos0 = 100, .n_keys = 100 + n, .scale = 0.1f);
        int32_t *lists = buf_new((size_t)(n * 2 * 5) * 4, 'c');
        for (int k = 0; k < n * 2 * 5; k++) lists[k] = (100 + k / 10) / 4 - 9 + k / 5 % 2 + k % 5;
        CHECK("attention over blocks of groups", attention, OP_ATTENTION, .out = floats((size_t)(n * 4 * 32), 'f'),
              .q = floats((size_t)(n * 4 * 32), 'c'), .k = plane_new(100 + n, 2, 32, DT_BF16, 'c'),
              .v = plane_new(100 + n, 2, 32, DT_BF16, 'c'), .chosen = lists, .n_chosen = 5, .chosen_block = 4,
              .own_block = true, .chosen_lists = 2, .lse = floats((size_t)(n * 4), 'f'), .n = n, .n_heads = 4,
              .v_dim = 32, .ldq = 4 * 32, .ldo = 4 * 32, .q_pos0 = 100, .n_keys = 100 + n, .scale = 0.1f);
        for (int block = 16; block < 64; block += 24)
            CHECK("select of blocks", select, OP_SELECT, .chosen = buf_new((size_t)(n * 18 * 3) * 4, 'i'),
                  .q = floats((size_t)(n * 18 * 24), 'c'), .k = plane_new(500 + n, 1, 24, DT_BF16, 'c'), .block = block,
                  .latest = 1, .n = n, .heads = 18, .topk = 3, .ldq = 18 * 24, .q_pos0 = 500, .n_keys = 500 + n,
                  .scale = 1);
    }
}

/* Windows that are open before, completed, and open after; states separate and in place. */
static void windows(void) {
    static const struct {
        int pos0, n, ratio, dim;
    } c[] = {{0, 1, 4, 40}, {0, 9, 4, 100},  {6, 1, 4, 64},     {7, 1, 4, 64}, {5, 14, 4, 130},
             {8, 8, 4, 33}, {3, 70, 16, 64}, {130, 1, 128, 20}, {11, 5, 1, 12}};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        for (int how = 0; how < 4; how++) {
            int series = how & 1 ? 2 : 1, width = series * c[i].dim,
                made = (c[i].pos0 + c[i].n) / c[i].ratio - c[i].pos0 / c[i].ratio;
            float *after = floats((size_t)(3 * width), 'f'),
                  *before = how & 2 ? after : floats((size_t)(3 * width), 'c');
            for (int d = 0; d < width; d++) { /* sums of weights are positive */
                size_t at = (size_t)(d / c[i].dim * 3 * c[i].dim + c[i].dim + d % c[i].dim);
                before[at] = 1 + fabsf(before[at]);
            }
            float *in = floats((size_t)(2 * c[i].n * width), 'c');
            char name[80];
            snprintf(name, sizeof name, "compress %d tokens at %d by %d, %d wide, %d", c[i].n, c[i].pos0, c[i].ratio,
                     c[i].dim, how);
            CHECK(name, compress, OP_COMPRESS, .out = made ? floats((size_t)(made * c[i].dim), 'f') : NULL, .kv = in,
                  .gate = in + width, .bias = floats((size_t)(c[i].ratio * width), 'c'), .before = before,
                  .after = after, .n = c[i].n, .pos0 = c[i].pos0, .ratio = c[i].ratio, .dim = c[i].dim,
                  .ldx = 2 * width, .overlap = series == 2);
        }
}

/* Keys k_step positions apart: all of them, a selection, and the selection itself. */
static void stepped(void) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_E4M3};
    enum { STEP = 4, KEYS = 60, HEADS = 6, DIM = 40, TOPK = 16 };
    for (int i = 0; i < 9; i++) {
        int n = i / 3 == 0 ? 1 : i / 3 == 1 ? 7 : 40, q0 = i / 3 == 2 ? 0 : 236 - n, seen;
        enum dtype type = types[i % 3];
        char name[80];
        struct kv_plane k = plane_new(KEYS, 1, DIM, type, 'c');
        for (int chosen = 0; chosen < 2; chosen++) {
            int32_t *list = chosen ? buf_new((size_t)(n * TOPK) * 4, 'c') : NULL;
            for (int j = 0; chosen && j < n * TOPK; j++)
                seen = op_seen_step(q0 + j / TOPK, STEP - 1, STEP, KEYS), list[j] = j % TOPK >= seen ? -1
                                                                                    : seen <= TOPK
                                                                                        ? j % TOPK
                                                                                        : seen - TOPK + j % TOPK;
            snprintf(name, sizeof name, "attention %s, %d queries, keys %d apart%s", dtype_name(type), n, STEP,
                     chosen ? ", chosen" : "");
            CHECK(name, attention, OP_ATTENTION, .out = floats((size_t)(n * HEADS * DIM), 'f'),
                  .q = floats((size_t)(n * HEADS * DIM), 'c'), .k = k, .v = k, .lse = floats((size_t)(n * HEADS), 'f'),
                  .chosen = list, .n_chosen = chosen ? TOPK : 0, .n = n, .n_heads = HEADS, .v_dim = DIM,
                  .ldq = HEADS * DIM, .ldo = HEADS * DIM, .q_pos0 = q0, .k_pos0 = STEP - 1, .k_step = STEP,
                  .n_keys = KEYS, .scale = 0.1f);
            k = plane_new(KEYS, 1, DIM, type, 'c');
        }
        for (int j = 0; j < KEYS * DIM; j++) { /* small integers, as in the indexer's other cases */
            float v = (float)((int)(rnd() % 5) - 2);
            if (type == DT_F32) ((float *)k.data)[j] = v;
            if (type == DT_BF16) ((uint16_t *)k.data)[j] = f32_to_bf16(v);
            if (type == DT_E4M3) ((uint8_t *)k.data)[j] = f32_to_e4m3(v), k.scale[j / DIM] = 0.5f;
        }
        float *q = floats((size_t)(n * HEADS * DIM), 'c'), *weight = floats((size_t)(n * HEADS), 'c');
        for (int j = 0; j < n * HEADS * DIM; j++) q[j] = (float)(int)q[j];
        for (int j = 0; j < n * HEADS; j++) weight[j] = (float)(int)weight[j];
        snprintf(name, sizeof name, "select %s, %d queries, keys %d apart", dtype_name(type), n, STEP);
        CHECK(name, select, OP_SELECT, .chosen = buf_new((size_t)(n * TOPK) * 4, 'i'), .q = q, .weight = weight, .k = k,
              .n = n, .heads = HEADS, .topk = TOPK, .ldq = HEADS * DIM, .q_pos0 = q0, .k_pos0 = STEP - 1,
              .k_step = STEP, .n_keys = KEYS, .scale = 0.25f);
    }
}

static void compressed(void) {
    residual_streams();
    ngrams();
    windows();
    stepped();
    CHECK("norm to a length", norm, OP_NORM, .out = floats(5 * 70, 'f'), .x = floats(5 * 70, 'c'), .rows = 5, .dim = 70,
          .ldx = 70, .ldo = 70, .l2_limit = 4.5f, .w_dtype = DT_F32);
    CHECK("norm without weights", norm, OP_NORM, .out = floats(5 * 70, 'f'), .x = floats(5 * 70, 'c'), .rows = 5,
          .dim = 70, .ldx = 70, .ldo = 70, .eps = 1e-6f, .w_dtype = DT_F32);
    float *freq = floats(8, 'c');
    for (int i = 0; i < 8; i++) freq[i] = powf(10000, -(float)i / 8);
    CHECK("rope table of every fourth position", rope_table, OP_ROPE_TABLE, .cos = floats(48, 'f'),
          .sin = floats(48, 'f'), .inv_freq = freq, .n = 6, .half = 8, .pos0 = 900, .step = 4, .mscale = 1);
    for (int hashed = 0; hashed < 2; hashed++) {
        int32_t *table = buf_new(30 * 3 * 4, 'c'), *tokens = buf_new(20 * 4, 'c');
        for (int i = 0; i < 90; i++) table[i] = (i * 5 + i / 3) % 16;
        for (int i = 0; i < 20; i++) tokens[i] = (int32_t)(rnd() % 30);
        CHECK(hashed ? "route by token" : "route, square root of softplus", route, OP_ROUTE,
              .ids = buf_new(20 * 3 * 4, 'i'), .weights = floats(60, 'f'), .logits = floats(20 * 16, 'c'),
              .bias = hashed ? NULL : floats(16, 'c'), .table = hashed ? table : NULL, .tokens = tokens, .n = 20,
              .n_experts = 16, .topk = 3, .vocab = 30, .n_group = 1, .topk_group = 1, .score = SCORE_SQRT_SOFTPLUS,
              .norm = true, .scale = 1.5f);
    }
}

/* --- DeepSeek-V4.1: weights of the block before, n-grams of numbers, selections in two steps --- */

/* A plane of small integers, as in the indexer's other cases. */
static struct kv_plane small_integers(int rows, int dim, enum dtype type) {
    struct kv_plane k = plane_new(rows, 1, dim, type, 'c');
    for (int j = 0; j < rows * dim; j++) {
        const float v = (float)((int)(rnd() % 5) - 2);
        if (type == DT_F32) ((float *)k.data)[j] = v;
        if (type == DT_BF16) ((uint16_t *)k.data)[j] = f32_to_bf16(v);
        if (type == DT_E4M3) ((uint8_t *)k.data)[j] = f32_to_e4m3(v), k.scale[j / dim] = 0.5f;
    }
    return k;
}

/* The best blocks of keys STEP positions apart by weighted scores; then keys of listed blocks. */
static void select_in_steps(void) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_E4M3};
    enum { STEP = 2, KEYS = 90, HEADS = 6, DIM = 40, TOPK = 16, BLOCK = 3, BLOCKS = 6 };
    for (int i = 0; i < 9; i++)
        for (int limited = 0; limited < 2; limited++) {
            const int n = i / 3 == 0 ? 1 : i / 3 == 1 ? 7 : 40, q0 = i / 3 == 2 ? 0 : 2 * KEYS - n;
            struct kv_plane k = small_integers(KEYS, DIM, types[i % 3]);
            float *q = floats((size_t)(n * HEADS * DIM), 'c'), *weight = floats((size_t)(n * HEADS), 'c');
            for (int j = 0; j < n * HEADS * DIM; j++) q[j] = (float)(int)q[j];
            for (int j = 0; j < n * HEADS; j++) weight[j] = (float)(int)weight[j];
            int32_t *among = limited ? buf_new((size_t)(n * BLOCKS) * 4, 'c') : NULL;
            for (int j = 0; among && j < n * BLOCKS; j++) {
                const int complete = (op_seen_step(q0 + j / BLOCKS, STEP - 1, STEP, KEYS) - 1) / BLOCK;
                among[j] = complete > BLOCKS ? j % BLOCKS * complete / BLOCKS : j % BLOCKS < complete ? j % BLOCKS : -1;
            }
            char name[80];
            snprintf(name, sizeof name, "select %s %s, %d queries", limited ? "among blocks" : "blocks",
                     dtype_name(types[i % 3]), n);
            CHECK(name, select, OP_SELECT, .chosen = buf_new((size_t)(n * TOPK) * 4, 'i'), .q = q, .weight = weight,
                  .k = k, .n = n, .heads = HEADS, .topk = limited ? TOPK : BLOCKS, .block = limited ? 0 : BLOCK,
                  .among = among, .n_among = limited ? BLOCKS : 0, .among_block = limited ? BLOCK : 0,
                  .ldq = HEADS * DIM, .q_pos0 = q0, .k_pos0 = STEP - 1, .k_step = STEP, .n_keys = KEYS, .scale = 0.25f);
        }
}

static void passed(void) {
    for (int i = 0; i < 6; i++) { /* Sinkhorn, the last time, independent */
        const int s = i < 3 ? 4 : 15, last = i % 3 == 1, iters = i % 3 == 2 ? 0 : 20, n = 5, hidden = 300,
                  weights = op_mix_weights(s, iters);
        CHECK("mix with earlier weights", mix, OP_MIX, .in = floats((size_t)(n * hidden), 'f'),
              .out = last ? NULL : floats((size_t)(n * hidden), 'f'),
              .streams = floats((size_t)(n * s * hidden), last ? 'c' : 'f'),
              .post = last ? NULL : floats((size_t)(n * s), 'f'),
              .mix = last ? NULL : floats((size_t)(n * weights), 'c'), .base = floats((size_t)weights, 'c'),
              .scale = floats(3, 'c'), .n = n, .hidden = hidden, .n_streams = s, .iters = iters, .eps = 1e-6f,
              .norm_eps = 1e-6f, .earlier = floats((size_t)(n * (s + 2)), 'f'), .ld_earlier = s + 2);
    }
    for (int i = 0; i < 6; i++) {
        enum { END = 3, SIZE = 3, PER = 2, HASHES = (SIZE - 1) * PER };
        const int n = i % 3 * 20 + 1;
        int32_t *tokens = buf_new((size_t)n * 4, 'c'), *ids = buf_new((size_t)n * 4, 'c'),
                *after = buf_new((SIZE - 1) * 4, 'i'), *before = i < 3 ? NULL : buf_new((SIZE - 1) * 4, 'c');
        for (int k = 0; k < n; k++) tokens[k] = n - 1 - k, ids[k] = k * 5 % 11;
        for (int k = 0; before && k < SIZE - 1; k++) before[k] = k ? 9 : END;
        CHECK("ngram of numbers", ngram, OP_NGRAM, .rows = buf_new((size_t)(n * HASHES) * 4, 'i'), .tokens = tokens,
              .before = before, .after = after, .ids = ids, .n_ids = n, .passes_end = true, .n = n, .size = SIZE,
              .per = PER, .end = END, .multiplier = {0x5DEECE66Du, 0x3779B97F4A7C15u, 77777},
              .vocab = {1009, 1013, 1019, 1021}, .offset = {0, 1009, 2022, 3041});
    }
    select_in_steps();
    for (int i = 0; i < 6; i++)
        CHECK("round", round, OP_ROUND, .x = floats(7 * 100, 'f'), .n = 7, .m = 96, .ld = 100, .block = i % 2 ? 16 : 32,
              .kind = (uint8_t)(i / 2));
}
