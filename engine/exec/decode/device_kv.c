/* Uploads and shares device copies of sessions' KV caches, and evicts them. Their rows are in blocks (device_blocks.c),
 * which sessions with a common prefix share. Does not download new rows: kv_writeback.c. */
#include <string.h>

#include "base/mem.h"
#include "base/test_limits.h"
#include "cpu/pool.h"
#include "engine/exec/decode/decode_device.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/layer/attention.h"
#include "engine/layer/kv_planes.h"
#include "engine/transfer/upload.h"

/* --- Device memory ---------------------------------------------------------------------------- */

static void free_device_memory(struct decode *s, struct device_kv *copy) {
    while (copy->n_blocks) device_block_unref(s, copy->blocks[--copy->n_blocks]);
    for (int i = 0; i < s->n_dev; i++) {
        ledger_free(s->dev[i].ledger, &copy->mem[i]);
        mem_free(copy->host_table[i]);
        copy->host_table[i] = NULL;
    }
    copy->valid_rows = copy->n_uploaded = copy->max_blocks = 0;
    for (int i = 0; i < DEVICE_KV_STATES; i++) copy->state_pos[i] = -1;
}

void device_kv_drop(struct decode *s, struct device_kv *copy) {
    pthread_mutex_lock(&s->lock);
    struct device_kv **p = &s->device_kvs;
    while (*p != copy) p = &(*p)->next;
    *p = copy->next;
    pthread_mutex_unlock(&s->lock);
    free_device_memory(s, copy);
    mem_free(copy->blocks);
    mem_free(copy->layers);
    mem_free(copy);
}

/* Returns the device's planes, [n_layers]. */
static struct kv_layer *planes_on(const struct device_kv *copy, const struct decode_device *d) {
    return copy->layers + (d->s->is_tensor_parallel ? (size_t)(d - d->s->dev) * (size_t)d->s->c->n_layers : 0);
}

static int blocks_for(const struct decode *s, int positions) {
    return positions / s->block_positions + (positions % s->block_positions != 0);
}

/* Lays out the device memory of a session besides its blocks: the block table, then states. planes NULL: only returns
 * the bytes. */
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
static int alloc_tables(struct decode *s, struct device_kv *copy, int capacity) {
    copy->max_blocks = blocks_for(s, capacity);
    for (int i = 0; i < s->n_dev; i++) {
        struct decode_device *d = &s->dev[i];
        const size_t bytes = lay_out_table(d, copy->max_blocks, NULL, NULL);
        if (!(copy->host_table[i] = mem_calloc((size_t)copy->max_blocks, sizeof *copy->host_table[i])) ||
            ledger_alloc(d->ledger, LEDGER_KV, bytes, &copy->mem[i], NULL))
            return ERR_MEMORY;
        device_slab_layout(d, planes_on(copy, d));
        lay_out_table(d, copy->max_blocks, copy->mem[i].at, planes_on(copy, d));
    }
    return 0;
}

size_t device_kv_bytes(const struct decode *s, const struct decode_device *d, int positions) {
    const int blocks = blocks_for(s, positions), slabs = (blocks + s->slab_blocks - 1) / s->slab_blocks;
    return (size_t)slabs * device_slab_layout(d, NULL) + lay_out_table(d, blocks, NULL, NULL);
}

/* Returns the part of plane p that block b has, from row `row` of the cache. */
static struct kv_plane plane_in_block(const struct kv_plane *p, const struct decode_device *d,
                                      const struct device_block *b, int row) {
    const struct kv_block on = device_block_address(b, d);
    const struct kv_row_range r = kv_row_range_of(p, (int)on.mem_index * p->block_rows + row % p->block_rows, 1);
    struct kv_plane out = *p;
    out.blocks = NULL;
    out.data = on.mem + p->at + r.offset;
    if (r.n_scales) out.scale = (float *)(void *)(on.mem + p->scale_at) + r.scale_offset;
    return out;
}
/* Returns how many rows, at most n, are contiguous from `row`; *out: a view of them. */
static int contiguous_rows(const struct device_kv *copy, const struct decode_device *d, int layer, int plane, int row,
                           int n, struct kv_plane *out) {
    const struct kv_plane *p = &planes_on(copy, d)[layer].p[plane];
    struct device_block *const *b = &copy->blocks[row / p->block_rows];
    int k = p->block_rows - row % p->block_rows;
    *out = plane_in_block(p, d, *b, row);
    for (; k < n && b[1]->slab == b[0]->slab && b[1] == b[0] + 1; b++) k += p->block_rows;
    return k < n ? k : n;
}

struct kv_head_range device_kv_heads(const struct kv_plane *all, int head0, int heads, int row) {
    struct kv_plane before = *all, own = *all;
    before.heads = head0, own.heads = heads;
    struct kv_row_range r = kv_row_range_of(all, row, 1), skip = kv_row_range_of(&before, 0, 1),
                        some = kv_row_range_of(&own, 0, 1);
    return (struct kv_head_range){.data = (char *)all->data + r.offset + (head0 ? skip.bytes : 0),
                                  .scale =
                                      all->scale ? all->scale + r.scale_offset + (head0 ? skip.n_scales : 0) : NULL,
                                  .row = some.bytes,
                                  .pitch = r.bytes,
                                  .scales = some.n_scales * 4,
                                  .scale_pitch = r.n_scales * 4};
}

/* Copies rows [row, row + n) of a plane to another, starting at to_row. */
static int copy_rows(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct kv_plane *from,
                     int row, int n, enum gpu_dir dir) {
    struct kv_row_range x = kv_row_range_of(from, row, n), y = kv_row_range_of(to, to_row, n);
    int rc = gpu_copy(stream, (char *)to->data + y.offset, (const char *)from->data + x.offset, x.bytes, dir);
    return rc || !x.n_scales
               ? rc
               : gpu_copy(stream, to->scale + y.scale_offset, from->scale + x.scale_offset, x.n_scales * 4, dir);
}

int device_kv_copy(struct gpu_stream *stream, const struct kv_plane *to, int to_row, const struct device_kv *copy,
                   const struct decode_device *d, int layer, int plane, int row, int n, enum gpu_dir dir) {
    struct kv_plane part;
    for (int at = 0, k; at < n; at += k) {
        k = contiguous_rows(copy, d, layer, plane, row + at, n - at, &part);
        TRY(copy_rows(stream, to, to_row + at, &part, 0, k, dir));
    }
    return 0;
}

static struct device_kv *find_kv(struct decode *s, const struct kv *kv) {
    pthread_mutex_lock(&s->lock);
    struct device_kv *copy = s->device_kvs;
    while (copy && copy->kv != kv) copy = copy->next;
    pthread_mutex_unlock(&s->lock);
    return copy;
}

/* Returns the least recently used copy that neither this batch nor a prefill reads; NULL: none. */
static struct device_kv *eviction_victim(struct decode *s) {
    struct device_kv *best = NULL;
    for (struct device_kv *copy = s->device_kvs; copy; copy = copy->next)
        if (copy->last_used < s->clock && copy->mem[0].at && !copy->is_locked &&
            (!best || copy->last_used < best->last_used))
            best = copy;
    return best;
}
/* Frees memory for a session that decodes: another session's copy, which spans the devices, or on each device the next
 * in reclaim order. Returns false if nothing was left to free. */
static bool evict_memory(struct decode *s) {
    struct device_kv *other = eviction_victim(s);
    bool less = false;
    for (int i = 0; i < s->n_dev && !other; i++) less |= ledger_evict(s->dev[i].ledger, LEDGER_FOR_KV);
    if (other) device_kv_drop(s, other);
    return other || less;
}

/* Whether the device has memory for rows of a layer's plane: not for those that an earlier layer of the device has, nor
 * for states. */
static bool has_rows(const struct decode_device *d, int layer, const struct cache_desc *desc) {
    return !desc->fixed_rows && kv_plane_owner(d->c, d->first, layer, desc) == layer;
}

/* Copies positions [from, to) of one block from another copy's block, or from the shared one it replaces. */
static int copy_block(struct decode *s, const struct device_kv *copy, const struct device_block *source, int from,
                      int to) {
    const struct device_block *own = copy->blocks[from / s->block_positions];
    s->has_block_copies = true;
    for (int i = 0; i < s->n_dev; i++) {
        const struct decode_device *d = &s->dev[i];
        for (int l = d->first; l < d->last; l++)
            for (int p = 0; p < s->layout.planes[l]; p++) {
                const struct cache_desc *desc = &s->layout.desc[l][p];
                const int row = kv_complete_rows(desc, from), n = kv_complete_rows(desc, to) - row;
                const struct kv_plane *plane = &planes_on(copy, d)[l].p[p];
                if (!has_rows(d, l, desc) || !n) continue;
                const struct kv_plane to_rows = plane_in_block(plane, d, own, row),
                                      from_rows = plane_in_block(plane, d, source, row);
                TRY(copy_rows(d->main, &to_rows, 0, &from_rows, 0, n, GPU_D2D));
            }
    }
    return 0;
}

static void set_block(struct device_kv *copy, int b, struct device_block *to) {
    copy->blocks[b] = to;
    if (copy->n_uploaded > b) copy->n_uploaded = b;
}

/* Allocates blocks for rows up to `end`; shared blocks from copy->valid_rows on are replaced by own ones (copy on
 * write). */
static int grow_blocks(struct decode *s, struct device_kv *copy, int end) {
    const int need = blocks_for(s, end);
    while (copy->n_blocks > need &&
           (copy->n_blocks > need + s->slab_blocks || copy->blocks[copy->n_blocks - 1]->n_readers > 1))
        device_block_unref(s, copy->blocks[--copy->n_blocks]);
    if (copy->n_uploaded > copy->n_blocks) copy->n_uploaded = copy->n_blocks;
    for (int b = copy->valid_rows / s->block_positions; b < need; b++) {
        struct device_block *own, *before = b < copy->n_blocks ? copy->blocks[b] : NULL;
        if (before && before->n_readers == 1) continue;
        if (mem_grow(&copy->blocks, &copy->cap_blocks, (size_t)b + 1, sizeof(struct device_block *))) return ERR_MEMORY;
        while (!(own = device_block_acquire(s)))
            if (!evict_memory(s)) return ERR_MEMORY;
        if (!before) copy->n_blocks++;
        set_block(copy, b, own);
        const int rc = before && b * s->block_positions < copy->valid_rows
                           ? copy_block(s, copy, before, b * s->block_positions, copy->valid_rows)
                           : 0;
        if (before) device_block_unref(s, before);
        if (rc) return rc;
    }
    return 0;
}

/* Uploads new entries of the block tables. */
static int upload_block_table(struct decode *s, struct device_kv *copy) {
    for (int i = 0; i < s->n_dev; i++) {
        enum { AT_ONCE = STAGE_SMALL / sizeof(struct kv_block) }; /* unpinned copies up to this size do not block */
        for (int b = copy->n_uploaded; b < copy->n_blocks; b++)
            copy->host_table[i][b] = device_block_address(copy->blocks[b], &s->dev[i]);
        for (int b = copy->n_uploaded, n; b < copy->n_blocks; b += n) {
            n = copy->n_blocks - b < AT_ONCE ? copy->n_blocks - b : AT_ONCE;
            TRY(gpu_copy(s->dev[i].main, (struct kv_block *)(void *)copy->mem[i].at + b, copy->host_table[i] + b,
                         (size_t)n * sizeof(struct kv_block), GPU_H2D));
        }
    }
    copy->n_uploaded = copy->n_blocks;
    return 0;
}

/* --- Uploads. Host KV is not pinned, and a driver would block the engine thread for a long copy. So staging threads
 * copy it, and d->main waits for the timeline. --- */

void device_kv_uploads_close(struct decode_device *d) { upload_close(&d->kv_uploads); }
void device_kv_uploads_settle(struct decode_device *d) {
    if (d->kv_uploads.link && upload_finish(&d->kv_uploads)) device_kv_uploads_close(d);
}
static int open_uploads(struct decode_device *d) {
    struct runtime *m = d->s->m;
    struct error e = {0};
    if (d->kv_uploads.link) return 0;
    const struct stage_options to = {
        .set = m->gpus, .g = d->g, .stop = &d->stop, .threads = pin_stage_threads(), .rank = d->rank};
    const int rc = upload_open(&d->kv_uploads, "caches", &to, &e);
    if (rc) device_kv_uploads_close(d);
    return rc;
}

/* A device's uploads for one session. */
struct kv_upload {
    struct decode_device *d;
    bool is_queued; /* some are in the upload queue, and d->main must wait for them */
};
/* Uploads a run through the upload queue, or on d->main if it is short or the queue has no memory. */
static int upload_run(struct kv_upload *u, void *to, struct copy_run run) {
    struct decode_device *d = u->d;
    const bool is_queued = !d->s->cpu_queue && !upload_is_direct(run.bytes) && !open_uploads(d);
    const int rc = is_queued ? upload_copy(&d->kv_uploads, to, &run) : ERR_MEMORY;
    if (rc != ERR_MEMORY) {
        u->is_queued = true;
        return rc;
    }
    if (!run.row || d->s->cpu_queue) return gpu_copy(d->main, to, run.host, run.bytes, GPU_H2D);
    for (size_t at = 0; at < run.bytes; at += run.row)
        TRY(gpu_copy(d->main, (char *)to + at, run.host + at / run.row * run.pitch, run.row, GPU_H2D));
    return 0;
}
/* Uploads n rows of a host plane, from `row` on, to the device plane `to`: of all heads, or of the device's shard. */
static int upload_planes(struct kv_upload *u, const struct kv_plane *to, const struct kv_plane *from, int row, int n) {
    struct kv_row_range x = kv_row_range_of(from, row, n), y = kv_row_range_of(to, 0, n);
    struct copy_run data = {.host = (const char *)from->data + x.offset, .bytes = y.bytes},
                    scale = {.bytes = y.n_scales * 4};
    if (x.n_scales) scale.host = (const char *)(from->scale + x.scale_offset);
    if (to->heads != from->heads) {
        struct kv_head_range h = device_kv_heads(from, u->d->shard.kv_head0, to->heads, row);
        data.host = h.data, data.row = h.row, data.pitch = h.pitch;
        if (x.n_scales) scale.host = (const char *)h.scale, scale.row = h.scales, scale.pitch = h.scale_pitch;
    }
    int rc = upload_run(u, to->data, data);
    return rc || !x.n_scales ? rc : upload_run(u, to->scale, scale);
}
/* Uploads n rows of a layer's plane, block by block. */
static int upload_rows(struct kv_upload *u, const struct device_kv *copy, int layer, int plane,
                       const struct kv_plane *from, int row, int n) {
    struct kv_plane part;
    for (int at = 0, k; at < n; at += k) {
        k = contiguous_rows(copy, u->d, layer, plane, row + at, n - at, &part);
        TRY(upload_planes(u, &part, from, row + at, k));
    }
    return 0;
}
/* Makes d->main wait for the queued uploads. Flushes first: a waiting stream takes about 1,000 launches; the next one
 * blocks, and so do the calls of the staging threads. */
static int wait_uploads(struct kv_upload *u) {
    if (!u->is_queued) return 0;
    TRY(upload_flush(&u->d->kv_uploads));
    return gpu_timeline_wait(u->d->kv_uploads.loaded, u->d->kv_uploads.n_loaded, u->d->main);
}

/* Prepares states to continue from pos: the state at pos is in one of the alternating rows, the next one goes to the
 * other. */
static int begin_states(struct decode *s, struct device_kv *copy, const struct kv *kv, int from, int pos,
                        struct kv_upload *uploads) {
    int at = -1;
    for (int i = 0; i < DEVICE_KV_STATES; i++) {
        if (copy->state_pos[i] > pos) copy->state_pos[i] = -1;
        if (i < DEVICE_KV_MARK && copy->state_pos[i] == pos) at = i;
    }
    if (at < 0 && from >= 0) {
        at = 0;
        for (int l = 0; l < s->n_resident; l++)
            for (int p = 0; p < s->layout.planes[l]; p++) {
                struct kv_plane to = attention_plane(copy->layers[l].p[p], at),
                                source = attention_plane(kv->layer[l].p[p], from);
                if (s->layout.desc[l][p].fixed_rows &&
                    upload_run(&uploads[decode_device_of(s, l) - s->dev], to.data,
                               (struct copy_run){.host = source.data, .bytes = kv_row_range_of(&to, 0, 1).bytes}))
                    return ERR_RUNTIME;
            }
        copy->state_pos[at] = pos;
    }
    copy->state_step = (struct kv_state_step){.from_row = at, .to_row = at == 0, .mark_row = DEVICE_KV_MARK};
    copy->state_pos[copy->state_step.to_row] = copy->state_pos[DEVICE_KV_MARK] = -1;
    return 0;
}

static const struct kv *session_kv_of(struct decode *s, const struct device_kv *copy) {
    pthread_mutex_lock(&s->lock);
    const struct kv *kv = copy->kv;
    pthread_mutex_unlock(&s->lock);
    return kv;
}

/* Returns the copy of another session that has the most leading positions of this one, at most pos and more than
 * copy->valid_rows, and their number in *rows; NULL: there is none. A session that closes in between is unknown to
 * runtime.kv_common_rows. */
static struct device_kv *find_common(struct decode *s, const struct device_kv *copy, int pos, int *rows) {
    struct device_kv *best = NULL;
    *rows = copy->valid_rows;
    for (struct device_kv *o = copy->valid_rows < pos ? s->device_kvs : NULL; o && s->m->kv_common_rows; o = o->next) {
        const struct kv *kv = o == copy || o->is_locked || o->valid_rows <= *rows ? NULL : session_kv_of(s, o);
        int n = kv ? s->m->kv_common_rows(s->m->owner, copy->kv, kv) : 0;
        if (n > o->valid_rows) n = o->valid_rows;
        if (n > pos) n = pos;
        if (n > *rows) best = o, *rows = n;
    }
    return best;
}

/* Takes the whole blocks of positions below pos that another session's copy has, instead of uploading them. Returns
 * that copy, and its common rows in *rows, whose last ones may be part of a block; NULL: there is none, or no
 * memory. */
static struct device_kv *share_blocks(struct decode *s, struct device_kv *copy, int pos, int *rows) {
    struct device_kv *best = find_common(s, copy, pos, rows);
    if (!best || mem_grow(&copy->blocks, &copy->cap_blocks, (size_t)(*rows / s->block_positions) + 1,
                          sizeof(struct device_block *)))
        return NULL;
    best->last_used = s->clock;
    s->counts.kv_rows_shared += (uint64_t)(*rows - copy->valid_rows);
    for (int b = copy->valid_rows / s->block_positions; b < *rows / s->block_positions; b++) {
        struct device_block *before = b < copy->n_blocks ? copy->blocks[b] : NULL;
        device_block_ref(best->blocks[b]);
        if (before) device_block_unref(s, before);
        else copy->n_blocks++;
        set_block(copy, b, best->blocks[b]);
        copy->valid_rows = (b + 1) * s->block_positions;
    }
    return best;
}

static struct device_kv *new_device_kv(struct decode *s, const struct kv *kv) {
    struct device_kv *copy = mem_calloc(1, sizeof *copy);
    if (!copy || !(copy->layers = mem_calloc((size_t)s->c->n_layers * (size_t)(s->is_tensor_parallel ? s->n_dev : 1),
                                             sizeof *copy->layers))) {
        mem_free(copy);
        return NULL;
    }
    copy->kv = kv;
    for (int i = 0; i < DEVICE_KV_STATES; i++) copy->state_pos[i] = -1;
    pthread_mutex_lock(&s->lock);
    copy->next = s->device_kvs;
    s->device_kvs = copy;
    pthread_mutex_unlock(&s->lock);
    return copy;
}

static bool may_add_chat(struct decode *s) {
    size_t n = 0;
    for (const struct device_kv *copy = s->device_kvs; copy; copy = copy->next) n += session_kv_of(s, copy) != NULL;
    return n < test_limits_get(TEST_LIMIT_DEVICE_CHATS, SIZE_MAX);
}

/* Uploads the positions below pos that the copy lacks. */
static int upload_missing(struct decode *s, struct device_kv *copy, const struct kv *kv, int pos,
                          struct kv_upload *uploads) {
    for (int i = 0; i < s->n_dev && copy->valid_rows < pos; i++)
        for (int l = s->dev[i].first; l < s->dev[i].last; l++)
            for (int p = 0; p < s->layout.planes[l]; p++) {
                const struct cache_desc *d = &s->layout.desc[l][p];
                int row = kv_complete_rows(d, copy->valid_rows), n = kv_complete_rows(d, pos) - row;
                if (has_rows(&s->dev[i], l, d)) TRY(upload_rows(&uploads[i], copy, l, p, &kv->layer[l].p[p], row, n));
            }
    for (int i = 0; i < s->n_dev; i++) TRY(wait_uploads(&uploads[i]));
    copy->valid_rows = pos;
    return 0;
}

struct device_kv *device_kv_acquire(struct decode *s, const struct kv *kv, int state_row, int pos, int end) {
    struct kv_upload uploads[GPU_MAX];
    struct device_kv *copy = find_kv(s, kv);
    int rows, rc = 0;
    for (int i = 0; i < s->n_dev; i++) uploads[i] = (struct kv_upload){.d = &s->dev[i]};
    while (!copy && !may_add_chat(s) && eviction_victim(s)) device_kv_drop(s, eviction_victim(s));
    if (!copy && (!may_add_chat(s) || !(copy = new_device_kv(s, kv)))) return NULL;
    copy->last_used = s->clock;
    if (copy->valid_rows > pos) copy->valid_rows = pos;
    while (!copy->mem[s->n_dev - 1].at && (rc = alloc_tables(s, copy, kv->capacity))) {
        free_device_memory(s, copy);
        if (!evict_memory(s)) break;
    }
    struct device_kv *other = rc ? NULL : share_blocks(s, copy, pos, &rows);
    if (!rc) rc = grow_blocks(s, copy, end);
    if (rc == ERR_MEMORY) {
        device_kv_drop(s, copy);
        return NULL;
    }
    /* An error now is a device's failure. */
    if (!rc) rc = upload_block_table(s, copy);
    if (!rc && kv->has_states) rc = begin_states(s, copy, kv, state_row, pos, uploads);
    if (!rc && other && copy->valid_rows < rows) { /* the rest of a block that both continue differently */
        rc = copy_block(s, copy, other->blocks[copy->valid_rows / s->block_positions], copy->valid_rows, rows);
        if (!rc) copy->valid_rows = rows;
    }
    if (!rc) upload_missing(s, copy, kv, pos, uploads);
    return copy;
}

void device_kv_lock(struct decode *s, const struct kv *kv, bool is_locked) {
    struct device_kv *copy = find_kv(s, kv);
    if (copy) copy->is_locked = is_locked;
}

void device_kv_set_valid(struct decode *s, const struct kv *kv, int rows) {
    struct device_kv *copy = find_kv(s, kv);
    if (!copy || copy->last_used != s->clock) return;
    copy->valid_rows = rows;
    copy->state_pos[copy->state_step.to_row] = rows;
}

void device_kv_invalidate(struct decode *s, const struct kv *kv, int pos) {
    struct device_kv *copy = find_kv(s, kv);
    if (!copy) return;
    if (copy->valid_rows > pos) copy->valid_rows = pos;
    if (!pos) copy->n_uploaded = 0; /* streams that were stopped may have dropped the block table too */
    for (int i = 0; i < DEVICE_KV_STATES; i++)
        if (copy->state_pos[i] > pos || !pos) copy->state_pos[i] = -1;
}
void decode_rewind(struct decode *s, struct kv *kv, int pos) {
    kv_rewind(kv, pos);
    device_kv_invalidate(s, kv, pos);
}
void decode_forget(struct decode *s, const struct kv *kv) {
    pthread_mutex_lock(&s->lock);
    for (struct device_kv *copy = s->device_kvs; copy; copy = copy->next)
        if (copy->kv == kv) copy->kv = NULL; /* the engine thread frees its memory later */
    pthread_mutex_unlock(&s->lock);
}
void device_kv_reap(struct decode *s) {
    for (struct device_kv *copy; (copy = find_kv(s, NULL));) {
        device_kv_drop(s, copy);
        /* as many as fit are loaded again */
        for (int i = 0; i < s->n_dev; i++) s->dev[i].n_expert_layers = s->dev[i].planned_expert_layers;
    }
}
