#pragma once
/* Recorded work: a key and a value stored and attended to, recorded once, and run for one row after the other of two sessions, whose
 * planes and positions stand in memory. The bits must be those of the same calls made one by one. */
#include "test/gpu/conform_case.h"

enum { GRAPH_KEYS = 700, GRAPH_BOUND = 1024, GRAPH_HEADS = 2, GRAPH_QUERIES = 8, GRAPH_DIM = 64, GRAPH_WIDTH = GRAPH_HEADS * GRAPH_DIM };
struct graph_case {
    enum dtype dtype;
    int window;
    struct kv_plane plane[2][2][2]; /* by session, keys and values, recorded or not */
    float *kv, *q, *out, *got;      /* device; got: pinned */
    struct op_place *at, *host_at;  /* [2] keys and values; device, pinned */
};

static void graph_take(void *p, size_t size) {
    struct error e = {0};
    if (gpu_alloc(g, p, size, &e)) die("graph", &e);
}
static int graph_work(struct graph_case *c, int session, int pos, bool recorded) {
    struct exec *x = gpu_stream_exec(stream);
    const struct kv_plane *k = &c->plane[session][0][recorded], *v = &c->plane[session][1][recorded];
    const struct op_place *at = recorded ? c->at : NULL, *v_at = recorded ? c->at + 1 : NULL;
    struct op_attention a = {.out = c->out,
                             .q = c->q,
                             .k = *k,
                             .v = *v,
                             .n = 1,
                             .n_heads = GRAPH_QUERIES,
                             .v_dim = GRAPH_DIM,
                             .ldq = GRAPH_QUERIES * GRAPH_DIM,
                             .ldo = GRAPH_QUERIES * GRAPH_DIM,
                             .q_pos0 = pos,
                             .n_keys = pos + 1,
                             .window = c->window,
                             .scale = 0.125f,
                             .at = at,
                             .v_at = v_at};
    int rc = x->ops->kv_store(x, &(struct op_kv_store){.plane = *k, .x = c->kv, .row0 = pos, .n = 1, .ldx = GRAPH_WIDTH, .at = at});
    if (!rc) rc = x->ops->kv_store(x, &(struct op_kv_store){.plane = *v, .x = c->kv + GRAPH_WIDTH, .row0 = pos, .n = 1, .ldx = GRAPH_WIDTH, .at = v_at});
    if (!rc) rc = gpu_fill(stream, c->out, 0, GRAPH_QUERIES * GRAPH_DIM * 4);
    if (!rc) rc = x->ops->attention(x, &a);
    return rc ? rc : gpu_copy(stream, c->got, c->out, GRAPH_QUERIES * GRAPH_DIM * 4, GPU_D2H);
}

/* How often it had to be recorded; *graph NULL: it could not be. */
static int graph_record(struct graph_case *c, struct gpu_graph **graph) {
    int rc = GPU_STALE, times = 0;
    for (; rc == GPU_STALE && times < 8; times++) {
        if (gpu_graph_begin(stream)) return 8;
        graph_work(c, 0, GRAPH_BOUND - 1, true); /* what went wrong the end tells */
        rc = gpu_graph_end(stream, graph);
    }
    return times;
}

static void graph_planes(struct graph_case *c) {
    size_t row = dtype_bytes(c->dtype, GRAPH_WIDTH), bytes = row * GRAPH_KEYS, scales = c->dtype == DT_E4M3 ? GRAPH_KEYS * GRAPH_HEADS * 4 : 0;
    float *data = malloc(bytes + scales + 4 * GRAPH_WIDTH * GRAPH_KEYS);
    for (int s = 0; s < 2; s++)
        for (int kv = 0; kv < 2; kv++) {
            uint8_t *b = (uint8_t *)data;
            for (int i = 0; i < GRAPH_WIDTH * GRAPH_KEYS; i++) {
                float v = rnd_float();
                if (c->dtype == DT_F32) data[i] = v;
                else if (c->dtype == DT_BF16) ((uint16_t *)data)[i] = f32_to_bf16(v);
                else b[i] = (uint8_t)(rnd() % 0x70);
            }
            for (int recorded = 0; recorded < 2; recorded++) {
                struct kv_plane *p = &c->plane[s][kv][recorded];
                *p = (struct kv_plane){.heads = GRAPH_HEADS, .dim = GRAPH_DIM, .dtype = (uint8_t)c->dtype};
                graph_take(&p->data, bytes);
                gpu_copy(stream, p->data, data, bytes, GPU_H2D);
                if (!scales) continue;
                float *scale = (float *)((char *)data + bytes);
                for (int i = 0; i < GRAPH_KEYS * GRAPH_HEADS; i++) scale[i] = 0.01f;
                graph_take(&p->scale, scales);
                gpu_copy(stream, p->scale, scale, scales, GPU_H2D);
            }
            gpu_stream_sync(stream);
        }
    free(data);
}

static void recorded(enum dtype dtype, int window) {
    static const struct { int session, pos; } rows[] = {{0, 3}, {1, 300}, {0, 4}, {1, 301}, {0, 255}, {0, 256}, {1, 699}, {1, 0}};
    struct graph_case c = {.dtype = dtype, .window = window};
    struct gpu_graph *graph = NULL;
    struct error e = {0};
    const size_t row = GRAPH_QUERIES * GRAPH_DIM;
    float want[GRAPH_QUERIES * GRAPH_DIM], in[2 * GRAPH_WIDTH + GRAPH_QUERIES * GRAPH_DIM];
    int bad = 0;
    graph_planes(&c);
    graph_take(&c.kv, sizeof in);
    c.q = c.kv + 2 * GRAPH_WIDTH;
    graph_take(&c.out, row * 4);
    graph_take(&c.at, 2 * sizeof *c.at);
    if (gpu_host_alloc(g, (void **)&c.got, row * 4, &e) || gpu_host_alloc(g, (void **)&c.host_at, 2 * sizeof *c.host_at, &e)) die("graph", &e);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int s = rows[i].session, pos = rows[i].pos;
        for (size_t k = 0; k < sizeof in / 4; k++) in[k] = rnd_float();
        gpu_copy(stream, c.kv, in, sizeof in, GPU_H2D);
        bad += graph_work(&c, s, pos, false) || gpu_stream_sync(stream);
        memcpy(want, c.got, sizeof want);
        for (int kv = 0; kv < 2; kv++) c.host_at[kv] = (struct op_place){c.plane[s][kv][1].data, c.plane[s][kv][1].scale, pos};
        gpu_copy(stream, c.at, c.host_at, 2 * sizeof *c.at, GPU_H2D);
        gpu_stream_sync(stream);
        memset(c.got, 0xff, row * 4);
        if (!graph) bad += graph_record(&c, &graph) > 2 || !graph; /* on a card once more, when the workspace has grown */
        bad += gpu_stream_sync(stream) || c.got[0] == c.got[0];    /* nothing has run */
        if (graph && gpu_graph_run(graph) == GPU_STALE) {
            gpu_graph_close(&graph);
            bad += graph_record(&c, &graph) > 2 || !graph || gpu_graph_run(graph);
        }
        bad += gpu_stream_sync(stream) || memcmp(want, c.got, sizeof want) != 0;
        if (i == 3 && !spec.emu) { /* an operation that takes more workspace: what was recorded may have lost its own */
            struct op_attention wide = {.out = c.out,
                                        .q = c.q,
                                        .k = c.plane[1][0][0],
                                        .v = c.plane[1][1][0],
                                        .n = 1,
                                        .n_heads = GRAPH_QUERIES,
                                        .v_dim = GRAPH_DIM,
                                        .ldq = 512,
                                        .ldo = 512,
                                        .q_pos0 = 100,
                                        .n_keys = 1 << 16,
                                        .scale = 1};
            bad += gpu_stream_exec(stream)->ops->attention(gpu_stream_exec(stream), &wide) || gpu_stream_sync(stream);
        }
    }
    gpu_graph_close(&graph);
    for (int s = 0; s < 2; s++) /* what was stored is the same, too */
        for (int kv = 0; kv < 2; kv++) {
            size_t bytes = dtype_bytes(dtype, GRAPH_WIDTH) * GRAPH_KEYS;
            char *a = malloc(2 * bytes);
            gpu_copy(stream, a, c.plane[s][kv][0].data, bytes, GPU_D2H);
            gpu_copy(stream, a + bytes, c.plane[s][kv][1].data, bytes, GPU_D2H);
            bad += gpu_stream_sync(stream) || memcmp(a, a + bytes, bytes) != 0;
            free(a);
            for (int r = 0; r < 2; r++) gpu_free(g, c.plane[s][kv][r].data), gpu_free(g, c.plane[s][kv][r].scale);
        }
    gpu_host_free(g, c.got), gpu_host_free(g, c.host_at);
    void *all[] = {c.kv, c.out, c.at};
    for (int i = 0; i < 3; i++) gpu_free(g, all[i]);
    if (gpu_error(g, &e)) printf("%s\n", e.text);
    ran++;
    failures += bad != 0;
    printf("recorded and run for other rows, %s%-12s %s\n", dtype_name(dtype), window ? ", window" : "", bad ? "FAIL" : "ok");
}

/* The same of an indexer's choice of keys for n queries, of which the last stands at more and at fewer keys than it may choose. */
enum { CHOICE_HEADS = 4, CHOICE_DIM = 32, CHOICE_TOPK = 8, CHOICE_ROW = CHOICE_HEADS * (CHOICE_DIM + 1) };
struct choice_case {
    int n;
    float *in, *weight;       /* device: [n, heads, dim], [n, heads] behind it */
    int32_t *out, *got;       /* device, pinned: [n, topk] */
    struct kv_plane plane[2]; /* by recorded or not */
    struct op_place *at, *host_at;
};
static int choice_work(struct choice_case *c, int pos, bool recorded) {
    struct exec *x = gpu_stream_exec(stream);
    int rc = gpu_fill(stream, c->out, 0, (size_t)c->n * CHOICE_TOPK * 4);
    if (!rc)
        rc = x->ops->select(x, &(struct op_select){.chosen = c->out,
                                                   .q = c->in,
                                                   .weight = c->weight,
                                                   .k = c->plane[recorded],
                                                   .n = c->n,
                                                   .heads = CHOICE_HEADS,
                                                   .topk = CHOICE_TOPK,
                                                   .ldq = CHOICE_HEADS * CHOICE_DIM,
                                                   .q_pos0 = pos,
                                                   .n_keys = pos + c->n,
                                                   .scale = 0.1f,
                                                   .at = recorded ? c->at : NULL});
    return rc ? rc : gpu_copy(stream, c->got, c->out, (size_t)c->n * CHOICE_TOPK * 4, GPU_D2H);
}

static void recorded_choice(int n) {
    static const int stand[] = {40, 3, 41, 300, 693, 9};
    struct choice_case c = {.n = n};
    struct gpu_graph *graph = NULL;
    struct error e = {0};
    const size_t keys = (size_t)GRAPH_KEYS * CHOICE_DIM, results = (size_t)n * CHOICE_TOPK * 4;
    float *host = malloc(keys * 4);
    int32_t *want = malloc(results);
    int bad = 0;
    graph_take(&c.in, (size_t)n * CHOICE_ROW * 4);
    c.weight = c.in + n * CHOICE_HEADS * CHOICE_DIM;
    graph_take(&c.out, results);
    graph_take(&c.at, sizeof *c.at);
    if (gpu_host_alloc(g, (void **)&c.got, results, &e) || gpu_host_alloc(g, (void **)&c.host_at, sizeof *c.host_at, &e)) die("graph", &e);
    for (size_t i = 0; i < keys; i++) host[i] = rnd_float();
    for (int r = 0; r < 2; r++) {
        c.plane[r] = (struct kv_plane){.heads = 1, .dim = CHOICE_DIM, .dtype = DT_F32};
        graph_take(&c.plane[r].data, keys * 4);
        gpu_copy(stream, c.plane[r].data, host, keys * 4, GPU_H2D);
    }
    gpu_stream_sync(stream);
    void *moved = c.plane[1].data; /* only a place says where it is */
    c.plane[1].data = c.plane[0].data;
    for (size_t i = 0; i < sizeof stand / sizeof *stand; i++) {
        for (int k = 0; k < n * CHOICE_ROW; k++) host[k] = rnd_float();
        gpu_copy(stream, c.in, host, (size_t)n * CHOICE_ROW * 4, GPU_H2D);
        bad += choice_work(&c, stand[i], false) || gpu_stream_sync(stream);
        memcpy(want, c.got, results);
        *c.host_at = (struct op_place){.data = moved, .pos = stand[i]};
        gpu_copy(stream, c.at, c.host_at, sizeof *c.at, GPU_H2D);
        gpu_stream_sync(stream);
        memset(c.got, 0xee, results);
        int rc = graph ? gpu_graph_run(graph) : GPU_STALE;
        for (int tries = 0; rc == GPU_STALE && tries < 8; tries++) {
            gpu_graph_close(&graph);
            bad += gpu_graph_begin(stream) != 0;
            choice_work(&c, GRAPH_BOUND - n, true); /* what went wrong the end tells */
            rc = gpu_graph_end(stream, &graph);
            if (!rc && graph) rc = gpu_graph_run(graph);
        }
        bad += rc || !graph || gpu_stream_sync(stream) || memcmp(want, c.got, results) != 0;
    }
    gpu_graph_close(&graph);
    void *all[] = {c.in, c.out, c.at, c.plane[0].data, moved};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) gpu_free(g, all[i]);
    gpu_host_free(g, c.got), gpu_host_free(g, c.host_at);
    free(host), free(want);
    if (gpu_error(g, &e)) printf("%s\n", e.text);
    ran++;
    failures += bad != 0;
    printf("recorded and run for other rows, a choice of %d queries %s\n", n, bad ? "FAIL" : "ok");
}
