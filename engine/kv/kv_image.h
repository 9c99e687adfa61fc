#pragma once
/* Images: positions [from, to) of a KV cache as a range of a file: page-aligned rows of each plane, so that a cache can
 * map them in place, and the state at `to` if the model has states. The file is a memfd or on disk. Mappings are
 * private: a cache that writes gets its own page, and the file is never changed. */
#include <sys/types.h>

#include "engine/kv/kv_cache.h"

/* A contiguous range of an image: bytes [at, at + bytes) of kv.pages, at offset `off` in the image, with the same
 * offset within a page. */
struct kv_image_range {
    size_t at, bytes, off;
    bool is_state; /* a state: shares its pages with other states */
};
/* Calls fn for each range in order of off. Stops at the first non-zero result and returns it. state: row of the state
 * at `to`, -1: none. */
int kv_image_each(const struct kv *kv, int from, int to, int state,
                  int (*fn)(void *ctx, const struct kv_image_range *p), void *ctx);
size_t kv_image_bytes(const struct kv *kv, int from, int to, bool state); /* a whole image, rounded up to pages */

/* Writes the image to fd at the page-aligned offset `at`. Returns 0, or ERR_MEMORY if the file cannot grow. */
int kv_image_write(const struct kv *kv, int from, int to, int state, int fd, off_t at);
/* Replaces the cache's own memory by the image written from it, in whole pages only, and frees that memory. If the
 * system refuses, the cache keeps its own. */
void kv_image_replace(struct kv *kv, int from, int to, int state, int fd, off_t at);
/* Maps positions [from, to) from an image, and its state at `to` if it has one. Earlier positions must be present. On
 * ERR_MEMORY the positions are not valid. */
int kv_image_map(struct kv *kv, int from, int to, bool state, int fd, off_t at, struct error *e);
