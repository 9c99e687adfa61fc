#pragma once
/* A case of conform.c: random inputs in host buffers with a mirror on the device, and an operation run on both. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/minifloat.h"
#include "base/test_limits.h"
#include "cpu/cpu.h"
#include "cpu/pool.h"
#include "gpu/gpu.h"
#include "gpu/op.h"
#include "test/gpu/conform_bytes.h"

/* Host buffers of a case, each with a mirror on the device. Pointers in the operation's arguments point into them. */
enum { MAX_BUFS = 80 };
struct buffer {
    char *host, *got;
    void *dev;
    size_t size;
    char type; /* f: floats within tol; h: the same in BF16; i: exact; t: exact up to the case's limit; c: constant */
};
static struct buffer bufs[MAX_BUFS];
static int n_bufs, failures, ran;
static struct gpu *g;
static struct gpu_stream *stream;
static struct exec *cpu;
static struct gpu_spec spec;
static double tol;
static bool shows_rms; /* print the relative error of the results as root mean square, too */
/* 0 to 2: a third of the cases whose names differ in numbers only, and the first of each such list; -1: all */
static int third = -1;
static uint64_t seed;

static uint32_t rnd(void) {
    seed = seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(seed >> 33);
}
static float rnd_float(void) { return (float)((int)(rnd() % 20001) - 10000) / 5000.0f; }

static void die(const char *what, const struct error *e) {
    fprintf(stderr, "%s: %s\n", what, e ? e->text : "");
    exit(1);
}
static void *buf_new(size_t size, char type) {
    struct buffer *b = &bufs[n_bufs++];
    if (n_bufs > MAX_BUFS) die("too many buffers", NULL);
    *b = (struct buffer){.host = calloc(1, size), .got = calloc(1, size), .size = size, .type = type};
    return b->host;
}
static float *floats(size_t n, char type) {
    float *p = buf_new(n * 4, type);
    for (size_t i = 0; i < n; i++) p[i] = rnd_float();
    return p;
}
/* A GGUF block of random codes, with scales that keep weights near 1. */
static void block_scales(uint8_t *b, enum dtype t) {
    static const struct {
        uint8_t dtype, at[2];
        float reach;
    } halves[] = {{DT_Q8_0, {0, 0}, 127},
                  {DT_Q4_0, {0, 0}, 8},
                  {DT_IQ4_NL, {0, 0}, 127},
                  {DT_IQ4_XS, {0, 0}, 31 * 127},
                  {DT_Q4_K, {0, 2}, 63 * 15},
                  {DT_Q5_K, {0, 2}, 63 * 31},
                  {DT_Q6_K, {208, 208}, 127 * 32},
                  {DT_Q4_1, {0, 2}, 15},
                  {DT_Q5_0, {0, 0}, 16},
                  {DT_Q5_1, {0, 2}, 31},
                  {DT_Q2_K, {80, 82}, 45},
                  {DT_Q3_K, {108, 108}, 128},
                  {DT_IQ1_S, {0, 0}, 17},
                  {DT_IQ2_XXS, {0, 0}, 166},
                  {DT_IQ2_XS, {0, 0}, 166},
                  {DT_IQ2_S, {0, 0}, 166},
                  {DT_IQ3_XXS, {0, 0}, 480},
                  {DT_IQ3_S, {0, 0}, 465},
                  {DT_TQ1_0, {52, 52}, 1},
                  {DT_TQ2_0, {64, 64}, 2},
                  {DT_Q1_0, {0, 0}, 1},
                  {DT_Q2_0, {0, 0}, 2},
                  {DT_Q8_A, {0, 2}, 255}};
    const uint16_t tenth = f32_to_f16(0.06f);
    /* a float16 in four words */
    for (int k = 0; k < 4 && t == DT_IQ1_M; k++)
        b[49 + 2 * k] = (uint8_t)((b[49 + 2 * k] & 15) | (tenth >> 4 * k & 15) << 4);
    /* scales of ik_llama.cpp's formats that keep weights near those of a row's scale alone */
    for (int k = 0; k < 8 && (t == DT_IQ4_KS || t == DT_IQ5_KS); k++) b[k] = (uint8_t)(124 + rnd() % 8);
    for (int k = 0; k < 4 && t == DT_NVFP4; k++) b[k] = (uint8_t)(0x28 + rnd() % 16);
    if (t == DT_MXFP4) b[0] = (uint8_t)(124 + rnd() % 4);
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++)
        for (int k = 0; k < 2 && halves[i].dtype == t; k++) {
            uint16_t h = f32_to_f16((0.5f + fabsf(rnd_float()) / 4) / halves[i].reach);
            memcpy(b + halves[i].at[k], &h, 2);
        }
}
static struct mat matrix(int rows, int cols, enum dtype t, int br, int bc) {
    struct mat m = {.stride = dtype_bytes(t, (size_t)cols),
                    .rows = rows,
                    .cols = cols,
                    .block_rows = br,
                    .block_cols = bc,
                    .row_step = 1,
                    .dtype = (uint8_t)t,
                    .scale_dtype = DT_F32};
    uint8_t *p = buf_new(m.stride * (size_t)rows, 'c');
    for (size_t i = 0; i < m.stride * (size_t)rows; i++) {
        p[i] = (uint8_t)rnd();
        if (t == DT_E4M3 && (p[i] & 0x7f) == 0x7f) p[i] = 0;
        /* near 1; subnormals come from the scale */
        if (t == DT_E4M3) p[i] = (uint8_t)((p[i] & 0x8f) | (0x30 + (p[i] & 0x10)));
    }
    for (size_t i = 0; i < (size_t)rows * (size_t)cols; i++) {
        float v = rnd_float();
        if (t == DT_F32) memcpy(p + 4 * i, &v, 4);
        uint16_t h = t == DT_BF16 ? f32_to_bf16(v) : f32_to_f16(v);
        if (t == DT_BF16 || t == DT_F16) memcpy(p + 2 * i, &h, 2);
    }
    for (size_t i = 0; t >= DT_Q8_0 && i < m.stride * (size_t)rows; i += dtype_bytes(t, 1)) block_scales(p + i, t);
    m.data = p;
    if (br) {
        m.scale_stride = (cols + bc - 1) / bc;
        size_t n = (size_t)m.scale_stride * (size_t)((rows + br - 1) / br);
        float *s = floats(n, 'c');
        for (size_t i = 0; i < n; i++) s[i] = (0.01f + fabsf(s[i]) * 0.02f) * (i % 3 == 1 ? -1 : 1);
        m.scale = s;
    }
    return m;
}
static int32_t *choices(int n, int topk, int experts) {
    int32_t *ids = buf_new((size_t)(n * topk) * 4, 'c');
    for (int t = 0; t < n; t++)
        for (int k = 0; k < topk; k++)
            ids[t * topk + k] = (int32_t)((rnd() % 3 + (uint32_t)(k * experts / topk)) % (uint32_t)experts);
    return ids;
}
static struct expert expert_new(int hidden, int inter) {
    return (struct expert){matrix(inter, hidden, DT_E4M3, 128, 128), matrix(inter, hidden, DT_E4M3, 128, 128),
                           matrix(hidden, inter, DT_E4M3, 128, 128)};
}
/* BF16 with a transposed down matrix (0), MXFP4 with interleaved gate and up rows, biases and limits (1), BF16 with all
 * matrices transposed (2), BF16 without up and with squared ReLU (3), BF16 with caps (4). */
static struct expert expert_other(int hidden, int inter, int kind) {
    if (kind == 3)
        return (struct expert){.gate = matrix(inter, hidden, DT_BF16, 0, 0),
                               .down = matrix(hidden, inter, DT_BF16, 0, 0),
                               .gate_bias = floats((size_t)inter, 'c'),
                               .glu = {.is_relu = true}};
    if (kind == 7 || kind == 8)
        return (struct expert){.gate = matrix(inter, hidden, DT_BF16, 0, 0),
                               .down = matrix(hidden, inter, DT_BF16, 0, 0),
                               .gate_bias = floats((size_t)inter, 'c'),
                               .glu = {.is_erf = kind == 7,
                                       .alpha = kind == 7 ? 0 : 1.5957691f,
                                       .cubic = kind == 7 ? 0 : 0.0713548f,
                                       .is_ungated = true}};
    if (kind == 6)
        return (struct expert){.gate = matrix(inter, hidden, DT_BF16, 0, 0),
                               .down = matrix(hidden, inter, DT_BF16, 0, 0),
                               .glu = {.xielu_p = 0.8f, .xielu_n = 1.25f, .xielu_beta = 0.5f}};
    if (kind == 5)
        return (struct expert){matrix(inter, hidden, DT_BF16, 0, 0), matrix(inter, hidden, DT_BF16, 0, 0),
                               matrix(hidden, inter, DT_BF16, 0, 0), .glu = {.is_erf = true}};
    if (kind == 4)
        return (struct expert){matrix(inter, hidden, DT_BF16, 0, 0), matrix(inter, hidden, DT_BF16, 0, 0),
                               matrix(hidden, inter, DT_BF16, 0, 0), .glu = {.gate_cap = 0.7f, .up_cap = 0.4f}};
    if (kind == 2)
        return (struct expert){matrix(hidden, inter, DT_BF16, 0, 0), matrix(hidden, inter, DT_BF16, 0, 0),
                               matrix(inter, hidden, DT_BF16, 0, 0), .is_transposed = true, .gate_up_transposed = true};
    if (!kind)
        return (struct expert){matrix(inter, hidden, DT_BF16, 0, 0), matrix(inter, hidden, DT_BF16, 0, 0),
                               matrix(inter, hidden, DT_BF16, 0, 0), .is_transposed = true};
    struct expert e = {.gate = matrix(2 * inter, hidden, DT_E2M1, 1, 32),
                       .down = matrix(hidden, inter, DT_E2M1, 1, 32),
                       .gate_bias = floats((size_t)inter, 'c'),
                       .up_bias = floats((size_t)inter, 'c'),
                       .down_bias = floats((size_t)hidden, 'c'),
                       .glu = {.limit = 0.7f, .alpha = 1.702f, .shift = 1, .cubic = 0.07f}};
    e.up = e.gate;
    e.up.data = (const uint8_t *)e.up.data + e.up.stride;
    e.gate.rows = e.up.rows = inter, e.gate.row_step = e.up.row_step = 2, e.up.row0 = 1;
    e.gate.stride *= 2, e.up.stride *= 2;
    return e;
}
static struct kv_plane plane_new(int rows, int heads, int dim, enum dtype t, char type) {
    size_t n = (size_t)rows * (size_t)heads * (size_t)dim;
    struct kv_plane p = {.heads = heads, .dim = dim, .dtype = (uint8_t)t};
    p.data = buf_new(dtype_bytes(t, n), type);
    if (t == DT_E4M3) {
        p.scale = floats((size_t)rows * (size_t)heads, type == 'c' ? 'c' : 'f');
        for (int i = 0; i < rows * heads; i++) p.scale[i] = 0.01f + fabsf(p.scale[i]) * 0.01f;
    }
    for (size_t i = 0; i < n; i++) {
        float v = rnd_float();
        uint16_t h = f32_to_bf16(v);
        if (t == DT_F32) memcpy((char *)p.data + 4 * i, &v, 4);
        if (t == DT_BF16) memcpy((char *)p.data + 2 * i, &h, 2);
        if (t == DT_E4M3) ((uint8_t *)p.data)[i] = f32_to_e4m3(v * 50);
    }
    return p;
}

/* All codes of a type, each with a scale that makes it 1 or -1, so that no code is hidden by a larger one. Row r has
 * code r in every column, and NaN where the code is one. */
static struct mat codes(int cols, enum dtype t, int bc) {
    struct mat m = matrix(t == DT_E4M3 ? 256 : 16, cols, t, 1, bc);
    uint8_t *p = (uint8_t *)m.data;
    for (int r = 0; r < m.rows; r++) {
        /* CPU kernels never get a NaN (weights/nan_scan.h) */
        int code = spec.is_emulated && t == DT_E4M3 && r % 128 == 127 ? r - 1 : r;
        memset(p + (size_t)r * m.stride, t == DT_E4M3 ? code : r * 17, m.stride);
        float v = t == DT_E4M3 ? e4m3_to_f32((uint8_t)code) : e2m1_to_f32((uint8_t)r),
              *s = (float *)m.scale + r * m.scale_stride;
        for (int c = 0; c < m.scale_stride; c++) s[c] = v != 0 && isfinite(v) ? 1 / fabsf(v) : 1;
    }
    return m;
}

static int to_device(void *ctx, void **p, size_t bytes, enum visit_kind kind) {
    for (int i = 0; i < n_bufs; i++)
        if ((char *)*p >= bufs[i].host && (char *)*p < bufs[i].host + bufs[i].size) {
            if ((size_t)((char *)*p - bufs[i].host) + bytes > bufs[i].size) {
                fprintf(stderr, "the visitor says %zu bytes, the buffer has %zu\n", bytes, bufs[i].size);
                return 1;
            }
            *p = (char *)bufs[i].dev + ((char *)*p - bufs[i].host);
            return 0;
        }
    fprintf(stderr, "a pointer outside the buffers\n");
    return 1;
}
static void expert_to_device(struct expert *x) {
    if (op_visit_expert(x, to_device, NULL)) die("expert", NULL);
}

static double number_at(const char *p, char type, size_t i) {
    return type == 'h' ? (double)bf16_to_f32(((const uint16_t *)p)[i]) : (double)((const float *)p)[i];
}

static bool left_out(const char *name) {
    enum { LISTS = 512 };
    static uint64_t seen[LISTS];
    static int n_seen;
    const uint64_t list = hash64(name, strcspn(name, "0123456789"), 0);
    int i = 0;
    while (i < n_seen && seen[i] != list) i++;
    if (i == n_seen && n_seen < LISTS) {
        seen[n_seen++] = list;
        return false;
    }
    return third >= 0 && hash64(name, strlen(name), 0) % 3 != (uint64_t)third;
}
static void bufs_free(void) {
    for (int i = 0; i < n_bufs; i++) {
        gpu_free(g, bufs[i].dev);
        free(bufs[i].host);
        free(bufs[i].got);
    }
    n_bufs = 0;
}

/* Bytes' error is a few times as much through an expert's three products. */
static double tol_of(enum op_code code, const union op_args *a) {
    const enum cpu_level level = spec.level ? (enum cpu_level)(spec.level - 1) : cpu_level_best();
    return spec.is_emulated && takes_bytes(level, code, a) ? fmax(tol, code == OP_LINEAR ? 1e-2 : 5e-2) : tol;
}
/* Runs `a` on the device and compares everything with what `reference` has left in the host buffers. */
static void check(const char *name, enum op_code code, const union op_args *a,
                  void (*reference)(const union op_args *)) {
    struct error e = {0};
    if (left_out(name)) {
        bufs_free();
        return;
    }
    union op_args d;
    struct expert table[64], shared;
    memcpy(&d, a, op_size(code));
    for (int i = 0; i < n_bufs; i++) {
        if (gpu_alloc(g, &bufs[i].dev, bufs[i].size, &e)) die(name, &e);
        gpu_copy(stream, bufs[i].dev, bufs[i].host, bufs[i].size, GPU_H2D);
    }
    if (op_visit(code, &d, to_device, NULL)) failures++;
    if (code == OP_EXPERTS) {
        for (int i = 0; i < d.experts.n_experts; i++) {
            table[i] = d.experts.experts[i];
            expert_to_device(&table[i]);
        }
        if (d.experts.experts) d.experts.experts = table;
        if (d.experts.shared) {
            shared = *d.experts.shared;
            expert_to_device(&shared);
            d.experts.shared = &shared;
        }
    }
    op_run(gpu_stream_exec(stream), code, &d);
    for (int i = 0; i < n_bufs; i++) gpu_copy(stream, bufs[i].got, bufs[i].dev, bufs[i].size, GPU_D2H);
    if (gpu_stream_sync(stream)) {
        gpu_error(g, &e);
        fprintf(stderr, "FAIL %s: %s\n", name, e.text);
        failures++;
        if (gpu_clear(g, &e)) die("clear", &e);
    }
    reference(a);
    double worst = 0, off = 0, size = 0;
    bool ok = true;
    for (int i = 0; i < n_bufs; i++) {
        struct buffer *b = &bufs[i];
        if (b->type == 'f' || b->type == 'h') {
            double top = 0;
            size_t n = b->size / (b->type == 'h' ? 2 : 4);
            for (size_t k = 0; k < n; k++)
                if (isfinite(number_at(b->host, b->type, k))) top = fmax(top, fabs(number_at(b->host, b->type, k)));
            for (size_t k = 0; k < n; k++) {
                double want = number_at(b->host, b->type, k), got = number_at(b->got, b->type, k);
                off += (want - got) * (want - got), size += want * want;
                if (want == got || (isnan(want) && isnan(got))) continue;
                double err = fabs(want - got) / (top + 1e-6);
                if (isnan(err) || err > worst) worst = err; /* NaN must propagate */
            }
        } else if (memcmp(b->host, b->got, b->size)) {
            ok = false;
        }
    }
    bufs_free();
    ok = ok && worst <= tol_of(code, a);
    ran++;
    failures += !ok;
    printf("%-44s %s  worst %.2g", name, ok ? "ok" : "FAIL", worst);
    if (shows_rms) printf(", rms %.3g of the results'", sqrt(off / size));
    printf("\n");
}
