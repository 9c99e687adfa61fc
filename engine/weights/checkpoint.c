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
    bool is_indexed; /* an index says which file has a tensor */
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

int checkpoint_index(struct checkpoint *c, struct error *e) {
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

/* Keeps a tensor whose name another file has, too, until the index says which of them counts. */
static int add_again(struct adding *a, const struct tensor *t, int first) {
    struct checkpoint *c = a->c;
    if (mem_grow(&c->again, &c->cap_again, c->n_again + 1, sizeof *c->again))
        return error_set(a->e, ERR_MEMORY, "%s: no memory for its tensor table", a->path);
    struct tensor copy = *t;
    copy.shard = a->shard, copy.name = c->tensors[first].name;
    c->again[c->n_again++] = copy;
    return 0;
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
        if (!a->is_indexed || old->shard == a->shard)
            return error_set(a->e, ERR_MODEL, "%s: tensor %.200s is also in %s", a->path, t->name,
                             c->shards[old->shard].name);
        return add_again(a, t, (int)(*s - 1));
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
    struct adding a = {.c = c, .shard = c->n_shards - 1, .is_indexed = c->is_indexed, .path = path, .e = e};
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
static bool is_in(const struct checkpoint *c, const struct tensor *t, const char *file, size_t nf) {
    const char *where = c->shards[t->shard].name;
    return strlen(where) == nf && !memcmp(where, file, nf);
}
/* Whether the index means this tensor or one of its name in another file, which then replaces it. */
static bool settle(struct checkpoint *c, struct tensor *t, const char *file, size_t nf) {
    if (is_in(c, t, file, nf)) return true;
    for (size_t i = 0; i < c->n_again; i++) {
        if (c->again[i].name != t->name || !is_in(c, &c->again[i], file, nf)) continue;
        const struct tensor other = *t;
        c->bytes += c->again[i].size - t->size;
        c->fingerprint = hash64(file, nf, c->fingerprint);
        *t = c->again[i], c->again[i] = other;
        return true;
    }
    return false;
}
/* Marks the tensors that are where the index says, and counts its other entries. Programs that merge or quantize models
 * leave stale entries. A tensor that the model needs and no file holds is reported later. */
static int compare(void *ctx, const char *tensor, size_t nt, const char *file, size_t nf) {
    struct listing *l = ctx;
    char name[1024];
    if (nt >= sizeof name || memchr(tensor, 0, nt))
        return error_set(l->e, ERR_MODEL, "%s: a tensor name of %zu bytes", l->what, nt);
    memcpy(name, tensor, nt);
    name[nt] = 0;
    struct tensor *t = checkpoint_find(l->c, name);
    if (t && settle(l->c, t, file, nf)) t->is_listed = true;
    else l->n_stale++;
    return 0;
}
/* Checks that the index has chosen between tensors of one name. */
static int check_again(const struct checkpoint *c, const char *index, struct error *e) {
    for (size_t i = 0; i < c->n_again; i++) {
        const struct tensor *t = &c->again[i], *chosen = checkpoint_find(c, t->name);
        if (!chosen->is_listed)
            return error_set(e, ERR_MODEL, "%s: tensor %.200s is in %s and in %s, and the index names neither", index,
                             t->name, c->shards[chosen->shard].name, c->shards[t->shard].name);
    }
    return 0;
}
/* Whether a tensor belongs to a matrix that its file has and the index takes from another file: a shard of another
 * version of the model, of which the index takes other tensors. */
static bool is_superseded(const struct checkpoint *c, const struct tensor *t) {
    static const char *const kinds[] = {"weight", "qweight", "weight_packed", "blocks"};
    const char *dot = strrchr(t->name, '.');
    bool is_here = false, is_elsewhere = false;
    char name[1024];
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && dot && strlen(t->name) < sizeof name - 16; i++) {
        snprintf(name, sizeof name, "%.*s.%s", (int)(dot - t->name), t->name, kinds[i]);
        const struct tensor *matrix = checkpoint_find(c, name);
        if (!matrix) continue;
        is_elsewhere |= matrix->is_listed && matrix->shard != t->shard;
        is_here |= !matrix->is_listed && matrix->shard == t->shard;
        for (size_t k = 0; k < c->n_again; k++)
            is_here |= c->again[k].name == matrix->name && c->again[k].shard == t->shard;
    }
    return is_here && is_elsewhere;
}
/* Leaves out tensors of such matrices that an index, all of whose entries hold, does not list. */
static int drop_superseded(struct checkpoint *c, const char *index, struct error *e) {
    size_t n = 0;
    bool *drops = mem_calloc(c->n_tensors + 1, sizeof *drops);
    if (!drops) return error_set(e, ERR_MEMORY, "%s: no memory for its tensor table", index);
    for (size_t i = 0; i < c->n_tensors; i++) drops[i] = !c->tensors[i].is_listed && is_superseded(c, &c->tensors[i]);
    for (size_t i = 0; i < c->n_tensors; i++) {
        if (drops[i]) c->bytes -= c->tensors[i].size;
        else c->tensors[n++] = c->tensors[i];
    }
    mem_free(drops);
    if (n == c->n_tensors) return 0;
    log_say(LOG_INFO, "%s: %zu tensors are left out: it has their matrices in other files", index, c->n_tensors - n);
    c->n_tensors = n;
    return checkpoint_index(c, e);
}

/* Opens the files that have the usual names of shards. n: how many. */
static int open_numbered(struct checkpoint *c, int n, const char *why, struct error *e) {
    char name[SHARD_NAME_SIZE];
    for (int i = 1; i <= n; i++) {
        shard_names_put(has_file, c, i, n, name);
        TRY(add_shard(c, name, strlen(name), e));
    }
    log_say(LOG_INFO, "%s; %s%s is read", why, name, n > 1 ? " and those before it" : "");
    return 0;
}
/* Finds files by the usual names of shards and opens them, if none that the index lists exists. */
static int open_unlisted(struct checkpoint *c, const char *index, struct error *e) {
    const int n = shard_names_find(has_file, c);
    char why[4200];
    if (!n)
        return error_set(e, ERR_MODEL, "%s: none of the files that it names is there; the download is incomplete",
                         index);
    snprintf(why, sizeof why, "%s: names other files than those that are there", index);
    return open_numbered(c, n, why, e);
}

static bool ends_with(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n > m && !strcmp(name + n - m, end);
}
/* What a directory without a list of files has. */
struct others {
    char only[256]; /* the first file of safetensors that is no adapter */
    int n;
    bool has_torch;
};
static int on_other(void *ctx, const char *name) {
    struct others *o = ctx;
    o->has_torch |= (!strncmp(name, "pytorch_model", 13) && ends_with(name, ".bin")) || ends_with(name, ".pth");
    if (!shard_names_is_weights(name) || strlen(name) >= sizeof o->only) return 0;
    if (!o->n++) memcpy(o->only, name, strlen(name) + 1);
    return 0;
}
/* Opens the files of a directory that has neither a list of them nor one of the usual name: all shards that their
 * names count, or the only file of weights. */
static int open_without_list(struct checkpoint *c, struct error *e) {
    const int n = shard_names_find(has_file, c);
    struct others o = {{0}, 0, false};
    if (n) return open_numbered(c, n, "the list of the files, model.safetensors.index.json, is missing", e);
    TRY(file_list(c->dir, on_other, &o, e));
    int number, count = 1;
    if (o.n == 1 && sscanf(o.only, "model-%d-of-%d", &number, &count) == 2 && count > 1)
        return error_set(e, ERR_MODEL, "%s/%s: file %d of %d; the others are missing: the download is incomplete",
                         c->dir, o.only, number, count);
    if (o.n == 1) return add_shard(c, o.only, strlen(o.only), e);
    if (o.n)
        return error_set(e, ERR_MODEL,
                         "%s: has %s and more files of weights, but no list of them (model.safetensors.index.json): "
                         "the download is incomplete",
                         c->dir, o.only);
    if (o.has_torch)
        return error_set(e, ERR_MODEL,
                         "%s: has weights in PyTorch's own files only, which hearth does not read; transformers makes "
                         "safetensors of them (save_pretrained)",
                         c->dir);
    return error_set(e, ERR_MODEL,
                     "%s: has neither model.safetensors nor model.safetensors.index.json: the download is incomplete",
                     c->dir);
}
static int open_index(struct checkpoint *c, const char *path, const char *text, size_t n, struct error *e) {
    struct listing l = {.c = c, .e = e, .what = path};
    c->is_indexed = true;
    const int rc = safetensors_index(text, n, path, open_listed, &l, e);
    if (rc && !l.lacks_first) return rc;
    if (l.lacks_first) { /* the index of another version of the model, or a file is missing */
        TRY(safetensors_index(text, n, path, find_any, &l, e));
        c->is_indexed = l.has_any;
        if (!l.has_any) return open_unlisted(c, path, e);
        TRY(safetensors_index(text, n, path, open_listed, &l, e));
    }
    TRY(safetensors_index(text, n, path, compare, &l, e));
    TRY(check_again(c, path, e));
    if (c->n_again)
        log_say(LOG_INFO, "%s: %zu tensors are in several files; the index says which count", path, c->n_again);
    if (!l.n_stale) return drop_superseded(c, path, e);
    log_say(LOG_INFO, "%s: %d tensors are in other files, or in none", path, l.n_stale);
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
    if (!name) rc = open_without_list(c, e);
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
    mem_free(c->again);
    mem_free(c->table);
    arena_free(&c->arena);
    mem_free(c->dir);
    *c = (struct checkpoint){0};
}
