#pragma once
/* Rows of a KV cache in a file: a head, the tokens from the first one on, a checksum of each piece of the image, and the image
 * (kv_image.h) from where a page begins, so that a cache maps it. Little-endian, as the machines are that hearth runs on. A file is
 * written once, gets its name when it is whole, and is never changed; what it holds can always be had again from its tokens, so
 * that whoever doubts it removes it. */
#include "engine/base/buf.h"
#include "engine/layer/kv_image.h"

enum { KV_FILE_VERSION = 1, KV_FILE_PIECE = 1 << 20, KV_FILE_HEAD = 1 << 27 };
struct kv_file_head {
    char magic[8]; /* "hearthKV" */
    uint32_t version, dtype;
    uint64_t maker;    /* what else decides bits: the model, the processor's level, this build */
    uint64_t key;      /* of the tokens, batch by batch */
    uint32_t from, to; /* the positions */
    uint32_t state;    /* 1: the state at `to` is in the image */
    uint32_t n_sums;   /* pieces of KV_FILE_PIECE bytes, the last one shorter */
    uint64_t image;    /* bytes of it */
    uint64_t image_at; /* in the file; all before it is the head's */
    uint64_t sum;      /* of this struct with 0 here, the tokens and the checksums */
};
/* Where the tokens [to] and the sums [n_sums] are in the head's image_at bytes. */
const int32_t *kv_file_tokens(const struct kv_file_head *h);
const uint64_t *kv_file_sums(const struct kv_file_head *h);
size_t kv_file_head_bytes(int to, size_t image); /* image_at */

/* The first n bytes of a file of `size` bytes. 0: all of them are a head that is whole and says what that file can hold; *need: n is
 * too small, so many are needed. ERR_MODEL says what is wrong; `what` names the file. data is aligned for uint64_t. */
int kv_file_check(const uint8_t *data, size_t n, uint64_t size, const char *what, size_t *need, struct error *e);
/* A head for an image; tokens are copied, sums are the caller's to fill before kv_file_seal. NULL: no memory; mem_free. */
struct kv_file_head *kv_file_new(const struct kv_file_head *about, const int32_t *tokens);
void kv_file_seal(struct kv_file_head *h);
uint64_t kv_file_sum(const void *piece, size_t n, size_t i); /* of the i-th piece: one in another's place is wrong too */
