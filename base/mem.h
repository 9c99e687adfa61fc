#pragma once
/* Heap memory. Every function may return NULL (also by an injected fault, fault.h); callers handle it. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline size_t align_up(size_t n, size_t to) { return (n + to - 1) / to * to; } /* the next multiple of `to` */

void *mem_alloc(size_t size);            /* uninitialised; 16-byte aligned; size 0 gives a valid pointer */
void *mem_calloc(size_t n, size_t size); /* zeroed; NULL when n * size overflows */
void *mem_realloc(void *p, size_t size); /* p stays valid on failure */
/* Grows an array to hold at least `need` items, doubling. Returns 0 or ERR_MEMORY with *p and *cap untouched. */
int mem_grow(void *p, size_t *cap, size_t need, size_t item); /* p: address of the array pointer */
/* align: a power of two >= 16. 2 MB and more are aligned to that and ask for 2 MB pages. Freed by mem_free. */
void *mem_aligned(size_t align, size_t size);
void mem_free(void *p);
char *mem_strdup(const char *s);
char *mem_strndup(const char *s, size_t n);

/* Requests 2 MB pages for all later mem_pages of 2 MB or more. Set while opening. */
void mem_prefer_huge(bool on);
/* Maps whole zero-filled pages. MEM_HUGE requests 2 MB pages, MEM_SMALL forbids them. MEM_RESERVE reserves addresses
 * only, aligned to 2 MB if there are as many: they must not be touched before mem_commit and cost nothing, even where
 * overcommit is restricted. */
enum { MEM_HUGE = 1, MEM_RESERVE = 2, MEM_SMALL = 4, MEM_PAGE = 4096, MEM_HUGE_PAGE = 2 << 20 };
void *mem_pages(size_t size, int flags);
int mem_commit(void *p, size_t size); /* commits reserved addresses; both multiples of MEM_PAGE; 0 or ERR_MEMORY */
/* Requests 2 MB pages for a committed range; both multiples of those. is_used: small pages that are there already are
 * replaced at once, with their contents (Linux 6.1). Where the system has no such pages nothing happens. */
void mem_request_huge(void *p, size_t size, bool is_used);
/* replaces committed pages by zero pages, whatever was mapped; 0, or ERR_MEMORY with the old mapping intact */
int mem_zero_pages(void *p, size_t size);
void mem_pages_free(void *p, size_t size);
size_t mem_available(void); /* available bytes (MemAvailable, within the cgroup's limit); 0 unknown */
size_t mem_total(void);

/* Arena: many small allocations that are freed together. Not thread-safe. Zero-initialised is valid and empty. */
struct arena {
    struct arena_chunk *head;
    size_t used, size;   /* the head chunk */
    size_t total, limit; /* bytes taken from mem_alloc; limit 0 = none */
};
void *arena_alloc(struct arena *a, size_t size); /* 16-byte aligned, uninitialised */
void *arena_calloc(struct arena *a, size_t n, size_t size);
char *arena_strndup(struct arena *a, const char *s, size_t n); /* NUL-terminated copy */
void arena_reset(struct arena *a);                             /* discards the contents, keeps the newest chunk */
void arena_free(struct arena *a);
