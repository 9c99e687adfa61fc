/* Copies of sessions' caches on devices. A session's cache in host memory is the authority: a copy holds the positions that are
 * the same there, is brought up to date before a step, and can be dropped at any time. What a step adds is gathered in one
 * piece of device memory, [layer][keys, values][row], and goes to host memory in one copy at its end. */
#include <string.h>

#include "engine/base/mem.h"
#include "engine/step/internal.h"

/* Rows [row, row + n) of a plane: offsets and bytes of data, offsets and numbers of scales. */
struct rows {
    size_t at, bytes, scale_at, scales;
};
static struct rows rows_of(const struct kv_plane *p, int row, int n) {
    size_t heads = (size_t)p->heads, width = heads * (size_t)p->dim;
    return (struct rows){dtype_bytes(p->dtype, width * (size_t)row), dtype_bytes(p->dtype, width * (size_t)n), (size_t)row * heads,
                         p->scale ? (size_t)n * heads : 0};
}
static size_t up(size_t n) { return (n + 255) & ~(size_t)255; }

/* --- Device memory of a copy ---------------------------------------------------------------------------------------------------- */

static void release(struct step *s, struct step_mirror *m) {
    for (int i = 0; i < s->n_dev; i++) {
        gpu_free(s->dev[i].g, m->mem[i]);
        m->mem[i] = NULL;
    }
    m->rows = m->capacity = 0;
}

void step_mirror_drop(struct step *s, struct step_mirror *m) {
    pthread_mutex_lock(&s->lock);
    struct step_mirror **p = &s->mirrors;
    while (*p != m) p = &(*p)->next;
    *p = m->next;
    pthread_mutex_unlock(&s->lock);
    release(s, m);
    mem_free(m->k);
    mem_free(m);
}

/* Planes of `capacity` positions for the layers of each device. */
static int place(struct step *s, struct step_mirror *m, const struct kv *kv, int capacity) {
    for (int i = 0; i < s->n_dev; i++) {
        struct step_device *d = &s->dev[i];
        size_t bytes = 0;
        for (int pass = 0; pass < 2; pass++) {
            if (pass && gpu_alloc(d->g, (void **)&m->mem[i], bytes, NULL)) return ERR_MEMORY;
            bytes = 0;
            for (int l = d->first; l < d->last; l++)
                for (int p = 0; p < s->planes[l]; p++) {
                    const struct kv_plane *from = p ? &kv->v[l] : &kv->k[l];
                    struct kv_plane *to = p ? &m->v[l] : &m->k[l];
                    struct rows all = rows_of(from, 0, capacity);
                    *to = *from;
                    to->data = m->mem[i] + bytes;
                    bytes += up(all.bytes);
                    if (from->scale) to->scale = (float *)(m->mem[i] + bytes);
                    bytes += up(all.scales * 4);
                    if (s->planes[l] == 1) m->v[l] = *to;
                }
        }
    }
    m->capacity = capacity;
    return 0;
}

static struct step_mirror *find(struct step *s, const struct kv *kv) {
    pthread_mutex_lock(&s->lock);
    struct step_mirror *m = s->mirrors;
    while (m && m->kv != kv) m = m->next;
    pthread_mutex_unlock(&s->lock);
    return m;
}

/* The copy used least recently that this step does not read. */
static struct step_mirror *idle(struct step *s) {
    struct step_mirror *best = NULL;
    for (struct step_mirror *m = s->mirrors; m; m = m->next)
        if (m->used < s->clock && m->capacity && (!best || m->used < best->used)) best = m;
    return best;
}

static int grow(struct step *s, struct step_mirror *m, const struct kv *kv, int end) {
    int capacity = 512;
    while (capacity < end) capacity *= 2;
    if (capacity > kv->capacity) capacity = kv->capacity;
    release(s, m);
    for (;;) {
        if (!place(s, m, kv, capacity)) return 0;
        release(s, m);
        struct step_mirror *other = idle(s);
        if (other) step_mirror_drop(s, other);
        else if (capacity > end + 64) capacity = end + 64 < kv->capacity ? end + 64 : kv->capacity;
        else return ERR_MEMORY;
    }
}

struct step_mirror *step_mirror_get(struct step *s, const struct kv *kv, int pos, int end) {
    struct step_mirror *m = find(s, kv);
    if (!m) {
        if (!(m = mem_calloc(1, sizeof *m)) || !(m->k = mem_calloc(2 * (size_t)s->c->n_layers, sizeof *m->k))) {
            mem_free(m);
            return NULL;
        }
        m->v = m->k + s->c->n_layers;
        m->kv = kv;
        pthread_mutex_lock(&s->lock);
        m->next = s->mirrors;
        s->mirrors = m;
        pthread_mutex_unlock(&s->lock);
    }
    m->used = s->clock;
    if (m->capacity < end && grow(s, m, kv, end)) {
        step_mirror_drop(s, m);
        return NULL;
    }
    if (m->rows > pos) m->rows = pos;
    for (int l = 0; l < s->n_resident && m->rows < pos; l++)
        for (int p = 0; p < s->planes[l]; p++) {
            struct gpu_stream *main = step_device_of(s, l)->main;
            const struct kv_plane *from = p ? &kv->v[l] : &kv->k[l], *to = p ? &m->v[l] : &m->k[l];
            struct rows x = rows_of(from, m->rows, pos - m->rows);
            if (gpu_copy(main, (char *)to->data + x.at, (const char *)from->data + x.at, x.bytes, GPU_H2D)) return m; /* the step will find out */
            if (x.scales && gpu_copy(main, to->scale + x.scale_at, from->scale + x.scale_at, x.scales * 4, GPU_H2D)) return m;
        }
    m->rows = pos;
    return m;
}

void step_mirror_filled(struct step *s, const struct kv *kv, int rows) {
    struct step_mirror *m = find(s, kv);
    if (m && m->used == s->clock) m->rows = rows;
}

void step_rewind(struct step *s, const struct kv *kv, int pos) {
    struct step_mirror *m = find(s, kv);
    if (m && m->rows > pos) m->rows = pos;
}
void step_forget(struct step *s, const struct kv *kv) {
    pthread_mutex_lock(&s->lock);
    for (struct step_mirror *m = s->mirrors; m; m = m->next)
        if (m->kv == kv) m->kv = NULL; /* its memory goes when the engine's thread comes by */
    pthread_mutex_unlock(&s->lock);
}
void step_mirrors_reap(struct step *s) {
    for (struct step_mirror *m; (m = find(s, NULL));) step_mirror_drop(s, m);
}

/* --- What a step adds: [layer][plane][row], and a plane's scales behind its rows ------------------------------------------------- */

static size_t desc_bytes(const struct step *s, const struct cache_desc *d) { /* of a row's data */
    return (dtype_bytes(s->kv, (size_t)d->heads * (size_t)d->dim) + 15) & ~(size_t)15;
}
static size_t desc_scales(const struct step *s, const struct cache_desc *d) { return s->kv == DT_E4M3 ? (size_t)d->heads * 4 : 0; }

int step_rows_plan(struct step *s, struct error *e) {
    if (!(s->row_at = mem_calloc((size_t)s->c->n_layers + 1, sizeof *s->row_at))) return error_set(e, ERR_MEMORY, "no memory for steps");
    for (int l = 0; l < s->c->n_layers; l++) {
        struct cache_desc d[CACHE_PLANES];
        s->row_at[l + 1] = s->row_at[l];
        s->planes[l] = kv_planes(s->c, l, d);
        for (int p = s->planes[l]; p-- > 0;) s->row_at[l + 1] += desc_bytes(s, &d[p]) + desc_scales(s, &d[p]);
    }
    return 0;
}
size_t step_rows_bytes(const struct step *s, int n) { return s->row_at[s->c->n_layers] * (size_t)n; }

/* The planes of a layer for n rows, in memory of which `mem` is where the rows of layer `first` begin. */
static int gathered(const struct step *s, char *mem, int first, int layer, int n, struct kv_plane out[CACHE_PLANES]) {
    struct cache_desc d[CACHE_PLANES];
    int planes = kv_planes(s->c, layer, d);
    char *at = mem + (s->row_at[layer] - s->row_at[first]) * (size_t)n;
    for (int p = 0; p < planes; p++) {
        size_t data = desc_bytes(s, &d[p]) * (size_t)n, scales = desc_scales(s, &d[p]) * (size_t)n;
        out[p] = (struct kv_plane){.data = at, .scale = scales ? (float *)(at + data) : NULL, .heads = d[p].heads, .dim = d[p].dim, .dtype = (uint8_t)s->kv};
        at += data + scales;
    }
    return planes;
}

int step_rows_keep(struct step_device *d, int layer, const struct step_micro *m, int total) {
    struct step *s = d->s;
    struct exec *x = gpu_stream_exec(d->main);
    struct kv_plane to[CACHE_PLANES];
    const float *from = d->work[m - s->micro].kv; /* all rows of a plane, then of the next */
    int planes = gathered(s, d->rows, d->first, layer, total, to), rc = 0;
    for (int p = 0; p < planes && !rc; p++) {
        int width = to[p].heads * to[p].dim;
        rc = x->ops->kv_store(x, &(struct op_kv_store){.plane = to[p], .x = from, .row0 = m->row0, .n = m->n_dev, .ldx = width});
        from += (size_t)m->n_dev * (size_t)width;
    }
    return rc;
}

int step_rows_send(struct step_device *d, int total) {
    const size_t *at = d->s->row_at, n = (size_t)total;
    return gpu_copy(d->main, d->s->host_rows + at[d->first] * n, d->rows, (at[d->last] - at[d->first]) * n, GPU_D2H);
}

static void store_rows(const struct kv_plane *to, int row, const struct kv_plane *from, int from_row, int n) {
    struct rows x = rows_of(from, from_row, n), y = rows_of(to, row, n);
    memcpy((char *)to->data + y.at, (const char *)from->data + x.at, x.bytes);
    if (x.scales) memcpy(to->scale + y.scale_at, from->scale + x.scale_at, x.scales * 4);
}

void step_rows_store(struct step *s, const struct step_micro *m, const struct step_span *caller, int total) {
    for (int l = 0; l < s->n_resident && m->n_dev; l++) {
        struct kv_plane from[CACHE_PLANES];
        int planes = gathered(s, s->host_rows, 0, l, total, from);
        for (int p = 0; p < planes; p++)
            for (int i = 0; i < m->n_dev_spans; i++) {
                const struct span *t = &m->spans[i];
                const struct kv *kv = caller[m->source[i]].kv;
                store_rows(p ? &kv->v[l] : &kv->k[l], t->pos, &from[p], m->row0 + t->row, t->n);
            }
    }
}

int step_mirror_save(struct step *s, const struct step_mirror *m, struct gpu_stream *stream, int layer, int pos, int n, char *host) {
    struct kv_plane to[CACHE_PLANES];
    int planes = gathered(s, host, 0, layer, n, to), rc = 0;
    for (int p = 0; p < planes && !rc; p++) {
        const struct kv_plane *from = p ? &m->v[layer] : &m->k[layer];
        struct rows x = rows_of(from, pos, n);
        rc = gpu_copy(stream, to[p].data, (const char *)from->data + x.at, x.bytes, GPU_D2H);
        if (!rc && x.scales) rc = gpu_copy(stream, to[p].scale, from->scale + x.scale_at, x.scales * 4, GPU_D2H);
    }
    return rc;
}

void step_mirror_store(struct step *s, const struct kv *kv, int pos, int n, char *host) {
    for (int l = 0; l < s->n_resident; l++) {
        struct kv_plane from[CACHE_PLANES];
        int planes = gathered(s, host, 0, l, n, from);
        for (int p = 0; p < planes; p++) store_rows(p ? &kv->v[l] : &kv->k[l], pos, &from[p], 0, n);
    }
}
