#include "cli/modes/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/terminal/out.h"
#include "cli/terminal/progress.h"
#include "engine/base/file.h"
#include "engine/base/gguf.h"
#include "engine/base/json.h"

struct model_list {
    struct model *v;
    size_t n, cap;
    const char *dir; /* being listed */
    bool hub;
};

static bool is_model_dir(const char *dir) {
    char path[PATHS_MAX];
    return (!file_join(path, sizeof path, dir, "config.json", NULL) && file_exists(path)) || gguf_find(dir, path, sizeof path, NULL) > 0;
}
/* True for a GGUF file that represents a model: not a later part of a split one. */
static bool is_gguf_model(const char *path) {
    char file[PATHS_MAX];
    int number, count;
    size_t stem;
    return !file_is_dir(path) && gguf_find(path, file, sizeof file, NULL) > 0 && (!gguf_split(path, &number, &count, &stem) || number == 1);
}

static int add_model(struct model_list *l, const char *name, const char *dir) {
    if (mem_grow(&l->v, &l->cap, l->n + 1, sizeof *l->v)) return ERR_MEMORY;
    struct model *m = &l->v[l->n++];
    snprintf(m->name, sizeof m->name, "%s", name);
    snprintf(m->dir, sizeof m->dir, "%s", dir);
    return 0;
}

static int compare_name(const void *a, const void *b) { return strcmp(((const struct model *)a)->name, ((const struct model *)b)->name); }

/* --- the cache of Hugging Face --------------------------------------------------------------------------------------- */

/* Finds the cache directory by Hugging Face's own variables. */
static int hub_dir(char *out, size_t cap) {
    static const struct {
        const char *env, *below;
    } put_model_rows[] = {{"HF_HUB_CACHE", ""}, {"HF_HOME", "/hub"}, {"XDG_CACHE_HOME", "/huggingface/hub"}, {"HOME", "/.cache/huggingface/hub"}};
    for (size_t i = 0; i < sizeof put_model_rows / sizeof *put_model_rows; i++) {
        const char *at = getenv(put_model_rows[i].env);
        if (!at || *at != '/') continue;
        return (size_t)snprintf(out, cap, "%s%s", at, put_model_rows[i].below) < cap && file_is_dir(out) ? 0 : ERR_RUNTIME;
    }
    return ERR_RUNTIME;
}

static int add_snapshot(void *ctx, const char *name) {
    struct model_list *l = ctx;
    char dir[PATHS_MAX];
    if (*name == '.' || file_join(dir, sizeof dir, l->dir, name, NULL) || !is_model_dir(dir)) return 0;
    return add_model(l, name, dir);
}

/* Lists the snapshots of HUB/models--ORG--NAME. */
static int list_snapshots(struct model_list *l, const char *repo, struct error *e) {
    char dir[PATHS_MAX];
    *l = (struct model_list){.dir = dir};
    if (file_join(dir, sizeof dir, repo, "snapshots", NULL) || !file_is_dir(dir)) return 0;
    int rc = file_list(dir, add_snapshot, l, e);
    l->dir = NULL;
    if (l->n) qsort(l->v, l->n, sizeof *l->v, compare_name);
    return rc;
}

/* Copies the only entry, or fails with the names of all. Frees the list. */
static int take_only_model(struct model_list *l, const char *what, char *dir, size_t cap, struct error *e) {
    int rc = 0;
    if (l->n == 1) snprintf(dir, cap, "%s", l->v[0].dir);
    else {
        rc = error_set(e, ERR_USAGE, "%s: contains %zu models; give -m one of:", what, l->n);
        for (size_t i = 0; i < l->n; i++) {
            size_t n = strlen(e->text);
            snprintf(e->text + n, sizeof e->text - n, " %s", strchr(l->v[i].name, '/') ? l->v[i].name : l->v[i].dir);
        }
    }
    mem_free(l->v);
    return rc;
}

int models_resolve_snapshot(const char *name, char *dir, size_t cap, struct error *e) {
    char hub[PATHS_MAX], repo[PATHS_MAX];
    const char *slash = strchr(name, '/');
    struct model_list l;
    if (!slash || slash == name || !slash[1] || strchr(slash + 1, '/') || *name == '.' || *name == '~') return ERR_CANCELLED;
    if (hub_dir(hub, sizeof hub)) return ERR_CANCELLED;
    if ((size_t)snprintf(repo, sizeof repo, "%s/models--%.*s--%s", hub, (int)(slash - name), name, slash + 1) >= sizeof repo) return ERR_CANCELLED;
    int rc = list_snapshots(&l, repo, e);
    if (!rc && !l.n) rc = ERR_CANCELLED;
    if (!rc) return take_only_model(&l, name, dir, cap, e);
    mem_free(l.v);
    return rc;
}

/* Adds models--ORG--NAME as ORG/NAME if it has a snapshot. */
static int add_repo(void *ctx, const char *name) {
    struct model_list *l = ctx, inside;
    char repo[PATHS_MAX], plain[sizeof l->v->name];
    const char *org = name + 8, *sep = strstr(name, "--");
    if (strncmp(name, "models--", 8) || !(sep = strstr(org, "--")) || file_join(repo, sizeof repo, l->dir, name, NULL)) return 0;
    snprintf(plain, sizeof plain, "%.*s/%s", (int)(sep - org), org, sep + 2);
    int rc = list_snapshots(&inside, repo, &(struct error){0});
    for (size_t i = 0; i < inside.n && !rc; i++) rc = add_model(l, inside.n > 1 ? inside.v[i].dir : plain, inside.v[i].dir);
    mem_free(inside.v);
    return rc == ERR_MEMORY ? rc : 0;
}

/* Adds an entry of a directory of models, such as ~/models. */
static int add_dir_entry(void *ctx, const char *name) {
    struct model_list *l = ctx;
    char dir[PATHS_MAX];
    if (*name == '.' || file_join(dir, sizeof dir, l->dir, name, NULL) || !(file_is_dir(dir) ? is_model_dir(dir) : is_gguf_model(dir))) return 0;
    return add_model(l, name, dir);
}

/* A directory with only a tokenizer serves --tokenize. */
static bool has_tokenizer(const char *dir) {
    static const char *const names[] = {"tokenizer.json", "tiktoken.model"};
    char path[PATHS_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!file_join(path, sizeof path, dir, names[i], NULL) && file_exists(path)) return true;
    return false;
}

int models_resolve_dir(const char *given, char *dir, size_t cap, struct error *e) {
    struct model_list l;
    if (!strncmp(given, "ember:", 6) || is_model_dir(given) || has_tokenizer(given)) return 0;
    int rc = list_snapshots(&l, given, e);
    if (!rc && !l.n) {
        l.dir = given;
        rc = file_list(given, add_repo, &l, e);
        if (!rc && !l.n) rc = file_list(given, add_dir_entry, &l, e);
        if (l.n) qsort(l.v, l.n, sizeof *l.v, compare_name);
    }
    if (!rc && l.n) return take_only_model(&l, given, dir, cap, e);
    mem_free(l.v);
    return rc ? rc : error_set(e, ERR_MODEL, "%s: no model found: neither config.json nor a GGUF file", given);
}

/* --- list ------------------------------------------------------------------------------------------------------------ */

int models_list(const struct opts *o, struct model **out, size_t *n, struct error *e) {
    struct model_list l = {0};
    char dir[PATHS_MAX];
    int rc = file_is_dir("ember:") ? add_model(&l, "ember", "ember:") : 0;
    l.dir = dir;
    for (int i = 0; !rc && open_model_path_entry(o, i, dir, sizeof dir); i++)
        if (file_is_dir(dir)) rc = file_list(dir, add_dir_entry, &l, e);
    if (!rc && !hub_dir(dir, sizeof dir)) rc = file_list(dir, add_repo, &l, e);
    if (rc == ERR_MEMORY) error_set(e, rc, "no memory for the list");
    if (rc) mem_free(l.v);
    if (rc) return rc;
    if (l.n > 1) qsort(l.v + 1, l.n - 1, sizeof *l.v, compare_name);
    *out = l.v;
    *n = l.n;
    return 0;
}

/* --- properties ------------------------------------------------------------------------------------------------------ */

struct model_facts {
    char family[64];
    int64_t bytes, token_bytes; /* all weights; those read for one generated token */
    struct error error;
    int rc;
};
static void inspect_facts(struct app *a, const struct model *m, struct model_facts *f) {
    struct engine_params p;
    struct buf json = {0};
    struct arena arena = {0};
    struct json root;
    *f = (struct model_facts){0};
    open_engine_params(a, &p);
    p = (struct engine_params){.dir = m->dir, .kv = p.kv, .force = true};
    f->rc = engine_inspect(&p, &json, &f->error);
    if (!f->rc) f->rc = json_parse(&arena, json.data, json.len, 0, "inspection", &root, &f->error);
    if (!f->rc) {
        const struct json *family = json_get(&root, "family");
        if (family && family->type == JSON_STRING) snprintf(f->family, sizeof f->family, "%.*s", (int)family->n, family->string);
        f->bytes = json_int(json_path(&root, "bytes.all"), 0);
        f->token_bytes = json_int(json_path(&root, "bytes.per_token"), 0);
    }
    arena_free(&arena);
    buf_free(&json);
}

/* Measures memory bandwidth with the open engine, or with the built-in model's. */
static double measure_bandwidth(struct app *a) {
    struct engine *own = NULL;
    struct engine_params p = {.dir = "ember:"};
    struct error e;
    if (!a->engine && engine_open(&own, &p, &e)) return 0;
    double rate = engine_read_bandwidth(a->engine ? a->engine : own, 1);
    engine_close(&own);
    return rate;
}

static void put_model_row(const struct model *m, int width, const struct model_facts *f, double rate, bool json, struct buf *out) {
    char bytes[32];
    bool fits = (uint64_t)f->bytes < mem_total();
    double speed = fits && f->token_bytes > 0 && rate > 0 ? rate / (double)f->token_bytes : 0;
    if (json) {
        buf_str(out, "{\"name\": ");
        out_json_string(out, m->name, strlen(m->name));
        buf_str(out, ", \"dir\": ");
        out_json_string(out, m->dir, strlen(m->dir));
        if (f->rc) {
            buf_str(out, ", \"error\": ");
            out_json_string(out, f->error.text, strlen(f->error.text));
        } else
            buf_fmt(out, ", \"family\": \"%s\", \"bytes\": %lld, \"token_bytes\": %lld, \"fits\": %s, \"tokens_per_s_at_most\": %.3f", f->family,
                    (long long)f->bytes, (long long)f->token_bytes, fits ? "true" : "false", speed);
        buf_char(out, '}');
    } else if (f->rc) buf_fmt(out, "%-*s  cannot be opened: %s", width, m->name, f->error.text);
    else {
        buf_fmt(out, "%-*s  %-14s %8s  ", width, m->name, f->family, report_bytes((uint64_t)f->bytes, bytes, sizeof bytes));
        if (fits) buf_fmt(out, "fits in memory, at most %.*f tok/s", speed < 10 ? 1 : 0, speed);
        else buf_fmt(out, "larger than the %s of memory: read from disk", report_bytes(mem_total(), bytes, sizeof bytes));
    }
}

static int put_model_rows(struct app *a, bool json, struct buf *out, struct error *e) {
    struct model *v;
    struct model_facts f;
    size_t n;
    int rc = models_list(&a->opts, &v, &n, e);
    if (rc) return rc;
    progress_begin("looking for models");
    double rate = measure_bandwidth(a);
    int width = 0;
    for (size_t i = 0; i < n; i++)
        if ((int)strlen(v[i].name) > width) width = (int)strlen(v[i].name);
    for (size_t i = 0; i < n; i++) {
        inspect_facts(a, &v[i], &f);
        buf_str(out, json && i ? ",\n " : "");
        put_model_row(&v[i], width, &f, rate, json, out);
        if (!json) buf_char(out, '\n');
    }
    progress_clear();
    mem_free(v);
    return out->failed ? error_set(e, ERR_MEMORY, "no memory for the list") : 0;
}

int models_text(struct app *a, struct buf *out, struct error *e) { return put_model_rows(a, false, out, e); }

int models_print(struct app *a, struct error *e) {
    struct buf b = {0};
    bool json = a->opts.v[OPT_JSON].on;
    if (json) buf_char(&b, '[');
    int rc = put_model_rows(a, json, &b, e);
    if (json) buf_str(&b, "]\n");
    if (!rc) out_write(b.data, b.len);
    buf_free(&b);
    return rc;
}
