#include "cli/turn/gpus.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/mem.h"

bool gpus_are_automatic(const struct app *a) {
    const char *text = a->opts.v[OPT_GPUS].text;
    return !text || (!strncmp(text, "auto", 4) && (!text[4] || text[4] == ','));
}

static const char *found_gpus(struct app *a, const struct engine_gpus *g, const char *options) {
    if (!*g->list) return "none";
    snprintf(a->gpus, sizeof a->gpus, "%s%s", g->list, options);
    return a->gpus;
}

const char *gpus_of_option(struct app *a) {
    const char *text = a->opts.v[OPT_GPUS].text;
    struct engine_gpus g;
    if (!text || !gpus_are_automatic(a)) return text;
    engine_find_gpus(&g);
    return found_gpus(a, &g, text + 4);
}

/* The line of the file that holds the result for these GPUs. */
static void format_check(struct buf *b, const char *text, bool right) {
    buf_fmt(b, "%s: hearth " HEARTH_VERSION ", %s\n", right ? "right" : "wrong", text);
}

static bool has_check(const char *text, bool right) {
    char path[PATHS_MAX], *stored;
    size_t n;
    struct buf want = {0};
    if (paths_get(PATHS_CACHE, "gpus", path, sizeof path) || !file_exists(path) ||
        file_read(path, 4096, &stored, &n, &(struct error){0}))
        return false;
    format_check(&want, text, right);
    const bool same = !want.failed && n == want.len && !memcmp(stored, want.data, n);
    buf_free(&want);
    mem_free(stored);
    return same;
}

bool gpus_were_wrong(void) {
    struct engine_gpus g;
    engine_find_gpus(&g);
    return *g.list && has_check(g.text, false);
}

int gpus_store_check(const char *text, bool right, struct error *e) {
    char path[PATHS_MAX];
    struct buf b = {0};
    format_check(&b, text, right);
    int rc = b.failed ? error_set(e, ERR_MEMORY, "no memory") : paths_make(PATHS_CACHE, "gpus", path, sizeof path, e);
    if (!rc) rc = file_write(path, b.data, b.len, e);
    buf_free(&b);
    return rc;
}

const char *gpus_by_default(struct app *a) {
    struct engine_gpus g;
    if (!strncmp(a->model_dir, "ember:", 6)) return NULL;
    engine_find_gpus(&g);
    const bool used = *g.list && (g.is_tried ? !has_check(g.text, false) : has_check(g.text, true));
    a->has_unused_gpus = *g.list && !used;
    snprintf(a->gpu_trouble, sizeof a->gpu_trouble, "%s", g.trouble);
    return used ? found_gpus(a, &g, "") : NULL;
}

void gpus_set_tuned(struct engine_params *p, char dir[PATHS_MAX], char *machine, size_t cap) {
    enum { GB = 1 << 30 };
    struct engine_gpus g;
    if (!p->gpus || !strcmp(p->gpus, "none") || paths_get(PATHS_CACHE, "tuned", dir, PATHS_MAX)) return;
    engine_find_gpus(&g);
    snprintf(machine, cap, "hearth " HEARTH_VERSION ", %ld CPUs, %zu GB, --gpus %s (%s)", sysconf(_SC_NPROCESSORS_CONF),
             mem_total() / GB, p->gpus, *g.list ? g.text : "none found");
    for (char *c = machine; *c; c++)
        if (*c == '\n') *c = ' ';
    p->tuned_dir = dir, p->machine = machine;
}
