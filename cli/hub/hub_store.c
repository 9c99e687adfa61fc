#include "cli/hub/hub_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "cli/options/hub_cache.h"
#include "cli/terminal/amount.h"

/* Makes the folders of a path up to its last slash, as other programs make them in a cache that users may share. */
static int make_parents(const char *path, struct error *e) {
    char copy[PATHS_MAX];
    snprintf(copy, sizeof copy, "%s", path);
    for (char *s = copy + 1; (s = strchr(s, '/')); s++) {
        *s = 0;
        if (mkdir(copy, 0777) && errno != EEXIST)
            return error_set(e, ERR_RUNTIME, "%s: cannot create: %s", copy, strerror(errno));
        *s = '/';
    }
    return 0;
}

int hub_store_open(struct hub_store *s, const char *repo, struct error *e) {
    char hub[PATHS_MAX], locks[PATHS_MAX], path[PATHS_MAX];
    *s = (struct hub_store){.lock = -1};
    snprintf(s->repo, sizeof s->repo, "%s", repo);
    if (hub_cache_dir(hub, sizeof hub))
        return error_set(e, ERR_RUNTIME, "no home directory: neither HOME nor HF_HOME is an absolute path");
    int rc = hub_cache_repo(s->dir, sizeof s->dir, hub, repo, e);
    if (!rc) rc = file_join(locks, sizeof locks, hub, ".locks", e);
    if (!rc) rc = hub_cache_repo(s->locks, sizeof s->locks, locks, repo, e);
    if (!rc) rc = file_join(path, sizeof path, s->dir, "blobs/x", e);
    if (!rc) rc = make_parents(path, e);
    if (!rc) rc = file_join(path, sizeof path, s->locks, "hearth.lock", e);
    if (!rc) rc = make_parents(path, e);
    if (rc) return rc;
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->lock < 0) return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    if (!flock(s->lock, LOCK_EX | LOCK_NB)) return 0;
    if (errno == EWOULDBLOCK)
        return error_set(e, ERR_RUNTIME, "%s: another hearth pulls this repository now; wait for its end", repo);
    return 0; /* a file system without locks */
}

void hub_store_close(struct hub_store *s) {
    if (s->lock >= 0) close(s->lock);
    s->lock = -1;
}

static int blob_path(const struct hub_store *s, const struct hub_file *f, const char *end, char out[PATHS_MAX],
                     struct error *e) {
    char name[DIGEST_HEX + 32];
    snprintf(name, sizeof name, "blobs/%s%s", f->oid, end);
    return file_join(out, PATHS_MAX, s->dir, name, e);
}

static bool size_of(const char *path, uint64_t *size) {
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode)) return false;
    *size = (uint64_t)st.st_size;
    return true;
}

bool hub_store_has(const struct hub_store *s, const struct hub_file *f) {
    char path[PATHS_MAX];
    uint64_t size;
    return !blob_path(s, f, "", path, NULL) && size_of(path, &size) && size == f->size;
}

uint64_t hub_store_bytes(const struct hub_store *s, const struct hub_file *f) {
    char path[PATHS_MAX];
    uint64_t size;
    if (hub_store_has(s, f)) return f->size;
    return !blob_path(s, f, ".incomplete", path, NULL) && size_of(path, &size) && size <= f->size ? size : 0;
}

int hub_store_room(const struct hub_store *s, uint64_t need, struct error *e) {
    struct statvfs st;
    char want[32], have[32];
    if (statvfs(s->dir, &st)) return 0;
    const uint64_t room = (uint64_t)st.f_bavail * st.f_frsize;
    if (need <= room) return 0;
    return error_set(e, ERR_RUNTIME,
                     "%s: %s are to be downloaded, but %s has room for %s; make room, or set HF_HOME to a folder on "
                     "another disk",
                     s->repo, amount_bytes(need, want, sizeof want), s->dir, amount_bytes(room, have, sizeof have));
}

int hub_store_link(const struct hub_store *s, const char *commit, const struct hub_file *f, struct error *e) {
    char path[PATHS_MAX], blob[PATHS_MAX], to[PATHS_MAX], target[PATHS_MAX];
    if ((size_t)snprintf(path, sizeof path, "%s/snapshots/%s/%s", s->dir, commit, f->path) >= sizeof path)
        return error_set(e, ERR_USAGE, "%.200s: path too long", f->path);
    int rc = make_parents(path, e), n = 0;
    if (!rc) rc = blob_path(s, f, "", blob, e);
    if (rc) return rc;
    for (const char *c = f->path; *c; c++)
        if (*c == '/') n += snprintf(to + n, sizeof to - (size_t)n, "../");
    snprintf(to + n, sizeof to - (size_t)n, "../../blobs/%s", f->oid);
    const ssize_t k = readlink(path, target, sizeof target - 1);
    if (k >= 0 && (target[k] = 0, !strcmp(target, to))) return 0;
    if (fault_hit(FAULT_RENAME)) errno = EIO;
    else {
        unlink(path);
        if (!symlink(to, path)) return 0;
        /* a file system without links: the file itself, as Hugging Face's programs do there */
        if ((errno == EPERM || errno == ENOTSUP || errno == ENOSYS) && !rename(blob, path)) return 0;
    }
    return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
}

int hub_store_set_main(const struct hub_store *s, const char *commit, struct error *e) {
    char path[PATHS_MAX];
    int rc = file_join(path, sizeof path, s->dir, "refs/main", e);
    if (!rc) rc = make_parents(path, e);
    return rc ? rc : file_write(path, commit, strlen(commit), e);
}
