#pragma once
/* Recorded graphs: stores a key and a value and attends to them, recorded once and replayed for one row after another
 * of two sessions, whose planes and positions are read from memory. The results must have the bits of the same calls
 * made one by one. */
#include "test/gpu/conform_case.h"

enum {
    GRAPH_KEYS = 700,
    GRAPH_BOUND = 1024,
    GRAPH_HEADS = 2,
    GRAPH_QUERIES = 8,
    GRAPH_DIM = 64,
    GRAPH_WIDTH = GRAPH_HEADS * GRAPH_DIM
};
struct graph_case {
    enum dtype dtype;
    int window;
    struct kv_plane plane[2][2][2];  /* indices: session, keys or values, recorded or not */
    float *kv, *q, *out, *got;       /* device; got: pinned */
    struct op_address *at, *host_at; /* [2] keys and values; device, pinned */
};

static void graph_take(void *p, size_t size) {
    struct error e = {0};
    if (gpu_alloc(g, p, size, &e)) die("graph", &e);
}
static int graph_work(struct graph_case *c, int session, int pos, bool recorded) {
    struct exec *x = gpu_stream_exec(stream);
    const struct kv_plane *k = &c->plane[session][0][recorded], *v = &c->plane[session][1][recorded];
    const struct op_address *at = recorded ? c->at : NULL, *v_at = recorded ? c->at + 1 : NULL;
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
    int rc = x->ops->kv_store(
        x, &(struct op_kv_store){.plane = *k, .x = c->kv, .row0 = pos, .n = 1, .ldx = GRAPH_WIDTH, .at = at});
    if (!rc)
        rc = x->ops->kv_store(
            x, &(struct op_kv_store){
                   .plane = *v, .x = c->kv + GRAPH_WIDTH, .row0 = pos, .n = 1, .ldx = GRAPH_WIDTH, .at = v_at});
    if (!rc) rc = gpu_fill(stream, c->out, 0, GRAPH_QUERIES * GRAPH_DIM * 4);
    if (!rc) rc = x->ops->attention(x, &a);
    return rc ? rc : gpu_copy(stream, c->got, c->out, GRAPH_QUERIES * GRAPH_DIM * 4, GPU_D2H);
}

/* Counts how often it had to be recorded; *graph is NULL if it could not be. */
static int graph_record(struct graph_case *c, struct gpu_graph **graph) {
    int rc = GPU_STALE, times = 0;
    for (; rc == GPU_STALE && times < 8; times++) {
        if (gpu_graph_begin(stream)) return 8;
        graph_work(c, 0, GRAPH_BOUND - 1, true); /* errors show at the end */
        rc = gpu_graph_end(stream, graph);
    }
    return times;
}

static void graph_planes(struct graph_case *c) {
    size_t row = dtype_bytes(c->dtype, GRAPH_WIDTH), bytes = row * GRAPH_KEYS,
           scales = c->dtype == DT_E4M3 ? GRAPH_KEYS * GRAPH_HEADS * 4 : 0;
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
            float *scale = (float *)((char *)data + bytes);
            for (int i = 0; scales && i < GRAPH_KEYS * GRAPH_HEADS; i++) scale[i] = 0.01f;
            for (int recorded = 0; recorded < 2; recorded++) {
                struct kv_plane *p = &c->plane[s][kv][recorded];
                *p = (struct kv_plane){.heads = GRAPH_HEADS, .dim = GRAPH_DIM, .dtype = (uint8_t)c->dtype};
                graph_take(&p->data, bytes);
                gpu_copy(stream, p->data, data, bytes, GPU_H2D);
                if (!scales) continue;
                graph_take(&p->scale, scales);
                gpu_copy(stream, p->scale, scale, scales, GPU_H2D);
            }
            gpu_stream_sync(stream);
        }
    free(data);
}

static void recorded(enum dtype dtype, int window) {
    static const struct {
        int session, pos;
    } rows[] = {{0, 3}, {1, 300}, {0, 4}, {1, 301}, {0, 255}, {0, 256}, {1, 699}, {1, 0}};
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
    if (gpu_host_alloc(g, (void **)&c.got, row * 4, &e) ||
        gpu_host_alloc(g, (void **)&c.host_at, 2 * sizeof *c.host_at, &e))
        die("graph", &e);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int s = rows[i].session, pos = rows[i].pos;
        for (size_t k = 0; k < sizeof in / 4; k++) in[k] = rnd_float();
        gpu_copy(stream, c.kv, in, sizeof in, GPU_H2D);
        bad += graph_work(&c, s, pos, false) || gpu_stream_sync(stream);
        memcpy(want, c.got, sizeof want);
        for (int kv = 0; kv < 2; kv++)
            c.host_at[kv] =
                (struct op_address){.data = c.plane[s][kv][1].data, .scale = c.plane[s][kv][1].scale, .pos = pos};
        gpu_copy(stream, c.at, c.host_at, 2 * sizeof *c.at, GPU_H2D);
        gpu_stream_sync(stream);
        memset(c.got, 0xff, row * 4);
        /* on a card once more, after the workspace has grown */
        if (!graph) bad += graph_record(&c, &graph) > 2 || !graph;
        bad += gpu_stream_sync(stream) || c.got[0] == c.got[0]; /* nothing has run yet */
        if (graph && gpu_graph_run(graph) == GPU_STALE) {
            gpu_graph_close(&graph);
            bad += graph_record(&c, &graph) > 2 || !graph || gpu_graph_run(graph);
        }
        bad += gpu_stream_sync(stream) || memcmp(want, c.got, sizeof want) != 0;
        /* an operation that needs more workspace, which may move the workspace of the recorded graph */
        if (i == 3 && !spec.is_emulated) {
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
    for (int s = 0; s < 2; s++) /* the stored rows are the same too */
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
    printf("recorded and run for other rows, %s%-12s %s\n", dtype_name(dtype), window ? ", window" : "",
           bad ? "FAIL" : "ok");
}

/* The same for an indexer's selection of keys for n queries; the last one sees more or fewer keys than it may
 * select. */
enum { CHOICE_HEADS = 4, CHOICE_DIM = 32, CHOICE_TOPK = 8, CHOICE_ROW = CHOICE_HEADS * (CHOICE_DIM + 1) };
struct choice_case {
    int n;
    float *in, *weight;       /* device: [n, heads, dim], then [n, heads] */
    int32_t *out, *got;       /* device, pinned: [n, topk] */
    struct kv_plane plane[2]; /* indices: recorded or not */
    struct op_address *at, *host_at;
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
    if (gpu_host_alloc(g, (void **)&c.got, results, &e) ||
        gpu_host_alloc(g, (void **)&c.host_at, sizeof *c.host_at, &e))
        die("graph", &e);
    for (size_t i = 0; i < keys; i++) host[i] = rnd_float();
    for (int r = 0; r < 2; r++) {
        c.plane[r] = (struct kv_plane){.heads = 1, .dim = CHOICE_DIM, .dtype = DT_F32};
        graph_take(&c.plane[r].data, keys * 4);
        gpu_copy(stream, c.plane[r].data, host, keys * 4, GPU_H2D);
    }
    gpu_stream_sync(stream);
    void *moved = c.plane[1].data; /* only the place in memory has its address */
    c.plane[1].data = c.plane[0].data;
    for (size_t i = 0; i < sizeof stand / sizeof *stand; i++) {
        for (int k = 0; k < n * CHOICE_ROW; k++) host[k] = rnd_float();
        gpu_copy(stream, c.in, host, (size_t)n * CHOICE_ROW * 4, GPU_H2D);
        bad += choice_work(&c, stand[i], false) || gpu_stream_sync(stream);
        memcpy(want, c.got, results);
        *c.host_at = (struct op_address){.data = moved, .pos = stand[i]};
        gpu_copy(stream, c.at, c.host_at, sizeof *c.at, GPU_H2D);
        gpu_stream_sync(stream);
        memset(c.got, 0xee, results);
        int rc = graph ? gpu_graph_run(graph) : GPU_STALE;
        for (int tries = 0; rc == GPU_STALE && tries < 8; tries++) {
            gpu_graph_close(&graph);
            bad += gpu_graph_begin(stream) != 0;
            choice_work(&c, GRAPH_BOUND - n, true); /* errors show at the end */
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

/* The same for compressed keys: the entries that rows complete, their angles, their places in the cache, and attention
 * over them; two sessions, each with two alternating states. */
enum { WINDOW_RATIO = 4, WINDOW_DIM = 32, WINDOW_ROWS = 96, WINDOW_STATE = 2 * 3 * WINDOW_DIM, WINDOW_SKIP = 8 };
struct window_case {
    int n;
    float *in, *bias, *inv_freq, *entries, *turn, *out, *got; /* device; got: pinned. turn: cos, sin */
    /* indices: recorded or not, session, turn: WINDOW_SKIP floats, then the state */
    float *state[2][2][2];
    struct kv_plane plane[2][2];     /* indices: recorded or not, session */
    struct op_address *at, *host_at; /* [2] of the states, of the plane */
};
static int window_work(struct window_case *c, int session, int turn, int pos, bool recorded) {
    struct exec *x = gpu_stream_exec(stream);
    const struct op_address *at = recorded ? c->at : NULL, *keys_at = recorded ? c->at + 1 : NULL;
    const struct kv_plane *k = &c->plane[recorded][session];
    const int half = WINDOW_DIM / 2, width = 2 * WINDOW_DIM;
    float *const *state = c->state[recorded][session];
    struct op_compress o = {.out = c->entries,
                            .kv = c->in,
                            .gate = c->in + width,
                            .bias = c->bias,
                            .before = state[!turn] + WINDOW_SKIP,
                            .after = state[turn] + WINDOW_SKIP,
                            .n = c->n,
                            .pos0 = pos,
                            .ratio = WINDOW_RATIO,
                            .dim = WINDOW_DIM,
                            .ldx = 2 * width,
                            .overlap = true,
                            .at = at,
                            .state_at = WINDOW_SKIP};
    const int made = op_compressed(&o), first = pos / WINDOW_RATIO;
    int rc = x->ops->compress(x, &o);
    if (!rc && made)
        rc = x->ops->rope_table(x, &(struct op_rope_table){.cos = c->turn,
                                                           .sin = c->turn + c->n * half,
                                                           .inv_freq = c->inv_freq,
                                                           .n = made,
                                                           .half = half,
                                                           .pos0 = first * WINDOW_RATIO,
                                                           .step = WINDOW_RATIO,
                                                           .mscale = 1,
                                                           .at = keys_at});
    if (!rc && made)
        rc = x->ops->rope(x, &(struct op_rope){.x = c->entries,
                                               .cos = c->turn,
                                               .sin = c->turn + c->n * half,
                                               .n = made,
                                               .heads = 1,
                                               .ld = WINDOW_DIM,
                                               .head_ld = WINDOW_DIM,
                                               .half = half});
    if (!rc && made)
        rc = x->ops->kv_store(x, &(struct op_kv_store){.plane = *k,
                                                       .x = c->entries,
                                                       .row0 = first,
                                                       .n = made,
                                                       .ldx = WINDOW_DIM,
                                                       .at = keys_at,
                                                       .every = WINDOW_RATIO,
                                                       .tokens = c->n});
    struct op_attention a = {.out = c->out,
                             .q = c->in,
                             .k = *k,
                             .v = *k,
                             .n = c->n,
                             .n_heads = 2,
                             .v_dim = WINDOW_DIM,
                             .ldq = 2 * width,
                             .ldo = width,
                             .q_pos0 = pos,
                             .k_pos0 = WINDOW_RATIO - 1,
                             .k_step = WINDOW_RATIO,
                             .n_keys = (pos + c->n) / WINDOW_RATIO,
                             .scale = 0.2f,
                             .at = keys_at,
                             .v_at = keys_at};
    if (!rc) rc = x->ops->attention(x, &a);
    return rc ? rc : gpu_copy(stream, c->got, c->out, (size_t)(c->n * width) * 4, GPU_D2H);
}

static void recorded_window(int n) {
    /* session, position / n */
    static const int stand[][2] = {{0, 0}, {0, 1}, {1, 30}, {0, 2}, {1, 31}, {0, 3}, {1, 32}, {0, 4}, {0, 200}};
    struct window_case c = {.n = n};
    struct gpu_graph *graph = NULL;
    struct error e = {0};
    const size_t width = 2 * WINDOW_DIM, in = (size_t)n * 2 * width, out = (size_t)n * width * 4,
                 state = (WINDOW_SKIP + WINDOW_STATE) * 4, plane = (size_t)WINDOW_ROWS * WINDOW_DIM * 4;
    float host[WINDOW_ROWS * WINDOW_DIM], other[WINDOW_ROWS * WINDOW_DIM], want[24 * 2 * WINDOW_DIM];
    int bad = 0, turn[2] = {0};
    void **rest[] = {(void **)&c.in,   (void **)&c.bias, (void **)&c.inv_freq, (void **)&c.entries,
                     (void **)&c.turn, (void **)&c.out,  (void **)&c.at};
    const size_t sizes[] = {
        in * 4, WINDOW_RATIO * width * 4, WINDOW_DIM * 2, (size_t)n * WINDOW_DIM * 4, (size_t)n * WINDOW_DIM * 4,
        out,    2 * sizeof *c.at};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) graph_take(rest[i], sizes[i]);
    for (size_t k = 0; k < WINDOW_RATIO * width; k++) host[k] = rnd_float();
    gpu_copy(stream, c.bias, host, sizes[1], GPU_H2D);
    gpu_copy(stream, c.inv_freq, host, sizes[2], GPU_H2D);
    gpu_stream_sync(stream);
    for (size_t k = 0; k < sizeof host / sizeof *host; k++) host[k] = 1 + (float)(rnd() % 100) / 100;
    for (int r = 0; r < 2; r++)
        for (int s = 0; s < 2; s++) {
            c.plane[r][s] = (struct kv_plane){.heads = 1, .dim = WINDOW_DIM, .dtype = DT_F32};
            graph_take(&c.plane[r][s].data, plane);
            gpu_copy(stream, c.plane[r][s].data, host, plane, GPU_H2D);
            for (int t = 0; t < 2; t++) {
                graph_take(&c.state[r][s][t], state);
                gpu_copy(stream, c.state[r][s][t], host, state, GPU_H2D);
            }
        }
    if (gpu_host_alloc(g, (void **)&c.got, out, &e) ||
        gpu_host_alloc(g, (void **)&c.host_at, 2 * sizeof *c.host_at, &e))
        die("graph", &e);
    gpu_stream_sync(stream);
    for (size_t i = 0; i < sizeof stand / sizeof *stand; i++) {
        const int s = stand[i][0], pos = stand[i][1] * n % (WINDOW_ROWS * WINDOW_RATIO - n);
        turn[s] ^= 1;
        for (size_t k = 0; k < in; k++) host[k] = rnd_float();
        gpu_copy(stream, c.in, host, in * 4, GPU_H2D);
        bad += window_work(&c, s, turn[s], pos, false) || gpu_stream_sync(stream);
        memcpy(want, c.got, out);
        c.host_at[0] = (struct op_address){
            .data = pos ? c.state[1][s][!turn[s]] : NULL, .after = c.state[1][s][turn[s]], .pos = pos};
        c.host_at[1] = (struct op_address){.data = c.plane[1][s].data, .pos = pos};
        gpu_copy(stream, c.at, c.host_at, 2 * sizeof *c.at, GPU_H2D);
        gpu_stream_sync(stream);
        memset(c.got, 0xee, out);
        int rc = graph ? gpu_graph_run(graph) : GPU_STALE;
        for (int tries = 0; rc == GPU_STALE && tries < 8; tries++) {
            gpu_graph_close(&graph);
            bad += gpu_graph_begin(stream) != 0;
            window_work(&c, 0, 0, WINDOW_ROWS * WINDOW_RATIO - n, true); /* errors show at the end */
            rc = gpu_graph_end(stream, &graph);
            if (!rc && graph) rc = gpu_graph_run(graph);
        }
        bad += rc || !graph || gpu_stream_sync(stream) || memcmp(want, c.got, out) != 0;
        for (int what = 0; what < 2; what++) { /* the state that remains */
            const size_t size = what ? state : plane;
            gpu_copy(stream, host, what ? (void *)c.state[0][s][turn[s]] : c.plane[0][s].data, size, GPU_D2H);
            gpu_copy(stream, other, what ? (void *)c.state[1][s][turn[s]] : c.plane[1][s].data, size, GPU_D2H);
            bad += gpu_stream_sync(stream) || memcmp(host, other, size) != 0;
        }
    }
    gpu_graph_close(&graph);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) gpu_free(g, *rest[i]);
    for (int i = 0; i < 4; i++) {
        gpu_free(g, c.plane[i / 2][i % 2].data);
        for (int t = 0; t < 2; t++) gpu_free(g, c.state[i / 2][i % 2][t]);
    }
    gpu_host_free(g, c.got), gpu_host_free(g, c.host_at);
    if (gpu_error(g, &e)) printf("%s\n", e.text);
    ran++;
    failures += bad != 0;
    printf("recorded and run for other rows, windows, %d tokens at once %s\n", n, bad ? "FAIL" : "ok");
}

/* The same for a state that every row changes: the convolution before a delta rule, and the rule itself. */
enum { RULE_DIM = 16, RULE_TAPS = 4, RULE_WIDTH = 3 * RULE_DIM };
struct rule_case {
    int n;
    float *in, *weights, *mixed, *out, *got; /* device; got: pinned */
    /* indices: recorded or not, turn: the convolution's rows, the rule's state */
    float *state[2][2];
    struct op_address *at, *host_at; /* [2] */
};
enum { RULE_ROWS = (RULE_TAPS - 1) * RULE_WIDTH, RULE_STATE = RULE_ROWS + RULE_DIM * RULE_DIM };
static int rule_work(struct rule_case *c, bool begins, int turn, bool recorded) {
    struct exec *x = gpu_stream_exec(stream);
    float *after = c->state[recorded][turn], *before = begins ? NULL : c->state[recorded][!turn];
    int rc = x->ops->conv(x, &(struct op_conv){.out = c->mixed,
                                               .x = c->in,
                                               .w = c->weights,
                                               .before = before,
                                               .after = after,
                                               .n = c->n,
                                               .channels = RULE_WIDTH,
                                               .taps = RULE_TAPS,
                                               .ldx = RULE_WIDTH,
                                               .ldo = RULE_WIDTH,
                                               .at = recorded ? c->at : NULL});
    if (!rc)
        rc = x->ops->delta(x, &(struct op_delta){.out = c->out,
                                                 .q = c->mixed,
                                                 .k = c->mixed + RULE_DIM,
                                                 .v = c->mixed + 2 * RULE_DIM,
                                                 .b = c->in,
                                                 .a = c->in + 1,
                                                 .rate = c->weights,
                                                 .dt = c->weights + 1,
                                                 .before = before ? before + RULE_ROWS : NULL,
                                                 .after = after + RULE_ROWS,
                                                 .n = c->n,
                                                 .k_heads = 1,
                                                 .v_heads = 1,
                                                 .k_dim = RULE_DIM,
                                                 .v_dim = RULE_DIM,
                                                 .ldx = RULE_WIDTH,
                                                 .ldg = RULE_WIDTH,
                                                 .ldo = RULE_DIM,
                                                 .at = recorded ? c->at + 1 : NULL});
    return rc ? rc : gpu_copy(stream, c->got, c->out, (size_t)(c->n * RULE_DIM) * 4, GPU_D2H);
}

static void recorded_rule(int n) {
    struct rule_case c = {.n = n};
    struct gpu_graph *graph = NULL;
    struct error e = {0};
    const size_t in = (size_t)n * RULE_WIDTH * 4, out = (size_t)n * RULE_DIM * 4;
    float host[RULE_STATE], other[RULE_STATE], want[24 * RULE_DIM];
    int bad = 0;
    void **rest[] = {(void **)&c.in, (void **)&c.weights, (void **)&c.mixed, (void **)&c.out, (void **)&c.at};
    const size_t sizes[] = {in, RULE_TAPS * RULE_WIDTH * 4, in, out, 2 * sizeof *c.at};
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) graph_take(rest[i], sizes[i]);
    for (int i = 0; i < 4; i++) graph_take(&c.state[i / 2][i % 2], sizeof host);
    for (size_t k = 0; k < sizes[1] / 4; k++) host[k] = -fabsf(rnd_float());
    gpu_copy(stream, c.weights, host, sizes[1], GPU_H2D);
    if (gpu_host_alloc(g, (void **)&c.got, out, &e) ||
        gpu_host_alloc(g, (void **)&c.host_at, 2 * sizeof *c.host_at, &e))
        die("graph", &e);
    gpu_stream_sync(stream);
    for (int i = 0; i < 7; i++) {
        const bool begins = i == 0 || i == 4;
        const int turn = i % 2;
        for (size_t k = 0; k < in / 4; k++) host[k] = rnd_float();
        gpu_copy(stream, c.in, host, in, GPU_H2D);
        bad += rule_work(&c, begins, turn, false) || gpu_stream_sync(stream);
        memcpy(want, c.got, out);
        for (int k = 0; k < 2; k++)
            c.host_at[k] = (struct op_address){.data = begins ? NULL : c.state[1][!turn] + (k ? RULE_ROWS : 0),
                                               .after = c.state[1][turn] + (k ? RULE_ROWS : 0)};
        gpu_copy(stream, c.at, c.host_at, 2 * sizeof *c.at, GPU_H2D);
        gpu_stream_sync(stream);
        memset(c.got, 0xee, out);
        int rc = graph ? gpu_graph_run(graph) : GPU_STALE;
        for (int tries = 0; rc == GPU_STALE && tries < 8; tries++) {
            gpu_graph_close(&graph);
            bad += gpu_graph_begin(stream) != 0;
            rule_work(&c, false, 1, true); /* errors show at the end */
            rc = gpu_graph_end(stream, &graph);
            if (!rc && graph) rc = gpu_graph_run(graph);
        }
        bad += rc || !graph || gpu_stream_sync(stream) || memcmp(want, c.got, out) != 0;
        gpu_copy(stream, host, c.state[0][turn], sizeof host, GPU_D2H);
        gpu_copy(stream, other, c.state[1][turn], sizeof host, GPU_D2H);
        bad += gpu_stream_sync(stream) || memcmp(host, other, sizeof host) != 0;
    }
    gpu_graph_close(&graph);
    for (size_t i = 0; i < sizeof rest / sizeof *rest; i++) gpu_free(g, *rest[i]);
    for (int i = 0; i < 4; i++) gpu_free(g, c.state[i / 2][i % 2]);
    gpu_host_free(g, c.got), gpu_host_free(g, c.host_at);
    if (gpu_error(g, &e)) printf("%s\n", e.text);
    ran++;
    failures += bad != 0;
    printf("recorded and run for other rows, a state, %d tokens at once %s\n", n, bad ? "FAIL" : "ok");
}
