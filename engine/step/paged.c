/* Throughput batches: splits rows into micro-batches, attends on the CPU, and runs a feeding thread per device. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/step/paged_internal.h"
#include "engine/step/processor.h"

const char *paged_cannot(const struct machine *m) {
    const struct config *c = &m->w->config;
    if (!m->gpus) return "there are no devices";
    if (m->gpus->lost) return "a device was lost";
    if (m->fetch) return "the weights do not fit in memory";
    if (!c->n_experts) return "the model has no routed experts";
    if (c->attn != ATTN_GQA) return "its attention (MLA or a variant) is not supported, only GQA";
    for (int l = 0; l < c->n_layers; l++)
        if (c->layer[l].delta) return "layers with a state (DeltaNet) are not supported";
    if (c->attn_gate || c->streams.n) return "its attention block is not supported";
    return NULL;
}

/* --- The CPU ----------------------------------------------------------------------------------------------------------------------  */

static int answer(struct paged_device *d, uint32_t value) {
    struct machine *m = d->p->m;
    if (m->processor) return gpu_number_write(d->answered, value, m->processor);
    gpu_number_set(d->answered, value);
    return 0;
}
static int await(struct paged_device *d, uint32_t value) {
    struct machine *m = d->p->m;
    return m->processor ? gpu_number_wait(d->arrived, value, m->processor) : gpu_number_await(d->arrived, value, d->p->cancel);
}

static void store(const struct paged_span *s, int layer, const struct kv_plane *from, int n, int row) {
    for (int i = 0; i < n; i++) {
        const struct kv_plane *to = &s->kv->layer[layer].p[i];
        struct kv_rows a = kv_rows_of(&from[i], row, s->n), b = kv_rows_of(to, s->pos, s->n);
        memcpy((char *)to->data + b.at, (const char *)from[i].data + a.at, a.bytes);
        if (a.scales) memcpy(to->scale + b.scale_at, from[i].scale + a.scale_at, a.scales * 4);
    }
}

static int attend(struct paged_device *d, int unit) {
    const struct paged *p = d->p;
    const int layer = paged_layer(d, unit);
    const struct micro_batch *m = paged_micro(d, unit);
    struct rows_buffer *b = &d->buffer[unit % PAGED_BUFFERS];
    const struct layer *y = place_layer(p->m->place, p->m->w, layer);
    struct kv_plane made[CACHE_PLANES];
    int n = paged_planes(p, layer, b->kv, made), row = 0;
    TRY(await(d, paged_number(d, unit)));
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
    return answer(d, paged_number(d, unit));
}

static int embed(struct paged *p) {
    for (int at = 0; at < p->n; at += OP_FEW) {
        struct work w = {.x = p->host_x + (size_t)at * (size_t)p->c->hidden, .tokens = p->host_tokens + at};
        TRY(block_embed(p->m->cpu, p->m->w, &w, p->n - at < OP_FEW ? p->n - at : OP_FEW));
    }
    for (int i = 0; i < p->n_dev && p->m->processor; i++) TRY(answer(&p->dev[i], p->at));
    return 0;
}

/* Attends in global turn order: with several devices a layer starts before the previous one has ended. */
static int attend_all(struct paged *p) {
    const int last = p->c->n_layers - 1, n = p->n_micros;
    for (int turn = 0; turn < last * p->stagger + n; turn++)
        for (int layer = turn < n ? 0 : (turn - n) / p->stagger + 1; layer <= last && layer * p->stagger <= turn; layer++) {
            if (p->calls->stop && p->calls->stop(p->calls->ctx)) return ERR_CANCELLED;
            TRY(attend(&p->dev[layer % p->n_dev], layer / p->n_dev * n + turn - layer * p->stagger));
        }
    for (int i = 0; i < p->n_dev; i++) TRY(await(&p->dev[i], paged_end(p)));
    return 0;
}

static struct paged_device *last_of(struct paged *p) { return &p->dev[(p->c->n_layers - 1) % p->n_dev]; }
static int head(struct paged *p, struct error *e) {
    int which[OP_FEW], row[OP_FEW], n = 0, at = 0;
    for (int i = 0; i < p->n_spans; i++) {
        at += p->spans[i].n;
        if (p->spans[i].tell) which[n] = i, row[n++] = at - 1;
        if (n && (n == OP_FEW || i == p->n_spans - 1)) {
            TRY(paged_device_head(last_of(p), which, row, n, e));
            n = 0;
        }
    }
    return 0;
}

/* --- A batch ------------------------------------------------------------------------------------------------------------------------  */

static void add_piece(struct paged *p, struct micro_batch *m, int n) {
    struct piece *last = m->n_pieces ? &p->piece[m->piece + m->n_pieces - 1] : NULL;
    if (n <= OP_FEW && last && !last->alone && last->n + n <= OP_FEW) last->n += n;
    else p->piece[m->piece + m->n_pieces++] = (struct piece){.at = m->n, .n = n, .alone = n > OP_FEW};
}

/* Lays out rows in the order of spans. */
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

static void stop(struct paged *p) {
    atomic_store(&p->stop, 1);
    for (int i = 0; i < p->n_dev; i++) paged_device_break(&p->dev[i]);
}
static void *feed(void *arg) {
    struct paged_device *d = arg;
    d->rc = paged_device_feed(d);
    if (d->rc) stop(d->p);
    return NULL;
}

static void settle_streams(struct paged *p) {
    stop(p);
    for (int i = 0; i < p->n_dev; i++) {
        if (p->dev[i].main) gpu_stream_sync(p->dev[i].main);
        if (p->dev[i].link) gpu_stream_sync(p->dev[i].link);
    }
    processor_settle(p->m, NULL, 0);
}
/* Leaves streams idle with fresh timelines, whatever was in flight. */
static int settle(struct paged *p, struct error *e) {
    int rc = 0;
    settle_streams(p);
    p->at = 0;
    for (int i = 0; i < p->n_dev && !rc; i++) rc = paged_weights_reset(&p->dev[i].w, e); /* also drops uploads that still wait for buffers */
    atomic_store(&p->stop, 0);
    for (int i = 0; i < p->n_dev && !rc; i++) rc = paged_device_numbers(&p->dev[i], e);
    return rc;
}

/* Feeds all devices and attends; returns 0 or the first failure. */
static int walk(struct paged *p, struct error *e) {
    int fed = 0, rc = 0;
    while (fed < p->n_dev && !pthread_create(&p->dev[fed].thread, NULL, feed, &p->dev[fed])) fed++;
    if (fed < p->n_dev) rc = error_set(e, ERR_RUNTIME, "cannot start a thread to feed a device");
    if (!rc) rc = attend_all(p);
    if (rc) stop(p);
    for (int i = 0; i < fed; i++) pthread_join(p->dev[i].thread, NULL);
    for (int i = 0; i < fed && !e->code; i++)
        if (p->dev[i].rc && p->dev[i].rc != ERR_CANCELLED && rc != ERR_MODEL) rc = p->dev[i].rc; /* the first failure stopped the others */
    return rc;
}

int paged_run(struct paged *p, const struct paged_span *spans, int n_spans, const struct paged_calls *calls, const _Atomic int *cancel, struct error *e) {
    p->spans = spans, p->n_spans = n_spans, p->calls = calls, p->cancel = cancel;
    int rc = lay_out(p, e);
    if (rc || !p->n) return rc;
    p->m->cpu->cancel = cancel;
    p->stagger = search_behind(p->n_micros, p->n_dev);
    if (p->m->processor) p->at++; /* a value for the embedding */
    rc = embed(p);
    if (!rc) rc = walk(p, e);
    p->at = paged_end(p);
    if (!rc) rc = head(p, e);
    if (!rc && p->m->processor) { /* order what follows after the device's clock */
        rc = gpu_number_write(last_of(p)->arrived, ++p->at, last_of(p)->main);
        if (!rc) rc = gpu_number_wait(last_of(p)->arrived, p->at, p->m->processor);
    }
    trace_settle(p->m->trace);
    if (!rc) return 0;
    struct error device = {0};
    bool failed = false, cancelled = cancel && atomic_load(cancel);
    for (int i = 0; i < p->n_dev && !failed; i++) failed = gpu_error(p->dev[i].g, &device);
    if (failed) *e = device, rc = e->code;
    else if (rc == ERR_MODEL && !e->code) error_set(e, rc, "a layer produced a non-finite number; the weights may be damaged; check them with --verify");
    else if (cancelled || !e->code) op_error(cancelled ? rc = ERR_CANCELLED : rc, e);
    struct error after = {0};
    if (settle(p, &after) && !failed) *e = after, rc = e->code;
    return rc;
}

/* --- Opening -------------------------------------------------------------------------------------------------------------------------- */

static void plan_planes(struct paged *p) {
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
}

static int open_memory(struct paged *p, struct error *e) {
    const size_t rows = (size_t)p->o.rows;
    const struct {
        void **to;
        size_t bytes;
    } all[] = {{(void **)&p->host_x, rows * (size_t)p->c->hidden * 4},
               {(void **)&p->host_pos, rows * 4},
               {(void **)&p->host_tokens, rows * 4},
               {(void **)&p->host_length, p->c->rope.kind == ROPE_LONG ? rows * 4 : 0}};
    int rc = 0;
    for (size_t i = 0; i < sizeof all / sizeof *all && !rc; i++)
        if (all[i].bytes) rc = gpu_host_alloc(p->dev[0].g, all[i].to, all[i].bytes, e);
    plan_planes(p);
    p->micro = mem_alloc(PAGED_MICROS * sizeof *p->micro);
    p->piece = mem_alloc(rows * sizeof *p->piece);
    if (!rc && (!p->micro || !p->piece)) rc = error_set(e, ERR_MEMORY, "no memory for micro-batches");
    return rc;
}

int paged_open(struct paged **out, struct machine *m, enum dtype kv, const struct paged_options *o, const _Atomic int *cancel, struct error *e) {
    const char *why = paged_cannot(m);
    *out = NULL;
    if (why) return error_set(e, ERR_RUNTIME, "paged decode: %s", why);
    struct paged *p = mem_calloc(1, sizeof *p);
    if (!p) return error_set(e, ERR_MEMORY, "no memory for paged decode");
    p->m = m, p->c = &m->w->config, p->o = *o, p->kv = kv;
    if (p->o.rows < p->o.micro) p->o.rows = p->o.micro;
    p->n_dev = o->devices > 0 && o->devices < m->gpus->n ? o->devices : m->gpus->n;
    if (p->n_dev > p->c->n_layers) p->n_dev = p->c->n_layers;
    for (int i = 0; i < p->n_dev; i++) p->dev[i].p = p, p->dev[i].rank = i, p->dev[i].g = m->gpus->gpu[i];
    int rc = open_memory(p, e);
    for (int i = 0; i < p->n_dev && !rc; i++) rc = paged_device_open(&p->dev[i], cancel, e);
    *out = p;
    if (rc) paged_close(out);
    return rc;
}

void paged_close(struct paged **pp) {
    struct paged *p = *pp;
    if (!p) return;
    *pp = NULL;
    settle_streams(p);
    void *host[] = {p->host_x, p->host_pos, p->host_tokens, p->host_length};
    for (size_t i = 0; i < sizeof host / sizeof *host; i++) gpu_host_free(p->dev[0].g, host[i]);
    for (int i = 0; i < p->n_dev; i++) paged_device_close(&p->dev[i]);
    mem_free(p->micro);
    mem_free(p->piece);
    mem_free(p);
}

int paged_devices(const struct paged *p) { return p->n_dev; }
double paged_share(const struct paged *p) {
    double kept = 0, all = 0;
    for (int i = 0; i < p->n_dev; i++) kept += p->dev[i].w.n_kept, all += (double)p->dev[i].w.n_moe * p->dev[i].w.n_experts;
    return all > 0 ? kept / all : 0;
}
int paged_layers(const struct paged *p) {
    int least = 200;
    for (int i = 0; i < p->n_dev; i++) {
        const struct paged_weights *w = &p->dev[i].w;
        int most = 0;
        for (int l = i; l < p->c->n_layers; l += p->n_dev) most = (int)paged_weights_rest(w, l) > most ? (int)paged_weights_rest(w, l) : most;
        if (most && 100 * w->ring / most < least) least = 100 * w->ring / most;
    }
    return least;
}
