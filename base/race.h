#pragma once
/* Tells ThreadSanitizer what kernels in plain C read and write. Its own check of every access makes these kernels many
 * times slower, so with -Dsanitize=thread they are built without it and report each range once per call. In other
 * builds these functions do nothing. */
#include <stddef.h>

#ifdef HEARTH_RACE_RANGES
void __tsan_read_range(void *p, unsigned long bytes);
void __tsan_write_range(void *p, unsigned long bytes);
static inline void race_reads(const void *p, size_t bytes) {
    if (bytes) __tsan_read_range((void *)p, bytes);
}
static inline void race_writes(void *p, size_t bytes) {
    if (bytes) __tsan_write_range(p, bytes);
}
#else
static inline void race_reads(const void *p, size_t bytes) {}
static inline void race_writes(void *p, size_t bytes) {}
#endif
