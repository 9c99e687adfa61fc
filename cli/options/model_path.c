#include "cli/options/model_path.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/file.h"
#include "base/gguf_file.h"
#include "cli/options/hub_cache.h"
#include "cli/options/hub_name.h"
#include "cli/options/model_stores.h"
#include "cli/options/trim.h"

bool model_path_is_url(const char *model) {
    return model && (!strncasecmp(model, "http://", 7) || !strncasecmp(model, "https://", 8));
}

static bool is_model_dir(const char *dir) {
    char path[PATHS_MAX];
    return (!file_config(path, sizeof path, dir, NULL) && file_exists(path)) ||
           gguf_find(dir, path, sizeof path, NULL) > 0;
}
/* True for a GGUF file that represents a model: not a later part of a split one, nor a tower. By its name alone, so
 * that listing a folder opens no file and shows no download that is not complete. */
static bool is_gguf_model(const char *path) {
    int number, count;
    size_t stem, n = strlen(path);
    const char *slash = strrchr(path, '/');
    return n > 5 && !strcmp(path + n - 5, ".gguf") && file_exists(path) &&
           !gguf_names_tower(slash ? slash + 1 : path) && (!gguf_split(path, &number, &count, &stem) || number == 1);
}

/* Appends the names of the models to an error: whole ones, as many as fit. */
static void append_names(const struct model_list *l, struct error *e) {
    enum { REST = 80 }; /* bytes for the number of the others */
    for (size_t i = 0; i < l->n; i++) {
        const char *name = strchr(l->v[i].name, '/') ? l->v[i].name : l->v[i].dir;
        size_t n = strlen(e->text);
        if (n + strlen(name) + REST < sizeof e->text) snprintf(e->text + n, sizeof e->text - n, " %s", name);
        else {
            snprintf(e->text + n, sizeof e->text - n, " and %zu more (hearth --models --model-path DIR lists all)",
                     l->n - i);
            return;
        }
    }
}

/* Copies the only entry, or fails with the names of all. Frees the list. */
static int take_only_model(struct model_list *l, const char *what, char *dir, size_t cap, struct error *e) {
    int rc = 0;
    if (l->n == 1) snprintf(dir, cap, "%s", l->v[0].dir);
    else {
        rc = error_set(e, ERR_USAGE, "%s: contains %zu models; give -m one of:", what, l->n);
        append_names(l, e);
    }
    mem_free(l->v);
    return rc;
}

struct dir_walk { /* through a directory, whose models a list gets */
    struct model_list *to;
    const char *dir;
    int rc;
};

/* Adds the models of HUB/models--ORG--NAME. */
static int add_repo(void *ctx, const char *name) {
    struct dir_walk *w = ctx;
    char repo[PATHS_MAX];
    if (strncmp(name, "models--", 8) || file_join(repo, sizeof repo, w->dir, name, NULL)) return 0;
    w->rc = hub_cache_list(w->to, repo, &(struct error){0}) == ERR_MEMORY ? ERR_MEMORY : 0;
    return w->rc;
}

/* Adds an entry of a directory of models, such as ~/models. */
static int add_dir_entry(void *ctx, const char *name) {
    struct dir_walk *w = ctx;
    char dir[PATHS_MAX];
    if (*name == '.' || file_join(dir, sizeof dir, w->dir, name, NULL) ||
        !(file_is_dir(dir) ? is_model_dir(dir) : is_gguf_model(dir)))
        return 0;
    return w->rc = model_list_add(w->to, name, dir, "model path");
}

/* A directory with only a tokenizer serves --tokenize. */
static bool has_tokenizer(const char *dir) {
    static const char *const names[] = {"tokenizer.json", "tiktoken.model", "tekken.json", "tokenizer.model"};
    char path[PATHS_MAX];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!file_join(path, sizeof path, dir, names[i], NULL) && file_exists(path)) return true;
    return false;
}

/* Resolves a directory to the model in it: a model folder of the cache, the cache itself, or a directory of models. A
 * directory that is a model or has a tokenizer is left as is. ERR_MODEL: no model, or several, which are named. */
static int resolve_dir(const char *given, char *dir, size_t cap, struct error *e) {
    struct model_list l = {0};
    struct dir_walk w = {.to = &l, .dir = given};
    if (!strncmp(given, "ember:", 6) || is_model_dir(given) || has_tokenizer(given)) return 0;
    int rc = hub_cache_list(&l, given, e);
    if (!rc && !l.n) {
        rc = file_list(given, add_repo, &w, e);
        if (!rc && !l.n) rc = file_list(given, add_dir_entry, &w, e);
        if (!rc) rc = w.rc;
        model_list_sort(&l, 0);
    }
    if (!rc && l.n) return take_only_model(&l, given, dir, cap, e);
    mem_free(l.v);
    return rc ? rc : error_set(e, ERR_MODEL, "%s: no model found: neither config.json nor a GGUF file", given);
}

/* --- search ----------------------------------------------------------------------------------- */

/* Copies the i-th directory of --model-path; false after the last. */
static bool path_entry(const struct opts *o, int i, char *out, size_t cap) {
    const char *s = o->v[OPT_MODEL_PATH].text;
    for (; s && i > 0; i--) {
        s = strchr(s, ':');
        if (s) s++;
    }
    if (!s || !*s) return false;
    snprintf(out, cap, "%.*s", (int)strcspn(s, ":"), s);
    return true;
}

static bool is_gguf_file(const char *path) {
    char file[PATHS_MAX];
    return !file_is_dir(path) && gguf_find(path, file, sizeof file, NULL) > 0;
}

/* --- list ------------------------------------------------------------------------------------- */

/* Adds the default model if it is a path elsewhere: by its last component, or whole if another model has that name. */
static int add_default(const struct opts *o, struct model_list *l) {
    const char *path = o->default_model, *name;
    char dir[PATHS_MAX];
    if (!path || !strchr(path, '/') || strlen(path) >= sizeof dir) return 0;
    snprintf(dir, sizeof dir, "%s", path);
    if (file_is_dir(dir) ? resolve_dir(path, dir, sizeof dir, &(struct error){0}) : !is_gguf_model(dir)) return 0;
    name = strrchr(path, '/') + 1;
    for (size_t i = 0; i < l->n; i++) {
        if (!strcmp(l->v[i].dir, dir)) return 0;
        const char *const slash = strrchr(l->v[i].name, '/');
        if (!strcasecmp(slash ? slash + 1 : l->v[i].name, name)) name = path;
    }
    return model_list_add(l, *name ? name : path, dir, "default");
}

/* Adds a model that -m or /model named by its path, and the models beside it, by their paths. */
static int add_neighbours(const struct opts *o, struct model_list *l) {
    const struct opt_value *m = &o->v[OPT_MODEL];
    struct model_list found = {0};
    char folder[PATHS_MAX];
    if (m->origin < ORIGIN_FLAG || !m->text || !strchr(m->text, '/') || model_path_is_url(m->text) ||
        !(file_exists(m->text) || is_model_dir(m->text)))
        return 0;
    size_t at = trim_end(m->text, strlen(m->text), "/");
    while (at && m->text[at - 1] != '/') at--;
    snprintf(folder, sizeof folder, "%.*s", at > 1 ? (int)at - 1 : 1, at ? m->text : ".");
    struct dir_walk w = {.to = &found, .dir = folder};
    int rc = file_list(folder, add_dir_entry, &w, &(struct error){0}) ? 0 : w.rc;
    for (size_t i = 0; i < found.n && !rc; i++) {
        bool known = false;
        for (size_t k = 0; k < l->n && !known; k++) known = !strcmp(l->v[k].dir, found.v[i].dir);
        if (!known) rc = model_list_add(l, found.v[i].dir, found.v[i].dir, "beside -m");
    }
    model_list_free(&found);
    return rc;
}

int model_path_list(const struct opts *o, struct model_list *l, struct error *e) {
    char dir[PATHS_MAX];
    struct dir_walk w = {.to = l, .dir = dir};
    *l = (struct model_list){0};
    int rc = file_is_dir("ember:") ? model_list_add(l, "ember", "ember:", "built in") : 0;
    for (int i = 0; !rc && path_entry(o, i, dir, sizeof dir); i++)
        if (file_is_dir(dir) && !(rc = file_list(dir, add_dir_entry, &w, e))) rc = w.rc;
    if (!rc && !hub_cache_dir(dir, sizeof dir) && file_is_dir(dir) && !(rc = file_list(dir, add_repo, &w, e)))
        rc = w.rc;
    if (!rc) rc = model_stores_list(l);
    if (!rc) rc = add_default(o, l);
    if (!rc) rc = add_neighbours(o, l);
    if (rc == ERR_MEMORY) error_set(e, rc, "no memory for the list");
    if (rc) model_list_free(l);
    else model_list_sort(l, 1);
    return rc;
}

/* --- find ------------------------------------------------------------------------------------- */

/* Whether a text means a model: 3 it is the name, 2 the beginning of the name, 1 a part of it; 0 no. Without regard to
 * case; the name counts also without its ORG/, its :QUANT, and :latest of ollama's. */
static int match_name(const char *name, const char *text) {
    const char *slash = strchr(name, '/'), *last = slash ? slash + 1 : name, *colon = strrchr(last, ':');
    const size_t k = strlen(text);
    if (!strcasecmp(name, text) || !strcasecmp(last, text)) return 3;
    if (colon && !strcasecmp(colon, ":latest") && (size_t)(colon - name) == k && !strncasecmp(name, text, k)) return 3;
    if (!strncasecmp(name, text, k) || !strncasecmp(last, text, k)) return 2;
    return strcasestr(name, text) != NULL;
}

/* Finds a model by its name, or by a part of one name. ERR_CANCELLED: there is none; ERR_USAGE: several, which are
 * named. */
static int find_similar(const struct opts *o, const char *text, char *out, size_t cap, struct error *e) {
    struct model_list l = {0}, found = {0};
    int best = 0, rc = !*text || strchr("/.~", *text) ? ERR_CANCELLED : model_path_list(o, &l, e);
    for (size_t i = 0; i < l.n && !rc; i++) {
        const int match = match_name(l.v[i].name, text);
        if (match > best) best = match, found.n = 0;
        if (match && match == best) rc = model_list_add(&found, l.v[i].name, l.v[i].dir, NULL);
    }
    if (!rc && found.n == 1) snprintf(out, cap, "%s", found.v[0].dir);
    else if (!rc && !found.n) rc = ERR_CANCELLED;
    else if (!rc) {
        rc = error_set(e, ERR_USAGE, "-m %s is ambiguous:", text);
        for (size_t i = 0; i < found.n && strlen(e->text) + strlen(found.v[i].name) + 3 < sizeof e->text; i++) {
            const size_t n = strlen(e->text);
            snprintf(e->text + n, sizeof e->text - n, "%s %s", i ? "," : "", found.v[i].name);
        }
    }
    model_list_free(&l);
    model_list_free(&found);
    return rc == ERR_MEMORY ? error_set(e, rc, "no memory for the list of models") : rc;
}

static bool has_adapter(const char *name) {
    struct model_list l = {0};
    bool found = false;
    if (!model_stores_list_adapted(&l))
        for (size_t i = 0; i < l.n; i++) found |= match_name(l.v[i].name, name) == 3;
    model_list_free(&l);
    return found;
}

/* Reports an unknown model, and how to download one. */
static int not_found(const struct opts *o, const char *m, struct error *e) {
    if (has_adapter(m))
        return error_set(
            e, ERR_MODEL,
            "%s: ollama keeps a LoRA adapter beside this model, which hearth does not apply; merge it into "
            "the weights, or name the model that it was made for",
            m);
    const size_t address = strcspn(m, "/"), name = strcspn(m, ":");
    if (name && name + 1 < address && name + 1 + strspn(m + name + 1, "0123456789") == address) /* HOST:PORT */
        return error_set(e, ERR_MODEL, "%s: no such directory or GGUF file; for a server: -m http://%.*s/v1", m,
                         (int)address, m);
    struct hub_name hub;
    if (hub_name_parse(m, &hub))
        return error_set(e, ERR_MODEL,
                         "%s: no such directory or GGUF file, and not in the Hugging Face cache; this downloads it: "
                         "hearth --pull %s",
                         m, m);
    if (strchr(m, '/')) return error_set(e, ERR_MODEL, "%s: no such directory or GGUF file", m);
    return error_set(e, ERR_MODEL,
                     "%s: no such directory or GGUF file, nor one in the model path%s%s; hearth --models lists the "
                     "models on this machine, and hearth --pull ORG/NAME downloads one",
                     m, o->v[OPT_MODEL_PATH].text ? " " : "",
                     o->v[OPT_MODEL_PATH].text ? o->v[OPT_MODEL_PATH].text : "");
}

/* Takes a file of a checkpoint, config.json, params.json or a part of its weights, for its directory. */
static bool find_dir_of(const char *file, char *out, size_t cap) {
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    const size_t n = strlen(name), weights = strlen(".safetensors");
    if (strcmp(name, "config.json") && strcmp(name, "params.json") && !strstr(name, ".safetensors.index.json") &&
        (n < weights || strcmp(name + n - weights, ".safetensors")))
        return false;
    snprintf(out, cap, "%.*s", slash ? (int)(slash - file + 1) : 1, slash ? file : ".");
    return is_model_dir(out);
}

/* Finds a bare name, one without a slash, in the directories of --model-path. */
static bool find_in_path(const struct opts *o, const char *name, char *out, size_t cap) {
    char dir[PATHS_MAX];
    for (int i = 0; !strchr(name, '/') && path_entry(o, i, dir, sizeof dir); i++)
        if (!file_join(out, cap, dir, name, NULL) && (file_is_dir(out) || is_gguf_file(out))) return true;
    return false;
}

int model_path_find(const struct opts *o, char *out, size_t cap, struct error *e) {
    const char *m = o->v[OPT_MODEL].text;
    if (model_path_is_url(m))
        return error_set(e, ERR_USAGE, "-m %.200s: a remote engine cannot be used here; give a model on this machine",
                         m);
    if (!m) m = "ember:";
    if (strlen(m) >= cap) return error_set(e, ERR_USAGE, "-m: the path is too long");
    snprintf(out, cap, "%s", m);
    if (file_is_dir(m)) { /* what has the name here and is no model does not hide a model */
        int rc = resolve_dir(m, out, cap, e);
        return rc && find_in_path(o, m, out, cap) ? 0 : rc;
    }
    if (!strncmp(m, "ember:", 6))
        return error_set(e, ERR_MODEL, "this build has no built-in model; give one with -m DIR");
    if (is_gguf_file(m)) return 0;
    if (file_exists(m) && find_dir_of(m, out, cap)) return 0;
    if (find_in_path(o, m, out, cap)) return 0;
    if (file_exists(m))
        return error_set(e, ERR_MODEL, "%s: not a GGUF file; -m takes a GGUF file or a checkpoint directory", m);
    if (!strcmp(m, "ember")) { /* the name in /model and --models */
        snprintf(out, cap, "ember:");
        if (file_is_dir(out)) return 0;
    }
    int rc = hub_cache_find(m, out, cap, e);
    if (rc == ERR_CANCELLED) rc = find_similar(o, m, out, cap, e);
    return rc == ERR_CANCELLED ? not_found(o, m, e) : rc;
}

void model_path_name(const char *path, char *out, size_t cap) {
    const char *slash = strrchr(path, '/');
    if (!strncmp(path, "ember:", 6)) snprintf(out, cap, "ember");
    else if (!hub_cache_name(path, out, cap) && !model_stores_name(path, out, cap))
        snprintf(out, cap, "%s", slash && slash[1] ? slash + 1 : path);
}
