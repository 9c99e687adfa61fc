/* Opens a tower: finds its family, reads the configs, and loads its tensors. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "engine/vision/tower_config.h"
#include "engine/weights/loader.h"
#include "engine/weights/matrix.h"
#include "engine/weights/vector.h"

static const struct tower_family *const tower_families[] = {&tower_family_qwen3_vl, &tower_family_qwen3_vl_moe,
                                                            &tower_family_qwen3_5, &tower_family_qwen3_5_moe};

struct reader {
    struct loader l;
    struct tower *t;
};
static struct mat read_mat(struct reader *r, const char *pattern, int at, int rows, int cols) {
    const struct param p = {.suffix = ".weight", .rows = rows, .cols = cols};
    return matrix_load(&r->l, &p, pattern, at, 0);
}
static float *read_vector(struct reader *r, const char *pattern, const char *suffix, int at, int n) {
    const struct param p = {.suffix = suffix, .rows = n};
    return vector_load(&r->l, &p, pattern, at, 0);
}
static float *read_bias(struct reader *r, const char *pattern, int at, int n) {
    return read_vector(r, pattern, ".bias", at, n);
}
static float *read_norm(struct reader *r, const char *pattern, int at, int n) {
    return read_vector(r, pattern, ".weight", at, n);
}

/* The convolution over a patch is a product: its weights are [hidden, 3, temporal, patch, patch]. */
static void read_patch(struct reader *r) {
    const struct tower_config *c = &r->t->config;
    const int cols = 3 * c->temporal * c->patch * c->patch;
    const struct tensor *t = loader_find(&r->l, c->names.patch, 0, 0, ".weight");
    const int64_t shape[] = {c->hidden, 3, c->temporal, c->patch, c->patch};
    if (!t) loader_missing(&r->l, c->names.patch, 0, 0, ".weight");
    if (!t || r->l.rc) return;
    bool fits = t->ndim == 5;
    for (int i = 0; i < 5 && fits; i++) fits = t->shape[i] == shape[i];
    if (!fits || (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16)) {
        loader_fail(&r->l, t, "not the weights of patches that vision_config asks for");
        return;
    }
    r->t->patch = (struct mat){.data = t->data,
                               .stride = dtype_bytes(t->dtype, (size_t)cols),
                               .rows = c->hidden,
                               .cols = cols,
                               .row_step = 1,
                               .dtype = t->dtype};
}

static void read_position(struct reader *r) {
    const struct tower_config *c = &r->t->config;
    const struct param p = {.suffix = ".weight", .rows = c->side * c->side * c->hidden, .table_cols = c->hidden};
    r->t->position = vector_load(&r->l, &p, c->names.position, 0, 0);
}

static void read_merger(struct reader *r, struct tower_merger *m, int at, bool is_deep) {
    const struct tower_config *c = &r->t->config;
    const struct tower_names *n = &c->names;
    const int wide = c->hidden * c->merge * c->merge, normed = is_deep ? wide : c->hidden;
    const char *norm = is_deep ? n->deep_norm : n->merger_norm, *fc1 = is_deep ? n->deep_fc1 : n->merger_fc1,
               *fc2 = is_deep ? n->deep_fc2 : n->merger_fc2;
    m->norm = read_norm(r, norm, at, normed), m->norm_bias = read_bias(r, norm, at, normed);
    m->fc1 = read_mat(r, fc1, at, wide, wide), m->fc1_bias = read_bias(r, fc1, at, wide);
    m->fc2 = read_mat(r, fc2, at, c->out, wide), m->fc2_bias = read_bias(r, fc2, at, c->out);
}

static void read_layer(struct reader *r, struct tower_layer *y, int i) {
    const struct tower_config *c = &r->t->config;
    const struct tower_names *n = &c->names;
    const int h = c->hidden;
    y->norm1 = read_norm(r, n->norm1, i, h), y->norm1_bias = read_bias(r, n->norm1, i, h);
    y->norm2 = read_norm(r, n->norm2, i, h), y->norm2_bias = read_bias(r, n->norm2, i, h);
    y->qkv = read_mat(r, n->qkv, i, 3 * h, h), y->qkv_bias = read_bias(r, n->qkv, i, 3 * h);
    y->proj = read_mat(r, n->proj, i, h, h), y->proj_bias = read_bias(r, n->proj, i, h);
    y->fc1 = read_mat(r, n->fc1, i, c->inter, h), y->fc1_bias = read_bias(r, n->fc1, i, c->inter);
    y->fc2 = read_mat(r, n->fc2, i, h, c->inter), y->fc2_bias = read_bias(r, n->fc2, i, h);
}

/* The tensors that nothing has claimed, and their bytes. */
struct unclaimed {
    size_t n, bytes;
};
static struct unclaimed count_unclaimed(const struct checkpoint *c) {
    struct unclaimed u = {0};
    for (size_t i = 0; i < c->n_tensors; i++)
        if (!c->tensors[i].is_claimed) u.n++, u.bytes += c->tensors[i].size;
    return u;
}

static int load(struct tower *t, struct weights *w, struct error *e) {
    struct reader r = {.l = {.w = w, .e = e}, .t = t};
    const struct tower_config *c = &t->config;
    if (!(t->layers = arena_calloc(&w->arena, (size_t)c->depth, sizeof *t->layers)))
        return error_set(e, ERR_MEMORY, "%s: no memory for its vision tower", w->files.dir);
    read_patch(&r);
    t->patch_bias = read_bias(&r, c->names.patch, 0, c->hidden);
    read_position(&r);
    for (int i = 0; i < c->depth && !r.l.rc; i++) read_layer(&r, &t->layers[i], i);
    read_merger(&r, &t->merger, 0, false);
    for (int i = 0; i < c->n_deep && !r.l.rc; i++) read_merger(&r, &t->deep[i], i, true);
    for (int k = 0; k < 3; k++)
        for (int v = 0; v < 256; v++) t->pixel[k][v] = ((float)(v * c->rescale) - (float)c->mean[k]) / (float)c->std[k];
    return r.l.rc;
}

/* Finds the family of the whole model. Its config.json is read again: the text model's parser keeps none of it. */
static int parse(struct tower_config *c, const struct weights *w, char *why, size_t why_size, bool *found,
                 struct error *e) {
    enum { MOST_BYTES = 16 << 20 };
    char path[4096], *text = NULL;
    size_t n;
    struct arena a = {0};
    struct json root;
    const struct tower_family *family = NULL;
    *found = false;
    int rc = w->files.gguf ? 0 : file_config(path, sizeof path, w->files.dir, e);
    if (w->files.gguf) snprintf(why, why_size, "hearth does not read the images of GGUF models");
    if (rc || w->files.gguf) return rc;
    if (!(rc = file_read(path, MOST_BYTES, &text, &n, e))) rc = json_parse(&a, text, n, JSON_PYTHON, path, &root, e);
    const struct json *type = rc ? NULL : json_get(&root, "model_type");
    for (size_t i = 0; i < sizeof tower_families / sizeof *tower_families; i++)
        if (json_is(type, tower_families[i]->model_type)) family = tower_families[i];
    const struct json *vision = rc ? NULL : json_get(&root, "vision_config");
    if (!rc && !family)
        snprintf(why, why_size,
                 vision ? "hearth does not read the images of this model's family yet" : "this model reads text only");
    if (!rc && family) c->image_token = (int32_t)json_int(json_get(&root, "image_token_id"), family->image_token);
    if (!rc && family) rc = family->parse(c, &root, path, e);
    if (!rc && family && (c->image_token < 0 || c->image_token >= w->config.vocab))
        rc = error_set(e, ERR_MODEL, "%s: 'image_token_id' is not a token of the vocabulary", path);
    if (!rc && family && c->out != w->config.hidden)
        rc = error_set(e, ERR_MODEL, "%s: the tower's rows have %d numbers ('out_hidden_size'), the text model's %d",
                       path, c->out, w->config.hidden);
    if (!rc && family && c->n_deep > w->config.n_layers)
        rc =
            error_set(e, ERR_MODEL, "%s: 'deepstack_visual_indexes' has more entries than the text model layers", path);
    arena_free(&a);
    mem_free(text);
    *found = family != NULL;
    return rc;
}

int tower_open(struct tower **out, struct weights *w, char *why, size_t why_size, struct error *e) {
    struct tower *t = mem_calloc(1, sizeof *t);
    bool found = false;
    char name[512];
    *out = NULL;
    if (!t) return error_set(e, ERR_MEMORY, "no memory for a vision tower");
    int rc = parse(&t->config, w, why, why_size, &found, e);
    if (!rc && found) {
        loader_name(name, sizeof name, t->config.names.patch, 0, 0, ".weight");
        found = checkpoint_find(&w->files, name) != NULL;
        if (!found) snprintf(why, why_size, "this checkpoint has only the text model, not its vision tower");
    }
    if (!rc && found) rc = tower_read_processor(&t->config, w->files.dir, e);
    const struct unclaimed before = count_unclaimed(&w->files);
    if (!rc && found) rc = load(t, w, e);
    if (rc || !found) {
        mem_free(t);
        return rc;
    }
    const struct unclaimed after = count_unclaimed(&w->files);
    t->bytes = before.bytes - after.bytes;
    w->bytes_skipped -= t->bytes; /* they are the tower's */
    w->n_skipped -= before.n - after.n;
    *out = t;
    return 0;
}

void tower_close(struct tower **t) {
    mem_free(*t);
    *t = NULL;
}
