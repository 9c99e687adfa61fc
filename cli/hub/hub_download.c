#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "cli/hub/hub_store.h"
#include "cli/terminal/progress.h"

static int part_path(const struct hub_download *d, const char *end, char out[PATHS_MAX], struct error *e) {
    char name[DIGEST_HEX + 32];
    snprintf(name, sizeof name, "blobs/%s%s", d->file->oid, end);
    return file_join(out, PATHS_MAX, d->store->dir, name, e);
}

/* Takes the lock that Hugging Face's programs take for this blob. */
static int lock_blob(struct hub_download *d, struct error *e) {
    char path[PATHS_MAX], name[DIGEST_HEX + 32];
    snprintf(name, sizeof name, "%s.lock", d->file->oid);
    int rc = file_join(path, sizeof path, d->store->locks, name, e);
    if (rc) return rc;
    d->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (d->lock < 0) return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    if (flock(d->lock, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return error_set(e, ERR_RUNTIME, "%s: another program downloads this file now; wait for its end",
                         d->file->path);
    return 0;
}

static int begin_digest(struct hub_download *d, struct error *e) {
    digest_end(d->digest, NULL);
    d->digest = digest_begin(d->file->is_large ? -1 : (int64_t)d->file->size);
    return d->digest ? 0 : error_set(e, ERR_MEMORY, "no memory");
}

/* Reads what an earlier run has left into the digest. */
static int read_part(struct hub_download *d, struct error *e) {
    enum { STEP = 1 << 20 };
    char *bytes = mem_alloc(STEP);
    int rc = bytes ? 0 : error_set(e, ERR_MEMORY, "no memory");
    if (!rc && d->have > 64 * (uint64_t)STEP) progress_begin("checking what was downloaded before");
    for (uint64_t at = 0; !rc && at < d->have;) {
        const size_t want = d->have - at < STEP ? (size_t)(d->have - at) : STEP;
        const ssize_t n = fault_hit(FAULT_READ) ? (errno = EIO, -1) : pread(d->fd, bytes, want, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0 || digest_add(d->digest, bytes, (size_t)n))
            rc = error_set(e, ERR_RUNTIME, "%s: its part in the cache cannot be read: %s", d->file->path,
                           n < 0 ? strerror(errno) : "it has changed");
        else at += (uint64_t)n;
    }
    mem_free(bytes);
    return rc;
}

static int rewind_download(void *ctx, struct error *e) {
    struct hub_download *d = ctx;
    d->have = 0;
    d->is_resumed = false;
    if (ftruncate(d->fd, 0) || lseek(d->fd, 0, SEEK_SET) < 0)
        return error_set(e, ERR_RUNTIME, "%s: %s", d->file->path, strerror(errno));
    return begin_digest(d, e);
}

static int open_download(void *ctx, struct error *e) {
    struct hub_download *d = ctx;
    char path[PATHS_MAX];
    struct stat st;
    int rc = lock_blob(d, e);
    if (!rc && (rc = part_path(d, ".incomplete", path, e))) return rc;
    if (rc) return rc;
    d->fd = fault_hit(FAULT_OPEN) ? (errno = EIO, -1) : open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (d->fd < 0 || fstat(d->fd, &st)) return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    if ((uint64_t)st.st_size > d->file->size) return rewind_download(d, e);
    d->have = (uint64_t)st.st_size;
    d->is_resumed = d->have > 0;
    rc = begin_digest(d, e);
    if (!rc) rc = read_part(d, e);
    if (!rc && lseek(d->fd, 0, SEEK_END) < 0) rc = error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    return rc;
}

static uint64_t begin_download(void *ctx) { return ((struct hub_download *)ctx)->have; }

static int write_download(void *ctx, const char *data, size_t n, struct error *e) {
    struct hub_download *d = ctx;
    if (n > d->file->size - d->have)
        return error_set(e, ERR_RUNTIME, "%s: the server sends more than the %llu bytes that it lists", d->file->path,
                         (unsigned long long)d->file->size);
    const int rc = file_write_all(d->fd, data, n);
    if (rc)
        return error_set(e, ERR_RUNTIME,
                         "%s: cannot be written after %llu of %llu bytes: %s; the same command continues the download",
                         d->file->path, (unsigned long long)d->have, (unsigned long long)d->file->size, strerror(-rc));
    d->have += n;
    return digest_add(d->digest, data, n) ? error_set(e, ERR_RUNTIME, "the digest failed") : 0;
}

/* Gives the verified part the name of the blob. */
static int keep_download(struct hub_download *d, struct error *e) {
    char part[PATHS_MAX], blob[PATHS_MAX];
    int rc = part_path(d, ".incomplete", part, e);
    if (!rc) rc = part_path(d, "", blob, e);
    if (rc) return rc;
    const bool failed = (fault_hit(FAULT_SYNC) ? (errno = EIO, true) : fsync(d->fd) != 0) ||
                        (fault_hit(FAULT_RENAME) ? (errno = EIO, true) : rename(part, blob) != 0);
    if (failed) return error_set(e, ERR_RUNTIME, "%s: %s", blob, strerror(errno));
    d->is_complete = true;
    hub_download_close(d);
    return 0;
}

static int end_download(void *ctx, struct error *e) {
    struct hub_download *d = ctx;
    char hex[DIGEST_HEX], part[PATHS_MAX];
    if (d->have < d->file->size) return HUB_SHORT;
    int rc = digest_end(d->digest, hex);
    d->digest = NULL;
    if (rc) return error_set(e, ERR_RUNTIME, "the digest failed");
    if (!strcmp(hex, d->file->oid)) return keep_download(d, e);
    if (d->is_resumed) { /* what was there may be damaged, as by a power loss */
        rc = rewind_download(d, e);
        return rc ? rc : HUB_SHORT;
    }
    if (!part_path(d, ".incomplete", part, NULL)) unlink(part);
    return error_set(
        e, ERR_RUNTIME,
        "%s: the server sends other bytes than it lists: checksum %.16s... instead of %.16s...; nothing of "
        "it was kept",
        d->file->path, hex, d->file->oid);
}

const struct hub_sink hub_download_sink = {.open = open_download,
                                           .begin = begin_download,
                                           .rewind = rewind_download,
                                           .write = write_download,
                                           .end = end_download};

void hub_download_close(struct hub_download *d) {
    digest_end(d->digest, NULL);
    d->digest = NULL;
    if (d->fd >= 0) close(d->fd);
    if (d->lock >= 0) close(d->lock);
    d->fd = d->lock = -1;
}
