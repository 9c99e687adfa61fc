#include "gpu/cuda.h"

static const size_t SPARE_BYTES = (size_t)64 << 20; /* size of the spare part, enough for most models' workspaces */
static const size_t HOST_BLOCK_BYTES = (size_t)64 << 10,
                    /* a block for small pinned allocations; unused pinned memory that is kept */
    HOST_KEEP_BYTES = (size_t)256 << 20;

static size_t whole_grains(size_t size) { return align_up(size ? size : 1, CUDA_ARENA_GRAIN); }

/* How driver calls of one kind of memory are made. */
struct source {
    struct cuda_arena *arena;
    size_t most_bytes; /* to hold */
    cudaError_t (*alloc)(void **p, size_t size);
    cudaError_t (*free)(void *p);
};
static cudaError_t alloc_pinned(void **p, size_t size) {
    return cudaHostAlloc(p, size, cudaHostAllocPortable | cudaHostAllocMapped);
}
static cudaError_t alloc_device(void **p, size_t size) { return cudaMalloc(p, size); }
static struct source device_memory(struct cuda *g) {
    return (struct source){&g->memory, g->base.info.mem, alloc_device, cudaFree};
}
static struct source pinned_memory(struct cuda *g) {
    return (struct source){&g->host, SIZE_MAX, alloc_pinned, cudaFreeHost};
}

/* Takes a kept part; NULL: none fits. any: also from a much larger one, which is then split. */
static void *take(struct cuda *g, const struct source *from, size_t size, bool any) {
    pthread_mutex_lock(&g->lock);
    void *p = cuda_arena_take(from->arena, size, any ? SIZE_MAX : size + size / 4);
    pthread_mutex_unlock(&g->lock);
    return p;
}
static bool release_block(struct cuda *g, const struct source *from) {
    pthread_mutex_lock(&g->lock);
    void *p = cuda_arena_remove(from->arena, false);
    pthread_mutex_unlock(&g->lock);
    if (p) cuda_check(g, from->free(p), "free");
    return p != NULL;
}
static bool has_room(struct cuda *g, const struct source *from, size_t size) {
    pthread_mutex_lock(&g->lock);
    const size_t held = from->arena->held_bytes;
    pthread_mutex_unlock(&g->lock);
    return held <= from->most_bytes && size <= from->most_bytes - held;
}
static size_t kept_bytes(struct cuda *g, const struct source *from) {
    pthread_mutex_lock(&g->lock);
    const size_t bytes = from->arena->held_bytes - from->arena->used_bytes;
    pthread_mutex_unlock(&g->lock);
    return bytes;
}
/* Allocates a new block of the driver. paused: no stream waits for the CPU, so unused blocks may be freed to make
 * room. */
static cudaError_t grow(struct cuda *g, const struct source *from, void **p, size_t size, bool paused) {
    cudaError_t r = cudaErrorMemoryAllocation;
    do {
        if (!has_room(g, from, size)) continue;
        r = from->alloc(p, size);
        if (r != cudaSuccess) cudaGetLastError();
    } while (r == cudaErrorMemoryAllocation && paused && release_block(g, from));
    if (r != cudaSuccess) return r;
    pthread_mutex_lock(&g->lock);
    const bool added = cuda_arena_add(from->arena, *p, size);
    pthread_mutex_unlock(&g->lock);
    if (added) return cudaSuccess;
    from->free(*p);
    return cudaErrorMemoryAllocation;
}
/* Adds the spare part to the unused memory. */
static void use_spare(struct cuda *g) {
    pthread_mutex_lock(&g->lock);
    cuda_arena_give(&g->memory, g->spare);
    g->spare = NULL;
    pthread_mutex_unlock(&g->lock);
}
/* Sets a spare part aside unless there is one. Several threads may do so at once. */
static void refill_spare(struct cuda *g) {
    const struct source from = device_memory(g);
    const size_t size = whole_grains(g->base.info.mem / 64 < SPARE_BYTES ? g->base.info.mem / 64 : SPARE_BYTES);
    pthread_mutex_lock(&g->lock);
    const bool has_spare = g->spare != NULL;
    pthread_mutex_unlock(&g->lock);
    if (has_spare) return;
    void *p = take(g, &from, size, false);
    if (!p && grow(g, &from, &p, size, false)) return;
    pthread_mutex_lock(&g->lock);
    if (g->spare) cuda_arena_give(&g->memory, p);
    else g->spare = p;
    pthread_mutex_unlock(&g->lock);
}

/* Obtains memory: a kept part of about this size, else a new block; while a stream waits for the CPU, rather the spare
 * or any kept part than a call of the driver. *p is NULL after a failure. */
static cudaError_t obtain(struct cuda *g, const struct source *from, void **p, size_t size) {
    const bool is_device = from->arena == &g->memory;
    cudaError_t r = cudaSuccess;
    if ((*p = take(g, from, size, false))) return r;
    const bool paused = cuda_timeline_pause_waits();
    if (!paused && !(*p = take(g, from, size, true)) && is_device) {
        use_spare(g);
        *p = take(g, from, size, true);
    }
    if (!*p && (r = grow(g, from, p, size, paused)) == cudaErrorMemoryAllocation && (*p = take(g, from, size, true)))
        r = cudaSuccess;
    if (paused && is_device && *p) refill_spare(g);
    while (paused && !is_device && kept_bytes(g, from) > HOST_KEEP_BYTES && release_block(g, from)) {
    }
    if (paused) cuda_timeline_resume_waits();
    return r;
}

void cuda_memory_open(struct cuda *g) { refill_spare(g); }
void cuda_memory_close(struct cuda *g) {
    void *p;
    while ((p = cuda_arena_remove(&g->memory, true))) cudaFree(p);
    while ((p = cuda_arena_remove(&g->host, false))) cudaFreeHost(p); /* others still have an owner */
    cuda_arena_close(&g->memory);
    cuda_arena_close(&g->host);
}

size_t cuda_memory_left(struct gpu *base) {
    struct cuda *g = (struct cuda *)base;
    size_t free_bytes = 0, total = 0;
    pthread_mutex_lock(&g->lock);
    const size_t used = g->memory.used_bytes, kept = g->memory.held_bytes - used,
                 left = base->info.mem > used ? base->info.mem - used : 0;
    pthread_mutex_unlock(&g->lock);
    cudaSetDevice(g->card);
    if (cudaMemGetInfo(&free_bytes, &total)) return 0;
    return free_bytes + kept < left ? free_bytes + kept : left;
}

int cuda_memory_alloc(struct gpu *base, void **p, size_t size, struct error *e) {
    struct cuda *g = (struct cuda *)base;
    const struct source from = device_memory(g);
    cudaSetDevice(g->card);
    cudaError_t r = obtain(g, &from, p, whole_grains(size));
    if (r == cudaSuccess) {
        CUDA_MEMORY_NOTE(*p, align_up(size, 4), 1); /* kernels may read a word that only partly belongs to the block */
        return 0;
    }
    *p = NULL;
    if (r != cudaErrorMemoryAllocation) {
        cuda_check(g, r, "allocation");
        return cuda_error(base, e);
    }
    return error_set(e, ERR_MEMORY, "device %d (%s): cannot allocate %zu bytes, %zu of %zu are free", base->info.rank,
                     base->info.name, size, cuda_memory_left(base), base->info.mem);
}
void cuda_memory_free(struct gpu *base, void *p) {
    struct cuda *g = (struct cuda *)base;
    CUDA_MEMORY_NOTE(p, 0, 0);
    pthread_mutex_lock(&g->lock);
    cuda_arena_give(&g->memory, p);
    pthread_mutex_unlock(&g->lock);
}

int cuda_memory_host_alloc(struct gpu *base, void **p, size_t size, struct error *e) {
    struct cuda *g = (struct cuda *)base;
    const struct source from = pinned_memory(g);
    const size_t bytes = whole_grains(size), block = bytes < HOST_BLOCK_BYTES ? HOST_BLOCK_BYTES : bytes;
    cudaSetDevice(g->card);
    *p = take(g, &from, bytes, block == HOST_BLOCK_BYTES);
    cudaError_t r = cudaSuccess;
    /* the rest of the block is for others, who must not take all of it first */
    if (!*p && (r = obtain(g, &from, p, block)) == cudaSuccess && block > bytes) {
        pthread_mutex_lock(&g->lock);
        cuda_arena_give(&g->host, *p);
        *p = cuda_arena_take(&g->host, bytes, SIZE_MAX);
        pthread_mutex_unlock(&g->lock);
        r = *p ? cudaSuccess : cudaErrorMemoryAllocation;
    }
    if (r == cudaSuccess) {
        CUDA_MEMORY_NOTE(*p, size, 1);
        return 0;
    }
    *p = NULL;
    if (r != cudaErrorMemoryAllocation) {
        cuda_check(g, r, "pinned memory");
        return cuda_error(base, e);
    }
    return error_set(e, ERR_MEMORY, "cannot allocate %zu bytes of pinned memory: %s", size, cudaGetErrorString(r));
}
void cuda_memory_host_free(struct gpu *base, void *p) {
    struct cuda *g = (struct cuda *)base;
    pthread_mutex_lock(&g->lock);
    cuda_arena_give(&g->host, p);
    pthread_mutex_unlock(&g->lock);
}

/* Mapped checkpoints are read-only; registering them needs a flag that not every system supports. Without it only
 * writable memory can be pinned. */
int cuda_memory_register(struct gpu *base, const void *p, size_t size, struct error *e) {
    int card = ((struct cuda *)base)->card, read_only = 0;
    cudaSetDevice(card);
    cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported, card);
    const bool paused = cuda_timeline_pause_waits();
    cudaError_t r =
        cudaHostRegister((void *)p, size, cudaHostRegisterPortable | (read_only ? cudaHostRegisterReadOnly : 0));
    if (paused) cuda_timeline_resume_waits();
    if (r == cudaSuccess) return 0;
    cudaGetLastError();
    return error_set(e, ERR_MEMORY, "cannot pin %zu bytes: %s%s", size, cudaGetErrorString(r),
                     read_only ? "" : " (this system cannot pin read-only mappings)");
}
void cuda_memory_unregister(struct gpu *base, const void *p) {
    cudaSetDevice(((struct cuda *)base)->card);
    const bool paused = cuda_timeline_pause_waits();
    cudaHostUnregister((void *)p);
    if (paused) cuda_timeline_resume_waits();
    cudaGetLastError();
}
