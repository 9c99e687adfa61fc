/* KV rows that a batch adds: collected in one device buffer, [layer][plane][row] with a plane's scales after its rows,
 * and downloaded in one copy at the end of the batch. States, one per span and layer, are downloaded separately. */
#include <string.h>

#include "base/mem.h"
#include "cpu/pool.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/exec/decode/kv_writeback.h"
#include "engine/layer/attention.h"
#include "engine/layer/kv_planes.h"

/* Most multi-token rows that n tokens complete: each of up to DECODE_MAX_ROWS spans may complete one more than its
 * length suggests. */
static size_t max_multi_rows(const struct kv_row_layout *p, int n) {
    int max_rows = p->min_every ? n / p->min_every + DECODE_MAX_ROWS : 0;
    return (size_t)(max_rows < n ? max_rows : n);
}
/* Returns the bytes that n tokens add to the layers before `layer`. */
static size_t bytes_before(const struct kv_row_layout *p, int layer, int n) {
    return p->row_bytes_before[layer] * (size_t)n + p->multi_bytes_before[layer] * max_multi_rows(p, n);
}

static size_t row_data_bytes(const struct kv_plane *p) { return align_up(kv_row_range_of(p, 0, 1).bytes, 16); }
static size_t row_scale_bytes(const struct kv_plane *p) { return kv_row_range_of(p, 0, 1).n_scales * 4; }

int kv_writeback_layout_open(struct kv_row_layout *p, const struct config *c, enum dtype kv, struct error *e) {
    p->c = c, p->kv = kv;
    p->row_bytes_before = mem_calloc((size_t)c->n_layers + 1, sizeof *p->row_bytes_before);
    p->multi_bytes_before = mem_calloc((size_t)c->n_layers + 1, sizeof *p->multi_bytes_before);
    p->state_bytes_before = mem_calloc((size_t)c->n_layers + 1, sizeof *p->state_bytes_before);
    if (!p->row_bytes_before || !p->multi_bytes_before || !p->state_bytes_before)
        return error_set(e, ERR_MEMORY, "no memory for decode");
    for (int l = 0; l < c->n_layers; l++) {
        p->row_bytes_before[l + 1] = p->row_bytes_before[l], p->multi_bytes_before[l + 1] = p->multi_bytes_before[l],
                                p->state_bytes_before[l + 1] = p->state_bytes_before[l];
        p->planes[l] = kv_planes(c, l, p->desc[l]);
        for (int k = p->planes[l]; k-- > 0;) {
            const struct cache_desc *d = &p->desc[l][k];
            struct kv_plane plane = kv_plane_of(d, kv);
            if (d->is_taken) continue; /* the source layer's rows are downloaded */
            if (d->fixed_rows) p->state_bytes_before[l + 1] += align_up(kv_row_range_of(&plane, 0, 1).bytes, 256);
            else
                (d->tokens_per_row ? p->multi_bytes_before : p->row_bytes_before)[l + 1] +=
                    row_data_bytes(&plane) + row_scale_bytes(&plane);
            if (d->tokens_per_row && (!p->min_every || d->tokens_per_row < p->min_every))
                p->min_every = d->tokens_per_row;
        }
    }
    return 0;
}
void kv_writeback_layout_close(struct kv_row_layout *p) {
    mem_free(p->row_bytes_before), mem_free(p->multi_bytes_before), mem_free(p->state_bytes_before);
}
size_t kv_writeback_rows_bytes(const struct kv_row_layout *p, int n) { return bytes_before(p, p->c->n_layers, n); }

/* The planes of a layer for n rows; `mem` is where the rows of layer `first` start. State planes, and those that the
 * layer takes from another one, have no data. */
static int staged_planes(const struct kv_row_layout *layout, char *mem, int first, int layer, int n,
                         struct kv_plane out[CACHE_PLANES]) {
    int planes = layout->planes[layer];
    char *next = mem + (bytes_before(layout, layer, n) - bytes_before(layout, first, n));
    for (int p = 0; p < planes; p++) {
        out[p] = kv_plane_of(&layout->desc[layer][p], layout->kv);
        if (layout->desc[layer][p].fixed_rows || layout->desc[layer][p].is_taken) continue;
        size_t rows = layout->desc[layer][p].tokens_per_row ? max_multi_rows(layout, n) : (size_t)n,
               data = row_data_bytes(&out[p]) * rows, scales = row_scale_bytes(&out[p]) * rows;
        out[p].data = next;
        out[p].scale = scales ? (float *)(next + data) : NULL;
        next += data + scales;
    }
    return planes;
}

int kv_writeback_stage_rows(struct decode_device *d, int layer, const struct decode_micro_batch *m, int total) {
    struct decode *s = d->s;
    struct exec *x = gpu_stream_exec(d->main);
    struct kv_plane to[CACHE_PLANES];
    const float *from = d->work[m - s->micro_batch].kv; /* all rows of a plane, then the next plane */
    int planes = staged_planes(d->layout, d->kv_rows, d->first, layer, total, to), rc = 0;
    for (int p = 0; p < planes && !rc; p++) {
        const struct cache_desc *desc = &d->layout->desc[layer][p];
        int width = to[p].heads * to[p].dim;
        if (desc->fixed_rows || desc->tokens_per_row) continue;
        if (to[p].data)
            rc = x->ops->kv_store(
                x, &(struct op_kv_store){.plane = to[p], .x = from, .row0 = m->row0, .n = m->n_dev, .ldx = width});
        from += (size_t)m->n_dev * (size_t)width;
    }
    return rc;
}

/* Multi-token rows exist only in the device KV. A span's rows start at its own first row, which leaves enough room. */
static int stage_multi_rows(struct decode_device *d, const struct decode_micro_batch *m, int total) {
    for (int l = d->first; l < d->last && d->layout->min_every; l++) {
        struct kv_plane to[CACHE_PLANES];
        for (int p = staged_planes(d->layout, d->kv_rows, d->first, l, total, to); p-- > 0;)
            for (int i = 0; i < m->n_dev_spans; i++) {
                const struct cache_desc *desc = &d->layout->desc[l][p];
                const struct span *t = &m->dev_spans[i];
                int row = kv_complete_rows(desc, t->pos), n = kv_complete_rows(desc, t->pos + t->n) - row;
                if (desc->tokens_per_row && !desc->is_taken)
                    TRY(device_kv_copy(d->main, &to[p], m->row0 + t->row, m->dev_kv[i], d, l, p, row, n, GPU_D2D));
            }
    }
    return 0;
}

int kv_writeback_download_rows(struct decode_device *d, int total) {
    for (int i = 0; i < d->s->n_micros; i++) TRY(stage_multi_rows(d, &d->s->micro_batch[i], total));
    size_t at = bytes_before(d->layout, d->first, total);
    return gpu_copy(d->main, d->host_kv_rows + at, d->kv_rows, bytes_before(d->layout, d->last, total) - at, GPU_D2H);
}

/* Returns the offset of a state among a span's states of all layers. */
static size_t state_offset(const struct decode *s, int layer, int plane) {
    size_t at = s->layout.state_bytes_before[layer];
    for (int p = 0; p < plane; p++)
        if (s->layout.desc[layer][p].fixed_rows) {
            struct kv_plane before = kv_plane_of(&s->layout.desc[layer][p], s->kv);
            at += align_up(kv_row_range_of(&before, 0, 1).bytes, 256);
        }
    return at;
}

/* Largest bounce buffer for states; up to MAX_SERIAL_BYTES of them are stored by one thread, since starting the pool
 * takes time too. */
enum { MAX_STATES_MB = 512, MAX_SERIAL_BYTES = 1 << 20 };
int kv_writeback_states_open(struct decode *s, struct error *e) {
    const size_t span_bytes = s->layout.state_bytes_before[s->c->n_layers],
                 max_spans = span_bytes ? ((size_t)MAX_STATES_MB << 20) / span_bytes : 0;
    /* further spans download directly */
    s->n_host_states = max_spans < DECODE_MAX_ROWS ? (int)max_spans : DECODE_MAX_ROWS;
    return s->n_host_states
               ? gpu_host_alloc(s->dev[0].g, (void **)&s->host_states, (size_t)s->n_host_states * span_bytes, e)
               : 0;
}

int kv_writeback_download_states(struct decode_device *d, int i, const struct span *dev, const struct span *host) {
    struct decode *s = d->s;
    for (int l = d->first; l < d->last; l++)
        for (int p = 0; p < s->layout.planes[l]; p++) {
            if (!s->layout.desc[l][p].fixed_rows) continue;
            struct kv_plane from = attention_plane(dev->cache[l].p[p], dev->state_step.to_row),
                            to = attention_plane(host->cache[l].p[p], host->state_step.to_row);
            char *bounce =
                s->host_states + (size_t)i * s->layout.state_bytes_before[s->c->n_layers] + state_offset(s, l, p);
            TRY(gpu_copy(d->main, i < s->n_host_states ? bounce : to.data, from.data,
                         kv_row_range_of(&from, 0, 1).bytes, GPU_D2H));
        }
    return 0;
}

static void store_states(void *step, int thread, int n_threads) {
    const struct decode *s = step;
    for (int micro = 0, index = 0; micro < s->n_micros; micro++)
        for (int k = 0; k < s->micro_batch[micro].n_dev_spans && index < s->n_host_states; k++, index++)
            for (int l = thread; l < s->n_resident; l += n_threads)
                for (int p = 0; p < s->layout.planes[l]; p++) {
                    const struct span *host = &s->micro_batch[micro].spans[k];
                    if (!s->layout.desc[l][p].fixed_rows) continue;
                    struct kv_plane to = attention_plane(host->cache[l].p[p], host->state_step.to_row);
                    memcpy(to.data,
                           s->host_states + (size_t)index * s->layout.state_bytes_before[s->c->n_layers] +
                               state_offset(s, l, p),
                           kv_row_range_of(&to, 0, 1).bytes);
                }
}
void kv_writeback_store_states(struct decode *s) {
    int n_spans = 0;
    for (int k = 0; k < s->n_micros; k++) n_spans += s->micro_batch[k].n_dev_spans;
    if ((size_t)n_spans * s->layout.state_bytes_before[s->c->n_layers] > MAX_SERIAL_BYTES)
        pool_run(s->m->scan.pool, store_states, s);
    else store_states(s, 0, 1);
}

/* Stores n rows of a rank's heads among all heads. */
static void store_heads(const struct kv_plane *to, int head0, int pos, const struct kv_plane *from, int from_row,
                        int n) {
    struct kv_head_range h = device_kv_heads(to, head0, from->heads, pos);
    for (int i = 0; i < n; i++) {
        struct kv_row_range x = kv_row_range_of(from, from_row + i, 1);
        memcpy(h.data + (size_t)i * h.pitch, (const char *)from->data + x.offset, h.row);
        if (h.scales) memcpy((char *)h.scale + (size_t)i * h.scale_pitch, from->scale + x.scale_offset, h.scales);
    }
}

/* Stores the rows of a plane that tokens [pos, pos + n) complete; they start at from_row of `from`. */
static void store_rows(const struct cache_desc *d, const struct kv_plane *to, int pos, const struct kv_plane *from,
                       int from_row, int n) {
    int row = kv_complete_rows(d, pos);
    n = kv_complete_rows(d, pos + n) - row;
    struct kv_row_range x = kv_row_range_of(from, from_row, n), y = kv_row_range_of(to, row, n);
    memcpy((char *)to->data + y.offset, (const char *)from->data + x.offset, x.bytes);
    if (x.n_scales) memcpy(to->scale + y.scale_offset, from->scale + x.scale_offset, x.n_scales * 4);
}

void kv_writeback_store_rows(struct decode *s, const struct decode_micro_batch *m, const struct decode_span *caller,
                             int total) {
    for (int i = 0; i < s->n_dev && m->n_dev; i++)
        for (int l = s->dev[i].first; l < s->dev[i].last; l++) {
            const struct decode_device *d = &s->dev[i];
            struct kv_plane from[CACHE_PLANES];
            int planes = staged_planes(d->layout, d->host_kv_rows, 0, l, total, from);
            for (int p = 0; p < planes; p++)
                for (int k = 0; k < m->n_dev_spans && from[p].data; k++) {
                    const struct span *t = &m->spans[k];
                    const struct kv *kv = caller[m->caller_span[k]].kv;
                    if (from[p].heads == kv->layer[l].p[p].heads) {
                        if (!s->is_tensor_parallel || !i)
                            store_rows(&s->layout.desc[l][p], &kv->layer[l].p[p], t->pos, &from[p], m->row0 + t->row,
                                       t->n);
                    } else store_heads(&kv->layer[l].p[p], d->shard.kv_head0, t->pos, &from[p], m->row0 + t->row, t->n);
                }
        }
}

/* Where a prefill's download has a state: after the rows, those at the end of the batch, then those at the mark. */
static char *saved_state_address(const struct decode *s, char *host, int n, int layer, int plane, bool mark) {
    return host + kv_writeback_rows_bytes(&s->layout, n) + (mark ? s->layout.state_bytes_before[s->c->n_layers] : 0) +
           state_offset(s, layer, plane);
}
size_t kv_writeback_prefill_bytes(const struct decode *s, int n) {
    return kv_writeback_rows_bytes(&s->layout, n) + 2 * s->layout.state_bytes_before[s->c->n_layers];
}

int kv_writeback_download_prefill(struct decode *s, const struct device_kv *copy, struct gpu_stream *stream, int layer,
                                  int pos, int n, char *host) {
    struct kv_plane to[CACHE_PLANES];
    int planes = staged_planes(&s->layout, host, 0, layer, n, to), rc = 0;
    for (int p = 0; p < planes && !rc; p++) {
        const struct cache_desc *d = &s->layout.desc[layer][p];
        int row = kv_complete_rows(d, pos);
        if (to[p].data)
            rc = device_kv_copy(stream, &to[p], 0, copy, decode_device_of(s, layer), layer, p, row,
                                kv_complete_rows(d, pos + n) - row, GPU_D2H);
    }
    for (int p = 0; p < 2 * planes && !rc; p++) {
        bool mark = p >= planes;
        if (!s->layout.desc[layer][p % planes].fixed_rows || (mark && !copy->state_step.mark)) continue;
        struct kv_plane from = attention_plane(copy->layers[layer].p[p % planes],
                                               mark ? copy->state_step.mark_row : copy->state_step.to_row);
        rc = gpu_copy(stream, saved_state_address(s, host, n, layer, p % planes, mark), from.data,
                      kv_row_range_of(&from, 0, 1).bytes, GPU_D2H);
    }
    return rc;
}

void kv_writeback_store_prefill(struct decode *s, const struct kv *kv, const struct kv_state_step *state_step, int pos,
                                int n, char *host) {
    for (int l = 0; l < s->n_resident; l++) {
        struct kv_plane from[CACHE_PLANES];
        int planes = staged_planes(&s->layout, host, 0, l, n, from);
        for (int p = 0; p < planes; p++)
            if (from[p].data) store_rows(&s->layout.desc[l][p], &kv->layer[l].p[p], pos, &from[p], 0, n);
        for (int p = 0; p < 2 * planes; p++) {
            bool mark = p >= planes;
            if (!s->layout.desc[l][p % planes].fixed_rows || (mark && !state_step->mark)) continue;
            struct kv_plane to =
                attention_plane(kv->layer[l].p[p % planes], mark ? state_step->mark_row : state_step->to_row);
            memcpy(to.data, saved_state_address(s, host, n, l, p % planes, mark), kv_row_range_of(&to, 0, 1).bytes);
        }
    }
}
