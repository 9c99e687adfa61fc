#include "engine/kv/kv_file.h"

#include <inttypes.h>
#include <string.h>

#include "base/hash.h"

/* Limits of a valid file: a header of at most KV_FILE_MAX_HEAD bytes, half of it tokens and half of it checksums. */
enum {
    MAX_TOKENS = KV_FILE_MAX_HEAD / 2 / (int)sizeof(int32_t),
    MAX_SUMS = KV_FILE_MAX_HEAD / 2 / (int)sizeof(uint64_t)
};
static const uint64_t MAX_IMAGE = (uint64_t)1 << 46; /* bytes; keeps sums of offsets far from an overflow */

static const char kv_file_magic[8] = {'h', 'e', 'a', 'r', 't', 'h', 'K', 'V'};
_Static_assert(sizeof(struct kv_file_head) == 72, "the same on every machine");

static size_t sums_at(uint64_t to) { return (sizeof(struct kv_file_head) + (size_t)to * sizeof(int32_t) + 7) / 8 * 8; }
static uint64_t n_blocks(uint64_t image) { return (image + KV_FILE_BLOCK - 1) / KV_FILE_BLOCK; }
static size_t used_head_bytes(const struct kv_file_head *h) { return sums_at(h->to) + h->n_sums * sizeof(uint64_t); }

const int32_t *kv_file_tokens(const struct kv_file_head *h) { return (const int32_t *)(h + 1); }
const uint64_t *kv_file_sums(const struct kv_file_head *h) {
    return (const uint64_t *)((const uint8_t *)h + sums_at(h->to));
}
size_t kv_file_head_bytes(int to, size_t image) {
    return (sums_at((uint64_t)to) + n_blocks(image) * sizeof(uint64_t) + MEM_PAGE - 1) / MEM_PAGE * MEM_PAGE;
}
uint64_t kv_file_sum(const void *block, size_t n, size_t i) { return hash64(block, n, i + 1); }

static uint64_t head_sum(const struct kv_file_head *h) {
    struct kv_file_head blank = *h;
    blank.sum = 0;
    return hash64(h + 1, used_head_bytes(h) - sizeof *h, hash64(&blank, sizeof blank, 0));
}
void kv_file_seal(struct kv_file_head *h) { h->sum = head_sum(h); }

struct kv_file_head *kv_file_new(const struct kv_file_head *about, const int32_t *tokens) {
    size_t bytes = kv_file_head_bytes((int)about->to, about->image_bytes);
    struct kv_file_head *h = mem_calloc(1, bytes);
    if (!h) return NULL;
    *h = *about;
    memcpy(h->magic, kv_file_magic, sizeof kv_file_magic);
    h->version = KV_FILE_VERSION;
    h->n_sums = (uint32_t)n_blocks(about->image_bytes);
    h->image_offset = bytes;
    memcpy(h + 1, tokens, (size_t)h->to * sizeof *tokens);
    return h;
}

int kv_file_check(const uint8_t *data, size_t n, uint64_t size, const char *what, size_t *need, struct error *e) {
    const struct kv_file_head *h = (const struct kv_file_head *)data;
    if (n < sizeof *h) {
        if (size < sizeof *h)
            return error_set(e, ERR_MODEL, "%s: %" PRIu64 " bytes, too short for a KV cache file", what, size);
        return *need = sizeof *h, 0;
    }
    if (memcmp(h->magic, kv_file_magic, sizeof kv_file_magic))
        return error_set(e, ERR_MODEL, "%s: not a hearth KV cache file", what);
    if (h->version != KV_FILE_VERSION)
        return error_set(e, ERR_MODEL, "%s: file version %u, expected %d", what, h->version, KV_FILE_VERSION);
    if (h->from >= h->to || h->to > MAX_TOKENS || h->has_state > 1 || !h->image_bytes || h->image_bytes > MAX_IMAGE ||
        h->image_bytes % MEM_PAGE || h->n_sums != n_blocks(h->image_bytes) || h->n_sums > MAX_SUMS ||
        h->image_offset != kv_file_head_bytes((int)h->to, h->image_bytes))
        return error_set(e, ERR_MODEL, "%s: inconsistent sizes", what);
    if (size != h->image_offset + h->image_bytes)
        return error_set(e, ERR_MODEL, "%s: %" PRIu64 " bytes, expected %" PRIu64, what, size,
                         h->image_offset + h->image_bytes);
    if (n < h->image_offset) return *need = h->image_offset, 0;
    if (h->sum != head_sum(h)) return error_set(e, ERR_MODEL, "%s: header checksum mismatch", what);
    return *need = 0, 0;
}
