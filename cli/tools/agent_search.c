/* Searching the files of a directory for a model. Links are not followed. Patterns are PCRE2's, which have POSIX
 * classes, with limits on steps and memory: the C library's regular expressions have none. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <fcntl.h>
#include <fnmatch.h>
#include <pcre2.h>
#include <string.h>
#include <unistd.h>

#include "cli/terminal/amount.h"
#include "cli/terminal/out.h"
#include "cli/tools/agent_call.h"

enum {
    PATTERN_BYTES = 2000,
    MATCH_STEPS = 200000,
    HEAP_KB = 20000,
    FILE_BYTES = 16 << 20,
    LINE_BYTES = 300, /* of a line that is shown */
    MOST_LINES = 200,
    MOST_FOLDERS = 32, /* within each other: each is an open descriptor */
    LINES_PER_CHECK = 10000
};

struct search {
    struct agent_call *call;
    pcre2_code *code;
    pcre2_match_data *match;
    pcre2_match_context *limits;
    char files[256];      /* pattern of names; "": all */
    char path[PATHS_MAX]; /* of the file that is searched */
    size_t n_lines, n_slow, n_long, n_deep;
    bool is_full;
};

/* --- pattern ---------------------------------------------------------------------------------- */

static bool open_pattern(struct search *s, struct error *e) {
    const char *text, *files;
    size_t n, n_files;
    int code;
    PCRE2_SIZE at;
    PCRE2_UCHAR why[120] = "";
    if (!agent_call_text(s->call, "pattern", &text, &n)) return false;
    if (json_get(s->call->arguments, "files")) {
        if (!agent_call_text(s->call, "files", &files, &n_files)) return false;
        if (n_files >= sizeof s->files || memchr(files, 0, n_files))
            return error_set(e, ERR_USAGE, "files: too long"), agent_call_fail(s->call, e), false;
        memcpy(s->files, files, n_files);
    }
    if (!n || n > PATTERN_BYTES) {
        error_set(e, ERR_USAGE, "pattern: 1 to %d bytes are required", PATTERN_BYTES);
        return agent_call_fail(s->call, e), false;
    }
    const uint32_t flags = PCRE2_MATCH_INVALID_UTF | PCRE2_NEVER_BACKSLASH_C |
                           (agent_call_flag(s->call, "ignore_case") ? PCRE2_CASELESS : 0);
    s->code = pcre2_compile((PCRE2_SPTR)text, n, flags, &code, &at, NULL);
    if (!s->code) {
        pcre2_get_error_message(code, why, sizeof why);
        error_set(e, ERR_USAGE, "pattern: %s, at byte %zu", (const char *)why, (size_t)at);
        return agent_call_fail(s->call, e), false;
    }
    s->match = pcre2_match_data_create(1, NULL);
    s->limits = pcre2_match_context_create(NULL);
    if (!s->match || !s->limits) return error_set(e, ERR_MEMORY, "no memory"), agent_call_fail(s->call, e), false;
    pcre2_set_match_limit(s->limits, MATCH_STEPS);
    pcre2_set_heap_limit(s->limits, HEAP_KB);
    return true;
}

static void close_pattern(struct search *s) {
    pcre2_match_context_free(s->limits);
    pcre2_match_data_free(s->match);
    pcre2_code_free(s->code);
}

/* --- files ------------------------------------------------------------------------------------ */

static void put_line(struct search *s, size_t number, const char *line, size_t n) {
    struct buf *b = &s->call->r->text;
    agent_call_put_name(b, s->path);
    buf_fmt(b, ":%zu: ", number);
    out_utf8(b, line, n < LINE_BYTES ? n : LINE_BYTES);
    buf_str(b, n < LINE_BYTES ? "\n" : "...\n");
    s->is_full = ++s->n_lines == MOST_LINES || b->len > AGENT_OUTPUT_BYTES;
}

/* False: the search is over. */
static bool search_lines(struct search *s, const char *p, size_t n) {
    for (size_t number = 1; n; number++) {
        const char *end = memchr(p, '\n', n);
        const size_t k = end ? (size_t)(end - p) : n, whole = k + (end != NULL);
        const int found = pcre2_match(s->code, (PCRE2_SPTR)p, k, 0, 0, s->match, s->limits);
        if (found >= 0) put_line(s, number, p, k);
        else if (found != PCRE2_ERROR_NOMATCH) s->n_slow++;
        if (s->is_full || ((s->n_slow + number) % LINES_PER_CHECK == 0 && agent_call_is_over(s->call))) return false;
        p += whole, n -= whole;
    }
    return true;
}

static bool search_file(struct search *s, int fd) {
    char *data;
    size_t n;
    struct error e;
    const int rc = agent_file_read(fd, FILE_BYTES, &data, &n, &e);
    close(fd);
    if (rc == ERR_MEMORY) return agent_call_fail(s->call, &e), false;
    s->n_long += rc != 0;
    if (rc) return true;
    const bool goes_on = memchr(data, 0, n) ? true : search_lines(s, data, n); /* binary files have no lines */
    mem_free(data);
    return goes_on;
}

static bool search_folder(struct search *s, int fd, int depth);

static bool search_entry(struct search *s, int fd, const char *name, int depth) {
    const size_t before = strlen(s->path), n = strlen(name);
    struct stat state;
    bool goes_on = true;
    int entry;
    if (before + n + 2 > sizeof s->path) return true;
    if (before) s->path[before] = '/';
    memcpy(s->path + before + (before > 0), name, n + 1);
    if (agent_file_open_entry(fd, name, AGENT_KIND_DIRECTORY, &entry, &state)) {
        if (!strcmp(name, ".git")) close(entry);
        else goes_on = search_folder(s, entry, depth + 1);
    } else if ((!*s->files || !fnmatch(s->files, name, 0)) &&
               agent_file_open_entry(fd, name, AGENT_KIND_FILE, &entry, &state))
        goes_on = search_file(s, entry);
    s->path[before] = 0;
    return goes_on;
}

/* Searches an open directory, and closes it. False: the search is over. */
static bool search_folder(struct search *s, int fd, int depth) {
    struct agent_names names;
    struct error e;
    bool goes_on = true;
    if (depth > MOST_FOLDERS) {
        close(fd);
        return s->n_deep++, true;
    }
    const int rc = agent_call_list(fd, &names, &e);
    if (rc == ERR_MEMORY) agent_call_fail(s->call, &e);
    for (size_t i = 0; !rc && i < names.n && goes_on; i++)
        goes_on = !agent_call_is_over(s->call) && search_entry(s, fd, names.v[i], depth);
    if (!rc) s->n_deep += names.more, agent_call_free_names(&names);
    close(fd);
    return goes_on && rc != ERR_MEMORY;
}

static void describe(struct search *s) {
    struct tool_result *r = s->call->r;
    char count[32];
    if (s->is_full)
        tool_result_note(r, "cut after %s; a narrower pattern or path finds others",
                         amount_count((long long)s->n_lines, "line", count, sizeof count));
    else if (!s->n_lines && r->status == TOOL_OK) tool_result_note(r, "no line matches");
    if (s->n_slow)
        tool_result_note(r, "%s took too many steps to compare",
                         amount_count((long long)s->n_slow, "line", count, sizeof count));
    if (s->n_long)
        tool_result_note(r, "left out: %s of more than %d bytes",
                         amount_count((long long)s->n_long, "file", count, sizeof count), FILE_BYTES);
    if (s->n_deep)
        tool_result_note(r, "left out as too deep or too large: %zu director%s", s->n_deep,
                         s->n_deep == 1 ? "y" : "ies");
}

void agent_search_text(struct agent_call *c) {
    struct search s = {.call = c};
    struct stat state;
    struct error e;
    int fd;
    if (agent_call_path(c, "", s.path) && open_pattern(&s, &e)) {
        struct error no_folder;
        if (!agent_file_open(c->dir, s.path, AGENT_KIND_DIRECTORY, &fd, &state, &no_folder)) search_folder(&s, fd, 0);
        else if (!agent_file_open(c->dir, s.path, AGENT_KIND_FILE, &fd, &state, &e)) search_file(&s, fd);
        else agent_call_fail(c, &e);
        describe(&s);
    }
    close_pattern(&s);
}
