/* Device memory of KV: blocks of block_positions positions, each with the rows of all layers on all devices. Sessions
 * with a common prefix share blocks. Blocks are reference-counted; only a block with one reader is written, and it is
 * freed with its last reader. Blocks are carved from slabs in which a plane's rows are contiguous, so that a growing
 * cache copies in long pieces. A slab is freed with its last block. Recurrent states are not rows: each device KV has
 * its own. */
#include "base/mem.h"
#include "engine/exec/decode/decode_state.h"
#include "engine/exec/decode/device_kv.h"
#include "engine/layer/kv_planes.h"

/* Positions per block and per slab. Blocks are small, since only whole blocks are shared. */
enum { BLOCK = 32, SLAB = 512, BLOCK_MOST = 1 << 24 };
/* Returns the least common multiple of BLOCK and the lengths of all multi-token rows, at most BLOCK_MOST. */
static int positions_per_block(const struct kv_row_layout *c) {
    int64_t n = BLOCK;
    for (int l = 0; l < c->c->n_layers; l++)
        for (int p = 0; p < c->planes[l]; p++) {
            const int64_t every = c->desc[l][p].tokens_per_row ? c->desc[l][p].tokens_per_row : 1;
            int64_t gcd = n, b = every;
            while (b) {
                const int64_t rest = gcd % b;
                gcd = b, b = rest;
            }
            if (n < BLOCK_MOST) n = n / gcd * every; /* beyond that a block is longer than any cache */
        }
    return (int)(n < BLOCK_MOST ? n : BLOCK_MOST);
}

size_t device_slab_layout(const struct decode_device *d, struct kv_layer *planes) {
    const struct decode *s = d->s;
    size_t bytes = 0;
    for (int l = d->first; l < d->last; l++) {
        struct cache_desc desc[CACHE_PLANES];
        const int n = kv_planes(d->c, l, desc);
        for (int p = 0; p < n; p++) {
            if (desc[p].fixed_rows) continue;
            const int owner = kv_plane_owner(d->c, d->first, l, &desc[p]);
            if (owner != l) {
                if (planes) planes[l].p[p] = planes[owner].p[p];
                continue;
            }
            struct kv_plane plane = kv_plane_of(&desc[p], s->kv);
            struct kv_row_range all =
                kv_row_range_of(&plane, 0, kv_complete_rows(&desc[p], s->slab_blocks * s->block_positions));
            plane.block_rows = kv_complete_rows(&desc[p], s->block_positions);
            plane.at = bytes;
            plane.scale_at = bytes += align_up(all.bytes, 256);
            bytes += align_up(all.n_scales * sizeof(float), 256);
            if (planes) planes[l].p[p] = plane;
        }
    }
    return bytes;
}

void device_blocks_open(struct decode *s) {
    s->block_positions = positions_per_block(&s->layout);
    s->slab_blocks = s->block_positions < SLAB ? SLAB / s->block_positions : 1;
    for (int i = 0; i < s->n_dev; i++) /* a slab takes at most a 64th of a device's memory */
        while (s->slab_blocks > 1 && device_slab_layout(&s->dev[i], NULL) > gpu_info(s->dev[i].g)->mem / 64)
            s->slab_blocks--;
}

static void drop_slab(struct decode *s, struct device_slab *slab) {
    struct device_slab **p = &s->slabs;
    while (*p && *p != slab) p = &(*p)->next;
    if (*p) *p = slab->next;
    for (int i = 0; i < s->n_dev; i++) ledger_free(s->dev[i].ledger, &slab->mem[i]);
    mem_free(slab);
}

static struct device_slab *open_slab(struct decode *s) {
    struct device_slab *slab = mem_calloc(1, sizeof *slab + (size_t)s->slab_blocks * sizeof *slab->blocks);
    int rc = slab ? 0 : ERR_MEMORY;
    for (int i = 0; i < s->n_dev && !rc; i++)
        rc = ledger_alloc(s->dev[i].ledger, LEDGER_KV, device_slab_layout(&s->dev[i], NULL), &slab->mem[i], NULL);
    if (rc) {
        if (slab) drop_slab(s, slab);
        return NULL;
    }
    for (int i = 0; i < s->slab_blocks; i++) slab->blocks[i].slab = slab;
    slab->next = s->slabs;
    return s->slabs = slab;
}

struct device_block *device_block_acquire(struct decode *s) {
    struct device_slab *slab = s->slabs;
    while (slab && slab->n_used == s->slab_blocks) slab = slab->next;
    if (!slab && !(slab = open_slab(s))) return NULL;
    struct device_block *b = slab->blocks;
    while (b->n_readers) b++;
    slab->n_used++;
    return device_block_ref(b);
}
struct device_block *device_block_ref(struct device_block *b) {
    b->n_readers++;
    return b;
}
void device_block_unref(struct decode *s, struct device_block *b) {
    struct device_slab *slab = b->slab;
    if (--b->n_readers) return;
    for (int i = 0; i < s->n_dev && s->has_block_copies; i++) /* the next user may fill it from another stream */
        if (s->dev[i].main) gpu_stream_sync(s->dev[i].main);
    s->has_block_copies = false;
    if (!--slab->n_used) drop_slab(s, slab);
}
struct kv_block device_block_address(const struct device_block *b, const struct decode_device *d) {
    return (struct kv_block){.mem = b->slab->mem[d - d->s->dev].at, .mem_index = b - b->slab->blocks};
}
