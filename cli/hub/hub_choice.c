#include "cli/hub/hub_choice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/gguf_file.h"
#include "base/json.h"
#include "base/shard_names.h"

int hub_choice_add(struct hub_set *s, const struct hub_file *f, struct error *e) {
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i] == f) return 0;
    if (mem_grow(&s->v, &s->cap, s->n + 1, sizeof *s->v)) return error_set(e, ERR_MEMORY, "no memory");
    s->v[s->n++] = f;
    return 0;
}

uint64_t hub_choice_bytes(const struct hub_set *s) {
    uint64_t sum = 0;
    for (size_t i = 0; i < s->n; i++) sum += s->v[i]->size;
    return sum;
}

/* --- quants ----------------------------------------------------------------------------------- */

/* Writes the name of a part of a split set, or of the only file. */
static void part_name(const struct hub_file *first, int number, char *out, size_t cap) {
    int one, count;
    size_t stem;
    if (!gguf_split(first->path, &one, &count, &stem)) snprintf(out, cap, "%s", first->path);
    else snprintf(out, cap, "%.*s-%05d-of-%05d.gguf", (int)stem, first->path, number, count);
}

static void read_parts(const struct hub_listing *l, struct hub_quant *q) {
    int number;
    size_t stem;
    char name[1100];
    if (!gguf_split(q->first->path, &number, &q->n_parts, &stem)) q->n_parts = 1;
    for (int i = 1; i <= q->n_parts; i++) {
        part_name(q->first, i, name, sizeof name);
        const struct hub_file *f = hub_listing_find(l, name);
        if (f) q->bytes += f->size;
        else if (!*q->missing) snprintf(q->missing, sizeof q->missing, "%.290s", name);
    }
}

static const char *name_of(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* How near a file is to a model: 2 beside it, 1 in a folder above, 0 elsewhere. */
static int nearness(const char *path, const char *model) {
    const size_t folder = (size_t)(name_of(path) - path);
    if (strncmp(path, model, folder) != 0) return 0;
    return folder == (size_t)(name_of(model) - model) ? 2 : 1;
}

/* Selects the file of a model's tower: a repository may have a folder for each size of a model, so the nearest ones; of
 * these the format in which the engine would take it. */
static const struct hub_file *select_tower(const struct hub_listing *l, const struct hub_file *model) {
    const struct hub_file *best = NULL;
    int number, count, near = 0, rank = 0;
    size_t stem;
    for (size_t i = 0; i < l->n; i++) {
        const char *path = l->files[i].path, *name = name_of(path);
        if (!gguf_names_tower(name) || (gguf_split(name, &number, &count, &stem) && count > 1)) continue;
        const int n = nearness(path, model->path), r = gguf_tower_rank(name);
        if (best && (n < near || (n == near && r >= rank))) continue;
        best = &l->files[i], near = n, rank = r;
    }
    return best;
}

static int compare_quants(const void *a, const void *b) {
    const struct hub_quant *x = a, *y = b;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes ? 1 : strcmp(x->label, y->label);
}

/* Names files that share a label by their paths: a repository may have models of several sizes. */
static void make_labels_unique(struct hub_quants *q) {
    for (size_t i = 0; i < q->n; i++) {
        bool shared = false;
        for (size_t k = i + 1; k < q->n; k++)
            if (!strcmp(q->v[k].label, q->v[i].label) && strcmp(q->v[k].label, q->v[k].first->path) != 0) {
                snprintf(q->v[k].label, sizeof q->v[k].label, "%.99s", q->v[k].first->path);
                shared = true;
            }
        if (shared) snprintf(q->v[i].label, sizeof q->v[i].label, "%.99s", q->v[i].first->path);
    }
}

int hub_choice_quants(const struct hub_listing *l, struct hub_quants *out, struct error *e) {
    int number, count;
    size_t stem;
    *out = (struct hub_quants){0};
    for (size_t i = 0; i < l->n; i++) {
        char first[1100];
        const struct hub_file *f = &l->files[i];
        bool is_first = hub_name_is_weights(f->path);
        if (!is_first && gguf_split(f->path, &number, &count, &stem) && number > 1) { /* a set without its first part */
            part_name(f, 1, first, sizeof first);
            is_first = hub_name_is_weights(first) && !hub_listing_find(l, first);
            for (size_t k = 0; k < out->n; k++)
                if (is_first && gguf_split(out->v[k].first->path, &number, &count, &stem) &&
                    !strncmp(out->v[k].first->path, first, stem))
                    is_first = false;
        }
        if (!is_first) continue;
        if (mem_grow(&out->v, &out->cap, out->n + 1, sizeof *out->v)) return error_set(e, ERR_MEMORY, "no memory");
        struct hub_quant *q = &out->v[out->n++];
        *q = (struct hub_quant){.first = f};
        hub_name_label(f->path, q->label, sizeof q->label);
        read_parts(l, q);
        q->tower = select_tower(l, f);
    }
    if (out->n) qsort(out->v, out->n, sizeof *out->v, compare_quants);
    make_labels_unique(out);
    return 0;
}

int hub_choice_find(const struct hub_listing *l, const struct hub_quants *q, const char *wanted, size_t *at,
                    struct error *e) {
    int best = 0, n = 0;
    for (size_t i = 0; i < q->n; i++) {
        const int match = hub_name_match(q->v[i].first->path, q->v[i].label, wanted);
        if (match > best) best = match, n = 0;
        if (!match || match < best) continue;
        if (!n++) *at = i;
    }
    if (n == 1) {
        if (!*q->v[*at].missing) return 0;
        return error_set(e, ERR_RUNTIME, "%s:%s: the repository lacks %s, so the set is incomplete", l->repo,
                         q->v[*at].label, q->v[*at].missing);
    }
    if (!q->n) return error_set(e, ERR_RUNTIME, "%s: has no GGUF files, so :%s names nothing in it", l->repo, wanted);
    error_set(e, ERR_RUNTIME,
              n ? "%s: %s is the beginning of several quants:" : "%s: has no quant %s; it has:", l->repo, wanted);
    for (size_t i = 0; i < q->n; i++) {
        const size_t k = strlen(e->text);
        if (k + strlen(q->v[i].label) + 2 < sizeof e->text)
            snprintf(e->text + k, sizeof e->text - k, " %s", q->v[i].label);
    }
    return ERR_RUNTIME;
}

uint64_t hub_choice_quant_bytes(const struct hub_quant *q) { return q->bytes + (q->tower ? q->tower->size : 0); }

void hub_choice_tower_path(const struct hub_quant *q, char *out, size_t cap) {
    const char *model = q->first->path;
    snprintf(out, cap, "%.*s%s", (int)(name_of(model) - model), model, name_of(q->tower->path));
}

int hub_choice_add_quant(const struct hub_listing *l, const struct hub_quant *q, struct hub_set *s, struct error *e) {
    char name[1100];
    int rc = 0;
    for (int i = 1; i <= q->n_parts && !rc; i++) {
        part_name(q->first, i, name, sizeof name);
        rc = hub_choice_add(s, hub_listing_find(l, name), e);
    }
    return rc || !q->tower ? rc : hub_choice_add(s, q->tower, e);
}

bool hub_choice_fits(uint64_t bytes, uint64_t memory) {
    const uint64_t spare = bytes / 16 + (512ull << 20); /* KV cache, workspaces, and the system */
    return bytes < memory && spare < memory - bytes;
}

static bool is_plain(const struct hub_quant *q) { return strstr(q->label, "F16") || strstr(q->label, "F32"); }

size_t hub_choice_propose(const struct hub_quants *q, uint64_t memory, double rate, double share) {
    enum { FAST = 10 };
    bool only_plain = true;
    size_t fast = q->n, usual = q->n, smallest = q->n;
    uint64_t usual_bytes = UINT64_MAX;
    for (size_t i = 0; i < q->n; i++) {
        only_plain &= is_plain(&q->v[i]) || *q->v[i].missing;
        if (!strcasecmp(q->v[i].label, "Q4_K_M")) usual_bytes = q->v[i].bytes;
    }
    for (size_t i = 0; i < q->n; i++) { /* smallest first */
        const struct hub_quant *it = &q->v[i];
        if (*it->missing || (is_plain(it) && !only_plain)) continue;
        if (smallest == q->n) smallest = i;
        if (!hub_choice_fits(hub_choice_quant_bytes(it), memory)) continue;
        if (share > 0 && rate > 0 && rate / (share * (double)it->bytes) >= FAST) fast = i;
        if (usual == q->n || it->bytes <= usual_bytes) usual = i;
    }
    return fast < q->n ? fast : usual < q->n ? usual : smallest;
}

/* --- safetensors ------------------------------------------------------------------------------ */

static const char *const config_names[] = {"config.json", "params.json"};
static const char *const index_names[] = {"model.safetensors.index.json", "model.safetensors",
                                          "consolidated.safetensors.index.json", "consolidated.safetensors"};
/* as tokenizer_open(), chat_template_open() and the engine read them */
static const char *const text_names[] = {
    "tokenizer.json",      "tokenizer_config.json", "tokenizer.model",
    "tiktoken.model",      "tekken.json",           "special_tokens_map.json",
    "chat_template.jinja", "chat_template.json",    "additional_chat_templates/tool_use.jinja"};

static const struct hub_file *first_of(const struct hub_listing *l, const char *const *names, size_t n) {
    const struct hub_file *f = NULL;
    for (size_t i = 0; i < n && !f; i++) f = hub_listing_find(l, names[i]);
    return f;
}
static const struct hub_file *weights_of(const struct hub_listing *l) {
    return first_of(l, index_names, sizeof index_names / sizeof *index_names);
}

static bool has_file(const void *listing, const char *name) { return hub_listing_find(listing, name); }
/* The files of a repository without a list of them, as checkpoint_open() takes them: all shards that their names count,
 * or the only file of weights, if no GGUF file is beside it. 0: there are none. */
static int numbered_of(const struct hub_listing *l) { return weights_of(l) ? 0 : shard_names_find(has_file, l); }
static const struct hub_file *only_of(const struct hub_listing *l, size_t *n) {
    const struct hub_file *only = NULL;
    bool has_gguf = false;
    *n = 0;
    for (size_t i = 0; i < l->n; i++) {
        has_gguf |= hub_name_is_weights(l->files[i].path);
        if (shard_names_is_weights(l->files[i].path)) only = &l->files[i], ++*n;
    }
    return *n == 1 && !has_gguf ? only : NULL;
}

int hub_choice_fail(const struct hub_listing *l, struct error *e) {
    size_t n;
    only_of(l, &n);
    if (n > 1 && !weights_of(l) && !numbered_of(l))
        return error_set(
            e, ERR_RUNTIME,
            "%s: has %zu files of safetensors, but no list of them (model.safetensors.index.json): nothing "
            "tells which are the model's",
            l->repo, n);
    return error_set(e, ERR_RUNTIME,
                     "%s: has no GGUF file and no safetensors with config.json, so there is nothing that hearth reads",
                     l->repo);
}

bool hub_choice_has_tensors(const struct hub_listing *l) {
    size_t n;
    return (weights_of(l) || numbered_of(l) || only_of(l, &n)) &&
           first_of(l, config_names, sizeof config_names / sizeof *config_names);
}

static int add_named(const struct hub_listing *l, const char *name, struct hub_set *s, struct error *e) {
    const struct hub_file *f = hub_listing_find(l, name);
    return f ? hub_choice_add(s, f, e) : 0;
}

int hub_choice_add_settings(const struct hub_listing *l, struct hub_set *s, const struct hub_file **index,
                            struct error *e) {
    const struct hub_file *weights = weights_of(l);
    int rc = 0;
    *index = NULL;
    for (size_t i = 0; i < sizeof config_names / sizeof *config_names && !rc; i++)
        rc = add_named(l, config_names[i], s, e);
    if (!rc) rc = add_named(l, "generation_config.json", s, e);
    if (!rc && weights && strstr(weights->path, ".index.json")) rc = hub_choice_add(s, *index = weights, e);
    return rc;
}

int hub_choice_add_texts(const struct hub_listing *l, struct hub_set *s, struct error *e) {
    int rc = 0;
    for (size_t i = 0; i < sizeof text_names / sizeof *text_names && !rc; i++) rc = add_named(l, text_names[i], s, e);
    return rc;
}

/* Writes the path of a file of weights that an index names. Returns false if it may not name it. */
static bool put_shard_path(const struct json *file, char *out, size_t cap) {
    static const char end[] = ".safetensors";
    const size_t m = sizeof end - 1;
    size_t n;
    const char *path = file->type == JSON_STRING ? shard_names_path(file->string, file->n, &n) : NULL;
    if (!path || n <= m || n >= cap || memcmp(path + n - m, end, m) != 0) return false;
    memcpy(out, path, n);
    out[n] = 0;
    return true;
}

/* Whether an index names a file that is there. */
static bool names_any(const struct hub_listing *l, const struct json *map) {
    for (uint32_t i = 0; i < map->n; i++) {
        char name[1100];
        if (!put_shard_path(&map->items[2 * i + 1], name, sizeof name) || hub_listing_find(l, name)) return true;
    }
    return false;
}

/* Adds the shards by their usual names. n: how many. */
static int add_numbered(const struct hub_listing *l, int n, struct hub_set *s, struct error *e) {
    char name[SHARD_NAME_SIZE];
    int rc = 0;
    for (int i = 1; !rc && i <= n; i++) {
        shard_names_put(has_file, l, i, n, name);
        rc = hub_choice_add(s, hub_listing_find(l, name), e);
    }
    return rc;
}

int hub_choice_add_shards(const struct hub_listing *l, const char *index, size_t n, struct hub_set *s,
                          struct error *e) {
    enum { MAX_SHARDS = 4096 };
    struct arena arena = {0};
    struct json j;
    if (!index && numbered_of(l)) return add_numbered(l, numbered_of(l), s, e);
    size_t n_files;
    if (!index) return hub_choice_add(s, weights_of(l) ? weights_of(l) : only_of(l, &n_files), e);
    int rc = json_parse(&arena, index, n, 0, weights_of(l)->path, &j, e);
    const struct json *map = rc ? NULL : json_get(&j, "weight_map");
    if (rc) rc = e->code = ERR_RUNTIME;
    else if (!map || map->type != JSON_OBJECT || !map->n)
        rc = error_set(e, ERR_RUNTIME, "%s: %s has no weight_map", l->repo, weights_of(l)->path);
    const size_t before = s->n;
    const struct json *last = NULL;
    const bool is_stale = !rc && map && !names_any(l, map);
    const int n_found = is_stale ? shard_names_find(has_file, l) : 0;
    if (!rc) rc = add_numbered(l, n_found, s, e);
    for (uint32_t i = 0; !rc && !n_found && map && i < map->n; i++) {
        const struct json *file = &map->items[2 * i + 1];
        char name[1100];
        if (!put_shard_path(file, name, sizeof name)) {
            rc = error_set(e, ERR_RUNTIME, "%s: %s names a file that is none of weights", l->repo, weights_of(l)->path);
            break;
        }
        if (last && last->n == file->n && !memcmp(last->string, file->string, file->n)) continue;
        last = file;
        const struct hub_file *f = hub_listing_find(l, name);
        if (!f) rc = error_set(e, ERR_RUNTIME, "%s: lacks %.200s, which its index names", l->repo, name);
        else rc = hub_choice_add(s, f, e);
        if (!rc && s->n - before > MAX_SHARDS)
            rc = error_set(e, ERR_RUNTIME, "%s: more than %d files of weights", l->repo, MAX_SHARDS);
    }
    arena_free(&arena);
    return rc;
}
