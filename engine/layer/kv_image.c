#include "engine/layer/kv_image.h"

#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#include "engine/base/fault.h"
#include "engine/layer/attention.h"

static size_t page_up(size_t n) { return (n + MEM_PAGE - 1) & ~(size_t)(MEM_PAGE - 1); }
static size_t page_down(size_t n) { return n & ~(size_t)(MEM_PAGE - 1); }

/* --- Ranges ---------------------------------------------------------------------------------------------------------------------- */

struct walk {
    int from, to, state;
    size_t off;
    int (*fn)(void *ctx, const struct kv_piece *p);
    void *ctx;
};

static int piece(struct walk *w, size_t at, size_t bytes, bool state) {
    if (!bytes) return 0;
    struct kv_piece p = {at, bytes, w->off + (state ? 0 : at % MEM_PAGE), state};
    w->off = page_up(p.off + bytes);
    return w->fn(w->ctx, &p);
}
static int plane(void *ctx, const struct kv_plane *p, const struct kv_place *at) {
    struct walk *w = ctx;
    int first = at->rows ? w->state : w->from / at->every, n = at->rows ? w->state >= 0 : w->to / at->every - first;
    struct kv_rows x = kv_rows_of(p, first < 0 ? 0 : first, n);
    int rc = piece(w, at->data + x.at, x.bytes, at->rows);
    return rc ? rc : piece(w, at->scale + x.scale_at * sizeof(float), x.scales * sizeof(float), at->rows);
}
int kv_image_each(const struct kv *kv, int from, int to, int state, int (*fn)(void *ctx, const struct kv_piece *p), void *ctx) {
    struct walk w = {from, to, state, 0, fn, ctx};
    return kv_each(kv, plane, &w);
}

static int measure(void *ctx, const struct kv_piece *p) { return *(size_t *)ctx = page_up(p->off + p->bytes), 0; }
size_t kv_image_bytes(const struct kv *kv, int from, int to, bool state) {
    size_t end = 0;
    kv_image_each(kv, from, to, state ? 0 : -1, measure, &end);
    return end;
}

/* --- Files ----------------------------------------------------------------------------------------------------------------------- */

struct move {
    struct kv *kv;
    const uint8_t *pages;
    int fd;
    off_t at;
};

static int all(ssize_t (*io)(int fd, void *p, size_t n, off_t at), int fd, void *p, size_t n, off_t at) {
    uint8_t *q = p;
    while (n) {
        ssize_t k = io(fd, q, n, at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return ERR_MEMORY;
        q += k, at += k, n -= (size_t)k;
    }
    return 0;
}
static ssize_t put(int fd, void *p, size_t n, off_t at) { return pwrite(fd, p, n, at); }

static int write_piece(void *ctx, const struct kv_piece *p) {
    const struct move *m = ctx;
    return all(put, m->fd, (void *)(m->pages + p->at), p->bytes, m->at + (off_t)p->off);
}
int kv_image_write(const struct kv *kv, int from, int to, int state, int fd, off_t at) {
    struct move m = {.pages = kv->pages, .fd = fd, .at = at};
    if (fault_hit(FAULT_ALLOC)) return ERR_MEMORY;
    return kv_image_each(kv, from, to, state, write_piece, &m);
}

static bool map(uint8_t *to, size_t bytes, int fd, off_t at) {
    return mmap(to, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, at) != MAP_FAILED;
}

static int under_piece(void *ctx, const struct kv_piece *p) {
    const struct move *m = ctx;
    size_t begin = page_up(p->at), end = page_down(p->at + p->bytes);
    if (begin < end && !p->state) map(m->kv->pages + begin, end - begin, m->fd, m->at + (off_t)(p->off + (begin - p->at)));
    return 0;
}
void kv_image_under(struct kv *kv, int from, int to, int state, int fd, off_t at) {
    kv_image_each(kv, from, to, state, under_piece, &(struct move){.kv = kv, .fd = fd, .at = at});
}

/* Maps a range. Reads instead what cannot be mapped: partial pages, states, or everything if there are too many mappings. */
static int map_piece(void *ctx, const struct kv_piece *p) {
    const struct move *m = ctx;
    uint8_t *to = m->kv->pages;
    size_t end = p->at + p->bytes, begin = p->state ? end : page_up(p->at), head = begin < end ? begin - p->at : p->bytes;
    off_t from = m->at + (off_t)p->off;
    if (head && all(pread, m->fd, to + p->at, head, from)) return ERR_MEMORY;
    if (begin >= end || map(to + begin, page_up(end) - begin, m->fd, from + (off_t)head)) return 0;
    return all(pread, m->fd, to + begin, end - begin, from + (off_t)head);
}

int kv_image_map(struct kv *kv, int from, int to, bool state, int fd, off_t at, struct error *e) {
    int rc = kv_reach(kv, to, e);
    if (rc) return rc;
    struct move m = {.kv = kv, .fd = fd, .at = at};
    rc = kv_image_each(kv, from, to, state ? kv_put(kv, to) : -1, map_piece, &m);
    if (!rc) return 0;
    kv_rewind(kv, from); /* drop the incomplete state */
    return error_set(e, rc, "no memory for a KV cache of %d tokens", to);
}

static int leave_plane(void *ctx, const struct kv_plane *p, const struct kv_place *at) {
    struct kv *kv = ctx;
    struct kv_rows is = kv_rows_of(p, 0, kv->committed / at->every);
    if (at->rows) return 0;
    int rc = is.bytes ? mem_renew(kv->pages + at->data, page_up(is.bytes)) : 0;
    return !rc && is.scales ? mem_renew(kv->pages + at->scale, page_up(is.scales * sizeof(float))) : rc;
}
int kv_image_leave(struct kv *kv) { return kv_each(kv, leave_plane, kv); }
