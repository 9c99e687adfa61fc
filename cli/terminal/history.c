#include "cli/terminal/history.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/options/paths.h"

/* One entry per line: line feed and backslash are written as \n and \\. */
static void put_escaped(struct buf *b, const char *s) {
    for (; *s; s++) {
        if (*s == '\n') buf_str(b, "\\n");
        else if (*s == '\\') buf_str(b, "\\\\");
        else buf_char(b, *s);
    }
    buf_char(b, '\n');
}
static void unescape_line(char *s) {
    char *o = s;
    for (; *s; s++) {
        if (*s != '\\' || !s[1]) *o++ = *s;
        else *o++ = *++s == 'n' ? '\n' : *s;
    }
    *o = 0;
}

static void push_entry(struct history *h, const char *text, size_t n) {
    if (h->n == HISTORY_MAX) {
        mem_free(h->v[0]);
        memmove(h->v, h->v + 1, --h->n * sizeof *h->v);
    }
    if (mem_grow(&h->v, &h->cap, h->n + 1, sizeof *h->v)) return;
    char *copy = mem_strndup(text, n);
    if (copy) h->v[h->n++] = copy;
}

static bool is_valid_utf8(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    for (int n; *s; s += n) {
        n = utf8_length(*s);
        for (int i = 1; i < n; i++)
            if (!utf8_continues(*s, i, s[i])) return false;
        if (!n) return false;
    }
    return true;
}

/* Reads the end of the file, whole lines of at most HISTORY_MAX_BYTES. NULL: not readable. is_long: there is more. */
static char *read_end(const char *path, size_t *size, bool *is_long) {
    struct stat st;
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    char *data = NULL;
    size_t n = 0;
    if (fd < 0) return NULL;
    *is_long = !fstat(fd, &st) && st.st_size > HISTORY_MAX_BYTES;
    if (*is_long && (data = mem_alloc(HISTORY_MAX_BYTES + 1))) {
        while (n < HISTORY_MAX_BYTES) {
            const ssize_t k = pread(fd, data + n, HISTORY_MAX_BYTES - n, st.st_size - HISTORY_MAX_BYTES + (off_t)n);
            if (k <= 0) break;
            n += (size_t)k;
        }
        const char *const first = memchr(data, '\n', n);
        if (first) n -= (size_t)(first + 1 - data), memmove(data, first + 1, n);
    }
    close(fd);
    if (!*is_long && file_read(path, HISTORY_MAX_BYTES, &data, &n, NULL)) return NULL;
    *size = n;
    return data;
}

/* Reads the entries, and writes them again if there are too many, or if a power loss has left zeros or half a line, to
 * which the next entry would be added. */
static void read_history(struct history *h) {
    size_t lines = 0, n = 0;
    bool is_long = false, is_damaged = false;
    char *const data = read_end(h->path, &n, &is_long);
    if (!data) return;
    for (char *line = data, *end; line < data + n; line = end + 1, lines++) {
        end = memchr(line, '\n', (size_t)(data + n - line));
        is_damaged |= !end;
        if (!end) break;
        *end = 0;
        const bool has_zeros = strlen(line) < (size_t)(end - line);
        is_damaged |= has_zeros;
        unescape_line(line);
        if (!has_zeros && is_valid_utf8(line)) push_entry(h, line, strlen(line)); /* the editor takes valid UTF-8 */
    }
    mem_free(data);
    if (lines <= 2 * HISTORY_MAX && !is_long && !is_damaged) return;
    struct buf b = {0};
    for (size_t i = 0; i < h->n; i++) put_escaped(&b, h->v[i]);
    if (!b.failed) file_write(h->path, b.data, b.len, NULL);
    buf_free(&b);
}

void history_open(struct history *h, bool keep) {
    char path[PATHS_MAX];
    *h = (struct history){0};
    if (paths_make(PATHS_STATE, "history", path, sizeof path, NULL)) return;
    h->path = mem_strdup(path);
    if (h->path && file_exists(path)) read_history(h);
    if (keep) return;
    mem_free(h->path);
    h->path = NULL;
}

void history_close(struct history *h) {
    for (size_t i = 0; i < h->n; i++) mem_free(h->v[i]);
    mem_free(h->v);
    mem_free(h->path);
    *h = (struct history){0};
}

void history_add(struct history *h, const char *text, size_t n) {
    if (!n || memchr(text, 0, n) || (h->n && strlen(h->v[h->n - 1]) == n && !memcmp(h->v[h->n - 1], text, n))) return;
    push_entry(h, text, n);
    if (!h->path || !h->n) return;
    struct buf b = {0};
    put_escaped(&b, h->v[h->n - 1]);
    int fd = open(h->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
        if (!b.failed) file_write_all(fd, b.data, b.len); /* a single write, so that lines of two chats do not mix */
        close(fd);
    }
    buf_free(&b);
}
