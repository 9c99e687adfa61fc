#pragma once
/* Joined operations: random programs of products and small operations over a few buffers must leave the same bytes when
 * their operations are joined (gpu/fuse.h) as when each is launched alone. */
#include "gpu/fuse.h"
#include "test/gpu/conform_case.h"

enum {
    PROGRAM_SLOTS = 10,
    PROGRAM_ROWS = 4,
    PROGRAM_WIDTH = 256,
    PROGRAM_MATS = 8,
    HEADS_MATS = 6, /* after these: three of two programs on heads */
    CHAIN_EXPERTS = 4,
    CHAIN_INTER = 64,
    PROGRAM_STEPS = 24,
    PROGRAM_KEYS = 8,
    PROGRAM_EXPERTS = 64
};
enum { PROGRAM_SLOT = PROGRAM_ROWS * PROGRAM_WIDTH };
struct program {
    char *mem, *pinned; /* device; pinned memory, which the host's copies of `mem` follow */
    size_t bytes, mats, planes, ints;
    struct mat mat[PROGRAM_MATS + HEADS_MATS];
    struct expert expert[CHAIN_EXPERTS]; /* at equal distances */
    struct kv_plane plane[3];
    int n, rows;
    struct {
        enum op_code code;
        union op_args args;
    } step[PROGRAM_STEPS];
};

static float *program_slot(const struct program *p) {
    return (float *)p->mem + (size_t)(rnd() % PROGRAM_SLOTS) * PROGRAM_SLOT;
}
/* A slot, or its second half as a slot of half the width: parts of buffers overlap others. */
static float *program_half(const struct program *p) { return program_slot(p) + rnd() % 2 * (PROGRAM_WIDTH / 2); }

static void program_step(struct program *p, enum op_code *code, union op_args *a) {
    const int n = p->rows, width = PROGRAM_WIDTH, half = width / 2;
    float *x = program_slot(p), *y = program_slot(p), *part = program_half(p);
    while (y == x) y = program_slot(p);
    int32_t *ints = (int32_t *)(p->mem + p->ints);
    memset(a, 0, sizeof *a);
    switch (rnd() % 17) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: /* several in turn read the same rows */
        if (p->n && p->step[p->n - 1].code == OP_LINEAR && rnd() % 2) x = (float *)p->step[p->n - 1].args.linear.x;
        while (y == x || part == x || part == x + half) y = program_slot(p), part = program_half(p);
        *code = OP_LINEAR;
        a->linear = (struct op_linear){.x = x,
                                       .w = p->mat[rnd() % PROGRAM_MATS],
                                       .n = n,
                                       .ldx = width,
                                       .ldy = width,
                                       .accumulate = rnd() % 4 == 0};
        a->linear.y = a->linear.w.rows > half ? y : part;
        return;
    case 5:
        *code = OP_NORM;
        a->norm = (struct op_norm){.out = rnd() % 2 ? x : y,
                                   .x = x,
                                   .rows = n,
                                   .dim = width,
                                   .ldx = width,
                                   .ldo = width,
                                   .eps = 1e-6f,
                                   .w_dtype = DT_F32};
        if (rnd() % 2) a->norm.rows = n * 4, a->norm.dim = a->norm.ldx = a->norm.ldo = 64;
        else a->norm.w = program_slot(p), a->norm.layer_norm = rnd() % 2;
        if (a->norm.w == a->norm.out) a->norm.w = NULL;
        return;
    case 6:
        *code = OP_ROPE;
        a->rope = (struct op_rope){.x = part,
                                   .cos = y,
                                   .sin = y + 64,
                                   .n = n,
                                   .heads = 2,
                                   .ld = width,
                                   .head_ld = 64,
                                   .half = 16,
                                   .interleaved = rnd() % 2};
        if (part == y || part == y + half)
            a->rope.cos = (float *)p->mem + PROGRAM_SLOTS * PROGRAM_SLOT, a->rope.sin = a->rope.cos + 64;
        return;
    case 7:
        *code = OP_KV_STORE;
        a->kv_store = (struct op_kv_store){.plane = p->plane[rnd() % 3],
                                           .x = x,
                                           .row0 = (int)(rnd() % (PROGRAM_KEYS - PROGRAM_ROWS + 1)),
                                           .n = n,
                                           .ldx = width};
        return;
    case 8:
        *code = OP_ROUTE;
        a->route = (struct op_route){.ids = ints,
                                     .weights = y,
                                     .logits = x,
                                     .n = n,
                                     .topk = 5,
                                     .score = rnd() % 2,
                                     .norm = rnd() % 2,
                                     .scale = 1};
        a->route.n_experts = rnd() % 2 ? PROGRAM_EXPERTS : width;
        if (rnd() % 2) a->route.n_group = 8, a->route.topk_group = 3, a->route.group_top2 = rnd() % 2;
        else a->route.n_always = rnd() % 3;
        if (rnd() % 2) a->route.bias = (float *)p->mem + PROGRAM_SLOTS * PROGRAM_SLOT;
        return;
    case 9: *code = OP_ADD, a->add = (struct op_add){.y = y, .x = x, .n = n, .m = width}; return;
    case 10: *code = OP_SIGMOID, a->sigmoid = (struct op_sigmoid){.x = x, .n = n, .m = width}; return;
    case 11: *code = OP_FILL, a->fill = (struct op_fill){.x = x, .n = n, .m = half, .value = 0.5f}; return;
    case 12:
        *code = OP_COPY;
        a->copy = (struct op_copy){
            .y = y, .x = x, .n = n, .heads = 2, .dim = 32, .ldx = width, .ldy = width, .head_ldx = 64, .head_ldy = 32};
        return;
    case 13:
        *code = OP_GATE;
        a->gate = (struct op_gate){.y = y,
                                   .g = x,
                                   .n = n,
                                   .heads = 2,
                                   .dim = 64,
                                   .ldy = width,
                                   .ldg = width,
                                   .head_ldy = 64,
                                   .head_ldg = 128,
                                   .kind = rnd() % 5};
        return;
    case 14:
        *code = OP_SCALE, a->scale = (struct op_scale){.x = x, .n = n, .m = half, .ld = width, .by = 0.75f};
        return;
    case 15: /* with a state in a slot, as rows of it */
        *code = OP_CONV;
        a->conv = (struct op_conv){.out = y,
                                   .x = x,
                                   .w = (float *)p->mem + PROGRAM_SLOTS * PROGRAM_SLOT,
                                   .n = n,
                                   .channels = half,
                                   .taps = 3,
                                   .ldx = width,
                                   .ldo = width};
        a->conv.before = a->conv.after = program_slot(p);
        if (a->conv.after == x || a->conv.after == y) a->conv.is_peek = true, a->conv.before = NULL;
        return;
    default: /* through pinned memory and back */
        *code = OP_TRANSFER;
        a->transfer = (struct op_transfer){p->pinned, x, PROGRAM_SLOT * 4, true};
        if (p->n && p->step[p->n - 1].code == OP_TRANSFER && p->step[p->n - 1].args.transfer.to_host)
            a->transfer = (struct op_transfer){y, p->pinned, PROGRAM_SLOT * 4, false};
    }
}

/* Runs the program, each operation alone or all that can joined, and copies all of its memory to out. */
static int program_run(const struct program *p, const char *init, char *out, bool alone) {
    int bad = gpu_copy(stream, p->mem, init, p->bytes, GPU_H2D) || gpu_stream_sync(stream);
    memset(p->pinned, 0, PROGRAM_SLOT * 4);
    for (int i = 0; i < p->n; i++) {
        bad += op_run(gpu_stream_exec(stream), p->step[i].code, &p->step[i].args) != 0;
        if (alone) bad += gpu_stream_sync(stream) != 0;
    }
    bad += gpu_copy(stream, out, p->mem, p->bytes, GPU_D2H) || gpu_stream_sync(stream);
    memcpy(out + p->bytes, p->pinned, PROGRAM_SLOT * 4);
    return bad;
}

/* Lays out the program's memory: slots, a table of angles, choices, planes, matrices of several formats with columns of
 * a slot. */
static char *program_open(struct program *p) {
    static const enum dtype formats[PROGRAM_MATS + HEADS_MATS] = {DT_E4M3, DT_BF16, DT_E4M3, DT_F32,  DT_BF16,
                                                                  DT_Q8_0, DT_E2M1, DT_BF16, DT_Q8_0, DT_E4M3,
                                                                  DT_Q4_0, DT_BF16, DT_BF16, DT_BF16},
                                                   kv[3] = {DT_F32, DT_BF16, DT_E4M3};
    struct error e = {0};
    size_t at = (size_t)(PROGRAM_SLOTS + 1) * PROGRAM_SLOT * 4;
    struct mat host[PROGRAM_MATS + HEADS_MATS];
    p->ints = at, at += 256 * 4;
    for (int i = 0; i < 3; i++) {
        p->plane[i] = (struct kv_plane){.data = (void *)at, .heads = 2, .dim = 64, .dtype = (uint8_t)kv[i]};
        at += PROGRAM_KEYS * 128 * 4;
        if (kv[i] == DT_E4M3) p->plane[i].scale = (float *)at, at += PROGRAM_KEYS * 2 * 4;
    }
    at = align_up(at, 256);
    n_bufs = 0;
    for (int i = 0; i < PROGRAM_MATS + HEADS_MATS; i++) {
        const enum dtype t = formats[i];
        const int heads_rows = (i - PROGRAM_MATS) % 3 == 2 ? 256 : 128, rows = i % 2 ? 72 : 200;
        host[i] = p->mat[i] = matrix(i < PROGRAM_MATS ? rows : heads_rows, PROGRAM_WIDTH, t,
                                     t == DT_E4M3 ? 128 : t == DT_E2M1, t == DT_E4M3 ? 128 : 32);
        p->mat[i].data = (void *)at, at += align_up(p->mat[i].stride * (size_t)p->mat[i].rows, 256);
        if (host[i].scale) p->mat[i].scale = (void *)at, at += 8192;
    }
    struct mat own[CHAIN_EXPERTS][3];
    const size_t experts_at = at;
    for (int i = 0; i < CHAIN_EXPERTS; i++)
        for (int k = 0; k < 3; k++) {
            own[i][k] = matrix(k < 2 ? CHAIN_INTER : PROGRAM_WIDTH, k < 2 ? PROGRAM_WIDTH : CHAIN_INTER, DT_Q8_0, 0, 0);
            at += align_up(own[i][k].stride * (size_t)own[i][k].rows, 256);
        }
    p->bytes = at;
    if (gpu_alloc(g, (void **)&p->mem, p->bytes, &e) || gpu_host_alloc(g, (void **)&p->pinned, PROGRAM_SLOT * 4, &e))
        die("program", &e);
    char *init = calloc(1, p->bytes);
    for (size_t i = 0; i < (size_t)(PROGRAM_SLOTS + 1) * PROGRAM_SLOT; i++) ((float *)init)[i] = rnd_float();
    for (int i = 0; i < PROGRAM_MATS + HEADS_MATS; i++) {
        const struct mat *m = &host[i];
        memcpy(init + (size_t)p->mat[i].data, m->data, m->stride * (size_t)m->rows);
        if (m->scale)
            memcpy(init + (size_t)p->mat[i].scale, m->scale,
                   (size_t)((m->rows + m->block_rows - 1) / m->block_rows * m->scale_stride) * 4);
        p->mat[i].data = p->mem + (size_t)p->mat[i].data;
        if (m->scale) p->mat[i].scale = p->mem + (size_t)p->mat[i].scale;
    }
    at = experts_at;
    for (int i = 0; i < CHAIN_EXPERTS; i++) {
        struct mat *const of[3] = {&p->expert[i].gate, &p->expert[i].up, &p->expert[i].down};
        for (int k = 0; k < 3; k++) {
            const size_t size = own[i][k].stride * (size_t)own[i][k].rows;
            memcpy(init + at, own[i][k].data, size);
            *of[k] = own[i][k], of[k]->data = p->mem + at;
            at += align_up(size, 256);
        }
    }
    for (int i = 0; i < n_bufs; i++) free(bufs[i].host), free(bufs[i].got);
    n_bufs = 0;
    for (int i = 0; i < 3; i++) {
        p->plane[i].data = p->mem + (size_t)p->plane[i].data;
        if (p->plane[i].scale) p->plane[i].scale = (float *)(p->mem + (size_t)p->plane[i].scale);
    }
    return init;
}

/* A fixed layer's beginning: three products of the normed rows, around what the first of them is for, take three
 * launches. */
static bool joins_a_layer(const struct program *p) {
    struct exec *x = gpu_stream_exec(stream);
    float *const row = (float *)p->mem, *const xn = row + PROGRAM_SLOT, *const q = row + 2 * PROGRAM_SLOT,
                 *const k = row + 3 * PROGRAM_SLOT;
    const struct op_linear of = {.x = xn, .n = 1, .ldx = PROGRAM_WIDTH, .ldy = PROGRAM_WIDTH};
    const struct op_norm norm = {.x = row,
                                 .out = xn,
                                 .rows = 1,
                                 .dim = PROGRAM_WIDTH,
                                 .ldx = PROGRAM_WIDTH,
                                 .ldo = PROGRAM_WIDTH,
                                 .w_dtype = DT_F32};
    struct op_norm heads = {.x = k, .out = k, .rows = 4, .dim = 64, .ldx = 64, .ldo = 64, .w_dtype = DT_F32};
    struct op_linear l = of;
    gpu_stream_sync(stream);
    const uint64_t before = gpu_stats(g).n_ops;
    x->ops->add(x, &(struct op_add){.y = row, .x = q, .n = 1, .m = PROGRAM_WIDTH});
    x->ops->norm(x, &norm);
    l.y = k, l.w = p->mat[0], x->ops->linear(x, &l);
    l.y = k + PROGRAM_SLOT, l.w = p->mat[1], x->ops->linear(x, &l);
    x->ops->norm(x, &heads);
    x->ops->kv_store(x, &(struct op_kv_store){.plane = p->plane[0], .x = k, .row0 = 0, .n = 1, .ldx = PROGRAM_WIDTH});
    l.y = q, l.w = p->mat[2], x->ops->linear(x, &l);
    heads.x = heads.out = q, x->ops->norm(x, &heads);
    gpu_stream_sync(stream);
    return !spec.is_emulated || gpu_stats(g).n_ops - before == 3;
}

/* Keys, values and queries of a layer, with all that follows them by heads: one launch where products have epilogues.
 */
static void heads_program(struct program *p, int first, int rows) {
    float *const x = (float *)p->mem, *const k = x + PROGRAM_SLOT, *const v = x + 2 * PROGRAM_SLOT,
                 *const q = x + 3 * PROGRAM_SLOT, *const angles = x + PROGRAM_SLOTS * PROGRAM_SLOT;
    float *const of[3] = {k, v, q};
    p->rows = rows, p->n = 0;
    for (int i = 0; i < 3; i++) {
        const struct mat w = p->mat[PROGRAM_MATS + first + i];
        p->step[p->n].code = OP_LINEAR;
        p->step[p->n++].args.linear =
            (struct op_linear){.y = of[i], .x = x, .w = w, .n = rows, .ldx = PROGRAM_WIDTH, .ldy = w.rows};
    }
    for (int i = 0; i < 3; i += 2) {
        const int heads = i ? 4 : 2;
        p->step[p->n].code = OP_NORM;
        p->step[p->n++].args.norm = (struct op_norm){
            .out = of[i], .x = of[i], .rows = rows * heads, .dim = 64, .ldx = 64, .ldo = 64, .w_dtype = DT_F32};
        p->step[p->n].code = OP_ROPE;
        p->step[p->n++].args.rope = (struct op_rope){.x = of[i] + 8,
                                                     .cos = angles,
                                                     .sin = angles + PROGRAM_SLOT / 2,
                                                     .n = rows,
                                                     .heads = heads,
                                                     .ld = heads * 64,
                                                     .head_ld = 64,
                                                     .half = 16};
        for (int to = 0; !i && to < 3; to++) {
            p->step[p->n].code = OP_KV_STORE;
            p->step[p->n++].args.kv_store =
                (struct op_kv_store){.plane = p->plane[to], .x = to < 2 ? k : v, .row0 = to, .n = rows, .ldx = 128};
        }
    }
}
/* Routed experts, whose sum is added to the stream, which is then normed; or a product reads it. */
static void experts_program(struct program *p, int rows, bool multiplies) {
    float *const x = (float *)p->mem, *const sum = x + PROGRAM_SLOT, *const y = x + 2 * PROGRAM_SLOT,
                 *const out = x + 3 * PROGRAM_SLOT;
    p->rows = rows, p->n = 0;
    p->step[p->n].code = OP_EXPERTS;
    p->step[p->n++].args.experts = (struct op_experts){.y = sum,
                                                       .x = x,
                                                       .ids = (int32_t *)(p->mem + p->ints),
                                                       .weights = x + 4 * PROGRAM_SLOT,
                                                       .experts = p->expert,
                                                       .n = rows,
                                                       .topk = 2,
                                                       .n_experts = CHAIN_EXPERTS,
                                                       .hidden = PROGRAM_WIDTH};
    if (multiplies) {
        p->step[p->n].code = OP_LINEAR;
        p->step[p->n++].args.linear = (struct op_linear){
            .y = out, .x = sum, .w = p->mat[0], .n = rows, .ldx = PROGRAM_WIDTH, .ldy = PROGRAM_WIDTH};
        return;
    }
    p->step[p->n].code = OP_ADD;
    p->step[p->n++].args.add = (struct op_add){.y = y, .x = sum, .n = rows, .m = PROGRAM_WIDTH};
    p->step[p->n].code = OP_NORM;
    p->step[p->n++].args.norm = (struct op_norm){.out = out,
                                                 .x = y,
                                                 .rows = rows,
                                                 .dim = PROGRAM_WIDTH,
                                                 .ldx = PROGRAM_WIDTH,
                                                 .ldo = PROGRAM_WIDTH,
                                                 .w_dtype = DT_F32};
}
uint64_t cuda_emulate_enqueued(int kind) __attribute__((weak)); /* 0: kernels */

/* Runs ever longer parts of a program, up to the first that leaves other bytes, and prints its last operation and the
 * first value. */
static void print_difference(struct program *p, const char *init, char *want, char *got) {
    const int all = p->n;
    for (p->n = 1; p->n <= all; p->n++) {
        program_run(p, init, want, true), program_run(p, init, got, false);
        const size_t size = p->bytes + PROGRAM_SLOT * 4;
        size_t at = 0;
        while (at < size && want[at] == got[at]) at++;
        if (at == size) continue;
        float a, b;
        memcpy(&a, want + at / 4 * 4, 4), memcpy(&b, got + at / 4 * 4, 4);
        printf("    after step %d, %s (the one before: %s), byte %zu of %zu, as a float %a alone and %a joined\n", p->n,
               op_name(p->step[p->n - 1].code), p->n > 1 ? op_name(p->step[p->n - 2].code) : "none", at, size,
               (double)a, (double)b);
        break;
    }
    p->n = all;
}

static void joined(int programs) {
    struct program p = {0};
    char *init = program_open(&p), *want = malloc(p.bytes + PROGRAM_SLOT * 4),
         *got = malloc(p.bytes + PROGRAM_SLOT * 4);
    int bad = !joins_a_layer(&p);
    if (bad) printf("FAIL the start of a layer takes %s than three launches\n", "more or less");
    for (int i = 0; i < 4 * PROGRAM_ROWS; i++) {
        const int kind = i % 4, rows = 1 + i / 4;
        const uint64_t launches = kind < 2 ? 1 : (uint64_t)kind;
        if (kind < 2) heads_program(&p, kind * 3, rows);
        else experts_program(&p, rows, kind == 3);
        int errors = program_run(&p, init, want, true);
        const uint64_t before = cuda_emulate_enqueued ? cuda_emulate_enqueued(0) : 0;
        errors += program_run(&p, init, got, false);
        const bool many = cuda_emulate_enqueued && cuda_emulate_enqueued(0) - before != launches;
        if (!errors && !many && !memcmp(want, got, p.bytes + PROGRAM_SLOT * 4)) continue;
        bad++;
        printf("FAIL %s of %d rows: %s\n", launches > 1 ? "experts" : "heads", p.rows,
               many ? "other launches" : "other bytes");
        if (!errors && !many) print_difference(&p, init, want, got);
    }
    for (int i = 0; i < programs; i++) {
        p.rows = 1 + (int)(rnd() % PROGRAM_ROWS);
        for (p.n = 0; p.n < PROGRAM_STEPS; p.n++) program_step(&p, &p.step[p.n].code, &p.step[p.n].args);
        const int errors = program_run(&p, init, want, true) + program_run(&p, init, got, false);
        if (!errors && !memcmp(want, got, p.bytes + PROGRAM_SLOT * 4)) continue;
        struct error e = {0};
        bad++;
        gpu_error(g, &e);
        printf("FAIL joined operations, program %d: %s\n", i, errors ? e.text : "other bytes");
        if (!errors && bad < 20) print_difference(&p, init, want, got);
    }
    ran++, failures += bad > 0;
    free(init), free(want), free(got);
    gpu_free(g, p.mem), gpu_host_free(g, p.pinned);
}
