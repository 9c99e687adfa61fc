#pragma once
/* The KV cache on disk: what sessions have read, for sessions to come, also of other processes and after a restart. A file holds one
 * batch of a beginning (prefix.h) and is named by the hash of all tokens up to its end, so it is looked for by name alone. Files are
 * written by a thread of their own, without being seen before they are whole; the ones not used for longest go when all together
 * exceed the limit. Nobody relies on them: what is not as it should be is removed, said, and read again from the tokens. */
#include <stdbool.h>
#include <stdint.h>

#include "engine/base/error.h"
#include "engine/layer/kv.h"

struct keep;
struct pool;
struct prefix_block;

/* dir: absolute; it and what is above it are made, for this user alone. limit: bytes, 0: a tenth of what the disk has free, with what is
 * there already. maker: what decides the bits of a row beside its tokens. NULL: no place for it; that is said. */
struct keep *keep_open(const char *dir, uint64_t limit, uint64_t maker, enum dtype kv);
/* Waits for what is being written, but no longer than KEEP_PATIENCE_S; the rest is not written. */
enum { KEEP_PATIENCE_S = 2 };
void keep_close(struct keep **k);
/* A block of positions, which the file gets a reference to; tokens [b->to] are copied. Returns at once. made: when it was, CLOCK_REALTIME
 * in ns: what was forgotten since is not written. */
void keep_put(struct keep *k, struct prefix_block *b, uint64_t key, const int32_t *tokens, int64_t made);
/* Positions [from, to) of a cache from the file of that key, checked with the threads of the pool, whose owner calls; false: there is none, or
 * none that is right. *state: with the state at `to`. */
bool keep_get(struct keep *k, struct pool *pool, struct kv *kv, uint64_t key, const int32_t *tokens, int from, int to, bool *state);
/* The files of the positions behind will be asked for soon. */
void keep_ahead(struct keep *k, uint64_t key);
/* Whether to keep `bytes` that took so many seconds to make, of a prompt that took `whole`: where reading them from a disk would be faster,
 * and somebody would notice. */
bool keep_worth(uint64_t bytes, double seconds, double whole);
