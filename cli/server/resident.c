#include "cli/server/resident.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/terminal/out.h"

int resident_path(char path[static RESIDENT_PATH], struct error *e) {
    char full[PATHS_MAX];
    if (paths_get(PATHS_RUNTIME, "socket", full, sizeof full))
        return error_set(e, ERR_RUNTIME,
                         "no directory for the resident engine's socket: neither XDG_RUNTIME_DIR nor HOME is set");
    if (strlen(full) >= RESIDENT_PATH)
        return error_set(e, ERR_RUNTIME,
                         "%.200s: path too long for a socket; set XDG_RUNTIME_DIR to a shorter directory", full);
    memcpy(path, full, strlen(full) + 1);
    return 0;
}

static struct sockaddr_un socket_address(const char *path) {
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    memcpy(sa.sun_path, path, strnlen(path, sizeof sa.sun_path - 1));
    return sa;
}

/* The directory must be private: another user's socket there would receive the user's prompts. */
static bool dir_is_private(const char *path) {
    char dir[PATHS_MAX];
    struct stat st;
    snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
    return !lstat(dir, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & 077);
}
static int refuse_shared_dir(const char *path, struct error *e) {
    return error_set(
        e, ERR_RUNTIME,
        "%.*s: not a private directory (owned by you, mode 0700); not used for the resident engine's socket",
        (int)(strrchr(path, '/') - path), path);
}

bool resident_is_alive(const char *path) {
    struct sockaddr_un sa = socket_address(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    /* EAGAIN: its backlog is full */
    bool alive = fd >= 0 && (!connect(fd, (struct sockaddr *)&sa, sizeof sa) || errno == EAGAIN);
    if (fd >= 0) close(fd);
    return alive;
}

static bool other_is_alive(void) {
    char path[RESIDENT_PATH];
    return !resident_path(path, NULL) && resident_is_alive(path);
}

int resident_claim(int *lock, struct error *e) {
    char path[PATHS_MAX];
    int rc = paths_make(PATHS_RUNTIME, "lock", path, sizeof path, e);
    if (rc) return rc;
    if (!dir_is_private(path)) return refuse_shared_dir(path, e);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return error_set(e, ERR_RUNTIME, "%.300s: %s", path, error_reason(errno));
    const int why = flock(fd, LOCK_EX | LOCK_NB) ? errno : 0;
    if (why && (!file_lacks_locks(why) || other_is_alive())) {
        rc = why == EWOULDBLOCK || file_lacks_locks(why)
                 ? error_set(e, ERR_RUNTIME,
                             "a resident engine is already running; hearth --status shows it, hearth --stop stops it")
                 : error_set(e, ERR_RUNTIME, "%.300s: %s", path, strerror(why));
        close(fd);
        return rc;
    }
    *lock = fd;
    return 0;
}

int resident_listen(int *out, const char *path, struct error *e) {
    struct sockaddr_un sa = socket_address(path);
    unlink(path); /* a stale socket: we hold the lock */
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof sa) || chmod(path, 0600) || listen(fd, 256)) {
        int rc = error_set(e, ERR_RUNTIME, "%s: %s", path, error_reason(errno));
        if (fd >= 0) close(fd);
        return rc;
    }
    *out = fd;
    return 0;
}

bool resident_peer_is_user(int fd) {
    struct ucred peer;
    socklen_t n = sizeof peer;
    return !getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) && n == sizeof peer && peer.uid == geteuid();
}

pid_t resident_peer(int fd, pid_t *job) {
    struct ucred peer = {0};
    socklen_t n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &n) || peer.pid <= 0) return *job = 0;
    *job = getpgid(peer.pid);
    if (*job < 0) *job = peer.pid; /* it has exited */
    return peer.pid;
}

/* --- requests --------------------------------------------------------------------------------- */

static void copy_refusal(const char *body, struct error *e) {
    struct arena arena = {0};
    struct json j;
    const struct json *text =
        json_parse(&arena, body, strlen(body), 0, "reply", &j, NULL) ? NULL : json_path(&j, "error.message");
    if (text && text->type == JSON_STRING)
        snprintf(e->text, sizeof e->text, "%.*s", (int)(text->n < 480 ? text->n : 480), text->string);
    arena_free(&arena);
}

int resident_request(const char *method, const char *what, const struct buf *body, struct buf *reply, struct error *e) {
    enum { PATIENCE_S = 5 };
    char path[RESIDENT_PATH], chunk[4096];
    struct buf b = {0};
    int rc = resident_path(path, e), fd;
    if (rc) return rc;
    if (!access(path, F_OK) && !dir_is_private(path)) return refuse_shared_dir(path, e);
    struct sockaddr_un sa = socket_address(path);
    if ((fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) < 0)
        return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    struct timeval wait = {.tv_sec = PATIENCE_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa)) {
        rc = errno == EAGAIN ? error_set(e, ERR_RUNTIME, "the resident engine does not answer")
                             : error_set(e, ERR_CANCELLED, "no resident engine is running; hearth --serve starts one");
        close(fd);
        return rc;
    }
    buf_fmt(&b, "%s %s HTTP/1.0\r\nContent-Length: %zu\r\n\r\n", method, what, body ? body->len : 0);
    if (body) buf_add(&b, body->data, body->len);
    rc = b.failed ? ERR_MEMORY : file_write_all(fd, b.data, b.len) ? ERR_RUNTIME : 0;
    b.len = 0;
    for (ssize_t n; !rc && (n = recv(fd, chunk, sizeof chunk, 0)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        rc = n < 0 ? ERR_RUNTIME : buf_add(&b, chunk, (size_t)n);
    }
    close(fd);
    const char *text = b.data ? strstr(b.data, "\r\n\r\n") : NULL;
    if (!rc && (!text || strncmp(b.data, "HTTP/1.", 7))) rc = ERR_RUNTIME;
    bool refused = !rc && strncmp(b.data + 8, " 200 ", 5);
    if (!rc && !refused) rc = buf_str(reply, text + 4);
    if (rc == ERR_MEMORY) error_set(e, rc, "no memory");
    else if (rc || refused)
        rc = error_set(e, ERR_RUNTIME, "the resident engine %s", refused ? "refused the request" : "does not answer");
    if (refused) copy_refusal(text + 4, e);
    buf_free(&b);
    return rc;
}

/* --- identity --------------------------------------------------------------------------------- */

static void put_file_state(struct buf *b, const char *path) {
    struct stat st;
    if (stat(path, &st)) return;
    buf_fmt(b, " %llu:%llu:%lld:%lld.%09ld", (unsigned long long)st.st_dev, (unsigned long long)st.st_ino,
            (long long)st.st_size, (long long)st.st_mtim.tv_sec, st.st_mtim.tv_nsec);
}

int resident_build(struct buf *out) {
    struct buf text = {0};
    buf_str(&text, "hearth " HEARTH_VERSION);
    put_file_state(&text, "/proc/self/exe"); /* the running binary, even if the file was replaced */
    if (text.failed) out->failed = true;
    else out_json_string(out, text.data, text.len);
    buf_free(&text);
    return out->failed ? ERR_MEMORY : 0;
}

int resident_identity(struct app *a, struct buf *out, struct error *e) {
    static const enum opt_id options[] = {
        OPT_CONTEXT,   OPT_THREADS,       OPT_CPU,       OPT_GPUS,     OPT_KV,       OPT_PREFILL,      OPT_DECODE,
        OPT_SPLIT,     OPT_DETERMINISTIC, OPT_HUGEPAGES, OPT_TOPOLOGY, OPT_TEMPLATE, OPT_TRACE,        OPT_DRAFT,
        OPT_DRAFT_LEN, OPT_EXPERT_CACHE,  OPT_EVICT,     OPT_KV_CACHE, OPT_MAX_TPOT, OPT_IMAGE_TOKENS, OPT_MMPROJ};
    struct buf text = {0};
    char *real = realpath(a->model_dir, NULL), path[PATHS_MAX];
    buf_str(&text, real ? real : a->model_dir);
    put_file_state(&text, a->model_dir);
    static const char *const files[] = {"config.json", "params.json", "tokenizer.json", "chat_template.jinja"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (!file_join(path, sizeof path, a->model_dir, files[i], NULL)) put_file_state(&text, path);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (a->opts.v[options[i]].text)
            buf_fmt(&text, " --%s=%s", opt_table[options[i]].name, a->opts.v[options[i]].text);
    free(real);
    if (text.len) out_json_string(out, text.data, text.len);
    int rc = text.failed || out->failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
    buf_free(&text);
    return rc;
}
