/* KV rows that a batch adds: collected in one device buffer, [layer][plane][row] with a plane's scales after its rows, and downloaded
 * in one copy at the end of the batch. States, one per span and layer, are downloaded separately. */
#include <string.h>

#include "cpu/pool.h"
#include "engine/base/mem.h"
#include "engine/step/internal.h"

/* Most multi-token rows that n tokens complete: each of up to STEP_ROWS spans may complete one more than its length suggests. */
static size_t made_rows(const struct step_cache *p, int n) {
    int most = p->least_every ? n / p->least_every + STEP_ROWS : 0;
    return (size_t)(most < n ? most : n);
}
/* bytes that n tokens add to the layers before */
static size_t bytes_before(const struct step_cache *p, int layer, int n) { return p->row_at[layer] * (size_t)n + p->made_at[layer] * made_rows(p, n); }

static size_t data_bytes(const struct kv_plane *p) { return (kv_rows_of(p, 0, 1).bytes + 15) & ~(size_t)15; } /* of a row */
static size_t scale_bytes(const struct kv_plane *p) { return kv_rows_of(p, 0, 1).scales * 4; }

int step_cache_open(struct step_cache *p, const struct config *c, enum dtype kv, struct error *e) {
    p->c = c, p->kv = kv;
    p->row_at = mem_calloc((size_t)c->n_layers + 1, sizeof *p->row_at);
    p->made_at = mem_calloc((size_t)c->n_layers + 1, sizeof *p->made_at);
    p->state_at = mem_calloc((size_t)c->n_layers + 1, sizeof *p->state_at);
    if (!p->row_at || !p->made_at || !p->state_at) return error_set(e, ERR_MEMORY, "no memory for decode");
    for (int l = 0; l < c->n_layers; l++) {
        p->row_at[l + 1] = p->row_at[l], p->made_at[l + 1] = p->made_at[l], p->state_at[l + 1] = p->state_at[l];
        p->planes[l] = kv_planes(c, l, p->desc[l]);
        for (int k = p->planes[l]; k-- > 0;) {
            const struct cache_desc *d = &p->desc[l][k];
            struct kv_plane plane = kv_plane_of(d, kv);
            if (d->rows) p->state_at[l + 1] += step_up(kv_rows_of(&plane, 0, 1).bytes);
            else (d->every ? p->made_at : p->row_at)[l + 1] += data_bytes(&plane) + scale_bytes(&plane);
            if (d->every && (!p->least_every || d->every < p->least_every)) p->least_every = d->every;
        }
    }
    return 0;
}
void step_cache_close(struct step_cache *p) { mem_free(p->row_at), mem_free(p->made_at), mem_free(p->state_at); }
size_t step_rows_bytes(const struct step_cache *p, int n) { return bytes_before(p, p->c->n_layers, n); }

/* The planes of a layer for n rows; `mem` is where the rows of layer `first` start. State planes have no data. */
static int gathered(const struct step_cache *c, char *mem, int first, int layer, int n, struct kv_plane out[CACHE_PLANES]) {
    int planes = c->planes[layer];
    char *at = mem + (bytes_before(c, layer, n) - bytes_before(c, first, n));
    for (int p = 0; p < planes; p++) {
        out[p] = kv_plane_of(&c->desc[layer][p], c->kv);
        if (c->desc[layer][p].rows) continue;
        size_t rows = c->desc[layer][p].every ? made_rows(c, n) : (size_t)n, data = data_bytes(&out[p]) * rows, scales = scale_bytes(&out[p]) * rows;
        out[p].data = at;
        out[p].scale = scales ? (float *)(at + data) : NULL;
        at += data + scales;
    }
    return planes;
}

int step_rows_keep(struct step_device *d, int layer, const struct step_micro *m, int total) {
    struct step *s = d->s;
    struct exec *x = gpu_stream_exec(d->main);
    struct kv_plane to[CACHE_PLANES];
    const float *from = d->work[m - s->micro].kv; /* all rows of a plane, then the next plane */
    int planes = gathered(d->cache, d->rows, d->first, layer, total, to), rc = 0;
    for (int p = 0; p < planes && !rc; p++) {
        int width = to[p].heads * to[p].dim;
        if (!to[p].data || d->cache->desc[layer][p].every) continue;
        rc = x->ops->kv_store(x, &(struct op_kv_store){.plane = to[p], .x = from, .row0 = m->row0, .n = m->n_dev, .ldx = width});
        from += (size_t)m->n_dev * (size_t)width;
    }
    return rc;
}

/* Multi-token rows exist only in the device KV. A span's rows start at its own first row, which leaves enough room. */
static int keep_made(struct step_device *d, const struct step_micro *m, int total) {
    for (int l = d->first; l < d->last && d->cache->least_every; l++) {
        struct kv_plane to[CACHE_PLANES];
        for (int p = gathered(d->cache, d->rows, d->first, l, total, to); p-- > 0;)
            for (int i = 0; i < m->n_dev_spans; i++) {
                const struct cache_desc *desc = &d->cache->desc[l][p];
                const struct span *t = &m->dev[i];
                int row = kv_row_at(desc, t->pos), n = kv_row_at(desc, t->pos + t->n) - row;
                if (desc->every) TRY(step_mirror_copy(d->main, &to[p], m->row0 + t->row, m->copy[i], d, l, p, row, n, GPU_D2D));
            }
    }
    return 0;
}

int step_rows_send(struct step_device *d, int total) {
    for (int i = 0; i < d->s->n_micros; i++) TRY(keep_made(d, &d->s->micro[i], total));
    size_t at = bytes_before(d->cache, d->first, total);
    return gpu_copy(d->main, d->host_rows + at, d->rows, bytes_before(d->cache, d->last, total) - at, GPU_D2H);
}

/* Offset of a state among those of all layers. */
static size_t state_offset(const struct step *s, int layer, int plane) {
    size_t at = s->cache.state_at[layer];
    for (int p = 0; p < plane; p++)
        if (s->cache.desc[layer][p].rows) {
            struct kv_plane before = kv_plane_of(&s->cache.desc[layer][p], s->kv);
            at += step_up(kv_rows_of(&before, 0, 1).bytes);
        }
    return at;
}

enum { STATES_MB = 512, STATES_ALONE = 1 << 20 };
int step_states_open(struct step *s, struct error *e) {
    const size_t each = s->cache.state_at[s->c->n_layers], most = each ? ((size_t)STATES_MB << 20) / each : 0;
    s->n_host_states = most < STEP_ROWS ? (int)most : STEP_ROWS; /* further spans download directly */
    return s->n_host_states ? gpu_host_alloc(s->dev[0].g, (void **)&s->host_states, (size_t)s->n_host_states * each, e) : 0;
}

int step_states_send(struct step_device *d, int i, const struct span *dev, const struct span *host) {
    struct step *s = d->s;
    for (int l = d->first; l < d->last; l++)
        for (int p = 0; p < s->cache.planes[l]; p++) {
            if (!s->cache.desc[l][p].rows) continue;
            struct kv_plane from = attention_plane(dev->cache[l].p[p], dev->move.to), to = attention_plane(host->cache[l].p[p], host->move.to);
            char *way = s->host_states + (size_t)i * s->cache.state_at[s->c->n_layers] + state_offset(s, l, p);
            TRY(gpu_copy(d->main, i < s->n_host_states ? way : to.data, from.data, kv_rows_of(&from, 0, 1).bytes, GPU_D2H));
        }
    return 0;
}

static void store_states(void *step, int thread, int n_threads) {
    const struct step *s = step;
    for (int k = 0, i = 0; k < s->n_micros; k++)
        for (int t = 0; t < s->micro[k].n_dev_spans && i < s->n_host_states; t++, i++)
            for (int l = thread; l < s->n_resident; l += n_threads)
                for (int p = 0; p < s->cache.planes[l]; p++) {
                    const struct span *host = &s->micro[k].spans[t];
                    if (!s->cache.desc[l][p].rows) continue;
                    struct kv_plane to = attention_plane(host->cache[l].p[p], host->move.to);
                    memcpy(to.data, s->host_states + (size_t)i * s->cache.state_at[s->c->n_layers] + state_offset(s, l, p), kv_rows_of(&to, 0, 1).bytes);
                }
}
void step_states_store(struct step *s) {
    int spans = 0;
    for (int k = 0; k < s->n_micros; k++) spans += s->micro[k].n_dev_spans;
    if ((size_t)spans * s->cache.state_at[s->c->n_layers] > STATES_ALONE) pool_run(s->m->scan.pool, store_states, s);
    else store_states(s, 0, 1);
}

/* Stores n rows of a rank's heads among all heads. */
static void store_heads(const struct kv_plane *to, int head0, int pos, const struct kv_plane *from, int from_row, int n) {
    struct step_heads h = step_heads_of(to, head0, from->heads, pos);
    for (int i = 0; i < n; i++) {
        struct kv_rows x = kv_rows_of(from, from_row + i, 1);
        memcpy(h.data + (size_t)i * h.pitch, (const char *)from->data + x.at, h.row);
        if (h.scales) memcpy((char *)h.scale + (size_t)i * h.scale_pitch, from->scale + x.scale_at, h.scales);
    }
}

/* Stores the rows of one plane that tokens [pos, pos + n) made. */
static void store_rows(const struct cache_desc *d, const struct kv_plane *to, int pos, const struct kv_plane *from, int from_row, int n) {
    if (!from->data) return; /* a state plane */
    int row = kv_row_at(d, pos);
    n = kv_row_at(d, pos + n) - row;
    struct kv_rows x = kv_rows_of(from, from_row, n), y = kv_rows_of(to, row, n);
    memcpy((char *)to->data + y.at, (const char *)from->data + x.at, x.bytes);
    if (x.scales) memcpy(to->scale + y.scale_at, from->scale + x.scale_at, x.scales * 4);
}

void step_rows_store(struct step *s, const struct step_micro *m, const struct step_span *caller, int total) {
    for (int i = 0; i < s->n_dev && m->n_dev; i++)
        for (int l = s->dev[i].first; l < s->dev[i].last; l++) {
            const struct step_device *d = &s->dev[i];
            struct kv_plane from[CACHE_PLANES];
            int planes = gathered(d->cache, d->host_rows, 0, l, total, from);
            for (int p = 0; p < planes; p++)
                for (int k = 0; k < m->n_dev_spans; k++) {
                    const struct span *t = &m->spans[k];
                    const struct kv *kv = caller[m->source[k]].kv;
                    if (from[p].heads == kv->layer[l].p[p].heads) {
                        if (!s->tensor || !i) store_rows(&s->cache.desc[l][p], &kv->layer[l].p[p], t->pos, &from[p], m->row0 + t->row, t->n);
                    } else store_heads(&kv->layer[l].p[p], d->share.kv_head0, t->pos, &from[p], m->row0 + t->row, t->n);
                }
        }
}

/* After a prefill's rows: each layer's states, at the end and at the mark. */
static char *saved_state(const struct step *s, char *host, int n, int layer, int plane, bool mark) {
    return host + step_rows_bytes(&s->cache, n) + (mark ? s->cache.state_at[s->c->n_layers] : 0) + state_offset(s, layer, plane);
}
size_t step_saved_bytes(const struct step *s, int n) { return step_rows_bytes(&s->cache, n) + 2 * s->cache.state_at[s->c->n_layers]; }

int step_mirror_save(struct step *s, const struct step_mirror *m, struct gpu_stream *stream, int layer, int pos, int n, char *host) {
    struct kv_plane to[CACHE_PLANES];
    int planes = gathered(&s->cache, host, 0, layer, n, to), rc = 0;
    for (int p = 0; p < planes && !rc; p++) {
        const struct cache_desc *d = &s->cache.desc[layer][p];
        int row = kv_row_at(d, pos);
        if (to[p].data) rc = step_mirror_copy(stream, &to[p], 0, m, step_device_of(s, layer), layer, p, row, kv_row_at(d, pos + n) - row, GPU_D2H);
    }
    for (int p = 0; p < 2 * planes && !rc; p++) {
        bool mark = p >= planes;
        if (!s->cache.desc[layer][p % planes].rows || (mark && !m->move.mark)) continue;
        struct kv_plane from = attention_plane(m->layer[layer].p[p % planes], mark ? m->move.marked : m->move.to);
        rc = gpu_copy(stream, saved_state(s, host, n, layer, p % planes, mark), from.data, kv_rows_of(&from, 0, 1).bytes, GPU_D2H);
    }
    return rc;
}

void step_mirror_store(struct step *s, const struct kv *kv, const struct kv_move *move, int pos, int n, char *host) {
    for (int l = 0; l < s->n_resident; l++) {
        struct kv_plane from[CACHE_PLANES];
        int planes = gathered(&s->cache, host, 0, l, n, from);
        for (int p = 0; p < planes; p++) store_rows(&s->cache.desc[l][p], &kv->layer[l].p[p], pos, &from[p], 0, n);
        for (int p = 0; p < 2 * planes; p++) {
            bool mark = p >= planes;
            if (!s->cache.desc[l][p % planes].rows || (mark && !move->mark)) continue;
            struct kv_plane to = attention_plane(kv->layer[l].p[p % planes], mark ? move->marked : move->to);
            memcpy(to.data, saved_state(s, host, n, l, p % planes, mark), kv_rows_of(&to, 0, 1).bytes);
        }
    }
}
