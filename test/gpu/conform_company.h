#pragma once
/* Cases of conform.c: groups of experts in one operation, and batch invariance: the same bits for experts processed
 * together or apart, and for a token alone or among others. */
#include "test/gpu/conform_oracle.h"

/* Groups of every size class in one operation, with ascending tokens in each. */
static struct op_group group_of(enum dtype t, int hidden, int inter, int br, int bc) {
    static const int sizes[] = {65, 0, 1, 3, 17, 130, 33, 16};
    enum { ROWS = 140, N = 8 };
    struct op_group a = {
        .y = floats((size_t)(ROWS * hidden), 'f'), .x = floats((size_t)(ROWS * hidden), 'c'), .n = N, .hidden = hidden};
    int32_t *token = buf_new(300 * 4, 'c');
    float *weight = floats(300, 'c');
    a.token = token;
    a.weight = weight;
    for (int k = 0, at = 3; k < N; k++) {
        a.begin[k] = at;
        for (int i = 0; i < sizes[k]; i++) token[at++] = (int32_t)((i * ROWS + k * 3) / sizes[k]);
        a.begin[k + 1] = at;
        if (sizes[k])
            a.expert[k] = (struct expert){matrix(inter, hidden, t, br, bc), matrix(inter, hidden, t, br, bc),
                                          matrix(hidden, inter, t, br, bc)};
    }
    return a;
}
static void groups(void) {
    static const struct {
        enum dtype t;
        int hidden, inter, br, bc;
    } kinds[] = {{DT_E4M3, 256, 128, 128, 128}, {DT_E4M3, 200, 150, 128, 128}, {DT_BF16, 72, 40, 0, 0},
                 {DT_E2M1, 128, 96, 1, 32},     {DT_F16, 64, 48, 0, 0},        {DT_Q4_K, 256, 256, 0, 0},
                 {DT_Q8_0, 96, 160, 0, 0},      {DT_MXFP4, 64, 96, 0, 0}};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        char name[80];
        snprintf(name, sizeof name, "group %s, %d and %d", dtype_name(kinds[i].t), kinds[i].hidden, kinds[i].inter);
        struct op_group a = group_of(kinds[i].t, kinds[i].hidden, kinds[i].inter, kinds[i].br, kinds[i].bc);
        if (i % 2) a.norm = floats((size_t)a.hidden, 'c'), a.eps = 1e-5f;
        check(name, OP_GROUP, &(union op_args){.group = a}, ref_group);
    }
}

/* The result must not depend on which experts are processed together, not by a bit. */
static void groups_apart(void) {
    union op_args all = {.group = group_of(DT_E4M3, 256, 128, 128, 128)};
    struct error e = {0};
    size_t bytes = 140 * 256 * 4;
    float *one = malloc(bytes), *each = malloc(bytes);
    for (int i = 0; i < n_bufs; i++) {
        if (gpu_alloc(g, &bufs[i].dev, bufs[i].size, &e)) die("groups", &e);
        gpu_copy(stream, bufs[i].dev, bufs[i].host, bufs[i].size, GPU_H2D);
    }
    if (op_visit(OP_GROUP, &all, to_device, NULL)) failures++;
    op_run(gpu_stream_exec(stream), OP_GROUP, &all);
    gpu_copy(stream, one, all.group.y, bytes, GPU_D2H);
    gpu_copy(stream, all.group.y, bufs[0].host, bytes, GPU_H2D);
    for (int k = 0; k < all.group.n; k += 2) {
        union op_args some = all;
        some.group.n = 2;
        memmove(some.group.begin, all.group.begin + k, 3 * sizeof some.group.begin[0]);
        memmove(some.group.expert, all.group.expert + k, 2 * sizeof some.group.expert[0]);
        op_run(gpu_stream_exec(stream), OP_GROUP, &some);
    }
    gpu_copy(stream, each, all.group.y, bytes, GPU_D2H);
    if (gpu_stream_sync(stream)) {
        gpu_error(g, &e);
        die("groups", &e);
    }
    bool same = !memcmp(one, each, bytes) && memcmp(one, bufs[0].host, bytes);
    ran++;
    failures += !same;
    printf("%-44s %s\n", "groups together and apart: the same bits", same ? "ok" : "FAIL");
    bufs_free();
    free(one);
    free(each);
}

/* With up to FEW tokens, a token's result must not depend on the others in the call, not by a bit. alone() reduces a
 * call of all tokens to token t; row: where its result is in `out`, and its size. */
static void company(const char *name, enum op_code code, const union op_args *all,
                    void (*alone)(union op_args *a, int t), int n, float *out, size_t ld, size_t width) {
    struct error e = {0};
    union op_args a = *all;
    int at = 0;
    while (out < (float *)bufs[at].host || (char *)out >= bufs[at].host + bufs[at].size) at++;
    struct buffer *b = &bufs[at];
    size_t skip = (size_t)((char *)out - b->host) / 4;
    float *together = malloc(b->size);
    bool same = true;
    for (int i = 0; i < n_bufs; i++) {
        if (gpu_alloc(g, &bufs[i].dev, bufs[i].size, &e)) die(name, &e);
        gpu_copy(stream, bufs[i].dev, bufs[i].host, bufs[i].size, GPU_H2D);
    }
    for (int t = -1; t < n; t++) {
        a = *all;
        if (t >= 0) alone(&a, t);
        if (op_visit(code, &a, to_device, NULL)) failures++;
        gpu_copy(stream, b->dev, b->host, b->size, GPU_H2D);
        op_run(gpu_stream_exec(stream), code, &a);
        gpu_copy(stream, t < 0 ? (char *)together : b->got, b->dev, b->size, GPU_D2H);
        if (gpu_stream_sync(stream)) {
            gpu_error(g, &e);
            die(name, &e);
        }
        if (t < 0) continue;
        size_t row = skip + (size_t)t * ld;
        same = same && !memcmp(together + row, (float *)b->got + row, width * 4) &&
               memcmp(together + row, (float *)b->host + row, width * 4);
    }
    ran++;
    failures += !same;
    printf("%-44s %s\n", name, same ? "ok" : "FAIL");
    bufs_free();
    free(together);
}
static void alone_linear(union op_args *a, int t) {
    a->linear.x += t * a->linear.ldx;
    a->linear.y += t * a->linear.ldy;
    a->linear.n = 1;
}
static void alone_attention(union op_args *u, int t) { /* decoding: later keys do not exist yet */
    struct op_attention *a = &u->attention;
    a->q += t * a->ldq;
    a->out += t * a->ldo;
    a->q_pos0 += t;
    a->n_keys -= a->n - 1 - t;
    a->n = 1;
}
static void companies(void) {
    static const struct {
        enum dtype t;
        int br, bc;
    } kinds[] = {{DT_E4M3, 128, 128}, {DT_BF16, 0, 0}, {DT_E2M1, 1, 32}, {DT_F32, 0, 0},
                 {DT_Q4_K, 0, 0},     {DT_Q6_K, 0, 0}, {DT_Q8_0, 0, 0},  {DT_MXFP4, 0, 0}};
    static const int counts[] = {2, 9, FEW};
    char name[80];
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
            for (int turned = 0; turned < (k < 2 ? 2 : 1); turned++) {
                int n = counts[i], rows = i ? 150 : 20, all = i ? 1100 : 4700, block = (int)dtype_block(kinds[k].t),
                    cols = all / block * block, in = turned ? rows : cols, outs = turned ? cols : rows;
                float *y = floats((size_t)(n * outs), 'f');
                snprintf(name, sizeof name, "company of %d, %s%s", n, dtype_name(kinds[k].t),
                         turned ? ", transposed" : "");
                company(name, OP_LINEAR,
                        &(union op_args){.linear = {.y = y,
                                                    .x = floats((size_t)(n * in), 'c'),
                                                    .w = matrix(rows, cols, kinds[k].t, kinds[k].br, kinds[k].bc),
                                                    .n = n,
                                                    .ldx = in,
                                                    .ldy = outs,
                                                    .transposed = turned,
                                                    .accumulate = i % 2}},
                        alone_linear, n, y, (size_t)outs, (size_t)outs);
            }
    static const struct {
        int n, heads, kv, dim, v, q0, window;
    } c[] = {{FEW, 4, 2, 64, 64, 250, 0},
             {5, 16, 2, 128, 128, 509, 0},
             {3, 24, 1, 576, 512, 700, 0},
             {9, 2, 1, 80, 80, 300, 60},
             {4, 4, 2, 64, 64, 4094, 0}};
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_E4M3};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        for (int t = 0; t < 3; t++) {
            /* the emulated tensor cores take minutes */
            if (c[i].q0 > 4000 && spec.math != GPU_MATH_F32 && !spec.is_emulated) continue;
            int keys = c[i].q0 + c[i].n, n = c[i].n, row = c[i].heads * c[i].v;
            struct kv_plane k = plane_new(keys, c[i].kv, c[i].dim, types[t], 'c'),
                            v = c[i].kv == 1 && c[i].dim > c[i].v ? k : plane_new(keys, c[i].kv, c[i].v, types[t], 'c');
            float *out = floats((size_t)(n * row), 'f');
            snprintf(name, sizeof name, "company of %d, attention %s %d/%d, %d keys", n, dtype_name(types[t]),
                     c[i].heads, c[i].dim, keys);
            company(name, OP_ATTENTION,
                    &(union op_args){.attention = {.out = out,
                                                   .q = floats((size_t)(n * c[i].heads * c[i].dim), 'c'),
                                                   .k = k,
                                                   .v = v,
                                                   .n = n,
                                                   .n_heads = c[i].heads,
                                                   .v_dim = c[i].v,
                                                   .ldq = c[i].heads * c[i].dim,
                                                   .ldo = row,
                                                   .q_pos0 = c[i].q0,
                                                   .n_keys = keys,
                                                   .window = c[i].window,
                                                   .scale = 0.1f}},
                    alone_attention, n, out, (size_t)row, (size_t)row);
        }
}
