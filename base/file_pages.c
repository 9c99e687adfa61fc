/* Which pages of a map are in memory, and of what size. */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

/* Counts the pages of a range that mincore calls cached, up to the first that is not if `whole`. */
static size_t count_cached(const uint8_t *p, size_t pages, size_t page, bool whole) {
    unsigned char in[1024];
    size_t cached = 0;
    for (size_t at = 0, step; at < pages; at += step) {
        step = pages - at < sizeof in ? pages - at : sizeof in;
        if (mincore((uint8_t *)p + at * page, step * page, in)) return 0;
        for (size_t i = 0; i < step; i++)
            if (in[i] & 1) cached++;
            else if (whole) return cached;
    }
    return cached;
}
/* Counts the pages of a range that this process has mapped, up to the first that it has not
 * (Documentation/admin-guide/mm/pagemap). */
static size_t count_mapped(const uint8_t *p, size_t pages, size_t page) {
    const uint64_t PRESENT = (uint64_t)1 << 63;
    uint64_t in[512];
    const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    size_t mapped = 0, step = fd < 0 ? 0 : pages;
    while (step && mapped < pages) {
        step = pages - mapped < 512 ? pages - mapped : 512;
        const off_t at = (off_t)(((uintptr_t)p / page + mapped) * sizeof *in);
        if (pread(fd, in, step * sizeof *in, at) != (ssize_t)(step * sizeof *in)) break;
        for (size_t i = 0; i < step && step; i++)
            if (in[i] & PRESENT) mapped++;
            else step = 0;
    }
    if (fd >= 0) close(fd);
    return mapped;
}
size_t file_map_cached(const void *p, size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!file_map_tells_cached(p)) return 0;
    const size_t cached = count_cached(p, (size + page - 1) / page, page, false) * page;
    return cached < size ? cached : size;
}
bool file_map_is_cached(const void *p, size_t size) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = (size + page - 1) / page;
    return (file_map_tells_cached(p) ? count_cached(p, pages, page, true) : count_mapped(p, pages, page)) == pages;
}

/* The kernel's interface, which Debian 12's headers do not have yet (Linux 6.7, Documentation/admin-guide/mm/pagemap).
 */
struct scan_region {
    uint64_t start, end, categories;
};
struct scan_arg {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages, inverted, mask, any_of, returned;
};
enum { IS_HUGE = 1 << 6 };
#define PAGEMAP_SCAN_CALL _IOWR('f', 16, struct scan_arg)

ptrdiff_t file_map_large(const void *p, size_t size) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)p / page * page;
    const int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    struct scan_region region[16];
    struct scan_arg scan = {.size = sizeof scan,
                            .start = begin,
                            .end = begin + ((uintptr_t)p + size - begin + page - 1) / page * page,
                            .vec = (uintptr_t)region,
                            .vec_len = sizeof region / sizeof *region,
                            .mask = IS_HUGE,
                            .returned = IS_HUGE};
    ptrdiff_t large = 0;
    while (large >= 0 && scan.start < scan.end) {
        const int n = ioctl(fd, PAGEMAP_SCAN_CALL, &scan);
        if (n < 0) large = -1;
        for (int i = 0; i < n; i++) large += (ptrdiff_t)(region[i].end - region[i].start);
        scan.start = scan.walk_end;
    }
    if (fd >= 0) close(fd);
    return large;
}
