/* Device memory of KV: blocks of `block` positions, each with the rows of all layers on all devices. Sessions with a common prefix
 * share blocks. Blocks are reference-counted; only a block with one reader is written, and it is freed with its last reader.
 * Blocks are carved from slabs in which a plane's rows are contiguous, so that a growing cache copies in long pieces. A slab is
 * freed with its last block. Recurrent states are not rows: each device KV has its own. */
#include "engine/base/mem.h"
#include "engine/step/internal.h"

/* Positions per block: small, since only whole blocks are shared; a multiple of every multi-token row's length. */
enum { BLOCK = 32, SLAB = 512, BLOCK_MOST = 1 << 24 };
static int positions_of(const struct step_cache *c) {
    int64_t n = BLOCK;
    for (int l = 0; l < c->c->n_layers; l++)
        for (int p = 0; p < c->planes[l]; p++) {
            const int64_t every = c->desc[l][p].every ? c->desc[l][p].every : 1;
            int64_t a = n, b = every;
            while (b) {
                const int64_t rest = a % b;
                a = b, b = rest;
            }
            if (n < BLOCK_MOST) n = n / a * every; /* beyond that a block is longer than any cache */
        }
    return (int)(n < BLOCK_MOST ? n : BLOCK_MOST);
}

size_t step_slab_lay(const struct step_device *d, struct kv_layer *planes) {
    const struct step *s = d->s;
    size_t bytes = 0;
    for (int l = d->first; l < d->last; l++) {
        struct cache_desc desc[CACHE_PLANES];
        const int n = kv_planes(d->c, l, desc);
        for (int p = 0; p < n; p++) {
            if (desc[p].rows) continue;
            struct kv_plane plane = kv_plane_of(&desc[p], s->kv);
            struct kv_rows all = kv_rows_of(&plane, 0, kv_row_at(&desc[p], s->slab * s->block));
            plane.block = kv_row_at(&desc[p], s->block);
            plane.at = bytes;
            plane.scale_at = bytes += step_up(all.bytes);
            bytes += step_up(all.scales * sizeof(float));
            if (planes) planes[l].p[p] = plane;
        }
    }
    return bytes;
}

void step_blocks_open(struct step *s) {
    s->block = positions_of(&s->cache);
    s->slab = s->block < SLAB ? SLAB / s->block : 1;
    for (int i = 0; i < s->n_dev; i++) /* smaller slabs on a small device */
        while (s->slab > 1 && step_slab_lay(&s->dev[i], NULL) > gpu_info(s->dev[i].g)->mem / 64) s->slab--;
}

static void drop_slab(struct step *s, struct step_slab *slab) {
    struct step_slab **p = &s->slabs;
    while (*p && *p != slab) p = &(*p)->next;
    if (*p) *p = slab->next;
    for (int i = 0; i < s->n_dev; i++)
        if (slab->mem[i]) {
            gpu_free(s->dev[i].g, slab->mem[i]);
            s->dev[i].held -= step_slab_lay(&s->dev[i], NULL);
        }
    mem_free(slab);
}

static struct step_slab *open_slab(struct step *s) {
    struct step_slab *slab = mem_calloc(1, sizeof *slab + (size_t)s->slab * sizeof *slab->block);
    int rc = slab ? 0 : ERR_MEMORY;
    for (int i = 0; i < s->n_dev && !rc; i++) {
        const size_t bytes = step_slab_lay(&s->dev[i], NULL);
        if (!(rc = gpu_alloc(s->dev[i].g, (void **)&slab->mem[i], bytes, NULL))) s->dev[i].held += bytes;
    }
    if (rc) {
        if (slab) drop_slab(s, slab);
        return NULL;
    }
    for (int i = 0; i < s->slab; i++) slab->block[i].slab = slab;
    slab->next = s->slabs;
    return s->slabs = slab;
}

struct step_block *step_block_take(struct step *s) {
    struct step_slab *slab = s->slabs;
    while (slab && slab->used == s->slab) slab = slab->next;
    if (!slab && !(slab = open_slab(s))) return NULL;
    struct step_block *b = slab->block;
    while (b->readers) b++;
    slab->used++;
    return step_block_hold(b);
}
struct step_block *step_block_hold(struct step_block *b) {
    b->readers++;
    return b;
}
void step_block_release(struct step *s, struct step_block *b) {
    struct step_slab *slab = b->slab;
    if (--b->readers) return;
    for (int i = 0; i < s->n_dev && s->copied; i++) /* the next user may fill it from another stream */
        if (s->dev[i].main) gpu_stream_sync(s->dev[i].main);
    s->copied = false;
    if (!--slab->used) drop_slab(s, slab);
}
struct kv_block step_block_on(const struct step_block *b, const struct step_device *d) {
    return (struct kv_block){.mem = b->slab->mem[d - d->s->dev], .place = b - b->slab->block};
}
