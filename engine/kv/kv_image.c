#include "engine/kv/kv_image.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"
#include "engine/weights/params.h"

static size_t page_down(size_t n) { return n & ~(size_t)(MEM_PAGE - 1); }

/* --- Ranges ----------------------------------------------------------------------------------- */

struct image_walk {
    int from, to, state;
    size_t off; /* end of the ranges so far */
    int (*fn)(void *ctx, const struct kv_image_range *p);
    void *ctx;
};

static int visit_range(struct image_walk *w, size_t at, size_t bytes, bool state) {
    if (!bytes) return 0;
    struct kv_image_range p = {
        .at = at, .bytes = bytes, .off = w->off + (state ? 0 : at % MEM_PAGE), .is_state = state};
    w->off = align_up(p.off + bytes, MEM_PAGE);
    return w->fn(w->ctx, &p);
}
static int visit_plane(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    struct image_walk *w = ctx;
    int first = at->fixed_rows ? w->state : w->from / at->tokens_per_row,
        n = at->fixed_rows ? w->state >= 0 : w->to / at->tokens_per_row - first;
    struct kv_row_range x = kv_row_range_of(p, first < 0 ? 0 : first, n);
    int rc = visit_range(w, at->data + x.offset, x.bytes, at->fixed_rows);
    return rc ? rc
              : visit_range(w, at->scale + x.scale_offset * sizeof(float), x.n_scales * sizeof(float), at->fixed_rows);
}
int kv_image_each(const struct kv *kv, int from, int to, int state,
                  int (*fn)(void *ctx, const struct kv_image_range *p), void *ctx) {
    struct image_walk w = {.from = from, .to = to, .state = state, .fn = fn, .ctx = ctx};
    return kv_each_plane(kv, visit_plane, &w);
}

static int measure_range(void *ctx, const struct kv_image_range *p) {
    return *(size_t *)ctx = align_up(p->off + p->bytes, MEM_PAGE), 0;
}
size_t kv_image_bytes(const struct kv *kv, int from, int to, bool state) {
    size_t end = 0;
    kv_image_each(kv, from, to, state ? 0 : -1, measure_range, &end);
    return end;
}

/* --- Files ------------------------------------------------------------------------------------ */

struct image_io {         /* reads or writes an image at offset `at` of a file */
    struct kv *kv;        /* NULL: only read */
    const uint8_t *pages; /* pages of the cache that is written */
    int fd;
    off_t at;
};

static int transfer_all(ssize_t (*call)(int fd, void *p, size_t n, off_t at), int fd, void *p, size_t n, off_t at) {
    uint8_t *q = p;
    while (n) {
        ssize_t k = call(fd, q, n, at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return ERR_MEMORY;
        q += k, at += k, n -= (size_t)k;
    }
    return 0;
}
static ssize_t pwrite_fn(int fd, void *p, size_t n, off_t at) { return pwrite(fd, p, n, at); }

static int write_range(void *ctx, const struct kv_image_range *p) {
    const struct image_io *io = ctx;
    return transfer_all(pwrite_fn, io->fd, (void *)(io->pages + p->at), p->bytes, io->at + (off_t)p->off);
}
int kv_image_write(const struct kv *kv, int from, int to, int state, int fd, off_t at) {
    struct image_io io = {.pages = kv->pages, .fd = fd, .at = at};
    if (fault_hit(FAULT_ALLOC)) return ERR_MEMORY;
    return kv_image_each(kv, from, to, state, write_range, &io);
}

static bool map_pages(uint8_t *to, size_t bytes, int fd, off_t at) {
    return mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, at) != MAP_FAILED;
}

static int replace_range(void *ctx, const struct kv_image_range *p) {
    const struct image_io *io = ctx;
    size_t begin = align_up(p->at, MEM_PAGE), end = page_down(p->at + p->bytes);
    if (begin < end && !p->is_state)
        map_pages(io->kv->pages + begin, end - begin, io->fd, io->at + (off_t)(p->off + (begin - p->at)));
    return 0;
}
void kv_image_replace(struct kv *kv, int from, int to, int state, int fd, off_t at) {
    kv_image_each(kv, from, to, state, replace_range, &(struct image_io){.kv = kv, .fd = fd, .at = at});
}

/* Maps a range. Reads instead what cannot be mapped: partial pages, states, or everything if there are too many
 * mappings. */
static int map_range(void *ctx, const struct kv_image_range *p) {
    const struct image_io *io = ctx;
    uint8_t *to = io->kv->pages;
    size_t end = p->at + p->bytes, begin = p->is_state ? end : align_up(p->at, MEM_PAGE),
           head = begin < end ? begin - p->at : p->bytes;
    off_t from = io->at + (off_t)p->off;
    if (head && transfer_all(pread, io->fd, to + p->at, head, from)) return ERR_MEMORY;
    if (begin >= end || map_pages(to + begin, align_up(end, MEM_PAGE) - begin, io->fd, from + (off_t)head)) return 0;
    return transfer_all(pread, io->fd, to + begin, end - begin, from + (off_t)head);
}

int kv_image_map(struct kv *kv, int from, int to, bool state, int fd, off_t at, struct error *e) {
    int rc = kv_commit(kv, to, e);
    if (rc) return rc;
    struct image_io io = {.kv = kv, .fd = fd, .at = at};
    rc = kv_image_each(kv, from, to, state ? kv_state_add(kv, to) : -1, map_range, &io);
    if (!rc) return 0;
    kv_rewind(kv, from); /* drop the incomplete state */
    return error_set(e, rc, "no memory for a KV cache of %d tokens", to);
}
