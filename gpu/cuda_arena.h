#pragma once
/* Memory kept for reuse, so that giving some back makes no call of the driver: a free waits for the whole device to
 * drain, and may never return while a stream waits for the CPU. Blocks of the driver are split into parts; neighbouring
 * free parts of a block are joined. Not thread-safe. The caller calls the driver. */
#include <stdbool.h>
#include <stddef.h>

enum { CUDA_ARENA_GRAIN = 4096 }; /* bytes; parts are aligned to it and multiples of it */

struct cuda_arena {
    struct cuda_part { /* in order of their addresses */
        char *p;
        size_t size;
        bool is_used, is_first; /* is_first: a block of the driver begins here */
    } * parts;
    size_t n, cap, used_bytes, held_bytes; /* bytes of parts in use; of the driver's blocks */
};

/* Takes `size` bytes, a multiple of CUDA_ARENA_GRAIN, from the smallest free part of size to `most` bytes. NULL: none,
 * or no memory. */
void *cuda_arena_take(struct cuda_arena *a, size_t size, size_t most);
/* adds a block of the driver as one part in use; false: no memory, nothing was added */
bool cuda_arena_add(struct cuda_arena *a, void *p, size_t size);
/* returns the part that begins at p; p NULL: no effect */
void cuda_arena_give(struct cuda_arena *a, void *p);
/* removes a block without used parts, or any (used), which the caller frees; NULL: none */
void *cuda_arena_remove(struct cuda_arena *a, bool used);
void cuda_arena_close(struct cuda_arena *a); /* frees the list, not the blocks */
