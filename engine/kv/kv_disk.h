#pragma once
/* The KV disk cache: prefilled prefixes for later sessions, including other processes and restarts. A file holds one
 * chunk of a prefix (session/prefix.h) and its name is the hash of all tokens up to its end, so lookups need no index.
 * A background thread writes files and links them only when complete. The least recently used files are deleted above
 * the size limit. Nothing depends on a file: an invalid one is deleted with a warning and its tokens are prefilled
 * again. */
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "engine/kv/kv_shared.h"

struct kv_disk; /* owned by the opener */
struct pool;

/* Opens the cache. dir: absolute; created with its parents, accessible to this user only. limit: bytes, 0: a tenth of
 * the free disk space plus the cache's own size. kv_fingerprint: hash of everything besides the tokens that determines
 * a row's bits. NULL on failure, which is logged. */
struct kv_disk *kv_disk_open(const char *dir, uint64_t limit, uint64_t kv_fingerprint, enum dtype kv);
/* Waits up to KV_DISK_CLOSE_WAIT_S for pending writes and drops the rest. */
enum { KV_DISK_CLOSE_WAIT_S = 2 };
void kv_disk_close(struct kv_disk **k);
/* Returns how many times engine_forget() was called for a key while engines were open. -1: unknown. Any thread. */
int64_t kv_disk_n_forgotten(const struct kv_disk *k, uint64_t key);
/* Queues a block for writing and returns at once. Takes a reference to the block and copies tokens [b->to].
 * n_forgotten: kv_disk_n_forgotten() when its rows were computed; a later engine_forget() prevents the write. Without
 * memory the block is not written. Any thread. */
void kv_disk_write(struct kv_disk *k, struct kv_shared *b, uint64_t key, const int32_t *tokens, int64_t n_forgotten);
/* Maps positions [from, to) from the key's file into kv, verified with the pool's threads. Called by the pool's owner.
 * Returns false without a valid file. *state: whether the file has the state at `to`. tokens: [to], compared with the
 * file's. */
bool kv_disk_read(struct kv_disk *k, struct pool *pool, struct kv *kv, uint64_t key, const int32_t *tokens, int from,
                  int to, bool *state);
/* Starts reading the file of the key into the page cache. */
void kv_disk_prefetch(struct kv_disk *k, uint64_t key);
/* Returns whether to store `bytes` that took `seconds` to compute, in a prompt that took prompt_s seconds: if reading
 * from disk is faster and the prompt is long enough to matter. */
bool kv_disk_is_worth(uint64_t bytes, double seconds, double prompt_s);
/* Deletes the files of these keys in dir and leaves tombstones if engines are open, so that no process writes rows
 * under them that it computed before this call. ERR_RUNTIME: some files may remain. Any thread. */
int kv_disk_forget(const char *dir, const uint64_t *keys, size_t n, struct error *e);
