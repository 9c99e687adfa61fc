#include "cli/tools/agent_file.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/test_limits.h"

/* --- paths ------------------------------------------------------------------------------------ */

int agent_file_open_dir(struct agent_dir *d, const char *path, struct error *e) {
    char expanded[PATHS_MAX];
    *d = (struct agent_dir){.fd = -1};
    if (paths_expand(path, expanded, sizeof expanded)) return error_set(e, ERR_USAGE, "the path is too long");
    char *real = realpath(expanded, NULL);
    if (!real) return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    const size_t n = strlen(real);
    if (n < sizeof d->path) memcpy(d->path, real, n + 1);
    free(real);
    if (n >= sizeof d->path) return error_set(e, ERR_USAGE, "the path is too long");
    d->fd = open(d->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return d->fd < 0 ? error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno)) : 0;
}

void agent_file_close_dir(struct agent_dir *d) {
    if (d->fd >= 0) close(d->fd);
    d->fd = -1;
}

static int refuse_outside(const struct agent_dir *d, const char *path, size_t n, struct error *e) {
    return error_set(e, ERR_USAGE, "%.*s is outside of %.150s, the only directory that these tools reach",
                     n < 150 ? (int)n : 150, path, d->path);
}

int agent_file_path(const struct agent_dir *d, const char *path, size_t n, char *out, struct error *e) {
    const char *const whole = path;
    const size_t n_whole = n, n_dir = strcmp(d->path, "/") != 0 ? strlen(d->path) : 0;
    size_t len = 0;
    if (n >= PATHS_MAX || memchr(path, 0, n)) return error_set(e, ERR_USAGE, "path: not a path");
    if (n && *path == '/') {
        if (n < n_dir || memcmp(path, d->path, n_dir) != 0 || (n > n_dir && path[n_dir] != '/'))
            return refuse_outside(d, whole, n_whole, e);
        path += n_dir, n -= n_dir;
    }
    for (size_t word; n; path += word, n -= word) {
        if (*path == '/') {
            word = 1;
            continue;
        }
        const char *end = memchr(path, '/', n);
        word = end ? (size_t)(end - path) : n;
        if (word == 1 && *path == '.') continue;
        if (word == 2 && path[0] == '.' && path[1] == '.') {
            if (!len) return refuse_outside(d, whole, n_whole, e);
            while (len && out[--len] != '/') {
            }
            continue;
        }
        if (len) out[len++] = '/';
        memcpy(out + len, path, word);
        len += word;
    }
    out[len] = 0;
    return 0;
}

/* --- opening ---------------------------------------------------------------------------------- */

/* Opens a path component by component without following links. */
static int open_walking(int fd, const char *path, int flags) {
    char part[PATHS_MAX];
    int at = fd, next;
    for (;;) {
        const size_t n = strcspn(path, "/");
        const bool is_last = !path[n];
        memcpy(part, path, n);
        part[n] = 0;
        next = openat(at, part, (is_last ? flags : O_PATH | O_DIRECTORY | O_CLOEXEC) | O_NOFOLLOW);
        const int saved = errno;
        if (at != fd) close(at);
        errno = saved;
        if (next < 0 || is_last) return next;
        at = next;
        path += n + 1;
    }
}

/* Opens a path beneath a directory. -1 with errno: EXDEV if it leads out of it. */
static int open_beneath(const struct agent_dir *d, const char *path, int flags) {
    enum { TRIES = 100 };
    const char *name = *path ? path : ".";
    struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC), .resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS};
    static _Atomic bool is_missing; /* kernels before 5.6, and sandboxes that do not know it */
    if (fault_hit(FAULT_OPEN)) return errno = EIO, -1;
    for (int i = 0; !atomic_load(&is_missing) && !test_limits_get(TEST_LIMIT_AGENT_WALKS, 0) && i < TRIES; i++) {
        const int fd = (int)syscall(SYS_openat2, d->fd, name, &how, sizeof how);
        if (fd >= 0) return fd;
        if (errno == EAGAIN || errno == EINTR) continue; /* something was renamed meanwhile */
        if (errno != ENOSYS && errno != EPERM) return -1;
        atomic_store(&is_missing, errno == ENOSYS || atomic_load(&is_missing));
        break;
    }
    return open_walking(d->fd, name, flags | O_CLOEXEC);
}

const char *agent_file_kind(mode_t mode) {
    return S_ISFIFO(mode)   ? "a FIFO"
           : S_ISSOCK(mode) ? "a socket"
           : S_ISLNK(mode)  ? "a symbolic link"
           : S_ISDIR(mode)  ? "a directory"
           : S_ISREG(mode)  ? "a file"
                            : "a device";
}

static int fail(const struct agent_dir *d, const char *path, int why, struct error *e) {
    if (why == EXDEV) return refuse_outside(d, path, strlen(path), e);
    if (why == ELOOP) return error_set(e, ERR_USAGE, "%.300s: a symbolic link that is not followed", path);
    if (why == ENOENT) return error_set(e, ERR_USAGE, "%.300s: no such file; list_directory shows what exists", path);
    return error_set(e, ERR_USAGE, "%.300s: %s", path, strerror(why));
}

/* Opens what `path` was found to be. A file that was exchanged meanwhile is not taken. */
static int open_found(int dir, const struct agent_dir *d, const char *path, enum agent_kind kind,
                      const struct stat *was, struct stat *s) {
    const int flags = O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC | (kind == AGENT_KIND_DIRECTORY ? O_DIRECTORY : 0);
    const int fd = d ? open_beneath(d, path, flags) : openat(dir, path, flags | O_NOFOLLOW);
    if (fd < 0) return -1;
    if (!fstat(fd, s) && s->st_dev == was->st_dev && s->st_ino == was->st_ino) return fd;
    close(fd);
    errno = EBUSY;
    return -1;
}

int agent_file_open(const struct agent_dir *d, const char *path, enum agent_kind kind, int *fd, struct stat *s,
                    struct error *e) {
    const char *name = *path ? path : ".";
    struct stat was;
    *fd = -1;
    const int found = open_beneath(d, path, O_PATH);
    if (found < 0) return fail(d, name, errno, e);
    const int rc = fstat(found, &was) ? errno : 0;
    close(found);
    if (rc) return fail(d, name, rc, e);
    if ((was.st_mode & S_IFMT) != (mode_t)kind) {
        if (S_ISLNK(was.st_mode)) return fail(d, name, ELOOP, e);
        if (S_ISDIR(was.st_mode))
            return error_set(e, ERR_USAGE, "%.300s: a directory; list_directory shows what is in it", name);
        return error_set(e, ERR_USAGE, "%.300s: %s, no %s", name, agent_file_kind(was.st_mode),
                         kind == AGENT_KIND_FILE ? "file that can be read" : "directory");
    }
    *fd = open_found(-1, d, path, kind, &was, s);
    return *fd < 0 ? fail(d, name, errno, e) : 0;
}

bool agent_file_open_entry(int dir, const char *name, enum agent_kind kind, int *fd, struct stat *s) {
    struct stat was;
    if (fstatat(dir, name, &was, AT_SYMLINK_NOFOLLOW) || (was.st_mode & S_IFMT) != (mode_t)kind) return false;
    *fd = open_found(dir, NULL, name, kind, &was, s);
    return *fd >= 0;
}

int agent_file_read(int fd, size_t max, char **data, size_t *n, struct error *e) {
    size_t cap = 0;
    *data = NULL, *n = 0;
    for (;;) {
        if (mem_grow(data, &cap, *n + 4096, 1))
            return mem_free(*data), *data = NULL, error_set(e, ERR_MEMORY, "no memory");
        const ssize_t k = fault_hit(FAULT_READ) ? (errno = EIO, -1) : read(fd, *data + *n, cap - *n);
        if (k < 0 && errno == EINTR) continue;
        if (k >= 0) *n += (size_t)k;
        const int rc = k < 0      ? error_set(e, ERR_RUNTIME, "%s", strerror(errno))
                       : *n > max ? error_set(e, ERR_USAGE, "more than %zu bytes, too long for this tool", max)
                                  : 0;
        if (rc) return mem_free(*data), *data = NULL, rc;
        if (!k) return 0;
    }
}

/* --- replacing -------------------------------------------------------------------------------- */

/* Opens the directory of a file. name: the file's own. */
static int open_parent(const struct agent_dir *d, const char *path, int *fd, const char **name, struct error *e) {
    char dir[PATHS_MAX];
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t)(slash - path) : 0;
    *name = slash ? slash + 1 : path;
    memcpy(dir, path, n);
    dir[n] = 0;
    *fd = open_beneath(d, dir, O_PATH | O_DIRECTORY);
    return *fd < 0 ? fail(d, dir, errno, e) : 0;
}

/* Makes the directories that a file needs: it goes down from the last one that exists. */
static int make_parents(const struct agent_dir *d, const char *path, struct error *e) {
    enum { MOST_MADE = 32 };
    char dir[PATHS_MAX];
    int at = -1, why = 0;
    for (const char *slash = strchr(path, '/'); slash && !why; slash = strchr(slash + 1, '/')) {
        memcpy(dir, path, (size_t)(slash - path));
        dir[slash - path] = 0;
        const char *own = strrchr(dir, '/');
        int next = at < 0 ? open_beneath(d, dir, O_PATH | O_DIRECTORY) : -1;
        if (next >= 0) {
            close(next);
            continue;
        }
        if (at < 0 && errno != ENOENT) return fail(d, dir, errno, e);
        if (at < 0) { /* what follows is missing */
            char above[PATHS_MAX] = "";
            int n_missing = 0;
            for (const char *more = slash; more; more = strchr(more + 1, '/')) n_missing++;
            if (own) memcpy(above, dir, (size_t)(own - dir)), above[own - dir] = 0;
            if (n_missing > MOST_MADE) why = ENAMETOOLONG;
            else if ((at = open_beneath(d, above, O_PATH | O_DIRECTORY)) < 0) why = errno;
        }
        own = own ? own + 1 : dir;
        if (!why && mkdirat(at, own, 0777) && errno != EEXIST) why = errno;
        if (!why && (next = openat(at, own, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0) why = errno;
        if (at >= 0) close(at);
        at = next;
    }
    if (at >= 0) close(at);
    return why ? fail(d, dir, why, e) : 0;
}

static int check_entry(int dir, const char *name, const char *path, mode_t *mode, bool *exists, struct error *e) {
    struct stat s;
    *exists = !fstatat(dir, name, &s, AT_SYMLINK_NOFOLLOW);
    if (!*exists) return 0;
    *mode = s.st_mode;
    if (S_ISLNK(s.st_mode))
        return error_set(e, ERR_USAGE, "%.300s: a symbolic link; name the file that it leads to", path);
    return S_ISREG(s.st_mode)
               ? 0
               : error_set(e, ERR_USAGE, "%.300s: %s, which is not replaced", path, agent_file_kind(s.st_mode));
}

int agent_file_check_target(const struct agent_dir *d, const char *path, bool *exists, struct error *e) {
    const char *name;
    mode_t mode;
    int dir;
    *exists = false;
    if (!*path) return error_set(e, ERR_USAGE, "path: the name of a file is required");
    dir = open_beneath(d, path, O_PATH | O_NOFOLLOW);
    if (dir < 0) return errno == ENOENT ? 0 : fail(d, path, errno, e);
    close(dir);
    TRY(open_parent(d, path, &dir, &name, e));
    const int rc = check_entry(dir, name, path, &mode, exists, e);
    close(dir);
    return rc;
}

/* Writes a new file in an open directory. mode: of the file that it will replace; 0: none. */
static int write_new(int dir, const char *name, mode_t mode, const char *data, size_t n) {
    const int fd = fault_hit(FAULT_OPEN)
                       ? (errno = EIO, -1)
                       : openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode ? 0600 : 0666);
    if (fd < 0) return errno;
    int why = -file_write_all(fd, data, n);
    if (!why && mode && fchmod(fd, mode & 0777)) why = errno;
    if (!why && (fault_hit(FAULT_SYNC) ? (errno = EIO, -1) : fsync(fd))) why = errno;
    if (close(fd) && !why) why = errno;
    if (why) unlinkat(dir, name, 0);
    return why;
}

int agent_file_replace(const struct agent_dir *d, const char *path, const char *data, size_t n, struct error *e) {
    static _Atomic unsigned last;
    const char *name;
    char tmp[64];
    mode_t mode = 0;
    bool exists;
    int dir;
    TRY(make_parents(d, path, e));
    TRY(open_parent(d, path, &dir, &name, e));
    int rc = check_entry(dir, name, path, &mode, &exists, e), readable = -1;
    if (rc) return close(dir), rc;
    snprintf(tmp, sizeof tmp, ".hearth-%d-%u.tmp", (int)getpid(), atomic_fetch_add(&last, 1));
    int why = write_new(dir, tmp, mode, data, n);
    if (!why && (fault_hit(FAULT_RENAME) ? (errno = EIO, -1) : renameat(dir, tmp, dir, name))) {
        why = errno;
        unlinkat(dir, tmp, 0);
    }
    if (!why && (readable = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) {
        error_ignore(fsync(readable)); /* file systems that cannot */
        close(readable);
    }
    close(dir);
    return why ? error_set(e, ERR_RUNTIME, "%.300s: %s", path, strerror(why)) : 0;
}
