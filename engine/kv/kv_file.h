#pragma once
/* File format of the KV disk cache: a header, all tokens from the first one, a checksum per block of the image, and the
 * page-aligned image (kv_image.h), so that a cache can map it. Little-endian, like all supported machines. A file is
 * written once, linked when complete and never changed. Its content can be recomputed from its tokens, so a suspect
 * file is simply deleted. */
#include "base/buf.h"
#include "engine/kv/kv_image.h"

enum { KV_FILE_VERSION = 1, KV_FILE_BLOCK = 1 << 20, KV_FILE_MAX_HEAD = 1 << 27 };
struct kv_file_head {
    char magic[8]; /* "hearthKV" */
    uint32_t version, dtype;
    uint64_t kv_fingerprint; /* everything besides the tokens that determines bits: model, CPU level, this build */
    uint64_t key;            /* hash of the tokens, chunk by chunk */
    uint32_t from, to;       /* positions */
    uint32_t has_state;      /* 1: the image includes the state at `to` */
    uint32_t n_sums;         /* blocks of KV_FILE_BLOCK bytes, the last one shorter */
    uint64_t image_bytes;    /* bytes of the image */
    uint64_t image_offset;   /* offset of the image; the header takes everything before it */
    uint64_t sum;            /* hash of this struct with 0 as sum, the tokens and the checksums */
};
/* Tokens [to] and checksums [n_sums] within the header's image_offset bytes. */
const int32_t *kv_file_tokens(const struct kv_file_head *h);
const uint64_t *kv_file_sums(const struct kv_file_head *h);
/* image_offset of a file with `to` tokens and an image of that many bytes */
size_t kv_file_head_bytes(int to, size_t image);

/* Checks the first n bytes of a file of `size` bytes. Returns 0 with *need 0 if they are a complete valid header, or
 * with *need set to the required bytes if n is too small. ERR_MODEL describes the defect; `what` names the file. data
 * is aligned for uint64_t. */
int kv_file_check(const uint8_t *data, size_t n, uint64_t size, const char *what, size_t *need, struct error *e);
/* Allocates a header for an image and copies the tokens. The caller fills the checksums, then calls kv_file_seal. Free
 * with mem_free. NULL: no memory. */
struct kv_file_head *kv_file_new(const struct kv_file_head *about, const int32_t *tokens);
void kv_file_seal(struct kv_file_head *h);
/* checksum of block i; the index enters the hash, so swapped blocks are detected */
uint64_t kv_file_sum(const void *block, size_t n, size_t i);
