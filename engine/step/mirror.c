/* Device copies of sessions' KV caches. The host cache is authoritative: a copy holds the positions that are equal, is updated
 * before a batch, and can be dropped at any time. Its rows are in blocks (device_blocks.c), shared between sessions with a common
 * prefix. Does not download new rows: kv_writeback.c. */
#include <string.h>

#include "cpu/pool.h"
#include "engine/base/mem.h"
#include "engine/pipe/stage.h"
#include "engine/step/experts.h"
#include "engine/step/internal.h"

/* --- Device memory ----------------------------------------------------------------------------------------------------------------  */

static void release(struct step *s, struct step_mirror *m) {
    while (m->n_blocks) step_block_release(s, m->blocks[--m->n_blocks]);
    for (int i = 0; i < s->n_dev; i++) {
        gpu_free(s->dev[i].g, m->mem[i]);
        s->dev[i].held -= m->bytes[i];
        mem_free(m->list[i]);
        m->list[i] = NULL;
        m->mem[i] = NULL;
        m->bytes[i] = 0;
    }
    m->rows = m->told = m->most_blocks = 0;
    for (int i = 0; i < MIRROR_STATES; i++) m->state[i] = -1;
}

void step_mirror_drop(struct step *s, struct step_mirror *m) {
    pthread_mutex_lock(&s->lock);
    struct step_mirror **p = &s->mirrors;
    while (*p != m) p = &(*p)->next;
    *p = m->next;
    pthread_mutex_unlock(&s->lock);
    release(s, m);
    mem_free(m->blocks);
    mem_free(m->layer);
    mem_free(m);
}

/* The device's planes, [n_layers]. */
static struct kv_layer *planes_on(const struct step_mirror *m, const struct step_device *d) {
    return m->layer + (d->s->tensor ? (size_t)(d - d->s->dev) * (size_t)d->s->c->n_layers : 0);
}

static int blocks_of(const struct step *s, int positions) { return positions / s->block + (positions % s->block != 0); }

/* Lays out the device memory beside blocks: the block table, then states. planes NULL: only returns the bytes. */
static size_t lay_own(const struct step_device *d, int most_blocks, char *mem, struct kv_layer *planes) {
    size_t bytes = step_up((size_t)most_blocks * sizeof(struct kv_block));
    for (int l = d->first; l < d->last; l++) {
        struct cache_desc desc[CACHE_PLANES];
        const int n = kv_planes(d->c, l, desc);
        for (int p = 0; p < n; p++) {
            struct kv_plane plane = kv_plane_of(&desc[p], d->s->kv);
            if (!desc[p].rows) {
                if (planes) planes[l].p[p].blocks = (const struct kv_block *)(void *)mem;
                continue;
            }
            plane.data = mem + bytes;
            bytes += step_up(kv_rows_of(&plane, 0, MIRROR_STATES).bytes);
            if (planes) planes[l].p[p] = plane;
        }
    }
    return bytes;
}
static int place(struct step *s, struct step_mirror *m, int capacity) {
    m->most_blocks = blocks_of(s, capacity);
    for (int i = 0; i < s->n_dev; i++) {
        struct step_device *d = &s->dev[i];
        const size_t bytes = lay_own(d, m->most_blocks, NULL, NULL);
        if (!(m->list[i] = mem_calloc((size_t)m->most_blocks, sizeof *m->list[i])) || gpu_alloc(d->g, (void **)&m->mem[i], bytes, NULL)) return ERR_MEMORY;
        d->held += m->bytes[i] = bytes;
        step_slab_lay(d, planes_on(m, d));
        lay_own(d, m->most_blocks, m->mem[i], planes_on(m, d));
    }
    return 0;
}

size_t step_mirror_bytes(const struct step *s, const struct step_device *d, int positions) {
    const int blocks = blocks_of(s, positions), slabs = (blocks + s->slab - 1) / s->slab;
    return (size_t)slabs * step_slab_lay(d, NULL) + lay_own(d, blocks, NULL, NULL);
}

/* The plane starting at row `row` of block b. */
static struct kv_plane in_block(const struct kv_plane *p, const struct step_device *d, const struct step_block *b, int row) {
    const struct kv_block on = step_block_on(b, d);
    const struct kv_rows r = kv_rows_of(p, (int)on.place * p->block + row % p->block, 1);
    struct kv_plane out = *p;
    out.blocks = NULL;
    out.data = on.mem + p->at + r.at;
    if (r.scales) out.scale = (float *)(void *)(on.mem + p->scale_at) + r.scale_at;
    return out;
}
/* Returns how many rows from `row` on, of at most n, are contiguous; *out: where. */
static int piece(const struct step_mirror *m, const struct step_device *d, int layer, int plane, int row, int n, struct kv_plane *out) {
    const struct kv_plane *p = &planes_on(m, d)[layer].p[plane];
    struct step_block *const *b = &m->blocks[row / p->block];
    int k = p->block - row % p->block;
    *out = in_block(p, d, *b, row);
    for (; k < n && b[1]->slab == b[0]->slab && b[1] == b[0] + 1; b++) k += p->block;
    return k < n ? k : n;
}

struct step_heads step_heads_of(const struct kv_plane *all, int head0, int heads, int row) {
    struct kv_plane before = *all, own = *all;
    before.heads = head0, own.heads = heads;
    struct kv_rows r = kv_rows_of(all, row, 1), skip = kv_rows_of(&before, 0, 1), some = kv_rows_of(&own, 0, 1);
    return (struct step_heads){.data = (char *)all->data + r.at + (head0 ? skip.bytes : 0),
                               .scale = all->scale ? all->scale + r.scale_at + (head0 ? skip.scales : 0) : NULL,
                               .row = some.bytes,
                               .pitch = r.bytes,
                               .scales = some.scales * 4,
                               .scale_pitch = r.scales * 4};
}

/* Copies rows [row, row + n) of a plane to another, starting at to_row. */
static int copy_rows(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct kv_plane *from, int row, int n, enum gpu_dir dir) {
    struct kv_rows x = kv_rows_of(from, row, n), y = kv_rows_of(to, to_row, n);
    int rc = gpu_copy(stream, (char *)to->data + y.at, (const char *)from->data + x.at, x.bytes, dir);
    return rc || !x.scales ? rc : gpu_copy(stream, to->scale + y.scale_at, from->scale + x.scale_at, x.scales * 4, dir);
}

int step_mirror_copy(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct step_mirror *m, const struct step_device *d, int layer,
                     int plane, int row, int n, enum gpu_dir dir) {
    struct kv_plane part;
    for (int at = 0, k; at < n; at += k) {
        k = piece(m, d, layer, plane, row + at, n - at, &part);
        TRY(copy_rows(stream, to, to_row + at, &part, 0, k, dir));
    }
    return 0;
}

static struct step_mirror *find(struct step *s, const struct kv *kv) {
    pthread_mutex_lock(&s->lock);
    struct step_mirror *m = s->mirrors;
    while (m && m->kv != kv) m = m->next;
    pthread_mutex_unlock(&s->lock);
    return m;
}

/* The least recently used copy that neither this batch nor a prefill reads. */
static struct step_mirror *idle(struct step *s) {
    struct step_mirror *best = NULL;
    for (struct step_mirror *m = s->mirrors; m; m = m->next)
        if (m->used < s->clock && m->mem[0] && !m->kept && (!best || m->used < best->used)) best = m;
    return best;
}
/* Frees memory for a session that decodes: another session's copy, or one routed expert per layer. */
static bool make_room(struct step *s) {
    struct step_mirror *other = idle(s);
    bool less = false;
    for (int i = 0; i < s->n_dev && !other; i++) less |= step_draft_less(&s->dev[i]) || step_experts_less(&s->dev[i]);
    if (other) step_mirror_drop(s, other);
    return other || less;
}

/* Copies positions [from, to) of one block from another copy's block, or from the shared one it replaces. */
static int copy_block(struct step *s, const struct step_mirror *m, const struct step_block *source, int from, int to) {
    const struct step_block *own = m->blocks[from / s->block];
    s->copied = true;
    for (int i = 0; i < s->n_dev; i++) {
        const struct step_device *d = &s->dev[i];
        for (int l = d->first; l < d->last; l++)
            for (int p = 0; p < s->cache.planes[l]; p++) {
                const struct cache_desc *desc = &s->cache.desc[l][p];
                const int row = kv_row_at(desc, from), n = kv_row_at(desc, to) - row;
                const struct kv_plane *plane = &planes_on(m, d)[l].p[p];
                if (desc->rows || !n) continue;
                const struct kv_plane here = in_block(plane, d, own, row), there = in_block(plane, d, source, row);
                TRY(copy_rows(d->main, &here, 0, &there, 0, n, GPU_D2D));
            }
    }
    return 0;
}

static void set_block(struct step_mirror *m, int b, struct step_block *to) {
    m->blocks[b] = to;
    if (m->told > b) m->told = b;
}

/* Allocates blocks for rows up to `end`; shared blocks from m->valid_rows on are replaced by own ones (copy on write). */
static int reach(struct step *s, struct step_mirror *m, int end) {
    const int need = blocks_of(s, end);
    while (m->n_blocks > need && (m->n_blocks > need + s->slab || m->blocks[m->n_blocks - 1]->readers > 1)) step_block_release(s, m->blocks[--m->n_blocks]);
    if (m->told > m->n_blocks) m->told = m->n_blocks;
    for (int b = m->rows / s->block; b < need; b++) {
        struct step_block *own, *before = b < m->n_blocks ? m->blocks[b] : NULL;
        if (before && before->readers == 1) continue;
        if (mem_grow(&m->blocks, &m->cap_blocks, (size_t)b + 1, sizeof(struct step_block *))) return ERR_MEMORY;
        while (!(own = step_block_take(s)))
            if (!make_room(s)) return ERR_MEMORY;
        if (!before) m->n_blocks++;
        set_block(m, b, own);
        const int rc = before && b * s->block < m->rows ? copy_block(s, m, before, b * s->block, m->rows) : 0;
        if (before) step_block_release(s, before);
        if (rc) return rc;
    }
    return 0;
}

/* Uploads new entries of the block tables. */
static int tell(struct step *s, struct step_mirror *m) {
    for (int i = 0; i < s->n_dev; i++) {
        enum { AT_ONCE = STAGE_SMALL / sizeof(struct kv_block) }; /* unpinned copies up to this size do not block */
        for (int b = m->told; b < m->n_blocks; b++) m->list[i][b] = step_block_on(m->blocks[b], &s->dev[i]);
        for (int b = m->told, n; b < m->n_blocks; b += n) {
            n = m->n_blocks - b < AT_ONCE ? m->n_blocks - b : AT_ONCE;
            TRY(gpu_copy(s->dev[i].main, (struct kv_block *)(void *)m->mem[i] + b, m->list[i] + b, (size_t)n * sizeof(struct kv_block), GPU_H2D));
        }
    }
    m->told = m->n_blocks;
    return 0;
}

/* --- Uploads. Host KV is not pinned, and a driver would block the engine thread for a long copy. So staging threads copy it, and
 * d->main waits for the timeline. --- */

void step_fill_close(struct step_device *d) {
    stage_close(&d->stage);
    if (d->fill) gpu_stream_sync(d->fill);
    gpu_stream_close(&d->fill);
    gpu_number_close(&d->filled);
    d->n_filled = 0;
}
void step_fill_settle(struct step_device *d) {
    if (d->fill && (stage_flush(d->stage) || gpu_number_await(d->filled, d->n_filled, NULL))) step_fill_close(d);
}
static int open_fill(struct step_device *d) {
    struct machine *m = d->s->m;
    struct error e = {0};
    if (d->fill) return 0;
    int rc = gpu_stream_open(d->g, &d->fill, "caches", false, &d->stop, &e);
    if (!rc) rc = gpu_number_open(d->g, &d->filled, &e);
    struct stage_options o = {
        .set = m->gpus, .g = d->g, .stream = d->fill, .stop = &d->stop, .loaded = d->filled, .threads = pin_stage_threads(), .rank = d->rank};
    if (!rc) rc = stage_open(&d->stage, &o, &e);
    if (rc) step_fill_close(d);
    return rc;
}

/* uploads that main must wait for */
struct filling {
    struct step_device *d;
    bool any;
};
static int send(struct filling *f, void *to, struct pipe_run run) {
    struct step_device *d = f->d;
    struct stage_unit u = {.runs = &run, .n = 1, .to = to, .loaded = d->n_filled + 1};
    int rc = d->s->processor || run.bytes <= STAGE_SMALL || open_fill(d) ? ERR_MEMORY : stage_send(d->stage, &u);
    if (rc == ERR_MEMORY) { /* directly from where it is */
        if (!run.row || d->s->processor) return gpu_copy(d->main, to, run.host, run.bytes, GPU_H2D);
        rc = 0;
        for (size_t at = 0; at < run.bytes && !rc; at += run.row)
            rc = gpu_copy(d->main, (char *)to + at, run.host + at / run.row * run.pitch, run.row, GPU_H2D);
        return rc;
    }
    d->n_filled++;
    f->any = true;
    return rc;
}
static int send_piece(struct filling *f, const struct kv_plane *to, const struct kv_plane *from, int row, int n) {
    struct kv_rows x = kv_rows_of(from, row, n), y = kv_rows_of(to, 0, n);
    struct pipe_run data = {.host = (const char *)from->data + x.at, .bytes = y.bytes}, scale = {.bytes = y.scales * 4};
    if (x.scales) scale.host = (const char *)(from->scale + x.scale_at);
    if (to->heads != from->heads) {
        struct step_heads h = step_heads_of(from, f->d->share.kv_head0, to->heads, row);
        data.host = h.data, data.row = h.row, data.pitch = h.pitch;
        if (x.scales) scale.host = (const char *)h.scale, scale.row = h.scales, scale.pitch = h.scale_pitch;
    }
    int rc = send(f, to->data, data);
    return rc || !x.scales ? rc : send(f, to->scale, scale);
}
static int send_rows(struct filling *f, const struct step_mirror *m, int layer, int plane, const struct kv_plane *from, int row, int n) {
    struct kv_plane part;
    for (int at = 0, k; at < n; at += k) {
        k = piece(m, f->d, layer, plane, row + at, n - at, &part);
        TRY(send_piece(f, &part, from, row + at, k));
    }
    return 0;
}
static int sent(struct filling *f) { return f->any ? gpu_number_wait(f->d->filled, f->d->n_filled, f->d->main) : 0; }

/* Prepares states to continue from pos: the state at pos is in one of the alternating rows, the next one goes to the other. */
static int begin_states(struct step *s, struct step_mirror *m, const struct kv *kv, int from, int pos, struct filling *fill) {
    int at = -1;
    for (int i = 0; i < MIRROR_STATES; i++) {
        if (m->state[i] > pos) m->state[i] = -1;
        if (m->state[i] == pos && i < MIRROR_MARK) at = i;
    }
    if (at < 0 && from >= 0) {
        at = 0;
        for (int l = 0; l < s->n_resident; l++)
            for (int p = 0; p < s->cache.planes[l]; p++) {
                struct kv_plane to = attention_plane(m->layer[l].p[p], at), source = attention_plane(kv->layer[l].p[p], from);
                if (s->cache.desc[l][p].rows &&
                    send(&fill[step_device_of(s, l) - s->dev], to.data, (struct pipe_run){.host = source.data, .bytes = kv_rows_of(&to, 0, 1).bytes}))
                    return ERR_RUNTIME;
            }
        m->state[at] = pos;
    }
    m->move = (struct kv_move){.from = at, .to = at == 0, .marked = MIRROR_MARK};
    m->state[m->move.to] = m->state[MIRROR_MARK] = -1;
    return 0;
}

static const struct kv *whose(struct step *s, const struct step_mirror *m) {
    pthread_mutex_lock(&s->lock);
    const struct kv *kv = m->kv;
    pthread_mutex_unlock(&s->lock);
    return kv;
}

/* Shares positions below pos with another session's copy instead of uploading them: takes its whole blocks. Returns that copy, with
 * its common rows in *rows; NULL: m has the most. A session that closes in between is unknown to runtime.kv_common_rows. */
static struct step_mirror *share(struct step *s, struct step_mirror *m, int pos, int *rows) {
    struct step_mirror *best = NULL;
    *rows = m->rows;
    for (struct step_mirror *o = m->rows < pos ? s->mirrors : NULL; o && s->m->same; o = o->next) {
        const struct kv *kv = o == m || o->kept || o->rows <= *rows ? NULL : whose(s, o);
        int n = kv ? s->m->same(s->m->owner, m->kv, kv) : 0;
        if (n > o->rows) n = o->rows;
        if (n > pos) n = pos;
        if (n > *rows) best = o, *rows = n;
    }
    if (!best || mem_grow(&m->blocks, &m->cap_blocks, (size_t)(*rows / s->block) + 1, sizeof(struct step_block *))) return NULL;
    best->used = s->clock;
    s->counts.taken += (uint64_t)(*rows - m->rows);
    for (int b = m->rows / s->block; b < *rows / s->block; b++) {
        struct step_block *before = b < m->n_blocks ? m->blocks[b] : NULL;
        step_block_hold(best->blocks[b]);
        if (before) step_block_release(s, before);
        else m->n_blocks++;
        set_block(m, b, best->blocks[b]);
        m->rows = (b + 1) * s->block;
    }
    return best;
}

static struct step_mirror *new_mirror(struct step *s, const struct kv *kv) {
    struct step_mirror *m = mem_calloc(1, sizeof *m);
    if (!m || !(m->layer = mem_calloc((size_t)s->c->n_layers * (size_t)(s->tensor ? s->n_dev : 1), sizeof *m->layer))) {
        mem_free(m);
        return NULL;
    }
    m->kv = kv;
    for (int i = 0; i < MIRROR_STATES; i++) m->state[i] = -1;
    pthread_mutex_lock(&s->lock);
    m->next = s->mirrors;
    s->mirrors = m;
    pthread_mutex_unlock(&s->lock);
    return m;
}

struct step_mirror *step_mirror_get(struct step *s, const struct kv *kv, int from, int pos, int end) {
    struct filling fill[GPU_MAX];
    struct step_mirror *m = find(s, kv);
    int rows, rc = 0;
    for (int i = 0; i < s->n_dev; i++) fill[i] = (struct filling){.d = &s->dev[i]};
    if (!m && !(m = new_mirror(s, kv))) return NULL;
    m->used = s->clock;
    if (m->rows > pos) m->rows = pos;
    while (!m->mem[s->n_dev - 1] && (rc = place(s, m, kv->capacity))) {
        release(s, m);
        if (!make_room(s)) break;
    }
    struct step_mirror *other = rc ? NULL : share(s, m, pos, &rows);
    if (!rc) rc = reach(s, m, end);
    if (rc == ERR_MEMORY) {
        step_mirror_drop(s, m);
        return NULL;
    }
    if (rc || tell(s, m)) return m; /* the batch reports it */
    if (kv->states && begin_states(s, m, kv, from, pos, fill)) return m;
    if (other && m->rows < rows) { /* the rest of a block that both continue differently */
        if (copy_block(s, m, other->blocks[m->rows / s->block], m->rows, rows)) return m;
        m->rows = rows;
    }
    for (int i = 0; i < s->n_dev && m->rows < pos; i++)
        for (int l = s->dev[i].first; l < s->dev[i].last; l++)
            for (int p = 0; p < s->cache.planes[l]; p++) {
                const struct cache_desc *d = &s->cache.desc[l][p];
                int row = kv_row_at(d, m->rows), n = kv_row_at(d, pos) - row;
                if (d->rows) continue;
                if (send_rows(&fill[i], m, l, p, &kv->layer[l].p[p], row, n)) return m;
            }
    for (int i = 0; i < s->n_dev; i++)
        if (sent(&fill[i])) return m;
    m->rows = pos;
    return m;
}

void step_mirror_keep(struct step *s, const struct kv *kv, bool kept) {
    struct step_mirror *m = find(s, kv);
    if (m) m->kept = kept;
}

void step_mirror_filled(struct step *s, const struct kv *kv, int rows) {
    struct step_mirror *m = find(s, kv);
    if (!m || m->used != s->clock) return;
    m->rows = rows;
    m->state[m->move.to] = rows;
}

void step_mirror_stale(struct step *s, const struct kv *kv, int pos) {
    struct step_mirror *m = find(s, kv);
    if (!m) return;
    if (m->rows > pos) m->rows = pos;
    for (int i = 0; i < MIRROR_STATES; i++)
        if (m->state[i] > pos || !pos) m->state[i] = -1;
}
void step_rewind(struct step *s, struct kv *kv, int pos) {
    kv_rewind(kv, pos);
    step_mirror_stale(s, kv, pos);
}
void step_forget(struct step *s, const struct kv *kv) {
    pthread_mutex_lock(&s->lock);
    for (struct step_mirror *m = s->mirrors; m; m = m->next)
        if (m->kv == kv) m->kv = NULL; /* the engine thread frees its memory later */
    pthread_mutex_unlock(&s->lock);
}
void step_mirrors_reap(struct step *s) {
    for (struct step_mirror *m; (m = find(s, NULL));) step_mirror_drop(s, m);
}
