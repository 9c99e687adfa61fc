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
    return (struct rows){dtype_bytes(p->dtype, width * (size_t)row), dtype_bytes(p->dtype, width * (size_t)n), (size_t)row * heads, p->scale ? (size_t)n * heads : 0};
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
    for (struct step_mirror **p = &s->mirrors; *p; p = &(*p)->next)
        if (*p == m) {
            *p = m->next;
            break;
        }
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
                for (int p = 0; p < step_planes(s); p++) {
                    const struct kv_plane *from = p ? &kv->v[l] : &kv->k[l];
                    struct kv_plane *to = p ? &m->v[l] : &m->k[l];
                    struct rows all = rows_of(from, 0, capacity);
                    *to = *from;
                    to->data = m->mem[i] + bytes;
                    bytes += up(all.bytes);
                    if (from->scale) to->scale = (float *)(m->mem[i] + bytes);
                    bytes += up(all.scales * 4);
                    if (step_planes(s) == 1) m->v[l] = *to;
                }
        }
    }
    m->capacity = capacity;
    return 0;
}

static struct step_mirror *find(struct step *s, const struct kv *kv) {
    for (struct step_mirror *m = s->mirrors; m; m = m->next)
        if (m->kv == kv) return m;
    return NULL;
}

/* The copy used least recently that this step does not read; first those whose session is closed. */
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
        m->next = s->mirrors;
        s->mirrors = m;
    }
    m->used = s->clock;
    if (m->capacity < end && grow(s, m, kv, end)) {
        step_mirror_drop(s, m);
        return NULL;
    }
    if (m->rows > pos) m->rows = pos;
    for (int l = 0; l < s->n_resident && m->rows < pos; l++)
        for (int p = 0; p < step_planes(s); p++) {
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
    struct step_mirror *m = s ? find(s, kv) : NULL;
    if (m && m->rows > pos) m->rows = pos;
}
void step_forget(struct step *s, const struct kv *kv) {
    struct step_mirror *m = s ? find(s, kv) : NULL;
    if (m) step_mirror_drop(s, m);
}

/* --- What a step adds ------------------------------------------------------------------------------------------------------------ */

int step_planes(const struct step *s) { return s->c->attn == ATTN_MLA ? 1 : 2; }

size_t step_rows_bytes(const struct step *s, int n) {
    size_t width = (size_t)s->kv_like.heads * (size_t)s->kv_like.dim;
    size_t row = up(dtype_bytes(s->kv_like.dtype, width * (size_t)n)) + (s->kv_like.scale ? up((size_t)n * (size_t)s->kv_like.heads * 4) : 0);
    return row * (size_t)step_planes(s) * (size_t)s->c->n_layers;
}

/* The plane of n rows, in memory that begins at `mem`, which takes what plane p of a layer gets. */
static struct kv_plane gathered(const struct step *s, char *mem, int layer, int p, int n) {
    struct kv_plane k = s->kv_like;
    size_t width = (size_t)k.heads * (size_t)k.dim, data = up(dtype_bytes(k.dtype, width * (size_t)n)), scale = k.scale ? up((size_t)n * (size_t)k.heads * 4) : 0;
    char *at = mem + (data + scale) * (size_t)(layer * step_planes(s) + p);
    k.data = at;
    k.scale = scale ? (float *)(at + data) : NULL;
    return k;
}

int step_rows_keep(struct step_device *d, int layer, const struct step_micro *m, int total) {
    struct step *s = d->s;
    struct exec *x = gpu_stream_exec(d->main);
    const struct work *w = &d->work[m - s->micro];
    int width = s->kv_like.heads * s->kv_like.dim, rc = 0;
    for (int p = 0; p < step_planes(s) && !rc; p++)
        rc = x->ops->kv_store(x, &(struct op_kv_store){.plane = gathered(s, d->rows, layer - d->first, p, total),
                                                       .x = w->kv + (size_t)p * (size_t)m->n_dev * (size_t)width, .row0 = m->row0, .n = m->n_dev, .ldx = width});
    return rc;
}

int step_rows_send(struct step_device *d, int total) {
    struct step *s = d->s;
    size_t layer = step_rows_bytes(s, total) / (size_t)s->c->n_layers;
    return gpu_copy(d->main, s->host_rows + layer * (size_t)d->first, d->rows, layer * (size_t)(d->last - d->first), GPU_D2H);
}

void step_rows_store(struct step *s, const struct step_micro *m, const struct step_span *caller, int total) {
    for (int l = 0; l < s->n_resident; l++)
        for (int p = 0; p < step_planes(s); p++) {
            struct kv_plane from = gathered(s, s->host_rows, l, p, total);
            for (int i = 0; i < m->n_dev_spans; i++) {
                const struct span *t = &m->spans[i];
                const struct kv *kv = caller[m->source[i]].kv;
                struct kv_plane to = p ? kv->v[l] : kv->k[l];
                struct rows x = rows_of(&from, m->row0 + t->row, t->n), y = rows_of(&to, t->pos, t->n);
                memcpy((char *)to.data + y.at, (const char *)from.data + x.at, x.bytes);
                if (x.scales) memcpy(to.scale + y.scale_at, from.scale + x.scale_at, x.scales * 4);
            }
        }
}
