#pragma once
/* What positions [from, to) of a cache are as a piece of a file: the rows of each plane where pages begin, so that a cache maps them in
 * its place, and the state at `to` where a model has one. The file is memory that the system shares (memfd) or lies on a disk; whoever
 * maps it has a page of its own as soon as it writes there, and nobody ever writes to the file. */
#include <sys/types.h>

#include "engine/layer/kv.h"

/* A piece of it that lies together: bytes [at, at + bytes) of kv.pages, and of the image from `off` on, rows at the same place in a
 * page. */
struct kv_piece {
    size_t at, bytes, off;
    bool state; /* of a state: others lie in its pages */
};
/* Calls fn for each piece in order of off; stops at the first that is not 0 and returns that. state: row of the state at `to`, -1: none. */
int kv_image_each(const struct kv *kv, int from, int to, int state, int (*fn)(void *ctx, const struct kv_piece *p), void *ctx);
size_t kv_image_bytes(const struct kv *kv, int from, int to, bool state); /* of a whole image, whole pages */

/* The image into a file from `at` on, which is at the beginning of a page. 0 or ERR_MEMORY: the file cannot grow. */
int kv_image_write(const struct kv *kv, int from, int to, int state, int fd, off_t at);
/* An image takes the place of what it was written from: only whole pages, what lies beside is others'. The memory
 * of these is given back. Where the system refuses, the cache keeps its own. */
void kv_image_under(struct kv *kv, int from, int to, int state, int fd, off_t at);
/* Positions [from, to) become those of an image, and the state at `to` where it has one; those before are there already. ERR_MEMORY, and
 * the positions are not there. */
int kv_image_map(struct kv *kv, int from, int to, bool state, int fd, off_t at, struct error *e);
/* All of a cache is memory of its own again, with nothing in it. ERR_MEMORY: it may still be that of images. */
int kv_image_leave(struct kv *kv);
