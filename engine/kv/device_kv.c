/* Device copies of sessions' KV caches. The host cache is authoritative: a copy holds the positions that are equal, is updated
 * before a batch, and can be dropped at any time. Its rows are in blocks (device_blocks.c), shared between sessions with a common
 * prefix. Does not download new rows: kv_writeback.c. */
#include <string.h>

#include "cpu/pool.h"
#include "engine/base/mem.h"
#include "engine/base/test_limits.h"
#include "engine/exec/decode_internal.h"
#include "engine/transfer/upload.h"

/* --- Device memory ----------------------------------------------------------------------------------------------------------------  */

static void free_device_memory(struct decode *s, struct device_kv *m) {
    while (m->n_blocks) device_block_unref(s, m->blocks[--m->n_blocks]);
    for (int i = 0; i < s->n_dev; i++) {
        ledger_free(s->dev[i].ledger, &m->mem[i]);
        mem_free(m->host_table[i]);
        m->host_table[i] = NULL;
    }
    m->valid_rows = m->n_uploaded = m->max_blocks = 0;
    for (int i = 0; i < DEVICE_KV_STATES; i++) m->state_pos[i] = -1;
}

void device_kv_drop(struct decode *s, struct device_kv *m) {
    pthread_mutex_lock(&s->lock);
    struct device_kv **p = &s->device_kvs;
    while (*p != m) p = &(*p)->next;
    *p = m->next;
    pthread_mutex_unlock(&s->lock);
    free_device_memory(s, m);
    mem_free(m->blocks);
    mem_free(m->layers);
    mem_free(m);
}

/* Returns the device's planes, [n_layers]. */
static struct kv_layer *planes_on(const struct device_kv *m, const struct decode_device *d) {
    return m->layers + (d->s->is_tensor_parallel ? (size_t)(d - d->s->dev) * (size_t)d->s->c->n_layers : 0);
}

static int blocks_of(const struct decode *s, int positions) { return positions / s->block_positions + (positions % s->block_positions != 0); }

/* Lays out the device memory of a session besides its blocks: the block table, then states. planes NULL: only returns the bytes. */
static size_t lay_out_table(const struct decode_device *d, int most_blocks, char *mem, struct kv_layer *planes) {
    size_t bytes = align_up((size_t)most_blocks * sizeof(struct kv_block), 256);
    for (int l = d->first; l < d->last; l++) {
        struct cache_desc desc[CACHE_PLANES];
        const int n = kv_planes(d->c, l, desc);
        for (int p = 0; p < n; p++) {
            struct kv_plane plane = kv_plane_of(&desc[p], d->s->kv);
            if (!desc[p].fixed_rows) {
                if (planes) planes[l].p[p].blocks = (const struct kv_block *)(void *)mem;
                continue;
            }
            if (planes) plane.data = mem + bytes;
            bytes += align_up(kv_row_range_of(&plane, 0, DEVICE_KV_STATES).bytes, 256);
            if (planes) planes[l].p[p] = plane;
        }
    }
    return bytes;
}
static int alloc_tables(struct decode *s, struct device_kv *m, int capacity) {
    m->max_blocks = blocks_of(s, capacity);
    for (int i = 0; i < s->n_dev; i++) {
        struct decode_device *d = &s->dev[i];
        const size_t bytes = lay_out_table(d, m->max_blocks, NULL, NULL);
        if (!(m->host_table[i] = mem_calloc((size_t)m->max_blocks, sizeof *m->host_table[i])) || ledger_alloc(d->ledger, LEDGER_KV, bytes, &m->mem[i], NULL))
            return ERR_MEMORY;
        device_slab_layout(d, planes_on(m, d));
        lay_out_table(d, m->max_blocks, m->mem[i].at, planes_on(m, d));
    }
    return 0;
}

size_t device_kv_bytes(const struct decode *s, const struct decode_device *d, int positions) {
    const int blocks = blocks_of(s, positions), slabs = (blocks + s->slab_blocks - 1) / s->slab_blocks;
    return (size_t)slabs * device_slab_layout(d, NULL) + lay_out_table(d, blocks, NULL, NULL);
}

/* Returns the part of plane p that block b has, from row `row` of the cache. */
static struct kv_plane plane_in_block(const struct kv_plane *p, const struct decode_device *d, const struct device_block *b, int row) {
    const struct kv_block on = device_block_address(b, d);
    const struct kv_row_range r = kv_row_range_of(p, (int)on.mem_index * p->block_rows + row % p->block_rows, 1);
    struct kv_plane out = *p;
    out.blocks = NULL;
    out.data = on.mem + p->at + r.offset;
    if (r.n_scales) out.scale = (float *)(void *)(on.mem + p->scale_at) + r.scale_offset;
    return out;
}
/* Returns how many rows, at most n, are contiguous from `row`; *out: a view of them. */
static int contiguous_rows(const struct device_kv *m, const struct decode_device *d, int layer, int plane, int row, int n, struct kv_plane *out) {
    const struct kv_plane *p = &planes_on(m, d)[layer].p[plane];
    struct device_block *const *b = &m->blocks[row / p->block_rows];
    int k = p->block_rows - row % p->block_rows;
    *out = plane_in_block(p, d, *b, row);
    for (; k < n && b[1]->slab == b[0]->slab && b[1] == b[0] + 1; b++) k += p->block_rows;
    return k < n ? k : n;
}

struct kv_head_range device_kv_heads(const struct kv_plane *all, int head0, int heads, int row) {
    struct kv_plane before = *all, own = *all;
    before.heads = head0, own.heads = heads;
    struct kv_row_range r = kv_row_range_of(all, row, 1), skip = kv_row_range_of(&before, 0, 1), some = kv_row_range_of(&own, 0, 1);
    return (struct kv_head_range){.data = (char *)all->data + r.offset + (head0 ? skip.bytes : 0),
                                  .scale = all->scale ? all->scale + r.scale_offset + (head0 ? skip.n_scales : 0) : NULL,
                                  .row = some.bytes,
                                  .pitch = r.bytes,
                                  .scales = some.n_scales * 4,
                                  .scale_pitch = r.n_scales * 4};
}

/* Copies rows [row, row + n) of a plane to another, starting at to_row. */
static int copy_rows(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct kv_plane *from, int row, int n, enum gpu_dir dir) {
    struct kv_row_range x = kv_row_range_of(from, row, n), y = kv_row_range_of(to, to_row, n);
    int rc = gpu_copy(stream, (char *)to->data + y.offset, (const char *)from->data + x.offset, x.bytes, dir);
    return rc || !x.n_scales ? rc : gpu_copy(stream, to->scale + y.scale_offset, from->scale + x.scale_offset, x.n_scales * 4, dir);
}

int device_kv_copy(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct device_kv *m, const struct decode_device *d, int layer,
                   int plane, int row, int n, enum gpu_dir dir) {
    struct kv_plane part;
    for (int at = 0, k; at < n; at += k) {
        k = contiguous_rows(m, d, layer, plane, row + at, n - at, &part);
        TRY(copy_rows(stream, to, to_row + at, &part, 0, k, dir));
    }
    return 0;
}

static struct device_kv *find_kv(struct decode *s, const struct kv *kv) {
    pthread_mutex_lock(&s->lock);
    struct device_kv *m = s->device_kvs;
    while (m && m->kv != kv) m = m->next;
    pthread_mutex_unlock(&s->lock);
    return m;
}

/* Returns the least recently used copy that neither this batch nor a prefill reads; NULL: none. */
static struct device_kv *eviction_victim(struct decode *s) {
    struct device_kv *best = NULL;
    for (struct device_kv *m = s->device_kvs; m; m = m->next)
        if (m->last_used < s->clock && m->mem[0].at && !m->is_locked && (!best || m->last_used < best->last_used)) best = m;
    return best;
}
/* Frees memory for a session that decodes: another session's copy, which spans the devices, or on each device the next in reclaim order. Returns false if
 * nothing was left to free. */
static bool evict_memory(struct decode *s) {
    struct device_kv *other = eviction_victim(s);
    bool less = false;
    for (int i = 0; i < s->n_dev && !other; i++) less |= ledger_evict(s->dev[i].ledger, LEDGER_FOR_KV);
    if (other) device_kv_drop(s, other);
    return other || less;
}

/* Whether the device has memory for rows of a layer's plane: not for those that an earlier layer of the device has, nor for states. */
static bool has_rows(const struct decode_device *d, int layer, const struct cache_desc *desc) {
    return !desc->fixed_rows && kv_plane_owner(d->c, d->first, layer, desc) == layer;
}

/* Copies positions [from, to) of one block from another copy's block, or from the shared one it replaces. */
static int copy_block(struct decode *s, const struct device_kv *m, const struct device_block *source, int from, int to) {
    const struct device_block *own = m->blocks[from / s->block_positions];
    s->has_block_copies = true;
    for (int i = 0; i < s->n_dev; i++) {
        const struct decode_device *d = &s->dev[i];
        for (int l = d->first; l < d->last; l++)
            for (int p = 0; p < s->layout.planes[l]; p++) {
                const struct cache_desc *desc = &s->layout.desc[l][p];
                const int row = kv_complete_rows(desc, from), n = kv_complete_rows(desc, to) - row;
                const struct kv_plane *plane = &planes_on(m, d)[l].p[p];
                if (!has_rows(d, l, desc) || !n) continue;
                const struct kv_plane to_rows = plane_in_block(plane, d, own, row), from_rows = plane_in_block(plane, d, source, row);
                TRY(copy_rows(d->main, &to_rows, 0, &from_rows, 0, n, GPU_D2D));
            }
    }
    return 0;
}

static void set_block(struct device_kv *m, int b, struct device_block *to) {
    m->blocks[b] = to;
    if (m->n_uploaded > b) m->n_uploaded = b;
}

/* Allocates blocks for rows up to `end`; shared blocks from m->valid_rows on are replaced by own ones (copy on write). */
static int grow_blocks(struct decode *s, struct device_kv *m, int end) {
    const int need = blocks_of(s, end);
    while (m->n_blocks > need && (m->n_blocks > need + s->slab_blocks || m->blocks[m->n_blocks - 1]->n_readers > 1))
        device_block_unref(s, m->blocks[--m->n_blocks]);
    if (m->n_uploaded > m->n_blocks) m->n_uploaded = m->n_blocks;
    for (int b = m->valid_rows / s->block_positions; b < need; b++) {
        struct device_block *own, *before = b < m->n_blocks ? m->blocks[b] : NULL;
        if (before && before->n_readers == 1) continue;
        if (mem_grow(&m->blocks, &m->cap_blocks, (size_t)b + 1, sizeof(struct device_block *))) return ERR_MEMORY;
        while (!(own = device_block_acquire(s)))
            if (!evict_memory(s)) return ERR_MEMORY;
        if (!before) m->n_blocks++;
        set_block(m, b, own);
        const int rc = before && b * s->block_positions < m->valid_rows ? copy_block(s, m, before, b * s->block_positions, m->valid_rows) : 0;
        if (before) device_block_unref(s, before);
        if (rc) return rc;
    }
    return 0;
}

/* Uploads new entries of the block tables. */
static int upload_block_table(struct decode *s, struct device_kv *m) {
    for (int i = 0; i < s->n_dev; i++) {
        enum { AT_ONCE = STAGE_SMALL / sizeof(struct kv_block) }; /* unpinned copies up to this size do not block */
        for (int b = m->n_uploaded; b < m->n_blocks; b++) m->host_table[i][b] = device_block_address(m->blocks[b], &s->dev[i]);
        for (int b = m->n_uploaded, n; b < m->n_blocks; b += n) {
            n = m->n_blocks - b < AT_ONCE ? m->n_blocks - b : AT_ONCE;
            TRY(gpu_copy(s->dev[i].main, (struct kv_block *)(void *)m->mem[i].at + b, m->host_table[i] + b, (size_t)n * sizeof(struct kv_block), GPU_H2D));
        }
    }
    m->n_uploaded = m->n_blocks;
    return 0;
}

/* --- Uploads. Host KV is not pinned, and a driver would block the engine thread for a long copy. So staging threads copy it, and
 * d->main waits for the timeline. --- */

void device_kv_uploads_close(struct decode_device *d) { upload_close(&d->kv_uploads); }
void device_kv_uploads_settle(struct decode_device *d) {
    if (d->kv_uploads.link && upload_finish(&d->kv_uploads)) device_kv_uploads_close(d);
}
static int open_uploads(struct decode_device *d) {
    struct runtime *m = d->s->m;
    struct error e = {0};
    if (d->kv_uploads.link) return 0;
    const struct stage_options to = {.set = m->gpus, .g = d->g, .stop = &d->stop, .threads = pin_stage_threads(), .rank = d->rank};
    const int rc = upload_open(&d->kv_uploads, "caches", &to, &e);
    if (rc) device_kv_uploads_close(d);
    return rc;
}

/* A device's uploads for one session. */
struct kv_upload {
    struct decode_device *d;
    bool any; /* the upload queue has some, for which d->main must wait */
};
/* Uploads a run through the queue, or on d->main if it is short or the queue has no memory. */
static int upload_run(struct kv_upload *f, void *to, struct copy_run run) {
    struct decode_device *d = f->d;
    const bool is_queued = !d->s->cpu_queue && !upload_is_direct(run.bytes) && !open_uploads(d);
    const int rc = is_queued ? upload_copy(&d->kv_uploads, to, &run) : ERR_MEMORY;
    if (rc != ERR_MEMORY) {
        f->any = true;
        return rc;
    }
    if (!run.row || d->s->cpu_queue) return gpu_copy(d->main, to, run.host, run.bytes, GPU_H2D);
    for (size_t at = 0; at < run.bytes; at += run.row) TRY(gpu_copy(d->main, (char *)to + at, run.host + at / run.row * run.pitch, run.row, GPU_H2D));
    return 0;
}
static int upload_planes(struct kv_upload *f, const struct kv_plane *to, const struct kv_plane *from, int row, int n) {
    struct kv_row_range x = kv_row_range_of(from, row, n), y = kv_row_range_of(to, 0, n);
    struct copy_run data = {.host = (const char *)from->data + x.offset, .bytes = y.bytes}, scale = {.bytes = y.n_scales * 4};
    if (x.n_scales) scale.host = (const char *)(from->scale + x.scale_offset);
    if (to->heads != from->heads) {
        struct kv_head_range h = device_kv_heads(from, f->d->shard.kv_head0, to->heads, row);
        data.host = h.data, data.row = h.row, data.pitch = h.pitch;
        if (x.n_scales) scale.host = (const char *)h.scale, scale.row = h.scales, scale.pitch = h.scale_pitch;
    }
    int rc = upload_run(f, to->data, data);
    return rc || !x.n_scales ? rc : upload_run(f, to->scale, scale);
}
static int upload_rows(struct kv_upload *f, const struct device_kv *m, int layer, int plane, const struct kv_plane *from, int row, int n) {
    struct kv_plane part;
    for (int at = 0, k; at < n; at += k) {
        k = contiguous_rows(m, f->d, layer, plane, row + at, n - at, &part);
        TRY(upload_planes(f, &part, from, row + at, k));
    }
    return 0;
}
/* Flushes first: a waiting stream takes about 1,000 launches; the next one blocks, and so do the calls of the staging threads. */
static int wait_uploads(struct kv_upload *f) {
    if (!f->any) return 0;
    TRY(upload_flush(&f->d->kv_uploads));
    return gpu_timeline_wait(f->d->kv_uploads.loaded, f->d->kv_uploads.n_loaded, f->d->main);
}

/* Prepares states to continue from pos: the state at pos is in one of the alternating rows, the next one goes to the other. */
static int begin_states(struct decode *s, struct device_kv *m, const struct kv *kv, int from, int pos, struct kv_upload *fill) {
    int at = -1;
    for (int i = 0; i < DEVICE_KV_STATES; i++) {
        if (m->state_pos[i] > pos) m->state_pos[i] = -1;
        if (i < DEVICE_KV_MARK && m->state_pos[i] == pos) at = i;
    }
    if (at < 0 && from >= 0) {
        at = 0;
        for (int l = 0; l < s->n_resident; l++)
            for (int p = 0; p < s->layout.planes[l]; p++) {
                struct kv_plane to = attention_plane(m->layers[l].p[p], at), source = attention_plane(kv->layer[l].p[p], from);
                if (s->layout.desc[l][p].fixed_rows && upload_run(&fill[decode_device_of(s, l) - s->dev], to.data,
                                                                  (struct copy_run){.host = source.data, .bytes = kv_row_range_of(&to, 0, 1).bytes}))
                    return ERR_RUNTIME;
            }
        m->state_pos[at] = pos;
    }
    m->move = (struct kv_state_step){.from_row = at, .to_row = at == 0, .mark_row = DEVICE_KV_MARK};
    m->state_pos[m->move.to_row] = m->state_pos[DEVICE_KV_MARK] = -1;
    return 0;
}

static const struct kv *session_kv_of(struct decode *s, const struct device_kv *m) {
    pthread_mutex_lock(&s->lock);
    const struct kv *kv = m->kv;
    pthread_mutex_unlock(&s->lock);
    return kv;
}

/* Shares positions below pos with another session's copy instead of uploading them: takes its whole blocks. Returns that copy, with
 * its common rows in *rows; NULL: m has the most. A session that closes in between is unknown to runtime.kv_common_rows. */
static struct device_kv *share_blocks(struct decode *s, struct device_kv *m, int pos, int *rows) {
    struct device_kv *best = NULL;
    *rows = m->valid_rows;
    for (struct device_kv *o = m->valid_rows < pos ? s->device_kvs : NULL; o && s->m->kv_common_rows; o = o->next) {
        const struct kv *kv = o == m || o->is_locked || o->valid_rows <= *rows ? NULL : session_kv_of(s, o);
        int n = kv ? s->m->kv_common_rows(s->m->owner, m->kv, kv) : 0;
        if (n > o->valid_rows) n = o->valid_rows;
        if (n > pos) n = pos;
        if (n > *rows) best = o, *rows = n;
    }
    if (!best || mem_grow(&m->blocks, &m->cap_blocks, (size_t)(*rows / s->block_positions) + 1, sizeof(struct device_block *))) return NULL;
    best->last_used = s->clock;
    s->counts.kv_rows_shared += (uint64_t)(*rows - m->valid_rows);
    for (int b = m->valid_rows / s->block_positions; b < *rows / s->block_positions; b++) {
        struct device_block *before = b < m->n_blocks ? m->blocks[b] : NULL;
        device_block_ref(best->blocks[b]);
        if (before) device_block_unref(s, before);
        else m->n_blocks++;
        set_block(m, b, best->blocks[b]);
        m->valid_rows = (b + 1) * s->block_positions;
    }
    return best;
}

static struct device_kv *new_device_kv(struct decode *s, const struct kv *kv) {
    struct device_kv *m = mem_calloc(1, sizeof *m);
    if (!m || !(m->layers = mem_calloc((size_t)s->c->n_layers * (size_t)(s->is_tensor_parallel ? s->n_dev : 1), sizeof *m->layers))) {
        mem_free(m);
        return NULL;
    }
    m->kv = kv;
    for (int i = 0; i < DEVICE_KV_STATES; i++) m->state_pos[i] = -1;
    pthread_mutex_lock(&s->lock);
    m->next = s->device_kvs;
    s->device_kvs = m;
    pthread_mutex_unlock(&s->lock);
    return m;
}

static bool may_add_chat(struct decode *s) {
    size_t n = 0;
    for (const struct device_kv *m = s->device_kvs; m; m = m->next) n += session_kv_of(s, m) != NULL;
    return n < test_limits_get(TEST_LIMIT_DEVICE_CHATS, SIZE_MAX);
}

struct device_kv *device_kv_acquire(struct decode *s, const struct kv *kv, int state_row, int pos, int end) {
    struct kv_upload fill[GPU_MAX];
    struct device_kv *m = find_kv(s, kv);
    int rows, rc = 0;
    for (int i = 0; i < s->n_dev; i++) fill[i] = (struct kv_upload){.d = &s->dev[i]};
    while (!m && !may_add_chat(s) && eviction_victim(s)) device_kv_drop(s, eviction_victim(s));
    if (!m && (!may_add_chat(s) || !(m = new_device_kv(s, kv)))) return NULL;
    m->last_used = s->clock;
    if (m->valid_rows > pos) m->valid_rows = pos;
    while (!m->mem[s->n_dev - 1].at && (rc = alloc_tables(s, m, kv->capacity))) {
        free_device_memory(s, m);
        if (!evict_memory(s)) break;
    }
    struct device_kv *other = rc ? NULL : share_blocks(s, m, pos, &rows);
    if (!rc) rc = grow_blocks(s, m, end);
    if (rc == ERR_MEMORY) {
        device_kv_drop(s, m);
        return NULL;
    }
    if (rc || upload_block_table(s, m)) return m; /* a device failed, here or below: the batch that uses the copy fails too and reports it */
    if (kv->has_states && begin_states(s, m, kv, state_row, pos, fill)) return m;
    if (other && m->valid_rows < rows) { /* the rest of a block that both continue differently */
        if (copy_block(s, m, other->blocks[m->valid_rows / s->block_positions], m->valid_rows, rows)) return m;
        m->valid_rows = rows;
    }
    for (int i = 0; i < s->n_dev && m->valid_rows < pos; i++)
        for (int l = s->dev[i].first; l < s->dev[i].last; l++)
            for (int p = 0; p < s->layout.planes[l]; p++) {
                const struct cache_desc *d = &s->layout.desc[l][p];
                int row = kv_complete_rows(d, m->valid_rows), n = kv_complete_rows(d, pos) - row;
                if (!has_rows(&s->dev[i], l, d)) continue;
                if (upload_rows(&fill[i], m, l, p, &kv->layer[l].p[p], row, n)) return m;
            }
    for (int i = 0; i < s->n_dev; i++)
        if (wait_uploads(&fill[i])) return m;
    m->valid_rows = pos;
    return m;
}

void device_kv_lock(struct decode *s, const struct kv *kv, bool is_locked) {
    struct device_kv *m = find_kv(s, kv);
    if (m) m->is_locked = is_locked;
}

void device_kv_set_valid(struct decode *s, const struct kv *kv, int rows) {
    struct device_kv *m = find_kv(s, kv);
    if (!m || m->last_used != s->clock) return;
    m->valid_rows = rows;
    m->state_pos[m->move.to_row] = rows;
}

void device_kv_invalidate(struct decode *s, const struct kv *kv, int pos) {
    struct device_kv *m = find_kv(s, kv);
    if (!m) return;
    if (m->valid_rows > pos) m->valid_rows = pos;
    if (!pos) m->n_uploaded = 0; /* streams that were stopped may have dropped the block table too */
    for (int i = 0; i < DEVICE_KV_STATES; i++)
        if (m->state_pos[i] > pos || !pos) m->state_pos[i] = -1;
}
void decode_rewind(struct decode *s, struct kv *kv, int pos) {
    kv_rewind(kv, pos);
    device_kv_invalidate(s, kv, pos);
}
void decode_forget(struct decode *s, const struct kv *kv) {
    pthread_mutex_lock(&s->lock);
    for (struct device_kv *m = s->device_kvs; m; m = m->next)
        if (m->kv == kv) m->kv = NULL; /* the engine thread frees its memory later */
    pthread_mutex_unlock(&s->lock);
}
void device_kv_reap(struct decode *s) {
    for (struct device_kv *m; (m = find_kv(s, NULL));) {
        device_kv_drop(s, m);
        for (int i = 0; i < s->n_dev; i++) s->dev[i].n_expert_layers = s->dev[i].planned_expert_layers; /* as many as fit are loaded again */
    }
}
