#pragma once
/* Cases of GGUF formats and INT4: products of few and of many tokens, the embedding, transposed heads, feed-forward
 * blocks, and a draft's experts. */
#include "base/mem.h"
#include "base/scale.h"
#include "test/gpu/conform_oracle.h"

static void blocks(void) {
    static const enum dtype types[] = {
        DT_Q8_0,  DT_Q4_0,  DT_Q4_K,  DT_Q5_K, DT_Q6_K,  DT_IQ4_NL, DT_IQ4_XS,  DT_MXFP4,  DT_INT4,   DT_Q4_1,
        DT_Q5_0,  DT_Q5_1,  DT_Q2_K,  DT_Q3_K, DT_IQ1_S, DT_IQ1_M,  DT_IQ2_XXS, DT_IQ2_XS, DT_IQ2_S,  DT_IQ3_XXS,
        DT_IQ3_S, DT_TQ1_0, DT_TQ2_0, DT_Q1_0, DT_Q2_0,  DT_NVFP4,  DT_Q8_A,    DT_IQ4_KS, DT_IQ5_KS, DT_IQ2_KL};
    static const int sizes[][3] = {{1, 40, 512}, {5, 33, 256}, {30, 20, 768}, {70, 70, 256}};
    char name[80];
    for (size_t k = 0; k < sizeof types / sizeof *types; k++) {
        enum dtype t = types[k];
        /* scales that are stored separately */
        const int bc = t == DT_INT4 ? 128 : dtype_row_head(t) ? 768 : 0, br = bc > 0;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int n = sizes[i][0], rows = sizes[i][1], cols = sizes[i][2];
            snprintf(name, sizeof name, "linear %s %d x %d x %d", dtype_name(t), n, rows, cols);
            CHECK(name, linear, OP_LINEAR, .y = floats((size_t)(n * (rows + 1)), 'f'),
                  .x = floats((size_t)(n * (cols + 4)), 'c'), .bias = i & 1 ? floats((size_t)rows, 'c') : NULL,
                  .w = matrix(rows, cols, t, br, bc), .n = n, .ldx = cols + 4, .ldy = rows + 1, .accumulate = i == 1);
        }
        int32_t *ids = buf_new(3 * 4, 'c');
        for (int i = 0; i < 3; i++) ids[i] = (int32_t)(rnd() % 9);
        snprintf(name, sizeof name, "embed %s", dtype_name(t));
        CHECK(name, embed, OP_EMBED, .out = floats(3 * 256, 'f'), .ids = ids, .table = matrix(9, 256, t, br, bc),
              .n = 3);
        snprintf(name, sizeof name, "linear %s, heads, transposed", dtype_name(t));
        CHECK(name, linear, OP_LINEAR, .y = floats(2 * 3 * 256, 'f'), .x = floats(2 * 3 * 16, 'c'),
              .w = mat_rows(matrix(3 * 16, 256, t, br, bc), 0, 16), .n = 2, .ldx = 3 * 16, .ldy = 3 * 256,
              .transposed = true, .batch = 3, .batch_rows = 16, .batch_x = 16, .batch_y = 256);
        for (int n = 2; n < 30; n += 23) {
            snprintf(name, sizeof name, "ffn %s, %d tokens", dtype_name(t), n);
            CHECK(name, ffn, OP_FFN, .y = floats((size_t)(n * 256), 'f'), .x = floats((size_t)(n * 256), 'c'),
                  .expert = {matrix(256, 256, t, br, bc), matrix(256, 256, t, br, bc), matrix(256, 256, t, br, bc)},
                  .n = n, .hidden = 256);
        }
    }
}

/* Few tokens with the formats that cuda_few.cuh decodes: numbers of tokens and steps around the sizes of its tiles and
 * of its ring, rows that begin anywhere, columns that end within a step, and gate and up of one expert. */
static void few_blocks(void) {
    static const enum dtype types[] = {DT_Q8_0, DT_Q4_0, DT_Q4_1, DT_Q5_0,   DT_Q5_1, DT_IQ4_NL, DT_MXFP4,
                                       DT_Q4_K, DT_Q5_K, DT_Q6_K, DT_IQ4_XS, DT_Q2_K, DT_Q3_K};
    static const struct {
        int n, rows, blocks, skip; /* blocks of columns; rows of a larger matrix before these */
    } c[] = {{1, 70, 3, 1}, {1, 17, 45, 0}, {3, 16, 9, 2}, {4, 33, 2, 0}, {5, 20, 11, 3}, {8, 1, 1, 1}, {24, 40, 5, 0}};
    char name[80];
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
            const enum dtype t = types[k];
            const int n = c[i].n, rows = c[i].rows, cols = c[i].blocks * (int)dtype_block(t);
            if (cols > 4000) continue;
            snprintf(name, sizeof name, "few %s %d x %d x %d", dtype_name(t), n, rows, cols);
            CHECK(name, linear, OP_LINEAR, .y = floats((size_t)(n * (rows + 1)), 'f'),
                  .x = floats((size_t)(n * (cols + 1)), 'c') + i % 2, .bias = i & 1 ? floats((size_t)rows, 'c') : NULL,
                  .w = mat_rows(matrix(rows + c[i].skip, cols, t, 0, 0), c[i].skip, rows + c[i].skip), .n = n,
                  .ldx = cols + (i % 2 ? 1 : 0), .ldy = rows + 1, .accumulate = i == 2);
            if (i != 2 && i != 4) continue;
            snprintf(name, sizeof name, "few %s, ffn of %d, %d", dtype_name(t), n, cols);
            CHECK(name, ffn, OP_FFN, .y = floats((size_t)(n * cols), 'f'), .x = floats((size_t)(n * cols), 'c'),
                  .expert = {matrix((int)dtype_block(t), cols, t, 0, 0), matrix((int)dtype_block(t), cols, t, 0, 0),
                             matrix(cols, (int)dtype_block(t), t, 0, 0)},
                  .n = n, .hidden = cols);
        }
}

/* Scales of another dtype in place of m's float32 ones. */
static struct mat rescaled(struct mat m, enum dtype t) {
    float *f = (float *)(uintptr_t)m.scale;
    const int n = (m.rows + m.block_rows - 1) / m.block_rows * m.scale_stride;
    for (int i = 0; i < n; i++) { /* in place: each is at most as long, and read before it is overwritten */
        const float v = f[i];
        const uint16_t h = t == DT_F16 ? f32_to_f16(v) : f32_to_bf16(v);
        uint32_t packed;
        if (t == DT_BF16 || t == DT_F16) memcpy((uint8_t *)f + 2 * i, &h, 2);
        if (t == DT_E4M3) ((uint8_t *)f)[i] = (uint8_t)(rnd() % 60);
        if (t == DT_F32Z)
            scale_with_zero(bf16_to_f32(f32_to_bf16(v)), (int)(rnd() % (m.dtype == DT_I4 ? 16 : 256)), &packed),
                memcpy(f + i, &packed, 4);
    }
    m.scale_dtype = (uint8_t)t, m.scale_gain = 0.3f;
    return m;
}
/* Integers and NVFP4, whose scales are stored separately: few tokens and many, ragged ends, the embedding, and a
 * feed-forward block. */
static void integers(void) {
    static const struct {
        enum dtype t, scale;
        int columns;
    } kinds[] = {{DT_I4, DT_BF16, 32},   {DT_I4, DT_F32Z, 128}, {DT_I4, DT_F16, 4096}, {DT_NF4, DT_F32, 64},
                 {DT_E2M1, DT_E4M3, 16}, {DT_I8, DT_F32, 4096}, {DT_I8, DT_F32Z, 32}};
    static const int sizes[][3] = {{1, 40, 512}, {5, 33, 272}, {30, 20, 96}, {70, 70, 256}};
    char name[80];
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        const enum dtype t = kinds[k].t, scale = kinds[k].scale;
        const int bc = kinds[k].columns;
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
            int n = sizes[i][0], rows = sizes[i][1], cols = sizes[i][2];
            snprintf(name, sizeof name, "linear %s by %s/%d, %d x %d x %d", dtype_name(t), dtype_name(scale), bc, n,
                     rows, cols);
            CHECK(name, linear, OP_LINEAR, .y = floats((size_t)(n * (rows + 1)), 'f'),
                  .x = floats((size_t)(n * (cols + 4)), 'c'), .bias = i & 1 ? floats((size_t)rows, 'c') : NULL,
                  .w = rescaled(matrix(rows, cols, t, 1, bc), scale), .n = n, .ldx = cols + 4, .ldy = rows + 1,
                  .accumulate = i == 1);
        }
        int32_t *ids = buf_new(3 * 4, 'c');
        for (int i = 0; i < 3; i++) ids[i] = (int32_t)(rnd() % 9);
        snprintf(name, sizeof name, "embed %s by %s/%d", dtype_name(t), dtype_name(scale), bc);
        CHECK(name, embed, OP_EMBED, .out = floats(3 * 96, 'f'), .ids = ids,
              .table = rescaled(matrix(9, 96, t, 1, bc), scale), .n = 3);
        for (int n = 2; n < 30; n += 23) {
            snprintf(name, sizeof name, "ffn %s by %s/%d, %d tokens", dtype_name(t), dtype_name(scale), bc, n);
            CHECK(name, ffn, OP_FFN, .y = floats((size_t)(n * 96), 'f'), .x = floats((size_t)(n * 96), 'c'),
                  .expert = {rescaled(matrix(64, 96, t, 1, bc), scale), rescaled(matrix(64, 96, t, 1, bc), scale),
                             rescaled(matrix(96, 64, t, 1, bc), scale)},
                  .n = n, .hidden = 96);
        }
    }
}

/* Columns in another order than their groups. */
static const int32_t *order_new(int cols, int32_t *in) {
    int32_t *order = in ? in : buf_new((size_t)cols * sizeof *order, 'c');
    for (int c = 0; c < cols; c++) {
        const int at = (int)(rnd() % (uint32_t)(c + 1));
        order[c] = order[at], order[at] = c;
    }
    return order;
}
static struct mat ordered(struct mat m, const int32_t *order) {
    m.order = order, m.x_cols = m.cols;
    return m;
}
static struct expert ordered_expert(int hidden, int inter) {
    const int32_t *order = order_new(hidden, NULL);
    return (struct expert){ordered(rescaled(matrix(inter, hidden, DT_I4, 1, 32), DT_F32Z), order),
                           ordered(rescaled(matrix(inter, hidden, DT_I4, 1, 32), DT_F32Z), order),
                           rescaled(matrix(hidden, inter, DT_I4, 1, 32), DT_F32Z)};
}
static void orders(void) {
    for (int n = 1; n < 100; n = n * 4 + 1) {
        CHECK("linear, columns in another order", linear, OP_LINEAR, .y = floats((size_t)(n * 71), 'f'),
              .x = floats((size_t)(n * 260), 'c'), .bias = floats(70, 'c'),
              .w = ordered(rescaled(matrix(70, 256, DT_I4, 1, 128), DT_F32Z), order_new(256, NULL)), .n = n, .ldx = 260,
              .ldy = 71, .accumulate = n > 1);
        CHECK("linear, columns in another order, part of x", linear, OP_LINEAR, .y = floats((size_t)(n * 70), 'f'),
              .x = floats((size_t)(n * 90), 'c'),
              .w = mat_cols(ordered(rescaled(matrix(70, 256, DT_I4, 1, 128), DT_F32Z), order_new(256, NULL)), 33, 120),
              .n = n, .ldx = 90, .ldy = 70);
        CHECK("ffn, columns in another order", ffn, OP_FFN, .y = floats((size_t)(n * 96), 'f'),
              .x = floats((size_t)(n * 96), 'c'), .expert = ordered_expert(96, 64), .n = n, .hidden = 96);
        struct expert e[6], shared = ordered_expert(96, 64);
        for (int i = 0; i < 6; i++) e[i] = ordered_expert(96, 64);
        CHECK("experts, columns in other orders", experts, OP_EXPERTS, .y = floats((size_t)(n * 96), 'f'),
              .x = floats((size_t)(n * 96), 'c'), .ids = choices(n, 2, 6), .weights = floats((size_t)(2 * n), 'c'),
              .experts = e, .shared = &shared, .n = n, .topk = 2, .n_experts = 6, .hidden = 96);
    }
}

/* Experts in the layout of engine/draft: codes of the three matrices, then their scales, each aligned to 64 bytes. */
static void int4_experts(struct expert *out, int count, int hidden, int inter) {
    const int shape[3][2] = {{inter, hidden}, {inter, hidden}, {hidden, inter}};
    size_t at[6], each = 0;
    for (int i = 0; i < 6; i++) {
        size_t groups = (size_t)((shape[i % 3][1] + 127) / 128),
               bytes = (size_t)shape[i % 3][0] * groups * (i < 3 ? 64 : 2);
        at[i] = each;
        each += (bytes + 63) & ~(size_t)63;
    }
    uint8_t *p = buf_new(each * (size_t)count, 'c');
    for (int e = 0; e < count; e++, p += each) {
        struct mat m[3];
        for (int i = 0; i < 3; i++) {
            int rows = shape[i][0], cols = shape[i][1], groups = (cols + 127) / 128;
            for (int k = 0; k < rows * groups * 64; k++) p[at[i] + (size_t)k] = (uint8_t)rnd();
            for (int k = 0; k < rows * groups; k++)
                ((uint16_t *)(p + at[3 + i]))[k] =
                    f32_to_bf16((0.02f + fabsf(rnd_float()) * 0.02f) * (k % 3 == 1 ? -1 : 1));
            m[i] = (struct mat){p + at[i], p + at[3 + i], (size_t)groups * 64, rows, cols, 1, 128, groups, 0, 1,
                                DT_INT4,   DT_BF16};
        }
        out[e] = (struct expert){.gate = m[0], .up = m[1], .down = m[2], .glu = {.limit = 30}};
    }
}
/* Experts in the layout of experts/resident_experts.h, with biases or without; no_up: with squared ReLU. */
static void uniform_experts(struct expert *out, int count, int hidden, int inter, enum dtype t, bool biased,
                            bool no_up) {
    const int br = t == DT_E4M3 ? 128 : t == DT_E2M1 || t == DT_I4, bc = t == DT_E4M3 ? 128 : 32;
    const struct expert like = {.gate = matrix(inter, hidden, t, br, bc),
                                .up = matrix(inter, hidden, t, br, bc),
                                .down = matrix(hidden, inter, t, br, bc)};
    const struct mat *m[3] = {&like.gate, &like.up, &like.down};
    size_t data[3], scale[3], bias[3], each = 0, order;
    for (int i = 0; i < 3; i++) {
        data[i] = each, each += align_up((size_t)m[i]->rows * m[i]->stride, 256);
        scale[i] = each,
        each +=
            m[i]->scale
                ? align_up((size_t)((m[i]->rows + m[i]->block_rows - 1) / m[i]->block_rows * m[i]->scale_stride) * 4,
                           256)
                : 0;
        bias[i] = each, each += align_up((size_t)m[i]->rows * 4, 256);
    }
    order = each, each += align_up((size_t)hidden * 4, 256);
    uint8_t *p = buf_new(each * (size_t)count, 'c');
    for (int e = 0; e < count; e++, p += each) {
        const struct mat own[3] = {matrix(inter, hidden, t, br, bc), matrix(inter, hidden, t, br, bc),
                                   matrix(hidden, inter, t, br, bc)};
        struct mat r[3];
        float *b[3];
        for (int i = 0; i < 3; i++) {
            r[i] = own[i];
            memcpy(p + data[i], own[i].data, (size_t)own[i].rows * own[i].stride), r[i].data = p + data[i];
            if (own[i].scale)
                memcpy(p + scale[i], own[i].scale,
                       (size_t)((own[i].rows + own[i].block_rows - 1) / own[i].block_rows * own[i].scale_stride) * 4),
                    r[i].scale = p + scale[i];
            b[i] = (float *)(void *)(p + bias[i]);
            for (int k = 0; k < own[i].rows; k++) b[i][k] = rnd_float();
        }
        for (int i = 0; i < 2 && t == DT_I4; i++)
            r[i] = ordered(r[i], i ? r[0].order : order_new(hidden, (int32_t *)(void *)(p + order)));
        out[e] =
            (struct expert){.gate = r[0], .up = r[1], .down = r[2], .glu = {.limit = 7, .alpha = 1.7f, .shift = 1}};
        if (biased) out[e].gate_bias = b[0], out[e].up_bias = b[1], out[e].down_bias = b[2];
        if (no_up) out[e].up = (struct mat){0}, out[e].up_bias = NULL, out[e].glu = (struct glu){.is_relu = true};
    }
}
static void resident(void) {
    static const enum dtype types[] = {DT_E4M3, DT_BF16, DT_F32,  DT_E2M1, DT_I4,    DT_Q8_0,
                                       DT_Q4_K, DT_Q6_K, DT_Q5_K, DT_Q5_0, DT_MXFP4, DT_IQ3_S};
    static const struct {
        int n, topk, count, hidden, inter;
        bool biased, no_up;
    } c[] = {{1, 2, 4, 256, 256, false},
             {3, 4, 6, 256, 256, true},
             {17, 2, 3, 256, 256, false},
             {2, 2, 4, 512, 256, true, true},
             {1, 6, 7, 1280, 768, false}};
    experts_resident = true;
    for (size_t k = 0; k < sizeof types / sizeof *types; k++)
        for (size_t i = 0; i < sizeof c / sizeof *c + 1; i++) {
            const bool each = i == sizeof c / sizeof *c; /* the second again, by choice */
            if (each) i = 1;
            struct expert e[8];
            char name[80];
            snprintf(name, sizeof name, "resident experts %s, %d tokens, %d of %d, %d and %d%s", dtype_name(types[k]),
                     c[i].n, c[i].topk, c[i].count, c[i].hidden, c[i].inter,
                     each         ? ", each"
                     : c[i].no_up ? ", no up"
                                  : "");
            uniform_experts(e, c[i].count, c[i].hidden, c[i].inter, types[k], c[i].biased, c[i].no_up);
            int32_t *ids = buf_new((size_t)(c[i].n * c[i].topk) * 4, 'c');
            for (int t = 0; t < c[i].n; t++) /* each token at most once, not in order; one is skipped */
                for (int j = 0, first = (int)(rnd() % (uint32_t)c[i].count); j < c[i].topk; j++)
                    ids[t * c[i].topk + j] = i == 1 && j == 2 ? -1 : (first + 2 * c[i].count - j) % c[i].count;
            CHECK(name, experts, OP_EXPERTS, .y = floats((size_t)(c[i].n * c[i].hidden * (each ? c[i].topk : 1)), 'f'),
                  .x = floats((size_t)(c[i].n * c[i].hidden), 'c'), .ids = ids,
                  .weights = floats((size_t)(c[i].n * c[i].topk), 'c'), .experts = e, .n = c[i].n, .topk = c[i].topk,
                  .n_experts = c[i].count, .hidden = c[i].hidden, .by_choice = each);
            if (each) break;
        }
    experts_resident = false;
}
static void drafts(void) {
    static const struct {
        int n, topk, count, hidden, inter;
    } c[] = {{1, 2, 4, 256, 128}, {1, 6, 8, 1100, 200}, {3, 2, 5, 200, 1300}, {18, 3, 7, 96, 70}, {20, 2, 4, 128, 128}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        struct expert e[8], shared = expert_new(c[i].hidden, 128);
        char name[80];
        snprintf(name, sizeof name, "experts INT4, %d tokens, %d of %d, %d and %d", c[i].n, c[i].topk, c[i].count,
                 c[i].hidden, c[i].inter);
        int4_experts(e, c[i].count, c[i].hidden, c[i].inter);
        int32_t *ids = buf_new((size_t)(c[i].n * c[i].topk) * 4, 'c');
        for (int k = 0; k < c[i].n * c[i].topk; k++)
            ids[k] = (int32_t)(k % c[i].topk + (int)(rnd() % (uint32_t)(c[i].count - c[i].topk + 1)));
        for (int k = 0; k < c[i].n; k++) /* each token at most once */
            for (int j = 1; j < c[i].topk; j++)
                if (ids[k * c[i].topk + j] <= ids[k * c[i].topk + j - 1])
                    ids[k * c[i].topk + j] = i == 1 && j == 2 ? -1 : (ids[k * c[i].topk + j - 1] + 1) % c[i].count;
        CHECK(name, experts, OP_EXPERTS, .y = floats((size_t)(c[i].n * c[i].hidden), 'f'),
              .x = floats((size_t)(c[i].n * c[i].hidden), 'c'), .ids = ids,
              .weights = floats((size_t)(c[i].n * c[i].topk), 'c'), .experts = e, .shared = i % 2 ? &shared : NULL,
              .n = c[i].n, .topk = c[i].topk, .n_experts = c[i].count, .hidden = c[i].hidden);
    }
}
