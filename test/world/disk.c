#include "test/world/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "engine/kv/kv_cache.h"
#include "test/world/fibers.h"

enum { MOST_FILES = 32, MOST_NAMES = 32, FIRST_FD = 500 };
/* Files with data that no fsync has made safe, oldest first. */
static struct unsynced {
    int fd; /* our own descriptor */
    dev_t dev;
    ino_t ino;
    off_t safe; /* bytes from the start that are safe */
} file[MOST_FILES];
/* Names that no fsync of their directory has made safe. */
static struct renamed {
    ino_t dir;
    char to[512], old[512]; /* old: hard link to what the name was; "": it did not exist */
} name[MOST_NAMES];
static int n_files, n_names;
static uint32_t points_left;
int __real_rename(const char *from, const char *to);
int __real_unlink(const char *path);
static bool loses_power;
static char own_dir[400];

void disk_open(const char *dir) { snprintf(own_dir, sizeof own_dir, "%s", dir); }

static ino_t inode_of_dir(const char *path) {
    char dir[512];
    struct stat st;
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    if (slash) *slash = 0;
    return stat(slash ? dir : ".", &st) ? 0 : st.st_ino;
}

static void drop_file(int i) {
    close(file[i].fd);
    memmove(&file[i], &file[i + 1], (size_t)(--n_files - i) * sizeof *file);
}
static void drop_name(int i) {
    if (*name[i].old) __real_unlink(name[i].old);
    memmove(&name[i], &name[i + 1], (size_t)(--n_names - i) * sizeof *name);
}
void disk_forget(void) {
    while (n_files) drop_file(0);
    while (n_names) drop_name(0);
    points_left = 0;
}

/* --- Death ------------------------------------------------------------------------------------ */

void disk_kill_after(uint32_t points, bool power) { points_left = points ? points + 1 : 0, loses_power = power; }

/* Undoes the last renames, and cuts or damages what was written since the last fsync. */
static void lose_power(void) {
    const int kept = (int)fibers_random((uint32_t)n_names + 1);
    for (int i = n_names - 1; i >= kept; i--) {
        if (*name[i].old) __real_rename(name[i].old, name[i].to);
        else __real_unlink(name[i].to);
    }
    for (int i = 0; i < n_files; i++) {
        struct stat st;
        if (fstat(file[i].fd, &st) || st.st_size <= file[i].safe) continue;
        const off_t left = file[i].safe + fibers_random((uint32_t)(st.st_size - file[i].safe) + 1);
        static const char zeros[4096];
        switch (fibers_random(3)) {
        case 0: break; /* all of it was written back in time */
        case 1:
            if (ftruncate(file[i].fd, left)) abort();
            break;
        default: /* a page was not */
            if (pwrite(file[i].fd, zeros, (size_t)(st.st_size - left < 4096 ? st.st_size - left : 4096), left) < 0)
                abort();
        }
    }
}
void disk_count_point(void) {
    if (!points_left || --points_left) return;
    if (loses_power) lose_power();
    fflush(stdout);
    _exit(DISK_KILLED);
}

/* --- Calls ------------------------------------------------------------------------------------ */

static void note_write(int fd) {
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return;
    for (int i = 0; i < n_files; i++)
        if (file[i].ino == st.st_ino && file[i].dev == st.st_dev) return;
    if (n_files == MOST_FILES) drop_file(0);
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, FIRST_FD);
    if (own >= 0) file[n_files++] = (struct unsynced){own, st.st_dev, st.st_ino, st.st_size};
}

ssize_t __real_write(int fd, const void *from, size_t n);
ssize_t __wrap_write(int fd, const void *from, size_t n);
ssize_t __wrap_write(int fd, const void *from, size_t n) {
    enum { SHORT = 16 }; /* one write in this many */
    if (fibers_event_add(fd, from)) return (ssize_t)n;
    if (fd > 2) {
        fibers_point();
        note_write(fd);
        if (n > 1 && !fibers_random(SHORT)) n = 1 + fibers_random((uint32_t)n);
        if (!fibers_random(SHORT)) return errno = EINTR, -1;
    }
    return __real_write(fd, from, n);
}

int __real_fsync(int fd);
int __wrap_fsync(int fd);
int __wrap_fsync(int fd) {
    struct stat st;
    fibers_point();
    if (fstat(fd, &st)) return -1;
    for (int i = 0; i < n_files; i++)
        if (file[i].ino == st.st_ino && file[i].dev == st.st_dev) drop_file(i--);
    for (int i = 0; i < n_names; i++)
        if (name[i].dir == st.st_ino) drop_name(i--);
    return 0;
}

/* Notes what a name is before it changes. */
static void keep_old(const char *path) {
    static unsigned n;
    struct renamed r = {.dir = inode_of_dir(path)};
    snprintf(r.to, sizeof r.to, "%s", path);
    snprintf(r.old, sizeof r.old, "%s/old.%d.%u", own_dir, (int)getppid(), n++);
    __real_unlink(r.old);
    if (link(path, r.old)) *r.old = 0;
    if (n_names == MOST_NAMES) drop_name(0);
    name[n_names++] = r;
}

int __wrap_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to) {
    fibers_point();
    keep_old(to);
    const int rc = __real_rename(from, to);
    fibers_point();
    return rc;
}

int __wrap_unlink(const char *path);
int __wrap_unlink(const char *path) {
    fibers_point();
    keep_old(path);
    return __real_unlink(path);
}
int __real_unlinkat(int dir, const char *path, int flags);
int __wrap_unlinkat(int dir, const char *path, int flags);
int __wrap_unlinkat(int dir, const char *path, int flags) {
    char whole[512], of[40];
    fibers_point();
    snprintf(of, sizeof of, "/proc/self/fd/%d", dir);
    const ssize_t n = readlink(of, whole, sizeof whole - 40);
    if (n > 0) {
        snprintf(whole + n, sizeof whole - (size_t)n, "/%s", path);
        keep_old(whole);
    }
    return __real_unlinkat(dir, path, flags);
}
int __real_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags);
int __wrap_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags);
int __wrap_linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    fibers_point();
    return __real_linkat(from_dir, from, to_dir, to, flags);
}
int __wrap_fstatvfs(int fd, struct statvfs *out);
int __wrap_fstatvfs(int fd, struct statvfs *out) {
    *out = (struct statvfs){.f_bavail = 1 << 20, .f_frsize = 4096};
    return 0;
}
int __wrap_flock(int fd, int how);
int __real_flock(int fd, int how);
int __wrap_flock(int fd, int how) { /* the lock's other owner may be a fiber: never block the process */
    fibers_point();
    for (;;) {
        const int rc = __real_flock(fd, how | LOCK_NB);
        if (!rc || how & LOCK_NB || errno != EWOULDBLOCK) return rc;
        fibers_point();
    }
}
struct huge_pages;
struct checkpoint;
void __wrap_huge_pages_open(struct huge_pages **out, const struct checkpoint *files);
void __wrap_huge_pages_open(struct huge_pages **out, const struct checkpoint *files) { *out = NULL; } /* needs /proc */
size_t __wrap_mem_available(void);
size_t __wrap_mem_available(void) { return (size_t)1 << 32; }
pid_t __wrap_getpid(void);
pid_t __wrap_getpid(void) { return 4711; }

/* --- Calls of the KV cache, between which another thread may run ------------------------------- */

ssize_t __real_pwrite(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at);
ssize_t __wrap_pwrite(int fd, const void *from, size_t n, off_t at) {
    fibers_point();
    return __real_pwrite(fd, from, n, at);
}
ssize_t __real_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at);
ssize_t __wrap_pread(int fd, void *to, size_t n, off_t at) {
    fibers_point();
    return __real_pread(fd, to, n, at);
}
void *__real_mmap(void *at, size_t n, int may, int flags, int fd, off_t from);
void *__wrap_mmap(void *at, size_t n, int may, int flags, int fd, off_t from);
void *__wrap_mmap(void *at, size_t n, int may, int flags, int fd, off_t from) {
    fibers_point();
    return __real_mmap(at, n, may, flags, fd, from);
}
int __real_kv_commit(struct kv *kv, int end, struct error *e);
int __wrap_kv_commit(struct kv *kv, int end, struct error *e);
int __wrap_kv_commit(struct kv *kv, int end, struct error *e) {
    fibers_point();
    return __real_kv_commit(kv, end, e);
}
struct kv_state_step __real_kv_state_begin(struct kv *kv, int pos, int n, int mark);
struct kv_state_step __wrap_kv_state_begin(struct kv *kv, int pos, int n, int mark);
struct kv_state_step __wrap_kv_state_begin(struct kv *kv, int pos, int n, int mark) {
    fibers_point();
    return __real_kv_state_begin(kv, pos, n, mark);
}
