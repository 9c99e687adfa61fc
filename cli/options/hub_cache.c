#include "cli/options/hub_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "base/mem.h"
#include "base/shard_names.h"
#include "cli/options/hub_name.h"
#include "cli/options/trim.h"

static const char source[] = "Hugging Face cache";

int hub_cache_dir(char *out, size_t cap) {
    static const struct {
        const char *env, *below;
    } parents[] = {{"HF_HUB_CACHE", ""},
                   {"HF_HOME", "/hub"},
                   {"XDG_CACHE_HOME", "/huggingface/hub"},
                   {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof parents / sizeof *parents; i++) {
        const char *at = getenv(parents[i].env);
        if (!at || *at != '/') continue;
        return (size_t)snprintf(out, cap, "%s%s", at, parents[i].below) < cap ? 0 : ERR_RUNTIME;
    }
    return ERR_RUNTIME;
}

int hub_cache_repo(char *out, size_t cap, const char *hub, const char *repo, struct error *e) {
    const char *slash = strchr(repo, '/');
    int n = slash ? snprintf(out, cap, "%s/models--%.*s--%s", hub, (int)(slash - repo), repo, slash + 1)
                  : snprintf(out, cap, "%s/models--%s", hub, repo);
    return n > 0 && (size_t)n < cap ? 0 : error_set(e, ERR_USAGE, "%.200s: path too long", repo);
}

/* --- snapshots -------------------------------------------------------------------------------- */

struct walk { /* through the snapshots of a repository */
    struct model_list *to;
    const char *repo;      /* "ORG/NAME" */
    char main[64];         /* the commit in refs/main, if there is one with models */
    const char *snapshot;  /* being listed */
    const char *snapshots; /* the folder of all */
    size_t root;           /* bytes of the snapshot's path */
    size_t first;          /* in `to`: the first model of this repository */
    bool by_path;          /* models are named by their paths */
    int depth, rc;
    size_t n_gguf;
};

/* Writes "ORG/NAME" of a folder's path; false: it is no repository's. */
static bool repo_of(const char *folder, size_t n, char *out, size_t cap) {
    size_t from = n;
    while (from && folder[from - 1] != '/') from--;
    if (n - from < 9 || strncmp(folder + from, "models--", 8)) return false;
    const char *org = folder + from + 8, *end = folder + n, *sep = memmem(org, (size_t)(end - org), "--", 2);
    if (!sep || sep == org || sep + 2 >= end) return false;
    return (size_t)snprintf(out, cap, "%.*s/%.*s", (int)(sep - org), org, (int)(end - sep - 2), sep + 2) < cap;
}

static bool is_listed(const struct walk *w, const char *name) {
    for (size_t i = w->first; i < w->to->n; i++)
        if (!strcmp(w->to->v[i].name, name)) return true;
    return false;
}

static void add_found(struct walk *w, const char *label, const char *path) {
    char name[sizeof w->to->v->name];
    snprintf(name, sizeof name, "%s%s%s", w->repo, *label ? ":" : "", label);
    if (w->by_path || !is_listed(w, name)) w->rc |= model_list_add(w->to, w->by_path ? path : name, path, source);
}

static void walk_folder(struct walk *w, const char *dir);

static int on_entry(void *ctx, const char *name) {
    struct walk *w = ctx;
    char path[PATHS_MAX], label[HUB_QUANT_MAX];
    if (*name == '.' || file_join(path, sizeof path, w->snapshot, name, NULL)) return 0;
    if (file_is_dir(path)) {
        if (w->depth < 3) walk_folder(w, path);
    } else if (hub_name_is_weights(path + w->root) && file_exists(path)) {
        hub_name_label(path + w->root, label, sizeof label);
        w->n_gguf++;
        add_found(w, label, path);
    }
    return w->rc;
}

/* A folder that cannot be read has no models. */
static void walk_folder(struct walk *w, const char *dir) {
    const char *was = w->snapshot;
    w->snapshot = dir;
    w->depth++;
    file_list(dir, on_entry, w, NULL);
    w->depth--;
    w->snapshot = was;
}

static int on_file(void *found, const char *name) {
    *(bool *)found |= shard_names_is_weights(name) || !strcmp(name, "model.safetensors.index.json") ||
                      !strcmp(name, "consolidated.safetensors.index.json");
    return 0;
}
static bool has_tensors(const char *dir) {
    bool found = false;
    file_list(dir, on_file, &found, NULL);
    return found;
}

/* Adds the models of a snapshot: its GGUF files, and the checkpoint, whose weights may be absent if it has no others.
 */
static int add_snapshot(struct walk *w, const char *commit) {
    char dir[PATHS_MAX], config[PATHS_MAX];
    if (file_join(dir, sizeof dir, w->snapshots, commit, NULL) || !file_is_dir(dir)) return 0;
    w->root = strlen(dir) + 1;
    w->n_gguf = 0;
    walk_folder(w, dir);
    const bool is_checkpoint = !file_config(config, sizeof config, dir, NULL) && file_exists(config);
    if (is_checkpoint && (!w->n_gguf || has_tensors(dir))) add_found(w, "", dir);
    return w->rc ? ERR_MEMORY : 0;
}

struct commits {
    char (*v)[64];
    size_t n, cap;
};
static int add_commit(void *ctx, const char *name) {
    struct commits *c = ctx;
    if (*name == '.' || strlen(name) >= sizeof *c->v) return 0;
    if (mem_grow(&c->v, &c->cap, c->n + 1, sizeof *c->v)) return ERR_MEMORY;
    snprintf(c->v[c->n++], sizeof *c->v, "%s", name);
    return 0;
}
static int compare_commits(const void *a, const void *b) { return strcmp(a, b); }

static void read_main(struct walk *w, const char *folder) {
    char path[PATHS_MAX], *data;
    size_t n;
    if (file_join(path, sizeof path, folder, "refs/main", NULL) || !file_exists(path) ||
        file_read(path, 4096, &data, &n, NULL))
        return;
    data[trim_end(data, n, " \t\r\n")] = 0;
    if (!strchr(data, '/') && *data != '.') snprintf(w->main, sizeof w->main, "%.63s", data);
    mem_free(data);
}

int hub_cache_list(struct model_list *l, const char *folder, struct error *e) {
    char repo[HUB_NAME_MAX], snapshots[PATHS_MAX];
    struct commits c = {0};
    struct walk w = {.to = l, .repo = repo, .snapshots = snapshots, .first = l->n};
    if (!repo_of(folder, trim_end(folder, strlen(folder), "/"), repo, sizeof repo) ||
        file_join(snapshots, sizeof snapshots, folder, "snapshots", NULL) || !file_is_dir(snapshots))
        return 0;
    read_main(&w, folder);
    int rc = file_list(snapshots, add_commit, &c, e);
    if (!rc && c.n) qsort(c.v, c.n, sizeof *c.v, compare_commits);
    if (!rc && *w.main) rc = add_snapshot(&w, w.main);
    w.by_path = c.n > 1 && l->n == w.first; /* refs/main decides nothing */
    for (size_t i = 0; i < c.n && !rc; i++)
        if (strcmp(c.v[i], w.main) != 0 || l->n == w.first) rc = add_snapshot(&w, c.v[i]);
    if (w.by_path && l->n == w.first + 1) { /* the others were empty */
        char name[sizeof l->v->name];
        if (hub_cache_name(l->v[w.first].dir, name, sizeof name))
            snprintf(l->v[w.first].name, sizeof l->v[w.first].name, "%s", name);
    }
    model_list_sort(l, w.first);
    mem_free(c.v);
    return rc == ERR_MEMORY ? error_set(e, rc, "no memory for the list") : rc;
}

/* --- names ------------------------------------------------------------------------------------ */

bool hub_cache_name(const char *path, char *out, size_t cap) {
    char repo[HUB_NAME_MAX], label[HUB_QUANT_MAX];
    const char *at = NULL;
    for (const char *s = path; (s = strstr(s, "/snapshots/")); s++) at = s;
    if (!at || !repo_of(path, (size_t)(at - path), repo, sizeof repo)) return false;
    const char *commit = at + strlen("/snapshots/"), *inside = strchr(commit, '/');
    if (!*commit) return false;
    if (!inside || !inside[1]) return (size_t)snprintf(out, cap, "%s", repo) < cap;
    const size_t n = strlen(inside);
    if (n < 6 || strcmp(inside + n - 5, ".gguf")) return false;
    hub_name_label(inside + 1, label, sizeof label);
    return (size_t)snprintf(out, cap, "%s:%s", repo, label) < cap;
}

/* Lists the names of the models as a part of an error. */
static int name_all(const struct model_list *l, int code, const char *head, struct error *e) {
    error_set(e, code, "%s", head);
    for (size_t i = 0; i < l->n; i++) {
        const size_t n = strlen(e->text);
        if (n + strlen(l->v[i].name) + 3 < sizeof e->text)
            snprintf(e->text + n, sizeof e->text - n, " %s", l->v[i].name);
    }
    return code;
}

static int choose(const struct model_list *l, const struct hub_name *name, char *out, size_t cap, struct error *e) {
    int best = 0;
    size_t n = 0, at = 0;
    char head[2 * (HUB_NAME_MAX + HUB_QUANT_MAX) + 128];
    for (size_t i = 0; i < l->n; i++) {
        const char *label = strrchr(l->v[i].name, ':'), *dir = l->v[i].dir;
        const bool whole = !label || strchr(label, '/');
        const int match = !*name->quant ? 1 + whole : whole ? 0 : hub_name_match(dir, label + 1, name->quant);
        if (match > best) best = match, n = 0;
        if (match && match == best && !n++) at = i;
    }
    if (n == 1) return (size_t)snprintf(out, cap, "%s", l->v[at].dir) < cap ? 0 : ERR_USAGE;
    if (!n) {
        snprintf(head, sizeof head,
                 "%s:%s: not in the Hugging Face cache; this downloads it: hearth --pull %s:%s; there:", name->repo,
                 name->quant, name->repo, name->quant);
        return name_all(l, ERR_MODEL, head, e);
    }
    snprintf(head, sizeof head, "%s%s%s: contains %zu models; give -m one of:", name->repo, *name->quant ? ":" : "",
             name->quant, l->n);
    return name_all(l, ERR_USAGE, head, e);
}

int hub_cache_find(const char *text, char *out, size_t cap, struct error *e) {
    struct hub_name name;
    struct model_list l = {0};
    char hub[PATHS_MAX], folder[PATHS_MAX];
    if (!hub_name_parse(text, &name) || hub_cache_dir(hub, sizeof hub) ||
        hub_cache_repo(folder, sizeof folder, hub, name.repo, NULL))
        return ERR_CANCELLED;
    int rc = hub_cache_list(&l, folder, e);
    if (!rc) rc = l.n ? choose(&l, &name, out, cap, e) : ERR_CANCELLED;
    model_list_free(&l);
    return rc;
}
