/* Opens a tower: finds its family, reads the configs, and loads its tensors. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "engine/vision/tower_config.h"
#include "engine/vision/tower_mmproj.h"
#include "engine/weights/checkpoint_names.h"
#include "engine/weights/loader.h"
#include "engine/weights/matrix.h"
#include "engine/weights/vector.h"

static const struct tower_family *const tower_families[] = {
    &tower_family_qwen3_vl,  &tower_family_qwen3_vl_moe, &tower_family_qwen3_5,  &tower_family_qwen3_5_moe,
    &tower_family_qwen4_exp, &tower_family_glm4v_moe,    &tower_family_kimi_k25, &tower_family_gemma4};

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

/* Returns the weights of patches, or of one time of them; NULL: loading has failed. */
static const struct tensor *find_patch(struct reader *r, const char *ending) {
    const struct tower_config *c = &r->t->config;
    const struct tensor *t = loader_find(&r->l, c->names.patch, 0, 0, ending);
    const int64_t whole[] = {c->hidden, 3, c->temporal, c->patch, c->patch}, one[] = {c->hidden, 3, c->patch, c->patch},
                  *shape = c->is_split_patch ? one : whole;
    const int ndim = c->is_split_patch ? 4 : 5;
    if (!t) loader_missing(&r->l, c->names.patch, 0, 0, ending);
    if (!t || r->l.rc) return NULL;
    bool fits = t->ndim == ndim;
    for (int i = 0; i < ndim && fits; i++) fits = t->shape[i] == shape[i];
    if (fits && (t->dtype == DT_F32 || t->dtype == DT_BF16 || t->dtype == DT_F16)) return t;
    loader_fail(&r->l, t, "not the weights of patches that the tower's config asks for");
    return NULL;
}
static void *new_weights(struct reader *r, size_t bytes) {
    void *p = arena_alloc(&r->l.w->arena, bytes);
    if (!p && !r->l.rc)
        r->l.rc = error_set(r->l.e, ERR_MEMORY, "%s: no memory for its vision tower", r->l.w->files.dir);
    return p;
}
static struct mat plain_mat(const void *data, int rows, int cols, uint8_t dtype) {
    return (struct mat){.data = data,
                        .stride = dtype_bytes(dtype, (size_t)cols),
                        .rows = rows,
                        .cols = cols,
                        .row_step = 1,
                        .dtype = dtype};
}
/* Linear weights of patches, [hidden, row, column, channel], whose columns become those of a convolution. */
static void read_linear_patch(struct reader *r) {
    const struct tower_config *c = &r->t->config;
    const int side = c->patch * c->patch, cols = 3 * side;
    const struct tensor *t = loader_find(&r->l, c->names.patch, 0, 0, ".weight");
    if (!t) loader_missing(&r->l, c->names.patch, 0, 0, ".weight");
    if (!t || r->l.rc) return;
    if (t->ndim != 2 || t->shape[0] != c->hidden || t->shape[1] != cols ||
        (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16)) {
        loader_fail(&r->l, t, "not the weights of patches that the tower's config asks for");
        return;
    }
    const size_t number = dtype_bytes(t->dtype, 1);
    uint8_t *to = new_weights(r, (size_t)c->hidden * (size_t)cols * number);
    for (size_t i = 0; i < (size_t)c->hidden && to; i++)
        for (size_t k = 0; k < (size_t)cols; k++)
            memcpy(to + (i * (size_t)cols + k % 3 * (size_t)side + k / 3) * number,
                   t->data + (i * (size_t)cols + k) * number, number);
    if (to) r->t->patch = plain_mat(to, c->hidden, cols, t->dtype);
}

/* The convolution over a patch is a product: its weights are [hidden, 3, temporal, patch, patch]. */
static void read_patch(struct reader *r) {
    const struct tower_config *c = &r->t->config;
    const int cols = 3 * c->temporal * c->patch * c->patch;
    const struct tensor *t = find_patch(r, ".weight");
    if (!t) return;
    const void *data = t->data;
    if (c->is_split_patch) { /* [hidden, 3, patch, patch] of each time */
        const size_t plane = dtype_bytes(t->dtype, (size_t)(c->patch * c->patch)), times = (size_t)c->temporal;
        uint8_t *joined = new_weights(r, (size_t)c->hidden * 3 * times * plane);
        for (size_t time = 0; time < times && joined; time++) {
            char ending[24];
            snprintf(ending, sizeof ending, time ? ".weight.%zu" : ".weight", time);
            const struct tensor *part = find_patch(r, ending);
            if (part && part->dtype != t->dtype) loader_fail(&r->l, part, "not the format of the first time's weights");
            for (size_t i = 0; i < (size_t)c->hidden * 3 && !r->l.rc; i++)
                memcpy(joined + (i * times + time) * plane, part->data + i * plane, plane);
        }
        data = joined;
    }
    if (!r->l.rc) r->t->patch = plain_mat(data, c->hidden, cols, t->dtype);
}

/* A convolution over the patches of a token: [out, hidden, merge, merge], whose columns become those of joined rows. */
static void read_down(struct reader *r, struct tower_merger *m) {
    const struct tower_config *c = &r->t->config;
    const int cells = c->merge * c->merge;
    const struct tensor *t = loader_find(&r->l, c->names.down, 0, 0, ".weight");
    const int64_t shape[] = {c->out, c->hidden, c->merge, c->merge};
    if (!t) loader_missing(&r->l, c->names.down, 0, 0, ".weight");
    if (!t || r->l.rc) return;
    bool fits = t->ndim == 4;
    for (int i = 0; i < 4 && fits; i++) fits = t->shape[i] == shape[i];
    if (!fits || (t->dtype != DT_F32 && t->dtype != DT_BF16 && t->dtype != DT_F16)) {
        loader_fail(&r->l, t, "not the weights that join the patches of a token");
        return;
    }
    const size_t number = dtype_bytes(t->dtype, 1), h = (size_t)c->hidden;
    uint8_t *to = new_weights(r, (size_t)c->out * h * (size_t)cells * number);
    for (size_t i = 0; i < (size_t)c->out && to; i++)
        for (size_t k = 0; k < (size_t)cells; k++)
            for (size_t j = 0; j < h; j++)
                memcpy(to + ((i * (size_t)cells + k) * h + j) * number,
                       t->data + ((i * h + j) * (size_t)cells + k) * number, number);
    if (to) m->down = plain_mat(to, c->out, c->hidden * cells, t->dtype);
    m->down_bias = read_bias(r, c->names.down, 0, c->out);
}

static void read_position(struct reader *r) {
    enum { MOST = 1 << 28 };
    const struct tower_config *c = &r->t->config;
    if (!r->l.rc && (int64_t)c->side * c->side > MOST / c->hidden)
        r->l.rc = error_set(r->l.e, ERR_MODEL, "%s/%s: a table of positions of %d x %d rows; hearth takes %d numbers",
                            r->l.w->files.dir, r->l.w->files.shards[0].name, c->side, c->side, MOST);
    if (r->l.rc) return;
    const bool is_axes = c->positions == POSITIONS_AXES;
    const struct param p = {.suffix = is_axes ? "" : ".weight",
                            .rows = (is_axes ? 2 : c->side) * c->side * c->hidden,
                            .table_cols = c->hidden,
                            .table_rows = c->is_square_table || is_axes ? c->side : 0};
    r->t->position = vector_load(&r->l, &p, c->names.position, 0, 0);
}

static void read_merger(struct reader *r, struct tower_merger *m, int at, bool is_deep) {
    const struct tower_config *c = &r->t->config;
    const struct tower_names *n = &c->names;
    if (c->is_pooled) {
        m->fc2 = read_mat(r, n->merger_fc2, at, c->out, c->hidden);
        return;
    }
    const bool is_gated = n->down && !is_deep;
    const int wide = is_gated ? c->out : c->hidden * c->merge * c->merge,
              normed = is_deep || is_gated ? wide : c->hidden, inter = is_gated ? c->merger_inter : wide;
    const char *norm = is_deep ? n->deep_norm : n->merger_norm, *fc1 = is_deep ? n->deep_fc1 : n->merger_fc1,
               *fc2 = is_deep ? n->deep_fc2 : n->merger_fc2;
    m->norm = read_norm(r, norm, at, normed), m->norm_bias = read_bias(r, norm, at, normed);
    m->fc1 = read_mat(r, fc1, at, inter, wide);
    m->fc2 = read_mat(r, fc2, at, c->out, inter);
    if (!is_gated) {
        m->fc1_bias = read_bias(r, fc1, at, wide), m->fc2_bias = read_bias(r, fc2, at, c->out);
        return;
    }
    read_down(r, m);
    m->proj = read_mat(r, n->merger_proj, at, wide, wide);
    m->gate = read_mat(r, n->merger_gate, at, inter, wide);
}

static float read_bound(struct reader *r, const char *pattern, const char *suffix, int layer) {
    char name[512];
    loader_name(name, sizeof name, pattern, layer, 0, "");
    name[strlen(name) - strlen(".linear")] = 0; /* the bounds are beside the linear layer */
    const struct param p = {.suffix = suffix, .rows = 1};
    const float *v = r->l.rc ? NULL : vector_load(&r->l, &p, name, 0, 0);
    return v ? *v : 0;
}
static void read_clips(struct reader *r, struct tower_layer *y, int i) {
    const struct tower_names *n = &r->t->config.names;
    const char *const names[] = {
        [TOWER_Q] = n->q,       [TOWER_K] = n->k,     [TOWER_V] = n->v,    [TOWER_PROJ] = n->proj,
        [TOWER_GATE] = n->gate, [TOWER_FC1] = n->fc1, [TOWER_FC2] = n->fc2};
    for (int k = 0; k < TOWER_MATS && !r->l.rc; k++)
        y->clip[k] =
            (struct tower_clip){read_bound(r, names[k], ".input_min", i), read_bound(r, names[k], ".input_max", i),
                                read_bound(r, names[k], ".output_min", i), read_bound(r, names[k], ".output_max", i)};
}

/* Matrices and norms of queries, keys and values. */
static void read_apart(struct reader *r, struct tower_layer *y, int i) {
    const struct tower_config *c = &r->t->config;
    const struct tower_names *n = &c->names;
    const int h = c->hidden, dim = h / c->heads;
    y->q = read_mat(r, n->q, i, h, h), y->k = read_mat(r, n->k, i, h, h), y->v = read_mat(r, n->v, i, h, h);
    y->q_norm = read_norm(r, n->q_norm, i, dim), y->k_norm = read_norm(r, n->k_norm, i, dim);
}

static void read_layer(struct reader *r, struct tower_layer *y, int i) {
    const struct tower_config *c = &r->t->config;
    const struct tower_names *n = &c->names;
    const int h = c->hidden;
    y->norm1 = read_norm(r, n->norm1, i, h), y->norm2 = read_norm(r, n->norm2, i, h);
    if (n->q) read_apart(r, y, i);
    else y->qkv = read_mat(r, n->qkv, i, 3 * h, h);
    y->proj = read_mat(r, n->proj, i, h, h);
    if (n->norm1_after) y->norm1_after = read_norm(r, n->norm1_after, i, h);
    if (n->norm2_after) y->norm2_after = read_norm(r, n->norm2_after, i, h);
    if (c->is_clipped) read_clips(r, y, i);
    y->fc1 = read_mat(r, n->fc1, i, c->inter, h), y->fc2 = read_mat(r, n->fc2, i, h, c->inter);
    if (n->gate) y->gate = read_mat(r, n->gate, i, c->inter, h);
    if (c->has_qkv_bias) y->qkv_bias = read_bias(r, n->qkv, i, 3 * h);
    if (!c->has_bias) return;
    y->norm1_bias = read_bias(r, n->norm1, i, h), y->norm2_bias = read_bias(r, n->norm2, i, h);
    y->proj_bias = read_bias(r, n->proj, i, h);
    y->fc1_bias = read_bias(r, n->fc1, i, c->inter), y->fc2_bias = read_bias(r, n->fc2, i, h);
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
    if (c->is_pooled) read_linear_patch(&r);
    else read_patch(&r), t->patch_bias = read_bias(&r, c->names.patch, 0, c->hidden);
    read_position(&r);
    if (c->names.standard) {
        t->standard_bias = read_vector(&r, c->names.standard, "_bias", 0, c->hidden);
        t->standard_scale = read_vector(&r, c->names.standard, "_scale", 0, c->hidden);
    }
    if (c->names.patch_norm) t->patch_norm = read_norm(&r, c->names.patch_norm, 0, c->hidden);
    if (c->names.last_norm) t->last_norm = read_norm(&r, c->names.last_norm, 0, c->hidden);
    if (c->names.last_norm && !c->is_rms) t->last_norm_bias = read_bias(&r, c->names.last_norm, 0, c->hidden);
    for (int i = 0; i < c->depth && !r.l.rc; i++) read_layer(&r, &t->layers[i], i);
    read_merger(&r, &t->merger, 0, false);
    for (int i = 0; i < c->n_deep && !r.l.rc; i++)
        read_merger(&r, &t->deep[i], c->is_deep_by_layer ? c->deep_layer[i] : i, true);
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
    int rc = file_config(path, sizeof path, w->files.dir, e);
    if (rc) return rc;
    if (!(rc = file_read(path, MOST_BYTES, &text, &n, e))) rc = json_parse(&a, text, n, JSON_PYTHON, path, &root, e);
    const struct json *type = rc ? NULL : json_get(&root, "model_type");
    for (size_t i = 0; i < sizeof tower_families / sizeof *tower_families; i++)
        if (json_is(type, tower_families[i]->model_type)) family = tower_families[i];
    const struct json *vision = rc ? NULL : json_get(&root, "vision_config");
    if (!rc && !family)
        snprintf(why, why_size,
                 vision ? "hearth does not read the images of this model's family yet" : "this model reads text only");
    const struct json *token = rc ? NULL : json_get(&root, "image_token_id");
    if (!rc && family && !token && family->token_key) token = json_get(&root, family->token_key);
    if (!rc && family) c->image_token = (int32_t)json_int(token, family->image_token);
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

/* Opens the tower among the model's tensors. *found: there is one. */
static int open_within(struct tower *t, struct weights *w, char *why, size_t why_size, bool *found, struct error *e) {
    char name[512];
    int rc = parse(&t->config, w, why, why_size, found, e);
    if (!*found || !t->config.names.patch) return rc; /* the second: config.json does not describe the tower */
    if (!rc)
        rc = checkpoint_name_tower(&w->files, (const char *const *)&t->config.names,
                                   sizeof t->config.names / sizeof(char *), e);
    loader_name(name, sizeof name, t->config.names.patch, 0, 0, ".weight");
    if (!checkpoint_find(&w->files, name)) {
        snprintf(why, why_size, "this checkpoint has only the text model, not its vision tower");
        *found = false, *e = (struct error){0};
        return 0;
    }
    if (!rc) rc = tower_read_processor(&t->config, w->files.dir, e);
    const struct unclaimed before = count_unclaimed(&w->files);
    if (!rc) rc = load(t, w, e);
    if (rc) return rc;
    const struct unclaimed after = count_unclaimed(&w->files);
    t->bytes = before.bytes - after.bytes;
    w->bytes_skipped -= t->bytes; /* they are the tower's */
    w->n_skipped -= before.n - after.n;
    return 0;
}

/* Opens the tower's own file, and loads it. */
static int open_beside(struct tower *t, struct weights *w, const char *file, char *why, size_t why_size, bool *found,
                       struct error *e) {
    TRY(tower_mmproj_open(t, w, file, why, why_size, e));
    *found = t->beside != NULL;
    if (*found) TRY(load(t, t->beside, e));
    return *found ? tower_mmproj_check(t, e) : 0;
}

int tower_open(struct tower **out, struct weights *w, const char *file, char *why, size_t why_size, struct error *e) {
    struct tower *t = mem_calloc(1, sizeof *t);
    bool found = false;
    int rc;
    *out = NULL;
    if (t) t->has_places = w->config.rope.section[0] > 0, t->config.table_token = -1;
    if (!t) return error_set(e, ERR_MEMORY, "no memory for a vision tower");
    if (w->files.gguf) rc = open_beside(t, w, file, why, why_size, &found, e);
    else if (file)
        rc = error_set(e, ERR_USAGE,
                       "--mmproj %s: %s is no GGUF model; the tower of such a model is in its own directory", file,
                       w->files.dir);
    else rc = open_within(t, w, why, why_size, &found, e);
    if (rc == ERR_MODEL && !file) { /* the text model is whole, and answers */
        log_say(LOG_INFO, "images are not read: %s", e->text);
        snprintf(why, why_size, "%s", e->text);
        *e = (struct error){0};
        rc = 0, found = false;
    }
    if (rc || !found) {
        tower_close(&t);
        return rc;
    }
    if (t->config.table_token < 0) t->config.table_token = t->config.image_token;
    *out = t;
    return 0;
}

void tower_limit(struct tower *t, int tokens) {
    struct resample_limits *l = &t->config.limits;
    const double pixels = fmax((double)tokens * l->factor * l->factor, l->min_pixels);
    l->max_pixels = fmin(l->max_pixels, pixels);
    if (!l->keeps_ratio) return;
    const int cells = t->config.merge * t->config.merge;
    if (tokens < l->most_patches / cells) l->most_patches = (tokens > 0 ? tokens : 1) * cells;
}
int tower_most_tokens(const struct tower *t) {
    return t->config.limits.most_patches / (t->config.merge * t->config.merge);
}

void tower_close(struct tower **t) {
    if (*t && (*t)->beside) weights_close((*t)->beside);
    if (*t) mem_free((*t)->beside);
    mem_free(*t);
    *t = NULL;
}
