#pragma once
/* Blocks of KV memory that several caches map: immutable images in a memfd, counted by reference. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "engine/kv/kv_cache.h"

struct kv_store {            /* per engine */
    int fd;                  /* memfd; -1: not supported */
    uint64_t kv_fingerprint; /* hash of everything besides the tokens that determines a row's bits; 0: unknown */
    off_t size;              /* bytes allocated so far; unreferenced ranges are hole-punched */
};

struct kv_shared { /* an immutable KV image (kv_image.h) in the engine's memfd */
    struct kv_store *store;
    _Atomic int refs;
    off_t offset; /* in the memfd */
    size_t bytes;
    int from, to;   /* positions */
    bool has_state; /* includes the state at `to` */
};
struct kv_shared *kv_shared_ref(struct kv_shared *b); /* takes a reference */
/* drops a reference; accepts NULL; both are thread-safe */
void kv_shared_unref(struct kv_shared *b);
/* copies n bytes of the image from offset `at`; ERR_RUNTIME */
int kv_shared_read(const struct kv_shared *b, size_t at, void *to, size_t n);

/* Copies positions [from, to) of a cache to a new block. replace: maps the block in place of the cache's memory; the
 * caller must then keep a reference. Returns one reference. NULL: no memory. */
struct kv_shared *kv_shared_create(struct kv_store *store, struct kv *kv, int from, int to, bool replace);
