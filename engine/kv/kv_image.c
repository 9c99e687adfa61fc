#include "engine/kv/kv_image.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/fault.h"
#include "engine/base/mem.h"
#include "engine/layer/attention.h"

static size_t page_down(size_t n) { return n & ~(size_t)(MEM_PAGE - 1); }

/* --- Ranges ---------------------------------------------------------------------------------------------------------------------- */

struct image_walk {
    int from, to, state;
    size_t off;
    int (*fn)(void *ctx, const struct kv_image_range *p);
    void *ctx;
};

static int visit_range(struct image_walk *w, size_t at, size_t bytes, bool state) {
    if (!bytes) return 0;
    struct kv_image_range p = {at, bytes, w->off + (state ? 0 : at % MEM_PAGE), state};
    w->off = align_up(p.off + bytes, MEM_PAGE);
    return w->fn(w->ctx, &p);
}
static int visit_plane(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    struct image_walk *w = ctx;
    int first = at->fixed_rows ? w->state : w->from / at->tokens_per_row, n = at->fixed_rows ? w->state >= 0 : w->to / at->tokens_per_row - first;
    struct kv_row_range x = kv_row_range_of(p, first < 0 ? 0 : first, n);
    int rc = visit_range(w, at->data + x.offset, x.bytes, at->fixed_rows);
    return rc ? rc : visit_range(w, at->scale + x.scale_offset * sizeof(float), x.n_scales * sizeof(float), at->fixed_rows);
}
int kv_image_each(const struct kv *kv, int from, int to, int state, int (*fn)(void *ctx, const struct kv_image_range *p), void *ctx) {
    struct image_walk w = {from, to, state, 0, fn, ctx};
    return kv_each_plane(kv, visit_plane, &w);
}

static int measure_range(void *ctx, const struct kv_image_range *p) { return *(size_t *)ctx = align_up(p->off + p->bytes, MEM_PAGE), 0; }
size_t kv_image_bytes(const struct kv *kv, int from, int to, bool state) {
    size_t end = 0;
    kv_image_each(kv, from, to, state ? 0 : -1, measure_range, &end);
    return end;
}

/* --- Files ----------------------------------------------------------------------------------------------------------------------- */

struct move {
    struct kv *kv;
    const uint8_t *pages;
    int fd;
    off_t at;
};

static int io_full(ssize_t (*io)(int fd, void *p, size_t n, off_t at), int fd, void *p, size_t n, off_t at) {
    uint8_t *q = p;
    while (n) {
        ssize_t k = io(fd, q, n, at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return ERR_MEMORY;
        q += k, at += k, n -= (size_t)k;
    }
    return 0;
}
static ssize_t pwrite_fn(int fd, void *p, size_t n, off_t at) { return pwrite(fd, p, n, at); }

static int write_range(void *ctx, const struct kv_image_range *p) {
    const struct move *m = ctx;
    return io_full(pwrite_fn, m->fd, (void *)(m->pages + p->at), p->bytes, m->at + (off_t)p->off);
}
int kv_image_write(const struct kv *kv, int from, int to, int state, int fd, off_t at) {
    struct move m = {.pages = kv->pages, .fd = fd, .at = at};
    if (fault_hit(FAULT_ALLOC)) return ERR_MEMORY;
    return kv_image_each(kv, from, to, state, write_range, &m);
}

static bool map_pages(uint8_t *to, size_t bytes, int fd, off_t at) {
    return mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, at) != MAP_FAILED;
}

static int replace_range(void *ctx, const struct kv_image_range *p) {
    const struct move *m = ctx;
    size_t begin = align_up(p->at, MEM_PAGE), end = page_down(p->at + p->bytes);
    if (begin < end && !p->is_state) map_pages(m->kv->pages + begin, end - begin, m->fd, m->at + (off_t)(p->off + (begin - p->at)));
    return 0;
}
void kv_image_replace(struct kv *kv, int from, int to, int state, int fd, off_t at) {
    kv_image_each(kv, from, to, state, replace_range, &(struct move){.kv = kv, .fd = fd, .at = at});
}

/* Maps a range. Reads instead what cannot be mapped: partial pages, states, or everything if there are too many mappings. */
static int map_range(void *ctx, const struct kv_image_range *p) {
    const struct move *m = ctx;
    uint8_t *to = m->kv->pages;
    size_t end = p->at + p->bytes, begin = p->is_state ? end : align_up(p->at, MEM_PAGE), head = begin < end ? begin - p->at : p->bytes;
    off_t from = m->at + (off_t)p->off;
    if (head && io_full(pread, m->fd, to + p->at, head, from)) return ERR_MEMORY;
    if (begin >= end || map_pages(to + begin, align_up(end, MEM_PAGE) - begin, m->fd, from + (off_t)head)) return 0;
    return io_full(pread, m->fd, to + begin, end - begin, from + (off_t)head);
}

int kv_image_map(struct kv *kv, int from, int to, bool state, int fd, off_t at, struct error *e) {
    int rc = kv_commit(kv, to, e);
    if (rc) return rc;
    struct move m = {.kv = kv, .fd = fd, .at = at};
    rc = kv_image_each(kv, from, to, state ? kv_state_add(kv, to) : -1, map_range, &m);
    if (!rc) return 0;
    kv_rewind(kv, from); /* drop the incomplete state */
    return error_set(e, rc, "no memory for a KV cache of %d tokens", to);
}

static int renew_plane(void *ctx, const struct kv_plane *p, const struct kv_plane_layout *at) {
    struct kv *kv = ctx;
    struct kv_row_range is = kv_row_range_of(p, 0, kv->committed / at->tokens_per_row);
    if (at->fixed_rows) return 0;
    int rc = is.bytes ? mem_zero_pages(kv->pages + at->data, align_up(is.bytes, MEM_PAGE)) : 0;
    return !rc && is.n_scales ? mem_zero_pages(kv->pages + at->scale, align_up(is.n_scales * sizeof(float), MEM_PAGE)) : rc;
}
int kv_image_unmap(struct kv *kv) { return kv_each_plane(kv, renew_plane, kv); }
