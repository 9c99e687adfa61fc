/* Reading files and directories for a model. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "base/fault.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/tools/agent_call.h"

/* --- read_file -------------------------------------------------------------------------------- */

struct reading {
    int64_t from, to, line; /* line: the one whose bytes come next, from 1 */
    struct buf text;
    size_t n_line; /* bytes of it that were taken */
    bool is_full, is_binary, ends_in_line;
};

/* Takes the wanted lines of a piece of the file. False: no more is wanted. */
static bool take(struct reading *t, const char *p, size_t n) {
    while (n && t->line <= t->to) {
        const char *end = memchr(p, '\n', n);
        const size_t k = end ? (size_t)(end + 1 - p) : n;
        if (memchr(p, 0, k)) return t->is_binary = true, false;
        if (t->line >= t->from) {
            const size_t room = AGENT_OUTPUT_BYTES - t->text.len;
            buf_add(&t->text, p, k < room ? k : room);
            if (k > room) return t->is_full = true, t->n_line += room, false;
        }
        t->n_line = end ? 0 : t->n_line + k;
        t->ends_in_line = !end;
        t->line += end != NULL;
        p += k, n -= k;
    }
    return t->line <= t->to;
}

/* Says what is left out, so that the model can ask for it. */
static void describe(struct agent_call *c, const struct reading *t) {
    const int64_t n_lines = t->line - !t->ends_in_line;
    char count[32];
    if (t->is_full && t->text.len == t->n_line)
        tool_result_note(c->r, "cut at %d bytes, within line %lld; the next line is %lld", AGENT_OUTPUT_BYTES,
                         (long long)t->line, (long long)t->line + 1);
    else if (t->is_full)
        tool_result_note(c->r, "cut at %d bytes; from_line %lld goes on", AGENT_OUTPUT_BYTES, (long long)t->line);
    else if (!t->text.len && !n_lines) tool_result_note(c->r, "the file is empty");
    else if (!t->text.len)
        tool_result_note(c->r, "the file has %s", amount_count((long long)n_lines, "line", count, sizeof count));
}

void agent_look_read_file(struct agent_call *c) {
    char path[PATHS_MAX], chunk[65536];
    struct reading t = {.line = 1};
    struct stat s;
    struct error e;
    int fd;
    if (!agent_call_path(c, NULL, path) || !agent_call_number(c, "from_line", 1, INT64_MAX / 2, 1, &t.from) ||
        !agent_call_number(c, "to_line", 1, INT64_MAX / 2, INT64_MAX / 2, &t.to))
        return;
    if (agent_file_open(c->dir, path, AGENT_KIND_FILE, &fd, &s, &e)) {
        agent_call_fail(c, &e);
        return;
    }
    for (bool more = true; more && !agent_call_is_over(c);) {
        const ssize_t n = fault_hit(FAULT_READ) ? (errno = EIO, -1) : read(fd, chunk, sizeof chunk);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) error_set(&e, ERR_RUNTIME, "%.300s: %s", path, strerror(errno)), agent_call_fail(c, &e);
        more = n > 0 && take(&t, chunk, (size_t)n);
    }
    close(fd);
    if (t.is_binary) {
        error_set(&e, ERR_USAGE, "%.300s: a binary file of %lld bytes, no text", path, (long long)s.st_size);
        agent_call_fail(c, &e);
    } else if (c->r->status == TOOL_OK) {
        out_utf8(&c->r->text, t.text.data ? t.text.data : "", t.text.len);
        describe(c, &t);
    }
    c->r->text.failed |= t.text.failed;
    buf_free(&t.text);
}

/* --- list_directory --------------------------------------------------------------------------- */

static void put_link(int fd, const char *name, struct buf *b) {
    char target[PATHS_MAX];
    const ssize_t n = readlinkat(fd, name, target, sizeof target - 1);
    target[n > 0 ? n : 0] = 0;
    buf_str(b, " -> ");
    agent_call_put_name(b, target);
}

static void put_entry(int fd, const char *name, struct buf *b) {
    struct stat s;
    char count[32];
    agent_call_put_name(b, name);
    if (fstatat(fd, name, &s, AT_SYMLINK_NOFOLLOW)) buf_str(b, " (gone)");
    else if (S_ISDIR(s.st_mode)) buf_char(b, '/');
    else if (S_ISLNK(s.st_mode)) put_link(fd, name, b);
    else if (S_ISREG(s.st_mode)) buf_fmt(b, " (%s)", amount_count((long long)s.st_size, "byte", count, sizeof count));
    else buf_fmt(b, " (%s)", agent_file_kind(s.st_mode));
    buf_char(b, '\n');
}

void agent_look_list_directory(struct agent_call *c) {
    char path[PATHS_MAX];
    struct agent_names names;
    struct stat s;
    struct error e;
    size_t i = 0;
    int fd;
    if (!agent_call_path(c, "", path)) return;
    int rc = agent_file_open(c->dir, path, AGENT_KIND_DIRECTORY, &fd, &s, &e);
    if (!rc && (rc = agent_call_list(fd, &names, &e))) close(fd);
    if (rc) {
        agent_call_fail(c, &e);
        return;
    }
    while (i < names.n && c->r->text.len < AGENT_OUTPUT_BYTES && !agent_call_is_over(c))
        put_entry(fd, names.v[i++], &c->r->text);
    if (!names.n) tool_result_note(c->r, "the directory is empty");
    else if (i < names.n || names.more)
        tool_result_note(c->r, "%zu entries of %s%zu; search_text with `files` finds others", i,
                         names.more ? "more than " : "", names.n);
    close(fd);
    agent_call_free_names(&names);
}
