/* Changing files for a model: what a call makes of a file is known before it is written, so that the user can see it.
 */
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "cli/terminal/amount.h"
#include "cli/tools/agent_call.h"

/* Reads the file that is to be changed. *exists: there is one. */
static bool read_old(struct agent_call *c, struct agent_change *out, bool *exists) {
    struct stat s;
    struct error e;
    int fd;
    *out = (struct agent_change){0};
    if (!agent_call_path(c, NULL, out->path)) return false;
    int rc = agent_file_check_target(c->dir, out->path, exists, &e);
    if (!rc && *exists && !(rc = agent_file_open(c->dir, out->path, AGENT_KIND_FILE, &fd, &s, &e))) {
        rc = agent_file_read(fd, AGENT_EDIT_BYTES, &out->old, &out->n_old, &e);
        close(fd);
    }
    if (!rc && out->n_old && memchr(out->old, 0, out->n_old))
        rc = error_set(&e, ERR_USAGE, "%.300s: a binary file, which these tools do not change", out->path);
    if (rc) agent_call_fail(c, &e);
    return !rc;
}

static bool refuse(struct agent_call *c, const char *why) {
    struct error e;
    error_set(&e, ERR_USAGE, "%s", why);
    agent_call_fail(c, &e);
    return false;
}

/* A text whose last line has no end is one more often by mistake than not, but it is what the model wrote. */
bool agent_edit_write_file(struct agent_call *c, struct agent_change *out) {
    const char *text;
    size_t n;
    bool exists;
    if (!read_old(c, out, &exists) || !agent_call_text(c, "content", &text, &n)) return false;
    if (n > AGENT_EDIT_BYTES) return refuse(c, "content: too long");
    if (memchr(text, 0, n)) return refuse(c, "content: a text without NUL is required");
    buf_add(&out->text, text, n);
    if (exists && out->n_old == n && !memcmp(out->old, text, n)) return refuse(c, "the file has this content already");
    return !out->text.failed || refuse(c, "no memory");
}

static size_t count(const char *text, size_t n, const char *what, size_t k) {
    size_t found = 0;
    for (const char *at = text, *end = text + n; (at = memmem(at, (size_t)(end - at), what, k)); at += k) found++;
    return found;
}

static void put_replaced(struct agent_change *out, const char *old, size_t n_old, const char *new, size_t n_new) {
    const char *from = out->old, *const end = out->old + out->n_old;
    for (const char *at; (at = memmem(from, (size_t)(end - from), old, n_old)); from = at + n_old) {
        buf_add(&out->text, from, (size_t)(at - from));
        buf_add(&out->text, new, n_new);
        if (out->text.len > 4 * (size_t)AGENT_EDIT_BYTES) return;
    }
    buf_add(&out->text, from, (size_t)(end - from));
}

bool agent_edit_replace_text(struct agent_call *c, struct agent_change *out) {
    const char *old, *new;
    size_t n_old, n_new;
    bool exists;
    if (!read_old(c, out, &exists) || !agent_call_text(c, "old_text", &old, &n_old) ||
        !agent_call_text(c, "new_text", &new, &n_new))
        return false;
    if (!exists) return refuse(c, "there is no such file; write_file makes one");
    if (!n_old) return refuse(c, "old_text: it is empty; write_file replaces whole files");
    if (memchr(new, 0, n_new)) return refuse(c, "new_text: a text without NUL is required");
    const size_t n = count(out->old, out->n_old, old, n_old);
    if (!n) return refuse(c, "old_text does not occur in the file, letter by letter; read_file shows what is there");
    if (n > 1 && !agent_call_flag(c, "all"))
        return refuse(c, "old_text occurs more than once; give more of the text around it, or set all");
    if (n_old == n_new && !memcmp(old, new, n_old)) return refuse(c, "old_text and new_text are the same");
    put_replaced(out, old, n_old, new, n_new);
    if (out->text.len > AGENT_EDIT_BYTES) return refuse(c, "the file would become too long");
    return !out->text.failed || refuse(c, "no memory");
}

void agent_edit_free(struct agent_change *e) {
    mem_free(e->old);
    buf_free(&e->text);
    *e = (struct agent_change){0};
}

uint64_t agent_edit_mark(const struct agent_change *e) {
    const uint64_t mark = e->old ? hash64(e->old, e->n_old, 1) : 1;
    return mark ? mark : 1;
}

void agent_edit_apply(struct agent_call *c, const struct agent_change *change) {
    struct error e;
    char count[32];
    if (c->seen && c->seen != agent_edit_mark(change)) {
        error_set(&e, ERR_USAGE,
                  "%.300s: not changed: the file has changed since the user saw the differences; read it again",
                  change->path);
        agent_call_fail(c, &e);
    } else if (agent_file_replace(c->dir, change->path, change->text.data ? change->text.data : "", change->text.len,
                                  &e))
        agent_call_fail(c, &e);
    else
        tool_result_note(c->r, "%s: %s, %s", change->path, change->old ? "changed" : "made",
                         amount_count((long long)change->text.len, "byte", count, sizeof count));
}
