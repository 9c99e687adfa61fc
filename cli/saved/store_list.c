/* Lists saved conversations, with title and time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/report.h"
#include "cli/saved/store.h"
#include "cli/terminal/amount.h"
#include "cli/terminal/columns.h"
#include "cli/terminal/out.h"
#include "cli/terminal/term.h"

enum { TITLE_COLS = 60, NAME_COLS = 36, MAX_LISTED_BYTES = 1 << 28 };

struct entry_list {
    struct store_entry *v;
    size_t n, cap;
    char dir[PATHS_MAX];
};

static void read_entry(struct store_entry *t, const char *path) {
    struct conversation conv = {0};
    struct buf title = {0};
    char *data;
    size_t n;
    t->damaged = t->unreadable = file_read(path, MAX_LISTED_BYTES, &data, &n, NULL) != 0;
    if (t->damaged) return;
    const int rc = store_parse(data, n, t->name, &conv, NULL, NULL, NULL);
    t->damaged = rc != 0, t->newer = rc == ERR_RUNTIME;
    conversation_title(&conv, TITLE_COLS, &title);
    snprintf(t->title, sizeof t->title, "%s", title.data ? title.data : "");
    t->n_questions = conversation_n_questions(&conv);
    mem_free(data);
    buf_free(&title);
    conversation_free(&conv);
}

static int add_entry(void *ctx, const char *file) {
    struct entry_list *l = ctx;
    size_t n = strlen(file);
    char path[PATHS_MAX];
    struct stat st;
    if (n < 6 || n - 5 >= sizeof l->v->name || strcmp(file + n - 5, ".json")) return 0;
    if (file_join(path, sizeof path, l->dir, file, NULL) || stat(path, &st) || !S_ISREG(st.st_mode)) return 0;
    if (mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) return ERR_MEMORY;
    struct store_entry *t = &l->v[l->n++];
    *t = (struct store_entry){.saved_at = st.st_mtime, .saved_ns = st.st_mtim.tv_nsec, .bytes = (size_t)st.st_size};
    snprintf(t->name, sizeof t->name, "%.*s", (int)n - 5, file);
    read_entry(t, path);
    return 0;
}

static int compare_newest_first(const void *a, const void *b) {
    const struct store_entry *x = a, *y = b;
    if (x->saved_at != y->saved_at) return (x->saved_at < y->saved_at) - (x->saved_at > y->saved_at);
    if (x->saved_ns != y->saved_ns) return (x->saved_ns < y->saved_ns) - (x->saved_ns > y->saved_ns);
    return strcmp(x->name, y->name);
}

int store_list_entries(struct store_entry **out, size_t *n, struct error *e) {
    struct entry_list l = {0};
    *out = NULL;
    *n = 0;
    if (paths_get(PATHS_DATA, "sessions", l.dir, sizeof l.dir) || !file_is_dir(l.dir)) return 0;
    int rc = file_list(l.dir, add_entry, &l, e);
    if (rc == ERR_MEMORY) error_set(e, rc, "no memory for the list");
    if (rc) mem_free(l.v);
    if (rc) return rc;
    if (l.n) qsort(l.v, l.n, sizeof *l.v, compare_newest_first);
    *out = l.v;
    *n = l.n;
    return 0;
}

enum { WHEN_COLS = 18, COUNT_COLS = 24, LEAST_TITLE = 12 };

/* Names wider than the column move the rest of their own row. */
void store_list_entry_text(const struct store_entry *t, int width, int cols, struct buf *out) {
    char when[32], bytes[32];
    time_t saved = (time_t)t->saved_at;
    struct tm tm;
    const int name = columns_of_text(t->name, strlen(t->name)),
              taken = WHEN_COLS + (name > width ? name : width) + 1 + COUNT_COLS;
    bool narrow = cols && taken >= cols;
    strftime(when, sizeof when, narrow ? "%Y-%m-%d" : "%Y-%m-%d %H:%M", localtime_r(&saved, &tm));
    buf_fmt(out, "%s  %s%*s ", when, t->name, narrow || name > width ? 0 : width - name, "");
    if (t->damaged)
        buf_fmt(out, "%s, %s",
                t->newer        ? "of a newer hearth"
                : t->unreadable ? "cannot be read"
                                : "damaged",
                amount_count((long long)t->bytes, "byte", bytes, sizeof bytes));
    else if (narrow && (int)strlen(when) + 3 + name + (int)strlen("(10)") < cols) buf_fmt(out, "(%zu)", t->n_questions);
    else if (!narrow)
        buf_fmt(out, "%3zu question%s %4zu kB  ", t->n_questions, t->n_questions == 1 ? ", " : "s,",
                (t->bytes + 999) / 1000);
    int left = cols ? cols - taken : TITLE_COLS;
    if (!t->damaged && !narrow && *t->title && left >= LEAST_TITLE)
        columns_truncate(t->title, strlen(t->title), left, out);
}

int store_list_name_width(const struct store_entry *v, size_t n, int cols) {
    int w = 0, most = cols ? cols - WHEN_COLS - 1 - COUNT_COLS - 2 * LEAST_TITLE : NAME_COLS;
    if (most > NAME_COLS) most = NAME_COLS;
    for (size_t i = 0; i < n; i++) {
        int name = columns_of_text(v[i].name, strlen(v[i].name));
        if (name > w && name <= most) w = name;
    }
    return w;
}

int store_list_last(char *name, size_t cap, struct error *e) {
    struct store_entry *v;
    size_t n, i = 0;
    int rc = store_list_entries(&v, &n, e);
    while (!rc && i < n && v[i].damaged) i++;
    if (!rc && i == n) rc = error_set(e, ERR_RUNTIME, "no conversation has been saved yet");
    if (!rc) snprintf(name, cap, "%s", v[i].name);
    mem_free(v);
    return rc;
}

static void put_entry_json(const struct store_entry *t, struct buf *b) {
    buf_str(b, "{\"name\": ");
    out_json_string(b, t->name, strlen(t->name));
    buf_str(b, ", \"title\": ");
    out_json_string(b, t->title, strlen(t->title));
    buf_fmt(b, ", \"saved\": %lld, \"questions\": %zu, \"bytes\": %zu, \"damaged\": %s}", (long long)t->saved_at,
            t->n_questions, t->bytes, t->damaged ? "true" : "false");
}

int store_list_print(struct app *a, struct error *e) {
    struct store_entry *v;
    struct buf b = {0};
    size_t n;
    bool json = a->opts.v[OPT_JSON].on;
    int rc = store_list_entries(&v, &n, e), rows, cols = 0;
    if (rc) return rc;
    if (isatty(1)) term_size(&rows, &cols);
    if (json) buf_char(&b, '[');
    for (size_t i = 0; i < n; i++) {
        buf_str(&b, json && i ? ",\n " : "");
        if (json) put_entry_json(&v[i], &b);
        else store_list_entry_text(&v[i], store_list_name_width(v, n, cols), cols, &b);
        if (!json) buf_char(&b, '\n');
    }
    if (json) buf_str(&b, "]\n");
    mem_free(v);
    if (!n && !json) report_note("no conversation has been saved yet");
    rc = b.failed ? error_set(e, ERR_MEMORY, "no memory") : 0;
    if (!rc && b.len) out_write(b.data, b.len);
    buf_free(&b);
    return rc;
}
