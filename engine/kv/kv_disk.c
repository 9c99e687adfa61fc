#include "engine/kv/kv_disk.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/cond.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/mem.h"
#include "base/test_limits.h"
#include "cpu/pool.h"
#include "engine/kv/kv_file.h"
#include "engine/kv/kv_image.h"

struct write_job {
    struct write_job *next;
    struct kv_shared *block;
    struct kv_file_head *head;
    int64_t n_forgotten;
};
struct kv_disk {
    int dir_fd, engines_fd;
    char *path;
    uint64_t limit, kv_fingerprint;
    enum dtype kv;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct write_job *queue;   /* under the lock, like the next two */
    bool closing, has_exited;  /* has_exited: the writer thread has ended */
    _Atomic bool drop_pending; /* drop pending writes */
    _Atomic int64_t newest_ns; /* latest time of use that this process has given a file */
    bool has_failed;           /* writer thread only: a write failed, stop writing */
    uint8_t *block_buf;        /* writer thread only: [KV_FILE_BLOCK] */
};

bool kv_disk_is_worth(uint64_t bytes, double seconds, double prompt_s) {
    const double disk_rate = 1e9; /* bytes per second that a disk is assumed to read */
    enum { MIN_US = 500000 };     /* a shorter prompt is not worth a file */
    return seconds > (double)bytes / disk_rate &&
           prompt_s > (double)test_limits_get(TEST_LIMIT_KV_DISK_MIN_US, MIN_US) * 1e-6;
}

/* A file's name is its key in KEY_DIGITS hexadecimal digits and a suffix. */
enum { KEY_DIGITS = 16, FILE_NAME_LEN = KEY_DIGITS + 3, FILE_NAME_BYTES = 24 };
static const char file_suffix[] = ".kv", tombstone_suffix[] = ".no", part_suffix[] = ".pa", engines_file[] = ".engines";
/* A tombstone is a file without blocks whose size counts the calls of engine_forget() for its key. Rows that were
 * computed at another count are not written. Each open engine holds a shared lock of engines_file. An engine that opens
 * alone deletes the tombstones, since no other has rows in memory that they concern. No clock is compared. */
static void make_file_name(uint64_t key, const char *end, char out[FILE_NAME_BYTES]) {
    snprintf(out, FILE_NAME_BYTES, "%016" PRIx64 "%s", key, end);
}

/* --- Eviction --------------------------------------------------------------------------------- */

struct cached_file {
    char name[FILE_NAME_BYTES];
    struct timespec used;
    uint64_t size;
};
static int compare_last_use(const void *a, const void *b) {
    const struct timespec *x = &((const struct cached_file *)a)->used, *y = &((const struct cached_file *)b)->used;
    return x->tv_sec != y->tv_sec ? (x->tv_sec > y->tv_sec) - (x->tv_sec < y->tv_sec)
                                  : (x->tv_nsec > y->tv_nsec) - (x->tv_nsec < y->tv_nsec);
}

/* Lists all files, least recently used first. *sum: their bytes. */
static struct cached_file *list_files(const struct kv_disk *k, size_t *n, uint64_t *sum) {
    struct cached_file *all = NULL;
    size_t cap = 0;
    struct stat st;
    int fd = openat(k->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    *n = 0, *sum = 0;
    for (struct dirent *it; d && (it = readdir(d));) {
        size_t len = strlen(it->d_name);
        if (len != FILE_NAME_LEN || fstatat(k->dir_fd, it->d_name, &st, AT_SYMLINK_NOFOLLOW)) continue;
        if (strcmp(it->d_name + KEY_DIGITS, file_suffix)) continue;
        if (mem_grow(&all, &cap, *n + 1, sizeof *all)) break;
        struct cached_file *e = &all[(*n)++];
        memcpy(e->name, it->d_name, len + 1);
        e->used = st.st_mtim;
        *sum += e->size = (uint64_t)st.st_size;
    }
    if (d) closedir(d);
    else if (fd >= 0) close(fd);
    if (*n) qsort(all, *n, sizeof *all, compare_last_use);
    return all;
}

/* Evicts files until `bytes` fit within the limit. Returns false if they cannot. */
static bool evict_files(struct kv_disk *k, uint64_t bytes) {
    size_t n;
    uint64_t sum, limit = k->limit;
    struct cached_file *all = list_files(k, &n, &sum);
    struct statvfs fs;
    if (fstatvfs(k->dir_fd, &fs)) fs.f_bavail = 0;
    uint64_t disk = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (!limit) limit = (disk + sum) / 10;
    for (size_t i = 0; bytes <= limit && i < n && sum + bytes > limit; i++)
        if (!unlinkat(k->dir_fd, all[i].name, 0) || errno == ENOENT) sum -= all[i].size, disk += all[i].size;
    mem_free(all);
    return sum + bytes <= limit && bytes < disk;
}

static int64_t to_ns(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }
static struct timespec to_timespec(int64_t ns) {
    return (struct timespec){.tv_sec = (time_t)(ns / 1000000000), .tv_nsec = (long)(ns % 1000000000)};
}

/* Returns the time for a use of a file. If the clock was set back since the latest one, all times of use move to
 * before now, so that their order stays. Machines that share the directory may differ by SKEW_S. */
static int64_t time_of_use(struct kv_disk *k) {
    enum { SKEW_S = 60 };
    struct timespec t;
    size_t n = 0;
    uint64_t sum;
    clock_gettime(CLOCK_REALTIME, &t);
    const int64_t now = to_ns(t), latest = atomic_exchange(&k->newest_ns, now), skew = SKEW_S * (int64_t)1000000000;
    struct cached_file *all = latest && now >= latest - skew ? NULL : list_files(k, &n, &sum);
    const int64_t by = n ? to_ns(all[n - 1].used) - now + skew : 0;
    for (size_t i = 0; i < n && by > 2 * skew; i++) {
        const struct timespec at = to_timespec(to_ns(all[i].used) - by);
        error_ignore(utimensat(k->dir_fd, all[i].name, (struct timespec[]){at, at}, AT_SYMLINK_NOFOLLOW));
    }
    mem_free(all);
    return now;
}

/* Sets a file's time of last use to now. A chunk is useless without the chunks before it, so later chunks count as used
 * earlier: by a millisecond per token. */
static void update_last_use(struct kv_disk *k, int fd, int to) {
    const struct timespec at = to_timespec(time_of_use(k) - (int64_t)to * 1000000);
    /* a failure only means that the file is evicted sooner */
    error_ignore(futimens(fd, (struct timespec[]){at, at}));
}

/* --- Writing ---------------------------------------------------------------------------------- */

static void write_job_free(struct write_job *j) {
    kv_shared_unref(j->block);
    mem_free(j->head);
    mem_free(j);
}

/* Copies the job's image to the file, with its checksums, then writes the header before it. Returns 0 or a negative
 * errno. */
static int write_image(struct kv_disk *k, const struct write_job *j, int fd) {
    uint64_t *sums = (uint64_t *)kv_file_sums(j->head), left = j->head->image_bytes;
    if (lseek(fd, (off_t)j->head->image_offset, SEEK_SET) < 0) return -errno;
    for (size_t i = 0; left; i++) {
        size_t n = left < KV_FILE_BLOCK ? (size_t)left : KV_FILE_BLOCK;
        if (atomic_load(&k->drop_pending)) return -ECANCELED;
        if (kv_shared_read(j->block, i * KV_FILE_BLOCK, k->block_buf, n)) return -EIO;
        sums[i] = kv_file_sum(k->block_buf, n, i);
        int rc = file_write_all(fd, k->block_buf, n);
        if (rc) return rc;
        left -= n;
    }
    kv_file_seal(j->head);
    return lseek(fd, 0, SEEK_SET) < 0 ? -errno : file_write_all(fd, j->head, j->head->image_offset);
}

int64_t kv_disk_n_forgotten(const struct kv_disk *k, uint64_t key) {
    char name[FILE_NAME_BYTES];
    struct stat st;
    make_file_name(key, tombstone_suffix, name);
    if (!fstatat(k->dir_fd, name, &st, AT_SYMLINK_NOFOLLOW)) return st.st_size;
    return errno == ENOENT ? 0 : -1;
}

/* Whether engine_forget() was called for the job's key after its rows were computed, or may have been. */
static bool is_forgotten(const struct kv_disk *k, const struct write_job *j) {
    const int64_t n = kv_disk_n_forgotten(k, j->head->key);
    return n < 0 || n != j->n_forgotten;
}

/* A file that is being written: unnamed, so that a crash leaves nothing, or, where the file system has no such files
 * (NFS, older overlays), named `part` until it is renamed. */
struct new_file {
    int fd;
    bool is_named;
    char part[FILE_NAME_BYTES];
};

/* Returns 0 or a negative errno; -EEXIST: another process writes the same file, or has died doing so. */
static int create_file(const struct kv_disk *k, uint64_t key, struct new_file *f) {
    f->is_named = false;
    f->fd = fault_hit(FAULT_OPEN) ? (errno = EIO, -1) : openat(k->dir_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (f->fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return f->fd < 0 ? -errno : 0;
    make_file_name(key, part_suffix, f->part);
    f->fd = openat(k->dir_fd, f->part, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, 0600);
    f->is_named = f->fd >= 0;
    return f->fd < 0 ? -errno : 0;
}

/* Under the lock, engine_forget() either sees this file or we see its tombstone. */
static int link_file(struct kv_disk *k, const struct write_job *j, struct new_file *f, const char *name) {
    char link[40];
    int rc = 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", f->fd);
    flock(k->dir_fd, LOCK_SH);
    const bool is_wanted = !is_forgotten(k, j);
    if (is_wanted && f->is_named) {
        rc = renameat(k->dir_fd, f->part, k->dir_fd, name) ? -errno : 0;
        f->is_named = rc != 0;
    } else if (is_wanted && linkat(AT_FDCWD, link, k->dir_fd, name, AT_SYMLINK_FOLLOW) && errno != EEXIST)
        rc = -errno; /* EEXIST: another process has written the same file */
    flock(k->dir_fd, LOCK_UN);
    return rc;
}

static int write_kv_file(struct kv_disk *k, const struct write_job *j) {
    char name[FILE_NAME_BYTES];
    struct new_file f;
    make_file_name(j->head->key, file_suffix, name);
    if (!faccessat(k->dir_fd, name, F_OK, AT_SYMLINK_NOFOLLOW)) return 0;
    if (!evict_files(k, j->head->image_offset + j->head->image_bytes)) return 0;
    int rc = create_file(k, j->head->key, &f);
    if (rc) return rc == -EEXIST ? 0 : rc;
    if (!(rc = write_image(k, j, f.fd))) {
        update_last_use(k, f.fd, (int)j->head->to);
        rc = fault_hit(FAULT_RENAME) ? -EIO : link_file(k, j, &f, name);
    }
    close(f.fd);
    if (f.is_named) unlinkat(k->dir_fd, f.part, 0);
    return rc;
}

static void *writer_thread(void *arg) {
    struct kv_disk *k = arg;
    setpriority(PRIO_PROCESS, (id_t)gettid(), 10); /* affects this thread only */
    pthread_mutex_lock(&k->lock);
    for (;;) {
        struct write_job *j = k->queue;
        if (!j && k->closing) break;
        if (!j) {
            pthread_cond_wait(&k->changed, &k->lock);
            continue;
        }
        k->queue = j->next;
        pthread_mutex_unlock(&k->lock);
        int rc = k->has_failed || atomic_load(&k->drop_pending) ? 0 : write_kv_file(k, j);
        if (rc && rc != -ECANCELED) {
            k->has_failed = true;
            log_say(LOG_WARN, "no longer writing the KV cache in %s: %s", k->path, strerror(-rc));
        }
        write_job_free(j);
        pthread_mutex_lock(&k->lock);
    }
    k->has_exited = true;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
    return NULL;
}

void kv_disk_write(struct kv_disk *k, struct kv_shared *b, uint64_t key, const int32_t *tokens, int64_t n_forgotten) {
    struct write_job *j = mem_alloc(sizeof *j);
    struct kv_file_head about = {.dtype = k->kv,
                                 .kv_fingerprint = k->kv_fingerprint,
                                 .key = key,
                                 .from = (uint32_t)b->from,
                                 .to = (uint32_t)b->to,
                                 .has_state = b->has_state,
                                 .image_bytes = b->bytes};
    if (j) *j = (struct write_job){.head = kv_file_new(&about, tokens), .n_forgotten = n_forgotten};
    if (!j || !j->head) {
        mem_free(j);
        return;
    }
    j->block = kv_shared_ref(b);
    pthread_mutex_lock(&k->lock);
    struct write_job **end = &k->queue;
    while (*end) end = &(*end)->next;
    *end = j;
    pthread_cond_broadcast(&k->changed);
    pthread_mutex_unlock(&k->lock);
}

/* --- Reading ---------------------------------------------------------------------------------- */

static int read_exact(int fd, void *to, size_t n, uint64_t at) {
    uint8_t *p = to;
    while (n) {
        ssize_t got = -1;
        if (fault_hit(FAULT_READ)) errno = EIO;
        else got = pread(fd, p, n, (off_t)at);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return ERR_RUNTIME;
        p += got, at += (uint64_t)got, n -= (size_t)got;
    }
    return 0;
}

/* Reads the complete header. NULL: *e holds the reason. */
static struct kv_file_head *read_head(int fd, uint64_t size, const char *what, struct error *e) {
    uint64_t *data = NULL;
    size_t n = 0, need = 0;
    int rc;
    while (!(rc = kv_file_check((const uint8_t *)data, n, size, what, &need, e)) && need) {
        uint64_t *more = mem_realloc(data, need);
        rc = more ? read_exact(fd, more, need, 0) : ERR_MEMORY;
        if (more) data = more;
        if (rc) {
            error_set(e, rc, "%s: cannot be read", what);
            break;
        }
        n = need;
    }
    if (!rc) return (struct kv_file_head *)data;
    mem_free(data);
    return NULL;
}

struct image_check {
    const struct kv_file_head *h;
    int fd;
    uint8_t *buffers;      /* [threads, KV_FILE_BLOCK] */
    _Atomic int bad_block; /* -1: none found */
};
static void check_blocks(void *arg, int thread, int n_threads) {
    struct image_check *x = arg;
    uint8_t *p = x->buffers + (size_t)thread * KV_FILE_BLOCK;
    for (size_t i = (size_t)thread; i < x->h->n_sums && atomic_load(&x->bad_block) < 0; i += (size_t)n_threads) {
        uint64_t at = (uint64_t)i * KV_FILE_BLOCK, left = x->h->image_bytes - at;
        size_t n = left < KV_FILE_BLOCK ? (size_t)left : KV_FILE_BLOCK;
        if (read_exact(x->fd, p, n, x->h->image_offset + at) || kv_file_sum(p, n, i) != kv_file_sums(x->h)[i])
            atomic_store(&x->bad_block, (int)i);
    }
}

/* Compares the image with its checksums, on all threads of the pool. */
static int check_image(const struct kv_file_head *h, int fd, struct pool *pool, const char *what, struct error *e) {
    struct image_check x = {
        .h = h, .fd = fd, .buffers = mem_alloc((size_t)pool_threads(pool) * KV_FILE_BLOCK), .bad_block = -1};
    if (!x.buffers) return error_set(e, ERR_MEMORY, "no memory");
    pool_run(pool, check_blocks, &x);
    mem_free(x.buffers);
    return x.bad_block < 0 ? 0
                           : error_set(e, ERR_MODEL, "%s: damaged (block %d of %u)", what, x.bad_block + 1, h->n_sums);
}

/* Checks that a file has these tokens of this model. */
static int check_match(const struct kv_disk *k, const struct kv *kv, const struct kv_file_head *h, uint64_t key,
                       const int32_t *tokens, int from, int to, const char *what, struct error *e) {
    if (h->kv_fingerprint != k->kv_fingerprint || h->dtype != k->kv || h->key != key)
        return error_set(e, ERR_MODEL, "%s: written for another model, machine or build", what);
    if ((int)h->from != from || (int)h->to != to || memcmp(kv_file_tokens(h), tokens, (size_t)to * sizeof *tokens))
        return error_set(e, ERR_MODEL, "%s: holds other tokens", what);
    if ((h->has_state && !kv->has_states) || h->image_bytes != kv_image_bytes(kv, from, to, h->has_state))
        return error_set(e, ERR_MODEL, "%s: unexpected size", what);
    return 0;
}

bool kv_disk_read(struct kv_disk *k, struct pool *pool, struct kv *kv, uint64_t key, const int32_t *tokens, int from,
                  int to, bool *state) {
    char name[FILE_NAME_BYTES], what[300];
    struct stat st;
    struct error e = {0};
    make_file_name(key, file_suffix, name);
    snprintf(what, sizeof what, "%.250s/%s", k->path, name);
    int fd = fault_hit(FAULT_OPEN) ? (errno = EIO, -1)
                                   : openat(k->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK),
        rc = 0;
    if (fd < 0 && errno == ENOENT) return false;
    if (fd < 0 || fstat(fd, &st)) rc = error_set(&e, ERR_RUNTIME, "%s: %s", what, strerror(errno));
    else if (!S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & 022)
        rc = error_set(&e, ERR_RUNTIME, "%s: not a regular file that only this user can write", what);
    struct kv_file_head *h = rc ? NULL : read_head(fd, (uint64_t)st.st_size, what, &e);
    if (!rc && !h) rc = e.code;
    if (!rc) rc = check_match(k, kv, h, key, tokens, from, to, what, &e);
    if (!rc) rc = check_image(h, fd, pool, what, &e);
    if (!rc) rc = kv_image_map(kv, from, to, h->has_state, fd, (off_t)h->image_offset, &e);
    if (!rc) update_last_use(k, fd, to);
    if (!rc) *state = h->has_state;
    if (rc) {
        bool gone = rc == ERR_MODEL && !unlinkat(k->dir_fd, name, 0);
        log_say(rc == ERR_MEMORY ? LOG_INFO : LOG_WARN, "%s; %sits tokens are prefilled again", e.text,
                gone ? "the file was deleted, " : "");
    }
    mem_free(h);
    if (fd >= 0) close(fd);
    return !rc;
}

void kv_disk_prefetch(struct kv_disk *k, uint64_t key) {
    char name[FILE_NAME_BYTES];
    make_file_name(key, file_suffix, name);
    int fd = openat(k->dir_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0) return;
    posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
    close(fd);
}

/* --- Forgetting ------------------------------------------------------------------------------- */

/* Counts one more call in a key's tombstone. Returns 0 or a negative errno. */
static int count_forgotten(int dir, uint64_t key) {
    char name[FILE_NAME_BYTES];
    struct stat st;
    int rc = 0;
    make_file_name(key, tombstone_suffix, name);
    const int fd = fault_hit(FAULT_OPEN)
                       ? (errno = EIO, -1)
                       : openat(dir, name, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (fd < 0 || fstat(fd, &st) || ftruncate(fd, st.st_size + 1)) rc = -errno;
    if (fd >= 0) close(fd);
    return rc;
}

/* Locks engines_file against engines that open. Returns whether none is open, with its descriptor in *fd. */
static bool no_engine_is_open(int dir, int *fd) {
    *fd = openat(dir, engines_file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    return *fd < 0 ? errno == ENOENT : !flock(*fd, LOCK_EX | LOCK_NB);
}

int kv_disk_forget(const char *path, const uint64_t *keys, size_t n, struct error *e) {
    char name[FILE_NAME_BYTES];
    int engines, dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), rc = 0;
    if (dir < 0)
        return errno == ENOENT || errno == ENOTDIR ? 0 : error_set(e, ERR_RUNTIME, "%.300s: %s", path, strerror(errno));
    flock(dir, LOCK_EX);
    const bool is_alone = no_engine_is_open(dir, &engines);
    for (size_t i = 0; i < n; i++) {
        make_file_name(keys[i], file_suffix, name);
        if (unlinkat(dir, name, 0) && errno != ENOENT) rc = -errno;
        const int counted = is_alone ? 0 : count_forgotten(dir, keys[i]);
        if (counted && counted != -ENOSPC && counted != -EDQUOT)
            rc = counted; /* disk full: no writer can succeed either */
    }
    if (!rc) rc = file_sync_dir(dir);
    if (engines >= 0) close(engines);
    close(dir);
    return rc ? error_set(e, ERR_RUNTIME, "%.300s: %s", path, strerror(-rc)) : 0;
}

/* --- Open and close --------------------------------------------------------------------------- */

/* Starts the writer thread with all signals blocked but the synchronous ones: process signals belong to the main
 * thread. */
static int start_writer(struct kv_disk *k) {
    static const int synchronous[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGSYS, SIGTRAP};
    sigset_t all, was;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof synchronous / sizeof *synchronous; i++) sigdelset(&all, synchronous[i]);
    pthread_sigmask(SIG_SETMASK, &all, &was);
    int rc = pthread_create(&k->thread, NULL, writer_thread, k);
    pthread_sigmask(SIG_SETMASK, &was, NULL);
    return rc;
}

/* Deletes tombstones, of which no open engine has rows, and what engines that have died were writing. */
static void delete_rests(struct kv_disk *k) {
    const int fd = openat(k->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    for (struct dirent *it; d && (it = readdir(d));)
        if (strlen(it->d_name) == FILE_NAME_LEN &&
            (!strcmp(it->d_name + KEY_DIGITS, tombstone_suffix) || !strcmp(it->d_name + KEY_DIGITS, part_suffix)))
            unlinkat(k->dir_fd, it->d_name, 0);
    if (d) closedir(d);
    else if (fd >= 0) close(fd);
}

/* Notes that this engine is open. On a file system without locks every tombstone stays. Returns 0 or a negative
 * errno. */
static int join_engines(struct kv_disk *k) {
    k->engines_fd = openat(k->dir_fd, engines_file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (k->engines_fd < 0) return -errno;
    if (!flock(k->engines_fd, LOCK_EX | LOCK_NB)) delete_rests(k);
    while (flock(k->engines_fd, LOCK_SH) && errno == EINTR) {
    }
    return 0;
}

struct kv_disk *kv_disk_open(const char *dir, uint64_t limit, uint64_t kv_fingerprint, enum dtype kv) {
    struct kv_disk *k = mem_calloc(1, sizeof *k);
    struct stat st;
    struct error e = {0};
    if (!k) return NULL;
    *k = (struct kv_disk){.dir_fd = -1,
                          .engines_fd = -1,
                          .path = mem_strdup(dir),
                          .block_buf = mem_alloc(KV_FILE_BLOCK),
                          .limit = limit,
                          .kv_fingerprint = kv_fingerprint,
                          .kv = kv};
    int rc = k->path && k->block_buf ? file_mkdirs(dir, &e) : error_set(&e, ERR_MEMORY, "no memory");
    if (!rc && ((k->dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0 || fstat(k->dir_fd, &st)))
        rc = error_set(&e, ERR_RUNTIME, "%s: %s", dir, strerror(errno));
    if (!rc && (st.st_uid != geteuid() || st.st_mode & 022))
        rc = error_set(&e, ERR_RUNTIME, "%s: writable by other users", dir);
    int joined = rc ? 0 : join_engines(k);
    if (joined) rc = error_set(&e, ERR_RUNTIME, "%s/%s: %s", dir, engines_file, strerror(-joined));
    pthread_mutex_init(&k->lock, NULL);
    cond_init(&k->changed);
    if (!rc && start_writer(k)) rc = error_set(&e, ERR_RUNTIME, "cannot start a thread");
    if (!rc) return k;
    log_say(LOG_WARN, "KV disk cache disabled: %s", e.text);
    if (k->engines_fd >= 0) close(k->engines_fd);
    if (k->dir_fd >= 0) close(k->dir_fd);
    mem_free(k->path);
    mem_free(k->block_buf);
    mem_free(k);
    return NULL;
}

void kv_disk_close(struct kv_disk **kp) {
    struct kv_disk *k = *kp;
    if (!k) return;
    *kp = NULL;
    const struct timespec until =
        cond_time_in((double)test_limits_get(TEST_LIMIT_KV_DISK_CLOSE_MS, KV_DISK_CLOSE_WAIT_S * 1000) * 1e-3);
    pthread_mutex_lock(&k->lock);
    k->closing = true;
    pthread_cond_broadcast(&k->changed);
    while (!k->has_exited && cond_wait_until(&k->changed, &k->lock, &until)) {
    }
    pthread_mutex_unlock(&k->lock);
    atomic_store(&k->drop_pending, true);
    pthread_join(k->thread, NULL);
    pthread_mutex_destroy(&k->lock);
    pthread_cond_destroy(&k->changed);
    close(k->engines_fd);
    close(k->dir_fd);
    mem_free(k->path);
    mem_free(k->block_buf);
    mem_free(k);
}
