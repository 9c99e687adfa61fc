#include "gpu/cuda_arena.h"

#include <stdint.h>
#include <string.h>

#include "base/mem.h"

static bool insert(struct cuda_arena *a, size_t at, struct cuda_part part) {
    if (mem_grow(&a->parts, &a->cap, a->n + 1, sizeof *a->parts)) return false;
    memmove(a->parts + at + 1, a->parts + at, (a->n - at) * sizeof *a->parts);
    a->parts[at] = part;
    a->n++;
    return true;
}
static void erase(struct cuda_arena *a, size_t at, size_t n) {
    memmove(a->parts + at, a->parts + at + n, (a->n - at - n) * sizeof *a->parts);
    a->n -= n;
}

void *cuda_arena_take(struct cuda_arena *a, size_t size, size_t most) {
    size_t best = a->n;
    for (size_t i = 0; i < a->n; i++)
        if (!a->parts[i].is_used && a->parts[i].size >= size && a->parts[i].size <= most &&
            (best == a->n || a->parts[i].size < a->parts[best].size))
            best = i;
    if (best == a->n) return NULL;
    struct cuda_part *part = &a->parts[best];
    if (part->size > size) {
        if (!insert(a, best + 1, (struct cuda_part){.p = part->p + size, .size = part->size - size})) return NULL;
        part = &a->parts[best];
        part->size = size;
    }
    part->is_used = true;
    a->used_bytes += size;
    return part->p;
}

/* Index of the first part at or after p. */
static size_t find(const struct cuda_arena *a, const void *p) {
    size_t low = 0, high = a->n;
    while (low < high) {
        size_t i = (low + high) / 2;
        if ((uintptr_t)a->parts[i].p < (uintptr_t)p) low = i + 1;
        else high = i;
    }
    return low;
}

bool cuda_arena_add(struct cuda_arena *a, void *p, size_t size) {
    if (!insert(a, find(a, p), (struct cuda_part){.p = p, .size = size, .is_used = true, .is_first = true}))
        return false;
    a->held_bytes += size;
    a->used_bytes += size;
    return true;
}

static void join_next(struct cuda_arena *a, size_t i) {
    if (i + 1 >= a->n || a->parts[i].is_used || a->parts[i + 1].is_used || a->parts[i + 1].is_first) return;
    a->parts[i].size += a->parts[i + 1].size;
    erase(a, i + 1, 1);
}
void cuda_arena_give(struct cuda_arena *a, void *p) {
    size_t i = find(a, p);
    if (!p || i == a->n || a->parts[i].p != p) return;
    a->parts[i].is_used = false;
    a->used_bytes -= a->parts[i].size;
    join_next(a, i);
    if (i) join_next(a, i - 1);
}

void *cuda_arena_remove(struct cuda_arena *a, bool used) {
    for (size_t i = 0, end; i < a->n; i = end) {
        bool any = a->parts[i].is_used;
        size_t bytes = a->parts[i].size;
        for (end = i + 1; end < a->n && !a->parts[end].is_first; end++)
            any |= a->parts[end].is_used, bytes += a->parts[end].size;
        if (any && !used) continue;
        void *p = a->parts[i].p;
        for (size_t k = i; k < end; k++) a->used_bytes -= a->parts[k].is_used ? a->parts[k].size : 0;
        a->held_bytes -= bytes;
        erase(a, i, end - i);
        return p;
    }
    return NULL;
}

void cuda_arena_close(struct cuda_arena *a) {
    mem_free(a->parts);
    *a = (struct cuda_arena){0};
}
