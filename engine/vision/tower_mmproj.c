/* llama.cpp's files of towers. Facts: gguf-py, constants.py (names of keys and tensors). */
#include "engine/vision/tower_mmproj.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/gguf_file.h"

static const struct tower_projector *const projectors[] = {&tower_projector_qwen3};

/* --- The file ---------------------------------------------------------------------------------- */

struct listing {
    char name[TOWER_MMPROJ_MOST][256];
    int n;
};
static int on_file(void *ctx, const char *name) {
    struct listing *l = ctx;
    const size_t n = strlen(name);
    if (n >= sizeof *l->name || !gguf_names_tower(name)) return 0;
    memcpy(l->name[l->n++], name, n + 1);
    return l->n == TOWER_MMPROJ_MOST;
}
static int by_rank(const void *a, const void *b) {
    const int d = gguf_tower_rank(a) - gguf_tower_rank(b);
    return d ? d : strcmp(a, b);
}
/* The files in a folder, the one that is tried first at the beginning. */
static void list_files(struct listing *l, const char *dir) {
    file_list(dir, on_file, l, NULL);
    qsort(l->name, (size_t)l->n, sizeof *l->name, by_rank);
}

/* --- Its metadata ------------------------------------------------------------------------------ */

static int find_mark(struct tower_config *c, const struct weights *w, const char *mark, const char *what,
                     struct error *e) {
    const struct file_map *m = &w->files.shards[0].map;
    struct arena a = {0};
    struct gguf g;
    int rc = gguf_parse(&g, &a, m->data, m->size, w->files.shards[0].name, e);
    const struct json *tokens = rc ? NULL : json_get(&g.meta, "tokenizer.ggml.tokens");
    c->image_token = -1;
    for (uint32_t i = 0; tokens && tokens->type == JSON_ARRAY && i < tokens->n && i < (uint32_t)w->config.vocab; i++)
        if (json_is(json_at(tokens, i), mark)) c->image_token = (int32_t)i;
    arena_free(&a);
    if (!rc && c->image_token < 0)
        rc = error_set(e, ERR_MODEL, "%s: is of another model: this one's vocabulary lacks the mark of its images, %s",
                       what, mark);
    return rc;
}

static const char *text_or(const struct json *j, const char *none, char *buf, size_t cap) {
    if (!j || j->type != JSON_STRING) return none;
    snprintf(buf, cap, "%.*s", (int)(j->n < 60 ? j->n : 60), j->string);
    return buf;
}

static int read_meta(struct tower *t, const struct weights *w, const char *what, struct error *e) {
    const struct json *meta = &t->beside->files.meta, *arch = json_get(meta, "general.architecture"),
                      *type = json_get(meta, "clip.vision.projector_type");
    const struct tower_projector *p = NULL;
    struct tower_config *c = &t->config;
    char name[64];
    if (!type) type = json_get(meta, "clip.projector_type");
    if (!json_is(arch, "clip"))
        return error_set(e, ERR_MODEL, "%s: has no vision tower: 'general.architecture' is %s, not clip", what,
                         text_or(arch, "missing", name, sizeof name));
    for (size_t i = 0; i < sizeof projectors / sizeof *projectors; i++)
        if (json_is(type, projectors[i]->type)) p = projectors[i];
    if (!p)
        return error_set(e, ERR_MODEL, "%s: a tower of the kind '%s', which hearth does not compute yet", what,
                         text_or(type, "(none)", name, sizeof name));
    TRY(p->parse(c, meta, what, e));
    if (c->out != w->config.hidden)
        return error_set(e, ERR_MODEL, "%s: is of another model: its rows have %d numbers, this model's %d", what,
                         c->out, w->config.hidden);
    if (c->n_deep > w->config.n_layers || !w->config.rope.section[0])
        return error_set(e, ERR_MODEL, "%s: is of another model: this one does not place images by row and column",
                         what);
    return find_mark(c, w, p->mark, what, e);
}

static void close_file(struct tower *t) {
    if (!t->beside) return;
    weights_close(t->beside);
    mem_free(t->beside);
    t->beside = NULL;
}

static int open_file(struct tower *t, const struct weights *w, const char *path, struct error *e) {
    if (!(t->beside = mem_calloc(1, sizeof *t->beside)))
        return error_set(e, ERR_MEMORY, "%s: no memory for its vision tower", path);
    int rc = checkpoint_open(&t->beside->files, path, e);
    t->beside->config = w->config; /* matrices are loaded as the model's are */
    if (!rc) rc = read_meta(t, w, path, e);
    if (rc) close_file(t);
    else checkpoint_free_metadata(&t->beside->files);
    return rc;
}

/* Opens the first file beside the model that fits it. Without any file why says so. */
static int open_beside(struct tower *t, const struct weights *w, char *why, size_t why_size, struct error *e) {
    struct listing l = {.n = 0};
    struct error first = {0};
    char path[4096];
    const struct tower_config none = t->config;
    list_files(&l, w->files.dir);
    if (!l.n)
        snprintf(why, why_size,
                 "no file mmproj*.gguf is beside this model, and --mmproj names none; a GGUF model has its vision "
                 "tower there");
    for (int i = 0; i < l.n; i++) {
        t->config = none;
        TRY(file_join(path, sizeof path, w->files.dir, l.name[i], e));
        const int rc = open_file(t, w, path, e);
        if (!rc || rc == ERR_MEMORY) return rc;
        if (!i) first = *e; /* of the most likely one */
    }
    if (l.n) *e = first;
    return l.n ? first.code : 0;
}

int tower_mmproj_open(struct tower *t, const struct weights *w, const char *file, char *why, size_t why_size,
                      struct error *e) {
    char found[4096];
    if (!file) return open_beside(t, w, why, why_size, e);
    if (strlen(file) >= sizeof found) return error_set(e, ERR_USAGE, "--mmproj %.200s: path too long", file);
    if (!file_exists(file)) return error_set(e, ERR_USAGE, "--mmproj %s: there is no such file", file);
    const int is_gguf = gguf_find(file, found, sizeof found, e);
    if (is_gguf < 0) return is_gguf;
    if (!is_gguf) return error_set(e, ERR_USAGE, "--mmproj %s: not a GGUF file", file);
    return open_file(t, w, file, e);
}

int tower_mmproj_files(struct checkpoint out[TOWER_MMPROJ_MOST], const struct weights *w, const char *file,
                       struct error *e) {
    struct listing l = {.n = 0};
    char path[4096];
    int n = 0, rc = 0;
    if (!file) list_files(&l, w->files.dir);
    for (; n < (file ? 1 : l.n); n++) {
        if (!file) rc = file_join(path, sizeof path, w->files.dir, l.name[n], e);
        if (!rc) rc = checkpoint_open(&out[n], file ? file : path, e);
        if (rc) break;
        checkpoint_free_metadata(&out[n]);
    }
    if (!rc) return n;
    while (n-- > 0) checkpoint_close(&out[n]);
    return rc;
}

int tower_mmproj_check(struct tower *t, struct error *e) {
    const struct checkpoint *f = &t->beside->files;
    for (size_t i = 0; i < f->n_tensors; i++) {
        const struct tensor *y = &f->tensors[i];
        const bool is_sound = !strncmp(y->name, "a.", 2) || !strncmp(y->name, "mm.a.", 5);
        if (y->is_claimed) t->bytes += y->size;
        else if (!is_sound)
            return error_set(e, ERR_MODEL, "%s/%s: tensor '%.100s' is none of this kind of tower", f->dir,
                             f->shards[0].name, y->name);
    }
    return 0;
}
