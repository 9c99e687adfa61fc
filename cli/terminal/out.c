#include "cli/terminal/out.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "cli/terminal/sanitize.h"

static bool stdin_closed, stderr_nonblocking;
static bool stdout_used;
static int stdout_errno; /* errno of the first failure */

/* One filter per stream: a character may arrive in parts. Other threads print messages too. */
static struct out_stream {
    bool terminal;
    struct sanitizer filter;
} streams[3];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void out_init(void) {
    for (int fd = 0; fd < 3; fd++) {
        streams[fd].terminal = isatty(fd);
        if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF) continue;
        if (fd == 0) stdin_closed = true;
        if (fd == 1) stdout_errno = EBADF;
        int null = open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY);
        if (null >= 0 && null != fd) {
            dup2(null, fd);
            close(null);
        }
    }
}

bool out_stdin_closed(void) { return stdin_closed; }
bool out_terminal(int fd) { return streams[fd].terminal; }
bool out_failed(void) { return stdout_errno != 0; }
bool out_wrote(void) { return stdout_used; }

static int write_fd(int fd, const void *data, size_t n) {
    if (fd == 2 && stderr_nonblocking && !poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, 0)) return 0;
    int rc = n ? file_write_all(fd, data, n) : 0;
    if (rc && fd == 1) stdout_errno = -rc;
    return rc ? ERR_RUNTIME : 0;
}

/* Filters in chunks on the stack: messages about lack of memory must not allocate. */
enum { OUT_CHUNK_BYTES = 1024 };
static int write_sanitized(int fd, struct sanitizer *f, const char *data, size_t n) {
    char room[3 * OUT_CHUNK_BYTES + 16];
    int rc = 0;
    for (size_t k; n && !rc; data += k, n -= k) {
        struct buf b = {.data = room, .cap = sizeof room};
        k = n < OUT_CHUNK_BYTES ? n : OUT_CHUNK_BYTES;
        sanitize_add(f, data, k, &b);
        rc = write_fd(fd, b.data, b.len);
    }
    return rc;
}

static int write_stream(int fd, const void *data, size_t n) {
    pthread_mutex_lock(&lock);
    stdout_used |= fd == 1 && n > 0;
    int rc = fd == 1 && stdout_errno ? ERR_RUNTIME
             : streams[fd].terminal  ? write_sanitized(fd, &streams[fd].filter, data, n)
                                     : write_fd(fd, data, n);
    pthread_mutex_unlock(&lock);
    return rc;
}

int out_write(const void *data, size_t n) { return write_stream(1, data, n); }
void out_err(const void *data, size_t n) { write_stream(2, data, n); }
void out_err_nonblocking(void) { stderr_nonblocking = true; }

int out_draw(int fd, const char *own, size_t n) {
    char room[16];
    struct buf held = {.data = room, .cap = sizeof room};
    pthread_mutex_lock(&lock);
    sanitize_flush(&streams[fd].filter, &held);
    int rc = fd == 1 && stdout_errno ? ERR_RUNTIME : write_fd(fd, held.data, held.len);
    if (!rc) rc = write_fd(fd, own, n);
    pthread_mutex_unlock(&lock);
    return rc;
}

void out_signal(const char *text) {
    struct sanitizer f = {0};
    if (streams[2].terminal) write_sanitized(2, &f, text, strlen(text));
    else write_fd(2, text, strlen(text));
}

int out_check(struct error *e) {
    out_draw(1, "", 0); /* flushes a held partial character */
    if (!stdout_errno) return 0;
    if (stdout_errno == EPIPE) return OUT_CLOSED_PIPE;
    return error_set(e, ERR_RUNTIME, "stdout: %s", stdout_errno == EBADF ? "closed" : strerror(stdout_errno));
}

/* Returns the length of the valid sequence at s, or minus the length of the invalid one that becomes one U+FFFD. */
static int sequence_length(const unsigned char *s, size_t n) {
    int length = utf8_length(s[0]);
    for (int i = 1; i < length; i++)
        if ((size_t)i >= n || !utf8_continues(s[0], i, s[i])) return -i;
    return length ? length : -1;
}

size_t out_utf8(struct buf *b, const char *s, size_t n) {
    size_t replaced = 0;
    for (size_t i = 0, run = 0;;) {
        int k = i < n ? sequence_length((const unsigned char *)s + i, n - i) : 0;
        if (k > 0) {
            i += (size_t)k;
            continue;
        }
        buf_add(b, s + run, i - run);
        if (i >= n) return replaced;
        buf_str(b, "\xEF\xBF\xBD");
        replaced++;
        i += (size_t)-k;
        run = i;
    }
}

void out_json_string(struct buf *b, const char *s, size_t n) {
    struct buf clean = {0};
    out_utf8(&clean, s, n);
    json_quote(b, clean.data ? clean.data : "", clean.len);
    if (clean.failed) b->failed = true;
    buf_free(&clean);
}
