#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/mem.h"

static const struct file_embedded *embedded;
static const char embed_prefix[] = "ember:";

void file_embed(const struct file_embedded *table) { embedded = table; }

static bool is_embedded(const char *path) { return !strncmp(path, embed_prefix, sizeof embed_prefix - 1); }

static const struct file_embedded *find_embedded(const char *path) {
    path += sizeof embed_prefix - 1;
    while (*path == '/') path++;
    for (const struct file_embedded *f = embedded; f && f->name; f++)
        if (!strcmp(f->name, path)) return f;
    return NULL;
}

/* All maps, for the SIGBUS handler: slots are filled and cleared with single stores, never moved. */
enum { MAX_MAPS = 2048 };
static struct {
    _Atomic(const uint8_t *) begin;
    const uint8_t *end;
    char *path;
    dev_t device;
    ino_t inode;
    bool tells_cached; /* mincore says which pages are cached */
} maps[MAX_MAPS];
static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;

/* Whether mincore tells what is cached: to who owns the file or may write it. To others it calls all pages cached. */
static bool tells_cached(int fd, const struct stat *st) {
    return st->st_uid == geteuid() || !faccessat(fd, "", W_OK, AT_EACCESS | AT_EMPTY_PATH);
}
static void remember(const uint8_t *begin, size_t size, const char *path, const struct stat *st, bool tells) {
    pthread_mutex_lock(&maps_lock);
    for (int i = 0; i < MAX_MAPS; i++)
        if (!atomic_load(&maps[i].begin)) {
            maps[i].path = mem_strdup(path);
            maps[i].end = begin + size;
            maps[i].device = st->st_dev, maps[i].inode = st->st_ino;
            maps[i].tells_cached = tells;
            atomic_store(&maps[i].begin, begin);
            break;
        }
    pthread_mutex_unlock(&maps_lock);
}
static void forget(const uint8_t *begin) {
    pthread_mutex_lock(&maps_lock);
    for (int i = 0; i < MAX_MAPS; i++)
        if (atomic_load(&maps[i].begin) == begin) {
            atomic_store(&maps[i].begin, NULL);
            mem_free(maps[i].path);
            maps[i].path = NULL;
            break;
        }
    pthread_mutex_unlock(&maps_lock);
}
const char *file_map_owner(const void *address) {
    const uint8_t *p = address;
    for (int i = 0; i < MAX_MAPS; i++) {
        const uint8_t *begin = atomic_load(&maps[i].begin);
        if (begin && p >= begin && p < maps[i].end) return maps[i].path;
    }
    return NULL;
}

void file_map_prefetch(const void *p, size_t size) {
    enum { SLICE = 128 << 10 }; /* the kernel truncates longer advice at its own read-ahead */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = (uintptr_t)p / page * page, end = ((uintptr_t)p + size + page - 1) / page * page;
    for (; begin < end; begin += SLICE)
        madvise((void *)begin, end - begin < SLICE ? end - begin : SLICE, MADV_WILLNEED);
}

/* Opens the file that is mapped at p; *at: offset in the file. -1: not mapped, or the file was removed or replaced. */
static int open_owner(const uint8_t *p, off_t *at) {
    struct stat st;
    int fd = -1;
    errno = ENOENT;
    pthread_mutex_lock(&maps_lock);
    for (int i = 0; i < MAX_MAPS && fd < 0; i++) {
        const uint8_t *begin = atomic_load(&maps[i].begin);
        if (!begin || p < begin || p >= maps[i].end) continue;
        *at = p - begin;
        if (!maps[i].path || (fd = open(maps[i].path, O_RDONLY | O_CLOEXEC)) < 0) break;
        if (!fstat(fd, &st) && st.st_dev == maps[i].device && st.st_ino == maps[i].inode) break;
        close(fd);
        fd = -1, errno = ESTALE;
        break;
    }
    pthread_mutex_unlock(&maps_lock);
    return fd;
}

void file_map_drop(const void *p, size_t size) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)p + page - 1) / page * page, end = ((uintptr_t)p + size) / page * page;
    off_t at = 0;
    int fd = end <= begin ? -1 : open_owner((const uint8_t *)begin, &at);
    if (fd < 0) return;
    /* unmap from this process first, otherwise the page cache keeps the pages */
    madvise((void *)begin, end - begin, MADV_DONTNEED);
    posix_fadvise(fd, at, (off_t)(end - begin), POSIX_FADV_DONTNEED);
    close(fd);
}

int file_map_touch(const void *p, size_t size) {
    if (fault_hit(FAULT_READ)) return -EIO;
    return madvise((void *)p, size, MADV_POPULATE_READ) ? -errno : 0;
}
int file_map_reload(const void *p, size_t size) {
    file_map_drop(p, size);
    return file_map_touch(p, size);
}

bool file_map_tells_cached(const void *address) {
    const uint8_t *p = address;
    bool tells = false;
    pthread_mutex_lock(&maps_lock);
    for (int i = 0; i < MAX_MAPS; i++) {
        const uint8_t *begin = atomic_load(&maps[i].begin);
        if (!begin || p < begin || p >= maps[i].end) continue;
        tells = maps[i].tells_cached;
        break;
    }
    pthread_mutex_unlock(&maps_lock);
    return tells;
}

int file_map_copy(void *to, const void *begin, size_t size, struct error *e) {
    off_t at = 0;
    int fd = open_owner(begin, &at), rc = 0;
    size_t done = 0;
    if (fd < 0)
        return error_set(e, ERR_RUNTIME, "%s: %s", file_map_owner(begin) ? file_map_owner(begin) : "a mapped file",
                         strerror(errno));
    while (done < size && !rc) {
        ssize_t n = -1;
        if (fault_hit(FAULT_READ)) errno = EIO;
        else n = pread(fd, (char *)to + done, size - done, at + (off_t)done);
        if (n > 0) done += (size_t)n;
        else if (!n) break; /* end of the file */
        else if (errno != EINTR) rc = error_set(e, ERR_RUNTIME, "%s: %s", file_map_owner(begin), strerror(errno));
    }
    posix_fadvise(fd, at, (off_t)size, POSIX_FADV_DONTNEED);
    close(fd);
    return rc;
}
int file_map_replace(const void *begin, void *with, size_t size, struct error *e) {
    if (mremap(with, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)begin) != MAP_FAILED) return 0;
    return error_set(e, ERR_RUNTIME, "%s: %zu MiB of memory could not take its place: %s", file_map_owner(begin),
                     size >> 20, strerror(errno));
}

static int open_read(const char *path, struct stat *st, struct error *e) {
    int fd = -1;
    if (fault_hit(FAULT_OPEN)) errno = EIO;
    else fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_set(e, ERR_RUNTIME, "%s: %s", path, error_reason(errno));
    if (fstat(fd, st) || !S_ISREG(st->st_mode)) {
        close(fd);
        return error_set(e, ERR_RUNTIME, "%s: not a regular file", path);
    }
    return fd;
}

/* Aligns large files to 2 MB so that 2 MB pages can replace their pages. */
static void *map_at(int fd, size_t size) {
    const size_t huge = MEM_HUGE_PAGE, page = (size_t)sysconf(_SC_PAGESIZE), whole = (size + page - 1) / page * page;
    if (size < 16 * huge) return mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    uint8_t *p = mmap(NULL, whole + huge, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return p;
    size_t before = (huge - (uintptr_t)p % huge) % huge;
    void *at = mmap(p + before, size, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    int err = errno;
    if (before) munmap(p, before);
    munmap(p + before + whole, huge - before);
    if (at == MAP_FAILED) munmap(p + before, whole);
    errno = err;
    return at;
}

int file_map(struct file_map *m, const char *path, struct error *e) {
    *m = (struct file_map){0};
    if (is_embedded(path)) {
        const struct file_embedded *f = find_embedded(path);
        if (!f) return error_set(e, ERR_RUNTIME, "%s: not in this binary", path);
        *m = (struct file_map){f->begin, (size_t)(f->end - f->begin), true};
        return 0;
    }
    struct stat st;
    int fd = open_read(path, &st, e);
    if (fd < 0) return fd;
    m->size = (size_t)st.st_size;
    void *p = NULL;
    if (m->size) {
        if (fault_hit(FAULT_READ)) {
            p = MAP_FAILED;
            errno = EIO;
        } else p = map_at(fd, m->size);
    }
    int err = errno;
    const bool tells = tells_cached(fd, &st);
    close(fd);
    if (p == MAP_FAILED) {
        *m = (struct file_map){0};
        return error_set(e, err == ENOMEM ? ERR_MEMORY : ERR_RUNTIME, "%s: cannot map %lld bytes: %s", path,
                         (long long)st.st_size, strerror(err));
    }
    m->data = p;
    if (p) remember(p, m->size, path, &st, tells);
    return 0;
}

void file_map_advise_huge(const struct file_map *m) {
    if (m->data && !m->embedded) madvise((void *)m->data, m->size, MADV_HUGEPAGE);
}

void file_unmap(struct file_map *m) {
    if (m->data && !m->embedded) {
        forget(m->data);
        munmap((void *)m->data, m->size);
    }
    *m = (struct file_map){0};
}

int file_read(const char *path, size_t max, char **data, size_t *size, struct error *e) {
    *data = NULL;
    *size = 0;
    struct stat st = {0};
    const struct file_embedded *f = NULL;
    int fd = -1, rc = 0;
    if (is_embedded(path)) {
        if (!(f = find_embedded(path))) return error_set(e, ERR_RUNTIME, "%s: not in this binary", path);
        st.st_size = f->end - f->begin;
    } else if ((fd = open_read(path, &st, e)) < 0) return fd;
    size_t n = (size_t)st.st_size, at = 0;
    char *buf = NULL;
    if (n > max) {
        rc = error_set(e, ERR_RUNTIME, "%s: %zu bytes, more than the %zu allowed here", path, n, max);
        goto out;
    }
    if (!(buf = mem_alloc(n + 1))) {
        rc = error_set(e, ERR_MEMORY, "%s: no memory for %zu bytes", path, n);
        goto out;
    }
    if (f) memcpy(buf, f->begin, at = n);
    while (at < n) {
        ssize_t got = -1;
        if (fault_hit(FAULT_READ)) errno = EIO;
        else got = read(fd, buf + at, n - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            rc = error_set(e, ERR_RUNTIME, "%s: read failed at byte %zu of %zu: %s", path, at, n, strerror(errno));
            goto out;
        }
        if (got == 0) break; /* the file shrank: return what was read */
        at += (size_t)got;
    }
    buf[at] = 0;
    *data = buf;
    *size = at;
    buf = NULL;
out:
    mem_free(buf);
    if (fd >= 0) close(fd);
    return rc;
}

int file_write_all(int fd, const void *data, size_t size) {
    const char *p = data;
    while (size) {
        ssize_t n = -1;
        if (fault_hit(FAULT_WRITE)) errno = ENOSPC;
        else n = write(fd, p, size);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return -errno;
        p += n;
        size -= (size_t)n;
    }
    return 0;
}

static int sync_fd(int fd) {
    if (fault_hit(FAULT_SYNC)) {
        errno = EIO;
        return -1;
    }
    return fsync(fd);
}

/* --- outputs ---------------------------------------------------------------------------------- */

/* Temporary files of this process, for a fatal signal. */
enum { MAX_OUTS = 16 };
static _Atomic(char *) pending[MAX_OUTS];

static void note_pending(char *was, char *is) {
    for (int i = 0; i < MAX_OUTS; i++) {
        char *expected = was;
        if (atomic_compare_exchange_strong(&pending[i], &expected, is)) return;
    }
}
void file_out_abandon(void) {
    for (int i = 0; i < MAX_OUTS; i++) {
        const char *tmp = atomic_exchange(&pending[i], NULL);
        if (tmp) unlink(tmp);
    }
}

static void random_name(char *to, size_t n) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    static _Atomic unsigned count;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t x = (uint64_t)t.tv_sec * 1000000007u + (uint64_t)t.tv_nsec * 998244353u +
                 (uint64_t)getpid() * 2654435761u + atomic_fetch_add(&count, 1) * 40503u;
    for (size_t i = 0; i < n; i++, x = x * 6364136223846793005u + 1442695040888963407u)
        to[i] = letters[(x >> 33) % (sizeof letters - 1)];
}

/* Not mkostemp: it creates 0600 regardless of the umask. */
static int open_temporary(struct file_out *o, unsigned mode) {
    size_t n = strlen(o->path);
    for (int tries = 0; tries < 100; tries++) {
        random_name(o->tmp + n + 1, 6);
        note_pending(NULL, o->tmp); /* before it exists, so that no signal comes between */
        const int fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode), why = errno;
        if (fd >= 0) return fd;
        note_pending(o->tmp, NULL);
        if ((errno = why) != EEXIST) return -1;
    }
    return -1;
}

static void out_free(struct file_out *o) {
    if (o->tmp) note_pending(o->tmp, NULL);
    mem_free(o->path);
    mem_free(o->tmp);
    *o = (struct file_out){.fd = -1};
}

/* Resolves path if it is a symbolic link to a regular file. Links into /dev and /proc, such as /dev/stdout, name an
 * open file: those are not resolved, and neither are dangling links. */
static void follow_links(char path[PATH_MAX]) {
    enum { MAX_LINKS = 40 };
    char at[PATH_MAX], to[PATH_MAX];
    struct stat st;
    snprintf(at, sizeof at, "%s", path);
    for (int i = 0; i < MAX_LINKS; i++) {
        const ssize_t n = readlink(at, to, sizeof to - 1);
        if (n < 0) break;
        to[n] = 0;
        char *const slash = strrchr(at, '/');
        const size_t dir = *to == '/' || !slash ? 0 : (size_t)(slash - at) + 1;
        if (dir + (size_t)n >= sizeof at) return;
        memcpy(at + dir, to, (size_t)n + 1);
        if (!strncmp(at, "/dev/", 5) || !strncmp(at, "/proc/", 6)) return;
    }
    if (!lstat(at, &st) && S_ISREG(st.st_mode)) memcpy(path, at, strlen(at) + 1);
}

int file_out_open(struct file_out *o, const char *given, unsigned mode, struct error *e) {
    char path[PATH_MAX];
    struct stat st;
    *o = (struct file_out){.fd = -1};
    if ((size_t)snprintf(path, sizeof path, "%s", given) >= sizeof path)
        return error_set(e, ERR_RUNTIME, "%.200s: the path is too long", given);
    follow_links(path);
    bool there = !lstat(path, &st), beside = there ? S_ISREG(st.st_mode) : errno == ENOENT;
    size_t n = strlen(path) + 8;
    *o = (struct file_out){.fd = -1, .path = mem_strdup(path), .tmp = beside ? mem_alloc(n) : NULL};
    if (!o->path || (beside && !o->tmp)) {
        out_free(o);
        return error_set(e, ERR_MEMORY, "%s: no memory", path);
    }
    if (beside) snprintf(o->tmp, n, "%s.XXXXXX", path);
    if (fault_hit(FAULT_OPEN)) errno = EIO;
    else if (!beside) o->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, mode);
    else if (!there || !access(path, W_OK)) o->fd = open_temporary(o, mode);
    if (o->fd < 0) {
        int rc = error_set(e, ERR_RUNTIME, "%s: cannot create: %s", path, strerror(errno));
        out_free(o);
        return rc;
    }
    if (beside && there) error_ignore(fchmod(o->fd, st.st_mode & mode)); /* fails e.g. on a file system without modes */
    return 0;
}

bool file_lacks_locks(int error) { return error == ENOLCK || error == ENOSYS || error == EOPNOTSUPP; }

int file_sync_dir(int dir) { return !sync_fd(dir) || errno == EINVAL ? 0 : -errno; }

/* A rename or removal is durable only after the directory is synced. Returns 0 or a negative errno. */
static int sync_directory_of(char *path) {
    char *slash = strrchr(path, '/');
    if (slash == path) slash++;
    if (slash) *slash = 0;
    const int dir = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int rc = dir < 0 ? -errno : file_sync_dir(dir);
    if (dir >= 0) close(dir);
    return rc;
}

int file_remove(const char *path, struct error *e) {
    char dir[PATH_MAX];
    snprintf(dir, sizeof dir, "%s", path);
    if (unlink(path)) return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    const int rc = sync_directory_of(dir);
    return rc ? error_set(e, ERR_RUNTIME, "%s: removed, but may be there again after a power loss: %s", path,
                          strerror(-rc))
              : 0;
}

int file_out_close(struct file_out *o, bool keep, struct error *e) {
    struct stat st;
    const char *what = "sync";
    int err = 0;
    if (o->fd < 0) return 0;
    bool on_disk = o->tmp || (!fstat(o->fd, &st) && S_ISREG(st.st_mode));
    if (keep && on_disk && sync_fd(o->fd)) err = errno;
    if (close(o->fd) && !err) err = errno, what = "write";
    if (o->tmp && keep && !err) {
        what = "rename";
        if (fault_hit(FAULT_RENAME)) err = EIO;
        else if (rename(o->tmp, o->path)) err = errno;
    }
    if (o->tmp && (!keep || err)) unlink(o->tmp);
    else if (o->tmp) {
        note_pending(o->tmp, NULL);
        error_ignore(sync_directory_of(o->tmp)); /* the new file is in place: an error cannot lose the old one */
    }
    int rc = keep && err ? error_set(e, ERR_RUNTIME, "%s: cannot %s: %s", o->path, what, strerror(err)) : 0;
    out_free(o);
    return rc;
}

int file_write(const char *path, const void *data, size_t size, struct error *e) {
    struct file_out o;
    int rc = file_out_open(&o, path, 0600, e);
    if (rc) return rc;
    int w = file_write_all(o.fd, data, size);
    if (w) rc = error_set(e, ERR_RUNTIME, "%s: cannot write: %s", path, strerror(-w));
    int closed = file_out_close(&o, !w, e);
    return rc ? rc : closed;
}

bool file_exists(const char *path) {
    if (is_embedded(path)) return find_embedded(path) != NULL;
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}
bool file_is_dir(const char *path) {
    if (is_embedded(path)) return embedded != NULL;
    struct stat st;
    return !stat(path, &st) && S_ISDIR(st.st_mode);
}

int file_mkdirs(const char *path, struct error *e) {
    char *p = mem_strdup(path);
    if (!p) return error_set(e, ERR_MEMORY, "%s: no memory", path);
    int rc = 0;
    for (char *s = p + 1; !rc; s++) {
        if (*s && *s != '/') continue;
        char c = *s;
        *s = 0;
        if (mkdir(p, 0700) && errno != EEXIST)
            rc = error_set(e, ERR_RUNTIME, "%s: cannot create: %s", p, strerror(errno));
        *s = c;
        if (!c) break;
    }
    mem_free(p);
    return rc;
}

int file_join(char *buf, size_t cap, const char *dir, const char *name, struct error *e) {
    size_t n = strlen(dir);
    const char *sep = n && (dir[n - 1] == '/' || dir[n - 1] == ':') ? "" : "/";
    int len = snprintf(buf, cap, "%s%s%s", dir, sep, name);
    return len < 0 || (size_t)len >= cap ? error_set(e, ERR_USAGE, "%.200s: path too long", dir) : 0;
}

int file_config(char *buf, size_t cap, const char *dir, struct error *e) {
    int rc = file_join(buf, cap, dir, "config.json", e);
    if (rc || file_exists(buf)) return rc;
    if ((rc = file_join(buf, cap, dir, "tekken.json", e))) return rc;
    return file_join(buf, cap, dir, file_exists(buf) ? "params.json" : "config.json", e);
}

int file_check_placeholder(const uint8_t *d, size_t n, const char *what, struct error *e) {
    static const char lfs[] = "version https://git-lfs";
    if (n >= sizeof lfs - 1 && !memcmp(d, lfs, sizeof lfs - 1))
        return error_set(e, ERR_MODEL,
                         "%s: a Git LFS pointer instead of the weights; fetch the real file (git lfs pull)", what);
    size_t i = 0;
    while (i < n && i < 64 && (d[i] == ' ' || d[i] == '\n' || d[i] == '\r' || d[i] == '\t')) i++;
    bool text = i + 4 <= n; /* a header's length may begin with such a byte as well, but not continue like text */
    for (size_t k = i; text && k < i + 4; k++) text = d[k] >= ' ' && d[k] < 127;
    if (text && d[i] == '<')
        return error_set(e, ERR_MODEL, "%s: a web page instead of the weights; download it again", what);
    return 0;
}

int file_list(const char *dir, int (*fn)(void *ctx, const char *name), void *ctx, struct error *e) {
    if (is_embedded(dir)) {
        for (const struct file_embedded *f = embedded; f && f->name; f++)
            if (fn(ctx, f->name)) break;
        return 0;
    }
    DIR *d = fault_hit(FAULT_OPEN) ? (errno = EIO, NULL) : opendir(dir);
    if (!d) return error_set(e, ERR_RUNTIME, "%s: %s", dir, strerror(errno));
    for (struct dirent *it; (it = readdir(d));)
        if (strcmp(it->d_name, ".") && strcmp(it->d_name, "..") && fn(ctx, it->d_name)) break;
    closedir(d);
    return 0;
}
