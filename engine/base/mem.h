#pragma once
/* All heap memory of hearth. Every function may return NULL (also by injected fault: fault.h); callers handle it. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

void *mem_alloc(size_t size);            /* uninitialised; 16-byte aligned; size 0 gives a valid pointer */
void *mem_calloc(size_t n, size_t size); /* zeroed; NULL when n * size overflows */
void *mem_realloc(void *p, size_t size); /* p stays valid on failure */
/* Grows an array to hold at least `need` items, doubling. Returns 0 or ERR_MEMORY with *p and *cap untouched. */
int mem_grow(void *p, size_t *cap, size_t need, size_t item); /* p: address of the array pointer */
void *mem_aligned(size_t align, size_t size);                 /* align a power of two >= 16; freed by mem_free */
void mem_free(void *p);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);

/* From now on memory of 2 MB and more is asked for in 2 MB pages, wherever it comes from. Set while opening. */
void mem_prefer_huge(bool on);
/* Whole pages straight from the kernel, zero-filled, in memory from first touch on; MEM_HUGE asks for 2 MB pages, MEM_SMALL for none such. MEM_RESERVE:
 * addresses alone, which nobody may touch before mem_commit; they cost nothing, also where the kernel gives no more than there is. */
enum { MEM_HUGE = 1, MEM_RESERVE = 2, MEM_SMALL = 4, MEM_PAGE = 4096 };
void *mem_pages(size_t size, int flags);
int mem_commit(void *p, size_t size); /* of such addresses, both multiples of MEM_PAGE; 0 or ERR_MEMORY */
int mem_renew(void *p, size_t size);  /* of committed ones: zeros again, whatever was mapped there; 0, or ERR_MEMORY with all as it was */
void mem_pages_free(void *p, size_t size);
size_t mem_available(void); /* bytes the machine can still give (MemAvailable, within the cgroup's limit); 0 unknown */
size_t mem_total(void);

/* Arena: many small things that die together. Not thread-safe. Zero-initialised is valid and empty. */
struct arena {
    struct arena_chunk *head;
    size_t used, size;   /* of the head chunk */
    size_t total, limit; /* bytes taken from mem_alloc; limit 0 = none */
};
void *arena_alloc(struct arena *a, size_t size); /* 16-byte aligned, uninitialised */
void *arena_calloc(struct arena *a, size_t n, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n); /* NUL-terminated copy */
void arena_reset(struct arena *a);                             /* forgets the contents, keeps the newest chunk */
void arena_free(struct arena *a);
