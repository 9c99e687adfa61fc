#include "cli/options/model_stores.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/gguf_file.h"
#include "base/json.h"
#include "cli/options/hub_name.h"

struct store_walk {
    struct model_list *to;
    const char *dir;   /* the folder being listed */
    const char *root;  /* the other program's folder */
    const char *names; /* the folders between the two: "ORG/NAME" */
    int depth, rc;
    bool adapted; /* models with a LoRA adapter, which hearth does not apply, instead of the others */
};

/* Lists a folder below another, with the names of both. */
static void descend(struct store_walk *w, const char *name, int (*fn)(void *ctx, const char *name)) {
    char dir[PATHS_MAX], names[600];
    if (*name == '.' || file_join(dir, sizeof dir, w->dir, name, NULL) || !file_is_dir(dir) ||
        (size_t)snprintf(names, sizeof names, "%s%s%s", w->names, *w->names ? "/" : "", name) >= sizeof names)
        return;
    struct store_walk inside = *w;
    inside.dir = dir;
    inside.names = names;
    inside.depth++;
    file_list(dir, fn, &inside, NULL);
    w->rc = inside.rc;
}

/* --- LM Studio and llama.cpp ------------------------------------------------------------------ */

static int on_lmstudio(void *ctx, const char *name) {
    struct store_walk *w = ctx;
    char path[PATHS_MAX], model[900], label[HUB_QUANT_MAX];
    if (w->depth < 2) descend(w, name, on_lmstudio);
    else if (hub_name_is_weights(name) && !file_join(path, sizeof path, w->dir, name, NULL) && file_exists(path)) {
        hub_name_label(name, label, sizeof label);
        snprintf(model, sizeof model, "%s:%s", w->names, label);
        w->rc = model_list_add(w->to, model, path, "LM Studio");
    }
    return w->rc;
}

static int on_llama(void *ctx, const char *name) {
    struct store_walk *w = ctx;
    char path[PATHS_MAX];
    if (hub_name_is_weights(name) && !file_join(path, sizeof path, w->dir, name, NULL) && file_exists(path))
        w->rc = model_list_add(w->to, name, path, "llama.cpp");
    return w->rc;
}

/* --- ollama ----------------------------------------------------------------------------------- */

static bool is_layer(const struct json *layer, const char *kind) {
    const struct json *type = json_get(layer, "mediaType");
    static const char prefix[] = "application/vnd.ollama.image.";
    const size_t n = sizeof prefix - 1;
    return type && type->type == JSON_STRING && type->n == n + strlen(kind) && !memcmp(type->string, prefix, n) &&
           !memcmp(type->string + n, kind, strlen(kind));
}

/* Reads from a manifest which blob holds the weights, and whether an adapter changes them. */
static bool read_manifest(const char *manifest, const char *root, char *blob, size_t cap, bool *adapted) {
    enum { MAX_BYTES = 1 << 20, DIGEST_CHARS = 71 };
    static const char prefix[] = "sha256:", hex[] = "0123456789abcdef";
    struct arena arena = {0};
    struct json j;
    char *text;
    size_t n;
    bool found = false;
    if (file_read(manifest, MAX_BYTES, &text, &n, NULL)) return false;
    if (!json_parse(&arena, text, n, 0, "manifest", &j, NULL)) {
        const struct json *layers = json_get(&j, "layers");
        for (uint32_t i = 0; layers && layers->type == JSON_ARRAY && i < layers->n; i++) {
            const struct json *digest = json_get(&layers->items[i], "digest");
            *adapted |= is_layer(&layers->items[i], "adapter");
            if (found || !is_layer(&layers->items[i], "model") || !digest || digest->type != JSON_STRING ||
                digest->n != DIGEST_CHARS || memcmp(digest->string, prefix, 7))
                continue;
            found = (size_t)snprintf(blob, cap, "%s/blobs/sha256-%.64s", root, digest->string + 7) < cap &&
                    strspn(strrchr(blob, '-') + 1, hex) == 64 && file_exists(blob);
        }
    }
    arena_free(&arena);
    mem_free(text);
    return found;
}

/* A manifest is the file HOST/NAMESPACE/NAME/TAG. The model's name omits ollama's own host and "library". */
static int on_ollama(void *ctx, const char *name) {
    static const char own[] = "registry.ollama.ai/", library[] = "library/";
    struct store_walk *w = ctx;
    char path[PATHS_MAX], blob[PATHS_MAX], model[900];
    const char *names = w->names;
    bool adapted = false;
    if (w->depth < 3) descend(w, name, on_ollama);
    else if (*name != '.' && !file_join(path, sizeof path, w->dir, name, NULL) && file_exists(path) &&
             read_manifest(path, w->root, blob, sizeof blob, &adapted) && adapted == w->adapted) {
        if (!strncmp(names, own, sizeof own - 1)) names += sizeof own - 1;
        if (names != w->names && !strncmp(names, library, sizeof library - 1)) names += sizeof library - 1;
        snprintf(model, sizeof model, "%s:%s", names, name);
        w->rc = model_list_add(w->to, model, blob, "ollama");
    }
    return w->rc;
}

/* --- all -------------------------------------------------------------------------------------- */

static const struct {
    const char *env, *below;
    int (*fn)(void *ctx, const char *name);
} places[] = {{"HOME", "/.lmstudio/models", on_lmstudio},
              {"HOME", "/.cache/lm-studio/models", on_lmstudio},
              {"LLAMA_CACHE", "", on_llama},
              {"XDG_CACHE_HOME", "/llama.cpp", on_llama},
              {"HOME", "/.cache/llama.cpp", on_llama},
              {"OLLAMA_MODELS", "", on_ollama},
              {"HOME", "/.ollama/models", on_ollama},
              {NULL, "/usr/share/ollama/.ollama/models", on_ollama}}; /* ollama as a system service */

static int list_place(struct model_list *l, size_t i, bool adapted) {
    char root[PATHS_MAX], dir[PATHS_MAX];
    const char *at = places[i].env ? getenv(places[i].env) : "";
    if (!at || (places[i].env && *at != '/') ||
        (size_t)snprintf(root, sizeof root, "%s%s", at, places[i].below) >= sizeof root)
        return 0;
    const bool of_ollama = places[i].fn == on_ollama;
    if ((size_t)snprintf(dir, sizeof dir, "%s%s", root, of_ollama ? "/manifests" : "") >= sizeof dir ||
        !file_is_dir(dir))
        return 0;
    struct store_walk w = {.to = l, .dir = dir, .root = root, .names = "", .adapted = adapted};
    file_list(dir, places[i].fn, &w, NULL);
    return w.rc;
}

/* Whether an earlier place has the same file, as when two variables name one folder. */
static void drop_repeated(struct model_list *l, size_t from) {
    size_t n = from;
    for (size_t i = from; i < l->n; i++) {
        bool repeated = false;
        for (size_t k = from; k < n && !repeated; k++)
            repeated = !strcmp(l->v[k].dir, l->v[i].dir) && !strcmp(l->v[k].name, l->v[i].name);
        if (!repeated) l->v[n++] = l->v[i];
    }
    l->n = n;
}

int model_stores_list(struct model_list *l) {
    const size_t from = l->n;
    int rc = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places && !rc; i++) rc = list_place(l, i, false);
    drop_repeated(l, from);
    return rc;
}
int model_stores_list_adapted(struct model_list *l) {
    int rc = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places && !rc; i++)
        if (places[i].fn == on_ollama) rc = list_place(l, i, true);
    return rc;
}

/* Whether two paths lead to one file. */
static bool is_same_file(const char *a, const char *b) {
    const char *a_name = strrchr(a, '/'), *b_name = strrchr(b, '/');
    if (!strcmp(a, b)) return true;
    if (strcmp(a_name ? a_name + 1 : a, b_name ? b_name + 1 : b)) return false;
    char *const real_a = realpath(a, NULL), *const real_b = realpath(b, NULL);
    const bool same = real_a && real_b && !strcmp(real_a, real_b);
    free(real_a);
    free(real_b);
    return same;
}

bool model_stores_name(const char *path, char *out, size_t cap) {
    struct model_list l = {0};
    bool found = false;
    const char *slash = strrchr(path, '/');
    if ((!strstr(path, "/blobs/sha256-") && !hub_name_is_weights(slash ? slash + 1 : path)) || model_stores_list(&l))
        return false;
    for (size_t i = 0; i < l.n && !found; i++)
        if (is_same_file(l.v[i].dir, path)) found = (size_t)snprintf(out, cap, "%s", l.v[i].name) < cap;
    model_list_free(&l);
    return found;
}
