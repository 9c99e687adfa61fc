#include "engine/kv/kv_shared.h"

#include <fcntl.h>
#include <unistd.h>

#include "base/error.h"
#include "base/mem.h"
#include "engine/kv/kv_image.h"

struct kv_shared *kv_shared_ref(struct kv_shared *b) {
    atomic_fetch_add(&b->refs, 1);
    return b;
}
void kv_shared_unref(struct kv_shared *b) {
    if (!b || atomic_fetch_sub(&b->refs, 1) > 1) return;
    fallocate(b->store->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, b->offset, (off_t)b->bytes);
    mem_free(b);
}

int kv_shared_read(const struct kv_shared *b, size_t at, void *to, size_t n) {
    return pread(b->store->fd, to, n, b->offset + (off_t)at) == (ssize_t)n ? 0 : ERR_RUNTIME;
}

struct kv_shared *kv_shared_create(struct kv_store *store, struct kv *kv, int from, int to, bool replace) {
    int state = kv->has_states ? kv_state_find(kv, to) : -1;
    struct kv_shared *b = store->fd < 0 ? NULL : mem_alloc(sizeof *b);
    if (!b) return NULL;
    *b = (struct kv_shared){.store = store,
                            .refs = 1,
                            .offset = store->size,
                            .bytes = kv_image_bytes(kv, from, to, state >= 0),
                            .from = from,
                            .to = to,
                            .has_state = state >= 0};
    if (ftruncate(store->fd, b->offset + (off_t)b->bytes) ||
        kv_image_write(kv, from, to, state, store->fd, b->offset)) {
        error_ignore(ftruncate(store->fd, b->offset)); /* the next block overwrites what was written */
        mem_free(b);
        return NULL;
    }
    store->size = b->offset + (off_t)b->bytes;
    if (replace) kv_image_replace(kv, from, to, state, store->fd, b->offset);
    return b;
}
