#pragma once
/* KV caches whose rows are in blocks, scattered over several allocations, as in caches that share a prefix. Each
 * operation that reads or stores rows must give the bits that it gives for contiguous rows. */
#include "test/gpu/conform_graph.h"

enum { SHARED_ROWS = 300, SHARED_PLACES = 4, SHARED_MOST = 80 };
struct shared_case {
    int block, n_mem, used;
    char *mem[SHARED_MOST];
    struct kv_block *blocks, list[SHARED_MOST]; /* device; host */
    struct kv_plane flat[2], cut[2];            /* device: keys, values */
    void *own[16];                              /* what graph_take returned */
    int n_own;
};

static void *shared_take(struct shared_case *c, size_t size) {
    graph_take(&c->own[c->n_own], size);
    return c->own[c->n_own++];
}
static size_t shared_row(const struct kv_plane *p) { return dtype_bytes(p->dtype, (size_t)p->heads * (size_t)p->dim); }
static size_t shared_scales(const struct kv_plane *p) { return p->dtype == DT_E4M3 ? (size_t)p->heads * 4 : 0; }

/* Two planes of random rows, in both layouts. */
static void shared_new(struct shared_case *c, int block, enum dtype t, int heads, int k_dim, int v_dim) {
    const int n = (SHARED_ROWS + block - 1) / block;
    size_t bytes = 0;
    *c = (struct shared_case){.block = block, .n_mem = n / SHARED_PLACES + 1};
    for (int i = 0; i < 2; i++) {
        struct kv_plane host = plane_new(SHARED_ROWS, heads, i ? v_dim : k_dim, t, 'c'), *flat = &c->flat[i],
                        *cut = &c->cut[i];
        *flat = *cut = (struct kv_plane){.heads = heads, .dim = host.dim, .dtype = (uint8_t)t};
        flat->data = shared_take(c, SHARED_ROWS * shared_row(flat));
        if (t == DT_E4M3) flat->scale = shared_take(c, SHARED_ROWS * shared_scales(flat));
        gpu_copy(stream, flat->data, host.data, SHARED_ROWS * shared_row(flat), GPU_H2D);
        gpu_copy(stream, flat->scale, host.scale, SHARED_ROWS * shared_scales(flat), GPU_H2D);
        cut->block_rows = block, cut->at = bytes;
        cut->scale_at = bytes += ((size_t)(SHARED_PLACES * block) * shared_row(cut) + 255) & ~(size_t)255;
        bytes += ((size_t)(SHARED_PLACES * block) * shared_scales(cut) + 255) & ~(size_t)255;
    }
    for (int i = 0; i < c->n_mem; i++) graph_take(&c->mem[i], bytes);
    const int places = c->n_mem * SHARED_PLACES;
    int step = 3;
    while (places % step == 0) step += 2;
    for (int b = 0; b < n; b++) {
        const int at = (b * step + 1) % places;
        c->list[b] = (struct kv_block){c->mem[at / SHARED_PLACES], at % SHARED_PLACES};
    }
    c->blocks = shared_take(c, sizeof c->list);
    gpu_copy(stream, c->blocks, c->list, sizeof c->list, GPU_H2D);
    for (int i = 0; i < 2; i++) {
        struct kv_plane *cut = &c->cut[i];
        cut->blocks = c->blocks;
        for (int b = 0; b < n; b++) {
            const size_t first = (size_t)(b * block),
                         rows = SHARED_ROWS - first < (size_t)block ? SHARED_ROWS - first : (size_t)block;
            const size_t to = (size_t)c->list[b].mem_index * (size_t)block;
            gpu_copy(stream, c->list[b].mem + cut->at + to * shared_row(cut),
                     (char *)c->flat[i].data + first * shared_row(cut), rows * shared_row(cut), GPU_D2D);
            if (c->flat[i].scale)
                gpu_copy(stream, c->list[b].mem + cut->scale_at + to * shared_scales(cut),
                         (char *)c->flat[i].scale + first * shared_scales(cut), rows * shared_scales(cut), GPU_D2D);
        }
    }
    if (gpu_stream_sync(stream)) die("a cache in blocks", NULL);
}
static void shared_close(struct shared_case *c) {
    for (int i = 0; i < c->n_mem; i++) gpu_free(g, c->mem[i]);
    for (int i = 0; i < c->n_own; i++) gpu_free(g, c->own[i]);
    for (; n_bufs > 0; n_bufs--) free(bufs[n_bufs - 1].host), free(bufs[n_bufs - 1].got);
}

/* Runs the operation on both layouts; the `bytes` bytes of its results must be equal. */
static void shared_check(const char *name, struct shared_case *c, enum op_code code, const union op_args *flat,
                         const union op_args *cut, void *out, size_t bytes) {
    struct error e;
    char *want = malloc(bytes), *got = malloc(bytes);
    int bad = 0;
    for (int i = 0; i < 2; i++) {
        bad |= gpu_fill(stream, out, i ? 0x11 : 0xee, bytes) || op_run(gpu_stream_exec(stream), code, i ? cut : flat);
        bad |= gpu_copy(stream, i ? got : want, out, bytes, GPU_D2H) || gpu_stream_sync(stream);
    }
    if (gpu_error(g, &e)) printf("%s\n", e.text);
    bad |= memcmp(want, got, bytes) != 0;
    ran++;
    failures += bad;
    printf("rows in blocks of %d, %-22s %s\n", c->block, name, bad ? "FAIL" : "ok");
    free(want);
    free(got);
}

static void shared_attention(struct shared_case *c, int n, int heads, int v_dim, int pos, int window, bool one,
                             bool chosen, bool placed) {
    const int k_dim = c->flat[0].dim, topk = 37;
    const size_t out = (size_t)n * (size_t)(heads * v_dim) * 4, q = (size_t)n * (size_t)(heads * k_dim) * 4;
    float *host = malloc(q);
    int32_t *picks = malloc((size_t)n * (size_t)topk * 4);
    struct op_attention a = {.n = n,
                             .n_heads = heads,
                             .v_dim = v_dim,
                             .ldq = heads * k_dim,
                             .ldo = heads * v_dim,
                             .q_pos0 = pos,
                             .n_keys = pos + n,
                             .window = window,
                             .scale = 0.1f,
                             .k = c->flat[0],
                             .v = c->flat[!one]};
    struct op_address at[2];
    char name[64];
    for (size_t i = 0; i < q / 4; i++) host[i] = rnd_float();
    for (int i = 0; i < n * topk; i++) picks[i] = i % topk * ((pos + 1) / topk);
    graph_take(&a.out, out), graph_take(&a.q, q);
    gpu_copy(stream, (float *)a.q, host, q, GPU_H2D);
    if (chosen) graph_take(&a.chosen, (size_t)n * (size_t)topk * 4), a.n_chosen = topk;
    if (chosen) gpu_copy(stream, (int32_t *)a.chosen, picks, (size_t)n * (size_t)topk * 4, GPU_H2D);
    struct op_attention b = a;
    b.k = c->cut[0], b.v = c->cut[!one];
    if (placed) { /* the list and the position are read from memory */
        for (int i = 0; i < 2; i++) at[i] = (struct op_address){.blocks = c->blocks, .pos = pos};
        graph_take(&b.at, sizeof at);
        gpu_copy(stream, (struct op_address *)b.at, at, sizeof at, GPU_H2D);
        b.v_at = b.at + !one;
        b.q_pos0 = 1000, b.n_keys = 1024;
    }
    gpu_stream_sync(stream);
    snprintf(name, sizeof name, "attention %d%s%s%s%s", n, one ? ", latent" : "", window ? ", window" : "",
             chosen ? ", chosen" : "", placed ? ", placed" : "");
    shared_check(name, c, OP_ATTENTION, &(union op_args){.attention = a}, &(union op_args){.attention = b}, a.out, out);
    gpu_free(g, a.out), gpu_free(g, (float *)a.q), gpu_free(g, (int32_t *)a.chosen);
    if (placed) gpu_free(g, (struct op_address *)b.at);
    free(host);
    free(picks);
}

/* Stores rows across the end of a block, then reads all of them. */
static void shared_store(struct shared_case *c, bool placed) {
    const int n = 9, row0 = 3 * c->block - 4, width = c->flat[0].heads * c->flat[0].dim;
    struct op_address place = {.blocks = c->blocks, .pos = row0};
    float *x, *out, *host = malloc((size_t)(n * width) * 4);
    struct op_address *at;
    graph_take(&x, (size_t)(n * width) * 4), graph_take(&out, (size_t)(SHARED_ROWS * width) * 4),
        graph_take(&at, sizeof *at);
    for (int i = 0; i < n * width; i++) host[i] = rnd_float();
    gpu_copy(stream, x, host, (size_t)(n * width) * 4, GPU_H2D);
    gpu_copy(stream, at, &place, sizeof place, GPU_H2D);
    struct op_kv_store a = {.plane = c->flat[0], .x = x, .row0 = row0, .n = n, .ldx = width}, b = a;
    struct op_kv_load l = {.plane = c->flat[0], .out = out, .n = SHARED_ROWS, .ldo = width}, m = l;
    struct exec *e = gpu_stream_exec(stream);
    b.plane = m.plane = c->cut[0];
    if (placed) b.at = at, b.row0 = 0;
    if (e->ops->kv_store(e, &a) || e->ops->kv_store(e, &b) || gpu_stream_sync(stream)) failures++;
    shared_check(placed ? "store, placed; load" : "store; load", c, OP_KV_LOAD, &(union op_args){.kv_load = l},
                 &(union op_args){.kv_load = m}, out, (size_t)(SHARED_ROWS * width) * 4);
    gpu_free(g, x), gpu_free(g, out), gpu_free(g, at);
    free(host);
}

static void shared_select(struct shared_case *c, bool placed) {
    const int n = 3, heads = 4, topk = 20, pos = 250, dim = c->flat[0].dim;
    const size_t q = (size_t)(n * heads * dim), w = (size_t)(n * heads), out = (size_t)(n * topk) * 4;
    struct op_address place = {.blocks = c->blocks, .pos = pos};
    struct op_select a = {.k = c->flat[0],
                          .n = n,
                          .heads = heads,
                          .topk = topk,
                          .ldq = heads * dim,
                          .q_pos0 = pos,
                          .n_keys = pos + n,
                          .scale = 1};
    float *in, *host = malloc((q + w) * 4);
    struct op_address *at;
    graph_take(&in, (q + w) * 4), graph_take(&a.chosen, out), graph_take(&at, sizeof *at);
    for (size_t i = 0; i < q + w; i++) host[i] = rnd_float();
    gpu_copy(stream, in, host, (q + w) * 4, GPU_H2D);
    gpu_copy(stream, at, &place, sizeof place, GPU_H2D);
    gpu_stream_sync(stream);
    a.q = in, a.weight = in + q;
    struct op_select b = a;
    b.k = c->cut[0];
    if (placed) b.at = at, b.q_pos0 = 1000, b.n_keys = 1024;
    shared_check(placed ? "select, placed" : "select", c, OP_SELECT, &(union op_args){.select = a},
                 &(union op_args){.select = b}, a.chosen, out);
    gpu_free(g, in), gpu_free(g, a.chosen), gpu_free(g, at);
    free(host);
}

static void shared_expand(struct shared_case *c) {
    const int heads = 2, nope = 16, v_dim = 16, n = 170, row0 = 90, rope = c->flat[0].dim - 64;
    struct exec *e = gpu_stream_exec(stream);
    if (!e->ops->expand) return;
    struct mat host = matrix(heads * (nope + v_dim), 64, DT_BF16, 0, 0), w = host;
    const size_t k = (size_t)(n * heads * (nope + rope)) * 2, bytes = k + (size_t)(n * heads * v_dim) * 2,
                 size = host.stride * (size_t)host.rows;
    char *out;
    graph_take(&w.data, size), graph_take(&out, bytes);
    gpu_copy(stream, (void *)w.data, host.data, size, GPU_H2D);
    struct op_expand a = {.k = out,
                          .v = out + k,
                          .latent = c->flat[0],
                          .w = w,
                          .row0 = row0,
                          .n = n,
                          .heads = heads,
                          .nope = nope,
                          .v_dim = v_dim},
                     b = a;
    b.latent = c->cut[0];
    gpu_stream_sync(stream);
    shared_check("expand", c, OP_EXPAND, &(union op_args){.expand = a}, &(union op_args){.expand = b}, out, bytes);
    gpu_free(g, (void *)w.data), gpu_free(g, out);
}

static void shared_caches(void) {
    static const enum dtype types[] = {DT_BF16, DT_E4M3, DT_F32};
    for (int t = 0; t < 3; t++) {
        struct shared_case c;
        shared_new(&c, t == 1 ? 8 : 32, types[t], 2, 64, 64);
        shared_attention(&c, 1, 8, 64, 255, 0, false, false, false);
        shared_attention(&c, 3, 8, 64, 290, 100, false, false, true);
        shared_attention(&c, 70, 4, 64, 90, 0, false, false, false);
        shared_store(&c, false);
        shared_store(&c, true);
        shared_close(&c);
        shared_new(&c, t == 1 ? 24 : 32, types[t], 1, 80, 80); /* any length will do */
        shared_attention(&c, 2, 16, 64, 200, 0, true, false, true);
        shared_attention(&c, 2, 16, 64, 200, 0, true, true, true);
        shared_attention(&c, 5, 16, 64, 100, 0, true, false, false);
        shared_select(&c, false);
        shared_select(&c, true);
        shared_expand(&c);
        shared_close(&c);
    }
    for (int t = 0; t < 2; t++) { /* the shape of DeepSeek's latents */
        struct shared_case c;
        shared_new(&c, 32, types[t], 1, 576, 576);
        shared_attention(&c, 1, 16, 512, 290, 0, true, false, true);
        shared_close(&c);
    }
}
