#include "cli/turn/input.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "cli/report.h"
#include "cli/terminal/out.h"

static int read_fd(int fd, const char *what, struct buf *out, struct error *e) {
    char *chunk = mem_alloc(1 << 16);
    if (!chunk) return error_set(e, ERR_MEMORY, "no memory");
    int rc = 0;
    for (;;) {
        ssize_t n = -1;
        if (fault_hit(FAULT_READ)) errno = EIO;
        else n = read(fd, chunk, 1 << 16);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) rc = error_set(e, ERR_RUNTIME, "%s: %s", what, strerror(errno));
        else if (n > 0 && out->len + (size_t)n > INPUT_MAX)
            rc = error_set(e, ERR_RUNTIME, "%s: more than %d bytes", what, INPUT_MAX);
        else if (n > 0 && buf_add(out, chunk, (size_t)n))
            rc = error_set(e, ERR_MEMORY, "%s: no memory for %zu bytes", what, out->len);
        if (rc || n == 0) break;
    }
    mem_free(chunk);
    return rc;
}

int input_stdin(struct buf *out, struct error *e) {
    int rc = out_stdin_closed() ? 0 : read_fd(0, "stdin", out, e);
    return rc || !buf_add(out, "", 0) ? rc : error_set(e, ERR_MEMORY, "no memory");
}

/* Does not use file_read: the path may be a pipe, as in -f <(command). */
int input_file(const char *path, struct buf *out, struct error *e) {
    if (!strcmp(path, "-")) return input_stdin(out, e);
    if (!strncmp(path, "ember:", 6)) {
        struct file_map m;
        int rc = file_map(&m, path, e);
        if (rc) return rc;
        if (buf_add(out, m.data, m.size)) rc = error_set(e, ERR_MEMORY, "no memory");
        file_unmap(&m);
        return rc;
    }
    int fd = -1;
    if (fault_hit(FAULT_OPEN)) errno = EIO;
    else fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return error_set(e, ERR_RUNTIME, "%s: %s", path, strerror(errno));
    int rc = read_fd(fd, path, out, e);
    close(fd);
    return rc;
}

int input_clean_text(const char *what, const struct buf *raw, struct buf *out, struct error *e) {
    const char *s = raw->data ? raw->data : "";
    size_t n = raw->len;
    if (n >= 5 && !memcmp(s, "%PDF-", 5))
        return error_set(e, ERR_RUNTIME, "%s: not a text file (PDF); convert it first: pdftotext FILE - | hearth ...",
                         what);
    const bool is_wide = n >= 2 && (!memcmp(s, "\xFF\xFE", 2) || !memcmp(s, "\xFE\xFF", 2));
    const int bits = is_wide && n >= 4 && !memcmp(s + 2, "\0\0", 2) ? 32 : 16;
    if (is_wide)
        return error_set(e, ERR_RUNTIME, "%s: UTF-%d text; convert it to UTF-8 first: iconv -f UTF-%d -t UTF-8", what,
                         bits, bits);
    const size_t mark = utf8_mark(s, n);
    s += mark, n -= mark;
    size_t broken = out_utf8(out, s, n);
    if (broken) report_note("%s: %zu invalid UTF-8 sequences were replaced by U+FFFD", what, broken);
    return out->failed ? error_set(e, ERR_MEMORY, "%s: no memory", what) : 0;
}

int input_check_text(const char *path, const struct buf *raw, bool may_have_nuls, struct error *e) {
    static const struct {
        const char *begin, *what;
    } kinds[] = {{"PK\003\004", "zip archive or office document"},
                 {"\x7F"
                  "ELF",
                  "ELF executable"},
                 {"\x89PNG", "image"},
                 {"\xFF\xD8\xFF", "image"},
                 {"GIF8", "GIF image; hearth reads PNG, JPEG and WebP"},
                 {"\x1F\x8B", "compressed data"},
                 {"GGUF", "GGUF model; open it with -m"}};
    /* up to 8 invalid sequences, or one in 20 bytes, are repaired */
    enum { CHECKED_BYTES = 65536, REPAIRED = 8, REPAIRED_SHARE = 20 };
    size_t n = raw->len < CHECKED_BYTES ? raw->len : CHECKED_BYTES, broken, nuls = 0;
    struct buf waste = {0};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (n >= 4 && !strncmp(raw->data, kinds[i].begin, strlen(kinds[i].begin)))
            return error_set(e, ERR_RUNTIME, "%s: not a text file (%s)", path, kinds[i].what);
    /* input_clean_text has better messages */
    if (n >= 5 && !memcmp(raw->data, "%PDF-", 5)) return 0;
    if (n >= 2 && (!memcmp(raw->data, "\xFF\xFE", 2) || !memcmp(raw->data, "\xFE\xFF", 2))) return 0;
    for (size_t i = 0; i < n; i++) nuls += !raw->data[i];
    if (nuls > (may_have_nuls ? REPAIRED : 0))
        return error_set(e, ERR_RUNTIME, "%s: not a text file (contains NUL bytes)", path);
    broken = n ? out_utf8(&waste, raw->data, n) : 0;
    buf_free(&waste);
    if (broken > REPAIRED && broken > n / REPAIRED_SHARE)
        return error_set(
            e, ERR_RUNTIME,
            "%s: not UTF-8 text: %zu of its first %zu bytes are invalid; for Latin-1: iconv -f LATIN1 -t UTF-8", path,
            broken, n);
    return 0;
}

int input_document(const struct input_path *f, struct buf *out, struct image_files *images, size_t *bytes,
                   struct error *e) {
    struct buf raw = {0};
    int rc = input_file(f->path, &raw, e);
    const bool is_image = !rc && engine_image_kind(raw.data, raw.len);
    if (is_image && image_files_add(images, out->len, f->name, raw.data, raw.len))
        rc = error_set(e, ERR_MEMORY, "%s: no memory", f->path);
    if (!rc && !is_image) rc = input_check_text(f->path, &raw, false, e);
    if (!rc && !is_image) {
        buf_str(out, "<document name=\"");
        out_utf8(out, f->name, strlen(f->name));
        buf_str(out, "\">\n");
        rc = input_clean_text(f->path, &raw, out, e);
        if (out->len && out->data[out->len - 1] != '\n') buf_char(out, '\n');
        buf_str(out, "</document>\n\n");
    }
    if (bytes) *bytes = raw.len;
    buf_free(&raw);
    if (!rc && out->failed) rc = error_set(e, ERR_MEMORY, "%s: no memory", f->path);
    return rc;
}
