#include "engine/weights/checkpoint.h"

#include <stdio.h>
#include <string.h>

#include "base/gguf_file.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/shard_names.h"
#include "engine/weights/safetensors.h"

/* One name table for all shards, because a scale may be in a different file from its weight. */

static const size_t MAX_INDEX = 256u << 20;

struct adding {
    struct checkpoint *c;
    int shard;
    const char *path;
    struct error *e;
};

static uint32_t *slot(const struct checkpoint *c, const char *name, size_t n) {
    size_t i = hash64(name, n, 0) & (c->table_size - 1);
    while (c->table[i] && strcmp(c->tensors[c->table[i] - 1].name, name)) i = (i + 1) & (c->table_size - 1);
    return &c->table[i];
}

static int grow_table(struct checkpoint *c) {
    size_t size = c->table_size ? c->table_size * 2 : 1024;
    uint32_t *table = mem_calloc(size, sizeof *table);
    if (!table) return ERR_MEMORY;
    mem_free(c->table);
    c->table = table;
    c->table_size = size;
    for (size_t i = 0; i < c->n_tensors; i++)
        *slot(c, c->tensors[i].name, strlen(c->tensors[i].name)) = (uint32_t)i + 1;
    return 0;
}

struct tensor *checkpoint_find(const struct checkpoint *c, const char *name) {
    if (!c->table) return NULL;
    uint32_t i = *slot(c, name, strlen(name));
    return i ? &c->tensors[i - 1] : NULL;
}

/* Fills the table anew, after names have changed. */
static int index_again(struct checkpoint *c, struct error *e) {
    memset(c->table, 0, c->table_size * sizeof *c->table);
    for (size_t i = 0; i < c->n_tensors; i++) {
        const struct tensor *t = &c->tensors[i];
        uint32_t *s = slot(c, t->name, strlen(t->name));
        if (*s)
            return error_set(e, ERR_MODEL, "%s/%s: tensor %.200s is also in %s under another name", c->dir,
                             c->shards[t->shard].name, t->name, c->shards[c->tensors[*s - 1].shard].name);
        *s = (uint32_t)i + 1;
    }
    return 0;
}

/* Replaces the first of these prefixes, {from, to}, that a name has. */
static int replace_prefixes(struct checkpoint *c, const char *const (*prefixes)[2], size_t n_prefixes,
                            struct error *e) {
    for (size_t i = 0; i < c->n_tensors; i++) {
        struct tensor *t = &c->tensors[i];
        for (size_t k = 0; k < n_prefixes; k++) {
            const size_t n = strlen(prefixes[k][0]), to = strlen(prefixes[k][1]);
            if (strncmp(t->name, prefixes[k][0], n)) continue;
            char *name = (char *)t->name + n - to; /* in the arena */
            memcpy(name, prefixes[k][1], to);
            t->name = name;
            break;
        }
    }
    return index_again(c, e);
}
int checkpoint_name_text(struct checkpoint *c, struct error *e) {
    static const char *const prefixes[][2] = {{"model.language_model.", "model."},
                                              {"model.text_model.", "model."},
                                              {"language_model.", ""},
                                              {"language.", ""},
                                              {"llm.", ""}};
    return replace_prefixes(c, prefixes, sizeof prefixes / sizeof *prefixes, e);
}
int checkpoint_name_as_transformers(struct checkpoint *c, struct error *e) {
    static const char *const prefixes[][2] = {{"language_model.model.", "model.language_model."},
                                              {"language_model.lm_head.", "lm_head."}};
    return replace_prefixes(c, prefixes, sizeof prefixes / sizeof *prefixes, e);
}

/* Writes experts.7.gate_proj for experts.gate_proj.7, in the arena. */
static bool put_number_first(const char *name) {
    static const char *const matrices[] = {"gate_proj", "up_proj", "down_proj"};
    const char *experts = strstr(name, ".experts.");
    for (size_t i = 0; experts && i < sizeof matrices / sizeof *matrices; i++) {
        char *at = (char *)experts + strlen(".experts.");
        const size_t n = strlen(matrices[i]);
        if (strncmp(at, matrices[i], n) != 0 || at[n] != '.') continue;
        const size_t digits = strspn(at + n + 1, "0123456789");
        if (!digits || at[n + 1 + digits] != '.') return false;
        memmove(at, at + n + 1, digits);
        at[digits] = '.';
        memcpy(at + digits + 1, matrices[i], n);
        return true;
    }
    return false;
}
int checkpoint_name_experts(struct checkpoint *c, struct error *e) {
    bool changed = false;
    for (size_t i = 0; i < c->n_tensors; i++) changed |= put_number_first(c->tensors[i].name);
    return changed ? index_again(c, e) : 0;
}

static int add_tensor(void *ctx, const struct tensor *t) {
    struct adding *a = ctx;
    struct checkpoint *c = a->c;
    size_t n = strlen(t->name);
    if (c->n_tensors >= (1u << 26)) return error_set(a->e, ERR_MODEL, "%s: more tensors than hearth takes", a->path);
    if (2 * (c->n_tensors + 1) > c->table_size && grow_table(c)) goto no_memory;
    uint32_t *s = slot(c, t->name, n);
    if (*s) {
        const struct tensor *old = &c->tensors[*s - 1];
        return error_set(a->e, ERR_MODEL, "%s: tensor %.200s is also in %s", a->path, t->name,
                         c->shards[old->shard].name);
    }
    if (mem_grow(&c->tensors, &c->cap_tensors, c->n_tensors + 1, sizeof *c->tensors)) goto no_memory;
    struct tensor copy = *t;
    copy.shard = a->shard;
    if (!(copy.name = arena_strndup(&c->arena, t->name, n))) goto no_memory;
    c->tensors[c->n_tensors++] = copy;
    *s = (uint32_t)c->n_tensors;
    c->bytes += t->size;
    uint64_t place[3] = {(uint64_t)(t->data - c->shards[a->shard].map.data), t->size, t->dtype};
    c->fingerprint =
        hash64(t->name, n, hash64(place, sizeof place, hash64(t->shape, t->ndim * sizeof *t->shape, c->fingerprint)));
    return 0;
no_memory:
    return error_set(a->e, ERR_MEMORY, "%s: no memory for its tensor table", a->path);
}

/* Checks the part number of a split file. Whether the files belong together is checked by their tensors, once all are
 * open. */
static int check_split(const struct checkpoint *c, const struct json *meta, const char *path, struct error *e) {
    int number = 1, count = 1;
    size_t stem;
    bool split = gguf_split(c->shards[0].name, &number, &count, &stem);
    int64_t no = json_int(json_get(meta, "split.no"), 0), of = json_int(json_get(meta, "split.count"), 0);
    if (!split && of > 1)
        return error_set(e, ERR_MODEL,
                         "%s: file %lld of %lld that belong together, by its metadata; its name lacks -00001-of-%05lld",
                         path, (long long)no + 1, (long long)of, (long long)of);
    if (split && count > 1 && (no != c->n_shards - 1 || of != count))
        return error_set(e, ERR_MODEL,
                         "%s: by its metadata file %lld of %lld, by its name %d of %d: from another model, or renamed",
                         path, (long long)no + 1, (long long)of, c->n_shards, count);
    return 0;
}

/* Parses one GGUF file. Only the first file's metadata is kept: the others hold nothing but their number. */
static int parse_gguf(struct checkpoint *c, const struct shard *s, struct adding *a, struct error *e) {
    struct gguf g;
    struct arena own = {0}, *arena = c->n_shards > 1 ? &own : &c->meta_arena;
    int rc = gguf_parse(&g, arena, s->map.data, s->map.size, a->path, e);
    for (size_t i = 0; i < g.n_tensors && !rc; i++) {
        const struct gguf_tensor *f = &g.tensors[i];
        struct tensor t = {
            .name = f->name, .data = s->map.data + f->offset, .size = f->size, .dtype = f->dtype, .ndim = f->ndim};
        memcpy(t.shape, f->shape, sizeof f->shape);
        rc = add_tensor(a, &t);
    }
    if (!rc && c->n_shards == 1) c->meta = g.meta;
    if (!rc) rc = check_split(c, &g.meta, a->path, e);
    arena_free(&own);
    return rc;
}

static int add_shard(struct checkpoint *c, const char *name, size_t n, struct error *e) {
    char path[4096], *copy = mem_strndup(name, n);
    struct shard *more = mem_realloc(c->shards, ((size_t)c->n_shards + 1) * sizeof *more);
    if (more) c->shards = more;
    if (!copy || !more) {
        mem_free(copy);
        return error_set(e, ERR_MEMORY, "%s: no memory for its list of files", c->dir);
    }
    c->shards[c->n_shards] = (struct shard){.name = copy};
    struct shard *s = &c->shards[c->n_shards++];
    int rc = file_join(path, sizeof path, c->dir, copy, e);
    if (rc) return rc;
    if (!file_exists(path)) return error_set(e, ERR_MODEL, "%s: missing; the download is incomplete", path);
    if ((rc = file_map(&s->map, path, e))) return rc;
    struct adding a = {c, c->n_shards - 1, path, e};
    return c->gguf ? parse_gguf(c, s, &a, e)
                   : safetensors_parse(s->map.data, s->map.size, path, add_tensor, &a, &c->mlx, e);
}

/* A pass over the index. */
struct listing {
    struct checkpoint *c;
    struct error *e;
    const char *what;
    bool lacks_first; /* open_listed() stopped because the first file does not exist */
    bool has_any;     /* find_any() found an existing file */
    int n_stale;      /* compare(): tensors that are not in the file that the index says */
};
static bool has_file(const void *checkpoint, const char *name) {
    const struct checkpoint *c = checkpoint;
    char path[4096];
    return !file_join(path, sizeof path, c->dir, name, NULL) && file_exists(path);
}
static bool has_listed(const struct checkpoint *c, const char *file, size_t nf) {
    char name[256];
    snprintf(name, sizeof name, "%.*s", (int)nf, file);
    return has_file(c, name);
}
static int find_any(void *ctx, const char *tensor, size_t nt, const char *file, size_t nf) {
    struct listing *l = ctx;
    l->has_any = l->has_any || has_listed(l->c, file, nf);
    return 0;
}
/* Opens each file once, in order of appearance. Stops if the first file does not exist, unless find_any() has found
 * another. */
static int open_listed(void *ctx, const char *tensor, size_t nt, const char *file, size_t nf) {
    struct listing *l = ctx;
    struct checkpoint *c = l->c;
    if (!c->n_shards && !l->has_any && !has_listed(c, file, nf)) return l->lacks_first = true, ERR_MODEL;
    for (int i = c->n_shards; i-- > 0;)
        if (strlen(c->shards[i].name) == nf && !memcmp(c->shards[i].name, file, nf)) return 0;
    if (c->n_shards >= SHARD_NAMES_MOST)
        return error_set(l->e, ERR_MODEL, "%s: more than %d files", l->what, SHARD_NAMES_MOST);
    return add_shard(c, file, nf, l->e);
}
/* Counts entries that name the wrong file for a tensor. Programs that merge or quantize models leave stale entries. A
 * tensor that the model needs and no file holds is reported later. */
static int compare(void *ctx, const char *tensor, size_t nt, const char *file, size_t nf) {
    struct listing *l = ctx;
    char name[1024];
    if (nt >= sizeof name || memchr(tensor, 0, nt))
        return error_set(l->e, ERR_MODEL, "%s: a tensor name of %zu bytes", l->what, nt);
    memcpy(name, tensor, nt);
    name[nt] = 0;
    const struct tensor *t = checkpoint_find(l->c, name);
    const char *where = t ? l->c->shards[t->shard].name : "";
    l->n_stale += strlen(where) != nf || memcmp(where, file, nf) != 0;
    return 0;
}

/* Finds files by the usual names of shards and opens them, if none that the index lists exists. */
static int open_unlisted(struct checkpoint *c, const char *index, struct error *e) {
    const int n = shard_names_find(has_file, c);
    char name[SHARD_NAME_SIZE];
    if (!n)
        return error_set(e, ERR_MODEL, "%s: none of the files that it names is there; the download is incomplete",
                         index);
    for (int i = 1; i <= n; i++) {
        shard_names_put(has_file, c, i, n, name);
        TRY(add_shard(c, name, strlen(name), e));
    }
    log_say(LOG_INFO, "%s: names other files than those that are there; %s%s is read", index, name,
            n > 1 ? " and those before it" : "");
    return 0;
}
static int open_index(struct checkpoint *c, const char *path, const char *text, size_t n, struct error *e) {
    struct listing l = {.c = c, .e = e, .what = path};
    const int rc = safetensors_index(text, n, path, open_listed, &l, e);
    if (rc && !l.lacks_first) return rc;
    if (l.lacks_first) { /* the index of another version of the model, or a file is missing */
        TRY(safetensors_index(text, n, path, find_any, &l, e));
        if (!l.has_any) return open_unlisted(c, path, e);
        TRY(safetensors_index(text, n, path, open_listed, &l, e));
    }
    TRY(safetensors_index(text, n, path, compare, &l, e));
    if (l.n_stale) log_say(LOG_INFO, "%s: %d tensors are in other files, or in none", path, l.n_stale);
    return 0;
}

/* Opens a GGUF file, and the other parts if it is the first of a split model. */
static int open_gguf(struct checkpoint *c, const char *file, struct error *e) {
    const char *slash = strrchr(file, '/'), *name = slash ? slash + 1 : file;
    int number = 1, count = 1, rc;
    size_t stem = 0;
    c->gguf = true;
    mem_free(c->dir);
    if (!(c->dir = slash ? mem_strndup(file, slash > file ? (size_t)(slash - file) : 1) : mem_strdup(".")))
        return error_set(e, ERR_MEMORY, "%s: no memory", file);
    if (gguf_split(name, &number, &count, &stem) && number > 1)
        return error_set(e, ERR_USAGE, "%s: file %d of %d; name the first (-m)", file, number, count);
    if (count > 4096) return error_set(e, ERR_MODEL, "%s: more than 4096 files", file);
    if ((rc = add_shard(c, name, strlen(name), e))) return rc;
    for (int i = 2; i <= count && !rc; i++) {
        char next[512];
        int n = snprintf(next, sizeof next, "%.*s-%05d-of-%05d.gguf", (int)stem, name, i, count);
        rc = n > 0 && n < (int)sizeof next ? add_shard(c, next, (size_t)n, e)
                                           : error_set(e, ERR_USAGE, "%.200s: path too long", file);
    }
    const struct json *all = json_get(&c->meta, "split.tensors.count");
    if (!rc && count > 1 && all && json_int(all, -1) != (int64_t)c->n_tensors)
        rc = error_set(e, ERR_MODEL,
                       "%s: the metadata lists %lld tensors, the %d files have %zu: some files are from another model",
                       file, (long long)json_int(all, -1), count, c->n_tensors);
    return rc;
}

/* Requests large pages, unless the checkpoint is larger than memory: then each unneeded 4 KB page in a large page
 * evicts a needed one. */
static void large_pages(const struct checkpoint *c) {
    size_t whole = 0;
    for (int i = 0; i < c->n_shards; i++) whole += c->shards[i].map.size;
    if (whole > mem_available()) return;
    for (int i = 0; i < c->n_shards; i++) file_map_advise_huge(&c->shards[i].map);
}

/* The list of a checkpoint's files, or its only one, as transformers or else Mistral names them. NULL: there are
 * none. */
static const char *find_files(const char *dir, bool *is_list) {
    static const char *const names[] = {"model.safetensors.index.json", "model.safetensors",
                                        "consolidated.safetensors.index.json", "consolidated.safetensors"};
    char path[4096];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        *is_list = i % 2 == 0;
        if (!file_join(path, sizeof path, dir, names[i], NULL) && file_exists(path)) return names[i];
    }
    return NULL;
}

int checkpoint_open(struct checkpoint *c, const char *dir, struct error *e) {
    char path[4096], *text = NULL;
    size_t n;
    int rc;
    *c = (struct checkpoint){0};
    if ((rc = gguf_find(dir, path, sizeof path, e))) {
        if (rc > 0) rc = open_gguf(c, path, e);
        goto out;
    }
    if (!(c->dir = mem_strdup(dir))) return error_set(e, ERR_MEMORY, "%s: no memory", dir);
    bool is_list;
    const char *name = find_files(dir, &is_list);
    if (!name) rc = error_set(e, ERR_MODEL, "%s: has neither model.safetensors nor model.safetensors.index.json", dir);
    else if (is_list) {
        if ((rc = file_join(path, sizeof path, dir, name, e))) goto out;
        if ((rc = file_read(path, MAX_INDEX, &text, &n, e))) goto out;
        rc = open_index(c, path, text, n, e);
    } else rc = add_shard(c, name, strlen(name), e);
out:
    mem_free(text);
    if (rc) checkpoint_close(c);
    else large_pages(c);
    return rc;
}

void checkpoint_free_metadata(struct checkpoint *c) {
    arena_free(&c->meta_arena);
    c->meta = (struct json){0};
}

void checkpoint_close(struct checkpoint *c) {
    checkpoint_free_metadata(c);
    for (int i = 0; i < c->n_shards; i++) {
        file_unmap(&c->shards[i].map);
        mem_free(c->shards[i].name);
    }
    mem_free(c->shards);
    mem_free(c->tensors);
    mem_free(c->table);
    arena_free(&c->arena);
    mem_free(c->dir);
    *c = (struct checkpoint){0};
}
