#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/error.h"
#include "base/fault.h"

static bool refuse(void) {
    if (!fault_hit(FAULT_ALLOC)) return false;
    errno = ENOMEM;
    return true;
}

void *mem_alloc(size_t size) { return refuse() ? NULL : malloc(size ? size : 1); }
void *mem_calloc(size_t n, size_t size) { return refuse() ? NULL : calloc(n ? n : 1, size ? size : 1); }
void *mem_realloc(void *p, size_t size) { return refuse() ? NULL : realloc(p, size ? size : 1); }
void mem_free(void *p) { free(p); }

int mem_grow(void *p, size_t *cap, size_t need, size_t item) {
    if (need <= *cap) return 0;
    size_t n = *cap < 8 ? 8 : *cap;
    while (n < need) {
        if (n > SIZE_MAX / 2) return ERR_MEMORY;
        n *= 2;
    }
    if (n > SIZE_MAX / item) return ERR_MEMORY;
    void *old;
    memcpy(&old, p, sizeof old);
    void *new = mem_realloc(old, n * item);
    if (!new) return ERR_MEMORY;
    memcpy(p, &new, sizeof new);
    *cap = n;
    return 0;
}

static _Atomic bool prefer_huge;
void mem_prefer_huge(bool on) { atomic_store(&prefer_huge, on); }

void *mem_aligned(size_t align, size_t size) {
    void *p;
    const bool huge = size >= MEM_HUGE_PAGE;
    if (refuse() || posix_memalign(&p, huge && align < MEM_HUGE_PAGE ? MEM_HUGE_PAGE : align, size ? size : 1))
        return NULL;
    if (huge) madvise(p, size / MEM_HUGE_PAGE * MEM_HUGE_PAGE, MADV_HUGEPAGE);
    return p;
}

char *mem_strndup(const char *s, size_t n) {
    char *p = mem_alloc(n + 1);
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}
char *mem_strdup(const char *s) { return mem_strndup(s, strlen(s)); }

void *mem_pages(size_t size, int flags) {
    if (refuse()) return NULL;
    bool huge = size >= MEM_HUGE_PAGE && !(flags & MEM_SMALL) && (flags & MEM_HUGE || atomic_load(&prefer_huge));
    const bool aligned = huge || (size >= MEM_HUGE_PAGE && flags & MEM_RESERVE);
    size_t more = aligned ? MEM_HUGE_PAGE : 0; /* the excess is unmapped */
    int may = flags & MEM_RESERVE ? PROT_NONE : PROT_READ | PROT_WRITE;
    uint8_t *p = mmap(NULL, size + more, may, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (!huge && flags & MEM_SMALL) madvise(p, size, MADV_NOHUGEPAGE);
    if (!aligned) return p;
    size_t before = (MEM_HUGE_PAGE - (uintptr_t)p % MEM_HUGE_PAGE) % MEM_HUGE_PAGE,
           page = (size_t)sysconf(_SC_PAGESIZE), used = (before + size + page - 1) / page * page;
    if (before) munmap(p, before);
    if (size + more > used) munmap(p + used, size + more - used);
    if (huge) madvise(p + before, size, MADV_HUGEPAGE);
    return p + before;
}
void mem_request_huge(void *p, size_t size, bool is_used) {
    enum { COLLAPSE = 25 }; /* MADV_COLLAPSE, which old headers lack */
    if (!madvise(p, size, MADV_HUGEPAGE) && is_used) madvise(p, size, COLLAPSE);
}
int mem_commit(void *p, size_t size) { return refuse() || mprotect(p, size, PROT_READ | PROT_WRITE) ? ERR_MEMORY : 0; }
int mem_zero_pages(void *p, size_t size) {
    if (mmap(p, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        return ERR_MEMORY;
    if (size >= MEM_HUGE_PAGE && atomic_load(&prefer_huge)) madvise(p, size, MADV_HUGEPAGE);
    return 0;
}
void mem_pages_free(void *p, size_t size) {
    if (p) munmap(p, size);
}

static size_t meminfo(const char *key) {
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f) return 0;
    char line[128];
    size_t kb = 0, n = strlen(key);
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, n)) {
            kb = strtoull(line + n, NULL, 10);
            break;
        }
    fclose(f);
    return kb * 1024;
}

static size_t number_in(const char *path, size_t none) {
    FILE *f = fopen(path, "re");
    if (!f) return none;
    unsigned long long v;
    int got = fscanf(f, "%llu", &v);
    fclose(f);
    return got == 1 ? (size_t)v : none;
}

/* --- Cgroups: the limits of this process's cgroup and all its ancestors. Versions 1 and 2 differ in file names and
 * mount points. File pages count as used, but are reclaimed when memory is needed. --- */

static size_t group_files(const char *dir, const char *prefix) {
    char path[4096], word[64];
    unsigned long long v;
    size_t sum = 0;
    snprintf(path, sizeof path, "%.4000s/memory.stat", dir);
    FILE *f = fopen(path, "re");
    if (!f) return 0;
    while (fscanf(f, "%63s %llu", word, &v) == 2)
        if (!strncmp(word, prefix, strlen(prefix)) &&
            (!strcmp(word + strlen(prefix), "inactive_file") || !strcmp(word + strlen(prefix), "active_file")))
            sum += (size_t)v;
    fclose(f);
    return sum;
}

static void group(bool one, char *own, size_t *limit, size_t *left) {
    const char *mount = one ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
    own[strcspn(own, "\n")] = 0;
    for (;;) { /* a container may see only the end of the host's path: then nothing is found up to "/" */
        char dir[2048], path[2200];
        snprintf(dir, sizeof dir, "%s%.1900s", mount, strcmp(own, "/") ? own : "");
        snprintf(path, sizeof path, "%s/%s", dir, one ? "memory.limit_in_bytes" : "memory.max");
        size_t max = number_in(path, SIZE_MAX);
        if (max < SIZE_MAX) {
            snprintf(path, sizeof path, "%s/%s", dir, one ? "memory.usage_in_bytes" : "memory.current");
            size_t used = number_in(path, 0), files = group_files(dir, one ? "total_" : "");
            used -= files < used ? files : used;
            if (max < *limit) *limit = max;
            if ((max > used ? max - used : 0) < *left) *left = max > used ? max - used : 0;
        }
        char *slash = strrchr(own, '/');
        if (!slash || !own[1]) return;
        slash[slash == own] = 0;
    }
}

static void groups(size_t *limit, size_t *left) {
    char line[2048], *own;
    FILE *f = fopen("/proc/self/cgroup", "re");
    *limit = *left = SIZE_MAX;
    while (f && fgets(line, sizeof line, f)) { /* "4:memory:/path", or "0::/path" for version 2 */
        char *controllers = strchr(line, ':');
        if (!controllers || !(own = strchr(controllers + 1, ':'))) continue;
        *own++ = 0;
        bool two = own - controllers == 2;
        if (two || strstr(controllers, "memory")) group(!two, own, limit, left);
    }
    if (f) fclose(f);
}

size_t mem_available(void) {
    size_t free_now = meminfo("MemAvailable:"), limit, left;
    groups(&limit, &left);
    return free_now < left ? free_now : left;
}
size_t mem_total(void) {
    size_t all = meminfo("MemTotal:"), limit, left;
    groups(&limit, &left);
    return all < limit ? all : limit;
}

struct arena_chunk {
    struct arena_chunk *next;
    size_t size;
    _Alignas(16) char data[];
};

void *arena_alloc(struct arena *a, size_t size) {
    if (size > SIZE_MAX / 2) return NULL;
    size = align_up(size, 16);
    if (!a->head || a->size - a->used < size) {
        size_t want = a->size < 1u << 20 ? (a->size ? a->size * 2 : 4096) : 1u << 20;
        if (want < size) want = size;
        if (a->limit && (a->total > a->limit || want > a->limit - a->total)) {
            if (size > a->limit || a->total > a->limit - size) return NULL;
            want = size;
        }
        struct arena_chunk *c = mem_alloc(sizeof *c + want);
        if (!c) return NULL;
        c->next = a->head;
        c->size = want;
        a->head = c;
        a->used = 0;
        a->size = want;
        a->total += want;
    }
    void *p = a->head->data + a->used;
    a->used += size;
    return p;
}
void *arena_calloc(struct arena *a, size_t n, size_t size) {
    if (size && n > SIZE_MAX / size) return NULL;
    void *p = arena_alloc(a, n * size);
    return p ? memset(p, 0, n * size) : NULL;
}
char *arena_strndup(struct arena *a, const char *s, size_t n) {
    char *p = n < SIZE_MAX ? arena_alloc(a, n + 1) : NULL;
    if (!p) return NULL;
    memcpy(p, s, n);
    p[n] = 0;
    return p;
}
void arena_reset(struct arena *a) {
    if (!a->head) return;
    while (a->head->next) {
        struct arena_chunk *c = a->head->next;
        a->head->next = c->next;
        a->total -= c->size;
        mem_free(c);
    }
    a->used = 0;
}
void arena_free(struct arena *a) {
    for (struct arena_chunk *c = a->head, *next; c; c = next) {
        next = c->next;
        mem_free(c);
    }
    *a = (struct arena){.limit = a->limit};
}
