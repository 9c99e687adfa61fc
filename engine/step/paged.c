#include "engine/step/paged.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/mem.h"
#include "engine/model/rope.h"
#include "engine/step/paged_internal.h"
#include "engine/step/processor.h"

/* The device makes queries of so many micro-batches ahead of the one whose results it goes on with; between them the processor has one
 * more under way. */
enum { AHEAD = 2, BUFFERS = AHEAD + 1 };

struct micro_batch {
    int row, n; /* its rows among those of the step */
    int span, n_spans, piece, n_pieces;
};
/* Rows that go through a matrix together: spans of at most OP_FEW rows, as many as make no more, or one longer span alone, so that
 * no row's bits hang on another session's. */
struct piece {
    int at, n; /* of the micro-batch */
    bool alone;
};
enum { TOGETHER = 256 }; /* rows of an expert's group at once, where they are one session's */
/* Runs that a micro-batch of so many rows may have: what goes alone has more than OP_FEW, and between two of those is one of others. */
static size_t runs_of(int micro) { return 2 * ((size_t)micro / (OP_FEW + 1)) + 1; }
struct rows_buffer { /* pinned host memory, of a micro-batch between device and processor */
    float *q, *att;  /* [micro, n_heads * head_dim], [micro, n_heads * v_dim] */
    char *kv;        /* its rows of the planes, one plane after the other */
};
struct paged {
    struct machine *m;
    const struct config *c;
    struct paged_options o;
    enum dtype kv;
    struct gpu *g;
    struct gpu_stream *main, *link;
    _Atomic int stop; /* cancel of both */
    struct paged_weights w;
    struct work work;                     /* of a micro-batch, on the device */
    float *x, *head_x, *head_xn, *logits; /* device: [rows, hidden], [OP_FEW, hidden] twice, [OP_FEW, vocab] */
    int32_t *pos, *tokens, *length;       /* device: [rows] */
    char *planes;                         /* device: a micro-batch's rows of the planes of a layer */
    struct kv_layer *cache;               /* [n_layers] these, as each layer has them */
    int32_t *offset, *token;              /* device: [n_experts + 1], [micro * topk] */
    float *weight;                        /* device: [micro * topk] */
    struct rows_buffer buffer[BUFFERS];
    float *host_x, *host_logits;                    /* pinned: [rows, hidden], [OP_FEW, vocab] */
    int32_t *host_pos, *host_tokens, *host_length;  /* pinned: [rows] */
    int32_t *host_ids, *host_bad;                   /* pinned: [micro, topk], and the mark of what is not finite */
    size_t plane_at[CACHE_PLANES + 1];              /* of a plane's rows in kv and planes */
    struct gpu_number *arrived, *answered, *routed; /* units: micro-batches of layers, counted over steps; `begun` */
    uint32_t at, n_routed;                          /* units before this step; written */
    /* Of the step: */
    struct micro_batch *micro; /* [PAGED_MICROS] */
    struct piece *piece;       /* [rows] */
    struct piece *run;         /* [runs_of(micro)] of the micro-batch whose experts are under way */
    int32_t *count;            /* [runs_of(micro), n_experts] */
    int n_micros, n_runs, n;
    const struct paged_span *spans;
    int n_spans;
    const struct paged_calls *calls;
    const _Atomic int *cancel;
    pthread_t thread;
    int rc; /* the feeding thread's */
};

const char *paged_cannot(const struct machine *m) {
    const struct config *c = &m->w->config;
    if (!m->gpus) return "there is no device";
    if (m->gpus->lost) return "a device was lost";
    if (m->fetch) return "the weights do not fit in memory";
    if (!c->n_experts) return "the model has no routed experts";
    if (c->attn != ATTN_GQA) return "keys and values of this attention (MLA and its kin) are not read beside the processor in paged steps";
    for (int l = 0; l < c->n_layers; l++)
        if (c->layer[l].delta) return "layers that keep a state (DeltaNet) do not run in paged steps";
    if (c->attn_gate || c->streams.n) return "its attention half is none that paged steps know";
    return NULL;
}

/* --- Views ---------------------------------------------------------------------------------------------------------------------- */

static struct exec *exec_of(struct paged *p) { return gpu_stream_exec(p->main); }
static size_t hidden_bytes(const struct paged *p, int n) { return (size_t)n * (size_t)p->c->hidden * 4; }
static size_t query_floats(const struct paged *p) { return (size_t)(p->c->n_heads * p->c->head_dim); }
static size_t result_floats(const struct paged *p) { return (size_t)(p->c->n_heads * p->c->v_dim); }
static int layer_of(const struct paged *p, int unit) { return unit / p->n_micros; }
static struct micro_batch *micro_of(const struct paged *p, int unit) { return &p->micro[unit % p->n_micros]; }
static uint32_t number_of(const struct paged *p, int unit) { return p->at + (uint32_t)unit + 1; }

/* Rows [at, at + few) of a micro-batch: what outlives an operation is its own. */
static struct work piece_of(const struct paged *p, const struct micro_batch *m, int at) {
    const struct config *c = p->c;
    struct work w = p->work;
    size_t row = (size_t)(m->row + at), within = (size_t)at;
    w.x = p->x + row * (size_t)c->hidden;
    w.xn += within * (size_t)c->hidden;
    w.q += within * query_floats(p), w.att += within * result_floats(p);
    w.pos = p->pos + row, w.tokens = p->tokens + row;
    if (p->length) w.length = p->length + row;
    w.ids += within * (size_t)c->topk, w.weights += within * (size_t)c->topk;
    if (w.shared_weight) w.shared_weight += within;
    return w;
}

/* The planes of a layer for a micro-batch's rows, in memory that begins at `mem`. */
static int planes_of(const struct paged *p, int layer, char *mem, struct kv_plane out[CACHE_PLANES]) {
    struct cache_desc d[CACHE_PLANES];
    int n = kv_planes(p->c, layer, d);
    for (int i = 0; i < n; i++) {
        out[i] = kv_plane_of(&d[i], p->kv);
        struct kv_rows all = kv_rows_of(&out[i], 0, p->o.micro);
        out[i].data = mem + p->plane_at[i];
        out[i].scale = all.scales ? (float *)(void *)(mem + p->plane_at[i] + ((all.bytes + 255) & ~(size_t)255)) : NULL;
    }
    return n;
}

/* --- The device ------------------------------------------------------------------------------------------------------------------- */

/* Queries, keys and values, to host memory. */
static int project(struct paged *p, int unit) {
    const int layer = layer_of(p, unit);
    const struct micro_batch *m = micro_of(p, unit);
    const struct layer *y = &p->w.view[layer];
    struct rows_buffer *b = &p->buffer[unit % BUFFERS];
    struct kv_plane to[CACHE_PLANES];
    int span = trace_begin(p->m->trace, p->main, p->o.device, LANE_COMPUTE, "project", layer, (int)(m - p->micro)), rc = 0;
    int n = planes_of(p, layer, b->kv, to);
    if (!layer)
        rc = gpu_copy(p->main, p->x + (size_t)m->row * (size_t)p->c->hidden, p->host_x + (size_t)m->row * (size_t)p->c->hidden, hidden_bytes(p, m->n), GPU_H2D);
    for (const struct piece *t = p->piece + m->piece; t < p->piece + m->piece + m->n_pieces && !rc; t++) {
        struct work w = piece_of(p, m, t->at);
        const int k = t->n;
        rc = block_rope(exec_of(p), p->c, &w, p->m->w->rope_mscale, k, 0);
        if (!rc) rc = block_kv(exec_of(p), p->c, y, layer, &w, &(struct span){.cache = p->cache, .n = k, .pos = t->at}, 1, k);
        if (!rc) rc = block_query(exec_of(p), p->c, y, layer, &w, k);
    }
    if (!rc) rc = gpu_copy(p->main, b->q, p->work.q, (size_t)m->n * query_floats(p) * 4, GPU_D2H);
    for (int i = 0; i < n && !rc; i++) {
        struct kv_rows r = kv_rows_of(&to[i], 0, m->n);
        rc = gpu_copy(p->main, to[i].data, p->cache[layer].p[i].data, r.bytes, GPU_D2H);
        if (!rc && r.scales) rc = gpu_copy(p->main, to[i].scale, p->cache[layer].p[i].scale, r.scales * 4, GPU_D2H);
    }
    trace_end(p->m->trace, span, p->main);
    return rc ? rc : gpu_number_write(p->arrived, number_of(p, unit), p->main);
}

/* How many rows of each run of a micro-batch chose each expert, p->count [runs, n_experts]. In virtual time nothing was chosen, and all have as many. */
static int read_choices(struct paged *p, const struct micro_batch *m) {
    const int n = p->c->n_experts, topk = p->c->topk;
    const struct piece *run = p->run;
    if (p->m->processor) {
        for (int r = 0; r < p->n_runs; r++)
            for (int k = 0; k < n; k++) p->count[r * n + k] = (int32_t)((int64_t)run[r].n * topk * (k + 1) / n) - (int32_t)((int64_t)run[r].n * topk * k / n);
        return 0;
    }
    TRY(gpu_copy(p->main, p->host_ids, p->work.ids, (size_t)m->n * (size_t)topk * 4, GPU_D2H));
    TRY(gpu_copy(p->main, p->host_bad, (const void *)p->work.bad, 4, GPU_D2H));
    TRY(gpu_number_write(p->routed, ++p->n_routed, p->main));
    TRY(gpu_number_await(p->routed, p->n_routed, &p->stop));
    if (*p->host_bad >= 0) return ERR_MODEL; /* choices may be garbage */
    memset(p->count, 0, (size_t)p->n_runs * (size_t)n * sizeof *p->count);
    for (int r = 0; r < p->n_runs; r++)
        for (int i = run[r].at * topk; i < (run[r].at + run[r].n) * topk; i++) {
            if (p->host_ids[i] < 0 || p->host_ids[i] >= n) return ERR_MODEL;
            p->count[r * n + p->host_ids[i]]++;
        }
    return 0;
}

static int run_group(struct paged *p, struct op_group *g, int layer, const struct micro_batch *m) {
    if (!g->n) return 0;
    int span = trace_begin(p->m->trace, p->main, p->o.device, LANE_COMPUTE, "experts", layer, (int)(m - p->micro));
    TRY(op_run(exec_of(p), OP_GROUP, g));
    trace_end(p->m->trace, span, p->main);
    g->begin[0] = g->begin[g->n];
    g->n = 0;
    return 0;
}

/* Rows whose choices are counted together: one session's that go alone, or all of several sessions' between two such. */
static void find_runs(struct paged *p, const struct micro_batch *m) {
    const struct piece *t = p->piece + m->piece, *end = t + m->n_pieces;
    p->n_runs = 0;
    for (; t < end; t++) {
        struct piece *last = p->n_runs ? &p->run[p->n_runs - 1] : NULL;
        if (last && !last->alone && !t->alone) last->n += t->n;
        else p->run[p->n_runs++] = *t;
    }
}

/* The routed experts of a micro-batch, one after the other: what of several sessions chose one goes OP_FEW rows at a time, since how a row is
 * computed must not depend on who else chose its expert, and what of one long span did goes by itself. These pieces of an expert follow each
 * other in one operation, so that its weights come from the device's memory once. Behind the last rows of a layer pages fall free. */
static int experts(struct paged *p, int layer, const struct micro_batch *m) {
    const struct config *c = p->c;
    const bool last = m == &p->micro[p->n_micros - 1];
    struct op_group g = {
        .y = p->x + (size_t)m->row * (size_t)c->hidden, .x = p->work.xn, .token = p->token, .weight = p->weight, .hidden = c->hidden, .wide = config_wide(c)};
    TRY(op_run(exec_of(p), OP_SORT,
               &(struct op_sort){.offset = p->offset,
                                 .token = p->token,
                                 .weight = p->weight,
                                 .ids = p->work.ids,
                                 .weights = p->work.weights,
                                 .n = m->n,
                                 .topk = c->topk,
                                 .last = c->n_experts}));
    find_runs(p, m);
    TRY(read_choices(p, m));
    for (int k = 0; k < c->n_experts; k++) {
        struct expert view = {0};
        int rest = 0;
        for (int r = 0; r < p->n_runs; r++) rest += p->count[r * c->n_experts + k];
        for (int r = 0; r < p->n_runs; r++) {
            const int most = p->run[r].alone ? TOGETHER : OP_FEW;
            for (int left = p->count[r * c->n_experts + k], n; left; left -= n) {
                n = left < most ? left : most;
                if (!view.gate.data) TRY(paged_weights_use(&p->w, layer, k, p->main, &view));
                g.expert[g.n] = view;
                g.begin[g.n + 1] = g.begin[g.n] + n;
                rest -= n;
                if (++g.n < GROUP_MOST) continue;
                TRY(run_group(p, &g, layer, m));
                if (last) TRY(paged_weights_free(&p->w, rest ? k : k + 1, p->main));
            }
        }
    }
    TRY(run_group(p, &g, layer, m));
    return last ? paged_weights_free(&p->w, c->n_experts, p->main) : 0;
}

/* What follows attention, up to the next layer. */
static int go_on(struct paged *p, int unit) {
    const int layer = layer_of(p, unit);
    const struct micro_batch *m = micro_of(p, unit);
    const struct layer *y = &p->w.view[layer];
    if (p->m->processor) TRY(gpu_number_wait(p->answered, number_of(p, unit), p->main));
    else TRY(gpu_number_await(p->answered, number_of(p, unit), &p->stop));
    int span = trace_begin(p->m->trace, p->main, p->o.device, LANE_COMPUTE, "output", layer, (int)(m - p->micro));
    TRY(gpu_copy(p->main, p->work.att, p->buffer[unit % BUFFERS].att, (size_t)m->n * result_floats(p) * 4, GPU_H2D));
    const struct piece *first = p->piece + m->piece, *end = first + m->n_pieces;
    for (const struct piece *t = first; t < end; t++) {
        struct work w = piece_of(p, m, t->at);
        TRY(block_output(exec_of(p), p->c, y, &w, t->n));
        TRY(block_route(exec_of(p), p->c, y, layer, &w, t->n));
    }
    trace_end(p->m->trace, span, p->main);
    if (p->c->layer[layer].moe) TRY(experts(p, layer, m));
    for (const struct piece *t = first; t < end; t++) {
        struct work w = piece_of(p, m, t->at);
        TRY(block_experts(exec_of(p), p->c, y, layer, &w, PART_SHARED, w.x, t->n));
    }
    return 0;
}

static int begin(struct paged *p) {
    const size_t rows = (size_t)p->n * 4;
    if (p->m->processor) TRY(gpu_number_wait(p->answered, p->at, p->main)); /* embedded */
    TRY(gpu_fill(p->main, (void *)p->work.bad, 0xff, 4));
    TRY(gpu_copy(p->main, p->pos, p->host_pos, rows, GPU_H2D));
    TRY(gpu_copy(p->main, p->tokens, p->host_tokens, rows, GPU_H2D));
    return p->length ? gpu_copy(p->main, p->length, p->host_length, rows, GPU_H2D) : 0;
}

/* The order of paper B's algorithm 1: behind attention of one, before attention of the one AHEAD, then a part of the next layer's pages. */
static int feed_all(struct paged *p) {
    const int all = p->c->n_layers * p->n_micros, ahead = AHEAD < p->n_micros ? AHEAD : p->n_micros;
    const uint64_t each = (uint64_t)(p->w.n_experts - p->w.kept);
    TRY(paged_weights_send(&p->w, p->w.base + each));
    TRY(begin(p));
    for (int unit = 0; unit < ahead; unit++) TRY(project(p, unit));
    for (int unit = 0; unit < all; unit++) {
        const bool moe = p->c->layer[layer_of(p, unit)].moe;
        const uint64_t k = (uint64_t)(unit % p->n_micros) + 1;
        TRY(go_on(p, unit));
        if (unit + ahead < all) TRY(project(p, unit + ahead));
        if (moe) TRY(paged_weights_send(&p->w, p->w.base + each + each * k / (uint64_t)p->n_micros));
        if (moe && k == (uint64_t)p->n_micros) p->w.base += each;
    }
    return gpu_number_write(p->arrived, p->at + (uint32_t)all + 1, p->main);
}
static void stop(struct paged *p) {
    atomic_store(&p->stop, 1);
    gpu_number_break(p->arrived);
    gpu_number_break(p->answered);
    gpu_number_break(p->routed);
}
static void *feed(void *arg) {
    struct paged *p = arg;
    p->rc = feed_all(p);
    if (p->rc) stop(p);
    return NULL;
}

/* --- The processor ---------------------------------------------------------------------------------------------------------------- */

static int answer(struct paged *p, uint32_t value) {
    if (p->m->processor) return gpu_number_write(p->answered, value, p->m->processor);
    gpu_number_set(p->answered, value);
    return 0;
}
static int await(struct paged *p, uint32_t value) {
    return p->m->processor ? gpu_number_wait(p->arrived, value, p->m->processor) : gpu_number_await(p->arrived, value, p->cancel);
}

static void store(const struct paged_span *s, int layer, const struct kv_plane *from, int n, int row) {
    for (int i = 0; i < n; i++) {
        const struct kv_plane *to = &s->kv->layer[layer].p[i];
        struct kv_rows a = kv_rows_of(&from[i], row, s->n), b = kv_rows_of(to, s->pos, s->n);
        memcpy((char *)to->data + b.at, (const char *)from[i].data + a.at, a.bytes);
        if (a.scales) memcpy(to->scale + b.scale_at, from[i].scale + a.scale_at, a.scales * 4);
    }
}

static int attend(struct paged *p, int unit) {
    const int layer = layer_of(p, unit);
    const struct micro_batch *m = micro_of(p, unit);
    struct rows_buffer *b = &p->buffer[unit % BUFFERS];
    const struct layer *y = place_layer(p->m->place, p->m->w, layer);
    struct kv_plane made[CACHE_PLANES];
    int n = planes_of(p, layer, b->kv, made), row = 0;
    TRY(await(p, number_of(p, unit)));
    double t = trace_now(p->m->trace);
    for (int i = m->span; i < m->span + m->n_spans; row += p->spans[i++].n)
        if (!p->m->processor) store(&p->spans[i], layer, made, n, row);
    row = 0;
    for (int i = m->span; i < m->span + m->n_spans; row += p->spans[i++].n) {
        const struct paged_span *s = &p->spans[i];
        struct work w = {.q = b->q, .att = b->att};
        TRY(block_attend(p->m->cpu, p->c, y, layer, &w, &(struct span){.cache = s->kv->layer, .row = row, .n = s->n, .pos = s->pos},
                         (struct block_keys){.n = s->pos + s->n, .piece = PIECE_ALL}));
    }
    trace_host(p->m->trace, t, "attention", layer, (int)(m - p->micro));
    return answer(p, number_of(p, unit));
}

static int embed(struct paged *p) {
    for (int at = 0; at < p->n; at += OP_FEW) {
        struct work w = {.x = p->host_x + (size_t)at * (size_t)p->c->hidden, .tokens = p->host_tokens + at};
        TRY(block_embed(p->m->cpu, p->m->w, &w, p->n - at < OP_FEW ? p->n - at : OP_FEW));
    }
    return p->m->processor ? answer(p, p->at) : 0;
}

static int attend_all(struct paged *p) {
    const int all = p->c->n_layers * p->n_micros;
    for (int unit = 0; unit < all; unit++) {
        if (p->calls->stop && p->calls->stop(p->calls->ctx)) return ERR_CANCELLED;
        TRY(attend(p, unit));
    }
    return await(p, p->at + (uint32_t)all + 1);
}

/* --- The head: the last rows of the spans that want it, a few at a time ------------------------------------------------------------------ */

static int head_few(struct paged *p, const int *which, const int *row, int n, struct error *e) {
    struct work w = {.x = p->head_x, .xn = p->head_xn, .bad = p->work.bad};
    for (int i = 0; i < n; i++)
        TRY(gpu_copy(p->main, p->head_x + (size_t)i * (size_t)p->c->hidden, p->x + (size_t)row[i] * (size_t)p->c->hidden, hidden_bytes(p, 1), GPU_D2D));
    TRY(block_head(exec_of(p), &p->w.head, &w, 0, n, p->logits, NULL));
    TRY(gpu_copy(p->main, p->host_logits, p->logits, (size_t)n * (size_t)p->c->vocab * 4, GPU_D2H));
    TRY(gpu_copy(p->main, p->host_bad, (const void *)p->work.bad, 4, GPU_D2H));
    TRY(gpu_stream_sync(p->main));
    if (p->m->processor) return 0;
    _Atomic int bad = *p->host_bad;
    TRY(check_finite(p->m->w, &(struct work){.bad = &bad}, e));
    for (int i = 0; i < n; i++) {
        float *logits = p->host_logits + (size_t)i * (size_t)p->c->vocab;
        int32_t top = 0;
        TRY(check_logits(p->m->w, &(struct work){.bad = &bad}, logits, e));
        for (int32_t k = 1; k < p->c->vocab; k++)
            if (logits[k] > logits[top]) top = k;
        p->calls->tell(p->calls->ctx, which[i], logits, top);
    }
    return 0;
}

static int head(struct paged *p, struct error *e) {
    int which[OP_FEW], row[OP_FEW], n = 0, at = 0;
    for (int i = 0; i < p->n_spans; i++) {
        at += p->spans[i].n;
        if (p->spans[i].tell) which[n] = i, row[n++] = at - 1;
        if (n && (n == OP_FEW || i == p->n_spans - 1)) {
            TRY(head_few(p, which, row, n, e));
            n = 0;
        }
    }
    return 0;
}

/* --- A step ------------------------------------------------------------------------------------------------------------------------- */

static void add_piece(struct paged *p, struct micro_batch *m, int n) {
    struct piece *last = m->n_pieces ? &p->piece[m->piece + m->n_pieces - 1] : NULL;
    if (n <= OP_FEW && last && !last->alone && last->n + n <= OP_FEW) last->n += n;
    else p->piece[m->piece + m->n_pieces++] = (struct piece){.at = m->n, .n = n, .alone = n > OP_FEW};
}

/* Rows in order of spans. */
static int lay_out(struct paged *p, struct error *e) {
    int pieces = 0;
    p->n = p->n_micros = 0;
    for (int i = 0; i < p->n_spans; i++) {
        const struct paged_span *s = &p->spans[i];
        if (s->micro == p->n_micros && p->n_micros < PAGED_MICROS) p->micro[p->n_micros++] = (struct micro_batch){.row = p->n, .span = i, .piece = pieces};
        struct micro_batch *m = &p->micro[p->n_micros - 1];
        if (!p->n_micros || s->micro != p->n_micros - 1 || m->n + s->n > p->o.micro || p->n + s->n > p->o.rows)
            return error_set(e, ERR_RUNTIME, "span %d of %d rows does not fit micro-batch %d", i, s->n, s->micro);
        for (int k = 0; k < s->n; k++) {
            p->host_pos[p->n + k] = s->pos + k, p->host_tokens[p->n + k] = s->tokens[k];
            if (p->host_length) p->host_length[p->n + k] = s->total;
        }
        add_piece(p, m, s->n);
        pieces = m->piece + m->n_pieces;
        m->n_spans++, m->n += s->n, p->n += s->n;
        int rc = kv_reach(s->kv, s->pos + s->n, e);
        if (rc) return rc;
    }
    return 0;
}

/* Streams idle and numbers fresh, whatever was under way. */
static int settle(struct paged *p, struct error *e) {
    stop(p);
    gpu_stream_sync(p->main);
    gpu_stream_sync(p->link);
    processor_settle(p->m, NULL, 0);
    gpu_number_close(&p->arrived), gpu_number_close(&p->answered), gpu_number_close(&p->routed);
    p->at = p->n_routed = 0;
    int rc = paged_weights_reset(&p->w, e); /* also drops what buffers still wait to send */
    atomic_store(&p->stop, 0);
    if (!rc) rc = gpu_number_open(p->g, &p->arrived, e);
    if (!rc) rc = gpu_number_open(p->g, &p->answered, e);
    if (!rc) rc = gpu_number_open(p->g, &p->routed, e);
    return rc;
}

int paged_run(struct paged *p, const struct paged_span *spans, int n_spans, const struct paged_calls *calls, const _Atomic int *cancel, struct error *e) {
    p->spans = spans, p->n_spans = n_spans, p->calls = calls, p->cancel = cancel;
    int rc = lay_out(p, e);
    if (rc || !p->n) return rc;
    p->m->cpu->cancel = cancel;
    if (p->m->processor) p->at++; /* a number for the embedding */
    rc = embed(p);
    if (!rc && pthread_create(&p->thread, NULL, feed, p)) return error_set(e, ERR_RUNTIME, "no thread to feed a device");
    if (!rc) {
        rc = attend_all(p);
        if (rc) stop(p);
        pthread_join(p->thread, NULL);
        if (p->rc && p->rc != ERR_CANCELLED) rc = p->rc; /* who was first to fail stopped the other */
    }
    p->at += (uint32_t)(p->c->n_layers * p->n_micros) + 1;
    if (!rc) rc = head(p, e);
    if (!rc && p->m->processor) { /* what follows the step does so on its clock, too */
        rc = gpu_number_write(p->arrived, ++p->at, p->main);
        if (!rc) rc = gpu_number_wait(p->arrived, p->at, p->m->processor);
    }
    trace_settle(p->m->trace);
    if (!rc) return 0;
    struct error device = {0};
    bool failed = gpu_error(p->g, &device), cancelled = cancel && atomic_load(cancel);
    if (failed) *e = device, rc = e->code;
    else if (rc == ERR_MODEL && !e->code)
        error_set(e, rc, "a number that is not finite came out of a layer; the weights may be damaged: --verify reads them all");
    else if (cancelled || !e->code) op_error(cancelled ? rc = ERR_CANCELLED : rc, e);
    struct error after = {0};
    if (settle(p, &after) && !failed) *e = after, rc = e->code;
    return rc;
}

/* --- Opening -------------------------------------------------------------------------------------------------------------------------- */

static void *device_alloc(void *ctx, size_t size) {
    struct paged *p = ctx;
    void *q;
    return gpu_alloc(p->g, &q, size, NULL) ? NULL : q;
}
static void device_release(void *ctx, void *q) {
    struct paged *p = ctx;
    gpu_stream_sync(p->main);
    gpu_free(p->g, q);
}

static size_t plan_planes(struct paged *p) {
    size_t most[CACHE_PLANES] = {0};
    for (int l = 0; l < p->c->n_layers; l++) {
        struct cache_desc d[CACHE_PLANES];
        for (int i = kv_planes(p->c, l, d); i-- > 0;) {
            struct kv_plane one = kv_plane_of(&d[i], p->kv);
            struct kv_rows r = kv_rows_of(&one, 0, p->o.micro);
            size_t bytes = ((r.bytes + 255) & ~(size_t)255) + ((r.scales * 4 + 255) & ~(size_t)255);
            if (bytes > most[i]) most[i] = bytes;
        }
    }
    for (int i = 0; i < CACHE_PLANES; i++) p->plane_at[i + 1] = p->plane_at[i] + most[i];
    return p->plane_at[CACHE_PLANES];
}

static int open_memory(struct paged *p, struct error *e) {
    const struct config *c = p->c;
    const size_t micro = (size_t)p->o.micro, rows = (size_t)p->o.rows, experts = (size_t)c->n_experts, vocab = (size_t)c->vocab * 4, planes = plan_planes(p);
    const bool length = c->rope.kind == ROPE_LONG;
    struct {
        void **to;
        size_t bytes;
        bool host;
    } all[] = {{(void **)&p->x, hidden_bytes(p, p->o.rows), false},
               {(void **)&p->head_x, hidden_bytes(p, OP_FEW), false},
               {(void **)&p->head_xn, hidden_bytes(p, OP_FEW), false},
               {(void **)&p->logits, OP_FEW * vocab, false},
               {(void **)&p->pos, rows * 4, false},
               {(void **)&p->tokens, rows * 4, false},
               {(void **)&p->length, length ? rows * 4 : 0, false},
               {(void **)&p->planes, planes, false},
               {(void **)&p->offset, (experts + 1) * 4, false},
               {(void **)&p->token, micro * (size_t)c->topk * 4, false},
               {(void **)&p->weight, micro * (size_t)c->topk * 4, false},
               {(void **)&p->host_x, hidden_bytes(p, p->o.rows), true},
               {(void **)&p->host_logits, OP_FEW * vocab, true},
               {(void **)&p->host_pos, rows * 4, true},
               {(void **)&p->host_tokens, rows * 4, true},
               {(void **)&p->host_length, length ? rows * 4 : 0, true},
               {(void **)&p->host_ids, micro * (size_t)c->topk * 4, true},
               {(void **)&p->host_bad, 4, true}};
    int rc = work_open(&p->work, c, p->o.micro, device_alloc, device_release, p, e);
    for (size_t i = 0; i < sizeof all / sizeof *all && !rc; i++)
        if (all[i].bytes) rc = all[i].host ? gpu_host_alloc(p->g, all[i].to, all[i].bytes, e) : gpu_alloc(p->g, all[i].to, all[i].bytes, e);
    for (int i = 0; i < BUFFERS && !rc; i++) {
        rc = gpu_host_alloc(p->g, (void **)&p->buffer[i].q, micro * query_floats(p) * 4, e);
        if (!rc) rc = gpu_host_alloc(p->g, (void **)&p->buffer[i].att, micro * result_floats(p) * 4, e);
        if (!rc) rc = gpu_host_alloc(p->g, (void **)&p->buffer[i].kv, planes, e);
    }
    p->micro = mem_alloc(PAGED_MICROS * sizeof *p->micro);
    p->piece = mem_alloc(rows * sizeof *p->piece);
    p->cache = mem_calloc((size_t)c->n_layers, sizeof *p->cache);
    p->run = mem_alloc(runs_of(p->o.micro) * sizeof *p->run);
    p->count = mem_alloc(runs_of(p->o.micro) * experts * sizeof *p->count);
    if (!rc && (!p->micro || !p->piece || !p->cache || !p->run || !p->count)) rc = error_set(e, ERR_MEMORY, "no memory for micro-batches");
    for (int l = 0; l < c->n_layers && !rc; l++) planes_of(p, l, p->planes, p->cache[l].p);
    return rc;
}

int paged_open(struct paged **out, struct machine *m, enum dtype kv, const struct paged_options *o, const _Atomic int *cancel, struct error *e) {
    const char *why = paged_cannot(m);
    *out = NULL;
    if (why) return error_set(e, ERR_RUNTIME, "paged steps: %s", why);
    struct paged *p = mem_calloc(1, sizeof *p);
    if (!p) return error_set(e, ERR_MEMORY, "no memory for paged steps");
    p->m = m, p->c = &m->w->config, p->o = *o, p->kv = kv, p->g = m->gpus->gpu[o->device];
    if (p->o.rows < p->o.micro) p->o.rows = p->o.micro;
    int rc = gpu_stream_open(p->g, &p->main, "paged", true, &p->stop, e);
    if (!rc) rc = gpu_stream_open(p->g, &p->link, "pages", false, &p->stop, e);
    if (!rc) rc = gpu_number_open(p->g, &p->arrived, e);
    if (!rc) rc = gpu_number_open(p->g, &p->answered, e);
    if (!rc) rc = gpu_number_open(p->g, &p->routed, e);
    if (!rc) rc = open_memory(p, e);
    if (!rc) rc = paged_weights_open(&p->w, m, p->g, p->link, &p->stop, o->share, cancel, e);
    if (!rc && (rc = gpu_copy(p->main, p->work.inv_freq, m->w->inv_freq, (size_t)rope_floats(p->c) * 4, GPU_H2D)) && !gpu_error(p->g, e)) op_error(rc, e);
    if (!rc && (rc = gpu_stream_sync(p->main)) && !gpu_error(p->g, e)) op_error(rc, e);
    *out = p;
    if (rc) paged_close(out);
    return rc;
}

void paged_close(struct paged **pp) {
    struct paged *p = *pp;
    if (!p) return;
    *pp = NULL;
    atomic_store(&p->stop, 1);
    if (p->main) gpu_stream_sync(p->main);
    if (p->w.m) paged_weights_close(&p->w);
    if (p->work.release) work_close(&p->work);
    void *device[] = {p->x, p->head_x, p->head_xn, p->logits, p->pos, p->tokens, p->length, p->planes, p->offset, p->token, p->weight};
    void *host[] = {p->host_x, p->host_logits, p->host_pos, p->host_tokens, p->host_length, p->host_ids, p->host_bad};
    for (size_t i = 0; i < sizeof device / sizeof *device; i++) gpu_free(p->g, device[i]);
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) gpu_host_free(p->g, host[i]);
    for (int i = 0; i < BUFFERS; i++) gpu_host_free(p->g, p->buffer[i].q), gpu_host_free(p->g, p->buffer[i].att), gpu_host_free(p->g, p->buffer[i].kv);
    processor_settle(p->m, (struct gpu_number *[]){p->arrived, p->answered, p->routed}, 3);
    gpu_number_close(&p->arrived), gpu_number_close(&p->answered), gpu_number_close(&p->routed);
    if (p->main) gpu_stream_close(&p->main);
    if (p->link) gpu_stream_close(&p->link);
    mem_free(p->micro);
    mem_free(p->piece);
    mem_free(p->run);
    mem_free(p->count);
    mem_free(p->cache);
    mem_free(p);
}

double paged_share(const struct paged *p) { return (double)p->w.kept / p->w.n_experts; }
int paged_layers(const struct paged *p) { return p->w.kept < p->w.n_experts ? 100 * p->w.ring / (p->w.n_experts - p->w.kept) : 0; }
