#pragma once
/* The state of a session's prefix (prefix.h). */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/kv/kv_shared.h"

struct prefix_chunk {
    int end;                 /* position after its last token */
    uint64_t key;            /* hash of all tokens up to `end`, chunk by chunk; 0: not the bits of a plain prefill */
    struct kv_shared *block; /* image of the chunk; NULL: private session memory */
    int64_t n_forgotten;     /* kv_disk_n_forgotten() when the rows were computed */
    bool is_saved;           /* on disk, queued for it, or never to be written */
};
/* Per session; used by the engine thread. */
struct prefix {
    int32_t *tokens; /* [exact_end]; later tokens are in the session */
    size_t tokens_cap;
    struct prefix_chunk *chunks;
    size_t n_chunks, chunks_cap;
    int exact_end;                    /* the last end with a key */
    struct kv_shared **mapped_blocks; /* blocks that the cache maps or has mapped; released when it restarts */
    size_t n_mapped_blocks, mapped_blocks_cap;
    _Atomic int n_mapped_tokens; /* positions in mapped blocks; read by any thread */
    double token_s;              /* prefill seconds per token, last measured */
    bool no_disk;                /* never written to disk */
};
struct prefix_keys { /* keys of a prompt's chunks */
    uint64_t *v;
    size_t n, cap;
};
