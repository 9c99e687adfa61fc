#include "engine/exec/trace_file.h"

#include <string.h>

#include "base/log.h"
#include "base/mem.h"

enum { WRITE_BYTES = 1 << 20 }; /* lines are written in pieces of this size */

int trace_file_open(struct trace_file *f, const char *path, const char *what, struct error *e) {
    f->what = what;
    f->out.fd = -1;
    return (f->path = mem_strdup(path)) ? 0 : error_set(e, ERR_MEMORY, "no memory for the %s", what);
}

void trace_file_fail(struct trace_file *f, const char *why) {
    if (!f->has_failed) log_say(LOG_WARN, "%s", why);
    f->has_failed = true;
    buf_free(&f->text);
}

/* Writes the gathered lines to a regular file, or at the end (last) to anything else. */
static void write_lines(struct trace_file *f, bool last) {
    struct error e = {0};
    if (f->text.failed) {
        error_set(&e, ERR_MEMORY, "no memory for the %s", f->what);
        trace_file_fail(f, e.text);
    }
    if (!f->has_failed && !f->is_open && file_out_open(&f->out, f->path, 0600, &e)) trace_file_fail(f, e.text);
    if (f->has_failed) return;
    f->is_open = true;
    if (!last && !f->out.tmp) return;
    int rc = file_write_all(f->out.fd, f->text.data, f->text.len);
    if (rc) {
        error_set(&e, ERR_RUNTIME, "%s: %s", f->path, strerror(-rc));
        trace_file_fail(f, e.text);
    }
    f->text.len = 0;
}

void trace_file_flush(struct trace_file *f) {
    if (f->text.len >= WRITE_BYTES || f->text.failed) write_lines(f, false);
}

void trace_file_close(struct trace_file *f) {
    struct error e = {0};
    if (f->path) write_lines(f, true);
    if (f->is_open && file_out_close(&f->out, !f->has_failed, &e)) log_say(LOG_WARN, "%s", e.text);
    buf_free(&f->text);
    mem_free(f->path);
}
