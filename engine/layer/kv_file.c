#include "engine/layer/kv_file.h"

#include <inttypes.h>
#include <string.h>

#include "engine/base/hash.h"

static const char magic[8] = {'h', 'e', 'a', 'r', 't', 'h', 'K', 'V'};
_Static_assert(sizeof(struct kv_file_head) == 72, "the same on every machine");

static size_t sums_at(uint64_t to) { return (sizeof(struct kv_file_head) + (size_t)to * sizeof(int32_t) + 7) / 8 * 8; }
static uint64_t pieces(uint64_t image) { return (image + KV_FILE_PIECE - 1) / KV_FILE_PIECE; }
static size_t used(const struct kv_file_head *h) { return sums_at(h->to) + h->n_sums * sizeof(uint64_t); }

const int32_t *kv_file_tokens(const struct kv_file_head *h) { return (const int32_t *)(h + 1); }
const uint64_t *kv_file_sums(const struct kv_file_head *h) { return (const uint64_t *)((const uint8_t *)h + sums_at(h->to)); }
size_t kv_file_head_bytes(int to, size_t image) { return (sums_at((uint64_t)to) + pieces(image) * sizeof(uint64_t) + MEM_PAGE - 1) / MEM_PAGE * MEM_PAGE; }
uint64_t kv_file_sum(const void *piece, size_t n, size_t i) { return hash64(piece, n, i + 1); }

static uint64_t head_sum(const struct kv_file_head *h) {
    struct kv_file_head blank = *h;
    blank.sum = 0;
    return hash64(h + 1, used(h) - sizeof *h, hash64(&blank, sizeof blank, 0));
}
void kv_file_seal(struct kv_file_head *h) { h->sum = head_sum(h); }

struct kv_file_head *kv_file_new(const struct kv_file_head *about, const int32_t *tokens) {
    size_t bytes = kv_file_head_bytes((int)about->to, about->image);
    struct kv_file_head *h = mem_calloc(1, bytes);
    if (!h) return NULL;
    *h = *about;
    memcpy(h->magic, magic, sizeof magic);
    h->version = KV_FILE_VERSION;
    h->n_sums = (uint32_t)pieces(about->image);
    h->image_at = bytes;
    memcpy(h + 1, tokens, (size_t)h->to * sizeof *tokens);
    return h;
}

int kv_file_check(const uint8_t *data, size_t n, uint64_t size, const char *what, size_t *need, struct error *e) {
    const struct kv_file_head *h = (const struct kv_file_head *)data;
    if (n < sizeof *h) {
        if (size < sizeof *h) return error_set(e, ERR_MODEL, "%s: %" PRIu64 " bytes, too short for a KV cache file", what, size);
        return *need = sizeof *h, 0;
    }
    if (memcmp(h->magic, magic, sizeof magic)) return error_set(e, ERR_MODEL, "%s: not a hearth KV cache file", what);
    if (h->version != KV_FILE_VERSION) return error_set(e, ERR_MODEL, "%s: file version %u, expected %d", what, h->version, KV_FILE_VERSION);
    if (h->from >= h->to || h->to > KV_FILE_HEAD / 8 || h->state > 1 || !h->image || h->image > (uint64_t)1 << 46 || h->image % MEM_PAGE ||
        h->n_sums != pieces(h->image) || h->n_sums > KV_FILE_HEAD / 16 || h->image_at != kv_file_head_bytes((int)h->to, h->image))
        return error_set(e, ERR_MODEL, "%s: inconsistent sizes", what);
    if (size != h->image_at + h->image) return error_set(e, ERR_MODEL, "%s: %" PRIu64 " bytes, expected %" PRIu64, what, size, h->image_at + h->image);
    if (n < h->image_at) return *need = h->image_at, 0;
    if (h->sum != head_sum(h)) return error_set(e, ERR_MODEL, "%s: header checksum mismatch", what);
    return *need = 0;
}
