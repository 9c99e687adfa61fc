#include "cli/tools/agent_call.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/terminal/out.h"
#include "cli/tools/tool_process.h"

static bool is_missing(const struct json *j) { return !j || j->type == JSON_NULL; }

static bool refuse(struct agent_call *c, const char *key, const char *what) {
    c->r->status = TOOL_FAILED;
    tool_result_note(c->r, "%s: %s", key, what);
    return false;
}

bool agent_call_text(struct agent_call *c, const char *key, const char **text, size_t *n) {
    const struct json *j = json_get(c->arguments, key);
    if (is_missing(j) || j->type != JSON_STRING) return refuse(c, key, "a text is required");
    *text = j->string, *n = j->n;
    return true;
}

bool agent_call_number(struct agent_call *c, const char *key, int64_t lo, int64_t hi, int64_t none, int64_t *out) {
    const struct json *j = json_get(c->arguments, key);
    char digits[24] = "", *end;
    *out = none;
    if (is_missing(j)) return true;
    if (j->type == JSON_STRING && j->n && j->n < sizeof digits) { /* models write numbers as texts, too */
        memcpy(digits, j->string, j->n);
        *out = strtoll(digits, &end, 10);
        if (*end) *out = lo - 1;
    } else *out = json_int(j, lo - 1);
    if (*out >= lo && *out <= hi) return true;
    c->r->status = TOOL_FAILED;
    tool_result_note(c->r, "%s: a whole number from %lld to %lld is required", key, (long long)lo, (long long)hi);
    return false;
}

bool agent_call_flag(const struct agent_call *c, const char *key) {
    const struct json *j = json_get(c->arguments, key);
    return json_bool(j, false) || json_is(j, "true");
}

bool agent_call_path(struct agent_call *c, const char *none, char *out) {
    const char *text = none;
    size_t n = none ? strlen(none) : 0;
    struct error e;
    if ((!none || !is_missing(json_get(c->arguments, "path"))) && !agent_call_text(c, "path", &text, &n)) return false;
    if (!agent_file_path(c->dir, text, n, out, &e)) return true;
    agent_call_fail(c, &e);
    return false;
}

void agent_call_fail(struct agent_call *c, const struct error *e) {
    c->r->status = TOOL_FAILED;
    c->r->text.failed |= e->code == ERR_MEMORY; /* ends the answer */
    tool_result_note(c->r, "%s", e->text);
}

bool agent_call_is_over(struct agent_call *c) {
    if (tool_process_is_cancelled(c->cancel_fd, 0)) {
        c->r->status = TOOL_STOPPED;
        tool_result_note(c->r, "stopped by the user");
        return true;
    }
    if (clock_now() < c->until) return false;
    c->r->status = TOOL_FAILED;
    tool_result_note(c->r, "stopped after %d s, its limit of time", AGENT_TIME_S);
    return true;
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static int add_name(struct agent_names *out, size_t *cap, const char *name) {
    if (mem_grow(&out->v, cap, out->n + 1, sizeof *out->v)) return ERR_MEMORY;
    return (out->v[out->n] = mem_strdup(name)) ? (int)(out->n++, 0) : ERR_MEMORY;
}

int agent_call_list(int fd, struct agent_names *out, struct error *e) {
    const int own = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = own < 0 ? NULL : fdopendir(own);
    size_t cap = 0;
    int rc = 0;
    *out = (struct agent_names){0};
    if (!d) {
        const int why = errno;
        if (own >= 0) close(own);
        return error_set(e, ERR_RUNTIME, "the directory cannot be read: %s", strerror(why));
    }
    for (struct dirent *it; !rc && !out->more && (it = readdir(d));) {
        if (!strcmp(it->d_name, ".") || !strcmp(it->d_name, "..")) continue;
        if (out->n == AGENT_NAMES_MAX) out->more = true;
        else rc = add_name(out, &cap, it->d_name);
    }
    closedir(d);
    if (rc) return agent_call_free_names(out), error_set(e, rc, "no memory");
    if (out->n) qsort(out->v, out->n, sizeof *out->v, by_name);
    return 0;
}

void agent_call_free_names(struct agent_names *names) {
    for (size_t i = 0; i < names->n; i++) mem_free(names->v[i]);
    mem_free(names->v);
    *names = (struct agent_names){0};
}

void agent_call_put_name(struct buf *b, const char *name) {
    const size_t from = b->len;
    out_utf8(b, name, strlen(name));
    for (size_t i = from; i < b->len; i++)
        if ((unsigned char)b->data[i] < ' ' || b->data[i] == 0x7F) b->data[i] = '?';
}
