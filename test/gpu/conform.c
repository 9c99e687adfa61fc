/* Compares every operation on a device with the scalar CPU kernels (base operations) or with plain loops in double (the
 * others). usage: conform LIST TOLERANCE [SEED | company | math | joined | rounding] [0/3 | 1/3 | 2/3]    LIST as in
 * --gpus; the first rank is tested. TOLERANCE is relative to the largest value of a result. SEED: random shapes and
 * addresses instead of the fixed cases. company: batch invariance, a few tokens together against each alone. math: only
 * operations that LIST's math computes differently from float32, or FP8 differently from BF16. 0/3 to 2/3: only a third
 * of the cases (conform_case.h). Exit 77 when the device, or the CPU level that it needs, is missing. */
#include "base/test_env.h"
#include "test/gpu/conform_blocks.h"
#include "test/gpu/conform_company.h"
#include "test/gpu/conform_joined.h"
#include "test/gpu/conform_shared.h"
#include "test/gpu/conform_streams.h"
#include "test/gpu/conform_tiles.h"

static void elementwise(void) {
    struct mat table = matrix(40, 96, DT_BF16, 0, 0);
    int32_t *ids = buf_new(7 * 4, 'c');
    for (int i = 0; i < 7; i++) ids[i] = (int32_t)(rnd() % 40);
    CHECK("embed bf16", embed, OP_EMBED, .out = floats(7 * 96, 'f'), .ids = ids, .table = table, .n = 7);
    for (int ln = 0; ln < 2; ln++)
        for (int dim = 60; dim < 2000; dim = dim * 5 + 13)
            CHECK(ln ? "layer norm" : "rms norm", norm, OP_NORM, .out = floats((size_t)(5 * dim + 10), 'f'),
                  .x = floats((size_t)(5 * (dim + 3)), 'c'), .w = floats((size_t)dim, 'c'),
                  .bias = ln ? floats((size_t)dim, 'c') : NULL, .rows = 5, .dim = dim, .ldx = dim + 3, .ldo = dim + 2,
                  .eps = 1e-6f, .add = ln ? 0 : 1, .w_dtype = DT_F32, .layer_norm = (uint8_t)ln);
    for (int ln = 0; ln < 2; ln++)
        CHECK(ln ? "layer norm without weights" : "rms norm without weights", norm, OP_NORM,
              .out = floats(5 * 700, 'f'), .x = floats(5 * 700, 'c'), .rows = 5, .dim = 700, .ldx = 700, .ldo = 700,
              .eps = 1e-6f, .w_dtype = DT_F32, .layer_norm = (uint8_t)ln);
    for (int ln = 0; ln < 2; ln++)
        CHECK("norm, weights by row", norm, OP_NORM, .out = floats(9 * 70, 'f'), .x = floats(9 * 70, 'c'),
              .w = floats(3 * 70, 'c'), .bias = ln ? floats(3 * 70, 'c') : NULL, .w_rows = 3, .rows = 9, .dim = 70,
              .ldx = 70, .ldo = 70, .eps = 1e-6f, .w_dtype = DT_F32, .layer_norm = (uint8_t)ln);
    float *x = floats(3 * 50, 'c');
    x[70] = INFINITY;
    _Atomic int *bad = buf_new(4, 'i');
    *bad = -1;
    CHECK("norm marks what is not finite", norm, OP_NORM, .out = floats(150, 'f'), .x = x, .w = floats(50, 'c'),
          .rows = 3, .dim = 50, .ldx = 50, .ldo = 50, .eps = 1e-6f, .w_dtype = DT_F32, .tag = 9, .bad = bad);
    int32_t *pos = buf_new(6 * 4, 'c');
    for (int i = 0; i < 6; i++) pos[i] = (int32_t)(rnd() % 100000);
    float *freq = floats(16, 'c');
    for (int i = 0; i < 16; i++) freq[i] = powf(10000, -(float)i / 16);
    CHECK("rope table", rope_table, OP_ROPE_TABLE, .cos = floats(96, 'f'), .sin = floats(96, 'f'), .pos = pos,
          .inv_freq = freq, .n = 6, .half = 16, .mscale = 1.2f);
    for (int all = 0; all < 2; all++) {
        int32_t *length = buf_new(6 * 4, 'c'), *at = buf_new(6 * 4, 'c');
        float *two = floats(32, 'c');
        for (int i = 0; i < 6; i++) length[i] = i % 2 ? 65 : 64, at[i] = (int32_t)(rnd() % 100000);
        for (int i = 0; i < 32; i++) two[i] = powf(10000, -(float)(i % 16) / 16) / (i < 16 ? 1 : 3);
        CHECK("rope tables", rope_table, OP_ROPE_TABLE, .cos = floats(96, 'f'), .sin = floats(96, 'f'), .pos = at,
              .inv_freq = two, .length = all ? NULL : length, .n = 6, .half = 16, .longest = 64, .total = 65,
              .mscale = 1.2f, .long_mscale = 1.5f);
    }
    int32_t *place = buf_new(18 * 4, 'c');
    float *turns = floats(16, 'c');
    for (int i = 0; i < 18; i++) place[i] = (int32_t)(rnd() % 1000);
    for (int i = 0; i < 16; i++) turns[i] = powf(10000, -(float)i / 16);
    CHECK("rope table of places", rope_table, OP_ROPE_TABLE, .cos = floats(96, 'f'), .sin = floats(96, 'f'),
          .place = place, .section = {5, 3}, .inv_freq = turns, .n = 6, .half = 16, .mscale = 1.2f);
    for (int il = 0; il < 4; il++)
        CHECK("rope", rope, OP_ROPE, .x = floats(5 * 200, 'f'), .cos = floats(40, 'c'), .sin = floats(40, 'c'), .n = 5,
              .heads = 3, .ld = 200, .head_ld = 60, .half = 8, .interleaved = il & 1, .inverse = il > 1);
    CHECK("add", add, OP_ADD, .y = floats(999, 'f'), .x = floats(999, 'c'), .n = 27, .m = 37);
    CHECK("sigmoid", sigmoid, OP_SIGMOID, .x = floats(77, 'f'), .n = 7, .m = 11);
    CHECK("scale", scale, OP_SCALE, .x = floats(700, 'f'), .n = 7, .m = 90, .ld = 100, .by = 0.7f);
    int32_t *at = buf_new(6 * 4, 'c');
    memcpy(at, (const int32_t[]){0, 6, 7, 63, 64, 100000}, 6 * 4);
    CHECK("scale by position", scale, OP_SCALE, .x = floats(600, 'f'), .pos = at, .n = 6, .m = 90, .ld = 100,
          .every = 8, .shift = 1, .by = 1, .slope = 0.1f);
    for (uint8_t kind = SCALE_SMOOTH; kind <= SCALE_POWER; kind++) {
        at = buf_new(6 * 4, 'c');
        memcpy(at, (const int32_t[]){0, 6, 7, 63, 64, 100000}, 6 * 4);
        CHECK(kind == SCALE_POWER ? "scale by position, power" : "scale by position, smooth", scale, OP_SCALE,
              .x = floats(600, 'f'), .pos = at, .n = 6, .m = 90, .ld = 100, .every = 8, .shift = 1, .by = 1,
              .slope = 0.1f, .kind = kind);
    }
    at = buf_new(6 * 4, 'c');
    memcpy(at, (const int32_t[]){0, 6, 7, 63, 64, 100000}, 6 * 4);
    CHECK("scale heads by position", scale, OP_SCALE, .x = floats(600, 'f'), .pos = at, .n = 6, .m = 90, .ld = 100,
          .by = 1, .slopes = floats(5, 'c'), .bases = floats(5, 'c'), .dim = 18);
    CHECK("clip", clip, OP_CLIP, .x = floats(700, 'f'), .n = 7, .m = 100, .limit = 0.3f);
    CHECK("fill", fill, OP_FILL, .x = floats(700, 'f'), .n = 7, .m = 100, .value = -3);
    CHECK("softcap", softcap, OP_SOFTCAP, .x = floats(700, 'f'), .n = 7, .m = 100, .cap = 0.6f);
    CHECK("copy", copy, OP_COPY, .y = floats(5 * 100, 'f'), .x = floats(5 * 70, 'c'), .n = 5, .heads = 4, .dim = 16,
          .ldx = 70, .ldy = 100, .head_ldx = 17, .head_ldy = 25);
    CHECK("copy, one head for all", copy, OP_COPY, .y = floats(5 * 100, 'f'), .x = floats(5 * 70, 'c'), .n = 5,
          .heads = 4, .dim = 16, .ldx = 70, .ldy = 100, .head_ldy = 25);
}

/* Mamba's selective scan: at the start and later, states separate and in place, in registers and in memory. */
static void scans(void) {
    static const struct { int n, channels, state; } c[] = {{1, 130, 16}, {5, 64, 7}, {33, 200, 16}, {3, 24, 40}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++)
        for (int how = 0; how < 3; how++) { /* no state before; a state; the same memory */
            const int n = c[i].n, channels = c[i].channels, state = c[i].state;
            const size_t all = (size_t)(channels * state), rows = (size_t)(n * (channels + 2));
            float *after = floats(all, 'f'), *rate = floats(all, 'c'), *bc = floats((size_t)(2 * n * state), 'c');
            char name[80];
            for (size_t k = 0; k < all; k++) rate[k] = -expf(rate[k]);
            snprintf(name, sizeof name, "scan of %d channels, %d, n %d, %d", channels, state, n, how);
            CHECK(name, scan, OP_SCAN, .out = floats((size_t)(n * (channels + 1)), 'f'), .x = floats(rows, 'c'),
                  .a = floats(rows, 'c'), .b = bc, .c = bc + state, .rate = rate, .dt = floats((size_t)channels, 'c'),
                  .skip = floats((size_t)channels, 'c'),
                  .before = how == 0   ? NULL
                            : how == 1 ? floats(all, 'c')
                                       : after,
                  .after = after, .n = n, .channels = channels, .state = state, .ldx = channels + 2,
                  .lda = channels + 2, .ldbc = 2 * state, .ldo = channels + 1);
        }
}

/* Gated DeltaNet: at the start and later, states separate and in place. */
static void deltas(void) {
    static const struct {
        int n, k_heads, v_heads, k_dim, v_dim, taps;
    } c[] = {{1, 2, 4, 32, 32, 4},   {7, 1, 1, 5, 7, 2},   {40, 2, 6, 64, 40, 4},
             {3, 1, 2, 128, 128, 4}, {6, 1, 1, 200, 9, 3}, {2, 1, 1, 300, 3, 1}};
    static const char *const gates[] = {"gate",
                                        "gate, silu",
                                        "gate, softplus",
                                        "gate, linear",
                                        "gate, normal",
                                        "gate, softplus to base 2",
                                        "gate per head",
                                        "gate per head, silu",
                                        "gate per head, softplus",
                                        "gate per head, linear",
                                        "gate per head, normal",
                                        "gate per head, softplus to base 2"};
    for (int i = 0; i < 12; i++)
        CHECK(gates[i], gate, OP_GATE, .y = floats(6 * 100, 'f'), .g = floats(6 * 210, 'c'), .n = 6, .heads = 3,
              .dim = 30, .ldy = 100, .ldg = 210, .head_ldy = 31, .head_ldg = 70, .kind = (uint8_t)(i % 6),
              .per_head = i > 5);
    CHECK("gate, GELU", gate, OP_GATE, .y = floats(6 * 100, 'f'), .g = floats(6 * 210, 'c'), .n = 6, .heads = 3,
          .dim = 30, .ldy = 100, .ldg = 210, .head_ldy = 31, .head_ldg = 70, .kind = GATE_GELU_TANH);
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        /* no state before; a state; the same memory: with each rule, the last with both kinds of gates and doubled beta
         */
        for (int how = 0; how < 18; how++) {
            const int rule = how < 12 ? how / 3 : DELTA_CHANNELS,
                      decays = c[i].v_heads * (rule == DELTA_CHANNELS ? c[i].k_dim : 1);
            int n = c[i].n, keys = c[i].k_heads * c[i].k_dim, values = c[i].v_heads * c[i].v_dim,
                channels = 2 * keys + values;
            size_t kept = (size_t)((c[i].taps - 1) * channels), state = (size_t)(values * c[i].k_dim);
            float *after = floats(kept + 1, 'f'), *before = how % 3 == 0   ? NULL
                                                            : how % 3 == 1 ? floats(kept + 1, 'c')
                                                                           : after;
            char name[80];
            snprintf(name, sizeof name, "conv of %d channels, %d taps, n %d, %d", channels, c[i].taps, n, how);
            CHECK(name, conv, OP_CONV, .out = floats((size_t)(n * (channels + 2)), 'f'),
                  .x = floats((size_t)(n * (channels + 3)), 'c'), .w = floats((size_t)(c[i].taps * channels), 'c'),
                  .before = before, .after = after, .n = n, .channels = channels, .taps = c[i].taps,
                  .ldx = channels + 3, .ldo = channels + 2, .bias = rule ? floats((size_t)channels, 'c') : NULL,
                  .is_linear = rule == 1);
            /* with delays, that share a state; the last one without weights */
            for (int k = 0; k < 3 && rule == 1; k++) {
                const size_t past = (size_t)((c[i].taps + 2) * channels);
                float *late = floats(past, 'f'), *early = how % 3 == 0 ? NULL : how % 3 == 1 ? floats(past, 'c') : late;
                CHECK(name, conv, OP_CONV, .out = floats((size_t)(n * channels), 'f'),
                      .x = floats((size_t)(n * channels), 'c'),
                      .w = k < 2 ? floats((size_t)(c[i].taps * channels), 'c') : NULL, .before = early, .after = late,
                      .n = n, .channels = channels, .taps = k < 2 ? c[i].taps : 1, .ldx = channels, .ldo = channels,
                      .is_linear = true, .is_peek = k != 1, .delay = 2 - k, .past = c[i].taps + 2);
            }
            float *x = floats((size_t)(n * channels), 'c'), *ba = floats((size_t)(n * (c[i].v_heads + decays)), 'c'),
                  *rate = floats((size_t)c[i].v_heads, 'c');
            for (int h = 0; h < c[i].v_heads; h++) rate[h] = -expf(rate[h]);
            after = floats(state, 'f'), before = how % 3 == 0 ? NULL : how % 3 == 1 ? floats(state, 'c') : after;
            snprintf(name, sizeof name, "delta of %d/%d heads, %d x %d, n %d, %d", c[i].k_heads, c[i].v_heads,
                     c[i].k_dim, c[i].v_dim, n, how);
            CHECK(name, delta, OP_DELTA, .out = floats((size_t)(n * (values + 1)), 'f'), .q = x, .k = x + keys,
                  .v = x + 2 * keys, .b = ba, .a = ba + c[i].v_heads, .rate = rate, .dt = floats((size_t)decays, 'c'),
                  .before = before, .after = after, .n = n, .k_heads = c[i].k_heads, .v_heads = c[i].v_heads,
                  .k_dim = c[i].k_dim, .v_dim = c[i].v_dim, .ldx = channels, .ldg = c[i].v_heads + decays,
                  .ldo = values + 1, .skip = floats((size_t)c[i].v_heads, 'c'), .slope = 0.7f,
                  .bound = how < 12 ? 0 : -5, .doubles_beta = how >= 15, .rule = (uint8_t)rule,
                  .is_tiled = how % 3 == 2);
        }
}

static void linears(void) {
    static const struct {
        enum dtype t;
        int br, bc;
    } kinds[] = {{DT_F32, 0, 0},      {DT_BF16, 0, 0},    {DT_F16, 0, 0},
                 {DT_E4M3, 128, 128}, {DT_E4M3, 1, 4096}, {DT_E2M1, 1, 32}};
    static const int sizes[][3] = {{1, 64, 128},    {3, 70, 130},  {8, 200, 256},  {9, 200, 1100}, {65, 130, 384},
                                   {130, 300, 200}, {17, 40, 600}, {1, 300, 2100}, {1, 18, 4700}};
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            char name[80];
            int n = sizes[i][0], rows = sizes[i][1], cols = sizes[i][2];
            snprintf(name, sizeof name, "linear %s %d/%d  %d x %d x %d", dtype_name(kinds[k].t), kinds[k].br,
                     kinds[k].bc, n, rows, cols);
            CHECK(name, linear, OP_LINEAR, .y = floats((size_t)(n * (rows + 1)), 'f'),
                  .x = floats((size_t)(n * (cols + 4)), 'c'), .bias = i & 1 ? floats((size_t)rows, 'c') : NULL,
                  .w = matrix(rows, cols, kinds[k].t, kinds[k].br, kinds[k].bc), .n = n, .ldx = cols + 4,
                  .ldy = rows + 1, .accumulate = i % 3 == 1, .exact = i == 4);
        }
    /* heads of an absorbed MLA: views into a matrix whose block size does not divide the heads */
    for (int tr = 0; tr < 2; tr++)
        for (int n = 1; n < 100; n += n < 9 ? 8 : 40)
            CHECK(tr ? "linear, heads, transposed" : "linear, heads", linear, OP_LINEAR,
                  .y = floats((size_t)(n * 5 * 192), 'f'), .x = floats((size_t)(n * 5 * 192), 'c'),
                  .w = mat_rows(matrix(5 * 96, 192, DT_E4M3, 128, 128), 32, 96), .n = n, .ldx = 5 * 192, .ldy = 5 * 192,
                  .transposed = tr, .batch = 5, .batch_rows = 96, .batch_x = 192, .batch_y = 192);
}

/* The indexer's numbers are small integers, so sums do not depend on their order and many are equal; then attention
 * over a row's selection, and over all keys. */
static float *whole(size_t n, char type) {
    float *p = floats(n, type);
    for (size_t i = 0; i < n; i++) p[i] = (float)(int)p[i];
    return p;
}
static void choosers(void) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_E4M3};
    static const struct {
        int n, heads, dim, q0, topk;
    } c[] = {{1, 64, 128, 700, 256}, {20, 5, 40, 30, 33}, {7, 8, 32, 1300, 100}, {3, 2, 16, 0, 5}};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        for (int t = 0; t < 3; t++) {
            char name[80];
            int n = c[i].n, keys = op_seen(c[i].q0 + n - 1, 0, 1 << 20);
            snprintf(name, sizeof name, "select %s %d of %d", dtype_name(types[t]), c[i].topk, keys);
            struct kv_plane k = plane_new(keys + 1, 1, c[i].dim, types[t], 'c');
            for (int j = 0; j < keys * c[i].dim; j++) {
                float v = (float)((int)(rnd() % 5) - 2);
                uint16_t h = f32_to_bf16(v);
                if (types[t] == DT_F32) ((float *)k.data)[j] = v;
                if (types[t] == DT_BF16) ((uint16_t *)k.data)[j] = h;
                if (types[t] == DT_E4M3) ((uint8_t *)k.data)[j] = f32_to_e4m3(v), k.scale[j / c[i].dim] = 0.5f;
            }
            CHECK(name, select, OP_SELECT, .chosen = buf_new((size_t)(n * c[i].topk) * 4, 'i'),
                  .q = whole((size_t)(n * c[i].heads * c[i].dim), 'c'), .weight = whole((size_t)(n * c[i].heads), 'c'),
                  .k = k, .n = n, .heads = c[i].heads, .topk = c[i].topk, .ldq = c[i].heads * c[i].dim,
                  .q_pos0 = c[i].q0, .n_keys = keys, .scale = 0.25f);
            int dim = c[i].dim, heads = c[i].heads < 16 ? c[i].heads : 16;
            for (int chosen = 0; chosen < 2; chosen++) {
                snprintf(name, sizeof name, "attention %s over %s %d", dtype_name(types[t]),
                         chosen ? "chosen" : "all of", keys);
                struct kv_plane plane = plane_new(keys + 1, 1, dim, types[t], 'c');
                int32_t *list = chosen ? buf_new((size_t)(n * c[i].topk) * 4, 'c') : NULL;
                for (int r = 0; r < n && chosen; r++)
                    for (int j = 0, seen = op_seen(c[i].q0 + r, 0, keys); j < c[i].topk; j++)
                        list[r * c[i].topk + j] = j >= seen ? -1 : seen <= c[i].topk ? j : seen - c[i].topk + j;
                CHECK(name, attention, OP_ATTENTION, .out = floats((size_t)(n * heads * dim), 'f'),
                      .q = floats((size_t)(n * heads * dim), 'c'), .k = plane, .v = plane,
                      .sinks = chosen ? NULL : floats((size_t)heads, 'c'), .lse = floats((size_t)(n * heads), 'f'),
                      .chosen = list, .n_chosen = chosen ? c[i].topk : 0, .n = n, .n_heads = heads, .v_dim = dim,
                      .ldq = heads * dim, .ldo = heads * dim, .q_pos0 = c[i].q0, .n_keys = keys, .scale = 0.1f);
            }
        }
}

static void attentions(void) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_E4M3};
    for (int t = 0; t < 3; t++) {
        struct kv_plane p = plane_new(20, 3, 40, types[t], types[t] == DT_F32 ? 'f' : 'i');
        CHECK("kv_store", kv_store, OP_KV_STORE, .plane = p, .x = floats(7 * 130, 'c'), .row0 = 5, .n = 7, .ldx = 130);
        CHECK("kv_load", kv_load, OP_KV_LOAD, .plane = plane_new(20, 3, 40, types[t], 'c'), .out = floats(7 * 130, 'f'),
              .row0 = 5, .n = 7, .ldo = 130);
    }
    static const struct {
        int n, heads, kv, dim, v, q0, k0, keys, window, sinks;
    } c[] = {{5, 4, 2, 32, 32, 0, 0, 5, 0, 0},         {1, 16, 1, 72, 64, 300, 0, 301, 0, 0},
             {40, 4, 4, 64, 64, 10, 0, 50, 0, 0},      {70, 6, 2, 128, 128, 0, 0, 70, 0, 1},
             {33, 2, 2, 192, 128, 100, 0, 133, 50, 0}, {20, 4, 2, 64, 64, 5, 64, 40, 0, 0},
             {100, 4, 2, 64, 64, 30, 64, 70, 0, 0},    {17, 4, 4, 192, 128, 0, 4, 30, 0, 1},
             {140, 1, 1, 192, 128, 0, 0, 140, 0, 0},   {19, 8, 2, 96, 96, 30, 0, 90, 0, 0},
             {21, 4, 4, 80, 80, 200, 10, 210, 70, 1},  {68, 1, 1, 256, 256, 30, 0, 98, 0, 0},
             {33, 12, 4, 48, 32, 0, 0, 33, 0, 0},      {24, 3, 3, 36, 20, 9, 0, 33, 0, 1},
             {130, 2, 1, 128, 128, 0, 0, 130, 100, 0}, {3, 16, 2, 64, 64, 597, 0, 600, 0, 1},
             {1, 34, 1, 576, 512, 300, 0, 301, 0, 1},  {1, 24, 1, 576, 512, 900, 800, 101, 64, 0},
             {16, 3, 1, 576, 512, 60, 0, 76, 0, 1},    {1, 24, 2, 128, 128, 300, 0, 301, 0, 0},
             {17, 2, 1, 320, 256, 5, 0, 22, 0, 0},     {4, 4, 2, 64, 64, 20, 0, 24, 0, 0},
             {2, 40, 1, 288, 256, 150, 0, 152, 0, 0},  {3, 5, 1, 328, 256, 97, 0, 100, 0, 1},
             {1, 34, 1, 576, 512, 300, 0, 301, 0, 1}};
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++)
        for (int t = 0; t < 3; t++) {
            char name[80];
            snprintf(name, sizeof name, "attention %s n %d heads %d/%d dim %d/%d keys %d", dtype_name(types[t]), c[i].n,
                     c[i].heads, c[i].kv, c[i].dim, c[i].v, c[i].keys);
            int32_t *pos = NULL;
            if (i % 2) {
                pos = buf_new((size_t)c[i].n * 4, 'c');
                /* some in two stripes */
                for (int k = 0; k < c[i].n; k++) pos[k] = c[i].q0 + k + (i % 4 == 1 && k > c[i].n / 2 ? 70 : 0);
            }
            struct kv_plane k = plane_new(c[i].keys, c[i].kv, c[i].dim, types[t], 'c');
            struct kv_plane v =
                c[i].kv == 1 && c[i].dim > c[i].v ? k : plane_new(c[i].keys, c[i].kv, c[i].v, types[t], 'c');
            CHECK(name, attention, OP_ATTENTION, .out = floats((size_t)(c[i].n * c[i].heads * c[i].v), 'f'),
                  .q = floats((size_t)(c[i].n * c[i].heads * c[i].dim), 'c'), .k = k, .v = v,
                  .sinks = c[i].sinks ? floats((size_t)c[i].heads, 'c') : NULL,
                  .lse = floats((size_t)(c[i].n * c[i].heads), 'f'), .q_pos = pos, .n = c[i].n, .n_heads = c[i].heads,
                  .v_dim = c[i].v, .ldq = c[i].heads * c[i].dim, .ldo = c[i].heads * c[i].v, .q_pos0 = c[i].q0,
                  .k_pos0 = c[i].k0, .n_keys = c[i].keys, .window = c[i].window, .scale = 0.1f,
                  .softcap = i % 3 == 2 ? 0.5f : 0, .temperature_len = i % 3 == 2 || i % 7 == 3 ? c[i].keys / 2 : 0,
                  .chunk_keys = i % 4 == 2 ? 24 : 0,
                  .bias = i % 5 == 1 ? floats((size_t)(c[i].n * c[i].heads * 40), 'c') : NULL,
                  .extent = i % 5 == 1 ? 40 : 0);
        }
    choosers();
    float *lse = floats(15, 'f'), *lse2 = floats(15, 'c');
    lse[3] = lse2[7] = lse[9] = lse2[9] = -INFINITY;
    check("merge", OP_MERGE,
          &(union op_args){.merge = {.out = floats(5 * 70, 'f'),
                                     .lse = lse,
                                     .out2 = floats(5 * 80, 'c'),
                                     .lse2 = lse2,
                                     .n = 5,
                                     .heads = 3,
                                     .dim = 20,
                                     .ldo = 70,
                                     .ldo2 = 80}},
          ref_merge);
}

/* Keys and values of MLA's heads: formats with and without tiles, heads that block sizes do not divide, odd parts, each
 * cache type. */
static void expansions(void) {
    static const struct {
        enum dtype t, cache;
        int br, bc, n, row0, heads, nope, v_dim, lora, rope;
    } c[] = {{DT_E4M3, DT_BF16, 128, 128, 70, 3, 3, 128, 128, 256, 64},
             {DT_E4M3, DT_E4M3, 128, 128, 33, 0, 5, 40, 24, 130, 16},
             {DT_BF16, DT_F32, 0, 0, 150, 1, 2, 20, 200, 96, 8},
             {DT_BF16, DT_BF16, 0, 0, 25, 0, 4, 16, 16, 44, 6},
             {DT_E2M1, DT_BF16, 1, 32, 40, 2, 2, 32, 64, 64, 16},
             {DT_F16, DT_E4M3, 0, 0, 30, 1, 3, 24, 40, 64, 8},
             {DT_BF16, DT_F32, 0, 0, 26, 0, 3, 15, 17, 40, 8}};
    double wide = tol;
    tol = 1.0 / 128;
    for (size_t i = 0; i < sizeof c / sizeof c[0]; i++) {
        char name[80];
        size_t rows = (size_t)(c[i].n * c[i].heads);
        snprintf(name, sizeof name, "expand %s of %s, %d x %d heads %d/%d", dtype_name(c[i].t), dtype_name(c[i].cache),
                 c[i].n, c[i].heads, c[i].nope, c[i].v_dim);
        CHECK(name, expand, OP_EXPAND, .k = buf_new(rows * (size_t)(c[i].nope + c[i].rope) * 2, 'h'),
              .v = buf_new(rows * (size_t)c[i].v_dim * 2, 'h'),
              .latent = plane_new(c[i].row0 + c[i].n, 1, c[i].lora + c[i].rope, c[i].cache, 'c'),
              .w = matrix(c[i].heads * (c[i].nope + c[i].v_dim), c[i].lora, c[i].t, c[i].br, c[i].bc),
              .row0 = c[i].row0, .n = c[i].n, .heads = c[i].heads, .nope = c[i].nope, .v_dim = c[i].v_dim);
    }
    tol = wide;
}

static void mixtures(void) {
    for (int i = 0; i < 8; i++) {
        int groups = i & 2 ? 4 : 1;
        CHECK("route", route, OP_ROUTE, .ids = buf_new(40 * 6 * 4, 'i'), .weights = floats(40 * 6, 'f'),
              .logits = floats(40 * 64, 'c'), .bias = i & 1 ? floats(64, 'c') : NULL,
              .expert_scale = i & 2 ? floats(64, 'c') : NULL, .n_always = i == 1 ? 2 : 0, .n = 40, .n_experts = 64,
              .topk = 6, .n_group = groups, .topk_group = 2, .score = i & 4 ? SCORE_SIGMOID : SCORE_SOFTMAX,
              .group_top2 = i & 1, .group_zero = (i & 6) == 6, .norm = i & 4, .scale = 2.5f);
    }
    for (int n = 2; n < 40; n += 19)
        CHECK("route of each group", route, OP_ROUTE, .ids = buf_new((size_t)(n * 8) * 4, 'i'),
              .weights = floats((size_t)(n * 8), 'f'), .logits = floats((size_t)(n * 64), 'c'), .n = n, .n_experts = 64,
              .topk = 8, .n_group = 4, .topk_group = 4, .group_each = true, .score = SCORE_SOFTMAX, .norm = true,
              .scale = 1);
    CHECK("route by logits", route, OP_ROUTE, .ids = buf_new(40 * 6 * 4, 'i'), .weights = floats(40 * 6, 'f'),
          .logits = floats(40 * 64, 'c'), .bias = floats(64, 'c'), .n = 40, .n_experts = 64, .topk = 6, .n_group = 1,
          .topk_group = 1, .score = SCORE_SIGMOID_BY_LOGIT, .scale = 1);
    for (int n = 2; n < 100; n = n * 4 + 1)
        CHECK("route, mixer", route, OP_ROUTE, .ids = buf_new(40 * 2 * 4, 'i'), .weights = floats(40 * 2, 'f'),
              .logits = floats((size_t)(40 * n), 'c'), .n = 40, .n_experts = n, .topk = 2, .n_group = 1,
              .topk_group = 1, .score = SCORE_MIXER, .scale = 1, .jitter = 0.1f);
    for (int n = 1; n < 50; n += 16)
        CHECK("route, idle experts", route, OP_ROUTE, .ids = buf_new((size_t)(n * 6) * 4, 'i'),
              .weights = floats((size_t)(n * 6), 'f'), .logits = floats((size_t)(n * 60), 'c'), .bias = floats(60, 'c'),
              .idle = floats((size_t)n, 'f'), .n = n, .n_experts = 40, .n_idle = 20, .topk = 6, .score = SCORE_SOFTMAX,
              .scale = 6);
    static const char *const others[][2] = {{"ffn, turned", "experts, turned"},
                                            {"ffn, mxfp4 in turns", "experts, mxfp4 in turns"},
                                            {"ffn, gate and up turned", "experts, gate and up turned"},
                                            {"ffn, no up", "experts, no up"},
                                            {"ffn, capped", "experts, capped"},
                                            {"ffn, exact GELU", "experts, exact GELU"},
                                            {"ffn, xIELU", "experts, xIELU"},
                                            {"ffn, ungated, exact GELU", "experts, ungated, exact GELU"},
                                            {"ffn, ungated GELU", "experts, ungated GELU"}};
    for (int kind = 0; kind < 9; kind++) {
        for (int n = 1; n < 100; n = n * 4 + 3)
            CHECK(others[kind][0], ffn, OP_FFN, .y = floats((size_t)(n * 192), 'f'),
                  .x = floats((size_t)(n * 192), 'c'), .expert = expert_other(192, 160, kind), .n = n, .hidden = 192);
        struct expert other[8];
        for (int i = 0; i < 8; i++) other[i] = expert_other(192, 160, kind);
        CHECK(others[kind][1], experts, OP_EXPERTS, .y = floats(60 * 192, 'f'), .x = floats(60 * 192, 'c'),
              .ids = choices(60, 2, 8), .weights = floats(120, 'c'), .experts = other, .n = 60, .topk = 2,
              .n_experts = 8, .hidden = 192);
    }
    struct expert table[8], shared;
    for (int n = 3; n < 30; n += 23) { /* few, and more than FEW */
        shared = expert_new(256, 128);
        for (int i = 0; i < 8; i++) table[i] = expert_new(256, 128);
        CHECK(n > FEW ? "experts, shared and routed" : "experts, shared and routed, few tokens", experts, OP_EXPERTS,
              .y = floats((size_t)(n * 256), 'f'), .x = floats((size_t)(n * 256), 'c'), .ids = choices(n, 2, 8),
              .weights = floats((size_t)(2 * n), 'c'), .experts = table, .shared = &shared,
              .shared_weight = floats((size_t)n, 'c'), .n = n, .topk = 2, .n_experts = 8, .hidden = 256);
    }
    for (int n = 2; n < 60; n += 50) {
        int32_t *ids = choices(n, 2, 8);
        for (int i = 0; i < 8; i++) table[i] = expert_new(256, 128);
        ids[1] = -1;
        CHECK(n > FEW ? "experts, by choice" : "experts, by choice, few tokens", experts, OP_EXPERTS,
              .y = floats((size_t)(n * 2 * 256), 'f'), .x = floats((size_t)(n * 256), 'c'), .ids = ids,
              .weights = floats((size_t)(2 * n), 'c'), .experts = table, .n = n, .topk = 2, .n_experts = 8,
              .hidden = 256, .by_choice = true);
    }
    for (int n = 1; n < 80; n = n * 5 + 2) {
        static const enum dtype types[] = {DT_E4M3, DT_BF16, DT_F32, DT_Q4_0};
        const int i = n % 4;
        CHECK("values", values, OP_VALUES, .y = floats((size_t)(n * 101), 'f'), .x = floats((size_t)(n * 195), 'c'),
              .ids = choices(n, 3, 8), .weights = floats((size_t)(3 * n), 'c'),
              .w = matrix(8 * 96, 192, types[i], i ? 0 : 32, i ? 0 : 64), .n = n, .topk = 3, .n_experts = 8, .dim = 96,
              .ldx = 195, .ldy = 101);
    }
    shared = expert_new(256, 384);
    CHECK("experts, dense", experts, OP_EXPERTS, .y = floats(70 * 256, 'f'), .x = floats(70 * 256, 'c'),
          .shared = &shared, .n = 70, .hidden = 256);
    for (int half = 0; half < 2; half++) {
        int32_t *ids = choices(300, 4, 16), *token = buf_new(1200 * 4, 'i');
        check("sort", OP_SORT,
              &(union op_args){.sort = {.offset = buf_new((half ? 9 : 17) * 4, 'i'),
                                        .token = token,
                                        .weight = floats(1200, 'f'),
                                        .ids = ids,
                                        .weights = floats(1200, 'c'),
                                        .n = 300,
                                        .topk = 4,
                                        .first = half ? 5 : 0,
                                        .last = half ? 13 : 16}},
              ref_sort);
    }
    int32_t *index = buf_new(9 * 4, 'c');
    for (int i = 0; i < 9; i++) index[i] = (i * 5 + 2) % 17;
    check(
        "gather", OP_GATHER,
        &(union op_args){
            .gather =
                {.out = floats(9 * 33, 'f'), .x = floats(17 * 40, 'c'), .index = index, .n = 9, .dim = 33, .ldx = 40}},
        ref_gather);
    int32_t *ids = buf_new(201 * 4, 'c'), *map = buf_new(64 * 4, 'c'); /* ids outside the map, too */
    for (int i = 0; i < 201; i++) ids[i] = i % 97 - 12;
    ids[200] = INT32_MIN, ids[199] = INT32_MAX;
    for (int i = 0; i < 64; i++) map[i] = i % 3 ? i / 2 : -1;
    check("remap", OP_REMAP,
          &(union op_args){.remap = {.out = buf_new(201 * 4, 'i'), .ids = ids, .map = map, .n = 201, .n_map = 64}},
          ref_remap);
    for (int m = 1; m < 9000; m = m * 9 + 2) { /* ties, the largest at the end, NaN, rows that are not aligned */
        float *logits = floats((size_t)(4 * (m + 1)), 'c');
        for (int i = 0; i < m; i++) logits[i] = floorf(logits[i]);
        logits[m + 1 + m - 1] = 30, logits[2 * (m + 1) + m / 2] = NAN;
        for (int i = 0; i < m; i++) logits[3 * (m + 1) + i] = -INFINITY;
        char name[40];
        snprintf(name, sizeof name, "top of %d", m);
        check(name, OP_TOP,
              &(union op_args){.top = {.top = buf_new(16, 'i'), .x = logits, .n = 4, .m = m, .ldx = m + 1}}, ref_top);
    }
    for (int w = 0; w < 2; w++) {
        index = buf_new(9 * 4, 'c');
        for (int i = 0; i < 9; i++) index[i] = (i * 5 + 2) % 17;
        check("scatter_add", OP_SCATTER_ADD,
              &(union op_args){.scatter_add = {.y = floats(17 * 40, 'f'),
                                               .x = floats(9 * 33, 'c'),
                                               .index = index,
                                               .weight = w ? floats(9, 'c') : NULL,
                                               .n = 9,
                                               .dim = 33,
                                               .ldy = 40}},
              ref_scatter);
    }
    check("scatter_add, rows in order", OP_SCATTER_ADD,
          &(union op_args){
              .scatter_add = {.y = floats(9 * 40, 'f'), .x = floats(9 * 33, 'c'), .n = 9, .dim = 33, .ldy = 40}},
          ref_scatter);
    for (int n = 1; n < 200; n = n * 8 + 1)
        check("ffn", OP_FFN,
              &(union op_args){.ffn = {.y = floats((size_t)n * 256, 'f'),
                                       .x = floats((size_t)n * 256, 'c'),
                                       .expert = expert_new(256, 136),
                                       .n = n,
                                       .hidden = 256}},
              ref_ffn);
}

/* Random shapes, and buffers and rows at addresses that wide loads cannot use. */
static int within(int least, int most) { return least + (int)(rnd() % (uint32_t)(most - least + 1)); }
static void random_linear(char *name, size_t size) {
    static const enum dtype kinds[] = {DT_F32, DT_BF16, DT_F16, DT_E4M3, DT_E4M3, DT_E2M1};
    static const int blocks[][2] = {{0, 0}, {0, 0}, {0, 0}, {128, 128}, {1, 4096}, {1, 32}};
    int k = within(0, 5), n = within(0, 2) ? within(1, 20) : within(20, 140), rows = within(1, 150),
        cols = within(1, 70) * within(1, 5), off = within(0, 3);
    int transposed = !within(0, 5), batch = within(0, 3) ? 1 : within(2, 3), head = (rows + batch - 1) / batch,
        pad = within(0, 5);
    rows = head * batch;
    if (kinds[k] == DT_E2M1) cols += cols % 2;
    int in = transposed ? head : cols, out = transposed ? cols : head, ldx = in * batch + pad,
        ldy = out * batch + within(0, 3);
    struct mat w = matrix(rows, cols, kinds[k], blocks[k][0], blocks[k][1]);
    snprintf(name, size, "linear %s %d x %d x %d, batch %d%s", dtype_name(kinds[k]), n, head, cols, batch,
             transposed ? ", transposed" : "");
    CHECK(name, linear, OP_LINEAR, .y = floats((size_t)(n * ldy + off), 'f') + off,
          .x = floats((size_t)(n * ldx + off), 'c') + off,
          .bias = batch == 1 && !transposed && within(0, 1) ? floats((size_t)out, 'c') : NULL,
          .w = batch > 1 ? mat_rows(w, 0, head) : w, .n = n, .ldx = ldx, .ldy = ldy, .accumulate = within(0, 2) == 0,
          .transposed = transposed, .exact = within(0, 4) == 0, .batch = batch, .batch_rows = head, .batch_x = in,
          .batch_y = out);
}
static void random_attention(char *name, size_t size) {
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_E4M3};
    enum dtype type = types[within(0, 2)];
    int kv = within(1, 3), heads = kv * within(1, 9), n = within(0, 1) ? within(1, 4) : within(5, 90),
        keys = within(0, 2) ? within(1, 90) : within(200, 700 / kv);
    int dim = within(0, 1) ? within(1, 20) * 8 : within(1, 200), v_dim = within(0, 2) ? dim : within(1, dim),
        q0 = within(0, keys), k0 = within(0, 30);
    if ((double)n * heads * keys * dim > 4e6) n = 1 + (int)(4e6 / ((double)heads * keys * dim)), n = n < 1 ? 1 : n;
    bool one = kv == 1 && v_dim <= dim && within(0, 1);
    int32_t *pos = within(0, 1) ? buf_new((size_t)n * 4, 'c') : NULL;
    for (int i = 0; pos && i < n; i++) pos[i] = within(0, keys + k0);
    struct kv_plane k = plane_new(keys, kv, dim, type, 'c'),
                    v = one ? k : plane_new(keys, kv, v_dim + within(0, 8), type, 'c');
    int off = within(0, 3), ldq = heads * dim + within(0, 3), ldo = heads * v_dim + within(0, 3);
    snprintf(name, size, "attention %s n %d heads %d/%d dim %d/%d keys %d", dtype_name(type), n, heads, kv, dim, v_dim,
             keys);
    CHECK(name, attention, OP_ATTENTION, .out = floats((size_t)(n * ldo + off), 'f') + off,
          .q = floats((size_t)(n * ldq + off), 'c') + off, .k = k, .v = v,
          .sinks = within(0, 2) ? NULL : floats((size_t)heads, 'c'),
          .lse = within(0, 1) ? floats((size_t)(n * heads), 'f') : NULL, .q_pos = pos, .n = n, .n_heads = heads,
          .v_dim = v_dim, .ldq = ldq, .ldo = ldo, .q_pos0 = q0, .k_pos0 = k0, .n_keys = keys,
          .window = within(0, 2) ? 0 : within(1, keys), .scale = 1 / sqrtf((float)dim));
}

int main(int argc, char **argv) {
    struct error e = {0};
    struct pool *pool = NULL;
    if (argc > 3 && strchr(argv[argc - 1], '/')) third = atoi(argv[--argc]);
    if (argc < 3 || argc > 4 || gpu_spec_parse(&spec, argv[1], &e) || spec.n < 1)
        die("usage: conform LIST TOLERANCE [SEED | company | math | joined | rounding] [0/3 | 1/3 | 2/3]", &e);
    if (spec.level && !cpu_level_has((enum cpu_level)(spec.level - 1))) {
        printf("SKIPPED: this CPU has no %s\n", cpu_level_name((enum cpu_level)(spec.level - 1)));
        return 77;
    }
    if (test_env_read()) die("HEARTH_LIMITS", &e);
    if (gpu_open(&g, &spec, 0, &e)) {
        printf("SKIPPED: %s\n", e.text);
        return 77;
    }
    tol = atof(argv[2]);
    if (gpu_stream_open(g, &stream, "test", false, NULL, &e) || pool_open(&pool, 1, false, &e)) die("open", &e);
    if (!(cpu = cpu_exec_open(pool, CPU_SCALAR, &e))) die("cpu", &e);
    bool math = argc > 3 && !strcmp(argv[3], "math"), some = argc > 3 && !math && strcmp(argv[3], "company") != 0;
    seed = some ? strtoull(argv[3], NULL, 10) : 1;
    printf("%s: %s, seed %llu, tolerance %.0e of the largest value\n", gpu_info(g)->backend, gpu_info(g)->name,
           (unsigned long long)seed, tol);
    if (argc > 3 && !strcmp(argv[3], "joined")) {
        joined(spec.is_emulated ? 1000 : 60);
    } else if (argc > 3 && !strcmp(argv[3], "rounding")) {
        rounding();
    } else if (argc < 4 || math) {
        if (!math) elementwise(), deltas(), scans(), compressed();
        if (!math || spec.math != GPU_MATH_FP8) blocks(), integers(), orders();
        if (!math) drafts(), resident(), few_blocks(); /* too few tokens for the tensor cores */
        linears();
        if (!math || spec.math != GPU_MATH_FP8) attentions();
        expansions();
        mixtures();
        tiles();
        groups();
        groups_apart();
        joined(spec.is_emulated ? 100 : math ? 3 : 10);
        if (spec.math != GPU_MATH_FP8) recorded(DT_BF16, 0), recorded(DT_F32, 100), recorded(DT_E4M3, 0);
        if (spec.math != GPU_MATH_FP8) shared_caches();
        if (spec.math != GPU_MATH_FP8)
            recorded_choice(1), recorded_choice(5), recorded_window(1), recorded_window(5), recorded_rule(1),
                recorded_rule(3);
        if (!math) passed();
    } else if (!some) {
        companies();
    } else {
        char name[120];
        for (int i = 0; i < 40; i++) i % 2 ? random_linear(name, sizeof name) : random_attention(name, sizeof name);
    }
    gpu_stream_close(&stream);
    cpu_exec_close(&cpu);
    pool_close(&pool);
    gpu_close(&g);
    printf("%d cases, %d failed\n", ran, failures);
    return failures != 0;
}
